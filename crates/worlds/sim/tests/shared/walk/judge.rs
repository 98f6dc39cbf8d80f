//! What hosts hear, against the models.

use outboard_base::{Errno, Result};
use outboard_volume::Answer;
use outboard_wire::file::Reply;

use super::{Told, Walk};
use crate::front::is_loss;
use crate::host::{Ask, Asked};
use crate::model::{ANY, NONE};
use crate::world::CLIENTS;

const STRIP: u64 = 65536;

impl Walk {
    pub(super) fn judge(
        &mut self,
        (host, lane): (usize, usize),
        asked: &Asked,
        answer: Result<Answer>,
    ) {
        let told = self.told.remove(&(host, lane)).unwrap();
        let now = self.moment();
        let said = match &answer {
            Ok(answer) => format!("{:?}", std::mem::discriminant(&answer.reply)),
            Err(errno) => errno.to_string(),
        };
        self.world.note(format_args!("host {} lane {lane} hears {said}", CLIENTS[host]));
        if let Err(errno) = &answer {
            self.counts.failed += u64::from(![Errno::ENOENT, Errno::EEXIST].contains(errno));
            let strange = [Errno::EPROTO, Errno::EBADF, Errno::EUCLEAN, Errno::ENOSYS];
            assert!(!strange.contains(errno), "{errno} to {:?}", asked.ask);
        }
        let wrong = self.judge_file((host, told, now), asked, &answer);
        let wrong = wrong.and_then(|()| self.judge_name((host, told, now), asked, &answer));
        if let Err(why) = wrong {
            panic!("at {} to host {}: {:?}: {why}", self.world.now.0, CLIENTS[host], asked.ask);
        }
    }

    pub(super) fn judge_file(
        &mut self,
        (host, told, now): (usize, Told, u64),
        asked: &Asked,
        answer: &Result<Answer>,
    ) -> std::result::Result<(), String> {
        let file = &mut self.files[told.file];
        let times = (told.begun, now);
        let steady = !file.sizing;
        match (&asked.ask, answer) {
            (Ask::Open { .. }, Ok(answer)) => {
                let Reply::Created(attr, fh) = &answer.reply else { return Err(odd(answer)) };
                self.hosts[host].handles.push((attr.ino, *fh));
                if attr.ino != file.ino {
                    return Err(format!("another inode, {}", attr.ino));
                }
            }
            (Ask::Reopen { ino }, Ok(answer)) => {
                let Reply::Opened(fh) = &answer.reply else { return Err(odd(answer)) };
                self.hosts[host].handles.push((*ino, *fh));
            }
            (Ask::Close { ino, .. }, _) => {
                self.hosts[host].handles.retain(|handle| handle.0 != *ino);
            }
            (Ask::Read { offset, len, .. }, Ok(answer)) => {
                let found = answer.payload.bytes();
                file.model.read(host, times, (*offset, u64::from(*len)), found, steady)?;
            }
            (Ask::Getattr { .. }, Ok(answer)) => {
                let Reply::Attr(attr) = &answer.reply else { return Err(odd(answer)) };
                file.model.look(times, (0, u64::MAX), attr.size, steady)?;
            }
            (Ask::Fsync { .. }, Ok(_)) => {
                self.counts.proved += file.model.synced((host, false), told.begun, told.losses);
            }
            (Ask::Syncfs, Ok(_)) => self.synced((host, told)),
            (Ask::Syncfs, Err(errno)) if is_loss(*errno) => {
                self.names.iter_mut().for_each(|(_, name, _)| name.told(host));
                self.files.iter_mut().for_each(|file| file.model.told_of_all(host));
            }
            (Ask::Fsync { .. }, Err(errno)) => self.is_told((host, told, now), *errno),
            (Ask::Write { .. } | Ask::Truncate { .. } | Ask::Punch { .. }, _) => {
                return self.judge_change((host, told, now), asked, answer);
            }
            _ => {}
        }
        Ok(())
    }

    fn judge_change(
        &mut self,
        (host, told, now): (usize, Told, u64),
        asked: &Asked,
        answer: &Result<Answer>,
    ) -> std::result::Result<(), String> {
        let file = &mut self.files[told.file];
        if let (Ok(answer), Ask::Write { len, .. }) = (answer, &asked.ask)
            && answer.reply != Reply::Written(*len as u32)
        {
            return Err(odd(answer));
        }
        // One that the server forgot with its power may stand behind some strips of itself.
        let is_torn = told.repeats && crosses(&asked.ask);
        if let (Ok(_), Some(op), false) = (answer, told.op, is_torn) {
            file.model.end(op, now);
        }
        match told.size {
            Some((least, most, since)) => {
                file.sizing = false;
                if answer.is_ok() {
                    file.model.end_size((least, most), since, now);
                } else {
                    file.model.fail_size();
                }
            }
            None => file.writers -= 1,
        }
        if self.unkept[host] {
            file.model.unkept(host, false, now);
        }
        Ok(())
    }

    /// All names, and all that the host wrote. (Of what lies in its cache a kernel would know.)
    pub(super) fn synced(&mut self, (host, told): (usize, Told)) {
        let sure = told.losses.server == self.losses.server;
        let names = self.names.iter_mut().map(|(_, name, _)| name);
        self.counts.proved += names.map(|name| name.synced(host, sure, told.begun)).sum::<u64>();
        if !self.is_cached {
            for file in &mut self.files {
                self.counts.proved += file.model.synced((host, true), told.begun, told.losses);
            }
        }
    }

    /// A sync failed: some of what the host wrote was lost.
    pub(super) fn is_told(&mut self, (host, told, now): (usize, Told, u64), errno: Errno) {
        if is_loss(errno) {
            self.files[told.file].model.unkept(host, true, now);
            self.counts.told += 1;
        }
    }

    pub(super) fn judge_name(
        &mut self,
        (host, told, now): (usize, Told, u64),
        asked: &Asked,
        answer: &Result<Answer>,
    ) -> std::result::Result<(), String> {
        let sure = told.losses.server == self.losses.server;
        let at = |name: &Vec<u8>| name[1] as usize - usize::from(b'0');
        let names = &mut self.names;
        let mut set = |name: usize, value: u64| {
            names[name].2 = false;
            match sure {
                true => names[name].1.made(host, value, now),
                false => names[name].1.may_be(value, now),
            }
        };
        match (&asked.ask, answer.as_ref().map(|answer| &answer.reply)) {
            (Ask::Mknod { name }, Ok(Reply::Entry(attr))) => set(at(name), attr.ino.0),
            (Ask::Unlink { name }, Ok(_)) => set(at(name), NONE),
            (Ask::Rename { from, to }, Ok(_)) => {
                let (from, to) = (at(from), at(to));
                let value = names[to].1.begun();
                names[from].2 = false;
                names[to].2 = false;
                if sure {
                    names[from].1.made(host, NONE, now);
                    names[to].1.made(host, value, now);
                }
            }
            (Ask::Mknod { name } | Ask::Unlink { name }, Err(errno)) => {
                let name = at(name);
                names[name].2 = false;
                let found = match *errno {
                    Errno::EEXIST => ANY,
                    Errno::ENOENT => NONE,
                    _ => return Ok(()),
                };
                names[name].1.look(told.begun, found)?;
                if sure && !asked.is_replay {
                    names[name].1.undo(now);
                }
            }
            (Ask::Rename { from, to }, Err(_)) => {
                (names[at(from)].2, names[at(to)].2) = (false, false);
            }
            (Ask::Lookup { name }, Ok(Reply::Entry(attr))) => {
                names[at(name)].1.look(told.begun, attr.ino.0)?;
            }
            (Ask::Lookup { name }, Err(&Errno::ENOENT)) => {
                names[at(name)].1.look(told.begun, NONE)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Whether a write is of more than one strip.
fn crosses(ask: &Ask) -> bool {
    match ask {
        Ask::Write { offset, len, .. } => offset / STRIP != (offset + len - 1) / STRIP,
        _ => false,
    }
}

fn odd(answer: &Answer) -> String {
    format!("the answer {:?}", answer.reply)
}

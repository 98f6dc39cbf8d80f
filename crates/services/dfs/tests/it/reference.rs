//! Two clients take turns with files, against files in memory: what one did the other sees, each
//! time, whatever was lost on the way and however often something was asked.

use std::time::Duration;

use outboard_base::{Errno, Fh, Ino, Rng};
use outboard_wire::file::{
    Flags, Reply as FileReply, Request, Setattr, SetattrTime, open_flags, seek, write_flags,
};

use crate::host::Host;
use crate::world::{Rig, seeds};

/// Largest size, about.
const MOST: u64 = 400_000;

struct Walk {
    rig: Rig,
    hosts: Vec<Host>,
    /// Handles of each host: one plain, one that appends.
    open: Vec<Vec<[(Ino, Fh); 2]>>,
    files: Vec<Vec<u8>>,
    rng: Rng,
    sequence: u64,
    /// Files have so many units of data, and parities.
    units: Option<(u8, u8)>,
}

type Outcome = Result<(FileReply, Vec<u8>), Errno>;

impl Walk {
    fn new(seed: u64, units: Option<(u8, u8)>) -> Walk {
        let mut rig = units.map_or_else(|| Rig::new(seed), |units| Rig::coded(seed, units));
        let rng = Rng::new(seed);
        let hosts: Vec<Host> = [11, 22].map(|number| Host::new(&mut rig, number)).into();
        let (open, files, sequence) = (Vec::new(), vec![Vec::new(); 2], 0);
        let mut walk = Walk { rig, hosts, open, files, rng, sequence, units };
        for who in 0..2 {
            let names: [&[u8]; 2] = [b"a", b"b"];
            let open = names.map(|name| {
                [0, open_flags::APPEND].map(|flags| {
                    let host = walk.hosts[who].clone();
                    let opened = async move { host.open(name, flags).await };
                    let (attr, fh) = walk.rig.wait(walk.hosts[who].peer(), opened).unwrap();
                    (attr.ino, fh)
                })
            });
            walk.open.push(open.into());
        }
        walk
    }

    /// Asks, and maybe asks again as after a loss of the way there.
    fn ask(&mut self, who: usize, request: Request<'static>, payload: &[u8]) -> Outcome {
        self.sequence += 1;
        let sequence = if request.op().changes() { self.sequence } else { 0 };
        let mut times = 1;
        if sequence > 0 && self.rng.chance(1, 6) {
            times = 2;
        }
        let mut last = None;
        for time in 0..times {
            let host = self.hosts[who].clone();
            let (request, payload) = (request.clone(), payload.to_vec());
            let flags = if time == 0 { Flags::default() } else { Flags::REPLAY };
            let outcome = self.rig.wait(self.hosts[who].peer(), async move {
                let answer = host.ask(sequence, flags, request, payload).await;
                answer.map(|it| (it.reply.clone(), it.payload.bytes().to_vec()))
            });
            if let (Some(Ok((before, _))), Ok((after, _))) = (&last, &outcome)
                && !matches!(before, FileReply::Attr(_))
                && !matches!(before, FileReply::Opened(_) | FileReply::Created(..))
            {
                assert_eq!(before, after, "asked again");
            }
            last = Some(outcome);
        }
        last.unwrap()
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let mut bytes = vec![0; 1 + self.rng.below(most) as usize];
        self.rng.fill(&mut bytes);
        bytes
    }

    fn write(&mut self, who: usize, file: usize) {
        let most = if self.rng.chance(1, 4) { 200_000 } else { 5000 };
        let data = self.bytes(most);
        let appends = self.rng.chance(1, 3);
        let (ino, fh) = self.open[who][file][usize::from(appends)];
        let len = self.files[file].len() as u64;
        let offset = self.rng.below(len + 1000);
        let request = Request::Write { ino, fh, offset, flags: 0 };
        let (reply, _) = self.ask(who, request, &data).unwrap();
        assert_eq!(reply, FileReply::Written(data.len() as u32));
        let at = if appends { len } else { offset } as usize;
        put(&mut self.files[file], at, &data);
    }

    fn read(&mut self, who: usize, file: usize) {
        let (ino, fh) = self.open[who][file][0];
        let len = self.files[file].len() as u64;
        let (offset, len) = (self.rng.below(len + 100), 1 + self.rng.below(300_000) as u32);
        let request = Request::Read { ino, fh, offset, len, flags: 0 };
        let (_, bytes) = self.ask(who, request, &[]).unwrap();
        let from = (offset as usize).min(self.files[file].len());
        let to = (from + len as usize).min(self.files[file].len());
        assert!(bytes == self.files[file][from..to], "read at {offset} of {file}");
    }

    fn resize(&mut self, who: usize, file: usize) {
        let (ino, fh) = self.open[who][file][0];
        let size = self.rng.below(MOST);
        let set = Setattr { size: Some(size), ..Setattr::default() };
        let (reply, _) = self.ask(who, Request::Setattr { ino, fh, set }, &[]).unwrap();
        let FileReply::Attr(attr) = reply else { panic!("{reply:?}") };
        assert_eq!(attr.size, size);
        self.files[file].resize(size as usize, 0);
    }

    fn hole(&mut self, who: usize, file: usize) {
        let (ino, fh) = self.open[who][file][0];
        let (offset, len) = (self.rng.below(MOST), 1 + self.rng.below(150_000));
        let mode = [3, 16, 17, 0, 1][self.rng.below(5) as usize];
        let request = Request::Fallocate { ino, fh, offset, len, mode };
        let outcome = self.ask(who, request, &[]);
        if self.units.is_some() && mode != 3 {
            assert_eq!(outcome, Err(Errno::EOPNOTSUPP));
            return;
        }
        outcome.unwrap();
        let bytes = &mut self.files[file];
        let end = (offset + len) as usize;
        if [0, 16].contains(&mode) && bytes.len() < end {
            bytes.resize(end, 0);
        }
        if mode < 2 {
            return;
        }
        let to = end.min(bytes.len());
        bytes[(offset as usize).min(to)..to].fill(0);
    }

    fn copy(&mut self, who: usize) {
        let (from, to) = (self.rng.below(2) as usize, self.rng.below(2) as usize);
        let ((source, from_fh), (target, to_fh)) = (self.open[who][from][0], self.open[who][to][0]);
        let (from_at, to_at) = (self.rng.below(MOST), self.rng.below(MOST));
        let len = 1 + self.rng.below(100_000);
        let request = Request::CopyFileRange {
            from: source,
            from_fh,
            from_offset: from_at,
            to: target,
            to_fh,
            to_offset: to_at,
            len,
        };
        let outcome = self.ask(who, request, &[]);
        if from == to && from_at < to_at + len && to_at < from_at + len {
            assert_eq!(outcome, Err(Errno::EINVAL));
            return;
        }
        let start = (from_at as usize).min(self.files[from].len());
        let end = (start + len as usize).min(self.files[from].len());
        let bytes = self.files[from][start..end].to_vec();
        assert_eq!(outcome.unwrap().0, FileReply::Written(bytes.len() as u32));
        put(&mut self.files[to], to_at as usize, &bytes);
    }

    fn look(&mut self, who: usize, file: usize) {
        let (ino, fh) = self.open[who][file][0];
        let len = self.files[file].len() as u64;
        let (reply, _) = self.ask(who, Request::Getattr { ino, fh }, &[]).unwrap();
        let FileReply::Attr(attr) = reply else { panic!("{reply:?}") };
        assert_eq!(attr.size, len);
        // What it takes is what its nodes have of it, space put aside with it. (What members of
        // stripes have changes with what is settled.)
        let nodes = self.rig.world.nodes.iter();
        let held = nodes.map(|node| node.store.held(ino.0));
        if self.units.is_none() {
            assert_eq!(attr.blocks * 512, held.sum::<u64>(), "{len} bytes of {ino:?}");
        }
        self.seek(who, file, len);
    }

    /// Data and holes follow one another to the end of the file, and holes are zeros.
    fn seek(&mut self, who: usize, file: usize, len: u64) {
        let (ino, fh) = self.open[who][file][0];
        let mut at = self.rng.below(len + 10);
        for whence in [seek::DATA, seek::HOLE, seek::DATA] {
            match self.ask(who, Request::Lseek { ino, fh, offset: at, whence }, &[]) {
                Ok((FileReply::Offset(found), _)) => {
                    assert!(at < len && at <= found && found <= len, "{at} {found} {len}");
                    let skipped = &self.files[file][at as usize..found as usize];
                    assert!(whence == seek::HOLE || skipped.iter().all(|byte| *byte == 0));
                    at = found;
                }
                other => {
                    let left = &self.files[file][at.min(len) as usize..];
                    assert!(other == Err(Errno::ENXIO), "{other:?}");
                    assert!(at >= len || whence == seek::DATA, "there is a hole at the end");
                    assert!(left.iter().all(|byte| *byte == 0), "{at} of {len}");
                    return;
                }
            }
        }
    }

    /// Opened with truncation, by name or by number.
    fn truncate(&mut self, who: usize, file: usize) {
        let (ino, _) = self.open[who][file][0];
        let flags = open_flags::RDWR | open_flags::TRUNC;
        let request = if self.rng.chance(1, 2) {
            Request::Open { ino, flags }
        } else {
            let name: &[u8] = if file == 0 { b"a" } else { b"b" };
            Request::Create { parent: Ino::ROOT, name, mode: 0o644, umask: 0, flags }
        };
        let (reply, _) = self.ask(who, request, &[]).unwrap();
        let (FileReply::Opened(fh) | FileReply::Created(_, fh)) = reply else { panic!() };
        self.files[file].clear();
        let release = Request::Release { ino, fh, owner: 0 };
        self.ask(who, release, &[]).unwrap();
    }

    /// A time that was set stays, whatever was written before.
    fn date(&mut self, who: usize, file: usize) {
        let (ino, fh) = self.open[who][file][0];
        let then =
            outboard_base::Timestamp { sec: 1_000_000 + self.rng.below(1000) as i64, nsec: 5 };
        let set = Setattr { mtime: Some(SetattrTime::At(then)), ..Setattr::default() };
        self.ask(who, Request::Setattr { ino, fh, set }, &[]).unwrap();
        if self.rng.chance(1, 2) {
            self.rig.pass(Duration::from_millis(1500));
        }
        let (reply, _) = self.ask(1 - who, Request::Getattr { ino, fh: Fh::NONE }, &[]).unwrap();
        let FileReply::Attr(attr) = reply else { panic!("{reply:?}") };
        assert_eq!(attr.mtime, then);
    }

    fn step(&mut self) {
        let (who, file) = (self.rng.below(2) as usize, self.rng.below(2) as usize);
        match self.rng.below(16) {
            0..5 => self.write(who, file),
            5..9 => self.read(who, file),
            9 => self.resize(who, file),
            10 => self.hole(who, file),
            11 => self.copy(who),
            12 => self.look(who, file),
            13 => self.truncate(who, file),
            14 => self.date(who, file),
            _ => {
                let (ino, fh) = self.open[who][file][0];
                let request = Request::Fsync { ino, fh, data_only: false };
                self.ask(who, request, &[]).unwrap();
                if self.rng.chance(1, 8) {
                    self.rig.pass(Duration::from_secs(self.rng.below(40)));
                }
            }
        }
    }
}

fn put(file: &mut Vec<u8>, at: usize, data: &[u8]) {
    if !data.is_empty() && file.len() < at + data.len() {
        file.resize(at + data.len(), 0);
    }
    if !data.is_empty() {
        file[at..at + data.len()].copy_from_slice(data);
    }
}

#[test]
fn two_clients_see_one_file() {
    for seed in seeds(6) {
        println!("OUTBOARD_SEED={seed}");
        let mut walk = Walk::new(seed, None);
        if seed % 3 != 0 {
            walk.rig.faults(30, 30);
        }
        for _ in 0..150 {
            walk.step();
        }
    }
}

/// The same where files are stripes.
#[test]
fn two_clients_see_one_file_with_parities() {
    for seed in seeds(8) {
        println!("OUTBOARD_SEED={seed}");
        let units = [(1, 1), (2, 1), (3, 2), (6, 3)][seed as usize % 4];
        let mut walk = Walk::new(seed, Some(units));
        if seed >= 4 {
            walk.rig.faults(10, 30);
        }
        for _ in 0..100 {
            walk.step();
        }
    }
}

/// What was appended in an earlier life of a side is not appended again, and what was not is. (It
/// counted as done if the file ended with its bytes: of two equal records the second was lost.)
#[test]
fn an_append_is_done_once_whichever_life_did_it() {
    let mut rig = Rig::new(1);
    let host = Host::new(&mut rig, 11);
    let append = |ino, fh| Request::Write { ino, fh, offset: 0, flags: write_flags::APPEND };
    let before = host.clone();
    let attr = rig.wait(host.peer(), async move {
        let (attr, fh) = before.open(b"log", 0).await.unwrap();
        for (sequence, line) in [(6, &b"one"[..]), (7, b"two")] {
            let request = append(attr.ino, fh);
            before.ask(sequence, Flags::default(), request, line.to_vec()).await.unwrap();
        }
        attr
    });
    rig.kill(11);
    let host = Host::new(&mut rig, 11);
    let again = host.clone();
    let bytes = rig.wait(host.peer(), async move {
        let (_, fh) = again.open(b"log", 0).await.unwrap();
        let ino = attr.ino;
        for (sequence, line) in [(7, &b"two"[..]), (8, b"two"), (8, b"two"), (9, b"three")] {
            let request = append(ino, fh);
            let answer = again.ask(sequence, Flags::REPLAY, request, line.to_vec()).await.unwrap();
            assert_eq!(answer.reply, FileReply::Written(line.len() as u32));
        }
        again.read((ino, fh), 0, 100).await.unwrap()
    });
    assert_eq!(bytes, b"onetwotwothree");
}

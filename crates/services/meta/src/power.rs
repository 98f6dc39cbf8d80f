//! A loss of the server's power, which may take the last commits of its store: those that nobody
//! synced. Whoever was answered before hears so at its next sync, once: of a file that somebody was
//! writing to, of a directory, and of the volume.
//!
//! ```text
//! note "boot"      value: the number of the boot u64 | 1, if the server ended in order; else 0, u8
//! note "lost"      value: end u64 | 1, if the files follow; else 0, u64 | files u64 ...
//! ```
//!
//! The store does not say what it lost, so this is said of more than was lost. A session was there
//! before if it comes in the grace period, later and hands something in, or begins by what it sends
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outboard_base::{Ino, Result, SessionId, Time};
use outboard_kv::Kv;
use outboard_kvfs::Kvfs;
use outboard_medium::Medium;
use outboard_wire::file::{Flags, Header};

const BOOT: &[u8] = b"boot";
const LOST: &[u8] = b"lost";
/// Most sessions that are told, and most things that one is told of.
const MOST: usize = 1 << 16;
/// Most files of a note; of more it is said that all may be meant.
const FILES_MAX: usize = 500;
/// How long after its start a server that is to say so forgets the note: whoever was there has come
/// back by then, or does not.
const NOTED: Duration = Duration::from_secs(600);

/// Before anybody is answered: whether power may have been lost since the volume was served last,
/// is found out, with what that leads to in the store; and of whom it is still to be said.
pub(crate) async fn look<K: Kv, M: Medium>(
    kvfs: &Kvfs<K, M>,
    boot: u64,
    now: Time,
) -> Result<Losses> {
    let noted = kvfs.notes(LOST, None).await?;
    let mut loss = noted.first().map(|(_, value)| Loss::decode(value, now));
    let known = kvfs.notes(BOOT, None).await?;
    let known = known.first().map(|(_, value)| value.as_slice());
    let has_ended = known.is_some_and(|value| value.get(8) == Some(&1));
    if known != Some(&boot_note(boot, false)) {
        if !has_ended {
            kvfs.doubt_writers().await?;
        }
        if kvfs.opening() > 1 && !has_ended {
            let written = written_to(kvfs, loss.as_ref()).await?;
            let end = kvfs.marked_below();
            let new = Loss { written, end, since: Some(now), sessions: BTreeMap::new() };
            kvfs.note(LOST, Some(&new.encode())).await?;
            loss = Some(new);
        }
        kvfs.note(BOOT, Some(&boot_note(boot, false))).await?;
    }
    Ok(Losses(loss))
}

/// Whether the volume was served before.
pub(crate) async fn was_served<K: Kv, M: Medium>(kvfs: &Kvfs<K, M>) -> Result<bool> {
    Ok(!kvfs.notes(BOOT, None).await?.is_empty())
}

fn boot_note(boot: u64, has_ended: bool) -> [u8; 9] {
    let mut note = [u8::from(has_ended); 9];
    let (number, _) = note.split_at_mut(8);
    number.copy_from_slice(&boot.to_le_bytes());
    note
}

/// All that was answered is durable, and nobody is answered any more.
pub(crate) async fn end<K: Kv, M: Medium>(kvfs: &Kvfs<K, M>, boot: u64) -> Result<()> {
    kvfs.note(BOOT, Some(&boot_note(boot, true))).await
}

/// The files that somebody may be writing to, and those of the loss before this that not all may
/// have heard of.
async fn written_to<K: Kv, M: Medium>(
    kvfs: &Kvfs<K, M>,
    before: Option<&Loss>,
) -> Result<Option<BTreeSet<Ino>>> {
    let mut written = before.map_or(Some(BTreeSet::new()), |loss| loss.written.clone());
    let mut after = Ino::ROOT;
    while let Some(files) = written.as_mut().filter(|files| files.len() <= FILES_MAX) {
        let some = kvfs.writing(after, FILES_MAX).await?;
        let Some(last) = some.last() else { break };
        after = *last;
        files.extend(some);
    }
    Ok(written.filter(|files| files.len() <= FILES_MAX))
}

/// The next life of the server has nothing to say of it.
pub(crate) async fn forget<K: Kv, M: Medium>(kvfs: &Kvfs<K, M>) -> Result<()> {
    kvfs.note(LOST, None).await
}

/// What a sync is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Synced {
    /// Bytes and size of a file.
    File(Ino),
    /// The names in a directory.
    Directory(Ino),
    /// All there is.
    Volume,
}

/// A loss of power before this life of the server.
#[derive(Debug)]
struct Loss {
    /// Files that somebody was writing to; nothing: any may be meant.
    written: Option<BTreeSet<Ino>>,
    /// Inodes from here on were made since.
    end: u64,
    /// When this life began, as long as there is a note.
    since: Option<Time>,
    /// Sessions, by what came first of them: of those that were there before what was said to them.
    sessions: BTreeMap<SessionId, Option<BTreeSet<Synced>>>,
}

impl Loss {
    fn encode(&self) -> Vec<u8> {
        let files = self.written.iter().flatten().map(|ino| ino.0);
        let marker = u64::from(self.written.is_some());
        [self.end, marker].into_iter().chain(files).flat_map(u64::to_le_bytes).collect()
    }

    /// What cannot be read is meant of everything.
    fn decode(note: &[u8], now: Time) -> Loss {
        let (numbers, _) = note.as_chunks();
        let mut numbers = numbers.iter().copied().map(u64::from_le_bytes);
        let (end, marker) = (numbers.next().unwrap_or(u64::MAX), numbers.next().unwrap_or(0));
        let written = (marker == 1).then(|| numbers.map(Ino).collect());
        Loss { written, end, since: Some(now), sessions: BTreeMap::new() }
    }
}

/// Of the last loss of power, as long as somebody may not have heard of it.
#[derive(Debug, Default)]
pub(crate) struct Losses(Option<Loss>);

impl Losses {
    /// Whether the note is to be forgotten; once.
    pub(crate) fn is_old(&mut self, now: Time) -> bool {
        let since =
            self.0.as_mut().and_then(|loss| loss.since.take_if(|at| now.since(*at) >= NOTED));
        since.is_some()
    }

    /// A session asks something. Only what comes first says whether it was there before: later a
    /// client asks again, as hosts do that come back, what it has no answer to.
    pub(crate) fn came(&mut self, session: SessionId, was_there: bool) {
        if let Some(loss) = self.0.as_mut().filter(|loss| loss.sessions.len() < MOST) {
            loss.sessions.entry(session).or_insert_with(|| was_there.then(BTreeSet::new));
        }
    }

    /// A session hands something in: it was there, whatever came before.
    pub(crate) fn hands_in(&mut self, session: SessionId) {
        if let Some(loss) = self.0.as_mut().filter(|loss| loss.sessions.len() < MOST) {
            loss.sessions.entry(session).or_default().get_or_insert_default();
        }
    }

    /// Whether a session hears of the loss now: its sync fails. Who asks again hears it again.
    pub(crate) fn says(&mut self, header: &Header, what: Synced) -> bool {
        let Some(loss) = &mut self.0 else { return false };
        let is_in_doubt = match what {
            Synced::File(ino) => {
                loss.written.as_ref().map_or(ino.0 < loss.end, |written| written.contains(&ino))
            }
            Synced::Directory(ino) => ino.0 < loss.end,
            Synced::Volume => true,
        };
        let Some(Some(said)) = loss.sessions.get_mut(&header.session) else { return false };
        let is_news = is_in_doubt && said.len() < MOST && said.insert(what);
        is_news || said.contains(&what) && header.flags.has(Flags::REPLAY)
    }

    /// A session is no more.
    pub(crate) fn forget(&mut self, session: SessionId) {
        if let Some(loss) = &mut self.0 {
            loss.sessions.remove(&session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_read_as_it_was_noted() {
        let now = Time(7);
        for written in [None, Some([3, 9].map(Ino).into()), Some(BTreeSet::new())] {
            let loss = Loss { written, end: 12, since: Some(now), sessions: BTreeMap::new() };
            let read = Loss::decode(&loss.encode(), now);
            assert_eq!((read.written, read.end), (loss.written.clone(), 12));
            for cut in 0..16 {
                assert_eq!(Loss::decode(&loss.encode()[..cut], now).written, None, "{cut}");
            }
        }
    }
}

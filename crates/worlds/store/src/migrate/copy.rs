//! What copies a volume between two stores: every pair, then every byte of the medium, then all
//! of it compared.
//!
//! The copy keeps a mark in the store it fills, beside what it has copied, so that it can go on
//! after a crash; a store with a mark is no volume yet, and is not opened as one. The mark also
//! says what the source was: one that was used in between is copied anew. With everything compared
//! the copy's directory is told where its volume is; last, the mark goes.
//!
//! ```text
//! mark  key    | FF | "migration" |
//!       value  | len (4) | source's superblock, counters | medium copied (8) | last key copied |
//! ```

use std::fmt;

use outboard_base::Errno;
use outboard_base::task::{join_all, join2};
use outboard_kv::{Batch, Durability, Key, Kv, KvError, Value};
use outboard_kvfs::layout::Tag;
use outboard_medium::{Buf, Medium};

/// Where the mark lies: above every key of a volume.
const MARK: &[u8] = b"\xFFmigration";
/// Pairs read at once.
const SCAN: usize = 256;
/// Bytes of a batch, about.
const BATCH: usize = 1 << 20;
/// Bytes of one operation on a medium.
const PIECE: usize = 1 << 20;
/// Operations on a medium at once.
const PIECES: u64 = 16;
/// Bytes of medium between two marks.
const STRETCH: u64 = 256 << 20;

/// Why a volume was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MigrateError {
    /// There is no volume to copy.
    NoVolume,
    /// The source is itself the half of a copy.
    HalfSource,
    /// There is a volume where the copy should go.
    Occupied,
    /// What was copied is not what is there.
    Differs,
    /// One of the stores failed.
    Store(KvError),
}

impl fmt::Display for MigrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVolume => f.write_str("there is no volume to copy"),
            Self::HalfSource => f.write_str("the source is itself an unfinished copy: finish that"),
            Self::Occupied => f.write_str(
                "there is a volume already where the copy should go: name another place",
            ),
            Self::Differs => f.write_str(
                "what was copied differs from the source: one of the two is damaged; check the \
                 source with `outboard fsck`, and run it again, it begins anew",
            ),
            Self::Store(KvError::NoSpace) => {
                f.write_str("no space left for the copy: make room and run it again, it goes on")
            }
            Self::Store(error) => write!(f, "{error}; run it again, it goes on"),
        }
    }
}

impl From<KvError> for MigrateError {
    fn from(error: KvError) -> MigrateError {
        MigrateError::Store(error)
    }
}

impl From<Errno> for MigrateError {
    fn from(errno: Errno) -> MigrateError {
        MigrateError::Store(errno.into())
    }
}

type Result<T> = std::result::Result<T, MigrateError>;

/// What a copy is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Copying pairs.
    Pairs,
    /// Copying the medium.
    Medium,
    /// Comparing pairs.
    ComparePairs,
    /// Comparing the medium.
    CompareMedium,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is done.
    pub phase: Phase,
    /// Pairs, or bytes of the medium.
    pub done: u64,
    /// Bytes of the medium; 0 where the number of pairs is not known.
    pub all: u64,
}

/// A volume's two halves.
pub(crate) struct Side<'a, K, M> {
    pub(crate) kv: &'a K,
    pub(crate) medium: &'a M,
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Pairs.
    pub pairs: u64,
    /// Bytes of the medium.
    pub medium: u64,
}

/// How far a copy has come, as its mark says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mark {
    source: Vec<u8>,
    medium: u64,
    last: Vec<u8>,
}

impl Mark {
    fn encode(&self) -> Value {
        let len = u32::try_from(self.source.len()).unwrap_or(u32::MAX);
        let mut value = len.to_le_bytes().to_vec();
        value.extend_from_slice(&self.source);
        value.extend_from_slice(&self.medium.to_le_bytes());
        value.extend_from_slice(&self.last);
        value.into()
    }

    fn decode(value: &[u8]) -> Option<Mark> {
        let (len, rest) = value.split_first_chunk()?;
        let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
        let (source, rest) = rest.split_at_checked(len)?;
        let (medium, last) = rest.split_first_chunk()?;
        let (source, last) = (source.to_vec(), last.to_vec());
        Some(Mark { source, medium: u64::from_le_bytes(*medium), last })
    }
}

/// Whether a store holds an unfinished copy, which must not be opened as a volume.
pub(crate) async fn is_unfinished<K: Kv>(kv: &K) -> std::result::Result<bool, KvError> {
    Ok(kv.get(MARK).await?.is_some())
}

/// Copies the volume `from` into `to`, which is empty or the unfinished copy of it, and compares.
/// The copy keeps its mark; see [`finish`].
pub(crate) async fn migrate<K: Kv, M: Medium, L: Kv, N: Medium>(
    from: &Side<'_, K, M>,
    to: &Side<'_, L, N>,
    mut told: impl FnMut(Progress),
) -> Result<Copied> {
    let source = look(from.kv).await?;
    let mut mark = begin(to.kv, source).await?;
    copy_pairs(from.kv, to.kv, &mut mark, &mut told).await?;
    copy_medium(from.medium, to, &mut mark, &mut told).await?;
    let compared = compare(from, to, &mut told).await;
    if compared == Err(MigrateError::Differs) {
        // The copy of nothing: the next try begins anew, instead of finding the same again.
        commit(to.kv, &mut Batch::new(), &Mark::default()).await?;
        to.kv.sync().await?;
    }
    let pairs = compared?;
    Ok(Copied { pairs, medium: from.medium.len() })
}

/// Makes a copy that was compared a volume.
pub(crate) async fn finish<L: Kv>(to: &L) -> Result<()> {
    let mut end = Batch::new();
    end.delete(MARK);
    Ok(to.commit(end, Durability::Durable).await?)
}

/// Whether there is a volume to copy; what tells it from every other.
pub(crate) async fn look<K: Kv>(from: &K) -> Result<Vec<u8>> {
    if is_unfinished(from).await? {
        return Err(MigrateError::HalfSource);
    }
    fingerprint(from).await?.ok_or(MigrateError::NoVolume)
}

/// Whether a copy may go there: where nothing is, or the half of one.
pub(crate) async fn may_fill<K: Kv>(to: &K) -> Result<()> {
    let is_taken = !is_unfinished(to).await? && !to.scan(&[], None, 1).await?.is_empty();
    if is_taken { Err(MigrateError::Occupied) } else { Ok(()) }
}

/// What tells a volume from every other, and from itself once it was used: its superblock and its
/// counters, of which one counts how often it was opened. `None`: no volume.
async fn fingerprint<K: Kv>(kv: &K) -> Result<Option<Vec<u8>>> {
    let mut print = Vec::new();
    for tag in [Tag::Superblock, Tag::Counter] {
        let pairs = kv.scan(&[tag as u8], None, SCAN).await?;
        if pairs.is_empty() {
            return Ok(None);
        }
        for (key, value) in pairs {
            print.extend_from_slice(&key);
            print.extend_from_slice(&value);
        }
    }
    Ok(Some(print))
}

/// Where to go on in `to`, marked.
async fn begin<K: Kv>(to: &K, source: Vec<u8>) -> Result<Mark> {
    let found = to.get(MARK).await?;
    let found = found.map(|value| Mark::decode(&value).ok_or(KvError::Corrupt)).transpose()?;
    if let Some(mark) = &found
        && mark.source == source
    {
        return Ok(mark.clone());
    }
    may_fill(to).await?;
    // The marked copy of something else: what it copied so far goes, the mark last.
    let mark = Mark { source, ..Mark::default() };
    let mut batch = Batch::new();
    batch.put(MARK, mark.encode());
    to.commit(batch, Durability::Durable).await?;
    loop {
        let pairs = to.scan(&[], None, SCAN).await?;
        let mut batch = Batch::new();
        batch.essential();
        for (key, _) in pairs.into_iter().filter(|(key, _)| &key[..] != MARK) {
            batch.delete(key);
        }
        if batch.is_empty() {
            return Ok(mark);
        }
        to.commit(batch, Durability::Answered).await?;
    }
}

async fn copy_pairs<K: Kv, L: Kv>(
    from: &K,
    to: &L,
    mark: &mut Mark,
    told: &mut impl FnMut(Progress),
) -> Result<()> {
    let mut batch = Batch::new();
    let mut done = 0;
    loop {
        let after = (!mark.last.is_empty()).then_some(&mark.last[..]);
        let pairs = from.scan(&[], after, SCAN).await?;
        let ended = pairs.len() < SCAN;
        for (key, value) in pairs {
            mark.last = key.to_vec();
            batch.put(key, value);
            done += 1;
            if batch.bytes() >= BATCH {
                commit(to, &mut batch, mark).await?;
            }
        }
        told(Progress { phase: Phase::Pairs, done, all: 0 });
        if ended {
            commit(to, &mut batch, mark).await?;
            return Ok(to.sync().await?);
        }
    }
}

/// Commits what was gathered, with how far that is.
async fn commit<K: Kv>(to: &K, batch: &mut Batch, mark: &Mark) -> Result<()> {
    let mut batch = std::mem::take(batch);
    batch.put(MARK, mark.encode());
    Ok(to.commit(batch, Durability::Answered).await?)
}

async fn copy_medium<M: Medium, L: Kv, N: Medium>(
    from: &M,
    to: &Side<'_, L, N>,
    mark: &mut Mark,
    told: &mut impl FnMut(Progress),
) -> Result<()> {
    let all = from.len();
    to.medium.grow(all).await?;
    while mark.medium < all {
        let stretch = all.min(mark.medium + STRETCH);
        while mark.medium < stretch {
            let pieces = pieces(mark.medium, stretch);
            let copies = pieces.iter().map(|&(at, len)| copy_piece(from, to.medium, at, len));
            let copies = join_all(copies.collect()).await;
            copies.into_iter().collect::<Result<()>>()?;
            mark.medium = pieces.last().map_or(stretch, |(at, len)| at + *len as u64);
            told(Progress { phase: Phase::Medium, done: mark.medium, all });
        }
        to.medium.flush().await?;
        commit(to.kv, &mut Batch::new(), mark).await?;
        to.kv.sync().await?;
    }
    Ok(())
}

/// The next pieces of a medium, up to `end`.
fn pieces(from: u64, end: u64) -> Vec<(u64, usize)> {
    let starts = (from..end).step_by(PIECE).take(usize::try_from(PIECES).unwrap_or(1));
    starts.map(|at| (at, usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE)))).collect()
}

async fn copy_piece<M: Medium, N: Medium>(from: &M, to: &N, at: u64, len: usize) -> Result<()> {
    let (read, buf) = from.read(at, Buf::zeroed(len)).await;
    read?;
    // What was never written reads zero in the copy, too. What an earlier try wrote may not, so
    // that is looked at.
    if buf.iter().all(|byte| *byte == 0) {
        let (read, there) = to.read(at, Buf::zeroed(len)).await;
        read?;
        if there[..] == buf[..] {
            return Ok(());
        }
    }
    Ok(to.write(at, buf).await.0?)
}

/// Reads both once more; how many pairs there are.
async fn compare<K: Kv, M: Medium, L: Kv, N: Medium>(
    from: &Side<'_, K, M>,
    to: &Side<'_, L, N>,
    told: &mut impl FnMut(Progress),
) -> Result<u64> {
    let pairs = compare_pairs(from.kv, to.kv, told).await?;
    compare_medium(from.medium, to.medium, told).await?;
    Ok(pairs)
}

async fn compare_pairs<K: Kv, L: Kv>(
    from: &K,
    to: &L,
    told: &mut impl FnMut(Progress),
) -> Result<u64> {
    let (mut done, mut after) = (0, None::<Key>);
    loop {
        let after_there = after.as_deref();
        let (ours, theirs) =
            join2(from.scan(&[], after_there, SCAN), to.scan(&[], after_there, SCAN)).await;
        let (ours, mut theirs) = (ours?, theirs?);
        let ended = ours.len() < SCAN;
        if ended && theirs.last().is_some_and(|(key, _)| &key[..] == MARK) {
            theirs.pop();
        }
        if ours != theirs {
            return Err(MigrateError::Differs);
        }
        done += ours.len() as u64;
        told(Progress { phase: Phase::ComparePairs, done, all: 0 });
        let Some((last, _)) = ours.into_iter().last().filter(|_| !ended) else { return Ok(done) };
        after = Some(last);
    }
}

async fn compare_medium<M: Medium, N: Medium>(
    from: &M,
    to: &N,
    told: &mut impl FnMut(Progress),
) -> Result<()> {
    let (mut done, all) = (0, from.len());
    while done < all {
        let pieces = pieces(done, all);
        let compared = pieces.iter().map(|&(at, len)| is_same(from, to, at, len));
        for same in join_all(compared.collect()).await {
            if !same? {
                return Err(MigrateError::Differs);
            }
        }
        done = pieces.last().map_or(all, |(at, len)| at + *len as u64);
        told(Progress { phase: Phase::CompareMedium, done, all });
    }
    Ok(())
}

async fn is_same<M: Medium, N: Medium>(from: &M, to: &N, at: u64, len: usize) -> Result<bool> {
    let reads = join2(from.read(at, Buf::zeroed(len)), to.read(at, Buf::zeroed(len)));
    let ((ours, mine), (theirs, copy)) = reads.await;
    ours?;
    theirs?;
    Ok(mine[..] == copy[..])
}

#[cfg(test)]
mod tests {
    use outboard_kv::mem::{Faults, MemKv};
    use outboard_medium::mem::MemMedium;
    use outboard_os::executor::block_on;

    use super::*;

    fn volume(pairs: u32, blocks: u64) -> (MemKv, MemMedium) {
        let (kv, medium) = (MemKv::new(1), MemMedium::new(1));
        block_on(async {
            let mut batch = Batch::new();
            batch.put([Tag::Superblock as u8], b"super");
            batch.put([Tag::Counter as u8, 1], b"7");
            for at in 0..pairs {
                batch.put([&[0x20], &at.to_be_bytes()[..]].concat(), vec![3; 700]);
            }
            kv.commit(batch, Durability::Durable).await.unwrap();
            medium.grow(blocks * 8192).await.unwrap();
            for block in (0..blocks).step_by(3) {
                let mut buf = Buf::zeroed(8192);
                buf.fill(u8::try_from(block % 255).unwrap() + 1);
                medium.write(block * 8192, buf).await.0.unwrap();
            }
        });
        (kv, medium)
    }

    fn run(from: &(MemKv, MemMedium), to: &(MemKv, MemMedium)) -> Result<Copied> {
        let from = Side { kv: &from.0, medium: &from.1 };
        let to = Side { kv: &to.0, medium: &to.1 };
        block_on(async {
            let copied = migrate(&from, &to, |_| ()).await?;
            assert!(is_unfinished(to.kv).await?, "until its directory knows it");
            finish(to.kv).await?;
            Ok(copied)
        })
    }

    fn empty() -> (MemKv, MemMedium) {
        (MemKv::new(2), MemMedium::new(2))
    }

    #[test]
    fn everything_is_copied_and_the_mark_goes() {
        let (from, to) = (volume(5000, 400), empty());
        let copied = run(&from, &to).unwrap();
        assert_eq!(copied, Copied { pairs: 5002, medium: 400 * 8192 });
        assert_eq!(block_on(is_unfinished(&to.0)), Ok(false));
        assert_eq!(block_on(may_fill(&to.0)), Err(MigrateError::Occupied));
        assert_eq!(run(&from, &to), Err(MigrateError::Occupied));
        assert_eq!(run(&empty(), &empty()), Err(MigrateError::NoVolume));
    }

    #[test]
    fn it_goes_on_where_it_failed() {
        let (from, to) = (volume(5000, 400), empty());
        let mut failures = 0;
        // Power may fail in between, too: what was not synced is copied again.
        loop {
            to.0.set_faults(Faults { commit_fails: 3, ..Faults::default() });
            let outcome = run(&from, &to);
            to.0.crash();
            to.1.crash();
            match outcome {
                Ok(copied) => {
                    assert_eq!(copied.pairs, 5002);
                    break;
                }
                Err(MigrateError::Store(_)) => failures += 1,
                Err(other) => panic!("{other}"),
            }
        }
        assert!(failures > 0);
    }

    #[test]
    fn a_source_that_was_used_in_between_is_copied_anew() {
        let (from, to) = (volume(3000, 40), empty());
        let mark = Mark { source: b"older".to_vec(), medium: 40 * 8192, last: vec![0x7F] };
        block_on(async {
            let mut batch = Batch::new();
            batch.put(MARK, mark.encode());
            batch.put(b"left from then", b"x");
            to.0.commit(batch, Durability::Durable).await.unwrap();
            to.1.grow(8192).await.unwrap();
            let mut buf = Buf::zeroed(8192);
            buf.fill(9);
            to.1.write(0, buf).await.0.unwrap();
        });
        assert_eq!(run(&to, &empty()), Err(MigrateError::HalfSource));
        assert_eq!(run(&from, &to).unwrap().pairs, 3002);
        assert_eq!(Mark::decode(&mark.encode()), Some(mark));
        assert_eq!(Mark::decode(b"\xFF\0\0\0"), None);
    }

    /// A copy found to differ was taken up again where it had ended, and found to differ for ever.
    #[test]
    fn what_was_damaged_on_the_way_is_noticed_and_copied_anew() {
        let (from, to) = (volume(10, 40), empty());
        let mut source = Side { kv: &from.0, medium: &from.1 };
        let damaged = volume(10, 41);
        source.medium = &damaged.1;
        let there = Side { kv: &to.0, medium: &to.1 };
        let told = |progress: Progress| {
            if progress.phase == Phase::ComparePairs {
                to.1.corrupt(8192 * 3);
            }
        };
        assert_eq!(block_on(migrate(&source, &there, told)), Err(MigrateError::Differs));
        assert_eq!(block_on(is_unfinished(&to.0)), Ok(true));
        assert_eq!(block_on(may_fill(&to.0)), Ok(()));
        let again = block_on(migrate(&source, &there, |_| ()));
        assert_eq!(again.map(|copied| copied.pairs), Ok(12));
    }
}

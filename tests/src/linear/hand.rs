//! A hand: a thread at one host that does operations on the objects of a round and writes down
//! what it asked and what it was answered, and when.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use outboard_base::Rng;

use super::history::{Event, Op, TORN};
use crate::{Result, context};

const O_DIRECT: i32 = 0o40000;
const PAGE: usize = 4096;
/// More than one strip of 64 KiB, and one request of a kernel.
const LONG: usize = 96 << 10;
/// Where the first record stands: soon before the second strip, so that one lies in both.
const RECORDS: u64 = (64 << 10) - 52;
/// A record is its value three times.
const RECORD: usize = 24;
/// Operations on one object in a round at most.
const MOST: u64 = 160;
/// How old what a planted cache gives may be.
const OLD: Duration = Duration::from_millis(150);
/// What a planted race leaves others time for.
const RACE: Duration = Duration::from_millis(2);

/// An object of a round: one file, or the name of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A register: a page, by direct I/O, of a file that stays open.
    Direct,
    /// A register: eight bytes of a file that is opened each time.
    Anew,
    /// A register: eight bytes of a file that stays open.
    Kept,
    /// A register: bytes of two strips.
    Long,
    /// A list: records that are appended.
    Records,
    /// A counter under locks of open files (`F_OFD_SETLKW`).
    OpenFile,
    /// A counter under locks of a process at each host (`F_SETLKW`).
    Process,
    /// A name that is made with `O_EXCL` and removed.
    Name,
}

/// All of them.
pub(super) const KINDS: [Kind; 8] = [
    Kind::Direct,
    Kind::Anew,
    Kind::Kept,
    Kind::Long,
    Kind::Records,
    Kind::OpenFile,
    Kind::Process,
    Kind::Name,
];

impl Kind {
    /// Where it is.
    pub(super) fn path(self, dir: &Path) -> PathBuf {
        dir.join(format!("{self:?}").to_lowercase())
    }

    /// Makes its file as it is at the beginning.
    pub(super) fn make(self, dir: &Path) -> io::Result<()> {
        let len = match self {
            Kind::Direct => PAGE,
            Kind::Long => LONG,
            Kind::Records => usize::try_from(RECORDS).unwrap_or(0),
            Kind::Name => return Ok(()),
            _ => 8,
        };
        fs::write(self.path(dir), vec![0; len])
    }

    fn open(self, dir: &Path, appends: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match self {
            Kind::Direct => _ = options.custom_flags(O_DIRECT),
            Kind::Records => _ = options.append(appends),
            _ => {}
        }
        options.open(self.path(dir))
    }
}

/// What all hands of a round share.
pub(super) struct Round {
    /// The directory, below each mount.
    pub(super) name: String,
    /// Times count from here.
    pub(super) begun: Instant,
    /// Over which its operations are spread.
    pub(super) window: Duration,
    pub(super) stop: AtomicBool,
    /// Values that were written.
    pub(super) values: AtomicU64,
    /// Operations begun on each object.
    pub(super) done: [AtomicU64; KINDS.len()],
    /// A write of two strips may be seen half done.
    pub(super) may_tear: bool,
    /// Hands keep what they have read, and lock nothing: for a checker to find.
    pub(super) is_planted: bool,
    /// What each hand does, for who waits for them.
    pub(super) doing: Mutex<BTreeMap<(usize, usize), String>>,
}

impl Round {
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// One more operation on this object, unless it has had those of the time so far.
    fn may(&self, kind: Kind) -> bool {
        let part = self.begun.elapsed().as_secs_f64() / self.window.as_secs_f64();
        let done = self.done.get(kind as usize);
        // The first few at once.
        let has_room = |done: u64| done < MOST && (done as f64) < 8.0 + part * MOST as f64;
        done.is_some_and(|done| {
            let add = |count: u64| has_room(count).then_some(count + 1);
            done.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
        })
    }
}

/// What a hand found.
pub(super) type Seen = Vec<(Kind, Event)>;

/// A thread at a host.
pub(super) struct Hand {
    round: Arc<Round>,
    dir: PathBuf,
    who: (usize, usize),
    /// The mount may die under it.
    may_die: bool,
    is_dead: bool,
    rng: Rng,
    files: BTreeMap<Kind, File>,
    read: BTreeMap<Kind, (Instant, u64)>,
    seen: Seen,
}

impl Hand {
    pub(super) fn new(
        round: &Arc<Round>,
        mount: &Path,
        who: (usize, usize),
        may_die: bool,
        seed: u64,
    ) -> Hand {
        Hand {
            dir: mount.join(&round.name),
            round: Arc::clone(round),
            who,
            may_die,
            is_dead: false,
            rng: Rng::new(seed),
            files: BTreeMap::new(),
            read: BTreeMap::new(),
            seen: Vec::new(),
        }
    }

    /// Works until the round stops.
    pub(super) fn run(mut self) -> Result<Seen> {
        while !self.round.stop.load(Ordering::Acquire) {
            // A directory that is open answers only if there is a mount.
            if self.is_dead && fs::read_dir(&self.dir).is_err() {
                sleep(Duration::from_millis(20));
                continue;
            }
            self.is_dead = false;
            if let Some(kind) = self.draw() {
                let op = self.wish(kind);
                self.once(kind, op)?;
            }
            if self.rng.chance(2, 3) {
                sleep(Duration::from_millis(1 + self.rng.below(8)));
            }
        }
        Ok(self.seen)
    }

    /// Reads all objects once, after everything else.
    pub(super) fn last(mut self) -> Result<Seen> {
        for kind in KINDS {
            let op = match kind {
                Kind::Records => Op::List(Vec::new()),
                Kind::Name => Op::Free { is_sure: true },
                _ => Op::Read(0),
            };
            self.once(kind, op)?;
        }
        Ok(self.seen)
    }

    fn draw(&mut self) -> Option<Kind> {
        let nth = usize::try_from(self.rng.below(KINDS.len() as u64)).unwrap_or(0);
        let kind = KINDS.get(nth).copied()?;
        // Of a process's locks all its threads are one owner.
        let is_mine = kind != Kind::Process || self.who.1 == 0;
        (is_mine && self.round.may(kind)).then_some(kind)
    }

    /// What to do: the value, if it is one that is found, is not known yet.
    fn wish(&mut self, kind: Kind) -> Op {
        let changes = self.rng.chance(1, 2);
        let value = || self.round.values.fetch_add(1, Ordering::Relaxed) + 1;
        match kind {
            Kind::Records if changes => Op::Append(value()),
            Kind::Records => Op::List(Vec::new()),
            Kind::OpenFile | Kind::Process => Op::Add(None),
            Kind::Name if changes => Op::Take { is_sure: true },
            Kind::Name => Op::Free { is_sure: true },
            _ if changes => Op::Write(value()),
            _ => Op::Read(0),
        }
    }

    fn once(&mut self, kind: Kind, op: Op) -> Result<()> {
        self.says(format!("{kind:?} {op:?}"))?;
        let called = self.round.now();
        let done = self.act(kind, &op);
        let (found, answered) = match done {
            Ok(found) => (found, Some(self.round.now())),
            Err(_) if self.may_die => {
                // Which of its files are of the mount that died is not known.
                self.files.clear();
                self.is_dead = true;
                (op.unanswered(), None)
            }
            Err(error) => {
                let (host, hand) = self.who;
                return Err(format!("{kind:?} {op:?} of hand {host}.{hand}: {error}"));
            }
        };
        let who = self.who;
        self.seen.extend(found.map(|op| (kind, Event { who, op, called, answered })));
        self.says("nothing".into())
    }

    fn says(&self, what: String) -> Result<()> {
        let mut doing = context(self.round.doing.lock(), || "what hands do".into())?;
        doing.insert(self.who, what);
        Ok(())
    }

    /// What was done; nothing, if its answer says nothing.
    fn act(&mut self, kind: Kind, op: &Op) -> io::Result<Option<Op>> {
        let race = || sleep(RACE);
        let planted = self.round.is_planted;
        match op {
            Op::Write(value) => {
                self.with(kind, |file| put(file, kind, *value)).map(|()| Some(op.clone()))
            }
            Op::Read(_) => self.word(kind),
            Op::Append(value) if planted => self.with(kind, |file| {
                let end = RECORDS + (records(file)?.len() * RECORD) as u64;
                race();
                file.write_all_at(&record(*value), end)?;
                Ok(Some(op.clone()))
            }),
            Op::Append(value) => {
                self.with(kind, |mut file| match io::Write::write(&mut file, &record(*value))? {
                    RECORD => Ok(Some(op.clone())),
                    len => Err(io::Error::other(format!("{len} bytes of a record appended"))),
                })
            }
            Op::List(_) => self.with(kind, records).map(|all| Some(Op::List(all))),
            Op::Add(_) => self.with(kind, |file| {
                let lock = |to| if planted { Ok(()) } else { lock(file, kind, to) };
                lock(libc::F_WRLCK)?;
                let found = word(file, kind)?;
                if planted {
                    race();
                }
                put(file, kind, found + 1)?;
                lock(libc::F_UNLCK)?;
                Ok(Some(Op::Add(Some(found))))
            }),
            Op::Take { .. } => self.take(),
            Op::Free { .. } => match fs::remove_file(kind.path(&self.dir)) {
                Ok(()) => Ok(Some(op.clone())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            },
        }
    }

    /// Does something with the file of an object; who fails opens it anew.
    fn with<T>(&mut self, kind: Kind, work: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        let file = match self.files.remove(&kind) {
            Some(file) => file,
            None => kind.open(&self.dir, !self.round.is_planted)?,
        };
        let done = work(&file)?;
        if kind != Kind::Anew {
            self.files.insert(kind, file);
        }
        Ok(done)
    }

    fn word(&mut self, kind: Kind) -> io::Result<Option<Op>> {
        let kept =
            self.read.get(&kind).filter(|(at, _)| self.round.is_planted && at.elapsed() < OLD);
        if let Some((_, value)) = kept {
            return Ok(Some(Op::Read(*value)));
        }
        let value = self.with(kind, |file| word(file, kind))?;
        self.read.insert(kind, (Instant::now(), value));
        let half = value == TORN && kind == Kind::Long && self.round.may_tear;
        Ok((!half).then_some(Op::Read(value)))
    }

    /// A name that may have been removed elsewhere counts for a second, so only who makes it knows.
    fn take(&self) -> io::Result<Option<Op>> {
        let path = Kind::Name.path(&self.dir);
        let mut options = OpenOptions::new();
        options.write(true).create(true).create_new(!self.round.is_planted);
        if self.round.is_planted {
            if path.exists() {
                return Ok(None);
            }
            sleep(RACE);
        }
        match options.open(path) {
            Ok(_) => Ok(Some(Op::Take { is_sure: true })),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn len_of(kind: Kind) -> usize {
    match kind {
        Kind::Direct => PAGE,
        Kind::Long => LONG,
        _ => 8,
    }
}

/// Memory for direct I/O.
#[repr(align(4096))]
struct Page([u8; PAGE]);

fn put(file: &File, kind: Kind, value: u64) -> io::Result<()> {
    let bytes = value.to_le_bytes().repeat(len_of(kind) / 8);
    if kind != Kind::Direct {
        return file.write_all_at(&bytes, 0);
    }
    let mut page = Box::new(Page([0; PAGE]));
    page.0.copy_from_slice(&bytes);
    file.write_all_at(&page.0, 0)
}

fn word(file: &File, kind: Kind) -> io::Result<u64> {
    if kind == Kind::Direct {
        let mut page = Box::new(Page([0; PAGE]));
        file.read_exact_at(&mut page.0, 0)?;
        return Ok(one_of(&page.0));
    }
    let mut bytes = vec![0; len_of(kind)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(one_of(&bytes))
}

/// The word that all of it is.
fn one_of(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks();
    let words = words.iter().copied().map(u64::from_le_bytes);
    words.reduce(|one, other| if one == other { one } else { TORN }).unwrap_or(TORN)
}

fn record(value: u64) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record.as_chunks_mut().0.fill(value.to_le_bytes());
    record
}

fn records(file: &File) -> io::Result<Vec<u64>> {
    let most = usize::try_from(MOST).unwrap_or(0) + 1;
    let mut bytes = vec![0; RECORD * most];
    // At once: who reads on reads what was appended since.
    let len = file.read_at(&mut bytes, RECORDS)?;
    Ok(bytes
        .get(..len)
        .unwrap_or_default()
        .chunks(RECORD)
        .map(|one| if one.len() == RECORD { one_of(one) } else { TORN })
        .collect())
}

fn lock(file: &File, kind: Kind, to: libc::c_int) -> io::Result<()> {
    let range = libc::flock {
        l_type: libc::c_short::try_from(to).map_err(io::Error::other)?,
        l_whence: 0,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    let call = match kind {
        Kind::Process => FcntlArg::F_SETLKW(&range),
        _ => FcntlArg::F_OFD_SETLKW(&range),
    };
    fcntl(file, call).map(drop).map_err(io::Error::from)
}

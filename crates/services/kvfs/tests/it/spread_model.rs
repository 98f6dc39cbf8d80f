//! Random work of a metadata server on spread files, against a reference: names, sizes, layouts,
//! who writes, what is to be purged. The server dies between batches, and loses power.
//!
//! The reference keeps what was after every batch. A process that dies leaves the last of them;
//! power loss leaves one that is not before the last that was made durable. A failure prints its
//! seed; `OUTBOARD_SEED=n` repeats it. Then each call, its process dead after any number of steps.

use std::collections::{BTreeMap, BTreeSet};

use outboard_base::task::poll_for;
use outboard_base::{Errno, Fh, Ino, Result, Rng, Timestamp};
use outboard_kv::mem;
use outboard_volume::Payload;
use outboard_wire::file::{Header, Request, Setattr, open_flags};
use outboard_wire::shared::call::{Layout, Told};

use crate::spread::open;
use crate::world::{Disk, User, Volume, assert_clean, block_on, tidy};

const NAMES: u64 = 5;
const STEPS: u64 = 120;

#[derive(Clone, Debug, PartialEq, Eq)]
struct File {
    names: u32,
    size: u64,
    width: u8,
    writing: bool,
    cut: bool,
}

impl File {
    fn resize(&mut self, size: u64) {
        let cuts = size < self.size;
        (self.writing, self.cut) = (self.writing || cuts, self.cut || cuts);
        self.size = size;
    }
}

/// What is stored.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct State {
    names: BTreeMap<String, Ino>,
    files: BTreeMap<Ino, File>,
    purges: BTreeSet<u64>,
    /// Of the root directory: what files get.
    width: u8,
}

impl State {
    fn ends(&mut self, ino: Ino) {
        self.files.remove(&ino);
        self.purges.insert(ino.0);
    }

    /// After an opening to which nobody came back.
    fn settled(&self) -> State {
        let mut state = self.clone();
        let nameless = self.files.iter().filter(|(_, file)| file.names == 0);
        nameless.for_each(|(ino, _)| state.ends(*ino));
        state
    }

    /// The last files that were made count as written to, and numbers that may have been given out
    /// are to be purged.
    fn may_be_found_as(&self, found: &State) -> bool {
        let mut state = self.clone();
        for (ino, file) in &mut state.files {
            file.writing |= found.files.get(ino).is_some_and(|file| file.writing);
        }
        let more = found.purges.difference(&self.purges);
        let more = more.filter(|number| !self.files.contains_key(&Ino(**number)));
        state.purges.extend(more);
        state == *found
    }
}

struct Run {
    rng: Rng,
    disk: Disk,
    /// After each batch that succeeded; the last is what is.
    history: Vec<State>,
    /// The first of them that power loss may leave.
    durable: usize,
    open: BTreeMap<Ino, Fh>,
    /// Files that somebody was told may be written to: their nodes may have something of them.
    promised: BTreeSet<Ino>,
    /// What power loss took back, in all.
    lost: usize,
    deaths: usize,
}

impl Run {
    fn now(&self) -> &State {
        self.history.last().unwrap()
    }

    /// A batch went through, if the request did.
    fn changed(&mut self, outcome: &Result<()>, change: impl FnOnce(&mut State)) {
        if outcome.is_ok() {
            let mut state = self.now().clone();
            change(&mut state);
            self.history.push(state);
        }
    }

    fn synced(&mut self) {
        self.durable = self.history.len() - 1;
    }

    fn a_name(&mut self) -> String {
        format!("n{}", self.rng.below(NAMES))
    }

    fn a_file(&mut self) -> Option<(Ino, File)> {
        let files: Vec<_> = self.now().files.clone().into_iter().collect();
        let at = self.rng.below(files.len().max(1) as u64);
        files.into_iter().nth(at as usize)
    }

    /// One step; what the volume answered must be what the reference says, but for a store that
    /// has died.
    fn step(&mut self, user: &User<'_>) -> Result<()> {
        match self.rng.below(12) {
            0 | 1 => self.create(user),
            2 | 3 => self.unlink(user),
            4 => self.link(user),
            5 => self.close(user),
            6 => self.set_width(user),
            7 => {
                user.sync()?;
                self.synced();
                Ok(())
            }
            8 => self.purge(user.volume),
            _ => self.change(user),
        }
    }

    fn create(&mut self, user: &User<'_>) -> Result<()> {
        let name = self.a_name();
        let made = user.create(Ino::ROOT, &name, open_flags::EXCL);
        if self.now().names.contains_key(&name) {
            assert_eq!(made.err(), Some(Errno::EEXIST));
            return Ok(());
        }
        let (attr, fh) = made?;
        self.open.insert(attr.ino, fh);
        let width = self.now().width;
        self.changed(&Ok(()), |state| {
            state.names.insert(name, attr.ino);
            state
                .files
                .insert(attr.ino, File { names: 1, size: 0, width, writing: false, cut: false });
        });
        Ok(())
    }

    fn unlink(&mut self, user: &User<'_>) -> Result<()> {
        let name = self.a_name();
        let removed = user.unlink(Ino::ROOT, &name).map(drop);
        let Some(&ino) = self.now().names.get(&name) else {
            assert_eq!(removed, Err(Errno::ENOENT));
            return Ok(());
        };
        let open = self.open.contains_key(&ino);
        self.changed(&removed, |state| {
            state.names.remove(&name);
            let file = state.files.get_mut(&ino).unwrap();
            file.names -= 1;
            if file.names == 0 && !open {
                state.ends(ino);
            }
        });
        removed
    }

    fn link(&mut self, user: &User<'_>) -> Result<()> {
        let (name, to) = (self.a_name(), self.a_name());
        let state = self.now();
        let Some(&ino) = state.names.get(&name) else { return Ok(()) };
        let taken = state.names.contains_key(&to);
        let linked = user.link(ino, Ino::ROOT, &to).map(drop);
        if taken {
            assert_eq!(linked, Err(Errno::EEXIST));
            return Ok(());
        }
        self.changed(&linked, |state| {
            state.names.insert(to, ino);
            state.files.get_mut(&ino).unwrap().names += 1;
        });
        linked
    }

    /// The last user of a file without a name ends it, at once or when there is time.
    fn close(&mut self, user: &User<'_>) -> Result<()> {
        let Some((&ino, &fh)) = self.open.first_key_value() else { return Ok(()) };
        self.open.remove(&ino);
        let nameless = self.now().files.get(&ino).is_some_and(|file| file.names == 0);
        user.close(ino, fh)?;
        if nameless {
            user.forget(ino);
            tidy_or_dead(user.volume)?;
            if block_on(user.volume.spread(ino)).is_ok() {
                return Err(Errno::EIO);
            }
            self.changed(&Ok(()), |state| state.ends(ino));
        }
        Ok(())
    }

    fn set_width(&mut self, user: &User<'_>) -> Result<()> {
        let width = self.rng.below(16) as u8 + 1;
        let layout = Layout { width, ..Layout::default() };
        let (caller, header) = (&user.caller, user.header());
        user.sequence.set(user.sequence.get() + 1);
        let set = block_on(user.volume.set_layout(caller, &header, Ino::ROOT, layout));
        self.changed(&set, |state| state.width = width);
        set
    }

    /// The server purges one object of those it is told of.
    fn purge(&mut self, volume: &Volume) -> Result<()> {
        let told = block_on(volume.purges(0, 4096))?;
        assert_eq!(told, self.now().purges.iter().copied().collect::<Vec<_>>());
        let Some(&object) = told.first() else { return Ok(()) };
        self.synced();
        let purged = block_on(volume.purged(object));
        self.changed(&purged, |state| {
            state.purges.remove(&object);
        });
        if purged.is_ok() {
            self.promised.remove(&Ino(object));
        }
        purged
    }

    /// What concerns one file.
    fn change(&mut self, user: &User<'_>) -> Result<()> {
        let Some((ino, file)) = self.a_file() else { return Ok(()) };
        let size = self.rng.below(1 << 20);
        let edit = |change: fn(&mut File, u64)| {
            move |state: &mut State| change(state.files.get_mut(&ino).unwrap(), size)
        };
        match self.rng.below(6) {
            4 => {
                let outcome = block_on(user.volume.holed(ino));
                self.changed(&outcome, edit(|file, _| file.cut = false));
                outcome
            }
            0 => {
                let set = Setattr { size: Some(size), ..Setattr::default() };
                let outcome = user.set(ino, set).map(drop);
                self.changed(&outcome, edit(File::resize));
                outcome
            }
            1 => {
                let told = Told { size, mtime: None, blocks: Some(size.div_ceil(512)) };
                let session = Some(user.caller.attachment);
                let outcome = block_on(user.volume.publish(session, ino, told, None)).map(drop);
                self.changed(&outcome, edit(File::resize));
                outcome
            }
            2 => {
                let outcome = block_on(user.volume.begin_writing(ino, 7, false));
                self.changed(&outcome, edit(|file, _| file.writing = true));
                outcome?;
                self.promised.insert(ino);
                Ok(())
            }
            3 => {
                let outcome = block_on(user.volume.end_writing(ino));
                assert!(outcome.is_err() || outcome == Ok(!file.cut));
                let outcome = outcome.map(drop);
                self.changed(&outcome, edit(|file, _| file.writing = file.cut));
                if outcome.is_ok() {
                    self.promised.remove(&ino);
                }
                outcome
            }
            _ => {
                let width = self.rng.below(16) as u8 + 1;
                let layout = Layout { width, ..Layout::default() };
                let (caller, header) = (&user.caller, user.header());
                user.sequence.set(user.sequence.get() + 1);
                let outcome = block_on(user.volume.set_layout(caller, &header, ino, layout));
                if file.size > 0 || file.writing {
                    let refused = if file.size > 0 { Errno::ENOTEMPTY } else { Errno::EBUSY };
                    assert_eq!(outcome, Err(refused));
                    return Ok(());
                }
                self.changed(&outcome, |state| {
                    state.files.get_mut(&ino).unwrap().width = width;
                });
                outcome
            }
        }
    }

    /// A server opens the volume: what is there must be what may be there.
    fn reopen(&mut self, power_loss: bool) -> Volume {
        self.open.clear();
        self.disk.kv.dies_after(u64::MAX);
        let mut first = self.history.len() - 1;
        if power_loss {
            self.disk.crash();
            first = self.durable;
        }
        let volume = open(&self.disk);
        assert_clean(&volume);
        let found = observe(&volume);
        let mut may = self.history[first..].iter().rev();
        let back = may.position(|state| state.settled().may_be_found_as(&found));
        let Some(back) = back else {
            panic!("found {found:#?}, not one of {:#?}", &self.history[first..]);
        };
        for ino in &self.promised {
            let file = found.files.get(ino);
            let is_purged = || found.purges.contains(&ino.0);
            let is_known = file.map_or_else(is_purged, |file| file.writing);
            assert!(is_known, "{ino:?} may have been written to, and nobody knows: {found:#?}");
        }
        self.promised.retain(|ino| found.files.contains_key(ino));
        self.lost += back;
        self.history = vec![found];
        // Looking what is to be purged makes it durable, and anything else costs little to be so.
        User::root(&volume).sync().unwrap();
        self.durable = 0;
        volume
    }
}

/// What is stored, as a server sees it.
fn observe(volume: &Volume) -> State {
    let user = User::attached(volume, 77);
    let mut state = State::default();
    for name in user.names(Ino::ROOT) {
        let ino = user.lookup(Ino::ROOT, &name).unwrap().ino;
        let found = block_on(volume.spread(ino)).unwrap();
        assert_eq!(u64::from(found.layout.group), ino.0 % 64);
        let (width, names) = (found.layout.width, found.attr.nlink);
        let (writing, cut) = (found.writing, found.cut.is_some());
        let file = File { names, size: found.attr.size, width, writing, cut };
        state.files.insert(ino, file);
        state.names.insert(name, ino);
    }
    state.purges = block_on(volume.purges(0, 4096)).unwrap().into_iter().collect();
    state.width = block_on(volume.layout(Ino::ROOT)).unwrap().unwrap().width;
    let writing: Vec<Ino> = block_on(volume.writing(Ino(0), 4096)).unwrap();
    let marked = state.files.iter().filter(|(_, file)| file.writing);
    assert_eq!(writing, marked.map(|(ino, _)| *ino).collect::<Vec<_>>());
    volume.detach(user.caller.attachment);
    state
}

/// Housekeeping to its end, if the store lives.
fn tidy_or_dead(volume: &Volume) -> Result<()> {
    while block_on(volume.tidy())? {}
    Ok(())
}

fn run(seed: u64) -> (usize, usize) {
    println!("OUTBOARD_SEED={seed}");
    let disk = Disk::new(seed);
    let mut volume = open(&disk);
    let begins = State { width: 3, ..State::default() };
    let mut run = Run {
        rng: Rng::new(seed),
        disk,
        history: vec![begins],
        durable: 0,
        open: BTreeMap::new(),
        promised: BTreeSet::new(),
        lost: 0,
        deaths: 0,
    };
    for session in 1..8 {
        let commits = run.rng.below(40);
        run.disk.kv.dies_after(commits);
        {
            let user = User::attached(&volume, session);
            for _ in 0..STEPS {
                if run.step(&user).is_err() {
                    assert_eq!(run.disk.kv.left(), 0, "only a dead store fails");
                    run.deaths += 1;
                    break;
                }
            }
        }
        drop(volume);
        let power_loss = run.rng.chance(1, 2);
        volume = run.reopen(power_loss);
        tidy(&volume);
    }
    (run.lost, run.deaths)
}

#[test]
fn a_server_finds_what_it_had_made_durable() {
    if let Ok(seed) = std::env::var("OUTBOARD_SEED") {
        run(seed.parse().unwrap());
        return;
    }
    let (mut lost, mut deaths) = (0, 0);
    for seed in 0..60 {
        let (seed_lost, seed_deaths) = run(seed);
        lost += seed_lost;
        deaths += seed_deaths;
    }
    assert!(lost > 50 && deaths > 100, "little happened: {lost} lost, {deaths} deaths");
}

/// What a server asks, and requests that mean something else for spread files; of the files that
/// [`furnished`] leaves.
const OPERATIONS: usize = 14;

/// An empty file, one with a size that is being written to, one that is gone, a directory.
fn furnished(volume: &Volume) -> [Ino; 4] {
    let user = User::root(volume);
    let empty = user.file(Ino::ROOT, "empty").unwrap().ino;
    let full = user.file(Ino::ROOT, "full").unwrap().ino;
    user.chmod(full, 0o4755).unwrap();
    user.set(full, Setattr { size: Some(500), ..Setattr::default() }).unwrap();
    block_on(volume.begin_writing(full, 7, false)).unwrap();
    let gone = user.file(Ino::ROOT, "gone").unwrap().ino;
    user.unlink(Ino::ROOT, "gone").unwrap();
    let dir = user.mkdir(Ino::ROOT, "dir").unwrap().ino;
    // Else all of them count as marked at the next opening.
    tidy(volume);
    [empty, full, gone, dir]
}

async fn operate(volume: &Volume, which: usize, [empty, full, gone, dir]: [Ino; 4]) -> Result<()> {
    let user = User::root(volume);
    let (caller, header) = (&user.caller, Header::default());
    let now = Timestamp { sec: 3_000_000, nsec: 0 };
    let layout = Layout { width: 9, ..Layout::default() };
    let parent = Ino::ROOT;
    let told = Told { size: 70_000, mtime: Some(now), blocks: Some(137) };
    let cut = Setattr { size: Some(3), ..Setattr::default() };
    let flags = open_flags::RDWR | open_flags::TRUNC;
    let request = match which {
        0 => return volume.set_layout(caller, &header, empty, layout).await,
        1 => return volume.set_layout(caller, &header, dir, layout).await,
        2 => return volume.begin_writing(empty, 7, false).await,
        3 => return volume.end_writing(full).await.map(drop),
        4 => return volume.publish(None, full, told, None).await.map(drop),
        5 => return volume.strip(caller, full, now).await.map(drop),
        6 => return volume.purged(gone.0).await,
        7 => return volume.truncate(full, now).await,
        8 => Request::Setattr { ino: full, fh: Fh::NONE, set: cut },
        9 => Request::Open { ino: full, flags },
        10 => Request::Create { parent, name: b"new", mode: 0o644, umask: 0, flags },
        11 => Request::Unlink { parent, name: b"full" },
        12 => Request::Rename {
            parent,
            name: b"empty",
            to_parent: parent,
            to_name: b"full",
            flags: 0,
        },
        _ => Request::Setxattr { ino: dir, name: b"user.outboard.layout", flags: 0 },
    };
    let payload = Payload::Bytes(b"width=8".to_vec());
    volume.handle(caller, &header, request, payload, now).await.map(drop)
}

/// What there is after operation `which` was polled so often and the process died, and whether it
/// had been answered.
fn cut_off(which: usize, polls: u64) -> (String, bool) {
    let disk = Disk::new(2);
    let volume = open(&disk);
    let inos = furnished(&volume);
    disk.kv.set_faults(mem::Faults { delay_polls: 2, ..mem::Faults::default() });
    let answer = poll_for(polls, operate(&volume, which, inos));
    assert!(!matches!(answer, Some(Err(_))), "operation {which}: {answer:?}");
    disk.kv.set_faults(mem::Faults::default());
    drop(volume);
    let volume = open(&disk);
    assert_clean(&volume);
    let [empty, full, _, dir] = inos;
    let attrs = [empty, full, dir].map(|ino| {
        let attr = User::root(&volume).stat(ino);
        attr.map(|attr| (attr.size, attr.mode, attr.mtime, attr.ctime, attr.change))
    });
    let layouts = [empty, full, dir].map(|ino| block_on(volume.layout(ino)));
    let user = User::root(&volume);
    user.sequence.set(500);
    let mut names = user.names(Ino::ROOT);
    names.retain(|name| name != "dir");
    let writing = block_on(volume.writing(Ino(0), 9));
    let purges = block_on(volume.purges(0, 9));
    let found = format!("{names:?} {attrs:?} {layouts:?} {writing:?} {purges:?}");
    (found, answer.is_some())
}

#[test]
fn each_call_cut_off_at_any_point_is_done_or_not_done() {
    for which in 0..OPERATIONS {
        let (before, _) = cut_off(which, 0);
        let (after, answered) = cut_off(which, 100_000);
        assert!(answered && after != before, "operation {which} does nothing");
        for polls in 1.. {
            let (found, answered) = cut_off(which, polls);
            let done = found == after;
            assert!(done || found == before, "{which} after {polls}: neither old nor new: {found}");
            assert!(done || !answered, "{which} after {polls}: answered and lost");
            if answered {
                break;
            }
        }
    }
}

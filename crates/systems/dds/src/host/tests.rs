//! The library against a DPU side of a few lines: files are vectors, and answers come when the
//! test says so.

#![allow(clippy::cast_possible_truncation, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use outboard_base::Rng;
use outboard_link::dma::{Direct, Dma};
use outboard_link::ring::{Consume, progress, response};
use outboard_wire::dds::{
    DirectoryId, Listed, RESPONSE_HEAD, Request, ResponseHead, data_at, put_listed,
};

use super::*;

/// What the DPU side holds.
#[derive(Default)]
struct Store {
    directories: BTreeMap<u32, Vec<u8>>,
    files: BTreeMap<u32, (u32, Vec<u8>, Vec<u8>)>,
    last: u32,
}

impl Store {
    fn id_of(&self, directory: u32, name: &[u8]) -> Option<u32> {
        let mut files = self.files.iter();
        files.find(|(_, file)| file.0 == directory && file.1 == name).map(|(id, _)| *id)
    }

    fn file(&mut self, id: FileId) -> Result<&mut Vec<u8>> {
        self.files.get_mut(&id.0).map(|file| &mut file.2).ok_or(Errno::ENOENT)
    }

    fn answer(&mut self, request: &Request<'_>) -> Result<(u64, Vec<u8>)> {
        let none = |value: u32| Ok((u64::from(value), Vec::new()));
        match *request {
            Request::Read { file, offset, bytes } => {
                let held = self.file(file)?;
                let from = held.len().min(offset as usize);
                let to = held.len().min(from + bytes as usize);
                Ok((0, held[from..to].to_vec()))
            }
            Request::Write { file, offset, data } => {
                let held = self.file(file)?;
                let (from, to) = (offset as usize, offset as usize + data.len());
                held.resize(held.len().max(to), 0);
                held[from..to].copy_from_slice(data);
                none(0)
            }
            Request::Resize { file, size } => {
                self.file(file)?.resize(size as usize, 0);
                none(0)
            }
            Request::Flush { file } => self.file(file).map(|_| (0, Vec::new())),
            Request::Size { file } => self.file(file).map(|held| (held.len() as u64, Vec::new())),
            Request::Table { changes } => Ok((changes.len() as u64, Vec::new())),
            Request::CreateDirectory { name } => none(self.create_directory(name)?),
            Request::OpenDirectory { name } => {
                let mut all = self.directories.iter();
                let found = all.find(|(_, held)| *held == name).ok_or(Errno::ENOENT)?;
                none(*found.0)
            }
            Request::RemoveDirectory { directory } => {
                if self.files.values().any(|file| file.0 == directory.0) {
                    return Err(Errno::ENOTEMPTY);
                }
                self.directories.remove(&directory.0).ok_or(Errno::ENOENT)?;
                none(0)
            }
            Request::CreateFile { directory, name } => none(self.create_file(directory, name)?),
            Request::OpenFile { directory, name } => {
                none(self.id_of(directory.0, name).ok_or(Errno::ENOENT)?)
            }
            Request::DeleteFile { file } => {
                self.files.remove(&file.0).ok_or(Errno::ENOENT)?;
                none(0)
            }
            Request::List { directory, after, bytes } => {
                Ok((0, self.list(directory, after, bytes as usize)))
            }
        }
    }

    fn create_directory(&mut self, name: &[u8]) -> Result<u32> {
        if self.directories.values().any(|held| held == name) {
            return Err(Errno::EEXIST);
        }
        self.last += 1;
        self.directories.insert(self.last, name.to_vec());
        Ok(self.last)
    }

    fn create_file(&mut self, directory: DirectoryId, name: &[u8]) -> Result<u32> {
        if self.id_of(directory.0, name).is_some() {
            return Err(Errno::EEXIST);
        }
        self.last += 1;
        self.files.insert(self.last, (directory.0, name.to_vec(), Vec::new()));
        Ok(self.last)
    }

    fn list(&self, directory: DirectoryId, after: u32, room: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for (id, (held, name, data)) in self.files.range(after + 1..) {
            let listed = Listed { id: *id, size: data.len() as u64, name };
            if *held == directory.0 && !put_listed(&mut out, &listed, room) {
                break;
            }
        }
        out
    }
}

/// The DPU side of one group.
struct Far {
    consumer: progress::Consumer,
    producer: response::Producer,
    place: outboard_link::ring::Place,
    /// Requests that wait for their answer.
    waiting: Vec<Vec<u8>>,
}

/// The DPU side, and the clock.
struct Dpu {
    store: Mutex<Store>,
    far: Vec<Mutex<Far>>,
    now: AtomicU64,
    /// Answers are given as soon as work is there.
    is_prompt: AtomicBool,
    is_lost: AtomicBool,
    dead: AtomicU64,
    /// The order of answers is shuffled by this.
    rng: Mutex<Rng>,
}

impl Dpu {
    fn fetch(&self, group: u16) {
        let far = &mut *self.far[usize::from(group)].lock().unwrap();
        let Far { consumer, waiting, .. } = far;
        consumer.take(&mut |message| waiting.push(message.to_vec())).unwrap();
    }

    /// Answers everything that was fetched, in any order, as far as there is room.
    fn answer(&self, group: u16) {
        let mut rng = self.rng.lock().unwrap();
        let far = &mut *self.far[usize::from(group)].lock().unwrap();
        while !far.waiting.is_empty() {
            let pick = rng.below(far.waiting.len() as u64) as usize;
            let message = far.waiting[pick].clone();
            if !far.deliver(&mut self.store.lock().unwrap(), &message) {
                break;
            }
            far.waiting.swap_remove(pick);
        }
    }

    fn pass(&self, group: u16) {
        self.fetch(group);
        self.answer(group);
    }
}

impl Far {
    fn deliver(&mut self, store: &mut Store, message: &[u8]) -> bool {
        let (id, request) = Request::parse(message).unwrap();
        let room = request.room();
        let position = self.producer.tail();
        // The gap before the frame moves the message, and with it the padding.
        let at = |position| data_at(position + 8, RESPONSE_HEAD, 512);
        let len = |position| at(position) + room as usize;
        let gap = response::Producer::lay(self.place, position, len(position)).gap;
        let from = at(position + gap);
        let laid = response::Producer::lay(self.place, position + gap, from + room as usize);
        assert_eq!(laid.gap, 0);
        let whole = laid.end - position;
        if self.producer.room(position, whole).unwrap() < whole {
            return false;
        }
        let mut head = ResponseHead::pending(id, from, room);
        let mut bytes = Vec::new();
        if gap > 0 {
            let laid = response::Producer::lay(self.place, position, len(position));
            bytes.extend(laid.passed.unwrap().to_le_bytes());
            bytes.resize(gap as usize, 0);
        }
        bytes.extend(laid.head.to_le_bytes());
        let start = bytes.len();
        let data = match store.answer(&request) {
            Ok((value, data)) => {
                (head.status, head.value, head.data_len) = (0, value, data.len() as u32);
                data
            }
            Err(errno) => {
                head.status = u32::from(errno.raw());
                Vec::new()
            }
        };
        bytes.extend(head.emit());
        bytes.resize(start + from, 0);
        bytes.extend(data);
        bytes.resize(whole as usize, 0);
        self.producer.deliver(&[&bytes]).unwrap();
        true
    }
}

impl World for Arc<Dpu> {
    fn who(&self) -> u64 {
        7
    }

    fn is_dead(&self, who: u64) -> bool {
        who == self.dead.load(Ordering::Relaxed)
    }

    fn now(&self) -> Time {
        Time(self.now.load(Ordering::Relaxed))
    }

    fn work(&self, group: u16) {
        if self.is_prompt.load(Ordering::Relaxed) {
            self.pass(group);
        }
    }

    fn sleep(&self, group: u16, is_ready: &dyn Fn() -> bool, at_most: Duration) {
        let nanos = u64::try_from(at_most.as_nanos()).unwrap();
        if !is_ready() {
            self.pass(group);
            self.now.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}

struct Rig {
    library: Library<Arc<Dpu>>,
    dpu: Arc<Dpu>,
    region: Arc<Region>,
}

fn rig_of(shape: Shape) -> Rig {
    let region = Region::anonymous(shape.region_len());
    let dma: Arc<dyn Dma> = Arc::new(Direct::new(Arc::clone(&region)));
    let far = |group| {
        let (requests, responses) = shape.rings(group).unwrap();
        Mutex::new(Far {
            consumer: progress::Consumer::new(Arc::clone(&dma), requests).unwrap(),
            producer: response::Producer::new(Arc::clone(&dma), responses).unwrap(),
            place: responses,
            waiting: Vec::new(),
        })
    };
    let dpu = Arc::new(Dpu {
        store: Mutex::default(),
        far: (0..shape.groups()).map(far).collect(),
        now: AtomicU64::new(1),
        is_prompt: AtomicBool::new(true),
        is_lost: AtomicBool::new(false),
        dead: AtomicU64::new(0),
        rng: Mutex::new(Rng::new(1)),
    });
    let library = Library::new(&region, shape, Arc::clone(&dpu)).unwrap();
    Rig { library, dpu, region }
}

fn rig() -> Rig {
    rig_of(Shape::new(3, 16 << 10, 32 << 10, 512).unwrap())
}

fn file_of(rig: &Rig) -> File {
    let directory = rig.library.create_directory(b"d").unwrap();
    rig.library.create_file(directory, b"f").unwrap()
}

fn wait(rig: &Rig, poll: Poll) -> Vec<Completion> {
    let mut out = Vec::new();
    rig.library.poll_wait(poll, &mut out, 100, Duration::from_secs(1)).unwrap();
    out
}

fn done(user: u64, result: u64) -> Completion {
    Completion { user, result: Ok(result), buffers: Vec::new() }
}

#[test]
fn names_and_sizes_are_answered_in_the_call() {
    let rig = rig();
    let library = &rig.library;
    assert_eq!(library.open_directory(b"pages"), Err(Errno::ENOENT));
    let directory = library.create_directory(b"pages").unwrap();
    assert_eq!(library.create_directory(b"pages"), Err(Errno::EEXIST));
    assert_eq!(library.open_directory(b"pages"), Ok(directory));
    let file = library.create_file(directory, b"log").unwrap();
    assert_eq!(library.open_file(directory, b"log").unwrap().id(), file.id());
    library.resize_file(&file, 777).unwrap();
    assert_eq!(library.file_size(&file), Ok(777));
    assert_eq!(library.remove_directory(directory), Err(Errno::ENOTEMPTY));
    let entry = Entry { id: file.id().0, size: 777, name: b"log".to_vec() };
    assert_eq!(library.list(directory), Ok(vec![entry]));
    library.delete_file(&file).unwrap();
    assert_eq!(library.file_size(&file), Err(Errno::ENOENT));
    library.remove_directory(directory).unwrap();
    assert_eq!(library.create_directory(b""), Err(Errno::EINVAL));
    assert_eq!(library.create_directory(&[b'n'; 256]), Err(Errno::ENAMETOOLONG));
    assert!(library.create_directory(&[b'n'; 255]).is_ok());
}

#[test]
fn a_long_listing_comes_in_parts() {
    let rig = rig();
    let directory = rig.library.create_directory(b"many").unwrap();
    for n in 0..300u32 {
        let name = format!("{n:0200}");
        rig.library.create_file(directory, name.as_bytes()).unwrap();
    }
    let listed = rig.library.list(directory).unwrap();
    let names: Vec<_> = listed.into_iter().map(|entry| entry.name).collect();
    let expected: Vec<_> = (0..300).map(|n| format!("{n:0200}").into_bytes()).collect();
    assert_eq!(names, expected);
}

#[test]
fn gathered_and_scattered_are_one_operation_each() {
    let rig = rig();
    let (file, poll) = (file_of(&rig), rig.library.default_poll());
    rig.library.write_gathered(&file, 3, &[b"one", b"", b"two", b"three"], 11).unwrap();
    assert_eq!(wait(&rig, poll), [done(11, 11)]);
    let buffers = vec![vec![9; 4], Vec::new(), vec![9; 8], vec![9; 5]];
    rig.library.read_scattered(&file, 0, buffers, 12).unwrap();
    let all = wait(&rig, poll);
    assert_eq!((all[0].user, all[0].result), (12, Ok(14)), "short at the end of the file");
    let read: [&[u8]; 4] = [b"\0\0\0o", b"", b"netwothr", b"ee\x09\x09\x09"];
    assert_eq!(all[0].buffers, read);
    rig.library.read_file(&file, 14, vec![1; 2], 13).unwrap();
    assert_eq!(wait(&rig, poll)[0].result, Ok(0), "at the end of the file");
    rig.library.flush_file(&file, 14).unwrap();
    rig.library.change_table(poll, b"12345", 15).unwrap();
    let mut users: Vec<_> = wait(&rig, poll).iter().map(|c| (c.user, c.result)).collect();
    users.sort_by_key(|(user, _)| *user);
    assert_eq!(users, [(14, Ok(0)), (15, Ok(5))]);
}

#[test]
fn a_file_completes_in_the_group_it_is_added_to() {
    let rig = rig();
    let file = file_of(&rig);
    let poll = rig.library.create_poll().unwrap();
    assert_eq!(rig.library.create_poll(), Err(Errno::EMFILE));
    assert_eq!(rig.library.poll(poll.number()), Some(poll));
    assert_eq!((rig.library.poll(0), rig.library.poll(3)), (None, None));
    rig.library.write_file(&file, 0, b"a", 1).unwrap();
    rig.library.poll_add(poll, &file).unwrap();
    rig.library.write_file(&file, 1, b"b", 2).unwrap();
    assert_eq!(wait(&rig, poll), [done(2, 1)]);
    assert_eq!(wait(&rig, rig.library.default_poll()), [done(1, 1)]);
    assert_eq!(rig.library.poll_add(Poll { group: 0 }, &file), Err(Errno::EINVAL));
    assert_eq!(rig.library.poll_add(Poll { group: 9 }, &file), Err(Errno::EINVAL));
}

#[test]
fn polling_without_time_never_sleeps_and_with_time_it_ends() {
    let rig = rig();
    let (poll, mut out) = (rig.library.default_poll(), Vec::new());
    assert_eq!(rig.library.poll_wait(poll, &mut out, 9, Duration::ZERO), Ok(0));
    assert_eq!(rig.dpu.now.load(Ordering::Relaxed), 1, "no sleep");
    assert_eq!(rig.library.poll_wait(poll, &mut out, 9, Duration::from_secs(3)), Ok(0));
    assert_eq!(rig.dpu.now.load(Ordering::Relaxed), 1 + 3_000_000_000);
    let file = file_of(&rig);
    for user in 0..5 {
        rig.library.write_file(&file, 0, b"x", user).unwrap();
    }
    assert_eq!(rig.library.poll_wait(poll, &mut out, 2, Duration::ZERO), Ok(2), "no more");
    assert_eq!(rig.library.poll_wait(poll, &mut out, 9, Duration::ZERO), Ok(3));
}

#[test]
fn a_full_ring_says_so_and_gives_buffers_back() {
    let rig = rig();
    let (file, poll) = (file_of(&rig), rig.library.default_poll());
    rig.dpu.is_prompt.store(false, Ordering::Relaxed);
    let begun = (0..1000)
        .take_while(|user| rig.library.write_file(&file, 0, &[1; 1000], *user).is_ok())
        .count();
    assert!((8..17).contains(&begun), "{begun}");
    let refused = rig.library.write_file(&file, 0, &[1; 1000], 0).unwrap_err();
    assert_eq!(refused.errno, Errno::EAGAIN);
    let mut all = 0;
    while all < begun {
        all += wait(&rig, poll).len();
    }
    let long = rig.library.write_file(&file, 0, &[1; 9000], 0).unwrap_err();
    assert_eq!(long.errno, Errno::E2BIG, "more than half a ring");
    let long = rig.library.read_file(&file, 0, vec![7; 20_000], 0).unwrap_err();
    assert_eq!(long, NotBegun { errno: Errno::E2BIG, buffers: vec![vec![7; 20_000]] });
}

#[test]
fn what_is_under_way_fails_when_the_dpu_side_is_gone() {
    let rig = rig();
    let (file, poll) = (file_of(&rig), rig.library.default_poll());
    rig.library.write_file(&file, 0, b"answered", 1).unwrap();
    rig.dpu.is_prompt.store(false, Ordering::Relaxed);
    rig.library.read_file(&file, 0, vec![3; 8], 2).unwrap();
    rig.library.read_file(&file, 0, vec![4; 8], 3).unwrap();
    rig.dpu.is_lost.store(true, Ordering::Relaxed);
    assert_eq!(wait(&rig, poll), [done(1, 8)], "what was answered before is not lost");
    let mut out = Vec::new();
    assert_eq!(rig.library.poll_wait(poll, &mut out, 1, Duration::ZERO), Ok(1), "no more");
    out.extend(wait(&rig, poll));
    out.sort_by_key(|done| done.user);
    let failed = Completion { user: 2, result: Err(Errno::EIO), buffers: vec![vec![3; 8]] };
    let other = Completion { user: 3, result: Err(Errno::EIO), buffers: vec![vec![4; 8]] };
    assert_eq!(out, [failed, other]);
    assert_eq!(wait(&rig, poll), []);
    let refused = rig.library.write_file(&file, 0, b"x", 3).unwrap_err();
    assert_eq!(refused.errno, Errno::EIO);
    assert_eq!(rig.library.file_size(&file), Err(Errno::EIO));
}

#[test]
fn answers_nobody_asked_for_complete_nothing() {
    let rig = rig();
    let (file, poll) = (file_of(&rig), rig.library.default_poll());
    rig.library.write_file(&file, 0, b"once", 1).unwrap();
    let stale = Request::Size { file: file.id() }.head(0xDEAD_BEEF, 32, 0);
    for _ in 0..3 {
        let far = &mut *rig.dpu.far[1].lock().unwrap();
        assert!(far.deliver(&mut rig.dpu.store.lock().unwrap(), &stale));
    }
    assert_eq!(wait(&rig, poll), [done(1, 4)]);
    assert_eq!(wait(&rig, poll), []);
}

#[test]
fn a_read_answered_with_more_than_was_asked_for_is_an_error() {
    let rig = rig();
    let (file, poll) = (file_of(&rig), rig.library.default_poll());
    rig.library.write_file(&file, 0, &[5; 100], 1).unwrap();
    wait(&rig, poll);
    rig.dpu.is_prompt.store(false, Ordering::Relaxed);
    rig.library.read_file(&file, 0, vec![0; 10], 2).unwrap();
    rig.dpu.fetch(1);
    {
        let mut far = rig.dpu.far[1].lock().unwrap();
        let asked = far.waiting.pop().unwrap();
        let id = Request::parse(&asked).unwrap().0;
        let more = Request::Read { file: file.id(), offset: 0, bytes: 50 }.head(id, 32, 0);
        far.deliver(&mut rig.dpu.store.lock().unwrap(), &more);
    }
    let done = wait(&rig, poll);
    assert_eq!((done[0].result, done[0].buffers[0].len()), (Err(Errno::EIO), 10));
}

/// A thread that dies between reserve and publish: the ring stands still, is looked at a second
/// later and goes on once the death is proved; one that is only slow is waited for.
#[test]
fn a_thread_that_died_in_a_call_is_passed_over_within_the_stated_time() {
    let rig = rig();
    let (file, poll) = (file_of(&rig), rig.library.default_poll());
    let ring = progress::Ring::new(
        Arc::clone(&rig.region),
        rig.library.shape().rings(1).unwrap().0,
        u64::MAX,
    );
    let mut dying = ring.unwrap().producer(13).unwrap();
    let shape = progress::Shape { head: 32, data: 500, align: 8 };
    std::mem::forget(dying.reserve(shape).unwrap());
    std::mem::forget(dying);
    rig.library.write_file(&file, 0, b"behind", 1).unwrap();
    assert_eq!(wait(&rig, poll), [], "still there, so it may be only slow");
    assert_eq!(wait(&rig, poll), []);
    rig.dpu.dead.store(13, Ordering::Relaxed);
    let from = rig.dpu.now();
    assert_eq!(wait(&rig, poll), [done(1, 6)]);
    assert!(rig.dpu.now().since(from) <= STUCK);
    rig.library.write_file(&file, 0, b"goes on", 2).unwrap();
    assert_eq!(wait(&rig, poll), [done(2, 7)]);
}

/// Threads write and read their own parts of one file through one group and poll each other's
/// completions: each completes once, and every byte is right.
#[test]
fn threads_share_a_group() {
    const THREADS: u64 = 4;
    const EACH: u64 = 300;
    let rig = rig();
    rig.dpu.is_prompt.store(false, Ordering::Relaxed);
    let file = {
        rig.dpu.is_prompt.store(true, Ordering::Relaxed);
        let file = file_of(&rig);
        rig.dpu.is_prompt.store(false, Ordering::Relaxed);
        file
    };
    let (poll, completed) = (rig.library.default_poll(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (rig, file, completed) = (&rig, &file, &completed);
            scope.spawn(move || {
                let (mut out, mut begun) = (Vec::new(), 0);
                while completed.load(Ordering::Relaxed) < THREADS * EACH {
                    if begun < EACH {
                        let number = thread * EACH + begun;
                        let data = [number as u8; 40];
                        let is_write = rig.library.write_file(file, number * 40, &data, number);
                        begun += u64::from(is_write.is_ok());
                    }
                    rig.library.poll_wait(poll, &mut out, 10, Duration::ZERO).unwrap();
                    for done in out.drain(..) {
                        assert_eq!(done.result, Ok(40));
                        completed.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::yield_now();
                }
            });
        }
        while completed.load(Ordering::Relaxed) < THREADS * EACH {
            rig.dpu.pass(1);
            std::thread::yield_now();
        }
    });
    let store = rig.dpu.store.lock().unwrap();
    let held = &store.files[&file.id().0].2;
    assert_eq!(completed.load(Ordering::Relaxed), THREADS * EACH, "each once");
    assert!((0..THREADS * EACH).all(|n| held[n as usize * 40..][..40] == [n as u8; 40]));
}

/// Directory of the double that is never asked for: ids are not mixed up.
#[test]
fn an_id_of_a_directory_is_no_file() {
    let rig = rig();
    let directory = rig.library.create_directory(b"d").unwrap();
    assert_ne!(directory, DirectoryId::ROOT);
    let file = File::new(FileId(directory.0));
    assert_eq!(rig.library.file_size(&file), Err(Errno::ENOENT));
}

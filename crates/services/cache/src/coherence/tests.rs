//! Coherence between real caches and a real volume, both in memory. [`simulation`] is many hosts
//! at once; here is one step after the other.

mod chains;
mod credit;
mod edges;
mod races;
mod simulation;

use outboard_base::task::run as finish;
use outboard_base::task::{poll_for, poll_once};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use crate::dpu::Control;
use crate::geometry::Shape;
use crate::host::{Place, Plane, Sink, Source};
use crate::policy::{Policies, prefetch};
use outboard_base::ledger::{Kind, Ledger};
use outboard_base::{Cred, Errno, Fh, Ino, Result, SessionId, Time, Timestamp};
use outboard_kv::mem::{Faults, MemKv};
use outboard_kvfs::{Kvfs, Options};
use outboard_link::Region;
use outboard_link::dma::{Counted, Direct, Dma, DmaError};
use outboard_medium::mem::MemMedium;
use outboard_volume::{Caller, Payload};
use outboard_wire::cache::{Grant, Status, Word};
use outboard_wire::file::{Header, Reply, Request, Setattr, open_flags, write_flags};

use super::{CacheSetup, Coherence, Operation};

type Volume = Arc<Kvfs<Arc<MemKv>, Arc<MemMedium>>>;
type Asked = Pin<Box<dyn Future<Output = Result<(Reply, Vec<u8>)>>>>;

const PAGE: u64 = 4096;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
    /// What happens between two DMAs.
    static BETWEEN: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
    /// What happens right after an atomic.
    static AFTER: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
    /// The calendar, seconds.
    static NOW: Cell<i64> = const { Cell::new(1_700_000_000) };
    /// Whether DMAs fail.
    static BROKEN: Cell<bool> = const { Cell::new(false) };
}

/// An engine that lets hosts act before each of its operations, and fails on command.
struct Stepped<D>(D);

fn between() -> std::result::Result<(), DmaError> {
    let hook = BETWEEN.with_borrow(Option::clone);
    if let Some(hook) = hook {
        hook();
    }
    if BROKEN.get() { Err(DmaError::Failed) } else { Ok(()) }
}

impl<D: Dma> Dma for Stepped<D> {
    fn region_len(&self) -> u64 {
        self.0.region_len()
    }

    fn read(&self, kind: Kind, at: u64, out: &mut [u8]) -> std::result::Result<(), DmaError> {
        between()?;
        self.0.read(kind, at, out)
    }

    fn read_words(
        &self,
        kind: Kind,
        at: u64,
        out: &mut [u64],
    ) -> std::result::Result<(), DmaError> {
        between()?;
        self.0.read_words(kind, at, out)
    }

    fn write_gathered(
        &self,
        kind: Kind,
        at: u64,
        parts: &[&[u8]],
    ) -> std::result::Result<(), DmaError> {
        between()?;
        self.0.write_gathered(kind, at, parts)
    }

    fn write(&self, kind: Kind, at: u64, data: &[u8]) -> std::result::Result<(), DmaError> {
        between()?;
        self.0.write(kind, at, data)
    }

    fn compare_and_swap(
        &self,
        at: u64,
        expected: u64,
        new: u64,
    ) -> std::result::Result<u64, DmaError> {
        between()?;
        let found = self.0.compare_and_swap(at, expected, new);
        let hook = AFTER.with_borrow(Option::clone);
        if let Some(hook) = hook {
            hook();
        }
        found
    }

    fn fetch_add(&self, at: u64, by: u64) -> std::result::Result<u64, DmaError> {
        between()?;
        self.0.fetch_add(at, by)
    }
}

/// Each look at the clock is a millisecond later.
fn clock() -> Time {
    STEPS.set(STEPS.get() + 1);
    Time(STEPS.get() * 1_000_000)
}

fn wall() -> Timestamp {
    Timestamp { sec: NOW.get(), nsec: 0 }
}

/// The calendar as the coherence sees it: a host writes in between.
fn later() -> Timestamp {
    Timestamp { nsec: 10, ..wall() }
}

fn poll<T>(future: &mut Pin<Box<dyn Future<Output = T>>>) -> Option<T> {
    match poll_once(future.as_mut()) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn open(kv: &Arc<MemKv>, medium: &Arc<MemMedium>) -> Volume {
    let options = Options { capacity: 64 << 20, segment: 1 << 20, id: 1, ..Options::default() };
    let volume = Kvfs::open(Arc::clone(kv), Arc::clone(medium), options, wall());
    Arc::new(finish(volume).unwrap())
}

/// One host-side process with its cache.
struct Host {
    caller: Caller,
    region: Arc<Region>,
    plane: Plane,
    ledger: Arc<Ledger>,
    dead: Arc<AtomicBool>,
}

impl Host {
    fn new(session: u64, pages: u64) -> Host {
        let shape = Shape {
            len: pages * PAGE,
            page_size: PAGE as u32,
            ways: 4,
            records: 8,
            ..Shape::default()
        };
        let geometry = shape.at(PAGE).unwrap();
        let region = Region::anonymous(PAGE + geometry.area().len);
        let plane = Plane::format(Arc::clone(&region), geometry).unwrap();
        let caller = Caller::root(SessionId(session));
        let (ledger, dead) = (Arc::new(Ledger::new()), Arc::new(AtomicBool::new(false)));
        Host { caller, region, plane, ledger, dead }
    }

    fn setup(&self, policies: Policies) -> CacheSetup {
        let engine = Counted::new(Direct::new(Arc::clone(&self.region)), Arc::clone(&self.ledger));
        let area = self.plane.geometry().area();
        let control = Control::attach(Arc::new(Stepped(engine)), area, policies).unwrap();
        let dead = Arc::clone(&self.dead);
        let is_dead = Box::new(move || dead.load(Ordering::Relaxed));
        CacheSetup { control, is_dead, clock, wall: later }
    }

    fn read(&self, ino: Ino, offset: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = self.plane.read(ino.0, offset, Sink::Memory(&mut bytes))?;
        bytes.truncate(read as usize);
        Some(bytes)
    }

    fn write(&self, ino: Ino, place: Place, bytes: &[u8]) -> bool {
        let now = wall().sec * 1_000_000_000 + 5;
        self.plane.write(ino.0, place, Source::Memory(bytes), now).is_some()
    }
}

/// A request on its way through.
fn ask(
    coherence: &Arc<Coherence>,
    volume: &Volume,
    caller: &Caller,
    request: Request<'static>,
    payload: Vec<u8>,
) -> Asked {
    let (coherence, volume, caller) = (Arc::clone(coherence), Arc::clone(volume), caller.clone());
    Box::pin(async move {
        let header = Header { cred: Cred::root(), session: caller.attachment, ..Header::default() };
        let payload = Payload::Bytes(payload);
        let ask = Operation { caller: &caller, header: &header, request, payload, now: wall() };
        let passed = coherence.handle(&*volume, ask).await?;
        let bytes = passed.answer.payload.bytes().get(passed.skip..).unwrap_or_default();
        let len = match passed.answer.reply {
            Reply::Data(len) => len as usize,
            _ => bytes.len(),
        };
        Ok((passed.answer.reply, bytes.get(..len).unwrap().to_vec()))
    })
}

/// Hosts, a coherence and a volume, one request at a time.
struct Rig {
    coherence: Arc<Coherence>,
    volume: Volume,
    hosts: Vec<Host>,
}

impl Rig {
    fn new(hosts: u64, policies: Policies) -> Rig {
        Rig::of(hosts, 256, policies)
    }

    /// With so many pages in each cache.
    fn of(hosts: u64, pages: u64, policies: Policies) -> Rig {
        let (kv, medium) = (Arc::new(MemKv::new(1)), Arc::new(MemMedium::new(1)));
        let volume = open(&kv, &medium);
        finish(volume.end_grace()).unwrap();
        let coherence = Arc::new(Coherence::default());
        let hosts: Vec<Host> = (1..=hosts).map(|session| Host::new(session, pages)).collect();
        for host in &hosts {
            let cache = coherence.attach(host.caller.clone(), host.setup(policies));
            finish(coherence.recover(&*volume, cache));
        }
        Rig { coherence, volume, hosts }
    }

    fn ask(
        &self,
        host: usize,
        request: Request<'static>,
        payload: &[u8],
    ) -> Result<(Reply, Vec<u8>)> {
        let caller = &self.hosts[host].caller;
        finish(ask(&self.coherence, &self.volume, caller, request, payload.to_vec()))
    }

    fn create(&self, host: usize, name: &'static [u8], flags: u32) -> (Ino, Fh) {
        let request = Request::Create { parent: Ino::ROOT, name, mode: 0o644, umask: 0, flags };
        match self.ask(host, request, &[]) {
            Ok((Reply::Created(attr, fh), _)) => (attr.ino, fh),
            other => panic!("{other:?}"),
        }
    }

    fn open(&self, host: usize, ino: Ino, flags: u32) -> Fh {
        match self.ask(host, Request::Open { ino, flags }, &[]) {
            Ok((Reply::Opened(fh), _)) => fh,
            other => panic!("{other:?}"),
        }
    }

    /// Reads through.
    fn read(&self, host: usize, (ino, fh): (Ino, Fh), offset: u64, len: u32) -> Vec<u8> {
        self.ask(host, Request::Read { ino, fh, offset, len, flags: 0 }, &[]).unwrap().1
    }

    fn write(&self, host: usize, (ino, fh): (Ino, Fh), offset: u64, flags: u32, bytes: &[u8]) {
        let host_plane = &self.hosts[host].plane;
        host_plane.begin_change(ino.0);
        let (reply, _) = self.ask(host, Request::Write { ino, fh, offset, flags }, bytes).unwrap();
        host_plane.end_change(ino.0);
        assert_eq!(reply, Reply::Written(bytes.len() as u32));
    }

    fn size(&self, host: usize, ino: Ino) -> u64 {
        match self.ask(host, Request::Getattr { ino, fh: Fh::NONE }, &[]) {
            Ok((Reply::Attr(attr), _)) => attr.size,
            other => panic!("{other:?}"),
        }
    }

    fn dmas(&self, host: usize, what: impl FnOnce()) -> u64 {
        let ops = || self.hosts[host].ledger.snapshot().total().ops;
        let before = ops();
        what();
        ops() - before
    }
}

const RDWR: u32 = open_flags::RDWR;

#[test]
fn a_hit_costs_nothing_and_a_write_reaches_the_volume_when_it_must() {
    let rig = Rig::new(1, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    let host = &rig.hosts[0];
    let bytes = [7; 10_000];
    let none = rig.dmas(0, || {
        assert!(host.write(file.0, Place::At(0), &bytes));
        assert_eq!(host.read(file.0, 0, 20_000).unwrap(), bytes);
    });
    assert_eq!(none, 0);
    // The size comes from the record; the volume knows nothing yet.
    assert_eq!(rig.size(0, file.0), 10_000);
    assert_eq!(finish(rig.volume.cacheable(file.0)).unwrap().0.size, 0);
    rig.ask(0, Request::Fsync { ino: file.0, fh: file.1, data_only: false }, &[]).unwrap();
    let (attr, _) = finish(rig.volume.cacheable(file.0)).unwrap();
    assert_eq!((attr.size, attr.mtime.nsec), (10_000, 5));
    assert_eq!(rig.read(0, file, 0, 20_000), bytes);
    // A write that goes through, over the middle of a cached page and beyond the end.
    rig.write(0, file, 9_990, 0, &[8; 100]);
    assert_eq!(host.read(file.0, 9_980, 20).unwrap_or_else(|| rig.read(0, file, 9_980, 20)), {
        let mut expected = vec![7; 10];
        expected.extend([8; 10]);
        expected
    });
    assert_eq!(rig.size(0, file.0), 10_090);
    rig.write(0, file, 0, write_flags::APPEND, &[9; 10]);
    assert_eq!(rig.read(0, file, 10_085, 100), [[8; 5].as_slice(), &[9; 10]].concat());
}

#[test]
fn a_miss_is_filled_and_then_a_hit() {
    let rig = Rig::new(1, Policies { prefetch: prefetch::Name::None, ..Policies::default() });
    let file = rig.create(0, b"f", RDWR | open_flags::DIRECT);
    rig.write(0, file, 0, 0, &[5; 9000]);
    let fh = rig.open(0, file.0, 0);
    let host = &rig.hosts[0];
    assert_eq!(host.read(file.0, 100, 50), None);
    assert_eq!(rig.read(0, (file.0, fh), 100, 50), [5; 50]);
    assert_eq!(host.read(file.0, 200, 50).unwrap(), [5; 50]);
    assert_eq!(host.read(file.0, 5000, 50), None);
    assert_eq!(rig.read(0, (file.0, fh), 8990, 50), [5; 10]);
    assert_eq!(host.read(file.0, 8990, 50).unwrap(), [5; 10]);
    // Truncated and grown again: zeros, not what was there.
    for size in [10, 9000] {
        let set = Setattr { size: Some(size), ..Setattr::default() };
        rig.ask(0, Request::Setattr { ino: file.0, fh: Fh::NONE, set }, &[]).unwrap();
    }
    assert_eq!(host.read(file.0, 200, 50), None);
    assert_eq!(rig.read(0, (file.0, fh), 5, 10), [[5; 5], [0; 5]].concat());
    assert_eq!(host.read(file.0, 5, 10).unwrap(), [[5; 5], [0; 5]].concat());
}

/// A file twice as large as the cache, read page by page.
#[test]
fn a_sequential_reader_seldom_asks() {
    for (prefetch, most) in [(prefetch::Name::None, 512), (prefetch::Name::Sequential, 30)] {
        let rig = Rig::new(1, Policies { prefetch, ..Policies::default() });
        let file = rig.create(0, b"f", RDWR | open_flags::DIRECT);
        for page in 0..512 {
            rig.write(0, file, page * PAGE, 0, &[page as u8; PAGE as usize]);
        }
        let fh = rig.open(0, file.0, 0);
        let mut asked = 0;
        for page in 0..512 {
            let found = rig.hosts[0].read(file.0, page * PAGE, PAGE as usize);
            let found = found.unwrap_or_else(|| {
                asked += 1;
                rig.read(0, (file.0, fh), page * PAGE, PAGE as u32)
            });
            assert!(found == [page as u8; PAGE as usize], "page {page}");
        }
        assert!(asked <= most && (asked == 512 || prefetch != prefetch::Name::None), "{asked}");
    }
}

#[test]
fn what_one_session_writes_in_its_cache_another_reads() {
    let rig = Rig::new(2, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    let (one, two) = (&rig.hosts[0], &rig.hosts[1]);
    assert!(one.write(file.0, Place::At(0), &[1; 5000]));
    let other = (file.0, rig.open(1, file.0, 0));
    assert_eq!(rig.size(1, file.0), 5000);
    assert_eq!(rig.read(1, other, 0, 5000), [1; 5000]);
    assert_eq!(two.read(file.0, 0, 5000).unwrap(), [1; 5000]);
    // Both read now; a write takes the other's pages away before it is answered.
    assert!(!one.write(file.0, Place::At(0), &[2; 100]));
    rig.write(0, file, 0, 0, &[2; 100]);
    assert_eq!(two.read(file.0, 0, 100), None);
    assert_eq!(rig.read(1, other, 0, 100), [2; 100]);
    // The writer's own page went, too.
    assert_eq!(one.read(file.0, 0, 100).unwrap_or_else(|| rig.read(0, file, 0, 100)), [2; 100]);
    // Whoever opens for writing next may write again.
    let again = rig.open(0, file.0, RDWR);
    assert!(
        one.write(file.0, Place::At(0), &[3; 4096]) || {
            rig.read(0, (file.0, again), 0, 10);
            one.write(file.0, Place::At(0), &[3; 4096])
        }
    );
    assert_eq!(rig.read(1, other, 0, 1), [3]);
}

#[test]
fn closing_a_writer_writes_back_and_pages_outlive_the_handle() {
    let rig = Rig::new(1, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    let host = &rig.hosts[0];
    assert!(host.write(file.0, Place::At(0), &[1; 5000]));
    rig.ask(0, Request::Release { ino: file.0, fh: file.1, owner: 0 }, &[]).unwrap();
    assert_eq!(finish(rig.volume.cacheable(file.0)).unwrap().0.size, 5000);
    assert!(!host.write(file.0, Place::At(0), &[2; 10]), "nobody may write any more");
    assert_eq!(host.read(file.0, 0, 5000).unwrap(), [1; 5000]);
    assert_eq!(rig.coherence.figures()[0].promised, 0);
    // Gone altogether: so are the pages.
    rig.ask(0, Request::Unlink { parent: Ino::ROOT, name: b"f" }, &[]).unwrap();
    assert_eq!(rig.coherence.figures()[0].free, rig.coherence.figures()[0].total);
}

#[test]
fn a_name_opened_with_truncation_has_nothing_left_in_any_cache() {
    let rig = Rig::new(2, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    assert!(rig.hosts[0].write(file.0, Place::At(0), &[1; 5000]));
    let (same, _) = rig.create(1, b"f", RDWR | open_flags::TRUNC);
    assert_eq!((same, rig.size(1, same)), (file.0, 0));
    assert_eq!(rig.read(0, file, 0, 10), []);
    assert_eq!(rig.hosts[0].read(file.0, 0, 10), None);
    rig.open(0, file.0, RDWR | open_flags::TRUNC);
    assert_eq!(rig.size(0, file.0), 0);
}

#[test]
fn a_hole_written_behind_reads_zero() {
    let rig = Rig::new(1, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    assert!(rig.hosts[0].write(file.0, Place::At(50_000), &[1; 10]));
    assert_eq!(rig.read(0, file, 10_000, 100), [0; 100]);
    assert_eq!(rig.read(0, file, 49_999, 100), [[0].as_slice(), &[1; 10]].concat());
    let found = rig.ask(0, Request::Lseek { ino: file.0, fh: file.1, offset: 0, whence: 3 }, &[]);
    assert!(matches!(found, Ok((Reply::Offset(at), _)) if at > 0 && at <= 50_000), "{found:?}");
}

#[test]
fn set_id_files_are_not_written_in_a_cache() {
    let rig = Rig::new(1, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    let host = &rig.hosts[0];
    assert!(host.write(file.0, Place::At(0), &[1; 10]));
    let set = Setattr { mode: Some(0o4755), ..Setattr::default() };
    rig.ask(0, Request::Setattr { ino: file.0, fh: Fh::NONE, set }, &[]).unwrap();
    assert!(!host.write(file.0, Place::At(0), &[2; 10]));
    rig.open(0, file.0, RDWR);
    assert!(!host.write(file.0, Place::At(0), &[2; 10]));
    assert_eq!(rig.read(0, file, 0, 10), [1; 10]);
}

#[test]
fn a_host_that_dies_loses_nothing_it_was_told_is_written() {
    let mut rig = Rig::new(2, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    assert!(rig.hosts[0].write(file.0, Place::At(0), &[1; 9000]));
    let dead = rig.hosts.remove(0);
    dead.dead.store(true, Ordering::Relaxed);
    finish(rig.coherence.detach(&*rig.volume, dead.caller.attachment));
    let fh = rig.open(0, file.0, 0);
    assert_eq!(rig.read(0, (file.0, fh), 0, 20_000), [1; 9000]);
    assert_eq!(rig.coherence.figures().len(), 1);
}

#[test]
fn the_next_life_of_the_dpu_side_finds_what_was_written() {
    let (kv, medium) = (Arc::new(MemKv::new(1)), Arc::new(MemMedium::new(1)));
    let mut rig = Rig::new(1, Policies::default());
    rig.volume = open(&kv, &medium);
    let file = rig.create(0, b"f", RDWR);
    assert!(rig.hosts[0].write(file.0, Place::At(0), &[1; 9000]));
    // It dies; its host goes on writing.
    rig.volume = open(&kv, &medium);
    rig.coherence = Arc::new(Coherence::default());
    assert!(rig.hosts[0].write(file.0, Place::At(0), &[2; 100]));
    let host = &rig.hosts[0];
    rig.coherence.expect([host.caller.attachment, SessionId(77)]);
    let cache = rig.coherence.attach(host.caller.clone(), host.setup(Policies::default()));
    let request = Request::Getattr { ino: file.0, fh: Fh::NONE };
    let mut early = ask(&rig.coherence, &rig.volume, &host.caller, request, Vec::new());
    assert!(poll(&mut early).is_none());
    finish(rig.coherence.recover(&*rig.volume, cache));
    assert!(poll(&mut early).is_none(), "another session may have written, too");
    rig.coherence.expect_nobody();
    assert!(matches!(finish(early), Ok((Reply::Attr(attr), _)) if attr.size == 9000));
    let fh = rig.open(0, file.0, 0);
    assert_eq!(rig.read(0, (file.0, fh), 0, 200), [[2; 100], [1; 100]].concat());
}

/// Files that stayed open were not cached any more, until they were opened again: a loss of the DPU
/// side of a second made a data base slow for a day.
#[test]
fn a_file_that_stays_open_is_cached_again_by_the_next_life() {
    let mut rig = Rig::new(1, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    assert!(rig.hosts[0].write(file.0, Place::At(0), &[1; 9000]));
    let reader = rig.open(0, file.0, 0);
    // The handles are handed in again: the volume knows them.
    rig.coherence = Arc::new(Coherence::default());
    let host = &rig.hosts[0];
    let cache = rig.coherence.attach(host.caller.clone(), host.setup(Policies::default()));
    finish(rig.coherence.recover(&*rig.volume, cache));
    assert!(host.read(file.0, 0, 10).is_none() && !host.write(file.0, Place::At(0), &[2; 10]));
    assert_eq!(rig.read(0, (file.0, reader), 0, 10), [1; 10]);
    assert_eq!(rig.read(0, (file.0, reader), 0, 10), [1; 10], "granted, and then filled");
    assert_eq!(host.read(file.0, 0, 10).unwrap(), [1; 10]);
    assert!(!host.write(file.0, Place::At(0), &[2; 10]), "only by a handle that writes");
    rig.write(0, file, 0, 0, &[3; 10]);
    assert!(host.write(file.0, Place::At(8192), &[5; 818]));
    rig.ask(0, Request::Fsync { ino: file.0, fh: file.1, data_only: false }, &[]).unwrap();
    assert_eq!(rig.size(0, file.0), 9010);
    // With its last writer it is no more written in the cache.
    rig.ask(0, Request::Release { ino: file.0, fh: file.1, owner: 0 }, &[]).unwrap();
    assert!(!host.write(file.0, Place::At(8192), &[6; 818]));
}

/// A host that marks pages dirty it was never allowed to write.
fn forge(host: &Host, ino: Ino) {
    let geometry = host.plane.geometry();
    for index in 0..geometry.total() {
        let at = geometry.entry_at(index);
        let raw = host.region.load_u64(at, Ordering::SeqCst).unwrap();
        let mut word = Word::parse(raw).unwrap();
        word.status = Status::Dirty;
        let page = geometry.page_at(index);
        host.region.write_from(page, &[66; PAGE as usize]).unwrap();
        host.region.store_u64(at + 16, index, Ordering::SeqCst).unwrap();
        host.region.store_u64(at + 24, ino.0, Ordering::SeqCst).unwrap();
        host.region.store_u64(at, word.emit(), Ordering::SeqCst).unwrap();
    }
}

#[test]
fn a_grant_to_read_writes_nothing_whatever_the_host_marks() {
    let mut rig = Rig::new(2, Policies::default());
    let file = rig.create(0, b"f", RDWR | open_flags::DIRECT);
    rig.write(0, file, 0, 0, &[5; 9000]);
    let fh = rig.open(1, file.0, 0);
    rig.read(1, (file.0, fh), 0, 9000);
    forge(&rig.hosts[1], file.0);
    rig.ask(1, Request::Fsync { ino: file.0, fh, data_only: false }, &[]).unwrap();
    rig.write(0, file, 0, 0, &[6; 10]);
    assert_eq!(rig.read(0, file, 0, 9000), [[6; 10].as_slice(), &[5; 8990]].concat());
    rig.open(1, file.0, 0);
    forge(&rig.hosts[1], file.0);
    finish(rig.coherence.maintain(&*rig.volume));
    let gone = rig.hosts.remove(1);
    gone.dead.store(true, Ordering::Relaxed);
    finish(rig.coherence.detach(&*rig.volume, gone.caller.attachment));
    assert_eq!(rig.read(0, file, 0, 9000), [[6; 10].as_slice(), &[5; 8990]].concat());
    assert_eq!(rig.size(0, file.0), 9000);
}

/// A host may look at a file and no more. It kept a page of it locked until a recall gave up, so
/// that its record stayed frozen; then it marked pages dirty. Whoever tried the recall again took
/// a frozen record for one that had been granted to write, and wrote the host's bytes to the file.
#[test]
fn a_grant_to_read_that_is_stuck_in_a_recall_writes_nothing_either() {
    let mut rig = Rig::new(2, Policies::default());
    let file = rig.create(0, b"f", RDWR | open_flags::DIRECT);
    rig.write(0, file, 0, 0, &[5; 9000]);
    let fh = rig.open(1, file.0, 0);
    rig.read(1, (file.0, fh), 0, 9000);
    let host = &rig.hosts[1];
    let geometry = host.plane.geometry();
    let entry = geometry
        .bucket(file.0.0, 0)
        .find(|index| host.region.load_u64(geometry.entry_at(*index), Ordering::Relaxed) != Ok(0));
    let at = geometry.entry_at(entry.unwrap());
    let word = host.region.load_u64(at, Ordering::Relaxed).unwrap();
    host.region.store_u64(at, word | 1, Ordering::Relaxed).unwrap();
    let set = Setattr { size: Some(1), ..Setattr::default() };
    let cut = Request::Setattr { ino: file.0, fh: Fh::NONE, set };
    assert_eq!(rig.ask(0, cut, &[]).map(drop), Err(Errno::EIO));
    host.region.store_u64(at, word, Ordering::Relaxed).unwrap();
    forge(host, file.0);
    finish(rig.coherence.maintain(&*rig.volume));
    rig.ask(1, Request::Fsync { ino: file.0, fh, data_only: false }, &[]).unwrap();
    forge(&rig.hosts[1], file.0);
    let gone = rig.hosts.remove(1);
    gone.dead.store(true, Ordering::Relaxed);
    finish(rig.coherence.detach(&*rig.volume, gone.caller.attachment));
    assert_eq!(rig.read(0, file, 0, 10_000), [5; 9000]);
}

#[test]
fn the_next_life_believes_a_record_only_as_far_as_its_peer_may_write() {
    let rig = Rig::new(1, Policies::default());
    let file = rig.create(0, b"f", RDWR | open_flags::DIRECT);
    rig.write(0, file, 0, 0, &[5; 9000]);
    for (uid, kept) in [(1000, 5), (0, 66)] {
        let mut host = Host::new(50 + u64::from(uid), 16);
        let peer = Cred { uid, gid: uid, pid: 1, groups: Vec::new() };
        host.caller = Caller { trusted: false, peer, ..host.caller };
        let setup = host.setup(Policies::default());
        // As a host may write it: "I may write this file."
        setup.control.grant(file.0, Grant::Write, 9000, 9).unwrap();
        forge(&host, file.0);
        let setup = host.setup(Policies::default());
        let cache = rig.coherence.attach(host.caller.clone(), setup);
        finish(rig.coherence.recover(&*rig.volume, cache));
        assert_eq!(rig.read(0, file, 4096, 1), [kept], "uid {uid}");
        assert_eq!(rig.size(0, file.0), 9000);
    }
}

/// git makes its objects with mode 0444 and writes them through the handle it got. The DPU side was
/// killed with such a file in a cache; its next life looked at the mode, and dropped what had been
/// answered, for the owner as for a mount that speaks for everybody.
#[test]
fn the_next_life_keeps_what_was_written_to_files_made_read_only() {
    let rig = Rig::new(1, Policies::default());
    for (session, trusted, uid, kept) in
        [(60, false, 1000, 66), (61, true, 1001, 66), (62, false, 1001, 5)]
    {
        let file = rig.create(0, b"f", RDWR | open_flags::DIRECT);
        rig.write(0, file, 0, 0, &[5; 9000]);
        let owned = Setattr { mode: Some(0o444), uid: Some(1000), ..Setattr::default() };
        rig.ask(0, Request::Setattr { ino: file.0, fh: Fh::NONE, set: owned }, &[]).unwrap();
        let mut host = Host::new(session, 16);
        let peer = Cred { uid, gid: uid, pid: 1, groups: Vec::new() };
        host.caller = Caller { trusted, peer, ..host.caller };
        let setup = host.setup(Policies::default());
        setup.control.grant(file.0, Grant::Write, 9000, 9).unwrap();
        forge(&host, file.0);
        let setup = host.setup(Policies::default());
        let cache = rig.coherence.attach(host.caller.clone(), setup);
        finish(rig.coherence.recover(&*rig.volume, cache));
        assert_eq!(rig.read(0, file, 4096, 1), [kept], "session {session}");
    }
}

/// After a restart everybody had handed in its files, which ends the wait for who is missing; a
/// cache was still being written back. The host's next write overtook that and went through, and
/// then the older page came over it.
#[test]
fn the_end_of_the_grace_period_lets_nobody_overtake_a_cache() {
    let (kv, medium) = (Arc::new(MemKv::new(1)), Arc::new(MemMedium::new(1)));
    let mut rig = Rig::new(1, Policies::default());
    rig.volume = open(&kv, &medium);
    let file = rig.create(0, b"f", RDWR);
    assert!(rig.hosts[0].write(file.0, Place::At(0), &[1; 9000]));
    rig.volume = open(&kv, &medium);
    rig.coherence = Arc::new(Coherence::default());
    let host = &rig.hosts[0];
    rig.coherence.expect([host.caller.attachment]);
    rig.coherence.is_back(host.caller.attachment);
    let cache = rig.coherence.attach(host.caller.clone(), host.setup(Policies::default()));
    rig.coherence.expect_nobody();
    let request = Request::Getattr { ino: file.0, fh: Fh::NONE };
    let mut own = ask(&rig.coherence, &rig.volume, &host.caller, request.clone(), Vec::new());
    let other = Caller { attachment: SessionId(78), ..host.caller.clone() };
    let mut others = ask(&rig.coherence, &rig.volume, &other, request, Vec::new());
    assert!(poll(&mut own).is_none() && poll(&mut others).is_none());
    finish(rig.coherence.recover(&*rig.volume, cache));
    for asked in [own, others] {
        assert!(matches!(finish(asked), Ok((Reply::Attr(attr), _)) if attr.size == 9000));
    }
}

/// What a cache held could not be written back after a restart (here: the right to write was taken
/// away), and the next fsync said that all was well.
#[test]
fn what_is_lost_with_a_cache_is_said_at_the_next_sync() {
    let rig = Rig::new(1, Policies::default());
    let file = rig.create(0, b"f", RDWR | open_flags::DIRECT);
    rig.write(0, file, 0, 0, &[5; 9000]);
    let mut host = Host::new(60, 16);
    let peer = Cred { uid: 1000, gid: 1000, pid: 1, groups: Vec::new() };
    host.caller = Caller { trusted: false, peer, ..host.caller };
    let setup = host.setup(Policies::default());
    setup.control.grant(file.0, Grant::Write, 9000, 9).unwrap();
    forge(&host, file.0);
    let cache = rig.coherence.attach(host.caller.clone(), host.setup(Policies::default()));
    finish(rig.coherence.recover(&*rig.volume, cache));
    let sync = |session: u64| {
        let session = Some(SessionId(session));
        finish(rig.coherence.flush_for_sync(&*rig.volume, file.0, session))
    };
    // Of its own word only: nobody else hears of it.
    assert_eq!([sync(61), sync(60), sync(60)], [Ok(()), Err(Errno::EIO), Ok(())]);
}

/// A host put a page in again as often as it was taken out, and its cache was emptied for ever;
/// everybody waited for that.
#[test]
fn a_cache_that_is_never_empty_is_not_emptied_for_ever() {
    let rig = Rig::new(1, Policies::default());
    let mut host = Host::new(60, 16);
    host.caller.trusted = false;
    let setup = host.setup(Policies::default());
    let (region, at) = (Arc::clone(&host.region), host.plane.geometry().entry_at(3));
    let dirty = Word { status: Status::Dirty, ..Word::FREE }.emit();
    let again = move || region.store_u64(at, dirty, Ordering::SeqCst).unwrap();
    let cache = rig.coherence.attach(host.caller.clone(), setup);
    let request = Request::Getattr { ino: Ino::ROOT, fh: Fh::NONE };
    BETWEEN.set(Some(Rc::new(again)));
    let mut own = ask(&rig.coherence, &rig.volume, &host.caller, request.clone(), Vec::new());
    assert!(poll(&mut own).is_none());
    // Who did not ask for it does not wait for it either.
    rig.ask(0, request, &[]).unwrap();
    finish(rig.coherence.recover(&*rig.volume, cache));
    BETWEEN.set(None);
    assert!(poll(&mut own).is_some());
    assert_eq!(rig.coherence.figures().len(), 1, "the cache is not used");
}

#[test]
fn what_was_synced_outlives_both_sides() {
    let (kv, medium) = (Arc::new(MemKv::new(1)), Arc::new(MemMedium::new(1)));
    let mut rig = Rig::new(1, Policies::default());
    rig.volume = open(&kv, &medium);
    let file = rig.create(0, b"f", RDWR);
    assert!(rig.hosts[0].write(file.0, Place::At(0), &[1; 9000]));
    rig.ask(0, Request::Fsync { ino: file.0, fh: file.1, data_only: false }, &[]).unwrap();
    assert!(rig.hosts[0].write(file.0, Place::At(0), &[2; 9000]));
    // Both die: the next life has neither this cache nor anybody to ask.
    let next = Rig::new(1, Policies::default());
    let next = Rig { volume: open(&kv, &medium), ..next };
    let fh = next.open(0, file.0, 0);
    assert_eq!(next.read(0, (file.0, fh), 0, 20_000), [1; 9000]);
}

/// The table of `docs/internals/cache.md`: DMAs of the cache beside those of the request itself.
#[test]
fn what_each_request_costs_beside_its_own() {
    let rig = Rig::new(1, Policies { prefetch: prefetch::Name::None, ..Policies::default() });
    let mut file = (Ino::ROOT, Fh::NONE);
    let host = &rig.hosts[0];
    let costs = |what: &mut dyn FnMut()| rig.dmas(0, what);
    // A new file, granted to be written: two for its record.
    assert_eq!(costs(&mut || file = rig.create(0, b"f", RDWR)), 2 + 1, "and its size is looked up");
    let (ino, fh) = file;
    assert_eq!(costs(&mut || assert!(host.write(ino, Place::At(0), &[1; 4096]))), 0);
    assert_eq!(costs(&mut || assert_eq!(host.read(ino, 0, 10).unwrap(), [1; 10])), 0);
    assert_eq!(costs(&mut || assert_eq!(rig.size(0, ino), 4096)), 1);
    let sync = || {
        rig.ask(0, Request::Fsync { ino, fh, data_only: false }, &[]).unwrap();
    };
    // What is owed; the chain and its end; a bucket; lock, identity, page, unlock; record; clean.
    assert_eq!(costs(&mut || sync()), 10);
    // Nothing to flush: nothing is owed.
    assert_eq!(costs(&mut || sync()), 1);
    // A hundred pages: four to pull each, one to mark each clean; for all what is owed, the chain
    // and its end, the first page's entry, five windows on the way along the chain, the record.
    for page in 0..100 {
        assert!(host.write(ino, Place::At(page * PAGE), &[2; 4096]) || page >= 24);
    }
    let dirty = rig.coherence.figures()[0].dirty;
    assert_eq!(costs(&mut || sync()), 1 + 2 + 1 + 5 + 5 * dirty + 1);
    // To read only: a miss is filled by seven.
    rig.ask(0, Request::Release { ino, fh, owner: 0 }, &[]).unwrap();
    let set = Setattr { size: Some(3 * PAGE), ..Setattr::default() };
    rig.ask(0, Request::Setattr { ino, fh: Fh::NONE, set }, &[]).unwrap();
    let fh = rig.open(0, ino, 0);
    assert_eq!(costs(&mut || drop(rig.read(0, (ino, fh), 0, 100))), 7);
    // Without a grant there is nothing to do.
    let other = rig.create(0, b"g", RDWR | open_flags::DIRECT);
    assert_eq!(costs(&mut || rig.write(0, other, 0, 0, &[1; 8192])), 0);
    assert_eq!(costs(&mut || drop(rig.read(0, other, 0, 8192))), 0);
}

#[test]
fn a_page_held_for_ever_is_not_waited_for_for_ever() {
    let rig = Rig::new(2, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    let host = &rig.hosts[0];
    assert!(host.write(file.0, Place::At(0), &[1; 10]));
    let geometry = host.plane.geometry();
    let index = geometry
        .bucket(file.0.0, 0)
        .find(|index| host.region.load_u64(geometry.entry_at(*index), Ordering::Relaxed) != Ok(0));
    let at = geometry.entry_at(index.unwrap());
    let word = host.region.load_u64(at, Ordering::Relaxed).unwrap();
    host.region.store_u64(at, word | 1, Ordering::Relaxed).unwrap();
    let fh = rig.open(1, file.0, 0);
    let request = Request::Read { ino: file.0, fh, offset: 0, len: 10, flags: 0 };
    assert_eq!(rig.ask(1, request, &[]).map(drop), Err(Errno::EIO));
    // Released, it is there.
    host.region.store_u64(at, word, Ordering::Relaxed).unwrap();
    finish(rig.coherence.maintain(&*rig.volume));
    assert_eq!(rig.read(1, (file.0, fh), 0, 10), [1; 10]);
}

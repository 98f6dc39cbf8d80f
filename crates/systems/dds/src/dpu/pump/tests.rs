//! The pump between real rings and a medium in memory: answers, order, flow control, copies, DMAs.

use outboard_base::task::{poll_once, run};

use outboard_base::Rng;
use outboard_base::ledger::Kind;
use outboard_link::Region;
use outboard_link::dma::{Counted, Direct};
use outboard_link::ring::progress::{self, Shape};
use outboard_link::ring::{PushError, response};
use outboard_medium::mem::{Faults, MemMedium};
use outboard_wire::dds::{
    DirectoryId, FileId, Listing, REQUEST_HEAD, Response, data_at as data_place,
};

use super::*;
use crate::dpu::files::{Layout, ReadOp, SEGMENT_MIN};
use crate::table::{self, Changes};

const RING: u64 = 64 << 10;

struct Rig {
    pump: Pump<Arc<MemMedium>>,
    producer: progress::Producer,
    consumer: response::Consumer,
    tasks: Vec<Work>,
    table: table::Reader,
    ledger: Arc<Ledger>,
    medium: Arc<MemMedium>,
    service: Arc<FileService<Arc<MemMedium>>>,
    now: Time,
    next: u64,
}

impl Rig {
    fn new(config: Config) -> Rig {
        let medium = Arc::new(MemMedium::new(1));
        let layout = Layout { segment: SEGMENT_MIN, segments: 32 };
        run(FileService::format(&medium, layout, 1, false)).unwrap();
        let service = Arc::new(run(FileService::open(Arc::clone(&medium))).unwrap());
        let requests = Place::new(0, RING).unwrap();
        let responses = Place::new(requests.end(), RING).unwrap();
        let region = Region::anonymous(responses.end());
        let ledger = Arc::new(Ledger::new());
        let direct = Direct::new(Arc::clone(&region));
        let dma: Arc<dyn Dma> = Arc::new(Counted::new(direct, Arc::clone(&ledger)));
        let (writer, table) = table::with_capacity(100, 1).unwrap();
        let summary = Arc::new(Summary::new(None, Arc::default(), writer));
        let places = (requests, responses);
        let pump =
            Pump::new(Arc::clone(&service), summary, &dma, places, config, Arc::clone(&ledger));
        let ring = progress::Ring::new(Arc::clone(&region), requests, RING).unwrap();
        let back = response::Ring::new(region, responses).unwrap();
        Rig {
            pump: pump.unwrap(),
            producer: ring.producer(1).unwrap(),
            consumer: back.consumer(1).unwrap(),
            tasks: Vec::new(),
            table,
            ledger,
            medium,
            service,
            now: Time(0),
            next: 1,
        }
    }

    /// Puts a request in, its data aligned to blocks; its id.
    fn ask(&mut self, request: &Request<'_>) -> Result<u64, PushError> {
        let id = self.next;
        let data = request.data();
        let align = if data.len() >= ALIGN { ALIGN } else { 8 };
        let shape = Shape { head: REQUEST_HEAD, data: data.len(), align };
        let reservation = self.producer.reserve(shape)?;
        let head = request.head(id, reservation.data_at(), data.len());
        reservation.write(0, &head).unwrap();
        reservation.write(reservation.data_at(), data).unwrap();
        reservation.publish().unwrap();
        self.next += 1;
        Ok(id)
    }

    fn pass(&mut self) -> Pumped {
        self.now = self.now.after(Duration::from_micros(1));
        let tasks = &mut self.tasks;
        let mut start = |mut work: Work| {
            if poll_once(work.as_mut()).is_pending() {
                tasks.push(work);
            }
        };
        let pumped = self.pump.pass(self.now, &mut start).unwrap();
        self.tasks.retain_mut(|task| poll_once(task.as_mut()).is_pending());
        pumped
    }

    fn heard(&mut self) -> Option<(u64, Result<u64, Errno>, Vec<u8>)> {
        let mut bytes = Vec::new();
        self.consumer.take(&mut bytes).unwrap().then(|| {
            let response = Response::parse(&bytes).unwrap();
            (response.id, response.result, response.data.to_vec())
        })
    }

    /// Asks, and waits for the answer.
    fn done(&mut self, request: &Request<'_>) -> (Result<u64, Errno>, Vec<u8>) {
        let id = self.ask(request).unwrap();
        for _ in 0..1000 {
            self.pass();
            if let Some((heard, result, data)) = self.heard() {
                assert_eq!(heard, id);
                return (result, data);
            }
        }
        panic!("no answer to {request:?}");
    }

    fn file(&mut self) -> FileId {
        let (directory, _) = self.done(&Request::CreateDirectory { name: b"d" });
        let directory = DirectoryId(u32::try_from(directory.unwrap()).unwrap());
        let (file, _) = self.done(&Request::CreateFile { directory, name: b"f" });
        FileId(u32::try_from(file.unwrap()).unwrap())
    }
}

#[test]
fn every_request_is_answered_with_what_it_asked_for() {
    let mut rig = Rig::new(Config::default());
    let file = rig.file();
    let (found, _) = rig.done(&Request::OpenDirectory { name: b"d" });
    let directory = DirectoryId(u32::try_from(found.unwrap()).unwrap());
    assert_eq!(rig.done(&Request::OpenFile { directory, name: b"f" }).0, Ok(file.0.into()));
    assert_eq!(rig.done(&Request::CreateDirectory { name: b"d" }).0, Err(Errno::EEXIST));
    assert_eq!(rig.done(&Request::Write { file, offset: 10, data: b"hello" }).0, Ok(0));
    let read = Request::Read { file, offset: 8, bytes: 100 };
    assert_eq!(rig.done(&read), (Ok(0), b"\0\0hello".to_vec()));
    assert_eq!(rig.done(&Request::Read { file, offset: 15, bytes: 9 }), (Ok(0), vec![]));
    assert_eq!(rig.done(&Request::Size { file }).0, Ok(15));
    assert_eq!(rig.done(&Request::Resize { file, size: 12 }).0, Ok(0));
    assert_eq!(rig.done(&read), (Ok(0), b"\0\0he".to_vec()));
    assert_eq!(rig.done(&Request::Flush { file }).0, Ok(0));
    let (end, listed) = rig.done(&Request::List { directory, after: 0, bytes: 4096 });
    let names: Vec<_> = Listing::new(&listed).map(|entry| entry.unwrap().name).collect();
    assert_eq!((end, names), (Ok(0), vec![&b"f"[..]]));
    let tight = Request::List { directory, after: 0, bytes: 4 };
    assert_eq!(rig.done(&tight).0, Err(Errno::ERANGE));
    let changes = Changes { clear: false, removals: vec![], items: vec![(0, [1, 2, 3, 4])] };
    assert_eq!(rig.done(&Request::Table { changes: &changes.emit() }).0, Ok(0));
    assert_eq!(rig.table.get(0), Some([1, 2, 3, 4]));
    assert_eq!(rig.done(&Request::Table { changes: b"no" }).0, Err(Errno::EINVAL));
    assert_eq!(rig.done(&Request::RemoveDirectory { directory }).0, Err(Errno::ENOTEMPTY));
    assert_eq!(rig.done(&Request::DeleteFile { file }).0, Ok(0));
    assert_eq!(rig.done(&read).0, Err(Errno::ENOENT));
    assert_eq!(rig.done(&Request::RemoveDirectory { directory }).0, Ok(0));
    // A response that would not fit half its ring.
    let huge = Request::Read { file, offset: 0, bytes: 64 << 10 };
    assert_eq!(rig.done(&huge).0, Err(Errno::E2BIG));
}

/// A message with an id that is no request is answered; one without ends the group.
#[test]
fn what_is_no_request_is_refused() {
    use outboard_link::ring::Produce;
    let mut rig = Rig::new(Config::default());
    let mut odd = [0; REQUEST_HEAD];
    (odd[0], odd[2], odd[8]) = (99, 32, 7);
    rig.producer.push(&[&odd]).unwrap();
    rig.pass();
    rig.pass();
    assert_eq!(rig.heard(), Some((7, Err(Errno::EINVAL), vec![])));
    rig.producer.push(&[b"short"]).unwrap();
    let fault = rig.pump.pass(rig.now, &mut |_| panic!("nothing to do"));
    assert!(matches!(fault, Err(Fault::Message(_))));
}

/// A whole block written and read is copied by nobody but the DMA engine: one DMA fetches request
/// and data, and one brings response and data.
#[test]
fn whole_blocks_are_not_copied() {
    let mut rig = Rig::new(Config::default());
    let file = rig.file();
    let page = vec![7; 8192];
    rig.done(&Request::Write { file, offset: 0, data: &page }).0.unwrap();
    let before = rig.ledger.snapshot();
    assert_eq!(rig.done(&Request::Read { file, offset: 0, bytes: 8192 }), (Ok(0), page.clone()));
    let read = rig.ledger.snapshot().since(&before);
    let ops = |kind| read.dma(kind).ops;
    assert_eq!((ops(Kind::RingIn), ops(Kind::RingOut)), (1, 1));
    assert_eq!(read.count(Count::Copied), 0, "a read is zero-copy");
    assert_eq!(read.dma(Kind::RingOut).bytes, 8 + 32 + 8192);
    let before = rig.ledger.snapshot();
    rig.done(&Request::Write { file, offset: 8192, data: &page }).0.unwrap();
    rig.pass();
    let write = rig.ledger.snapshot().since(&before);
    assert_eq!(write.count(Count::Copied), 0, "a write of whole blocks is zero-copy");
    rig.done(&Request::Write { file, offset: 1, data: &page }).0.unwrap();
    rig.pass();
    assert!(rig.ledger.snapshot().since(&before).count(Count::Copied) > 0, "parts of blocks are");
}

/// Made to copy, it does as well, and says so.
#[test]
fn copies_are_counted_and_change_nothing_else() {
    let mut rig = Rig::new(Config { copies: true, ..Config::default() });
    let file = rig.file();
    let page: Vec<u8> = (0..8192u32).map(|n| n.to_le_bytes()[0]).collect();
    let before = rig.ledger.snapshot();
    rig.done(&Request::Write { file, offset: 0, data: &page }).0.unwrap();
    assert_eq!(rig.done(&Request::Read { file, offset: 0, bytes: 8192 }), (Ok(0), page));
    assert!(rig.ledger.snapshot().since(&before).count(Count::Copied) >= 2 * 8192);
}

/// Operations end in any order; responses come in the order of the requests. Where the response
/// ring is short of space requests wait, nothing is fetched, and nothing is lost.
#[test]
fn responses_keep_the_order_and_shortage_only_delays() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::new(Config { depth: 40, ..Config::default() });
        let file = rig.file();
        for block in 0..16u8 {
            let data = vec![block; 4096];
            rig.done(&Request::Write { file, offset: u64::from(block) * 4096, data: &data })
                .0
                .unwrap();
        }
        rig.medium.set_faults(Faults { delay_polls: 9, ..Faults::default() });
        let (mut asked, mut heard) = (VecDeque::new(), 0);
        while heard < 2000 {
            if rng.chance(2, 3) {
                let block = rng.below(16);
                let bytes = u32::try_from(rng.below(4097)).unwrap();
                let read = Request::Read { file, offset: block * 4096, bytes };
                match rig.ask(&read) {
                    Ok(id) => asked.push_back((id, block, bytes)),
                    Err(error) => assert_eq!(error, PushError::Retry),
                }
            }
            if rng.chance(1, 2) {
                rig.pass();
            }
            // A host that reads in bursts: the ring is full in between.
            if rng.chance(1, 30) {
                while let Some((id, result, data)) = rig.heard() {
                    let (expected, block, bytes) = asked.pop_front().unwrap();
                    assert_eq!((id, result), (expected, Ok(0)), "seed {seed}");
                    assert!(data.len() == bytes as usize, "seed {seed}");
                    assert!(data.iter().all(|byte| u64::from(*byte) == block), "seed {seed}");
                    heard += 1;
                }
            }
            assert!(rig.pump.under_way() <= 40);
        }
    }
}

/// Responses wait for company until there are enough bytes of them, and no longer than allowed.
#[test]
fn responses_are_delivered_together_or_when_patience_ends() {
    let patience = Duration::from_micros(10);
    let mut rig = Rig::new(Config { batch: 3 * 40, patience, depth: 64, copies: false });
    let file = FileId(9);
    rig.ask(&Request::Size { file }).unwrap();
    assert_eq!(rig.pass(), Pumped { begun: 1, delivered: 0, unfinished: false });
    let deadline = rig.pump.next_deadline().unwrap();
    assert_eq!(deadline, rig.now.after(patience));
    for _ in 0..9 {
        assert_eq!(rig.pass().delivered, 0);
    }
    assert_eq!(rig.pass().delivered, 1);
    assert_eq!(rig.pump.next_deadline(), None);
    let before = rig.ledger.snapshot();
    for _ in 0..4 {
        rig.ask(&Request::Size { file }).unwrap();
    }
    assert_eq!(rig.pass().delivered, 4);
    let together = rig.ledger.snapshot().since(&before);
    assert_eq!((together.dma(Kind::RingIn).ops, together.dma(Kind::RingOut).ops), (1, 1));
}

/// A write's data stays where it was fetched until the device is done: the host is not given that
/// part of the ring before, whatever else it writes meanwhile.
#[test]
fn no_batch_is_given_back_amid_its_writes() {
    let mut rig = Rig::new(Config::default());
    let file = rig.file();
    rig.medium.set_faults(Faults { delay_polls: 50, ..Faults::default() });
    let mut written = 0u8;
    let mut answered = 0;
    while answered < 200 {
        let offset = u64::from(written % 64) * 8192;
        let data = vec![written; 8192];
        if written < 200 && rig.ask(&Request::Write { file, offset, data: &data }).is_ok() {
            written += 1;
        }
        rig.pass();
        while let Some((_, result, _)) = rig.heard() {
            assert_eq!(result, Ok(0));
            answered += 1;
        }
    }
    for block in 0..64u8 {
        let last = (0..200u8).filter(|n| n % 64 == block).max().unwrap();
        let op = ReadOp { file, offset: u64::from(block) * 8192, bytes: 8192 };
        let (range, buf) = run(rig.service.read(op, Buf::zeroed(0)));
        assert!(buf[range.unwrap()].iter().all(|byte| *byte == last), "block {block}");
    }
    assert_eq!(data_place(0, REQUEST_HEAD, 8), REQUEST_HEAD);
}

/// Only the page server's own bookkeeping was tested: a simulated device told it that a flush had
/// failed. What the file service makes of a device whose flush fails was not: everybody who waits
/// for it hears so, and whoever asks later, of whatever file, also when the device says that it is
/// well again: what was on its way is gone, and it says so once.
#[test]
fn a_flush_that_fails_is_told_to_who_asked_and_to_whoever_asks_later() {
    let mut rig = Rig::new(Config::default());
    let file = rig.file();
    let directory = DirectoryId(1);
    let (other, _) = rig.done(&Request::CreateFile { directory, name: b"g" });
    let other = FileId(u32::try_from(other.unwrap()).unwrap());
    assert_eq!(rig.done(&Request::Write { file, offset: 0, data: b"kept" }).0, Ok(0));
    assert_eq!(rig.done(&Request::Flush { file }).0, Ok(0));
    assert_eq!(rig.done(&Request::Write { file, offset: 4, data: b"lost" }).0, Ok(0));
    rig.medium.set_faults(Faults { flush_fails: true, delay_polls: 5, ..Faults::default() });
    let asked = [file, other, file].map(|file| rig.ask(&Request::Flush { file }).unwrap());
    let mut heard = Vec::new();
    for _ in 0..1000 {
        rig.pass();
        heard.extend(rig.heard());
    }
    let failed = |id: &u64| (*id, Err(Errno::EIO), Vec::new());
    assert_eq!(heard, asked.iter().map(failed).collect::<Vec<_>>());
    rig.medium.set_faults(Faults::default());
    for file in [file, other] {
        assert_eq!(rig.done(&Request::Flush { file }).0, Err(Errno::EIO));
        assert_eq!(rig.done(&Request::Write { file, offset: 9, data: b"later" }).0, Ok(0));
        assert_eq!(rig.done(&Request::Flush { file }).0, Err(Errno::EIO));
    }
    assert_eq!(run(rig.service.flush_all()), Err(Errno::EIO), "nor is the end in order");
    // Another life over what is there then.
    rig.medium.crash();
    let service = run(FileService::open(Arc::clone(&rig.medium))).unwrap();
    let read = run(service.read(ReadOp { file, offset: 0, bytes: 4 }, Buf::zeroed(8192)));
    assert_eq!(read.1[read.0.unwrap()], *b"kept");
    assert_eq!(run(service.flush(file)), Ok(()));
}

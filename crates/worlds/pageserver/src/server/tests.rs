//! A server on a real file, hosts over real sockets and memory: answers, sleep, deaths, restarts.

use std::time::Instant;

use outboard_attach::link::{Received, connect};
use outboard_base::SessionId;
use outboard_dds::dpu::offload::health::Call;
use outboard_dds::dpu::offload::{
    Answer, Cursor, Division, Framing, Item, Key, Lookup, ReadOp, WriteOp,
};
use outboard_dds::groups::Shape;
use outboard_dds::table::Changes;
use outboard_link::ring::progress::{self, Shape as Data};
use outboard_link::ring::response;
use outboard_wire::attach::{Company, Hello, Message, QueuesHello, Reason};
use outboard_wire::dds::{DirectoryId, FileId, REQUEST_HEAD, Request, Response};

use super::*;
use crate::host::{Attachment, LOSS_NOTICED};

struct Host {
    attachment: Arc<Attachment>,
    producer: progress::Producer,
    back: response::Ring,
    consumer: response::Consumer,
    next: u64,
}

const LIMIT: Duration = Duration::from_secs(60);

impl Host {
    fn attach(socket: &Path, group: u16) -> io::Result<Host> {
        let shape = Shape::new(2, 256 << 10, 256 << 10, 4096).unwrap();
        let attachment = Arc::new(Attachment::attach(socket, shape, LIMIT)?);
        let (requests, responses) = shape.rings(group).unwrap();
        let region = attachment.region();
        let max = shape.request_bytes();
        let ring = progress::Ring::new(Arc::clone(region), requests, max).unwrap();
        let back = response::Ring::new(Arc::clone(region), responses).unwrap();
        let producer = ring.producer(1).unwrap();
        let consumer = back.consumer(1).unwrap();
        Ok(Host { attachment, producer, back, consumer, next: 1 })
    }

    fn ask(&mut self, request: &Request<'_>) -> u64 {
        let data = request.data();
        let align = if data.len() >= 4096 { 4096 } else { 8 };
        let shape = Data { head: REQUEST_HEAD, data: data.len(), align };
        let at = self.producer.reserve(shape).unwrap();
        at.write(0, &request.head(self.next, at.data_at(), data.len())).unwrap();
        at.write(at.data_at(), data).unwrap();
        at.publish().unwrap();
        self.attachment.notify();
        self.next += 1;
        self.next - 1
    }

    /// The next answer; `None` when the DPU side is gone.
    fn hear(&mut self) -> Option<(u64, Result<u64, outboard_base::Errno>, Vec<u8>)> {
        let mut bytes = Vec::new();
        let begun = Instant::now();
        while !self.consumer.take(&mut bytes).unwrap() {
            assert!(begun.elapsed() < LIMIT, "no answer");
            let ready = || self.back.is_ready();
            if !self.attachment.sleep(1, LIMIT, &ready).unwrap() && !self.back.is_ready() {
                return None;
            }
        }
        let response = Response::parse(&bytes).unwrap();
        Some((response.id, response.result, response.data.to_vec()))
    }

    fn done(&mut self, request: &Request<'_>) -> (Result<u64, outboard_base::Errno>, Vec<u8>) {
        let id = self.ask(request);
        let (heard, result, data) = self.hear().unwrap();
        assert_eq!(heard, id);
        (result, data)
    }

    fn file(&mut self, name: &[u8]) -> FileId {
        let made = self.done(&Request::CreateDirectory { name: b"d" }).0;
        let found = made.or_else(|_| self.done(&Request::OpenDirectory { name: b"d" }).0);
        let directory = DirectoryId(u32::try_from(found.unwrap()).unwrap());
        let made = self.done(&Request::CreateFile { directory, name }).0;
        let found = made.or_else(|_| self.done(&Request::OpenFile { directory, name }).0);
        FileId(u32::try_from(found.unwrap()).unwrap())
    }
}

fn options(dir: &Path) -> ServerOptions {
    let reserve = Reserve { most: 1 << 20, one_in: 1000 };
    let (capacity, items) = (1 << 30, 1000);
    let options = ServerOptions::new(dir.join("volume"), dir.join("socket"));
    ServerOptions { capacity: Some(capacity), items, reserve, ..options }
}

/// Keeps what is written to the first file, and is never done with bytes of 0xFF, or a read of 666.
struct Looping;

impl Application for Looping {
    fn frame(&self, _: &[u8], _: &mut Cursor) -> Framing {
        Framing::Foreign
    }

    fn frame_answer(&self, _: &[u8], _: &mut Cursor) -> Framing {
        Framing::Foreign
    }

    fn off_pred(&self, _: &[u8], _: &dyn Lookup, _: &mut Division) {}

    fn off_func(&self, _: &[u8], _: &dyn Lookup) -> Option<ReadOp> {
        None
    }

    fn answer(&self, _: &[u8], _: ReadOp, _: &[u8]) -> Option<Answer> {
        None
    }

    fn cache(&self, write: WriteOp<'_>, items: &mut Vec<(Key, Item)>) {
        if write.bytes.first() == Some(&0xFF) {
            loop {
                std::hint::spin_loop();
            }
        }
        items.push((write.offset, [1; 4]));
    }

    fn invalidate(&self, read: ReadOp, _: &mut Vec<Key>) {
        if read.offset == 666 {
            loop {
                std::thread::park();
            }
        }
    }
}

/// What waits for a call that never returns is answered all the same, what waits behind it, too,
/// the table is empty, and the server goes on, and ends.
#[test]
fn a_hook_that_never_returns_keeps_nobody_waiting() {
    for call in [Call::Cache, Call::Invalidate] {
        let dir = tempfile::tempdir().unwrap();
        let application = Some(Arc::new(Looping) as Arc<dyn Application>);
        let options = ServerOptions { application, ..options(dir.path()) };
        let health = Arc::clone(&options.health);
        let server = Server::start(options).unwrap();
        let mut host = Host::attach(&dir.path().join("socket"), 1).unwrap();
        let file = host.file(b"f");
        let write = |offset, data| Request::Write { file, offset, data };
        assert_eq!(host.done(&write(0, &[7; 1000])).0, Ok(0));
        assert_eq!(server.table().get(0), Some([1; 4]));
        let changes = Changes { items: vec![(1, [2; 4])], ..Changes::default() }.emit();
        assert_eq!(host.done(&Request::Table { changes: &changes }).0, Ok(0));
        let lost = match call {
            Call::Cache => write(100, &[0xFF; 10]),
            _ => Request::Read { file, offset: 666, bytes: 10 },
        };
        let asked = [
            host.ask(&lost),
            host.ask(&write(200, &[8; 10])),
            host.ask(&Request::Read { file, offset: 200, bytes: 10 }),
            host.ask(&Request::Table { changes: &changes }),
        ];
        for id in asked {
            let (heard, result, _) = host.hear().unwrap();
            assert_eq!((heard, result), (id, Ok(0)));
        }
        assert_eq!(health.lost().iter().map(|lost| lost.call).collect::<Vec<_>>(), [call]);
        assert_eq!(server.table().get(0), None, "nobody says any more what becomes wrong");
        // What the host says itself counts on.
        assert_eq!(host.done(&Request::Table { changes: &changes }).0, Ok(0));
        assert_eq!(host.done(&write(300, &[0xFF; 10])).0, Ok(0));
        assert_eq!(server.table().get(1), Some([2; 4]));
        server.stop().unwrap();
    }
}

/// Told to end while a call is under way that never will: nobody has found out yet.
#[test]
fn a_server_ends_amid_a_hook_that_never_returns() {
    let dir = tempfile::tempdir().unwrap();
    let application = Some(Arc::new(Looping) as Arc<dyn Application>);
    let server = Server::start(ServerOptions { application, ..options(dir.path()) }).unwrap();
    let mut host = Host::attach(&dir.path().join("socket"), 1).unwrap();
    let file = host.file(b"f");
    assert_eq!(host.done(&Request::Write { file, offset: 0, data: &[7; 1000] }).0, Ok(0));
    host.ask(&Request::Read { file, offset: 666, bytes: 10 });
    server.stop().unwrap();
}

#[test]
fn hosts_are_served_and_find_what_they_wrote_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(options(dir.path())).unwrap();
    let mut host = Host::attach(&dir.path().join("socket"), 1).unwrap();
    let file = host.file(b"f");
    let data: Vec<u8> = (0..100_000u32).map(|n| n.to_le_bytes()[0]).collect();
    assert_eq!(host.done(&Request::Write { file, offset: 5, data: &data }).0, Ok(0));
    let read = Request::Read { file, offset: 5, bytes: 100_000 };
    assert_eq!(host.done(&read), (Ok(0), data.clone()));
    assert_eq!(host.done(&Request::Flush { file }).0, Ok(0));
    // Whole blocks go both ways without a copy.
    let before = server.ledger().snapshot();
    host.done(&Request::Write { file, offset: 0, data: &data[..8192] }).0.unwrap();
    host.done(&Request::Read { file, offset: 0, bytes: 8192 }).0.unwrap();
    host.done(&Request::Size { file }).0.unwrap();
    assert_eq!(server.ledger().snapshot().since(&before).count(Count::Copied), 0);
    host.done(&Request::Write { file, offset: 5, data: &data[..8192] }).0.unwrap();
    // Many at once, answered in order.
    let asked: Vec<u64> =
        (0..200).map(|n| host.ask(&Request::Read { file, offset: n * 64, bytes: 64 })).collect();
    let heard: Vec<u64> = asked.iter().map(|_| host.hear().unwrap().0).collect();
    assert_eq!(asked, heard);
    // It sleeps when there is nothing to do, and is woken.
    let begun = Instant::now();
    while server.ledger().snapshot().count(Count::Sleeps) < 10 {
        assert!(begun.elapsed() < LIMIT, "it never sleeps");
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(host.done(&Request::Size { file }).0, Ok(100_005));
    }
    server.stop().unwrap();
    assert!(host.hear().is_none(), "who waits is told that the DPU side is gone");
    let server = Server::start(options(dir.path())).unwrap();
    let mut host = Host::attach(&dir.path().join("socket"), 1).unwrap();
    assert_eq!(host.file(b"f"), file);
    assert_eq!(host.done(&read), (Ok(0), data));
    server.stop().unwrap();
}

/// How long after the end of the DPU side one who waits learned that nobody will answer.
fn end_is_noticed_after() -> Duration {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(options(dir.path())).unwrap();
    let mut host = Host::attach(&dir.path().join("socket"), 1).unwrap();
    host.file(b"f");
    let attachment = Arc::clone(&host.attachment);
    let waiter = std::thread::spawn(move || {
        let heard = host.hear();
        (heard.is_none(), Instant::now())
    });
    std::thread::sleep(Duration::from_millis(30));
    server.stop().unwrap();
    let stopped = Instant::now();
    let (gone, noticed) = waiter.join().unwrap();
    assert!(gone && attachment.is_lost());
    noticed.saturating_duration_since(stopped)
}

/// A tenth of a second is promised, and ten seconds were asserted: the mechanism could have lost
/// nearly all of it. What this computer does besides makes it longer, so the best of some counts.
#[test]
fn the_end_of_the_dpu_side_is_noticed_in_time() {
    let mut times = (0..20).map(|_| end_is_noticed_after());
    assert!(times.any(|time| time < LOSS_NOTICED));
}

/// A host that goes, in whatever state, leaves nothing behind and disturbs nobody.
#[test]
fn hosts_come_and_go_and_break_things_alone() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(options(dir.path())).unwrap();
    let socket = dir.path().join("socket");
    let mut good = Host::attach(&socket, 1).unwrap();
    let file = good.file(b"f");
    good.done(&Request::Write { file, offset: 0, data: &[1; 65536] }).0.unwrap();
    for round in 0..30u64 {
        let mut other = Host::attach(&socket, 1).unwrap();
        match round % 3 {
            // Amid its requests.
            0 => (0..50).for_each(|n| {
                other.ask(&Request::Read { file, offset: n * 512, bytes: 1024 });
            }),
            // With a ring that cannot be followed: it is cut off.
            1 => {
                let region = other.attachment.region();
                let (requests, _) = other.attachment.shape().rings(1).unwrap();
                region.write_from(requests.at(), &[0xFF; 256]).unwrap();
                other.attachment.notify();
                let from = Instant::now();
                while !other.attachment.look() {
                    other.attachment.notify();
                    assert!(from.elapsed() < LIMIT, "it was not cut off");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            _ => {}
        }
        drop(other);
        let read = good.done(&Request::Read { file, offset: round, bytes: 4096 });
        assert_eq!(read, (Ok(0), vec![1; 4096]));
    }
    // What is no attachment is refused with a reason.
    let region_too_short = Shape::new(64, 1 << 28, 1 << 28, 8).unwrap();
    let refused = Attachment::attach(&socket, region_too_short, LIMIT).unwrap_err();
    assert!(refused.to_string().contains("too large"), "{refused}");
    assert_eq!(good.done(&Request::Size { file }).0, Ok(65536));
    drop(good);
    server.stop().unwrap();
}

/// A host in another role or of another version, or one that talks nonsense, learns why it is not
/// served; the others stay.
#[test]
fn a_hello_that_is_not_for_a_page_server_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(options(dir.path())).unwrap();
    let socket = dir.path().join("socket");
    let good = Host::attach(&socket, 1).unwrap();
    let refusal = |bytes: &[u8]| {
        let peer = connect(&socket).unwrap();
        rustix::net::send(peer.fd(), bytes, rustix::net::SendFlags::empty()).unwrap();
        match peer.receive_by(clock::now().after(LIMIT)).unwrap() {
            Received::Message(Message::Refused { reason, text }, _) => (reason, text),
            other => panic!("{other:?}"),
        }
    };
    let (session, region_len) = (SessionId(7), 1 << 20);
    let (queues, depth, cache_at, cache_len) = (1, 8, 0, 0);
    let queues = QueuesHello {
        session,
        region_len,
        queues,
        depth,
        cache_at,
        cache_len,
        company: Company::default(),
        outlives: false,
    };
    let queues = Message::Hello(Hello::Queues(queues)).emit();
    let rings = Message::Hello(Hello::Rings(good.attachment.shape().hello())).emit();
    let with = |at: usize, value: u8| {
        let mut bytes = rings.clone();
        bytes[at] = value;
        bytes
    };
    for (bytes, reason, says) in [
        (queues, Reason::Role, "queues of a volume"),
        (with(12, 4), Reason::Role, "reserved"),
        (with(12, 200), Reason::Role, "unknown role 200"),
        (with(14, 2), Reason::Version, "version 2"),
        (with(4, 3), Reason::Version, "version 3"),
        (with(24, 1), Reason::Malformed, "out of range"),
        (rings.clone(), Reason::Malformed, "exactly one region and one socket"),
        (Message::Detach.emit(), Reason::Malformed, "not for the DPU side"),
    ] {
        let (refused, text) = refusal(&bytes);
        assert_eq!(refused, reason, "{text}");
        assert!(text.contains(says), "{text}");
    }
    assert!(!good.attachment.look());
    drop(good);
    server.stop().unwrap();
}

#[test]
fn what_is_not_a_volume_is_refused_with_a_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("volume"), vec![0x5A; 1 << 20]).unwrap();
    let error = Server::start(options(dir.path())).err().unwrap();
    let text = error.to_string();
    assert!(text.contains("volume: ") && text.contains("something else"), "{text}");
    assert_eq!(std::fs::read(dir.path().join("volume")).unwrap(), vec![0x5A; 1 << 20]);
}

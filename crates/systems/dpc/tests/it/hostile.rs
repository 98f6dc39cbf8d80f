//! Hosts that do not keep to the rules: each gets an error, nobody else notices (rows C1, C7;
//! limits).

use outboard_base::task::poll_once;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outboard_base::ledger::Ledger;
use outboard_base::task::{Spawn, Work};
use outboard_base::{Cred, Errno, Fh, Ino, Result, Rng, SessionId, Time, Timestamp};
use outboard_dpc::dpu::{AttachmentId, Limits, Service};
use outboard_kv::mem::MemKv;
use outboard_kvfs::{Kvfs, Options};
use outboard_link::Region;
use outboard_link::dma::{Direct, Dma};
use outboard_link::events::Sender;
use outboard_link::layout::Layout;
use outboard_link::queue::nvmefs::{Initiator, Target};
use outboard_link::queue::{Completion, HostQueue, Span, Submission};
use outboard_link::registers::Registers;
use outboard_medium::mem::MemMedium;
use outboard_volume::{Answer, Caller, NoVolume, Payload, Volume as AnyVolume, VolumeEvent};
use outboard_wire::file::{Attr, Header, Op, Reply, Request};
use outboard_wire::nvmefs::{Dispatch, QueueError, Status};
use outboard_wire::regs::registers_len;

use crate::simulation::finish;

type Volume = Kvfs<MemKv, MemMedium>;

#[derive(Default)]
struct Works(RefCell<Vec<Work>>);

impl Spawn for Works {
    fn spawn(&self, mut work: Work) {
        if poll_once(work.as_mut()).is_pending() {
            self.0.borrow_mut().push(work);
        }
    }
}

impl Works {
    fn pass(&self) {
        for work in self.0.take() {
            self.spawn(work);
        }
    }
}

/// A host whose every byte the test writes itself.
struct Host {
    initiator: Initiator,
    session: SessionId,
    id: AttachmentId,
}

struct Side<V = Volume, S = NoVolume> {
    service: Service<V, S>,
    works: Works,
}

impl Side {
    fn new(limits: Limits) -> Side {
        let now = Timestamp { sec: 1, nsec: 0 };
        let options = Options { capacity: 64 << 20, segment: 1 << 20, id: 1, ..Options::default() };
        let volume = finish(Kvfs::open(MemKv::new(1), MemMedium::new(1), options, now)).unwrap();
        let clock = Box::new(|| Time(0));
        let wall = Box::new(move || now);
        let service = Service::new(Arc::new(volume), limits, clock, wall);
        Side { service, works: Works::default() }
    }
}

impl<V: AnyVolume, S: AnyVolume> Side<V, S> {
    fn attach(&mut self, session: u64, peer: Cred) -> Option<Host> {
        let layout = Layout::new(1, 16).unwrap();
        let region = Region::anonymous(layout.region_len());
        let pages = Region::anonymous(registers_len(1, 16));
        let registers = Registers::create(pages, layout, 1).unwrap();
        let ledger = Arc::new(Ledger::new());
        let initiator =
            Initiator::new(Arc::clone(&region), &registers, 0, Arc::clone(&ledger)).unwrap();
        let dma: Arc<dyn Dma> = Arc::new(Direct::new(region));
        let target = Target::new(Arc::clone(&dma), &registers, 0, Arc::clone(&ledger)).unwrap();
        let sender = Sender::new(dma, registers, ledger);
        let session = SessionId(session);
        let caller =
            Caller { attachment: session, trusted: peer.is_root(), peer, keeps_times: false };
        let id = self.service.attach(caller, vec![target], sender)?;
        Some(Host { initiator, session, id })
    }

    fn pass(&mut self) {
        self.service.poll(&self.works);
        self.works.pass();
        self.service.flush(|_, _| ());
    }

    /// Sends one command and waits for its completion.
    fn ask(&mut self, host: &mut Host, submission: &Submission<'_>) -> Completion {
        let cid = host.initiator.acquire().unwrap();
        host.initiator.submit(cid, submission).unwrap();
        let _asleep = host.initiator.ring();
        let mut completions = Vec::new();
        for _ in 0..1000 {
            self.pass();
            if host.initiator.poll(1, &mut completions) > 0 {
                host.initiator.release(cid).unwrap();
                return completions.pop().unwrap();
            }
        }
        panic!("never completed");
    }
}

fn header(session: SessionId, cred: Cred, request: &Request<'_>) -> Vec<u8> {
    let sequence = u64::from(request.op().changes());
    let header = Header { session, sequence, cred, ..Header::default() };
    let mut bytes = vec![0; request.encoded_len(&header)];
    request.encode(&header, &mut bytes).unwrap();
    bytes
}

fn plain(header: &[u8]) -> Submission<'_> {
    let none = Span::NONE;
    let dispatch = Dispatch::Kv;
    Submission { dispatch, header, write: none, read: none, reply_header: 128 }
}

#[test]
fn what_breaks_the_rules_is_refused_and_the_next_command_is_served() {
    let mut side = Side::new(Limits::default());
    let mut host = side.attach(1, Cred::root()).unwrap();
    let getattr = Request::Getattr { ino: Ino::ROOT, fh: Fh::NONE };
    let good = header(host.session, Cred::root(), &getattr);
    let foreign = header(SessionId(2), Cred::root(), &getattr);
    let unknown: Vec<u8> = 999u16.to_le_bytes().into_iter().chain(good[2..].to_vec()).collect();
    let cases = [
        // C7: the other stack's bit.
        (Submission { dispatch: Dispatch::Shared, ..plain(&good) }, QueueError::BadDispatch),
        // Another session's name.
        (plain(&foreign), QueueError::InvalidHeader),
        // Bytes that are no header, and none at all.
        (plain(&good[..100]), QueueError::InvalidHeader),
        (plain(&[]), QueueError::InvalidHeader),
        // Payload where none belongs.
        (Submission { write: Span::first(10), ..plain(&good) }, QueueError::InvalidHeader),
        // No room for the reply header.
        (Submission { reply_header: 0, ..plain(&good) }, QueueError::InvalidLength),
    ];
    for (submission, error) in cases {
        let ended = side.ask(&mut host, &submission);
        assert_eq!(ended.status, Status::Queue(error), "{submission:?}");
        assert_eq!(side.ask(&mut host, &plain(&good)).status, Status::Ok);
    }
    assert_eq!(side.ask(&mut host, &plain(&unknown)).status, Status::Errno(Errno::ENOSYS));
    // A read that asks for more than it has room for.
    let create = Request::Create { parent: Ino::ROOT, name: b"f", mode: 0o644, umask: 0, flags: 2 };
    let created = header(host.session, Cred::root(), &create);
    let created = side.ask(&mut host, &plain(&created));
    assert_eq!(created.status, Status::Ok);
    assert!(side.service.stats().misrouted >= 3 && side.service.stats().malformed >= 2);
}

/// Whatever the header's bytes, something is answered and the service goes on.
#[test]
fn random_headers_are_answered() {
    let mut side = Side::new(Limits::default());
    let mut host = side.attach(1, Cred::root()).unwrap();
    let mut rng = Rng::new(7);
    let lookup = Request::Lookup { parent: Ino::ROOT, name: b"name" };
    let good = header(host.session, Cred::root(), &lookup);
    for round in 0..3_000 {
        let mut bytes = good.clone();
        for _ in 0..=rng.below(6) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.next_u64() as u8;
        }
        if round % 3 == 0 {
            bytes[..2].copy_from_slice(&(rng.below(40) as u16).to_le_bytes());
        }
        let read = Span::first(rng.below(9_000) as u32);
        side.ask(&mut host, &Submission { read, ..plain(&bytes) });
    }
    let getattr = Request::Getattr { ino: Ino::ROOT, fh: Fh::NONE };
    let good = header(host.session, Cred::root(), &getattr);
    assert_eq!(side.ask(&mut host, &plain(&good)).status, Status::Ok);
}

/// An ordinary user's attachment speaks for that user alone.
#[test]
fn a_peer_cannot_claim_to_be_somebody_else() {
    let mut side = Side::new(Limits::default());
    let mut host = side.attach(1, Cred::user(1000, 1000)).unwrap();
    let mkdir = Request::Mkdir { parent: Ino::ROOT, name: b"d", mode: 0o755, umask: 0 };
    let as_root = header(host.session, Cred::root(), &mkdir);
    assert_eq!(side.ask(&mut host, &plain(&as_root)).status, Status::Errno(Errno::EPERM));
    let as_self = header(host.session, Cred::user(1000, 1000), &mkdir);
    assert_eq!(side.ask(&mut host, &plain(&as_self)).status, Status::Errno(Errno::EACCES));
}

#[test]
fn a_session_is_served_once_until_its_last_command_has_ended() {
    let mut side = Side::new(Limits::default());
    let host = side.attach(1, Cred::root()).unwrap();
    assert!(side.attach(1, Cred::root()).is_none());
    side.service.leave(host.id);
    assert!(side.attach(1, Cred::root()).is_none(), "not swept yet");
    let gone = side.service.sweep();
    assert_eq!((gone.len(), gone[0].session), (1, SessionId(1)));
    assert!(side.attach(1, Cred::root()).is_some());
}

/// A host that fills its queues with large writes is not taken from beyond its limit, and comes
/// through in the end; another host is served meanwhile.
#[test]
fn payload_under_way_is_limited_and_no_host_starves_another() {
    let limits = Limits { bytes_max: 100_000, ..Limits::default() };
    let mut side = Side::new(limits);
    let mut greedy = side.attach(1, Cred::root()).unwrap();
    let mut modest = side.attach(2, Cred::root()).unwrap();
    let create = Request::Create { parent: Ino::ROOT, name: b"f", mode: 0o644, umask: 0, flags: 2 };
    let bytes = header(greedy.session, Cred::root(), &create);
    let created = side.ask(&mut greedy, &plain(&bytes));
    let fh = Fh(created.result);
    let write = Request::Write { ino: Ino::FIRST, fh, offset: 0, flags: 0 };
    assert_eq!(write.op(), Op::Write);
    let bytes = header(greedy.session, Cred::root(), &write);
    for _ in 0..15 {
        let cid = greedy.initiator.acquire().unwrap();
        let submission = Submission { write: Span::first(60_000), ..plain(&bytes) };
        greedy.initiator.submit(cid, &submission).unwrap();
    }
    let _asleep = greedy.initiator.ring();
    let getattr = Request::Getattr { ino: Ino::ROOT, fh: Fh::NONE };
    let bytes = header(modest.session, Cred::root(), &getattr);
    assert_eq!(side.ask(&mut modest, &plain(&bytes)).status, Status::Ok);
    let mut completions = Vec::new();
    for _ in 0..10_000 {
        side.pass();
        greedy.initiator.poll(16, &mut completions);
    }
    assert_eq!(completions.len(), 15);
    assert!(completions.iter().all(|ended| ended.status == Status::Ok), "{completions:?}");
}

/// A volume that knows one file, its own number, and what it was asked.
struct Toy {
    number: u64,
    asked: AtomicU32,
}

impl AnyVolume for Toy {
    async fn handle(
        &self,
        _: &Caller,
        _: &Header,
        _: Request<'_>,
        _: Payload,
        _: Timestamp,
    ) -> Result<Answer> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(Reply::Offset(self.number).into())
    }

    fn detach(&self, _: SessionId) {}

    fn is_back(&self, _: SessionId) {}

    fn take_events(&self) -> Vec<VolumeEvent> {
        Vec::new()
    }

    async fn cacheable(&self, _: Ino) -> Result<(Attr, bool)> {
        Err(Errno::EOPNOTSUPP)
    }

    async fn may_write(&self, _: &Caller, _: Ino) -> Result<bool> {
        Ok(false)
    }

    async fn write_back(
        &self,
        _: SessionId,
        _: Ino,
        _: &[(u64, &[u8])],
        _: Option<Timestamp>,
    ) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn opened(&self, _: SessionId, _: Ino, _: Fh) -> Option<u32> {
        None
    }

    async fn truncate(&self, _: Ino, _: Timestamp) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn notify_changed(&self, _: SessionId, _: Ino) {}

    async fn reserve(&self, _: u64, _: u64) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn unreserve(&self, _: u64, _: u64) {}
}

/// Bit 10 says which of two volumes a command is for; where there is only one, commands for the
/// other are refused before anybody reads them.
#[test]
fn two_volumes_are_served_side_by_side_and_one_alone_refuses_the_other_s_commands() {
    let toy = |number| Arc::new(Toy { number, asked: AtomicU32::new(0) });
    let wall = || Timestamp { sec: 1, nsec: 0 };
    let (kv, shared) = (toy(1), toy(2));
    let service = Service::of_both(
        Arc::clone(&kv),
        Arc::clone(&shared),
        Limits::default(),
        Box::new(|| Time(0)),
        Box::new(wall),
    );
    let mut side = Side { service, works: Works::default() };
    let mut host = side.attach(1, Cred::root()).unwrap();
    let seek = Request::Lseek { ino: Ino(7), fh: Fh(1), offset: 0, whence: 0 };
    let seek = header(host.session, Cred::root(), &seek);
    for round in 1..=3 {
        for (dispatch, volume) in [(Dispatch::Kv, &kv), (Dispatch::Shared, &shared)] {
            let ended = side.ask(&mut host, &Submission { dispatch, ..plain(&seek) });
            assert_eq!((ended.status, ended.result), (Status::Ok, volume.number));
            assert_eq!(volume.asked.load(Ordering::Relaxed), round);
        }
    }
    assert_eq!(side.service.stats().misrouted, 0);

    let none = Arc::new(NoVolume);
    let (clock, shared) = (Box::new(|| Time(0)), toy(3));
    let service =
        Service::of_both(none, Arc::clone(&shared), Limits::default(), clock, Box::new(wall));
    let mut side = Side { service, works: Works::default() };
    let mut host = side.attach(1, Cred::root()).unwrap();
    let refused = side.ask(&mut host, &plain(&seek));
    assert_eq!(refused.status, Status::Queue(QueueError::BadDispatch));
    let dispatch = Dispatch::Shared;
    let ended = side.ask(&mut host, &Submission { dispatch, ..plain(&seek) });
    assert_eq!((ended.status, ended.result), (Status::Ok, 3));
    assert_eq!((shared.asked.load(Ordering::Relaxed), side.service.stats().misrouted), (1, 1));
}

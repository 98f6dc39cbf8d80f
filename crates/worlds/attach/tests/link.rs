//! The link between two processes: attach, answer, sleep, die, come back.
//!
//! The DPU side of these tests is this same program run again: `dpu_process` below does nothing
//! unless its socket is named in the environment.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a test may panic"
)]

mod huge_pages;
#[path = "../../os/tests/skips/mod.rs"]
mod skips;

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outboard_attach::link::{
    AttachFailure, DpuAttachment, HostLink, HostMemory, Listener, Peer, Received, Terms, connect,
    control, wait,
};
use outboard_base::ledger::{Count, Ledger};
use outboard_base::{SessionId, Time};
use outboard_link::dma::{Counted, Direct, Dma};
use outboard_link::events::Sender;
use outboard_link::pace::{Config, Pace};
use outboard_link::queue::nvmefs::{Initiator, Target};
use outboard_link::queue::{Arrival, Command, DpuQueue, HostQueue, Span, Submission};
use outboard_os::clock;
use outboard_os::event_loop::{EventLoop, Pass, Polled};
use outboard_os::futex;
use outboard_os::shm::Shared;
use outboard_os::wakeup::Wakeup;
use outboard_wire::attach::{Company, Hello, Message, QueuesHello, Reason};
use outboard_wire::event::Event;
use outboard_wire::nvmefs::{Dispatch, Status};
use rustix::event::{PollFd, PollFlags};

const SOCKET: &str = "OUTBOARD_TEST_SOCKET";
const PATIENCE: Duration = Duration::from_secs(60);

// The DPU side.

struct Served {
    peer: Peer,
    attachment: DpuAttachment,
    targets: Vec<Target>,
    sender: Sender,
    unanswered: Vec<Command>,
}

#[derive(Default)]
struct Dpu {
    fresh: Vec<Peer>,
    served: Vec<Served>,
    ledger: Arc<Ledger>,
    dropped: usize,
}

/// Commands whose header begins with this byte are answered never.
const BLACK_HOLE: u8 = 0xFF;
/// Commands whose header begins with this byte post an event first.
const TELL: u8 = 0xFE;

impl Dpu {
    fn pass(&mut self) -> usize {
        let mut work = 0;
        let mut arrivals = Vec::new();
        for served in &mut self.served {
            for target in &mut served.targets {
                work += target.poll(64, &mut arrivals);
                for arrival in arrivals.drain(..) {
                    let Arrival::Command(command) = arrival else { continue };
                    match command.header().first() {
                        Some(&BLACK_HOLE) => {
                            served.unanswered.push(command);
                            continue;
                        }
                        Some(&TELL) => {
                            served.sender.post(&Event::LockGranted { ticket: 7, errno: None });
                        }
                        _ => {}
                    }
                    let mut data = vec![0; command.write_len() as usize];
                    command.read_data(0, &mut data).unwrap();
                    data.iter_mut().for_each(|byte| *byte = !*byte);
                    let room = data.len().min(command.read_len() as usize);
                    command.write_data(0, &data[..room]).unwrap();
                    let result = data.len() as u64;
                    target.complete(command, Status::Ok, result, &[]);
                }
                if target.flush() {
                    served.attachment.interrupt(target.queue()).unwrap();
                }
            }
            if served.sender.flush() {
                served.attachment.interrupt_events().unwrap();
            }
        }
        work
    }

    fn may_sleep(&mut self) -> bool {
        let mut asleep = true;
        for target in self.served.iter_mut().flat_map(|served| &mut served.targets) {
            asleep &= target.may_sleep();
        }
        asleep
    }

    fn awake(&mut self) {
        self.served.iter_mut().flat_map(|served| &mut served.targets).for_each(DpuQueue::awake);
    }

    fn sleep(&self, wakeup: &Wakeup, listener: &Listener) {
        let peers = self.fresh.iter().chain(self.served.iter().map(|served| &served.peer));
        let fds = [wakeup.fd(), listener.fd()].into_iter().chain(peers.map(Peer::fd));
        let mut fds: Vec<PollFd<'_>> =
            fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        rustix::event::poll(&mut fds, None).unwrap();
    }

    fn sockets(&mut self, wakeup: &Wakeup, listener: &Listener, terms: &Terms) -> bool {
        while let Some(peer) = listener.accept().unwrap() {
            self.fresh.push(peer);
        }
        for peer in std::mem::take(&mut self.fresh) {
            match peer.receive().unwrap() {
                Received::Nothing => self.fresh.push(peer),
                Received::Message(Message::Hello(Hello::Queues(hello)), fds) => {
                    self.attach(peer, &hello, fds, wakeup, terms);
                }
                Received::Message(Message::Control { id, text }, _) => {
                    if text == "stop" {
                        return false;
                    }
                    let groups = peer.cred().unwrap().groups.len();
                    let cred = peer.cred().unwrap();
                    let text = format!(
                        "{text} {} {} {} {} {groups}",
                        cred.pid,
                        cred.uid,
                        self.served.len(),
                        self.dropped
                    );
                    peer.send(&Message::ControlReply { id, text }, &[]).unwrap();
                }
                Received::Message(..) | Received::Garbage(_) | Received::Closed => {}
            }
        }
        let before = self.served.len();
        self.served.retain(|served| match served.peer.receive() {
            Ok(Received::Nothing) => true,
            Ok(Received::Message(Message::Detach, _)) => {
                served.peer.send(&Message::Detach, &[]).unwrap();
                false
            }
            _ => false,
        });
        self.dropped += before - self.served.len();
        true
    }

    fn attach(
        &mut self,
        peer: Peer,
        hello: &QueuesHello,
        fds: Vec<std::os::fd::OwnedFd>,
        wakeup: &Wakeup,
        terms: &Terms,
    ) {
        let Ok(attachment) = DpuAttachment::admit(&peer, hello, fds, terms, wakeup) else { return };
        let direct = Direct::new(Arc::clone(attachment.region()));
        let dma: Arc<dyn Dma> = Arc::new(Counted::new(direct, Arc::clone(&self.ledger)));
        let targets = attachment.targets(&dma, &self.ledger);
        let sender = attachment.sender(&dma, &self.ledger);
        self.served.push(Served { peer, attachment, targets, sender, unanswered: Vec::new() });
    }
}

fn serve(socket: &Path) {
    let (wakeup, listener) = (Wakeup::new().unwrap(), Listener::bind(socket, 0o600, None).unwrap());
    let instance = u64::from(std::process::id());
    let terms =
        Terms { instance, queues_max: 4, depth_max: 64, region_max: 1 << 30, ..Terms::default() };
    let mut serving = Serving { dpu: Dpu::default(), wakeup, listener, terms, looks: 0 };
    EventLoop::new(Config::default()).run(&mut serving).unwrap();
}

/// The other process in its loop.
struct Serving {
    dpu: Dpu,
    wakeup: Wakeup,
    listener: Listener,
    terms: Terms,
    looks: u32,
}

impl Polled for Serving {
    fn pass(&mut self, _: &mut Pace) -> io::Result<Pass> {
        let Serving { dpu, wakeup, listener, terms, looks } = self;
        *looks = looks.wrapping_add(1);
        if *looks % 4096 == 1 && !dpu.sockets(wakeup, listener, terms) {
            return Ok(Pass::Over);
        }
        Ok(Pass::found(dpu.pass(), clock::now()))
    }

    fn begin_sleep(&mut self, now: Time) -> io::Result<Option<Time>> {
        if self.dpu.may_sleep() {
            return Ok(Some(now.after(PATIENCE)));
        }
        self.dpu.awake();
        Ok(None)
    }

    fn wait(&mut self, _: Duration) -> io::Result<()> {
        self.dpu.sleep(&self.wakeup, &self.listener);
        Ok(())
    }

    fn end_sleep(&mut self, _: Time) -> io::Result<()> {
        while self.wakeup.drain()? {}
        self.dpu.awake();
        self.looks = 0;
        Ok(())
    }
}

#[test]
fn dpu_process() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        serve(Path::new(&socket));
    }
}

// The host side.

struct Place {
    _dir: tempfile::TempDir,
    socket: PathBuf,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("dpu.sock");
    Place { _dir: dir, socket }
}

struct DpuProcess(Child);

impl DpuProcess {
    fn start(socket: &Path) -> DpuProcess {
        let child = Process::new(std::env::current_exe().unwrap())
            .args(["--exact", "dpu_process", "--nocapture"])
            .env(SOCKET, socket)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        DpuProcess(child)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Processor time so far, in clock ticks (10 ms).
    fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// Waits until every thread is in this state: `S` asleep, `T` stopped.
    fn wait_for_state(&self, state: char) {
        let is_so = || {
            let threads = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
            threads.flatten().all(|thread| {
                let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(state))
            })
        };
        eventually("its threads are in the state", || is_so().then_some(()));
    }
}

impl Drop for DpuProcess {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = clock::now().after(PATIENCE);
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(clock::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn attach(socket: &Path, memory: &HostMemory) -> HostLink {
    eventually("the DPU listens", || match HostLink::attach(socket, memory, PATIENCE) {
        Ok(link) => Some(link),
        Err(AttachFailure::Io(_)) => None,
        Err(other) => panic!("{other}"),
    })
}

struct Host {
    memory: HostMemory,
    link: HostLink,
    queues: Vec<Initiator>,
    ledger: Arc<Ledger>,
    pace: Pace,
}

impl Host {
    fn new(socket: &Path, session: u64, queues: u16, depth: u16) -> Host {
        Host::over(socket, HostMemory::create(SessionId(session), queues, depth).unwrap())
    }

    fn over(socket: &Path, memory: HostMemory) -> Host {
        let link = attach(socket, &memory);
        let ledger = Arc::new(Ledger::new());
        let queues = link.initiators(&memory, &ledger).unwrap();
        Host { memory, link, queues, ledger, pace: Pace::new(Config::default()) }
    }

    fn send(&mut self, queue: usize, header: &[u8], len: u32) {
        let initiator = &mut self.queues[queue];
        let cid = initiator.acquire().unwrap();
        initiator.write_buffer(cid, 0, &vec![7; len as usize]).unwrap();
        let sub = Submission {
            dispatch: Dispatch::Kv,
            header,
            write: Span::first(len),
            read: Span { offset: 1 << 19, len },
            reply_header: 0,
        };
        initiator.submit(cid, &sub).unwrap();
        if initiator.ring() {
            self.link.notify();
        }
    }

    fn receive(&mut self, queue: usize, len: u32, patience: Duration) -> bool {
        let (mut out, initiator) = (Vec::new(), &mut self.queues[queue]);
        let end: Time = clock::now().after(patience);
        let found = wait(initiator, &self.link, &mut self.pace, &self.ledger, end, &mut out);
        let found = found.unwrap();
        for done in &out {
            assert_eq!((done.status, done.result), (Status::Ok, u64::from(len)));
            let mut data = vec![0; len as usize];
            initiator.read_buffer(done.cid, 1 << 19, &mut data).unwrap();
            assert!(data.iter().all(|byte| *byte == !7));
            initiator.release(done.cid).unwrap();
        }
        found > 0
    }

    fn echo(&mut self, queue: usize, len: u32) {
        self.send(queue, &[1; 128], len);
        assert!(self.receive(queue, len, PATIENCE), "answered");
    }
}

#[test]
fn commands_cross_two_processes_awake_and_asleep() {
    let place = place();
    let dpu = DpuProcess::start(&place.socket);
    let mut host = Host::new(&place.socket, 1, 2, 16);
    for round in 0..2000u32 {
        host.echo(usize::from(round % 2 == 1), round * 17 % 20_000);
        if round % 100 == 0 {
            dpu.wait_for_state('S');
        }
    }
    assert!(host.ledger.snapshot().count(Count::Wakes) >= 10, "the DPU slept and was woken");
    host.link.detach(PATIENCE).unwrap();
    let answer = control(&place.socket, "status", PATIENCE).unwrap();
    let me = std::process::id();
    let uid = rustix::process::geteuid().as_raw();
    assert!(answer.starts_with(&format!("status {me} {uid} 0 1 ")), "{answer}");
}

#[test]
fn an_idle_link_uses_no_processor() {
    let place = place();
    let dpu = DpuProcess::start(&place.socket);
    let mut host = Host::new(&place.socket, 1, 4, 64);
    host.echo(0, 100);
    dpu.wait_for_state('S');
    let before = dpu.ticks();
    std::thread::sleep(Duration::from_millis(1500));
    let spent = dpu.ticks() - before;
    assert!(spent <= 1, "{} ms of processor time in 1.5 s of nothing", spent * 10);
    host.echo(3, 100);
}

#[test]
fn a_killed_dpu_is_noticed_and_the_next_one_answers_what_it_did_not() {
    let place = place();
    let mut dpu = DpuProcess::start(&place.socket);
    let mut host = Host::new(&place.socket, 9, 1, 8);
    host.echo(0, 10);
    let first_life = host.link.instance();
    // Four commands reach a DPU that will not answer, because it is stopped before it looks.
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(dpu.0.id()).unwrap()).unwrap(),
        rustix::process::Signal::STOP,
    )
    .unwrap();
    // A signal takes its time to another processor.
    dpu.wait_for_state('T');
    for len in [100, 100, 100, 100] {
        host.send(0, &[2; 64], len);
    }
    dpu.kill();
    // A thread of the host waits for an answer while another notices the loss.
    std::thread::scope(|scope| {
        let (link, ledger) = (&host.link, &host.ledger);
        let initiator = &mut host.queues[0];
        let sleeper = scope.spawn(move || {
            let mut pace = Pace::new(Config { spin: Duration::ZERO, ..Config::default() });
            let end = clock::now().after(PATIENCE);
            wait(initiator, link, &mut pace, ledger, end, &mut Vec::new()).unwrap()
        });
        eventually("the socket closes", || match link.peer().receive() {
            Ok(Received::Closed) | Err(_) => Some(()),
            _ => None,
        });
        link.declare_lost();
        assert_eq!(sleeper.join().unwrap(), 0);
    });
    assert!(host.link.is_lost());

    let _next = DpuProcess::start(&place.socket);
    host.link = attach(&place.socket, &host.memory);
    assert_ne!(host.link.instance(), first_life);
    host.queues[0].reattach(host.link.registers()).unwrap();
    assert_eq!(host.queues[0].resubmit(), 4);
    if host.queues[0].ring() {
        host.link.notify();
    }
    while host.queues[0].in_flight() > 0 {
        assert!(host.receive(0, 100, PATIENCE), "answered by the next life");
    }
    host.echo(0, 5000);
}

/// The host side of `a_killed_host…`: attaches, leaves a command in flight, and waits to be killed.
#[test]
fn host_process() {
    if let Some(socket) = std::env::var_os("OUTBOARD_TEST_HOST_SOCKET") {
        let mut host = Host::new(Path::new(&socket), u64::from(std::process::id()), 4, 64);
        host.echo(0, 8192);
        host.send(1, &[BLACK_HOLE], 8192);
        println!("ready");
        std::thread::sleep(Duration::from_secs(600));
    }
}

#[test]
fn a_killed_host_is_dropped_and_the_others_stay() {
    let place = place();
    let dpu = DpuProcess::start(&place.socket);
    let mut host = Host::new(&place.socket, 1, 1, 8);
    host.echo(0, 10);
    let status = || control(&place.socket, "s", PATIENCE).unwrap();
    let fds = || std::fs::read_dir(format!("/proc/{}/fd", dpu.0.id())).unwrap().count();
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", dpu.0.id())).unwrap();
    let regions = || maps().lines().filter(|line| line.contains("memfd:outboard")).count();
    let (fds_before, regions_before) = (fds(), regions());
    for round in 1..=3 {
        let mut victim = Process::new(std::env::current_exe().unwrap())
            .args(["--exact", "host_process", "--nocapture"])
            .env("OUTBOARD_TEST_HOST_SOCKET", &place.socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        eventually("the other host attaches", || {
            status().split(' ').nth(3).filter(|count| *count == "2").map(drop)
        });
        host.echo(0, 100);
        victim.kill().unwrap();
        victim.wait().unwrap();
        eventually("the DPU drops it", || {
            let text = status();
            let counts: Vec<&str> = text.split(' ').skip(3).take(2).collect();
            (counts == ["1", &round.to_string()[..]]).then_some(())
        });
        host.echo(0, 100);
    }
    let is_over = || fds() <= fds_before && regions() == regions_before;
    eventually("nothing leaks", || is_over().then_some(()));
}

#[test]
fn events_wake_a_sleeping_host() {
    let place = place();
    let _dpu = DpuProcess::start(&place.socket);
    let mut host = Host::new(&place.socket, 1, 1, 8);
    let mut receiver = host.link.receiver(&host.memory).unwrap();
    for _ in 0..5 {
        let value = receiver.may_sleep().unwrap();
        host.send(0, &[TELL], 0);
        host.link.sleep_for_event(value, PATIENCE).unwrap();
        receiver.awake();
        let mut events = Vec::new();
        eventually("the event", || (receiver.poll(8, &mut events) > 0).then_some(()));
        assert_eq!(events, [Event::LockGranted { ticket: 7, errno: None }]);
        assert!(host.receive(0, 0, PATIENCE));
    }
}

#[test]
fn what_is_wrong_with_a_hello_is_said() {
    let place = place();
    let _dpu = DpuProcess::start(&place.socket);
    eventually("the DPU listens", || control(&place.socket, "x", PATIENCE).ok());
    let big = HostMemory::create(SessionId(1), 4, 128).unwrap();
    let outcome = HostLink::attach(&place.socket, &big, PATIENCE);
    assert!(matches!(outcome, Err(AttachFailure::Smaller(w)) if w.depth == 64));

    let refusal = |hello: QueuesHello, fds: &[std::os::fd::BorrowedFd<'_>]| {
        let peer = connect(&place.socket).unwrap();
        peer.send(&Message::Hello(Hello::Queues(hello)), fds).unwrap();
        match peer.receive_by(clock::now().after(PATIENCE)).unwrap() {
            Received::Message(Message::Refused { reason, text }, _) => {
                assert!(!text.is_empty());
                reason
            }
            other => panic!("{other:?}"),
        }
    };
    let hello = QueuesHello {
        session: SessionId(2),
        region_len: 1 << 20,
        queues: 1,
        depth: 8,
        cache_at: 0,
        cache_len: 0,
        company: Company::default(),
        outlives: false,
    };
    let shared = Shared::create("t", 1 << 20).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    assert_eq!(refusal(hello, &[]), Reason::Malformed);
    assert_eq!(refusal(hello, &[shared.fd(), shared.fd()]), Reason::Malformed);
    assert_eq!(refusal(hello, &[file.as_fd()]), Reason::Region);
    assert_eq!(refusal(QueuesHello { region_len: 4096, ..hello }, &[shared.fd()]), Reason::Region);
    assert_eq!(
        refusal(QueuesHello { region_len: 2 << 20, ..hello }, &[shared.fd()]),
        Reason::Region
    );
    assert_eq!(
        refusal(QueuesHello { region_len: 1 << 50, ..hello }, &[shared.fd()]),
        Reason::Region
    );
    let unsealed = rustix::fs::memfd_create(c"u", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 1 << 20).unwrap();
    assert_eq!(refusal(hello, &[unsealed.as_fd()]), Reason::Region);
}

#[test]
fn a_second_listener_is_refused_and_a_stale_socket_is_replaced() {
    let place = place();
    let first = Listener::bind(&place.socket, 0o600, None).unwrap();
    let second = Listener::bind(&place.socket, 0o600, None).unwrap_err();
    assert_eq!(second.kind(), std::io::ErrorKind::AddrInUse);
    drop(first);
    // What a killed process leaves: a socket file nobody listens on.
    let stale = Process::new(std::env::current_exe().unwrap())
        .args(["--exact", "dpu_process"])
        .env(SOCKET, &place.socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stale = DpuProcess(stale);
    eventually("it listens", || control(&place.socket, "x", PATIENCE).ok());
    stale.kill();
    assert!(place.socket.exists());
    Listener::bind(&place.socket, 0o600, None).unwrap();
    let long = place.socket.with_file_name("x".repeat(120));
    let text = Listener::bind(&long, 0o600, None).unwrap_err().to_string();
    assert!(text.contains("too long"), "{text}");
}

#[test]
fn a_socket_is_for_whom_its_mode_and_group_say() {
    use std::os::unix::fs::MetadataExt;
    let place = place();
    // Only root may give a file to a group it is not in.
    let own = rustix::process::getegid().as_raw();
    let group = if rustix::process::geteuid().is_root() { 54_321 } else { own };
    let _listener = Listener::bind(&place.socket, 0o660, Some(group)).unwrap();
    let made = std::fs::metadata(&place.socket).unwrap();
    assert_eq!((made.mode() & 0o7777, made.gid()), (0o660, group));
}

// What the link is measured against: two threads and one word of shared memory, without a protocol.

/// Who begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Sends first, and takes the time.
    Ping,
    /// Answers.
    Pong,
}

const PING_AT: u64 = 0;
const PONG_AT: u64 = 128;
/// A partner that is silent for this long is gone.
const SILENCE: Duration = Duration::from_secs(60);

impl Side {
    fn words(self) -> (u64, u64) {
        match self {
            Side::Ping => (PING_AT, PONG_AT),
            Side::Pong => (PONG_AT, PING_AT),
        }
    }
}

/// Bounces a number `rounds` times, each side spinning for the other. The first number is `from +
/// 1`, so that one region serves several runs.
fn spin(region: &outboard_link::Region, side: Side, from: u32, rounds: u32) -> std::io::Result<()> {
    bounce(
        region,
        side,
        from,
        rounds,
        |_| Ok(()),
        |theirs, wanted| {
            let limit = clock::now().after(SILENCE);
            let mut looks = 0u32;
            while region.load_u32(theirs, Ordering::Acquire).map_err(std::io::Error::other)?
                != wanted
            {
                std::hint::spin_loop();
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(1 << 16) && clock::now() >= limit {
                    return Err(std::io::ErrorKind::TimedOut.into());
                }
            }
            Ok(())
        },
    )
}

/// The same with both sides asleep on a futex while they wait.
fn doze(region: &outboard_link::Region, side: Side, from: u32, rounds: u32) -> std::io::Result<()> {
    let wake = |mine| futex::wake(region, mine, 1).map(drop);
    bounce(region, side, from, rounds, wake, |theirs, wanted| {
        loop {
            let seen = region.load_u32(theirs, Ordering::Acquire).map_err(std::io::Error::other)?;
            if seen == wanted {
                return Ok(());
            }
            if futex::wait(region, theirs, seen, SILENCE)? == futex::Woken::TimedOut {
                return Err(std::io::ErrorKind::TimedOut.into());
            }
        }
    })
}

fn bounce(
    region: &outboard_link::Region,
    side: Side,
    from: u32,
    rounds: u32,
    wake: impl Fn(u64) -> std::io::Result<()>,
    mut wait: impl FnMut(u64, u32) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let (mine, theirs) = side.words();
    for round in 1..=rounds {
        let number = from.wrapping_add(round);
        if side == Side::Pong {
            wait(theirs, number)?;
        }
        region.store_u32(mine, number, Ordering::Release).map_err(std::io::Error::other)?;
        wake(mine)?;
        if side == Side::Ping {
            wait(theirs, number)?;
        }
    }
    Ok(())
}

/// Not a test: prints how fast the link is beside a bare word of shared memory.
/// `cargo test --release -p outboard-attach --test link latency -- --ignored --nocapture`
#[test]
#[ignore = "a measurement, to be read by a person"]
fn latency() {
    const ROUNDS: u32 = 200_000;
    let shared = Shared::create("bare", 4096).unwrap();
    let other = Shared::open(shared.fd().try_clone_to_owned().unwrap(), 4096).unwrap();
    let mut rows: HashMap<&str, Vec<f64>> = HashMap::new();
    let mut from = 0;
    let place = place();
    let _dpu = DpuProcess::start(&place.socket);
    let mut host = Host::new(&place.socket, 1, 1, 64);
    for _ in 0..5 {
        let bare_run =
            |name,
             rounds: u32,
             from,
             f: fn(&outboard_link::Region, Side, u32, u32) -> std::io::Result<()>| {
                std::thread::scope(|scope| {
                    scope.spawn(|| f(other.region(), Side::Pong, from, rounds).unwrap());
                    let start = clock::now();
                    f(shared.region(), Side::Ping, from, rounds).unwrap();
                    (name, clock::now().since(start).as_nanos() as f64 / f64::from(rounds))
                })
            };
        for (name, ns) in [
            bare_run("bare spin", ROUNDS, from, spin),
            bare_run("bare futex", ROUNDS / 50, from + ROUNDS, doze),
        ] {
            rows.entry(name).or_default().push(ns);
        }
        from += 2 * ROUNDS;
        let start = clock::now();
        for _ in 0..ROUNDS {
            host.send(0, &[], 0);
            assert!(host.receive(0, 0, PATIENCE));
        }
        let ns = clock::now().since(start).as_nanos() as f64 / f64::from(ROUNDS);
        rows.entry("link no-op, busy").or_default().push(ns);
        let start = clock::now();
        for _ in 0..ROUNDS {
            host.send(0, &[1; 128], 0);
            assert!(host.receive(0, 0, PATIENCE));
        }
        let ns = clock::now().since(start).as_nanos() as f64 / f64::from(ROUNDS);
        rows.entry("link no-op, 128-byte header, busy").or_default().push(ns);
        let mut total = 0.0;
        for _ in 0..200 {
            std::thread::sleep(Duration::from_millis(1));
            let start = clock::now();
            host.send(0, &[], 0);
            assert!(host.receive(0, 0, PATIENCE));
            total += clock::now().since(start).as_nanos() as f64 / 200.0;
        }
        rows.entry("link no-op, asleep").or_default().push(total);
    }
    for (name, mut ns) in rows {
        ns.sort_by(f64::total_cmp);
        println!("{name}: median {:.0} ns [{:.0}-{:.0}]", ns[2], ns[0], ns[4]);
    }
    println!("host ledger: {:?}", host.ledger.snapshot());
}

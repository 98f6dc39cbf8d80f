//! The DPU side dies, hangs, or stays away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use outboard_attach::host::{Host, HostOptions};
use outboard_base::{Cred, Errno, Fh, Ino, Rng};
use outboard_dpc::host::{Call, LossPolicy, QueuePort};
use outboard_os::clock;
use outboard_wire::file::{Reply, Request, open_flags};

use crate::rig::{
    Completed, Volume, call, connect, create, later, pattern, read, wait_until, write,
};

/// Work whose every answer is known: names made and removed, blocks written, bytes appended. Each
/// step that returns is remembered; the volume must agree at the end, whatever was killed in
/// between.
struct Worker {
    port: QueuePort,
    rng: Rng,
    name: String,
    file: (Ino, Fh),
    blocks: Vec<Option<u64>>,
    appended: (Ino, Fh),
    appends: u64,
    steps: u64,
}

const BLOCKS: u64 = 16;
const BLOCK: usize = 8192;

impl Worker {
    fn new(mut port: QueuePort, number: u64) -> Worker {
        let name = format!("worker-{number}");
        let file = create(&mut port, &name, 0);
        let appended = create(&mut port, &format!("{name}.log"), open_flags::APPEND);
        // Without a name, it lives on only if its handle is handed in again.
        let log = format!("{name}.log");
        let unlink = Request::Unlink { parent: Ino::ROOT, name: log.as_bytes() };
        assert_eq!(call(&mut port, &unlink, &[]), Ok(Reply::Removed(Some(appended.0))));
        let blocks = vec![None; BLOCKS as usize];
        Worker { port, rng: Rng::new(number), name, file, blocks, appended, appends: 0, steps: 0 }
    }

    fn step(&mut self) {
        self.steps += 1;
        match self.rng.below(4) {
            0 | 1 => {
                let (block, seed) = (self.rng.below(BLOCKS), self.rng.next_u64());
                write(&mut self.port, self.file, block * BLOCK as u64, &pattern(seed, BLOCK));
                self.blocks[block as usize] = Some(seed);
            }
            2 => {
                let (ino, fh) = self.appended;
                let flags = outboard_wire::file::write_flags::APPEND;
                let request = Request::Write { ino, fh, offset: 0, flags };
                let line = self.appends.to_le_bytes();
                assert_eq!(call(&mut self.port, &request, &line), Ok(Reply::Written(8)));
                self.appends += 1;
            }
            _ => self.make_and_remove(),
        }
    }

    /// Each of these fails if it is done twice, or was not done.
    fn make_and_remove(&mut self) {
        let (a, b) = (format!("{}.a", self.name), format!("{}.b", self.name));
        let (a, b) = (a.as_bytes(), b.as_bytes());
        let parent = Ino::ROOT;
        let mkdir = Request::Mkdir { parent, name: a, mode: 0o755, umask: 0 };
        let made = call(&mut self.port, &mkdir, &[]);
        assert!(matches!(made, Ok(Reply::Entry(_))), "{made:?}");
        let flags = outboard_wire::file::rename_flags::NOREPLACE;
        let rename = Request::Rename { parent, name: a, to_parent: parent, to_name: b, flags };
        assert_eq!(call(&mut self.port, &rename, &[]), Ok(Reply::Removed(None)));
        let rmdir = Request::Rmdir { parent, name: b };
        let removed = call(&mut self.port, &rmdir, &[]);
        assert!(matches!(removed, Ok(Reply::Removed(_))), "{removed:?}");
    }

    fn verify(&mut self) {
        for (block, seed) in (0u64..).zip(self.blocks.clone()) {
            let Some(seed) = seed else { continue };
            let found = read(&mut self.port, self.file, block * BLOCK as u64, BLOCK);
            assert!(found == pattern(seed, BLOCK), "{} block {block}", self.name);
        }
        let mut expected = Vec::new();
        (0..self.appends).for_each(|number| expected.extend(number.to_le_bytes()));
        let found = read(&mut self.port, self.appended, 0, 1 << 20);
        assert!(
            found == expected,
            "{}: {} of {} appends",
            self.name,
            found.len() / 8,
            self.appends
        );
    }
}

fn kills_of_the_dpu_side(rounds: u64) {
    let mut volume = Volume::new();
    let (host, _) = connect(&volume, LossPolicy::Wait);
    let stop = Arc::new(AtomicBool::new(false));
    let steps = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..3u16)
        .map(|queue| {
            let port = host.session().calling_port(queue).unwrap();
            let (stop, steps) = (Arc::clone(&stop), Arc::clone(&steps));
            std::thread::spawn(move || {
                let mut worker = Worker::new(port, u64::from(queue));
                while !stop.load(Ordering::Acquire) {
                    worker.step();
                    steps.fetch_add(1, Ordering::AcqRel);
                }
                worker.verify();
                worker.steps
            })
        })
        .collect();
    let mut rng = Rng::new(rounds);
    for _ in 0..rounds {
        let before = steps.load(Ordering::Acquire);
        let enough = before + 1 + rng.below(200);
        let deadline = later();
        while steps.load(Ordering::Acquire) < enough {
            assert!(clock::now() < deadline, "no progress after {before} steps");
            std::thread::sleep(Duration::from_millis(1));
        }
        volume.kill();
        volume.start();
    }
    stop.store(true, Ordering::Release);
    for worker in workers {
        worker.join().unwrap();
    }
    assert_eq!(host.session().counts().losses, rounds);
    volume.assert_clean();
}

/// kill -9 of the DPU side under three workers: nothing answered is lost, nothing is done twice,
/// and files without a name live on. A longer one beside it was ignored, so that no command ran
/// it, while the specification took it for a proof.
#[test]
fn the_dpu_side_dies_and_nobody_notices() {
    let kills = std::env::var("OUTBOARD_KILLS").ok().and_then(|kills| kills.parse().ok());
    kills_of_the_dpu_side(kills.unwrap_or(6));
}

/// `fail`: after its time limit calls end with an error; when the DPU side is back they work again.
#[test]
fn calls_fail_in_time_when_that_is_the_policy() {
    let mut volume = Volume::new();
    let limit = Duration::from_secs(3);
    let (host, front) = connect(&volume, LossPolicy::Fail { after: limit });
    let mut port = host.session().calling_port(0).unwrap();
    let mut watched = host.session().port(1).unwrap();
    let file = create(&mut port, "file", 0);
    write(&mut port, file, 0, b"before");
    let since = clock::now();
    volume.kill();
    wait_until("the loss is noticed", || host.session().counts().losses == 1);
    let cred = Cred::root();
    let getattr = Request::Getattr { ino: file.0, fh: file.1 };
    let waits = Call { request: &getattr, cred: &cred, checked: true, payload_len: 0 };
    let slot = watched.acquire_by(later()).unwrap();
    assert!(matches!(watched.start(slot, &waits, 1), Poll::Pending));
    assert_eq!(call(&mut port, &getattr, &[]), Err(Errno::ENOTCONN));
    assert!(clock::now().since(since) >= limit);
    assert_eq!(front.wait_for(1), Err(Errno::ENOTCONN));
    let at_once = clock::now();
    assert_eq!(call(&mut port, &getattr, &[]), Err(Errno::ENOTCONN));
    assert!(clock::now().since(at_once) < limit);
    volume.start();
    wait_until("it works again", || call(&mut port, &getattr, &[]).is_ok());
    assert_eq!(read(&mut port, file, 0, 100), b"before");
}

/// A DPU side that hangs is lost by its heartbeat; when it wakes up again, what it was doing for
/// the old attachment has ended before the new one is served, and everything held is still held.
#[test]
fn a_dpu_side_that_hangs_is_left_and_found_again() {
    let volume = Volume::new();
    let front = Arc::new(Completed::default());
    let options =
        HostOptions { beat_limit: Duration::from_secs(1), ..HostOptions::new(volume.socket()) };
    let host = Host::connect(options, front).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let worker = {
        let (port, stop) = (host.session().calling_port(0).unwrap(), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut worker = Worker::new(port, 9);
            while !stop.load(Ordering::Acquire) {
                worker.step();
            }
            worker.verify();
        })
    };
    std::thread::sleep(Duration::from_millis(100));
    let signal = |signal| {
        let pid = rustix::process::Pid::from_raw(volume.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    // On a busy machine a second may pass without a beat before that, too.
    let losses = host.session().counts().losses;
    signal(rustix::process::Signal::STOP);
    wait_until("the silence is noticed", || host.session().counts().losses > losses);
    signal(rustix::process::Signal::CONT);
    let calls = host.session().counts().calls;
    wait_until("work goes on", || host.session().counts().calls > calls + 50);
    stop.store(true, Ordering::Release);
    worker.join().unwrap();
    let status = volume.status();
    assert_eq!(status["attachments"].as_array().unwrap().len(), 1, "{status:#}");
    volume.assert_clean();
}

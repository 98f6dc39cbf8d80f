//! One DPU side that serves and keeps a volume for each value of bit 10: volumes that do nothing
//! but note what is asked of them.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use outboard_attach::dpu::{Dpu, DpuOptions, Wish};
use outboard_attach::link::{HostLink, HostMemory, control, wait};
use outboard_base::ledger::Ledger;
use outboard_base::{Cred, Errno, Fh, Ino, Result, SessionId, Timestamp};
use outboard_cache::geometry::Shape;
use outboard_link::pace::{Config, Pace};
use outboard_link::queue::nvmefs::Initiator;
use outboard_link::queue::{HostQueue, Span, Submission};
use outboard_os::clock;
use outboard_os::runtime::Poller;
use outboard_os::wakeup::Wakeup;
use outboard_volume::{
    Answer, Caller, Figures, Housekeeping, NoVolume, Payload, Report, Volume, VolumeEvent,
};
use outboard_wire::file::{Attr, Header, Reply, Request};
use outboard_wire::nvmefs::{Dispatch, Status};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(2);

/// A volume that answers every request with its number, and notes what else it is asked to do.
struct Toy {
    number: u64,
    done: Mutex<BTreeMap<&'static str, u32>>,
    unmarked: AtomicBool,
}

impl Toy {
    fn new(number: u64) -> Arc<Toy> {
        Arc::new(Toy { number, done: Mutex::default(), unmarked: AtomicBool::new(false) })
    }

    fn note(&self, what: &'static str) {
        *self.done.lock().unwrap().entry(what).or_default() += 1;
    }

    fn count(&self, what: &str) -> u32 {
        self.done.lock().unwrap().get(what).copied().unwrap_or(0)
    }

    fn wait_for(&self, what: &str, times: u32) {
        let end = clock::now().after(PATIENCE);
        while self.count(what) < times {
            assert!(clock::now() < end, "volume {}: {what} {}", self.number, self.count(what));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Volume for Toy {
    async fn handle(
        &self,
        _: &Caller,
        _: &Header,
        _: Request<'_>,
        _: Payload,
        _: Timestamp,
    ) -> Result<Answer> {
        self.note("handle");
        self.unmarked.store(true, Ordering::SeqCst);
        Ok(Reply::Offset(self.number).into())
    }

    fn detach(&self, _: SessionId) {
        self.note("detach");
    }

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

impl Housekeeping for Toy {
    async fn end_grace(&self) -> Result<()> {
        self.note("end_grace");
        Ok(())
    }

    async fn tidy(&self) -> Result<bool> {
        self.note("tidy");
        Ok(false)
    }

    fn expire_recalls(&self) {
        self.note("expire_recalls");
    }

    fn idle(&self) {
        self.note("idle");
    }

    fn wants_checkpoint(&self) -> bool {
        self.unmarked.load(Ordering::SeqCst)
    }

    async fn checkpoint(&self) -> Result<()> {
        self.unmarked.store(false, Ordering::SeqCst);
        self.note("checkpoint");
        Ok(())
    }

    async fn sync(&self) -> Result<()> {
        self.note("sync");
        Ok(())
    }

    async fn check(&self, contents: bool) -> Result<Report> {
        let findings = vec![format!("a fault of {}, contents {contents}", self.number)];
        Ok(Report { findings, total: 1, unsure: 2, counts: self.figures() })
    }

    fn figures(&self) -> Figures {
        vec![("number", self.number)]
    }
}

fn serve<V: Housekeeping, S: Housekeeping>(
    dir: &Path,
    volumes: (&Arc<V>, &Arc<S>),
) -> JoinHandle<()> {
    let volumes = (Arc::clone(volumes.0), Arc::clone(volumes.1));
    let options = DpuOptions {
        grace: GRACE,
        tidy_every: Duration::from_millis(20),
        beat_limit: Duration::from_millis(200),
        ..DpuOptions::new(dir.join("socket"), dir.join("sessions"))
    };
    let serving = std::thread::spawn(move || {
        let wakeup = Arc::new(Wakeup::new().unwrap());
        let runtime = Rc::new(Poller::new(Arc::clone(&wakeup), None));
        Dpu::of_both(volumes, runtime, wakeup, options).unwrap().run(&|| Wish::GoOn).unwrap();
    });
    let end = clock::now().after(PATIENCE);
    while control(&dir.join("socket"), r#"{"command":"status"}"#, PATIENCE).is_err() {
        assert!(clock::now() < end, "the DPU side listens");
        std::thread::sleep(Duration::from_millis(5));
    }
    serving
}

fn ask_side(dir: &Path, command: &Value) -> Value {
    let text = control(&dir.join("socket"), &command.to_string(), PATIENCE).unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["ok"], true, "{answer:#}");
    answer
}

/// A host with one queue and a cache.
struct Host {
    memory: HostMemory,
    link: HostLink,
    queue: Initiator,
}

impl Host {
    fn attach(dir: &Path) -> Host {
        let shape = Shape { len: 1 << 20, ..Shape::default() };
        let memory = HostMemory::create_with(SessionId(9), 1, 8, Some(&shape), false).unwrap();
        memory.format_cache().unwrap();
        let link = HostLink::attach(&dir.join("socket"), &memory, PATIENCE).unwrap();
        let ledger = Arc::new(Ledger::new());
        let queue = link.initiators(&memory, &ledger).unwrap().pop().unwrap();
        Host { memory, link, queue }
    }

    /// What a volume answers to a request about no file in particular.
    fn ask(&mut self, dispatch: Dispatch) -> (Status, u64) {
        let request = Request::Lseek { ino: Ino(7), fh: Fh(1), offset: 0, whence: 0 };
        let header = Header { session: SessionId(9), cred: Cred::root(), ..Header::default() };
        let mut bytes = vec![0; request.encoded_len(&header)];
        request.encode(&header, &mut bytes).unwrap();
        let cid = self.queue.acquire().unwrap();
        let (write, read) = (Span::NONE, Span::NONE);
        let submission = Submission { dispatch, header: &bytes, write, read, reply_header: 128 };
        self.queue.submit(cid, &submission).unwrap();
        if self.queue.ring() {
            self.link.notify();
        }
        let (mut pace, ledger) = (Pace::new(Config::default()), Ledger::new());
        let (end, mut out) = (clock::now().after(PATIENCE), Vec::new());
        wait(&mut self.queue, &self.link, &mut pace, &ledger, end, &mut out).unwrap();
        self.queue.release(cid).unwrap();
        let ended = out.pop().unwrap();
        (ended.status, ended.result)
    }

    fn detach(self) {
        self.link.detach(PATIENCE).unwrap();
        drop(self.memory);
    }
}

#[test]
fn a_dpu_side_keeps_house_for_both_of_its_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let (kv, shared) = (Toy::new(1), Toy::new(2));
    let serving = serve(dir.path(), (&kv, &shared));
    let mut host = Host::attach(dir.path());
    // Tidying comes once after the beginning and once after work, which began before the first on a
    // busy machine.
    for volume in [&kv, &shared] {
        volume.wait_for("tidy", 1);
    }
    for _ in 0..3 {
        assert_eq!(host.ask(Dispatch::Kv), (Status::Ok, 1));
        assert_eq!(host.ask(Dispatch::Shared), (Status::Ok, 2));
    }
    for volume in [&kv, &shared] {
        assert_eq!(volume.count("handle"), 3);
        volume.wait_for("tidy", 2);
        for what in ["end_grace", "expire_recalls", "idle", "checkpoint"] {
            volume.wait_for(what, 1);
        }
    }
    let status = ask_side(dir.path(), &json!({"command": "status"}));
    assert_eq!(status["volume"]["number"], 1, "{status:#}");
    assert_eq!(status["shared_volume"]["number"], 2, "{status:#}");
    assert_eq!(status["caches"].as_array().unwrap().len(), 1, "{status:#}");
    let report = ask_side(dir.path(), &json!({"command": "check", "contents": true}));
    let findings =
        json!(["a fault of 1, contents true", "shared volume: a fault of 2, contents true"]);
    assert_eq!(report["findings"], findings);
    assert_eq!((&report["total"], &report["unsure"]), (&json!(2), &json!(4)));
    assert_eq!(report["clean"], false);
    assert_eq!(report["counts"]["number"], 1);
    assert_eq!(report["shared_counts"]["number"], 2);
    host.detach();
    for volume in [&kv, &shared] {
        volume.wait_for("detach", 1);
        assert_eq!(volume.count("sync"), 0);
    }
    ask_side(dir.path(), &json!({"command": "shutdown"}));
    serving.join().unwrap();
    for volume in [&kv, &shared] {
        assert_eq!((volume.count("sync"), volume.count("end_grace")), (1, 1));
    }
}

#[test]
fn of_two_volumes_either_may_be_missing_and_the_other_has_the_caches() {
    let dir = tempfile::tempdir().unwrap();
    let (kv, none) = (Toy::new(1), Arc::new(NoVolume));
    let serving = serve(dir.path(), (&kv, &none));
    let mut host = Host::attach(dir.path());
    assert_eq!(host.link.volume(), Dispatch::Kv);
    assert_eq!(host.ask(Dispatch::Kv), (Status::Ok, 1));
    assert_ne!(host.ask(Dispatch::Shared).0, Status::Ok);
    let status = ask_side(dir.path(), &json!({"command": "status"}));
    assert_eq!(status["caches"].as_array().unwrap().len(), 1, "{status:#}");
    let report = ask_side(dir.path(), &json!({"command": "check"}));
    assert_eq!((&report["total"], &report["counts"]["number"]), (&json!(1), &json!(1)));
    // What asks about one volume is answered as before there could be two.
    assert_eq!((status.get("shared_volume"), report.get("shared_counts")), (None, None));
    host.detach();
    ask_side(dir.path(), &json!({"command": "shutdown"}));
    serving.join().unwrap();
    assert_eq!(kv.count("sync"), 1);

    let dir = tempfile::tempdir().unwrap();
    let shared = Toy::new(2);
    let serving = serve(dir.path(), (&none, &shared));
    let mut host = Host::attach(dir.path());
    assert_eq!(host.link.volume(), Dispatch::Shared);
    assert_ne!(host.ask(Dispatch::Kv).0, Status::Ok);
    // As above.
    shared.wait_for("tidy", 1);
    assert_eq!(host.ask(Dispatch::Shared), (Status::Ok, 2));
    shared.wait_for("tidy", 2);
    shared.wait_for("checkpoint", 1);
    let status = ask_side(dir.path(), &json!({"command": "status"}));
    assert_eq!(status["caches"].as_array().unwrap().len(), 1, "{status:#}");
    assert_eq!((&status["volume"], &status["shared_volume"]["number"]), (&json!({}), &json!(2)));
    host.detach();
    ask_side(dir.path(), &json!({"command": "shutdown"}));
    serving.join().unwrap();
    assert_eq!(shared.count("sync"), 1);
}

/// A host was attached again in time, and one of its replays waited for a node that was away, for
/// longer than a host has to come back. It was forgotten, and the next life of the DPU side did not
/// wait for it.
#[test]
fn who_is_attached_is_not_forgotten_because_a_replay_takes_long() {
    let dir = tempfile::tempdir().unwrap();
    let (shared, none) = (Toy::new(2), Arc::new(NoVolume));
    let session = format!("\n9 {} {} ", rustix::process::geteuid().as_raw(), std::process::id());
    let lives = |ended: u32| {
        let serving = serve(dir.path(), (&none, &shared));
        let host = Host::attach(dir.path());
        // It never says that all is handed in.
        shared.wait_for("end_grace", ended);
        // The first life notes it a moment after it has answered.
        let noted = || std::fs::read_to_string(dir.path().join("sessions")).unwrap();
        let limit = Instant::now() + Duration::from_secs(5);
        while !noted().contains(&session) && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        let noted = noted();
        ask_side(dir.path(), &json!({"command": "shutdown"}));
        serving.join().unwrap();
        drop(host);
        noted
    };
    for ended in 1..=2 {
        let noted = lives(ended);
        assert!(noted.contains(&session), "life {ended}: {noted}");
    }
}

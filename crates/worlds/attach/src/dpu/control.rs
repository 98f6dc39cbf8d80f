//! Control requests: JSON texts over the attach socket, outside the fast path.
//!
//! ```text
//! {"command": "status"}                       anyone who may connect
//! {"command": "check", "contents": false}     root and the volume's owner; answered when done
//! {"command": "shutdown"}                     likewise; answered before the end
//! {"command": NAME, ...}                      likewise; what [`Dpu::set_command`] was given
//! {"command": NAME, ...}                      likewise; what [`Dpu::set_stream`] was given
//! ```
//!
//! The answer to the last brings the end of a [`Stream`]; when all was sent, or could not be, a
//! second answer says so. One is sent at a time, by a thread of its own: the poller waits for
//! nobody who copies. `outboard backup` is one.
//!
//! A status and a check are of every volume that is served: what is said of the shared one beside a
//! kv or local one stands under keys of its own (`shared_volume`, `shared_counts`).
//!
//! An answer is an object with `"ok": true` and what was asked for, or `"ok": false, "error":
//! text`.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_base::Time;
use outboard_base::ledger::{Count, Kind, Snapshot};
use outboard_dpc::dpu::Stats;
use outboard_wire::attach::Message;
use outboard_wire::file::Op;
use serde_json::{Value, json};

use super::peers::{PEERS_MAX, PEERS_USER};
use super::{Dpu, cache};
use crate::link::Stream;
use outboard_os::clock;
use outboard_os::executor::block_on;
use outboard_os::runtime::Runtime;
use outboard_volume::{Figures, Housekeeping, Report};

/// What a command of the process's own does with a request.
pub(super) type Command = Arc<dyn Fn(&Value) -> Result<Value, String> + Send + Sync>;

/// What is sent behind an answer. It ends with what the receiver knows for an end: one who sees
/// none has half of it.
pub type Content = Box<dyn FnOnce(&mut dyn io::Write) -> io::Result<()> + Send>;

/// What begins to send: the answer, and what follows it.
pub(super) type Begin = Arc<dyn Fn(&Value) -> Result<(Value, Content), String> + Send + Sync>;

/// Who reads nothing of a stream for so long is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the end of this side waits for a stream that it told to stop.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// An answer on its way.
struct Late {
    name: u64,
    id: u32,
    answer: Value,
    /// The end of a stream that goes with it.
    fd: Option<OwnedFd>,
}

/// Answers of control requests that take their time, on their way to their sockets, and commands
/// that the process adds.
#[derive(Default)]
pub struct Control {
    pub(super) commands: BTreeMap<&'static str, Command>,
    pub(super) streams: BTreeMap<&'static str, Begin>,
    answers: Arc<Mutex<Vec<Late>>>,
    /// Whether a stream is being sent.
    sending: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
}

/// Said while it lives.
struct Sending(Arc<AtomicBool>);

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Control {
    /// Whether the process added a command of that name.
    fn knows(&self, command: &str) -> bool {
        self.commands.contains_key(command) || self.streams.contains_key(command)
    }

    /// Has a stream that is being sent stop, and waits for that a moment: it has a hold of the
    /// volume.
    pub(super) fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(sender) = self.sender.take() else { return };
        let until = clock::now().after(STOP_LIMIT);
        while !sender.is_finished() && clock::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<V: Housekeeping, S: Housekeeping, R: Runtime> Dpu<V, R, S> {
    pub(super) fn control(&mut self, name: u64, id: u32, text: &str, trusted: bool) {
        let answer = match serde_json::from_str::<Value>(text) {
            Err(error) => Some(failed(&format!("not JSON: {error}"))),
            Ok(request) => self.answer(name, id, &request, trusted),
        };
        if let Some(answer) = answer {
            self.reply(name, id, &answer, None);
        }
    }

    fn answer(&mut self, name: u64, id: u32, request: &Value, trusted: bool) -> Option<Value> {
        let command = request.get("command").and_then(Value::as_str).unwrap_or_default();
        match command {
            "status" => Some(self.status()),
            "check" | "shutdown" if !trusted => {
                Some(failed("only root and the volume's owner may ask for this"))
            }
            own if !trusted && self.control.knows(own) => {
                Some(failed("only root and the volume's owner may ask for this"))
            }
            own if self.control.streams.contains_key(own) => self.send(name, id, own, request),
            "check" => {
                let contents = request.get("contents").and_then(Value::as_bool).unwrap_or(false);
                self.check(name, id, contents);
                None
            }
            "shutdown" => {
                tracing::info!("asked to end");
                self.ending.get_or_insert_with(clock::now);
                Some(json!({"ok": true}))
            }
            own => match self.control.commands.get(own) {
                Some(command) => {
                    let (command, request) = (Arc::clone(command), request.clone());
                    self.answer_when_done(name, id, move || command(&request));
                    None
                }
                None => Some(failed(&format!("unknown command {own:?}"))),
            },
        }
    }

    /// What takes its time runs on a thread of its own, beside other work, and is answered when it
    /// is done.
    fn answer_when_done(
        &mut self,
        name: u64,
        id: u32,
        work: impl FnOnce() -> Result<Value, String> + Send + 'static,
    ) {
        let (answers, wakeup) = (Arc::clone(&self.control.answers), Arc::clone(&self.wakeup));
        let work = move || {
            let answer = work().unwrap_or_else(|error| failed(&error));
            lock(&answers).push(Late { name, id, answer, fd: None });
            wakeup.notify();
        };
        if let Err(error) = std::thread::Builder::new().name("control".into()).spawn(work) {
            let failed = failed(&format!("no thread for the answer: {error}"));
            self.reply(name, id, &failed, None);
        }
    }

    /// Begins to send a stream; the answer, if there is none.
    fn send(&mut self, name: u64, id: u32, command: &str, request: &Value) -> Option<Value> {
        let begin = Arc::clone(self.control.streams.get(command)?);
        if self.control.sending.swap(true, Ordering::AcqRel) {
            return Some(failed("one is being made already: wait for its end, or end it"));
        }
        let sending = Sending(Arc::clone(&self.control.sending));
        let (answers, wakeup) = (Arc::clone(&self.control.answers), Arc::clone(&self.wakeup));
        let say = move |answer, fd| {
            lock(&answers).push(Late { name, id, answer, fd });
            wakeup.notify();
        };
        let (request, stop) = (request.clone(), Arc::clone(&self.control.stop));
        let (kv, shared) = (self.kv.flusher(), self.shared.flusher());
        let work = move || {
            let flushed = kv().and_then(|()| shared());
            let flushed =
                flushed.map_err(|errno| format!("cached pages were not written: {errno}"));
            let begun = flushed.and_then(|()| begin(&request)).and_then(|(answer, content)| {
                let stream = Stream::pair(stop, PATIENCE);
                Ok((answer, content, stream.map_err(|error| format!("no socket: {error}"))?))
            });
            let (answer, content, (mut stream, theirs)) = match begun {
                Ok(begun) => begun,
                Err(error) => {
                    drop(sending);
                    return say(failed(&error), None);
                }
            };
            say(answer, Some(theirs));
            let outcome = content(&mut stream);
            // The next one may begin when the end of this one is heard of.
            drop(sending);
            match outcome {
                Ok(()) => say(json!({"ok": true}), None),
                Err(error) => {
                    tracing::warn!(%error, "a copy was not sent to its end");
                    say(failed(&error.to_string()), None);
                }
            }
        };
        match std::thread::Builder::new().name("copy".into()).spawn(work) {
            Ok(sender) => {
                self.control.sender = Some(sender);
                None
            }
            Err(error) => Some(failed(&format!("no thread to send it: {error}"))),
        }
    }

    /// A check reads everything.
    fn check(&mut self, name: u64, id: u32, contents: bool) {
        let (kv, shared) = (Arc::clone(&self.kv.volume), Arc::clone(&self.shared.volume));
        self.answer_when_done(name, id, move || {
            let checked = checked(&*kv, &*shared, contents);
            checked.map_err(|errno| format!("the check could not be finished: {errno}"))
        });
    }

    /// Sends what has become ready.
    pub(super) fn answer_late(&mut self) {
        let ready = std::mem::take(&mut *lock(&self.control.answers));
        for Late { name, id, answer, fd } in ready {
            self.reply(name, id, &answer, fd);
        }
    }

    fn reply(&mut self, name: u64, id: u32, answer: &Value, fd: Option<OwnedFd>) {
        let Some(connection) = self.peers.all.get(&name) else { return };
        let reply = Message::ControlReply { id, text: answer.to_string() };
        let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
        if let Err(error) = connection.peer.send(&reply, &fds) {
            tracing::debug!(%error, "an answer to a control request was not taken");
        }
    }

    fn status(&self) -> Value {
        let now = clock::now();
        let mut status = json!({
            "ok": true,
            "pid": std::process::id(),
            "instance": self.options.terms.instance,
            "uptime_s": now.since(self.started).as_secs_f64(),
            "cpu_s": cpu_seconds(),
            "grace": self.grace.lasts(),
            "settings": self.options.settings,
            "waiting": self.runtime.waiting(),
            "volume": figures_json(self.kv.volume.figures()),
            "store": (self.store)(),
            "connections": {
                "open": self.peers.all.len(),
                "most": PEERS_MAX,
                "most_of_one_user": PEERS_USER,
                "refused": self.peers.refused,
            },
            "attachments": self.attachments_json(),
            "ops": ops_json(&self.service.stats()),
            "malformed": self.service.stats().malformed,
            "misrouted": self.service.stats().misrouted,
            "aborted": self.service.stats().aborted,
            "caches": self.caches_json(),
            "cache_cpu_s": self.kv.cache_cpu_seconds() + self.shared.cache_cpu_seconds(),
            "ledger": ledger_json(&self.ledger.snapshot()),
            "lingering": self.lingering_json(now),
        });
        if S::EXISTS {
            status["shared_volume"] = figures_json(self.shared.volume.figures());
        }
        status
    }

    fn attachments_json(&self) -> Vec<Value> {
        self.peers
            .all
            .values()
            .filter_map(|connection| {
                let attached = connection.attached.as_ref()?;
                let mut all = self.service.attachments();
                let (_, attachment) = all.find(|(id, _)| *id == attached.id)?;
                let layout = attached.link.registers().layout();
                let holder = self.sessions.holder(connection.session);
                Some(json!({
                    "session": format!("{:x}", connection.session.0),
                    "alone": holder.is_some_and(|holder| holder.company.collects()),
                    "pid": connection.cred.pid,
                    "uid": connection.cred.uid,
                    "queues": layout.queues(),
                    "depth": layout.depth(),
                    "in_flight": attachment.in_flight(),
                    "gone": attachment.is_gone(),
                }))
            })
            .collect()
    }

    fn caches_json(&self) -> Vec<Value> {
        let (kv, shared) = (self.kv.coherence.figures(), self.shared.coherence.figures());
        kv.iter().chain(&shared).map(cache::json).collect()
    }

    fn lingering_json(&self, now: Time) -> Vec<Value> {
        let all = self.peers.lingering.iter();
        all.map(|lingering| {
            json!({
                "session": format!("{:x}", lingering.session.0),
                "seconds_left": lingering.until.since(now).as_secs(),
            })
        })
        .collect()
    }
}

/// What a ledger counted, by kind.
#[must_use]
pub fn ledger_json(snapshot: &Snapshot) -> Value {
    let dma: serde_json::Map<String, Value> = Kind::ALL
        .into_iter()
        .map(|kind| {
            let tally = snapshot.dma(kind);
            let value = json!({"operations": tally.ops, "bytes": tally.bytes});
            (kind.name().to_owned(), value)
        })
        .collect();
    let counts: serde_json::Map<String, Value> = Count::ALL
        .into_iter()
        .map(|count| (count.name().to_owned(), json!(snapshot.count(count))))
        .collect();
    json!({"dma": dma, "counts": counts})
}

/// The answer that says no.
#[must_use]
pub fn failed(error: &str) -> Value {
    json!({"ok": false, "error": error})
}

fn ops_json(stats: &Stats) -> Value {
    let used = Op::ALL.iter().filter_map(|&op| Some((op, stats.op(op)?)));
    let used = used.filter(|(_, counted)| counted.count > 0);
    let map: serde_json::Map<String, Value> = used
        .map(|(op, counted)| {
            let us = |percent| counted.time.percentile(percent).as_secs_f64() * 1e6;
            let value = json!({
                "count": counted.count,
                "errors": counted.errors,
                "waited": counted.waited,
                "bytes": counted.bytes,
                "p50_us": us(50),
                "p99_us": us(99),
            });
            (op.name().to_lowercase(), value)
        })
        .collect();
    Value::Object(map)
}

/// At most this many findings travel: the rest is a number.
const FINDINGS: usize = 100;

/// A check's report as a control answer.
#[must_use]
pub fn report_json(report: &Report) -> Value {
    let findings = report.findings.iter().take(FINDINGS);
    json!({
        "ok": true,
        "clean": report.is_clean(),
        "total": report.total,
        "unsure": report.unsure,
        "findings": findings.collect::<Vec<_>>(),
        "counts": figures_json(report.counts.clone()),
    })
}

/// The checks of both volumes, one after the other, as one answer.
fn checked<V: Housekeeping, S: Housekeeping>(
    kv: &V,
    shared: &S,
    contents: bool,
) -> outboard_base::Result<Value> {
    let mut report = block_on(kv.check(contents))?;
    if !S::EXISTS {
        return Ok(report_json(&report));
    }
    let other = block_on(shared.check(contents))?;
    let findings = other.findings.iter();
    report.findings.extend(findings.map(|finding| format!("shared volume: {finding}")));
    report.total += other.total;
    report.unsure += other.unsure;
    let mut answer = report_json(&report);
    answer["shared_counts"] = figures_json(other.counts);
    Ok(answer)
}

fn figures_json(figures: Figures) -> Value {
    figures.into_iter().map(|(name, number)| (name.to_owned(), json!(number))).collect()
}

/// CPU seconds of this process, user and system together.
#[must_use]
pub fn cpu_seconds() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    std::time::Duration::try_from(used).map_or(0.0, |used| used.as_secs_f64())
}

//! Control requests: JSON texts over the attach socket, as of a volume
//! ([`outboard_attach::dpu`] says which).
//!
//! ```text
//! {"command": "status"}     anyone who may connect
//! {"command": "check"}      root and who runs this process; answered when done
//! {"command": "backup"}     the same ([`backup`](crate::backup))
//! ```

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboard_attach::dpu::{cpu_seconds, failed, ledger_json, report_json};
use outboard_base::ledger::Count;
use outboard_dds::dpu::offload::health::{Health, State, Why};
use outboard_os::clock;
use outboard_os::executor::block_on;
use outboard_wire::dds::DirectoryId;
use serde_json::{Value, json};

use super::Files;
use super::attached::{Attached, Terms};
use crate::watchdog::processor_time;

/// Files named in a status; of more there is the number.
const FILES_NAMED: usize = 64;

/// What else there is to tell in a status: under which name, and what.
type Teller = (&'static str, Box<dyn Fn() -> Value + Send>);

/// For whom, to which question, and what; with a descriptor, if one goes with it.
pub(super) struct Answer {
    pub(super) name: u64,
    pub(super) id: u32,
    pub(super) value: Value,
    pub(super) fd: Option<OwnedFd>,
}

/// Those who tell of themselves, and answers that take their time, on their way to their sockets.
#[derive(Clone, Default)]
pub(super) struct Control {
    tellers: Arc<Mutex<Vec<Teller>>>,
    answers: Arc<Mutex<Vec<Answer>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A host, and what it asks by.
pub(super) struct Peer<'a> {
    pub(super) pid: u32,
    pub(super) attached: &'a Attached,
}

/// Who asks, and what.
pub(super) struct Asked<'a> {
    pub(super) name: u64,
    pub(super) id: u32,
    pub(super) text: &'a str,
    pub(super) is_trusted: bool,
}

impl Control {
    pub(super) fn add(&self, name: &'static str, tell: Box<dyn Fn() -> Value + Send>) {
        lock(&self.tellers).push((name, tell));
    }

    /// The answer, if it is known at once.
    pub(super) fn answer<'a>(
        &self,
        asked: &Asked<'_>,
        terms: &Terms<'_>,
        peers: impl Iterator<Item = Peer<'a>>,
    ) -> Option<Value> {
        let request: Value = match serde_json::from_str(asked.text) {
            Ok(request) => request,
            Err(error) => return Some(failed(&format!("not JSON: {error}"))),
        };
        match request.get("command").and_then(Value::as_str).unwrap_or_default() {
            "status" => Some(self.status(terms, peers)),
            "check" | "backup" if !asked.is_trusted => {
                Some(failed("only root and the owner of the data may ask for this"))
            }
            "check" => self.check(asked, terms),
            "backup" => self.backup(asked, terms, request),
            other => Some(failed(&format!("unknown command {other:?}"))),
        }
    }

    /// A check waits for the device: it runs on a thread of its own, beside other work.
    fn check(&self, asked: &Asked<'_>, terms: &Terms<'_>) -> Option<Value> {
        let (files, answers) = (Arc::clone(terms.files), self.answers_to(asked, terms));
        beside("check", move || answers(checked(&files), None))
    }

    /// So does a backup, and for who reads it.
    fn backup(&self, asked: &Asked<'_>, terms: &Terms<'_>, request: Value) -> Option<Value> {
        let (source, answers) = (terms.backup.clone(), self.answers_to(asked, terms));
        beside("backup", move || source.send(&request, answers))
    }

    /// What takes an answer that was not known at once, on another thread.
    fn answers_to(
        &self,
        asked: &Asked<'_>,
        terms: &Terms<'_>,
    ) -> impl FnOnce(Value, Option<OwnedFd>) + Send + 'static {
        let (name, id) = (asked.name, asked.id);
        let (answers, wakeup) = (Arc::clone(&self.answers), Arc::clone(terms.wakeup));
        move |value, fd| {
            lock(&answers).push(Answer { name, id, value, fd });
            wakeup.notify();
        }
    }

    /// What has become ready.
    pub(super) fn take_answers(&self) -> Vec<Answer> {
        std::mem::take(&mut *lock(&self.answers))
    }

    fn status<'a>(&self, terms: &Terms<'_>, peers: impl Iterator<Item = Peer<'a>>) -> Value {
        let (space, counted) = (terms.files.space(), terms.ledger.snapshot());
        let lost = terms.health.lost().into_iter().map(|lost| {
            let used = processor_time(lost.thread).map(|used| used.as_secs_f64());
            json!({ "call": lost.call.name(), "thread": lost.thread, "processor_seconds": used })
        });
        let offloading = offloading(terms.health);
        let (table, named) = (terms.table, named_files(terms.files));
        let mut status = json!({
            "ok": true,
            "pid": std::process::id(),
            "uptime_s": clock::now().since(terms.started).as_secs_f64(),
            "cpu_s": cpu_seconds(),
            "offloading": offloading["state"],
            "offloading_again_in_seconds": offloading["again"],
            "offloading_stopped": offloading["stopped"],
            "offloading_stopped_times": offloading["times"],
            "faults": offloading["faults"],
            "lost_threads": lost.collect::<Vec<_>>(),
            "table": {
                "items": table.len(),
                "capacity": table.capacity(),
                "bytes": table.bytes(),
                "refused": table.refused(),
            },
            "attachments": peers.map(|peer| peer.json()).collect::<Vec<_>>(),
            "segment_bytes": space.segment,
            "segments": space.segments,
            "segments_free": space.free,
            "device_bytes": terms.files.device_len(),
            "files": space.files,
            "named_files": named,
            "dma_operations": counted.total().ops,
            "dma_bytes": counted.total().bytes,
            "copied_bytes": counted.count(Count::Copied),
            "ledger": ledger_json(&counted),
        });
        for (name, tell) in &*lock(&self.tellers) {
            status[*name] = tell();
        }
        status
    }
}

/// Runs it on a thread of its own; the answer if there is none.
fn beside(name: &str, act: impl FnOnce() + Send + 'static) -> Option<Value> {
    let begun = std::thread::Builder::new().name(name.to_owned()).spawn(act);
    begun.err().map(|error| failed(&format!("no thread for the {name}: {error}")))
}

/// Whether the application is asked, and if not, why and how long.
fn offloading(health: &Health) -> Value {
    let now = clock::now();
    let report = health.report(now);
    let (state, again) = match report.state {
        State::On => ("on", None),
        State::Paused(until) => ("paused", Some(until.since(now).as_secs_f64())),
        State::Off => ("off", None),
    };
    let stopped = report.last.map(|(why, at)| {
        let (why, call) = match why {
            Why::Faults(call) => ("faults", call),
            Why::Lost(call) => ("lost", call),
        };
        json!({ "why": why, "call": call.name(), "seconds_ago": now.since(at).as_secs_f64() })
    });
    json!({
        "state": state,
        "again": again,
        "stopped": stopped,
        "times": report.times,
        "faults": report.faults,
    })
}

impl Peer<'_> {
    fn json(&self) -> Value {
        json!({ "pid": self.pid, "rings": self.attached.json() })
    }
}

/// The first files, with their directories and sizes.
fn named_files(files: &Files) -> Vec<Value> {
    let mut directories = Vec::new();
    // A directory that has just gone has nothing to be told of.
    let _root = files.list(DirectoryId::ROOT, 0, |id, _, name| {
        directories.push((DirectoryId(id), String::from_utf8_lossy(name).into_owned()));
        directories.len() < FILES_NAMED
    });
    let mut all = Vec::new();
    for (id, directory) in directories {
        let _gone = files.list(id, 0, |_, bytes, name| {
            if all.len() < FILES_NAMED {
                let name = format!("{directory}/{}", String::from_utf8_lossy(name));
                all.push(json!({ "name": name, "bytes": bytes }));
            }
            all.len() < FILES_NAMED
        });
    }
    all
}

/// The check of the metadata, as an answer.
fn checked(files: &Files) -> Value {
    match block_on(files.check()) {
        Ok(report) => report_json(&report),
        Err(error) => failed(&format!("the check could not be finished: {error}")),
    }
}

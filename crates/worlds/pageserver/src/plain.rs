//! A server without a DPU side, seen from outside: a socket by which copies of its file are asked
//! for, as of a DPU side ([`crate::server`]).
//!
//! ```text
//! {"command": "status"}     anyone who may connect: which process it is
//! {"command": "backup"}     root and who runs this process ([`crate::backup`])
//! ```
//!
//! One thread listens, and one serves each of the few who ask. The thread that serves clients does
//! nothing for it but put aside what it overwrites.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_attach::dpu::failed;
use outboard_attach::link::{Listener, Peer, Received};
use outboard_os::clock;
use outboard_os::fds::Shortage;
use outboard_os::room::Reserve;
use outboard_os::wakeup::Wakeup;
use outboard_wire::attach::Message;
use serde_json::{Value, json};

use crate::backup::{Held, Source};

/// Who asks at a time.
const ASKERS: usize = 8;
/// For a question.
const QUESTION_LIMIT: Duration = Duration::from_secs(10);
/// Longest sleep.
const NAP: Duration = Duration::from_secs(1);
const LISTENER: NonZeroU64 = NonZeroU64::MAX;

/// The socket; dropped, it is gone, and copies under way end.
pub struct Copies {
    stop: Arc<AtomicBool>,
    wakeup: Arc<Wakeup>,
    thread: Option<JoinHandle<()>>,
}

impl Copies {
    /// Offers copies of `device`, the file at `path`, at `socket`; they leave `reserve` of the
    /// disk.
    ///
    /// # Errors
    /// Somebody listens there, or the system has no more of what it takes.
    pub fn offer(socket: &Path, device: Held, path: &Path, reserve: Reserve) -> io::Result<Copies> {
        let listener = Listener::bind(socket, 0o600, None)?;
        let (stop, wakeup) = (Arc::<AtomicBool>::default(), Arc::new(Wakeup::new()?));
        let source = Source::new(device, path, reserve, Arc::clone(&stop));
        let mut listening = Listening {
            listener,
            source,
            stop: Arc::clone(&stop),
            wakeup: Arc::clone(&wakeup),
            askers: Arc::default(),
            shortage: Shortage::default(),
        };
        listening.watch()?;
        let thread = std::thread::Builder::new().name("copies".to_owned()).spawn(move || {
            if let Err(error) = listening.run() {
                tracing::warn!(%error, "no copies are made any more");
            }
        })?;
        Ok(Copies { stop, wakeup, thread: Some(thread) })
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wakeup.notify();
        if let Some(thread) = self.thread.take() {
            // It panics never, and has said what else it had to say.
            let _ended = thread.join();
        }
    }
}

struct Listening {
    listener: Listener,
    source: Source,
    stop: Arc<AtomicBool>,
    wakeup: Arc<Wakeup>,
    askers: Arc<AtomicUsize>,
    shortage: Shortage,
}

impl Listening {
    fn watch(&self) -> io::Result<()> {
        self.wakeup.watch(self.listener.fd(), LISTENER)
    }

    fn run(&mut self) -> io::Result<()> {
        while !self.stop.load(Ordering::SeqCst) {
            let now = clock::now();
            if self.shortage.ends(now) {
                self.watch()?;
            }
            let nap = self.shortage.until().map_or(NAP, |until| until.since(now).min(NAP));
            self.wakeup.listen(nap, |_| ())?;
            // While it lasts nobody is accepted: it would keep this thread awake.
            if self.shortage.until().is_none()
                && let Err(error) = self.accept()
            {
                self.shortage.begin(clock::now(), &error);
                self.wakeup.forget(self.listener.fd())?;
            }
        }
        Ok(())
    }

    /// Of too many the last are let go: they see their socket close.
    fn accept(&self) -> io::Result<()> {
        while let Some(peer) = self.listener.accept()? {
            let asker = Asker(Arc::clone(&self.askers));
            if asker.0.fetch_add(1, Ordering::SeqCst) < ASKERS {
                let source = self.source.clone();
                let serve = move || {
                    let _asker = asker;
                    serve(&Arc::new(peer), source);
                };
                std::thread::Builder::new().name("copy".to_owned()).spawn(serve)?;
            }
        }
        Ok(())
    }
}

/// One of those who ask.
struct Asker(Arc<AtomicUsize>);

impl Drop for Asker {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Answers one question.
fn serve(peer: &Peer, source: Source) {
    let heard = peer.receive_by(clock::now().after(QUESTION_LIMIT));
    let Ok(Received::Message(Message::Control { id, text }, _)) = heard else {
        return tracing::debug!(?heard, "somebody came and asked nothing");
    };
    let say = |value: Value, fd: Option<OwnedFd>| {
        let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
        let answer = Message::ControlReply { id, text: value.to_string() };
        if let Err(error) = peer.send(&answer, &fds) {
            tracing::debug!(%error, "who asked is gone");
        }
    };
    let request: Value = match serde_json::from_str(&text) {
        Ok(request) => request,
        Err(error) => return say(failed(&format!("not JSON: {error}")), None),
    };
    let own = rustix::process::geteuid().as_raw();
    let is_trusted = peer.cred().is_ok_and(|cred| cred.uid == 0 || cred.uid == own);
    match request.get("command").and_then(Value::as_str).unwrap_or_default() {
        "status" => say(json!({ "ok": true, "pid": std::process::id() }), None),
        "backup" if is_trusted => source.send(&request, say),
        "backup" => say(failed("only root and the owner of the data may ask for this"), None),
        other => say(failed(&format!("unknown command {other:?}")), None),
    }
}

//! Listens for clients and spreads them over workers.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use outboard_dds::dpu::director::Signature;
use serde_json::Value;

use super::admission::{Accepting, Admission};
use super::context::{ExecutorContext, ThreadSource, WorkerThread};
use super::kernel::KernelPort;
use super::port::{Call, Inbox, Port};
use super::sockets::{Address, Listener};
use super::stack::network::Ends;
use super::stack::{Frames, StackPort, Wires};
use super::worker::{Files, Limits, Setup, Tally, Worker};
use crate::plugin::Plugin;
use crate::watchdog::{self, Watchdog};
use outboard_os::wakeup::Wakeup;

/// The director's threads. Dropping it ends them and their connections.
pub struct Front {
    address: Address,
    tally: Arc<Tally>,
    /// Of the user-space stack.
    frames: Option<Arc<Frames>>,
    stop: Arc<(AtomicBool, Wakeup)>,
    workers: Vec<Arc<Call>>,
    /// Who runs the workers now.
    threads: Vec<Arc<WorkerThread>>,
    /// Every worker has one; nothing is sent.
    lives: Sender<Infallible>,
    all_ended: Mutex<Receiver<Infallible>>,
    accepting: Option<JoinHandle<()>>,
    watch: Watchdog,
    /// What divides the messages of each worker, if not the application.
    plugin: Option<Plugin>,
}

impl Front {
    /// Serves who connects to `listener`, with so many workers.
    pub fn start<F: Files>(
        listener: Listener,
        workers: usize,
        setup: &Setup<F>,
    ) -> io::Result<Front> {
        Front::listen(listener, workers, setup, None)
    }

    /// The same, but a plug-in divides the messages; the application is what it declared.
    ///
    /// # Errors
    /// Threads or descriptors are short.
    pub fn start_asking<F: Files>(
        listener: Listener,
        workers: usize,
        setup: &Setup<F>,
        plugin: Plugin,
    ) -> io::Result<Front> {
        Front::listen(listener, workers, setup, Some(plugin))
    }

    fn listen<F: Files>(
        listener: Listener,
        workers: usize,
        setup: &Setup<F>,
        plugin: Option<Plugin>,
    ) -> io::Result<Front> {
        let mut front = Front::new(listener.address().clone())?;
        front.plugin = plugin;
        let mut inboxes = Vec::new();
        let workers = workers.max(1);
        let of_worker = &with_memory(setup, setup.limits.memory / workers);
        for n in 0..workers {
            let (inbox, host) = (Arc::new(Inbox::new()?), setup.host.clone());
            inboxes.push(Arc::clone(&inbox));
            front.start_worker(n, of_worker, inbox, move || KernelPort::new(host))?;
        }
        let stop = Arc::clone(&front.stop);
        let admission = front.admission(setup).within_descriptors()?;
        let mut accepting = Accepting::new(listener, inboxes, admission)?;
        let accepting =
            std::thread::Builder::new().name("director-accept".into()).spawn(move || {
                if let Err(error) = accepting.run(&stop) {
                    tracing::error!(%error, "the director cannot wait for clients any more");
                }
            })?;
        front.accepting = Some(accepting);
        Ok(front)
    }

    /// Serves who asks `signature` between two devices, with so many workers; everything else is
    /// forwarded. `address` is what clients are told.
    ///
    /// # Errors
    /// Threads or descriptors are short.
    pub fn between<F: Files>(
        ends: Ends,
        signature: Signature,
        address: Address,
        workers: usize,
        setup: &Setup<F>,
    ) -> io::Result<(Front, Arc<Frames>)> {
        Front::wire(ends, signature, address, workers, setup, None)
    }

    /// The same, but a plug-in divides the messages; the application is what it declared.
    ///
    /// # Errors
    /// Threads or descriptors are short.
    pub fn between_asking<F: Files>(
        ends: Ends,
        signature: Signature,
        address: Address,
        workers: usize,
        setup: &Setup<F>,
        plugin: Plugin,
    ) -> io::Result<(Front, Arc<Frames>)> {
        Front::wire(ends, signature, address, workers, setup, Some(plugin))
    }

    fn wire<F: Files>(
        ends: Ends,
        signature: Signature,
        address: Address,
        workers: usize,
        setup: &Setup<F>,
        plugin: Option<Plugin>,
    ) -> io::Result<(Front, Arc<Frames>)> {
        let mut front = Front::new(address)?;
        front.plugin = plugin;
        let workers = workers.max(1);
        let inboxes: Vec<_> =
            (0..workers).map(|_| Inbox::new().map(Arc::new)).collect::<io::Result<_>>()?;
        let frames = Arc::new(Frames::default());
        front.frames = Some(Arc::clone(&frames));
        // One half is for buffers of legs, the other for the director.
        let memory = setup.limits.memory / workers / 2;
        let of_worker = &with_memory(setup, memory);
        let wires = Arc::new(Wires {
            client: ends.client,
            host: ends.host,
            buffer: ends.buffer,
            signature,
            frames: Arc::clone(&frames),
            inboxes: inboxes.clone(),
            admission: front.admission(setup),
            memory,
        });
        for (n, inbox) in inboxes.into_iter().enumerate() {
            let wires = Arc::clone(&wires);
            front.start_worker(n, of_worker, inbox, move || StackPort::new(wires, n))?;
        }
        Ok((front, frames))
    }

    /// The room for its clients.
    fn admission<F: Files>(&self, setup: &Setup<F>) -> Admission {
        let most = setup.limits.max_clients;
        Admission::new(most, setup.app.refusal(), Arc::clone(&self.tally))
    }

    fn new(address: Address) -> io::Result<Front> {
        let (lives, all_ended) = channel();
        Ok(Front {
            address,
            tally: Arc::default(),
            frames: None,
            stop: Arc::new((AtomicBool::new(false), Wakeup::new()?)),
            workers: Vec::new(),
            threads: Vec::new(),
            lives,
            all_ended: Mutex::new(all_ended),
            accepting: None,
            watch: Watchdog::new(watchdog::CALL)?,
            plugin: None,
        })
    }

    fn start_worker<F: Files, P: Port>(
        &mut self,
        n: usize,
        setup: &Setup<F>,
        inbox: Arc<Inbox<P::Item>>,
        port: impl FnOnce() -> io::Result<P> + Send + 'static,
    ) -> io::Result<()> {
        self.workers.push(Arc::clone(&inbox.call));
        let (setup, tally) = (setup.clone(), Arc::clone(&self.tally));
        let (plugin, lives) = (self.plugin.clone(), self.lives.clone());
        let (name, thread) = (format!("director-{n}"), Arc::<WorkerThread>::default());
        let source = ThreadSource { name: name.clone(), thread, watchdog: self.watch.handle() };
        let source = Arc::new(source);
        self.threads.push(Arc::clone(&source.thread));
        let (begun, has_begun) = channel();
        // What a worker has is its thread's own, and made there.
        let begin = move || {
            let asking = plugin.is_some();
            let made = port()
                .and_then(|port| Worker::new(setup, port, inbox, tally, asking, lives))
                .map(Box::new)
                .and_then(|worker| Ok((ExecutorContext::new(&source, &worker, plugin)?, worker)));
            match made {
                Ok((mut context, worker)) => {
                    // Whoever started it waits for this.
                    let _waits = begun.send(Ok(()));
                    context.serve(worker);
                }
                Err(error) => _ = begun.send(Err(error)),
            }
        };
        let running = self.threads.last().map(|thread| thread.lock());
        let thread = std::thread::Builder::new().name(name).spawn(begin)?;
        if let Some(mut running) = running {
            *running = Some(thread);
        }
        has_begun.recv().map_err(io::Error::other)?
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether all its threads live. One that ended has said why; what comes to it is not served.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        let lives = |thread: &JoinHandle<()>| !thread.is_finished();
        self.accepting.as_ref().is_none_or(lives)
            && self.threads.iter().all(|thread| thread.lock().as_ref().is_some_and(lives))
    }

    /// What it did so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The same for a status, whenever it is asked for.
    pub fn figures(&self) -> impl Fn() -> Value + Send + use<> {
        let (tally, frames) = (Arc::clone(&self.tally), self.frames.clone());
        move || {
            let mut all = tally.json();
            if let Some(frames) = &frames {
                all["frames"] = frames.json();
            }
            all
        }
    }
}

/// The same for one director, whose flows may hold so much. A client's own part of that is what it
/// is of all workers', as clients may all come to one.
fn with_memory<F: Files>(setup: &Setup<F>, memory: usize) -> Setup<F> {
    let limits = Limits { memory, ..setup.limits };
    Setup { limits, ..setup.clone() }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.stop.0.store(true, Ordering::Release);
        self.stop.1.notify();
        self.workers.iter().for_each(|call| call.stop());
        // One whose thread never comes back is taken over first, and ends then.
        (self.lives, _) = channel();
        let _all = self.all_ended.get_mut().unwrap_or_else(PoisonError::into_inner).recv();
        let threads = self.threads.iter().filter_map(|thread| thread.lock().take());
        for thread in threads.chain(self.accepting.take()) {
            // A panic was printed by the thread itself.
            let _ended = thread.join();
        }
    }
}

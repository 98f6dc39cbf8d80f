//! Who may come: connections of clients, counted over all workers, and the thread that accepts.
//!
//! Whoever finds no room is told so in the application's words and closed, before it costs a
//! worker anything. Descriptors that run short all the same are no end: one is kept back, with
//! which the next client is accepted to be refused.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outboard_dds::dpu::director::{Flow5, Transport, symmetric_hash};
use outboard_os::fds;
use outboard_os::wakeup::Wakeup;

use super::port::Inbox;
use super::sockets::{Listener, Ready, Sockets, Stream};
use super::worker::Tally;

/// A client of kernel sockets takes two: its own, and the host's leg.
const DESCRIPTORS: u64 = 2;
/// A refused connection stays for so long, so that what it is told is not overtaken by its end.
const LINGER: Duration = Duration::from_secs(1);
/// And so many of them.
const LINGERING: usize = 64;
/// A pause after a connection could not be accepted: memory may be back.
const PAUSE: Duration = Duration::from_millis(20);

/// The room for clients of one front.
pub(super) struct Admission {
    most: u64,
    /// What a client is told that finds none.
    pub(super) refusal: &'static [u8],
    tally: Arc<Tally>,
}

/// A client's room, until dropped.
pub(super) struct Place(Arc<Tally>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Admission {
    pub(super) fn new(most: usize, refusal: &'static [u8], tally: Arc<Tally>) -> Admission {
        Admission { most: most as u64, refusal, tally }
    }

    /// No more than this process has descriptors for; an error if that is none.
    pub(super) fn within_descriptors(mut self) -> io::Result<Admission> {
        let most = fds::room() / DESCRIPTORS;
        if most == 0 {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        if most < self.most {
            tracing::info!(
                asked = self.most,
                most,
                descriptors = fds::limit(),
                "fewer clients than asked for: raise `ulimit -n` for more"
            );
            self.most = most;
        }
        Ok(self)
    }

    /// Room for one more; without it the client is to be refused, and is counted so.
    pub(super) fn admit(&self) -> Option<Place> {
        let add = |now| (now < self.most).then_some(now + 1);
        let admitted = self.tally.clients.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        if admitted.is_err() {
            self.tally.turned_away.fetch_add(1, Ordering::Relaxed);
        }
        admitted.ok().map(|_| Place(Arc::clone(&self.tally)))
    }
}

/// A connection that was accepted and has room.
pub(super) struct Admitted {
    pub(super) stream: Stream,
    pub(super) place: Place,
}

/// The thread that accepts. It serves nobody.
pub(super) struct Accepting {
    pub(super) listener: Listener,
    pub(super) workers: Vec<Arc<Inbox<Admitted>>>,
    sockets: Sockets,
    admission: Admission,
    /// Refused, and since when.
    lingering: VecDeque<(Instant, Stream)>,
    /// A descriptor that is given up to accept who is then refused.
    spare: Option<File>,
    has_warned: bool,
    accepted: u64,
}

impl Accepting {
    pub(super) fn new(
        listener: Listener,
        workers: Vec<Arc<Inbox<Admitted>>>,
        admission: Admission,
    ) -> io::Result<Accepting> {
        let sockets = Sockets::new()?;
        sockets.watch_listener(&listener)?;
        Ok(Accepting {
            listener,
            workers,
            sockets,
            admission,
            lingering: VecDeque::new(),
            spare: Some(spare()?),
            has_warned: false,
            accepted: 0,
        })
    }

    /// Until `stop`.
    pub(super) fn run(&mut self, stop: &(AtomicBool, Wakeup)) -> io::Result<()> {
        self.sockets.watch_wakeup(&stop.1)?;
        let mut ready = Vec::new();
        while !stop.0.load(Ordering::Acquire) {
            let limit = (!self.lingering.is_empty()).then_some(LINGER);
            self.sockets.look(limit, &mut ready)?;
            while self.lingering.pop_front_if(|(since, _)| since.elapsed() >= LINGER).is_some() {}
            if ready.drain(..).any(|what| what == Ready::Listener) {
                self.accept_all();
            }
        }
        Ok(())
    }

    fn accept_all(&mut self) {
        loop {
            match self.listener.accept() {
                Ok(Some(stream)) => self.take(stream),
                Ok(None) => return,
                // Without a descriptor that is said of an empty queue, too; and the spare one may
                // be another's as soon as it is given up.
                Err(error) if is_short(&error) && !self.listener.is_asked() => return,
                Err(error) => {
                    self.warn(&error);
                    if !(is_short(&error) && self.refuse_with_spare()) {
                        return std::thread::sleep(PAUSE);
                    }
                }
            }
        }
    }

    fn take(&mut self, stream: Stream) {
        let Some(place) = self.admission.admit() else {
            stream.refuse(self.admission.refusal);
            if self.lingering.len() >= LINGERING {
                self.lingering.pop_front();
            }
            return self.lingering.push_back((Instant::now(), stream));
        };
        self.accepted += 1;
        let hash = stream.ends.map_or(self.accepted, |(client, server)| {
            symmetric_hash(&Flow5 { client, server, transport: Transport::Tcp })
        });
        let at = usize::try_from(hash % self.workers.len() as u64).unwrap_or(0);
        if let Some(worker) = self.workers.get(at) {
            worker.push(Admitted { stream, place }, usize::MAX);
        }
    }

    /// Whether somebody was refused.
    fn refuse_with_spare(&mut self) -> bool {
        // These can go as well.
        self.lingering.clear();
        let had = self.spare.take().is_some();
        let accepted = self.listener.accept();
        if let Ok(Some(stream)) = &accepted {
            self.admission.tally.turned_away.fetch_add(1, Ordering::Relaxed);
            stream.refuse(self.admission.refusal);
        }
        let refused = matches!(accepted, Ok(Some(_)));
        drop(accepted);
        self.spare = spare().ok();
        had && refused
    }

    /// Says once what is short.
    fn warn(&mut self, error: &io::Error) {
        let fd = self.listener.as_fd();
        if std::mem::replace(&mut self.has_warned, true) {
            tracing::debug!(%error, ?fd, "cannot accept a client");
        } else {
            tracing::warn!(
                %error,
                ?fd,
                "cannot accept a client, who is refused; raise `ulimit -n`, or lower the most \
                 clients there may be. Further ones are logged as debug"
            );
        }
    }
}

fn is_short(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

fn spare() -> io::Result<File> {
    File::open("/dev/null")
}

//! Who is connected: listener, sockets, attachments, and sleeping on all of them.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::{Deadline, SessionId, Time};
use outboard_dpc::dpu::AttachmentId;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::Attached;
use crate::link::{Listener, Peer, PeerCred};
use outboard_os::clock;
use outboard_os::fds::Shortage;
use outboard_os::wakeup::Wakeup;

/// Most connections at a time, attached or not.
pub(super) const PEERS_MAX: usize = 256;
/// Of these one user has at most so many, who is neither root nor the volume's owner; and as many
/// sessions that linger.
pub(super) const PEERS_USER: usize = 64;
/// So many are kept for root and the volume's owner.
const PEERS_RESERVE: usize = 32;
/// Names of what the wakeup watches: not a connection's own.
const LISTENER: NonZeroU64 = NonZeroU64::MIN;
const PROCESS: NonZeroU64 = LISTENER.saturating_add(1);
const RING: NonZeroU64 = PROCESS.saturating_add(1);
const FIRST: NonZeroU64 = RING.saturating_add(1);

/// One connection.
pub(super) struct Connection {
    pub(super) peer: Peer,
    pub(super) cred: PeerCred,
    pub(super) attached: Option<Attached>,
    /// The process behind it, to learn whether it is gone.
    pub(super) process: Option<OwnedFd>,
    pub(super) session: SessionId,
    /// A Detach asked for its end; it is answered when that has come.
    pub(super) detaching: bool,
    /// Its socket closed, or it broke the protocol.
    pub(super) closed: bool,
}

impl Connection {
    /// Whether the process at the other end is gone for good.
    pub(super) fn is_dead(&self) -> bool {
        self.process.as_ref().is_none_or(has_ended)
    }
}

/// Whether a process has ended, by its pidfd.
pub(super) fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(0))
}

/// A descriptor of a process; `None` if it has ended.
fn process_of(pid: u32) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else {
        return Ok(None);
    };
    match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
        Ok(process) => Ok(Some(process)),
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// A session whose host may come back: its process lives, or had not ended yet when its socket
/// closed, or another may take it up.
pub(super) struct Lingering {
    pub(super) session: SessionId,
    pub(super) uid: u32,
    pub(super) until: Time,
    /// Whose end is the session's end; `None`: it has come already.
    pub(super) process: Option<OwnedFd>,
    /// No process's end is.
    pub(super) outlives: bool,
}

/// All connections.
pub(super) struct Peers {
    listener: Listener,
    /// While it lasts the listener is not watched.
    shortage: Shortage,
    wakeup: Arc<Wakeup>,
    /// What the last sleep ended with, not looked at yet.
    heard: Option<Vec<u64>>,
    pub(super) all: BTreeMap<u64, Connection>,
    pub(super) lingering: Vec<Lingering>,
    next: NonZeroU64,
    places: BTreeMap<AttachmentId, u64>,
    /// Whom connections are kept for: root, and the volume's owner.
    owner: u32,
    /// Connections that were refused as there were too many.
    pub(super) refused: u64,
}

/// Whether one more connection has room beside `all`, of which `own` are the same user's and
/// `others` those of users that nothing is kept for.
fn has_room(trusted: bool, own: usize, others: usize, all: usize) -> bool {
    let within = own < PEERS_USER && others < PEERS_MAX - PEERS_RESERVE;
    all < PEERS_MAX && (trusted || within)
}

impl Peers {
    /// Listens for those whom the file's mode and group allow.
    pub(super) fn listen(
        path: &Path,
        (mode, group): (u32, Option<u32>),
        owner: u32,
        wakeup: Arc<Wakeup>,
    ) -> io::Result<Peers> {
        let listener = Listener::bind(path, mode, group)?;
        wakeup.watch(listener.fd(), LISTENER)?;
        Ok(Peers {
            listener,
            shortage: Shortage::default(),
            wakeup,
            heard: None,
            all: BTreeMap::new(),
            lingering: Vec::new(),
            next: FIRST,
            places: BTreeMap::new(),
            owner,
            refused: 0,
        })
    }

    /// Sleeps until it is notified, a socket has something, a process that lingers ends, the ring
    /// has completed something, or `timeout`.
    pub(super) fn sleep(&mut self, timeout: Duration) -> io::Result<()> {
        let mut names = Vec::new();
        self.wakeup.listen(timeout, |name| names.push(name))?;
        self.heard = Some(names);
        Ok(())
    }

    /// Lets completions of storage wake a sleeper.
    pub(super) fn watch_ring(&self, ring: BorrowedFd<'_>) -> io::Result<()> {
        self.wakeup.watch(ring, RING)
    }

    /// The sockets that have something, as far as the last sleep found or a look finds: names of
    /// connections, and whether somebody connects.
    pub(super) fn ready(&mut self) -> io::Result<(Vec<u64>, bool)> {
        if self.heard.is_none() {
            self.sleep(Duration::ZERO)?;
        }
        let names = self.heard.take().unwrap_or_default();
        let knocks = names.contains(&LISTENER.get());
        Ok((names.into_iter().filter(|name| *name >= FIRST.get()).collect(), knocks))
    }

    /// The next that connects. When descriptors are short nobody does for a moment: who is there
    /// is served on.
    pub(super) fn accept(&mut self) -> Option<Peer> {
        if self.shortage.until().is_some() {
            return None;
        }
        match self.listener.accept() {
            Ok(peer) => peer,
            Err(error) => {
                self.run_short(&error);
                None
            }
        }
    }

    fn run_short(&mut self, error: &io::Error) {
        self.shortage.begin(clock::now(), error);
        // Watched on, it would keep this thread awake.
        let _unwatched = self.wakeup.forget(self.listener.fd());
    }

    /// Watches the listener again when a shortage is over.
    pub(super) fn look_after_shortage(&mut self, now: Time) -> io::Result<()> {
        if self.shortage.ends(now) {
            self.wakeup.watch(self.listener.fd(), LISTENER)
        } else {
            Ok(())
        }
    }

    /// Whether `uid` may speak for others.
    pub(super) fn is_trusted(&self, uid: u32) -> bool {
        uid == 0 || uid == self.owner
    }

    /// Whether one more connection of `uid` has room; counts those that have none.
    pub(super) fn has_room(&mut self, uid: u32) -> bool {
        let uids = || self.all.values().map(|connection| connection.cred.uid);
        let own = uids().filter(|&other| other == uid).count();
        let others = uids().filter(|&other| !self.is_trusted(other)).count();
        let has_room = has_room(self.is_trusted(uid), own, others, self.all.len());
        self.refused += u64::from(!has_room);
        has_room
    }

    /// Takes a connection in. One whose process cannot be watched, because descriptors are short,
    /// is let go: it would be taken for dead.
    pub(super) fn insert(&mut self, peer: Peer, cred: PeerCred) -> io::Result<u64> {
        let name = self.next.get();
        let process = process_of(cred.pid).inspect_err(|error| self.run_short(error))?;
        self.wakeup.watch(peer.fd(), self.next)?;
        self.next = self.next.saturating_add(1);
        self.all.insert(
            name,
            Connection {
                peer,
                cred,
                attached: None,
                process,
                session: SessionId(0),
                detaching: false,
                closed: false,
            },
        );
        Ok(name)
    }

    pub(super) fn attach(&mut self, name: u64, attached: Attached, session: SessionId) {
        self.places.insert(attached.id, name);
        if let Some(connection) = self.all.get_mut(&name) {
            connection.attached = Some(attached);
            connection.session = session;
        }
    }

    /// Hangs up.
    pub(super) fn remove(&mut self, name: u64) -> Option<Connection> {
        let connection = self.all.remove(&name)?;
        if let Some(attached) = &connection.attached {
            self.places.remove(&attached.id);
        }
        // Closing the socket takes it off the list by itself, unless a copy of it lives elsewhere.
        let _off = self.wakeup.forget(connection.peer.fd());
        Some(connection)
    }

    /// No more is heard from it until it is removed.
    pub(super) fn silence(&mut self, name: u64) {
        if let Some(connection) = self.all.get_mut(&name) {
            connection.closed = true;
            let _off = self.wakeup.forget(connection.peer.fd());
        }
    }

    /// The connection of an attachment.
    pub(super) fn place(&self, id: AttachmentId) -> Option<u64> {
        self.places.get(&id).copied()
    }

    /// Raises an interrupt at a host.
    pub(super) fn interrupt(&self, id: AttachmentId, queue: Option<u16>) {
        let attached = self.place(id).and_then(|name| self.all.get(&name)?.attached.as_ref());
        let Some(Attached { link, .. }) = attached else { return };
        let raised = match queue {
            Some(queue) => link.interrupt(queue),
            None => link.interrupt_events(),
        };
        debug_assert!(raised.is_ok(), "{raised:?}");
    }

    /// Steps every heartbeat.
    pub(super) fn beat(&self) {
        for attached in self.all.values().filter_map(|connection| connection.attached.as_ref()) {
            attached.link.registers().beat_dpu();
        }
    }

    /// When the next session stops lingering, or a shortage is over.
    pub(super) fn deadline(&self) -> Option<Deadline> {
        let lingering = self.lingering.iter().map(|lingering| lingering.until);
        lingering.chain(self.shortage.until()).min()
    }

    /// Whether one more session of `uid` may linger.
    pub(super) fn may_linger(&self, uid: u32) -> bool {
        let own = self.lingering.iter().filter(|lingering| lingering.uid == uid).count();
        self.is_trusted(uid) || own < PEERS_USER
    }

    /// Keeps a session whose host may come back.
    pub(super) fn linger(&mut self, lingering: Lingering) {
        if let Some(process) = lingering.process.as_ref().filter(|_| !lingering.outlives) {
            // Unwatched, it is noticed at the end of its time.
            let _watched = self.wakeup.watch(process.as_fd(), PROCESS);
        }
        self.lingering.push(lingering);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With `--socket-mode 666` one user could take every connection, and `status` and `shutdown`
    /// of the owner were refused with the rest.
    #[test]
    fn nobody_takes_all_connections() {
        assert!(has_room(false, PEERS_USER - 1, PEERS_USER - 1, PEERS_USER - 1));
        assert!(!has_room(false, PEERS_USER, PEERS_USER, PEERS_USER), "a user's share");
        let most = PEERS_MAX - PEERS_RESERVE;
        assert!(has_room(false, 0, most - 1, PEERS_MAX - 1), "another has its own");
        assert!(!has_room(false, 0, most, most), "the reserve");
        assert!(has_room(true, most, most, most));
        assert!(has_room(true, PEERS_MAX - 1, 0, PEERS_MAX - 1));
        assert!(!has_room(true, 0, most, PEERS_MAX), "there is an end to it");
    }
}

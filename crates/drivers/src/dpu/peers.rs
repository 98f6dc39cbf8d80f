//! Who is connected: listener, sockets, attachments, and sleeping on all of them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use outboard_base::{Deadline, SessionId, Time};
use outboard_dpc::dpu::AttachmentId;
use rustix::event::{PollFd, PollFlags, epoll};

use super::Attached;
use crate::link::{Bell, Listener, Peer, PeerCred};

/// Most connections at a time, attached or not.
pub(super) const PEERS_MAX: usize = 256;
/// Sockets looked at in one turn.
const LOOKS: usize = 32;
const LISTENER: u64 = 0;
const BELL: u64 = 1;
const PROCESS: u64 = 2;
const FIRST: u64 = 3;

/// One connection.
pub(super) struct Connection {
    pub(super) peer: Peer,
    pub(super) cred: PeerCred,
    pub(super) attached: Option<Attached>,
    /// The process behind it, to learn whether it is gone.
    pub(super) process: Option<OwnedFd>,
    pub(super) session: SessionId,
    /// A Detach asked for its end; it is told when that has come.
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

/// A session whose host may come back: its process lives, or had not ended yet when its socket
/// closed.
pub(super) struct Lingering {
    pub(super) session: SessionId,
    pub(super) until: Time,
    pub(super) process: Option<OwnedFd>,
}

/// All connections.
pub(super) struct Peers {
    pub(super) listener: Listener,
    epoll: OwnedFd,
    pub(super) all: BTreeMap<u64, Connection>,
    pub(super) lingering: Vec<Lingering>,
    next: u64,
    places: BTreeMap<AttachmentId, u64>,
}

impl Peers {
    /// Listens for those whom the file's mode and group allow.
    pub(super) fn listen(
        path: &Path,
        (mode, group): (u32, Option<u32>),
        bell: &Bell,
    ) -> io::Result<Peers> {
        let listener = Listener::bind(path, mode, group)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, listener.fd(), data, epoll::EventFlags::IN)?;
        let data = epoll::EventData::new_u64(BELL);
        epoll::add(&epoll, bell.fd(), data, epoll::EventFlags::IN)?;
        Ok(Peers {
            listener,
            epoll,
            all: BTreeMap::new(),
            lingering: Vec::new(),
            next: FIRST,
            places: BTreeMap::new(),
        })
    }

    /// The sockets that have something: names of connections, and whether somebody connects.
    pub(super) fn ready(&self) -> io::Result<(Vec<u64>, bool)> {
        let mut events = Vec::with_capacity(LOOKS);
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let space = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, space, Some(&now)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let names: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
        let knocks = names.contains(&LISTENER);
        Ok((names.into_iter().filter(|name| *name >= FIRST).collect(), knocks))
    }

    /// Takes a connection in; `None` when there are too many.
    pub(super) fn insert(&mut self, peer: Peer) -> io::Result<Option<u64>> {
        if self.all.len() >= PEERS_MAX {
            return Ok(None);
        }
        let cred = peer.cred()?;
        let name = self.next;
        self.next += 1;
        let data = epoll::EventData::new_u64(name);
        epoll::add(&self.epoll, peer.fd(), data, epoll::EventFlags::IN)?;
        let process =
            i32::try_from(cred.pid).ok().and_then(rustix::process::Pid::from_raw).and_then(|pid| {
                rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
            });
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
        Ok(Some(name))
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
        let _off = epoll::delete(&self.epoll, connection.peer.fd());
        Some(connection)
    }

    /// No more is heard from it until it is removed.
    pub(super) fn silence(&mut self, name: u64) {
        if let Some(connection) = self.all.get_mut(&name) {
            connection.closed = true;
            let _off = epoll::delete(&self.epoll, connection.peer.fd());
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

    /// When the next session stops lingering.
    pub(super) fn deadline(&self) -> Option<Deadline> {
        self.lingering.iter().map(|lingering| lingering.until).min()
    }

    /// Readable when the bell rings, a socket has something, or a process that lingers ends.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Keeps a session whose host may come back.
    pub(super) fn linger(&mut self, lingering: Lingering) {
        if let Some(process) = &lingering.process {
            let data = epoll::EventData::new_u64(PROCESS);
            // Unwatched, it is noticed at the end of its time.
            let _watched = epoll::add(&self.epoll, process, data, epoll::EventFlags::IN);
        }
        self.lingering.push(lingering);
    }
}

//! Who is connected: the listener, the sockets, and what hosts say there.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use outboard_wire::attach::{Hello, Message, Reason};
use rustix::event::epoll::{self, EventData, EventFlags};
use serde_json::Value;

use super::attached::{Attached, Terms};
use super::control::{self, Answer, Asked, Control};
use outboard_attach::link::{Listener, Peer, Received};
use outboard_os::clock;
use outboard_os::fds::Shortage;
use outboard_os::wakeup::Wakeup;

/// Most connections at a time.
const PEERS_MAX: usize = 64;
/// Messages taken from one socket in one pass.
const MESSAGES: usize = 8;
const LISTENER: u64 = 0;
const WAKEUP: u64 = 1;
const FIRST: u64 = 2;

struct Connection {
    peer: Peer,
    attached: Option<Attached>,
    pid: u32,
    uid: u32,
}

/// All connections.
pub(super) struct Sockets {
    listener: Listener,
    /// While it lasts the listener is not watched.
    shortage: Shortage,
    epoll: OwnedFd,
    all: BTreeMap<u64, Connection>,
    next: u64,
    control: Control,
}

impl Sockets {
    pub(super) fn listen(path: &Path, mode: u32, control: Control) -> io::Result<Sockets> {
        let listener = Listener::bind(path, mode, None)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, listener.fd(), LISTENER)?;
        let (shortage, all) = (Shortage::default(), BTreeMap::new());
        Ok(Sockets { listener, shortage, epoll, all, next: FIRST, control })
    }

    /// Wakes from sleep when it is notified, too.
    pub(super) fn watch(&self, wakeup: &Wakeup) -> io::Result<()> {
        watch(&self.epoll, wakeup.fd(), WAKEUP)
    }

    /// Readable when a socket has something, somebody connects, or it is notified.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Every host.
    pub(super) fn attached(&mut self) -> impl Iterator<Item = &mut Attached> {
        self.all.values_mut().filter_map(|connection| connection.attached.as_mut())
    }

    /// Hears what hosts say, and lets go of those that are gone or cannot be followed; how much
    /// that was.
    pub(super) fn hear(&mut self, terms: &Terms<'_>) -> io::Result<usize> {
        if self.shortage.ends(clock::now()) {
            watch(&self.epoll, self.listener.fd(), LISTENER)?;
        }
        let mut events = Vec::with_capacity(PEERS_MAX);
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let names: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
        let mut found = 0;
        for name in names {
            match name {
                LISTENER => found += self.accept(),
                WAKEUP => {}
                name => found += self.hear_one(name, terms),
            }
        }
        self.cut_off();
        for Answer { name, id, value, fd } in self.control.take_answers() {
            self.reply(name, id, &value, fd.as_ref());
        }
        Ok(found)
    }

    /// When descriptors are short nobody is accepted for a moment: who is there is served on.
    fn accept(&mut self) -> usize {
        let mut found = 0;
        loop {
            let took =
                self.listener.accept().and_then(|peer| peer.map(|it| self.take(it)).transpose());
            match took {
                Ok(Some(())) => found += 1,
                Ok(None) => return found,
                Err(error) => {
                    self.shortage.begin(clock::now(), &error);
                    // Watched on, it would keep this thread awake.
                    let _unwatched = epoll::delete(&self.epoll, self.listener.fd());
                    return found;
                }
            }
        }
    }

    fn take(&mut self, peer: Peer) -> io::Result<()> {
        if self.all.len() >= PEERS_MAX {
            say_no(&peer, Reason::Full, "too many connections");
            return Ok(());
        }
        let cred = peer.cred()?;
        watch(&self.epoll, peer.fd(), self.next)?;
        self.all
            .insert(self.next, Connection { peer, attached: None, pid: cred.pid, uid: cred.uid });
        self.next += 1;
        Ok(())
    }

    fn hear_one(&mut self, name: u64, terms: &Terms<'_>) -> usize {
        for found in 0..MESSAGES {
            let Some(connection) = self.all.get_mut(&name) else { return found };
            match connection.peer.receive() {
                Ok(Received::Nothing) => return found,
                Ok(Received::Message(Message::Control { id, text }, _)) => {
                    self.control(name, id, &text, terms);
                }
                Ok(Received::Message(message, fds)) => {
                    if let Err((reason, why)) = connection.obey(message, fds, terms) {
                        tracing::warn!(pid = connection.pid, ?reason, why, "a host is refused");
                        say_no(&connection.peer, reason, &why);
                        self.remove(name, "broke the protocol");
                    }
                }
                Ok(Received::Garbage(error)) => {
                    say_no(&connection.peer, error.reason(), &error.to_string());
                    self.remove(name, "broke the protocol");
                }
                Ok(Received::Closed) | Err(_) => self.remove(name, "is gone"),
            }
        }
        MESSAGES
    }

    fn control(&self, name: u64, id: u32, text: &str, terms: &Terms<'_>) {
        let Some(uid) = self.all.get(&name).map(|connection| connection.uid) else { return };
        let is_trusted = uid == 0 || uid == rustix::process::geteuid().as_raw();
        let peers = self.all.values().filter_map(|connection| {
            let attached = connection.attached.as_ref()?;
            Some(control::Peer { pid: connection.pid, attached })
        });
        let asked = Asked { name, id, text, is_trusted };
        if let Some(answer) = self.control.answer(&asked, terms, peers) {
            self.reply(name, id, &answer, None);
        }
    }

    fn reply(&self, name: u64, id: u32, answer: &Value, fd: Option<&OwnedFd>) {
        let Some(connection) = self.all.get(&name) else { return };
        // It may have hung up.
        let reply = Message::ControlReply { id, text: answer.to_string() };
        let fd = fd.map(AsFd::as_fd);
        let _unheard = connection.peer.send(&reply, fd.as_slice());
    }

    /// Lets go of hosts whose rings cannot be followed.
    fn cut_off(&mut self) {
        let fault = |attached: &Attached| attached.fault();
        let broken: Vec<_> = self
            .all
            .iter()
            .filter_map(|(name, it)| Some((*name, it.attached.as_ref().and_then(fault)?)))
            .collect();
        for (name, fault) in broken {
            tracing::warn!(%fault, "a host is cut off");
            self.remove(name, "broke its rings");
        }
    }

    fn remove(&mut self, name: u64, why: &str) {
        let Some(connection) = self.all.remove(&name) else { return };
        let _off = epoll::delete(&self.epoll, connection.peer.fd());
        if connection.attached.is_some() {
            tracing::info!(pid = connection.pid, why, "a host's groups are let go");
        }
    }
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, name: u64) -> io::Result<()> {
    Ok(epoll::add(epoll, fd, EventData::new_u64(name), EventFlags::IN)?)
}

impl Connection {
    /// Does what a message asks. Who is refused has its connection closed.
    fn obey(
        &mut self,
        message: Message,
        fds: Vec<OwnedFd>,
        terms: &Terms<'_>,
    ) -> Result<(), (Reason, String)> {
        match message {
            Message::Hello(Hello::Rings(hello)) if self.attached.is_none() => {
                self.attached = Some(Attached::admit(&self.peer, &hello, fds, terms)?);
                tracing::info!(pid = self.pid, "a host is attached");
            }
            Message::Hello(hello) if self.attached.is_none() => {
                let role = hello.role();
                return Err((Reason::Role, format!("a page server serves rings, and no {role}")));
            }
            _ => {
                let text = "this message is not for the DPU side of a page server";
                return Err((Reason::Malformed, text.to_owned()));
            }
        }
        Ok(())
    }
}

/// Says no. A host that does not listen learns it from the closed socket.
fn say_no(peer: &Peer, reason: Reason, text: &str) {
    let _unheard = peer.send(&Message::Refused { reason, text: text.to_owned() }, &[]);
}

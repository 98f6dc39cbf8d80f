//! Coming and going: what hosts say on their sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use outboard_base::{Cred, Time};
use outboard_dpc::dpu::{AttachmentId, Gone};
use outboard_link::dma::{Counted, Direct, Dma};
use outboard_volume::Caller;
use outboard_wire::attach::{Company, Hello, Message, QueuesHello, Reason};
use outboard_wire::nvmefs::Dispatch;

use super::peers::{Connection, Lingering, has_ended};
use super::sessions::Holder;
use super::{Attached, Dpu, cache};
use crate::link::{DpuAttachment, Peer, Received};
use outboard_os::runtime::Runtime;
use outboard_volume::Housekeeping;

/// Messages taken from one socket in one pass.
const MESSAGES: usize = 8;

impl<V: Housekeeping, S: Housekeeping, R: Runtime> Dpu<V, R, S> {
    /// Hears what hosts say; how much that was.
    pub(super) fn hear(&mut self) -> io::Result<usize> {
        let (ready, knocks) = self.peers.ready()?;
        let found = ready.len() + usize::from(knocks);
        if knocks {
            self.accept();
        }
        for name in ready {
            self.hear_one(name);
        }
        Ok(found)
    }

    fn accept(&mut self) {
        while let Some(peer) = self.peers.accept() {
            let taken = peer.cred().and_then(|cred| {
                if self.ending.is_some() || !self.peers.has_room(cred.uid) {
                    let why = "too many connections, of this user or of all, or it is closing";
                    say_no(&peer, Reason::Full, why);
                    return Ok(());
                }
                self.peers.insert(peer, cred).map(drop)
            });
            if let Err(error) = taken {
                tracing::debug!(%error, "a connection could not be taken");
            }
        }
    }

    fn hear_one(&mut self, name: u64) {
        for _ in 0..MESSAGES {
            let Some(connection) = self.peers.all.get(&name) else { return };
            match connection.peer.receive() {
                Ok(Received::Nothing) => return,
                Ok(Received::Message(message, fds)) => self.obey(name, message, fds),
                Ok(Received::Garbage(error)) => {
                    say_no(&connection.peer, error.reason(), &error.to_string());
                    return self.lose(name);
                }
                Ok(Received::Closed) | Err(_) => return self.lose(name),
            }
        }
    }

    fn obey(&mut self, name: u64, message: Message, fds: Vec<OwnedFd>) {
        let Some(connection) = self.peers.all.get_mut(&name) else { return };
        match message {
            Message::Hello(Hello::Queues(hello)) if connection.attached.is_none() => {
                if let Err((reason, text)) = self.admit(name, &hello, fds) {
                    tracing::warn!(session = %hello.session, ?reason, "attachment refused: {text}");
                    self.peers.remove(name);
                }
            }
            Message::Detach => {
                connection.detaching = true;
                if let Some(attached) = &connection.attached {
                    self.service.leave(attached.id);
                }
            }
            Message::Control { id, text } => {
                let trusted = self.is_trusted(name);
                self.control(name, id, &text, trusted);
            }
            Message::Hello(hello) if connection.attached.is_none() => {
                let text = format!("this DPU side serves a volume, and no {}", hello.role());
                say_no(&connection.peer, Reason::Role, &text);
                self.lose(name);
            }
            _ => {
                say_no(&connection.peer, Reason::Malformed, "this message is not for the DPU side");
                self.lose(name);
            }
        }
    }

    /// Root and the volume's owner may speak for others.
    fn is_trusted(&self, name: u64) -> bool {
        let uid = self.peers.all.get(&name).map(|connection| connection.cred.uid);
        uid.is_some_and(|uid| self.peers.is_trusted(uid))
    }

    fn admit(
        &mut self,
        name: u64,
        hello: &QueuesHello,
        fds: Vec<OwnedFd>,
    ) -> Result<(), (Reason, String)> {
        let trusted = self.is_trusted(name);
        let connection =
            self.peers.all.get(&name).ok_or_else(|| (Reason::Closing, "hung up".to_owned()))?;
        self.may_use(hello, connection).inspect_err(|(reason, text)| {
            say_no(&connection.peer, *reason, text);
        })?;
        let link =
            DpuAttachment::admit(&connection.peer, hello, fds, &self.options.terms, &self.wakeup)?;
        let cred = connection.cred.clone();
        let caller = Caller {
            attachment: hello.session,
            trusted,
            peer: Cred { uid: cred.uid, gid: cred.gid, pid: cred.pid, groups: cred.groups },
            // A kernel that collects writes, which nobody else must see the times of.
            keeps_times: hello.company.collects(),
        };
        let direct = Direct::new(Arc::clone(link.region()));
        let dma: Arc<dyn Dma> = Arc::new(Counted::new(direct, Arc::clone(&self.ledger)));
        let targets = link.targets(&dma, &self.ledger);
        let sender = link.sender(&dma, &self.ledger);
        let id = self
            .service
            .attach(caller, targets, sender)
            .ok_or_else(|| (Reason::Busy, "the session is being served".to_owned()))?;
        self.admit_cache(name, id, hello, dma);
        self.peers.lingering.retain(|lingering| lingering.session != hello.session);
        let cached = hello.cache_len > 0;
        let QueuesHello { company, outlives, .. } = *hello;
        let (uid, pid) = (cred.uid, cred.pid);
        self.sessions.insert(hello.session, Holder { uid, pid, cached, company, outlives });
        if company == Company::TheModest {
            self.service.collects(hello.session);
        }
        link.registers().beat_dpu();
        self.peers.attach(name, Attached { id, link }, hello.session);
        tracing::info!(
            session = %hello.session, pid = cred.pid, uid = cred.uid,
            queues = hello.queues, depth = hello.depth, "attached"
        );
        Ok(())
    }

    /// Takes the host's cache in, if it brings one. One that is not as it must be is left alone:
    /// without grants its host sends everything.
    fn admit_cache(&mut self, name: u64, id: AttachmentId, hello: &QueuesHello, dma: Arc<dyn Dma>) {
        if hello.cache_len == 0 {
            return;
        }
        let process = self.peers.all.get(&name).and_then(|connection| {
            connection.process.as_ref().and_then(|process| process.try_clone().ok())
        });
        let setup = match cache::take_in(hello, dma, process, self.options.policies) {
            Ok(setup) => setup,
            Err(error) => {
                tracing::warn!(session = %hello.session, %error, "a host's cache is not used");
                return;
            }
        };
        if let Some(work) = self.service.attach_cache(id, Self::CACHED, setup) {
            self.runtime.spawn(work);
        }
        let maintained = match Self::CACHED {
            Dispatch::Kv => self.kv.maintain_caches(&self.wakeup),
            Dispatch::Shared => self.shared.maintain_caches(&self.wakeup),
        };
        if let Err(error) = maintained {
            tracing::warn!(%error, "no thread to maintain caches: they are flushed on demand only");
        }
    }

    /// Whether a host may attach under a session.
    fn may_use(
        &self,
        hello: &QueuesHello,
        connection: &Connection,
    ) -> Result<(), (Reason, String)> {
        let no = |reason, text: &str| Err((reason, text.to_owned()));
        if self.ending.is_some() {
            return no(Reason::Closing, "the DPU side is closing");
        }
        if hello.session.0 == 0 {
            return no(Reason::Malformed, "a session is not 0");
        }
        if hello.cache_len > 0 && !self.options.caches {
            return no(Reason::Role, "caches of hosts are not managed here: attach without one");
        }
        let holder = self.sessions.holder(hello.session);
        if holder.is_some_and(|holder| holder.uid != connection.cred.uid) {
            return no(Reason::Permission, "the session belongs to another user");
        }
        if self.service.serves(hello.session) {
            return no(Reason::Busy, "the session is attached, or its last requests still run");
        }
        if let Some(other) = self.sessions.in_the_way(hello.session, hello.company) {
            let pid = other.pid;
            let text = if other.company == Company::TheModest {
                format!(
                    "the kernel collects writes for process {pid} (`--cache write-back`): who is \
                     beside it keeps nothing (`--cache none`)"
                )
            } else if other.company == Company::Nobody {
                format!("process {pid} has the volume for itself (`--cache write-back`)")
            } else if hello.company == Company::TheModest {
                format!(
                    "`--cache write-back` is beside those alone who keep nothing (`--cache \
                     none`), and process {pid} is none of them"
                )
            } else {
                format!(
                    "`--cache write-back` wants the volume for itself, and process {pid} uses it"
                )
            };
            return Err((Reason::InUse, text));
        }
        Ok(())
    }

    /// A host is gone, or is to go.
    fn lose(&mut self, name: u64) {
        self.peers.silence(name);
        let attached = self.peers.all.get(&name).and_then(|c| c.attached.as_ref().map(|a| a.id));
        match attached {
            Some(id) => self.service.leave(id),
            None => drop(self.peers.remove(name)),
        }
    }

    /// Releases what nothing runs for any more, and cuts off hosts that broke their queues.
    pub(super) fn sweep(&mut self, now: Time) {
        let broken: Vec<_> = self
            .service
            .attachments()
            .filter(|(_, attachment)| !attachment.is_gone())
            .filter_map(|(id, attachment)| Some((id, attachment.fault()?)))
            .collect();
        for (id, fault) in broken {
            if let Some(name) = self.peers.place(id) {
                tracing::warn!(?fault, "a host broke its queues: it is cut off");
                self.lose(name);
            }
        }
        for gone in self.service.sweep() {
            self.release(now, gone);
        }
        self.end_lingering(now);
        // A Detach before a Hello: nothing to wait for.
        let idle: Vec<u64> = self
            .peers
            .all
            .iter()
            .filter(|(_, connection)| connection.detaching && connection.attached.is_none())
            .map(|(name, _)| *name)
            .collect();
        for name in idle {
            self.peers.remove(name);
        }
    }

    fn release(&mut self, now: Time, gone: Gone) {
        let Some(name) = self.peers.place(gone.id) else { return };
        let Some(connection) = self.peers.remove(name) else { return };
        let pid = connection.cred.pid;
        let outlives = self.sessions.holder(gone.session).is_some_and(|holder| holder.outlives);
        let may_come_back = outlives || !connection.is_dead();
        if connection.detaching {
            self.forget(now, gone.session);
            // The host may have hung up already.
            let _unheard = connection.peer.send(&Message::Detach, &[]);
            tracing::info!(session = %gone.session, pid, "detached");
        } else if may_come_back && !self.peers.may_linger(connection.cred.uid) {
            self.forget(now, gone.session);
            tracing::warn!(
                session = %gone.session, pid,
                "hung up without a word, as many of its user did: what it holds is released"
            );
        } else if !may_come_back {
            self.forget(now, gone.session);
            tracing::warn!(
                session = %gone.session, pid,
                "its process died: its files and locks are released"
            );
        } else {
            tracing::warn!(
                session = %gone.session, pid,
                "hung up without a word: what it holds is kept for {} s in case it comes back",
                self.options.linger.as_secs()
            );
            self.peers.linger(Lingering {
                session: gone.session,
                uid: connection.cred.uid,
                until: now.after(self.options.linger),
                process: connection.process,
                outlives,
            });
        }
    }

    fn forget(&mut self, now: Time, session: outboard_base::SessionId) {
        self.service.forget(session);
        self.sessions.remove(session);
        self.grace.returned(session);
        self.kv.tidy_soon(now);
        self.shared.tidy_soon(now);
    }

    fn end_lingering(&mut self, now: Time) {
        let mut over = Vec::new();
        self.peers.lingering.retain(|lingering| {
            let ended = lingering.process.as_ref().is_none_or(has_ended);
            let dead = ended && !lingering.outlives;
            if dead || now >= lingering.until {
                over.push(lingering.session);
            }
            !dead && now < lingering.until
        });
        for session in over {
            tracing::warn!(%session, "did not come back: its files and locks are released");
            self.forget(now, session);
        }
    }
}

/// Says no. A host that does not listen learns it from the closed socket.
fn say_no(peer: &Peer, reason: Reason, text: &str) {
    let _unheard = peer.send(&Message::Refused { reason, text: text.to_owned() }, &[]);
}

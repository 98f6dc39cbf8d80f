//! A member of a group: its strips, and what is checked before any of them changes.
//!
//! It believes no message: each carries an epoch, and one that is not this member's is refused
//! (R3). It serves only while the record names its node in the life that it is in (R9), and a
//! joining one takes no write before it has the fences of an ACTIVE member of its epoch (R3).
//!
//! What it keeps is a log's: everything survives the end of the process, and what `durable` was
//! said of survives the loss of power, with all before it.

use std::collections::BTreeMap;

use crate::fault::{Fault, planted};
use crate::group::{Group, Role};
use crate::message::{Gep, Life, Mark, Node, Reason, Reply, Request, StripId};
use crate::strip::{Copied, Resolved, Strip};

/// What a member wants done after a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output<B> {
    /// Flush the log before any of the rest.
    pub durable: bool,
    /// The answer to who asked; none when the member must ask somebody first.
    pub reply: Option<Reply<B>>,
    /// What is asked of another member.
    pub ask: Option<(Node, StripId, Request<B>)>,
}

/// A node as a member of one group.
#[derive(Clone, Debug)]
pub struct Member<B> {
    node: Node,
    life: Life,
    gep: Gep,
    joined: Gep,
    role: Option<Role>,
    /// Whether the fences of the group are here (R3).
    sealed: bool,
    /// Of whom a joining member asks.
    source: Option<Node>,
    /// How a strip begins that nobody wrote.
    blank: Vec<B>,
    strips: BTreeMap<StripId, Strip<B>>,
}

impl<B: Clone> Member<B> {
    /// A node that is a member of nothing. The group has these strips, all of grains `blank`.
    pub fn new(
        node: Node,
        life: Life,
        strips: impl Iterator<Item = StripId>,
        blank: &[B],
    ) -> Member<B> {
        let strips = strips.map(|id| (id, Strip::new(blank.to_vec()))).collect();
        Member {
            node,
            life,
            gep: 0,
            joined: 0,
            role: None,
            sealed: true,
            source: None,
            blank: blank.to_vec(),
            strips,
        }
    }

    /// Its epoch.
    #[must_use]
    pub fn gep(&self) -> Gep {
        self.gep
    }

    /// In which life it is.
    #[must_use]
    pub fn life(&self) -> Life {
        self.life
    }

    /// What it is, if it is a member.
    #[must_use]
    pub fn role(&self) -> Option<Role> {
        self.role
    }

    /// Its strips.
    pub fn strips(&self) -> impl Iterator<Item = (StripId, &Strip<B>)> {
        self.strips.iter().map(|(id, strip)| (*id, strip))
    }

    /// The process starts, on what its log holds. In another life it is nobody's member until a
    /// record says so.
    pub fn start(&mut self, life: Life) {
        self.strips.values_mut().for_each(Strip::restart);
        if life != self.life {
            self.role = None;
        }
        self.life = life;
    }

    /// A record of the group; an older one than the last is passed over.
    pub fn learn(&mut self, group: &Group) {
        if group.gep <= self.gep {
            return;
        }
        self.gep = group.gep;
        let entry = group.member(self.node);
        let entry = entry.filter(|entry| entry.life == self.life);
        self.role = entry.map(|entry| entry.role);
        self.source = group.active().map(|active| active.node).find(|node| *node != self.node);
        let Some(entry) = entry else { return };
        if entry.joined != self.joined && entry.role == Role::Filling {
            self.sealed = false;
            self.strips.values_mut().for_each(Strip::rejoin);
        }
        self.joined = entry.joined;
    }

    /// What a filling member has to ask for now, of an ACTIVE one of its epoch.
    #[must_use]
    pub fn wants(&self) -> Vec<(Node, StripId, Request<B>)> {
        let (Some(Role::Filling), Some(source)) = (self.role, self.source) else {
            return Vec::new();
        };
        if !self.sealed {
            return vec![(source, 0, Request::Fences)];
        }
        let open = self.strips.iter().filter(|(_, strip)| !strip.is_complete());
        open.map(|(id, strip)| (source, *id, Request::Fetch(strip.kept()))).collect()
    }

    /// The marks under which all its strips are complete, once they are (R7). The caller makes
    /// the log durable before it tells.
    #[must_use]
    pub fn filled(&self) -> Option<Vec<(StripId, Mark)>> {
        let is_filled = self.role == Some(Role::Filling)
            && self.sealed
            && self.strips.values().all(Strip::is_complete);
        is_filled.then(|| self.fences())
    }

    fn fences(&self) -> Vec<(StripId, Mark)> {
        self.strips.iter().map(|(id, strip)| (*id, strip.mark())).collect()
    }

    /// Answers a request that was made under `gep`.
    pub fn handle(&mut self, id: StripId, gep: Gep, request: Request<B>) -> Output<B> {
        let durable = match request {
            Request::Flush(..) => !planted(Fault::FlushNotDurable),
            Request::Seal(_) | Request::Resolve { .. } => true,
            _ => false,
        };
        let mut ask = None;
        let reply = match self.admit(gep, &request) {
            Err(reason) => Some(Reply::Refused(reason)),
            Ok(role) => match self.serve(id, role, request) {
                Ok(Served::Reply(reply)) => Some(reply),
                Ok(Served::Ask(node, request)) => {
                    ask = Some((node, id, request));
                    None
                }
                Err(reason) => Some(Reply::Refused(reason)),
            },
        };
        let durable = durable && !matches!(reply, Some(Reply::Refused(_)));
        Output { durable, reply, ask }
    }

    fn admit(&self, gep: Gep, request: &Request<B>) -> Result<Role, Reason> {
        let role = self.role.filter(|_| gep == self.gep).ok_or(Reason::Epoch(self.gep))?;
        let serves = match request {
            Request::Read(_) => role == Role::Active || planted(Fault::FillingReads),
            Request::Fetch(_) | Request::Fences => role == Role::Active,
            Request::Write(_) | Request::Flush(..) => self.sealed,
            Request::Seal(_) | Request::Resolve { .. } => true,
        };
        if serves { Ok(role) } else { Err(Reason::Filling) }
    }

    fn serve(&mut self, id: StripId, role: Role, request: Request<B>) -> Result<Served<B>, Reason> {
        let (gep, fences) = (self.gep, self.fences());
        let strip = self.strips.entry(id).or_insert_with(|| Strip::new(self.blank.clone()));
        Ok(Served::Reply(match request {
            Request::Write(write) => {
                let version = write.version;
                strip.write(write, role, gep)?;
                Reply::Accepted(version)
            }
            Request::Flush(version, fence) => {
                strip.flush(version, fence, role)?;
                Reply::Flushed(version)
            }
            Request::Read(fence) => {
                let whole = strip.read(fence)?;
                Reply::Content(whole.version, whole.grains)
            }
            Request::Seal(fence) => Reply::Sealed(strip.seal(fence)?),
            Request::Resolve { fence, version, source } => {
                match strip.resolve(version, fence, role)? {
                    Resolved::Done => Reply::Resolved,
                    Resolved::Lacks => return Ok(Served::Ask(source, Request::Fetch(None))),
                }
            }
            Request::Fetch(kept) => Reply::Copy(strip.fetch(kept).ok_or(Reason::Gap)?),
            Request::Fences => Reply::Fences(fences),
        }))
    }

    /// What another member answered, asked under `gep`; of another epoch than this it is passed
    /// over.
    pub fn answered(&mut self, id: StripId, gep: Gep, reply: Reply<B>) {
        let Some(role) = self.role.filter(|_| gep == self.gep) else { return };
        match reply {
            // Before the copies alone: what a source decides later says nothing of copies it gave.
            Reply::Fences(marks) if role == Role::Filling && !self.sealed => {
                for (id, mark) in marks {
                    if let Some(strip) = self.strips.get_mut(&id) {
                        strip.raise(mark);
                    }
                }
                self.sealed = true;
            }
            Reply::Copy(copy) => {
                if let Some(strip) = self.strips.get_mut(&id) {
                    let (Copied::Taken | Copied::Passed) = strip.copy(copy, role);
                }
            }
            _ => {}
        }
    }
}

enum Served<B> {
    Reply(Reply<B>),
    Ask(Node, Request<B>),
}

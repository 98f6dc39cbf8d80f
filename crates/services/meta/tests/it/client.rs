//! A client as the contract has it: a lease by its own clock, delegations that it gives back when
//! asked, and the rule for a recall that overtakes a grant. It notes what it believes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outboard_base::{Errno, Ino, Time};
use outboard_sim::Chooser;
use outboard_wire::shared::call::{Call, Mode, Reply, Told};

use crate::world::{Asked, Granted, Rig};

/// A lease, from the sending of the renewal.
const TERM: Duration = Duration::from_secs(10);
/// After so long an answer is not waited for any more.
const GIVE_UP: Duration = Duration::from_secs(25);

/// A delegation as the client knows it.
pub(crate) struct Has {
    pub(crate) grant: Granted,
    pub(crate) mode: Mode,
    /// What it knows of the end of the file.
    pub(crate) end: u64,
    dirty: bool,
}

enum Wants {
    Begin,
    Renew,
    Delegate(Ino, Mode),
    /// Under which fence, and which end.
    Publish(Ino, u64, u64),
    Release(Ino, u64, Option<Mode>),
}

/// Something asked of the server. The reply comes into the slot, and is seen later.
struct Pending {
    sent: Time,
    wants: Wants,
    slot: Arc<Mutex<Option<Reply>>>,
    /// A recall of its file was answered meanwhile.
    overtaken: bool,
}

/// What becomes of a recall.
struct Recalled {
    asked: Asked,
    ino: Ino,
    keep: Option<Mode>,
}

pub(crate) struct Client {
    pub(crate) id: u64,
    /// What its life begins with; none: it never says that it does.
    pub(crate) nonce: Option<u64>,
    pub(crate) begun: bool,
    life: Option<u64>,
    lease: Time,
    pub(crate) has: BTreeMap<Ino, Has>,
    pending: Vec<Pending>,
    recalled: Vec<Recalled>,
    /// It does nothing before this.
    pub(crate) stopped_until: Time,
}

impl Client {
    /// One whose number nobody had before.
    pub(crate) fn new(id: u64) -> Client {
        Client {
            id,
            nonce: None,
            begun: true,
            life: None,
            lease: Time(0),
            has: BTreeMap::new(),
            pending: Vec::new(),
            recalled: Vec::new(),
            stopped_until: Time(0),
        }
    }

    /// One whose number another may have had.
    pub(crate) fn beginning(id: u64, nonce: u64) -> Client {
        Client { nonce: Some(nonce), begun: false, ..Client::new(id) }
    }

    /// What it may use now, by its own clock.
    pub(crate) fn uses(&self, ino: Ino, now: Time) -> Option<&Has> {
        self.has.get(&ino).filter(|_| now < self.lease && !self.leaves(ino))
    }

    /// What is being given back is not used any more.
    pub(crate) fn leaves(&self, ino: Ino) -> bool {
        let of = |pending: &Pending| matches!(pending.wants, Wants::Release(of, ..) if of == ino);
        self.pending.iter().any(of)
    }

    fn ask(&mut self, rig: &Rig, chooser: &mut Chooser, wants: Wants) {
        let told = |has: Option<&Has>| Told {
            size: has.map_or(0, |has| has.end),
            mtime: None,
            blocks: None,
        };
        let call = match wants {
            Wants::Begin => Call::Begin { nonce: self.nonce.unwrap() },
            Wants::Renew => Call::Renew,
            Wants::Delegate(ino, mode) => Call::Delegate { ino, mode },
            Wants::Publish(ino, fence, size) => {
                Call::Publish { ino, fence, told: Told { size, mtime: None, blocks: None } }
            }
            Wants::Release(ino, fence, keep) => {
                let has = self.has.get(&ino).filter(|has| has.mode == Mode::Write);
                Call::Release { ino, fence, told: has.map(|has| told(Some(has))), keep }
            }
        };
        if matches!(call, Call::Release { .. }) && chooser.chance(1, 4) {
            // It comes again, when it is over.
            let late = Duration::from_millis(chooser.below(3000));
            rig.ask_late(self.id, call.clone(), late);
        }
        let slot = rig.ask(self.id, call);
        self.pending.push(Pending { sent: rig.world.time(), wants, slot, overtaken: false });
    }

    fn waits_for(&self, ino: Ino) -> bool {
        self.pending.iter().any(|pending| match pending.wants {
            Wants::Begin | Wants::Renew => false,
            Wants::Delegate(of, _) | Wants::Publish(of, ..) | Wants::Release(of, ..) => of == ino,
        })
    }

    /// Does something; false if it ends, as the server is another.
    pub(crate) fn step(&mut self, rig: &Rig, chooser: &mut Chooser, files: &[Ino]) -> bool {
        let now = rig.world.time();
        if now < self.stopped_until {
            return true;
        }
        self.hear(rig, chooser);
        if !self.take_answers(rig, chooser) {
            return false;
        }
        if !self.begun {
            if self.pending.is_empty() {
                self.ask(rig, chooser, Wants::Begin);
            }
            return true;
        }
        let renews = self.pending.iter().any(|pending| matches!(pending.wants, Wants::Renew));
        if !renews && now.after(TERM - Duration::from_secs(1)) > self.lease {
            self.ask(rig, chooser, Wants::Renew);
        }
        let ino = files[chooser.below(files.len() as u64) as usize];
        match chooser.below(12) {
            0 if !self.waits_for(ino) && now < self.lease => {
                let mode = if chooser.chance(1, 2) { Mode::Read } else { Mode::Write };
                self.ask(rig, chooser, Wants::Delegate(ino, mode));
            }
            // A write may be under way when the lease ends: nodes judge it, not the client.
            1..4 if chooser.chance(1, 2) || now < self.lease => self.write(rig, ino, chooser),
            4 if !self.waits_for(ino) => {
                if let Some(has) = self.has.get(&ino).filter(|has| has.mode == Mode::Write) {
                    let (fence, end) = (has.grant.capability.fence, has.end);
                    self.ask(rig, chooser, Wants::Publish(ino, fence, end));
                }
            }
            5 if !self.waits_for(ino) && chooser.chance(1, 3) => {
                if let Some(has) = self.has.get(&ino) {
                    let keep = chooser.chance(1, 2).then_some(Mode::Read);
                    let fence = has.grant.capability.fence;
                    self.ask(rig, chooser, Wants::Release(ino, fence, keep));
                }
            }
            6 => self.answer_recalls(rig, chooser),
            _ => {}
        }
        true
    }

    fn write(&mut self, rig: &Rig, ino: Ino, chooser: &mut Chooser) {
        if self.leaves(ino) {
            return;
        }
        let Some(has) = self.has.get_mut(&ino).filter(|has| has.mode == Mode::Write) else {
            return;
        };
        let end = has.end + chooser.below(3);
        if rig.world.write(&has.grant.capability, &has.grant.nodes, end) {
            has.end = end;
            has.dirty = true;
        } else if rig.world.is_fenced(&has.grant.capability) {
            // It asks anew. Of a node that is away, or does not know a key, nothing is lost: what
            // was written is still to be told.
            self.loses(ino);
        }
    }

    /// Takes what the server asks in.
    fn hear(&mut self, rig: &Rig, chooser: &mut Chooser) {
        loop {
            let mut state = rig.world.state();
            let at = state.asked.iter().position(|asked| asked.client == self.id);
            let Some(asked) = at.and_then(|at| state.asked.remove(at)) else { return };
            drop(state);
            if chooser.chance(1, 10) {
                *asked.answer.lock().unwrap() = Some(Err(outboard_flow::Gone::Unanswered));
                continue;
            }
            match asked.call {
                // It may be meant for its former life, which wrote what nobody has told.
                Call::Recall { .. } if !self.begun => {
                    *asked.answer.lock().unwrap() = Some(Ok(Reply::Failed(Errno::EAGAIN)));
                }
                Call::Recall { ino, keep } => {
                    self.recalled.push(Recalled { asked, ino, keep });
                }
                _ => *asked.answer.lock().unwrap() = Some(Ok(Reply::Done)),
            }
        }
    }

    /// A recall is answered when all that was written was told.
    fn answer_recalls(&mut self, rig: &Rig, chooser: &mut Chooser) {
        let Some(Recalled { ino, keep, .. }) = self.recalled.first() else { return };
        let (ino, keep) = (*ino, *keep);
        let busy = |pending: &Pending| match pending.wants {
            Wants::Publish(of, ..) | Wants::Release(of, ..) => of == ino,
            _ => false,
        };
        if self.pending.iter().any(busy) {
            return;
        }
        if let Some(has) = self.has.get_mut(&ino) {
            if has.mode == Mode::Write && has.dirty {
                let (fence, end) = (has.grant.capability.fence, has.end);
                self.ask(rig, chooser, Wants::Publish(ino, fence, end));
                return;
            }
            match keep {
                Some(keep) => has.mode = has.mode.min(keep),
                None => {
                    self.has.remove(&ino);
                }
            }
        }
        self.overtakes(ino);
        let recalled = self.recalled.remove(0);
        *recalled.asked.answer.lock().unwrap() = Some(Ok(Reply::Done));
    }

    /// It has nothing of a file any more.
    fn loses(&mut self, ino: Ino) {
        self.has.remove(&ino);
        self.overtakes(ino);
    }

    /// A grant that was asked for before this may be of before it, too.
    fn overtakes(&mut self, ino: Ino) {
        for pending in &mut self.pending {
            pending.overtaken |= matches!(pending.wants, Wants::Delegate(of, _) if of == ino);
        }
    }

    fn take_answers(&mut self, rig: &Rig, chooser: &mut Chooser) -> bool {
        let now = rig.world.time();
        let mut at = 0;
        while at < self.pending.len() {
            let is_lost = now.since(self.pending[at].sent) > GIVE_UP;
            let answered = self.pending[at].slot.lock().unwrap().is_some();
            // Answers come late, and in any order.
            if !is_lost && (!answered || chooser.chance(1, 2)) {
                at += 1;
                continue;
            }
            let pending = self.pending.remove(at);
            let reply = pending.slot.lock().unwrap().take();
            let reply = reply.filter(|_| !chooser.chance(1, 20));
            if !self.take_answer(rig, chooser, &pending, reply) {
                return false;
            }
        }
        true
    }

    fn take_answer(
        &mut self,
        rig: &Rig,
        chooser: &mut Chooser,
        pending: &Pending,
        reply: Option<Reply>,
    ) -> bool {
        match (&pending.wants, reply) {
            (Wants::Begin, Some(Reply::Done)) => self.begun = true,
            (Wants::Renew, Some(Reply::Lease { life, term_ms, .. })) => {
                if self.life.is_some_and(|known| known != life) {
                    return false;
                }
                self.life = Some(life);
                let term = Duration::from_millis(u64::from(term_ms));
                self.lease = self.lease.max(pending.sent.after(term));
            }
            (Wants::Delegate(ino, _), Some(Reply::Grant(grant))) => {
                let fence = grant.capability.fence;
                if pending.overtaken {
                    // It may be of before the recall: given back, not used.
                    if self.has.get(ino).is_none_or(|has| has.grant.capability.fence != fence) {
                        self.has.remove(ino);
                        self.ask(rig, chooser, Wants::Release(*ino, fence, None));
                    }
                    return true;
                }
                self.took(rig, *ino, *grant);
            }
            (Wants::Publish(ino, fence, end), Some(reply)) => {
                let is_its = |has: &&mut Has| has.grant.capability.fence == *fence;
                if let Some(has) = self.has.get_mut(ino).filter(is_its) {
                    match reply {
                        // What was written since is told later.
                        Reply::Done => has.dirty = has.end != *end,
                        _ => self.loses(*ino),
                    }
                }
            }
            // Until it knows what came of it: it must not be given the same again without knowing
            // what it wrote.
            (Wants::Release(ino, fence, keep), None) => {
                self.ask(rig, chooser, Wants::Release(*ino, *fence, *keep));
            }
            (Wants::Release(ino, fence, keep), Some(reply)) => {
                let is_its = |has: &&mut Has| has.grant.capability.fence == *fence;
                let Some(has) = self.has.get_mut(ino).filter(is_its) else { return true };
                match (reply, keep) {
                    (Reply::Done, Some(keep)) => {
                        has.mode = has.mode.min(*keep);
                        has.dirty = false;
                    }
                    _ => {
                        self.has.remove(ino);
                    }
                }
            }
            _ => {}
        }
        true
    }

    fn took(&mut self, rig: &Rig, ino: Ino, grant: Granted) {
        let known =
            self.has.get(&ino).filter(|has| has.grant.capability.fence == grant.capability.fence);
        let (end, dirty) = known.map_or((grant.attr.size, false), |has| (has.end, has.dirty));
        if known.is_none() {
            let now = rig.world.time();
            if now < self.lease {
                let (size, end) = (grant.attr.size, rig.world.end(ino.0));
                assert!(rig.world.is_settled(ino.0, size), "granted with {size}, not {end}");
            }
        }
        let mode = grant.mode;
        self.has.insert(ino, Has { grant, mode, end, dirty });
    }
}

//! A client: one delegation and one operation a strip, sent again until it ends.

use std::collections::BTreeMap;

use super::oracle::Oracle;
use super::world::{Addr, Body, Bytes, GRAINS, Net, TERM};
use crate::fault::{Fault, planted};
use crate::{Fence, Grant, Group, Node, Reason, Reply, Request, Role, StripId, Tally, Version};
use crate::{Gep, Write};

#[derive(Clone, Debug)]
enum Op {
    Write(Write<Bytes>, Tally),
    Flush(Version, Tally),
    /// With how often power had taken all when it began.
    Read(u64),
    Release,
    /// Given up; the strip is to be resolved.
    Abandoned,
}

#[derive(Debug)]
struct Hold {
    fence: Fence,
    group: Group,
    last: Version,
    seq: u32,
    until: u64,
    call: u64,
    op: Option<Op>,
    /// What was done under this hold.
    did: usize,
}

#[derive(Default)]
struct Slot {
    /// What it asked the manager for the strip with, when, and how often power had taken all.
    asking: Option<(u64, u64, u64)>,
    hold: Option<Hold>,
}

/// What a client begins when it has nothing under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Write(u64),
    Flush,
    Read,
    Release,
    Abandon,
}

pub(super) struct Client {
    me: usize,
    calls: u64,
    values: Bytes,
    slots: BTreeMap<StripId, Slot>,
}

impl Client {
    pub(super) fn new(me: usize) -> Client {
        let base = Bytes::try_from(me + 1).unwrap() * 1_000_000;
        Client { me, calls: 0, values: base, slots: BTreeMap::new() }
    }

    /// Dies, and is started again without memory.
    pub(super) fn crash(&mut self) {
        self.slots.clear();
    }

    pub(super) fn holds_nothing(&self) -> bool {
        self.slots.values().all(|slot| slot.hold.is_none())
    }

    /// How many operations were done under the present hold.
    pub(super) fn did(&self, strip: StripId) -> usize {
        self.slots.get(&strip).and_then(|s| s.hold.as_ref()).map_or(0, |hold| hold.did)
    }

    fn acquire(&mut self, strip: StripId, losses: u64, net: &mut Net) {
        self.calls += 1;
        let slot = self.slots.entry(strip).or_default();
        if slot.hold.is_none() {
            let nonce = self.calls;
            slot.asking = Some((nonce, net.now, losses));
            net.send(Addr::Client(self.me), Addr::Manager, Body::Acquire { strip, nonce });
        }
    }

    pub(super) fn renew(&mut self, strip: StripId, net: &mut Net) {
        let Some(hold) = self.slots.get(&strip).and_then(|s| s.hold.as_ref()) else { return };
        let body = Body::Renew { strip, fence: hold.fence, sent: net.now };
        net.send(Addr::Client(self.me), Addr::Manager, body);
    }

    /// Begins what is wished if nothing is under way; else sends that again.
    pub(super) fn act(&mut self, strip: StripId, wish: Wish, oracle: &mut Oracle, net: &mut Net) {
        let Some(hold) = self.slots.get_mut(&strip).and_then(|s| s.hold.as_mut()) else {
            return self.acquire(strip, oracle.losses, net);
        };
        if hold.op.is_some() {
            if wish == Wish::Abandon && matches!(hold.op, Some(Op::Write(..))) {
                hold.op = (!planted(Fault::NoOrder)).then_some(Op::Abandoned);
            }
            return self.send(strip, net);
        }
        self.calls += 1;
        hold.call = self.calls;
        hold.op = match wish {
            Wish::Write(which) => {
                hold.seq += 1;
                let version = Version { fence: hold.fence, seq: hold.seq };
                self.values += 1;
                let value = self.values;
                let touched = |grain: &usize| which >> grain & 1 == 1 || which & 3 == 0;
                let grains = (0..GRAINS).filter(touched).map(|grain| (grain, value)).collect();
                let write = Write { version, prev: hold.last, grains };
                oracle.started(strip, &write);
                Some(Op::Write(write, Tally::new(&hold.group)))
            }
            Wish::Flush => Some(Op::Flush(hold.last, Tally::new(&hold.group))),
            Wish::Read => Some(Op::Read(oracle.losses)),
            Wish::Release => Some(Op::Release),
            Wish::Abandon => None,
        };
        self.send(strip, net);
    }

    /// Goes on with what is under way, and then gives the strip back.
    pub(super) fn renew_or_release(
        &mut self,
        strip: StripId,
        round: u64,
        oracle: &mut Oracle,
        net: &mut Net,
    ) {
        if self.slots.get(&strip).is_none_or(|slot| slot.hold.is_none()) {
            return;
        }
        if round.is_multiple_of(3) {
            self.renew(strip, net);
        }
        self.act(strip, Wish::Release, oracle, net);
    }

    fn send(&mut self, strip: StripId, net: &mut Net) {
        let me = Addr::Client(self.me);
        let Some(hold) = self.slots.get(&strip).and_then(|s| s.hold.as_ref()) else { return };
        let (gep, call, fence) = (hold.group.gep, hold.call, hold.fence);
        let mut ask = |node: Node, request: Request<Bytes>| {
            net.send(me, Addr::Node(node), Body::Ask { strip, gep, call, request });
        };
        match &hold.op {
            Some(Op::Write(write, tally)) => {
                tally.missing().for_each(|node| ask(node, Request::Write(write.clone())));
            }
            Some(Op::Flush(version, tally)) => {
                tally.missing().for_each(|node| ask(node, Request::Flush(*version, fence)));
            }
            Some(Op::Read(_)) => {
                let fills = planted(Fault::FillingReads);
                let serve = hold.group.members.iter().filter(|e| e.role == Role::Active || fills);
                serve.for_each(|entry| ask(entry.node, Request::Read(fence)));
            }
            Some(Op::Release) => {
                net.send(me, Addr::Manager, Body::Release { strip, fence, last: hold.last });
            }
            Some(Op::Abandoned) => net.send(me, Addr::Manager, Body::Abandon { strip, fence }),
            None => {}
        }
    }

    pub(super) fn granted(
        &mut self,
        (strip, nonce, now): (StripId, u64, u64),
        grant: Grant,
        group: Group,
        oracle: &mut Oracle,
    ) {
        let slot = self.slots.entry(strip).or_default();
        let Some((_, sent, losses)) = slot.asking.take_if(|asking| asking.0 == nonce) else {
            return;
        };
        let Grant { fence, last } = grant;
        let until = sent + TERM;
        if now > until {
            return;
        }
        if losses == oracle.losses {
            oracle.observed(strip, fence, last, None);
        }
        slot.hold = Some(Hold { fence, group, last, seq: 0, until, call: 0, op: None, did: 0 });
        if planted(Fault::EqualFences) && last.fence == fence {
            slot.hold.as_mut().unwrap().seq = last.seq;
        }
    }

    pub(super) fn renewed(&mut self, strip: StripId, fence: Fence, sent: u64, group: Group) {
        let Some(hold) = self.slots.get_mut(&strip).and_then(|s| s.hold.as_mut()) else { return };
        if hold.fence != fence {
            return;
        }
        hold.until = hold.until.max(sent + TERM);
        if let Some(Op::Write(_, tally) | Op::Flush(_, tally)) = &mut hold.op {
            tally.restart(&group);
        }
        if group.gep > hold.group.gep {
            hold.group = group;
        }
    }

    pub(super) fn gone(&mut self, strip: StripId, fence: Fence) {
        if let Some(slot) = self.slots.get_mut(&strip) {
            slot.hold.take_if(|hold| hold.fence == fence);
        }
    }

    pub(super) fn answered(
        &mut self,
        (strip, node, gep, call): (StripId, Node, Gep, u64),
        reply: &Reply<Bytes>,
        oracle: &mut Oracle,
        net: &mut Net,
    ) {
        let Some(slot) = self.slots.get_mut(&strip) else { return };
        let Some(hold) = slot.hold.as_mut().filter(|hold| hold.call == call) else { return };
        match (&mut hold.op, reply) {
            (Some(Op::Write(write, tally)), Reply::Accepted(version))
                if write.version == *version =>
            {
                tally.answered(node, gep);
                if tally.is_done() {
                    oracle.acknowledged(strip, *version);
                    (hold.last, hold.op, hold.did) = (*version, None, hold.did + 1);
                }
            }
            (Some(Op::Flush(version, tally)), Reply::Flushed(flushed)) if version == flushed => {
                tally.answered(node, gep);
                if tally.is_done() {
                    oracle.synced(strip, *version);
                    (hold.op, hold.did) = (None, hold.did + 1);
                }
            }
            (Some(Op::Read(losses)), Reply::Content(version, content))
                if net.now <= hold.until || planted(Fault::LateReads) =>
            {
                if *losses == oracle.losses {
                    oracle.observed(strip, hold.fence, *version, Some(content));
                } else {
                    oracle.observed_before_loss(strip, *version, content);
                }
                (hold.op, hold.did) = (None, hold.did + 1);
            }
            (_, Reply::Refused(Reason::Fenced)) => slot.hold = None,
            (Some(Op::Write(..) | Op::Flush(..)), Reply::Refused(Reason::Order | Reason::Gap)) => {
                hold.op = (!planted(Fault::NoOrder)).then_some(Op::Abandoned);
                self.send(strip, net);
            }
            (_, Reply::Refused(Reason::Epoch(_))) => self.renew(strip, net),
            _ => {}
        }
    }
}

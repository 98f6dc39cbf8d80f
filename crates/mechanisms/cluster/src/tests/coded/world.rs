//! The world of coded stripes: members, one writer a stripe at a time, resolvers, and a network
//! that keeps, doubles and loses what it likes; and what is known of each stripe from outside.

use std::collections::{BTreeMap, BTreeSet};

use super::decide::{Claims, Code, decide, decode};
use super::unit::{Claim, Copy, Cover, Name, Sum, Unit};
use super::{Canary, is};
use crate::{Fence, Gep, Version};

const STRIPES: usize = 2;
const NET: usize = 40;
const LOG: usize = 24;

#[derive(Clone, Debug)]
enum Body {
    Write(Name),
    Part(Name, usize, Sum),
    Has(Version),
    Flush(Fence, Version, Cover),
    Flushed(Version),
    Seal(Fence),
    Sealed(Fence, Claim),
    Resolve(Fence, Copy),
    Resolved(Fence),
}

/// A message between a member and whoever has or resolves the stripe.
#[derive(Clone, Debug)]
struct Envelope {
    stripe: usize,
    gep: Gep,
    member: usize,
    to_member: bool,
    body: Body,
}

#[derive(Clone)]
struct Member {
    is_up: bool,
    gep: Gep,
    units: Vec<Unit>,
    /// What a loss of power may bring back; the first is durable.
    log: Vec<Vec<Unit>>,
    /// Power was lost since it was admitted.
    lost: bool,
}

impl Member {
    fn logged(&mut self, durable: bool) {
        if durable {
            self.log.clear();
        } else if self.log.len() >= LOG {
            self.log.remove(1);
        }
        self.log.push(self.units.clone());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Out,
    Filling,
    Active,
}

#[derive(Clone, Debug)]
enum Op {
    Write(Name, BTreeSet<usize>),
    Flush(BTreeSet<usize>),
}

/// Who has a stripe.
#[derive(Clone, Debug)]
struct Hold {
    fence: Fence,
    gep: Gep,
    last: Version,
    cover: Cover,
    settled: Version,
    seq: u32,
    op: Option<Op>,
}

impl Hold {
    /// What is done with this answer, and whether it is synced.
    fn hears(&mut self, code: Code, member: usize, body: &Body) -> Option<(Version, bool)> {
        match (&mut self.op, body) {
            (Some(Op::Write(name, had)), Body::Has(version)) if name.version == *version => {
                had.insert(member);
                let parities = if is(Canary::DataIsDone) { code.k } else { code.units() };
                let mut needs = (0..code.k).filter(|at| name.touches(*at)).chain(code.k..parities);
                if !needs.all(|at| had.contains(&at)) {
                    return None;
                }
                (self.last, self.cover) = (name.version, name.cover());
                self.op = None;
                Some((*version, false))
            }
            (Some(Op::Flush(had)), Body::Flushed(version)) if self.last == *version => {
                had.insert(member);
                let enough = if is(Canary::SettledEarly) { 1 } else { code.units() };
                if had.len() < enough {
                    return None;
                }
                (self.settled, self.op) = (*version, None);
                Some((*version, true))
            }
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
struct Resolver {
    stripe: usize,
    fence: Fence,
    gep: Gep,
    claims: Claims,
    verdict: Option<(Version, Vec<Copy>)>,
    resolved: BTreeSet<usize>,
}

#[derive(Clone, Debug)]
enum State {
    Free(Version, Cover),
    Held(Hold),
    Broken,
}

/// What is known of a stripe.
struct Register {
    covers: BTreeMap<Version, Cover>,
    floor: Version,
    synced: Version,
    passed: BTreeSet<Version>,
    /// Written before power took too many: whether it was acknowledged counts no more.
    excused: BTreeSet<Version>,
}

/// What a walk met.
#[derive(Clone, Copy, Default)]
pub(super) struct Met {
    pub(super) acknowledged: u64,
    pub(super) all_lost: u64,
    pub(super) decoded: u64,
    pub(super) forward: u64,
}

pub(super) struct World {
    code: Code,
    members: Vec<Member>,
    roles: Vec<Role>,
    gep: Gep,
    fence: Fence,
    states: Vec<State>,
    /// Resolved in this epoch, filling members too.
    fresh: Vec<bool>,
    resolvers: Vec<Resolver>,
    /// Who had a stripe, and does not know that it has it no more.
    stale: Vec<(usize, Hold)>,
    net: Vec<Envelope>,
    registers: Vec<Register>,
    fault: Option<String>,
    trace: Option<Vec<String>>,
    met: Met,
}

impl World {
    pub(super) fn new(seed: u64, traced: bool) -> World {
        let (k, m) = [(2, 1), (2, 2), (3, 1), (3, 2)][usize::try_from(seed % 4).unwrap()];
        let code = Code { k, m };
        let member = |at| {
            let units = vec![Unit::new(at, k); STRIPES];
            Member { is_up: true, gep: 1, log: vec![units.clone()], units, lost: false }
        };
        let cover = vec![Version::default(); k];
        let register = || Register {
            covers: BTreeMap::from([(Version::default(), cover.clone())]),
            floor: Version::default(),
            synced: Version::default(),
            passed: BTreeSet::new(),
            excused: BTreeSet::new(),
        };
        World {
            code,
            members: (0..code.units()).map(member).collect(),
            roles: vec![Role::Active; code.units()],
            gep: 1,
            fence: 0,
            states: vec![State::Free(Version::default(), cover.clone()); STRIPES],
            fresh: vec![true; STRIPES],
            resolvers: Vec::new(),
            stale: Vec::new(),
            net: Vec::new(),
            registers: (0..STRIPES).map(|_| register()).collect(),
            fault: None,
            trace: traced.then(Vec::new),
            met: Met::default(),
        }
    }

    pub(super) fn fault(&self) -> Option<&String> {
        self.fault.as_ref()
    }

    pub(super) fn told(&self) -> String {
        self.trace.as_ref().map(|trace| trace.join("\n")).unwrap_or_default()
    }

    pub(super) fn met(&self) -> Met {
        self.met
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(what());
        }
    }

    fn blame(&mut self, what: String) {
        self.fault.get_or_insert(what);
    }

    fn active(&self) -> impl Iterator<Item = usize> {
        (0..self.roles.len()).filter(|at| self.roles[*at] == Role::Active)
    }

    fn send(&mut self, stripe: usize, gep: Gep, member: usize, to_member: bool, body: Body) {
        if self.net.len() >= NET {
            self.net.remove(0);
        }
        self.net.push(Envelope { stripe, gep, member, to_member, body });
    }

    pub(super) fn step(&mut self, choice: u64) {
        let (kind, operand) = (choice % 256, choice >> 8);
        let stripe = usize::try_from(operand % 2).unwrap();
        let which = operand / 2;
        let pick = usize::try_from(which % self.net.len().max(1) as u64).unwrap();
        let member = usize::try_from(which % self.members.len() as u64).unwrap();
        match kind {
            0..150 if !self.net.is_empty() => {
                let envelope = self.net.remove(pick);
                self.receive(envelope);
            }
            150..158 if !self.net.is_empty() => self.receive(self.net[pick].clone()),
            158..164 if !self.net.is_empty() => drop(self.net.remove(pick)),
            164..204 => self.writer_acts(stripe, which),
            204..226 => self.resolver_acts(stripe, which),
            226..232 => self.roles_change(member),
            232..235 => self.dies(member),
            235..236 => self.power_fails(member, which),
            236 if which.is_multiple_of(4) => {
                (0..self.members.len()).for_each(|at| self.power_fails(at, which / 7));
            }
            _ => self.starts(member),
        }
    }

    fn dies(&mut self, member: usize) {
        self.members[member].is_up = false;
        self.members[member].units.iter_mut().for_each(Unit::restart);
        self.note(|| format!("member {member} dies"));
    }

    fn power_fails(&mut self, member: usize, which: u64) {
        let it = &mut self.members[member];
        let mixed = which.wrapping_mul(0x9E37_79B9).wrapping_add(member as u64 * 7);
        let keeps = usize::try_from(mixed % it.log.len() as u64).unwrap();
        it.units = it.log[keeps].clone();
        it.units.iter_mut().for_each(Unit::restart);
        it.logged(true);
        it.lost = !is(Canary::PowerIgnored);
        it.is_up = false;
        self.note(|| format!("member {member} loses power"));
    }

    fn starts(&mut self, member: usize) {
        self.members[member].is_up = true;
        // It hears of the group; what it was is told by the roles.
        self.members[member].gep = self.gep;
        let kept = self.active().filter(|at| !self.members[*at].lost).count();
        let is_back = |at: usize| self.members[at].is_up;
        // Too few have what was acknowledged: all begin with what they have (R9).
        if kept < self.code.k && self.active().all(is_back) {
            self.recovers();
        }
    }

    fn recovers(&mut self) {
        self.note(|| "power took too many".into());
        self.met.all_lost += 1;
        self.gep += 1;
        for at in 0..self.members.len() {
            if self.roles[at] == Role::Active {
                self.members[at].lost = false;
            } else {
                self.roles[at] = Role::Out;
            }
        }
        self.begin_epoch();
        for register in &mut self.registers {
            register.floor = register.synced;
            register.excused = register.covers.keys().copied().collect();
        }
    }

    /// Every stripe is resolved before it is used in the new epoch.
    fn begin_epoch(&mut self) {
        for stripe in 0..STRIPES {
            self.breaks(stripe);
            self.fresh[stripe] = false;
        }
        let gep = self.gep;
        self.members.iter_mut().filter(|it| it.is_up).for_each(|it| it.gep = gep);
    }

    fn breaks(&mut self, stripe: usize) {
        let state = std::mem::replace(&mut self.states[stripe], State::Broken);
        let State::Held(hold) = state else { return };
        if self.stale.len() > 3 {
            self.stale.remove(0);
        }
        self.stale.push((stripe, hold));
    }

    fn roles_change(&mut self, member: usize) {
        let is_gone = !self.members[member].is_up || self.members[member].lost;
        let others = self.active().filter(|at| *at != member && !self.members[*at].lost).count();
        match self.roles[member] {
            Role::Active | Role::Filling if is_gone && others >= self.code.k => {
                self.roles[member] = Role::Out;
            }
            Role::Out if self.members[member].is_up => {
                self.roles[member] = Role::Filling;
                let it = &mut self.members[member];
                it.lost = false;
                it.units.iter_mut().for_each(Unit::rejoin);
                it.logged(true);
            }
            _ => return,
        }
        self.gep += 1;
        self.begin_epoch();
        let role = self.roles[member];
        self.note(|| format!("member {member} is {role:?} now"));
    }

    // The writer.

    fn writer_acts(&mut self, stripe: usize, which: u64) {
        if self.roles.iter().any(|role| *role != Role::Active) {
            // What is written while a member is away is not modelled.
            return;
        }
        let kind = which % 16;
        if kind > 13
            && let Some((stripe, hold)) = self.stale.last().cloned()
        {
            return self.asks(stripe, &hold);
        }
        match &mut self.states[stripe] {
            State::Free(last, cover) if kind < 12 => {
                self.fence += 1;
                let hold = Hold {
                    fence: self.fence,
                    gep: self.gep,
                    last: *last,
                    cover: cover.clone(),
                    settled: Version::default(),
                    seq: 0,
                    op: None,
                };
                self.states[stripe] = State::Held(hold);
            }
            State::Held(hold) => match (kind, &hold.op) {
                (0, _) => self.breaks(stripe),
                (1, None) => self.states[stripe] = State::Free(hold.last, hold.cover.clone()),
                (2..6, None) => hold.op = Some(Op::Flush(BTreeSet::new())),
                (6..12, None) => self.writes(stripe, which / 16),
                _ => {
                    let hold = hold.clone();
                    self.asks(stripe, &hold);
                }
            },
            _ => {}
        }
    }

    fn writes(&mut self, stripe: usize, which: u64) {
        let State::Held(hold) = &mut self.states[stripe] else { return };
        hold.seq += 1;
        let version = Version { fence: hold.fence, seq: hold.seq };
        let all = (1u32 << self.code.k) - 1;
        let drawn = u32::try_from(which % u64::from(all + 1)).unwrap();
        let mask = if drawn == 0 { all } else { drawn };
        let (prev, before, settled) = (hold.last, hold.cover.clone(), hold.settled);
        let name = Name { version, prev, before, mask, settled };
        self.registers[stripe].covers.insert(version, name.cover());
        hold.op = Some(Op::Write(name, BTreeSet::new()));
        let hold = hold.clone();
        self.asks(stripe, &hold);
        self.note(|| format!("stripe {stripe}: writes {version:?} mask {mask:b}"));
    }

    fn asks(&mut self, stripe: usize, hold: &Hold) {
        let gep = hold.gep;
        match &hold.op {
            Some(Op::Write(name, _)) => {
                for unit in (0..self.code.k).filter(|unit| name.touches(*unit)) {
                    self.send(stripe, gep, unit, true, Body::Write(name.clone()));
                }
            }
            Some(Op::Flush(had)) => {
                for unit in (0..self.code.units()).filter(|unit| !had.contains(unit)) {
                    let body = Body::Flush(hold.fence, hold.last, hold.cover.clone());
                    self.send(stripe, gep, unit, true, body);
                }
            }
            None => {}
        }
    }

    /// What is of another epoch than a writer's does not count (R2).
    fn writers_hear(&mut self, stripe: usize, (gep, member): (Gep, usize), body: &Body) {
        let code = self.code;
        let mut holds: Vec<&mut Hold> = Vec::new();
        if let State::Held(hold) = &mut self.states[stripe] {
            holds.push(hold);
        }
        holds.extend(self.stale.iter_mut().filter(|(of, _)| *of == stripe).map(|(_, hold)| hold));
        let done: Vec<(Version, bool)> = holds
            .into_iter()
            .filter(|hold| hold.gep == gep)
            .filter_map(|hold| hold.hears(code, member, body))
            .collect();
        for (version, synced) in done {
            self.met.acknowledged += u64::from(!synced);
            self.acknowledged(stripe, version, synced);
        }
    }

    // Members.

    fn receive(&mut self, envelope: Envelope) {
        let Envelope { stripe, gep, member, to_member, body } = envelope;
        if to_member && !self.members[member].is_up {
            return;
        }
        self.note(|| format!("stripe {stripe}, member {member}, to it {to_member}: {body:?}"));
        if !to_member {
            return match &body {
                Body::Sealed(..) | Body::Resolved(_) => {
                    self.resolver_hears(stripe, (gep, member), body);
                }
                _ => self.writers_hear(stripe, (gep, member), &body),
            };
        }
        let it = &self.members[member];
        // Its epoch is another, or it is nobody's member: it refuses (R3, R9).
        if it.gep != gep || it.lost || self.roles[member] == Role::Out {
            return;
        }
        self.member_takes(stripe, gep, member, body);
    }

    fn member_takes(&mut self, stripe: usize, gep: Gep, member: usize, body: Body) {
        let unit = &mut self.members[member].units[stripe];
        let mut durable = true;
        let mut parts = Vec::new();
        let answer = match body {
            Body::Write(name) => {
                durable = false;
                unit.write(&name).map(|change| {
                    let version = name.version;
                    parts.push((name, change));
                    Body::Has(version)
                })
            }
            Body::Part(name, from, change) => {
                durable = false;
                unit.part(&name, from, &change).then_some(Body::Has(name.version))
            }
            Body::Flush(fence, version, cover) => {
                durable = !is(Canary::FlushNotDurable);
                unit.flush(fence, version, &cover).then_some(Body::Flushed(version))
            }
            Body::Seal(fence) => unit.seal(fence).map(|claim| Body::Sealed(fence, claim)),
            Body::Resolve(fence, copy) => {
                unit.resolve(fence, &copy).then_some(Body::Resolved(fence))
            }
            _ => None,
        };
        let is_right = unit.is_right();
        self.members[member].logged(durable && answer.is_some());
        for (name, change) in parts {
            for parity in self.code.k..self.code.units() {
                let body = Body::Part(name.clone(), member, change.clone());
                self.send(stripe, gep, parity, true, body);
            }
        }
        if let Some(answer) = answer {
            self.send(stripe, gep, member, false, answer);
        }
        if !is_right {
            self.blame(format!("member {member} holds stripe {stripe} wrong"));
        }
    }

    // Resolvers.

    fn resolver_acts(&mut self, stripe: usize, which: u64) {
        let begins = matches!(self.states[stripe], State::Broken) && which.is_multiple_of(3);
        if begins {
            self.fence += 1;
            if self.resolvers.len() > 4 {
                self.resolvers.remove(0);
            }
            self.resolvers.push(Resolver {
                stripe,
                fence: self.fence,
                gep: self.gep,
                claims: Claims::new(),
                verdict: None,
                resolved: BTreeSet::new(),
            });
        }
        let count = self.resolvers.len();
        if count > 0 {
            let at = if begins { count - 1 } else { usize::try_from(which).unwrap() % count };
            self.pump(at);
        }
    }

    fn pump(&mut self, at: usize) {
        let Resolver { stripe, fence, gep, claims, verdict, resolved } = self.resolvers[at].clone();
        for member in 0..self.code.units() {
            let body = match &verdict {
                None if self.roles[member] == Role::Out || claims.contains_key(&member) => continue,
                None => Body::Seal(fence),
                Some(_) if resolved.contains(&member) => continue,
                Some((_, copies)) => Body::Resolve(fence, copies[member].clone()),
            };
            self.send(stripe, gep, member, true, body);
        }
    }

    fn resolver_hears(&mut self, stripe: usize, (gep, member): (Gep, usize), body: Body) {
        let fence = match body {
            Body::Sealed(fence, _) | Body::Resolved(fence) => fence,
            _ => return,
        };
        let same = |it: &Resolver| (it.stripe, it.fence, it.gep) == (stripe, fence, gep);
        let Some(at) = self.resolvers.iter().position(same) else { return };
        if gep != self.gep {
            self.resolvers.remove(at);
            return;
        }
        let members: Vec<usize> =
            (0..self.roles.len()).filter(|at| self.roles[*at] != Role::Out).collect();
        let resolver = &mut self.resolvers[at];
        match body {
            Body::Sealed(_, claim) if resolver.verdict.is_none() => {
                resolver.claims.insert(member, claim);
                if members.iter().all(|at| resolver.claims.contains_key(at)) {
                    self.verdict(at);
                }
            }
            Body::Resolved(_) if resolver.verdict.is_some() => {
                resolver.resolved.insert(member);
                if members.iter().all(|at| resolver.resolved.contains(at)) {
                    self.is_resolved(at);
                }
            }
            _ => {}
        }
    }

    fn verdict(&mut self, at: usize) {
        let Resolver { stripe, claims, .. } = self.resolvers[at].clone();
        let mut told = claims;
        // Who is being filled has no say, and nothing to give.
        told.retain(|member, _| self.roles[*member] == Role::Active);
        let Some((version, cover)) = decide(self.code, &told) else {
            return self.blame(format!("stripe {stripe}: nothing can be decoded"));
        };
        let copies = decode(self.code, &told, (version, &cover));
        let had = |at: usize| told.get(&at).is_some_and(|claim| !claim.stable.is_empty());
        self.met.decoded += (0..copies.len()).filter(|at| !had(*at)).count() as u64;
        let pends =
            |claim: &Claim| claim.pending.as_ref().is_some_and(|(name, _)| name.version == version);
        self.met.forward += u64::from(told.values().any(pends));
        self.note(|| format!("stripe {stripe}: decided {version:?}"));
        self.resolvers[at].verdict = Some((version, copies));
        self.pump(at);
    }

    fn is_resolved(&mut self, at: usize) {
        let Resolver { stripe, fence, verdict, .. } = self.resolvers.remove(at);
        let Some((version, _)) = verdict else { return };
        // Only the last that began counts.
        let is_last = self.resolvers.iter().all(|it| it.stripe != stripe || it.fence < fence);
        if !matches!(self.states[stripe], State::Broken) || !is_last {
            return;
        }
        let cover = self.registers[stripe].covers[&version].clone();
        self.observed(stripe, version);
        for member in 0..self.code.units() {
            if self.roles[member] == Role::Out {
                continue;
            }
            let newest = self.members[member].units[stripe].newest().cloned();
            if !newest.is_some_and(|copy| Unit::fits(member, self.code.k, &copy, &cover)) {
                self.blame(format!("stripe {stripe}: member {member} is not at {version:?}"));
            }
        }
        self.states[stripe] = State::Free(version, cover);
        self.fresh[stripe] = true;
        if self.fresh.iter().all(|fresh| *fresh) {
            let filled = self.roles.iter_mut().filter(|role| **role == Role::Filling);
            filled.for_each(|role| *role = Role::Active);
        }
    }

    // What is known from outside.

    fn acknowledged(&mut self, stripe: usize, version: Version, synced: bool) {
        let register = &mut self.registers[stripe];
        if register.excused.contains(&version) && !synced {
            return;
        }
        register.floor = register.floor.max(version);
        if synced {
            register.synced = register.synced.max(version);
        }
        if register.passed.contains(&version) {
            self.blame(format!("stripe {stripe}: {version:?} is done, and was undone before"));
        }
    }

    fn observed(&mut self, stripe: usize, version: Version) {
        let register = &mut self.registers[stripe];
        let floor = register.floor;
        let was_passed = register.passed.contains(&version);
        let newer = register.covers.keys().copied().filter(|other| *other > version);
        let newer: Vec<Version> = newer.collect();
        register.passed.extend(newer);
        register.floor = version.max(floor);
        if version < floor || was_passed {
            self.blame(format!("stripe {stripe}: {version:?} was decided, {floor:?} is known"));
        }
    }

    /// The faults stop: every member is back, every stripe resolved, and of use.
    pub(super) fn heals(&mut self) {
        self.note(|| "the faults stop".into());
        self.net.clear();
        for round in 0..400u64 {
            (0..self.members.len()).for_each(|at| self.starts(at));
            (0..self.members.len()).for_each(|at| self.roles_change(at));
            (0..STRIPES).for_each(|stripe| self.heals_one(stripe, round));
            while let Some(envelope) = (!self.net.is_empty()).then(|| self.net.remove(0)) {
                self.receive(envelope);
            }
            let free = |state: &State| matches!(state, State::Free(..));
            let all = self.roles.iter().all(|role| *role == Role::Active);
            if self.fault.is_some() || (all && self.states.iter().all(free) && round > 20) {
                return;
            }
        }
        self.blame("no end".into());
    }

    fn heals_one(&mut self, stripe: usize, round: u64) {
        match &self.states[stripe] {
            State::Broken => self.resolver_acts(stripe, round * 3),
            // It ends what it does, gives the stripe back, and some write anew.
            State::Held(_) if round > 10 => self.writer_acts(stripe, 1 + 16 * round),
            _ => self.writer_acts(stripe, 8 + 16 * round),
        }
    }
}

//! What judges a walk from outside.
//!
//! Each version's content follows from its write and the version before, so a strip is a register
//! of versions: acknowledged and observed ones only go up, one that was passed over never comes
//! back, and every content is that of its version. After power took all ACTIVE members, what was
//! synced still counts.

use std::collections::{BTreeMap, BTreeSet};

use super::world::Bytes;
use crate::{Fence, Member, StripId, Version, Write};

/// What is known of one strip.
struct Register {
    contents: BTreeMap<Version, Vec<Bytes>>,
    /// The newest that was acknowledged or observed.
    floor: Version,
    synced: Version,
    passed_over: BTreeSet<Version>,
    /// Written before power took all: whether they were acknowledged counts no more.
    excused: BTreeSet<Version>,
}

pub(super) struct Oracle {
    registers: BTreeMap<StripId, Register>,
    /// How often power took all ACTIVE members.
    pub(super) losses: u64,
    /// What went wrong first.
    pub(super) fault: Option<String>,
}

impl Oracle {
    pub(super) fn new(strips: u64, blank: &[Bytes]) -> Oracle {
        let zero = Version::default();
        let register = || Register {
            contents: BTreeMap::from([(zero, blank.to_vec())]),
            floor: zero,
            synced: zero,
            passed_over: BTreeSet::new(),
            excused: BTreeSet::new(),
        };
        Oracle {
            registers: (0..strips).map(|id| (id, register())).collect(),
            losses: 0,
            fault: None,
        }
    }

    pub(super) fn blame(&mut self, what: String) {
        self.fault.get_or_insert(what);
    }

    fn of(&mut self, strip: StripId) -> &mut Register {
        self.registers.get_mut(&strip).expect("a strip of this world")
    }

    pub(super) fn started(&mut self, strip: StripId, write: &Write<Bytes>) {
        let register = self.of(strip);
        let mut content = register.contents[&write.prev].clone();
        for (grain, bytes) in &write.grains {
            content[*grain] = *bytes;
        }
        if register.contents.insert(write.version, content).is_some() {
            self.blame(format!("strip {strip}: {:?} was written twice", write.version));
        }
    }

    pub(super) fn acknowledged(&mut self, strip: StripId, version: Version) {
        let register = self.of(strip);
        if register.excused.contains(&version) {
            return;
        }
        register.floor = register.floor.max(version);
        if register.passed_over.contains(&version) {
            self.blame(format!("strip {strip}: {version:?} was acknowledged, and undone before"));
        }
    }

    pub(super) fn synced(&mut self, strip: StripId, version: Version) {
        let register = self.of(strip);
        register.synced = register.synced.max(version);
        register.floor = register.floor.max(version);
        if register.passed_over.contains(&version) {
            self.blame(format!("strip {strip}: {version:?} was synced, and undone before"));
        }
    }

    /// All ACTIVE members lost power: what was not synced may be gone.
    pub(super) fn power_lost(&mut self) {
        self.losses += 1;
        for register in self.registers.values_mut() {
            register.floor = register.synced;
            register.excused = register.contents.keys().copied().collect();
        }
    }

    /// A read that began before power took all ended after it: it is of the time before, of which
    /// nothing but its bytes can be judged.
    pub(super) fn observed_before_loss(
        &mut self,
        strip: StripId,
        version: Version,
        content: &[Bytes],
    ) {
        if self.of(strip).contents.get(&version).is_none_or(|right| right != content) {
            self.blame(format!("strip {strip}: {version:?} was read as {content:?}"));
        }
    }

    /// A client with this fence saw this version, in a read or as what its grant says is last.
    pub(super) fn observed(
        &mut self,
        strip: StripId,
        fence: Fence,
        version: Version,
        content: Option<&[Bytes]>,
    ) {
        let register = self.of(strip);
        let floor = register.floor;
        let wrong = match register.contents.get(&version) {
            None => Some("nobody wrote"),
            Some(right) if content.is_some_and(|content| content != right) => Some("mixed"),
            _ if version < floor => Some("stale"),
            _ if register.passed_over.contains(&version) => Some("undone before"),
            _ => None,
        };
        register.floor = floor.max(version);
        let older = register.contents.keys().copied();
        let passed: Vec<Version> = older.filter(|v| *v > version && v.fence < fence).collect();
        register.passed_over.extend(passed);
        if let Some(wrong) = wrong {
            let what = format!("strip {strip}: fence {fence} saw {version:?}, {wrong}");
            self.blame(format!("{what} (acknowledged or seen: {floor:?}; content {content:?})"));
        }
    }

    /// No member holds other bytes of a version than its writer meant.
    pub(super) fn holds(&mut self, node: u16, member: &Member<Bytes>) {
        if member.role().is_none() {
            return;
        }
        for (id, strip) in member.strips() {
            let Some(whole) = strip.stable() else { continue };
            if self.of(id).contents.get(&whole.version) != Some(&whole.grains) {
                self.blame(format!("node {node} holds strip {id} wrong: {whole:?}"));
            }
        }
    }
}

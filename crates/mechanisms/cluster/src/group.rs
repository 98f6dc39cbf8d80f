//! The record of a placement group: who holds its data, since when, in which life.
//!
//! The record lies with the coordinator and changes by compare-and-swap of its epoch, so each
//! function here makes the next record of one. A member is a node *in one life* (R9): a computer
//! that lost power may have lost what it acknowledged, so its next life is nobody's member until it
//! is admitted again. A group keeps at least one ACTIVE member.

use crate::message::{Gep, Life, Node};

/// What a member may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Has every strip whole: serves reads, is a source of copies.
    Active,
    /// Takes writes and copies what came before.
    Filling,
}

/// A member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which node.
    pub node: Node,
    /// In which life.
    pub life: Life,
    /// As what.
    pub role: Role,
    /// The epoch in which it joined; becoming ACTIVE does not change it.
    pub joined: Gep,
}

/// A group at one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The epoch.
    pub gep: Gep,
    /// Its members, each node once.
    pub members: Vec<Entry>,
}

impl Group {
    /// The member that this node is.
    #[must_use]
    pub fn member(&self, node: Node) -> Option<Entry> {
        self.members.iter().copied().find(|entry| entry.node == node)
    }

    /// All members' nodes.
    pub fn nodes(&self) -> impl Iterator<Item = Node> {
        self.members.iter().map(|entry| entry.node)
    }

    /// The ACTIVE ones.
    pub fn active(&self) -> impl Iterator<Item = Entry> {
        self.members.iter().copied().filter(|entry| entry.role == Role::Active)
    }

    fn next(&self, members: Vec<Entry>) -> Group {
        Group { gep: self.gep + 1, members }
    }

    /// Without this node; `None` if it is no member, or if no ACTIVE member of those in `live`,
    /// nodes and the lives they are in, would be left.
    #[must_use]
    pub fn without(&self, node: Node, live: &[(Node, Life)]) -> Option<Group> {
        self.member(node)?;
        let rest: Vec<Entry> = self.members.iter().copied().filter(|e| e.node != node).collect();
        let stays = |e: &Entry| e.role == Role::Active && live.contains(&(e.node, e.life));
        rest.iter().any(stays).then(|| self.next(rest))
    }

    /// With this node, FILLING; `None` if it is a member.
    #[must_use]
    pub fn with(&self, node: Node, life: Life) -> Option<Group> {
        if self.member(node).is_some() {
            return None;
        }
        let mut members = self.members.clone();
        members.push(Entry { node, life, role: Role::Filling, joined: self.gep + 1 });
        Some(self.next(members))
    }

    /// With this member, which has everything, ACTIVE (R7).
    #[must_use]
    pub fn activated(&self, node: Node) -> Option<Group> {
        let mut members = self.members.clone();
        let entry = members.iter_mut().find(|e| e.node == node && e.role == Role::Filling)?;
        entry.role = Role::Active;
        Some(self.next(members))
    }

    /// The group after every ACTIVE member lost power (R9): those members in the lives they are in
    /// now, and nobody else. `None` while one of them is in the recorded life, or not back: it may
    /// have what the others lost.
    #[must_use]
    pub fn recovered(&self, live: &[(Node, Life)]) -> Option<Group> {
        let back = |entry: Entry| {
            let (_, life) = live.iter().copied().find(|(node, _)| *node == entry.node)?;
            (life != entry.life).then_some(Entry { life, ..entry })
        };
        let members: Option<Vec<Entry>> = self.active().map(back).collect();
        members.map(|members| self.next(members))
    }
}

//! The request table: a descriptor for each request that is under way, of exactly the 77 bytes of
//! NetDFS section III, in memory that is bounded (checklist row N6).
//!
//! Descriptors are numbered; a number is used again as soon as its request is over, and then has
//! another generation. The table grows up to what its memory holds, and never shrinks.

use outboard_wire::shared::SUCCESSORS_MAX;

/// Bytes of a descriptor.
pub const DESCRIPTOR_LEN: usize = 77;

/// Whom a node forwards to. Its address is the one that is known here of that node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed)]
pub struct Hop {
    /// Port; 0: nobody.
    pub port: u16,
    /// Which node.
    pub node: u16,
}

/// What becomes of a request's packets.
pub mod state {
    /// Nobody's.
    pub const FREE: u8 = 0;
    /// Its header handler has not run.
    pub const NEW: u8 = 1;
    /// Accepted: its packets are handled here.
    pub const ACCEPTED: u8 = 2;
    /// Accepted for the CPU side: its packets go there as they are.
    pub const STEERED: u8 = 3;
    /// Whole, and with the store, or waiting for the rest of its sum.
    pub const SERVED: u8 = 4;
    /// Accepted: its packets are added to a sum.
    pub const SUMMED: u8 = 5;
}

/// What the runtime and its handlers keep of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed)]
pub struct Descriptor {
    /// Its number, chosen by who asks.
    pub request: u64,
    /// The client it is for.
    pub client: u64,
    /// The fence of its version.
    pub fence: u64,
    /// The sequence of its version.
    pub sequence: u32,
    /// The group's epoch.
    pub epoch: u32,
    /// The object.
    pub object: u64,
    /// Where in the object.
    pub offset: u64,
    /// Bytes of data it brings.
    pub len: u32,
    /// Bytes of them that have been landed.
    pub got: u32,
    /// Whom its packets are forwarded to.
    pub next: [Hop; SUCCESSORS_MAX],
    /// What becomes of its packets: [`state`].
    pub state: u8,
    /// How it spreads.
    pub strategy: u8,
    /// The place of this node.
    pub rank: u8,
    /// The data unit that its bytes are, or are parts from.
    pub unit: u8,
    /// How often this descriptor has been given out, modulo 256.
    pub generation: u8,
}

const _: () = assert!(size_of::<Descriptor>() == DESCRIPTOR_LEN);

/// The table.
#[derive(Debug)]
pub struct Table {
    all: Vec<Descriptor>,
    free: Vec<u32>,
    most: u32,
    deepest: u32,
}

impl Table {
    /// As many descriptors as `bytes` hold.
    #[must_use]
    pub fn new(bytes: usize) -> Table {
        let most = u32::try_from(bytes / DESCRIPTOR_LEN).unwrap_or(u32::MAX);
        Table { all: Vec::new(), free: Vec::new(), most, deepest: 0 }
    }

    /// A descriptor for a request that begins, or `None`: it is full.
    pub fn take(&mut self) -> Option<u32> {
        let slot = self.free.pop().or_else(|| {
            let slot = u32::try_from(self.all.len()).ok().filter(|slot| *slot < self.most)?;
            self.all.push(Descriptor::default());
            Some(slot)
        })?;
        let descriptor = self.get_mut(slot)?;
        let generation = descriptor.generation.wrapping_add(1);
        *descriptor = Descriptor { state: state::NEW, generation, ..Descriptor::default() };
        self.deepest = self.deepest.max(self.used());
        Some(slot)
    }

    /// Gives one back.
    pub fn give_back(&mut self, slot: u32) {
        if let Some(descriptor) = self.get_mut(slot).filter(|one| one.state != state::FREE) {
            descriptor.state = state::FREE;
            self.free.push(slot);
        }
    }

    /// One that is in use.
    #[must_use]
    pub fn get(&self, slot: u32) -> Option<&Descriptor> {
        self.all.get(slot as usize).filter(|descriptor| descriptor.state != state::FREE)
    }

    /// Any.
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Descriptor> {
        self.all.get_mut(slot as usize)
    }

    /// How many are in use.
    #[must_use]
    pub fn used(&self) -> u32 {
        u32::try_from(self.all.len() - self.free.len()).unwrap_or(u32::MAX)
    }

    /// How many there can be.
    #[must_use]
    pub fn most(&self) -> u32 {
        self.most
    }

    /// How many were in use at a time.
    #[must_use]
    pub fn deepest(&self) -> u32 {
        self.deepest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_has_77_bytes_and_the_table_as_many_as_its_memory_holds() {
        assert_eq!(size_of::<Descriptor>(), 77);
        assert_eq!(Table::new(6 << 20).most(), 81_707);
        let mut table = Table::new(3 * 77 + 76);
        let all: Vec<u32> = std::iter::from_fn(|| table.take()).collect();
        assert_eq!((all, table.used(), table.deepest()), (vec![0, 1, 2], 3, 3));
        let before = table.get(1).unwrap().generation;
        table.give_back(1);
        assert!(table.get(1).is_none());
        table.give_back(1);
        assert_eq!((table.take(), table.take()), (Some(1), None), "it was given back once");
        assert_eq!(table.get(1).unwrap().generation, before.wrapping_add(1));
        table.give_back(77);
    }
}

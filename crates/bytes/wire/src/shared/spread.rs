//! Who forwards a replicated write to whom (NetDFS V; `docs/internals/replication.md`).
//!
//! ```text
//! ring    0 -> 1 -> 2 -> 3              tree    r -> 2r + 1, 2r + 2
//! ```

use outboard_codec::mac;

use super::{Coordinate, Coordinates, Strategy, WriteHead};

/// Most members that one forwards to.
pub const SUCCESSORS_MAX: usize = 2;

impl Strategy {
    /// The ranks that the member at `rank` of `k` forwards to, the lower one first.
    #[must_use]
    pub fn successors(self, rank: u8, k: u8) -> [Option<u8>; SUCCESSORS_MAX] {
        let at = |rank: Option<u8>| rank.filter(|rank| *rank < k);
        match self {
            Strategy::Single | Strategy::Parity => [None, None],
            Strategy::Ring => [at(rank.checked_add(1)), None],
            Strategy::BinaryTree => {
                let left = rank.checked_mul(2).and_then(|twice| twice.checked_add(1));
                [at(left), at(left.and_then(|left| left.checked_add(1)))]
            }
        }
    }

    /// The rank that forwards to the member at `rank`; none to the first.
    #[must_use]
    pub fn predecessor(self, rank: u8) -> Option<u8> {
        let before = rank.checked_sub(1)?;
        match self {
            Strategy::Single | Strategy::Parity => None,
            Strategy::Ring => Some(before),
            Strategy::BinaryTree => Some(before / 2),
        }
    }

    /// How many members a write comes by before the one at `rank`.
    #[must_use]
    pub fn depth(self, rank: u8) -> u32 {
        std::iter::successors(self.predecessor(rank), |rank| self.predecessor(*rank))
            .map(|_| 1)
            .sum()
    }

    /// Whether what the member at `rank` gets comes by the one at `by`, or it is that one.
    #[must_use]
    pub fn comes_by(self, rank: u8, by: u8) -> bool {
        let mut above = std::iter::successors(Some(rank), |rank| self.predecessor(*rank));
        above.any(|above| above == by)
    }
}

impl WriteHead {
    /// Whom its receiver forwards it to: their ranks, and where they are.
    #[must_use]
    pub fn successors(&self) -> [Option<(u8, Coordinate)>; SUCCESSORS_MAX] {
        let all = self.coordinates.as_slice();
        let at = |rank: u8| Some((rank, *all.get(usize::from(rank))?));
        self.strategy.successors(self.rank, self.k).map(|rank| rank.and_then(at))
    }
}

impl Coordinates {
    /// The number of the group that these members are in their order: what a capability signs.
    #[must_use]
    pub fn group(&self) -> u32 {
        let numbers = self.as_slice().iter().flat_map(|one| one.node.to_le_bytes());
        let numbers: Vec<u8> = numbers.collect();
        let [a, b, c, d, ..] = mac::tag(&[0; 32], &[b"group", &numbers]);
        u32::from_le_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{FAN_MAX, Role};

    /// From the first member every other one is reached, by exactly one, and none is passed twice.
    #[test]
    fn everybody_gets_a_write_once() {
        for strategy in [Strategy::Ring, Strategy::BinaryTree] {
            for k in 1..=u8::try_from(FAN_MAX).unwrap() {
                let mut came = vec![0];
                for at in 0..usize::from(k) {
                    let rank = came[at];
                    for next in strategy.successors(rank, k).into_iter().flatten() {
                        assert!(next > rank && !came.contains(&next), "{strategy:?} {k} {rank}");
                        assert_eq!(strategy.predecessor(next), Some(rank));
                        assert_eq!(strategy.depth(next), strategy.depth(rank) + 1);
                        assert!(strategy.comes_by(next, rank) && !strategy.comes_by(rank, next));
                        came.push(next);
                    }
                }
                assert_eq!(came, (0..k).collect::<Vec<_>>(), "{strategy:?}");
                assert!((0..k).all(|rank| strategy.comes_by(rank, 0)));
            }
            // A rank is what somebody sends: nothing overflows.
            for rank in 0..=u8::MAX {
                let _ = (strategy.successors(rank, u8::MAX), strategy.depth(rank));
                assert!(strategy.predecessor(rank).is_none_or(|before| before < rank));
            }
        }
        assert_eq!(Strategy::Ring.depth(15), 15);
        assert_eq!(Strategy::BinaryTree.depth(15), 4);
        for strategy in [Strategy::Single, Strategy::Parity] {
            assert_eq!(strategy.successors(0, 16), [None, None]);
            assert_eq!((strategy.predecessor(3), strategy.depth(3)), (None, 0));
        }
    }

    #[test]
    fn a_group_is_its_members_in_their_order() {
        let of = |nodes: &[u16], port| {
            let one = |node: &u16| {
                let (unit, role) = (0, Role::Data);
                Coordinate { address: [127, 0, 0, 1], port, node: *node, unit, role }
            };
            Coordinates::new(&nodes.iter().map(one).collect::<Vec<_>>()).unwrap().group()
        };
        let golden = of(&[1, 2, 3], 4791);
        assert_eq!(golden, of(&[1, 2, 3], 1), "where they are is not signed");
        for other in [&[1, 2][..], &[2, 1, 3], &[1, 2, 3, 4], &[3, 2, 1], &[1, 2, 259], &[]] {
            assert_ne!(golden, of(other, 4791), "{other:?}");
        }
    }
}

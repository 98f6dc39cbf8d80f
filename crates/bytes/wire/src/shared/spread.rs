//! Who forwards a write to whom (NetDFS V and VI; `docs/internals/replication.md`, `erasure.md`).
//!
//! ```text
//! ring    0 -> 1 -> 2 -> 3              tree    r -> 2r + 1, 2r + 2
//! parity  each of 0 .. k -> each of k .. k + m
//! ```

use outboard_codec::mac;

use super::{Coordinate, Coordinates, PARITY_MAX, Role, Strategy, WriteHead};

/// Most members that one forwards to.
pub const SUCCESSORS_MAX: usize = PARITY_MAX;

impl Strategy {
    /// The ranks that the member at `rank` forwards to, the lowest first: of `count` members, of
    /// which the first `k` have data.
    #[must_use]
    pub fn successors(self, rank: u8, k: u8, count: u8) -> [Option<u8>; SUCCESSORS_MAX] {
        let first = match self {
            Strategy::Ring => rank.checked_add(1),
            Strategy::BinaryTree => rank.checked_mul(2).and_then(|twice| twice.checked_add(1)),
            Strategy::Parity => (rank < k).then_some(k),
            Strategy::Single => None,
        };
        let most = match self {
            Strategy::Single => 0,
            Strategy::Ring => 1,
            Strategy::BinaryTree => 2,
            Strategy::Parity => SUCCESSORS_MAX,
        };
        let mut next = [None; SUCCESSORS_MAX];
        for (place, more) in next.iter_mut().zip(0..u8::MAX).take(most) {
            let at = first.and_then(|first| first.checked_add(more));
            *place = at.filter(|rank| *rank < count);
        }
        next
    }

    /// The rank that forwards copies to the member at `rank`; none to the first.
    #[must_use]
    pub fn predecessor(self, rank: u8) -> Option<u8> {
        let before = rank.checked_sub(1)?;
        match self {
            Strategy::Single | Strategy::Parity => None,
            Strategy::Ring => Some(before),
            Strategy::BinaryTree => Some(before / 2),
        }
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
        let count = u8::try_from(all.len()).unwrap_or(u8::MAX);
        let next = self.strategy.successors(self.rank, self.k, count);
        next.map(|rank| rank.and_then(at))
    }

    /// The rank that forwards it to its receiver; none if a client sends it.
    #[must_use]
    pub fn predecessor(&self) -> Option<u8> {
        match self.strategy {
            Strategy::Parity => self.is_part().then_some(self.unit),
            other => other.predecessor(self.rank),
        }
    }

    /// How many members it comes by before its receiver.
    #[must_use]
    pub fn depth(&self) -> u32 {
        let first = self.predecessor();
        let before = |rank: &u8| self.strategy.predecessor(*rank);
        std::iter::successors(first, before).map(|_| 1).sum()
    }

    /// The same, as the member at `rank` is to read it.
    #[must_use]
    pub fn to(&self, rank: u8, at: &Coordinate) -> WriteHead {
        let unit = if at.role == Role::Parity { self.unit } else { at.unit };
        WriteHead { rank, unit, role: at.role, ..*self }
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
    use super::super::Brings;
    use super::*;
    use crate::shared::{FAN_MAX, Role};

    /// A write of k members, or of k data units and m parities, to the one at `rank`.
    fn head(strategy: Strategy, (k, m): (u8, u8), rank: u8, unit: u8) -> WriteHead {
        let role = |rank| if m > 0 && rank >= k { Role::Parity } else { Role::Data };
        let one = |at: u8| {
            let (address, port, node) = ([127, 0, 0, 1], 1, u16::from(at) + 10);
            Coordinate { address, port, node, unit: at, role: role(at) }
        };
        let coordinates = Coordinates::new(&(0..k + m).map(one).collect::<Vec<_>>()).unwrap();
        WriteHead {
            strategy,
            rank,
            k,
            unit,
            role: role(rank),
            brings: Brings::Bytes,
            offset: 0,
            bytes: 1,
            sequence: 1,
            previous: 0,
            crc: 0,
            session: 0,
            number: 0,
            lane: 0,
            coordinates,
        }
    }

    fn next(write: &WriteHead) -> Vec<u8> {
        write.successors().into_iter().flatten().map(|(rank, _)| rank).collect()
    }

    /// From the first member every other one is reached, by exactly one, and none is passed twice.
    #[test]
    fn everybody_gets_a_write_once() {
        for strategy in [Strategy::Ring, Strategy::BinaryTree] {
            for k in 1..=u8::try_from(FAN_MAX).unwrap() {
                let mut came = vec![0];
                for at in 0..usize::from(k) {
                    let rank = came[at];
                    let here = head(strategy, (k, 0), rank, 0);
                    for rank in next(&here) {
                        let there = head(strategy, (k, 0), rank, 0);
                        assert!(rank > here.rank && !came.contains(&rank), "{strategy:?} {k}");
                        assert_eq!(there.predecessor(), Some(here.rank));
                        assert_eq!(there.depth(), here.depth() + 1);
                        assert!(strategy.comes_by(rank, here.rank));
                        assert!(!strategy.comes_by(here.rank, rank));
                        came.push(rank);
                    }
                }
                assert_eq!(came, (0..k).collect::<Vec<_>>(), "{strategy:?}");
                assert!((0..k).all(|rank| strategy.comes_by(rank, 0)));
            }
            // A rank is what somebody sends: nothing overflows.
            for rank in 0..=u8::MAX {
                let _ = strategy.successors(rank, u8::MAX, u8::MAX);
                assert!(strategy.predecessor(rank).is_none_or(|before| before < rank));
            }
        }
        assert_eq!(head(Strategy::Ring, (16, 0), 15, 0).depth(), 15);
        assert_eq!(head(Strategy::BinaryTree, (16, 0), 15, 0).depth(), 4);
        assert_eq!(next(&head(Strategy::Single, (1, 0), 0, 0)), []);
        assert_eq!(Strategy::Single.predecessor(3), None);
    }

    /// Each parity gets one part of each data unit, and passes nothing on.
    #[test]
    fn every_parity_gets_a_part_of_every_data_unit() {
        for (k, m) in (1..=16).flat_map(|k| (1..=4).map(move |m| (k, m))) {
            for unit in 0..k {
                let here = head(Strategy::Parity, (k, m), unit, unit);
                assert_eq!((here.check(), here.predecessor(), here.depth()), (Ok(()), None, 0));
                assert!(!here.is_part());
                assert_eq!(next(&here), (k..k + m).collect::<Vec<_>>());
                for (rank, at) in here.successors().into_iter().flatten() {
                    let there = here.to(rank, &at);
                    assert_eq!(there, head(Strategy::Parity, (k, m), rank, unit));
                    assert!(there.is_part() && there.check().is_ok());
                    assert_eq!((there.predecessor(), there.depth()), (Some(unit), 1));
                    assert_eq!(next(&there), []);
                }
            }
        }
        for rank in 0..=u8::MAX {
            let _ = Strategy::Parity.successors(rank, u8::MAX, u8::MAX);
        }
    }

    /// What a head says of its stripe more than once, it says alike.
    #[test]
    fn a_stripe_that_contradicts_itself_is_refused() {
        let good = [head(Strategy::Parity, (3, 2), 1, 1), head(Strategy::Parity, (3, 2), 4, 1)];
        let bad: [fn(&mut WriteHead); 9] = [
            |write| write.k = 0,
            |write| write.k = 5,
            |write| write.k = 17,
            |write| write.k -= 1,
            |write| write.rank = 5,
            |write| write.unit = 3,
            |write| {
                let other = [Role::Data, Role::Parity].into_iter().find(|one| *one != write.role);
                write.role = other.unwrap();
            },
            |write| {
                let mut all = write.coordinates.as_slice().to_vec();
                all.swap(1, 2);
                write.coordinates = Coordinates::new(&all).unwrap();
            },
            |write| {
                let mut all = write.coordinates.as_slice().to_vec();
                all[3].role = Role::Data;
                write.coordinates = Coordinates::new(&all).unwrap();
            },
        ];
        for write in good {
            assert_eq!(write.check(), Ok(()));
            for (which, spoil) in bad.iter().enumerate() {
                let mut write = write;
                spoil(&mut write);
                assert!(write.check().is_err(), "{which}: {write:?}");
            }
        }
        for brings in [Brings::Delta, Brings::Nothing] {
            assert!(WriteHead { brings, ..good[0] }.check().is_err(), "{brings:?} is passed on");
        }
        let of_another = WriteHead { unit: 2, ..good[0] };
        assert!(of_another.check().is_err(), "another's data");
        assert_eq!(WriteHead { unit: 2, ..good[1] }.check(), Ok(()), "another's part");
        assert!(head(Strategy::Parity, (2, 5), 0, 0).check().is_err(), "five parities");
        assert!(head(Strategy::Parity, (2, 0), 0, 0).check().is_err(), "none");
        assert!(head(Strategy::Ring, (17, 0), 0, 0).check().is_err(), "seventeen copies");
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

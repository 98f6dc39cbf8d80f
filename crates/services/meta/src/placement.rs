//! On which nodes a file lies: by its layout and number alone.
//!
//! A group's order of nodes is that of a hash of group and node (rendezvous hashing), over the
//! nodes that the volume was made with. So any two servers agree, nothing is stored for a group,
//! and a node that comes later changes nothing.

use core::net::SocketAddrV4;

use outboard_base::{Errno, Result, Rng};
use outboard_wire::shared::call::Layout;
use outboard_wire::shared::{Coordinate, Strategy};

/// The nodes of a volume.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    /// In the order of their numbers.
    nodes: Vec<Coordinate>,
}

impl Placement {
    /// Over these nodes, of which files lie on `members`.
    ///
    /// # Errors
    /// `EINVAL` if there are no members, or one of them is not among the nodes, or there twice.
    pub(crate) fn new(nodes: &[Coordinate], members: &[u16]) -> Result<Placement> {
        let mut chosen: Vec<Coordinate> = Vec::with_capacity(members.len());
        for member in members {
            let mut known = nodes.iter().filter(|node| node.node == *member);
            let node = known.next().ok_or(Errno::EINVAL)?;
            if known.next().is_some() || chosen.iter().any(|other| other.node == *member) {
                return Err(Errno::EINVAL);
            }
            chosen.push(*node);
        }
        if chosen.is_empty() {
            return Err(Errno::EINVAL);
        }
        chosen.sort_by_key(|node| node.node);
        Ok(Placement { nodes: chosen })
    }

    /// The same with a node at another address; none if it is not among them, or is there.
    pub(crate) fn moved(&self, number: u16, address: SocketAddrV4) -> Option<Placement> {
        let (ip, port) = (address.ip().octets(), address.port());
        let at = self.nodes.iter().position(|node| node.node == number)?;
        let mut moved = self.clone();
        let node = moved.nodes.get_mut(at)?;
        if (node.address, node.port) == (ip, port) {
            return None;
        }
        (node.address, node.port) = (ip, port);
        Some(moved)
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Coordinate] {
        &self.nodes
    }

    /// The nodes of a file: strip `i` lies on number `i` modulo their count, or the whole file on
    /// each of them. The first of a group's
    /// order, as many as the layout's width, or copies; files of a group begin at different ones.
    pub(crate) fn of(&self, layout: &Layout, object: u64) -> Vec<Coordinate> {
        let weight = |node: &Coordinate| {
            let key = (u64::from(layout.group) << 16) | u64::from(node.node);
            (Rng::new(key).next_u64(), node.node)
        };
        let mut order = self.nodes.clone();
        order.sort_by_key(weight);
        let count = if layout.strategy == Strategy::Single { layout.width } else { layout.k };
        order.truncate(usize::from(count.max(1)));
        let first = Rng::new(object).below(order.len() as u64);
        order.rotate_left(usize::try_from(first).unwrap_or(0));
        order
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use outboard_wire::shared::Role;

    use super::*;

    fn nodes(count: u16) -> Vec<Coordinate> {
        let node = |node| Coordinate {
            address: [127, 0, 0, 1],
            port: 1000 + node,
            node,
            unit: 0,
            role: Role::Data,
        };
        (0..count).map(node).collect()
    }

    fn layout(width: u8, group: u32) -> Layout {
        Layout { strategy: Strategy::Single, k: 1, m: 0, width, strip: 65536, group }
    }

    #[test]
    fn a_node_that_comes_later_moves_nothing() {
        let before = Placement::new(&nodes(6), &[0, 1, 2, 3, 4, 5]).unwrap();
        let after = Placement::new(&nodes(9), &[5, 4, 3, 2, 1, 0]).unwrap();
        for object in 0..1000 {
            let layout = layout(3, u32::try_from(object % 64).unwrap());
            assert_eq!(before.of(&layout, object), after.of(&layout, object));
        }
    }

    #[test]
    fn a_file_has_as_many_nodes_as_its_layout_says_and_there_are_and_none_twice() {
        let placement = Placement::new(&nodes(4), &[0, 1, 2, 3]).unwrap();
        for object in 0..200 {
            for (width, count) in [(0, 1), (1, 1), (3, 3), (4, 4), (16, 4)] {
                let mut of = placement.of(&layout(width, 7), object);
                assert_eq!(of.len(), count);
                of.sort_by_key(|node| node.node);
                of.dedup();
                assert_eq!(of.len(), count);
            }
        }
    }

    #[test]
    fn first_strips_are_spread_over_all_nodes() {
        let placement = Placement::new(&nodes(6), &[0, 1, 2, 3, 4, 5]).unwrap();
        let mut first: BTreeMap<u16, u32> = BTreeMap::new();
        for object in 0..6000 {
            let of = placement.of(&layout(3, u32::try_from(object % 64).unwrap()), object);
            *first.entry(of[0].node).or_default() += 1;
        }
        assert_eq!(first.len(), 6);
        assert!(first.values().all(|count| (500..1700).contains(count)), "{first:?}");
    }

    /// Files stay where they are when a node is found elsewhere.
    #[test]
    fn a_node_that_moves_takes_its_files_along() {
        let before = Placement::new(&nodes(4), &[0, 1, 2, 3]).unwrap();
        let there = "10.1.2.3:9".parse().unwrap();
        let after = before.moved(2, there).unwrap();
        assert!(after.moved(2, there).is_none() && after.moved(7, there).is_none());
        for object in 0..100 {
            let pairs = before.of(&layout(3, 1), object).into_iter();
            for (was, is) in pairs.zip(after.of(&layout(3, 1), object)) {
                assert_eq!(was.node, is.node);
                assert_eq!(is.address == [10, 1, 2, 3] && is.port == 9, is.node == 2);
            }
        }
    }

    #[test]
    fn members_must_be_known_and_differ() {
        let bad: [&[u16]; 3] = [&[], &[7], &[1, 1]];
        for members in bad {
            assert_eq!(Placement::new(&nodes(3), members).unwrap_err(), Errno::EINVAL);
        }
        let twice = [nodes(1), nodes(1)].concat();
        assert_eq!(Placement::new(&twice, &[0]).unwrap_err(), Errno::EINVAL);
    }
}

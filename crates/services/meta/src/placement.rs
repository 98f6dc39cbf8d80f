//! On which nodes a file lies: by its layout and number alone.
//!
//! A *map* is the set of nodes there are from some moment on; maps are numbered, never change, and
//! are kept for ever. A group's order of nodes is that of a hash of group and node (rendezvous
//! hashing). A file lies on the first of that order in the map it was made under, so any two
//! servers agree, and nothing is stored for it. Its *target* has, of its nodes, those that are
//! among the first of the newest map, each in its place, and in the places of the others who else
//! is: as little as can be is moved. Once it was moved it says itself where it lies.

use core::net::SocketAddrV4;
use std::collections::{BTreeMap, BTreeSet};

use outboard_base::{Errno, Result, Rng};
use outboard_kvfs::spread::{LaidOut, MAPS_MAX, placed};
use outboard_wire::shared::{Coordinate, Role, Strategy};

/// The nodes of a volume.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    /// Where nodes are.
    known: BTreeMap<u16, Coordinate>,
    /// By number of the map, each in the order of nodes.
    maps: Vec<Vec<u16>>,
    /// The map by which all files lie, or one after it.
    moved: u32,
    /// Those on which files may lie.
    all: Vec<Coordinate>,
}

impl Placement {
    /// By these maps, of which files lie by the one `moved`, or a later one.
    ///
    /// # Errors
    /// `EINVAL` if there is no map, or a node is twice in one, or files may lie on one that is not
    /// among the nodes, or there twice.
    pub(crate) fn new(nodes: &[Coordinate], maps: Vec<Vec<u16>>, moved: u32) -> Result<Placement> {
        let known: BTreeMap<u16, Coordinate> =
            nodes.iter().map(|node| (node.node, *node)).collect();
        if known.len() != nodes.len() || maps.len() > MAPS_MAX as usize {
            return Err(Errno::EINVAL);
        }
        let all = Vec::new();
        let mut placement = Placement { known, maps: Vec::new(), moved, all };
        for map in maps {
            placement.maps.push(in_order(&map)?);
        }
        placement.find_all()?;
        Ok(placement)
    }

    fn find_all(&mut self) -> Result<()> {
        let from = usize::try_from(self.moved).map_err(|_| Errno::EINVAL)?;
        let maps = self.maps.get(from..).filter(|maps| !maps.is_empty()).ok_or(Errno::EINVAL)?;
        let numbers: BTreeSet<u16> = maps.iter().flatten().copied().collect();
        let all = numbers.iter().map(|number| self.known.get(number).copied());
        self.all = all.collect::<Option<_>>().ok_or(Errno::EINVAL)?;
        Ok(())
    }

    /// The same with one more map, in which these nodes are, wherever they were before.
    ///
    /// # Errors
    /// `EINVAL` as of [`Placement::new`], `ENOSPC` if there are too many maps.
    pub(crate) fn with_map(&self, nodes: &[Coordinate]) -> Result<Placement> {
        if self.maps.len() >= MAPS_MAX as usize {
            return Err(Errno::ENOSPC);
        }
        let mut next = self.clone();
        let numbers: Vec<u16> = nodes.iter().map(|node| node.node).collect();
        next.maps.push(in_order(&numbers)?);
        next.known.extend(nodes.iter().map(|node| (node.node, *node)));
        next.find_all()?;
        Ok(next)
    }

    /// The same once all files lie by the newest map.
    pub(crate) fn all_moved(&self) -> Result<Placement> {
        let mut next = Placement { moved: self.newest(), ..self.clone() };
        next.find_all()?;
        Ok(next)
    }

    /// The same with a node at another address; none if it is not known, or is there.
    pub(crate) fn found(&self, number: u16, address: SocketAddrV4) -> Option<Placement> {
        let (ip, port) = (address.ip().octets(), address.port());
        let mut next = self.clone();
        let node = next.known.get_mut(&number)?;
        if (node.address, node.port) == (ip, port) {
            return None;
        }
        (node.address, node.port) = (ip, port);
        next.find_all().ok()?;
        Some(next)
    }

    /// All nodes that files may lie on, in the order of their numbers.
    pub(crate) fn all(&self) -> &[Coordinate] {
        &self.all
    }

    /// The newest map's number.
    pub(crate) fn newest(&self) -> u32 {
        u32::try_from(self.maps.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// Where a node is, whether files lie on it or not.
    pub(crate) fn coordinate(&self, node: u16) -> Option<Coordinate> {
        self.known.get(&node).copied()
    }

    /// The nodes of the newest map.
    pub(crate) fn current(&self) -> &[u16] {
        self.maps.last().map_or(&[], Vec::as_slice)
    }

    /// The map by which all files lie, or a later one.
    pub(crate) fn moved(&self) -> u32 {
        self.moved
    }

    /// Whether files may lie by an older map than the newest.
    pub(crate) fn is_moving(&self) -> bool {
        self.moved < self.newest()
    }

    /// The nodes of a file: strip `i` lies on number `i` modulo their count, or the whole file on
    /// each of them; none if one of them is not known.
    pub(crate) fn of(&self, file: &LaidOut) -> Vec<Coordinate> {
        self.known(file, &self.members(file))
    }

    /// The same once it is moved.
    pub(crate) fn target(&self, file: &LaidOut) -> Vec<Coordinate> {
        let mut members = self.members(file);
        let (group, _) = placed(&file.layout);
        let wanted = first(self.current(), group, members.len());
        let joiners = wanted.iter().filter(|node| !members.contains(node)).copied();
        let mut joiners = joiners.collect::<Vec<u16>>().into_iter();
        for member in members.iter_mut().filter(|member| !wanted.contains(member)) {
            *member = joiners.next().unwrap_or(*member);
        }
        self.known(file, &members)
    }

    /// With the units of stripes, of which each place has one.
    fn known(&self, file: &LaidOut, numbers: &[u16]) -> Vec<Coordinate> {
        let known = numbers.iter().map(|number| self.known.get(number).copied());
        let mut known: Vec<Coordinate> = known.collect::<Option<_>>().unwrap_or_default();
        if file.layout.strategy == Strategy::Parity {
            for (unit, member) in (0..u8::MAX).zip(&mut known) {
                let is_data = unit < file.layout.k;
                member.role = if is_data { Role::Data } else { Role::Parity };
                member.unit = unit;
            }
        }
        known
    }

    /// Where it says that it lies; else the first of its group's order in the map it was made
    /// under, as many as the layout's width, or copies, files of a group beginning at different
    /// ones.
    fn members(&self, file: &LaidOut) -> Vec<u16> {
        if !file.members.is_empty() {
            return file.members.clone();
        }
        let (layout, (group, made)) = (&file.layout, placed(&file.layout));
        let map = usize::try_from(made).ok().and_then(|made| self.maps.get(made));
        let count = layout.nodes().max(1);
        let mut members = first(map.map_or(&[], Vec::as_slice), group, count);
        let begins = Rng::new(file.ino.0).below(members.len() as u64);
        members.rotate_left(usize::try_from(begins).unwrap_or(0));
        members
    }
}

/// The first of a group's order among nodes, so many.
fn first(nodes: &[u16], group: u32, count: usize) -> Vec<u16> {
    let weight = |node: &u16| {
        let key = (u64::from(group) << 16) | u64::from(*node);
        (Rng::new(key).next_u64(), *node)
    };
    let mut order = nodes.to_vec();
    order.sort_by_key(weight);
    order.truncate(count);
    order
}

/// A map's nodes in their order; `EINVAL` if there are none, or one is there twice.
fn in_order(map: &[u16]) -> Result<Vec<u16>> {
    let nodes: BTreeSet<u16> = map.iter().copied().collect();
    if nodes.is_empty() || nodes.len() != map.len() {
        return Err(Errno::EINVAL);
    }
    Ok(nodes.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use outboard_base::Ino;
    use outboard_wire::shared::call::Layout;

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

    fn numbers(of: &[Coordinate]) -> Vec<u16> {
        of.iter().map(|node| node.node).collect()
    }

    fn over(count: u16) -> Placement {
        Placement::new(&nodes(count), vec![(0..count).collect()], 0).unwrap()
    }

    fn striped(width: u8, group: u32, ino: u64) -> LaidOut {
        let layout = Layout { strategy: Strategy::Single, k: 1, m: 0, width, strip: 65536, group };
        LaidOut { ino: Ino(ino), layout, members: Vec::new(), is_file: true }
    }

    fn copies(k: u8, group: u32, ino: u64) -> LaidOut {
        let mut file = striped(4, group, ino);
        (file.layout.strategy, file.layout.k) = (Strategy::Ring, k);
        file
    }

    /// Files of before there were maps lie where they lay.
    #[test]
    fn the_first_map_is_what_volumes_were_made_with() {
        let placement = over(5);
        let golden: Vec<Vec<u16>> = [(3, 7, 100), (4, 0, 1), (2, 63, 99)]
            .into_iter()
            .map(|(width, group, object)| numbers(&placement.of(&striped(width, group, object))))
            .collect();
        assert_eq!(golden, [vec![1, 0, 3], vec![1, 2, 3, 4], vec![4, 3]]);
    }

    #[test]
    fn a_new_map_moves_nothing_before_a_file_is_moved_and_then_little() {
        let before = over(6);
        let after = before.with_map(&nodes(7)).unwrap();
        let (mut changed, mut all) = (0, 0);
        for object in 0..1000 {
            let file = striped(3, u32::try_from(object % 64).unwrap(), object);
            let was = numbers(&before.of(&file));
            assert_eq!(was, numbers(&after.of(&file)));
            let target = numbers(&after.target(&file));
            let differ = was.iter().zip(&target).filter(|(was, is)| was != is);
            // Only the new node comes, once, in the place of another.
            assert!(differ.clone().count() <= 1 && differ.clone().all(|(_, is)| *is == 6));
            (changed, all) = (changed + differ.count(), all + 3);
        }
        assert!((all / 10..all / 5).contains(&changed), "{changed} of {all}, a seventh is fair");
    }

    #[test]
    fn who_is_drained_is_replaced_in_its_place() {
        let six = over(6);
        let staying: Vec<Coordinate> = nodes(6).into_iter().filter(|node| node.node != 2).collect();
        let drained = six.with_map(&staying).unwrap();
        assert!(drained.is_moving() && drained.all().len() == 6);
        for object in 0..1000 {
            let file = copies(3, u32::try_from(object % 64).unwrap(), object);
            let (was, target) = (drained.of(&file), drained.target(&file));
            for (was, is) in numbers(&was).into_iter().zip(numbers(&target)) {
                assert!(is != 2 && (was == is || was == 2));
            }
            let mut sorted = numbers(&target);
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), 3);
        }
        let done = drained.all_moved().unwrap();
        assert_eq!((numbers(done.all()), done.is_moving()), (vec![0, 1, 3, 4, 5], false));
    }

    /// Whatever came and went, a file has as many nodes as ever, none twice, all of the newest map;
    /// who stays keeps its place, also of a file that missed some maps.
    #[test]
    fn many_maps_are_gone_through() {
        let mut rng = Rng::new(7);
        let mut placement = over(5);
        let mut files: Vec<LaidOut> = (0..50).map(|ino| copies(3, 5, ino)).collect();
        for _ in 0..40 {
            let there: Vec<Coordinate> =
                nodes(9).into_iter().filter(|_| rng.below(4) > 0).collect();
            if there.len() < 3 {
                continue;
            }
            placement = placement.with_map(&there).unwrap();
            for file in &mut files {
                let (was, target) = (placement.of(file), numbers(&placement.target(file)));
                assert!(target.iter().all(|node| placement.current().contains(node)));
                for (was, is) in numbers(&was).iter().zip(&target) {
                    assert!(was == is || !target.contains(was));
                }
                let mut sorted = target.clone();
                sorted.sort_unstable();
                sorted.dedup();
                assert_eq!(sorted.len(), 3);
                if rng.below(2) == 0 {
                    file.members = target;
                    assert_eq!(placement.of(file), placement.target(file));
                }
            }
        }
    }

    #[test]
    fn a_file_has_as_many_nodes_as_its_layout_says_and_there_are_and_none_twice() {
        let placement = over(4);
        for object in 0..200 {
            for (width, count) in [(0, 1), (1, 1), (3, 3), (4, 4), (16, 4)] {
                let mut of = numbers(&placement.of(&striped(width, 7, object)));
                assert_eq!(of.len(), count);
                of.sort_unstable();
                of.dedup();
                assert_eq!(of.len(), count);
            }
        }
    }

    #[test]
    fn first_strips_are_spread_over_all_nodes() {
        let placement = over(6);
        let mut first: BTreeMap<u16, u32> = BTreeMap::new();
        for object in 0..6000 {
            let of = placement.of(&striped(3, u32::try_from(object % 64).unwrap(), object));
            *first.entry(of[0].node).or_default() += 1;
        }
        assert_eq!(first.len(), 6);
        assert!(first.values().all(|count| (500..1700).contains(count)), "{first:?}");
    }

    /// Files stay where they are when a node is found elsewhere.
    #[test]
    fn a_node_that_moves_takes_its_files_along() {
        let before = over(4);
        let there = "10.1.2.3:9".parse().unwrap();
        let after = before.found(2, there).unwrap();
        assert!(after.found(2, there).is_none() && after.found(7, there).is_none());
        for object in 0..100 {
            let file = striped(3, 1, object);
            let pairs = before.of(&file).into_iter();
            for (was, is) in pairs.zip(after.of(&file)) {
                assert_eq!(was.node, is.node);
                assert_eq!(is.address == [10, 1, 2, 3] && is.port == 9, is.node == 2);
            }
        }
    }

    #[test]
    fn members_must_be_known_and_differ() {
        let bad: [Vec<Vec<u16>>; 4] = [vec![], vec![vec![]], vec![vec![7]], vec![vec![1, 1]]];
        for maps in bad {
            assert_eq!(Placement::new(&nodes(3), maps, 0).unwrap_err(), Errno::EINVAL);
        }
        let twice = [nodes(1), nodes(1)].concat();
        assert_eq!(Placement::new(&twice, vec![vec![0]], 0).unwrap_err(), Errno::EINVAL);
        assert!(Placement::new(&nodes(3), vec![vec![7], vec![1]], 1).is_ok(), "it is gone");
        assert!(Placement::new(&nodes(3), vec![vec![1]], 1).is_err());
    }
}

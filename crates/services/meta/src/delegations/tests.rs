use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use outboard_base::Rng;
use outboard_sim::seeds;

use super::*;

const FILES: u64 = 4;
const CLIENTS: u64 = 4;

/// The same, with nothing forgotten: who has what of each file, every fence there was, and whether
/// it must be resolved.
#[derive(Default)]
struct Reference {
    held: BTreeMap<(u64, u64), (Mode, u64)>,
    highest: BTreeMap<u64, u64>,
    unresolved: BTreeSet<u64>,
    /// Fewer than the table remembers.
    returned: BTreeSet<(u64, u64, u64)>,
}

impl Reference {
    fn may_grant(&self, ino: u64, client: u64, mode: Mode) -> bool {
        let others = self.held.iter().filter(|((file, other), _)| *file == ino && *other != client);
        let conflict = |held: Mode| mode == Mode::Write || held == Mode::Write;
        !self.unresolved.contains(&ino) && !others.into_iter().any(|(_, held)| conflict(held.0))
    }

    fn fence(&mut self, ino: u64, fence: u64, opening: u64) {
        let before = self.highest.insert(ino, fence);
        assert!(before.is_none_or(|before| before < fence), "fences of a file go up");
        assert_eq!(fence >> 32, opening);
    }

    fn check(&self, table: &Delegations) {
        for ino in 0..FILES {
            let mut modes = Vec::new();
            for client in 0..CLIENTS {
                let held = table.held(Ino(ino), client).map(|held| (held.mode, held.fence));
                assert_eq!(held, self.held.get(&(ino, client)).copied());
                modes.extend(held.map(|held| held.0));
            }
            let writers = modes.iter().filter(|mode| **mode == Mode::Write).count();
            assert!(writers == 0 || modes.len() == 1, "one writer, or readers: {modes:?}");
            assert_eq!(table.is_unresolved(Ino(ino)), self.unresolved.contains(&ino));
        }
        let (readers, writers) = table.counts();
        assert_eq!(readers + writers, self.held.len());
    }
}

fn mode(rng: &mut Rng) -> Mode {
    if rng.chance(1, 2) { Mode::Read } else { Mode::Write }
}

fn lose_all(client: u64, table: &mut Delegations, reference: &mut Reference) {
    table.lose_all(client);
    let wrote =
        |(key, held): &(&(u64, u64), &(Mode, u64))| key.1 == client && held.0 == Mode::Write;
    let wrote: Vec<u64> = reference.held.iter().filter(wrote).map(|(key, _)| key.0).collect();
    reference.unresolved.extend(wrote);
    reference.held.retain(|key, _| key.1 != client);
}

/// One random step; whether a grant was refused by it.
fn step(rng: &mut Rng, table: &mut Delegations, reference: &mut Reference) -> bool {
    let (ino, client) = (rng.below(FILES), rng.below(CLIENTS));
    let file = Ino(ino);
    match rng.below(8) {
        0..4 => {
            let mode = mode(rng);
            let may = reference.may_grant(ino, client, mode);
            let granted = table.grant(file, client, mode);
            assert_eq!(granted.is_ok(), may);
            let Ok(held) = granted else { return true };
            assert_eq!(held.mode, mode);
            reference.fence(ino, held.fence, 3);
            reference.held.insert((ino, client), (held.mode, held.fence));
        }
        4 => {
            let keep = rng.chance(1, 2).then(|| mode(rng));
            let had = reference.held.get(&(ino, client)).copied();
            let right = rng.chance(2, 3);
            let fence = had.map_or(5, |had| had.1) - u64::from(!right);
            let given = table.give_back(file, client, fence, keep);
            if let Some((mode, _)) = had.filter(|_| right) {
                assert_eq!(given.map(|held| held.mode), Some(mode));
                if mode == Mode::Write && keep != Some(Mode::Write) {
                    reference.returned.insert((ino, client, fence));
                }
                match keep.map(|keep| keep.min(mode)) {
                    Some(keep) => reference.held.insert((ino, client), (keep, fence)),
                    None => reference.held.remove(&(ino, client)),
                };
            } else {
                assert_eq!(given, None);
            }
            let returned = reference.returned.contains(&(ino, client, fence));
            assert_eq!(table.was_given_back(file, client, fence), returned);
        }
        5 if rng.chance(1, 4) => lose_all(client, table, reference),
        5 => {
            let had = reference.held.remove(&(ino, client));
            assert_eq!(table.lose(file, client).map(|held| held.mode), had.map(|had| had.0));
            if had.is_some_and(|had| had.0 == Mode::Write) {
                reference.unresolved.insert(ino);
            }
        }
        6 => {
            if reference.unresolved.contains(&ino) {
                let fence = table.raise(file).unwrap();
                reference.fence(ino, fence, 3);
                table.resolved(file);
                reference.unresolved.remove(&ino);
            }
        }
        _ => {
            let way = table.in_the_way(file, client, Mode::Write);
            let others = reference.held.keys().filter(|(of, by)| *of == ino && *by != client);
            assert!(way.iter().map(|other| (ino, other.client)).eq(others.copied()));
            let way = table.in_the_way(file, client, Mode::Read);
            assert!(way.iter().all(|other| other.held.mode == Mode::Write));
        }
    }
    false
}

#[test]
fn the_table_does_what_one_that_forgets_nothing_does() {
    let refused = Cell::new(0);
    let runs = seeds::run(0..60, |seed| {
        let mut rng = Rng::new(seed);
        let (mut table, mut reference) = (Delegations::new(3), Reference::default());
        for _ in 0..1500 {
            if step(&mut rng, &mut table, &mut reference) {
                refused.set(refused.get() + 1);
            }
            reference.check(&table);
        }
        assert!(table.returned.len() <= RETURNED_MAX);
    });
    assert!(runs.is_alone || refused.get() > 1000, "grants stand in each other's way");
}

#[test]
fn a_file_that_was_forgotten_gets_no_fence_again() {
    let mut table = Delegations::new(1);
    let first = table.grant(Ino(7), 1, Mode::Write).unwrap();
    table.give_back(Ino(7), 1, first.fence, None);
    assert!(table.files.is_empty(), "nobody has it");
    let second = table.grant(Ino(7), 2, Mode::Read).unwrap();
    assert!(second.fence > first.fence);
    assert_eq!(table.give_back(Ino(7), 2, first.fence, None), None, "that is another's");
}

#[test]
fn an_opening_without_fences_refuses() {
    let mut table = Delegations::new(2);
    table.floor = table.last - 1;
    let last = table.grant(Ino(7), 1, Mode::Write).unwrap();
    assert_eq!(last.fence >> 32, 2);
    assert_eq!(table.grant(Ino(7), 1, Mode::Write), Err(Errno::EIO));
    assert_eq!(table.raise(Ino(7)), Err(Errno::EIO));
}

#[test]
fn who_reads_is_upgraded_once_others_are_out_of_the_way() {
    let mut table = Delegations::new(1);
    table.grant(Ino(7), 1, Mode::Read).unwrap();
    let other = table.grant(Ino(7), 2, Mode::Read).unwrap();
    assert_eq!(table.grant(Ino(7), 1, Mode::Write), Err(Errno::EBUSY));
    let way = table.in_the_way(Ino(7), 1, Mode::Write);
    assert_eq!(way, [InTheWay { client: 2, held: other, keep: None }]);
    table.give_back(Ino(7), 2, other.fence, None);
    let writer = table.grant(Ino(7), 1, Mode::Write).unwrap();
    assert!(writer.fence > other.fence && table.writes(Ino(7), 1, writer.fence));
}

/// Who began another life lost what hosts had not written back yet to whoever asked first, and
/// wrote it later all the same.
#[test]
fn what_a_life_could_write_is_kept_for_the_next() {
    let mut table = Delegations::new(1);
    let first = table.grant(Ino(7), 1, Mode::Write).unwrap();
    table.grant(Ino(8), 1, Mode::Read).unwrap();
    table.inherit_all(1);
    assert_eq!(table.held(Ino(8), 1), None, "what it read it has no more");
    assert!(table.is_unresolved(Ino(7)) && table.is_inherited(Ino(7)));
    assert!(!table.writes(Ino(7), 1, first.fence), "what the life before says is not believed");
    assert_eq!(table.in_the_way(Ino(7), 2, Mode::Read).len(), 1);
    table.resolved(Ino(7));
    let anew = table.grant(Ino(7), 1, Mode::Write).unwrap();
    assert!(anew.fence > first.fence && !table.is_inherited(Ino(7)));
    assert_eq!(table.heir(Ino(7)), Some(1), "nobody else had it");
    // Once more, before anything was written back.
    table.inherit_all(1);
    table.resolved(Ino(7));
    assert_eq!((table.heir(Ino(7)), table.is_inherited(Ino(7))), (Some(1), true));
    table.lose(Ino(7), 1);
    table.resolved(Ino(7));
    table.grant(Ino(7), 2, Mode::Read).unwrap();
    table.grant(Ino(7), 1, Mode::Read).unwrap();
    assert_eq!(table.heir(Ino(7)), None, "somebody else had it");
}

#[test]
fn who_reads_beside_an_heir_ends_what_is_kept() {
    let mut table = Delegations::new(1);
    table.inherits(Ino(7), 1);
    table.resolved(Ino(7));
    table.grant(Ino(7), 1, Mode::Read).unwrap();
    assert_eq!(table.heir(Ino(7)), Some(1));
    table.grant(Ino(7), 2, Mode::Read).unwrap();
    assert_eq!(table.heir(Ino(7)), None);
}

/// A writer is known by every fence that it had the file under without a break, and by none from
/// before it.
#[test]
fn what_goes_on_under_another_fence_is_meant_by_those_before() {
    let (mut table, file) = (Delegations::new(3), Ino(7));
    assert_eq!(table.go_on(file, 1), Err(Errno::ESTALE));
    let first = table.grant(file, 1, Mode::Write).unwrap();
    assert_eq!(table.raise_for(file, 2, first.fence), Err(Errno::ESTALE));
    let seal = table.raise_for(file, 1, first.fence).unwrap();
    let next = table.go_on(file, 1).unwrap();
    assert!(first.fence < seal && seal < next.fence);
    // Who decides under a seal finds out that it is over.
    assert!(table.is_last(file, next.fence) && !table.is_last(file, seal));
    for (fence, is_its) in [(-1, false), (0, true), (1, true), (2, true), (3, false)] {
        let fence = first.fence.checked_add_signed(fence).unwrap();
        assert_eq!(table.writes(file, 1, fence), is_its, "{fence}");
    }
    assert_eq!(table.raise_for(file, 1, first.fence), Err(Errno::ESTALE), "it has another");
    // Something of it failed: that is looked at when nobody writes any more.
    table.must_resolve(file);
    assert!(table.is_unresolved(file) && !table.is_left(file) && table.is_written(file));
    assert_eq!(table.give_back(file, 1, first.fence, Some(Mode::Read)), Some(next));
    assert!(table.was_given_back(file, 1, first.fence) && table.is_left(file));
    assert_eq!(table.held(file, 1), Some(Held { mode: Mode::Read, fence: next.fence }));
    table.resolved(file);
    let anew = table.grant(file, 1, Mode::Write).unwrap();
    assert!(table.writes(file, 1, anew.fence) && !table.writes(file, 1, next.fence));
}

//! Where bytes of a file with parities lie, against what is counted byte by byte.

use std::collections::BTreeSet;

use outboard_base::Rng;

use super::*;
use crate::table::tests::grant;

/// Places that matter: about ends of units, of grains, of stripes.
fn place(rng: &mut Rng, k: u64) -> u64 {
    let step = [1, GRAIN, UNIT, k * UNIT][rng.below(4) as usize];
    let near = rng.below(8) * step + rng.below(4);
    near.saturating_sub(rng.below(4)).min(4 * k * UNIT)
}

fn range(rng: &mut Rng, k: u64) -> Range<u64> {
    let (one, other) = (place(rng, k), place(rng, k));
    one.min(other)..one.max(other)
}

/// Where a byte of a file is: the stripe, the unit, the row.
fn at(k: u64, byte: u64) -> (u64, u64, u64) {
    let chunk = byte / UNIT;
    (chunk / k, chunk % k, byte % UNIT)
}

#[test]
fn chunks_are_a_range_piece_by_piece_each_where_it_lies() {
    let mut rng = Rng::new(1);
    for _ in 0..3000 {
        let k = 1 + rng.below(16);
        let range = range(&mut rng, k);
        let mut next = range.start;
        for chunk in chunks(k, range.clone()) {
            assert_eq!(chunk.at, next, "none is left out, none comes twice");
            let len = chunk.rows.end - chunk.rows.start;
            assert!(len > 0 && chunk.rows.end <= UNIT);
            assert_eq!(at(k, chunk.at), (chunk.stripe, chunk.unit.into(), chunk.rows.start));
            let last = (chunk.stripe, chunk.unit.into(), chunk.rows.end - 1);
            assert_eq!(at(k, chunk.at + len - 1), last);
            next += len;
        }
        assert_eq!(next, range.end);
    }
}

/// Several runs that do not overlap: each byte is in the piece of its unit at its row, and the rows
/// of a stripe are grains around all of its pieces.
#[test]
fn parts_have_each_byte_once_and_whole_grains() {
    let mut rng = Rng::new(2);
    for _ in 0..300 {
        let k = 1 + rng.below(4);
        let mut places: Vec<u64> = (0..6).map(|_| place(&mut rng, k)).collect();
        places.sort_unstable();
        let bytes: Vec<Vec<u8>> = places
            .chunks(2)
            .map(|pair| {
                let mut bytes = vec![0; (pair[1] - pair[0]) as usize];
                rng.fill(&mut bytes);
                bytes
            })
            .collect();
        let runs: Vec<(u64, &[u8])> =
            places.iter().step_by(2).copied().zip(bytes.iter().map(Vec::as_slice)).collect();
        let parts = parts(k, &runs).unwrap();
        let mut count = 0;
        for (stripe, part) in &parts {
            assert!(part.rows.start % GRAIN == 0 && part.rows.end % GRAIN == 0);
            assert!(part.rows.end <= UNIT && !part.pieces.is_empty());
            for (unit, row, piece) in &part.pieces {
                let start = (stripe * k + u64::from(*unit)) * UNIT + row;
                let (from, run) =
                    runs.iter().rfind(|(from, run)| *from <= start && !run.is_empty()).unwrap();
                let skipped = (start - from) as usize;
                assert!(*piece == &run[skipped..skipped + piece.len()]);
                assert!(part.rows.start <= *row && row + piece.len() as u64 <= part.rows.end);
                count += piece.len();
            }
            let least = part.pieces.iter().map(|(_, row, _)| row / GRAIN).min();
            let ends = part.pieces.iter().map(|(_, row, piece)| row + piece.len() as u64);
            assert_eq!(least, Some(part.rows.start / GRAIN), "no more than is touched");
            assert_eq!(ends.max().map(|end| end.next_multiple_of(GRAIN)), Some(part.rows.end));
        }
        assert_eq!(count, bytes.iter().map(Vec::len).sum::<usize>());
    }
}

/// A unit is whole if each of its rows is brought; what is laid over the others leaves the rest.
#[test]
fn what_is_not_brought_is_not_whole_and_stays() {
    let mut rng = Rng::new(3);
    for _ in 0..2000 {
        let rows = GRAIN * rng.below(3)..GRAIN * (3 + rng.below(3));
        let zeros = vec![0; UNIT_LEN];
        let mut pieces: Vec<(u8, u64, &[u8])> = Vec::new();
        let mut brought = BTreeSet::new();
        let step = GRAIN / 2;
        for _ in 0..rng.below(8) {
            let unit = rng.below(2) as u8;
            let from = rows.start + step * rng.below((rows.end - rows.start) / step);
            let most = (rows.end - from) / step;
            let len = step * (1 + rng.below(most));
            pieces.push((unit, from, &zeros[..len as usize]));
            brought.extend((from / step..(from + len) / step).map(|row| (unit, row)));
        }
        let part = Part { rows: rows.clone(), pieces };
        let mut units = vec![vec![7; len_of(&rows)]; 2];
        part.lay_over(&mut units).unwrap();
        for unit in 0..2 {
            let all = rows.start / step..rows.end / step;
            let is_whole = all.clone().all(|row| brought.contains(&(unit, row)));
            assert_eq!(part.is_whole(unit), is_whole);
            for row in all {
                let place = (row * step - rows.start) as usize;
                let is_zero = units[usize::from(unit)][place] == 0;
                assert_eq!(is_zero, brought.contains(&(unit, row)));
            }
        }
    }
}

/// Rows that members have, as bytes of the file: those and no others, in order, apart.
#[test]
fn runs_of_a_file_are_the_rows_of_all_its_units() {
    let mut rng = Rng::new(4);
    for _ in 0..300 {
        let k = 1 + rng.below(4);
        let mut ends: Vec<u64> = (0..6).map(|_| GRAIN * rng.below(24)).collect();
        ends.sort_unstable();
        ends.dedup();
        let rows: Vec<Range<u64>> = ends.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
        let from = rng.below(3 * k * UNIT);
        let runs = runs_of_file(k, &rows, from);
        assert!(runs.is_sorted_by(|one, next| one.end < next.start), "{runs:?}");
        let is_data = |byte: u64| {
            let (stripe, _, row) = at(k, byte);
            rows.iter().any(|run| run.contains(&(stripe * UNIT + row)))
        };
        // All changes are at grains.
        for byte in (from..4 * k * UNIT).step_by(GRAIN as usize) {
            let found = runs.iter().any(|run| run.contains(&byte));
            assert_eq!(found, is_data(byte), "{byte} of {rows:?}, k {k}");
        }
    }
}

/// A data node that had no room for its unit was named by the others as one that they did not
/// reach, twice in a minute, and the file went on without it, though it was there all the time.
#[test]
fn after_a_stream_that_failed_each_member_is_asked_itself() {
    let mut grant = grant(Mode::Write, 1);
    (grant.layout.strategy, grant.layout.k, grant.layout.m) = (Strategy::Parity, 2, 1);
    let (address, port) = ([127, 0, 0, 1], 1);
    let member = |unit: u8| Coordinate {
        address,
        port,
        node: unit.into(),
        unit,
        role: if unit < 2 { Role::Data } else { Role::Parity },
    };
    grant.nodes = (0..3).map(member).collect();
    let (streams, now) = (Streams::default(), Time(5));
    let some: Vec<_> = (0..STREAMS).map(|_| streams.begin(&grant, now)).collect();
    assert!(some.iter().all(Option::is_some) && streams.begin(&grant, now).is_none());
    drop(some);
    assert!(streams.begin(&grant, now).is_some(), "they have ended");
    streams.failed(now);
    assert!(streams.begin(&grant, now).is_none());
    assert!(streams.begin(&grant, now.after(REST)).is_some());
    grant.nodes.swap(0, 1);
    assert!(streams.begin(&grant, now.after(REST)).is_none(), "in another order");
    grant.nodes.pop();
    assert!(streams.begin(&grant, now.after(REST)).is_none(), "one is away");
    assert!(Streams::none().begin(&grant, now).is_none());
}

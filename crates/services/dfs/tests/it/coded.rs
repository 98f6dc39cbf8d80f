//! Files with parities: what is at their nodes, what is read without some of these, and what
//! becomes of a stripe whose writer dies.

use std::collections::BTreeMap;
use std::time::Duration;

use outboard_base::task::run;
use outboard_base::{Errno, Fh, Ino, Rng};
use outboard_codec::erasure::{Code, Field};
use outboard_wire::file::{Request, Setattr};
use outboard_wire::shared::Peer;

use crate::host::Host;
use crate::world::{Rig, start};

const UNIT: usize = 65536;
const CODES: [(u8, u8); 4] = [(1, 1), (2, 1), (3, 2), (6, 3)];

fn random(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

fn opened(rig: &mut Rig, host: &Host) -> (Ino, Fh) {
    let asks = host.clone();
    let (attr, fh) = rig.wait(host.peer(), async move { asks.open(b"f", 0).await }).unwrap();
    (attr.ino, fh)
}

fn write(rig: &mut Rig, host: &Host, file: (Ino, Fh), at: u64, bytes: &[u8]) {
    let (asks, bytes) = (host.clone(), bytes.to_vec());
    let len = bytes.len() as u32;
    let written = rig.wait(host.peer(), async move { asks.write(file, at, 0, bytes).await });
    assert_eq!(written, Ok(len));
}

fn read(rig: &mut Rig, host: &Host, file: (Ino, Fh), at: u64, len: usize) -> Vec<u8> {
    let asks = host.clone();
    rig.wait(host.peer(), async move { asks.read(file, at, len as u32).await }).unwrap()
}

fn sync(rig: &mut Rig, host: &Host, (ino, fh): (Ino, Fh)) -> Result<(), Errno> {
    let asks = host.clone();
    let request = Request::Fsync { ino, fh, data_only: false };
    rig.wait(host.peer(), async move { asks.plain(request).await.map(drop) })
}

/// What each node has of a file, as long as the longest, in whole strips.
fn at_nodes(rig: &Rig, ino: Ino) -> Vec<Vec<u8>> {
    let len = (rig.ends(ino.0) as usize).next_multiple_of(UNIT);
    let nodes = rig.world.nodes.iter();
    nodes.map(|node| run(node.store.read(ino.0, 0, len as u32)).unwrap()).collect()
}

/// Whether one node has each unit: those of data, and parities as they are encoded.
fn is_encoded(rig: &Rig, ino: Ino, (k, m): (u8, u8), file: &[u8]) -> bool {
    let (k, m) = (usize::from(k), usize::from(m));
    let mut found = at_nodes(rig, ino);
    let len = found[0].len();
    let mut units = vec![vec![0; len]; k];
    for (number, chunk) in file.chunks(UNIT).enumerate() {
        let at = number / k * UNIT;
        units[number % k][at..at + chunk.len()].copy_from_slice(chunk);
    }
    let mut parities = vec![vec![0; len]; m];
    let data: Vec<&[u8]> = units.iter().map(Vec::as_slice).collect();
    let mut places: Vec<&mut [u8]> = parities.iter_mut().map(Vec::as_mut_slice).collect();
    Code::new(Field::fastest(), k, m).unwrap().encode(&data, &mut places).unwrap();
    units.iter().chain(&parities).all(|unit| {
        let at = found.iter().position(|one| one == unit);
        at.map(|at| found.remove(at)).is_some()
    })
}

/// Whatever is written, cut and punched: the parities at nodes are those of the data, and each set
/// of so many nodes may be away.
#[test]
fn parities_are_those_of_the_data_and_any_nodes_may_be_away() {
    for (seed, units) in CODES.into_iter().enumerate() {
        let (mut rig, mut rng) = (Rig::coded(seed as u64, units), Rng::new(seed as u64));
        let one = Host::new(&mut rig, 1);
        let file = opened(&mut rig, &one);
        let mut bytes = random(&mut rng, 300_001);
        write(&mut rig, &one, file, 0, &bytes);
        for _ in 0..12 {
            let at = rng.below(bytes.len() as u64) as usize;
            let most = if rng.chance(1, 2) { 300 } else { 90_000 };
            let len = 1 + rng.below(most) as usize;
            let some = random(&mut rng, len);
            write(&mut rig, &one, file, at as u64, &some);
            bytes.resize(bytes.len().max(at + len), 0);
            bytes[at..at + len].copy_from_slice(&some);
        }
        let size = bytes.len() - 70_000 - rng.below(100) as usize;
        let (ino, fh) = file;
        let asks = one.clone();
        rig.wait(one.peer(), async move {
            let set = Setattr { size: Some(size as u64), ..Setattr::default() };
            asks.plain(Request::Setattr { ino, fh, set }).await.unwrap();
            let (offset, len, mode) = (65_000, 3_333, 3);
            asks.plain(Request::Fallocate { ino, fh, offset, len, mode }).await.unwrap();
        });
        bytes.truncate(size);
        bytes[65_000..68_333].fill(0);
        sync(&mut rig, &one, file).unwrap();
        assert!(is_encoded(&rig, file.0, units, &bytes));
        let (count, m) = (units.0 + units.1, units.1);
        for away in (0_u32..1 << count).filter(|away| away.count_ones() == u32::from(m)) {
            let nodes = (0..u16::from(count)).filter(|node| away >> node & 1 == 1);
            nodes.clone().for_each(|node| rig.cut(Peer::Node(node), true));
            let at = rng.below(bytes.len() as u64) as usize;
            let len = (1 + rng.below(200_000) as usize).min(bytes.len() - at);
            let found = read(&mut rig, &one, file, at as u64, len);
            assert!(found == bytes[at..at + len], "{units:?} without {away:b}: {at}+{len}");
            nodes.for_each(|node| rig.cut(Peer::Node(node), false));
        }
    }
}

/// A write goes on without as many nodes as there are parities, and they have it in the end.
#[test]
fn nodes_that_were_away_are_filled() {
    for units in CODES {
        let mut rig = Rig::coded(3, units);
        let one = Host::new(&mut rig, 1);
        let file = opened(&mut rig, &one);
        write(&mut rig, &one, file, 0, &vec![1; 5 * UNIT]);
        let away = 0..u16::from(units.1);
        away.clone().for_each(|node| rig.cut(Peer::Node(node), true));
        write(&mut rig, &one, file, 1000, &vec![2; 2 * UNIT]);
        away.for_each(|node| rig.cut(Peer::Node(node), false));
        let mut bytes = vec![1; 5 * UNIT];
        bytes[1000..1000 + 2 * UNIT].fill(2);
        assert!(read(&mut rig, &one, file, 0, 5 * UNIT) == bytes);
        let end = rig.world.time().after(Duration::from_secs(300));
        while !is_encoded(&rig, file.0, units, &bytes) {
            assert!(rig.world.time() < end, "{units:?}: they are not filled");
            rig.pass(Duration::from_secs(5));
        }
        assert!(read(&mut rig, &one, file, 0, 5 * UNIT) == bytes);
    }
}

/// A write found a member silent three times: as it read, as it wrote, and by the server. Or it
/// waited for another member, who waited for that one's part of the parities.
#[test]
fn who_falls_silent_holds_a_write_up_once_beside_the_server() {
    let silence = Duration::from_millis(1200);
    let cases = [(100, 100, None), (0, 3 * UNIT, Some(4 * silence))];
    for (at, len, late) in cases {
        for away in 0..5 {
            let mut rig = Rig::coded(6, (3, 2));
            let one = Host::new(&mut rig, 1);
            let file = opened(&mut rig, &one);
            write(&mut rig, &one, file, 0, &vec![1; 6 * UNIT]);
            sync(&mut rig, &one, file).unwrap();
            rig.cut(Peer::Node(away), true);
            rig.takes_time(silence, late.map(|time| ((away + 1) % 5, time)));
            let begun = rig.world.time();
            write(&mut rig, &one, file, at, &vec![2; len]);
            let took = rig.world.time().since(begun);
            assert!(took < 2 * silence, "{at}+{len} without {away}: {took:?}");
        }
    }
}

/// Of five members one fell silent, and later, when what was written meanwhile was flushed,
/// another. What the four had three still had, but the first counted as one that had lost it, too:
/// the next sync said `EIO`.
#[test]
fn a_sync_does_not_fail_because_members_fell_silent_in_turn() {
    let mut rig = Rig::coded(7, (3, 2));
    let one = Host::new(&mut rig, 1);
    let file = opened(&mut rig, &one);
    write(&mut rig, &one, file, 0, &vec![1; 3 * UNIT]);
    for away in 0..2 {
        rig.cut(Peer::Node(away), true);
        // Who writes a stripe again has it flushed before.
        (0..3).for_each(|byte| write(&mut rig, &one, file, 0, &vec![byte; 3 * UNIT]));
    }
    assert_eq!(sync(&mut rig, &one, file), Ok(()));
    assert!(read(&mut rig, &one, file, 0, 3 * UNIT) == vec![2; 3 * UNIT]);
}

/// Two members fell silent as a file was made durable for its next writer, who waited for the 30 s
/// that a flush may take.
#[test]
fn who_falls_silent_in_a_flush_does_not_hold_up_the_next_writer() {
    let mut rig = Rig::coded(8, (3, 2));
    let one = Host::new(&mut rig, 1);
    let file = opened(&mut rig, &one);
    write(&mut rig, &one, file, 0, &vec![1; 3 * UNIT]);
    // Nobody has it.
    rig.pass(Duration::from_secs(40));
    rig.falls(&[0, 1]);
    let begun = rig.world.time();
    write(&mut rig, &one, file, 0, &vec![2; 3 * UNIT]);
    let took = rig.world.time().since(begun);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// As many members as there are parities are damaged: reads compute what they have, and what is
/// written over it mends it.
#[test]
fn damaged_members_are_computed_and_mended() {
    for units in CODES {
        let mut rig = Rig::coded(5, units);
        let one = Host::new(&mut rig, 1);
        let file = opened(&mut rig, &one);
        // Whole stripes of each code: all grains that there are are written over.
        let mut bytes = random(&mut Rng::new(5), 6 * UNIT);
        write(&mut rig, &one, file, 0, &bytes);
        sync(&mut rig, &one, file).unwrap();
        let count = u16::from(units.0 + units.1);
        for first in 0..count {
            let damaged: Vec<u16> =
                (first..first + u16::from(units.1)).map(|node| node % count).collect();
            damaged.iter().for_each(|node| rig.rots(*node));
            assert!(read(&mut rig, &one, file, 0, bytes.len()) == bytes, "{units:?}: {damaged:?}");
            // Parts of grains: the rest of them is computed, too.
            for at in (0..bytes.len()).step_by(8192) {
                bytes[at] ^= 1;
                write(&mut rig, &one, file, at as u64, &bytes[at..=at]);
            }
            sync(&mut rig, &one, file).unwrap();
            assert!(is_encoded(&rig, file.0, units, &bytes));
        }
    }
}

/// A sync fails only if more nodes lost power, with what they had not flushed, than there are
/// parities; and what was flushed nobody can lose.
#[test]
fn a_sync_fails_if_more_is_lost_than_there_are_parities() {
    for units in CODES {
        for lost in 0..=u16::from(units.0 + units.1) {
            let mut rig = Rig::coded(4, units);
            let one = Host::new(&mut rig, 1);
            let file = opened(&mut rig, &one);
            write(&mut rig, &one, file, 0, &[1; 5000]);
            sync(&mut rig, &one, file).unwrap();
            rig.power_fails_at(0..lost);
            assert_eq!(sync(&mut rig, &one, file), Ok(()), "{units:?}: all was flushed");
            write(&mut rig, &one, file, 100, &[2; 5000]);
            rig.power_fails_at(0..lost);
            let outcome = if lost > u16::from(units.1) { Err(Errno::EIO) } else { Ok(()) };
            assert_eq!(sync(&mut rig, &one, file), outcome, "{units:?}: {lost} lost it");
            assert_eq!(sync(&mut rig, &one, file), Ok(()), "it is said once");
        }
    }
}

/// A writer dies at any moment of a write of one stripe: others find all of it or nothing, and the
/// parities are those of what they find.
#[test]
fn a_stripe_is_as_before_or_as_its_writer_wrote_it() {
    let mut found: BTreeMap<u8, u64> = BTreeMap::new();
    for seed in 0..60 {
        let units = CODES[1 + seed as usize % 3];
        let mut rig = Rig::coded(seed, units);
        let stripe = usize::from(units.0) * UNIT;
        let one = Host::new(&mut rig, 1);
        let file = opened(&mut rig, &one);
        write(&mut rig, &one, file, 0, &vec![1; stripe]);
        sync(&mut rig, &one, file).unwrap();
        let (asks, two) = (one.clone(), Host::new(&mut rig, 2));
        let all = vec![2; stripe];
        let written = start(one.peer(), async move { asks.write(file, 0, 0, all).await });
        let steps = rig.world.below(24);
        (0..steps).for_each(|_| rig.step());
        let is_done = written.lock().unwrap().is_some();
        rig.kill(1);
        rig.pass(Duration::from_secs(20));
        let file = opened(&mut rig, &two);
        let bytes = read(&mut rig, &two, file, 0, stripe);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "seed {seed}: {units:?} is torn");
        assert!(!is_done || bytes[0] == 2, "seed {seed}: it was answered");
        sync(&mut rig, &two, file).unwrap();
        assert!(is_encoded(&rig, file.0, units, &bytes), "seed {seed}");
        *found.entry(bytes[0]).or_default() += 1;
    }
    assert!(found.len() == 2 && found.values().all(|times| *times > 5), "{found:?}");
}

/// A member began another boot, so a write fails in the midst: some have it and some do not. Who
/// reads beside it what lies at a member that is away finds what was there: it is not computed of
/// both.
fn reads_beside_a_write_that_fails(seed: u64) -> bool {
    let mut rig = Rig::coded(seed, (3, 1));
    let one = Host::new(&mut rig, 1);
    let file = opened(&mut rig, &one);
    let before: Vec<u8> = [1, 2, 3].map(|byte| vec![byte; UNIT]).concat();
    write(&mut rig, &one, file, 0, &before);
    sync(&mut rig, &one, file).unwrap();
    let found = at_nodes(&rig, file.0);
    let node_of = |byte| found.iter().position(|one| *one == vec![byte; UNIT]).unwrap() as u16;
    let (away, begins) = (node_of(1), node_of(2));
    rig.cut(Peer::Node(away), true);
    assert!(read(&mut rig, &one, file, 0, UNIT) == before[..UNIT]);
    rig.power_fails_at(std::iter::once(begins));
    let (asks, all) = (one.clone(), vec![9; UNIT]);
    let at = UNIT as u64;
    let written = start(one.peer(), async move { asks.write(file, at, 0, all).await });
    (0..rig.world.below(16)).for_each(|_| rig.step());
    let is_right = read(&mut rig, &one, file, 0, UNIT) == before[..UNIT];
    assert_eq!(rig.until(&written), Ok(UNIT as u32));
    is_right
}

#[test]
fn a_unit_is_computed_of_one_version() {
    assert!((0..100).all(reads_beside_a_write_that_fails));
}

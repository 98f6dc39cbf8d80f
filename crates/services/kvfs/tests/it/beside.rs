//! One big file under many hands: writes, reads, cuts and syncs of overlapping ranges at once,
//! polled in random order over an engine and a medium that delay, some dropped in the middle;
//! then a new start, after power loss or without.
//!
//! The file is units of half a block, so that writes share blocks. Each unit is judged like a
//! register: a read may find what any write has put there, unless another write of the unit began
//! after that one had ended, and had itself ended before the read began. After power loss the last
//! successful sync stands for the read.

use outboard_base::task::poll_once;
use std::pin::Pin;
use std::task::Poll;

use outboard_base::{Fh, Ino, Result, Rng, Timestamp};
use outboard_kv::mem;
use outboard_medium as medium;
use outboard_sim::oracle::RegisterOracle;
use outboard_sim::{Trace, seeds};
use outboard_volume::{Answer, Payload};
use outboard_wire::file::{Header, Reply, Request, Setattr, write_flags};

use crate::data::clean;
use crate::world::{Disk, User, Volume, block_on, tidy};

const UNIT: usize = 4096;
/// Units the file may have: two pages of index and a bit.
const UNITS: usize = 150;

/// The bytes of one unit: nobody else's, whatever half of it is looked at.
fn unit(value: u32) -> [u8; UNIT] {
    let mut bytes = [0; UNIT];
    bytes.chunks_mut(4).for_each(|four| four.copy_from_slice(&value.to_le_bytes()));
    bytes
}

fn value(bytes: &[u8], why: &str) -> u32 {
    let value = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    assert!(bytes == &unit(value)[..bytes.len()], "{why}: a unit of several writes");
    value
}

enum What {
    Write(u32, std::ops::Range<usize>),
    Append(u8, usize),
    Cut(usize),
    Read(std::ops::Range<usize>),
    Sync,
}

struct Slot<'v> {
    running: Option<Pin<Box<dyn Future<Output = Result<Answer>> + 'v>>>,
    what: What,
    begun: u64,
}

fn draw(rng: &mut Rng, begun: u64) -> What {
    let from = rng.below(UNITS as u64) as usize;
    let most = if rng.chance(1, 10) { 60 } else { 5 };
    let units = from..(from + 1 + rng.below(most) as usize).min(UNITS);
    match rng.below(20) {
        0..=11 => What::Write(begun as u32, units),
        12 if rng.chance(1, 3) => What::Cut(3 + from),
        13 => What::Sync,
        _ => What::Read(units),
    }
}

/// Has engine and medium take their time, and the engine report conflicts.
fn slow(disk: &Disk, delay_polls: u64, commit_conflicts: u64) {
    disk.kv.set_faults(mem::Faults { delay_polls, commit_conflicts, ..<_>::default() });
    disk.medium.set_faults(medium::mem::Faults { delay_polls: 6, ..<_>::default() });
}

fn at_ease(disk: &Disk) {
    disk.kv.set_faults(mem::Faults::default());
    disk.medium.set_faults(medium::mem::Faults::default());
}

impl<'v> Slot<'v> {
    /// From now on its units may hold what it writes.
    fn begins(&self, registers: &mut RegisterOracle) {
        match &self.what {
            What::Write(value, units) => registers.begin(units.clone(), *value, self.begun),
            What::Cut(units) => registers.begin(*units.min(&UNITS)..UNITS, 0, self.begun),
            _ => {}
        }
    }

    fn start(&mut self, volume: &'v Volume, (ino, fh): (Ino, Fh), lane: u16) {
        let offset = |unit: usize| (unit * UNIT) as u64;
        let (request, payload) = match &self.what {
            What::Write(value, units) => {
                let request = Request::Write { ino, fh, offset: offset(units.start), flags: 0 };
                (request, unit(*value).repeat(units.len()))
            }
            What::Append(value, len) => {
                let flags = write_flags::APPEND;
                (Request::Write { ino, fh, offset: 0, flags }, vec![*value; *len])
            }
            What::Cut(units) => {
                let set = Setattr { size: Some(offset(*units)), ..Setattr::default() };
                (Request::Setattr { ino, fh: Fh::NONE, set }, Vec::new())
            }
            What::Read(units) => {
                let len = (units.len() * UNIT) as u32;
                let offset = offset(units.start);
                (Request::Read { ino, fh, offset, len, flags: 0 }, Vec::new())
            }
            What::Sync => (Request::Fsync { ino, fh, data_only: true }, Vec::new()),
        };
        let caller = User::root(volume).caller;
        let now = Timestamp { sec: 3_000_000 + self.begun as i64, nsec: 0 };
        let (session, sequence) = (caller.attachment, 1000 + self.begun);
        self.running = Some(Box::pin(async move {
            let header = Header { session, sequence, lane, ..Header::default() };
            volume.handle(&caller, &header, request, Payload::Bytes(payload), now).await
        }));
    }
}

fn judge(
    registers: &RegisterOracle,
    units: std::ops::Range<usize>,
    bytes: &[u8],
    when: u64,
    why: &str,
) {
    for (nth, at) in units.enumerate() {
        let found = bytes.get(nth * UNIT..).unwrap_or_default();
        let found = found.get(..UNIT).unwrap_or(found);
        let found = if found.is_empty() { 0 } else { value(found, why) };
        assert!(registers.allow(at, found, when), "{why}: unit {at} is {found} at {when}");
    }
}

/// The trace of the run.
fn run(seed: u64, power: bool, drops: bool) -> u64 {
    let why = format!("seed {seed}");
    let mut rng = Rng::new(seed);
    let disk = Disk::new(seed);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let (attr, fh) = user.create(Ino::ROOT, "f", 0).unwrap();
    let ino = attr.ino;
    let mut registers = RegisterOracle::new(UNITS);
    registers.begin(0..100, 1, 1);
    user.write(ino, fh, 0, &unit(1).repeat(100)).unwrap();
    registers.end(1, 2);
    user.sync().unwrap();
    slow(&disk, seed % 4, if seed.is_multiple_of(2) { 15 } else { 0 });
    let idle = || Slot { running: None, what: What::Sync, begun: 0 };
    let mut slots: Vec<Slot<'_>> = (0..8).map(|_| idle()).collect();
    // The moment of the last sync that is known to have succeeded began.
    let (mut clock, mut synced) = (10, 2);
    let mut trace = Trace::default();
    for _ in 0..3000 {
        clock += 1;
        let lane = rng.below(8) as u16;
        let slot = &mut slots[usize::from(lane)];
        let Some(running) = &mut slot.running else {
            (slot.what, slot.begun) = (draw(&mut rng, clock), clock);
            slot.begins(&mut registers);
            slot.start(&volume, (ino, fh), lane);
            continue;
        };
        if drops && rng.chance(1, 150) {
            slot.running = None;
            continue;
        }
        let Poll::Ready(answer) = poll_once(running.as_mut()) else { continue };
        slot.running = None;
        let answer = answer.unwrap_or_else(|errno| panic!("{why}: {errno}"));
        trace.note_text(format_args!("{clock} {lane} {:?}", answer.reply));
        match &slot.what {
            What::Write(_, units) => {
                assert_eq!(answer.reply, Reply::Written((units.len() * UNIT) as u32), "{why}");
                registers.end(slot.begun, clock);
            }
            What::Cut(_) => registers.end(slot.begun, clock),
            What::Append(..) => unreachable!("not drawn"),
            What::Read(units) => {
                judge(&registers, units.clone(), answer.payload.bytes(), slot.begun, &why);
            }
            What::Sync => synced = synced.max(slot.begun),
        }
    }
    drop(slots);
    drop(volume);
    if power {
        disk.kv.crash();
        disk.medium.crash();
    } else {
        synced = clock;
    }
    at_ease(&disk);
    after_all(&disk.open_settled(), ino, &registers, synced, &why);
    trace.hash()
}

/// The file as the next start finds it; without it, every block is free.
fn after_all(volume: &Volume, ino: Ino, registers: &RegisterOracle, synced: u64, why: &str) {
    clean(volume);
    let user = User::root(volume);
    let fh = user.open(ino, 2).unwrap();
    let found = user.read(ino, fh, 0, 1 << 20).unwrap();
    judge(registers, 0..UNITS, &found, synced, why);
    user.set(ino, Setattr { size: Some(0), ..Setattr::default() }).unwrap();
    tidy(volume);
    assert_eq!(volume.objects().space().used, 0, "{why}: a block is nobody's");
    clean(volume);
}

#[test]
fn equal_seeds_give_equal_traces() {
    seeds::run(0..3, |seed| assert_eq!(run(seed, true, true), run(seed, true, true)));
    assert_ne!(run(1, true, true), run(2, true, true));
}

#[test]
fn nobody_sees_half_a_write_or_an_older_one() {
    seeds::run(0..20, |seed| run(seed, false, false));
}

#[test]
fn and_some_are_given_up_in_the_middle() {
    seeds::run(0..20, |seed| run(seed, false, true));
}

#[test]
fn and_the_power_fails() {
    seeds::run(0..40, |seed| run(seed, true, seed.is_multiple_of(2)));
}

/// Eight overwrites of one file went one disk access after the other: each held the file until it
/// was committed. Those whose blocks are out at the same time are one batch.
#[test]
fn writes_of_one_file_wait_for_the_disk_together() {
    let disk = Disk::new(1);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let (attr, fh) = user.create(Ino::ROOT, "f", 0).unwrap();
    let ino = attr.ino;
    user.write(ino, fh, 0, &[1; 64 * UNIT]).unwrap();
    let rounds = |writers: usize, delay_polls: u64| {
        disk.medium.set_faults(medium::mem::Faults { delay_polls, ..<_>::default() });
        let mut slots: Vec<Slot<'_>> = Vec::new();
        for nth in 0..writers {
            let what = What::Write(7, 2 * nth..2 * nth + 2);
            let mut slot = Slot { running: None, what, begun: nth as u64 };
            slot.start(&volume, (ino, fh), nth as u16);
            slots.push(slot);
        }
        let mut all: Vec<_> = slots.into_iter().filter_map(|slot| slot.running).collect();
        let rounds = (1..).find(|_| {
            all.retain_mut(|running| poll_once(running.as_mut()).is_pending());
            all.is_empty()
        });
        disk.medium.set_faults(medium::mem::Faults::default());
        rounds.unwrap()
    };
    assert!((0..20).map(|_| rounds(8, 100)).max().unwrap() <= 110, "they waited for each other");
    disk.kv.dies_after(1000);
    (0..10).map(|_| rounds(8, 3)).for_each(drop);
    let batches = 1000 - disk.kv.left();
    assert!(batches <= 40, "{batches} batches of 80 writes");
    disk.kv.dies_after(u64::MAX);
    assert_eq!(user.read(ino, fh, 0, 17 * UNIT as u32).unwrap(), {
        let mut bytes = unit(7).repeat(16);
        bytes.extend([1; UNIT]);
        bytes
    });
    block_on(volume.tidy()).unwrap();
}

const RECORD: usize = 3000;

/// What each has appended: answered, and the one it may have.
#[derive(Default)]
struct Appended {
    answered: [Vec<u8>; 4],
    may: [Vec<u8>; 4],
    last: u8,
}

impl Appended {
    fn draw(&mut self, lane: usize, rng: &mut Rng) -> What {
        if lane < 4 {
            self.last = self.last % 250 + 1;
            self.may[lane].push(self.last);
            What::Append(self.last, RECORD)
        } else if rng.chance(1, 2) {
            What::Write(7, 0..2)
        } else {
            What::Read(0..4)
        }
    }

    fn judge(&self, found: &[u8], seed: u64) {
        assert!(self.last < 250, "values come once");
        for (may, answered) in self.may.iter().zip(&self.answered) {
            let own: Vec<u8> = found.iter().copied().filter(|v| may.contains(v)).collect();
            let order = |v: &&u8| may.iter().position(|m| m == *v);
            assert!(own.is_sorted_by_key(|v| order(&v)), "seed {seed}: out of order");
            let once = |v: &u8| own.iter().filter(|found| *found == v).count() == 1;
            assert!(answered.iter().all(once), "seed {seed}: answered and not there once");
        }
        let known = |v: &u8| self.may.iter().any(|may| may.contains(v));
        assert!(found.iter().all(known), "seed {seed}: what nobody wrote");
    }
}

/// Many append to one big file while others read and write its beginning; some are given up. Every
/// record that was answered is there once and whole, each writer's in its order, and none between
/// them that nobody wrote.
#[test]
fn appends_find_the_end_beside_other_writes() {
    seeds::run(0..30, |seed| {
        let mut rng = Rng::new(seed);
        let disk = Disk::new(seed);
        let volume = disk.open_settled();
        let user = User::root(&volume);
        let (attr, fh) = user.create(Ino::ROOT, "f", 0).unwrap();
        let ino = attr.ino;
        user.write(ino, fh, 0, &[255; 20_000]).unwrap();
        slow(&disk, seed % 3, if seed.is_multiple_of(3) { 15 } else { 0 });
        let mut running: Vec<Option<Slot<'_>>> = (0..6).map(|_| None).collect();
        let mut appended = Appended::default();
        for clock in 1..1500 {
            let lane = rng.below(6) as usize;
            let Some(slot) = &mut running[lane] else {
                let what = appended.draw(lane, &mut rng);
                let mut slot = Slot { running: None, what, begun: clock };
                slot.start(&volume, (ino, fh), lane as u16);
                running[lane] = Some(slot);
                continue;
            };
            if rng.chance(1, 100) {
                running[lane] = None;
                continue;
            }
            let Some(future) = &mut slot.running else { unreachable!() };
            let polled = poll_once(future.as_mut());
            let Poll::Ready(answer) = polled else { continue };
            answer.unwrap_or_else(|errno| panic!("seed {seed}: {errno}"));
            if let What::Append(value, _) = slot.what {
                appended.answered[lane].push(value);
            }
            running[lane] = None;
        }
        drop(running);
        at_ease(&disk);
        clean(&volume);
        let size = user.stat(ino).unwrap().size as usize;
        let record = |at: usize| {
            let record = user.read(ino, fh, at as u64, RECORD as u32).unwrap();
            assert_eq!(record, [record[0]; RECORD], "seed {seed}: a record in pieces at {at}");
            record[0]
        };
        let found: Vec<u8> = (20_000..size).step_by(RECORD).map(record).collect();
        appended.judge(&found, seed);
    });
}

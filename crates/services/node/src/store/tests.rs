//! The decoders of what lies on the media: round trips, cuts at every byte, mutations.

#![allow(clippy::cast_possible_truncation, reason = "numbers that the tests draw")]

use std::ops::Range;

use outboard_base::Rng;
use outboard_wire::shared::Share;

use super::format::{
    self, BLOCK, Bad, Header, LOG_ROOM, LogHead, PIECE_ROOM, PLAIN, TRUSTED, emit_piece,
    parse_piece,
};
use super::fuzz;
use super::index::{Cursor, GRAIN, Grain, Index, Wrote};
use super::pending::Pending;
use super::record::Record;
use super::{StoreOptions, Version};

const SEEDS: Range<u64> = 0..100;

fn grain(rng: &mut Rng) -> Grain {
    Grain { slot: rng.below(1 << 31) as u32, crc: rng.next_u64() as u32 }
}

fn version(rng: &mut Rng) -> Version {
    Version { fence: rng.next_u64(), sequence: rng.next_u64() as u32 }
}

fn write(rng: &mut Rng) -> Record {
    let (object, strip) = (rng.below(5), 8192 << rng.below(8));
    let from = rng.below(strip);
    let bytes = 1 + rng.below(strip - from);
    let count = (from + bytes).div_ceil(GRAIN) - from / GRAIN;
    Record::Write {
        object: object + strip * 100,
        strip: strip as u32,
        version: version(rng),
        offset: rng.below(1 << 40) * strip + from,
        bytes: bytes as u32,
        crc: rng.next_u64() as u32,
        grains: (0..count).map(|_| grain(rng)).collect(),
    }
}

/// The same write, of a strip that others have copies of.
fn pending(write: Record, previous: Version, epoch: u32) -> Record {
    let Record::Write { object, strip, version, offset, bytes, crc, grains } = write else {
        return write;
    };
    let (index, from) = (offset / u64::from(strip), (offset % u64::from(strip)) as u32);
    let (wrote, grains) = (Wrote { from, bytes, crc }, grains.into_boxed_slice());
    let pending = Pending { version, previous, epoch, wrote, grains };
    Record::Pending { object, strip, index, pending }
}

fn record(rng: &mut Rng) -> Record {
    let object = rng.below(5);
    match rng.below(9) {
        0..2 => write(rng),
        6..8 => pending(write(rng), version(rng), rng.next_u64() as u32),
        8 => Record::Settled { object, index: rng.below(1 << 40), version: version(rng) },
        2 => {
            let start = 1 + rng.below(1 << 40) * GRAIN;
            let end = if rng.chance(1, 2) { u64::MAX } else { start + 3 * GRAIN };
            let edges = if end == u64::MAX { 1 } else { rng.below(3) };
            let edges = (0..edges).map(|edge| (start / GRAIN + 3 * edge, grain(rng)));
            let edges = edges.collect();
            Record::Hole { object, version: version(rng), range: start..end, edges }
        }
        5 => {
            let (start, count) = (rng.below(1 << 40), 1 + rng.below(9) as u8);
            let share = Share { count, place: rng.below(u64::from(count)) as u8, strip: 1 << 17 };
            let range = start..start + 1 + rng.below(1 << 18);
            Record::Aside { object, strip: 1 << 16, version: version(rng), range, share }
        }
        3 => Record::Seal { object, fence: rng.next_u64() },
        _ if rng.chance(1, 2) => Record::Purge { object },
        _ => Record::Tomb { object, fence: rng.next_u64(), until: rng.next_u64() },
    }
}

#[test]
fn the_largest_record_fits_a_block() {
    let grains = vec![Grain { slot: 1, crc: 2 }; 128];
    let version = Version::default();
    let (strip, bytes, crc) = (1 << 20, 1 << 20, 0);
    let record = Record::Write { object: 1, strip, version, offset: 0, bytes, crc, grains };
    let record = pending(record, version, 0);
    assert!(record.is_possible());
    let mut out = Vec::new();
    record.emit(&mut out);
    assert!(out.len() <= LOG_ROOM);
}

fn header(format: u32) -> Header {
    let trusted = if format == PLAIN { 0 } else { 0x0706 };
    let (cluster, limit) = (1, 4096);
    Header { format, cluster, node: 2, half: 1, pieces: 3, epoch: 4, bytes: 5, limit, trusted }
}

/// The records of strips with copies, and a strip with a pending write in a checkpoint.
fn golden_copies(write: &Record) {
    let mut out = Vec::new();
    let previous = Version { fence: 0x0101, sequence: 2 };
    let pending = pending(write.clone(), previous, 9);
    pending.emit(&mut out);
    let version = Version { fence: 0x0201, sequence: 3 };
    Record::Settled { object: 6, index: 1, version }.emit(&mut out);
    #[rustfmt::skip]
    let golden = [
        7, 6, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
        1, 2, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0,
        1, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 1, 0, 4, 0, 0, 0, 5, 0, 0, 0,
        8, 6, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0,
    ];
    assert_eq!(out, golden);
    let mut index = Index::default();
    index.apply(&pending).unwrap();
    out.clear();
    assert!(index.emit(Cursor::default(), usize::MAX, &mut out).is_none());
    // Behind the object's head of 44 bytes: nothing that is stable, and what is pending.
    #[rustfmt::skip]
    let golden = [
        1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 128,
        1, 2, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0,
        1, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 1, 0, 4, 0, 0, 0, 5, 0, 0, 0,
    ];
    assert_eq!(out[44..], golden);
}

/// The layout is a contract between versions of the program: this test is its golden copy.
#[test]
fn golden_bytes() {
    let version = Version { fence: 0x0201, sequence: 3 };
    let grains = vec![Grain { slot: 4, crc: 5 }];
    let write =
        Record::Write { object: 6, strip: 8192, version, offset: 8193, bytes: 7, crc: 8, grains };
    let mut out = Vec::new();
    write.emit(&mut out);
    #[rustfmt::skip]
    let golden = [
        1, 6, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0,
        1, 32, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 1, 0, 4, 0, 0, 0, 5, 0, 0, 0,
    ];
    assert_eq!(out, golden);
    out.clear();
    let edges = vec![(1, Grain { slot: 4, crc: 5 })];
    Record::Hole { object: 6, version, range: 9..10000, edges }.emit(&mut out);
    Record::Seal { object: 7, fence: 8 }.emit(&mut out);
    Record::Purge { object: 9 }.emit(&mut out);
    let share = Share { count: 2, place: 1, strip: 8192 };
    Record::Aside { object: 6, strip: 8192, version, range: 9..10000, share }.emit(&mut out);
    #[rustfmt::skip]
    let golden = [
        2, 6, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0,
        16, 39, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0,
        3, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 4, 9, 0, 0, 0, 0, 0, 0, 0,
        5, 6, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0,
        9, 0, 0, 0, 0, 0, 0, 0, 16, 39, 0, 0, 0, 0, 0, 0, 2, 1, 0, 32, 0, 0,
    ];
    assert_eq!(out, golden);
    golden_copies(&write);
    golden_headers();
}

/// They differ in what they say behind the log's length.
fn golden_headers() {
    let mut block = vec![7; BLOCK];
    let crc = header(TRUSTED).emit(&mut block).to_le_bytes();
    assert_eq!(block[..16], [&b"OBNODST1\x03\0\0\0"[..], &crc].concat());
    assert_eq!(
        (&block[56..64], block[64..].iter().max()),
        (&[6, 7, 0, 0, 0, 0, 0, 0][..], Some(&0))
    );
    let crc = header(PLAIN).emit(&mut block).to_le_bytes();
    assert_eq!(block[..16], [&b"OBNODST1\x01\0\0\0"[..], &crc].concat());
    #[rustfmt::skip]
    let golden = [
        1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0,
        5, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!((&block[16..56], block[56..].iter().max()), (&golden[..], Some(&0)));
}

#[test]
fn records_are_read_as_they_were_written_and_not_when_cut() {
    for seed in SEEDS {
        let mut rng = Rng::new(seed);
        let record = record(&mut rng);
        let mut out = Vec::new();
        record.emit(&mut out);
        assert_eq!(format::records(&out), Ok(vec![record]), "seed {seed}");
        for cut in 1..out.len() {
            assert_eq!(format::records(&out[..cut]), Err(Bad::Impossible), "{seed}: {cut}");
        }
        fuzz::records(&out);
        for _ in 0..20 {
            let mut mutated = out.clone();
            let at = rng.below(out.len() as u64) as usize;
            mutated[at] = rng.next_u64() as u8;
            fuzz::records(&mutated);
        }
    }
}

/// An index that random records made.
fn index(rng: &mut Rng) -> Index {
    let mut index = Index::default();
    for _ in 0..rng.below(12) {
        let _taken = index.apply(&record(rng));
    }
    index
}

#[test]
fn a_checkpoint_is_read_as_it_was_written_and_not_when_cut() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let index = index(&mut rng);
        let (mut out, mut cursor) = (Vec::new(), Some(Cursor::default()));
        let room = 1 + rng.below(2000) as usize;
        while let Some(from) = cursor {
            let room = out.len() + room;
            cursor = index.emit(from, room, &mut out);
        }
        let read = Index::parse(&out).unwrap();
        assert_eq!(read.objects, index.objects, "seed {seed}");
        let ends: Vec<_> =
            (0..=out.len()).filter(|cut| Index::parse(&out[..*cut]).is_ok()).collect();
        // An object begins where the one before ends.
        assert_eq!(ends.len(), index.objects.len() + 1, "seed {seed}");
        fuzz::index(&out);
        for _ in 0..20.min(out.len()) {
            let mut mutated = out.clone();
            let at = rng.below(out.len() as u64) as usize;
            mutated[at] = rng.next_u64() as u8;
            fuzz::index(&mutated);
        }
    }
}

#[test]
fn a_block_that_changed_in_one_bit_is_none() {
    let mut rng = Rng::new(1);
    let head = LogHead { epoch: 3, index: 4, before: 5, durable: 2 };
    let header = header(TRUSTED);
    let (mut log, mut front, mut piece) = (vec![0; BLOCK], vec![0; BLOCK], vec![0; BLOCK]);
    let crc = head.emit(&mut log, b"records");
    let its_crc = header.emit(&mut front);
    emit_piece(&mut piece, 3, 1, b"objects");
    assert_eq!(LogHead::parse(&log), Ok((head, &b"records"[..], crc)));
    assert_eq!(Header::parse(&front), Ok((header, its_crc)));
    assert_eq!(parse_piece(&piece, 3, 1), Ok(&b"objects"[..]));
    assert_eq!(parse_piece(&piece, 2, 1), Err(Bad::Absent));
    assert_eq!(parse_piece(&piece, 3, 0), Err(Bad::Absent));
    for at in 0..BLOCK {
        let bit = 1 << rng.below(8);
        log[at] ^= bit;
        assert_eq!(LogHead::parse(&log), Err(Bad::Absent), "{at}");
        log[at] ^= bit;
        if at < 512 {
            front[at] ^= bit;
            assert!(Header::parse(&front).is_err(), "{at}");
            front[at] ^= bit;
        }
        if at < 24 + 7 {
            piece[at] ^= bit;
            assert_eq!(parse_piece(&piece, 3, 1), Err(Bad::Absent), "{at}");
            piece[at] ^= bit;
        }
        for cut in [&log[..at], &front[..at.min(511)], &piece[..at.min(30)]] {
            assert!(LogHead::parse(cut).is_err());
            assert!(Header::parse(cut).is_err());
            assert!(parse_piece(cut, 3, 1).is_err());
        }
    }
}

#[test]
fn halves_do_not_meet() {
    let chunk = format::CHUNK;
    let mut places: Vec<u64> = (0..2)
        .flat_map(|half| (0..9).map(move |number| format::place(half, number * chunk)))
        .collect();
    places.sort_unstable();
    assert!(places.windows(2).all(|two| two[1] - two[0] == chunk));
    assert_eq!(format::place(1, chunk + 5), format::HEADERS + 3 * chunk + 5);
    let room = PIECE_ROOM as u64;
    for (pieces, bytes, at) in [
        (0, 0, 0),
        (1, 1, 4096),
        (1, room, chunk),
        (2, room + 1, chunk + 4096),
        (2, room + 4072, chunk + 4096),
        (2, room + 4073, chunk + 8192),
    ] {
        let header = Header { pieces, bytes, ..Header::default() };
        assert_eq!(header.log_at(), at, "{pieces} {bytes}");
    }
    let options =
        StoreOptions { node: 0, cluster: 0, capacity: 0, segment: 0, checkpoint_bytes: 1 << 20 };
    assert_eq!(options.log_limit(), 2 << 20);
}

/// What memory a grain takes where strips are whole, as the page says.
#[test]
fn a_grain_takes_few_bytes_of_memory() {
    let strip = size_of::<u64>() + size_of::<super::index::Strip>();
    assert!(strip + 8 * size_of::<Grain>() <= 8 * 20, "{strip} a strip");
}

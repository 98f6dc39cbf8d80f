use proptest::prelude::*;

use super::*;

/// The layout is a contract between two programs: this test is its golden copy.
#[test]
fn golden_bytes() {
    assert_eq!(MAGIC.to_le_bytes(), *b"OBHC");
    let wishes = Wishes { replace: 1, prefetch: 2, flush: 3, dirty: 40 };
    let mode = CacheMode::Write;
    let (total, ways, records) = (8, 8, 4);
    let header = Header { chained: true, page_size: 8192, mode, total, ways, records, wishes };
    #[rustfmt::skip]
    let golden = [
        b'O', b'B', b'H', b'C', 3, 0, 0, 0, 0, 32, 0, 0, 1, 0, 0, 0,
        8, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0,
        8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        1, 2, 3, 40, 0, 0, 0, 0,
    ];
    assert_eq!(header.emit(), golden);
    let word = Word {
        lock: Lock::Read,
        status: Status::Dirty,
        by_dpu: true,
        referenced: true,
        readers: 0x0203,
        version: 0x0807_0605,
    };
    assert_eq!(word.emit(), 0x0807_0605_0002_033A);
    let entry = Entry { word, next: 7, lpn: 9, ino: 11 };
    let bytes = entry.emit();
    assert_eq!((bytes[8], bytes[16], bytes[24]), (7, 9, 11));
    let record = Record {
        word: GrantWord { grant: Grant::Write, epoch: 3 },
        ino: 5,
        size: 6,
        mtime: -1,
        credit: 8,
        dirtied: Dirtied { tag: 0x0C_0B0A, pages: 9 },
        chain: 0x0605_0403,
    };
    let bytes = record.emit();
    assert_eq!((bytes[0], bytes[4], bytes[8], bytes[16]), (2, 3, 5, 6));
    assert_eq!((bytes[24], bytes[32]), (0xFF, 8));
    assert_eq!(bytes[40..56], [9, 0, 0, 0, 0, 0x0A, 0x0B, 0x0C, 3, 4, 5, 6, 0, 0, 0, 0]);
}

/// A host that attached before the DPU side was replaced by this version has a cache of the one
/// before, with pages nobody else holds.
#[test]
fn the_version_before_is_read() {
    #[rustfmt::skip]
    let old = [
        b'O', b'B', b'H', b'C', 2, 0, 0, 0, 0, 32, 0, 0, 1, 0, 0, 0,
        8, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0,
        8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        1, 2, 3, 40, 0, 0, 0, 0,
    ];
    let header = Header::parse(&old).unwrap();
    assert!(!header.chained && header.total == 8);
    assert_eq!(header.emit(), old);
}

#[test]
fn dirty_pages_are_counted_within_the_credit_of_one_grant() {
    let dirtied = Dirtied { tag: 0xAB_CDEF, pages: 5 };
    assert_eq!(dirtied.emit(), 0xABCD_EF00_0000_0005);
    assert_eq!(dirtied.and(3, 8), Some(Dirtied { pages: 8, ..dirtied }));
    assert_eq!((dirtied.and(4, 8), dirtied.and(u64::MAX, u64::MAX)), (None, None));
    let full = Dirtied { pages: Dirtied::MAX, ..dirtied };
    assert_eq!((Dirtied::parse(full.emit()), full.and(1, u64::MAX)), (full, None));
}

#[test]
fn hostile_headers_are_refused_by_name() {
    let (mode, wishes) = (CacheMode::Read, Wishes::default());
    let (total, ways, records) = (64, 8, 64);
    let good = Header { chained: true, page_size: 8192, mode, total, ways, records, wishes };
    let refused = |change: fn(&mut Header)| {
        let mut bad = good;
        change(&mut bad);
        Header::parse(&bad.emit())
    };
    assert_eq!(refused(|_| ()), Ok(good));
    for size in [0, 1, 2048, 8191, 12288, 1 << 17] {
        let bad = Header { page_size: size, ..good };
        assert_eq!(Header::parse(&bad.emit()), Err(CacheError::PageSize));
    }
    assert_eq!(refused(|h| h.ways = 0), Err(CacheError::Shape));
    assert_eq!(refused(|h| h.ways = 17), Err(CacheError::Shape));
    assert_eq!(refused(|h| h.total = 0), Err(CacheError::Shape));
    assert_eq!(refused(|h| h.total = 63), Err(CacheError::Shape));
    assert_eq!(refused(|h| h.total = u64::MAX - 7), Err(CacheError::Shape));
    assert_eq!(refused(|h| h.records = 0), Err(CacheError::Shape));
    assert_eq!(refused(|h| h.records = 5), Err(CacheError::Shape));
    let mut other = good.emit();
    other[4] = 1;
    assert_eq!(Header::parse(&other), Err(CacheError::Magic));
    other = good.emit();
    other[12] = 2;
    assert_eq!(Header::parse(&other), Err(CacheError::Shape));
}

/// From the free word, every step either side may take leads to words that parse, and both sides'
/// deaths leave no lock of theirs.
#[test]
fn every_reachable_word_is_valid() {
    let mut seen = std::collections::HashSet::new();
    let mut todo = vec![Word::FREE];
    while let Some(word) = todo.pop() {
        if word.readers > 3 || word.version > 2 || !seen.insert(word.emit()) {
            continue;
        }
        assert_eq!(Word::parse(word.emit()), Ok(word));
        todo.extend(
            [word.share(), word.unshare(), word.share_by_dpu(), word.unshare_by_dpu()]
                .into_iter()
                .flatten(),
        );
        todo.extend(
            [word.lock(false), word.lock(true), word.clean(word.version)].into_iter().flatten(),
        );
        if word.lock == Lock::Write {
            let ends = [Status::Free, Status::Clean, Status::Dirty];
            todo.extend(ends.map(|status| word.unlock(status, true)));
        }
        let alone = word.void(true);
        assert!(!alone.by_dpu);
        assert_eq!(alone.void(false).lock, Lock::None);
        assert_eq!(word.void(false).void(true).status, word.status);
        todo.extend([alone, word.void(false)]);
    }
    assert!(seen.len() > 40);
}

#[test]
fn what_was_written_again_stays_dirty() {
    let dirty = Word { status: Status::Dirty, version: 5, ..Word::FREE };
    assert_eq!(dirty.clean(5).map(|word| word.status), Some(Status::Clean));
    assert_eq!(dirty.clean(4), None);
    assert_eq!(dirty.lock(false).and_then(|word| word.clean(5)), None);
    let again = dirty.lock(false).map(|word| word.unlock(Status::Dirty, true));
    assert_eq!(again.and_then(|word| word.clean(5)), None);
}

#[test]
fn a_reader_of_the_other_side_is_not_let_go() {
    let word = Word { status: Status::Clean, ..Word::FREE };
    let dpu = word.share_by_dpu().unwrap();
    assert_eq!((dpu.unshare(), dpu.share_by_dpu(), dpu.lock(false)), (None, None, None));
    let both = dpu.share().unwrap();
    assert_eq!(both.void(true), word.share().unwrap());
    assert_eq!(both.void(false).readers, 1);
    assert_eq!(word.share().unwrap().unshare_by_dpu(), None);
}

/// Pages of one file in a row fill a cache without two falling in one bucket too many.
#[test]
fn a_file_spreads_evenly() {
    let buckets = 1000;
    let mut fill = vec![0; 1000];
    for lpn in 0..8000 {
        fill[usize::try_from(bucket_of(7, lpn, buckets)).unwrap()] += 1;
    }
    assert!(fill.iter().all(|pages| *pages == 8));
    assert!((0..1000).all(|ino| record_set_of(ino, 64) < 16));
    assert!(page_fits(0, 8192) && !page_fits(FILE_SIZE_MAX / 8192, 8192));
}

fn words() -> impl Strategy<Value = Word> {
    let status = prop_oneof![Just(Status::Free), Just(Status::Clean), Just(Status::Dirty)];
    (status, any::<[bool; 3]>(), 0u16..5, any::<u32>()).prop_map(
        |(status, [by_dpu, referenced, write], readers, version)| {
            let (lock, readers, by_dpu) = match (write, readers, status) {
                (true, ..) => (Lock::Write, 0, by_dpu),
                (false, 0, _) | (.., Status::Free) => (Lock::None, 0, false),
                _ => (Lock::Read, readers, by_dpu),
            };
            Word { lock, status, by_dpu, referenced, readers, version }
        },
    )
}

proptest! {
    #[test]
    fn a_word_comes_back(word in words(), raw in any::<u64>()) {
        prop_assert_eq!(Word::parse(word.emit()), Ok(word));
        if let Ok(parsed) = Word::parse(raw & 0xFFFF_FFFF_0000_033F) {
            prop_assert_eq!(parsed.emit(), raw & 0xFFFF_FFFF_0000_033F);
        }
    }

    #[test]
    fn entries_come_back(word in words(), next in any::<u32>(), ids in any::<[u64; 2]>()) {
        let entry = Entry { word, next, lpn: ids[0], ino: ids[1] };
        prop_assert_eq!(Entry::parse(&entry.emit()), Ok(entry));
    }

    #[test]
    fn records_come_back(
        grant in 0usize..5, epoch in any::<u32>(), f in any::<[u64; 4]>(),
        size in 0..=FILE_SIZE_MAX, chain in any::<u32>(),
    ) {
        let grant = [Grant::Free, Grant::Read, Grant::Write, Grant::Frozen, Grant::None][grant];
        let [ino, mtime, credit, dirtied] = f;
        let dirtied = Dirtied::parse(dirtied);
        let word = GrantWord { grant, epoch };
        let mtime = mtime.cast_signed();
        let record = Record { word, ino, size, mtime, credit, dirtied, chain };
        prop_assert_eq!(Record::parse(&record.emit()), Ok(record));
    }

    #[test]
    fn headers_come_back(
        shift in 12u32..=16, write in any::<bool>(), buckets in 1u64..1 << 20, ways in 1u32..=16,
        sets in 1u32..=1 << 14, wishes in any::<[u8; 4]>(),
    ) {
        let [replace, prefetch, flush, dirty] = wishes;
        let wishes = Wishes { replace, prefetch, flush, dirty };
        let mode = if write { CacheMode::Write } else { CacheMode::Read };
        let total = buckets * u64::from(ways);
        let records = sets * 4;
        let page_size = 1 << shift;
        let header = Header { chained: write, page_size, mode, total, ways, records, wishes };
        prop_assert_eq!(Header::parse(&header.emit()), Ok(header));
    }
}

#[test]
fn tallies_add_up_whatever_they_hold() {
    let mut bytes = [0; TALLIES * TALLY_LEN];
    for at in (0..bytes.len()).step_by(TALLY_LEN) {
        for (field, value) in [(0, 1), (8, 2), (16, 3), (24, 4), (32, 9)] {
            bytes[at + field] = value;
        }
    }
    let expected = Tallied { hits: 8, misses: 16, writes: 24, through: 32 };
    assert_eq!(Tallied::parse(&bytes), expected);
    // A host may say what it likes.
    let _any = Tallied::parse(&[0xFF; TALLIES * TALLY_LEN]);
}

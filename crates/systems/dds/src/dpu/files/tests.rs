//! The file service against a model, through crashes at any point, under faults, and beside itself.

mod checks;
mod crashes;

use outboard_base::task::{poll_once, run};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use outboard_base::Rng;
use outboard_medium::mem::{Faults, MemMedium};
use outboard_medium::{Buf, Medium};
use outboard_wire::dds::{DirectoryId, FileId};

use super::*;

const SEGMENT: u64 = SEGMENT_MIN;

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

type Service = FileService<Arc<MemMedium>>;

fn formatted(seed: u64, segments: u32) -> Arc<MemMedium> {
    let medium = Arc::new(MemMedium::new(seed));
    let layout = Layout { segment: SEGMENT, segments };
    run(Service::format(&medium, layout, seed, false)).unwrap();
    medium
}

fn open(medium: &Arc<MemMedium>) -> Service {
    let service = run(Service::open(Arc::clone(medium))).unwrap();
    assert!(service.state().is_consistent());
    service
}

fn read(service: &Service, file: FileId, offset: u64, bytes: u32) -> Result<Vec<u8>, FileError> {
    let (range, buf) = run(service.read(ReadOp { file, offset, bytes }, Buf::zeroed(0)));
    range.map(|range| buf[range].to_vec())
}

fn write(service: &Service, file: FileId, offset: u64, data: &[u8]) -> Result<(), FileError> {
    let mut done = false;
    let result = run(service.write(file, offset, Data::Bytes(data), async || done = true));
    assert!(result.is_err() || done || data.is_empty());
    result
}

#[test]
fn what_is_written_is_read_also_after_a_restart() {
    let medium = formatted(1, 16);
    let service = open(&medium);
    let logs = run(service.create_directory(b"logs")).unwrap();
    let a = run(service.create(logs, b"a")).unwrap();
    let data: Vec<u8> = (0..3 * SEGMENT + 777).map(|n| (n % 251) as u8 + 1).collect();
    write(&service, a, 100, &data).unwrap();
    let check = |service: &Service| {
        assert_eq!(service.size(a), Ok(100 + data.len() as u64));
        assert_eq!(service.directory(b"logs"), Ok(logs));
        assert_eq!(service.file(logs, b"a"), Ok(a));
        assert_eq!(read(service, a, 0, 101).unwrap(), [&[0; 100][..], &data[..1]].concat());
        let across = SEGMENT - 50..SEGMENT + 50;
        let found = read(service, a, across.start + 100, 100).unwrap();
        assert_eq!(found, data[index(across.start)..index(across.end)]);
        // Short at the end, nothing beyond.
        let end = 100 + data.len() as u64;
        assert_eq!(read(service, a, end - 3, 4096).unwrap(), data[data.len() - 3..]);
        assert_eq!(read(service, a, end, 4096), Ok(vec![]));
        assert_eq!(read(service, a, u64::MAX, 4096), Ok(vec![]));
        assert_eq!(read(service, a, 5, 0), Ok(vec![]));
        assert_eq!(read(service, FileId(99), 0, 1), Err(FileError::NoFile));
    };
    check(&service);
    drop(service);
    let service = open(&medium);
    check(&service);
    assert_eq!(run(service.create(logs, b"a")), Err(FileError::Exists));
    assert_eq!(run(service.remove_directory(logs)), Err(FileError::NotEmpty));
    assert_eq!(run(service.create(DirectoryId(9), b"a")), Err(FileError::NoDirectory));
    assert_eq!(run(service.create(logs, &[b'x'; 256])), Err(FileError::Name));
    assert_eq!(write(&service, a, u64::MAX - 3, b"far"), Err(FileError::Range));
    let free = service.space().free;
    run(service.delete(a)).unwrap();
    assert_eq!(service.space().free, free + 4);
    assert_eq!(run(service.create(logs, b"a")), Ok(FileId(a.0 + 1)), "ids are not used twice");
    let mut listed = Vec::new();
    let all = service.list(logs, 0, |id, size, name| {
        listed.push((id, size, name.to_vec()));
        true
    });
    assert_eq!((all, listed), (Ok(true), vec![(a.0 + 1, 0, b"a".to_vec())]));
    assert_eq!(service.list(DirectoryId::ROOT, 0, |_, files, _| files != 1), Ok(false));
}

#[test]
fn what_is_not_a_volume_is_refused_and_kept() {
    let empty = Arc::new(MemMedium::new(1));
    assert_eq!(run(Service::open(Arc::clone(&empty))).err(), Some(OpenError::Empty));
    let odd = Layout { segment: 300_000, segments: 9 };
    assert_eq!(run(Service::format(&empty, odd, 1, false)), Err(OpenError::Layout));
    let other = Arc::new(MemMedium::new(1));
    run(other.grow(SEGMENT)).unwrap();
    assert_eq!(run(Service::open(Arc::clone(&other))).err(), Some(OpenError::Empty));
    let mut block = Buf::zeroed(BLOCK);
    block[1080] = 0x53;
    run(other.write(0, block)).0.unwrap();
    assert_eq!(run(Service::open(Arc::clone(&other))).err(), Some(OpenError::OtherFormat));
    let layout = Layout { segment: SEGMENT, segments: 4 };
    let refused = run(Service::format(&other, layout, 1, false));
    assert_eq!(refused, Err(OpenError::OtherFormat));
    run(Service::format(&other, layout, 1, true)).unwrap();
    let formatted = open(&other);
    assert_eq!(formatted.name(), 1);
    assert_eq!(
        run(Service::format(&other, layout, 1, false)),
        Err(OpenError::OtherFormat),
        "a volume is not formatted by mistake"
    );
    // Another version, in both copies.
    let mut block = Buf::zeroed(BLOCK);
    formatted.superblock.emit(&mut block);
    block[8] = 9;
    for at in [0, BLOCK as u64] {
        let mut copy = Buf::zeroed(BLOCK);
        copy.copy_from_slice(&block);
        run(other.write(at, copy)).0.unwrap();
    }
    assert_eq!(run(Service::open(Arc::clone(&other))).err(), Some(OpenError::Version(9)));
    for error in [OpenError::Empty, OpenError::OtherFormat, OpenError::Version(9)] {
        assert!(error.to_string().contains(':'), "it says what to do: {error}");
    }
}

/// A superblock that went bad is read from its copy; a checkpoint that did, from the one before.
#[test]
fn one_bad_block_of_metadata_is_survived() {
    for at in [0, 2 * BLOCK as u64] {
        let medium = formatted(3, 8);
        let service = open(&medium);
        run(service.create_directory(b"d")).unwrap();
        // Twice, so that both halves know the directory.
        run(service.checkpoint()).unwrap();
        run(service.checkpoint()).unwrap();
        drop(service);
        medium.corrupt(at + 100);
        assert!(open(&medium).directory(b"d").is_ok(), "at {at}");
    }
    let medium = formatted(3, 8);
    let half = (SEGMENT / BLOCK as u64 - 2) / 2;
    for half_at in [2, 2 + half] {
        medium.corrupt(half_at * BLOCK as u64 + 20);
    }
    let error = run(Service::open(medium)).err();
    assert!(matches!(error, Some(OpenError::Damaged(_))), "{error:?}");
}

/// What the files should hold.
#[derive(Clone, Default)]
struct Model {
    files: BTreeMap<FileId, Vec<u8>>,
    /// Made at some time; a deletion that was not flushed may be undone by a crash.
    made: BTreeSet<FileId>,
    /// Changed since the last flush.
    touched: BTreeSet<FileId>,
}

/// One random step on service and model alike; errors leave both as they were.
fn step(service: &Service, model: &mut Model, directory: DirectoryId, rng: &mut Rng) -> String {
    let pick = |model: &Model, rng: &mut Rng| {
        let at = usize::try_from(rng.below(model.files.len().max(1) as u64)).unwrap();
        model.files.keys().nth(at).copied()
    };
    let Some(file) = pick(model, rng).filter(|_| !rng.chance(1, 20)) else {
        let name = rng.next_u64().to_le_bytes();
        let made = run(service.create(directory, &name));
        if let Ok(id) = made {
            model.files.insert(id, Vec::new());
            model.made.insert(id);
        }
        return format!("create {made:?}");
    };
    let tag = u8::try_from(file.0 % 250 + 1).unwrap();
    let size = model.files[&file].len() as u64;
    let what = rng.below(20);
    if what <= 12 {
        model.touched.insert(file);
    }
    match what {
        0 => {
            run(service.delete(file)).unwrap();
            model.files.remove(&file);
            format!("delete {file:?}")
        }
        1 | 2 => {
            let to = rng.below(3 * SEGMENT);
            let done = run(service.resize(file, to));
            if done.is_ok() {
                model.files.get_mut(&file).unwrap().resize(usize::try_from(to).unwrap(), 0);
            }
            format!("resize {file:?} to {to}: {done:?}")
        }
        3..=12 => {
            let append = rng.chance(1, 2);
            let offset = if append { size } else { rng.below(3 * SEGMENT) };
            let long = if rng.chance(1, 4) { 2 * SEGMENT } else { 9000 };
            let (offset, len) = match rng.chance(1, 2) {
                true => (offset / 4096 * 4096, rng.below(long) / 4096 * 4096),
                false => (offset, rng.below(long)),
            };
            let data = vec![tag; usize::try_from(len).unwrap()];
            let done = write(service, file, offset, &data);
            if done.is_ok() && len > 0 {
                let held = model.files.get_mut(&file).unwrap();
                let end = usize::try_from(offset + len).unwrap();
                held.resize(held.len().max(end), 0);
                held[end - data.len()..end].copy_from_slice(&data);
            }
            format!("write {file:?} {offset}+{len}: {done:?}")
        }
        _ => {
            let (offset, bytes) = (rng.below(3 * SEGMENT), rng.below(SEGMENT));
            compare_part(service, file, &model.files[&file], offset, bytes);
            format!("read {file:?}")
        }
    }
}

fn compare_part(service: &Service, file: FileId, held: &[u8], offset: u64, bytes: u64) {
    let found = read(service, file, offset, u32::try_from(bytes).unwrap()).unwrap();
    let size = held.len() as u64;
    let from = usize::try_from(offset.min(size)).unwrap();
    let to = usize::try_from((offset + bytes).min(size)).unwrap();
    assert!(found == held[from..to.max(from)], "read {file:?} {offset}+{bytes}");
}

fn compare(service: &Service, model: &Model) {
    assert!(service.state().is_consistent());
    assert_eq!(service.space().files, model.files.len());
    for (file, held) in &model.files {
        assert_eq!(service.size(*file), Ok(held.len() as u64), "{file:?}");
        let len = u32::try_from(held.len()).unwrap();
        assert!(read(service, *file, 0, len).unwrap() == *held, "{file:?} holds something else");
    }
}

#[test]
fn it_does_what_the_model_does() {
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let medium = formatted(seed, 14);
        let mut service = open(&medium);
        let directory = run(service.create_directory(b"d")).unwrap();
        let mut model = Model::default();
        for round in 0..250 {
            let what = step(&service, &mut model, directory, &mut rng);
            assert!(service.state().is_consistent(), "seed {seed}, step {round}: {what}");
            if rng.chance(1, 40) {
                drop(service);
                service = open(&medium);
                compare(&service, &model);
            }
        }
        compare(&service, &model);
    }
}

/// Power fails after any number of steps, and of the sectors not flushed any subset is lost. The
/// volume opens, no segment has two owners, what was flushed and not touched since is there to the
/// byte, and no file ever shows a byte that it did not write itself.
#[test]
fn a_crash_at_any_point_loses_nothing_synced_and_shows_nothing_foreign() {
    for seed in 0..60 {
        let mut rng = Rng::new(1000 + seed);
        let medium = formatted(seed, 14);
        let mut service = open(&medium);
        let directory = run(service.create_directory(b"d")).unwrap();
        let keeper = run(service.create(directory, b"keeper")).unwrap();
        run(service.flush(keeper)).unwrap();
        let mut synced = Model::default();
        let mut model = Model::default();
        for life in 0..4 {
            for _ in 0..rng.below(25) {
                step(&service, &mut model, directory, &mut rng);
                if rng.chance(1, 6) {
                    run(service.flush(keeper)).unwrap();
                    model.touched.clear();
                    synced = model.clone();
                }
            }
            let untouched = |id: &FileId| !model.touched.contains(id);
            let kept: Vec<FileId> = synced.files.keys().copied().filter(untouched).collect();
            drop(service);
            medium.crash();
            service = open(&medium);
            for id in kept {
                let held = &synced.files[&id];
                assert!(service.size(id).is_ok(), "seed {seed}, life {life}: {id:?} is gone");
                let found = read(&service, id, 0, u32::try_from(held.len()).unwrap()).unwrap();
                assert!(found == *held, "seed {seed}, life {life}: {id:?} is not what was flushed");
            }
            // What there is now is the model from here on.
            model.files.clear();
            for id in model.made.clone() {
                let Ok(size) = service.size(id) else { continue };
                let found = read(&service, id, 0, u32::try_from(size).unwrap()).unwrap();
                let own = u8::try_from(id.0 % 250 + 1).unwrap();
                let foreign = found.iter().position(|byte| *byte != 0 && *byte != own);
                assert!(foreign.is_none(), "seed {seed}, life {life}: {id:?} at {foreign:?}");
                model.files.insert(id, found);
            }
            let listed = std::cell::Cell::new(0);
            let _all = service.list(directory, keeper.0, |_, _, _| {
                listed.set(listed.get() + 1);
                true
            });
            assert_eq!(listed.get(), model.files.len(), "seed {seed}: no file came from nowhere");
            run(service.flush(keeper)).unwrap();
            model.touched.clear();
            synced = model.clone();
        }
    }
}

/// The device fails now and then: who is told of an error finds everything else as it was, also
/// after a restart.
#[test]
fn errors_of_the_device_are_passed_on_and_survived() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let medium = formatted(seed, 14);
        let mut service = open(&medium);
        let directory = run(service.create_directory(b"d")).unwrap();
        let files: Vec<FileId> =
            (0..3u8).map(|n| run(service.create(directory, &[n + 1])).unwrap()).collect();
        let mut failed = 0;
        for round in 0..60 {
            medium.set_faults(Faults { write_fails: 5, read_fails: 9, ..Faults::default() });
            let file = files[index(rng.below(3))];
            let tag = u8::try_from(file.0 % 250 + 1).unwrap();
            let (offset, len) = (rng.below(SEGMENT), index(rng.below(20_000)));
            match write(&service, file, offset, &vec![tag; len + 1]) {
                Ok(()) => {
                    medium.set_faults(Faults::default());
                    let found = read(&service, file, offset, u32::try_from(len + 1).unwrap());
                    assert!(found.unwrap().iter().all(|byte| *byte == tag), "seed {seed} {round}");
                }
                Err(error) => {
                    assert_eq!(error, FileError::Io(outboard_base::Errno::EIO));
                    failed += 1;
                }
            }
            medium.set_faults(Faults::default());
            if rng.chance(1, 10) {
                drop(service);
                service = open(&medium);
            }
            assert!(service.state().is_consistent(), "seed {seed} {round}");
        }
        assert!(failed > 0, "seed {seed}: no fault came");
        for file in files {
            let size = u32::try_from(service.size(file).unwrap()).unwrap();
            let tag = u8::try_from(file.0 % 250 + 1).unwrap();
            let found = read(&service, file, 0, size).unwrap();
            assert!(found.iter().all(|byte| *byte == 0 || *byte == tag), "seed {seed} {file:?}");
        }
    }
}

/// A full volume says so, and space that is given back is used again, cleaned.
#[test]
fn a_full_volume_refuses_and_goes_on() {
    let medium = formatted(5, 5);
    let service = open(&medium);
    let directory = run(service.create_directory(b"d")).unwrap();
    let (a, b) = (
        run(service.create(directory, b"a")).unwrap(),
        run(service.create(directory, b"b")).unwrap(),
    );
    write(&service, a, 0, &vec![7; index(3 * SEGMENT)]).unwrap();
    let two = vec![8; index(2 * SEGMENT)];
    assert_eq!(write(&service, b, 0, &two), Err(FileError::Full));
    assert_eq!((service.size(b), service.space().free), (Ok(0), 1));
    assert_eq!(run(service.resize(b, 2 * SEGMENT)), Err(FileError::Full));
    run(service.delete(a)).unwrap();
    write(&service, b, 2 * SEGMENT - 1, &[9]).unwrap();
    let found = read(&service, b, 0, u32::try_from(2 * SEGMENT).unwrap()).unwrap();
    assert!(found[..found.len() - 1].iter().all(|byte| *byte == 0), "another file's bytes");
    // More names than the metadata segment holds.
    let mut made = 0u32;
    let refused = loop {
        match run(service.create(directory, &[&made.to_le_bytes()[..], &[b'n'; 200]].concat())) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert!(refused == FileError::Full && made > 300, "{made}");
    drop(service);
    let service = open(&medium);
    assert_eq!(service.space().files, made as usize + 1);
    let (file, _) = (FileId(b.0 + 1), run(service.delete(b)).unwrap());
    run(service.delete(file)).unwrap();
    run(service.create(directory, b"again")).unwrap();
}

/// Many at once on one file, polled in any order over a medium that dawdles: each read sees whole
/// writes only, and never less than was answered before it began.
#[test]
fn reads_beside_writes_are_whole_and_fresh() {
    const PAGE: usize = 8192;
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let medium = formatted(seed, 8);
        let service = open(&medium);
        let directory = run(service.create_directory(b"d")).unwrap();
        let file = run(service.create(directory, b"f")).unwrap();
        medium.set_faults(Faults { delay_polls: 6, ..Faults::default() });
        let answered = std::cell::Cell::new([0u8; 4]);
        // Written to its end at least once.
        write(&service, file, 0, &[0; 4 * PAGE + 300]).unwrap();
        let mut tasks: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
        for n in 1..60u8 {
            let page = index(rng.below(4));
            let offset = (page * PAGE + 300) as u64;
            let (service, answered) = (&service, &answered);
            if rng.chance(1, 2) {
                tasks.push(Box::pin(async move {
                    service
                        .write(file, offset, Data::Bytes(&[n; PAGE]), async || ())
                        .await
                        .unwrap();
                    let mut all = answered.get();
                    all[page] = n;
                    answered.set(all);
                }));
            } else {
                tasks.push(Box::pin(async move {
                    let op = ReadOp { file, offset, bytes: 8192 };
                    let (range, buf) = service.read(op, Buf::zeroed(0)).await;
                    let found = &buf[range.unwrap()];
                    assert!(found.iter().all(|byte| *byte == found[0]), "seed {seed}: torn");
                }));
            }
        }
        while !tasks.is_empty() {
            let at = index(rng.below(tasks.len() as u64));
            if poll_once(tasks[at].as_mut()).is_ready() {
                drop(tasks.swap_remove(at));
            }
            // Between any two steps: what was answered is what a read sees, or newer.
            if rng.chance(1, 50) && tasks.is_empty() {
                break;
            }
        }
        for (page, last) in answered.get().into_iter().enumerate() {
            let found = read(&service, file, (page * PAGE + 300) as u64, 1).unwrap();
            assert_eq!(found, [last], "seed {seed}, page {page}");
        }
    }
}

/// A thread was lost with reads under way, which held their blocks: a write of the host waited for
/// ever.
#[test]
fn a_write_does_not_wait_for_reads_of_a_thread_that_is_lost() {
    let medium = formatted(1, 8);
    let service = open(&medium);
    let directory = run(service.create_directory(b"d")).unwrap();
    let file = run(service.create(directory, b"f")).unwrap();
    write(&service, file, 0, &[1; 8192]).unwrap();
    medium.set_faults(Faults { delay_polls: 1 << 40, ..Faults::default() });
    let op = ReadOp { file, offset: 0, bytes: 4096 };
    let mut read = Box::pin(service.read_by(7, op, Buf::zeroed(0)));
    assert!(poll_once(read.as_mut()).is_pending());
    medium.set_faults(Faults::default());
    let mut writing = Box::pin(service.write(file, 0, Data::Bytes(&[2; 8192]), async || ()));
    assert!(poll_once(writing.as_mut()).is_pending());
    service.forsake(7);
    run(writing).unwrap();
    // It comes back after all.
    drop(read);
    assert_eq!(self::read(&service, file, 0, 8192).unwrap(), [2; 8192]);
    run(service.delete(file)).unwrap();
}

//! What a cache writes back: runs of pages, many at a time.

use outboard_base::{Errno, Ino, Rng, SessionId, Timestamp};
use outboard_wire::file::open_flags;

use crate::data::clean;
use crate::world::{Disk, User, block_on, tidy};

const PAGE: usize = 8192;
const CACHE: SessionId = SessionId(99);

/// Runs drawn in order, none touching a page of another.
fn runs(rng: &mut Rng, pages: u64) -> Vec<(u64, Vec<u8>)> {
    let mut runs = Vec::new();
    let mut page = rng.below(3);
    while page < pages && runs.len() < 40 {
        let len = 1 + rng.below(4);
        let mut bytes = vec![0; len as usize * PAGE];
        rng.fill(&mut bytes);
        if page + len >= pages {
            // The last page of a file is cut at its size.
            bytes.truncate(bytes.len() - rng.below(PAGE as u64) as usize);
        }
        runs.push((page * PAGE as u64, bytes));
        page += len + 1 + rng.below(5);
    }
    runs
}

/// Random runs over files that are empty, small or big, against plain bytes; what was written is
/// there after the volume was closed, and the check finds nothing.
#[test]
fn scattered_pages_go_back_together() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let disk = Disk::new(seed);
        let volume = disk.open();
        let user = User::root(&volume);
        let (attr, fh) = user.create(Ino::ROOT, "f", open_flags::RDWR).unwrap();
        let mut model = vec![0; rng.below(20_000) as usize];
        rng.fill(&mut model);
        if !model.is_empty() {
            user.write(attr.ino, fh, 0, &model).unwrap();
        }
        for round in 0..6u32 {
            let pages = 1 + rng.below(90);
            let runs = runs(&mut rng, pages);
            let given: Vec<(u64, &[u8])> = runs.iter().map(|(at, run)| (*at, &run[..])).collect();
            let mtime = Timestamp::new(1_000_000 + i64::from(round), 5);
            let before = user.stat(attr.ino).unwrap().change;
            block_on(volume.write_back(CACHE, attr.ino, &given, mtime)).unwrap();
            for (at, run) in &runs {
                let end = *at as usize + run.len();
                model.resize(model.len().max(end), 0);
                model[*at as usize..end].copy_from_slice(run);
            }
            let now = user.stat(attr.ino).unwrap();
            assert_eq!(now.size, model.len() as u64, "seed {seed}");
            assert!(runs.is_empty() || now.change > before && Some(now.mtime) >= mtime);
            let read = user.read(attr.ino, fh, 0, 1 << 20).unwrap();
            assert!(read == model, "seed {seed}, round {round}");
        }
        user.sync().unwrap();
        tidy(&volume);
        clean(&volume);
    }
}

/// Each run was a transaction of its own once: random writes of a cache went at that pace.
#[test]
fn pages_of_a_big_file_are_one_change_of_it() {
    let disk = Disk::new(1);
    let volume = disk.open();
    let user = User::root(&volume);
    let (attr, fh) = user.create(Ino::ROOT, "f", open_flags::RDWR).unwrap();
    user.write(attr.ino, fh, 0, &[1; 1 << 20]).unwrap();
    let page = [2; PAGE];
    let runs: Vec<(u64, &[u8])> = (0..60).map(|at| (at * 2 * PAGE as u64, &page[..])).collect();
    let before = user.stat(attr.ino).unwrap().change;
    block_on(volume.write_back(CACHE, attr.ino, &runs, None)).unwrap();
    assert_eq!(user.stat(attr.ino).unwrap().change, before + 1);
    assert_eq!(user.read(attr.ino, fh, 0, PAGE as u32).unwrap(), page);
    let gone = block_on(volume.write_back(CACHE, Ino(attr.ino.0 + 1), &runs, None));
    assert_eq!(gone, Err(Errno::ESTALE));
}

//! What closing costs, and what becomes of chains that lie.

use super::*;
use outboard_wire::cache::{NEXT_NONE, entry_at, record_at};

fn close(rig: &Rig, (ino, fh): (Ino, Fh)) {
    rig.ask(0, Request::Release { ino, fh, owner: 0 }, &[]).unwrap();
}

/// DMAs, and bytes of entries and records among them, that closing a file costs of which so many
/// pages in a row were written in a cache of so many.
fn cost_of_closing(cache: u64, pages: u64) -> (u64, u64) {
    let rig = Rig::of(1, cache, Policies { prefetch: prefetch::Name::None, ..Policies::default() });
    // Others have most of it.
    let full = rig.create(0, b"full", RDWR | open_flags::DIRECT);
    let bytes = vec![1; 1 << 20];
    (0..8).for_each(|nth| rig.write(0, full, nth << 20, 0, &bytes));
    let reader = (full.0, rig.open(0, full.0, 0));
    (0..8).for_each(|nth| drop(rig.read(0, reader, nth << 20, 1 << 20)));
    let file = rig.create(0, b"f", RDWR);
    let far = (1 << 30) * PAGE;
    for page in 0..pages {
        assert!(rig.hosts[0].write(file.0, Place::At(far + page * PAGE), &[2; PAGE as usize]));
    }
    let spent = || {
        let ledger = rig.hosts[0].ledger.snapshot();
        (ledger.total().ops, ledger.dma(Kind::Cache).bytes)
    };
    let before = spent();
    close(&rig, file);
    let after = spent();
    let fh = rig.open(0, file.0, RDWR | open_flags::DIRECT);
    assert!(pages == 0 || rig.read(0, (file.0, fh), far, 4096) == [2; 4096]);
    assert_eq!(rig.coherence.figures()[0].counts.searched, 0);
    (after.0 - before.0, after.1 - before.1)
}

/// Closing a file read all entries of its cache, however little it had there: 256 KiB of them in a
/// cache of 64 MiB, and so did each fsync.
#[test]
fn closing_a_file_costs_what_it_has_in_the_cache() {
    // Freeze, close the count, set to read.
    assert_eq!(cost_of_closing(16_384, 0), (3, 0));
    // Freeze; the count, twice; the chain, twice; a bucket; five for the page; record; set to read.
    let (dmas, bytes) = cost_of_closing(16_384, 1);
    assert!(dmas == 13 && bytes < 512, "{dmas}, {bytes}");
    assert_eq!(cost_of_closing(4096, 1), (dmas, bytes), "it does not depend on the cache");
    let (dmas, bytes) = cost_of_closing(16_384, 60);
    assert!(dmas <= 8 + 7 + 60 * 5 && bytes < 60 * 512, "{dmas}, {bytes}");
}

/// A page that a host made was written back by a read of it, and stood in the chain alone when the
/// file was closed: nothing was dirty, so nobody looked. The next open wrote the record anew, with
/// no chain, and the page was never taken out again: its host read from it what others had written
/// over. Walks of a cluster whose hosts have caches found it.
#[test]
fn what_a_host_chained_is_known_when_its_grant_is_another() {
    let rig = Rig::new(2, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    assert!(rig.hosts[0].write(file.0, Place::At(0), &[7; PAGE as usize]));
    assert_eq!(rig.read(0, file, 0, 10), [7; 10]);
    close(&rig, file);
    let file = (file.0, rig.open(0, file.0, RDWR));
    let other = (file.0, rig.open(1, file.0, RDWR));
    rig.write(1, other, 0, 0, &[8; PAGE as usize]);
    rig.ask(1, Request::Release { ino: other.0, fh: other.1, owner: 0 }, &[]).unwrap();
    let file = (file.0, rig.open(0, file.0, RDWR));
    let found = rig.hosts[0].read(file.0, 0, 10).unwrap_or_else(|| rig.read(0, file, 0, 10));
    assert_eq!(found, [8; 10]);
}

/// A host may put any chain into its memory. What it wrote and chained nowhere is in the volume all
/// the same when the file is closed, and nothing goes round for ever.
#[test]
fn what_left_its_chain_is_written_back_all_the_same() {
    let rig = Rig::new(1, Policies::default());
    let host = &rig.hosts[0];
    let geometry = *host.plane.geometry();
    for lie in 0..5u32 {
        let name = format!("f{lie}").into_bytes().leak();
        let file = rig.create(0, name, RDWR);
        for page in 0..6 {
            let byte = [lie as u8 + 1; PAGE as usize];
            assert!(host.write(file.0, Place::At(page * 3 * PAGE), &byte));
        }
        let record = geometry.record_set(file.0.0).map(|index| geometry.record_at(index));
        let ino = |at: &u64| host.region.load_u64(at + record_at::INO, Ordering::SeqCst);
        let at = record.into_iter().find(|at| ino(at) == Ok(file.0.0)).unwrap();
        let first = host.region.load_u64(at + record_at::CHAIN, Ordering::SeqCst).unwrap();
        let next = geometry.entry_at(first) + entry_at::NEXT;
        let (at, lie) = match lie {
            // Nothing, one that ends early, a ring, what is no entry, what is another's.
            0 => (at + record_at::CHAIN, u64::from(NEXT_NONE)),
            1 => (next, NEXT_NONE.into()),
            2 => (next, first),
            3 => (at + record_at::CHAIN, geometry.total()),
            _ => (next, (first + 9) % geometry.total()),
        };
        host.region.store_u64(at, lie, Ordering::SeqCst).unwrap();
        close(&rig, file);
        assert_eq!(rig.coherence.figures()[0].dirty, 0, "{lie}");
        let (attr, _) = finish(rig.volume.cacheable(file.0)).unwrap();
        assert_eq!(attr.size, 16 * PAGE);
        // All of it goes with the file.
        rig.ask(0, Request::Unlink { parent: Ino::ROOT, name }, &[]).unwrap();
        assert_eq!(rig.coherence.figures()[0].free, geometry.total(), "{lie}");
    }
    assert!(rig.coherence.figures()[0].counts.searched >= 5);
}

/// A host of the version before was attached when the DPU side was replaced: it chains nothing, and
/// counts without a tag.
#[test]
fn a_host_that_chains_nothing_is_served() {
    let mut rig = Rig::new(1, Policies::default());
    let area = rig.hosts[0].plane.geometry().area();
    rig.hosts[0].region.write_from(area.at + 4, &2u32.to_le_bytes()).unwrap();
    rig.coherence = Arc::new(Coherence::default());
    let host = &rig.hosts[0];
    let cache = rig.coherence.attach(host.caller.clone(), host.setup(Policies::default()));
    finish(rig.coherence.recover(&*rig.volume, cache));
    let file = rig.create(0, b"f", RDWR);
    for page in 0..9 {
        assert!(host.write(file.0, Place::At(page * PAGE), &[7; PAGE as usize]));
        for index in host.plane.geometry().record_set(file.0.0) {
            let at = host.plane.geometry().record_at(index);
            host.region.store_u64(at + record_at::CHAIN, 0, Ordering::SeqCst).unwrap();
        }
    }
    rig.ask(0, Request::Fsync { ino: file.0, fh: file.1, data_only: false }, &[]).unwrap();
    assert_eq!(rig.coherence.figures()[0].dirty, 0);
    assert!(host.write(file.0, Place::At(0), &[8; PAGE as usize]));
    close(&rig, file);
    assert_eq!(rig.coherence.figures()[0].dirty, 0);
    let file = (file.0, rig.open(0, file.0, open_flags::DIRECT));
    assert_eq!(rig.read(0, file, 0, 10), [8; 10]);
    close(&rig, file);
    rig.ask(0, Request::Unlink { parent: Ino::ROOT, name: b"f" }, &[]).unwrap();
    assert_eq!(rig.coherence.figures()[0].free, rig.coherence.figures()[0].total);
}

//! The check says what was damaged, and nothing of a sound volume; growing keeps what is there.

use super::*;

fn filled(seed: u64) -> (Arc<MemMedium>, FileId) {
    let medium = formatted(seed, 8);
    let service = open(&medium);
    let logs = run(service.create_directory(b"logs")).unwrap();
    let file = run(service.create(logs, b"a")).unwrap();
    write(&service, file, 0, &vec![7; index(SEGMENT) + 5]).unwrap();
    (medium, file)
}

fn found(service: &Service) -> Vec<String> {
    run(service.check()).unwrap().findings
}

#[test]
fn a_sound_volume_is_clean_at_rest_and_while_it_is_served() {
    let (medium, file) = filled(1);
    let served = open(&medium);
    write(&served, file, 3 * SEGMENT, b"more").unwrap();
    let report = run(served.check()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    let wanted = [("directories", 1), ("files", 1), ("segments", 8), ("segments_used", 5)];
    assert_eq!(report.counts, wanted);
    drop(served);
    let before = run(medium.read(0, Buf::zeroed(index(SEGMENT)))).1.to_vec();
    let looked_at = run(Service::open_to_read(Arc::clone(&medium))).unwrap();
    assert_eq!(found(&looked_at), Vec::<String>::new());
    assert_eq!(read(&looked_at, file, 3 * SEGMENT, 9).unwrap(), b"more");
    let after = run(medium.read(0, Buf::zeroed(index(SEGMENT)))).1.to_vec();
    assert!(before == after, "who only looks writes nothing");
}

/// The oracle says no: one byte of either copy of the superblock, of the newest checkpoint, and a
/// volume that another process changed below this one.
#[test]
fn what_is_damaged_is_said() {
    for copy in 0..2u64 {
        let (medium, _) = filled(2 + copy);
        let service = open(&medium);
        run(medium.write(copy * BLOCK as u64, Buf::zeroed(BLOCK))).0.unwrap();
        assert_eq!(found(&service), [format!("copy {copy} of the superblock is damaged")]);
    }
    let (medium, file) = filled(4);
    let (service, other) = (open(&medium), open(&medium));
    write(&other, file, 5 * SEGMENT, b"x").unwrap();
    assert!(found(&service)[0].contains("in memory is not that on the device"));
    let (medium, _) = filled(5);
    let service = open(&medium);
    for at in (2 * BLOCK..index(SEGMENT)).step_by(BLOCK) {
        run(medium.write(at as u64, Buf::zeroed(BLOCK))).0.unwrap();
    }
    assert!(found(&service)[0].contains("no checkpoint is whole"));
}

#[test]
fn a_volume_grows_and_does_not_become_smaller() {
    let (medium, file) = filled(6);
    let service = open(&medium);
    assert_eq!(write(&service, file, 8 * SEGMENT, b"x"), Err(FileError::Full));
    drop(service);
    assert_eq!(run(Service::grow(&medium, 8 * SEGMENT)), Ok((8 * SEGMENT, 8 * SEGMENT)));
    let smaller = run(Service::grow(&medium, 8 * SEGMENT - 1));
    assert_eq!(smaller, Err(OpenError::Smaller { has: 8 * SEGMENT }));
    let most = match run(Service::grow(&medium, u64::MAX)) {
        Err(OpenError::TooLarge { most }) => most,
        other => panic!("{other:?}"),
    };
    assert_eq!(run(Service::grow(&medium, 20 * SEGMENT)), Ok((8 * SEGMENT, 20 * SEGMENT)));
    let service = open(&medium);
    write(&service, file, 15 * SEGMENT, b"there is room").unwrap();
    assert_eq!(found(&service), Vec::<String>::new());
    assert_eq!(service.space().segments, 20);
    drop(service);
    let service = open(&medium);
    assert_eq!(read(&service, file, 15 * SEGMENT, 99).unwrap(), b"there is room");
    assert_eq!(read(&service, file, SEGMENT, 5).unwrap(), [7; 5]);
    drop(service);
    assert_eq!(run(Service::grow(&medium, most)), Ok((20 * SEGMENT, most)));
}

/// Growing is cut off after each of its writes, each of them torn too: the volume opens with the
/// old size or the new one, and grows when it is asked again.
#[test]
fn growing_that_is_cut_off_leaves_one_size_or_the_other() {
    for cut in 0..4 {
        let (medium, file) = filled(10 + cut);
        let old = run(medium.read(0, Buf::zeroed(2 * BLOCK))).1.to_vec();
        run(Service::grow(&medium, 20 * SEGMENT)).unwrap();
        let new = run(medium.read(0, Buf::zeroed(2 * BLOCK))).1.to_vec();
        // The second copy first; of each its one sector that says anything, or nothing.
        let mut left = Buf::zeroed(2 * BLOCK);
        let (first, second) = [(&old, &old), (&old, &new), (&new, &new), (&new, &old)][index(cut)];
        left[..BLOCK].copy_from_slice(&first[..BLOCK]);
        left[BLOCK..].copy_from_slice(&second[BLOCK..]);
        run(medium.write(0, left)).0.unwrap();
        let segments = open(&medium).space().segments;
        assert_eq!(segments, if cut < 2 { 8 } else { 20 });
        assert_eq!(run(Service::grow(&medium, 20 * SEGMENT)).unwrap().1, 20 * SEGMENT);
        let service = open(&medium);
        write(&service, file, 15 * SEGMENT, b"x").unwrap();
        assert_eq!(found(&service), Vec::<String>::new(), "cut {cut}");
    }
}

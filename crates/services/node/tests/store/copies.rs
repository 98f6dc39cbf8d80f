//! Single promises about strips that other nodes have copies of.

use std::sync::Arc;

use outboard_base::task::{poll_for, run};
use outboard_medium::mem::{Faults, MemMedium};
use outboard_medium::{Buf, Medium};
use outboard_node::{Change, Copies, OpenError, Store, Version};
use outboard_wire::shared::call::{Claim, Decided, Taken};
use outboard_wire::shared::{Reason, Share};

use super::model::{GRAIN, Media, STRIP, TestStore, options};

fn media() -> Media {
    (Arc::new(MemMedium::new(1)), Arc::new(MemMedium::new(2)))
}

fn opened(media: &Media) -> TestStore {
    run(Store::open(media.0.clone(), media.1.clone(), options())).unwrap()
}

fn version(fence: u64, sequence: u32) -> Version {
    Version { fence, sequence }
}

/// The first strip of object 7 becomes all `byte`, under fence 5.
fn write(store: &TestStore, sequence: u32, previous: u32, byte: u8) -> Result<(), Reason> {
    let previous = (previous > 0).then_some(version(5, previous));
    let copies = Copies { previous, settled: 0, epoch: sequence };
    run(store.write_copy(7, STRIP, version(5, sequence), copies, 0, &[byte; STRIP as usize]))
}

fn first(store: &TestStore) -> Result<u8, Reason> {
    run(store.read(7, 0, STRIP)).map(|bytes| {
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    })
}

fn resolve(store: &TestStore, fence: u64, sequence: u32) -> Result<Vec<Claim>, Reason> {
    let of = if sequence > 0 { 5 } else { 0 };
    run(store.resolve(7, fence, &[Decided { strip: 0, version: version(of, sequence) }]))
}

fn figure(store: &TestStore, name: &str) -> u64 {
    store.figures().into_iter().find(|figure| figure.0 == name).unwrap().1
}

fn format(media: &Media) -> [u8; 2] {
    [0, 4096].map(|at| run(media.0.read(at, Buf::zeroed(4096))).1[8])
}

/// What a pending write replaces is kept, and given back once it is stable and that is durable.
#[test]
fn the_stable_version_is_kept_until_the_next_is_known_to_be_done() {
    let media = media();
    let store = opened(&media);
    write(&store, 1, 0, 1).unwrap();
    write(&store, 2, 1, 2).unwrap();
    assert_eq!((figure(&store, "used_bytes"), figure(&store, "retired_bytes")), (4 * GRAIN, 0));
    let pending = Some(Taken { version: version(5, 2), epoch: 2 });
    let claim = Claim { strip: 0, stable: version(5, 1), pending };
    assert_eq!((run(store.claims(7, 0, 9)), run(store.claims(7, 1, 9))), (vec![claim], vec![]));
    write(&store, 3, 2, 3).unwrap();
    assert_eq!(figure(&store, "retired_bytes"), 2 * GRAIN);
    run(store.flush()).unwrap();
    assert_eq!((figure(&store, "used_bytes"), store.held(7)), (4 * GRAIN, 4 * GRAIN));
    assert_eq!(resolve(&store, 9, 2), Ok(Vec::new()), "back");
    assert_eq!((first(&store), store.held(7)), (Ok(2), 2 * GRAIN));
    assert_eq!(run(store.claims(7, 0, 9))[0].pending, None);
    run(store.flush()).unwrap();
    assert_eq!(figure(&store, "used_bytes"), 2 * GRAIN);
    assert_eq!(run(store.verify(7)), Ok(0));
}

/// Sends what changes of the first strip of object 7.
fn change(store: &TestStore, sequence: u32, change: Change<'_>) -> Result<(), Reason> {
    let previous = Some(version(5, sequence - 1)).filter(|previous| previous.sequence > 0);
    let copies = Copies { previous, settled: 0, epoch: 1 };
    run(store.change_copy(7, STRIP, version(5, sequence), copies, 0, change))
}

/// What differs is added once, however often it comes; what nothing is brought for has the version
/// and takes no space; either is kept or forgotten as what is decided says, over restarts.
#[test]
fn a_delta_is_added_once_and_a_version_alone_takes_no_space() {
    let (media, whole) = (media(), STRIP as usize);
    let mut store = opened(&media);
    write(&store, 1, 0, 1).unwrap();
    for _ in 0..2 {
        change(&store, 2, Change::Delta(&vec![3; whole])).unwrap();
        assert_eq!(first(&store), Ok(2));
        run(store.flush()).unwrap();
        store = opened(&media);
    }
    let used = figure(&store, "used_bytes");
    for _ in 0..2 {
        change(&store, 3, Change::Nothing(whole)).unwrap();
        let claim = run(store.claims(7, 0, 9))[0];
        let pending = claim.pending.map(|taken| taken.version);
        assert_eq!((claim.stable, pending), (version(5, 2), Some(version(5, 3))));
        assert_eq!(first(&store), Ok(2));
        run(store.flush()).unwrap();
        store = opened(&media);
    }
    assert!(figure(&store, "used_bytes") < used, "what it replaced is given back");
    assert_eq!(change(&store, 3, Change::Delta(&vec![3; whole])), Err(Reason::Order));
    assert_eq!(resolve(&store, 9, 2), Ok(Vec::new()), "back");
    assert_eq!((first(&store), run(store.claims(7, 0, 9))[0].pending), (Ok(2), None));
    assert_eq!(run(store.verify(7)), Ok(0));
}

/// Where there was nothing a version alone makes zeros, so that rows are the same at all members;
/// parts of grains are refused.
#[test]
fn a_version_alone_makes_zeros_where_there_was_nothing() {
    let (media, whole) = (media(), STRIP as usize);
    let store = opened(&media);
    for part in [Change::Delta(&[3; 100]), Change::Nothing(100)] {
        assert_eq!(change(&store, 1, part), Err(Reason::Invalid));
    }
    change(&store, 1, Change::Nothing(whole)).unwrap();
    assert_eq!(first(&store), Ok(0));
    assert_eq!(run(store.map(7, 0, 9)).first(), Some(&(0..u64::from(STRIP))));
    change(&store, 2, Change::Delta(&vec![5; whole])).unwrap();
    assert_eq!(first(&store), Ok(5));
}

/// A delta is not laid over what is damaged: who sends whole bytes mends that.
#[test]
fn a_delta_over_damage_is_refused() {
    let (media, whole) = (media(), STRIP as usize);
    let store = opened(&media);
    write(&store, 1, 0, 1).unwrap();
    (0..4).for_each(|grain| media.1.corrupt(grain * GRAIN));
    assert_eq!(change(&store, 2, Change::Delta(&vec![3; whole])), Err(Reason::Filling));
    assert_eq!(write(&store, 2, 1, 2), Ok(()));
    assert_eq!(first(&store), Ok(2));
}

#[test]
fn what_was_not_acknowledged_is_not_written_over() {
    let store = opened(&media());
    assert_eq!(write(&store, 2, 1, 1), Err(Reason::Order), "the first is missing");
    write(&store, 1, 0, 1).unwrap();
    write(&store, 1, 0, 1).unwrap();
    assert_eq!(figure(&store, "writes"), 1, "it is only acknowledged again");
    assert_eq!(write(&store, 1, 0, 9), Err(Reason::Order), "other bytes");
    assert_eq!(write(&store, 2, 0, 2), Err(Reason::Order), "nothing was acknowledged");
    write(&store, 3, 1, 3).unwrap();
    assert_eq!(write(&store, 4, 1, 4), Err(Reason::Order), "the third was not acknowledged");
    assert_eq!(write(&store, 5, 4, 5), Err(Reason::Order), "the fourth is missing");
    assert_eq!(write(&store, 2, 1, 2), Err(Reason::Order), "it comes late");
    let single = run(store.write(7, STRIP, version(5, 4), None, 0, &[4; 9]));
    assert_eq!(single, Err(Reason::Order), "as if there were one copy");
    let invalid = write(&store, 4, 4, 4);
    assert_eq!((invalid, first(&store)), (Err(Reason::Invalid), Ok(3)));
    // A fence is given out when all that was below it is done, or decided.
    let copies = Copies { previous: None, settled: 0, epoch: 9 };
    run(store.write_copy(7, STRIP, version(6, 1), copies, 0, &[6; STRIP as usize])).unwrap();
    assert_eq!(run(store.claims(7, 0, 9))[0].stable, version(5, 3));
}

/// A writer that does not remember a strip says up to where all of the object was acknowledged,
/// under its fence: a number of another one means nothing.
#[test]
fn what_was_settled_is_written_over() {
    let store = opened(&media());
    let write = |fence, sequence, previous: Option<Version>, settled| {
        let copies = Copies { previous, settled, epoch: 1 };
        let bytes = [1; STRIP as usize];
        run(store.write_copy(7, STRIP, version(fence, sequence), copies, 0, &bytes))
    };
    let stable = || run(store.claims(7, 0, 9))[0].stable;
    write(5, 1, None, 0).unwrap();
    assert_eq!(write(5, 3, None, 0), Err(Reason::Order), "nothing is settled");
    write(5, 3, None, 1).unwrap();
    assert_eq!(stable(), version(5, 1));
    assert_eq!(write(5, 4, None, 2), Err(Reason::Order), "the third is not");
    assert_eq!(write(5, 4, Some(version(5, 1)), 2), Err(Reason::Order));
    assert_eq!(write(5, 9, Some(version(5, 5)), 8), Err(Reason::Order), "the fifth is missing");
    assert_eq!(write(5, 2, None, 3), Err(Reason::Order), "it comes late");
    write(5, 9, Some(version(5, 1)), 3).unwrap();
    assert_eq!(stable(), version(5, 3));
    let other = write(6, 1, Some(version(5, 3)), 9);
    assert_eq!(other, Err(Reason::Order), "the ninth was of another fence");
    write(6, 1, Some(version(5, 9)), 0).unwrap();
    assert_eq!(stable(), version(5, 9));
}

/// A cut was done here, and at no other member: its client died. The others have the strip, so that
/// stays; this member said for ever that something later was stable, as a cut leaves its version.
#[test]
fn what_a_cut_took_away_here_alone_is_lacking() {
    let store = opened(&media());
    write(&store, 1, 0, 1).unwrap();
    run(store.settle(7, 0..u64::MAX, version(5, 1))).unwrap();
    run(store.hole(7, version(5, 2), 0..u64::MAX)).unwrap();
    assert_eq!(run(store.claims(7, 0, 9)), vec![]);
    let cut = Claim { strip: 0, stable: version(5, 2), pending: None };
    assert_eq!(resolve(&store, 9, 1), Ok(vec![cut]));
    assert_eq!(resolve(&store, 9, 1), Ok(vec![cut]));
    run(store.write(7, STRIP, version(9, 1), None, 0, &[1; STRIP as usize])).unwrap();
    assert_eq!((first(&store), resolve(&store, 9, 1)), (Ok(1), Err(Reason::Fence)));
}

#[test]
fn who_lacks_what_was_decided_says_so_and_changes_nothing() {
    let media = media();
    let store = opened(&media);
    write(&store, 1, 0, 1).unwrap();
    write(&store, 2, 1, 2).unwrap();
    let before = run(store.claims(7, 0, 9));
    assert_eq!(resolve(&store, 9, 3), Ok(before.clone()));
    assert_eq!((run(store.claims(7, 0, 9)), first(&store)), (before, Ok(2)));
    assert_eq!(write(&store, 2, 1, 2), Err(Reason::Fence), "it is sealed all the same");
    assert_eq!(resolve(&store, 8, 2), Err(Reason::Fence), "another came since");
    assert_eq!((resolve(&store, 9, 2), resolve(&store, 9, 2)), (Ok(vec![]), Ok(vec![])));
    assert_eq!(resolve(&store, 9, 1), Err(Reason::Fence), "that is over");
    let none = Claim { strip: 0, stable: Version::default(), pending: None };
    let decided = |sequence| [Decided { strip: 0, version: version(5, sequence) }];
    assert_eq!(run(store.resolve(8, 9, &decided(1))), Ok(vec![none]), "nor is the object here");
    media.0.crash();
    media.1.crash();
    let store = opened(&media);
    assert_eq!((first(&store), store.fence(8)), (Ok(2), 9));
}

/// A first write that is forgotten leaves nothing; nor does one behind a cut.
#[test]
fn a_first_write_can_be_forgotten() {
    let store = opened(&media());
    write(&store, 1, 0, 1).unwrap();
    assert_eq!(store.objects(7, 1)[0].end, u64::from(STRIP));
    assert_eq!(run(store.map(7, 0, 9)).first(), Some(&(0..u64::from(STRIP))));
    resolve(&store, 6, 0).unwrap();
    assert_eq!((store.objects(7, 1)[0].end, first(&store)), (0, Ok(0)));
    run(store.hole(7, version(7, 1), 0..u64::MAX)).unwrap();
    let cut = Some(version(7, 1));
    let over = |previous| {
        let copies = Copies { previous, settled: 0, epoch: 1 };
        run(store.write_copy(7, STRIP, version(7, 2), copies, 9, &[1; 9]))
    };
    assert_eq!(over(Some(version(5, 1))), Err(Reason::Order));
    over(cut).unwrap();
    // What a cut took away is told as what never was, and decided so.
    let claims = run(store.claims(7, 0, 9));
    assert_eq!((claims.len(), claims[0].stable), (1, Version::default()));
    let decided = [Decided { strip: 0, version: Version::default() }];
    assert_eq!(run(store.resolve(7, 8, &decided)), Ok(vec![]));
    assert_eq!((run(store.claims(7, 0, 9)), first(&store)), (vec![], Ok(0)), "nothing is left");
}

/// A pending write takes the space that was put aside; forgotten, it gives that back. Neither
/// holes nor space are for what is not known to be done.
#[test]
fn space_put_aside_is_there_for_copies() {
    let media = media();
    let store = opened(&media);
    let share = Share { count: 1, place: 0, strip: STRIP };
    let reserve = |store: &TestStore, sequence| {
        run(store.reserve(7, STRIP, version(5, sequence), 0..2 * GRAIN, share))
    };
    reserve(&store, 1).unwrap();
    write(&store, 2, 1, 2).unwrap();
    assert_eq!((figure(&store, "aside_bytes"), store.held(7)), (0, 2 * GRAIN));
    assert_eq!(reserve(&store, 3), Err(Reason::Order));
    assert_eq!(run(store.hole(7, version(5, 3), 0..9)), Err(Reason::Order));
    drop(store);
    let store = opened(&media);
    assert_eq!((figure(&store, "aside_bytes"), figure(&store, "used_bytes")), (0, 2 * GRAIN));
    resolve(&store, 5, 1).unwrap();
    assert_eq!((figure(&store, "aside_bytes"), first(&store)), (2 * GRAIN, Ok(0)));
    run(store.hole(7, version(5, 3), 0..u64::MAX)).unwrap();
    assert_eq!((figure(&store, "aside_bytes"), store.held(7)), (0, 0));
}

/// Writes over others fill a store, as they keep what they replace; it goes on once that is known
/// to be done.
#[test]
fn a_full_store_goes_on_when_what_is_pending_is_settled() {
    let store = opened(&media());
    let over = |strip: u32, sequence: u32| {
        let previous = (sequence > 1).then(|| version(5, sequence - 1));
        let copies = Copies { previous, settled: 0, epoch: 1 };
        let at = u64::from(strip) * u64::from(STRIP);
        let bytes = [u8::try_from(sequence).unwrap(); STRIP as usize];
        run(store.write_copy(7, STRIP, version(5, sequence), copies, at, &bytes))
    };
    for strip in 0..20 {
        over(strip, 1).unwrap();
    }
    let full = (0..20).find(|strip| over(*strip, 2).is_err());
    assert_eq!((full, over(10, 2)), (Some(10), Err(Reason::Full)));
    let settle = |object, version| run(store.settle(object, 0..u64::MAX, version));
    settle(7, version(5, 1)).unwrap();
    assert_eq!(over(10, 2), Err(Reason::Full), "the second writes were not acknowledged");
    settle(7, version(5, 2)).unwrap();
    assert!(run(store.claims(7, 0, 99)).iter().all(|claim| claim.pending.is_none()));
    for strip in 10..20 {
        over(strip, 2).unwrap();
    }
    assert_eq!(run(store.read(7, 19 * u64::from(STRIP), 1)), Ok(vec![2]));
    run(store.seal(7, 6)).unwrap();
    assert_eq!((settle(7, version(5, 2)), settle(8, version(5, 2))), (Err(Reason::Fence), Ok(())));
}

/// Either version may rot: that is told, and the other one is still there.
#[test]
fn rot_in_either_version_is_told() {
    for rotten in [0, 2] {
        let media = media();
        let store = opened(&media);
        write(&store, 1, 0, 1).unwrap();
        write(&store, 2, 1, 2).unwrap();
        run(store.flush()).unwrap();
        media.1.corrupt(rotten * GRAIN + 5);
        assert_eq!(run(store.verify(7)), Ok(1));
        let store = opened(&media);
        assert_eq!(first(&store), if rotten == 2 { Err(Reason::Medium) } else { Ok(2) });
        resolve(&store, 5, 1).unwrap();
        assert_eq!(first(&store), if rotten == 2 { Ok(1) } else { Err(Reason::Medium) });
    }
}

/// A program from before there were pending writes refuses a store that has had one, by its
/// version; it opens any other, whose bytes are what they were.
#[test]
fn the_first_pending_write_makes_another_format() {
    let media = media();
    let store = opened(&media);
    run(store.write(1, STRIP, version(5, 1), None, 0, b"a")).unwrap();
    run(store.seal(1, 6)).unwrap();
    assert_eq!(format(&media), [1, 1]);
    write(&store, 1, 0, 1).unwrap();
    assert_eq!(format(&media), [3, 3]);
    drop(store);
    let store = opened(&media);
    assert_eq!((first(&store), run(store.claims(7, 0, 9)).len()), (Ok(1), 1));
    drop(store);
    for at in [0, 4096] {
        let (_, mut block) = run(media.0.read(at, Buf::zeroed(4096)));
        block[8] = 4;
        run(media.0.write(at, block)).0.unwrap();
    }
    let refused = run(Store::open(media.0.clone(), media.1.clone(), options())).err().unwrap();
    assert_eq!(refused, OpenError::Format(4));
    assert!(refused.to_string().contains("format 4"));
}

/// A store that had copies before it noted down a boot takes the one that it is opened with, from
/// the next write on.
#[test]
fn a_store_of_the_format_before_is_trusted_in_the_boot_it_is_opened_with() {
    let media = media();
    let store = opened(&media);
    assert!(store.is_trusted_in(4));
    write(&store, 1, 0, 1).unwrap();
    drop(store);
    // Nothing is in the log then, whose blocks know the header.
    drop(opened(&media));
    for at in [0, 4096] {
        let (_, mut block) = run(media.0.read(at, Buf::zeroed(4096)));
        assert_eq!((block[8], block[56]), (3, 4));
        (block[8], block[56]) = (2, 0);
        let crc = outboard_codec::crc32c(&block[16..512]).to_le_bytes();
        block[12..16].copy_from_slice(&crc);
        run(media.0.write(at, block)).0.unwrap();
    }
    for boot in [6, 7] {
        let store = opened(&media);
        assert!(store.is_trusted_in(boot) && !store.is_trusted_in(8));
        assert_eq!((format(&media), first(&store)), ([2, 2], Ok(1)));
    }
    let store = opened(&media);
    assert!(store.is_trusted_in(7));
    write(&store, 2, 1, 2).unwrap();
    assert_eq!(format(&media), [3, 3]);
    drop(store);
    let store = opened(&media);
    assert!(store.is_trusted_in(7) && !store.is_trusted_in(6));
}

/// Power is lost anywhere while that is noted down: it is, or it is not, and nothing else changes.
/// A checkpoint that comes before has the boot of before.
#[test]
fn power_is_lost_while_a_boot_is_noted_down() {
    let (mut noted, mut not) = (0, 0);
    for polls in 0..60 {
        let media = (Arc::new(MemMedium::new(polls)), Arc::new(MemMedium::new(polls + 1)));
        let store = opened(&media);
        assert!(store.is_trusted_in(1));
        write(&store, 1, 0, 1).unwrap();
        run(store.flush()).unwrap();
        drop(store);
        drop(opened(&media));
        let store = opened(&media);
        assert!(!store.is_trusted_in(2) && store.is_trusted_in(1));
        media.0.set_faults(Faults { delay_polls: 6, ..Faults::default() });
        let said = poll_for(polls, store.trust(2));
        drop(store);
        media.0.set_faults(Faults::default());
        media.0.crash();
        media.1.crash();
        let store = opened(&media);
        let is_noted = store.is_trusted_in(2);
        assert!(is_noted != store.is_trusted_in(1) && first(&store) == Ok(1));
        assert!(is_noted || said.is_none(), "{polls}: said, and not there");
        noted += u64::from(is_noted);
        not += u64::from(!is_noted);
    }
    println!("{noted} noted, {not} not");
    assert!(noted > 9 && not > 9, "{noted} {not}");
}

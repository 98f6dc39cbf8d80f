//! How much a host may write in its cache, and who waits for what.

use super::*;
use crate::policy::flush;

/// A mount writes 128 pages at a time; its first credit was for 64, of which it could use none, so
/// it never got more, and every one of its writes went through.
#[test]
fn a_write_larger_than_the_credit_brings_as_much() {
    let rig = Rig::of(1, 4096, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    let bytes = vec![7; 100 * PAGE as usize];
    let mut through = 0;
    for nth in 0..30 {
        let offset = nth * bytes.len() as u64;
        if !rig.hosts[0].write(file.0, Place::At(offset), &bytes) {
            through += 1;
            rig.write(0, file, offset, 0, &bytes);
        }
    }
    assert!(through < 10, "{through} of 30 went through");
}

/// A coherence that somebody maintains, and whether a round is asked for.
fn maintained() -> (Rig, Arc<AtomicBool>) {
    let rig = Rig::new(1, Policies { flush: flush::Name::Eager, ..Policies::default() });
    let asked = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&asked);
    rig.coherence.set_maintainer(move || told.store(true, Ordering::SeqCst));
    (rig, asked)
}

/// Writes pages, in the cache and through, until a write waits: for room.
fn until_one_waits(rig: &Rig, (ino, fh): (Ino, Fh)) -> Asked {
    for page in 0..1000 {
        let (offset, bytes) = (page * PAGE, vec![1; PAGE as usize]);
        if rig.hosts[0].write(ino, Place::At(offset), &bytes) {
            continue;
        }
        let request = Request::Write { ino, fh, offset, flags: 0 };
        let mut asked = ask(&rig.coherence, &rig.volume, &rig.hosts[0].caller, request, bytes);
        if poll(&mut asked).is_none() {
            return asked;
        }
    }
    panic!("nobody waits");
}

#[test]
fn who_lacks_room_has_it_when_the_round_it_asked_for_is_over() {
    let (rig, asked) = maintained();
    let file = rig.create(0, b"f", RDWR);
    let mut waits = until_one_waits(&rig, file);
    assert!(asked.swap(false, Ordering::SeqCst));
    let dirty = rig.coherence.figures()[0].dirty;
    assert!(dirty > 0 && poll(&mut waits).is_none());
    // It holds no lock: others read and ask meanwhile.
    assert_eq!(rig.read(0, file, 0, 10), [1; 10]);
    assert!(rig.size(0, file.0) > dirty * PAGE);
    assert!(finish(rig.coherence.maintain(&*rig.volume)));
    assert!(matches!(poll(&mut waits), Some(Ok((Reply::Written(_), _)))));
    assert_eq!(rig.coherence.figures()[0].dirty, 0);
    let end = rig.size(0, file.0);
    assert!(rig.hosts[0].write(file.0, Place::At(end), &[2; 4096]), "there is credit again");
}

/// The first shape of this wanted the second round to end, of which none but the clock's came.
#[test]
fn one_round_is_enough_where_none_was_under_way() {
    let (rig, asked) = maintained();
    let file = rig.create(0, b"f", RDWR);
    let mut waits = until_one_waits(&rig, file);
    asked.store(false, Ordering::SeqCst);
    // Nothing can be written back, so no round makes room.
    BROKEN.set(true);
    finish(rig.coherence.maintain(&*rig.volume));
    BROKEN.set(false);
    assert!(poll(&mut waits).is_some());
}

#[test]
fn nobody_waits_for_rounds_that_will_not_come() {
    let (rig, _asked) = maintained();
    let file = rig.create(0, b"f", RDWR);
    let mut waits = until_one_waits(&rig, file);
    rig.coherence.clear_maintainer();
    assert!(poll(&mut waits).is_some());
}

/// A maintainer ended before it had begun the round it was asked for. The next one was never woken
/// for who lacked room: a round counted as asked for already, and each of them waited for the
/// clock's.
#[test]
fn the_next_maintainer_is_asked_again() {
    let (rig, asked) = maintained();
    let file = rig.create(0, b"f", RDWR);
    drop(until_one_waits(&rig, file));
    assert!(asked.swap(false, Ordering::SeqCst));
    rig.coherence.clear_maintainer();
    let told = Arc::clone(&asked);
    rig.coherence.set_maintainer(move || told.store(true, Ordering::SeqCst));
    let _waits = until_one_waits(&rig, file);
    assert!(asked.load(Ordering::SeqCst), "the new one has not heard of it");
}

/// Rounds were counted as they began and as they ended. One that was given up half-way (its thread
/// ended) left the second count behind for good: whoever waited from then on waited for two.
#[test]
fn a_round_that_never_ends_is_over_with_the_next() {
    let (rig, _asked) = maintained();
    let file = rig.create(0, b"f", RDWR);
    assert!(rig.hosts[0].write(file.0, Place::At(0), &[1; PAGE as usize]));
    {
        let guard = finish(rig.coherence.range_locks.exclusive(file.0));
        assert!(poll_for(10, rig.coherence.maintain(&*rig.volume)).is_none());
        drop(guard);
    }
    let mut waits = until_one_waits(&rig, file);
    // Nothing can be written back, so no round makes room.
    BROKEN.set(true);
    finish(rig.coherence.maintain(&*rig.volume));
    BROKEN.set(false);
    assert!(poll(&mut waits).is_some());
}

/// Two writes brought credit at once, each holding the inode beside the other. The first had raised
/// the sum and not told the host yet; the second raised and told it; then the first told its own,
/// smaller one, and neither would say more: the host wrote through from then on.
#[test]
fn of_two_who_bring_credit_the_host_hears_the_larger_sum() {
    let rig = Rc::new(Rig::of(1, 4096, Policies::default()));
    let (ino, _) = rig.create(0, b"f", RDWR);
    let session = rig.hosts[0].caller.attachment;
    let told = |rig: &Rig| {
        let held = rig.coherence.view(ino, session).mine.unwrap();
        held.cache.control.record(held.slot, ino).unwrap().unwrap().credit
    };
    let promised =
        move |rig: &Rig| rig.coherence.table().holder(ino, session).map_or(0, |h| h.credit);
    // After a write of so many pages went through.
    let bring = move |rig: &Rig, pages: u64| {
        let (coherence, volume) = (Arc::clone(&rig.coherence), Arc::clone(&rig.volume));
        let work = async move { coherence.credit_for(&*volume, session, ino, pages * PAGE).await };
        Box::pin(work) as Pin<Box<dyn Future<Output = ()>>>
    };
    let before = told(&rig);
    let second = Rc::new(RefCell::new(Some(bring(&rig, 400))));
    let (weak, other) = (Rc::downgrade(&rig), Rc::clone(&second));
    BETWEEN.set(Some(Rc::new(move || {
        let Some(rig) = weak.upgrade() else { return };
        if promised(&rig) == before {
            return;
        }
        // The sum is raised, and the next DMA tells the host.
        let Some(mut begun) = other.borrow_mut().take() else { return };
        if poll(&mut begun).is_none() {
            *other.borrow_mut() = Some(begun);
        }
    })));
    finish(bring(&rig, 100));
    BETWEEN.set(None);
    let one = promised(&rig);
    second.take().into_iter().for_each(finish);
    assert!(promised(&rig) >= one && one > before, "there was some to bring");
    assert_eq!(told(&rig), promised(&rig));
}

//! Flushes that outlive their grants: the thread that maintains caches holds no lock on an inode
//! while it writes pages of it back, so grants come and go beside it.

use super::*;
use crate::policy::flush;

type Round = Pin<Box<dyn Future<Output = bool>>>;

/// A volume whose store answers in its own time, the rig's hosts attached.
fn slow(hosts: u64) -> (Rc<Rig>, Arc<MemKv>) {
    let kv = Arc::new(MemKv::new(1));
    let policies = Policies { flush: flush::Name::Eager, ..Policies::default() };
    let mut rig = Rig::new(hosts, policies);
    rig.volume = open(&kv, &Arc::new(MemMedium::new(1)));
    finish(rig.volume.end_grace()).unwrap();
    (Rc::new(rig), kv)
}

fn round(rig: &Rig) -> Round {
    let (coherence, volume) = (Arc::clone(&rig.coherence), Arc::clone(&rig.volume));
    Box::pin(async move { coherence.maintain(&*volume).await })
}

fn answers_late(kv: &MemKv, delay_polls: u64) {
    kv.set_faults(Faults { delay_polls, ..Faults::default() });
}

/// What was promised to a session and is in nobody's hands any more, or is given back twice.
fn promises_are_kept(rig: &Rig, ino: Ino) {
    let mut table = rig.coherence.table();
    let holder = table.holder(ino, rig.hosts[0].caller.attachment);
    let owed = holder.map_or(0, |holder| holder.credit - holder.settled);
    drop(table);
    assert_eq!(rig.coherence.figures()[0].promised, owed);
}

/// A flush had its pages and waited for another that was writing them; then it looked at its grant,
/// found it, and went on to pull. In between that grant ended and a later one began, whose record
/// lay elsewhere: the flush read another file's record, cut the later grant's page at the size the
/// volume knew, and called it clean. The end of the file was lost.
#[test]
fn a_flush_whose_grant_ends_before_its_pulls_leaves_the_next_one_s_pages() {
    let (rig, kv) = slow(2);
    let (ino, fh) = rig.create(0, b"f", RDWR);
    let host = &rig.hosts[0];
    // Files whose records may lie where this one's does, and one more.
    let set = host.plane.geometry().record_set(ino.0);
    let others: Vec<(Ino, Fh)> = (0..20u8)
        .map(|nth| rig.create(1, vec![b'g', nth].leak(), 0))
        .filter(|(ino, _)| host.plane.geometry().record_set(ino.0) == set)
        .collect();
    let [(other, _), ..] = others[..] else { panic!("none shares the set") };
    assert!(host.write(ino, Place::At(0), &[1; 100]));
    answers_late(&kv, 1000);
    let (mut first, mut second) = (round(&rig), round(&rig));
    assert!(poll(&mut first).is_none() && poll(&mut second).is_none());
    answers_late(&kv, 0);
    while poll(&mut first).is_none() {}
    let again = Rc::downgrade(&rig);
    let once = Cell::new(false);
    BETWEEN.set(Some(Rc::new(move || {
        let Some(rig) = again.upgrade().filter(|_| !once.replace(true)) else { return };
        rig.ask(0, Request::Release { ino, fh, owner: 0 }, &[]).unwrap();
        let fh = rig.open(1, ino, RDWR);
        rig.ask(1, Request::Release { ino, fh, owner: 0 }, &[]).unwrap();
        rig.open(0, other, 0);
        rig.open(0, ino, RDWR);
        assert!(rig.hosts[0].write(ino, Place::At(0), &[2; 4000]), "granted again");
    })));
    while poll(&mut second).is_none() {}
    BETWEEN.set(None);
    let fh = rig.open(1, ino, 0);
    let found = rig.read(1, (ino, fh), 0, 9000);
    assert!(found == [2; 4000], "{} bytes", found.len());
}

/// A change of a file's attributes noted what of its session's credit was outstanding, waited for
/// the volume, and granted that again. A flush that had marked its last page clean counted it in
/// between: its space was given back twice, and the promises went below zero.
#[test]
fn credit_that_is_settled_while_a_file_changes_is_given_back_once() {
    let (rig, kv) = slow(1);
    let (ino, fh) = rig.create(0, b"f", RDWR);
    assert!(rig.hosts[0].write(ino, Place::At(0), &[1; 100]));
    // With it, whether the file has capabilities is to be asked of the store.
    let request = Request::Setxattr { ino, name: b"user.x", flags: 0 };
    let host = &rig.hosts[0];
    let change = ask(&rig.coherence, &rig.volume, &host.caller, request, vec![1]);
    let change = Rc::new(RefCell::new(Some(change)));
    let changes = move |rig: &Rig| rig.coherence.table().version(ino).unwrap().changes;
    let (meanwhile, asked) = (Rc::downgrade(&rig), Rc::clone(&change));
    AFTER.set(Some(Rc::new(move || {
        let Some(rig) = meanwhile.upgrade() else { return };
        if rig.coherence.figures()[0].dirty > 0 {
            return;
        }
        // The page is clean, and not counted yet: as far as the answer of the volume.
        let Some(mut change) = asked.borrow_mut().take() else { return };
        let before = changes(&rig);
        answers_late(&kv, 1000);
        while changes(&rig) < before + 2 {
            let done = poll(&mut change);
            assert!(done.is_none(), "it never waits: {done:?}");
        }
        assert!(poll(&mut change).is_none());
        answers_late(&kv, 0);
        *asked.borrow_mut() = Some(change);
    })));
    let mut flushing = round(&rig);
    assert!(poll(&mut flushing).is_none(), "the change holds the inode");
    AFTER.set(None);
    finish(change.take().unwrap()).unwrap();
    finish(flushing);
    promises_are_kept(&rig, ino);
    rig.ask(0, Request::Release { ino, fh, owner: 0 }, &[]).unwrap();
    assert_eq!(rig.coherence.figures()[0].promised, 0);
}

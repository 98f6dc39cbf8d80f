//! What went wrong at the coherence's edges, a story each.

use super::*;

/// The coherence took a write for an append by the request's flag alone, and the volume also by the
/// handle: such a write went to the end the volume knew, under a dirty page beyond it.
#[test]
fn a_handle_opened_to_append_appends_behind_dirty_pages() {
    let rig = Rig::new(1, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    assert!(rig.hosts[0].write(file.0, Place::At(0), &[1; 5000]));
    let appending = (file.0, rig.open(0, file.0, RDWR | open_flags::APPEND));
    rig.write(0, appending, 0, 0, &[2; 10]);
    rig.ask(0, Request::Fsync { ino: file.0, fh: file.1, data_only: false }, &[]).unwrap();
    assert_eq!(rig.read(0, file, 0, 9000), [[1; 5000].as_slice(), &[2; 10]].concat());
    // Pages of a kernel's cache come back with their own places.
    rig.write(0, appending, 0, write_flags::WRITEBACK, &[3; 10]);
    assert_eq!(rig.read(0, file, 0, 20), [[3; 10], [1; 10]].concat());
}

/// A host's word on when it wrote was believed: who may write a file, and does not own it, dated it
/// into the future.
#[test]
fn a_host_cannot_date_a_file_into_the_future() {
    let rig = Rig::new(1, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    let tomorrow = (wall().sec + 86_400) * 1_000_000_000;
    let bytes = [1; 100];
    let plane = &rig.hosts[0].plane;
    assert!(plane.write(file.0.0, Place::At(0), Source::Memory(&bytes), tomorrow).is_some());
    let getattr = || match rig.ask(0, Request::Getattr { ino: file.0, fh: file.1 }, &[]) {
        Ok((Reply::Attr(attr), _)) => attr.mtime,
        other => panic!("{other:?}"),
    };
    assert_eq!(getattr(), later());
    rig.ask(0, Request::Fsync { ino: file.0, fh: file.1, data_only: false }, &[]).unwrap();
    assert_eq!(finish(rig.volume.cacheable(file.0)).unwrap().0.mtime, later());
}

/// An append was in the volume, then something failed that only concerns the cache, and the caller
/// heard EIO: it appended again. The same with a truncation.
#[test]
fn what_the_volume_has_done_is_answered_whatever_becomes_of_the_cache() {
    let rig = Rig::new(1, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    let volume = Arc::clone(&rig.volume);
    assert!(rig.hosts[0].write(file.0, Place::At(0), &[1; 100]));
    let size = move |volume: &Volume| finish(volume.cacheable(file.0)).unwrap().0.size;
    for (request, payload, becomes) in [
        (
            Request::Write { ino: file.0, fh: file.1, offset: 0, flags: write_flags::APPEND },
            [2; 10].as_slice(),
            110,
        ),
        (
            Request::Setattr {
                ino: file.0,
                fh: file.1,
                set: Setattr { size: Some(50), ..Setattr::default() },
            },
            &[],
            50,
        ),
    ] {
        let volume = Arc::clone(&volume);
        // From the version the volume has it, the cache cannot be reached.
        BETWEEN.set(Some(Rc::new(move || BROKEN.set(size(&volume) == becomes))));
        let outcome = rig.ask(0, request.clone(), payload);
        assert!(BROKEN.get(), "nothing failed");
        BETWEEN.set(None);
        BROKEN.set(false);
        assert!(outcome.is_ok(), "{request:?}: {outcome:?}");
        assert_eq!(size(&rig.volume), becomes);
        // What is left of the cache is taken back, and everybody reads the file as it is.
        finish(rig.coherence.maintain(&*rig.volume));
        assert_eq!(rig.size(0, file.0), becomes);
        let kept = rig.hosts[0].read(file.0, 0, 1000);
        assert!(kept.is_none_or(|kept| kept.len() as u64 == becomes), "a size of before");
        rig.open(0, file.0, RDWR);
    }
    assert_eq!(rig.read(0, file, 0, 1000), [1; 50]);
}

/// A host died, and the disk was full for a version while its cache was being written back: the
/// first failure of a page gave it up.
#[test]
fn a_page_that_fails_once_while_a_cache_is_emptied_is_tried_again() {
    let (kv, medium) = (Arc::new(MemKv::new(1)), Arc::new(MemMedium::new(1)));
    for (fails, survives) in [(20, true), (u64::MAX, false)] {
        let mut rig = Rig::new(2, Policies::default());
        rig.volume = open(&kv, &medium);
        finish(rig.volume.end_grace()).unwrap();
        let (ino, _) = rig.create(0, b"f", RDWR);
        assert!(rig.hosts[0].write(ino, Place::At(0), &[fails as u8; 100]));
        let left = Rc::new(Cell::new(fails));
        let gone = rig.hosts.remove(0);
        gone.dead.store(true, Ordering::Relaxed);
        let engine = Arc::clone(&kv);
        // Each DMA may be the one before a write-back.
        BETWEEN.set(Some(Rc::new(move || {
            left.set(left.get().saturating_sub(1));
            let commit_fails = u64::from(left.get() > 0);
            engine.set_faults(Faults { commit_fails, ..Faults::default() });
        })));
        finish(rig.coherence.detach(&*rig.volume, gone.caller.attachment));
        BETWEEN.set(None);
        kv.set_faults(Faults::default());
        let fh = rig.open(0, ino, 0);
        let found = rig.read(0, (ino, fh), 0, 100);
        assert_eq!(found == [fails as u8; 100], survives);
        let sync = rig.ask(0, Request::Fsync { ino, fh, data_only: false }, &[]).map(drop);
        assert_eq!(sync, if survives { Ok(()) } else { Err(Errno::EIO) });
        rig.ask(0, Request::Unlink { parent: Ino::ROOT, name: b"f" }, &[]).unwrap();
    }
}

/// A process was stopped, the DPU side was lost, and its next life waited for the process in vain.
/// Others wrote the file; when the process came back at last, its older pages came over that.
#[test]
fn pages_that_come_too_late_do_not_come_over_newer_writes() {
    for written in [false, true] {
        let (kv, medium) = (Arc::new(MemKv::new(1)), Arc::new(MemMedium::new(1)));
        let mut rig = Rig::new(2, Policies::default());
        rig.volume = open(&kv, &medium);
        let file = rig.create(0, b"f", RDWR);
        let earlier = wall().sec * 1_000_000_000;
        let old = [1; 100];
        let plane = &rig.hosts[0].plane;
        assert!(plane.write(file.0.0, Place::At(0), Source::Memory(&old), earlier).is_some());
        rig.ask(0, Request::Fsync { ino: file.0, fh: file.1, data_only: false }, &[]).unwrap();
        assert!(plane.write(file.0.0, Place::At(0), Source::Memory(&[2; 100]), earlier).is_some());
        rig.volume = open(&kv, &medium);
        finish(rig.volume.end_grace()).unwrap();
        NOW.set(NOW.get() + 60);
        rig.coherence = Arc::new(Coherence::begin(wall()));
        rig.coherence.expect([rig.hosts[0].caller.attachment]);
        rig.coherence.expect_nobody();
        let fh = rig.open(1, file.0, RDWR);
        if written {
            rig.write(1, (file.0, fh), 50, 0, &[3; 50]);
        }
        let host = &rig.hosts[0];
        let cache = rig.coherence.attach(host.caller.clone(), host.setup(Policies::default()));
        finish(rig.coherence.recover(&*rig.volume, cache));
        let expected = if written { [[1; 50], [3; 50]].concat() } else { [2; 100].to_vec() };
        assert_eq!(rig.read(1, (file.0, fh), 0, 1000), expected);
        let sync = |host: usize| {
            let session = Some(rig.hosts[host].caller.attachment);
            finish(rig.coherence.flush_for_sync(&*rig.volume, file.0, session))
        };
        assert_eq!(sync(1), Ok(()));
        assert_eq!(sync(0), if written { Err(Errno::EIO) } else { Ok(()) });
    }
}

/// A file lay on a node that was away, and a cache had pages of it when the DPU side was killed: in
/// the next life every request waited until that node was back, whatever file it was about.
#[test]
fn nobody_waits_until_a_cache_is_emptied_of_other_files() {
    let mut rig = Rig::new(2, Policies::default());
    let [slow, quick] = [b"slow" as &[u8], b"quick"].map(|name| rig.create(0, name, RDWR));
    for (number, (ino, _)) in (1..).zip([slow, quick]) {
        assert!(rig.hosts[0].write(ino, Place::At(0), &[number; 100]));
    }
    rig.coherence = Arc::new(Coherence::begin(wall()));
    let sessions = [0, 1].map(|host: usize| rig.hosts[host].caller.attachment);
    rig.coherence.expect(sessions);
    let away = finish(rig.coherence.range_locks.exclusive(slow.0));
    let caches = rig
        .hosts
        .iter()
        .map(|host| rig.coherence.attach(host.caller.clone(), host.setup(Policies::default())));
    let mut recoveries: Vec<_> = caches
        .map(|cache| {
            let (coherence, volume) = (Arc::clone(&rig.coherence), Arc::clone(&rig.volume));
            let work = async move { coherence.recover(&*volume, cache).await };
            Box::pin(work) as Pin<Box<dyn Future<Output = ()>>>
        })
        .collect();
    let recovers = |all: &mut Vec<Pin<Box<dyn Future<Output = ()>>>>| {
        (0..20).for_each(|_| all.retain_mut(|work| poll(work).is_none()));
        all.len()
    };
    assert_eq!(recovers(&mut recoveries), 1);
    let fh = rig.open(1, quick.0, RDWR);
    for (host, file) in [(0, quick), (1, (quick.0, fh))] {
        assert_eq!(rig.read(host, file, 0, 1000), [2; 100]);
    }
    rig.write(0, quick, 50, 0, &[3; 100]);
    rig.ask(0, Request::Fsync { ino: quick.0, fh: quick.1, data_only: false }, &[]).unwrap();
    rig.create(1, b"new", RDWR);
    rig.ask(1, Request::Lookup { parent: Ino::ROOT, name: b"quick" }, &[]).unwrap();
    let caller = rig.hosts[1].caller.clone();
    let mut waiting = [
        Request::Lookup { parent: Ino::ROOT, name: b"slow" },
        Request::Getattr { ino: slow.0, fh: Fh::NONE },
    ]
    .map(|request| ask(&rig.coherence, &rig.volume, &caller, request, Vec::new()));
    assert!(waiting.iter_mut().all(|asked| poll(asked).is_none()), "of that one it is not known");
    drop(away);
    assert_eq!(recovers(&mut recoveries), 0);
    for mut asked in waiting {
        let answered = poll(&mut asked).unwrap().unwrap().0;
        let (Reply::Entry(attr) | Reply::Attr(attr)) = answered else { panic!("{answered:?}") };
        assert_eq!(attr.size, 100);
    }
    assert_eq!(rig.read(0, slow, 0, 1000), [1; 100]);
}

/// A reader held a page as the cache was emptied of it. Its file was looked at again only when all
/// others were out, of which one lay on a node that was away.
#[test]
fn a_page_that_a_reader_holds_does_not_wait_for_other_files() {
    let mut rig = Rig::new(1, Policies::default());
    let [slow, quick] = [b"slow" as &[u8], b"quick"].map(|name| rig.create(0, name, RDWR));
    for (number, (ino, _)) in (1..).zip([slow, quick]) {
        assert!(rig.hosts[0].write(ino, Place::At(0), &[number; 100]));
    }
    rig.coherence = Arc::new(Coherence::begin(wall()));
    let host = &rig.hosts[0];
    rig.coherence.expect([host.caller.attachment]);
    let away = finish(rig.coherence.range_locks.exclusive(slow.0));
    let setup = host.setup(Policies::default());
    let [page] = setup.control.find(quick.0, 0..1).unwrap()[..] else { panic!("one page") };
    let at = host.plane.geometry().entry_at(page.index);
    let word = || Word::parse(host.region.load_u64(at, Ordering::SeqCst).unwrap()).unwrap();
    let set = |word: Word| host.region.store_u64(at, word.emit(), Ordering::SeqCst).unwrap();
    set(word().share().unwrap());
    let cache = rig.coherence.attach(host.caller.clone(), setup);
    let (coherence, volume) = (Arc::clone(&rig.coherence), Arc::clone(&rig.volume));
    let recovery = async move { coherence.recover(&*volume, cache).await };
    let mut recovery = Box::pin(recovery) as Pin<Box<dyn Future<Output = ()>>>;
    let getattr = Request::Getattr { ino: quick.0, fh: Fh::NONE };
    let mut asked = ask(&rig.coherence, &rig.volume, &host.caller, getattr, Vec::new());
    assert!((0..20).all(|_| poll(&mut recovery).is_none() && poll(&mut asked).is_none()));
    set(word().unshare().unwrap());
    assert!((0..20).all(|_| poll(&mut recovery).is_none()), "the other file is still away");
    let Some(Ok((Reply::Attr(attr), _))) = poll(&mut asked) else { panic!("it waits") };
    assert_eq!(attr.size, 100);
    drop(away);
    assert!((0..20).any(|_| poll(&mut recovery).is_some()));
    assert_eq!(rig.read(0, slow, 0, 1000), [1; 100]);
}

/// A process that came late had gone on writing, and others had not. One of its pages could not be
/// written back at first; by then another was, and the file looked as if others had written it.
#[test]
fn a_late_session_does_not_take_its_own_pages_for_what_others_wrote() {
    let (kv, medium) = (Arc::new(MemKv::new(1)), Arc::new(MemMedium::new(1)));
    let mut rig = Rig::new(1, Policies::default());
    rig.volume = open(&kv, &medium);
    let (ino, fh) = rig.create(0, b"f", RDWR);
    assert!(rig.hosts[0].write(ino, Place::At(0), &[1; 100]));
    NOW.set(NOW.get() + 60);
    rig.coherence = Arc::new(Coherence::begin(wall()));
    let host = &rig.hosts[0];
    rig.coherence.expect([host.caller.attachment]);
    rig.coherence.expect_nobody();
    let bytes = [2; 3 * PAGE as usize];
    assert!(host.write(ino, Place::At(0), &bytes));
    // Once one of them is in the volume the disk is full for a moment.
    let (volume, engine, left) = (Arc::clone(&rig.volume), Arc::clone(&kv), Cell::new(20_u64));
    let begun = wall();
    BETWEEN.set(Some(Rc::new(move || {
        if finish(volume.cacheable(ino)).is_ok_and(|(attr, _)| attr.mtime >= begun) {
            left.set(left.get().saturating_sub(1));
            let commit_fails = u64::from(left.get() > 0);
            engine.set_faults(Faults { commit_fails, ..Faults::default() });
        }
    })));
    let cache = rig.coherence.attach(host.caller.clone(), host.setup(Policies::default()));
    finish(rig.coherence.recover(&*rig.volume, cache));
    BETWEEN.set(None);
    kv.set_faults(Faults::default());
    assert!(rig.read(0, (ino, fh), 0, 4 * PAGE as u32) == bytes, "none is lost");
    rig.ask(0, Request::Fsync { ino, fh, data_only: false }, &[]).unwrap();
}

/// A directory was listed while caches were emptied of two of its files. Of the one that was
/// emptied as the other was waited for, the size was that of before.
#[test]
fn a_listing_says_what_caches_held_of_all_its_files() {
    let mut rig = Rig::new(1, Policies::default());
    let [quick, slow] = [b"a" as &[u8], b"b"].map(|name| rig.create(0, name, RDWR));
    for (ino, _) in [slow, quick] {
        assert!(rig.hosts[0].write(ino, Place::At(0), &[1; 100]));
    }
    rig.coherence = Arc::new(Coherence::begin(wall()));
    let caller = rig.hosts[0].caller.clone();
    rig.coherence.expect([caller.attachment]);
    let away = finish(rig.coherence.range_locks.exclusive(slow.0));
    let opened = Request::Opendir { ino: Ino::ROOT };
    let Ok((Reply::Opened(fh), _)) = rig.ask(0, opened, &[]) else { panic!("it is opened") };
    let all = Request::Readdir { ino: Ino::ROOT, fh, cookie: 0, len: 4096, with_attributes: true };
    let mut listing = ask(&rig.coherence, &rig.volume, &caller, all, Vec::new());
    assert!(poll(&mut listing).is_none(), "nobody knows yet what there is");
    let setup = rig.hosts[0].setup(Policies::default());
    let cache = rig.coherence.attach(caller, setup);
    let (coherence, volume) = (Arc::clone(&rig.coherence), Arc::clone(&rig.volume));
    let recovery = async move { coherence.recover(&*volume, cache).await };
    let mut recovery = Box::pin(recovery) as Pin<Box<dyn Future<Output = ()>>>;
    assert!((0..20).all(|_| poll(&mut recovery).is_none()), "one of them is away");
    assert!(poll(&mut listing).is_none());
    drop(away);
    assert!((0..20).any(|_| poll(&mut recovery).is_some()));
    let (_, payload) = poll(&mut listing).unwrap().unwrap();
    let sizes = outboard_wire::file::Dirents::new(&payload).flatten();
    let sizes = sizes.filter_map(|entry| Some((entry.ino, entry.attr?.size)));
    let sizes: Vec<_> = sizes.filter(|(ino, _)| [slow.0, quick.0].contains(ino)).collect();
    assert_eq!(sizes, [(slow.0, 100), (quick.0, 100)], "in the order in which they are looked at");
}

/// A volume that is shared with others asks back what hosts cache: down to reading, what they wrote
/// is in the volume and their pages still answer; then altogether.
#[test]
fn a_volume_asks_back_what_hosts_cache() {
    let rig = Rig::new(1, Policies::default());
    let file = rig.create(0, b"f", RDWR);
    let host = &rig.hosts[0];
    let give_up = |keep| finish(rig.coherence.give_up(&*rig.volume, file.0, keep)).unwrap();
    assert!(host.write(file.0, Place::At(0), &[1; 5000]));
    give_up(true);
    assert_eq!(finish(rig.volume.cacheable(file.0)).unwrap().0.size, 5000);
    assert_eq!(host.read(file.0, 0, 9000).unwrap(), [1; 5000]);
    assert!(!host.write(file.0, Place::At(0), &[2; 10]));
    give_up(true);
    give_up(false);
    assert_eq!(host.read(file.0, 0, 9000), None);
    give_up(false);
    assert_eq!(rig.read(0, file, 0, 9000), [1; 5000]);
}

//! readdir while the directory changes.

use std::collections::BTreeSet;

use outboard_base::{Errno, Fh, Ino, Rng};
use outboard_wire::file::{Dirents, Request, rename_flags};

use crate::world::{Disk, User, errno};

#[test]
fn what_is_there_all_the_time_is_listed_exactly_once() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let disk = Disk::new(seed);
        let volume = disk.open_settled();
        let user = User::root(&volume);
        let dir = user.mkdir(Ino::ROOT, "d").unwrap().ino;
        for n in 0..300 {
            user.file(dir, &format!("stay{n}")).unwrap();
            user.file(dir, &format!("go{n}")).unwrap();
        }
        let fh = user.opendir(dir).unwrap();
        let (mut seen, mut cookie) = (Vec::new(), 0);
        loop {
            let page = user.page(dir, fh, cookie, 1000).unwrap();
            let Some((last, ..)) = page.last() else { break };
            assert!(page.iter().all(|(cookie, ..)| *cookie > 2), "seed {seed}");
            cookie = *last;
            seen.extend(page.into_iter().map(|(_, _, name)| name));
            for _ in 0..10 {
                let (a, b) = (rng.below(300), rng.below(300));
                let name = |prefix: &str, n: u64| format!("{prefix}{n}");
                match rng.below(5) {
                    0 => _ = user.unlink(dir, &name("go", a)),
                    1 => drop(user.file(dir, &name("new", a))),
                    2 => _ = user.rename((dir, &name("go", a)), (dir, &name("new", b)), 0),
                    // A name that is replaced is there all the time.
                    3 => _ = user.rename((dir, &name("go", a)), (dir, &name("stay", b)), 0),
                    _ => {
                        let (a, b) = (name("stay", a), name("stay", b));
                        _ = user.rename((dir, &a), (dir, &b), rename_flags::EXCHANGE);
                    }
                }
            }
        }
        let stayed: Vec<_> = seen.iter().filter(|name| name.starts_with("stay")).collect();
        let once: BTreeSet<_> = stayed.iter().collect();
        assert_eq!((stayed.len(), once.len()), (300, 300), "seed {seed}");
    }
}

/// A program that renames each name when it is listed met the new names again, and again: new
/// names came behind the place of the listing, which had no end. Listings go from the newest name
/// down now, so what is made meanwhile lies behind them. So do names that come again.
#[test]
fn a_listing_ends_with_what_was_there_when_it_began() {
    let disk = Disk::new(3);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let dir = user.mkdir(Ino::ROOT, "d").unwrap().ino;
    let names: BTreeSet<String> = (0..3000).map(|n| format!("old{n}")).collect();
    for name in &names {
        user.file(dir, name).unwrap();
    }
    let open = user.opendir(dir).unwrap();
    for (round, fh) in [(0, Fh::NONE), (1, open), (2, Fh::NONE)] {
        let (mut seen, mut cookie) = (Vec::new(), 0);
        loop {
            let page = user.page(dir, fh, cookie, 4096).unwrap();
            let Some((last, ..)) = page.last() else { break };
            cookie = *last;
            for (_, _, name) in page {
                let new = format!("round{round}of{}", name.rsplit("of").next().unwrap());
                user.rename((dir, &name), (dir, &new), 0).unwrap();
                if name.ends_with('7') {
                    user.file(dir, &name).unwrap();
                    user.unlink(dir, &name).unwrap();
                }
                seen.push(name);
            }
            assert!(seen.len() <= names.len(), "round {round}: there are no more names");
        }
        assert_eq!(seen.len(), names.len(), "round {round}");
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>().len(), names.len(), "each once");
    }
    crate::world::assert_clean(&volume);
}

/// Places of a listing stay good while names come and go, for as long as the directory lives.
#[test]
fn a_place_of_a_listing_is_good_for_ever() {
    let disk = Disk::new(4);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let dir = user.mkdir(Ino::ROOT, "d").unwrap().ino;
    for n in 0..500 {
        user.file(dir, &format!("n{n}")).unwrap();
    }
    let all = user.page(dir, Fh::NONE, 0, 1 << 20).unwrap();
    let (place, rest) = (all[200].0, &all[201..]);
    for n in 0..500 {
        user.file(dir, &format!("later{n}")).unwrap();
    }
    for (_, _, name) in &all[150..201] {
        user.unlink(dir, name).unwrap();
    }
    drop(volume);
    let volume = disk.open_settled();
    assert_eq!(User::root(&volume).page(dir, Fh::NONE, place, 1 << 20).unwrap(), rest);
}

/// Without a handle permission is asked for with each page.
#[test]
fn a_directory_is_listed_without_being_opened() {
    let disk = Disk::new(1);
    let volume = disk.open_settled();
    let root = User::root(&volume);
    let dir = root.mkdir_mode(Ino::ROOT, "d", 0o700).unwrap().ino;
    let file = root.file(dir, "f").unwrap().ino;
    assert_eq!(root.page(dir, Fh::NONE, 0, 4096).unwrap().len(), 1);
    assert_eq!(errno(root.page(file, Fh::NONE, 0, 4096)), Errno::ENOTDIR);
    assert_eq!(errno(root.page(Ino(99_999), Fh::NONE, 0, 4096)), Errno::ESTALE);
    let user = root.by(10, 10);
    assert_eq!(errno(user.page(dir, Fh::NONE, 0, 4096)), Errno::EACCES);
    root.chmod(dir, 0o755).unwrap();
    assert_eq!(user.page(dir, Fh::NONE, 0, 4096).unwrap().len(), 1);
}

#[test]
fn entries_come_with_attributes_and_fill_what_there_is_room_for() {
    let disk = Disk::new(1);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let dir = user.mkdir(Ino::ROOT, "d").unwrap().ino;
    for n in 0..1000 {
        user.file(dir, &format!("file number {n}")).unwrap();
    }
    let ino = dir;
    let fh = user.opendir(dir).unwrap();
    let request = |cookie, len| Request::Readdir { ino, fh, cookie, len, with_attributes: true };
    let (_, data) = user.ask(request(0, 1 << 20), &[]).unwrap();
    let entries: Vec<_> = Dirents::new(&data).map(|entry| entry.unwrap()).collect();
    assert_eq!(entries.len(), 1000);
    for entry in &entries {
        let attr = entry.attr.as_ref().unwrap();
        assert_eq!((attr.ino, attr.mode), (entry.ino, 0o100_666));
    }
    assert_eq!(errno(user.ask(request(0, 20), &[])), Errno::EINVAL);
    let (_, data) = user.ask(request(entries[998].cookie, 1 << 16), &[]).unwrap();
    assert_eq!(Dirents::new(&data).count(), 1);
    let (_, data) = user.ask(request(entries[999].cookie, 1 << 16), &[]).unwrap();
    assert!(data.is_empty());
}

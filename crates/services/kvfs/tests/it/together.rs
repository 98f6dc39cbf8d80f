//! Many requests at once: futures of several attachments polled in random order over an engine that
//! delays and reports conflicts, some dropped in the middle; and the same from threads. Nothing but
//! plain answers comes, and afterwards the volume is whole and nothing is left over.

use outboard_base::task::poll_once;
use std::pin::Pin;
use std::task::Poll;

use outboard_base::{Errno, Fh, Ino, Result, Rng, SessionId, Timestamp};
use outboard_kv::mem::Faults;
use outboard_sim::seeds;
use outboard_volume::{Answer, Caller, Payload};
use outboard_wire::file::{Header, Reply, Request, Setattr, open_flags};

use crate::world::{Disk, User, Volume, assert_clean, block_on, tidy};

const DIRS: u64 = 4;
const NAMES: u64 = 5;
const FILES: u64 = 60;

/// A request drawn at random; its names live as long as the program.
fn draw(rng: &mut Rng) -> (Request<'static>, Vec<u8>) {
    const NAME: [&[u8]; NAMES as usize] = [b"a", b"b", b"c", b"d", b"e"];
    let dir = |rng: &mut Rng| Ino(2 + rng.below(DIRS));
    let file = |rng: &mut Rng| Ino(2 + rng.below(FILES));
    let name = |rng: &mut Rng| NAME[rng.below(NAMES) as usize];
    let (parent, to_parent, ino) = (dir(rng), dir(rng), file(rng));
    let (first, second) = (name(rng), name(rng));
    let umask = 0;
    let flags = open_flags::RDWR | if rng.chance(1, 5) { open_flags::TRUNC } else { 0 };
    let fh = Fh::NONE;
    let request = match rng.below(16) {
        0 | 1 => Request::Create { parent, name: first, mode: 0o666, umask, flags },
        2 => Request::Mkdir { parent, name: first, mode: 0o777, umask },
        3 => Request::Symlink { parent, name: first },
        4 | 5 => Request::Unlink { parent, name: first },
        6 => Request::Rmdir { parent, name: first },
        7 | 8 => Request::Rename {
            parent,
            name: first,
            to_parent,
            to_name: second,
            flags: rng.below(3) as u32,
        },
        9 => Request::Link { ino, to_parent, to_name: first },
        10 => Request::Open { ino, flags },
        11 => Request::Tmpfile { parent, mode: 0o600, umask, flags },
        12 => Request::Lookup { parent, name: first },
        13 => {
            let size = [0, 100, 9000, 30_000][rng.below(4) as usize];
            Request::Setattr { ino, fh, set: Setattr { size: Some(size), ..Setattr::default() } }
        }
        14 => Request::Setxattr { ino, name: b"user.x", flags: 0 },
        _ => Request::Forget { ino },
    };
    let payload = if matches!(request, Request::Symlink { .. } | Request::Setxattr { .. }) {
        b"payload".to_vec()
    } else {
        Vec::new()
    };
    (request, payload)
}

/// Errnos that say something is wrong with the volume, not with the request.
fn is_fault(errno: Errno) -> bool {
    [Errno::EIO, Errno::EUCLEAN, Errno::EBUSY, Errno::EAGAIN, Errno::EPROTO].contains(&errno)
}

struct Slot<'v> {
    running: Option<Pin<Box<dyn Future<Output = Result<Answer>> + 'v>>>,
    what: String,
    caller: Caller,
    lane: u16,
}

impl<'v> Slot<'v> {
    /// Of one of two attachments.
    fn idle(lane: u16) -> Slot<'v> {
        let attachment = SessionId(1 + u64::from(lane % 2));
        let caller = Caller::root(attachment);
        Slot { running: None, what: String::new(), caller, lane }
    }

    fn start(&mut self, volume: &'v Volume, request: Request<'static>, payload: Vec<u8>, at: u64) {
        self.what = format!("{request:?}");
        let (session, lane) = (self.caller.attachment, self.lane);
        let header = Header { session, sequence: at, lane, ..Header::default() };
        let (caller, now) = (self.caller.clone(), Timestamp { sec: at as i64, nsec: 0 });
        self.running = Some(Box::pin(async move {
            volume.handle(&caller, &header, request, Payload::Bytes(payload), now).await
        }));
    }
}

impl Slot<'_> {
    /// Its answer, if it has come now.
    fn poll(&mut self) -> Option<Result<Answer>> {
        match self.running.as_mut().map(|running| poll_once(running.as_mut())) {
            Some(Poll::Ready(answer)) => {
                self.running = None;
                Some(answer)
            }
            _ => None,
        }
    }
}

/// What of an answer must be given back.
fn handle_in(reply: &Reply) -> Option<(Option<Ino>, Fh)> {
    match reply {
        Reply::Created(attr, fh) => Some((Some(attr.ino), *fh)),
        Reply::Opened(fh) => Some((None, *fh)),
        _ => None,
    }
}

fn furnish(volume: &Volume) {
    let user = User::attached(volume, 9);
    for dir in 0..DIRS {
        user.mkdir(Ino::ROOT, &format!("dir{dir}")).unwrap();
    }
    volume.detach(SessionId(9));
}

fn interleaved(seed: u64, drops: bool) {
    let mut rng = Rng::new(seed);
    let disk = Disk::new(seed);
    let volume = disk.open_settled();
    furnish(&volume);
    let faults = Faults { delay_polls: 3, commit_conflicts: 20, ..Faults::default() };
    disk.kv.set_faults(faults);
    let mut slots: Vec<Slot<'_>> = (0..6).map(Slot::idle).collect();
    let mut open: Vec<(SessionId, Ino, Fh)> = Vec::new();
    let mut started = 0;
    while started < 600 || slots.iter().any(|slot| slot.running.is_some()) {
        let at = rng.below(6) as usize;
        let slot = &mut slots[at];
        if slot.running.is_none() {
            if started < 600 {
                started += 1;
                let own = open.iter().position(|(owner, ..)| *owner == slot.caller.attachment);
                let (request, payload) = match own {
                    Some(own) if rng.chance(1, 4) => {
                        let (_, ino, fh) = open.swap_remove(own);
                        (Request::Release { ino, fh, owner: 0 }, Vec::new())
                    }
                    _ => draw(&mut rng),
                };
                slot.start(&volume, request, payload, started);
            }
            continue;
        }
        if drops && rng.chance(1, 60) {
            slot.running = None;
            continue;
        }
        let Some(answer) = slot.poll() else { continue };
        match answer {
            Ok(answer) => {
                if let Some((Some(ino), fh)) = handle_in(&answer.reply) {
                    open.push((slot.caller.attachment, ino, fh));
                }
            }
            Err(errno) => {
                assert!(!is_fault(errno), "seed {seed}: {} answered {errno}", slot.what);
            }
        }
    }
    drop(slots);
    disk.kv.set_faults(Faults::default());
    assert_clean(&volume);
    for attachment in [1, 2] {
        volume.detach(SessionId(attachment));
    }
    tidy(&volume);
    assert_clean(&volume);
    let report = block_on(volume.check(Default::default())).unwrap();
    assert_eq!((report.counts.orphans, report.counts.replay_records), (0, 0), "seed {seed}");
}

#[test]
fn in_any_order() {
    seeds::run(0..20, |seed| {
        interleaved(seed, false);
    });
}

/// An unlink in one directory had begun a file's end when a link in another gave it a second name;
/// a create of that name found the file dying, waited for the lock of its own directory, which
/// nobody held, a hundred times in one poll, and answered EBUSY. It waits for the fate of the file.
#[test]
fn a_create_waits_for_a_removal_that_is_called_off() {
    interleaved(216, false);
}

#[test]
fn and_some_given_up_in_the_middle() {
    seeds::run(1000..1020, |seed| {
        interleaved(seed, true);
    });
}

#[test]
fn from_threads() {
    let disk = Disk::new(3);
    let volume = disk.open_settled();
    furnish(&volume);
    std::thread::scope(|scope| {
        for thread in 1..=4u64 {
            let volume = &volume;
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                let user = User::attached(volume, thread);
                for _ in 0..3000 {
                    let (request, payload) = draw(&mut rng);
                    let what = format!("{request:?}");
                    match user.ask(request, &payload) {
                        Ok((Reply::Created(attr, fh), _)) => user.close(attr.ino, fh).unwrap(),
                        Ok(_) => {}
                        Err(errno) => assert!(!is_fault(errno), "{what} answered {errno}"),
                    }
                }
                volume.detach(SessionId(thread));
            });
        }
    });
    tidy(&volume);
    assert_clean(&volume);
    let report = block_on(volume.check(Default::default())).unwrap();
    assert_eq!(report.counts.orphans, 0);
}

/// A link came between the two rounds of a removal: the first had begun the file's end, the second
/// found another name and left the end begun, and nobody could open the file any more.
#[test]
fn a_link_saves_a_file_that_is_being_removed() {
    let disk = Disk::new(5);
    let volume = disk.open_settled();
    furnish(&volume);
    let user = User::attached(&volume, 1);
    let to_dir = user.lookup(Ino::ROOT, "dir0").unwrap().ino;
    disk.kv.set_faults(Faults { delay_polls: 3, ..Faults::default() });
    let mut saved = 0;
    for polls in 0..60 {
        let ino = user.file(Ino::ROOT, "file").unwrap().ino;
        let header = Header::default();
        let unlink = Request::Unlink { parent: Ino::ROOT, name: b"file" };
        let now = Timestamp { sec: 3_000_000, nsec: 0 };
        let mut removal =
            Box::pin(volume.handle(&user.caller, &header, unlink, Payload::None, now));
        let over = (0..polls).any(|_| poll_once(removal.as_mut()).is_ready());
        if over {
            break;
        }
        let linked = user.link(ino, to_dir, &format!("kept{polls}"));
        let removed = block_on(removal).unwrap().reply;
        if linked.is_ok() {
            saved += 1;
            assert_eq!(removed, Reply::Removed(None), "after {polls} polls");
            let opened = user.open(ino, open_flags::RDWR);
            assert!(opened.is_ok(), "after {polls} polls: {opened:?}");
        }
    }
    assert!(saved > 0);
}

/// A file made without a name was given one while its last handle closed: its end had begun, and
/// who created that name meanwhile asked a hundred times in one poll and heard EBUSY. When the end
/// was called off, that also undid the mark of a removal of the new name, and a file could be
/// opened that went with the next batch. The end of a file does not begin while somebody names it.
#[test]
fn a_nameless_file_is_named_while_its_last_handle_closes() {
    let disk = Disk::new(8);
    let volume = disk.open_settled();
    furnish(&volume);
    let [maker, namer] = [1, 2].map(|attachment| User::attached(&volume, attachment));
    let (mut named, mut opened) = (0, 0);
    for seed in 0..1500 {
        let mut rng = Rng::new(seed);
        let (attr, fh) = maker.tmpfile(Ino::ROOT, 0).unwrap();
        let ino = attr.ino;
        maker.forget(ino);
        disk.kv.set_faults(Faults { delay_polls: 3, ..Faults::default() });
        let [mut link, mut unlink, mut close, mut create] = [2, 2, 1, 1].map(|attachment| {
            let caller = Caller { attachment: SessionId(attachment), ..namer.caller.clone() };
            Slot { caller, ..Slot::idle(0) }
        });
        let name = b"named";
        link.start(&volume, Request::Link { ino, to_parent: Ino::ROOT, to_name: name }, vec![], 0);
        close.start(&volume, Request::Release { ino, fh, owner: 0 }, vec![], 0);
        let linked = loop {
            if rng.chance(1, 3) {
                drop(close.poll());
            } else if let Some(answer) = link.poll() {
                break answer;
            }
        };
        named += u64::from(linked.is_ok());
        let parent = Ino::ROOT;
        let flags = open_flags::RDWR;
        let make = Request::Create { parent, name, mode: 0o600, umask: 0, flags };
        create.start(&volume, make, vec![], 0);
        unlink.start(&volume, Request::Unlink { parent, name }, vec![], 0);
        let mut created = None;
        let mut slots = [close, create, unlink];
        while slots.iter().any(|slot| slot.running.is_some()) {
            let at = rng.below(3) as usize;
            match slots[at].poll() {
                Some(Err(errno)) => {
                    assert!(!is_fault(errno), "seed {seed}: {} {errno}", slots[at].what);
                }
                Some(Ok(Answer { reply: Reply::Created(attr, fh), .. })) => {
                    created = Some((attr.ino, fh));
                }
                _ => {}
            }
        }
        disk.kv.set_faults(Faults::default());
        let (made, fh) = created.unwrap();
        opened += u64::from(made == ino);
        maker.stat(made).unwrap_or_else(|errno| panic!("seed {seed}: open, and {errno}"));
        maker.close(made, fh).unwrap();
        let _gone_already = namer.unlink(Ino::ROOT, "named");
        for user in [&maker, &namer] {
            [ino, made].into_iter().for_each(|ino| user.forget(ino));
        }
    }
    assert!(named > 100 && opened > 10, "{named} named, {opened} opened");
    tidy(&volume);
    assert_clean(&volume);
    assert_eq!(block_on(volume.check(Default::default())).unwrap().counts.orphans, 0);
}

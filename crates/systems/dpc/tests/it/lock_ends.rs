//! Who drops locks and is interrupted meanwhile: a killed process is interrupted in every close it
//! makes at its end, and nobody closes for it again.

use std::sync::Arc;

use outboard_base::{Cred, Errno, Fh, Ino, Result};
use outboard_kv::mem::MemKv;
use outboard_medium::mem::MemMedium;
use outboard_sim::loopback::Loopback;
use outboard_wire::file::{Lock, LockKind, LockStyle, Reply, Request, open_flags};

use crate::delegation::ask;
use crate::simulation::{Files, finish, open};

const DYING: u64 = 1;
const OTHER: u64 = 2;

struct World {
    link: Loopback<Files>,
    stores: (Arc<MemKv>, Arc<MemMedium>),
    file: (Ino, Fh),
}

fn lock(owner: u64, at: u64, kind: LockKind) -> Lock {
    Lock { owner, start: at, end: at, kind, style: LockStyle::Posix, pid: 7 }
}

fn set(file: (Ino, Fh), lock: Lock) -> Request<'static> {
    Request::Setlk { ino: file.0, fh: file.1, lock, wait: false, reclaim: false }
}

impl World {
    /// A file another attachment has a lock on, too: so the table decides. [`DYING`] locks byte 0.
    fn new(seed: u64) -> World {
        let stores = (Arc::new(MemKv::new(seed)), Arc::new(MemMedium::new(seed)));
        let volume = open(&stores.0, &stores.1);
        finish(volume.end_grace()).unwrap();
        let mut link = Loopback::new(Arc::clone(&volume), 2, 8, seed).unwrap();
        let (name, flags) = (b"locked", open_flags::RDWR);
        let create = Request::Create { parent: Ino::ROOT, name, mode: 0o600, umask: 0, flags };
        let file = match link.call(&Cred::root(), &create, &[]) {
            Ok((Reply::Created(attr, fh), _)) => (attr.ino, fh),
            other => panic!("{other:?}"),
        };
        let fh = match finish(ask(&volume, Request::Open { ino: file.0, flags })) {
            Ok(Reply::Opened(fh)) => fh,
            other => panic!("{other:?}"),
        };
        let stranger = set((file.0, fh), lock(9, 5, LockKind::Write));
        assert_eq!(finish(ask(&volume, stranger)), Ok(Reply::Empty));
        let mut world = World { link, stores, file };
        assert_eq!(world.call(&set(file, lock(DYING, 0, LockKind::Write))), Ok(Reply::Empty));
        world
    }

    fn call(&mut self, request: &Request<'_>) -> Result<Reply> {
        self.link.call(&Cred::root(), request, &[]).map(|(reply, _)| reply)
    }

    /// [`OTHER`] asks for a lock, and [`DYING`] closes behind it and is interrupted in that.
    fn close_behind_another(&mut self) {
        let another = set(self.file, lock(OTHER, 3, LockKind::Write));
        let (ino, fh) = self.file;
        while !self.link.start(&Cred::root(), &another, &[], OTHER) {}
        let close = Request::Flush { ino, fh, owner: DYING };
        while !self.link.start(&Cred::root(), &close, &[], DYING) {}
        self.link.session().abort(DYING);
    }

    /// What the close was answered, once both are.
    fn answered(&mut self) -> Result<Reply> {
        let (mut close, mut other) = (None, None);
        while close.is_none() || other.is_none() {
            for (tag, outcome, _) in self.link.take_answered() {
                let answer = if tag == DYING { &mut close } else { &mut other };
                assert_eq!(answer.replace(outcome), None, "answered twice");
            }
            self.link.step();
        }
        assert_eq!(other, Some(Ok(Reply::Empty)));
        close.unwrap()
    }

    /// Nobody else has byte 0 now.
    fn assert_dropped(&mut self) {
        let wanted = set(self.file, lock(OTHER, 0, LockKind::Write));
        assert_eq!(self.call(&wanted), Ok(Reply::Empty), "the dead still hold it");
    }
}

/// A close that waited for another request was answered `EINTR` and forgotten, and the locks
/// of the dead process stayed until the last handle on the file was closed.
#[test]
fn the_locks_of_a_killed_process_go_though_its_close_had_to_wait() {
    for seed in 0..100 {
        let mut world = World::new(seed);
        world.close_behind_another();
        assert_eq!(world.answered(), Ok(Reply::Empty), "seed {seed}");
        world.assert_dropped();
    }
}

/// The same while the DPU side is away: what was closed was handed in to its next life.
#[test]
fn the_locks_of_a_process_killed_during_a_loss_are_not_handed_in() {
    for seed in 0..50 {
        let mut world = World::new(seed);
        world.link.crash();
        world.close_behind_another();
        let volume = open(&world.stores.0, &world.stores.1);
        world.link.restart(Arc::clone(&volume)).unwrap().unwrap();
        finish(volume.end_grace()).unwrap();
        assert_eq!(world.answered(), Err(Errno::EINTR), "seed {seed}");
        world.assert_dropped();
    }
}

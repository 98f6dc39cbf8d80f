//! A DPU side that comes back and is gone again while files are handed in.
//!
//! One answered a reclaim and died before its host looked again. The host knew that it was lost,
//! and the next reclaim waited for somebody to say so: nobody did, and the process hung for good.
//! Found by `coherence --seed=902`.

use std::cell::Cell;
use std::sync::Arc;

use outboard_base::{Cred, Ino};
use outboard_kv::mem::MemKv;
use outboard_medium::mem::MemMedium;
use outboard_sim::loopback::Loopback;
use outboard_wire::event::Event;
use outboard_wire::file::{Reply, Request, open_flags};

use crate::simulation::open;

#[test]
fn who_dies_between_two_reclaims_is_not_waited_for() {
    const FILES: usize = 3;
    let (kv, medium) = (Arc::new(MemKv::new(1)), Arc::new(MemMedium::new(1)));
    let mut link = Loopback::new(open(&kv, &medium), 2, 8, 1).unwrap();
    for number in 0..FILES {
        let name = format!("f{number}");
        let request = Request::Create {
            parent: Ino::ROOT,
            name: name.as_bytes(),
            mode: 0o600,
            umask: 0,
            flags: open_flags::RDWR,
        };
        let (reply, _) = link.call(&Cred::root(), &request, &[]).unwrap();
        assert!(matches!(reply, Reply::Created(..)), "{reply:?}");
    }
    // It is seen alive so many times, and answers whatever reaches it.
    for seen in 0..FILES {
        link.crash();
        let left = Cell::new(seen);
        let alive = || left.replace(left.get().saturating_sub(1)) > 0;
        let resumed = link.restart_while(open(&kv, &medium), &alive).unwrap();
        assert!(resumed.is_err(), "gone after {seen} looks");
    }
    link.crash();
    let resumed = link.restart(open(&kv, &medium)).unwrap().unwrap();
    assert_eq!((resumed.handles, resumed.refused), (FILES, Vec::new()));
}

/// What a new life of the DPU side has told nobody it announces to nobody: a mount that keeps
/// names, attributes and pages without a limit read what had been changed by another, for good.
#[test]
fn who_comes_back_hears_that_what_it_keeps_may_be_stale() {
    let (kv, medium) = (Arc::new(MemKv::new(1)), Arc::new(MemMedium::new(1)));
    let mut link = Loopback::new(open(&kv, &medium), 2, 8, 1).unwrap();
    for _ in 0..3 {
        link.crash();
        assert_eq!(link.take_events(), []);
        link.restart(open(&kv, &medium)).unwrap().unwrap();
        assert_eq!(link.take_events(), [Event::Overflow]);
    }
}

//! Locks between hosts, over losses of the DPU side.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use outboard_base::{Cred, Errno, Fh, Ino};
use outboard_dpc::host::{Call, LossPolicy, QueuePort};
use outboard_wire::file::{Lock, LockKind, Reply, Request};

use crate::rig::{Volume, call, connect, create, exclusive, later, set_lock, wait_until};

fn start_lock(port: &mut QueuePort, file: (Ino, Fh), owner: u64, tag: u64) {
    let slot = port.acquire_by(later()).unwrap();
    let (cred, request) = (Cred::root(), exclusive(file, owner, true));
    let call = Call { request: &request, cred: &cred, checked: true, payload_len: 0 };
    let started = port.start(slot, &call, tag);
    assert!(matches!(started, Poll::Pending), "{started:?}");
}

/// Waits for locks hold no slot, survive the DPU side, and end once each: granted, or given up.
#[test]
fn waits_for_locks_survive_a_loss_and_can_be_given_up() {
    let mut volume = Volume::new();
    let (host, front) = connect(&volume, LossPolicy::Wait);
    let (holder, _) = connect(&volume, LossPolicy::Wait);
    let mut holding = holder.session().calling_port(0).unwrap();
    let file = create(&mut holding, "file", 0);
    assert_eq!(call(&mut holding, &exclusive(file, 1, false), &[]), Ok(Reply::Empty));

    let mut port = host.session().port(0).unwrap();
    let mut other = host.session().calling_port(1).unwrap();
    let mine = create(&mut other, "file", 0);
    let slots = u64::from(host.session().settings().depth) - 1;
    // More waits than there are slots.
    for owner in 0..slots + 5 {
        start_lock(&mut port, mine, 100 + owner, owner);
    }
    assert!(host.session().abort(3));
    assert_eq!(front.wait_for(3), Err(Errno::EINTR));
    assert!(!host.session().abort(3), "it has ended");

    volume.kill();
    // Given up while there is nobody to ask.
    wait_until("the loss is noticed", || host.session().counts().losses == 1);
    assert!(host.session().abort(4));
    assert_eq!(front.wait_for(4), Err(Errno::EINTR));
    volume.start();
    wait_until("both are back", || {
        let status = || volume.status();
        host.session().counts().replayed + 1 > 0
            && call(&mut other, &Request::Noop, &[]).is_ok()
            && status()["grace"] == false
    });
    assert_eq!(
        call(&mut holding, &Request::Flush { ino: file.0, fh: file.1, owner: 1 }, &[]),
        Ok(Reply::Empty)
    );
    // One after the other gets it.
    for _ in 0..slots + 3 {
        let mut granted = None;
        wait_until("somebody is granted the lock", || {
            granted = front.0.lock().unwrap().pop();
            granted.is_some()
        });
        let (tag, outcome) = granted.unwrap();
        assert_eq!(outcome, Ok(Reply::Empty), "{tag}");
        let unlock = Request::Flush { ino: mine.0, fh: mine.1, owner: 100 + tag };
        assert_eq!(call(&mut other, &unlock, &[]), Ok(Reply::Empty));
    }
    std::thread::sleep(Duration::from_millis(20));
    assert!(front.0.lock().unwrap().is_empty(), "each wait ends once");
}

/// Two hosts lock one file, each deciding by itself while the other has no interest in it, and the
/// DPU side is killed meanwhile. Never do both hold the lock.
#[test]
fn a_lock_goes_from_host_to_host() {
    const ROUNDS: u64 = 600;
    let mut volume = Volume::new();
    let (holder, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let hosts = [1, 2].map(|me| (me, connect(&volume, LossPolicy::Wait)));
    std::thread::scope(|scope| {
        for (me, (host, front)) in &hosts {
            let (holder, done) = (&holder, &done);
            scope.spawn(move || {
                let mut port = host.session().port(0).unwrap();
                let mut other = host.session().calling_port(1).unwrap();
                let file = create(&mut other, "file", 0);
                for round in 0..ROUNDS {
                    let wait = (round + me) % 3 == 0;
                    let lock = exclusive(file, 7, wait);
                    match set_lock((&mut port, front), &lock, 2 * round) {
                        Ok(Reply::Empty) => {
                            assert_eq!(holder.swap(*me, Ordering::SeqCst), 0, "the other holds it");
                            std::thread::yield_now();
                            assert_eq!(holder.swap(0, Ordering::SeqCst), *me);
                            let Request::Setlk { ino, fh, lock, .. } = lock else { panic!() };
                            let lock = Lock { kind: LockKind::Unlock, ..lock };
                            let wait = false;
                            let unlock = Request::Setlk { ino, fh, lock, wait, reclaim: false };
                            let outcome = set_lock((&mut port, front), &unlock, 2 * round + 1);
                            assert_eq!(outcome, Ok(Reply::Empty));
                        }
                        outcome => assert_eq!(outcome, Err(Errno::EAGAIN), "wait: {wait}"),
                    }
                    // Each has the file to itself for a while.
                    if (round + me * 50) % 100 == 0 {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(300));
            volume.kill();
            volume.start();
        }
        wait_until("both have had their locks", || done.load(Ordering::SeqCst) == 2);
    });
    let decided: u64 = hosts.iter().map(|(_, (host, _))| host.session().counts().decided).sum();
    assert!(decided > 0, "no lock was decided by a host");
}

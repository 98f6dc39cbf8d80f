//! Clients whose nodes are elsewhere, or do not answer.

use std::time::Duration;

use outboard_base::{Errno, Fh, Ino};
use outboard_volume::Housekeeping;
use outboard_wire::file::Request;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Reply};

use crate::host::Host;
use crate::world::{Rig, SERVER, server, start};

const STRIP: usize = 65536;

async fn file(host: &Host, name: &[u8]) -> (Ino, Fh) {
    let (attr, fh) = host.open(name, 0).await.unwrap();
    (attr.ino, fh)
}

/// A client used the addresses that its capabilities came with until these ended: for five minutes
/// after a node had moved, who read or wrote waited. It asks again as soon as a node does not
/// answer; a file whose grant is from before leads nobody back.
#[test]
fn a_node_that_moved_is_found_at_once() {
    let mut rig = Rig::new(11);
    let one = Host::new(&mut rig, 1);
    let host = one.clone();
    let (f, g) = rig.wait(one.peer(), async move {
        let (f, g) = (file(&host, b"f").await, file(&host, b"g").await);
        host.write(f, 0, 0, vec![1; 3 * STRIP]).await.unwrap();
        host.write(g, 0, 0, vec![2; 3 * STRIP]).await.unwrap();
        (f, g)
    });
    (0..3).for_each(|node| rig.moves(node));
    let (host, begun) = (one.clone(), rig.world.time());
    rig.wait(one.peer(), async move {
        host.write(f, 0, 0, vec![3; 3 * STRIP]).await.unwrap();
        let (ino, fh) = f;
        host.plain(Request::Fsync { ino, fh, data_only: false }).await.unwrap();
        assert_eq!(host.read(g, 0, 3 * STRIP as u32).await.unwrap(), vec![2; 3 * STRIP]);
        assert_eq!(host.read(f, 0, 3 * STRIP as u32).await.unwrap(), vec![3; 3 * STRIP]);
    });
    let took = rig.world.time().since(begun);
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// Who waited for a node that was away went on waiting when the client's key was revoked, and the
/// end of the client waited for them, then for the nodes and for the server: over 20 s.
#[test]
fn who_is_revoked_waits_for_nobody() {
    let mut rig = Rig::new(12);
    let (now, wall) = (rig.world.time(), rig.world.wall());
    let manage = |call| async move { server().call(Peer::Client(3), call, now, wall).await };
    let added = rig.wait(SERVER, manage(Call::AddKey { name: "guest".into() }));
    let Reply::Number(number) = added else { panic!("{added:?}") };
    let one = Host::new(&mut rig, number << 32 | 1);
    let host = one.clone();
    let f = rig.wait(one.peer(), async move {
        let f = file(&host, b"f").await;
        host.write(f, 0, 0, vec![1; 3 * STRIP]).await.unwrap();
        f
    });
    (0..3).for_each(|node| rig.cut(Peer::Node(node), true));
    let host = one.clone();
    let written = start(one.peer(), async move { host.write(f, 0, 0, vec![3; STRIP]).await });
    let host = one.clone();
    let synced = start(one.peer(), async move { host.plain(Request::Syncfs).await.map(drop) });
    rig.pass(Duration::from_secs(1));
    let revoked = start(SERVER, manage(Call::RevokeKey { name: "guest".into() }));
    rig.pass(Duration::from_secs(3));
    rig.cut(SERVER, true);
    assert!(revoked.lock().unwrap().is_some(), "nodes that are away are not waited for");
    assert_eq!(*written.lock().unwrap(), Some(Err(Errno::EACCES)));
    assert!(synced.lock().unwrap().is_some_and(|synced| synced.is_err()));
    let begun = rig.world.time();
    let client = one.client.clone();
    assert_eq!(rig.wait(one.peer(), async move { client.sync().await }), Ok(()));
    let took = rig.world.time().since(begun);
    assert!(took < Duration::from_secs(1), "{took:?}");
}

/// What nobody used any more was given back one file after the other, 64 a second, and all that was
/// left at the end: a mount that had been through many files took 5 s to end, as it does if its
/// server is away.
#[test]
fn what_nobody_uses_holds_no_end_up() {
    const FILES: usize = 600;
    let mut rig = Rig::new(13);
    let one = Host::new(&mut rig, 1);
    let uses = |host: Host| async move {
        for number in 0..FILES {
            let f = file(&host, format!("f{number}").as_bytes()).await;
            host.read(f, 0, 10).await.unwrap();
        }
    };
    let held = |host: &Host| {
        let all = host.client.figures();
        all.iter().find(|(name, _)| *name == "delegations_to_read").unwrap().1
    };
    rig.wait(one.peer(), uses(one.clone()));
    assert_eq!(held(&one), FILES as u64);
    rig.pass(Duration::from_secs(33));
    assert_eq!(held(&one), 0);
    rig.wait(one.peer(), uses(one.clone()));
    rig.cut(SERVER, true);
    let (begun, client) = (rig.world.time(), one.client.clone());
    assert_eq!(rig.wait(one.peer(), async move { client.sync().await }), Ok(()));
    let took = rig.world.time().since(begun);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// The server closed a file and its answer was lost: asked again, as something new, it knew no such
/// handle, and so the program heard. What it says once, as that something may be lost, went the
/// same way: nobody heard it.
#[test]
fn what_was_answered_and_lost_is_asked_for_as_a_replay() {
    let mut rig = Rig::new(13);
    let one = Host::new(&mut rig, 1);
    rig.faults(300, 0);
    let host = one.clone();
    rig.wait(one.peer(), async move {
        for _ in 0..40 {
            let (ino, fh) = file(&host, b"f").await;
            let release = Request::Release { ino, fh, owner: 0 };
            assert_eq!(host.plain(release).await.map(drop), Ok(()));
        }
    });
}

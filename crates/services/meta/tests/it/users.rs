//! Keys of clients, given and revoked; keys of capabilities, rotated; nodes that move.

use std::time::Duration;

use outboard_base::Errno;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Mode, Reply, Told};

use crate::world::{Rig, granted};

const SECOND: Duration = Duration::from_secs(1);
/// Who has the cluster's own key.
const MANAGER: u64 = 3;

fn number(reply: Reply) -> u64 {
    let Reply::Number(number) = reply else { panic!("{reply:?}") };
    number
}

fn text(reply: Reply) -> String {
    let Reply::Text(text) = reply else { panic!("{reply:?}") };
    text
}

fn add(rig: &Rig, name: &str) -> u64 {
    number(rig.call(MANAGER, Call::AddKey { name: name.into() }))
}

fn revoke(rig: &Rig, name: &str) -> Reply {
    rig.call(MANAGER, Call::RevokeKey { name: name.into() })
}

#[test]
fn keys_are_given_listed_and_revoked_for_good() {
    let rig = Rig::new(1);
    let one = add(&rig, "one");
    assert_eq!(add(&rig, "one"), one, "a name has one");
    assert_ne!(add(&rig, "two"), one);
    assert_eq!(revoke(&rig, "three"), Reply::Failed(Errno::ENOENT));
    let name = String::from("a/b");
    assert_eq!(rig.call(MANAGER, Call::AddKey { name }), Reply::Failed(Errno::EINVAL));
    assert!(text(revoke(&rig, "one")).contains("\"nodes_told\":3"));
    assert_eq!(revoke(&rig, "one"), Reply::Failed(Errno::ENOENT), "it has none");
    rig.restart(true);
    let again = add(&rig, "one");
    assert_ne!(again, one, "the key that was revoked stays so");
    let list = text(rig.call(MANAGER, Call::ListKeys));
    for (client, revoked) in [(one, false), (again, true)] {
        let of = list.split('{').find(|of| of.contains(&format!("{client:06x}"))).unwrap();
        assert_eq!(of.contains("\"revoked_ms\":0"), revoked, "{list}");
        assert!(of.contains("\"name\":\"one\""), "{list}");
    }
    let refused = rig.call(one << 32 | 5, Call::Renew);
    assert_eq!(refused, Reply::Failed(Errno::EACCES), "after a restart, too");
}

/// What a client has ends with its key: at once at the server and at the nodes, and who waits for
/// its file gets it with what was written before.
#[test]
fn who_is_revoked_is_out_at_once_and_its_files_are_sealed() {
    let rig = Rig::new(2);
    let client = add(&rig, "host") << 32 | 7;
    [1, client].into_iter().for_each(|client| rig.renew(client));
    let ino = rig.create(1, 11, b"file");
    let writer = rig.grant(client, ino, Mode::Write);
    assert!(rig.world.write(&writer.capability, &writer.nodes, 100));
    let waits = rig.ask(1, Call::Delegate { ino, mode: Mode::Write });
    assert!(rig.at_once(&waits).is_none());
    revoke(&rig, "host");
    assert!(!rig.world.write(&writer.capability, &writer.nodes, 200), "nodes take nothing more");
    let fence = writer.capability.fence;
    for call in [
        Call::Renew,
        Call::Begin { nonce: 5 },
        Call::Delegate { ino, mode: Mode::Read },
        Call::Publish { ino, fence, told: Told { size: 200, mtime: None, blocks: None } },
    ] {
        assert_eq!(rig.call(client, call), Reply::Failed(Errno::EACCES));
    }
    rig.pass(SECOND * 2);
    let grant = granted(rig.at_once(&waits).unwrap());
    assert_eq!(grant.attr.size, 100, "what was acknowledged before is there");
    assert!(grant.capability.fence > fence);
    assert!(rig.world.end(ino.0) == 100);
}

/// A node that was away while a key was revoked hears of it with the next keys.
#[test]
fn a_node_that_was_away_is_told_later() {
    let rig = Rig::new(3);
    let client = add(&rig, "host");
    rig.renew(1);
    rig.world.state().nodes.get_mut(&1).unwrap().away = true;
    assert!(text(revoke(&rig, "host")).contains("\"nodes_told\":2"));
    rig.world.state().nodes.get_mut(&1).unwrap().away = false;
    rig.pass(SECOND * 12);
    let state = rig.world.state();
    let known = state.nodes.values().map(|node| node.revoked.clone());
    assert!(known.into_iter().all(|all| all.iter().any(|one| u64::from(one.client) == client)));
}

#[test]
fn keys_are_rotated_and_what_was_granted_goes_on() {
    let rig = Rig::new(4);
    rig.renew(1);
    let ino = rig.create(1, 11, b"file");
    let before = rig.grant(1, ino, Mode::Write);
    assert!(text(rig.call(MANAGER, Call::RotateKey)).contains("\"rotation\":1"));
    assert!(rig.world.write(&before.capability, &before.nodes, 1));
    let after = rig.grant(1, ino, Mode::Write);
    assert_ne!(after.capability.key, before.capability.key);
    assert!(rig.world.write(&after.capability, &after.nodes, 2));
    rig.restart(true);
    rig.pass(SECOND * 13);
    rig.renew(1);
    let later = rig.grant(1, ino, Mode::Write);
    assert_eq!(later.capability.key, after.capability.key, "a restart rotates nothing");
    assert!(rig.world.write(&later.capability, &later.nodes, 3));
}

/// Only the cluster's own key manages it: a client's does not.
#[test]
fn a_client_manages_nothing() {
    let rig = Rig::new(5);
    let client = add(&rig, "host") << 32 | 7;
    for call in [
        Call::AddKey { name: "other".into() },
        Call::ListKeys,
        Call::RevokeKey { name: "host".into() },
        Call::RotateKey,
    ] {
        assert_eq!(rig.call(client, call), Reply::Failed(Errno::EPERM));
    }
}

/// Who asks after a node has moved is told where it is; a number that is none of the volume's is
/// given nothing.
#[test]
fn a_node_that_moved_is_found_where_it_is() {
    let rig = Rig::new(6);
    rig.renew(1);
    let ino = rig.create(1, 11, b"file");
    let there = "127.0.0.9:77".parse().unwrap();
    rig.server().nodes_are(Some(&[(0, there), (1, there), (2, there), (9, there)]));
    let grant = rig.grant(1, ino, Mode::Read);
    assert!(grant.nodes.iter().all(|node| (node.address, node.port) == ([127, 0, 0, 9], 77)));
    assert!(!rig.world.state().known.contains(&Peer::Node(9)));
    let status = |rig: &Rig| text(rig.call(1, Call::Status));
    assert!(status(&rig).contains("\"registered\":4"));
    rig.server().nodes_are(None);
    assert!(status(&rig).contains("\"registered\":null"));
    assert_eq!(rig.grant(1, ino, Mode::Read).nodes, grant.nodes, "it is not forgotten");
}

//! What the server does with nodes beside delegations: purges, and the check.

use std::time::Duration;

use outboard_base::{Errno, Ino, Timestamp};
use outboard_wire::file::Request;
use outboard_wire::shared::call::{Call, Mode, Object, Reply, Told};

use crate::world::{NODES, Rig, answer};

const SECOND: Duration = Duration::from_secs(1);
/// What the keys of inodes begin with.
const INODE: u8 = 0x10;

/// A file of 500 bytes, released, and its client.
fn rig() -> (Rig, Ino) {
    let rig = Rig::new(3);
    rig.renew(1);
    let ino = rig.create(1, 11, b"file");
    let grant = rig.grant(1, ino, Mode::Write);
    assert!(rig.world.write(&grant.capability, &grant.nodes, 499));
    assert!(rig.world.write(&grant.capability, &grant.nodes, 500));
    let told = Some(Told { size: 500, mtime: Some(Timestamp::default()), blocks: None });
    let fence = grant.capability.fence;
    assert_eq!(rig.call(1, Call::Release { ino, fence, told, keep: None }), Reply::Done);
    (rig, ino)
}

fn unlink(rig: &Rig) {
    rig.does(1, 11, &Request::Unlink { parent: Ino::ROOT, name: b"file" });
    rig.call(1, Call::Detach { session: outboard_base::SessionId(11) });
}

fn away(rig: &Rig, node: u16, away: bool) {
    rig.world.state().nodes.get_mut(&node).unwrap().away = away;
}

fn holders(rig: &Rig, ino: Ino) -> usize {
    rig.world.state().nodes.values().filter(|node| node.objects.contains_key(&ino.0)).count()
}

fn check(rig: &Rig, contents: bool) -> String {
    match rig.call(1, Call::Check { contents }) {
        Reply::Text(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn objects_of_files_that_are_gone_are_purged_also_after_a_restart() {
    let (rig, ino) = rig();
    rig.pass(SECOND * 3);
    assert_eq!(holders(&rig, ino), 2);
    (0..NODES).for_each(|node| away(&rig, node, true));
    unlink(&rig);
    rig.pass(SECOND * 15);
    assert_eq!(holders(&rig, ino), 2, "nobody can be reached");
    rig.restart(false);
    (1..NODES).for_each(|node| away(&rig, node, false));
    rig.pass(SECOND * 20);
    assert!(rig.server().status().contains("\"purges\":1"), "one node is away");
    away(&rig, 0, false);
    rig.pass(SECOND * 5);
    assert_eq!(holders(&rig, ino), 0);
    assert!(rig.server().status().contains("\"purges\":0"));
}

#[test]
fn who_may_still_write_is_asked_before_an_object_goes() {
    let (rig, ino) = rig();
    let grant = rig.grant(1, ino, Mode::Write);
    unlink(&rig);
    rig.renew(1);
    rig.pass(SECOND * 3);
    assert_eq!(holders(&rig, ino), 2);
    let asked = rig.asked(1).unwrap();
    assert_eq!(asked.call, Call::Recall { ino, keep: None });
    assert!(rig.world.write(&grant.capability, &grant.nodes, 600), "what it had not written");
    answer(&asked, Reply::Done);
    rig.pass(SECOND);
    assert_eq!(holders(&rig, ino), 0);
}

#[test]
fn a_check_finds_nothing_where_nothing_is_wrong() {
    let (rig, ino) = rig();
    let clean = check(&rig, true);
    assert!(clean.starts_with("{\"findings\":[],"), "{clean}");
    assert!(clean.contains("\"node_objects\":2"), "{clean}");
    // What is being written is longer than its attributes say.
    let grant = rig.grant(1, ino, Mode::Write);
    assert!(rig.world.write(&grant.capability, &grant.nodes, 900));
    let clean = check(&rig, false);
    assert!(clean.starts_with("{\"findings\":[],"), "{clean}");
    // And what is still to be purged belongs to nobody.
    let fence = grant.capability.fence;
    let told = Some(Told { size: 900, mtime: None, blocks: None });
    rig.call(1, Call::Release { ino, fence, told, keep: None });
    away(&rig, 0, true);
    unlink(&rig);
    rig.pass(SECOND * 10);
    away(&rig, 0, false);
    rig.renew(1);
    let clean = check(&rig, false);
    assert!(clean.starts_with("{\"findings\":[],"), "{clean}");
}

#[test]
fn a_check_finds_what_is_wrong_at_nodes() {
    let (rig, ino) = rig();
    {
        let mut state = rig.world.state();
        let strange = Object { object: 77, end: 3, fence: 0, bytes: 4096 };
        let of_root = Object { object: 0, ..strange };
        let holder = state.nodes.values().position(|node| node.objects.contains_key(&ino.0));
        let other = state.nodes.values().position(|node| !node.objects.contains_key(&ino.0));
        let holder = state.nodes.get_mut(&u16::try_from(holder.unwrap()).unwrap()).unwrap();
        holder.damaged.insert(ino.0, 2);
        holder.objects.get_mut(&ino.0).unwrap().end = 5000;
        holder.objects.insert(77, strange);
        holder.objects.insert(0, of_root);
        let other = state.nodes.get_mut(&u16::try_from(other.unwrap()).unwrap()).unwrap();
        other.objects.insert(ino.0, Object { object: ino.0, end: 1, fence: 0, bytes: 1 });
    }
    let found = check(&rig, true);
    for fault in [
        "object 77: belongs to no file",
        "object 0: belongs to no file",
        "does not lie here",
        "ends at 5000, behind its file's end, 500",
        "2 grains fail their checksums",
    ] {
        assert!(found.contains(fault), "{fault}: {found}");
    }
    assert!(found.contains("\"total\":5,"), "{found}");
    away(&rig, 1, true);
    let found = check(&rig, false);
    assert!(found.contains("node 1: ") && found.contains("\"nodes_away\":1"), "{found}");
}

/// What a node has of a file is gone, in part or whole, and nothing that is left says so: a check
/// that only looks at what nodes have found such a volume clean.
#[test]
fn a_check_finds_what_is_missing_at_nodes() {
    const STRIP: u64 = 64 << 10;
    let (rig, ino) = rig();
    let _empty = rig.create(1, 11, b"empty");
    let tell = |size, bytes: u64| {
        let grant = rig.grant(1, ino, Mode::Write);
        assert!([498, 499].iter().all(|end| {
            // Each of two nodes has heard of it.
            rig.world.write(&grant.capability, &grant.nodes, *end)
        }));
        let told = Some(Told { size, mtime: None, blocks: Some(bytes / 512) });
        let fence = grant.capability.fence;
        assert_eq!(rig.call(1, Call::Release { ino, fence, told, keep: None }), Reply::Done);
        grant.nodes.iter().map(|node| node.node).collect::<Vec<_>>()
    };
    let is_clean = || check(&rig, false).starts_with("{\"findings\":[],");
    let nodes = tell(STRIP, STRIP);
    assert!(is_clean());
    let lose = |node: u16| {
        rig.world.state().nodes.get_mut(&node).unwrap().objects.remove(&ino.0);
    };
    // It has no strip of the file.
    lose(nodes[1]);
    assert!(is_clean());
    tell(2 * STRIP, 2 * STRIP);
    assert!(is_clean());
    lose(nodes[1]);
    let found = check(&rig, false);
    let says = format!("file {}: node {} does not know it, and has strips", ino.0, nodes[1]);
    assert!(found.contains(&says) && found.contains("\"total\":1,"), "{found}");
    // Of a node that does not answer nobody knows.
    away(&rig, nodes[1], true);
    let found = check(&rig, false);
    assert!(found.contains("\"nodes_away\":1") && !found.contains("does not know"), "{found}");
    away(&rig, nodes[1], false);
    // With holes it may have no strip there.
    tell(2 * STRIP, STRIP);
    lose(nodes[1]);
    assert!(is_clean());
    (0..NODES).for_each(lose);
    let found = check(&rig, false);
    assert!(found.contains("none of its nodes knows it, of which it takes 65536 bytes"), "{found}");
    // What is being written may not have come yet.
    let _grant = rig.grant(1, ino, Mode::Write);
    assert!(is_clean());
}

/// An inode that cannot be read, of which the volume's own check tells, ended the whole check.
#[test]
fn a_check_goes_on_behind_an_inode_that_is_damaged() {
    let (rig, ino) = rig();
    let damaged = rig.create(1, 11, b"damaged");
    let behind = rig.create(1, 11, b"behind");
    for ino in [ino, behind] {
        let grant = rig.grant(1, ino, Mode::Write);
        let (fence, told) =
            (grant.capability.fence, Some(Told { size: 500, mtime: None, blocks: Some(16) }));
        assert!(rig.world.write(&grant.capability, &grant.nodes, 500));
        assert_eq!(rig.call(1, Call::Release { ino, fence, told, keep: None }), Reply::Done);
    }
    rig.restart(false);
    rig.renew(1);
    rig.world.state().nodes.values_mut().for_each(|node| node.objects.clear());
    rig.disk.kv.corrupt(&[&[INODE][..], &damaged.0.to_be_bytes()].concat());
    let found = check(&rig, false);
    for ino in [ino, behind] {
        assert!(found.contains(&format!("file {ino}: none of its nodes knows it")), "{found}");
    }
}

#[test]
fn a_lease_says_what_nodes_can_take() {
    let (rig, _) = rig();
    rig.pass(SECOND);
    let renewed = rig.call(1, Call::Renew);
    assert!(matches!(renewed, Reply::Lease { free: 300, capacity: 600, .. }), "{renewed:?}");
}

fn place(rig: &Rig, leaves: &[u16]) -> Reply {
    rig.call(1, Call::Place { joins: Vec::new(), leaves: leaves.to_vec(), rate: 0 })
}

fn says(reply: &Reply, what: &str) -> bool {
    matches!(reply, Reply::Text(said) if said.contains(what))
}

/// What would leave files on fewer nodes is refused in words, before anything; who asks twice hears
/// the same; which nodes there are outlives the server; and only who manages the cluster may ask.
#[test]
fn which_nodes_there_are_is_changed_once_and_for_good() {
    let (rig, ino) = rig();
    let node = (0..NODES).find(|node| rig.world.state().nodes[node].objects.contains_key(&ino.0));
    let (node, first) = (node.unwrap(), holders(&rig, ino));
    assert_eq!(first, 2);
    let refused = place(&rig, &[0, 1]);
    assert!(says(&refused, "1 files and directories lie on up to 2 nodes"), "{refused:?}");
    let refused = place(&rig, &[0, 1, 2]);
    assert!(says(&refused, "refused"), "{refused:?}");
    let guest = 1 << 32 | 1;
    rig.renew(guest);
    let call = Call::Place { joins: Vec::new(), leaves: vec![node], rate: 0 };
    assert_eq!(rig.call(guest, call), Reply::Failed(Errno::EPERM));
    assert!(rig.server().status().contains("\"map\":0,"), "nothing was changed");
    for _ in 0..2 {
        let placed = place(&rig, &[node]);
        assert!(says(&placed, "{\"map\":1}"), "{placed:?}");
    }
    rig.restart(false);
    let placed = place(&rig, &[node]);
    assert!(says(&placed, "{\"map\":1}"), "{placed:?}");
    assert!(rig.server().status().contains("\"map\":1,"));
}

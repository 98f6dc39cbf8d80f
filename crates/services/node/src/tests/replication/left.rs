//! What a client leaves half done at members: who resolves asks them all, decides, and has it
//! carried out (R5); then they hold the same.

use outboard_base::Errno;
use outboard_cluster::{Answer as Heard, Claim as Claimed, Entry, Role as Part, verdict};
use outboard_wire::shared::call::{self, Claim, Decided, Reply};

use super::*;

pub(super) fn of_model(version: call::Version) -> outboard_cluster::Version {
    outboard_cluster::Version { fence: version.fence, seq: version.sequence }
}

pub(super) fn ask_member(world: &World, node: u16, call: Call) -> Reply {
    run(world.members[usize::from(node) - 1].rig.node.call(SERVER, call))
}

pub(super) fn claims(world: &World, node: u16, from: u64) -> Vec<Claim> {
    match ask_member(world, node, Call::Claims { object: 1, epoch: 1, from }) {
        Reply::Claims(claims) => claims,
        other => panic!("{other:?}"),
    }
}

/// Seals the object at all members, asks them, decides by the protocol's own verdict, and has that
/// carried out; which version each strip has then.
fn resolve(world: &World, nodes: &[u16], fence: u64) -> Vec<Decided> {
    for node in nodes {
        let sealed = ask_member(world, *node, Call::Seal { object: 1, fence });
        assert!(matches!(sealed, Reply::Object(object) if object.fence == fence));
    }
    let all: Vec<Vec<Claim>> = nodes.iter().map(|node| claims(world, *node, 0)).collect();
    let mut strips: Vec<u64> = all.iter().flatten().map(|claim| claim.strip).collect();
    strips.sort_unstable();
    strips.dedup();
    let decide = |strip: &u64| {
        let answers = nodes.iter().zip(&all).map(|(node, claims)| {
            let claim = claims.iter().find(|claim| claim.strip == *strip);
            let stable = claim.map(|claim| of_model(claim.stable)).unwrap_or_default();
            let pending = claim.and_then(|claim| claim.pending);
            let pending = pending.map(|taken| (of_model(taken.version), taken.epoch));
            let member = Entry { node: *node, life: 1, role: Part::Active, joined: 1 };
            Heard { member, claim: Claimed { stable: Some(stable), pending } }
        });
        let outboard_cluster::Version { fence, seq } =
            verdict(&answers.collect::<Vec<_>>()).unwrap().version;
        Decided { strip: *strip, version: call::Version { fence, sequence: seq } }
    };
    let decided: Vec<Decided> = strips.iter().map(decide).collect();
    for node in nodes {
        let decided = decided.clone();
        let call = Call::Resolve { object: 1, fence, epoch: 1, decided };
        assert_eq!(ask_member(world, *node, call), Reply::Claims(Vec::new()), "node {node}");
    }
    decided
}

fn reads(world: &mut World, strategy: Strategy, nodes: &[u16], fence: u64) -> Vec<u8> {
    let mut all = Vec::new();
    for node in nodes {
        let read = spread(Ask::read(1, fence, 0, 100_000), strategy, nodes);
        all.push(world.ask(*node, &read).1);
    }
    assert!(all.iter().all(|one| *one == all[0]), "all hold the same");
    all.remove(0)
}

/// A client dies when some members have its write: it is undone at these. Where all have it, it
/// stays, though nobody told the client. What was written then goes on from there.
#[test]
fn what_a_client_left_half_done_is_the_same_at_all_members_then() {
    for (strategy, missed) in STRATEGIES.into_iter().flat_map(|one| [(one, true), (one, false)]) {
        let mut world = World::plain(3, 4, 0);
        let nodes = [1, 2, 3, 4];
        let write = |sequence, byte| {
            let ask = Ask::write(1, (5, sequence), 0, vec![byte; 100_000]);
            spread(after(ask, sequence - 1), strategy, &nodes)
        };
        assert_eq!(world.write(&nodes, &write(1, 1)), (0, Ok(())));
        if missed {
            world.dead.insert(4);
            let said = world.write(&nodes, &write(2, 2));
            assert!(matches!(said, (_, Err(Reason::Unreached))), "{said:?}");
            world.restart(4);
        } else {
            assert_eq!(world.write(&nodes, &write(2, 2)), (0, Ok(())));
        }
        let pending: Vec<bool> =
            nodes.iter().map(|node| claims(&world, *node, 0)[1].pending.is_some()).collect();
        assert_eq!(pending, [true; 4], "its first write, or the second");
        assert_eq!(claims(&world, 1, 1).len(), 1, "a page that begins at the second strip");
        let stays = if missed { 1 } else { 2 };
        let decided = resolve(&world, &nodes, 6);
        let version = call::Version { fence: 5, sequence: stays };
        assert_eq!(decided, [0, 1].map(|strip| Decided { strip, version }), "{strategy:?}");
        assert_eq!(resolve(&world, &nodes, 7), decided, "another decides the same");
        assert!(nodes.iter().all(|node| claims(&world, *node, 0)[0].pending.is_none()));
        assert_eq!(world.write(&nodes, &write(2, 2)).1, Err(Reason::Fence), "late");
        let byte = u8::try_from(stays).unwrap();
        assert!(reads(&mut world, strategy, &nodes, 8) == vec![byte; 100_000]);
        let next = spread(Ask::write(1, (8, 1), 0, vec![9; 100_000]), strategy, &nodes);
        assert_eq!(world.write(&nodes, &next), (0, Ok(())));
        assert!(reads(&mut world, strategy, &nodes, 8) == vec![9; 100_000]);
    }
}

/// A member of another epoch is asked for nothing, one that lacks what was decided says so, and
/// who resolves under an old seal is refused.
#[test]
fn a_member_says_why_it_does_not_carry_out_what_was_decided() {
    let mut world = World::plain(4, 2, 0);
    let nodes = [1, 2];
    let write = spread(Ask::write(1, (5, 1), 0, vec![1; 100]), Strategy::Ring, &nodes);
    assert_eq!(world.write(&nodes, &write), (0, Ok(())));
    let version = call::Version { fence: 5, sequence: 2 };
    let resolve = |fence, epoch| Call::Resolve {
        object: 1,
        fence,
        epoch,
        decided: vec![Decided { strip: 0, version }],
    };
    let stale = Reply::Failed(Errno::ESTALE);
    assert_eq!(ask_member(&world, 1, Call::Claims { object: 1, epoch: 2, from: 0 }), stale);
    assert_eq!(ask_member(&world, 1, resolve(6, 2)), stale);
    let lacks = claims(&world, 1, 0);
    assert_eq!(ask_member(&world, 1, resolve(6, 1)), Reply::Claims(lacks));
    assert_eq!(ask_member(&world, 1, resolve(5, 1)), stale, "it was sealed higher");
    assert_eq!(world.write(&nodes, &write), (0, Err(Reason::Fence)));
}

/// A client tells what was acknowledged of what it wrote: that is stable then. Nobody tells it for
/// another, and nobody whose fence is over.
#[test]
fn a_client_tells_what_was_acknowledged() {
    let mut world = World::plain(5, 2, 0);
    let nodes = [1, 2];
    let write = |sequence| {
        let ask = Ask::write(1, (5, sequence), 0, vec![1; 100]);
        spread(after(ask, sequence - 1), Strategy::Ring, &nodes)
    };
    for sequence in 1..3 {
        assert_eq!(world.write(&nodes, &write(sequence)), (0, Ok(())));
    }
    let settle = |world: &World, from, capability, sequence| {
        let node = world.members[0].rig.node.clone();
        run(node.call(from, Call::Settle { of: call::Acknowledged { capability, sequence } }))
    };
    let capability = write(1).heads.capability;
    let before = claims(&world, 1, 0);
    let read_only = Capability { rights: Rights::READ, ..capability }.sign(&KEY);
    let elsewhere = Capability { first: 1 << 16, ..capability }.sign(&KEY);
    let forged = Capability { fence: 6, ..capability };
    let denied = Reply::Failed(Errno::EPERM);
    assert_eq!(settle(&world, Peer::Client(CLIENT + 1), capability, 2), denied);
    assert_eq!(settle(&world, Peer::Node(2), capability, 2), denied);
    assert_eq!(settle(&world, ME, read_only, 2), denied);
    assert_eq!(settle(&world, ME, forged, 2), denied);
    assert_eq!(settle(&world, ME, elsewhere, 2), Reply::Done, "it is about other strips");
    assert_eq!(settle(&world, ME, capability, 1), Reply::Done, "what is pending is later");
    assert_eq!(claims(&world, 1, 0), before);
    assert_eq!(settle(&world, ME, capability, 2), Reply::Done);
    let stable = call::Version { fence: 5, sequence: 2 };
    assert_eq!(claims(&world, 1, 0), [Claim { strip: 0, stable, pending: None }]);
    ask_member(&world, 1, Call::Seal { object: 1, fence: 6 });
    assert_eq!(settle(&world, ME, capability, 2), Reply::Failed(Errno::ESTALE));
}

/// A flush says for many objects what was acknowledged. What of it is nobody's to say changes
/// nothing, and does not hinder the flush, nor what stands beside it.
#[test]
fn a_flush_settles_what_its_client_may_settle() {
    let mut world = World::plain(6, 2, 0);
    let nodes = [1, 2];
    let write = spread(Ask::write(1, (5, 1), 0, vec![1; 100]), Strategy::Ring, &nodes);
    assert_eq!(world.write(&nodes, &write), (0, Ok(())));
    let capability = write.heads.capability;
    let of = |capability, sequence| call::Acknowledged { capability, sequence };
    let flush = |world: &World, from, settles| {
        let node = world.members[0].rig.node.clone();
        assert!(matches!(run(node.call(from, Call::Flush { settles })), Reply::Number(_)));
    };
    let before = claims(&world, 1, 0);
    let forged = of(Capability { fence: 6, ..capability }, 1);
    let other = of(Capability { object: 2, ..capability }.sign(&KEY), 1);
    flush(&world, Peer::Client(CLIENT + 1), vec![of(capability, 1)]);
    flush(&world, ME, vec![forged, other, of(capability, 0)]);
    assert_eq!(claims(&world, 1, 0), before, "nobody who may has said so");
    flush(&world, ME, vec![forged, of(capability, 1), of(capability, 1), other]);
    let stable = call::Version { fence: 5, sequence: 1 };
    assert_eq!(claims(&world, 1, 0), [Claim { strip: 0, stable, pending: None }]);
}

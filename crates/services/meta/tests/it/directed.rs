//! Delegations, leases, fences and keys: one story each.

use std::time::Duration;

use outboard_base::{Errno, Ino, SessionId, Timestamp};
use outboard_wire::file::Request;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Mode, Reply, Told};

use crate::world::{Rig, answer, attr, granted};

const SECOND: Duration = Duration::from_secs(1);

fn told(size: u64) -> Told {
    Told { size, mtime: Some(Timestamp { sec: 1_800_000_000, nsec: 5 }), blocks: None }
}

/// Clients 1 to 4 have leases, and there is an empty file.
fn rig() -> (Rig, Ino) {
    let rig = Rig::new(1);
    (1..=4).for_each(|client| rig.renew(client));
    let ino = rig.create(1, 11, b"file");
    (rig, ino)
}

fn size(rig: &Rig, client: u64, session: u64, ino: Ino) -> u64 {
    attr(rig.does(client, session, &Request::Getattr { ino, fh: outboard_base::Fh::NONE })).size
}

#[test]
fn a_writer_waits_until_all_readers_gave_back() {
    let (rig, ino) = rig();
    let readers = [rig.grant(1, ino, Mode::Read), rig.grant(2, ino, Mode::Read)];
    assert!(readers.iter().all(|grant| grant.mode == Mode::Read));
    let slot = rig.ask(3, Call::Delegate { ino, mode: Mode::Write });
    for client in [1, 2] {
        assert!(rig.at_once(&slot).is_none());
        let asked = rig.asked(client).unwrap();
        assert_eq!(asked.call, Call::Recall { ino, keep: None });
        answer(&asked, Reply::Done);
    }
    let grant = granted(rig.at_once(&slot).unwrap());
    assert_eq!(grant.mode, Mode::Write);
    let fence = grant.capability.fence;
    assert!(readers.iter().all(|reader| reader.capability.fence < fence));
    assert!(rig.world.write(&grant.capability, &grant.nodes, 10));
    let reader = &readers[0];
    assert!(!rig.world.write(&reader.capability, &reader.nodes, 10), "it may not write");
}

#[test]
fn a_writer_that_keeps_reading_has_told_what_the_reader_hears() {
    let (rig, ino) = rig();
    let writer = rig.grant(1, ino, Mode::Write);
    let slot = rig.ask(2, Call::Delegate { ino, mode: Mode::Read });
    let asked = rig.asked(1).unwrap();
    assert_eq!(asked.call, Call::Recall { ino, keep: Some(Mode::Read) });
    let fence = writer.capability.fence;
    assert_eq!(rig.call(1, Call::Publish { ino, fence, told: told(77) }), Reply::Done);
    answer(&asked, Reply::Done);
    let reader = granted(rig.at_once(&slot).unwrap());
    assert_eq!((reader.attr.size, reader.attr.mtime), (77, told(0).mtime.unwrap()));
    let publish = Call::Publish { ino, fence, told: told(99) };
    assert_eq!(rig.call(1, publish), Reply::Failed(Errno::ESTALE), "it reads now");
    // And it reads still: a third may, a writer may not.
    rig.grant(3, ino, Mode::Read);
    let slot = rig.ask(3, Call::Delegate { ino, mode: Mode::Write });
    assert!(rig.at_once(&slot).is_none());
    assert!(rig.asked(1).is_some() && rig.asked(2).is_some() && rig.asked(3).is_none());
}

#[test]
fn what_is_in_the_way_is_given_first_to_who_came_first() {
    let (rig, ino) = rig();
    let mut holder = rig.grant(1, ino, Mode::Write);
    let slots = [2, 3, 4].map(|client| {
        let slot = rig.ask(client, Call::Delegate { ino, mode: Mode::Write });
        assert!(rig.at_once(&slot).is_none());
        slot
    });
    for (i, slot) in slots.iter().enumerate() {
        let client = i as u64 + 1;
        let fence = holder.capability.fence;
        let release = Call::Release { ino, fence, told: Some(told(client)), keep: None };
        assert_eq!(rig.call(client, release.clone()), Reply::Done);
        assert_eq!(rig.call(client, release), Reply::Done, "done again it changes nothing");
        // It was asked before, too.
        answer(&rig.asked(client).unwrap(), Reply::Done);
        rig.pass(SECOND / 2);
        holder = granted(rig.at_once(slot).unwrap());
        assert_eq!(holder.attr.size, client);
        assert!(slots[i + 1..].iter().all(|other| rig.at_once(other).is_none()));
    }
}

#[test]
fn who_asks_again_gets_a_new_capability_under_the_same_fence() {
    let (rig, ino) = rig();
    let first = rig.grant(1, ino, Mode::Write);
    rig.pass(SECOND * 2);
    let waits = rig.ask(2, Call::Delegate { ino, mode: Mode::Write });
    assert!(rig.at_once(&waits).is_none());
    // Though it was recalled: it needs it to write back.
    let again = rig.grant(1, ino, Mode::Write);
    assert_eq!(again.capability.fence, first.capability.fence);
    assert!(again.capability.expires > first.capability.expires);
    assert_eq!(rig.grant(1, ino, Mode::Read).mode, Mode::Write, "it has more than it asks for");
}

#[test]
fn a_reader_becomes_the_writer() {
    let (rig, ino) = rig();
    let reader = rig.grant(1, ino, Mode::Read);
    let writer = rig.grant(1, ino, Mode::Write);
    assert!(writer.mode == Mode::Write && writer.capability.fence > reader.capability.fence);
    let fence = reader.capability.fence;
    // A release of what it had before does not touch what it has.
    let late = Call::Release { ino, fence, told: None, keep: None };
    assert_eq!(rig.call(1, late), Reply::Done);
    let fence = writer.capability.fence;
    assert_eq!(rig.call(1, Call::Publish { ino, fence, told: told(3) }), Reply::Done);
}

#[test]
fn a_late_writer_is_sealed_and_hears_of_it_before_it_goes_on() {
    let (rig, ino) = rig();
    let old = rig.grant(1, ino, Mode::Write);
    assert!(rig.world.write(&old.capability, &old.nodes, 500));
    let slot = rig.ask(2, Call::Delegate { ino, mode: Mode::Write });
    for _ in 0..10 {
        rig.renew(2);
        rig.pass(SECOND);
    }
    assert!(rig.at_once(&slot).is_none(), "its own lease is over, with the margin it is not");
    rig.pass(SECOND * 2);
    let new = granted(rig.at_once(&slot).unwrap());
    assert_eq!(new.attr.size, 500, "as the nodes say");
    assert!(!rig.world.write(&old.capability, &old.nodes, 900), "its fence is over");
    assert!(rig.world.write(&new.capability, &new.nodes, 600));
    let fence = old.capability.fence;
    let publish = Call::Publish { ino, fence, told: told(900) };
    assert_eq!(rig.call(1, publish), Reply::Failed(Errno::ESTALE));
    let release = Call::Release { ino, fence, told: Some(told(900)), keep: None };
    assert_eq!(rig.call(1, release), Reply::Failed(Errno::ESTALE));
    let late = Call::Delegate { ino, mode: Mode::Read };
    assert_eq!(rig.call(1, late), Reply::Failed(Errno::ESTALE), "it has no lease");
    // The recall that was under way when its lease ended; nobody waits for its answer.
    rig.world.state().asked.clear();
    let slot = rig.ask(1, Call::Renew);
    assert!(rig.at_once(&slot).is_none());
    let asked = rig.asked(1).unwrap();
    assert_eq!(asked.call, Call::Recall { ino, keep: None });
    answer(&asked, Reply::Done);
    assert!(matches!(rig.at_once(&slot), Some(Reply::Lease { life: 1, .. })));
}

/// A late reader that renewed was not told that it had lost a file, and read what it had kept of it
/// while another wrote.
#[test]
fn a_late_reader_hears_of_what_it_lost() {
    let (rig, ino) = rig();
    rig.grant(1, ino, Mode::Read);
    rig.pass(SECOND * 12);
    rig.renew(2);
    let writer = rig.grant(2, ino, Mode::Write);
    assert_eq!(writer.mode, Mode::Write);
    let slot = rig.ask(1, Call::Renew);
    assert!(rig.at_once(&slot).is_none());
    rig.pass(SECOND * 6);
    assert_eq!(rig.at_once(&slot), Some(Reply::Failed(Errno::EIO)), "it does not answer");
}

#[test]
fn a_late_client_that_nobody_took_anything_from_goes_on() {
    let (rig, ino) = rig();
    let old = rig.grant(1, ino, Mode::Write);
    rig.pass(SECOND * 30);
    rig.renew(1);
    assert!(rig.world.write(&old.capability, &old.nodes, 5));
    let fence = old.capability.fence;
    assert_eq!(rig.call(1, Call::Publish { ino, fence, told: told(5) }), Reply::Done);
}

#[test]
fn who_renews_and_never_gives_back_is_expelled() {
    let (rig, ino) = rig();
    let old = rig.grant(1, ino, Mode::Write);
    let slot = rig.ask(2, Call::Delegate { ino, mode: Mode::Read });
    let mut expelled_at = None;
    for second in 0..90 {
        rig.renew(2);
        match rig.call(1, Call::Renew) {
            Reply::Lease { life: 1, .. } => assert!(expelled_at.is_none()),
            Reply::Lease { life: 2, term_ms: 0, .. } if expelled_at.is_none() => {
                expelled_at = Some(second);
            }
            Reply::Lease { life: 2, term_ms: 0, .. } => {}
            other => panic!("{other:?}"),
        }
        if rig.at_once(&slot).is_some_and(|reply| granted(reply).mode == Mode::Read) {
            let expelled_at = expelled_at.unwrap();
            assert!((60..=62).contains(&expelled_at), "{expelled_at}");
            assert!((10..=13).contains(&(second - expelled_at)), "{second}: after its lease");
            assert!(!rig.world.write(&old.capability, &old.nodes, 9));
            return;
        }
        rig.pass(SECOND);
    }
    panic!("nobody gets the file");
}

#[test]
fn without_a_lease_nothing_is_given() {
    let (rig, ino) = rig();
    let read = Call::Delegate { ino, mode: Mode::Read };
    assert_eq!(rig.call(9, read), Reply::Failed(Errno::ESTALE));
    assert_eq!(
        rig.call(1, Call::Delegate { ino: Ino(99), mode: Mode::Read }),
        Reply::Failed(Errno::ESTALE)
    );
    let root = Call::Delegate { ino: Ino::ROOT, mode: Mode::Read };
    assert_eq!(rig.call(1, root), Reply::Failed(Errno::EINVAL));
}

#[test]
fn a_size_that_another_writes_is_asked_back_first() {
    let (rig, ino) = rig();
    let getattr = Request::Getattr { ino, fh: outboard_base::Fh::NONE };
    for (round, request) in [getattr, Request::Open { ino, flags: 0 }].iter().enumerate() {
        let fence = rig.grant(1, ino, Mode::Write).capability.fence;
        let before = round as u64 * 40;
        assert_eq!(size(&rig, 1, 11, ino), before, "its writer does not wait for itself");
        let slot = rig.ask(2, rig.file(22, request));
        let asked = rig.asked(1).unwrap();
        assert_eq!(asked.call, Call::Recall { ino, keep: Some(Mode::Read) });
        let told = Some(told(before + 40));
        let release = Call::Release { ino, fence, told, keep: Some(Mode::Read) };
        assert_eq!(rig.call(1, release), Reply::Done);
        answer(&asked, Reply::Done);
        assert!(rig.at_once(&slot).is_some());
        assert_eq!(size(&rig, 2, 22, ino), before + 40, "nobody writes");
    }
}

#[test]
fn files_that_were_being_written_are_resolved_after_a_restart() {
    let (rig, ino) = rig();
    let read = rig.create(1, 11, b"read");
    let old = rig.grant(1, ino, Mode::Write);
    assert!(rig.world.write(&old.capability, &old.nodes, 300));
    rig.restart(true);
    rig.renew(2);
    assert_eq!(rig.grant(2, read, Mode::Read).mode, Mode::Read, "nobody wrote that");
    let slots = [
        rig.ask(2, Call::Delegate { ino, mode: Mode::Read }),
        rig.ask(2, Call::Delegate { ino: read, mode: Mode::Write }),
    ];
    // Who wrote has a lease yet, and goes on.
    rig.pass(SECOND * 9);
    assert!(slots.iter().all(|slot| rig.at_once(slot).is_none()));
    assert!(rig.world.write(&old.capability, &old.nodes, 400));
    rig.renew(2);
    rig.pass(SECOND * 4);
    let [new, other] = slots.map(|slot| granted(rig.at_once(&slot).unwrap()));
    assert_eq!(new.attr.size, 400);
    assert!(new.capability.fence > old.capability.fence);
    assert!(!rig.world.write(&old.capability, &old.nodes, 500));
    assert_eq!(other.mode, Mode::Write);
    assert!(rig.server().status().contains("\"unresolved\":0"));
    let fence = old.capability.fence;
    let publish = Call::Publish { ino, fence, told: told(900) };
    assert_eq!(rig.call(1, publish), Reply::Failed(Errno::ESTALE));
}

#[test]
fn what_was_released_needs_no_resolving_after_a_restart() {
    let (rig, ino) = rig();
    let old = rig.grant(1, ino, Mode::Write);
    let fence = old.capability.fence;
    let release = Call::Release { ino, fence, told: Some(told(300)), keep: None };
    assert_eq!(rig.call(1, release), Reply::Done);
    rig.restart(false);
    rig.renew(2);
    assert_eq!(rig.grant(2, ino, Mode::Read).attr.size, 300, "at once");
}

#[test]
fn a_file_whose_nodes_are_away_is_not_given_until_they_are_back() {
    let (rig, ino) = rig();
    let old = rig.grant(1, ino, Mode::Write);
    assert!(rig.world.write(&old.capability, &old.nodes, 30));
    rig.restart(false);
    let node = old.nodes[0].node;
    rig.world.state().nodes.get_mut(&node).unwrap().away = true;
    rig.renew(2);
    let slot = rig.ask(2, Call::Delegate { ino, mode: Mode::Write });
    let mut waited = 0;
    let failed = loop {
        rig.renew(2);
        rig.pass(SECOND);
        waited += 1;
        if let Some(reply) = rig.at_once(&slot) {
            break reply;
        }
    };
    assert_eq!(failed, Reply::Failed(Errno::EIO));
    assert!((30..40).contains(&waited), "{waited}: leases, then 20 s of trying");
    rig.world.state().nodes.get_mut(&node).unwrap().away = false;
    rig.pass(SECOND * 3);
    rig.renew(2);
    assert_eq!(rig.grant(2, ino, Mode::Write).attr.size, 30);
}

#[test]
fn keys_change_and_nodes_know_them_before_they_are_used() {
    let (rig, ino) = rig();
    let mut seen = std::collections::BTreeSet::new();
    let mut writer = rig.grant(1, ino, Mode::Write);
    for step in 0..1500_u64 {
        rig.world.pass(SECOND * 10);
        rig.renew(1);
        (0..4).for_each(|_| rig.step());
        if step % 25 == 0 {
            // Before five minutes are over.
            writer = rig.grant(1, ino, Mode::Write);
        }
        seen.insert(writer.capability.key);
        assert!(rig.world.write(&writer.capability, &writer.nodes, step), "{step}");
    }
    assert_eq!(seen.len(), 5, "of some four hours: {seen:?}");
}

#[test]
fn a_node_that_lost_its_keys_is_told_when_a_client_asks_again() {
    let (rig, ino) = rig();
    let writer = rig.grant(1, ino, Mode::Write);
    rig.world.state().nodes.values_mut().for_each(|node| node.keys.clear());
    assert!(!rig.world.write(&writer.capability, &writer.nodes, 1));
    let again = rig.grant(1, ino, Mode::Write);
    assert!(rig.world.write(&again.capability, &again.nodes, 1));
    // And without being asked.
    rig.world.state().nodes.values_mut().for_each(|node| node.keys.clear());
    rig.pass(SECOND * 12);
    assert!(rig.world.write(&again.capability, &again.nodes, 2));
}

#[test]
fn calls_are_taken_from_whom_they_are_for() {
    let (rig, ino) = rig();
    let ask = |from, call| {
        let (now, wall) = (rig.world.time(), rig.world.wall());
        outboard_base::task::run(rig.server().call(from, call, now, wall))
    };
    for from in [Peer::Node(1), Peer::Server(0)] {
        assert!(matches!(ask(from, Call::Status), Reply::Text(_)));
        let delegate = Call::Delegate { ino, mode: Mode::Read };
        for call in [delegate, Call::Renew, Call::Check { contents: false }] {
            assert_eq!(ask(from, call), Reply::Failed(Errno::EPERM));
        }
    }
    for call in [
        Call::Seal { object: 2, fence: 1 },
        Call::Purge { object: 2, fence: 1, until: 0 },
        Call::Keys { keys: Vec::new(), revoked: Vec::new() },
        Call::Recall { ino, keep: None },
    ] {
        assert_eq!(ask(Peer::Client(1), call), Reply::Failed(Errno::ENOSYS));
    }
    let known = rig.world.state().known.clone();
    assert!((0..3).all(|node| known.contains(&Peer::Node(node))));
    let opened = Call::Opened { session: SessionId(11), ino, fh: outboard_base::Fh(1) };
    assert_eq!(ask(Peer::Client(1), opened.clone()), Reply::Number(u64::MAX));
    assert_eq!(ask(Peer::Client(2), opened), Reply::Failed(Errno::ESTALE), "not its session");
}

//! Clients that die and begin anew under their numbers, and servers that know for whom to wait.

use std::time::Duration;

use outboard_base::{Errno, Fh, Ino, SessionId};
use outboard_wire::file::{
    Lock, LockKind, LockStyle, Reply as FileReply, Request, Setattr, open_flags,
};
use outboard_wire::shared::call::{Call, Event, Mode, Reply, Told};

use crate::world::{NODES, Rig, answer, events, granted, reply};

const SECOND: Duration = Duration::from_secs(1);

fn begin(rig: &Rig, client: u64, nonce: u64) {
    assert_eq!(rig.call(client, Call::Begin { nonce }), Reply::Done);
}

/// Clients 1 to 3 have begun and have leases, and there is an empty file.
fn rig() -> (Rig, Ino) {
    let rig = Rig::new(5);
    for client in 1..=3 {
        begin(&rig, client, 70);
        rig.renew(client);
    }
    let ino = rig.create(1, 11, b"file");
    // A loss of power keeps it.
    rig.does(1, 11, &Request::Syncfs);
    (rig, ino)
}

fn write(ino: Ino) -> Call {
    Call::Delegate { ino, mode: Mode::Write }
}

/// A DPU side that was killed came back at once, and everybody, itself too, waited 11 s for the
/// lease of its former self. Others wait until its hosts have handed in what they held.
#[test]
fn nobody_waits_for_the_lease_of_a_former_life() {
    let (rig, ino) = rig();
    let old = rig.grant(1, ino, Mode::Write);
    assert!(rig.world.write(&old.capability, &old.nodes, 500));
    let reader = rig.ask(2, Call::Delegate { ino, mode: Mode::Read });
    assert!(rig.at_once(&reader).is_none());
    begin(&rig, 1, 71);
    // A packet of the former life that comes before the seal counts.
    assert!(rig.world.write(&old.capability, &old.nodes, 501));
    rig.pass(SECOND / 2);
    assert!(rig.at_once(&reader).is_none());
    assert_eq!(rig.call(1, Call::HandedIn), Reply::Done);
    rig.pass(SECOND / 2);
    assert_eq!(granted(rig.at_once(&reader).unwrap()).attr.size, 501);
    assert!(!rig.world.write(&old.capability, &old.nodes, 900), "and none after it");
    rig.world.state().asked.clear();
    let without = rig.call(1, Call::Delegate { ino, mode: Mode::Read });
    assert_eq!(without, Reply::Failed(Errno::ESTALE), "it has no lease yet");
    rig.renew(1);
    rig.grant(1, ino, Mode::Read);
}

#[test]
fn the_next_life_gets_a_file_under_a_fence_of_its_own() {
    let (rig, ino) = rig();
    let old = rig.grant(1, ino, Mode::Write);
    assert!(rig.world.write(&old.capability, &old.nodes, 500));
    begin(&rig, 1, 71);
    rig.renew(1);
    let new = rig.grant(1, ino, Mode::Write);
    assert!(new.attr.size == 500 && new.capability.fence > old.capability.fence);
    assert!(!rig.world.write(&old.capability, &old.nodes, 900));
    // What the former life said and is heard now is of no effect.
    let (fence, told) = (old.capability.fence, Told { size: 900, mtime: None, blocks: None });
    let late = Call::Release { ino, fence, told: Some(told), keep: None };
    assert_eq!(rig.call(1, late), Reply::Failed(Errno::ESTALE));
    let late = Call::Release { ino, fence, told: None, keep: None };
    assert_eq!(rig.call(1, late), Reply::Done);
    assert!(rig.world.write(&new.capability, &new.nodes, 600));
    let (fence, told) = (new.capability.fence, Told { size: 600, mtime: None, blocks: None });
    assert_eq!(rig.call(1, Call::Publish { ino, fence, told }), Reply::Done);
}

#[test]
fn a_beginning_that_comes_again_does_not_hurt_the_life_that_goes_on() {
    let (rig, ino) = rig();
    begin(&rig, 1, 71);
    rig.renew(1);
    let grant = rig.grant(1, ino, Mode::Write);
    // Its own, and one of its former life.
    begin(&rig, 1, 71);
    begin(&rig, 1, 70);
    assert!(rig.world.write(&grant.capability, &grant.nodes, 5));
    let (fence, told) = (grant.capability.fence, Told { size: 5, mtime: None, blocks: None });
    assert_eq!(rig.call(1, Call::Publish { ino, fence, told }), Reply::Done);
    let slot = rig.ask(2, write(ino));
    assert!(rig.at_once(&slot).is_none(), "it has the file");
}

#[test]
fn who_is_gone_or_expelled_goes_on_in_another_life() {
    let (rig, ino) = rig();
    rig.pass(SECOND * 75);
    let life = rig.life() + 1;
    let renewed = rig.call(1, Call::Renew);
    assert!(matches!(renewed, Reply::Lease { life: other, .. } if other == life), "it is gone");
    begin(&rig, 1, 70);
    let renewed = rig.call(1, Call::Renew);
    assert!(matches!(renewed, Reply::Lease { life: other, .. } if other == life), "that life is");
    begin(&rig, 1, 71);
    rig.renew(1);
    rig.grant(1, ino, Mode::Write);
    // The chores of its former end come late, and take nothing from it.
    rig.pass(SECOND * 2);
    let slot = rig.ask(1, Call::Renew);
    assert!(matches!(rig.at_once(&slot), Some(Reply::Lease { term_ms: 10_000, .. })));
}

#[test]
fn what_a_former_life_asked_for_is_given_to_nobody() {
    let (rig, ino) = rig();
    let other = rig.grant(2, ino, Mode::Write);
    let slot = rig.ask(1, write(ino));
    let asked = rig.recalled(2).unwrap();
    begin(&rig, 1, 71);
    rig.renew(1);
    let (fence, told) = (other.capability.fence, Told { size: 0, mtime: None, blocks: None });
    assert_eq!(rig.call(2, Call::Publish { ino, fence, told }), Reply::Done);
    answer(&asked, Reply::Done);
    assert_eq!(rig.at_once(&slot), Some(Reply::Failed(Errno::ESTALE)));
    let status = rig.server().status();
    assert!(status.contains("\"read\":0,\"write\":0,\"unresolved\":0"), "{status}");
    // Nor does it count as written.
    rig.restart(false);
    rig.renew(2);
    rig.grant(2, ino, Mode::Read);
}

#[test]
fn a_session_goes_over_to_the_next_life_when_nothing_of_it_is_under_way() {
    let (rig, ino) = rig();
    let FileReply::Opened(fh) = rig.does(1, 11, &Request::Open { ino, flags: open_flags::RDWR })
    else {
        panic!("not opened")
    };
    let are_away = |away| {
        rig.world.state().nodes.values_mut().for_each(|node| node.away = away);
    };
    // What the server writes itself ends before anybody else asks for the session.
    let write = || {
        let write = Request::Write { ino, fh, offset: 0, flags: 0 };
        rig.ask(1, rig.file_with(11, &write, b"bytes"))
    };
    are_away(true);
    let first = write();
    assert!(rig.at_once(&first).is_none());
    begin(&rig, 1, 71);
    let noop = rig.ask(1, rig.file(11, &Request::Noop));
    assert!(rig.at_once(&noop).is_none(), "the former life's write is under way");
    are_away(false);
    rig.pass(SECOND);
    assert!(rig.at_once(&first).is_some() && rig.at_once(&noop).is_some());
    // One that was held back until then is not done any more.
    begin(&rig, 2, 71);
    are_away(true);
    let under_way = write();
    assert!(rig.at_once(&under_way).is_none());
    let held_back = rig.ask(2, rig.file(11, &Request::Noop));
    assert!(rig.at_once(&held_back).is_none());
    begin(&rig, 2, 72);
    assert_eq!(rig.at_once(&held_back), Some(Reply::Failed(Errno::ESTALE)));
    are_away(false);
    rig.pass(SECOND);
    assert!(rig.at_once(&under_way).is_some());
}

/// A file that is open by sessions 11 (client 1) and 22 (client 2), who has it locked.
struct Locked {
    rig: Rig,
    ino: Ino,
    handles: [Fh; 2],
}

impl Locked {
    fn new() -> Locked {
        let (rig, ino) = rig();
        rig.pass(SECOND * 2);
        let handles = [(1, 11), (2, 22)].map(|(client, session)| {
            let open = Request::Open { ino, flags: open_flags::RDWR };
            let opened = rig.does(client, session, &open);
            let FileReply::Opened(fh) = opened else { panic!("{opened:?}") };
            fh
        });
        let of = Locked { rig, ino, handles };
        assert_eq!(of.ask(2, 22, LockKind::Write), FileReply::Empty);
        of
    }

    fn ask(&self, client: u64, session: u64, kind: LockKind) -> FileReply {
        let (ino, fh) = (self.ino, self.handles[usize::from(session == 22)]);
        let style = LockStyle::Flock;
        let lock = Lock { owner: 5, start: 0, end: u64::MAX, kind, style, pid: 9 };
        let ask = Request::Setlk { ino, fh, lock, wait: true, reclaim: false };
        reply(&ask, self.rig.call(client, self.rig.file(session, &ask))).unwrap()
    }

    /// The waits that a client hears have ended.
    fn settled(&self, client: u64) -> Vec<u64> {
        let mut tickets = Vec::new();
        while let Some(asked) = self.rig.asked(client) {
            tickets.extend(events(asked).into_iter().filter_map(|event| match event {
                Event::LockSettled { ticket, errno: None, .. } => Some(ticket),
                _ => None,
            }));
        }
        tickets
    }
}

/// A host waited for a lock when its DPU side was killed. It asked anew after that; the old wait
/// stayed, and was granted later to nobody.
#[test]
fn waits_for_locks_of_a_former_life_are_dropped() {
    // It comes back under the same number, or another.
    for successor in [1, 3] {
        let of = Locked::new();
        let FileReply::Waiting(old) = of.ask(1, 11, LockKind::Write) else { panic!("no wait") };
        if successor == 1 {
            begin(&of.rig, 1, 71);
        }
        // The host hands in, and asks anew. That its session is back comes later.
        of.rig.does(successor, 11, &Request::Noop);
        let again = of.ask(successor, 11, LockKind::Write);
        let FileReply::Waiting(new) = again else { panic!("no wait") };
        let back = Call::Back { session: SessionId(11) };
        assert_eq!(of.rig.call(successor, back.clone()), Reply::Done);
        of.ask(2, 22, LockKind::Unlock);
        assert_eq!(of.settled(successor), [new], "and not {old}");
        of.ask(successor, 11, LockKind::Unlock);
        assert_eq!(of.ask(2, 22, LockKind::Write), FileReply::Empty, "nobody else has it");
        // On a DPU side that lives on, its host comes back without asking anew.
        let again = of.ask(successor, 11, LockKind::Write);
        assert!(matches!(again, FileReply::Waiting(_)));
        assert_eq!(of.rig.call(successor, back), Reply::Done);
        of.ask(2, 22, LockKind::Unlock);
        assert_eq!(of.settled(successor), []);
    }
}

/// And at once: a host that does not come back hands nothing in.
#[test]
fn waits_for_locks_end_when_a_life_begins() {
    let of = Locked::new();
    assert!(matches!(of.ask(1, 11, LockKind::Write), FileReply::Waiting(_)));
    begin(&of.rig, 1, 71);
    of.ask(2, 22, LockKind::Unlock);
    assert_eq!(of.settled(1), []);
    assert_eq!(of.ask(2, 22, LockKind::Write), FileReply::Empty, "nobody else has it");
}

/// A checker of histories waited for ever: a mount that held a lock was killed together with its
/// client, and in the client's next life nobody was there to hand the lock in, or to give it up.
#[test]
fn what_a_host_does_not_hand_in_again_is_given_up() {
    for comes_back in [false, true] {
        let of = Locked::new();
        let FileReply::Waiting(ticket) = of.ask(1, 11, LockKind::Write) else { panic!("no wait") };
        begin(&of.rig, 2, 71);
        of.rig.renew(2);
        if comes_back {
            of.rig.does(2, 22, &Request::Noop);
        }
        of.rig.pass(SECOND * 2);
        assert_eq!(of.settled(1), [], "its hosts may come back");
        assert_eq!(of.rig.call(2, Call::HandedIn), Reply::Done);
        of.rig.pass(SECOND * 2);
        assert_eq!(of.settled(1), if comes_back { vec![] } else { vec![ticket] });
    }
}

/// After each start of the server every writer waited 12 s, though all clients had begun anew after
/// the first second.
#[test]
fn after_a_restart_writers_wait_until_all_clients_have_begun_anew() {
    let (rig, ino) = rig();
    let other = rig.create(1, 11, b"other");
    let old = rig.grant(1, ino, Mode::Write);
    assert!(rig.world.write(&old.capability, &old.nodes, 300));
    rig.restart(true);
    begin(&rig, 1, 71);
    rig.renew(1);
    let slots = [ino, other].map(|ino| rig.ask(1, write(ino)));
    begin(&rig, 2, 71);
    // It may be the former life's: the volume has a note of that one.
    begin(&rig, 3, 70);
    rig.renew(3);
    rig.pass(SECOND);
    assert!(slots.iter().all(|slot| rig.at_once(slot).is_none()), "client 3 has not begun");
    begin(&rig, 3, 71);
    let [marked, other] = slots.map(|slot| granted(rig.at_once(&slot).unwrap()));
    assert_eq!((marked.attr.size, other.attr.size), (300, 0));
    assert!(!rig.world.write(&old.capability, &old.nodes, 900));
}

#[test]
fn after_a_restart_who_does_not_come_back_is_waited_for_once() {
    let (rig, ino) = rig();
    for seconds in [11, 0] {
        rig.restart(true);
        for client in [1, 2] {
            begin(&rig, client, rig.life() + client);
            rig.renew(client);
        }
        let slot = rig.ask(1, write(ino));
        for _ in 0..seconds {
            assert!(rig.at_once(&slot).is_none());
            rig.pass(SECOND);
            rig.renew(1);
        }
        rig.pass(if seconds == 0 { Duration::ZERO } else { SECOND * 3 });
        let fence = granted(rig.at_once(&slot).unwrap()).capability.fence;
        let release = Call::Release { ino, fence, told: None, keep: None };
        assert_eq!(rig.call(1, release), Reply::Done);
        rig.pass(SECOND * 2);
    }
}

#[test]
fn after_a_restart_who_was_gone_is_not_waited_for() {
    let (rig, ino) = rig();
    for _ in 0..75 {
        rig.renew(1);
        rig.pass(SECOND);
    }
    rig.restart(false);
    begin(&rig, 1, 71);
    rig.renew(1);
    rig.grant(1, ino, Mode::Write);
}

/// After each start of the server every lock waited for the 12 s, though all hosts had handed in
/// what they held within the first.
#[test]
fn after_a_restart_locks_wait_until_all_clients_have_handed_in() {
    let (rig, _) = rig();
    rig.restart(true);
    let is_over = || rig.server().status().contains("\"grace\":false");
    for client in 1..=3 {
        assert_eq!(rig.call(client, Call::HandedIn), Reply::Done, "of the life before");
        begin(&rig, client, 71);
        rig.renew(client);
    }
    for client in [1, 2] {
        assert_eq!(rig.call(client, Call::HandedIn), Reply::Done);
    }
    rig.pass(SECOND);
    assert!(!is_over(), "the hosts of client 3 may hold something");
    begin(&rig, 3, 72);
    assert_eq!(rig.call(3, Call::HandedIn), Reply::Done, "another life of it");
    assert!(is_over());
}

/// The server cut a file, and died before the nodes did: what they had was its size again.
#[test]
fn a_truncation_is_finished_by_the_next_life_of_the_server() {
    let (rig, ino) = rig();
    let old = rig.grant(1, ino, Mode::Write);
    assert!(rig.world.write(&old.capability, &old.nodes, 500));
    let fence = old.capability.fence;
    let told = Told { size: 500, mtime: None, blocks: None };
    assert_eq!(rig.call(1, Call::Publish { ino, fence, told }), Reply::Done);
    let set = Setattr { size: Some(100), ..Setattr::default() };
    // Client 1 makes the hole itself, and its server dies first.
    rig.does(1, 11, &Request::Setattr { ino, fh: Fh::NONE, set });
    rig.does(1, 11, &Request::Syncfs);
    assert_eq!(rig.world.end(ino.0), 500);
    rig.restart(true);
    for client in 1..=3 {
        begin(&rig, client, 71);
        rig.renew(client);
        rig.call(client, Call::HandedIn);
    }
    let new = rig.grant(2, ino, Mode::Write);
    assert_eq!((new.attr.size, rig.world.end(ino.0)), (100, 100));
    // One that is carried out and said is over: what is written then counts.
    let fence = new.capability.fence;
    let set = Setattr { size: Some(50), ..Setattr::default() };
    rig.does(2, 22, &Request::Setattr { ino, fh: Fh::NONE, set });
    assert_eq!(rig.call(1, Call::Holed { ino, fence }), Reply::Failed(Errno::ESTALE));
    assert_eq!(rig.call(2, Call::Holed { ino, fence }), Reply::Done);
    assert!(rig.world.write(&new.capability, &new.nodes, 700));
    begin(&rig, 2, 72);
    rig.call(2, Call::HandedIn);
    assert_eq!(rig.grant(1, ino, Mode::Read).attr.size, 700);
    // Who gives back a file that it cut, and did not say so, leaves it to be finished.
    let last = rig.grant(1, ino, Mode::Write);
    let set = Setattr { size: Some(10), ..Setattr::default() };
    rig.does(1, 11, &Request::Setattr { ino, fh: Fh::NONE, set });
    let release = Call::Release { ino, fence: last.capability.fence, told: None, keep: None };
    assert_eq!(rig.call(1, release), Reply::Done);
    rig.pass(SECOND * 3);
    assert_eq!((rig.world.end(ino.0), rig.grant(3, ino, Mode::Read).attr.size), (10, 10));
}

/// A server whose metadata came from a backup gave fences and numbers of files again: writers of
/// before were let in, and new files had the bytes of others.
#[test]
fn a_restored_server_counts_on_from_what_nodes_know() {
    for is_away in [false, true] {
        let (mut rig, ino) = rig();
        let old = rig.grant(1, ino, Mode::Write);
        assert!(rig.world.write(&old.capability, &old.nodes, 500));
        rig.pass(SECOND);
        let away = |rig: &Rig, is_away| {
            rig.world.state().nodes.values_mut().for_each(|node| node.away = is_away);
        };
        away(&rig, is_away);
        // A volume that was opened later than the one that is restored.
        rig.restart(false);
        begin(&rig, 1, 71);
        rig.pass(SECOND * 13);
        rig.renew(1);
        away(&rig, false);
        rig.pass(SECOND * 2);
        rig.renew(1);
        let last = rig.grant(1, ino, Mode::Write);
        assert!(rig.world.write(&last.capability, &last.nodes, 600));
        away(&rig, is_away);
        rig.restore();
        begin(&rig, 1, 72);
        rig.renew(1);
        rig.pass(SECOND * 2);
        if is_away {
            // Nobody could say so at the start. They are told no keys, so nothing is taken, and
            // the server ends: it counts on when it starts again.
            assert!(!rig.server().is_superseded());
            away(&rig, false);
            rig.pass(SECOND * 15);
            assert!(rig.server().is_superseded());
            rig.restart(false);
            begin(&rig, 1, 73);
            rig.renew(1);
            rig.pass(SECOND * 2);
            rig.renew(1);
        }
        let new = rig.create(1, 11, b"another");
        assert!(new > ino, "{new} is a file's that nodes have");
        let grant = rig.grant(1, new, Mode::Write);
        assert!(grant.capability.fence > last.capability.fence);
        assert!(rig.world.write(&grant.capability, &grant.nodes, 100));
        assert_eq!(rig.world.end(ino.0), 600);
    }
}

/// A server that was cut off from the coordinator went on granting while another, with a copy of
/// its store, began beside it.
#[test]
fn a_server_beside_which_another_has_begun_answers_nobody_any_more() {
    let (rig, ino) = rig();
    rig.server().nodes_are(None);
    rig.pass(SECOND * 3);
    assert!(!rig.server().is_superseded(), "the coordinator alone is away");
    rig.renew(1);
    let old = rig.grant(1, ino, Mode::Write);
    assert!(rig.world.write(&old.capability, &old.nodes, 500));
    let other = rig.begins_beside();
    let renews = || rig.at_once(&rig.ask(1, Call::Renew)).is_some();
    assert!(renews(), "it has not looked yet");
    rig.pass(SECOND * 2);
    assert!(rig.server().is_superseded() && !other.is_superseded());
    assert!(!renews());
    assert!(rig.at_once(&rig.ask(1, write(ino))).is_none());
}

/// A server that stood still goes on: nodes refuse what it had begun, which tells it that it is
/// over before it looks by itself, and it asks them nothing any more.
#[test]
fn who_is_refused_by_a_node_answers_nobody_any_more() {
    let (rig, ino) = rig();
    rig.grant(1, ino, Mode::Write);
    let _other = rig.begins_beside();
    let late = || rig.world.state().nodes.values().map(|node| node.late).sum::<usize>();
    assert_eq!((late(), rig.server().is_superseded()), (0, false));
    assert!(rig.at_once(&rig.ask(1, Call::Check { contents: false })).is_none());
    assert!(rig.server().is_superseded());
    let refused = late();
    assert!((1..=usize::from(NODES)).contains(&refused), "{refused}");
    rig.pass(SECOND * 15);
    assert_eq!(late(), refused);
}

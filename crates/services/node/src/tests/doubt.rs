//! Power is lost, and with it what was not flushed: a node serves nothing that others have copies
//! of before it is told that it may.

use outboard_base::Errno;
use outboard_base::planted::{Fault, plant};
use outboard_wire::shared::call::{Call, Reply};
use outboard_wire::shared::{Coordinate, Reason, Role};

use super::*;
use crate::policy::{Steer, Threat};

const ALL: u64 = u64::MAX;
const DONE: Reply = Reply::Done;
const STALE: Reply = Reply::Failed(Errno::ESTALE);

/// The same request, of an object that is said to have copies; this is the only one.
pub(super) fn copied(mut ask: Ask) -> Ask {
    let (address, port) = ([127, 0, 0, 1], 1);
    let own = Coordinate { address, port, node: 1, unit: 0, role: Role::Data };
    let all = Coordinates::new(&[own]).unwrap();
    let capability = &mut ask.heads.capability;
    (capability.strategy, capability.group) = (Strategy::Ring, all.group());
    if let Target::Write(write) = &mut ask.heads.target {
        (write.strategy, write.coordinates) = (Strategy::Ring, all);
    }
    ask.signed()
}

fn options(boot: u64, steer: Steer) -> NodeOptions {
    NodeOptions { boot, steer, ..NodeOptions::default() }
}

impl Rig {
    /// Power is lost.
    fn lose_power(self, options: NodeOptions) -> Rig {
        self.log.crash();
        self.data.crash();
        self.restart(options)
    }

    fn told(&self, call: Call) -> Reply {
        run(self.node.call(SERVER, call))
    }

    fn doubts(&self, object: u64) -> bool {
        match self.told(Call::Doubts { object }) {
            Reply::Number(_) => true,
            Reply::Done => false,
            other => panic!("{other:?}"),
        }
    }

    fn trust(&self, object: u64, boot: u64) -> Reply {
        self.told(Call::Trust { object, boot })
    }

    fn seal(&self, object: u64, fence: u64) {
        assert!(matches!(self.told(Call::Seal { object, fence }), Reply::Object(_)));
    }

    fn said(&mut self, ask: &Ask) -> Result<(), Reason> {
        self.ask(ME, &ask.message(), &mut Rng::new(1)).0.outcome.map(|_| ())
    }

    /// Whether copies of an object are read.
    fn reads(&mut self, object: u64) -> Result<(), Reason> {
        self.said(&copied(Ask::read(object, 5, 0, 100)))
    }

    fn write(&mut self, object: u64) -> Result<(), Reason> {
        self.said(&copied(Ask::write(object, (5, 1), 0, vec![7; 60_000])))
    }
}

/// Objects 1 and 2 have copies, 3 has none; all is flushed, and power is lost.
fn after_power_loss(steer: Steer) -> Rig {
    let mut rig = Rig::new(options(1, steer));
    assert_eq!((rig.write(1), rig.write(2)), (Ok(()), Ok(())));
    assert_eq!(rig.said(&Ask::write(3, (5, 1), 0, vec![3; 100])), Ok(()));
    assert_eq!((rig.told(Call::FLUSH), rig.figure("doubts")), (Reply::Number(1), 0));
    let rig = rig.restart(options(1, steer));
    assert_eq!((rig.figure("doubts"), rig.doubts(ALL)), (0, false), "the process ended alone");
    assert_eq!((rig.trust(ALL, 1), rig.doubts(1)), (DONE, false));
    rig.lose_power(options(2, steer))
}

#[test]
fn copies_are_not_served_before_they_are_trusted() {
    for steer in [Steer::Never, Steer::Always] {
        let mut rig = after_power_loss(steer);
        assert_eq!((rig.figure("doubts"), rig.figure("trusted")), (1, 0));
        let asks = [
            Ask::read(1, 5, 0, 100),
            Ask::write(1, (5, 2), 0, vec![8; 100]),
            Ask::write(9, (5, 2), 0, vec![8; 100]),
            Ask::hole(1, (5, 2), 0..50),
        ];
        let mut map = asks[0].clone();
        if let Target::Read(read) = &mut map.heads.target {
            read.map = true;
        }
        let before = rig.writes();
        for ask in asks.into_iter().chain([map]) {
            let ask = copied(ask);
            assert_eq!(rig.said(&ask), Err(Reason::Filling), "{steer:?} {ask:?}");
            assert_eq!(rig.ask(SERVER, &ask.message(), &mut Rng::new(1)).0.boot, 2);
        }
        assert_eq!(rig.writes(), before);
        let old = copied(Ask::read(1, 4, 0, 100));
        rig.seal(1, 5);
        assert_eq!(rig.said(&old), Err(Reason::Fence), "that comes first");
        // What has no copies is as ever.
        for (object, byte) in [(3, 3), (1, 7)] {
            let read = Ask::read(object, 5, 0, 100).message();
            assert_eq!(rig.ask(ME, &read, &mut Rng::new(1)).1, vec![byte; 100]);
        }
        assert_eq!(rig.said(&Ask::write(3, (5, 2), 0, vec![4; 100])), Ok(()));
        assert_eq!(rig.told(Call::Doubts { object: 2 }), Reply::Number(2), "its boot");
        assert_eq!(rig.trust(1, 2), DONE);
        assert_eq!([1, 2, 9, ALL].map(|object| rig.doubts(object)), [false, true, true, true]);
        assert_eq!((rig.reads(1), rig.reads(2)), (Ok(()), Err(Reason::Filling)));
        assert_eq!((rig.figure("doubts"), rig.figure("trusted")), (1, 1));
        let next = copied(Ask::write(1, (6, 1), 0, vec![9; 100]));
        assert_eq!(rig.said(&next), Ok(()));
    }
}

/// Who resolves works under its own seal, which this process must have been shown: clients have
/// fences below and above.
#[test]
fn who_resolves_is_served_under_its_seal() {
    for steer in [Steer::Never, Steer::Always] {
        let mut rig = after_power_loss(steer);
        let asks = |fence| {
            let mut write = Ask::write(1, (fence, 2), 0, vec![8; 100]);
            write.heads.head.settled = 1;
            [Ask::read(1, fence, 0, 100), Ask::hole(1, (fence, 1), 0..50), write].map(copied)
        };
        let say = |rig: &mut Rig, fence| asks(fence).map(|ask| rig.said(&ask));
        let filling = [Err(Reason::Filling); 3];
        assert_eq!(say(&mut rig, 6), filling);
        rig.seal(1, 6);
        assert_eq!(say(&mut rig, 7), filling);
        assert_eq!(say(&mut rig, 6), [Ok(()); 3]);
        assert_eq!(say(&mut rig, 5), [Err(Reason::Fence); 3]);
        let claims = rig.told(Call::Claims { object: 1, epoch: 1, from: 0 });
        assert!(matches!(claims, Reply::Claims(claims) if claims.len() == 1));
        rig.seal(1, 7);
        assert_eq!(say(&mut rig, 6), [Err(Reason::Fence); 3], "another resolves");
        assert_eq!((rig.doubts(1), rig.said(&asks(7)[0])), (true, Ok(())));
        rig = rig.restart(options(2, steer));
        assert_eq!(say(&mut rig, 7), filling, "the seal was shown to a process that is gone");
    }
}

/// The process may end and begin while there is doubt: it doubts all again. When all is trusted,
/// that is durable, for this boot.
#[test]
fn doubt_ends_when_all_is_trusted() {
    for steer in [Steer::Never, Steer::Always] {
        let mut rig = after_power_loss(steer);
        assert_eq!((rig.trust(1, 2), rig.reads(1)), (DONE, Ok(())));
        rig = rig.restart(options(2, steer));
        assert_eq!((rig.reads(1), rig.figure("doubts")), (Err(Reason::Filling), 1));
        assert_eq!((rig.doubts(ALL), rig.trust(ALL, 2)), (true, DONE));
        assert_eq!((rig.reads(1), rig.reads(2), rig.reads(9)), (Ok(()), Ok(()), Ok(())));
        assert_eq!((rig.figure("doubts"), rig.doubts(ALL), rig.doubts(1)), (0, false, false));
        // The media lose nothing that was flushed; a computer that starts anew has another boot.
        rig = rig.lose_power(options(2, steer));
        assert_eq!((rig.figure("doubts"), rig.reads(2)), (0, Ok(())));
        rig = rig.lose_power(options(3, steer));
        assert_eq!((rig.figure("doubts"), rig.reads(2)), (1, Err(Reason::Filling)));
        rig = rig.lose_power(options(0, steer));
        assert_eq!(rig.figure("doubts"), 1, "a boot like any other");
        rig = rig.restart(options(2, steer));
        assert_eq!(rig.figure("doubts"), 0, "it is the one in which it was trusted");
    }
}

/// A server resolved an object, and the node lost power before it was told: what the server found
/// out is not what is here now.
#[test]
fn what_was_found_out_before_power_was_lost_is_not_believed() {
    let mut rig = after_power_loss(Steer::Never);
    rig.seal(1, 6);
    rig = rig.lose_power(options(3, Steer::Never));
    assert_eq!((rig.trust(1, 2), rig.trust(ALL, 2)), (STALE, STALE));
    assert!([1, 2, ALL].iter().all(|object| rig.doubts(*object)));
    assert_eq!((rig.trust(1, 3), rig.reads(2)), (DONE, Err(Reason::Filling)));
    assert_eq!((rig.trust(ALL, 3), rig.reads(2), rig.figure("doubts")), (DONE, Ok(()), 0));
    assert_eq!((rig.trust(1, 2), rig.trust(1, 3)), (STALE, DONE), "nothing is doubted any more");
}

/// A store without copies has nothing to doubt, in whichever boot; nor has a new one.
#[test]
fn without_copies_there_is_no_doubt() {
    let mut rig = Rig::new(options(1, Steer::Never));
    assert_eq!((rig.figure("doubts"), rig.reads(1)), (0, Ok(())));
    assert_eq!(rig.said(&Ask::write(3, (5, 1), 0, vec![3; 100])), Ok(()));
    for boot in 2..5 {
        assert_eq!(rig.told(Call::FLUSH), Reply::Number(boot - 1));
        rig = rig.lose_power(options(boot, Steer::Never));
        assert_eq!((rig.figure("doubts"), rig.reads(1)), (0, Ok(())));
    }
    // The first copy comes in the fourth boot.
    assert_eq!(rig.write(1), Ok(()));
    rig = rig.restart(options(4, Steer::Never));
    assert_eq!((rig.figure("doubts"), rig.reads(1)), (0, Ok(())));
    rig = rig.lose_power(options(5, Steer::Never));
    assert_eq!((rig.figure("doubts"), rig.reads(1)), (1, Err(Reason::Filling)));
}

/// The only copy that it had was acknowledged, not flushed, and is gone, so its store looks like a
/// new one: it would give zeros where others have data.
#[test]
fn what_is_gone_without_a_trace_is_doubted() {
    let mut gone = 0;
    for seed in 0..20 {
        let medium = |seed| Medium::new(MemMedium::new(seed));
        let mut rig = Rig::on(medium(seed), medium(seed + 50), options(1, Steer::Never));
        assert_eq!(rig.write(1), Ok(()));
        rig = rig.lose_power(options(2, Steer::Never));
        assert_eq!((rig.figure("doubts"), rig.reads(1)), (1, Err(Reason::Filling)), "{seed}");
        gone += u64::from(rig.told(Call::Objects { from: 0 }) == Reply::Objects(Vec::new()));
    }
    assert!(gone > 2, "{gone} of 20");
}

/// Who steers, and whom a node trusts, makes no difference.
#[test]
fn every_node_doubts_alike() {
    for threat in [Threat::Ticket, Threat::Signed, Threat::EveryPacket] {
        for steer in [Steer::Never, Steer::Always, Steer::Overload] {
            let of = |boot| NodeOptions { threat, ..options(boot, steer) };
            let mut rig = Rig::new(of(1));
            assert_eq!(rig.write(1), Ok(()));
            rig = rig.lose_power(of(2));
            assert_eq!(rig.reads(1), Err(Reason::Filling), "{threat:?} {steer:?}");
            assert_eq!(rig.write(1), Err(Reason::Filling), "{threat:?} {steer:?}");
            assert_eq!(
                (rig.figure("descriptors"), rig.figure("filling")),
                (0, 2 * u64::from(steer != Steer::Always))
            );
        }
    }
}

/// With the rule taken away the test above would fail.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "nothing is planted in such a build")]
fn a_node_that_trusts_what_it_lost_is_missed() {
    let mut rig = after_power_loss(Steer::Never);
    plant(Some(Fault::Trusting));
    let said = rig.said(&copied(Ask::read(1, 5, 0, 100)));
    plant(None);
    assert_ne!(said, Err(Reason::Filling));
}

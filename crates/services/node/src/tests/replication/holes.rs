//! Holes, and space put aside, of what has copies: each member is asked for itself, and goes over
//! nothing that was not acknowledged by all.

use outboard_wire::shared::call::{Claim, Reply};

use super::left::{claims, of_model};
use super::*;

/// Bytes of a strip, and of the object: two strips.
const STRIP: u64 = 1 << 16;
const WHOLE: u32 = 1 << 17;
const NODES: [u16; 3] = [1, 2, 3];

struct Members {
    world: World,
    strategy: Strategy,
}

impl Members {
    fn new(strategy: Strategy) -> Members {
        let steers = [Steer::Never, Steer::Always, Steer::Overload];
        let world = World::new(6, 3, 0, |number| NodeOptions {
            steer: steers[usize::from(number) - 1],
            ..NodeOptions::default()
        });
        Members { world, strategy }
    }

    /// Both strips become all `byte`, after what was settled.
    fn write(&mut self, sequence: u32, upto: u32, byte: u8) -> Result<(), Reason> {
        let ask = Ask::write(1, (5, sequence), 0, vec![byte; WHOLE as usize]);
        let ask = settled(spread(ask, self.strategy, &NODES), upto);
        self.ask(1, &ask).0.outcome.map(|_| ())
    }

    /// Who has started anew is asked again, by the client and by who forwards to it.
    fn ask(&mut self, to: u16, ask: &Ask) -> (Answer, Vec<u8>) {
        for _ in 0..20 {
            let mut asking = self.world.begin(to, ask);
            let said = self.world.end(&mut asking);
            let is_cut = said.as_ref().is_ok_and(|it| it.0.outcome == Err(Reason::Unreached));
            match said {
                Ok(said) if !is_cut => return said,
                _ => self.world.steps(10_000),
            }
        }
        panic!("nobody answers");
    }

    /// What each member says to a hole.
    fn hole(&mut self, sequence: u32, upto: u32, range: std::ops::Range<u64>) -> Said {
        self.each(Ask::hole(1, (5, sequence), range), upto)
    }

    fn reserve(&mut self, sequence: u32, upto: u32) -> Said {
        let mut ask = Ask::hole(1, (5, sequence), 0..u64::from(WHOLE));
        if let Target::Hole(hole) = &mut ask.heads.target {
            hole.share = Some(Share { count: 1, place: 0, strip: 1 << 16 });
        }
        self.each(ask, upto)
    }

    fn each(&mut self, mut ask: Ask, upto: u32) -> Said {
        ask.heads.capability.end = u64::MAX;
        let ask = settled(spread(ask, self.strategy, &NODES), upto);
        NODES.map(|node| self.ask(node, &ask).0.outcome.map(|_| ()))
    }

    /// What all of them hold, as the first bytes of the strips.
    fn first(&mut self) -> [u8; 2] {
        let read = spread(Ask::read(1, 5, 0, WHOLE), self.strategy, &NODES);
        let all = NODES.map(|node| self.ask(node, &read).1);
        assert!(all[0] == all[1] && all[1] == all[2], "all hold the same");
        [all[0][0], all[0][usize::try_from(STRIP).unwrap()]]
    }

    /// Processes end, or power fails when all was flushed.
    fn restart(&mut self, loses_power: bool) {
        for node in NODES {
            let rig = &self.world.members[usize::from(node) - 1].rig;
            if loses_power {
                assert_eq!(run(rig.node.call(SERVER, Call::FLUSH)), Reply::Number(0));
                rig.log.crash();
                rig.data.crash();
            }
            self.world.restart(node);
        }
    }
}

type Said = [Result<(), Reason>; 3];

const DONE: Said = [Ok(()); 3];
const ORDER: Said = [Err(Reason::Order); 3];

/// A writer that remembers nothing of the strips but what was acknowledged of all.
#[test]
fn a_hole_goes_over_what_all_have_and_a_write_over_the_hole() {
    for (strategy, loses_power) in
        STRATEGIES.into_iter().flat_map(|one| [(one, false), (one, true)])
    {
        let mut members = Members::new(strategy);
        assert_eq!(members.write(1, 0, 1), Ok(()));
        assert_eq!(members.hole(2, 0, 0..STRIP), ORDER, "the first write is not settled");
        assert_eq!(members.hole(2, 1, 0..STRIP), DONE);
        assert_eq!(members.first(), [0, 1]);
        members.restart(loses_power);
        assert_eq!(members.first(), [0, 1]);
        assert_eq!(members.write(3, 1, 3), Err(Reason::Order), "the hole is not settled");
        assert_eq!(members.write(3, 2, 3), Ok(()));
        assert_eq!(members.hole(4, 3, STRIP..u64::MAX), DONE, "a cut");
        assert_eq!(members.first(), [3, 0]);
        members.restart(loses_power);
        assert_eq!(members.write(5, 3, 5), Err(Reason::Order), "nor is the cut");
        assert_eq!(members.write(5, 4, 5), Ok(()));
        assert_eq!(members.first(), [5, 5]);
        assert_eq!(members.hole(4, 3, STRIP..u64::MAX), ORDER, "a cut that comes again, late");
    }
}

/// What is put aside makes strips of its version, where it puts something aside; so it is settled
/// before they are written, and what is written before more is put aside.
#[test]
fn space_is_put_aside_where_nothing_is_open() {
    for strategy in STRATEGIES {
        let mut members = Members::new(strategy);
        assert_eq!(members.reserve(1, 0), DONE);
        assert_eq!(members.world.figures("aside_bytes"), [u64::from(WHOLE); 3]);
        members.restart(false);
        assert_eq!(members.write(2, 0, 2), Err(Reason::Order));
        assert_eq!(members.write(2, 1, 2), Ok(()));
        assert_eq!(members.reserve(3, 1), ORDER);
        assert_eq!(members.reserve(3, 2), DONE);
        assert_eq!((members.first(), members.write(4, 3, 4)), ([2, 2], Ok(())));
    }
}

/// The first strip was written, and again, and a hole over all of it was done at the first member
/// alone, whose claims tell nothing of it then. Its writer died. Counted as one that never had the
/// second write, which was acknowledged, that member had the first one come back.
#[test]
fn who_tells_nothing_of_a_strip_that_others_have_stable_has_no_say() {
    use outboard_cluster::{Answer as Heard, Claim as Claimed, Entry, Role as Part, verdict};
    for strategy in STRATEGIES {
        let mut members = Members::new(strategy);
        assert_eq!((members.write(1, 0, 1), members.write(2, 1, 2)), (Ok(()), Ok(())));
        let hole = spread(Ask::hole(1, (5, 3), 0..STRIP), strategy, &NODES);
        assert_eq!(members.ask(1, &settled(hole, 2)).0.outcome, Ok(()));
        let all = NODES.map(|node| {
            let claims = claims(&members.world, node, 0);
            claims.first().copied().filter(|claim| claim.strip == 0)
        });
        assert_eq!(all.map(|claim| claim.is_some()), [false, true, true]);
        let decide = |counts: fn(&Option<Claim>) -> bool| {
            let told = NODES.iter().zip(all).filter(|(_, claim)| counts(claim));
            let told: Vec<Heard> = told
                .map(|(node, claim)| {
                    let stable = claim.map(|claim| of_model(claim.stable)).unwrap_or_default();
                    let pending = claim.and_then(|claim| claim.pending);
                    let pending = pending.map(|taken| (of_model(taken.version), taken.epoch));
                    let member = Entry { node: *node, life: 1, role: Part::Active, joined: 1 };
                    Heard { member, claim: Claimed { stable: Some(stable), pending } }
                })
                .collect();
            verdict(&told).map(|decided| decided.version.seq)
        };
        assert_eq!((decide(|_| true), decide(Option::is_some)), (Some(1), Some(2)));
    }
}

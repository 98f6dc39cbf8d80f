//! What may go wrong in the seeded world, by its seed; and how a plan that fails is made smaller.

use outboard_base::Rng;

/// What of a world can be made smaller when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knob {
    /// Of each end.
    Asks,
    /// Of a thousand datagrams.
    Lost,
    Doubled,
    Late,
    Changed,
    Replayed,
    Forged,
    /// How many of each.
    Cuts,
    Restarts,
    Refusals,
    /// Milliseconds that an answer may take.
    Slow,
    /// Which ends want packets sealed, a bit each.
    Sealed,
}

pub(super) const KNOBS: usize = 12;
const MOST: [u64; KNOBS] = [20, 100, 100, 150, 50, 100, 100, 4, 4, 20, 2000, 15];

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) knobs: [u64; KNOBS],
}

impl Plan {
    pub(super) fn of(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let mut plan = Plan { seed, knobs: [0; KNOBS] };
        for (knob, most) in plan.knobs.iter_mut().zip(MOST) {
            if rng.chance(1, 2) {
                *knob = rng.below(most + 1);
            }
        }
        plan.knobs[0] = 1 + rng.below(MOST[0]);
        if rng.chance(1, 3) {
            plan.knobs[Knob::Cuts as usize] = 0;
            plan.knobs[Knob::Restarts as usize] = 0;
        }
        if rng.chance(1, 3) {
            plan.knobs[Knob::Sealed as usize] = 15;
        }
        plan
    }

    /// Nothing is wrong with the network but who is in it.
    pub(super) fn hostile(seed: u64) -> Plan {
        let mut plan = Plan { seed, knobs: [0; KNOBS] };
        plan.knobs[Knob::Asks as usize] = 10;
        plan.knobs[Knob::Doubled as usize] = 100;
        plan.knobs[Knob::Replayed as usize] = 300;
        plan.knobs[Knob::Forged as usize] = 300;
        plan.knobs[Knob::Slow as usize] = 1000;
        plan.knobs[Knob::Sealed as usize] = 15;
        plan
    }

    pub(super) fn knob(&self, knob: Knob) -> u64 {
        self.knobs[knob as usize]
    }

    /// Nothing happens for which a conversation may end.
    pub(super) fn is_harmless(&self) -> bool {
        let lossy = self.knob(Knob::Lost) + self.knob(Knob::Changed);
        let hostile = self.knob(Knob::Forged) + self.knob(Knob::Replayed);
        // Forged hints make an end look whether the other is there, which many losses may hide.
        let is_clear = lossy == 0 || hostile == 0;
        self.knob(Knob::Cuts) == 0 && self.knob(Knob::Restarts) == 0 && is_clear
    }
}

/// The smallest plan found that is wrong in some way: knobs go to nothing, or half way there.
pub(super) fn shrink(mut plan: Plan, run: impl Fn(&Plan) -> Result<(), String>) -> (Plan, String) {
    let mut wrong = run(&plan).err().unwrap_or_default();
    loop {
        let mut is_smaller = false;
        for knob in 0..KNOBS {
            let value = plan.knobs[knob];
            for smaller in [0, value / 2, value.saturating_sub(1)] {
                let mut tried = plan.clone();
                tried.knobs[knob] = smaller;
                if smaller < value
                    && let Err(why) = run(&tried)
                {
                    (plan, wrong, is_smaller) = (tried, why, true);
                    break;
                }
            }
        }
        if !is_smaller {
            return (plan, wrong);
        }
    }
}

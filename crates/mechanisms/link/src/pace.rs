//! Spin, then sleep: how long a poller looks before it goes to bed.
//!
//! Waking a sleeper costs some tens of microseconds on both cores, so looking for about that long
//! before sleeping never costs more than twice what the best choice would have. Who sleeps long
//! again and again looks shorter each time, down to 1/32; one short wait restores the full budget.
//! An idle link therefore uses no CPU at all, and a busy one never sleeps.

use std::time::Duration;

use outboard_base::Time;

/// How a poller paces itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest look before sleeping. [`Duration::MAX`]: never sleep (a card that owns its cores).
    pub spin: Duration,
    /// From here on each turn gives the core to whoever waits for it.
    pub yield_after: Duration,
    /// A sleep shorter than this was a mistake: look longer next time.
    pub near: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            spin: Duration::from_micros(50),
            yield_after: Duration::from_micros(4),
            near: Duration::from_micros(300),
        }
    }
}

/// What to do in a turn that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look again.
    Spin,
    /// Let others run, then look again.
    Yield,
    /// Publish "asleep", look once more, sleep.
    Sleep,
}

/// The pace of one poller.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    config: Config,
    /// Long sleeps in a row.
    long: u32,
    idle_since: Option<Time>,
    /// The core is wanted by others until then, as far as is known.
    crowded_until: Time,
    spins: u64,
    spin_ns: u64,
    sleeps: u64,
}

/// What a pace has spent since last asked, for the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Turns that found nothing.
    pub spins: u64,
    /// Nanoseconds in such turns.
    pub spin_ns: u64,
    /// Times it slept.
    pub sleeps: u64,
}

const SHIFT_MAX: u32 = 5;
/// A yield that takes longer gave the core to somebody who wanted it.
pub const CROWDED: Duration = Duration::from_micros(25);
/// For this long after such a yield nobody spins: who spins on a wanted core has used up its share
/// by the time there is work, and waits milliseconds for it; who sleeps is run as soon as woken.
pub const CROWDED_FOR: Duration = Duration::from_millis(20);

impl Pace {
    /// A fresh pace.
    #[must_use]
    pub fn new(config: Config) -> Pace {
        let crowded_until = Time(0);
        Pace { config, long: 0, idle_since: None, crowded_until, spins: 0, spin_ns: 0, sleeps: 0 }
    }

    fn budget(&self) -> Duration {
        if self.config.spin == Duration::MAX {
            return Duration::MAX;
        }
        self.config.spin / (1 << self.long.min(SHIFT_MAX))
    }

    /// A turn found work at `now`.
    pub fn work(&mut self, now: Time) {
        if let Some(since) = self.idle_since.take() {
            self.charge(now.since(since));
            self.long = 0;
        }
    }

    /// Whether the last turn found nothing: only then is there anything to tell [`Self::work`].
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.idle_since.is_some()
    }

    /// A turn at `now` found nothing: what next?
    pub fn idle(&mut self, now: Time) -> Step {
        let since = *self.idle_since.get_or_insert(now);
        self.spins += 1;
        let spun = now.since(since);
        let crowded = now < self.crowded_until && self.config.spin != Duration::MAX;
        if crowded || spun >= self.budget() {
            self.idle_since = None;
            self.charge(spun);
            Step::Sleep
        } else if spun >= self.config.yield_after {
            Step::Yield
        } else {
            Step::Spin
        }
    }

    /// It gave its core away at `from` and got it back at `to`.
    pub fn yielded(&mut self, from: Time, to: Time) {
        if to.since(from) > CROWDED {
            self.crowded_until = to.after(CROWDED_FOR);
        }
    }

    /// It slept from `from` to `to`.
    pub fn slept(&mut self, from: Time, to: Time) {
        self.sleeps += 1;
        self.long =
            if to.since(from) <= self.config.near { 0 } else { self.long.saturating_add(1) };
    }

    /// Takes what was spent, to be charged to the ledger.
    pub fn take_spent(&mut self) -> Spent {
        let spent = Spent { spins: self.spins, spin_ns: self.spin_ns, sleeps: self.sleeps };
        (self.spins, self.spin_ns, self.sleeps) = (0, 0, 0);
        spent
    }

    fn charge(&mut self, spun: Duration) {
        self.spin_ns =
            self.spin_ns.saturating_add(u64::try_from(spun.as_nanos()).unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    /// Runs idle turns 1 us apart until it sleeps; microseconds spun.
    fn spin_until_sleep(pace: &mut Pace, now: &mut u64) -> u64 {
        let from = *now;
        while pace.idle(Time(*now)) != Step::Sleep {
            *now += US;
        }
        (*now - from) / US
    }

    #[test]
    fn long_sleeps_shorten_the_look_and_one_hit_restores_it() {
        let (mut pace, mut now) = (Pace::new(Config::default()), 0);
        let mut looks = Vec::new();
        for _ in 0..8 {
            looks.push(spin_until_sleep(&mut pace, &mut now));
            pace.slept(Time(now), Time(now + 10_000 * US));
            now += 10_000 * US;
            pace.work(Time(now));
        }
        assert_eq!(looks, [50, 25, 13, 7, 4, 2, 2, 2]);
        assert_eq!(pace.idle(Time(now)), Step::Spin);
        pace.work(Time(now + US));
        now += 2 * US;
        assert_eq!(spin_until_sleep(&mut pace, &mut now), 50);
        pace.slept(Time(now), Time(now + 100 * US));
        pace.work(Time(now + 100 * US));
        now += 100 * US;
        assert_eq!(spin_until_sleep(&mut pace, &mut now), 50, "a short sleep is a near miss");
        let spent = pace.take_spent();
        assert_eq!((spent.sleeps, spent.spin_ns / US), (9, 105 + 1 + 50 + 50));
        assert_eq!(pace.take_spent(), Spent::default());
    }

    /// Under a build on both cores each file operation took milliseconds: pollers spun their share
    /// of the core away and then waited for the compilers' turns to end.
    #[test]
    fn nobody_spins_on_a_core_that_others_want() {
        let (mut pace, mut now) = (Pace::new(Config::default()), 1_000_000 * US);
        assert_eq!(pace.idle(Time(now)), Step::Spin);
        pace.yielded(Time(now), Time(now + 3 * US));
        assert_eq!(pace.idle(Time(now + 4 * US)), Step::Yield, "a quick return means an idle core");
        pace.yielded(Time(now + 4 * US), Time(now + 3000 * US));
        now += 3001 * US;
        pace.work(Time(now));
        assert_eq!(pace.idle(Time(now + US)), Step::Sleep);
        now += 30_000 * US;
        pace.work(Time(now));
        assert_eq!(pace.idle(Time(now + US)), Step::Spin, "it is tried again after a while");
    }

    #[test]
    fn turns_yield_before_they_sleep_and_a_card_never_sleeps() {
        let mut pace = Pace::new(Config::default());
        let steps: Vec<Step> = (0..6).map(|us| pace.idle(Time(us * US))).collect();
        assert_eq!(
            steps,
            [Step::Spin, Step::Spin, Step::Spin, Step::Spin, Step::Yield, Step::Yield]
        );
        let mut card = Pace::new(Config { spin: Duration::MAX, ..Config::default() });
        card.idle(Time(0));
        assert_eq!(card.idle(Time(u64::MAX / 2)), Step::Yield);
    }
}

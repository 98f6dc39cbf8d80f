//! A lossy line: what becomes of each thing that goes one way, from one sender to one receiver.
//!
//! Networks, event rings that overflow, completions that come late: whatever is an effect may be
//! lost, delayed, doubled or overtaken, and a line decides which, by seed. It holds nothing itself;
//! who sends puts the thing where its time comes (a [`Timeline`](crate::Timeline)).

use std::time::Duration;

use outboard_base::{Rng, Time};

/// How long things are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// All of them so long.
    Fixed(Duration),
    /// From the least to the most, evenly.
    Between(Duration, Duration),
    /// Half of them the first, a quarter twice that, and so on up to the second: a long tail.
    Tail(Duration, Duration),
}

impl Delay {
    fn draw(self, rng: &mut Rng) -> Duration {
        match self {
            Delay::Fixed(delay) => delay,
            Delay::Between(least, most) => {
                let span = most.saturating_sub(least).as_nanos();
                let span = u64::try_from(span).unwrap_or(u64::MAX).saturating_add(1);
                least + Duration::from_nanos(rng.below(span))
            }
            Delay::Tail(usual, most) => {
                let doublings = rng.next_u64().trailing_ones().min(31);
                usual.saturating_mul(1 << doublings).min(most.max(usual))
            }
        }
    }
}

/// What happens on a line. The chances are so many in a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineOptions {
    /// How long things are under way.
    pub delay: Delay,
    /// Never arrives.
    pub lost_ppm: u32,
    /// Arrives twice, the second time late.
    pub doubled_ppm: u32,
    /// Is held back and overtaken by what is sent behind it. All else arrives in order.
    pub overtaken_ppm: u32,
    /// Things under way at most; what is sent to a full line is lost.
    pub queue_max: usize,
}

impl LineOptions {
    /// A line that delivers everything once and in order, after `delay`.
    #[must_use]
    pub fn sound(delay: Delay) -> LineOptions {
        let queue_max = usize::MAX;
        LineOptions { delay, lost_ppm: 0, doubled_ppm: 0, overtaken_ppm: 0, queue_max }
    }
}

/// What became of a thing that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives.
    Arrives(Time),
    /// It arrives twice.
    Twice(Time, Time),
    /// Those behind it may arrive first.
    Overtaken(Time),
    /// It never arrives.
    Lost,
    /// The line was full.
    Refused,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    options: LineOptions,
    rng: Rng,
    /// When the last thing that keeps the order arrives.
    last: Time,
    under_way: usize,
}

/// Delays that a late copy, or what is overtaken, takes more at most.
const LATE_DELAYS_MAX: u64 = 8;

impl Line {
    /// A line whose choices are `rng`'s.
    #[must_use]
    pub fn new(options: LineOptions, rng: Rng) -> Line {
        Line { options, rng, last: Time(0), under_way: 0 }
    }

    /// Other options, for what is sent from now on.
    pub fn set(&mut self, options: LineOptions) {
        self.options = options;
    }

    /// Something is sent. It, and its copy, is under way until [`Line::arrived`] says otherwise.
    pub fn send(&mut self, now: Time) -> Fate {
        let LineOptions { lost_ppm, doubled_ppm, overtaken_ppm, queue_max, .. } = self.options;
        // Drawn whatever comes of it: a full line does not move what the next one draws.
        let [lost, doubled, overtaken] = [lost_ppm, doubled_ppm, overtaken_ppm]
            .map(|ppm| self.rng.chance(u64::from(ppm), 1_000_000));
        let at = now.after(self.options.delay.draw(&mut self.rng));
        let late = self.late(at);
        if self.under_way >= queue_max {
            return Fate::Refused;
        }
        if lost {
            return Fate::Lost;
        }
        self.under_way += 1;
        if overtaken {
            return Fate::Overtaken(late);
        }
        let at = at.max(self.last);
        self.last = at;
        if !doubled || self.under_way >= queue_max {
            return Fate::Arrives(at);
        }
        self.under_way += 1;
        Fate::Twice(at, late.max(at))
    }

    fn late(&mut self, mut at: Time) -> Time {
        for _ in 0..=self.rng.below(LATE_DELAYS_MAX) {
            at = at.after(self.options.delay.draw(&mut self.rng));
        }
        at
    }

    /// One of those under way is there, or is known to be lost.
    pub fn arrived(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn fates(options: LineOptions, count: u64) -> Vec<Fate> {
        let mut line = Line::new(options, Rng::new(7));
        (0..count).map(|at| line.send(Time(at * 1_000))).collect()
    }

    #[test]
    fn a_sound_line_delivers_all_in_order() {
        for delay in [Delay::Fixed(MS), Delay::Between(MS, 9 * MS), Delay::Tail(MS, 50 * MS)] {
            let arrivals =
                fates(LineOptions::sound(delay), 1_000).into_iter().map(|fate| match fate {
                    Fate::Arrives(at) => at,
                    other => panic!("{other:?}"),
                });
            let arrivals: Vec<Time> = arrivals.collect();
            assert!(arrivals.is_sorted() && arrivals[0] >= Time(1_000_000), "{delay:?}");
        }
    }

    #[test]
    fn delays_keep_to_their_distribution() {
        let mut rng = Rng::new(3);
        let mut draw =
            |delay: Delay| -> Vec<Duration> { (0..10_000).map(|_| delay.draw(&mut rng)).collect() };
        let even = draw(Delay::Between(2 * MS, 4 * MS));
        assert!(even.iter().all(|delay| (2 * MS..=4 * MS).contains(delay)));
        let mean = even.iter().sum::<Duration>() / 10_000;
        assert!(mean.abs_diff(3 * MS) < MS / 20, "{mean:?}");
        let tail = draw(Delay::Tail(MS, 30 * MS));
        let usual = tail.iter().filter(|delay| **delay == MS).count();
        assert!((4_700..5_300).contains(&usual), "{usual} of 10,000 take the usual time");
        assert_eq!(tail.iter().max(), Some(&(30 * MS)), "the tail ends where it must");
        assert_eq!(draw(Delay::Between(4 * MS, 2 * MS))[0], 4 * MS, "an empty span is its start");
    }

    #[test]
    fn chances_are_of_a_million() {
        let sound = LineOptions::sound(Delay::Fixed(MS));
        let shares = |options, is: fn(&Fate) -> bool| {
            fates(options, 100_000).iter().filter(|fate| is(fate)).count() / 1_000
        };
        let lost = LineOptions { lost_ppm: 300_000, ..sound };
        assert!((29..=31).contains(&shares(lost, |fate| *fate == Fate::Lost)));
        let doubled = LineOptions { doubled_ppm: 300_000, ..sound };
        assert!((29..=31).contains(&shares(doubled, |fate| matches!(fate, Fate::Twice(..)))));
        let overtaken = LineOptions { overtaken_ppm: 300_000, ..sound };
        assert!((29..=31).contains(&shares(overtaken, |fate| matches!(fate, Fate::Overtaken(_)))));
    }

    #[test]
    fn those_behind_do_not_wait_for_what_is_overtaken() {
        let sound = LineOptions::sound(Delay::Fixed(MS));
        let fates = fates(LineOptions { overtaken_ppm: 500_000, ..sound }, 1_000);
        let mut latest = Time(0);
        let mut overtook = 0;
        for fate in fates {
            match fate {
                Fate::Overtaken(at) => latest = latest.max(at),
                Fate::Arrives(at) => overtook += u64::from(at < latest),
                other => panic!("{other:?}"),
            }
        }
        assert!(overtook > 400, "{overtook}");
    }

    #[test]
    fn a_full_line_refuses_and_has_room_again() {
        let queue_max = 3;
        let sound = LineOptions::sound(Delay::Fixed(MS));
        let mut line =
            Line::new(LineOptions { queue_max, doubled_ppm: 1_000_000, ..sound }, Rng::new(1));
        assert!(matches!(line.send(Time(0)), Fate::Twice(..)));
        // No room for a copy.
        assert!(matches!(line.send(Time(0)), Fate::Arrives(_)));
        assert_eq!(line.send(Time(0)), Fate::Refused);
        line.arrived();
        assert!(matches!(line.send(Time(0)), Fate::Arrives(_)));
    }
}

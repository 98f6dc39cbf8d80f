//! The network port: messages between named endpoints over lossy lines, and who is cut off.
//!
//! It is to the simulated world what sockets are to the real one: unreliable datagrams. Each
//! direction between two endpoints is a [`Line`] of its own with options of its own (loss,
//! duplication, overtaking, delay, a bounded queue), drawn from its own random source: what one
//! pair of endpoints does never moves what befalls another. A cut loses what is sent and what is
//! under way; nobody is told.
//!
//! Time is the caller's: [`LossyNetwork::send`] and [`LossyNetwork::take`] are told what it is, and
//! [`LossyNetwork::next_arrival`] says when to come back. Equal seeds and equal calls give equal
//! arrivals, which [`LossyNetwork::trace`] sums up.

use std::collections::{BTreeMap, BTreeSet};

use outboard_base::Time;

use crate::line::{Fate, Line, LineOptions};
use crate::{Timeline, Trace, seeds};

/// Who sends and receives, by the name [`LossyNetwork::endpoint`] was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(usize);

/// A message that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery<M> {
    /// Who sent it.
    pub from: Endpoint,
    /// Whom it is for.
    pub to: Endpoint,
    /// What was sent.
    pub message: M,
}

/// What the network did, in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkCounts {
    /// Were sent.
    pub sent: u64,
    /// Arrived, copies too.
    pub arrived: u64,
    /// Were lost by chance.
    pub lost: u64,
    /// Were doubled.
    pub doubled: u64,
    /// Were held back, so that others may overtake them.
    pub overtaken: u64,
    /// Were lost to a full queue.
    pub refused: u64,
    /// Were lost to a cut.
    pub cut: u64,
}

/// The network of one world. `M` is a message, bytes or a decoded one.
pub struct LossyNetwork<M> {
    seed: u64,
    names: Vec<String>,
    usual: LineOptions,
    lines: BTreeMap<(Endpoint, Endpoint), Line>,
    cuts: BTreeSet<(Endpoint, Endpoint)>,
    under_way: Timeline<Delivery<M>>,
    counts: NetworkCounts,
    trace: Trace,
}

impl<M: Clone> LossyNetwork<M> {
    /// A network without endpoints, whose lines have the options `usual`.
    #[must_use]
    pub fn new(seed: u64, usual: LineOptions) -> LossyNetwork<M> {
        LossyNetwork {
            seed,
            names: Vec::new(),
            usual,
            lines: BTreeMap::new(),
            cuts: BTreeSet::new(),
            under_way: Timeline::default(),
            counts: NetworkCounts::default(),
            trace: Trace::default(),
        }
    }

    /// The endpoint of this name, which is there from now on.
    pub fn endpoint(&mut self, name: &str) -> Endpoint {
        let known = self.names.iter().position(|known| known == name);
        Endpoint(known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        }))
    }

    /// What an endpoint is called.
    #[must_use]
    pub fn name(&self, endpoint: Endpoint) -> &str {
        self.names.get(endpoint.0).map_or("", String::as_str)
    }

    fn line(&mut self, from: Endpoint, to: Endpoint) -> &mut Line {
        let part = format!("{} > {}", self.name(from), self.name(to));
        let (seed, usual) = (self.seed, self.usual);
        let line = self.lines.entry((from, to));
        line.or_insert_with(|| Line::new(usual, seeds::rng(seed, &part)))
    }

    /// LineOptions of all lines there are and will be, for what is sent from now on.
    pub fn set_all(&mut self, options: LineOptions) {
        self.usual = options;
        self.lines.values_mut().for_each(|line| line.set(options));
    }

    /// LineOptions of one direction, for what is sent from now on.
    pub fn set_line(&mut self, from: Endpoint, to: Endpoint, options: LineOptions) {
        self.line(from, to).set(options);
    }

    /// Sends a message. Nobody is told what becomes of it.
    pub fn send(&mut self, now: Time, from: Endpoint, to: Endpoint, message: M) {
        self.counts.sent += 1;
        if self.cuts.contains(&(from, to)) {
            self.counts.cut += 1;
            return;
        }
        let arrival = Delivery { from, to, message };
        match self.line(from, to).send(now) {
            Fate::Lost => self.counts.lost += 1,
            Fate::Refused => self.counts.refused += 1,
            Fate::Arrives(at) => self.under_way.add(at, arrival),
            Fate::Overtaken(at) => {
                self.counts.overtaken += 1;
                self.under_way.add(at, arrival);
            }
            Fate::Twice(at, again) => {
                self.counts.doubled += 1;
                self.under_way.add(again, arrival.clone());
                self.under_way.add(at, arrival);
            }
        }
    }

    /// When the next message arrives, if none is sent before. It may be lost to a cut then.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Time> {
        self.under_way.next_at()
    }

    /// The next message that has arrived at `now`.
    pub fn take(&mut self, now: Time) -> Option<Delivery<M>> {
        loop {
            let at = self.next_arrival()?;
            let arrival = self.under_way.take(now)?;
            let (from, to) = (arrival.from, arrival.to);
            self.line(from, to).arrived();
            if self.cuts.contains(&(from, to)) {
                self.counts.cut += 1;
                continue;
            }
            self.counts.arrived += 1;
            self.trace.note_text(format_args!("{} {}>{} ", at.0, from.0, to.0));
            return Some(arrival);
        }
    }

    /// Nothing reaches `to` from `from` any more; the other direction is another cut.
    pub fn cut(&mut self, from: Endpoint, to: Endpoint) {
        self.cuts.insert((from, to));
    }

    /// What is sent from `from` to `to` arrives again.
    pub fn mend(&mut self, from: Endpoint, to: Endpoint) {
        self.cuts.remove(&(from, to));
    }

    /// Cuts `part` off from all others, both ways, and mends every other cut.
    pub fn partition(&mut self, part: &[Endpoint]) {
        let all = (0..self.names.len()).map(Endpoint);
        let pairs = all.clone().flat_map(|from| all.clone().map(move |to| (from, to)));
        let apart = |(from, to): &(Endpoint, Endpoint)| part.contains(from) != part.contains(to);
        self.cuts = pairs.filter(apart).collect();
    }

    /// Mends every cut.
    pub fn heal(&mut self) {
        self.cuts.clear();
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> NetworkCounts {
        self.counts
    }

    /// Messages under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Who was reached by whom, and when.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::line::Delay;

    const MS: Duration = Duration::from_millis(1);
    const LATER: Time = Time(u64::MAX);

    fn sound() -> LineOptions {
        LineOptions::sound(Delay::Fixed(MS))
    }

    fn all<M: Clone>(network: &mut LossyNetwork<M>) -> Vec<M> {
        std::iter::from_fn(|| network.take(LATER)).map(|arrival| arrival.message).collect()
    }

    #[test]
    fn a_message_arrives_where_it_was_sent_when_its_time_has_come() {
        let mut network = LossyNetwork::new(1, sound());
        let (a, b) = (network.endpoint("a"), network.endpoint("b"));
        assert_eq!((network.endpoint("a"), network.name(b)), (a, "b"));
        network.send(Time(5), a, b, "hello");
        let due = Time(5).after(MS);
        assert_eq!((network.next_arrival(), network.take(Time(due.0 - 1))), (Some(due), None));
        let arrival = Delivery { from: a, to: b, message: "hello" };
        assert_eq!((network.take(due), network.take(due)), (Some(arrival), None));
        assert_eq!(
            network.counts(),
            NetworkCounts { sent: 1, arrived: 1, ..NetworkCounts::default() }
        );
    }

    #[test]
    fn a_partition_loses_what_is_under_way_and_what_is_sent_until_it_heals() {
        let mut network = LossyNetwork::new(1, sound());
        let [a, b, c] = ["a", "b", "c"].map(|name| network.endpoint(name));
        network.send(Time(0), a, b, "under way");
        network.partition(&[a]);
        network.send(Time(0), a, b, "there");
        network.send(Time(0), c, a, "back");
        network.send(Time(0), b, c, "among the others");
        assert_eq!(all(&mut network), ["among the others"]);
        network.heal();
        network.send(Time(0), a, b, "healed");
        assert_eq!(all(&mut network), ["healed"]);
        assert_eq!(network.counts().cut, 3);
    }

    #[test]
    fn a_cut_has_one_direction() {
        let mut network = LossyNetwork::new(1, sound());
        let (a, b) = (network.endpoint("a"), network.endpoint("b"));
        network.cut(a, b);
        network.send(Time(0), a, b, 1);
        network.send(Time(0), b, a, 2);
        assert_eq!(all(&mut network), [2]);
        network.mend(a, b);
        network.send(Time(0), a, b, 3);
        assert_eq!(all(&mut network), [3]);
    }

    #[test]
    fn a_queue_has_an_end_and_each_line_its_own() {
        let mut network = LossyNetwork::new(1, LineOptions { queue_max: 2, ..sound() });
        let [a, b, c] = ["a", "b", "c"].map(|name| network.endpoint(name));
        (0..5).for_each(|number| network.send(Time(0), a, b, number));
        network.send(Time(0), c, b, 9);
        assert_eq!(all(&mut network), [0, 1, 9]);
        assert_eq!((network.counts().refused, network.under_way()), (3, 0));
        network.send(Time(0), a, b, 5);
        assert_eq!(all(&mut network), [5]);
    }

    fn rough() -> LineOptions {
        LineOptions {
            delay: Delay::Tail(MS, 20 * MS),
            lost_ppm: 100_000,
            doubled_ppm: 100_000,
            overtaken_ppm: 100_000,
            queue_max: 64,
        }
    }

    /// 2,000 messages from `a` to `b`; `busy`: others send meanwhile.
    fn talk(seed: u64, busy: bool) -> (Vec<(Time, u64)>, NetworkCounts, u64) {
        let mut network = LossyNetwork::new(seed, rough());
        let [a, b, c] = ["a", "b", "c"].map(|name| network.endpoint(name));
        let mut arrived = Vec::new();
        for number in 0..2_000u64 {
            let now = Time(number * 1_000_000);
            network.send(now, a, b, number);
            if busy {
                network.send(now, c, b, number);
            }
            while let Some(arrival) = network.take(now) {
                if arrival.from == a {
                    arrived.push((now, arrival.message));
                }
            }
        }
        (arrived, network.counts(), network.trace().hash())
    }

    #[test]
    fn equal_seeds_give_equal_traces() {
        assert_eq!(talk(1, false), talk(1, false));
        assert_ne!(talk(1, false).2, talk(2, false).2);
        let (arrived, counts, _) = talk(1, false);
        assert!(!arrived.is_sorted_by_key(|(_, number)| *number), "nothing was overtaken");
        let NetworkCounts { lost, doubled, overtaken, .. } = counts;
        assert!(lost > 100 && doubled > 100 && overtaken > 100, "{counts:?}");
    }

    #[test]
    fn what_others_send_moves_nothing() {
        assert_eq!(talk(3, false).0, talk(3, true).0);
    }
}

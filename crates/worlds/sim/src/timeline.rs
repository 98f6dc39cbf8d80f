//! Virtual time: what happens next, by (moment, order of asking).
//!
//! A world made of timelines never sleeps and never reads a clock: it takes the next event and the
//! time is that event's. Two events of one moment come in the order in which they were asked for,
//! so that equal inputs give equal runs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use outboard_base::Time;

/// Events in the order of their time.
pub struct Timeline<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    asked: u64,
}

struct Entry<E> {
    key: (Time, u64),
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl<E> Default for Timeline<E> {
    fn default() -> Timeline<E> {
        Timeline { heap: BinaryHeap::new(), asked: 0 }
    }
}

impl<E> Timeline<E> {
    /// `event` is to happen at `at`.
    pub fn add(&mut self, at: Time, event: E) {
        self.asked += 1;
        self.heap.push(Reverse(Entry { key: (at, self.asked), event }));
    }

    /// When the next event happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(entry)| entry.key.0)
    }

    /// The next event that is due at `now`.
    pub fn take(&mut self, now: Time) -> Option<E> {
        let next = self.heap.peek_mut().filter(|next| next.0.key.0 <= now)?;
        Some(PeekMut::pop(next).0.event)
    }

    /// Events to come.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing is to come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_they_were_asked_for() {
        let mut timeline = Timeline::default();
        for (at, event) in [(5, 'd'), (1, 'a'), (5, 'e'), (1, 'b'), (2, 'c')] {
            timeline.add(Time(at), event);
        }
        assert_eq!((timeline.next_at(), timeline.len()), (Some(Time(1)), 5));
        assert_eq!(timeline.take(Time(0)), None, "nothing is due yet");
        let all: String = std::iter::from_fn(|| timeline.take(Time(5))).collect();
        assert_eq!(all, "abcde");
        assert!(timeline.is_empty() && timeline.next_at().is_none());
    }
}

//! S3-FIFO (Yang et al., SOSP 2023), bucket by bucket: a new page enters a small queue and leaves
//! the cache at its end unless it was used there; who was used moves to the main queue, where use
//! buys another round; who left the small queue unused is remembered by its hash alone, and enters
//! the main queue if it comes back soon.

use super::Replace;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Queue {
    #[default]
    None,
    Small,
    Main,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    queue: Queue,
    /// Samples that found it used, at most [`FREQUENCY_MAX`].
    frequency: u8,
    /// Place in its queue: lower is older.
    order: u64,
    page: u32,
}

const FREQUENCY_MAX: u8 = 3;
/// Pages remembered a bucket.
const GHOSTS: usize = 8;

#[derive(Clone, Copy, Default)]
struct Ghosts {
    pages: [Option<u32>; GHOSTS],
    next: usize,
}

impl Ghosts {
    fn remember(&mut self, page: u32) {
        if let Some(place) = self.pages.get_mut(self.next % GHOSTS) {
            *place = Some(page);
        }
        self.next = (self.next + 1) % GHOSTS;
    }

    fn recall(&mut self, page: u32) -> bool {
        let found = self.pages.iter_mut().find(|ghost| **ghost == Some(page));
        found.is_some_and(|ghost| ghost.take().is_some())
    }
}

/// Two queues and a ghost queue a bucket.
pub struct S3Fifo {
    slots: Vec<Slot>,
    ghosts: Vec<Ghosts>,
    next: u64,
    ways: u32,
    small_max: usize,
}

impl S3Fifo {
    /// For `total` entries in buckets of `ways`.
    #[must_use]
    pub fn new(total: u32, ways: u32) -> S3Fifo {
        let (total, ways) = (total as usize, ways.max(1));
        S3Fifo {
            slots: vec![Slot::default(); total],
            ghosts: vec![Ghosts::default(); total.div_ceil(ways as usize)],
            next: 1,
            ways,
            // A tenth of the cache, as the paper has it; a bucket has no tenths.
            small_max: (ways as usize / 10).max(1),
        }
    }

    fn slot(&self, at: u32) -> Slot {
        self.slots.get(at as usize).copied().unwrap_or_default()
    }

    fn enter(&mut self, at: u32, queue: Queue, frequency: u8) {
        self.next += 1;
        let order = self.next;
        if let Some(slot) = self.slots.get_mut(at as usize) {
            (slot.queue, slot.frequency, slot.order) = (queue, frequency, order);
        }
    }

    fn oldest(&self, candidates: &[u32], queue: Queue) -> Option<u32> {
        let of_queue = candidates.iter().copied().filter(|&at| self.slot(at).queue == queue);
        of_queue.min_by_key(|&at| self.slot(at).order)
    }
}

impl Replace for S3Fifo {
    fn filled(&mut self, at: u32, page: u32) {
        let ghosts = self.ghosts.get_mut((at / self.ways) as usize);
        let known = ghosts.is_some_and(|ghosts| ghosts.recall(page));
        self.enter(at, if known { Queue::Main } else { Queue::Small }, 0);
        if let Some(slot) = self.slots.get_mut(at as usize) {
            slot.page = page;
        }
    }

    fn looked(&mut self, at: u32, referenced: bool) {
        if let Some(slot) = self.slots.get_mut(at as usize)
            && referenced
        {
            slot.frequency = (slot.frequency + 1).min(FREQUENCY_MAX);
        }
    }

    fn victim(&mut self, candidates: &[u32]) -> Option<u32> {
        let first = *candidates.first()?;
        // Each round moves a page up or takes one of its few uses away.
        let rounds = candidates.len() * (usize::from(FREQUENCY_MAX) + 2);
        for _ in 0..rounds {
            // What was never reported counts as new.
            let unknown = candidates.iter().copied().find(|&at| self.slot(at).queue == Queue::None);
            let small = candidates.iter().filter(|&&at| self.slot(at).queue == Queue::Small);
            let crowded = small.count() >= self.small_max;
            let old = self.oldest(candidates, Queue::Small).filter(|_| crowded);
            if let Some(at) = unknown.or(old) {
                if self.slot(at).frequency == 0 {
                    let page = self.slot(at).page;
                    if let Some(ghosts) = self.ghosts.get_mut((at / self.ways) as usize) {
                        ghosts.remember(page);
                    }
                    return Some(at);
                }
                self.enter(at, Queue::Main, 0);
                continue;
            }
            let Some(at) = self.oldest(candidates, Queue::Main) else { break };
            match self.slot(at).frequency {
                0 => return Some(at),
                frequency => self.enter(at, Queue::Main, frequency - 1),
            }
        }
        Some(first)
    }

    fn removed(&mut self, at: u32) {
        if let Some(slot) = self.slots.get_mut(at as usize) {
            *slot = Slot::default();
        }
    }
}

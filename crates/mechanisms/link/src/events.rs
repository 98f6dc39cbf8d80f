//! The event ring: notices from the DPU to the host, written by DMA, never waited for.
//!
//! An entry is new exactly when it holds the sequence number its reader waits for. The reader tells
//! in a register how far it has read. A full ring drops events, and the next entry with room is
//! [`Event::Overflow`]: assume that everything changed. So the DPU never blocks on a slow or dead
//! host.
//!
//! To read an event is not to have acted upon it: a host that keeps what events end says in another
//! register how far it has done what they ask ([`Acts`]). Whoever wants to know that nobody relies
//! on an old state any more compares that with what was posted ([`Sender::has_acted`]).

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Mutex, PoisonError};

use outboard_wire::event::{EVENT_LEN, EVENTS, Event, SEQUENCE_AT};

use crate::Region;
use crate::dma::Dma;
use crate::layout::Layout;
use crate::region::{OutOfRegion, fence};
use crate::registers::Registers;
use outboard_base::ledger::{Count, Kind, Ledger};

/// The DPU's end.
pub struct Sender {
    dma: Arc<dyn Dma>,
    registers: Registers,
    layout: Layout,
    ledger: Arc<Ledger>,
    /// The number the next entry gets.
    next: u64,
    /// Events were dropped since the last Overflow entry.
    lost: bool,
    posted: bool,
}

impl Sender {
    /// A sender over fresh registers; the host cleared the ring before it attached.
    #[must_use]
    pub fn new(dma: Arc<dyn Dma>, registers: Registers, ledger: Arc<Ledger>) -> Sender {
        let layout = registers.layout();
        Sender { dma, registers, layout, ledger, next: 1, lost: false, posted: false }
    }

    /// Posts an event, or notes that one was lost.
    pub fn post(&mut self, event: &Event) {
        self.post_overflow();
        if self.lost || !self.put(event) {
            self.lost = true;
            self.ledger.count(Count::EventsLost, 1);
        }
    }

    /// Posts an event if there is room; nothing is noted if not, and the caller tries again.
    #[must_use]
    pub fn try_post(&mut self, event: &Event) -> bool {
        self.post_overflow();
        !self.lost && self.put(event)
    }

    /// After a batch of posts, and now and then while something is lost: true when the host wants
    /// an interrupt.
    pub fn flush(&mut self) -> bool {
        self.post_overflow();
        if !std::mem::take(&mut self.posted) {
            return false;
        }
        fence();
        let wanted = self.registers.take_event_arm();
        if wanted {
            self.registers.raise_event_interrupt();
            self.ledger.count(Count::Interrupts, 1);
        }
        wanted
    }

    /// The number of the last event, counted from 1. One that was lost counts as the overflow that
    /// will tell of it.
    #[must_use]
    pub fn posted(&self) -> u64 {
        self.next - 1 + u64::from(self.lost)
    }

    /// How many events the host has acted upon; `None` if it keeps nothing that an event ends.
    #[must_use]
    pub fn acted(&self) -> Option<u64> {
        self.registers.events_acted()
    }

    /// Whether the host has acted upon event `number`, or nothing of the kind is to be expected.
    #[must_use]
    pub fn has_acted(&self, number: u64) -> bool {
        self.acted().is_none_or(|acted| acted >= number)
    }

    fn post_overflow(&mut self) {
        if self.lost && self.put(&Event::Overflow) {
            self.lost = false;
        }
    }

    fn put(&mut self, event: &Event) -> bool {
        let posted = self.next - 1;
        // A head beyond what was posted is a lie; it only costs the liar its own unread entries.
        let unread = posted.saturating_sub(self.registers.event_head());
        if unread >= EVENTS {
            return false;
        }
        let entry = event.emit(self.next);
        if self.dma.write(Kind::Event, self.layout.event_at(self.next), &entry).is_err() {
            return false;
        }
        self.next += 1;
        self.posted = true;
        true
    }
}

/// The host's end.
pub struct Receiver {
    region: Arc<Region>,
    registers: Registers,
    layout: Layout,
    next: u64,
}

impl Receiver {
    /// A receiver; clears the ring, so it must come before the DPU may post (before the Hello), or
    /// be made for an in-process pair.
    pub fn new(region: Arc<Region>, registers: Registers) -> Result<Receiver, OutOfRegion> {
        let layout = registers.layout();
        if region.len() < layout.rings_len() {
            return Err(OutOfRegion);
        }
        Ok(Receiver { region, registers, layout, next: 1 })
    }

    /// Clears the ring in a region that is about to be handed to a (new) DPU.
    pub fn clear(region: &Region, layout: Layout) -> Result<(), OutOfRegion> {
        let len = usize::try_from(EVENTS).map_err(|_| OutOfRegion)? * EVENT_LEN;
        region.zero(layout.event_at(1), len)
    }

    /// The number of the event that is read next.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Begins to tell how far events are acted upon, from those read next on.
    #[must_use]
    pub fn acts(&self) -> Arc<Acts> {
        let acted = self.next - 1;
        self.registers.set_events_acted(acted);
        let state = Mutex::new((acted, BTreeSet::new()));
        Arc::new(Acts { registers: self.registers.clone(), state })
    }

    /// Appends at most `budget` events; an entry that means nothing reads as Overflow.
    pub fn poll(&mut self, budget: usize, out: &mut Vec<Event>) -> usize {
        let mut taken = 0;
        while taken < budget && self.ready() {
            let mut entry = [0; EVENT_LEN];
            let copied = self.region.read_into(self.layout.event_at(self.next), &mut entry);
            let event = copied.ok().and_then(|()| Event::parse(&entry).ok());
            out.push(event.unwrap_or(Event::Overflow));
            self.next += 1;
            taken += 1;
        }
        if taken > 0 {
            self.registers.set_event_head(self.next - 1);
        }
        taken
    }

    /// Asks for an interrupt and looks again: the value to sleep on, or `None` when there is an
    /// event.
    pub fn may_sleep(&mut self) -> Option<u32> {
        let interrupt = self.registers.event_interrupt();
        self.registers.arm_events(true);
        fence();
        if self.ready() {
            self.awake();
            return None;
        }
        Some(interrupt)
    }

    /// Takes the wish for an interrupt back.
    pub fn awake(&mut self) {
        self.registers.arm_events(false);
    }

    fn ready(&self) -> bool {
        let at = self.layout.event_at(self.next) + SEQUENCE_AT;
        self.region.load_u64(at, Acquire) == Ok(self.next)
    }
}

/// What the host has done of what events ask. They may end in any order; the other side is told up
/// to which all have.
pub struct Acts {
    registers: Registers,
    /// All up to this one, and which beyond.
    state: Mutex<(u64, BTreeSet<u64>)>,
}

impl Acts {
    /// Event `number` is acted upon.
    pub fn acted(&self, number: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, beyond) = &mut *state;
        beyond.insert(number);
        let before = *all;
        while beyond.first().is_some_and(|first| *first <= *all + 1) {
            *all = beyond.pop_first().map_or(*all, |first| first.max(*all));
        }
        if *all != before {
            self.registers.set_events_acted(*all);
        }
    }
}

#[cfg(test)]
mod tests {
    use outboard_base::Ino;

    use super::*;
    use crate::dma::{Counted, Direct};

    fn pair() -> (Sender, Receiver, Arc<Ledger>, Registers) {
        let layout = Layout::new(1, 2).unwrap();
        let region = Region::anonymous(layout.rings_len());
        let pages = Region::anonymous(outboard_wire::regs::registers_len(1, 2));
        let registers = Registers::create(pages, layout, 1).unwrap();
        let ledger = Arc::new(Ledger::new());
        let dma = Arc::new(Counted::new(Direct::new(Arc::clone(&region)), Arc::clone(&ledger)));
        Receiver::clear(&region, layout).unwrap();
        let sender = Sender::new(dma, registers.clone(), Arc::clone(&ledger));
        (sender, Receiver::new(region, registers.clone()).unwrap(), ledger, registers)
    }

    fn granted(ticket: u64) -> Event {
        Event::LockGranted { ticket, errno: None }
    }

    #[test]
    fn events_arrive_once_in_order_over_many_wraps_one_dma_each() {
        let (mut sender, mut receiver, ledger, _) = pair();
        let mut out = Vec::new();
        for i in 0..1000 {
            sender.post(&granted(i));
            if i % 7 == 0 {
                receiver.poll(100, &mut out);
            }
        }
        receiver.poll(1000, &mut out);
        assert_eq!(out, (0..1000).map(granted).collect::<Vec<_>>());
        assert_eq!(receiver.poll(1, &mut out), 0);
        assert_eq!(ledger.snapshot().dma(Kind::Event).ops, 1000);
    }

    #[test]
    fn a_full_ring_loses_events_and_says_so_without_blocking() {
        let (mut sender, mut receiver, ledger, _) = pair();
        for i in 0..EVENTS + 10 {
            sender.post(&granted(i));
        }
        assert_eq!(ledger.snapshot().count(Count::EventsLost), 10);
        let mut out = Vec::new();
        assert_eq!(receiver.poll(usize::MAX, &mut out), 256);
        assert!(!out.contains(&Event::Overflow));
        out.clear();
        sender.flush();
        sender.post(&Event::invalidate_entry(Ino(3), b"x"));
        receiver.poll(10, &mut out);
        assert_eq!(out, [Event::Overflow, Event::invalidate_entry(Ino(3), b"x")]);
    }

    /// What must not be lost is tried until there is room, and a try that fails loses nothing.
    #[test]
    fn a_try_that_finds_no_room_is_no_loss() {
        let (mut sender, mut receiver, ledger, _) = pair();
        assert!((0..EVENTS).all(|i| sender.try_post(&granted(i))));
        assert!(!sender.try_post(&granted(999)));
        let mut out = Vec::new();
        receiver.poll(1, &mut out);
        assert!(sender.try_post(&granted(999)));
        assert!(!sender.try_post(&granted(1000)));
        receiver.poll(usize::MAX, &mut out);
        assert_eq!((out.len(), out.last()), (257, Some(&granted(999))));
        assert_eq!(ledger.snapshot().count(Count::EventsLost), 0);
    }

    #[test]
    fn a_sleeper_is_interrupted_once_and_a_look_is_never_missed() {
        let (mut sender, mut receiver, _, registers) = pair();
        sender.post(&granted(1));
        assert!(!sender.flush(), "nobody asked");
        assert_eq!(receiver.may_sleep(), None, "there is an event");
        receiver.poll(1, &mut Vec::new());
        let value = receiver.may_sleep().unwrap();
        sender.post(&granted(2));
        assert!(sender.flush());
        assert_ne!(registers.event_interrupt(), value, "the futex word moved");
        sender.post(&granted(3));
        assert!(!sender.flush());
    }

    /// Acts end in any order; told is up to where all have. A host that says nothing is not waited
    /// for, and what was lost is acted upon with the overflow that tells of it.
    #[test]
    fn what_is_acted_upon_is_told_in_order() {
        let (mut sender, mut receiver, ..) = pair();
        sender.post(&granted(1));
        assert_eq!((sender.posted(), sender.acted()), (1, None));
        assert!(sender.has_acted(1), "nobody acts here");
        receiver.poll(1, &mut Vec::new());
        let acts = receiver.acts();
        assert!(sender.has_acted(1) && !sender.has_acted(2));
        (0..3).for_each(|i| sender.post(&granted(i)));
        assert_eq!(receiver.poll(8, &mut Vec::new()), 3);
        assert_eq!(receiver.next(), 5);
        for (number, acted) in [(4, 1), (3, 1), (2, 4), (2, 4)] {
            acts.acted(number);
            assert_eq!(sender.acted(), Some(acted));
        }
        (0..=EVENTS).for_each(|i| sender.post(&granted(i)));
        assert_eq!(sender.posted(), 4 + EVENTS + 1);
        receiver.poll(usize::MAX, &mut Vec::new());
        sender.flush();
        assert_eq!(sender.posted(), 4 + EVENTS + 1);
    }

    #[test]
    fn a_lying_head_and_a_scribbled_entry_are_survived() {
        let (mut sender, mut receiver, _, registers) = pair();
        registers.set_event_head(u64::MAX);
        for i in 0..1000 {
            sender.post(&granted(i));
        }
        receiver.region.write_from(receiver.layout.event_at(1), &[99; 56]).unwrap();
        let at = receiver.layout.event_at(1) + SEQUENCE_AT;
        receiver.region.write_from(at, &1u64.to_le_bytes()).unwrap();
        let mut out = Vec::new();
        receiver.poll(1, &mut out);
        assert_eq!(out, [Event::Overflow]);
    }
}

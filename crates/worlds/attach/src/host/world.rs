//! Time and sleeping, for a session over a real link.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

use outboard_base::{Time, Timestamp};
use outboard_dpc::host::SessionWorld;
use outboard_link::pace;

use crate::link::HostLink;
use outboard_os::clock;
use outboard_os::futex;

/// Pauses between two looks of a spinning thread.
const PAUSES: u32 = 4;
/// A spinning thread gives its core away once in this many looks: whoever it waits for may need it.
const LOOKS_PER_YIELD: u32 = 16;

thread_local! {
    static LOOKS: Cell<u32> = const { Cell::new(0) };
    /// Others want this thread's core until then, as far as is known; zero: nobody.
    static CROWDED_UNTIL: Cell<Time> = const { Cell::new(Time(0)) };
}

/// The link of the present life of the DPU side, and where threads park.
pub(super) struct HostWorld {
    link: RwLock<Arc<HostLink>>,
    /// Counts the links there were.
    lives: AtomicU32,
    parking: Vec<Parking>,
}

#[derive(Default)]
struct Parking {
    token: Mutex<bool>,
    came: Condvar,
}

impl HostWorld {
    pub(super) fn new(link: Arc<HostLink>, queues: usize) -> HostWorld {
        HostWorld {
            link: RwLock::new(link),
            lives: AtomicU32::new(1),
            parking: (0..queues).map(|_| Parking::default()).collect(),
        }
    }

    pub(super) fn link(&self) -> Arc<HostLink> {
        Arc::clone(&self.link.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Which link this is, counted from 1.
    pub(super) fn life(&self) -> u32 {
        self.lives.load(Ordering::Acquire)
    }

    /// The DPU side is back, in another life.
    pub(super) fn renew(&self, link: Arc<HostLink>) {
        *self.link.write().unwrap_or_else(PoisonError::into_inner) = link;
        self.lives.fetch_add(1, Ordering::AcqRel);
    }

    /// Wakes everyone who sleeps on the link's words, once.
    pub(super) fn disturb(&self) {
        self.link().declare_lost();
    }
}

impl SessionWorld for HostWorld {
    fn now(&self) -> Time {
        clock::now()
    }

    fn wall(&self) -> Timestamp {
        clock::wall()
    }

    fn relax(&self) -> bool {
        let crowded_until = CROWDED_UNTIL.get();
        if crowded_until != Time(0) {
            if clock::now() < crowded_until {
                return false;
            }
            CROWDED_UNTIL.set(Time(0));
        }
        let looks = LOOKS.get().wrapping_add(1);
        LOOKS.set(looks);
        if looks.is_multiple_of(LOOKS_PER_YIELD) {
            let from = clock::now();
            rustix::thread::sched_yield();
            let to = clock::now();
            if to.since(from) > pace::CROWDED {
                CROWDED_UNTIL.set(to.after(pace::CROWDED_FOR));
                return false;
            }
        } else {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
        }
        true
    }

    fn notify(&self) {
        self.link().notify();
    }

    fn wait(&self, queue: u16, seen: u32, until: Time) {
        let link = self.link();
        let Some(block) = link.registers().queue(queue) else { return };
        let left = until.since(clock::now());
        if link.is_lost() || left == Duration::ZERO {
            return;
        }
        let slept = futex::wait(link.registers().region(), block.interrupt_at(), seen, left);
        debug_assert!(slept.is_ok(), "{slept:?}");
    }

    fn park(&self, queue: u16, until: Time) {
        let Some(parking) = self.parking.get(usize::from(queue)) else { return };
        let token = parking.token.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until.since(clock::now());
        let (mut token, _) = parking
            .came
            .wait_timeout_while(token, left, |token| !*token)
            .unwrap_or_else(PoisonError::into_inner);
        *token = false;
    }

    fn unpark(&self, queue: u16) {
        let Some(parking) = self.parking.get(usize::from(queue)) else { return };
        *parking.token.lock().unwrap_or_else(PoisonError::into_inner) = true;
        parking.came.notify_all();
    }
}

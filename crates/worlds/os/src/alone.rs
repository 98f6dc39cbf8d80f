//! Whether a thread serves one piece of work only. Then it waits for the device itself: handing the
//! wait to another thread costs a wake-up of another core there and one back, as long as the device
//! takes, and nobody is served meanwhile.
//!
//! Who was alone when it began to wait may not be when it ends. What others lose by that is
//! bounded: one wait of one sync, and if anybody was found waiting after it, or the device was
//! slow, the next `SHY` waits are handed over.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Waits handed over after one that kept somebody waiting.
const SHY: u32 = 64;
/// A device that needs this long is in trouble, and not for the thread that serves everybody.
const LONG: Duration = Duration::from_millis(20);

#[derive(Clone, Copy)]
struct State {
    /// Pieces of work under way on this thread; 0 where nobody counts them.
    present: usize,
    /// Waits to hand over before the next that is not.
    shy: u32,
    /// Waited since somebody last looked for others.
    waited: bool,
}

thread_local! {
    static STATE: Cell<State> =
        const { Cell::new(State { present: 0, shy: 0, waited: false }) };
}

fn change(how: impl FnOnce(&mut State)) {
    STATE.with(|cell| {
        let mut state = cell.get();
        how(&mut state);
        cell.set(state);
    });
}

/// So many pieces of work are under way on this thread; what was said before.
pub fn present(count: usize) -> usize {
    STATE.with(|cell| {
        let state = cell.get();
        cell.set(State { present: count, ..state });
        state.present
    })
}

/// Whether the only piece of work may wait here. Says no a number of times after a wait that was
/// not welcome.
pub fn may_wait() -> bool {
    let mut may = false;
    change(|state| {
        if state.present == 1 {
            may = state.shy == 0;
            state.shy = state.shy.saturating_sub(1);
        }
    });
    may
}

/// Whether one piece of work is under way here, for what does not wait long.
pub fn is_alone() -> bool {
    STATE.with(|cell| cell.get().present == 1)
}

/// Waits for the device in `work`, on this thread.
pub fn wait<T>(work: impl FnOnce() -> T) -> T {
    let from = Instant::now();
    let done = work();
    change(|state| {
        state.waited = true;
        if from.elapsed() > LONG {
            state.shy = SHY;
        }
    });
    done
}

/// Whether somebody waited here since the last call.
pub fn has_waited() -> bool {
    let mut waited = false;
    change(|state| waited = std::mem::replace(&mut state.waited, false));
    waited
}

/// Somebody else was kept waiting meanwhile.
pub fn was_unwelcome() {
    change(|state| state.shy = SHY);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_kept_others_waiting_waits_elsewhere_for_a_while() {
        std::thread::spawn(|| {
            assert!(!may_wait(), "nobody counts here");
            present(1);
            assert!(may_wait() && is_alone());
            assert_eq!(wait(|| 7), 7);
            assert!(has_waited() && !has_waited());
            assert!(may_wait(), "nobody minded");
            was_unwelcome();
            for _ in 0..SHY {
                assert!(!may_wait());
            }
            assert!(may_wait());
            present(2);
            for _ in 0..2 * SHY {
                assert!(!may_wait(), "never in company");
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_slow_device_is_waited_for_elsewhere() {
        std::thread::spawn(|| {
            present(1);
            wait(|| std::thread::sleep(2 * LONG));
            assert!(!may_wait());
        })
        .join()
        .unwrap();
    }
}

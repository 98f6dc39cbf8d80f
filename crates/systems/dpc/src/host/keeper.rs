//! The keeper: when to connect, when the DPU side counts as lost, when to give calls up.
//!
//! ```text
//!            Connect           Attached                 Lost
//!   Away ───────────────▶ ? ───────────────▶ Here ─────────────────▶ Away
//!     ▲                   │ Failed: back off                           │ policy's time over:
//!     └───────────────────┘                                            ▼ GiveUp, once a loss
//! ```
//!
//! A machine: it owns no clock and no socket. Its world connects, sleeps until
//! [`Keeper::next_deadline`], and tells it what happened.

use std::time::Duration;

use outboard_base::{Deadline, Time};

use super::LossPolicy;

/// First pause between two attempts to connect; doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(2);
/// Longest pause between two attempts: a DPU side that comes back is found within it.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The attempt to connect succeeded.
    Attached,
    /// The attempt to connect failed.
    Failed,
    /// The socket closed, or the heartbeat is overdue.
    Lost,
    /// [`Keeper::next_deadline`] has passed.
    Deadline,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Try to connect and attach; answer with `Attached` or `Failed`.
    Connect,
    /// Fail what is pending, and what is started from now on, until attached again.
    GiveUp,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Here,
    Away { next_try: Option<Time>, pause: Duration, give_up: Option<Time> },
}

/// See the module.
#[derive(Debug)]
pub struct Keeper {
    policy: LossPolicy,
    state: State,
}

impl Keeper {
    /// A keeper that is to connect at once.
    #[must_use]
    pub fn new(policy: LossPolicy, now: Time) -> Keeper {
        Keeper { policy, state: Self::away(policy, now) }
    }

    fn away(policy: LossPolicy, now: Time) -> State {
        let give_up = match policy {
            LossPolicy::Wait => None,
            LossPolicy::Fail { after } => Some(now.after(after)),
        };
        State::Away { next_try: Some(now), pause: PAUSE, give_up }
    }

    /// Whether the DPU side is there.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        matches!(self.state, State::Here)
    }

    /// Consumes one input; pushes at most two effects.
    pub fn handle(&mut self, now: Time, input: Input, out: &mut Vec<Effect>) {
        match (input, &mut self.state) {
            (Input::Attached, _) => self.state = State::Here,
            (Input::Lost, State::Here) => self.state = Self::away(self.policy, now),
            (Input::Failed, State::Away { next_try, pause, .. }) => {
                *next_try = Some(now.after(*pause));
                *pause = (*pause * 2).min(PAUSE_MAX);
            }
            (Input::Deadline, State::Away { next_try, give_up, .. }) => {
                if give_up.is_some_and(|at| at <= now) {
                    *give_up = None;
                    out.push(Effect::GiveUp);
                }
                if next_try.is_some_and(|at| at <= now) {
                    *next_try = None;
                    out.push(Effect::Connect);
                }
            }
            // A loss noticed twice, or an answer that was overtaken by one.
            (Input::Lost | Input::Failed | Input::Deadline, _) => {}
        }
    }

    /// When to come back with [`Input::Deadline`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Deadline> {
        match self.state {
            State::Here => None,
            State::Away { next_try, give_up, .. } => match (next_try, give_up) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Runs the keeper against a DPU side that is there from `back` on; returns when it attached
    /// and when it gave up.
    fn run(keeper: &mut Keeper, back: Time) -> (Time, Option<Time>) {
        let (mut now, mut gave_up, mut out) = (Time(0), None, Vec::new());
        for _ in 0..10_000 {
            now = keeper.next_deadline().unwrap().max(now);
            keeper.handle(now, Input::Deadline, &mut out);
            for effect in std::mem::take(&mut out) {
                match effect {
                    Effect::GiveUp => assert_eq!(gave_up.replace(now), None, "once a loss"),
                    Effect::Connect if now >= back => {
                        keeper.handle(now, Input::Attached, &mut out);
                        assert!(keeper.is_attached() && keeper.next_deadline().is_none());
                        return (now, gave_up);
                    }
                    Effect::Connect => keeper.handle(now, Input::Failed, &mut out),
                }
            }
        }
        panic!("never attached");
    }

    #[test]
    fn it_backs_off_and_finds_the_dpu_soon_after_it_is_back() {
        let mut keeper = Keeper::new(LossPolicy::Wait, Time(0));
        for back in [Time(0), Time(0).after(SECOND), Time(0).after(60 * SECOND)] {
            let (at, gave_up) = run(&mut keeper, back);
            assert!(at.since(back) <= PAUSE_MAX, "{at:?} for {back:?}");
            assert_eq!(gave_up, None);
            keeper.handle(Time(0), Input::Lost, &mut Vec::new());
            keeper.handle(Time(0), Input::Lost, &mut Vec::new());
        }
    }

    #[test]
    fn it_gives_up_in_time_once_a_loss_and_still_comes_back() {
        let mut keeper = Keeper::new(LossPolicy::Fail { after: SECOND }, Time(0));
        for _ in 0..2 {
            let (at, gave_up) = run(&mut keeper, Time(0).after(5 * SECOND));
            assert_eq!(gave_up, Some(Time(0).after(SECOND)));
            assert!(at.since(Time(0)) >= 5 * SECOND);
            keeper.handle(Time(0), Input::Lost, &mut Vec::new());
        }
    }
}

//! Reconnecting: when to connect, when the DPU side counts as lost, when to give calls up.
//!
//! ```text
//!            Connect           Attached                 Lost
//!   Away ───────────────▶ ? ───────────────▶ Here ─────────────────▶ Away
//!     ▲                   │ Failed: back off                           │ policy's time over:
//!     └───────────────────┘                                            ▼ GiveUp, once a loss
//! ```
//!
//! A conversation in the shape of [`outboard_base::machine`]: it owns no clock and no socket. Its
//! world connects, sleeps until [`Reconnect::next_deadline`], and says what happened.

use std::time::Duration;

use outboard_base::machine::Outbox;
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
    /// [`Reconnect::next_deadline`] has passed.
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
pub struct Reconnect {
    policy: LossPolicy,
    state: State,
}

impl Reconnect {
    /// Most effects of one call of [`Reconnect::handle`].
    pub const EFFECTS_MAX: usize = 2;

    /// One that is to connect at once.
    #[must_use]
    pub fn new(policy: LossPolicy, now: Time) -> Reconnect {
        Reconnect { policy, state: Self::away(policy, now) }
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

    /// Consumes one input. Pushes at most [`Reconnect::EFFECTS_MAX`] effects, and those only for
    /// [`Input::Deadline`]; its work does not depend on anything's length.
    pub fn handle(&mut self, now: Time, input: Input, out: &mut Outbox<Effect>) {
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

    /// When to come back with [`Input::Deadline`] if nothing else happens first.
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

    /// Runs it against a DPU side that is there from `back` on; returns when it attached
    /// and when it gave up.
    fn run(reconnect: &mut Reconnect, back: Time) -> (Time, Option<Time>) {
        let (mut now, mut gave_up) = (Time(0), None);
        let mut out = Outbox::new(Reconnect::EFFECTS_MAX);
        for _ in 0..10_000 {
            now = reconnect.next_deadline().unwrap().max(now);
            reconnect.handle(now, Input::Deadline, &mut out);
            while let Some(effect) = out.pop() {
                match effect {
                    Effect::GiveUp => assert_eq!(gave_up.replace(now), None, "once a loss"),
                    Effect::Connect if now >= back => {
                        reconnect.handle(now, Input::Attached, &mut out);
                        assert!(reconnect.is_attached() && reconnect.next_deadline().is_none());
                        return (now, gave_up);
                    }
                    Effect::Connect => reconnect.handle(now, Input::Failed, &mut out),
                }
            }
        }
        panic!("never attached");
    }

    #[test]
    fn it_backs_off_and_finds_the_dpu_soon_after_it_is_back() {
        let mut reconnect = Reconnect::new(LossPolicy::Wait, Time(0));
        for back in [Time(0), Time(0).after(SECOND), Time(0).after(60 * SECOND)] {
            let (at, gave_up) = run(&mut reconnect, back);
            assert!(at.since(back) <= PAUSE_MAX, "{at:?} for {back:?}");
            assert_eq!(gave_up, None);
            reconnect.handle(Time(0), Input::Lost, &mut Outbox::new(0));
            reconnect.handle(Time(0), Input::Lost, &mut Outbox::new(0));
        }
    }

    #[test]
    fn it_gives_up_in_time_once_a_loss_and_still_comes_back() {
        let mut reconnect = Reconnect::new(LossPolicy::Fail { after: SECOND }, Time(0));
        for _ in 0..2 {
            let (at, gave_up) = run(&mut reconnect, Time(0).after(5 * SECOND));
            assert_eq!(gave_up, Some(Time(0).after(SECOND)));
            assert!(at.since(Time(0)) >= 5 * SECOND);
            reconnect.handle(Time(0), Input::Lost, &mut Outbox::new(0));
        }
    }
}

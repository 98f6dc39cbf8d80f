//! What is thought of an application: whether it is asked.
//!
//! ```text
//!            16 faults, or 4 soon after it was paused
//!   on  ─────────────────────────────────────────────▶  paused: 1 s, then twice, up to 5 min
//!    ▲                                                    │    ▲
//!    └──────────────── the pause is over ─────────────────┘    │ the last of them came back
//!   on, paused ─────────── a call does not return ───────────▶ off
//! ```
//!
//! One for all threads that ask it. A pause ends by itself, and a minute without a fault makes
//! everything before forgotten: the next pause is a short one. While a thread is in a call for
//! good, nobody asks: each try could cost one more.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboard_base::Time;

/// A function of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`super::Application::frame`].
    Frame,
    /// [`super::Application::off_pred`].
    OffPred,
    /// [`super::Application::off_func`].
    OffFunc,
    /// [`super::Application::answer`].
    Answer,
    /// [`super::Application::frame_answer`].
    FrameAnswer,
    /// [`super::Application::cache`].
    Cache,
    /// [`super::Application::invalidate`].
    Invalidate,
}

impl Call {
    const ALL: [Call; 7] = [
        Call::Frame,
        Call::OffPred,
        Call::OffFunc,
        Call::Answer,
        Call::FrameAnswer,
        Call::Cache,
        Call::Invalidate,
    ];

    /// As the trait has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Call::Frame => "frame",
            Call::OffPred => "off_pred",
            Call::OffFunc => "off_func",
            Call::Answer => "answer",
            Call::FrameAnswer => "frame_answer",
            Call::Cache => "cache",
            Call::Invalidate => "invalidate",
        }
    }
}

/// So many calls that panicked or overran, without [`CALM`] between two, and there is a pause.
pub const FAULTS_MAX: u32 = 16;
/// So many suffice after a pause.
pub const FAULTS_AGAIN: u32 = 4;
/// The first pause; each is twice as long as the one before, up to the longest.
pub const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// The longest.
pub const PAUSE_LONGEST: Duration = Duration::from_secs(300);
/// So long on without a fault, and what was before is forgotten.
pub const CALM: Duration = Duration::from_secs(60);

/// A thread that is in a call for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// In which.
    pub call: Call,
    /// The system's number of the thread.
    pub thread: u32,
}

/// Whether an application is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is.
    On,
    /// Not before this.
    Paused(Time),
    /// Not before those that are lost have come back.
    Off,
}

/// Why it was not asked last, or is not now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It panicked or overran its time too often, last in this.
    Faults(Call),
    /// This did not return in time.
    Lost(Call),
}

/// What is to be said of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether it is asked.
    pub state: State,
    /// Why it is not, or was not last, and since when; `None` if it always was.
    pub last: Option<(Why, Time)>,
    /// How often it was stopped asking.
    pub times: u32,
    /// Calls that panicked or overran.
    pub faults: u32,
}

/// What is thought of one application.
#[derive(Debug, Default)]
pub struct Health {
    /// [`ON`], [`OFF`], or the end of a pause.
    until: AtomicU64,
    faults: AtomicU32,
    /// How often a thread was lost.
    losses: AtomicU32,
    judged: Mutex<Judged>,
}

/// Of [`Health::until`].
const ON: u64 = 0;
const OFF: u64 = u64::MAX;

#[derive(Debug, Default)]
struct Judged {
    lost: Vec<Lost>,
    /// Faults since the last pause, or the last calm.
    recent: u32,
    /// When the last fault was, or the last pause ended.
    troubled: Time,
    /// Pauses since the last calm.
    pauses: u32,
    last: Option<(Why, Time)>,
    times: u32,
}

impl Health {
    fn judged(&self) -> MutexGuard<'_, Judged> {
        self.judged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call does not return: it is asked nothing, not even where messages end.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.until.load(Ordering::Acquire) == OFF
    }

    /// Whether it is asked for offloading. Where messages end it is asked in a pause, too: so
    /// connections need not be forwarded for good.
    #[must_use]
    pub fn may_ask(&self, now: Time) -> bool {
        match self.until.load(Ordering::Acquire) {
            ON => true,
            OFF => false,
            until if now.0 < until => false,
            until => self.end_pause(until),
        }
    }

    fn end_pause(&self, until: u64) -> bool {
        let mut judged = self.judged();
        // Another thread may have been first.
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        match self.until.compare_exchange(until, ON, success, failure) {
            Ok(_) => {
                (judged.troubled, judged.recent) = (Time(until), 0);
                tracing::info!("the application is asked again: offloading is on");
                true
            }
            Err(other) => other == ON,
        }
    }

    /// A call panicked or overran; how many that makes. After too many there is a pause.
    pub fn fault(&self, call: Call, now: Time) -> u32 {
        let faults = self.faults.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.may_ask(now) {
            return faults;
        }
        let mut judged = self.judged();
        judged.calm_down(now);
        (judged.recent, judged.troubled) = (judged.recent + 1, now);
        let most = if judged.pauses == 0 { FAULTS_MAX } else { FAULTS_AGAIN };
        if judged.recent >= most {
            judged.stop(Why::Faults(call), now);
            self.pause(&mut judged, now);
        }
        faults
    }

    fn pause(&self, judged: &mut Judged, now: Time) {
        let pause = judged.next_pause();
        // Never one of the two words that mean something else.
        let until = now.after(pause).0.clamp(ON + 1, OFF - 1);
        self.until.store(until, Ordering::Release);
        let (faults, seconds) = (self.faults(), pause.as_secs());
        tracing::error!(faults, seconds, "the application failed too often: offloading pauses");
    }

    /// A call does not return: it is off.
    pub fn lose(&self, lost: Lost, now: Time) {
        let mut judged = self.judged();
        if !judged.lost.contains(&lost) {
            judged.lost.push(lost);
            judged.calm_down(now);
            judged.stop(Why::Lost(lost.call), now);
        }
        self.losses.fetch_add(1, Ordering::AcqRel);
        self.until.store(OFF, Ordering::Release);
    }

    /// A thread that was lost has come back from its call. Once all have, it is a pause like
    /// others.
    pub fn came_back(&self, thread: u32, now: Time) {
        let mut judged = self.judged();
        let before = judged.lost.len();
        judged.lost.retain(|lost| lost.thread != thread);
        if judged.lost.len() < before && judged.lost.is_empty() {
            self.pause(&mut judged, now);
        }
    }

    /// Calls that panicked or overran.
    #[must_use]
    pub fn faults(&self) -> u32 {
        self.faults.load(Ordering::Relaxed)
    }

    /// How often a call did not return: whoever was told something before, and was not told this,
    /// does not know what it missed.
    #[must_use]
    pub fn losses(&self) -> u32 {
        self.losses.load(Ordering::Acquire)
    }

    /// The threads that have not come back.
    #[must_use]
    pub fn lost(&self) -> Vec<Lost> {
        self.judged().lost.clone()
    }

    /// All of it.
    #[must_use]
    pub fn report(&self, now: Time) -> Report {
        let judged = self.judged();
        let state = match self.until.load(Ordering::Acquire) {
            OFF => State::Off,
            until if now.0 < until => State::Paused(Time(until)),
            // The next that asks ends a pause that is over.
            _ => State::On,
        };
        Report { state, last: judged.last, times: judged.times, faults: self.faults() }
    }
}

impl Judged {
    fn calm_down(&mut self, now: Time) {
        if now.since(self.troubled) >= CALM {
            (self.recent, self.pauses) = (0, 0);
        }
    }

    fn stop(&mut self, why: Why, now: Time) {
        self.last = Some((why, now));
        self.times = self.times.saturating_add(1);
    }

    fn next_pause(&mut self) -> Duration {
        let doubled = PAUSE_FIRST * 2u32.saturating_pow(self.pauses.min(16));
        self.pauses = self.pauses.saturating_add(1);
        doubled.min(PAUSE_LONGEST)
    }
}

/// What one thread is at, for who watches it: written by that thread alone.
#[derive(Debug, Default)]
pub struct Progress {
    /// Number of the call, above 3 bits: which it is, counted from one; or 0, between calls.
    word: AtomicU64,
}

/// A call that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Two that are equal are one call.
    word: u64,
}

impl Seen {
    /// Which; `None` between calls.
    #[must_use]
    pub fn call(self) -> Option<Call> {
        let kind = usize::try_from(self.word & 7).ok()?.checked_sub(1)?;
        Call::ALL.get(kind).copied()
    }
}

impl Progress {
    fn step(&self, kind: u64, order: Ordering) {
        let number = (self.word.load(Ordering::Relaxed) >> 3).wrapping_add(1);
        self.word.store(number << 3 | kind, order);
    }

    /// Another call begins.
    pub fn begin(&self, call: Call) {
        self.step(call as u64 + 1, Ordering::Relaxed);
    }

    /// The first of several calls is to begin: who asks [`Progress::look`] later sees that, or is
    /// seen by who calls this to have been asleep.
    pub fn begin_first(&self) {
        self.step(Call::Frame as u64 + 1, Ordering::SeqCst);
    }

    /// No call is under way.
    pub fn end(&self) {
        self.step(0, Ordering::Release);
    }

    /// What it is at.
    #[must_use]
    pub fn look(&self) -> Seen {
        Seen { word: self.word.load(Ordering::SeqCst) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_told_from_the_one_before() {
        let progress = Progress::default();
        assert_eq!(progress.look().call(), None);
        let mut before = progress.look();
        for call in Call::ALL.into_iter().chain(Call::ALL) {
            progress.begin(call);
            assert_eq!(progress.look().call(), Some(call));
            assert_ne!(progress.look(), before);
            before = progress.look();
        }
        progress.end();
        assert_eq!(progress.look().call(), None);
    }

    const fn seconds(n: u64) -> Time {
        Time(n * 1_000_000_000)
    }

    /// It stayed off until the process was started anew, whatever had been wrong.
    #[test]
    fn who_failed_often_is_paused_and_asked_again_later_each_time() {
        let health = Health::default();
        let mut now = seconds(1000);
        for n in 1..FAULTS_MAX {
            assert_eq!((health.fault(Call::Answer, now), health.may_ask(now)), (n, true));
        }
        let mut pause = PAUSE_FIRST;
        for times in 1..=10 {
            let missing = if times == 1 { 1 } else { FAULTS_AGAIN };
            (0..missing)
                .for_each(|_| assert!(health.may_ask(now) && health.fault(Call::OffPred, now) > 0));
            assert!(!health.may_ask(now) && !health.is_off());
            let report = health.report(now);
            assert_eq!(report.state, State::Paused(now.after(pause)));
            assert_eq!(report.last, Some((Why::Faults(Call::OffPred), now)));
            assert_eq!(report.times, times);
            // What was under way fails, too.
            health.fault(Call::Answer, now);
            now = now.after(pause);
            assert!(!health.may_ask(Time(now.0 - 1)) && health.may_ask(now));
            assert_eq!(health.report(now).state, State::On);
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
        assert_eq!(pause, PAUSE_LONGEST);
        // A time of success, and all is as at first.
        now = now.after(CALM);
        for _ in 1..FAULTS_MAX {
            health.fault(Call::Answer, now);
            assert!(health.may_ask(now));
        }
        health.fault(Call::Answer, now);
        assert_eq!(health.report(now).state, State::Paused(now.after(PAUSE_FIRST)));
    }

    /// A call that took a second for once cost the offloading of all that followed.
    #[test]
    fn who_does_not_return_is_off_until_all_have_come_back() {
        let health = Health::default();
        let lost = [1, 2].map(|thread| Lost { call: Call::OffFunc, thread });
        lost.into_iter().for_each(|lost| health.lose(lost, seconds(5)));
        assert!(health.is_off() && !health.may_ask(seconds(1 << 20)));
        assert_eq!((health.lost(), health.faults(), health.losses()), (lost.to_vec(), 0, 2));
        health.came_back(1, seconds(6));
        health.came_back(7, seconds(6));
        assert!(health.is_off());
        // It says itself that it overran.
        health.fault(Call::OffFunc, seconds(6));
        health.came_back(2, seconds(6));
        assert!(!health.is_off() && !health.may_ask(seconds(6)) && health.may_ask(seconds(7)));
        let report = health.report(seconds(8));
        assert_eq!(report.last, Some((Why::Lost(Call::OffFunc), seconds(5))));
        assert_eq!((report.state, report.times, health.lost()), (State::On, 2, Vec::new()));
    }
}

//! What is thought of an application: whether it is asked any more.
//!
//! One for all threads that ask it. It only ever gets worse: who is off stays off until the process
//! is started anew.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

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

/// So many calls that panicked or overran, and nothing is offloaded any more.
pub const FAULTS_MAX: u32 = 16;

/// A thread that is in a call for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// In which.
    pub call: Call,
    /// The system's number of the thread.
    pub thread: u32,
}

/// What is thought of one application.
#[derive(Debug, Default)]
pub struct Health {
    is_off: AtomicBool,
    faults: AtomicU32,
    lost: Mutex<Vec<Lost>>,
}

impl Health {
    /// Whether it is asked nothing any more.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.is_off.load(Ordering::Acquire)
    }

    /// A call panicked or overran; how many that makes. At [`FAULTS_MAX`] it is off.
    pub fn fault(&self) -> u32 {
        let faults = self.faults.fetch_add(1, Ordering::Relaxed) + 1;
        if faults >= FAULTS_MAX && self.turn_off() {
            tracing::error!(faults, "the application failed too often: offloading is off");
        }
        faults
    }

    /// A call does not return: it is off.
    pub fn lose(&self, lost: Lost) {
        let mut all = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains(&lost) {
            all.push(lost);
        }
        drop(all);
        self.turn_off();
    }

    /// Calls that panicked or overran.
    #[must_use]
    pub fn faults(&self) -> u32 {
        self.faults.load(Ordering::Relaxed)
    }

    /// The threads that never came back.
    #[must_use]
    pub fn lost(&self) -> Vec<Lost> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it was on.
    fn turn_off(&self) -> bool {
        !self.is_off.swap(true, Ordering::AcqRel)
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

    #[test]
    fn who_failed_often_or_once_for_ever_is_off() {
        let health = Health::default();
        for n in 1..FAULTS_MAX {
            assert_eq!((health.fault(), health.is_off()), (n, false));
        }
        health.fault();
        assert!(health.is_off());
        let health = Health::default();
        let lost = Lost { call: Call::Cache, thread: 7 };
        health.lose(lost);
        assert!(health.is_off());
        assert_eq!((health.lost(), health.faults()), (vec![lost], 0));
    }
}

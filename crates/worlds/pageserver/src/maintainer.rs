//! `Cache` and `Invalidate` of an application in this process, on a thread of their own.
//!
//! The file service asks and goes on with others; a write or a read of the host waits for what is
//! said of it. Should the application never return, all that wait are told that it cannot say, the
//! table is emptied, and nobody asks again; the thread is left behind, with what it was asked.

use std::collections::VecDeque;
use std::future::{Future, ready};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use outboard_dds::dpu::offload::contained::Contained;
use outboard_dds::dpu::offload::health::{Call, Health, Lost};
use outboard_dds::dpu::offload::plugin::{Maintainer, Saying, Written};
use outboard_dds::dpu::offload::{Application, Item, Key, ReadOp};

use super::watchdog::{self, Watchdog, WatchdogHandle};
use outboard_os::clock;

/// What is said of one question, and who waits for it.
enum Said<T> {
    Nothing(Option<Waker>),
    This(Option<T>),
}

/// The way back of one answer. The first that is said counts.
struct Reply<T>(Arc<Mutex<Said<T>>>);

impl<T> Clone for Reply<T> {
    fn clone(&self) -> Self {
        Reply(Arc::clone(&self.0))
    }
}

impl<T> Reply<T> {
    fn new() -> Reply<T> {
        Reply(Arc::new(Mutex::new(Said::Nothing(None))))
    }

    fn said(&self) -> MutexGuard<'_, Said<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, what: Option<T>) {
        let mut said = self.said();
        let Said::Nothing(waker) = &mut *said else { return };
        let waker = waker.take();
        *said = Said::This(what);
        drop(said);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<T> Future for Reply<T> {
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        match &mut *self.said() {
            Said::This(what) => Poll::Ready(what.take()),
            Said::Nothing(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Who waits for an answer.
#[derive(Clone)]
enum Asker {
    Write(Reply<Vec<(Key, Item)>>),
    Read(Reply<Vec<Key>>),
}

impl Asker {
    fn say_nothing(&self) {
        match self {
            Asker::Write(reply) => reply.say(None),
            Asker::Read(reply) => reply.say(None),
        }
    }
}

enum Question {
    Cache(Written, Reply<Vec<(Key, Item)>>),
    Invalidate(ReadOp, Reply<Vec<Key>>),
}

impl Question {
    fn asker(&self) -> Asker {
        match self {
            Question::Cache(_, reply) => Asker::Write(reply.clone()),
            Question::Invalidate(_, reply) => Asker::Read(reply.clone()),
        }
    }
}

#[derive(Default)]
struct State {
    questions: VecDeque<Question>,
    /// Whose question the thread is at.
    asker: Option<Asker>,
    is_closed: bool,
    is_lost: bool,
    has_ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, question: Question) {
        let mut state = self.state();
        if state.is_closed {
            drop(state);
            return question.asker().say_nothing();
        }
        state.questions.push_back(question);
        drop(state);
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Question> {
        let mut state = self.state();
        loop {
            if let Some(question) = state.questions.pop_front() {
                state.asker = Some(question.asker());
                return Some(question);
            }
            if state.is_closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The thread has come back from the application; false if nobody waits for it any more.
    fn is_back(&self) -> bool {
        let mut state = self.state();
        state.asker = None;
        !state.is_lost
    }

    /// The thread does not come back; false if it just did.
    fn leave_behind(&self, health: &Health, lost: Lost) -> bool {
        let mut state = self.state();
        let Some(asker) = state.asker.take() else { return false };
        // Before anybody goes on: they are not to ask again.
        health.lose(lost, clock::coarse());
        (state.is_closed, state.is_lost) = (true, true);
        let waiting = std::mem::take(&mut state.questions);
        drop(state);
        asker.say_nothing();
        waiting.iter().for_each(|question| question.asker().say_nothing());
        self.changed.notify_all();
        true
    }

    fn serve(self: &Arc<Self>, app: &dyn Application, health: &Arc<Health>, at: &WatchdogHandle) {
        let clock = || clock::coarse().0;
        let mut calls = Contained::new(Box::new(clock), Arc::clone(health));
        let (shared, judge) = (Arc::clone(self), Arc::clone(health));
        let relieve = move |lost| shared.leave_behind(&judge, lost);
        let watched = at.watch_me(calls.progress(), relieve);
        while let Some(question) = self.next() {
            calls.begin();
            watched.attend();
            match question {
                Question::Cache(written, reply) => {
                    let mut items = Vec::new();
                    let call = || app.cache(written.op(), &mut items);
                    let done = calls.call_patiently(Call::Cache, call);
                    calls.end();
                    if !self.is_back() {
                        return;
                    }
                    reply.say(done.map(|()| items));
                }
                Question::Invalidate(read, reply) => {
                    let mut keys = Vec::new();
                    let call = || app.invalidate(read, &mut keys);
                    let done = calls.call_patiently(Call::Invalidate, call);
                    calls.end();
                    if !self.is_back() {
                        return;
                    }
                    reply.say(done.map(|()| keys));
                }
            }
        }
    }
}

/// An application's `Cache` and `Invalidate`.
pub(super) struct AppMaintainer {
    shared: Arc<Shared>,
    invalidates: bool,
    thread: Option<JoinHandle<()>>,
    /// Ends after the thread.
    _watch: Watchdog,
}

impl AppMaintainer {
    pub(super) fn new(app: Arc<dyn Application>, health: Arc<Health>) -> io::Result<AppMaintainer> {
        let watch = Watchdog::new(watchdog::HOOK)?;
        let (invalidates, watchdog) = (app.invalidates(), watch.handle());
        let shared = Arc::<Shared>::default();
        let serving = Arc::clone(&shared);
        let serve = move || {
            serving.serve(&*app, &health, &watchdog);
            serving.state().has_ended = true;
            serving.changed.notify_all();
        };
        let name = "dds-maintainer".to_owned();
        let thread = Some(std::thread::Builder::new().name(name).spawn(serve)?);
        Ok(AppMaintainer { shared, invalidates, thread, _watch: watch })
    }
}

impl Drop for AppMaintainer {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_closed = true;
        self.shared.changed.notify_all();
        while !state.has_ended && !state.is_lost {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let is_lost = state.is_lost;
        drop(state);
        if let Some(thread) = self.thread.take().filter(|_| !is_lost) {
            // A panic was printed by the thread itself.
            let _ended = thread.join();
        }
    }
}

impl Maintainer for AppMaintainer {
    fn cache(&self, written: Written) -> Saying<Vec<(Key, Item)>> {
        let reply = Reply::new();
        self.shared.ask(Question::Cache(written, reply.clone()));
        Box::pin(reply)
    }

    fn invalidate(&self, read: ReadOp) -> Saying<Vec<Key>> {
        if !self.invalidates {
            return Box::pin(ready(Some(Vec::new())));
        }
        let reply = Reply::new();
        self.shared.ask(Question::Invalidate(read, reply.clone()));
        Box::pin(reply)
    }
}

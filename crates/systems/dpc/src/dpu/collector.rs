//! A host whose kernel collects writes, with others beside it: what it is asked for, and whether it
//! has done it (`docs/internals/coherence.md`, "Beside who collects writes").
//!
//! ```text
//! another's request ──▶ ask(ino, what) ── event, with a mark ──▶ collector ──▶ its kernel
//!                                        ◀── Setattr, by its mark ── (holds only: the file stands)
//!    does its work      release        ── the Setattr goes on, is answered ──▶ kernel lets go
//!                                        ◀── event acted upon
//! ```
//!
//! # Invariants
//!
//! 1. Who asks goes on when the collector's kernel did what was asked, has nothing of the file, or
//!    the collector is gone for good; or is refused after [`PATIENCE`] without progress. Nothing
//!    the collector has answered is given up for somebody who waits.
//! 2. A request of the collector waits for nobody here but the marked one, which nothing of its
//!    own waits for.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use outboard_base::task::{RangeLocks, WaitList};
use outboard_base::{Errno, Ino, Result, SessionId, Time, Timestamp};
use outboard_volume::Payload;
use outboard_wire::event::{Event, Wanted};
use outboard_wire::file::{Request, Setattr, SetattrTime};

use super::service::AttachmentId;

/// How long a collector that makes no progress is waited for: longer than a disk may keep a flush
/// waiting.
const PATIENCE: Duration = Duration::from_secs(20);

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The collector was asked, or is away.
    Open,
    /// Its kernel holds the file.
    Held,
    /// It did what was asked.
    Over,
    /// It makes no progress.
    Late,
}

/// Something a collector is asked for.
pub(super) struct Asked {
    ino: Ino,
    mark: u64,
    wanted: Wanted,
    stage: Cell<Stage>,
    /// By which attachment of it, and up to which event it must have acted.
    told: Cell<Option<(AttachmentId, u64)>>,
    /// When it was seen to move, and how far it was.
    seen: Cell<(Time, (u64, u64))>,
    /// The held file may change again.
    released: Cell<bool>,
    /// What another writes meanwhile, and where.
    cover: RefCell<Option<(u64, Vec<u8>)>>,
    wakers: RefCell<Vec<Waker>>,
}

impl Asked {
    fn wake(&self) {
        self.wakers.take().into_iter().for_each(Waker::wake);
    }

    fn enter(&self, stage: Stage) {
        self.stage.set(stage);
        self.wake();
    }

    /// Waits until `ready`, looking again whenever something moves.
    async fn until(&self, ready: impl Fn(&Asked) -> bool) {
        poll_fn(|context| {
            if ready(self) {
                return Poll::Ready(());
            }
            self.wakers.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Whether the kernel holds the file.
    pub(super) fn is_held(&self) -> bool {
        self.stage.get() == Stage::Held
    }

    /// What is written while the file is held: a store through a mapping of the collector, which no
    /// hold keeps out, brings the page's bytes of before with it.
    pub(super) fn cover(&self, offset: u64, bytes: &[u8]) {
        self.cover.replace(Some((offset, bytes.to_vec())));
    }

    /// What the file was held for is done: ends when the collector's kernel shows it.
    pub(super) async fn release(&self) {
        self.released.set(true);
        self.wake();
        self.until(|asked| matches!(asked.stage.get(), Stage::Over | Stage::Late)).await;
    }

    fn event(&self) -> Event {
        Event::Collected { ino: self.ino, mark: self.mark, wanted: self.wanted }
    }
}

/// Who collects writes, and what it is asked for.
#[derive(Default)]
pub(super) struct Collector {
    who: Cell<Option<SessionId>>,
    /// It was there before this side began: what it was told of files is not known.
    from_before: Cell<bool>,
    /// It has not handed in what it has open.
    is_away: Cell<bool>,
    back: WaitList,
    /// One after the other changes a file that the collector knows, or reads one it writes.
    pub(super) turns: RangeLocks,
    all: RefCell<Vec<Rc<Asked>>>,
    last_mark: Cell<u64>,
    /// Requests of it that were served.
    served: Cell<u64>,
}

/// Something that was asked for; forgotten when this is dropped.
pub(super) struct Asking<'c> {
    collector: &'c Collector,
    pub(super) asked: Rc<Asked>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.asked.released.set(true);
        self.asked.wake();
        self.collector.all.borrow_mut().retain(|asked| !Rc::ptr_eq(asked, &self.asked));
    }
}

impl Collector {
    /// Who it is.
    pub(super) fn who(&self) -> Option<SessionId> {
        self.who.get()
    }

    /// A session is one.
    pub(super) fn attach(&self, session: SessionId) {
        if self.who.replace(Some(session)) != Some(session) {
            self.from_before.set(false);
            self.is_away.set(false);
        }
    }

    /// A session was one before this side began.
    pub(super) fn expect(&self, session: SessionId) {
        self.who.set(Some(session));
        self.from_before.set(true);
        self.is_away.set(true);
    }

    /// A session has handed in what it has open.
    pub(super) fn is_back(&self, session: SessionId) {
        if self.who.get() == Some(session) {
            self.is_away.set(false);
            self.back.notify();
        }
    }

    /// A session is over: nobody is to be asked any more.
    pub(super) fn forget(&self, session: SessionId) {
        if self.who.get() == Some(session) {
            self.who.set(None);
            self.is_away.set(false);
            self.back.notify();
            self.all.borrow().iter().for_each(|asked| asked.enter(Stage::Over));
        }
    }

    /// Waits until one of before has handed in what it has open, or is not expected any more.
    pub(super) async fn is_there(&self) {
        if self.is_away.get() {
            self.back.until(|| (!self.is_away.get()).then_some(())).await;
        }
    }

    /// Whether it may know a file, which the volume says of this life of the DPU side alone.
    pub(super) fn may_know(&self, volume_says: bool) -> bool {
        volume_says || self.from_before.get()
    }

    /// Whether somebody waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        !self.all.borrow().is_empty()
    }

    /// Has it do something about a file. Ends when it did, or holds it.
    ///
    /// # Errors
    /// `ETIMEDOUT` if it makes no progress.
    pub(super) async fn ask(&self, ino: Ino, wanted: Wanted, now: Timestamp) -> Result<Asking<'_>> {
        let asked = Rc::new(Asked {
            ino,
            mark: self.mark(now),
            wanted,
            stage: Cell::new(Stage::Open),
            told: Cell::new(None),
            seen: Cell::new((Time(0), (0, 0))),
            released: Cell::new(false),
            cover: RefCell::default(),
            wakers: RefCell::default(),
        });
        self.all.borrow_mut().push(Rc::clone(&asked));
        let asking = Asking { collector: self, asked };
        asking.asked.until(|asked| asked.stage.get() != Stage::Open).await;
        match asking.asked.stage.get() {
            Stage::Late => Err(Errno::ETIMEDOUT),
            _ => Ok(asking),
        }
    }

    /// A mark nobody had: the time of day as far as that moves on.
    fn mark(&self, now: Timestamp) -> u64 {
        let seconds = u64::try_from(now.sec).unwrap_or(0).saturating_mul(1_000_000_000);
        let mark = seconds.saturating_add(now.nsec.into()).max(self.last_mark.get() + 1);
        self.last_mark.set(mark);
        mark
    }

    /// A request of the collector is served. If it says that a file is held, it waits until that is
    /// over, and sets no access time. If it writes what another is writing, the other's bytes stay.
    pub(super) async fn own(&self, request: &mut Request<'_>, payload: &mut Payload) {
        self.served.set(self.served.get() + 1);
        if let (Request::Write { ino, offset, .. }, Payload::Bytes(bytes)) = (&*request, payload) {
            let all = self.all.borrow();
            for asked in all.iter().filter(|asked| asked.ino == *ino) {
                if let Some((at, cover)) = &*asked.cover.borrow() {
                    overlay((*offset, bytes), (*at, cover));
                }
            }
        }
        let Request::Setattr { ino, set, .. } = request else { return };
        let Some(mark) = mark_of(set) else { return };
        let is_it = |asked: &&Rc<Asked>| asked.ino == *ino && asked.mark == mark;
        let Some(asked) = self.all.borrow().iter().find(is_it).map(Rc::clone) else { return };
        set.atime = None;
        if asked.stage.get() == Stage::Open {
            asked.enter(Stage::Held);
        }
        asked.until(|asked| asked.released.get() || asked.stage.get() != Stage::Held).await;
    }

    /// Tells what was not told yet, by `tell`, which gives the event's number at the attachment it
    /// is for; notes what was done, by `acted`: how far an attachment is, if it is there.
    pub(super) fn settle(
        &self,
        now: Time,
        tell: impl Fn(SessionId, &Event) -> Option<(AttachmentId, u64)>,
        acted: impl Fn(AttachmentId) -> Option<u64>,
    ) {
        let Some(session) = self.who.get() else {
            return self.all.borrow().iter().for_each(|asked| asked.enter(Stage::Over));
        };
        for asked in self.all.borrow().iter() {
            if matches!(asked.stage.get(), Stage::Over | Stage::Late) {
                continue;
            }
            // Its next process is told once more.
            let told = asked.told.get().and_then(|(id, number)| Some((id, number, acted(id)?)));
            let Some((_, number, acted)) = told else {
                asked.told.set(tell(session, &asked.event()));
                asked.seen.set((now, (0, 0)));
                continue;
            };
            let moved = (acted, self.served.get());
            let waits_for_us = asked.is_held() && !asked.released.get();
            if acted >= number {
                asked.enter(Stage::Over);
            } else if asked.seen.get().1 != moved || waits_for_us {
                asked.seen.set((now, moved));
            } else if now.since(asked.seen.get().0) >= PATIENCE {
                tracing::warn!(ino = %asked.ino, "who collects writes does not give a file back");
                asked.enter(Stage::Late);
            }
        }
    }
}

/// Puts the bytes of `over` into those below where they meet.
fn overlay((at, bytes): (u64, &mut [u8]), (over_at, over): (u64, &[u8])) {
    let len = |bytes: &[u8]| bytes.len() as u64;
    let from = at.max(over_at);
    let end = at.saturating_add(len(bytes)).min(over_at.saturating_add(len(over)));
    let part = |start: u64| {
        let start = usize::try_from(from.checked_sub(start)?).ok()?;
        Some(start..start.checked_add(usize::try_from(end.checked_sub(from)?).ok()?)?)
    };
    let (below, above) = (part(at), part(over_at));
    let below = below.and_then(|range| bytes.get_mut(range));
    let above = above.and_then(|range| over.get(range));
    if let (Some(below), Some(above)) = (below, above) {
        below.copy_from_slice(above);
    }
}

/// The mark in what a held file's kernel asks.
fn mark_of(set: &Setattr) -> Option<u64> {
    let Some(SetattrTime::At(at)) = set.atime else { return None };
    u64::try_from(at.sec).ok()?.checked_mul(1_000_000_000)?.checked_add(at.nsec.into())
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::Context;

    use outboard_base::Fh;

    use super::*;

    const INO: Ino = Ino(7);
    const WHO: SessionId = SessionId(2);
    const HOLD: Wanted = Wanted::Hold { mtime: None };

    fn poll<T>(future: &mut Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn collector() -> Collector {
        let collector = Collector::default();
        collector.attach(WHO);
        collector
    }

    fn at(seconds: u64) -> Time {
        Time(0).after(Duration::from_secs(seconds))
    }

    fn now() -> Timestamp {
        Timestamp::new(1000, 5).unwrap()
    }

    /// A pass in which attachment `id` of the collector is there, has been sent `posted` events and
    /// acted upon `acted`; the mark it was told, if it was.
    fn pass(
        collector: &Collector,
        time: Time,
        (id, posted, acted): (u64, u64, u64),
    ) -> Option<u64> {
        let told = Cell::new(None);
        let tell = |session, event: &Event| {
            assert_eq!(session, WHO);
            let Event::Collected { ino: INO, mark, .. } = event else { return None };
            told.set(Some(*mark));
            Some((AttachmentId(id), posted))
        };
        collector.settle(time, tell, |other| (other == AttachmentId(id)).then_some(acted));
        told.get()
    }

    fn setattr(mark: u64) -> Request<'static> {
        let at = Timestamp::new(1000, u32::try_from(mark - 1000 * 1_000_000_000).unwrap());
        let set = Setattr { atime: at.map(SetattrTime::At), ..Setattr::default() };
        Request::Setattr { ino: INO, fh: Fh::NONE, set }
    }

    fn sets_atime(request: &Request<'_>) -> bool {
        matches!(request, Request::Setattr { set, .. } if set.atime.is_some())
    }

    /// The file stands from the marked request until it is released, and the asker goes on when the
    /// kernel has let go.
    #[test]
    fn a_file_is_held_until_it_is_released() {
        let collector = collector();
        let mut asks = pin!(collector.ask(INO, HOLD, now()));
        assert!(poll(&mut asks).is_pending());
        let mark = pass(&collector, at(1), (1, 5, 4)).unwrap();
        assert_eq!(pass(&collector, at(1), (1, 6, 4)), None, "it is told once");
        assert!(poll(&mut asks).is_pending());
        let mut request = setattr(mark);
        let mut none = Payload::None;
        let mut own = Box::pin(collector.own(&mut request, &mut none));
        assert!(poll(&mut own.as_mut()).is_pending());
        let Poll::Ready(Ok(asking)) = poll(&mut asks) else { panic!("it is held") };
        assert!(asking.asked.is_held());
        assert!(poll(&mut own.as_mut()).is_pending(), "until the change is made");
        let mut release = pin!(asking.asked.release());
        assert!(poll(&mut release).is_pending());
        assert!(poll(&mut own.as_mut()).is_ready());
        drop(own);
        assert!(!sets_atime(&request), "the mark is no time");
        pass(&collector, at(1), (1, 6, 5));
        assert!(poll(&mut release).is_ready());
    }

    /// What the collector's kernel does not know is acted upon at once; another request of its is
    /// not the one.
    #[test]
    fn what_it_does_not_know_holds_nobody_up() {
        let collector = collector();
        let mut asks = pin!(collector.ask(INO, HOLD, now()));
        assert!(poll(&mut asks).is_pending());
        let mark = pass(&collector, at(1), (1, 5, 4)).unwrap();
        let mut other = setattr(mark + 1);
        assert!(poll(&mut pin!(collector.own(&mut other, &mut Payload::None))).is_ready());
        assert!(sets_atime(&other));
        pass(&collector, at(1), (1, 5, 5));
        let Poll::Ready(Ok(asking)) = poll(&mut asks) else { panic!("it is over") };
        assert!(!asking.asked.is_held());
        drop(asking);
        assert!(!collector.is_awaited());
    }

    /// The next process of the mount is told again, under the same mark; one that makes no progress
    /// is waited for until it does not for long, and one that is over is not.
    #[test]
    fn who_is_away_is_waited_for_and_who_stands_still_is_not() {
        let collector = collector();
        let mut asks = pin!(collector.ask(INO, Wanted::WriteBack, now()));
        assert!(poll(&mut asks).is_pending());
        let mark = pass(&collector, at(1), (1, 5, 4));
        assert_eq!(pass(&collector, at(100), (2, 1, 0)), mark);
        pass(&collector, at(110), (2, 1, 0));
        let mut served = Request::Syncfs;
        assert!(poll(&mut pin!(collector.own(&mut served, &mut Payload::None))).is_ready());
        pass(&collector, at(125), (2, 1, 0));
        pass(&collector, at(140), (2, 1, 0));
        assert!(poll(&mut asks).is_pending(), "it moved");
        pass(&collector, at(145), (2, 1, 0));
        assert!(matches!(poll(&mut asks), Poll::Ready(Err(Errno::ETIMEDOUT))));
        assert!(!collector.is_awaited());

        let mut asks = pin!(collector.ask(INO, Wanted::WriteBack, now()));
        assert!(poll(&mut asks).is_pending());
        assert_ne!(pass(&collector, at(150), (2, 2, 0)), mark, "another mark");
        collector.forget(WHO);
        assert!(matches!(poll(&mut asks), Poll::Ready(Ok(_))));
    }

    /// A change that takes long is nobody's standing still: its kernel does as it was asked.
    #[test]
    fn a_slow_change_is_not_its_kernel_s_fault() {
        let collector = collector();
        let mut asks = pin!(collector.ask(INO, HOLD, now()));
        assert!(poll(&mut asks).is_pending());
        let mark = pass(&collector, at(1), (1, 5, 4)).unwrap();
        let mut request = setattr(mark);
        let mut none = Payload::None;
        let mut own = pin!(collector.own(&mut request, &mut none));
        assert!(poll(&mut own).is_pending());
        let Poll::Ready(Ok(_asking)) = poll(&mut asks) else { panic!("it is held") };
        for n in 1..10 {
            assert_eq!(pass(&collector, at(n * 15), (1, 5, 4)), None);
        }
        assert!(poll(&mut own).is_pending(), "it would show what is not done");
    }

    /// A store through a mapping, in a page that another was writing, took that write back.
    #[test]
    fn what_another_writes_is_not_written_over_by_a_mapping() {
        let collector = collector();
        let mut asks = pin!(collector.ask(INO, HOLD, now()));
        assert!(poll(&mut asks).is_pending());
        let mark = pass(&collector, at(1), (1, 5, 4)).unwrap();
        let (mut request, mut none) = (setattr(mark), Payload::None);
        let mut own = pin!(collector.own(&mut request, &mut none));
        assert!(poll(&mut own).is_pending());
        let Poll::Ready(Ok(asking)) = poll(&mut asks) else { panic!("it is held") };
        asking.asked.cover(6, b"new");
        for (offset, before, after) in [
            (0, "oldoldoldold", "oldoldnewold"),
            (7, "old", "ewd"),
            (4, "old", "oln"),
            (9, "old", "old"),
            (0, "old", "old"),
        ] {
            let flags = 0;
            let mut request = Request::Write { ino: INO, fh: Fh::NONE, offset, flags };
            let mut payload = Payload::Bytes(before.as_bytes().to_vec());
            assert!(poll(&mut pin!(collector.own(&mut request, &mut payload))).is_ready());
            assert_eq!(payload.bytes(), after.as_bytes());
        }
    }

    /// Of another life of the DPU side: others wait until it has handed in what it has open.
    #[test]
    fn one_of_before_is_waited_for_until_it_has_handed_in() {
        let collector = Collector::default();
        collector.expect(WHO);
        assert!(collector.may_know(false), "nobody says what it was told before");
        let mut there = pin!(collector.is_there());
        assert!(poll(&mut there).is_pending());
        collector.attach(WHO);
        assert!(poll(&mut there).is_pending());
        collector.is_back(WHO);
        assert!(poll(&mut there).is_ready());
        assert!(collector.may_know(false));
    }
}

//! The thread that has the kernel let go of what is stale, and says when it has.
//!
//! Who changed something has no answer before (`docs/internals/coherence.md`), so this must end.
//! The [notifier](crate::notifier) does the work and may block: on the lock of a directory in which
//! this mount is making a change, on pages whose read or write is under way. Those end by
//! themselves, unless two mounts wait for each other. So it is waited for a moment only. What it
//! has not done then is done here as far as it needs no lock: attributes are dropped, every cached
//! name is out of date by an epoch, which look-ups that are under way do not outlive. The notifier
//! still drops the pages once it can.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use outboard_volume::backend::{Slot, Told};
use outboard_wire::event::Event;

use crate::front::MountFront;
use crate::notifier::{Notice, let_go};

/// How long a directory's lock is waited for. Asking again for every name is dear, stale is worse.
const FOR_NAMES: Duration = Duration::from_millis(5);
/// How long pages are: nothing else drops them. Only mounts that write one page at one moment need
/// this; a read under way is a matter of the volume alone.
const FOR_PAGES: Duration = Duration::from_millis(100);
/// How long everything is.
const FOR_ALL: Duration = Duration::from_secs(1);

/// Something to let go of.
#[derive(Debug)]
pub(crate) enum Recall {
    /// What the event says; the other is dropped when it is done.
    Event(Event, Told),
    /// The mount is gone.
    End,
}

/// Runs until [`Recall::End`].
pub(crate) fn run<S: Slot>(front: &MountFront<S>, recalls: &Receiver<Recall>, done: &Receiver<()>) {
    let mut under_way = 0;
    while let Ok(Recall::Event(event, told)) = recalls.recv() {
        under_way -= done.try_iter().count().min(under_way);
        let limit = match &event {
            _ if under_way > 0 => Duration::ZERO,
            Event::InvalidateEntry { .. } => FOR_NAMES,
            Event::Overflow => FOR_ALL,
            _ => FOR_PAGES,
        };
        if front.notice(Notice::Event(event.clone())) {
            under_way += 1;
            match done.recv_timeout(limit) {
                Ok(()) => under_way -= 1,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if under_way > 0 {
                let_go(front, &event);
            }
        } else {
            let_go(front, &event);
        }
        drop(told);
    }
}

//! The thread that tells the kernel what it did not ask: caches that are stale. It may block in the
//! kernel (on a page whose read is under way), so nobody who answers requests waits for it. It also
//! watches requests whose caller got a signal that need not end them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use outboard_base::Ino;
use outboard_volume::backend::{Backend, Slot};
use outboard_wire::event::Event;
use outboard_wire::fuse::{inc_epoch, inval_entry, inval_inode, translate::node_of};

use crate::front::MountFront;

/// How often a signalled request is looked at again.
const WATCH: Duration = Duration::from_millis(50);

/// Something for the notifier to do.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The DPU side tells.
    Event(Event),
    /// The caller of this request got a signal; if it is to die, the request is given up.
    Watch(u64),
    /// The mount is gone.
    End,
}

/// Runs until [`Notice::End`].
pub(crate) fn run<B: Backend>(
    front: &MountFront<B::Slot>,
    backend: &Arc<B>,
    notices: &Receiver<Notice>,
    done: &Sender<()>,
) {
    let mut watched: Vec<u64> = Vec::new();
    loop {
        let notice = if watched.is_empty() {
            notices.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            notices.recv_timeout(WATCH)
        };
        match notice {
            Ok(Notice::Event(event)) => {
                tell(front, &event);
                // Nobody asks any more once the mount ends.
                let _ = done.send(());
            }
            Ok(Notice::Watch(unique)) => watched.push(unique),
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Notice::End) | Err(RecvTimeoutError::Disconnected) => return,
        }
        if front.overflow.swap(false, Ordering::AcqRel) {
            tell(front, &Event::Overflow);
        }
        watched.retain(|&unique| match front.pending.asker(unique) {
            None => false,
            Some(asker) if is_dying(asker.pid) => !backend.abort(unique),
            Some(_) => true,
        });
    }
}

fn tell<S: Slot>(front: &MountFront<S>, event: &Event) {
    match event {
        Event::InvalidateInode { ino, offset, len } => {
            let offset = i64::try_from(*offset).unwrap_or(i64::MAX);
            // The kernel takes a length of 0 for "to the end".
            let len = i64::try_from(*len).unwrap_or(0);
            send(front, &inval_inode(node_of(*ino), offset, len));
        }
        Event::InvalidateEntry { parent, name } if !name.is_empty() => {
            send(front, &inval_entry(node_of(*parent), name));
            send(front, &inval_inode(node_of(*parent), 0, 0));
        }
        Event::InvalidateEntry { parent, .. } => {
            invalidate_names(front);
            send(front, &inval_inode(node_of(*parent), 0, 0));
        }
        Event::Overflow => {
            invalidate_names(front);
            for ino in front.inodes.all().into_iter().chain([Ino::ROOT]) {
                send(front, &inval_inode(node_of(ino), 0, 0));
            }
        }
        // Locks are the link's matter; this adaptor holds no delegations and no cache of its own.
        // Nor is what others ask of a kernel that collects writes, which has threads of its own.
        Event::LockGranted { .. } | Event::Recall { .. } | Event::Collected { .. } => {}
    }
}

/// The kernel asks for attributes before it shows them. Takes no lock, so it may be called while a
/// request on the inode is served.
pub(crate) fn attributes_are_stale<S: Slot>(front: &MountFront<S>, ino: Ino) {
    send(front, &inval_inode(node_of(ino), -1, 0));
}

/// What [`tell`] does as far as no lock of the kernel stands in the way of it: attributes, names,
/// listings; bytes of files stay.
pub(crate) fn let_go<S: Slot>(front: &MountFront<S>, event: &Event) {
    let attributes = |ino: Ino| attributes_are_stale(front, ino);
    match event {
        Event::InvalidateInode { ino, .. } => attributes(*ino),
        Event::InvalidateEntry { parent, .. } => {
            invalidate_names(front);
            send(front, &inval_inode(node_of(*parent), 0, 0));
        }
        Event::Overflow => {
            invalidate_names(front);
            front.inodes.all().into_iter().chain([Ino::ROOT]).for_each(attributes);
        }
        Event::LockGranted { .. } | Event::Recall { .. } | Event::Collected { .. } => {}
    }
}

/// Every cached name is stale. Kernels without epochs got short time-outs in the handshake.
fn invalidate_names<S: Slot>(front: &MountFront<S>) {
    if front.agreed().is_some_and(crate::front::Agreed::has_epochs) {
        send(front, &inc_epoch());
    }
}

fn send<S: Slot>(front: &MountFront<S>, message: &[u8]) {
    let Some(device) = front.device(0) else { return };
    if let Err(error) = device.write(message, &[])
        && !is_harmless(&error)
    {
        tracing::warn!(%error, "the kernel did not take an invalidation");
    }
}

/// The kernel does not cache what is stale, or is gone.
fn is_harmless(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENOTDIR))
}

/// Whether SIGKILL is pending for a thread; every fatal signal becomes one. A thread that is gone
/// is not dying: its request is answered into the void.
pub(crate) fn is_dying(tid: u32) -> bool {
    const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);
    let Ok(status) = std::fs::read_to_string(format!("/proc/{tid}/status")) else { return false };
    status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")))
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|mask| mask & SIGKILL != 0)
}

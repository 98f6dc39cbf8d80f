//! What the DPU sleeps on.
//!
//! Each attachment gets an event descriptor of its own, so that no host can swallow another's
//! wake-ups or change the flags of a shared one. The DPU watches them all through one epoll
//! descriptor, edge-triggered and never read: nothing a host does to its descriptor can block the
//! DPU. What else may wake it (sockets, its ring) is watched by the same descriptor, each under a
//! name: a wake-up goes through one wait queue, and one system call sleeps and tells who woke.
//!
//! A notifier that is closed everywhere takes with it the notification nobody has collected: the
//! kernel drops a closed descriptor from the set. So whoever may close one right after it notified
//! is noticed in another way, too. A host is: its socket, which is watched here as well, closes
//! with its notifier, and stays readable until the DPU has looked. The notifier of a plug-in's
//! process has a copy that the asking thread keeps, and that of an executor goes with the futures
//! of which alone it speaks. All other threads notify through the wakeup's own, which lasts as long
//! as the wakeup.

use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll};

/// What a side sleeps on: one descriptor, readable when somebody notified.
#[derive(Debug)]
pub struct Wakeup {
    epoll: OwnedFd,
    /// For the DPU's own threads.
    own: Notifier,
}

/// Who may wake the sleeper: a host's end.
#[derive(Debug)]
pub struct Notifier(OwnedFd);

const DRAIN: usize = 64;
/// The name of every notifier.
const NOTIFIER: u64 = 0;

impl Wakeup {
    /// A wakeup nobody can notify yet but its owner.
    pub fn new() -> io::Result<Wakeup> {
        let epoll = crate::fds::lift(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        let own = Notifier::attach_to(&epoll)?;
        Ok(Wakeup { epoll, own })
    }

    /// An event descriptor that notifies this wakeup, to be handed to a host. It ends when every
    /// copy of it is closed, and what it notified last may then be lost.
    pub fn notifier(&self) -> io::Result<Notifier> {
        Notifier::attach_to(&self.epoll)
    }

    /// Wakes the DPU from another of its own threads.
    pub fn notify(&self) {
        self.own.notify();
    }

    /// For `poll`, epoll or io_uring: readable when somebody notified since the last
    /// [`Self::drain`].
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Watches a descriptor: while it is readable [`Self::listen`] names it.
    pub fn watch(&self, fd: BorrowedFd<'_>, name: NonZeroU64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(name.get());
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Watches it no more.
    pub fn forget(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Takes the notifications without waiting; whether there were any.
    pub fn drain(&self) -> io::Result<bool> {
        self.wait(Duration::ZERO)
    }

    /// Sleeps until somebody notifies, at most `timeout`; whether somebody did.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        self.listen(timeout, |_| ())
    }

    /// The same, and names what is readable of what is watched, not all if it is much.
    pub fn listen(&self, timeout: Duration, mut hear: impl FnMut(u64)) -> io::Result<bool> {
        let timeout = rustix::time::Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut events = [const { MaybeUninit::uninit() }; DRAIN];
        match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok((events, _)) => {
                let names = events.iter().map(|event| event.data.u64());
                names.filter(|name| *name != NOTIFIER).for_each(&mut hear);
                Ok(!events.is_empty())
            }
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Notifier {
    fn attach_to(epoll: &OwnedFd) -> io::Result<Notifier> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = crate::fds::lift(rustix::event::eventfd(0, flags)?)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(epoll, &event, epoll::EventData::new_u64(NOTIFIER), flags)?;
        Ok(Notifier(event))
    }

    /// A notifier received from the DPU.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Notifier {
        Notifier(fd)
    }

    /// The descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Wakes the sleeper. One that cannot be notified any more has a full counter, and then it was.
    pub fn notify(&self) {
        let _full_or_notified = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_notification_after_a_drain_is_seen() {
        let wakeup = Wakeup::new().unwrap();
        let (a, b) = (wakeup.notifier().unwrap(), wakeup.notifier().unwrap());
        assert!(!wakeup.drain().unwrap());
        for _ in 0..3 {
            a.notify();
            b.notify();
            assert!(wakeup.wait(Duration::from_secs(60)).unwrap());
            while wakeup.drain().unwrap() {}
            a.notify();
            a.notify();
            assert!(wakeup.drain().unwrap());
            assert!(!wakeup.drain().unwrap());
        }
        wakeup.notify();
        assert!(wakeup.drain().unwrap());
    }

    /// What is watched is named while it is readable, notifications beside it are not lost, and
    /// alone they name nobody.
    #[test]
    fn who_woke_is_told() {
        let wakeup = Wakeup::new().unwrap();
        let notifier = wakeup.notifier().unwrap();
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        wakeup.watch(theirs.as_fd(), NonZeroU64::new(7).unwrap()).unwrap();
        let listen = || {
            let mut names = Vec::new();
            let woken = wakeup.listen(Duration::ZERO, |name| names.push(name)).unwrap();
            (woken, names)
        };
        assert_eq!(listen(), (false, vec![]));
        io::Write::write_all(&mut ours, b"x").unwrap();
        notifier.notify();
        assert_eq!(listen(), (true, vec![7]));
        assert_eq!(listen(), (true, vec![7]), "it is readable still");
        wakeup.forget(theirs.as_fd()).unwrap();
        assert_eq!(listen(), (false, vec![]));
        notifier.notify();
        assert_eq!(listen(), (true, vec![]));
    }

    /// A host that notifies and leaves at once takes its notification with it; it is heard by its
    /// socket. So is one that leaves while others have notified.
    #[test]
    fn who_notifies_and_leaves_is_heard_by_its_socket() {
        let wakeup = Wakeup::new().unwrap();
        for others_notify in [false, true] {
            let notifier = wakeup.notifier().unwrap();
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            wakeup.watch(theirs.as_fd(), NonZeroU64::new(7).unwrap()).unwrap();
            notifier.notify();
            if others_notify {
                wakeup.notify();
            }
            drop(notifier);
            assert_eq!(wakeup.drain().unwrap(), others_notify, "what is closed is not heard");
            drop(ours);
            for _ in 0..2 {
                let mut names = Vec::new();
                assert!(wakeup.listen(Duration::ZERO, |name| names.push(name)).unwrap());
                assert_eq!(names, [7], "until it has been looked at");
            }
            wakeup.forget(theirs.as_fd()).unwrap();
        }
    }

    /// A copy of a notifier that somebody keeps keeps what was notified through another.
    #[test]
    fn what_was_notified_lasts_as_long_as_a_copy() {
        let wakeup = Wakeup::new().unwrap();
        let kept = wakeup.notifier().unwrap();
        let other = Notifier::from_fd(kept.fd().try_clone_to_owned().unwrap());
        other.notify();
        drop(other);
        assert!(wakeup.drain().unwrap());
        drop(kept);
        assert!(!wakeup.drain().unwrap());
    }

    /// A host that reads its event, fills its counter or makes it blocking hurts nobody but itself.
    #[test]
    fn a_hostile_notifier_blocks_nobody() {
        let wakeup = Wakeup::new().unwrap();
        let (bad, good) = (wakeup.notifier().unwrap(), wakeup.notifier().unwrap());
        rustix::io::write(bad.fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(bad.fd(), rustix::fs::OFlags::empty()).unwrap();
        let mut count = [0; 8];
        rustix::io::read(bad.fd(), &mut count).unwrap();
        while wakeup.drain().unwrap() {}
        good.notify();
        assert!(wakeup.wait(Duration::from_secs(60)).unwrap());
        drop(bad);
        good.notify();
        assert!(wakeup.wait(Duration::from_secs(60)).unwrap());
    }
}

//! The host's side: the file library an application links (section 4.2; rows D4, D6 and D7).
//!
//! A [`Library`] is one attachment. Directories and files are made and found through it, and each
//! [`File`] belongs to a notification group ([`Poll`]), whose rings carry its reads and writes:
//!
//! ```text
//! read_file, write_file, ... ──▶ ring of requests   ──▶ DPU side
//! poll_wait                  ◀── ring of responses  ◀──
//! ```
//!
//! **What blocks.** Reads, writes, flushes and changes of the cache table never do: they put a
//! request into the group's ring or say `EAGAIN` when it is full. [`Library::poll_wait`] sleeps as
//! long as it is told, and not at all for a time of zero. Everything about names and sizes waits
//! for its answer, [`CONTROL_TIME`] at most.
//!
//! **Who owns buffers.** What is written is copied into the ring within the call: the caller has
//! its bytes back at once. What is read comes in buffers the caller hands in and gets back with the
//! completion, or with the error if nothing was begun.
//!
//! **Order.** None is promised between requests that are under way at once; who needs one waits for
//! the completion. Completions of one group come in any order and each exactly once, to whichever
//! thread polls.
//!
//! **Errors.** A call that could not begin says why itself; what began always completes: with what
//! the file service said, or with `EIO` when the DPU side is gone. A thread that dies in the middle
//! of a call is found out by proof and not by age ([`World::is_dead`]), [`STUCK`] after the ring
//! stood still, and what it had reserved is passed over.
//!
//! The library owns no thread, clock or socket: [`World`] is what it needs of them.

mod booking;
mod control;
mod data;
mod endpoint;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outboard_base::{Errno, Result, Time};
use outboard_link::Region;
use outboard_wire::dds::FileId;

use crate::groups::Shape;
use endpoint::Group;

pub use control::Entry;

/// How long a call about names and sizes waits for its answer before it fails with `EIO`.
pub const CONTROL_TIME: Duration = Duration::from_secs(30);
/// How long a ring must stand still before a dead thread is looked for.
pub const STUCK: Duration = Duration::from_secs(1);
/// The group files belong to until they are added to another.
const FIRST: u16 = 1;

/// What the library needs of the world it runs in.
pub trait World: Send + Sync {
    /// The calling thread, never 0 or `u64::MAX`; another one's number only after it has died.
    fn who(&self) -> u64;

    /// Whether it is proved that a thread has died.
    fn is_dead(&self, who: u64) -> bool;

    /// Now.
    fn now(&self) -> Time;

    /// Requests were put into a group's ring: the DPU side is to be woken, should it sleep.
    fn work(&self, group: u16);

    /// Sleeps until a response may be there, at most for a time. It tells the DPU side that
    /// somebody waits, then asks `is_ready` once more, and only then sleeps.
    fn sleep(&self, group: u16, is_ready: &dyn Fn() -> bool, at_most: Duration);

    /// Whether the DPU side is gone. It never comes back to this attachment.
    fn is_lost(&self) -> bool;
}

/// A notification group of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Poll {
    group: u16,
}

impl Poll {
    /// Its number in its attachment.
    #[must_use]
    pub fn number(self) -> u16 {
        self.group
    }
}

/// A file, as an application holds it.
#[derive(Debug)]
pub struct File {
    id: FileId,
    group: AtomicU16,
}

impl File {
    fn new(id: FileId) -> File {
        File { id, group: AtomicU16::new(FIRST) }
    }

    /// Its id, the same for everybody.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.id
    }
}

/// What was asked for and has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion<B = Vec<u8>> {
    /// As the caller gave it.
    pub user: u64,
    /// Bytes read (fewer than asked for at the end of a file) or written; for other requests the
    /// value they have. Or why not.
    pub result: Result<u64>,
    /// The buffers of a read, filled one after another.
    pub buffers: Vec<B>,
}

/// A request that was not begun.
#[derive(Debug, PartialEq, Eq)]
pub struct NotBegun<B = Vec<u8>> {
    /// `EAGAIN`: the ring is full, poll first. `E2BIG`: longer than a ring takes. `EIO`: the DPU
    /// side is gone.
    pub errno: Errno,
    /// The buffers of a read.
    pub buffers: Vec<B>,
}

impl<B> From<NotBegun<B>> for Errno {
    fn from(not_begun: NotBegun<B>) -> Errno {
        not_begun.errno
    }
}

/// One attachment, whose reads end in buffers of one kind. All calls may be made by any thread at
/// any time.
pub struct Library<W, B = Vec<u8>> {
    world: W,
    shape: Shape,
    /// Group 0, of the library itself.
    own: Group<Vec<u8>>,
    /// The others, from group [`FIRST`] on.
    groups: Vec<Group<B>>,
    /// Groups given out.
    polls: Mutex<u16>,
    /// Who asks about names and sizes: one at a time.
    control: Mutex<u64>,
}

impl<W: World, B: AsMut<[u8]>> Library<W, B> {
    /// Over the fresh region of an attachment.
    ///
    /// # Errors
    /// `EINVAL`, if the rings do not lie in it.
    pub fn new(region: &Arc<Region>, shape: Shape, world: W) -> Result<Library<W, B>> {
        let rings = |group| shape.rings(group).ok_or(Errno::EINVAL);
        let broken = |_| Errno::EINVAL;
        let own = Group::new(region, rings(0)?, shape.align()).map_err(broken)?;
        let group = |group| Group::new(region, rings(group)?, shape.align()).map_err(broken);
        let groups = (FIRST..shape.groups()).map(group).collect::<Result<Vec<_>>>()?;
        let (polls, control) = (Mutex::new(FIRST + 1), Mutex::new(0));
        Ok(Library { world, shape, own, groups, polls, control })
    }

    /// The shape of its rings.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// What it was made with.
    #[must_use]
    pub fn world(&self) -> &W {
        &self.world
    }

    /// The group every file belongs to at first.
    #[must_use]
    pub fn default_poll(&self) -> Poll {
        Poll { group: FIRST }
    }

    /// The group of a [number](Poll::number) that was given out.
    #[must_use]
    pub fn poll(&self, number: u16) -> Option<Poll> {
        (FIRST..*endpoint::lock(&self.polls)).contains(&number).then_some(Poll { group: number })
    }

    /// `CreatePoll`: a notification group. Does not block.
    ///
    /// # Errors
    /// `EMFILE` when the attachment has no more.
    pub fn create_poll(&self) -> Result<Poll> {
        let mut polls = endpoint::lock(&self.polls);
        let group = *polls;
        if group >= self.shape.groups() {
            return Err(Errno::EMFILE);
        }
        *polls += 1;
        Ok(Poll { group })
    }

    /// `PollAdd`: what is asked of the file from now on completes in this group; what is under way
    /// completes where it was asked. Does not block.
    ///
    /// # Errors
    /// `EINVAL` for a group of another attachment.
    pub fn poll_add(&self, poll: Poll, file: &File) -> Result<()> {
        if poll.group < FIRST || poll.group >= self.shape.groups() {
            return Err(Errno::EINVAL);
        }
        file.group.store(poll.group, Relaxed);
        Ok(())
    }

    fn group(&self, group: u16) -> Result<&Group<B>> {
        let number = group.checked_sub(FIRST).ok_or(Errno::EINVAL)?;
        self.groups.get(usize::from(number)).ok_or(Errno::EINVAL)
    }
}

impl<W, B> std::fmt::Debug for Library<W, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("shape", &self.shape).finish_non_exhaustive()
    }
}

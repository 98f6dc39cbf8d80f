//! Reads, writes and what else never blocks; and waiting for what they come to.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use outboard_base::{Errno, Result};
use outboard_wire::dds::{DATA_MAX, Request};

use super::booking::{Booked, Outcome};
use super::endpoint::Group;
use super::{Completion, File, Library, NotBegun, Poll, World};

/// Longest sleep at once: after it, threads that died and a DPU side that is gone are looked for.
const NAP: Duration = Duration::from_millis(500);

impl<W: World, B: AsMut<[u8]>> Library<W, B> {
    /// `ReadFile`: fills `buffer` from `offset`. Does not block.
    ///
    /// # Errors
    /// [`NotBegun`], with the buffer.
    pub fn read_file(
        &self,
        file: &File,
        offset: u64,
        buffer: B,
        user: u64,
    ) -> std::result::Result<(), NotBegun<B>> {
        self.read_scattered(file, offset, vec![buffer], user)
    }

    /// A scattered read: one read, which fills the buffers one after another. Does not block.
    ///
    /// # Errors
    /// [`NotBegun`], with the buffers; `E2BIG` for more than [`Shape::read_max`] bytes.
    ///
    /// [`Shape::read_max`]: crate::groups::Shape::read_max
    pub fn read_scattered(
        &self,
        file: &File,
        offset: u64,
        mut buffers: Vec<B>,
        user: u64,
    ) -> std::result::Result<(), NotBegun<B>> {
        let bytes = buffers.iter_mut().map(|buffer| buffer.as_mut().len()).sum::<usize>();
        let fits = u32::try_from(bytes).ok().filter(|_| bytes <= self.shape.read_max());
        let Some(bytes) = fits else { return Err(NotBegun { errno: Errno::E2BIG, buffers }) };
        let request = Request::Read { file: file.id, offset, bytes };
        let booked = Booked { user, buffers, result: Outcome::Read };
        self.begin(file.group.load(Relaxed), &request, &[], booked)
    }

    /// `WriteFile`: all of `data` at `offset`; it is copied before this returns. Does not block.
    ///
    /// # Errors
    /// [`NotBegun`].
    pub fn write_file(
        &self,
        file: &File,
        offset: u64,
        data: &[u8],
        user: u64,
    ) -> std::result::Result<(), NotBegun<B>> {
        self.write_gathered(file, offset, &[data], user)
    }

    /// A gathered write: one write of the pieces one after another. Does not block.
    ///
    /// # Errors
    /// [`NotBegun`]; `E2BIG` for more than half a ring of requests, or a MiB.
    pub fn write_gathered(
        &self,
        file: &File,
        offset: u64,
        data: &[&[u8]],
        user: u64,
    ) -> std::result::Result<(), NotBegun<B>> {
        let bytes = data.iter().map(|part| part.len()).sum::<usize>();
        if bytes > DATA_MAX {
            return Err(NotBegun { errno: Errno::E2BIG, buffers: Vec::new() });
        }
        let request = Request::Write { file: file.id, offset, data: &[] };
        let result = Outcome::Written(bytes as u64);
        let booked = Booked { user, buffers: Vec::new(), result };
        self.begin(file.group.load(Relaxed), &request, data, booked)
    }

    /// Asks that what was answered of the file survives power loss. Does not block.
    ///
    /// # Errors
    /// [`NotBegun`].
    pub fn flush_file(&self, file: &File, user: u64) -> std::result::Result<(), NotBegun<B>> {
        let booked = Booked { user, buffers: Vec::new(), result: Outcome::Value };
        let request = Request::Flush { file: file.id };
        self.begin(file.group.load(Relaxed), &request, &[], booked)
    }

    /// Asks that a file is made `size` bytes: cut, or filled with zeroes. Does not block.
    ///
    /// # Errors
    /// [`NotBegun`].
    pub fn begin_resize(
        &self,
        file: &File,
        size: u64,
        user: u64,
    ) -> std::result::Result<(), NotBegun<B>> {
        let booked = Booked { user, buffers: Vec::new(), result: Outcome::Value };
        let request = Request::Resize { file: file.id, size };
        self.begin(file.group.load(Relaxed), &request, &[], booked)
    }

    /// Asks for changes of the cache table, as the table encodes them. Once it completes, no
    /// offloaded request finds what was there before. Does not block.
    ///
    /// # Errors
    /// [`NotBegun`].
    pub fn change_table(
        &self,
        poll: Poll,
        changes: &[u8],
        user: u64,
    ) -> std::result::Result<(), NotBegun<B>> {
        let booked = Booked { user, buffers: Vec::new(), result: Outcome::Value };
        let request = Request::Table { changes: &[] };
        self.begin(poll.group, &request, &[changes], booked)
    }

    fn begin(
        &self,
        group: u16,
        request: &Request<'_>,
        data: &[&[u8]],
        booked: Booked<B>,
    ) -> std::result::Result<(), NotBegun<B>> {
        match self.group(group) {
            Ok(rings) => self.begin_in(group, rings, request, data, booked),
            Err(errno) => Err(NotBegun { errno, buffers: booked.buffers }),
        }
    }

    pub(super) fn begin_in<C: AsMut<[u8]>>(
        &self,
        group: u16,
        rings: &Group<C>,
        request: &Request<'_>,
        data: &[&[u8]],
        booked: Booked<C>,
    ) -> std::result::Result<(), NotBegun<C>> {
        if self.world.is_lost() {
            return Err(NotBegun { errno: Errno::EIO, buffers: booked.buffers });
        }
        match rings.submit(self.world.who(), request, data, booked) {
            Ok(()) => {
                self.world.work(group);
                Ok(())
            }
            Err((mut errno, Booked { buffers, .. })) => {
                if errno == Errno::EAGAIN
                    && let Err(broken) = rings.tend(&self.world)
                {
                    errno = broken;
                }
                Err(NotBegun { errno, buffers })
            }
        }
    }

    /// `PollWait`: appends completions of a group to `out`, up to `most`, and says how many. If
    /// there are none it waits for one, `at_most` so long; with a time of zero it never sleeps.
    ///
    /// # Errors
    /// `EINVAL` for a group of another attachment.
    pub fn poll_wait(
        &self,
        poll: Poll,
        out: &mut Vec<Completion<B>>,
        most: usize,
        at_most: Duration,
    ) -> Result<usize> {
        Ok(self.wait_in(poll.group, self.group(poll.group)?, out, most, at_most))
    }

    pub(super) fn wait_in<C: AsMut<[u8]>>(
        &self,
        group: u16,
        rings: &Group<C>,
        out: &mut Vec<Completion<C>>,
        most: usize,
        at_most: Duration,
    ) -> usize {
        let had = out.len();
        let mut until = None;
        loop {
            // Asked first: what was answered before the loss is then in the ring already.
            let is_lost = self.world.is_lost();
            let followed = rings.take(self.world.who(), out, most);
            if out.len() == had && (is_lost || followed.is_err()) {
                rings.fail(out, had.saturating_add(most));
            }
            let left = if at_most.is_zero() {
                Duration::ZERO
            } else {
                let now = self.world.now();
                until.get_or_insert_with(|| now.after(at_most)).since(now)
            };
            if out.len() > had || most == 0 || left.is_zero() || is_lost {
                return out.len() - had;
            }
            if rings.tend(&self.world).is_err() {
                rings.fail(out, had.saturating_add(most));
                continue;
            }
            let is_ready = || rings.is_ready() || self.world.is_lost();
            self.world.sleep(group, &is_ready, left.min(NAP));
        }
    }
}

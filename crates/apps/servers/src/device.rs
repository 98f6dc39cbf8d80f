//! What a server's cold data lies on (`IDevice` in FASTER): a growing range of bytes, and beside it
//! the cache table of the DPU side, if there is one.

mod dds;
mod local;
#[cfg(test)]
pub(crate) mod sim;

use std::future::Future;
use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::Errno;
use outboard_dds::table::Changes;
use outboard_medium::hold::Holding;
use outboard_medium::{Buf, Medium};
use outboard_os::medium::{FileMedium, MediumOptions, Reactor};

pub use dds::DdsDevice;
pub use local::{Files, LocalDevice};

/// A device. All on one thread.
pub trait Device: 'static {
    /// What is read.
    type Bytes: Deref<Target = [u8]>;

    /// The file's number, as the DPU side knows it.
    fn file(&self) -> u32;

    /// Whether there is a cache table: if not, nothing has to be retired.
    fn has_table(&self) -> bool;

    /// Reads `len` bytes from `offset`, both whole blocks. Beyond the end are zeros.
    fn read(&self, offset: u64, len: usize) -> impl Future<Output = Result<Self::Bytes, Errno>>;

    /// Writes all of `buf` at `offset`, beyond the end too.
    fn write(&self, offset: u64, buf: Buf) -> impl Future<Output = Result<(), Errno>>;

    /// Bytes of the file.
    fn size(&self) -> Result<u64, Errno>;

    /// Makes the file, which is shorter, `len` bytes long, whole blocks: writes up to there find
    /// room. If it fails, with `ENOSPC` where there is none, nothing has changed.
    fn grow(&self, len: u64) -> impl Future<Output = Result<(), Errno>>;

    /// Gives up what lies from `len` on, whole blocks, where nobody reads or writes any more.
    fn cut(&self, len: u64) -> impl Future<Output = Result<(), Errno>>;

    /// Makes what was written survive power loss.
    fn flush(&self) -> impl Future<Output = Result<(), Errno>>;

    /// Changes the cache table. When this ends, every look at the table shows it.
    fn update(&self, changes: Changes) -> impl Future<Output = Result<(), Errno>>;

    /// Takes in what has ended and wakes who waits for it; how much.
    fn progress(&self) -> usize;

    /// Sleeps until something has ended, `wake` is readable or `timeout` is over.
    fn sleep(&self, wake: BorrowedFd<'_>, timeout: Duration) -> io::Result<()>;

    /// Whether the other side is gone, and with it all that was asked of it.
    fn is_lost(&self) -> bool;
}

/// How much a plain file grows at a time.
const GROWTH: u64 = 64 << 20;

/// A plain file of the host: io_uring and O_DIRECT where they can be had.
pub struct PlainDevice {
    medium: Arc<Holding<FileMedium>>,
    reactor: Option<Reactor>,
}

impl PlainDevice {
    /// Opens or makes the file at `path`, for the thread it is called on.
    pub fn open(path: &Path) -> io::Result<PlainDevice> {
        let reactor = match Reactor::install(256) {
            Ok(reactor) => Some(reactor),
            Err(error) => {
                tracing::warn!(%error, "no io_uring; files are read and written in turn");
                None
            }
        };
        let medium = Arc::new(Holding::new(FileMedium::open(path, MediumOptions::default())?));
        Ok(PlainDevice { medium, reactor })
    }

    /// What copies are made of, by another thread.
    #[must_use]
    pub fn held(&self) -> Arc<Holding<FileMedium>> {
        Arc::clone(&self.medium)
    }
}

impl Device for PlainDevice {
    type Bytes = Buf;

    fn file(&self) -> u32 {
        0
    }

    fn has_table(&self) -> bool {
        false
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Buf, Errno> {
        let mut buf = Buf::zeroed(len);
        let there = self.medium.len().saturating_sub(offset);
        let there = usize::try_from(there).unwrap_or(usize::MAX).min(buf.len());
        if there > 0 {
            buf.resize(there);
            let (read, filled) = self.medium.read(offset, buf).await;
            read?;
            buf = filled;
            buf.resize(len);
        }
        Ok(buf)
    }

    async fn write(&self, offset: u64, buf: Buf) -> Result<(), Errno> {
        let end = offset + buf.len() as u64;
        if end > self.medium.len() {
            self.medium.grow(end.next_multiple_of(GROWTH)).await?;
        }
        self.medium.write(offset, buf).await.0
    }

    fn size(&self) -> Result<u64, Errno> {
        Ok(self.medium.len())
    }

    async fn grow(&self, len: u64) -> Result<(), Errno> {
        self.medium.grow(len).await
    }

    async fn cut(&self, len: u64) -> Result<(), Errno> {
        self.medium.alter(self.medium.inner().cut(len)).await
    }

    async fn flush(&self) -> Result<(), Errno> {
        self.medium.flush().await
    }

    async fn update(&self, _: Changes) -> Result<(), Errno> {
        Ok(())
    }

    fn progress(&self) -> usize {
        self.reactor.as_ref().map_or(0, Reactor::poll)
    }

    fn sleep(&self, wake: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
        match &self.reactor {
            Some(reactor) => reactor.sleep(wake, timeout),
            // Nothing is ever under way: what is asked is done at once.
            None => Ok(()),
        }
    }

    fn is_lost(&self) -> bool {
        false
    }
}

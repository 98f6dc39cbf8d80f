//! A file of the DPU side's file service, through the file library.
//!
//! The server's thread takes completions itself, and sleeps on them and on its clients at once: the
//! DPU side wakes it through a socket, which can be waited for beside others.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use outboard_base::Errno;
use outboard_dds::groups::Shape;
use outboard_dds::host::{Completion, File, NotBegun};
use outboard_dds::table::Changes;
use outboard_medium::{ALIGN, Buf};
use outboard_pageserver::host::Attachment;
use outboard_pageserver::library::{FileLibrary, file_library};
use outboard_wire::dds::DirectoryId;

use super::Device;

/// Bytes of the ring of requests: a page of a log must fit in half of it.
const REQUESTS: u64 = 4 << 20;
/// Bytes of the ring of responses.
const RESPONSES: u64 = 4 << 20;
/// Completions taken at once.
const BATCH: usize = 256;
/// How long the server looks for the end of a read itself before it sleeps.
const SPIN: Duration = Duration::from_micros(30);

/// The socket is looked at this often for the DPU side's end.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Asked {
    next: u64,
    wakers: HashMap<u64, Waker>,
    done: HashMap<u64, Completion>,
    /// Who found the ring full.
    full: Vec<Waker>,
}

/// The device.
pub struct DdsDevice {
    library: FileLibrary,
    file: File,
    asked: RefCell<Asked>,
    looked: Cell<Instant>,
    /// Reads that somebody waits for.
    reads: Cell<usize>,
}

/// A read that somebody waits for, as long as this is held.
struct Awaited<'a>(&'a Cell<usize>);

impl<'a> Awaited<'a> {
    fn new(reads: &'a Cell<usize>) -> Awaited<'a> {
        reads.set(reads.get() + 1);
        Awaited(reads)
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn named(what: &str) -> impl Fn(Errno) -> io::Error {
    move |error| io::Error::other(format!("{what}: {error}"))
}

impl DdsDevice {
    /// Attaches to the DPU side at `socket`, and opens or makes `file` in `directory` there.
    pub fn attach(
        socket: &Path,
        directory: &str,
        file: &str,
        timeout: Duration,
    ) -> io::Result<DdsDevice> {
        let align = u32::try_from(ALIGN).map_err(io::Error::other)?;
        let shape = Shape::new(2, REQUESTS, RESPONSES, align)
            .ok_or_else(|| io::Error::other("the rings have no shape"))?;
        let library = file_library(Attachment::attach(socket, shape, timeout)?)?;
        let directory = open_directory(&library, directory)?;
        let file = match library.open_file(directory, file.as_bytes()) {
            Err(Errno::ENOENT) => library.create_file(directory, file.as_bytes()),
            other => other,
        }
        .map_err(named("cannot open a file of the DPU side"))?;
        let (asked, looked) = (RefCell::default(), Cell::new(Instant::now()));
        let reads = Cell::new(0);
        Ok(DdsDevice { library, file, asked, looked, reads })
    }

    /// Begins a request and waits for its end. `begin` is asked again while the ring is full.
    async fn ask(
        &self,
        mut begin: impl FnMut(&FileLibrary, u64) -> Result<(), NotBegun>,
    ) -> Result<Completion, Errno> {
        let user = {
            let mut asked = self.asked.borrow_mut();
            asked.next += 1;
            asked.next
        };
        let mut begun = false;
        let done = poll_fn(|cx| {
            if !begun {
                match begin(&self.library, user) {
                    Ok(()) => begun = true,
                    Err(NotBegun { errno: Errno::EAGAIN, .. }) => {
                        self.asked.borrow_mut().full.push(cx.waker().clone());
                        return Poll::Pending;
                    }
                    Err(NotBegun { errno, .. }) => return Poll::Ready(Err(errno)),
                }
            }
            let mut asked = self.asked.borrow_mut();
            if let Some(done) = asked.done.remove(&user) {
                return Poll::Ready(Ok(done));
            }
            asked.wakers.insert(user, cx.waker().clone());
            Poll::Pending
        })
        .await?;
        match done.result {
            Ok(_) => Ok(done),
            Err(errno) => Err(errno),
        }
    }
}

fn open_directory(library: &FileLibrary, name: &str) -> io::Result<DirectoryId> {
    match library.open_directory(name.as_bytes()) {
        Err(Errno::ENOENT) => library.create_directory(name.as_bytes()),
        other => other,
    }
    .map_err(named("cannot open a directory of the DPU side"))
}

impl Device for DdsDevice {
    type Bytes = Vec<u8>;

    fn file(&self) -> u32 {
        self.file.id().0
    }

    fn has_table(&self) -> bool {
        true
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        // A buffer that comes back because the ring is full is asked with again.
        let mut buffer = None;
        let read = |library: &FileLibrary, user| {
            let mine = buffer.take().unwrap_or_else(|| vec![0; len]);
            library.read_file(&self.file, offset, mine, user).map_err(|mut not_begun| {
                buffer = not_begun.buffers.pop();
                not_begun
            })
        };
        let _awaited = Awaited::new(&self.reads);
        self.ask(read).await?.buffers.pop().ok_or(Errno::EIO)
    }

    async fn write(&self, offset: u64, buf: Buf) -> Result<(), Errno> {
        let write =
            |library: &FileLibrary, user| library.write_file(&self.file, offset, &buf, user);
        self.ask(write).await.map(drop)
    }

    fn size(&self) -> Result<u64, Errno> {
        self.library.file_size(&self.file)
    }

    /// A block of zeros at its end: unlike a change of its size it keeps nobody waiting who reads
    /// or writes elsewhere.
    async fn grow(&self, len: u64) -> Result<(), Errno> {
        self.write(len.saturating_sub(ALIGN as u64), Buf::zeroed(ALIGN)).await
    }

    async fn cut(&self, len: u64) -> Result<(), Errno> {
        let cut = |library: &FileLibrary, user| library.begin_resize(&self.file, len, user);
        self.ask(cut).await.map(drop)
    }

    async fn flush(&self) -> Result<(), Errno> {
        let flush = |library: &FileLibrary, user| library.flush_file(&self.file, user);
        self.ask(flush).await.map(drop)
    }

    async fn update(&self, changes: Changes) -> Result<(), Errno> {
        let bytes = changes.emit();
        let poll = self.library.default_poll();
        let change = |library: &FileLibrary, user| library.change_table(poll, &bytes, user);
        self.ask(change).await.map(drop)
    }

    fn progress(&self) -> usize {
        let mut out = Vec::new();
        let poll = self.library.default_poll();
        if let Err(error) = self.library.poll_wait(poll, &mut out, BATCH, Duration::ZERO) {
            tracing::error!(%error, "completions of the DPU side cannot be taken");
        }
        let mut woken = Vec::new();
        let mut asked = self.asked.borrow_mut();
        let found = out.len();
        for done in out {
            woken.extend(asked.wakers.remove(&done.user));
            asked.done.insert(done.user, done);
        }
        if found > 0 {
            woken.append(&mut asked.full);
        }
        drop(asked);
        woken.into_iter().for_each(Waker::wake);
        found
    }

    fn sleep(&self, wake: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
        // A client waits for a read. For what else is under way nobody does, and looking for it
        // would keep the clients waiting who have sent something meanwhile.
        if self.reads.get() > 0 {
            let since = Instant::now();
            while since.elapsed() < SPIN {
                if self.progress() > 0 {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        let (group, ready) = (self.library.default_poll().number(), || self.progress() > 0);
        self.library.world().sleep_beside(group, wake, timeout, &ready)?;
        self.progress();
        Ok(())
    }

    fn is_lost(&self) -> bool {
        let world = self.library.world();
        if self.looked.get().elapsed() < LOOK {
            return world.is_lost();
        }
        self.looked.set(Instant::now());
        world.look()
    }
}

//! A file of the DPU side's file service, through the file library.
//!
//! The server's thread takes completions itself while it is awake. For its sleep there is a second
//! thread, which waits for the rings and rings a bell that the server sleeps on; with nothing under
//! way that thread sleeps for good.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use outboard_base::Errno;
use outboard_dds::groups::Shape;
use outboard_dds::host::{Completion, File, NotBegun};
use outboard_dds::table::Changes;
use outboard_drivers::dds::host::Attachment;
use outboard_drivers::dds::library::{FileLibrary, file_library};
use outboard_drivers::link::Bell;
use outboard_kv::medium::{ALIGN, Buf};
use outboard_wire::dds::DirectoryId;
use rustix::event::{PollFd, PollFlags};

use super::Device;

/// Bytes of the ring of requests: a page of a log must fit in half of it.
const REQUESTS: u64 = 4 << 20;
/// Bytes of the ring of responses.
const RESPONSES: u64 = 4 << 20;
/// Completions taken at once.
const BATCH: usize = 256;
/// How long the server looks for completions itself before it sleeps.
const SPIN: Duration = Duration::from_micros(30);
/// How long the waiting thread sleeps at once.
const NAP: Duration = Duration::from_millis(500);

/// The socket is looked at this often for the DPU side's end.
const LOOK: Duration = Duration::from_millis(200);

/// What the two threads share.
struct Shared {
    library: FileLibrary,
    taken: Mutex<Vec<Completion>>,
    bell: Bell,
    /// The server sleeps and has something under way.
    waits: AtomicBool,
    ends: AtomicBool,
}

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
    shared: Arc<Shared>,
    waiter: Thread,
    thread: Option<JoinHandle<()>>,
    file: File,
    asked: RefCell<Asked>,
    looked: Cell<Instant>,
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
        let shared = Arc::new(Shared {
            library,
            taken: Mutex::default(),
            bell: Bell::new()?,
            waits: AtomicBool::new(false),
            ends: AtomicBool::new(false),
        });
        let waiting = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("dds-waiter".to_owned())
            .spawn(move || wait_for_the_server(&waiting))?;
        let waiter = thread.thread().clone();
        let (asked, looked) = (RefCell::default(), Cell::new(Instant::now()));
        Ok(DdsDevice { shared, waiter, thread: Some(thread), file, asked, looked })
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
                match begin(&self.shared.library, user) {
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

/// Waits for completions while the server sleeps.
fn wait_for_the_server(shared: &Shared) {
    let mut out = Vec::new();
    while !shared.ends.load(Ordering::Acquire) {
        if !shared.waits.load(Ordering::Acquire) {
            std::thread::park();
            continue;
        }
        let poll = shared.library.default_poll();
        let found = shared.library.poll_wait(poll, &mut out, BATCH, NAP);
        if found.is_err() || !out.is_empty() {
            shared.waits.store(false, Ordering::Release);
            let mut taken = shared.taken.lock().unwrap_or_else(PoisonError::into_inner);
            taken.append(&mut out);
            drop(taken);
            shared.bell.ring();
        }
    }
}

impl Drop for DdsDevice {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        self.waiter.unpark();
        if let Some(thread) = self.thread.take() {
            // A panic was printed by the thread itself.
            let _ended = thread.join();
        }
    }
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
        self.ask(read).await?.buffers.pop().ok_or(Errno::EIO)
    }

    async fn write(&self, offset: u64, buf: Buf) -> Result<(), Errno> {
        let write =
            |library: &FileLibrary, user| library.write_file(&self.file, offset, &buf, user);
        self.ask(write).await.map(drop)
    }

    async fn update(&self, changes: Changes) -> Result<(), Errno> {
        let bytes = changes.emit();
        let poll = self.shared.library.default_poll();
        let change = |library: &FileLibrary, user| library.change_table(poll, &bytes, user);
        self.ask(change).await.map(drop)
    }

    fn progress(&self) -> usize {
        let mut out = {
            let mut taken = self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *taken)
        };
        let poll = self.shared.library.default_poll();
        if let Err(error) = self.shared.library.poll_wait(poll, &mut out, BATCH, Duration::ZERO) {
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
        let since = Instant::now();
        while since.elapsed() < SPIN {
            if self.progress() > 0 {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.shared.waits.store(true, Ordering::Release);
        self.waiter.unpark();
        let timeout = rustix::time::Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut fds = [
            PollFd::from_borrowed_fd(self.shared.bell.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(wake, PollFlags::IN),
        ];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.shared.bell.drain()?;
        self.progress();
        Ok(())
    }

    fn is_lost(&self) -> bool {
        let world = self.shared.library.world();
        if self.looked.get().elapsed() < LOOK {
            return world.is_lost();
        }
        self.looked.set(Instant::now());
        world.look()
    }
}

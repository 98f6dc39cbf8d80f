//! A whole disk that remembers: every write and flush a file system makes on it.
//!
//! A directory with one file in it, `disk`, served to the kernel by a thread of ours through the
//! FUSE interface (requests are read and answered here, by hand: eight operations are all a loop
//! device needs). A loop device on that file is a disk; whatever lies on it (a file system, on it
//! the engine's files and the block store's medium) is recorded below everything, as the device
//! would see it.
//!
//! One thread answers, so the record is in one order: a flush makes durable what was written before
//! it. [`RecordedDisk::replay`] builds the disk that power loss after any number of operations
//! could have left. Needs root.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use outboard_base::{Errno, Rng};
use rustix::mount::{MountFlags, UnmountFlags};

use super::SECTOR;

/// Bytes of the pieces the disk is kept in.
const PIECE: usize = 4096;
/// Largest write the kernel may send, bytes.
const WRITE_MAX: usize = 128 << 10;
/// The file's node; the directory is 1.
const DISK: u64 = 2;

enum Event {
    Write { offset: u64, bytes: Box<[u8]> },
    Flush,
}

struct State {
    size: u64,
    pieces: BTreeMap<u64, Box<[u8]>>,
    events: Vec<Event>,
}

impl State {
    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            let at = offset + out.len() as u64;
            let within = usize::try_from(at % PIECE as u64).unwrap_or(0);
            let part = (PIECE - within).min(len - out.len());
            match self.pieces.get(&(at / PIECE as u64)).and_then(|p| p.get(within..within + part)) {
                Some(bytes) => out.extend_from_slice(bytes),
                None => out.resize(out.len() + part, 0),
            }
        }
        out
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            let within = usize::try_from(at % PIECE as u64).unwrap_or(0);
            let piece = self.pieces.entry(at / PIECE as u64);
            let piece = piece.or_insert_with(|| vec![0; PIECE].into());
            let space = piece.get_mut(within..).unwrap_or_default();
            for (to, from) in space.iter_mut().zip(rest) {
                *to = *from;
            }
            done += space.len().min(rest.len());
        }
        self.events.push(Event::Write { offset, bytes: bytes.into() });
    }
}

/// The disk, until dropped. Unmount what lies on it first.
pub struct RecordedDisk {
    dir: PathBuf,
    state: Arc<Mutex<State>>,
    server: Option<JoinHandle<io::Result<()>>>,
}

impl RecordedDisk {
    /// Makes a disk of `size` zeros that appears as the file `disk` in the directory `dir`.
    pub fn start(dir: &Path, size: u64) -> io::Result<RecordedDisk> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("outboard-recorder", dir, "fuse", flags, &*options)?;
        let state = State { size, pieces: BTreeMap::new(), events: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let served = Arc::clone(&state);
        let builder = std::thread::Builder::new().name("outboard-disk".into());
        let server = Some(builder.spawn(move || serve(&device, &served))?);
        Ok(RecordedDisk { dir: dir.to_path_buf(), state, server })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file to put a loop device on.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.dir.join("disk")
    }

    /// How many operations are recorded: a moment to lose power at.
    #[must_use]
    pub fn now(&self) -> usize {
        self.state().events.len()
    }

    /// Writes to `path` the disk as power loss after the first `moment` operations could have left
    /// it: what was written before their last flush, and of the rest any subset, by sectors.
    pub fn replay(&self, moment: usize, path: &Path, rng: &mut Rng) -> io::Result<()> {
        let state = self.state();
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        file.set_len(state.size)?;
        let events = state.events.get(..moment).unwrap_or(&state.events);
        let durable = events.iter().rposition(|e| matches!(e, Event::Flush)).unwrap_or(0);
        // Sometimes all is there, or nothing that was not flushed.
        let fate = rng.below(4);
        for (at, event) in events.iter().enumerate() {
            let Event::Write { offset, bytes } = event else { continue };
            let whole = rng.chance(1, 2);
            for (nth, sector) in bytes.chunks(SECTOR).enumerate() {
                let kept = match fate {
                    0 => true,
                    1 => false,
                    2 => whole,
                    _ => rng.chance(1, 2),
                };
                if at < durable || kept {
                    file.write_all_at(sector, offset + (nth * SECTOR) as u64)?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for RecordedDisk {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH) {
            tracing::error!(dir = %self.dir.display(), %error, "cannot unmount the recorded disk");
            return;
        }
        if let Some(Ok(Err(error))) = self.server.take().map(JoinHandle::join) {
            tracing::error!(%error, "the recorded disk's server failed");
        }
    }
}

/// Answers until the file system is unmounted.
fn serve(mut device: &File, state: &Mutex<State>) -> io::Result<()> {
    let mut buf = vec![0; WRITE_MAX + PIECE];
    loop {
        let len = match device.read(&mut buf) {
            Ok(len) => len,
            Err(error) => match error.raw_os_error() {
                Some(libc::ENODEV) => return Ok(()),
                Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => continue,
                _ => return Err(error),
            },
        };
        let request = buf.get(..len).and_then(Request::parse);
        let Some(request) = request else { return Err(io::ErrorKind::InvalidData.into()) };
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(answer) = answer(&request, &mut state) else { continue };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-i32::from(errno.raw()), Vec::new()),
        };
        let mut reply = u32::try_from(16 + body.len()).unwrap_or(16).to_ne_bytes().to_vec();
        reply.extend_from_slice(&error.to_ne_bytes());
        reply.extend_from_slice(&request.unique.to_ne_bytes());
        reply.extend_from_slice(&body);
        match device.write(&reply) {
            Ok(_) => {}
            // The asker is gone.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
}

/// A request as `linux/fuse.h` lays it out: 40 bytes of header, then arguments.
struct Request<'a> {
    opcode: u32,
    unique: u64,
    node: u64,
    args: &'a [u8],
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk::<8>().map(|b| u64::from_ne_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk::<4>().map(|b| u32::from_ne_bytes(*b))
}

impl Request<'_> {
    fn parse(bytes: &[u8]) -> Option<Request<'_>> {
        Some(Request {
            opcode: u32_at(bytes, 4)?,
            unique: u64_at(bytes, 8)?,
            node: u64_at(bytes, 16)?,
            args: bytes.get(40..)?,
        })
    }

    /// Offset and length of a read or a write.
    fn range(&self) -> Option<(u64, usize)> {
        Some((u64_at(self.args, 8)?, usize::try_from(u32_at(self.args, 16)?).ok()?))
    }
}

mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
}

/// The answer; `None` where the kernel wants none.
fn answer(request: &Request<'_>, state: &mut State) -> Option<Result<Vec<u8>, Errno>> {
    Some(match request.opcode {
        opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => return None,
        opcode::INIT => Ok(init()),
        opcode::LOOKUP if request.args.starts_with(b"disk\0") => {
            // Node, generation, and times the answer is good for: an hour, as nothing else changes
            // it.
            let mut body = words(&[DISK, 0, 3600, 3600, 0]);
            body.extend(attributes(DISK, state.size));
            Ok(body)
        }
        opcode::LOOKUP => Err(Errno::ENOENT),
        opcode::GETATTR | opcode::SETATTR => {
            let mut body = words(&[3600, 0]);
            body.extend(attributes(request.node, state.size));
            Ok(body)
        }
        opcode::OPEN => Ok(words(&[0, 0])),
        opcode::READ => request.range().ok_or(Errno::EINVAL).map(|(offset, len)| {
            let left = usize::try_from(state.size.saturating_sub(offset)).unwrap_or(usize::MAX);
            state.read(offset, len.min(left))
        }),
        opcode::WRITE => write(request, state).ok_or(Errno::EINVAL),
        opcode::FSYNC => {
            state.events.push(Event::Flush);
            Ok(Vec::new())
        }
        opcode::FLUSH | opcode::RELEASE => Ok(Vec::new()),
        _ => Err(Errno::ENOSYS),
    })
}

fn write(request: &Request<'_>, state: &mut State) -> Option<Vec<u8>> {
    let (offset, len) = request.range()?;
    let bytes = request.args.get(40..)?.get(..len)?;
    if offset.checked_add(len as u64)? > state.size {
        return None;
    }
    state.write(offset, bytes);
    Some(words(&[len as u64]))
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Protocol 7.31: large writes, and no more of them than fit our buffer.
fn init() -> Vec<u8> {
    const BIG_WRITES: u32 = 1 << 5;
    const MAX_PAGES: u32 = 1 << 22;
    let mut body = Vec::new();
    for word in [7, 31, 0, BIG_WRITES | MAX_PAGES, 0x000C_0010] {
        body.extend_from_slice(&u32::to_ne_bytes(word));
    }
    body.extend_from_slice(&u32::try_from(WRITE_MAX).unwrap_or(4096).to_ne_bytes());
    body.extend_from_slice(&1u32.to_ne_bytes());
    body.extend_from_slice(&u16::try_from(WRITE_MAX / 4096).unwrap_or(1).to_ne_bytes());
    body.resize(64, 0);
    body
}

fn attributes(node: u64, size: u64) -> Vec<u8> {
    let (mode, size) = if node == DISK { (0o100_600, size) } else { (0o040_700, 0) };
    let mut body = words(&[node, size, size / SECTOR as u64, 0, 0, 0]);
    // Nanoseconds of three times, mode, links, user, group, device, block size, flags.
    for word in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
        body.extend_from_slice(&u32::to_ne_bytes(word));
    }
    body
}

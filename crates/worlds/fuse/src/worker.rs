//! A worker: reads the kernel's messages, starts what they ask, answers what came at once.

use std::collections::HashSet;
use std::io;
use std::iter::{chain, once};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::task::Poll;
use std::time::Duration;

use outboard_base::{Cred, Errno, Fh, Ino, Result};
use outboard_volume::backend::{Backend, Call as Ask, Completion, Front as _, Port, Slot};
use outboard_wire::file::{LockKind, LockStyle, Request, open_flags, write_flags};
use outboard_wire::fuse::answer::Listing;
use outboard_wire::fuse::translate::{ino_of, request};
use outboard_wire::fuse::{
    Call, Dialect, IN_HEADER_LEN, INTERRUPT_BIT, InHeader, Opcode, WRITE_HEAD_LEN, fattr,
    init::flags, out_header,
};

use crate::directories::Directories;
use crate::front::MountFront;
use crate::job::{Chore, Job, Shape};
use crate::notifier::{Notice, attributes_are_stale, is_dying};
use crate::options::KillPoint;
use crate::sys::map_pages;

/// Pause before the kernel is asked to repeat an interrupt whose request is not known yet.
const INTERRUPT_PAUSE: Duration = Duration::from_micros(50);

/// One thread's part of a mount.
pub(crate) struct Worker<B: Backend> {
    front: Arc<MountFront<B::Slot>>,
    backend: Arc<B>,
    port: B::Port,
    /// Which clone of the device is read.
    index: usize,
    /// Header and body of the message at hand, without the data of a write.
    message: Vec<u8>,
    dialect: Dialect,
    /// If a successor may come: the slots whose pages this process has mapped, by address. Into or
    /// out of a page that must be mapped first the kernel does not copy for a process that is being
    /// killed, and answers the program's request with EIO.
    mapped: Option<HashSet<usize>>,
}

/// How a worker ended.
pub(crate) type End<P> = std::result::Result<P, io::Error>;

impl<B: Backend> Worker<B> {
    pub(crate) fn new(
        front: Arc<MountFront<B::Slot>>,
        backend: Arc<B>,
        port: B::Port,
        index: usize,
        may_have_successor: bool,
    ) -> Worker<B> {
        let setxattr_ext =
            front.agreed().is_some_and(|agreed| agreed.init.has(flags::SETXATTR_EXT));
        let message = Vec::with_capacity(4096);
        let dialect = Dialect { setxattr_ext };
        let mapped = may_have_successor.then(HashSet::new);
        Worker { front, backend, port, index, message, dialect, mapped }
    }

    /// Serves until the file system is unmounted, or what comes is for a successor, and hands the
    /// port back.
    pub(crate) fn run(mut self) -> End<B::Port> {
        self.front.releases.enter(self.index);
        loop {
            if self.front.leaves() {
                return Ok(self.port);
            }
            match self.pass() {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(self.port),
                Err(error) => {
                    tracing::error!(worker = self.index, %error, "reading from the kernel failed");
                    return Err(error);
                }
            }
        }
    }

    /// One pass: serves one message. Errors are those of the device.
    fn pass(&mut self) -> io::Result<()> {
        self.do_chores();
        let slot = match self.port.acquire() {
            Ok(slot) => slot,
            Err(Errno::EAGAIN) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        let front = Arc::clone(&self.front);
        let device = front.device(self.index).ok_or(io::ErrorKind::NotConnected)?;
        self.message.resize(WRITE_HEAD_LEN, 0);
        if let Some(mapped) = &mut self.mapped
            && mapped.insert(slot.payload().as_ptr().addr())
            && let Err(error) = map_pages(&slot)
        {
            tracing::debug!(%error, "pages of a slot are mapped one by one");
        }
        front.releases.reads(self.index);
        let len = match device.read(&mut self.message, &slot) {
            Ok(len) => len,
            Err(error) => {
                // ENOENT: the request was withdrawn while it was being read.
                let again = [libc::EINTR, libc::ENOENT, libc::EAGAIN];
                let retry = error.raw_os_error().is_some_and(|errno| again.contains(&errno));
                return if retry { Ok(()) } else { Err(error) };
            }
        };
        let header =
            match InHeader::parse(self.message.get(..len.min(WRITE_HEAD_LEN)).unwrap_or(&[])) {
                Ok(header) if header.len as usize == len => header,
                _ => {
                    tracing::error!(len, "the kernel sent a message of a wrong length; ignored");
                    return Ok(());
                }
            };
        // Nobody is told of a FORGET again.
        let is_told_once =
            matches!(Opcode::from_raw(header.opcode), Ok(Opcode::Forget | Opcode::BatchForget));
        if front.leaves() && !is_told_once {
            return Ok(());
        }
        front.reaches(KillPoint::Read);
        let release = self.look(&header);
        front.releases.has_looked(self.index);
        // What others left while this thread slept comes first: the message may be about it.
        self.do_chores();
        let mut message = std::mem::take(&mut self.message);
        if let Err(errno) = self.serve(&header, &mut message, slot, len) {
            if let Some(fh) = release {
                front.releases.gone(ino_of(header.node), fh);
            }
            front.refuse(self.index, header.unique, errno);
        }
        self.message = message;
        Ok(())
    }

    /// Makes a release known before anything else is done that may take time. Its handle, if locks
    /// go with it.
    fn look(&self, header: &InHeader) -> Option<Fh> {
        if Opcode::from_raw(header.opcode) != Ok(Opcode::Release) {
            return None;
        }
        let body = self.message.get(IN_HEADER_LEN..header.len as usize)?;
        let Ok(Call::Release { fh, .. }) = Call::parse(Opcode::Release, body, self.dialect) else {
            return None;
        };
        self.front.releases.going(ino_of(header.node), Fh(fh)).then_some(Fh(fh))
    }

    /// Serves the message in `message` and, beyond [`WRITE_HEAD_LEN`], in the slot. An error is the
    /// kernel's answer.
    fn serve(
        &mut self,
        header: &InHeader,
        message: &mut Vec<u8>,
        slot: B::Slot,
        len: usize,
    ) -> Result<()> {
        let opcode = Opcode::from_raw(header.opcode)?;
        // The data of a write stays where the kernel put it: in the slot.
        if opcode != Opcode::Write {
            message.resize(len, 0);
            if let Some(rest) = message.get_mut(WRITE_HEAD_LEN..) {
                slot.read(0, rest)?;
            }
        }
        let rest = message.get(IN_HEADER_LEN..).unwrap_or(&[]);
        let (body, extensions) = header.split(rest)?;
        let call = match Call::parse(opcode, body, self.dialect) {
            Ok(call) => call,
            Err(errno) if matches!(opcode, Opcode::Forget | Opcode::BatchForget) => {
                tracing::error!(%errno, "a malformed FORGET was ignored");
                return Ok(());
            }
            Err(_) => return Err(Errno::EIO),
        };
        if self.serve_here(header, &call)? {
            return Ok(());
        }
        let slot = match call {
            Call::Release { fh, .. } => self.drop_locks(ino_of(header.node), Fh(fh), slot)?,
            _ => slot,
        };
        let mut cred = header.cred(extensions).map_err(|_| Errno::EIO)?;
        if makes_inode(opcode) && cred.uid != 0 && !self.names_groups() {
            cred.groups = supplementary_groups(header.pid);
        }
        self.ask(header, opcode, &call, &cred, slot, len)
    }

    /// Serves what needs no volume. True if it was that.
    fn serve_here(&mut self, header: &InHeader, call: &Call<'_>) -> Result<bool> {
        let ino = ino_of(header.node);
        if matches!(call, Call::Flush { .. }) && self.front.written.closed(ino) {
            attributes_are_stale(&self.front, ino);
        }
        match *call {
            Call::Forget { count } => self.forget(header.node, count),
            Call::BatchForget(pairs) => {
                pairs.for_each(|(node, count)| self.forget(node, count));
            }
            Call::Interrupt { unique } => self.interrupt(unique),
            // Before it asks this the kernel has written what it had. Nothing is to be set.
            Call::Setattr(ref set) if self.front.is_marked(ino, set) == Some(false) => {
                return Err(Errno::EAGAIN);
            }
            // The kernel writes the times of a file down that is gone.
            Call::Setattr(set)
                if self.front.collects() && set.valid & !(fattr::MTIME | fattr::CTIME) == 0 =>
            {
                let Some(attr) = self.front.inodes.last(ino).map(|last| *last) else {
                    return Ok(false);
                };
                self.front.tell(self.index, header.unique, &attr, false);
            }
            // Without POSIX locks a close asks nothing: writes were answered by the volume.
            Call::Flush { owner, .. } if !self.front.inodes.closing(ino, owner) => {
                self.front.accept(self.index, header.unique);
            }
            Call::Getattr { .. } | Call::Statx { .. } => {
                let last = self.front.inodes.last(ino).map(|last| *last);
                let Some(attr) = last.or_else(|| self.front.directories.get(ino)) else {
                    return Ok(false);
                };
                let statx = matches!(call, Call::Statx { .. });
                self.front.tell(self.index, header.unique, &attr, statx);
            }
            // The kernel then opens directories by itself, for good.
            Call::Opendir { .. } if self.front.opens_no_directories() => return Err(Errno::ENOSYS),
            Call::Destroy => self.front.accept(self.index, header.unique),
            Call::NotifyReply => {}
            Call::Ioctl => return Err(Errno::ENOTTY),
            // ENOSYS: the kernel falls back, and does not ask again.
            Call::Access { .. } | Call::Bmap | Call::Poll | Call::Mapping => {
                return Err(Errno::ENOSYS);
            }
            // Where data is the volume does not know: the kernel has some of it.
            Call::Lseek { .. } if self.front.collects() => {
                return Err(Errno::ENOSYS);
            }
            Call::Init => return Err(Errno::EIO),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn names_groups(&self) -> bool {
        self.front.agreed().is_some_and(crate::front::Agreed::names_groups)
    }

    /// Starts the call as a file operation.
    fn ask(
        &mut self,
        header: &InHeader,
        opcode: Opcode,
        call: &Call<'_>,
        cred: &Cred,
        mut slot: B::Slot,
        len: usize,
    ) -> Result<()> {
        let ino = ino_of(header.node);
        let shape = self.shape(ino, call);
        let (mut asked, payload_len) = match (&shape, call) {
            (
                Shape::Listing { listing, room },
                Call::Readdir { fh, .. } | Call::Readdirplus { fh, .. },
            ) => {
                let cookie = listing.cookie();
                let fh = Fh(*fh);
                let with_attributes = listing.plus;
                (Request::Readdir { ino, fh, cookie, len: *room, with_attributes }, 0)
            }
            _ => {
                let translated = request(header.node, call)?.ok_or(Errno::ENOSYS)?;
                slot.write(0, translated.payload)?;
                (translated.request, translated.payload.len())
            }
        };
        let payload_len = match *call {
            Call::Write { len: data, .. } if len == WRITE_HEAD_LEN + data as usize => data as usize,
            Call::Write { .. } => return Err(Errno::EIO),
            _ => payload_len,
        };
        match &mut asked {
            Request::Read { flags, .. } if self.front.options.no_atime => {
                *flags |= open_flags::NOATIME;
            }
            Request::Setlk { fh, lock, .. } => {
                if lock.style == LockStyle::Posix {
                    self.front.inodes.locking(ino, *fh, lock.owner);
                }
                let meets_others =
                    lock.kind != LockKind::Unlock && self.front.releases.locks(ino, *fh);
                if meets_others && opcode == Opcode::Setlk {
                    self.front.releases.wait(self.index, ino);
                }
            }
            _ => {}
        }
        if self.front.collects() {
            self.collected(ino, &mut asked, payload_len);
        }
        let job = Job {
            device: self.index,
            pid: header.pid,
            waits_for_lock: opcode == Opcode::Setlkw,
            change: Directories::may_change(asked.op()).then(|| self.front.directories.begin()),
            what: opcode.name(),
            shape,
        };
        let ask = Ask { request: &asked, cred, checked: true, payload_len };
        if self.front.options.dir_sync && changes_names(opcode) {
            self.ask_durably(header, job, slot, &ask);
        } else {
            self.start(header.unique, job, slot, &ask);
        }
        Ok(())
    }

    /// What a kernel that collects writes asks, as it means it.
    fn collected(&self, ino: Ino, asked: &mut Request<'_>, payload_len: usize) {
        match asked {
            Request::Open { flags, .. }
            | Request::Create { flags, .. }
            | Request::Tmpfile { flags, .. } => *flags = opened_for_the_kernel(*flags),
            // It says where appended bytes go.
            Request::Write { offset, flags, .. } => {
                *flags &= !write_flags::APPEND;
                self.front.written.wrote(ino, offset.saturating_add(payload_len as u64));
            }
            Request::Fsync { .. } if self.front.written.synced(ino) => {
                attributes_are_stale(&self.front, ino);
            }
            Request::Release { .. } => {
                let _nobody_looks = self.front.written.closed(ino);
            }
            _ => {}
        }
    }

    /// How the answer to a call looks.
    fn shape(&self, ino: Ino, call: &Call<'_>) -> Shape {
        let options = &self.front.options;
        match *call {
            Call::Lookup { .. } => Shape::Lookup { parent: ino },
            Call::Symlink { .. } | Call::Mknod { .. } | Call::Mkdir { .. } | Call::Link { .. } => {
                Shape::Entry { parent: ino }
            }
            Call::Setattr(ref set) if self.front.is_marked(ino, set) == Some(true) => Shape::Mended,
            Call::Getattr { .. } | Call::Setattr(_) => Shape::Attr,
            Call::Statx { .. } => Shape::Statx,
            Call::Open { flags, .. } => Shape::Opened { fopen: options.fopen_file(flags) },
            Call::Opendir { .. } => Shape::Opened { fopen: options.fopen_directory() },
            Call::Create { flags, .. } => {
                Shape::Created { parent: ino, nameless: false, fopen: options.fopen_file(flags) }
            }
            Call::Tmpfile { flags, .. } => {
                Shape::Created { parent: ino, nameless: true, fopen: options.fopen_file(flags) }
            }
            Call::Readlink => Shape::Data { room: room(outboard_base::limits::SYMLINK_MAX) },
            Call::Read { len, .. } | Call::Getxattr { len, .. } | Call::Listxattr { len } => {
                Shape::Data { room: len.min(room(outboard_base::limits::IO_MAX)) }
            }
            Call::Readdir { offset, len, .. } => self.listing(ino, offset, len, false),
            Call::Readdirplus { offset, len, .. } => self.listing(ino, offset, len, true),
            Call::Write { len, .. } => Shape::Written { most: len },
            Call::CopyFileRange { .. } => Shape::Written { most: u32::MAX },
            Call::CopyFileRange64 { .. } => Shape::Written64,
            Call::Unlink { .. } | Call::Rmdir { .. } => Shape::Removed { moved: Vec::new() },
            Call::Rename { name, to_node, to_name, flags } => {
                let to_parent = ino_of(to_node);
                let mut moved = Vec::new();
                if to_parent != ino {
                    moved.push((to_parent, to_name.to_vec()));
                    if flags & outboard_wire::file::rename_flags::EXCHANGE != 0 {
                        moved.push((ino, name.to_vec()));
                    }
                }
                Shape::Removed { moved }
            }
            Call::Statfs => Shape::Statfs,
            Call::Release { fh, .. } => Shape::Released { ino, fh: Fh(fh) },
            Call::Getlk(_) => Shape::Lock,
            Call::Lseek { .. } => Shape::Offset,
            _ => Shape::Empty,
        }
    }

    fn listing(&self, ino: Ino, offset: u64, len: u32, plus: bool) -> Shape {
        let parent = self.front.inodes.parent(ino);
        let listing = Listing { plus, offset, ino, parent, valid: self.front.valid() };
        let len = len.min(room(outboard_base::limits::IO_MAX));
        let room = len.saturating_sub(room(listing.own_len()));
        Shape::Listing { listing, room }
    }

    fn start(&mut self, tag: u64, job: Job, slot: B::Slot, ask: &Ask<'_>) {
        self.front.pending.insert(tag, job);
        let started = self.port.start(slot, ask, tag);
        self.front.reaches(KillPoint::Submitted);
        if let Poll::Ready(completion) = started {
            self.front.complete(completion);
        }
    }

    /// Starts a request and waits for its answer.
    fn wait_for(&mut self, slot: B::Slot, ask: &Ask<'_>) -> Completion<B::Slot> {
        let tag = self.front.pending.own_tag();
        wait_for(&self.front, &mut self.port, slot, ask, tag)
    }

    /// On a `dirsync` mount: the directory is durable before the kernel is answered.
    fn ask_durably(&mut self, header: &InHeader, job: Job, slot: B::Slot, ask: &Ask<'_>) {
        // Under the kernel's number: a successor is asked the same again.
        let mut completion = wait_for(&self.front, &mut self.port, slot, ask, header.unique);
        if completion.outcome.is_ok() {
            let outcome = self.port.acquire().and_then(|slot| {
                let ask = Ask { request: &Request::Syncfs, payload_len: 0, ..*ask };
                self.wait_for(slot, &ask).outcome
            });
            if let Err(errno) = outcome {
                completion.outcome = Err(errno);
            }
        }
        self.front.finish(job, completion);
    }

    /// Drops the locks whose owner is the open file that goes, in the slot its release came in:
    /// whether another is free must not decide whether a lock stays.
    fn drop_locks(&mut self, ino: Ino, fh: Fh, mut slot: B::Slot) -> Result<B::Slot> {
        for owner in self.front.inodes.released(ino, fh) {
            let (request, cred) = (Request::Flush { ino, fh, owner }, Cred::root());
            let ask = Ask { request: &request, cred: &cred, checked: true, payload_len: 0 };
            let completion = self.wait_for(slot, &ask);
            if let Err(errno) = completion.outcome {
                tracing::error!(%ino, %errno, "locks of a closed file could not be dropped");
            }
            slot = match completion.slot {
                Some(slot) => slot,
                None => self.port.acquire()?,
            };
        }
        Ok(slot)
    }

    fn forget(&mut self, node: u64, count: u64) {
        let ino = ino_of(node);
        if self.front.inodes.forgotten(ino, count) {
            self.front.push_chore(Chore::Forget(ino));
        }
    }

    /// Asks the volume what nobody waits for.
    fn do_chores(&mut self) {
        let mut chores = self.front.take_chores().into_iter();
        while let Some(chore) = chores.next() {
            // Slots are only short for a while; this chore and those behind it come back.
            let Ok(slot) = self.port.acquire() else {
                chain(once(chore), chores).for_each(|chore| self.front.push_chore(chore));
                return;
            };
            let tag = self.front.pending.own_tag();
            let (shape, what) = match chore {
                Chore::Forget(_) => (Shape::Forget, "Forget"),
                Chore::Moved { parent, .. } => (Shape::Moved { parent }, "Moved"),
            };
            let job = Job {
                device: self.index,
                pid: 0,
                waits_for_lock: false,
                change: None,
                what,
                shape,
            };
            let request = match &chore {
                Chore::Forget(ino) => Request::Forget { ino: *ino },
                Chore::Moved { parent, name } => Request::Lookup { parent: *parent, name },
            };
            let cred = Cred::root();
            let ask = Ask { request: &request, cred: &cred, checked: true, payload_len: 0 };
            self.start(tag, job, slot, &ask);
        }
    }

    /// The caller of request `unique` got a signal. A wait for a lock ends. Anything else ends only
    /// if the caller is to die: on a local file system, too, file operations are not cut short by
    /// other signals, and programs with timers count on that.
    fn interrupt(&mut self, unique: u64) {
        match self.front.pending.asker(unique) {
            Some(asker) if asker.waits_for_lock || is_dying(asker.pid) => {
                if !self.backend.abort(unique) {
                    // It is being answered, or just being started.
                    self.repeat_interrupt(unique);
                }
            }
            // One that is not watched goes on to its end, as most do.
            Some(_) => _ = self.front.notice(Notice::Watch(unique)),
            None => self.repeat_interrupt(unique),
        }
    }

    /// Has the kernel send the interrupt again, if the request is still without an answer. Only the
    /// clone of the device the request was read from knows it.
    fn repeat_interrupt(&self, unique: u64) {
        std::thread::sleep(INTERRUPT_PAUSE);
        let again = out_header(unique | INTERRUPT_BIT, Some(Errno::EAGAIN), 0);
        for device in self.front.devices() {
            match device.write(&again, &[]) {
                Ok(()) => return,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => tracing::debug!(%error, "an interrupt was not repeated"),
            }
        }
    }
}

/// Starts a request under a tag of our own and waits for its answer.
pub(crate) fn wait_for<P: Port>(
    front: &MountFront<P::Slot>,
    port: &mut P,
    slot: P::Slot,
    ask: &Ask<'_>,
    tag: u64,
) -> Completion<P::Slot> {
    let (sender, receiver) = sync_channel(1);
    front.waiting.shard(tag).insert(tag, sender);
    match port.start(slot, ask, tag) {
        Poll::Ready(completion) => {
            front.waiting.shard(tag).remove(&tag);
            completion
        }
        Poll::Pending => receiver.recv().unwrap_or_else(|_| {
            let (op, outcome) = (ask.request.op(), Err(Errno::EIO));
            Completion { tag, op, outcome, slot: None }
        }),
    }
}

fn room(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn makes_inode(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Create | Opcode::Mkdir | Opcode::Mknod | Opcode::Symlink | Opcode::Tmpfile
    )
}

fn changes_names(opcode: Opcode) -> bool {
    makes_inode(opcode)
        || matches!(
            opcode,
            Opcode::Link | Opcode::Unlink | Opcode::Rmdir | Opcode::Rename | Opcode::Rename2
        )
}

/// Supplementary groups of a thread, for kernels that do not say which one matters. Empty when the
/// thread is gone: it then gets what its first group gets.
fn supplementary_groups(tid: u32) -> Vec<u32> {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{tid}/status")) else {
        return Vec::new();
    };
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or("");
    groups
        .split_whitespace()
        .filter_map(|group| group.parse().ok())
        .take(outboard_base::limits::GROUPS_MAX)
        .collect()
}

/// How the volume opens what a kernel that collects writes opened with `flags`: it reads what is
/// around them through any handle, and appends by itself.
fn opened_for_the_kernel(flags: u32) -> u32 {
    let writes_only = flags & open_flags::ACCMODE == open_flags::WRONLY;
    let mode = if writes_only { open_flags::RDWR } else { flags & open_flags::ACCMODE };
    flags & !(open_flags::ACCMODE | open_flags::APPEND) | mode
}

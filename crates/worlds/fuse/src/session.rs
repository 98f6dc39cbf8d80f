//! The life of a mount: handshake, workers, the end.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use outboard_base::{Cred, Errno};
use outboard_link::Region;
use outboard_link::records::is_unused;
use outboard_volume::backend::{Backend, Call as Ask, Front as _, Port, Slot, Told};
use outboard_wire::event::Event;
use outboard_wire::file::Request;
use outboard_wire::fuse::init::{InitIn, InitOut, MAJOR, flags, other_major};
use outboard_wire::fuse::{IN_HEADER_LEN, InHeader, Opcode, WRITE_HEAD_LEN, out_header, resend};

use crate::collected;
use crate::front::{Agreed, MountFront};
use crate::mountpoint::{self, MountError};
use crate::notifier::{self, Notice};
use crate::options::{Cache, MountOptions};
use crate::recalls;
use crate::sys::{Device, HeapSlot};
use crate::worker::{End, Worker, wait_for};

/// Capabilities asked for, where the kernel has them.
///
/// Not among them: the write-back cache (for who asks for it alone, [`wanted`]), splicing (a slot's
/// pages are better), export by file handle (the kernel would ask for `..` of what it forgot),
/// truncation as a part of the open (`O_RDONLY|O_TRUNC` of a program that runs would empty it
/// before the kernel refuses).
const WANTED: u64 = flags::ASYNC_READ
    | flags::POSIX_LOCKS
    | flags::FLOCK_LOCKS
    | flags::BIG_WRITES
    | flags::DONT_MASK
    | flags::DO_READDIRPLUS
    | flags::READDIRPLUS_AUTO
    | flags::ASYNC_DIO
    | flags::PARALLEL_DIROPS
    | flags::POSIX_ACL
    | flags::MAX_PAGES
    | flags::CACHE_SYMLINKS
    | flags::NO_OPENDIR_SUPPORT
    | flags::EXPLICIT_INVAL_DATA
    | flags::HANDLE_KILLPRIV_V2
    | flags::SETXATTR_EXT
    | flags::CREATE_SUPP_GROUP
    | flags::HAS_EXPIRE_ONLY
    | flags::DIRECT_IO_ALLOW_MMAP
    | flags::NO_EXPORT_SUPPORT
    | flags::HAS_RESEND;

fn wanted(options: &MountOptions) -> u64 {
    let collects = options.cache == Cache::WriteBack;
    let more = if collects { flags::WRITEBACK_CACHE } else { 0 };
    // Who shares reaches inodes by their handles.
    let less = if collects && options.shares { flags::NO_EXPORT_SUPPORT } else { 0 };
    (WANTED | more) & !less
}

/// A mount's connection to the kernel: as long as somebody holds it the mount is there, whether it
/// is served or not. A process serves it after another: what one had read and not answered is sent
/// again to the next.
#[derive(Debug)]
pub struct Connection {
    place: PathBuf,
    devices: Vec<Device>,
    agreed: Agreed,
}

impl Connection {
    /// Mounts at `mountpoint`, for as many workers as the options say. A stale mount there (its
    /// server died) is cleared first.
    ///
    /// # Errors
    /// See [`MountError`]; nothing stays mounted.
    pub fn open(mountpoint: &Path, options: &MountOptions) -> Result<Connection, MountError> {
        let place = mountpoint::check(mountpoint)?;
        let device = mountpoint::attach(&place, options)?;
        match Connection::agree(&place, device, options) {
            Ok((devices, agreed)) => Ok(Connection { place, devices, agreed }),
            Err(error) => {
                if let Err(left) = mountpoint::unmount(&place, true) {
                    tracing::error!(error = %left, "could not unmount");
                }
                Err(error)
            }
        }
    }

    fn agree(
        place: &Path,
        device: Device,
        options: &MountOptions,
    ) -> Result<(Vec<Device>, Agreed), MountError> {
        let agreed = handshake(&device, options)?;
        mountpoint::tune(place, options);
        let mut devices = vec![device];
        while let Some(first) = devices.first()
            && devices.len() < options.workers.max(1)
        {
            let another = first.another().map_err(MountError::Device)?;
            devices.push(another);
        }
        Ok((devices, agreed))
    }

    /// One that was opened by another process: its [`Connection::place`], [`Connection::terms`] and
    /// [`Connection::devices`].
    ///
    /// # Errors
    /// [`MountError::Kernel`] for terms no kernel agrees to.
    pub fn inherit(
        place: PathBuf,
        (minor, flags): (u32, u64),
        devices: Vec<OwnedFd>,
    ) -> Result<Connection, MountError> {
        let max_readahead = u32::MAX;
        let offer = InitIn { major: MAJOR, minor, max_readahead, flags };
        let init = InitOut::negotiate(&offer, flags)
            .map_err(|_| MountError::Kernel { major: MAJOR, minor })?;
        let devices = devices.into_iter().map(Device::from_fd).collect();
        Ok(Connection { place, devices, agreed: Agreed { minor, init } })
    }

    /// Whether the kernel sends again what a process had read and not answered. Without that only
    /// one process can serve the connection.
    #[must_use]
    pub fn is_resent(&self) -> bool {
        self.agreed.init.has(flags::HAS_RESEND)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// What was agreed with the kernel, which asks once.
    #[must_use]
    pub fn terms(&self) -> (u32, u64) {
        (self.agreed.minor, self.agreed.init.flags)
    }

    /// The ways in, one for each worker.
    pub fn devices(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.devices.iter().map(Device::fd)
    }
}

/// A mounted file system. Dropping it unmounts lazily and waits for the workers.
pub struct Mounted<B: Backend> {
    mountpoint: PathBuf,
    front: Arc<MountFront<B::Slot>>,
    workers: Vec<JoinHandle<End<B::Port>>>,
    ended_workers: Vec<std::thread::Result<End<B::Port>>>,
    notifier: Option<JoinHandle<()>>,
    recaller: Option<JoinHandle<()>>,
    /// For others beside a kernel that collects writes.
    collected: Vec<JoinHandle<()>>,
    ended: bool,
    /// A predecessor may have served it.
    inherited: bool,
}

/// Mounts at `mountpoint` what `backend` answers. `front` is the one the backend completes to, and
/// serves this mount alone. A stale mount there (its server died) is cleared first.
///
/// # Errors
/// See [`MountError`]; nothing stays mounted.
pub fn mount<B: Backend>(
    mountpoint: &Path,
    front: Arc<MountFront<B::Slot>>,
    backend: Arc<B>,
) -> Result<Mounted<B>, MountError> {
    let ports = ports(&front, &backend)?;
    let connection = Connection::open(mountpoint, &front.options)?;
    let mut mounted = Mounted::new(connection.place.clone(), front, false);
    mounted.serve(connection, ports, &backend, false)?;
    Ok(mounted)
}

/// Serves a connection that somebody else keeps, after whoever served it before and is dead:
/// `notes` are what that wrote down, and what this process writes down for the next. What was read
/// and not answered is asked for again. Unmounting is whose the connection is.
///
/// # Errors
/// See [`MountError`].
pub fn take_over<B: Backend>(
    connection: Connection,
    front: Arc<MountFront<B::Slot>>,
    backend: Arc<B>,
    notes: Arc<Region>,
) -> Result<Mounted<B>, MountError> {
    let ports = ports(&front, &backend)?;
    // Had there been nobody, there is nothing to ask again for. And the kernel must not be told
    // that all it has is out of date while its first question about the root is under way: it drops
    // the answer, and takes that directory for closed to all but root.
    let asks_again = !is_unused(&notes, 0);
    let lockers = front.inodes.remember(notes).map_err(MountError::Notes)?;
    for (ino, fh) in lockers {
        front.releases.locks(ino, fh);
    }
    let mut mounted = Mounted::new(connection.place.clone(), front, true);
    mounted.serve(connection, ports, &backend, asks_again)?;
    Ok(mounted)
}

fn ports<B: Backend>(
    front: &MountFront<B::Slot>,
    backend: &Arc<B>,
) -> Result<Vec<B::Port>, MountError> {
    let workers = front.options.workers.max(1);
    let port = |worker| {
        let port = u16::try_from(worker).ok().and_then(|index| backend.port(index));
        port.ok_or(MountError::Port { worker, errno: Errno::EINVAL })
    };
    (0..workers).map(port).collect()
}

impl<B: Backend> Mounted<B> {
    fn new(mountpoint: PathBuf, front: Arc<MountFront<B::Slot>>, inherited: bool) -> Mounted<B> {
        Mounted {
            mountpoint,
            front,
            workers: Vec::new(),
            ended_workers: Vec::new(),
            notifier: None,
            recaller: None,
            collected: Vec::new(),
            ended: inherited,
            inherited,
        }
    }

    fn serve(
        &mut self,
        connection: Connection,
        ports: Vec<B::Port>,
        backend: &Arc<B>,
        asks_again: bool,
    ) -> Result<(), MountError> {
        let Connection { devices, agreed, .. } = connection;
        let notices = self.front.take_notices().ok_or(MountError::FrontInUse)?;
        let recalls = self.front.take_recalls().ok_or(MountError::FrontInUse)?;
        if !self.front.begin(devices, agreed) {
            return Err(MountError::FrontInUse);
        }
        let (front, shared) = (Arc::clone(&self.front), Arc::clone(backend));
        let (done, is_done) = channel();
        self.notifier = Some(spawn("fuse-notify", move || {
            notifier::run(&front, &shared, &notices, &done);
        })?);
        let front = Arc::clone(&self.front);
        self.recaller = Some(spawn("fuse-recall", move || {
            recalls::run(&front, &recalls, &is_done);
        })?);
        self.serve_others()?;
        if asks_again {
            self.ask_again()?;
        }
        for (index, port) in ports.into_iter().enumerate() {
            let (front, shared) = (Arc::clone(&self.front), Arc::clone(backend));
            let worker = Worker::new(front, shared, port, index, self.inherited);
            self.workers.push(spawn(&format!("fuse-{index}"), move || worker.run())?);
        }
        Ok(())
    }

    /// Begins to do what others ask of a kernel that collects writes.
    fn serve_others(&mut self) -> Result<(), MountError> {
        if !self.front.shares() {
            return Ok(());
        }
        let (asked, mended) = self.front.take_collected().ok_or(MountError::FrontInUse)?;
        let (front, place) = (Arc::clone(&self.front), self.mountpoint.clone());
        self.collected.push(spawn("fuse-ask", move || collected::ask(&front, &place, &asked))?);
        let front = Arc::clone(&self.front);
        self.collected.push(spawn("fuse-mend", move || collected::mend(&front, &mended))?);
        Ok(())
    }

    /// What the kernel keeps may be out of date, since nobody told it meanwhile; what was read and
    /// not answered is to come again, before anything that is new.
    fn ask_again(&self) -> Result<(), MountError> {
        self.front.event(Event::Overflow, Told::default());
        let Some(device) = self.front.device(0) else { return Ok(()) };
        match device.write(&resend(), &[]) {
            // Unmounted meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            outcome => outcome.map_err(MountError::Device),
        }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Whether it is still served: false once it is unmounted, or a worker failed.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.workers.iter().all(|worker| !worker.is_finished())
    }

    /// Waits until it is unmounted, or a worker failed, or its front was told to
    /// [`MountFront::leave`]: then this process should do nothing more.
    pub fn wait(&mut self) {
        self.ended_workers.extend(self.workers.drain(..).map(JoinHandle::join));
    }

    /// Unmounts; `lazy`: out of the tree at once, gone when its last user is. Then
    /// [`Mounted::join`].
    ///
    /// # Errors
    /// [`MountError::InUse`] when files are open there and `lazy` is not asked.
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        mountpoint::unmount(&self.mountpoint, lazy)
    }

    /// Waits until it is unmounted and every request is answered, then makes the volume durable.
    ///
    /// # Errors
    /// A worker failed, or the volume could not be made durable.
    pub fn join(mut self) -> Result<(), MountError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), MountError> {
        self.ended = true;
        self.wait();
        let mut outcome = Ok(());
        let mut port = None;
        for ended in self.ended_workers.drain(..) {
            match ended {
                Ok(Ok(returned)) => port = Some(returned),
                Ok(Err(error)) => outcome = Err(MountError::Device(error)),
                Err(_) => outcome = Err(MountError::Worker),
            }
        }
        self.front.end_collected();
        for thread in self.collected.drain(..) {
            if thread.join().is_err() {
                outcome = Err(MountError::Worker);
            }
        }
        if let Some(recaller) = self.recaller.take() {
            self.front.end_recalls();
            if recaller.join().is_err() {
                outcome = Err(MountError::Worker);
            }
        }
        if let Some(notifier) = self.notifier.take() {
            self.front.notice(Notice::End);
            if notifier.join().is_err() {
                outcome = Err(MountError::Worker);
            }
        }
        if let Some(mut port) = port {
            let synced = sync(&self.front, &mut port).map_err(MountError::Sync);
            outcome = outcome.and(synced);
        }
        outcome
    }
}

impl<B: Backend> Drop for Mounted<B> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if let Err(error) = self.unmount(true)
            && !matches!(error, MountError::NotMounted { .. })
        {
            tracing::error!(%error, "could not unmount");
            return;
        }
        if let Err(error) = self.end() {
            tracing::error!(%error, "the mount did not end in order");
        }
    }
}

fn sync<P: Port>(front: &MountFront<P::Slot>, port: &mut P) -> Result<(), Errno> {
    let cred = Cred::root();
    let ask = Ask { request: &Request::Syncfs, cred: &cred, checked: true, payload_len: 0 };
    let slot = port.acquire()?;
    wait_for(front, port, slot, &ask, front.pending.own_tag()).outcome.map(|_| ())
}

fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, MountError> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map_err(MountError::Thread)
}

/// Reads INIT and agrees on capabilities.
fn handshake(device: &Device, options: &MountOptions) -> Result<Agreed, MountError> {
    let slot = HeapSlot::default();
    // A kernel of a larger major version asks twice.
    for _ in 0..4 {
        let mut head = [0; WRITE_HEAD_LEN];
        let len = match device.read(&mut head, &slot) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(MountError::Device(error)),
        };
        let mut message = head.to_vec();
        message.resize(len, 0);
        if let Some(rest) = message.get_mut(WRITE_HEAD_LEN..) {
            slot.read(0, rest).map_err(|_| MountError::Handshake)?;
        }
        let header = InHeader::parse(&message).map_err(|_| MountError::Handshake)?;
        if Opcode::from_raw(header.opcode) != Ok(Opcode::Init) {
            return Err(MountError::Handshake);
        }
        let body = message.get(IN_HEADER_LEN..).unwrap_or(&[]);
        let offer = InitIn::parse(body).map_err(|_| MountError::Handshake)?;
        let answer = |body: &[u8]| {
            let head = out_header(header.unique, None, body.len());
            device.write(&head, body).map_err(MountError::Device)
        };
        if offer.major > MAJOR {
            answer(&other_major())?;
            continue;
        }
        let init = InitOut::negotiate(&offer, wanted(options))
            .map_err(|_| MountError::Kernel { major: offer.major, minor: offer.minor })?;
        answer(&init.emit())?;
        tracing::debug!(minor = offer.minor, flags = format!("{:#x}", init.flags), "handshake");
        return Ok(Agreed { minor: offer.minor, init });
    }
    Err(MountError::Handshake)
}

//! The life of a mount: handshake, workers, the end.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use outboard_base::{Cred, Errno};
use outboard_volume::backend::{Backend, Call as Ask, Port, Slot};
use outboard_wire::file::Request;
use outboard_wire::fuse::init::{InitIn, InitOut, MAJOR, flags, other_major};
use outboard_wire::fuse::{IN_HEADER_LEN, InHeader, Opcode, WRITE_HEAD_LEN, out_header};

use crate::front::{Agreed, MountFront};
use crate::mountpoint::{self, MountError};
use crate::notifier::{self, Notice};
use crate::recalls;
use crate::sys::{Device, HeapSlot};
use crate::worker::{End, Worker, wait_for};

/// Capabilities asked for, where the kernel has them.
///
/// Not among them: the write-back cache (an answered write would live in the kernel's memory
/// alone), splicing (the slot's pages are better), export by file handle (the kernel would ask for
/// `..` of inodes it forgot), truncation as a part of the open (`O_RDONLY|O_TRUNC` of a program
/// that runs would empty it before the kernel refuses).
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
    | flags::NO_EXPORT_SUPPORT;

/// A mounted file system. Dropping it unmounts lazily and waits for the workers.
pub struct Mounted<B: Backend> {
    mountpoint: PathBuf,
    front: Arc<MountFront<B::Slot>>,
    workers: Vec<JoinHandle<End<B::Port>>>,
    notifier: Option<JoinHandle<()>>,
    recaller: Option<JoinHandle<()>>,
    ended: bool,
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
    let workers = front.options.workers.max(1);
    let ports = (0..workers)
        .map(|worker| {
            let port = u16::try_from(worker).ok().and_then(|index| backend.port(index));
            port.ok_or(MountError::Port { worker, errno: Errno::EINVAL })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let place = mountpoint::check(mountpoint)?;
    let device = mountpoint::attach(&place, &front.options)?;
    let mut mounted = Mounted {
        mountpoint: place,
        front,
        workers: Vec::new(),
        notifier: None,
        recaller: None,
        ended: false,
    };
    mounted.serve(device, ports, &backend)?;
    Ok(mounted)
}

impl<B: Backend> Mounted<B> {
    fn serve(
        &mut self,
        device: Device,
        ports: Vec<B::Port>,
        backend: &Arc<B>,
    ) -> Result<(), MountError> {
        let agreed = handshake(&device)?;
        mountpoint::raise_read_ahead(&self.mountpoint, self.front.options.read_ahead);
        let mut devices = vec![device];
        while let Some(first) = devices.first()
            && devices.len() < ports.len()
        {
            let another = first.another().map_err(MountError::Device)?;
            devices.push(another);
        }
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
        for (index, port) in ports.into_iter().enumerate() {
            let (front, shared) = (Arc::clone(&self.front), Arc::clone(backend));
            let worker = Worker::new(front, shared, port, index);
            self.workers.push(spawn(&format!("fuse-{index}"), move || worker.run())?);
        }
        Ok(())
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
        let mut outcome = Ok(());
        let mut port = None;
        for worker in self.workers.drain(..) {
            match worker.join() {
                Ok(Ok(returned)) => port = Some(returned),
                Ok(Err(error)) => outcome = Err(MountError::Device(error)),
                Err(_) => outcome = Err(MountError::Worker),
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
fn handshake(device: &Device) -> Result<Agreed, MountError> {
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
        let init = InitOut::negotiate(&offer, WANTED)
            .map_err(|_| MountError::Kernel { major: offer.major, minor: offer.minor })?;
        answer(&init.emit())?;
        tracing::debug!(minor = offer.minor, flags = format!("{:#x}", init.flags), "handshake");
        return Ok(Agreed { minor: offer.minor, init });
    }
    Err(MountError::Handshake)
}

//! Mount points: looking before mounting, mounting as root or through `fusermount3`, unmounting,
//! and clearing what a dead server left.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Display, Path, PathBuf};
use std::process::{Command, Stdio};

use outboard_base::Errno;
use outboard_link::records::Unusable;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net;

use crate::options::{Cache, MountOptions};
use crate::orphan;
use crate::sys::Device;

/// What the kernel calls this kind of file system.
const FS_TYPE: &str = "fuse.outboard";
const SUBTYPE: &str = "outboard";
const HELPER: &str = "fusermount3";
/// Dead mounts cleared from one mount point at most.
const STALE_MAX: usize = 16;

/// Why something was not mounted or unmounted, and what to do.
#[derive(Debug)]
#[expect(missing_docs, reason = "the messages of Display say what each means")]
pub enum MountError {
    Missing { path: PathBuf },
    NotDirectory { path: PathBuf },
    Look { path: PathBuf, error: io::Error },
    Busy { path: PathBuf, what: String },
    NoDevice(io::Error),
    Device(io::Error),
    Refused { path: PathBuf, error: io::Error },
    NoHelper(io::Error),
    Helper { message: String },
    AllowOther,
    Kernel { major: u32, minor: u32 },
    Handshake,
    Port { worker: usize, errno: Errno },
    FrontInUse,
    Thread(io::Error),
    Worker,
    Sync(Errno),
    InUse { path: PathBuf },
    NotMounted { path: PathBuf },
    Unmount { path: PathBuf, error: io::Error },
    Notes(Unusable),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::Missing { path } => {
                let path = path.display();
                write!(f, "mount point {path} does not exist; create it first: mkdir -p {path}")
            }
            MountError::NotDirectory { path } => {
                write!(f, "mount point {} is not a directory; choose one", path.display())
            }
            MountError::Look { path, error } => {
                write!(f, "cannot look at mount point {}: {error}", path.display())
            }
            MountError::Busy { path, what } => busy(f, &path.display(), what),
            MountError::NoDevice(error) => write!(
                f,
                "cannot open /dev/fuse: {error}; load the module (modprobe fuse), or give \
                 this container the device"
            ),
            MountError::Device(error) => write!(f, "talking to /dev/fuse failed: {error}"),
            MountError::Refused { path, error } => {
                write!(f, "the kernel did not mount at {}: {error}", path.display())
            }
            MountError::NoHelper(error) => write!(
                f,
                "a plain user mounts through {HELPER}, which could not be started ({error}); \
                 install the package fuse3, or mount as root"
            ),
            MountError::Helper { message } => helper_failed(f, message),
            MountError::AllowOther => write!(
                f,
                "allow_other as a plain user needs the line `user_allow_other` in /etc/fuse.conf; \
                 add it, or mount as root"
            ),
            MountError::Kernel { major, minor } => write!(
                f,
                "this kernel speaks FUSE {major}.{minor}; 7.31 (Linux 5.4) or newer is needed"
            ),
            MountError::Handshake => write!(f, "the kernel's FUSE handshake made no sense"),
            MountError::Port { worker, errno } => {
                write!(
                    f,
                    "no queue for worker {worker}: {errno}; ask for as many queues as workers"
                )
            }
            MountError::FrontInUse => write!(f, "this front serves a mount already"),
            MountError::Thread(error) => write!(f, "cannot start a thread: {error}"),
            MountError::Worker => write!(f, "a worker of the mount panicked"),
            MountError::Sync(errno) => {
                write!(f, "the volume could not be made durable at the end: {errno}")
            }
            MountError::Notes(why) => {
                write!(f, "what the predecessor of this process wrote down cannot be used: {why}")
            }
            MountError::InUse { path } => in_use(f, &path.display()),
            MountError::NotMounted { path } => {
                write!(f, "nothing is mounted at {}", path.display())
            }
            MountError::Unmount { path, error } => {
                write!(f, "cannot unmount {}: {error}", path.display())
            }
        }
    }
}

fn busy(f: &mut fmt::Formatter<'_>, path: &Display<'_>, what: &str) -> fmt::Result {
    write!(
        f,
        "mount point {path} is busy: {what} is mounted there; unmount it first \
         (outboard umount {path}) or choose another"
    )
}

fn helper_failed(f: &mut fmt::Formatter<'_>, message: &str) -> fmt::Result {
    write!(f, "{HELPER} did not mount: {message}")?;
    if message.contains("/dev/fuse: Permission denied") {
        write!(f, "; let plain users open it (chmod 666 /dev/fuse), or mount as root")?;
    }
    Ok(())
}

fn in_use(f: &mut fmt::Formatter<'_>, path: &Display<'_>) -> fmt::Result {
    write!(
        f,
        "{path} is in use; close what is open there (fuser -vm {path} lists it), or unmount \
         lazily (outboard umount --lazy {path})"
    )
}

impl std::error::Error for MountError {}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether something can be mounted at `path`, once dead mounts are cleared from there: for who
/// wants to know before making anything else.
///
/// # Errors
/// [`MountError::Missing`], [`MountError::NotDirectory`], [`MountError::Look`] or
/// [`MountError::Busy`]; [`MountError::Unmount`] when a dead mount cannot be removed.
pub fn look(path: &Path) -> Result<(), MountError> {
    check(path).map(drop)
}

/// Clears dead mounts from `path`, then makes sure something can be mounted there. Returns its
/// absolute path.
pub(crate) fn check(path: &Path) -> Result<PathBuf, MountError> {
    clear_stale(path)?;
    let at = |error: io::Error| MountError::Look { path: path.to_owned(), error };
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::Missing { path: path.to_owned() });
        }
        Err(error) => return Err(at(error)),
    };
    if !meta.is_dir() {
        return Err(MountError::NotDirectory { path: path.to_owned() });
    }
    let place = std::fs::canonicalize(path).map_err(at)?;
    let table = std::fs::read_to_string("/proc/self/mountinfo").map_err(at)?;
    match mounted_at(&table, &place) {
        Some(what) => Err(MountError::Busy { path: place, what }),
        None => Ok(place),
    }
}

/// What a mount table says is mounted at `place`: type and source.
fn mounted_at(table: &str, place: &Path) -> Option<String> {
    table.lines().rev().find_map(|line| {
        let (fixed, rest) = line.split_once(" - ")?;
        let point = unescape(fixed.split(' ').nth(4)?);
        let mut rest = rest.split(' ');
        let (kind, source) = (rest.next()?, rest.next()?);
        (point == place).then(|| format!("{source} ({kind})"))
    })
}

/// Sets what the kernel does by itself for the mount at `place`. Only root may; without it a mount
/// is but slower.
///
/// Its read-ahead: the handshake cannot, the kernel takes the lesser of its default (128 KiB) and
/// what was agreed. What it collects before who writes has to wait: by default 1 % of the memory
/// that may be dirty at all, too little for a file's blocks to meet their neighbours.
pub(crate) fn tune(place: &Path, options: &MountOptions) {
    let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else { return };
    let Some(device) = device_of(&table, place) else { return };
    let set = |name: &str, value: u64| {
        let path = format!("/sys/class/bdi/{device}/{name}");
        if let Err(error) = std::fs::write(&path, value.to_string()) {
            tracing::debug!(path, %error, "stays at the kernel's default");
        }
    };
    set("read_ahead_kb", options.read_ahead as u64 / 1024);
    if options.cache == Cache::WriteBack {
        set("max_bytes", options.collected_max);
    }
}

/// The device number (`major:minor`) of what a mount table says is mounted at `place`.
fn device_of<'t>(table: &'t str, place: &Path) -> Option<&'t str> {
    table.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let (device, point) = (fields.next()?, fields.nth(1)?);
        (unescape(point) == place).then_some(device)
    })
}

/// The kernel's side of a mount, known by what it is called there: also after the mount was
/// detached.
#[derive(Clone, Debug)]
pub struct Connected {
    place: PathBuf,
    minor: String,
}

/// That of the mount at `place`, if there is one.
#[must_use]
pub fn connection(place: &Path) -> Option<Connected> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let (_, minor) = device_of(&table, place)?.split_once(':')?;
    Some(Connected { place: place.to_owned(), minor: minor.to_owned() })
}

impl Connected {
    /// Ends it, by the kernel's file for that: everybody who waits for it gets an error.
    ///
    /// # Errors
    /// The file is not there (it is where the kernel mounts `fusectl`).
    pub fn abort(&self) -> io::Result<()> {
        std::fs::write(format!("/sys/fs/fuse/connections/{}/abort", self.minor), "1")
    }

    /// Ends it, and detaches the mount if that was not done.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn end(&self) -> io::Result<()> {
        let aborted = self.abort();
        if connection(&self.place).is_none_or(|now| now.minor != self.minor) {
            return aborted;
        }
        if !is_root() {
            aborted?;
            return unmount(&self.place, true).map_err(io::Error::other);
        }
        let how = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        Ok(rustix::mount::unmount(&self.place, how)?)
    }
}

/// The mount at `path`, if nobody will ever answer there.
fn orphaned_at(path: &Path) -> Option<Connected> {
    // This asks the mount for nothing.
    let found = connection(&std::fs::canonicalize(path).ok()?)?;
    orphan::is_orphaned(&found.minor).then_some(found)
}

/// Undoes the octal escapes of a mount table.
fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = (byte == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(octal.unwrap_or(byte));
        rest = if octal.is_some() { tail.get(3..).unwrap_or_default() } else { tail };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Unmounts what dead servers left at `path`; true if something was. ("Transport endpoint is not
/// connected" is what everybody gets there, or no answer at all, if the kernel holds the server.)
///
/// # Errors
/// [`MountError::Unmount`] when a dead mount cannot be removed.
pub fn clear_stale(path: &Path) -> Result<bool, MountError> {
    let mut cleared = false;
    for _ in 0..STALE_MAX {
        if let Some(orphan) = orphaned_at(path) {
            tracing::warn!(
                mountpoint = %orphan.place.display(),
                "who served this mount was killed while the kernel waited for it: calls that wait \
                 there end with an error"
            );
            let place = orphan.place.clone();
            orphan.end().map_err(|error| MountError::Unmount { path: place, error })?;
            cleared = true;
            continue;
        }
        // Attributes may still be cached; the figures of a file system never are.
        match rustix::fs::statvfs(path) {
            Err(rustix::io::Errno::NOTCONN) => {
                unmount(path, true)?;
                cleared = true;
            }
            _ => break,
        }
    }
    Ok(cleared)
}

/// Unmounts `path`; `lazy`: out of the tree at once, gone when its last user is.
///
/// # Errors
/// [`MountError::InUse`], [`MountError::NotMounted`] or [`MountError::Unmount`].
pub fn unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    let own = || path.to_owned();
    if !is_root() {
        return unmount_by_helper(path, lazy);
    }
    let detach = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, detach | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(MountError::InUse { path: own() }),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {
            Err(MountError::NotMounted { path: own() })
        }
        Err(error) => Err(MountError::Unmount { path: own(), error: error.into() }),
    }
}

fn unmount_by_helper(path: &Path, lazy: bool) -> Result<(), MountError> {
    let mode = if lazy { "-uz" } else { "-u" };
    let output = Command::new(HELPER)
        .arg(mode)
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(MountError::NoHelper)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let path = path.to_owned();
    Err(if message.contains("busy") {
        MountError::InUse { path }
    } else if message.contains("not found in /etc/mtab") || message.contains("not mounted") {
        MountError::NotMounted { path }
    } else {
        MountError::Unmount { path, error: io::Error::other(message) }
    })
}

/// Mounts at `place` and returns the connection.
pub(crate) fn attach(place: &Path, options: &MountOptions) -> Result<Device, MountError> {
    if is_root() { attach_as_root(place, options) } else { attach_by_helper(place, options) }
}

fn attach_as_root(place: &Path, options: &MountOptions) -> Result<Device, MountError> {
    let device = Device::open().map_err(MountError::NoDevice)?;
    let mut data =
        format!("fd={},rootmode=40000,user_id=0,group_id=0,default_permissions", device.number());
    if options.allow_other.unwrap_or(true) {
        data.push_str(",allow_other");
    }
    let given = [
        (options.read_only, MountFlags::RDONLY),
        (options.no_atime, MountFlags::NOATIME),
        (options.no_dev, MountFlags::NODEV),
        (options.no_suid, MountFlags::NOSUID),
        (options.no_exec, MountFlags::NOEXEC),
        (options.sync, MountFlags::SYNCHRONOUS),
        (options.dir_sync, MountFlags::DIRSYNC),
    ];
    let flags =
        given.into_iter().filter(|(set, _)| *set).fold(MountFlags::empty(), |all, (_, f)| all | f);
    let refused = |error: io::Error| MountError::Refused { path: place.to_owned(), error };
    let data = CString::new(data).map_err(|error| refused(error.into()))?;
    rustix::mount::mount(options.source.as_str(), place, FS_TYPE, flags, data.as_c_str())
        .map_err(|error| refused(error.into()))?;
    Ok(device)
}

/// The options as the helper takes them. What it adds by itself, and what so cannot work for a
/// plain user: `nosuid`, `nodev`.
fn helper_options(options: &MountOptions) -> String {
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = format!("fsname={source},subtype={SUBTYPE},default_permissions");
    let given = [
        (options.read_only, "ro"),
        (options.no_atime, "noatime"),
        (options.no_dev, "nodev"),
        (options.no_suid, "nosuid"),
        (options.no_exec, "noexec"),
        (options.sync, "sync"),
        (options.dir_sync, "dirsync"),
        (options.allow_other == Some(true), "allow_other"),
    ];
    for (_, name) in given.into_iter().filter(|(set, _)| *set) {
        list.push(',');
        list.push_str(name);
    }
    list
}

/// The helper is started with one end of a socket as its input, and sends the connection over it.
fn attach_by_helper(place: &Path, options: &MountOptions) -> Result<Device, MountError> {
    let (ours, theirs) = net::socketpair(
        net::AddressFamily::UNIX,
        net::SocketType::STREAM,
        net::SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| MountError::Device(error.into()))?;
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(place)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountError::NoHelper)?;
    let output = child.wait_with_output().map_err(MountError::NoHelper)?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(if message.contains("user_allow_other") {
            MountError::AllowOther
        } else {
            MountError::Helper { message }
        });
    }
    let fd = receive(&ours).map_err(MountError::Device)?;
    Ok(Device::from_fd(fd))
}

/// Receives one descriptor.
fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut byte = [0; 1];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = net::RecvAncillaryBuffer::new(&mut space);
    net::recvmsg(
        socket,
        &mut [io::IoSliceMut::new(&mut byte)],
        &mut control,
        net::RecvFlags::CMSG_CLOEXEC,
    )?;
    control
        .drain()
        .find_map(|message| match message {
            net::RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::other("the helper sent no descriptor"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_mount_table_is_read_with_its_escapes() {
        let table = "22 1 0:20 / / rw - ext4 /dev/vda rw\n\
                     30 22 0:31 / /mnt/a\\040b rw,nosuid shared:1 - fuse.outboard outboard rw\n";
        let found = mounted_at(table, Path::new("/mnt/a b"));
        assert_eq!(found.as_deref(), Some("outboard (fuse.outboard)"));
        assert_eq!(mounted_at(table, Path::new("/mnt/a")), None);
        assert_eq!(device_of(table, Path::new("/mnt/a b")), Some("0:31"));
        assert_eq!(device_of(table, Path::new("/mnt")), None);
        assert_eq!(unescape("a\\134b").as_os_str().as_bytes(), b"a\\b");
    }

    #[test]
    fn messages_name_the_thing_and_the_remedy() {
        let path = PathBuf::from("/x/mnt");
        let cases = [
            (MountError::Missing { path: path.clone() }, "mkdir -p /x/mnt"),
            (
                MountError::Busy { path: path.clone(), what: "tmpfs".to_owned() },
                "outboard umount /x/mnt",
            ),
            (MountError::InUse { path }, "outboard umount --lazy /x/mnt"),
            (MountError::NoHelper(io::Error::from(io::ErrorKind::NotFound)), "package fuse3"),
            (MountError::Kernel { major: 7, minor: 20 }, "7.31 (Linux 5.4)"),
        ];
        for (error, remedy) in cases {
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }

    #[test]
    fn the_helper_gets_the_options_that_were_set() {
        let mut options = MountOptions { source: "a,b".to_owned(), ..MountOptions::default() };
        options.apply("ro,noexec").unwrap();
        let list = helper_options(&options);
        assert_eq!(list, "fsname=a\\,b,subtype=outboard,default_permissions,ro,noexec");
    }
}

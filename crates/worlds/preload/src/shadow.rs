//! What lies behind a descriptor number of the volume: a placeholder, or the mount's descriptor.
//!
//! A placeholder is a sealed, empty memfd opened for writing only. It has a file offset, which is
//! shared as that of any file is; whatever else the kernel is asked to do with it fails. Its name
//! says which file it stands for, so that a program started by `exec` finds what it inherited.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outboard_client::{Errno, FileKind, Ino, Place, Result, Walked};
use outboard_wire::fuse::translate::{ino_of, node_of};
use rustix::fs::{Advice, AtFlags, MemfdFlags, Mode, OFlags, SealFlags, SeekFrom, StatxFlags};
use rustix::io::{DupFlags, FdFlags};

use crate::attach::attached;
use crate::config::{self, Config};
use crate::sys::lock::Lock;
use crate::sys::signals::borrowed;
use crate::sys::slots;
use crate::table::{Description, Kind};

const NAME: &str = "outboard:";
/// Longest name the kernel gives a memfd, with room for its own words.
const NAME_MAX: usize = 240;
/// How often the mount is asked for a file of which it may not have heard yet, and the pause.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(1);

/// Inodes that this process has mapped: their bytes pass through the mount from then on.
static MAPPED: Lock<BTreeSet<Ino>> = Lock::new(BTreeSet::new());
static ANY_MAPPED: AtomicBool = AtomicBool::new(false);

pub(crate) fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error().unsigned_abs())
}

/// A new descriptor at the lowest free number, for what `description` stands for.
pub(crate) fn install(description: Description, cloexec: bool) -> Result<i32> {
    let fd = placeholder(&description, cloexec).map_err(errno)?;
    let number = fd.as_raw_fd();
    if !slots::fits(number) {
        return Err(Errno::EMFILE);
    }
    // What a number stood for before went when that was closed.
    drop(slots::put(number, Some(Arc::new(description))));
    Ok(fd.into_raw_fd())
}

fn placeholder(description: &Description, cloexec: bool) -> rustix::io::Result<OwnedFd> {
    let mut name = format!("{NAME}{}:{:o}:", description.ino, description.flags()).into_bytes();
    if name.len() + description.path.len() <= NAME_MAX {
        name.extend_from_slice(&description.path);
    }
    let name = CString::new(name).map_err(|_| rustix::io::Errno::INVAL)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut lowest = rustix::fs::memfd_create(&name, flags)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&lowest, seals)?;
    let again = format!("/proc/self/fd/{}", lowest.as_raw_fd());
    let only = rustix::fs::open(again, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = if cloexec { DupFlags::CLOEXEC } else { DupFlags::empty() };
    rustix::io::dup3(&only, &mut lowest, flags)?;
    Ok(lowest)
}

/// Finds what this program inherited: placeholders, and descriptors of the mount.
pub(crate) fn adopt() {
    let Some(config) = config::get() else { return };
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    for entry in entries.flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let (Some(fd), Ok(target)) = (number, std::fs::read_link(entry.path())) else { continue };
        let target = target.as_os_str().as_bytes();
        let found = match target.strip_prefix(b"/memfd:") {
            Some(name) => named(name),
            None if config.inside(target).is_some() => of_mount(config, fd, target),
            None => None,
        };
        if let Some(description) = found {
            drop(slots::put(fd, Some(Arc::new(description))));
        }
    }
}

/// What a placeholder of this name stands for.
fn named(name: &[u8]) -> Option<Description> {
    let name = name.strip_prefix(NAME.as_bytes())?;
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    let mut words = name.splitn(3, |byte| *byte == b':');
    let ino = Ino(std::str::from_utf8(words.next()?).ok()?.parse().ok()?);
    let flags = i32::from_str_radix(std::str::from_utf8(words.next()?).ok()?, 8).ok()?;
    let path = words.next()?.to_vec();
    let kind = match flags & (libc::O_PATH | libc::O_DIRECTORY) {
        0 => Kind::File,
        libc::O_DIRECTORY => Kind::Dir,
        _ => Kind::Path,
    };
    Some(Description::new(kind, ino, place(kind, &path), path, flags, None))
}

/// What a descriptor of the mount stands for.
fn of_mount(config: &Config, fd: i32, target: &[u8]) -> Option<Description> {
    let fd = borrowed(fd)?;
    let stat = rustix::fs::fstat(fd).ok()?;
    if Some(stat.st_dev) != config.device() {
        return None;
    }
    let flags = rustix::fs::fcntl_getfl(fd).ok()?;
    let kind = match FileKind::from_mode(stat.st_mode) {
        _ if flags.contains(OFlags::PATH) => return None,
        Ok(FileKind::Regular) => Kind::File,
        Ok(FileKind::Directory) => Kind::Dir,
        _ => return None,
    };
    let path = config.inside(target)?.to_vec();
    let flags = i32::try_from(flags.bits()).ok()?;
    let description =
        Description::new(kind, ino_of(stat.st_ino), place(kind, &path), path, flags, None);
    description.real.store(true, Ordering::Release);
    Some(description)
}

/// The way to an inherited directory, as far as it can be found.
fn place(kind: Kind, path: &[u8]) -> Place {
    if kind == Kind::File || path.is_empty() {
        return Place::root();
    }
    let Ok(attached) = attached() else { return Place::root() };
    match attached.volume.walk(&Place::root(), path, true) {
        Ok(Walked::Inside(mut spot)) => {
            if let (Some(name), Some(attr)) = (spot.name, spot.found) {
                spot.dir.push(name, attr.ino);
            }
            spot.dir
        }
        _ => Place::root(),
    }
}

/// Has the mount's descriptor take the placeholder's place, at every number; false if there is no
/// mount, or the file has no name any more, or may not be opened again.
pub(crate) fn become_real(description: &Arc<Description>) -> bool {
    if description.is_real() {
        return true;
    }
    let Some(config) = config::get() else { return false };
    let Some(device) = config.device() else { return false };
    let Some(real) = open_mounted(config, device, description) else { return false };
    refresh(&real);
    let numbers = slots::all().into_iter().filter(|(_, other)| Arc::ptr_eq(other, description));
    description.place_lock.with(|()| {
        if description.is_real() {
            return true;
        }
        let mut placed = false;
        for (number, _) in numbers {
            // Opening took a while: another thread may have closed this one, and the number may be
            // another file's by now.
            slots::while_at(number, description, || {
                let offset = (!placed).then(|| rustix::fs::tell(borrowed(number)?).ok()).flatten();
                if let Some(offset) = offset {
                    // Directories of a mount take offsets of their own kind.
                    let _moved = rustix::fs::seek(&real, SeekFrom::Start(offset));
                }
                placed = true;
                replace(&real, number);
            });
        }
        description.real.store(placed, Ordering::Release);
        placed
    })
}

fn replace(real: &OwnedFd, number: i32) {
    let Some(old) = borrowed(number) else { return };
    let cloexec = rustix::io::fcntl_getfd(old).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC));
    let flags = if cloexec { DupFlags::CLOEXEC } else { DupFlags::empty() };
    crate::sys::signals::replace(real, number, flags);
}

/// Opens the file through the mount: the same inode, or nothing.
fn open_mounted(config: &Config, device: u64, it: &Description) -> Option<OwnedFd> {
    let path = config.outward(&it.path);
    let made = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW;
    let flags = OFlags::from_bits_retain((it.flags() & !made).cast_unsigned()) | OFlags::CLOEXEC;
    for _ in 0..TRIES {
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(real) => {
                let stat = rustix::fs::fstat(&real).ok()?;
                if (stat.st_dev, stat.st_ino) == (device, node_of(it.ino)) {
                    return Some(real);
                }
            }
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::STALE) => {}
            Err(_) => return None,
        }
        // Another name, or none: perhaps the kernel has not heard yet; perhaps it is so.
        let attached = attached().ok()?;
        let walked = attached.volume.walk(&Place::root(), &it.path, true);
        if !matches!(walked, Ok(Walked::Inside(spot)) if spot.ino() == Ok(it.ino)) {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
    None
}

/// Has the kernel forget what it knows of a file's size and bytes: this process has gone past it.
pub(crate) fn refresh(real: impl std::os::fd::AsFd) {
    let real = real.as_fd();
    let size = |how: AtFlags| {
        let flags = AtFlags::EMPTY_PATH | how;
        rustix::fs::statx(real, c"", flags, StatxFlags::SIZE).map(|found| found.stx_size)
    };
    for _ in 0..TRIES {
        // The kernel does not take a new size while the mount is telling it that the old one is
        // stale: ask, and look whether it did.
        match (size(AtFlags::STATX_FORCE_SYNC), size(AtFlags::STATX_DONT_SYNC)) {
            (Ok(true_size), Ok(known)) if true_size != known => std::thread::sleep(PAUSE),
            _ => break,
        }
    }
    // What cannot be dropped is as fresh as the mount's own events make it.
    let _dropped = rustix::fs::fadvise(real, 0, None, Advice::DontNeed);
}

/// Before other programs get to use this one's descriptors.
pub(crate) fn all_become_real() {
    if config::get().is_none_or(|config| config.device().is_none()) {
        return;
    }
    for (_, description) in slots::all() {
        become_real(&description);
    }
}

/// The bytes of `ino` pass through the mount from now on, in this process.
pub(crate) fn mapped(ino: Ino) {
    MAPPED.with(|mapped| mapped.insert(ino));
    ANY_MAPPED.store(true, Ordering::Release);
}

/// Whether the bytes behind a descriptor are the kernel's to read and write.
pub(crate) fn is_mapped(description: &Description) -> bool {
    ANY_MAPPED.load(Ordering::Acquire)
        && description.is_real()
        && MAPPED.with(|mapped| mapped.contains(&description.ino))
}

//! Opening and closing, and copies of descriptors.

use std::sync::Arc;

use outboard_client::{Errno, How, Opened, Place, Result, Spot, open_flags};

use crate::attach::Attached;
use crate::calls::{aim, locks};
use crate::config;
use crate::shadow;
use crate::sys::export::Route;
use crate::sys::{signals, slots, stdio};
use crate::table::{Description, Kind, Open, wire_flags};

/// Flags that say how to open, and are not told by `F_GETFL`.
const ONCE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY | libc::O_CLOEXEC;

/// `openat(2)`.
pub(crate) fn openat(dirfd: i32, path: &[u8], flags: i32, mode: u32) -> Route<i32> {
    let how = how(flags, mode);
    let by_path = flags & libc::O_PATH != 0;
    let follow = if by_path { flags & libc::O_NOFOLLOW == 0 } else { how.follows() };
    let opened = aim::at(dirfd, path, follow, |attached, spot| {
        let description = if by_path {
            path_only(attached, spot, flags)?
        } else {
            match open(attached, spot, flags, &how)? {
                Some(description) => description,
                None => return Ok(None),
            }
        };
        shadow::install(description, flags & libc::O_CLOEXEC != 0).map(Some)
    });
    match opened {
        Route::Ours(Ok(None)) => special(),
        other => other.then(|fd| fd.ok_or(Errno::ENXIO)),
    }
}

/// A fifo or a device node is the kernel's.
fn special() -> Route<i32> {
    if config::get().is_some_and(|config| config.device().is_some()) {
        return Route::Kernel;
    }
    crate::say_once("fifos and device nodes can be opened only where the volume is mounted");
    Route::Ours(Err(Errno::ENXIO))
}

fn how(flags: i32, mode: u32) -> How {
    How {
        flags: wire_flags(flags),
        create: flags & libc::O_CREAT != 0,
        directory: flags & libc::O_DIRECTORY != 0,
        nofollow: flags & libc::O_NOFOLLOW != 0,
        mode: mode & 0o7777,
        umask: config::umask(),
    }
}

/// What a spot leads to as a directory.
fn into_place(spot: &Spot) -> Place {
    let mut place = spot.dir.clone();
    if let (Some(name), Some(attr)) = (&spot.name, &spot.found) {
        place.push(name.clone(), attr.ino);
    }
    place
}

/// Opens; nothing for what the kernel must open.
fn open(attached: &Attached, spot: &Spot, flags: i32, how: &How) -> Result<Option<Description>> {
    let kept = flags & !ONCE;
    let (life, path) = (attached.life, spot.path());
    let opened = if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        let how = How { directory: false, flags: how.flags & !open_flags::TRUNC, ..*how };
        attached.volume.tmpfile_at(spot, &how)?
    } else {
        attached.volume.open_at(spot, how)?
    };
    Ok(match opened {
        Opened::File(file, attr) => {
            let kept = kept & !libc::O_TMPFILE;
            let open = Open::File(Arc::new(file));
            let place = Place::root();
            let it = Description::new(Kind::File, attr.ino, place, path, kept, Some((life, open)));
            Some(it)
        }
        Opened::Dir(dir, attr) => {
            let (kept, open) = (kept | libc::O_DIRECTORY, Open::Dir(Arc::new(dir)));
            let place = into_place(spot);
            let it = Description::new(Kind::Dir, attr.ino, place, path, kept, Some((life, open)));
            Some(it.holding(attached))
        }
        Opened::Special(_) => None,
    })
}

fn path_only(attached: &Attached, spot: &Spot, flags: i32) -> Result<Description> {
    let attr = attached.volume.attr_at(spot)?;
    let is_dir = attr.kind() == Ok(outboard_client::FileKind::Directory);
    if flags & libc::O_DIRECTORY != 0 && !is_dir {
        return Err(Errno::ENOTDIR);
    }
    let place = if is_dir { into_place(spot) } else { spot.dir.clone() };
    let it = Description::new(Kind::Path, attr.ino, place, spot.path(), flags & !ONCE, None);
    Ok(it.holding(attached))
}

/// Before `close(2)`: what was open at `fd` goes; whether it was the volume's.
pub(crate) fn closing(fd: i32) {
    if let Some(description) = slots::put(fd, None) {
        locks::closed(&description);
        if (0..=2).contains(&fd) {
            stdio::standard(fd, false);
        }
    }
}

/// `close(2)`.
pub(crate) fn close(fd: i32) -> Route<i32> {
    let keeps = slots::get(fd).is_some_and(|description| !shadow::is_mapped(&description));
    closing(fd);
    if !keeps {
        return Route::Kernel;
    }
    // Every answered write is the volume's by now: that the mount could not be told of the close,
    // being gone, is no failure.
    signals::close(fd);
    Route::Ours(Ok(0))
}

/// After `dup(2)` and its like: `new` stands for what `old` stands for.
pub(crate) fn duplicated(old: i32, new: i32) {
    if old == new {
        return;
    }
    let description = slots::get(old);
    let was = slots::put(new, description.clone());
    if let Some(was) = was {
        locks::closed(&was);
        if (0..=2).contains(&new) {
            stdio::standard(new, false);
        }
    }
    let Some(description) = description else { return };
    // libc reads and writes the standard streams without asking anybody.
    if (0..=2).contains(&new) && !shadow::become_real(&description) {
        stdio::standard(new, true);
    }
}

/// Whether the program may not put anything there: a link's descriptor.
pub(crate) fn is_guarded(fd: i32) -> bool {
    outboard_os::fds::is_ours(fd)
}

/// `close_range(2)`, but for what is the library's.
pub(crate) fn close_range(first: u32, last: u32, flags: i32) -> Route<i32> {
    if flags & libc::CLOSE_RANGE_CLOEXEC.cast_signed() != 0 {
        return Route::Kernel;
    }
    for (fd, _) in slots::all() {
        if u32::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd)) {
            closing(fd);
        }
    }
    // The kernel closes what lies between the library's descriptors.
    let mut from = first;
    for ours in outboard_os::fds::ours() {
        let Ok(ours) = u32::try_from(ours) else { continue };
        if ours < from || ours > last {
            continue;
        }
        if ours > from {
            signals::close_range(from, ours - 1);
        }
        from = ours + 1;
    }
    if from <= last {
        signals::close_range(from, last);
    }
    Route::Ours(Ok(0))
}

/// How often another name is tried for a temporary file.
const NAMES: u32 = 1000;
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// `mkstemp(3)` and its like: puts letters in place of the six `X` before the last `suffix` bytes,
/// and makes what `make` makes of that path.
pub(crate) fn temporary(
    template: &mut [u8],
    suffix: usize,
    make: impl Fn(&[u8]) -> Route<i32>,
) -> Route<i32> {
    if aim::aim(libc::AT_FDCWD, template).is_none() {
        return Route::Kernel;
    }
    let end = template.len().checked_sub(suffix);
    let place = end.and_then(|end| end.checked_sub(6).map(|from| from..end));
    let Some(place) = place.filter(|it| template.get(it.clone()) == Some(b"XXXXXX")) else {
        return Route::Ours(Err(Errno::EINVAL));
    };
    for _ in 0..NAMES {
        let mut random = [0u8; 6];
        signals::random(&mut random);
        for (to, byte) in template.iter_mut().skip(place.start).zip(random) {
            *to = LETTERS.get(usize::from(byte) % LETTERS.len()).copied().unwrap_or(b'0');
        }
        match make(template) {
            Route::Ours(Err(Errno::EEXIST)) => {}
            // Named through a link that leads elsewhere: libc is asked with the X as they were.
            Route::Kernel | Route::Elsewhere(_) => {
                if let Some(letters) = template.get_mut(place) {
                    letters.copy_from_slice(b"XXXXXX");
                }
                return Route::Kernel;
            }
            made => return made,
        }
    }
    Route::Ours(Err(Errno::EEXIST))
}

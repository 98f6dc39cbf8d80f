//! Whether a path leads to the volume, and where there.

use std::ffi::CString;

use outboard_client::{Errno, Ino, Place, Result, Spot, Walked};

use crate::attach::{Attached, attached};
use crate::config;
use crate::sys::export::Route;
use crate::sys::slots;

/// How often a path is walked again because what it led to went meanwhile.
const WALKS: u32 = 16;

/// Where a walk begins, and the path from there.
pub(crate) struct Aim {
    start: Place,
    path: Vec<u8>,
}

/// Whether `path`, taken from `dirfd`, leads to the volume.
pub(crate) fn aim(dirfd: i32, path: &[u8]) -> Option<Aim> {
    let config = config::get()?;
    let from_root = |path: &[u8]| {
        let inside = config.inside(path)?;
        let path = if inside.is_empty() { b"/" } else { inside };
        Some(Aim { start: Place::root(), path: path.to_vec() })
    };
    if path.starts_with(b"/") {
        return from_root(path);
    }
    if path.is_empty() {
        return None;
    }
    if dirfd == libc::AT_FDCWD {
        return from_root(&config::absolute(path)?);
    }
    let description = slots::get(dirfd)?;
    Some(Aim { start: description.place.clone(), path: path.to_vec() })
}

/// Whether the call is about the volume at all, and there is no way to it: it goes to the mount, or
/// fails.
fn unreachable<T>(errno: Errno) -> Route<T> {
    let mounted = config::get().is_some_and(|config| config.device().is_some());
    if mounted { Route::Kernel } else { Route::Ours(Err(errno)) }
}

/// Does something with what a path leads to.
pub(crate) fn at<T>(
    dirfd: i32,
    path: &[u8],
    follow: bool,
    act: impl Fn(&'static Attached, &Spot) -> Result<T>,
) -> Route<T> {
    let Some(aim) = aim(dirfd, path) else { return Route::Kernel };
    let attached = match attached() {
        Ok(attached) => attached,
        Err(errno) => return unreachable(errno),
    };
    for _ in 0..WALKS {
        match attached.volume.walk(&aim.start, &aim.path, follow) {
            Ok(Walked::Outside(path)) => {
                let path = CString::new(path).map_err(|_| Errno::ENOENT);
                return path.map_or_else(|errno| Route::Ours(Err(errno)), Route::Elsewhere);
            }
            Ok(Walked::Inside(spot)) => match act(attached, &spot) {
                Err(Errno::ESTALE) => {}
                done => return Route::Ours(done),
            },
            Err(Errno::ESTALE) => {}
            Err(errno) => return Route::Ours(Err(errno)),
        }
    }
    Route::Ours(Err(Errno::ESTALE))
}

/// Does something with what two paths lead to. Paths of which one alone leads to the volume are on
/// two file systems.
pub(crate) fn at_both<T>(
    (from_dir, from, follow): (i32, &[u8], bool),
    (to_dir, to): (i32, &[u8]),
    act: impl Fn(&'static Attached, &Spot, &Spot) -> Result<T>,
) -> Route<T> {
    match (aim(from_dir, from).is_some(), aim(to_dir, to).is_some()) {
        (false, false) => return Route::Kernel,
        (true, true) => {}
        _ => return Route::Ours(Err(Errno::EXDEV)),
    }
    let found = at(from_dir, from, follow, |attached, from| {
        Ok(at(to_dir, to, false, |_, to| act(attached, from, to)))
    });
    match found {
        Route::Ours(Ok(Route::Ours(done))) => Route::Ours(done),
        Route::Ours(Err(errno)) => Route::Ours(Err(errno)),
        Route::Kernel | Route::Ours(Ok(Route::Kernel)) => Route::Kernel,
        // One of them leads out of the volume by a link.
        Route::Elsewhere(_) | Route::Ours(Ok(Route::Elsewhere(_))) => {
            Route::Ours(Err(Errno::EXDEV))
        }
    }
}

/// Does something with the inode a path leads to, or with what is open at `dirfd` if the path is
/// empty and `empty` says that this may be meant (`AT_EMPTY_PATH`).
pub(crate) fn inode<T>(
    dirfd: i32,
    path: &[u8],
    follow: bool,
    empty: bool,
    act: impl Fn(&'static Attached, Ino) -> Result<T>,
) -> Route<T> {
    if path.is_empty() && empty {
        return open(dirfd, act);
    }
    at(dirfd, path, follow, |attached, spot| act(attached, spot.ino()?))
}

/// Does something with the inode open at `fd`.
pub(crate) fn open<T>(fd: i32, act: impl FnOnce(&'static Attached, Ino) -> Result<T>) -> Route<T> {
    let Some(description) = slots::get(fd) else { return Route::Kernel };
    match attached() {
        Ok(attached) => Route::Ours(act(attached, description.ino)),
        Err(_) if description.is_real() => Route::Kernel,
        Err(errno) => Route::Ours(Err(errno)),
    }
}

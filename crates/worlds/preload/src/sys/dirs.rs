//! `opendir` and its like, the working directory, `realpath`.

use std::ffi::{c_char, c_int, c_long, c_void};

use outboard_client::{Entry, Errno, Result};
use outboard_wire::fuse::translate::node_of;

use super::export::{Next, Route, copy_out, path as bytes, returned, room, stand_in};
use super::guard;
use crate::calls::{dirs, names, open};

/// What a `DIR` of ours begins with. One of glibc's begins with its descriptor and a lock, whose
/// upper half is 0, 1 or 2.
const MAGIC: u64 = 0x6f75_7462_6f61_7264;

/// A `DIR` of ours.
#[repr(C)]
struct Stream {
    magic: u64,
    entry: libc::dirent64,
    listing: dirs::Listing,
}

/// Ours, if it is.
///
/// # Safety
/// `at` is null or a `DIR` that is open.
unsafe fn ours<'a>(at: *mut c_void) -> Option<&'a mut Stream> {
    // SAFETY: a `DIR` of either kind is longer than a number.
    if at.is_null() || unsafe { at.cast::<u64>().read() } != MAGIC {
        return None;
    }
    // SAFETY: only `new` makes something that begins so; it lives until `closedir`.
    Some(unsafe { &mut *at.cast::<Stream>() })
}

fn new(listing: dirs::Listing) -> *mut c_void {
    // SAFETY: every field is a number.
    let entry = unsafe { std::mem::zeroed() };
    Box::into_raw(Box::new(Stream { magic: MAGIC, entry, listing })).cast()
}

impl Stream {
    /// The next name, as C sees it.
    fn next(&mut self) -> Result<Option<&mut libc::dirent64>> {
        let Some(Entry { name, ino, kind, cookie }) = self.listing.next()? else {
            return Ok(None);
        };
        let entry = &mut self.entry;
        entry.d_ino = node_of(ino);
        entry.d_off = cookie.cast_signed();
        entry.d_reclen = u16::try_from(size_of::<libc::dirent64>()).unwrap_or(u16::MAX);
        entry.d_type = kind.dirent_type();
        let last = entry.d_name.len() - 1;
        for (to, from) in entry.d_name.iter_mut().take(last).zip(name.iter().chain([&0])) {
            *to = from.cast_signed();
        }
        Ok(Some(entry))
    }
}

/// What `readdir` returns: null at the end, with errno as it was.
fn next_of(stream: &mut Stream) -> Route<*mut c_void> {
    Route::Ours(
        stream.next().map(|entry| {
            entry.map_or(std::ptr::null_mut(), |entry| std::ptr::from_mut(entry).cast())
        }),
    )
}

stand_in! {
    fn opendir(path: *const c_char) -> *mut c_void {
        dirs::open_listed(bytes(path)).then_route(dirs::Listing::of).then(|it| Ok(new(it)));
        else |go, p| go(p)
    }
    fn fdopendir(fd: c_int) -> *mut c_void {
        dirs::Listing::of(fd).then(|it| Ok(new(it)))
    }
    fn readdir(at: *mut c_void) -> *mut c_void {
        ours(at).map_or(Route::Kernel, next_of)
    }
    fn readdir64(at: *mut c_void) -> *mut c_void {
        ours(at).map_or(Route::Kernel, next_of)
    }
    fn readdir_r(at: *mut c_void, to: *mut libc::dirent64, found: *mut *mut c_void) -> c_int {
        ours(at).map_or(Route::Kernel, |stream| copy_next(stream, to, found))
    }
    fn readdir64_r(at: *mut c_void, to: *mut libc::dirent64, found: *mut *mut c_void) -> c_int {
        ours(at).map_or(Route::Kernel, |stream| copy_next(stream, to, found))
    }
    fn closedir(at: *mut c_void) -> c_int {
        if let Some(stream) = ours(at) {
            stream.magic = 0;
            let fd = Box::from_raw(std::ptr::from_mut(stream)).listing.fd;
            open::closing(fd);
            super::signals::close(fd);
            Route::Ours(Ok(0))
        } else {
            // Its descriptor may have been taken for the volume's.
            Route::Kernel
        }
    }
    fn dirfd(at: *mut c_void) -> c_int {
        ours(at).map_or(Route::Kernel, |stream| Route::Ours(Ok(stream.listing.fd)))
    }
    fn telldir(at: *mut c_void) -> c_long {
        ours(at).map_or(Route::Kernel, |it| Route::Ours(Ok(it.listing.at().cast_signed())))
    }
    fn chdir(path: *const c_char) -> c_int {
        use next; moved(dirs::chdir(bytes(path)), || next(path));
        else |go, p| { let done = go(p); crate::config::moved(); done }
    }
    fn fchdir(fd: c_int) -> c_int {
        use next; moved(dirs::fchdir(fd), || next(fd))
    }
    fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
        path_to(names::real_path(bytes(path)), to, PATH_ROOM); else |go, p| go(p, to)
    }
    fn __realpath_chk(path: *const c_char, to: *mut c_char, len: usize) -> *mut c_char {
        path_to(names::real_path(bytes(path)), to, len.min(PATH_ROOM)); else |go, p| go(p, to, len)
    }
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        path_to(names::real_path(bytes(path)), std::ptr::null_mut(), PATH_ROOM); else |go, p| go(p)
    }
}

const PATH_ROOM: usize = 4096;

/// libc goes there; the working directory is another.
fn moved(route: Route<c_int>, next: impl FnOnce() -> c_int) -> Route<c_int> {
    match route {
        Route::Kernel => match next() {
            0 => {
                crate::config::moved();
                Route::Ours(Ok(0))
            }
            _ => Route::Ours(Err(Errno::from_raw(guard::errno().unsigned_abs()))),
        },
        route => route,
    }
}

/// # Safety
/// As `readdir_r(3)` has it.
unsafe fn copy_next(
    stream: &mut Stream,
    to: *mut libc::dirent64,
    found: *mut *mut c_void,
) -> Route<c_int> {
    // SAFETY: as the caller promises.
    unsafe {
        match stream.next() {
            Ok(Some(entry)) => {
                to.copy_from_nonoverlapping(entry, 1);
                found.write(to.cast());
            }
            Ok(None) => found.write(std::ptr::null_mut()),
            Err(errno) => return Route::Ours(Ok(errno.raw().into())),
        }
    }
    Route::Ours(Ok(0))
}

/// # Safety
/// `to` is null, or `len` bytes are writable there.
unsafe fn path_to(route: Route<Vec<u8>>, to: *mut c_char, len: usize) -> Route<*mut c_char> {
    route.then(|mut path| {
        path.push(0);
        if path.len() > len {
            return Err(Errno::ENAMETOOLONG);
        }
        // SAFETY: as the caller promises; memory of `malloc` is as long as it was asked for.
        unsafe {
            let to = if to.is_null() { libc::malloc(path.len()).cast::<c_char>() } else { to };
            if to.is_null() {
                return Err(Errno::ENOMEM);
            }
            copy_out(&path, room(to.cast(), path.len()));
            Ok(to)
        }
    })
}

/// `rewinddir(3)`, `seekdir(3)`: they return nothing.
macro_rules! seekers {
    ($(fn $name:ident($at:ident $(, $to:ident: $kind:ty)?) $place:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of libc, for directories of the volume.")]
        ///
        /// # Safety
        /// As its man page says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($at: *mut c_void $(, $to: $kind)?) {
            static NEXT: Next = Next::new(concat!(stringify!($name), "\0"));
            // SAFETY: libc's function of this name has this signature; `at` is an open `DIR`.
            unsafe {
                if let Some(stream) = ours($at) {
                    stream.listing.seek($place);
                    return;
                }
                let next: unsafe extern "C" fn(*mut c_void $(, $kind)?) =
                    std::mem::transmute(NEXT.get());
                next($at $(, $to)?);
            }
        }
    )*};
}

seekers! {
    fn rewinddir(at) 0;
    fn seekdir(at, to: c_long) to.cast_unsigned();
}

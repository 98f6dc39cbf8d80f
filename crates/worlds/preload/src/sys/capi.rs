//! The C interface of `include/outboard.h`, whose words say what each function does.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use outboard_attach::host::Connect;
use outboard_client::{Attr, Entry, Errno, How, OpenOptions, Result};

use super::export::{copy_out, given, room};
use super::{guard, names, signals};
use crate::attach::{Dir, File, Volume, leave};
use crate::table::wire_flags;

/// `struct ob_entry`.
#[repr(C)]
pub struct ObEntry {
    inode: u64,
    kind: u8,
    name: [c_char; 256],
}

/// An open directory, and names that were read ahead.
pub struct ObDir {
    dir: Dir,
    ahead: VecDeque<Entry>,
    cookie: u64,
}

/// A call of the C interface: what the library does inside is its own.
fn call<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    let _inside = guard::enter();
    act()
}

fn status(done: Result<()>) -> c_int {
    done.map_or_else(|errno| -c_int::from(errno.raw()), |()| 0)
}

fn length(done: Result<usize>) -> isize {
    let counted = done.and_then(|len| isize::try_from(len).map_err(|_| Errno::EOVERFLOW));
    counted.unwrap_or_else(|errno| -isize::from(errno.raw().cast_signed()))
}

/// A pointer for C, or null and the reason.
///
/// # Safety
/// `error` is null or writable.
unsafe fn handed_out<T>(made: Result<T>, error: *mut c_int) -> *mut T {
    let (made, errno) = match made {
        Ok(made) => (Box::into_raw(Box::new(made)), 0),
        Err(errno) => (std::ptr::null_mut(), c_int::from(errno.raw())),
    };
    // SAFETY: as the caller promises.
    if let Some(error) = unsafe { error.as_mut() } {
        *error = errno;
    }
    made
}

/// A path of C's.
///
/// # Safety
/// `path` is null or a C string that outlives the call.
unsafe fn path<'a>(path: *const c_char) -> &'a Path {
    if path.is_null() {
        return Path::new("");
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// What a handle of C's points to.
///
/// # Safety
/// `handle` is null or came from [`handed_out`] and was not given back.
unsafe fn of<'a, T>(handle: *mut T) -> Result<&'a T> {
    // SAFETY: as the caller promises.
    unsafe { handle.as_ref() }.ok_or(Errno::EBADF)
}

/// The same, taken back.
///
/// # Safety
/// As for [`of`]; C uses it no more.
unsafe fn taken_back<T>(handle: *mut T) -> Result<Box<T>> {
    if handle.is_null() {
        return Err(Errno::EBADF);
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { Box::from_raw(handle) })
}

macro_rules! api {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) -> $ret:ty $body:block)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of `outboard.h`.")]
        ///
        /// # Safety
        /// As the header says: handles come from it, strings end, memory is as long as told.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $ret {
            // SAFETY: what C hands in is what the header asks for.
            unsafe { $body }
        }
    )*};
}

api! {
    fn ob_connect(socket: *const c_char, wait_ms: c_uint, error: *mut c_int) -> *mut Volume {
        let socket = path(socket).to_path_buf();
        let wait = Duration::from_millis(wait_ms.into());
        let how = Connect::new(socket).timeout(wait).on_thread(guard::mine);
        let attach = || Volume::attach(|front| how.attach(front));
        let made = call(|| signals::blocked(attach).map_err(|_| Errno::ENOTCONN));
        handed_out(made, error)
    }
    fn ob_disconnect(volume: *mut Volume) -> c_int {
        status(call(|| {
            let volume = taken_back(volume)?;
            leave(&volume).map_err(|error| {
                Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO).unsigned_abs())
            })
        }))
    }
    fn ob_open(
        volume: *mut Volume, name: *const c_char, flags: c_int, mode: c_uint, error: *mut c_int
    ) -> *mut File {
        let how = How {
            flags: wire_flags(flags),
            create: flags & libc::O_CREAT != 0,
            directory: false,
            nofollow: flags & libc::O_NOFOLLOW != 0,
            mode: mode & 0o7777,
            umask: 0,
        };
        let made = call(|| of(volume)?.open(path(name), OpenOptions::from(how)));
        handed_out(made, error)
    }
    fn ob_close(file: *mut File) -> c_int {
        status(call(|| taken_back(file)?.close(0)))
    }
    fn ob_pread(file: *mut File, to: *mut c_void, count: usize, offset: u64) -> isize {
        length(call(|| of(file)?.read_at(room(to, count), offset)))
    }
    fn ob_pwrite(file: *mut File, from: *const c_void, count: usize, offset: u64) -> isize {
        length(call(|| of(file)?.write_at(given(from, count), offset)))
    }
    fn ob_fsync(file: *mut File, data_only: c_int) -> c_int {
        status(call(|| of(file)?.sync(data_only != 0)))
    }
    fn ob_ftruncate(file: *mut File, size: u64) -> c_int {
        status(call(|| of(file)?.truncate(size)))
    }
    fn ob_fstat(file: *mut File, into: *mut libc::stat) -> c_int {
        status(call(|| put(&of(file)?.attr()?, into)))
    }
    fn ob_stat(volume: *mut Volume, name: *const c_char, into: *mut libc::stat) -> c_int {
        status(call(|| put(&of(volume)?.stat(path(name))?, into)))
    }
    fn ob_lstat(volume: *mut Volume, name: *const c_char, into: *mut libc::stat) -> c_int {
        status(call(|| put(&of(volume)?.lstat(path(name))?, into)))
    }
    fn ob_opendir(volume: *mut Volume, name: *const c_char, error: *mut c_int) -> *mut ObDir {
        let made = call(|| {
            let dir = of(volume)?.open_dir(path(name))?;
            Ok(ObDir { dir, ahead: VecDeque::new(), cookie: 0 })
        });
        handed_out(made, error)
    }
    fn ob_readdir(dir: *mut ObDir, into: *mut ObEntry) -> c_int {
        let next = call(|| dir.as_mut().ok_or(Errno::EBADF)?.next());
        match (next, into.as_mut()) {
            (Ok(Some(entry)), Some(into)) => {
                into.fill(&entry);
                1
            }
            (Ok(None), _) => 0,
            (Err(errno), _) => -c_int::from(errno.raw()),
            (Ok(Some(_)), None) => -libc::EFAULT,
        }
    }
    fn ob_closedir(dir: *mut ObDir) -> c_int {
        status(call(|| taken_back(dir).map(drop)))
    }
    fn ob_mkdir(volume: *mut Volume, name: *const c_char, mode: c_uint) -> c_int {
        status(call(|| of(volume)?.mkdir(path(name), mode & 0o7777)))
    }
    fn ob_rmdir(volume: *mut Volume, name: *const c_char) -> c_int {
        status(call(|| of(volume)?.rmdir(path(name))))
    }
    fn ob_unlink(volume: *mut Volume, name: *const c_char) -> c_int {
        status(call(|| of(volume)?.unlink(path(name))))
    }
    fn ob_rename(volume: *mut Volume, from: *const c_char, to: *const c_char) -> c_int {
        status(call(|| of(volume)?.rename(path(from), path(to))))
    }
    fn ob_link(volume: *mut Volume, from: *const c_char, to: *const c_char) -> c_int {
        status(call(|| of(volume)?.link(path(from), path(to))))
    }
    fn ob_symlink(volume: *mut Volume, target: *const c_char, name: *const c_char) -> c_int {
        status(call(|| of(volume)?.symlink(path(target), path(name))))
    }
    fn ob_readlink(
        volume: *mut Volume, name: *const c_char, into: *mut c_char, len: usize
    ) -> isize {
        length(call(|| {
            let target = of(volume)?.readlink(path(name))?;
            copy_out(&target, room(into.cast(), len));
            Ok(target.len())
        }))
    }
    fn ob_sync(volume: *mut Volume) -> c_int {
        status(call(|| of(volume)?.sync()))
    }
}

/// # Safety
/// `into` is null or writable.
unsafe fn put(attr: &Attr, into: *mut libc::stat) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { names::put_stat(attr, into) }.map(drop)
}

impl ObDir {
    fn next(&mut self) -> Result<Option<Entry>> {
        if self.ahead.is_empty() {
            self.ahead = self.dir.read(self.cookie)?.into();
        }
        let next = self.ahead.pop_front();
        if let Some(entry) = &next {
            self.cookie = entry.cookie;
        }
        Ok(next)
    }
}

impl ObEntry {
    fn fill(&mut self, entry: &Entry) {
        self.inode = outboard_wire::fuse::translate::node_of(entry.ino);
        self.kind = entry.kind.dirent_type();
        self.name = [0; 256];
        let room = self.name.iter_mut().take(255);
        for (to, from) in room.zip(&entry.name) {
            *to = from.cast_signed();
        }
    }
}

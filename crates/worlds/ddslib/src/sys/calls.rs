//! The functions of `include/outboard_dds.h`.

use std::ffi::{OsStr, c_char, c_int, c_uint, c_void};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use libc::iovec;
use outboard_base::{Errno, Result};
use outboard_dds::groups::Shape;
use outboard_dds::host::{self, NotBegun, Poll};
use outboard_pageserver::host::Attachment;
use outboard_wire::dds::DirectoryId;

use super::lent::{
    DdsFile, DdsLibrary, Lent, bytes_of, ended, given, handed_out, of, pieces_of, place,
};

/// Bytes of a group's ring of requests, and of responses.
const RINGS: (u64, u64) = (512 << 10, 1 << 20);
/// Alignment of data that is written: what devices ask for.
const ALIGN: u32 = 4096;

/// Completions of one call at most.
const POLL_MAX: usize = 4096;

/// `struct dds_completion`.
#[repr(C)]
pub struct DdsCompletion {
    user: u64,
    result: i64,
}

/// Called for each name of a directory.
type Each = unsafe extern "C" fn(*mut c_void, u32, u64, *const c_char, usize);

fn status(done: Result<()>) -> c_int {
    done.map_or_else(|errno| -c_int::from(errno.raw()), |()| 0)
}

fn counted(done: Result<usize>) -> c_int {
    let count = done.and_then(|count| c_int::try_from(count).map_err(|_| Errno::EOVERFLOW));
    count.unwrap_or_else(|errno| -c_int::from(errno.raw()))
}

fn begun(done: std::result::Result<(), NotBegun<Lent>>) -> Result<()> {
    done.map_err(|not_begun| not_begun.errno)
}

fn attach(socket: &[u8], wait: Duration, polls: c_uint) -> Result<DdsLibrary> {
    let groups = u16::try_from(polls).ok().and_then(|polls| polls.checked_add(1));
    let shape = groups.and_then(|groups| Shape::new(groups, RINGS.0, RINGS.1, ALIGN));
    let shape = shape.ok_or(Errno::EINVAL)?;
    let attached = Attachment::attach(Path::new(OsStr::from_bytes(socket)), shape, wait);
    let attached = attached.map_err(|error| match (error.kind(), error.raw_os_error()) {
        (ErrorKind::WouldBlock | ErrorKind::TimedOut, _) => Errno::ETIMEDOUT,
        (_, Some(raw)) => Errno::from_raw(raw.unsigned_abs()),
        (ErrorKind::PermissionDenied, None) => Errno::EACCES,
        _ => Errno::EIO,
    })?;
    let region = Arc::clone(attached.region());
    Ok(DdsLibrary(Arc::new(host::Library::new(&region, shape, attached)?)))
}

fn in_library(library: &Arc<super::Library>, file: Result<host::File>) -> Result<DdsFile> {
    Ok(DdsFile { library: Arc::clone(library), file: file? })
}

/// The group of a number C holds; calls refuse one that is not there.
fn poll_of(library: &super::Library, number: u16) -> Result<Poll> {
    library.poll(number).ok_or(Errno::EINVAL)
}

fn wait_of(timeout_ms: c_int) -> Duration {
    u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis)
}

macro_rules! api {
    ($(fn $name:ident($($arg:ident: $kind:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of `outboard_dds.h`.")]
        ///
        /// # Safety
        /// As the header says: handles come from it, strings end, memory is as long as told and
        /// lent as long as said.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) $(-> $ret)? {
            // SAFETY: what C hands in is what the header asks for.
            unsafe { $body }
        }
    )*};
}

api! {
    fn dds_attach(
        socket: *const c_char, wait_ms: c_uint, polls: c_uint, error: *mut c_int,
    ) -> *mut DdsLibrary {
        let wait = Duration::from_millis(wait_ms.into());
        handed_out(attach(bytes_of(socket), wait, polls), error)
    }
    fn dds_detach(library: *mut DdsLibrary) {
        ended(library);
    }
    fn dds_create_directory(
        library: *mut DdsLibrary, name: *const c_char, directory: *mut u32,
    ) -> c_int {
        status(of(library).and_then(|library| {
            let directory = place(directory)?;
            *directory = library.0.create_directory(bytes_of(name))?.0;
            Ok(())
        }))
    }
    fn dds_open_directory(
        library: *mut DdsLibrary, name: *const c_char, directory: *mut u32,
    ) -> c_int {
        status(of(library).and_then(|library| {
            let directory = place(directory)?;
            *directory = library.0.open_directory(bytes_of(name))?.0;
            Ok(())
        }))
    }
    fn dds_remove_directory(library: *mut DdsLibrary, directory: u32) -> c_int {
        status(of(library).and_then(|library| {
            library.0.remove_directory(DirectoryId(directory))
        }))
    }
    fn dds_list(
        library: *mut DdsLibrary, directory: u32, each: Option<Each>, context: *mut c_void,
    ) -> c_int {
        counted(of(library).and_then(|library| {
            let each = each.ok_or(Errno::EINVAL)?;
            let entries = library.0.list(DirectoryId(directory))?;
            for entry in &entries {
                let name = entry.name.as_ptr().cast();
                each(context, entry.id, entry.size, name, entry.name.len());
            }
            Ok(entries.len())
        }))
    }
    fn dds_create_file(
        library: *mut DdsLibrary, directory: u32, name: *const c_char, error: *mut c_int,
    ) -> *mut DdsFile {
        handed_out(of(library).and_then(|library| {
            let made = library.0.create_file(DirectoryId(directory), bytes_of(name));
            in_library(&library.0, made)
        }), error)
    }
    fn dds_open_file(
        library: *mut DdsLibrary, directory: u32, name: *const c_char, error: *mut c_int,
    ) -> *mut DdsFile {
        handed_out(of(library).and_then(|library| {
            let found = library.0.open_file(DirectoryId(directory), bytes_of(name));
            in_library(&library.0, found)
        }), error)
    }
    fn dds_close_file(file: *mut DdsFile) {
        ended(file);
    }
    fn dds_delete_file(file: *mut DdsFile) -> c_int {
        status(of(file).and_then(|file| file.library.delete_file(&file.file)))
    }
    fn dds_resize_file(file: *mut DdsFile, size: u64) -> c_int {
        status(of(file).and_then(|file| file.library.resize_file(&file.file, size)))
    }
    fn dds_file_size(file: *mut DdsFile, size: *mut u64) -> c_int {
        status(of(file).and_then(|file| {
            let size = place(size)?;
            *size = file.library.file_size(&file.file)?;
            Ok(())
        }))
    }
    fn dds_create_poll(library: *mut DdsLibrary, poll: *mut u16) -> c_int {
        status(of(library).and_then(|library| {
            let poll = place(poll)?;
            *poll = library.0.create_poll()?.number();
            Ok(())
        }))
    }
    fn dds_poll_add(library: *mut DdsLibrary, poll: u16, file: *mut DdsFile) -> c_int {
        status(of(library).and_then(|library| {
            let file = of(file)?;
            if !Arc::ptr_eq(&library.0, &file.library) {
                return Err(Errno::EINVAL);
            }
            library.0.poll_add(poll_of(&library.0, poll)?, &file.file)
        }))
    }
    fn dds_read_file(
        file: *mut DdsFile, offset: u64, bytes: *mut c_void, count: usize, user: u64,
    ) -> c_int {
        status(of(file).and_then(|file| {
            let lent = Lent::new(bytes.cast(), count)?;
            begun(file.library.read_file(&file.file, offset, lent, user))
        }))
    }
    fn dds_read_scattered(
        file: *mut DdsFile, offset: u64, pieces: *const iovec, count: c_int, user: u64,
    ) -> c_int {
        status(of(file).and_then(|file| {
            let lent = pieces_of(pieces, count)?.iter();
            let lent = lent.map(|piece| Lent::new(piece.iov_base.cast(), piece.iov_len));
            let lent = lent.collect::<Result<Vec<_>>>()?;
            begun(file.library.read_scattered(&file.file, offset, lent, user))
        }))
    }
    fn dds_write_file(
        file: *mut DdsFile, offset: u64, bytes: *const c_void, count: usize, user: u64,
    ) -> c_int {
        status(of(file).and_then(|file| {
            let data = given(bytes.cast(), count)?;
            begun(file.library.write_file(&file.file, offset, data, user))
        }))
    }
    fn dds_write_gathered(
        file: *mut DdsFile, offset: u64, pieces: *const iovec, count: c_int, user: u64,
    ) -> c_int {
        status(of(file).and_then(|file| {
            let data = pieces_of(pieces, count)?.iter();
            let data = data.map(|piece| given(piece.iov_base.cast_const().cast(), piece.iov_len));
            let data = data.collect::<Result<Vec<_>>>()?;
            begun(file.library.write_gathered(&file.file, offset, &data, user))
        }))
    }
    fn dds_flush_file(file: *mut DdsFile, user: u64) -> c_int {
        status(of(file).and_then(|file| begun(file.library.flush_file(&file.file, user))))
    }
    fn dds_poll_wait(
        library: *mut DdsLibrary,
        poll: u16,
        into: *mut DdsCompletion,
        most: c_uint,
        timeout_ms: c_int,
    ) -> c_int {
        counted(of(library).and_then(|library| {
            let most = usize::try_from(most).unwrap_or(0).min(POLL_MAX);
            if into.is_null() || !into.is_aligned() {
                return Err(Errno::EINVAL);
            }
            let poll = poll_of(&library.0, poll)?;
            let mut out = Vec::with_capacity(most);
            library.0.poll_wait(poll, &mut out, most, wait_of(timeout_ms))?;
            for (place, done) in out.iter().enumerate() {
                let result = match done.result {
                    Ok(value) => i64::try_from(value).unwrap_or(i64::MAX),
                    Err(errno) => -i64::from(errno.raw()),
                };
                into.add(place).write(DdsCompletion { user: done.user, result });
            }
            Ok(out.len())
        }))
    }
}

//! The plug-in's process: loads the object, and calls it.
//!
//! What the object does wrong here ends or stops this process, and no other.

use std::ffi::{CStr, CString, c_int, c_void};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use outboard_dds::dpu::offload::plugin::area::BATCH;
use outboard_dds::dpu::offload::plugin::exchange::{
    Asked, Batch, ITEMS_MAX, KNOWN_MAX, PARTS_MAX, Said, entries,
};
use outboard_dds::dpu::offload::plugin::{Known, MESSAGE_MAX};
use outboard_dds::dpu::offload::{Division, Item, Key, ReadOp, Span, Touches, WriteOp};

use super::abi::{ABI, CApplication, CCalls, CRange, CRead, CWrite, ENTRY, Entry};
use super::confine::{self, AREA_FD, DOORBELL_FD, NOTIFIER_FD};
use crate::plugin::area::{SharedArea, put_profile};

/// How long it looks for the next batch before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// What a program does that is started as a plug-in's process: it never comes back but to end. The
/// arguments are the object and the process that started it.
pub fn host(object: &Path, parent: u32) -> ExitCode {
    let fds = [AREA_FD, DOORBELL_FD, NOTIFIER_FD];
    // SAFETY: the numbers are what the DPU side put there for this program before it was started;
    // nobody else here owns them. If it did not, they are no descriptors, or useless ones, and the
    // calls below say so.
    let [area, doorbell, notifier] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let Ok(area) = SharedArea::open(area) else { return ExitCode::FAILURE };
    if rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs())
        != Some(parent)
    {
        // It ended before this process could ask to end with it.
        return ExitCode::FAILURE;
    }
    let plugin = match Plugin::load(object) {
        Ok(plugin) => plugin,
        Err(why) => {
            area.refuse(&why);
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = confine::once_loaded()
        && error.raw_os_error() != Some(libc::EINVAL)
    {
        area.refuse(&format!("seccomp was refused: {error}"));
        return ExitCode::FAILURE;
    }
    area.introduce(&plugin.profile());
    plugin.serve(&area, &doorbell, &notifier)
}

/// A loaded object. It stays as long as the process.
struct Plugin(&'static CApplication);

#[allow(clippy::cast_possible_truncation, reason = "a small structure")]
const CALLS_SIZE: u32 = size_of::<CCalls>() as u32;

/// What it may call.
static CALLS: CCalls =
    CCalls { abi: ABI, size: CALLS_SIZE, get, literal, host: host_part, dpu, item, key };

impl Plugin {
    fn load(object: &Path) -> Result<Plugin, String> {
        let name = CString::new(object.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: a name with its terminator. What the object's constructors do is the user's.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: called after a failure, on the same thread; the text is copied at once.
            let why = unsafe { libc::dlerror() };
            return Err(if why.is_null() {
                "it cannot be loaded".to_owned()
            } else {
                // SAFETY: not null, so a string with its terminator.
                unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned()
            });
        }
        // SAFETY: a handle that is open, and a name with its terminator.
        let entry = unsafe { libc::dlsym(handle, ENTRY.as_ptr()) };
        if entry.is_null() {
            return Err("it has no function outboard_offload: is it a plug-in?".to_owned());
        }
        // SAFETY: the object says that this is that function, as the header declares it.
        let entry = unsafe { std::mem::transmute::<*mut c_void, Entry>(entry) };
        // SAFETY: as above; the calls live as long as the process.
        let application = unsafe { entry(&raw const CALLS) };
        Plugin::checked(application)
    }

    /// Looks at the version before anything else, which another version may have elsewhere.
    fn checked(application: *const CApplication) -> Result<Plugin, String> {
        if application.is_null() {
            return Err("its outboard_offload gave nothing: it will not work with this".to_owned());
        }
        // SAFETY: every version begins with these two words; it lives as long as the object.
        let [abi, size] = unsafe { *application.cast::<[u32; 2]>() };
        if abi != ABI {
            return Err(format!(
                "it was made for version {abi} of outboard_offload.h, and this is version {ABI}: \
                 compile it against the header of this outboard"
            ));
        }
        if usize::try_from(size) != Ok(size_of::<CApplication>()) {
            return Err(format!("its ofl_application has {size} bytes: is `size` set?"));
        }
        // SAFETY: of this version and size.
        let application = unsafe { &*application };
        if application.off_pred.is_none() || application.off_func.is_none() {
            return Err("it has no off_pred or no off_func".to_owned());
        }
        if application.messages.frames().is_none() || application.answers.frames().is_none() {
            return Err("its messages or answers are described by nothing that makes sense; see \
                        struct ofl_frames"
                .to_owned());
        }
        Ok(Plugin(application))
    }

    fn profile(&self) -> Vec<u8> {
        let name = if self.0.name.is_null() {
            Vec::new()
        } else {
            // SAFETY: a string with its terminator, as the header asks.
            unsafe { CStr::from_ptr(self.0.name) }.to_bytes().to_vec()
        };
        let tells = u32::from(self.0.cache.is_some()) | u32::from(self.0.invalidate.is_some()) << 1;
        put_profile(tells, [&self.0.messages, &self.0.answers], &name)
    }

    /// Answers one batch after another, until the process is killed.
    fn serve(&self, area: &SharedArea, doorbell: &OwnedFd, notifier: &OwnedFd) -> ExitCode {
        let (mut last, mut answers) = (0, Batch::new(BATCH));
        loop {
            let Ok((number, asked)) = next(area, last, doorbell) else { return ExitCode::FAILURE };
            last = number;
            answers.clear();
            for (kind, body) in entries(&asked).unwrap_or_default() {
                let said = Asked::parse(kind, body).map_or(Said::Nothing, |asked| self.say(asked));
                if !answers.say(&said) && !answers.say(&Said::Nothing) {
                    break;
                }
            }
            if area.say(number, answers.bytes()) {
                // A full counter has notified.
                let _notified = rustix::io::write(notifier, &1u64.to_ne_bytes());
            }
        }
    }

    fn say(&self, asked: Asked<'_>) -> Said {
        match asked {
            Asked::Divide { known, message } => self.divide(&known, message),
            Asked::Cache(write) => self.cache(write),
            Asked::Invalidate(read) => self.invalidate(read),
        }
    }

    fn divide(&self, known: &[Known], message: &[u8]) -> Said {
        let (Some(off_pred), Some(off_func)) = (self.0.off_pred, self.0.off_func) else {
            return Said::Nothing;
        };
        let mut table = Table { known, wants: Vec::new() };
        let mut parts = Parts { message, made: Vec::new(), parts: Vec::new(), is_spoilt: false };
        let told = (&raw mut table).cast::<c_void>();
        // SAFETY: the bytes, and what the two pointers stand for, live for the call; the functions
        // of `CALLS` are what uses them.
        unsafe {
            off_pred(message.as_ptr(), message.len(), told, (&raw mut parts).cast());
        }
        let (mut division, mut plans) = (Division::default(), Vec::new());
        division.make(&[&parts.made]);
        for (span, kind) in &parts.parts {
            match kind {
                Kind::Literal => division.literal(span.clone()),
                Kind::Host(touches) => division.host(span.clone(), *touches),
                Kind::Dpu(key) => {
                    let request = division.bytes(span, message);
                    let mut read = CRead::EMPTY;
                    // SAFETY: as above; `read` is written during the call only.
                    let is_read =
                        unsafe { off_func(request.as_ptr(), request.len(), told, &raw mut read) };
                    match read.plan().filter(|_| is_read != 0) {
                        Some(plan) => {
                            plans.push(plan);
                            division.dpu(span.clone(), *key);
                        }
                        None => division.host(span.clone(), Touches::One(*key)),
                    }
                }
            }
        }
        if !table.wants.is_empty() {
            return Said::Wants(table.wants);
        }
        if parts.is_spoilt { Said::Nothing } else { Said::Divided(division, plans) }
    }

    fn cache(&self, write: WriteOp<'_>) -> Said {
        let mut items: Vec<(Key, Item)> = Vec::new();
        let WriteOp { file, offset, bytes } = write;
        let told = CWrite { file, reserved: 0, offset, bytes: bytes.as_ptr(), length: bytes.len() };
        if let Some(cache) = self.0.cache {
            // SAFETY: both live for the call, and only `item` uses the second.
            unsafe { cache(&raw const told, (&raw mut items).cast()) };
        }
        Said::Items(items)
    }

    fn invalidate(&self, read: ReadOp) -> Said {
        let mut keys: Vec<Key> = Vec::new();
        let ReadOp { file, offset, bytes } = read;
        let told = CRange { file, bytes, offset };
        if let Some(invalidate) = self.0.invalidate {
            // SAFETY: as above, with `key`.
            unsafe { invalidate(&raw const told, (&raw mut keys).cast()) };
        }
        Said::Keys(keys)
    }
}

/// The next batch: looks for a moment, then sleeps on the doorbell.
fn next(area: &SharedArea, last: u32, doorbell: &OwnedFd) -> io::Result<(u32, Vec<u8>)> {
    let begun = Instant::now();
    loop {
        if let Some(asked) = area.asked(last) {
            return Ok(asked);
        }
        if begun.elapsed() >= SPIN {
            area.set_sleeps(true);
            if area.asked(last).is_none() {
                let mut count = [0; 8];
                rustix::io::retry_on_intr(|| rustix::io::read(doorbell, &mut count))?;
            }
            area.set_sleeps(false);
        } else {
            std::hint::spin_loop();
        }
    }
}

/// The cache table, as far as it was told.
struct Table<'a> {
    known: &'a [Known],
    wants: Vec<Key>,
}

enum Kind {
    Literal,
    Host(Touches),
    Dpu(Key),
}

/// What becomes of a message.
struct Parts<'a> {
    message: &'a [u8],
    made: Vec<u8>,
    parts: Vec<(Span, Kind)>,
    /// It is more than can be.
    is_spoilt: bool,
}

impl Parts<'_> {
    /// # Safety
    /// So many bytes must lie at `bytes`.
    unsafe fn add(&mut self, bytes: *const u8, length: usize, kind: Kind) {
        let within = bytes.addr().checked_sub(self.message.as_ptr().addr());
        let within =
            within.filter(|at| at.checked_add(length).is_some_and(|end| end <= self.message.len()));
        let made = self.made.len();
        let span = match within {
            Some(at) => Span::Message(at..at + length),
            None if length > PARTS_MAX || made + length > MESSAGE_MAX => {
                self.is_spoilt = true;
                return;
            }
            None if length == 0 => Span::Made(made..made),
            None => {
                // SAFETY: the caller's promise.
                self.made.extend_from_slice(unsafe { std::slice::from_raw_parts(bytes, length) });
                Span::Made(made..made + length)
            }
        };
        self.parts.push((span, kind));
    }
}

// The functions a plug-in calls, with what it was given as their first argument. One that gives
// something else has its process killed by what follows, and no other.

unsafe extern "C" fn get(table: *mut c_void, key: u64, item: *mut [u64; 4]) -> c_int {
    // SAFETY: the table it was given.
    let table = unsafe { &mut *table.cast::<Table<'_>>() };
    match table.known.iter().find(|(known, _)| *known == key) {
        Some((_, Some(found))) => {
            if !item.is_null() {
                // SAFETY: room for four words, as the header asks.
                unsafe { *item = *found };
            }
            1
        }
        Some((_, None)) => 0,
        None => {
            if table.wants.len() < KNOWN_MAX && !table.wants.contains(&key) {
                table.wants.push(key);
            }
            0
        }
    }
}

unsafe extern "C" fn literal(parts: *mut c_void, bytes: *const u8, length: usize) {
    // SAFETY: the division it was given, and bytes of its own or of the message.
    unsafe { (*parts.cast::<Parts<'_>>()).add(bytes, length, Kind::Literal) };
}

unsafe extern "C" fn host_part(
    parts: *mut c_void,
    bytes: *const u8,
    length: usize,
    touches: u32,
    key: u64,
) {
    let touches = match touches {
        0 => Touches::Nothing,
        1 => Touches::One(key),
        _ => Touches::Everything,
    };
    // SAFETY: as above.
    unsafe { (*parts.cast::<Parts<'_>>()).add(bytes, length, Kind::Host(touches)) };
}

unsafe extern "C" fn dpu(parts: *mut c_void, bytes: *const u8, length: usize, key: u64) {
    // SAFETY: as above.
    unsafe { (*parts.cast::<Parts<'_>>()).add(bytes, length, Kind::Dpu(key)) };
}

unsafe extern "C" fn item(items: *mut c_void, key: u64, item: *const [u64; 4]) {
    // SAFETY: the items it was given, and four words.
    let (items, item) = unsafe { (&mut *items.cast::<Vec<(Key, Item)>>(), *item) };
    if items.len() < ITEMS_MAX {
        items.push((key, item));
    }
}

unsafe extern "C" fn key(keys: *mut c_void, key: u64) {
    // SAFETY: the keys it was given.
    let keys = unsafe { &mut *keys.cast::<Vec<Key>>() };
    if keys.len() < ITEMS_MAX {
        keys.push(key);
    }
}

//! The control command `backup`: what a device held at one instant, sent while it is written on
//! ([`outboard_medium::hold`]).
//!
//! ```text
//! {"command": "backup", "kind": "kv"}   root and who runs this process
//! {"ok": true, "bytes": N}              at the instant; with it comes a descriptor, from which a
//!                                       backup is read that holds the device, by its name
//! ```
//!
//! A thread of its own sends it; who does not read is waited for so long and no longer. What is put
//! aside lies in a file without a name, beside the device, and takes no more of the disk than
//! leaves room for the device to grow.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outboard_attach::link::Stream;
use outboard_base::Errno;
use outboard_codec::archive::{Disorder, Header, Kind, Name, Writer};
use outboard_medium::hold::{Aside, Holding, Instant};
use outboard_os::clock;
use outboard_os::executor::block_on;
use outboard_os::medium::FileMedium;
use outboard_os::room::{Reserve, disk_room};
use serde_json::{Value, json};

/// A device of which copies are made.
pub type Held = Arc<Holding<FileMedium>>;

/// Who reads nothing for so long is gone.
const PATIENCE: Duration = Duration::from_secs(60);
/// The room of the disk is looked at whenever so many bytes more were put aside.
const STEP: u64 = 8 << 20;

/// What copies are made of.
#[derive(Clone)]
pub struct Source {
    device: Held,
    dir: PathBuf,
    name: Option<Name>,
    reserve: Reserve,
    stop: Arc<AtomicBool>,
}

/// What `kind` of a request names.
fn kind_of(request: &Value) -> Option<Kind> {
    match request.get("kind").and_then(Value::as_str)? {
        "kv" => Some(Kind::ServedKv),
        "pages" => Some(Kind::ServedPages),
        "plugin" => Some(Kind::ServedPlugin),
        _ => None,
    }
}

impl Source {
    /// Of the device at `path`; none goes on when `stop` says so.
    pub fn new(device: Held, path: &Path, reserve: Reserve, stop: Arc<AtomicBool>) -> Source {
        let dir = path.parent().map_or_else(|| PathBuf::from("."), Path::to_owned);
        let name = path.file_name().and_then(|name| Name::new(name.to_str()?));
        Source { device, dir, name, reserve, stop }
    }

    /// Holds the instant, answers, and sends. Takes as long as who reads.
    pub(crate) fn send(self, request: &Value, answer: impl FnOnce(Value, Option<OwnedFd>)) {
        let failed = |error: String| json!({ "ok": false, "error": error });
        let (instant, kind, stream, theirs) = match self.begin(request) {
            Ok(begun) => begun,
            Err(error) => return answer(failed(error), None),
        };
        answer(json!({ "ok": true, "bytes": instant.len() }), Some(theirs));
        // Who reads sees the stream end before its end.
        match self.write(instant, kind, stream) {
            Ok(()) => tracing::info!("a backup was made"),
            Err(error) => tracing::warn!(%error, "a backup was given up"),
        }
    }

    fn begin(
        &self,
        request: &Value,
    ) -> Result<(Instant<FileMedium>, Kind, Stream, OwnedFd), String> {
        let kind = kind_of(request).ok_or("a backup of what kind is not said")?;
        let cannot = |error: io::Error| format!("cannot begin a backup: {error}");
        let (ours, theirs) = Stream::pair(Arc::clone(&self.stop), PATIENCE).map_err(cannot)?;
        let shelf = Shelf::make(&self.dir, self.reserve).map_err(cannot)?;
        let instant = block_on(self.device.hold(Arc::new(shelf)));
        let busy = "another backup of it is being made: wait for its end";
        Ok((instant.ok_or(busy)?, kind, ours, theirs))
    }

    fn write(
        &self,
        mut instant: Instant<FileMedium>,
        kind: Kind,
        mut to: Stream,
    ) -> io::Result<()> {
        let disorder = |_: Disorder| io::Error::other("the copy is out of order");
        let made = u64::try_from(clock::wall().sec).unwrap_or(0);
        let header = Header { kind, made, id: [0; 16], bytes: instant.len() };
        let mut out = Vec::new();
        let mut writer = Writer::new(&header, &mut out);
        let name = self.name.as_ref().ok_or(Disorder).map_err(disorder)?;
        writer.file(name, &mut out).map_err(disorder)?;
        while let Some((at, piece)) = block_on(instant.next())? {
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::Error::other("the DPU side ends"));
            }
            if piece.iter().any(|byte| *byte != 0) {
                writer.bytes(at, &piece, &mut out).map_err(disorder)?;
            }
            to.write_all(&out)?;
            out.clear();
        }
        writer.file_end(instant.len(), &mut out).map_err(disorder)?;
        // From here on somebody else may have one made.
        drop(instant);
        writer.end(&mut out).map_err(disorder)?;
        to.write_all(&out)
    }
}

/// A file without a name.
struct Shelf {
    file: File,
    dir: PathBuf,
    reserve: Reserve,
    /// So far there was room when it was looked.
    room_to: AtomicU64,
}

impl Shelf {
    fn make(dir: &Path, reserve: Reserve) -> io::Result<Shelf> {
        let path = dir.join("volume.aside");
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Shelf { file, dir: dir.to_owned(), reserve, room_to: AtomicU64::new(0) })
    }

    /// Twice the reserve stays: a growth of the device leaves it once, and must not find less.
    fn look(&self, end: u64) -> Result<(), Errno> {
        if end > self.room_to.load(Ordering::Relaxed) {
            let room = disk_room(&self.dir, self.reserve).map_err(|error| Errno::from(&error))?;
            let (free, kept) = room;
            if free < kept.saturating_mul(2).saturating_add(2 * STEP) {
                return Err(Errno::ENOSPC);
            }
            self.room_to.store(end.saturating_add(STEP), Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Aside for Shelf {
    fn put(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.look(at.saturating_add(bytes.len() as u64))?;
        self.file.write_all_at(bytes, at).map_err(|error| Errno::from(&error))
    }

    fn get(&self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.file.read_exact_at(into, at).map_err(|error| Errno::from(&error))
    }
}

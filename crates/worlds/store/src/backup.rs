//! A volume that is open, as a backup of one instant; and the engine of a directory that is
//! restored from one.
//!
//! ```text
//! backup   what the directory says of itself | pairs of the snapshot | blocks that were in use
//! restore  files, as any; pairs into an engine of its own
//! ```
//!
//! [`Instant`] holds the object store as it is at one moment ([`outboard_kv::object::Held`]). No
//! file of the engine is copied, as none is at rest: its pairs are sent, in the order of keys, and
//! [`Refill`] puts them into an engine again. Blocks are sent at their places. Nothing is written
//! here meanwhile; at most a record is in memory. Pairs go first, and then the engine keeps nothing
//! for the copy any more.
//!
//! What is restored opens as after a kill at that moment. See `docs/internals/backup.md`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use outboard_codec::archive::{Header, Kind, MOST_BODY, Name, Pairs, Totals, Writer, append_pair};
use outboard_kv::object::{GivenUp, Held};
use outboard_kv::{Batch, Durability, Kv, KvError};
use outboard_medium::{Buf, Medium};
use outboard_os::executor::block_on;

use crate::directory::DataDirectory;
use crate::engine::StoreKv;
use crate::error::{Cause, StoreError};
use crate::name::StoreName;
use crate::open::{Hold, KvVolume, engine};

/// What the directory says of itself, where it does; the format first.
const FILES: [&str; 4] = ["format", "store", "size", "outboard.toml"];
/// The medium's.
const BLOCKS: &str = "blocks";
/// The longest of the small files that is believed to be one.
const MOST_FILE: u64 = 1 << 16;
/// Pairs asked for at once.
const SCAN: usize = 256;
/// Bytes of a batch that fills an engine.
const BATCH: usize = 1 << 20;
/// Memory for an engine that is filled.
const CACHE: u64 = 32 << 20;

/// A volume as it was at one moment; it goes on meanwhile. Dropped, nothing is kept any more.
pub struct Instant {
    volume: KvVolume,
    held: Held,
    data: PathBuf,
    bytes: u64,
}

impl Instant {
    /// The volume as it is now.
    pub fn hold(volume: &KvVolume, data: &Path) -> Result<Instant, StoreError> {
        let objects = volume.objects();
        let held = objects.hold().map_err(|error| match error {
            KvError::Io(outboard_base::Errno::EBUSY) => {
                StoreError::data("another copy of it is being made: wait for its end")
            }
            KvError::Io(outboard_base::Errno::EOPNOTSUPP) => StoreError::data(
                "it lies in a pool, which cannot be held: end it and copy it with `outboard \
                 migrate`, or as the pool is copied",
            ),
            error => StoreError::new(Cause::Failed, format!("the store cannot be held: {error}")),
        })?;
        let bytes = objects.space().used;
        Ok(Instant { volume: KvVolume::clone(volume), held, data: data.to_owned(), bytes })
    }

    /// About how many bytes it will be.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sends all of it.
    pub fn write(mut self, to: &mut dyn Write) -> io::Result<Totals> {
        let made = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let header = Header { kind: Kind::Pairs, made, id: [0; 16], bytes: self.bytes };
        let mut out = Vec::with_capacity(MOST_BODY + 4096);
        let writer = Writer::new(&header, &mut out);
        let mut sending = Sending { writer, out, to };
        for file in FILES {
            self.send_file(file, &mut sending)?;
        }
        self.send_pairs(&mut sending)?;
        self.held.end_pairs();
        self.send_blocks(&mut sending)?;
        let totals = sending.writer.end(&mut sending.out).map_err(io::Error::other)?;
        sending.flush()?;
        Ok(totals)
    }

    fn send_file(&self, file: &str, sending: &mut Sending<'_>) -> io::Result<()> {
        let path = self.data.join(file);
        let bytes = match std::fs::metadata(&path) {
            Ok(found) if found.len() > MOST_FILE => {
                return Err(io::Error::other(format!("{} is too long", path.display())));
            }
            Ok(_) => std::fs::read(&path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        sending.file(file)?;
        if !bytes.is_empty() {
            sending.bytes(0, &bytes)?;
        }
        sending.file_end(bytes.len() as u64)
    }

    fn send_pairs(&self, sending: &mut Sending<'_>) -> io::Result<()> {
        let Some(snapshot) = self.held.pairs() else { return Ok(()) };
        let (mut after, mut body) = (None, Vec::with_capacity(MOST_BODY));
        loop {
            let pairs = snapshot.scan(after.as_deref(), SCAN).map_err(failed)?;
            let ended = pairs.len() < SCAN;
            for (key, value) in pairs {
                if !append_pair(&key, &value, &mut body) {
                    sending.pairs(&mut body)?;
                    if !append_pair(&key, &value, &mut body) {
                        return Err(io::Error::other("a pair is longer than a record"));
                    }
                }
                after = Some(key);
            }
            if ended {
                return if body.is_empty() { Ok(()) } else { sending.pairs(&mut body) };
            }
        }
    }

    fn send_blocks(&self, sending: &mut Sending<'_>) -> io::Result<()> {
        let medium = self.volume.objects().medium();
        let given_up = |GivenUp| {
            io::Error::other(
                "the volume ran full while it was copied, and blocks that were kept for the copy \
                 were needed: make room, or try again when less is written",
            )
        };
        let next = |from| self.held.next_run(from, MOST_BODY as u64).map_err(given_up);
        sending.file(BLOCKS)?;
        let mut run = next(0)?;
        while let Some(at) = run {
            let len = usize::try_from(at.end - at.start).map_err(io::Error::other)?;
            let (read, bytes) = block_on(medium.read(at.start, Buf::zeroed(len)));
            read.map_err(|errno| io::Error::other(format!("cannot read its blocks: {errno}")))?;
            // Only now is what was read known to be of the instant.
            run = next(at.end)?;
            // What was never written reads as zeros, and costs nothing.
            if bytes.iter().any(|byte| *byte != 0) {
                sending.bytes(at.start, &bytes)?;
            }
        }
        sending.file_end(self.held.medium_len())
    }
}

fn failed(error: KvError) -> io::Error {
    io::Error::other(format!("cannot read its pairs: {error}"))
}

/// Records on their way, one at a time.
struct Sending<'w> {
    writer: Writer,
    out: Vec<u8>,
    to: &'w mut dyn Write,
}

impl Sending<'_> {
    fn flush(&mut self) -> io::Result<()> {
        self.to.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    fn file(&mut self, name: &str) -> io::Result<()> {
        let name = Name::new(name).ok_or_else(|| io::Error::other("a name that is none"))?;
        self.writer.file(&name, &mut self.out).map_err(io::Error::other)
    }

    fn bytes(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.writer.bytes(at, bytes, &mut self.out).map_err(io::Error::other)?;
        self.flush()
    }

    fn file_end(&mut self, len: u64) -> io::Result<()> {
        self.writer.file_end(len, &mut self.out).map_err(io::Error::other)
    }

    /// Sends a body and empties it.
    fn pairs(&mut self, body: &mut Vec<u8>) -> io::Result<()> {
        self.writer.pairs(body, &mut self.out).map_err(io::Error::other)?;
        body.clear();
        self.flush()
    }
}

/// An engine that is filled from a backup, in a directory that is being restored.
pub struct Refill {
    // Dropped before the directory is let go.
    kv: StoreKv,
    _hold: Hold,
    directory: DataDirectory,
    batch: Batch,
    last: Vec<u8>,
}

impl Refill {
    /// An empty one, in the store that the directory names.
    pub fn begin(data: &Path) -> Result<Refill, StoreError> {
        let store = StoreName::of(data, None)?;
        if matches!(store, StoreName::Pool(_)) || data.join("kv").exists() {
            return Err(damaged("its pairs belong to no engine of its own"));
        }
        let directory =
            DataDirectory::open(data).map_err(|error| StoreError::data(error.to_string()))?;
        let engine = engine(&directory, &store, CACHE);
        let (kv, hold) = engine.map_err(|error| cannot(data, &error))?;
        let batch = Batch::new();
        Ok(Refill { kv, _hold: hold, directory, batch, last: Vec::new() })
    }

    /// Takes more pairs, whose keys rise.
    pub fn take(&mut self, pairs: Pairs<'_>) -> Result<(), StoreError> {
        for (key, value) in pairs {
            if key <= &self.last[..] {
                return Err(damaged("its pairs are not in order"));
            }
            self.last.clear();
            self.last.extend_from_slice(key);
            self.batch.put(key, value);
            if self.batch.bytes() >= BATCH {
                self.commit()?;
            }
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        let batch = std::mem::take(&mut self.batch);
        block_on(self.kv.commit(batch, Durability::Answered)).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: KvError) -> StoreError {
        cannot(self.directory.path(), &error)
    }

    /// All there is was taken; it is durable.
    pub fn finish(mut self) -> Result<(), StoreError> {
        self.commit()?;
        block_on(self.kv.sync()).map_err(|error| self.failed(error))?;
        let kv = self.directory.kv();
        let synced = std::fs::File::open(&kv).and_then(|kv| kv.sync_all());
        synced.map_err(|error| cannot(&kv, &error))
    }
}

fn damaged(text: &str) -> StoreError {
    StoreError::new(Cause::Damaged, text)
}

fn cannot(data: &Path, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::new(Cause::Failed, format!("cannot fill the engine in {}: {error}", data.display()))
}

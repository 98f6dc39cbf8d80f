//! `outboard backup`: a data directory as one file or stream.
//!
//! Of one that nobody uses the lock is held meanwhile, and that of each file of it: what is read is
//! of one instant. Of a volume in use its DPU side sends the copy ([`running`]); of what is served
//! its DPU side holds an instant ([`served`]). See `docs/internals/backup.md`.

mod files;
mod output;
mod running;
mod served;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outboard_codec::archive::{self, Header, Kind, MOST_BODY, Name, Writer};
use outboard_store::StoreName;
use outboard_store::directory::{DataDirectory, DirectoryError};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::files::Found;
use self::output::Output;
use super::served::ServedDir;
use super::status::{Dpu, human};
use crate::bar::Bar;
use crate::exit::{Code, Failure};
use crate::log;
use crate::settings::Settings;

/// Who looks at a directory holds its lock for a moment.
const PATIENCE: Duration = Duration::from_millis(500);

/// Copies what lies in `dir`.
pub(crate) fn backup(dir: &Path, file: &Path, force: bool) -> Result<ExitCode, Failure> {
    log::start_quietly(&Settings { data: Some(dir.to_owned()), ..Settings::default() })?;
    let told = Told::watch()?;
    if let Some(served) = ServedDir::at(dir)?
        && served::runs(&served)
    {
        return served::backup(&served, file, force, &told);
    }
    let (kind, held) = match hold(dir)? {
        Free::Now(kind, held) => (kind, held),
        Free::Runs(dpu) => return of_running(&dpu, dir, file, force, &told),
    };
    let found = files::find(dir)?;
    let mut output = Output::open(file, dir, force)?;
    let bytes = found.files.iter().map(|file| file.bytes).sum();
    let header = Header { kind, made: now(), id: [0; 16], bytes };
    let copied = Copying::begin(&header, &mut output, &told).files(&found)?;
    let place = output.finish()?;
    drop(held);
    // Standard output may be the copy itself.
    eprintln!(
        "copied {kind}: {} files, {} of data, to {place}",
        found.files.len(),
        human(copied.bytes)
    );
    Ok(ExitCode::SUCCESS)
}

/// Copies what `dpu` serves.
fn of_running(
    dpu: &Dpu,
    dir: &Path,
    file: &Path,
    force: bool,
    told: &Told,
) -> Result<ExitCode, Failure> {
    let mut output = Output::open(file, dir, force)?;
    let (kind, totals) = running::copy(dpu, &mut output, told)?;
    let place = output.finish()?;
    eprintln!("copied {kind}, which runs on: {} of data, to {place}", human(totals.bytes));
    Ok(ExitCode::SUCCESS)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Whether somebody asked for the end: with a signal, which then kills nobody.
pub(super) struct Told(Arc<AtomicBool>);

impl Told {
    pub(super) fn watch() -> Result<Told, Failure> {
        let told = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&told))
                .map_err(|error| Failure::internal(format!("cannot watch for signals: {error}")))?;
        }
        Ok(Told(told))
    }

    /// Fails once somebody did.
    pub(super) fn go_on(&self) -> Result<(), Failure> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(Failure::internal("interrupted; nothing was made")),
            false => Ok(()),
        }
    }
}

/// What keeps others out of a directory; only ever dropped.
#[expect(dead_code, reason = "they hold locks")]
enum Held {
    Volume(DataDirectory),
    Served(File),
}

/// Whether a directory is nobody else's.
enum Free {
    /// It is: what lies in it, which nobody uses from now on.
    Now(Kind, Held),
    /// This one serves it.
    Runs(Dpu),
}

fn hold(dir: &Path) -> Result<Free, Failure> {
    let shown = dir.display();
    let refused = |text: String| Failure::new(Code::Data, text);
    if let Some(served) = ServedDir::at(dir)? {
        let kind = kind_of(&served)?;
        let held = served.hold()?.ok_or_else(|| {
            refused(format!("{shown} is being served: end that `outboard serve` first"))
        })?;
        return Ok(Free::Now(kind, Held::Served(held)));
    }
    if !dir.join("format").is_file() {
        return Err(refused(format!("{shown} holds neither a volume nor what a server keeps")));
    }
    if matches!(StoreName::of(dir, None)?, StoreName::Pool(_)) {
        let text = "lies in a pool; copy it with `outboard migrate`, or as the pool is copied";
        return Err(refused(format!("the volume of {shown} {text}")));
    }
    if dir.join("store.copy").exists() {
        return Err(refused(format!("{shown} holds an unfinished copy of a volume")));
    }
    match DataDirectory::open_within(dir, PATIENCE) {
        Ok(held) => Ok(Free::Now(Kind::Volume, Held::Volume(held))),
        Err(error @ DirectoryError::InUse { .. }) => {
            let settings = Settings { data: Some(dir.to_owned()), ..Settings::default() };
            let dpu = Dpu::of(&settings);
            // Who checks or migrates it has no DPU side.
            dpu.status().map_err(|_| refused(error.to_string()))?;
            Ok(Free::Runs(dpu))
        }
        Err(error) => Err(refused(error.to_string())),
    }
}

/// Which kind of backup a served directory's is.
pub(super) fn kind_of(served: &ServedDir) -> Result<Kind, Failure> {
    match served.application.as_str() {
        "kv" => Ok(Kind::ServedKv),
        "pages" => Ok(Kind::ServedPages),
        "plugin" => Ok(Kind::ServedPlugin),
        other => {
            let text = format!("{} is served as {other:?}", served.data().display());
            Err(Failure::new(Code::Data, text))
        }
    }
}

/// A copy that is being written.
struct Copying<'c> {
    writer: Writer,
    out: Vec<u8>,
    output: &'c mut Output,
    told: &'c Told,
    bar: Bar,
    done: u64,
    all: u64,
}

fn broken(_: archive::Disorder) -> Failure {
    Failure::internal("the copy is out of order")
}

impl<'c> Copying<'c> {
    fn begin(header: &Header, output: &'c mut Output, told: &'c Told) -> Copying<'c> {
        let mut out = Vec::with_capacity(MOST_BODY + 4096);
        let writer = Writer::new(header, &mut out);
        Copying { writer, out, output, told, bar: Bar::new(), done: 0, all: header.bytes }
    }

    fn file(&mut self, name: &Name) -> Result<(), Failure> {
        self.writer.file(name, &mut self.out).map_err(broken)
    }

    /// A piece of the file that has begun.
    fn bytes(&mut self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.told.go_on()?;
        self.bar.show("copying", self.done, self.all);
        // What was never written reads as zeros, and costs nothing.
        if bytes.iter().any(|byte| *byte != 0) {
            self.writer.bytes(at, bytes, &mut self.out).map_err(broken)?;
        }
        self.done = self.done.saturating_add(bytes.len() as u64);
        self.flush()
    }

    fn file_end(&mut self, len: u64) -> Result<(), Failure> {
        self.writer.file_end(len, &mut self.out).map_err(broken)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.output.write(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// All that was found, and the end.
    fn files(mut self, found: &Found) -> Result<archive::Totals, Failure> {
        for name in &found.directories {
            self.writer.directory(name, &mut self.out).map_err(broken)?;
        }
        let mut piece = vec![0; MOST_BODY];
        for file in &found.files {
            self.file(&file.name)?;
            let mut at = 0;
            while let Some((from, len)) = file.next(at, &mut piece)? {
                self.bytes(from, piece.get(..len).unwrap_or_default())?;
                at = from.saturating_add(len as u64);
            }
            self.file_end(file.len)?;
        }
        let totals = self.writer.end(&mut self.out).map_err(broken)?;
        self.flush()?;
        self.bar.end();
        Ok(totals)
    }
}

/// An error of a file that is read or written.
fn cannot(verb: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Failure {
    let text = format!("cannot {verb} {}", path.display());
    move |error| Failure::internal(format!("{text}: {error}"))
}

/// The directory that a path lies in.
pub(super) fn above(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Reads exactly so many bytes; fewer if the stream ends before.
pub(super) fn fill(from: &mut impl Read, into: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Makes what was renamed into a directory durable.
pub(super) fn sync(dir: &Path) -> Result<(), Failure> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(cannot("sync", dir))
}

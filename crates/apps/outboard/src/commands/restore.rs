//! `outboard restore`: the data directory of a backup, made beside its place, checked, and then
//! there.

use std::collections::HashSet;
use std::fs::{DirBuilder, File};
use std::io::{IsTerminal, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use outboard_codec::archive::{Event, Header, Kind, MOST_BODY, Name, Pairs, Reader, Totals, Wrong};
use outboard_store::backup::Refill;
use outboard_store::{Cause, StoreError};
use serde_json::Value;

use super::backup::{Told, above, fill, kind_of, sync};
use super::served::ServedDir;
use super::status::human;
use crate::bar::Bar;
use crate::exit::{Code, Failure};
use crate::log;
use crate::say::say;
use crate::settings::Settings;

/// Makes `dir` of what `file` holds.
pub(crate) fn restore(file: &Path, dir: &Path) -> Result<ExitCode, Failure> {
    log::start_quietly(&Settings { data: Some(dir.to_owned()), ..Settings::default() })?;
    let told = Told::watch()?;
    let from = open(file)?;
    let draft = Draft::beside(dir)?;
    let (header, totals) = take(from, &draft, &told).map_err(|error| error.of(file))?;
    check(header.kind, &draft.at).map_err(|error| error.of(file))?;
    told.go_on()?;
    draft.finish()?;
    say!(
        "restored {} into {}: {} of data, checked",
        header.kind,
        dir.display(),
        human(totals.bytes)
    );
    Ok(ExitCode::SUCCESS)
}

fn open(file: &Path) -> Result<Box<dyn Read>, Failure> {
    if file == Path::new("-") {
        let input = std::io::stdin();
        if input.is_terminal() {
            return Err(Failure::usage("standard input is a terminal; name a file"));
        }
        return Ok(Box::new(input.lock()));
    }
    let opened = File::open(file);
    let opened = opened.map_err(|error| {
        Failure::new(Code::Data, format!("cannot open {}: {error}", file.display()))
    })?;
    Ok(Box::new(opened))
}

/// Why nothing was restored.
enum Refused {
    /// The backup is not what it should be.
    Backup(Code, String),
    /// Something else failed.
    Other(Failure),
}

impl Refused {
    fn of(self, file: &Path) -> Failure {
        match self {
            Refused::Backup(code, text) => {
                let shown = file.display();
                Failure::new(code, format!("cannot restore {shown}: {text}; nothing was made"))
            }
            Refused::Other(failure) => failure,
        }
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Refused {
        Refused::Other(failure)
    }
}

impl From<Wrong> for Refused {
    fn from(wrong: Wrong) -> Refused {
        let code = match wrong {
            Wrong::NotABackup | Wrong::Version(_) => Code::Data,
            Wrong::Damaged(_) => Code::Damaged,
        };
        Refused::Backup(code, wrong.to_string())
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Refused {
        match error.cause() {
            Cause::Damaged => damaged(error.to_string()),
            _ => Refused::Other(error.into()),
        }
    }
}

fn damaged(text: impl Into<String>) -> Refused {
    Refused::Backup(Code::Damaged, text.into())
}

/// Reads all of it into the draft.
fn take(mut from: impl Read, draft: &Draft, told: &Told) -> Result<(Header, Totals), Refused> {
    let (mut reader, mut piece) = (Reader::new(), vec![0; MOST_BODY]);
    let mut filling = Filling { draft, names: HashSet::new(), file: None, engine: None };
    let mut header: Option<Header> = None;
    let (mut bar, mut done) = (Bar::new(), 0_u64);
    loop {
        told.go_on()?;
        let wants = piece.get_mut(..reader.wants()).unwrap_or_default();
        let len = wants.len() as u64;
        let cannot = |error: std::io::Error| Failure::internal(format!("cannot read on: {error}"));
        if fill(&mut from, wants).map_err(cannot)? < wants.len() {
            // Of something else there may be less than a header.
            let what = if header.is_none() { "it is no backup, or cut" } else { "it is cut" };
            return Err(damaged(what));
        }
        match reader.take(wants)? {
            Event::More => {}
            Event::Header(found) => header = Some(found),
            Event::Directory(name) => filling.directory(&name)?,
            Event::File(name) => filling.file(&name)?,
            Event::Bytes { at, bytes } => {
                filling.bytes(at, bytes)?;
                done = done.saturating_add(bytes.len() as u64);
                bar.show("restoring", done, header.map_or(0, |header| header.bytes));
            }
            Event::FileEnd { len } => filling.file_end(len)?,
            Event::Pairs(pairs) => {
                filling.pairs(pairs)?;
                done = done.saturating_add(len);
                bar.show("restoring", done, header.map_or(0, |header| header.bytes));
            }
            Event::End(totals) => {
                bar.end();
                if fill(&mut from, &mut [0]).map_err(cannot)? > 0 {
                    return Err(damaged("something follows its end"));
                }
                filling.sync()?;
                let header = header.ok_or_else(|| damaged("it has no header"))?;
                return Ok((header, totals));
            }
        }
    }
}

/// The draft, as it is filled.
struct Filling<'d> {
    draft: &'d Draft,
    names: HashSet<Name>,
    file: Option<(File, PathBuf)>,
    engine: Option<Refill>,
}

impl Filling<'_> {
    /// Where a new name lies.
    fn place(&mut self, name: &Name) -> Result<PathBuf, Refused> {
        if !self.names.insert(name.clone()) {
            return Err(damaged(format!("it holds {name} twice")));
        }
        Ok(self.draft.at.join(name.as_str()))
    }

    fn directory(&mut self, name: &Name) -> Result<(), Refused> {
        let path = self.place(name)?;
        Ok(DirBuilder::new().mode(0o700).create(&path).map_err(cannot(&path))?)
    }

    fn file(&mut self, name: &Name) -> Result<(), Refused> {
        let path = self.place(name)?;
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        self.file = Some((file.map_err(cannot(&path))?, path));
        Ok(())
    }

    fn bytes(&mut self, at: u64, bytes: &[u8]) -> Result<(), Refused> {
        match &self.file {
            Some((file, path)) => Ok(file.write_all_at(bytes, at).map_err(cannot(path))?),
            None => Err(damaged("bytes of no file")),
        }
    }

    fn file_end(&mut self, len: u64) -> Result<(), Refused> {
        match self.file.take() {
            Some((file, path)) => {
                Ok(file.set_len(len).and_then(|()| file.sync_all()).map_err(cannot(&path))?)
            }
            None => Err(damaged("the end of no file")),
        }
    }

    fn pairs(&mut self, pairs: Pairs<'_>) -> Result<(), Refused> {
        let engine = match &mut self.engine {
            Some(engine) => engine,
            none => none.insert(Refill::begin(&self.draft.at)?),
        };
        Ok(engine.take(pairs)?)
    }

    /// Names are durable when their directories are.
    fn sync(&mut self) -> Result<(), Refused> {
        if let Some(engine) = self.engine.take() {
            engine.finish()?;
        }
        for name in &self.names {
            let path = self.draft.at.join(name.as_str());
            if path.is_dir() {
                sync(&path)?;
            }
        }
        Ok(sync(&self.draft.at)?)
    }
}

fn cannot(path: &Path) -> impl FnOnce(std::io::Error) -> Failure {
    let text = format!("cannot write {}", path.display());
    move |error| Failure::internal(format!("{text}: {error}"))
}

/// Whether what was restored is what the backup says, and sound.
fn check(kind: Kind, at: &Path) -> Result<(), Refused> {
    let is = match ServedDir::at(at)? {
        Some(served) => Some(kind_of(&served)?),
        None if at.join("format").is_file() => Some(Kind::Volume),
        None => None,
    };
    let says = if kind == Kind::Pairs { Kind::Volume } else { kind };
    if is != Some(says) {
        return Err(damaged(format!("it says it is of {kind}, and holds something else")));
    }
    let report = super::fsck::fresh(at)?;
    if report.get("clean").and_then(Value::as_bool) == Some(true) {
        return Ok(());
    }
    let findings = report.get("findings").and_then(Value::as_array);
    let first = findings.into_iter().flatten().filter_map(Value::as_str).next();
    Err(damaged(format!("the check found damage: {}", first.unwrap_or("see `outboard fsck`"))))
}

/// A directory beside its place; without [`Draft::finish`] it goes.
struct Draft {
    at: PathBuf,
    place: PathBuf,
    is_done: bool,
}

impl Draft {
    fn beside(dir: &Path) -> Result<Draft, Failure> {
        let refused = |text: &str| Failure::new(Code::Data, format!("{} {text}", dir.display()));
        match std::fs::read_dir(dir).map(|mut entries| entries.next().is_some()) {
            Ok(true) => return Err(refused("is not empty; name a new or an empty directory")),
            Ok(false) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(refused(&format!("cannot be used: {error}"))),
        }
        let name = dir.file_name().ok_or_else(|| refused("has no name"))?.to_string_lossy();
        let at = above(dir).join(format!(".{name}.{}.part", std::process::id()));
        DirBuilder::new().mode(0o700).create(&at).map_err(cannot(&at))?;
        Ok(Draft { at, place: dir.to_owned(), is_done: false })
    }

    /// It is there from now on.
    fn finish(mut self) -> Result<(), Failure> {
        std::fs::rename(&self.at, &self.place).map_err(cannot(&self.place))?;
        self.is_done = true;
        sync(&above(&self.place))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_done
            && let Err(error) = std::fs::remove_dir_all(&self.at)
        {
            tracing::warn!(dir = %self.at.display(), %error, "cannot remove a half restored copy");
        }
    }
}

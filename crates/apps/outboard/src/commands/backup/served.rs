//! A backup of a served directory whose DPU side runs, whether a host serves or not; or whose host
//! does, if it has its device itself.
//!
//! ```text
//! first   the files beside the device are found and opened: what they hold stays
//! instant who has the device holds it, and from now on sends what it held
//! last    the journals are looked at again: those found now, and no more of each than it has now
//! ```
//!
//! So a journal that was removed before the instant is there all the same, and what the device did
//! not have at the instant is in one that was there before or came since. Extracts are those from
//! before the instant: of pages that were whole then. Journals grow in the order of their names, so
//! the last is measured first: what was answered is there up to some moment, and nothing behind it.
//!
//! One look at a directory may miss what came and went before the next. As journals go in their
//! order, the newest of the first look is gone then, too; it is looked for, and all of it begins
//! anew.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use outboard_attach::link::Stream;
use outboard_codec::archive::{self, Event, Header, MOST_BODY, Reader};
use outboard_servers::pages::client::Client;
use serde_json::{Value, json};

use super::files::{self, Found, Source};
use super::output::Output;
use super::running::begun;
use super::{Copying, Told, cannot, fill, kind_of, now};
use crate::commands::served::ServedDir;
use crate::commands::status::{Dpu, human};
use crate::exit::{Code, Failure};

/// Time for a page server to write what it has in memory.
const SYNC_LIMIT: Duration = Duration::from_secs(300);
/// How often it begins anew, if journals come and go that fast.
const ATTEMPTS: u32 = 8;
const JOURNAL: &str = "journal.";

/// Whether somebody answers for the directory.
pub(super) fn runs(served: &ServedDir) -> bool {
    Dpu::copying(served).status().is_ok()
}

/// What is sent of it: the device, as a file.
fn device_of(served: &ServedDir) -> &'static str {
    if served.is_plain { "log" } else { "volume" }
}

/// Copies it while it runs.
pub(super) fn backup(
    served: &ServedDir,
    file: &Path,
    force: bool,
    told: &Told,
) -> Result<ExitCode, Failure> {
    let kind = kind_of(served)?;
    let mut output = Output::open(file, served.data(), force)?;
    // A file is open for each page a server has in memory.
    outboard_os::fds::raise_limit();
    sync_pages(served)?;
    let Begun { found, mut device, bytes } = begin(served, told)?;
    let beside: u64 = found.files.iter().map(|file| file.bytes).sum();
    let header = Header { kind, made: now(), id: [0; 16], bytes: bytes.saturating_add(beside) };
    let mut copying = Copying::begin(&header, &mut output, told);
    pass(&mut device, &mut copying)?;
    drop(device);
    let copied = copying.files(&found)?;
    let place = output.finish()?;
    eprintln!("copied {kind}, which runs on: {} of data, to {place}", human(copied.bytes));
    Ok(ExitCode::SUCCESS)
}

/// Has a page server write what is in its memory: all that it has answered by now.
fn sync_pages(served: &ServedDir) -> Result<(), Failure> {
    let Some(host) = served.host().filter(|_| served.application == "pages") else {
        return Ok(());
    };
    let at = host.get("listen").and_then(Value::as_str).unwrap_or_default();
    let failed = |error: io::Error| {
        let text = format!("the page server at {at} cannot be told to sync: {error}");
        Failure::internal(format!("{text}; nothing was made"))
    };
    let address: SocketAddr =
        at.parse().map_err(|_| failed(io::Error::other("it has not begun to serve")))?;
    Client::connect(address, SYNC_LIMIT).and_then(|mut client| client.sync()).map_err(failed)
}

/// What is copied.
struct Begun {
    found: Found,
    /// Where the device is sent, of about so many bytes.
    device: Stream,
    bytes: u64,
}

fn begin(served: &ServedDir, told: &Told) -> Result<Begun, Failure> {
    for _ in 0..ATTEMPTS {
        told.go_on()?;
        let mut found = files::find_running(served.data(), device_of(served))?;
        let (device, bytes) = ask(served, told)?;
        if settle(&mut found, served)? {
            return Ok(Begun { found, device, bytes });
        }
        // Who has the device hears that this stream is closed when it sends the next piece.
        drop(device);
    }
    let shown = served.data().display();
    let text = format!("{shown} begins to be served just now, or is written too fast; try again");
    Err(Failure::new(Code::Data, text))
}

/// Asks for the device; again while somebody's copy, perhaps our own, is being let go of.
fn ask(served: &ServedDir, told: &Told) -> Result<(Stream, u64), Failure> {
    let until = Instant::now() + Duration::from_secs(2);
    let request = json!({ "command": "backup", "kind": served.application });
    loop {
        let begun = Dpu::copying(served).begin(&request).and_then(|asked| begun(&asked, told));
        match begun {
            Ok((answer, stream)) => {
                return Ok((stream, answer.get("bytes").and_then(Value::as_u64).unwrap_or(0)));
            }
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
        told.go_on()?;
    }
}

/// Adds the journals that came since the first look, and measures all; false if something else
/// happened to them meanwhile.
fn settle(found: &mut Found, served: &ServedDir) -> Result<bool, Failure> {
    let before: BTreeMap<String, u64> = found
        .files
        .iter()
        .filter(|file| file.name.as_str().starts_with(JOURNAL))
        .map(|file| Ok((file.name.to_string(), file.about()?.ino())))
        .collect::<Result<_, Failure>>()?;
    let there = files::find_running(served.data(), device_of(served))?.files;
    let mut since = Vec::new();
    for file in there.into_iter().filter(|file| file.name.as_str().starts_with(JOURNAL)) {
        let number = file.about()?.ino();
        match before.get(file.name.as_str()) {
            Some(own) if *own == number => {}
            // A host that begins gives journals new names.
            Some(_) => return Ok(false),
            None if before.values().any(|own| *own == number) => return Ok(false),
            None => since.push(file),
        }
    }
    // None came and went if the newest is still there.
    let newest = before.last_key_value().map(|(name, _)| served.data().join(name));
    let is_there = newest.is_none_or(|newest| newest.exists());
    if !is_there || (before.is_empty() && !since.is_empty()) {
        return Ok(false);
    }
    found.files.extend(since);
    found.files.sort_by_key(|file| file.name.to_string());
    for file in found.files.iter_mut().rev() {
        if file.name.as_str().starts_with(JOURNAL) {
            file.measure()?;
        }
    }
    Ok(true)
}

/// Passes on what is sent of the device, each record checked.
fn pass(from: &mut Stream, copying: &mut Copying<'_>) -> Result<(), Failure> {
    let broken = |why: &str| Failure::internal(format!("{why}; nothing was made"));
    let (mut reader, mut piece) = (Reader::new(), vec![0; MOST_BODY]);
    loop {
        let wants = piece.get_mut(..reader.wants()).unwrap_or_default();
        let read =
            fill(from, wants).map_err(cannot("read", Path::new("what is sent of the device")))?;
        if read < wants.len() {
            return Err(broken("who has the device gave the copy up; its log says why"));
        }
        let event = reader.take(wants);
        let event = event.map_err(|wrong| broken(&format!("what was sent is no backup: {wrong}")));
        match event? {
            Event::Header(_) | Event::More => {}
            Event::File(name) => copying.file(&name)?,
            Event::Bytes { at, bytes } => copying.bytes(at, bytes)?,
            Event::FileEnd { len } => copying.file_end(len)?,
            Event::End(archive::Totals { .. }) => return Ok(()),
            Event::Directory(_) | Event::Pairs(_) => {
                return Err(broken("something else was sent"));
            }
        }
    }
}

/// How long a file is now, of which more may come.
impl Source {
    fn measure(&mut self) -> Result<(), Failure> {
        self.len = self.about()?.len();
        self.bytes = self.len;
        Ok(())
    }
}

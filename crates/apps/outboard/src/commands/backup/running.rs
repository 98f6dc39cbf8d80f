//! A backup of what runs: its DPU side sends it, and every record is checked on its way.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outboard_attach::link::{Control, Stream};
use outboard_codec::archive::{Event, Header, Kind, MOST_BODY, Reader, Totals, Wrong};
use serde_json::{Value, json};

use super::super::status::Dpu;
use super::output::Output;
use super::{Told, fill};
use crate::bar::Bar;
use crate::exit::{Code, Failure};

/// Time for what is in caches to be written, before the copy begins.
const BEGIN_LIMIT: Duration = Duration::from_secs(300);
/// A DPU side that sends nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time for the word about the end, when the stream has ended.
const WORD_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks whether somebody asked for the end.
const SLICE: Duration = Duration::from_millis(200);

/// Has the DPU side send the copy; what it is of, and how much that was.
pub(super) fn copy(dpu: &Dpu, output: &mut Output, told: &Told) -> Result<(Kind, Totals), Failure> {
    let asked = dpu.begin(&json!({ "command": "backup" }))?;
    let (_, mut stream) = begun(&asked, told)?;
    let passed = pass(&mut stream, output, told);
    drop(stream);
    let (header, totals) = match passed {
        Ok(whole) => whole,
        Err(Stopped::Here(failure)) => return Err(failure),
        Err(Stopped::There(how)) => {
            told.go_on()?;
            let text = word(&asked).unwrap_or(how);
            return Err(Failure::internal(format!("{text}; nothing was made")));
        }
    };
    // Whoever asks next is not told that this one is being made.
    let _heard = word(&asked);
    Ok((header.kind, totals))
}

/// Waits for the answer, and what comes with it.
pub(super) fn begun(asked: &Control, told: &Told) -> Result<(Value, Stream), Failure> {
    let until = Instant::now() + BEGIN_LIMIT;
    let (answer, fd) = loop {
        told.go_on()?;
        match asked.answer(SLICE) {
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                if Instant::now() > until {
                    return Err(Failure::internal("the DPU side does not begin; nothing was made"));
                }
            }
            answer => {
                break answer.map_err(|error| {
                    Failure::internal(format!("the DPU side went away: {error}; nothing was made"))
                })?;
            }
        }
    };
    if let Some(error) = error_of(&answer) {
        return Err(Failure::new(
            Code::Data,
            format!("it cannot be copied while it runs: {error}"),
        ));
    }
    let fd = fd.ok_or_else(|| Failure::internal("the DPU side sends nothing; nothing was made"))?;
    let answer = serde_json::from_str(&answer).unwrap_or_default();
    Ok((answer, Stream::of(fd, Arc::clone(&told.0), PATIENCE)))
}

fn error_of(answer: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    answer.get("error").and_then(Value::as_str).map(str::to_owned)
}

/// What the DPU side says of how it ended, if it was not well.
fn word(asked: &Control) -> Option<String> {
    error_of(&asked.answer(WORD_LIMIT).ok()?.0)
}

/// Why a copy stopped: by what happened here, or there, as far as it is known here.
enum Stopped {
    Here(Failure),
    There(String),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Stopped {
        Stopped::Here(failure)
    }
}

impl From<Wrong> for Stopped {
    fn from(wrong: Wrong) -> Stopped {
        Stopped::There(format!("what the DPU side sends is no backup: {wrong}"))
    }
}

/// Passes all of it on, as it was checked.
fn pass(
    from: &mut impl Read,
    output: &mut Output,
    told: &Told,
) -> Result<(Header, Totals), Stopped> {
    let (mut reader, mut piece) = (Reader::new(), vec![0; MOST_BODY]);
    let (mut header, mut bar, mut done) = (None, Bar::new(), 0_u64);
    loop {
        told.go_on()?;
        let wants = piece.get_mut(..reader.wants()).unwrap_or_default();
        let cannot = |error: std::io::Error| Stopped::There(format!("cannot read on: {error}"));
        if fill(from, wants).map_err(cannot)? < wants.len() {
            return Err(Stopped::There("the DPU side ended amid the copy".to_owned()));
        }
        let len = wants.len() as u64;
        match reader.take(wants)? {
            Event::Header(found) => header = Some(found),
            Event::Bytes { .. } | Event::Pairs(_) => {
                done = done.saturating_add(len);
                bar.show("copying", done, header.map_or(0, |header| header.bytes));
            }
            Event::End(totals) => {
                output.write(wants)?;
                bar.end();
                if fill(from, &mut [0]).map_err(cannot)? > 0 {
                    return Err(Stopped::There("something follows the end".to_owned()));
                }
                let header = header.ok_or_else(|| Stopped::There("no header".to_owned()))?;
                return Ok((header, totals));
            }
            Event::More | Event::Directory(_) | Event::File(_) | Event::FileEnd { .. } => {}
        }
        output.write(wants)?;
    }
}

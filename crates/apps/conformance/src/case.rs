//! What a case is, and how it ends.

use std::fmt;
use std::panic::Location;

use outboard_base::Errno;

use crate::actor::Actor;

/// One thing a file system must do, tried in a fresh directory of its own.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// `group/what it must do`, as filters and reports name it.
    pub name: &'static str,
    /// Tries it.
    pub run: fn(&mut Actor<'_>) -> Outcome,
}

/// A row of a group's table.
pub(crate) const fn case(name: &'static str, run: fn(&mut Actor<'_>) -> Outcome) -> Case {
    Case { name, run }
}

/// How a case ends when it does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// This front cannot show it, for this reason.
    Skip(String),
    /// It did something else: what and where.
    Fail(String),
}

/// `Ok` is a pass.
pub type Outcome = Result<(), Stop>;

impl From<Errno> for Stop {
    /// An operation that should have worked did not; the place is that of the `?`.
    #[track_caller]
    fn from(errno: Errno) -> Stop {
        Stop::Fail(format!("{}: unexpected {errno}", place(Location::caller())))
    }
}

/// `file:line`, short.
fn place(at: &Location<'_>) -> String {
    let file = at.file().rsplit('/').next().unwrap_or_default();
    format!("{file}:{}", at.line())
}

/// Passes if `truth` holds, else fails with `what`.
#[track_caller]
pub fn check(truth: bool, what: &str) -> Outcome {
    if truth { Ok(()) } else { Err(Stop::Fail(format!("{}: {what}", place(Location::caller())))) }
}

/// Passes if `got` is `wanted`, else tells both.
#[track_caller]
pub fn same<T: PartialEq + fmt::Debug>(what: &str, got: T, wanted: T) -> Outcome {
    if got == wanted {
        return Ok(());
    }
    let at = place(Location::caller());
    Err(Stop::Fail(format!("{at}: {what}: got {}, wanted {}", brief(&got), brief(&wanted))))
}

/// Passes if `result` is the error `wanted`.
#[track_caller]
pub fn refused<T: fmt::Debug>(what: &str, result: Result<T, Errno>, wanted: Errno) -> Outcome {
    match result {
        Err(errno) if errno == wanted => Ok(()),
        other => {
            let at = place(Location::caller());
            Err(Stop::Fail(format!("{at}: {what}: got {}, wanted {wanted:?}", brief(&other))))
        }
    }
}

/// Passes if `result` is one of the errors in `wanted` (where the man page allows several).
#[track_caller]
pub fn refused_by<T: fmt::Debug>(
    what: &str,
    result: Result<T, Errno>,
    wanted: &[Errno],
) -> Outcome {
    match result {
        Err(errno) if wanted.contains(&errno) => Ok(()),
        other => {
            let at = place(Location::caller());
            Err(Stop::Fail(format!(
                "{at}: {what}: got {}, wanted one of {wanted:?}",
                brief(&other)
            )))
        }
    }
}

/// Passes if `needed` holds, else ends the case as skipped because of `reason`.
pub fn needs(needed: bool, reason: &str) -> Outcome {
    if needed { Ok(()) } else { skip(reason) }
}

/// Ends the case as skipped.
pub fn skip(reason: &str) -> Outcome {
    Err(Stop::Skip(reason.to_owned()))
}

/// Debug text short enough for a report line.
fn brief(value: &impl fmt::Debug) -> String {
    let mut text = format!("{value:?}");
    if text.len() > 240 {
        text.truncate((0..=240).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0));
        text.push_str("...");
    }
    text
}

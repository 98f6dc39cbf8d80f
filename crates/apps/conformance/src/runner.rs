//! Running cases through a front and telling how they went.

use std::io::{self, Write};

use outboard_base::{Errno, Ino};

use crate::actor::Actor;
use crate::case::{Case, Stop};
use crate::front::Front;

/// How a run went.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Cases that passed.
    pub passed: usize,
    /// Names and reasons of those that failed.
    pub failed: Vec<(String, String)>,
    /// Names and reasons of those skipped.
    pub skipped: Vec<(String, String)>,
}

/// Runs every case whose name contains `filter`, each in a directory of its own under the root, and
/// tells each failure and skip to `tell` as it happens.
///
/// After the last (or, `each`, after every one) the volume is looked at, too.
pub fn run(
    front: &mut dyn Front,
    filter: &str,
    each: bool,
    tell: &mut dyn Write,
) -> io::Result<Report> {
    run_chosen(front, |name| name.contains(filter), each, tell)
}

/// As [`run`], of the cases whose name is `wanted`.
pub fn run_chosen(
    front: &mut dyn Front,
    wanted: impl Fn(&str) -> bool,
    each: bool,
    tell: &mut dyn Write,
) -> io::Result<Report> {
    let mut report = Report::default();
    let chosen: Vec<Case> = crate::cases().into_iter().filter(|case| wanted(case.name)).collect();
    for (number, case) in chosen.iter().enumerate() {
        let mut end = run_case(front, case, number);
        if let Err(errno) = front.settle() {
            end = Err(Stop::Fail(format!("cannot settle afterwards: {errno}")));
        }
        if end.is_ok() && (each || number + 1 == chosen.len()) {
            end = front.verify().map_err(|why| Stop::Fail(format!("the volume is left: {why}")));
        }
        match end {
            Ok(()) => report.passed += 1,
            Err(Stop::Skip(why)) => {
                writeln!(tell, "skip  {}: {why}", case.name)?;
                report.skipped.push((case.name.to_owned(), why));
            }
            Err(Stop::Fail(why)) => {
                writeln!(tell, "FAIL  {}: {why}", case.name)?;
                report.failed.push((case.name.to_owned(), why));
            }
        }
    }
    let name = &front.features().name;
    let (passed, failed, skipped) = (report.passed, report.failed.len(), report.skipped.len());
    writeln!(tell, "{name}: {passed} passed, {failed} failed, {skipped} skipped")?;
    Ok(report)
}

/// One case in a fresh directory, which stays behind for a look when the case fails.
fn run_case(front: &mut dyn Front, case: &Case, number: usize) -> Result<(), Stop> {
    let dir = fresh(front, &format!("case-{number}"))?;
    (case.run)(&mut Actor::new(front, dir))
}

/// A new directory for everyone, under the root, whose name starts with `stem`.
fn fresh(front: &mut dyn Front, stem: &str) -> Result<Ino, Stop> {
    let mut root = Actor::new(front, Ino::ROOT);
    for attempt in 0..1000 {
        match root.mkdir(Ino::ROOT, &format!("{stem}-{attempt}"), 0o777) {
            Err(Errno::EEXIST) => {}
            made => return Ok(made?),
        }
    }
    Err(Stop::Fail("no free name for the case's directory".to_owned()))
}

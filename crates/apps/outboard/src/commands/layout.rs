//! `outboard layout`: how the bytes of a file lie on nodes, as its extended attribute says.

use std::path::Path;
use std::process::ExitCode;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::exit::Failure;
use crate::say::say;

/// The attribute that says it.
const ATTRIBUTE: &str = "user.outboard.layout";
/// Longest text of a layout.
const TEXT_MAX: usize = 256;

/// Prints it, or sets it.
pub(crate) fn layout(path: &Path, set: Option<&str>) -> Result<ExitCode, Failure> {
    let at = path.display();
    if let Some(text) = set {
        setxattr(path, ATTRIBUTE, text.as_bytes(), XattrFlags::empty()).map_err(|error| {
            Failure::usage(match error {
                Errno::INVAL => format!(
                    "--set {text} is no layout of this volume; write it as \
                     strategy=single,width=4,strip=64K, or strategy=ring,k=3 for so many copies, \
                     or strategy=parity,k=3,m=2 for so many units of data and parity; a file \
                     lies on no more nodes than there are, and 16 at most"
                ),
                Errno::BUSY | Errno::NOTEMPTY | Errno::PERM | Errno::ACCESS => format!(
                    "the layout of {at} cannot be set: {error}; it can of a directory of yours, or \
                     of a file that is empty"
                ),
                error => not_shared(path, error),
            })
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = [0; TEXT_MAX];
    let found = getxattr(path, ATTRIBUTE, &mut text[..]);
    let len = found.map_err(|error| Failure::usage(not_shared(path, error)))?;
    say!("{}", String::from_utf8_lossy(text.get(..len).unwrap_or_default()));
    Ok(ExitCode::SUCCESS)
}

fn not_shared(path: &Path, error: Errno) -> String {
    let at = path.display();
    match error {
        Errno::NODATA | Errno::OPNOTSUPP => format!(
            "{at} is on no shared volume: its bytes lie on no nodes (`outboard cluster up` makes a \
             volume whose do)"
        ),
        error => format!("cannot ask for the layout of {at}: {error}"),
    }
}

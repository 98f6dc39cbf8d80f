//! Where a backup goes: beside its place, and there when it is whole and durable; or to a pipe.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{above, cannot, sync};
use crate::exit::{Code, Failure};

/// A backup that is being made.
pub(super) enum Output {
    Stream(std::io::Stdout),
    File(Draft),
}

/// A file beside its place; without [`Output::finish`] it goes.
pub(super) struct Draft {
    file: File,
    draft: PathBuf,
    place: PathBuf,
    force: bool,
    is_done: bool,
}

impl Output {
    /// Makes it; `dir` is what is copied, so it cannot lie there.
    pub(super) fn open(place: &Path, dir: &Path, force: bool) -> Result<Output, Failure> {
        if place == Path::new("-") {
            let out = std::io::stdout();
            if out.is_terminal() {
                return Err(Failure::usage("standard output is a terminal; name a file"));
            }
            return Ok(Output::Stream(out));
        }
        match std::fs::symlink_metadata(place) {
            Ok(there) if !there.is_file() => {
                let text = format!("{} is there and no file; name another", place.display());
                return Err(Failure::usage(text));
            }
            Ok(_) if !force => return Err(is_there(place)),
            Ok(_) | Err(_) => {}
        }
        let parent = above(place);
        let (at, of) = (parent.canonicalize(), dir.canonicalize());
        let at = at.map_err(cannot("find", &parent))?;
        if at.starts_with(of.map_err(cannot("find", dir))?) {
            let text = format!("{} lies in what is copied; name another", place.display());
            return Err(Failure::usage(text));
        }
        let name = place.file_name().ok_or_else(|| Failure::usage("name a file"))?;
        let name = format!(".{}.{}.part", name.to_string_lossy(), std::process::id());
        let draft = at.join(name);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&draft);
        let file = file.map_err(cannot("make", &draft))?;
        let place = place.to_owned();
        Ok(Output::File(Draft { file, draft, place, force, is_done: false }))
    }

    /// What comes next.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Output::Stream(out) => {
                out.write_all(bytes).map_err(cannot("write", Path::new("standard output")))
            }
            Output::File(draft) => {
                draft.file.write_all(bytes).map_err(cannot("write", &draft.place))
            }
        }
    }

    /// Makes it durable, and gives it its name; which.
    pub(super) fn finish(self) -> Result<String, Failure> {
        let mut draft = match self {
            Output::Stream(mut out) => {
                out.flush().map_err(cannot("write", Path::new("standard output")))?;
                return Ok("standard output".to_owned());
            }
            Output::File(draft) => draft,
        };
        draft.file.sync_all().map_err(cannot("write", &draft.place))?;
        draft.name()?;
        draft.is_done = true;
        sync(&above(&draft.place))?;
        Ok(draft.place.display().to_string())
    }
}

impl Draft {
    /// Nobody's file goes that was made meanwhile, unless that was asked for.
    fn name(&self) -> Result<(), Failure> {
        let (from, to) = (&self.draft, &self.place);
        if !self.force {
            match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
                // A file system that cannot: looked at just before.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) if !to.exists() => {}
                Err(rustix::io::Errno::EXIST | rustix::io::Errno::INVAL) => {
                    return Err(is_there(to));
                }
                done => return done.map_err(|error| cannot("make", to)(error.into())),
            }
        }
        std::fs::rename(from, to).map_err(cannot("make", to))
    }
}

fn is_there(place: &Path) -> Failure {
    let text = format!("{} is there; --force takes its place", place.display());
    Failure::new(Code::Usage, text)
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_done
            && let Err(error) = std::fs::remove_file(&self.draft)
        {
            tracing::warn!(file = %self.draft.display(), %error, "cannot remove half a backup");
        }
    }
}

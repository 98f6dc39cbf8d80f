//! What a process holds open while the DPU side dies: it must hold it still when that is back.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::{Result, context};

const LENGTH: usize = 50_000;

/// An unlinked file and a locked one.
pub struct Held {
    unlinked: File,
    content: Vec<u8>,
    locked: File,
    rival: File,
}

impl Held {
    /// Opens, fills, unlinks and locks.
    pub fn take(dir: &Path) -> Result<Self> {
        let open = |name: &str| {
            let path = dir.join(name);
            let file =
                OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
            context(file, || format!("cannot open {}", path.display()))
        };
        let unlinked = open("unlinked")?;
        let content: Vec<u8> = (0..LENGTH).map(|at| u8::try_from(at % 251).unwrap_or(0)).collect();
        context(unlinked.write_all_at(&content, 0), || "cannot fill".to_owned())?;
        context(fs::remove_file(dir.join("unlinked")), || "cannot unlink".to_owned())?;
        let (locked, rival) = (open("locked")?, open("locked")?);
        let lock = flock(&locked, FlockOperation::NonBlockingLockExclusive);
        context(lock, || "cannot lock".to_owned())?;
        Ok(Self { unlinked, content, locked, rival })
    }

    /// Uses all of it again.
    pub fn verify(&mut self) -> Result<()> {
        let mut found = vec![0; self.content.len()];
        let read = self.unlinked.read_exact_at(&mut found, 0);
        context(read, || "an unlinked file that is open cannot be read".to_owned())?;
        if found != self.content {
            return Err("an unlinked file that is open has other content".to_owned());
        }
        let written = self.unlinked.write_all_at(b"again", 7);
        context(written, || "an unlinked file that is open cannot be written".to_owned())?;
        self.content[7..12].copy_from_slice(b"again");
        match flock(&self.rival, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {}
            other => return Err(format!("a held lock was given to another: {other:?}")),
        }
        let unlock = flock(&self.locked, FlockOperation::Unlock)
            .and_then(|()| flock(&self.rival, FlockOperation::NonBlockingLockExclusive))
            .and_then(|()| flock(&self.rival, FlockOperation::Unlock))
            .and_then(|()| flock(&self.locked, FlockOperation::NonBlockingLockExclusive));
        context(unlock, || "a lock cannot be passed on".to_owned())
    }
}

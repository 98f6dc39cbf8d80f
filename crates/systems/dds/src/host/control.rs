//! Directories, names and sizes: calls that wait for their answer, one at a time.

use std::time::Duration;

use outboard_base::{Errno, Result};
use outboard_wire::dds::{DirectoryId, FileId, Listing, NAME_MAX, Request};

use super::booking::{Booked, Outcome};
use super::endpoint::lock;
use super::{CONTROL_TIME, File, Library, World};

/// The group of these calls.
const OWN: u16 = 0;
/// Room for entries in one answer.
const LIST_BYTES: usize = 32 << 10;
/// Before a full ring is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// A file of a directory, or a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its id: a [`FileId`], or a [`DirectoryId`] in the list of all directories.
    pub id: u32,
    /// Bytes; of a directory, the number of its files.
    pub size: u64,
    /// Its name.
    pub name: Vec<u8>,
}

fn check(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(Errno::EINVAL),
        1..=NAME_MAX => Ok(()),
        _ => Err(Errno::ENAMETOOLONG),
    }
}

impl<W: World, B: AsMut<[u8]>> Library<W, B> {
    /// `CreateDirectory`. Waits for the answer.
    ///
    /// # Errors
    /// `EEXIST`, `EINVAL` for no name, `ENAMETOOLONG`, `ENOSPC`, `EIO`.
    pub fn create_directory(&self, name: &[u8]) -> Result<DirectoryId> {
        check(name)?;
        let id = self.ask(&Request::CreateDirectory { name }, Vec::new())?.0;
        u32::try_from(id).map(DirectoryId).map_err(|_| Errno::EIO)
    }

    /// The directory of a name. Waits for the answer.
    ///
    /// # Errors
    /// `ENOENT`, `EINVAL`, `EIO`.
    pub fn open_directory(&self, name: &[u8]) -> Result<DirectoryId> {
        check(name)?;
        let id = self.ask(&Request::OpenDirectory { name }, Vec::new())?.0;
        u32::try_from(id).map(DirectoryId).map_err(|_| Errno::EIO)
    }

    /// Removes an empty directory. Waits for the answer.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTEMPTY`, `EIO`.
    pub fn remove_directory(&self, directory: DirectoryId) -> Result<()> {
        self.ask(&Request::RemoveDirectory { directory }, Vec::new()).map(drop)
    }

    /// `CreateFile`: a new, empty file. Waits for the answer.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT` without the directory, `EINVAL`, `ENOSPC`, `EIO`.
    pub fn create_file(&self, directory: DirectoryId, name: &[u8]) -> Result<File> {
        check(name)?;
        let id = self.ask(&Request::CreateFile { directory, name }, Vec::new())?.0;
        u32::try_from(id).map(|id| File::new(FileId(id))).map_err(|_| Errno::EIO)
    }

    /// The file of a name. Waits for the answer.
    ///
    /// # Errors
    /// `ENOENT`, `EINVAL`, `EIO`.
    pub fn open_file(&self, directory: DirectoryId, name: &[u8]) -> Result<File> {
        check(name)?;
        let id = self.ask(&Request::OpenFile { directory, name }, Vec::new())?.0;
        u32::try_from(id).map(|id| File::new(FileId(id))).map_err(|_| Errno::EIO)
    }

    /// Deletes a file, its name and its space. Requests of it that are under way end as they may.
    /// Waits for the answer.
    ///
    /// # Errors
    /// `ENOENT`, `EIO`.
    pub fn delete_file(&self, file: &File) -> Result<()> {
        self.ask(&Request::DeleteFile { file: file.id }, Vec::new()).map(drop)
    }

    /// Makes a file `size` bytes: cut, or filled with zeroes. Waits for the answer.
    ///
    /// # Errors
    /// `ENOENT`, `EFBIG`, `ENOSPC`, `EIO`.
    pub fn resize_file(&self, file: &File, size: u64) -> Result<()> {
        self.ask(&Request::Resize { file: file.id, size }, Vec::new()).map(drop)
    }

    /// A file's bytes. Waits for the answer.
    ///
    /// # Errors
    /// `ENOENT`, `EIO`.
    pub fn file_size(&self, file: &File) -> Result<u64> {
        Ok(self.ask(&Request::Size { file: file.id }, Vec::new())?.0)
    }

    /// What a directory holds, or all directories ([`DirectoryId::ROOT`]), by ascending ids; a
    /// listing that was changed meanwhile holds what was there all the time. Waits for the answers.
    ///
    /// # Errors
    /// `ENOENT`, `EIO`.
    pub fn list(&self, directory: DirectoryId) -> Result<Vec<Entry>> {
        let (mut entries, mut after) = (Vec::new(), 0);
        let room = LIST_BYTES.min(self.shape.read_max());
        loop {
            let bytes = u32::try_from(room).unwrap_or(0);
            let request = Request::List { directory, after, bytes };
            let (len, data) = self.ask(&request, vec![0; room])?;
            let len = usize::try_from(len).unwrap_or(usize::MAX).min(data.len());
            let listed = Listing::new(data.get(..len).unwrap_or_default());
            let had = entries.len();
            for entry in listed {
                let entry = entry.map_err(|_| Errno::EIO)?;
                if entry.id <= after {
                    return Err(Errno::EIO);
                }
                after = entry.id;
                let name = entry.name.to_vec();
                entries.push(Entry { id: entry.id, size: entry.size, name });
            }
            if entries.len() == had {
                return Ok(entries);
            }
        }
    }

    /// Asks and waits: the result, and the buffer.
    fn ask(&self, request: &Request<'_>, buffer: Vec<u8>) -> Result<(u64, Vec<u8>)> {
        let mut asked = lock(&self.control);
        *asked += 1;
        let user = *asked;
        let until = self.world.now().after(CONTROL_TIME);
        let left = || until.since(self.world.now());
        let result = if buffer.is_empty() { Outcome::Value } else { Outcome::Read };
        let mut booked = Booked { user, buffers: vec![buffer], result };
        let begin = |booked| self.begin_in(OWN, &self.own, request, &[request.data()], booked);
        while let Err(not_begun) = begin(booked) {
            if not_begun.errno != Errno::EAGAIN || left().is_zero() {
                let full = not_begun.errno == Errno::EAGAIN;
                return Err(if full { Errno::EIO } else { not_begun.errno });
            }
            booked = Booked { user, buffers: not_begun.buffers, result };
            self.world.sleep(OWN, &|| false, RETRY);
        }
        let mut out = Vec::new();
        loop {
            self.wait_in(OWN, &self.own, &mut out, 1, left());
            // What comes late of a call that gave up is passed over.
            if let Some(mut done) = out.drain(..).find(|done| done.user == user) {
                return Ok((done.result?, done.buffers.pop().unwrap_or_default()));
            }
            if left().is_zero() {
                return Err(Errno::EIO);
            }
        }
    }
}

//! A file of a file service that nobody serves, to be read: for checks.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use outboard_base::Errno;
use outboard_dds::dpu::files::{FileError, FileService, OpenError, ReadOp};
use outboard_dds::table::Changes;
use outboard_medium::Buf;
use outboard_os::executor::block_on;
use outboard_os::medium::{FileMedium, MediumOptions};
use outboard_volume::Report;
use outboard_wire::dds::FileId;

use super::Device;

/// The files of a device, opened to be looked at.
pub struct Files(FileService<FileMedium>);

impl Files {
    /// Opens the volume at `path`, of which nothing is changed.
    ///
    /// # Errors
    /// There is none, or it is in use; [`OpenError`]s as text.
    pub fn open(path: &Path) -> io::Result<Files> {
        if !path.exists() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let medium = FileMedium::open(path, MediumOptions::default())?;
        let files = block_on(FileService::open_to_read(medium));
        Ok(Files(files.map_err(|error: OpenError| io::Error::other(error.to_string()))?))
    }

    /// Checks the metadata.
    ///
    /// # Errors
    /// The device cannot be read.
    pub fn check(&self) -> io::Result<Report> {
        block_on(self.0.check()).map_err(|error| io::Error::other(error.to_string()))
    }

    /// A file of a directory; `None` if it was never made.
    #[must_use]
    pub fn file(self, directory: &str, name: &str) -> Option<LocalDevice> {
        let directory = self.0.directory(directory.as_bytes()).ok()?;
        let file = self.0.file(directory, name.as_bytes()).ok()?;
        Some(LocalDevice { files: self.0, file })
    }
}

/// One file. It is read, and never changed.
pub struct LocalDevice {
    files: FileService<FileMedium>,
    file: FileId,
}

impl Device for LocalDevice {
    type Bytes = Vec<u8>;

    fn file(&self) -> u32 {
        self.file.0
    }

    fn has_table(&self) -> bool {
        false
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let bytes = u32::try_from(len).map_err(|_| Errno::EINVAL)?;
        let op = ReadOp { file: self.file, offset, bytes };
        let (range, buf) = self.files.read(op, Buf::zeroed(0)).await;
        let mut bytes = buf.get(range.map_err(FileError::errno)?).unwrap_or_default().to_vec();
        bytes.resize(len, 0);
        Ok(bytes)
    }

    async fn write(&self, _: u64, _: Buf) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    fn size(&self) -> Result<u64, Errno> {
        self.files.size(self.file).map_err(FileError::errno)
    }

    async fn grow(&self, _: u64) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    async fn cut(&self, _: u64) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    async fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    async fn update(&self, _: Changes) -> Result<(), Errno> {
        Ok(())
    }

    fn progress(&self) -> usize {
        0
    }

    fn sleep(&self, _: BorrowedFd<'_>, _: Duration) -> io::Result<()> {
        Ok(())
    }

    fn is_lost(&self) -> bool {
        false
    }
}

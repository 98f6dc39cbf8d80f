//! How a measurement reaches its file: by system calls, or past the kernel. The same operations
//! either way, so that what is compared is the path.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use outboard_attach::host::{Connect, Host};
use outboard_client::Volume;
use rustix::fs::{Advice, fadvise};

use crate::workload::{Aligned, MEGABYTE, O_DIRECT};

/// Pages of a file are brought in by reads of this size.
const WARMING: usize = 64 << 10;

/// What a seek behind the end of a file fails with.
const NXIO: i32 = rustix::io::Errno::NXIO.raw_os_error();

/// How long a DPU side may take to let go in order.
const DETACH: Duration = Duration::from_secs(5);

/// A file and the way to it.
pub(crate) enum Reach {
    /// By system calls; `behind` is the same file where a passthrough keeps it.
    Kernel { file: PathBuf, behind: Option<PathBuf> },
    /// Past the kernel.
    Client { attached: Attached, file: &'static str },
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    pub(crate) write: bool,
    /// With `O_DIRECT`.
    pub(crate) direct: bool,
    /// Without the kernel's read-ahead.
    pub(crate) no_read_ahead: bool,
}

/// The file, open.
pub(crate) enum Opened {
    Kernel { file: File, behind: Option<File> },
    Client(outboard_client::File<Host>),
}

/// An attachment that is left in order: a DPU side stays as long as somebody is attached.
pub(crate) struct Attached(Volume<Host>);

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(error) = self.0.backend().detach(DETACH) {
            eprintln!("bench: the DPU side did not let go: {error}");
        }
    }
}

impl Reach {
    /// The file `name` in `dir`, which a passthrough keeps in `behind`.
    pub(crate) fn kernel(dir: &Path, behind: Option<&Path>, name: &str) -> Reach {
        Reach::Kernel { file: dir.join(name), behind: behind.map(|dir| dir.join(name)) }
    }

    /// The file `name` of the volume in `data`, with a hybrid cache of `cache` bytes.
    pub(crate) fn client(data: &Path, cache: u64, file: &'static str) -> io::Result<Reach> {
        let connect = Connect::new(data.join("dpu.sock")).cache(cache);
        let volume = Volume::attach(|front| connect.attach(front))
            .map_err(|error| io::Error::other(format!("{error}")));
        Ok(Reach::Client { attached: Attached(volume?), file })
    }

    /// Opens the file, which is there.
    pub(crate) fn open(&self, how: How) -> io::Result<Opened> {
        match self {
            Reach::Kernel { file, behind } => {
                let flags = if how.direct { O_DIRECT } else { 0 };
                let mut options = OpenOptions::new();
                let options = options.read(true).write(how.write).custom_flags(flags);
                let file = options.open(file)?;
                if how.no_read_ahead {
                    fadvise(&file, 0, None, Advice::Random)?;
                }
                let behind = behind.as_ref().map(File::open).transpose()?;
                Ok(Opened::Kernel { file, behind })
            }
            Reach::Client { attached, file } => {
                let mut options = outboard_client::OpenOptions::new().read();
                if how.write {
                    options = options.write();
                }
                if how.direct {
                    options = options.direct();
                }
                Ok(Opened::Client(attached.0.open(file, options)?))
            }
        }
    }

    /// Makes the file, of `len` bytes and without holes, durably.
    pub(crate) fn make(&self, len: u64) -> io::Result<()> {
        match self {
            Reach::Kernel { file, .. } => drop(File::create(file)?),
            Reach::Client { attached, file } => {
                let options = outboard_client::OpenOptions::new().write().create(0o600);
                drop(attached.0.open(file, options)?);
            }
        }
        let opened = self.open(How { write: true, ..How::default() })?;
        let mut bytes = Aligned::new(MEGABYTE, 1);
        for at in (0..len).step_by(MEGABYTE) {
            opened.write(bytes.slice(), at)?;
        }
        opened.sync()
    }

    /// Reads the first `len` bytes once.
    pub(crate) fn warm(&self, len: u64) -> io::Result<()> {
        let opened = self.open(How::default())?;
        let mut bytes = Aligned::new(WARMING, 1);
        (0..len).step_by(WARMING).try_for_each(|at| opened.read(bytes.slice(), at))
    }

    /// Makes an empty file of another name beside it, and closes it.
    pub(crate) fn create(&self, name: &str) -> io::Result<()> {
        match self {
            Reach::Kernel { file, .. } => {
                let mut options = OpenOptions::new();
                options.write(true).create_new(true).open(file.with_file_name(name)).map(drop)
            }
            Reach::Client { attached, .. } => {
                let options = outboard_client::OpenOptions::new().write().create(0o600);
                attached.0.open(name, options.exclusive())?.close(0).map_err(io::Error::from)
            }
        }
    }

    /// Asks for the attributes of a file beside it.
    pub(crate) fn stat(&self, name: &str) -> io::Result<()> {
        match self {
            Reach::Kernel { file, .. } => std::fs::metadata(file.with_file_name(name)).map(drop),
            Reach::Client { attached, .. } => Ok(attached.0.stat(name).map(drop)?),
        }
    }

    /// Removes a file beside it.
    pub(crate) fn unlink(&self, name: &str) -> io::Result<()> {
        match self {
            Reach::Kernel { file, .. } => std::fs::remove_file(file.with_file_name(name)),
            Reach::Client { attached, .. } => Ok(attached.0.unlink(name)?),
        }
    }

    /// Makes everything written durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.open(How { write: true, ..How::default() })?.sync()
    }
}

impl Opened {
    /// Reads all of `bytes`.
    pub(crate) fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        match self {
            Opened::Kernel { file, .. } => file.read_exact_at(bytes, at),
            Opened::Client(file) => {
                let mut done = 0;
                while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
                    match file.read_at(rest, at + done as u64)? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        read => done += read,
                    }
                }
                Ok(())
            }
        }
    }

    /// Writes all of `bytes`.
    pub(crate) fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        match self {
            Opened::Kernel { file, .. } => file.write_all_at(bytes, at),
            Opened::Client(file) => {
                let mut done = 0;
                while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
                    match file.write_at(rest, at + done as u64)? {
                        0 => return Err(io::ErrorKind::WriteZero.into()),
                        written => done += written,
                    }
                }
                Ok(())
            }
        }
    }

    /// Asks where data begins behind `end`, the end of the file: nowhere.
    pub(crate) fn seek_behind(&self, end: u64) -> io::Result<()> {
        let sought: io::Result<u64> = match self {
            Opened::Kernel { file, .. } => {
                rustix::fs::seek(file, rustix::fs::SeekFrom::Data(end)).map_err(Into::into)
            }
            Opened::Client(file) => file.seek(end, false).map_err(Into::into),
        };
        match sought {
            Err(error) if error.raw_os_error() == Some(NXIO) => Ok(()),
            Err(error) => Err(error),
            Ok(at) => Err(io::Error::other(format!("there is data at {at}, behind the end"))),
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self {
            Opened::Kernel { file, .. } => file.sync_all(),
            Opened::Client(file) => Ok(file.sync(false)?),
        }
    }

    /// Asks the kernel to forget these pages, here and behind a passthrough. A hybrid cache is not
    /// asked: its size says what it can keep.
    pub(crate) fn forget(&self, at: u64, len: u64) -> io::Result<()> {
        let Opened::Kernel { file, behind } = self else { return Ok(()) };
        for file in std::iter::once(file).chain(behind) {
            fadvise(file, at, std::num::NonZeroU64::new(len), Advice::DontNeed)?;
        }
        Ok(())
    }
}

//! How a mount looks and behaves.

use std::time::Duration;

use outboard_base::limits::IO_MAX;
use outboard_wire::file::open_flags;
use outboard_wire::fuse::answer::fopen;

/// Which file data the kernel may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Cache {
    /// None: every read and write goes to the volume. Shared mappings still work.
    None,
    /// What was read and written stays in the kernel's page cache, across opens, until another
    /// attachment changes it. Writes go through to the volume before they are answered.
    #[default]
    Kernel,
    /// The same, but the kernel collects writes: it answers them, says what size and times a file
    /// has, and writes its pages later; the volume hears of a change by `close` at the latest. The
    /// kernel ignores size and times that others gave a file: for who has the volume alone, or
    /// [shares](MountOptions::shares) it.
    WriteBack,
    /// None; it lies in the hybrid cache of the mount's link, which the backend keeps. Names and
    /// attributes stay in the kernel as with [`Cache::Kernel`].
    Hybrid,
}

/// Where a mount's process can be made to die, to see what its successor finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillPoint {
    /// A request was read and not submitted.
    Read,
    /// It was submitted.
    Submitted,
    /// It was answered by the volume, and the kernel was not told.
    Answered,
}

impl KillPoint {
    /// `read:100` is before the hundredth request that was read is submitted.
    #[must_use]
    pub fn parse(text: &str) -> Option<(KillPoint, u64)> {
        let (point, count) = text.split_once(':')?;
        let point = match point {
            "read" => KillPoint::Read,
            "submitted" => KillPoint::Submitted,
            "answered" => KillPoint::Answered,
            _ => return None,
        };
        Some((point, count.parse().ok().filter(|count| *count > 0)?))
    }
}

/// Options of a mount. The default is what root gets: open to every user, permissions checked.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What `mount` and `df` show as the source.
    pub source: String,
    /// `ro`
    pub read_only: bool,
    /// `noatime`: reading never changes the access time.
    pub no_atime: bool,
    /// `nodev`: device nodes do nothing.
    pub no_dev: bool,
    /// `nosuid`: set-id bits have no effect.
    pub no_suid: bool,
    /// `noexec`: nothing can be executed.
    pub no_exec: bool,
    /// `sync`: every write is durable before it is answered.
    pub sync: bool,
    /// `dirsync`: every change of a name is durable before it is answered.
    pub dir_sync: bool,
    /// `allow_other`: other users may enter. `None`: as root yes, as a plain user no (there it
    /// takes `user_allow_other` in `/etc/fuse.conf`).
    pub allow_other: Option<bool>,
    /// Which file data the kernel may keep.
    pub cache: Cache,
    /// How long the kernel believes names and attributes without asking.
    pub valid: Duration,
    /// How long it believes attributes, if not as long as names.
    pub attr_valid: Option<Duration>,
    /// How long it believes that a name does not exist.
    pub negative_valid: Duration,
    /// Threads that serve the kernel, each with a port of its own.
    pub workers: usize,
    /// How far the kernel reads ahead of who reads in sequence, bytes: in requests side by side, so
    /// it is what hides how far away the volume's data lies. Only root's mounts get more than the
    /// kernel's default of 128 KiB.
    pub read_ahead: usize,
    /// With [`Cache::WriteBack`]: others may use the volume, too. They ask for what the kernel has
    /// collected, which takes root's right to open inodes by their handles.
    pub shares: bool,
    /// Bytes the kernel may have collected, with [`Cache::WriteBack`], before who writes waits; it
    /// begins to write at half of that. Only root's mounts get more than the kernel's default, 1 %
    /// of what may be dirty at all.
    pub collected_max: u64,
    /// For tests: this process dies when it reaches that point so many times.
    pub die_at: Option<(KillPoint, u64)>,
}

/// What stands for "for ever": a century. Only where the volume's events revoke it.
pub const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            source: "outboard".to_owned(),
            read_only: false,
            no_atime: false,
            no_dev: false,
            no_suid: false,
            no_exec: false,
            sync: false,
            dir_sync: false,
            allow_other: None,
            cache: Cache::Kernel,
            valid: FOREVER,
            attr_valid: None,
            negative_valid: FOREVER,
            workers: 2,
            read_ahead: IO_MAX,
            shares: false,
            collected_max: 64 << 20,
            die_at: None,
        }
    }
}

/// A mount option nobody knows here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOption(pub String);

impl std::fmt::Display for UnknownOption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "unknown mount option `{}`; known are rw, ro, atime, noatime, relatime, dev, nodev, \
             suid, nosuid, exec, noexec, sync, async, dirsync, allow_other, default_permissions",
            self.0
        )
    }
}

impl std::error::Error for UnknownOption {}

impl MountOptions {
    /// Takes options as `mount -o` writes them, separated by commas.
    ///
    /// # Errors
    /// The first option that is not known.
    pub fn apply(&mut self, list: &str) -> Result<(), UnknownOption> {
        for option in list.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            match option {
                "rw" => self.read_only = false,
                "ro" => self.read_only = true,
                "atime" | "relatime" => self.no_atime = false,
                "noatime" => self.no_atime = true,
                "dev" => self.no_dev = false,
                "nodev" => self.no_dev = true,
                "suid" => self.no_suid = false,
                "nosuid" => self.no_suid = true,
                "exec" => self.no_exec = false,
                "noexec" => self.no_exec = true,
                "async" => self.sync = false,
                "sync" => self.sync = true,
                "dirsync" => self.dir_sync = true,
                "allow_other" => self.allow_other = Some(true),
                // Permissions are always checked by the kernel.
                "default_permissions" => {}
                other => return Err(UnknownOption(other.to_owned())),
            }
        }
        Ok(())
    }

    /// What the kernel is told of a file opened with `flags`. One opened with `O_DIRECT` gets the
    /// kernel's direct path: there, writes of several threads do not wait for each other. So does
    /// one opened to append: where the file ends the volume knows, and the kernel's cache would put
    /// the bytes where it last saw the end.
    pub(crate) fn fopen_file(&self, flags: u32) -> u32 {
        let cached = match self.cache {
            Cache::Kernel => flags & (open_flags::DIRECT | open_flags::APPEND) == 0,
            // Here it is the kernel that knows where the file ends, and its way past its cache for
            // files that are not told to be direct is the one that moves their times.
            Cache::WriteBack => true,
            Cache::None | Cache::Hybrid => false,
        };
        let kept = if cached { fopen::KEEP_CACHE } else { fopen::DIRECT_IO };
        kept | fopen::PARALLEL_DIRECT_WRITES
    }

    /// What the kernel is told of an opened directory.
    pub(crate) fn fopen_directory(&self) -> u32 {
        match self.cache {
            Cache::None => 0,
            Cache::Kernel | Cache::WriteBack | Cache::Hybrid => {
                fopen::KEEP_CACHE | fopen::CACHE_DIR
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_taken_and_unknown_options_named() {
        let mut options = MountOptions::default();
        options.apply("ro,noatime, nodev,nosuid,noexec,dirsync,allow_other,").unwrap();
        assert!(options.read_only && options.no_atime && options.no_dev && options.no_suid);
        assert!(options.no_exec && options.dir_sync && options.allow_other == Some(true));
        options.apply("rw,dev,suid").unwrap();
        assert!(!options.read_only && !options.no_dev && !options.no_suid);
        let error = options.apply("rw,quiet").unwrap_err();
        assert_eq!(error, UnknownOption("quiet".to_owned()));
        assert!(error.to_string().contains("known are rw, ro"));
    }
}

//! The rival: a plain FUSE passthrough, which hands every operation to a directory of the local
//! file system in the same process. It is built on the `fuser` crate at its best settings: threads
//! with a clone of the device each, 1 MiB requests, inodes held by descriptor so that no path is
//! walked twice, no FLUSH, the kernel's caches with the same time-outs as the volume it is measured
//! against. A file opened with `O_DIRECT` is opened so in the source too: "direct" means the disk
//! on both sides of a comparison (the data of a write is copied once, to be aligned). Kernel
//! passthrough (`FUSE_PASSTHROUGH`) is off: it would leave nothing to compare.
//!
//! The source must not be changed by others while it is mounted, and should lie on one file system:
//! inode numbers are passed on.

mod buffer;
mod fs;
mod inodes;

use std::io;
use std::path::Path;
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, SessionACL};

use fs::Passthrough;

/// How the passthrough is mounted.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads, each with a clone of the device.
    pub threads: usize,
    /// How long the kernel believes names and attributes.
    pub valid: Duration,
    /// How long it believes that a name does not exist; zero: not at all.
    pub negative_valid: Duration,
    /// Bypass the kernel's page cache.
    pub direct_io: bool,
    /// Keep the page cache of a file across opens.
    pub keep_cache: bool,
    /// Let the kernel collect what is written in its page cache (`FUSE_WRITEBACK_CACHE`).
    pub write_back: bool,
}

impl Default for Options {
    /// What the volume's mount has by default: the kernel's caches, for as long as it likes.
    fn default() -> Self {
        let forever = Duration::from_secs(100 * 365 * 24 * 3600);
        Options {
            threads: 2,
            valid: forever,
            negative_valid: forever,
            direct_io: false,
            keep_cache: true,
            write_back: false,
        }
    }
}

/// A mounted passthrough; unmounted when dropped.
pub struct Mounted(BackgroundSession);

impl Mounted {
    /// Unmounts and waits for the threads.
    ///
    /// # Errors
    /// Files are open there, or a thread failed.
    pub fn unmount(self) -> io::Result<()> {
        self.0.umount_and_join()
    }
}

/// Mounts `source` at `mountpoint`.
///
/// # Errors
/// `source` cannot be opened, or the kernel does not mount.
pub fn mount(source: &Path, mountpoint: &Path, options: &Options) -> io::Result<Mounted> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("passthrough".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::Dev,
        MountOption::Suid,
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = true;
    fuser::spawn_mount(Passthrough::new(source, *options)?, mountpoint, &config).map(Mounted)
}

#[cfg(test)]
#[path = "../../../worlds/os/tests/skips/mod.rs"]
mod skips;
#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};

    use super::skips::note_skip;
    use super::*;

    /// What is written with O_DIRECT is the source's, and what O_DIRECT refuses there is refused
    /// here: proof that the source is opened so, where its file system knows O_DIRECT.
    fn direct_goes_to_the_disk(path: &Path, behind: &Path) {
        let direct = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed())
            .open(path);
        let Ok(direct) = direct else {
            note_skip("passthrough-direct", &format!("no O_DIRECT below {}", path.display()));
            return;
        };
        buffer::with(8192, |data| {
            data.fill(7);
            direct.write_all_at(data, 8192).unwrap();
            data.fill(0);
            direct.read_exact_at(data, 8192).unwrap();
            assert!(data.iter().all(|byte| *byte == 7));
            assert!(direct.write_all_at(&data[..100], 50).is_err(), "O_DIRECT takes no odd offset");
        });
        assert!(fs::read(behind).unwrap()[8192..16_384].iter().all(|byte| *byte == 7));
    }

    /// With write-back the kernel reads the page that a writer changes in part, also of a file that
    /// is open for writing alone, and says itself where appended bytes go.
    fn part_of_a_page_is_appended(path: &Path, behind: &Path) {
        use std::io::Write;
        fs::write(path, b"begun ").unwrap();
        let mut end = OpenOptions::new().append(true).open(path).unwrap();
        end.write_all(b"and ").unwrap();
        end.write_all(b"ended").unwrap();
        end.sync_all().unwrap();
        assert_eq!(fs::read(behind).unwrap(), b"begun and ended");
        fs::remove_file(path).unwrap();
    }

    /// Everything the workloads do, through the mount, checked in the source.
    #[test]
    fn what_is_done_at_the_mount_is_found_in_the_source() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            note_skip("passthrough", "mounting needs root and /dev/fuse");
            return;
        }
        for (keep_cache, write_back) in [(true, false), (false, false), (true, true)] {
            let options =
                Options { keep_cache, direct_io: !keep_cache, write_back, ..Options::default() };
            let (source, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let mounted = mount(source.path(), place.path(), &options).unwrap();
            let (at, behind) = (|n: &str| place.path().join(n), |n: &str| source.path().join(n));

            fs::create_dir(at("d")).unwrap();
            let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
            fs::write(at("d/f"), &data).unwrap();
            assert!(fs::read(behind("d/f")).unwrap() == data);
            assert!(fs::read(at("d/f")).unwrap() == data);
            let file = OpenOptions::new().read(true).write(true).open(at("d/f")).unwrap();
            file.write_all_at(b"changed", 1000).unwrap();
            file.sync_all().unwrap();
            assert_eq!(fs::read(behind("d/f")).unwrap()[1000..1007], *b"changed");
            direct_goes_to_the_disk(&at("d/f"), &behind("d/f"));
            part_of_a_page_is_appended(&at("a"), &behind("a"));
            file.set_len(10).unwrap();
            fs::set_permissions(at("d/f"), fs::Permissions::from_mode(0o640)).unwrap();
            let meta = fs::metadata(at("d/f")).unwrap();
            assert_eq!((meta.len(), meta.mode() & 0o7777), (10, 0o640));
            assert_eq!(fs::metadata(behind("d/f")).unwrap().mode(), meta.mode());

            for i in 0..3000 {
                File::create(at(&format!("d/{i}"))).unwrap();
            }
            assert_eq!(fs::read_dir(at("d")).unwrap().count(), 3001);
            assert!(!at("absent").exists());
            fs::rename(at("d/7"), at("absent")).unwrap();
            assert!(at("absent").exists() && behind("absent").exists() && !at("d/7").exists());
            symlink("d/f", at("s")).unwrap();
            assert_eq!(fs::read(at("s")).unwrap().len(), 10);
            fs::hard_link(at("s"), at("t")).unwrap();
            fs::remove_file(at("d/f")).unwrap();
            assert!(!behind("d/f").exists());
            let mut back = [0; 10];
            file.read_exact_at(&mut back, 0).unwrap();
            drop(file);
            assert!(fs::remove_dir(at("d")).is_err());
            assert!(fs::remove_dir_all(at("d")).is_ok());
            assert!(rustix::fs::statvfs(place.path()).unwrap().f_blocks > 0);
            mounted.unmount().unwrap();
            assert!(!at("s").exists() && behind("s").is_symlink());
        }
    }
}

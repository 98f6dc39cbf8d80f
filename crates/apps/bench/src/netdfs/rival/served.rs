//! Other distributed file systems: what they are, and one that is served.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::dds::process::is_installed;

/// Another distributed file system. A script starts one volume of it with three copies of each
/// file, mounts it, and ends all when its standard input ends.
#[derive(Debug, PartialEq, Eq)]
pub struct Rival {
    /// What a flag and verdicts call it.
    pub flag: &'static str,
    /// Its name.
    pub name: &'static str,
    /// When writes are answered.
    pub promise: &'static str,
    /// The programs it takes; the first tells the version.
    programs: &'static [&'static str],
    /// How they come to be installed.
    remedy: &'static str,
    /// What starts it, up to the directory it is to use.
    command: &'static [&'static str],
}

/// GlusterFS, replica 3.
pub const GLUSTER: Rival = Rival {
    flag: "gluster",
    name: "GlusterFS",
    promise: "a direct write is answered when the systems of all three have it, with O_DSYNC, as \
              fsync, when their disks have it",
    programs: &["glusterd", "glusterfs"],
    remedy: "scripts/gluster install",
    command: &["sh", "-c", include_str!("../../../../../../scripts/gluster"), "gluster", "serve"],
};

/// CephFS, its pools of size 3. It has ports of its own: a network namespace.
pub const CEPHFS: Rival = Rival {
    flag: "cephfs",
    name: "CephFS",
    promise: "a direct write is answered when the systems of all three have it, of CephFS when \
              their disks have it; with O_DSYNC, as fsync, both when their disks have it",
    programs: &["ceph-osd", "ceph-mon", "ceph-mgr", "ceph-mds", "ceph-fuse", "ceph"],
    remedy: "scripts/setup bench",
    command: &[
        "unshare",
        "--net",
        "sh",
        "-c",
        include_str!("../../../../../../scripts/cluster"),
        "cluster",
        "serve",
    ],
};

impl Rival {
    /// Says what is in the way of starting it.
    ///
    /// # Errors
    /// A program is not installed; whoever asks is not root.
    pub(super) fn can_serve(&self) -> io::Result<()> {
        let missing = self.programs.iter().find(|program| !is_installed(program, "--version"));
        if let Some(program) = missing {
            return Err(io::Error::other(format!(
                "{} is not installed, there is no {program}; `{}`, as root, installs Debian's",
                self.name, self.remedy
            )));
        }
        if !rustix::process::geteuid().is_root() {
            let told = format!("only root can start {}: run this as root", self.name);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, told));
        }
        Ok(())
    }

    /// Its version, as it says itself.
    pub(super) fn version(&self) -> String {
        let output = self.programs.first().map(|one| Command::new(one).arg("--version").output());
        let text = output.and_then(Result::ok).map(|output| output.stdout).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        // Ceph's goes on with what it was built from.
        let line = text.lines().next().unwrap_or(self.name);
        format!("Debian's {}", line.split(" (").next().unwrap_or(line))
    }
}

/// A rival's volume that is served; it ends with this.
pub(super) struct Served {
    child: Child,
    /// Where it is mounted.
    pub(super) mount: PathBuf,
    /// Its processes, by what they are.
    pub(super) processes: Vec<(String, u32)>,
}

impl Served {
    /// Starts one in `dir`, and waits until it is mounted.
    pub(super) fn start(rival: &Rival, dir: &Path) -> io::Result<Served> {
        let mut words = rival.command.iter();
        let mut command = Command::new(words.next().ok_or(io::ErrorKind::InvalidInput)?);
        command.args(words).arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        let mut served = Served { child, mount: dir.join("mnt"), processes: Vec::new() };
        for line in BufReader::new(output).lines() {
            let line = line?;
            if line == "ready" {
                return Ok(served);
            }
            let words: Vec<&str> = line.split(' ').collect();
            if let ["pid", side, pid] = words[..] {
                let pid = pid.parse().map_err(io::Error::other)?;
                served.processes.push((side.to_owned(), pid));
            }
        }
        Err(io::Error::other(format!("{} did not start", rival.name)))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It bounds what it waits for itself.
        if let Err(error) = self.child.wait() {
            eprintln!("outboard: {error}");
        }
    }
}

//! Hosts and nodes that the network is cut from: two hosts in network namespaces of their own.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::command::wait_until;
use crate::{Result, Volume, context};

/// A host's lease is over then, and what it kept from others is theirs.
const LEASE: Duration = Duration::from_secs(11);
/// How much later than it must anything may happen, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long something is watched that must not happen.
const WATCHED: Duration = Duration::from_secs(2);
const LEN: usize = 4096;

/// What is missing to cut anything here.
#[must_use]
pub fn missing() -> Option<&'static str> {
    let runs = |program: &str| {
        let found = Command::new(program)
            .arg("--version")
            .output()
            .or_else(|_| Command::new(program).arg("-V").output());
        found.is_ok_and(|found| found.status.success())
    };
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root");
    }
    if !runs("nsenter") {
        return Some("no program `nsenter`");
    }
    let can = Command::new("unshare").args(["--net", "ip", "link"]).output();
    let can = can.is_ok_and(|can| can.status.success());
    (!can).then_some("no network namespaces here")
}

fn spaces() -> Vec<String> {
    let all = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// None of these is there.
///
/// # Errors
/// One is.
pub fn gone(of: &[String]) -> Result<()> {
    let all = spaces();
    match of.iter().find(|space| all.contains(space)) {
        Some(left) => Err(format!("the namespace {left} is left over")),
        None => Ok(()),
    }
}

/// A cluster that does not start takes its namespaces with it.
///
/// # Errors
/// It leaves some, or starts.
pub fn leaves_nothing(dir: &Path) -> Result<()> {
    context(fs::create_dir_all(dir), || format!("cannot make {}", dir.display()))?;
    // Where the server's directory should be is a file.
    context(fs::write(dir.join("meta"), b""), || "cannot write a file".to_owned())?;
    let before = spaces();
    if Cluster::up_with(dir, &["--nodes=1", "--netns"]).is_ok() {
        return Err("a cluster started whose server has no directory".to_owned());
    }
    let left = spaces().into_iter().find(|space| !before.contains(space));
    left.map_or(Ok(()), |left| Err(format!("a cluster that failed left {left}")))
}

fn write(path: &Path, byte: u8) -> Result<()> {
    let written = fs::write(path, vec![byte; LEN]);
    context(written, || format!("cannot write {}", path.display()))
}

/// The byte that the file is of.
fn read(path: &Path) -> Result<u8> {
    let bytes = context(fs::read(path), || format!("cannot read {}", path.display()))?;
    match bytes.first() {
        Some(first) if bytes.len() == LEN && bytes.iter().all(|byte| byte == first) => Ok(*first),
        _ => Err(format!("{} is torn", path.display())),
    }
}

/// Something that may wait for the network.
struct Beside<T>(JoinHandle<T>);

impl<T: Send + 'static> Beside<T> {
    fn start(work: impl FnOnce() -> T + Send + 'static) -> Beside<T> {
        Beside(thread::spawn(work))
    }

    /// Whether it ends within `limit`.
    fn ends(&self, limit: Duration) -> bool {
        wait_until(limit, || self.0.is_finished())
    }

    fn end(self, what: &str) -> Result<T> {
        if !self.ends(LEASE + PATIENCE) {
            return Err(format!("{what} does not end"));
        }
        self.0.join().map_err(|_| format!("{what} panicked"))
    }
}

/// A host that the server does not hear for longer than its lease: others get what it kept, it
/// shows nothing that is old and writes over nothing that is newer, and it goes on afterwards.
///
/// # Errors
/// It is not so.
pub fn host(cluster: &Cluster, one: &Volume, other: &Volume) -> Result<()> {
    let [here, there] = [one, other].map(Volume::mountpoint);
    let at = |mount: &PathBuf, name: &str| mount.join(name);
    for name in ["page", "own"] {
        write(&at(&here, name), b'a')?;
        read(&at(&here, name))?;
    }
    let own = File::options().write(true).open(at(&here, "own"));
    let own = context(own, || "cannot open a file".to_owned())?;
    context(own.write_all_at(&[b'A'; LEN], 0), || "cannot write".to_owned())?;
    context(own.sync_all(), || "cannot sync".to_owned())?;

    cluster.does("cut", &["host.1", "--from=meta"])?;
    let start = Instant::now();
    for name in ["page", "own"] {
        write(&at(&there, name), b'b')?;
    }
    let took = start.elapsed();
    if took > LEASE + PATIENCE {
        return Err(format!("another host waits {took:?} for a lease of {LEASE:?}"));
    }
    println!("  a host is cut off: another writes its files after {:.1} s", took.as_secs_f64());
    let page = at(&here, "page");
    let reads = Beside::start(move || read(&page));
    let writes = Beside::start(move || {
        let written = own.write_all_at(&[b'c'; LEN], 0).and_then(|()| own.sync_all());
        written.is_ok()
    });
    if reads.ends(WATCHED) {
        match reads.0.join() {
            Ok(Ok(b'a')) => return Err("a host without a lease shows what is old".to_owned()),
            Ok(Ok(_)) => return Err("a host without a lease shows what it cannot know".to_owned()),
            Ok(Err(_)) | Err(_) => return Err("a read fails where it should wait".to_owned()),
        }
    }
    for name in ["page", "own"] {
        if read(&at(&there, name))? != b'b' {
            return Err(format!("a host without a lease wrote over {name}"));
        }
    }

    cluster.does("heal", &["host.1", "--from=meta"])?;
    let healed = Instant::now();
    if reads.end("a read")?? != b'b' {
        return Err("a host that is back shows what is old".to_owned());
    }
    let is_written = writes.end("a write")?;
    let both = [read(&at(&here, "own"))?, read(&at(&there, "own"))?];
    // Refused, or done after the other host's.
    if both != [if is_written { b'c' } else { b'b' }; 2] {
        return Err(format!("a late write was answered {is_written}, and both show {both:?}"));
    }
    for (mount, byte) in [(&here, b'x'), (&there, b'y')] {
        write(&at(mount, "page"), byte)?;
        if [read(&at(&here, "page"))?, read(&at(&there, "page"))?] != [byte; 2] {
            return Err("hosts do not see each other's writes any more".to_owned());
        }
    }
    let (late, again) = (if is_written { "done" } else { "refused" }, healed.elapsed());
    println!("  it is back: its late write is {late}, all goes on within {again:.1?}");
    Ok(())
}

/// A node whose cable is cut: what needs it waits, and goes on.
///
/// # Errors
/// It is not so.
pub fn node(cluster: &Cluster, host: &Volume) -> Result<()> {
    let path = host.mountpoint().join("long");
    cluster.does("cut", &["node.1"])?;
    let written = path.clone();
    let writes = Beside::start(move || {
        // Over both nodes.
        let file = fs::write(&written, vec![b'l'; 256 << 10]).and_then(|()| File::open(&written));
        file.and_then(|file| file.sync_all())
    });
    if writes.ends(WATCHED) {
        return Err("a write ends whose node is cut off".to_owned());
    }
    cluster.does("heal", &["node.1"])?;
    let healed = Instant::now();
    context(writes.end("a write")?, || "a write whose node was cut off".to_owned())?;
    println!("  a node is cut off and back: a write goes on after {:.1?}", healed.elapsed());
    let found = context(fs::read(&path), || "cannot read".to_owned())?;
    if found == vec![b'l'; 256 << 10] { Ok(()) } else { Err("bytes are lost".to_owned()) }
}

//! Clients of a shared volume of each kind, and what none may show of which it is.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::command::wait_until;
use crate::{Result, Volume, context};

const O_DIRECT: i32 = 0o40000;
const PAGE: usize = 4096;
/// How long a kernel may take a name for what it was.
const NAMES: Duration = Duration::from_secs(5);

/// Memory for direct I/O.
#[repr(align(4096))]
struct Page([u8; PAGE]);

fn io(what: &'static str) -> impl FnOnce() -> String {
    move || what.to_owned()
}

/// What one client does alone: direct I/O, appends, a rename over a file; and all others read it.
pub fn alone(mount: &Path, name: &str, others: &[PathBuf]) -> Result<()> {
    let path = mount.join(name);
    let mut block = Box::new(Page([0; PAGE]));
    block.0.iter_mut().zip(name.bytes().cycle()).for_each(|(byte, of_name)| *byte = of_name);
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).custom_flags(O_DIRECT);
    let file = context(options.open(&path), io("open"))?;
    for at in [0, 16, 3] {
        context(file.write_all_at(&block.0, at * PAGE as u64), io("a direct write"))?;
    }
    let mut read = Box::new(Page([0; PAGE]));
    context(file.read_exact_at(&mut read.0, 3 * PAGE as u64), io("a direct read"))?;
    if read.0 != block.0 {
        return Err("other bytes than were written directly".to_owned());
    }
    drop(file);
    let appended = OpenOptions::new().append(true).open(&path);
    let mut appended = context(appended, io("open to append"))?;
    for record in 0..20 {
        context(writeln!(appended, "{name} {record}"), io("an append"))?;
    }
    context(fs::write(mount.join("old"), name), io("a file to be replaced"))?;
    context(fs::rename(mount.join("old"), mount.join("named")), io("a rename"))?;
    let whole = context(fs::read(&path), io("reading all"))?;
    let end = format!("{name} 18\n{name} 19\n");
    if !whole.ends_with(end.as_bytes()) || whole.len() < 17 * PAGE {
        return Err(format!(
            "a file of {} bytes that does not end as it was appended",
            whole.len()
        ));
    }
    for other in others {
        let seen = context(fs::read(other.join(name)), io("the file, elsewhere"))?;
        let is_named = || fs::read(other.join("named")).is_ok_and(|text| text == name.as_bytes());
        if seen != whole || !wait_until(NAMES, is_named) {
            return Err(format!("{} shows other bytes or names", other.display()));
        }
    }
    Ok(())
}

/// The server dies: clients begin another life under open files, with what was written and locked.
pub fn another_life(cluster: &Cluster, all: &[Volume]) -> Result<()> {
    let mut held = Vec::new();
    for (n, volume) in all.iter().enumerate() {
        let path = volume.mountpoint().join(format!("held-{n}"));
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = context(options.open(path), io("open"))?;
        context(file.write_all(b"before "), io("a write"))?;
        context(file.lock(), io("a lock"))?;
        held.push(file);
    }
    cluster.kill("meta")?;
    for (n, file) in held.iter_mut().enumerate() {
        context(file.write_all(b"after"), io("a write, after"))?;
        context(file.sync_all(), io("a sync, after"))?;
        let next = all[(n + 1) % all.len()].mountpoint().join(format!("held-{n}"));
        let other = context(File::open(&next), io("open elsewhere, after"))?;
        if other.try_lock().is_ok() {
            return Err(format!("{} is not locked any more", next.display()));
        }
        let text = context(fs::read(&next), io("a read elsewhere, after"))?;
        if text != b"before after" {
            return Err(format!(
                "{:?} instead of what was written",
                String::from_utf8_lossy(&text)
            ));
        }
    }
    Ok(())
}

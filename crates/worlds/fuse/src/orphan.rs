//! Mounts whose process was killed and cannot end. To tell the kernel that a page is stale waits
//! for whoever has the page locked; if that one waits for an answer of the same process, the thread
//! that tells outlives a kill -9, keeps the connection open, and everybody who asks the mount for
//! something waits for ever.

use std::fs;
use std::path::PathBuf;

/// Threads that tell the kernel.
const TELLING: [&str; 4] = ["fuse-notify", "fuse-recall", "fuse-ask", "fuse-mend"];

/// Whether a process is dead, if need be but for threads that the kernel holds and that answer
/// nothing any more.
#[must_use]
pub fn is_dead(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    is_zombie(&stat)
        && tasks(pid).iter().all(|task| {
            let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
            let stat = fs::read_to_string(task.join("stat"));
            stat.map_or(true, |stat| is_zombie(&stat)) || TELLING.contains(&name.trim())
        })
}

/// Whether somebody holds the connection `number`, and all who do are dead. No on kernels that do
/// not say who holds one (`fuse_connection` in `fdinfo`).
pub(crate) fn is_orphaned(number: &str) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    let all: Vec<u32> =
        processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // Few are dead and still there: the others are looked at only if one of those holds it.
    let (dead, alive): (Vec<u32>, Vec<u32>) = all.into_iter().partition(|pid| is_dead(*pid));
    let holds = |pid: &u32| holds(*pid, number);
    dead.iter().any(holds) && !alive.iter().any(holds)
}

/// Whether a process has a descriptor of the connection. The first of its threads may be gone, and
/// the descriptors still there.
fn holds(pid: u32, number: &str) -> bool {
    let says = |info: String| {
        let mut words = info.lines().filter_map(|line| line.strip_prefix("fuse_connection:"));
        words.any(|found| found.trim() == number)
    };
    tasks(pid).iter().any(|task| {
        let files = fs::read_dir(task.join("fdinfo")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_to_string(file.path()).ok()).any(says)
    })
}

fn tasks(pid: u32) -> Vec<PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    tasks.filter_map(|task| Some(task.ok()?.path())).collect()
}

/// The state stands behind the name, which may hold anything.
fn is_zombie(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

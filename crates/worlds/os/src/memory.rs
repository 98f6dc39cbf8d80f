//! How much memory there is for this process.

use std::path::Path;

/// Where control groups are mounted: of the first version the one that limits memory, else the
/// second.
const ROOTS: [(&str, &str, &str); 2] = [
    ("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ("", "/sys/fs/cgroup", "memory.max"),
];

/// Bytes of memory that the machine has, or that a control group around this process lets it and
/// others have: the least of these.
#[must_use]
pub fn bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let total = info.totalram.saturating_mul(u64::from(info.mem_unit));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    groups.lines().flat_map(limits).fold(total, u64::min)
}

/// What a line of `/proc/self/cgroup` (`NUMBER:CONTROLLERS:PATH`) stands for: the limits of that
/// group and of those around it. In a container the path may name what is not mounted there, and
/// the limit is that of the root.
fn limits(line: &str) -> Vec<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return Vec::new() };
    let is_of = |(name, ..): &(&str, &str, &str)| controllers.split(',').any(|one| one == *name);
    let Some((_, root, file)) = ROOTS.into_iter().find(is_of) else { return Vec::new() };
    let groups = Path::new(path.trim_start_matches('/')).ancestors();
    let read = |group: &Path| {
        let text = std::fs::read_to_string(Path::new(root).join(group).join(file)).ok()?;
        // "max" is none.
        text.trim().parse().ok()
    };
    groups.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_some_and_nonsense_limits_nothing() {
        assert!(bytes() > 1 << 20);
        for line in ["", ":", "1:cpu:/x", "7:memory", "0::/no/such/group/anywhere/at/all/../.."] {
            assert!(limits(line).iter().all(|limit| *limit > 0), "{line}");
        }
    }
}

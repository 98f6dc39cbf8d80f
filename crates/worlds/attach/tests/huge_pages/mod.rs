//! Regions of huge pages: part of the test program `link`.

use std::sync::atomic::Ordering;

use outboard_attach::link::HostMemory;
use outboard_base::SessionId;
use outboard_os::shm::Shared;

use crate::DpuProcess;
use crate::Host;
use crate::place;
use crate::skips::note_skip;

/// Huge pages of this computer, put aside while this lives.
struct Aside {
    before: u64,
    size: u64,
}

impl Aside {
    const COUNT: &str = "/proc/sys/vm/nr_hugepages";

    /// `None` where that cannot be had.
    fn new(bytes: u64) -> Option<Aside> {
        let before = std::fs::read_to_string(Aside::COUNT).ok()?.trim().parse().ok()?;
        let aside = Aside { before, size: Aside::memory("Hugepagesize:")? << 10 };
        let wanted = before + bytes / aside.size;
        std::fs::write(Aside::COUNT, wanted.to_string()).ok()?;
        (aside.free()? >= bytes).then_some(aside)
    }

    /// A number of `/proc/meminfo`.
    fn memory(name: &str) -> Option<u64> {
        let all = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = all.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }

    /// Bytes free and promised to nobody.
    fn free(&self) -> Option<u64> {
        let promised = Aside::memory("HugePages_Rsvd:")?;
        Some(Aside::memory("HugePages_Free:")?.saturating_sub(promised) * self.size)
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        std::fs::write(Aside::COUNT, self.before.to_string()).unwrap();
    }
}

/// Bytes of the pages of each mapping of a memfd of this name.
fn page_sizes(name: &str) -> Vec<u64> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines();
    let mut sizes = Vec::new();
    while lines.any(|line| line.contains(name)) {
        let size = lines.find(|line| line.starts_with("KernelPageSize:")).unwrap();
        sizes.push(size.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10);
    }
    sizes
}

/// The memory of a host. Whatever else runs on this computer may take what was put aside: this
/// failed once beside another test that did.
fn of_huge_pages(aside: &Aside) -> HostMemory {
    let mut more = Vec::new();
    loop {
        let memory = HostMemory::create_with(SessionId(9), 1, 8, None, true).unwrap();
        if page_sizes("outboard-host").contains(&aside.size) {
            return memory;
        }
        assert!(more.len() < 5, "{} bytes of huge pages are free", aside.free().unwrap());
        more.extend(Aside::new(64 << 20));
    }
}

#[test]
fn a_region_is_of_huge_pages_where_there_are_any() {
    let Some(aside) = Aside::new(64 << 20) else {
        return note_skip("attach-huge-pages", "no huge pages can be put aside here");
    };
    let free = aside.free().unwrap();
    let large = Shared::create_large("of-huge-pages", 8 << 20).unwrap();
    assert_eq!(page_sizes("of-huge-pages"), [aside.size]);
    assert!(aside.free().unwrap() < free, "they are promised before they are touched");
    // From a stranger they are refused: one that is taken out again could be wanting.
    let fd = || large.fd().try_clone_to_owned().unwrap();
    assert!(Shared::open(fd(), 8 << 20).is_err());
    let there = Shared::open_of_trusted(fd(), 8 << 20).unwrap();
    large.region().store_u64((8 << 20) - 8, 42, Ordering::Release).unwrap();
    assert_eq!(there.region().load_u64((8 << 20) - 8, Ordering::Acquire), Ok(42));
    assert!(Shared::open_of_trusted(fd(), 1 << 30).is_err(), "short");
    // A length that is no number of huge pages; and more than there are.
    let odd = Shared::create_large("of-odd-length", (2 << 20) + 4096).unwrap();
    assert_eq!(odd.region().len(), (2 << 20) + 4096);
    assert_eq!(page_sizes("of-odd-length"), [aside.size]);
    drop(odd);
    let more = aside.free().unwrap() + aside.size;
    let ordinary = Shared::create_large("of-ordinary-pages", more).unwrap();
    assert_eq!(page_sizes("of-ordinary-pages"), [4096]);
    drop(ordinary);

    // And a link over such a region, whose DPU side is another process of the same user.
    let place = place();
    let _dpu = DpuProcess::start(&place.socket);
    let memory = of_huge_pages(&aside);
    let mut host = Host::over(&place.socket, memory);
    for _ in 0..20 {
        host.echo(0, 8192);
    }
}

//! Clients that do much at the same time: each page of a file is a register, and a read finds a
//! write that was not over-written before it began. Appends lie one behind the other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outboard_base::{Rng, Time};
use outboard_wire::file::write_flags;

use crate::host::Host;
use crate::world::{Rig, seeds, start};

const PAGE: u64 = 8192;
const PAGES: u64 = 24;

/// A write of some pages: begun, and ended.
struct Written {
    pages: std::ops::Range<u64>,
    begun: Time,
    ended: Option<Time>,
}

#[derive(Default)]
struct History {
    writes: BTreeMap<u64, Written>,
    next: u64,
    reads: u64,
}

fn page_of(id: u64) -> Vec<u8> {
    id.to_le_bytes().repeat(PAGE as usize / 8)
}

impl History {
    /// Whether a page may hold what write `id` (0: nothing) wrote, to a read of then until now.
    fn allows(&self, page: u64, id: u64, begun: Time, now: Time) -> bool {
        let of_page = |written: &&Written| written.pages.contains(&page);
        let before = |time: Time| {
            // Over-written: by a write that began after it had ended, and ended before the read.
            self.writes
                .values()
                .filter(of_page)
                .any(|other| other.begun > time && other.ended.is_some_and(|ended| ended < begun))
        };
        match self.writes.get(&id) {
            Some(written) => {
                written.pages.contains(&page)
                    && written.begun <= now
                    && !written.ended.is_some_and(before)
            }
            None => id == 0 && !before(Time(0)),
        }
    }
}

async fn work(host: Host, history: Arc<Mutex<History>>, seed: u64, steps: u64) {
    let mut rng = Rng::new(seed);
    let (attr, fh) = host.open(b"registers", 0).await.unwrap();
    for _ in 0..steps {
        let first = rng.below(PAGES);
        let count = 1 + rng.below((PAGES - first).min(12));
        let (at, pages) = (first * PAGE, first..first + count);
        let begun = host.world.time();
        if rng.chance(1, 2) {
            let id = {
                let mut history = history.lock().unwrap();
                history.next += 1;
                let id = history.next;
                history.writes.insert(id, Written { pages, begun, ended: None });
                id
            };
            let data = page_of(id).repeat(count as usize);
            host.write((attr.ino, fh), at, 0, data).await.unwrap();
            let ended = Some(host.world.time());
            history.lock().unwrap().writes.get_mut(&id).unwrap().ended = ended;
        } else {
            let read = host.read((attr.ino, fh), at, (count * PAGE) as u32).await.unwrap();
            let now = host.world.time();
            let mut history = history.lock().unwrap();
            history.reads += 1;
            for (page, bytes) in pages.zip(read.chunks(PAGE as usize)) {
                let id = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                assert!(id == 0 || bytes == page_of(id), "page {page} is of two writes");
                let who = host.number;
                assert!(history.allows(page, id, begun, now), "{who}: page {page} has {id}");
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    None,
    Kill,
    Cut,
}

fn walk(seed: u64, trouble: Trouble) -> u64 {
    println!("OUTBOARD_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut rig = Rig::new(seed);
    let history = Arc::new(Mutex::new(History::default()));
    let first = Host::new(&mut rig, 1);
    let made = first.clone();
    rig.wait(first.peer(), async move {
        let (attr, fh) = made.open(b"registers", 0).await.unwrap();
        // All pages are there, so that a read is never short.
        made.write((attr.ino, fh), PAGES * PAGE - 1, 0, vec![0]).await.unwrap();
    });
    if rng.chance(2, 3) {
        rig.faults(15, 15);
    }
    let mut slots = Vec::new();
    let mut hosts = vec![first];
    hosts.extend((2..4).map(|number| Host::new(&mut rig, number)));
    for host in &hosts {
        for _ in 0..2 {
            let work = work(host.clone(), Arc::clone(&history), rng.next_u64(), 25);
            slots.push((host.number, start(host.peer(), work)));
        }
    }
    if trouble == Trouble::Cut {
        rig.pass(Duration::from_millis(rng.below(1500)));
        let victim = hosts[rng.below(3) as usize].peer();
        rig.cut(victim, true);
        rig.pass(Duration::from_millis(rng.below(25_000)));
        rig.cut(victim, false);
    }
    if trouble == Trouble::Kill {
        rig.pass(Duration::from_millis(rng.below(1500)));
        let victim = 1 + rng.below(3);
        rig.kill(victim);
        slots.retain(|(number, _)| *number != victim);
        let next = Host::new(&mut rig, 9);
        let work = work(next.clone(), Arc::clone(&history), rng.next_u64(), 25);
        slots.push((9, start(next.peer(), work)));
    }
    for (_, slot) in slots {
        rig.until(&slot);
    }
    history.lock().unwrap().reads
}

#[test]
fn reads_see_the_last_write_of_any_client() {
    let reads: u64 = seeds(5).into_iter().map(|seed| walk(seed, Trouble::None)).sum();
    assert!(reads > 20);
}

#[test]
fn a_client_that_dies_leaves_its_pages_whole_or_as_they_were() {
    for seed in seeds(2) {
        walk(seed, Trouble::Kill);
    }
}

/// Its lease may end meanwhile, and others take what it had.
#[test]
fn a_client_that_is_cut_off_for_a_while_goes_on() {
    for seed in seeds(1) {
        walk(seed, Trouble::Cut);
    }
}

/// The oracle says no.
#[test]
fn what_was_over_written_is_not_allowed() {
    let at = |ms: u64| Time(ms * 1_000_000);
    let written = |begun, ended| Written { pages: 0..2, begun: at(begun), ended: Some(at(ended)) };
    let mut history = History::default();
    history.writes.insert(1, written(10, 20));
    history.writes.insert(2, written(30, 40));
    assert!(history.allows(0, 2, at(50), at(60)) && !history.allows(0, 1, at(50), at(60)));
    assert!(history.allows(1, 1, at(35), at(60)) && !history.allows(2, 1, at(35), at(60)));
    assert!(!history.allows(0, 0, at(50), at(60)) && history.allows(0, 0, at(15), at(60)));
    assert!(!history.allows(0, 2, at(5), at(25)), "it had not begun");
}

#[test]
fn appends_lie_one_behind_the_other() {
    for seed in seeds(5) {
        println!("OUTBOARD_SEED={seed}");
        let mut rig = Rig::new(seed);
        let mut rng = Rng::new(seed);
        let hosts: Vec<Host> = (1..4).map(|number| Host::new(&mut rig, number)).collect();
        if seed % 2 == 1 {
            rig.faults(15, 15);
        }
        let mut slots = Vec::new();
        for host in &hosts {
            for _ in 0..2 {
                let (host, seed) = (host.clone(), rng.next_u64());
                slots.push(start(host.peer(), async move {
                    let mut rng = Rng::new(seed);
                    let (attr, fh) = host.open(b"log", 0).await.unwrap();
                    let mut all = Vec::new();
                    for _ in 0..10 {
                        let mut line = vec![0; 20 + rng.below(90_000) as usize];
                        rng.fill(&mut line);
                        let flags = write_flags::APPEND;
                        host.write((attr.ino, fh), 0, flags, line.clone()).await.unwrap();
                        all.push(line);
                    }
                    all
                }));
            }
        }
        let lines: Vec<Vec<u8>> = slots.iter().flat_map(|slot| rig.until(slot)).collect();
        let total: usize = lines.iter().map(Vec::len).sum();
        let host = hosts[0].clone();
        let file = rig.wait(hosts[0].peer(), async move {
            let (attr, fh) = host.open(b"log", 0).await.unwrap();
            assert_eq!(attr.size, total as u64);
            let mut all = Vec::new();
            while all.len() < total {
                all.extend(host.read((attr.ino, fh), all.len() as u64, 1 << 20).await.unwrap());
            }
            all
        });
        let mut at = 0;
        let mut left = lines;
        while at < file.len() {
            let found = left.iter().position(|line| file[at..].starts_with(line)).unwrap();
            at += left.swap_remove(found).len();
        }
        assert!(left.is_empty());
    }
}

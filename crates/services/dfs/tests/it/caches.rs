//! Hosts that cache pages, as a model: a page is written where the right to was granted, and
//! written back when it is asked for.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use outboard_base::{Ino, Rng};
use outboard_volume::Volume;

use crate::host::Host;
use crate::world::{Rig, seeds, spawn};

/// What the cache of one host has of one file.
#[derive(Default)]
struct Cache {
    granted: bool,
    /// A counter in the first bytes, not written back.
    dirty: Option<u64>,
    /// Somebody works with the file, as under a range lock.
    locked: bool,
}

struct Lock(Rc<RefCell<Cache>>);

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.borrow_mut().locked = false;
    }
}

async fn lock(cache: &Rc<RefCell<Cache>>) -> Lock {
    std::future::poll_fn(|_| {
        let was_locked = std::mem::replace(&mut cache.borrow_mut().locked, true);
        if was_locked { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    Lock(Rc::clone(cache))
}

async fn write_back(host: &Host, ino: Ino, cache: &Rc<RefCell<Cache>>) {
    let dirty = cache.borrow_mut().dirty.take();
    if let Some(count) = dirty {
        let runs: [(u64, &[u8]); 1] = [(0, &count.to_le_bytes())];
        let now = host.world.wall();
        host.client.write_back(host.session, ino, &runs, Some(now)).await.unwrap();
    }
}

/// Adds one to the counter, in the cache if it may.
async fn count(host: &Host, file: (Ino, outboard_base::Fh), cache: &Rc<RefCell<Cache>>) {
    let _lock = lock(cache).await;
    let ino = file.0;
    while !cache.borrow().granted {
        // As coherence does: nothing is cached, then it is asked for.
        host.client.recalled(ino, false);
        host.client.hold(ino).await.unwrap();
        let (_, may_write) = host.client.cacheable(ino).await.unwrap();
        if !may_write {
            continue;
        }
        cache.borrow_mut().granted = true;
        let read = host.read(file, 0, 8).await.unwrap();
        let count = u64::from_le_bytes(read.try_into().unwrap());
        cache.borrow_mut().dirty = Some(count);
    }
    let mut cache = cache.borrow_mut();
    // Written back before, it is the same in the file.
    cache.dirty = cache.dirty.map(|count| count + 1);
}

/// Counts a dozen times; how often in the cache.
async fn counts(host: Host, cache: Rc<RefCell<Cache>>, seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let (attr, fh) = host.open(b"f", 0).await.unwrap();
    let mut cached = 0;
    for _ in 0..12 {
        cached += u64::from(cache.borrow().granted);
        count(&host, (attr.ino, fh), &cache).await;
        let until = host.world.time().after(Duration::from_millis(rng.below(300)));
        std::future::poll_fn(|_| match host.world.time() >= until {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        })
        .await;
    }
    cached
}

/// A host that had given its pages up was granted new ones before the recall went on, and nobody
/// asked for those: all waited for each other. Since then nothing is granted from the last page on.
#[test]
fn hosts_count_together_in_their_caches() {
    let mut in_cache = 0;
    for seed in seeds(10) {
        println!("OUTBOARD_SEED={seed}");
        let mut rig = Rig::new(seed);
        let mut rng = Rng::new(seed);
        let hosts: Vec<Host> = (1..4).map(|number| Host::new(&mut rig, number)).collect();
        let first = hosts[0].clone();
        let made = rig.wait(first.peer(), async move {
            let (attr, fh) = first.open(b"f", 0).await.unwrap();
            first.write((attr.ino, fh), 0, 0, vec![0; 8]).await.unwrap();
            attr.ino
        });
        let caches: Vec<Rc<RefCell<Cache>>> = hosts.iter().map(|_| Rc::default()).collect();
        let (asked_hosts, asked) = (hosts.clone(), caches.clone());
        rig.pages = Some(Box::new(move |number, ino, keep_read| {
            let at = number as usize - 1;
            let (host, cache) = (asked_hosts[at].clone(), Rc::clone(&asked[at]));
            spawn(host.peer(), async move {
                let _lock = lock(&cache).await;
                write_back(&host, ino, &cache).await;
                cache.borrow_mut().granted = false;
                host.client.recalled(ino, keep_read);
            });
        }));
        if seed % 2 == 1 {
            rig.faults(10, 10);
        }
        let mut slots = Vec::new();
        for (host, cache) in hosts.iter().zip(&caches) {
            let (host, cache, seed) = (host.clone(), Rc::clone(cache), rng.next_u64());
            slots.push(crate::world::start(host.peer(), counts(host, cache, seed)));
        }
        for slot in &slots {
            in_cache += rig.until(slot);
        }
        // Each reads: what is dirty anywhere is written back for it.
        for host in &hosts {
            let reader = host.clone();
            let cache = Rc::clone(&caches[host.number as usize - 1]);
            let read = rig.wait(host.peer(), async move {
                {
                    let _lock = lock(&cache).await;
                    write_back(&reader, made, &cache).await;
                    cache.borrow_mut().granted = false;
                    reader.client.recalled(made, false);
                }
                let (attr, fh) = reader.open(b"f", 0).await.unwrap();
                reader.read((attr.ino, fh), 0, 8).await.unwrap()
            });
            assert_eq!(u64::from_le_bytes(read.try_into().unwrap()), 36, "{}", host.number);
        }
    }
    assert!(in_cache > 0, "{in_cache}");
}

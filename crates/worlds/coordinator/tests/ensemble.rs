//! The suite of the port over an ensemble of ZooKeeper, which `OUTBOARD_ZOOKEEPER` names as
//! `--coordinator` does; without one it is skipped. `scripts/zookeeper` makes one, and
//! `OUTBOARD_ENSEMBLE` is its directory: then one server after the other is killed beneath a part.

#![cfg(feature = "zookeeper")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::cell::RefCell;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use outboard_base::{Errno, Result};
use outboard_cluster::coordinator::{Coordinator, Entry, conformance};
use outboard_coordinator::Way;
use outboard_fabric::Asking;
use outboard_os::executor::block_on;

/// Longer than a session goes on.
const OVER: Duration = Duration::from_secs(20);

fn location() -> Option<String> {
    let location = std::env::var("OUTBOARD_ZOOKEEPER").ok();
    if location.is_none() {
        eprintln!("skipped: OUTBOARD_ZOOKEEPER names no ensemble");
    }
    location
}

fn way(location: &str, path: &str) -> Way<Asking> {
    Way::zookeeper(&format!("{location}/outboard-{}/{path}", std::process::id())).unwrap()
}

/// A way that can be dropped while somebody has it: so ends a process.
struct Ending(RefCell<Option<Rc<Way<Asking>>>>);

impl Ending {
    fn new(way: Way<Asking>) -> Ending {
        Ending(RefCell::new(Some(Rc::new(way))))
    }

    fn way(&self) -> Rc<Way<Asking>> {
        Rc::clone(self.0.borrow().as_ref().unwrap())
    }
}

impl Coordinator for Ending {
    async fn beat(&self) -> Result<()> {
        self.way().beat().await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
        self.way().list(prefix).await
    }

    async fn put(&self, name: &str, value: &str, version: Option<u64>, stays: bool) -> Result<()> {
        self.way().put(name, value, version, stays).await
    }

    async fn remove(&self, name: &str, version: u64) -> Result<()> {
        self.way().remove(name, version).await
    }
}

#[test]
fn an_ensemble_passes() {
    let Some(location) = location() else { return };
    let way = || Ending::new(way(&location, "rules"));
    let (one, other) = (way(), way());
    block_on(conformance::rules(&one, &other, async || {
        other.0.borrow_mut().take();
        let end = Instant::now() + OVER;
        while !one.list("rule.other").await.unwrap_or_default().is_empty() {
            assert!(Instant::now() < end, "what came with a session goes");
            std::thread::sleep(Duration::from_millis(50));
        }
    }));
}

/// A part goes over to another server of the ensemble, with its session and what came with it.
#[test]
fn a_part_outlives_each_server() {
    let (Some(location), Ok(dir)) = (location(), std::env::var("OUTBOARD_ENSEMBLE")) else {
        return;
    };
    let way = way(&location, "servers");
    let script = |verb: &str, which: &str| {
        let mut script = Command::new("../../../scripts/zookeeper");
        assert!(script.args([verb, &dir, which]).status().unwrap().success(), "{verb} {which}");
    };
    block_on(async {
        way.beat().await.unwrap();
        way.put("part", "here", None, false).await.unwrap();
        for server in ["1", "2", "3"] {
            script("kill", server);
            let end = Instant::now() + OVER;
            loop {
                match (way.beat().await, way.list("part").await) {
                    (Ok(()), Ok(all)) => {
                        assert_eq!(all.len(), 1, "its session went on without server {server}");
                        break;
                    }
                    (beaten, _) => assert_ne!(beaten, Err(Errno::ENOTCONN), "without {server}"),
                }
                assert!(Instant::now() < end, "it goes over to another server");
                std::thread::sleep(Duration::from_millis(50));
            }
            script("revive", server);
        }
    });
}

//! Which parts of a cluster there are: the coordinator as a process of its own, and an ensemble of
//! ZooKeeper in its place.
//!
//! ```text
//! keeper     the coordinator's process: its table, in a directory, behind calls
//! zookeeper  a part's way to an ensemble, by a feature
//! ```
//!
//! The port, what answers it and how a part keeps itself known: `outboard_cluster::coordinator`.
//! The page is `docs/internals/coordinator.md`.

#![forbid(unsafe_code)]

mod keeper;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use outboard_base::Result;
use outboard_cluster::coordinator::{Coordinator, Entry, Remote};
use outboard_flow::Net;

pub use keeper::{CoordinatorRole, Directory};
pub use outboard_cluster::coordinator::{
    COORDINATOR, Claim, Known, Refusal, Standing, VOLUME, cluster_of,
};

/// A part's way to the coordinator its cluster has.
pub enum Way<N> {
    /// The process of its own.
    Own(Remote<N>),
    /// An ensemble.
    #[cfg(feature = "zookeeper")]
    ZooKeeper(zookeeper::ZooKeeper),
}

impl<N: Net> Way<N> {
    /// To the coordinator that `net` knows.
    pub fn own(net: N) -> Way<N> {
        Way::Own(Remote::new(net))
    }

    /// To the ensemble of these servers, as in `zookeeper://HOST:PORT,HOST:PORT/PATH`.
    ///
    /// # Errors
    /// What is wrong with it, in words: this program may be built without.
    pub fn zookeeper(location: &str) -> std::result::Result<Way<N>, String> {
        let Some(rest) = location.strip_prefix("zookeeper://") else {
            return Err(format!("{location} is none: write zookeeper://HOST:PORT,HOST:PORT/PATH"));
        };
        let (servers, path) = rest.split_once('/').unwrap_or((rest, "outboard"));
        let has_ports = |server: &str| {
            let port = server.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_path =
            |part: &str| !part.is_empty() && part.bytes().all(is_plain) && !part.starts_with('.');
        if !servers.split(',').all(has_ports) || !path.split('/').all(is_path) {
            return Err(format!(
                "{location} is not understood: write zookeeper://HOST:PORT,HOST:PORT/PATH"
            ));
        }
        #[cfg(feature = "zookeeper")]
        return Ok(Way::ZooKeeper(zookeeper::ZooKeeper::new(servers, path)));
        #[cfg(not(feature = "zookeeper"))]
        Err("this program is built without ZooKeeper: build it with `--features zookeeper`".into())
    }
}

impl<N: Net> Coordinator for Way<N> {
    async fn beat(&self) -> Result<()> {
        match self {
            Way::Own(own) => own.beat().await,
            #[cfg(feature = "zookeeper")]
            Way::ZooKeeper(other) => other.beat().await,
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
        match self {
            Way::Own(own) => own.list(prefix).await,
            #[cfg(feature = "zookeeper")]
            Way::ZooKeeper(other) => other.list(prefix).await,
        }
    }

    async fn put(&self, name: &str, value: &str, version: Option<u64>, stays: bool) -> Result<()> {
        match self {
            Way::Own(own) => own.put(name, value, version, stays).await,
            #[cfg(feature = "zookeeper")]
            Way::ZooKeeper(other) => other.put(name, value, version, stays).await,
        }
    }

    async fn remove(&self, name: &str, version: u64) -> Result<()> {
        match self {
            Way::Own(own) => own.remove(name, version).await,
            #[cfg(feature = "zookeeper")]
            Way::ZooKeeper(other) => other.remove(name, version).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use outboard_fabric::Asking;

    use super::*;

    #[test]
    fn what_is_no_ensemble_is_refused_in_words() {
        for wrong in [
            "etcd://a:1",
            "zookeeper://",
            "zookeeper://a",
            "zookeeper://a:x",
            "zookeeper://a:0",
            "zookeeper://:1",
            "zookeeper://a:1,",
            "zookeeper://a:1/",
            "zookeeper://a:1/b//c",
            "zookeeper://a:1/../c",
        ] {
            let words = Way::<Asking>::zookeeper(wrong).err().unwrap();
            assert!(words.contains("HOST:PORT"), "{wrong}: {words}");
        }
        let good = Way::<Asking>::zookeeper("zookeeper://a:1,b:2/some/where");
        assert_eq!(good.is_ok(), cfg!(feature = "zookeeper"));
    }
}

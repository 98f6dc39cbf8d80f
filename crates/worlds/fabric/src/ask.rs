//! Somebody who only asks: the commands that look at a cluster.

use std::cell::RefCell;
use std::io::{self, Read};
use std::net::SocketAddrV4;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::task::join_all;
use outboard_flow::{Net, NoTarget};
use outboard_os::runtime::Poller;
use outboard_os::wakeup::Wakeup;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Reply};

use crate::keys::{Key, MANAGER};
use crate::port::{Port, PortOptions};
use crate::process::Part;
use crate::runtime::{FabricRuntime, Identity};
use crate::udp::source_for;

/// A client without files.
pub struct Asker {
    part: Part<NoTarget>,
    runtime: Rc<FabricRuntime<NoTarget>>,
}

/// A number nobody can guess.
///
/// # Errors
/// The kernel gives none.
pub fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// The number of a client among all: of whose key it has, and of the place it keeps its data in.
#[must_use]
pub fn client_id(client: u32, place: u32) -> u64 {
    (u64::from(client) << 32) | u64::from(place)
}

impl Asker {
    /// One that asks the cluster of `key`, of which a part is at `to`.
    ///
    /// # Errors
    /// The kernel's: there is no way to the cluster, for one.
    pub fn new(key: &Key, to: SocketAddrV4, mtu: usize) -> io::Result<Asker> {
        let client = key.client.unwrap_or(MANAGER);
        let key = key.of_client(client).ok_or(io::ErrorKind::InvalidInput)?;
        let place = u32::try_from(random()? >> 32).unwrap_or(0);
        let id = client_id(client, place);
        let wakeup = Arc::new(Wakeup::new()?);
        let poller = Rc::new(Poller::new(Arc::clone(&wakeup), None));
        let port = SocketAddrV4::new(source_for(to)?, 0);
        let port = Port::open(port, "asker", &PortOptions::default())?;
        let (me, life, about) = (Peer::Client(id), random()?, "\"role\":\"asker\"".to_owned());
        let identity = Identity { me, life, key, mtu, sealed: false, about };
        let runtime =
            Rc::new(FabricRuntime::new(poller, Arc::clone(&wakeup), port, identity, NoTarget)?);
        Ok(Asker { part: Part::new(Rc::clone(&runtime), wakeup)?, runtime })
    }

    /// Asks all of these at once, each at one of these places; the replies that came in time.
    ///
    /// # Errors
    /// The kernel's.
    pub fn ask(
        &self,
        calls: Vec<(Peer, Vec<SocketAddrV4>, Call)>,
        limit: Duration,
    ) -> io::Result<Vec<Option<Reply>>> {
        let replies = Rc::new(RefCell::new(vec![None; calls.len()]));
        let asking = self.runtime.asking();
        let asked = calls.into_iter().enumerate().map(|(at, (peer, places, call))| {
            let (asking, replies) = (asking.clone(), Rc::clone(&replies));
            async move {
                asking.know_places(peer, &places);
                let mut bytes = Vec::new();
                call.encode(&mut bytes);
                let reply = asking.call(peer, bytes).await.ok();
                let reply = reply.and_then(|reply| Reply::decode(&reply).ok());
                if let Some(place) = replies.borrow_mut().get_mut(at) {
                    *place = reply;
                }
            }
        });
        let asked = join_all(asked.collect());
        self.part.finish(
            async move {
                asked.await;
            },
            limit,
        )?;
        Ok(replies.take())
    }
}

//! A part at its cluster's coordinator: known before it serves, for as long as it does.
//!
//! A node serves without being known, too: a coordinator that does not answer changes nothing about
//! files. A server waits: two of them on one volume is what it must not come to.

use std::io;
use std::net::SocketAddrV4;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outboard_base::task::Spawn;
use outboard_base::{Errno, Result as Done};
use outboard_coordinator::{COORDINATOR, Claim, Known, Refusal, Standing, VOLUME, Way, cluster_of};
use outboard_fabric::runtime::FabricRuntime;
use outboard_fabric::{Asking, Part, random};
use outboard_flow::{Net, Target};
use outboard_kv::Kv;
use outboard_kvfs::Kvfs;
use outboard_link::pace;
use outboard_medium::Medium;
use outboard_meta::identity;
use outboard_os::executor::block_on;

use super::description::{Coordinator, Description, Role};
use super::part::Stop;
use crate::exit::{Code, Failure};

/// How long a part tries to say that it leaves.
const LEAVE: Duration = Duration::from_secs(2);
/// How long an ensemble has to answer before anything is started.
const ENSEMBLE: Duration = Duration::from_secs(5);
/// How long the coordinator is asked for the volume's store.
const BIND: Duration = Duration::from_secs(30);
/// When a server says that it waits.
const SAID_AFTER: Duration = Duration::from_secs(2);
/// How it says so.
pub(crate) const WAITS: &str = "waits for the coordinator";

/// How an ensemble is named.
const LOCATION: &str = "zookeeper://HOST:PORT,HOST:PORT/PATH";

/// An ensemble that is to be a cluster's coordinator answers, and is no other cluster's.
pub(crate) fn look_at_ensemble(location: &str, own: Option<u64>) -> Result<(), Failure> {
    let way = Way::<Asking>::zookeeper(location).map_err(Failure::usage)?;
    let end = Instant::now() + ENSEMBLE;
    loop {
        match block_on(cluster_of(&way)) {
            Ok(None) => return Ok(()),
            Ok(Some(other)) if Some(other) == own => return Ok(()),
            Ok(Some(other)) => {
                return Err(Failure::usage(format!(
                    "{location} is the coordinator of cluster {other:016x}: in an ensemble each \
                     cluster has a path of its own: {LOCATION}"
                )));
            }
            // It may be choosing a leader.
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(200)),
            Err(errno) => {
                return Err(Failure::new(
                    Code::NotRunning,
                    format!(
                        "the coordinator {location} does not answer ({errno}): see that most of \
                         its servers run (`scripts/zookeeper status DIR`, `start DIR`), and that \
                         these are their addresses; then try again"
                    ),
                ));
            }
        }
    }
}

/// A part that keeps itself known, over the network that it has.
type Registered<T> = Known<Way<Asking<T>>, Asking<T>>;

/// A part's standing with its coordinator; without one it is always known.
pub(crate) struct Membership<T: Target> {
    role: Role,
    takes_over: bool,
    known: Option<Rc<Registered<T>>>,
}

impl<T: Target> Membership<T> {
    /// Begins to make a part known, which may take the name over from another place. `hears` is
    /// told where the nodes are.
    pub(crate) fn begin(
        cluster: &Description,
        (role, takes_over): (Role, bool),
        (of, life): (u64, u64),
        runtime: &Rc<FabricRuntime<T>>,
        hears: impl Fn(Option<Vec<(u16, SocketAddrV4)>>) + 'static,
    ) -> Result<Membership<T>, Failure> {
        let Some(coordinator) = &cluster.coordinator else {
            return Ok(Membership { role, takes_over, known: None });
        };
        let asking = runtime.asking();
        let way = match (coordinator.address, &coordinator.zookeeper) {
            (Some(address), _) => {
                asking.know(COORDINATOR, address);
                Way::own(asking.clone())
            }
            (None, Some(location)) => Way::zookeeper(location).map_err(Failure::usage)?,
            (None, None) => return Ok(Membership { role, takes_over, known: None }),
        };
        let place = cluster.address(role)?.to_string();
        // Whichever server serves is known as the server.
        let is_server = matches!(role, Role::Meta(_));
        let name = if is_server { Role::META } else { role }.to_string();
        let claim = Claim { name, cluster: of, place, life, takes_over };
        let known = Known::new(way, asking.clone(), claim);
        runtime.spawn(Box::pin(Rc::clone(&known).keep(hears)));
        if is_server {
            let (known, remedy) = (Rc::clone(&known), remedy(cluster, coordinator));
            runtime.spawn(Box::pin(async move {
                asking.sleep(SAID_AFTER).await;
                if matches!(known.standing(), Standing::Unknown | Standing::Unheard) {
                    tracing::warn!("{role} {WAITS}{remedy}");
                }
            }));
        }
        Ok(Membership { role, takes_over, known: Some(known) })
    }

    /// Waits until the part may serve; false: it is to end.
    pub(crate) fn enter(
        &self,
        part: &Part<T>,
        pace: pace::Config,
        stop: &Stop,
    ) -> Result<bool, Failure> {
        let Some(known) = &self.known else { return Ok(true) };
        let waits = matches!(self.role, Role::Meta(_));
        part.serve(pace, &|| stop.is_asked() || known.is_decided(waits))
            .map_err(|error| Failure::internal(format!("{} cannot start: {error}", self.role)))?;
        match self.refusal() {
            Some(failure) => Err(failure),
            None => Ok(!stop.is_asked()),
        }
    }

    /// Whether the part is to end, though it was known.
    pub(crate) fn is_refused(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.is_refused())
    }

    /// Why the part may not be here, in words.
    pub(crate) fn refusal(&self) -> Option<Failure> {
        let role = self.role;
        let Standing::Refused(refusal) = self.known.as_ref()?.standing() else { return None };
        Some(match refusal {
            Refusal::Cluster(other) => Failure::usage(format!(
                "{role} is refused: the coordinator is that of cluster {other:016x}, and the key \
                 in the description is another cluster's. In an ensemble each cluster has a path \
                 of its own: {LOCATION}"
            )),
            Refusal::Key => Failure::usage(format!(
                "{role} is refused: the coordinator does not take the key in the description: it \
                 is another cluster's"
            )),
            Refusal::Taken(place) if self.takes_over => Failure::new(
                Code::Data,
                format!("{role} ends: the server at {place} has taken over"),
            ),
            Refusal::Taken(place) => Failure::new(
                Code::Data,
                format!(
                    "{role} is at {place} already, by the coordinator's word: end that one first, \
                     or give this one another number"
                ),
            ),
        })
    }

    /// The volume is kept in this store, and was never in another.
    pub(crate) fn bind<K: Kv + 'static, M: Medium + 'static>(
        &self,
        part: &Part<T>,
        volume: &Arc<Kvfs<K, M>>,
    ) -> Result<(), Failure> {
        let Some(known) = &self.known else { return Ok(()) };
        let (known, volume) = (Rc::clone(known), Arc::clone(volume));
        let bound = part.finish(
            async move {
                let own = identity(&*volume, || random().map_err(|_| Errno::EIO)).await?;
                let kept = known.bind(VOLUME, &own).await;
                Ok(kept == own)
            },
            BIND,
        );
        let cannot = |what: &dyn std::fmt::Display| {
            Failure::new(Code::Data, format!("{} cannot open its volume: {what}", self.role))
        };
        let bound: Option<Done<bool>> = bound.map_err(|error: io::Error| cannot(&error))?;
        match bound {
            Some(Ok(true)) => Ok(()),
            Some(Ok(false)) => Err(cannot(
                &"by the coordinator's word it is kept in another store: give this server that \
                  one's directory, or make another cluster",
            )),
            Some(Err(errno)) => Err(cannot(&errno)),
            None => Err(cannot(&"the coordinator does not answer")),
        }
    }

    /// The part ends: its name is free at once, if it had it.
    pub(crate) fn leave(&self, part: &Part<T>) {
        if let Some(known) = self.known.as_ref().filter(|_| !self.is_refused()) {
            let _session_ends = part.finish(Rc::clone(known).leave(), LEAVE);
        }
    }
}

/// What to do about a coordinator that does not answer: the end of a sentence.
fn remedy(cluster: &Description, coordinator: &Coordinator) -> String {
    match (&coordinator.address, &coordinator.zookeeper) {
        (None, Some(location)) => format!(
            " {location}, which does not answer: see that most of its servers run \
             (`scripts/zookeeper status DIR`, `start DIR`); it goes on then"
        ),
        (address, _) => {
            let at = address.map(|address| format!(" at {address}")).unwrap_or_default();
            let dir = cluster.path(Path::new(""));
            format!(
                "{at}, which does not answer: start it (`outboard cluster start {} coordinator`); \
                 it goes on then",
                dir.display()
            )
        }
    }
}

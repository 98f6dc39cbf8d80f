//! The metadata server as a part of a cluster: it waits for its volume where others may serve it,
//! is made known, opens it, serves it, and makes durable what it answered.

use std::cell::OnceCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_fabric::runtime::FabricRuntime;
use outboard_fabric::{Asking, Part, ServerRole};
use outboard_flow::NoTarget;
use outboard_meta::{Made, Meta, MetaOptions, count_beyond_nodes, made_with, nodes_in_use};
use outboard_store::{
    Driver, KvVolume, Opened, Owned, Purpose, Standby, StoreKv, StoreMedium, StoreOptions,
};

use super::description::{Description, Role, Server};
use super::membership::Membership;
use super::part::{
    END_LIMIT, PartOptions, Stop, Strange, boot, failed, greet, identity, number_of, pace, port,
    serve,
};
use crate::exit::{Code, Failure};
use crate::settings::Settings;

/// How long a server may take to recover its store.
const RECOVER_LIMIT: Duration = Duration::from_secs(3600);
/// How long it may take to open its volume over it.
const OPEN_LIMIT: Duration = Duration::from_secs(120);
/// Seconds that a node may be away, where nobody says how many.
const HEAL_AFTER: u64 = 600;
/// A server that is silent for so long is replaced by one that stands by.
const TAKEOVER: Duration = Duration::from_secs(2);

/// Runs the server of a number. Its place in its cluster comes first, its store after that: one
/// that is refused has touched nothing. With others that may serve the volume it is the other way
/// round: who has the store's claim is the server.
pub(super) fn server(
    cluster: &Description,
    number: u16,
    options: &PartOptions,
    stop: &Stop,
) -> Result<(), Failure> {
    let role = Role::Meta(number);
    let cannot = |what: &'static str| move |error: io::Error| failed(role, what, &error);
    let mut port = port(cluster, role, options)?;
    let Driver { runtime: poller, wakeup } = Driver::new().map_err(cannot("make a wake event"))?;
    let identity = identity(cluster, role)?;
    let (cluster, owned) = if cluster.server()?.standby.is_empty() {
        (cluster.clone(), None)
    } else {
        let Some(owned) = stand_by(cluster, role, stop)? else { return Ok(()) };
        // Nodes may have come and gone meanwhile.
        let again = cluster.again().inspect_err(|failure| {
            tracing::error!(%failure, "the description is as it was");
        });
        // What came before it served was for nobody.
        port.discard().map_err(cannot("use its socket"))?;
        (again.unwrap_or_else(|_| cluster.clone()), Some(owned))
    };
    let (cluster, takes_over) = (&cluster, owned.is_some());
    let meta_options = MetaOptions {
        cluster_key: identity.key.secret,
        volume: number_of(&cluster.volume),
        life: identity.life,
        boot: boot().map_err(cannot("tell one boot from another"))?,
        heal_after: heal_after(cluster.server()?),
        nodes: cluster.coordinates(),
        ..MetaOptions::default()
    };
    let names = (identity.key.cluster, identity.life);
    let runtime = FabricRuntime::new(poller, Arc::clone(&wakeup), port, identity, NoTarget);
    let runtime = Rc::new(runtime.map_err(cannot("start"))?);
    let part = Part::new(Rc::clone(&runtime), Arc::clone(&wakeup)).map_err(cannot("start"))?;
    stop.tells(&wakeup);
    let served: Served = Rc::default();
    let hears = {
        let served = Rc::clone(&served);
        move |nodes: Option<Vec<_>>| {
            served.get().into_iter().for_each(|meta| meta.nodes_are(nodes.as_deref()));
        }
    };
    let membership = Membership::begin(cluster, (role, takes_over), names, &runtime, hears)?;
    if !membership.enter(&part, pace(options), stop)? {
        return Ok(());
    }
    let opened = open_volume(cluster, role, owned, &part);
    let opened = opened.inspect_err(|_| membership.leave(&part))?;
    let Opened { volume, hold, directory } = opened;
    // What a pool answered is durable there, whoever loses power.
    let boot = hold.volume().unwrap_or(meta_options.boot);
    let meta_options = MetaOptions { boot, ..meta_options };
    let serving =
        Serving { cluster, role, part: &part, membership: &membership, runtime: &runtime };
    let ended = serving.serve(&served, (volume, hold.check()), meta_options, (options, stop));
    membership.leave(&part);
    // What the runtime still has to do has the volume, too.
    drop((served, part, runtime, directory));
    hold.release();
    let strange = ended?;
    tracing::info!(%role, "ended in order");
    strange.take().map_or(Ok(()), Err)
}

/// Waits until the volume is this server's; `None`: it is to end.
fn stand_by(cluster: &Description, role: Role, stop: &Stop) -> Result<Option<Owned>, Failure> {
    let goes_on = || !stop.is_asked();
    let standby = Standby { takeover: TAKEOVER, goes_on: &goes_on };
    let owned = outboard_store::stand_by(&opening(cluster, role)?, &standby)?;
    if owned.is_some() {
        tracing::info!(%role, "has the claim on the volume: it is the server");
    }
    Ok(owned)
}

/// How long a node may be away before files get copies elsewhere, if it is not for ever.
fn heal_after(server: &Server) -> Option<Duration> {
    let seconds = server.heal_after.unwrap_or(HEAL_AFTER);
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

/// The server of a volume that is open.
type ServedMeta = Meta<StoreKv, StoreMedium, Asking>;

/// The same, once it serves.
type Served = Rc<OnceCell<ServedMeta>>;

/// What a server serves with.
struct Serving<'a> {
    cluster: &'a Description,
    role: Role,
    part: &'a Part<NoTarget>,
    membership: &'a Membership<NoTarget>,
    runtime: &'a Rc<FabricRuntime<NoTarget>>,
}

impl Serving<'_> {
    /// The description has all nodes that files may lie on.
    fn must_have_nodes(&self, volume: &KvVolume, made_with: &[u16]) -> Result<(), Failure> {
        let (kvfs, made_with) = (Arc::clone(volume), made_with.to_vec());
        let found =
            self.part.finish(async move { nodes_in_use(&*kvfs, &made_with).await }, OPEN_LIMIT);
        let used = in_time(found, self.role, "read which nodes there are")?;
        let is_described = |number: &u16| self.cluster.node(Some(*number)).is_ok();
        used.iter().find(|number| !is_described(number)).map_or(Ok(()), |gone| {
            Err(Failure::usage(format!(
                "files of this volume lie on node {gone}, which the cluster's description does \
                 not have any more: put it back; `outboard cluster drain` moves them away before"
            )))
        })
    }

    /// The nodes there were when the volume was made, which is this cluster's.
    fn members(&self, volume: &KvVolume) -> Result<Vec<u16>, Failure> {
        let (cluster, role) = (self.cluster, self.role);
        let (number, known) = (cluster.key()?.cluster, noted_members(cluster, role)?);
        let described: Vec<u16> = cluster.nodes.iter().map(|node| node.number).collect();
        if described.is_empty() {
            return Err(Failure::usage("the cluster's description has no [[nodes]]"));
        }
        let kvfs = Arc::clone(volume);
        let made = async move { made_with(&*kvfs, number, known, described).await };
        match in_time(self.part.finish(made, OPEN_LIMIT), role, "read what its volume is of")? {
            Made::With(nodes) => Ok(nodes),
            Made::Elsewhere(other) => Err(Failure::usage(format!(
                "{role} cannot open its volume: it is that of cluster {other:016x}, and the key in \
                 the description is another cluster's. In a pool each has a namespace of its own: \
                 store = \"rados://POOL?conf=FILE&namespace=NAME\""
            ))),
            Made::Before => Err(Failure::usage(format!(
                "{role} cannot open its volume: a program from before made it, and which nodes \
                 there were then stands in that server's directory (`members`): start that one \
                 first, once"
            ))),
        }
    }

    /// Serves a volume until it is told to end, and makes durable what it answered.
    fn serve(
        &self,
        served: &Served,
        (volume, check): (KvVolume, Option<Box<dyn Fn()>>),
        meta_options: MetaOptions,
        (options, stop): (&PartOptions, &Stop),
    ) -> Result<Strange, Failure> {
        let (role, cluster, runtime) = (self.role, self.cluster, self.runtime);
        self.membership.bind(self.part, &volume)?;
        let members = self.members(&volume)?;
        let meta_options = MetaOptions { members, ..meta_options };
        self.must_have_nodes(&volume, &meta_options.members)?;
        let (kvfs, asking, about) = (Arc::clone(&volume), runtime.asking(), meta_options.clone());
        let counts = async move { count_beyond_nodes(&*kvfs, &asking, &about).await };
        in_time(self.part.finish(counts, OPEN_LIMIT), role, "count on")?;
        let begun = Meta::open(Arc::clone(&volume), runtime.asking(), meta_options);
        let meta = in_time(self.part.finish(begun, OPEN_LIMIT), role, "open its volume")?;
        let _was_empty = served.set(meta.clone());
        let role_of_it = ServerRole::new(meta.clone(), check, runtime.conversations().clone());
        runtime.set_role(Rc::new(role_of_it));
        let all = cluster.nodes.iter().map(|node| (Role::Node(node.number), vec![node.address]));
        let strange = greet(cluster, role, runtime, all.collect());
        tracing::info!(%role, address = %runtime.local(), pid = std::process::id(), "serving");
        let ends = || stop.is_asked() || meta.is_superseded();
        serve((self.part, self.membership), options, &ends, &strange)?;
        if meta.is_superseded() {
            return Err(superseded(role));
        }
        let ended = self.part.finish(async move { meta.end().await }, END_LIMIT);
        in_time(ended, role, "make durable what it answered")?;
        Ok(strange)
    }
}

/// Why a server ends beside another.
fn superseded(role: Role) -> Failure {
    Failure::new(
        Code::Data,
        format!(
            "{role} ends: nodes know of a later opening of this volume. Another server has begun, \
             by the pool's claim or with a copy of its store: leave it at that, or end that one. \
             Or these metadata are from a backup: start it again while the nodes are up"
        ),
    )
}

/// What is asked of the store of a server.
fn opening(cluster: &Description, role: Role) -> Result<StoreOptions, Failure> {
    let described = cluster.server()?;
    let settings = Settings {
        data: Some(cluster.data(role)?),
        store: described.store.clone(),
        memory: described.memory.clone(),
        ..Settings::default()
    };
    let spread = Some(cluster.layout().map_err(Failure::usage)?);
    Ok(StoreOptions { spread, ..settings.store_options()? })
}

/// A server's volume, claimed already or not. The part goes on meanwhile, and is known.
fn open_volume(
    cluster: &Description,
    role: Role,
    owned: Option<Owned>,
    part: &Part<NoTarget>,
) -> Result<Opened, Failure> {
    let opening = opening(cluster, role)?;
    let opened = async move {
        match owned {
            Some(owned) => outboard_store::open_owned(&opening, owned).await,
            None => outboard_store::open_here(&opening, Purpose::UseOrMake).await,
        }
    };
    let opened = part.finish(opened, RECOVER_LIMIT);
    let opened = opened.map_err(|error| failed(role, "open its volume", &error))?;
    let opened = opened.ok_or_else(|| failed(role, "open its volume", &"it takes too long"));
    Ok(opened??)
}

/// What came of work that had so much time.
fn in_time<O>(
    done: io::Result<Option<outboard_base::Result<O>>>,
    role: Role,
    what: &str,
) -> Result<O, Failure> {
    let done = done.map_err(|error| failed(role, what, &error))?;
    let done = done.ok_or_else(|| failed(role, what, &"it takes too long"))?;
    done.map_err(|errno| failed(role, what, &errno))
}

/// The nodes there were when the volume was made, where servers noted them in their directory
/// before the volume did.
fn noted_members(cluster: &Description, role: Role) -> Result<Option<Vec<u16>>, Failure> {
    let path = cluster.data(role)?.join("members");
    let cannot = |error: io::Error| {
        Failure::new(Code::Data, format!("cannot use {}: {error}", path.display()))
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let members: Result<Vec<u16>, _> = text.split_whitespace().map(str::parse).collect();
            members.map(Some).map_err(|_| cannot(io::ErrorKind::InvalidData.into()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot(error)),
    }
}

//! The client of a shared volume's cluster: a DPU side, or a thread of the mount's process that
//! does the same for it (`--client host` and `standard`).

use std::net::SocketAddrV4;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_attach::dpu::{Dpu, Wish};
use outboard_base::Errno;
use outboard_dfs::{Dfs, DfsOptions, Mode};
use outboard_fabric::port::{Port, PortOptions};
use outboard_fabric::runtime::{FabricRuntime, Identity};
use outboard_fabric::udp::source_for;
use outboard_fabric::{Asking, ClientRole, Part, client_id, faulty, random};
use outboard_flow::{Net, NoTarget};
use outboard_os::runtime::Poller;
use outboard_os::wakeup::Wakeup;
use outboard_store::directory::DataDirectory;
use outboard_volume::NoVolume;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Reply};
use serde_json::{Value, json};

use super::{cannot, dpu_options};
use crate::cluster::description::{Trust, named};
use crate::cluster::location::Location;
use crate::cluster::part::{Stop, number_of};
use crate::exit::{Code, Failure};
use crate::settings::{Client, Settings};

/// The metadata server.
const SERVER: Peer = Peer::Server(0);
/// How long its first answer may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
/// Where captures of clients go, if anywhere.
const CAPTURE: &str = "OUTBOARD_CAPTURE";

type Runtime = FabricRuntime<NoTarget>;

/// The DPU side of a shared volume, until told to end.
pub(super) fn dpu(settings: &Settings, location: &Location) -> Result<ExitCode, Failure> {
    let stop = Arc::new(Stop::default());
    stop.on_signal()?;
    serve(settings, location, &stop)?;
    Ok(ExitCode::SUCCESS)
}

/// The client in the mount's process, until its control socket asks for the end, or the server has
/// begun another life. What of it the mount is answered by is a queue pair, as by a DPU side.
pub(crate) fn here(settings: &Settings) -> Result<(), Failure> {
    let location = settings.shared()?.ok_or_else(|| Failure::usage("this is no shared volume"))?;
    serve(settings, &location, &Arc::new(Stop::default()))
}

/// One life of a client.
fn serve(settings: &Settings, location: &Location, stop: &Arc<Stop>) -> Result<(), Failure> {
    let data = settings.data();
    let directory = DataDirectory::open(&data);
    let directory = directory.map_err(|error| Failure::new(Code::Data, error.to_string()))?;
    let places = location.places()?;
    let wakeup = Wakeup::new().map_err(|error| cannot("make a wake event", &error))?;
    let wakeup = Arc::new(wakeup);
    stop.tells(&wakeup);
    let (runtime, client) = begin(settings, location, &places, &wakeup)?;
    runtime.asking().know_places(SERVER, &places);
    let dfs = client_of(settings, &runtime, location, client)?;
    runtime.set_role(Rc::new(ClientRole::new(Arc::clone(&dfs))));
    connect(&runtime, &wakeup, &dfs, location, &named(&places))?;
    let options = dpu_options(settings, directory.path())?;
    let volumes = (Arc::new(NoVolume), Arc::clone(&dfs));
    let mut dpu = Dpu::of_both(volumes, Rc::clone(&runtime), wakeup, options)
        .map_err(|error| cannot(&format!("listen at {}", settings.socket().display()), &error))?;
    let (told, name) = (Rc::clone(&runtime), location.whole());
    dpu.set_store_figures(move || figures(&told, &name));
    tracing::info!(socket = %settings.socket().display(), pid = std::process::id(), "serving");
    let wish = || match () {
        // Nothing is answered any more: hosts ask the next life of this client for what they wait
        // for, and hand in what they hold.
        () if dfs.server_changed() => Wish::Abandon,
        () if stop.is_asked() => Wish::End,
        () => Wish::GoOn,
    };
    dpu.run(&wish).map_err(|error| cannot("go on", &error))?;
    if dfs.server_changed() {
        tracing::warn!("the metadata server has begun another life: so does this client of it");
        if settings.client_here().is_none() {
            // A thread that maintains caches may wait for the server that was.
            std::process::exit(0);
        }
        return Ok(());
    }
    drop((dpu, directory));
    tracing::info!("ended in order");
    Ok(())
}

/// The client itself, as the settings say.
fn client_of(
    settings: &Settings,
    runtime: &Runtime,
    location: &Location,
    client: u64,
) -> Result<Arc<Dfs<Asking>>, Failure> {
    let options = DfsOptions {
        server: SERVER,
        client,
        nonce: random().map_err(|error| cannot("get random numbers", &error))?,
        volume: number_of(&location.volume),
        mode: match settings.client() {
            Client::Standard => Mode::Standard,
            Client::Dpu | Client::Host => Mode::Direct,
        },
    };
    Ok(Arc::new(Dfs::new_without(runtime.asking(), options, settings.without()?)))
}

/// The runtime of a new life of this client, and its number: the one of its data directory, which
/// nobody else has open.
fn begin(
    settings: &Settings,
    location: &Location,
    places: &[SocketAddrV4],
    wakeup: &Arc<Wakeup>,
) -> Result<(Rc<Runtime>, u64), Failure> {
    let (key, place) = location.key(&settings.data())?;
    let number = key.client.unwrap_or(0);
    let lives = |error: std::io::Error| cannot("get random numbers", &error);
    let client = client_id(number, place);
    // All of them are reached the same way.
    let way = places.iter().find_map(|place| Some((*place, source_for(*place).ok()?)));
    let (server, source) = way.ok_or_else(|| {
        Failure::new(Code::NotRunning, format!("there is no way to {}", named(places)))
    })?;
    let before = PortOptions {
        capture: std::env::var_os(CAPTURE).map(Into::into),
        faults: faulty::Settings::of_environment().map_err(Failure::usage)?,
    };
    let port = Port::open(SocketAddrV4::new(source, 0), &format!("client.{number:06x}"), &before)
        .map_err(|error| cannot("open a socket", &error))?;
    let identity = Identity {
        me: Peer::Client(client),
        life: random().map_err(lives)? | 1,
        key,
        mtu: location.mtu(server),
        sealed: location.trust == Some(Trust::Sealed),
        about: format!("\"role\":\"client\",\"client\":{client}"),
    };
    let poller = Rc::new(Poller::new(Arc::clone(wakeup), None));
    let runtime = FabricRuntime::new(poller, Arc::clone(wakeup), port, identity, NoTarget);
    Ok((Rc::new(runtime.map_err(|error| cannot("start", &error))?), client))
}

/// The first words with the server: it knows us, and has the volume.
fn connect(
    runtime: &Rc<Runtime>,
    wakeup: &Arc<Wakeup>,
    dfs: &Arc<Dfs<Asking>>,
    location: &Location,
    server: &str,
) -> Result<(), Failure> {
    let lost = |error: std::io::Error| cannot("use its socket", &error);
    let part = Part::new(Rc::clone(runtime), Arc::clone(wakeup)).map_err(lost)?;
    let (asking, client) = (runtime.asking(), Arc::clone(dfs));
    let words = async move {
        client.connect().await?;
        let mut bytes = Vec::new();
        Call::Status.encode(&mut bytes);
        let reply = asking.call(SERVER, bytes).await.map_err(|_| Errno::ETIMEDOUT)?;
        match Reply::decode(&reply) {
            Ok(Reply::Text(text)) => Ok(text),
            _ => Err(Errno::EPROTO),
        }
    };
    let text = match part.finish(words, CONNECT_LIMIT).map_err(lost)? {
        Some(Ok(text)) => text,
        Some(Err(Errno::EPERM)) => {
            return Err(Failure::usage(format!(
                "the metadata server at {server} does not take this key: it is another cluster's"
            )));
        }
        Some(Err(Errno::EACCES)) => {
            return Err(Failure::usage(format!(
                "the metadata server at {server} takes this client's key no more: it was revoked; \
                 whoever manages the cluster gives another (`outboard cluster key add`)"
            )));
        }
        None | Some(Err(Errno::ETIMEDOUT)) => {
            return Err(Failure::new(
                Code::NotRunning,
                format!(
                    "no metadata server answers at {server}: is the cluster up (`outboard cluster \
                     status`), and the key its own?"
                ),
            ));
        }
        Some(Err(errno)) => {
            let message = format!("the metadata server at {server} does not serve us: {errno}");
            return Err(Failure::internal(message));
        }
    };
    let said: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    match said.get("volume").and_then(Value::as_str) {
        Some(volume) if volume == location.volume => trusts(location, &said),
        volume => Err(Failure::usage(format!(
            "the cluster at {server} has no volume {}; its volume is {}",
            location.volume,
            volume.unwrap_or("another")
        ))),
    }
}

/// Whether the cluster trusts as this mount was told it would.
fn trusts(location: &Location, said: &Value) -> Result<(), Failure> {
    let Some(asked) = location.trust else { return Ok(()) };
    match said.get("trust").and_then(Value::as_str) {
        Some(found) if found == asked.to_string() => Ok(()),
        found => Err(Failure::usage(format!(
            "the cluster's nodes have the trust {}, and the location of the volume says \
             trust={asked}: mount what `outboard cluster status` prints",
            found.unwrap_or("of another program")
        ))),
    }
}

/// What `status` says of the store.
fn figures(runtime: &Runtime, location: &str) -> Value {
    let figures = runtime.figures().into_iter();
    let network: serde_json::Map<String, Value> =
        figures.map(|(name, value)| (name.to_owned(), json!(value))).collect();
    json!({ "shared": location, "network": network })
}

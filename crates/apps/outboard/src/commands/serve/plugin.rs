//! `outboard serve plugin`: the DPU side of a server of the user's own.
//!
//! ```text
//! client -- TCP -- this process -- TCP or Unix socket -- the user's server
//!                    |  `-- files -- rings in shared memory ---'  (outboard_dds.h)
//!                    `-- the plug-in's processes                   (outboard_offload.h)
//! ```
//!
//! It stays in the foreground, and does not start the server: that attaches when it likes. With
//! `--net` clients and server are behind two devices, and the server is at the address where
//! clients connect: `--listen`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use outboard_dds::dpu::director::Signature;
use outboard_pageserver::plugin::{Plugin, PluginMaintainer, PluginOptions};
use outboard_pageserver::server::{Server, ServerOptions};
use outboard_pageserver::tcp::front::Front;
use outboard_pageserver::tcp::sockets::Address;
use outboard_pageserver::tcp::worker;

use super::limits::LimitArgs;
use super::net::NetArgs;
use super::{Clients, cannot, claim, clients, keep_apart};
use crate::exit::Failure;
use crate::say::say;
use crate::settings::bytes;
use crate::watch::{Happened, Watch};

/// How to serve.
#[derive(Args, Clone, Debug)]
pub(crate) struct PluginArgs {
    /// The plug-in: a shared object made with outboard_offload.h
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
    /// Where the server is: a port, or the path of a Unix socket
    #[arg(
        long,
        value_name = "ADDRESS:PORT|PATH",
        required_unless_present = "net",
        conflicts_with = "net"
    )]
    host: Option<String>,
    /// Where clients connect; with --net, the server's own address
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7379")]
    listen: SocketAddr,
    /// Directory for the data, made if it is missing; the server attaches to dpu.sock there
    #[arg(long, value_name = "DIR", default_value = "served")]
    data: PathBuf,
    /// Size of the files' device, with K, M or G [default: as it is, 64G if it is new]. One that is
    /// smaller grows to it; none becomes smaller
    #[arg(long, value_name = "BYTES")]
    size: Option<String>,
    /// Objects in files that the DPU side can answer for
    #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = super::items())]
    items: usize,
    /// Threads that serve connections; each has a process of the plug-in's
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = super::workers())]
    workers: usize,
    /// Longest the plug-in may take for what it is asked at once, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = limits())]
    limit: u64,
    #[command(flatten)]
    clients: LimitArgs,
    #[command(flatten)]
    net: NetArgs,
    /// Log filter, as error, warn, info, debug
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    pub(super) log: String,
}

fn limits() -> RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=60_000)
}

impl PluginArgs {
    fn host(&self) -> Address {
        let Some(host) = &self.host else { return Address::Tcp(self.listen) };
        match host.parse() {
            Ok(address) => Address::Tcp(address),
            Err(_) => Address::Unix(PathBuf::from(host)),
        }
    }

    /// Loads it once: what cannot be used is refused here, with the reason.
    fn load(&self) -> Result<Plugin, Failure> {
        let object = &self.plugin;
        let refused = |why: String| Failure::usage(format!("plug-in {}: {why}", object.display()));
        // By its path: a bare name would be looked for among the system's libraries.
        let object = std::fs::canonicalize(object).map_err(|error| refused(error.to_string()))?;
        let program = std::env::current_exe().map_err(cannot("find this program"))?;
        let args = ["serve", "plugin-process"].map(Into::into).to_vec();
        let limit = Duration::from_millis(self.limit);
        let options = PluginOptions { limit, ..PluginOptions::new(program, args, object) };
        Plugin::probe(options).map_err(refused)
    }
}

/// The director, between clients and the server.
fn front<F: worker::Files>(
    args: &PluginArgs,
    clients: Clients,
    setup: &worker::Setup<F>,
    plugin: Plugin,
) -> Result<Front, Failure> {
    let (at, workers) = (args.listen, args.workers);
    let front = match clients {
        Clients::Sockets(listener) => Front::start_asking(listener, workers, setup, plugin),
        Clients::Devices(ends) => {
            let (signature, address) = (Signature::of_server(at), Address::Tcp(at));
            Front::between_asking(ends, signature, address, workers, setup, plugin)
                .map(|(front, _)| front)
        }
    };
    front.map_err(cannot(format!("serve {at}")))
}

/// Who answered how much, in a line.
fn say_counts(front: &Front, plugin: &Plugin) {
    let (tally, counts) = (front.tally(), plugin.counts());
    say!(
        "answered here {}, by the server {}; the plug-in failed {} times",
        tally.offloaded.load(Ordering::Relaxed),
        tally.to_host.load(Ordering::Relaxed)
            + tally.refused.load(Ordering::Relaxed)
            + tally.fell_back.load(Ordering::Relaxed),
        counts.faults.load(Ordering::Relaxed),
    );
}

/// Serves until it is told to end.
pub(super) fn serve(args: &PluginArgs) -> Result<ExitCode, Failure> {
    args.net.check(args.listen)?;
    let plugin = args.load()?;
    let lock = claim(&args.data)?;
    crate::commands::served::note(&lock, "plugin", args.listen)?;
    keep_apart(&args.data, "plugin over-dpu")?;
    let mut watch = Watch::new()?;
    let clients = clients(&args.net, args.listen)?;
    let (device, socket) = (args.data.join("volume"), args.data.join("dpu.sock"));
    let maintainer = PluginMaintainer::new(plugin.clone()).map_err(cannot("start the plug-in"))?;
    let mut options = ServerOptions::new(device.clone(), socket.clone());
    options.capacity = args.size.as_deref().map(|size| bytes("size", size)).transpose()?;
    options.items = args.items;
    options.maintainer = Some(Arc::new(maintainer));
    let health = Arc::clone(&options.health);
    let server =
        Server::start(options).map_err(cannot(format!("serve files of {}", device.display())))?;
    let setup = worker::Setup {
        app: Arc::new(plugin.declared()),
        health,
        table: Arc::new(server.table().clone()),
        files: Arc::clone(server.files()),
        signature: None,
        host: args.host(),
        contexts: 1024,
        pool: 64 << 20,
        limits: args.clients.limits()?,
    };
    let front = front(args, clients, &setup, plugin.clone())?;
    server.tell("director", front.figures());
    server.tell("plugin", plugin.figures());
    let at = match front.address() {
        Address::Tcp(at) => *at,
        Address::Unix(_) => args.listen,
    };
    say!(
        "serving {} at {at}; its server, at {}, attaches to {}; Ctrl-C ends it",
        plugin.profile().name,
        args.host.clone().unwrap_or_else(|| args.listen.to_string()),
        socket.display(),
    );
    while server.is_serving() && front.is_serving() {
        if watch.next(Duration::from_secs(1))? == Happened::Told {
            break;
        }
    }
    say_counts(&front, &plugin);
    let lost = !front.is_serving();
    drop(front);
    server.stop().map_err(cannot("end in order"))?;
    if lost {
        return Err(Failure::internal("a thread of the director ended; the log says why"));
    }
    Ok(ExitCode::SUCCESS)
}

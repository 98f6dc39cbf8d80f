//! `outboard serve`: a server for remote clients, and the DPU side that answers for it.
//!
//! ```text
//! offload:     client ── TCP ── DPU side (its own process) ── Unix socket ── host
//!                                   └── files ── rings in shared memory ─────┘
//! --no-offload client ── TCP ── host ── rings ── DPU side: files only
//! --plain      client ── TCP ── host ── a file
//! --net        client ── device ── DPU side ── device ── host; its files as in the first
//! ```
//!
//! `outboard serve plugin` is the DPU side alone, for a server of the user's own ([`plugin`]).

mod limits;
mod net;
mod plugin;

use std::fs::{File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use outboard_attach::link;
use outboard_dds::dpu::director::Signature;
use outboard_dds::dpu::offload::Application;
use outboard_os::room::Reserve;
use outboard_pageserver::plain::Copies;
use outboard_pageserver::server::{Server, ServerOptions};
use outboard_pageserver::tcp::front::Front;
use outboard_pageserver::tcp::sockets::{Address, Listener};
use outboard_pageserver::tcp::stack::network::Ends;
use outboard_pageserver::tcp::worker::{self, Limits};
use outboard_servers::device::{DdsDevice, Device, PlainDevice};
use outboard_servers::kv::{Ended, Fsync, KvApplication, KvServer, Setup, Stop, StoreSetup};
use outboard_servers::pages::{self, PageServer, PagesApplication};
use rustix::process::{Pid, Signal, kill_process};

use self::limits::LimitArgs;
use self::net::NetArgs;
use crate::exit::{Code, Failure};
use crate::restarts::Restarts;
use crate::say::say;
use crate::settings::bytes;
use crate::watch::{Happened, Watch};

/// Time a DPU side has to open its device, or to end.
const START_LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(15);

/// What to serve.
#[derive(Subcommand, Debug)]
pub(crate) enum Serve {
    /// A key-value server in the manner of FASTER that speaks RESP2, as Redis does
    Kv {
        #[command(flatten)]
        args: ServeArgs,
        /// When answers survive power loss (a process's death they survive)
        #[arg(long, value_name = "WHEN", default_value = "everysec")]
        fsync: FsyncArg,
    },
    /// A page server for a log-structured database: GetPage at an LSN, and log records
    ///
    /// A page that exists takes 16 KiB and 32 bytes of the device, whatever its number; one never
    /// written takes nothing. Records for new pages are refused where there is no room.
    Pages(ServeArgs),
    /// The DPU side of a server of your own: a plug-in in C says what it answers
    Plugin(plugin::PluginArgs),
    /// A plug-in's process; started by `plugin`
    #[command(hide = true)]
    PluginProcess {
        /// The shared object
        object: PathBuf,
        /// Who started this
        parent: u32,
    },
    /// The DPU side of a server; started by the others
    #[command(hide = true)]
    Dpu {
        /// Whose
        #[arg(long)]
        app: App,
        #[command(flatten)]
        args: ServeArgs,
    },
}

/// The applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum App {
    Kv,
    Pages,
}

impl App {
    fn name(self) -> &'static str {
        match self {
            App::Kv => "kv",
            App::Pages => "pages",
        }
    }
}

/// As Redis's `appendfsync`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum FsyncArg {
    /// Before they are sent
    Always,
    /// A second later
    Everysec,
    /// When the operating system writes them
    No,
}

impl From<FsyncArg> for Fsync {
    fn from(arg: FsyncArg) -> Fsync {
        match arg {
            FsyncArg::Always => Fsync::Always,
            FsyncArg::Everysec => Fsync::EverySecond,
            FsyncArg::No => Fsync::No,
        }
    }
}

/// How to serve.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    /// Where clients connect
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7379")]
    listen: SocketAddr,
    /// Directory for the data, made if it is missing
    #[arg(long, value_name = "DIR", default_value = "served")]
    data: PathBuf,
    /// Memory for records that are updated in place, with K, M or G; the rest lies in files
    #[arg(long, value_name = "BYTES", default_value = "64M")]
    memory: String,
    /// Size of the files' device, with K, M or G [default: as it is, 64G if it is new]. One that is
    /// smaller grows to it; none becomes smaller
    #[arg(long, value_name = "BYTES", conflicts_with = "plain")]
    size: Option<String>,
    /// Objects in files that the DPU side can answer for
    #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = items(),
          conflicts_with = "plain")]
    items: usize,
    /// Threads of the DPU side that serve connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = workers(),
          conflicts_with = "plain")]
    workers: usize,
    /// Files through the DPU side, but every request to the host
    #[arg(long, conflicts_with_all = ["plain", "net"])]
    no_offload: bool,
    #[command(flatten)]
    clients: LimitArgs,
    #[command(flatten)]
    net: NetArgs,
    /// No DPU side: sockets and a file of this process
    #[arg(long, conflicts_with = "net")]
    plain: bool,
    /// Log filter, as error, warn, info, debug
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    log: String,
}

/// What a cache table can hold.
fn items() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1 << 30)
}

/// More threads than this help no machine there is.
fn workers() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1024)
}

impl ServeArgs {
    fn socket(&self) -> PathBuf {
        self.data.join("dpu.sock")
    }

    fn host_socket(&self) -> PathBuf {
        self.data.join("host.sock")
    }

    fn form(&self) -> &'static str {
        match (self.plain, self.no_offload) {
            (true, _) => "plain",
            (false, true) => "no-offload",
            (false, false) => "offload",
        }
    }

    /// The same for the DPU side.
    fn to_flags(&self) -> Vec<String> {
        let mut flags = vec![
            format!("--listen={}", self.listen),
            format!("--data={}", self.data.display()),
            format!("--items={}", self.items),
            format!("--workers={}", self.workers),
            format!("--log={}", self.log),
        ];
        flags.extend(self.size.as_ref().map(|size| format!("--size={size}")));
        flags.extend(self.no_offload.then(|| "--no-offload".to_owned()));
        flags.extend(self.clients.to_flags());
        flags.extend(self.net.to_flags());
        flags
    }

    /// What clients may take of the host. One that the DPU side accepted is idle when that says so.
    fn host_limits(&self) -> Result<Limits, Failure> {
        let limits = self.clients.limits()?;
        let idle_timeout = match self.host_address() {
            Address::Tcp(_) if !self.net.is_asked() => limits.idle_timeout,
            _ => None,
        };
        Ok(Limits { idle_timeout, ..limits })
    }

    /// Where the host listens: where its clients are, unless the DPU side ends their connections.
    fn host_address(&self) -> Address {
        if self.plain || self.no_offload || self.net.is_asked() {
            Address::Tcp(self.listen)
        } else {
            Address::Unix(self.host_socket())
        }
    }
}

fn cannot<E: std::fmt::Display>(what: impl Into<String>) -> impl FnOnce(E) -> Failure {
    let what = what.into();
    move |error| Failure::internal(format!("cannot {what}: {error}"))
}

/// Runs one of them.
pub(crate) fn serve(what: Serve) -> Result<ExitCode, Failure> {
    match &what {
        Serve::Kv { args, .. } | Serve::Pages(args) | Serve::Dpu { args, .. } => {
            crate::log::start_with(&args.log)?;
        }
        Serve::Plugin(args) => crate::log::start_with(&args.log)?,
        // Nothing is to be said there: it has no descriptor for it.
        Serve::PluginProcess { .. } => {}
    }
    outboard_os::fds::raise_limit();
    match &what {
        Serve::Kv { args, fsync } => host(Served::Kv((*fsync).into()), args),
        Serve::Pages(args) => host(Served::Pages, args),
        Serve::Plugin(args) => plugin::serve(args),
        Serve::PluginProcess { object, parent } => {
            Ok(outboard_pageserver::plugin::host(object, *parent))
        }
        Serve::Dpu { app, args } => dpu(*app, args),
    }
}

/// The seed of the hash of keys; made once.
fn seed(data: &Path) -> io::Result<u64> {
    let path = data.join("seed");
    match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| {
            io::Error::other(format!("{} holds no number; is this our data?", path.display()))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            use std::hash::BuildHasher;
            let seed = std::hash::RandomState::new().hash_one(std::process::id());
            let new = data.join("seed.new");
            std::fs::write(&new, format!("{seed}\n"))?;
            std::fs::rename(&new, &path)?;
            Ok(seed)
        }
        Err(error) => Err(error),
    }
}

/// Makes the directory and keeps others out of it.
fn claim(data: &Path) -> Result<File, Failure> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)
        .map_err(cannot(format!("make {}", data.display())))?;
    super::served::claim(data)?.ok_or_else(|| {
        let text = format!("{} is served already; end that `outboard serve`", data.display());
        Failure::new(Code::Data, text)
    })
}

/// Data of another application, or that lies elsewhere, is not served.
fn keep_apart(data: &Path, ours: &str) -> Result<(), Failure> {
    let path = data.join("application");
    match std::fs::read_to_string(&path) {
        Ok(own) if own.trim() == ours => Ok(()),
        Ok(own) => {
            let (data, own) = (data.display(), own.trim());
            let text =
                format!("{data} holds data of `{own}`, not of `{ours}`; give another --data");
            Err(Failure::new(Code::Data, text))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::write(&path, ours).map_err(cannot(format!("write {}", path.display())))
        }
        Err(error) => Err(cannot(format!("read {}", path.display()))(error)),
    }
}

/// Port 0 is a free one, the same through all lives of the DPU side.
fn with_a_port(args: &ServeArgs) -> Result<ServeArgs, Failure> {
    let mut args = args.clone();
    if args.listen.port() == 0 {
        let found = std::net::TcpListener::bind(args.listen).and_then(|it| it.local_addr());
        args.listen = found.map_err(cannot(format!("listen at {}", args.listen)))?;
    }
    Ok(args)
}

/// An application, and what it alone is told.
#[derive(Clone, Copy)]
enum Served {
    Kv(Fsync),
    Pages,
}

impl Served {
    fn app(self) -> App {
        match self {
            Served::Kv(_) => App::Kv,
            Served::Pages => App::Pages,
        }
    }
}

/// The host's process.
fn host(served: Served, args: &ServeArgs) -> Result<ExitCode, Failure> {
    let app = served.app();
    args.net.check(args.listen)?;
    let lock = claim(&args.data)?;
    let args = &with_a_port(args)?;
    super::served::note(&lock, args.form(), args.listen)?;
    let place = if args.plain { "--plain" } else { "over-dpu" };
    keep_apart(&args.data, &format!("{} {place}", app.name()))?;
    let seed = seed(&args.data).map_err(cannot("keep a seed"))?;
    let memory = usize::try_from(bytes("memory", &args.memory)?).unwrap_or(usize::MAX);
    let limits = args.host_limits()?;
    let mut watch = Watch::new()?;
    let stop = Stop::new().map_err(cannot("make a wakeup"))?;
    let told = Arc::new(AtomicBool::new(false));
    let signals = {
        let (stop, told) = (Arc::clone(&stop), Arc::clone(&told));
        move || {
            while !matches!(watch.next(Duration::from_secs(3600)), Ok(Happened::Told) | Err(_)) {}
            told.store(true, Ordering::Release);
            stop.stop();
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(signals)
        .map_err(cannot("start a thread"))?;
    let host = Host { served, args, seed, memory, limits, stop };
    if args.plain {
        let log = args.data.join("log");
        let device = PlainDevice::open(&log).map_err(cannot(format!("open {}", log.display())))?;
        let at = args.data.join(super::served::CONTROL);
        let copies = Copies::offer(&at, device.held(), &log, Reserve::default());
        let copies = copies.map_err(cannot(format!("listen at {}", at.display())))?;
        let ended = host.run(host.listen()?, device, None);
        drop(copies);
        let ended = ended.map_err(cannot(format!("serve {}", args.data.display())))?;
        return how(ended, args);
    }
    let mut dpu = DpuSide::new(app, args.clone());
    loop {
        let (pid, listener) = host.begin(&mut dpu)?;
        let outcome = DdsDevice::attach(&args.socket(), app.name(), "log", START_LIMIT)
            .and_then(|device| host.run(listener, device, Some(pid)));
        let ended = match outcome {
            Ok(ended) => ended,
            // It died meanwhile: then it is started again.
            Err(error) if dpu.is_gone() => {
                tracing::warn!(%error, "the DPU side ended amid a request");
                Ended::DeviceLost
            }
            Err(error) => {
                dpu.end();
                return Err(cannot(format!("serve {}", args.data.display()))(error));
            }
        };
        if ended != Ended::DeviceLost || told.load(Ordering::Acquire) {
            dpu.end();
            return how(ended, args);
        }
        tracing::warn!("the DPU side is gone; it is started again");
    }
}

/// How the program ends.
fn how(ended: Ended, args: &ServeArgs) -> Result<ExitCode, Failure> {
    if ended == Ended::JournalFailed {
        let data = args.data.display();
        let text =
            format!("the journal in {data} cannot be written; free space there and serve on");
        return Err(Failure::internal(text));
    }
    Ok(ExitCode::SUCCESS)
}

/// The host's side of a server, over one device after another.
struct Host<'a> {
    served: Served,
    args: &'a ServeArgs,
    seed: u64,
    memory: usize,
    limits: Limits,
    stop: Arc<Stop>,
}

impl Host<'_> {
    /// Listens, and has a DPU side. In this order, so that who comes as soon as that one listens
    /// waits here for the store; but what a DPU side that is to go listens at is free only later.
    fn begin(&self, dpu: &mut DpuSide) -> Result<(u32, Listener), Failure> {
        let early = self.listen().ok();
        let pid = dpu.ensure()?;
        let listener = early.map_or_else(|| self.listen(), Ok);
        let listener = listener.inspect_err(|_| dpu.end())?;
        Ok((pid, listener))
    }

    fn listen(&self) -> Result<Listener, Failure> {
        let address = self.args.host_address();
        Listener::bind(&address).map_err(cannot(format!("listen at {address}")))
    }

    /// Serves over a device until it is lost or the end is asked for.
    fn run<D: Device>(&self, listener: Listener, device: D, dpu: Option<u32>) -> io::Result<Ended> {
        let (stop, memory, limits) = (Arc::clone(&self.stop), self.memory, self.limits);
        match self.served {
            Served::Kv(fsync) => {
                let dir = self.args.data.clone();
                let store = StoreSetup { dir, seed: self.seed, memory, fsync };
                let port = Some(self.args.listen.port());
                let setup = Setup { store, form: self.args.form(), port, limits };
                let mut server = KvServer::open(&setup, listener, device, stop)?;
                self.say_ready(server.address(), dpu);
                server.run()
            }
            Served::Pages => {
                let setup = pages::Setup { memory, limits };
                let mut server = PageServer::open(&setup, listener, device, stop)?;
                self.say_ready(server.address(), dpu);
                server.run()
            }
        }
    }

    fn say_ready(&self, address: &Address, dpu: Option<u32>) {
        let at = match address {
            Address::Tcp(address) => *address,
            Address::Unix(_) => self.args.listen,
        };
        let side = dpu.map_or_else(String::new, |pid| format!(", DPU side {pid}"));
        let client = match self.served {
            Served::Kv(_) => format!(" redis-cli -h {} -p {};", at.ip(), at.port()),
            Served::Pages => String::new(),
        };
        say!(
            "serving {} at {at} from {} ({}{side});{client} Ctrl-C ends it",
            self.served.app().name(),
            self.args.data.display(),
            self.args.form(),
        );
    }
}

/// The DPU side's process, started or adopted.
struct DpuSide {
    app: App,
    args: ServeArgs,
    child: Option<Child>,
    pid: Option<u32>,
    restarts: Restarts,
}

impl DpuSide {
    fn new(app: App, args: ServeArgs) -> DpuSide {
        DpuSide { app, args, child: None, pid: None, restarts: Restarts::default() }
    }

    /// The process that listens, if one does.
    fn listening(&self) -> Option<u32> {
        link::connect(&self.args.socket()).ok()?.cred().ok().map(|cred| cred.pid)
    }

    /// What it is started with.
    fn words(&self) -> Vec<String> {
        let words = ["serve", "dpu", "--app", self.app.name()].map(str::to_owned);
        words.into_iter().chain(self.args.to_flags()).collect()
    }

    /// Whether a process was started with just that. One that was not may listen elsewhere, or
    /// serve in another form than this process is about to say it does.
    fn is_as_asked(&self, pid: u32) -> bool {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).skip(1).collect();
        let asked = self.words();
        // The last word, too, ends with a zero.
        words.len() == asked.len() + 1 && asked.iter().zip(words).all(|(a, b)| a.as_bytes() == b)
    }

    /// Makes sure that one listens; its process.
    fn ensure(&mut self) -> Result<u32, Failure> {
        if let Some(pid) = self.listening() {
            self.pid = Some(pid);
            if self.is_as_asked(pid) {
                self.restarts.serves();
                return Ok(pid);
            }
            tracing::warn!(pid, "a DPU side with other settings is ended and started anew");
            self.end();
        } else if self.pid.is_some() {
            std::thread::sleep(self.restarts.died());
        }
        self.spawn()?;
        let end = Instant::now() + START_LIMIT;
        while Instant::now() < end {
            if let Some(pid) = self.listening() {
                self.pid = Some(pid);
                self.restarts.serves();
                return Ok(pid);
            }
            if self.ended() {
                return Err(Failure::internal(self.last_words()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let limit = START_LIMIT.as_secs();
        Err(Failure::internal(format!(
            "the DPU side did not open its device in {limit} s; see {}",
            self.log().display()
        )))
    }

    fn log(&self) -> PathBuf {
        self.args.data.join("dpu.log")
    }

    fn spawn(&mut self) -> Result<(), Failure> {
        let program = std::env::current_exe().map_err(cannot("find this program"))?;
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(self.log());
        let log = log.map_err(cannot(format!("write {}", self.log().display())))?;
        // A process group of its own: Ctrl-C at the terminal reaches only the host, which ends it.
        let child = Command::new(&program)
            .args(self.words())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(cannot(format!("start {}", program.display())))?;
        self.pid = Some(child.id());
        self.child = Some(child);
        Ok(())
    }

    fn ended(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)))
    }

    fn is_gone(&mut self) -> bool {
        self.ended() || self.listening().is_none()
    }

    /// Why it ended: its own last message, which names the remedy.
    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        text.lines().rev().find_map(|line| line.strip_prefix("outboard: ")).map_or_else(
            || format!("the DPU side ended at its start; see {}", self.log().display()),
            str::to_owned,
        )
    }

    /// Asks it to end, and waits.
    fn end(&mut self) {
        let pid = self.pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid
            && let Err(error) = kill_process(pid, Signal::TERM)
        {
            tracing::debug!(%error, "the DPU side has ended already");
        }
        let end = Instant::now() + END_LIMIT;
        while Instant::now() < end {
            if self.is_gone() && self.child.as_mut().is_none_or(|c| c.try_wait().is_ok()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let log = self.log();
        tracing::warn!(log = %log.display(), "the DPU side does not end");
    }
}

/// What clients come to the DPU side by.
enum Clients {
    Sockets(Listener),
    Devices(Ends),
}

/// Takes the devices that clients are behind, if they are given, else their address.
fn clients(net: &NetArgs, listen: SocketAddr) -> Result<Clients, Failure> {
    if let Some(ends) = net.open()? {
        return Ok(Clients::Devices(ends));
    }
    let listener = Listener::bind(&Address::Tcp(listen));
    Ok(Clients::Sockets(listener.map_err(cannot(format!("listen at {listen}")))?))
}

/// The DPU side's process.
fn dpu(app: App, args: &ServeArgs) -> Result<ExitCode, Failure> {
    let mut watch = Watch::new()?;
    let seed = seed(&args.data).map_err(cannot("read the seed"))?;
    let app: Arc<dyn Application> = match app {
        App::Kv => Arc::new(KvApplication { seed }),
        App::Pages => Arc::new(PagesApplication),
    };
    let clients = match args.no_offload {
        true => None,
        false => Some(clients(&args.net, args.listen)?),
    };
    let device = args.data.join("volume");
    let mut options = ServerOptions::new(device.clone(), args.socket());
    options.capacity = args.size.as_deref().map(|size| bytes("size", size)).transpose()?;
    options.items = args.items;
    options.application = Some(Arc::clone(&app)).filter(|_| !args.no_offload);
    let health = Arc::clone(&options.health);
    let server =
        Server::start(options).map_err(cannot(format!("serve files of {}", device.display())))?;
    let setup = worker::Setup {
        app,
        health,
        table: Arc::new(server.table().clone()),
        files: Arc::clone(server.files()),
        signature: None,
        host: Address::Unix(args.host_socket()),
        contexts: 1024,
        pool: 64 << 20,
        limits: args.clients.limits()?,
    };
    let serves = || cannot(format!("serve {}", args.listen));
    let (front, frames) = match clients {
        None => (None, None),
        Some(Clients::Sockets(listener)) => {
            (Some(Front::start(listener, args.workers, &setup).map_err(serves())?), None)
        }
        Some(Clients::Devices(ends)) => {
            let (signature, at) = (Signature::of_server(args.listen), Address::Tcp(args.listen));
            let front = Front::between(ends, signature, at, args.workers, &setup);
            let (front, frames) = front.map_err(serves())?;
            (Some(front), Some(frames))
        }
    };
    front.iter().for_each(|front| server.tell("director", front.figures()));
    let directs = |front: &Option<Front>| front.as_ref().is_none_or(Front::is_serving);
    while server.is_serving() && directs(&front) {
        if watch.next(Duration::from_secs(1))? == Happened::Told {
            break;
        }
    }
    let lost = !directs(&front);
    if let Some(front) = &front {
        tracing::info!(tally = ?front.tally(), ?frames, "the director ends");
    }
    drop(front);
    server.stop().map_err(cannot("end in order"))?;
    if lost {
        return Err(Failure::internal("a thread of the director ended; the log says why"));
    }
    Ok(ExitCode::SUCCESS)
}

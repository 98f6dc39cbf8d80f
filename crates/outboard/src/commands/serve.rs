//! `outboard serve`: a server for remote clients, and the DPU side that answers for it.
//!
//! ```text
//! offload:     client ── TCP ── DPU side (its own process) ── Unix socket ── host
//!                                   └── files ── rings in shared memory ─────┘
//! --no-offload client ── TCP ── host ── rings ── DPU side: files only
//! --plain      client ── TCP ── host ── a file
//! ```

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

use clap::{Args, Subcommand};
use outboard_dds::dpu::offload::Application;
use outboard_drivers::dds::server::{Server, ServerOptions};
use outboard_drivers::dds::tcp::front::Front;
use outboard_drivers::dds::tcp::sockets::{Address, Listener};
use outboard_drivers::dds::tcp::worker;
use outboard_drivers::link;
use outboard_servers::device::{DdsDevice, PlainDevice};
use outboard_servers::kv::{Ended, KvApplication, KvServer, Setup, Stop, StoreSetup};
use rustix::process::{Pid, Signal, kill_process};

use crate::exit::{Code, Failure};
use crate::settings::bytes;
use crate::watch::{Happened, Watch};

/// Time a DPU side has to open its device, or to end.
const START_LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(15);
/// First pause before a DPU side that died is started again; doubles up to the longest.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_LONGEST: Duration = Duration::from_secs(5);
/// A server that lived this long is not thought to die at every start.
const STABLE: Duration = Duration::from_secs(30);

/// What to serve.
#[derive(Subcommand, Debug)]
pub(crate) enum Serve {
    /// A key-value server in the manner of FASTER that speaks RESP2, as Redis does
    Kv(ServeArgs),
    /// The DPU side of a server; started by the others
    #[command(hide = true)]
    Dpu(ServeArgs),
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
    /// Size of the files' device if it is new, with K, M or G
    #[arg(long, value_name = "BYTES", default_value = "64G")]
    size: String,
    /// Objects in files that the DPU side can answer for
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    items: usize,
    /// Threads of the DPU side that serve connections
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// Files through the DPU side, but every request to the host
    #[arg(long, conflicts_with = "plain")]
    no_offload: bool,
    /// No DPU side: sockets and a file of this process
    #[arg(long)]
    plain: bool,
    /// Log filter, as error, warn, info, debug
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    log: String,
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
            format!("--size={}", self.size),
            format!("--items={}", self.items),
            format!("--workers={}", self.workers),
            format!("--log={}", self.log),
        ];
        flags.extend(self.no_offload.then(|| "--no-offload".to_owned()));
        flags
    }
}

fn cannot<E: std::fmt::Display>(what: impl Into<String>) -> impl FnOnce(E) -> Failure {
    let what = what.into();
    move |error| Failure::internal(format!("cannot {what}: {error}"))
}

/// Runs one of them.
pub(crate) fn serve(what: Serve) -> Result<ExitCode, Failure> {
    let (Serve::Kv(args) | Serve::Dpu(args)) = &what;
    crate::log::start_with(&args.log)?;
    match what {
        Serve::Kv(args) => host(&args),
        Serve::Dpu(args) => dpu(&args),
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
    let path = data.join("host.lock");
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let lock = lock.map_err(cannot(format!("open {}", path.display())))?;
    lock.try_lock().map_err(|_| {
        let text = format!("{} is served already; end that `outboard serve`", data.display());
        Failure::new(Code::Data, text)
    })?;
    Ok(lock)
}

/// The host's process.
fn host(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let _lock = claim(&args.data)?;
    let seed = seed(&args.data).map_err(cannot("keep a seed"))?;
    let store = StoreSetup {
        dir: args.data.clone(),
        seed,
        memory: usize::try_from(bytes("memory", &args.memory)?).unwrap_or(usize::MAX),
    };
    let mut watch = Watch::new()?;
    let stop = Stop::new().map_err(cannot("make a bell"))?;
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
    let listen = if args.plain || args.no_offload {
        Address::Tcp(args.listen)
    } else {
        Address::Unix(args.host_socket())
    };
    let setup = Setup { listen, store, form: args.form() };
    if args.plain {
        let log = args.data.join("log");
        let device = PlainDevice::open(&log).map_err(cannot(format!("open {}", log.display())))?;
        let server = KvServer::open(&setup, device, Arc::clone(&stop));
        let mut server = server.map_err(cannot(format!("serve {}", args.data.display())))?;
        say_ready(args, server.address(), None);
        server.run().map_err(cannot("go on"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut dpu = DpuSide::new(args.clone());
    loop {
        let pid = dpu.ensure()?;
        let server = DdsDevice::attach(&args.socket(), "kv", "log", START_LIMIT)
            .and_then(|device| KvServer::open(&setup, device, Arc::clone(&stop)));
        let ended = match server {
            Ok(mut server) => {
                say_ready(args, server.address(), Some(pid));
                server.run().map_err(cannot("go on"))?
            }
            // It died meanwhile: then it is started again.
            Err(error) if dpu.is_gone() => {
                tracing::warn!(%error, "the DPU side ended while the server was opened");
                Ended::DeviceLost
            }
            Err(error) => {
                dpu.end();
                return Err(cannot(format!("serve {}", args.data.display()))(error));
            }
        };
        if ended == Ended::Told || told.load(Ordering::Acquire) {
            dpu.end();
            return Ok(ExitCode::SUCCESS);
        }
        tracing::warn!("the DPU side is gone; it is started again");
    }
}

fn say_ready(args: &ServeArgs, address: &Address, dpu: Option<u32>) {
    let at = match address {
        Address::Tcp(address) => *address,
        Address::Unix(_) => args.listen,
    };
    let side = dpu.map_or_else(String::new, |pid| format!(", DPU side {pid}"));
    println!(
        "serving kv at {at} from {} ({}{side}); redis-cli -h {} -p {}; Ctrl-C ends it",
        args.data.display(),
        args.form(),
        at.ip(),
        at.port()
    );
}

/// The DPU side's process, started or adopted.
struct DpuSide {
    args: ServeArgs,
    child: Option<Child>,
    pid: Option<u32>,
    started: Instant,
    backoff: Duration,
}

impl DpuSide {
    fn new(args: ServeArgs) -> DpuSide {
        let (started, backoff) = (Instant::now(), Duration::ZERO);
        DpuSide { args, child: None, pid: None, started, backoff }
    }

    /// The process that listens, if one does.
    fn listening(&self) -> Option<u32> {
        link::connect(&self.args.socket()).ok()?.cred().ok().map(|cred| cred.pid)
    }

    /// Makes sure that one listens; its process.
    fn ensure(&mut self) -> Result<u32, Failure> {
        if let Some(pid) = self.listening() {
            self.pid = Some(pid);
            return Ok(pid);
        }
        if self.pid.is_some() {
            std::thread::sleep(self.backoff);
            let stable = self.started.elapsed() > STABLE;
            self.backoff = if stable { Duration::ZERO } else { self.backoff * 2 };
            self.backoff = self.backoff.clamp(BACKOFF_FIRST, BACKOFF_LONGEST);
        }
        self.spawn()?;
        let end = Instant::now() + START_LIMIT;
        while Instant::now() < end {
            if let Some(pid) = self.listening() {
                self.pid = Some(pid);
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
            .args(["serve", "dpu"])
            .args(self.args.to_flags())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(cannot(format!("start {}", program.display())))?;
        self.pid = Some(child.id());
        self.child = Some(child);
        self.started = Instant::now();
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

/// The DPU side's process.
fn dpu(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let mut watch = Watch::new()?;
    let seed = seed(&args.data).map_err(cannot("read the seed"))?;
    let app: Arc<dyn Application> = Arc::new(KvApplication { seed });
    let listener = if args.no_offload {
        None
    } else {
        let listener = Listener::bind(&Address::Tcp(args.listen));
        Some(listener.map_err(cannot(format!("listen at {}", args.listen)))?)
    };
    let device = args.data.join("volume");
    let mut options = ServerOptions::new(device.clone(), args.socket());
    options.capacity = bytes("size", &args.size)?;
    options.items = args.items;
    options.application = Some(Arc::clone(&app)).filter(|_| !args.no_offload);
    let server =
        Server::start(options).map_err(cannot(format!("serve files of {}", device.display())))?;
    let setup = worker::Setup {
        app,
        table: Arc::new(server.table().clone()),
        files: Arc::clone(server.files()),
        signature: None,
        host: Address::Unix(args.host_socket()),
        contexts: 1024,
        pool: 64 << 20,
    };
    let front = match listener {
        Some(listener) => Some(
            Front::start(listener, args.workers, &setup)
                .map_err(cannot(format!("serve {}", args.listen)))?,
        ),
        None => None,
    };
    while server.is_serving() {
        if watch.next(Duration::from_secs(1))? == Happened::Told {
            break;
        }
    }
    if let Some(front) = &front {
        tracing::info!(tally = ?front.tally(), "the director ends");
    }
    drop(front);
    server.stop().map_err(cannot("end in order"))?;
    Ok(ExitCode::SUCCESS)
}

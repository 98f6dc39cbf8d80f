//! A key-value server with its DPU side, in threads of this process; and a client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_dds::dpu::offload::Application;
use outboard_os::room::Reserve;
use outboard_pageserver::server::{Server, ServerOptions};
use outboard_pageserver::tcp::front::Front;
use outboard_pageserver::tcp::sockets::{Address, Listener};
use outboard_pageserver::tcp::worker::{Limits, Setup as FrontSetup};
use outboard_servers::device::{DdsDevice, Device, PlainDevice};
use outboard_servers::kv::{Ended, Fsync, KvApplication, KvServer, Setup, Stop, StoreSetup};

const SEED: u64 = 7;
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

fn store(dir: PathBuf) -> StoreSetup {
    StoreSetup { dir, seed: SEED, memory: 4 << 20, fsync: Fsync::default() }
}

/// A host side that runs.
pub(crate) struct Host {
    stop: Arc<Stop>,
    thread: JoinHandle<Ended>,
    pub(crate) address: Address,
}

impl Host {
    fn start<D: Device>(
        dir: &Path,
        listen: Address,
        form: &'static str,
        limits: Limits,
        device: impl FnOnce() -> D + Send + 'static,
    ) -> Host {
        let dir = dir.to_owned();
        Host::start_with(move |told, ready| {
            let listener = Listener::bind(&listen).unwrap();
            let setup = Setup { store: store(dir), form, port: None, limits };
            let mut server = KvServer::open(&setup, listener, device(), told).unwrap();
            ready.send(server.address().clone()).unwrap();
            server.run().unwrap()
        })
    }

    pub(crate) fn start_with(
        serve: impl FnOnce(Arc<Stop>, mpsc::Sender<Address>) -> Ended + Send + 'static,
    ) -> Host {
        let stop = Stop::new().unwrap();
        let told = Arc::clone(&stop);
        let (ready, wait) = mpsc::channel();
        let thread = std::thread::spawn(move || serve(told, ready));
        let address = wait.recv_timeout(LIMIT).unwrap();
        Host { stop, thread, address }
    }

    pub(crate) fn plain(dir: &Path) -> Host {
        Host::limited(dir, Limits::default())
    }

    /// A plain one of which clients may take so much.
    pub(crate) fn limited(dir: &Path, limits: Limits) -> Host {
        let file = dir.join("log");
        let listen = Address::Tcp("127.0.0.1:0".parse().unwrap());
        Host::start(dir, listen, "plain", limits, move || PlainDevice::open(&file).unwrap())
    }

    /// Opens a plain one and ends it; or why it cannot be opened.
    pub(crate) fn try_plain(dir: &Path) -> Result<(), String> {
        let device = PlainDevice::open(&dir.join("log")).unwrap();
        let listener = Listener::bind(&Address::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        let store = store(dir.to_owned());
        let setup = Setup { store, form: "plain", port: None, limits: Limits::default() };
        let opened = KvServer::open(&setup, listener, device, Stop::new().unwrap());
        opened.map(drop).map_err(|error| error.to_string())
    }

    pub(crate) fn over_dpu(dir: &Path) -> Host {
        let socket = dir.join("dpu.sock");
        let listen = Address::Unix(dir.join("host.sock"));
        Host::start(dir, listen, "offload", Limits::default(), move || {
            DdsDevice::attach(&socket, "kv", "log", LIMIT).unwrap()
        })
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(self) -> Ended {
        self.thread.join().unwrap()
    }

    pub(crate) fn stop(self) -> Ended {
        self.stop.stop();
        self.thread.join().unwrap()
    }
}

/// A DPU side that runs.
pub(crate) struct Dpu {
    pub(crate) front: Front,
    _server: Server,
}

impl Dpu {
    pub(crate) fn start(dir: &Path) -> Dpu {
        Dpu::start_at(dir, &Address::Tcp("127.0.0.1:0".parse().unwrap()))
    }

    pub(crate) fn start_at(dir: &Path, address: &Address) -> Dpu {
        Dpu::start_with(dir, address, Arc::new(KvApplication { seed: SEED }))
    }

    pub(crate) fn start_with(dir: &Path, address: &Address, app: Arc<dyn Application>) -> Dpu {
        Dpu::start_all(dir, address, app, 1 << 30, Duration::ZERO)
    }

    /// One of which every read takes so much longer.
    pub(crate) fn start_slow(dir: &Path, read_delay: Duration) -> Dpu {
        let address = Address::Tcp("127.0.0.1:0".parse().unwrap());
        Dpu::start_all(dir, &address, Arc::new(KvApplication { seed: SEED }), 1 << 30, read_delay)
    }

    /// One whose device is of so many bytes.
    pub(crate) fn start_sized(dir: &Path, capacity: u64) -> Dpu {
        let address = Address::Tcp("127.0.0.1:0".parse().unwrap());
        let app = Arc::new(KvApplication { seed: SEED });
        Dpu::start_all(dir, &address, app, capacity, Duration::ZERO)
    }

    fn start_all(
        dir: &Path,
        address: &Address,
        app: Arc<dyn Application>,
        capacity: u64,
        read_delay: Duration,
    ) -> Dpu {
        let options = ServerOptions::new(dir.join("volume"), dir.join("dpu.sock"));
        let health = Arc::clone(&options.health);
        let server = Server::start(ServerOptions {
            capacity: Some(capacity),
            items: 1 << 17,
            read_delay,
            reserve: Reserve { most: 1 << 20, one_in: 1000 },
            application: Some(Arc::clone(&app)),
            ..options
        })
        .unwrap();
        let setup = FrontSetup {
            app,
            health,
            table: Arc::new(server.table().clone()),
            files: Arc::clone(server.files()),
            signature: None,
            host: Address::Unix(dir.join("host.sock")),
            contexts: 256,
            pool: 16 << 20,
            limits: Limits::default(),
        };
        let listener = Listener::bind(address).unwrap();
        let front = Front::start(listener, 2, &setup).unwrap();
        Dpu { front, _server: server }
    }
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Answer>),
}

pub(crate) struct Client {
    reader: BufReader<TcpStream>,
}

fn connect(address: &Address) -> std::io::Result<TcpStream> {
    let Address::Tcp(address) = address else { panic!("a TCP address") };
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

pub(crate) fn encode(command: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for arg in command {
        bytes.extend(format!("${}\r\n", arg.len()).bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Client {
    pub(crate) fn new(address: &Address) -> Client {
        Client { reader: BufReader::new(connect(address).unwrap()) }
    }

    pub(crate) fn try_new(address: &Address) -> Option<Client> {
        Some(Client { reader: BufReader::new(connect(address).ok()?) })
    }

    /// So many bytes, whatever they are.
    pub(crate) fn receive_bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.reader.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// `None` when the connection ends or breaks.
    pub(crate) fn try_ask(&mut self, command: &[&[u8]]) -> Option<Answer> {
        self.reader.get_mut().write_all(&encode(command)).ok()?;
        self.try_receive()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    pub(crate) fn end(&mut self) {
        self.reader.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    }

    pub(crate) fn receive(&mut self) -> Answer {
        self.try_receive().expect("an answer")
    }

    /// `None` when the connection ends or breaks.
    pub(crate) fn try_receive(&mut self) -> Option<Answer> {
        let mut line = String::new();
        self.reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        let text = line.strip_suffix("\r\n")?;
        let rest = &text[1..];
        Some(match text.as_bytes()[0] {
            b'+' => Answer::Simple(rest.to_owned()),
            b'-' => Answer::Error(rest.to_owned()),
            b':' => Answer::Integer(rest.parse().unwrap()),
            b'$' if rest == "-1" => Answer::Bulk(None),
            b'$' => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.reader.read_exact(&mut bytes).ok()?;
                assert_eq!(&bytes[bytes.len() - 2..], b"\r\n");
                bytes.truncate(bytes.len() - 2);
                Answer::Bulk(Some(bytes))
            }
            b'*' => {
                let n = rest.parse::<usize>().unwrap();
                Answer::Array((0..n).map(|_| self.try_receive()).collect::<Option<_>>()?)
            }
            other => panic!("no answer begins with {other}"),
        })
    }

    pub(crate) fn ask(&mut self, command: &[&[u8]]) -> Answer {
        self.send(&encode(command));
        self.receive()
    }

    pub(crate) fn ask_words(&mut self, command: &str) -> Answer {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        self.ask(&words)
    }
}

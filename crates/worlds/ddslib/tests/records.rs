//! The example in C: a server whose reads a plug-in answers beyond the bus, and that plug-in gone
//! wrong in every way it can.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outboard_os::room::Reserve;
use outboard_pageserver::plugin::{self, Plugin, PluginMaintainer, PluginOptions};
use outboard_pageserver::server::{Server, ServerOptions};
use outboard_pageserver::tcp::front::Front;
use outboard_pageserver::tcp::sockets::{Address, Listener};
use outboard_pageserver::tcp::worker::{Limits, Setup};

const TEXT: usize = 112;
/// Records that batches read.
const KEPT: u64 = 100;
const PATIENCE: Duration = Duration::from_secs(60);

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn compile(source: &str, into: &Path, flags: &[&str]) {
    let status = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()))
        .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-I"])
        .arg(here("include"))
        .arg(here(source))
        .args(flags)
        .arg("-L")
        .arg(libraries())
        .arg("-o")
        .arg(into)
        .status()
        .expect("a C compiler, which linking Rust programs needs as well");
    assert!(status.success());
}

fn compile_plugin(source: &str, dir: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let object = dir.join(name);
    compile(source, &object, &[&["-shared", "-fPIC"], flags].concat());
    object
}

/// The process of a plug-in: this very program, started with other words.
#[test]
#[ignore = "started by the others"]
fn plugin_process() {
    let args: Vec<String> = std::env::args().collect();
    if let [.., object, parent] = args.as_slice()
        && let Ok(parent) = parent.parse()
    {
        let _ended = plugin::host(Path::new(object), parent);
    }
}

fn options(object: PathBuf) -> PluginOptions {
    let args = ["--ignored", "--exact", "plugin_process"].map(Into::into).to_vec();
    PluginOptions::new(std::env::current_exe().unwrap(), args, object)
}

/// A DPU side, and the server of the example.
struct World {
    front: Front,
    plugin: Plugin,
    host: Child,
    /// Where the server itself listens.
    at_host: SocketAddr,
    _server: Server,
    _dir: tempfile::TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        let _gone = self.host.kill();
        let _reaped = self.host.wait();
    }
}

impl World {
    fn start(source: &str) -> World {
        let dir = tempfile::tempdir().unwrap();
        let object = compile_plugin(source, dir.path(), "offload.so", &[]);
        let plugin = Plugin::probe(options(object)).unwrap();
        assert_eq!(plugin.profile().name, "records");
        let socket = dir.path().join("socket");
        let server = Server::start(ServerOptions {
            capacity: Some(1 << 30),
            items: 10_000,
            reserve: Reserve { most: 1 << 20, one_in: 1000 },
            maintainer: Some(Arc::new(PluginMaintainer::new(plugin.clone()).unwrap())),
            ..ServerOptions::new(dir.path().join("volume"), socket.clone())
        })
        .unwrap();
        let program = dir.path().join("server");
        compile("examples/records/server.c", &program, &["-loutboard_ddslib"]);
        let mut host = Command::new(&program)
            .arg(&socket)
            .arg("0")
            .env("LD_LIBRARY_PATH", libraries())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(host.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let at: SocketAddr = said.trim().strip_prefix("records at ").unwrap().parse().unwrap();
        let setup = Setup {
            app: Arc::new(plugin.declared()),
            health: Arc::default(),
            table: Arc::new(server.table().clone()),
            files: Arc::clone(server.files()),
            signature: None,
            host: Address::Tcp(at),
            contexts: 1024,
            pool: 8 << 20,
            limits: Limits::default(),
        };
        let listener = Listener::bind(&Address::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        let front = Front::start_asking(listener, 1, &setup, plugin.clone()).unwrap();
        World { front, plugin, host, at_host: at, _server: server, _dir: dir }
    }

    fn address(&self) -> SocketAddr {
        let Address::Tcp(at) = self.front.address() else { panic!("a port") };
        *at
    }

    fn client(&self) -> Client {
        Client::connect(self.address())
    }

    fn offloaded(&self) -> u64 {
        self.front.tally().offloaded.load(Ordering::Relaxed)
    }

    fn faults(&self) -> u64 {
        self.plugin.counts().faults.load(Ordering::Relaxed)
    }

    /// Waits until a record is answered beyond the bus (again), whichever way that takes.
    fn wait_for_offloading(&self, client: &mut Client, number: u64, text: &str) {
        let until = Instant::now() + PATIENCE;
        let before = self.offloaded();
        while self.offloaded() == before {
            // What the table forgot while the plug-in was away comes back with the next write.
            client.put(number, text);
            assert_eq!(client.get(number), Some(text.to_owned()));
            assert!(Instant::now() < until, "offloading does not come back");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Client(TcpStream);

impl Client {
    fn connect(at: SocketAddr) -> Client {
        let stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(stream)
    }

    fn request(what: u32, number: u64, text: &[u8]) -> Vec<u8> {
        let len = u32::try_from(16 + text.len()).unwrap();
        [&len.to_le_bytes()[..], &what.to_le_bytes(), &number.to_le_bytes(), text].concat()
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Status, number, text.
    fn answer(&mut self) -> (u32, u64, Vec<u8>) {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).unwrap();
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let mut text = vec![0; word(0) as usize - 16];
        self.0.read_exact(&mut text).unwrap();
        (word(4), u64::from_le_bytes(head[8..].try_into().unwrap()), text)
    }

    fn padded(text: &str) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(TEXT, 0);
        bytes
    }

    fn put(&mut self, number: u64, text: &str) {
        self.send(&Client::request(2, number, &Client::padded(text)));
        assert_eq!(self.answer(), (0, number, Vec::new()));
    }

    fn get(&mut self, number: u64) -> Option<String> {
        self.send(&Client::request(1, number, &[]));
        let (status, own, text) = self.answer();
        assert_eq!(own, number);
        match status {
            0 => Some(String::from_utf8(text).unwrap().trim_end_matches('\0').to_owned()),
            1 => None,
            status => panic!("status {status}"),
        }
    }

    /// Reads records by the batch, each sent in two pieces cut anywhere, and takes the answers in
    /// order.
    fn get_batches(&mut self, batch: u64, batches: u64, text: impl Fn(u64) -> String) {
        for (n, cut) in (0..batches).zip((11usize..).step_by(37)) {
            let numbers = || (0..batch).map(move |i| (n * batch + i) % KEPT);
            let asked: Vec<u8> =
                numbers().flat_map(|number| Client::request(1, number, &[])).collect();
            let (before, after) = asked.split_at(cut % asked.len());
            self.send(before);
            self.send(after);
            for number in numbers() {
                assert_eq!(self.answer(), (0, number, Client::padded(&text(number))));
            }
        }
    }

    fn count(&mut self) -> u64 {
        self.send(&Client::request(3, 0, &[]));
        self.answer().1
    }
}

#[test]
fn records_in_c_are_answered_beyond_the_bus() {
    let world = World::start("examples/records/offload.c");
    let program = world._dir.path().join("client");
    compile("examples/records/client.c", &program, &[]);
    let port = world.address().port().to_string();
    let run = |args: &[&str]| {
        let output = Command::new(&program).arg(&port).args(args).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run(&["get", "7"]), "no such record\n");
    assert_eq!(run(&["put", "7", "some text"]), "");
    assert_eq!(run(&["get", "7"]), "some text\n");

    // Many at once, in one stream, in any order of who answers.
    let mut client = world.client();
    let mut script = Vec::new();
    for number in 0..500 {
        let text = Client::padded(&format!("the text of {number}"));
        script.extend(Client::request(2, number, &text));
    }
    client.send(&script);
    (0..500).for_each(|number| assert_eq!(client.answer(), (0, number, Vec::new())));
    world.wait_for_offloading(&mut client, 600, "ready");
    let (served, offloaded) = (client.count(), world.offloaded());
    script.clear();
    (0..500).for_each(|number| script.extend(Client::request(1, number, &[])));
    script.extend(Client::request(1, 100_000, &[]));
    client.send(&script);
    for number in 0..500 {
        let text = Client::padded(&format!("the text of {number}"));
        assert_eq!(client.answer(), (0, number, text));
    }
    assert_eq!(client.answer(), (1, 100_000, Vec::new()));
    assert_eq!(client.count() - served, 2, "the one that is not there, and this");
    // The worker tells what it did after it sent the answers: before it sends the next.
    let counts = world.plugin.counts();
    assert_eq!(world.offloaded() - offloaded, 500);
    let (batches, questions) =
        (counts.batches.load(Ordering::Relaxed), counts.questions.load(Ordering::Relaxed));
    println!("{questions} questions in {batches} batches");
    assert!(batches < questions, "they share crossings");
    assert_eq!(world.faults(), 0);
}

/// A measurement with batches stalled: its reads by way of the server had taken all records out of
/// the table, so that the host answered what was thought to be the plug-in's, and the server held
/// back each small answer until the one before was acknowledged. Whoever answers, a batch ends; and
/// who answers is known.
#[test]
fn batches_are_answered_in_order_whoever_answers() {
    let world = World::start("examples/records/offload.c");
    let mut client = world.client();
    for (batch, batches) in [(8, 50), (64, 25)] {
        let text = |number: u64| format!("{number} for batches of {batch}");
        let offloaded = |client: &mut Client| {
            // The worker tells what it did after it sent the answers: before it sends the next.
            client.count();
            let (before, faults) = (world.offloaded(), world.faults());
            client.get_batches(batch, batches, text);
            client.count();
            // One that is killed, for a machine that stands still, loses its questions to the host.
            (world.faults() == faults).then(|| world.offloaded() - before)
        };
        (0..KEPT).for_each(|number| client.put(number, &text(number)));
        world.wait_for_offloading(&mut client, 1000, "ready");
        assert!(offloaded(&mut client).is_none_or(|all| all == batch * batches), "the plug-in's");
        let mut direct = Client::connect(world.at_host);
        (0..KEPT).for_each(|number| assert_eq!(direct.get(number), Some(text(number))));
        assert!(offloaded(&mut client).is_none_or(|all| all == 0), "the host's");
        (0..KEPT).step_by(2).for_each(|number| client.put(number, &text(number)));
        assert!(offloaded(&mut client).is_none_or(|all| all == batch * batches / 2), "of both");
    }
}

#[test]
fn a_plugin_that_goes_wrong_costs_only_its_offloading() {
    let world = World::start("tests/mischief.c");
    let mut client = world.client();
    world.wait_for_offloading(&mut client, 1, "one");
    // Loops, writes to nowhere, aborts, opens a file, sends the DPU side a signal: which it could,
    // once, as what `abort` needs was allowed with every process.
    for bad in [900_001, 900_002, 900_005, 900_006, 900_010] {
        let faults = world.faults();
        assert_eq!(client.get(bad), None, "the host answers");
        assert_eq!(client.get(1), Some("one".to_owned()));
        let until = Instant::now() + PATIENCE;
        while world.faults() == faults {
            assert!(Instant::now() < until, "{bad} was not noticed");
            std::thread::sleep(Duration::from_millis(1));
        }
        world.wait_for_offloading(&mut client, 1, "one");
    }
    // Writes all over the memory both share: it is noticed, or does no harm.
    for _ in 0..5 {
        assert_eq!(client.get(900_007), None);
        assert_eq!(client.get(1), Some("one".to_owned()));
    }
    world.wait_for_offloading(&mut client, 1, "one");
    // Answers that cannot be, reads of what is not there, reads of something else.
    for bad in [900_003, 900_004, 900_009] {
        client.put(bad, "kept");
        for _ in 0..5 {
            assert_eq!(client.get(bad), Some("kept".to_owned()), "{bad}");
        }
        world.wait_for_offloading(&mut client, 1, "one");
    }
    // What the table should keep of a write is never said: nobody believes what it kept before.
    client.put(900_008, "slow");
    assert_eq!(client.get(900_008), Some("slow".to_owned()));
    assert_eq!(client.get(1), Some("one".to_owned()));
    world.wait_for_offloading(&mut client, 1, "one");
    assert!(world.faults() >= 5, "{}", world.faults());
}

/// Clients that write and read while the plug-in dies again and again see what they wrote.
#[test]
fn nothing_stale_is_read_while_a_plugin_dies() {
    let world = World::start("tests/mischief.c");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3u64)
            .map(|n| {
                let (world, done) = (&world, &done);
                scope.spawn(move || {
                    let mut client = world.client();
                    let mut rounds = 0u64;
                    while !done.load(Ordering::Relaxed) || rounds < 50 {
                        rounds += 1;
                        let number = n * 100 + rounds % 5;
                        let text = format!("{n}: {rounds}");
                        client.put(number, &text);
                        (0..3).for_each(|_| assert_eq!(client.get(number).as_ref(), Some(&text)));
                    }
                    rounds
                })
            })
            .collect();
        let mut client = world.client();
        for bad in [900_002, 900_005, 900_007, 900_001, 900_006] {
            world.wait_for_offloading(&mut client, 1000, "between");
            assert_eq!(client.get(bad), None);
        }
        done.store(true, Ordering::Relaxed);
        let rounds: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
        println!("{rounds} rounds, {} offloaded, {} faults", world.offloaded(), world.faults());
    });
    assert!(world.faults() >= 4 && world.offloaded() > 10);
}

/// Whoever names a plug-in that cannot be used is told why.
#[test]
fn a_plugin_that_does_not_fit_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |name: &str, flags: &[&str]| {
        let object = compile_plugin("tests/mischief.c", dir.path(), name, flags);
        Plugin::probe(options(object)).unwrap_err()
    };
    let why = refused("abi.so", &["-DABI=77"]);
    assert!(why.contains("version 77") && why.contains("version 1"), "{why}");
    let why = refused("frames.so", &["-DNO_FRAMES"]);
    assert!(why.contains("struct ofl_frames"), "{why}");
    let why = refused("dies.so", &["-DDIES"]);
    assert!(why.contains("ended while it was loaded"), "{why}");
    let why = Plugin::probe(options(dir.path().join("none.so"))).unwrap_err();
    assert!(why.contains("none.so"), "{why}");
    let text = dir.path().join("text.so");
    std::fs::write(&text, "no object").unwrap();
    assert!(!Plugin::probe(options(text)).unwrap_err().is_empty());
    let other = dir.path().join("other.so");
    compile("examples/records/client.c", &other, &["-shared", "-fPIC"]);
    let why = Plugin::probe(options(other)).unwrap_err();
    assert!(why.contains("outboard_offload"), "{why}");
    let nobody = PluginOptions { program: "/nowhere".into(), ..options("x".into()) };
    assert!(Plugin::probe(nobody).unwrap_err().contains("cannot be started"));
}

/// CPU time of a process so far, seconds.
fn cpu_of(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// The processes of plug-ins that this one started.
fn plugin_processes() -> Vec<u32> {
    let own = std::process::id().to_string();
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        parent == Some(&own) && line.contains("plugin_process")
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

/// What a message costs that a plug-in divides, beside one that the server in C answers:
/// `cargo test --release -p outboard-ddslib --test records -- --ignored a_plugin_costs --nocapture`
#[test]
#[ignore = "a measurement"]
fn what_a_plugin_costs() {
    const GETS: u64 = 20_000;
    let world = World::start("examples/records/offload.c");
    let mut client = world.client();
    println!(
        "us a GET:  batch  wall  this process  plug-in  server  messages a crossing  beyond the bus"
    );
    for batch in [1, 8, 64] {
        for direct in [false, true] {
            // What the server read itself is not in the table any more.
            (0..KEPT).for_each(|number| client.put(number, "a text"));
            world.wait_for_offloading(&mut client, 1000, "ready");
            let at = if direct { world.at_host } else { world.address() };
            client.count();
            let offloaded = world.offloaded();
            let mut client = Client::connect(at);
            let plugins = plugin_processes();
            let cpu = || {
                let plugin: f64 = plugins.iter().map(|pid| cpu_of(*pid)).sum();
                [cpu_of(std::process::id()), plugin, cpu_of(world.host.id())]
            };
            let counts = || {
                let counts = world.plugin.counts();
                let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
                [load(&counts.questions), load(&counts.batches)]
            };
            let (before, asked, begun) = (cpu(), counts(), Instant::now());
            for n in 0..GETS / batch {
                let numbers = (0..batch).map(|i| (n * batch + i) % KEPT);
                let asked: Vec<u8> =
                    numbers.flat_map(|number| Client::request(1, number, &[])).collect();
                client.send(&asked);
                (0..batch).for_each(|_| assert_eq!(client.answer().0, 0));
            }
            let wall = begun.elapsed().as_secs_f64();
            let each = |seconds: f64| seconds * 1e6 / GETS as f64;
            let spent: Vec<f64> =
                cpu().iter().zip(before).map(|(now, before)| each(now - before)).collect();
            let [questions, batches] = counts();
            let shared = (questions - asked[0]) as f64 / (batches - asked[1]).max(1) as f64;
            // The worker tells what it did before it answers the next.
            client.count();
            println!(
                "{:9}  {batch:5}  {:4.1}  {:12.1}  {:7.1}  {:6.1}  {shared:19.1}  {:3} %",
                if direct { "server" } else { "plug-in" },
                each(wall),
                spent[0],
                spent[1],
                spent[2],
                (world.offloaded() - offloaded) * 100 / GETS,
            );
        }
    }
}

//! `outboard serve kv` as processes, offload on, each of which may get kill -9 at any moment: host,
//! DPU side, clients. Every key behaves as one register.
//!
//! Goal: no answered write is lost, no read is older than an answer that any process had. Method:
//! client processes (this program, started again) say on a pipe what they are about to do and what
//! came of it, by a clock that all processes share; what a dead one had begun was not answered. The
//! histories are searched as those of `servers/tests/it/linear.rs`, which has all sides in one
//! process. Values are so long that most keys lie in files, and overwritten so often that the log
//! is compacted meanwhile.
//!
//! `OUTBOARD_KILLS=300 cargo test -p outboard-outboard --test registers` kills as often; the gate
//! does it 12 times. `OUTBOARD_SEED` chooses whom and when.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "../../servers/tests/it/history.rs"]
mod history;
mod served;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use history::{ALL, Op, is_linearizable, of_key};
use outboard_base::Rng;
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use served::{AS_CLIENT, LIMIT, Served, number, offloaded, victim};

const KEYS: u64 = 90;
const PADDING: usize = 60_000;
const CLIENTS: u64 = 4;

/// Of all processes of this computer.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

// The client: lines `b TIME KEY VALUE WRITES` as it begins, `e TIME VALUE` at the answer, `x` when
// there was none.

#[derive(Clone, Copy)]
enum What {
    Get,
    Set(u64),
    Delete,
    Flush,
}

fn client() {
    // On one processor the harness has begun a line with this test's name.
    println!();
    let words = std::env::var(AS_CLIENT).unwrap();
    let mut words = words.split(' ');
    let address: SocketAddr = words.next().unwrap().parse().unwrap();
    let mut numbers = words.map(|word| word.parse::<u64>().unwrap());
    let (who, seed) = (numbers.next().unwrap(), numbers.next().unwrap());
    let (mut rng, mut next) = (Rng::new(seed), who << 40);
    let mut connected: Option<BufReader<TcpStream>> = None;
    loop {
        let Some(stream) = &mut connected else {
            connected = TcpStream::connect(address).ok().map(|stream| {
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                BufReader::new(stream)
            });
            if connected.is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            continue;
        };
        let key = rng.below(KEYS);
        next += 1;
        let (what, key, value, writes) = match rng.below(900) {
            0 => (What::Flush, ALL, 0, 1),
            1..60 => (What::Delete, key, 0, 1),
            60..300 => (What::Set(next), key, next, 1),
            _ => (What::Get, key, 0, 0),
        };
        println!("b {} {key} {value} {writes}", now());
        match one(stream, key, what) {
            Ok(value) => println!("e {} {value}", now()),
            Err(keep) => {
                println!("x");
                if !keep {
                    connected = None;
                }
            }
        }
    }
}

/// One command: the value there is now. The error says whether to go on with this connection.
fn one(stream: &mut BufReader<TcpStream>, key: u64, what: What) -> Result<u64, bool> {
    let name = format!("key:{key}");
    let mut command = match what {
        What::Get => format!("*2\r\n$3\r\nGET\r\n${}\r\n{name}\r\n", name.len()),
        What::Delete => format!("*2\r\n$3\r\nDEL\r\n${}\r\n{name}\r\n", name.len()),
        What::Flush => "*1\r\n$8\r\nFLUSHALL\r\n".to_owned(),
        What::Set(value) => {
            let text = format!("{value}:");
            let len = text.len() + PADDING;
            format!("*3\r\n$3\r\nSET\r\n${}\r\n{name}\r\n${len}\r\n{text}", name.len())
        }
    }
    .into_bytes();
    if let What::Set(_) = what {
        command.resize(command.len() + PADDING, b'x');
        command.extend_from_slice(b"\r\n");
    }
    stream.get_mut().write_all(&command).map_err(|_| false)?;
    let mut line = String::new();
    match stream.read_line(&mut line) {
        Ok(n) if n > 0 && line.ends_with('\n') => {}
        _ => return Err(false),
    }
    match (line.trim_end(), what) {
        ("+OK", What::Set(value)) => Ok(value),
        ("+OK", What::Flush) | (":0" | ":1", What::Delete) | ("$-1", What::Get) => Ok(0),
        (bulk, What::Get) if bulk.starts_with('$') => {
            let len: usize = bulk[1..].parse().unwrap();
            let mut bytes = vec![0; len + 2];
            stream.read_exact(&mut bytes).map_err(|_| false)?;
            let text = String::from_utf8(bytes).unwrap();
            let (value, rest) = text.split_once(':').unwrap();
            assert!(rest.len() == PADDING + 2, "a value that is not whole");
            Ok(value.parse().unwrap())
        }
        // A side was lost amid it.
        (error, _) if error.starts_with('-') => Err(true),
        (other, _) => panic!("{other:?} is no answer"),
    }
}

/// What a client process said, until its end.
fn listen(out: impl Read, history: &Mutex<Vec<Op>>, answered: &AtomicU64) {
    let mut begun: Option<Op> = None;
    let lost = |op: Option<Op>| {
        if let Some(op) = op.filter(|op| op.writes) {
            history.lock().unwrap().push(Op { answered: u64::MAX, ..op });
        }
    };
    for line in BufReader::new(out).lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let at = |n: usize| words[n].parse::<u64>().unwrap();
        match words[0] {
            "b" => {
                let (key, value) = (at(2), at(3));
                begun = Some(Op { key, value, writes: at(4) > 0, called: at(1), answered: 0 });
            }
            "e" => {
                let op = begun.take().expect("an end has a beginning");
                let op = Op { answered: at(1), value: at(2), ..op };
                history.lock().unwrap().push(op);
                answered.fetch_add(1, Ordering::Relaxed);
            }
            "x" => lost(begun.take()),
            // The test harness's own.
            _ => {}
        }
    }
    lost(begun);
}

struct Client {
    child: Child,
    listener: JoinHandle<()>,
}

struct Rig {
    served: Served,
    history: Arc<Mutex<Vec<Op>>>,
    started: u64,
}

impl Rig {
    /// A client, told where to connect, its number and its seed.
    fn client(&mut self, seed: u64) -> Client {
        self.started += 1;
        let words = format!("{} {}", self.started, seed + self.started);
        let test = "every_key_is_a_register_whichever_process_dies";
        let mut child = self.served.client(test, &words);
        let out = child.stdout.take().unwrap();
        let (history, answered) = (Arc::clone(&self.history), Arc::clone(&self.served.answered));
        let listener = std::thread::spawn(move || listen(out, &history, &answered));
        Client { child, listener }
    }

    fn host(&self, data: &Path) -> Host {
        Host(self.served.host("kv", data, &["--memory=4M", "--items=4000"]))
    }
}

impl Client {
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.listener.join().unwrap();
    }
}

/// Ended with this, and the DPU side with it, also where the test fails.
struct Host(Child);

impl Host {
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
            self.0.wait().unwrap();
        }
    }
}

#[test]
fn every_key_is_a_register_whichever_process_dies() {
    if std::env::var(AS_CLIENT).is_ok() {
        return client();
    }
    let (seed, kills) = (number("OUTBOARD_SEED", 5), number("OUTBOARD_KILLS", 12));
    println!("OUTBOARD_SEED={seed} OUTBOARD_KILLS={kills}");
    let (dir, mut rng) = (tempfile::tempdir().unwrap(), Rng::new(seed));
    let mut rig = Rig { served: Served::new(), history: Arc::default(), started: 0 };
    let mut host = rig.host(dir.path());
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| rig.client(seed * 1000)).collect();
    let mut killed: HashMap<&str, u64> = HashMap::new();
    for kill in 0..kills {
        rig.served.wait(100 + rng.below(400));
        let name = victim(kill, &mut rng);
        *killed.entry(name).or_default() += 1;
        match name {
            "host" => {
                host.kill();
                host = rig.host(dir.path());
            }
            "client" => {
                clients.remove(0).kill();
                clients.push(rig.client(seed * 1000));
            }
            _ => rig.served.kill_dpu(),
        }
    }
    rig.served.wait(500);
    clients.into_iter().for_each(Client::kill);
    drop(host);
    let (answered, offloaded) = (&rig.served.answered, offloaded(dir.path()));
    println!("{answered:?} answered, {offloaded} of the last life's offloaded, {killed:?}");
    assert!(offloaded > 0);
    let history = rig.history.lock().unwrap();
    for key in 0..KEYS {
        let of = of_key(&history, key);
        assert!(is_linearizable(&of), "key {key}: {of:?}");
    }
}

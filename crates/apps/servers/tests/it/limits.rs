//! What both servers owe any client, whatever it does with its socket: the same tests of each.
//!
//! Goal: who reads slowly costs others nothing and the server no memory without end; who ends its
//! side gets its answers; what is too long, cut or broken off harms nobody else.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use outboard_pageserver::tcp::sockets::Address;
use outboard_pageserver::tcp::worker::Limits;
use outboard_servers::pages::wire::{self, CONTENTS, HEAD, Request};

use crate::rig::{Answer, Client, Host, LIMIT, encode};

/// A server, and one request of its protocol.
struct Served {
    host: Host,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// No request can be so long.
    oversized: Vec<u8>,
    refusal: &'static [u8],
    /// Requests it has taken, if it says so.
    taken: Option<fn(&Address) -> usize>,
    /// What a client is told for whom there is no place.
    too_many: &'static [u8],
}

fn kv(dir: &Path, limits: Limits) -> Served {
    let host = Host::limited(dir, limits);
    let value = vec![b'v'; 60_000];
    assert_eq!(
        Client::new(&host.address).ask(&[b"SET", b"k", &value]),
        Answer::Simple("OK".into())
    );
    let answer = [b"$60000\r\n".as_slice(), &value, b"\r\n"].concat();
    Served {
        host,
        request: encode(&[b"GET", b"k"]),
        answer,
        oversized: b"*2\r\n$3\r\nGET\r\n$999999999\r\n".to_vec(),
        refusal: b"-ERR Protocol error",
        taken: Some(|address| figure(&mut Client::new(address), "total_commands_processed")),
        too_many: b"-ERR max number of clients reached\r\n",
    }
}

/// What INFO says of something.
fn figure(client: &mut Client, name: &str) -> usize {
    let Answer::Bulk(Some(info)) = client.ask_words("INFO") else { panic!("INFO is a bulk") };
    let info = String::from_utf8(info).unwrap();
    let mut lines = info.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    lines.next().unwrap().parse().unwrap()
}

fn pages(dir: &Path, limits: Limits) -> Served {
    let host = crate::pages::limited(dir, limits);
    let mut client = Client::new(&host.address);
    let data = vec![7; CONTENTS];
    client.send(&Request::Apply { page: 3, lsn: 5, at: 0, data: &data }.emit());
    client.receive_bytes(HEAD);
    let request = Request::GetPage { page: 3, lsn: 5 }.emit();
    client.send(&request);
    let answer = client.receive_bytes(HEAD + wire::PAGE);
    let mut oversized = request.clone();
    oversized[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    Served {
        host,
        request,
        answer,
        oversized,
        refusal: &[24, 0, 0, 0, 3],
        taken: None,
        too_many: &wire::BUSY,
    }
}

impl Served {
    fn connect(&self) -> TcpStream {
        let Address::Tcp(address) = self.host.address else { panic!("a TCP address") };
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    fn expect(&self, stream: &mut TcpStream, answers: usize) {
        let mut got = vec![0; self.answer.len()];
        for n in 0..answers {
            stream.read_exact(&mut got).unwrap();
            assert!(got == self.answer, "answer {n}");
        }
    }

    fn ask(&self, stream: &mut TcpStream) {
        stream.write_all(&self.request).unwrap();
        self.expect(stream, 1);
    }

    /// Connects until so many are served. Those that went may be counted for a moment.
    fn fill(&self, streams: &mut Vec<TcpStream>, count: usize) {
        let until = Instant::now() + LIMIT;
        while streams.len() < count {
            assert!(Instant::now() < until, "there are places");
            let mut stream = self.connect();
            let mut got = vec![0; self.answer.len()];
            let asked = stream.write_all(&self.request);
            if asked.and_then(|()| stream.read_exact(&mut got)).is_ok() {
                assert!(got == self.answer);
                streams.push(stream);
            }
        }
    }

    fn expect_end(stream: &mut TcpStream) -> Vec<u8> {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        rest
    }
}

fn each(test: impl Fn(&Served)) {
    each_limited(Limits::default(), test);
}

fn each_limited(limits: Limits, test: impl Fn(&Served)) {
    for start in [kv, pages] {
        let dir = tempfile::tempdir().unwrap();
        let served = start(dir.path(), limits);
        test(&served);
        served.fill(&mut Vec::new(), 1);
        served.host.stop();
    }
}

/// Far more answers than sockets hold, of which none is read: the server takes no more requests of
/// this client, serves others, and goes on when it is read.
#[test]
fn a_slow_reader_waits_alone() {
    each(|served| {
        let many = (120 << 20) / served.answer.len();
        let mut slow = served.connect();
        let mut requests = slow.try_clone().unwrap();
        let bytes = served.request.repeat(many);
        let sender = std::thread::spawn(move || requests.write_all(&bytes).unwrap());
        let mut other = served.connect();
        (0..50).for_each(|_| served.ask(&mut other));
        if let Some(taken) = served.taken {
            // As soon as one is taken, a server without a bound takes all it has read.
            let until = Instant::now() + LIMIT;
            while taken(&served.host.address) < 150 {
                served.ask(&mut other);
                assert!(Instant::now() < until, "nothing is taken");
            }
            (0..20).for_each(|_| served.ask(&mut other));
            let taken = taken(&served.host.address);
            assert!(taken < many, "{taken} of {many} requests are taken, and no answer was read");
        }
        served.expect(&mut slow, many);
        sender.join().unwrap();
    });
}

#[test]
fn who_ends_its_side_gets_all_answers() {
    each(|served| {
        for answers in [0, 1, 50] {
            let mut stream = served.connect();
            stream.write_all(&served.request.repeat(answers)).unwrap();
            // And a part of one more, which is no request.
            stream.write_all(&served.request[..3]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            served.expect(&mut stream, answers);
            assert_eq!(Served::expect_end(&mut stream), b"");
        }
    });
}

#[test]
fn what_is_too_long_is_refused_behind_the_answers_before_it() {
    each(|served| {
        let mut stream = served.connect();
        stream.write_all(&[served.request.repeat(3), served.oversized.clone()].concat()).unwrap();
        served.expect(&mut stream, 3);
        let rest = Served::expect_end(&mut stream);
        assert!(rest.starts_with(served.refusal), "{rest:?}");
    });
}

#[test]
fn requests_may_come_in_any_pieces() {
    each(|served| {
        let mut stream = served.connect();
        for byte in served.request.repeat(3) {
            stream.write_all(&[byte]).unwrap();
        }
        served.expect(&mut stream, 3);
        for len in [served.request.len() - 1, served.request.len() + 1] {
            for piece in served.request.repeat(20).chunks(len) {
                stream.write_all(piece).unwrap();
            }
            served.expect(&mut stream, 20);
        }
    });
}

/// As many as the usual limit of descriptors allows a process that has both ends; half of them go
/// away amid a request, with answers unread, and others take their places.
#[test]
fn many_come_and_go() {
    each(|served| {
        let mut streams: Vec<TcpStream> = (0..150).map(|_| served.connect()).collect();
        streams.iter_mut().for_each(|stream| served.ask(stream));
        for _ in 0..2 {
            for mut gone in streams.drain(..75) {
                gone.write_all(&served.request.repeat(20)).unwrap();
                gone.write_all(&served.request[..5]).unwrap();
            }
            streams.extend((0..75).map(|_| served.connect()));
            streams.iter_mut().for_each(|stream| served.ask(stream));
        }
    });
}

/// Beyond the greatest number a client is told so and its connection closed, whatever the others
/// do; who goes leaves its place to the next.
#[test]
fn one_client_too_many_is_refused_in_words() {
    each_limited(Limits { max_clients: 20, ..Limits::default() }, |served| {
        let mut streams = Vec::new();
        // The one that filled the server may not be gone yet.
        served.fill(&mut streams, 20);
        for _ in 0..30 {
            assert_eq!(Served::expect_end(&mut served.connect()), served.too_many);
        }
        streams.iter_mut().for_each(|stream| served.ask(stream));
        streams.truncate(10);
        served.fill(&mut streams, 20);
        streams.clear();
        served.fill(&mut streams, 1);
    });
}

/// Who says and hears nothing is let go; who does anything is not, nor who never reads.
#[test]
fn idle_clients_are_let_go() {
    let limits = Limits { idle_timeout: Some(Duration::from_secs(1)), ..Limits::default() };
    each_limited(limits, |served| {
        let mut idle = served.connect();
        served.ask(&mut idle);
        let mut amid = served.connect();
        amid.write_all(&served.request[..5]).unwrap();
        let mut busy = served.connect();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(2500) {
            served.ask(&mut busy);
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(Served::expect_end(&mut idle), b"");
        assert_eq!(Served::expect_end(&mut amid), b"");
        assert!(begun.elapsed() < Duration::from_secs(20), "they were closed, not waited for");
        served.ask(&mut busy);
    });
}

/// Twelve clients that each sent most of 16 MiB took 181 MiB of a server with 1M. Now they share
/// what there is and the kernel keeps the rest; small requests of others are answered meanwhile,
/// and each of the twelve in its turn, although none of their requests fits into the bound.
#[test]
fn all_clients_together_hold_no_more_than_they_may() {
    let dir = tempfile::tempdir().unwrap();
    let bound = 4 << 20;
    let host = Host::limited(dir.path(), Limits { memory: bound, ..Limits::default() });
    let value = vec![b'v'; 500_000];
    let mut words: Vec<Vec<u8>> = vec![b"MSET".to_vec()];
    (0..30).for_each(|n| words.extend([format!("k{n}").into_bytes(), value.clone()]));
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let command = encode(&words);
    assert!(command.len() > 3 * bound && command.len() < 16 << 20);
    let address = host.address.clone();
    let senders: Vec<_> = (0..12)
        .map(|_| {
            let (mut client, command) = (Client::new(&address), command.clone());
            std::thread::spawn(move || {
                // All of them amid their requests at once.
                for piece in command.chunks(command.len() / 8) {
                    client.send(piece);
                    std::thread::sleep(Duration::from_millis(5));
                }
                client.receive()
            })
        })
        .collect();
    let mut other = Client::new(&address);
    let mut slowest = Duration::ZERO;
    while senders.iter().any(|sender| !sender.is_finished()) {
        let begun = Instant::now();
        assert_eq!(other.ask_words("ECHO hello"), Answer::Bulk(Some(b"hello".to_vec())));
        slowest = slowest.max(begun.elapsed());
    }
    let peak = figure(&mut other, "client_memory_peak");
    // One request beyond, in a buffer that may be a quarter longer.
    let most = bound + (20 << 20) + (1 << 20);
    assert!(peak > bound / 2 && peak < most, "{peak} bytes were held, the bound is {bound}");
    for sender in senders {
        assert_eq!(sender.join().unwrap(), Answer::Simple("OK".into()));
    }
    assert!(slowest < Duration::from_secs(5), "{slowest:?} for an answer beside them");
    // Nothing stays behind.
    let until = Instant::now() + LIMIT;
    while figure(&mut other, "client_memory") > 64 << 10 {
        assert!(Instant::now() < until);
    }
    assert_eq!(host.stop(), outboard_servers::kv::Ended::Told);
}

/// Answers count as requests do: many who ask and do not read are stopped, or let go when nothing
/// else gives others what they need; others are served.
#[test]
fn many_who_do_not_read_leave_room_for_others() {
    let limits = Limits { memory: 1 << 20, ..Limits::default() };
    each_limited(limits, |served| {
        let slow: Vec<TcpStream> = (0..40)
            .map(|_| {
                let mut stream = served.connect();
                // More than its sockets take: what is not sent, somebody would have to keep.
                let requests = served.request.repeat((8 << 20) / served.answer.len());
                let sent = stream.set_nonblocking(true).and_then(|()| stream.write(&requests));
                assert!(sent.is_ok());
                stream
            })
            .collect();
        let mut other = served.connect();
        (0..50).for_each(|_| served.ask(&mut other));
        if served.taken.is_some() {
            let peak = figure(&mut Client::new(&served.host.address), "client_memory_peak");
            // An answer and a turn beyond.
            assert!(peak < (1 << 20) + (512 << 10), "{peak} bytes were held");
        }
        drop(slow);
    });
}

/// 60,000 keys in one command kept everybody waiting until the last was looked up. Now others come
/// between its slices; what it answers is the same.
#[test]
fn long_commands_let_others_between() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::plain(dir.path());
    let mut client = Client::new(&host.address);
    let keys: Vec<String> = (0..60_000).map(|n| format!("key{n}")).collect();
    let command = |name: &str, per: fn(&String) -> Vec<&[u8]>| {
        let all = keys.iter().flat_map(per);
        encode(&std::iter::once(name.as_bytes()).chain(all).collect::<Vec<_>>())
    };
    let key: fn(&String) -> Vec<&[u8]> = |key| vec![key.as_bytes()];
    for half in keys.chunks(30_000) {
        let pairs = half.iter().flat_map(|key| [key.as_bytes(), key.as_bytes()]);
        let command = encode(&std::iter::once(&b"MSET"[..]).chain(pairs).collect::<Vec<_>>());
        client.send(&command);
        assert_eq!(client.receive(), Answer::Simple("OK".into()));
    }
    client.send(&command("EXISTS", key));
    assert_eq!(client.receive(), Answer::Integer(60_000));
    let values: Vec<Answer> =
        keys.iter().map(|key| Answer::Bulk(Some(key.clone().into()))).collect();
    let mget = command("MGET", key);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut waits: Vec<Duration> = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Client::new(&host.address);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    client.send(&mget);
                    assert!(client.receive() == Answer::Array(values.clone()));
                }
            });
        }
        let mut other = Client::new(&host.address);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            let asked = Instant::now();
            assert_eq!(other.ask_words("PING"), Answer::Simple("PONG".into()));
            waits.push(asked.elapsed());
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    waits.sort();
    let (middle, late) = (waits[waits.len() / 2], waits[waits.len() * 99 / 100]);
    println!("PING beside four MGETs of 60,000 keys: {middle:?}, 99 of 100 in {late:?}");
    client.send(&command("DEL", key));
    assert_eq!(client.receive(), Answer::Integer(60_000));
    assert_eq!(client.ask_words("EXISTS key7"), Answer::Integer(0));
    host.stop();
}

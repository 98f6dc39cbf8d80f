//! What both servers owe any client, whatever it does with its socket: the same tests of each.
//!
//! Goal: who reads slowly costs others nothing and the server no memory without end; who ends its
//! side gets its answers; what is too long, cut or broken off harms nobody else.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::time::Instant;

use outboard_pageserver::tcp::sockets::Address;
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
}

fn kv(dir: &Path) -> Served {
    let host = Host::plain(dir);
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
        taken: Some(|address| {
            let Answer::Bulk(Some(info)) = Client::new(address).ask_words("INFO") else {
                panic!("INFO is a bulk")
            };
            let info = String::from_utf8(info).unwrap();
            let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
            line.unwrap().parse().unwrap()
        }),
    }
}

fn pages(dir: &Path) -> Served {
    let host = crate::pages::plain(dir);
    let mut client = Client::new(&host.address);
    let data = vec![7; CONTENTS];
    client.send(&Request::Apply { page: 3, lsn: 5, at: 0, data: &data }.emit());
    client.receive_bytes(HEAD);
    let request = Request::GetPage { page: 3, lsn: 5 }.emit();
    client.send(&request);
    let answer = client.receive_bytes(HEAD + wire::PAGE);
    let mut oversized = request.clone();
    oversized[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    Served { host, request, answer, oversized, refusal: &[24, 0, 0, 0, 3], taken: None }
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

    fn expect_end(stream: &mut TcpStream) -> Vec<u8> {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        rest
    }
}

fn each(test: impl Fn(&Served)) {
    for start in [kv, pages] {
        let dir = tempfile::tempdir().unwrap();
        let served = start(dir.path());
        test(&served);
        served.ask(&mut served.connect());
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

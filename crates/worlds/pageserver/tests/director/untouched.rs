//! What is not the application's goes through as if the DPU side were a cable.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use outboard_base::Rng;
use outboard_pageserver::tcp::stack::device::{Device, FRAME_MAX, HEADER, Packets};

use crate::LIMIT;
use crate::Way;
use crate::World;
use crate::networks::{CLIENT, HOST};
use crate::pattern;
use crate::until;

/// Sender and receiver of all frames made here: of no computer there is.
const MARK: [u8; 12] = [2, 0x77, 0, 0, 0, 1, 2, 0x77, 0, 0, 0, 2];

fn made(kind: &[u8], rest: &[u8]) -> Vec<u8> {
    [&[0; HEADER][..], &MARK, kind, rest].concat()
}

/// Frames of many kinds, right ones and wrong ones.
fn odd_frames(rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut noise =
        |n: usize| -> Vec<u8> { (0..n).map(|_| u8::try_from(rng.below(256)).unwrap()).collect() };
    // TCP to a port that is nobody's, with a checksum that is wrong; and to the one that is ours,
    // but a fragment, cut short, of another protocol.
    let ip = |protocol: u8, fragment: u8, port: u8, len: u8| {
        let port = [0x10, 0, 0x1B, port];
        let head = [0x45, 0, 0, len, 0, 7, fragment, 0, 64, protocol, 0, 0];
        [&head[..], &[10, 77, 0, 1, 10, 77, 0, 2], &port, &[0x50; 24]].concat()
    };
    let mut frames = vec![
        made(&[8, 6], &noise(46)),
        made(&[0x88, 0xB5], &noise(1500)),
        made(&[0x88, 0xB5], &noise(46)),
        made(&[0x81, 0, 0, 5, 8, 0], &ip(6, 0, 0x59, 48)),
        made(&[0x88, 0xA8, 0, 5, 0x81, 0, 0, 6, 0x88, 0xB5], &noise(60)),
        made(&[8, 0], &ip(6, 0, 0x59, 48)),
        made(&[8, 0], &ip(6, 0x20, 0x58, 48)),
        made(&[8, 0], &ip(6, 0, 0x58, 255)),
        made(&[8, 0], &ip(17, 0, 0x58, 48)),
        made(&[0x86, 0xDD], &noise(80)),
        made(&[0, 60], &noise(60)),
    ];
    // Many segments in one frame, their checksum unfinished.
    let mut joined = made(&[8, 0], &ip(6, 0, 0x59, 48));
    joined.extend(noise(8000));
    let len = u16::try_from(joined.len() - HEADER - 14).unwrap().to_be_bytes();
    joined[HEADER + 16..HEADER + 18].copy_from_slice(&len);
    joined[..HEADER].copy_from_slice(&[1, 1, 54, 0, 0xB4, 5, 34, 0, 16, 0]);
    frames.push(joined);
    for _ in 0..200 {
        let n = 46 + noise(2).iter().map(|byte| usize::from(*byte)).sum::<usize>();
        frames.push(made(&[0x88, 0xB5], &noise(n)));
    }
    frames
}

fn passes(from: &Packets, to: &Packets, frames: &[Vec<u8>]) {
    let mut buf = vec![0; FRAME_MAX];
    // A link that has just come up may lose what is sent first.
    let first = made(&[0x88, 0xB6], &[0; 46]);
    let mut came = false;
    until("the link works", || {
        assert!(from.send(&first));
        std::thread::sleep(Duration::from_millis(2));
        while let Some(len) = to.receive(&mut buf).unwrap() {
            came |= buf[HEADER..len] == first[HEADER..];
        }
        came
    });
    for (n, frame) in frames.iter().enumerate() {
        assert!(from.send(frame), "frame {n} is sent");
        let end = Instant::now() + LIMIT;
        loop {
            match to.receive(&mut buf).unwrap() {
                // The kernels of both sides say things of their own.
                Some(len)
                    if buf[..len].get(HEADER..HEADER + 12) == Some(&MARK)
                        && buf[HEADER..len] != first[HEADER..] =>
                {
                    assert_eq!(buf[HEADER..len], frame[HEADER..], "frame {n}");
                    assert_eq!(buf[..2], frame[..2], "what the kernel knows of frame {n}");
                    break;
                }
                Some(_) => {}
                None => std::thread::sleep(Duration::from_micros(100)),
            }
            assert!(Instant::now() < end, "frame {n} does not come");
        }
    }
}

#[test]
fn what_is_not_ours_passes_byte_for_byte() {
    let seed = 5;
    println!("seed {seed}");
    let Some(world) = World::new(Way::Stack) else { return };
    let networks = world.networks.as_ref().unwrap();
    let client = networks.clients.within(|| Packets::open("c0").unwrap());
    let host = networks.host.within(|| Packets::open("h0").unwrap());
    let frames = odd_frames(&mut Rng::new(seed));
    passes(&client, &host, &frames);
    passes(&host, &client, &frames);
    let counts = world.frames.as_ref().unwrap();
    assert!(counts.forwarded.load(Ordering::Relaxed) >= 2 * frames.len() as u64);
    assert_eq!(counts.taken.load(Ordering::Relaxed), 0, "{counts:?}");
}

/// One that was taken away was not found again: nothing passed until the DPU side was started anew.
#[test]
fn a_device_that_is_taken_away_and_made_again_is_found() {
    let Some(world) = World::new(Way::Stack) else { return };
    let networks = world.networks.as_ref().unwrap();
    let answered = || {
        let connect = || TcpStream::connect_timeout(&world.server, Duration::from_secs(2));
        let Ok(mut stream) = networks.clients.within(connect) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let mut got = [0; 100];
        stream.write_all(b"G 3 100\n").is_ok() && stream.read_exact(&mut got).is_ok()
    };
    assert!(answered());
    networks.dpu.run("ip", "link set d0 down");
    networks.dpu.run("ip", "link set d0 up");
    until("it is switched on again", answered);
    // Its other end goes with it.
    networks.dpu.run("ip", "link delete d0");
    networks.connect_clients();
    until("it is found again", answered);
    // Gone for longer, and another device before it: its number is another.
    networks.dpu.run("ip", "link delete d0");
    std::thread::sleep(Duration::from_millis(1200));
    networks.dpu.run("ip", "link add other type veth peer name another");
    networks.connect_clients();
    until("it is found again, and later", answered);
    networks.clients.run("ping", &format!("-c 1 -W 5 {HOST}"));
    assert!(world.front.is_serving());
}

/// Frames of more joined segments than IP can say were cut where its longest packet ends: others'
/// were damaged, and ours were forwarded to a host that knew no such connection, and reset it.
#[test]
fn more_joined_segments_than_ip_can_say_are_forwarded_or_divided() {
    let Some(world) = World::new(Way::Stack) else { return };
    let networks = world.networks.as_ref().unwrap();
    for (side, device) in [(&networks.clients, "c0"), (&networks.host, "h0")] {
        // Version 6 alone: an older `ip` has no word for version 4's.
        side.run("ip", &format!("link set {device} gso_max_size 200000"));
    }
    let listener = networks.host.within(|| TcpListener::bind(("fd77::2", 7001)).unwrap());
    let mut stream = networks.clients.within(|| TcpStream::connect(("fd77::2", 7001)).unwrap());
    let total = 64 << 20;
    let receiving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let (mut got, mut chunk) = (0u64, vec![0; 1 << 18]);
        loop {
            match stream.read(&mut chunk).unwrap() {
                0 => return got,
                n => {
                    let right = |(at, byte): (u64, &u8)| *byte == pattern(got + at);
                    assert!((0..).zip(&chunk[..n]).all(right), "behind {got}");
                    got += n as u64;
                }
            }
        }
    });
    let mut sent = 0;
    while sent < total {
        let chunk: Vec<u8> = (sent..sent + (1 << 20)).map(pattern).collect();
        stream.write_all(&chunk).unwrap();
        sent += chunk.len() as u64;
    }
    drop(stream);
    assert_eq!(receiving.join().unwrap(), total);
    let counts = world.frames.as_ref().unwrap();
    assert_eq!(counts.taken.load(Ordering::Relaxed), 0, "{counts:?}");

    // Ours, in one piece: the host's echo of each.
    let mut stream = networks.clients.within(|| TcpStream::connect(("fd77::2", 7000)).unwrap());
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut reading = stream.try_clone().unwrap();
    let asks: Vec<u8> = (0..500)
        .flat_map(|n| format!("H {}\n", format!("{n:04}").repeat(500)).into_bytes())
        .collect();
    let expected = String::from_utf8(asks.clone()).unwrap().replace('H', "h");
    let len = expected.len();
    let answers = std::thread::spawn(move || {
        let mut got = vec![0; len];
        reading.read_exact(&mut got).unwrap();
        got
    });
    stream.write_all(&asks).unwrap();
    assert!(answers.join().unwrap() == expected.into_bytes());
    assert!(counts.taken.load(Ordering::Relaxed) > 0);
    assert_eq!(counts.damaged.load(Ordering::Relaxed), 0, "{counts:?}");
    println!("{counts:?}");
}

#[test]
fn other_flows_of_the_same_computers_are_theirs() {
    let Some(world) = World::new(Way::Stack) else { return };
    let networks = world.networks.as_ref().unwrap();
    for address in [HOST, "fd77::2"] {
        let text = networks.clients.run("ping", &format!("-c 3 -i 0.1 -W 5 {address}"));
        assert!(text.contains(" 0% packet loss"), "{text}");
    }
    networks.host.run("ping", &format!("-c 2 -i 0.1 -W 5 -s 3000 {CLIENT}"));

    let udp = networks.host.within(|| UdpSocket::bind((HOST, 7000)).unwrap());
    let asks = networks.clients.within(|| UdpSocket::bind((CLIENT, 0)).unwrap());
    udp.set_read_timeout(Some(LIMIT)).unwrap();
    // Six fragments.
    let datagram = vec![7; 8000];
    asks.send_to(&datagram, (HOST, 7000)).unwrap();
    let mut buf = vec![0; 9000];
    let (n, from) = udp.recv_from(&mut buf).unwrap();
    assert_eq!((n, from), (8000, asks.local_addr().unwrap()));

    for address in [HOST, "fd77::2"] {
        let listener = networks.host.within(|| TcpListener::bind((address, 7001)).unwrap());
        let mut stream = networks.clients.within(|| TcpStream::connect((address, 7001)).unwrap());
        let total = 64 << 20;
        let receiving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let (mut got, mut chunk) = (0, vec![0; 1 << 16]);
            loop {
                match stream.read(&mut chunk).unwrap() {
                    0 => return got,
                    n => got += n,
                }
            }
        });
        let chunk = vec![1; 1 << 20];
        for _ in 0..total / chunk.len() {
            stream.write_all(&chunk).unwrap();
        }
        drop(stream);
        assert_eq!(receiving.join().unwrap(), total);
    }
    let counts = world.frames.as_ref().unwrap();
    assert_eq!(counts.taken.load(Ordering::Relaxed), 0, "{counts:?}");
    // And beside them one that is ours, over version 6 as well.
    for address in [HOST, "fd77::2"] {
        let mut stream = networks.clients.within(|| TcpStream::connect((address, 7000)).unwrap());
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(b"G 3 9\nH x\n").unwrap();
        let expected = [&crate::piece(3, 9)[..], b"h x\n"].concat();
        let mut got = vec![0; expected.len()];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, expected);
    }
    assert!(counts.taken.load(Ordering::Relaxed) > 0);
}

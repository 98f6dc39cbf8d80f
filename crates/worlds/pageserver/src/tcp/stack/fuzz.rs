//! The body of the stack's fuzz target: a client's TCP and the director's, and between them a
//! network that does with frames what the input says. `fuzz/` drives it with libFuzzer, the tests
//! with seeded bytes.
//!
//! First safety: each side reads what the other wrote, from its start and in order, whatever was
//! lost, doubled, swapped or damaged. Then liveness: once the network is well again, all of it.
//!
//! One side writes, the other acknowledges. Two of this stack that both lose and send again do not
//! come together: after a time-out it numbers its acknowledgements as it does what it sends again,
//! and each takes the other's for old. The kernel's TCP numbers them by what it last sent, and is
//! met in `tests/director`, where both sides write.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::*;

/// A device whose other end is in the input's hands.
struct Pipe {
    wakeup: Wakeup,
    /// On the way to whose device it is, and from them.
    there: Mutex<VecDeque<Vec<u8>>>,
    back: Mutex<VecDeque<Vec<u8>>>,
}

impl Pipe {
    fn new() -> io::Result<Arc<Pipe>> {
        let wakeup = Wakeup::new()?;
        Ok(Arc::new(Pipe { wakeup, there: Mutex::default(), back: Mutex::default() }))
    }
}

fn with<T>(queue: &Mutex<VecDeque<Vec<u8>>>, f: impl FnOnce(&mut VecDeque<Vec<u8>>) -> T) -> T {
    f(&mut queue.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Device for Pipe {
    fn fd(&self) -> BorrowedFd<'_> {
        self.wakeup.fd()
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        let frame = with(&self.there, VecDeque::pop_front);
        Ok(frame.map(|frame| {
            if let Some(place) = buf.get_mut(..frame.len()) {
                place.copy_from_slice(&frame);
            }
            frame.len()
        }))
    }

    fn send(&self, frame: &[u8]) -> bool {
        with(&self.back, |back| back.push_back(frame.to_vec()));
        true
    }
}

/// Byte number `at` of what a side writes.
fn pattern(side: Side, at: usize) -> u8 {
    let salt = if side == Side::Client { 7 } else { 13 };
    u8::try_from((at * salt) % 251).unwrap_or(0)
}

/// Most that a side writes, bytes.
const WRITTEN_MAX: usize = 64 << 10;

struct World {
    port: StackPort,
    pipe: Arc<Pipe>,
    host: Arc<Pipe>,
    client: Leg,
    /// The client's own device.
    sent: Arc<Pipe>,
    made: Vec<u8>,
    news: Vec<News>,
    conn: Option<ConnId>,
    writer: Side,
    /// Written and read: by the client, by the director.
    client_bytes: (usize, usize),
    port_bytes: (usize, usize),
}

impl World {
    fn new(writer: Side) -> Option<World> {
        let client: SocketAddr = "10.0.0.1:4000".parse().ok()?;
        let server: SocketAddr = "10.0.0.2:7000".parse().ok()?;
        let (pipe, host) = (Pipe::new().ok()?, Pipe::new().ok()?);
        let wires = Wires {
            client: Arc::clone(&pipe) as _,
            host: Arc::clone(&host) as _,
            buffer: network::Ends::BUFFER,
            signature: Signature::of_server(server),
            frames: Arc::default(),
            inboxes: Vec::new(),
            admission: Admission::new(10_000, b"", Arc::default()),
            memory: 256 << 20,
        };
        let port = StackPort::new(Arc::new(wires), 0).ok()?;
        let link = Link::onward(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        let (sent, mut made, mut lost) = (Pipe::new().ok()?, Vec::new(), 0);
        let way = Way { device: &*sent, frame: &mut made, lost: &mut lost };
        let buffer = network::Ends::BUFFER;
        let leg = Leg::connect((client, server), link, buffer, 1, port.now(), way)?;
        Some(World {
            port,
            pipe,
            host,
            client: leg,
            sent,
            made,
            news: Vec::new(),
            conn: None,
            writer,
            client_bytes: (0, 0),
            port_bytes: (0, 0),
        })
    }

    /// Both sides hear what was delivered, and send.
    fn pass(&mut self) {
        let mut lost = 0;
        let way = Way { device: &*self.sent, frame: &mut self.made, lost: &mut lost };
        self.client.poll(self.port.now(), way);
        assert!(self.port.receive(Side::Client).is_ok(), "a pipe does not fail");
        self.port.flush(&mut self.news);
        for news in self.news.drain(..) {
            if let News::Came(id) = news {
                assert!(self.conn.replace(id).is_none(), "there is one connection");
            }
        }
    }

    /// One writes, both read what there is.
    fn talk(&mut self, bytes: usize) {
        self.read();
        let text = next(self.writer, self.written(), bytes);
        let wrote = match (self.writer, self.conn) {
            (Side::Client, _) => self.client.write(&text),
            (Side::Host, Some(id)) => self.port.write(id, &[IoSlice::new(&text)]),
            (Side::Host, None) => Wrote::Blocked,
        };
        if let Wrote::Bytes(n) = wrote {
            let all = match self.writer {
                Side::Client => &mut self.client_bytes.0,
                Side::Host => &mut self.port_bytes.0,
            };
            *all += n;
        }
    }

    fn written(&self) -> usize {
        match self.writer {
            Side::Client => self.client_bytes.0,
            Side::Host => self.port_bytes.0,
        }
    }

    /// What the network does with the frames of one direction.
    fn carry(&mut self, from_client: bool, what: u8, at: u8) {
        let waiting = if from_client { &self.sent.back } else { &self.pipe.back };
        let frame = with(waiting, |waiting| {
            let last = what == 1;
            let frame = if last { waiting.pop_back() } else { waiting.pop_front() }?;
            if what == 2 {
                waiting.push_back(frame.clone());
            }
            Some(frame)
        });
        let Some(mut frame) = frame.filter(|_| what != 3) else { return };
        if what == 4 {
            let bits = (frame.len() - HEADER) * 8;
            let bit = usize::from(at) * 37 % bits;
            if let Some(byte) = frame.get_mut(HEADER + bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
        if from_client {
            with(&self.pipe.there, |there| there.push_back(frame));
        } else if what != 4 {
            let packet = frame.get(HEADER + 14..).unwrap_or_default();
            self.client.arrive(packet);
        }
    }

    /// A network that is well, until nothing is under way; time passes.
    fn heal(&mut self) {
        for _ in 0..1000 {
            while with(&self.sent.back, |sent| !sent.is_empty()) {
                self.carry(true, 0, 0);
            }
            while with(&self.pipe.back, |back| !back.is_empty()) {
                self.carry(false, 0, 0);
            }
            self.pass();
            self.read();
            let all = self.client_bytes.0 == self.port_bytes.1
                && self.port_bytes.0 == self.client_bytes.1;
            if all && self.conn.is_some() {
                return;
            }
            // Longer than an acknowledgement waits; all of them less than patience ends.
            let tick = Duration::from_millis(100);
            self.port.begun = self.port.begun.checked_sub(tick).unwrap_or(self.port.begun);
        }
    }

    /// Reads on both sides.
    fn read(&mut self) {
        let mut buf = vec![0; WRITTEN_MAX];
        if let Read::Bytes(n) = self.client.read(&mut buf) {
            same(Side::Host, &mut self.client_bytes.1, buf.get(..n).unwrap_or_default());
        }
        if let Some(id) = self.conn
            && let Read::Bytes(n) = self.port.read(id, &mut buf)
        {
            same(Side::Client, &mut self.port_bytes.1, buf.get(..n).unwrap_or_default());
        }
    }
}

fn next(side: Side, at: usize, bytes: usize) -> Vec<u8> {
    let end = (at + bytes).min(WRITTEN_MAX);
    (at..end).map(|at| pattern(side, at)).collect()
}

fn same(side: Side, at: &mut usize, bytes: &[u8]) {
    for byte in bytes {
        assert_eq!(*byte, pattern(side, *at), "byte {at} that {side:?} wrote");
        *at += 1;
    }
}

/// Segments of one connection, cut, swapped, doubled, lost and damaged.
pub fn segments(data: &[u8]) {
    let writer = if data.len().is_multiple_of(2) { Side::Client } else { Side::Host };
    let Some(mut world) = World::new(writer) else { return };
    for step in data.chunks_exact(2).take(512) {
        let &[what, at] = step else { continue };
        match what % 8 {
            5 => world.talk(usize::from(at) * 16),
            6 | 7 => world.pass(),
            fate => world.carry(what & 8 == 0, fate, at),
        }
    }
    world.heal();
    assert!(world.conn.is_some(), "the connection came to be");
    assert_eq!(world.port_bytes.1, world.client_bytes.0, "all that the client wrote was read");
    assert_eq!(world.client_bytes.1, world.port_bytes.0, "all that it was answered, too");
    drop(world.host);
}

/// Any bytes as a frame from either side, and any as what the kernel says of it.
pub fn frames(data: &[u8]) {
    let Some(mut world) = World::new(Side::Client) else { return };
    for piece in data.split(|byte| *byte == 0xFE) {
        for pipe in [&world.pipe, &world.host] {
            let frame = piece.get(..piece.len().min(FRAME_MAX)).unwrap_or_default();
            with(&pipe.there, |there| there.push_back(frame.to_vec()));
        }
        for side in [Side::Client, Side::Host] {
            assert!(world.port.receive(side).is_ok(), "a pipe does not fail");
        }
        world.port.flush(&mut world.news);
        world.news.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_dds::dpu::director::packet::finish_checksum;
    use proptest::prelude::*;

    /// The frame of a client's first segment, as no TCP of ours would make so many.
    fn opens(port: u16) -> Vec<u8> {
        let mut frame = vec![0; HEADER];
        // Not to be looked at: its checksum was.
        frame[0] = 2;
        frame.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        let ip = frame.len();
        frame.extend([0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        assert!(finish_checksum(&mut frame[..ip + 20], ip, 10));
        frame.extend(port.to_be_bytes());
        frame.extend([0x1B, 0x58, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 16, 0, 0, 0, 0, 0]);
        frame
    }

    impl World {
        fn hear(&mut self, frame: Vec<u8>) {
            with(&self.pipe.there, |there| there.push_back(frame));
            self.port.receive(Side::Client).unwrap();
            self.port.flush(&mut self.news);
        }
    }

    /// Each cost buffers of 256 KiB, made and thrown away, whoever sent it.
    #[test]
    fn a_stray_segment_is_answered_with_a_reset_and_leaves_nothing() {
        let mut world = World::new(Side::Client).unwrap();
        let mut stray = opens(4711);
        // An acknowledgement of what was never sent.
        stray[HEADER + 14 + 20 + 13] = 0x10;
        world.hear(stray);
        let reset = with(&world.pipe.back, VecDeque::pop_front).unwrap();
        let segment = Segment::parse(&reset[HEADER..]).unwrap();
        assert!(segment.resets && segment.is_intact(&reset[HEADER..]));
        assert_eq!(segment.source, "10.0.0.2:7000".parse().unwrap());
        assert_eq!(segment.destination.port(), 4711);
        assert_eq!(reset[HEADER..HEADER + 6], [2, 0, 0, 0, 0, 1], "to who sent it");
        assert!(world.port.conns.is_empty() && world.port.names.is_empty());
        assert_eq!(world.port.wires.frames.refused.load(Ordering::Relaxed), 1);
    }

    /// What IP cannot say by a few bytes was forwarded to a host that has no such connection.
    #[test]
    fn a_segment_that_is_barely_too_long_is_divided() {
        let mut world = World::new(Side::Client).unwrap();
        for len in [65_536, 65_543, 65_600] {
            let mut frame = opens(4711);
            frame[HEADER + 14 + 2..HEADER + 14 + 4].fill(0);
            frame[HEADER + 14 + 20 + 13] = 0x10;
            frame.resize(HEADER + 14 + len, 7);
            world.hear(frame);
        }
        let frames = &world.port.wires.frames;
        assert_eq!(frames.divided.load(Ordering::Relaxed), 3);
        assert_eq!(frames.forwarded.load(Ordering::Relaxed), 0);
    }

    /// Is taken away behind its first frame, and says so once.
    struct Leaving(Wakeup, AtomicU64);

    impl Device for Leaving {
        fn fd(&self) -> BorrowedFd<'_> {
            self.0.fd()
        }

        fn mtu(&self) -> usize {
            1500
        }

        fn receive(&self, _: &mut [u8]) -> io::Result<Option<usize>> {
            let first = self.1.fetch_add(1, Ordering::Relaxed) == 0;
            Ok(first.then_some(HEADER + 60))
        }

        fn send(&self, _: &[u8]) -> bool {
            true
        }

        fn tend(&self) -> Option<Duration> {
            (self.1.load(Ordering::Relaxed) > 1).then_some(Duration::from_secs(1))
        }
    }

    /// A device that was taken away while frames came was not looked for, ever: the look that heard
    /// a frame before the kernel's only word of it threw that away.
    #[test]
    fn a_device_that_is_taken_away_amid_frames_is_looked_for() {
        let leaving = || Arc::new(Leaving(Wakeup::new().unwrap(), AtomicU64::new(0)));
        let wires = Wires {
            client: leaving(),
            host: leaving(),
            buffer: network::Ends::BUFFER,
            signature: Signature::of_server("10.0.0.2:7000".parse().unwrap()),
            frames: Arc::default(),
            inboxes: Vec::new(),
            admission: Admission::new(10_000, b"", Arc::default()),
            memory: 256 << 20,
        };
        let mut port = StackPort::new(Arc::new(wires), 0).unwrap();
        port.receive(Side::Client).unwrap();
        assert_eq!(port.wires.frames.forwarded.load(Ordering::Relaxed), 1);
        assert!(port.tend_at.is_some() && port.patience() <= Duration::from_secs(1));
    }

    /// Whoever sent 16384 first segments and nothing more kept all clients out for two minutes.
    #[test]
    fn clients_that_are_not_there_keep_nobody_out() {
        let mut world = World::new(Side::Client).unwrap();
        let most = u16::try_from(OPENING_MAX).unwrap();
        for port in 5000..5000 + 2 * most {
            world.hear(opens(port));
            assert!(world.port.conns.len() - world.port.free.len() <= OPENING_MAX);
        }
        assert_eq!(world.port.opening.len(), OPENING_MAX);
        with(&world.pipe.back, VecDeque::clear);
        world.talk(100);
        world.heal();
        let conn = world.conn.and_then(|conn| world.port.conn(conn)).unwrap();
        // Others may have been reset meanwhile: this client's computer knows none of them.
        assert!(conn.opening.is_none(), "it waits no more");
        assert!(world.port.opening.len() < OPENING_MAX);
        world.port.begun -= Duration::from_secs(200);
        // Each asks again a few times first; then none of them is left.
        for _ in 0..20 {
            world.port.flush(&mut world.news);
            world.port.begun -= Duration::from_secs(200);
        }
        assert!(world.port.opening.is_empty());
    }

    /// An old segment that opened the connection, come again while the last of the answers was
    /// under way, ended it: the client was reset and the rest lost.
    #[test]
    fn an_old_segment_does_not_take_what_is_being_sent() {
        let mut world = World::new(Side::Client).unwrap();
        world.talk(10);
        world.heal();
        let conn = world.conn.unwrap();
        world.client.shutdown();
        for _ in 0..4 {
            world.pass();
            while with(&world.sent.back, |sent| !sent.is_empty()) {
                world.carry(true, 0, 0);
            }
        }
        let text = next(Side::Host, 0, 3000);
        assert_eq!(world.port.write(conn, &[IoSlice::new(&text)]), Wrote::Bytes(3000));
        world.port_bytes.0 = 3000;
        world.port.close(conn, false);
        world.hear(opens(4000));
        world.heal();
        assert_eq!(world.client_bytes.1, 3000, "all of the answer came");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn segments_may_meet_with_anything(
            data in prop::collection::vec(any::<u8>(), 0..800),
        ) {
            segments(&data);
        }

        #[test]
        fn frames_may_be_anything(
            head in prop::sample::select(vec![vec![], vec![0; HEADER], vec![1; HEADER]]),
            link in prop::sample::select(vec![vec![], [&[2; 12][..], &[8, 0, 0x45, 0]].concat()]),
            rest in prop::collection::vec(any::<u8>(), 0..100),
            ours: bool,
        ) {
            let mut data = [head, link, rest].concat();
            if ours && let Some(place) = data.get_mut(HEADER + 14..HEADER + 38) {
                place.copy_from_slice(&[
                    0x45, 0, 0, 54, 0, 0, 0x40, 0, 64, 6, 0x26, 0x89, 10, 0, 0, 1, 10, 0, 0, 2, 1,
                    2, 0x1B, 0x58,
                ]);
            }
            frames(&data);
        }
    }
}

//! Who speaks with a part of a cluster, with the datagrams in hand.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use outboard_base::Time;
use outboard_fabric::Key;
use outboard_flow::{Config, Conversations, Gone, Net as _, Settings};
use outboard_wire::roce::{Packet, Route};
use outboard_wire::shared::call::{Call, Reply};
use outboard_wire::shared::{Answer, Peer};

use crate::{Result, context};

/// Bytes of a frame on the loopback.
const MTU: usize = 9000;
/// Bytes of a tag behind the payload of a sealed packet.
const SEAL_LEN: usize = 8;
/// How long anything may take that has an answer.
const LIMIT: Duration = Duration::from_secs(20);

/// One end.
pub(super) struct End {
    socket: UdpSocket,
    here: SocketAddrV4,
    conversations: Conversations,
    other: Peer,
    there: SocketAddrV4,
    is_sealed: bool,
    start: Instant,
    /// Answers that came, whoever waits for them.
    pub(super) answers: Vec<Answer>,
    /// Its openings.
    pub(super) openings: Vec<Vec<u8>>,
}

/// Milliseconds of Unix time.
pub(super) fn wall_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(0)
}

impl End {
    /// One that is `me` and has `key`; it speaks with `other`, which is `there`.
    pub(super) fn new(
        key: &Key,
        me: Peer,
        (other, there): (Peer, SocketAddrV4),
        is_sealed: bool,
    ) -> Result<End> {
        let bound = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        let socket = context(bound, || "a socket".to_owned())?;
        let here = match socket.local_addr() {
            Ok(SocketAddr::V4(here)) => here,
            _ => return Err("a socket without an address".to_owned()),
        };
        let life = context(outboard_fabric::random(), || "random numbers".to_owned())?;
        let config = Config {
            me,
            address: here,
            life: life | 1,
            cluster: key.cluster,
            settings: Settings::of_mtu(MTU),
            keys: key.conversations_of(me),
            seed: life,
            sealed: is_sealed,
            answer_within: Duration::from_secs(2),
        };
        let conversations = Conversations::new(config, outboard_flow::NoTarget);
        conversations.know(other, there);
        Ok(End {
            socket,
            here,
            conversations,
            other,
            there,
            is_sealed,
            start: Instant::now(),
            answers: Vec::new(),
            openings: Vec::new(),
        })
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Whether the other has ever spoken with it.
    pub(super) fn is_open(&self) -> bool {
        let figures = self.conversations.figures();
        figures.iter().any(|(name, count)| *name == "conversations opened" && *count > 0)
    }

    /// Takes a message to be sent.
    pub(super) fn say(&self, message: &[u8]) -> Result<()> {
        let is_said = self.conversations.send(self.other, message.to_vec());
        is_said.then_some(()).ok_or_else(|| "the conversation has ended".to_owned())
    }

    /// What is to be sent by now.
    pub(super) fn due(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut keep = |_: SocketAddrV4, datagram: &[u8]| all.push(datagram.to_vec());
        self.conversations.pump(self.now(), wall_ms(), &mut keep);
        self.openings.extend(all.iter().filter(|one| one.first() == Some(&b'O')).cloned());
        all
    }

    /// Sends a datagram, whatever it is.
    pub(super) fn put(&self, datagram: &[u8]) {
        // What the kernel does not take is lost, as on any network.
        let _sent = self.socket.send_to(datagram, self.there);
    }

    /// Hears at most one datagram, for so long; whether one came. For no time: one that is there.
    pub(super) fn hear(&mut self, limit: Duration) -> bool {
        let mut datagram = [0; 9000];
        // The kernel's least time is milliseconds.
        let _set = self.socket.set_nonblocking(limit.is_zero());
        let _set = self.socket.set_read_timeout(Some(limit.max(Duration::from_micros(1))));
        let Ok((len, SocketAddr::V4(from))) = self.socket.recv_from(&mut datagram) else {
            return false;
        };
        let bytes = datagram.get(..len).unwrap_or_default();
        self.answers.extend(self.answer_in(from, bytes));
        self.conversations.datagram(from, bytes, self.now(), wall_ms());
        true
    }

    /// Bytes behind what a packet of it carries.
    pub(super) fn tag(&self) -> usize {
        if self.is_sealed { SEAL_LEN } else { 0 }
    }

    fn answer_in(&self, from: SocketAddrV4, datagram: &[u8]) -> Option<Answer> {
        let route = Route {
            source: from.ip().octets(),
            source_port: from.port(),
            destination: self.here.ip().octets(),
        };
        let packet = Packet::parse(datagram, route).ok()?;
        let len = packet.payload.len().checked_sub(self.tag())?;
        Answer::split(packet.payload.get(..len)?).ok().map(|(answer, _)| answer)
    }

    /// Which way its datagrams go.
    pub(super) fn route(&self) -> Route {
        let (source, source_port) = (self.here.ip().octets(), self.here.port());
        Route { source, source_port, destination: self.there.ip().octets() }
    }

    /// Sends what is due, and hears what comes, until the answer to `request` is there.
    pub(super) fn answer(&mut self, request: u64, limit: Duration) -> Option<Answer> {
        let end = Instant::now() + limit;
        loop {
            if let Some(at) = self.answers.iter().position(|one| one.request == request) {
                return Some(self.answers.swap_remove(at));
            }
            if Instant::now() > end {
                return None;
            }
            self.due().iter().for_each(|datagram| self.put(datagram));
            self.hear(Duration::from_millis(2));
        }
    }

    /// Goes on for a while, and in the end acknowledges what it has heard: who is kept waiting by
    /// a busy machine would find the conversation given up.
    pub(super) fn go_on(&mut self, time: Duration) {
        self.answer(u64::MAX, time);
        // An acknowledgement waits that long for something to go with.
        std::thread::sleep(Duration::from_millis(2));
        self.due().iter().for_each(|datagram| self.put(datagram));
    }

    /// Asks, and waits for the reply; once more, if the conversation was over as nobody used it.
    pub(super) fn ask(&mut self, call: &Call) -> std::result::Result<Reply, Gone> {
        match self.ask_once(call) {
            Err(Gone::Ended) => self.ask_once(call),
            reply => reply,
        }
    }

    /// The same of a server, in the term of the one that the node has heard.
    pub(super) fn command(&mut self, call: &Call) -> std::result::Result<Reply, Gone> {
        match self.ask(call) {
            Ok(Reply::Later { term }) => self.ask(&call.in_term(term)),
            reply => reply,
        }
    }

    /// Begins to open a conversation, and does not wait.
    pub(super) fn knock(&mut self) {
        let mut bytes = Vec::new();
        Call::Status.encode(&mut bytes);
        let conversations = self.conversations.clone();
        let mut asked = pin!(conversations.call(self.other, bytes));
        let _not_yet = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.due().iter().for_each(|opening| self.put(opening));
    }

    fn ask_once(&mut self, call: &Call) -> std::result::Result<Reply, Gone> {
        let mut bytes = Vec::new();
        call.encode(&mut bytes);
        let conversations = self.conversations.clone();
        let mut asked = pin!(conversations.call(self.other, bytes));
        let end = Instant::now() + LIMIT;
        loop {
            let polled = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(reply) = polled {
                return Reply::decode(&reply?).map_err(|_| Gone::Refused);
            }
            if Instant::now() > end {
                return Err(Gone::Unanswered);
            }
            self.due().iter().for_each(|datagram| self.put(datagram));
            self.hear(Duration::from_millis(2));
        }
    }
}

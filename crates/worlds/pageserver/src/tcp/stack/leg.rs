//! One leg: a TCP connection of its own, ended here.
//!
//! Each has an interface and a socket set to itself. So a segment finds its connection by one look
//! into a map, whatever else there is, and a leg may answer in anybody's name: the client's gives
//! the server's address as its own, the host's the client's.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use outboard_dds::dpu::director::packet::LINK_MAX;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{CongestionControl, RecvError, Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr, IpEndpoint};

use super::super::sockets::{Read, Wrote};
use super::device::{Device, HEADER};

/// A side from which nothing comes for so long is asked whether it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// A side that does not acknowledge for so long is gone.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Bounds of what a device may say of its packets, bytes.
const MTU_MIN: usize = 1280;
const MTU_MAX: usize = 9216;
/// Packets that wait for one poll.
const ARRIVED_MAX: usize = 512;
/// An acknowledgement waits so long for something to go with.
const ACK_DELAY: Duration = Duration::from_millis(10);

/// What stands before an IP packet on the way to the leg's other side.
#[derive(Clone, Debug)]
pub(super) struct Link {
    bytes: [u8; LINK_MAX],
    len: usize,
}

impl Link {
    /// That of a frame: for what goes on to where the frame was going.
    pub(super) fn onward(header: &[u8]) -> Link {
        let mut link = Link { bytes: [0; LINK_MAX], len: header.len().min(LINK_MAX) };
        for (place, byte) in link.bytes.iter_mut().zip(header) {
            *place = *byte;
        }
        link
    }

    /// That of an answer to a frame.
    pub(super) fn back(header: &[u8]) -> Link {
        let mut link = Link::onward(header);
        let (to, from) = link.bytes.split_at_mut(6);
        if let Some(from) = from.get_mut(..6) {
            to.swap_with_slice(from);
        }
        link
    }

    /// The other way.
    pub(super) fn turned(&self) -> Link {
        Link::back(self.as_slice())
    }

    fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// What a leg's segments leave through while it is polled.
pub(super) struct Way<'a> {
    /// The device.
    pub(super) device: &'a dyn Device,
    /// Where a frame is made.
    pub(super) frame: &'a mut Vec<u8>,
    /// Frames that the device did not take are counted here.
    pub(super) lost: &'a mut u64,
}

/// The leg's device while it is polled, as the stack sees it.
struct LegDevice<'a> {
    arrived: &'a mut VecDeque<Vec<u8>>,
    link: &'a Link,
    way: Way<'a>,
}

struct Arrived(Vec<u8>);

impl phy::RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Leaving<'a> {
    link: &'a Link,
    way: Way<'a>,
}

impl phy::TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let Way { device, frame, lost } = self.way;
        frame.clear();
        // Nothing is left to the device.
        frame.extend_from_slice(&[0; HEADER]);
        frame.extend_from_slice(self.link.as_slice());
        let start = frame.len();
        frame.resize(start + len, 0);
        let made = f(frame.get_mut(start..).unwrap_or_default());
        if !device.send(frame) {
            *lost += 1;
        }
        made
    }
}

impl phy::Device for LegDevice<'_> {
    type RxToken<'a>
        = Arrived
    where
        Self: 'a;
    type TxToken<'a>
        = Leaving<'a>
    where
        Self: 'a;

    fn receive(&mut self, now: Instant) -> Option<(Arrived, Leaving<'_>)> {
        let packet = self.arrived.pop_front()?;
        Some((Arrived(packet), self.transmit(now)?))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_>> {
        let Way { device, frame, lost } = &mut self.way;
        Some(Leaving { link: self.link, way: Way { device: *device, frame, lost } })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut all = DeviceCapabilities::default();
        all.medium = Medium::Ip;
        all.max_transmission_unit = self.way.device.mtu().clamp(MTU_MIN, MTU_MAX);
        // Looked at before a segment comes here, unless the device did; see `device::is_trusted`.
        all.checksum = ChecksumCapabilities::default();
        all.checksum.tcp = Checksum::Tx;
        all
    }
}

/// A stack that answers as `local`.
fn interface(local: SocketAddr, seed: u64, now: Instant, device: &mut LegDevice<'_>) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let mut interface = Interface::new(config, device, now);
    let whole = if local.is_ipv4() { 32 } else { 128 };
    interface.update_ip_addrs(|own| {
        // The first of the two there is room for.
        let _is_full = own.push(IpCidr::new(local.ip().into(), whole));
    });
    interface
}

/// Answers a segment of a connection that is not there, as a computer would: with a reset. Anybody
/// can send one, so it costs no buffers.
pub(super) fn refuse(local: SocketAddr, link: &Link, packet: &[u8], now: Instant, way: Way<'_>) {
    let mut arrived = VecDeque::from([packet.to_vec()]);
    let mut device = LegDevice { arrived: &mut arrived, link, way };
    let mut interface = interface(local, 0, now, &mut device);
    interface.poll(now, &mut device, &mut SocketSet::new(Vec::new()));
}

/// A connection, its stack, and the way to its other side.
pub(super) struct Leg {
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    arrived: VecDeque<Vec<u8>>,
    pub(super) link: Link,
}

impl Leg {
    /// A leg that answers as `local`, with so many bytes for what came and was not read, and as
    /// many for what was written and not acknowledged. `seed` makes its first sequence number.
    fn new(
        local: SocketAddr,
        link: Link,
        buffer: usize,
        seed: u64,
        now: Instant,
        way: Way<'_>,
    ) -> Leg {
        let mut arrived = VecDeque::new();
        let mut device = LegDevice { arrived: &mut arrived, link: &link, way };
        let interface = interface(local, seed, now, &mut device);
        let buffer = || SocketBuffer::new(vec![0; buffer]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(Some(ACK_DELAY.into()));
        socket.set_keep_alive(Some(KEEP_ALIVE.into()));
        socket.set_timeout(Some(TIMEOUT.into()));
        socket.set_congestion_control(CongestionControl::Cubic);
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Leg { interface, sockets, handle, arrived, link }
    }

    /// The client's leg: `server`, which the client asked, accepts. `None` if that is no address
    /// anybody can have.
    pub(super) fn accept(
        server: SocketAddr,
        link: Link,
        buffer: usize,
        seed: u64,
        now: Instant,
        way: Way<'_>,
    ) -> Option<Leg> {
        let mut leg = Leg::new(server, link, buffer, seed, now, way);
        leg.socket().listen(IpEndpoint::from(server)).ok()?;
        Some(leg)
    }

    /// The host's leg: `client`, which asked, connects to `server`.
    pub(super) fn connect(
        (client, server): (SocketAddr, SocketAddr),
        link: Link,
        buffer: usize,
        seed: u64,
        now: Instant,
        way: Way<'_>,
    ) -> Option<Leg> {
        let mut leg = Leg::new(client, link, buffer, seed, now, way);
        let socket = leg.sockets.get_mut::<Socket<'_>>(leg.handle);
        let context = leg.interface.context();
        socket.connect(context, IpEndpoint::from(server), IpEndpoint::from(client)).ok()?;
        Some(leg)
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Takes an IP packet for the next poll; a flood of them is cut.
    pub(super) fn arrive(&mut self, packet: &[u8]) {
        if self.arrived.len() < ARRIVED_MAX {
            self.arrived.push_back(packet.to_vec());
        }
    }

    /// Hears what arrived, sends what may be sent.
    pub(super) fn poll(&mut self, now: Instant, way: Way<'_>) {
        let mut device = LegDevice { arrived: &mut self.arrived, link: &self.link, way };
        self.interface.poll(now, &mut device, &mut self.sockets);
    }

    /// When to poll again if nothing arrives.
    pub(super) fn next(&mut self, now: Instant) -> Option<Instant> {
        self.interface.poll_at(now, &self.sockets)
    }

    /// How far the connection is.
    pub(super) fn state(&self) -> State {
        self.sockets.get::<Socket<'_>>(self.handle).state()
    }

    /// Whether a read would bring something.
    pub(super) fn is_readable(&self) -> bool {
        let socket = self.sockets.get::<Socket<'_>>(self.handle);
        let begins = matches!(socket.state(), State::Listen | State::SynSent | State::SynReceived);
        socket.can_recv() || !(begins || socket.may_recv())
    }

    /// Bytes that a write would take.
    pub(super) fn room(&self) -> usize {
        let socket = self.sockets.get::<Socket<'_>>(self.handle);
        socket.send_capacity() - socket.send_queue()
    }

    pub(super) fn read(&mut self, buf: &mut [u8]) -> Read {
        let state = self.state();
        match self.socket().recv_slice(buf) {
            Ok(0) => Read::Blocked,
            Ok(n) => Read::Bytes(n),
            Err(RecvError::Finished) => Read::Ended,
            Err(RecvError::InvalidState) => match state {
                State::Listen | State::SynSent | State::SynReceived => Read::Blocked,
                _ => Read::Reset,
            },
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Wrote {
        if matches!(self.state(), State::SynSent | State::SynReceived) {
            return Wrote::Blocked;
        }
        match self.socket().send_slice(bytes) {
            Ok(0) => Wrote::Blocked,
            Ok(n) => Wrote::Bytes(n),
            Err(_) => Wrote::Reset,
        }
    }

    /// Sends no more after what was written.
    pub(super) fn shutdown(&mut self) {
        self.socket().close();
    }

    /// Throws away what came and nobody will read, so that the end behind it is found.
    pub(super) fn waste(&mut self) {
        let socket = self.socket();
        // Nothing there is what is wanted.
        while socket.recv(|bytes| (bytes.len(), bytes.len())).is_ok_and(|n| n > 0) {}
    }

    /// Resets the connection, at the next poll.
    pub(super) fn abort(&mut self) {
        self.socket().abort();
    }
}

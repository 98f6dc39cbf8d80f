//! Frames, as far as the director looks at them: is this a TCP segment of a flow that is ours?
//!
//! Everything else is forwarded as it came, so what cannot be understood is not an error here: it
//! is somebody else's. The lengths that the packet states are checked against the bytes there are.
//!
//! ```text
//! 0 destination 6 | 6 source 6 | [8100 or 88a8, tag 2]* | 0800 or 86dd | IP header | TCP header
//! ```

pub mod long;
pub mod pcap;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::Range;

use super::signature::{Flow5, Signature, Transport};

/// The device that a frame came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The one that clients are behind.
    Client,
    /// The one that the host is behind.
    Host,
}

/// Bytes of an Ethernet header without tags.
const ETHERNET: usize = 14;
/// Tags of virtual networks that are looked through.
const TAGS_MAX: usize = 2;
/// The longest header of a link, with all tags, bytes.
pub const LINK_MAX: usize = ETHERNET + 4 * TAGS_MAX;
const TCP: u8 = 6;
/// Where the checksum lies in a UDP header.
const UDP_CHECKSUM: usize = 6;
/// Bytes of the smallest TCP header.
const TCP_MIN: usize = 20;

/// A whole TCP segment in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Who sent it.
    pub source: SocketAddr,
    /// To whom.
    pub destination: SocketAddr,
    /// The IP packet's bytes of the frame; before it is the link's header, behind it padding.
    pub packet: Range<usize>,
    /// Where in the frame the TCP header starts.
    pub tcp: usize,
    /// Opens a connection: SYN, and no ACK.
    pub opens: bool,
    /// Resets one.
    pub resets: bool,
}

fn byte(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_be_bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The type of what the link carries, and where it starts.
fn link(frame: &[u8]) -> Option<(u16, usize)> {
    let mut at = ETHERNET;
    for _ in 0..=TAGS_MAX {
        match half(frame, at - 2)? {
            0x8100 | 0x88A8 => at += 4,
            kind => return Some((kind, at)),
        }
    }
    None
}

/// Addresses, where the TCP header starts, and where the packet ends.
type Ip = (IpAddr, IpAddr, usize, usize);

/// A packet of version 4 that is no fragment.
fn version_4(frame: &[u8], at: usize) -> Option<Ip> {
    let header = usize::from(byte(frame, at)? & 0x0F) * 4;
    let whole = half(frame, at + 6)? & 0x3FFF == 0;
    let right = byte(frame, at)? >> 4 == 4 && header >= 20 && byte(frame, at + 9)? == TCP && whole;
    let source = Ipv4Addr::from(array::<4>(frame, at + 12)?);
    let destination = Ipv4Addr::from(array::<4>(frame, at + 16)?);
    let end = at + usize::from(half(frame, at + 2)?);
    right.then_some((source.into(), destination.into(), at + header, end))
}

/// A packet of version 6 without extensions.
fn version_6(frame: &[u8], at: usize) -> Option<Ip> {
    let right = byte(frame, at)? >> 4 == 6 && byte(frame, at + 6)? == TCP;
    let source = Ipv6Addr::from(array::<16>(frame, at + 8)?);
    let destination = Ipv6Addr::from(array::<16>(frame, at + 24)?);
    let end = at + 40 + usize::from(half(frame, at + 4)?);
    right.then_some((source.into(), destination.into(), at + 40, end))
}

/// Whether one computer has this address: a connection has no other ends.
fn is_one(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !(v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast()),
        IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_multicast()),
    }
}

impl Segment {
    /// The segment in a frame; `None` if there is none, or only a part of one, or it is to or from
    /// an address that no one computer has.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<Segment> {
        let (kind, at) = link(frame)?;
        let (source, destination, tcp, end) = match kind {
            0x0800 => version_4(frame, at)?,
            0x86DD => version_6(frame, at)?,
            _ => return None,
        };
        let header = usize::from(byte(frame, tcp.checked_add(12)?)? >> 4) * 4;
        if header < TCP_MIN || tcp + header > end || end > frame.len() {
            return None;
        }
        if !is_one(source) || !is_one(destination) {
            return None;
        }
        let flags = byte(frame, tcp + 13)?;
        Some(Segment {
            source: SocketAddr::new(source, half(frame, tcp)?),
            destination: SocketAddr::new(destination, half(frame, tcp + 2)?),
            packet: at..end,
            tcp,
            opens: flags & 0x16 == 0x02,
            resets: flags & 0x04 != 0,
        })
    }

    /// The flow that it is of, if it came from there.
    #[must_use]
    pub fn flow(&self, from: Side) -> Flow5 {
        let (client, server) = match from {
            Side::Client => (self.source, self.destination),
            Side::Host => (self.destination, self.source),
        };
        Flow5 { client, server, transport: Transport::Tcp }
    }

    /// Whether the checksum is that of the bytes.
    #[must_use]
    pub fn is_intact(&self, frame: &[u8]) -> bool {
        let segment = frame.get(self.tcp..self.packet.end).unwrap_or_default();
        let Ok(len) = u32::try_from(segment.len()) else { return false };
        let addresses = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => sum(&a.octets()) + sum(&b.octets()),
            (IpAddr::V6(a), IpAddr::V6(b)) => sum(&a.octets()) + sum(&b.octets()),
            _ => return false,
        };
        fold(addresses + u64::from(TCP) + u64::from(len) + sum(segment)) == 0xFFFF
    }
}

/// The sum of 16-bit words, not folded.
fn sum(bytes: &[u8]) -> u64 {
    let pairs = bytes.chunks_exact(2);
    let last = pairs.remainder().first().map_or(0, |byte| u64::from(*byte) << 8);
    last + pairs
        .map(|pair| pair.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        .sum::<u64>()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(u16::MAX)
}

/// Makes a checksum whole that its sender left to the device: over everything from `start` on, put
/// `offset` bytes behind it, where the sum of the addresses lies. False if that is not there.
pub fn finish_checksum(frame: &mut [u8], start: usize, offset: usize) -> bool {
    let Some(covered) = frame.get_mut(start..) else { return false };
    let whole = match !fold(sum(covered)) {
        // To UDP, whose checksum lies there, zero would say that there is none.
        0 if offset == UDP_CHECKSUM => 0xFFFF,
        other => other,
    };
    let Some(place) = offset.checked_add(2).and_then(|end| covered.get_mut(offset..end)) else {
        return false;
    };
    place.copy_from_slice(&u16::to_be_bytes(whole));
    true
}

/// What is to be done with a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes out at the other side as it came.
    Forward,
    /// It is a segment of a flow that is ended here.
    Ours(Flow5, Segment),
}

/// Looks at a frame that came from one side.
#[must_use]
pub fn classify(signature: &Signature, from: Side, frame: &[u8]) -> Verdict {
    let Some(segment) = Segment::parse(frame) else { return Verdict::Forward };
    let flow = segment.flow(from);
    if signature.matches(&flow) { Verdict::Ours(flow, segment) } else { Verdict::Forward }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A frame as its sender makes it, checksum and all.
    fn frame(source: &str, destination: &str, tags: usize, flags: u8, payload: &[u8]) -> Vec<u8> {
        let (source, destination): (SocketAddr, SocketAddr) =
            (source.parse().unwrap(), destination.parse().unwrap());
        let mut frame = [2u8; 12].to_vec();
        (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 9]));
        let len = u16::try_from(TCP_MIN + payload.len()).unwrap();
        let addresses = match (source.ip(), destination.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                frame.extend([8, 0, 0x45, 0]);
                frame.extend((20 + len).to_be_bytes());
                frame.extend([0, 1, 0x40, 0, 64, TCP, 0, 0]);
                [a.octets(), b.octets()].concat()
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                frame.extend([0x86, 0xDD, 0x60, 0, 0, 0]);
                frame.extend(len.to_be_bytes());
                frame.extend([TCP, 64]);
                [a.octets(), b.octets()].concat()
            }
            _ => panic!("one version"),
        };
        frame.extend(&addresses);
        let start = frame.len();
        frame.extend(source.port().to_be_bytes());
        frame.extend(destination.port().to_be_bytes());
        frame.extend([0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, flags, 1, 0]);
        frame.extend(fold(sum(&addresses) + u64::from(TCP) + u64::from(len)).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(payload);
        assert!(finish_checksum(&mut frame, start, 16));
        frame
    }

    const PAIRS: [(&str, &str); 2] =
        [("10.0.0.1:4000", "10.0.0.2:6379"), ("[fd00::1]:4000", "[fd00::2]:6379")];

    #[test]
    fn segments_are_found_behind_tags_and_before_padding() {
        for (client, server) in PAIRS {
            for tags in 0..=TAGS_MAX {
                let mut bytes = frame(client, server, tags, 0x02, b"odd");
                let end = bytes.len();
                bytes.extend([0; 5]);
                let segment = Segment::parse(&bytes).unwrap();
                assert_eq!(segment.packet, ETHERNET + 4 * tags..end);
                assert!(segment.is_intact(&bytes) && segment.opens && !segment.resets);
                assert_eq!(segment.source, client.parse().unwrap());
                assert_eq!(segment.destination, server.parse().unwrap());
                bytes[end - 1] ^= 1;
                assert!(!segment.is_intact(&bytes), "damage is seen");
            }
            assert_eq!(Segment::parse(&frame(client, server, 3, 0x02, b"")), None);
        }
    }

    #[test]
    fn both_directions_of_a_flow_are_ours_and_nothing_else() {
        let signature: Signature = "[* : *, 10.0.0.2 : 6379, TCP]".parse().unwrap();
        let (client, server) = PAIRS[0];
        let ours = |from, bytes: &[u8]| classify(&signature, from, bytes) != Verdict::Forward;
        let there = frame(client, server, 0, 0x10, b"GET");
        let back = frame(server, client, 0, 0x12, b"OK");
        assert!(ours(Side::Client, &there) && ours(Side::Host, &back));
        assert!(!ours(Side::Host, &there) && !ours(Side::Client, &back));
        assert!(!ours(Side::Client, &frame(client, "10.0.0.2:6380", 0, 2, b"")));
        assert!(!ours(Side::Client, &frame(client, "10.0.0.3:6379", 0, 2, b"")));
        assert!(!ours(Side::Client, &frame(PAIRS[1].0, PAIRS[1].1, 0, 2, b"")));
        let mut udp = there.clone();
        udp[23] = 17;
        assert!(!ours(Side::Client, &udp));
        for fragment in [0x20, 0x01] {
            let mut part = there.clone();
            part[20] = fragment;
            assert!(!ours(Side::Client, &part), "a part of a segment has no ports to go by");
        }
        for many in ["224.0.0.1:6379", "255.255.255.255:6379", "0.0.0.0:6379"] {
            let every: Signature = "[* : *, * : *, TCP]".parse().unwrap();
            for (from, to) in [(client, many), (many, server)] {
                let bytes = frame(from, to, 0, 2, b"");
                assert_eq!(classify(&every, Side::Client, &bytes), Verdict::Forward, "{many}");
            }
        }
        let mut arp = there.clone();
        arp[13] = 6;
        assert!(!ours(Side::Client, &arp));
        for len in 0..there.len() {
            assert!(!ours(Side::Client, &there[..len]), "cut at {len}");
        }
    }

    /// One captured segment in 65536 had 0xFFFF for a checksum that is zero, as UDP wants it, and
    /// an analyser called it wrong.
    #[test]
    fn a_checksum_of_zero_is_another_number_in_udp_alone() {
        for (offset, found) in [(16, 0), (UDP_CHECKSUM, 0xFFFF)] {
            let mut bytes = [0; 20];
            bytes[..2].copy_from_slice(&[0xFF, 0xFF]);
            assert!(finish_checksum(&mut bytes, 0, offset));
            assert_eq!(half(&bytes, offset), Some(found));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at(
            mut bytes in prop::collection::vec(any::<u8>(), 0..120),
            start: u16,
            offset: u16,
        ) {
            let signature: Signature = "[* : *, * : *, TCP]".parse().unwrap();
            for kind in [[8, 0], [0x86, 0xDD]] {
                if let Some(place) = bytes.get_mut(12..14) {
                    place.copy_from_slice(&kind);
                }
                if let Verdict::Ours(flow, segment) = classify(&signature, Side::Client, &bytes) {
                    prop_assert!(segment.packet.end <= bytes.len());
                    prop_assert!(segment.tcp + TCP_MIN <= segment.packet.end);
                    prop_assert_eq!(flow.client, segment.source);
                    let _either = segment.is_intact(&bytes);
                }
            }
            let before = bytes.clone();
            if !finish_checksum(&mut bytes, start.into(), offset.into()) {
                prop_assert_eq!(before, bytes);
            }
        }

        #[test]
        fn damage_of_one_bit_is_seen(
            payload in prop::collection::vec(any::<u8>(), 0..64),
            at: prop::sample::Index,
            bit in 0u8..8,
        ) {
            for (client, server) in PAIRS {
                let mut bytes = frame(client, server, 0, 0x10, &payload);
                let segment = Segment::parse(&bytes).unwrap();
                let at = segment.tcp + at.index(segment.packet.end - segment.tcp);
                bytes[at] ^= 1 << bit;
                prop_assert!(!segment.is_intact(&bytes));
            }
        }
    }
}

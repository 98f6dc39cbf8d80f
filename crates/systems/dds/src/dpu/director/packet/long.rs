//! Frames of joined segments that are longer than IP can say ("BIG TCP"): a kernel that is told so
//! makes them within a computer. They are forwarded whole, as any; those of a flow that is ended
//! here are divided into such as IP can say.
//!
//! ```text
//! version 4: total length 0
//! version 6: payload length 0 | TCP, or: next header 0 | next, 0, C2, 4, length u32 | TCP
//! ```

use super::{TCP, TCP_MIN, byte, finish_checksum, half, link};

/// Bytes of data in one part, at most.
const PART: usize = 32 << 10;
/// Bytes that the length field of an IP header can say.
const SAID_MAX: usize = 65535;
/// Where the flags lie in a TCP header; those that only the last segment has: FIN, PSH.
const FLAGS: usize = 13;
const LAST: u8 = 0x09;
const JUMBO: [u8; 3] = [0, 0xC2, 4];

/// Bytes of the IP header that is kept, and where the TCP header starts.
fn headers(frame: &[u8], kind: u16, at: usize) -> Option<(usize, usize)> {
    match kind {
        0x0800 => {
            let len = usize::from(byte(frame, at)? & 0x0F) * 4;
            let right = byte(frame, at)? >> 4 == 4 && len >= 20 && byte(frame, at + 9)? == TCP;
            let whole = half(frame, at + 6)? & 0x3FFF == 0 && half(frame, at + 2)? == 0;
            (right && whole).then_some((len, at + len))
        }
        0x86DD if byte(frame, at)? >> 4 == 6 && half(frame, at + 4)? == 0 => {
            let jumbo = frame.get(at + 41..at + 44) == Some(&JUMBO) && byte(frame, at + 40)? == TCP;
            match byte(frame, at + 6)? {
                TCP => Some((40, at + 40)),
                0 if jumbo => Some((40, at + 48)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The frames of shorter segments that say the same; `None` if this is not such a frame. Their TCP
/// checksums are not made: who sent joined segments left them to the device.
#[must_use]
pub fn divide(frame: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (kind, at) = link(frame)?;
    if frame.len() - at <= SAID_MAX {
        return None;
    }
    let (ip, tcp) = headers(frame, kind, at)?;
    let header = usize::from(byte(frame, tcp + 12)? >> 4) * 4;
    if header < TCP_MIN {
        return None;
    }
    let data = frame.get(tcp + header..)?;
    let first = u32::from_be_bytes(frame.get(tcp + 4..tcp + 8)?.try_into().ok()?);
    let (parts, mut seq) = (data.chunks(PART), first);
    let last = parts.len().checked_sub(1)?;
    let mut made = Vec::with_capacity(parts.len());
    for (n, part) in parts.enumerate() {
        let mut segment = frame.get(tcp..tcp + header)?.to_vec();
        segment.get_mut(4..8)?.copy_from_slice(&seq.to_be_bytes());
        if n < last {
            *segment.get_mut(FLAGS)? &= !LAST;
        }
        let mut packet = frame.get(at..at + ip)?.to_vec();
        say_length(&mut packet, kind, header + part.len())?;
        let link = frame.get(..at)?;
        made.push([link, &packet, &segment, part].concat());
        seq = seq.wrapping_add(u32::try_from(part.len()).ok()?);
    }
    Some(made)
}

/// Writes the length of what follows into an IP header; whole for what else that changes.
fn say_length(packet: &mut [u8], kind: u16, follows: usize) -> Option<()> {
    if kind == 0x86DD {
        packet.get_mut(4..6)?.copy_from_slice(&u16::try_from(follows).ok()?.to_be_bytes());
        *packet.get_mut(6)? = TCP;
        return Some(());
    }
    let total = u16::try_from(packet.len() + follows).ok()?;
    packet.get_mut(2..4)?.copy_from_slice(&total.to_be_bytes());
    packet.get_mut(10..12)?.fill(0);
    finish_checksum(packet, 0, 10).then_some(())
}

#[cfg(test)]
mod tests {
    use super::super::{Segment, fold, sum};
    use super::*;
    use proptest::prelude::*;

    /// A frame of joined segments, as the kernel makes it.
    fn long(version: u8, jumbo: bool, tags: usize, data: &[u8]) -> Vec<u8> {
        let mut frame = [2u8; 12].to_vec();
        (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 9]));
        if version == 4 {
            frame.extend([8, 0, 0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, TCP, 0, 0]);
            frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        } else {
            frame.extend([0x86, 0xDD, 0x60, 0, 0, 0, 0, 0, if jumbo { 0 } else { TCP }, 64]);
            frame.extend([[0xFD; 16], [0xFE; 16]].concat());
            if jumbo {
                frame.extend([TCP, 0, 0xC2, 4]);
                frame.extend(u32::try_from(data.len() + 28).unwrap().to_be_bytes());
            }
        }
        // Sequence number u32::MAX - 9: it goes round.
        frame.extend([0x10, 0, 0x1B, 0x58, 255, 255, 255, 246, 0, 0, 0, 7, 5 << 4, 0x19, 1, 0]);
        frame.extend([0, 0, 0, 0]);
        frame.extend(data);
        frame
    }

    #[test]
    fn a_long_frame_is_divided_into_such_as_can_be_said() {
        let data: Vec<u8> = (0..150_001u32).map(|n| n.to_le_bytes()[n as usize % 2]).collect();
        for (version, jumbo, tags) in [(4, false, 0), (4, false, 2), (6, true, 1), (6, false, 0)] {
            let frame = long(version, jumbo, tags, &data);
            assert_eq!(Segment::parse(&frame), None, "it is no segment as it is");
            let parts = divide(&frame).unwrap();
            let (mut all, mut seq) = (Vec::<u8>::new(), u32::MAX - 9);
            for (n, part) in parts.iter().enumerate() {
                let segment = Segment::parse(part).unwrap();
                assert_eq!(segment.packet.end, part.len());
                if version == 4 {
                    assert_eq!(fold(sum(&part[segment.packet.start..segment.tcp])), 0xFFFF);
                }
                let own = u32::from_be_bytes(part[segment.tcp + 4..][..4].try_into().unwrap());
                assert_eq!(own, seq, "part {n}");
                let ends = part[segment.tcp + FLAGS] & LAST == LAST;
                assert_eq!(ends, n + 1 == parts.len(), "what ends is said last");
                all.extend(&part[segment.tcp + 20..]);
                seq = own.wrapping_add(u32::try_from(part.len() - segment.tcp - 20).unwrap());
            }
            assert!(all == data, "the same bytes");
        }
        assert_eq!(divide(&long(4, false, 0, &[1; 60_000])), None, "that is not long");
    }

    proptest! {
        #[test]
        fn any_long_bytes_are_looked_at(
            head in prop::collection::vec(any::<u8>(), 14..100),
            version in prop::sample::select(vec![(4, false), (6, true), (6, false)]),
            damaged in prop::collection::vec((12..80usize, any::<u8>()), 0..4),
            len in 65_500..70_000usize,
        ) {
            let _any = divide(&[&head[..], &vec![7; len]].concat());
            let mut frame = long(version.0, version.1, 0, &vec![7; len]);
            for (at, byte) in damaged {
                frame[at] = byte;
            }
            for part in divide(&frame).unwrap_or_default() {
                prop_assert!(part.len() <= PART + 200);
            }
        }
    }
}

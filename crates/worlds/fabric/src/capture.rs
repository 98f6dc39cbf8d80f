//! Datagrams written down for tshark and its kin: one file a process.
//!
//! ```text
//! file    magic a1b23c4d (nanoseconds) | 2 u16, 4 u16 | 0 | 0 | longest 65535 | link type 228
//! record  seconds u32 | nanoseconds u32 | bytes u32 | bytes u32 | IPv4 20 | UDP 8 | datagram
//! ```
//!
//! Little-endian but for the headers of the network. The IPv4 header is the one that a packet's
//! checksum is over, which a card sends ([`outboard_wire::roce`]); a kernel's may have another
//! identification.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::SocketAddrV4;
use std::path::Path;

use outboard_base::Timestamp;

/// Of a file with nanoseconds.
const MAGIC: u32 = 0xA1B2_3C4D;
/// Packets begin with their IPv4 header.
const LINKTYPE_IPV4: u32 = 228;
const HEADERS: usize = 28;

/// A file of datagrams.
pub struct Capture {
    file: BufWriter<File>,
    /// Nothing more is written: the disk is full, for one.
    failed: bool,
}

impl Capture {
    /// A new file `name`.pcap in `dir`, which is made if it is not there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(dir: &Path, name: &str) -> io::Result<Capture> {
        std::fs::create_dir_all(dir)?;
        let mut file = BufWriter::new(File::create(dir.join(format!("{name}.pcap")))?);
        file.write_all(&MAGIC.to_le_bytes())?;
        file.write_all(&[2, 0, 4, 0])?;
        file.write_all(&[0; 8])?;
        file.write_all(&0xFFFF_u32.to_le_bytes())?;
        file.write_all(&LINKTYPE_IPV4.to_le_bytes())?;
        Ok(Capture { file, failed: false })
    }

    /// One went `from` there `to` here, or the other way round.
    pub fn record(&mut self, at: Timestamp, from: SocketAddrV4, to: SocketAddrV4, bytes: &[u8]) {
        if !self.failed {
            let written = self.write(at, from, to, bytes);
            self.give_up_on(written);
        }
    }

    /// Has the file hold what was recorded.
    pub fn flush(&mut self) {
        if !self.failed {
            let written = self.file.flush();
            self.give_up_on(written);
        }
    }

    fn give_up_on(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            tracing::warn!(%error, "nothing more is captured");
            self.failed = true;
        }
    }

    fn write(
        &mut self,
        at: Timestamp,
        from: SocketAddrV4,
        to: SocketAddrV4,
        bytes: &[u8],
    ) -> io::Result<()> {
        let len = u32::try_from(bytes.len() + HEADERS).unwrap_or(0);
        self.file.write_all(&u32::try_from(at.sec).unwrap_or(0).to_le_bytes())?;
        for word in [at.nsec, len, len] {
            self.file.write_all(&word.to_le_bytes())?;
        }
        self.file.write_all(&headers(from, to, bytes.len()))?;
        self.file.write_all(bytes)
    }
}

/// IPv4 (no options, don't fragment, identification 0) and UDP, its checksum not computed.
fn headers(from: SocketAddrV4, to: SocketAddrV4, len: usize) -> [u8; HEADERS] {
    let short = |value: usize| u16::try_from(value).unwrap_or(u16::MAX).to_be_bytes();
    let ([t0, t1], [u0, u1]) = (short(len + HEADERS), short(len + 8));
    let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (from.ip().octets(), to.ip().octets());
    let ([p0, p1], [q0, q1]) = (from.port().to_be_bytes(), to.port().to_be_bytes());
    let mut all = [
        0x45, 0, t0, t1, 0, 0, 0x40, 0, 64, 17, 0, 0, a0, a1, a2, a3, b0, b1, b2, b3, // IPv4
        p0, p1, q0, q1, u0, u1, 0, 0, // UDP
    ];
    let words = all.chunks(2).take(10).map(|pair| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        _ => 0,
    });
    let sum: u32 = words.sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    let folded = (folded & 0xFFFF) + (folded >> 16);
    let checksum = !u16::try_from(folded).unwrap_or(0);
    let [high, low] = checksum.to_be_bytes();
    (all[10], all[11]) = (high, low);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let mut capture = Capture::create(&dir.path().join("new"), "node.1").unwrap();
        let (from, to) = ("192.168.0.1:7", "192.168.0.199:4791");
        let at = Timestamp::new(1, 2).unwrap();
        capture.record(at, from.parse().unwrap(), to.parse().unwrap(), b"hello");
        capture.flush();
        let bytes = std::fs::read(dir.path().join("new/node.1.pcap")).unwrap();
        #[rustfmt::skip]
        let golden = [
            0x4D, 0x3C, 0xB2, 0xA1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0xFF, 0xFF, 0, 0, 228, 0, 0, 0,
            1, 0, 0, 0, 2, 0, 0, 0, 33, 0, 0, 0, 33, 0, 0, 0,
            0x45, 0, 0, 33, 0, 0, 0x40, 0, 64, 17, 0xB8, 0xB3, 192, 168, 0, 1, 192, 168, 0, 199,
            0, 7, 0x12, 0xB7, 0, 13, 0, 0,
            b'h', b'e', b'l', b'l', b'o',
        ];
        assert_eq!(bytes, golden);
    }

    /// A header's sum with its checksum in it is all ones.
    #[test]
    fn the_header_checks() {
        for len in [0, 1, 999, 65_000] {
            let all = headers("10.1.2.3:5".parse().unwrap(), "255.255.1.9:6".parse().unwrap(), len);
            let words =
                all[..20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
            let sum: u32 = words.sum();
            assert_eq!((sum & 0xFFFF) + (sum >> 16), 0xFFFF);
        }
    }
}

//! Serving between two devices (`--net`): what of it is the same for every server.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use outboard_pageserver::tcp::stack::network::{Ends, Network};

use super::cannot;
use crate::exit::{Code, Failure};
use crate::settings::bytes;

/// Bounds of a connection's buffer either way, bytes.
const BUFFER_MIN: u64 = 16 << 10;
const BUFFER_MAX: u64 = 16 << 20;
/// The least a capture may have: a few of the longest frames.
const CAPTURE_MIN: u64 = 4 << 20;

/// The user-space stack.
#[derive(Args, Clone, Debug)]
pub(super) struct NetArgs {
    /// Ends clients' connections in a user-space TCP stack between two devices of the DPU side,
    /// veth:CLIENTS,HOST or tap:CLIENTS,HOST, with @NAMESPACE if they are in another; everything
    /// that is not the server's passes untouched. Without it: kernel sockets
    #[arg(long, value_name = "DEVICES")]
    net: Option<Network>,
    /// Writes what passes the devices of --net to client.pcap and host.pcap in DIR
    #[arg(long, value_name = "DIR", requires = "net")]
    capture: Option<PathBuf>,
    /// Most that is kept of either capture, with K, M or G: what passed last, the older half of it
    /// in client.1.pcap and host.1.pcap
    #[arg(long, value_name = "BYTES", requires = "capture", default_value = "1G")]
    capture_size: String,
    /// Memory of each connection of --net, there and back each, with K or M: the most that is under
    /// way. A client and its host's connection take four of it, when they use it
    #[arg(long, value_name = "BYTES", requires = "net", default_value = "128K")]
    buffer: String,
}

/// A number of bytes within bounds.
fn within(name: &str, text: &str, least: u64, most: u64) -> Result<u64, Failure> {
    let number = bytes(name, text)?;
    if (least..=most).contains(&number) {
        return Ok(number);
    }
    let text = format!("--{name} {text}: {} KiB to {} KiB", least >> 10, most >> 10);
    Err(Failure::new(Code::Usage, text))
}

impl NetArgs {
    /// Whether devices are asked for.
    pub(super) fn is_asked(&self) -> bool {
        self.net.is_some()
    }

    /// Refuses what cannot be: between devices it is by its address and port that the server is
    /// known.
    pub(super) fn check(&self, listen: SocketAddr) -> Result<(), Failure> {
        if self.net.is_some() && (listen.port() == 0 || listen.ip().is_loopback()) {
            let text =
                format!("no client comes to {listen} by --net; give the host's own in --listen");
            return Err(Failure::new(Code::Usage, text));
        }
        self.sizes().map(drop)
    }

    /// Bytes of a buffer, and of a capture.
    fn sizes(&self) -> Result<(usize, u64), Failure> {
        let buffer = within("buffer", &self.buffer, BUFFER_MIN, BUFFER_MAX)?;
        let capture = within("capture-size", &self.capture_size, CAPTURE_MIN, 1 << 50)?;
        Ok((usize::try_from(buffer).unwrap_or(usize::MAX), capture))
    }

    /// The devices, if they are asked for.
    pub(super) fn open(&self) -> Result<Option<Ends>, Failure> {
        let Some(net) = &self.net else { return Ok(None) };
        let (buffer, most) = self.sizes()?;
        let ends = net.open().and_then(|ends| {
            let ends = Ends { buffer, ..ends };
            match &self.capture {
                Some(dir) => ends.captured(dir, most),
                None => Ok(ends),
            }
        });
        ends.map(Some).map_err(cannot(format!("direct --net {net}")))
    }

    /// The same for a process.
    pub(super) fn to_flags(&self) -> Vec<String> {
        let Some(net) = &self.net else { return Vec::new() };
        let mut flags = vec![format!("--net={net}"), format!("--buffer={}", self.buffer)];
        if let Some(dir) = &self.capture {
            flags.push(format!("--capture={}", dir.display()));
            flags.push(format!("--capture-size={}", self.capture_size));
        }
        flags
    }
}

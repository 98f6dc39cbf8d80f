//! Which flows an application answers for: the 5-tuple with wildcards (section 5.1).

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::str::FromStr;

/// What carries a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
}

/// The 5-tuple of a flow, as its client opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow5 {
    /// The client's end.
    pub client: SocketAddr,
    /// The server's end.
    pub server: SocketAddr,
    /// What carries it.
    pub transport: Transport,
}

/// A 5-tuple in which an address or a port may be any, as `[* : *, 10.10.1.1 : 1111, TCP]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    client: (Option<IpAddr>, Option<u16>),
    server: (Option<IpAddr>, Option<u16>),
    transport: Transport,
}

/// What is wrong with a written signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureError(String);

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = &self.0;
        write!(f, "a signature is `[* : *, 10.10.1.1 : 1111, TCP]`; not understood: `{part}`")
    }
}

impl core::error::Error for SignatureError {}

impl Signature {
    /// Any client, one server.
    #[must_use]
    pub fn of_server(server: SocketAddr) -> Signature {
        let ip = Some(server.ip()).filter(|ip| !ip.is_unspecified());
        let port = Some(server.port());
        Signature { client: (None, None), server: (ip, port), transport: Transport::Tcp }
    }

    /// Whether a flow is the application's.
    #[must_use]
    pub fn matches(&self, flow: &Flow5) -> bool {
        let end = |(ip, port): (Option<IpAddr>, Option<u16>), end: SocketAddr| {
            ip.is_none_or(|ip| ip == end.ip().to_canonical())
                && port.is_none_or(|port| port == end.port())
        };
        self.transport == flow.transport
            && end(self.client, flow.client)
            && end(self.server, flow.server)
    }
}

fn wild<T: FromStr>(text: &str) -> Result<Option<T>, SignatureError> {
    match text.trim() {
        "*" => Ok(None),
        text => text.parse().map(Some).map_err(|_| SignatureError(text.to_owned())),
    }
}

/// `address : port`; the last colon parts them, so IPv6 needs no brackets.
fn end(text: &str) -> Result<(Option<IpAddr>, Option<u16>), SignatureError> {
    let (ip, port) = text.rsplit_once(':').ok_or_else(|| SignatureError(text.trim().to_owned()))?;
    Ok((wild(ip)?, wild(port)?))
}

impl FromStr for Signature {
    type Err = SignatureError;

    fn from_str(text: &str) -> Result<Signature, SignatureError> {
        let wrong = || SignatureError(text.to_owned());
        let inner = text.trim().strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let mut parts = inner.ok_or_else(wrong)?.split(',');
        let mut next = || parts.next().ok_or_else(wrong);
        let (client, server, transport) = (end(next()?)?, end(next()?)?, next()?.trim());
        if !transport.eq_ignore_ascii_case("tcp") || parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Signature { client, server, transport: Transport::Tcp })
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |f: &mut fmt::Formatter<'_>, (ip, port): (Option<IpAddr>, Option<u16>)| {
            match ip {
                Some(ip) => write!(f, "{ip}")?,
                None => f.write_str("*")?,
            }
            match port {
                Some(port) => write!(f, " : {port}"),
                None => f.write_str(" : *"),
            }
        };
        f.write_str("[")?;
        end(f, self.client)?;
        f.write_str(", ")?;
        end(f, self.server)?;
        f.write_str(", TCP]")
    }
}

/// The same number for both directions of a flow, so that both legs are one worker's.
#[must_use]
pub fn symmetric_hash(flow: &Flow5) -> u64 {
    let end = |end: SocketAddr| {
        let ip = match end.ip().to_canonical() {
            IpAddr::V4(ip) => u128::from(u32::from(ip)),
            IpAddr::V6(ip) => u128::from(ip),
        };
        (ip << 16).rotate_left(16) ^ u128::from(end.port())
    };
    let (a, b) = (end(flow.client), end(flow.server));
    let mixed = a.min(b).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)
        ^ a.max(b).wrapping_mul(0xD6E8_FEB8_6659_FD93_A076_1D64_78BD_642F);
    let folded = (mixed >> 64) ^ (mixed & u128::from(u64::MAX));
    let folded = folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    u64::try_from(folded & u128::from(u64::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(client: &str, server: &str) -> Flow5 {
        Flow5 {
            client: client.parse().unwrap(),
            server: server.parse().unwrap(),
            transport: Transport::Tcp,
        }
    }

    #[test]
    fn wildcards_match_anything_and_the_rest_exactly() {
        let any: Signature = "[* : *, 10.10.1.1 : 1111, TCP]".parse().unwrap();
        assert!(any.matches(&flow("1.2.3.4:5", "10.10.1.1:1111")));
        assert!(!any.matches(&flow("1.2.3.4:5", "10.10.1.1:1112")));
        assert!(!any.matches(&flow("10.10.1.1:1111", "1.2.3.4:5")));
        let one: Signature = "[::1 : *, * : 7, tcp]".parse().unwrap();
        assert!(one.matches(&flow("[::1]:9", "[::2]:7")));
        assert!(!one.matches(&flow("[::3]:9", "[::2]:7")));
        assert_eq!(any.to_string(), "[* : *, 10.10.1.1 : 1111, TCP]");
        assert_eq!(any.to_string().parse(), Ok(any));
        for wrong in ["", "[]", "[*:*,*:*]", "[*:*,*:*,UDP]", "[*:x,*:*,TCP]", "[*,*,TCP]"] {
            assert!(wrong.parse::<Signature>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn both_directions_hash_alike_and_ports_spread() {
        let mut workers = [0; 4];
        for port in 1000..2000 {
            let there = flow(&format!("10.0.0.1:{port}"), "10.0.0.2:6379");
            let back = Flow5 { client: there.server, server: there.client, ..there };
            assert_eq!(symmetric_hash(&there), symmetric_hash(&back));
            workers[usize::try_from(symmetric_hash(&there) % 4).unwrap()] += 1;
        }
        assert!(workers.iter().all(|n| (150..350).contains(n)), "{workers:?}");
    }
}

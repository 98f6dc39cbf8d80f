//! Which devices the director is put between, as a person writes it, and opening them.
//!
//! ```text
//! veth:CLIENTS,HOST[@NAMESPACE]   two devices there are: virtual or real, by packet sockets
//! tap:CLIENTS,HOST[@NAMESPACE]    two TAP devices that are made, and go again
//! ```

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::capture::Captured;
use super::device::{Device, Packets, Tap};

/// How devices come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Veth,
    Tap,
}

/// Two devices, named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    kind: Kind,
    client: String,
    host: String,
    /// Name of a network namespace, or the path of one.
    namespace: Option<String>,
}

/// What is wrong with a written network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkError(String);

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.0;
        write!(
            f,
            "`{text}` is no network; write veth:CLIENTS,HOST or tap:CLIENTS,HOST, names of two \
             devices, and @NAMESPACE if they are in another network namespace"
        )
    }
}

impl std::error::Error for NetworkError {}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let wrong = || NetworkError(text.to_owned());
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        let kind = match kind {
            "veth" => Kind::Veth,
            "tap" => Kind::Tap,
            _ => return Err(wrong()),
        };
        let (devices, namespace) = match rest.split_once('@') {
            Some((devices, namespace)) => (devices, Some(namespace.to_owned())),
            None => (rest, None),
        };
        let (client, host) = devices.split_once(',').ok_or_else(wrong)?;
        // As the kernel has it: short, and nothing that parts words or paths.
        let is_name = |name: &str| {
            (1..16).contains(&name.len()) && !name.contains([',', '/', ':', ' ', '\0'])
        };
        let named = namespace.as_ref().is_none_or(|name| !name.is_empty());
        if !is_name(client) || !is_name(host) || client == host || !named {
            return Err(wrong());
        }
        Ok(Network { kind, client: client.to_owned(), host: host.to_owned(), namespace })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Veth => "veth",
            Kind::Tap => "tap",
        };
        write!(f, "{kind}:{},{}", self.client, self.host)?;
        match &self.namespace {
            Some(namespace) => write!(f, "@{namespace}"),
            None => Ok(()),
        }
    }
}

/// The two ends of a director.
pub struct Ends {
    /// That clients are behind.
    pub client: Arc<dyn Device>,
    /// That the host is behind.
    pub host: Arc<dyn Device>,
    /// Bytes that each connection keeps of what came and was not read, and as many of what was
    /// written and not acknowledged: the most that may be under way either way.
    pub buffer: usize,
}

impl Network {
    /// Opens both devices.
    ///
    /// # Errors
    /// One is not there, or may not be opened; the message says which, and what helps.
    pub fn open(&self) -> io::Result<Ends> {
        // A thread of its own enters the namespace; what it opens stays of that namespace.
        let own = self.clone();
        let opening = std::thread::Builder::new().name("director-open".into());
        let opened = opening.spawn(move || {
            own.enter()?;
            Ok(Ends::new(own.device(&own.client)?, own.device(&own.host)?))
        })?;
        opened.join().map_err(|_| io::Error::other("opening the devices panicked"))?
    }

    fn enter(&self) -> io::Result<()> {
        let Some(namespace) = &self.namespace else { return Ok(()) };
        let path = if namespace.contains('/') {
            PathBuf::from(namespace)
        } else {
            Path::new("/run/netns").join(namespace)
        };
        let entered = File::open(&path).and_then(|file| {
            Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
        });
        entered.map_err(|error| {
            let text = format!(
                "cannot enter the network namespace {}: {error}; `ip netns add` makes one, and \
                 entering takes root",
                path.display()
            );
            io::Error::new(error.kind(), text)
        })
    }

    fn device(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        let opened: io::Result<Arc<dyn Device>> = match self.kind {
            Kind::Veth => Packets::open(name).map(|device| Arc::new(device) as _),
            Kind::Tap => Tap::make(name).map(|device| Arc::new(device) as _),
        };
        opened.map_err(|error| {
            let help = match (self.kind, error.raw_os_error()) {
                (_, Some(libc::EPERM | libc::EACCES)) => {
                    "it takes root, or CAP_NET_RAW and CAP_NET_ADMIN"
                }
                (Kind::Veth, _) => "`ip link` shows which there are",
                (Kind::Tap, Some(libc::EBUSY)) => "there is one of this name: give another",
                (Kind::Tap, _) => "is /dev/net/tun there? `modprobe tun` may help",
            };
            io::Error::new(error.kind(), format!("network device {name}: {error}; {help}"))
        })
    }
}

impl Ends {
    /// Bytes of [`Ends::buffer`] if nothing else is said.
    pub const BUFFER: usize = 128 << 10;

    /// Two devices.
    #[must_use]
    pub fn new(client: Arc<dyn Device>, host: Arc<dyn Device>) -> Ends {
        Ends { client, host, buffer: Ends::BUFFER }
    }

    /// Writes down what passes: `client.pcap` and `host.pcap` in a directory that is made if it is
    /// missing; of either the last `most` bytes about, the older half in `client.1.pcap` and
    /// `host.1.pcap`.
    ///
    /// # Errors
    /// One cannot be written.
    pub fn captured(self, dir: &Path, most: u64) -> io::Result<Ends> {
        let buffer = self.buffer;
        let capture = || {
            std::fs::create_dir_all(dir)?;
            let client = Captured::new(self.client, &dir.join("client.pcap"), most)?;
            let host = Captured::new(self.host, &dir.join("host.pcap"), most)?;
            Ok(Ends { client: Arc::new(client), host: Arc::new(host), buffer })
        };
        capture().map_err(|error: io::Error| {
            io::Error::new(error.kind(), format!("capture in {}: {error}", dir.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_as_they_are_written() {
        for text in ["veth:c0,h0", "tap:a,b@dpu", "veth:eth0,eth1@/proc/7/ns/net"] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
        for wrong in
            ["", "veth", "veth:a", "veth:a,a", "tun:a,b", "veth:a,", "tap:a,b@", "tap:a/b,c"]
        {
            assert!(wrong.parse::<Network>().unwrap_err().to_string().contains("veth:CLIENTS"));
        }
    }

    #[test]
    fn what_is_not_there_is_said_with_what_helps() {
        let error = |text: &str| {
            let network: Network = text.parse().unwrap();
            network.open().err().unwrap().to_string()
        };
        let text = error("veth:no-such-dev,nor-this");
        assert!(text.starts_with("network device no-such-dev"), "{text}");
        let text = error("tap:a,b@no-such-namespace");
        assert!(text.contains("ip netns add"), "{text}");
    }
}

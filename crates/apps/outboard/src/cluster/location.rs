//! Where a shared volume is: `shared://HOST:PORT/VOLUME?key=FILE`, with `HOST:PORT,HOST:PORT` where
//! servers stand by.
//!
//! The data directory of a mount remembers it, with the number by which the cluster knows this
//! machine:
//!
//! ```text
//! DIR/shared   location | newline | client, 6 digits | newline | place, 8 digits | newline
//!              | cluster, 16 digits
//! ```

use std::io::ErrorKind;
use std::net::{SocketAddr, SocketAddrV4, ToSocketAddrs};
use std::path::{Path, PathBuf};

use outboard_fabric::{Key, client_of, random};

use super::description::{MTU, MTU_RANGE, Trust, read_key};
use crate::exit::{Code, Failure};

/// How a location begins.
const SCHEME: &str = "shared://";
/// The file of a data directory that remembers it.
const REMEMBERED: &str = "shared";
/// The port of RoCEv2.
const PORT: u16 = outboard_wire::roce::PORT;
/// Places of a server, at most.
const SERVERS_MAX: usize = 8;

/// A shared volume, as it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// As it was written.
    text: String,
    /// Where its server may be: host and port.
    servers: Vec<(String, u16)>,
    /// The volume's name.
    pub(crate) volume: String,
    key: PathBuf,
    /// Bytes of a frame on the way there.
    pub(crate) mtu: Option<usize>,
    /// Whom its nodes have to trust, at most.
    pub(crate) trust: Option<Trust>,
}

impl Location {
    /// Reads one; `None`: it is not of a shared volume.
    pub(crate) fn parse(text: &str) -> Result<Option<Location>, Failure> {
        let Some(rest) = text.strip_prefix(SCHEME) else { return Ok(None) };
        let wrong = |what: &str| {
            Failure::usage(format!(
                "{text} {what}; write shared://HOST:PORT/VOLUME?key=FILE, as `outboard cluster up` \
                 says"
            ))
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (at, volume) = rest.split_once('/').ok_or_else(|| wrong("names no volume"))?;
        if volume.is_empty() || volume.contains('/') {
            return Err(wrong("names no volume"));
        }
        let mut servers = Vec::new();
        for at in at.split(',') {
            let (host, port) = match at.rsplit_once(':') {
                Some((host, port)) => (host, port.parse().map_err(|_| wrong("has no port"))?),
                None => (at, PORT),
            };
            if host.is_empty() || port == 0 {
                return Err(wrong("names no host"));
            }
            servers.push((host.to_owned(), port));
        }
        if servers.len() > SERVERS_MAX {
            return Err(wrong("names too many hosts"));
        }
        let (mut key, mut mtu, mut trust) = (None, None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("key", file)) if !file.is_empty() => key = Some(PathBuf::from(file)),
                Some(("mtu", bytes)) => {
                    let bytes = bytes.parse().ok().filter(|mtu| MTU_RANGE.contains(mtu));
                    mtu = Some(bytes.ok_or_else(|| wrong("has an mtu beyond 1280 to 65535"))?);
                }
                Some(("trust", name)) => {
                    let known = Trust::parse(name);
                    let wrong = || wrong("has another trust than plain, capability or sealed");
                    trust = Some(known.ok_or_else(wrong)?);
                }
                _ => return Err(wrong(&format!("says {pair}"))),
            }
        }
        let key = key.ok_or_else(|| wrong("names no key"))?;
        let (text, volume) = (text.to_owned(), volume.to_owned());
        Ok(Some(Location { text, servers, volume, key, mtu, trust }))
    }

    /// The one that was `given`, or that the data directory remembers.
    pub(crate) fn of(data: &Path, given: Option<&str>) -> Result<Option<Location>, Failure> {
        let remembered = Remembered::read(data)?;
        match (given, remembered) {
            (None, None) => Ok(None),
            (None, Some(remembered)) => Location::parse(&remembered.location),
            (Some(given), remembered) => {
                let given = Location::parse(given)?;
                let holds = |name: &str| data.join(name).exists();
                if given.is_some() && (holds("kv") || holds("store")) {
                    return Err(Failure::new(
                        Code::Data,
                        format!(
                            "{} holds a volume of its own: choose another data directory with \
                             --data",
                            data.display()
                        ),
                    ));
                }
                let here = data.display();
                let is_same = |was: &Remembered| given.as_ref().is_some_and(|now| now.is_of(was));
                let was = remembered.filter(|was| !is_same(was)).map(|was| was.location);
                if let Some(was) = was {
                    return Err(Failure::new(
                        Code::Data,
                        format!(
                            "{here} belongs to {was}: leave out --store, or choose another data \
                             directory"
                        ),
                    ));
                }
                Ok(given)
            }
        }
    }

    /// Whether it is the volume that is remembered, by the number of its cluster: its server may be
    /// elsewhere now, and others may stand by.
    fn is_of(&self, was: &Remembered) -> bool {
        let Some(cluster) = was.cluster else { return self.whole() == was.location };
        let known = Location::parse(&was.location).ok().flatten();
        let volume = known.is_some_and(|known| known.volume == self.volume);
        match read_key(&self.key) {
            Ok(key) => volume && key.cluster == cluster,
            // What is wrong with it is said later.
            Err(_) => self.whole() == was.location,
        }
    }

    /// With paths that mean the same anywhere.
    pub(crate) fn whole(&self) -> String {
        let key = self.key.canonicalize().unwrap_or_else(|_| self.key.clone());
        let (was, is) = (self.key.display().to_string(), key.display().to_string());
        self.text.replace(&format!("key={was}"), &format!("key={is}"))
    }

    /// Where the metadata server may be: one address at least.
    pub(crate) fn places(&self) -> Result<Vec<SocketAddrV4>, Failure> {
        let found = self.servers.iter().filter_map(|(host, port)| {
            let mut all = (host.as_str(), *port).to_socket_addrs().ok()?;
            all.find_map(|one| match one {
                SocketAddr::V4(one) => Some(one),
                SocketAddr::V6(_) => None,
            })
        });
        let found: Vec<SocketAddrV4> = found.collect();
        if found.is_empty() {
            let hosts: Vec<&str> = self.servers.iter().map(|(host, _)| host.as_str()).collect();
            let hosts = hosts.join(",");
            return Err(Failure::usage(format!("{}: {hosts} has no IPv4 address", self.text)));
        }
        Ok(found)
    }

    /// Bytes of a frame on the way to the server.
    pub(crate) fn mtu(&self, server: SocketAddrV4) -> usize {
        let default = if server.ip().is_loopback() { MTU.0 } else { MTU.1 };
        self.mtu.unwrap_or(default)
    }

    /// The key of this machine and the number of this place, which `data` remembers, or remembers
    /// from now on.
    pub(crate) fn key(&self, data: &Path) -> Result<(Key, u32), Failure> {
        let key = read_key(&self.key)?;
        let cannot =
            |error| Failure::new(Code::Data, format!("cannot use {}: {error}", data.display()));
        let known = Remembered::read(data)?.and_then(|remembered| remembered.client);
        let place = match known {
            Some((_, place)) => place,
            None => u32::try_from(random().map_err(cannot)? >> 32).unwrap_or(0),
        };
        let client = match key.client.or_else(|| known.map(|(client, _)| client)) {
            Some(client) => client,
            None => client_of(random().map_err(cannot)?),
        };
        let (location, cluster) = (self.whole(), Some(key.cluster));
        let remembered = Remembered { location, client: Some((client, place)), cluster };
        remembered.write(data).map_err(cannot)?;
        let key = key.of_client(client);
        Ok((key.ok_or_else(|| Failure::usage("the key is another client's"))?, place))
    }
}

/// What a data directory remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Remembered {
    location: String,
    /// The number of its key, and its own.
    client: Option<(u32, u32)>,
    /// The number of its cluster, which was not noted at first.
    cluster: Option<u64>,
}

impl Remembered {
    fn read(data: &Path) -> Result<Option<Remembered>, Failure> {
        let path = data.join(REMEMBERED);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let message = format!("cannot read {}: {error}", path.display());
                return Err(Failure::new(Code::Data, message));
            }
        };
        let mut lines = text.lines();
        let location = lines.next().unwrap_or_default().to_owned();
        let mut number = || lines.next().and_then(|line| u32::from_str_radix(line, 16).ok());
        let client = number().zip(number());
        let cluster = lines.next().and_then(|line| u64::from_str_radix(line, 16).ok());
        Ok(Some(Remembered { location, client, cluster }))
    }

    fn write(&self, data: &Path) -> std::io::Result<()> {
        if Remembered::read(data).ok().flatten().as_ref() == Some(self) {
            return Ok(());
        }
        let draft = data.join("shared.new");
        let client = self.client.map(|(client, place)| format!("{client:06x}\n{place:08x}\n"));
        let cluster = self.cluster.map(|cluster| format!("{cluster:016x}\n"));
        let (client, cluster) = (client.unwrap_or_default(), cluster.unwrap_or_default());
        std::fs::write(&draft, format!("{}\n{client}{cluster}", self.location))?;
        std::fs::rename(&draft, data.join(REMEMBERED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_read() {
        let read = |text: &str| Location::parse(text).unwrap();
        assert_eq!(read("fjall"), None);
        assert_eq!(read("rados://pool?conf=x"), None);
        let all = read("shared://10.0.0.1:4000/main?key=some/key&mtu=9000&trust=sealed").unwrap();
        assert_eq!(
            (&all.servers[..], all.volume.as_str()),
            (&[("10.0.0.1".into(), 4000)][..], "main")
        );
        assert_eq!((all.key.clone(), all.mtu), (PathBuf::from("some/key"), Some(9000)));
        assert_eq!(all.trust, Some(Trust::Sealed));
        assert_eq!(all.places().unwrap(), ["10.0.0.1:4000".parse().unwrap()]);
        let short = read("shared://127.0.0.1/v?key=k").unwrap();
        let place = short.places().unwrap()[0];
        assert_eq!((place.port(), short.mtu(place)), (4791, 65_535));
        let many = read("shared://10.0.0.1,10.0.0.2:4000/main?key=k").unwrap();
        let places = ["10.0.0.1:4791".parse().unwrap(), "10.0.0.2:4000".parse().unwrap()];
        assert_eq!(many.places().unwrap(), places);
        assert_eq!(short.whole(), "shared://127.0.0.1/v?key=k");
    }

    #[test]
    fn what_is_no_location_is_refused_with_what_to_write() {
        for (text, says) in [
            ("shared://", "no volume"),
            ("shared://host", "no volume"),
            ("shared://host/", "no volume"),
            ("shared://host/a/b?key=k", "no volume"),
            ("shared:///v?key=k", "no host"),
            ("shared://host:0/v?key=k", "no host"),
            ("shared://host:x/v?key=k", "no port"),
            ("shared://host/v", "no key"),
            ("shared://host/v?key=", "says key="),
            ("shared://host/v?key=k&more=1", "says more=1"),
            ("shared://host/v?key=k&mtu=70000", "mtu"),
            ("shared://host/v?key=k&trust=no", "plain, capability or sealed"),
        ] {
            let message = Location::parse(text).unwrap_err().to_string();
            assert!(message.contains(says), "{message}");
            assert!(message.contains("shared://HOST:PORT/VOLUME?key=FILE"), "{message}");
        }
    }

    /// A machine keeps its number, and a directory what it belongs to.
    #[test]
    fn a_directory_remembers() {
        let dir = std::env::temp_dir().join(format!("outboard-location-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let key = dir.join("key");
        std::fs::write(&key, Key { cluster: 1, client: None, secret: [1; 32] }.text()).unwrap();
        let text = format!("shared://127.0.0.1/v?key={}", key.display());
        let location = Location::of(&dir, Some(&text)).unwrap().unwrap();
        let own = location.key(&dir).unwrap();
        assert!(own.0.client.is_some());
        assert_eq!(Location::of(&dir, None).unwrap(), Some(location.clone()));
        assert_eq!(location.key(&dir).unwrap(), own);
        let more = format!("shared://127.0.0.1,127.0.0.2/v?key={}", key.display());
        let more = Location::of(&dir, Some(&more)).unwrap().unwrap();
        assert_eq!(more.key(&dir).unwrap(), own, "the same volume, where a server stands by now");
        assert_eq!(Location::of(&dir, None).unwrap(), Some(more));
        let other = format!("shared://127.0.0.1/w?key={}", key.display());
        assert!(Location::of(&dir, Some(&other)).is_err(), "another volume");
        let message = Location::of(&dir, Some("redb")).unwrap_err().to_string();
        assert!(message.contains("belongs to shared://"), "{message}");
        std::fs::create_dir_all(dir.join("kv")).unwrap();
        let message = Location::of(&dir, Some(&text)).unwrap_err().to_string();
        assert!(message.contains("--data"), "{message}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

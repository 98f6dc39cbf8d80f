//! Who has which key of a cluster, and the files they lie in.
//!
//! ```text
//! cluster = 0123456789abcdef          of which cluster
//! client = 012345                     whose key it is; of the cluster's own key: left out
//! key = 64 digits
//! ```
//!
//! A client is named by the number of its key, of 24 bits, and the number of the place it keeps its
//! data in, of 32 bits, chosen at random: one key may be in use at several. Each has a key of its
//! own, made of the client's, which is made of the cluster's.

use std::fmt;

use outboard_codec::mac::derive;
use outboard_flow::Keys;
use outboard_wire::shared::Peer;

/// The largest number of a client: with its place it is 56 bits of a [`Peer::Client`].
const CLIENT_MAX: u32 = (1 << 24) - 1;

/// Who manages a cluster, with its own key: a number that no client is given.
pub(crate) const MANAGER: u32 = 0;

/// A client's number of these random bits.
#[must_use]
pub fn client_of(random: u64) -> u32 {
    u32::try_from(random >> 40).unwrap_or(0).max(MANAGER + 1)
}

/// A key of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// Of which cluster.
    pub cluster: u64,
    /// Whose it is; `None`: the cluster's own, from which all others are derived.
    pub client: Option<u32>,
    /// The secret.
    pub secret: [u8; 32],
}

impl fmt::Debug for Key {
    /// Not the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { cluster, client, .. } = self;
        f.debug_struct("Key").field("cluster", cluster).field("client", client).finish()
    }
}

impl Key {
    /// Reads a key file.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(text: &str) -> Result<Key, &'static str> {
        let (mut cluster, mut client, mut secret) = (None, None, None);
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, value) = line.split_once('=').ok_or("a line is no `name = value`")?;
            match name.trim() {
                "cluster" => cluster = Some(number(value.trim())?),
                "client" => {
                    let read = u32::try_from(number(value.trim())?).ok();
                    let read = read.filter(|client| *client <= CLIENT_MAX);
                    client = Some(read.ok_or("the client's number is too large")?);
                }
                "key" => secret = Some(bytes(value.trim())?),
                _ => return Err("a line has another name than cluster, client or key"),
            }
        }
        let cluster = cluster.ok_or("it names no cluster")?;
        Ok(Key { cluster, client, secret: secret.ok_or("it holds no key")? })
    }

    /// The file's text.
    #[must_use]
    pub fn text(&self) -> String {
        let client = self.client.map(|client| format!("client = {client:06x}\n"));
        let secret: String = self.secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let cluster = self.cluster;
        format!("cluster = {cluster:016x}\n{}key = {secret}\n", client.unwrap_or_default())
    }

    /// The key of a client, if this one is the cluster's; a client has its own alone.
    #[must_use]
    pub fn of_client(&self, client: u32) -> Option<Key> {
        match self.client {
            None => {
                let secret = secret_of(&self.secret, client);
                Some(Key { cluster: self.cluster, client: Some(client), secret })
            }
            Some(own) => (own == client).then(|| self.clone()),
        }
    }
}

impl Key {
    /// The keys of the conversations of whoever has this one and is `me`.
    #[must_use]
    pub fn conversations_of(&self, me: Peer) -> Box<dyn Keys> {
        match me {
            Peer::Server(_) | Peer::Node(_) | Peer::Coordinator(_) => Box::new(OfPart(self.secret)),
            Peer::Client(id) => Box::new(OfClient::new(&self.secret, id)),
        }
    }
}

fn secret_of(cluster: &[u8; 32], client: u32) -> [u8; 32] {
    derive(cluster, "outboard client", &client.to_le_bytes())
}

fn life_of(client: &[u8; 32], id: u64) -> [u8; 32] {
    derive(client, "outboard life", &id.to_le_bytes())
}

fn number(text: &str) -> Result<u64, &'static str> {
    u64::from_str_radix(text, 16).map_err(|_| "a number is not of hexadecimal digits")
}

fn bytes(text: &str) -> Result<[u8; 32], &'static str> {
    const WRONG: &str = "the key is not of 64 hexadecimal digits";
    let mut key = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return Err(WRONG);
    }
    for (at, byte) in key.iter_mut().enumerate() {
        let digits = text.get(2 * at..2 * at + 2).ok_or(WRONG)?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| WRONG)?;
    }
    Ok(key)
}

/// The keys of a server or a node: those of all its peers, made of the cluster's.
struct OfPart([u8; 32]);

impl Keys for OfPart {
    fn of(&self, peer: Peer) -> Option<[u8; 32]> {
        Some(match peer {
            Peer::Server(_) | Peer::Node(_) | Peer::Coordinator(_) => {
                derive(&self.0, "outboard parts", &[])
            }
            Peer::Client(id) => {
                let client = u32::try_from(id >> 32).unwrap_or(0);
                life_of(&secret_of(&self.0, client), id)
            }
        })
    }
}

/// Those of a life of a client: it speaks with servers and nodes, and proves who it is.
struct OfClient([u8; 32]);

impl OfClient {
    /// Of the life `id`, of the client whose secret it is.
    fn new(secret: &[u8; 32], id: u64) -> OfClient {
        OfClient(life_of(secret, id))
    }
}

impl Keys for OfClient {
    fn of(&self, peer: Peer) -> Option<[u8; 32]> {
        match peer {
            Peer::Server(_) | Peer::Node(_) | Peer::Coordinator(_) => Some(self.0),
            Peer::Client(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_is_read_as_it_was_written() {
        let own = Key { cluster: 7, client: None, secret: [0xAB; 32] };
        let client = own.of_client(9).unwrap();
        for key in [&own, &client] {
            assert_eq!(Key::parse(&key.text()).as_ref(), Ok(key));
        }
        assert_eq!(own.text(), format!("cluster = 0000000000000007\nkey = {}\n", "ab".repeat(32)));
        assert!(!format!("{own:?}").contains("ab"), "a key is not shown");
        let digits = "ab".repeat(32);
        for wrong in [
            "",
            "cluster = 7",
            &format!("key = {digits}"),
            &format!("cluster = 1\nclient = 1000000\nkey = {digits}"),
            &format!("cluster = x\nkey = {digits}"),
            &format!("cluster = 1\nkey = {digits}0"),
            &format!("cluster = 1\nkey = {}é", "a".repeat(62)),
            &format!("cluster = 1\nkey = {digits}\nmore = 1"),
            "nonsense",
        ] {
            assert!(Key::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// Both ends of every conversation there may be have one key, and no client another's or that
    /// of servers and nodes.
    #[test]
    fn both_ends_have_one_key() {
        let own = Key { cluster: 7, client: None, secret: [3; 32] };
        let part = OfPart(own.secret);
        let key = own.of_client(9).unwrap();
        assert_eq!(key.of_client(9).as_ref(), Some(&key));
        assert_eq!(key.of_client(8), None);
        let (id, others) = ((9 << 32) | 5, [(9 << 32) | 6, (8 << 32) | 5, 5, 9]);
        let client = OfClient::new(&key.secret, id);
        for peer in [Peer::Server(0), Peer::Node(3)] {
            assert_eq!(client.of(peer), part.of(Peer::Client(id)));
            for other in others {
                assert_ne!(client.of(peer), part.of(Peer::Client(other)));
            }
            assert_ne!(client.of(peer), part.of(peer));
        }
        assert_eq!(client.of(Peer::Client(1)), None);
    }
}

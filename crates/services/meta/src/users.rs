//! Clients by name: who was given a key, and whose counts no more; and the rotation of the keys
//! that capabilities are signed with. All of it is asked by whoever has the cluster's own key.
//!
//! ```text
//! note "user" | number of the key u32, big-endian    value: added u64 | revoked u64 | name
//! note "rotation"                                    value: how often u64 | when last u64
//! ```
//!
//! Little-endian; times are milliseconds of Unix time, and 0 says never. A name has one key that
//! counts at most. A number is never given again: the key of a name that was revoked and is added
//! anew is another.

use std::collections::BTreeMap;

use outboard_base::{Errno, Ino, Result};
use outboard_codec::mac;
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::Kvfs;
use outboard_medium::Medium;
use outboard_wire::shared::call::{Call, REVOKED_MAX, Reply, Revoked};

use crate::Meta;
use crate::keys::Keys;

/// How the names of notes begin.
const PREFIX: &[u8] = b"user";
const ROTATION: &[u8] = b"rotation";
/// The number of who manages the cluster: no client's.
const MANAGER: u64 = 0;
/// Most names.
const USERS_MAX: usize = 1 << 16;
/// Notes are written by one at a time, under this number among the locks of notes: no client's.
const LOCK: Ino = Ino(u64::MAX);

/// A key that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    name: String,
    added: u64,
    /// 0: it counts.
    revoked: u64,
}

/// All of them, by the numbers of their keys.
#[derive(Debug, Default)]
pub(crate) struct Users(BTreeMap<u32, User>);

fn note_of(number: u32) -> Vec<u8> {
    [PREFIX, &number.to_be_bytes()].concat()
}

fn number_at(from: &[u8], at: usize) -> Option<u64> {
    from.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

impl User {
    fn encode(&self) -> Vec<u8> {
        [&self.added.to_le_bytes()[..], &self.revoked.to_le_bytes(), self.name.as_bytes()].concat()
    }

    fn decode(from: &[u8]) -> Option<User> {
        let (added, revoked) = (number_at(from, 0)?, number_at(from, 8)?);
        let name = String::from_utf8(from.get(16..)?.to_vec()).ok()?;
        Some(User { name, added, revoked })
    }
}

/// Reads what was noted.
pub(crate) async fn read_notes<K: Kv, M: Medium>(
    kvfs: &Kvfs<K, M>,
    keys: &mut Keys,
) -> Result<Users> {
    let mut users = Users::default();
    let mut after: Option<Vec<u8>> = None;
    loop {
        let some = kvfs.notes(PREFIX, after.as_deref()).await?;
        let Some((last, _)) = some.last() else { break };
        after = Some(last.clone());
        for (name, value) in &some {
            let number = name.get(PREFIX.len()..).and_then(|raw| raw.try_into().ok());
            let number = number.map(u32::from_be_bytes).ok_or(Errno::EUCLEAN)?;
            users.0.insert(number, User::decode(value).ok_or(Errno::EUCLEAN)?);
        }
    }
    let rotation = kvfs.notes(ROTATION, None).await?;
    if let Some((_, value)) = rotation.first() {
        let count = number_at(value, 0).ok_or(Errno::EUCLEAN)?;
        keys.rotate(count, number_at(value, 8).ok_or(Errno::EUCLEAN)?);
    }
    Ok(users)
}

impl Users {
    /// Numbers that count no more.
    pub(crate) fn revoked(&self) -> Vec<Revoked> {
        let revoked = self.0.iter().filter(|(_, user)| user.revoked > 0);
        revoked.map(|(client, _)| Revoked { client: *client }).collect()
    }

    /// Whether a client's key counts no more.
    pub(crate) fn is_revoked(&self, client: u64) -> bool {
        let number = u32::try_from(client >> 32).unwrap_or(u32::MAX);
        self.0.get(&number).is_some_and(|user| user.revoked > 0)
    }

    fn of_name(&self, name: &str) -> Option<u32> {
        let mut all = self.0.iter();
        all.find(|(_, user)| user.name == name && user.revoked == 0).map(|(number, _)| *number)
    }

    /// A number for a name: made of it, and nobody's yet.
    fn free_number(&self, cluster: &[u8; 32], name: &str) -> Option<u32> {
        (0..=u16::MAX).find_map(|attempt| {
            let attempt = if attempt > 0 { &attempt.to_le_bytes()[..] } else { &[] };
            let text = [name.as_bytes(), attempt].concat();
            let made = mac::derive(cluster, "outboard client name", &text);
            let &[a, b, c, ..] = &made;
            let number = u32::from_le_bytes([a, b, c, 0]);
            (u64::from(number) != MANAGER && !self.0.contains_key(&number)).then_some(number)
        })
    }

    /// As JSON.
    fn list(&self) -> String {
        let one = |(number, user): (&u32, &User)| {
            let User { name, added, revoked } = user;
            format!(
                "{{\"name\":\"{name}\",\"client\":\"{number:06x}\",\"added_ms\":{added},\
                 \"revoked_ms\":{revoked}}}"
            )
        };
        let all: Vec<String> = self.0.iter().map(one).collect();
        format!("[{}]", all.join(","))
    }
}

/// Names go into file names and into JSON.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with('.')
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// Does what who manages the cluster asks.
    pub(crate) async fn manage(&self, client: u64, call: Call) -> Result<Reply> {
        if client >> 32 != MANAGER {
            return Err(Errno::EPERM);
        }
        match call {
            Call::AddKey { name } => self.add_key(name).await.map(|n| Reply::Number(n.into())),
            Call::ListKeys => Ok(Reply::Text(self.users().list())),
            Call::RevokeKey { name } => self.revoke_key(&name).await.map(Reply::Text),
            Call::RotateKey => self.rotate_key().await.map(Reply::Text),
            Call::Place { joins, leaves, rate } => {
                self.place(&joins, &leaves, rate).await.map(Reply::Text)
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    /// The number of a name's key, which has one from now on.
    async fn add_key(&self, name: String) -> Result<u32> {
        if !is_name(&name) {
            return Err(Errno::EINVAL);
        }
        let _one = self.notes().exclusive(LOCK).await;
        let (number, user) = {
            let users = self.users();
            if let Some(number) = users.of_name(&name) {
                return Ok(number);
            }
            if users.0.len() >= USERS_MAX {
                return Err(Errno::ENOSPC);
            }
            let number = users.free_number(&self.options().cluster_key, &name);
            let added = self.net().wall_ms();
            (number.ok_or(Errno::ENOSPC)?, User { name, added, revoked: 0 })
        };
        self.volume().note(&note_of(number), Some(&user.encode())).await?;
        self.users().0.insert(number, user);
        Ok(number)
    }

    /// A name's key counts no more: durably, then here, then at every node that can be reached. The
    /// others take nothing signed with a new key before they are told. What its clients may have
    /// written is sealed before others get it.
    async fn revoke_key(&self, name: &str) -> Result<String> {
        let _one = self.notes().exclusive(LOCK).await;
        let (number, user) = {
            let users = self.users();
            let number = users.of_name(name).ok_or(Errno::ENOENT)?;
            if users.revoked().len() >= REVOKED_MAX {
                return Err(Errno::ENOSPC);
            }
            let user = users.0.get(&number).cloned().ok_or(Errno::ENOENT)?;
            (number, User { revoked: self.net().wall_ms().max(1), ..user })
        };
        self.volume().note(&note_of(number), Some(&user.encode())).await?;
        self.users().0.insert(number, user);
        self.expel_all(number);
        Ok(self.told_nodes(&format!("\"client\":\"{number:06x}\"")).await)
    }

    /// Capabilities are signed with other keys from now on.
    async fn rotate_key(&self) -> Result<String> {
        let _one = self.notes().exclusive(LOCK).await;
        let (count, at) = (self.keys().rotation().saturating_add(1), self.net().wall_ms());
        let value = [count.to_le_bytes(), at.to_le_bytes()].concat();
        self.volume().note(ROTATION, Some(&value)).await?;
        self.keys().rotate(count, at);
        Ok(self.told_nodes(&format!("\"rotation\":{count}")).await)
    }

    async fn told_nodes(&self, what: &str) -> String {
        let reached = self.tell_all_keys().await;
        let all = self.placement().all().len();
        format!("{{{what},\"nodes\":{all},\"nodes_told\":{reached}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_read_as_it_was_noted() {
        let user = User { name: "host-1".into(), added: 5, revoked: 7 };
        assert_eq!(User::decode(&user.encode()), Some(user.clone()));
        for cut in 0..16 {
            assert_eq!(User::decode(&user.encode()[..cut]), None);
        }
        assert_eq!(User::decode(&[&[0; 16][..], &[0xFF]].concat()), None);
    }

    #[test]
    fn a_number_is_one_key_s_for_ever() {
        let mut users = Users::default();
        let mut seen = std::collections::BTreeSet::new();
        for revoked in 1..50 {
            let number = users.free_number(&[1; 32], "host").unwrap();
            assert!(number > 0 && number < 1 << 24 && seen.insert(number));
            users.0.insert(number, User { name: "host".into(), added: 1, revoked });
        }
        assert_eq!(users.revoked().len(), 49);
        let first = u64::from(*seen.first().unwrap());
        assert!(users.is_revoked(first << 32 | 9) && !users.is_revoked(9));
        assert_eq!(users.of_name("host"), None);
    }

    #[test]
    fn names_are_plain() {
        for name in ["host1", "a", "some.body@host-2_x"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a\"", "a b", "\u{e9}", &"a".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
    }
}

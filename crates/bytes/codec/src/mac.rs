//! Keyed MACs (BLAKE3): keys made from a key, tags of messages, and tags of sealed packets.
//!
//! ```text
//! derive   hash of: bytes of the context u64 | context | bytes of more u64 | more
//! tag      the first 16 bytes of the hash of all parts, one behind the other
//! seal     the first 8 bytes of the hash of: "seal" | psn u32 | queue u32 | opcode u8 | payload
//! ```
//!
//! Numbers are little-endian. The parts of a tag are not told apart: who tags has a fixed length
//! for each part but the last. What is hashed for different purposes begins differently, so not even
//! one key for two of them makes one pass for the other.

/// Bytes of a key.
const KEY_LEN: usize = blake3::KEY_LEN;
/// Bytes of a tag.
const TAG_LEN: usize = 16;
/// Bytes of the tag of a packet.
const SEAL_LEN: usize = 8;

/// The key for one purpose, made of another: who has one of them learns nothing of the others.
#[must_use]
pub fn derive(key: &[u8; KEY_LEN], context: &str, more: &[u8]) -> [u8; KEY_LEN] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in [context.as_bytes(), more] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// The tag of `parts`.
#[must_use]
pub fn tag(key: &[u8; KEY_LEN], parts: &[&[u8]]) -> [u8; TAG_LEN] {
    first(&hash(key, parts))
}

/// Whether `tag` is that of `parts`, in a time that does not tell how much of it is right.
#[must_use]
pub fn is_tag(key: &[u8; KEY_LEN], parts: &[&[u8]], tag: &[u8; TAG_LEN]) -> bool {
    is_same(&self::tag(key, parts), tag)
}

/// The tag of a packet of a sealed conversation: of its number, the queue it goes to, its opcode,
/// and what it carries.
#[must_use]
pub fn seal_tag(
    key: &[u8; KEY_LEN],
    psn: u32,
    queue: u32,
    opcode: u8,
    payload: &[u8],
) -> [u8; SEAL_LEN] {
    let (psn, queue) = (psn.to_le_bytes(), queue.to_le_bytes());
    first(&hash(key, &[b"seal", &psn, &queue, &[opcode], payload]))
}

fn hash(key: &[u8; KEY_LEN], parts: &[&[u8]]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

fn first<const N: usize>(hash: &blake3::Hash) -> [u8; N] {
    let mut out = [0; N];
    out.iter_mut().zip(hash.as_bytes()).for_each(|(to, from)| *to = *from);
    out
}

/// The library compares its hashes in constant time; shorter tags are compared as such.
fn is_same(one: &[u8; TAG_LEN], other: &[u8; TAG_LEN]) -> bool {
    let whole = |tag: &[u8; TAG_LEN]| {
        let mut out = [0; blake3::OUT_LEN];
        out.iter_mut().zip(tag).for_each(|(to, from)| *to = *from);
        blake3::Hash::from_bytes(out)
    };
    whole(one) == whole(other)
}

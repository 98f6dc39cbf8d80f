//! Keys: a type tag, then the paper's key with its inode number big-endian, so that a prefix scan
//! is exact and in order. Tags from 0xF0 up belong to the object store.

use outboard_base::{Errno, Ino, Result, SessionId};

/// First byte of every key of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    /// The volume: one key, no more bytes.
    Superblock = 0x01,
    /// Numbers that count up: then one byte, which.
    Counter = 0x02,
    /// Attribute KV: then ino.
    Inode = 0x10,
    /// Inode KV of the paper: then the directory's ino and the name.
    Entry = 0x11,
    /// The same entries in the order of their cookies: then the directory's ino and the cookie.
    Listed = 0x12,
    /// Small file KV: then ino. Holds a symbolic link's target, too.
    Small = 0x13,
    /// Extended attribute: then ino and its name.
    Xattr = 0x14,
    /// An inode without a name: then ino.
    Orphan = 0x15,
    /// A file whose blocks beyond its end are still to be given back: then ino.
    Trim = 0x16,
    /// Replay record: then session and lane.
    Replay = 0x17,
    /// A spread file that somebody may be writing to: then ino.
    Writing = 0x18,
    /// The nodes may still hold bytes of a spread file that is gone: then its ino.
    Purge = 0x19,
    /// What whoever serves the volume keeps in it: then a name.
    Note = 0x1A,
    /// Some who have copies of a spread file lack what was written since they were left out: then
    /// ino.
    Lacking = 0x1B,
}

/// Which counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Counter {
    /// Inode numbers below it may have been given out.
    Ino = 1,
    /// How often the volume was opened.
    Opened = 2,
    /// Spread files with numbers below it are marked durably before they are written to. Those from
    /// it on count as marked at the next opening.
    Marked = 3,
}

pub(crate) const SUPERBLOCK: [u8; 1] = [Tag::Superblock as u8];

pub(crate) fn counter(which: Counter) -> [u8; 2] {
    [Tag::Counter as u8, which as u8]
}

/// Tag and inode number: a whole key, or the prefix of an inode's keys of one kind.
pub(crate) fn of(tag: Tag, ino: Ino) -> [u8; 9] {
    let mut key = [tag as u8; 9];
    let [_, rest @ ..] = &mut key;
    *rest = ino.0.to_be_bytes();
    key
}

pub(crate) fn inode(ino: Ino) -> [u8; 9] {
    of(Tag::Inode, ino)
}

pub(crate) fn entry(parent: Ino, name: &[u8]) -> Vec<u8> {
    [&of(Tag::Entry, parent)[..], name].concat()
}

pub(crate) fn xattr(ino: Ino, name: &[u8]) -> Vec<u8> {
    [&of(Tag::Xattr, ino)[..], name].concat()
}

fn two(tag: Tag, first: u64, second: &[u8]) -> Vec<u8> {
    [&[tag as u8][..], &first.to_be_bytes(), second].concat()
}

pub(crate) fn listed(parent: Ino, cookie: u64) -> Vec<u8> {
    two(Tag::Listed, parent.0, &cookie.to_be_bytes())
}

pub(crate) fn replay(session: SessionId, lane: u16) -> Vec<u8> {
    two(Tag::Replay, session.0, &lane.to_be_bytes())
}

/// Every key of the session's replay records.
pub(crate) fn replay_prefix(session: SessionId) -> [u8; 9] {
    of(Tag::Replay, Ino(session.0))
}

pub(crate) fn note(name: &[u8]) -> Vec<u8> {
    [&[Tag::Note as u8][..], name].concat()
}

/// The cookie of a [`Tag::Listed`] key; `EUCLEAN` if it is none.
pub(crate) fn cookie(key: &[u8]) -> Result<u64> {
    rest(key).try_into().map(u64::from_be_bytes).map_err(|_| Errno::EUCLEAN)
}

/// The number behind the tag, for keys that have one.
pub(crate) fn number(key: &[u8]) -> Option<u64> {
    key.get(1..9)?.try_into().ok().map(u64::from_be_bytes)
}

/// What follows tag and number: a name, or nothing.
pub(crate) fn rest(key: &[u8]) -> &[u8] {
    key.get(9..).unwrap_or_default()
}

//! What clients ask and what they must hear, in the words of each protocol.
//!
//! A key is a number; how it is said is the protocol's. Answers of one batch are of one length, and
//! each must begin with what names its key, so that an answer out of order is found.
//!
//! ```text
//! parts (echo, read)  0 length u32 | 4 kind u8 | 5 0 | 8 key u64 | 16 payload
//! ```
//!
//! The last is the protocol of [`super::part`]: little-endian, the length counts the whole message.

use std::io::Write;

/// Bytes of a key in text.
pub(super) const KEY: usize = 16;
/// Bytes of a message of a part before its payload.
pub(super) const HEAD: usize = 16;
/// Bytes of a message of the page server before its data, and of a page.
const PAGE_HEAD: usize = 24;
const PAGE: usize = 8192;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// RESP: a value.
    Get,
    /// RESP: a new value.
    Set,
    /// memcached's text protocol: a value.
    MemcachedGet,
    /// The same: a new value.
    MemcachedSet,
    /// The page server: a page, whose LSN is its number and one.
    GetPage,
    /// The page server: the log record that makes it so.
    Apply,
    /// A part: its own message, from the host.
    EchoHost,
    /// The same, from the director.
    EchoHere,
    /// A part: bytes of its file; the key is their offset in blocks of [`READ_UNIT`].
    Read,
}

/// What offsets of reads are multiples of; the file says its offset at each.
pub(super) const UNIT: usize = 1024;
pub(super) const READ_UNIT: u64 = UNIT as u64;

/// The kinds of messages of a part.
pub(super) const KIND_HOST: u8 = 0;
pub(super) const KIND_HERE: u8 = 1;
pub(super) const KIND_READ: u8 = 2;

/// How it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) op: Op,
    /// Bytes of a value; of a whole message, for an echo.
    pub(super) value: usize,
    /// Commands sent at once on a connection.
    pub(super) pipeline: usize,
}

/// The head of a message of a part.
pub(super) fn head(len: usize, kind: u8, key: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    let (first, last) = head.split_at_mut(8);
    let len = u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
    first.copy_from_slice(&[len[0], len[1], len[2], len[3], kind, 0, 0, 0]);
    last.copy_from_slice(&key.to_le_bytes());
    head
}

/// The first 16 bytes of a message of the page server.
fn page_head(len: usize, code: u8, page: u64) -> [u8; 16] {
    head(len, code, page)
}

impl Batch {
    /// Adds the request for `key`.
    pub(super) fn command(self, key: u64, out: &mut Vec<u8>) {
        // Writing to a vector cannot fail.
        let _ = match self.op {
            Op::Get => write!(out, "*2\r\n$3\r\nGET\r\n${KEY}\r\nkey:{key:012}\r\n"),
            Op::MemcachedGet => write!(out, "get key:{key:012}\r\n"),
            Op::Set => {
                let _ = write!(out, "*3\r\n$3\r\nSET\r\n${KEY}\r\nkey:{key:012}\r\n");
                let _ = write!(out, "${}\r\n", self.value);
                self.text_value(key, out)
            }
            Op::MemcachedSet => {
                let _ = write!(out, "set key:{key:012} 0 0 {}\r\n", self.value);
                self.text_value(key, out)
            }
            Op::GetPage => {
                out.extend_from_slice(&page_head(PAGE_HEAD, 1, key));
                out.write_all(&(key + 1).to_le_bytes())
            }
            Op::Apply => {
                out.extend_from_slice(&page_head(PAGE_HEAD + 8, 2, key));
                out.extend_from_slice(&(key + 1).to_le_bytes());
                out.write_all(&key.to_le_bytes())
            }
            Op::EchoHost | Op::EchoHere => {
                let kind = if self.op == Op::EchoHost { KIND_HOST } else { KIND_HERE };
                out.extend_from_slice(&head(self.value, kind, key));
                out.resize(out.len() + self.value.saturating_sub(HEAD), b'e');
                Ok(())
            }
            Op::Read => {
                out.extend_from_slice(&head(HEAD + 4, KIND_READ, key));
                out.write_all(&u32::try_from(self.value).unwrap_or(0).to_le_bytes())
            }
        };
    }

    /// A value that says whose it is.
    fn text_value(self, key: u64, out: &mut Vec<u8>) -> std::io::Result<()> {
        write!(out, "key:{key:012}")?;
        out.resize(out.len() + self.value.saturating_sub(KEY), b'v');
        out.write_all(b"\r\n")
    }

    /// How the right answer begins, in place of what `out` held.
    pub(super) fn beginning(self, key: u64, out: &mut Vec<u8>) {
        out.clear();
        let value = self.value;
        let _ = match self.op {
            Op::Get => write!(out, "${value}\r\nkey:{key:012}"),
            Op::Set => write!(out, "+OK\r\n"),
            Op::MemcachedGet => {
                write!(out, "VALUE key:{key:012} 0 {value}\r\nkey:{key:012}")
            }
            Op::MemcachedSet => write!(out, "STORED\r\n"),
            Op::GetPage => out.write_all(&page_head(PAGE_HEAD + PAGE, 0, key)),
            Op::Apply => out.write_all(&page_head(PAGE_HEAD, 0, key)),
            Op::EchoHost => out.write_all(&head(value, KIND_HOST, key)),
            Op::EchoHere => out.write_all(&head(value, KIND_HERE, key)),
            Op::Read => {
                out.extend_from_slice(&head(HEAD + value, KIND_READ, key));
                out.write_all(&(key * READ_UNIT).to_le_bytes())
            }
        };
    }

    /// Bytes of an answer.
    pub(super) fn answer_len(self) -> usize {
        let digits = self.value.to_string().len();
        match self.op {
            Op::Get => 1 + digits + 2 + self.value + 2,
            Op::Set => b"+OK\r\n".len(),
            Op::MemcachedGet => {
                b"VALUE  0 \r\n".len() + KEY + digits + self.value + b"\r\nEND\r\n".len()
            }
            Op::MemcachedSet => b"STORED\r\n".len(),
            Op::GetPage => PAGE_HEAD + PAGE,
            Op::Apply => PAGE_HEAD,
            Op::EchoHost | Op::EchoHere => self.value,
            Op::Read => HEAD + self.value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(op: Op, key: u64, value: usize) -> (Vec<u8>, Vec<u8>, usize) {
        let batch = Batch { op, value, pipeline: 1 };
        let (mut command, mut answer) = (Vec::new(), Vec::new());
        batch.command(key, &mut command);
        batch.beginning(key, &mut answer);
        (command, answer, batch.answer_len())
    }

    #[test]
    fn text_protocols_say_what_servers_understand() {
        let (get, answer, len) = asked(Op::Get, 7, 18);
        assert_eq!(get, b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000007\r\n");
        assert!(b"$18\r\nkey:000000000007vv\r\n".starts_with(&answer));
        assert_eq!(len, b"$18\r\nkey:000000000007vv\r\n".len());
        let (set, answer, len) = asked(Op::MemcachedSet, 7, 18);
        assert_eq!(set, b"set key:000000000007 0 0 18\r\nkey:000000000007vv\r\n");
        assert_eq!((&answer[..], len), (&b"STORED\r\n"[..], 8));
        let (get, answer, len) = asked(Op::MemcachedGet, 7, 18);
        assert_eq!(get, b"get key:000000000007\r\n");
        let whole = b"VALUE key:000000000007 0 18\r\nkey:000000000007vv\r\nEND\r\n";
        assert!(whole.starts_with(&answer));
        assert_eq!(len, whole.len());
    }

    #[test]
    fn messages_are_as_long_as_they_say() {
        for (op, value) in
            [(Op::EchoHost, 64), (Op::EchoHere, 1024), (Op::Read, 1024), (Op::GetPage, 8192)]
        {
            let (command, answer, len) = asked(op, 3, value);
            let said = |bytes: &[u8]| u32::from_le_bytes(*bytes.first_chunk().unwrap());
            assert_eq!(said(&command) as usize, command.len(), "{op:?}");
            assert_eq!(said(&answer) as usize, len, "{op:?}");
        }
    }
}

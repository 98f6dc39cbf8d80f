//! The key-value server's [`Application`]: which commands the DPU side answers, and how.
//!
//! The cache table maps the hash of a key to `[file, offset, length, check]` of its record, put
//! there when the host writes a page of its log ([`Application::cache`]). The host retires a key
//! before it answers a write that replaces a record in a file.

use std::ops::Range;

use outboard_dds::dpu::offload::{
    Answer, Application, Cursor, Division, Framing, Head, Item, Key, Lookup, ReadOp, Span, Touches,
    WriteOp,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::record::{self, DELETED, KEY_MAX, Record, SUPERSEDED};
use crate::resp::{self, Answered, Parsed};

/// The name of a key in the index and in the cache table.
#[must_use]
pub fn hash(key: &[u8], seed: u64) -> Key {
    xxh3_64_with_seed(key, seed)
}

/// The application object.
#[derive(Clone, Copy, Debug)]
pub struct KvApplication {
    /// Of the hash of keys; the host's.
    pub seed: u64,
}

/// What a command touches, by its name.
enum Kind {
    Get,
    Mget,
    /// One key, the first argument.
    One,
    /// Keys at every so many arguments.
    Many,
    Nothing,
    Unknown,
}

fn kind(name: &[u8]) -> Kind {
    let is = |names: &[&str]| names.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()));
    if name.eq_ignore_ascii_case(b"get") {
        Kind::Get
    } else if is(&[
        "set", "incr", "decr", "incrby", "decrby", "append", "strlen", "setnx", "getset",
    ]) {
        Kind::One
    } else if is(&["mget"]) {
        Kind::Mget
    } else if is(&["del", "exists", "unlink"]) {
        Kind::Many
    } else if is(&["ping", "echo", "command", "config", "info", "client", "hello", "select"]) {
        Kind::Nothing
    } else {
        Kind::Unknown
    }
}

impl KvApplication {
    fn divide_mget(
        &self,
        message: &[u8],
        keys: &[Range<usize>],
        table: &dyn Lookup,
        division: &mut Division,
    ) {
        let keys = || keys.iter().map(|key| message.get(key.clone()).unwrap_or_default());
        let cold = |key: &[u8]| table.get(hash(key, self.seed)).is_some();
        if !keys().any(cold) {
            return division.host(Span::Message(0..message.len()), Touches::Everything);
        }
        let count = division.make(&[b"*", keys().count().to_string().as_bytes(), b"\r\n"]);
        division.literal(count);
        for key in keys() {
            let len = key.len().to_string();
            let head = [b"*2\r\n$3\r\nGET\r\n$", len.as_bytes(), b"\r\n"].concat();
            let request = division.make(&[&head, key, b"\r\n"]);
            let name = hash(key, self.seed);
            if table.get(name).is_some() {
                division.dpu(request, name);
            } else {
                division.host(request, Touches::One(name));
            }
        }
    }
}

/// The key of a GET.
fn key_of(request: &[u8]) -> Option<&[u8]> {
    let mut args = Vec::with_capacity(2);
    let Parsed::Command(_) = resp::parse(request, &mut args) else { return None };
    request.get(args.get(1)?.clone())
}

impl Application for KvApplication {
    fn frame(&self, stream: &[u8], _: &mut Cursor) -> Framing {
        let mut args = Vec::with_capacity(4);
        match resp::parse(stream, &mut args) {
            Parsed::Command(len) => Framing::Whole(len),
            Parsed::More(needs) => Framing::More(needs),
            // The host says what is wrong with them.
            Parsed::Invalid(_) => Framing::Foreign,
        }
    }

    fn frame_answer(&self, stream: &[u8], _: &mut Cursor) -> Framing {
        match resp::answer(stream) {
            Answered::Whole(len) => Framing::Whole(len),
            Answered::More(needs) => Framing::More(needs),
            Answered::Invalid => Framing::Foreign,
        }
    }

    fn refusal(&self) -> &'static [u8] {
        b"-ERR max number of clients reached\r\n"
    }

    fn off_pred(&self, message: &[u8], table: &dyn Lookup, division: &mut Division) {
        let mut args = Vec::with_capacity(4);
        let Parsed::Command(_) = resp::parse(message, &mut args) else { return };
        let whole = || Span::Message(0..message.len());
        let Some((name, rest)) = args.split_first() else {
            // An empty command is answered by nothing.
            return division.literal(Span::Message(0..0));
        };
        let name = message.get(name.clone()).unwrap_or_default();
        let first = rest.first().and_then(|arg| message.get(arg.clone()));
        let first = first.map(|key| hash(key, self.seed));
        match (kind(name), first) {
            (Kind::Get, Some(key)) if rest.len() == 1 && table.get(key).is_some() => {
                division.dpu(whole(), key);
            }
            (Kind::Mget, Some(_)) => self.divide_mget(message, rest, table, division),
            (Kind::Get | Kind::One, Some(key)) => division.host(whole(), Touches::One(key)),
            (Kind::Many, Some(key)) if rest.len() == 1 => {
                division.host(whole(), Touches::One(key));
            }
            (Kind::Nothing, _) => division.host(whole(), Touches::Nothing),
            _ => division.host(whole(), Touches::Everything),
        }
    }

    fn off_func(&self, request: &[u8], table: &dyn Lookup) -> Option<ReadOp> {
        let [file, offset, bytes, _] = table.get(hash(key_of(request)?, self.seed))?;
        let (file, bytes) = (u32::try_from(file).ok()?, u32::try_from(bytes).ok()?);
        Some(ReadOp { file, offset, bytes })
    }

    fn answer(&self, request: &[u8], _: ReadOp, bytes: &[u8]) -> Option<Answer> {
        let record = Record::parse(bytes)?;
        let wanted = record.key() == key_of(request)? && !record.is_deleted() && record.is_sound();
        wanted.then(|| Answer { head: Head::default(), payload: record.bulk_range() })
    }

    fn cache(&self, write: WriteOp<'_>, items: &mut Vec<(Key, Item)>) {
        let Some(head) = record::page_head(write.bytes) else { return };
        for (at, record) in record::records(write.bytes, head.used) {
            let current = record.flags() & (DELETED | SUPERSEDED) == 0;
            if current && record.key().len() <= KEY_MAX {
                let (offset, len) = (write.offset + at as u64, record.len() as u64);
                let item = [u64::from(write.file), offset, len, u64::from(record.check())];
                items.push((hash(record.key(), self.seed), item));
            }
        }
    }

    /// Records in files never change: reading one says nothing about it.
    fn invalidate(&self, _: ReadOp, _: &mut Vec<Key>) {}

    fn invalidates(&self) -> bool {
        false
    }
}

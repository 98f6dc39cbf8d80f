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
use crate::resp::{self, AnswerScan, Answered, Parsed, Scan, Step};

/// What a client is told that finds no room.
pub(super) const REFUSAL: &[u8] = b"-ERR max number of clients reached\r\n";

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

/// Notes in `cursor` how far a scan is: what it passed of the bytes it was shown is not shown
/// again.
fn remember(cursor: &mut Cursor, words: &[u64], passed: usize, stream: &[u8]) {
    cursor.passed = passed.min(cursor.passed + stream.len());
    cursor.state.iter_mut().zip(words).for_each(|(to, word)| *to = *word);
}

/// Most keys of an MGET that is divided; one of more is the host's, which goes through it in
/// slices.
const MGET_MAX: usize = 1024;

/// What says whose a command is: found without a look at what follows.
struct Brief<'a> {
    name: &'a [u8],
    /// The first argument.
    key: Option<&'a [u8]>,
    arguments: usize,
}

/// `None` if the command is an empty one.
fn brief(message: &[u8]) -> Option<Brief<'_>> {
    let of = |arg: Range<usize>| message.get(arg).unwrap_or_default();
    let mut scan = Scan::default();
    match scan.step(message, 0) {
        Step::Arg(name) => {
            let arguments = scan.left().unwrap_or(0);
            let key = match scan.step(message, 0) {
                Step::Arg(key) => Some(of(key)),
                Step::Line(_) | Step::End(_) => None,
            };
            Some(Brief { name: of(name), key, arguments })
        }
        Step::Line(_) => {
            let mut args = Vec::new();
            resp::parse(message, &mut args);
            let mut all = args.iter().cloned().map(of);
            Some(Brief { name: all.next()?, key: all.next(), arguments: args.len() - 1 })
        }
        Step::End(_) => None,
    }
}

impl Application for KvApplication {
    fn frame(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        let [at, seen, left, ..] = cursor.state;
        let mut scan = Scan::of_words([at, seen, left]);
        let parsed = loop {
            if let Step::End(parsed) = scan.step(stream, cursor.passed) {
                break parsed;
            }
        };
        match parsed {
            Parsed::Command(len) => Framing::Whole(len),
            Parsed::More(needs) => {
                remember(cursor, &scan.words(), scan.passed(), stream);
                Framing::More(needs)
            }
            // The host says what is wrong with them.
            Parsed::Invalid(_) => Framing::Foreign,
        }
    }

    fn frame_answer(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        let mut words = [0; AnswerScan::WORDS];
        words.iter_mut().zip(cursor.state).for_each(|(to, word)| *to = word);
        let mut scan = AnswerScan::of_words(words);
        match scan.run(stream, cursor.passed) {
            Answered::Whole(len) => Framing::Whole(len),
            Answered::More(needs) => {
                remember(cursor, &scan.words(), scan.passed(), stream);
                Framing::More(needs)
            }
            Answered::Invalid => Framing::Foreign,
        }
    }

    fn refusal(&self) -> &'static [u8] {
        REFUSAL
    }

    fn off_pred(&self, message: &[u8], table: &dyn Lookup, division: &mut Division) {
        let whole = || Span::Message(0..message.len());
        let Some(Brief { name, key, arguments }) = brief(message) else {
            // An empty command is answered by nothing.
            return division.literal(Span::Message(0..0));
        };
        match (kind(name), key.map(|key| hash(key, self.seed))) {
            (Kind::Get, Some(key)) if arguments == 1 && table.get(key).is_some() => {
                division.dpu(whole(), key);
            }
            (Kind::Mget, Some(_)) if arguments <= MGET_MAX => {
                let mut args = Vec::with_capacity(arguments + 1);
                resp::parse(message, &mut args);
                self.divide_mget(message, args.get(1..).unwrap_or_default(), table, division);
            }
            (Kind::Get | Kind::One, Some(key)) => division.host(whole(), Touches::One(key)),
            (Kind::Many, Some(key)) if arguments == 1 => {
                division.host(whole(), Touches::One(key));
            }
            (Kind::Nothing, _) => division.host(whole(), Touches::Nothing),
            _ => division.host(whole(), Touches::Everything),
        }
    }

    fn off_func(&self, request: &[u8], table: &dyn Lookup) -> Option<ReadOp> {
        let key = brief(request).and_then(|it| it.key)?;
        let [file, offset, bytes, _] = table.get(hash(key, self.seed))?;
        let (file, bytes) = (u32::try_from(file).ok()?, u32::try_from(bytes).ok()?);
        Some(ReadOp { file, offset, bytes })
    }

    fn answer(&self, request: &[u8], _: ReadOp, bytes: &[u8]) -> Option<Answer> {
        let record = Record::parse(bytes)?;
        let key = brief(request).and_then(|it| it.key)?;
        let wanted = record.key() == key && !record.is_deleted() && record.is_sound();
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

#[cfg(test)]
mod tests {
    use outboard_dds::dpu::offload::Part;

    use super::*;

    struct Empty;

    impl Lookup for Empty {
        fn get(&self, _: Key) -> Option<Item> {
            None
        }
    }

    type Frame = fn(&KvApplication, &[u8], &mut Cursor) -> Framing;

    /// Frames `message` as its bytes come, `piece` at a time; what it is shown of them in all.
    fn shown(message: &[u8], piece: usize, frame: Frame) -> usize {
        let (app, mut cursor, mut all, mut needs) =
            (KvApplication { seed: 7 }, Cursor::default(), 0, 0);
        for end in (0..message.len()).step_by(piece).map(|start| message.len().min(start + piece)) {
            if end < needs {
                continue;
            }
            let bytes = cursor.shown(&message[..end]);
            all += bytes.len();
            match frame(&app, bytes, &mut cursor) {
                Framing::Whole(len) => {
                    assert_eq!((end, len), (message.len(), message.len()));
                    return all;
                }
                Framing::More(more) => {
                    assert!(more > end && more <= message.len());
                    needs = more;
                }
                Framing::Foreign => panic!("it is a message"),
            }
        }
        panic!("it has no end");
    }

    /// 60,000 arguments sent byte by byte cost 486 us a packet: each looked at all that had come
    /// before. The DPU side is shown a byte as often as the line it stands in grows.
    #[test]
    fn what_was_framed_is_not_shown_again() {
        let keys = 60_000;
        let command =
            [format!("*{}\r\n$3\r\nDEL\r\n", keys + 1), "$1\r\nk\r\n".repeat(keys)].concat();
        let answer = [format!("*{keys}\r\n"), "$1\r\nv\r\n".repeat(keys)].concat();
        let value = format!("*1\r\n$300000\r\n{}\r\n", "v".repeat(300_000));
        let frames: [(&str, Frame); 3] = [
            (&command, KvApplication::frame),
            (&answer, KvApplication::frame_answer),
            (&value, KvApplication::frame_answer),
        ];
        for (message, frame) in frames {
            for piece in [1, 7, 1500, 64 << 10] {
                let all = shown(message.as_bytes(), piece, frame);
                let most = 4 * message.len() + message.len() / piece * 32;
                assert!(all <= most, "{all} bytes of {} are shown", message.len());
            }
        }
    }

    /// A predicate that looked up 60,000 keys in one call kept its worker for milliseconds.
    #[test]
    fn whose_a_command_of_many_keys_is_its_beginning_says() {
        let app = KvApplication { seed: 7 };
        let divide = |command: String| {
            let mut division = Division::default();
            app.off_pred(command.as_bytes(), &Empty, &mut division);
            division.parts().to_vec()
        };
        for name in ["MGET", "mset", "DEL", "exists"] {
            let head = format!("*60001\r\n${}\r\n{name}\r\n", name.len());
            let command = head + &"$1\r\nk\r\n".repeat(60_000);
            let whole = Span::Message(0..command.len());
            let host = Part::Host { request: whole, touches: Touches::Everything };
            assert_eq!(divide(command), [host], "{name}");
        }
        for one in ["GET k\r\n", "*2\r\n$3\r\nget\r\n$1\r\nk\r\n"] {
            let touches = Touches::One(hash(b"k", 7));
            let host = Part::Host { request: Span::Message(0..one.len()), touches };
            assert_eq!(divide(one.to_owned()), [host], "{one}");
        }
        assert!(matches!(divide("\r\n".to_owned())[..], [Part::Literal(_)]));
    }
}

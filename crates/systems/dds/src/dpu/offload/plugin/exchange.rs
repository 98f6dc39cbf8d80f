//! The bytes that cross between the DPU side and a plug-in's process, and their checks.
//!
//! A batch is asked, and answered as one: as many entries, in the same order. Numbers have their
//! least significant byte first.
//!
//! ```text
//! batch       u32 entries | entries
//! entry       u32 bytes | u8 kind | body
//!
//! asked   1   divide      u32 known | known | message
//!         2   cache       u32 file | u64 offset | bytes written
//!         3   invalidate  u32 file | u64 offset | u32 bytes
//! said    0   nothing: the host's
//!         1   divided     u32 made | bytes | u32 parts | parts
//!         2   wants       keys to look for
//!         3   items       key and item of each
//!         4   keys
//! known       u64 key | u8 is there | item, if it is
//! part    0   literal     span
//!         1   host        span | u8 touches: 0 nothing, 1 one, 2 everything | u64 key
//!         2   dpu         span | u64 key | u32 file | u64 offset | u32 bytes |
//!                         u8 head | bytes | u32 payload from | u32 to | u8 expected | expected
//! span        u8 made here, else of the message | u32 from | u32 to
//! expected 0  equal       u32 at | u8 count | bytes
//!          1  at least    u32 at | u64 number
//! ```
//!
//! Neither side believes the other: what is parsed is within its bounds, or is `None`.

#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;

use std::ops::Range;

use super::super::{Division, Head, Item, Key, Part, ReadOp, Span, Touches, WriteOp};
use super::{Answering, EXPECT_MAX, Expect, Known, MESSAGE_MAX, Plan};
use crate::dpu::director::limits::SLOTS_MAX;
use crate::dpu::offload::pool::BUFFER_MAX;

/// Keys or items of one entry at most.
pub const ITEMS_MAX: usize = 1 << 16;
/// Keys a plug-in may look for amid one message.
pub const KNOWN_MAX: usize = 256;
/// Bytes of all parts of one message at most.
pub const PARTS_MAX: usize = 1 << 20;
/// Bytes that stand before an entry.
pub const ENTRY_HEAD: usize = 5;

/// What is asked of a plug-in.
#[derive(Clone, Debug)]
pub enum Asked<'a> {
    /// `OffPred` and, for each part of the DPU side, `OffFunc`.
    Divide {
        /// What it was told of the table so far.
        known: Vec<Known>,
        /// The message.
        message: &'a [u8],
    },
    /// `Cache`.
    Cache(WriteOp<'a>),
    /// `Invalidate`.
    Invalidate(ReadOp),
}

/// What it says.
#[derive(Debug)]
pub enum Said {
    /// It has nothing to say: a request is the host's.
    Nothing,
    /// A division, and how each part of the DPU side is answered.
    Divided(Division, Vec<Plan>),
    /// It looked for keys it was told nothing about.
    Wants(Vec<Key>),
    /// What the table is to keep.
    Items(Vec<(Key, Item)>),
    /// What it is to forget.
    Keys(Vec<Key>),
}

/// A batch, being put together.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    entries: u32,
    limit: usize,
}

impl Batch {
    /// Of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Batch {
        Batch { bytes: vec![0; 4], entries: 0, limit }
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.bytes.truncate(4);
        self.entries = 0;
    }

    /// How many entries it has.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries as usize
    }

    /// All bytes.
    pub fn bytes(&mut self) -> &[u8] {
        if let Some(count) = self.bytes.first_chunk_mut::<4>() {
            *count = self.entries.to_le_bytes();
        }
        &self.bytes
    }

    /// Adds what `body` writes; false, and nothing is added, if there is no room.
    fn add(&mut self, kind: u8, body: impl FnOnce(&mut Vec<u8>)) -> bool {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0, 0, 0, kind]);
        body(&mut self.bytes);
        let len = self.bytes.len() - start - ENTRY_HEAD;
        let head = self.bytes.get_mut(start..).and_then(|bytes| bytes.first_chunk_mut::<4>());
        match (head, u32::try_from(len)) {
            (Some(head), Ok(len)) if start + ENTRY_HEAD + len as usize <= self.limit => {
                *head = len.to_le_bytes();
                self.entries += 1;
                true
            }
            _ => {
                self.bytes.truncate(start);
                false
            }
        }
    }

    /// Asks for a division.
    pub fn divide(&mut self, message: &[u8], known: &[Known]) -> bool {
        self.add(1, |out| {
            put_count(out, known.len());
            for (key, item) in known {
                put_u64(out, *key);
                out.push(item.is_some().into());
                item.iter().flatten().for_each(|word| put_u64(out, *word));
            }
            out.extend_from_slice(message);
        })
    }

    /// Tells of a write.
    pub fn cache(&mut self, write: WriteOp<'_>) -> bool {
        self.add(2, |out| {
            put_u32(out, write.file);
            put_u64(out, write.offset);
            out.extend_from_slice(write.bytes);
        })
    }

    /// Tells of a read.
    pub fn invalidate(&mut self, read: ReadOp) -> bool {
        self.add(3, |out| put_read(out, read))
    }

    /// Says something.
    pub fn say(&mut self, said: &Said) -> bool {
        match said {
            Said::Nothing => self.add(0, |_| ()),
            Said::Divided(division, plans) => self.add(1, |out| put_divided(out, division, plans)),
            Said::Wants(keys) => self.add(2, |out| keys.iter().for_each(|key| put_u64(out, *key))),
            Said::Items(items) => self.add(3, |out| {
                for (key, item) in items {
                    put_u64(out, *key);
                    item.iter().for_each(|word| put_u64(out, *word));
                }
            }),
            Said::Keys(keys) => self.add(4, |out| keys.iter().for_each(|key| put_u64(out, *key))),
        }
    }
}

/// The entries of a batch, kind and body of each; `None` if it is none.
#[must_use]
pub fn entries(batch: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut left = Cut(batch);
    let count = usize::try_from(left.u32()?).ok()?;
    // Each takes some bytes, so what is said can be held against what is there.
    let mut entries = Vec::with_capacity(count.min(batch.len() / ENTRY_HEAD + 1));
    for _ in 0..count {
        let len = left.u32()?;
        let kind = left.u8()?;
        entries.push((kind, left.take(usize::try_from(len).ok()?)?));
    }
    left.0.is_empty().then_some(entries)
}

impl<'a> Asked<'a> {
    /// What an entry asks.
    #[must_use]
    pub fn parse(kind: u8, body: &'a [u8]) -> Option<Asked<'a>> {
        let mut left = Cut(body);
        match kind {
            1 => {
                let count = left.count(KNOWN_MAX)?;
                let mut known = Vec::with_capacity(count);
                for _ in 0..count {
                    let key = left.u64()?;
                    let item = if left.u8()? == 1 { Some(left.item()?) } else { None };
                    known.push((key, item));
                }
                Some(Asked::Divide { known, message: left.0 })
            }
            2 => {
                let (file, offset) = (left.u32()?, left.u64()?);
                Some(Asked::Cache(WriteOp { file, offset, bytes: left.0 }))
            }
            3 => Some(Asked::Invalidate(left.read()?)),
            _ => None,
        }
    }
}

impl Said {
    /// What an entry says about a message of `message` bytes.
    #[must_use]
    pub fn parse(kind: u8, body: &[u8], message: usize) -> Option<Said> {
        let mut left = Cut(body);
        let said = match kind {
            0 => Said::Nothing,
            1 => {
                let (division, plans) = left.divided(message)?;
                Said::Divided(division, plans)
            }
            2 => Said::Wants(left.all(KNOWN_MAX, Cut::u64)?),
            3 => Said::Items(left.all(ITEMS_MAX, |left| Some((left.u64()?, left.item()?)))?),
            4 => Said::Keys(left.all(ITEMS_MAX, Cut::u64)?),
            _ => return None,
        };
        left.0.is_empty().then_some(said)
    }
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// What is too large to be a count or a place is refused where it is parsed.
fn put_count(out: &mut Vec<u8>, value: usize) {
    put_u32(out, u32::try_from(value).unwrap_or(u32::MAX));
}

fn put_short(out: &mut Vec<u8>, bytes: &[u8]) {
    let bytes = bytes.get(..bytes.len().min(255)).unwrap_or_default();
    out.push(u8::try_from(bytes.len()).unwrap_or(0));
    out.extend_from_slice(bytes);
}

fn put_read(out: &mut Vec<u8>, read: ReadOp) {
    put_u32(out, read.file);
    put_u64(out, read.offset);
    put_u32(out, read.bytes);
}

fn put_range(out: &mut Vec<u8>, range: &Range<usize>) {
    put_count(out, range.start);
    put_count(out, range.end);
}

fn put_span(out: &mut Vec<u8>, span: &Span) {
    let (made, range) = match span {
        Span::Message(range) => (0, range),
        Span::Made(range) => (1, range),
    };
    out.push(made);
    put_range(out, range);
}

fn put_plan(out: &mut Vec<u8>, plan: &Plan) {
    put_read(out, plan.read);
    put_short(out, &plan.answering.head);
    put_range(out, &plan.answering.payload);
    out.push(u8::try_from(plan.answering.expect.len()).unwrap_or(u8::MAX));
    for expect in &plan.answering.expect {
        match expect {
            Expect::Equal { at, bytes } => {
                out.push(0);
                put_count(out, *at);
                put_short(out, bytes);
            }
            Expect::AtLeast { at, least } => {
                out.push(1);
                put_count(out, *at);
                put_u64(out, *least);
            }
        }
    }
}

fn put_divided(out: &mut Vec<u8>, division: &Division, plans: &[Plan]) {
    let made = division.made();
    put_count(out, made.len());
    out.extend_from_slice(made);
    put_count(out, division.parts().len());
    let mut plans = plans.iter();
    for part in division.parts() {
        match part {
            Part::Literal(span) => {
                out.push(0);
                put_span(out, span);
            }
            Part::Host { request, touches } => {
                out.push(1);
                put_span(out, request);
                let (kind, key) = match touches {
                    Touches::Nothing => (0, 0),
                    Touches::One(key) => (1, *key),
                    Touches::Everything => (2, 0),
                };
                out.push(kind);
                put_u64(out, key);
            }
            Part::Dpu { request, key } => {
                out.push(2);
                put_span(out, request);
                put_u64(out, *key);
                if let Some(plan) = plans.next() {
                    put_plan(out, plan);
                }
            }
        }
    }
}

/// What is left of bytes that are cut up.
struct Cut<'a>(&'a [u8]);

impl<'a> Cut<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn count(&mut self, most: usize) -> Option<usize> {
        usize::try_from(self.u32()?).ok().filter(|count| *count <= most)
    }

    fn item(&mut self) -> Option<Item> {
        let mut item = Item::default();
        for word in &mut item {
            *word = self.u64()?;
        }
        Some(item)
    }

    fn read(&mut self) -> Option<ReadOp> {
        Some(ReadOp { file: self.u32()?, offset: self.u64()?, bytes: self.u32()? })
    }

    fn range(&mut self, most: usize) -> Option<Range<usize>> {
        let (from, to) = (self.u32()?, self.u32()?);
        let range = usize::try_from(from).ok()?..usize::try_from(to).ok()?;
        (range.start <= range.end && range.end <= most).then_some(range)
    }

    /// As many as there are, `most` at most.
    fn all<T>(&mut self, most: usize, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut all = Vec::new();
        while !self.0.is_empty() {
            if all.len() == most {
                return None;
            }
            all.push(one(self)?);
        }
        Some(all)
    }

    fn span(&mut self, message: usize, made: usize) -> Option<Span> {
        match self.u8()? {
            0 => Some(Span::Message(self.range(message)?)),
            1 => Some(Span::Made(self.range(made)?)),
            _ => None,
        }
    }

    fn expect(&mut self) -> Option<Expect> {
        let kind = self.u8()?;
        let at = usize::try_from(self.u32()?).ok()?;
        match kind {
            0 => {
                let len = usize::from(self.u8()?);
                let bytes = self.take(len).filter(|_| len <= Expect::BYTES_MAX)?.to_vec();
                Some(Expect::Equal { at, bytes })
            }
            1 => Some(Expect::AtLeast { at, least: self.u64()? }),
            _ => None,
        }
    }

    fn plan(&mut self) -> Option<Plan> {
        let read = self.read()?;
        let bytes = usize::try_from(read.bytes).ok().filter(|bytes| *bytes <= BUFFER_MAX)?;
        let len = usize::from(self.u8()?);
        let head = Head::new(self.take(len)?)?;
        let payload = self.range(bytes)?;
        let count = usize::from(self.u8()?);
        let mut expect = Vec::with_capacity(count.min(EXPECT_MAX));
        for _ in 0..count {
            expect.push(self.expect().filter(|_| count <= EXPECT_MAX)?);
        }
        Some(Plan { read, answering: Answering { head, payload, expect } })
    }

    fn divided(&mut self, message: usize) -> Option<(Division, Vec<Plan>)> {
        let made = self.count(MESSAGE_MAX)?;
        let mut division = Division::default();
        division.make(&[self.take(made)?]);
        let mut plans = Vec::new();
        let mut bytes = 0;
        for _ in 0..self.count(SLOTS_MAX)? {
            let kind = self.u8()?;
            let span = self.span(message, made)?;
            bytes += span.len();
            match kind {
                0 => division.literal(span),
                1 => {
                    let touches = match (self.u8()?, self.u64()?) {
                        (0, _) => Touches::Nothing,
                        (1, key) => Touches::One(key),
                        (2, _) => Touches::Everything,
                        _ => return None,
                    };
                    division.host(span, touches);
                }
                2 => {
                    let key = self.u64()?;
                    plans.push(self.plan()?);
                    division.dpu(span, key);
                }
                _ => return None,
            }
        }
        (bytes <= PARTS_MAX).then_some((division, plans))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(message: usize, made: usize) -> impl Strategy<Value = Span> {
        (any::<bool>(), any::<[u16; 2]>()).prop_map(move |(is_made, [a, b])| {
            let most = if is_made { made } else { message };
            let (a, b) = (usize::from(a) % (most + 1), usize::from(b) % (most + 1));
            if is_made { Span::Made(a.min(b)..a.max(b)) } else { Span::Message(a.min(b)..a.max(b)) }
        })
    }

    fn expect() -> impl Strategy<Value = Expect> {
        let bytes = prop::collection::vec(any::<u8>(), 0..=Expect::BYTES_MAX);
        prop_oneof![
            (any::<u16>(), bytes).prop_map(|(at, bytes)| Expect::Equal { at: at.into(), bytes }),
            (any::<u16>(), any::<u64>())
                .prop_map(|(at, least)| Expect::AtLeast { at: at.into(), least }),
        ]
    }

    fn plan() -> impl Strategy<Value = Plan> {
        let head = prop::collection::vec(any::<u8>(), 0..=Head::MAX);
        let expect = prop::collection::vec(expect(), 0..=EXPECT_MAX);
        (any::<u32>(), any::<u64>(), 0..60_000u32, head, expect).prop_map(
            |(file, offset, bytes, head, expect)| {
                let head = Head::new(&head).unwrap();
                let payload = bytes as usize / 3..bytes as usize;
                let read = ReadOp { file, offset, bytes };
                Plan { read, answering: Answering { head, payload, expect } }
            },
        )
    }

    fn divided() -> impl Strategy<Value = (Division, Vec<Plan>)> {
        let part = prop_oneof![
            span(100, 10).prop_map(|span| (0u8, span, 0, None)),
            (1u8..4, span(100, 10), any::<u64>()).prop_map(|(n, span, key)| (n, span, key, None)),
            (span(100, 10), any::<u64>(), plan()).prop_map(|(span, key, plan)| (
                4u8,
                span,
                key,
                Some(plan)
            )),
        ];
        prop::collection::vec(part, 0..20).prop_map(|parts| {
            let (mut division, mut plans) = (Division::default(), Vec::new());
            division.make(&[b"0123456789"]);
            for (kind, span, key, plan) in parts {
                match kind {
                    0 => division.literal(span),
                    1 => division.host(span, Touches::Nothing),
                    2 => division.host(span, Touches::One(key)),
                    3 => division.host(span, Touches::Everything),
                    _ => {
                        division.dpu(span, key);
                        plans.extend(plan);
                    }
                }
            }
            (division, plans)
        })
    }

    proptest! {
        #[test]
        fn what_is_said_is_heard((division, plans) in divided(), keys: Vec<u64>, item: Item) {
            let items: Vec<_> = keys.iter().map(|key| (*key, item)).collect();
            let mut batch = Batch::new(1 << 20);
            let told = [
                Said::Nothing,
                Said::Divided(division.clone(), plans.clone()),
                Said::Wants(keys.clone()),
                Said::Items(items.clone()),
                Said::Keys(keys.clone()),
            ];
            assert!(told.iter().all(|said| batch.say(said)));
            let bytes = batch.bytes().to_vec();
            let heard: Vec<Said> = entries(&bytes).unwrap().into_iter()
                .map(|(kind, body)| Said::parse(kind, body, 100).unwrap()).collect();
            assert!(matches!(heard[0], Said::Nothing));
            assert!(matches!(&heard[1], Said::Divided(d, p) if *d == division && *p == plans));
            assert!(matches!(&heard[2], Said::Wants(own) if *own == keys));
            assert!(matches!(&heard[3], Said::Items(own) if *own == items));
            assert!(matches!(&heard[4], Said::Keys(own) if *own == keys));
        }

        #[test]
        fn what_is_asked_is_understood(
            message: Vec<u8>, known: Vec<Known>, file: u32, offset: u64, bytes: u32,
        ) {
            let mut batch = Batch::new(1 << 20);
            let read = ReadOp { file, offset, bytes };
            assert!(batch.divide(&message, &known));
            assert!(batch.cache(WriteOp { file, offset, bytes: &message }));
            assert!(batch.invalidate(read));
            assert_eq!(batch.entries(), 3);
            let all = batch.bytes().to_vec();
            let all: Vec<_> = entries(&all).unwrap().into_iter()
                .map(|(kind, body)| Asked::parse(kind, body).unwrap()).collect();
            assert!(matches!(
                &all[0], Asked::Divide { known: k, message: m } if *k == known && *m == message
            ));
            assert!(matches!(
                &all[1],
                Asked::Cache(w) if w.file == file && w.offset == offset && w.bytes == message
            ));
            assert!(matches!(&all[2], Asked::Invalidate(own) if *own == read));
        }

        /// Whatever a process that lost its mind leaves there.
        #[test]
        fn no_bytes_break_it((division, plans) in divided(), cuts: Vec<(u16, u8)>, tail: Vec<u8>) {
            let mut batch = Batch::new(1 << 20);
            batch.say(&Said::Keys(vec![7; tail.len() % 9]));
            batch.say(&Said::Divided(division, plans));
            batch.divide(&tail, &[(7, None), (8, Some(Item::default()))]);
            let whole = [&[100], batch.bytes()].concat();
            fuzz::plugin(&whole);
            let mut bytes = whole.clone();
            for (at, with) in cuts {
                let at = usize::from(at) % bytes.len();
                bytes[at] = with;
            }
            fuzz::plugin(&bytes);
            fuzz::plugin(&[&whole[..], &tail].concat());
            fuzz::plugin(&whole[..usize::from(tail.first().copied().unwrap_or(0)) % whole.len()]);
        }

        #[test]
        fn any_bytes_break_nothing(message: u8, bodies: Vec<(u8, Vec<u8>)>) {
            let mut batch = Batch::new(usize::MAX);
            for (kind, body) in bodies {
                batch.add(kind % 6, |out| out.extend(body));
            }
            fuzz::plugin(&[&[message], batch.bytes()].concat());
        }
    }

    #[test]
    fn a_full_batch_takes_no_more_and_keeps_what_it_has() {
        let mut batch = Batch::new(64);
        assert!(batch.divide(&[1; 40], &[]));
        assert!(!batch.divide(&[2; 40], &[]));
        assert_eq!((batch.entries(), entries(batch.bytes()).unwrap().len()), (1, 1));
        batch.clear();
        assert!(batch.divide(&[2; 40], &[]));
        // A count of what is not there, parts whose sum is large.
        assert!(entries(&[255, 255, 255, 255]).is_none());
        let mut division = Division::default();
        (0..32).for_each(|_| division.literal(Span::Message(0..MESSAGE_MAX)));
        let mut large = Batch::new(1 << 20);
        large.say(&Said::Divided(division, Vec::new()));
        let bytes = large.bytes().to_vec();
        let (kind, body) = entries(&bytes).unwrap()[0];
        assert!(Said::parse(kind, body, MESSAGE_MAX).is_none());
    }
}

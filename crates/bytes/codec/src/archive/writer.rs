//! Writing a backup: each verb appends what is to be sent next.

use super::{HEAD_LEN, HEADER_LEN, Header, Kind, MAGIC, MOST_BODY, Name, Pairs, Totals};
use super::{chained, record};
use crate::crc32c;

/// What was asked for cannot stand at this place of a backup; nothing was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disorder;

impl std::fmt::Display for Disorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a backup was written out of order")
    }
}

impl std::error::Error for Disorder {}

/// Where a backup is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Between,
    /// In a file, which has bytes before this one.
    In(u64),
    Ended,
}

/// The rules of a backup's order, which reader and writer share.
#[derive(Clone, Debug)]
pub(super) struct Order {
    place: Place,
    pub(super) totals: Totals,
    pub(super) chain: u32,
    /// Whether pairs may stand in it.
    pairs: bool,
}

impl Order {
    /// Behind the header, whose check begins the chain.
    pub(super) fn after(kind: Kind, header: u32) -> Order {
        let pairs = kind == Kind::Pairs;
        Order { place: Place::Between, totals: Totals::default(), chain: header, pairs }
    }

    /// Takes a record of this kind; `false` if it cannot stand here.
    pub(super) fn take(&mut self, kind: u8, number: u64, len: usize) -> bool {
        let next = match (kind, self.place) {
            (record::DIRECTORY, Place::Between) => Place::Between,
            (record::FILE, Place::Between) => Place::In(0),
            (record::PAIRS, Place::Between) if self.pairs && len > 0 => Place::Between,
            (record::BYTES, Place::In(from)) if number >= from && len > 0 => {
                match number.checked_add(len as u64) {
                    Some(end) => Place::In(end),
                    None => return false,
                }
            }
            (record::FILE_END, Place::In(from)) if number >= from => Place::Between,
            (record::END, Place::Between) => Place::Ended,
            _ => return false,
        };
        let counts = matches!(kind, record::BYTES | record::PAIRS);
        let bytes = if counts { len as u64 } else { 0 };
        let Some(bytes) = self.totals.bytes.checked_add(bytes) else { return false };
        self.place = next;
        if kind != record::END {
            self.totals = Totals { records: self.totals.records.saturating_add(1), bytes };
        }
        true
    }

    pub(super) fn has_ended(&self) -> bool {
        self.place == Place::Ended
    }
}

/// Writes a backup.
#[derive(Debug)]
pub struct Writer {
    order: Order,
}

impl Writer {
    /// Begins one: appends its header.
    pub fn new(header: &Header, out: &mut Vec<u8>) -> Writer {
        let from = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&header.kind.version().to_le_bytes());
        out.extend_from_slice(&[header.kind as u8, 0, 0, 0]);
        out.extend_from_slice(&header.made.to_le_bytes());
        out.extend_from_slice(&header.id);
        out.extend_from_slice(&header.bytes.to_le_bytes());
        out.resize(from + HEADER_LEN - 4, 0);
        let check = crc32c(out.get(from..).unwrap_or_default());
        out.extend_from_slice(&check.to_le_bytes());
        Writer { order: Order::after(header.kind, check) }
    }

    /// A directory; those it lies in come before it.
    pub fn directory(&mut self, name: &Name, out: &mut Vec<u8>) -> Result<(), Disorder> {
        self.append(record::DIRECTORY, 0, name.as_str().as_bytes(), out)
    }

    /// A file begins; its bytes and its end follow.
    pub fn file(&mut self, name: &Name, out: &mut Vec<u8>) -> Result<(), Disorder> {
        self.append(record::FILE, 0, name.as_str().as_bytes(), out)
    }

    /// Bytes of the file, at `at`, behind those before: at least one, at most [`MOST_BODY`].
    pub fn bytes(&mut self, at: u64, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Disorder> {
        if bytes.len() > MOST_BODY {
            return Err(Disorder);
        }
        self.append(record::BYTES, at, bytes, out)
    }

    /// The file has ended, and is so long.
    pub fn file_end(&mut self, len: u64, out: &mut Vec<u8>) -> Result<(), Disorder> {
        self.append(record::FILE_END, len, &[], out)
    }

    /// Pairs, as [`append_pair`](super::append_pair) made them; of [`Kind::Pairs`] alone.
    pub fn pairs(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<(), Disorder> {
        if body.len() > MOST_BODY || Pairs::of(body).is_none() {
            return Err(Disorder);
        }
        self.append(record::PAIRS, 0, body, out)
    }

    /// The backup has ended; what it held.
    pub fn end(&mut self, out: &mut Vec<u8>) -> Result<Totals, Disorder> {
        let Order { totals, chain, .. } = self.order;
        let mut body = Vec::with_capacity(super::END_LEN);
        body.extend_from_slice(&totals.bytes.to_le_bytes());
        body.extend_from_slice(&chain.to_le_bytes());
        self.append(record::END, totals.records, &body, out)?;
        Ok(totals)
    }

    fn append(
        &mut self,
        kind: u8,
        number: u64,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Disorder> {
        let length = u32::try_from(body.len()).map_err(|_| Disorder)?;
        if !self.order.take(kind, number, body.len()) {
            return Err(Disorder);
        }
        let mut head = [0; HEAD_LEN];
        let fields: [(usize, &[u8]); 4] = [
            (0, &[kind]),
            (4, &length.to_le_bytes()),
            (8, &number.to_le_bytes()),
            (16, &crc32c(body).to_le_bytes()),
        ];
        for (at, bytes) in fields {
            if let Some(field) = head.get_mut(at..at + bytes.len()) {
                field.copy_from_slice(bytes);
            }
        }
        let (checked, check) = head.split_at_mut(HEAD_LEN - 4);
        check.copy_from_slice(&crc32c(checked).to_le_bytes());
        self.order.chain = chained(self.order.chain, &head);
        out.extend_from_slice(&head);
        out.extend_from_slice(body);
        Ok(())
    }
}

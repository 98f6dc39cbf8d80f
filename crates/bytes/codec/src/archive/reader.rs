//! Reading a backup: who has the stream gives [`Reader::wants`] bytes at a time.

use super::writer::Order;
use super::{
    END_LEN, HEAD_LEN, HEADER_LEN, Header, Kind, MAGIC, MOST_BODY, MOST_NAME, Name, Pairs, Totals,
    VERSIONS, Wrong, chained, record,
};
use crate::crc32c;

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'b> {
    /// Nothing yet.
    More,
    /// The first of all.
    Header(Header),
    /// A directory.
    Directory(Name),
    /// A file begins.
    File(Name),
    /// Bytes of it; behind those before.
    Bytes {
        /// Where.
        at: u64,
        /// They.
        bytes: &'b [u8],
    },
    /// The file has ended.
    FileEnd {
        /// Its length; not less than where its bytes end.
        len: u64,
    },
    /// Pairs of the engine.
    Pairs(Pairs<'b>),
    /// The backup has ended and is whole. Nothing may follow it.
    End(Totals),
}

/// The head of a record whose body comes next.
#[derive(Clone, Copy, Debug)]
struct Head {
    kind: u8,
    len: usize,
    number: u64,
    check: u32,
    /// Before this record.
    totals: Totals,
    chain: u32,
}

#[derive(Debug)]
enum Next {
    Header,
    Head(Order),
    Body(Order, Head),
    Nothing,
}

/// Reads a backup. After an error, and after the end, it takes nothing more.
#[derive(Debug)]
pub struct Reader {
    next: Next,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader::new()
    }
}

/// A field of bytes whose length was looked at.
fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Wrong> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<N>());
    field.copied().ok_or(Wrong::Damaged("a part is too short"))
}

impl Reader {
    /// At the front.
    #[must_use]
    pub fn new() -> Reader {
        Reader { next: Next::Header }
    }

    /// How many bytes [`Reader::take`] is to be given; 0 once there is nothing more.
    #[must_use]
    pub fn wants(&self) -> usize {
        match &self.next {
            Next::Header => HEADER_LEN,
            Next::Head(_) => HEAD_LEN,
            Next::Body(_, head) => head.len,
            Next::Nothing => 0,
        }
    }

    /// Takes exactly the next [`Reader::wants`] bytes.
    pub fn take<'b>(&mut self, bytes: &'b [u8]) -> Result<Event<'b>, Wrong> {
        if bytes.len() != self.wants() {
            return Err(Wrong::Damaged("it is cut"));
        }
        match std::mem::replace(&mut self.next, Next::Nothing) {
            Next::Header => {
                let (header, check) = header(bytes)?;
                self.next = Next::Head(Order::after(header.kind, check));
                Ok(Event::Header(header))
            }
            Next::Head(order) => self.head(order, bytes),
            Next::Body(order, head) => {
                let event = body(head, bytes)?;
                if !order.has_ended() {
                    self.next = Next::Head(order);
                }
                Ok(event)
            }
            Next::Nothing => Err(Wrong::Damaged("something follows its end")),
        }
    }

    fn head<'b>(&mut self, mut order: Order, bytes: &[u8]) -> Result<Event<'b>, Wrong> {
        let whole: [u8; HEAD_LEN] = field(bytes, 0)?;
        let [kind, zeros @ ..] = field::<4>(bytes, 0)?;
        let check = u32::from_le_bytes(field(bytes, HEAD_LEN - 4)?);
        if crc32c(bytes.get(..HEAD_LEN - 4).unwrap_or_default()) != check || zeros != [0; 3] {
            return Err(Wrong::Damaged("the head of a record"));
        }
        let len = usize::try_from(u32::from_le_bytes(field(bytes, 4)?));
        let len = len.map_err(|_| Wrong::Damaged("a record is too long"))?;
        let number = u64::from_le_bytes(field(bytes, 8)?);
        let Order { totals, chain, .. } = order;
        let head =
            Head { kind, len, number, check: u32::from_le_bytes(field(bytes, 16)?), totals, chain };
        let fits = match kind {
            record::DIRECTORY | record::FILE => (1..=MOST_NAME).contains(&len) && number == 0,
            record::BYTES => len <= MOST_BODY,
            record::PAIRS => len <= MOST_BODY && number == 0,
            record::FILE_END => len == 0 && head.check == crc32c(&[]),
            record::END => len == END_LEN && number == totals.records,
            _ => false,
        };
        if !fits || !order.take(kind, number, len) {
            return Err(Wrong::Damaged("a record that cannot stand there"));
        }
        order.chain = chained(order.chain, &whole);
        if kind == record::FILE_END {
            self.next = Next::Head(order);
            return Ok(Event::FileEnd { len: number });
        }
        self.next = Next::Body(order, head);
        Ok(Event::More)
    }
}

fn header(bytes: &[u8]) -> Result<(Header, u32), Wrong> {
    if field(bytes, 0) != Ok(MAGIC) {
        return Err(Wrong::NotABackup);
    }
    // Said before the check, which another version may keep elsewhere.
    let version = u32::from_le_bytes(field(bytes, 8)?);
    if !VERSIONS.contains(&version) {
        return Err(Wrong::Version(version));
    }
    let check = u32::from_le_bytes(field(bytes, HEADER_LEN - 4)?);
    let zeros = (field(bytes, 13), field(bytes, 48)) == (Ok([0; 3]), Ok([0; 12]));
    if crc32c(bytes.get(..HEADER_LEN - 4).unwrap_or_default()) != check || !zeros {
        return Err(Wrong::Damaged("the header"));
    }
    let [kind] = field(bytes, 12)?;
    let kind = Kind::of(kind).filter(|kind| kind.version() == version);
    let header = Header {
        kind: kind.ok_or(Wrong::Damaged("the kind of what it holds is not known"))?,
        made: u64::from_le_bytes(field(bytes, 16)?),
        id: field(bytes, 24)?,
        bytes: u64::from_le_bytes(field(bytes, 40)?),
    };
    Ok((header, check))
}

fn body(head: Head, bytes: &[u8]) -> Result<Event<'_>, Wrong> {
    if crc32c(bytes) != head.check {
        return Err(Wrong::Damaged("the contents of a record"));
    }
    let name = || Name::of(bytes).ok_or(Wrong::Damaged("a name that is not allowed"));
    match head.kind {
        record::DIRECTORY => Ok(Event::Directory(name()?)),
        record::FILE => Ok(Event::File(name()?)),
        record::BYTES => Ok(Event::Bytes { at: head.number, bytes }),
        record::PAIRS => {
            Ok(Event::Pairs(Pairs::of(bytes).ok_or(Wrong::Damaged("a pair that is cut"))?))
        }
        _ => {
            let all = u64::from_le_bytes(field(bytes, 0)?);
            let chain = u32::from_le_bytes(field(bytes, 8)?);
            if (all, chain) != (head.totals.bytes, head.chain) {
                return Err(Wrong::Damaged("the check over everything"));
            }
            Ok(Event::End(head.totals))
        }
    }
}

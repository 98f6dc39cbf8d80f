//! What clients of the page server send and get, and a page as it lies in the file.
//!
//! ```text
//! request  0 length u32 | 4 opcode u8 | 5 0 | 6 at u16 | 8 page u64 | 16 LSN u64 | 24 data
//! answer   0 length u32 | 4 status u8 | 5 0 | 8 page u64 | 16 LSN u64 | 24 data
//! page     0 LSN u64 | 8 number u64 | 16 check u32 | 20 0 | 24 contents, 8168 bytes
//! ```
//!
//! Little-endian; a length counts the whole message. `GetPage` (1) has no data and is answered by
//! the page; its LSN is the least the client will take. `Apply` (2), a log record, sets bytes of
//! the contents from `at` on; its LSN becomes the page's. `Sync` (3) is a head and nothing else; it
//! is answered when every record answered before on its connection, or on one that is gone,
//! survives power loss.

use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a page.
pub const PAGE: usize = 8192;
/// Bytes of a page before its contents.
pub const PAGE_HEAD: usize = 24;
/// Bytes of a page's contents.
pub const CONTENTS: usize = PAGE - PAGE_HEAD;
/// Bytes of a message before its data.
pub const HEAD: usize = 24;
/// Largest number of a page. How many of them can exist the device says.
pub const PAGE_MAX: u64 = (1 << 31) - 1;

/// A request, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// A page at least as new as an LSN.
    GetPage {
        /// Which.
        page: u64,
        /// The least.
        lsn: u64,
    },
    /// A log record.
    Apply {
        /// Which page.
        page: u64,
        /// The record's.
        lsn: u64,
        /// From where in the contents.
        at: usize,
        /// What the bytes there become.
        data: &'a [u8],
    },
    /// Every record that was answered is to survive power loss.
    Sync,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Done = 0,
    /// The page is not as new as asked: log records are still to come.
    Older = 1,
    /// The record is not newer than the page: it was applied before.
    Applied = 2,
    /// The request is none.
    Invalid = 3,
    /// The file could not be read or written. Of a `Sync`: a page was not written that this
    /// connection, or one that is gone, sent records for; its number and LSN stand in the answer,
    /// or zeros if it was no page.
    Failed = 4,
    /// The record is for a page that does not exist yet, and there is no room for another.
    Full = 5,
    /// There are as many clients as there may be, or this one is too slow while others wait: the
    /// connection is closed.
    Busy = 6,
}

/// The answer to who is not served.
pub const BUSY: [u8; HEAD] = {
    let mut head = [0; HEAD];
    (head[0], head[4]) = (24, Status::Busy as u8);
    head
};

/// What stands at the start of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framed {
    /// A message of so many bytes.
    Whole(usize),
    /// Not before there are so many bytes.
    More(usize),
    /// None: its length is impossible.
    Invalid,
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Where the first message ends.
#[must_use]
pub fn frame(bytes: &[u8]) -> Framed {
    let Some(len) = bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) else {
        return Framed::More(4);
    };
    match usize::try_from(len) {
        Ok(len) if !(HEAD..=HEAD + PAGE).contains(&len) => Framed::Invalid,
        Ok(len) if bytes.len() < len => Framed::More(len),
        Ok(len) => Framed::Whole(len),
        Err(_) => Framed::Invalid,
    }
}

impl<'a> Request<'a> {
    /// The request of one whole message.
    #[must_use]
    pub fn parse(message: &'a [u8]) -> Option<Request<'a>> {
        let (page, lsn) = (u64_at(message, 8)?, u64_at(message, 16)?);
        let at = usize::from(u16::from_le_bytes(*message.get(6..)?.first_chunk()?));
        let data = message.get(HEAD..)?;
        if page > PAGE_MAX || message.get(5) != Some(&0) {
            return None;
        }
        match message.get(4)? {
            1 if data.is_empty() && at == 0 => Some(Request::GetPage { page, lsn }),
            2 if at + data.len() <= CONTENTS => Some(Request::Apply { page, lsn, at, data }),
            3 if data.is_empty() && (page, lsn, at) == (0, 0, 0) => Some(Request::Sync),
            _ => None,
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let (opcode, page, lsn, at, data): (u8, _, _, _, &[u8]) = match *self {
            Request::GetPage { page, lsn } => (1, page, lsn, 0, &[]),
            Request::Apply { page, lsn, at, data } => (2, page, lsn, at, data),
            Request::Sync => (3, 0, 0, 0, &[]),
        };
        let mut bytes = Vec::with_capacity(HEAD + data.len());
        bytes.extend(u32::try_from(HEAD + data.len()).unwrap_or(0).to_le_bytes());
        bytes.extend([opcode, 0]);
        bytes.extend(u16::try_from(at).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend(page.to_le_bytes());
        bytes.extend(lsn.to_le_bytes());
        bytes.extend_from_slice(data);
        bytes
    }
}

/// The head of an answer with `data` bytes behind it.
#[must_use]
pub fn answer_head(status: Status, page: u64, lsn: u64, data: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    let len = u32::try_from(HEAD + data).unwrap_or(0).to_le_bytes();
    let fields: [(usize, &[u8]); 4] =
        [(0, &len), (4, &[status as u8]), (8, &page.to_le_bytes()), (16, &lsn.to_le_bytes())];
    for (at, bytes) in fields {
        if let Some(to) = head.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }
    head
}

/// Status, page and LSN of an answer, by its head.
#[must_use]
pub fn parse_answer(head: &[u8]) -> Option<(Status, u64, u64)> {
    const ALL: [Status; 7] = [
        Status::Done,
        Status::Older,
        Status::Applied,
        Status::Invalid,
        Status::Failed,
        Status::Full,
        Status::Busy,
    ];
    let status = ALL.into_iter().find(|status| head.get(4) == Some(&(*status as u8)))?;
    Some((status, u64_at(head, 8)?, u64_at(head, 16)?))
}

fn check_of(page: &[u8]) -> u32 {
    let parts = [page.get(..16), page.get(PAGE_HEAD..PAGE)].map(Option::unwrap_or_default);
    let both = xxh3_64(parts[0]) ^ xxh3_64(parts[1]).rotate_left(1);
    u32::try_from(both & u64::from(u32::MAX)).unwrap_or(0)
}

/// Makes the head of a page.
pub fn seal(page: &mut [u8], number: u64, lsn: u64) {
    if let Some(head) = page.first_chunk_mut::<PAGE_HEAD>() {
        head[..8].copy_from_slice(&lsn.to_le_bytes());
        head[8..16].copy_from_slice(&number.to_le_bytes());
        head[20..].fill(0);
    }
    let check = check_of(page);
    if let Some(place) = page.get_mut(16..20) {
        place.copy_from_slice(&check.to_le_bytes());
    }
}

/// Number and LSN of a page, if `page` is one, whole.
#[must_use]
pub fn whole(page: &[u8]) -> Option<(u64, u64)> {
    let number = u64_at(page, 8).filter(|number| *number <= PAGE_MAX)?;
    Some((number, lsn_of(page, number)?))
}

/// The LSN of page `number`, if `page` is that page, whole.
#[must_use]
pub fn lsn_of(page: &[u8], number: u64) -> Option<u64> {
    let page = page.get(..PAGE)?;
    let check = page.get(16..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
    (u64_at(page, 8)? == number && check == check_of(page)).then(|| u64_at(page, 0)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_are_read_as_written(
            page in 0..=PAGE_MAX, lsn: u64, at in 0..100usize,
            data in prop::collection::vec(any::<u8>(), 0..100), get: bool,
        ) {
            let request = if get {
                Request::GetPage { page, lsn }
            } else {
                Request::Apply { page, lsn, at, data: &data }
            };
            let bytes = request.emit();
            prop_assert_eq!(frame(&bytes), Framed::Whole(bytes.len()));
            prop_assert_eq!(Request::parse(&bytes), Some(request));
            for n in 0..bytes.len() {
                prop_assert!(matches!(frame(&bytes[..n]), Framed::More(more) if more > n));
            }
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>) {
            let _ = (frame(&bytes), Request::parse(&bytes), lsn_of(&bytes, 0));
            let _ = parse_answer(&bytes);
        }
    }

    #[test]
    fn heads_of_answers_are_read_as_written() {
        assert_eq!(BUSY, answer_head(Status::Busy, 0, 0, 0));
        for status in [Status::Done, Status::Older, Status::Failed, Status::Full, Status::Busy] {
            let head = answer_head(status, 5, 99, 0);
            assert_eq!(parse_answer(&head), Some((status, 5, 99)));
        }
        assert_eq!(parse_answer(&[9; HEAD]), None);
        assert_eq!(parse_answer(&[0; HEAD - 1]), None);
    }

    #[test]
    fn a_torn_page_is_none() {
        let mut page = vec![7; PAGE];
        seal(&mut page, 5, 99);
        assert_eq!(lsn_of(&page, 5), Some(99));
        assert_eq!((lsn_of(&page, 6), whole(&page)), (None, Some((5, 99))));
        for at in [0, 8, 16, PAGE_HEAD, PAGE - 1] {
            page[at] ^= 1;
            assert_eq!(lsn_of(&page, 5), None, "byte {at}");
            page[at] ^= 1;
        }
        assert_eq!(lsn_of(&vec![0; PAGE], 0), None, "a page never written");
    }
}

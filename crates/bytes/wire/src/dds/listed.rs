//! Entries of a listing, in the data of a response.

use super::{InvalidMessage, NAME_MAX};
use crate::nvmefs::{put, u16_at, u32_at, u64_at};

/// Bytes before the name.
const HEAD: usize = 16;

/// A file of a directory, or a directory (whose size is the number of its files).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The file's or directory's id, never 0.
    pub id: u32,
    /// Bytes, or files.
    pub size: u64,
    /// 1 to [`NAME_MAX`] bytes.
    pub name: &'a [u8],
}

/// Adds an entry to `out` unless that would make it longer than `room`; whether it did.
pub fn put_listed(out: &mut Vec<u8>, entry: &Listed<'_>, room: usize) -> bool {
    let len = (HEAD + entry.name.len()).next_multiple_of(8);
    if out.len() + len > room || entry.name.len() > NAME_MAX {
        return false;
    }
    let mut head = [0; HEAD];
    put(&mut head, 0, &entry.id.to_le_bytes());
    put(&mut head, 6, &u16::try_from(entry.name.len()).unwrap_or(0).to_le_bytes());
    put(&mut head, 8, &entry.size.to_le_bytes());
    let end = out.len() + len;
    out.extend_from_slice(&head);
    out.extend_from_slice(entry.name);
    out.resize(end, 0);
    true
}

/// Reads entries one after another; ends at the first that is none, with the error.
#[derive(Clone, Debug)]
pub struct Listing<'a> {
    rest: &'a [u8],
}

impl<'a> Listing<'a> {
    /// Over the data of a response.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Listing<'a> {
        Listing { rest: data }
    }

    fn take(&mut self) -> Result<Listed<'a>, InvalidMessage> {
        let rest = std::mem::take(&mut self.rest);
        let head = rest.first_chunk::<HEAD>().ok_or(InvalidMessage::Length)?;
        let len = usize::from(u16_at(head, 6));
        let entry = Listed {
            id: u32_at(head, 0),
            size: u64_at(head, 8),
            name: rest.get(HEAD..HEAD + len).ok_or(InvalidMessage::Length)?,
        };
        if entry.id == 0 || u16_at(head, 4) != 0 || !(1..=NAME_MAX).contains(&len) {
            return Err(InvalidMessage::Field);
        }
        self.rest = rest.get((HEAD + len).next_multiple_of(8)..).ok_or(InvalidMessage::Length)?;
        Ok(entry)
    }
}

impl<'a> Iterator for Listing<'a> {
    type Item = Result<Listed<'a>, InvalidMessage>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.take())
    }
}

//! Requests: what the file library asks of the file service.

use super::{ALIGN_MAX, DATA_MAX, DirectoryId, FileId, InvalidMessage, NAME_MAX};
use crate::nvmefs::{put, u16_at, u32_at, u64_at};

/// Bytes of a request before its data.
pub const REQUEST_HEAD: usize = 32;

/// What is asked for, as the wire has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Bytes of a file.
    Read = 1,
    /// Bytes into a file.
    Write = 2,
    /// A file's bytes onto the device.
    Flush = 3,
    /// A new directory.
    CreateDirectory = 4,
    /// A directory by its name.
    OpenDirectory = 5,
    /// An empty directory goes.
    RemoveDirectory = 6,
    /// A new file.
    CreateFile = 7,
    /// A file by its name.
    OpenFile = 8,
    /// A file goes.
    DeleteFile = 9,
    /// Another size.
    Resize = 10,
    /// The size.
    Size = 11,
    /// Names, ids and sizes.
    List = 12,
    /// Changes of the cache table.
    Table = 13,
}

impl Opcode {
    /// All of them.
    pub const ALL: [Opcode; 13] = [
        Opcode::Read,
        Opcode::Write,
        Opcode::Flush,
        Opcode::CreateDirectory,
        Opcode::OpenDirectory,
        Opcode::RemoveDirectory,
        Opcode::CreateFile,
        Opcode::OpenFile,
        Opcode::DeleteFile,
        Opcode::Resize,
        Opcode::Size,
        Opcode::List,
        Opcode::Table,
    ];

    fn parse(raw: u8) -> Option<Opcode> {
        Opcode::ALL.into_iter().find(|opcode| *opcode as u8 == raw)
    }
}

/// One request; its answer is a [`Response`](super::Response) with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// `bytes` of a file from `offset`; fewer are answered at its end.
    Read {
        /// The file.
        file: FileId,
        /// First byte.
        offset: u64,
        /// How many, at most [`DATA_MAX`].
        bytes: u32,
    },
    /// All of `data` into a file at `offset`; the file grows if it ends before.
    Write {
        /// The file.
        file: FileId,
        /// First byte.
        offset: u64,
        /// At most [`DATA_MAX`] bytes.
        data: &'a [u8],
    },
    /// What was answered of this file is made to survive power loss.
    Flush {
        /// The file.
        file: FileId,
    },
    /// A new directory; value: its id.
    CreateDirectory {
        /// 1 to [`NAME_MAX`] bytes.
        name: &'a [u8],
    },
    /// The directory of a name; value: its id.
    OpenDirectory {
        /// 1 to [`NAME_MAX`] bytes.
        name: &'a [u8],
    },
    /// An empty directory goes.
    RemoveDirectory {
        /// The directory.
        directory: DirectoryId,
    },
    /// A new, empty file; value: its id.
    CreateFile {
        /// Where.
        directory: DirectoryId,
        /// 1 to [`NAME_MAX`] bytes.
        name: &'a [u8],
    },
    /// The file of a name; value: its id.
    OpenFile {
        /// Where.
        directory: DirectoryId,
        /// 1 to [`NAME_MAX`] bytes.
        name: &'a [u8],
    },
    /// The file goes, with its name and space.
    DeleteFile {
        /// The file.
        file: FileId,
    },
    /// The file becomes `size` bytes: cut, or filled with zeroes.
    Resize {
        /// The file.
        file: FileId,
        /// Bytes.
        size: u64,
    },
    /// The file's size; value: bytes.
    Size {
        /// The file.
        file: FileId,
    },
    /// What a directory holds, or all directories, in ascending order of ids; data: entries of
    /// [`Listed`](super::Listed); value: the id to go on after, 0 at the end.
    List {
        /// The directory, or [`DirectoryId::ROOT`].
        directory: DirectoryId,
        /// Only ids greater than this one.
        after: u32,
        /// Room for entries, bytes, at most [`DATA_MAX`].
        bytes: u32,
    },
    /// Changes the host makes itself to the cache table (section 6.1); answered once no reader
    /// finds what was there before. How they are said is the table's business.
    Table {
        /// At most [`DATA_MAX`] bytes.
        changes: &'a [u8],
    },
}

/// A message that is no request. The id is there if the message was long enough to have one: who
/// asked can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What to answer to.
    pub id: Option<u64>,
    /// Why.
    pub why: InvalidMessage,
}

/// The fields behind opcode and id.
#[derive(Clone, Copy, Default)]
struct Fields {
    subject: u32,
    bytes: u32,
    offset: u64,
}

impl<'a> Request<'a> {
    /// Reads a message.
    ///
    /// # Errors
    /// [`Refused`], if it is none.
    pub fn parse(message: &'a [u8]) -> Result<(u64, Request<'a>), Refused> {
        let Some(head) = message.first_chunk::<REQUEST_HEAD>() else {
            return Err(Refused { id: None, why: InvalidMessage::Length });
        };
        let id = u64_at(head, 8);
        Request::parse_body(head, message)
            .map(|request| (id, request))
            .map_err(|why| Refused { id: Some(id), why })
    }

    fn parse_body(
        head: &[u8; REQUEST_HEAD],
        message: &'a [u8],
    ) -> Result<Request<'a>, InvalidMessage> {
        let [raw, zero, ..] = *head;
        let opcode = Opcode::parse(raw).ok_or(InvalidMessage::Opcode)?;
        let data_at = usize::from(u16_at(head, 2));
        let data_len = u32_at(head, 4) as usize;
        let data = message.get(data_at..).filter(|data| data.len() == data_len);
        let data = data.ok_or(InvalidMessage::Length)?;
        let inside = (REQUEST_HEAD..=REQUEST_HEAD + ALIGN_MAX).contains(&data_at);
        if zero != 0 || !inside || data_len > DATA_MAX {
            return Err(InvalidMessage::Field);
        }
        let (subject, bytes, offset) = (u32_at(head, 16), u32_at(head, 20), u64_at(head, 24));
        let (file, directory) = (FileId(subject), DirectoryId(subject));
        let request = match opcode {
            Opcode::Read => Request::Read { file, offset, bytes },
            Opcode::Write => Request::Write { file, offset, data },
            Opcode::Flush => Request::Flush { file },
            Opcode::CreateDirectory => Request::CreateDirectory { name: data },
            Opcode::OpenDirectory => Request::OpenDirectory { name: data },
            Opcode::RemoveDirectory => Request::RemoveDirectory { directory },
            Opcode::CreateFile => Request::CreateFile { directory, name: data },
            Opcode::OpenFile => Request::OpenFile { directory, name: data },
            Opcode::DeleteFile => Request::DeleteFile { file },
            Opcode::Resize => Request::Resize { file, size: offset },
            Opcode::Size => Request::Size { file },
            Opcode::List => {
                let after = u32::try_from(offset).map_err(|_| InvalidMessage::Field)?;
                Request::List { directory, after, bytes }
            }
            Opcode::Table => Request::Table { changes: data },
        };
        // What a request has no use for must be zero: it is then the only way to say it.
        let said = request.fields();
        let same = (said.subject, said.bytes, said.offset) == (subject, bytes, offset);
        let fits = bytes as usize <= DATA_MAX && request.data().len() == data_len;
        let named = !request.is_named() || (1..=NAME_MAX).contains(&data_len);
        if same && fits && named { Ok(request) } else { Err(InvalidMessage::Field) }
    }

    /// What it asks for.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        match self {
            Request::Read { .. } => Opcode::Read,
            Request::Write { .. } => Opcode::Write,
            Request::Flush { .. } => Opcode::Flush,
            Request::CreateDirectory { .. } => Opcode::CreateDirectory,
            Request::OpenDirectory { .. } => Opcode::OpenDirectory,
            Request::RemoveDirectory { .. } => Opcode::RemoveDirectory,
            Request::CreateFile { .. } => Opcode::CreateFile,
            Request::OpenFile { .. } => Opcode::OpenFile,
            Request::DeleteFile { .. } => Opcode::DeleteFile,
            Request::Resize { .. } => Opcode::Resize,
            Request::Size { .. } => Opcode::Size,
            Request::List { .. } => Opcode::List,
            Request::Table { .. } => Opcode::Table,
        }
    }

    fn is_named(&self) -> bool {
        matches!(
            self,
            Request::CreateDirectory { .. }
                | Request::OpenDirectory { .. }
                | Request::CreateFile { .. }
                | Request::OpenFile { .. }
        )
    }

    fn fields(&self) -> Fields {
        match *self {
            Request::Read { file, offset, bytes } => Fields { subject: file.0, bytes, offset },
            Request::Write { file, offset, .. } => Fields { subject: file.0, bytes: 0, offset },
            Request::Flush { file } | Request::DeleteFile { file } | Request::Size { file } => {
                Fields { subject: file.0, ..Fields::default() }
            }
            Request::CreateDirectory { .. }
            | Request::OpenDirectory { .. }
            | Request::Table { .. } => Fields::default(),
            Request::RemoveDirectory { directory }
            | Request::CreateFile { directory, .. }
            | Request::OpenFile { directory, .. } => {
                Fields { subject: directory.0, ..Fields::default() }
            }
            Request::Resize { file, size } => Fields { subject: file.0, bytes: 0, offset: size },
            Request::List { directory, after, bytes } => {
                Fields { subject: directory.0, bytes, offset: after.into() }
            }
        }
    }

    /// The bytes it carries: what to write, a name, or changes.
    #[must_use]
    pub fn data(&self) -> &'a [u8] {
        match *self {
            Request::Write { data, .. } | Request::Table { changes: data } => data,
            Request::CreateDirectory { name }
            | Request::OpenDirectory { name }
            | Request::CreateFile { name, .. }
            | Request::OpenFile { name, .. } => name,
            _ => &[],
        }
    }

    /// Room its answer needs for data, bytes.
    #[must_use]
    pub fn room(&self) -> u32 {
        match *self {
            Request::Read { bytes, .. } | Request::List { bytes, .. } => bytes,
            _ => 0,
        }
    }

    /// The message's first bytes, its data to begin at `data_at`, which is [`super::data_at`] of
    /// [`REQUEST_HEAD`], and to have `data_len` bytes. Nobody reads what is between.
    #[must_use]
    pub fn head(&self, id: u64, data_at: usize, data_len: usize) -> [u8; REQUEST_HEAD] {
        let mut head = [0; REQUEST_HEAD];
        let Fields { subject, bytes, offset } = self.fields();
        put(&mut head, 0, &[self.opcode() as u8]);
        put(&mut head, 2, &u16::try_from(data_at).unwrap_or(u16::MAX).to_le_bytes());
        put(&mut head, 4, &u32::try_from(data_len).unwrap_or(u32::MAX).to_le_bytes());
        put(&mut head, 8, &id.to_le_bytes());
        put(&mut head, 16, &subject.to_le_bytes());
        put(&mut head, 20, &bytes.to_le_bytes());
        put(&mut head, 24, &offset.to_le_bytes());
        head
    }
}

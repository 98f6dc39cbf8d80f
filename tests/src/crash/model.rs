//! What a directory must hold after the operations answered so far.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;

use super::operation::Operation;
use crate::{Result, context};

/// A name's meaning. Files are numbered, since several names may mean one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    File(usize),
    Directory,
}

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Bytes(Vec<u8>),
    Target(String),
}

/// The names of one directory and the contents of its files.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub(crate) names: BTreeMap<String, Entry>,
    /// Contents by file number; a number is never used again.
    pub(crate) files: Vec<Content>,
}

impl Model {
    /// Applies an operation, or says which error the man page asks for.
    pub(crate) fn apply(&mut self, operation: &Operation) -> std::result::Result<(), Errno> {
        match operation {
            Operation::Create { name } => self.create(name, Content::Bytes(Vec::new()))?,
            Operation::Append { name, bytes } => self.bytes(name)?.extend_from_slice(bytes),
            Operation::Write { name, offset, bytes } => {
                overwrite(self.bytes(name)?, *offset, bytes);
            }
            Operation::Truncate { name, length } => {
                self.bytes(name)?.resize(index(*length), 0);
            }
            Operation::Sync { name } => match self.names.get(name) {
                Some(Entry::Directory) => {}
                _ => _ = self.bytes(name)?,
            },
            Operation::Unlink { name } => match self.names.get(name) {
                Some(Entry::Directory) => return Err(Errno::ISDIR),
                Some(_) => _ = self.names.remove(name),
                None => return Err(Errno::NOENT),
            },
            Operation::Rename { from, to } => self.rename(from, to)?,
            Operation::Link { from, to } => match self.names.get(from).copied() {
                Some(Entry::Directory) if self.names.contains_key(to) => return Err(Errno::EXIST),
                Some(Entry::Directory) => return Err(Errno::PERM),
                Some(entry) => self.insert_new(to, entry)?,
                None => return Err(Errno::NOENT),
            },
            Operation::Symlink { target, name } => {
                self.create(name, Content::Target(target.clone()))?;
            }
            Operation::MakeDirectory { name } => self.insert_new(name, Entry::Directory)?,
            Operation::RemoveDirectory { name } => match self.names.get(name) {
                Some(Entry::Directory) => _ = self.names.remove(name),
                Some(_) => return Err(Errno::NOTDIR),
                None => return Err(Errno::NOENT),
            },
        }
        Ok(())
    }

    fn insert_new(&mut self, name: &str, entry: Entry) -> std::result::Result<(), Errno> {
        if self.names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        self.names.insert(name.to_owned(), entry);
        Ok(())
    }

    fn create(&mut self, name: &str, content: Content) -> std::result::Result<(), Errno> {
        self.insert_new(name, Entry::File(self.files.len()))?;
        self.files.push(content);
        Ok(())
    }

    /// The bytes behind a name; the targets of symbolic links do not exist.
    fn bytes(&mut self, name: &str) -> std::result::Result<&mut Vec<u8>, Errno> {
        match self.names.get(name) {
            Some(Entry::Directory) => Err(Errno::ISDIR),
            Some(Entry::File(number)) => match self.files.get_mut(*number) {
                Some(Content::Bytes(bytes)) => Ok(bytes),
                _ => Err(Errno::NOENT),
            },
            None => Err(Errno::NOENT),
        }
    }

    fn rename(&mut self, from: &str, to: &str) -> std::result::Result<(), Errno> {
        let source = *self.names.get(from).ok_or(Errno::NOENT)?;
        match (&source, self.names.get(to)) {
            (Entry::Directory, Some(Entry::Directory)) | (_, None) => {}
            (Entry::Directory, Some(_)) => return Err(Errno::NOTDIR),
            (_, Some(Entry::Directory)) => return Err(Errno::ISDIR),
            // Two names of one file: POSIX asks that nothing happens.
            (Entry::File(a), Some(Entry::File(b))) if a == b => return Ok(()),
            _ => {}
        }
        self.names.remove(from);
        self.names.insert(to.to_owned(), source);
        Ok(())
    }

    /// Reads a directory as it is.
    pub(crate) fn observe(dir: &Path) -> Result<Self> {
        let mut model = Self::default();
        let mut numbers = BTreeMap::new();
        let entries = context(fs::read_dir(dir), || format!("cannot list {}", dir.display()))?;
        for entry in entries {
            let entry = context(entry, || format!("cannot list {}", dir.display()))?;
            let path = entry.path();
            let describe = || format!("cannot read {}", path.display());
            let metadata = context(fs::symlink_metadata(&path), describe)?;
            let meaning = if metadata.is_dir() {
                Entry::Directory
            } else {
                let number = *numbers.entry(metadata.ino()).or_insert(model.files.len());
                if number == model.files.len() {
                    model.files.push(context(read(&path, metadata.is_symlink()), describe)?);
                }
                Entry::File(number)
            };
            let name = entry.file_name().to_string_lossy().into_owned();
            if model.names.insert(name.clone(), meaning).is_some() {
                return Err(format!("{} lists `{name}` twice", dir.display()));
            }
        }
        Ok(model)
    }

    /// The first difference between what must be there and what is.
    pub(crate) fn compare(&self, found: &Self) -> Result<()> {
        let names: Vec<&String> = self.names.keys().collect();
        let found_names: Vec<&String> = found.names.keys().collect();
        if names != found_names {
            return Err(format!("expected the names {names:?}, found {found_names:?}"));
        }
        let mut pairs = BTreeMap::new();
        for ((name, entry), other) in self.names.iter().zip(found.names.values()) {
            match (entry, other) {
                (Entry::File(number), Entry::File(other)) => {
                    if *pairs.entry(number).or_insert(other) != other {
                        return Err(format!("`{name}` is no longer one file with its other name"));
                    }
                    compare_content(name, &self.files[*number], &found.files[*other])?;
                }
                (Entry::Directory, Entry::Directory) => {}
                _ => return Err(format!("`{name}`: expected {entry:?}, found {other:?}")),
            }
        }
        Ok(())
    }

    /// As [`Self::compare`], when `operation` was in flight and may have been done, not done, or,
    /// for bytes, done in part: each byte old or new, and the length between.
    pub(crate) fn compare_open(&self, operation: &Operation, found: &Self) -> Result<()> {
        let mut after = self.clone();
        if after.apply(operation).is_err() || self.compare(found).is_ok() {
            return self.compare(found);
        }
        let whole = after.compare(found);
        if whole.is_ok() {
            return whole;
        }
        let (Operation::Append { name, .. } | Operation::Write { name, .. }) = operation else {
            return whole.map_err(|error| format!("neither before nor after it: {error}"));
        };
        let (Some(Entry::File(mine)), Some(Entry::File(theirs))) =
            (after.names.get(name), found.names.get(name))
        else {
            return whole;
        };
        let [Content::Bytes(old), Content::Bytes(new), Content::Bytes(mixed)] =
            [&self.files[*mine], &after.files[*mine], &found.files[*theirs]]
        else {
            return whole;
        };
        let possible = mixed.len() >= old.len().min(new.len())
            && mixed.len() <= old.len().max(new.len())
            && mixed.iter().enumerate().all(|(at, byte)| {
                // Between the old end and the new one a hole reads as zero.
                *byte == old.get(at).copied().unwrap_or(0) || Some(byte) == new.get(at)
            });
        if !possible {
            return whole.map_err(|error| format!("not even in part: {error}"));
        }
        let mixed = found.files[*theirs].clone();
        after.files[*mine] = mixed;
        after.compare(found)
    }
}

fn overwrite(content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let start = index(offset);
    let end = start + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[start..end].copy_from_slice(bytes);
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

fn read(path: &Path, is_symlink: bool) -> io::Result<Content> {
    if is_symlink {
        let target = fs::read_link(path)?;
        return Ok(Content::Target(target.to_string_lossy().into_owned()));
    }
    fs::read(path).map(Content::Bytes)
}

fn compare_content(name: &str, expected: &Content, found: &Content) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let (Content::Bytes(expected), Content::Bytes(found)) = (expected, found) else {
        return Err(format!("`{name}`: another kind of file, or another target"));
    };
    let at = expected.iter().zip(found).position(|(a, b)| a != b);
    let at = at.unwrap_or_else(|| expected.len().min(found.len()));
    Err(format!(
        "`{name}`: expected {} bytes, found {}; they differ at {at}",
        expected.len(),
        found.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(operations: &[Operation]) -> Model {
        let mut model = Model::default();
        for operation in operations {
            model.apply(operation).unwrap();
        }
        model
    }

    fn create(name: &str) -> Operation {
        Operation::Create { name: name.into() }
    }

    fn append(name: &str, bytes: &[u8]) -> Operation {
        Operation::Append { name: name.into(), bytes: bytes.into() }
    }

    /// The oracle itself must be able to say no: a doubled append and a lost one are both found.
    #[test]
    fn a_doubled_or_lost_append_is_found() {
        let right = model(&[create("a"), append("a", b"one"), append("a", b"two")]);
        let lost = model(&[create("a"), append("a", b"one")]);
        let doubled =
            model(&[create("a"), append("a", b"one"), append("a", b"two"), append("a", b"two")]);
        assert!(right.compare(&right).is_ok());
        assert!(right.compare(&lost).is_err());
        assert!(right.compare(&doubled).is_err());
        assert!(lost.compare_open(&append("a", b"two"), &right).is_ok());
        assert!(lost.compare_open(&append("a", b"two"), &lost).is_ok());
        assert!(lost.compare_open(&append("a", b"two"), &doubled).is_err());
    }

    #[test]
    fn a_write_in_flight_may_be_half_done_but_not_wrong() {
        let before = model(&[create("a"), append("a", b"oooo")]);
        let write = Operation::Write { name: "a".into(), offset: 2, bytes: b"nnnn".into() };
        for (content, allowed) in [("oonn", true), ("oonnnn", true), ("xonn", false)] {
            let found = model(&[create("a"), append("a", content.as_bytes())]);
            assert_eq!(before.compare_open(&write, &found).is_ok(), allowed, "{content}");
        }
        let other = model(&[create("b"), append("b", b"oooo")]);
        assert!(before.compare_open(&write, &other).is_err());
    }

    #[test]
    fn hard_links_are_one_file() {
        let link = Operation::Link { from: "a".into(), to: "b".into() };
        let linked = model(&[create("a"), link]);
        let apart = model(&[create("a"), create("b")]);
        assert!(linked.compare(&apart).is_err());
        assert!(linked.compare(&linked).is_ok());
    }
}

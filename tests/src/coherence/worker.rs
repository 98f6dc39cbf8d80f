//! A process that writes its blocks and reads everybody's.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use outboard_base::Rng;
use rustix::fs::OFlags;

use super::table::{Before, Fate, Table};
use super::{BLOCK, BLOCKS, FILES, name, owner, record};
use crate::{Result, context};

/// Most blocks one read asks for.
const READ_MAX: u64 = 4;

/// By which way a worker comes to the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Through the mount.
    Mount,
    /// Through the mount, with `O_DIRECT`.
    MountDirect,
    /// Preloaded, without a cache.
    Queues,
    /// Preloaded, with a hybrid cache of its own.
    Cached,
}

impl Kind {
    /// All of them, in turn.
    pub const ALL: [Kind; 4] = [Kind::Mount, Kind::Cached, Kind::Queues, Kind::MountDirect];

    /// The kind of the worker of this number.
    pub fn of(worker: u64) -> Kind {
        Kind::ALL[usize::try_from(worker).unwrap_or(0) % Kind::ALL.len()]
    }

    /// Whether it needs the mount's process.
    pub fn mounted(self) -> bool {
        matches!(self, Kind::Mount | Kind::MountDirect)
    }

    /// Whether what it wrote may lie in its host side's memory alone.
    pub fn caches(self) -> bool {
        matches!(self, Kind::Mount | Kind::Cached)
    }
}

/// Bytes at an address a device may read and write.
struct Aligned {
    bytes: Vec<u8>,
    from: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let bytes = vec![0; len + BLOCK];
        let from = bytes.as_ptr().align_offset(BLOCK).min(BLOCK);
        Self { bytes, from }
    }

    fn part(&mut self, len: usize) -> &mut [u8] {
        self.bytes.get_mut(self.from..self.from + len).unwrap_or_default()
    }
}

/// How a worker ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// It was told to.
    Over,
    /// What it stands on was killed.
    Cut,
}

/// One worker.
pub struct Worker<'a> {
    number: u64,
    workers: u64,
    kind: Kind,
    dir: &'a Path,
    table: &'a Table,
    files: Vec<File>,
    buffer: Aligned,
    /// Operations done.
    pub done: u64,
}

impl<'a> Worker<'a> {
    /// Of `workers`, the one of this number, at work below `dir`.
    pub fn new(number: u64, workers: u64, dir: &'a Path, table: &'a Table) -> Self {
        let buffer = Aligned::new(BLOCK * 4);
        let kind = Kind::of(number);
        Self { number, workers, kind, dir, table, files: Vec::new(), buffer, done: 0 }
    }

    /// Works until told to end.
    pub fn run(&mut self, seed: u64) -> Result<End> {
        let mut rng = Rng::new(seed ^ self.number << 40);
        let begun = self.open().and_then(|()| self.mend());
        if let Some(end) = self.cut(begun)? {
            return Ok(end);
        }
        self.table.set_fate(self.number, Fate::Lives)?;
        while !self.table.is_over()? {
            let outcome = self.step(&mut rng);
            if let Some(end) = self.cut(outcome)? {
                return Ok(end);
            }
            self.done += 1;
        }
        Ok(End::Over)
    }

    /// An error of one that is doomed is its end, not a fault.
    fn cut(&self, outcome: Result<()>) -> Result<Option<End>> {
        match outcome {
            Ok(()) => Ok(None),
            Err(_) if self.kind.mounted() && self.table.fate(self.number)? != Fate::Lives => {
                Ok(Some(End::Cut))
            }
            Err(error) => Err(error),
        }
    }

    fn open(&mut self) -> Result<()> {
        self.files.clear();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        if self.kind == Kind::MountDirect {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        for file in 0..FILES {
            let opened = options.open(self.dir.join(name(file)));
            self.files.push(context(opened, || format!("opening file {file}"))?);
        }
        Ok(())
    }

    /// What an earlier life of this worker had under way is written anew, whole.
    fn mend(&mut self) -> Result<()> {
        for file in 0..FILES {
            for block in 0..BLOCKS {
                if owner(file, block, self.workers) != self.number {
                    continue;
                }
                let known = self.table.known(file, block)?;
                if known.begun > known.answered {
                    self.write(file, block)?;
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, rng: &mut Rng) -> Result<()> {
        let file = rng.below(FILES);
        match rng.below(100) {
            0..45 => {
                let shift = rng.below(BLOCKS);
                let mine = |block: &u64| owner(file, *block, self.workers) == self.number;
                let block = (0..BLOCKS).map(|at| (at + shift) % BLOCKS).find(mine);
                block.map_or(Ok(()), |block| self.write(file, block))
            }
            45..92 => self.read(file, rng.below(BLOCKS), 1 + rng.below(READ_MAX)),
            92..97 => self.sync(file),
            _ => self.open(),
        }
    }

    fn file(&self, file: u64) -> io::Result<&File> {
        let index = usize::try_from(file).unwrap_or(usize::MAX);
        self.files.get(index).ok_or_else(|| io::Error::other("not open"))
    }

    fn write(&mut self, file: u64, block: u64) -> Result<()> {
        let seq = self.table.known(file, block)?.begun + 1;
        record::make(file, block, seq, self.buffer.part(BLOCK));
        self.table.begin(file, block, seq)?;
        let (from, at) = (self.buffer.from, block * BLOCK as u64);
        let bytes = self.buffer.bytes.get(from..from + BLOCK).unwrap_or_default();
        let written = self.file(file).and_then(|it| it.write_all_at(bytes, at));
        context(written, || format!("writing block {block} of file {file}"))?;
        self.table.answer(file, block, seq)
    }

    fn read(&mut self, file: u64, block: u64, count: u64) -> Result<()> {
        let blocks = block..(block + count).min(BLOCKS);
        let before = blocks.clone().map(|block| self.table.before(file, block));
        let before: Vec<Before> = before.collect::<Result<_>>()?;
        let len = before.len() * BLOCK;
        let mut buffer = std::mem::replace(&mut self.buffer, Aligned::new(0));
        let out = buffer.part(len);
        out.fill(0);
        let read = self.file(file).and_then(|it| read_up_to(it, out, block * BLOCK as u64));
        let judged = context(read, || format!("reading block {block} of file {file}"))
            .and_then(|()| self.judge(file, blocks, out, &before));
        self.buffer = buffer;
        judged
    }

    fn judge(
        &self,
        file: u64,
        blocks: std::ops::Range<u64>,
        bytes: &[u8],
        before: &[Before],
    ) -> Result<()> {
        for ((block, bytes), before) in blocks.zip(bytes.chunks(BLOCK)).zip(before) {
            let found = record::read(file, block, bytes);
            self.table.judge(file, block, found, *before)?;
        }
        Ok(())
    }

    fn sync(&self, file: u64) -> Result<()> {
        let mine = (0..BLOCKS).filter(|block| owner(file, *block, self.workers) == self.number);
        let mut answered = Vec::new();
        for block in mine {
            answered.push((block, self.table.known(file, block)?.answered));
        }
        let synced = self.file(file).and_then(File::sync_data);
        context(synced, || format!("syncing file {file}"))?;
        answered.into_iter().try_for_each(|(block, seq)| self.table.sync(file, block, seq))
    }
}

/// Reads until the end of the file, or `out` is full.
pub fn read_up_to(file: &File, out: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < out.len() {
        let rest = out.get_mut(done..).unwrap_or_default();
        match file.read_at(rest, at + done as u64) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

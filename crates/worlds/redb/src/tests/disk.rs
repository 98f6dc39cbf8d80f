//! A disk in memory that loses power and runs full.
//!
//! What was written since the last sync may be there or not after a loss, sector by sector. Space
//! is taken when a block is written for the first time, as in a file with holes.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboard_base::Rng;
use redb::StorageBackend;

const SECTOR: usize = 512;
const BLOCK: u64 = 4096;

/// What is on a disk after a loss of power, and what had happened by then.
pub(super) struct Image {
    pub(super) bytes: Vec<u8>,
    /// Batches that were answered before it, and asked for by then.
    pub(super) answered: u64,
    pub(super) asked: u64,
}

#[derive(Debug)]
struct Writing {
    at: usize,
    bytes: Vec<u8>,
}

struct State {
    /// As the last sync left it, and as it is read.
    synced: Vec<u8>,
    now: Vec<u8>,
    since: Vec<Writing>,
    blocks: BTreeSet<u64>,
    /// Blocks it has.
    room: usize,
    rng: Rng,
    /// One operation in so many is followed by a loss of power; none if zero.
    losses: u64,
    images: Vec<Image>,
    answered: u64,
    asked: u64,
}

/// The disk; its clones are the same.
#[derive(Clone)]
pub(super) struct Disk(Arc<Mutex<State>>);

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Disk")
    }
}

impl Disk {
    pub(super) fn new(bytes: Vec<u8>, seed: u64, losses: u64) -> Disk {
        let blocks = (0..bytes.len() as u64).step_by(4096).map(|at| at / BLOCK).collect();
        Disk(Arc::new(Mutex::new(State {
            synced: bytes.clone(),
            now: bytes,
            since: Vec::new(),
            blocks,
            room: usize::MAX,
            rng: Rng::new(seed),
            losses,
            images: Vec::new(),
            answered: 0,
            asked: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many more blocks can be written than are.
    pub(super) fn leave_room(&self, blocks: usize) {
        let mut state = self.state();
        state.room = state.blocks.len() + blocks;
    }

    pub(super) fn ask(&self, number: u64) {
        self.state().asked = number;
    }

    pub(super) fn answer(&self, number: u64) {
        self.state().answered = number;
    }

    /// The losses of power so far.
    pub(super) fn images(&self) -> Vec<Image> {
        std::mem::take(&mut self.state().images)
    }
}

impl State {
    /// Perhaps power is lost here: what would be found.
    fn lose(&mut self) {
        if self.losses == 0 || !self.rng.chance(1, self.losses) {
            return;
        }
        let mut bytes = self.synced.clone();
        // What is in the file's length came with what was written behind the old one.
        bytes.resize(self.now.len(), 0);
        for write in &self.since {
            let fate = self.rng.below(3);
            for (n, sector) in write.bytes.chunks(SECTOR).enumerate() {
                let lands = fate == 0 || (fate == 1 && self.rng.chance(1, 2));
                let at = write.at + n * SECTOR;
                if let Some(place) = bytes.get_mut(at..at + sector.len()).filter(|_| lands) {
                    place.copy_from_slice(sector);
                }
            }
        }
        self.images.push(Image { bytes, answered: self.answered, asked: self.asked });
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        let at = usize::try_from(offset).unwrap();
        let bytes = state.now.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.now.resize(usize::try_from(len).unwrap(), 0);
        state.lose();
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        state.lose();
        state.synced = state.now.clone();
        state.since.clear();
        state.lose();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let end = offset + data.len() as u64;
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            if !state.blocks.contains(&block) {
                if state.blocks.len() >= state.room {
                    return Err(io::Error::from_raw_os_error(28));
                }
                state.blocks.insert(block);
            }
        }
        let at = usize::try_from(offset).unwrap();
        let len = state.now.len().max(at + data.len());
        state.now.resize(len, 0);
        state.now[at..at + data.len()].copy_from_slice(data);
        state.since.push(Writing { at, bytes: data.to_vec() });
        state.lose();
        Ok(())
    }
}

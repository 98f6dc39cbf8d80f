//! Blocks of file side by side in fewer blocks of the medium, compressed.
//!
//! ```text
//! piece | length (2, LE) | that many bytes, LZ4 | zeros to the end of the sector |
//! ```
//! A block that would not save a sector is a piece as it is, all of its 16 sectors. Pieces follow
//! one another without regard to the borders of blocks, but a run of the medium begins with one and
//! ends with one, and those of two index pages share no block: so who still needs a block is known
//! from one page.
//!
//! The checksum in the index is that of the block as it is read, so it proves the way there and
//! back. What comes from the medium is unpacked before it is proved: that reads and writes nothing
//! beyond the buffers it is given, whatever the bytes are.

use outboard_codec::{crc32c, lz4};

use super::index::{Entry, SECTOR, SECTORS};
use super::map::Run;
use super::read::BLOCK_LEN;
use crate::KvError;
use outboard_medium::ALIGN;

/// Bytes of a piece's length.
const HEAD: usize = 2;
/// Sectors of the medium's smallest unit.
const ALIGN_SECTORS: u64 = (ALIGN / SECTOR) as u64;

/// One block of file, as it will lie on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    saved: u8,
    crc: u32,
}

impl Piece {
    fn sectors(self) -> usize {
        usize::from(SECTORS.saturating_sub(self.saved))
    }
}

/// Pieces one after another.
pub(super) struct Packed {
    pieces: Vec<Piece>,
    bytes: Vec<u8>,
}

impl Packed {
    /// Packs the blocks of `plain`.
    pub(super) fn new(packer: &mut lz4::Packer, plain: &[u8]) -> Packed {
        let mut packed = Packed { pieces: Vec::new(), bytes: Vec::with_capacity(plain.len()) };
        for block in plain.chunks(BLOCK_LEN) {
            packed.push(crc32c(block), block, packer.pack(block));
        }
        packed
    }

    fn push(&mut self, crc: u32, block: &[u8], small: &[u8]) {
        let sectors = (HEAD + small.len()).div_ceil(SECTOR);
        let saved = usize::from(SECTORS).saturating_sub(sectors);
        let (Ok(saved @ 1..), Ok(len)) = (u8::try_from(saved), u16::try_from(small.len())) else {
            self.pieces.push(Piece { saved: 0, crc });
            self.bytes.extend_from_slice(block);
            return;
        };
        self.pieces.push(Piece { saved, crc });
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.bytes.extend_from_slice(small);
        self.bytes.resize(self.bytes.len().next_multiple_of(SECTOR), 0);
    }

    /// Blocks of the medium it takes, if they are adjacent.
    pub(super) fn blocks(&self) -> usize {
        self.bytes.len().div_ceil(BLOCK_LEN)
    }

    /// Whether it takes an eighth fewer blocks than it has, at least: every read pays for it.
    pub(super) fn is_worth_it(&self) -> bool {
        self.blocks() * 8 <= self.pieces.len() * 7
    }

    /// All of it, to be laid out.
    pub(super) fn rest(&self) -> Rest<'_> {
        Rest { pieces: &self.pieces, bytes: &self.bytes }
    }
}

/// What of [`Packed`] has no place yet.
#[derive(Clone, Copy)]
pub(super) struct Rest<'a> {
    pieces: &'a [Piece],
    bytes: &'a [u8],
}

impl<'a> Rest<'a> {
    /// Blocks it takes, if they are adjacent: never more than it has pieces.
    pub(super) fn blocks(&self) -> u64 {
        self.bytes.len().div_ceil(BLOCK_LEN) as u64
    }

    /// Takes off the front what has room in `run`: the entries that will name it, and its bytes.
    ///
    /// Where the runs for [`Rest::blocks`] are gone through, each gets pieces up to its last block:
    /// what stays free at the end of one is less than a piece, and a piece no more than a block.
    pub(super) fn lay(&mut self, run: Run) -> (Vec<Entry>, &'a [u8]) {
        let room = usize::try_from(run.len).unwrap_or(usize::MAX).saturating_mul(SECTORS.into());
        let mut sectors = 0;
        let mut entries = Vec::new();
        for piece in self.pieces {
            if sectors + piece.sectors() > room {
                break;
            }
            let block = run.start + (sectors / usize::from(SECTORS)) as u64;
            let at = u8::try_from(sectors % usize::from(SECTORS)).unwrap_or(0);
            entries.push(Entry { at, saved: piece.saved, ..Entry::whole(block, piece.crc) });
            sectors += piece.sectors();
        }
        let (_, pieces) = self.pieces.split_at(entries.len());
        let (laid, bytes) = self.bytes.split_at((sectors * SECTOR).min(self.bytes.len()));
        *self = Rest { pieces, bytes };
        (entries, laid)
    }
}

/// Whether `b`, the next block of file, lies behind `a` with no other block between.
pub(super) fn follows(a: &Entry, b: &Entry) -> bool {
    b.sectors().start >= a.sectors().end && b.block <= a.blocks().end
}

/// Where to read `entries`, each of which [`follows`] the one before: offset and length, bytes, at
/// multiples of [`ALIGN`].
pub(super) fn extent(entries: &[Entry]) -> (u64, usize) {
    let start = entries.first().map_or(0, |entry| entry.sectors().start);
    let end = entries.last().map_or(start, |entry| entry.sectors().end);
    let start = start / ALIGN_SECTORS * ALIGN_SECTORS;
    let len = end.next_multiple_of(ALIGN_SECTORS).saturating_sub(start);
    (start * SECTOR as u64, usize::try_from(len).map_or(0, |sectors| sectors * SECTOR))
}

/// Fills `plain` with the block of file that `entry` names, out of `raw`, which was read at byte
/// `offset`. `Corrupt` unless its checksum holds.
pub(super) fn unpack(
    entry: Entry,
    offset: u64,
    raw: &[u8],
    plain: &mut [u8],
) -> Result<(), KvError> {
    let sectors = entry.sectors();
    let from = (sectors.start * SECTOR as u64).checked_sub(offset);
    let from = from.and_then(|from| usize::try_from(from).ok()).ok_or(KvError::Corrupt)?;
    let len = usize::from(SECTORS.saturating_sub(entry.saved)) * SECTOR;
    let piece = raw.get(from..from + len).ok_or(KvError::Corrupt)?;
    let whole = if entry.saved == 0 {
        let fits = piece.len() == plain.len();
        if fits {
            plain.copy_from_slice(piece);
        }
        fits
    } else {
        let (len, packed) = piece.split_first_chunk::<HEAD>().ok_or(KvError::Corrupt)?;
        let packed = packed.get(..u16::from_le_bytes(*len).into()).ok_or(KvError::Corrupt)?;
        lz4::unpack(packed, plain)
    };
    if whole && crc32c(plain) == entry.crc { Ok(()) } else { Err(KvError::Corrupt) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_base::Rng;
    use proptest::prelude::*;

    /// Blocks of file, some noise, some text, some zeros.
    fn plain(seed: u64, blocks: usize) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        let mut bytes = vec![0; blocks * BLOCK_LEN];
        for block in bytes.chunks_mut(BLOCK_LEN) {
            let noisy = usize::try_from(rng.below(5)).unwrap() * BLOCK_LEN / 4;
            rng.fill(&mut block[..noisy]);
        }
        bytes
    }

    /// Lays everything into runs of random lengths, as [`Rest::lay`] is meant to be used.
    fn lay(packed: &Packed, rng: &mut Rng) -> (Vec<Entry>, Vec<u8>, u64) {
        let (mut medium, mut entries, mut next) = (vec![0xEE; 1 << 20], Vec::new(), 1);
        let (mut rest, mut taken) = (packed.rest(), 0);
        while rest.blocks() > 0 {
            let mut missing = rest.blocks();
            taken += missing;
            while missing > 0 {
                let run = Run { start: next, len: 1 + rng.below(missing) };
                missing -= run.len;
                next += run.len + rng.below(2);
                let (laid, bytes) = rest.lay(run);
                let last = laid.last().expect("each run gets a piece").blocks();
                assert_eq!(last.end, run.start + run.len, "up to its last block");
                let at = usize::try_from(run.start).unwrap() * BLOCK_LEN;
                medium[at..at + bytes.len()].copy_from_slice(bytes);
                entries.extend(laid);
            }
        }
        (entries, medium, taken)
    }

    proptest! {
        #[test]
        fn what_is_laid_out_comes_back(seed in any::<u64>(), blocks in 1..33_usize) {
            let plain = plain(seed, blocks);
            let packed = Packed::new(&mut lz4::Packer::default(), &plain);
            let (entries, medium, taken) = lay(&packed, &mut Rng::new(seed));
            prop_assert_eq!(entries.len(), blocks);
            prop_assert!(taken <= blocks as u64, "{} for {}", taken, blocks);
            for (entry, plain) in entries.iter().zip(plain.chunks(BLOCK_LEN)) {
                let (offset, len) = extent(&[*entry]);
                prop_assert!(len <= 2 * BLOCK_LEN && len.is_multiple_of(ALIGN));
                let raw = &medium[usize::try_from(offset).unwrap()..][..len];
                let mut back = [0xEE; BLOCK_LEN];
                prop_assert_eq!(unpack(*entry, offset, raw, &mut back), Ok(()));
                prop_assert!(back == plain);
            }
            let mut sectors: Vec<_> = entries.iter().map(|entry| entry.sectors()).collect();
            sectors.sort_unstable_by_key(|sectors| sectors.start);
            prop_assert!(sectors.windows(2).all(|pair| pair[0].end <= pair[1].start));
        }

        /// Whatever lies on the medium: an error, or the very block.
        #[test]
        fn damage_is_corrupt(
            seed in any::<u64>(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let plain = plain(seed, 8);
            let packed = Packed::new(&mut lz4::Packer::default(), &plain);
            let (entries, mut medium, _) = lay(&packed, &mut Rng::new(seed));
            let at = BLOCK_LEN + at.index(packed.bytes.len());
            medium[at] = byte;
            for (entry, plain) in entries.iter().zip(plain.chunks(BLOCK_LEN)) {
                let mut back = [0; BLOCK_LEN];
                if unpack(*entry, 0, &medium, &mut back).is_ok() {
                    prop_assert!(back == plain);
                }
            }
        }

        /// Entries that lie anywhere, said of bytes that are anything.
        #[test]
        fn nothing_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..20_000),
            block in 0..3_u64, at in 0..SECTORS, saved in 0..SECTORS, offset in 0..30_000_u64,
        ) {
            let entry = Entry { at, saved, ..Entry::whole(block, 0) };
            let _ = unpack(entry, offset, &bytes, &mut [0; BLOCK_LEN]);
        }
    }

    #[test]
    fn what_does_not_shrink_stays_as_it_is() {
        let mut noise = vec![0; 4 * BLOCK_LEN];
        Rng::new(3).fill(&mut noise);
        let mut packer = lz4::Packer::default();
        let packed = Packed::new(&mut packer, &noise);
        assert!(!packed.is_worth_it() && packed.bytes == noise);
        let mut some = vec![0; 32 * BLOCK_LEN];
        for (kept, worth_it) in [(7300, false), (6900, true)] {
            some.chunks_mut(BLOCK_LEN).for_each(|block| Rng::new(3).fill(&mut block[..kept]));
            let packed = Packed::new(&mut packer, &some);
            assert!(packed.blocks() < 32 && packed.is_worth_it() == worth_it, "{kept}");
            some.fill(0);
        }
        let zeros = Packed::new(&mut packer, &vec![0; 4 * BLOCK_LEN]);
        assert!(zeros.is_worth_it() && zeros.blocks() == 1);
        assert_eq!(zeros.bytes.len(), 4 * SECTOR);
    }

    #[test]
    fn blocks_that_follow_one_another_are_read_together() {
        let whole = Entry::whole(7, 0);
        assert!(follows(&whole, &Entry::whole(8, 0)) && !follows(&whole, &Entry::whole(9, 0)));
        assert!(!follows(&whole, &Entry::whole(6, 0)));
        let packed = Entry { saved: 10, ..whole };
        assert!(follows(&packed, &Entry { at: 6, ..packed }) && !follows(&packed, &packed));
        assert!(follows(&packed, &Entry::whole(8, 0)), "the end of a run");
        assert_eq!(extent(&[packed]), (7 * 8192, 4096));
        assert_eq!(extent(&[Entry { at: 9, ..packed }]), (7 * 8192 + 4096, 4096));
        assert_eq!(extent(&[Entry { at: 6, ..packed }, Entry::whole(8, 0)]), (7 * 8192, 16384));
    }
}

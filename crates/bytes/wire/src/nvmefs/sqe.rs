//! The submission entry.
//!
//! ```text
//! dword  bits    field
//!   0    0-7     opcode, 0xA3 = 1.01000.11b (vendor, function 8, both directions)
//!        8-9     zero (NVMe: fused operation)
//!        10      dispatch: 0 kv volume (KVFS), 1 shared volume (DFS client)
//!        11-13   zero
//!        14-15   NVMe's PSDT; DPC: bit 14 write, bit 15 read; 0 PRP, 1 SGL (refused here)
//!        16-31   command id
//!   1            zero
//!   2-3          PRP write, entry 1          4-5   PRP write, entry 2
//!   6-7          PRP read, entry 1           8-9   PRP read, entry 2
//!  10            Write_len: request header (WH) and write data, bytes
//!  11            Read_len: reply header (RH) and read data, bytes
//!  12            zero
//!  13    0-15    RH_len, most bytes of reply header
//!        16-31   WH_len, bytes of request header
//!  14            zero
//!  15            tag: which use of the command id this is; an abort names it (never 0)
//! ```

use outboard_base::limits::{IO_MAX, REPLY_HEADER_MAX, REQUEST_HEADER_MAX};

use super::{Prp, QueueError, SQE_LEN, put, u16_at, u32_at, u64_at};

/// The one opcode of nvme-fs: vendor specific, function 01000b, both directions.
pub const OPCODE: u8 = 0xA3;

const DISPATCH: u32 = 1 << 10;
const PSDT: u32 = 0b11 << 14;
const DW0_ZERO: u32 = (0b11 << 8) | (0b111 << 11);

/// Which stack of the DPU answers a command (bit 10 of dword 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dispatch {
    /// A kv volume: KVFS.
    Kv,
    /// A shared volume: the DFS client.
    Shared,
}

/// What a submission entry says. Lengths are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sqe {
    /// Command id: the slot that waits for the completion.
    pub cid: u16,
    /// Which use of the slot this is. Never 0.
    pub tag: u32,
    /// The stack that is to answer.
    pub dispatch: Dispatch,
    /// Where request header and write data lie.
    pub write: Prp,
    /// Where reply header and read data go.
    pub read: Prp,
    /// Request header and write data together.
    pub write_len: u32,
    /// Reply header and read data together.
    pub read_len: u32,
    /// Request header: the first bytes of the write stream.
    pub wh_len: u16,
    /// Room for the reply header: the first bytes of the read stream.
    pub rh_len: u16,
}

/// The command id of an entry, readable even when the rest is not: an answer needs it.
#[must_use]
pub fn cid_of(bytes: &[u8; SQE_LEN]) -> u16 {
    u16_at(bytes, 2)
}

impl Sqe {
    /// Bytes of write data behind the request header.
    #[must_use]
    pub fn write_data_len(&self) -> u32 {
        self.write_len.saturating_sub(u32::from(self.wh_len))
    }

    /// Room for read data behind the reply header, bytes.
    #[must_use]
    pub fn read_data_len(&self) -> u32 {
        self.read_len.saturating_sub(u32::from(self.rh_len))
    }

    /// Reads an entry and checks all that needs no knowledge of the region.
    ///
    /// # Errors
    /// What the completion must say: unknown opcode, a PSDT other than PRP, set reserved bits,
    /// header longer than its stream, or a length beyond the limits.
    pub fn parse(bytes: &[u8; SQE_LEN]) -> Result<Sqe, QueueError> {
        let dw0 = u32_at(bytes, 0);
        if dw0 & 0xFF != u32::from(OPCODE) {
            return Err(QueueError::InvalidOpcode);
        }
        if dw0 & PSDT != 0 {
            return Err(QueueError::InvalidPsdt);
        }
        let zero = [dw0 & DW0_ZERO, u32_at(bytes, 4), u32_at(bytes, 48), u32_at(bytes, 56)];
        if zero != [0; 4] {
            return Err(QueueError::InvalidField);
        }
        let sqe = Sqe {
            cid: cid_of(bytes),
            tag: u32_at(bytes, 60),
            dispatch: if dw0 & DISPATCH == 0 { Dispatch::Kv } else { Dispatch::Shared },
            write: Prp { first: u64_at(bytes, 8), second: u64_at(bytes, 16) },
            read: Prp { first: u64_at(bytes, 24), second: u64_at(bytes, 32) },
            write_len: u32_at(bytes, 40),
            read_len: u32_at(bytes, 44),
            rh_len: u16_at(bytes, 52),
            wh_len: u16_at(bytes, 54),
        };
        if sqe.tag == 0 {
            return Err(QueueError::InvalidField);
        }
        sqe.check_lengths()?;
        Ok(sqe)
    }

    fn check_lengths(&self) -> Result<(), QueueError> {
        let fits = |header: u16, all: u32, header_max: usize| {
            usize::from(header) <= header_max
                && all
                    .checked_sub(u32::from(header))
                    .and_then(|data| usize::try_from(data).ok())
                    .is_some_and(|data| data <= IO_MAX)
        };
        let ok = fits(self.wh_len, self.write_len, REQUEST_HEADER_MAX)
            && fits(self.rh_len, self.read_len, REPLY_HEADER_MAX);
        if ok { Ok(()) } else { Err(QueueError::InvalidLength) }
    }

    /// The entry's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; SQE_LEN] {
        let mut out = [0; SQE_LEN];
        let mut dw0 = u32::from(OPCODE) | (u32::from(self.cid) << 16);
        if self.dispatch == Dispatch::Shared {
            dw0 |= DISPATCH;
        }
        put(&mut out, 0, &dw0.to_le_bytes());
        put(&mut out, 8, &self.write.first.to_le_bytes());
        put(&mut out, 16, &self.write.second.to_le_bytes());
        put(&mut out, 24, &self.read.first.to_le_bytes());
        put(&mut out, 32, &self.read.second.to_le_bytes());
        put(&mut out, 40, &self.write_len.to_le_bytes());
        put(&mut out, 44, &self.read_len.to_le_bytes());
        put(&mut out, 52, &self.rh_len.to_le_bytes());
        put(&mut out, 54, &self.wh_len.to_le_bytes());
        put(&mut out, 60, &self.tag.to_le_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Sqe {
        Sqe {
            cid: 0x0102,
            tag: 0x0304_0506,
            dispatch: Dispatch::Shared,
            write: Prp { first: 0x1122_3344_5566_7788, second: 0x99AA_BBCC_DDEE_FF00 },
            read: Prp { first: 0x0807_0605_0403_0201, second: 0x1817_1615_1413_1211 },
            write_len: 0x2040,
            read_len: 0x1080,
            rh_len: 0x80,
            wh_len: 0x40,
        }
    }

    /// C1-C3: every field in the place the paper gives it.
    #[test]
    fn c1_golden_bytes() {
        #[rustfmt::skip]
        let golden: [u8; SQE_LEN] = [
            0xA3, 0x04, 0x02, 0x01, 0, 0, 0, 0,
            0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
            0x00, 0xFF, 0xEE, 0xDD, 0xCC, 0xBB, 0xAA, 0x99,
            0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
            0x40, 0x20, 0, 0, 0x80, 0x10, 0, 0,
            0, 0, 0, 0, 0x80, 0, 0x40, 0,
            0, 0, 0, 0, 0x06, 0x05, 0x04, 0x03,
        ];
        assert_eq!(sample().emit(), golden);
        assert_eq!(Sqe::parse(&golden), Ok(sample()));
        assert_eq!(OPCODE, (1 << 7) | (0b01000 << 2) | 0b11);
    }

    #[test]
    fn c2_psdt_is_refused_and_never_read_as_prp() {
        for bits in [0x40, 0x80, 0xC0] {
            let mut bytes = sample().emit();
            bytes[1] |= bits;
            assert_eq!(Sqe::parse(&bytes), Err(QueueError::InvalidPsdt));
            assert_eq!(cid_of(&bytes), 0x0102);
        }
    }

    #[test]
    fn c1_other_opcodes_and_reserved_bits_are_refused() {
        for opcode in (0..=255).filter(|o| *o != OPCODE) {
            let mut bytes = sample().emit();
            bytes[0] = opcode;
            assert_eq!(Sqe::parse(&bytes), Err(QueueError::InvalidOpcode));
        }
        for (at, bit) in [(1, 0x01), (1, 0x02), (1, 0x08), (1, 0x20), (4, 1), (51, 1), (56, 1)] {
            let mut bytes = sample().emit();
            bytes[at] |= bit;
            assert_eq!(Sqe::parse(&bytes), Err(QueueError::InvalidField), "byte {at}");
        }
        assert_eq!(Sqe::parse(&Sqe { tag: 0, ..sample() }.emit()), Err(QueueError::InvalidField));
    }

    #[test]
    fn c3_lengths_do_not_overflow_their_stream() {
        let bad = [
            Sqe { wh_len: 0x41, write_len: 0x40, ..sample() },
            Sqe { rh_len: 1, read_len: 0, ..sample() },
            Sqe { write_len: u32::MAX, ..sample() },
            Sqe { read_len: u32::MAX, ..sample() },
            Sqe { wh_len: u16::MAX, write_len: u32::MAX, ..sample() },
            Sqe { rh_len: 257, read_len: 1000, ..sample() },
        ];
        for sqe in bad {
            assert_eq!(Sqe::parse(&sqe.emit()), Err(QueueError::InvalidLength), "{sqe:?}");
        }
        let most = Sqe { write_len: (1 << 20) + 0x40, read_len: (1 << 20) + 0x80, ..sample() };
        assert_eq!(Sqe::parse(&most.emit()), Ok(most));
    }

    proptest! {
        #[test]
        fn parse_undoes_emit(
            cid: u16, tag in 1u32.., shared: bool, prps: [u64; 4],
            wh in 0u16..=2560, rh in 0u16..=256, w in 0u32..=1 << 20, r in 0u32..=1 << 20,
        ) {
            let sqe = Sqe {
                cid, tag,
                dispatch: if shared { Dispatch::Shared } else { Dispatch::Kv },
                write: Prp { first: prps[0], second: prps[1] },
                read: Prp { first: prps[2], second: prps[3] },
                write_len: w + u32::from(wh), read_len: r + u32::from(rh),
                wh_len: wh, rh_len: rh,
            };
            prop_assert_eq!(Sqe::parse(&sqe.emit()), Ok(sqe));
        }

        #[test]
        fn what_parses_is_what_was_there(bytes in proptest::collection::vec(any::<u8>(), 64)) {
            let mut raw: [u8; SQE_LEN] = bytes.try_into().unwrap();
            raw[0] = OPCODE;
            raw[1] &= 0x04;
            for at in [4, 5, 6, 7, 42, 43, 46, 47, 48, 49, 50, 51, 56, 57, 58, 59] {
                raw[at] = 0;
            }
            if let Ok(sqe) = Sqe::parse(&raw) {
                prop_assert_eq!(sqe.emit(), raw);
            }
        }
    }
}

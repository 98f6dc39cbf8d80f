//! The erasure code of shared volumes: systematic Reed-Solomon over GF(2^8) (NetDFS VI; rows
//! N13-N15), byte for byte as Intel's ISA-L computes it.
//!
//! A *stripe* has k data *units* and m parity units of one length. Byte i of parity r is the sum
//! over all data units j of its coefficient of j times byte i of j, so each packet of a data unit
//! gives its part of each parity by itself, an *intermediate parity*, and parts are summed in any
//! order. The coefficients are those of a Cauchy matrix, the inverse of (k + r) XOR j: of whatever
//! k units are left, each other unit can be computed.
//!
//! * [`Field`] has the verbs of one packet at a data node: [`Field::multiply`], and
//!   [`Field::multiply_difference`] for an overwrite; a parity node's is [`add`];
//! * [`Code`] has the coefficients, and the verbs of a whole stripe;
//! * [`Repair`] computes lost units of k that are there; made once, run for each packet.
//!
//! Nothing here allocates. Buffers of different lengths are refused before any is written to.
//! Bytes, matrix and reasons: `docs/internals/erasure.md`.

mod field;
mod repair;
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "vectors are loaded and stored through pointers")
)]
mod simd;
mod tables;
#[cfg(test)]
mod tests;

use std::fmt;

pub use field::{Field, add};
pub use repair::Repair;

use field::same_length;
use tables::inverse;

/// Data units of a stripe, at most.
pub const MOST_DATA: usize = 16;
/// Parity units of a stripe, at most.
pub const MOST_PARITY: usize = 4;

/// The coefficients of one source, for each out.
type Column = [u8; MOST_PARITY];

/// Why nothing was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no code of so many data and parity units.
    Width(usize, usize),
    /// Another number of units is needed: this many, not that many.
    Count(usize, usize),
    /// The units are not of one length.
    Lengths,
    /// The stripe has no such unit.
    NoUnit(usize),
    /// More units are lost than the code has parity: this many, not at most that many.
    Lost(usize, usize),
    /// A unit that is there is named twice.
    Twice,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Width(data, parity) => write!(
                f,
                "no erasure code of {data}+{parity} units: data takes 1 to {MOST_DATA}, \
                 parity 1 to {MOST_PARITY}"
            ),
            Error::Count(needed, given) => write!(f, "{needed} units are needed, not {given}"),
            Error::Lengths => f.write_str("the units of a stripe are of one length"),
            Error::NoUnit(unit) => write!(f, "the stripe has no unit {unit}"),
            Error::Lost(lost, parity) => {
                write!(f, "{lost} units are lost, and {parity} of parity replace no more")
            }
            Error::Twice => f.write_str("a unit is named twice"),
        }
    }
}

impl std::error::Error for Error {}

/// RS(k, m): k data units, of which m parity units are computed.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    field: Field,
    data: usize,
    parity: usize,
    /// Of each data unit the coefficient for each parity.
    columns: [Column; MOST_DATA],
}

impl Code {
    /// The code of so many units.
    ///
    /// # Errors
    /// There is none.
    pub fn new(field: Field, data: usize, parity: usize) -> Result<Code, Error> {
        if !(1..=MOST_DATA).contains(&data) || !(1..=MOST_PARITY).contains(&parity) {
            return Err(Error::Width(data, parity));
        }
        let mut columns = [[0; MOST_PARITY]; MOST_DATA];
        for (j, column) in columns.iter_mut().enumerate().take(data) {
            for (r, coefficient) in column.iter_mut().enumerate().take(parity) {
                *coefficient = inverse(u8::try_from((data + r) ^ j).unwrap_or(0));
            }
        }
        Ok(Code { field, data, parity, columns })
    }

    /// What data unit `data` is multiplied by, for each parity in turn.
    ///
    /// # Errors
    /// The stripe has no such unit.
    pub fn coefficients(&self, data: usize) -> Result<&[u8], Error> {
        let column = self.columns.get(..self.data).and_then(|columns| columns.get(data));
        column.and_then(|column| column.get(..self.parity)).ok_or(Error::NoUnit(data))
    }

    /// All parities of all data.
    ///
    /// # Errors
    /// Units are missing or too many, or of different lengths.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), Error> {
        self.check(data.len(), parity.len())?;
        self.field.combine(&self.columns, data, parity, false)
    }

    /// Whether the parities are those of the data.
    ///
    /// # Errors
    /// Units are missing or too many, or of different lengths.
    pub fn is_stripe(&self, data: &[&[u8]], parity: &[&[u8]]) -> Result<bool, Error> {
        /// What is computed at once, of each parity.
        const PIECE: usize = 512;
        self.check(data.len(), parity.len())?;
        let len = same_length(data.iter().chain(parity).copied())?;
        for at in (0..len).step_by(PIECE) {
            let end = len.min(at + PIECE);
            let mut pieces: [&[u8]; MOST_DATA] = [&[]; MOST_DATA];
            for (piece, unit) in pieces.iter_mut().zip(data) {
                *piece = unit.get(at..end).unwrap_or_default();
            }
            let mut space = [[0; PIECE]; MOST_PARITY];
            let mut computed =
                space.each_mut().map(|space| space.get_mut(..end - at).unwrap_or_default());
            let computed = computed.get_mut(..self.parity).unwrap_or_default();
            let pieces = pieces.get(..self.data).unwrap_or_default();
            self.field.combine(&self.columns, pieces, computed, false)?;
            let mut both = computed.iter().zip(parity);
            if !both.all(|(computed, parity)| parity.get(at..end) == Some(&**computed)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// How to compute the units `lost` of the first k of `present`. Units count from 0, the data
    /// first. Which k are used, and in which order, is the caller's choice.
    ///
    /// # Errors
    /// Fewer than k units are present, more are lost than there is parity, the stripe has no such
    /// unit, or one of those k is there twice.
    pub fn repair(&self, present: &[usize], lost: &[usize]) -> Result<Repair, Error> {
        Repair::new(self, present, lost)
    }

    fn check(&self, data: usize, parity: usize) -> Result<(), Error> {
        let count = |needed, given| {
            if needed == given { Ok(()) } else { Err(Error::Count(needed, given)) }
        };
        count(self.data, data)?;
        count(self.parity, parity)
    }

    /// Any unit as a sum of data units.
    fn row(&self, unit: usize) -> Result<[u8; MOST_DATA], Error> {
        let mut row = [0; MOST_DATA];
        if unit >= self.data + self.parity {
            return Err(Error::NoUnit(unit));
        }
        for (j, (place, column)) in row.iter_mut().zip(&self.columns).enumerate() {
            *place = match unit.checked_sub(self.data) {
                Some(parity) => column.get(parity).copied().unwrap_or(0),
                None => u8::from(unit == j),
            };
        }
        Ok(row)
    }
}

//! Lost units as sums of those that are there: the inverse of a matrix of up to 16 by 16.

use super::tables::{inverse, product};
use super::{Code, Column, Error, Field, MOST_DATA, MOST_PARITY};

type Row = [u8; MOST_DATA];

/// How to compute lost units of k others; made once for many packets.
#[derive(Clone, Copy, Debug)]
pub struct Repair {
    field: Field,
    /// Units that it takes, and units that it makes.
    sources: usize,
    lost: usize,
    /// Of each source the coefficient for each lost unit.
    columns: [Column; MOST_DATA],
}

impl Repair {
    pub(super) fn new(code: &Code, present: &[usize], lost: &[usize]) -> Result<Repair, Error> {
        let Some(present) = present.get(..code.data) else {
            return Err(Error::Count(code.data, present.len()));
        };
        if lost.len() > code.parity {
            return Err(Error::Lost(lost.len(), code.parity));
        }
        let mut sources = [[0; MOST_DATA]; MOST_DATA];
        for (source, unit) in sources.iter_mut().zip(present) {
            *source = code.row(*unit)?;
        }
        let sources = sources.get_mut(..code.data).unwrap_or_default();
        // Any k different rows of the code are independent.
        let inverse = inverted(sources).ok_or(Error::Twice)?;
        let mut columns = [[0; MOST_PARITY]; MOST_DATA];
        for (n, unit) in lost.iter().enumerate() {
            // The unit is a sum of data units, and each of those one of sources.
            let mut row = [0; MOST_DATA];
            for (coefficient, data) in code.row(*unit)?.into_iter().zip(&inverse) {
                add(&mut row, coefficient, data);
            }
            for (column, coefficient) in columns.iter_mut().zip(row) {
                column.get_mut(n).into_iter().for_each(|place| *place = coefficient);
            }
        }
        Ok(Repair { field: code.field, sources: code.data, lost: lost.len(), columns })
    }

    /// Computes the lost units, or the same bytes of each. `present` are the first k that
    /// [`Code::repair`] was told of, in that order, and `lost` those that it was asked for.
    ///
    /// # Errors
    /// Units are missing or too many, or of different lengths.
    pub fn run(&self, present: &[&[u8]], lost: &mut [&mut [u8]]) -> Result<(), Error> {
        if present.len() != self.sources {
            return Err(Error::Count(self.sources, present.len()));
        }
        if lost.len() != self.lost {
            return Err(Error::Count(self.lost, lost.len()));
        }
        self.field.combine(&self.columns, present, lost, false)
    }
}

/// The inverse of a square matrix (Gauss and Jordan); `None` if it has none. The matrix becomes
/// the identity.
fn inverted(matrix: &mut [Row]) -> Option<[Row; MOST_DATA]> {
    let mut result = [[0; MOST_DATA]; MOST_DATA];
    for (n, row) in result.iter_mut().enumerate() {
        row.get_mut(n).into_iter().for_each(|place| *place = 1);
    }
    for at in 0..matrix.len() {
        let pivot = at + matrix.get(at..)?.iter().position(|row| row.get(at) != Some(&0))?;
        matrix.swap(at, pivot);
        result.swap(at, pivot);
        let scale = inverse(*matrix.get(at)?.get(at)?);
        let (row, of_result) = (scaled(matrix.get(at)?, scale), scaled(result.get(at)?, scale));
        for (n, (other, of_other)) in matrix.iter_mut().zip(&mut result).enumerate() {
            if n == at {
                (*other, *of_other) = (row, of_result);
                continue;
            }
            let times = *other.get(at)?;
            add(other, times, &row);
            add(of_other, times, &of_result);
        }
    }
    Some(result)
}

fn scaled(row: &Row, by: u8) -> Row {
    row.map(|byte| product(by, byte))
}

/// Adds `times` the other row.
fn add(row: &mut Row, times: u8, other: &Row) {
    row.iter_mut().zip(other).for_each(|(to, byte)| *to ^= product(times, *byte));
}

//! The ways to compute in GF(2^8): by tables on any processor, by shuffles where it has them.
//!
//! All give the same bytes for every length and alignment. None allocates, and the time each takes
//! depends on lengths alone (by tables also on what lies in the processor's cache).

use super::{Column, Error, MOST_PARITY, simd, tables};

/// A way to multiply bytes. One that the processor does not have computes by tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// 256 products a coefficient, looked up byte by byte, as the paper's handlers do.
    Tables,
    /// 16 bytes at a time.
    Ssse3,
    /// 32 bytes at a time.
    Avx2,
    /// 64 bytes at a time.
    Avx512,
}

impl Field {
    /// Slowest first.
    pub(super) const ALL: [Field; 4] = [Field::Tables, Field::Ssse3, Field::Avx2, Field::Avx512];

    /// Those that this processor has, the fastest last.
    pub fn here() -> impl DoubleEndedIterator<Item = Field> {
        Field::ALL.into_iter().filter(|field| *field == Field::Tables || simd::has(*field))
    }

    /// The fastest of those.
    #[must_use]
    pub fn fastest() -> Field {
        Field::here().next_back().unwrap_or(Field::Tables)
    }

    /// Its name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Field::Tables => "tables",
            Field::Ssse3 => "SSSE3",
            Field::Avx2 => "AVX2",
            Field::Avx512 => "AVX-512",
        }
    }

    /// Each part becomes `packet` times its coefficient: intermediate parities (NetDFS VI B 2).
    ///
    /// # Errors
    /// There are more than [`MOST_PARITY`] coefficients, or another number of parts; or lengths
    /// differ.
    pub fn multiply(
        self,
        coefficients: &[u8],
        packet: &[u8],
        parts: &mut [&mut [u8]],
    ) -> Result<(), Error> {
        self.combine(&[column(coefficients, parts.len())?], &[packet], parts, false)
    }

    /// The same, added to what each of `sums` was.
    ///
    /// # Errors
    /// See [`Field::multiply`].
    pub fn multiply_add(
        self,
        coefficients: &[u8],
        packet: &[u8],
        sums: &mut [&mut [u8]],
    ) -> Result<(), Error> {
        self.combine(&[column(coefficients, sums.len())?], &[packet], sums, true)
    }

    /// Each part becomes the difference of `old` and `new` times its coefficient: what a parity
    /// adds to itself when data is overwritten.
    ///
    /// # Errors
    /// See [`Field::multiply`].
    pub fn multiply_difference(
        self,
        coefficients: &[u8],
        old: &[u8],
        new: &[u8],
        parts: &mut [&mut [u8]],
    ) -> Result<(), Error> {
        self.combine(&[column(coefficients, parts.len())?; 2], &[old, new], parts, false)
    }

    /// Each out becomes the sum of the sources, each times its coefficient for that out; if `keep`,
    /// that is added to what the out was.
    pub(super) fn combine(
        self,
        columns: &[Column],
        sources: &[&[u8]],
        outs: &mut [&mut [u8]],
        keep: bool,
    ) -> Result<(), Error> {
        same_length(sources.iter().copied().chain(outs.iter().map(|out| &**out)))?;
        self.combine_exactly::<1>(columns, sources, outs, keep);
        self.combine_exactly::<2>(columns, sources, outs, keep);
        self.combine_exactly::<3>(columns, sources, outs, keep);
        self.combine_exactly::<MOST_PARITY>(columns, sources, outs, keep);
        Ok(())
    }

    /// The same for exactly `M` outs, nothing for another number: sums stay in registers.
    fn combine_exactly<const M: usize>(
        self,
        columns: &[Column],
        sources: &[&[u8]],
        outs: &mut [&mut [u8]],
        keep: bool,
    ) {
        if let Ok(outs) = <&mut [&mut [u8]; M]>::try_from(outs) {
            let done = simd::combine(self, columns, sources, outs, keep);
            tables::combine(columns, sources, outs, keep, done);
        }
    }
}

/// Adds a part to a sum, which is XOR: what a parity node does (NetDFS VI B 3).
///
/// # Errors
/// The two differ in length.
pub fn add(part: &[u8], sum: &mut [u8]) -> Result<(), Error> {
    same_length([part, &*sum].into_iter())?;
    sum.iter_mut().zip(part).for_each(|(to, byte)| *to ^= byte);
    Ok(())
}

fn column(coefficients: &[u8], outs: usize) -> Result<Column, Error> {
    let mut column = [0; MOST_PARITY];
    if coefficients.len() != outs || outs > column.len() {
        return Err(Error::Count(coefficients.len().min(column.len()), outs));
    }
    column.iter_mut().zip(coefficients).for_each(|(to, from)| *to = *from);
    Ok(column)
}

/// The length of all of them.
pub(super) fn same_length<'a>(all: impl Iterator<Item = &'a [u8]>) -> Result<usize, Error> {
    let mut lens = all.map(<[u8]>::len);
    let first = lens.next().unwrap_or(0);
    if lens.all(|len| len == first) { Ok(first) } else { Err(Error::Lengths) }
}

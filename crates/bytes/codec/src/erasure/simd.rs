//! Products by shuffles: a byte is looked up by halves, 16 to 64 of them at once.
//!
//! A shuffle looks up each byte of a vector, of which four bits count, in 16 entries: the products
//! of the low halves, and those of the high ones. A source is loaded once for all
//! outs, whose sums stay in registers until all sources have been added.
//!
//! Unsafe are two things alone: loads and stores through pointers, within the shortest of the
//! buffers, whose length is taken first; and running code that was compiled for more than every
//! processor has, which the processor is asked for each time (a load and a test).

use super::{Column, Field};

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512, ssse3};

/// Whether the processor has it.
pub(super) fn has(field: Field) -> bool {
    #[cfg(target_arch = "x86_64")]
    match field {
        Field::Tables => false,
        Field::Ssse3 => ssse3::is_here(),
        Field::Avx2 => avx2::is_here(),
        Field::Avx512 => avx512::is_here(),
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = field;
        false
    }
}

/// Sums of products, added to the outs if `keep`: of how many bytes it was done, from the first on,
/// which are whole vectors of them; none by tables.
pub(super) fn combine<const M: usize>(
    field: Field,
    columns: &[Column],
    sources: &[&[u8]],
    outs: &mut [&mut [u8]; M],
    keep: bool,
) -> usize {
    #[cfg(target_arch = "x86_64")]
    match field {
        Field::Tables => 0,
        Field::Ssse3 => ssse3::combine(columns, sources, outs, keep),
        Field::Avx2 => avx2::combine(columns, sources, outs, keep),
        Field::Avx512 => avx512::combine(columns, sources, outs, keep),
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (field, columns, sources, outs, keep);
        0
    }
}

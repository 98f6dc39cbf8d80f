//! The vectors of x86-64, and what they share, which is compiled for each by itself.

use super::super::tables::products;

/// Of each coefficient, the products with 0x00 to 0x0f and those with 0x00, 0x10 to 0xf0: a byte is
/// the sum of its halves, and so its product is the sum of two entries.
static HALVES: [[[u8; 16]; 2]; 256] = halves();

const fn halves() -> [[[u8; 16]; 2]; 256] {
    let all = products();
    let mut halves = [[[0; 16]; 2]; 256];
    let mut a = 0;
    while a < 256 {
        let mut half = 0;
        while half < 16 {
            halves[a][0][half] = all[a][half];
            halves[a][1][half] = all[a][half << 4];
            half += 1;
        }
        a += 1;
    }
    halves
}

/// Makes `is_here` and `combine` of a vector's few verbs.
macro_rules! kernel {
    (
        $feature:tt, $vector:ty,
        zero: $zero:ident, load: $load:ident, store: $store:ident, repeat: $repeat:path,
        fill: $fill:ident, and: $and:ident, shift: $shift:ident, look_up: $look_up:ident,
        add: $add:ident,
    ) => {
        use super::HALVES;
        use crate::erasure::Column;

        const WIDTH: usize = size_of::<$vector>();

        /// Whether the processor has it.
        pub(in super::super) fn is_here() -> bool {
            std::arch::is_x86_feature_detected!($feature)
        }

        /// See `simd::combine`.
        pub(in super::super) fn combine<const M: usize>(
            columns: &[Column],
            sources: &[&[u8]],
            outs: &mut [&mut [u8]; M],
            keep: bool,
        ) -> usize {
            if !is_here() {
                return 0;
            }
            // SAFETY: the processor has what it was compiled for.
            unsafe { vectors(columns, sources, outs, keep) }
        }

        /// All whole vectors. The entries of a single source stay in registers for all of them.
        #[target_feature(enable = $feature)]
        fn vectors<const M: usize>(
            columns: &[Column],
            sources: &[&[u8]],
            outs: &mut [&mut [u8]; M],
            keep: bool,
        ) -> usize {
            let lens = outs.iter().map(|out| out.len());
            let len = lens.chain(sources.iter().map(|source| source.len())).min().unwrap_or(0);
            if let ([column], [_]) = (columns, sources) {
                let entries = entries::<M>(column);
                // SAFETY: no source and no out is shorter than `len`.
                return unsafe { steps(columns, sources, outs, keep, len, |_| entries) };
            }
            // SAFETY: as above.
            unsafe { steps(columns, sources, outs, keep, len, |column| entries(column)) }
        }

        /// All whole vectors of `len` bytes, two at a time: coefficients are fetched half as
        /// often, and the sums of four outs still fit in 16 registers.
        ///
        /// # Safety
        /// No source and no out is shorter than `len`.
        #[target_feature(enable = $feature)]
        #[inline]
        unsafe fn steps<const M: usize>(
            columns: &[Column],
            sources: &[&[u8]],
            outs: &mut [&mut [u8]; M],
            keep: bool,
            len: usize,
            entries: impl Fn(&Column) -> [[$vector; 2]; M] + Copy,
        ) -> usize {
            let mut at = 0;
            while len - at >= 2 * WIDTH {
                // SAFETY: two vectors lie before `len`.
                unsafe { step::<M, 2>(columns, sources, outs, keep, at, entries) };
                at += 2 * WIDTH;
            }
            if len - at >= WIDTH {
                // SAFETY: one does.
                unsafe { step::<M, 1>(columns, sources, outs, keep, at, entries) };
                at += WIDTH;
            }
            at
        }

        /// `N` vectors of each out.
        ///
        /// # Safety
        /// No source and no out is shorter than `at + N * WIDTH`.
        #[target_feature(enable = $feature)]
        #[inline]
        unsafe fn step<const M: usize, const N: usize>(
            columns: &[Column],
            sources: &[&[u8]],
            outs: &mut [&mut [u8]; M],
            keep: bool,
            at: usize,
            entries: impl Fn(&Column) -> [[$vector; 2]; M],
        ) {
            let mut sums = [[$zero(); N]; M];
            if keep {
                for (sum, out) in sums.iter_mut().zip(outs.iter()) {
                    // SAFETY: the out is long enough, as the caller says.
                    *sum = unsafe { get(out, at) };
                }
            }
            for (source, column) in sources.iter().zip(columns) {
                // SAFETY: the source is long enough, as the caller says.
                let parts = split(unsafe { get::<N>(source, at) });
                for (sum, [low, high]) in sums.iter_mut().zip(entries(column)) {
                    for (sum, part) in sum.iter_mut().zip(&parts) {
                        let product = $add($look_up(low, part.0), $look_up(high, part.1));
                        *sum = $add(*sum, product);
                    }
                }
            }
            for (sum, out) in sums.into_iter().zip(outs.iter_mut()) {
                // SAFETY: the out is long enough, as the caller says.
                unsafe { put(out, at, sum) };
            }
        }

        /// The low and the high half of each byte.
        #[target_feature(enable = $feature)]
        #[inline]
        fn split<const N: usize>(vectors: [$vector; N]) -> [($vector, $vector); N] {
            let low = $fill(0x0f);
            let mut parts = [($zero(), $zero()); N];
            for (part, vector) in parts.iter_mut().zip(vectors) {
                *part = ($and(vector, low), $and($shift::<4>(vector), low));
            }
            parts
        }

        /// What halves of bytes are looked up in, for each out.
        #[target_feature(enable = $feature)]
        #[inline]
        fn entries<const M: usize>(column: &Column) -> [[$vector; 2]; M] {
            let mut all = [[$zero(); 2]; M];
            for (entries, coefficient) in all.iter_mut().zip(column) {
                let [low, high] = &HALVES[usize::from(*coefficient)];
                *entries = [table(low), table(high)];
            }
            all
        }

        /// The 16 entries, in each 16 bytes of the vector.
        #[target_feature(enable = $feature)]
        #[inline]
        fn table(entries: &[u8; 16]) -> $vector {
            // SAFETY: the array is as large as what is loaded, which needs no alignment.
            $repeat(unsafe { _mm_loadu_si128(entries.as_ptr().cast()) })
        }

        /// # Safety
        /// `bytes` is no shorter than `at + N * WIDTH`.
        #[target_feature(enable = $feature)]
        #[inline]
        unsafe fn get<const N: usize>(bytes: &[u8], at: usize) -> [$vector; N] {
            let mut vectors = [$zero(); N];
            for (n, vector) in vectors.iter_mut().enumerate() {
                // SAFETY: vector `n` lies within, as the caller says; it needs no alignment.
                *vector = unsafe { $load(bytes.as_ptr().add(at + n * WIDTH).cast()) };
            }
            vectors
        }

        /// # Safety
        /// `bytes` is no shorter than `at + N * WIDTH`.
        #[target_feature(enable = $feature)]
        #[inline]
        unsafe fn put<const N: usize>(bytes: &mut [u8], at: usize, vectors: [$vector; N]) {
            for (n, vector) in vectors.into_iter().enumerate() {
                // SAFETY: vector `n` lies within, as the caller says; it needs no alignment.
                unsafe { $store(bytes.as_mut_ptr().add(at + n * WIDTH).cast(), vector) };
            }
        }
    };
}

/// 16 bytes at a time.
pub(super) mod ssse3 {
    use std::arch::x86_64::*;

    kernel! {
        "ssse3", __m128i,
        zero: _mm_setzero_si128, load: _mm_loadu_si128, store: _mm_storeu_si128,
        repeat: std::convert::identity,
        fill: _mm_set1_epi8, and: _mm_and_si128, shift: _mm_srli_epi16,
        look_up: _mm_shuffle_epi8, add: _mm_xor_si128,
    }
}

/// 32 bytes at a time.
pub(super) mod avx2 {
    use std::arch::x86_64::*;

    kernel! {
        "avx2", __m256i,
        zero: _mm256_setzero_si256, load: _mm256_loadu_si256, store: _mm256_storeu_si256,
        repeat: _mm256_broadcastsi128_si256,
        fill: _mm256_set1_epi8, and: _mm256_and_si256, shift: _mm256_srli_epi16,
        look_up: _mm256_shuffle_epi8, add: _mm256_xor_si256,
    }
}

/// 64 bytes at a time.
pub(super) mod avx512 {
    use std::arch::x86_64::*;

    kernel! {
        "avx512bw", __m512i,
        zero: _mm512_setzero_si512, load: _mm512_loadu_si512, store: _mm512_storeu_si512,
        repeat: _mm512_broadcast_i32x4,
        fill: _mm512_set1_epi8, and: _mm512_and_si512, shift: _mm512_srli_epi16,
        look_up: _mm512_shuffle_epi8, add: _mm512_xor_si512,
    }
}

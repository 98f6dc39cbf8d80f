//! GF(2^8) by tables: all products, in 64 KiB that the compiler computes (NetDFS VI B 2).
//!
//! A byte is a polynomial over GF(2), its bit i the coefficient of x^i; products are taken modulo
//! x^8 + x^4 + x^3 + x^2 + 1, which is 0x11d. Sum and difference are XOR.

use super::Column;

/// 0x11d without x^8, which is what x^8 comes to.
const OVERFLOW: u8 = 0x1d;

/// Of each coefficient, the product with each byte.
static PRODUCTS: [[u8; 256]; 256] = products();

/// The product of two.
pub(super) fn product(a: u8, b: u8) -> u8 {
    PRODUCTS[usize::from(a)][usize::from(b)]
}

/// What gives 1 when it is multiplied by `a`; 0 for 0, which has none.
pub(super) fn inverse(a: u8) -> u8 {
    (1..=u8::MAX).find(|b| product(a, *b) == 1).unwrap_or(0)
}

/// Of each byte from `from` on: the sums of the sources' products, added to the outs if `keep`.
pub(super) fn combine<const M: usize>(
    columns: &[Column],
    sources: &[&[u8]],
    outs: &mut [&mut [u8]; M],
    keep: bool,
    from: usize,
) {
    for (row, out) in outs.iter_mut().enumerate() {
        let out = out.get_mut(from..).unwrap_or_default();
        if !keep {
            out.fill(0);
        }
        for (source, column) in sources.iter().zip(columns) {
            let coefficient = column.get(row).copied().unwrap_or(0);
            let products = &PRODUCTS[usize::from(coefficient)];
            let source = source.get(from..).unwrap_or_default();
            for (to, byte) in out.iter_mut().zip(source) {
                *to ^= products[usize::from(*byte)];
            }
        }
    }
}

pub(super) const fn products() -> [[u8; 256]; 256] {
    let mut all = [[0; 256]; 256];
    let mut a = 0_usize;
    while a < 256 {
        let [low, ..] = a.to_le_bytes();
        // a * b is twice a * (b / 2), and a more if b is odd.
        let mut b = 1;
        while b < 256 {
            let half: u8 = all[a][b / 2];
            let twice = half << 1 ^ if half & 0x80 == 0 { 0 } else { OVERFLOW };
            all[a][b] = twice ^ if b % 2 == 0 { 0 } else { low };
            b += 1;
        }
        a += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::tests::schoolbook;
    use super::*;

    #[test]
    fn every_product_is_that_of_the_schoolbook() {
        for a in 0..=u8::MAX {
            for b in 0..=u8::MAX {
                assert_eq!(product(a, b), schoolbook(a, b), "{a} * {b}");
            }
        }
    }

    #[test]
    fn all_but_zero_have_an_inverse() {
        assert_eq!(inverse(0), 0);
        assert!((1..=u8::MAX).all(|a| schoolbook(a, inverse(a)) == 1));
    }
}

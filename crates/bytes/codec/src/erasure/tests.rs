//! The code against a naive one, and every way to compute against each other.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// Longer than two vectors of every kind, by one.
const LONG: usize = 130;

/// The product as it is done by hand: add the shifted polynomials, then divide by 0x11d.
pub(super) fn schoolbook(a: u8, b: u8) -> u8 {
    let mut product = 0_u16;
    for bit in 0..8 {
        if b >> bit & 1 == 1 {
            product ^= u16::from(a) << bit;
        }
    }
    for bit in (8..15).rev() {
        if product >> bit & 1 == 1 {
            product ^= 0x11d << (bit - 8);
        }
    }
    u8::try_from(product).unwrap()
}

/// A coefficient as the Cauchy matrix has it: what times (k + r) XOR j is 1.
fn by_hand(k: usize, r: usize, j: usize) -> u8 {
    let of = u8::try_from((k + r) ^ j).unwrap();
    (1..=255).find(|c| schoolbook(*c, of) == 1).unwrap()
}

fn parity_by_hand(data: &[Vec<u8>], m: usize) -> Vec<Vec<u8>> {
    let (k, len) = (data.len(), data[0].len());
    let of = |r: usize| {
        let row: Vec<u8> = (0..k).map(|j| by_hand(k, r, j)).collect();
        let byte =
            |i: usize| row.iter().zip(data).fold(0, |sum, (c, unit)| sum ^ schoolbook(*c, unit[i]));
        (0..len).map(byte).collect()
    };
    (0..m).map(of).collect()
}

/// Bytes that look random and depend on the seed alone.
fn noise(seed: usize, len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed as u64 + 1);
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    };
    (0..len).map(next).collect()
}

fn stripe(k: usize, len: usize) -> Vec<Vec<u8>> {
    (0..k).map(|j| noise(j + len, len)).collect()
}

fn refs(units: &[Vec<u8>]) -> Vec<&[u8]> {
    units.iter().map(Vec::as_slice).collect()
}

fn muts(units: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    units.iter_mut().map(Vec::as_mut_slice).collect()
}

/// The parities, over bytes that were something else before.
fn encoded(code: &Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0xEE; data[0].len()]; code.parity];
    code.encode(&refs(data), &mut muts(&mut parity)).unwrap();
    parity
}

fn all_codes() -> impl Iterator<Item = (usize, usize)> {
    (1..=MOST_DATA).flat_map(|k| (1..=MOST_PARITY).map(move |m| (k, m)))
}

#[test]
fn tables_are_everywhere_and_the_fastest_is_here() {
    assert_eq!(Field::here().next(), Some(Field::Tables));
    assert!(Field::here().any(|field| field == Field::fastest()));
    // What the processor lacks is computed all the same.
    for field in Field::ALL {
        let mut out = [0; 3];
        field.multiply(&[2], &[1, 0x80, 0], &mut [&mut out]).unwrap();
        assert_eq!(out, [2, 0x1d, 0], "{}", field.name());
    }
}

#[test]
fn every_way_multiplies_every_byte_by_every_coefficient() {
    let bytes: Vec<u8> = (0..=u8::MAX).collect();
    for (a, field) in (0..=u8::MAX).flat_map(|a| Field::here().map(move |field| (a, field))) {
        let expected: Vec<u8> = bytes.iter().map(|b| schoolbook(a, *b)).collect();
        let mut out = [0; 256];
        field.multiply(&[a], &bytes, &mut [&mut out]).unwrap();
        assert_eq!(out, *expected, "{field:?}, {a}");
    }
}

/// Every length to beyond two vectors, at every offset that alignment could see.
#[test]
fn every_way_gives_the_same_bytes_at_every_length() {
    for len in 0..=LONG {
        let (k, m, shift) = (1 + len % MOST_DATA, 1 + len % MOST_PARITY, len % 67);
        let space = stripe(k, shift + len);
        let data: Vec<Vec<u8>> = space.iter().map(|unit| unit[shift..].to_vec()).collect();
        let expected = parity_by_hand(&data, m);
        for field in Field::here() {
            let code = Code::new(field, k, m).unwrap();
            let views: Vec<&[u8]> = space.iter().map(|unit| &unit[shift..]).collect();
            let mut places = vec![vec![0xEE; shift + 1 + len + 1]; m];
            let mut outs: Vec<&mut [u8]> =
                places.iter_mut().map(|place| &mut place[shift + 1..][..len]).collect();
            code.encode(&views, &mut outs).unwrap();
            for (place, expected) in places.iter().zip(&expected) {
                assert_eq!(&place[shift + 1..][..len], expected, "{field:?} {k}+{m}, {len}");
                let around = place[..=shift].iter().chain(place.last());
                assert!(around.eq(vec![&0xEE; shift + 2]), "{field:?} wrote beside, {len}");
            }
        }
    }
}

#[test]
fn every_code_is_that_by_hand() {
    for (k, m) in all_codes() {
        let data = stripe(k, 21);
        let expected = parity_by_hand(&data, m);
        for field in Field::here() {
            let code = Code::new(field, k, m).unwrap();
            assert_eq!(encoded(&code, &data), expected, "{field:?} {k}+{m}");
            for j in 0..k {
                let column: Vec<u8> = (0..m).map(|r| by_hand(k, r, j)).collect();
                assert_eq!(code.coefficients(j), Ok(&*column));
            }
            assert_eq!(code.coefficients(k), Err(Error::NoUnit(k)));
        }
    }
}

/// What ISA-L computed; the top of the file says how it was made.
#[test]
fn it_is_isa_l() {
    let mut lines = include_str!("golden.txt").lines().filter(|line| !line.starts_with('#'));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for (k, m) in all_codes() {
        // The same generator as in `isal.c`: unit j begins where j - 1 ended.
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        let data: Vec<Vec<u8>> = (0..k).map(|_| (0..19).map(|_| next()).collect()).collect();
        for field in Field::here() {
            let parity = encoded(&Code::new(field, k, m).unwrap(), &data);
            assert_eq!(parity, parity_by_hand(&data, m));
        }
        let code = Code::new(Field::fastest(), k, m).unwrap();
        assert_eq!(lines.next(), Some(format!("{k}+{m}").as_str()));
        for (r, parity) in encoded(&code, &data).iter().enumerate() {
            let row: Vec<u8> = (0..k).map(|j| code.coefficients(j).unwrap()[r]).collect();
            let expected = format!("{} {}", hex(&row), hex(parity));
            assert_eq!(lines.next(), Some(expected.as_str()), "{k}+{m}, parity {r}");
        }
    }
    assert_eq!(lines.next(), None);
}

/// Loses `lost`, and computes it of the first k others from `from` on, in a turned order.
fn lose_and_repair(code: &Code, units: &[Vec<u8>], lost: &[usize], turn: usize) {
    let mut present: Vec<usize> = (0..units.len()).filter(|n| !lost.contains(n)).collect();
    let len = present.len();
    present.rotate_left(turn % len);
    let repair = code.repair(&present, lost).unwrap();
    let sources: Vec<&[u8]> =
        present.iter().take(code.data).map(|n| units[*n].as_slice()).collect();
    let mut back = vec![vec![0xEE; units[0].len()]; lost.len()];
    repair.run(&sources, &mut muts(&mut back)).unwrap();
    for (n, back) in lost.iter().zip(back) {
        assert_eq!(back, units[*n], "{code:?} lost {lost:?} of {present:?}");
    }
}

/// All losses that a code bears, of all codes: that every square of the matrix has an inverse is
/// tried, not only known.
#[test]
fn every_loss_is_repaired() {
    for (k, m) in all_codes() {
        let code = Code::new(Field::fastest(), k, m).unwrap();
        let mut units = stripe(k, 5);
        units.extend(encoded(&code, &units));
        for losses in 0..1_u32 << (k + m) {
            if losses.count_ones() as usize <= m {
                let lost: Vec<usize> = (0..k + m).filter(|n| losses >> n & 1 == 1).collect();
                lose_and_repair(&code, &units, &lost, usize::try_from(losses).unwrap());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_loss_is_repaired_by_every_way(
        k in 1..=MOST_DATA,
        m in 1..=MOST_PARITY,
        len in 0..600_usize,
        losses in proptest::collection::vec(any::<Index>(), 0..=MOST_PARITY),
        turn in 0..20_usize,
    ) {
        let mut lost: Vec<usize> = losses.iter().map(|n| n.index(k + m)).collect();
        lost.sort_unstable();
        lost.dedup();
        lost.truncate(m);
        lost.reverse();
        let data = stripe(k, len);
        for field in Field::here() {
            let code = Code::new(field, k, m).unwrap();
            let units = [data.clone(), encoded(&code, &data)].concat();
            lose_and_repair(&code, &units, &lost, turn);
        }
    }

    /// Whatever is asked for is answered, and refused just where it makes no sense.
    #[test]
    fn any_repair_is_made_or_refused(
        k in 1..=MOST_DATA,
        m in 1..=MOST_PARITY,
        present in proptest::collection::vec(0..22_usize, 0..22),
        lost in proptest::collection::vec(0..22_usize, 0..6),
    ) {
        let mut used = present.clone();
        used.truncate(k);
        used.sort_unstable();
        used.dedup();
        let exist = used.iter().chain(&lost).all(|unit| *unit < k + m);
        let code = Code::new(Field::Tables, k, m).unwrap();
        let made = code.repair(&present, &lost).is_ok();
        prop_assert_eq!(made, used.len() == k && lost.len() <= m && exist);
    }

    /// The streaming policy's way: packets of all data units, in any order, each multiplied by
    /// itself and added up, give what the whole stripe gives.
    #[test]
    fn sums_of_intermediate_parities_are_the_parity(
        k in 1..=MOST_DATA,
        m in 1..=MOST_PARITY,
        len in 1..700_usize,
        packet in 1..300_usize,
        order in any::<u64>(),
    ) {
        let data = stripe(k, len);
        for field in Field::here() {
            let code = Code::new(field, k, m).unwrap();
            let mut packets: Vec<(usize, usize)> =
                (0..k).flat_map(|j| (0..len).step_by(packet).map(move |at| (j, at))).collect();
            packets.sort_by_key(|(j, at)| order.wrapping_mul((j * len + at) as u64 | 1));
            let mut sums = vec![vec![0; len]; m];
            let mut direct = vec![vec![0; len]; m];
            for (j, at) in packets {
                let end = len.min(at + packet);
                let (coefficients, packet) = (code.coefficients(j).unwrap(), &data[j][at..end]);
                let mut parts = vec![vec![0xEE; end - at]; m];
                field.multiply(coefficients, packet, &mut muts(&mut parts)).unwrap();
                for (part, sum) in parts.iter().zip(&mut sums) {
                    add(part, &mut sum[at..end]).unwrap();
                }
                let mut places: Vec<&mut [u8]> =
                    direct.iter_mut().map(|sum| &mut sum[at..end]).collect();
                field.multiply_add(coefficients, packet, &mut places).unwrap();
            }
            let expected = encoded(&code, &data);
            prop_assert_eq!(&sums, &expected);
            prop_assert_eq!(&direct, &expected);
        }
    }

    /// An overwrite of some bytes of one unit, told to the parities as a difference.
    #[test]
    fn a_difference_updates_each_parity(
        k in 1..=MOST_DATA,
        m in 1..=MOST_PARITY,
        len in 1..400_usize,
        unit in any::<Index>(),
        range in any::<(Index, Index)>(),
    ) {
        let (unit, ends) = (unit.index(k), [range.0.index(len + 1), range.1.index(len + 1)]);
        let range = ends[0].min(ends[1])..ends[0].max(ends[1]);
        for field in Field::here() {
            let code = Code::new(field, k, m).unwrap();
            let mut data = stripe(k, len);
            let mut parity = encoded(&code, &data);
            let new = noise(1000, range.len());
            let coefficients = code.coefficients(unit).unwrap();
            let mut parts = vec![vec![0xEE; range.len()]; m];
            let old = &data[unit][range.clone()];
            let outs = &mut muts(&mut parts);
            field.multiply_difference(coefficients, old, &new, outs).unwrap();
            for (part, parity) in parts.iter().zip(&mut parity) {
                add(part, &mut parity[range.clone()]).unwrap();
            }
            data[unit][range.clone()].copy_from_slice(&new);
            prop_assert_eq!(&parity, &encoded(&code, &data));
            prop_assert!(code.is_stripe(&refs(&data), &refs(&parity)).unwrap());
        }
    }

    #[test]
    fn one_wrong_bit_is_no_stripe(
        k in 1..=MOST_DATA,
        m in 1..=MOST_PARITY,
        len in 1..1200_usize,
        at in any::<(Index, Index)>(),
        bit in 0..8_u8,
    ) {
        let code = Code::new(Field::fastest(), k, m).unwrap();
        let mut data = stripe(k, len);
        let mut parity = encoded(&code, &data);
        prop_assert!(code.is_stripe(&refs(&data), &refs(&parity)).unwrap());
        let unit = at.0.index(k + m);
        let bytes = if unit < k { &mut data[unit] } else { &mut parity[unit - k] };
        bytes[at.1.index(len)] ^= 1 << bit;
        prop_assert!(!code.is_stripe(&refs(&data), &refs(&parity)).unwrap());
    }
}

#[test]
fn a_code_of_other_widths_is_refused() {
    for (k, m) in [(0, 1), (1, 0), (0, 0), (17, 1), (16, 5), (usize::MAX, 4), (4, usize::MAX)] {
        assert_eq!(Code::new(Field::Tables, k, m).unwrap_err(), Error::Width(k, m));
    }
    let text = Error::Width(17, 5).to_string();
    assert_eq!(text, "no erasure code of 17+5 units: data takes 1 to 16, parity 1 to 4");
}

/// And nothing is written.
#[test]
fn other_numbers_and_lengths_are_refused() {
    for field in Field::here() {
        let code = Code::new(field, 2, 2).unwrap();
        let (a, b) = ([1; 70], [2; 71]);
        let mut out = [[0xEE; 70]; 3];
        let [p, q, r] = out.each_mut().map(|out| &mut out[..]);
        assert_eq!(code.encode(&[&a, &b], &mut [p, q]), Err(Error::Lengths));
        assert_eq!(code.encode(&[&b, &b], &mut [p, q]), Err(Error::Lengths));
        assert_eq!(code.encode(&[&a, &a], &mut [p, &mut q[1..]]), Err(Error::Lengths));
        assert_eq!(code.encode(&[&a], &mut [p, q]), Err(Error::Count(2, 1)));
        assert_eq!(code.encode(&[], &mut []), Err(Error::Count(2, 0)));
        assert_eq!(code.encode(&[&a, &a, &a], &mut [p, q]), Err(Error::Count(2, 3)));
        assert_eq!(code.encode(&[&a, &a], &mut [p, q, r]), Err(Error::Count(2, 3)));
        assert_eq!(code.is_stripe(&[&a, &b], &[&a, &a]), Err(Error::Lengths));
        assert_eq!(code.is_stripe(&[&a, &a], &[&a, &b]), Err(Error::Lengths));
        assert_eq!(code.is_stripe(&[&a, &a], &[&a]), Err(Error::Count(2, 1)));
        assert_eq!(code.is_stripe(&[&[], &[]], &[&[], &[]]), Ok(true));
        assert_eq!(field.multiply(&[3], &b, &mut [p]), Err(Error::Lengths));
        assert_eq!(field.multiply(&[3, 4], &a, &mut [p]), Err(Error::Count(2, 1)));
        assert_eq!(field.multiply(&[3], &a, &mut [p, q]), Err(Error::Count(1, 2)));
        let mut five = [[0xEE; 70]; 5];
        let mut outs = five.each_mut().map(|out| &mut out[..]);
        assert_eq!(field.multiply(&[3; 5], &a, &mut outs), Err(Error::Count(4, 5)));
        assert_eq!(field.multiply(&[], &a, &mut []), Ok(()));
        assert_eq!(five, [[0xEE; 70]; 5]);
        assert_eq!(field.multiply_add(&[3], &b, &mut [p]), Err(Error::Lengths));
        assert_eq!(field.multiply_difference(&[3], &a, &b, &mut [p]), Err(Error::Lengths));
        assert_eq!(add(&a, &mut p[1..]), Err(Error::Lengths));
        let repair = code.repair(&[2, 1], &[0]).unwrap();
        assert_eq!(repair.run(&[&a, &b], &mut [p]), Err(Error::Lengths));
        assert_eq!(repair.run(&[&a], &mut [p]), Err(Error::Count(2, 1)));
        assert_eq!(repair.run(&[&a, &a], &mut [p, q]), Err(Error::Count(1, 2)));
        assert_eq!(out, [[0xEE; 70]; 3]);
    }
}

#[test]
fn a_repair_that_cannot_be_is_refused() {
    let code = Code::new(Field::fastest(), 3, 2).unwrap();
    let refused = |present: &[usize], lost: &[usize]| code.repair(present, lost).unwrap_err();
    assert_eq!(refused(&[0, 4], &[1]), Error::Count(3, 2));
    assert_eq!(refused(&[], &[]), Error::Count(3, 0));
    assert_eq!(refused(&[0, 1, 2], &[3, 4, 3]), Error::Lost(3, 2));
    assert_eq!(refused(&[0, 1, 5], &[2]), Error::NoUnit(5));
    assert_eq!(refused(&[0, 1, usize::MAX], &[2]), Error::NoUnit(usize::MAX));
    assert_eq!(refused(&[0, 1, 3], &[5]), Error::NoUnit(5));
    assert_eq!(refused(&[0, 4, 0], &[1]), Error::Twice);
    assert_eq!(refused(&[4, 4, 0], &[1]), Error::Twice);
}

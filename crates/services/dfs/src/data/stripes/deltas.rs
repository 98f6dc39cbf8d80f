//! A small write of a stripe (R6; DPC 3.3): of the units that it does not touch nothing is read,
//! and nothing is sent to them but the version. So all members have that version of the stripe, as
//! after any write, and whatever is decided of one is decided by the same rules.

use outboard_codec::erasure::{Field, add};
use outboard_wire::shared::Brings;
use outboard_wire::shared::call::Grant;

use super::{DataError, Part, code, invalid, len_of};

/// What becomes of rows of all units.
pub(super) enum Rows {
    /// These are the data units.
    All(Vec<Vec<u8>>),
    /// Of each unit, parities too, what changes.
    Some(Vec<(Brings, Vec<u8>)>),
}

/// A part changes few units: they are given their bytes, parities what these differ by, times
/// their coefficients, and the others nothing.
pub(super) fn deltas(
    grant: &Grant,
    part: &Part<'_>,
    old: &[Vec<u8>],
    new: Vec<Vec<u8>>,
) -> Result<Rows, DataError> {
    let (code, len) = (code(grant)?, len_of(&part.rows));
    let mut parities = vec![vec![0; len]; usize::from(grant.capability.m)];
    let mut parts = parities.clone();
    for (unit, (old, new)) in old.iter().zip(&new).enumerate() {
        if !part.touches(u8::try_from(unit).unwrap_or(u8::MAX)) {
            continue;
        }
        let coefficients = code.coefficients(unit).map_err(invalid)?;
        let mut places: Vec<&mut [u8]> = parts.iter_mut().map(Vec::as_mut_slice).collect();
        let field = Field::fastest();
        field.multiply_difference(coefficients, old, new, &mut places).map_err(invalid)?;
        for (part, parity) in parts.iter().zip(&mut parities) {
            add(part, parity).map_err(invalid)?;
        }
    }
    let of_data = |(unit, bytes)| match part.touches(unit) {
        true => (Brings::Bytes, bytes),
        false => (Brings::Nothing, Vec::new()),
    };
    let units = (0..u8::MAX).zip(new).map(of_data);
    let parities = parities.into_iter().map(|parity| (Brings::Delta, parity));
    Ok(Rows::Some(units.chain(parities).collect()))
}

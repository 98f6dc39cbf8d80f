//! Bytes that come in pieces, in any order.

/// Puts `piece` at `at`. What comes in order is appended and nothing is written twice; before a
/// piece that comes early there are zeros until the others come. The caller bounds `at`.
///
/// ```
/// let mut bytes = Vec::new();
/// outboard_base::place(&mut bytes, 0, b"ab");
/// outboard_base::place(&mut bytes, 4, b"ef");
/// outboard_base::place(&mut bytes, 2, b"cd");
/// assert_eq!(bytes, b"abcdef");
/// ```
pub fn place(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    if bytes.len() == at {
        bytes.extend_from_slice(piece);
        return;
    }
    let end = at.saturating_add(piece.len());
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes.get_mut(at..end).into_iter().for_each(|to| to.copy_from_slice(piece));
}

//! Which byte ranges of which files are being changed by calls in flight.
//!
//! Calls whose ranges overlap go one after the other, in the order they came. So of two overlapping
//! writes at most one is unanswered, and sending it again after a loss cannot undo the other
//! (`docs/internals/loss.md`).
//!
//! Not `base::task::RangeQueue`: that looks at a bounded number of those who wait when a range is
//! released. Here they are no more than a session has slots, and each that may go goes at once.

use std::collections::HashMap;

use outboard_base::Ino;
use outboard_wire::file::{Request, open_flags, write_flags};

use super::Lane;

/// Bytes of a file a call may change: `from..to`; `to` `u64::MAX` reaches to the end, wherever it
/// is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) ino: Ino,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Span {
    /// What `request` with `payload_len` bytes changes; `None` if that cannot conflict.
    pub(super) fn of(request: &Request<'_>, payload_len: usize) -> Option<Span> {
        let rest = |ino, from| Some(Span { ino, from, to: u64::MAX });
        let part =
            |ino, from: u64, len: u64| Some(Span { ino, from, to: from.saturating_add(len) });
        match *request {
            Request::Write { ino, flags, .. } if flags & write_flags::APPEND != 0 => rest(ino, 0),
            Request::Write { ino, offset, .. } => part(ino, offset, payload_len as u64),
            Request::Setattr { ino, ref set, .. } => set.size.and_then(|size| rest(ino, size)),
            Request::Open { ino, flags } if flags & open_flags::TRUNC != 0 => rest(ino, 0),
            Request::Fallocate { ino, offset, len, .. } => part(ino, offset, len),
            Request::CopyFileRange { to, to_offset, len, .. } => part(to, to_offset, len),
            _ => None,
        }
    }

    fn overlaps(&self, other: &Span) -> bool {
        self.from < other.to && other.from < self.to
    }
}

#[derive(Debug)]
struct Claim {
    lane: Lane,
    span: Span,
    admitted: bool,
}

/// The claims of all calls that are under way or wait for others.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    inodes: HashMap<Ino, Vec<Claim>>,
}

impl Ranges {
    /// Claims `span` for the call in `lane`; whether it may go now. If not, a later
    /// [`Ranges::release`] names it.
    pub(super) fn claim(&mut self, lane: Lane, span: Span) -> bool {
        let claims = self.inodes.entry(span.ino).or_default();
        let admitted = !claims.iter().any(|claim| claim.span.overlaps(&span));
        claims.push(Claim { lane, span, admitted });
        admitted
    }

    /// Gives up what the call in `lane` claimed of `ino`, admitted or not; `admit` is called with
    /// each call that may go now.
    pub(super) fn release(&mut self, lane: Lane, ino: Ino, mut admit: impl FnMut(Lane)) {
        let Some(claims) = self.inodes.get_mut(&ino) else { return };
        claims.retain(|claim| claim.lane != lane);
        if claims.is_empty() {
            self.inodes.remove(&ino);
            return;
        }
        for at in 0..claims.len() {
            let Some((last, earlier)) = claims.get_mut(..=at).and_then(<[Claim]>::split_last_mut)
            else {
                return;
            };
            if !last.admitted && !earlier.iter().any(|claim| claim.span.overlaps(&last.span)) {
                last.admitted = true;
                admit(last.lane);
            }
        }
    }

    /// Whether nobody changes anything.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use outboard_base::{Fh, Rng};
    use outboard_wire::file::{Setattr, SetattrTime};

    use super::*;

    const FILE: Ino = Ino(7);

    fn span(from: u64, to: u64) -> Span {
        Span { ino: FILE, from, to }
    }

    #[test]
    fn each_changing_request_claims_what_it_may_change() {
        let write = |flags| Request::Write { ino: FILE, fh: Fh(1), offset: 10, flags };
        assert_eq!(Span::of(&write(0), 5), Some(span(10, 15)));
        assert_eq!(Span::of(&write(write_flags::APPEND), 5), Some(span(0, u64::MAX)));
        let size = Setattr { size: Some(9), ..Setattr::default() };
        let times = Setattr { atime: Some(SetattrTime::Now), ..Setattr::default() };
        let setattr = |set| Request::Setattr { ino: FILE, fh: Fh::NONE, set };
        assert_eq!(Span::of(&setattr(size), 0), Some(span(9, u64::MAX)));
        assert_eq!(Span::of(&setattr(times), 0), None);
        let open = |flags| Request::Open { ino: FILE, flags };
        assert_eq!(Span::of(&open(open_flags::TRUNC), 0), Some(span(0, u64::MAX)));
        assert_eq!(Span::of(&open(0), 0), None);
    }

    #[test]
    fn overlapping_calls_go_in_the_order_they_came() {
        let mut ranges = Ranges::default();
        assert!(ranges.claim(Lane(1), span(0, 10)));
        assert!(!ranges.claim(Lane(2), span(5, 20)));
        assert!(ranges.claim(Lane(3), span(20, 30)));
        // Touches only lane 2, which waits: it must not overtake it.
        assert!(!ranges.claim(Lane(4), span(12, 14)));
        let mut admitted = Vec::new();
        ranges.release(Lane(1), FILE, |lane| admitted.push(lane));
        assert_eq!(admitted, [Lane(2)]);
        ranges.release(Lane(2), FILE, |lane| admitted.push(lane));
        assert_eq!(admitted, [Lane(2), Lane(4)]);
        ranges.release(Lane(3), FILE, |_| unreachable!("nobody waits"));
        ranges.release(Lane(4), FILE, |_| unreachable!("nobody waits"));
        assert!(ranges.is_empty());
    }

    /// Whatever comes and goes, the admitted never overlap and everybody is admitted.
    #[test]
    fn admitted_claims_never_overlap_and_all_are_admitted() {
        for seed in 0..200 {
            let (mut rng, mut ranges) = (Rng::new(seed), Ranges::default());
            let mut under_way: Vec<(Lane, Span)> = Vec::new();
            let mut waiting: Vec<(Lane, Span)> = Vec::new();
            for number in 0..60u16 {
                let from = rng.below(40);
                let (lane, span) = (Lane(number), span(from, from + 1 + rng.below(10)));
                let list = if ranges.claim(lane, span) { &mut under_way } else { &mut waiting };
                list.push((lane, span));
                if rng.chance(1, 2) && !under_way.is_empty() {
                    finish(&mut rng, &mut ranges, &mut under_way, &mut waiting);
                }
                let clash = under_way
                    .iter()
                    .enumerate()
                    .any(|(i, (_, a))| under_way.iter().skip(i + 1).any(|(_, b)| a.overlaps(b)));
                assert!(!clash, "seed {seed}: {under_way:?}");
            }
            while !under_way.is_empty() {
                finish(&mut rng, &mut ranges, &mut under_way, &mut waiting);
            }
            assert!(waiting.is_empty() && ranges.is_empty(), "seed {seed}: {waiting:?}");
        }
    }

    fn finish(
        rng: &mut Rng,
        ranges: &mut Ranges,
        under_way: &mut Vec<(Lane, Span)>,
        waiting: &mut Vec<(Lane, Span)>,
    ) {
        let at = usize::try_from(rng.below(under_way.len() as u64)).unwrap();
        let (lane, span) = under_way.swap_remove(at);
        ranges.release(lane, span.ino, |lane| {
            let at = waiting.iter().position(|(waits, _)| *waits == lane).unwrap();
            under_way.push(waiting.remove(at));
        });
    }
}

//! Where the rings of an attachment lie in its region: a ring of requests and one of responses for
//! each notification group. Both sides compute it from the same four numbers.
//!
//! ```text
//! page 0 never used | group 0: requests, responses | group 1: requests, responses | ...
//! ```
//!
//! Group 0 carries what the library asks for itself (directories, names, sizes); the others are the
//! application's.

use outboard_base::limits::PAGE;
use outboard_link::ring::Place;
use outboard_wire::attach::RingsHello;
use outboard_wire::dds::{ALIGN_MAX, DATA_MAX, GROUPS_MAX, GROUPS_MIN, RESPONSE_HEAD, frame_len};

/// The shape of an attachment's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    groups: u16,
    requests: u64,
    responses: u64,
    align: u32,
}

impl Shape {
    /// `groups` groups (group 0 and at least one more), each with so many bytes for requests and
    /// for responses (powers of two, from a page to 1 GiB); data of writes is aligned to `align`
    /// bytes, a power of two from 8 to 4096. `None` if a number is out of its range.
    #[must_use]
    pub fn new(groups: u16, requests: u64, responses: u64, align: u32) -> Option<Shape> {
        let shape = Shape { groups, requests, responses, align };
        let counts = (GROUPS_MIN..=GROUPS_MAX).contains(&groups);
        let aligned = align.is_power_of_two() && (8..=ALIGN_MAX).contains(&(align as usize));
        let rings = Place::new(0, requests).is_some() && Place::new(0, responses).is_some();
        (counts && aligned && rings).then_some(shape)
    }

    /// What a host asks for; `None` if a number is out of its range, or the region too short.
    #[must_use]
    pub fn asked(hello: &RingsHello) -> Option<Shape> {
        let RingsHello { region_len, groups, align, requests, responses } = *hello;
        let shape = Shape::new(groups, requests, responses, align)?;
        (shape.region_len() <= region_len).then_some(shape)
    }

    /// Asks for these rings.
    #[must_use]
    pub fn hello(&self) -> RingsHello {
        let Shape { groups, requests, responses, align } = *self;
        RingsHello { region_len: self.region_len(), groups, align, requests, responses }
    }

    /// Groups, group 0 included.
    #[must_use]
    pub fn groups(&self) -> u16 {
        self.groups
    }

    /// Bytes of a ring of requests.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        self.requests
    }

    /// Bytes of a ring of responses.
    #[must_use]
    pub fn response_bytes(&self) -> u64 {
        self.responses
    }

    /// Alignment of data that is written.
    #[must_use]
    pub fn align(&self) -> u32 {
        self.align
    }

    /// A group's rings, of requests and of responses; `None` if there is no such group.
    #[must_use]
    pub fn rings(&self, group: u16) -> Option<(Place, Place)> {
        let pair = |at| {
            let requests = Place::new(at, self.requests)?;
            Some((requests, Place::new(requests.end(), self.responses)?))
        };
        let start = PAGE as u64;
        let each = pair(start)?.1.end() - start;
        pair(start + u64::from(group) * each).filter(|_| group < self.groups)
    }

    /// Bytes of the region.
    #[must_use]
    pub fn region_len(&self) -> u64 {
        self.rings(self.groups - 1).map_or(0, |(_, last)| last.end())
    }

    /// Most bytes of one read: their response must find room in its ring, in one piece, wherever
    /// it begins.
    #[must_use]
    pub fn read_max(&self) -> usize {
        let half = usize::try_from(self.responses / 2).unwrap_or(0);
        half.saturating_sub(frame_len(RESPONSE_HEAD + ALIGN_MAX)).min(DATA_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_lie_one_after_another() {
        let shape = Shape::new(3, 1 << 16, 1 << 20, 4096).unwrap();
        let mut end = PAGE as u64;
        for group in 0..3 {
            let (requests, responses) = shape.rings(group).unwrap();
            assert_eq!(requests.at(), end);
            assert_eq!(responses.at(), requests.end());
            end = responses.end();
        }
        assert_eq!((shape.region_len(), shape.rings(3)), (end, None));
        assert!(shape.read_max() > 500 << 10);
    }

    #[test]
    fn shapes_out_of_range_are_refused() {
        for (groups, requests, responses, align) in [
            (1, 4096, 4096, 8),
            (65, 4096, 4096, 8),
            (2, 4095, 4096, 8),
            (2, 4096, 2048, 8),
            (2, 4096, 4096, 4),
            (2, 4096, 4096, 24),
            (2, 4096, 4096, 8192),
        ] {
            assert!(Shape::new(groups, requests, responses, align).is_none());
        }
    }
}

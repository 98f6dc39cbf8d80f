//! What lies where in a cache.
//!
//! A [`Geometry`] is made once, from the area's length by the host and from the header by the DPU
//! side, and kept: nothing that is written to the header later moves anything. Every place it gives
//! out lies within the area it was checked against.

use outboard_base::limits::PAGE;
use outboard_wire::cache::{
    CacheError, CacheMode, ENTRY_LEN, HEADER_LEN, Header, PAGE_SIZE_DEFAULT, RECORD_LEN,
    RECORD_WAYS, RECORDS_DEFAULT, TOTAL_MAX, WAYS_DEFAULT, Wishes, bucket_of, record_set_of,
};

/// Why a cache cannot lie there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// The header's fields are out of range.
    Header(CacheError),
    /// The area is smaller than the metadata and one bucket of pages.
    Small {
        /// Bytes needed at least.
        needed: u64,
        /// Bytes of the area.
        len: u64,
    },
    /// The area does not begin at a page, or does not end within the region.
    Place,
}

impl std::fmt::Display for GeometryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GeometryError::Header(why) => why.fmt(f),
            GeometryError::Small { needed, len } => {
                write!(f, "a cache of {len} bytes is smaller than the {needed} it needs")
            }
            GeometryError::Place => f.write_str("the cache lies outside the region"),
        }
    }
}

impl std::error::Error for GeometryError {}

impl From<CacheError> for GeometryError {
    fn from(why: CacheError) -> GeometryError {
        GeometryError::Header(why)
    }
}

/// How a host wants its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of pages.
    pub len: u64,
    /// Bytes of a page.
    pub page_size: u32,
    /// Entries of a bucket.
    pub ways: u32,
    /// Records: inodes that may be cached at a time.
    pub records: u32,
    /// What the cache is for.
    pub mode: CacheMode,
    /// How it is to be managed: `policy::Choice::wishes`.
    pub wishes: Wishes,
}

impl Default for Shape {
    /// 64 MiB of 8 KiB pages, read and written.
    fn default() -> Shape {
        Shape {
            len: 64 << 20,
            page_size: PAGE_SIZE_DEFAULT,
            ways: WAYS_DEFAULT,
            records: RECORDS_DEFAULT,
            mode: CacheMode::Write,
            wishes: Wishes::default(),
        }
    }
}

impl Shape {
    /// The cache of this shape that begins at `at`.
    ///
    /// # Errors
    /// [`GeometryError`].
    pub fn at(&self, at: u64) -> Result<Geometry, GeometryError> {
        let pages = self.len / u64::from(self.page_size.max(1));
        let len = Geometry::len_for(pages, self.page_size, self.ways, self.records);
        let area = Area { at, len };
        let fit = Geometry::fit(area, self.page_size, self.ways, self.records, self.mode)?;
        Geometry::check(area, Header { wishes: self.wishes, ..fit.header() })
    }
}

/// Where a cache lies in its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First byte: a multiple of 4096.
    pub at: u64,
    /// Bytes.
    pub len: u64,
}

/// A checked layout. Places are offsets in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    header: Header,
    area: Area,
    pages_at: u64,
}

impl Geometry {
    /// The largest cache of `page_size`, `ways` and `records` that `area` holds.
    ///
    /// # Errors
    /// [`GeometryError`].
    pub fn fit(
        area: Area,
        page_size: u32,
        ways: u32,
        records: u32,
        mode: CacheMode,
    ) -> Result<Geometry, GeometryError> {
        let wishes = Wishes::default();
        let (chained, total) = (true, u64::from(ways));
        let one = Header { chained, page_size, mode, total, ways, records, wishes };
        one.check()?;
        let bucket = u64::from(ways) * (ENTRY_LEN as u64 + u64::from(page_size));
        // Entries are followed by at most a page of padding.
        let fixed = HEADER_LEN + u64::from(records) * RECORD_LEN as u64;
        let room = area.len.saturating_sub(fixed + PAGE as u64 - 1);
        let buckets = (room / bucket).clamp(1, TOTAL_MAX / u64::from(ways));
        Geometry::check(area, Header { total: buckets * u64::from(ways), ..one })
    }

    /// The layout a header describes, if all of it lies within `area`.
    ///
    /// # Errors
    /// [`GeometryError`].
    pub fn check(area: Area, header: Header) -> Result<Geometry, GeometryError> {
        header.check()?;
        if !area.at.is_multiple_of(PAGE as u64) || area.at.checked_add(area.len).is_none() {
            return Err(GeometryError::Place);
        }
        // No overflow: at most 2^31 pages of 64 KiB, and 2^16 records.
        let entries_at = HEADER_LEN + u64::from(header.records) * RECORD_LEN as u64;
        let entries_end = entries_at + header.total * ENTRY_LEN as u64;
        let pages_at = entries_end.next_multiple_of(PAGE as u64);
        let needed = pages_at + header.total * u64::from(header.page_size);
        if needed > area.len {
            return Err(GeometryError::Small { needed, len: area.len });
        }
        Ok(Geometry { header, area, pages_at: area.at + pages_at })
    }

    /// Bytes an area needs for at least `pages` pages, or for the most there may be.
    #[must_use]
    pub fn len_for(pages: u64, page_size: u32, ways: u32, records: u32) -> u64 {
        let total = pages.min(TOTAL_MAX).next_multiple_of(u64::from(ways.max(1)));
        let each = ENTRY_LEN as u64 + u64::from(page_size);
        let fixed = HEADER_LEN + u64::from(records) * RECORD_LEN as u64 + PAGE as u64 - 1;
        (total * each + fixed).next_multiple_of(PAGE as u64)
    }

    /// The header as laid out.
    #[must_use]
    pub fn header(&self) -> Header {
        self.header
    }

    /// The area.
    #[must_use]
    pub fn area(&self) -> Area {
        self.area
    }

    /// Bytes of a page.
    #[inline]
    #[must_use]
    pub fn page_size(&self) -> u32 {
        self.header.page_size
    }

    /// Pages, and entries.
    #[inline]
    #[must_use]
    pub fn total(&self) -> u64 {
        self.header.total
    }

    /// Entries of a bucket.
    #[inline]
    #[must_use]
    pub fn ways(&self) -> u32 {
        self.header.ways
    }

    /// Buckets.
    #[inline]
    #[must_use]
    pub fn buckets(&self) -> u64 {
        self.header.total / u64::from(self.header.ways)
    }

    /// Records.
    #[inline]
    #[must_use]
    pub fn records(&self) -> u32 {
        self.header.records
    }

    /// Where a field of the header lies.
    #[inline]
    #[must_use]
    pub fn header_at(&self, field: u64) -> u64 {
        self.area.at + field
    }

    /// Where record `index` (below [`records`](Geometry::records)) lies.
    #[inline]
    #[must_use]
    pub fn record_at(&self, index: u32) -> u64 {
        self.area.at + HEADER_LEN + u64::from(index) * RECORD_LEN as u64
    }

    /// The records an inode's may be among: [`RECORD_WAYS`] from this one.
    #[inline]
    #[must_use]
    pub fn record_set(&self, ino: u64) -> std::ops::Range<u32> {
        let first = record_set_of(ino, self.header.records) * RECORD_WAYS;
        first..first + RECORD_WAYS
    }

    /// Where entry `index` (below [`total`](Geometry::total)) lies.
    #[inline]
    #[must_use]
    pub fn entry_at(&self, index: u64) -> u64 {
        self.record_at(self.header.records) + index * ENTRY_LEN as u64
    }

    /// Where page `index` lies.
    #[inline]
    #[must_use]
    pub fn page_at(&self, index: u64) -> u64 {
        self.pages_at + index * u64::from(self.header.page_size)
    }

    /// The entries a file's page may be among.
    #[inline]
    #[must_use]
    pub fn bucket(&self, ino: u64, lpn: u64) -> std::ops::Range<u64> {
        let first = bucket_of(ino, lpn, self.buckets()) * u64::from(self.header.ways);
        first..first + u64::from(self.header.ways)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_what_it_needs() {
        let area = Area { at: 8192, len: 64 << 10 };
        let small = Geometry::fit(area, 8192, 8, 1024, CacheMode::Write);
        assert!(
            matches!(small, Err(GeometryError::Small { needed, len: 65536 }) if needed > 65536)
        );
        let fit = Geometry::fit(area, 4096, 8, 64, CacheMode::Write).unwrap();
        assert_eq!((fit.total(), fit.buckets()), (8, 1));
        let header = Header { total: 16, ..fit.header() };
        assert!(matches!(Geometry::check(area, header), Err(GeometryError::Small { .. })));
        let header = Header { page_size: 5000, ..fit.header() };
        let why = Geometry::check(area, header);
        assert_eq!(why, Err(GeometryError::Header(CacheError::PageSize)));
        let askew = Area { at: 100, ..area };
        assert_eq!(Geometry::check(askew, fit.header()), Err(GeometryError::Place));
        let beyond = Area { at: u64::MAX - 4095, len: 1 << 20 };
        assert_eq!(Geometry::check(beyond, fit.header()), Err(GeometryError::Place));
        let huge = Header { total: TOTAL_MAX, page_size: 64 << 10, ways: 1, ..fit.header() };
        assert!(matches!(Geometry::check(area, huge), Err(GeometryError::Small { .. })));
    }

    #[test]
    fn a_shape_has_room_for_what_it_asks() {
        let geometry = Shape::default().at(8192).unwrap();
        assert_eq!((geometry.total(), geometry.page_size()), (8192, 8192));
        let none = Shape { len: 100, ..Shape::default() }.at(0).map(|geometry| geometry.total());
        assert!(matches!(none, Err(GeometryError::Small { .. })));
        let huge = Shape { len: u64::MAX, ..Shape::default() }.at(0).unwrap();
        assert_eq!(huge.total(), TOTAL_MAX);
        assert!(Shape { page_size: 0, ..Shape::default() }.at(0).is_err());
    }

    proptest! {
        /// Nothing overlaps, all lies inside, and little is left over.
        #[test]
        fn things_lie_side_by_side(
            len in 1u64 << 16..1 << 28, shift in 12u32..=16, ways in 1u32..=16, sets in 1u32..64,
        ) {
            let area = Area { at: 4096, len };
            let page = 1 << shift;
            let Ok(fit) = Geometry::fit(area, page, ways, sets * 4, CacheMode::Read) else {
                prop_assert!(len < Geometry::len_for(1, page, ways, sets * 4));
                return Ok(());
            };
            prop_assert_eq!(fit.record_at(0), 4096 + 4096);
            prop_assert_eq!(fit.entry_at(0), fit.record_at(fit.records()));
            prop_assert!(fit.entry_at(fit.total()) <= fit.page_at(0));
            prop_assert!(fit.page_at(0).is_multiple_of(4096));
            prop_assert!(fit.page_at(fit.total()) <= area.at + area.len);
            let waste = area.at + area.len - fit.page_at(fit.total());
            prop_assert!(waste <= u64::from(ways) * (u64::from(page) + 32) + 2 * 4096);
            prop_assert!(fit.bucket(77, 5).end <= fit.total());
            prop_assert!(fit.record_set(77).end <= fit.records());
            prop_assert_eq!(Geometry::check(area, fit.header()), Ok(fit));
            let len = Geometry::len_for(fit.total(), page, ways, sets * 4);
            let again = Geometry::fit(Area { at: 0, len }, page, ways, sets * 4, CacheMode::Read);
            prop_assert!(again.is_ok_and(|again| again.total() >= fit.total()));
        }
    }
}

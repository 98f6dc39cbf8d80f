//! The bodies of the fuzz targets of what the store reads back: any bytes in, no panic out, and
//! what is accepted says the same when written again.

use super::format::{self, Header, LogHead};
use super::index::{Cursor, Index};

/// Records of the log, and what they make of an index.
pub fn records(data: &[u8]) {
    let Ok(records) = format::records(data) else { return };
    let (mut out, mut index) = (Vec::new(), Index::default());
    records.iter().for_each(|record| record.emit(&mut out));
    for record in &records {
        let _touched = index.touched(record);
        if index.apply(record).is_err() {
            break;
        }
    }
    assert_eq!(out.get(..), Some(data));
    index.objects.values().for_each(|entry| assert!(entry.end() <= super::index::END_MAX));
}

/// The objects of a checkpoint.
pub fn index(data: &[u8]) {
    let Ok(index) = Index::parse(data) else { return };
    let mut out = Vec::new();
    assert!(index.emit(Cursor::default(), usize::MAX, &mut out).is_none());
    assert_eq!(out, data);
}

/// Whole blocks: a header, a piece, a block of the log.
pub fn block(data: &[u8]) {
    if let Ok((header, _)) = Header::parse(data) {
        let _at = header.log_at();
    }
    if let Ok((head, bytes, _)) = LogHead::parse(data) {
        assert!(head.durable <= head.index);
        records(bytes);
    }
    if let Some(epoch) = format::epoch(data)
        && let Ok(objects) = format::parse_piece(data, epoch, 0)
    {
        index(objects);
    }
}

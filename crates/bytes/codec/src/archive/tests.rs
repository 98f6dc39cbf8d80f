use proptest::prelude::*;

use super::*;

/// What a reader said, with its own copy of the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Directory(String),
    File(String),
    Bytes(u64, Vec<u8>),
    FileEnd(u64),
    Pairs(Vec<(Vec<u8>, Vec<u8>)>),
}

const HEADER: Header =
    Header { kind: Kind::ServedKv, made: 1_700_000_000, id: [7; 16], bytes: 12_345 };

/// Of the bytes of [`the_format_stays`], made by another program from the page `backup.md`.
const FORMAT_SUM: u32 = 0xA2B1_C71D;

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

/// Reads a whole backup.
fn read(bytes: &[u8]) -> Result<(Header, Vec<Said>, Totals), Wrong> {
    let (mut reader, mut rest) = (Reader::new(), bytes);
    let (mut header, mut said) = (None, Vec::new());
    loop {
        let (piece, after) =
            rest.split_at_checked(reader.wants()).ok_or(Wrong::Damaged("it is cut"))?;
        rest = after;
        match reader.take(piece)? {
            Event::More => {}
            Event::Header(found) => header = Some(found),
            Event::Directory(name) => said.push(Said::Directory(name.to_string())),
            Event::File(name) => said.push(Said::File(name.to_string())),
            Event::Bytes { at, bytes } => said.push(Said::Bytes(at, bytes.to_vec())),
            Event::FileEnd { len } => said.push(Said::FileEnd(len)),
            Event::Pairs(pairs) => {
                said.push(Said::Pairs(pairs.map(|(k, v)| (k.to_vec(), v.to_vec())).collect()));
            }
            Event::End(totals) => {
                assert_eq!(reader.wants(), 0);
                let is_last = rest.is_empty();
                let whole = is_last.then(|| (header.unwrap(), said, totals));
                return whole.ok_or(Wrong::Damaged("something follows its end"));
            }
        }
    }
}

fn written(all: &[Said]) -> Vec<u8> {
    written_as(HEADER.kind, all)
}

fn written_as(kind: Kind, all: &[Said]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = Writer::new(&Header { kind, ..HEADER }, &mut out);
    for said in all {
        match said {
            Said::Directory(it) => writer.directory(&name(it), &mut out),
            Said::File(it) => writer.file(&name(it), &mut out),
            Said::Bytes(at, bytes) => writer.bytes(*at, bytes, &mut out),
            Said::FileEnd(len) => writer.file_end(*len, &mut out),
            Said::Pairs(pairs) => writer.pairs(&body_of(pairs), &mut out),
        }
        .unwrap();
    }
    writer.end(&mut out).unwrap();
    out
}

fn body_of(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, value) in pairs {
        assert!(append_pair(key, value, &mut body));
    }
    body
}

/// Some pairs, then a file.
fn with_pairs() -> Vec<Said> {
    let pair = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
    vec![
        Said::Pairs(vec![pair(b"a", b""), pair(b"b\0", b"value")]),
        Said::Pairs(vec![pair(&[255; 2048], &[1; 3000])]),
        Said::File("blocks".into()),
        Said::Bytes(0, b"block".to_vec()),
        Said::FileEnd(8192),
    ]
}

fn small() -> Vec<Said> {
    vec![
        Said::Directory("kv".into()),
        Said::File("kv/0.jnl".into()),
        Said::Bytes(0, b"first".to_vec()),
        Said::Bytes(4096, b"behind a hole".to_vec()),
        Said::FileEnd(9000),
        Said::File("empty".into()),
        Said::FileEnd(0),
    ]
}

/// A file of random pieces with holes between them.
fn a_file() -> impl Strategy<Value = Vec<Said>> {
    let pieces =
        prop::collection::vec((0..5000_u64, prop::collection::vec(any::<u8>(), 1..300)), 0..6);
    ("[a-z][a-z0-9._-]{0,20}(/[a-z][a-z0-9._-]{0,9}){0,3}", pieces, 0..9000_u64).prop_map(
        |(name, pieces, tail)| {
            let (mut said, mut end) = (vec![Said::File(name)], 0);
            for (hole, bytes) in pieces {
                let at = end + hole;
                end = at + bytes.len() as u64;
                said.push(Said::Bytes(at, bytes));
            }
            said.push(Said::FileEnd(end + tail));
            said
        },
    )
}

proptest! {
    #[test]
    fn what_was_written_is_read(files in prop::collection::vec(a_file(), 0..5)) {
        let all = files.concat();
        let bytes = written(&all);
        fuzz(&bytes);
        let (header, said, totals) = read(&bytes).unwrap();
        prop_assert_eq!((header, totals.records), (HEADER, all.len() as u64));
        prop_assert_eq!(said, all);
    }

    /// Any change of any byte is seen before the end is.
    #[test]
    fn damage_is_an_error(
        files in prop::collection::vec(a_file(), 1..3),
        at in any::<prop::sample::Index>(),
        flip in 1..=255_u8,
    ) {
        let mut bytes = written(&files.concat());
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        fuzz(&bytes);
        prop_assert!(read(&bytes).is_err());
    }

    /// Records that each are sound, left out, doubled or in another order. The chain was over whole
    /// heads: behind its own check each left the same remainder, and the chain told nobody apart.
    #[test]
    fn a_record_that_is_missing_or_moved_is_seen(
        files in prop::collection::vec(a_file(), 1..3),
        how in 0..3_u8,
        at in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
    ) {
        let all = files.concat();
        let bytes = written(&all);
        let mut records = Vec::new();
        let mut rest = &bytes[HEADER_LEN..];
        while !rest.is_empty() {
            let len = HEAD_LEN + u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
            records.push(&rest[..len]);
            rest = &rest[len..];
        }
        let before = records.clone();
        let record = records.remove(at.index(records.len() - 1));
        if how > 0 {
            records.insert(to.index(records.len()), record);
        }
        if how == 2 {
            records.insert(to.index(records.len()), record);
        }
        prop_assume!(records != before);
        let moved = [&bytes[..HEADER_LEN], &records.concat()].concat();
        fuzz(&moved);
        prop_assert!(read(&moved).is_err());
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz(&bytes);
        let header = &written(&[])[..HEADER_LEN];
        fuzz(&[header, &bytes].concat());
    }
}

/// Heads with sound checks that say anything: bounded, refused, and never a panic.
#[test]
fn heads_that_lie_are_refused() {
    let header = &written(&[])[..HEADER_LEN];
    let head = |kind: u8, len: u32, number: u64| {
        let mut head = vec![kind, 0, 0, 0];
        head.extend_from_slice(&len.to_le_bytes());
        head.extend_from_slice(&number.to_le_bytes());
        head.extend_from_slice(&crate::crc32c(&[]).to_le_bytes());
        let check = crate::crc32c(&head);
        head.extend_from_slice(&check.to_le_bytes());
        head
    };
    let most = u32::try_from(MOST_BODY).unwrap();
    for (kind, len, number) in [
        (0, 0, 0),
        (7, 0, 0),
        (record::PAIRS, 9, 0),
        (record::DIRECTORY, 0, 0),
        (record::DIRECTORY, 256, 0),
        (record::DIRECTORY, 3, 1),
        (record::FILE, u32::MAX, 0),
        (record::BYTES, 1, 0),
        (record::FILE_END, 0, 0),
        (record::END, 12, 1),
        (record::END, 13, 0),
    ] {
        let lie = [header, &head(kind, len, number)].concat();
        fuzz(&lie);
        let refused = Wrong::Damaged("a record that cannot stand there");
        assert_eq!(read(&lie), Err(refused), "{kind} {len} {number}");
    }
    let mut file = Vec::new();
    let mut writer = Writer::new(&HEADER, &mut file);
    writer.file(&name("f"), &mut file).unwrap();
    writer.bytes(10, b"ten", &mut file).unwrap();
    for (kind, len, number) in [
        (record::BYTES, 1, 12),
        (record::BYTES, 0, 13),
        (record::BYTES, 1, u64::MAX),
        (record::BYTES, most + 1, 13),
        (record::FILE_END, 0, 12),
        (record::FILE, 1, 0),
        (record::END, 12, 2),
    ] {
        let lie = [&file[..], &head(kind, len, number)].concat();
        let refused = Wrong::Damaged("a record that cannot stand there");
        assert_eq!(read(&lie), Err(refused), "{kind} {len} {number}");
    }
}

#[test]
fn a_cut_backup_is_known_as_cut_at_every_byte() {
    for (kind, said) in [(HEADER.kind, small()), (Kind::Pairs, with_pairs())] {
        let bytes = written_as(kind, &said);
        assert_eq!(read(&bytes).unwrap().1, said);
        for len in 0..bytes.len() {
            assert_eq!(read(&bytes[..len]), Err(Wrong::Damaged("it is cut")), "{len}");
            fuzz(&bytes[..len]);
        }
    }
}

#[test]
fn every_byte_is_checked() {
    for bytes in [written(&small()), written_as(Kind::Pairs, &with_pairs())] {
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0x10;
            fuzz(&other);
            assert!(read(&other).is_err(), "byte {at}");
        }
    }
}

/// The bytes of version 1, which later programs are to read.
#[test]
fn the_format_stays() {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&HEADER, &mut bytes);
    writer.file(&name("size"), &mut bytes).unwrap();
    writer.bytes(0, b"4096\n", &mut bytes).unwrap();
    writer.file_end(5, &mut bytes).unwrap();
    writer.end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), HEADER_LEN + 4 * HEAD_LEN + 4 + 5 + END_LEN);
    assert_eq!(bytes[..16], *b"OBBACKUP\x01\0\0\0\x02\0\0\0");
    assert_eq!(bytes[64..80], [2, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[88..92], *b"size");
    // Over all of them: a change of any byte or place changes it.
    let sum = crate::crc32c(&bytes);
    assert_eq!(sum, FORMAT_SUM, "{sum:#010x}");
}

/// The bytes of version 2, which is the one with pairs: the version and the kind of one are not
/// those of the other, so a program that knows no pairs refuses by the version.
#[test]
fn pairs_are_of_the_second_version() {
    let bytes = written_as(Kind::Pairs, &with_pairs());
    assert_eq!(bytes[..16], *b"OBBACKUP\x02\0\0\0\x05\0\0\0");
    assert_eq!(bytes[64..80], [6, 0, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[88..108], *b"\x01\0\0\0\0\0a\x02\0\x05\0\0\0b\0value");
    let (_, said, totals) = read(&bytes).unwrap();
    assert_eq!((said, totals.bytes), (with_pairs(), 20 + 6 + 2048 + 3000 + 5));
    for (at, byte, says) in [(8, 1, "not known"), (12, 1, "not known"), (8, 3, "version 3")] {
        let mut other = bytes[..HEADER_LEN].to_vec();
        other[at] = byte;
        let check = crate::crc32c(&other[..HEADER_LEN - 4]);
        other[HEADER_LEN - 4..].copy_from_slice(&check.to_le_bytes());
        assert!(read(&other).is_err_and(|wrong| wrong.to_string().contains(says)), "{at}");
    }
    // Among files, of another kind, or no pairs at all.
    let mut out = Vec::new();
    let mut writer = Writer::new(&HEADER, &mut out);
    assert_eq!(writer.pairs(b"\x01\0\0\0\0\0a", &mut out), Err(Disorder));
    let mut writer = Writer::new(&Header { kind: Kind::Pairs, ..HEADER }, &mut out);
    for no_pairs in [&b""[..], b"\x01\0\0\0\0\0", b"\0\0\0\0\0\0", b"\x01\0\x01\0\0\0a"] {
        assert_eq!(writer.pairs(no_pairs, &mut out), Err(Disorder), "{no_pairs:?}");
    }
    writer.file(&name("f"), &mut out).unwrap();
    assert_eq!(writer.pairs(b"\x01\0\0\0\0\0a", &mut out), Err(Disorder));
    let mut body = vec![0; MOST_BODY - 7];
    assert!(!append_pair(b"ab", b"", &mut body) && append_pair(b"a", b"", &mut body));
    assert!(!append_pair(b"", b"x", &mut Vec::new()));
    assert!(!append_pair(&[0; 1 << 16], b"", &mut Vec::new()));
}

#[test]
fn another_version_and_something_else_are_told_apart() {
    let mut bytes = written(&[]);
    bytes[8] = 3;
    assert_eq!(read(&bytes), Err(Wrong::Version(3)));
    assert!(Wrong::Version(3).to_string().contains("version 3, and this program reads 1 and 2"));
    bytes[0] = b'X';
    assert_eq!(read(&bytes), Err(Wrong::NotABackup));
}

#[test]
fn a_name_leads_nowhere_else() {
    let long = ["a"; MOST_NAME + 1].concat();
    let (deep, deepest) = (["d"; 9].join("/"), ["d"; 8].join("/"));
    for bad in [
        "",
        "/",
        "/etc/passwd",
        "..",
        "../x",
        "a/../b",
        "a//b",
        "a/",
        ".hidden",
        "a/.b",
        "a b",
        "a\0b",
        "a\\b",
        "a\nb",
        "ä",
        &long,
        &deep,
    ] {
        assert_eq!(Name::new(bad), None, "{bad:?}");
    }
    for good in ["blocks", "kv/keyspaces/0/tables/17", "journal.000000000004", &deepest] {
        assert_eq!(name(good).as_str(), good);
    }
}

#[test]
fn a_writer_keeps_the_order() {
    let mut out = Vec::new();
    let mut writer = Writer::new(&HEADER, &mut out);
    let before = out.len();
    assert_eq!(writer.bytes(0, b"x", &mut out), Err(Disorder));
    assert_eq!(writer.file_end(0, &mut out), Err(Disorder));
    assert_eq!(out.len(), before);
    writer.file(&name("f"), &mut out).unwrap();
    assert_eq!(writer.end(&mut out), Err(Disorder));
    assert_eq!(writer.directory(&name("d"), &mut out), Err(Disorder));
    assert_eq!(writer.bytes(0, &vec![0; MOST_BODY + 1], &mut out), Err(Disorder));
    writer.bytes(0, &vec![1; MOST_BODY], &mut out).unwrap();
    writer.file_end(1 << 20, &mut out).unwrap();
    writer.end(&mut out).unwrap();
    assert_eq!(writer.end(&mut out), Err(Disorder));
    assert_eq!(read(&out).unwrap().2, Totals { records: 3, bytes: 1 << 20 });
}

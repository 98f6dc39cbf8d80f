use outboard_base::Errno;
use proptest::prelude::*;

use super::*;

/// A request as the bytes of a message whose first byte lies at `position` of its ring.
fn message(request: &Request<'_>, id: u64, position: u64, align: usize) -> Vec<u8> {
    let from = data_at(position, REQUEST_HEAD, align);
    let mut out = request.head(id, from, request.data().len()).to_vec();
    out.resize(from, 0);
    out.extend_from_slice(request.data());
    out
}

#[test]
fn golden_bytes() {
    let write = Request::Write { file: FileId(0x0403_0201), offset: 0x99, data: b"abc" };
    #[rustfmt::skip]
    let golden = [
        2, 0, 32, 0, 3, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1,
        1, 2, 3, 4, 0, 0, 0, 0, 0x99, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c',
    ];
    assert_eq!(message(&write, 0x0102_0304_0506_0708, 8, 8), golden);
    let mut head = ResponseHead::pending(7, 32, 16);
    assert_eq!(head.emit()[..8], [0xFF, 0xFF, 0xFF, 0xFF, 32, 0, 0, 0]);
    (head.status, head.data_len, head.value) = (0, 5, 9);
    #[rustfmt::skip]
    let golden = [
        0, 0, 0, 0, 32, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0,
        5, 0, 0, 0, 16, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(head.emit(), golden);
    let stamp = Stamp { position: 0x2_0000_0018, is_nothing: true };
    assert_eq!(stamp.head(5), 0x8000_0007_0000_0005, "33 bits of the position are kept");
    let mut listed = Vec::new();
    assert!(put_listed(&mut listed, &Listed { id: 1, size: 2, name: b"name" }, 24));
    assert!(!put_listed(&mut listed, &Listed { id: 1, size: 2, name: b"x" }, 47));
    let golden = [1, 0, 0, 0, 0, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0, b'n', b'a', b'm', b'e'];
    assert_eq!((&listed[..20], listed.len()), (&golden[..], 24));
}

#[test]
fn data_begins_where_its_alignment_asks() {
    assert_eq!(data_at(8, 32, 8), 32);
    assert_eq!(data_at(8, 32, 512), 504);
    assert_eq!(data_at(4096 - 32, 32, 4096), 32);
    assert_eq!(data_at(4096 - 24, 32, 4096), 24 + 4096);
    assert_eq!((data_at(8, 32, 0), data_at(8, 32, 8192)), (32, 32));
}

#[test]
fn what_is_no_request_is_refused_with_its_id() {
    let good = message(&Request::Flush { file: FileId(5) }, 9, 8, 8);
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        Request::parse(&bytes).map(|(id, _)| id)
    };
    let why = |why| Err(Refused { id: Some(9), why });
    assert_eq!(refused(&|_| ()), Ok(9));
    for opcode in [0, 14, 255] {
        assert_eq!(refused(&|b| b[0] = opcode), why(InvalidMessage::Opcode));
    }
    assert_eq!(refused(&|b| b[1] = 1), why(InvalidMessage::Field));
    assert_eq!(refused(&|b| b[2] = 33), why(InvalidMessage::Length));
    assert_eq!(refused(&|b| b[20] = 1), why(InvalidMessage::Field), "a flush has no bytes");
    assert_eq!(refused(&|b| b[24] = 1), why(InvalidMessage::Field), "nor an offset");
    assert_eq!(refused(&|b| b.push(0)), why(InvalidMessage::Length));
    assert_eq!(refused(&|b| b[0] = 4), why(InvalidMessage::Field), "a directory has a name");
    let cut = Err(Refused { id: None, why: InvalidMessage::Length });
    assert_eq!(refused(&|b| b.truncate(31)), cut);
    let long = Request::Read { file: FileId(1), offset: 0, bytes: (1 << 20) + 1 };
    let refusal = Request::parse(&message(&long, 1, 8, 8)).unwrap_err();
    assert_eq!(refusal.why, InvalidMessage::Field);
}

#[test]
fn a_response_that_lies_about_its_lengths_is_refused() {
    let mut head = ResponseHead::pending(7, 32, 8);
    let parse = |head: &ResponseHead, len| {
        let mut message = head.emit().to_vec();
        message.resize(len, 1);
        Response::parse(&message).map(|r| (r.result, r.data.len()))
    };
    assert_eq!(parse(&head, 40), Err(InvalidMessage::Field), "pending");
    (head.status, head.data_len) = (0, 3);
    assert_eq!(parse(&head, 40), Ok((Ok(0), 3)));
    assert_eq!(parse(&head, 41), Err(InvalidMessage::Length));
    head.data_len = 9;
    assert_eq!(parse(&head, 40), Err(InvalidMessage::Length));
    (head.data_len, head.status) = (0, 28);
    assert_eq!(parse(&head, 40), Ok((Err(Errno::ENOSPC), 0)));
    head.status = 4096;
    assert_eq!(parse(&head, 40), Err(InvalidMessage::Field));
    assert_eq!(Response::parse(&[0; 31]).unwrap_err(), InvalidMessage::Length);
}

#[test]
fn frames_are_read_one_after_another_and_garbage_ends_them() {
    let mut ring = Vec::new();
    let base = 0x1000u64;
    let mut put = |message: &[u8], is_nothing| {
        let position = base + ring.len() as u64;
        let stamp = Stamp { position, is_nothing };
        ring.extend(stamp.head(u32::try_from(message.len()).unwrap()).to_le_bytes());
        ring.extend(message);
        ring.resize(ring.len().next_multiple_of(8), 0);
    };
    put(b"one", false);
    put(&[0; 24], true);
    put(b"", false);
    put(b"12345678", false);
    let read: Vec<_> = frames(&ring, base).map(Result::unwrap).collect();
    let expected: [(u64, &[u8]); 3] =
        [(base + 8, b"one"), (base + 56, b""), (base + 64, b"12345678")];
    assert_eq!(read, expected);
    // Found by a producer that died: zeroed memory at position 0 was an empty message.
    assert_eq!(frames(&[0; 8], 0).next(), Some(Err(InvalidMessage::Stamp)));
    let moved: Vec<_> = frames(&ring, base + 8).collect();
    assert_eq!(moved, [Err(InvalidMessage::Stamp)], "bytes of another place");
    let cut: Vec<_> = frames(&ring[..ring.len() - 8], base).skip(2).collect();
    assert_eq!(cut, [Err(InvalidMessage::Length)]);
}

fn names() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 1..=NAME_MAX)
}

proptest! {
    #[test]
    fn requests_round_trip(
        pick in 0..Opcode::ALL.len(),
        (id, subject, offset) in any::<(u64, u32, u64)>(),
        bytes in 0..=1u32 << 20,
        after in any::<u32>(),
        name in names(),
        data in proptest::collection::vec(any::<u8>(), 0..3000),
        (lap, align) in (0..1000u64, prop_oneof![Just(8), Just(512), Just(4096)]),
    ) {
        let (file, directory, name) = (FileId(subject), DirectoryId(subject), &name[..]);
        let request = match Opcode::ALL[pick] {
            Opcode::Read => Request::Read { file, offset, bytes },
            Opcode::Write => Request::Write { file, offset, data: &data },
            Opcode::Flush => Request::Flush { file },
            Opcode::CreateDirectory => Request::CreateDirectory { name },
            Opcode::OpenDirectory => Request::OpenDirectory { name },
            Opcode::RemoveDirectory => Request::RemoveDirectory { directory },
            Opcode::CreateFile => Request::CreateFile { directory, name },
            Opcode::OpenFile => Request::OpenFile { directory, name },
            Opcode::DeleteFile => Request::DeleteFile { file },
            Opcode::Resize => Request::Resize { file, size: offset },
            Opcode::Size => Request::Size { file },
            Opcode::List => Request::List { directory, after, bytes },
            Opcode::Table => Request::Table { changes: &data },
        };
        let position = lap * 8;
        let sent = message(&request, id, position, align);
        let at = position + u64::from(u16::from_le_bytes([sent[2], sent[3]]));
        prop_assert!(at.is_multiple_of(align as u64));
        prop_assert_eq!(Request::parse(&sent), Ok((id, request)));
        prop_assert_eq!(request.opcode(), Opcode::ALL[pick]);
    }

    #[test]
    fn listings_round_trip(
        entries in proptest::collection::vec((1..u32::MAX, any::<u64>(), names()), 0..20),
        room in 0..4000usize,
    ) {
        let mut out = Vec::new();
        let listed: Vec<Listed<'_>> =
            entries.iter().map(|(id, size, name)| Listed { id: *id, size: *size, name }).collect();
        let fit = listed.iter().take_while(|entry| put_listed(&mut out, entry, room)).count();
        prop_assert!(out.len() <= room);
        let read: Result<Vec<_>, _> = Listing::new(&out).collect();
        prop_assert_eq!(read.unwrap(), listed[..fit].to_vec());
    }
}

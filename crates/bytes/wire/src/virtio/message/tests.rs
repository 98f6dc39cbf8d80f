//! Messages framed by hand, answers golden and round.

use proptest::prelude::*;

use super::*;
use crate::fuse::{Call, Dialect, out_header};

fn call(opcode: Opcode, len: u32) -> InHeader {
    InHeader {
        len,
        opcode: opcode as u32,
        unique: unique(3, 9),
        node: 7,
        uid: 1000,
        gid: 1000,
        pid: 42,
        extensions: 0,
    }
}

fn envelope(lengths: Lengths, data: u32) -> Vec<u8> {
    let len = 48 + u32::from(lengths.header) + data;
    let header = InHeader { opcode: ENVELOPE, ..call(Opcode::Read, len) };
    [&header.emit()[..], &lengths.emit()].concat()
}

#[test]
fn a_write_call_is_a_head_and_data_and_translates() {
    let mut body = [0; 40];
    body[8..16].copy_from_slice(&4096u64.to_le_bytes());
    body[16..20].copy_from_slice(&8192u32.to_le_bytes());
    let head = [&call(Opcode::Write, 80 + 8192).emit()[..], &body].concat();
    let found = frame(&head, 80 + 8192, 24).unwrap();
    assert_eq!((found.cid, found.tag, found.envelope), (3, 9, false));
    assert_eq!((found.header_at, found.header_len, found.data_len), (0, 80, 8192));
    assert_eq!((found.answer_len, found.reply_room, found.data_room), (16, 8, 0));
    let written = Call::parse(Opcode::Write, &head[40..80], Dialect::default()).unwrap();
    assert!(matches!(written, Call::Write { offset: 4096, len: 8192, .. }), "{written:?}");
}

#[test]
fn a_read_call_has_room_for_data() {
    let head = [&call(Opcode::Read, 80).emit()[..], &[0; 40]].concat();
    let found = frame(&head, 80, 16 + 8192).unwrap();
    assert_eq!((found.header_len, found.data_len), (80, 0));
    assert_eq!((found.reply_room, found.data_room), (0, 8192));
}

#[test]
fn an_envelope_says_its_lengths() {
    let lengths = Lengths { header: 2560, reply_room: 256, dispatch: Dispatch::Shared };
    let found = frame(&envelope(lengths, 100), 48 + 2560 + 100, 24 + 256 + 5).unwrap();
    assert!(found.envelope);
    assert_eq!((found.header_at, found.header_len, found.data_len), (48, 2560, 100));
    assert_eq!((found.answer_len, found.reply_room, found.data_room), (24, 256, 5));
    assert_eq!(found.dispatch, Dispatch::Shared);
}

#[test]
fn messages_that_do_not_add_up_are_refused() {
    use QueueError::{InvalidCid, InvalidField, InvalidLength, InvalidOpcode};
    let fits = Lengths { header: 10, reply_room: 8, dispatch: Dispatch::Kv };
    let good = envelope(fits, 0);
    assert_eq!(frame(&good, 58, 32).map(|f| f.data_len), Ok(0));
    let with = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        bad
    };
    let cases = [
        (good[..39].to_vec(), 39, 32, InvalidLength),
        (good[..47].to_vec(), 58, 32, InvalidLength),
        (good.clone(), 57, 32, InvalidLength),
        (good.clone(), 59, 32, InvalidLength),
        (good.clone(), 58, 31, InvalidLength),
        (good.clone(), 58, 33 + (1 << 20), InvalidLength),
        (with(40, 11), 58, 32, InvalidLength),
        (with(41, 0xFF), 58, 32, InvalidLength),
        (with(43, 0xFF), 58, 32, InvalidLength),
        (with(44, 2), 58, 32, InvalidField),
        (with(46, 1), 58, 32, InvalidField),
        (with(4, 0xEE), 58, 32, InvalidOpcode),
        (with(15, 1), 58, 32, InvalidCid),
        (with(10, 0), 58, 32, InvalidCid),
        (call(Opcode::Forget, 48).emit().to_vec(), 48, 16, InvalidOpcode),
        (call(Opcode::Write, 79).emit().to_vec(), 79, 24, InvalidLength),
        (call(Opcode::Read, 80).emit().to_vec(), 80, 15, InvalidLength),
        (call(Opcode::Getattr, 4000).emit().to_vec(), 4000, 120, InvalidLength),
        (call(Opcode::Getattr, 56).emit().to_vec(), 56, 16 + 257, InvalidLength),
    ];
    for (head, readable, writable, error) in cases {
        assert_eq!(frame(&head, readable, writable), Err(error), "{head:?} {readable} {writable}");
    }
}

#[test]
fn answers_are_fuse_out_headers() {
    let answer = Answer { len: 24, status: Status::Ok, unique: 5 };
    assert_eq!(answer.emit(), out_header(5, None, 8));
    let answer = Answer { len: 16, status: Status::Errno(Errno::ENOENT), unique: 5 };
    assert_eq!(answer.emit(), out_header(5, Some(Errno::ENOENT), 0));
    for status in QueueError::ALL.map(Status::Queue) {
        let answer = Answer { len: 16, status, unique: 5 };
        assert_eq!(Answer::parse(&answer.emit()), answer);
    }
    for error in [1i32, 100, i32::MAX, i32::MIN, -4096, -4200] {
        let mut raw = answer.emit();
        raw[4..8].copy_from_slice(&error.to_le_bytes());
        assert_eq!(Answer::parse(&raw).status, Status::Queue(QueueError::Protocol), "{error}");
    }
}

proptest! {
    #[test]
    fn uniques_come_apart_again(cid: u16, tag in 1u32.., raw: u64) {
        prop_assert_eq!(split_unique(unique(cid, tag)), Some((cid, tag)));
        if let Some((cid, tag)) = split_unique(raw) {
            prop_assert_eq!(unique(cid, tag), raw);
        }
    }

    #[test]
    fn errnos_come_back(raw in 1u32..4096, len: u32, unique: u64) {
        let answer = Answer { len, status: Status::Errno(Errno::from_raw(raw)), unique };
        prop_assert_eq!(Answer::parse(&answer.emit()), answer);
    }

    #[test]
    fn the_parts_of_a_frame_add_up(
        head in proptest::collection::vec(any::<u8>(), 48..200),
        opcode in 0u32..60, readable in 0u64..10_000, writable in 0u64..10_000,
    ) {
        let mut head = head;
        let opcode = if opcode == 59 { ENVELOPE } else { opcode };
        head[..4].copy_from_slice(&u32::try_from(readable).unwrap().to_le_bytes());
        head[4..8].copy_from_slice(&opcode.to_le_bytes());
        head[14..16].copy_from_slice(&[0; 2]);
        head[41] %= 11;
        head[43] = 0;
        head[44..48].copy_from_slice(&[0; 4]);
        if let Ok(found) = frame(&head, readable, writable) {
            let read = found.header_at + found.header_len + found.data_len as usize;
            prop_assert_eq!(read as u64, readable);
            let written = found.answer_len + usize::from(found.reply_room)
                + found.data_room as usize;
            prop_assert_eq!(written as u64, writable);
        }
    }
}

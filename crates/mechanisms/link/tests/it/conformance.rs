//! What every transport must do, written over the two ports alone. A new transport adds one line at
//! the end.

use outboard_base::{Errno, Rng};
use outboard_link::queue::{
    Arrival, Cid, Command, CommandId, DpuQueue, HostQueue, SlotError, Span, Submission,
};
use outboard_wire::nvmefs::{Dispatch, QueueError, Status};

use crate::rig::{
    Dpfs, Nvmefs, Transport, Tuned, arrivals, commands, completions, ring, submission,
};

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    Rng::new(seed).fill(&mut out);
    out
}

/// Answers, and shows the host: an answer may stay unseen until the flush.
fn answer(dpu: &mut impl DpuQueue, command: Command, status: Status, result: u64, reply: &[u8]) {
    dpu.complete(command, status, result, reply);
    assert!(!dpu.flush(), "the host is awake");
}

/// Header and data of every length and alignment arrive as they were sent, both ways, and so do
/// result, dispatch bit and reply header.
fn bytes_cross_unchanged<T: Transport>() {
    let (mut host, mut dpu) = T::pair(4);
    let sizes = [0, 1, 511, 4095, 4096, 4097, 8191, 8192, 8193, 65_536, (1 << 20) - 4096, 1 << 20];
    for (round, len) in sizes.into_iter().enumerate() {
        for (offset, header_len) in [(0, 0), (0, 1), (0, 200), (0, 2560), (4096, 64), (3000, 448)] {
            let seed = (round * 10 + header_len) as u64;
            let len = if offset > 0 { len.min(1 << 19) } else { len };
            let (header, data) = (pattern(seed, header_len), pattern(seed + 1, len));
            let span = Span { offset, len: u32::try_from(len).unwrap() };
            let reply_header = if offset.is_multiple_of(4096) { 256 } else { 0 };
            let cid = host.acquire().unwrap();
            host.write_buffer(cid, offset, &data).unwrap();
            let sub = Submission {
                dispatch: if round % 2 == 0 { Dispatch::Kv } else { Dispatch::Shared },
                header: &header,
                write: span,
                read: span,
                reply_header,
            };
            host.submit(cid, &sub).unwrap();
            ring(&mut host);
            let command = commands(&mut dpu).pop().unwrap();
            assert_eq!((command.header(), command.dispatch()), (&header[..], sub.dispatch));
            assert_eq!((command.write_len(), command.read_len()), (span.len, span.len));
            assert_eq!(command.reply_header_room(), reply_header);
            let mut got = vec![0; len];
            let half = len / 2;
            command.read_data(0, &mut got[..half]).unwrap();
            command.read_data(u32::try_from(half).unwrap(), &mut got[half..]).unwrap();
            assert!(got == data, "{len} bytes at {offset} behind a header of {header_len}");
            got.reverse();
            command.write_data(u32::try_from(half).unwrap(), &got[half..]).unwrap();
            command.write_data(0, &got[..half]).unwrap();
            answer(&mut dpu, command, Status::Ok, seed, &[7; 128][..usize::from(reply_header) / 2]);
            let done = completions(&mut host).pop().unwrap();
            assert_eq!((done.cid, done.status, done.result), (cid, Status::Ok, seed));
            let mut back = vec![0; len];
            host.read_buffer(cid, offset, &mut back).unwrap();
            assert!(back == got, "{len} bytes back to {offset}");
            let mut reply = [9; 300];
            assert_eq!(host.reply_header(cid, &mut reply), Ok(usize::from(reply_header)));
            if reply_header > 0 {
                assert_eq!((&reply[..128], &reply[128..256]), (&[7; 128][..], &[0; 128][..]));
            }
            host.release(cid).unwrap();
        }
    }
}

/// A full queue says so, and every slot comes back, over many wraps.
fn a_full_queue_pushes_back<T: Transport>() {
    for depth in [2, 4, 8] {
        let (mut host, mut dpu) = T::pair(depth);
        for round in 0..500u64 {
            let mut cids = Vec::new();
            while let Some(cid) = host.acquire() {
                host.submit(cid, &submission(&round.to_le_bytes())).unwrap();
                cids.push(cid);
            }
            assert_eq!(cids.len(), usize::from(depth) - 1);
            assert_eq!(host.in_flight(), cids.len());
            ring(&mut host);
            for command in commands(&mut dpu) {
                assert_eq!(command.header(), round.to_le_bytes());
                answer(&mut dpu, command, Status::Ok, round, &[]);
            }
            let done = completions(&mut host);
            assert_eq!(done.iter().map(|c| c.cid).collect::<Vec<_>>(), cids);
            cids.into_iter().for_each(|cid| host.release(cid).unwrap());
            assert_eq!((host.in_flight(), dpu.in_flight()), (0, 0));
        }
    }
}

/// The DPU sees nothing before the doorbell, and one doorbell shows everything.
fn doorbells_batch<T: Transport>() {
    let (mut host, mut dpu) = T::pair(16);
    for i in 0..10 {
        let cid = host.acquire().unwrap();
        host.submit(cid, &submission(&[i])).unwrap();
        assert!(arrivals(&mut dpu).is_empty());
    }
    ring(&mut host);
    let mut out = Vec::new();
    assert_eq!(dpu.poll(3, &mut out), 3, "the budget is kept");
    assert_eq!(dpu.poll(100, &mut out), 7);
    assert_eq!((out.len(), dpu.in_flight()), (10, 10));
}

/// Commands complete in any order, and each answer finds its question.
fn completions_come_in_any_order<T: Transport>() {
    let mut rng = Rng::new(11);
    let (mut host, mut dpu) = T::pair(32);
    for _ in 0..200 {
        let mut sent = Vec::new();
        for _ in 0..=rng.below(30) {
            let cid = host.acquire().unwrap();
            let mark = rng.next_u64();
            host.submit(cid, &submission(&mark.to_le_bytes())).unwrap();
            sent.push((cid, mark));
        }
        ring(&mut host);
        let mut work = commands(&mut dpu);
        assert_eq!(work.len(), sent.len());
        while !work.is_empty() {
            let pick = usize::try_from(rng.below(work.len() as u64)).unwrap();
            let command = work.swap_remove(pick);
            let mark = u64::from_le_bytes(command.header().try_into().unwrap());
            answer(&mut dpu, command, Status::Ok, !mark, &[]);
        }
        for done in completions(&mut host) {
            let at = sent.iter().position(|(cid, _)| *cid == done.cid).unwrap();
            assert_eq!(done.result, !sent.swap_remove(at).1);
            host.release(done.cid).unwrap();
        }
        assert!(sent.is_empty());
    }
}

/// Errors arrive as what they are.
fn statuses_arrive<T: Transport>() {
    let (mut host, mut dpu) = T::pair(4);
    let all = [
        Status::Ok,
        Status::Errno(Errno::ENOENT),
        Status::Errno(Errno::from_raw(4095)),
        Status::Queue(QueueError::BadDispatch),
        Status::Queue(QueueError::Aborted),
    ];
    for status in all {
        let cid = host.acquire().unwrap();
        host.submit(cid, &submission(b"x")).unwrap();
        ring(&mut host);
        let command = commands(&mut dpu).pop().unwrap();
        answer(&mut dpu, command, status, 5, &[]);
        assert_eq!(completions(&mut host).pop().unwrap().status, status);
        host.release(cid).unwrap();
    }
}

/// Data beyond what was announced is neither read nor written; a reply header beyond its room is an
/// error.
fn lengths_are_kept<T: Transport>() {
    let (mut host, mut dpu) = T::pair(4);
    let cid = host.acquire().unwrap();
    let span = Span::first(100);
    host.submit(cid, &Submission { write: span, read: span, reply_header: 8, ..submission(b"h") })
        .unwrap();
    ring(&mut host);
    let command = commands(&mut dpu).pop().unwrap();
    for (offset, len) in [(0, 101), (100, 1), (99, 2), (u32::MAX, 1), (u32::MAX, 0)] {
        assert!(command.read_data(offset, &mut vec![0; len]).is_err());
        assert!(command.write_data(offset, &vec![0; len]).is_err());
    }
    command.read_data(100, &mut []).unwrap();
    answer(&mut dpu, command, Status::Ok, 0, &[0; 9]);
    let done = completions(&mut host).pop().unwrap();
    assert_eq!(done.status, Status::Queue(QueueError::InvalidLength));
}

fn aborts(arrivals: &[Arrival]) -> Vec<CommandId> {
    arrivals
        .iter()
        .filter_map(|a| if let Arrival::Abort(id) = a { Some(*id) } else { None })
        .collect()
}

/// An abort reaches the running command it names, once, and no other.
fn aborts_reach_their_command<T: Transport>() {
    let (mut host, mut dpu) = T::pair(4);
    let (a, b) = (host.acquire().unwrap(), host.acquire().unwrap());
    let a_id = host.submit(a, &submission(b"a")).unwrap();
    let b_id = host.submit(b, &submission(b"b")).unwrap();
    ring(&mut host);
    let mut work = commands(&mut dpu);
    assert_eq!(work.iter().map(|c| c.id()).collect::<Vec<_>>(), [a_id, b_id]);
    let _asleep = host.abort(b_id);
    assert_eq!(aborts(&arrivals(&mut dpu)), [b_id]);
    assert!(arrivals(&mut dpu).is_empty(), "once");
    answer(&mut dpu, work.pop().unwrap(), Status::Queue(QueueError::Aborted), 0, &[]);
    answer(&mut dpu, work.pop().unwrap(), Status::Ok, 0, &[]);
    assert_eq!(completions(&mut host).len(), 2, "each completes once");
    // Too late: the command is answered, and the slot's next use must not suffer for it.
    let _asleep = host.abort(a_id);
    host.release(a).unwrap();
    host.release(b).unwrap();
    let again: Vec<Cid> = (0..2).map(|_| host.acquire().unwrap()).collect();
    for cid in again {
        host.submit(cid, &submission(b"again")).unwrap();
    }
    ring(&mut host);
    assert_eq!(aborts(&arrivals(&mut dpu)), []);
    // Not yet fetched: the abort comes with the command.
    let c = host.acquire().unwrap();
    let c_id = host.submit(c, &submission(b"c")).unwrap();
    ring(&mut host);
    let _asleep = host.abort(c_id);
    let both = arrivals(&mut dpu);
    assert_eq!(aborts(&both), [c_id]);
    assert!(matches!(&both[0], Arrival::Command(command) if command.id() == c_id));
}

/// Sleepers are woken exactly when they asked for it and there is work.
fn sleepers_are_woken<T: Transport>() {
    let (mut host, mut dpu) = T::pair(4);
    let cid = host.acquire().unwrap();
    host.submit(cid, &submission(b"x")).unwrap();
    assert!(!host.ring(), "the DPU is awake");
    assert!(!dpu.may_sleep(), "there is work");
    let command = commands(&mut dpu).pop().unwrap();
    assert!(dpu.may_sleep());
    dpu.awake();
    dpu.complete(command, Status::Ok, 0, &[]);
    assert!(!dpu.flush(), "the host is awake");
    assert_eq!(host.may_sleep(), None, "there is a completion");
    assert_eq!(completions(&mut host).len(), 1);
    host.release(cid).unwrap();

    assert!(dpu.may_sleep());
    let cid = host.acquire().unwrap();
    let id = host.submit(cid, &submission(b"y")).unwrap();
    assert!(host.ring(), "wake it");
    assert!(!host.abort(id), "once");
    dpu.awake();
    let command = commands(&mut dpu).pop().unwrap();
    let value = host.may_sleep().unwrap();
    assert!(!dpu.flush(), "nothing new");
    dpu.complete(command, Status::Ok, 0, &[]);
    assert!(dpu.flush());
    assert!(!dpu.flush(), "once");
    assert_eq!(host.may_sleep(), None);
    completions(&mut host);
    assert_ne!(host.may_sleep(), Some(value), "the word it slept on moved");
    host.awake();
    assert!(dpu.may_sleep());
    assert!(host.abort(id), "an abort wakes too");
}

/// A slot used out of turn is refused and nothing changes.
fn slots_keep_their_turn<T: Transport>() {
    let (mut host, mut dpu) = T::pair(4);
    let cid = host.acquire().unwrap();
    let long = vec![0; 2561];
    assert_eq!(host.submit(cid, &submission(&long)), Err(SlotError::TooLong));
    let span = Span { offset: 1, len: 1 << 20 };
    assert_eq!(
        host.submit(cid, &Submission { write: span, ..submission(b"") }),
        Err(SlotError::TooLong)
    );
    let fat = Submission { reply_header: 257, ..submission(b"") };
    assert_eq!(host.submit(cid, &fat), Err(SlotError::TooLong));
    assert_eq!(host.write_buffer(cid, u32::MAX, b"x"), Err(SlotError::TooLong));
    host.submit(cid, &submission(b"x")).unwrap();
    assert_eq!(host.submit(cid, &submission(b"x")), Err(SlotError::State));
    assert_eq!(host.release(cid), Err(SlotError::State));
    assert_eq!(host.write_buffer(cid, 0, b"x"), Err(SlotError::State));
    assert_eq!(host.reply_header(cid, &mut []), Err(SlotError::State));
    assert!(host.buffer(cid, Span::first(1)).is_err());
    assert_eq!(host.release(Cid(999)), Err(SlotError::State));
    ring(&mut host);
    let command = commands(&mut dpu).pop().unwrap();
    answer(&mut dpu, command, Status::Ok, 0, &[]);
    assert_eq!(completions(&mut host).len(), 1);
    host.release(cid).unwrap();
    assert_eq!(host.release(cid), Err(SlotError::State));
}

macro_rules! conformance {
    ($($transport:ident, $module:ident: $($test:ident)*;)*) => {$(
        mod $module {
            $(#[test] fn $test() { super::$test::<super::$transport>(); })*
        }
    )*};
}

conformance! {
    Nvmefs, nvmefs:
        bytes_cross_unchanged a_full_queue_pushes_back doorbells_batch completions_come_in_any_order
        statuses_arrive lengths_are_kept aborts_reach_their_command sleepers_are_woken
        slots_keep_their_turn;
    Dpfs, virtiofs_dpfs:
        bytes_cross_unchanged a_full_queue_pushes_back doorbells_batch completions_come_in_any_order
        statuses_arrive lengths_are_kept aborts_reach_their_command sleepers_are_woken
        slots_keep_their_turn;
    Tuned, virtiofs_tuned:
        bytes_cross_unchanged a_full_queue_pushes_back doorbells_batch completions_come_in_any_order
        statuses_arrive lengths_are_kept aborts_reach_their_command sleepers_are_woken
        slots_keep_their_turn;
}

//! The bodies of this crate's fuzz targets for link formats: any bytes in, no panic out, and what is
//! accepted says the same when written again. `fuzz/` drives them with libFuzzer; the tests below drive
//! them with seeded mutations, so that every run of the suite exercises them.

use super::{CQE_LEN, Cqe, Prp, SQE_LEN, Sqe, prp};
use crate::attach::Message;
use crate::event::{EVENT_LEN, Event};

/// Submission entries.
pub fn sqe(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<SQE_LEN>() else { return };
    if let Ok(sqe) = Sqe::parse(bytes) {
        assert_eq!(Sqe::parse(&sqe.emit()), Ok(sqe));
        assert!(sqe.write_len >= u32::from(sqe.wh_len) && sqe.read_len >= u32::from(sqe.rh_len));
    }
}

/// Completion entries.
pub fn cqe(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<CQE_LEN>() else { return };
    let cqe = Cqe::parse(bytes);
    assert_eq!(Cqe::parse(&cqe.emit()), cqe);
}

/// PRP entries and lists: two entries, a length, a region length, and the list.
pub fn prp_list(data: &[u8]) {
    let Some((head, list)) = data.split_first_chunk::<32>() else { return };
    let (len, region_len) = (super::u32_at(head, 16), super::u64_at(head, 24));
    let entries = Prp { first: super::u64_at(head, 0), second: super::u64_at(head, 8) };
    let mut out = Vec::new();
    if let Ok(Some(extent)) = prp::list_of(entries, len, region_len) {
        assert!(extent.end() <= region_len && extent.len <= 4096);
    }
    if prp::walk(entries, len, list, region_len, &mut out).is_ok() {
        assert!(out.iter().all(|extent| extent.at >= 4096 && extent.end() <= region_len));
        assert_eq!(out.iter().map(|e| u64::from(e.len)).sum::<u64>(), u64::from(len));
    }
}

/// Event entries.
pub fn event(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<EVENT_LEN>() else { return };
    if let Ok(event) = Event::parse(bytes) {
        assert_eq!(Event::parse(&event.emit(Event::sequence_of(bytes))), Ok(event));
    }
}

/// Attach messages.
pub fn attach(data: &[u8]) {
    if let Ok(message) = Message::parse(data) {
        assert_eq!(Message::parse(&message.emit()), Ok(message));
    }
}

#[cfg(test)]
mod tests {
    use outboard_base::{Ino, Rng, SessionId};

    use super::*;
    use crate::attach::{Hello, Reason};
    use crate::nvmefs::{Dispatch, Status};

    /// Seeds of every format, mutated: bits flipped, bytes replaced, cut and grown.
    fn mutate(name: &str, body: fn(&[u8]), seeds: &[Vec<u8>]) {
        let seed = 0x5EED_0001;
        let mut rng = Rng::new(seed);
        for round in 0..20_000 {
            let pick = usize::try_from(rng.below(seeds.len() as u64)).unwrap();
            let mut data = seeds[pick].clone();
            for _ in 0..rng.below(6) {
                let at = usize::try_from(rng.below(data.len().max(1) as u64)).unwrap();
                match (rng.below(4), data.get_mut(at)) {
                    (0, Some(byte)) => *byte ^= 1 << rng.below(8),
                    (1, Some(byte)) => rng.fill(std::slice::from_mut(byte)),
                    (2, _) => data.truncate(at),
                    _ => data.extend([0xFF; 5]),
                }
            }
            let run = std::panic::catch_unwind(|| body(&data));
            assert!(run.is_ok(), "{name}: seed {seed:#x} round {round}: {data:02x?}");
        }
    }

    #[test]
    fn mutated_entries() {
        let good = Sqe {
            cid: 3,
            tag: 9,
            dispatch: Dispatch::Kv,
            write: Prp { first: 0x1F80, second: 0x3000 },
            read: Prp::default(),
            write_len: 0x80 + 8192,
            read_len: 0,
            rh_len: 0,
            wh_len: 0x80,
        };
        mutate("sqe", sqe, &[good.emit().to_vec(), vec![0; 64], vec![0xFF; 64]]);
        let answer =
            Cqe { result: 8, sq_head: 1, queue: 0, cid: 3, phase: true, status: Status::Ok };
        mutate("cqe", cqe, &[answer.emit().to_vec()]);
        let inval = Event::invalidate_entry(Ino(7), b"name").emit(3).to_vec();
        mutate("event", event, &[inval, Event::Overflow.emit(1).to_vec()]);
    }

    #[test]
    fn mutated_lists() {
        let mut seed = Vec::new();
        for word in [0x1F80u64, 0x3000, 8192 + 0x80, 1 << 20, 0x4000, 0x5000, 0x7000] {
            seed.extend(word.to_le_bytes());
        }
        mutate("prp_list", prp_list, &[seed]);
    }

    #[test]
    fn mutated_messages() {
        let hello = Hello { session: SessionId(1), region_len: 1 << 20, queues: 2, depth: 64 };
        let seeds = [
            Message::Hello(hello).emit(),
            Message::Refused { reason: Reason::Full, text: "full".into() }.emit(),
            Message::Control { id: 1, text: "{}".into() }.emit(),
        ];
        mutate("attach", attach, &seeds);
    }
}

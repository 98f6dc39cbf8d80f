//! The bodies of the fuzz targets `call` and `opening`: what the parts of a cluster say to each
//! other beside requests.

use crate::shared::call::{Call, CallHead, Layout, Reply};
use crate::shared::{MessageKind, Opening, Peer};

/// Calls and replies, alone and behind their head; layouts.
pub fn call(data: &[u8]) {
    if let Ok((head, rest)) = CallHead::parse(data) {
        assert_eq!(MessageKind::of(data), Some(MessageKind::Call));
        assert_eq!([&head.emit()[..], rest].concat(), data);
        body(rest);
    }
    body(data);
    if let Ok(layout) = Layout::decode(data) {
        assert_eq!(layout.encode(), data);
    }
}

fn body(data: &[u8]) {
    let mut again = Vec::new();
    if let Ok(call) = Call::decode(data) {
        call.encode(&mut again);
        assert_eq!(again, data);
    }
    again.clear();
    if let Ok(reply) = Reply::decode(data) {
        reply.encode(&mut again);
        assert_eq!(again, data);
    }
}

/// Openings of conversations, and the names in them.
pub fn opening(data: &[u8]) {
    if let Ok(opening) = Opening::parse(data) {
        assert_eq!(opening.emit(), data);
        assert_eq!(MessageKind::of(data), None);
    }
    if let Some(raw) = data.first_chunk().map(|raw| u64::from_le_bytes(*raw))
        && let Ok(peer) = Peer::decode(raw)
    {
        assert_eq!(peer.encode(), raw);
    }
}

#[cfg(test)]
mod tests {
    use outboard_base::Rng;

    use super::*;
    use crate::roce::Psn;
    use crate::shared::call::examples;
    use crate::shared::{Answer, MAC_LEN, Request, Step};

    const ROUNDS: u64 = 200_000;

    fn pick(rng: &mut Rng, below: usize) -> usize {
        usize::try_from(rng.below(below.max(1) as u64)).unwrap()
    }

    /// One of `seeds` with a few changes: bits and bytes, numbers that are often limits, what is
    /// cut, what is added, and what comes from another seed.
    fn changed(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut data = seeds[pick(rng, seeds.len())].clone();
        for _ in 0..=rng.below(3) {
            let at = pick(rng, data.len());
            match (rng.below(7), data.get_mut(at)) {
                (0 | 1, Some(byte)) => *byte ^= 1 << rng.below(8),
                (2, Some(byte)) => rng.fill(std::slice::from_mut(byte)),
                (3, Some(byte)) => *byte = [0, 1, 2, 0x7F, 0x80, 0xFF][pick(rng, 6)],
                (4, _) => data.truncate(at),
                (5, _) => data.extend(vec![0xFF; pick(rng, 9)]),
                _ => {
                    let other = &seeds[pick(rng, seeds.len())];
                    let from = pick(rng, other.len());
                    data.truncate(at);
                    data.extend(&other[from..]);
                }
            }
        }
        data
    }

    /// Runs `body` on what becomes of `seeds`; how many of them were accepted.
    fn mutate(body: fn(&[u8]), is_accepted: fn(&[u8]) -> bool, seeds: &[Vec<u8>]) -> u64 {
        let given = std::env::var("OUTBOARD_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = given.unwrap_or(0x5EED_0002);
        let mut rng = Rng::new(seed);
        let mut accepted = 0;
        for round in 0..ROUNDS {
            let data = changed(&mut rng, seeds);
            let run = std::panic::catch_unwind(|| body(&data));
            assert!(run.is_ok(), "OUTBOARD_SEED={seed}, round {round}: {data:02x?}");
            accepted += u64::from(is_accepted(&data));
        }
        accepted
    }

    /// Enough of what is changed is still accepted, so that its bytes are compared.
    #[test]
    fn mutated_calls() {
        let calls = examples::calls().into_iter().map(|(_, bytes)| (false, bytes));
        let replies = examples::replies().into_iter().map(|(_, bytes)| (true, bytes));
        let mut seeds = vec![Layout::default().encode().to_vec()];
        for (number, (is_reply, bytes)) in (1..).zip(calls.chain(replies)) {
            seeds.push([&CallHead { call: number, is_reply }.emit()[..], &bytes].concat());
            seeds.push(bytes);
        }
        let is_accepted = |data: &[u8]| Call::decode(data).is_ok() || Reply::decode(data).is_ok();
        let accepted = mutate(call, is_accepted, &seeds);
        assert!(accepted > ROUNDS / 20, "{accepted}");
    }

    #[test]
    fn mutated_messages_of_nodes() {
        let is_accepted = |data: &[u8]| Request::parse(data).is_ok() || Answer::split(data).is_ok();
        let seeds = crate::fuzz::tests::packet_seeds();
        let accepted = mutate(crate::fuzz::packet, is_accepted, &seeds);
        assert!(accepted > ROUNDS / 20, "{accepted}");
    }

    #[test]
    fn mutated_openings() {
        let open = Opening {
            step: Step::Open,
            cluster: 1,
            from: Peer::Client(0x1F),
            to: Peer::Node(3),
            life: 9,
            life_seen: 0,
            queue: 0x11,
            first: Psn::new(5),
            payload: 1440,
            sealed: true,
            nonce: 7,
            mac: [0; MAC_LEN],
        };
        let open = open.sign(&[1; 32]);
        let (step, from, to) = (Step::Refused, Peer::Server(0), Peer::Server(1));
        let refused = Opening { step, from, to, payload: 0, ..open };
        let seeds = [open.emit().to_vec(), refused.emit().to_vec()];
        let accepted = mutate(opening, |data| Opening::parse(data).is_ok(), &seeds);
        assert!(accepted > ROUNDS / 20, "{accepted}");
    }
}

//! The answers of one connection, in the order of its requests.
//!
//! Some are known, some wait for the file (a *token* stands in their place), and some may leave
//! only when something else has happened (a *gate* stands before them). What leaves is what stands
//! before the first token and the first closed gate.
//!
//! ```text
//! closed: bytes | token | bytes | gate 7 | bytes      tail: bytes
//!         ^ sent of the first
//! ```

use std::collections::VecDeque;
use std::io::IoSlice;

use outboard_pageserver::tcp::sockets::PIECES;

/// A buffer longer than this is not kept when all of it was sent.
const KEPT: usize = 128 << 10;

enum Chunk {
    Bytes(Vec<u8>),
    Waiting(u64),
    Gate(u64),
}

/// Where an answer begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    closed: usize,
    tail: usize,
}

/// The answers.
#[derive(Default)]
pub(crate) struct Answers {
    closed: VecDeque<Chunk>,
    /// Bytes in `closed`.
    closed_len: usize,
    /// The end of what is known.
    tail: Vec<u8>,
    /// Bytes of the first chunk (of the tail, if there is none) that were sent.
    sent: usize,
    waiting: usize,
    gates: usize,
    /// The greatest gate there was.
    gate: u64,
    next_token: u64,
}

impl Answers {
    /// Known bytes go to its end.
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// An answer that is to come; [`Answers::fill`] puts it here.
    pub(crate) fn wait(&mut self) -> u64 {
        self.close_tail();
        let token = self.next_token;
        self.next_token += 1;
        self.waiting += 1;
        self.closed.push_back(Chunk::Waiting(token));
        token
    }

    /// The answer that was waited for.
    pub(crate) fn fill(&mut self, token: u64, bytes: Vec<u8>) {
        let is_it = |chunk: &&mut Chunk| matches!(chunk, Chunk::Waiting(t) if *t == token);
        // From the end: what is known and not read may be much, what is waited for is little.
        if let Some(place) = self.closed.iter_mut().rev().find(is_it) {
            self.waiting -= 1;
            self.closed_len += bytes.len();
            *place = Chunk::Bytes(bytes);
        }
    }

    /// Where the next answer begins.
    pub(crate) fn mark(&self) -> Mark {
        Mark { closed: self.closed.len(), tail: self.tail.len() }
    }

    /// What came since `mark` leaves when `gate` is open, not before. Gates open in order.
    pub(crate) fn hold(&mut self, mark: Mark, gate: u64) {
        if gate <= self.gate && self.gates > 0 {
            return;
        }
        (self.gate, self.gates) = (gate, self.gates + 1);
        if self.closed.len() > mark.closed {
            // The bytes before it are now in one chunk with it, and wait as long.
            return self.closed.insert(mark.closed, Chunk::Gate(gate));
        }
        let held = self.tail.split_off(mark.tail.min(self.tail.len()));
        self.close_tail();
        self.closed.push_back(Chunk::Gate(gate));
        self.tail = held;
    }

    fn close_tail(&mut self) {
        if self.closed.is_empty() && self.sent >= self.tail.len() {
            self.tail.clear();
            self.sent = 0;
        }
        if !self.tail.is_empty() {
            self.closed_len += self.tail.len();
            self.closed.push_back(Chunk::Bytes(std::mem::take(&mut self.tail)));
        }
    }

    /// Bytes that are known and were not sent.
    pub(crate) fn len(&self) -> usize {
        self.closed_len + self.tail.len() - self.sent
    }

    /// Whether everything was sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0 && self.len() == 0
    }

    /// Answers to come.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Gates that are closed, as far as was looked.
    pub(crate) fn gates(&self) -> usize {
        self.gates
    }

    /// What may leave now, in `pieces`; how many there are. `is_open` tells of a gate.
    pub(crate) fn pieces<'a>(
        &'a mut self,
        pieces: &mut [IoSlice<'a>; PIECES],
        is_open: impl Fn(u64) -> bool,
    ) -> usize {
        self.open_gates(is_open);
        let known = self.closed.iter().map_while(|chunk| match chunk {
            Chunk::Bytes(bytes) => Some(bytes.as_slice()),
            Chunk::Waiting(_) | Chunk::Gate(_) => None,
        });
        let is_all = self.waiting == 0 && self.gates == 0;
        let tail = is_all.then_some(self.tail.as_slice());
        let mut skip = self.sent;
        let rests = known.chain(tail).map(|piece| {
            let rest = piece.get(std::mem::take(&mut skip)..);
            rest.unwrap_or_default()
        });
        let mut count = 0;
        for (rest, place) in rests.filter(|rest| !rest.is_empty()).zip(pieces) {
            *place = IoSlice::new(rest);
            count += 1;
        }
        count
    }

    /// Takes away the open gates before the first thing that cannot leave.
    fn open_gates(&mut self, is_open: impl Fn(u64) -> bool) {
        let mut at = 0;
        while self.gates > 0 {
            match self.closed.get(at) {
                Some(Chunk::Bytes(_)) => at += 1,
                Some(Chunk::Gate(gate)) if is_open(*gate) => {
                    self.closed.remove(at);
                    self.gates -= 1;
                }
                _ => return,
            }
        }
    }

    /// `n` bytes of the pieces were sent.
    pub(crate) fn took(&mut self, n: usize) {
        self.sent += n;
        while let Some(Chunk::Bytes(bytes)) = self.closed.front() {
            if self.sent < bytes.len() {
                return;
            }
            self.sent -= bytes.len();
            self.closed_len -= bytes.len();
            self.closed.pop_front();
        }
        if self.closed.is_empty() && self.sent >= self.tail.len() {
            self.sent = 0;
            self.tail.clear();
            if self.tail.capacity() > KEPT {
                self.tail = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Known(usize),
        Wait,
        /// An answer of a known part, one to come and another known part, as MGET's.
        Both(usize),
        Fill(prop::sample::Index),
        Open(u64),
        Send(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..300usize).prop_map(Step::Known),
            Just(Step::Wait),
            (0..9usize).prop_map(Step::Both),
            any::<prop::sample::Index>().prop_map(Step::Fill),
            (1..3u64).prop_map(Step::Open),
            (1..400usize).prop_map(Step::Send),
        ]
    }

    /// The reference: every answer by itself, with its gate.
    struct Known {
        parts: Vec<Option<Vec<u8>>>,
        gate: u64,
    }

    fn sendable(answers: &mut Answers, open: u64) -> Vec<u8> {
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let n = answers.pieces(&mut pieces, |gate| gate <= open);
        pieces[..n].iter().flat_map(|piece| piece.to_vec()).collect()
    }

    proptest! {
        /// What is sent is the answers in order, none that is to come, none behind its gate; and
        /// all of them once everything has come.
        #[test]
        fn answers_leave_in_order_when_they_may(
            steps in prop::collection::vec((step(), 0..3u64), 1..200),
        ) {
            let mut answers = Answers::default();
            let (mut all, mut sent): (Vec<Known>, Vec<u8>) = (Vec::new(), Vec::new());
            let (mut tokens, mut open, mut gate) = (BTreeMap::new(), 0u64, 0u64);
            let bytes = |all: &[Known], n: usize| vec![u8::try_from(all.len() % 251).unwrap(); n];
            for (step, raise) in steps {
                let mark = answers.mark();
                let mut come = None;
                match step {
                    Step::Known(n) => {
                        answers.tail().extend(bytes(&all, n));
                        come = Some(vec![Some(bytes(&all, n))]);
                    }
                    Step::Wait => {
                        tokens.insert(answers.wait(), (all.len(), 0));
                        come = Some(vec![None]);
                    }
                    Step::Both(n) => {
                        answers.tail().extend(bytes(&all, n));
                        tokens.insert(answers.wait(), (all.len(), 1));
                        answers.tail().extend(bytes(&all, n));
                        come = Some(vec![Some(bytes(&all, n)), None, Some(bytes(&all, n))]);
                    }
                    Step::Fill(which) if !tokens.is_empty() => {
                        let token = *which.get(&tokens.keys().copied().collect::<Vec<_>>());
                        let (answer, part) = tokens.remove(&token).unwrap();
                        answers.fill(token, vec![7; 5]);
                        all[answer].parts[part] = Some(vec![7; 5]);
                    }
                    Step::Fill(_) => {}
                    Step::Open(more) => open = (open + more).min(gate),
                    Step::Send(n) => {
                        let some = sendable(&mut answers, open);
                        let n = n.min(some.len());
                        sent.extend(&some[..n]);
                        answers.took(n);
                    }
                }
                if let Some(parts) = come {
                    gate += raise;
                    if gate > open {
                        answers.hold(mark, gate);
                    }
                    all.push(Known { parts, gate });
                }
                let whole = all.iter().take_while(|a| a.gate <= open).flat_map(|a| &a.parts);
                let may: Vec<u8> =
                    whole.map_while(Option::as_ref).flatten().copied().collect();
                prop_assert!(may.starts_with(&sent), "only what may leave has left");
                prop_assert_eq!(answers.waiting(), tokens.len());
                let known: usize = all.iter().flat_map(|a| &a.parts).flatten().map(Vec::len).sum();
                prop_assert_eq!(answers.len(), known - sent.len());
            }
            for (token, (answer, part)) in tokens {
                answers.fill(token, vec![9; answer % 3]);
                all[answer].parts[part] = Some(vec![9; answer % 3]);
            }
            while !answers.is_empty() {
                let some = sendable(&mut answers, gate);
                prop_assert!(!some.is_empty(), "nothing is left to wait for");
                answers.took(some.len());
                sent.extend(some);
            }
            // Gates before answers of no bytes stand until somebody looks.
            prop_assert!(sendable(&mut answers, gate).is_empty());
            let whole: Vec<u8> =
                all.into_iter().flat_map(|a| a.parts).flatten().flatten().collect();
            prop_assert_eq!(sent, whole);
            prop_assert_eq!((answers.gates(), answers.waiting(), answers.len()), (0, 0, 0));
        }
    }
}

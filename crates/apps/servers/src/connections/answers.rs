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

/// A buffer longer than this is not kept when all of it was sent: clients that are idle have one
/// each.
const KEPT: usize = 2 << 10;

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

    /// Bytes of memory they take, or may take when those to come are of `answer` bytes each.
    pub(crate) fn held(&self, answer: usize) -> usize {
        let tail = if self.tail.is_empty() { 0 } else { self.tail.capacity() };
        self.closed_len + tail + self.waiting * answer
    }

    /// Whether everything was sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0 && self.len() == 0
    }

    /// Whether they wait for nobody but the client that is to read them.
    pub(crate) fn are_unread(&self) -> bool {
        self.waiting == 0 && self.gates == 0 && !self.is_empty()
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

    /// The answers beside the reference.
    #[derive(Default)]
    struct Both {
        answers: Answers,
        all: Vec<Known>,
        sent: Vec<u8>,
        /// Answer and part that each token is to fill.
        tokens: BTreeMap<u64, (usize, usize)>,
        open: u64,
        gate: u64,
    }

    impl Both {
        fn bytes(&self, n: usize) -> Vec<u8> {
            vec![u8::try_from(self.all.len() % 251).unwrap(); n]
        }

        fn known(&mut self, n: usize) -> Option<Vec<u8>> {
            let bytes = self.bytes(n);
            self.answers.tail().extend(&bytes);
            Some(bytes)
        }

        fn wait(&mut self, part: usize) -> Option<Vec<u8>> {
            self.tokens.insert(self.answers.wait(), (self.all.len(), part));
            None
        }

        fn fill(&mut self, token: u64, (answer, part): (usize, usize), bytes: Vec<u8>) {
            self.answers.fill(token, bytes.clone());
            self.all[answer].parts[part] = Some(bytes);
        }

        fn step(&mut self, step: Step, raise: u64) {
            let mark = self.answers.mark();
            let parts = match step {
                Step::Known(n) => vec![self.known(n)],
                Step::Wait => vec![self.wait(0)],
                Step::Both(n) => vec![self.known(n), self.wait(1), self.known(n)],
                Step::Fill(which) if !self.tokens.is_empty() => {
                    let token = *which.get(&self.tokens.keys().copied().collect::<Vec<_>>());
                    let place = self.tokens.remove(&token).unwrap();
                    return self.fill(token, place, vec![7; 5]);
                }
                Step::Fill(_) => return,
                Step::Open(more) => {
                    self.open = (self.open + more).min(self.gate);
                    return;
                }
                Step::Send(n) => {
                    let some = sendable(&mut self.answers, self.open);
                    let n = n.min(some.len());
                    self.sent.extend(&some[..n]);
                    return self.answers.took(n);
                }
            };
            self.gate += raise;
            if self.gate > self.open {
                self.answers.hold(mark, self.gate);
            }
            self.all.push(Known { parts, gate: self.gate });
        }

        fn check(&self) {
            let open = self.all.iter().take_while(|a| a.gate <= self.open);
            let whole = open.flat_map(|a| &a.parts);
            let may: Vec<u8> = whole.map_while(Option::as_ref).flatten().copied().collect();
            assert!(may.starts_with(&self.sent), "only what may leave has left");
            assert_eq!(self.answers.waiting(), self.tokens.len());
            let parts = self.all.iter().flat_map(|a| &a.parts);
            let known: usize = parts.flatten().map(Vec::len).sum();
            assert_eq!(self.answers.len(), known - self.sent.len());
        }

        /// What was waited for comes, and all gates open.
        fn end(mut self) {
            for (token, place) in std::mem::take(&mut self.tokens) {
                self.fill(token, place, vec![9; place.0 % 3]);
            }
            while !self.answers.is_empty() {
                let some = sendable(&mut self.answers, self.gate);
                assert!(!some.is_empty(), "nothing is left to wait for");
                self.answers.took(some.len());
                self.sent.extend(some);
            }
            // Gates before answers of no bytes stand until somebody looks.
            assert!(sendable(&mut self.answers, self.gate).is_empty());
            let parts = self.all.into_iter().flat_map(|a| a.parts);
            let whole: Vec<u8> = parts.flatten().flatten().collect();
            assert_eq!(self.sent, whole);
            let answers = &self.answers;
            assert_eq!((answers.gates(), answers.waiting(), answers.len()), (0, 0, 0));
        }
    }

    proptest! {
        /// What is sent is the answers in order, none that is to come, none behind its gate; and
        /// all of them once everything has come.
        #[test]
        fn answers_leave_in_order_when_they_may(
            steps in prop::collection::vec((step(), 0..3u64), 1..200),
        ) {
            let mut both = Both::default();
            for (step, raise) in steps {
                both.step(step, raise);
                both.check();
            }
            both.end();
        }
    }
}

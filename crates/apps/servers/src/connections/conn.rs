//! One connection as its service sees it, and the table of all.

use std::collections::VecDeque;

use outboard_base::Time;
use outboard_pageserver::tcp::sockets::ConnId;

use super::answers::Answers;
use super::{GATES_MAX, LATER, OUT_MAX, WAITING_MAX};

/// A connection.
pub(crate) struct Conn<S> {
    id: ConnId,
    input: Vec<u8>,
    /// Where the first request begins in it.
    start: usize,
    /// No request before there are so many bytes.
    needs: usize,
    /// Its answers.
    pub(crate) answers: Answers,
    /// The service's own.
    pub(crate) state: S,
    /// Its next request waits for something, and whoever ends that says so.
    pub(crate) paused: bool,
    /// No request any more; closed when all is sent.
    pub(crate) closing: bool,
    /// Its command goes on when others were served.
    pub(crate) yields: bool,
    /// The client sends no more.
    pub(super) ended: bool,
    queued: bool,
    /// It waits for memory.
    pub(super) starves: bool,
    /// Bytes that count as held by it.
    pub(super) counted: usize,
    /// Its answers may be so many bytes before its requests wait; bytes of one that is to come.
    out_max: usize,
    answer_max: usize,
    /// Requests that were taken.
    pub(super) requests: u64,
    /// When bytes came or went last.
    pub(super) moved: Time,
}

/// Input longer than this is not kept when all of it was taken.
const KEPT: usize = 2 << 10;

impl<S: Default> Conn<S> {
    pub(super) fn new(id: ConnId, now: Time) -> Conn<S> {
        Conn {
            id,
            input: Vec::new(),
            start: 0,
            needs: 0,
            answers: Answers::default(),
            state: S::default(),
            paused: false,
            closing: false,
            yields: false,
            ended: false,
            queued: false,
            starves: false,
            counted: 0,
            out_max: OUT_MAX,
            answer_max: 0,
            requests: 0,
            moved: now,
        }
    }
}

impl<S> Conn<S> {
    /// Its name.
    pub(crate) fn id(&self) -> ConnId {
        self.id
    }

    /// What was received and not taken.
    pub(crate) fn input(&self) -> &[u8] {
        self.input.get(self.start..).unwrap_or_default()
    }

    /// The same, lent out so that the connection can be changed meanwhile; [`Conn::give_back`]
    /// ends it.
    pub(crate) fn lend(&mut self) -> Lent {
        Lent { input: std::mem::take(&mut self.input), start: self.start }
    }

    /// Ends a loan.
    pub(crate) fn give_back(&mut self, lent: Lent) {
        self.input = lent.input;
    }

    /// The first `n` bytes of the input were a request.
    pub(crate) fn take(&mut self, n: usize) {
        self.needs = 0;
        self.requests += 1;
        self.start += n;
        if self.start >= self.input.len() {
            self.drop_input();
        }
    }

    /// What was received and not taken is no request any more.
    pub(crate) fn drop_input(&mut self) {
        self.start = 0;
        self.input.clear();
        if self.input.capacity() > KEPT {
            self.input = Vec::new();
        }
    }

    /// The next request is at least so long.
    pub(crate) fn need(&mut self, bytes: usize) {
        self.needs = bytes;
    }

    /// Whether there may be a request in the input.
    pub(crate) fn may_have_request(&self) -> bool {
        self.input().len() >= self.needs.max(1)
    }

    /// Whether another request may be taken.
    pub(crate) fn has_room(&self) -> bool {
        self.is_free() && self.answers.held(self.answer_max) < self.out_max
    }

    /// The same, if memory were without end.
    pub(super) fn is_free(&self) -> bool {
        !self.paused
            && !self.closing
            && self.answers.len() < OUT_MAX
            && self.answers.waiting() < WAITING_MAX
            && self.answers.gates() < GATES_MAX
    }

    /// Bytes it holds, if the service's own of it are `state` and of an answer to come
    /// `answer_max`.
    pub(super) fn held(&self, state: usize, answer_max: usize) -> usize {
        let input = if self.input.is_empty() { 0 } else { self.input.capacity() };
        input + state + self.answers.held(answer_max)
    }

    /// Lets its answers grow to `out_max` bytes, each that is to come of `answer_max`.
    pub(super) fn allow(&mut self, out_max: usize, answer_max: usize) {
        (self.out_max, self.answer_max) = (out_max, answer_max);
    }

    /// Whether it is to be read from, if its input is to be no longer than `most`.
    pub(super) fn has_input_room(&self, most: usize) -> bool {
        self.has_room() && self.input().len() < most
    }

    /// Whether everything that is to be sent was, and no more is to come.
    pub(super) fn is_over(&self) -> bool {
        let no_more = self.closing || (self.ended && !self.may_have_request());
        no_more && !self.paused && self.answers.is_empty()
    }

    pub(super) fn received(&mut self, bytes: &[u8]) {
        // A byte is moved once for each that was taken before it.
        if self.start > 0 && self.start >= self.input.len() / 2 {
            self.input.drain(..self.start);
            self.start = 0;
        }
        if self.input.capacity() - self.input.len() < bytes.len() {
            // A quarter more than is there: many reads share a move, and little is idle.
            self.input.reserve_exact(bytes.len() + self.input.len() / 4);
        }
        self.input.extend_from_slice(bytes);
    }
}

/// Input that was lent out.
pub(crate) struct Lent {
    input: Vec<u8>,
    start: usize,
}

impl Lent {
    /// What was received and not taken.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.input.get(self.start..).unwrap_or_default()
    }
}

/// All connections, and those that have something to do.
pub(crate) struct Conns<S> {
    table: Vec<Option<Conn<S>>>,
    /// To be served in the next round.
    queue: VecDeque<ConnId>,
    /// To be served after others.
    later: VecDeque<ConnId>,
    /// To be sent to before this round ends.
    to_send: Vec<ConnId>,
}

impl<S: Default> Conns<S> {
    pub(super) fn new() -> Conns<S> {
        let (queue, later) = Default::default();
        Conns { table: Vec::new(), queue, later, to_send: Vec::new() }
    }

    pub(super) fn add(&mut self, id: ConnId, now: Time) {
        if self.table.len() <= id.index() {
            self.table.resize_with(id.index() + 1, || None);
        }
        self.lower(Conn::new(id, now));
    }
}

impl<S> Conns<S> {
    /// A connection, if it is there still.
    pub(crate) fn get(&mut self, id: ConnId) -> Option<&mut Conn<S>> {
        self.table.get_mut(id.index())?.as_mut().filter(|conn| conn.id == id)
    }

    /// It can go on: its requests are looked at, and what it has is sent.
    pub(crate) fn wake(&mut self, id: ConnId) {
        self.to_send.push(id);
        self.enqueue(id);
    }

    /// All can.
    pub(crate) fn wake_all(&mut self) {
        let all: Vec<ConnId> = self.table.iter().flatten().map(|conn| conn.id).collect();
        all.into_iter().for_each(|id| self.wake(id));
    }

    pub(super) fn enqueue(&mut self, id: ConnId) {
        if let Some(conn) = self.get(id)
            && !std::mem::replace(&mut conn.queued, true)
        {
            self.queue.push_back(id);
        }
    }

    /// It is served again when others were.
    pub(super) fn enqueue_later(&mut self, id: ConnId) {
        if let Some(conn) = self.get(id)
            && !std::mem::replace(&mut conn.queued, true)
        {
            self.later.push_back(id);
        }
    }

    pub(super) fn has_queue(&self) -> bool {
        !self.queue.is_empty() || !self.later.is_empty()
    }

    /// Those that neither sent nor took anything since `before`, and wait for nothing.
    pub(super) fn idle_since(&self, before: Time) -> Vec<ConnId> {
        let idle = |conn: &&Conn<S>| {
            conn.moved < before && !conn.paused && conn.answers.waiting() == 0 && !conn.queued
        };
        self.table.iter().flatten().filter(idle).map(|conn| conn.id).collect()
    }

    /// Those that have taken nothing of their answers since `before`, and what they hold.
    pub(super) fn unread_since(&self, before: Time) -> Vec<(usize, ConnId)> {
        let unread = |conn: &&Conn<S>| conn.moved <= before && conn.answers.are_unread();
        self.table.iter().flatten().filter(unread).map(|conn| (conn.counted, conn.id)).collect()
    }

    /// Moves those to be served into `round`, and some of those that come after them.
    pub(super) fn begin_round(&mut self, round: &mut Vec<ConnId>) {
        round.extend(self.queue.drain(..));
        round.extend(self.later.drain(..self.later.len().min(LATER)));
        for id in round {
            if let Some(conn) = self.get(*id) {
                conn.queued = false;
            }
        }
    }

    pub(super) fn take_to_send(&mut self) -> Vec<ConnId> {
        std::mem::take(&mut self.to_send)
    }

    pub(super) fn lift(&mut self, id: ConnId) -> Option<Conn<S>> {
        self.table.get_mut(id.index())?.take_if(|conn| conn.id == id)
    }

    pub(super) fn lower(&mut self, conn: Conn<S>) {
        if let Some(place) = self.table.get_mut(conn.id.index()) {
            *place = Some(conn);
        }
    }
}

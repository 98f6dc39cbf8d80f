//! What every server here is around its protocol: connections, their answers in order, the work
//! under way, and one loop on one thread.
//!
//! A [`Service`] is the protocol: it takes requests from a connection's input and puts answers
//! behind one another, known ones, ones that wait for the file, and ones that are held back
//! ([`answers::Answers`]). All else is [`Serving`]'s: accepting, reading, sending, sleeping,
//! ending.
//!
//! ```text
//! round: look for news ▶ each connection with news: read once, requests ▶ what they did is handed
//!        over, what ended is taken in ▶ each of them: send ▶ sleep, if nobody has anything to do
//! ```
//!
//! Nobody is served at the cost of others: a round reads once from each connection, and takes a
//! slice of a long command from [`LATER`] of them. Who does not read its answers is not read from
//! either: beyond [`OUT_MAX`] bytes of known answers or [`WAITING_MAX`] that are to come, its
//! requests wait. All of them together hold no more memory than they may
//! ([`outboard_dds::memory`]). Who ends its side (half-close) gets all answers first.
//!
//! Connections beyond the greatest number are refused in words. One for which the process has no
//! descriptor waits in the kernel; nobody sleeps for it.

mod answers;
mod conn;
mod serving;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outboard_os::wakeup::Wakeup;

pub(crate) use conn::{Conn, Conns};
pub(crate) use serving::{Serving, run_alone};

/// Bytes of answers that wait for a client; beyond, its requests wait.
pub(crate) const OUT_MAX: usize = 1 << 20;
/// Answers of one client that are to come.
pub(crate) const WAITING_MAX: usize = 256;
/// Gates that hold back answers of one client.
pub(crate) const GATES_MAX: usize = 64;

/// Connections whose command goes on in one round, a slice each.
const LATER: usize = 2;

/// What clients are, all together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Crowd {
    pub(crate) clients: usize,
    /// As many as there may be.
    pub(crate) most: usize,
    /// Bytes of their requests and answers.
    pub(crate) held: usize,
    /// The most these ever were.
    pub(crate) peak: usize,
    pub(crate) refused: u64,
}

/// What goes on in the background: it ends with an event.
pub(crate) type Work<E> = Pin<Box<dyn Future<Output = E>>>;

/// A protocol, and what it serves.
pub(crate) trait Service {
    /// What ended in the background.
    type Event;
    /// What it keeps for each connection.
    type State: Default;
    /// Bytes of input beyond which a connection is not read from until requests were taken.
    const INPUT_MAX: usize;

    /// What a client is told that is one too many.
    const REFUSAL: &'static [u8];

    /// Takes requests from the input, as long as [`Conn::has_room`], and answers them.
    fn requests(
        &mut self,
        conn: &mut Conn<Self::State>,
        crowd: &Crowd,
        begin: &mut Vec<Work<Self::Event>>,
    );

    /// Bytes that an answer to come has at most.
    fn answer_max(&self) -> usize;

    /// Bytes of memory that what it keeps for a connection has taken.
    fn held(state: &Self::State) -> usize;

    /// Tells a client, behind its answers, that it is let go: others need the memory, and it is too
    /// slow.
    fn too_slow(conn: &mut Conn<Self::State>);

    /// Something ended in the background.
    fn on(
        &mut self,
        event: Self::Event,
        conns: &mut Conns<Self::State>,
        begin: &mut Vec<Work<Self::Event>>,
    ) -> Result<(), Ended>;

    /// A round is over: what was done is handed over before any answer leaves.
    fn end_round(
        &mut self,
        conns: &mut Conns<Self::State>,
        begin: &mut Vec<Work<Self::Event>>,
    ) -> Result<(), Ended>;

    /// Events were taken in, after the round: what they made possible is begun.
    fn go_on(
        &mut self,
        conns: &mut Conns<Self::State>,
        begin: &mut Vec<Work<Self::Event>>,
    ) -> Result<(), Ended>;

    /// Whether answers behind `gate` may leave.
    fn is_open(&self, gate: u64) -> bool;

    /// Whether requests are taken at all now.
    fn takes_requests(&self) -> bool;

    /// It was told to stop, and nobody is served any more: begins, or goes on, to put things in
    /// order; whether that is over. Asked again after each event, for a few seconds at most.
    fn has_stopped(&mut self, begin: &mut Vec<Work<Self::Event>>) -> bool;
}

/// Told to end from outside.
#[derive(Debug)]
pub struct Stop {
    flag: AtomicBool,
    wakeup: Wakeup,
}

impl Stop {
    /// Nobody was told yet.
    pub fn new() -> io::Result<Arc<Stop>> {
        Ok(Arc::new(Stop { flag: AtomicBool::new(false), wakeup: Wakeup::new()? }))
    }

    /// Ends the server.
    pub fn stop(&self) {
        self.flag.store(true, Ordering::Release);
        self.wakeup.notify();
    }

    fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// Rung when it is told.
    fn wakeup(&self) -> &Wakeup {
        &self.wakeup
    }
}

/// Why a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Told,
    /// The other side of its device is gone, or does not confirm: it must be opened again.
    DeviceLost,
    /// Its journal cannot be written: there is no space, or no disk.
    JournalFailed,
}

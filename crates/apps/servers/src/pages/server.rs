//! The host side: requests of clients, as a [`Service`] over the
//! pages of [`Store`].

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use outboard_pageserver::tcp::sockets::{Address, ConnId, Listener};
use outboard_pageserver::tcp::worker::Limits;

use super::store::{Asked, Event, Store};
use super::wire::{self, Framed, HEAD, PAGE, Request, Status};
use crate::connections::{Conn, Conns, Crowd, Ended, Service, Serving, Stop, Work, run_alone};
use crate::device::Device;

/// Bytes of input that are read ahead of the requests taken.
const INPUT_MAX: usize = 64 << 10;

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Bytes of memory for pages.
    pub memory: usize,
    /// What clients may take of it.
    pub limits: Limits,
}

/// The server.
pub struct PageServer<D: Device>(Serving<Pages<D>, D>);

impl<D: Device> PageServer<D> {
    /// Opens the file; who connected to `listener` meanwhile is served then.
    pub fn open(
        setup: &Setup,
        listener: Listener,
        device: D,
        stop: Arc<Stop>,
    ) -> io::Result<PageServer<D>> {
        let device = Rc::new(device);
        let store = run_alone(&*device, Store::open(Rc::clone(&device), setup.memory))?;
        let pages = Pages { store, crowded: Vec::new(), ending: false };
        Ok(PageServer(Serving::new(pages, device, listener, stop, setup.limits)?))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.0.address()
    }

    /// Serves until told to stop; then what is newer than the file is written and flushed, if that
    /// does not take too long, so that nobody has to send those log records again.
    pub fn run(&mut self) -> io::Result<Ended> {
        self.0.run()
    }
}

/// The service.
struct Pages<D: Device> {
    store: Store<D, ConnId>,
    /// Whose request waits until there is memory for another page.
    crowded: Vec<ConnId>,
    ending: bool,
}

impl<D: Device> Service for Pages<D> {
    type Event = Event;
    type State = ();
    const INPUT_MAX: usize = INPUT_MAX;

    const REFUSAL: &'static [u8] = &wire::BUSY;

    fn answer_max(&self) -> usize {
        HEAD + PAGE
    }

    fn held((): &()) -> usize {
        0
    }

    fn too_slow(conn: &mut Conn<()>) {
        conn.answers.tail().extend(wire::BUSY);
    }

    fn requests(&mut self, conn: &mut Conn<()>, _: &Crowd, begin: &mut Vec<Work<Event>>) {
        while conn.has_room() && conn.may_have_request() {
            match wire::frame(conn.input()) {
                Framed::Whole(len) => self.request(conn, len, begin),
                Framed::More(needs) => conn.need(needs),
                Framed::Invalid => {
                    conn.answers.tail().extend(wire::answer_head(Status::Invalid, 0, 0, 0));
                    conn.closing = true;
                }
            }
        }
    }

    fn on(
        &mut self,
        event: Event,
        conns: &mut Conns<()>,
        begin: &mut Vec<Work<Event>>,
    ) -> Result<(), Ended> {
        self.store.on(event, &mut |id| conns.get(id).is_some(), begin);
        Ok(())
    }

    fn end_round(
        &mut self,
        conns: &mut Conns<()>,
        begin: &mut Vec<Work<Event>>,
    ) -> Result<(), Ended> {
        // Who could not be written is tried again, once a round.
        self.store.make_room(true, begin);
        self.go_on(conns, begin)
    }

    fn go_on(&mut self, conns: &mut Conns<()>, begin: &mut Vec<Work<Event>>) -> Result<(), Ended> {
        self.store.go_on(begin);
        for ((id, token), answer) in self.store.take_answers() {
            if let Some(conn) = conns.get(id) {
                conn.answers.fill(token, answer);
                conn.paused = false;
                conns.wake(id);
            }
        }
        if !self.store.is_full() || self.store.is_stuck() {
            for id in std::mem::take(&mut self.crowded) {
                if let Some(conn) = conns.get(id) {
                    conn.paused = false;
                    conns.wake(id);
                }
            }
        }
        Ok(())
    }

    fn is_open(&self, _: u64) -> bool {
        true
    }

    fn takes_requests(&self) -> bool {
        true
    }

    fn has_stopped(&mut self, begin: &mut Vec<Work<Event>>) -> bool {
        if !std::mem::replace(&mut self.ending, true) {
            self.store.sync_for_nobody();
        }
        self.store.go_on(begin);
        let has_stopped = !self.store.is_syncing();
        let left = if has_stopped { self.store.changed() } else { 0 };
        if left > 0 {
            tracing::warn!(pages = left, "not all pages are written: their records come again");
        }
        has_stopped
    }
}

impl<D: Device> Pages<D> {
    /// Answers the request of the first `len` bytes, or has it answered; or it waits, and with it
    /// those behind it.
    fn request(&mut self, conn: &mut Conn<()>, len: usize, begin: &mut Vec<Work<Event>>) {
        let lent = conn.lend();
        let asked = match lent.bytes().get(..len).and_then(Request::parse) {
            // What it must cover was applied when all before it is answered.
            Some(Request::Sync) if conn.answers.waiting() > 0 => {
                conn.paused = true;
                None
            }
            Some(request) => Some(self.ask(conn, &request, begin)),
            None => {
                conn.answers.tail().extend(wire::answer_head(Status::Invalid, 0, 0, 0));
                Some(Asked::Answered)
            }
        };
        conn.give_back(lent);
        match asked {
            Some(Asked::Answered | Asked::Waits) => conn.take(len),
            Some(Asked::Crowded) => {
                conn.paused = true;
                self.crowded.push(conn.id());
            }
            None => {}
        }
    }

    fn ask(
        &mut self,
        conn: &mut Conn<()>,
        request: &Request<'_>,
        begin: &mut Vec<Work<Event>>,
    ) -> Asked {
        let asked = self.store.ask(request, conn.id(), conn.answers.tail());
        if asked == Asked::Waits {
            let who = (conn.id(), conn.answers.wait());
            self.store.wait(request, who, begin);
        }
        asked
    }
}

//! The loop.

use outboard_base::task::poll_once;
use std::future::Future;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use outboard_base::Time;
use outboard_os::clock;
use outboard_os::event_loop::{EventLoop, Pace, Pass, Polled};
use outboard_os::executor::{Executor, Started};
use outboard_os::wakeup::Wakeup;
use outboard_pageserver::tcp::sockets::{
    Address, ConnId, Listener, PIECES, Read, Ready, Sockets, Wrote,
};

use super::{Conns, Ended, Service, Stop, Work};
use crate::device::Device;

/// Bytes of one read from a connection.
const CHUNK: usize = 64 << 10;
/// Reads and writes of the file under way.
const WORK_MAX: usize = 4096;
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// How long things may take to be put in order when the server was told to stop.
const ENDING_MAX: Duration = Duration::from_secs(5);
/// How long nobody is accepted when nobody can be.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest sleep before there is a server.
const NAP: Duration = Duration::from_millis(10);

/// A server: a service, its device and its clients, on one thread.
pub(crate) struct Serving<S: Service, D: Device> {
    service: S,
    device: Rc<D>,
    sockets: Sockets,
    listener: Listener,
    stop: Arc<Stop>,
    executor: Executor<Work<S::Event>>,
    conns: Conns<S::State>,
    begin: Vec<Work<S::Event>>,
    chunk: Vec<u8>,
}

impl<S: Service, D: Device> Serving<S, D> {
    /// Watches `listener` for clients of `service`, whose work is the device's.
    pub(crate) fn new(
        service: S,
        device: Rc<D>,
        listener: Listener,
        stop: Arc<Stop>,
    ) -> io::Result<Serving<S, D>> {
        let sockets = Sockets::new()?;
        sockets.watch_listener(&listener)?;
        sockets.watch_wakeup(stop.wakeup())?;
        let notifier = stop.wakeup().notifier()?;
        Ok(Serving {
            service,
            device,
            sockets,
            listener,
            stop,
            executor: Executor::new(WORK_MAX, move || notifier.notify()),
            conns: Conns::new(),
            begin: Vec::new(),
            chunk: vec![0; CHUNK],
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &Address {
        self.listener.address()
    }

    /// Serves until told to stop, or until it cannot go on.
    pub(crate) fn run(&mut self) -> io::Result<Ended> {
        let mut rounds =
            Rounds { serving: self, ready: Vec::new(), round: Vec::new(), ended: None };
        EventLoop::without_spinning().run(&mut rounds)?;
        Ok(rounds.ended.unwrap_or(Ended::Told))
    }

    fn take_in(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        for what in ready.drain(..) {
            match what {
                Ready::Conn(id) => self.conns.enqueue(id),
                Ready::Listener => self.accept(),
                Ready::Wakeup => {
                    self.stop.wakeup().drain()?;
                }
            }
        }
        Ok(())
    }

    fn sleep(&mut self, limit: Duration, ready: &mut Vec<Ready>) -> io::Result<()> {
        if self.executor.running() == 0 {
            return self.sockets.look(Some(limit), ready);
        }
        if self.executor.begin_sleep() {
            let slept = self.device.sleep(self.sockets.fd(), limit);
            self.executor.end_sleep();
            slept?;
        }
        self.sockets.look(Some(Duration::ZERO), ready)
    }

    fn accept(&mut self) {
        loop {
            let added = match self.listener.accept() {
                Ok(Some(stream)) => self.sockets.add(stream),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            match added {
                Ok(id) => self.conns.add(id),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a client; raise `ulimit -n`?");
                    return std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Reads once from a connection and takes the requests that are there.
    fn serve(&mut self, id: ConnId) {
        let Some(mut conn) = self.conns.lift(id) else { return };
        if conn.has_input_room(S::INPUT_MAX) {
            match self.sockets.read(id, &mut self.chunk) {
                Read::Bytes(n) => conn.received(self.chunk.get(..n).unwrap_or_default()),
                Read::Ended => conn.ended = true,
                Read::Reset => return self.sockets.close(id, false),
                Read::Blocked => {}
            }
        }
        self.service.requests(&mut conn, self.sockets.len(), &mut self.begin);
        // A full input is read into again when requests were taken.
        let again = conn.has_input_room(S::INPUT_MAX) && self.sockets.is_readable(id);
        self.conns.lower(conn);
        if again {
            self.conns.enqueue(id);
        }
    }

    /// Hands over what was done, and takes in what ended.
    fn end_round(&mut self) -> Result<(), Ended> {
        self.service.end_round(&mut self.conns, &mut self.begin)?;
        while self.background()? {
            self.service.go_on(&mut self.conns, &mut self.begin)?;
        }
        if self.device.is_lost() { Err(Ended::DeviceLost) } else { Ok(()) }
    }

    /// Begins what is to be begun and takes in what ended; whether anything did.
    fn background(&mut self) -> Result<bool, Ended> {
        let mut ended = Vec::new();
        // What finds no room stays.
        let mut begin = std::mem::take(&mut self.begin).into_iter();
        for work in begin.by_ref() {
            match self.executor.start(work) {
                Ok(Started::Done(event)) => ended.push(event),
                Ok(Started::Running(_)) => {}
                Err(work) => {
                    self.begin.push(work);
                    break;
                }
            }
        }
        self.begin.extend(begin);
        if self.executor.running() > 0 {
            self.device.progress();
            self.executor.poll(|_, event| ended.push(event));
        }
        let any = !ended.is_empty();
        for event in ended {
            self.service.on(event, &mut self.conns, &mut self.begin)?;
        }
        Ok(any)
    }

    /// Sends what may leave.
    fn send(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(id) else { return };
        loop {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let n = conn.answers.pieces(&mut pieces, |gate| self.service.is_open(gate));
            let Some(some) = pieces.get(..n).filter(|some| !some.is_empty()) else { break };
            match self.sockets.write(id, some) {
                Wrote::Bytes(n) => conn.answers.took(n),
                Wrote::Blocked => break,
                Wrote::Reset => return self.close(id),
            }
        }
        if conn.is_over() {
            return self.close(id);
        }
        let takes = conn.has_room() && conn.may_have_request() && self.service.takes_requests();
        // If nothing was blocked, no news will come of what its socket holds already.
        if takes || (conn.has_input_room(S::INPUT_MAX) && self.sockets.is_readable(id)) {
            self.conns.enqueue(id);
        }
    }

    fn close(&mut self, id: ConnId) {
        drop(self.conns.lift(id));
        self.sockets.close(id, false);
    }

    /// The end of who was told to stop.
    fn put_in_order(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        while !self.service.has_stopped(&mut self.begin) {
            let ended = match self.background() {
                Ok(ended) => ended,
                // It could not go on anyway.
                Err(_) => return Ok(()),
            };
            if begun.elapsed() >= ENDING_MAX || self.device.is_lost() {
                tracing::warn!("told to stop, and not everything could be put in order");
                return Ok(());
            }
            if !ended && self.executor.running() > 0 {
                // Clients may say what they like: nobody listens any more.
                self.sleep(SLEEP_MAX, &mut Vec::new())?;
                self.stop.wakeup().drain()?;
            }
        }
        Ok(())
    }
}

/// A server in its loop. A pass takes in what its last sleep found: who is idle is asked for
/// nothing between two sleeps.
struct Rounds<'a, S: Service, D: Device> {
    serving: &'a mut Serving<S, D>,
    ready: Vec<Ready>,
    round: Vec<ConnId>,
    /// Why it serves no more, where nobody told it to stop.
    ended: Option<Ended>,
}

impl<S: Service, D: Device> Polled for Rounds<'_, S, D> {
    fn pass(&mut self, _: &mut Pace) -> io::Result<Pass> {
        let Rounds { serving, ready, round, ended } = self;
        if serving.stop.is_set() {
            return serving.put_in_order().map(|()| Pass::Over);
        }
        if serving.conns.has_queue() {
            serving.sockets.look(Some(Duration::ZERO), ready)?;
        }
        serving.take_in(ready)?;
        serving.conns.begin_round(round);
        round.iter().for_each(|id| serving.serve(*id));
        if let Err(end) = serving.end_round() {
            *ended = Some(end);
            return Ok(Pass::Over);
        }
        for id in round.drain(..).chain(serving.conns.take_to_send()) {
            serving.send(id);
        }
        Ok(Pass::found(usize::from(serving.conns.has_queue()), clock::now()))
    }

    fn begin_sleep(&mut self, now: Time) -> io::Result<Option<Time>> {
        Ok((!self.serving.stop.is_set()).then(|| now.after(SLEEP_MAX)))
    }

    fn wait(&mut self, limit: Duration) -> io::Result<()> {
        self.serving.sleep(limit, &mut self.ready)
    }

    fn end_sleep(&mut self, _: Time) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a future of this device to its end, before there is a server.
pub(crate) fn run_alone<D: Device, T>(
    device: &D,
    future: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let wakeup = Wakeup::new()?;
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(done) = poll_once(future.as_mut()) {
            return done;
        }
        if device.progress() == 0 {
            device.sleep(wakeup.fd(), NAP)?;
        }
    }
}

//! The loop.

use outboard_base::task::poll_once;
use std::future::Future;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use outboard_base::Time;
use outboard_dds::memory::{Memory, Turn};
use outboard_os::clock;
use outboard_os::event_loop::{EventLoop, Pace, Pass, Polled};
use outboard_os::executor::{Executor, Started};
use outboard_os::fds::{self, Shortage};
use outboard_os::wakeup::Wakeup;
use outboard_pageserver::tcp::sockets::{
    Address, ConnId, Listener, PIECES, Read, Ready, Sockets, Stream, Wrote,
};
use outboard_pageserver::tcp::worker::Limits;

use super::{Conn, Conns, Crowd, Ended, Service, Stop, Work};
use crate::device::Device;

/// Bytes of one read from a connection.
const CHUNK: usize = 64 << 10;
/// Reads and writes of the file under way.
const WORK_MAX: usize = 4096;
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// How long things may take to be put in order when the server was told to stop.
const ENDING_MAX: Duration = Duration::from_secs(5);
/// Clients accepted in one round.
const ACCEPTS: usize = 256;
/// Idle clients are looked for so often.
const SWEEP: Duration = Duration::from_secs(1);
/// Who has the turn waits with requests while so many bytes of answers are not sent.
const TURN_OUT: usize = 64 << 10;
/// How long one connection may have the turn while others wait. Who has unsent answers does not
/// stand in line: it is to read them first. Who has not sent its request by then is let go.
const TURN_MAX: Duration = Duration::from_secs(10);
/// How long somebody may not read its answers while others find no memory. Then all who have not
/// read for so long are let go, the greatest first, until half is free.
const STUCK: Duration = Duration::from_secs(1);
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
    limits: Limits,
    memory: Memory<ConnId>,
    crowd: Crowd,
    /// While it lasts the listener is not watched.
    shortage: Shortage,
    /// Of the round.
    now: Time,
    swept: Time,
}

/// As many clients as are wanted and as there are descriptors for, or at least one.
fn clients_of(limits: &Limits) -> usize {
    let room = usize::try_from(fds::room()).unwrap_or(usize::MAX).max(1);
    if room < limits.max_clients {
        tracing::warn!(
            clients = room,
            wanted = limits.max_clients,
            "the limit of descriptors allows fewer clients; raise `ulimit -n` (LimitNOFILE of a \
             service)"
        );
    }
    limits.max_clients.min(room)
}

impl<S: Service, D: Device> Serving<S, D> {
    /// Watches `listener` for clients of `service`, whose work is the device's.
    pub(crate) fn new(
        service: S,
        device: Rc<D>,
        listener: Listener,
        stop: Arc<Stop>,
        limits: Limits,
    ) -> io::Result<Serving<S, D>> {
        let sockets = Sockets::new()?;
        sockets.watch_listener(&listener)?;
        sockets.watch_wakeup(stop.wakeup())?;
        let notifier = stop.wakeup().notifier()?;
        let (now, most) = (clock::now(), clients_of(&limits));
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
            memory: Memory::new(most, limits.memory),
            limits,
            crowd: Crowd { most, ..Crowd::default() },
            shortage: Shortage::default(),
            now,
            swept: now,
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
        for _ in 0..ACCEPTS {
            let took = match self.listener.accept() {
                Ok(Some(stream)) => self.take(stream),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            if let Err(error) = took {
                self.shortage.begin(self.now, &error);
                // Watched on, it would keep this thread awake.
                let _unwatched = self.sockets.forget_listener(&self.listener);
                return;
            }
        }
    }

    fn take(&mut self, stream: Stream) -> io::Result<()> {
        if self.sockets.len() >= self.crowd.most {
            self.crowd.refused += 1;
            stream.refuse(S::REFUSAL);
            return Ok(());
        }
        let id = self.sockets.add(stream)?;
        self.conns.add(id, self.now);
        Ok(())
    }

    /// What time brings: a shortage is over, and clients were idle for too long.
    fn look_at_time(&mut self) -> io::Result<()> {
        if self.shortage.ends(self.now) {
            self.sockets.watch_listener(&self.listener)?;
        }
        let Some(timeout) = self.limits.idle_timeout else { return Ok(()) };
        if self.now.since(self.swept) >= SWEEP.min(timeout) {
            self.swept = self.now;
            let before = Time(self.now.0.saturating_sub(Time(0).after(timeout).0));
            for id in self.conns.idle_since(before) {
                self.close(id);
            }
        }
        Ok(())
    }

    /// Says how much a connection may take now; the most bytes of a read.
    fn allow(&self, conn: &mut Conn<S::State>) -> usize {
        let answer_max = self.service.answer_max();
        if self.memory.has_turn(conn.id()) {
            conn.allow(TURN_OUT, answer_max);
            return CHUNK;
        }
        let room = self.memory.room(conn.counted);
        let answers = conn.answers.held(answer_max);
        conn.allow(if room == 0 { 0 } else { answers + room }, answer_max);
        room.min(CHUNK)
    }

    fn count(memory: &mut Memory<ConnId>, conn: &mut Conn<S::State>, answer_max: usize) {
        let held = conn.held(S::held(&conn.state), answer_max);
        memory.count(std::mem::replace(&mut conn.counted, held), held);
    }

    /// Reads once from a connection and takes the requests that are there.
    fn serve(&mut self, id: ConnId) {
        let Some(mut conn) = self.conns.lift(id) else { return };
        let most = self.allow(&mut conn);
        if most > 0 && !conn.yields && conn.has_input_room(S::INPUT_MAX) {
            match self.sockets.read(id, self.chunk.get_mut(..most).unwrap_or_default()) {
                Read::Bytes(n) => {
                    conn.moved = self.now;
                    conn.received(self.chunk.get(..n).unwrap_or_default());
                }
                Read::Ended => conn.ended = true,
                Read::Reset => {
                    self.conns.lower(conn);
                    return self.close(id);
                }
                Read::Blocked => {}
            }
        }
        conn.yields = false;
        (self.crowd.held, self.crowd.peak) = self.memory.held();
        self.crowd.clients = self.sockets.len();
        self.service.requests(&mut conn, &self.crowd, &mut self.begin);
        Self::count(&mut self.memory, &mut conn, self.service.answer_max());
        self.conns.lower(conn);
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
                Wrote::Bytes(n) => {
                    conn.moved = self.now;
                    conn.answers.took(n);
                }
                Wrote::Blocked => break,
                Wrote::Reset => return self.close(id),
            }
        }
        if conn.is_over() {
            return self.close(id);
        }
        self.go_on(id);
    }

    /// Has a connection served again that can go on; one that could if there was memory waits.
    fn go_on(&mut self, id: ConnId) {
        let Some(mut conn) = self.conns.lift(id) else { return };
        Self::count(&mut self.memory, &mut conn, self.service.answer_max());
        self.allow(&mut conn);
        let has_request = conn.may_have_request() && self.service.takes_requests();
        // If nothing was blocked, no news will come of what its socket holds already.
        let is_more = conn.input().len() < S::INPUT_MAX && self.sockets.is_readable(id);
        let wants = conn.is_free() && (has_request || is_more);
        let (may, yields) = (wants && conn.has_room(), conn.yields);
        // Who has unsent answers is to read them first.
        let starves = wants && !may && conn.answers.is_empty() && !self.memory.has_turn(id);
        if starves && !std::mem::replace(&mut conn.starves, true) {
            self.memory.wait(id);
        }
        self.conns.lower(conn);
        if may && yields {
            self.conns.enqueue_later(id);
        } else if may {
            self.conns.enqueue(id);
        }
    }

    /// Gives the turn to who is next, and what memory was freed to those that wait for it.
    fn share_memory(&mut self) {
        if let Some(turn) = self.memory.turn {
            self.look_at_turn(turn);
        }
        let Serving { memory, conns, .. } = self;
        while let Some(id) = memory.next_turn() {
            if let Some(conn) = conns.get(id) {
                conn.starves = false;
                let requests = conn.requests;
                memory.turn = Some(Turn { id, since: self.now, requests });
                conns.enqueue(id);
            }
        }
        for id in memory.take_roomy(|id| conns.get(id).map(|conn| conn.counted)) {
            if let Some(conn) = conns.get(id) {
                conn.starves = false;
            }
            conns.enqueue(id);
        }
    }

    /// Ends a turn that was used, is not needed any more, or took too long.
    fn look_at_turn(&mut self, turn: Turn<ConnId>) {
        let Some(conn) = self.conns.get(turn.id) else {
            self.memory.turn = None;
            return;
        };
        let was_used = conn.requests > turn.requests && conn.answers.is_empty();
        let answers = &conn.answers;
        let waits_for_us = conn.paused || (!answers.is_empty() && !answers.are_unread());
        if was_used || self.memory.room(conn.counted) > 0 {
            self.memory.turn = None;
            self.conns.enqueue(turn.id);
        } else if waits_for_us || !self.service.takes_requests() || !self.memory.is_waited_for() {
            self.memory.turn = Some(Turn { since: self.now, ..turn });
        } else if !conn.answers.is_empty() {
            if self.now.since(turn.since.max(conn.moved)) >= STUCK {
                self.relieve();
            }
        } else if self.now.since(turn.since) >= TURN_MAX {
            self.memory.turn = None;
            tracing::warn!("a client is let go: memory of clients is full, and it is too slow");
            conn.drop_input();
            S::too_slow(conn);
            conn.closing = true;
            self.send(turn.id);
        }
    }

    /// Lets go of those who do not read, the greatest first, until half of the memory is free.
    fn relieve(&mut self) {
        let before = Time(self.now.0.saturating_sub(Time(0).after(STUCK).0));
        let mut stuck = self.conns.unread_since(before);
        stuck.sort_unstable_by_key(|(held, _)| std::cmp::Reverse(*held));
        let mut count = 0;
        for (_, id) in stuck {
            if self.memory.is_half_free() {
                break;
            }
            self.close(id);
            count += 1;
        }
        tracing::warn!(count, "memory of clients is full: those who do not read are let go");
    }

    fn close(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.lift(id) {
            self.memory.count(conn.counted, 0);
            if conn.starves {
                self.memory.forget(id);
            }
        }
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
        serving.now = clock::now();
        serving.look_at_time()?;
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
        serving.share_memory();
        Ok(Pass::found(usize::from(serving.conns.has_queue()), clock::now()))
    }

    fn begin_sleep(&mut self, now: Time) -> io::Result<Option<Time>> {
        let most = now.after(SLEEP_MAX);
        let limit = self.serving.shortage.until().map_or(most, |until| until.min(most));
        Ok((!self.serving.stop.is_set()).then_some(limit))
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

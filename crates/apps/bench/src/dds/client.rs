//! A client of any of the servers, in a closed loop: on each connection a batch of commands is sent
//! when the batch before it was answered. One thread, connections by epoll. Every answer is looked
//! at: it must be the one for its key.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::requests::Batch;
use crate::stats::Latencies;

/// How long a server may take for an answer.
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
/// Bytes read at once.
const CHUNK: usize = 256 << 10;
/// What came of it.
pub(super) struct Done {
    pub(super) count: u64,
    pub(super) time: Duration,
    /// From when a batch is sent to when an answer is there.
    pub(super) latencies: Latencies,
}

struct Conn {
    stream: TcpStream,
    out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    /// Keys of the batch under way, and how many of them are answered.
    keys: Vec<u64>,
    answered: usize,
    began: Instant,
    /// Whether it waits for room to send.
    is_blocked: bool,
}

/// Connections to one server.
pub(super) struct Client {
    conns: Vec<Conn>,
    epoll: OwnedFd,
    buffers: Buffers,
}

/// Used by one connection after another.
struct Buffers {
    chunk: Vec<u8>,
    /// How an answer has to begin.
    expected: Vec<u8>,
}

impl Conn {
    fn open(address: SocketAddr) -> io::Result<Conn> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Conn {
            stream,
            out: Vec::new(),
            sent: 0,
            input: Vec::new(),
            keys: Vec::new(),
            answered: 0,
            began: Instant::now(),
            is_blocked: false,
        })
    }

    /// Begins the next batch; whether there is one.
    fn begin(&mut self, batch: Batch, next: &mut dyn FnMut() -> Option<u64>) -> bool {
        (self.sent, self.answered) = (0, 0);
        self.out.clear();
        self.keys.clear();
        while self.keys.len() < batch.pipeline
            && let Some(key) = next()
        {
            self.keys.push(key);
            batch.command(key, &mut self.out);
        }
        self.began = Instant::now();
        !self.keys.is_empty()
    }

    /// Sends what it can; whether all is sent.
    fn send(&mut self) -> io::Result<bool> {
        while let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads once and takes the answers that are whole; whether the batch is done.
    fn receive(
        &mut self,
        batch: Batch,
        buffers: &mut Buffers,
        seen: &mut Done,
    ) -> io::Result<bool> {
        let Buffers { chunk, expected } = buffers;
        match self.stream.read(chunk) {
            Ok(0) => return Err(io::Error::other("a server closed a connection")),
            Ok(n) => self.input.extend_from_slice(chunk.get(..n).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        let (len, mut at) = (batch.answer_len(), 0);
        while let Some(key) = self.keys.get(self.answered) {
            let answer = self.input.get(at..).unwrap_or_default();
            batch.beginning(*key, expected);
            let both = expected.len().min(answer.len());
            if answer.get(..both) != expected.get(..both) {
                let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
                let line = String::from_utf8_lossy(line.get(..line.len().min(80)).unwrap_or(line));
                return Err(io::Error::other(format!("not the answer for key {key}: {line}")));
            }
            if answer.len() < len {
                break;
            }
            at += len;
            self.answered += 1;
            seen.count += 1;
            seen.latencies.push(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        self.input.drain(..at);
        Ok(self.answered == self.keys.len())
    }
}

impl Client {
    /// Connects so many times.
    pub(super) fn connect(address: SocketAddr, connections: usize) -> io::Result<Client> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut conns = Vec::with_capacity(connections);
        for n in 0..connections as u64 {
            let conn = Conn::open(address)?;
            let data = epoll::EventData::new_u64(n);
            epoll::add(&epoll, &conn.stream, data, epoll::EventFlags::IN)?;
            conns.push(conn);
        }
        let buffers = Buffers { chunk: vec![0; CHUNK], expected: Vec::new() };
        Ok(Client { conns, epoll, buffers })
    }

    /// Asks for keys until there are no more.
    pub(super) fn run(
        &mut self,
        batch: Batch,
        next: &mut dyn FnMut() -> Option<u64>,
    ) -> io::Result<Done> {
        let mut done = Done { count: 0, time: Duration::ZERO, latencies: Latencies::default() };
        let from = Instant::now();
        let mut busy = 0;
        for n in 0..self.conns.len() {
            busy += usize::from(self.begin(n, batch, next)?);
        }
        let mut events = Vec::with_capacity(self.conns.len());
        while busy > 0 {
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, Some(&PATIENCE)) {
                Ok(0) => return Err(io::Error::other("a server does not answer")),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let n = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                busy -= usize::from(!self.go_on(n, batch, next, &mut done)?);
            }
        }
        done.time = from.elapsed();
        Ok(done)
    }

    /// Begins a batch on a connection; whether there was one to begin.
    fn begin(
        &mut self,
        n: usize,
        batch: Batch,
        next: &mut dyn FnMut() -> Option<u64>,
    ) -> io::Result<bool> {
        let Some(conn) = self.conns.get_mut(n) else { return Ok(false) };
        let begun = conn.begin(batch, next);
        if begun {
            self.send(n)?;
        }
        Ok(begun)
    }

    /// Sends, and asks to be told of room where there is none.
    fn send(&mut self, n: usize) -> io::Result<()> {
        let Some(conn) = self.conns.get_mut(n) else { return Ok(()) };
        let is_blocked = !conn.send()?;
        if is_blocked != conn.is_blocked {
            conn.is_blocked = is_blocked;
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, is_blocked);
            let data = epoll::EventData::new_u64(n as u64);
            epoll::modify(&self.epoll, &conn.stream, data, flags)?;
        }
        Ok(())
    }

    /// Does what a connection is ready for; whether it still has work.
    fn go_on(
        &mut self,
        n: usize,
        batch: Batch,
        next: &mut dyn FnMut() -> Option<u64>,
        done: &mut Done,
    ) -> io::Result<bool> {
        self.send(n)?;
        let Some(conn) = self.conns.get_mut(n) else { return Ok(true) };
        if !conn.receive(batch, &mut self.buffers, done)? {
            return Ok(true);
        }
        self.begin(n, batch, next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::requests::{KEY, Op};
    use super::*;
    use std::io::BufRead;
    use std::net::TcpListener;

    /// Answers every line that is a key, whatever is asked.
    fn serve(listener: &TcpListener, answer: impl Fn(&str) -> String) {
        let (stream, _) = listener.accept().unwrap();
        let mut out = stream.try_clone().unwrap();
        for line in io::BufReader::new(stream).lines().map_while(Result::ok) {
            if line.starts_with("key:") && line.len() == KEY {
                let _ = out.write_all(answer(&line).as_bytes());
            }
        }
    }

    fn ask(answer: impl Fn(&str) -> String + Send) -> io::Result<Done> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&listener, answer));
            let mut keys = 0..10;
            let batch = Batch { op: Op::Get, value: 18, pipeline: 4 };
            Client::connect(address, 1).unwrap().run(batch, &mut || keys.next())
        })
    }

    #[test]
    fn answers_are_counted_and_wrong_ones_are_refused() {
        let done = ask(|key| format!("$18\r\n{key}vv\r\n")).unwrap();
        assert_eq!((done.count, done.latencies.count()), (10, 10));
        for wrong in ["$-1\r\n", "-ERR no\r\n", "$18\r\nkey:000000000099vv\r\n"] {
            assert!(ask(|_| wrong.to_owned()).is_err(), "{wrong}");
        }
    }
}

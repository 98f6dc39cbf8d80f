//! Bytes in order beside the messages of the attach socket: what an answer sends that is longer
//! than a message. Its descriptor comes with the answer.
//!
//! Who writes never waits longer than its patience for somebody who does not read, and who reads
//! for somebody who does not write; either hears at once that the other is gone, and within
//! [`SLICE`] that it is to stop itself.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outboard_base::Deadline;
use outboard_os::clock;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Between two looks whether it is to stop.
const SLICE: Duration = Duration::from_millis(100);

/// One end.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
    stop: Arc<AtomicBool>,
    patience: Duration,
}

impl Stream {
    /// Both ends; the other one's descriptor is to be sent.
    pub fn pair(stop: Arc<AtomicBool>, patience: Duration) -> io::Result<(Stream, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let (ours, theirs) = (outboard_os::fds::lift(ours)?, outboard_os::fds::lift(theirs)?);
        Ok((Stream::of(ours, stop, patience), theirs))
    }

    /// The end whose descriptor came. It stops once `stop` says so, or when nothing moved for
    /// `patience`.
    #[must_use]
    pub fn of(fd: OwnedFd, stop: Arc<AtomicBool>, patience: Duration) -> Stream {
        Stream { fd, stop, patience }
    }

    fn wait(&self, until: Deadline, what: PollFlags) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "told to stop"));
        }
        let left = until.since(clock::now());
        if left == Duration::ZERO {
            let text = format!("the other side stood still for {} s", self.patience.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        let slice = rustix::time::Timespec::try_from(left.min(SLICE)).map_err(io::Error::other)?;
        match rustix::event::poll(&mut [PollFd::new(&self.fd, what)], Some(&slice)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Tries again until something moved.
    fn moved(
        &self,
        what: PollFlags,
        mut step: impl FnMut() -> rustix::io::Result<usize>,
    ) -> io::Result<usize> {
        let until = clock::now().after(self.patience);
        loop {
            match step() {
                Ok(moved) => return Ok(moved),
                Err(Errno::AGAIN | Errno::INTR) => self.wait(until, what)?,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        self.moved(PollFlags::OUT, || rustix::net::send(&self.fd, bytes, flags))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.moved(PollFlags::IN, || {
            let received = rustix::net::recv(&self.fd, &mut *bytes, RecvFlags::DONTWAIT);
            match received {
                Ok((read, _)) => Ok(read),
                // Gone without having read all: as gone as any.
                Err(Errno::CONNRESET) => Ok(0),
                Err(error) => Err(error),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn pair(patience: Duration) -> (Stream, Stream, Arc<AtomicBool>) {
        let stop = Arc::new(AtomicBool::new(false));
        let (ours, theirs) = Stream::pair(Arc::clone(&stop), patience).unwrap();
        (ours, Stream::of(theirs, Arc::default(), LONG), stop)
    }

    #[test]
    fn what_is_written_is_read_and_then_it_ends() {
        let (mut ours, mut theirs, _) = pair(LONG);
        let sent: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        let copy = sent.clone();
        let writing = std::thread::spawn(move || ours.write_all(&copy));
        let mut read = Vec::new();
        theirs.read_to_end(&mut read).unwrap();
        writing.join().unwrap().unwrap();
        assert!(read == sent);
    }

    /// A copier that was stopped, or whose disk hangs, must not keep for ever what is held for it.
    #[test]
    fn who_does_not_read_is_waited_for_as_long_as_patience_lasts() {
        let (mut ours, theirs, _) = pair(Duration::from_millis(50));
        let error = ours.write_all(&vec![0; 8 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
        assert_eq!(ours.write_all(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn who_waits_hears_that_it_is_to_stop_and_that_the_other_is_gone() {
        let (mut ours, theirs, stop) = pair(LONG);
        let writing = std::thread::spawn(move || ours.write_all(&vec![0; 8 << 20]));
        stop.store(true, Ordering::Relaxed);
        let error = writing.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        drop(theirs);
        let (mut ours, theirs, _) = pair(LONG);
        let writing = std::thread::spawn(move || ours.write_all(&vec![0; 8 << 20]));
        drop(theirs);
        assert!(writing.join().unwrap().is_err());
    }
}

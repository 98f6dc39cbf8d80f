//! What `run` hands to the process of its mount, over a socket that is that process's input: what
//! the mount consists of, and later connections to the DPU side, which takes the process that
//! connects for the host. So the host is `run`, and outlives each process of the mount.
//!
//! ```text
//! run                                             mount's process
//! terms + region, notes, notes of inodes, /dev/fuse ... ->
//!                                                 <- "connect"
//! "" + a connection, or nothing ->                       ... again after each loss of the DPU side
//!                                                 <- that it serves, or why it does not
//! ```
//!
//! The socket closes when either dies: then `run` starts another process, or the process ends.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

use crate::exit::Failure;
use crate::successor::form;

/// Longest message, bytes.
const LONGEST: usize = 16 << 10;
/// How often it is looked whether a process is dead that has closed nothing, seconds.
const LOOK: i64 = 1;

/// What is said of a mount before its descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Terms {
    /// In which form it is kept ([`crate::successor::form`]): a program that knows another would
    /// read it wrongly.
    pub(crate) form: String,
    /// Where it is mounted.
    pub(crate) place: PathBuf,
    /// What was agreed with the kernel.
    pub(crate) kernel: (u32, u64),
    /// Which session.
    pub(crate) session: u64,
    /// How many descriptors of the device follow.
    pub(crate) devices: usize,
    /// A service manager keeps all of it, too: the mount outlives its holder.
    pub(crate) stored: bool,
}

/// What a mount's process says. Only the first is answered.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Word {
    /// It asks for a connection to the DPU side.
    Connect,
    /// It serves the mount.
    Serves,
    /// It cannot, and ends.
    Fails(Failure),
}

/// One end of the socket.
#[derive(Debug)]
pub(crate) struct End(OwnedFd);

impl End {
    /// Both.
    pub(crate) fn pair() -> io::Result<(End, OwnedFd)> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        Ok((End(ours), theirs))
    }

    /// The one that is this process's input.
    pub(crate) fn of_input() -> io::Result<End> {
        Ok(End(io::stdin().as_fd().try_clone_to_owned()?))
    }

    /// The same end once more.
    pub(crate) fn try_clone(&self) -> io::Result<End> {
        Ok(End(self.0.try_clone()?))
    }

    fn send(&self, text: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // A message of no bytes would read as the end.
        let parts = [IoSlice::new(b":"), IoSlice::new(text)];
        let sent = rustix::net::sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL)?;
        if sent == text.len() + 1 { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// `None`: the other end is closed.
    fn receive(&self) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
        let mut bytes = vec![0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            let mut into = [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.0, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(got) => break got.bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => break 0,
                Err(error) => return Err(error.into()),
            }
        };
        let mut fd = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fd = rights.last().or(fd);
            }
        }
        Ok((got > 0).then(|| (bytes.get(1..got).unwrap_or_default().to_vec(), fd)))
    }

    /// Hands a mount over.
    pub(crate) fn give(&self, terms: &Terms, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(&serde_json::to_vec(terms)?, None)?;
        fds.iter().try_for_each(|fd| self.send(b"", Some(*fd)))
    }

    /// Takes what [`End::give`] gave: three descriptors, and those of the device.
    pub(crate) fn take(&self) -> io::Result<(Terms, [OwnedFd; 3], Vec<OwnedFd>)> {
        let (text, _) = self.receive()?.ok_or_else(nonsense)?;
        let terms: Terms = serde_json::from_slice(&text)?;
        if terms.form != form() {
            let text = format!("what is kept has the form {}, not {}", terms.form, form());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let next = || self.receive()?.and_then(|(_, fd)| fd).ok_or_else(nonsense);
        let memory = [next()?, next()?, next()?];
        let devices = (0..terms.devices).map(|_| next()).collect::<io::Result<Vec<_>>>()?;
        Ok((terms, memory, devices))
    }

    /// After a mount: who asked for the new program, and the number of that request.
    pub(crate) fn give_asker(&self, id: u32, peer: BorrowedFd<'_>) -> io::Result<()> {
        self.send(&id.to_le_bytes(), Some(peer))
    }

    /// Takes what [`End::give_asker`] gave.
    pub(crate) fn take_asker(&self) -> io::Result<(u32, OwnedFd)> {
        let (text, fd) = self.receive()?.ok_or_else(nonsense)?;
        let id = text.try_into().map_err(|_| nonsense())?;
        Ok((u32::from_le_bytes(id), fd.ok_or_else(nonsense)?))
    }

    /// Asks for a connection to the DPU side.
    pub(crate) fn connect(&self) -> io::Result<OwnedFd> {
        self.say(&Word::Connect)?;
        match self.receive()? {
            Some((_, Some(fd))) => Ok(fd),
            // Nobody listens yet, as far as it matters here.
            Some((_, None)) => Err(io::ErrorKind::ConnectionRefused.into()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Says something to `run`.
    pub(crate) fn say(&self, word: &Word) -> io::Result<()> {
        self.send(&serde_json::to_vec(word)?, None)
    }

    /// Answers wishes for a connection by `dial`, and hands on what else is said, until the other
    /// end is closed, or `is_dead` says that its process is: one that cannot end closes nothing.
    pub(crate) fn serve(
        &self,
        dial: impl Fn() -> io::Result<OwnedFd>,
        mut said: impl FnMut(Word),
        is_dead: impl Fn() -> bool,
    ) -> io::Result<()> {
        let look = rustix::time::Timespec { tv_sec: LOOK, tv_nsec: 0 };
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, Some(&look)) {
                Err(rustix::io::Errno::INTR) => continue,
                Ok(0) if is_dead() => return Ok(()),
                Ok(0) => continue,
                outcome => outcome?,
            };
            let Some((text, _)) = self.receive()? else { return Ok(()) };
            match serde_json::from_slice(&text)? {
                Word::Connect => {}
                word => {
                    said(word);
                    continue;
                }
            }
            let made = dial().ok();
            match self.send(b"", made.as_ref().map(AsFd::as_fd)) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                outcome => outcome?,
            }
        }
    }

    /// Waits until the other end is closed.
    pub(crate) fn until_closed(&self) {
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::RDHUP)];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => {}
                _ => return,
            }
        }
    }
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what is handed over")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn terms() -> Terms {
        let (form, place) = (crate::successor::form(), PathBuf::from("/mnt/x"));
        Terms { form, place, kernel: (45, 1 << 39), session: u64::MAX, devices: 2, stored: true }
    }

    #[test]
    fn a_mount_is_handed_over_and_connections_after_it() {
        let (ours, theirs) = End::pair().unwrap();
        let theirs = End(theirs);
        let file = tempfile::tempfile().unwrap();
        ours.give(&terms(), &[file.as_fd(); 5]).unwrap();
        ours.give_asker(7, file.as_fd()).unwrap();
        let (taken, _, devices) = theirs.take().unwrap();
        assert_eq!(theirs.take_asker().unwrap().0, 7);
        assert_eq!((taken.session, taken.kernel, devices.len()), (u64::MAX, (45, 1 << 39), 2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let count = std::cell::Cell::new(0);
                let dial = || {
                    count.set(count.get() + 1);
                    let other = file.try_clone().map(OwnedFd::from);
                    if count.get() == 1 { Err(io::ErrorKind::NotFound.into()) } else { other }
                };
                let mut said = Vec::new();
                ours.serve(dial, |word| said.push(word), || false).unwrap();
                assert_eq!(said, [Word::Serves, Word::Fails(Failure::usage("why"))]);
            });
            let none = theirs.connect().unwrap_err();
            assert_eq!(none.kind(), io::ErrorKind::ConnectionRefused);
            assert!(theirs.connect().unwrap().as_raw_fd() > 2);
            theirs.say(&Word::Serves).unwrap();
            theirs.say(&Word::Fails(Failure::usage("why"))).unwrap();
            drop(theirs);
        });
    }

    #[test]
    fn nonsense_is_no_wish() {
        for said in [&b""[..], b"connect", b"{}", b"\"Dance\"", b"{\"Fails\":{}}", &[0xff; LONGEST]]
        {
            let (ours, theirs) = End::pair().unwrap();
            let theirs = End(theirs);
            // One that is too long comes cut.
            theirs.send(said, None).unwrap();
            let refused = ours.serve(|| unreachable!(), |_| unreachable!(), || false);
            assert!(refused.is_err(), "{said:?}");
        }
    }

    #[test]
    fn half_a_mount_is_refused() {
        let (ours, theirs) = End::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        ours.give(&terms(), &[file.as_fd(); 4]).unwrap();
        let watched = ours.try_clone().unwrap();
        drop(ours);
        drop(watched);
        assert!(End(theirs).take().is_err());
        let (ours, theirs) = End::pair().unwrap();
        let other = Terms { form: "0.0".to_owned(), ..terms() };
        ours.give(&other, &[file.as_fd(); 5]).unwrap();
        let refused = End(theirs).take().unwrap_err().to_string();
        assert!(refused.contains("the form 0.0"), "{refused}");
        let (ours, theirs) = End::pair().unwrap();
        ours.send(b"{}", None).unwrap();
        let theirs = End(theirs);
        assert!(theirs.take().is_err());
        drop(ours);
        theirs.until_closed();
    }
}

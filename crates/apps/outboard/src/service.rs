//! A service manager that keeps descriptors (systemd: `FileDescriptorStoreMax=`, `sd_notify(3)`):
//! what a mount consists of is stored with it, and handed to the next process of the service, so
//! that a mount outlives `run`, too (`docs/internals/outlive.md`).
//!
//! ```text
//! outboard-terms                     a file in memory: the terms of the handover, all settings
//! outboard-region, -notes, -inodes   memory
//! outboard-device-0 ...              the connection to the kernel
//! ```
//!
//! The manager also hears when the mount is served (`READY=1`, for `Type=notify`).

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;

use outboard_os::sys::descriptors::handed_over;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::{Deserialize, Serialize};

use crate::exit::{Code, Failure};
use crate::handover::Terms;
use crate::successor::form;

/// Where the manager listens: a path, or `@` and an abstract name.
pub(crate) const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// What the manager says to the process it started, and to no other.
const LISTEN: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

const TERMS: &str = "outboard-terms";
const MEMORY: [&str; 3] = ["outboard-region", "outboard-notes", "outboard-inodes"];
const DEVICE: &str = "outboard-device-";
/// Longest terms, bytes.
const LONGEST: usize = 64 << 10;

/// Another program is not the one the manager started, even if it takes that one's place.
pub(crate) fn not_for(command: &mut Command) -> &mut Command {
    LISTEN.iter().fold(command, |command, name| command.env_remove(name))
}

/// The mount is served, for who waits for that.
pub(crate) fn ready() {
    if let Some(socket) = socket()
        && let Err(error) = send(&socket, "READY=1\n", None)
    {
        tracing::warn!(%error, "the service manager did not hear that the mount is there");
    }
}

/// The kept mount cannot be taken over by this process.
pub(crate) fn refused(why: &str) -> Failure {
    Failure::new(
        Code::Usage,
        format!(
            "the service manager keeps a mount that this cannot take over: {why}; stop the \
             service, which ends that mount, and start it again"
        ),
    )
}

/// Whether what is behind a descriptor of the device is no mount any more.
pub(crate) fn has_ended(device: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(device, PollFlags::empty())];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut fds, Some(&now)), Ok(0))
}

fn socket() -> Option<UnixDatagram> {
    let name = std::env::var_os(NOTIFY_SOCKET)?;
    let address = match name.as_bytes().split_first() {
        Some((b'@', rest)) => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(&name),
    };
    let connect = |address| {
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        Ok(socket)
    };
    address
        .and_then(connect)
        .inspect_err(|error| tracing::warn!(%error, "the service manager cannot be reached"))
        .ok()
}

fn send(socket: &UnixDatagram, text: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let parts = [IoSlice::new(text.as_bytes())];
    rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// A manager that keeps descriptors of this service.
#[derive(Debug)]
pub(crate) struct Manager(UnixDatagram);

impl Manager {
    /// `None` if there is none.
    pub(crate) fn of_environment() -> Option<Manager> {
        socket().map(Manager)
    }

    /// Has it keep a mount.
    pub(crate) fn store(
        &self,
        terms: &Terms,
        flags: &[String],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        // Of a mount that has ended parts may be left; a manager keeps several of one name.
        self.forget(fds.len().saturating_sub(MEMORY.len()))?;
        let memory = File::from(memfd_create(TERMS, MemfdFlags::CLOEXEC)?);
        (&memory).write_all(&serde_json::to_vec(&Written { flags, terms })?)?;
        let devices = (0..).map(|n| format!("{DEVICE}{n}"));
        let names = MEMORY.into_iter().map(str::to_owned).chain(devices);
        let all = names.zip(fds.iter().copied());
        for (name, fd) in all.chain([(TERMS.to_owned(), memory.as_fd())]) {
            send(&self.0, &format!("FDSTORE=1\nFDNAME={name}\n"), Some(fd))?;
        }
        Ok(())
    }

    fn forget(&self, devices: usize) -> io::Result<()> {
        let devices = (0..devices).map(|n| format!("{DEVICE}{n}"));
        // Without terms there is no mount, whatever else is left.
        for name in [TERMS].into_iter().chain(MEMORY).map(str::to_owned).chain(devices) {
            send(&self.0, &format!("FDSTOREREMOVE=1\nFDNAME={name}\n"), None)?;
        }
        Ok(())
    }
}

/// A mount that is kept no longer when this is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    manager: Manager,
    devices: usize,
}

impl Kept {
    /// One of so many descriptors of the device; `None` if there is no manager.
    pub(crate) fn of(devices: usize) -> Option<Kept> {
        Manager::of_environment().map(|manager| Kept { manager, devices })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Err(error) = self.manager.forget(self.devices) {
            tracing::warn!(%error, "the service manager did not hear that the mount has ended");
        }
    }
}

#[derive(Serialize)]
struct Written<'a> {
    flags: &'a [String],
    terms: &'a Terms,
}

#[derive(Deserialize)]
struct Read {
    flags: Vec<String>,
    terms: Terms,
}

/// A mount that the manager kept.
#[derive(Debug)]
pub(crate) struct Stored {
    /// What is said of it.
    pub(crate) terms: Terms,
    /// All its settings.
    pub(crate) flags: Vec<String>,
    /// Region, notes, notes of inodes.
    pub(crate) memory: [OwnedFd; 3],
    /// The connection.
    pub(crate) devices: Vec<OwnedFd>,
}

impl Stored {
    /// What the manager handed to this process; `None` if that is no mount.
    pub(crate) fn take() -> Result<Option<Stored>, Failure> {
        Stored::of(handed_over())
    }

    fn of(mut all: Vec<(String, OwnedFd)>) -> Result<Option<Stored>, Failure> {
        let mut named = |name: &str| {
            let at = all.iter().position(|(other, _)| other == name)?;
            Some(all.swap_remove(at).1)
        };
        let Some(terms) = named(TERMS) else { return Ok(None) };
        let missing = || refused("a part of it is missing");
        let mut bytes = vec![0; LONGEST];
        let len = File::from(terms).read_at(&mut bytes, 0).unwrap_or(0);
        let read: Read = serde_json::from_slice(bytes.get(..len).unwrap_or_default())
            .map_err(|error| refused(&format!("its terms make no sense ({error})")))?;
        let Read { flags, terms } = read;
        if terms.form != form() {
            let why = format!("it has the form {}, and this program knows {}", terms.form, form());
            return Err(refused(&why));
        }
        let mut part = |name: &str| named(name).ok_or_else(missing);
        let [region, notes, inodes] = MEMORY;
        let memory = [part(region)?, part(notes)?, part(inodes)?];
        let devices = (0..terms.devices).map(|n| part(&format!("{DEVICE}{n}")));
        let devices = devices.collect::<Result<Vec<_>, Failure>>()?;
        Ok(Some(Stored { terms, flags, memory, devices }))
    }
}

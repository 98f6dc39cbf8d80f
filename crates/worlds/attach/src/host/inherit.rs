//! A host whose session outlives its process: memory, notes and connections come from somebody who
//! goes on living (`docs/internals/outlive.md`).

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use outboard_base::SessionId;
use outboard_base::ledger::Ledger;
use outboard_dpc::host::{Front, NoNotes, Notes, QueueSlot, Session, SessionWorld, Settings};
use outboard_link::layout::Layout;
use outboard_os::shm::Shared;

use super::world::HostWorld;
use super::{ConnectError, Host, HostOptions, first_link, random_session};
use crate::link::{AttachFailure, HostMemory, Peer};

/// How a process gets a connection to the DPU side that somebody else made.
#[derive(Clone)]
pub struct Dial(Arc<dyn Fn() -> io::Result<OwnedFd> + Send + Sync>);

impl Dial {
    /// Connections are what `connect` returns.
    pub fn new(connect: impl Fn() -> io::Result<OwnedFd> + Send + Sync + 'static) -> Dial {
        Dial(Arc::new(connect))
    }

    pub(super) fn connect(&self) -> io::Result<Peer> {
        (self.0)().map(Peer::from)
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dial")
    }
}

/// What a session consists of beside its process.
#[derive(Debug)]
pub struct Inherited {
    /// Which session.
    pub session: SessionId,
    /// The region of its queues.
    pub region: OwnedFd,
    /// What it writes down for a successor.
    pub notes: OwnedFd,
}

impl Inherited {
    /// A session nobody has had, for queues as `options` say.
    ///
    /// # Errors
    /// No memory; `InvalidInput` for more slots than lanes can tell apart.
    pub fn fresh(options: &HostOptions) -> io::Result<Inherited> {
        let settings = options.settings;
        let (queues, depth) = (settings.queues.saturating_add(1), settings.depth);
        let session = random_session()?;
        let large = super::takes_huge_pages(&options.socket);
        let memory = HostMemory::create_with(session, queues, depth, None, large)?;
        let room = Notes::room(memory.layout())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, NoNotes::Grid))?;
        let notes = Shared::create("outboard-notes", room)?;
        let region = memory.fd().try_clone_to_owned()?;
        Ok(Inherited { session, region, notes: notes.fd().try_clone_to_owned()? })
    }

    /// The same descriptors once more.
    ///
    /// # Errors
    /// Too many descriptors are open.
    pub fn try_clone(&self) -> io::Result<Inherited> {
        let (region, notes) = (self.region.try_clone()?, self.notes.try_clone()?);
        Ok(Inherited { session: self.session, region, notes })
    }
}

impl Host {
    /// Takes a session up: begun by nobody, or by a predecessor that is dead. What that held is
    /// handed in; what it had sent is sent under the same name when it is asked again.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn inherit(
        options: HostOptions,
        inherited: Inherited,
        front: Arc<dyn Front<QueueSlot>>,
    ) -> Result<Host, ConnectError> {
        let settings = options.settings;
        let grid = (settings.queues.saturating_add(1), settings.depth);
        let Inherited { session: id, region, notes } = inherited;
        let memory = HostMemory::inherit(id, grid, region)?;
        let memory = Arc::new(memory.wishing(options.company, options.outlives));
        let notes = begin(notes, memory.layout())?;
        let link = Arc::new(first_link(&options, &memory)?);
        let ledger = Arc::new(Ledger::default());
        let initiators =
            link.initiators(&memory, &ledger).map_err(|_| other("no such queues".to_owned()))?;
        let world = Arc::new(HostWorld::new(Arc::clone(&link), usize::from(grid.0)));
        let as_world: Arc<dyn SessionWorld> = Arc::clone(&world) as Arc<dyn SessionWorld>;
        let settings = Settings { dispatch: link.volume(), ..settings };
        let session = Session::with_notes(id, settings, initiators, as_world, front, notes)
            .map_err(|errno| other(format!("queues and depth do not go together: {errno}")))?;
        let resumed = session
            .resume(link.registers(), &|| !super::reconnect::is_closed(link.peer()))
            .map_err(|_| {
                ConnectError::Attach(AttachFailure::Io(io::ErrorKind::ConnectionReset.into()))
            })?;
        for (what, errno) in &resumed.refused {
            tracing::warn!(%errno, "not given back by the DPU side: {what}");
        }
        tracing::debug!(handles = resumed.handles, locks = resumed.locks, "handed in");
        Host::begin(options, memory, session, world, ledger)
    }
}

fn begin(fd: OwnedFd, layout: Layout) -> Result<Notes, ConnectError> {
    let room = Notes::room(layout).ok_or_else(|| other(NoNotes::Grid.to_string()))?;
    let shared = Shared::open(fd, room).map_err(|error| other(error.to_string()))?;
    Notes::begin(Arc::clone(shared.region()), layout).map_err(|error| other(error.to_string()))
}

fn other(text: String) -> ConnectError {
    ConnectError::Io(io::Error::other(text))
}

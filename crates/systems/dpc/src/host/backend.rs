//! A session as what front-ends are written against.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::task::Poll;
use std::time::Duration;

use outboard_base::{Fh, Ino, Result};
use outboard_volume::backend;

use super::{Call, Completion, Port, Session, Slot};

/// Longest wait for a slot before the thread looks around again.
const SLOT_WAIT: Duration = Duration::from_secs(1);

impl backend::Backend for Session {
    type Slot = Slot;
    type Port = Port;

    fn port(self: &Arc<Session>, index: u16) -> Option<Port> {
        Session::port(self, index)
    }

    fn calling_port(self: &Arc<Session>, index: u16) -> Option<Port> {
        Session::calling_port(self, index)
    }

    fn abort(self: &Arc<Session>, tag: u64) -> bool {
        Session::abort(self, tag)
    }

    fn read_cached(&self, ino: Ino, fh: Fh, offset: u64, into: &mut [u8]) -> Option<usize> {
        Session::read_cached(self, ino, fh, offset, into)
    }

    fn write_cached(&self, ino: Ino, fh: Fh, offset: u64, bytes: &[u8]) -> bool {
        Session::write_cached(self, ino, fh, offset, bytes)
    }
}

impl backend::Port for Port {
    type Slot = Slot;

    fn acquire(&mut self) -> Result<Slot> {
        let until = self.now().after(SLOT_WAIT);
        self.acquire_by(until)
    }

    fn start(&mut self, slot: Slot, call: &Call<'_>, tag: u64) -> Poll<Completion> {
        Port::start(self, slot, call, tag)
    }

    fn call(&mut self, slot: Slot, call: &Call<'_>) -> Completion {
        Port::call(self, slot, call)
    }
}

impl backend::Slot for Slot {
    fn payload(&self) -> &[AtomicU8] {
        Slot::payload(self)
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        Slot::write(self, at, bytes)
    }

    fn read(&self, at: usize, out: &mut [u8]) -> Result<()> {
        Slot::read(self, at, out)
    }
}

//! A session as what front-ends are written against.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::task::Poll;
use std::time::Duration;

use outboard_base::{Fh, Ino, Result};
use outboard_volume::backend;

use super::{Call, Completion, QueuePort, QueueSlot, Session};

/// Longest wait for a slot before the thread looks around again.
const SLOT_WAIT: Duration = Duration::from_secs(1);

impl backend::Backend for Session {
    type Slot = QueueSlot;
    type Port = QueuePort;

    fn port(self: &Arc<Session>, index: u16) -> Option<QueuePort> {
        Session::port(self, index)
    }

    fn calling_port(self: &Arc<Session>, index: u16) -> Option<QueuePort> {
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

impl backend::Port for QueuePort {
    type Slot = QueueSlot;

    fn acquire(&mut self) -> Result<QueueSlot> {
        let until = self.now().after(SLOT_WAIT);
        self.acquire_by(until)
    }

    fn start(&mut self, slot: QueueSlot, call: &Call<'_>, tag: u64) -> Poll<Completion> {
        QueuePort::start(self, slot, call, tag)
    }

    fn call(&mut self, slot: QueueSlot, call: &Call<'_>) -> Completion {
        QueuePort::call(self, slot, call)
    }
}

impl backend::Slot for QueueSlot {
    fn payload(&self) -> &[AtomicU8] {
        QueueSlot::payload(self)
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        QueueSlot::write(self, at, bytes)
    }

    fn read(&self, at: usize, out: &mut [u8]) -> Result<()> {
        QueueSlot::read(self, at, out)
    }
}

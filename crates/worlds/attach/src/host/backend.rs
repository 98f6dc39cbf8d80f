//! An attached process as what front-ends are written against: its session.

use std::sync::Arc;

use outboard_base::{Fh, Ino};
use outboard_volume::backend::Backend;

use super::{Host, QueuePort, QueueSlot};

impl Backend for Host {
    type Slot = QueueSlot;
    type Port = QueuePort;

    fn port(self: &Arc<Host>, index: u16) -> Option<QueuePort> {
        self.session.port(index)
    }

    fn calling_port(self: &Arc<Host>, index: u16) -> Option<QueuePort> {
        self.session.calling_port(index)
    }

    fn abort(self: &Arc<Host>, tag: u64) -> bool {
        self.session.abort(tag)
    }

    fn read_cached(&self, ino: Ino, fh: Fh, offset: u64, into: &mut [u8]) -> Option<usize> {
        self.session.read_cached(ino, fh, offset, into)
    }

    fn write_cached(&self, ino: Ino, fh: Fh, offset: u64, bytes: &[u8]) -> bool {
        self.session.write_cached(ino, fh, offset, bytes)
    }
}

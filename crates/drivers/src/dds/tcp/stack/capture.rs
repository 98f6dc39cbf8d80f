//! A device that writes down what passes through another, for a packet analyser.
//!
//! One file a device, as libpcap writes them (nanoseconds, Ethernet): the two legs of a flow have
//! the same addresses; in one file they would look like one connection gone mad. A checksum that
//! its sender left to the device is finished in the file, as the device would have.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use outboard_dds::dpu::director::packet::finish_checksum;

use super::device::{Device, FRAME_MAX, HEADER, unfinished};
use crate::clock;

/// Nanoseconds; the order of bytes is this computer's.
const MAGIC: u32 = 0xA1B2_3C4D;
const ETHERNET: u32 = 1;

struct Sink {
    out: BufWriter<File>,
    /// A frame while its checksum is finished.
    frame: Vec<u8>,
    failed: bool,
}

impl Sink {
    fn record(&mut self, frame: &[u8]) -> io::Result<()> {
        self.frame.clear();
        self.frame.extend_from_slice(frame.get(HEADER..).unwrap_or_default());
        if let Some((start, offset)) = unfinished(frame) {
            // One that lies elsewhere is written as it came.
            let _finished = finish_checksum(&mut self.frame, start, offset);
        }
        let len = u32::try_from(self.frame.len()).map_err(io::Error::other)?;
        let wall = clock::wall();
        let sec = u32::try_from(wall.sec).unwrap_or(u32::MAX);
        for word in [sec, wall.nsec, len, len] {
            self.out.write_all(&word.to_ne_bytes())?;
        }
        self.out.write_all(&self.frame)
    }
}

/// A device, and the file of what passes.
pub struct Captured {
    inner: Arc<dyn Device>,
    sink: Mutex<Sink>,
}

impl Captured {
    /// Writes to a new file; one that is there is replaced.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(inner: Arc<dyn Device>, file: &Path) -> io::Result<Captured> {
        let file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
        let mut out = BufWriter::new(file);
        let longest = u32::try_from(FRAME_MAX).map_err(io::Error::other)?;
        out.write_all(&MAGIC.to_ne_bytes())?;
        for half in [2u16, 4] {
            out.write_all(&half.to_ne_bytes())?;
        }
        for word in [0, 0, longest, ETHERNET] {
            out.write_all(&u32::to_ne_bytes(word))?;
        }
        let sink = Sink { out, frame: Vec::new(), failed: false };
        Ok(Captured { inner, sink: Mutex::new(sink) })
    }

    fn record(&self, frame: &[u8]) {
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        if sink.failed {
            return;
        }
        if let Err(error) = sink.record(frame) {
            sink.failed = true;
            tracing::warn!(%error, "the capture cannot be written and ends; free space there");
        }
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        let sink = self.sink.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !sink.failed
            && let Err(error) = sink.out.flush()
        {
            tracing::warn!(%error, "the end of the capture could not be written");
        }
    }
}

impl Device for Captured {
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        let received = self.inner.receive(buf)?;
        if let Some(len) = received {
            self.record(buf.get(..len).unwrap_or_default());
        }
        Ok(received)
    }

    fn send(&self, frame: &[u8]) -> bool {
        let sent = self.inner.send(frame);
        if sent {
            self.record(frame);
        }
        sent
    }
}

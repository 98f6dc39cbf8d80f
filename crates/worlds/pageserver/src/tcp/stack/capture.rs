//! A device that writes down what passes through another, for a packet analyser.
//!
//! One file a device, as libpcap writes them ([`pcap`]): the two legs of a flow have the same
//! addresses; in one file they would look like one connection gone mad. A checksum that its sender
//! left to the device is finished in the file, as the device would have.
//!
//! ```text
//! NAME.pcap       what passed last
//! NAME.1.pcap     what passed before that, once NAME.pcap is half of what is allowed for both
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outboard_dds::dpu::director::packet::finish_checksum;
use outboard_dds::dpu::director::packet::pcap::{self, BEFORE, HEAD, KEPT_MAX};

use super::device::{Device, HEADER, unfinished};
use outboard_os::clock;

/// A new file; one that is there is replaced.
fn begin(file: &Path) -> io::Result<BufWriter<File>> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
    let mut out = BufWriter::new(file);
    out.write_all(&pcap::head())?;
    Ok(out)
}

struct Sink {
    path: PathBuf,
    out: BufWriter<File>,
    /// Bytes of this file, and how many it may have.
    written: u64,
    limit: u64,
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
        self.frame.truncate(KEPT_MAX);
        let kept = u32::try_from(self.frame.len()).map_err(io::Error::other)?;
        let all = BEFORE + u64::from(kept);
        if self.written > HEAD && self.written + all > self.limit {
            self.pass()?;
        }
        self.written += all;
        self.out.write_all(pcap::before(clock::wall(), kept, len).as_flattened())?;
        self.out.write_all(&self.frame)
    }

    /// Goes on in a new file; the one before this goes.
    fn pass(&mut self) -> io::Result<()> {
        self.out.flush()?;
        std::fs::rename(&self.path, self.path.with_extension("1.pcap"))?;
        self.out = begin(&self.path)?;
        self.written = HEAD;
        Ok(())
    }
}

/// A device, and the file of what passes.
pub struct Captured {
    inner: Arc<dyn Device>,
    sink: Mutex<Sink>,
}

impl Captured {
    /// Writes to a new file, and to another when that has half of `most` bytes; those that are
    /// there are replaced.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(inner: Arc<dyn Device>, file: &Path, most: u64) -> io::Result<Captured> {
        match std::fs::remove_file(file.with_extension("1.pcap")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let sink = Sink {
            path: file.to_owned(),
            out: begin(file)?,
            written: HEAD,
            limit: most / 2,
            frame: Vec::new(),
            failed: false,
        };
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

    fn tend(&self) -> Option<Duration> {
        self.inner.tend()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_os::wakeup::Wakeup;

    /// Takes everything.
    struct Open(Wakeup);

    impl Device for Open {
        fn fd(&self) -> BorrowedFd<'_> {
            self.0.fd()
        }

        fn mtu(&self) -> usize {
            1500
        }

        fn receive(&self, _: &mut [u8]) -> io::Result<Option<usize>> {
            Ok(None)
        }

        fn send(&self, _: &[u8]) -> bool {
            true
        }
    }

    /// The numbers of the frames in a file, which has to be whole.
    fn frames(path: &Path) -> Vec<u8> {
        let bytes = std::fs::read(path).unwrap();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(20)), (pcap::MAGIC, pcap::ETHERNET));
        let (mut at, mut found) = (24, Vec::new());
        while at < bytes.len() {
            let kept = usize::try_from(word(at + 8)).unwrap();
            assert!(kept <= KEPT_MAX);
            found.push(bytes[at + 16]);
            at += 16 + kept;
        }
        assert_eq!(at, bytes.len());
        found
    }

    /// A capture that was forgotten filled the disk.
    #[test]
    fn a_capture_keeps_what_passed_last_and_no_more_than_it_may() {
        let dir = tempfile::tempdir().unwrap();
        let (file, older) = (dir.path().join("a.pcap"), dir.path().join("a.1.pcap"));
        let open = || Arc::new(Open(Wakeup::new().unwrap()));
        let captured = Captured::new(open(), &file, 4000).unwrap();
        for n in 0..100 {
            assert!(captured.send(&[&[0; HEADER][..], &[n; 84]].concat()));
        }
        drop(captured);
        let all = [frames(&older), frames(&file)].concat();
        assert_eq!(all, (100 - u8::try_from(all.len()).unwrap()..100).collect::<Vec<_>>());
        let size = |path: &Path| std::fs::metadata(path).unwrap().len();
        assert!(size(&file) + size(&older) <= 4000 && all.len() > 19, "{}", all.len());
        // Longer than a file may be, and than analysers read: it is there, cut.
        let captured = Captured::new(open(), &file, 4000).unwrap();
        assert!(!older.exists(), "of another capture");
        assert!(captured.send(&vec![7; HEADER + 2 * KEPT_MAX]));
        drop(captured);
        assert_eq!(frames(&file), [7]);
        assert_eq!(size(&file), HEAD + BEFORE + KEPT_MAX as u64);
    }
}

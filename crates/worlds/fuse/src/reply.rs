//! From the volume's answer to the kernel's. What comes from the other side is checked: an answer
//! that cannot be true becomes EIO, and is logged.

use std::io;

use outboard_base::{Errno, Ino, Result};
use outboard_volume::backend::{Completion, Slot};
use outboard_wire::file::{Attr, Reply};
use outboard_wire::fuse::{answer, out_header};

use crate::collected::Mended;
use crate::front::MountFront;
use crate::job::{Chore, Job, Shape};
use crate::options::KillPoint;

/// The kernel takes errno numbers below this.
const KERNEL_ERRNO_END: u16 = 512;

/// Body of an answer.
enum Body<'a> {
    Bytes(&'a [u8]),
    /// This many bytes of the slot's payload.
    Payload(usize),
}

impl<S: Slot> MountFront<S> {
    /// Answers the kernel, and keeps account of what the answer means. The job was taken out of the
    /// pending ones, so that this happens once.
    pub(crate) fn finish(&self, job: Job, completion: Completion<S>) {
        let Completion { tag, outcome, slot, .. } = completion;
        self.reaches(KillPoint::Answered);
        if let Some(change) = job.change {
            let left = match &outcome {
                Ok(Reply::Gone { parent, .. }) => parent.as_deref(),
                _ => None,
            };
            self.directories.end(change, left);
        }
        if let Shape::Released { ino, fh } = job.shape {
            self.releases.gone(ino, fh);
        }
        let outcome = match (&job.shape, outcome) {
            (Shape::Forget, Ok(_)) => return,
            (Shape::Forget, Err(errno)) => {
                tracing::warn!(%errno, "the volume could not forget an inode");
                return;
            }
            (Shape::Moved { parent }, outcome) => {
                // A name that moved on meanwhile has a chore of its own.
                if let Ok(Reply::Entry(attr)) = outcome {
                    self.inodes.moved(attr.ino, *parent);
                }
                return;
            }
            (Shape::Lookup { .. }, Err(Errno::ENOENT))
                if !self.options.negative_valid.is_zero() =>
            {
                let body = answer::negative_entry(self.negative_valid());
                return self.send(&job, tag, slot.as_ref(), Ok(Body::Bytes(&body)));
            }
            (_, Err(errno)) => return self.refuse(job.device, tag, errno),
            (_, Ok(reply)) => reply,
        };
        if let Err(errno) = self.finish_success(&job, tag, outcome, slot.as_ref()) {
            tracing::error!(what = job.what, %errno, "the volume's answer makes no sense");
            self.refuse(job.device, tag, Errno::EIO);
        }
        self.inodes.told();
    }

    /// An error says that the reply does not fit the request; nothing was sent then.
    fn finish_success(&self, job: &Job, tag: u64, reply: Reply, slot: Option<&S>) -> Result<()> {
        let valid = self.valid();
        let send = |body: &[u8]| self.send(job, tag, None, Ok(Body::Bytes(body)));
        match (&job.shape, reply) {
            (Shape::Lookup { parent } | Shape::Entry { parent }, Reply::Entry(attr)) => {
                self.inodes.seen(&attr, *parent);
                if matches!(job.shape, Shape::Entry { .. }) {
                    self.inodes.named(attr.ino);
                }
                send(&answer::entry(&attr, valid));
            }
            (Shape::Mended, Reply::Attr(attr)) => {
                self.mended(Mended { device: job.device, unique: tag, attr });
            }
            (Shape::Attr, Reply::Attr(attr)) => send(&answer::attr(&attr, valid.attr)),
            (Shape::Statx, Reply::Attr(attr)) => send(&answer::statx(&attr, valid.attr)),
            (Shape::Opened { fopen }, Reply::Opened(fh)) => send(&answer::opened(fh.0, *fopen)),
            (Shape::Created { parent, nameless, fopen }, Reply::Created(attr, fh)) => {
                self.inodes.seen(&attr, *parent);
                if *nameless {
                    self.unnamed(attr.ino);
                }
                send(&answer::created(&attr, valid, fh.0, *fopen));
            }
            (Shape::Data { room }, Reply::Data(len)) if len <= *room => {
                self.send(job, tag, slot, Ok(Body::Payload(len as usize)));
            }
            (Shape::Data { .. }, Reply::Size(len)) => send(&answer::size(len)),
            (Shape::Written { most }, Reply::Written(len)) if len <= *most => {
                send(&answer::size(len));
            }
            (Shape::Written64, Reply::Written(len)) => send(&answer::offset(len.into())),
            (Shape::Empty | Shape::Released { .. }, Reply::Empty) => send(&[]),
            (Shape::Removed { moved }, Reply::Removed(nameless)) => {
                if let Some(ino) = nameless {
                    self.unnamed(ino);
                }
                self.moved(moved);
                send(&[]);
            }
            (Shape::Removed { moved }, Reply::Gone { last, .. }) => {
                self.inodes.gone(&last);
                self.moved(moved);
                send(&[]);
            }
            (Shape::Statfs, Reply::Statfs(figures)) => send(&answer::statfs(&figures)),
            (Shape::Lock, Reply::Lock(lock)) => send(&answer::lock(&lock)),
            (Shape::Offset, Reply::Offset(offset)) => send(&answer::offset(offset)),
            (Shape::Listing { listing, room }, Reply::Data(len)) if len <= *room => {
                let slot = slot.ok_or(Errno::EPROTO)?;
                let mut payload = vec![0; len as usize];
                slot.read(0, &mut payload)?;
                let mut out = Vec::with_capacity(payload.len() + listing.own_len());
                let mut found = Vec::new();
                listing.encode(&payload, &mut out, |attr| found.push(attr.clone()))?;
                found.iter().for_each(|attr| self.inodes.seen(attr, listing.ino));
                send(&out);
            }
            _ => return Err(Errno::EPROTO),
        }
        Ok(())
    }

    fn moved(&self, moved: &[(Ino, Vec<u8>)]) {
        for (parent, name) in moved {
            self.push_chore(Chore::Moved { parent: *parent, name: name.clone() });
        }
    }

    /// Answers GETATTR and STATX with attributes that are known here.
    pub(crate) fn tell(&self, device: usize, unique: u64, attr: &Attr, statx: bool) {
        let valid = self.valid().attr;
        if statx {
            self.answer(device, unique, &answer::statx(attr, valid));
        } else {
            self.answer(device, unique, &answer::attr(attr, valid));
        }
    }

    /// Answers the kernel.
    pub(crate) fn answer(&self, device: usize, unique: u64, body: &[u8]) {
        if let Some(device) = self.device(device) {
            report(device.write(&out_header(unique, None, body.len()), body), unique);
        }
    }

    /// Answers the kernel with an error.
    pub(crate) fn refuse(&self, device: usize, unique: u64, errno: Errno) {
        let errno = if errno.raw() < KERNEL_ERRNO_END { errno } else { Errno::EIO };
        let head = out_header(unique, Some(errno), 0);
        if let Some(device) = self.device(device) {
            report(device.write(&head, &[]), unique);
        }
    }

    /// Answers the kernel with an empty body.
    pub(crate) fn accept(&self, device: usize, unique: u64) {
        if let Some(device) = self.device(device) {
            report(device.write(&out_header(unique, None, 0), &[]), unique);
        }
    }

    fn send(&self, job: &Job, unique: u64, slot: Option<&S>, body: Result<Body<'_>>) {
        let Some(device) = self.device(job.device) else { return };
        let written = match (body, slot) {
            (Ok(Body::Bytes(bytes)), _) => {
                device.write(&out_header(unique, None, bytes.len()), bytes)
            }
            (Ok(Body::Payload(0)), _) => device.write(&out_header(unique, None, 0), &[]),
            (Ok(Body::Payload(len)), Some(slot)) => {
                device.write_pages(&out_header(unique, None, len), slot, len)
            }
            (Ok(Body::Payload(_)), None) => return self.refuse(job.device, unique, Errno::EIO),
            (Err(errno), _) => return self.refuse(job.device, unique, errno),
        };
        if written.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)) {
            // The kernel found the answer malformed and still waits for one.
            tracing::error!(what = job.what, "the kernel refused an answer");
            return self.refuse(job.device, unique, Errno::EIO);
        }
        report(written, unique);
    }
}

/// Logs what went wrong with an answer. A request the kernel no longer waits for (it was aborted
/// with its connection) is no fault.
fn report(written: io::Result<()>, unique: u64) {
    if let Err(error) = written
        && !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
    {
        tracing::error!(unique, %error, "an answer could not be given to the kernel");
    }
}

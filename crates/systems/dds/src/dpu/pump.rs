//! The pump: requests of one notification group to the file service, and its responses back
//! (section 4.3; rows D3, D5, D8, D20).
//!
//! ```text
//! host            bus      DPU side
//! request ring ──DMA──▶ a batch, aligned as in the ring ──▶ futures of the file service
//!                          responses, in the order of the requests:
//! response ring ◀─DMA── | delivered | done, waiting |  done and pending ...  |
//!                               TailC           TailB                  TailA
//! ```
//!
//! Space for a response is set aside before its operation begins: TailA moves. Operations end in
//! any order; TailB moves over those that are done without a gap, and when enough are, or nothing
//! else is to be done, they are delivered with one DMA (two around the ring's end) and TailC moves.
//! Where there is no space for a response, its request and all behind it wait, and nothing more is
//! fetched.
//!
//! Nobody copies data: a read ends in a buffer that the device filled and the DMA engine empties; a
//! write's data goes to the device from the batch it was fetched in, which is kept, and counts
//! against the ring, until then. What is copied all the same (parts of blocks, reads across
//! segments) is counted in the ledger.
//!
//! A pump makes futures and does not run them: who drives it does, on the same thread.

mod operation;
mod responses;
pub mod summary;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::ledger::{Count, Ledger};
use outboard_base::{Errno, Time};
use outboard_link::dma::Dma;
use outboard_link::region::OutOfRegion;
use outboard_link::ring::progress::{Consumer, Seen};
use outboard_link::ring::response::Producer;
use outboard_link::ring::{Fault, Place};
use outboard_medium::{ALIGN, Buf, Medium};
use outboard_wire::dds::{Refused, Request, frames};

use super::files::{FileService, ReadOp};
use super::offload::pool::Pool;
use operation::{Outcome, read, run};
use responses::{Responses, Space};
use summary::Summary;

/// An operation under way, to be polled by who drives the pump.
pub type Work = Pin<Box<dyn Future<Output = ()>>>;

/// Bytes of read buffers a pump keeps.
const BUFFERS: usize = 8 << 20;

/// How a pump behaves.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Deliver when so many bytes are done.
    pub batch: u64,
    /// Or when the first of them has waited so long.
    pub patience: Duration,
    /// Operations under way at most.
    pub depth: usize,
    /// Copies the data of every request and response once, as if buffers could not be kept until
    /// the device is done: for measuring what that costs.
    pub copies: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config { batch: 64 << 10, patience: Duration::ZERO, depth: 256, copies: false }
    }
}

/// What one pass of a pump did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pumped {
    /// Operations begun.
    pub begun: usize,
    /// Responses delivered.
    pub delivered: usize,
    /// Producers have reserved and not finished: look again soon.
    pub unfinished: bool,
}

/// A batch of requests, fetched.
struct Batch {
    bytes: Arc<Buf>,
    /// Where in the buffer its first byte lies.
    at: usize,
    /// Positions in the ring.
    from: u64,
    to: u64,
    /// Messages not begun yet: offset in the batch, and length.
    left: VecDeque<(u64, Range<usize>)>,
    /// Operations that still read the batch.
    users: Rc<()>,
}

/// The DPU side of one group.
pub struct Pump<M: Medium> {
    service: Arc<FileService<M>>,
    summary: Arc<Summary>,
    consumer: Consumer,
    responses: Responses,
    batches: VecDeque<Batch>,
    /// What reads end in. Beyond its sum buffers come and go.
    buffers: Pool,
    /// A buffer for the next batch.
    spare: Option<Buf>,
    ended: Rc<RefCell<Vec<(u64, Outcome)>>>,
    under_way: usize,
    config: Config,
    ledger: Arc<Ledger>,
}

impl<M: Medium> Pump<M> {
    /// The pump of fresh rings in the memory behind `dma`.
    ///
    /// # Errors
    /// If they do not lie there.
    pub fn new(
        service: Arc<FileService<M>>,
        summary: Arc<Summary>,
        dma: &Arc<dyn Dma>,
        (requests, responses): (Place, Place),
        config: Config,
        ledger: Arc<Ledger>,
    ) -> Result<Pump<M>, OutOfRegion> {
        Ok(Pump {
            service,
            summary,
            consumer: Consumer::new(Arc::clone(dma), requests)?,
            responses: Responses::new(Producer::new(Arc::clone(dma), responses)?, responses),
            batches: VecDeque::new(),
            buffers: Pool::new(BUFFERS),
            spare: None,
            ended: Rc::default(),
            under_way: 0,
            config,
            ledger,
        })
    }

    /// Operations begun and not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Requests that were fetched and not begun, for want of room for their responses.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.batches.iter().map(|batch| batch.left.len()).sum()
    }

    /// Takes in what has ended, delivers, fetches, and begins what there is room for: `start` gets
    /// each operation and polls it, at once if it likes.
    ///
    /// # Errors
    /// [`Fault`]: the group can be followed no further. What is under way ends all the same.
    pub fn pass(&mut self, now: Time, start: &mut dyn FnMut(Work)) -> Result<Pumped, Fault> {
        let mut pumped = Pumped::default();
        self.take_in(now);
        if self.batches.iter().all(|batch| batch.left.is_empty()) && self.has_depth() {
            pumped.unfinished = self.fetch()?;
        }
        pumped.begun = self.begin(start)?;
        // What was begun may have ended at once.
        self.take_in(now);
        self.release()?;
        pumped.delivered = self.responses.deliver(now, &self.config)?;
        self.responses.emptied.drain(..).for_each(|buf| self.buffers.give(buf));
        Ok(pumped)
    }

    /// When to come back for responses that wait for company.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.responses.deadline(&self.config)
    }

    /// Whether requests wait for the host to read responses, which it does not announce.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.has_depth() && self.batches.iter().any(|batch| !batch.left.is_empty())
    }

    fn has_depth(&self) -> bool {
        self.under_way < self.config.depth
    }

    fn take_in(&mut self, now: Time) {
        let mut ended = std::mem::take(&mut *self.ended.borrow_mut());
        self.under_way -= ended.len().min(self.under_way);
        for (number, outcome) in ended.drain(..) {
            self.responses.complete(number, outcome, now);
        }
        let mut kept = self.ended.borrow_mut();
        if kept.is_empty() {
            *kept = ended;
        }
    }

    /// Fetches a batch, if there is one; whether somebody is amid writing one.
    fn fetch(&mut self) -> Result<bool, Fault> {
        let (from, to) = match self.consumer.look()? {
            Seen::Nothing => return Ok(false),
            Seen::Unfinished => return Ok(true),
            Seen::Batch { from, to } => (from, to),
        };
        let len = usize::try_from(to - from).map_err(|_| Fault::Pointers)?;
        // What is aligned in the ring is aligned here.
        let at = usize::try_from(from % ALIGN as u64).map_err(|_| Fault::Pointers)?;
        let mut buf = match self.spare.take().filter(|buf| buf.capacity() >= at + len) {
            Some(buf) => buf,
            None => self.service.keep(Buf::zeroed((at + len).next_power_of_two())),
        };
        buf.resize(at + len);
        let part = buf.get_mut(at..at + len).ok_or(Fault::Pointers)?;
        self.consumer.fetch(from, part)?;
        let mut left = VecDeque::new();
        for message in frames(part, from) {
            let (position, bytes) = message?;
            let start = usize::try_from(position - from).map_err(|_| Fault::Pointers)? + at;
            left.push_back((position, start..start + bytes.len()));
        }
        let (bytes, users) = (Arc::new(buf), Rc::new(()));
        self.batches.push_back(Batch { bytes, at, from, to, left, users });
        Ok(false)
    }

    /// Begins requests in order, as long as there is room for their responses.
    fn begin(&mut self, start: &mut dyn FnMut(Work)) -> Result<usize, Fault> {
        let mut begun = 0;
        while self.has_depth() {
            let Some(batch) = self.batches.back_mut() else { break };
            let Some((_, mut message)) = batch.left.front().cloned() else { break };
            let bytes = batch.bytes.get(message.clone()).unwrap_or_default();
            let (id, request) = match Request::parse(bytes) {
                Ok((id, request)) => (id, Ok(request)),
                Err(Refused { id: Some(id), .. }) => (id, Err(Errno::EINVAL)),
                // Nobody can be told: a host that writes such messages has lost its way.
                Err(Refused { id: None, why }) => return Err(Fault::Message(why)),
            };
            let room = request.as_ref().map_or(0, Request::room);
            let (number, errno) = match self.responses.set_aside(id, room)? {
                Space::Short => break,
                Space::Never(number) => (number, Some(Errno::E2BIG)),
                Space::Kept(number) => (number, request.err()),
            };
            batch.left.pop_front();
            begun += 1;
            self.under_way += 1;
            let ended = Rc::clone(&self.ended);
            if let Some(errno) = errno {
                ended.borrow_mut().push((number, Outcome::failed(errno)));
                continue;
            }
            let (service, summary) = (Arc::clone(&self.service), Arc::clone(&self.summary));
            let copies = self.config.copies.then(|| Arc::clone(&self.ledger));
            if let Ok(Request::Read { file, offset, bytes }) = request {
                // A read takes whole blocks, one more at each end, and nothing of the batch.
                let buf = self.buffers.take(bytes as usize + 2 * ALIGN);
                let buf = buf.map_or_else(|| Buf::zeroed(0), |buf| self.service.keep(buf));
                start(Box::pin(async move {
                    let op = ReadOp { file, offset, bytes };
                    let mut outcome = read(&service, &summary, op, buf).await;
                    if let Some(ledger) = &copies {
                        outcome.copy(ledger);
                    }
                    ended.borrow_mut().push((number, outcome));
                }));
                continue;
            }
            let (mut held, user) = (Arc::clone(&batch.bytes), Rc::clone(&batch.users));
            if let Some(ledger) = &copies {
                (held, message) = copied(&held, message, ledger);
            }
            start(Box::pin(async move {
                let outcome = run(&service, &summary, &held, message).await;
                drop((held, user));
                ended.borrow_mut().push((number, outcome));
            }));
        }
        Ok(begun)
    }

    /// Gives the host back what nobody reads any more, in order.
    fn release(&mut self) -> Result<(), Fault> {
        let mut upto = None;
        while let Some(batch) = self.batches.front() {
            let in_use = !batch.left.is_empty() || Rc::strong_count(&batch.users) > 1;
            if in_use {
                break;
            }
            upto = Some(batch.to);
            if let Some(batch) = self.batches.pop_front() {
                debug_assert!(batch.from < batch.to && batch.at < ALIGN);
                self.spare = Arc::try_unwrap(batch.bytes).ok();
            }
        }
        let copied = self.service.take_copied();
        if copied > 0 {
            self.ledger.count(Count::Copied, copied);
        }
        upto.map_or(Ok(()), |upto| self.consumer.release(upto))
    }
}

/// A message elsewhere, as it lies: what is aligned stays so.
fn copied(batch: &Buf, message: Range<usize>, ledger: &Ledger) -> (Arc<Buf>, Range<usize>) {
    let from = message.start % ALIGN;
    let moved = from..from + message.len();
    let mut copy = Buf::zeroed(moved.end);
    if let (Some(to), Some(bytes)) = (copy.get_mut(moved.clone()), batch.get(message)) {
        to.copy_from_slice(bytes);
    }
    ledger.count(Count::Copied, moved.len() as u64);
    (Arc::new(copy), moved)
}

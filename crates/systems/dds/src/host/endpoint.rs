//! One group's rings, and the endpoints threads take to use them.
//!
//! An endpoint is a producer of the one ring and a consumer of the other, with what was asked
//! there. A thread takes a free one for the length of a call, first the one its number points at,
//! so that threads seldom meet; it never waits for one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use outboard_base::{Errno, Result, Time};
use outboard_link::Region;
use outboard_link::region::OutOfRegion;
use outboard_link::ring::progress::{self, Shape};
use outboard_link::ring::response::{self, Claimed};
use outboard_link::ring::{Place, PushError, Recovery};
use outboard_wire::dds::{REQUEST_HEAD, RESPONSE_HEAD, Request, ResponseHead};

use super::booking::{Booked, Bookings, Id, Outcome};
use super::{Completion, STUCK, World};

/// Endpoints of a group: as many threads may be inside calls at once.
const ENDPOINTS: usize = 64;
/// The owner of an endpoint nobody has.
const NOBODY: u64 = u64::MAX;

/// Locks what no panic leaves half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Ends {
    producer: progress::Producer,
    consumer: response::Consumer,
}

struct Endpoint<B> {
    ends: Mutex<Ends>,
    bookings: Mutex<Bookings<B>>,
}

/// Where the rings stood when they were last seen to stand still, and since when.
#[derive(Clone, Copy, Debug, Default)]
struct Still {
    requests: Option<(u64, Time)>,
    responses: Option<(u64, Time)>,
}

/// One group.
pub(super) struct Group<B> {
    endpoints: Vec<Endpoint<B>>,
    requests: progress::Ring,
    responses: response::Ring,
    align: usize,
    still: Mutex<Still>,
}

/// A free endpoint: its number, itself, and its ends.
type Free<'a, B> = (usize, &'a Endpoint<B>, MutexGuard<'a, Ends>);

impl<B: AsMut<[u8]>> Group<B> {
    pub(super) fn new(
        region: &Arc<Region>,
        (requests, responses): (Place, Place),
        align: u32,
    ) -> std::result::Result<Group<B>, OutOfRegion> {
        let requests = progress::Ring::new(Arc::clone(region), requests, requests.bytes())?;
        let responses = response::Ring::new(Arc::clone(region), responses)?;
        let endpoint = |_| {
            let (producer, consumer) = (requests.producer(NOBODY)?, responses.consumer(NOBODY)?);
            let ends = Mutex::new(Ends { producer, consumer });
            Some(Endpoint { ends, bookings: Mutex::default() })
        };
        let endpoints = (0..ENDPOINTS).map_while(endpoint).collect();
        let still = Mutex::default();
        Ok(Group { endpoints, requests, responses, align: align as usize, still })
    }

    /// A free endpoint, first the one a thread's number points at.
    fn free(&self, who: u64) -> Option<Free<'_, B>> {
        let first = usize::try_from(who).unwrap_or(0) % self.endpoints.len().max(1);
        let all = self.endpoints.iter().enumerate();
        let mut endpoints = all.clone().skip(first).chain(all.take(first));
        endpoints.find_map(|(number, endpoint)| match endpoint.ends.try_lock() {
            Ok(ends) => Some((number, endpoint, ends)),
            Err(TryLockError::Poisoned(ends)) => Some((number, endpoint, ends.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        })
    }

    /// Puts a request with its data into the ring; what was booked is given back if that fails.
    pub(super) fn submit(
        &self,
        who: u64,
        request: &Request<'_>,
        data: &[&[u8]],
        booked: Booked<B>,
    ) -> std::result::Result<(), (Errno, Booked<B>)> {
        let Some((number, endpoint, mut ends)) = self.free(who) else {
            return Err((Errno::EAGAIN, booked));
        };
        let id =
            lock(&endpoint.bookings).book(number, booked).map_err(|back| (Errno::EAGAIN, back))?;
        let pushed = push(&mut ends.producer, who, self.align, request, id.raw(), data);
        let Err(error) = pushed else { return Ok(()) };
        let errno = match error {
            PushError::Retry => Errno::EAGAIN,
            PushError::TooLong => Errno::E2BIG,
            PushError::Broken => Errno::EIO,
        };
        // Nothing was published, so nobody else has taken it.
        lock(&endpoint.bookings).take(id).map_or(Ok(()), |booked| Err((errno, booked)))
    }

    /// Takes completions, up to `most`. Whether the ring can be followed.
    pub(super) fn take(&self, who: u64, out: &mut Vec<Completion<B>>, most: usize) -> Result<()> {
        let Some((_, _, mut ends)) = self.free(who) else { return Ok(()) };
        let consumer = &mut ends.consumer;
        consumer.rename(who).map_err(|_| Errno::EIO)?;
        let done = self.take_all(consumer, out, most);
        consumer.rename(NOBODY).map_err(|_| Errno::EIO)?;
        done
    }

    fn take_all(
        &self,
        consumer: &mut response::Consumer,
        out: &mut Vec<Completion<B>>,
        most: usize,
    ) -> Result<()> {
        let mut left = most;
        while left > 0 {
            let claimed = consumer.claimed().map_err(|_| Errno::EIO)?;
            let Some(claimed) = claimed else { break };
            let mut head = [0; RESPONSE_HEAD];
            claimed.read(0, &mut head).map_err(|_| Errno::EIO)?;
            let head = ResponseHead::parse(&head, claimed.message_len());
            let head = head.map_err(|_| Errno::EIO)?;
            let id = Id::of(head.id);
            let endpoint = self.endpoints.get(id.endpoint);
            // An answer to nothing is passed over: it can complete nothing.
            if let Some(booked) = endpoint.and_then(|endpoint| lock(&endpoint.bookings).take(id)) {
                out.push(complete(booked, &head, &claimed));
                left -= 1;
            }
        }
        Ok(())
    }

    /// Ends what is under way, until `out` holds `most`: the DPU side is gone, or cannot be
    /// followed.
    pub(super) fn fail(&self, out: &mut Vec<Completion<B>>, most: usize) {
        for endpoint in &self.endpoints {
            for booked in lock(&endpoint.bookings).take_some(most.saturating_sub(out.len())) {
                let Booked { user, buffers, .. } = booked;
                out.push(Completion { user, result: Err(Errno::EIO), buffers });
            }
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.responses.is_ready()
    }

    /// Looks after threads that died within a call, once a ring has stood still for [`STUCK`].
    pub(super) fn tend(&self, world: &dyn World) -> Result<()> {
        let (requests, responses) = (self.requests.unfinished(), self.responses.unfinished());
        // Somebody else looks already.
        let Ok(mut still) = self.still.try_lock() else { return Ok(()) };
        if requests.is_none() && responses.is_none() {
            *still = Still::default();
            return Ok(());
        }
        let now = world.now();
        let is_dead = |who: u64| who != NOBODY && world.is_dead(who);
        if stands(&mut still.requests, requests, now)
            && self.requests.has_left(&is_dead).map_err(|_| Errno::EIO)?
        {
            recovered(self.requests.recover(&is_dead))?;
        }
        if stands(&mut still.responses, responses, now)
            && self.responses.has_left(&is_dead).map_err(|_| Errno::EIO)?
        {
            recovered(self.responses.recover(&is_dead))?;
        }
        Ok(())
    }
}

/// Whether a pointer has been where it is for [`STUCK`].
fn stands(still: &mut Option<(u64, Time)>, now_at: Option<u64>, now: Time) -> bool {
    match (*still, now_at) {
        (Some((at, since)), Some(now_at)) if at == now_at => now.since(since) >= STUCK,
        (_, at) => {
            *still = at.map(|at| (at, now));
            false
        }
    }
}

fn recovered(recovery: std::result::Result<Recovery, OutOfRegion>) -> Result<()> {
    match recovery {
        Ok(Recovery::Lost) | Err(_) => Err(Errno::EIO),
        Ok(Recovery::Waiting | Recovery::Done { .. }) => Ok(()),
    }
}

fn push(
    producer: &mut progress::Producer,
    who: u64,
    align: usize,
    request: &Request<'_>,
    id: u64,
    data: &[&[u8]],
) -> std::result::Result<(), PushError> {
    producer.rename(who)?;
    let len = data.iter().map(|part| part.len()).sum();
    let mut put = || {
        // What is less than a block is copied beyond the bus anyway.
        let align = if len >= align { align } else { 8 };
        let reservation = producer.reserve(Shape { head: REQUEST_HEAD, data: len, align })?;
        let mut at = reservation.data_at();
        reservation.write(0, &request.head(id, at, len))?;
        for part in data {
            reservation.write(at, part)?;
            at += part.len();
        }
        Ok(reservation.publish()?)
    };
    let done = put();
    producer.rename(NOBODY)?;
    done
}

/// Fills the buffers of a read from where its data lies, and says how it went.
fn complete<B: AsMut<[u8]>>(
    booked: Booked<B>,
    head: &ResponseHead,
    claimed: &Claimed<'_>,
) -> Completion<B> {
    let Booked { user, mut buffers, result } = booked;
    let result = match (head.result(), result) {
        (Err(_), _) => Err(Errno::EIO),
        (Ok(Err(errno)), _) => Err(errno),
        (Ok(Ok(_)), Outcome::Written(bytes)) => Ok(bytes),
        (Ok(Ok(value)), Outcome::Value) => Ok(value),
        (Ok(Ok(_)), Outcome::Read) => fill(&mut buffers, head, claimed),
    };
    Completion { user, result, buffers }
}

fn fill<B: AsMut<[u8]>>(
    buffers: &mut [B],
    head: &ResponseHead,
    claimed: &Claimed<'_>,
) -> Result<u64> {
    let (mut at, mut left) = (usize::from(head.data_at), head.data_len as usize);
    for buffer in buffers {
        let buffer = buffer.as_mut();
        let now = buffer.len().min(left);
        let part = buffer.get_mut(..now).unwrap_or_default();
        claimed.read(at, part).map_err(|_| Errno::EIO)?;
        at += now;
        left -= now;
    }
    // More than was asked for is no answer to this.
    if left == 0 { Ok(head.data_len.into()) } else { Err(Errno::EIO) }
}

//! What is under way: operations booked under the id their response will have.

/// What an operation needs when its response comes.
#[derive(Debug)]
pub(super) struct Booked<B> {
    pub(super) user: u64,
    /// Buffers to fill, for a read.
    pub(super) buffers: Vec<B>,
    /// What the result is if all went well: the value answered, or a number known before.
    pub(super) result: Outcome,
}

/// What a completion's result is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The bytes that came.
    Read,
    /// The bytes that were written, all of them.
    Written(u64),
    /// The value of the response.
    Value,
}

/// Most operations under way at an endpoint.
const BOOKED_MAX: usize = 1 << 16;
/// Bits of an id that say which endpoint, and which place there.
const ENDPOINT_BITS: u32 = 8;
const PLACE_BITS: u32 = 24;

/// An id, as requests carry it: unique until its completion is taken, and for 2^32 uses of a place
/// after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) endpoint: usize,
    place: usize,
    generation: u32,
}

impl Id {
    pub(super) fn raw(self) -> u64 {
        let low = (self.place << ENDPOINT_BITS | self.endpoint) as u64;
        u64::from(self.generation) << (ENDPOINT_BITS + PLACE_BITS) | low
    }

    #[expect(clippy::cast_possible_truncation, reason = "taking the id apart")]
    pub(super) fn of(raw: u64) -> Id {
        let bits = |from: u32, count: u32| (raw >> from & ((1 << count) - 1)) as usize;
        Id {
            endpoint: bits(0, ENDPOINT_BITS),
            place: bits(ENDPOINT_BITS, PLACE_BITS),
            generation: (raw >> (ENDPOINT_BITS + PLACE_BITS)) as u32,
        }
    }
}

#[derive(Debug)]
struct Slot<B> {
    generation: u32,
    booked: Option<Booked<B>>,
}

/// The operations of one endpoint.
#[derive(Debug)]
pub(super) struct Bookings<B> {
    slots: Vec<Slot<B>>,
    free: Vec<usize>,
}

impl<B> Default for Bookings<B> {
    fn default() -> Bookings<B> {
        Bookings { slots: Vec::new(), free: Vec::new() }
    }
}

impl<B> Bookings<B> {
    /// Books an operation; it is given back when there are too many.
    pub(super) fn book(&mut self, endpoint: usize, booked: Booked<B>) -> Result<Id, Booked<B>> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.slots.len() < BOOKED_MAX => {
                self.slots.push(Slot { generation: 0, booked: None });
                self.slots.len() - 1
            }
            None => return Err(booked),
        };
        let Some(slot) = self.slots.get_mut(place) else { return Err(booked) };
        slot.booked = Some(booked);
        Ok(Id { endpoint, place, generation: slot.generation })
    }

    /// Takes what was booked under an id; `None` if nothing is (any more).
    pub(super) fn take(&mut self, id: Id) -> Option<Booked<B>> {
        let slot = self.slots.get_mut(id.place)?;
        if slot.generation != id.generation {
            return None;
        }
        let booked = slot.booked.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.place);
        Some(booked)
    }

    /// Takes whatever there is, up to `most`.
    pub(super) fn take_some(&mut self, most: usize) -> Vec<Booked<B>> {
        let booked = |(place, slot): (usize, &mut Slot<B>)| {
            let booked = slot.booked.take()?;
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(place);
            Some(booked)
        };
        self.slots.iter_mut().enumerate().filter_map(booked).take(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn booked(user: u64) -> Booked<Vec<u8>> {
        Booked { user, buffers: Vec::new(), result: Outcome::Value }
    }

    #[test]
    fn an_id_is_good_for_one_taking() {
        let mut bookings = Bookings::default();
        let first = bookings.book(3, booked(1)).unwrap();
        let second = bookings.book(3, booked(2)).unwrap();
        assert_eq!(Id::of(first.raw()), first);
        assert_ne!(first.raw(), second.raw());
        assert_eq!(bookings.take(first).unwrap().user, 1);
        assert!(bookings.take(first).is_none());
        let third = bookings.book(3, booked(3)).unwrap();
        assert!(bookings.take(first).is_none(), "its place is used again under another id");
        assert_eq!((bookings.take(third).unwrap().user, bookings.take_some(9).len()), (3, 1));
        assert!(bookings.take(second).is_none());
        assert!(bookings.take(Id::of(u64::MAX)).is_none());
    }

    #[test]
    fn their_number_is_bounded() {
        let mut bookings = Bookings::default();
        let ids: Vec<_> = (0..).map_while(|n| bookings.book(0, booked(n)).ok()).collect();
        assert_eq!(ids.len(), BOOKED_MAX);
        assert!(ids.iter().all(|id| bookings.take(*id).is_some()));
        assert!(bookings.book(0, booked(0)).is_ok());
    }
}

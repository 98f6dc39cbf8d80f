//! What was answered to requests that change bytes, for who asks again: the server records those
//! it carries out, and never sees these.
//!
//! A record lives as long as this side. What another life of it did is not known here: it is done
//! again, as the same bytes at the same place; of appends the server knows.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_base::SessionId;
use outboard_wire::file::{Flags, Header, Reply};

#[derive(Debug, Default)]
pub(crate) struct Replays(Mutex<BTreeMap<(SessionId, u16), (u64, Reply)>>);

impl Replays {
    fn all(&self) -> MutexGuard<'_, BTreeMap<(SessionId, u16), (u64, Reply)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was answered to a request that is asked again.
    pub(crate) fn recorded(&self, header: &Header) -> Option<Reply> {
        if header.sequence == 0 || !header.flags.has(Flags::REPLAY) {
            return None;
        }
        let all = self.all();
        let (sequence, reply) = all.get(&(header.session, header.lane))?;
        (*sequence == header.sequence).then(|| reply.clone())
    }

    /// It is answered. What was before in its lane was acknowledged by it.
    pub(crate) fn record(&self, header: &Header, reply: &Reply) {
        if header.sequence != 0 {
            let key = (header.session, header.lane);
            self.all().insert(key, (header.sequence, reply.clone()));
        }
    }

    pub(crate) fn detach(&self, session: SessionId) {
        self.all().retain(|(of, _), _| *of != session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_is_answered_again_to_who_asks_again() {
        let replays = Replays::default();
        let header = |sequence, lane, flags| Header {
            sequence,
            lane,
            flags,
            session: SessionId(3),
            ..Header::default()
        };
        let again = |sequence, lane| replays.recorded(&header(sequence, lane, Flags::REPLAY));
        replays.record(&header(5, 1, Flags::default()), &Reply::Written(7));
        replays.record(&header(0, 1, Flags::default()), &Reply::Written(8));
        assert_eq!(again(5, 1), Some(Reply::Written(7)));
        assert_eq!((again(5, 2), again(4, 1), again(0, 1)), (None, None, None));
        assert_eq!(replays.recorded(&header(5, 1, Flags::default())), None, "it is a new one");
        replays.record(&header(6, 1, Flags::default()), &Reply::Empty);
        assert_eq!((again(5, 1), again(6, 1)), (None, Some(Reply::Empty)));
        replays.detach(SessionId(3));
        assert_eq!(again(6, 1), None);
    }
}

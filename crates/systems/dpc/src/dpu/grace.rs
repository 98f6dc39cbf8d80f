//! The grace period after a start: those who held files and locks before hand them in again first.

use std::collections::BTreeSet;
use std::time::Duration;

use outboard_base::{Deadline, SessionId, Time};

/// Whom a service waits for after it was started again. Ends early when all have come back.
#[derive(Clone, Debug)]
pub struct Grace {
    waiting: BTreeSet<SessionId>,
    until: Time,
    over: bool,
}

impl Grace {
    /// Waits for `sessions`, at most `limit`.
    #[must_use]
    pub fn new(sessions: impl IntoIterator<Item = SessionId>, now: Time, limit: Duration) -> Grace {
        Grace { waiting: sessions.into_iter().collect(), until: now.after(limit), over: false }
    }

    /// A session handed in everything it held, or left for good.
    pub fn returned(&mut self, session: SessionId) {
        self.waiting.remove(&session);
    }

    /// True once: when everybody is back, or the time is over. Who is missing then is in
    /// [`Grace::missing`].
    pub fn ends(&mut self, now: Time) -> bool {
        let ends = !self.over && (self.waiting.is_empty() || now >= self.until);
        self.over |= ends;
        ends
    }

    /// Whether it lasts.
    #[must_use]
    pub fn lasts(&self) -> bool {
        !self.over
    }

    /// Who has not come back.
    pub fn missing(&self) -> impl Iterator<Item = SessionId> {
        self.waiting.iter().copied()
    }

    /// When it ends at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Deadline> {
        (!self.over).then_some(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn it_ends_when_all_are_back_or_time_is_over_and_only_once() {
        let mut nobody = Grace::new([], Time(0), LIMIT);
        assert!(nobody.ends(Time(0)) && !nobody.ends(Time(0)) && !nobody.lasts());

        let two = [SessionId(1), SessionId(2)];
        let mut grace = Grace::new(two, Time(0), LIMIT);
        grace.returned(SessionId(1));
        grace.returned(SessionId(3));
        assert!(!grace.ends(Time(1)));
        grace.returned(SessionId(2));
        assert!(grace.ends(Time(2)) && !grace.ends(Time(0).after(LIMIT)));

        let mut late = Grace::new(two, Time(0), LIMIT);
        late.returned(SessionId(1));
        assert_eq!(late.deadline(), Some(Time(0).after(LIMIT)));
        assert!(late.ends(Time(0).after(LIMIT)));
        assert_eq!(late.missing().collect::<Vec<_>>(), [SessionId(2)]);
        assert_eq!(late.deadline(), None);
    }
}

//! Requests about locks, one at a time for each file, and which files' locks are delegated to this
//! session.
//!
//! Requests about the locks of one file go to the DPU side one at a time: so what the session
//! believes to hold is what the table there says, and when the locks are delegated to the session
//! ([`LockRequests::delegated`]) nothing is under way that could change it. From then on requests
//! are decided here, until the locks are handed back: because the DPU side recalls them, or because
//! a wait must be queued where all waits are. A handing back goes alone like a request, and before
//! all that wait.

use std::collections::{HashMap, VecDeque};

use outboard_base::Ino;

use super::Lane;

/// Whose request about a file's locks the DPU side has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Current {
    Call(Lane),
    /// The session's own: it hands the locks back.
    Return,
}

#[derive(Debug, Default)]
struct File {
    /// Its locks are delegated: this session decides them while no request is current.
    delegated: bool,
    /// They are to be handed back when the current request is over.
    recalled: bool,
    current: Option<Current>,
    waiting: VecDeque<Lane>,
}

/// Files somebody asks about locks of, or whose locks are delegated to this session.
#[derive(Debug, Default)]
pub(super) struct LockRequests {
    files: HashMap<Ino, File>,
    /// Files whose current request is a handing back that was not sent yet.
    returns: VecDeque<Ino>,
    /// Losses of the DPU side so far.
    life: u64,
}

impl LockRequests {
    /// Whether a request about the locks of `ino` is decided here.
    pub(super) fn decides(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| file.delegated && file.current.is_none())
    }

    /// Whether anything is known of `ino`.
    pub(super) fn knows(&self, ino: Ino) -> bool {
        self.files.contains_key(&ino)
    }

    /// Whether the call in `lane` may go to the DPU side now; if not, a later call of this module
    /// names it.
    pub(super) fn enter(&mut self, ino: Ino, lane: Lane) -> bool {
        let file = self.files.entry(ino).or_default();
        match file.current {
            None => file.current = Some(Current::Call(lane)),
            Some(current) if current == Current::Call(lane) => {}
            // Who was named to go and was given up meanwhile may be named once more.
            Some(_) if file.waiting.contains(&lane) => {}
            Some(_) => file.waiting.push_back(lane),
        }
        file.current == Some(Current::Call(lane))
    }

    /// The call in `lane` is over, or will not be sent, or waits no longer; who is next.
    pub(super) fn leave(&mut self, ino: Ino, lane: Lane) -> Option<Lane> {
        let file = self.files.get_mut(&ino)?;
        if file.current == Some(Current::Call(lane)) {
            file.current = None;
        } else {
            file.waiting.retain(|other| *other != lane);
        }
        self.admit_next(ino)
    }

    /// The call in `lane`, which is current, decides again whether it must be sent.
    pub(super) fn reconsider(&mut self, ino: Ino, lane: Lane) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        if file.current == Some(Current::Call(lane)) {
            file.current = None;
        }
    }

    /// If nothing is current, what is next becomes so: a handing back before a call that waits.
    fn admit_next(&mut self, ino: Ino) -> Option<Lane> {
        let file = self.files.get_mut(&ino)?;
        if file.current.is_some() {
            return None;
        }
        if std::mem::take(&mut file.recalled) {
            file.delegated = false;
            file.current = Some(Current::Return);
            self.returns.push_back(ino);
            return None;
        }
        let next = file.waiting.pop_front();
        file.current = next.map(Current::Call);
        if next.is_none() && !file.delegated {
            self.files.remove(&ino);
        }
        next
    }

    /// The DPU side has delegated the locks of `ino` to this session, in answer to the current
    /// call.
    pub(super) fn delegated(&mut self, ino: Ino) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.delegated = true;
        }
    }

    /// The last handle on `ino` is being closed: there is nothing to decide any more.
    pub(super) fn closed(&mut self, ino: Ino) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.delegated = false;
            if file.current.is_none() {
                self.files.remove(&ino);
            }
        }
    }

    /// The locks of `ino` are to be handed back, delegated or not: who asks for them must be told
    /// what is held.
    pub(super) fn hand_back(&mut self, ino: Ino) {
        let file = self.files.entry(ino).or_default();
        if file.current != Some(Current::Return) {
            file.recalled = true;
        }
        let next = self.admit_next(ino);
        debug_assert!(next.is_none(), "a handing back goes before everybody");
    }

    /// Whether some are to be sent.
    pub(super) fn has_returns(&self) -> bool {
        !self.returns.is_empty()
    }

    /// All that are delegated are to be handed back.
    pub(super) fn hand_all_back(&mut self) {
        let files = self.files.iter().filter(|(_, file)| file.delegated).map(|(&ino, _)| ino);
        let mut files: Vec<Ino> = files.collect();
        files.sort_unstable();
        for ino in files {
            self.hand_back(ino);
        }
    }

    /// The next file whose locks are to be sent, and in which life of the DPU side.
    pub(super) fn next_return(&mut self) -> Option<(Ino, u64)> {
        let life = self.life;
        self.returns.pop_front().map(|ino| (ino, life))
    }

    /// Whether the DPU side was not lost since `life`: if it was, what was to be handed back then
    /// was handed in, and may be decided here again.
    pub(super) fn is_of_this_life(&self, life: u64) -> bool {
        self.life == life
    }

    /// They could not be sent now.
    pub(super) fn not_sent(&mut self, ino: Ino, life: u64) {
        if self.life == life
            && self.files.get(&ino).is_some_and(|file| file.current == Some(Current::Return))
        {
            self.returns.push_front(ino);
        }
    }

    /// The DPU side has them; who is next.
    pub(super) fn returned(&mut self, ino: Ino) -> Option<Lane> {
        let file = self.files.get_mut(&ino)?;
        if file.current == Some(Current::Return) {
            file.current = None;
        }
        self.admit_next(ino)
    }

    /// The DPU side is lost: no locks are delegated, and nothing is to hand back but what is handed
    /// in. Current calls stay so; those who may go on.
    pub(super) fn lost(&mut self) -> Vec<Lane> {
        self.returns.clear();
        self.life += 1;
        for file in self.files.values_mut() {
            (file.delegated, file.recalled) = (false, false);
            file.current = file.current.filter(|current| *current != Current::Return);
        }
        let mut files: Vec<Ino> = self.files.keys().copied().collect();
        files.sort_unstable();
        files.into_iter().filter_map(|ino| self.admit_next(ino)).collect()
    }

    /// Files whose locks are decided here.
    pub(super) fn count(&self) -> usize {
        self.files.values().filter(|file| file.delegated).count()
    }
}

#[cfg(test)]
mod tests {
    use outboard_base::Rng;

    use super::*;

    const FILE: Ino = Ino(7);

    #[test]
    fn what_is_given_is_decided_here_until_it_is_handed_back() {
        let mut requests = LockRequests::default();
        assert!(requests.enter(FILE, Lane(1)) && !requests.decides(FILE));
        assert!(!requests.enter(FILE, Lane(2)), "one at a time");
        requests.delegated(FILE);
        assert!(!requests.decides(FILE), "its answer is being taken in");
        assert_eq!(requests.leave(FILE, Lane(1)), Some(Lane(2)));
        assert_eq!(requests.leave(FILE, Lane(2)), None);
        assert!(requests.decides(FILE));
        requests.hand_back(FILE);
        requests.hand_back(FILE);
        assert!(!requests.decides(FILE) && !requests.enter(FILE, Lane(3)));
        assert_eq!((requests.next_return(), requests.next_return()), (Some((FILE, 0)), None));
        assert_eq!(requests.returned(FILE), Some(Lane(3)));
        assert_eq!(requests.leave(FILE, Lane(3)), None);
        assert!(!requests.knows(FILE), "nothing is remembered without reason");
    }

    #[test]
    fn a_recall_waits_for_the_current_request_and_goes_before_the_rest() {
        let mut requests = LockRequests::default();
        assert!(requests.enter(FILE, Lane(1)) && !requests.enter(FILE, Lane(2)));
        requests.hand_back(FILE);
        assert_eq!(requests.next_return(), None);
        assert_eq!(requests.leave(FILE, Lane(1)), None);
        assert_eq!(requests.next_return(), Some((FILE, 0)));
        requests.not_sent(FILE, 0);
        assert_eq!(requests.next_return(), Some((FILE, 0)));
        assert_eq!(requests.leave(FILE, Lane(2)), None, "it was given up meanwhile");
        assert_eq!(requests.returned(FILE), None);
        assert!(!requests.knows(FILE));
    }

    /// A thread that was about to hand locks back slept through a loss and a return; the file was
    /// given to this session again meanwhile, and what it handed back was no longer what was held.
    #[test]
    fn what_was_to_be_handed_back_before_a_loss_is_not_after_it() {
        let mut requests = LockRequests::default();
        requests.hand_back(FILE);
        let (file, life) = requests.next_return().unwrap();
        assert_eq!(requests.lost(), []);
        requests.hand_back(FILE);
        assert!(!requests.is_of_this_life(life));
        requests.not_sent(file, life);
        assert_eq!((requests.next_return(), requests.next_return()), (Some((FILE, 1)), None));
    }

    /// A call was named to go, given up, and its lane taken by another that waits: when it was let
    /// go it waited twice, and its second request had no end.
    #[test]
    fn nobody_waits_twice() {
        let mut requests = LockRequests::default();
        assert!(requests.enter(FILE, Lane(1)));
        assert!(!requests.enter(FILE, Lane(2)) && !requests.enter(FILE, Lane(2)));
        assert_eq!(requests.leave(FILE, Lane(1)), Some(Lane(2)));
        assert_eq!(requests.leave(FILE, Lane(2)), None);
        assert!(!requests.knows(FILE));
    }

    /// Random calls, recalls and losses: one at a time, everybody goes once, nothing stays.
    #[test]
    fn requests_go_one_at_a_time_and_all_of_them_go() {
        for seed in 0..500 {
            let (mut rng, mut requests) = (Rng::new(seed), LockRequests::default());
            let (mut holder, mut waiting, mut next) = (None, Vec::new(), 0u16);
            let mut sent = false;
            for step in 0..400 {
                let mut admitted = Vec::new();
                match rng.below(8) {
                    0..=2 if step < 300 && !requests.decides(FILE) => {
                        next += 1;
                        match requests.enter(FILE, Lane(next)) {
                            true => assert_eq!(holder.replace(Lane(next)), None, "seed {seed}"),
                            false => waiting.push(Lane(next)),
                        }
                    }
                    3 | 4 => {
                        if let Some(lane) = holder.take() {
                            if rng.chance(1, 3) {
                                requests.delegated(FILE);
                            }
                            admitted.extend(requests.leave(FILE, lane));
                        }
                    }
                    5 if rng.chance(1, 4) => requests.hand_back(FILE),
                    6 if sent => {
                        sent = false;
                        admitted.extend(requests.returned(FILE));
                    }
                    6 => sent = requests.next_return().is_some(),
                    7 if rng.chance(1, 20) => {
                        sent = false;
                        admitted = requests.lost();
                    }
                    _ => {}
                }
                for lane in admitted {
                    assert_eq!(holder.replace(lane), None, "seed {seed}: two at once");
                    assert_eq!(waiting.remove(0), lane, "seed {seed}: first come");
                }
                let busy = holder.is_some() || sent;
                assert!(!(busy && requests.decides(FILE)), "seed {seed}");
            }
            requests.lost().into_iter().for_each(|lane| {
                waiting.retain(|other| *other != lane);
                assert_eq!(holder.replace(lane), None);
            });
            while let Some(lane) = holder.take() {
                holder = requests.leave(FILE, lane);
                waiting.retain(|other| Some(*other) != holder);
            }
            assert!(waiting.is_empty() && !requests.knows(FILE), "seed {seed}: {waiting:?}");
        }
    }
}

//! The order of lock requests, and which files' locks this session decides itself.
//!
//! Requests about the locks of one file go to the DPU side one at a time: so what the session
//! believes to hold is what the table there says, and when the table is given to the session
//! ([`Turns::given`]) nothing is under way that could change it. From then on lock requests are
//! decided here, until the locks are handed back: because the DPU side recalls them, or because a
//! wait must be queued where all waits are. A handing back has its turn like a request, before all
//! that wait for theirs.

use std::collections::{HashMap, VecDeque};

use outboard_base::Ino;

use super::Lane;

/// Whose request about a file's locks the DPU side has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Call(Lane),
    /// The session's own: it hands the locks back.
    Return,
}

#[derive(Debug, Default)]
struct File {
    /// Its locks are this session's to decide, unless a turn is taken.
    ours: bool,
    /// They are to be handed back when the turn is over.
    recalled: bool,
    turn: Option<Turn>,
    waiting: VecDeque<Lane>,
}

/// Files somebody asks about locks of, or whose locks are ours to decide.
#[derive(Debug, Default)]
pub(super) struct Turns {
    files: HashMap<Ino, File>,
    /// Files whose turn is a handing back that was not sent yet.
    returns: VecDeque<Ino>,
    /// Losses of the DPU side so far.
    life: u64,
}

impl Turns {
    /// Whether a request about the locks of `ino` is decided here.
    pub(super) fn decides(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| file.ours && file.turn.is_none())
    }

    /// Whether anything is known of `ino`.
    pub(super) fn knows(&self, ino: Ino) -> bool {
        self.files.contains_key(&ino)
    }

    /// Whether the call in `lane` may go to the DPU side now; if not, a later call of this module
    /// names it.
    pub(super) fn take(&mut self, ino: Ino, lane: Lane) -> bool {
        let file = self.files.entry(ino).or_default();
        match file.turn {
            None => file.turn = Some(Turn::Call(lane)),
            Some(turn) if turn == Turn::Call(lane) => {}
            // Who was named to go and was given up meanwhile may be named once more.
            Some(_) if file.waiting.contains(&lane) => {}
            Some(_) => file.waiting.push_back(lane),
        }
        file.turn == Some(Turn::Call(lane))
    }

    /// The call in `lane` is over, or gives its turn up, or its place among those who wait; who is
    /// next.
    pub(super) fn give_up(&mut self, ino: Ino, lane: Lane) -> Option<Lane> {
        let file = self.files.get_mut(&ino)?;
        if file.turn == Some(Turn::Call(lane)) {
            file.turn = None;
        } else {
            file.waiting.retain(|other| *other != lane);
        }
        self.pass_on(ino)
    }

    /// The call in `lane`, whose turn has come, looks again whether it needs one.
    pub(super) fn put_down(&mut self, ino: Ino, lane: Lane) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        if file.turn == Some(Turn::Call(lane)) {
            file.turn = None;
        }
    }

    /// Gives a free turn to the next in line.
    fn pass_on(&mut self, ino: Ino) -> Option<Lane> {
        let file = self.files.get_mut(&ino)?;
        if file.turn.is_some() {
            return None;
        }
        if std::mem::take(&mut file.recalled) {
            file.ours = false;
            file.turn = Some(Turn::Return);
            self.returns.push_back(ino);
            return None;
        }
        let next = file.waiting.pop_front();
        file.turn = next.map(Turn::Call);
        if next.is_none() && !file.ours {
            self.files.remove(&ino);
        }
        next
    }

    /// The DPU side has given the locks of `ino` to this session, in answer to the call whose turn
    /// it is.
    pub(super) fn given(&mut self, ino: Ino) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.ours = true;
        }
    }

    /// The last handle on `ino` is being closed: there is nothing to decide any more.
    pub(super) fn closed(&mut self, ino: Ino) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.ours = false;
            if file.turn.is_none() {
                self.files.remove(&ino);
            }
        }
    }

    /// The locks of `ino` are to be handed back, ours or not: who asks for them must be told what
    /// is held.
    pub(super) fn hand_back(&mut self, ino: Ino) {
        let file = self.files.entry(ino).or_default();
        if file.turn != Some(Turn::Return) {
            file.recalled = true;
        }
        let next = self.pass_on(ino);
        debug_assert!(next.is_none(), "a handing back goes before everybody");
    }

    /// Whether some are to be sent.
    pub(super) fn has_returns(&self) -> bool {
        !self.returns.is_empty()
    }

    /// All that are ours are to be handed back.
    pub(super) fn hand_all_back(&mut self) {
        let ours = self.files.iter().filter(|(_, file)| file.ours).map(|(&ino, _)| ino);
        let mut ours: Vec<Ino> = ours.collect();
        ours.sort_unstable();
        for ino in ours {
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
            && self.files.get(&ino).is_some_and(|file| file.turn == Some(Turn::Return))
        {
            self.returns.push_front(ino);
        }
    }

    /// The DPU side has them; who is next.
    pub(super) fn returned(&mut self, ino: Ino) -> Option<Lane> {
        let file = self.files.get_mut(&ino)?;
        if file.turn == Some(Turn::Return) {
            file.turn = None;
        }
        self.pass_on(ino)
    }

    /// The DPU side is lost: nothing is ours to decide, and nothing to hand back but what is handed
    /// in. Calls keep their turns; those who may go on.
    pub(super) fn lost(&mut self) -> Vec<Lane> {
        self.returns.clear();
        self.life += 1;
        for file in self.files.values_mut() {
            (file.ours, file.recalled) = (false, false);
            file.turn = file.turn.filter(|turn| *turn != Turn::Return);
        }
        let mut files: Vec<Ino> = self.files.keys().copied().collect();
        files.sort_unstable();
        files.into_iter().filter_map(|ino| self.pass_on(ino)).collect()
    }

    /// Files whose locks are decided here.
    pub(super) fn count(&self) -> usize {
        self.files.values().filter(|file| file.ours).count()
    }
}

#[cfg(test)]
mod tests {
    use outboard_base::Rng;

    use super::*;

    const FILE: Ino = Ino(7);

    #[test]
    fn what_is_given_is_decided_here_until_it_is_handed_back() {
        let mut turns = Turns::default();
        assert!(turns.take(FILE, Lane(1)) && !turns.decides(FILE));
        assert!(!turns.take(FILE, Lane(2)), "one at a time");
        turns.given(FILE);
        assert!(!turns.decides(FILE), "its answer is being taken in");
        assert_eq!(turns.give_up(FILE, Lane(1)), Some(Lane(2)));
        assert_eq!(turns.give_up(FILE, Lane(2)), None);
        assert!(turns.decides(FILE));
        turns.hand_back(FILE);
        turns.hand_back(FILE);
        assert!(!turns.decides(FILE) && !turns.take(FILE, Lane(3)));
        assert_eq!((turns.next_return(), turns.next_return()), (Some((FILE, 0)), None));
        assert_eq!(turns.returned(FILE), Some(Lane(3)));
        assert_eq!(turns.give_up(FILE, Lane(3)), None);
        assert!(!turns.knows(FILE), "nothing is remembered without reason");
    }

    #[test]
    fn a_recall_waits_for_the_turn_and_goes_before_the_rest() {
        let mut turns = Turns::default();
        assert!(turns.take(FILE, Lane(1)) && !turns.take(FILE, Lane(2)));
        turns.hand_back(FILE);
        assert_eq!(turns.next_return(), None);
        assert_eq!(turns.give_up(FILE, Lane(1)), None);
        assert_eq!(turns.next_return(), Some((FILE, 0)));
        turns.not_sent(FILE, 0);
        assert_eq!(turns.next_return(), Some((FILE, 0)));
        assert_eq!(turns.give_up(FILE, Lane(2)), None, "it was given up meanwhile");
        assert_eq!(turns.returned(FILE), None);
        assert!(!turns.knows(FILE));
    }

    /// A thread that was about to hand locks back slept through a loss and a return; the file was
    /// given to this session again meanwhile, and what it handed back was no longer what was held.
    #[test]
    fn what_was_to_be_handed_back_before_a_loss_is_not_after_it() {
        let mut turns = Turns::default();
        turns.hand_back(FILE);
        let (file, life) = turns.next_return().unwrap();
        assert_eq!(turns.lost(), []);
        turns.hand_back(FILE);
        assert!(!turns.is_of_this_life(life));
        turns.not_sent(file, life);
        assert_eq!((turns.next_return(), turns.next_return()), (Some((FILE, 1)), None));
    }

    /// A call was named to go, given up, and its lane taken by another that waits: when it was let
    /// go it waited twice, and its second turn had no end.
    #[test]
    fn nobody_waits_twice() {
        let mut turns = Turns::default();
        assert!(turns.take(FILE, Lane(1)));
        assert!(!turns.take(FILE, Lane(2)) && !turns.take(FILE, Lane(2)));
        assert_eq!(turns.give_up(FILE, Lane(1)), Some(Lane(2)));
        assert_eq!(turns.give_up(FILE, Lane(2)), None);
        assert!(!turns.knows(FILE));
    }

    /// Random calls, recalls and losses: one turn at a time, everybody gets one, nothing stays.
    #[test]
    fn everybody_gets_a_turn() {
        for seed in 0..500 {
            let (mut rng, mut turns) = (Rng::new(seed), Turns::default());
            let (mut holder, mut waiting, mut next) = (None, Vec::new(), 0u16);
            let mut sent = false;
            for step in 0..400 {
                let mut admitted = Vec::new();
                match rng.below(8) {
                    0..=2 if step < 300 && !turns.decides(FILE) => {
                        next += 1;
                        match turns.take(FILE, Lane(next)) {
                            true => assert_eq!(holder.replace(Lane(next)), None, "seed {seed}"),
                            false => waiting.push(Lane(next)),
                        }
                    }
                    3 | 4 => {
                        if let Some(lane) = holder.take() {
                            if rng.chance(1, 3) {
                                turns.given(FILE);
                            }
                            admitted.extend(turns.give_up(FILE, lane));
                        }
                    }
                    5 if rng.chance(1, 4) => turns.hand_back(FILE),
                    6 if sent => {
                        sent = false;
                        admitted.extend(turns.returned(FILE));
                    }
                    6 => sent = turns.next_return().is_some(),
                    7 if rng.chance(1, 20) => {
                        sent = false;
                        admitted = turns.lost();
                    }
                    _ => {}
                }
                for lane in admitted {
                    assert_eq!(holder.replace(lane), None, "seed {seed}: two at once");
                    assert_eq!(waiting.remove(0), lane, "seed {seed}: first come");
                }
                let busy = holder.is_some() || sent;
                assert!(!(busy && turns.decides(FILE)), "seed {seed}");
            }
            turns.lost().into_iter().for_each(|lane| {
                waiting.retain(|other| *other != lane);
                assert_eq!(holder.replace(lane), None);
            });
            while let Some(lane) = holder.take() {
                holder = turns.give_up(FILE, lane);
                waiting.retain(|other| Some(*other) != holder);
            }
            assert!(waiting.is_empty() && !turns.knows(FILE), "seed {seed}: {waiting:?}");
        }
    }
}

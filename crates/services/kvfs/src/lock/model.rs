//! The table against a reference that knows single bytes only, and stories one by one.
//!
//! The reference keeps, for each byte of two small files, who holds it shared and who exclusive; a
//! wait is granted when no byte of it is in the way. It shares no data structure and no algorithm
//! with the table.

use std::collections::{BTreeMap, BTreeSet};

use outboard_base::limits::LOCKS_MAX;
use outboard_base::{Errno, Ino, SessionId};
use outboard_wire::file::{Lock, LockKind, LockStyle};
use proptest::prelude::*;

use super::{Asked, Holder, Locks, Owner, Settled};

/// Bytes of a file in the reference. The last stands for "to the end, wherever that will be".
const BYTES: u64 = 12;

fn owner(n: u64) -> Owner {
    // Two attachments that use the same numbers.
    Owner { session: SessionId(n % 2), owner: n / 2 }
}

fn lock(n: u64, kind: LockKind, style: LockStyle, start: u64, end: u64) -> Lock {
    let end = if end == BYTES - 1 { u64::MAX } else { end };
    Lock { owner: owner(n).owner, start, end, kind, style, pid: u32::try_from(n).unwrap() }
}

#[derive(Clone, Debug)]
enum Step {
    Set {
        file: u64,
        owner: u64,
        lock: Lock,
        wait: bool,
        reclaim: bool,
        delegable: bool,
    },
    /// Whoever decides the locks of a file hands them back.
    Return(u64),
    /// Nobody has the file open any more.
    Closed(u64),
    LosePatience,
    Test {
        file: u64,
        owner: u64,
        lock: Lock,
    },
    Cancel {
        nth: usize,
    },
    DropOwner {
        file: u64,
        owner: u64,
        style: LockStyle,
    },
    DropSession(u64),
    Grace(bool),
}

type Place = (u64, bool, u64); // file, is flock, byte

#[derive(Clone)]
struct Wait {
    ticket: u64,
    file: u64,
    owner: Owner,
    lock: Lock,
    patient: bool,
}

#[derive(Default)]
struct Reference {
    bytes: BTreeMap<Place, BTreeMap<Owner, LockKind>>,
    waits: Vec<Wait>,
    grace: bool,
    /// Files whose locks an attachment decides: the bytes are its own account then.
    given: BTreeMap<u64, SessionId>,
}

impl Reference {
    /// Asks the account of the attachment that decides: no wait, no table.
    fn decide(&mut self, file: u64, owner: Owner, lock: &Lock) {
        if lock.kind == LockKind::Unlock || self.really_blocks(file, owner, lock).is_empty() {
            self.apply(file, owner, lock);
        }
    }

    /// Every lock of an attachment on a file, a byte each.
    fn held(&self, file: u64, session: SessionId) -> Vec<Lock> {
        let mut held = Vec::new();
        for (&(at, flock, byte), holders) in &self.bytes {
            for (who, &kind) in holders.iter().filter(|(who, _)| who.session == session) {
                let style = if flock { LockStyle::Flock } else { LockStyle::Posix };
                let (start, end) = if byte == BYTES - 1 { (byte, u64::MAX) } else { (byte, byte) };
                if at == file && (!flock || byte == 0) {
                    held.push(Lock { owner: who.owner, start, end, kind, style, pid: 0 });
                }
            }
        }
        held
    }

    fn places(file: u64, lock: &Lock) -> impl Iterator<Item = Place> {
        let flock = lock.style == LockStyle::Flock;
        let (start, end) = if flock { (0, BYTES - 1) } else { (lock.start, lock.end) };
        (start..=end.min(BYTES - 1)).map(move |byte| (file, flock, byte))
    }

    /// As far as the table knows.
    fn blockers(&self, file: u64, owner: Owner, lock: &Lock) -> BTreeSet<Owner> {
        match self.given.contains_key(&file) {
            true => BTreeSet::new(),
            false => self.really_blocks(file, owner, lock),
        }
    }

    fn really_blocks(&self, file: u64, owner: Owner, lock: &Lock) -> BTreeSet<Owner> {
        Self::places(file, lock)
            .filter_map(|place| self.bytes.get(&place))
            .flatten()
            .filter(|&(&holder, &kind)| {
                holder != owner && (kind == LockKind::Write || lock.kind == LockKind::Write)
            })
            .map(|(&holder, _)| holder)
            .collect()
    }

    fn apply(&mut self, file: u64, owner: Owner, lock: &Lock) {
        for place in Self::places(file, lock) {
            let holders = self.bytes.entry(place).or_default();
            match lock.kind {
                LockKind::Unlock => holders.remove(&owner),
                kind => holders.insert(owner, kind),
            };
        }
    }

    /// Owners that `owner` waits for, through any number of waits.
    fn waits_for(&self, file: u64, owner: Owner, lock: &Lock) -> BTreeSet<Owner> {
        let mut reached = self.blockers(file, owner, lock);
        loop {
            let more: BTreeSet<Owner> = self
                .waits
                .iter()
                .filter(|w| w.patient && w.lock.style == LockStyle::Posix)
                .filter(|w| reached.contains(&w.owner))
                .flat_map(|w| self.blockers(w.file, w.owner, &w.lock))
                .collect();
            let before = reached.len();
            reached.extend(more);
            if reached.len() == before {
                return reached;
            }
        }
    }

    fn settle(&mut self, file: u64, out: &mut Vec<Settled>) {
        if self.grace || self.given.contains_key(&file) {
            return;
        }
        let end = |w: &Wait, result| Settled { session: w.owner.session, ticket: w.ticket, result };
        loop {
            let mut granted = false;
            for w in self.waits.clone() {
                if w.file == file && self.blockers(file, w.owner, &w.lock).is_empty() {
                    self.apply(file, w.owner, &w.lock);
                    self.waits.retain(|other| other.ticket != w.ticket);
                    out.push(end(&w, Ok(())));
                    granted = true;
                }
            }
            if !granted {
                break;
            }
        }
        for w in self.waits.clone().into_iter().filter(|w| w.file == file && !w.patient) {
            self.waits.retain(|other| other.ticket != w.ticket);
            out.push(end(&w, Err(Errno::EAGAIN)));
        }
        for w in self.waits.clone() {
            if w.file == file
                && w.lock.style == LockStyle::Posix
                && self.waits_for(file, w.owner, &w.lock).contains(&w.owner)
            {
                self.waits.retain(|other| other.ticket != w.ticket);
                out.push(end(&w, Err(Errno::EDEADLK)));
            }
        }
    }

    /// What [`Locks::set`] must answer; `None` for a wait.
    fn set(
        &mut self,
        (file, owner, lock): (u64, Owner, &Lock),
        wait: bool,
        reclaim: bool,
        out: &mut Vec<Settled>,
    ) -> Option<Result<(), Errno>> {
        if lock.kind != LockKind::Unlock {
            let holds_other_flock = lock.style == LockStyle::Flock
                && self
                    .bytes
                    .get(&(file, true, 0))
                    .and_then(|holders| holders.get(&owner))
                    .is_some_and(|&kind| kind != lock.kind);
            if holds_other_flock {
                self.apply(file, owner, &Lock { kind: LockKind::Unlock, ..*lock });
                self.settle(file, out);
            }
            let in_the_way = !self.blockers(file, owner, lock).is_empty();
            let away = self.given.contains_key(&file);
            if in_the_way || (self.grace && !reclaim) || away {
                let unknown = (self.grace || away) && !in_the_way;
                if reclaim || !(wait || unknown) {
                    return Some(Err(Errno::EAGAIN));
                }
                let circle = wait
                    && lock.style == LockStyle::Posix
                    && !self.grace
                    && self.waits_for(file, owner, lock).contains(&owner);
                return circle.then_some(Err(Errno::EDEADLK));
            }
        }
        self.apply(file, owner, lock);
        self.settle(file, out);
        Some(Ok(()))
    }
}

/// Checks that the table holds exactly the reference's bytes, in as few pieces as can be.
fn same(locks: &Locks, reference: &Reference) {
    for file in 0..2 {
        for style in [LockStyle::Posix, LockStyle::Flock] {
            for n in 0..6 {
                let who = owner(n);
                let kind_at = |byte| {
                    let place = (file, style == LockStyle::Flock, byte);
                    reference.bytes.get(&place).and_then(|holders| holders.get(&who)).copied()
                };
                let held = locks.files.get(&Ino(file)).map(|f| f.family(style));
                if reference.given.contains_key(&file) {
                    assert!(held.is_none(), "what is given away is not in the table");
                    continue;
                }
                let pieces = held.map(|h| h.of_owner(who)).unwrap_or_default();
                for byte in 0..BYTES {
                    let at = if byte == BYTES - 1 { u64::MAX } else { byte };
                    let found = pieces.iter().find(|p| p.start <= at && at <= p.end);
                    assert_eq!(found.map(|p| p.kind), kind_at(byte), "file {file} byte {byte}");
                }
                let changes = (1..BYTES).filter(|&b| kind_at(b) != kind_at(b - 1));
                let starts = changes.filter(|&b| kind_at(b).is_some()).count()
                    + usize::from(kind_at(0).is_some());
                assert_eq!(pieces.len(), starts, "pieces of {who:?} are not merged: {pieces:?}");
            }
        }
    }
    let counted = locks.counts.total();
    let pieces: usize = locks.files.values().map(|f| f.posix.len() + f.flock.len()).sum();
    assert_eq!(counted, pieces + reference.waits.len() + reference.given.len());
    assert!(locks.files.values().all(|file| !file.is_empty()));
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let style = || prop_oneof![4 => Just(LockStyle::Posix), 1 => Just(LockStyle::Flock)];
    let kind = || {
        prop_oneof![
            2 => Just(LockKind::Read),
            3 => Just(LockKind::Write),
            2 => Just(LockKind::Unlock)
        ]
    };
    let any_lock = move || {
        (0..6u64, kind(), style(), 0..BYTES, 0..BYTES)
            .prop_map(|(n, kind, style, a, b)| (n, lock(n, kind, style, a.min(b), a.max(b))))
    };
    let set = (0..2u64, any_lock(), any::<bool>(), prop::bool::weighted(0.1), any::<bool>())
        .prop_map(|(file, (owner, lock), wait, reclaim, delegable)| {
            let delegable = delegable && !reclaim;
            Step::Set { file, owner, lock, wait, reclaim, delegable }
        });
    let test =
        (0..2u64, any_lock()).prop_map(|(file, (owner, lock))| Step::Test { file, owner, lock });
    let drop_owner = (0..2u64, 0..6u64, style()).prop_map(|(file, owner, style)| Step::DropOwner {
        file,
        owner,
        style,
    });
    let step = prop_oneof![
        12 => set,
        2 => test,
        2 => (0..8usize).prop_map(|nth| Step::Cancel { nth }),
        2 => drop_owner,
        1 => (0..2u64).prop_map(Step::DropSession),
        1 => any::<bool>().prop_map(Step::Grace),
        2 => (0..2u64).prop_map(Step::Return),
        1 => (0..2u64).prop_map(Step::Closed),
        1 => Just(Step::LosePatience),
    ];
    prop::collection::vec(step, 1..60)
}

/// The table and the reference, and what each says has ended in a step.
struct Both {
    locks: Locks,
    reference: Reference,
    out: Vec<Settled>,
    expected: Vec<Settled>,
}

impl Both {
    fn new() -> Both {
        let (locks, reference) = (Locks::new(7), Reference::default());
        Both { locks, reference, out: Vec::new(), expected: Vec::new() }
    }

    fn step(&mut self, step: Step) {
        let Both { locks, reference, out, expected } = self;
        match step {
            Step::Set { file, owner: n, lock, wait, reclaim, delegable } => {
                self.set((file, owner(n), lock), wait, reclaim, delegable);
            }
            Step::Test { file, owner: n, lock } => self.test(file, owner(n), lock),
            Step::Return(file) => self.hand_back(file),
            Step::Closed(file) => {
                reference.bytes.retain(|place, _| place.0 != file);
                reference.given.remove(&file);
                reference.settle(file, expected);
                locks.closed(Ino(file), out);
            }
            Step::LosePatience => self.lose_patience(),
            Step::Cancel { nth } if nth < reference.waits.len() => self.cancel(nth),
            Step::Cancel { .. } => {}
            Step::DropOwner { file, owner: n, style } => {
                let all = lock(n, LockKind::Unlock, style, 0, BYTES - 1);
                self.drop_owner(file, owner(n), &all);
            }
            Step::DropSession(session) => self.drop_session(SessionId(session)),
            Step::Grace(true) => {
                (locks.grace, reference.grace) = (true, true);
            }
            Step::Grace(false) => {
                reference.grace = false;
                (0..2).for_each(|file| reference.settle(file, expected));
                locks.end_grace(out);
            }
        }
        assert_eq!(self.out, self.expected);
        same(&self.locks, &self.reference);
        self.out.clear();
        self.expected.clear();
    }

    fn set(
        &mut self,
        (file, who, lock): (u64, Owner, Lock),
        wait: bool,
        reclaim: bool,
        delegable: bool,
    ) {
        let Both { locks, reference, out, expected } = self;
        if reference.given.get(&file) == Some(&who.session) {
            reference.decide(file, who, &lock);
            return;
        }
        let want = reference.set((file, who, &lock), wait, reclaim, expected);
        let overdue = locks.is_overdue(Ino(file));
        // Both attachments are of one user, whose locks are counted with theirs.
        let holder = Holder::new(who.session, Some(7));
        let got = locks.set(Ino(file), holder, lock, wait, reclaim, out);
        match (got, want) {
            (Ok(Asked::Waiting(ticket)), None) => {
                reference.waits.push(Wait { ticket, file, owner: who, lock, patient: wait });
            }
            (Ok(Asked::Done), Some(Ok(()))) => {
                if delegable && locks.delegate(Ino(file), who.session) {
                    let alone = reference.bytes.iter().all(|(place, holders)| {
                        place.0 != file || holders.keys().all(|h| h.session == who.session)
                    });
                    assert!(alone && !reference.grace, "others hold locks there");
                    assert!(reference.waits.iter().all(|wait| wait.file != file));
                    assert_eq!(reference.given.insert(file, who.session), None);
                }
            }
            (Err(Errno::EAGAIN), None) => assert!(overdue && !wait, "it should wait"),
            (Err(got), Some(Err(want))) => assert_eq!(got, want),
            (got, want) => panic!("{got:?} instead of {want:?}"),
        }
        for (session, ino) in locks.take_recalls() {
            assert_eq!(reference.given.get(&ino.0), Some(&session), "not its to return");
        }
    }

    fn test(&self, file: u64, who: Owner, lock: Lock) {
        if self.reference.given.contains_key(&file) {
            return;
        }
        let found = self.locks.test(Ino(file), who.session, lock);
        let blockers = self.reference.blockers(file, who, &lock);
        let named = blockers.iter().any(|b| b.owner == found.owner);
        assert_eq!(found.kind == LockKind::Unlock, blockers.is_empty());
        assert!(blockers.is_empty() || named, "{found:?} is not in the way");
    }

    fn hand_back(&mut self, file: u64) {
        let Both { locks, reference, out, expected } = self;
        let given = reference.given.remove(&file);
        for session in [0, 1].map(SessionId) {
            let held = reference.held(file, session);
            let back = locks.take_back(Ino(file), session, &held, out);
            assert_eq!(back, Ok(()), "of who did not have them nothing is taken");
        }
        if given.is_some() {
            reference.settle(file, expected);
        }
    }

    fn lose_patience(&mut self) {
        let Both { locks, reference, out, .. } = self;
        locks.expire_recalls(out);
        for Settled { ticket, result, .. } in out.drain(..) {
            assert_eq!(result, Err(Errno::EAGAIN));
            let at = reference.waits.iter().position(|wait| wait.ticket == ticket);
            let wait = reference.waits.remove(at.unwrap());
            assert!(!wait.patient && locks.is_overdue(Ino(wait.file)), "{ticket}");
        }
    }

    fn cancel(&mut self, nth: usize) {
        let locks = &mut self.locks;
        let wait = self.reference.waits.remove(nth);
        let other = SessionId(1 - wait.owner.session.0);
        assert_eq!(locks.cancel(other, wait.ticket), Err(Errno::ENOENT));
        assert_eq!(locks.cancel(wait.owner.session, wait.ticket), Ok(()));
        assert_eq!(locks.cancel(wait.owner.session, wait.ticket), Err(Errno::ENOENT));
    }

    fn drop_owner(&mut self, file: u64, who: Owner, all: &Lock) {
        let Both { locks, reference, out, expected } = self;
        match reference.given.get(&file) {
            Some(session) if *session == who.session => {
                reference.apply(file, who, all);
                return;
            }
            Some(_) => {}
            None => reference.apply(file, who, all),
        }
        reference.settle(file, expected);
        locks.drop_owner(Ino(file), all.style, who, out);
    }

    fn drop_session(&mut self, session: SessionId) {
        let Both { locks, reference, out, expected } = self;
        reference.waits.retain(|w| w.owner.session != session);
        for holders in reference.bytes.values_mut() {
            holders.retain(|holder, _| holder.session != session);
        }
        reference.given.retain(|_, other| *other != session);
        (0..2).for_each(|file| reference.settle(file, expected));
        locks.drop_session(session, out);
    }
}

fn run(steps: Vec<Step>) {
    let mut both = Both::new();
    steps.into_iter().for_each(|step| both.step(step));
    let mut locks = both.locks;
    let mut out = Vec::new();
    (0..2).for_each(|session| locks.drop_session(SessionId(session), &mut out));
    assert!(locks.is_empty() && locks.counts.is_empty(), "something was left behind");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn it_does_what_the_bytes_say(steps in steps()) {
        run(steps);
    }
}

const FILE: Ino = Ino(5);

fn ask(locks: &mut Locks, n: u64, kind: LockKind, start: u64, end: u64) -> Result<Asked, Errno> {
    let mut out = Vec::new();
    let lock = lock(n, kind, LockStyle::Posix, start, end);
    let asked = locks.set(FILE, owner(n).session, lock, true, false, &mut out);
    assert!(out.is_empty(), "{out:?}");
    asked
}

/// Three owners in a ring: the one who would close it is refused, the others wait on.
#[test]
fn a_circle_of_three_is_refused_to_the_one_who_closes_it() {
    let mut locks = Locks::new(1);
    for n in 0..3 {
        assert_eq!(ask(&mut locks, n, LockKind::Write, n, n), Ok(Asked::Done));
    }
    assert_eq!(ask(&mut locks, 0, LockKind::Write, 1, 1), Ok(Asked::Waiting(1)));
    assert_eq!(ask(&mut locks, 1, LockKind::Write, 2, 2), Ok(Asked::Waiting(2)));
    assert_eq!(ask(&mut locks, 2, LockKind::Write, 0, 0), Err(Errno::EDEADLK));
    let mut out = Vec::new();
    locks.drop_owner(FILE, LockStyle::Posix, owner(2), &mut out);
    assert_eq!(out, [Settled { session: owner(1).session, ticket: 2, result: Ok(()) }]);
}

/// A waits for B's byte; B lets C have it too, while C waits (in another thread) for A. Nobody
/// asked anything that closed a circle at the time, so the check when locks change hands must find
/// it.
#[test]
fn a_circle_closed_by_a_grant_is_found() {
    let mut locks = Locks::new(1);
    let (a, b, c) = (0, 1, 2);
    assert_eq!(ask(&mut locks, a, LockKind::Write, 0, 0), Ok(Asked::Done));
    assert_eq!(ask(&mut locks, b, LockKind::Read, 5, 5), Ok(Asked::Done));
    assert_eq!(ask(&mut locks, a, LockKind::Write, 5, 5), Ok(Asked::Waiting(1)));
    assert_eq!(ask(&mut locks, c, LockKind::Write, 0, 0), Ok(Asked::Waiting(2)));
    let mut out = Vec::new();
    let shared = lock(c, LockKind::Read, LockStyle::Posix, 5, 5);
    let asked = locks.set(FILE, owner(c).session, shared, false, false, &mut out);
    assert_eq!(asked, Ok(Asked::Done));
    let refused = Settled { session: owner(a).session, ticket: 1, result: Err(Errno::EDEADLK) };
    assert_eq!(out, [refused]);
}

#[test]
fn an_attachment_cannot_hoard_locks() {
    let mut locks = Locks::new(1);
    let mut refused = None;
    for n in 0..LOCKS_MAX as u64 {
        // Every other byte: no two merge.
        let lock = Lock { pid: 0, ..lock(0, LockKind::Write, LockStyle::Posix, 0, 0) };
        let lock = Lock { start: 2 * n, end: 2 * n, ..lock };
        let mut out = Vec::new();
        if let Err(errno) = locks.set(FILE, SessionId(0), lock, false, false, &mut out) {
            refused = Some(errno);
            break;
        }
    }
    assert_eq!(refused, Some(Errno::ENOLCK));
    let other = lock(1, LockKind::Write, LockStyle::Posix, 1, 1);
    assert_eq!(locks.set(FILE, SessionId(1), other, false, false, &mut vec![]), Ok(Asked::Done));
}

/// A file given away counts as a lock, though none is held there. An attachment that had hundreds
/// of those and thousands of locks on one file handed these back, was answered `ENOLCK`, and held
/// none: others were granted what its programs believed to hold.
#[test]
fn what_an_attachment_was_told_it_holds_is_taken_back() {
    let mut locks = Locks::new(1);
    let write = |n: u64| Lock {
        pid: 0,
        start: 2 * n,
        end: 2 * n,
        ..lock(0, LockKind::Write, LockStyle::Posix, 0, 0)
    };
    let mut given = 0;
    for file in 100..100 + LOCKS_MAX as u64 {
        let asked = locks.set(Ino(file), SessionId(0), write(0), false, false, &mut vec![]);
        assert_eq!(asked, Ok(Asked::Done), "file {file}: nothing is held but in what was given");
        given += u64::from(locks.delegate(Ino(file), SessionId(0)));
        let unlock = Lock { kind: LockKind::Unlock, ..write(0) };
        if !locks.is_away(Ino(file)) {
            locks.set(Ino(file), SessionId(0), unlock, false, false, &mut vec![]).unwrap();
        }
    }
    assert!(given > 1_000, "{given}");
    let held: Vec<Lock> = (0..LOCKS_MAX as u64).map(write).collect();
    assert_eq!(locks.take_back(Ino(100), SessionId(0), &held, &mut vec![]), Ok(()));
    let other = locks.set(Ino(100), SessionId(1), write(8_000), false, false, &mut vec![]);
    assert_eq!(other, Err(Errno::EAGAIN));
}

/// Sixty-four attachments of a user had 8,192 locks each: the bound was an attachment's alone. All
/// of a user's have twice that, and what comes back from those that decide is taken in.
#[test]
fn a_user_hoards_no_more_than_its_share() {
    let mut locks = Locks::new(1);
    let write = |n: u64| Lock {
        pid: 0,
        start: 2 * n,
        end: 2 * n,
        ..lock(0, LockKind::Read, LockStyle::Posix, 0, 0)
    };
    let of = |session, user| Holder::new(SessionId(session), Some(user));
    let mut take_all = |holder: Holder| {
        for n in 0..=LOCKS_MAX as u64 {
            // A file for each, as every lock walks those of its file.
            let file = Ino(holder.session.0);
            match locks.set(file, holder, write(n), false, false, &mut vec![]) {
                Ok(asked) => assert_eq!(asked, Asked::Done),
                Err(errno) => return (n, errno),
            }
        }
        panic!("no end");
    };
    let most = LOCKS_MAX as u64 - 1;
    let taken = [1, 2, 3].map(|session| take_all(of(session, 10)));
    assert_eq!(taken, [(most, Errno::ENOLCK), (most, Errno::ENOLCK), (1, Errno::ENOLCK)]);
    assert_eq!(take_all(of(4, 11)), (most, Errno::ENOLCK), "another has a share, too");
    assert_eq!(take_all(Holder::from(SessionId(5))).0, most, "root is counted by itself");
    locks.drop_session(SessionId(1), &mut vec![]);
    let again = locks.set(Ino(3), of(3, 10), write(9), false, false, &mut vec![]);
    assert_eq!(again, Ok(Asked::Done), "what the gone had is there again");
    for session in 2..6 {
        locks.drop_session(SessionId(session), &mut vec![]);
    }
    assert!(locks.is_empty() && locks.counts.is_empty());
}

/// What a user's attachments decide by themselves is not in the table until it comes back. So few
/// of them do at a time that all of it is taken in then, and nobody loses what it was told it
/// holds.
#[test]
fn what_a_user_s_attachments_were_told_they_hold_is_taken_back() {
    let mut locks = Locks::new(1);
    let write = |n: u64| Lock {
        pid: 0,
        start: 2 * n,
        end: 2 * n,
        ..lock(0, LockKind::Write, LockStyle::Posix, 0, 0)
    };
    let held: Vec<Lock> = (0..LOCKS_MAX as u64).map(write).collect();
    let mut given = Vec::new();
    // Each a file of its own, which it alone locks.
    for session in 0..10u64 {
        let holder = Holder::new(SessionId(session), Some(10));
        let asked = locks.set(Ino(session), holder, write(0), false, false, &mut vec![]);
        assert_eq!(asked, Ok(Asked::Done));
        if locks.delegate(Ino(session), holder.session) {
            given.push(session);
        }
    }
    assert_eq!(given, [0, 1, 2, 3]);
    for session in given {
        let back = locks.take_back(Ino(session), SessionId(session), &held, &mut vec![]);
        assert_eq!(back, Ok(()), "attachment {session}");
    }
    // It has more than its share now, and gets neither more locks nor files to decide.
    let holder = Holder::new(SessionId(9), Some(10));
    let asked = locks.set(Ino(9), holder, write(5), false, false, &mut vec![]);
    assert_eq!(asked, Err(Errno::ENOLCK));
    assert!(!locks.delegate(Ino(9), SessionId(9)));
    for session in 0..10 {
        locks.drop_session(SessionId(session), &mut vec![]);
    }
    assert!(locks.is_empty() && locks.counts.is_empty());
}

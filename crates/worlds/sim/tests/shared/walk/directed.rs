//! What chance hardly finds, written down: one story each, which ends well, and does not where a
//! rule is taken away.

use std::time::Duration;

use outboard_base::planted::{Fault as Rule, plant};
use outboard_base::{Errno, Fh, Ino, Result, Time};
use outboard_volume::Answer;
use outboard_wire::file::Reply;
use outboard_wire::shared::Strategy;

use super::{Walk, Way};
use crate::host::Ask;
use crate::model::{CELL, bytes};
use crate::world::{CLIENTS, NODES, SERVER, SPARE};

/// Longer than any lease.
const LONG: Duration = Duration::from_secs(20);
/// Bytes of a page, and of more than a strip.
const SOME: u64 = 9 * CELL;
const MUCH: u64 = 200 * CELL;
const ONE: usize = 0;
const OTHER: usize = 1;

/// A cluster with one file, which both hosts have open.
struct Story {
    walk: Walk,
    ino: Ino,
}

impl Story {
    fn new(rule: Option<Rule>, way: Way, prepare: impl FnOnce(&mut Walk)) -> Story {
        Story::of_seed(1, rule, way, prepare)
    }

    fn of_seed(seed: u64, rule: Option<Rule>, way: Way, prepare: impl FnOnce(&mut Walk)) -> Story {
        plant(rule);
        let mut walk = Walk::new(seed, way);
        walk.world.replays = false;
        prepare(&mut walk);
        walk.begin();
        let ino = walk.files[0].ino;
        Story { walk, ino }
    }

    fn fh(&self, host: usize) -> Fh {
        let handles = &self.walk.hosts[host].handles;
        handles.iter().find(|handle| handle.0 == self.ino).unwrap().1
    }

    fn write(&self, host: usize, offset: u64, len: u64, pattern: u64) -> Ask {
        let (ino, fh) = (self.ino, self.fh(host));
        Ask::Write { ino, fh, offset, len, pattern, append: false }
    }

    fn append(&self, host: usize, len: u64, pattern: u64) -> Ask {
        let (ino, fh) = (self.ino, self.fh(host));
        Ask::Write { ino, fh, offset: 0, len, pattern, append: true }
    }

    /// One host has written a file with copies, or stripes, and synced it.
    fn synced(strategy: Strategy, rule: Option<Rule>) -> Story {
        let way = Way { copies: Some(strategy), units: (2, 1), ..uncached() };
        let mut story = Story::new(rule, way, |_| ());
        let write = story.write(ONE, 0, MUCH, 1);
        story.does(ONE, write);
        let (ino, fh) = (story.ino, story.fh(ONE));
        story.does(ONE, Ask::Fsync { ino, fh, data_only: false });
        story
    }

    fn read(&self, host: usize, offset: u64, len: u64) -> Ask {
        Ask::Read { ino: self.ino, fh: self.fh(host), offset, len: len as u32 }
    }

    /// Asks, and waits.
    fn does(&mut self, host: usize, ask: Ask) -> Answer {
        self.walk.one(host, ask).unwrap()
    }

    fn reads(&mut self, host: usize, offset: u64, len: u64) -> Vec<u8> {
        let ask = self.read(host, offset, len);
        self.does(host, ask).payload.bytes().to_vec()
    }

    /// Its cache is granted the file.
    fn reopens(&mut self, host: usize) {
        let (ino, fh) = (self.ino, self.fh(host));
        self.does(host, Ask::Close { ino, fh });
        self.walk.hosts[host].handles.retain(|handle| handle.0 != ino);
        let Reply::Opened(fh) = self.does(host, Ask::Reopen { ino }).reply else {
            panic!("it is opened");
        };
        self.walk.hosts[host].handles.push((ino, fh));
    }

    /// Asks, and does not wait.
    fn begins(&mut self, host: usize, ask: Ask) {
        self.walk.hosts[host].ask(&mut self.walk.world, 0, ask);
    }

    fn hears(&mut self, host: usize) -> Option<Result<Answer>> {
        self.walk.hosts[host].take(0).map(|(_, answer)| answer)
    }

    /// Time passes, until something is so, or it is over.
    fn until(&mut self, time: Duration, mut so: impl FnMut(&mut Story) -> bool) -> bool {
        let end = self.walk.world.now.after(time);
        while self.walk.world.now < end {
            if so(self) {
                return true;
            }
            self.walk.step();
        }
        false
    }

    fn waits(&mut self, host: usize) -> Answer {
        let mut answer = None;
        self.until(super::HEALS, |story| {
            answer = story.hears(host);
            answer.is_some()
        });
        answer.unwrap().unwrap()
    }

    /// Nothing goes between two places.
    fn cut(&mut self, one: usize, other: usize) {
        self.walk.world.cut(one, other);
        self.walk.world.cut(other, one);
    }

    fn now(&self) -> Time {
        self.walk.world.now
    }

    /// A host writes all of the file, and syncs it, however long that takes.
    fn writes(&mut self, pattern: u64) {
        let write = self.write(ONE, 0, MUCH, pattern);
        self.begins(ONE, write);
        self.waits(ONE);
        let (ino, fh) = (self.ino, self.fh(ONE));
        self.begins(ONE, Ask::Fsync { ino, fh, data_only: false });
        self.waits(ONE);
    }

    /// What the server says of how files are moved.
    fn says(&self, what: &str) -> bool {
        self.walk.world.server_of().is_some_and(|server| server.status().contains(what))
    }
}

fn uncached() -> Way {
    Way { cached: Some(false), ..Way::default() }
}

/// A host is cut off in a write behind the end of a file. Its lease ends, and the file's size is
/// found out. Then the write reaches the node: had the node taken it, the host would have been
/// answered, and nobody would ever know that the file is longer.
pub(crate) fn what_comes_after_the_seal_counts_for_nobody(rule: Option<Rule>) -> bool {
    let mut story = Story::new(rule, uncached(), |_| ());
    let first = story.write(ONE, 0, SOME, 1);
    story.does(ONE, first);
    for other in NODES.into_iter().chain([SERVER]) {
        story.cut(CLIENTS[ONE], other);
    }
    let late = story.write(ONE, SOME, SOME, 2);
    story.begins(ONE, late);
    let found = story.reads(OTHER, 0, 2 * SOME);
    assert_eq!(found, bytes(1, SOME));
    story.walk.world.heal();
    story.waits(ONE);
    story.reads(OTHER, SOME, SOME) == bytes(2, SOME)
}

/// A node is asked once more for what it has done, and has written over since.
pub(crate) fn what_comes_again_changes_nothing(rule: Option<Rule>) -> bool {
    let mut story = Story::new(rule, uncached(), |_| ());
    story.walk.world.kept = Some(Vec::new());
    let first = story.write(ONE, 0, SOME, 1);
    story.does(ONE, first);
    let kept = story.walk.world.kept.take();
    let second = story.write(ONE, 0, SOME, 2);
    story.does(ONE, second);
    story.walk.world.kept = kept;
    story.walk.world.ask_again();
    story.until(Duration::from_secs(1), |_| false);
    story.reads(ONE, 0, SOME) == bytes(2, SOME)
}

/// The client of a host that has written stripes and was answered dies at once. The file is as long
/// as it said, though its end is zeros, which nobody can tell from none.
pub(crate) fn stripes_end_where_their_writer_was_answered(rule: Option<Rule>) -> bool {
    let way = Way { copies: Some(Strategy::Parity), units: (2, 1), ..uncached() };
    let mut story = Story::new(rule, way, |_| ());
    for (offset, len, pattern) in [(0, MUCH, 1), (MUCH, SOME, 0)] {
        let write = story.write(ONE, offset, len, pattern);
        story.does(ONE, write);
    }
    story.walk.world.kill(CLIENTS[ONE], false);
    story.reads(OTHER, 0, MUCH + SOME) == [bytes(1, MUCH), bytes(0, SOME)].concat()
}

/// The clock of a host is slow, the server's is fast, and they do not hear each other. Another host
/// gets the file, and makes it longer. Who reads then at its old end finds what is new, or waits.
pub(crate) fn leases_end_at_clients_before_they_do_at_the_server(rule: Option<Rule>) -> bool {
    let mut story = Story::new(rule, uncached(), |walk| {
        walk.world.runs_faster(CLIENTS[ONE], -40_000);
        walk.world.runs_faster(SERVER, 40_000);
    });
    let first = story.write(OTHER, 0, SOME, 1);
    story.does(OTHER, first);
    assert_eq!(story.reads(ONE, 0, 2 * SOME), bytes(1, SOME));
    story.cut(CLIENTS[ONE], SERVER);
    let second = story.write(OTHER, SOME, SOME, 2);
    story.begins(OTHER, second);
    let (mut reads, mut next) = (false, story.now());
    let written = story.until(LONG, |story| {
        reads &= story.hears(ONE).is_none();
        if !reads && story.now() >= next {
            (reads, next) = (true, story.now().after(Duration::from_millis(10)));
            let read = story.read(ONE, SOME, SOME);
            story.begins(ONE, read);
        }
        story.hears(OTHER).is_some()
    });
    assert!(written, "the lease ends");
    // What it asked before may be answered as of then.
    if !reads || story.until(Duration::from_millis(10), |story| story.hears(ONE).is_some()) {
        let read = story.read(ONE, SOME, SOME);
        story.begins(ONE, read);
        story.until(Duration::from_millis(10), |_| false);
    }
    let found = story.hears(ONE);
    story.walk.world.heal();
    let found = found.map_or_else(|| story.waits(ONE), |found| found.unwrap());
    found.payload.bytes() == bytes(2, SOME)
}

/// A DPU side stops, and its host goes on. Another host gets the file and writes. What the first
/// has in its cache is not what is read there any more.
pub(crate) fn a_host_reads_nothing_past_its_lease(rule: Option<Rule>) -> bool {
    let way = Way { cached: Some(true), apart: true, ..Way::default() };
    let mut story = Story::new(rule, way, |_| ());
    let first = story.write(ONE, 0, SOME, 1);
    story.does(ONE, first);
    story.reopens(ONE);
    let hits = |story: &Story| story.walk.hosts[ONE].front.as_ref().unwrap().cached().0;
    for _ in 0..3 {
        assert_eq!(story.reads(ONE, 0, SOME), bytes(1, SOME));
    }
    let before = hits(&story);
    assert_eq!(story.reads(ONE, 0, SOME), bytes(1, SOME));
    assert!(hits(&story) > before, "it is cached");
    story.walk.world.pause(CLIENTS[ONE], LONG);
    let second = story.write(OTHER, 0, SOME, 2);
    story.does(OTHER, second);
    let read = story.read(ONE, 0, SOME);
    story.begins(ONE, read);
    story.waits(ONE).payload.bytes() == bytes(2, SOME)
}

/// A host reads more than a strip. One node answers, the other cannot be reached until the lease is
/// over and another host has written all of it. A write is whole for who reads.
pub(crate) fn a_read_that_comes_late_is_none(rule: Option<Rule>) -> bool {
    let mut story = Story::new(rule, uncached(), |_| ());
    let first = story.write(ONE, 0, MUCH, 1);
    story.does(ONE, first);
    assert_eq!(story.reads(ONE, 0, MUCH), bytes(1, MUCH));
    let fsync = Ask::Fsync { ino: story.ino, fh: story.fh(ONE), data_only: false };
    story.does(ONE, fsync);
    // One of them has the second of four strips, another host wants to read that.
    assert_eq!(story.reads(OTHER, 0, MUCH), bytes(1, MUCH));
    story.cut(CLIENTS[ONE], SERVER);
    story.cut(CLIENTS[ONE], NODES[1]);
    let read = story.read(ONE, 0, MUCH);
    story.begins(ONE, read);
    let second = story.write(OTHER, 0, MUCH, 2);
    story.does(OTHER, second);
    story.walk.world.heal();
    let found = story.waits(ONE).payload.bytes().to_vec();
    found == bytes(1, MUCH) || found == bytes(2, MUCH)
}

/// A host asks how long a file is that it has just made longer. The server answers what it knows,
/// and takes the file away for another; the host tells it what it has written, and only then hears
/// the answer, which is older.
pub(crate) fn a_host_sees_what_it_wrote() -> bool {
    (1..=40).all(|seed| {
        let mut story = Story::of_seed(seed, None, uncached(), |_| ());
        story.walk.world.network.set_all(super::faults::rough(&mut |_| 2));
        let first = story.write(ONE, 0, SOME, 1);
        story.does(ONE, first);
        let ino = story.ino;
        story.begins(ONE, Ask::Getattr { ino });
        let grows = Ask::Truncate { ino, fh: story.fh(OTHER), size: MUCH };
        story.begins(OTHER, grows);
        let Reply::Attr(attr) = story.waits(ONE).reply else { return false };
        attr.size >= SOME
    })
}

/// A host has written a file, and the last of it lies in its cache alone.
fn dirty(way: Way) -> Story {
    let mut story = Story::new(None, way, |_| ());
    let first = story.write(ONE, 0, SOME, 1);
    story.does(ONE, first);
    story.reopens(ONE);
    let kept = |story: &Story| story.walk.hosts[ONE].front.as_ref().unwrap().cached().1;
    let mut is_kept = |pattern| {
        story.until(Duration::from_millis(20), |_| false);
        story.reads(ONE, 0, SOME);
        let before = kept(&story);
        let write = story.write(ONE, 0, SOME, pattern);
        story.does(ONE, write);
        kept(&story) > before
    };
    // A cache that nobody used for a while goes through at first.
    assert!((0..99).any(|_| is_kept(1)) && is_kept(2), "its cache has taken it");
    story
}

/// A DPU side dies, and something lies dirty in its host's cache. Its next life begins, and another
/// host, which waited for the file, was granted it at once: it found the state before. Then the
/// pages were written back.
pub(crate) fn what_a_cache_has_is_written_back_before_others_read() -> bool {
    let way = Way { cached: Some(true), ..Way::default() };
    let mut story = dirty(way);
    story.walk.kill(CLIENTS[ONE], false, Duration::from_millis(50));
    let soon = story.now().after(Duration::from_secs(5));
    let found = story.reads(OTHER, 0, SOME);
    found == bytes(2, SOME) && story.now() < soon
}

/// The same, and the next life begins when the lease of the one before is long over. What another
/// host did not find is lost for ever, and the next sync says so. (It came back: the file had not
/// been written since.)
pub(crate) fn what_others_did_not_find_does_not_come_back() -> bool {
    let way = Way { cached: Some(true), ..Way::default() };
    let mut story = dirty(way);
    story.cut(CLIENTS[ONE], SERVER);
    story.walk.kill(CLIENTS[ONE], false, Duration::from_millis(50));
    assert_eq!(story.reads(OTHER, 0, SOME), bytes(1, SOME));
    story.walk.world.heal();
    let fsync = Ask::Fsync { ino: story.ino, fh: story.fh(ONE), data_only: false };
    let synced = story.walk.one(ONE, fsync);
    let found = [ONE, OTHER, ONE].map(|host| story.reads(host, 0, SOME));
    synced.err() == Some(Errno::EIO) && found.iter().all(|found| *found == bytes(1, SOME))
}

/// The same with the server's death, which ends all DPU sides: the next server knows whose it was.
pub(crate) fn what_a_cache_has_outlives_the_server() -> bool {
    let way = Way { cached: Some(true), ..Way::default() };
    let mut story = dirty(way);
    story.walk.kill(SERVER, false, Duration::from_millis(50));
    story.reads(OTHER, 0, SOME) == bytes(2, SOME)
}

/// What dies in the midst of an append.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dies {
    Client,
    /// And the next life begins when others had the file.
    ClientForLong,
    Server,
    Both,
}

/// Some nodes do not hear a host that appends more than a strip, or none does; then something dies.
/// Its host asks again. The append was done behind those strips of it that had been taken, so a
/// torn piece stood in the file; or, as the file ended with the same bytes, not at all.
pub(crate) fn an_append_is_done_once(deaf: &[usize], dies: Dies, patterns: [u64; 2]) -> bool {
    let mut story = Story::new(None, uncached(), |_| ());
    let first = story.append(ONE, MUCH, patterns[0]);
    story.does(ONE, first);
    let fsync = Ask::Fsync { ino: story.ino, fh: story.fh(ONE), data_only: false };
    story.does(ONE, fsync);
    story.walk.one(ONE, Ask::Syncfs).unwrap();
    deaf.iter().for_each(|node| story.cut(CLIENTS[ONE], *node));
    let again = story.append(ONE, MUCH, patterns[1]);
    story.begins(ONE, again);
    story.until(Duration::from_millis(100), |_| false);
    let soon = Duration::from_millis(50);
    let mut others = Vec::new();
    match dies {
        Dies::Client => story.walk.kill(CLIENTS[ONE], false, soon),
        Dies::ClientForLong => {
            story.cut(CLIENTS[ONE], SERVER);
            story.walk.kill(CLIENTS[ONE], false, soon);
            let other = story.append(OTHER, SOME, 7);
            story.does(OTHER, other);
            others = bytes(7, SOME);
        }
        Dies::Server => story.walk.kill(SERVER, false, soon),
        Dies::Both => {
            story.walk.kill(CLIENTS[ONE], false, soon);
            story.walk.kill(SERVER, false, soon);
        }
    }
    story.walk.world.heal();
    story.waits(ONE);
    let (first, again) = (bytes(patterns[0], MUCH), bytes(patterns[1], MUCH));
    let behind = if deaf.is_empty() { [again, others] } else { [others, again] };
    let expected = [first, behind.concat()].concat();
    [ONE, OTHER].iter().all(|host| story.reads(*host, 0, 4 * MUCH) == expected)
}

/// Two that cannot speak with each other, for good, though the server can with both: members, or a
/// host and one of them. Each write and sync was given up, the server was asked, which reached all
/// and changed nothing, and so it went on for ever.
pub(crate) fn who_is_unreached_holds_nobody_up(one: usize, other: usize) -> bool {
    let way = Way { copies: Some(Strategy::Ring), ..uncached() };
    let mut story = Story::new(None, way, |_| ());
    let write = story.write(ONE, 0, SOME, 1);
    story.does(ONE, write);
    story.cut(one, other);
    let begun = story.now();
    for pattern in [2, 3] {
        let write = story.write(ONE, 0, SOME, pattern);
        story.begins(ONE, write);
        story.waits(ONE);
        let (ino, fh) = (story.ino, story.fh(ONE));
        story.begins(ONE, Ask::Fsync { ino, fh, data_only: false });
        story.waits(ONE);
    }
    let took = story.now().since(begun);
    story.walk.world.heal();
    let found = story.reads(OTHER, 0, SOME);
    found == bytes(3, SOME) && took < 2 * LONG
}

/// All that a node has of a file is damaged, and nobody asks it for that: a scrub finds it, and the
/// others give it back. (They did not, so the next node that was lost took the file with it.)
pub(crate) fn damage_is_mended(strategy: Strategy, rule: Option<Rule>) -> bool {
    let mut story = Story::synced(strategy, rule);
    let [first, second] = NODES;
    story.walk.world.rots(first);
    story.until(3 * LONG, |_| false);
    story.walk.world.cut_off(second);
    let ask = story.read(OTHER, 0, MUCH);
    story.begins(OTHER, ask);
    let mut found = None;
    story.until(2 * LONG, |story| {
        found = story.hears(OTHER);
        found.is_some()
    });
    found.is_some_and(|found| {
        found.is_ok_and(|answer| answer.payload.bytes() == bytes(1, MUCH).as_slice())
    })
}

/// A write is answered and not known to be done; then a member's bytes are damaged, and its writer
/// dies. What the member took it still took: the write stays.
pub(crate) fn damage_takes_nothing_back(strategy: Strategy) -> bool {
    let mut story = Story::synced(strategy, None);
    let write = story.write(ONE, 0, SOME, 2);
    story.does(ONE, write);
    story.walk.world.rots(NODES[0]);
    story.until(Duration::from_secs(2), |_| false);
    story.walk.kill(CLIENTS[ONE], false, Duration::from_millis(50));
    let found = story.reads(OTHER, 0, MUCH);
    let (head, tail) = found.split_at(SOME as usize);
    head == bytes(2, SOME) && tail == &bytes(1, MUCH)[SOME as usize..]
}

/// A member's disk takes nothing any more, and what it had of a file may be damaged: the file goes
/// on without it. (Writes and syncs failed with `EIO`, and who wanted the file where it was damaged
/// waited for 20 s for the member to be given what it could not take, and then heard the same.)
pub(crate) fn a_disk_that_fails_holds_nobody_up(
    strategy: Strategy,
    (rots, flush_fails): (bool, bool),
    writer: usize,
) -> bool {
    let mut story = Story::synced(strategy, None);
    let ino = story.ino;
    if rots {
        story.walk.world.rots(NODES[0]);
    }
    story.walk.world.takes_nothing(NODES[0], flush_fails);
    if rots {
        story.until(LONG, |_| false);
    }
    let begun = story.now();
    let write = story.write(writer, 0, SOME, 2);
    story.begins(writer, write);
    story.waits(writer);
    let fh = story.fh(writer);
    story.begins(writer, Ask::Fsync { ino, fh, data_only: false });
    story.waits(writer);
    let took = story.now().since(begun);
    let found = story.reads(ONE + OTHER - writer, 0, MUCH);
    let (head, tail) = found.split_at(SOME as usize);
    head == bytes(2, SOME)
        && tail == &bytes(1, MUCH)[SOME as usize..]
        && took < Duration::from_secs(3)
}

/// Whether what it had is damaged, whether flushes fail, too, and who writes then: who has the
/// file, or another.
pub(crate) fn ways_a_disk_fails() -> impl Iterator<Item = ((bool, bool), usize)> {
    let both = [false, true];
    let ways = both.into_iter().flat_map(move |rots| both.map(|flush_fails| (rots, flush_fails)));
    ways.flat_map(|how| [ONE, OTHER].map(|writer| (how, writer)))
}

/// A server stands still, and its clock, once it has moved a file away from a node, which it has
/// not emptied yet. Another takes over, the file is moved back, and a host writes it anew. Then the
/// first goes on, and empties the node, if it does not look first whether another has begun.
pub(crate) fn a_server_that_stood_still_destroys_nothing(rule: Option<Rule>) -> bool {
    let mut late = 0;
    let ends_well = (1..=20).all(|seed| {
        let (ends_well, refused) = a_server_stands_still(seed, rule);
        late += refused;
        ends_well
    });
    assert!(rule.is_some() || late > 0, "the first goes on");
    ends_well
}

/// Whether it does not, and how many calls of the first were refused.
fn a_server_stands_still(seed: u64, rule: Option<Rule>) -> (bool, u64) {
    let way = Way { moves: true, ..uncached() };
    let still = 6 * LONG;
    let mut story = Story::of_seed(seed, rule, way, |walk| {
        walk.world.has_standby = true;
        walk.world.is_ahead(SERVER, still);
    });
    story.writes(1);
    story.walk.place(Some(NODES[1]));
    let is_moved = story.until(LONG, |story| story.says("\"moving\":true,\"files\":2"));
    assert!(is_moved, "it is about to empty the node");
    story.walk.world.stands_still(SERVER, still);
    story.walk.world.takes_over();
    story.until(LONG, |_| false);
    story.walk.place(Some(SPARE));
    story.until(Duration::from_secs(1), |_| false);
    assert!(story.until(2 * LONG, |story| story.says("\"moving\":false")), "it is moved back");
    story.writes(2);
    story.until(8 * LONG, |_| false);
    let late = story.walk.world.late_calls();
    (story.reads(OTHER, 0, MUCH) == bytes(2, MUCH), late)
}

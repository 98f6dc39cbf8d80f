//! The runtime with processing units that are drawn, packets that are kept, effects that end late.

use std::sync::{Arc, Mutex};

use outboard_base::Rng;
use outboard_flow::{Given, Header};
use outboard_wire::roce::Psn;
use outboard_wire::shared::{ANSWER_LEN, Answer, Peer, Reason};

use super::context::{Hand, Matching, Notice, Path, Policy, Whose};
use super::sched::{Handler, PacketAt, Sched, Task};
use super::table::DESCRIPTOR_LEN;
use super::*;

const TOY: Matching = Matching { magic: *b"ty", from: Whose::All };

/// Accepts what has no `!` behind its first bytes, and lands all of it.
struct Toy {
    seen: Arc<Mutex<u64>>,
}

fn answer(outcome: Result<(), Reason>) -> Answer {
    let (data, sequence, epoch, credit, fence, held, boot) = (0, 0, 1, 1, 0, 0, 0);
    Answer { request: 7, rank: 0, data, outcome, sequence, epoch, credit, fence, held, boot }
}

impl Policy for Toy {
    fn header(&mut self, hand: &mut Hand<'_>, payload: &[u8]) -> bool {
        *self.seen.lock().unwrap() += 1;
        let reason = match payload.get(2) {
            Some(b'!') => Reason::Invalid,
            _ if hand.open(Path::Nic, None, 0, hand.bytes as usize, 0) => return true,
            _ => Reason::Busy,
        };
        hand.answer(answer(Err(reason)));
        hand.tell(Notice::Refused { peer: hand.peer, object: 0, reason });
        false
    }
    fn payload(&mut self, hand: &mut Hand<'_>, packet: &PacketAt, _: &[u8]) {
        hand.put(packet);
    }
    fn completion(&mut self, hand: &mut Hand<'_>) {
        hand.serve();
    }
    fn cleanup(&mut self, hand: &mut Hand<'_>) {
        hand.tell(Notice::Own { peer: hand.peer, word: u64::from(hand.bytes) });
    }
    fn busy(&mut self, _: Peer, _: &[u8]) -> Option<Answer> {
        Some(answer(Err(Reason::Busy)))
    }
}

const LIMITS: Limits = Limits {
    table_bytes: 64 * DESCRIPTOR_LEN,
    landing_bytes: 1 << 20,
    sum_bytes: 1 << 20,
    units: 4,
    packets: 4096,
};

fn toy(limits: Limits) -> Nic {
    let mut nic = Nic::new(limits);
    nic.install(TOY, 100, Box::new(Toy { seen: Arc::default() })).unwrap();
    nic
}

/// What happened to the tasks of one message, in order.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Began(Handler),
    Over(Handler),
}

/// What the runtime promises of the order of handlers: `packets` came, `accepted` and `whole`.
fn check(steps: &[Step], packets: usize, accepted: bool, whole: bool) -> Result<(), String> {
    let count = |step: Step| steps.iter().filter(|one| **one == step).count();
    let place = |step: Step| steps.iter().position(|one| *one == step);
    let last = |step: Step| steps.iter().rposition(|one| *one == step);
    let ask = |is_so: bool, what: &str| if is_so { Ok(()) } else { Err(what.to_string()) };
    let (header, payload) = (Handler::Header, Handler::Payload);
    for handler in Handler::ALL {
        let (began, over) = (count(Step::Began(handler)), count(Step::Over(handler)));
        ask(began == over, "a handler is not over")?;
    }
    let runs = |handler| count(Step::Began(handler));
    if !accepted {
        ask(runs(header) <= 1, "a header handler ran twice")?;
        let others = [payload, Handler::Completion].map(runs);
        return ask(others == [0, 0], "a refused message was handled");
    }
    ask(place(Step::Began(header)) == Some(0), "the header handler is not first")?;
    ask(runs(header) == 1 && place(Step::Over(header)) == Some(1), "something began beside it")?;
    let end = if whole { Handler::Completion } else { Handler::Cleanup };
    ask(runs(Handler::Completion) + runs(Handler::Cleanup) == 1, "not one end")?;
    let is_last = steps.ends_with(&[Step::Began(end), Step::Over(end)]);
    ask(is_last, "something runs beside the end")?;
    if whole {
        ask(runs(payload) == packets, "not one payload handler for each packet")?;
        ask(last(Step::Over(payload)) < place(Step::Began(end)), "completed before its payloads")?;
    }
    Ok(())
}

#[test]
fn the_oracle_says_no() {
    use Handler::{Completion, Header, Payload};
    use Step::{Began, Over};
    let good = [Began(Header), Over(Header), Began(Payload), Over(Payload)];
    let end = [Began(Completion), Over(Completion)];
    let good: Vec<Step> = good.into_iter().chain(end).collect();
    check(&good, 1, true, true).unwrap();
    for (from, to) in [(0, 2), (1, 2), (3, 4), (2, 5), (0, 5)] {
        let mut bad = good.clone();
        bad.swap(from, to);
        assert!(check(&bad, 1, true, true).is_err(), "{bad:?}");
    }
    assert!(check(&good, 2, true, true).is_err() && check(&good, 1, false, true).is_err());
    assert!(check(&good[..4], 1, true, true).is_err() && check(&good, 1, true, false).is_err());
}

struct Message {
    peer: Peer,
    psn: u32,
    bytes: Vec<u8>,
    /// Offsets of packets that have not come, in the order in which they will.
    left: Vec<usize>,
    packets: usize,
    is_cut: bool,
    steps: Vec<Step>,
}

struct Under {
    task: Task,
    accepts: bool,
    effects: std::vec::IntoIter<Effect>,
}

/// The runtime on units that are drawn.
struct Rig {
    nic: Nic,
    rng: Rng,
    messages: Vec<Message>,
    /// Bytes of packets that arrived, by token, and of which message they are.
    packets: Vec<(usize, Vec<u8>)>,
    /// What runs or whose effects are under way.
    under: Vec<Under>,
    abreast: usize,
}

const MTU: usize = 16;

impl Rig {
    fn new(seed: u64) -> Rig {
        let mut rng = Rng::new(seed);
        let mut messages = Vec::new();
        for psn in 0..20u32 {
            let len = 4 + usize::try_from(rng.below(100)).unwrap();
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes);
            bytes[..2].copy_from_slice(b"ty");
            bytes[2] = if rng.chance(1, 5) { b'!' } else { b'.' };
            let mut left: Vec<usize> = (0..len).step_by(MTU).collect();
            for at in (2..left.len()).rev() {
                left.swap(at, 1 + usize::try_from(rng.below(at as u64)).unwrap());
            }
            let packets = left.len();
            left.reverse();
            let is_cut = packets > 1 && rng.chance(1, 5);
            let peer = Peer::Client(rng.below(3));
            let steps = Vec::new();
            messages.push(Message { peer, psn, bytes, left, packets, is_cut, steps });
        }
        let nic = toy(LIMITS);
        Rig { nic, rng, messages, packets: Vec::new(), under: Vec::new(), abreast: 0 }
    }

    fn draw(&mut self, bound: usize) -> usize {
        usize::try_from(self.rng.below(bound as u64)).unwrap()
    }

    /// A packet comes, or no more of its message will.
    fn arrive(&mut self) -> bool {
        let open: Vec<usize> =
            (0..self.messages.len()).filter(|at| !self.messages[*at].left.is_empty()).collect();
        if open.is_empty() {
            return false;
        }
        let at = open[self.draw(open.len())];
        let message = &mut self.messages[at];
        let psn = Psn::new(message.psn);
        if message.is_cut && message.left.len() == 1 {
            message.left.clear();
            self.nic.cleanup(message.peer, psn);
            return true;
        }
        let Some(offset) = message.left.pop() else { return false };
        let end = (offset + MTU).min(message.bytes.len());
        let payload = message.bytes[offset..end].to_vec();
        let given = Given {
            message: psn,
            header: (offset == 0).then(|| Header {
                write: None,
                bytes: u32::try_from(message.bytes.len()).unwrap(),
            }),
            offset: u32::try_from(offset).unwrap(),
            payload: &payload,
            completes: message.left.is_empty(),
        };
        let token = u32::try_from(self.packets.len()).unwrap();
        self.nic.arrive(message.peer, &given, token);
        self.packets.push((at, payload));
        true
    }

    fn message_of(&self, task: &Task) -> usize {
        let psn = self.nic.owners[&task.slot].psn;
        self.messages.iter().position(|one| one.psn == psn).unwrap()
    }

    /// A unit takes a task.
    fn begin(&mut self) {
        let unit = self.draw(4);
        let Some(task) = self.nic.next(unit) else { return };
        let token = task.packet.token as usize;
        let at = self.message_of(&task);
        self.messages[at].steps.push(Step::Began(task.handler));
        let Run { accepts, effects } = self.nic.run(&task, &self.packets[token].1);
        let effects = effects.into_iter();
        self.under.push(Under { task, accepts, effects });
        let payloads =
            |one: &&Under| one.task.handler == Handler::Payload && one.task.slot == task.slot;
        self.abreast = self.abreast.max(self.under.iter().filter(payloads).count());
        // Handlers return before their effects are over.
        self.nic.returned(unit);
    }

    /// An effect ends, or a task does.
    fn end(&mut self) {
        if self.under.is_empty() {
            return;
        }
        let which = self.draw(self.under.len());
        let task = self.under[which].task;
        let payload = &self.packets[task.packet.token as usize].1;
        if let Some(effect) = self.under[which].effects.next() {
            self.nic.perform(&task, effect, payload);
            return;
        }
        let Under { accepts, .. } = self.under.swap_remove(which);
        let at = self.message_of(&task);
        self.messages[at].steps.push(Step::Over(task.handler));
        self.nic.done(&task, accepts);
    }

    /// What is whole has the bytes that were sent.
    fn serve(&mut self) {
        let Some(whole) = self.nic.take_whole() else { return };
        let is_sent = |one: &Message| one.bytes == whole.landing.data && one.peer == whole.peer;
        assert!(self.messages.iter().any(is_sent), "bytes that nobody sent so");
        self.nic.release(whole.slot, whole.generation, b"done".to_vec());
    }
}

/// Runs everything in an order that `seed` draws. How many payload handlers of one message were
/// under way at a time.
fn walk(seed: u64) -> usize {
    let mut rig = Rig::new(seed);
    for step in 0.. {
        match rig.draw(6) {
            0 => {
                rig.arrive();
            }
            1 | 2 => rig.begin(),
            3 | 4 => rig.end(),
            _ => rig.serve(),
        }
        let is_over = rig.messages.iter().all(|one| one.left.is_empty())
            && rig.under.is_empty()
            && rig.nic.sched().live() == 0
            && !rig.nic.has_whole();
        if is_over {
            break;
        }
        assert!(step < 100_000, "seed {seed}: it does not end");
    }
    for message in &rig.messages {
        let accepted = message.bytes[2] != b'!';
        let checked = check(&message.steps, message.packets, accepted, !message.is_cut);
        // A message that was cut before its header handler ran is only cleaned up.
        let is_never_begun = message.is_cut && message.steps == CLEANED;
        assert!(checked.is_ok() || is_never_begun, "seed {seed}: {checked:?} {:?}", message.steps);
    }
    // One answer for each message, but those that were cut while they were accepted.
    let answers = rig.nic.take_answers().len() as u64;
    let counts = rig.nic.counts();
    assert_eq!(answers + counts.cleaned, rig.messages.len() as u64, "seed {seed}");
    assert_eq!(rig.nic.table().used(), 0, "seed {seed}: descriptors leak");
    assert_eq!(rig.nic.landed(), (0, 0), "seed {seed}: landings leak");
    assert_eq!(rig.nic.sched().waiting(), 0, "seed {seed}: packets leak");
    assert!(rig.nic.accounts.is_empty() && rig.nic.live.is_empty(), "seed {seed}");
    assert!(rig.nic.landings.is_empty() && rig.nic.owners.is_empty(), "seed {seed}");
    rig.abreast
}

const CLEANED: [Step; 2] = [Step::Began(Handler::Cleanup), Step::Over(Handler::Cleanup)];

#[test]
fn handlers_run_in_their_order_on_whatever_unit() {
    let seeds = match std::env::var("OUTBOARD_SEED") {
        Ok(seed) => {
            let seed = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..800,
    };
    let abreast = seeds.map(walk).max();
    assert!(abreast > Some(2), "payload handlers of a message run side by side: {abreast:?}");
}

/// Gives a whole message inline, in packets of [`MTU`]; or what of it `cut` leaves.
fn give(nic: &mut Nic, peer: Peer, psn: u32, bytes: &[u8], cut: usize) {
    for offset in (0..bytes.len().max(1)).step_by(MTU).take(cut) {
        let end = (offset + MTU).min(bytes.len());
        let len = u32::try_from(bytes.len()).unwrap();
        let given = Given {
            message: Psn::new(psn),
            header: (offset == 0).then_some(Header { write: None, bytes: len }),
            offset: u32::try_from(offset).unwrap(),
            payload: &bytes[offset..end],
            completes: end == bytes.len(),
        };
        nic.arrive(peer, &given, 0);
        nic.inline(given.payload);
    }
}

fn outcome(answer: &(Peer, Vec<u8>)) -> Result<(), Reason> {
    Answer::parse(answer.1.first_chunk::<ANSWER_LEN>().unwrap()).unwrap().outcome
}

#[test]
fn a_full_table_refuses_once_and_takes_the_next_try() {
    let mut nic = toy(Limits { table_bytes: 2 * DESCRIPTOR_LEN, ..LIMITS });
    let peer = Peer::Client(1);
    let bytes = [b't', b'y', b'.'].repeat(20);
    give(&mut nic, peer, 0, &bytes, 1);
    give(&mut nic, peer, 10, &bytes, 9);
    assert_eq!((nic.table().used(), nic.has_whole()), (2, true));
    give(&mut nic, peer, 20, &bytes, 9);
    let answers = nic.take_answers();
    assert_eq!(answers.iter().map(outcome).collect::<Vec<_>>(), [Err(Reason::Busy)]);
    assert_eq!((nic.counts().busy, nic.counts().dropped), (1, 3), "the rest of it is dropped");
    let whole = nic.take_whole().unwrap();
    nic.release(whole.slot, whole.generation, Vec::new());
    nic.release(whole.slot, whole.generation, Vec::new());
    assert_eq!((nic.table().used(), nic.take_answers().len()), (1, 1), "released once");
    give(&mut nic, peer, 30, &bytes, 9);
    let again = nic.take_whole().unwrap();
    assert_eq!((again.landing.data, again.slot), (bytes, whole.slot));
    assert_ne!(again.generation, whole.generation);
    nic.release(whole.slot, whole.generation, Vec::new());
    assert_eq!(nic.table().used(), 2, "what is stale releases nothing");
}

#[test]
fn silence_and_an_end_clean_up_what_is_not_whole() {
    let mut nic = toy(LIMITS);
    let (one, two) = (Peer::Client(1), Peer::Client(2));
    let bytes = [b't', b'y', b'.'].repeat(20);
    give(&mut nic, one, 0, &bytes, 2);
    give(&mut nic, one, 10, &bytes, 9);
    give(&mut nic, two, 0, &bytes, 1);
    nic.cleanup(one, Psn::new(0));
    nic.cleanup(one, Psn::new(10));
    nic.inline(&[]);
    assert_eq!((nic.counts().cleaned, nic.table().used()), (1, 2), "what is whole goes on");
    assert_eq!(nic.take_notices(), [Notice::Own { peer: one, word: 60 }]);
    nic.ended(two);
    nic.inline(&[]);
    assert_eq!((nic.counts().cleaned, nic.table().used(), nic.landed()), (2, 1, (60, 0)));
    // A late packet of what was cleaned up meets nothing, not even another message's descriptor.
    give(&mut nic, two, 5, &bytes, 1);
    let late = Given {
        message: Psn::new(0),
        header: None,
        offset: 16,
        payload: &bytes[16..32],
        completes: false,
    };
    nic.arrive(two, &late, 0);
    nic.inline(late.payload);
    assert_eq!(nic.counts().dropped, 1);
}

#[test]
fn peers_take_turns() {
    let mut sched = Sched::new(1, 10_000);
    let (greedy, modest) = (Peer::Client(1), Peer::Client(2));
    for slot in 0..1000 {
        sched.begin(slot, greedy, PacketAt::default()).unwrap();
    }
    sched.begin(2000, modest, PacketAt { completes: true, ..PacketAt::default() }).unwrap();
    let mut waited = 0;
    loop {
        let task = sched.next(0).unwrap();
        assert_eq!(sched.next(0), None, "it has one unit");
        sched.returned(0);
        sched.done(&task, true);
        waited += 1;
        if task.slot == 2000 && task.handler == Handler::Completion {
            break;
        }
    }
    assert_eq!(waited, 6, "three handlers, each after one of the other's");
}

#[test]
fn packets_that_wait_are_bounded() {
    let mut nic = toy(Limits { packets: 2, ..LIMITS });
    let peer = Peer::Client(1);
    let packet = |offset: u32, completes| Given {
        message: Psn::new(0),
        header: (offset == 0).then_some(Header { write: None, bytes: 6 }),
        offset,
        payload: if offset == 0 { b"ty." } else { b"abc" },
        completes,
    };
    nic.arrive(peer, &packet(0, false), 0);
    nic.arrive(peer, &packet(3, false), 1);
    nic.arrive(peer, &packet(3, true), 2);
    assert_eq!((nic.counts().dropped, nic.sched().waiting()), (1, 0), "doomed: nothing waits");
    nic.inline(b"ty.");
    assert_eq!((nic.counts().cleaned, nic.table().used(), nic.has_whole()), (1, 0, false));
}

#[test]
fn a_context_gets_what_is_its_and_nothing_else() {
    let mut nic = Nic::new(LIMITS);
    let seen: [Arc<Mutex<u64>>; 2] = Default::default();
    let policy = |at: usize| Box::new(Toy { seen: Arc::clone(&seen[at]) });
    let only = Matching { magic: *b"ap", from: Whose::Only(Peer::Client(1)) };
    nic.install(TOY, STATE_BYTES - 10, policy(0)).unwrap();
    assert_eq!(nic.install(only, 11, policy(1)), Err(NotInstalled::Memory));
    nic.install(only, 10, policy(1)).unwrap();
    let other = Matching { from: Whose::Only(Peer::Client(2)), ..only };
    nic.install(other, 0, policy(0)).unwrap();
    for taken in [TOY, only] {
        assert_eq!(nic.install(taken, 0, policy(1)), Err(NotInstalled::Taken));
    }
    give(&mut nic, Peer::Client(1), 0, b"ap.", 1);
    give(&mut nic, Peer::Client(2), 0, b"ap.", 1);
    give(&mut nic, Peer::Client(3), 0, b"ap.", 1);
    give(&mut nic, Peer::Client(1), 1, b"ty.", 1);
    give(&mut nic, Peer::Client(1), 2, b"", 1);
    let counts = || [0, 1].map(|at: usize| *seen[at].lock().unwrap());
    assert_eq!(counts(), [2, 1]);
    assert_eq!((nic.counts().strange, nic.counts().messages), (2, 3));
    // What is a peer's own goes before what is everybody's, until it is taken away.
    nic.install(Matching { from: Whose::All, ..only }, 0, policy(0)).unwrap();
    give(&mut nic, Peer::Client(1), 3, b"ap.", 1);
    give(&mut nic, Peer::Client(3), 3, b"ap.", 1);
    assert_eq!(counts(), [3, 2]);
    nic.uninstall(&only);
    give(&mut nic, Peer::Client(1), 4, b"ap.", 1);
    assert_eq!((counts(), nic.contexts()), ([4, 2], 3));
    nic.install(only, 10, policy(1)).unwrap();
}

#[test]
fn notices_are_dropped_and_counted_when_nobody_takes_them() {
    let mut nic = toy(LIMITS);
    for psn in 0..1030 {
        give(&mut nic, Peer::Client(1), psn, b"ty!", 1);
    }
    assert_eq!((nic.take_notices().len(), nic.counts().notices_lost), (1024, 6));
    assert_eq!((nic.counts().refused, nic.take_answers().len()), (1030, 1030));
}

#[test]
fn one_peer_leaves_as_much_memory_as_it_takes() {
    let mut nic = toy(Limits { landing_bytes: 120, ..LIMITS });
    let bytes = [b't', b'y', b'.', b'.'].repeat(5);
    for psn in 0..6 {
        give(&mut nic, Peer::Client(1), 10 * psn, &bytes, 1);
    }
    assert_eq!(nic.landed(), (60, 0));
    give(&mut nic, Peer::Client(2), 0, &bytes, 1);
    give(&mut nic, Peer::Client(3), 0, &[b't', b'y', b'.', b'.'].repeat(10), 1);
    assert_eq!(nic.landed(), (120, 0), "who has nothing may take the last");
    give(&mut nic, Peer::Client(4), 0, b"ty..", 1);
    let refused = nic.take_answers();
    assert_eq!(refused.iter().filter(|one| outcome(one) == Err(Reason::Busy)).count(), 4);
}

/// Of 61 messages of one packet one is timed, with each of its handlers.
#[test]
fn handlers_are_charged_and_some_timed() {
    let mut nic = toy(LIMITS);
    let bytes = [b't', b'y', b'.', b'.'].repeat(5);
    let clock = std::sync::atomic::AtomicU64::new(0);
    let read = move || Time(clock.fetch_add(5, std::sync::atomic::Ordering::Relaxed));
    nic.set_clock(Box::new(read));
    for psn in 0..62 {
        give(&mut nic, Peer::Client(1), psn, &bytes, usize::MAX);
        let whole = nic.take_whole().unwrap();
        nic.release(whole.slot, whole.generation, Vec::new());
    }
    let of = |handler| nic.ledger().of(handler);
    assert_eq!(Handler::ALL.map(|handler| of(handler).runs), [62, 124, 62, 0]);
    assert_eq!(Handler::ALL.map(|handler| of(handler).timed), [2, 3, 2, 0]);
    assert_eq!(Handler::ALL.map(|handler| of(handler).ns), [10, 15, 10, 0]);
    assert_eq!((nic.counts().timed.0, nic.counts().timed.1 > 40), (2, true));
    let payload = of(Handler::Payload);
    assert_eq!((payload.bytes, payload.dma), (62 * 20, 124));
    assert_eq!((payload.dma_bytes, payload.sends), (62 * 20, 0));
}

/// A `Vec` for what each handler asked for, and a queue for what was ready next, were made and
/// dropped for each packet.
#[test]
fn a_packet_allocates_nothing() {
    let mut nic = toy(LIMITS);
    let peer = Peer::Client(1);
    let bytes = [b't', b'y', b'.'].repeat(1000);
    for psn in [0, 1000] {
        give(&mut nic, peer, psn, &bytes, usize::MAX);
        let whole = nic.take_whole().unwrap();
        nic.release(whole.slot, whole.generation, Vec::new());
    }
    let packets = nic.counts().packets;
    give(&mut nic, peer, 2000, &bytes, 1);
    let len = u32::try_from(bytes.len()).unwrap();
    let counted = allocation_counter::measure(|| {
        for offset in (MTU..bytes.len()).step_by(MTU) {
            let end = (offset + MTU).min(bytes.len());
            let completes = end == bytes.len();
            let at = u32::try_from(offset).unwrap();
            let (message, payload) = (Psn::new(2000), &bytes[offset..end]);
            let given = Given { message, header: None, offset: at, payload, completes };
            nic.arrive(peer, &given, 0);
            nic.inline(payload);
        }
    });
    assert_eq!(nic.counts().packets - packets, u64::from(len).div_ceil(MTU as u64));
    assert_eq!(nic.take_whole().unwrap().landing.data, bytes);
    // The last one hands the message on, which takes a place in a list.
    assert!(counted.count_total <= 1, "{counted:?}");
}

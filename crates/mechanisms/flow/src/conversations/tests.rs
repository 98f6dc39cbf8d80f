//! Conversations one by one here; the seeded world and its oracle are in `world`.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod hostile;
mod places;
mod plan;
mod rig;
mod world;

use std::pin::Pin;

use outboard_base::task::poll_once;
use outboard_wire::shared::{Opening, Step};

use self::rig::{Recorder, address, answer, end, read};
use super::*;
use crate::planted::{Fault, PLANTED};

const SERVER: Peer = Peer::Server(0);
const NODE: Peer = Peer::Node(1);
const CLIENT: Peer = Peer::Client(7);
const MS: Duration = Duration::from_millis(1);

type Asked = Pin<Box<dyn Future<Output = Result<Vec<u8>, Gone>>>>;

/// Ends at the addresses 1, 2, ... that know each other, and a network that does what it is told.
struct Line {
    now: Time,
    ends: Vec<Conversations<Recorder>>,
    /// Every datagram that was sent: by which end, to where.
    sent: Vec<(usize, SocketAddrV4, Vec<u8>)>,
    /// Whose datagrams are lost.
    mute: Vec<usize>,
}

impl Line {
    fn of(ends: Vec<Conversations<Recorder>>, peers: &[Peer]) -> Line {
        for end in &ends {
            for (at, peer) in peers.iter().enumerate() {
                end.know(*peer, address(at as u8 + 1));
            }
        }
        Line { now: Time(1), ends, sent: Vec::new(), mute: Vec::new() }
    }

    fn two(sealed: [bool; 2]) -> Line {
        let ends = vec![end(SERVER, 1, 11, sealed[0]), end(CLIENT, 2, 22, sealed[1])];
        Line::of(ends, &[SERVER, CLIENT])
    }

    fn ask(&self, at: usize, to: Peer, bytes: &[u8]) -> Asked {
        let (end, bytes) = (self.ends[at].clone(), bytes.to_vec());
        // What is asked is under way before anybody waits for it.
        let mut asked: Asked = Box::pin(async move { end.call(to, bytes).await });
        assert!(poll_once(asked.as_mut()).is_pending());
        asked
    }

    fn deliver(&self, from: SocketAddrV4, to: SocketAddrV4, bytes: &[u8]) {
        let at = usize::from(to.ip().octets()[3]) - 1;
        if let Some(end) = self.ends.get(at) {
            end.datagram(from, bytes, self.now, 0);
        }
    }

    /// Now, until nothing is to be done at once.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 1000, "there is work without an end");
            let mut did = false;
            for at in 0..self.ends.len() {
                let mut out = Vec::new();
                let end = &self.ends[at];
                let is_due = end.deadline().is_some_and(|due| due <= self.now);
                if end.has_work() || is_due {
                    end.pump(self.now, 0, &mut |to, bytes| out.push((to, bytes.to_vec())));
                    did = true;
                }
                for (to, bytes) in out {
                    if !self.mute.contains(&at) {
                        self.deliver(address(at as u8 + 1), to, &bytes);
                    }
                    self.sent.push((at, to, bytes));
                }
            }
            if !did {
                return;
            }
        }
    }

    /// So much later, with all that happens until then.
    fn wait(&mut self, time: Duration) {
        let end = self.now.after(time);
        loop {
            self.settle();
            let next = self.ends.iter().filter_map(Conversations::deadline).min();
            match next.filter(|next| *next <= end) {
                Some(next) => self.now = self.now.max(next),
                None => break,
            }
        }
        self.now = end;
        self.settle();
    }

    /// The end `at` replies to all calls what it was asked, and this.
    fn reply(&mut self, at: usize, more: &[u8]) -> usize {
        self.settle();
        let calls: Vec<Incoming> = std::iter::from_fn(|| self.ends[at].take_call()).collect();
        for Incoming { call, token, .. } in &calls {
            self.ends[at].reply(*token, [call, more].concat());
        }
        self.settle();
        calls.len()
    }

    fn figure(&self, at: usize, name: &str) -> u64 {
        let figures = self.ends[at].figures();
        figures.iter().find(|(known, _)| *known == name).expect("a figure").1
    }

    fn opened(&self) -> [u64; 2] {
        [self.figure(0, "conversations opened"), self.figure(1, "conversations opened")]
    }
}

fn done(asked: &mut Asked) -> Result<Vec<u8>, Gone> {
    match poll_once(asked.as_mut()) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it has not ended"),
    }
}

#[test]
fn who_ask_each_other_at_once_have_one_conversation() {
    for sealed in [[false, false], [true, false], [false, true], [true, true]] {
        let mut line = Line::two(sealed);
        let mut asks = [line.ask(0, CLIENT, b"recall"), line.ask(1, SERVER, b"renew")];
        line.settle();
        assert_eq!((line.reply(0, b"!"), line.reply(1, b"?")), (1, 1));
        assert_eq!(done(&mut asks[0]), Ok(b"recall?".to_vec()));
        assert_eq!(done(&mut asks[1]), Ok(b"renew!".to_vec()));
        assert_eq!(line.opened(), [1, 1]);
        assert_eq!(line.ends[0].life_of(CLIENT), Some(22));
        assert_eq!(line.ends[1].life_of(SERVER), Some(11));
        line.wait(2 * MS);
        let acknowledges = |bytes: &[u8]| bytes.first() == Some(&(Opcode::Acknowledge as u8));
        let is_open = line.sent.iter().any(|(.., bytes)| acknowledges(bytes));
        assert_eq!(is_open, sealed == [false, false], "a sealed one is no bare acknowledgement");
    }
}

#[test]
fn who_is_asked_learns_where_who_asks_is() {
    let mut line = Line::two([false, false]);
    line.ends[0] = end(SERVER, 1, 11, false);
    let mut nowhere = line.ask(0, CLIENT, b"recall");
    line.settle();
    assert_eq!(done(&mut nowhere), Err(Gone::Unanswered));
    let _asked = line.ask(1, SERVER, b"renew");
    line.settle();
    let mut asked = line.ask(0, CLIENT, b"recall");
    assert_eq!(line.reply(1, b""), 1);
    assert_eq!(done(&mut asked), Ok(b"recall".to_vec()));
}

#[test]
fn messages_of_every_length_come_as_they_went() {
    let mut line = Line::two([true, false]);
    let payload = Settings::of_mtu(1500).payload;
    for len in [0, 1, payload - 25, payload - 24, payload - 23, 3 * payload - 24, 1 << 20] {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
        let mut asked = line.ask(1, SERVER, &bytes);
        line.wait(MS);
        assert_eq!(line.reply(0, b"!"), 1);
        line.wait(MS);
        assert_eq!(done(&mut asked), Ok([&bytes[..], b"!"].concat()), "{len}");
    }
    let heads = read(5, 3000);
    let end = line.ends[1].clone();
    let mut asked: Asked =
        Box::pin(async move { end.request(SERVER, &heads, &[]).await.map(|(_, data)| data) });
    assert!(poll_once(asked.as_mut()).is_pending());
    line.settle();
    let (from, request) = line.ends[0].with_target(|target| target.whole.remove(0));
    assert_eq!(from, CLIENT);
    assert!(line.ends[0].send(CLIENT, answer(&request, &[9; 3000])));
    line.settle();
    assert_eq!(done(&mut asked), Ok(vec![9; 3000]));
}

/// Each call took four datagrams, two of them acknowledgements by themselves, each with a system
/// call and a wake-up. One that can wait goes with the reply, or with the next call. And each went
/// with the very next: where calls follow each other one tells of several.
#[test]
fn an_acknowledgement_goes_with_what_goes_anyway() {
    let mut line = Line::two([false, false]);
    let mut first = line.ask(1, SERVER, b"open");
    line.settle();
    line.reply(0, b"");
    line.wait(2 * MS);
    assert!(done(&mut first).is_ok());
    line.sent.clear();
    let mut asked = line.ask(1, SERVER, b"a call");
    line.settle();
    assert_eq!(line.sent.len(), 1, "the call, and no word of it yet");
    line.now = line.now.after(MS / 2);
    line.reply(0, b"");
    line.settle();
    assert!(done(&mut asked).is_ok());
    assert_eq!(line.sent.len(), 3, "the reply and the acknowledgement");
    let _next = line.ask(1, SERVER, b"another");
    line.settle();
    assert_eq!(line.sent.len(), 4, "the call: an acknowledgement of the reply may still wait");
    line.now = line.now.after(MS / 2);
    let _third = line.ask(1, SERVER, b"a third");
    line.settle();
    assert_eq!(line.sent.len(), 6, "the call and the acknowledgement of the reply");
    line.wait(2 * MS);
    assert_eq!(line.sent.len(), 7, "one of both calls, which waits for no longer");
    assert_eq!([0, 1].map(|at| line.figure(at, "packets sent again")), [0, 0]);
}

#[test]
fn what_is_too_long_or_no_request_is_not_sent() {
    let line = Line::two([false, false]);
    let long = vec![0; Settings::of_mtu(1500).message_bytes];
    let refused = |future: Pin<&mut dyn Future<Output = Result<Vec<u8>, Gone>>>| {
        assert_eq!(poll_once(future), Poll::Ready(Err(Gone::Refused)));
    };
    refused(std::pin::pin!(line.ends[1].call(SERVER, long)));
    refused(std::pin::pin!(line.ends[1].call(CLIENT, b"myself".to_vec())));
    let heads = read(5, 3000);
    let mut request = std::pin::pin!(line.ends[1].request(SERVER, &heads, b"a read has no data"));
    assert_eq!(poll_once(request.as_mut()), Poll::Ready(Err(Gone::Refused)));
    assert!(!line.ends[1].send(SERVER, b"OA".to_vec()), "there is no conversation");
    // A reply that is too long ends the call all the same.
    let mut line = Line::two([false, false]);
    let mut asked = line.ask(1, SERVER, b"text");
    let more = vec![0; Settings::of_mtu(1500).message_bytes];
    assert_eq!(line.reply(0, &more), 1);
    assert_eq!(done(&mut asked), Ok(Vec::new()));
}

#[test]
fn who_has_another_key_or_cluster_is_refused() {
    let strange = |cluster, keys: Peer| {
        let config = Config {
            me: CLIENT,
            address: address(2),
            life: 22,
            cluster,
            settings: Settings::of_mtu(1500),
            keys: Box::new(rig::Pairs(keys)),
            seed: 1,
            sealed: false,
            answer_within: 500 * MS,
        };
        Conversations::new(config, Recorder::default())
    };
    for stranger in [strange(6, CLIENT), strange(5, Peer::Client(8))] {
        let ends = vec![end(SERVER, 1, 11, false), stranger];
        let mut line = Line::of(ends, &[SERVER, CLIENT]);
        for (at, to) in [(1, SERVER), (0, CLIENT)] {
            let mut asked = line.ask(at, to, b"renew");
            line.wait(500 * MS);
            assert_eq!(done(&mut asked), Err(Gone::Refused));
        }
        assert_eq!(line.opened(), [0, 0]);
        assert!(line.figure(0, "openings refused") > 0);
    }
}

#[test]
fn who_is_not_there_is_given_up_and_asked_anew() {
    let mut line = Line::two([false, false]);
    line.mute = vec![0];
    let mut asked = line.ask(1, SERVER, b"renew");
    line.wait(1400 * MS);
    assert!(poll_once(asked.as_mut()).is_pending());
    line.wait(200 * MS);
    assert_eq!(done(&mut asked), Err(Gone::Unanswered));
    assert!(line.sent.iter().filter(|(at, ..)| *at == 1).count() < 20, "it backs off");
    line.mute.clear();
    let mut asked = line.ask(1, SERVER, b"renew");
    assert_eq!(line.reply(0, b""), 1);
    assert_eq!(done(&mut asked), Ok(b"renew".to_vec()));
}

/// A peer that acknowledged a call and died is not waited for.
#[test]
fn a_peer_that_dies_after_it_acknowledged_is_noticed() {
    let mut line = Line::two([false, false]);
    let mut asked = line.ask(1, SERVER, b"renew");
    // As long as it is there it may take its time.
    line.wait(Duration::from_secs(30));
    assert!(poll_once(asked.as_mut()).is_pending());
    line.mute = vec![0];
    line.wait(Duration::from_secs(2));
    assert_eq!(done(&mut asked), Err(Gone::Unanswered));
}

#[test]
fn a_new_life_ends_what_was_asked_of_the_old_one() {
    let mut line = Line::two([false, false]);
    let mut asked = line.ask(1, SERVER, b"renew");
    line.settle();
    let old = line.ends[0].take_call().expect("a call");
    line.ends[0] = end(SERVER, 1, 12, false);
    line.ends[0].know(CLIENT, address(2));
    let mut recall = line.ask(0, CLIENT, b"recall");
    line.wait(500 * MS);
    assert_eq!(done(&mut asked), Err(Gone::Ended));
    assert_eq!(line.ends[1].life_of(SERVER), Some(12));
    assert_eq!(line.reply(1, b"!"), 1);
    assert_eq!(done(&mut recall), Ok(b"recall!".to_vec()));
    // Its reply would be one to a call of another conversation.
    let before = line.sent.len();
    line.ends[0].reply(old.token, b"late".to_vec());
    line.settle();
    assert_eq!(line.sent.len(), before);
}

/// Who died while nothing was asked is found at the first packet that it does not know: sooner than
/// by silence.
#[test]
fn a_packet_to_nobody_makes_who_sent_it_open_anew() {
    for (dies, asks, to, peer) in [(0, 1, SERVER, CLIENT), (1, 0, CLIENT, SERVER)] {
        let mut line = Line::two([false, false]);
        let mut asked = line.ask(asks, to, b"one");
        assert_eq!(line.reply(dies, b""), 1);
        assert_eq!(done(&mut asked), Ok(b"one".to_vec()));
        line.ends[dies] = end(to, dies as u8 + 1, 99, false);
        line.ends[dies].know(peer, address(asks as u8 + 1));
        let mut asked = line.ask(asks, to, b"two");
        line.wait(300 * MS);
        assert_eq!(done(&mut asked), Err(Gone::Ended));
        let mut asked = line.ask(asks, to, b"three");
        assert_eq!(line.reply(dies, b""), 1);
        assert_eq!(done(&mut asked), Ok(b"three".to_vec()));
    }
}

/// A request that was cut off is cleaned up when its conversation is replaced.
#[test]
fn a_target_hears_of_requests_that_never_complete() {
    let ends = vec![end(NODE, 1, 11, false), end(CLIENT, 2, 22, false)];
    let mut line = Line::of(ends, &[NODE, CLIENT]);
    let _hello = line.ask(1, NODE, b"hello");
    line.settle();
    let mut message = vec![0; 5000];
    message[..2].copy_from_slice(b"OD");
    assert!(line.ends[1].send(NODE, message));
    let mut packets = Vec::new();
    line.ends[1].pump(line.now, 0, &mut |to, bytes| packets.push((to, bytes.to_vec())));
    assert!(packets.len() > 2);
    line.deliver(address(2), packets[0].0, &packets[0].1);
    line.ends[1] = end(CLIENT, 2, 23, false);
    line.ends[1].know(NODE, address(1));
    let _hello = line.ask(1, NODE, b"hello");
    line.wait(500 * MS);
    assert_eq!(line.ends[0].with_target(|target| (target.cleaned, target.wrong)), (1, None));
}

#[test]
fn what_is_idle_is_closed_and_opened_again() {
    let mut line = Line::two([false, false]);
    for round in 1..4 {
        let mut asked = line.ask(1, SERVER, b"renew");
        assert_eq!(line.reply(0, b""), 1);
        assert_eq!(done(&mut asked), Ok(b"renew".to_vec()));
        assert_eq!(line.opened(), [round, round]);
        line.wait(Duration::from_secs(61));
        assert_eq!([line.figure(0, "conversations"), line.figure(1, "conversations")], [0, 0]);
    }
    // A call that takes longer than that is not idle.
    let mut asked = line.ask(1, SERVER, b"slow");
    line.wait(Duration::from_secs(200));
    assert_eq!(line.reply(0, b""), 1);
    assert_eq!(done(&mut asked), Ok(b"slow".to_vec()));
    assert_eq!(line.opened(), [4, 4]);
}

/// Somebody who saw how a client opened a conversation, in this life or one before, sends it again,
/// from the client's address and from his own. What lives goes on.
#[test]
fn an_opening_that_is_replayed_ends_nothing() {
    for planted in [None, Some(Fault::NoProof), Some(Fault::BelievesWishes)] {
        let mut line = Line::two([false, false]);
        let _before = line.ask(1, SERVER, b"before");
        let _other = line.ask(0, CLIENT, b"other");
        line.wait(MS);
        line.ends[1] = end(CLIENT, 2, 23, false);
        line.ends[1].know(SERVER, address(1));
        let _asked = line.ask(1, SERVER, b"reopen");
        line.wait(500 * MS);
        let opened = line.opened();
        let mut asks = [line.ask(1, SERVER, b"slow"), line.ask(0, CLIENT, b"slow")];
        line.settle();
        PLANTED.set(planted);
        let seen = line.sent.clone();
        let is_opening = |bytes: &[u8]| Opening::parse(bytes).is_ok();
        let openings = || seen.iter().filter(|(.., bytes)| is_opening(bytes));
        assert!(openings().count() >= 6);
        let steps = |step| {
            openings()
                .filter(|(.., bytes)| Opening::parse(bytes).expect("one").step == step)
                .count()
        };
        assert!(steps(Step::Open) >= 3 && steps(Step::Opened) >= 3);
        for (at, to, bytes) in openings() {
            for from in [address(*at as u8 + 1), address(99)] {
                line.deliver(from, *to, bytes);
                line.wait(20 * MS);
            }
        }
        line.wait(3000 * MS);
        PLANTED.set(None);
        let (_, _) = (line.reply(0, b"!"), line.reply(1, b"?"));
        let results = asks.each_mut().map(done);
        let is_well = results == [Ok(b"slow!".to_vec()), Ok(b"slow?".to_vec())];
        assert_eq!(is_well && line.opened() == opened, planted.is_none(), "{planted:?}");
    }
}

#[test]
fn who_gives_a_call_up_is_not_told() {
    let mut line = Line::two([false, false]);
    drop(line.ask(1, SERVER, b"never sent"));
    let asked = line.ask(1, SERVER, b"given up");
    line.settle();
    drop(asked);
    assert_eq!(line.figure(1, "calls awaited"), 0);
    assert_eq!(line.reply(0, b""), 1);
    assert_eq!(line.figure(1, "messages dropped"), 1);
}

#[test]
fn who_sleeps_is_woken_at_its_time() {
    let line = Line::two([false, false]);
    let end = &line.ends[0];
    let mut sleep = std::pin::pin!(end.sleep(5 * MS));
    let mut forgotten = Box::pin(end.sleep(MS));
    assert!(poll_once(sleep.as_mut()).is_pending() && poll_once(forgotten.as_mut()).is_pending());
    drop(forgotten);
    assert_eq!(end.deadline(), Some(Time(5_000_000)));
    assert_eq!(end.pump(Time(4_999_999), 3, &mut |_, _| {}), 0);
    assert!(poll_once(sleep.as_mut()).is_pending());
    assert_eq!(end.pump(Time(5_000_000), 4, &mut |_, _| {}), 1);
    assert!(poll_once(sleep.as_mut()).is_ready());
    assert_eq!((end.now(), end.wall_ms(), end.deadline()), (Time(5_000_000), 4, None));
}

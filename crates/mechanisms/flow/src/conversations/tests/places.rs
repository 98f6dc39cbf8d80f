//! A peer that may be at several places.

use super::*;

/// A server at the address 1 or 2, of which the other is another part; a client at 3 that knows
/// both.
fn line(first: Peer, second: Peer) -> Line {
    let ends = vec![end(first, 1, 11, false), end(second, 2, 22, false), end(CLIENT, 3, 33, false)];
    ends[2].know_places(SERVER, &[address(1), address(2)]);
    Line { now: Time(1), ends, sent: Vec::new(), mute: Vec::new() }
}

#[test]
fn a_server_that_died_is_looked_for_at_all_its_places() {
    let mut line = line(SERVER, NODE);
    let mut asked = line.ask(2, SERVER, b"who");
    line.reply(0, b" one");
    assert_eq!(done(&mut asked), Ok(b"who one".to_vec()));
    // The first dies, and the second serves: another life.
    line.mute = vec![0];
    line.ends[1] = end(SERVER, 2, 22, false);
    let mut asked = line.ask(2, SERVER, b"who");
    line.wait(Duration::from_millis(1500));
    assert_eq!(done(&mut asked), Err(Gone::Unanswered), "the first may have done it");
    let mut asked = line.ask(2, SERVER, b"who");
    line.reply(1, b" two");
    assert_eq!(done(&mut asked), Ok(b"who two".to_vec()));
    assert_eq!(line.ends[2].life_of(SERVER), Some(22));
}

/// A part at one of the places that is none, and says so, does not speak for the other.
#[test]
fn one_place_refuses_for_itself() {
    let mut line = line(NODE, SERVER);
    line.mute = vec![1];
    let mut asked = line.ask(2, SERVER, b"who");
    line.wait(Duration::from_secs(1));
    assert!(poll_once(asked.as_mut()).is_pending(), "the second has said nothing");
    line.mute = vec![];
    line.wait(Duration::from_secs(1));
    line.reply(1, b"");
    assert_eq!(done(&mut asked), Ok(b"who".to_vec()));
}

/// The others stand by, and say nothing at all.
#[test]
fn one_refuses_and_nobody_else_answers() {
    let mut line = line(NODE, Peer::Node(2));
    line.mute = vec![1];
    let mut asked = line.ask(2, SERVER, b"who");
    line.wait(Duration::from_secs(4));
    assert_eq!(done(&mut asked), Err(Gone::Refused));
}

/// Where all refuse it is refused.
#[test]
fn all_places_refuse() {
    let mut line = line(NODE, Peer::Node(2));
    let mut asked = line.ask(2, SERVER, b"who");
    line.wait(Duration::from_secs(1));
    assert_eq!(done(&mut asked), Err(Gone::Refused));
}

/// A client begins its next life at another port: the server offers a conversation there, too, once
/// it doubts the one there was. It did so at the next wish only, half a second later.
#[test]
fn who_wishes_from_elsewhere_is_offered_one_there() {
    let ends = [(SERVER, 11), (CLIENT, 22), (CLIENT, 33)];
    let ends =
        ends.iter().enumerate().map(|(at, (peer, life))| end(*peer, at as u8 + 1, *life, false));
    let mut line = Line::of(ends.collect(), &[SERVER, CLIENT]);
    let mut asked = line.ask(1, SERVER, b"first");
    line.reply(0, b"");
    assert_eq!(done(&mut asked), Ok(b"first".to_vec()));
    line.mute = vec![1];
    let mut asked = line.ask(2, SERVER, b"second");
    line.wait(120 * MS);
    line.reply(0, b"");
    assert_eq!(done(&mut asked), Ok(b"second".to_vec()));
}

use super::*;

const SECOND: u64 = 1_000_000_000;
const TERM: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> Time {
    Time(seconds * SECOND)
}

/// A client in the life that it has.
fn who(clients: &mut Clients, client: u64) -> Who {
    clients.meet(client, at(0)).unwrap()
}

fn renewed() -> Clients {
    let mut clients = Clients::new(TERM);
    assert_eq!(clients.renew(1, at(0)), Ok(Renewed::Goes));
    clients
}

fn stale(session: u64, ino: u64) -> Event {
    Event::StaleInode { session: SessionId(session), ino: Ino(ino) }
}

#[test]
fn a_lease_is_over_a_margin_after_the_client_thinks_so() {
    let mut clients = renewed();
    assert!(clients.has_lease(1, at(10)), "the client's own is over, the server is later");
    assert!(!clients.has_lease(1, at(11)));
    assert_eq!(clients.renew(1, at(30)), Ok(Renewed::Goes), "it may come late");
    assert!(clients.has_lease(1, at(40)));
    assert!(!clients.has_lease(2, at(0)), "nobody knows that one");
    clients.meet(2, at(0)).unwrap();
    assert!(!clients.has_lease(2, at(0)), "it has not renewed");
}

#[test]
fn who_lost_something_hears_of_it_before_its_lease_goes_on() {
    let mut clients = renewed();
    clients.lost(1, Ino(7));
    assert_eq!(clients.renew(1, at(20)), Ok(Renewed::After(vec![Ino(7)])));
    assert!(!clients.has_lease(1, at(20)));
    clients.lost(1, Ino(8));
    let one = who(&mut clients, 1);
    clients.heard(one, &[Ino(7)]);
    assert_eq!(clients.renew(1, at(20)), Ok(Renewed::After(vec![Ino(8)])));
    clients.heard(one, &[Ino(8)]);
    assert_eq!(clients.renew(1, at(20)), Ok(Renewed::Goes));
}

#[test]
fn who_lost_too_much_or_is_expelled_ends_once_its_lease_is_over() {
    let mut clients = renewed();
    clients.renew(2, at(0)).unwrap();
    let (one, two) = (who(&mut clients, 1), who(&mut clients, 2));
    (0..=LOST_MAX as u64).for_each(|ino| clients.lost(1, Ino(ino)));
    clients.expel(2);
    for (client, known) in [(1, one), (2, two)] {
        assert_eq!(clients.renew(client, at(5)), Ok(Renewed::Ends));
        assert!(clients.has_lease(client, at(5)), "what it was promised");
        assert!(!clients.may_take(known, at(5)));
        assert_eq!(clients.meet(client, at(5)), Err(Errno::ESTALE));
    }
    assert!(clients.take_gone(at(10)).is_empty());
    let gone: Vec<u64> = clients.take_gone(at(11)).into_iter().map(|(client, _)| client).collect();
    assert_eq!(gone, [1, 2]);
    assert_eq!(clients.renew(1, at(12)), Ok(Renewed::Ends), "for good");
}

#[test]
fn a_late_client_keeps_its_sessions_until_it_is_gone() {
    let mut clients = renewed();
    let one = who(&mut clients, 1);
    clients.admit(one, SessionId(5), at(0)).unwrap();
    clients.done(SessionId(5), 1);
    assert!(clients.take_gone(at(70)).is_empty());
    assert_eq!(clients.take_gone(at(71)), [(1, vec![SessionId(5)])]);
    assert_eq!(clients.counts(at(71)), [0; 4]);
}

#[test]
fn a_session_goes_over_when_nothing_of_it_is_under_way_and_not_back() {
    let (mut clients, session) = (renewed(), SessionId(5));
    clients.renew(2, at(0)).unwrap();
    let (one, two) = (who(&mut clients, 1), who(&mut clients, 2));
    assert_eq!(clients.admit(one, session, at(0)), Ok(Admission::Moved(1)));
    assert_eq!(clients.admit(one, session, at(0)), Ok(Admission::Taken(1)));
    clients.done(session, 1);
    assert_eq!(clients.admit(two, session, at(1)), Ok(Admission::Wait));
    clients.done(session, 1);
    assert!(clients.goes_on(session, 1), "nobody took it over while it waited for others");
    assert_eq!(clients.admit(two, session, at(1)), Ok(Admission::Wait));
    clients.done(session, 1);
    assert_eq!(clients.admit(two, session, at(1)), Ok(Admission::Moved(2)));
    assert!(!clients.goes_on(session, 1));
    assert!(clients.owns(two, session) && !clients.owns(one, session));
    assert_eq!(clients.sessions_of(2).collect::<Vec<_>>(), [session]);
    clients.done(session, 2);
    assert_eq!(clients.admit(one, session, at(2)), Err(Errno::ESTALE), "its owner has a lease");
    assert_eq!(clients.admit(one, session, at(12)), Ok(Admission::Moved(3)), "it has none");
    assert!(!clients.goes_on(session, 1), "another had it meanwhile");
    clients.done(session, 3);
    clients.renew(1, at(12)).unwrap();
    assert_eq!(clients.admit(two, session, at(13)), Err(Errno::ESTALE));
}

#[test]
fn a_life_that_begins_has_nothing_of_the_one_before_but_its_sessions() {
    let (mut clients, session) = (renewed(), SessionId(5));
    let old = who(&mut clients, 1);
    clients.admit(old, session, at(0)).unwrap();
    clients.lost(1, Ino(7));
    clients.push_event(session, stale(5, 1));
    assert_eq!(clients.begin_deliveries(), [old]);
    assert_eq!(clients.begin(1, 70, at(1)), Ok(true));
    let new = who(&mut clients, 1);
    assert!(new != old && clients.lives(new) && !clients.lives(old));
    assert!(!clients.has_lease(1, at(1)));
    assert_eq!(clients.renew(1, at(1)), Ok(Renewed::Goes), "it has lost nothing");
    assert!(clients.may_take(new, at(1)) && !clients.may_take(old, at(1)));
    // What is under way for the life before ends without effect.
    clients.push_event(session, stale(5, 2));
    assert_eq!(clients.begin_deliveries(), [new], "its own delivery");
    assert!(clients.next_events(old).is_empty());
    clients.delivered(old, 1);
    assert_eq!(clients.next_events(new), [stale(5, 2)]);
    assert_eq!(clients.admit(new, session, at(1)), Ok(Admission::Wait));
    assert_eq!(clients.admit(old, session, at(1)), Err(Errno::ESTALE));
    clients.done(session, 1);
    assert_eq!(clients.admit(new, session, at(1)), Ok(Admission::Moved(2)));
    assert!(clients.owns(new, session) && !clients.owns(old, session));
    // The volume has heard that it is back when it moved; and hears it from then on.
    assert!(!clients.is_back(session) && clients.is_back(session));
    assert!(!clients.is_back(SessionId(6)));
}

#[test]
fn a_beginning_that_comes_again_changes_nothing() {
    let mut clients = Clients::new(TERM);
    for nonce in 70..70 + NONCES_MAX as u64 {
        assert_eq!(clients.begin(1, nonce, at(0)), Ok(true));
    }
    let one = who(&mut clients, 1);
    (70..70 + NONCES_MAX as u64).for_each(|nonce| {
        assert_eq!(clients.begin(1, nonce, at(0)), Ok(false));
    });
    assert!(clients.lives(one));
    assert_eq!(clients.begin(2, 70, at(0)), Ok(true), "another client");
    // Nor of one that is gone: it must end. One that begins then may go on.
    assert_eq!(clients.take_gone(at(60)).len(), 2);
    assert_eq!(clients.begin(2, 70, at(60)), Ok(false));
    assert_eq!(clients.renew(2, at(60)), Ok(Renewed::Ends));
    assert_eq!(clients.begin(2, 71, at(60)), Ok(true));
    assert_eq!(clients.renew(2, at(60)), Ok(Renewed::Goes));
    // And of one that is expelled.
    clients.expel(2);
    assert_eq!(clients.begin(2, 71, at(60)), Ok(false));
    assert_eq!(clients.renew(2, at(60)), Ok(Renewed::Ends));
    assert_eq!(clients.begin(2, 72, at(60)), Ok(true));
    assert_eq!(clients.renew(2, at(60)), Ok(Renewed::Goes));
}

#[test]
fn clients_of_the_life_before_are_waited_for_until_they_begin() {
    let mut clients = Clients::new(TERM);
    assert!(clients.all_have_begun());
    (1..=3).for_each(|client| clients.was_there(client, [70, 71].into_iter()));
    clients.renew(1, at(0)).unwrap();
    assert_eq!(clients.begin(2, 71, at(0)), Ok(false), "it began before");
    assert_eq!(clients.begin(2, 72, at(0)), Ok(true));
    assert_eq!(clients.begin(3, 72, at(0)), Ok(true));
    assert!(!clients.all_have_begun(), "a renewal proves nothing");
    let two = who(&mut clients, 2);
    assert_eq!(clients.to_note(2), Some((two, vec![70, 71, 72])));
    clients.noted(two);
    assert_eq!(clients.to_note(2), None);
    clients.begin(2, 73, at(0)).unwrap();
    clients.noted(two);
    assert!(clients.to_note(2).is_some(), "its next life is not noted");
    assert_eq!(clients.take_former(), [1]);
    assert!(clients.all_have_begun());
    assert!(!clients.forgets(1) && clients.forgets(9));
    clients.take_gone(at(71));
    assert!(clients.forgets(1));
    (0..=FORMER_MAX as u64).for_each(|client| clients.was_there(client, std::iter::empty()));
    assert_eq!(clients.take_former().last(), Some(&u64::MAX), "one too many: nobody can begin it");
}

#[test]
fn events_go_to_a_sessions_client_in_order_until_it_has_acted_upon_them() {
    let mut clients = renewed();
    clients.push_event(SessionId(5), stale(5, 1));
    assert!(clients.begin_deliveries().is_empty(), "nobody has that session");
    let one = who(&mut clients, 1);
    clients.admit(one, SessionId(5), at(0)).unwrap();
    let all: Vec<Event> = (0..600).map(|ino| stale(5, ino)).collect();
    all.iter().for_each(|event| clients.push_event(SessionId(5), event.clone()));
    assert_eq!(clients.begin_deliveries(), [one]);
    assert!(clients.begin_deliveries().is_empty(), "one at a time");
    let mut seen = Vec::new();
    loop {
        let some = clients.next_events(one);
        assert_eq!(some, clients.next_events(one), "again, until delivered");
        assert!(some.len() <= EVENTS_AT_ONCE);
        if some.is_empty() {
            break;
        }
        clients.delivered(one, some.len());
        seen.extend(some);
    }
    assert_eq!(seen, all);
    clients.push_event(SessionId(5), stale(5, 1));
    assert_eq!(clients.begin_deliveries(), [one], "the delivery had ended");
}

#[test]
fn who_does_not_take_its_events_ends() {
    let mut clients = renewed();
    let one = who(&mut clients, 1);
    clients.admit(one, SessionId(5), at(0)).unwrap();
    (0..EVENTS_MAX as u64).for_each(|ino| clients.push_event(SessionId(5), stale(5, ino)));
    assert_eq!(clients.renew(1, at(1)), Ok(Renewed::Goes));
    clients.push_event(SessionId(5), stale(5, 0));
    assert_eq!(clients.renew(1, at(1)), Ok(Renewed::Ends));
    assert!(clients.next_events(one).is_empty(), "it hears no part of them");
}

#[test]
fn tables_are_bounded() {
    let mut clients = Clients::new(TERM);
    for client in 0..CLIENTS_MAX as u64 {
        clients.meet(client, at(0)).unwrap();
    }
    assert_eq!(clients.meet(CLIENTS_MAX as u64, at(0)), Err(Errno::ENFILE));
    assert_eq!(clients.begin(CLIENTS_MAX as u64, 7, at(0)), Err(Errno::ENFILE));
    let one = who(&mut clients, 1);
    for session in 0..SESSIONS_MAX as u64 {
        clients.admit(one, SessionId(session), at(0)).unwrap();
    }
    assert_eq!(clients.admit(one, SessionId(u64::MAX), at(0)), Err(Errno::EMFILE));
}

/// A DPU side that died at each start kept what it had been writing from all others for as long as
/// it was started again.
#[test]
fn who_begins_again_and_again_keeps_files_from_others_for_a_while() {
    let mut clients = Clients::new(TERM);
    let comes_back = |clients: &Clients, now| clients.comes_back(1, at(now), at(0));
    for life in 0..10 {
        let now = 100 + 5 * life;
        assert_eq!(clients.begin(1, life, at(now)), Ok(true));
        assert_eq!(comes_back(&clients, now), now < 133, "at {now}");
    }
    let one = who(&mut clients, 1);
    clients.handed_in(one);
    assert!(!comes_back(&clients, 146));
    assert_eq!(clients.begin(1, 10, at(200)), Ok(true));
    assert!(comes_back(&clients, 210), "what it owes is of the life before this alone");
    assert!(!comes_back(&clients, 211));
}

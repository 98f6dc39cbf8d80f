use super::*;

const SECOND: u64 = 1_000_000_000;
const TERM: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> Time {
    Time(seconds * SECOND)
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
    clients.heard(1, &[Ino(7)]);
    assert_eq!(clients.renew(1, at(20)), Ok(Renewed::After(vec![Ino(8)])));
    clients.heard(1, &[Ino(8)]);
    assert_eq!(clients.renew(1, at(20)), Ok(Renewed::Goes));
}

#[test]
fn who_lost_too_much_or_is_expelled_ends_once_its_lease_is_over() {
    let mut clients = renewed();
    clients.renew(2, at(0)).unwrap();
    (0..=LOST_MAX as u64).for_each(|ino| clients.lost(1, Ino(ino)));
    clients.expel(2);
    for client in [1, 2] {
        assert_eq!(clients.renew(client, at(5)), Ok(Renewed::Ends));
        assert!(clients.has_lease(client, at(5)), "what it was promised");
        assert!(!clients.may_take(client, at(5)));
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
    clients.admit(1, SessionId(5), at(0)).unwrap();
    clients.done(SessionId(5));
    assert!(clients.take_gone(at(70)).is_empty());
    assert_eq!(clients.take_gone(at(71)), [(1, vec![SessionId(5)])]);
    assert_eq!(clients.counts(at(71)), [0; 4]);
}

#[test]
fn a_session_goes_over_when_nothing_of_it_is_under_way_and_not_back() {
    let (mut clients, session) = (renewed(), SessionId(5));
    clients.renew(2, at(0)).unwrap();
    assert_eq!(clients.admit(1, session, at(0)), Ok(Admission::Taken));
    assert_eq!(clients.admit(2, session, at(1)), Ok(Admission::Wait));
    clients.done(session);
    assert_eq!(clients.admit(2, session, at(1)), Ok(Admission::Taken));
    assert!(clients.owns(2, session) && !clients.owns(1, session));
    assert_eq!(clients.a_session(2), Some(session));
    clients.done(session);
    assert_eq!(clients.admit(1, session, at(2)), Err(Errno::ESTALE), "its owner has a lease");
    assert_eq!(clients.admit(1, session, at(12)), Ok(Admission::Taken), "it has none");
    clients.done(session);
    clients.renew(1, at(12)).unwrap();
    assert_eq!(clients.admit(2, session, at(13)), Err(Errno::ESTALE));
}

#[test]
fn events_go_to_a_sessions_client_in_order_until_it_has_acted_upon_them() {
    let mut clients = renewed();
    clients.push_event(SessionId(5), stale(5, 1));
    assert!(clients.begin_deliveries().is_empty(), "nobody has that session");
    clients.admit(1, SessionId(5), at(0)).unwrap();
    let all: Vec<Event> = (0..600).map(|ino| stale(5, ino)).collect();
    all.iter().for_each(|event| clients.push_event(SessionId(5), event.clone()));
    assert_eq!(clients.begin_deliveries(), [1]);
    assert!(clients.begin_deliveries().is_empty(), "one at a time");
    let mut seen = Vec::new();
    loop {
        let some = clients.next_events(1);
        assert_eq!(some, clients.next_events(1), "again, until delivered");
        assert!(some.len() <= EVENTS_AT_ONCE);
        if some.is_empty() {
            break;
        }
        clients.delivered(1, some.len());
        seen.extend(some);
    }
    assert_eq!(seen, all);
    clients.push_event(SessionId(5), stale(5, 1));
    assert_eq!(clients.begin_deliveries(), [1], "the delivery had ended");
}

#[test]
fn who_does_not_take_its_events_ends() {
    let mut clients = renewed();
    clients.admit(1, SessionId(5), at(0)).unwrap();
    (0..EVENTS_MAX as u64).for_each(|ino| clients.push_event(SessionId(5), stale(5, ino)));
    assert_eq!(clients.renew(1, at(1)), Ok(Renewed::Goes));
    clients.push_event(SessionId(5), stale(5, 0));
    assert_eq!(clients.renew(1, at(1)), Ok(Renewed::Ends));
    assert!(clients.next_events(1).is_empty(), "it hears no part of them");
}

#[test]
fn tables_are_bounded() {
    let mut clients = Clients::new(TERM);
    (0..CLIENTS_MAX as u64).for_each(|client| clients.meet(client, at(0)).unwrap());
    assert_eq!(clients.meet(CLIENTS_MAX as u64, at(0)), Err(Errno::ENFILE));
    for session in 0..SESSIONS_MAX as u64 {
        clients.admit(1, SessionId(session), at(0)).unwrap();
    }
    assert_eq!(clients.admit(1, SessionId(u64::MAX), at(0)), Err(Errno::EMFILE));
}

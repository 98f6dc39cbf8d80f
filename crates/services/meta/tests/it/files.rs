//! File operations of sessions, and what their clients hear.

use std::time::Duration;

use outboard_base::{Errno, Fh, Ino, SessionId};
use outboard_wire::file::{Flags, Header, Reply as FileReply, Request, Setattr, open_flags};
use outboard_wire::shared::call::{Call, Event, Layout, Mode, Reply, Told};

use crate::world::{Rig, answer, asker, attr, events, reply};

const SECOND: Duration = Duration::from_secs(1);

fn rig() -> (Rig, Ino) {
    let rig = Rig::new(2);
    (1..=3).for_each(|client| rig.renew(client));
    let ino = rig.create(1, 11, b"file");
    (rig, ino)
}

fn getattr(ino: Ino) -> Request<'static> {
    Request::Getattr { ino, fh: Fh::NONE }
}

/// A request of session 11 that can be sent again.
fn in_lane(lane: u16, flags: Flags, request: &Request<'_>) -> Call {
    let header = Header { session: SessionId(11), sequence: 5, lane, flags, ..Header::default() };
    let mut bytes = vec![0; request.encoded_len(&header)];
    request.encode(&header, &mut bytes).unwrap();
    Call::File { asker: asker(11), request: bytes, payload: Vec::new() }
}

#[test]
fn a_session_speaks_through_one_client_at_a_time() {
    let (rig, ino) = rig();
    rig.does(2, 11, &getattr(ino));
    let late = rig.call(1, rig.file(11, &getattr(ino)));
    assert_eq!(late, Reply::Failed(Errno::ESTALE), "its host went to another DPU side");
    for call in [
        Call::Strip { asker: asker(11), ino },
        Call::MayWrite { asker: asker(11), ino },
        Call::Back { session: SessionId(11) },
    ] {
        assert_eq!(rig.call(1, call), Reply::Failed(Errno::ESTALE));
    }
    // Nor can it end what is not its own.
    assert_eq!(rig.call(1, Call::Detach { session: SessionId(11) }), Reply::Done);
    rig.does(2, 11, &getattr(ino));
    // Once the other's lease is over it may.
    rig.pass(SECOND * 12);
    rig.does(1, 11, &getattr(ino));
}

/// A host opened a file of one copy whose writer, at another host, waited for a node that was away.
/// Its DPU side died, and the next one asked for nothing until that node was back: writes of files
/// that bore its loss waited, too, for as long as nodes were away.
#[test]
fn who_takes_a_session_over_does_not_wait_for_what_waits_for_others() {
    let (rig, ino) = rig();
    let fence = rig.grant(3, ino, Mode::Write).capability.fence;
    let cut = Setattr { size: Some(0), ..Setattr::default() };
    let cut = Request::Setattr { ino, fh: Fh::NONE, set: cut };
    let first = rig.ask(1, in_lane(1, Flags::default(), &cut));
    let asked = rig.asked(3).unwrap();
    // Each life asks again, and waits for the one before in that lane alone.
    let again = rig.ask(2, in_lane(1, Flags::REPLAY, &cut));
    assert!(rig.at_once(&again).is_none(), "the first is under way");
    rig.does(2, 11, &getattr(Ino::ROOT));
    assert_eq!(rig.call(2, Call::Begin { nonce: 2 }), Reply::Done);
    rig.renew(2);
    assert_eq!(rig.call(2, Call::Back { session: SessionId(11) }), Reply::Done);
    rig.does(2, 11, &getattr(Ino::ROOT));
    let last = rig.ask(2, in_lane(1, Flags::REPLAY, &cut));
    assert!(rig.at_once(&last).is_none(), "of the file it must wait");
    let told = Told { size: 70, mtime: None, blocks: None };
    assert_eq!(rig.call(3, Call::Publish { ino, fence, told }), Reply::Done);
    answer(&asked, Reply::Done);
    for slot in [first, again] {
        assert_eq!(rig.at_once(&slot), Some(Reply::Failed(Errno::ESTALE)), "it is another's now");
    }
    assert_eq!(attr(reply(&cut, rig.at_once(&last).unwrap()).unwrap()).size, 0);
}

#[test]
fn a_request_must_be_of_the_session_that_asks() {
    let (rig, _) = rig();
    let header = Header { session: SessionId(12), ..Header::default() };
    let mut bytes = vec![0; Request::Noop.encoded_len(&header)];
    Request::Noop.encode(&header, &mut bytes).unwrap();
    let call = Call::File { asker: asker(11), request: bytes, payload: Vec::new() };
    assert_eq!(rig.call(1, call), Reply::Failed(Errno::EPERM));
    for len in [0, 7, 127] {
        let call = Call::File { asker: asker(11), request: vec![1; len], payload: Vec::new() };
        assert!(matches!(rig.call(1, call), Reply::Failed(_)));
    }
}

#[test]
fn a_replay_through_another_client_is_answered_from_the_record() {
    let (rig, _) = rig();
    let request = Request::Mkdir { parent: Ino::ROOT, name: b"dir", mode: 0o755, umask: 0 };
    let first = reply(&request, rig.call(1, in_lane(3, Flags::default(), &request))).unwrap();
    let again = reply(&request, rig.call(2, in_lane(3, Flags::REPLAY, &request))).unwrap();
    assert_eq!(first, again);
}

#[test]
fn a_file_that_is_found_by_creating_it_has_the_size_its_writer_tells() {
    let (rig, ino) = rig();
    let fence = rig.grant(1, ino, Mode::Write).capability.fence;
    let (mode, umask, flags) = (0o644, 0, open_flags::RDWR);
    let create = Request::Create { parent: Ino::ROOT, name: b"file", mode, umask, flags };
    let slot = rig.ask(2, rig.file(22, &create));
    let asked = rig.asked(1).unwrap();
    assert_eq!(asked.call, Call::Recall { ino, keep: Some(Mode::Read) });
    let told = Told { size: 55, mtime: None, blocks: None };
    assert_eq!(rig.call(1, Call::Publish { ino, fence, told }), Reply::Done);
    answer(&asked, Reply::Done);
    let found = attr(reply(&create, rig.at_once(&slot).unwrap()).unwrap());
    assert_eq!((found.ino, found.size), (ino, 55));
}

/// A name was looked up, its file taken from others, and the name led to another file when that was
/// done: this one was cut in the volume, without its turn, and kept its bytes at the nodes.
#[test]
fn the_file_that_is_opened_is_the_one_that_is_cut() {
    let (rig, first) = rig();
    let second = rig.create(1, 11, b"second");
    for ino in [first, second] {
        let request = Request::Open { ino, flags: open_flags::RDWR };
        let FileReply::Opened(fh) = rig.does(1, 11, &request) else { panic!("not opened") };
        let write = Request::Write { ino, fh, offset: 0, flags: 0 };
        let written = rig.call(1, rig.file_with(11, &write, b"0123456789"));
        assert_eq!(reply(&write, written), Ok(FileReply::Written(10)));
    }
    rig.grant(2, first, Mode::Write);
    let (mode, umask, flags) = (0o644, 0, open_flags::RDWR | open_flags::TRUNC);
    let create = Request::Create { parent: Ino::ROOT, name: b"file", mode, umask, flags };
    let slot = rig.ask(1, rig.file(11, &create));
    let asked = rig.recalled(2).unwrap();
    for (name, to_name) in [(b"file", b"kept"), (b"second", b"file")] as [(&[u8], &[u8]); 2] {
        let (parent, to_parent) = (Ino::ROOT, Ino::ROOT);
        rig.does(3, 33, &Request::Rename { parent, name, to_parent, to_name, flags: 0 });
    }
    answer(&asked, Reply::Done);
    let opened = reply(&create, rig.at_once(&slot).unwrap()).unwrap();
    let FileReply::Created(ref attr, fh) = opened else { panic!("{opened:?}") };
    assert_eq!((attr.ino, attr.size), (second, 0));
    assert_eq!([first, second].map(|ino| rig.world.end(ino.0)), [10, 0], "at the nodes");
    assert_eq!(self::attr(rig.does(1, 11, &getattr(first))).size, 10);
    let write = Request::Write { ino: second, fh, offset: 3, flags: 0 };
    let written = rig.call(1, rig.file_with(11, &write, b"3"));
    assert_eq!(reply(&write, written), Ok(FileReply::Written(1)));
    let read = Request::Read { ino: second, fh, offset: 0, len: 99, flags: 0 };
    let Reply::File { payload, .. } = rig.call(1, rig.file(11, &read)) else { panic!("not read") };
    assert_eq!(payload, b"\0\0\x003");
    // A name that leads to nothing any more has a new file.
    rig.grant(2, second, Mode::Write);
    let slot = rig.ask(1, rig.file(11, &create));
    let asked = rig.recalled(2).unwrap();
    rig.does(3, 33, &Request::Unlink { parent: Ino::ROOT, name: b"file" });
    answer(&asked, Reply::Done);
    let made = self::attr(reply(&create, rig.at_once(&slot).unwrap()).unwrap());
    assert!(![first, second].contains(&made.ino), "{made:?}");
}

#[test]
fn who_truncates_takes_the_file_from_all_others_first() {
    let (rig, ino) = rig();
    let fence = rig.grant(1, ino, Mode::Write).capability.fence;
    let told = Told { size: 55, mtime: None, blocks: None };
    assert_eq!(rig.call(1, Call::Publish { ino, fence, told }), Reply::Done);
    let (mode, umask) = (0o644, 0);
    let flags = open_flags::RDWR | open_flags::TRUNC;
    let set = Setattr { size: Some(0), ..Setattr::default() };
    for request in [
        Request::Create { parent: Ino::ROOT, name: b"file", mode, umask, flags },
        Request::Open { ino, flags },
        Request::Setattr { ino, fh: Fh::NONE, set },
    ] {
        rig.grant(1, ino, Mode::Write);
        let slot = rig.ask(2, rig.file(22, &request));
        let asked = rig.recalled(1).unwrap();
        assert_eq!(asked.call, Call::Recall { ino, keep: None }, "{request:?}");
        answer(&asked, Reply::Done);
        reply(&request, rig.at_once(&slot).unwrap()).unwrap();
        assert_eq!(attr(rig.does(2, 22, &getattr(ino))).size, 0);
    }
}

/// Who has a file has flushed its nodes before it asks: the server flushed them once more. For
/// others it does.
#[test]
fn a_sync_of_who_has_the_file_asks_no_node() {
    let (rig, ino) = rig();
    rig.grant(1, ino, Mode::Write);
    rig.world.state().nodes.values_mut().for_each(|node| node.away = true);
    let fsync = Request::Fsync { ino, fh: Fh::NONE, data_only: false };
    let slot = rig.ask(2, rig.file(22, &fsync));
    assert_eq!(reply(&fsync, rig.call(1, rig.file(11, &fsync))), Ok(FileReply::Empty));
    assert!(rig.at_once(&slot).is_none(), "its nodes are away");
    rig.world.state().nodes.values_mut().for_each(|node| node.away = false);
    rig.pass(SECOND * 5);
    assert_eq!(reply(&fsync, rig.at_once(&slot).unwrap()), Ok(FileReply::Empty));
}

/// Any client could end the server: it answered what it was asked as only a node may, that a later
/// server has begun.
#[test]
fn no_client_says_that_another_server_has_begun() {
    let (rig, ino) = rig();
    rig.grant(1, ino, Mode::Write);
    let slot = rig.ask(2, rig.file(22, &getattr(ino)));
    let asked = rig.recalled(1).unwrap();
    answer(&asked, Reply::Later { term: u32::MAX });
    (0..50).for_each(|_| rig.step());
    assert!(!rig.server().is_superseded());
    assert!(rig.at_once(&slot).is_none(), "it has not given the file back");
    rig.pass(SECOND * 13);
    rig.renew(2);
    assert_eq!(attr(reply(&getattr(ino), rig.at_once(&slot).unwrap()).unwrap()).size, 0);
}

#[test]
fn what_others_change_comes_to_the_client_of_the_session_in_order() {
    let (rig, ino) = rig();
    rig.does(2, 22, &Request::Lookup { parent: Ino::ROOT, name: b"file" });
    while let Some(asked) = rig.asked(2) {
        events(asked);
    }
    let fence = rig.grant(1, ino, Mode::Write).capability.fence;
    let told = Told { size: 9, mtime: None, blocks: None };
    rig.call(1, Call::Publish { ino, fence, told });
    rig.does(1, 11, &Request::Unlink { parent: Ino::ROOT, name: b"file" });
    let session = SessionId(22);
    let first = rig.asked(2).unwrap();
    let expected = Event::StaleInode { session, ino };
    assert!(matches!(&first.call, Call::Events { events } if events.contains(&expected)));
    // The answer was lost: it hears of it again, and of nothing later before.
    *first.answer.lock().unwrap() = Some(Err(outboard_flow::Gone::Unanswered));
    rig.pass(SECOND);
    let again = rig.asked(2).unwrap();
    let Call::Events { events: ref heard } = again.call else { panic!("{:?}", again.call) };
    assert_eq!(heard.first(), Some(&expected));
    let mut heard = events(again);
    while let Some(asked) = rig.asked(2) {
        heard.extend(events(asked));
    }
    let name = b"file".to_vec();
    assert!(heard.contains(&Event::StaleEntry { session, parent: Ino::ROOT, name }));
    assert!(rig.asked(1).is_none(), "it knows what it did itself");
}

#[test]
fn sessions_of_a_client_that_is_gone_hold_nothing() {
    let (rig, ino) = rig();
    let FileReply::Opened(_) = rig.does(1, 11, &Request::Open { ino, flags: open_flags::RDWR })
    else {
        panic!("not opened")
    };
    rig.grant(1, ino, Mode::Write);
    rig.renew(2);
    rig.does(2, 22, &Request::Unlink { parent: Ino::ROOT, name: b"file" });
    rig.pass(SECOND * 20);
    assert_eq!(attr(rig.does(1, 11, &getattr(ino))).nlink, 0, "it is open, though it is late");
    rig.pass(SECOND * 60);
    for client in [1, 2] {
        let life = rig.life() + 1;
        let renewed = rig.call(client, Call::Renew);
        assert!(matches!(renewed, Reply::Lease { life: other, term_ms: 0, .. } if other == life));
    }
    rig.renew(4);
    let gone = reply(&getattr(ino), rig.call(4, rig.file(33, &getattr(ino))));
    assert_eq!(gone, Err(Errno::ESTALE));
    let status = rig.server().status();
    assert!(status.contains("\"sessions\":1,"), "{status}");
    assert!(status.contains("\"write\":0,\"unresolved\":0"), "{status}");
}

#[test]
fn the_layout_of_an_empty_file_changes_once_nobody_uses_the_old() {
    let (rig, ino) = rig();
    let Reply::Layout(layout) = rig.call(1, Call::Layout { ino }) else { panic!("no layout") };
    assert_eq!((layout.width, layout.group), (2, u32::try_from(ino.0 % 64).unwrap()));
    rig.grant(2, ino, Mode::Read);
    let wide = Layout { width: 3, ..layout };
    let slot = rig.ask(1, Call::SetLayout { asker: asker(11), ino, layout: wide });
    answer(&rig.asked(2).unwrap(), Reply::Done);
    assert_eq!(rig.at_once(&slot), Some(Reply::Done));
    let grant = rig.grant(2, ino, Mode::Write);
    assert_eq!((grant.layout.width, grant.nodes.len()), (3, 3));
    assert_eq!((grant.capability.object, grant.capability.volume), (ino.0, 5));
    let told = Told { size: 1, mtime: None, blocks: None };
    let fence = grant.capability.fence;
    rig.call(2, Call::Release { ino, fence, told: Some(told), keep: None });
    let again = rig.call(1, Call::SetLayout { asker: asker(11), ino, layout });
    assert_eq!(again, Reply::Failed(Errno::ENOTEMPTY));
}

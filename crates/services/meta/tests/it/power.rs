//! A loss of the server's power.

use std::time::Duration;

use outboard_base::task::run;
use outboard_base::{Errno, Fh, Ino, SessionId};
use outboard_wire::file::{Flags, Header, Reply as FileReply, Request};
use outboard_wire::shared::call::{Call, Mode, Reply};

use crate::world::{Rig, asker, reply};

const SECOND: Duration = Duration::from_secs(1);

struct Host {
    rig: Rig,
    written: Ino,
    idle: Ino,
    dir: Ino,
}

impl Host {
    /// Two files, of which one is being written to, and a directory, all synced.
    fn new() -> Host {
        let rig = Rig::new(6);
        (1..=2).for_each(|client| rig.renew(client));
        let (written, idle) = (rig.create(1, 11, b"written"), rig.create(1, 11, b"idle"));
        rig.grant(1, written, Mode::Write);
        let request = Request::Mkdir { parent: Ino::ROOT, name: b"dir", mode: 0o755, umask: 0 };
        let FileReply::Entry(dir) = rig.does(1, 11, &request) else { panic!("not made") };
        let host = Host { rig, written, idle, dir: dir.ino };
        assert_eq!(host.all(11, Flags::default()), [Ok(()); 4]);
        host
    }

    fn asks(&self, session: u64, request: &Request<'_>, flags: Flags) -> Result<(), Errno> {
        let header = Header { session: SessionId(session), flags, ..Header::default() };
        let mut bytes = vec![0; request.encoded_len(&header)];
        request.encode(&header, &mut bytes).unwrap();
        let call = Call::File { asker: asker(session), request: bytes, payload: Vec::new() };
        reply(request, self.rig.call(1, call)).map(drop)
    }

    /// Syncs of both files, of the directory, and of all.
    fn all(&self, session: u64, flags: Flags) -> [Result<(), Errno>; 4] {
        let fsync = |ino| Request::Fsync { ino, fh: Fh::NONE, data_only: false };
        let files = [self.written, self.idle, self.dir].map(fsync);
        let [one, two, three] = files.map(|request| self.asks(session, &request, flags));
        [one, two, three, self.asks(session, &Request::Syncfs, flags)]
    }

    fn dies(&self, power: bool) {
        self.rig.restart(power);
        (1..=2).for_each(|client| self.rig.renew(client));
    }
}

const LOST: Result<(), Errno> = Err(Errno::EIO);

/// Names and sizes that a host was answered were gone with the server's power, and its next sync
/// said that all was well.
#[test]
fn who_was_answered_before_hears_once_that_the_server_lost_power() {
    let host = Host::new();
    let request = Request::Mkdir { parent: Ino::ROOT, name: b"lost", mode: 0o755, umask: 0 };
    host.rig.does(1, 11, &request);
    // Whether the store still has it is for chance to say; nobody knows here.
    host.dies(true);
    // One that does nothing is back all the same.
    for (client, session) in [(1, 11), (2, 22)] {
        let back = Call::Back { session: SessionId(session) };
        assert_eq!(host.rig.call(client, back), Reply::Done);
    }
    // Files that somebody writes are resolved when leases of before are over.
    host.rig.pass(SECOND * 13);
    (1..=2).for_each(|client| host.rig.renew(client));
    assert_eq!(host.all(11, Flags::default()), [LOST, Ok(()), LOST, LOST]);
    // The answer may be lost, and whoever waits for it asks again.
    assert_eq!(host.all(11, Flags::REPLAY), [LOST, Ok(()), LOST, LOST]);
    assert_eq!(host.all(11, Flags::default()), [Ok(()); 4], "it was said");
    assert_eq!(host.all(22, Flags::default()), [LOST, Ok(()), LOST, LOST]);
    // A host that comes later was not there; nor was what is made later.
    assert_eq!(host.all(44, Flags::default()), [Ok(()); 4]);
    assert_eq!(host.all(44, Flags::REPLAY), [Ok(()); 4], "what it asks again is from this life");
    let made = Request::Mkdir { parent: Ino::ROOT, name: b"later", mode: 0o755, umask: 0 };
    let FileReply::Entry(made) = host.rig.does(1, 11, &made) else { panic!("not made") };
    let fsync = Request::Fsync { ino: made.ino, fh: Fh::NONE, data_only: false };
    assert_eq!(host.asks(11, &fsync, Flags::default()), Ok(()));
    // One that hands something in late was, though something else of it came first.
    assert_eq!(host.asks(66, &Request::Noop, Flags::default()), Ok(()));
    let (ino, fh) = (host.idle, Fh::NONE);
    let handed_in = Request::Reclaim { ino, fh, flags: 0, directory: false };
    // Whether it is still taken is another question.
    let _taken = host.asks(66, &handed_in, Flags::default());
    assert_eq!(host.all(66, Flags::default()), [LOST, Ok(()), LOST, LOST]);
    // One that begins by what it sends again was.
    let noop = Request::Noop;
    assert_eq!(host.asks(55, &noop, Flags::REPLAY), Ok(()));
    assert_eq!(host.all(55, Flags::default()), [LOST, Ok(()), LOST, LOST]);
}

/// The server's process died once more before anybody had synced.
#[test]
fn a_loss_of_power_is_not_forgotten_with_the_server_s_next_life() {
    let host = Host::new();
    host.dies(true);
    host.rig.pass(SECOND * 13);
    host.dies(false);
    host.rig.call(1, Call::Back { session: SessionId(11) });
    host.rig.pass(SECOND * 13);
    (1..=2).for_each(|client| host.rig.renew(client));
    assert_eq!(host.all(11, Flags::default()), [LOST, Ok(()), LOST, LOST]);
    // Long after that nobody is to be told.
    for _ in 0..60 {
        host.rig.pass(SECOND * 11);
        host.rig.renew(1);
    }
    host.dies(false);
    host.rig.call(1, Call::Back { session: SessionId(11) });
    host.rig.pass(SECOND * 13);
    host.rig.renew(1);
    assert_eq!(host.all(11, Flags::default()), [Ok(()); 4]);
}

/// The computer of the server was started again, in order, and all hosts heard that something might
/// be lost.
#[test]
fn a_server_that_ended_in_order_has_lost_nothing() {
    let host = Host::new();
    let request = Request::Mkdir { parent: Ino::ROOT, name: b"kept", mode: 0o755, umask: 0 };
    host.rig.does(1, 11, &request);
    run(host.rig.server().end()).unwrap();
    let noop = host.rig.ask(1, host.rig.file(11, &Request::Noop));
    assert!(host.rig.at_once(&noop).is_none(), "nobody is answered any more");
    host.dies(true);
    let lookup = Request::Lookup { parent: Ino::ROOT, name: b"kept" };
    assert_eq!(host.asks(11, &lookup, Flags::default()), Ok(()));
    host.rig.pass(SECOND * 13);
    (1..=2).for_each(|client| host.rig.renew(client));
    assert_eq!(host.all(11, Flags::default()), [Ok(()); 4]);
    // It is only of that end.
    host.dies(true);
    assert_eq!(host.asks(11, &lookup, Flags::default()), Ok(()));
    host.rig.pass(SECOND * 13);
    (1..=2).for_each(|client| host.rig.renew(client));
    assert_eq!(host.all(11, Flags::default())[3], LOST);
}

#[test]
fn the_death_of_a_server_s_process_loses_nothing_and_nobody_is_told() {
    let host = Host::new();
    host.dies(false);
    assert_eq!(host.asks(11, &Request::Noop, Flags::default()), Ok(()));
    host.rig.pass(SECOND * 13);
    (1..=2).for_each(|client| host.rig.renew(client));
    assert_eq!(host.all(11, Flags::default()), [Ok(()); 4]);
}

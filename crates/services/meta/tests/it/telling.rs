//! Writers that tell before they answer, and files that are kept for the next life of who wrote.

use std::time::Duration;

use outboard_base::{Errno, Fh, Ino, SessionId};
use outboard_kv::mem::Faults;
use outboard_wire::file::{Flags, Header, Request, Setattr, write_flags};
use outboard_wire::shared::call::{Call, Grant, Mode, Reply, Told};

use crate::world::{Rig, answer, asker, granted};

const SECOND: Duration = Duration::from_secs(1);
const LATE: Reply = Reply::Failed(Errno::ESTALE);

fn begin(rig: &Rig, client: u64, nonce: u64) {
    assert_eq!(rig.call(client, Call::Begin { nonce }), Reply::Done);
    rig.renew(client);
}

/// Clients 1 and 2 have begun and have leases, and there is an empty file.
fn rig() -> (Rig, Ino) {
    let rig = Rig::new(6);
    (1..=2).for_each(|client| begin(&rig, client, 70));
    let ino = rig.create(1, 11, b"file");
    (rig, ino)
}

fn told(size: u64) -> Told {
    Told { size, mtime: None, blocks: None }
}

/// The bytes of a request of session 11.
fn bytes(request: &Request<'_>, sequence: u64) -> Vec<u8> {
    let session = SessionId(11);
    let header = Header { session, sequence, flags: Flags::default(), ..Header::default() };
    let mut bytes = vec![0; request.encoded_len(&header)];
    request.encode(&header, &mut bytes).unwrap();
    bytes
}

fn append(ino: Ino, sequence: u64) -> Vec<u8> {
    bytes(&Request::Write { ino, fh: Fh(1), offset: 0, flags: write_flags::APPEND }, sequence)
}

fn wrote(ino: Ino, sequence: u64, fence: u64, size: u64) -> Call {
    let request = append(ino, sequence);
    Call::Wrote { asker: asker(11), request, count: 100, fence, told: told(size) }
}

fn answered(rig: &Rig, ino: Ino, sequence: u64) -> Reply {
    rig.call(1, Call::Answered { asker: asker(11), request: append(ino, sequence) })
}

/// A writer that tells, with 100 bytes told.
fn teller(rig: &Rig, ino: Ino) -> Grant {
    let grant = rig.grant(1, ino, Mode::Write);
    let fence = grant.capability.fence;
    assert_eq!(rig.call(1, Call::Tells { ino, fence, told: told(0) }), Reply::Done);
    assert!(rig.world.write(&grant.capability, &grant.nodes, 100));
    assert_eq!(rig.call(1, wrote(ino, 5, fence, 100)), Reply::Done);
    grant
}

/// Strips of an append that nobody was answered stood in the file, before those of another.
#[test]
fn what_was_not_told_is_nobody_s() {
    for restarts in [false, true] {
        let (rig, ino) = rig();
        let grant = teller(&rig, ino);
        let fence = grant.capability.fence;
        assert!(rig.world.write(&grant.capability, &grant.nodes, 70_000));
        if restarts {
            rig.restart(false);
        }
        begin(&rig, 1, 71);
        assert_eq!(answered(&rig, ino, 5), Reply::Number(100));
        assert_eq!(answered(&rig, ino, 6), Reply::Failed(Errno::ENOENT));
        // Told too late, and once more what was told in time.
        assert_eq!(rig.call(1, wrote(ino, 6, fence, 70_000)), LATE);
        assert_eq!(rig.call(1, wrote(ino, 5, fence, 100)), Reply::Done);
        assert_eq!(rig.call(1, Call::Tells { ino, fence, told: told(0) }), LATE);
        rig.pass(SECOND * 13);
        rig.renew(1);
        let again = rig.grant(1, ino, Mode::Write);
        assert_eq!((again.attr.size, rig.world.end(ino.0)), (100, 100));
        // It does not tell any more: what it writes counts.
        assert!(rig.world.write(&again.capability, &again.nodes, 300));
        begin(&rig, 1, 72);
        assert_eq!(rig.grant(1, ino, Mode::Read).attr.size, 300);
    }
}

#[test]
fn what_is_told_is_a_write_of_a_session_of_the_asker_s() {
    let (rig, ino) = rig();
    let fence = teller(&rig, ino).capability.fence;
    let tell = |number: u64, request: Vec<u8>| {
        let asker = asker(number);
        let answered = Call::Answered { asker: asker.clone(), request: request.clone() };
        let wrote = Call::Wrote { asker, request, count: 1, fence, told: told(200) };
        [rig.call(1, wrote), rig.call(1, answered)]
    };
    let failed = |errno| [Reply::Failed(errno), Reply::Failed(errno)];
    assert_eq!(tell(12, append(ino, 9)), failed(Errno::EPERM), "another session's");
    assert_eq!(tell(11, bytes(&Request::Syncfs, 9)), failed(Errno::EINVAL), "no write");
    let cut = append(ino, 9);
    (0..cut.len()).for_each(|at| {
        let refused = tell(11, cut[..at].to_vec());
        assert!(refused.iter().all(|reply| matches!(reply, Reply::Failed(_))), "{at}");
    });
    assert_eq!(rig.call(2, wrote(ino, 9, fence, 200)), LATE, "another client's");
    // The session is that client's now, and what was answered is known to it, too.
    let asked = Call::Answered { asker: asker(11), request: append(ino, 5) };
    assert_eq!(rig.call(2, asked), Reply::Number(100));
}

/// Hosts had dirty pages in their caches when their DPU side died. Others were granted the file at
/// once, and found what was there before.
#[test]
fn what_a_life_could_write_is_kept_until_the_next_has_handed_in() {
    for restarts in [false, true] {
        let (rig, ino) = rig();
        assert!(!rig.grant(1, ino, Mode::Write).kept, "it is new to it");
        if restarts {
            rig.restart(false);
            begin(&rig, 2, 71);
        }
        begin(&rig, 1, 71);
        let other = rig.ask(2, Call::Delegate { ino, mode: Mode::Read });
        rig.pass(SECOND * 2);
        assert!(rig.at_once(&other).is_none(), "the hosts of 1 may come back");
        let anew = rig.grant(1, ino, Mode::Write);
        assert!(anew.kept);
        assert!(rig.grant(1, ino, Mode::Write).kept, "the answer may have been lost");
        assert!(rig.at_once(&other).is_none() && rig.asked(1).is_none(), "nor is it recalled");
        assert_eq!(rig.call(1, Call::HandedIn), Reply::Done);
        rig.pass(SECOND);
        let recall = rig.asked(1).unwrap();
        assert_eq!(recall.call, Call::Recall { ino, keep: Some(Mode::Read) });
        answer(&recall, Reply::Done);
        assert!(!granted(rig.at_once(&other).unwrap()).kept);
        assert!(!rig.grant(1, ino, Mode::Read).kept, "another had it");
    }
}

#[test]
fn what_nobody_comes_back_for_is_kept_for_the_time_of_a_lease() {
    let (rig, ino) = rig();
    rig.grant(1, ino, Mode::Write);
    begin(&rig, 1, 71);
    let other = rig.ask(2, Call::Delegate { ino, mode: Mode::Write });
    for _ in 0..10 {
        (1..=2).for_each(|client| rig.renew(client));
        rig.pass(SECOND);
    }
    assert!(rig.at_once(&other).is_none());
    (1..=2).for_each(|client| rig.renew(client));
    rig.pass(SECOND * 2);
    let other = granted(rig.at_once(&other).unwrap());
    let (fence, keep) = (other.capability.fence, None);
    let release = Call::Release { ino, fence, told: Some(told(0)), keep };
    assert_eq!(rig.call(2, release), Reply::Done);
    rig.renew(1);
    assert!(!rig.grant(1, ino, Mode::Write).kept, "it comes too late");
}

/// Of what a client says of a file nothing has a number. What it asked and did not wait for, be it
/// twice, comes before what it asks next; once the file is another's, or its own anew, it is
/// refused. (The size that was told was put over that of a cut, and the cut counted as carried
/// out, as it did not wait for what had come before it.)
#[test]
fn what_is_said_twice_or_late_changes_nothing() {
    for seed in 0..100 {
        let (rig, ino) = rig();
        rig.disk.kv.set_faults(Faults { delay_polls: 2 + seed % 9, ..Faults::default() });
        let grant = rig.grant(1, ino, Mode::Write);
        let fence = grant.capability.fence;
        assert!(rig.world.write(&grant.capability, &grant.nodes, 100));
        let (publish, holed) =
            (Call::Publish { ino, fence, told: told(100) }, Call::Holed { ino, fence });
        // What lies behind the end of a writer that tells goes, whatever was cut.
        let tells = Call::Tells { ino, fence, told: told(100) };
        let first = if seed % 2 == 0 { publish.clone() } else { tells.clone() };
        assert_eq!(rig.call(1, publish.clone()), Reply::Done);
        let said = [&first, &publish, &holed, &publish, &holed, &first];
        let slots: Vec<_> = said.iter().map(|call| rig.ask(1, (*call).clone())).collect();
        let set = Setattr { size: Some(50), ..Setattr::default() };
        let cut = rig.file(11, &Request::Setattr { ino, fh: Fh::NONE, set });
        assert!(matches!(rig.call(1, cut), Reply::File { .. }));
        assert!(slots.iter().all(|slot| rig.at_once(slot) == Some(Reply::Done)));
        // The nodes have not heard of the cut when the next life begins.
        begin(&rig, 1, 71);
        let is_late = |call: &Call| rig.call(1, call.clone()) == LATE;
        assert!([&publish, &tells, &holed].into_iter().all(is_late), "seed {seed}");
        let again = rig.grant(1, ino, Mode::Write);
        assert_eq!((again.attr.size, rig.world.end(ino.0)), (50, 50), "seed {seed}");
        assert!([&publish, &tells, &holed].into_iter().all(is_late), "seed {seed}");
        assert_eq!(rig.grant(1, ino, Mode::Read).attr.size, 50, "seed {seed}");
    }
}

/// A writer gave its file back and cut it, and was still its writer when that was looked at, not
/// when it was done: another was granted an empty file over the bytes that nodes still had, and
/// the hole of the cut went over what that one had written since.
#[test]
fn who_has_given_a_file_back_does_not_cut_it_as_its_writer() {
    for seed in 0..200 {
        let (rig, ino) = rig();
        let grant = rig.grant(1, ino, Mode::Write);
        let fence = grant.capability.fence;
        assert!(rig.world.write(&grant.capability, &grant.nodes, 100));
        assert_eq!(rig.call(1, Call::Publish { ino, fence, told: told(100) }), Reply::Done);
        rig.disk.kv.set_faults(Faults { delay_polls: 2 + seed % 20, ..Faults::default() });
        let other = rig.ask(2, Call::Delegate { ino, mode: Mode::Write });
        let asked = rig.recalled(1).unwrap();
        answer(&asked, Reply::Done);
        (0..seed / 10).for_each(|_| rig.step());
        let set = Setattr { size: Some(0), ..Setattr::default() };
        let cut = rig.file(11, &Request::Setattr { ino, fh: Fh::NONE, set });
        let _cuts = rig.ask(1, cut);
        let Some(reply) = rig.at_once(&other) else { panic!("seed {seed}: it is not granted") };
        let size = granted(reply).attr.size;
        assert_eq!(rig.world.end(ino.0), size, "seed {seed}: at the nodes");
    }
}

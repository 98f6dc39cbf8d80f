//! Grants that are what was given back. In the simulated world a client answered a recall, asked
//! for the file again, and was granted the very delegation it had given back: the server had the
//! answer but had not acted on it. The client then read a size that another was changing. And times
//! that two clocks give.

use outboard_base::task::poll_once;
use outboard_wire::shared::call::Layout;
use outboard_wire::shared::{Capability, Rights, Strategy};

use super::*;

const INO: Ino = Ino(7);

pub(crate) fn grant(mode: Mode, fence: u64) -> Grant {
    let layout =
        Layout { strategy: Strategy::Single, k: 1, m: 0, width: 1, strip: 65536, group: 0 };
    let capability = Capability {
        key: 0,
        rights: Rights::READ_WRITE,
        volume: 1,
        object: INO.0,
        first: 0,
        end: u64::MAX,
        client: 1,
        fence,
        group: 0,
        strategy: Strategy::Single,
        k: 1,
        m: 0,
        expires: 0,
        mac: [0; 16],
    };
    let attr = Attr { ino: INO, ..Attr::default() };
    Grant { mode, attr, strips: false, kept: false, layout, capability, nodes: Vec::new() }
}

fn asks(table: &Table, mode: Mode) -> Asking<'_> {
    match table.step(INO, (mode, true), 1, Time(0)) {
        Step::Ask(asking) => asking,
        _ => panic!("it does not ask"),
    }
}

fn gives_back(table: &Table, keep_read: bool) {
    let leaving = table.recall(INO, keep_read);
    assert!(poll_once(std::pin::pin!(leaving.idle())).is_ready());
    leaving.left();
}

#[test]
fn what_was_given_back_is_not_granted_again() {
    let table = Table::default();
    let first = asks(&table, Mode::Write).granted(grant(Mode::Write, 5), 1);
    assert_eq!(first, Granted::Ours);
    gives_back(&table, false);
    let again = asks(&table, Mode::Read).granted(grant(Mode::Write, 5), 1);
    assert_eq!(again, Granted::Void { fence: 5, keep: None });
    assert_eq!(table.held(INO), None);
    let anew = asks(&table, Mode::Read).granted(grant(Mode::Read, 6), 1);
    assert_eq!((anew, table.held(INO)), (Granted::Ours, Some((Mode::Read, 6))));
}

#[test]
fn what_was_kept_to_read_is_not_granted_to_write() {
    let table = Table::default();
    let _ = asks(&table, Mode::Write).granted(grant(Mode::Write, 5), 1);
    gives_back(&table, true);
    assert_eq!(table.held(INO), Some((Mode::Read, 5)));
    let again = asks(&table, Mode::Write).granted(grant(Mode::Write, 5), 1);
    assert_eq!(again, Granted::Void { fence: 5, keep: Some(Mode::Read) });
    table.is_stale(INO, Some(5));
    let read = asks(&table, Mode::Read).granted(grant(Mode::Read, 5), 1);
    assert_eq!((read, table.held(INO)), (Granted::Ours, Some((Mode::Read, 5))));
}

#[test]
fn a_grant_that_a_recall_overtook_is_given_back_and_never_used() {
    let table = Table::default();
    let asking = asks(&table, Mode::Write);
    table.recall(INO, false).left();
    assert_eq!(asking.granted(grant(Mode::Write, 5), 1), Granted::Void { fence: 5, keep: None });
    let again = asks(&table, Mode::Write).granted(grant(Mode::Write, 5), 1);
    assert_eq!(again, Granted::Void { fence: 5, keep: None });
    // What was given back is forgotten in the end.
    (0..LOOKS).for_each(|_| assert!(table.idle(Time(0), 1).is_empty()));
    assert!(table.files().is_empty());
}

/// A write that takes set-id bits away has the server date the file, by its clock, before the
/// client does by its own. The client showed its own time for as long as it had the file, and the
/// server's from then on: after the conformance suite, and another mount, a file had another time.
#[test]
fn the_time_of_a_write_is_the_one_that_the_server_keeps() {
    let table = Table::default();
    let _ = asks(&table, Mode::Write).granted(grant(Mode::Write, 5), 1);
    let Step::In(entered) = table.step(INO, (Mode::Write, true), 1, Time(0)) else {
        panic!("not in")
    };
    let at = |sec| Timestamp { sec, nsec: 5 };
    assert!(table.wrote(&entered, 1, Some(at(10)), Time(0)));
    let said = |mtime| {
        let mut attr = Attr { ino: INO, mtime, ctime: mtime, ..Attr::default() };
        table.overlay(&mut attr);
        (attr.mtime, attr.ctime)
    };
    assert_eq!(said(at(9)), (at(10), at(10)));
    assert_eq!(said(at(11)), (at(11), at(11)), "it was dated by the server, too");
}

/// A client was cut off with something written and untold. It asked again for what it had, and was
/// recalled before it heard the answer. It gave the file back by that, and told nothing: what it
/// had written lay behind the end of the file.
#[test]
fn what_is_not_told_is_not_given_back_by_who_asks_again() {
    let table = Table::default();
    let _ = asks(&table, Mode::Write).granted(grant(Mode::Write, 5), 1);
    let Step::In(entered) = table.step(INO, (Mode::Write, true), 1, Time(0)) else {
        panic!("not in")
    };
    assert!(table.wrote(&entered, 9, None, Time(0)));
    drop(entered);
    table.is_stale(INO, Some(5));
    let asking = asks(&table, Mode::Write);
    let leaving = table.recall(INO, true);
    assert_eq!(asking.granted(grant(Mode::Write, 5), 1), Granted::Again);
    let untold = table.untold(INO).unwrap();
    assert_eq!((untold.fence, untold.told.size), (5, 9));
    table.told(&untold);
    leaving.left();
    assert_eq!(table.held(INO), Some((Mode::Read, 5)));
}

/// The server let a write of two strips of a file with copies go beside others, as its layout said
/// that it was one: strips of a megabyte, which nodes that have copies do not know.
#[test]
fn copies_have_the_strips_of_nodes() {
    let mut grant = grant(Mode::Write, 1);
    grant.layout.strip = 1 << 20;
    assert_eq!(crate::strip_len(&grant), 1 << 20);
    grant.capability.strategy = Strategy::Ring;
    assert_eq!(crate::strip_len(&grant), 1 << 16);
}

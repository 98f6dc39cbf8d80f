//! Bytes that the server reads and writes for clients that leave everything to it.

use std::time::Duration;

use outboard_base::{Errno, Fh, Ino, SessionId};
use outboard_wire::file::{
    Flags, Header, Reply as FileReply, Request, Setattr, open_flags, seek, write_flags,
};
use outboard_wire::shared::call::{Call, Layout, Mode, Object, Reply, Told};

use crate::world::{NODES, Rig, Slot, answer, asker, attr, granted, reply};

const SECOND: Duration = Duration::from_secs(1);
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;

struct Standard {
    rig: Rig,
    ino: Ino,
    fh: Fh,
}

impl Standard {
    fn new() -> Standard {
        let rig = Rig::new(4);
        (1..=2).for_each(|client| rig.renew(client));
        let ino = rig.create(1, 11, b"file");
        let open = Request::Open { ino, flags: open_flags::RDWR };
        let FileReply::Opened(fh) = rig.does(1, 11, &open) else { panic!("not opened") };
        Standard { rig, ino, fh }
    }

    fn to_write(&self, offset: u64, flags: u32, data: &[u8]) -> (Request<'static>, Call) {
        let request = Request::Write { ino: self.ino, fh: self.fh, offset, flags };
        let call = self.rig.file_with(11, &request, data);
        (request, call)
    }

    fn write(&self, offset: u64, flags: u32, data: &[u8]) -> Result<FileReply, Errno> {
        let (request, call) = self.to_write(offset, flags, data);
        reply(&request, self.rig.call(1, call))
    }

    /// An append that can be sent again.
    fn to_append(&self, sequence: u64, data: &[u8], flags: Flags) -> (Request<'static>, Call) {
        let appends = write_flags::APPEND;
        let request = Request::Write { ino: self.ino, fh: self.fh, offset: 0, flags: appends };
        let header = Header { session: SessionId(11), sequence, flags, ..Header::default() };
        let mut bytes = vec![0; request.encoded_len(&header)];
        request.encode(&header, &mut bytes).unwrap();
        let payload = data.to_vec();
        (request, Call::File { asker: asker(11), request: bytes, payload })
    }

    /// Answered at once, or when leases of the server's life before are over.
    fn append(&self, sequence: u64, data: &[u8], flags: Flags) {
        let (request, call) = self.to_append(sequence, data, flags);
        let slot = self.rig.ask(1, call);
        let answered = self.rig.at_once(&slot).or_else(|| {
            self.rig.pass(SECOND * 13);
            (1..=2).for_each(|client| self.rig.renew(client));
            self.rig.at_once(&slot)
        });
        let answered = reply(&request, answered.unwrap());
        assert_eq!(answered, Ok(FileReply::Written(data.len() as u32)));
    }

    /// The server's process dies and another begins, in which the file is open again.
    fn after_a_death(self) -> Standard {
        self.rig.restart(false);
        (1..=2).for_each(|client| self.rig.renew(client));
        let (ino, fh, flags) = (self.ino, self.fh, open_flags::RDWR);
        let handed_in = Request::Reclaim { ino, fh, flags, directory: false };
        self.rig.does(1, 11, &handed_in);
        self
    }

    /// Begins to write, and is not answered yet.
    fn begin(&self, offset: u64, flags: u32, data: &[u8]) -> Slot {
        self.rig.ask(1, self.to_write(offset, flags, data).1)
    }

    /// Whether the server says that it has delegations to read, to write, and files unresolved.
    fn counts(&self, [read, write, unresolved]: [u32; 3]) {
        let counts = format!("\"read\":{read},\"write\":{write},\"unresolved\":{unresolved}");
        let status = self.rig.server().status();
        assert!(status.contains(&counts), "{counts}: {status}");
    }

    /// The highest fence that a node has seen of the file.
    fn fence(&self) -> u64 {
        let state = self.rig.world.state();
        let fences = state.nodes.values().filter_map(|node| node.objects.get(&self.ino.0));
        fences.map(|object| object.fence).max().unwrap_or(0)
    }

    fn is_away(&self, node: u16, away: bool) {
        self.rig.world.state().nodes.get_mut(&node).unwrap().away = away;
    }

    fn read(&self, offset: u64, len: u32) -> Vec<u8> {
        let request = Request::Read { ino: self.ino, fh: self.fh, offset, len, flags: 0 };
        let Reply::File { result, payload, .. } = self.rig.call(1, self.rig.file(11, &request))
        else {
            panic!("not read")
        };
        assert_eq!(result, payload.len() as u64);
        payload
    }

    fn size(&self) -> u64 {
        attr(self.rig.does(1, 11, &Request::Getattr { ino: self.ino, fh: Fh::NONE })).size
    }
}

#[test]
fn what_is_written_is_read_and_nothing_is_held_once_it_is_idle() {
    let of = Standard::new();
    assert_eq!(of.read(0, 10), b"");
    assert_eq!(of.write(65_530, 0, b"over a border"), Ok(FileReply::Written(13)));
    assert_eq!(
        of.write(0, write_flags::APPEND | write_flags::DSYNC, b"!"),
        Ok(FileReply::Written(1))
    );
    assert_eq!((of.size(), of.read(65_535, 100)), (65_544, b"a border!".to_vec()));
    assert_eq!(of.rig.world.end(of.ino.0), 65_544);
    of.counts([0, 1, 0]);
    of.rig.pass(SECOND * 7);
    of.counts([0, 0, 0]);
    of.rig.restart(false);
    of.rig.renew(2);
    assert_eq!(of.rig.grant(2, of.ino, Mode::Read).attr.size, 65_544, "at once");
}

#[test]
fn what_was_cut_off_is_zero_when_the_file_grows_again() {
    let of = Standard::new();
    of.write(0, 0, b"0123456789").unwrap();
    for size in [4, 8] {
        let set = Setattr { size: Some(size), ..Setattr::default() };
        of.rig.does(1, 11, &Request::Setattr { ino: of.ino, fh: of.fh, set });
    }
    assert_eq!(of.read(0, 100), b"0123\0\0\0\0");
    let (mode, umask, flags) = (0o644, 0, open_flags::RDWR | open_flags::TRUNC);
    for request in [
        Request::Open { ino: of.ino, flags },
        Request::Create { parent: Ino::ROOT, name: b"file", mode, umask, flags },
    ] {
        of.write(0, 0, b"0123456789").unwrap();
        of.rig.pass(SECOND);
        of.rig.does(1, 11, &request);
        of.write(3, 0, b"3").unwrap();
        assert_eq!(of.read(0, 100), b"\0\0\x003", "{request:?}");
    }
}

#[test]
fn the_server_waits_for_who_has_the_file_and_is_never_asked_for_it() {
    let of = Standard::new();
    let ino = of.ino;
    let fence = of.rig.grant(2, ino, Mode::Write).capability.fence;
    let request = Request::Read { ino, fh: of.fh, offset: 0, len: 9, flags: 0 };
    let slot = of.rig.ask(1, of.rig.file(11, &request));
    let asked = of.rig.recalled(2).unwrap();
    assert_eq!(asked.call, Call::Recall { ino, keep: Some(Mode::Read) });
    let told = Told { size: 7, mtime: None, blocks: None };
    assert_eq!(of.rig.call(2, Call::Publish { ino, fence, told }), Reply::Done);
    answer(&asked, Reply::Done);
    let read = of.rig.at_once(&slot).unwrap();
    assert!(matches!(read, Reply::File { result: 7, .. }), "{read:?}");
    // Its number is no client's.
    assert_eq!(of.rig.call(u64::MAX, Call::Renew), Reply::Failed(Errno::EPERM));
}

#[test]
fn a_node_without_keys_is_told_them() {
    let of = Standard::new();
    of.write(0, 0, b"before").unwrap();
    of.rig.world.state().nodes.values_mut().for_each(|node| node.keys.clear());
    let request = Request::Read { ino: of.ino, fh: of.fh, offset: 0, len: 9, flags: 0 };
    let slot = of.rig.ask(1, of.rig.file(11, &request));
    of.rig.pass(SECOND);
    let read = of.rig.at_once(&slot).unwrap();
    assert!(matches!(read, Reply::File { result: 6, .. }), "{read:?}");
}

#[test]
fn a_handle_allows_what_it_was_opened_for() {
    let of = Standard::new();
    let open = Request::Open { ino: of.ino, flags: 0 };
    let FileReply::Opened(fh) = of.rig.does(1, 11, &open) else { panic!("not opened") };
    let read_only = Standard { fh, ..of };
    assert_eq!(read_only.write(0, 0, b"x"), Err(Errno::EBADF));
    assert_eq!(read_only.read(0, 5), b"");
    let end = Request::Lseek { ino: read_only.ino, fh, offset: 0, whence: seek::DATA };
    let sought = reply(&end, read_only.rig.call(1, read_only.rig.file(11, &end)));
    assert_eq!(sought, Err(Errno::ENXIO), "it is empty");
}

/// The server took the file for each write and gave it back, which costs a sync each, and the
/// clients that leave everything to it wrote at a tenth of the others' rate.
#[test]
fn a_file_that_is_written_again_and_again_is_taken_once() {
    let of = Standard::new();
    of.write(0, 0, b"first").unwrap();
    let fence = of.fence();
    for n in 0..20 {
        of.write(n, 0, b"again").unwrap();
        assert_eq!((of.read(n, 5), of.size()), (b"again".to_vec(), n + 5));
        of.rig.pass(SECOND);
    }
    assert_eq!(of.fence(), fence);
    // Another client need not wait for it, and its turn after that is like the first.
    of.rig.renew(2);
    let grant = of.rig.grant(2, of.ino, Mode::Write);
    assert_eq!(grant.attr.size, 24);
    of.counts([0, 1, 0]);
    let slot = of.begin(0, 0, b"later");
    let asked = of.rig.recalled(2).unwrap();
    assert_eq!(asked.call, Call::Recall { ino: of.ino, keep: None });
    answer(&asked, Reply::Done);
    assert!(of.rig.at_once(&slot).is_some());
    assert!(of.fence() > grant.capability.fence);
}

#[test]
fn a_server_that_dies_with_a_file_of_its_own_finds_out_how_long_it_is() {
    let of = Standard::new();
    of.write(0, 0, b"0123456789").unwrap();
    of.rig.restart(true);
    (1..=2).for_each(|client| of.rig.renew(client));
    of.rig.pass(SECOND * 13);
    of.rig.renew(2);
    assert_eq!(of.rig.grant(2, of.ino, Mode::Write).attr.size, 10);
}

/// It had its turn of the file for as long as a node took to answer, and all others waited.
#[test]
fn a_write_waits_for_no_other_but_appends_come_one_after_the_other() {
    let of = Standard::new();
    of.write(65_530, 0, b"both strips").unwrap();
    // The node of the first strip.
    let waits = |node: &u16| {
        of.is_away(*node, true);
        let slot = of.begin(0, 0, b"first");
        let waits = of.rig.at_once(&slot).is_none();
        if !waits {
            of.is_away(*node, false);
        }
        waits
    };
    let node = (0..NODES).find(waits).unwrap();
    assert_eq!(of.write(65_541, 0, b"beside it"), Ok(FileReply::Written(9)));
    assert_eq!(of.read(65_541, 9), b"beside it");
    of.is_away(node, false);
    of.rig.pass(SECOND);
    assert_eq!((of.read(0, 5), of.size()), (b"first".to_vec(), 65_550));
    let each: Vec<Slot> =
        [b"one", b"two"].iter().map(|text| of.begin(0, write_flags::APPEND, *text)).collect();
    assert!(each.iter().all(|slot| of.rig.at_once(slot).is_some()));
    assert_eq!((of.read(65_550, 9), of.size()), (b"onetwo".to_vec(), 65_556));
}

/// A checker of histories found a read of two halves: a long write went to its strips beside reads,
/// and two long writes side by side left a piece of each.
#[test]
fn a_write_of_two_strips_is_seen_whole_or_not_at_all() {
    let of = Standard::new();
    of.write(65_530, 0, b"both strips").unwrap();
    // The node of the second strip.
    let waits = |node: &u16| {
        of.is_away(*node, true);
        let slot = of.begin(65_536, 0, b"STRIP");
        let waits = of.rig.at_once(&slot).is_none();
        of.is_away(*node, false);
        of.rig.pass(SECOND);
        waits
    };
    let node = (0..NODES).find(waits).unwrap();
    of.is_away(node, true);
    let write = of.begin(65_530, 0, b"BOTH STRIPS");
    let request = Request::Read { ino: of.ino, fh: of.fh, offset: 65_530, len: 6, flags: 0 };
    let read = of.rig.ask(1, of.rig.file(11, &request));
    let other = of.begin(65_530, 0, b"first");
    let answered = |slot| of.rig.at_once(slot).is_some();
    assert!(![&write, &read, &other].into_iter().any(answered), "beside a write of two strips");
    of.is_away(node, false);
    of.rig.pass(SECOND);
    assert!([&write, &read, &other].into_iter().all(answered));
    assert_eq!(of.read(65_530, 11), b"firstSTRIPS"[..].to_vec());
}

/// It was not done at all, and programs that ask for space wrote zeros instead.
#[test]
fn the_server_makes_zeros_and_puts_space_aside() {
    let of = Standard::new();
    of.write(0, 0, b"0123456789").unwrap();
    let fill = |offset, len, mode| {
        let request = Request::Fallocate { ino: of.ino, fh: of.fh, offset, len, mode };
        reply(&request, of.rig.call(1, of.rig.file(11, &request)))
    };
    assert_eq!(fill(8, 20, 0), Ok(FileReply::Empty));
    assert_eq!((of.size(), of.read(8, 99)), (28, [&b"89"[..], &[0; 18]].concat()));
    assert_eq!(fill(2, 3, PUNCH_HOLE | KEEP_SIZE), Ok(FileReply::Empty));
    assert_eq!(fill(30, 9, KEEP_SIZE), Ok(FileReply::Empty));
    assert_eq!((of.size(), of.read(0, 10)), (28, [&b"01"[..], &[0; 3], b"56789"].concat()));
    assert_eq!(fill(0, 1 << 20, 0), Err(Errno::ENOSPC), "before anything");
    assert_eq!((of.size(), fill(0, 0, 0)), (28, Err(Errno::EINVAL)));
    assert_eq!(fill(0, 9, 0x40), Err(Errno::EOPNOTSUPP));
    assert_eq!(fill(u64::MAX, 9, 0), Err(Errno::EFBIG));
}

/// The server was killed between an append and its answer, and the append was sent again: it stood
/// in the file twice. Then such an append counted as done if the file ended with its bytes: of two
/// equal records in a row the second was lost, though it was answered.
#[test]
fn an_append_that_is_sent_again_stands_in_the_file_once() {
    let of = Standard::new();
    of.append(1, b"one", Flags::default());
    // The server died before it had done the second.
    of.append(2, b"one", Flags::REPLAY);
    assert_eq!(of.read(0, 99), b"oneone");
    of.append(2, b"one", Flags::REPLAY);
    assert_eq!((of.size(), of.read(0, 99)), (6, b"oneone".to_vec()));
    of.append(3, b"longer than all", Flags::REPLAY);
    // It died when it had done this one, and had not answered.
    let of = of.after_a_death();
    of.append(3, b"longer than all", Flags::REPLAY);
    of.rig.pass(SECOND * 13);
    (1..=2).for_each(|client| of.rig.renew(client));
    assert_eq!((of.size(), of.read(0, 99)), (21, b"oneonelonger than all".to_vec()));
}

/// A client that gets no answer asks again while the server is still at work: the second time found
/// no record, as the first had not ended, and the bytes were there twice.
#[test]
fn what_is_asked_again_waits_for_the_first_time() {
    let of = Standard::new();
    (0..NODES).for_each(|node| of.is_away(node, true));
    let slots = [Flags::default(), Flags::REPLAY].map(|flags| {
        let (request, call) = of.to_append(1, b"once", flags);
        (request, of.rig.ask(1, call))
    });
    assert!(slots.iter().all(|(_, slot)| of.rig.at_once(slot).is_none()));
    (0..NODES).for_each(|node| of.is_away(node, false));
    of.rig.pass(SECOND);
    for (request, slot) in slots {
        let answered = reply(&request, of.rig.at_once(&slot).unwrap());
        assert_eq!(answered, Ok(FileReply::Written(4)));
    }
    assert_eq!(of.read(0, 99), b"once");
}

/// A write of a host that went to another client would come over what it writes there.
#[test]
fn who_takes_a_session_over_waits_for_a_write_under_way() {
    let of = Standard::new();
    (0..NODES).for_each(|node| of.is_away(node, true));
    let write = of.begin(0, 0, b"old");
    assert!(of.rig.at_once(&write).is_none());
    let back = of.rig.ask(2, Call::Back { session: SessionId(11) });
    assert!(of.rig.at_once(&back).is_none());
    (0..NODES).for_each(|node| of.is_away(node, false));
    of.rig.pass(SECOND);
    assert!(of.rig.at_once(&write).is_some());
    assert_eq!(of.rig.at_once(&back), Some(Reply::Done));
}

/// The server died in an append of several strips. It was sent again, and was done behind those
/// that the nodes had taken: a torn record stayed in the file.
#[test]
fn an_append_that_was_torn_is_done_at_its_first_place() {
    const LONG: usize = 3 * 65_536;
    let of = Standard::new();
    of.append(1, b"before", Flags::default());
    let record: Vec<u8> = (0..LONG).map(|at| at as u8 | 1).collect();
    let first = (0..NODES).find(|node| {
        let state = of.rig.world.state();
        state.nodes[node].objects.get(&of.ino.0).is_some_and(|object| object.end > 0)
    });
    // The second strip and the fourth lie at the other node.
    (0..NODES).filter(|node| Some(*node) != first).for_each(|node| of.is_away(node, true));
    let (_, call) = of.to_append(2, &record, Flags::default());
    assert!(of.rig.at_once(&of.rig.ask(1, call)).is_none());
    assert!(of.rig.world.end(of.ino.0) > 65_536, "some strips are there");
    (0..NODES).for_each(|node| of.is_away(node, false));
    let of = of.after_a_death();
    of.append(2, &record, Flags::REPLAY);
    assert_eq!(of.size(), 6 + LONG as u64);
    assert!(of.read(6, LONG as u32) == record);
    of.append(3, b"after", Flags::default());
    assert_eq!(of.read(6 + LONG as u64, 99), b"after");
}

/// Between a truncation by the server and the hole at the nodes another client was granted the
/// file. What it wrote behind the new end, and was answered, became part of the hole.
#[test]
fn nobody_gets_a_file_between_its_truncation_and_the_hole() {
    let of = Standard::new();
    let ino = of.ino;
    of.rig.renew(3);
    of.write(0, 0, b"0123456789").unwrap();
    of.rig.grant(2, ino, Mode::Write);
    let set = Setattr { size: Some(4), ..Setattr::default() };
    let request = Request::Setattr { ino, fh: of.fh, set };
    let cut = of.rig.ask(1, of.rig.file(11, &request));
    let asked = of.rig.recalled(2).unwrap();
    let wish = of.rig.ask(3, Call::Delegate { ino, mode: Mode::Write });
    assert!(of.rig.at_once(&wish).is_none(), "it is another's turn");
    answer(&asked, Reply::Done);
    assert_eq!(attr(reply(&request, of.rig.at_once(&cut).unwrap()).unwrap()).size, 4);
    let grant = granted(of.rig.at_once(&wish).unwrap());
    assert_eq!(grant.attr.size, 4);
    assert!(of.rig.world.write(&grant.capability, &grant.nodes, 100));
    let (fence, told) =
        (grant.capability.fence, Some(Told { size: 100, mtime: None, blocks: None }));
    let release = Call::Release { ino, fence, told, keep: None };
    assert_eq!(of.rig.call(3, release), Reply::Done);
    assert_eq!((of.rig.world.end(ino.0), of.size()), (100, 100));
    of.counts([0, 0, 0]);
}

/// The layout of an empty file may change: that the server was asked to write to it is no reason.
#[test]
fn a_file_of_the_server_s_own_is_nobody_s_when_it_is_laid_out_anew() {
    let of = Standard::new();
    of.write(0, 0, b"0123456789").unwrap();
    let set = Setattr { size: Some(0), ..Setattr::default() };
    of.rig.does(1, 11, &Request::Setattr { ino: of.ino, fh: of.fh, set });
    of.counts([0, 1, 0]);
    let Reply::Layout(layout) = of.rig.call(1, Call::Layout { ino: of.ino }) else {
        panic!("no layout")
    };
    let layout = Layout { width: 1, ..layout };
    let call = Call::SetLayout { asker: asker(11), ino: of.ino, layout };
    assert_eq!(of.rig.call(1, call), Reply::Done);
    of.write(65_536, 0, b"x").unwrap();
    assert_eq!(of.read(65_536, 2), b"x");
    of.rig.does(1, 11, &Request::Unlink { parent: Ino::ROOT, name: b"file" });
    of.rig.call(1, Call::Detach { session: SessionId(11) });
    of.rig.pass(SECOND * 3);
    assert_eq!(of.rig.world.end(of.ino.0), 0, "its objects are purged");
    of.counts([0, 0, 0]);
}

/// A node that joined had a file from before it was drained, longer and with other bytes: where the
/// file had a hole these were there again, and the file had its old end. And what was deleted while
/// it was away stayed there for ever.
#[test]
fn what_a_node_had_before_it_joined_is_gone() {
    let of = Standard::new();
    let len = 200_000;
    assert_eq!(of.write(0, 0, &vec![1; len]), Ok(FileReply::Written(len as u32)));
    let (object, deleted) = (of.ino.0, 77_777);
    let has = |node: u16| of.rig.world.state().nodes[&node].objects.contains_key(&object);
    let (holders, others): (Vec<u16>, Vec<u16>) = (0..NODES).partition(|node| has(*node));
    let (&[leaver, _], &[joiner]) = (&holders[..], &others[..]) else { panic!("{holders:?}") };
    {
        let mut state = of.rig.world.state();
        let node = state.nodes.get_mut(&joiner).unwrap();
        node.objects.insert(object, Object { object, end: 900_000, fence: 0, bytes: 900_000 });
        node.bytes.insert(object, vec![7; 900_000]);
        node.objects.insert(deleted, Object { object: deleted, end: 1, fence: 0, bytes: 1 });
    }
    let place = Call::Place { joins: Vec::new(), leaves: vec![leaver], rate: 0 };
    let Reply::Text(said) = of.rig.call(1, place) else { panic!("no answer") };
    assert_eq!(said, "{\"map\":1}");
    for _ in 0..12 {
        (1..=2).for_each(|client| of.rig.renew(client));
        of.rig.pass(SECOND * 3);
        for client in 1..=2 {
            while let Some(asked) = of.rig.asked(client) {
                answer(&asked, Reply::Done);
            }
        }
    }
    let status = of.rig.server().status();
    assert!(status.contains("\"moving\":false"), "{status}");
    assert!(!has(leaver) && has(joiner));
    {
        let state = of.rig.world.state();
        let node = &state.nodes[&joiner];
        assert!(!node.objects.contains_key(&deleted));
        assert!(!node.bytes[&object].contains(&7) && node.bytes[&object].contains(&1));
        assert!(node.objects[&object].end <= len as u64);
    }
    assert_eq!((of.size(), of.read(0, 900_000)), (len as u64, vec![1; len]));
}

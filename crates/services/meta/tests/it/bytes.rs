//! Bytes that the server reads and writes for clients that leave everything to it.

use std::time::Duration;

use outboard_base::{Errno, Fh, Ino, SessionId};
use outboard_wire::file::{
    Header, Reply as FileReply, Request, Setattr, open_flags, seek, write_flags,
};
use outboard_wire::shared::call::{Call, Mode, Reply, Told};

use crate::world::{Rig, answer, asker, attr, reply};

const SECOND: Duration = Duration::from_secs(1);

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

    fn write(&self, offset: u64, flags: u32, data: &[u8]) -> Result<FileReply, Errno> {
        let request = Request::Write { ino: self.ino, fh: self.fh, offset, flags };
        let header = Header { session: SessionId(11), ..Header::default() };
        let mut bytes = vec![0; request.encoded_len(&header)];
        request.encode(&header, &mut bytes).unwrap();
        let payload = data.to_vec();
        let call = Call::File { asker: asker(11), request: bytes, payload };
        reply(&request, self.rig.call(1, call))
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
fn what_is_written_is_read_and_nothing_is_held_afterwards() {
    let of = Standard::new();
    assert_eq!(of.read(0, 10), b"");
    assert_eq!(of.write(65_530, 0, b"over a border"), Ok(FileReply::Written(13)));
    assert_eq!(
        of.write(0, write_flags::APPEND | write_flags::DSYNC, b"!"),
        Ok(FileReply::Written(1))
    );
    assert_eq!((of.size(), of.read(65_535, 100)), (65_544, b"a border!".to_vec()));
    assert_eq!(of.rig.world.end(of.ino.0), 65_544);
    let status = of.rig.server().status();
    assert!(status.contains("\"read\":0,\"write\":0,\"unresolved\":0"), "{status}");
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

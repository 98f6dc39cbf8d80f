//! The link: what is refused at its beginning, what travels over it, and at what price.

use outboard_base::{Errno, Ino};
use outboard_dpc::host::LossPolicy;
use outboard_wire::attach::{Hello, Message, Reason, RingsHello, VERSION};
use outboard_wire::file::{Reply, Request};
use serde_json::Value;

use crate::rig::{PATIENCE, Volume, call, connect, create, pattern, read, said_to, write};

/// Two programs of different versions must say so, and not that one of them talks nonsense.
#[test]
fn a_host_of_another_version_is_told_so() {
    let volume = Volume::new();
    let (_host, _) = connect(&volume, LossPolicy::Wait);
    let detach = Message::Detach.emit();
    let mut other = detach.clone();
    other[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let Message::Refused { reason, text } = said_to(&volume.socket(), &other) else { panic!() };
    assert_eq!(reason, Reason::Version);
    assert!(text.contains(&format!("version {}", VERSION + 1)), "{text}");
    let mut nonsense = detach;
    nonsense[0] ^= 1;
    let Message::Refused { reason, .. } = said_to(&volume.socket(), &nonsense) else { panic!() };
    assert_eq!(reason, Reason::Malformed);
}

/// What a host asks for in a role this side does not have, or that nobody speaks, is refused, and
/// the reason says which.
#[test]
fn a_role_that_is_not_a_volumes_is_refused_with_a_reason() {
    let volume = Volume::new();
    let (_host, _) = connect(&volume, LossPolicy::Wait);
    let (align, requests, responses) = (512, 4096, 4096);
    let rings = RingsHello { region_len: 1 << 20, groups: 2, align, requests, responses };
    let rings = Message::Hello(Hello::Rings(rings)).emit();
    let with = |at: usize, value: u8| {
        let mut bytes = rings.clone();
        bytes[at] = value;
        bytes
    };
    for (bytes, refused, says) in [
        (rings.clone(), Reason::Role, "serves a volume"),
        (with(12, 3), Reason::Role, "reserved"),
        (with(12, 77), Reason::Role, "unknown role 77"),
        (with(14, 9), Reason::Version, "version 9"),
    ] {
        let Message::Refused { reason, text } = said_to(&volume.socket(), &bytes) else { panic!() };
        assert_eq!(reason, refused, "{text}");
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn files_travel_over_the_link() {
    let volume = Volume::new();
    let (host, _) = connect(&volume, LossPolicy::Wait);
    let mut port = host.session().calling_port(0).unwrap();
    assert!(host.session().calling_port(0).is_none(), "each queue has one port");
    assert_eq!(call(&mut port, &Request::Noop, &[]), Ok(Reply::Empty));
    let file = create(&mut port, "file", 0);
    for (number, len) in [1, 4095, 8192, 8193, 100_000, 1 << 20].into_iter().enumerate() {
        let data = pattern(number as u64, len);
        write(&mut port, file, 0, &data);
        assert!(read(&mut port, file, 0, len) == data, "{len} bytes");
    }
    let fsync = Request::Fsync { ino: file.0, fh: file.1, data_only: false };
    assert_eq!(call(&mut port, &fsync, &[]), Ok(Reply::Empty));
    let missing = Request::Lookup { parent: Ino::ROOT, name: b"missing" };
    assert_eq!(call(&mut port, &missing, &[]), Err(Errno::ENOENT));
    let status = volume.status();
    assert_eq!(status["pid"], volume.pid());
    assert_eq!(status["attachments"][0]["pid"], std::process::id());
    assert!(status["ops"]["write"]["count"].as_u64().unwrap() >= 6, "{status:#}");
    volume.assert_clean();
    drop(port);
    host.detach(PATIENCE).unwrap();
    assert_eq!(volume.status()["attachments"].as_array().unwrap().len(), 0);
}

#[test]
fn an_aligned_8_kib_write_costs_four_dmas() {
    let volume = Volume::new();
    let (host, _) = connect(&volume, LossPolicy::Wait);
    let mut port = host.session().calling_port(0).unwrap();
    let file = create(&mut port, "file", 0);
    write(&mut port, file, 0, &pattern(1, 8192));
    let total = |status: &Value| -> u64 {
        let dma = status["ledger"]["dma"].as_object().unwrap();
        dma.values().map(|kind| kind["operations"].as_u64().unwrap()).sum()
    };
    let before = total(&volume.status());
    for number in 0..10 {
        write(&mut port, file, 0, &pattern(number, 8192));
    }
    assert_eq!(total(&volume.status()) - before, 40);
}

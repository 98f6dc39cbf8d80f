//! A client that cannot reach the server for longer than its lease, and what it finds after.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outboard_base::{Errno, Fh, Ino};
use outboard_volume::{Housekeeping, Volume};
use outboard_wire::file::{Reply as FileReply, Request, Setattr, open_flags, write_flags};
use outboard_wire::shared::Peer;

use crate::host::Host;
use crate::world::{Rig, SERVER, seeds, start};

fn two() -> (Rig, Host, Host) {
    let mut rig = Rig::new(3);
    let (one, other) = (Host::new(&mut rig, 1), Host::new(&mut rig, 2));
    (rig, one, other)
}

/// What was acknowledged before the cut is there; the other client gets the file once the lease is
/// over; and who was cut off sees what the other wrote, and not what it kept.
#[test]
fn who_is_cut_off_loses_the_file_and_nothing_that_was_acknowledged() {
    let (mut rig, one, other) = two();
    let host = one.clone();
    let file = rig.wait(one.peer(), async move {
        let (attr, fh) = host.open(b"f", 0).await.unwrap();
        host.write((attr.ino, fh), 0, 0, vec![1; 100_000]).await.unwrap();
        (attr.ino, fh)
    });
    rig.cut(one.peer(), true);
    let (host, begun) = (other.clone(), rig.world.time());
    let seen = rig.wait(other.peer(), async move {
        let (attr, fh) = host.open(b"f", 0).await.unwrap();
        let seen = host.read((attr.ino, fh), 0, 200_000).await.unwrap();
        host.write((attr.ino, fh), 50_000, 0, vec![2; 100_000]).await.unwrap();
        seen
    });
    assert!(seen == vec![1; 100_000], "{}", seen.len());
    assert!(rig.world.time().since(begun) > Duration::from_secs(8), "not before the lease is over");
    // It waits, and does not fail.
    let host = one.clone();
    let read = start(one.peer(), async move { host.read(file, 40_000, 200_000).await });
    rig.pass(Duration::from_secs(20));
    assert!(read.lock().unwrap().is_none(), "nothing is read without a lease");
    rig.cut(one.peer(), false);
    let read = rig.until(&read).unwrap();
    assert!(read[..10_000] == [1; 10_000] && read[10_000..] == [2; 100_000]);
    assert!(!one.client.server_changed());
}

/// Pages that a host wrote under a delegation that was lost do not come over what others wrote:
/// the cache is told to drop them, and the next sync says so, once.
#[test]
fn pages_of_a_lost_delegation_are_not_written_back() {
    let (mut rig, one, other) = two();
    rig.pages = Some(Box::new(|_, _, _| {}));
    let host = one.clone();
    let (ino, fh) = rig.wait(one.peer(), async move {
        let (attr, fh) = host.open(b"f", 0).await.unwrap();
        let ino = attr.ino;
        host.write((ino, fh), 0, 0, vec![1; 10_000]).await.unwrap();
        assert!(host.client.holds(ino));
        assert_eq!(host.client.cacheable(ino).await.unwrap().0.size, 10_000);
        let runs: [(u64, &[u8]); 1] = [(0, &[7; 4096])];
        host.client.write_back(host.session, ino, &runs, None).await.unwrap();
        (ino, fh)
    });
    rig.cut(one.peer(), true);
    let host = other.clone();
    rig.wait(other.peer(), async move {
        let (attr, fh) = host.open(b"f", 0).await.unwrap();
        host.write((attr.ino, fh), 0, 0, vec![2; 10_000]).await.unwrap();
    });
    rig.cut(one.peer(), false);
    rig.pass(Duration::from_secs(3));
    let host = one.clone();
    rig.wait(one.peer(), async move {
        let runs: [(u64, &[u8]); 1] = [(4096, &[7; 4096])];
        let back = || host.client.write_back(host.session, ino, &runs, None);
        assert_eq!(back().await, Err(Errno::ESTALE));
        assert!(!host.client.cacheable(ino).await.unwrap().1, "what is old is not given up yet");
        assert_eq!(back().await, Err(Errno::ESTALE), "whatever is held now");
        host.client.recalled(ino, false);
        let sync = || host.plain(Request::Fsync { ino, fh, data_only: false });
        assert_eq!(sync().await.map(|_| ()), Err(Errno::EIO));
        assert_eq!(sync().await.map(|_| ()), Ok(()));
        assert!(host.read((ino, fh), 0, 10_000).await.unwrap() == vec![2; 10_000]);
    });
}

/// What nobody used is given back, and the server hears of that late. (The client took it for kept
/// after a second, and went on with it: what it wrote once the server had heard was nobody's, so a
/// file was as long as before although it had been written, and synced.)
#[test]
fn what_is_given_back_is_not_used_whenever_the_server_hears_of_it() {
    for pause in [29, 30, 31, 32, 33, 35] {
        let (mut rig, one, other) = two();
        let host = one.clone();
        let (ino, fh) = rig.wait(one.peer(), async move {
            let (attr, fh) = host.open(b"f", 0).await.unwrap();
            host.write((attr.ino, fh), 0, 0, vec![1; 1000]).await.unwrap();
            host.plain(Request::Fsync { ino: attr.ino, fh, data_only: false }).await.unwrap();
            (attr.ino, fh)
        });
        rig.returns_late(Duration::from_secs(3));
        rig.pass(Duration::from_secs(pause));
        let host = one.clone();
        rig.wait(one.peer(), async move {
            host.write((ino, fh), 1000, 0, vec![2; 100_000]).await.unwrap();
        });
        rig.pass(Duration::from_secs(5));
        let host = one.clone();
        rig.wait(one.peer(), async move {
            host.write((ino, fh), 101_000, 0, vec![3; 1000]).await.unwrap();
            host.plain(Request::Fsync { ino, fh, data_only: false }).await.unwrap();
        });
        let host = other.clone();
        let size = rig.wait(other.peer(), async move { host.size(ino).await });
        assert_eq!(size, Ok(102_000), "after {pause} s");
    }
}

/// A file of a thousand bytes, of which the server was not told.
fn written(rig: &mut Rig, host: &Host) -> (Ino, Fh) {
    let (peer, host) = (host.peer(), host.clone());
    rig.wait(peer, async move {
        let (attr, fh) = host.open(b"f", 0).await.unwrap();
        host.write((attr.ino, fh), 0, 0, vec![1; 1000]).await.unwrap();
        (attr.ino, fh)
    })
}

/// A file is cut by its name while another client asks for it. What was written before, and was not
/// told yet, is told when the file is recalled, and the cut may be done by then, unknown here.
#[test]
fn what_was_written_before_a_cut_is_not_told_over_it() {
    for seed in seeds(300) {
        let mut rig = Rig::new(seed);
        let (one, other) = (Host::new(&mut rig, 1), Host::new(&mut rig, 2));
        let (ino, fh) = written(&mut rig, &one);
        rig.faults(if seed % 3 == 0 { 0 } else { 200 }, 0);
        let host = one.clone();
        let cut = start(one.peer(), async move { host.open_once(b"f", open_flags::TRUNC).await });
        rig.pass(Duration::from_micros(rig.world.below(4000)));
        let host = other.clone();
        let looks = start(other.peer(), async move { host.size(ino).await });
        rig.until(&cut).unwrap();
        rig.until(&looks).unwrap();
        rig.faults(0, 0);
        for host in [&one, &other] {
            let (host, peer) = (host.clone(), host.peer());
            let size = rig.wait(peer, async move { host.size(ino).await });
            assert_eq!(size, Ok(0), "seed {seed}, as {peer:?} sees it");
        }
        let host = one.clone();
        rig.wait(one.peer(), async move { host.write((ino, fh), 0, 0, vec![2; 10]).await })
            .unwrap();
    }
}

/// A file is cut by its name by who has it to write, while another asks to write it: the cut may be
/// done when the file is the other's, and the hole that belongs to it is not to go over his bytes.
#[test]
fn a_cut_does_not_go_over_what_another_has_written_since() {
    const AT: u64 = 200_000;
    for seed in seeds(300) {
        let mut rig = Rig::new(seed);
        let (one, other) = (Host::new(&mut rig, 1), Host::new(&mut rig, 2));
        let (ino, fh) = written(&mut rig, &one);
        let host = other.clone();
        let g = rig.wait(other.peer(), async move { host.open(b"f", 0).await.unwrap() });
        rig.faults(if seed % 3 == 0 { 0 } else { 200 }, 0);
        let host = one.clone();
        rig.pass(Duration::from_micros(rig.world.below(4000)));
        let cut = start(one.peer(), async move { host.open_once(b"f", open_flags::TRUNC).await });
        rig.pass(Duration::from_micros(rig.world.below(4000)));
        let host = other.clone();
        let writes = start(other.peer(), async move {
            let g = (g.0.ino, g.1);
            host.write(g, AT, 0, vec![3; 10]).await.unwrap();
            host.plain(Request::Fsync { ino: g.0, fh: g.1, data_only: false }).await.unwrap();
        });
        rig.until(&cut).unwrap();
        rig.until(&writes);
        rig.faults(0, 0);
        rig.wait(one.peer(), async move {
            let size = one.size(ino).await.unwrap();
            let read = one.read((ino, fh), 0, AT as u32 + 10).await.unwrap();
            assert!([0, AT + 10].contains(&size), "seed {seed}: {size}");
            let (before, behind) = read.split_at(read.len().min(AT as usize));
            assert!(before.iter().all(|byte| *byte == 0), "seed {seed}: what was cut is there");
            assert!(behind.iter().all(|byte| *byte == 3), "seed {seed}: what was synced is gone");
        });
    }
}

/// What others did with a file before the next life of a side wrote back.
#[derive(Clone, Copy, PartialEq)]
enum Others {
    Nothing,
    Read,
    Write,
}

/// Pages of an earlier life: written back if nobody had the file since, else not. (They came back
/// after others had read what was there before, as only writes were looked for.)
#[test]
fn pages_of_an_earlier_life_come_back_if_nobody_had_the_file_since() {
    for others in [Others::Nothing, Others::Read, Others::Write] {
        let (mut rig, one, other) = two();
        let host = one.clone();
        let (ino, wrote) = rig.wait(one.peer(), async move {
            let (attr, fh) = host.open(b"f", 0).await.unwrap();
            host.write((attr.ino, fh), 0, 0, vec![1; 10_000]).await.unwrap();
            host.plain(Request::Fsync { ino: attr.ino, fh, data_only: false }).await.unwrap();
            (attr.ino, host.world.wall())
        });
        rig.pass(Duration::from_millis(1200));
        rig.kill(1);
        let next = Host::new(&mut rig, 1);
        if others != Others::Nothing {
            let (host, begun) = (other.clone(), rig.world.time());
            rig.wait(other.peer(), async move {
                let (attr, fh) = host.open(b"f", 0).await.unwrap();
                let file = (attr.ino, fh);
                assert_eq!(host.read(file, 0, 1).await.unwrap(), [1]);
                if others == Others::Write {
                    host.write(file, 0, 0, vec![2; 10_000]).await.unwrap();
                }
            });
            let waited = rig.world.time().since(begun);
            assert!(waited > Duration::from_secs(8), "it had the time to write back: {waited:?}");
        }
        let host = next.clone();
        let (back, bytes) = rig.wait(next.peer(), async move {
            let runs: [(u64, &[u8]); 1] = [(0, &[7; 4096])];
            let back = host.client.write_back(host.session, ino, &runs, Some(wrote)).await;
            let (_, fh) = host.open(b"f", 0).await.unwrap();
            let sync = host.plain(Request::Fsync { ino, fh, data_only: false }).await;
            assert_eq!(sync.err(), back.err().map(|_| Errno::EIO));
            (back, host.read((ino, fh), 0, 1).await.unwrap())
        });
        let expected = match others {
            Others::Nothing => (Ok(()), [7]),
            Others::Read => (Err(Errno::ESTALE), [1]),
            Others::Write => (Err(Errno::ESTALE), [2]),
        };
        assert_eq!((back, &bytes[..]), (expected.0, &expected.1[..]));
    }
}

/// A session that is back waits until the server has heard so, and not for a beat. (Each process
/// that used a volume past the kernel waited for up to a second as it began.)
#[test]
fn a_session_that_is_back_waits_for_no_beat() {
    let (mut rig, one, _) = two();
    rig.pass(Duration::from_millis(300));
    let (host, begun) = (one.clone(), rig.world.time());
    rig.wait(one.peer(), async move {
        host.client.is_back(host.session);
        host.open(b"f", 0).await.unwrap();
    });
    let waited = rig.world.time().since(begun);
    assert!(waited < Duration::from_millis(200), "{waited:?}");
}

/// A full node: the program hears so, and what was taken of the write does not show later.
#[test]
fn what_did_not_fit_does_not_show_when_the_file_grows() {
    let (mut rig, one, _) = two();
    let host = one.clone();
    let file = rig.wait(one.peer(), async move {
        let (attr, fh) = host.open(b"f", 0).await.unwrap();
        host.write((attr.ino, fh), 0, 0, vec![1; 1000]).await.unwrap();
        (attr.ino, fh)
    });
    rig.full(true);
    let host = one.clone();
    let write = async move { host.write(file, 1000, 0, vec![9; 300_000]).await };
    assert_eq!(rig.wait(one.peer(), write), Err(Errno::ENOSPC));
    rig.full(false);
    let host = one.clone();
    let read = rig.wait(one.peer(), async move {
        assert_eq!(host.size(file.0).await, Ok(1000));
        let set = Setattr { size: Some(2000), ..Setattr::default() };
        host.plain(Request::Setattr { ino: file.0, fh: file.1, set }).await.unwrap();
        host.read(file, 0, 5000).await.unwrap()
    });
    assert!(read[..1000] == [1; 1000] && read[1000..] == [0; 1000]);
}

/// The conformance suite found it: a client that held a file to write knew from then whether writes
/// take set-id bits away, and did not hear of those that were set since.
#[test]
fn set_id_bits_that_are_set_under_a_delegation_are_taken_away_by_the_next_write() {
    let (mut rig, one, _) = two();
    let host = one.clone();
    let modes = rig.wait(one.peer(), async move {
        let (attr, fh) = host.open(b"f", 0).await.unwrap();
        let file = (attr.ino, fh);
        host.write(file, 0, 0, vec![1; 10]).await.unwrap();
        let set = Setattr { mode: Some(0o6755), ..Setattr::default() };
        host.plain(Request::Setattr { ino: attr.ino, fh, set }).await.unwrap();
        let mut modes = Vec::new();
        for flags in [0, write_flags::KILL_SUIDGID] {
            host.write(file, 0, flags, vec![2; 10]).await.unwrap();
            match host.plain(Request::Getattr { ino: attr.ino, fh }).await.unwrap().reply {
                FileReply::Attr(attr) => modes.push(attr.mode & 0o7777),
                other => panic!("{other:?}"),
            }
        }
        modes
    });
    assert_eq!(modes, [0o6755, 0o755], "root keeps them, unless the kernel says otherwise");
}

/// Who unmounts asks for figures: it is answered though the server is gone for long.
#[test]
fn figures_are_answered_without_a_server() {
    let (mut rig, one, _) = two();
    let statfs = |host: Host| async move {
        match host.plain(Request::Statfs { ino: Ino::ROOT }).await.unwrap().reply {
            FileReply::Statfs(figures) => figures,
            other => panic!("{other:?}"),
        }
    };
    rig.pass(Duration::from_secs(3));
    let before = rig.wait(one.peer(), statfs(one.clone()));
    assert!(before.blocks_free > 0 && before.blocks > before.blocks_free);
    rig.cut(SERVER, true);
    rig.pass(Duration::from_secs(15));
    let begun = rig.world.time();
    assert_eq!(rig.wait(one.peer(), statfs(one.clone())), before);
    assert!(rig.world.time().since(begun) < Duration::from_secs(1));
}

/// An orderly end gives everything back: the next client need not wait.
#[test]
fn after_a_sync_nobody_waits_for_who_is_gone() {
    let (mut rig, one, other) = two();
    let host = one.clone();
    rig.wait(one.peer(), async move {
        let (attr, fh) = host.open(b"f", open_flags::APPEND).await.unwrap();
        host.write((attr.ino, fh), 0, 0, vec![1; 100_000]).await.unwrap();
        host.client.sync().await.unwrap();
    });
    rig.kill(1);
    let (host, begun) = (other.clone(), rig.world.time());
    rig.wait(other.peer(), async move {
        let (attr, fh) = host.open(b"f", 0).await.unwrap();
        assert_eq!(attr.size, 100_000);
        host.write((attr.ino, fh), 0, 0, vec![2; 10]).await.unwrap();
    });
    assert!(rig.world.time().since(begun) < Duration::from_secs(1));
}

/// A node that is away makes programs wait; nothing fails, and nothing is done twice.
#[test]
fn a_node_that_is_away_is_waited_for() {
    let (mut rig, one, _) = two();
    let host = one.clone();
    let file = rig.wait(one.peer(), async move {
        let (attr, fh) = host.open(b"f", 0).await.unwrap();
        (attr.ino, fh)
    });
    (0..3).for_each(|node| rig.cut(Peer::Node(node), true));
    let host = one.clone();
    let write: Arc<Mutex<Option<_>>> =
        start(one.peer(), async move { host.write(file, 0, 0, vec![5; 200_000]).await });
    rig.pass(Duration::from_secs(60));
    assert!(write.lock().unwrap().is_none());
    (0..3).for_each(|node| rig.cut(Peer::Node(node), false));
    assert_eq!(rig.until(&write), Ok(200_000));
    assert_eq!(rig.ends(file.0.0), 200_000);
}

/// How long hosts may use what they have cached: not after the lease, and not after a lapse of it
/// until what is from before is given up.
#[test]
fn hosts_use_what_is_cached_for_as_long_as_the_lease_it_was_granted_in() {
    let (mut rig, one, _) = two();
    rig.pages = Some(Box::new(|_, _, _| {}));
    let host = one.clone();
    let ino = rig.wait(one.peer(), async move {
        let (attr, fh) = host.open(b"f", 0).await.unwrap();
        host.write((attr.ino, fh), 0, 0, vec![1; 10_000]).await.unwrap();
        assert!(host.client.cacheable(attr.ino).await.unwrap().1);
        attr.ino
    });
    let left = || one.client.lease_left().unwrap();
    rig.pass(Duration::from_secs(20));
    assert!(left() > Duration::from_secs(7) && left() <= Duration::from_secs(9));
    rig.cut(one.peer(), true);
    rig.pass(Duration::from_secs(5));
    assert!(left() < Duration::from_secs(5) && !left().is_zero());
    rig.pass(Duration::from_secs(6));
    assert!(left().is_zero());
    rig.cut(one.peer(), false);
    rig.pass(Duration::from_secs(3));
    assert!(left().is_zero(), "the lease goes on, and the pages are from before");
    one.client.recalled(ino, false);
    assert!(left() > Duration::from_secs(7));
}

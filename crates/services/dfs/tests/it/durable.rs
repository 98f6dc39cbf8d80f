//! What is durable, and what is whole: syncs after a node lost power, truncations and writes whose
//! client dies in the middle of them.

use std::time::Duration;

use outboard_base::{Errno, Fh, Ino, Result};
use outboard_wire::file::{Reply as FileReply, Request, Setattr, open_flags};

use crate::host::Host;
use crate::world::{Rig, SERVER, seeds, start};

const STRIP: usize = 65536;

async fn sync(host: &Host, (ino, fh): (Ino, Fh)) -> Result<()> {
    host.plain(Request::Fsync { ino, fh, data_only: false }).await.map(drop)
}

async fn sync_data(host: &Host, (ino, fh): (Ino, Fh)) -> Result<()> {
    host.plain(Request::Fsync { ino, fh, data_only: true }).await.map(drop)
}

async fn file(host: &Host) -> (Ino, Fh) {
    let (attr, fh) = host.open(b"f", 0).await.unwrap();
    (attr.ino, fh)
}

/// A node lost power after it had acknowledged a write, came back, and answered the sync: the write
/// was gone, and the program had heard that it was durable.
#[test]
fn a_sync_fails_once_after_a_node_lost_what_was_not_synced() {
    let mut rig = Rig::new(5);
    let one = Host::new(&mut rig, 1);
    let host = one.clone();
    let other = Host::new(&mut rig, 2);
    let (f, g) = rig.wait(one.peer(), async move {
        let f = file(&host).await;
        let (attr, fh) = host.open(b"g", 0).await.unwrap();
        let g = (attr.ino, fh);
        host.write(f, 0, 0, vec![1; 3 * STRIP]).await.unwrap();
        host.write(g, 0, 0, vec![1; 3 * STRIP]).await.unwrap();
        sync(&host, f).await.unwrap();
        host.write(g, 0, 0, vec![2; 10]).await.unwrap();
        (f, g)
    });
    rig.power_fails();
    let host = one.clone();
    rig.wait(one.peer(), async move {
        assert_eq!(sync(&host, f).await, Ok(()), "it was synced before");
        assert_eq!(host.plain(Request::Syncfs).await.map(drop), Err(Errno::EIO));
        assert_eq!(host.plain(Request::Syncfs).await.map(drop), Ok(()));
        assert_eq!(sync(&host, g).await, Err(Errno::EIO));
        assert_eq!(sync(&host, g).await, Ok(()), "it was said");
        host.write(g, 0, 0, vec![2; 10]).await.unwrap();
        assert_eq!(sync(&host, g).await, Ok(()), "it was written again");
        host.write(f, 0, 0, vec![2; 10]).await.unwrap();
    });
    // What another host has seen is durable: whoever syncs it says the truth.
    let host = other.clone();
    rig.wait(other.peer(), async move {
        let f = file(&host).await;
        assert_eq!(host.read(f, 0, 10).await.unwrap(), [2; 10]);
    });
    rig.power_fails();
    rig.wait(one.peer(), async move {
        assert_eq!(sync(&one, f).await, Ok(()));
        assert_eq!(one.read(f, 0, 10).await.unwrap(), [2; 10]);
    });
}

/// Each `fdatasync`, and each write with `O_DSYNC`, asked the server, which had made durable before
/// all that is needed to read the file back: three quarters of its time a client waited for that.
#[test]
fn a_sync_of_data_asks_the_server_only_for_what_it_lacks() {
    let mut rig = Rig::new(6);
    let one = Host::new(&mut rig, 1);
    let host = one.clone();
    let f = rig.wait(one.peer(), async move {
        let f = file(&host).await;
        host.write(f, 0, 0, vec![1; STRIP]).await.unwrap();
        sync_data(&host, f).await.unwrap();
        f
    });
    rig.cut(SERVER, true);
    let host = one.clone();
    rig.wait(one.peer(), async move {
        host.write(f, 10, 0, vec![2; 10]).await.unwrap();
        assert_eq!(sync_data(&host, f).await, Ok(()));
    });
    rig.power_fails();
    let host = one.clone();
    rig.wait(one.peer(), async move {
        assert_eq!(sync_data(&host, f).await, Ok(()), "it was synced");
        host.write(f, 10, 0, vec![3; 10]).await.unwrap();
    });
    rig.power_fails();
    let host = one.clone();
    rig.wait(one.peer(), async move {
        assert_eq!(sync_data(&host, f).await, Err(Errno::EIO), "a node lost it");
        assert_eq!(sync_data(&host, f).await, Ok(()), "it was said");
    });
    rig.cut(SERVER, false);
    // Longer; and as long as it was, after it was shorter.
    let (ino, fh) = f;
    for is_cut in [false, true] {
        let host = one.clone();
        rig.wait(one.peer(), async move {
            let set = Setattr { size: Some(10), ..Setattr::default() };
            let size = host.size(ino).await.unwrap();
            if is_cut {
                host.plain(Request::Setattr { ino, fh, set }).await.unwrap();
            }
            let end = if is_cut { size } else { size + 10 };
            host.write(f, end - 10, 0, vec![4; 10]).await.unwrap();
        });
        rig.cut(SERVER, true);
        let host = one.clone();
        let slot = start(one.peer(), async move { sync_data(&host, f).await });
        rig.pass(Duration::from_secs(1));
        assert!(slot.lock().unwrap().is_none(), "its end is not durable: {is_cut}");
        rig.cut(SERVER, false);
        assert_eq!(rig.until(&slot), Ok(()));
    }
}

/// Each of several that synced at once had each node flush for itself.
#[test]
fn who_syncs_at_once_shares_flushes() {
    const FILES: usize = 8;
    let mut rig = Rig::new(7);
    let one = Host::new(&mut rig, 1);
    let host = one.clone();
    let files = rig.wait(one.peer(), async move {
        let mut files = Vec::new();
        for number in 0..FILES {
            let (attr, fh) = host.open(&[b'a' + number as u8], 0).await.unwrap();
            let f = (attr.ino, fh);
            host.write(f, 0, 0, vec![1; 3 * STRIP]).await.unwrap();
            sync_data(&host, f).await.unwrap();
            host.write(f, 0, 0, vec![2; 3 * STRIP]).await.unwrap();
            files.push(f);
        }
        files
    });
    let (before, nodes) = (rig.flushes(), 3);
    let all = files.iter().map(|f| (one.clone(), *f));
    let sync = |(host, f): (Host, _)| start(one.peer(), async move { sync_data(&host, f).await });
    let syncs: Vec<_> = all.map(sync).collect();
    syncs.iter().for_each(|slot| assert_eq!(rig.until(slot), Ok(())));
    // Who came first, and all who came while its flush was under way.
    let asked = rig.flushes() - before;
    assert!((nodes..=2 * nodes).contains(&asked), "{asked}");
    rig.power_fails();
    rig.wait(one.peer(), async move {
        for f in files {
            assert_eq!(sync_data(&one, f).await, Ok(()));
            assert_eq!(one.read(f, 0, 3 * STRIP as u32).await.unwrap(), vec![2; 3 * STRIP]);
        }
    });
}

/// Writes that are acknowledged while a flush is under way are the next one's.
#[test]
fn what_is_written_while_a_flush_is_under_way_is_flushed_by_the_next() {
    for seed in seeds(60) {
        let mut rig = Rig::new(seed);
        let one = Host::new(&mut rig, 1);
        let host = one.clone();
        let files = rig.wait(one.peer(), async move {
            let mut files = Vec::new();
            for number in 0..6 {
                let (attr, fh) = host.open(&[b'a' + number], 0).await.unwrap();
                host.write((attr.ino, fh), 0, 0, vec![1; STRIP]).await.unwrap();
                sync_data(&host, (attr.ino, fh)).await.unwrap();
                files.push((attr.ino, fh));
            }
            files
        });
        let writes = |f| {
            let host = one.clone();
            start(one.peer(), async move {
                for round in 2..6 {
                    host.write(f, 0, 0, vec![round; STRIP]).await.unwrap();
                    sync_data(&host, f).await.unwrap();
                }
            })
        };
        let all: Vec<_> = files.iter().copied().map(writes).collect();
        all.iter().for_each(|slot| rig.until(slot));
        rig.power_fails();
        rig.wait(one.peer(), async move {
            for f in files {
                assert_eq!(sync_data(&one, f).await, Ok(()), "seed {seed}: it was synced");
            }
        });
    }
}

/// The server had recorded the size, its client died before the nodes had cut the file, and who
/// resolved it took their end for its size: a truncation that was answered after the client's
/// return had not happened.
#[test]
fn a_truncation_whose_client_dies_is_carried_out() {
    for opens in [false, true] {
        let mut rig = Rig::new(6);
        let (one, other) = (Host::new(&mut rig, 1), Host::new(&mut rig, 2));
        let host = one.clone();
        let (ino, fh) = rig.wait(one.peer(), async move {
            let f = file(&host).await;
            host.write(f, 0, 0, vec![1; 3 * STRIP]).await.unwrap();
            sync(&host, f).await.unwrap();
            f
        });
        rig.faults(0, 1000);
        let host = one.clone();
        let cuts = start(one.peer(), async move {
            let set = Setattr { size: Some(0), ..Setattr::default() };
            let cut = Request::Setattr { ino, fh, set };
            let open = Request::Open { ino, flags: open_flags::RDWR | open_flags::TRUNC };
            host.plain(if opens { open } else { cut }).await.map(drop)
        });
        rig.pass(Duration::from_secs(1));
        assert!(cuts.lock().unwrap().is_none() && rig.ends(ino.0) > 0, "the nodes have all of it");
        rig.kill(1);
        rig.faults(0, 0);
        let host = other.clone();
        rig.wait(other.peer(), async move {
            let (ino, fh) = file(&host).await;
            assert_eq!(host.size(ino).await, Ok(0));
            let set = Setattr { size: Some(STRIP as u64), ..Setattr::default() };
            let grown = host.plain(Request::Setattr { ino, fh, set }).await.unwrap();
            assert!(matches!(grown.reply, FileReply::Attr(attr) if attr.size == STRIP as u64));
            assert!(host.read((ino, fh), 0, 100_000).await.unwrap() == vec![0; STRIP]);
            // What is written after a cut stays, whoever dies.
            host.write((ino, fh), 0, 0, vec![3; 2 * STRIP]).await.unwrap();
        });
        rig.kill(2);
        let third = Host::new(&mut rig, 3);
        rig.wait(third.peer(), async move {
            let f = file(&third).await;
            assert!(third.read(f, 0, 200_000).await.unwrap() == vec![3; 2 * STRIP]);
        });
    }
}

/// A write of several strips: another host sees all of it or nothing while the writer lives. If the
/// writer dies in it each strip is old or new.
#[test]
fn a_write_is_whole_for_others_and_torn_between_strips_by_a_death_only() {
    let mut torn = 0;
    for seed in seeds(30) {
        println!("OUTBOARD_SEED={seed} runs this again");
        let mut rig = Rig::new(seed);
        let (one, other) = (Host::new(&mut rig, 1), Host::new(&mut rig, 2));
        let host = one.clone();
        let f = rig.wait(one.peer(), async move {
            let f = file(&host).await;
            host.write(f, 0, 0, vec![1; 4 * STRIP]).await.unwrap();
            f
        });
        rig.faults(100, 800);
        let host = one.clone();
        let write = start(one.peer(), async move { host.write(f, 0, 0, vec![2; 4 * STRIP]).await });
        let host = other.clone();
        let read = start(other.peer(), async move {
            let f = file(&host).await;
            host.read(f, 0, 4 * STRIP as u32).await.unwrap()
        });
        let dies = seed % 2 == 0;
        if dies {
            rig.pass(Duration::from_millis(rig.world.below(30)));
            rig.kill(1);
        }
        rig.faults(0, 0);
        let seen = rig.until(&read);
        assert_eq!(seen.len(), 4 * STRIP);
        assert!(seen.chunks(STRIP).all(|strip| strip.iter().all(|byte| *byte == strip[0])));
        let is_whole = seen.iter().all(|byte| *byte == seen[0]);
        torn += usize::from(!is_whole);
        assert!(is_whole || dies, "a strip of the write is missing");
        if !dies {
            rig.until(&write).unwrap();
        }
    }
    assert!(torn > 0 || std::env::var_os("OUTBOARD_SEED").is_some(), "no death tore a write");
}

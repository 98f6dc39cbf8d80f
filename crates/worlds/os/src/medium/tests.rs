use outboard_base::task::poll_once;
use std::pin::pin;
use std::time::Duration;

use super::*;
use crate::executor::block_on;

/// Every way the I/O is done, on one thread each.
fn everywhere(test: impl Fn(&FileMedium) + Send + Sync) {
    let ways = [(true, 0, true), (false, 0, true), (true, 2, false), (false, 0, false)];
    for (direct, threads, ring) in ways {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let dir = tempfile::tempdir().unwrap();
                let options = MediumOptions { direct, threads, ..MediumOptions::default() };
                let medium = FileMedium::open(&dir.path().join("blocks"), options).unwrap();
                let _reactor = ring.then(|| Reactor::install(8).unwrap());
                test(&medium);
            });
        });
    }
}

fn filled(len: usize, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(len);
    buf.fill(byte);
    buf
}

#[test]
fn what_is_written_is_read() {
    everywhere(|medium| {
        block_on(async {
            assert_eq!(medium.len(), 0);
            let (result, _) = medium.write(0, filled(8192, 1)).await;
            assert_eq!(result, Err(Errno::EIO), "beyond the end");
            medium.grow(4 << 20).await.unwrap();
            medium.grow(1 << 20).await.unwrap();
            assert_eq!(medium.len(), 4 << 20);
            let (result, buf) = medium.read((4 << 20) - 8192, Buf::zeroed(8192)).await;
            assert_eq!(result, Ok(()));
            assert!(buf.iter().all(|b| *b == 0));
            // More at once than the ring is deep.
            let writes = (0..40u8).map(|i| medium.write(u64::from(i) * 8192, filled(8192, i)));
            for (result, _) in outboard_base::task::join_all(writes.collect()).await {
                assert_eq!(result, Ok(()));
            }
            medium.flush().await.unwrap();
            let reads = (0..40u8).map(|i| medium.read(u64::from(i) * 8192, Buf::zeroed(8192)));
            for (i, (result, buf)) in
                (0u8..).zip(outboard_base::task::join_all(reads.collect()).await)
            {
                assert_eq!(result, Ok(()));
                assert!(buf.iter().all(|b| *b == i));
            }
        });
    });
}

#[test]
fn late_reads_are_late_together() {
    let dir = tempfile::tempdir().unwrap();
    // Long, as a busy machine may be late by much itself; one after the other would be 40 of these.
    let delay = Duration::from_millis(500);
    let options = MediumOptions { read_delay: delay, ..MediumOptions::default() };
    let medium = FileMedium::open(&dir.path().join("blocks"), options).unwrap();
    block_on(async {
        medium.grow(1 << 20).await.unwrap();
        let begun = std::time::Instant::now();
        let reads = (0..40u64).map(|i| medium.read(i * 8192, Buf::zeroed(8192))).collect();
        for (result, _) in outboard_base::task::join_all(reads).await {
            assert_eq!(result, Ok(()));
        }
        let took = begun.elapsed();
        assert!(took >= delay && took < delay * 20, "{took:?}");
    });
}

/// A future dropped amid its write leaves the buffer to the kernel, and the next flush waits for
/// it.
#[test]
fn a_flush_waits_for_writes_nobody_waits_for() {
    everywhere(|medium| {
        block_on(medium.grow(16 << 20)).unwrap();
        for round in 0..20u8 {
            for at in 0..8 {
                let write = medium.write(at << 20, filled(1 << 20, round + 1));
                let _ = poll_once(pin!(write));
            }
            block_on(medium.flush()).unwrap();
            for at in 0..8 {
                let read = medium.read(at << 20, Buf::zeroed(1 << 20));
                let (result, buf) = block_on(read);
                result.unwrap();
                assert!(buf.iter().all(|b| *b == round + 1), "round {round} at {at}");
            }
        }
    });
}

#[test]
fn a_sleep_ends_with_a_completion_a_wakeup_or_the_time() {
    use rustix::event::EventfdFlags;
    use std::os::fd::AsFd;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("blocks");
    let medium = FileMedium::open(&path, MediumOptions::default()).unwrap();
    let reactor = Reactor::install(8).unwrap();
    assert!(Reactor::install(8).is_err(), "one a thread");
    block_on(medium.grow(1 << 20)).unwrap();
    let wakeup = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let start = std::time::Instant::now();
    reactor.sleep(wakeup.as_fd(), Duration::from_millis(20)).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(15), "time");
    let long = Duration::from_secs(60);
    rustix::io::write(&wakeup, &1u64.to_ne_bytes()).unwrap();
    reactor.sleep(wakeup.as_fd(), long).unwrap();
    rustix::io::read(&wakeup, &mut [0; 8]).unwrap();
    let mut read = pin!(medium.read(0, Buf::zeroed(8192)));
    assert!(poll_once(read.as_mut()).is_pending());
    reactor.sleep(wakeup.as_fd(), long).unwrap();
    assert_eq!(reactor.poll(), 1);
    assert!(poll_once(read.as_mut()).is_ready());
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_second_opener_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("blocks");
    let medium = FileMedium::open(&path, MediumOptions::default()).unwrap();
    let other = OpenOptions::new().read(true).open(&path).unwrap();
    assert!(lock_within(&other, Duration::ZERO).is_err());
    drop(medium);
    assert!(lock_within(&other, Duration::ZERO).is_ok());
}

#[test]
fn growth_leaves_the_reserve() {
    let dir = tempfile::tempdir().unwrap();
    // As much as the whole disk has: what others free meanwhile makes no difference.
    let reserve = Reserve { most: u64::MAX, one_in: 1 };
    let options = MediumOptions { reserve, ..MediumOptions::default() };
    let medium = FileMedium::open(&dir.path().join("blocks"), options).unwrap();
    assert_eq!(block_on(medium.grow(512 << 20)), Err(Errno::ENOSPC));
    assert_eq!(medium.len(), 0);
}

/// Small writes that are alone do not wait for the device, up to a bound; handing over waits for
/// them, and what is read is what was written whichever way it went.
#[test]
fn small_writes_pass_through_the_page_cache() {
    for ring in [true, false] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("blocks");
                let medium = FileMedium::open(&path, MediumOptions::default()).unwrap();
                let medium = medium.beside(dir.path()).unwrap();
                let _reactor = ring.then(|| Reactor::install(8).unwrap());
                block_on(medium.grow(8 << 20)).unwrap();
                let passing = |medium: &FileMedium| medium.passing.as_ref()?.bytes();
                for round in 0..3u8 {
                    for at in 0..200u64 {
                        let write = medium.write(at * 2 * 8192, filled(8192, round + 1));
                        assert_eq!(block_on(write).0, Ok(()));
                        assert!(passing(&medium).is_none_or(|bytes| bytes <= 1 << 20));
                    }
                    match round {
                        0 => block_on(medium.hand_over()).unwrap(),
                        1 => block_on(medium.flush()).unwrap(),
                        _ => {
                            // In company, by the ring if there is one.
                            let mut handing_over = pin!(medium.hand_over());
                            while poll_once(handing_over.as_mut()).is_pending() {
                                Reactor::poll_installed();
                            }
                        }
                    }
                    assert_eq!(passing(&medium), None, "round {round}");
                    for at in 0..200u64 {
                        let read = medium.read(at * 2 * 8192, Buf::zeroed(8192));
                        let (result, buf) = block_on(read);
                        result.unwrap();
                        assert!(buf.iter().all(|b| *b == round + 1), "round {round} at {at}");
                    }
                }
            });
        });
    }
}

/// Two waited for the same writes on their way. The first to know that they had arrived let others
/// begin; the second then took those for arrived, too, and a sync after that did not wait for them:
/// power loss could take what it had answered for.
#[test]
fn what_two_have_waited_for_has_arrived_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("blocks");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let passing = Passing::new(file);
    if passing.write(0, &[1; 8192]).is_none() {
        return; // The kernel has no such writes here.
    }
    let (_, first) = passing.on_their_way().unwrap();
    let (_, second) = passing.on_their_way().unwrap();
    passing.arrived(first);
    assert_eq!(passing.on_their_way(), None);
    passing.write(16384, &[2; 4096]).unwrap().unwrap();
    passing.arrived(second);
    let (range, third) = passing.on_their_way().expect("nobody has waited for it");
    assert_eq!((range, passing.bytes()), (16384..20480, Some(4096)));
    passing.arrived(third);
    assert_eq!(passing.on_their_way(), None);
}

/// Growth allocated the whole length first, then wrote the zeros. Killed between the two it left
/// blocks that were only allocated, and the next life used them: their first write was more than
/// its bytes, which a flush of the device does not make durable. A synced block could read zero
/// after power loss.
#[test]
fn a_growth_cut_short_leaves_what_is_written() {
    for ring in [true, false] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("blocks");
                let open = || {
                    let medium = FileMedium::open(&path, MediumOptions::default()).unwrap();
                    medium.beside(dir.path()).unwrap()
                };
                let _reactor = ring.then(|| Reactor::install(8).unwrap());
                let medium = open();
                let flushed_by_store = medium.is_flushed_by_store();
                block_on(async {
                    medium.act(Action::Allocate { offset: 0, len: 8 << 20 }, None).await.0.unwrap();
                    let zeros = Buf::zeroed(1 << 20);
                    medium.transfer(Action::Write { offset: 0 }, zeros).await.0.unwrap();
                });
                drop(medium);
                let medium = open();
                assert_eq!(medium.len(), 1 << 20);
                assert_eq!(medium.is_flushed_by_store(), flushed_by_store);
                block_on(medium.grow(8 << 20)).unwrap();
                drop(medium);
                let medium = open();
                assert_eq!(medium.len(), 8 << 20);
                assert_eq!(medium.is_flushed_by_store(), flushed_by_store);
            });
        });
    }
}

/// The same, of files that come with holes.
#[test]
fn a_file_with_holes_is_flushed_itself() {
    for allocated in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        let file = std::fs::File::create(&path).unwrap();
        if allocated {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 4 << 20).unwrap();
        } else {
            file.set_len(4 << 20).unwrap();
        }
        drop(file);
        let medium = FileMedium::open(&path, MediumOptions::default()).unwrap();
        assert!(!medium.beside(dir.path()).unwrap().is_flushed_by_store());
    }
}

/// A file through a ring that registers what is kept; with its number of operations that did.
fn registering(test: impl FnOnce(&FileMedium, &Reactor)) {
    let dir = tempfile::tempdir().unwrap();
    let medium = FileMedium::open(&dir.path().join("blocks"), MediumOptions::default()).unwrap();
    let reactor = Reactor::install_registering(64).unwrap();
    block_on(medium.grow(4 << 20)).unwrap();
    test(&medium, &reactor);
}

/// Writes as one of several would: by the ring.
fn write_among_others(medium: &FileMedium, at: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
    block_on(async {
        alone::present(2);
        medium.write(at, buf).await
    })
}

/// Buffers come, are used for reads and writes of any part of them, and go, more of them than the
/// kernel's table has places: what is read is always what was written, and a buffer that took the
/// memory of one that is gone is not taken for it.
#[test]
fn kept_buffers_are_registered_and_hold_what_they_should() {
    registering(|medium, reactor| {
        let mut rng = outboard_base::Rng::new(11);
        let mut model = vec![0u8; 4 << 20];
        let mut kept: Vec<Buf> = Vec::new();
        for round in 0..4000u64 {
            let blocks = 1 + usize::try_from(rng.below(4)).unwrap();
            let len = blocks * ALIGN;
            let at = usize::try_from(rng.below(1020)).unwrap() * ALIGN;
            let byte = u8::try_from(round % 251).unwrap();
            let mut buf = match kept.pop() {
                Some(buf) if rng.below(3) > 0 => buf,
                _ if rng.below(4) == 0 => Buf::zeroed(4 * ALIGN),
                _ => medium.keep(Buf::zeroed(4 * ALIGN)),
            };
            buf.resize(len);
            if rng.below(2) == 0 {
                buf.fill(byte);
                let whole = Arc::new(buf);
                let part = Buf::part(&whole, 0..len).unwrap();
                assert_eq!(write_among_others(medium, at as u64, part).0, Ok(()));
                model[at..at + len].fill(byte);
                kept.extend(Arc::try_unwrap(whole));
            } else {
                let (done, buf) = block_on(medium.read(at as u64, buf));
                assert_eq!(done, Ok(()));
                assert!(buf[..] == model[at..at + len], "round {round}");
                kept.push(buf);
            }
        }
        let used = reactor.fixed();
        assert!(used > 2000, "{used} of 4000: the kernel registers nothing?");
        // A part is copied before it is read into: that is another buffer.
        let whole = Arc::new(medium.keep(filled(ALIGN, 9)));
        let part = Buf::part(&whole, 0..ALIGN).unwrap();
        let (done, part) = block_on(medium.read(0, part));
        assert_eq!((done, &part[..]), (Ok(()), &model[..ALIGN]));
        assert!(whole.iter().all(|byte| *byte == 9));
    });
}

/// A buffer of a ring that is gone is used like any other, and kept anew.
#[test]
fn a_buffer_outlives_its_ring() {
    let mut kept = None;
    for round in 0..3u8 {
        registering(|medium, reactor| {
            let mut buf = kept.take().unwrap_or_else(|| medium.keep(Buf::zeroed(ALIGN)));
            buf.fill(round);
            let (done, buf) = write_among_others(medium, 0, buf);
            assert_eq!((done, reactor.fixed()), (Ok(()), u64::from(round == 0)));
            let (done, buf) = block_on(medium.read(0, medium.keep(buf)));
            assert_eq!((done, buf[0]), (Ok(()), round));
            assert_eq!(reactor.fixed(), if round == 0 { 2 } else { 1 });
            kept = Some(buf);
        });
    }
}

/// `cargo test --release -p outboard-os registering_saves -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn what_registering_saves() {
    let used = || {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        used.tv_sec * 1_000_000_000 + used.tv_nsec
    };
    registering(|medium, _| {
        let mut sums = [[0i64; 2]; 2];
        for round in 0..20 {
            for (size, bytes) in [ALIGN, 64 << 10].into_iter().enumerate() {
                for kind in [round % 2, 1 - round % 2] {
                    let fresh = || (0..32).map(|_| Buf::zeroed(bytes));
                    let mut bufs: Vec<Buf> = if kind == 1 {
                        fresh().map(|buf| medium.keep(buf)).collect()
                    } else {
                        fresh().collect()
                    };
                    let before = used();
                    for _ in 0..50 {
                        let reads = (0u64..).zip(bufs.drain(..));
                        let reads = reads.map(|(n, buf)| medium.read(n * (64 << 10), buf));
                        let done = block_on(outboard_base::task::join_all(reads.collect()));
                        bufs.extend(done.into_iter().map(|(done, buf)| {
                            assert_eq!(done, Ok(()));
                            buf
                        }));
                    }
                    sums[size][kind] += used() - before;
                }
            }
        }
        for (size, bytes) in [ALIGN, 64 << 10].into_iter().enumerate() {
            let [plain, fixed] = sums[size];
            let each = |sum: i64| sum / (20 * 50 * 32);
            println!("{bytes} bytes: {} ns plain, {} ns registered", each(plain), each(fixed));
        }
    });
}

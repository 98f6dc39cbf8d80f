//! Concurrent clients while the host and the DPU side are lost and come back: every key behaves as
//! one register.
//!
//! Goal: no answered write is lost, no read is older than an answer somebody already had, whichever
//! side answered. Method: each write is unique; histories of one key are searched
//! ([`crate::history`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use outboard_base::Rng;
use outboard_pageserver::tcp::sockets::Address;

use crate::history::{ALL, Op, is_linearizable, of_key};
use crate::rig::{Answer, Client, Dpu, Host};

const KEYS: u64 = 90;
const PADDING: usize = 60_000;
const PATIENCE: Duration = Duration::from_secs(240);

struct Shared {
    clock: AtomicU64,
    next: AtomicU64,
    ends: AtomicBool,
    history: Mutex<Vec<Op>>,
    answered: AtomicU64,
    /// How many of them flushed everything.
    flushed: AtomicU64,
}

/// One client, until the end: connects again whenever its connection is lost.
fn client(address: Address, shared: Arc<Shared>, seed: u64) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut rng = Rng::new(seed);
        let mut connected = None;
        while !shared.ends.load(Ordering::Acquire) {
            let client = match &mut connected {
                Some(client) => client,
                None => match Client::try_new(&address) {
                    Some(client) => connected.insert(client),
                    None => {
                        std::thread::sleep(Duration::from_millis(5));
                        continue;
                    }
                },
            };
            if !one(client, &shared, &mut rng) || rng.below(200) == 0 {
                connected = None;
            }
        }
    })
}

/// One command; false if its connection is lost.
fn one(client: &mut Client, shared: &Shared, rng: &mut Rng) -> bool {
    let key = rng.below(KEYS);
    let name = format!("key:{key}");
    let called = shared.clock.fetch_add(1, Ordering::SeqCst);
    let (key, writes, value, answer) = match rng.below(600) {
        0 => (ALL, true, 0, client.try_ask(&[b"FLUSHALL"])),
        1..40 => (key, true, 0, client.try_ask(&[b"DEL", name.as_bytes()])),
        40..200 => {
            let value = shared.next.fetch_add(1, Ordering::SeqCst);
            let mut text = format!("{value}:").into_bytes();
            text.resize(text.len() + PADDING, b'x');
            (key, true, value, client.try_ask(&[b"SET", name.as_bytes(), &text]))
        }
        _ => (key, false, 0, client.try_ask(&[b"GET", name.as_bytes()])),
    };
    let answered = shared.clock.fetch_add(1, Ordering::SeqCst);
    let push = |value, answered| {
        shared.history.lock().unwrap().push(Op { key, value, writes, called, answered });
    };
    match answer {
        Some(Answer::Simple(_) | Answer::Integer(_)) if writes => push(value, answered),
        Some(Answer::Bulk(None)) => push(0, answered),
        Some(Answer::Bulk(Some(bytes))) => {
            let text = String::from_utf8(bytes).unwrap();
            assert_eq!(text.len(), text.find(':').unwrap() + 1 + PADDING, "whole");
            push(text.split(':').next().unwrap().parse().unwrap(), answered);
        }
        Some(other) => {
            // The device was lost amid it.
            assert!(matches!(other, Answer::Error(_)), "{other:?}");
            if writes {
                push(value, u64::MAX);
            }
            return true;
        }
        None => {
            if writes {
                push(value, u64::MAX);
            }
            return false;
        }
    }
    shared.answered.fetch_add(1, Ordering::Relaxed);
    shared.flushed.fetch_add(u64::from(key == ALL), Ordering::Relaxed);
    true
}

#[test]
fn every_key_is_a_register_whoever_dies() {
    let seed = std::env::var("OUTBOARD_SEED").map_or(5, |text| text.parse().unwrap());
    println!("OUTBOARD_SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(seed);
    let mut dpu = Dpu::start(dir.path());
    let address = dpu.front.address().clone();
    let mut host = Host::over_dpu(dir.path());
    let shared = Arc::new(Shared {
        clock: AtomicU64::new(1),
        next: AtomicU64::new(1),
        ends: AtomicBool::new(false),
        history: Mutex::default(),
        answered: AtomicU64::new(0),
        flushed: AtomicU64::new(0),
    });
    let clients: Vec<_> =
        (0..4).map(|n| client(address.clone(), Arc::clone(&shared), seed * 100 + n)).collect();
    let (begun, mut offloaded, mut lives) = (Instant::now(), 0, 0);
    let answered = || shared.answered.load(Ordering::Relaxed);
    // A machine that does much else needs longer for as much.
    let flushed = || shared.flushed.load(Ordering::Relaxed);
    while lives < 8 || answered() <= 1000 || offloaded <= 20 || flushed() < 3 {
        assert!(begun.elapsed() < PATIENCE, "{} answered in {lives} lives", answered());
        std::thread::sleep(Duration::from_millis(500 + rng.below(1500)));
        lives += 1;
        if rng.below(2) == 0 {
            // Nothing is saved at a host's end: its memory is gone as with kill -9.
            host.stop();
        } else {
            offloaded += dpu.front.tally().offloaded.load(Ordering::Relaxed);
            drop(dpu);
            host.wait();
            dpu = Dpu::start_at(dir.path(), &address);
        }
        host = Host::over_dpu(dir.path());
    }
    shared.ends.store(true, Ordering::Release);
    clients.into_iter().for_each(|client| client.join().unwrap());
    offloaded += dpu.front.tally().offloaded.load(Ordering::Relaxed);
    let (answered, flushed) = (answered(), flushed());
    println!("{answered} answered, {offloaded} beyond the bus, {flushed} flushed, {lives} lives");
    let history = shared.history.lock().unwrap();
    for key in 0..KEYS {
        let of = of_key(&history, key);
        assert!(is_linearizable(&of), "key {key}: {of:?}");
    }
    host.stop();
}

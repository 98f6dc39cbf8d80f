//! What the key-value server forgot, said, or never said, and says right now.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::rig::{Answer, Client, Dpu, Host, encode};

fn ok() -> Answer {
    Answer::Simple("OK".into())
}

/// Of one length, so that one takes another's place.
fn value(of: &str, n: usize) -> Vec<u8> {
    let mut value = format!("{of}:{n}:").into_bytes();
    value.resize(1000, b'x');
    value
}

fn key(n: usize) -> Vec<u8> {
    format!("key:{n}").into_bytes()
}

fn set(client: &mut Client, of: &str, keys: impl Iterator<Item = usize>) {
    for n in keys {
        assert_eq!(client.ask(&[b"SET", &key(n), &value(of, n)]), ok());
    }
}

fn get(client: &mut Client, n: usize) -> Option<Vec<u8>> {
    match client.ask(&[b"GET", &key(n)]) {
        Answer::Bulk(value) => value,
        other => panic!("{other:?}"),
    }
}

/// FLUSHALL emptied the index and left the cache table as it was: the DPU side went on answering
/// GETs with what had been flushed, and with values older than a SET that came after.
#[test]
fn flushall_empties_the_cache_table() {
    let dir = tempfile::tempdir().unwrap();
    let dpu = Dpu::start(dir.path());
    let host = Host::over_dpu(dir.path());
    let mut client = Client::new(dpu.front.address());
    let mut other = Client::new(dpu.front.address());
    for life in ["a", "b"] {
        set(&mut client, life, 0..9000);
        let offloaded = || dpu.front.tally().offloaded.load(Ordering::Relaxed);
        let before = offloaded();
        (0..50).for_each(|_| assert_eq!(get(&mut other, 7), Some(value(life, 7))));
        assert!(offloaded() > before, "key 7 is cold");
        // Amid pages that are being written.
        let more: Vec<u8> =
            (9000..12000).flat_map(|n| encode(&[b"SET", &key(n), &value(life, n)])).collect();
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| {
                client.send(&[more, encode(&[b"FLUSHALL"])].concat());
            });
            sent.join().unwrap();
        });
        (0..3001).for_each(|_| assert_eq!(client.receive(), ok()));
        for n in 0..12000 {
            assert_eq!(get(&mut other, n), None, "{n} was flushed");
        }
        assert_eq!(client.ask(&[b"SET", &key(7), b"new"]), ok());
        assert_eq!(get(&mut other, 7), Some(b"new".to_vec()));
    }
    host.stop();
}

/// The journal of an earlier life was opened for appending behind an entry that a death had torn.
/// All that was answered from then on lay behind it, where no later life looks.
#[test]
fn what_follows_a_torn_entry_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::plain(dir.path());
    set(&mut Client::new(&host.address), "a", 0..10);
    host.stop();
    let journal = dir.path().join("journal.000000000000");
    let mut file = std::fs::File::options().append(true).open(&journal).unwrap();
    file.write_all(&[200, 0, 0, 0, 1, 2, 3, 4, 5]).unwrap();
    for n in 10..13 {
        let host = Host::plain(dir.path());
        set(&mut Client::new(&host.address), "b", n..=n);
        host.stop();
    }
    let host = Host::plain(dir.path());
    let mut client = Client::new(&host.address);
    for n in 0..13 {
        let of = if n < 10 { "a" } else { "b" };
        assert_eq!(get(&mut client, n), Some(value(of, n)), "{n}");
    }
    host.stop();
}

/// Values that were put in the place of others are journaled with the tail's page. When the page
/// they had their place in was written, a replay appends them: it needs more pages than the life
/// before it had, and their journal went before those were written.
#[test]
fn a_replay_that_needs_more_pages_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut next, mut expected) = (0, Vec::<&str>::new());
    for round in 0..2 {
        let host = Host::plain(dir.path());
        let mut client = Client::new(&host.address);
        let from = next;
        next += 3500;
        set(&mut client, "a", from..next);
        expected.resize(next, "a");
        // In place, in the pages that are open; and on, until one of those is written.
        set(&mut client, "b", from + 1010..from + 2900);
        expected[from + 1010..from + 2900].fill("b");
        set(&mut client, "c", next..next + 900);
        next += 900;
        expected.resize(next, "c");
        host.stop();
        for step in 0..7 {
            let host = Host::plain(dir.path());
            let mut client = Client::new(&host.address);
            for (n, of) in expected.iter().enumerate() {
                let got = get(&mut client, n);
                assert!(got == Some(value(of, n)), "round {round} step {step}: {n} of {of}");
            }
            set(&mut client, "d", next..next + 400);
            next += 400;
            expected.resize(next, "d");
            host.stop();
        }
    }
}

/// What FLUSHALL had flushed came back when the pages of a replay were others than those of the
/// life before: the first page that counts was the old one.
#[test]
fn what_was_flushed_stays_flushed_whatever_a_replay_needs() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::plain(dir.path());
    let mut client = Client::new(&host.address);
    set(&mut client, "a", 0..3500);
    set(&mut client, "b", 1010..2900);
    set(&mut client, "c", 3500..4400);
    assert_eq!(client.ask(&[b"FLUSHALL"]), ok());
    set(&mut client, "d", 100..200);
    host.stop();
    let mut next = 10_000;
    for step in 0..10 {
        let host = Host::plain(dir.path());
        let mut client = Client::new(&host.address);
        for n in 0..4400 {
            let of = (100..200).contains(&n).then(|| value("d", n));
            assert!(get(&mut client, n) == of, "step {step}: {n}");
        }
        set(&mut client, "e", next..next + 700);
        next += 700;
        host.stop();
    }
}

/// MSET of more than the tail's pages was answered with OOM half done, on a device with room.
#[test]
fn more_values_than_memory_holds_are_set_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::plain(dir.path());
    let mut client = Client::new(&host.address);
    let all: Vec<(Vec<u8>, Vec<u8>)> = (0..30).map(|n| (key(n), vec![b'x'; 500_000 + n])).collect();
    let pairs = all.iter().flat_map(|(key, value)| [key.as_slice(), value.as_slice()]);
    let command: Vec<&[u8]> = std::iter::once(b"MSET".as_slice()).chain(pairs).collect();
    for _ in 0..3 {
        assert_eq!(client.ask(&command), ok());
        for (n, (_, value)) in all.iter().enumerate() {
            assert!(get(&mut client, n).as_ref() == Some(value), "{n}");
        }
        host.stop();
        host = Host::plain(dir.path());
        client = Client::new(&host.address);
    }
    host.stop();
}

/// EXISTS and DEL brought every cold key into memory before they began to count: of more keys than
/// memory holds, the first were cold again when the last had come, and so on for ever.
#[test]
fn more_cold_keys_than_memory_holds_are_counted_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::plain(dir.path());
    let mut client = Client::new(&host.address);
    set(&mut client, "a", 0..6000);
    let keys: Vec<Vec<u8>> = (0..6000).map(key).chain([b"none".to_vec(), key(0)]).collect();
    let all = |name: &'static [u8]| -> Vec<&[u8]> {
        std::iter::once(name).chain(keys.iter().map(Vec::as_slice)).collect()
    };
    assert_eq!(client.ask(&all(b"EXISTS")), Answer::Integer(6001));
    assert_eq!(client.ask(&all(b"DEL")), Answer::Integer(6000));
    assert_eq!(client.ask(&all(b"EXISTS")), Answer::Integer(0));
    host.stop();
}

/// EXISTS and DEL read the records of keys in the file one after the other: a command of a thousand
/// took a thousand times what the device takes, where MGET took a few.
#[test]
fn cold_keys_of_one_command_are_read_side_by_side() {
    let (dir, delay, keys) = (tempfile::tempdir().unwrap(), Duration::from_millis(20), 96);
    let dpu = Dpu::start_slow(dir.path(), delay);
    let host = Host::over_dpu(dir.path());
    let mut client = Client::new(dpu.front.address());
    set(&mut client, "a", 0..9000);
    let keys: Vec<Vec<u8>> = (0..keys).map(key).collect();
    for (name, there) in [(&b"EXISTS"[..], 96), (b"DEL", 96), (b"EXISTS", 0)] {
        let command: Vec<&[u8]> =
            std::iter::once(name).chain(keys.iter().map(Vec::as_slice)).collect();
        let begun = Instant::now();
        assert_eq!(client.ask(&command), Answer::Integer(there));
        let took = begun.elapsed();
        println!("{} of 96: {took:?}", String::from_utf8_lossy(name));
        assert!(took < 96 * delay / 4, "{took:?}");
        assert!(there == 0 || took >= delay, "they are cold: {took:?}");
    }
    assert_eq!(client.ask(&[b"STRLEN", &key(100)]), Answer::Integer(1000));
    assert_eq!(client.ask(&[b"TYPE", &key(100)]), Answer::Simple("string".into()));
    host.stop();
}

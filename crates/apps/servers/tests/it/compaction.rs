//! Space of the key-value server's log that nobody needs is used again.
//!
//! Goal: a log does not grow with what is written but with what is there, whatever dies meanwhile;
//! a full device is a state that deletions end. Method: a map beside it, lives that end anywhere,
//! and what the server says of its log.

use std::collections::HashMap;
use std::path::Path;

use outboard_base::Rng;
use outboard_pageserver::tcp::sockets::Address;

use crate::rig::{Answer, Client, Dpu, Host};

fn ok() -> Answer {
    Answer::Simple("OK".into())
}

fn key(n: u64) -> Vec<u8> {
    format!("key:{n}").into_bytes()
}

fn value(n: u64, version: u64, len: usize) -> Vec<u8> {
    let mut value = format!("{n}:{version}:").into_bytes();
    value.resize(len, b'x');
    value
}

/// A number in what INFO says.
fn says(client: &mut Client, name: &str) -> u64 {
    let Answer::Bulk(Some(text)) = client.ask(&[b"INFO"]) else { panic!("INFO is a bulk") };
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
}

struct Model {
    rng: Rng,
    there: HashMap<u64, Vec<u8>>,
    version: u64,
}

impl Model {
    fn new(seed: u64) -> Model {
        Model { rng: Rng::new(seed), there: HashMap::new(), version: 0 }
    }

    /// Writes, deletes and reads `n` times, keys below `keys`.
    fn go_on(&mut self, client: &mut Client, keys: u64, n: u64) {
        for _ in 0..n {
            let (at, what) = (self.rng.below(keys), self.rng.below(20));
            match what {
                0 => {
                    let expected = i64::from(self.there.remove(&at).is_some());
                    assert_eq!(client.ask(&[b"DEL", &key(at)]), Answer::Integer(expected));
                }
                1..=3 => {
                    let expected = Answer::Bulk(self.there.get(&at).cloned());
                    assert_eq!(client.ask(&[b"GET", &key(at)]), expected, "{at}");
                    let expected = i64::from(self.there.contains_key(&at));
                    assert_eq!(client.ask(&[b"EXISTS", &key(at)]), Answer::Integer(expected));
                }
                _ => {
                    self.version += 1;
                    let len = 20 + usize::try_from(self.rng.below(8000)).unwrap();
                    let value = value(at, self.version, len);
                    assert_eq!(client.ask(&[b"SET", &key(at), &value]), ok());
                    self.there.insert(at, value);
                }
            }
        }
    }

    fn is_all_there(&self, client: &mut Client, keys: u64) {
        for at in 0..keys {
            let got = client.ask(&[b"GET", &key(at)]);
            assert!(got == Answer::Bulk(self.there.get(&at).cloned()), "{at}: {got:.100?}");
        }
    }
}

const KEYS: u64 = 1000;

/// Lives that end anywhere in compaction; the log stays a few times what is there.
fn the_log_stays_small(mut life: impl FnMut(&mut dyn FnMut(&Address))) {
    let mut model = Model::new(3);
    let mut compacted = 0;
    for _ in 0..6 {
        life(&mut |address| {
            let mut client = Client::new(address);
            model.is_all_there(&mut client, KEYS);
            model.go_on(&mut client, KEYS, 7000);
            compacted += says(&mut client, "log_pages_compacted");
            // 4 MB are there, as much again is allowed to be dead, and 16 pages are not looked at.
            let pages = says(&mut client, "log_pages");
            assert!(pages < 40, "{pages} pages, {compacted} compacted");
            assert!(says(&mut client, "log_records") < 8 * KEYS);
        });
    }
    assert!(compacted > 50, "{compacted}");
}

#[test]
fn the_log_of_the_plain_form_stays_small() {
    let dir = tempfile::tempdir().unwrap();
    the_log_stays_small(|serve| {
        let host = Host::plain(dir.path());
        serve(&host.address);
        host.stop();
    });
}

#[test]
fn the_log_of_the_offload_form_stays_small() {
    let dir = tempfile::tempdir().unwrap();
    the_log_stays_small(|serve| {
        let dpu = Dpu::start(dir.path());
        let host = Host::over_dpu(dir.path());
        serve(dpu.front.address());
        host.stop();
    });
}

/// A replay put other records into pages than the life before had, and wrote them to other lots.
/// Both pages were whole and had the same number; opening took the one in the first lot, and keys
/// that had been answered were gone.
#[test]
fn of_two_pages_of_one_number_the_later_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model::new(9);
    for _ in 0..40 {
        let host = Host::plain(dir.path());
        let mut client = Client::new(&host.address);
        model.is_all_there(&mut client, KEYS);
        let n = 300 + model.rng.below(1500);
        model.go_on(&mut client, KEYS, n);
        drop(client);
        host.stop();
    }
}

/// Fills a device of 24 MiB until it is told so; how many keys are there.
fn fill(client: &mut Client, from: u64) -> u64 {
    for n in from..from + 100_000 {
        match client.ask(&[b"SET", &key(n), &value(n, 0, 10_000)]) {
            Answer::Simple(_) => {}
            Answer::Error(text) => {
                assert!(text.starts_with("OOM"), "{text}");
                return n;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("a device of 24 MiB took a GB");
}

fn small(dir: &Path) -> Dpu {
    Dpu::start_sized(dir, 24 << 20)
}

/// A device that was full stayed full: what deletions and FLUSHALL say needed room, too, and space
/// of dead records was never used again.
#[test]
fn a_full_device_is_made_room_on_by_deletions_and_by_flushall() {
    let dir = tempfile::tempdir().unwrap();
    let dpu = small(dir.path());
    let mut host = Host::over_dpu(dir.path());
    let mut client = Client::new(dpu.front.address());
    let mut from = 0;
    for round in 0..2 {
        let end = fill(&mut client, from);
        assert!(end - from > 1000, "round {round}: {from} to {end}");
        if round == 1 {
            host.stop();
            host = Host::over_dpu(dir.path());
            client = Client::new(dpu.front.address());
        }
        for n in (from..end).step_by(7) {
            let expected = Answer::Bulk(Some(value(n, 0, 10_000)));
            assert!(client.ask(&[b"GET", &key(n)]) == expected, "round {round}: {n}");
        }
        for n in from..end {
            // One key in eight stays.
            if n % 8 != 0 {
                assert_eq!(client.ask(&[b"DEL", &key(n)]), Answer::Integer(1), "{n}");
            }
        }
        for n in (from..end).filter(|n| n % 8 == 0) {
            let expected = Answer::Bulk(Some(value(n, 0, 10_000)));
            assert!(client.ask(&[b"GET", &key(n)]) == expected, "round {round}: {n}");
        }
        let gone: Vec<Vec<u8>> = (from..end).filter(|n| n % 8 == 0).map(key).collect();
        for key in gone {
            assert_eq!(client.ask(&[b"DEL", &key]), Answer::Integer(1));
        }
        from = end;
    }
    fill(&mut client, from);
    assert_eq!(client.ask(&[b"FLUSHALL"]), ok());
    assert!(fill(&mut client, 0) > 1000, "FLUSHALL gave all of it back");
    host.stop();
}

/// A page whose head was damaged was taken for one that was never needed: its keys were gone
/// without a word.
#[test]
fn a_log_that_lacks_a_page_is_not_opened() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let host = Host::plain(dir.path());
    let mut client = Client::new(&host.address);
    for n in 0..3000 {
        assert_eq!(client.ask(&[b"SET", &key(n), &value(n, 0, 10_000)]), ok());
    }
    // Until the journal does not speak of the first page any more.
    while dir.path().join("journal.000000000000").exists() {
        assert_eq!(client.ask(&[b"PING"]), Answer::Simple("PONG".into()));
    }
    drop(client);
    host.stop();
    let file =
        std::fs::File::options().read(true).write(true).open(dir.path().join("log")).unwrap();
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 1 << 20).unwrap();
    let mut damaged = head;
    damaged[9] ^= 1;
    file.write_all_at(&damaged, 1 << 20).unwrap();
    let why = Host::try_plain(dir.path()).unwrap_err();
    assert!(why.contains("lacks its page"), "{why}");
    file.write_all_at(&head, 1 << 20).unwrap();
    Host::plain(dir.path()).stop();
    // And a record: it is not read if an extract speaks of its page, and nobody gets it.
    file.write_all_at(b"?", (1 << 20) + 200).unwrap();
    let host = Host::plain(dir.path());
    let got = Client::new(&host.address).ask(&[b"GET", &key(0)]);
    assert!(matches!(&got, Answer::Error(why) if why.contains("cannot be read")), "{got:?}");
    host.stop();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().contains("extracts.") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let why = Host::try_plain(dir.path()).unwrap_err();
    assert!(why.contains("damaged at byte 1048"), "{why}");
    // Nor without its head.
    file.write_all_at(&[7; 8192], 0).unwrap();
    let why = Host::try_plain(dir.path()).unwrap_err();
    assert!(why.contains("no head"), "{why}");
}

//! Power is lost anywhere, and the disk runs full anywhere: what was answered is there, each batch
//! is whole or not at all, and they are there in order.

use outboard_base::Rng;

use super::disk::{Disk, Image};
use super::*;

fn over(disk: &Disk) -> io::Result<RedbEngine> {
    let database = Database::builder().set_cache_size(1 << 20).create_with_backend(disk.clone());
    let database = database.map_err(io::Error::other)?;
    // Its room is looked at in a directory that has some: the disk runs full behind its back.
    RedbEngine::over(database, &std::env::temp_dir(), Options { reserve: 0, ..Options::default() })
        .map_err(|error| io::Error::other(format!("{error:?}")))
}

/// What the pairs are after each batch; the number of a batch is its place.
struct History(Vec<BTreeMap<Vec<u8>, Vec<u8>>>);

impl History {
    /// As the next batch, with a pair that is there from then on.
    fn more(&mut self, rng: &mut Rng) -> Batch {
        let mut batch = self.next(rng);
        let number = self.0.len() as u64 - 1;
        let key = [&b"more"[..], &number.to_be_bytes()].concat();
        batch.put(&key[..], [7; 3000]);
        self.0.last_mut().unwrap().insert(key, vec![7; 3000]);
        batch
    }

    /// The next batch: changes some pairs, removes some, and says its number.
    fn next(&mut self, rng: &mut Rng) -> Batch {
        let mut pairs = self.0.last().unwrap().clone();
        let mut batch = Batch::new();
        for _ in 0..1 + rng.below(12) {
            let key = vec![b'k', u8::try_from(rng.below(60)).unwrap()];
            if rng.chance(1, 4) {
                batch.delete(&key[..]);
                pairs.remove(&key);
            } else {
                let mut value = vec![0; usize::try_from(rng.below(9000)).unwrap()];
                rng.fill(&mut value);
                batch.put(&key[..], &value[..]);
                pairs.insert(key, value);
            }
        }
        let number = (self.0.len() as u64).to_be_bytes();
        batch.put(b"number", number);
        pairs.insert(b"number".to_vec(), number.to_vec());
        self.0.push(pairs);
        batch
    }

    /// What an engine holds is the state after one batch; its number.
    fn find(&self, engine: &RedbEngine, why: &str) -> u64 {
        let found: BTreeMap<Vec<u8>, Vec<u8>> = run(engine.scan(b"", None, usize::MAX))
            .unwrap_or_else(|error| panic!("{why}: {error}"))
            .into_iter()
            .map(|(key, value)| (key.to_vec(), value.to_vec()))
            .collect();
        let number =
            found.get(&b"number"[..]).map_or(0, |n| u64::from_be_bytes(n[..].try_into().unwrap()));
        let is = self.0.get(usize::try_from(number).unwrap());
        assert!(is == Some(&found), "{why}: not what batch {number} left");
        number
    }
}

fn examine(image: Image, history: &History, why: &str) {
    let engine = over(&Disk::new(image.bytes, 0, 0)).unwrap_or_else(|e| panic!("{why}: {e}"));
    let number = history.find(&engine, why);
    let may = image.answered..=image.asked;
    assert!(may.contains(&number), "{why}: batch {number}, of {may:?}");
    // And it goes on.
    run(engine.commit(put(b"after", b"it"), Durability::Durable))
        .unwrap_or_else(|error| panic!("{why}: {error}"));
}

#[test]
fn nothing_answered_is_lost_with_the_power() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let disk = Disk::new(Vec::new(), seed, 24);
        let mut history = History(vec![BTreeMap::new()]);
        let engine = over(&disk).unwrap();
        drop(disk.images());
        let mut examined = 0;
        while history.0.len() < 60 {
            let group: Vec<Batch> = (0..1 + rng.below(3)).map(|_| history.next(&mut rng)).collect();
            let last = history.0.len() as u64 - 1;
            disk.ask(last);
            let commits = group.into_iter().map(|batch| engine.commit(batch, Durability::Answered));
            let outcomes = run(join_all(commits.collect()));
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
            disk.answer(last);
            for image in disk.images() {
                examined += 1;
                examine(image, &history, &format!("seed {seed}, batch {last}"));
            }
        }
        assert!(examined > 3, "seed {seed}: {examined} losses");
    }
}

/// A store could not be opened again on a disk that had run full, not even to delete from it:
/// opening wrote to it.
#[test]
fn a_disk_that_runs_full_amid_a_commit_loses_nothing_that_was_answered() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let disk = Disk::new(Vec::new(), seed, 0);
        let mut history = History(vec![BTreeMap::new()]);
        let mut engine = over(&disk).unwrap();
        let mut known = 0;
        for round in 0..5 {
            let why = format!("seed {seed}, round {round}");
            let room = usize::try_from(rng.below(60)).unwrap();
            disk.leave_room(room);
            let failed = loop {
                assert!(history.0.len() < 2000, "{why}: it does not run full");
                let batch = history.more(&mut rng);
                match run(engine.commit(batch, Durability::Answered)) {
                    Ok(()) => known = history.0.len() as u64 - 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(failed, KvError::NoSpace, "{why}");
            assert!(engine.is_poisoned(), "{why}: nobody knows what became of it");
            let later = run(engine.commit(put(b"k", b"v"), Durability::Answered));
            assert!(later.is_err(), "{why}");
            drop(engine);
            // Still full: what was answered can be read.
            engine = over(&disk).unwrap_or_else(|error| panic!("{why}: {error}"));
            let number = history.find(&engine, &why);
            assert!((known..history.0.len() as u64).contains(&number), "{why}: batch {number}");
            history.0.truncate(usize::try_from(number).unwrap() + 1);
            known = number;
        }
        disk.leave_room(10_000);
        drop(engine);
        let engine = over(&disk).unwrap();
        for _ in 0..20 {
            run(engine.commit(history.next(&mut rng), Durability::Answered)).unwrap();
        }
        assert_eq!(history.find(&engine, "room again"), history.0.len() as u64 - 1);
    }
}

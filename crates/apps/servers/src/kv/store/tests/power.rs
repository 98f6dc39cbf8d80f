//! A store with `--fsync always` whose power fails, or whose process is killed, at any step.
//!
//! Goal: what was answered is there, whatever was lost of the rest; also what a life replayed and
//! answered from that another life had not synced when it was killed. Method: [`Sim`] is the
//! device; of each file of the journal at least what was synced stays, the rest by sectors, and the
//! directory is as it is or as it was when it was last synced ([`Synced`]).

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::super::super::sync::model;
use super::*;
use crate::device::sim::Sim;

const SECTOR: u64 = 512;
const KEYS: u64 = 40;
/// Commands of one life.
const STEPS: u64 = 120;

type Value = Option<Vec<u8>>;

/// What each key may be: what it surely was, and what was done since and not answered.
#[derive(Default)]
struct Model {
    keys: HashMap<u64, Vec<Value>>,
    /// What was done, by the gate of its answer: a key, or all.
    waiting: VecDeque<(u64, Option<u64>)>,
}

impl Model {
    fn of(&mut self, key: u64) -> &mut Vec<Value> {
        self.keys.entry(key).or_insert_with(|| vec![None])
    }

    fn did(&mut self, gate: u64, key: Option<u64>, value: Value) {
        let all = if let Some(key) = key { key..key + 1 } else { 0..KEYS };
        all.for_each(|key| self.of(key).push(value.clone()));
        self.waiting.push_back((gate, key));
    }

    /// What was before an answered command is not there any more.
    fn answered(&mut self, is_open: impl Fn(u64) -> bool) -> usize {
        let mut count = 0;
        while let Some((_, key)) = self.waiting.pop_front_if(|(gate, _)| is_open(*gate)) {
            let all = if let Some(key) = key { key..key + 1 } else { 0..KEYS };
            all.for_each(|key| drop(self.of(key).remove(0)));
            count += 1;
        }
        count
    }

    /// It was found so, and that was answered.
    fn found(&mut self, key: u64, value: Value) {
        let may_be = self.of(key);
        assert!(may_be.contains(&value), "key {key} is none of {} values", may_be.len());
        *may_be = vec![value];
    }
}

struct Lossy {
    store: Store<Sim>,
    works: Vec<Work>,
}

impl Lossy {
    fn open(sim: Rc<Sim>, dir: &Path) -> Lossy {
        sim.is_prompt.set(true);
        let memory = usize::try_from(MEMORY_PAGES).unwrap() * PAGE;
        let setup = StoreSetup { dir: dir.to_owned(), seed: 1, memory, fsync: Fsync::Always };
        let store = now(Store::open(Rc::clone(&sim), &setup)).unwrap();
        sim.is_prompt.set(false);
        Lossy { store, works: Vec::new() }
    }

    fn pass(&mut self, rng: &mut Rng) {
        self.store.device.end_one(rng);
        assert!(self.store.end_round(&mut self.works).is_ok());
        for mut work in std::mem::take(&mut self.works) {
            match poll_once(work.as_mut()) {
                Poll::Ready(event) => assert!(self.store.on(event, &mut self.works).is_ok()),
                Poll::Pending => self.works.push(work),
            }
        }
    }

    fn get(&self, key: u64) -> Value {
        let value = |record: Record<'_>| record.value().to_vec();
        self.store.device.is_prompt.set(true);
        let got = match self.store.log.find(&key.to_le_bytes()) {
            Found::Nothing => None,
            Found::Here(record) => Some(value(record)),
            Found::Cold(address) => {
                let read = read_cold(self.store.reader(), address, key.to_le_bytes().to_vec());
                now(read).unwrap().map(|bytes| value(Record::parse(&bytes).unwrap()))
            }
        };
        self.store.device.is_prompt.set(false);
        got
    }

    fn command(&mut self, rng: &mut Rng, model: &mut Model, stamp: u64) {
        let key = rng.below(KEYS);
        let (done, key, value) = match rng.below(60) {
            0 => (self.store.clear(), None, None),
            1..10 => (self.store.delete(&key.to_le_bytes()), Some(key), None),
            _ => {
                let mut value = vec![7; usize::try_from(100 + rng.below(100_000)).unwrap()];
                value[..8].copy_from_slice(&stamp.to_le_bytes());
                (self.store.put(&key.to_le_bytes(), &value), Some(key), Some(value))
            }
        };
        assert!(done.is_ok(), "{done:?}");
        model.did(self.store.gate(), key, value);
    }

    fn end(self) -> Rc<Sim> {
        Rc::clone(&self.store.device)
    }
}

/// What power loss leaves of the files of a directory.
fn lose(dir: &Path, rng: &mut Rng) {
    if rng.below(2) == 0 {
        model::restore_names(dir);
    }
    for entry in std::fs::read_dir(dir).unwrap() {
        let file = File::options().read(true).write(true).open(entry.unwrap().path()).unwrap();
        let (kept, all) = (model::kept(&file), file.metadata().unwrap().len());
        let len = kept + rng.below(all - kept + 1);
        let sectors = (kept.next_multiple_of(SECTOR)..len).step_by(512);
        for at in sectors.filter(|_| rng.below(3) == 0) {
            let zeros = [0; 512];
            file.write_all_at(&zeros[..usize::try_from(SECTOR.min(len - at)).unwrap()], at)
                .unwrap();
        }
        file.set_len(len).unwrap();
    }
    model::settle(dir);
}

/// A life that was killed had written what it had not synced yet. The next life replayed it and
/// went on, and synced only its own file: compaction took the records of the killed one for safe
/// and gave away the pages they were copied from, and power loss took both.
#[test]
fn what_was_answered_is_there_after_power_loss_at_any_step() {
    let mut answered = 0;
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let base = tempfile::tempdir().unwrap();
        model::start();
        let dir = base.path().join("data");
        std::fs::create_dir(&dir).unwrap();
        let mut life = Lossy::open(Sim::of(Vec::new()), &dir);
        let mut model = Model::default();
        for number in 0..12 {
            for step in 0..rng.below(STEPS) {
                life.command(&mut rng, &mut model, number << 32 | step);
                for _ in 0..rng.below(6) {
                    life.pass(&mut rng);
                }
                while life.store.is_choked() {
                    life.pass(&mut rng);
                }
                answered += model.answered(|gate| life.store.is_open(gate));
            }
            let sim = life.end();
            let sim = if rng.below(2) == 0 {
                sim.forget();
                sim
            } else {
                lose(&dir, &mut rng);
                Sim::of(sim.after_loss(&mut rng))
            };
            life = Lossy::open(sim, &dir);
            model.waiting.clear();
            for key in 0..KEYS {
                model.found(key, life.get(key));
            }
        }
    }
    println!("{answered} answered");
    assert!(answered > 1000);
}

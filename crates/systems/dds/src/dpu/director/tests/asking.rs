//! The same clients before a plug-in that answers late, in any order, or not at all.

use super::*;
use crate::dpu::offload::Part;
use crate::dpu::offload::plugin::{Answering, Declared, Expect, Frames, Known, Plan};

/// What a plug-in is told of the table, as it goes.
struct Told<'a>(&'a Shared, Mutex<Vec<Known>>);

impl Lookup for Told<'_> {
    fn get(&self, key: Key) -> Option<Item> {
        let item = self.0.get(key);
        self.1.lock().unwrap().push((key, item));
        item
    }
}

/// What a plug-in for [`Lines`] says of a message, and by what.
fn verdict(shared: &Shared, message: &[u8]) -> Option<Verdict> {
    if words(message)[0] == b"P" {
        return None;
    }
    // The host's answer to a whole `M` is more than one line; so its parts must do, whatever the
    // table has by then.
    let nothing = Shared::default();
    let is_many = words(message)[0] == b"M";
    let table = Told(if is_many { &nothing } else { shared }, Mutex::default());
    let mut division = Division::default();
    Lines.off_pred(message, &table, &mut division);
    let mut plans = Vec::new();
    for part in division.parts() {
        let Part::Dpu { request, .. } = part else { continue };
        let request = division.bytes(request, message);
        let read = Lines.off_func(request, &table)?;
        let key = [words(request)[1], b"="].concat();
        let payload = key.len()..usize::try_from(read.bytes).unwrap();
        let expect = vec![Expect::Equal { at: 0, bytes: key }];
        let head = Head::new(b"").unwrap();
        plans.push(Plan { read, answering: Answering { head, payload, expect } });
    }
    let relies = if is_many { Vec::new() } else { table.1.into_inner().unwrap() };
    Some(Verdict { division, plans, relies })
}

impl World {
    /// Now and then something comes back, in any order; some of it never does.
    pub(super) fn plugin_says(&mut self) {
        if self.asks.is_empty() || self.rng.below(3) > 0 {
            return;
        }
        let at = usize::try_from(self.rng.below(self.asks.len() as u64)).unwrap();
        let ask = self.asks.swap_remove(at);
        let lost = self.failing && ask.message[0] != b'M' && self.rng.below(10) == 0;
        let said = if lost { None } else { verdict(&self.server.shared, &ask.message) };
        self.director.divided(ask.flow, ask.number, said);
    }
}

fn asking(shared: &Arc<Shared>, contexts: usize) -> Local {
    let table: Arc<dyn Lookup> = Arc::clone(shared) as _;
    let lines = Frames::Ended(b'\n');
    let app = Arc::new(Declared { messages: lines, answers: lines });
    Local::of(app, table, contexts, Pool::new(1 << 20)).asking()
}

#[test]
fn a_plugin_changes_nothing_for_clients_whatever_it_does() {
    let mut offloaded = 0;
    for seed in 300..360u64 {
        println!("seed {seed}");
        let shared = Arc::new(Shared::default());
        let contexts = if seed % 4 == 0 { 2 } else { 16 };
        let clients = usize::try_from(1 + seed % 3).unwrap();
        let director = asking(&shared, contexts);
        let mut world = World::around(director, shared, seed, clients, false);
        world.failing = seed % 2 == 0;
        let counts = compare_in(world);
        assert!(counts.to_host > 10, "{counts:?}");
        offloaded += counts.offloaded;
    }
    assert!(offloaded > 300, "{offloaded}");
}

/// What it decided by has changed since: a client that was answered its write would read what was
/// there before.
#[test]
fn a_verdict_is_followed_only_while_the_table_says_the_same() {
    let shared = Arc::new(Shared::default());
    shared.table.lock().unwrap().insert(key_of(b"a"), [1, 0, 4, 0]);
    let mut director = asking(&shared, 8);
    let id = director.open(true);
    director.client_bytes(id, b"G a\nG a\n");
    let first = director.next_ask().unwrap();
    let second = director.next_ask().unwrap();
    assert_eq!((first.number, second.number, first.message.as_slice()), (0, 1, &b"G a\n"[..]));
    let said = [verdict(&shared, b"G a\n"), verdict(&shared, b"G a\n")];
    let [one, two] = said;
    director.divided(id, second.number, two);
    assert!(director.next_read().is_none(), "in their order");
    director.divided(id, first.number, one);
    assert_eq!(director.reading(), 2);
    let id = director.open(true);
    director.client_bytes(id, b"G a\n");
    let third = director.next_ask().unwrap();
    let said = verdict(&shared, b"G a\n");
    shared.table.lock().unwrap().clear();
    director.divided(id, third.number, said);
    assert_eq!((director.reading(), director.flow(id).unwrap().to_host()), (2, &b"G a\n"[..]));
    // Twice, and about what was never asked: of no effect.
    director.divided(id, third.number, None);
    director.divided(id, 77, None);
    assert_eq!(director.flow(id).unwrap().to_host(), b"G a\n");
}

/// What is asked about at once is bounded, and a message too large to ask about is the host's.
#[test]
fn questions_are_bounded() {
    let shared = Arc::new(Shared::default());
    let table: Arc<dyn Lookup> = shared;
    let app = Declared { messages: Frames::Fixed(100_000), answers: Frames::Fixed(1) };
    let mut director = Local::of(Arc::new(app), table, 8, Pool::new(0)).asking();
    let id = director.open(true);
    director.client_bytes(id, &vec![7; 100_000]);
    assert!(director.next_ask().is_none());
    assert_eq!(director.flow(id).unwrap().to_host().len(), 100_000);
    let mut director = asking(&Arc::default(), 8);
    let id = director.open(true);
    director.client_bytes(id, "G a\n".repeat(1000).as_bytes());
    assert_eq!(std::iter::from_fn(|| director.next_ask()).count(), 64);
    director.client_ended(id);
    director.host_ended(id);
    assert!(director.flow(id).unwrap().ends_client(), "nobody waits for what is not needed");
    director.divided(id, 0, None);
    assert!(director.flow(id).unwrap().to_host().is_empty());
}

//! A director between clients and a small server, against that server alone.
//!
//! Goal: whatever is cut, merged, late, refused or failed, a client gets byte for byte what the
//! plain server would have sent. Method: a protocol of lines (`G key`, `S key value`, `M key...`),
//! a server that keeps some values itself and some in a file, and seeded disorder between them.

mod asking;
mod idle;
mod lost;
mod once;
mod shares;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outboard_base::{Rng, Time};
use proptest::prelude::*;

use super::*;
use crate::dpu::offload::contained::Contained;
use crate::dpu::offload::engine::{Filled, Ticket};
use crate::dpu::offload::health::{Call, Health, Lost};
use crate::dpu::offload::plugin::{Ask, Verdict};
use crate::dpu::offload::pool::Pool;
use crate::dpu::offload::{
    Answer, Application, Cursor, Division, Framing, Head, Item, Key, Lookup, ReadOp, Span, Touches,
    WriteOp,
};

#[derive(Default)]
struct Shared {
    table: Mutex<HashMap<Key, Item>>,
    file: Mutex<Vec<u8>>,
}

impl Lookup for Shared {
    fn get(&self, key: Key) -> Option<Item> {
        self.table.lock().unwrap().get(&key).copied()
    }
}

fn key_of(text: &[u8]) -> Key {
    // So weak that keys collide.
    u64::from(text.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) % 7)
}

fn line(stream: &[u8]) -> Framing {
    match stream.iter().position(|byte| *byte == b'\n') {
        Some(at) => Framing::Whole(at + 1),
        None if stream.len() > 200 => Framing::Foreign,
        None => Framing::More(stream.len() + 1),
    }
}

fn words(message: &[u8]) -> Vec<&[u8]> {
    let message = message.strip_suffix(b"\n").unwrap_or(message);
    message.split(|byte| *byte == b' ').collect()
}

struct Lines;

impl Application for Lines {
    fn frame(&self, stream: &[u8], _: &mut Cursor) -> Framing {
        if stream.first() == Some(&b'?') { Framing::Foreign } else { line(stream) }
    }

    fn frame_answer(&self, stream: &[u8], _: &mut Cursor) -> Framing {
        line(stream)
    }

    fn off_pred(&self, message: &[u8], table: &dyn Lookup, division: &mut Division) {
        let words = words(message);
        assert!(words[0] != b"P", "an application with a fault");
        match words.as_slice() {
            [b"G", key] if table.get(key_of(key)).is_some() => {
                division.dpu(Span::Message(0..message.len()), key_of(key));
            }
            [b"M", keys @ ..] => {
                let count = division.make(&[b"*", keys.len().to_string().as_bytes(), b"\n"]);
                division.literal(count);
                for key in keys {
                    let request = division.make(&[b"G ", key, b"\n"]);
                    match table.get(key_of(key)) {
                        Some(_) => division.dpu(request, key_of(key)),
                        None => division.host(request, Touches::One(key_of(key))),
                    }
                }
            }
            [b"S" | b"G", key, ..] => {
                division.host(Span::Message(0..message.len()), Touches::One(key_of(key)));
            }
            _ => {}
        }
    }

    fn off_func(&self, request: &[u8], table: &dyn Lookup) -> Option<ReadOp> {
        let [file, offset, bytes, _] = table.get(key_of(words(request)[1]))?;
        let (file, bytes) = (u32::try_from(file).ok()?, u32::try_from(bytes).ok()?);
        Some(ReadOp { file, offset, bytes })
    }

    fn answer(&self, request: &[u8], _: ReadOp, bytes: &[u8]) -> Option<Answer> {
        let key = words(request)[1];
        bytes.strip_prefix(key)?.strip_prefix(b"=")?;
        Some(Answer { head: Head::new(b"").unwrap(), payload: key.len() + 1..bytes.len() })
    }

    fn cache(&self, _: WriteOp<'_>, _: &mut Vec<(Key, Item)>) {}

    fn invalidate(&self, _: ReadOp, _: &mut Vec<Key>) {}
}

/// The server: what it keeps itself, and what it moved to the file.
struct Server {
    hot: BTreeMap<Vec<u8>, Vec<u8>>,
    cold: BTreeMap<Vec<u8>, Range<usize>>,
    shared: Arc<Shared>,
}

impl Server {
    fn new(shared: Arc<Shared>) -> Server {
        Server { hot: BTreeMap::new(), cold: BTreeMap::new(), shared }
    }

    /// What every server starts with, in the file.
    fn load(&mut self, spaces: usize) {
        for n in 0..spaces {
            for k in 0..12 {
                self.hot.insert(format!("c{n}k{k}").into_bytes(), format!("p{k}\n").into_bytes());
            }
        }
        (0..spaces * 12).for_each(|_| self.cool(0));
    }

    fn get(&self, key: &[u8]) -> Vec<u8> {
        match (self.hot.get(key), self.cold.get(key)) {
            (Some(value), _) => value.clone(),
            (None, Some(range)) => self.shared.file.lock().unwrap()[range.clone()].to_vec(),
            (None, None) => b"nil\n".to_vec(),
        }
    }

    fn serve(&mut self, message: &[u8]) -> Vec<u8> {
        match words(message).as_slice() {
            [b"G", key] => self.get(key),
            [b"S", key, value] => {
                // Retired first: whoever is answered later finds no older one.
                self.shared.table.lock().unwrap().remove(&key_of(key));
                self.hot.insert(key.to_vec(), [value, &b"\n"[..]].concat());
                b"OK\n".to_vec()
            }
            [b"M", keys @ ..] => {
                let mut answer = format!("*{}\n", keys.len()).into_bytes();
                keys.iter().for_each(|key| answer.extend(self.get(key)));
                answer
            }
            _ => b"what?\n".to_vec(),
        }
    }

    /// Moves a value to the file, where the DPU side finds it.
    fn cool(&mut self, at: usize) {
        let Some(key) = self.hot.keys().nth(at).cloned() else { return };
        let value = self.hot.remove(&key).unwrap();
        let mut file = self.shared.file.lock().unwrap();
        let start = file.len();
        file.extend([&key[..], b"=", &value].concat());
        self.cold.insert(key.clone(), start + key.len() + 1..file.len());
        let item = [1, start as u64, (file.len() - start) as u64, 0];
        self.shared.table.lock().unwrap().insert(key_of(&key), item);
    }
}

fn script(rng: &mut Rng, messages: usize, space: &str, odd: bool) -> Vec<u8> {
    let mut script = String::new();
    let key = |rng: &mut Rng| format!("{space}{}", rng.below(12));
    for n in 0..messages {
        match rng.below(20) {
            0..10 => writeln!(script, "G {}", key(rng)).unwrap(),
            10..14 => writeln!(script, "S {} v{n}", key(rng)).unwrap(),
            14..18 => {
                let keys: Vec<String> = (0..rng.below(5)).map(|_| key(rng)).collect();
                writeln!(script, "M {}", keys.join(" ").trim()).unwrap();
            }
            18 if odd => writeln!(script, "P {}", key(rng)).unwrap(),
            _ => writeln!(script, "X").unwrap(),
        }
    }
    if odd && rng.below(2) == 0 {
        // From here on it is none of the application's.
        script.push_str("?G a1\nS a2 z\nG a2\nno end");
    }
    script.into_bytes()
}

/// What the plain server answers; what is no message at the end is answered by nothing.
fn plain(script: &[u8]) -> Vec<u8> {
    let mut server = Server::new(Arc::default());
    server.load(3);
    script.split_inclusive(|b| *b == b'\n').filter(|line| line.ends_with(b"\n")).fold(
        Vec::new(),
        |mut answers, message| {
            answers.extend(server.serve(message));
            answers
        },
    )
}

/// One client's connection in the simulation.
struct Client {
    id: FlowId,
    script: Vec<u8>,
    sent: usize,
    /// Having sent so much, it waits for all answers.
    patience: usize,
    told_end: bool,
    got: Vec<u8>,
    /// Bytes on the way to the server and back.
    at_host: Vec<u8>,
    from_host: Vec<u8>,
    host_closed: bool,
    done: bool,
}

/// A director whose jobs are run at once, as far as `stuck` lets them.
struct Local {
    director: Director,
    app: Arc<dyn Application>,
    calls: Contained,
    jobs: Vec<Job>,
    /// Runs so many jobs more, then a call does not return.
    stuck: Option<u64>,
    /// Runs so many jobs more, then another worker's call does not return.
    elsewhere: Option<u64>,
    /// Jobs are left to gather as long as this says.
    late: Option<Rng>,
}

impl std::ops::Deref for Local {
    type Target = Director;
    fn deref(&self) -> &Director {
        &self.director
    }
}

impl std::ops::DerefMut for Local {
    fn deref_mut(&mut self) -> &mut Director {
        &mut self.director
    }
}

impl Local {
    fn new(table: Arc<dyn Lookup>, contexts: usize, pool: Pool) -> Local {
        Local::of(Arc::new(Lines), table, contexts, pool)
    }

    fn of(app: Arc<dyn Application>, table: Arc<dyn Lookup>, contexts: usize, pool: Pool) -> Local {
        let health = Arc::new(Health::default());
        let director = Director::new(Arc::clone(&app), table, contexts, pool, Arc::clone(&health));
        let calls = Contained::new(Box::new(|| 0), health);
        Local { director, app, calls, jobs: Vec::new(), stuck: None, elsewhere: None, late: None }
    }

    fn within(self, flows: usize, bytes: usize) -> Local {
        Local { director: self.director.within(flows, bytes), ..self }
    }

    fn asking(self) -> Local {
        Local { director: self.director.asking(), ..self }
    }

    fn settle(&mut self) {
        if self.late.as_mut().is_some_and(|rng| rng.below(4) > 0) {
            return;
        }
        while self.director.has_jobs() {
            self.director.take_jobs(&mut self.jobs);
            let table = Arc::clone(&self.director.table);
            for job in &mut self.jobs {
                if self.elsewhere == Some(0) {
                    self.calls.health().lose(Lost { call: Call::OffPred, thread: 2 }, Time(0));
                }
                self.elsewhere = self.elsewhere.and_then(|left| left.checked_sub(1));
                match &mut self.stuck {
                    Some(0) => {
                        let lost = job.call();
                        self.stuck = None;
                        // Those lost hold what they hold until the director has gone on.
                        let kept = std::mem::take(&mut self.jobs);
                        self.calls.health().lose(Lost { call: lost, thread: 1 }, Time(0));
                        self.director.take_over(lost);
                        drop(kept);
                        break;
                    }
                    left => {
                        *left = left.map(|left| left - 1);
                        job.run(&*self.app, &*table, &mut self.calls);
                    }
                }
            }
            self.director.bring(&mut self.jobs);
        }
    }

    fn client_bytes(&mut self, id: FlowId, bytes: &[u8]) {
        self.director.client_bytes(id, bytes);
        self.settle();
    }

    fn client_ended(&mut self, id: FlowId) {
        self.director.client_ended(id);
        self.settle();
    }

    fn client_took(&mut self, id: FlowId, n: usize) {
        self.director.client_took(id, n);
        self.settle();
    }

    fn host_took(&mut self, id: FlowId, n: usize) {
        self.director.host_took(id, n);
        self.settle();
    }

    fn host_bytes(&mut self, id: FlowId, bytes: &[u8]) {
        self.director.host_bytes(id, bytes);
        self.settle();
    }

    fn host_ended(&mut self, id: FlowId) {
        self.director.host_ended(id);
        self.settle();
    }

    fn read_ended(&mut self, ticket: Ticket, filled: Filled) {
        self.director.read_ended(ticket, filled);
        self.settle();
    }

    fn divided(&mut self, id: FlowId, number: u64, verdict: Option<Verdict>) {
        self.director.divided(id, number, verdict);
        self.settle();
    }
}

struct World {
    rng: Rng,
    director: Local,
    server: Server,
    clients: Vec<Client>,
    reads: Vec<ToRead>,
    failing: bool,
    now: Time,
    /// Questions to a plug-in on their way.
    asks: Vec<Ask>,
}

impl World {
    fn new(seed: u64, contexts: usize, pool: usize, clients: usize, odd: bool) -> World {
        let shared = Arc::new(Shared::default());
        let table: Arc<dyn Lookup> = Arc::clone(&shared) as _;
        let director = Local::new(table, contexts, Pool::new(pool));
        World::around(director, shared, seed, clients, odd)
    }

    fn around(
        mut director: Local,
        shared: Arc<Shared>,
        seed: u64,
        clients: usize,
        odd: bool,
    ) -> World {
        let mut rng = Rng::new(seed);
        let clients: Vec<Client> = (0..clients)
            .map(|n| Client {
                id: director.open(true),
                script: script(&mut rng, 120, &format!("c{n}k"), odd),
                sent: 0,
                patience: 0,
                told_end: false,
                got: Vec::new(),
                at_host: Vec::new(),
                from_host: Vec::new(),
                host_closed: false,
                done: false,
            })
            .collect();
        let mut server = Server::new(shared);
        server.load(clients.len());
        World {
            rng,
            director,
            server,
            clients,
            reads: Vec::new(),
            failing: false,
            now: Time(0),
            asks: Vec::new(),
        }
    }

    fn some(&mut self, most: usize) -> usize {
        let most = most.min(1 + usize::try_from(self.rng.below(90)).unwrap());
        usize::try_from(self.rng.below(most as u64 + 1)).unwrap()
    }

    fn step(&mut self) {
        self.director.settle();
        let at = usize::try_from(self.rng.below(self.clients.len() as u64)).unwrap();
        match self.rng.below(8) {
            0 | 1 => self.client_sends(at),
            2 => self.director_sends(at),
            3 => self.host_serves(at),
            4 => self.host_sends(at),
            5 | 6 => self.a_read_ends(),
            _ => {
                let at = usize::try_from(self.rng.below(12)).unwrap();
                self.server.cool(at);
            }
        }
        while let Some(read) = self.director.next_read() {
            self.reads.push(read);
        }
        self.now = self.now.after(Duration::from_millis(1));
        self.director.share_memory(self.now);
        while self.director.next_news().is_some() {}
        while let Some(ask) = self.director.next_ask() {
            self.asks.push(ask);
        }
        self.plugin_says();
    }

    fn client_sends(&mut self, at: usize) {
        let room = self.director.client_room(self.clients[at].id);
        let n = self.some(usize::MAX).min(room);
        let client = &mut self.clients[at];
        let Some(flow) = self.director.flow(client.id) else { return };
        let waits = !flow.slots.is_empty() && !flow.foreign && client.sent > client.patience;
        assert!(flow.wants_client() || room == 0);
        if room == 0 || waits {
            return;
        }
        client.patience = client.sent + usize::try_from(self.rng.below(100)).unwrap();
        let n = n.min(client.script.len() - client.sent);
        self.director.client_bytes(client.id, &client.script[client.sent..client.sent + n]);
        client.sent += n;
        if client.sent == client.script.len() && !client.told_end {
            client.told_end = true;
            self.director.client_ended(client.id);
        }
    }

    fn director_sends(&mut self, at: usize) {
        let (to_client, to_host) = (self.some(usize::MAX), self.some(usize::MAX));
        let client = &mut self.clients[at];
        let Some(flow) = self.director.flow(client.id) else { return };
        if flow.is_broken() {
            client.done = true;
            return;
        }
        let bytes: Vec<u8> = flow.to_client().flatten().copied().take(to_client).collect();
        assert_eq!(flow.to_client().map(<[u8]>::len).sum::<usize>(), flow.to_client_len());
        client.got.extend(&bytes);
        let host: Vec<u8> = flow.to_host().iter().copied().take(to_host).collect();
        client.at_host.extend(&host);
        client.done |= flow.ends_client();
        self.director.client_took(client.id, bytes.len());
        self.director.host_took(client.id, host.len());
    }

    fn host_serves(&mut self, at: usize) {
        let client = &mut self.clients[at];
        if let Some(end) = client.at_host.iter().position(|byte| *byte == b'\n') {
            let message: Vec<u8> = client.at_host.drain(..=end).collect();
            let message = message.strip_prefix(b"?").unwrap_or(&message).to_vec();
            client.from_host.extend(self.server.serve(&message));
        }
    }

    fn host_sends(&mut self, at: usize) {
        let room = self.director.host_room(self.clients[at].id);
        let n = self.some(usize::MAX).min(room);
        let client = &mut self.clients[at];
        let Some(flow) = self.director.flow(client.id) else { return };
        let ended = flow.ends_host();
        assert!(flow.wants_host() || room == 0);
        if n > 0 && !client.from_host.is_empty() {
            let n = n.min(client.from_host.len());
            let bytes: Vec<u8> = client.from_host.drain(..n).collect();
            self.director.host_bytes(client.id, &bytes);
        }
        let served = client.from_host.is_empty() && !client.at_host.contains(&b'\n');
        if ended && served && !client.host_closed {
            client.host_closed = true;
            self.director.host_ended(client.id);
        }
    }

    fn a_read_ends(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let at = usize::try_from(self.rng.below(self.reads.len() as u64)).unwrap();
        let ToRead { ticket, read, mut buffer } = self.reads.swap_remove(at);
        let (from, start) = ToRead::window(&read);
        assert!(buffer.len() >= ToRead::space(&read));
        let file = self.server.shared.file.lock().unwrap();
        let bytes = &file[usize::try_from(from).unwrap()..];
        let n = bytes.len().min(buffer.len());
        buffer[..n].copy_from_slice(&bytes[..n]);
        let len = usize::try_from(read.bytes).unwrap();
        drop(file);
        let fails = self.failing && self.rng.below(5) == 0;
        let bytes = (!fails).then_some(start..start + len);
        self.director.read_ended(ticket, Filled { buffer, bytes });
    }

    fn run(&mut self) {
        for _ in 0..400_000 {
            self.step();
            if self.clients.iter().all(|client| client.done) {
                return;
            }
        }
        panic!("the connections did not come to their ends");
    }
}

fn compare(
    seed: u64,
    contexts: usize,
    pool: usize,
    clients: usize,
    odd: bool,
    failing: bool,
) -> Counts {
    println!("seed {seed} contexts {contexts} pool {pool}");
    let mut world = World::new(seed, contexts, pool, clients, odd);
    world.failing = failing;
    compare_in(world)
}

fn compare_in(mut world: World) -> Counts {
    world.run();
    for client in &world.clients {
        let script = String::from_utf8(client.script.clone()).unwrap().replace('?', "");
        let expected = String::from_utf8(plain(script.as_bytes())).unwrap();
        assert_eq!(String::from_utf8(client.got.clone()).unwrap(), expected);
    }
    let counts = world.director.counts();
    for client in &world.clients {
        world.director.close(client.id);
    }
    counts
}

#[test]
fn answers_are_those_of_the_plain_server() {
    for seed in 0..60 {
        let counts = compare(seed, 16, 1 << 20, 1, false, false);
        assert!(counts.offloaded > 10 && counts.to_host > 10, "{counts:?}");
    }
}

#[test]
fn refusals_and_failures_change_nothing_for_clients() {
    for seed in 100..140 {
        let counts = compare(seed, 2, 1 << 20, 3, false, true);
        assert!(counts.offloaded > 0 && counts.fell_back > 0, "{counts:?}");
        let counts = compare(seed, 16, 8192, 3, false, false);
        assert!(counts.offloaded > 0 && counts.refused > 0, "{counts:?}");
        let counts = compare(seed, 0, 1 << 20, 2, false, false);
        assert!(counts.offloaded == 0 && counts.refused > 10, "{counts:?}");
    }
}

#[test]
fn faults_of_the_application_and_foreign_bytes_change_nothing_for_clients() {
    std::panic::set_hook(Box::new(|info| {
        if !info.to_string().contains("an application with a fault") {
            eprintln!("{info}");
        }
    }));
    for seed in 200..240 {
        compare(seed, 8, 1 << 20, 2, true, true);
    }
}

fn director() -> Local {
    let shared: Arc<dyn Lookup> = Arc::new(Shared::default());
    Local::new(shared, 8, Pool::new(1 << 20))
}

fn taken(director: &mut Local, id: FlowId) -> Vec<u8> {
    let bytes: Vec<u8> = director.flow(id).unwrap().to_client().flatten().copied().collect();
    director.client_took(id, bytes.len());
    bytes
}

#[test]
fn a_flow_that_is_not_the_applications_is_forwarded_untouched() {
    let mut director = director();
    let id = director.open(false);
    director.client_bytes(id, b"G a");
    director.client_bytes(id, b"\xff\0");
    assert_eq!(director.flow(id).unwrap().to_host(), b"G a\xff\0");
    director.host_took(id, 5);
    director.host_bytes(id, b"any");
    director.host_bytes(id, b"thing");
    assert_eq!(taken(&mut director, id), b"anything");
    director.client_ended(id);
    assert!(director.flow(id).unwrap().ends_host());
    director.host_ended(id);
    assert!(director.flow(id).unwrap().ends_client());
}

#[test]
fn a_slow_client_stops_the_host_and_a_slow_host_stops_the_client() {
    let mut director = director();
    let id = director.open(false);
    let chunk = vec![b'x'; 64 << 10];
    let mut sent = 0;
    while director.flow(id).unwrap().wants_client() {
        director.client_bytes(id, &chunk);
        sent += chunk.len();
        assert!(sent < 8 << 20, "bounded");
    }
    while director.flow(id).unwrap().wants_host() {
        director.host_bytes(id, &chunk);
        assert!(director.flow(id).unwrap().to_client_len() < 8 << 20, "bounded");
    }
    let mut at_host = 0;
    loop {
        let n = director.flow(id).unwrap().to_host().len();
        if n == 0 {
            break;
        }
        at_host += n;
        director.host_took(id, n);
    }
    assert_eq!(at_host, sent, "nothing is lost");
    taken(&mut director, id);
    assert!(director.flow(id).unwrap().wants_host() && director.flow(id).unwrap().wants_client());
}

#[test]
fn a_host_that_dies_ends_the_flow_after_what_was_answered() {
    let mut director = director();
    let id = director.open(true);
    director.client_bytes(id, b"G a\nG b\nG c\n");
    director.host_took(id, 12);
    director.host_bytes(id, b"1\n2");
    director.host_ended(id);
    assert_eq!(taken(&mut director, id), b"1\n2");
    let flow = director.flow(id).unwrap();
    assert!(flow.ends_client() && flow.wants_client() && !flow.wants_host());
}

/// A read that was begun before the host died, and fails after: its request has nobody left to go
/// to. The flow used to wait for an answer for ever.
#[test]
fn a_read_that_fails_after_the_host_died_ends_the_flow() {
    let shared = Arc::new(Shared::default());
    shared.table.lock().unwrap().insert(key_of(b"a"), [1, 0, 4, 0]);
    let table: Arc<dyn Lookup> = shared;
    let pool = Pool::new(1 << 20);
    let mut director = Local::new(table, 8, pool);
    let id = director.open(true);
    director.client_bytes(id, b"G a\nG b\n");
    let ToRead { ticket, buffer, .. } = director.next_read().unwrap();
    assert_eq!(director.flow(id).unwrap().to_host(), b"G b\n");
    director.host_ended(id);
    assert!(!director.flow(id).unwrap().ends_client(), "a read may yet answer");
    director.read_ended(ticket, Filled { buffer, bytes: None });
    let flow = director.flow(id).unwrap();
    assert!(flow.ends_client() && flow.to_client_len() == 0 && flow.to_host().is_empty());
}

/// One buffer serves as what is read into and as what is sent from: it is not copied, and is free
/// again when the client's connection has taken all its bytes, not before.
#[test]
fn what_was_read_is_sent_from_where_it_lies() {
    let shared = Arc::new(Shared::default());
    shared.table.lock().unwrap().insert(key_of(b"a"), [1, 0, 4, 0]);
    let table: Arc<dyn Lookup> = shared;
    let mut director = Local::new(table, 8, Pool::new(4096));
    let [id, other] = [director.open(true), director.open(true)];
    director.client_bytes(id, b"G a\n");
    let ToRead { ticket, mut buffer, .. } = director.next_read().unwrap();
    buffer[..4].copy_from_slice(b"a=1\n");
    let (whole, value) = (buffer.as_ptr(), buffer[2..].as_ptr());
    director.read_ended(ticket, Filled { buffer, bytes: Some(0..4) });
    let sent = director.flow(id).unwrap().to_client().find(|run| !run.is_empty()).unwrap();
    assert_eq!((sent, sent.as_ptr()), (&b"1\n"[..], value));
    director.client_took(id, 1);
    director.client_bytes(other, b"G a\n");
    assert!(director.next_read().is_none(), "the only buffer is being sent");
    assert_eq!(
        (director.counts().refused, director.flow(other).unwrap().to_host()),
        (1, &b"G a\n"[..])
    );
    director.client_took(id, 1);
    director.client_bytes(id, b"G a\n");
    assert_eq!(director.next_read().unwrap().buffer.as_ptr(), whole);
}

#[test]
fn a_client_that_was_never_the_hosts_ends_without_it() {
    let mut director = director();
    let id = director.open(true);
    director.client_ended(id);
    assert!(director.flow(id).unwrap().ends_client());
    assert!(!director.flow(id).unwrap().ends_host());
    director.close(id);
    assert!(director.flow(id).is_none());
    let again = director.open(true);
    assert_ne!(again, id);
    director.client_bytes(id, b"G a\n");
    assert!(director.flow(again).unwrap().to_host().is_empty());
}

proptest! {
    #[test]
    fn no_bytes_break_it(
        ours: bool,
        chunks: Vec<(u8, Vec<u8>)>,
    ) {
        let mut director = director();
        let id = director.open(ours);
        for (kind, bytes) in chunks {
            match kind % 8 {
                0..=3 => director.client_bytes(id, &bytes),
                4 | 5 => director.host_bytes(id, &bytes),
                6 => director.client_took(id, bytes.len()),
                _ => director.host_took(id, bytes.len()),
            }
        }
        director.client_ended(id);
        director.host_ended(id);
        let _ = taken(&mut director, id);
        director.close(id);
    }
}

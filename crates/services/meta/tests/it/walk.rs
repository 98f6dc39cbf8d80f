//! Clients that want the same files, stop, lose messages, and a server that dies: of what clients
//! believe by their own clocks there is one writer or readers, and whoever gets a file gets its
//! size. Others leave everything to the server, which reads, writes and cuts the same files itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outboard_base::{Fh, Ino, Time};
use outboard_sim::{Chooser, seeds};
use outboard_wire::file::{Reply as FileReply, Request, Setattr, open_flags, write_flags};
use outboard_wire::shared::call::{Call, Mode, Reply};

use crate::client::{Client, Has};
use crate::world::{Granted, Rig, Slot, reply};

/// What a walk met.
#[derive(Default)]
struct Met {
    grants: u64,
    shared: u64,
    ends: u64,
    restarts: u64,
    begins: u64,
    /// Restarts after which somebody wrote before leases of the life before were over.
    early: u64,
    /// What the server has done itself.
    by_server: u64,
}

/// When they are.
const FORMER: Duration = Duration::from_secs(12);

fn judge(rig: &Rig, clients: &[Client], files: &[Ino], met: &mut Met) {
    let now = rig.world.time();
    for ino in files {
        let uses: Vec<(u64, Mode, u64)> = clients
            .iter()
            .filter_map(|client| {
                let has = client.uses(*ino, now)?;
                Some((client.id, has.mode, has.end))
            })
            .collect();
        let writers = uses.iter().filter(|(_, mode, _)| *mode == Mode::Write).count();
        assert!(writers == 0 || uses.len() == 1, "{ino}: {uses:?}");
        met.shared += u64::from(uses.len() > 1);
        for (client, _, end) in uses {
            assert_eq!(end, rig.world.end(ino.0), "client {client} knows an old end of {ino}");
        }
    }
}

/// What is under way though who sent it may be dead.
#[derive(Default)]
struct Late {
    /// Beginnings that come again, from clients that had an answer: when, whose, of which life.
    begins: Vec<(Time, u64, u64)>,
    answered: BTreeSet<u64>,
    /// Writes of clients that died.
    writes: Vec<(Time, Granted, u64)>,
}

impl Late {
    fn echo(&mut self, client: &Client, chooser: &mut Chooser, now: Time) {
        let Some(nonce) = client.nonce.filter(|_| client.begun) else { return };
        if self.answered.insert(nonce) {
            for within in [500, 20_000] {
                let late = Duration::from_millis(chooser.below(within));
                self.begins.push((now.after(late), client.id, nonce));
            }
        }
    }

    fn died(&mut self, client: &Client, chooser: &mut Chooser, now: Time) {
        let writes = |(ino, has): &(&Ino, &Has)| has.mode == Mode::Write && !client.leaves(**ino);
        for (_, has) in client.has.iter().filter(writes) {
            let late = Duration::from_millis(chooser.below(3000));
            self.writes.push((now.after(late), has.grant.clone(), has.end + chooser.below(9)));
        }
    }

    fn arrive(&mut self, rig: &Rig) {
        let now = rig.world.time();
        for (_, client, nonce) in self.begins.extract_if(.., |(due, ..)| *due <= now) {
            rig.ask(client, Call::Begin { nonce });
        }
        for (_, grant, end) in self.writes.extract_if(.., |(due, ..)| *due <= now) {
            rig.world.write(&grant.capability, &grant.nodes, end);
        }
    }
}

/// A client that leaves everything to the server, several things of a file at a time.
struct Plain {
    /// Its own, and its session's; another one after each end of the server.
    number: u64,
    life: u64,
    handles: BTreeMap<Ino, Fh>,
    asked: Vec<(Ino, Request<'static>, Slot)>,
}

impl Plain {
    fn new(rig: &Rig) -> Plain {
        let life = rig.life();
        Plain { number: 1000 + life, life, handles: BTreeMap::new(), asked: Vec::new() }
    }

    fn step(&mut self, rig: &Rig, chooser: &mut Chooser, files: &[Ino], met: &mut Met) {
        let mut is_gone = rig.life() != self.life;
        for (ino, request, slot) in std::mem::take(&mut self.asked) {
            let Some(answer) = slot.lock().unwrap().take() else {
                self.asked.push((ino, request, slot));
                continue;
            };
            match reply(&request, answer) {
                Ok(FileReply::Opened(fh)) => drop(self.handles.insert(ino, fh)),
                Ok(_) => met.by_server += 1,
                // It was not heard of for a minute.
                Err(_) => is_gone = true,
            }
        }
        if is_gone {
            *self = Plain { number: self.number + 100_000, ..Plain::new(rig) };
            return;
        }
        let ino = files[chooser.below(files.len() as u64) as usize];
        if !chooser.chance(1, 6) || self.asked.len() > 3 {
            return;
        }
        let Some(fh) = self.handles.get(&ino).copied() else {
            self.ask(rig, ino, Request::Open { ino, flags: open_flags::RDWR });
            return;
        };
        let offset = chooser.below(20);
        let request = match chooser.below(8) {
            0..3 => Request::Write { ino, fh, offset: 0, flags: write_flags::APPEND },
            3..5 => Request::Write { ino, fh, offset, flags: 0 },
            5 => {
                let set = Setattr { size: Some(0), ..Setattr::default() };
                Request::Setattr { ino, fh, set }
            }
            6 => Request::Read { ino, fh, offset, len: 9, flags: 0 },
            _ => Request::Getattr { ino, fh: Fh::NONE },
        };
        self.ask(rig, ino, request);
    }

    fn ask(&mut self, rig: &Rig, ino: Ino, request: Request<'static>) {
        let bytes: &[u8] = if matches!(request, Request::Write { .. }) { b"bytes" } else { b"" };
        let call = rig.file_with(self.number, &request, bytes);
        self.asked.push((ino, request, rig.ask(self.number, call)));
    }
}

/// Three clients: each begins anew under its number, or has another number in its next life.
struct Cast {
    clients: Vec<Client>,
    next: u64,
    late: Late,
}

impl Cast {
    fn new(chooser: &mut Chooser) -> Cast {
        let mut clients: Vec<Client> = (1..=3).map(|id| Client::beginning(id, id)).collect();
        if chooser.chance(1, 3) {
            clients[2] = Client::new(3);
        }
        Cast { clients, next: 4, late: Late::default() }
    }

    /// One ends, or is killed, and its next life begins.
    fn replace(&mut self, at: usize, chooser: &mut Chooser, now: Time) {
        let old = &self.clients[at];
        self.late.died(old, chooser, now);
        self.clients[at] = match old.nonce {
            Some(_) => Client::beginning(old.id, self.next),
            None => Client::new(self.next),
        };
        self.next += 1;
    }

    fn step(&mut self, rig: &Rig, chooser: &mut Chooser, files: &[Ino], met: &mut Met) {
        let now = rig.world.time();
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            let (before, began) = (client.has.len(), client.begun);
            if client.step(rig, chooser, files) {
                met.grants += u64::from(client.has.len() > before);
                met.begins += u64::from(client.begun && !began);
                self.late.echo(client, chooser, now);
            } else {
                met.ends += 1;
                self.replace(at, chooser, now);
            }
        }
    }
}

fn walk(seed: u64) -> Met {
    let mut chooser = Chooser::new(seed);
    let rig = Rig::new(seed);
    let mut met = Met::default();
    let files = [rig.create(100, 11, b"a"), rig.create(100, 11, b"b")];
    // Names of files must survive a loss of power.
    let synced = rig.call(100, rig.file(11, &outboard_wire::file::Request::Syncfs));
    assert!(matches!(synced, Reply::File { .. }));
    let mut cast = Cast::new(&mut chooser);
    let mut plain = Plain::new(&rig);
    let mut restarted = None;
    for _ in 0..1500 {
        (0..1 + chooser.below(3)).for_each(|_| rig.step());
        rig.world.pass(Duration::from_millis(chooser.below(150)));
        cast.late.arrive(&rig);
        cast.step(&rig, &mut chooser, &files, &mut met);
        plain.step(&rig, &mut chooser, &files, &mut met);
        judge(&rig, &cast.clients, &files, &mut met);
        let now = rig.world.time();
        if restarted.is_some_and(|at| now.since(at) < FORMER) && writes_anew(&cast, met.restarts) {
            (met.early, restarted) = (met.early + 1, None);
        }
        match chooser.below(600) {
            0 => {
                rig.restart(chooser.chance(1, 2));
                (met.restarts, restarted) = (met.restarts + 1, Some(now));
            }
            1..4 => {
                let at = chooser.below(3) as usize;
                let time = Duration::from_millis(chooser.below(40_000));
                cast.clients[at].stopped_until = now.after(time);
            }
            // Its process is killed, and another begins.
            4..7 => cast.replace(chooser.below(3) as usize, &mut chooser, now),
            _ => {}
        }
    }
    heal(&rig, &files, &plain);
    met
}

/// Whether somebody has a file to write from the server as it is after so many restarts.
fn writes_anew(cast: &Cast, restarts: u64) -> bool {
    let all = cast.clients.iter().flat_map(|client| client.has.values());
    let mut writes = all.filter(|has| has.grant.mode == Mode::Write);
    writes.any(|has| has.grant.capability.fence >> 32 == restarts + 1)
}

/// Nobody else is there any more: whoever comes gets everything, and a check finds nothing.
fn heal(rig: &Rig, files: &[Ino], plain: &Plain) {
    rig.world.state().asked.clear();
    // What was asked of the server ends once all leases are over.
    rig.pass(Duration::from_secs(60));
    let is_answered = |slot: &Slot| slot.lock().unwrap().is_some();
    assert!(plain.life != rig.life() || plain.asked.iter().all(|(.., slot)| is_answered(slot)));
    rig.renew(200);
    let slots: Vec<_> = files
        .iter()
        .map(|ino| (*ino, rig.ask(200, Call::Delegate { ino: *ino, mode: Mode::Write })))
        .collect();
    for _ in 0..120 {
        rig.pass(Duration::from_secs(1));
        rig.renew(200);
    }
    for (ino, slot) in slots {
        let reply = rig.at_once(&slot);
        let Some(Reply::Grant(grant)) = reply else { panic!("{ino}: {reply:?}") };
        assert!(rig.world.is_settled(ino.0, grant.attr.size));
    }
    let checked = rig.call(200, Call::Check { contents: true });
    let Reply::Text(text) = checked else { panic!("{checked:?}") };
    assert!(text.starts_with("{\"findings\":[],"), "{text}");
}

#[test]
fn there_is_one_writer_or_readers_whatever_is_lost() {
    let runs = seeds::run(0..20, walk);
    let sum = |of: fn(&Met) -> u64| runs.outcomes.iter().map(of).sum::<u64>();
    let met = [
        sum(|met| met.grants),
        sum(|met| met.shared),
        sum(|met| met.ends),
        sum(|met| met.restarts),
        sum(|met| met.begins),
        sum(|met| met.by_server),
    ];
    let early = sum(|met| met.early);
    assert!(runs.is_alone || early > 3, "all wait for all: {early}");
    assert!(runs.is_alone || met.iter().all(|count| *count > 20), "too little happens: {met:?}");
}

//! `outboard serve pages` as processes, offload on, each of which may get kill -9 at any moment:
//! host, DPU side, clients. Every page is the page of some moment of the database's log.
//!
//! Goal: `GetPage` is never older than asked, and what it says is the page as the log makes it up
//! to the LSN it says; a record that a `Sync` covered is never sent again, and never missing; a
//! connection on which records were sent does not outlive the host that took them.
//!
//! Method: client processes (this program, started again), each the writer of pages of its own and
//! a reader of all. The log of each writer is a file that outlives it: a record is written there
//! before it is sent, then that it was answered, then that a sync was. Readers ask for what they
//! find answered there, compute the page from the log and compare. Whoever has lost its connection
//! sends what no sync covered again, as a database would; who finds a fault ends with it.
//!
//! `OUTBOARD_KILLS=300 cargo test -p outboard-outboard --test pages_killed` kills as often; the
//! gate does it 9 times. `OUTBOARD_SEED` chooses whom and when.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod served;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outboard_base::Rng;
use outboard_servers::pages::client::{Answer, Client};
use outboard_servers::pages::wire::CONTENTS;
use rustix::process::{Pid, Signal, kill_process};
use served::{AS_CLIENT, LIMIT, Served, number, offloaded, victim};

const WRITERS: u64 = 3;
/// Pages of one writer: all of them are three times what the host keeps in memory.
const OWN: u64 = 130;

#[derive(Clone, Copy)]
struct Record {
    page: u64,
    lsn: u64,
}

impl Record {
    /// What it sets, and from where: as its numbers say.
    fn change(self) -> (usize, Vec<u8>) {
        let mut rng = Rng::new(self.lsn * 1_000_003 + self.page);
        let mut data = vec![0; usize::try_from(1 + rng.below(900)).unwrap()];
        rng.fill(&mut data);
        (usize::try_from(rng.below((CONTENTS - data.len()) as u64)).unwrap(), data)
    }
}

/// A writer's log. Lines: `R PAGE LSN` before a record is sent, `A LSN` when it was answered, `S`
/// when a sync was that began behind all records answered so far.
struct Log {
    file: File,
    read: u64,
    records: Vec<Record>,
    /// The newest answered, of each page.
    answered: HashMap<u64, u64>,
    /// So many records no sync must bring again.
    synced: usize,
}

impl Log {
    fn open(dir: &Path, writer: u64) -> Log {
        let path = dir.join(format!("log{writer}"));
        let file = OpenOptions::new().read(true).append(true).create(true).open(path).unwrap();
        let (records, answered) = (Vec::new(), HashMap::new());
        let mut log = Log { file, read: 0, records, answered, synced: 0 };
        log.look();
        log
    }

    /// Reads what came since.
    fn look(&mut self) {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let n = self.file.read_at(&mut bytes, self.read).unwrap();
            let whole = bytes[..n].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            if whole == 0 {
                return;
            }
            self.read += whole as u64;
            for line in std::str::from_utf8(&bytes[..whole]).unwrap().lines() {
                self.line(line);
            }
        }
    }

    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let at = |n: usize| words[n].parse::<u64>().unwrap();
        match words[0] {
            "R" => self.records.push(Record { page: at(1), lsn: at(2) }),
            "A" => {
                let record = self.records.iter().rfind(|record| record.lsn == at(1)).unwrap();
                self.answered.insert(record.page, record.lsn);
            }
            "S" => self.synced = usize::try_from(at(1)).unwrap(),
            other => panic!("{other:?} in a log"),
        }
    }

    /// One write: a kill leaves all of it or nothing.
    fn add(&mut self, line: &str) {
        self.file.write_all(format!("{line}\n").as_bytes()).unwrap();
        self.look();
    }

    fn newest(&self, page: u64) -> u64 {
        self.records.iter().rfind(|record| record.page == page).map_or(0, |record| record.lsn)
    }

    /// The newest of a page that no sync brings again, if all is well.
    fn synced_lsn(&self, page: u64) -> u64 {
        let synced = &self.records[..self.synced];
        synced.iter().rfind(|record| record.page == page).map_or(0, |record| record.lsn)
    }

    fn contents(&self, page: u64, lsn: u64) -> Vec<u8> {
        let mut contents = vec![0; CONTENTS];
        let mut last = 0;
        for record in self.records.iter().filter(|r| r.page == page && r.lsn <= lsn) {
            let (at, data) = record.change();
            contents[at..at + data.len()].copy_from_slice(&data);
            last = record.lsn;
        }
        assert_eq!(last, lsn, "page {page}: an LSN it never had");
        contents
    }

    /// Sends what no sync covered.
    fn send_again(&self, client: &mut Client) -> io::Result<()> {
        for record in &self.records[self.synced..] {
            let (at, data) = record.change();
            match client.apply(record.page, record.lsn, at, &data)? {
                Answer::Done(_) | Answer::Applied(_) => {}
                other => panic!("a record is answered {other:?}"),
            }
        }
        Ok(())
    }
}

struct Database {
    writer: u64,
    logs: Vec<Log>,
    rng: Rng,
}

impl Database {
    fn open(dir: &Path, writer: u64, seed: u64) -> Database {
        let logs = (0..WRITERS).map(|writer| Log::open(dir, writer)).collect();
        Database { writer, logs, rng: Rng::new(seed) }
    }

    fn own(&mut self) -> &mut Log {
        &mut self.logs[usize::try_from(self.writer).unwrap()]
    }

    /// What one connection is good for.
    fn work(&mut self, client: &mut Client) -> io::Result<()> {
        self.own().send_again(client)?;
        loop {
            match self.rng.below(100) {
                0..45 => self.write(client)?,
                45..47 => {
                    let upto = self.own().records.len();
                    client.sync()?;
                    self.own().add(&format!("S {upto}"));
                }
                _ => self.read(client)?,
            }
            println!("e");
        }
    }

    fn write(&mut self, client: &mut Client) -> io::Result<()> {
        let page = self.rng.below(OWN) * WRITERS + self.writer;
        let lsn = self.own().records.last().map_or(0, |record| record.lsn) + 1;
        self.own().add(&format!("R {page} {lsn}"));
        let (at, data) = Record { page, lsn }.change();
        let answer = client.apply(page, lsn, at, &data)?;
        assert_eq!(answer, Answer::Done(lsn));
        self.own().add(&format!("A {lsn}"));
        Ok(())
    }

    /// Asks for a page of anybody, as new as it was answered, or older.
    fn read(&mut self, client: &mut Client) -> io::Result<()> {
        let page = self.rng.below(OWN * WRITERS);
        let (owner, half) = (page % WRITERS, self.rng.below(2) == 0);
        let log = &mut self.logs[usize::try_from(owner).unwrap()];
        log.look();
        let synced = log.synced_lsn(page);
        let newest = log.answered.get(&page).copied().unwrap_or(0);
        let asked = if half { newest } else { synced };
        let answer = client.get(page, asked)?;
        log.look();
        match answer {
            Answer::Page(lsn, contents) => {
                assert!(lsn >= asked, "page {page} at {lsn} is older than {asked}");
                assert!(contents == log.contents(page, lsn), "page {page} at {lsn} is another");
            }
            Answer::Older(lsn) => {
                assert!(lsn >= synced, "page {page} is at {lsn}, and was synced at {synced}");
                // Another's connection may have broken, too, and its records come again.
                assert!(owner != self.writer, "a host has lost page {page}, and serves on");
            }
            other => panic!("a page is answered {other:?}"),
        }
        Ok(())
    }
}

fn connect(address: SocketAddr) -> Client {
    loop {
        if let Ok(client) = Client::connect(address, LIMIT) {
            return client;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn client(words: &str) {
    // On one processor the harness has begun a line with this test's name.
    println!();
    let words: Vec<&str> = words.split(' ').collect();
    let (address, dir) = (words[0].parse().unwrap(), PathBuf::from(words[3]));
    let mut database = Database::open(&dir, words[1].parse().unwrap(), words[2].parse().unwrap());
    loop {
        // It breaks when a side of the server dies; what is never answered is a fault.
        if let Err(error) = database.work(&mut connect(address)) {
            assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "a request is not answered");
        }
    }
}

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn kill(mut self) {
        self.0.kill().unwrap();
        let status = self.0.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "it found a fault, and said so above");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

struct Rig {
    served: Served,
    dir: PathBuf,
    started: u64,
}

impl Rig {
    /// A client that writes the pages of `writer`; it is told where to connect, whose pages it
    /// writes, its seed, and the directory of the logs.
    fn client(&mut self, writer: u64, seed: u64) -> Process {
        self.started += 1;
        let words = format!("{writer} {} {}", seed * 1000 + self.started, self.dir.display());
        let test = "every_page_is_of_the_log_whichever_process_dies";
        let mut child = self.served.client(test, &words);
        let (out, answered) = (child.stdout.take().unwrap(), Arc::clone(&self.served.answered));
        std::thread::spawn(move || count(out, &answered));
        Process(child)
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn host(&self) -> Process {
        Process(self.served.host("pages", &self.data(), &["--memory=1M", "--items=2000"]))
    }

    /// What any database would find now: nothing synced is missing, and the log makes every page
    /// new. The host may still be on its way: then connections break.
    fn check(&self) {
        let until = Instant::now() + LIMIT;
        while let Err(error) = self.try_check() {
            assert!(Instant::now() < until, "{error}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn try_check(&self) -> io::Result<()> {
        let mut client = connect(self.served.address);
        let mut database = Database::open(&self.dir, 0, 0);
        for page in 0..OWN * WRITERS {
            let log = &database.logs[usize::try_from(page % WRITERS).unwrap()];
            let synced = log.synced_lsn(page);
            let Answer::Page(lsn, contents) = client.get(page, synced)? else {
                panic!("page {page} is older than {synced}, where it was synced")
            };
            assert!(contents == log.contents(page, lsn), "page {page} at {lsn} is another");
        }
        for log in &mut database.logs {
            log.send_again(&mut client)?;
        }
        for page in 0..OWN * WRITERS {
            let log = &database.logs[usize::try_from(page % WRITERS).unwrap()];
            let newest = log.newest(page);
            let Answer::Page(lsn, contents) = client.get(page, newest)? else {
                panic!("page {page} is not made new by the log")
            };
            assert_eq!(lsn, newest, "page {page}");
            assert!(contents == log.contents(page, lsn), "page {page} at {lsn} is another");
        }
        Ok(())
    }
}

impl Drop for Rig {
    /// A DPU side outlives its host, that of a test that failed, too.
    fn drop(&mut self) {
        self.served.kill_dpu();
    }
}

fn count(out: impl Read, answered: &AtomicU64) {
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        if line == "e" {
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn every_page_is_of_the_log_whichever_process_dies() {
    if let Ok(words) = std::env::var(AS_CLIENT) {
        return client(&words);
    }
    let (seed, kills) = (number("OUTBOARD_SEED", 5), number("OUTBOARD_KILLS", 9));
    println!("OUTBOARD_SEED={seed} OUTBOARD_KILLS={kills}");
    let (dir, mut rng) = (tempfile::tempdir().unwrap(), Rng::new(seed));
    let mut rig = Rig { served: Served::new(), dir: dir.path().to_owned(), started: 0 };
    let mut host = rig.host();
    let mut clients: Vec<(u64, Process)> =
        (0..WRITERS).map(|writer| (writer, rig.client(writer, seed))).collect();
    let mut killed: HashMap<&str, u64> = HashMap::new();
    for kill in 0..kills {
        rig.served.wait(200 + rng.below(600));
        let name = victim(kill, &mut rng);
        *killed.entry(name).or_default() += 1;
        match name {
            "host" => {
                host.kill();
                host = rig.host();
            }
            "client" => {
                // The oldest: its log has one writer at a time.
                let (writer, client) = clients.remove(0);
                client.kill();
                clients.push((writer, rig.client(writer, seed)));
            }
            _ => rig.served.kill_dpu(),
        }
    }
    rig.served.wait(500);
    clients.into_iter().for_each(|(_, client)| client.kill());
    rig.check();
    // Once more without a word of warning: what was synced is there.
    host.kill();
    host = rig.host();
    rig.check();
    kill_process(Pid::from_child(&host.0), Signal::TERM).unwrap();
    assert!(host.0.wait().unwrap().success());
    let (answered, offloaded) = (&rig.served.answered, offloaded(&rig.data()));
    println!("{answered:?} answered, {offloaded} of the last life's offloaded, {killed:?}");
    assert!(offloaded > 0);
}

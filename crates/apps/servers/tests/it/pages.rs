//! The page server in both forms, against the history of every page.
//!
//! Goal: GetPage is never older than asked, and what it says is the page as it was at the LSN it
//! says; nobody is told anything else, also after the host's memory is gone.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use outboard_base::Rng;
use outboard_pageserver::tcp::sockets::{Address, Listener};
use outboard_pageserver::tcp::worker::Limits;
use outboard_servers::device::{DdsDevice, Device, PlainDevice};
use outboard_servers::pages::client::{self, Answer};
use outboard_servers::pages::wire::{CONTENTS, HEAD, PAGE, PAGE_HEAD, Request, Status, lsn_of};
use outboard_servers::pages::{PageServer, PagesApplication, Setup};

use crate::rig::{Client, Dpu, Host, LIMIT};

const PAGES: u64 = 300;

fn serve<D: Device>(
    listen: Address,
    limits: Limits,
    device: impl FnOnce() -> D + Send + 'static,
) -> Host {
    Host::start_with(move |told, ready| {
        let listener = Listener::bind(&listen).unwrap();
        let setup = Setup { memory: 64 * PAGE, limits };
        let mut server = PageServer::open(&setup, listener, device(), told).unwrap();
        ready.send(server.address().clone()).unwrap();
        server.run().unwrap()
    })
}

pub(crate) fn plain(dir: &Path) -> Host {
    limited(dir, Limits::default())
}

/// A plain one of which clients may take so much.
pub(crate) fn limited(dir: &Path, limits: Limits) -> Host {
    let (file, listen) = (dir.join("pages"), Address::Tcp("127.0.0.1:0".parse().unwrap()));
    serve(listen, limits, move || PlainDevice::open(&file).unwrap())
}

fn over_dpu(dir: &Path) -> Host {
    let socket = dir.join("dpu.sock");
    let listen = Address::Unix(dir.join("host.sock"));
    serve(listen, Limits::default(), move || {
        DdsDevice::attach(&socket, "pages", "pages", LIMIT).unwrap()
    })
}

fn ask(client: &mut Client, request: Request<'_>) -> (u8, u64, Vec<u8>) {
    client.send(&request.emit());
    receive(client)
}

fn receive(client: &mut Client) -> (u8, u64, Vec<u8>) {
    let head = client.receive_bytes(HEAD);
    let len = u32::from_le_bytes(head[..4].try_into().unwrap());
    let lsn = u64::from_le_bytes(head[16..24].try_into().unwrap());
    let data = client.receive_bytes(usize::try_from(len).unwrap() - HEAD);
    (head[4], lsn, data)
}

/// The database: its log, and every state of every page by LSN.
#[derive(Default)]
struct Database {
    log: Vec<(u64, u64, usize, Vec<u8>)>,
    /// How much of it need not be kept.
    synced: usize,
    states: HashMap<u64, Vec<(u64, Vec<u8>)>>,
}

impl Database {
    fn newest(&self, page: u64) -> u64 {
        self.states.get(&page).and_then(|states| states.last()).map_or(0, |state| state.0)
    }

    fn contents(&self, page: u64, lsn: u64) -> Vec<u8> {
        let states = self.states.get(&page).into_iter().flatten();
        let found = states.rev().find(|state| state.0 == lsn).map(|state| state.1.clone());
        found.unwrap_or_else(|| {
            assert_eq!(lsn, 0, "an LSN the page never had");
            vec![0; CONTENTS]
        })
    }

    /// A record of the log, to be sent.
    fn record(&mut self, rng: &mut Rng) -> Vec<u8> {
        let (page, lsn) = (rng.below(PAGES), self.log.len() as u64 + 1);
        let mut data = vec![0; usize::try_from(rng.below(200)).unwrap() + 1];
        rng.fill(&mut data);
        let at = usize::try_from(rng.below((CONTENTS - data.len()) as u64)).unwrap();
        let mut contents = self.contents(page, self.newest(page));
        contents[at..at + data.len()].copy_from_slice(&data);
        self.states.entry(page).or_default().push((lsn, contents));
        let bytes = Request::Apply { page, lsn, at, data: &data }.emit();
        self.log.push((page, lsn, at, data));
        bytes
    }

    /// Some requests at once, some of them for pages that others of them change; then their
    /// answers, in order.
    fn exchange(&mut self, client: &mut Client, rng: &mut Rng, count: u64) {
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..count {
            if rng.below(3) == 0 {
                bytes.extend(self.record(rng));
                expected.push((None, self.log.len() as u64));
                continue;
            }
            let page = rng.below(PAGES);
            let newest = self.newest(page);
            let lsn = if rng.below(2) == 0 { newest } else { rng.below(newest + 1) };
            bytes.extend(Request::GetPage { page, lsn }.emit());
            expected.push((Some(page), lsn));
        }
        client.send(&bytes);
        for (page, asked) in expected {
            let (status, lsn, data) = receive(client);
            assert_eq!(status, Status::Done as u8);
            assert!(lsn >= asked, "{page:?} at {lsn} is older than {asked}");
            let Some(page) = page else { continue };
            assert_eq!(lsn_of(&data, page), Some(lsn));
            assert!(data[PAGE_HEAD..] == self.contents(page, lsn), "page {page} at {lsn}");
        }
    }

    fn sync(&mut self, client: &mut Client) {
        assert_eq!(ask(client, Request::Sync).0, Status::Done as u8);
        self.synced = self.log.len();
    }

    /// The log since the last sync again, as after a host's end.
    fn send_again(&self, client: &mut Client) {
        for (page, lsn, at, data) in &self.log[self.synced..] {
            let apply = Request::Apply { page: *page, lsn: *lsn, at: *at, data };
            let (status, ..) = ask(client, apply);
            assert!(status == Status::Done as u8 || status == Status::Applied as u8);
        }
    }

    fn live(&mut self, client: &mut Client, rng: &mut Rng) {
        self.send_again(client);
        for round in 0..200 {
            let count = if round % 2 == 0 { 1 } else { 1 + rng.below(20) };
            self.exchange(client, rng, count);
            if round == 120 {
                self.sync(client);
            }
        }
        let ahead = Request::GetPage { page: 1, lsn: u64::MAX };
        assert_eq!(ask(client, ahead).0, Status::Older as u8);
    }
}

#[test]
fn the_plain_form_never_answers_older_pages() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rng, mut database) = (Rng::new(21), Database::default());
    for _ in 0..2 {
        let host = plain(dir.path());
        database.live(&mut Client::new(&host.address), &mut rng);
        let mut client = Client::new(&host.address);
        client.send(&[9; HEAD]);
        assert_eq!(client.receive_bytes(HEAD)[4], Status::Invalid as u8);
        host.stop();
    }
}

#[test]
fn the_offload_form_never_answers_older_pages() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rng, mut database) = (Rng::new(22), Database::default());
    let address = Address::Tcp("127.0.0.1:0".parse().unwrap());
    let dpu = Dpu::start_with(dir.path(), &address, Arc::new(PagesApplication));
    for _ in 0..3 {
        let host = over_dpu(dir.path());
        database.live(&mut Client::new(dpu.front.address()), &mut rng);
        host.stop();
    }
    let (tally, until) = (dpu.front.tally(), Instant::now() + LIMIT);
    println!("{tally:?}");
    // It is told a little after the answers.
    while tally.offloaded.load(Ordering::Relaxed) <= 300 {
        assert!(Instant::now() < until, "{tally:?}");
        std::thread::yield_now();
    }
}

/// The client for people: each answer there is, and what it refuses itself.
#[test]
fn a_client_is_told_what_came_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let host = plain(dir.path());
    let Address::Tcp(address) = host.address.clone() else { panic!("it listens for TCP") };
    let mut client = client::Client::connect(address, LIMIT).unwrap();
    assert_eq!(client.get(5, 0).unwrap(), Answer::Page(0, vec![0; CONTENTS]));
    assert_eq!(client.apply(5, 7, 3, b"hello").unwrap(), Answer::Done(7));
    assert_eq!(client.apply(5, 7, 3, b"again").unwrap(), Answer::Applied(7));
    assert_eq!(client.get(5, 8).unwrap(), Answer::Older(7));
    let Answer::Page(7, contents) = client.get(5, 7).unwrap() else { panic!("a page at 7") };
    assert_eq!(&contents[..10], b"\0\0\0hello\0\0");
    let beyond = client.apply(5, 9, CONTENTS - 2, b"hello").unwrap_err();
    assert_eq!(beyond.kind(), std::io::ErrorKind::InvalidInput);
    assert!(client.get(u64::MAX, 0).is_err(), "no such page");
    client.sync().unwrap();
    for page in 100..300 {
        assert_eq!(client.apply(page, page, 0, b"many").unwrap(), Answer::Done(page));
    }
    host.stop();
    let gone = client.get(5, 7).unwrap_err();
    assert_ne!(gone.kind(), std::io::ErrorKind::WouldBlock, "{gone}");
    // Who was told to stop has written everything: nobody sends a record again.
    let host = plain(dir.path());
    let Address::Tcp(address) = host.address.clone() else { panic!("it listens for TCP") };
    let mut client = client::Client::connect(address, LIMIT).unwrap();
    assert_eq!(client.get(5, 7).unwrap(), Answer::Page(7, contents));
    for page in 100..300 {
        let Answer::Page(lsn, contents) = client.get(page, page).unwrap() else { panic!("{page}") };
        assert_eq!((lsn, &contents[..4]), (page, &b"many"[..]));
    }
    host.stop();
}

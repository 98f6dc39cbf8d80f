//! `outboard backup` of what `outboard serve` serves, as processes, while clients write.
//!
//! Goal: what is restored passes the check and is served; it holds all that was answered before the
//! backup began, and of what came later nothing without what was answered before that was asked.
//! Method: writers number what they write and note what they had seen answered; every copy is
//! compared with those notes. `-- --nocapture` says how long writers waited, with backups and not.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod plugins;
mod serving;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outboard_base::task::{poll_once, run};
use outboard_medium::Buf;
use outboard_servers::device::{DdsDevice, Device, Files};
use outboard_servers::pages::client::{Answer, Client};
use serving::{OUTBOARD, Serving, json, text};

const WRITERS: usize = 3;
/// Keys of one writer: those of all are more than memory keeps.
const OWN: u64 = 500;
const PADDING: usize = 4000;
/// Blocks of the file of a server of the user's own.
const BLOCKS: u64 = 64;

fn backup(data: &Path, file: &Path) -> Output {
    Command::new(OUTBOARD).arg("backup").args([data, file]).output().unwrap()
}

/// A copy of what is served, restored and checked.
fn copied(data: &Path, name: &str) -> PathBuf {
    let (file, copy) = (data.with_extension(format!("{name}.backup")), data.with_extension(name));
    let output = backup(data, &file);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("which runs on"), "{}", text(&output.stderr));
    let output = Command::new(OUTBOARD).arg("restore").args([&file, &copy]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(json(&["fsck"], &copy)["clean"], true);
    copy
}

/// The last number up to `last` whose turn it was.
fn newest(last: u64, turn: u64, turns: u64) -> Option<u64> {
    let back = (last + turns - turn) % turns;
    last.checked_sub(back).filter(|number| *number > 0)
}

// Keys.

fn set(stream: &mut TcpStream, key: &str, value: &str) {
    let (k, v) = (key.len(), value.len());
    let set = format!("*3\r\n$3\r\nSET\r\n${k}\r\n{key}\r\n${v}\r\n{value}\r\n");
    stream.write_all(set.as_bytes()).unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
}

/// The number a key has; 0 if there is none.
fn number(stream: &mut BufReader<TcpStream>, key: &str) -> u64 {
    let get = format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
    stream.get_mut().write_all(get.as_bytes()).unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    if line == "$-1\r\n" {
        return 0;
    }
    let mut value = vec![0; line.trim_start_matches('$').trim().parse::<usize>().unwrap() + 2];
    stream.read_exact(&mut value).unwrap();
    text(&value).trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
}

#[derive(Default)]
struct Notes {
    is_over: AtomicBool,
    is_copied: AtomicBool,
    answered: [AtomicU64; WRITERS],
    /// Of each writer, what was answered to all when it began each number.
    seen: [Mutex<Vec<[u64; WRITERS]>>; WRITERS],
    /// Milliseconds that writes took, without and beside a backup.
    waits: [Mutex<Vec<f64>>; 2],
}

impl Notes {
    fn answered(&self) -> [u64; WRITERS] {
        std::array::from_fn(|n| self.answered[n].load(Ordering::SeqCst))
    }

    /// Each number is written three times: as the one begun, to its key, as the one done.
    fn write(&self, at: &str, own: usize) {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_nodelay(true).unwrap();
        for number in 1.. {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            self.seen[own].lock().unwrap().push(self.answered());
            let padded = format!("{number}{}", "v".repeat(PADDING));
            let key = format!("k{own}.{}", number % OWN);
            let keys = [(format!("a{own}"), number.to_string()), (key, padded)];
            for (key, value) in keys.into_iter().chain([(format!("b{own}"), number.to_string())]) {
                let begun = Instant::now();
                set(&mut stream, &key, &value);
                let which = usize::from(self.is_copied.load(Ordering::Relaxed));
                self.waits[which].lock().unwrap().push(begun.elapsed().as_secs_f64() * 1e3);
            }
            self.answered[own].store(number, Ordering::SeqCst);
        }
    }

    fn say_waits(&self, of: &str) {
        for (which, waits) in ["without", "beside"].iter().zip(&self.waits) {
            let mut waits = waits.lock().unwrap();
            waits.sort_by(f64::total_cmp);
            let at = |part: usize| waits.get((waits.len() * part / 1000).min(waits.len() - 1));
            let (half, p99, most) = (at(500).unwrap(), at(990).unwrap(), at(1000).unwrap());
            let n = waits.len();
            println!("{of}, {which}: {n} SETs, p50 {half:.2} p99 {p99:.2} max {most:.2} ms");
        }
    }

    /// Compares a copy with what was answered before.
    fn compare(&self, at: &str, before: [u64; WRITERS]) {
        let mut stream = BufReader::new(TcpStream::connect(at).unwrap());
        let begun: [u64; WRITERS] =
            std::array::from_fn(|own| number(&mut stream, &format!("a{own}")));
        for (own, &last) in begun.iter().enumerate() {
            assert!(last >= before[own], "writer {own}: {last} of {before:?}");
            let done = number(&mut stream, &format!("b{own}"));
            assert!(done == last || done + 1 == last, "writer {own}: {done} and {last}");
            for turn in 0..OWN {
                let found = number(&mut stream, &format!("k{own}.{turn}"));
                let of = |last| newest(last, turn, OWN).unwrap_or(0);
                let may = found == of(last) || done < last && found == of(last - 1);
                assert!(may, "writer {own}, key {turn}: {found}, at {done} and {last}");
            }
            if last > 0 {
                let seen = self.seen[own].lock().unwrap()[usize::try_from(last - 1).unwrap()];
                let has = |(other, seen): (usize, &u64)| begun[other] >= *seen;
                assert!(seen.iter().enumerate().all(has), "{begun:?}, but {own} saw {seen:?}");
            }
        }
    }
}

/// The records of memory are more than it keeps, so pages are written, compacted and overwritten
/// all the time.
#[test]
fn a_key_value_server_is_copied_while_clients_write() {
    for (form, size) in [
        (&[][..], "--size=256M"),
        (&["--no-offload", "--fsync=always"], "--size=256M"),
        (&["--plain"], "--log=warn"),
    ] {
        let flags = [form, &[size]].concat();
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let server = Serving::start("kv", &data, &flags);
        let notes = Arc::new(Notes::default());
        let writers: Vec<_> = (0..WRITERS)
            .map(|own| {
                let (notes, at) = (Arc::clone(&notes), server.at.clone());
                std::thread::spawn(move || notes.write(&at, own))
            })
            .collect();
        let mut copies = Vec::new();
        for copy in 0..3 {
            std::thread::sleep(Duration::from_millis(1500));
            let before = notes.answered();
            notes.is_copied.store(true, Ordering::SeqCst);
            let copy = copied(&data, &format!("copy{copy}"));
            notes.is_copied.store(false, Ordering::SeqCst);
            copies.push((copy, before));
        }
        notes.is_over.store(true, Ordering::SeqCst);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        notes.say_waits(&format!("kv {flags:?}"));
        server.stop();
        for (copy, before) in copies {
            let server = Serving::start("kv", &copy, form);
            notes.compare(&server.at, before);
            server.stop();
        }
    }
}

// Pages.

/// Sends records for pages of its own until told to end; of each page what was answered last.
fn apply(at: SocketAddr, is_over: &AtomicBool, answered: &Mutex<Vec<u64>>) -> u64 {
    let mut client = Client::connect(at, Duration::from_secs(60)).unwrap();
    for lsn in 1.. {
        if is_over.load(Ordering::SeqCst) {
            return lsn - 1;
        }
        let page = lsn % OWN;
        assert_eq!(client.apply(page, lsn, 0, &lsn.to_le_bytes()).unwrap(), Answer::Done(lsn));
        answered.lock().unwrap()[usize::try_from(page).unwrap()] = lsn;
        if lsn % 100 == 0 {
            client.sync().unwrap();
        }
    }
    0
}

#[test]
fn a_page_server_is_copied_while_records_come() {
    pages_are_copied(&[], &["--size=64M"]);
    pages_are_copied(&["--plain"], &[]);
}

fn pages_are_copied(form: &[&str], size: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Serving::start("pages", &data, &[form, size].concat());
    let (is_over, at) = (Arc::new(AtomicBool::new(false)), server.at.parse().unwrap());
    let answered = Arc::new(Mutex::new(vec![0; usize::try_from(OWN).unwrap()]));
    let writer = {
        let (is_over, answered) = (Arc::clone(&is_over), Arc::clone(&answered));
        std::thread::spawn(move || apply(at, &is_over, &answered))
    };
    let mut copies = Vec::new();
    for copy in 0..3 {
        std::thread::sleep(Duration::from_millis(700));
        let before = answered.lock().unwrap().clone();
        copies.push((copied(&data, &format!("copy{copy}")), before));
    }
    is_over.store(true, Ordering::SeqCst);
    let last = writer.join().unwrap();
    server.stop();
    for (copy, before) in copies {
        let server = Serving::start("pages", &copy, form);
        let at = server.at.parse().unwrap();
        let mut client = Client::connect(at, Duration::from_secs(60)).unwrap();
        for (page, before) in before.into_iter().enumerate() {
            let Answer::Page(lsn, contents) = client.get(page as u64, before).unwrap() else {
                unreachable!("page {page} is older than {before}");
            };
            assert!(lsn >= before && lsn <= last, "page {page}: {lsn}, of {before}");
            assert_eq!(contents[..8], lsn.to_le_bytes(), "page {page}");
        }
        drop(client);
        server.stop();
    }
}

// A server of the user's own: this process.

/// Does one thing with the device, whose completions only this thread takes.
fn act<T>(device: &DdsDevice, act: impl Future<Output = T>) -> T {
    let mut act = std::pin::pin!(act);
    loop {
        if let std::task::Poll::Ready(done) = poll_once(act.as_mut()) {
            return done;
        }
        device.progress();
    }
}

fn serve_plugin(dir: &Path, data: &Path) -> Child {
    let plugin = plugins::compile(dir, "offload.so", &[]);
    let host = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut command = Command::new(OUTBOARD);
    command.args(["serve", "plugin", "--size=64M", "--listen=127.0.0.1:0", "--host", &host]);
    command.arg("--plugin").arg(plugin).arg("--data").arg(data).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.starts_with("serving "), "{said}");
    child
}

#[test]
fn files_of_a_server_of_the_users_own_are_copied_while_it_writes() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut served = serve_plugin(dir.path(), &data);
    let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writer = {
        let (is_over, answered) = (Arc::clone(&is_over), Arc::clone(&answered));
        let socket = data.join("dpu.sock");
        std::thread::spawn(move || {
            let device =
                DdsDevice::attach(&socket, "own", "file", Duration::from_secs(60)).unwrap();
            for number in 1_u64.. {
                let mut block = Buf::zeroed(4096);
                block[..8].copy_from_slice(&number.to_le_bytes());
                act(&device, device.write(number % BLOCKS * 4096, block)).unwrap();
                answered.store(number, Ordering::SeqCst);
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
            }
        })
    };
    for copy in 0..4 {
        // A busy machine may take long to attach at all.
        while answered.load(Ordering::SeqCst) == 0 {
            assert!(!writer.is_finished());
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(300));
        let before = answered.load(Ordering::SeqCst);
        let copy = copied(&data, &format!("copy{copy}"));
        let file = Files::open(&copy.join("volume")).unwrap().file("own", "file").unwrap();
        let found: Vec<u64> = (0..BLOCKS)
            .map(|block| {
                let bytes = run(file.read(block * 4096, 4096)).unwrap();
                u64::from_le_bytes(*bytes.first_chunk().unwrap())
            })
            .collect();
        let last = found.iter().copied().max().unwrap();
        assert!(last >= before, "{last} of {before}");
        for (block, found) in found.into_iter().enumerate() {
            assert_eq!(found, newest(last, block as u64, BLOCKS).unwrap_or(0), "of {last}");
        }
    }
    is_over.store(true, Ordering::SeqCst);
    writer.join().unwrap();
    assert!(Command::new("kill").arg(served.id().to_string()).status().unwrap().success());
    assert!(served.wait().unwrap().success());
}

/// A copier that has read the header, and nothing else.
fn stuck(data: &Path) -> (Child, [u8; 64]) {
    let mut command = Command::new(OUTBOARD);
    let command = command.arg("backup").arg(data).arg("-").stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 64];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    (child, first)
}

/// A host may die amid a copy. If it has the device itself, there is no copy; else the DPU side
/// goes on with it. What was served is as good as after any kill.
#[test]
fn a_host_that_is_killed_amid_a_copy_leaves_a_whole_one_or_none() {
    for (form, is_plain) in [(&["--plain"][..], true), (&["--size=256M"], false)] {
        let dir = tempfile::tempdir().unwrap();
        let (data, file) = (dir.path().join("data"), dir.path().join("file"));
        let server = Serving::start("kv", &data, form);
        server.fill(4000);
        let (copier, first) = stuck(&data);
        server.kill();
        let output = copier.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(i32::from(is_plain)), "{form:?}: {said}");
        let served = match is_plain {
            true => data,
            false => {
                Serving::start("kv", &data, &[]).stop();
                std::fs::write(&file, [&first[..], &output.stdout].concat()).unwrap();
                let copy = dir.path().join("copy");
                let output = Command::new(OUTBOARD).arg("restore").args([&file, &copy]).output();
                assert!(output.as_ref().unwrap().status.success(), "{output:?}");
                copy
            }
        };
        let again = Serving::start("kv", &served, if is_plain { form } else { &[] });
        assert!((0..4000).step_by(7).all(|key| again.get(key).starts_with("$4000\r\nvvv")));
        drop(copied(&served, "again"));
        again.stop();
    }
}

/// A copier that stands still has the copy; whoever asks meanwhile is told. When it is killed
/// another is made, and nobody's writes waited. When the DPU side is killed no file is left.
#[test]
fn a_backup_that_is_killed_on_either_side_leaves_no_file_and_what_is_served_good() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (dir.path().join("data"), dir.path().join("file"));
    let server = Serving::start("kv", &data, &["--size=256M"]);
    server.fill(4000);
    let stuck = || stuck(&data).0;
    let mut copier = stuck();
    let output = backup(&data, &file);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("another backup"), "{}", text(&output.stderr));
    server.fill(4000);
    copier.kill().unwrap();
    copier.wait().unwrap();
    let copy = copied(&data, "after");
    let again = Serving::start("kv", &copy, &[]);
    assert!((0..4000).step_by(7).all(|key| again.get(key).starts_with("$4000\r\nvvv")));
    again.stop();
    let copier = stuck();
    let dpu = json(&["status"], &data)["dpu"]["pid"].to_string();
    assert!(Command::new("kill").args(["-9", &dpu]).status().unwrap().success());
    let output = copier.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(!file.exists());
    // Its host has started another, which has the device as it was.
    let until = Instant::now() + Duration::from_secs(60);
    while !backup(&data, &file).status.success() {
        assert!(Instant::now() < until, "no backup is made any more");
        assert!(!file.exists());
    }
    let answers = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(&server.at)?;
        stream.write_all(b"*2\r\n$3\r\nGET\r\n$6\r\n003999\r\n")?;
        let mut answer = [0; 10];
        stream.read_exact(&mut answer)?;
        Ok(&answer == b"$4000\r\nvvv")
    };
    while !answers().unwrap_or(false) {
        assert!(Instant::now() < until, "nothing is served any more");
        std::thread::sleep(Duration::from_millis(20));
    }
    let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let parts = names.filter(|name| name.to_string_lossy().contains(".part")).count();
    assert_eq!(parts, 0, "of those who were killed only a stream was made");
    assert!(!data.join("volume.aside").exists());
    server.stop();
}

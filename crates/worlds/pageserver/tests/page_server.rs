//! kill -9 of a page server's DPU side, again and again under a host that writes: the host learns
//! of each death in time, and nothing that was answered is lost.

#![expect(clippy::unwrap_used, reason = "tests say so when they fail")]

#[path = "../../os/tests/skips/mod.rs"]
mod skips;

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outboard_base::{Errno, Rng};
use outboard_dds::groups::Shape;
use outboard_dds::host::{Completion, File};
use outboard_os::room::Reserve;
use outboard_pageserver::host::{Attachment, LOSS_NOTICED};
use outboard_pageserver::library::{FileLibrary, file_library};
use outboard_pageserver::server::{Server, ServerOptions};
use skips::note_skip;

const DIR: &str = "OUTBOARD_PAGE_SERVER_TEST_DIR";
/// Not a multiple of anything: blocks are shared, segments are crossed.
const RECORD: usize = 1000;
/// Records under way.
const DEPTH: u64 = 16;
const LIMIT: Duration = Duration::from_secs(60);

/// Not a test by itself: the DPU side that is killed.
#[test]
#[ignore = "the child of the test below"]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = Path::new(&dir);
    let options = ServerOptions { capacity: Some(1 << 30), ..options(dir, &dir.join("volume")) };
    let _server = Server::start(options).unwrap();
    // Until killed, or until who started it is gone.
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).unwrap();
}

fn start(dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Attaches as soon as somebody listens.
fn attach(dir: &Path) -> FileLibrary {
    let shape = Shape::new(2, 64 << 10, 64 << 10, 8).unwrap();
    let begun = Instant::now();
    loop {
        match Attachment::attach(&dir.join("socket"), shape, LIMIT) {
            Ok(attachment) => return file_library(attachment).unwrap(),
            Err(error) => assert!(begun.elapsed() < LIMIT, "nobody listens: {error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn record(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; RECORD];
    Rng::new(number).fill(&mut bytes);
    bytes
}

fn wait(library: &FileLibrary, done: &mut Vec<Completion>) {
    library.poll_wait(library.default_poll(), done, 64, LIMIT).unwrap();
}

/// What the file holds from `offset`.
fn read(library: &FileLibrary, file: &File, offset: u64, len: usize) -> Vec<u8> {
    library.read_file(file, offset, vec![0; len], 0).map_err(|no| no.errno).unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        wait(library, &mut done);
    }
    let mut one: Completion = done.pop().unwrap();
    let read = usize::try_from(one.result.unwrap()).unwrap();
    let mut bytes = one.buffers.pop().unwrap();
    bytes.truncate(read);
    bytes
}

/// Appends records until the DPU side is gone; how many were answered in all, and how long after
/// its death that was told.
fn append(
    library: &FileLibrary,
    file: &File,
    first: u64,
    child: &mut Child,
    time: Duration,
) -> (u64, Duration) {
    let (mut next, mut answered, mut done) = (first, first, Vec::new());
    let begun = Instant::now();
    let mut killed = None;
    loop {
        if killed.is_none() && begun.elapsed() >= time && answered > first {
            child.kill().unwrap();
            child.wait().unwrap();
            killed = Some(Instant::now());
        }
        while next < answered + DEPTH {
            let offset = next * RECORD as u64;
            if library.write_file(file, offset, &record(next), next).is_err() {
                break;
            }
            next += 1;
        }
        wait(library, &mut done);
        for one in done.drain(..) {
            match one.result {
                Ok(_) => {
                    assert_eq!(one.user, answered, "answers come in order");
                    answered += 1;
                }
                Err(errno) => {
                    assert!(killed.is_some(), "{errno} before any kill");
                    let noticed = killed.unwrap().elapsed();
                    // A hundred times what is promised: this computer may be doing much else.
                    assert!(noticed < 100 * LOSS_NOTICED);
                    return (answered, noticed);
                }
            }
        }
        assert!(begun.elapsed() < LIMIT, "the death of the DPU side was not noticed");
    }
}

#[test]
fn a_killed_dpu_side_loses_nothing_it_answered() {
    let rounds = std::env::var("OUTBOARD_KILLS").ok().and_then(|s| s.parse().ok()).unwrap_or(6);
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(5);
    let (mut answered, mut soonest) = (0, Duration::MAX);
    for round in 0..rounds {
        let mut child = start(dir.path());
        let library = attach(dir.path());
        let directory =
            library.create_directory(b"logs").or_else(|_| library.open_directory(b"logs")).unwrap();
        let file = library
            .open_file(directory, b"log")
            .or_else(|_| library.create_file(directory, b"log"))
            .unwrap();
        // Every record that was answered in any life, whole.
        let held = read(&library, &file, 0, 16 << 10);
        let first = usize::try_from(answered).unwrap().min(held.len() / RECORD);
        for number in 0..first as u64 {
            let at = usize::try_from(number).unwrap() * RECORD;
            assert!(held[at..at + RECORD] == record(number), "round {round}: record {number}");
        }
        for number in (0..answered).rev().take(200) {
            let found = read(&library, &file, number * RECORD as u64, RECORD);
            assert!(found == record(number), "round {round}: record {number} of {answered}");
        }
        let time = Duration::from_millis(20 + rng.below(200));
        let (now, noticed) = append(&library, &file, answered, &mut child, time);
        assert!(now > answered, "round {round}: it made progress");
        answered = now;
        soonest = soonest.min(noticed);
    }
    // What is promised, once of several times: the rest is what else this computer does. Nothing
    // but a hundred times as much was asserted of a real death.
    println!("the soonest that a death was noticed: {soonest:?}");
    assert!(soonest < LOSS_NOTICED, "{soonest:?}");
}

fn options(dir: &Path, device: &Path) -> ServerOptions {
    let reserve = Reserve { most: 1 << 20, one_in: 1000 };
    let options = ServerOptions::new(device.to_path_buf(), dir.join("socket"));
    ServerOptions { capacity: Some(64 << 20), items: 100, reserve, ..options }
}

/// A file as a block device, until dropped.
struct LoopDevice(String);

impl LoopDevice {
    fn new(file: &Path) -> Result<LoopDevice, String> {
        let mut command = Command::new("losetup");
        let found = command.args(["--find", "--show"]).arg(file).output();
        let found = found.map_err(|error| format!("losetup: {error}"))?;
        if !found.status.success() {
            return Err(String::from_utf8_lossy(&found.stderr).trim().to_owned());
        }
        Ok(LoopDevice(String::from_utf8_lossy(&found.stdout).trim().to_owned()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _detached = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Writes to ends of segments until one has no room; how many bytes the file has.
fn fill(library: &FileLibrary, file: &File) -> u64 {
    for number in 0u64.. {
        let offset = number << 20;
        library.write_file(file, offset, &record(number), number).map_err(|no| no.errno).unwrap();
        let mut done: Vec<Completion> = Vec::new();
        while done.is_empty() {
            wait(library, &mut done);
        }
        match done.pop().unwrap().result {
            Ok(bytes) => assert_eq!(bytes, RECORD as u64),
            Err(errno) => {
                assert_eq!(errno, Errno::ENOSPC);
                return library.file_size(file).unwrap();
            }
        }
    }
    unreachable!("a device ends")
}

/// Root and a loop device are needed; says so and passes where they are not.
#[test]
fn a_block_device_is_taken_as_long_as_it_is_and_only_if_it_is_nobodys() {
    const BYTES: u64 = 48 << 20;
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(BYTES).unwrap();
    let device = match LoopDevice::new(&image) {
        Ok(device) => device,
        Err(why) => return note_skip("a page server on a block device", &why),
    };
    let path = Path::new(&device.0);
    // Somebody else's: an ext4 superblock's magic, where it is.
    let other = std::fs::File::options().read(true).write(true).open(path).unwrap();
    other.write_all_at(&[0x53, 0xEF], 1080).unwrap();
    let refused = Server::start(options(dir.path(), path)).err().unwrap().to_string();
    assert!(refused.contains(&device.0) && refused.contains("something else"), "{refused}");
    let mut magic = [0; 2];
    other.read_exact_at(&mut magic, 1080).unwrap();
    assert_eq!(magic, [0x53, 0xEF], "it is left alone");
    other.write_all_at(&[0; 2], 1080).unwrap();
    other.sync_all().unwrap();
    drop(other);
    let mut held = 0;
    for life in 0..2 {
        let server = Server::start(options(dir.path(), path)).unwrap();
        let library = attach(dir.path());
        let directory =
            library.create_directory(b"d").or_else(|_| library.open_directory(b"d")).unwrap();
        if life == 0 {
            let file = library.create_file(directory, b"f").unwrap();
            held = fill(&library, &file);
            assert!((BYTES / 2..BYTES).contains(&held), "{held} of {BYTES}");
            // Refused, and nothing else: the rest is there and can be written.
            assert_eq!(library.resize_file(&file, 2 * BYTES), Err(Errno::ENOSPC));
            library.flush_file(&file, 0).map_err(|no| no.errno).unwrap();
            let mut done: Vec<Completion> = Vec::new();
            wait(&library, &mut done);
            assert_eq!(done[0].result, Ok(0));
        }
        let file = library.open_file(directory, b"f").unwrap();
        assert_eq!(library.file_size(&file), Ok(held));
        for number in 0..held >> 20 {
            assert!(read(&library, &file, number << 20, RECORD) == record(number), "{number}");
        }
        // Short at the end, nothing beyond.
        assert_eq!(read(&library, &file, held - 5, RECORD).len(), 5);
        assert!(read(&library, &file, held, RECORD).is_empty());
        drop(library);
        server.stop().unwrap();
    }
}

/// What is left of a volume half made by power loss is a file of the first segment's length: the
/// volume made in it is not that small.
#[test]
fn a_volume_half_made_is_made_as_large_as_told() {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("volume");
    std::fs::File::create(&device).unwrap().set_len(2 << 20).unwrap();
    let server = Server::start(options(dir.path(), &device)).unwrap();
    let library = attach(dir.path());
    let directory = library.create_directory(b"d").unwrap();
    let file = library.create_file(directory, b"f").unwrap();
    library.resize_file(&file, 48 << 20).unwrap();
    server.stop().unwrap();
}

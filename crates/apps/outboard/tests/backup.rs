//! `outboard backup` and `restore` of data directories that are not running, stopped and killed:
//! what is restored is checked, opened and read; and nothing half is ever left. Of volumes that
//! run: `backup_running.rs`.

#![expect(clippy::unwrap_used, reason = "a test")]

mod serving;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use outboard_attach::host::{Connect, Host};
use serving::{Dpu, OUTBOARD, Serving, json, text};

type Volume = outboard_client::Volume<Host>;

fn run(args: &[&str], paths: &[&Path]) -> Output {
    Command::new(OUTBOARD).args(args).args(paths).output().unwrap()
}

fn done(args: &[&str], paths: &[&Path]) -> Output {
    let output = run(args, paths);
    assert!(output.status.success(), "{args:?} {paths:?}: {}", text(&output.stderr));
    output
}

/// It fails so, says that, and leaves no trace beside what was in the directory.
fn refused(code: i32, says: &str, in_dir: &Path, args: &[&str], paths: &[&Path]) {
    let before = names(in_dir);
    let output = run(args, paths);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert!(said.contains(says), "{args:?}: {said}");
    assert_eq!(names(in_dir), before, "{args:?}: {said}");
}

fn names(dir: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names
}

fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * i / 7 + i) % 251).unwrap()).collect()
}

fn attached<T>(data: &Path, work: impl FnOnce(&Volume) -> T) -> T {
    let volume = Volume::attach(|front| Connect::new(data.join("dpu.sock")).attach(front)).unwrap();
    let done = work(&volume);
    volume.backend().detach(Duration::from_secs(5)).unwrap();
    done
}

/// A volume with something small and something big, ended in order.
fn make_volume(data: &Path, flags: &[&str]) {
    let dpu = Dpu::start(data, &[&["--size=128M"], flags].concat());
    attached(data, |volume| {
        let how = outboard_client::OpenOptions::new().read().write().create(0o644);
        for (name, len) in [("small", 17), ("big", 3_000_000)] {
            let file = volume.open(name, how).unwrap();
            assert_eq!(file.write_at(&pattern(len), 0).unwrap() as u64, len);
            file.sync(false).unwrap();
        }
    });
    dpu.stop();
}

fn read_volume(data: &Path) {
    let dpu = Dpu::start(data, &[]);
    attached(data, |volume| {
        for (name, len) in [("small", 17), ("big", 3_000_000)] {
            let mut bytes = vec![0; 3_000_001];
            let file = volume.open(name, outboard_client::OpenOptions::new().read()).unwrap();
            let mut read = 0;
            while let Ok(more @ 1..) = file.read_at(&mut bytes[read..], read as u64) {
                read += more;
            }
            assert!(bytes[..read] == pattern(len), "{name} is another, {read} bytes");
        }
    });
    dpu.stop();
}

#[test]
fn an_ended_volume_is_copied_and_restored() {
    for flags in [&["--store=fjall"][..], &["--store=redb"]] {
        let dir = tempfile::tempdir().unwrap();
        let (data, file, copy) =
            (dir.path().join("data"), dir.path().join("copy.backup"), dir.path().join("copy"));
        make_volume(&data, flags);
        done(&["backup"], &[&data, &file]);
        let space = file.metadata().unwrap();
        assert!(space.size() < 64 << 20, "holes cost {} bytes", space.size());
        assert_eq!(space.mode() & 0o777, 0o600, "it holds everybody's files");
        std::fs::create_dir(&copy).unwrap();
        done(&["restore"], &[&file, &copy]);
        assert_eq!(names(dir.path()), [copy.clone(), file, data.clone()]);
        assert_eq!(json(&["fsck"], &copy)["clean"], true);
        read_volume(&copy);
        // The original is as it was.
        read_volume(&data);
    }
}

#[test]
fn a_volume_whose_dpu_side_was_killed_is_copied_with_what_was_synced() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file, copy) =
        (dir.path().join("data"), dir.path().join("file"), dir.path().join("copy"));
    make_volume(&data, &[]);
    // Dropped, it is killed.
    drop(Dpu::start(&data, &[]));
    done(&["backup"], &[&data, &file]);
    done(&["restore"], &[&file, &copy]);
    read_volume(&copy);
}

/// Each form, stopped and killed, through a file and through a pipe.
#[test]
fn what_a_server_keeps_is_copied_and_restored() {
    for (flags, kills) in
        [(&[][..], false), (&["--no-offload"], false), (&["--plain"], false), (&["--plain"], true)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (data, copy) = (dir.path().join("data"), dir.path().join("copy"));
        let size = if flags.contains(&"--plain") { &[][..] } else { &["--size=256M"] };
        let server = Serving::start("kv", &data, &[flags, size].concat());
        server.fill(2500);
        if kills {
            server.kill();
        } else {
            server.stop();
        }
        let mut backup = Command::new(OUTBOARD);
        let backup = backup.arg("backup").arg(&data).arg("-").stdout(Stdio::piped());
        let mut backup = backup.stderr(Stdio::null()).spawn().unwrap();
        let mut restore = Command::new(OUTBOARD);
        let restore =
            restore.args(["restore", "-"]).arg(&copy).stdin(backup.stdout.take().unwrap());
        assert!(restore.status().unwrap().success(), "{flags:?}");
        assert!(backup.wait().unwrap().success(), "{flags:?}");
        let report = json(&["fsck"], &copy);
        assert_eq!(report["clean"], true, "{flags:?} {report}");
        // Where a record lies is a matter of time: in the log, in the journal, or in both.
        let of = |count: &str| report["counts"][count].as_u64().unwrap();
        assert!(of("pages") > 3 || of("journal_values") == 2500, "{report}");
        let server = Serving::start("kv", &copy, flags);
        assert!((0..2500).all(|key| server.get(key).starts_with("$4000\r\nvvv")), "{flags:?}");
        server.stop();
    }
}

#[test]
fn a_page_server_whose_sides_were_killed_is_copied_with_what_was_synced() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file, copy) =
        (dir.path().join("data"), dir.path().join("file"), dir.path().join("copy"));
    let server = Serving::start("pages", &data, &["--size=64M"]);
    let pages = |args: &[&str], server: &Serving| {
        let mut command = Command::new(OUTBOARD);
        let output = command.arg("pages").args(args).args(["--connect", &server.at]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    pages(&["put", "5", "--lsn", "1", "hello"], &server);
    pages(&["sync"], &server);
    let dpu = json(&["status"], &data)["dpu"]["pid"].to_string();
    server.kill();
    // Its DPU side goes on without it, and says what the device holds.
    done(&["backup"], &[&data, &file]);
    std::fs::remove_file(&file).unwrap();
    assert!(Command::new("kill").args(["-9", &dpu]).status().unwrap().success());
    let until = Instant::now() + Duration::from_secs(30);
    while !run(&["backup"], &[&data, &file]).status.success() {
        assert!(Instant::now() < until, "the DPU side does not die");
    }
    done(&["restore"], &[&file, &copy]);
    let server = Serving::start("pages", &copy, &[]);
    assert!(pages(&["get", "5", "--lsn", "1"], &server).starts_with("hello"));
    server.stop();
}

#[test]
fn who_runs_is_not_copied_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (served, file) = (dir.path().join("served"), dir.path().join("file"));
    // What answers is: `backup_served.rs`, and a volume: `backup_running.rs`. A host of the release
    // before has no such socket.
    let server = Serving::start("kv", &served, &["--plain"]);
    std::fs::remove_file(served.join("control.sock")).unwrap();
    refused(4, "is being served", dir.path(), &["backup"], &[&served, &file]);
    server.fill(3);
    server.stop();
}

/// Of a volume in a pool nothing lies here that could be copied, whether it runs or not: its note
/// of the pool is enough to say so.
#[test]
fn a_volume_in_a_pool_is_not_copied_and_what_copies_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (dir.path().join("data"), dir.path().join("file"));
    make_volume(&data, &[]);
    let running = Dpu::start(&data, &[]);
    std::fs::write(data.join("store"), "rados://pool?conf=/nowhere\n00000000000000a1\n").unwrap();
    let says = "lies in a pool; copy it with `outboard migrate`";
    refused(4, says, dir.path(), &["backup"], &[&data, &file]);
    drop(running);
    refused(4, says, dir.path(), &["backup"], &[&data, &file]);
    // Only the note kept it from that.
    std::fs::remove_file(data.join("store")).unwrap();
    done(&["backup"], &[&data, &file]);
}

#[test]
fn a_backup_that_is_cut_damaged_or_another_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file, copy) =
        (dir.path().join("data"), dir.path().join("file"), dir.path().join("copy"));
    let server = Serving::start("kv", &data, &["--plain"]);
    server.fill(30);
    server.stop();
    done(&["backup"], &[&data, &file]);
    let whole = std::fs::read(&file).unwrap();
    let restore = |bytes: &[u8], code: i32, says: &str| {
        std::fs::write(&file, bytes).unwrap();
        refused(code, says, dir.path(), &["restore"], &[&file, &copy]);
    };
    for len in [0, 63] {
        restore(&whole[..len], 5, "it is no backup, or cut");
    }
    for len in [64, 100, whole.len() / 2, whole.len() - 1] {
        restore(&whole[..len], 5, "it is cut");
    }
    let mut other = whole.clone();
    other[whole.len() / 2] ^= 1;
    restore(&other, 5, "it is damaged");
    other.clone_from(&whole);
    other[8] = 3;
    restore(&other, 4, "version 3, and this program reads 1 and 2");
    restore(&[b'x'; 5000], 4, "it is no backup");
    restore(&[&whole[..], b"x"].concat(), 5, "something follows its end");
    restore(&of_another_kind(), 5, "it says it is of a volume, and holds something else");
    let mixed = [&b"b"[..], b"a"];
    restore(&of_pairs(b"", &mixed), 5, "its pairs are not in order");
    restore(&of_pairs(b"redb\n", &mixed), 5, "its pairs are not in order");
    restore(&of_pairs(b"rados://p?conf=/c\n1\n", &[b"a"]), 5, "belong to no engine of its own");
    // An engine, and no volume in it.
    restore(&of_pairs(b"redb\n", &[b"a"]), 4, "");
    std::fs::create_dir(&copy).unwrap();
    File::create(copy.join("thesis.tex")).unwrap();
    restore(&whole, 4, "is not empty");
    std::fs::remove_file(copy.join("thesis.tex")).unwrap();
    done(&["restore"], &[&file, &copy]);
    assert_eq!(json(&["fsck"], &copy)["clean"], true);
}

/// A sound backup that says it is a volume's, with an application in it.
fn of_another_kind() -> Vec<u8> {
    use outboard_codec::archive::{Header, Kind, Name, Writer};
    let mut out = Vec::new();
    let header = Header { kind: Kind::Volume, made: 0, id: [0; 16], bytes: 0 };
    let mut writer = Writer::new(&header, &mut out);
    writer.file(&Name::new("application").unwrap(), &mut out).unwrap();
    writer.bytes(0, b"kv --plain", &mut out).unwrap();
    writer.file_end(10, &mut out).unwrap();
    writer.end(&mut out).unwrap();
    out
}

/// A sound backup of a volume in that store, with pairs that are none of a volume's.
fn of_pairs(store: &[u8], keys: &[&[u8]]) -> Vec<u8> {
    use outboard_codec::archive::{Header, Kind, Name, Writer, append_pair};
    let mut out = Vec::new();
    let header = Header { kind: Kind::Pairs, made: 0, id: [0; 16], bytes: 0 };
    let mut writer = Writer::new(&header, &mut out);
    for (name, text) in [("format", &b"outboard kv volume, format 1\n"[..]), ("store", store)] {
        if text.is_empty() {
            continue;
        }
        writer.file(&Name::new(name).unwrap(), &mut out).unwrap();
        writer.bytes(0, text, &mut out).unwrap();
        writer.file_end(text.len() as u64, &mut out).unwrap();
    }
    for key in keys {
        let mut body = Vec::new();
        assert!(append_pair(key, b"value", &mut body));
        writer.pairs(&body, &mut out).unwrap();
    }
    writer.end(&mut out).unwrap();
    out
}

/// What damage lay in the directory is copied as it is, and found before anything is restored.
#[test]
fn a_damaged_directory_is_not_restored() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file, copy) =
        (dir.path().join("data"), dir.path().join("file"), dir.path().join("copy"));
    let server = Serving::start("pages", &data, &["--size=64M"]);
    server.stop();
    let volume = OpenOptions::new().write(true).open(data.join("volume")).unwrap();
    volume.write_all_at(&[1], 0).unwrap();
    drop(volume);
    done(&["backup"], &[&data, &file]);
    let says = "copy 0 of the superblock is damaged";
    refused(5, says, dir.path(), &["restore"], &[&file, &copy]);
}

#[test]
fn a_file_that_is_there_is_replaced_only_if_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (dir.path().join("data"), dir.path().join("file"));
    let nothing = dir.path().join("nothing");
    refused(4, "holds neither", dir.path(), &["backup"], &[&nothing, &file]);
    Serving::start("kv", &data, &["--plain"]).stop();
    std::fs::write(&file, "old").unwrap();
    refused(2, "--force", dir.path(), &["backup"], &[&data, &file]);
    assert_eq!(std::fs::read(&file).unwrap(), b"old");
    done(&["backup", "--force"], &[&data, &file]);
    assert!(std::fs::read(&file).unwrap().starts_with(b"OBBACKUP"));
    refused(2, "lies in what is copied", &data, &["backup"], &[&data, &data.join("file")]);
    refused(2, "and no file", dir.path(), &["backup", "--force"], &[&data, Path::new("/dev/null")]);
    let mut strange = File::create(data.join("a strange name")).unwrap();
    strange.write_all(b"?").unwrap();
    let other = dir.path().join("other");
    refused(4, "move it away", dir.path(), &["backup"], &[&data, &other]);
}

/// A file that may not become so large stands for a full disk; half of a stream for what somebody
/// still waits for.
#[test]
fn a_copy_that_is_interrupted_or_finds_no_room_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (dir.path().join("data"), dir.path().join("file"));
    let server = Serving::start("kv", &data, &["--plain"]);
    server.fill(2500);
    server.stop();
    let before = names(dir.path());
    let mut limited = Command::new("sh");
    limited.args([
        "-c",
        "trap '' XFSZ; ulimit -f 2048; exec \"$0\" backup \"$1\" \"$2\"",
        OUTBOARD,
    ]);
    let output = limited.arg(&data).arg(&file).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write") && said.contains("too large"), "{said}");
    assert_eq!(names(dir.path()), before);
    // Told to end while it waits for the rest, it ends when that comes.
    let mut restore = Command::new(OUTBOARD);
    let restore = restore.args(["restore", "-"]).arg(dir.path().join("copy"));
    let mut restore = restore.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = restore.stdin.take().unwrap();
    done(&["backup"], &[&data, &file]);
    let whole = std::fs::read(&file).unwrap();
    input.write_all(&whole[..whole.len() / 2]).unwrap();
    let pid = restore.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    // It may end before it has taken the rest.
    let _taken = input.write_all(&whole[whole.len() / 2..]);
    drop(input);
    let output = restore.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("interrupted"), "{}", text(&output.stderr));
    assert_eq!(names(dir.path()), [data, file]);
}

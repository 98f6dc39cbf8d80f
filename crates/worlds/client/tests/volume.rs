//! A volume on disk behind a DPU side of its own process, used by this one.
//!
//! The DPU side is this same program run again: `dpu_process` does nothing unless its directory is
//! named in the environment; likewise `as_a_plain_user`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_attach::dpu::{Dpu, DpuOptions, Wish};
use outboard_attach::host::{Connect, Host};
use outboard_client::{
    Errno, How, LockKind, LockStyle, OpenOptions, Opened, Place, Setattr, Walked, cred, open_flags,
};
use outboard_fjall::{Engine, EngineOptions};
use outboard_kvfs::{Kvfs, Options};
use outboard_os::clock;
use outboard_os::executor::block_on;
use outboard_os::medium::{FileMedium, MediumOptions, Reactor};
use outboard_os::runtime::Poller;
use outboard_os::wakeup::Wakeup;
use outboard_store::directory::DataDirectory;

type Volume = outboard_client::Volume<Host>;
type File = outboard_client::File<Host>;

const DIR: &str = "OUTBOARD_CLIENT_DIR";
const SOCKET: &str = "OUTBOARD_CLIENT_SOCKET";
const HIDDEN: &str = "OUTBOARD_CLIENT_HIDDEN";
const NOBODY: u32 = 65534;
const DETACH: Duration = Duration::from_secs(5);

/// Not a test by itself: the DPU side of the others.
#[test]
#[ignore = "the child of the tests below"]
fn dpu_process() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = PathBuf::from(dir);
    let directory = DataDirectory::open(&dir.join("data")).unwrap();
    let engine = Engine::open(&directory.kv(), EngineOptions::default()).unwrap();
    let medium = FileMedium::open(&directory.blocks(), MediumOptions::default()).unwrap();
    let options = Options { capacity: 256 << 20, segment: 4 << 20, id: 7, ..Options::default() };
    let volume = block_on(Kvfs::open(engine, medium, options, clock::wall())).unwrap();
    let wakeup = Arc::new(Wakeup::new().unwrap());
    let runtime = Rc::new(Poller::new(Arc::clone(&wakeup), Reactor::install(64).ok()));
    let options = DpuOptions {
        socket_mode: 0o666,
        grace: Duration::from_secs(5),
        ..DpuOptions::new(dir.join("socket"), dir.join("sessions"))
    };
    let mut dpu = Dpu::new(Arc::new(volume), runtime, wakeup, options).unwrap();
    dpu.run(&|| Wish::GoOn).unwrap();
}

struct Rig {
    dir: tempfile::TempDir,
    dpu: Option<Child>,
}

fn this_test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", name, "--nocapture"]).stdout(Stdio::null());
    command
}

impl Rig {
    fn new() -> Rig {
        let mut rig = Rig { dir: tempfile::tempdir().unwrap(), dpu: None };
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(rig.dir.path(), open).unwrap();
        rig.start();
        rig
    }

    fn start(&mut self) {
        self.dpu = Some(this_test("dpu_process").env(DIR, self.dir.path()).spawn().unwrap());
    }

    fn kill(&mut self) {
        let mut child = self.dpu.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn volume(&self) -> Volume {
        attach(Connect::new(self.socket()))
    }

    fn cached_volume(&self) -> Volume {
        attach(Connect::new(self.socket()).cache(16 << 20))
    }
}

fn attach(how: Connect) -> Volume {
    Volume::attach(|front| how.attach(front)).unwrap()
}

impl Drop for Rig {
    fn drop(&mut self) {
        if self.dpu.is_some() {
            self.kill();
        }
    }
}

fn new_file(volume: &Volume, path: &str) -> File {
    volume.open(path, OpenOptions::new().read().write().create(0o644)).unwrap()
}

#[test]
fn bytes_names_and_attributes() {
    let rig = Rig::new();
    use_a_volume(&rig.volume());
}

#[test]
fn bytes_names_and_attributes_with_a_cache() {
    let rig = Rig::new();
    use_a_volume(&rig.cached_volume());
}

fn use_a_volume(volume: &Volume) {
    let file = new_file(volume, "a");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| n.to_le_bytes()[0]).collect();
    assert_eq!(file.write_at(&bytes, 5).unwrap(), bytes.len());
    let mut back = vec![1; bytes.len() + 100];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), bytes.len() + 5, "short at the end only");
    assert_eq!(back[..5], [0; 5]);
    assert!(back[5..5 + bytes.len()] == bytes[..]);
    file.sync(false).unwrap();
    assert_eq!(volume.stat("a").unwrap().size, file.attr().unwrap().size);

    volume.mkdir("d", 0o755).unwrap();
    assert_eq!(volume.mkdir("d", 0o755), Err(Errno::EEXIST));
    volume.rename("a", "d/b").unwrap();
    assert_eq!(volume.stat("a"), Err(Errno::ENOENT));
    volume.link("d/b", "c").unwrap();
    assert_eq!(volume.stat("c").unwrap().nlink, 2);
    let names = |path| -> Vec<Vec<u8>> {
        volume.open_dir(path).unwrap().read(0).unwrap().into_iter().map(|e| e.name).collect()
    };
    // The newest name first.
    assert_eq!(names("/"), [b"c".to_vec(), b"d".to_vec()]);
    assert_eq!(names("d/../d/."), [b"b".to_vec()]);
    assert_eq!(volume.rmdir("d"), Err(Errno::ENOTEMPTY));
    assert_eq!(volume.unlink("d"), Err(Errno::EISDIR));
    volume.unlink("d/b").unwrap();
    volume.rmdir("d/").unwrap();
    volume.unlink("c").unwrap();
    // Open and without a name it is whole.
    assert_eq!(file.read_at(&mut back, 5).unwrap(), bytes.len());
    assert_eq!(file.attr().unwrap().nlink, 0);
    drop(file);
    volume.backend().detach(DETACH).unwrap();
}

#[test]
fn paths_are_walked_as_the_kernel_walks_them() {
    let rig = Rig::new();
    let volume = rig.volume();
    volume.mkdir("d", 0o755).unwrap();
    drop(new_file(&volume, "d/f"));
    volume.symlink("d/f", "relative").unwrap();
    volume.symlink("/d/f", "absolute").unwrap();
    volume.symlink("loop", "loop").unwrap();
    volume.symlink("d/new", "dangling").unwrap();
    let ino = volume.stat("d/f").unwrap().ino;
    for path in ["relative", "absolute", "/d/./f", "d/../relative", "d//f"] {
        assert_eq!(volume.stat(path).map(|attr| attr.ino), Ok(ino), "{path}");
    }
    assert_ne!(volume.lstat("relative").unwrap().ino, ino);
    for (path, errno) in [
        ("loop", Errno::ELOOP),
        ("dangling", Errno::ENOENT),
        ("d/f/", Errno::ENOTDIR),
        ("d/f/x", Errno::ENOTDIR),
        ("relative/", Errno::ENOTDIR),
        ("nothing/x", Errno::ENOENT),
        ("", Errno::ENOENT),
    ] {
        assert_eq!(volume.stat(path).map(|attr| attr.ino), Err(errno), "{path}");
    }
    // A last `.` was dropped: `rmdir("d/.")` removed d.
    volume.mkdir("e", 0o755).unwrap();
    assert_eq!(volume.rmdir("e/."), Err(Errno::EINVAL));
    assert_eq!(volume.rename("e/./", "g"), Err(Errno::EBUSY));
    assert_eq!(volume.unlink("e/."), Err(Errno::EISDIR));
    assert_eq!(volume.stat("relative/."), Err(Errno::ENOTDIR));
    assert_eq!(volume.mkdir("h/.", 0o755).map(drop), Err(Errno::ENOENT));
    assert_eq!(volume.stat("e/.").map(|attr| attr.ino), volume.stat("e").map(|attr| attr.ino));
    volume.rmdir("e/").unwrap();
    let long = "n".repeat(256);
    assert_eq!(volume.stat(&long), Err(Errno::ENAMETOOLONG));
    let exclusive = OpenOptions::new().write().create(0o600).exclusive();
    assert_eq!(volume.open("dangling", exclusive).unwrap_err(), Errno::EEXIST);
    drop(new_file(&volume, "dangling"));
    assert_eq!(volume.stat("d/new").unwrap().size, 0, "made where the link leads");
    assert_eq!(volume.readlink("relative").unwrap(), b"d/f");
    assert_eq!(volume.readlink("d/f"), Err(Errno::EINVAL));
}

/// A file made without a name kept its space until the process let go of the volume, since this
/// side never said that it refers to it no more.
#[test]
fn a_file_made_without_a_name_goes_when_it_is_closed() {
    let rig = Rig::new();
    let volume = rig.volume();
    let Ok(Walked::Inside(root)) = volume.walk(&Place::root(), b"/", true) else { panic!() };
    let how = How { flags: open_flags::RDWR, mode: 0o600, ..How::default() };
    let Opened::File(file, attr) = volume.tmpfile_at(&root, &how).unwrap() else { panic!() };
    file.write_at(&[7; 100_000], 0).unwrap();
    let mut back = [0; 100_000];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), back.len());
    assert!(back == [7; 100_000], "open it is whole");
    assert_eq!(attr.nlink, 0);
    drop(file);
    assert_eq!(volume.attr(attr.ino).map(|attr| attr.nlink), Err(Errno::ESTALE));
}

/// With a prefix, what leads out of the volume is handed back as the path it leads to.
#[test]
fn ways_out_are_named() {
    let rig = Rig::new();
    let volume = attach(Connect::new(rig.socket())).with_prefix(b"/mnt/volume".to_vec());
    volume.mkdir("d", 0o755).unwrap();
    volume.symlink("/etc", "out").unwrap();
    volume.symlink("/mnt/volume/d", "in").unwrap();
    volume.symlink("/mnt/volume", "top").unwrap();
    let leads = |path: &str| match volume.walk(&Place::root(), path.as_bytes(), true).unwrap() {
        Walked::Outside(path) => String::from_utf8(path).unwrap(),
        Walked::Inside(spot) => format!("inside {}", String::from_utf8(spot.path()).unwrap()),
    };
    assert_eq!(leads("out/passwd"), "/etc/passwd");
    assert_eq!(leads("d/../../other/x"), "/mnt/other/x");
    assert_eq!(leads("in"), "inside /d");
    assert_eq!(leads("top/in/new"), "inside /d/new");
    assert_eq!(leads("top"), "inside ");
}

#[test]
fn many_threads_share_the_queues() {
    let rig = Rig::new();
    share(&rig.volume());
}

/// What one process has in its cache, another sees, and the DPU side keeps when the first is gone.
#[test]
fn many_threads_share_the_cache() {
    let rig = Rig::new();
    let volume = rig.cached_volume();
    share(&volume);
    let other = rig.cached_volume();
    let mut seen = vec![0; 24 * 8192];
    let file = other.open("f", OpenOptions::new().read()).unwrap();
    assert_eq!(file.read_at(&mut seen, 0), Ok(seen.len()));
    for (thread, bytes) in (0u8..).zip(seen.chunks(8192)) {
        assert!(bytes.iter().all(|byte| *byte == thread ^ 19), "thread {thread}");
    }
    let file = new_file(&volume, "small");
    file.write_at(b"kept", 0).unwrap();
    drop(volume);
    assert_eq!(other.stat("small").unwrap().size, 4);
    let small = other.open("small", OpenOptions::new().read()).unwrap();
    let mut back = [0; 8];
    assert_eq!(small.read_at(&mut back, 0), Ok(4));
    assert_eq!(&back[..4], b"kept");
    std::mem::forget(file);
}

fn share(volume: &Volume) {
    let file = new_file(volume, "f");
    file.truncate(64 * 8192).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..24u8 {
            let file = &file;
            scope.spawn(move || {
                let mine = u64::from(thread);
                for round in 0..20 {
                    let bytes = [thread ^ round; 8192];
                    file.write_at(&bytes, mine * 8192).unwrap();
                    let mut back = [0; 8192];
                    assert_eq!(file.read_at(&mut back, mine * 8192).unwrap(), 8192);
                    assert_eq!(back, bytes);
                    assert_eq!(volume.stat("f").unwrap().size, 64 * 8192);
                }
            });
        }
    });
}

/// kill -9 of the DPU side under a writer: calls wait, and nothing answered is lost.
#[test]
fn the_dpu_side_is_killed_under_a_writer() {
    let mut rig = Rig::new();
    let volume = rig.volume();
    let file = new_file(&volume, "f");
    let unnamed = new_file(&volume, "gone");
    volume.unlink("gone").unwrap();
    for round in 0..3u8 {
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for block in 0..400u64 {
                    let bytes = [round.wrapping_add(block.to_le_bytes()[0]); 4096];
                    assert_eq!(file.write_at(&bytes, block * 4096).unwrap(), 4096);
                }
                unnamed.write_at(&[round], u64::from(round)).unwrap();
            });
            std::thread::sleep(Duration::from_millis(10));
            rig.kill();
            rig.start();
            writer.join().unwrap();
        });
        let mut back = vec![0; 400 * 4096];
        assert_eq!(file.read_at(&mut back, 0).unwrap(), back.len());
        for (block, bytes) in (0u64..).zip(back.chunks(4096)) {
            let expected = round.wrapping_add(block.to_le_bytes()[0]);
            assert!(bytes.iter().all(|byte| *byte == expected), "round {round} block {block}");
        }
    }
    assert_eq!(unnamed.attr().unwrap().size, 3, "an open file without a name lives on");
}

#[test]
fn who_leaves_keeps_no_lock() {
    let rig = Rig::new();
    let (one, two) = (rig.volume(), rig.volume());
    let (a, b) = (new_file(&one, "f"), new_file(&two, "f"));
    let whole = (0, u64::MAX);
    a.lock(LockStyle::Posix, 1, LockKind::Write, whole, false).unwrap();
    let taken = b.lock(LockStyle::Posix, 1, LockKind::Write, whole, false);
    assert_eq!(taken, Err(Errno::EAGAIN));
    assert_eq!(b.test_lock(1, LockKind::Write, whole).unwrap().map(|l| l.0), Some(LockKind::Write));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| b.lock(LockStyle::Posix, 1, LockKind::Write, whole, true));
        std::thread::sleep(Duration::from_millis(20));
        one.backend().detach(DETACH).unwrap();
        waiter.join().unwrap().unwrap();
    });
    std::mem::forget(a);
}

/// Not a test by itself: what a plain user may do, by its own process.
#[test]
#[ignore = "the child of the test below"]
fn as_a_plain_user() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let volume = attach(Connect::new(Path::new(&socket)));
    assert_eq!(cred().uid, NOBODY);
    let read = OpenOptions::new().read();
    assert_eq!(volume.open("secret", read).unwrap_err(), Errno::EACCES);
    assert_eq!(volume.open("locked/readable", read).unwrap_err(), Errno::EACCES);
    assert_eq!(volume.unlink("public"), Err(Errno::EACCES));
    assert_eq!(volume.mkdir("mine", 0o755), Err(Errno::EACCES));
    let file = volume.open("public", read).unwrap();
    assert_eq!(file.read_at(&mut [0; 3], 0), Ok(3));
    let mode = Setattr { mode: Some(0o777), ..Setattr::default() };
    assert_eq!(volume.change("public", &mode), Err(Errno::EPERM));
    // Inode numbers can be guessed: one that was never walked to opens nothing, though its
    // permissions would allow it.
    let hidden = std::env::var(HIDDEN).unwrap().parse().unwrap();
    assert_eq!(volume.open_ino(outboard_client::Ino(hidden), 0).unwrap_err(), Errno::ESTALE);
    let open = OpenOptions::new().write().create(0o644);
    let own = volume.open("tmp/own", open).unwrap();
    assert_eq!(own.attr().unwrap().uid, NOBODY);
}

#[test]
fn a_plain_user_may_do_what_the_volume_allows() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let rig = Rig::new();
    let volume = rig.volume();
    let file = new_file(&volume, "public");
    file.write_at(b"abc", 0).unwrap();
    volume.open("secret", OpenOptions::new().write().create(0o600)).unwrap();
    volume.mkdir("locked", 0o700).unwrap();
    let hidden = new_file(&volume, "locked/readable").ino();
    volume.mkdir("tmp", 0o777).unwrap();
    // The umask of this process does not count; the directory is for everybody.
    let mut child = this_test("as_a_plain_user");
    child.env(SOCKET, rig.socket()).env(HIDDEN, hidden.to_string()).uid(NOBODY).gid(NOBODY);
    assert!(child.status().unwrap().success());
}

//! A user takes what it can by processes of its own; others have their shares all the same.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use outboard_attach::host::{Host, HostOptions};
use outboard_attach::link::{Peer, Received, connect as knock};
use outboard_base::limits::LOCKS_MAX;
use outboard_base::{Errno, Fh, Ino};
use outboard_dpc::host::{LossPolicy, QueuePort};
use outboard_wire::attach::{Message, Reason};
use outboard_wire::file::{Lock, LockKind, LockStyle, Reply, Request};

use crate::rig::{Completed, HANDLES, Volume, ask, call, connect, create, later, said, wait_until};
use crate::skips::note_skip;

const GREEDY: &str = "OUTBOARD_SIDES_GREEDY";
/// Users that no computer of ours gives anything to.
const USERS: [u32; 2] = [65_533, 65_534];
/// Connections a user has at most.
const CONNECTIONS: usize = 64;

/// The file that a user opens and locks: one for each, as every lock walks those of its file.
fn file_for(user: u32) -> String {
    format!("for-{user}")
}

/// Handles on this user's file until one is refused: how many, why, and the last of them.
fn open_all(port: &mut QueuePort) -> (usize, Errno, (Ino, Fh)) {
    let name = file_for(rustix::process::geteuid().as_raw());
    let lookup = Request::Lookup { parent: Ino::ROOT, name: name.as_bytes() };
    let Ok(Reply::Entry(attr)) = call(port, &lookup, &[]) else { panic!("no {name}") };
    let mut last = Fh(0);
    for count in 0..HANDLES[0] {
        let open = Request::Open { ino: attr.ino, flags: 0 };
        match call(port, &open, &[]) {
            Ok(Reply::Opened(fh)) => last = fh,
            Err(errno) => return (count, errno, (attr.ino, last)),
            other => panic!("{other:?}"),
        }
    }
    panic!("no end of handles");
}

/// Locks of single bytes, which exclude nobody, until one is refused: how many.
fn lock_all(port: &mut QueuePort, (ino, fh): (Ino, Fh)) -> usize {
    for count in 0..=LOCKS_MAX {
        let at = 2 * count as u64;
        let (kind, style) = (LockKind::Read, LockStyle::Posix);
        let lock = Lock { owner: 1, start: at, end: at, kind, style, pid: 0 };
        let lock = Request::Setlk { ino, fh, lock, wait: false, reclaim: false };
        match call(port, &lock, &[]) {
            // Who decided so far hands them back first: then it is granted.
            Ok(Reply::Empty | Reply::Delegated | Reply::Waiting(_)) => {}
            Err(Errno::ENOLCK) => return count,
            other => panic!("lock {count}: {other:?}"),
        }
    }
    panic!("no end of locks");
}

/// A connection, if one is given.
fn connection(socket: &Path) -> Option<Peer> {
    let peer = knock(socket).unwrap();
    // Whoever was refused may have no socket to say it to any more.
    let _sent = peer.send(&Message::Control { id: 1, text: said("status") }, &[]);
    match peer.receive_by(later()).unwrap() {
        Received::Message(Message::ControlReply { .. }, _) => Some(peer),
        // A socket that is closed with the request unread may lose the refusal.
        Received::Message(Message::Refused { reason: Reason::Full, .. }, _) | Received::Closed => {
            None
        }
        other => panic!("{other:?}"),
    }
}

/// Not a test by itself: a process that takes connections, handles and locks until it is refused
/// more, and keeps them until it is killed.
#[test]
#[ignore = "the child of the test below"]
fn greedy_process() {
    let Some(dir) = std::env::var_os(GREEDY) else { return };
    let socket = PathBuf::from(dir).join("socket");
    let attach = || Host::connect(HostOptions::new(socket.clone()), Arc::new(Completed::default()));
    let hosts = [attach().unwrap(), attach().unwrap(), attach().unwrap()];
    let mut ports = hosts.each_ref().map(|host| host.session().calling_port(0).unwrap());
    let opened = ports.each_mut().map(open_all);
    let handles = opened.map(|(count, errno, _)| (count, errno));
    let locks: usize =
        ports.iter_mut().zip(opened).map(|(port, (.., file))| lock_all(port, file)).sum();
    let idle: Vec<Peer> = std::iter::from_fn(|| connection(&socket)).collect();
    let connections = hosts.len() + idle.len();
    println!("\ntook {connections} connections, handles {handles:?}, locks {locks}");
    // Until it is killed, or who started it is gone.
    let _end = std::io::stdin().read_line(&mut String::new());
}

/// A process of `user` that has taken what it can, and what that was.
fn greedy(volume: &Volume, user: u32) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "shares::greedy_process", "--nocapture"])
        .env(GREEDY, volume.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .uid(user)
        .gid(user)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let took = lines.find(|line| line.starts_with("took "));
    (child, took.expect("it says what it took"))
}

/// Whoever may attach could take every connection and every handle, and half a million locks. The
/// shares were tested by their rules alone: here users take them by processes and sockets of their
/// own, at once.
#[test]
fn one_user_s_processes_leave_others_their_shares() {
    if !rustix::process::geteuid().is_root() {
        return note_skip("attach-users", "other users' processes are started by root alone");
    }
    let volume = Volume::open();
    let (host, _) = connect(&volume, LossPolicy::Wait);
    let mut port = host.session().calling_port(0).unwrap();
    let file = create(&mut port, "file", 0);
    for user in USERS {
        create(&mut port, &file_for(user), 0);
    }

    let [_, of_user, of_one] = HANDLES;
    let (most, rest) = ((of_one, Errno::EMFILE), (of_user - 2 * of_one, Errno::ENFILE));
    let handles = [most, most, rest];
    // What two attachments may have; an owner's next lock may split one in two, and has room.
    let locks = 2 * LOCKS_MAX - 1;
    let share = format!("took {CONNECTIONS} connections, handles {handles:?}, locks {locks}");
    let children = USERS.map(|user| {
        let (child, took) = greedy(&volume, user);
        assert_eq!(took, share, "user {user}");
        child
    });
    // Root, who owns the volume, is neither refused nor counted with them.
    let hosts: Vec<_> = (0..CONNECTIONS).map(|_| connect(&volume, LossPolicy::Wait)).collect();
    let mut another = hosts[0].0.session().calling_port(0).unwrap();
    let open = Request::Open { ino: file.0, flags: 0 };
    let mut last = Fh(0);
    for _ in 0..of_user + of_one {
        let Ok(Reply::Opened(fh)) = call(&mut another, &open, &[]) else {
            panic!("root is refused")
        };
        last = fh;
    }
    assert!(lock_all(&mut another, (file.0, last)) >= LOCKS_MAX - 1);
    let attachments = || volume.status()["attachments"].as_array().unwrap().len();
    assert_eq!(attachments(), 1 + hosts.len() + 2 * handles.len());
    // What the dead had is their user's to take again.
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    wait_until("their attachments are gone", || attachments() == 1 + hosts.len());
    let (mut child, took) = greedy(&volume, USERS[0]);
    assert_eq!(took, share);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(ask(&volume.socket(), &said("check"))["clean"], true);
}

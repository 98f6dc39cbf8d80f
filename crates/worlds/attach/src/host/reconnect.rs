//! The reconnect thread: notices a loss of the DPU side and brings the session back.

use std::sync::Arc;
use std::time::Duration;

use outboard_base::Time;
use outboard_base::machine::Outbox;
use outboard_dpc::host::reconnect::{Effect, Input, Reconnect};
use outboard_dpc::host::{LossPolicy, Session};
use outboard_link::beat::Beat;
use rustix::event::{PollFd, PollFlags};

use super::world::HostWorld;
use super::{HostOptions, Stop};
use crate::link::{AttachFailure, HostLink, HostMemory, Peer, Received};
use outboard_os::clock;

/// How long one attempt to attach may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Messages taken from the socket in one look, which brings none.
const MESSAGES: usize = 8;

pub(super) fn run(
    options: &HostOptions,
    session: &Arc<Session>,
    world: &HostWorld,
    memory: &HostMemory,
    stop: &Stop,
) {
    let mut reconnect = Reconnect::new(options.on_loss, clock::now());
    let mut effects = Outbox::new(Reconnect::EFFECTS_MAX);
    reconnect.handle(clock::now(), Input::Attached, &mut effects);
    while !stop.is_asked() {
        let link = world.link();
        if let Some(cause) = stay(options, &link, stop) {
            hang_up(&link);
            session.lost();
            say_lost(options, cause);
            reconnect.handle(clock::now(), Input::Lost, &mut effects);
            come_back(options, session, world, memory, stop, &mut reconnect, &mut effects);
        }
    }
}

/// Watches a link until it is lost (why?) or the end is asked for (`None`).
fn stay(options: &HostOptions, link: &HostLink, stop: &Stop) -> Option<&'static str> {
    let registers = link.registers();
    let mut beat = Beat::new(clock::now(), registers.dpu_beat(), options.beat_limit);
    while !stop.is_asked() {
        registers.beat_host();
        let until = clock::now().after(Beat::period(options.beat_limit));
        if sleep(Some(link), stop, until) && is_closed(link.peer()) {
            return Some("its socket closed");
        }
        if link.is_lost() && !stop.is_asked() {
            return Some("its events cannot be read");
        }
        if !beat.observe(clock::now(), registers.dpu_beat()) {
            return Some("its heartbeat stands still");
        }
    }
    None
}

/// Sleeps until the socket has something, the end is asked for, or `until`; true for the socket.
fn sleep(link: Option<&HostLink>, stop: &Stop, until: Time) -> bool {
    let left = until.since(clock::now());
    let timeout = rustix::time::Timespec::try_from(left).ok();
    let wakeup = stop.wakeup.fd();
    let mut fds = vec![PollFd::from_borrowed_fd(wakeup, PollFlags::IN)];
    fds.extend(link.map(|link| PollFd::from_borrowed_fd(link.socket(), PollFlags::IN)));
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => {
            tracing::error!(%error, "cannot wait for the link's socket");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    fds.get(1).is_some_and(|fd| !fd.revents().is_empty())
}

/// Gives a link up. A DPU side that only hung must see the socket close, though this side may still
/// hold it: until then it takes the session for attached.
fn hang_up(link: &HostLink) {
    link.declare_lost();
    // Gone already is as good.
    let _gone = rustix::net::shutdown(link.socket(), rustix::net::Shutdown::Both);
}

/// Whether the DPU side has hung up. It says nothing else on this socket: one that talks on and on
/// would have this thread listen for ever, and counts as gone.
pub(super) fn is_closed(peer: &Peer) -> bool {
    for _ in 0..MESSAGES {
        match peer.receive() {
            Ok(Received::Nothing) => return false,
            Ok(Received::Message(_, _)) => {}
            Ok(Received::Closed | Received::Garbage(_)) | Err(_) => return true,
        }
    }
    true
}

/// Attaches again, whatever it takes.
fn come_back(
    options: &HostOptions,
    session: &Arc<Session>,
    world: &HostWorld,
    memory: &HostMemory,
    stop: &Stop,
    reconnect: &mut Reconnect,
    effects: &mut Outbox<Effect>,
) {
    let since = clock::now();
    let mut said = String::new();
    while !stop.is_asked() && !reconnect.is_attached() {
        let until = reconnect.next_deadline().unwrap_or_else(clock::now);
        sleep(None, stop, until);
        reconnect.handle(clock::now(), Input::Deadline, effects);
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::GiveUp => {
                    tracing::error!(
                        socket = %options.socket.display(),
                        "the DPU side stays away: calls fail with ENOTCONN until it is back \
                         (start it again, or unmount)"
                    );
                    session.give_up();
                }
                Effect::Connect => {
                    let input = match attach(options, session, world, memory, &mut said) {
                        true => Input::Attached,
                        false => Input::Failed,
                    };
                    reconnect.handle(clock::now(), input, effects);
                }
            }
        }
    }
    if reconnect.is_attached() {
        let away = clock::now().since(since);
        tracing::info!(away_ms = away.as_millis(), "the DPU side is back");
    }
}

/// One attempt; whether the session is whole again. `said` is the last reason it was refused for,
/// so that each is logged once.
fn attach(
    options: &HostOptions,
    session: &Arc<Session>,
    world: &HostWorld,
    memory: &HostMemory,
    said: &mut String,
) -> bool {
    let attached = super::attach(options, memory, ATTEMPT).and_then(|link| {
        if link.volume() == session.settings().dispatch {
            return Ok(link);
        }
        Err(AttachFailure::Protocol("it serves a volume of another kind".to_owned()))
    });
    let link = match attached {
        Ok(link) => Arc::new(link),
        Err(AttachFailure::Io(error)) => {
            tracing::debug!(%error, "nobody listens yet");
            return false;
        }
        Err(failure) => {
            let why = failure.to_string();
            if *said != why {
                tracing::warn!("still lost, and tried again until it succeeds: {why}");
                *said = why;
            }
            return false;
        }
    };
    world.renew(Arc::clone(&link));
    match session.resume(link.registers(), &|| !is_closed(link.peer())) {
        Ok(resumed) => {
            tracing::info!(
                handles = resumed.handles,
                locks = resumed.locks,
                replayed = resumed.replayed,
                sent = resumed.sent,
                "open files and locks handed in, pending calls sent again"
            );
            for (what, errno) in &resumed.refused {
                tracing::warn!(%errno, "not given back by the DPU side: {what}");
            }
            true
        }
        Err(_) => {
            hang_up(&link);
            tracing::warn!("the DPU side went away again while files were handed in");
            false
        }
    }
}

fn say_lost(options: &HostOptions, cause: &str) {
    let socket = options.socket.display();
    match options.on_loss {
        LossPolicy::Wait => tracing::warn!(
            %socket, cause,
            "the DPU side is lost: calls wait until it is back (`outboard run` starts it again; \
             without it, start `outboard dpu`)"
        ),
        LossPolicy::Fail { after } => tracing::warn!(
            %socket, cause, after_s = after.as_secs(),
            "the DPU side is lost: calls wait this long, then fail"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use outboard_wire::attach::Message;

    use super::*;
    use crate::link::{Listener, connect};

    /// A DPU side that wrote to the socket as fast as it was read held the thread that notices a
    /// loss for ever: it neither stepped the heartbeat nor looked at the other side's, nor ended.
    #[test]
    fn a_dpu_side_that_talks_on_and_on_counts_as_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = Listener::bind(&path, 0o600, None).unwrap();
        let host = connect(&path).unwrap();
        let dpu = listener.accept().unwrap().unwrap();
        let say = Message::Control { id: 1, text: "{}".to_owned() };
        assert!(!is_closed(&host), "silence");
        dpu.send(&say, &[]).unwrap();
        assert!(!is_closed(&host), "a word");
        let enough = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    let _full = dpu.send(&say, &[]);
                }
            });
            while !is_closed(&host) {}
            enough.store(true, Ordering::Relaxed);
        });
        drop(dpu);
        while !matches!(host.receive(), Ok(Received::Closed)) {}
        assert!(is_closed(&host));
    }
}

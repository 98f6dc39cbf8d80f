//! What runs a part of a cluster on its thread: futures, storage, and conversations over a socket.
//!
//! ```text
//! pass:  receive a batch ─▶ calls become futures ─▶ run what was woken
//!        ─▶ the role's own work ─▶ send what is due
//! sleep: until a datagram, a completion of storage, a wake-up, or the next deadline
//! ```
//!
//! It is a [`Runtime`]: the loop of a DPU side drives it as it drives any.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outboard_base::Time;
use outboard_base::task::{Spawn, Work};
use outboard_flow::{Config, Conversations, Incoming, Settings, Target};
use outboard_os::clock;
use outboard_os::runtime::{Poller, Runtime};
use outboard_os::wakeup::Wakeup;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Reply};
use rustix::event::{PollFd, PollFlags, epoll};

use crate::keys::Key;
use crate::net::{Asking, Bell};
use crate::port::Port;

/// System calls that receive in one pass.
const RECEIVES: usize = 16;
/// Calls of others that are answered at a time; more wait.
const CALLS_MAX: usize = 1024;
/// While something is awaited of a peer that says nothing for so long, it is probed: else who took
/// a write, and stops before it answers, holds it up for longer than who stops before.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// A reply in the making.
pub type Replying = Pin<Box<dyn Future<Output = Reply>>>;

/// What a part does beside sending and receiving.
pub trait Role {
    /// Datagrams are about to be taken in, at this time of the world.
    fn wakes(&self, wall_ms: u64) {
        let _ = wall_ms;
    }

    /// Replies to a call.
    fn call(&self, from: Peer, call: Call) -> Replying;

    /// Does what there is to do, without waiting; how much that was.
    fn tend(&self, now: Time, spawn: &dyn Spawn) -> usize;

    /// Nothing is to be done for a while: whether it began something all the same.
    fn rest(&self, spawn: &dyn Spawn) -> bool {
        let _ = spawn;
        false
    }

    /// When it is to be tended though nothing came.
    fn deadline(&self) -> Option<Time>;
}

/// Who a part is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its role and number.
    pub me: Peer,
    /// Which of its lives this is.
    pub life: u64,
    /// The key it proves that with.
    pub key: Key,
    /// Bytes of a frame on its network.
    pub mtu: usize,
    /// Packets carry a MAC.
    pub sealed: bool,
    /// What its status says first: members of a JSON object.
    pub about: String,
}

/// A part's runtime.
pub struct FabricRuntime<T: Target> {
    poller: Rc<Poller>,
    port: Rc<RefCell<Port>>,
    about: Rc<str>,
    asking: Asking<T>,
    role: OnceCell<Rc<dyn Role>>,
    /// Readable when a datagram or a completion of storage is there.
    comes: OwnedFd,
    /// Futures of its own, which nobody who wants the end waits for.
    background: Rc<Cell<usize>>,
    calls: Rc<Cell<usize>>,
    has_failed: Cell<bool>,
}

impl<T: Target> FabricRuntime<T> {
    /// A runtime around `poller`, which notifies `wakeup`; packets of requests go to `target`.
    ///
    /// # Errors
    /// The kernel gives no descriptor.
    pub fn new(
        poller: Rc<Poller>,
        wakeup: Arc<Wakeup>,
        port: Port,
        identity: Identity,
        target: T,
    ) -> io::Result<FabricRuntime<T>> {
        let Identity { me, life, key, mtu, sealed, about } = identity;
        let config = Config {
            me,
            address: port.local(),
            life,
            cluster: key.cluster,
            settings: Settings::of_mtu(mtu),
            keys: key.conversations_of(me),
            seed: life.rotate_left(17) ^ clock::now().0,
            sealed,
            answer_within: ANSWER_WITHIN,
        };
        let bell = Arc::new(Bell::new(wakeup));
        let asking = Asking { conversations: Conversations::new(config, target), bell };
        // Who sleeps before the first pass counts from now, and not from when the computer began.
        asking.conversations.pump(clock::now(), crate::wall_ms(clock::wall()), &mut |_, _| ());
        let comes = outboard_os::fds::lift(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        let nameless = || epoll::EventData::new_u64(0);
        epoll::add(&comes, port.fd(), nameless(), epoll::EventFlags::IN)?;
        if let Some(storage) = poller.completes() {
            epoll::add(&comes, storage, nameless(), epoll::EventFlags::IN)?;
        }
        Ok(FabricRuntime {
            poller,
            port: Rc::new(RefCell::new(port)),
            about: about.into(),
            asking,
            role: OnceCell::new(),
            comes,
            background: Rc::default(),
            calls: Rc::default(),
            has_failed: Cell::new(false),
        })
    }

    /// What asks others, for any thread.
    #[must_use]
    pub fn asking(&self) -> Asking<T> {
        self.asking.clone()
    }

    /// The conversations.
    #[must_use]
    pub fn conversations(&self) -> &Conversations<T> {
        &self.asking.conversations
    }

    /// Where it is.
    #[must_use]
    pub fn local(&self) -> SocketAddrV4 {
        self.port.borrow().local()
    }

    /// What it is there for: given once; before, nobody's calls are answered.
    pub fn set_role(&self, role: Rc<dyn Role>) {
        let _had_one = self.role.set(role);
    }

    /// Figures of the network, by their names.
    #[must_use]
    pub fn figures(&self) -> Vec<(&'static str, u64)> {
        figures(self.conversations(), &self.port.borrow())
    }

    /// Starts a future that nobody who wants the end waits for.
    fn spawn_behind(&self, work: Work) {
        let count = Rc::clone(&self.background);
        count.set(count.get() + 1);
        self.poller.spawn(Box::pin(async move {
            work.await;
            count.set(count.get().saturating_sub(1));
        }));
    }

    fn receive(&self, now: Time, wall_ms: u64) -> usize {
        let conversations = self.conversations();
        let received = self.port.borrow_mut().receive(RECEIVES, &mut |from, datagram| {
            conversations.datagram(from, datagram, now, wall_ms);
        });
        received.unwrap_or_else(|error| {
            if !self.has_failed.replace(true) {
                tracing::error!(%error, "the network is lost");
            }
            0
        })
    }

    fn take_calls(&self) -> usize {
        let Some(role) = self.role.get() else { return 0 };
        let mut taken = 0;
        while self.calls.get() < CALLS_MAX {
            let Some(Incoming { from, call, token }) = self.conversations().take_call() else {
                break;
            };
            taken += 1;
            // What is no call has no reply: it is not from a part that this one can speak with.
            let Ok(call) = Call::decode(&call) else { continue };
            let is_status = matches!(call, Call::Status);
            let (replying, calls) = (role.call(from, call), Rc::clone(&self.calls));
            let conversations = self.conversations().clone();
            let (about, port) = (Rc::clone(&self.about), Rc::clone(&self.port));
            calls.set(calls.get() + 1);
            self.spawn_behind(Box::pin(async move {
                let mut reply = replying.await;
                if let (true, Reply::Text(text)) = (is_status, &mut reply) {
                    *text = status(&about, &figures(&conversations, &port.borrow()), text);
                }
                let mut bytes = Vec::new();
                reply.encode(&mut bytes);
                conversations.reply(token, bytes);
                calls.set(calls.get().saturating_sub(1));
            }));
        }
        taken
    }
}

fn figures<T: Target>(conversations: &Conversations<T>, port: &Port) -> Vec<(&'static str, u64)> {
    let socket = port.figures();
    let mut all = conversations.figures();
    all.extend([
        ("datagrams_sent", socket.sent),
        ("datagrams_received", socket.received),
        ("socket_calls", socket.calls),
        ("datagrams_unsent", socket.unsent),
    ]);
    all
}

/// What a part says of itself: who it is, its network, and `own`, a JSON object.
fn status(about: &str, figures: &[(&str, u64)], own: &str) -> String {
    let figures: Vec<String> =
        figures.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    let (pid, figures) = (std::process::id(), figures.join(","));
    format!("{{{about},\"pid\":{pid},\"network\":{{{figures}}},\"part\":{own}}}")
}

/// Starts a role's own work.
struct Behind<'a, T: Target>(&'a FabricRuntime<T>);

impl<T: Target> Spawn for Behind<'_, T> {
    fn spawn(&self, work: Work) {
        self.0.spawn_behind(work);
    }
}

impl<T: Target> Spawn for FabricRuntime<T> {
    fn spawn(&self, work: Work) {
        self.poller.spawn(work);
    }
}

impl<T: Target> Runtime for FabricRuntime<T> {
    fn pass(&self) -> usize {
        let (now, wall_ms) = (clock::now(), crate::wall_ms(clock::wall()));
        if let Some(role) = self.role.get() {
            role.wakes(wall_ms);
        }
        let mut done = self.receive(now, wall_ms);
        done += self.take_calls();
        done += self.poller.pass();
        if let Some(role) = self.role.get() {
            done += role.tend(now, &Behind(self));
        }
        let mut port = self.port.borrow_mut();
        let mut send = |to: SocketAddrV4, datagram: &[u8]| port.send(now, to, datagram);
        done += self.conversations().pump(now, wall_ms, &mut send);
        port.flush(now);
        done
    }

    fn begin_sleep(&self) -> bool {
        self.asking.bell.sleeps.store(true, Ordering::SeqCst);
        let begun = self.role.get().is_some_and(|role| role.rest(&Behind(self)));
        let quiet = !begun && self.poller.begin_sleep() && !self.conversations().has_work();
        if quiet {
            self.port.borrow_mut().rest();
        } else {
            self.end_sleep();
        }
        quiet
    }

    fn sleep(&self, wake: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
        let fds = [wake, self.comes.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let timeout = rustix::time::Timespec::try_from(timeout).map_err(io::Error::other)?;
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn completes(&self) -> Option<BorrowedFd<'_>> {
        Some(self.comes.as_fd())
    }

    fn end_sleep(&self) {
        self.asking.bell.sleeps.store(false, Ordering::SeqCst);
        self.poller.end_sleep();
    }

    fn waiting(&self) -> usize {
        self.poller.waiting().saturating_sub(self.background.get())
    }

    fn deadline(&self) -> Option<Time> {
        let conversations = self.conversations().deadline();
        let port = self.port.borrow().deadline(clock::now());
        let role = self.role.get().and_then(|role| role.deadline());
        conversations.into_iter().chain(port).chain(role).min()
    }
}

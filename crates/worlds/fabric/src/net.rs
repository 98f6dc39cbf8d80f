//! The port through which parts are asked, for any thread of a process: it wakes the one that
//! sends.

use std::future::{Future, poll_fn};
use std::net::SocketAddrV4;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outboard_base::Time;
use outboard_flow::{Conversations, Gone, Net, NoTarget, Target};
use outboard_os::clock;
use outboard_os::wakeup::Wakeup;
use outboard_wire::shared::{Answer, Heads, Peer};

/// Wakes the thread that sends, if it sleeps.
pub(crate) struct Bell {
    pub(crate) sleeps: AtomicBool,
    wakeup: Arc<Wakeup>,
}

impl Bell {
    pub(crate) fn new(wakeup: Arc<Wakeup>) -> Bell {
        Bell { sleeps: AtomicBool::new(false), wakeup }
    }

    /// Something is to be sent. Who sends says that it sleeps before it looks a last time.
    fn ring(&self) {
        if self.sleeps.load(Ordering::SeqCst) {
            self.wakeup.notify();
        }
    }
}

/// How a process asks others. A clone is the same.
pub struct Asking<T = NoTarget> {
    pub(crate) conversations: Conversations<T>,
    pub(crate) bell: Arc<Bell>,
}

impl<T> Clone for Asking<T> {
    fn clone(&self) -> Self {
        let (conversations, bell) = (self.conversations.clone(), Arc::clone(&self.bell));
        Asking { conversations, bell }
    }
}

impl<T: Target> Asking<T> {
    /// A part is at one of these places from now on.
    pub fn know_places(&self, peer: Peer, places: &[SocketAddrV4]) {
        self.conversations.know_places(peer, places);
    }

    /// Begins `future`, rings, and goes on with it.
    async fn ringing<O>(&self, future: impl Future<Output = O>) -> O {
        let mut future = pin!(future);
        let mut begun = false;
        poll_fn(|cx| {
            let polled = future.as_mut().poll(cx);
            if !std::mem::replace(&mut begun, true) {
                self.bell.ring();
            }
            polled
        })
        .await
    }
}

impl<T: Target> Net for Asking<T> {
    fn know(&self, peer: Peer, address: SocketAddrV4) {
        self.conversations.know(peer, address);
    }

    fn call(&self, to: Peer, call: Vec<u8>) -> impl Future<Output = Result<Vec<u8>, Gone>> {
        self.ringing(self.conversations.call(to, call))
    }

    fn request(
        &self,
        to: Peer,
        heads: &Heads,
        data: &[u8],
    ) -> impl Future<Output = Result<(Answer, Vec<u8>), Gone>> {
        self.ringing(self.conversations.request(to, heads, data))
    }

    fn now(&self) -> Time {
        clock::now()
    }

    fn wall_ms(&self) -> u64 {
        crate::wall_ms(clock::wall())
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> {
        self.ringing(self.conversations.sleep(time))
    }
}

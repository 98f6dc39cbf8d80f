//! What a process asks others by. Nodes may be asked for a change once more, much later: a request
//! that nobody answered is asked again, and the first one may still be under way.

use std::net::SocketAddrV4;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outboard_base::Time;
use outboard_flow::{Gone, Net as Port};
use outboard_wire::shared::{Answer, Heads, Peer, Target};

use crate::part::Net;

/// A write or a hole.
#[derive(Clone)]
pub(crate) struct Change {
    pub(crate) to: Peer,
    pub(crate) heads: Heads,
    pub(crate) data: Vec<u8>,
}

/// Conversations, and the changes that were asked for since somebody looked.
#[derive(Clone)]
pub(crate) struct Twice {
    net: Net,
    changes: Arc<Mutex<Vec<Change>>>,
}

impl Twice {
    pub(crate) fn new(net: &Net) -> Twice {
        Twice { net: net.clone(), changes: Arc::default() }
    }

    pub(crate) fn take(&self) -> Vec<Change> {
        std::mem::take(&mut *self.changes.lock().unwrap())
    }

    /// Asks for a change again after a while, whatever is answered.
    pub(crate) async fn ask_again(self, change: Change, later: Duration) {
        self.net.sleep(later).await;
        let _answered = self.net.request(change.to, &change.heads, &change.data).await;
    }
}

impl Port for Twice {
    fn know(&self, peer: Peer, address: SocketAddrV4) {
        self.net.know(peer, address);
    }

    fn call(&self, to: Peer, call: Vec<u8>) -> impl Future<Output = Result<Vec<u8>, Gone>> {
        self.net.call(to, call)
    }

    fn request(
        &self,
        to: Peer,
        heads: &Heads,
        data: &[u8],
    ) -> impl Future<Output = Result<(Answer, Vec<u8>), Gone>> {
        if !matches!(heads.target, Target::Read(_)) {
            let change = Change { to, heads: *heads, data: data.to_vec() };
            self.changes.lock().unwrap().push(change);
        }
        self.net.request(to, heads, data)
    }

    fn now(&self) -> Time {
        self.net.now()
    }

    fn wall_ms(&self) -> u64 {
        self.net.wall_ms()
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> {
        self.net.sleep(time)
    }
}

//! A part's way to the coordinator's process: calls in conversations, like all others.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use outboard_base::{Errno, Result};
use outboard_flow::{Gone, Net};
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Reply};

use super::{Coordinator, Entry};

/// How long the coordinator is given for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The coordinator of a cluster, of which there is one.
pub const COORDINATOR: Peer = Peer::Coordinator(0);

/// The way there, with this part's session.
pub struct Remote<N> {
    net: N,
    session: Mutex<u64>,
}

impl<N: Net> Remote<N> {
    /// To the coordinator that `net` knows, without a session yet.
    pub fn new(net: N) -> Remote<N> {
        Remote { net, session: Mutex::new(0) }
    }

    fn session(&self) -> MutexGuard<'_, u64> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks; `EIO` where it is not known whether it was done.
    async fn ask(&self, call: &Call) -> Result<Reply> {
        let mut bytes = Vec::new();
        call.encode(&mut bytes);
        let asked = self.net.call(COORDINATOR, bytes);
        let (mut asked, mut over) = (pin!(asked), pin!(self.net.sleep(PATIENCE)));
        let answer = poll_fn(|cx| match asked.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(answer),
            Poll::Pending => over.as_mut().poll(cx).map(|()| Err(Gone::Unanswered)),
        });
        let answer = match answer.await {
            Err(Gone::Refused) => return Err(Errno::EPERM),
            answer => answer.map_err(|_| Errno::EIO)?,
        };
        match Reply::decode(&answer).map_err(|_| Errno::EIO)? {
            Reply::Failed(errno) => Err(errno),
            reply => Ok(reply),
        }
    }
}

impl<N: Net> Coordinator for Remote<N> {
    async fn beat(&self) -> Result<()> {
        let session = *self.session();
        match self.ask(&Call::Beat { session }).await {
            Ok(Reply::Number(session)) => *self.session() = session,
            Ok(_) => return Err(Errno::EIO),
            Err(errno) => {
                if errno == Errno::ENOTCONN {
                    *self.session() = 0;
                }
                return Err(errno);
            }
        }
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
        match self.ask(&Call::List { prefix: prefix.to_owned() }).await? {
            Reply::Entries(all) => Ok(all
                .into_iter()
                .map(|one| Entry {
                    name: one.name,
                    value: one.value,
                    version: one.version,
                    passes: one.session > 0,
                })
                .collect()),
            _ => Err(Errno::EIO),
        }
    }

    async fn put(&self, name: &str, value: &str, version: Option<u64>, stays: bool) -> Result<()> {
        let session = if stays { 0 } else { *self.session() };
        if !stays && session == 0 {
            return Err(Errno::ENOTCONN);
        }
        let (name, value) = (name.to_owned(), value.to_owned());
        match self.ask(&Call::Put { name, value, version, session }).await? {
            Reply::Number(_) => Ok(()),
            _ => Err(Errno::EIO),
        }
    }

    async fn remove(&self, name: &str, version: u64) -> Result<()> {
        match self.ask(&Call::Remove { name: name.to_owned(), version }).await? {
            Reply::Done => Ok(()),
            _ => Err(Errno::EIO),
        }
    }
}

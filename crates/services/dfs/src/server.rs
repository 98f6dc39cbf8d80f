//! Asking the metadata server: until it answers, in one life of it.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use outboard_base::{Errno, Result, SessionId, Time};
use outboard_flow::{Gone, Net};
use outboard_wire::shared::call::{Call, Reply};

use crate::{CONNECT, Inner, locked};

const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl<N: Net> Inner<N> {
    pub(crate) fn net(&self) -> &N {
        self.data.net()
    }

    pub(crate) fn now(&self) -> Time {
        self.net().now()
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.lease.is_alive(self.now())
    }

    /// Asks once.
    pub(crate) async fn ask_once(&self, call: &Call) -> std::result::Result<Reply, Gone> {
        let mut bytes = Vec::new();
        call.encode(&mut bytes);
        let reply = self.net().call(self.options.server, bytes).await?;
        Ok(Reply::decode(&reply).unwrap_or(Reply::Failed(Errno::EPROTO)))
    }

    /// Asks until there is a reply. `again` is asked for once it is not known whether the call was
    /// answered before. Before that the server's life is looked at: if it is another, nobody
    /// hears anything any more.
    pub(crate) async fn ask_as(&self, call: Call, again: impl Fn(Call) -> Call) -> Result<Reply> {
        let mut call = call;
        let mut pause = PAUSE;
        loop {
            self.same_life().await;
            if self.lease.is_revoked() {
                return Err(Errno::EACCES);
            }
            match self.ask_once(&call).await {
                Ok(Reply::Failed(errno @ (Errno::EBADF | Errno::ESTALE))) => {
                    // As a server says that has not known us before.
                    self.confirm_life().await;
                    return Ok(Reply::Failed(errno));
                }
                Ok(reply) => return Ok(reply),
                Err(Gone::Refused) => return Err(Errno::EPERM),
                Err(_) => {
                    self.net().sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    self.confirm_life().await;
                    call = again(call);
                }
            }
        }
    }

    /// Asks what may be asked as often as it takes.
    pub(crate) async fn ask(&self, call: Call) -> Result<Reply> {
        self.ask_as(call, |call| call).await
    }

    /// Waits for ever if the server's life has changed.
    async fn same_life(&self) {
        if self.lease.has_changed() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the server has said that it lives the life we know.
    async fn confirm_life(&self) {
        let mut pause = PAUSE;
        while let Err(errno) = self.renew().await {
            if self.lease.is_revoked() {
                return;
            }
            tracing::debug!(%errno, "the server does not renew the lease");
            self.net().sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        self.same_life().await;
    }

    /// One renewal.
    pub(crate) async fn renew(&self) -> Result<()> {
        let sent = self.now();
        match self.ask_once(&Call::Renew).await {
            Ok(Reply::Lease { life, term_ms, free, capacity }) => {
                self.lease.space_is(free, capacity);
                let before = self.lease.lapses();
                self.lease.renewed(life, term_ms, sent, self.now());
                if self.lease.lapses() != before {
                    self.freeze();
                }
                if self.is_alive() {
                    self.froze.store(false, Ordering::SeqCst);
                }
                Ok(())
            }
            Ok(Reply::Failed(errno)) => {
                if errno == Errno::EACCES && self.lease.revoked() {
                    tracing::error!("this client's key was revoked: nothing is answered any more");
                    self.data.is_revoked();
                }
                Err(errno)
            }
            Ok(_) => Err(Errno::EPROTO),
            Err(Gone::Refused) => Err(Errno::EPERM),
            Err(_) => Err(Errno::ETIMEDOUT),
        }
    }

    pub(crate) async fn connect(&self) -> Result<()> {
        let begun = self.now();
        let mut pause = PAUSE;
        loop {
            match self.begin().await {
                Ok(()) if self.lease.has_changed() => return Err(Errno::ESTALE),
                Err(Errno::ETIMEDOUT) if self.now().since(begun) < CONNECT => {}
                done => return done,
            }
            self.net().sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// What a life before this had is over, and the lease begins.
    async fn begin(&self) -> Result<()> {
        let has_begun = &self.begun;
        if !has_begun.load(Ordering::SeqCst) {
            let begin = Call::Begin { nonce: self.options.nonce };
            match self.ask_once(&begin).await {
                Ok(Reply::Done) => has_begun.store(true, Ordering::SeqCst),
                Ok(Reply::Failed(errno)) => return Err(errno),
                Ok(_) => return Err(Errno::EPROTO),
                Err(Gone::Refused) => return Err(Errno::EPERM),
                Err(_) => return Err(Errno::ETIMEDOUT),
            }
        }
        self.renew().await
    }

    /// A session is back: the server hears of that before of anything else it asks.
    pub(crate) fn comes_back(&self, session: SessionId) {
        *locked(&self.returning).entry(session).or_default() += 1;
        self.errand(Call::Back { session });
    }

    /// Waits until the server has heard that a session is back.
    pub(crate) async fn is_there(&self, session: SessionId) {
        let is_there = || (!locked(&self.returning).contains_key(&session)).then_some(());
        self.returned.until(is_there).await;
    }

    fn came_back(&self, session: SessionId) {
        let mut returning = locked(&self.returning);
        let left = returning.get(&session).map_or(0, |times| times.saturating_sub(1));
        if left == 0 {
            returning.remove(&session);
        } else {
            returning.insert(session, left);
        }
        drop(returning);
        self.returned.notify();
    }

    /// Adds a call that nobody waits for. They are made in their order.
    pub(crate) fn errand(&self, call: Call) {
        locked(&self.errands).push(call);
    }

    pub(crate) async fn run_errands(&self) {
        loop {
            let next = {
                let mut errands = locked(&self.errands);
                if errands.is_empty() {
                    self.running.store(false, Ordering::SeqCst);
                    return;
                }
                errands.remove(0)
            };
            let back = if let Call::Back { session } = next { Some(session) } else { None };
            let reply = self.ask(next).await;
            if let Some(session) = back {
                self.came_back(session);
            }
            match reply {
                Ok(Reply::Failed(errno)) | Err(errno) => {
                    tracing::debug!(%errno, "the server does not take an errand");
                }
                Ok(_) => {}
            }
        }
    }

    /// The outcome of `work`, if it ends in `time`.
    pub(crate) async fn within<T>(
        &self,
        time: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let (mut work, mut sleep) = (pin!(work), pin!(self.net().sleep(time)));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(out) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(out));
            }
            sleep.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}

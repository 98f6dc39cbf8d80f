//! A part that keeps itself known at the coordinator, and hears which others there are.
//!
//! One step a second. A coordinator that does not answer changes nothing: the part goes on, and
//! its entry is there again once it is.

use core::net::SocketAddrV4;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use outboard_base::{Errno, Time};
use outboard_flow::Net;

use super::{Claim, Coordinator, Entry, Refusal, Registrar, Step};

/// Between two steps.
const EVERY: Duration = Duration::from_secs(1);
/// The same while a part is not known yet.
const SOON: Duration = Duration::from_millis(100);
/// How long a coordinator is given to end the session of who had a name before, and died.
const TAKEN: Duration = Duration::from_secs(10);
/// How long a part that does without waits for a coordinator that does not answer.
const UNHEARD: Duration = Duration::from_secs(4);
/// The names of nodes: `node.1`.
const NODE: &str = "node.";

/// How a part stands with the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing was heard yet.
    Unknown,
    /// It is known.
    Known,
    /// The coordinator did not answer the last question.
    Unheard,
    /// It may not be here.
    Refused(Refusal),
}

/// A part's registration, kept up.
pub struct Known<C, N> {
    registrar: Registrar<C>,
    net: N,
    standing: RefCell<Standing>,
    begun: Time,
    /// It has heard that another has its name.
    taken: Cell<bool>,
}

impl<C: Coordinator, N: Net> Known<C, N> {
    /// Of a part, which [`Known::keep`] makes known.
    pub fn new(coordinator: C, net: N, claim: Claim) -> Rc<Known<C, N>> {
        let registrar = Registrar::new(coordinator, claim);
        let standing = RefCell::new(Standing::Unknown);
        let (begun, taken) = (net.now(), Cell::new(false));
        Rc::new(Known { registrar, net, standing, begun, taken })
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// Whether it is decided if the part may serve: it may, unless it is refused then. Asked again
    /// and again from its start on. One that `waits` does not serve before it is known: a server,
    /// as two of them on one volume are what must not be.
    pub fn is_decided(&self, waits: bool) -> bool {
        let so_long = self.net.now().since(self.begun);
        match self.standing() {
            Standing::Unknown => false,
            Standing::Known => true,
            Standing::Refused(Refusal::Taken(_)) => {
                self.taken.set(true);
                so_long > TAKEN
            }
            Standing::Refused(_) => true,
            // Two of one number take the conversation from each other.
            Standing::Unheard => !waits && !self.taken.get() && so_long > UNHEARD,
        }
    }

    /// Whether the part is to end, though it was known.
    pub fn is_refused(&self) -> bool {
        // Anybody on the way may say that the key is not taken.
        matches!(self.standing(), Standing::Refused(Refusal::Taken(_) | Refusal::Cluster(_)))
    }

    /// What is kept under a name for good: `value`, if there was nothing. Asked until it is known.
    pub async fn bind(&self, name: &str, value: &str) -> String {
        loop {
            match self.registrar.bind(name, value).await {
                Ok(kept) => return kept,
                Err(errno) => tracing::debug!(%errno, name, "asking the coordinator again"),
            }
            self.net.sleep(SOON).await;
        }
    }

    /// Its name is free for another at once.
    pub async fn leave(self: Rc<Self>) {
        // A session that is not kept up ends by itself.
        let _not_answered = self.registrar.leave().await;
    }

    /// Keeps it up for ever. After each step `hears` is told where the nodes are that are known;
    /// nothing while the coordinator does not answer.
    pub async fn keep(self: Rc<Self>, hears: impl Fn(Option<Vec<(u16, SocketAddrV4)>>)) {
        loop {
            let mut nodes = None;
            let standing = match self.registrar.step().await {
                Ok(Step::There(all)) => {
                    nodes = Some(nodes_in(&all));
                    Standing::Known
                }
                Ok(Step::Refused(refusal)) => Standing::Refused(refusal),
                Err(Errno::EIO) => Standing::Unheard,
                Err(Errno::EPERM) => Standing::Refused(Refusal::Key),
                // Somebody was quicker: it is looked at again.
                Err(_) => self.standing(),
            };
            self.tell(&standing);
            let pause = if standing == Standing::Known { EVERY } else { SOON };
            hears(nodes);
            *self.standing.borrow_mut() = standing;
            self.net.sleep(pause).await;
        }
    }

    /// Says what has changed.
    fn tell(&self, standing: &Standing) {
        if *standing == *self.standing.borrow() {
            return;
        }
        match standing {
            Standing::Unheard => tracing::warn!(
                "the coordinator does not answer: parts cannot come and go; files are not affected"
            ),
            Standing::Known => tracing::info!("known to the coordinator"),
            Standing::Unknown | Standing::Refused(_) => {}
        }
    }
}

/// Where the nodes are.
fn nodes_in(all: &[Entry]) -> Vec<(u16, SocketAddrV4)> {
    let node = |entry: &Entry| {
        let number = entry.name.strip_prefix(NODE)?.parse().ok()?;
        let (place, _) = Claim::read(&entry.value)?;
        Some((number, place.parse().ok()?))
    };
    all.iter().filter_map(node).collect()
}

//! A part that keeps itself known at the coordinator, and hears which others there are.
//!
//! One step a second. A coordinator that does not answer changes nothing: the part goes on, and
//! its entry is there again once it is.

use std::cell::RefCell;
use std::net::SocketAddrV4;
use std::rc::Rc;
use std::time::Duration;

use outboard_base::Errno;
use outboard_cluster::coordinator::{Claim, Coordinator, Entry, Refusal, Registrar, Step};
use outboard_flow::Net;

/// Between two steps.
const EVERY: Duration = Duration::from_secs(1);
/// The same while a part is not known yet.
const SOON: Duration = Duration::from_millis(100);
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
}

impl<C: Coordinator, N: Net> Known<C, N> {
    /// Of a part, which [`Known::keep`] makes known.
    pub fn new(coordinator: C, net: N, claim: Claim) -> Rc<Known<C, N>> {
        let registrar = Registrar::new(coordinator, claim);
        let standing = RefCell::new(Standing::Unknown);
        Rc::new(Known { registrar, net, standing })
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        self.standing.borrow().clone()
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

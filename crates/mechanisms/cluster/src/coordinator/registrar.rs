//! How a part is known at a coordinator: it says of which cluster it is, puts its entry there and
//! keeps it there, one step at a time.
//!
//! ```text
//! cluster    of which cluster all this is; for good
//! volume     which store has the volume; for good
//! NAME       a part that is up: where it is, and in which life; goes with its session
//! ```
//!
//! A name is one part's at a time. Who finds it taken at its *own* place is that part's next life,
//! and takes it over at once: two cannot be bound to one address. At another place it is another
//! part, and has the name for as long as its session goes on; but for who *takes over* by what
//! counts more than a session: the claim on a store. It does so until it is known, once.

use std::cell::Cell;

use outboard_base::planted::{Fault, is_planted};
use outboard_base::{Errno, Result};

use super::{Coordinator, Entry};

/// The entry that says of which cluster a coordinator is.
const CLUSTER: &str = "cluster";
/// The entry that says what names the store of its volume.
pub const VOLUME: &str = "volume";

/// What a part says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its name: one part's at a time.
    pub name: String,
    /// Of which cluster it is.
    pub cluster: u64,
    /// Where it is.
    pub place: String,
    /// Which of its lives this is.
    pub life: u64,
    /// Whoever has the name at another place has it no more.
    pub takes_over: bool,
}

/// Why a part may not be here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The coordinator is another cluster's.
    Cluster(u64),
    /// The coordinator does not take this part's key.
    Key,
    /// Another part has the name, there, or has had it since.
    Taken(String),
}

impl Claim {
    /// The value of its entry: `place life`.
    fn value(&self) -> String {
        format!("{} {:016x}", self.place, self.life)
    }

    /// What an entry says: place and life.
    #[must_use]
    pub fn read(value: &str) -> Option<(&str, u64)> {
        let (place, life) = value.split_once(' ')?;
        u64::from_str_radix(life, 16).ok().map(|life| (place, life))
    }
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The entry is there, beside these.
    There(Vec<Entry>),
    /// It may not be; believed by who cannot do without the name.
    Refused(Refusal),
}

/// Of which cluster a coordinator is; nobody has said so of a new one.
///
/// # Errors
/// Those of the coordinator.
pub async fn cluster_of<C: Coordinator>(coordinator: &C) -> Result<Option<u64>> {
    coordinator.beat().await?;
    let all = coordinator.list(CLUSTER).await?;
    Ok(of_name(&all, CLUSTER).map(|entry| number(&entry.value)))
}

/// What the entry of the cluster says.
fn number(value: &str) -> u64 {
    u64::from_str_radix(value, 16).unwrap_or(0)
}

/// A part's registration.
pub struct Registrar<C> {
    coordinator: C,
    claim: Claim,
    was_known: Cell<bool>,
}

fn of_name<'a>(all: &'a [Entry], name: &str) -> Option<&'a Entry> {
    all.iter().find(|entry| entry.name == name)
}

impl<C: Coordinator> Registrar<C> {
    /// Of a part that has said nothing yet.
    pub fn new(coordinator: C, claim: Claim) -> Registrar<C> {
        Registrar { coordinator, claim, was_known: Cell::new(false) }
    }

    /// One step: the session goes on, and the entry is there. To be done about once a second.
    ///
    /// # Errors
    /// `EIO` if the coordinator does not answer, and what it says otherwise: the next step tries
    /// again.
    pub async fn step(&self) -> Result<Step> {
        match self.coordinator.beat().await {
            Err(Errno::ENOTCONN) => self.coordinator.beat().await?,
            beaten => beaten?,
        }
        let all = self.coordinator.list("").await?;
        let refusal = match self.same_cluster(&all).await? {
            None => self.has_name(&all).await?,
            refusal => refusal,
        };
        self.was_known.set(self.was_known.get() || refusal.is_none());
        Ok(refusal.map_or(Step::There(all), Step::Refused))
    }

    /// The part ends in order: its name is free at once.
    ///
    /// # Errors
    /// Those of the coordinator; then the session ends by itself.
    pub async fn leave(&self) -> Result<()> {
        let all = self.coordinator.list(&self.claim.name).await?;
        match of_name(&all, &self.claim.name) {
            Some(entry) if entry.value == self.claim.value() => {
                self.coordinator.remove(&self.claim.name, entry.version).await
            }
            _ => Ok(()),
        }
    }

    /// An entry that is for good: `value` if there was none; what it says.
    ///
    /// # Errors
    /// Those of the coordinator: to be asked again.
    pub async fn bind(&self, name: &str, value: &str) -> Result<String> {
        let all = self.coordinator.list(name).await?;
        self.bind_beside(&all, name, value).await
    }

    async fn bind_beside(&self, all: &[Entry], name: &str, value: &str) -> Result<String> {
        if let Some(entry) = of_name(all, name) {
            return Ok(entry.value.clone());
        }
        match self.coordinator.put(name, value, None, true).await {
            // Somebody was first, or this was, and did not hear of it: who asks again sees.
            Err(Errno::EEXIST) => Err(Errno::EAGAIN),
            put => put.map(|()| value.to_owned()),
        }
    }

    async fn same_cluster(&self, all: &[Entry]) -> Result<Option<Refusal>> {
        let own = format!("{:016x}", self.claim.cluster);
        let kept = self.bind_beside(all, CLUSTER, &own).await?;
        Ok((kept != own).then(|| Refusal::Cluster(number(&kept))))
    }

    async fn has_name(&self, all: &[Entry]) -> Result<Option<Refusal>> {
        let (name, own) = (self.claim.name.as_str(), self.claim.value());
        let mut replaced = None;
        if let Some(entry) = of_name(all, name) {
            if entry.value == own {
                return Ok(None);
            }
            let takes_over = self.claim.takes_over && !self.was_known.get();
            let takes_over = takes_over || is_planted(Fault::Name);
            match Claim::read(&entry.value) {
                Some((place, _)) if place != self.claim.place && !takes_over => {
                    return Ok(Some(Refusal::Taken(place.to_owned())));
                }
                // This part's life before, or nothing that a part has said. It goes with another
                // session: it is replaced, in one change, or somebody else could be in between.
                _ => replaced = Some(entry.version),
            }
        }
        match self.coordinator.put(name, &own, replaced, false).await {
            Err(Errno::EEXIST) => Err(Errno::EAGAIN),
            put => put.map(|()| None),
        }
    }
}

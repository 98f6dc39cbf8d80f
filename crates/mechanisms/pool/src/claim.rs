//! One writer at a time.
//!
//! The head object names the owner. It changes by compare-and-swap of all its bytes only, and
//! claim epoch and beat make every state of it new: what is in doubt lands once or never. The owner
//! *renews* it; who wants it watches for [`Terms::expiry`], by a clock of its own, and only if
//! nothing moved does it *fence* the owner, await that, and swap itself in: late writes of the old
//! owner meet a closed door (promise 4 of [`Pool`]). Clocks of two hosts are never compared, and
//! how long the wait is the owner says, in the head: it answers from memory by its own terms.
//!
//! ```text
//!                    no head, pool empty: made
//!   (nothing) ------------------------------------------> mine
//!                    released: swapped                      ^
//!   free      ----------------------------------------------+
//!                    same beat for `expiry`       fenced    |
//!   another's ----------------> expired -------> fenced ----+ swapped
//!       | a beat: refused, by name       a loser of the swap looks again
//! ```

use std::fmt;
use std::time::Duration;

use outboard_base::Time;

use super::head::{HEAD, HEAD_MAX, Head};
use super::port::{Guard, Op, Pool, PoolError, Step};
use super::stamped::Owner;
use outboard_kv::Bytes;

/// Why the volume cannot be had, or no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimError {
    /// Somebody has it; what they call themselves.
    Held(String),
    /// There are objects here, but no volume of ours.
    Foreign,
    /// A volume of another format.
    Format(u32),
    /// Not the volume that was asked for, but the one of this number.
    OtherVolume(u64),
    /// There is no volume here, and none was to be made.
    Missing,
    /// The head is damaged.
    Corrupt,
    /// The pool failed.
    Pool(PoolError),
}

impl From<PoolError> for ClaimError {
    fn from(error: PoolError) -> ClaimError {
        ClaimError::Pool(error)
    }
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClaimError::Held(name) => {
                write!(f, "the volume is in use by {name}; stop it there, or wait until it expires")
            }
            ClaimError::Foreign => f.write_str(
                "the pool holds objects, but no volume of ours; give another pool or namespace",
            ),
            ClaimError::Format(found) => {
                write!(
                    f,
                    "the volume has format {found}; this program knows format 1 only: use the \
                     version that made it, or name another pool or namespace"
                )
            }
            ClaimError::OtherVolume(found) => {
                write!(f, "the pool holds another volume, number {found:016x}; name the right pool")
            }
            ClaimError::Missing => f.write_str("there is no volume in this pool"),
            ClaimError::Corrupt => {
                f.write_str("the volume's head object is damaged; restore it from a copy")
            }
            ClaimError::Pool(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ClaimError {}

/// How long what lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Between renewals.
    pub renew: Duration,
    /// Without a renewal for so long a claim may be taken over. Others learn it from the head.
    pub expiry: Duration,
}

impl Default for Terms {
    /// Five renewals may fail, and what pauses for some seconds loses nothing.
    fn default() -> Terms {
        Terms { renew: Duration::from_secs(3), expiry: Duration::from_secs(20) }
    }
}

/// Who wants to own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Me {
    /// What others are told: host, process, mount point.
    pub name: String,
    /// A place where one owner at most lives, by a lock that ends with it; 0 for none. A claim by
    /// the same place is a dead one's, and not waited for.
    pub place: u64,
}

/// Which volume is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Whichever is there.
    Any,
    /// The one there, or else a new one of this number.
    OrNew(u64),
    /// The one of this number.
    Only(u64),
}

/// What a step of [`Taking`] came to.
#[derive(Debug)]
pub enum Taken {
    /// It is ours.
    Mine(Claim),
    /// Step again, not before this moment.
    Wait(Time),
}

/// Who wants the claim and has not got it yet.
#[derive(Debug)]
pub struct Taking {
    me: Me,
    wanted: Wanted,
    terms: Terms,
    /// The head of another as we first saw it, and since when: a moment after that look had ended.
    watched: Option<(Head, Option<Time>)>,
    /// The instance we have fenced.
    fenced: Option<String>,
}

impl Taking {
    /// Nothing tried yet.
    #[must_use]
    pub fn new(me: Me, wanted: Wanted, terms: Terms) -> Taking {
        Taking { me, wanted, terms, watched: None, fenced: None }
    }

    /// Looks, and does what can be done now. An error of the pool changes nothing: it may be called
    /// again.
    ///
    /// # Errors
    ///
    /// See [`ClaimError`].
    pub async fn step<P: Pool>(&mut self, pool: &P, now: Time) -> Result<Taken, ClaimError> {
        let found = match pool.read(HEAD, 0, HEAD_MAX).await {
            Ok(bytes) => Head::decode(&bytes)?,
            Err(PoolError::NotFound) => return self.make(pool, now).await,
            Err(error) => return Err(error.into()),
        };
        if let Wanted::Only(volume) = self.wanted
            && volume != found.volume
        {
            return Err(ClaimError::OtherVolume(found.volume));
        }
        if found.held && found.instance == pool.instance() {
            // An earlier step's swap that was in doubt. Those who watch may have seen it for long:
            // it counts from a beat of its own.
            let mine = Head { beat: found.beat + 1, ..found.clone() };
            return self.swap(pool, Guard::Starts(found.encode()), mine, now).await;
        }
        if found.held {
            if let Some(until) = self.watch(&found, now)? {
                return Ok(Taken::Wait(until));
            }
            pool.fence(&found.instance).await?;
            self.fenced = Some(found.instance.clone());
        }
        let mine = self.mine(pool, found.volume, found.claim_epoch + 1);
        let guard = Guard::Starts(found.encode());
        self.swap(pool, guard, mine, now).await
    }

    /// How long to wait for who has it: `None` if no longer.
    fn watch(&mut self, found: &Head, now: Time) -> Result<Option<Time>, ClaimError> {
        if self.me.place != 0 && found.place == self.me.place {
            return Ok(None);
        }
        let Some((seen, since)) = self.watched.as_mut().filter(|(seen, _)| seen == found) else {
            // Its beat may be younger than `now`: this look may have taken its time.
            let moved = self.watched.replace((found.clone(), None)).is_some();
            // One we have fenced had its last beat beside the fence: it may answer from memory
            // until that expires. Any other lives.
            if moved && self.fenced.as_ref() != Some(&found.instance) {
                return Err(ClaimError::Held(found.name.clone()));
            }
            return Ok(Some(now));
        };
        let expiry = Duration::from_millis(seen.expiry.into());
        let until = since.get_or_insert(now).after(expiry);
        Ok((now < until).then(|| until.min(now.after(self.terms.renew))))
    }

    fn mine<P: Pool>(&self, pool: &P, volume: u64, claim_epoch: u64) -> Head {
        Head {
            volume,
            claim_epoch,
            beat: 0,
            place: self.me.place,
            held: true,
            expiry: u32::try_from(self.terms.expiry.as_millis()).unwrap_or(u32::MAX),
            instance: pool.instance(),
            name: self.me.name.clone(),
        }
    }

    /// Makes the volume, if that is wanted and nothing else is here.
    async fn make<P: Pool>(&self, pool: &P, now: Time) -> Result<Taken, ClaimError> {
        let Wanted::OrNew(volume) = self.wanted else { return Err(ClaimError::Missing) };
        // Another may have made it since we looked.
        if pool.list(1).await?.iter().any(|name| name != HEAD) {
            return match pool.stat(HEAD).await {
                Ok(_) => Ok(Taken::Wait(now)),
                Err(PoolError::NotFound) => Err(ClaimError::Foreign),
                Err(error) => Err(error.into()),
            };
        }
        let mine = self.mine(pool, volume, 1);
        self.swap(pool, Guard::Absent, mine, now).await
    }

    async fn swap<P: Pool>(
        &self,
        pool: &P,
        guard: Guard,
        mine: Head,
        now: Time,
    ) -> Result<Taken, ClaimError> {
        match pool.apply(HEAD, swap(guard, mine.encode())).await {
            Ok(()) => {
                let owner = Owner::new(mine.claim_epoch);
                Ok(Taken::Mine(Claim { head: mine, confirmed: now, terms: self.terms, owner }))
            }
            // Somebody was quicker, or an operation of ours that was in doubt has landed: look.
            Err(PoolError::Guard | PoolError::NotFound) => Ok(Taken::Wait(now)),
            Err(error) => Err(error.into()),
        }
    }
}

fn swap(guard: Guard, bytes: Bytes) -> Op {
    Op::new().when(guard).then(Step::Replace(bytes)).essential()
}

/// What the owner holds, and has to renew.
#[derive(Debug)]
pub struct Claim {
    head: Head,
    /// When the last step that found it ours was begun.
    confirmed: Time,
    terms: Terms,
    owner: Owner,
}

impl Claim {
    /// The volume's number.
    #[must_use]
    pub fn volume(&self) -> u64 {
        self.head.volume
    }

    /// The claim epoch: higher than that of every owner before.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.head.claim_epoch
    }

    /// What the store's changes are made under.
    pub(crate) fn owner(&self) -> Owner {
        self.owner.clone()
    }

    /// When to renew.
    #[must_use]
    pub fn renew_at(&self) -> Time {
        self.confirmed.after(self.terms.renew)
    }

    /// Until when nobody can have taken it over. Later the owner must not answer from memory until
    /// a renewal succeeds.
    #[must_use]
    pub fn serves_until(&self) -> Time {
        self.confirmed.after(self.terms.expiry.saturating_sub(self.terms.renew))
    }

    /// Renews it. An error of the pool that is not [`PoolError::Fenced`] leaves it in doubt: renew
    /// again soon.
    ///
    /// # Errors
    ///
    /// [`ClaimError::Held`] with the name of who has it now: it is lost for good.
    pub async fn renew<P: Pool>(&mut self, pool: &P, now: Time) -> Result<(), ClaimError> {
        self.change(pool, true).await?;
        self.confirmed = now;
        Ok(())
    }

    /// Swaps in the next beat. To find the head ours is not enough: it must change, for those who
    /// watch it.
    async fn change<P: Pool>(&mut self, pool: &P, held: bool) -> Result<(), ClaimError> {
        for _ in 0..2 {
            let next = Head { held, beat: self.head.beat + 1, ..self.head.clone() };
            match pool.apply(HEAD, swap(Guard::Starts(self.head.encode()), next.encode())).await {
                Ok(()) => {
                    self.head = next;
                    return Ok(());
                }
                Err(PoolError::Guard | PoolError::NotFound) => self.look(pool).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(PoolError::TimedOut.into())
    }

    /// The head is not as we left it: an earlier renewal has landed, or it is another's.
    async fn look<P: Pool>(&mut self, pool: &P) -> Result<(), ClaimError> {
        let found = Head::decode(&pool.read(HEAD, 0, HEAD_MAX).await?)?;
        if found.held
            && found.claim_epoch == self.head.claim_epoch
            && found.instance == self.head.instance
        {
            self.head = found;
            return Ok(());
        }
        Err(ClaimError::Held(found.name))
    }

    /// Gives it up, for the next to have at once. Only after everything else has ended.
    ///
    /// # Errors
    ///
    /// See [`ClaimError`]; after one the next owner has to wait.
    pub async fn release<P: Pool>(mut self, pool: &P) -> Result<(), ClaimError> {
        self.change(pool, false).await
    }
}

#[cfg(test)]
mod tests;

//! Opening: the journal of the owner before is sealed, then read.

use std::sync::{Arc, Mutex};

use super::super::claim::Claim;
use super::super::journal::{self, OWNER, SEALED};
use super::super::overlay::Overlay;
use super::super::port::{Guard, Op, Pool, PoolError, PoolUsage, Step};
use super::super::root::{ROOT, Root, Shard};
use super::super::stamped::{Owner, Refused, Stamped};
use super::{Counts, Journal, Options, PooledKv, State, kv_error};
use outboard_base::task::{self, WaitList};
use outboard_kv::{KeyVersions, KvError};

/// Bytes of a journal object read at once.
const CHUNK: usize = 4 << 20;
/// How often an object is sealed while it is being made.
const ATTEMPTS: usize = 16;

impl<P: Pool> PooledKv<P> {
    /// Opens the volume under a claim, making it if the pool holds only its head. Once for a claim;
    /// after an error it may be tried again.
    ///
    /// # Errors
    ///
    /// The pool failed, or what is in it is damaged.
    pub fn open(
        pool: Arc<P>,
        claim: &Claim,
        options: Options,
    ) -> impl Future<Output = Result<PooledKv<P>, KvError>> + use<P> {
        // The claim is renewed meanwhile.
        PooledKv::open_as(pool, claim.owner(), options)
    }

    async fn open_as(pool: Arc<P>, owner: Owner, options: Options) -> Result<PooledKv<P>, KvError> {
        let state = State {
            versions: KeyVersions::new(),
            overlay: Overlay::default(),
            queue: std::collections::VecDeque::new(),
            group: None,
            ended: 0,
            orphan: 0,
            failed: None,
            stopping: false,
            journal: Journal::default(),
            root: Root::new(),
            doubt: false,
            ranges: 0,
            usage: PoolUsage::default(),
            since: 0,
            counts: Counts::default(),
        };
        let store = PooledKv {
            pool,
            owner,
            options,
            root: Stamped::new(ROOT.into()),
            state: Mutex::new(state),
            appending: task::Mutex::default(),
            working: task::Mutex::default(),
            due: WaitList::default(),
        };
        store.find_root().await.map_err(|refused| store.refused(refused))?;
        store.take_journal().await?;
        store.refresh_usage().await?;
        Ok(store)
    }

    async fn find_root(&self) -> Result<(), Refused> {
        match self.pool.stat(ROOT).await {
            Ok(_) => {}
            Err(PoolError::NotFound) => self.make_root().await?,
            Err(error) => return Err(error.into()),
        }
        // Nothing that an owner before left in doubt lands after this.
        self.root.change(&*self.pool, &self.owner, Vec::new(), |p, b| (p, b)).await?;
        let root = Root::load(&*self.pool, None).await?;
        // Whoever has pairs knows how many at most: for the first split.
        for shard in root.shards.values() {
            let stamp = shard.map.stamp(&*self.pool).await?;
            if stamp.claim_epoch > self.owner.claim_epoch {
                return Err(Refused::Lost);
            }
        }
        self.lock().root = root;
        Ok(())
    }

    /// Makes an empty volume: its first shard, then the root object that names it.
    async fn make_root(&self) -> Result<(), Refused> {
        let shard = Shard::new(1);
        match shard.map.make(&*self.pool, &self.owner, Vec::new()).await {
            Ok(()) => {}
            Err(Refused::Exists) => {
                // Left by a making that was interrupted, unless there is something in it.
                if shard.map.stamp(&*self.pool).await?.pairs > 0 {
                    return Err(Refused::Corrupt);
                }
            }
            Err(refused) => return Err(refused),
        }
        match self.root.make(&*self.pool, &self.owner, Root::steps()).await {
            Ok(()) | Err(Refused::Exists) => Ok(()),
            Err(refused) => Err(refused),
        }
    }

    /// Seals every journal object, reads it into the overlay, and shuts the door behind the last.
    async fn take_journal(&self) -> Result<(), KvError> {
        let first = self.lock().root.journal;
        // An interrupted trim has removed the oldest ones first.
        for object in (0..first).rev() {
            match self.pool.apply(&journal::name(object), remove()).await {
                Ok(()) => {}
                Err(PoolError::NotFound) => break,
                Err(error) => return Err(kv_error(error)),
            }
        }
        let mut object = first;
        while !self.seal(object).await.map_err(kv_error)? {
            let bytes = self.read_journal(object).await?;
            let writes = journal::decode(object, &bytes)?;
            let mut state = self.lock();
            for write in &writes {
                state.overlay.publish(0, write);
            }
            state.journal.old.push_back((object, bytes.len() as u64));
            state.journal.bytes += bytes.len() as u64;
            object += 1;
        }
        let mut state = self.lock();
        state.journal.old.push_back((object, 0));
        state.journal.object = object + 1;
        Ok(())
    }

    /// Seals a journal object; one that does not exist is made, sealed. Whether it was.
    async fn seal(&self, object: u64) -> Result<bool, PoolError> {
        let name = journal::name(object);
        let seal = Step::MapSet(SEALED.into(), self.owner.claim_epoch.to_be_bytes().into());
        let owner = Step::MapSet(OWNER.into(), 0_u64.to_be_bytes().into());
        // Again if it is made between the two by who had begun to.
        for _ in 0..ATTEMPTS {
            let op = Op::new().when(Guard::Exists).then(seal.clone()).essential();
            match self.pool.apply(&name, op).await {
                Ok(()) => return Ok(false),
                Err(PoolError::NotFound) => {}
                Err(error) => return Err(error),
            }
            let op = Op::new().when(Guard::Absent).then(seal.clone()).then(owner.clone());
            match self.pool.apply(&name, op.essential()).await {
                Ok(()) => return Ok(true),
                Err(PoolError::Guard) => {}
                Err(error) => return Err(error),
            }
        }
        Err(PoolError::TimedOut)
    }

    async fn read_journal(&self, object: u64) -> Result<Vec<u8>, KvError> {
        let name = journal::name(object);
        let len = self.pool.stat(&name).await.map_err(kv_error)?;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len {
            let part = self.pool.read(&name, bytes.len() as u64, CHUNK).await.map_err(kv_error)?;
            if part.is_empty() {
                return Err(KvError::Corrupt);
            }
            bytes.extend(part);
        }
        Ok(bytes)
    }
}

fn remove() -> Op {
    Op::new().then(Step::Remove).essential()
}

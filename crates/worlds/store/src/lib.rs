//! Where a kv volume is kept: opening it, naming it, moving it.
//!
//! ```text
//! directory   the data directory: one holder, one format
//! name        which store a data directory belongs to, as it is asked for and remembered
//! engine      that store behind the ports: fjall or redb in the directory, or a pool of Ceph
//! pooled      claiming a volume in a pool, and renewing the claim while it is open
//! open        lock, engine and medium, and the file system over them
//! backup      a volume that is open, as a backup, and an engine filled from one
//! migrate     a volume copied from one store to another, compared, and only then one
//! figures     what `status` shows of a store
//! ```
//!
//! What always holds: a data directory has one holder, and belongs to one store for good; what a
//! volume is copied into is no volume before all of it was compared; and a process whose volume may
//! be another's, or whose store cannot say what became of a commit, ends before it answers again.
//!
//! Nothing here knows a link, a mount or a command line; errors name the flags of the program by
//! which a user mends what is wrong. See `docs/internals/store.md`.

#![forbid(unsafe_code)]

pub mod backup;
pub mod directory;
mod engine;
mod error;
mod figures;
pub mod migrate;
mod name;
mod open;
#[cfg(feature = "rados")]
mod pooled;

pub use engine::{StoreKv, StoreMedium};
pub use error::{Cause, StoreError};
pub use figures::figures;
pub use name::StoreName;
pub use open::{
    Driver, Hold, KvVolume, OpenVolume, Opened, Owned, Purpose, RING_DEPTH, Standby, StoreOptions,
    grow, grow_open, open, open_here, open_owned, stand_by,
};

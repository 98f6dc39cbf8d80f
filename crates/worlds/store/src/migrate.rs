//! A volume moved to another store: both ends opened, the one copied into the other, and what the
//! copy's data directory is to know of it noted down before it is a volume.

pub(crate) mod copy;

use outboard_os::executor::block_on;
use outboard_os::medium::Reactor;

use crate::directory::DataDirectory;
use crate::engine::{StoreKv, StoreMedium};
use crate::error::{Cause, StoreError};
use crate::name::StoreName;
use crate::open::{Parts, Purpose, RING_DEPTH, StoreOptions, parts};
pub use copy::{Copied, Phase, Progress};
use copy::{MigrateError, Side};

/// Copies the volume of `from` to `to`, which may be the half of an earlier try, and compares.
pub fn migrate(
    from: &StoreOptions,
    to: &StoreOptions,
    progress: impl FnMut(Progress),
) -> Result<Copied, StoreError> {
    // Without one, media use threads.
    let _reactor = Reactor::install(RING_DEPTH).ok();
    let refused = |error| refused(from, to, error);
    let (source, ours) = parts(from, Purpose::Use)?;
    // Nothing is made for a copy of nothing.
    block_on(copy::look(&ours.kv)).map_err(refused)?;
    let (target, theirs) = parts(to, Purpose::Fill)?;
    if let Err(error) = block_on(copy::may_fill(&theirs.kv)) {
        // With no mark it is no copy of ours: a finished one has its own note.
        if error == MigrateError::Occupied {
            StoreName::give_up_copy(target.path())?;
        }
        return Err(refused(error));
    }
    keep_size(&source, &target)?;
    let number = theirs.hold.volume();
    let copied = block_on(copy::migrate(&side(&ours), &side(&theirs), progress));
    let copied = copied.map_err(refused)?;
    let store = StoreName::of(target.path(), None)?;
    // Before it is a volume: one that nothing says the store of would be looked for elsewhere.
    store.remember(target.path(), number)?;
    block_on(copy::finish(&theirs.kv)).map_err(refused)?;
    Ok(copied)
}

fn side(parts: &Parts) -> Side<'_, StoreKv, StoreMedium> {
    Side { kv: &parts.kv, medium: &parts.blocks }
}

fn refused(from: &StoreOptions, to: &StoreOptions, error: MigrateError) -> StoreError {
    let cause = match error {
        MigrateError::Differs => Cause::Damaged,
        MigrateError::Store(_) => Cause::Failed,
        _ => Cause::Data,
    };
    StoreError::new(cause, format!("{} to {}: {error}", from.data.display(), to.data.display()))
}

/// A size that was given to the volume is the copy's, too.
fn keep_size(source: &DataDirectory, target: &DataDirectory) -> Result<(), StoreError> {
    let (from, to) = (source.path().join("size"), target.path().join("size"));
    if !from.exists() || to.exists() {
        return Ok(());
    }
    std::fs::copy(&from, &to)
        .map(drop)
        .map_err(|error| StoreError::data(format!("cannot copy {}: {error}", from.display())))
}

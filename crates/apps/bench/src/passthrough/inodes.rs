//! Inodes the kernel refers to and files it has open, each by a descriptor of the source.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A table that is read far more than it is changed.
pub(super) struct Table<V>(RwLock<HashMap<u64, V>>);

impl<V> Default for Table<V> {
    fn default() -> Self {
        Table(RwLock::default())
    }
}

impl<V> Table<V> {
    fn read(&self) -> RwLockReadGuard<'_, HashMap<u64, V>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u64, V>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An inode: a descriptor that names it, and how often the kernel was told of it.
struct Inode {
    fd: Arc<OwnedFd>,
    lookups: u64,
}

/// The inodes the kernel refers to.
#[derive(Default)]
pub(super) struct Inodes(Table<Inode>);

impl Inodes {
    /// The kernel is told of inode `ino`, named by `fd`.
    pub(super) fn seen(&self, ino: u64, fd: OwnedFd) {
        let mut inodes = self.0.write();
        inodes.entry(ino).or_insert_with(|| Inode { fd: Arc::new(fd), lookups: 0 }).lookups += 1;
    }

    /// The descriptor that names an inode.
    pub(super) fn get(&self, ino: u64) -> Option<Arc<OwnedFd>> {
        self.0.read().get(&ino).map(|inode| Arc::clone(&inode.fd))
    }

    /// The kernel drops references.
    pub(super) fn forget(&self, ino: u64, count: u64) {
        let mut inodes = self.0.write();
        if let Some(inode) = inodes.get_mut(&ino) {
            inode.lookups = inode.lookups.saturating_sub(count);
            if inode.lookups == 0 {
                inodes.remove(&ino);
            }
        }
    }
}

/// What is open, by handle.
pub(super) struct Handles<V> {
    table: Table<Arc<V>>,
    next: AtomicU64,
}

impl<V> Default for Handles<V> {
    fn default() -> Self {
        Handles { table: Table::default(), next: AtomicU64::new(1) }
    }
}

impl<V> Handles<V> {
    pub(super) fn open(&self, value: V) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.table.write().insert(handle, Arc::new(value));
        handle
    }

    pub(super) fn get(&self, handle: u64) -> Option<Arc<V>> {
        self.table.read().get(&handle).cloned()
    }

    pub(super) fn close(&self, handle: u64) {
        self.table.write().remove(&handle);
    }
}

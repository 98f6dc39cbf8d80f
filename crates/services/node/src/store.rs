//! The store of a storage node.

use outboard_base::Errno;
use outboard_medium::Medium;
use outboard_wire::shared::Reason;
use outboard_wire::shared::call::Object;
use std::ops::Range;

/// How a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// The node's number.
    pub node: u16,
    /// Its cluster.
    pub cluster: u64,
    /// Most bytes of data.
    pub capacity: u64,
    /// By how many bytes the data medium grows.
    pub segment: u64,
    /// Bytes of log after which a checkpoint is due.
    pub checkpoint_bytes: u64,
}

/// Tells writes apart, and which is later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Of the delegation.
    pub fence: u64,
    /// Counted under it.
    pub sequence: u32,
}

/// Why a store does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// A medium failed.
    Io(Errno),
    /// The options cannot be.
    Options(&'static str),
    /// It is of another cluster: this one.
    Cluster(u64),
    /// It is of another node: this one.
    Node(u16),
    /// It was written by another version of the format.
    Format(u32),
    /// What is on the media is not whole.
    Damaged(&'static str),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenError::Io(errno) => write!(f, "a medium of the store failed: {errno:?}"),
            OpenError::Options(what) => write!(f, "the options of the store: {what}"),
            OpenError::Cluster(of) => write!(f, "the store belongs to another cluster, {of:#x}"),
            OpenError::Node(of) => write!(f, "the store belongs to another node, number {of}"),
            OpenError::Format(of) => write!(f, "the store has format {of}, which is not known"),
            OpenError::Damaged(what) => write!(f, "the store is damaged: {what}"),
        }
    }
}

impl std::error::Error for OpenError {}

/// The store.
pub struct Store<M> {
    _log: M,
    _data: M,
}

#[expect(
    clippy::unused_async,
    clippy::missing_errors_doc,
    unused_variables,
    missing_docs,
    reason = "being built"
)]
impl<M: Medium> Store<M> {
    pub async fn open(log: M, data: M, options: StoreOptions) -> Result<Store<M>, OpenError> {
        Ok(Store { _log: log, _data: data })
    }
    pub async fn write(
        &self,
        object: u64,
        strip: u32,
        version: Version,
        previous: Option<Version>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Reason> {
        Err(Reason::Busy)
    }
    pub async fn hole(
        &self,
        object: u64,
        version: Version,
        range: Range<u64>,
    ) -> Result<(), Reason> {
        Err(Reason::Busy)
    }
    pub async fn read(&self, object: u64, offset: u64, len: u32) -> Result<Vec<u8>, Reason> {
        Err(Reason::Busy)
    }
    pub async fn seal(&self, object: u64, fence: u64) -> Result<Object, Reason> {
        Err(Reason::Busy)
    }
    pub async fn purge(&self, object: u64) -> Result<(), Reason> {
        Err(Reason::Busy)
    }
    pub fn objects(&self, from: u64, most: usize) -> Vec<Object> {
        Vec::new()
    }
    pub async fn verify(&self, object: u64) -> Result<u64, Reason> {
        Err(Reason::Busy)
    }
    pub async fn flush(&self) -> Result<(), Reason> {
        Err(Reason::Busy)
    }
    pub async fn tidy(&self) -> Result<bool, Reason> {
        Ok(false)
    }
    pub async fn scrub(&self, bytes: u64) -> Result<u64, Reason> {
        Ok(0)
    }
    pub fn free(&self) -> u64 {
        0
    }
    pub fn figures(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

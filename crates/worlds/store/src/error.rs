//! Why a volume's store cannot be used: what happened, and what to do about it.

use std::fmt;

/// Whose move it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Something was asked for that there is not, or cannot be.
    Asked,
    /// The data directory or the pool is in use, of another version, or holds no volume.
    Data,
    /// What was copied is not what is there.
    Damaged,
    /// The operating system or a store failed.
    Failed,
}

/// A cause, and a message that names the remedy.
#[derive(Debug)]
pub struct StoreError {
    cause: Cause,
    message: String,
}

impl StoreError {
    pub(crate) fn new(cause: Cause, message: impl Into<String>) -> StoreError {
        StoreError { cause, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> StoreError {
        StoreError::new(Cause::Asked, message)
    }

    pub(crate) fn data(message: impl Into<String>) -> StoreError {
        StoreError::new(Cause::Data, message)
    }

    /// Of what only a pool takes.
    #[cfg(feature = "rados")]
    pub(crate) fn failed(message: impl Into<String>) -> StoreError {
        StoreError::new(Cause::Failed, message)
    }

    /// Whose move it is.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.cause
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}

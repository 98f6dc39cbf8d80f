//! Exit codes that mean something, and the one error type of the program: a message with its
//! remedy.

use std::fmt;
use std::process::ExitCode;

use outboard_store::{Cause, StoreError};
use serde::{Deserialize, Serialize};

/// What an exit code says; also printed by `outboard --help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub(crate) enum Code {
    /// Something failed at run time; the message says what.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// The mount point is missing, busy or not a directory.
    MountPoint = 3,
    /// The data directory is in use, of another version, or not a volume.
    Data = 4,
    /// The check found damage.
    Damaged = 5,
    /// No DPU side answers.
    NotRunning = 6,
}

/// Why the program stops: what happened and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    code: Code,
    message: String,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Code::Usage, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Failure {
        Failure::new(Code::Failed, message)
    }

    /// Prints the message and gives the code.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("outboard: {}", self.message);
        self.exit_code()
    }

    /// For one that is reported elsewhere.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code as u8)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let code = match error.cause() {
            Cause::Asked => Code::Usage,
            Cause::Data => Code::Data,
            Cause::Damaged => Code::Damaged,
            Cause::Failed => Code::Failed,
        };
        Failure::new(code, error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

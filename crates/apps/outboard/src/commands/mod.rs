//! One module a command.

pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod cluster;
pub(crate) mod dpu;
pub(crate) mod fsck;
pub(crate) mod grow;
pub(crate) mod layout;
pub(crate) mod migrate;
pub(crate) mod mounted;
pub(crate) mod pages;
pub(crate) mod restore;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod served;
pub(crate) mod status;
pub(crate) mod umount;
pub(crate) mod upgrade;

use std::process::ExitCode;

use crate::cli::Cli;

/// Prints completions for `shell`.
pub(crate) fn completions(shell: clap_complete::Shell) -> ExitCode {
    clap_complete::generate(shell, &mut Cli::told_apart(), "outboard", &mut std::io::stdout());
    ExitCode::SUCCESS
}

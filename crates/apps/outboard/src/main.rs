//! `outboard`: every role is a subcommand; see `outboard --help`.

#![forbid(unsafe_code)]

mod bar;
mod cli;
mod cluster;
mod commands;
mod dpu_process;
mod exit;
mod handover;
mod log;
mod mount_process;
mod program;
mod restarts;
mod say;
mod service;
mod settings;
mod successor;
mod watch;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::cluster::description::Role;
use crate::commands::run::TakeOver;
use crate::exit::Failure;
use crate::settings::Settings;

fn main() -> ExitCode {
    match dispatch(Cli::of_process()) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn dispatch(cli: Cli) -> Result<ExitCode, Failure> {
    let config = cli.config.as_deref();
    if let (Some(file), false) = (config, cli.command.has_settings()) {
        let file = file.display();
        return Err(Failure::usage(format!("--config {file} is for commands on a volume alone")));
    }
    // A mount goes on with the settings it had.
    let loaded = |settings: Settings, take_over: Option<TakeOver>| match take_over {
        None => settings.load(config),
        Some(_) => Ok(settings),
    };
    match cli.command {
        Command::Run { settings, take_over, places } => {
            let (settings, mountpoint) = settings.at(places)?;
            commands::run::run(loaded(settings, take_over)?, &mountpoint, take_over)
        }
        Command::Dpu { settings } => commands::dpu::dpu(&settings.load(config)?),
        Command::Mount { settings, take_over, places } => {
            let (settings, mountpoint) = settings.at(places)?;
            commands::run::mount(loaded(settings, take_over)?, &mountpoint, take_over)
        }
        Command::Mounted { settings } => commands::mounted::mounted(&settings),
        Command::Umount { lazy, mountpoint } => commands::umount::umount(&mountpoint, lazy),
        Command::Fsck { settings, repair, json } => {
            commands::fsck::fsck(&settings.load(config)?, repair, json)
        }
        Command::Status { settings, json, watch } => {
            commands::status::status(&settings.load(config)?, json, watch)
        }
        Command::Upgrade { settings } => commands::upgrade::upgrade(&settings.load(config)?),
        Command::Grow { settings } => commands::grow::grow(&settings.load(config)?),
        Command::Migrate { from, to, store } => commands::migrate::migrate(from, to, store),
        Command::Backup { dir, file, force } => commands::backup::backup(&dir, &file, force),
        Command::Restore { file, dir } => commands::restore::restore(&file, &dir),
        Command::Serve { what } => commands::serve::serve(what),
        Command::Pages { what } => commands::pages::pages(what),
        Command::Cluster { what } => commands::cluster::cluster(what),
        Command::Node { number, of } => {
            commands::cluster::part(config, number.map(Role::Node), "node", &of)
        }
        Command::Meta { number, of } => {
            commands::cluster::part(config, Some(Role::Meta(number)), "meta", &of)
        }
        Command::Coordinator { of } => {
            commands::cluster::part(config, Some(Role::Coordinator), "coordinator", &of)
        }
        Command::Packed { of } => {
            commands::cluster::part(config, Some(Role::Packed), "packed", &of)
        }
        Command::Layout { path, set } => commands::layout::layout(&path, set.as_deref()),
        Command::Bench { arguments } => commands::bench::bench(&arguments),
        Command::Completions { shell } => Ok(commands::completions(shell)),
    }
}

//! `outboard pages`: a client of the page server, for people.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use outboard_servers::pages::client::{Answer, Client};
use outboard_servers::pages::wire::{CONTENTS, PAGE_MAX};

use crate::exit::Failure;
use crate::say::say;

/// How long each step may take.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
pub(crate) struct Server {
    /// Where the page server listens
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7379")]
    connect: SocketAddr,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Pages {
    /// Write a page's contents to the standard output, without the zeros at its end
    Get {
        #[command(flatten)]
        server: Server,
        /// Its number
        #[arg(value_parser = clap::value_parser!(u64).range(..=PAGE_MAX))]
        page: u64,
        /// Take it only if it is at least as new
        #[arg(long, value_name = "LSN", default_value_t = 0)]
        lsn: u64,
    },
    /// Send a log record: bytes of a page's contents, from the standard input if not given here
    Put {
        #[command(flatten)]
        server: Server,
        /// Its number
        #[arg(value_parser = clap::value_parser!(u64).range(..=PAGE_MAX))]
        page: u64,
        /// The record's LSN, which becomes the page's
        #[arg(long, value_name = "LSN")]
        lsn: u64,
        /// First byte of the contents that it sets
        #[arg(long, value_name = "BYTE", default_value_t = 0)]
        at: usize,
        /// What they become
        text: Option<String>,
    },
    /// Wait until every record answered so far survives power loss
    Sync {
        #[command(flatten)]
        server: Server,
    },
}

pub(crate) fn pages(what: Pages) -> Result<ExitCode, Failure> {
    match what {
        Pages::Get { server, page, lsn } => get(&server, page, lsn),
        Pages::Put { server, page, lsn, at, text } => put(&server, page, lsn, at, text),
        Pages::Sync { server } => {
            server.client()?.sync().map_err(|error| server.failed(&error))?;
            say!("every record answered before survives power loss");
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl Server {
    fn client(&self) -> Result<Client, Failure> {
        Client::connect(self.connect, PATIENCE).map_err(|error| {
            let at = self.connect;
            Failure::internal(format!(
                "no page server answers at {at}: {error}; start one with `outboard serve pages \
                 --listen {at}`, or name another with --connect"
            ))
        })
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::internal(format!("{}: {error}", self.connect))
    }
}

fn get(server: &Server, page: u64, lsn: u64) -> Result<ExitCode, Failure> {
    let answer = server.client()?.get(page, lsn).map_err(|error| server.failed(&error))?;
    match answer {
        Answer::Page(own, contents) => {
            let end = contents.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
            let out = contents.get(..end).unwrap_or_default();
            io::stdout().write_all(out).map_err(|error| server.failed(&error))?;
            eprintln!("page {page} at LSN {own}, {end} bytes");
            Ok(ExitCode::SUCCESS)
        }
        Answer::Older(own) => Err(older(page, own, lsn)),
        Answer::Done(_) | Answer::Applied(_) => Err(Failure::internal("an answer to another")),
    }
}

fn older(page: u64, own: u64, asked: u64) -> Failure {
    let text = format!("page {page} is at LSN {own}: log records up to {asked} have not come");
    Failure::internal(text)
}

fn put(
    server: &Server,
    page: u64,
    lsn: u64,
    at: usize,
    text: Option<String>,
) -> Result<ExitCode, Failure> {
    let data = match text {
        Some(text) => text.into_bytes(),
        None => read_input().map_err(|error| server.failed(&error))?,
    };
    let answer = server.client()?.apply(page, lsn, at, &data);
    match answer.map_err(|error| server.failed(&error))? {
        Answer::Done(own) => say!("page {page} is at LSN {own}"),
        Answer::Applied(own) => say!("page {page} is at LSN {own} already: nothing to apply"),
        Answer::Older(own) => return Err(older(page, own, lsn)),
        Answer::Page(..) => return Err(Failure::internal("an answer to another")),
    }
    Ok(ExitCode::SUCCESS)
}

/// At most a byte more than a page takes, which is then refused.
fn read_input() -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    io::stdin().take(CONTENTS as u64 + 1).read_to_end(&mut data)?;
    Ok(data)
}

//! A client that waits for each answer: for people and their scripts. Databases pipeline.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::wire::{self, CONTENTS, Framed, HEAD, PAGE, PAGE_HEAD, Request, Status};

/// A connection to a page server.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The page, of this LSN: its contents.
    Page(u64, Vec<u8>),
    /// The record was applied; the page's LSN is now its own.
    Done(u64),
    /// Not newer than the page, which is at this LSN: it was applied before.
    Applied(u64),
    /// The page is at this LSN, older than asked.
    Older(u64),
}

impl Client {
    /// Connects, waiting at most `patience`, and as long for each answer.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(address: SocketAddr, patience: Duration) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        Ok(Client { stream })
    }

    /// `GetPage`: page `page`, at least as new as `lsn`; 0 takes any. One never written is zeros.
    ///
    /// # Errors
    /// The connection, the server's file, or an answer that is none.
    pub fn get(&mut self, page: u64, lsn: u64) -> io::Result<Answer> {
        self.ask(&Request::GetPage { page, lsn })
    }

    /// `Apply`: a log record of LSN `lsn` that sets bytes of the contents from `at` on.
    ///
    /// # Errors
    /// As for [`Client::get`]; also if the bytes do not lie within the contents.
    pub fn apply(&mut self, page: u64, lsn: u64, at: usize, data: &[u8]) -> io::Result<Answer> {
        if at.checked_add(data.len()).is_none_or(|end| end > CONTENTS) {
            let why = format!("a page has {CONTENTS} bytes of contents");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.ask(&Request::Apply { page, lsn, at, data })
    }

    /// `Sync`: when this ends well, every record that was answered before on this connection, or on
    /// one that is gone, survives power loss, and need not be sent again; those of others, too, but
    /// for pages that could not be written, of which their senders are told.
    ///
    /// # Errors
    /// As for [`Client::get`]. Records must then be kept as before.
    pub fn sync(&mut self) -> io::Result<()> {
        match self.ask(&Request::Sync)? {
            Answer::Done(_) => Ok(()),
            _ => Err(no_answer()),
        }
    }

    fn ask(&mut self, request: &Request<'_>) -> io::Result<Answer> {
        let page = match *request {
            Request::GetPage { page, .. } | Request::Apply { page, .. } => page,
            Request::Sync => 0,
        };
        self.stream.write_all(&request.emit())?;
        let mut head = [0; HEAD];
        self.stream.read_exact(&mut head)?;
        let len = match wire::frame(&head) {
            Framed::Whole(len) | Framed::More(len) => len,
            Framed::Invalid => return Err(no_answer()),
        };
        let mut data = vec![0; len - HEAD];
        self.stream.read_exact(&mut data)?;
        let (status, own, lsn) = wire::parse_answer(&head).ok_or_else(no_answer)?;
        match (status, request) {
            (Status::Invalid, _) => Err(io::Error::other("the server says that it is no request")),
            (Status::Full, _) => Err(io::Error::new(io::ErrorKind::StorageFull, FULL)),
            (Status::Failed, Request::Sync) if lsn > 0 => Err(io::Error::other(format!(
                "page {own} could not be written; keep the records since the last sync, and sync \
                 again"
            ))),
            (Status::Failed, _) => Err(io::Error::other("the server's file failed")),
            (Status::Busy, _) => {
                Err(io::Error::other("the server has as many clients as it takes; try again"))
            }
            _ if own != page => Err(no_answer()),
            (Status::Older, _) => Ok(Answer::Older(lsn)),
            (Status::Applied, Request::Apply { .. }) => Ok(Answer::Applied(lsn)),
            (Status::Done, Request::Apply { .. } | Request::Sync) => Ok(Answer::Done(lsn)),
            (Status::Done, Request::GetPage { .. }) if data.len() == PAGE => {
                Ok(Answer::Page(lsn, data.split_off(PAGE_HEAD)))
            }
            _ => Err(no_answer()),
        }
    }
}

const FULL: &str = "the server's device has no room for another page: this record was not taken; \
                    records for pages that exist are, and this one is when there is room";

fn no_answer() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what answers is no page server")
}

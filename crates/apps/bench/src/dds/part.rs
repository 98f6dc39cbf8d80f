//! The small servers of figures 19, 21 and 23: each is a process of its own, so that its CPU time
//! can be told, and ends with the signal that ends a process.
//!
//! * the **host** sends back every byte it gets;
//! * the **director** is the product's, with an application whose messages say themselves who is to
//!   answer: the host, or the director, from the message;
//! * **reads** is the director again, over the file service and one file. As in the paper's
//!   application of section 8.1 the request names offset and length, so there is nothing to cache.
//!   On request each read is copied once, as it must be where no buffer is both read into and sent.
//!
//! The messages are drawn in `requests`.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outboard_dds::dpu::director::Signature;
use outboard_dds::dpu::files::FileService;
use outboard_dds::dpu::offload::engine::Filled;
use outboard_dds::dpu::offload::{
    Answer, Application, Cursor, Division, Framing, Head, Item, Key, Lookup, ReadOp, Span, Touches,
    WriteOp,
};
use outboard_dds::groups::Shape;
use outboard_medium::{Buf, Medium};
use outboard_pageserver::host::Attachment;
use outboard_pageserver::library::file_library;
use outboard_pageserver::server::{Server, ServerOptions};
use outboard_pageserver::tcp::front::Front;
use outboard_pageserver::tcp::sockets::{Address, ConnId, Listener, Read, Ready, Sockets, Wrote};
use outboard_pageserver::tcp::stack::network::Network;
use outboard_pageserver::tcp::worker::{Files, Limits, Setup};

use super::requests::{HEAD, KIND_HERE, KIND_READ, READ_UNIT, UNIT, head};

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What answers in the end.
    Host,
    /// The director.
    Director,
    /// The director with a file.
    Reads,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Host, Kind::Director, Kind::Reads];

    /// How a command line says it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Host => "host",
            Kind::Director => "director",
            Kind::Reads => "reads",
        }
    }

    /// By its name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A server to run.
#[derive(Clone, Debug)]
pub struct Part {
    /// Which.
    pub kind: Kind,
    /// Where clients connect: an address and port, or a path.
    pub listen: String,
    /// Where data lies.
    pub dir: PathBuf,
    /// Where the host of a director serves: as `listen`.
    pub host: String,
    /// Devices that a director stands between, in place of listening itself: then it serves who
    /// asks for `listen`, which is the host's, over the user-space stack.
    pub net: Option<Network>,
    /// Threads of a director.
    pub workers: usize,
    /// Bytes of the file.
    pub bytes: u64,
    /// Whether each read is copied.
    pub copies: bool,
}

/// Bytes of one read from a connection.
const CHUNK: usize = 64 << 10;
/// Bytes that wait for a client; beyond, its input waits.
const OUT_MAX: usize = 1 << 20;
/// Bytes of one write that fills the file.
const FILL: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);
fn address(listen: &str) -> Address {
    let tcp = listen.parse::<SocketAddr>();
    tcp.map_or_else(|_| Address::Unix(PathBuf::from(listen)), Address::Tcp)
}

/// Serves until the process is ended.
///
/// # Errors
/// An address or a directory that cannot be used.
pub fn serve(part: &Part) -> io::Result<()> {
    let at = address(&part.listen);
    let _front = match part.kind {
        Kind::Host => return Echo::new(Listener::bind(&at)?)?.run(),
        Kind::Director => {
            let setup = setup(part, Arc::new(NoFiles), 0);
            match (&part.net, &at) {
                (Some(net), Address::Tcp(server)) => {
                    let flows = Signature::of_server(*server);
                    Front::between(net.open()?, flows, at.clone(), part.workers, &setup)?.0
                }
                _ => Front::start(Listener::bind(&at)?, part.workers, &setup)?,
            }
        }
        Kind::Reads => {
            let listener = Listener::bind(&at)?;
            let (server, file) = with_file(&part.dir, part.bytes)?;
            let files = Arc::clone(server.files());
            let front = if part.copies {
                let copying = Copying { files, spare: Mutex::new(Vec::new()) };
                Front::start(listener, part.workers, &setup(part, Arc::new(copying), file))?
            } else {
                Front::start(listener, part.workers, &setup(part, files, file))?
            };
            // The file service serves as long as the front does: until the process ends.
            std::mem::forget(server);
            front
        }
    };
    loop {
        std::thread::park();
    }
}

fn setup<F: Files>(part: &Part, files: Arc<F>, file: u32) -> Setup<F> {
    Setup {
        app: Arc::new(PartApplication { file }),
        health: Arc::default(),
        table: Arc::new(NoTable),
        files,
        signature: None,
        host: address(&part.host),
        contexts: 1024,
        pool: 64 << 20,
        limits: Limits::default(),
    }
}

/// A file service over a new volume in `dir`, with one file that says its offset every
/// [`READ_UNIT`] bytes; and the file's number.
fn with_file(dir: &Path, bytes: u64) -> io::Result<(Server, u32)> {
    let socket = dir.join("files.sock");
    let mut options = ServerOptions::new(dir.join("volume"), socket.clone());
    options.capacity = Some(4 * bytes.max(64 << 20));
    let server = Server::start(options)?;
    let shape = Shape::new(2, 4 << 20, 4 << 20, 4096)
        .ok_or_else(|| io::Error::other("rings of that shape cannot be"))?;
    let library = file_library(Attachment::attach(&socket, shape, PATIENCE)?)?;
    let directory = library.create_directory(b"part")?;
    let file = library.create_file(directory, b"file")?;
    let (mut data, mut done) = (vec![0u8; FILL], Vec::new());
    for offset in (0..bytes).step_by(FILL) {
        let units = (offset..).step_by(UNIT);
        for (own, unit) in units.zip(data.chunks_mut(UNIT)) {
            unit.iter_mut().zip(own.to_le_bytes()).for_each(|(to, byte)| *to = byte);
        }
        while let Err(no) = library.write_file(&file, offset, &data, 0) {
            if no.errno != outboard_base::Errno::EAGAIN {
                return Err(no.errno.into());
            }
            // The ring is given back a little after the last answer.
            std::thread::sleep(Duration::from_micros(100));
        }
        while done.is_empty() {
            library.poll_wait(library.default_poll(), &mut done, 1, PATIENCE)?;
        }
        done.drain(..).try_for_each(|one| one.result.map(drop))?;
    }
    Ok((server, file.id().0))
}

/// The application of a director: its messages say who answers.
struct PartApplication {
    file: u32,
}

fn length(stream: &[u8]) -> Option<usize> {
    let len = u32::from_le_bytes(*stream.first_chunk()?);
    usize::try_from(len).ok()
}

fn u64_at(message: &[u8], at: usize) -> Option<u64> {
    message.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn framing(stream: &[u8]) -> Framing {
    match length(stream) {
        None => Framing::More(4),
        Some(len) if len < HEAD => Framing::Foreign,
        Some(len) if stream.len() < len => Framing::More(len),
        Some(len) => Framing::Whole(len),
    }
}

impl Application for PartApplication {
    fn frame(&self, stream: &[u8], _: &mut Cursor) -> Framing {
        framing(stream)
    }

    fn frame_answer(&self, stream: &[u8], _: &mut Cursor) -> Framing {
        framing(stream)
    }

    fn off_pred(&self, message: &[u8], _: &dyn Lookup, division: &mut Division) {
        let whole = Span::Message(0..message.len());
        match (message.get(4), u64_at(message, 8)) {
            (Some(&KIND_HERE), _) => division.literal(whole),
            (Some(&KIND_READ), Some(key)) => division.dpu(whole, key),
            _ => division.host(whole, Touches::Nothing),
        }
    }

    fn off_func(&self, request: &[u8], _: &dyn Lookup) -> Option<ReadOp> {
        let offset = u64_at(request, 8)?.checked_mul(READ_UNIT)?;
        let bytes = u32::from_le_bytes(*request.get(HEAD..)?.first_chunk()?);
        Some(ReadOp { file: self.file, offset, bytes })
    }

    fn answer(&self, request: &[u8], _: ReadOp, bytes: &[u8]) -> Option<Answer> {
        let head = head(HEAD + bytes.len(), KIND_READ, u64_at(request, 8)?);
        Some(Answer { head: Head::new(&head)?, payload: 0..bytes.len() })
    }

    fn cache(&self, _: WriteOp<'_>, _: &mut Vec<(Key, Item)>) {}

    fn invalidate(&self, _: ReadOp, _: &mut Vec<Key>) {}
}

/// The table of an application that caches nothing.
struct NoTable;

impl Lookup for NoTable {
    fn get(&self, _: Key) -> Option<Item> {
        None
    }
}

/// The file service of a director that is asked for no file.
struct NoFiles;

impl Files for NoFiles {
    async fn read(&self, _: u32, _: ReadOp, buffer: Buf) -> Filled {
        Filled { buffer, bytes: None }
    }

    fn forsake(&self, _: u32) {}
}

/// A file service whose reads do not end where they are sent from.
struct Copying<M: Medium> {
    files: Arc<FileService<M>>,
    /// Buffers to read into.
    spare: Mutex<Vec<Buf>>,
}

impl<M: Medium> Files for Copying<M> {
    async fn read(&self, thread: u32, read: ReadOp, mut buffer: Buf) -> Filled {
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = spare().pop();
        let mut own = kept.unwrap_or_else(|| Buf::zeroed(buffer.len()));
        own.resize(buffer.len());
        let Filled { buffer: own, bytes } = Files::read(&*self.files, thread, read, own).await;
        if let Some(range) = bytes.clone()
            && let (Some(to), Some(from)) = (buffer.get_mut(range.clone()), own.get(range))
        {
            to.copy_from_slice(from);
        }
        spare().push(own);
        Filled { buffer, bytes }
    }

    fn forsake(&self, thread: u32) {
        Files::forsake(&*self.files, thread);
    }
}

/// One connection of the host.
struct Conn {
    id: ConnId,
    out: Vec<u8>,
    sent: usize,
    ended: bool,
}

/// Sends back what it gets: one thread.
struct Echo {
    sockets: Sockets,
    listener: Listener,
    /// By the number of the connection.
    conns: Vec<Option<Conn>>,
    chunk: Vec<u8>,
}

impl Echo {
    fn new(listener: Listener) -> io::Result<Echo> {
        let sockets = Sockets::new()?;
        sockets.watch_listener(&listener)?;
        Ok(Echo { sockets, listener, conns: Vec::new(), chunk: vec![0; CHUNK] })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        loop {
            self.sockets.look(None, &mut ready)?;
            for what in ready.drain(..) {
                match what {
                    Ready::Listener => self.welcome()?,
                    Ready::Conn(id) => self.go_on(id),
                    Ready::Wakeup => {}
                }
            }
        }
    }

    fn welcome(&mut self) -> io::Result<()> {
        while let Some(stream) = self.listener.accept()? {
            let id = self.sockets.add(stream)?;
            if self.conns.len() <= id.index() {
                self.conns.resize_with(id.index() + 1, || None);
            }
            if let Some(place) = self.conns.get_mut(id.index()) {
                *place = Some(Conn { id, out: Vec::new(), sent: 0, ended: false });
            }
        }
        Ok(())
    }

    /// Reads and sends until neither can be done.
    fn go_on(&mut self, id: ConnId) {
        let Some(place) = self.conns.get_mut(id.index()) else { return };
        let Some(conn) = place.as_mut().filter(|conn| conn.id == id) else { return };
        loop {
            let mut moved = false;
            if !conn.ended && conn.out.len() < OUT_MAX {
                match self.sockets.read(id, &mut self.chunk) {
                    Read::Bytes(n) => {
                        conn.out.extend_from_slice(self.chunk.get(..n).unwrap_or_default());
                        moved = true;
                    }
                    Read::Blocked => {}
                    Read::Ended => conn.ended = true,
                    Read::Reset => break,
                }
            }
            let rest = conn.out.get(conn.sent..).unwrap_or_default();
            if !rest.is_empty() {
                match self.sockets.write(id, &[IoSlice::new(rest)]) {
                    Wrote::Bytes(n) => {
                        conn.sent += n;
                        moved = true;
                    }
                    Wrote::Blocked => {}
                    Wrote::Reset => break,
                }
            }
            if conn.sent == conn.out.len() {
                conn.out.clear();
                conn.sent = 0;
                if conn.ended {
                    break;
                }
            }
            if !moved {
                return;
            }
        }
        *place = None;
        self.sockets.close(id, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dds::client::Client;
    use crate::dds::requests::{Batch, Op};

    /// Each kind of message comes back as its protocol says, in order, from who is to answer.
    #[test]
    fn messages_are_answered_by_whom_they_name() {
        let dir = tempfile::tempdir().unwrap();
        let host = |copies| dir.path().join(format!("{copies}")).join("host.sock");
        let part = |kind, listen: &str, copies| Part {
            kind,
            listen: listen.to_owned(),
            dir: dir.path().join(format!("{copies}")),
            host: host(copies).display().to_string(),
            net: None,
            workers: 2,
            bytes: 1 << 20,
            copies,
        };
        for copies in [false, true] {
            let own = dir.path().join(format!("{copies}"));
            std::fs::create_dir_all(&own).unwrap();
            let host_at = host(copies);
            let host = part(Kind::Host, host_at.to_str().unwrap(), copies);
            let at = crate::dds::process::free_address().unwrap();
            let reads = part(Kind::Reads, &at.to_string(), copies);
            for part in [host, reads] {
                std::thread::spawn(move || serve(&part).unwrap());
            }
            let mut client = loop {
                match Client::connect(at, 3) {
                    Ok(client) => break client,
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            };
            while std::os::unix::net::UnixStream::connect(&host_at).is_err() {
                std::thread::sleep(Duration::from_millis(5));
            }
            for (op, value) in
                [(Op::EchoHost, 100), (Op::EchoHere, 9000), (Op::Read, 1024), (Op::Read, 8192)]
            {
                let mut keys = 0..100;
                let batch = Batch { op, value, pipeline: 7 };
                let done = client.run(batch, &mut || keys.next()).unwrap();
                assert_eq!(done.count, 100, "{op:?}");
            }
        }
    }
}

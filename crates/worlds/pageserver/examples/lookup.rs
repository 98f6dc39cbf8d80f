//! A server of one's own whose reads are answered beyond the bus: the whole of it.
//!
//! ```text
//! cargo run -p outboard-pageserver --example lookup
//! ```
//!
//! It keeps texts under numbers. A message is 64 bytes, as is its answer: what (`G`et, `P`ut,
//! `F`ile them all, `N`umber of requests the host has had; the answer `+` or `-`), the number at
//! byte 8, the text from byte 16. Texts that were filed lie in a file of the DPU side's as they are
//! sent, and never change there.
//!
//! Three things make it a server of Outboard's:
//!
//! 1. the host's files are [`FileLibrary`]'s ([`Host::file_all`]);
//! 2. one object, [`Lookup`], says what the DPU side may answer, and how;
//! 3. before the host answers a `P`ut of a number that was filed, it retires the number
//!    ([`Host::put`]): it does not read the file for that, so nobody else could know.
//!
//! Here both sides are threads of one program; `outboard serve` shows them as processes.

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outboard_dds::dpu::offload::{
    self, Answer, Application, Cursor, Division, Framing, Head, Item, Key, ReadOp, Span, Touches,
    WriteOp,
};
use outboard_dds::groups::Shape;
use outboard_dds::host::File;
use outboard_dds::table::Changes;
use outboard_pageserver::host::Attachment;
use outboard_pageserver::library::{FileLibrary, file_library};
use outboard_pageserver::server::{Server, ServerOptions};
use outboard_pageserver::tcp::front::Front;
use outboard_pageserver::tcp::sockets::{Address, Listener};
use outboard_pageserver::tcp::worker::{Limits, Setup};

/// Bytes of a message, an answer, and a text as it lies in the file.
const MESSAGE: usize = 64;
/// Where the text begins.
const TEXT: usize = 16;
const PATIENCE: Duration = Duration::from_secs(30);

type Message = [u8; MESSAGE];

fn message(what: u8, number: u64, text: &[u8]) -> Message {
    let mut message = [0; MESSAGE];
    let (head, rest) = message.split_at_mut(TEXT);
    head[0] = what;
    head[8..].copy_from_slice(&number.to_le_bytes());
    rest.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
    message
}

fn number_of(message: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(message.get(8..TEXT)?.try_into().ok()?))
}

/// What the DPU side does with a message. It knows nothing but the cache table: a number that was
/// filed, and where.
struct Lookup;

impl Application for Lookup {
    fn frame(&self, stream: &[u8], _: &mut Cursor) -> Framing {
        if stream.len() < MESSAGE { Framing::More(MESSAGE) } else { Framing::Whole(MESSAGE) }
    }

    fn frame_answer(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        self.frame(stream, cursor)
    }

    /// `OffPred`: a `G`et of what was filed is the DPU side's; all else the host's.
    fn off_pred(&self, message: &[u8], table: &dyn offload::Lookup, division: &mut Division) {
        let whole = Span::Message(0..message.len());
        match (message.first(), number_of(message)) {
            (Some(b'G'), Some(number)) if table.get(number).is_some() => {
                division.dpu(whole, number);
            }
            (Some(b'G' | b'P'), Some(number)) => division.host(whole, Touches::One(number)),
            (Some(b'N'), _) => division.host(whole, Touches::Nothing),
            _ => division.host(whole, Touches::Everything),
        }
    }

    /// `OffFunc`: the read that answers it.
    fn off_func(&self, request: &[u8], table: &dyn offload::Lookup) -> Option<ReadOp> {
        let [file, offset, bytes, _] = table.get(number_of(request)?)?;
        let (file, bytes) = (u32::try_from(file).ok()?, u32::try_from(bytes).ok()?);
        Some(ReadOp { file, offset, bytes })
    }

    /// Sent from where the device put it, if it is what was asked for.
    fn answer(&self, request: &[u8], _: ReadOp, bytes: &[u8]) -> Option<Answer> {
        let is_it = bytes.len() == MESSAGE && number_of(bytes) == number_of(request);
        is_it.then(|| Answer { head: Head::default(), payload: 0..MESSAGE })
    }

    /// `Cache`: what the host filed can be found.
    fn cache(&self, write: WriteOp<'_>, items: &mut Vec<(Key, Item)>) {
        for (text, at) in write.bytes.chunks_exact(MESSAGE).zip((write.offset..).step_by(MESSAGE)) {
            if let Some(number) = number_of(text) {
                items.push((number, [write.file.into(), at, MESSAGE as u64, 0]));
            }
        }
    }

    /// `Invalidate`: what lies in the file never changes, so reading it says nothing.
    fn invalidate(&self, _: ReadOp, _: &mut Vec<Key>) {}
}

/// The host: texts in memory, and where the others were filed.
struct Host {
    library: FileLibrary,
    file: File,
    texts: HashMap<u64, Message>,
    filed: HashMap<u64, u64>,
    end: u64,
    served: u64,
}

fn failed(what: &str) -> impl Fn(outboard_base::Errno) -> io::Error {
    move |error| io::Error::other(format!("{what}: {error}"))
}

impl Host {
    fn attach(socket: &Path) -> io::Result<Host> {
        let shape = Shape::new(2, 1 << 20, 1 << 20, 4096).ok_or(io::ErrorKind::InvalidInput)?;
        let library = file_library(Attachment::attach(socket, shape, PATIENCE)?)?;
        let directory = library.create_directory(b"lookup").map_err(failed("the directory"))?;
        let file = library.create_file(directory, b"texts").map_err(failed("the file"))?;
        let (texts, filed) = (HashMap::new(), HashMap::new());
        Ok(Host { library, file, texts, filed, end: 0, served: 0 })
    }

    /// Waits for what was begun; the bytes of a read.
    fn finish(&self) -> io::Result<Vec<u8>> {
        let mut done = Vec::new();
        let poll = self.library.default_poll();
        self.library.poll_wait(poll, &mut done, 1, PATIENCE).map_err(failed("waiting"))?;
        let done = done.pop().ok_or(io::ErrorKind::TimedOut)?;
        done.result.map_err(failed("the DPU side"))?;
        Ok(done.buffers.into_iter().next().unwrap_or_default())
    }

    /// Before this is answered nobody is to read the text that was filed: so the number is retired,
    /// and that is confirmed.
    fn put(&mut self, text: &Message, number: u64) -> io::Result<()> {
        if self.filed.remove(&number).is_some() {
            let changes = Changes { removals: vec![number], ..Changes::default() };
            let poll = self.library.default_poll();
            let begun = self.library.change_table(poll, &changes.emit(), 0);
            begun.map_err(|not| failed("retiring")(not.errno))?;
            self.finish()?;
        }
        self.texts.insert(number, *text);
        Ok(())
    }

    fn get(&self, number: u64) -> io::Result<Option<Vec<u8>>> {
        if let Some(text) = self.texts.get(&number) {
            return Ok(Some(text.to_vec()));
        }
        let Some(at) = self.filed.get(&number) else { return Ok(None) };
        let begun = self.library.read_file(&self.file, *at, vec![0; MESSAGE], 0);
        begun.map_err(|not| failed("reading")(not.errno))?;
        self.finish().map(Some)
    }

    /// Writes all texts behind what is in the file. When that is done the DPU side has been told.
    fn file_all(&mut self) -> io::Result<()> {
        let texts: Vec<(u64, Message)> = self.texts.drain().collect();
        for some in texts.chunks(1024) {
            let bytes: Vec<u8> = some.iter().flat_map(|(_, text)| *text).collect();
            let begun = self.library.write_file(&self.file, self.end, &bytes, 0);
            begun.map_err(|not| failed("writing")(not.errno))?;
            self.finish()?;
            for (number, _) in some {
                self.filed.insert(*number, self.end);
                self.end += MESSAGE as u64;
            }
        }
        Ok(())
    }

    fn serve(&mut self, asked: &Message) -> io::Result<Vec<u8>> {
        self.served += 1;
        let number = number_of(asked).unwrap_or_default();
        let text = message(b'+', number, &asked[TEXT..]);
        match asked[0] {
            b'P' => self.put(&text, number)?,
            b'F' => self.file_all()?,
            b'N' => return Ok(message(b'+', self.served, b"").to_vec()),
            b'G' => {
                let none = || message(b'-', number, b"").to_vec();
                return Ok(self.get(number)?.unwrap_or_else(none));
            }
            _ => return Ok(message(b'-', number, b"what?").to_vec()),
        }
        Ok(message(b'+', number, b"").to_vec())
    }
}

/// Serves the DPU side's connections, each by a thread.
fn host(socket: &Path) -> io::Result<SocketAddr> {
    let host = Arc::new(Mutex::new(Host::attach(socket)?));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let host = Arc::clone(&host);
            std::thread::spawn(move || {
                let mut asked = [0; MESSAGE];
                while stream.read_exact(&mut asked).is_ok() {
                    let answer = host.lock().unwrap_or_else(PoisonError::into_inner).serve(&asked);
                    let sent = answer.and_then(|answer| stream.write_all(&answer));
                    if let Err(error) = sent {
                        return eprintln!("a connection ended: {error}");
                    }
                }
            });
        }
    });
    Ok(at)
}

/// A client.
struct Client(TcpStream);

impl Client {
    fn ask(&mut self, what: u8, number: u64, text: &str) -> io::Result<Message> {
        self.0.write_all(&message(what, number, text.as_bytes()))?;
        let mut answer = [0; MESSAGE];
        self.0.read_exact(&mut answer)?;
        Ok(answer)
    }

    fn get(&mut self, number: u64) -> io::Result<Option<String>> {
        let answer = self.ask(b'G', number, "")?;
        let text = String::from_utf8_lossy(&answer[TEXT..]);
        Ok((answer[0] == b'+').then(|| text.trim_end_matches('\0').to_owned()))
    }
}

/// The whole of it, with its data in `dir`: how many requests the DPU side answered, and how many
/// the host.
pub fn run(dir: &Path) -> Result<(u64, u64), Box<dyn Error>> {
    let socket = dir.join("socket");
    let options = ServerOptions::new(dir.join("volume"), socket.clone());
    let application = Some(Arc::new(Lookup) as Arc<dyn Application>);
    let health = Arc::clone(&options.health);
    let server = Server::start(ServerOptions {
        capacity: Some(1 << 30),
        items: 10_000,
        application,
        ..options
    })?;
    let setup = Setup {
        app: Arc::new(Lookup),
        health,
        table: Arc::new(server.table().clone()),
        files: Arc::clone(server.files()),
        signature: None,
        host: Address::Tcp(host(&socket)?),
        contexts: 64,
        pool: 1 << 20,
        limits: Limits::default(),
    };
    let listener = Listener::bind(&Address::Tcp("127.0.0.1:0".parse()?))?;
    let front = Front::start(listener, 1, &setup)?;
    let Address::Tcp(at) = front.address() else { return Err("no port".into()) };
    let mut client = Client(TcpStream::connect(at)?);
    client.0.set_read_timeout(Some(PATIENCE))?;

    for number in 0..100 {
        client.ask(b'P', number, &format!("the text of {number}"))?;
    }
    assert_eq!(client.get(7)?.as_deref(), Some("the text of 7"), "the host has it");
    client.ask(b'F', 0, "")?;
    for number in 0..100 {
        assert_eq!(client.get(number)?, Some(format!("the text of {number}")));
    }
    // What was filed is replaced: whoever asks after the answer gets the new one.
    client.ask(b'P', 7, "another")?;
    let mut other = Client(TcpStream::connect(at)?);
    assert_eq!(other.get(7)?.as_deref(), Some("another"));
    assert_eq!(other.get(1000)?, None);
    let served = number_of(&client.ask(b'N', 0, "")?).unwrap_or_default();
    let offloaded = front.tally().offloaded.load(Ordering::Relaxed);
    drop(front);
    server.stop()?;
    Ok((offloaded, served))
}

#[allow(dead_code, reason = "a test runs it, too")]
fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("outboard-lookup-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let ended = run(&dir);
    std::fs::remove_dir_all(&dir)?;
    let (offloaded, served) = ended?;
    println!("{offloaded} requests were answered by the DPU side, {served} by the host");
    Ok(())
}

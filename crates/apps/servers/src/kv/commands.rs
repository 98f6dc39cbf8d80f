//! The commands, with the answers and errors of Redis.

use std::collections::BTreeMap;
use std::ops::Range;

use super::log::Found;
use super::record::{KEY_MAX, VALUE_MAX};
use super::store::{Reader, Store, StoreError};
use crate::connections::Crowd;
use crate::device::Device;
use crate::resp::{self, put_array, put_bulk, put_error, put_integer, put_nil, put_simple};

/// Keys, and commands, of one client in a row: then others are served.
pub(super) const SLICE: usize = 1024;
/// Records of the file that are looked at side by side for one client.
pub(super) const SIDE_BY_SIDE: usize = 32;

/// What a command wants besides its answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The next command.
    Next,
    /// These records first; then the command again.
    Bring(Vec<Cold>),
    /// To go on when pages were written.
    Wait,
    /// To go on when others were served, and there is room for its answers.
    Yield,
    /// The connection closed.
    Close,
}

/// A record in the file that a command needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cold {
    pub(super) key: Vec<u8>,
    pub(super) address: u64,
    /// It need not come into memory: its length will do.
    pub(super) only_looked_at: bool,
}

/// Where answers go.
pub(super) trait Answers {
    /// The bytes that end what is known so far.
    fn out(&mut self) -> &mut Vec<u8>;

    /// An answer that is the value of a key in the file.
    fn wait_for<D: Device>(&mut self, reader: Reader<D>, key: &[u8], address: u64);

    /// How far the command is; of the next one when it is over.
    fn so_far(&mut self) -> &mut SoFar;

    /// Whether there is room for an answer.
    fn has_room(&self) -> bool;
}

/// How far a command of many keys is: it goes from key to key, [`SLICE`] of them in a row, because
/// memory may not hold all of them at once, and others want to be served.
#[derive(Debug, Default)]
pub(super) struct SoFar {
    /// One of many keys let others be served before it.
    pub(super) has_begun: bool,
    keys: usize,
    counted: usize,
    /// Of keys whose records lie in the file, and where: whether it holds a value, and of what
    /// length.
    pub(super) looked: BTreeMap<(Vec<u8>, u64), Option<usize>>,
}

/// What a server says of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Info {
    pub(super) port: u16,
    pub(super) form: &'static str,
    pub(super) uptime: u64,
    pub(super) crowd: Crowd,
    pub(super) commands: u64,
}

/// One command: its bytes and where its arguments lie.
#[derive(Clone, Copy)]
pub(super) struct Command<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) args: &'a [Range<usize>],
}

impl<'a> Command<'a> {
    fn arg(&self, at: usize) -> &'a [u8] {
        self.args.get(at).and_then(|arg| self.bytes.get(arg.clone())).unwrap_or_default()
    }

    fn len(&self) -> usize {
        self.args.len()
    }

    fn is(&self, name: &str) -> bool {
        self.arg(0).eq_ignore_ascii_case(name.as_bytes())
    }

    fn from(&self, at: usize) -> impl Iterator<Item = &'a [u8]> {
        let command = *self;
        (at..self.len()).map(move |at| command.arg(at))
    }
}

const OUT_OF_RANGE: &str = "ERR value is not an integer or out of range";

fn arity(out: &mut Vec<u8>, command: Command<'_>) -> Then {
    let name = String::from_utf8_lossy(command.arg(0)).to_lowercase();
    put_error(out, &format!("ERR wrong number of arguments for '{name}' command"));
    Then::Next
}

impl StoreError {
    /// As an answer.
    pub(super) fn text(self) -> &'static str {
        match self {
            StoreError::Full => "OOM the log cannot be written; give the data directory more space",
            StoreError::Table => "ERR the cache table does not answer",
            StoreError::Journal => "MISCONF the journal cannot be written; see the server's log",
        }
    }
}

fn not_stored(out: &mut Vec<u8>, error: StoreError) -> Then {
    put_error(out, error.text());
    Then::Next
}

/// Runs one command.
pub(super) fn run<D: Device>(
    store: &mut Store<D>,
    command: Command<'_>,
    answers: &mut impl Answers,
    info: &Info,
) -> Then {
    // The most frequent first.
    if command.is("get") {
        return get(store, command, answers);
    }
    if command.is("set") {
        return set(store, command, answers.out());
    }
    if let Some(then) = keyed(store, command, answers) {
        return then;
    }
    other(store, command, answers.out(), info)
}

fn get<D: Device>(store: &Store<D>, command: Command<'_>, answers: &mut impl Answers) -> Then {
    if command.len() != 2 {
        return arity(answers.out(), command);
    }
    value_of(store, command.arg(1), answers);
    Then::Next
}

fn value_of<D: Device>(store: &Store<D>, key: &[u8], answers: &mut impl Answers) {
    match store.log.find(key) {
        Found::Here(record) => answers.out().extend_from_slice(record.bulk()),
        Found::Nothing => put_nil(answers.out()),
        Found::Cold(address) => answers.wait_for(store.reader(), key, address),
    }
}

fn fits(key: &[u8], value: &[u8]) -> Result<(), &'static str> {
    if key.len() > KEY_MAX {
        return Err("ERR key is too long (32 KiB at most)");
    }
    if value.len() > VALUE_MAX {
        return Err("ERR value is too long (512 KiB at most)");
    }
    Ok(())
}

/// Stores one value and says so.
fn store_one<D: Device>(
    store: &mut Store<D>,
    key: &[u8],
    value: &[u8],
    out: &mut Vec<u8>,
    said: impl FnOnce(&mut Vec<u8>),
) -> Then {
    if let Err(text) = fits(key, value) {
        put_error(out, text);
        return Then::Next;
    }
    match store.put(key, value) {
        Ok(()) => said(out),
        Err(error) => return not_stored(out, error),
    }
    Then::Next
}

fn set<D: Device>(store: &mut Store<D>, command: Command<'_>, out: &mut Vec<u8>) -> Then {
    match command.len() {
        0..=2 => arity(out, command),
        3 => store_one(store, command.arg(1), command.arg(2), out, |out| put_simple(out, "OK")),
        _ => {
            put_error(out, "ERR syntax error; options of SET are not supported");
            Then::Next
        }
    }
}

/// Commands that name keys; `None` if it is another.
fn keyed<D: Device>(
    store: &mut Store<D>,
    command: Command<'_>,
    answers: &mut impl Answers,
) -> Option<Then> {
    let name = command.arg(0).to_ascii_lowercase();
    let enough = match name.as_slice() {
        b"mget" | b"del" | b"unlink" | b"exists" => command.len() >= 2,
        b"mset" => command.len() >= 3 && command.len() % 2 == 1,
        b"incr" | b"decr" | b"strlen" | b"type" => command.len() == 2,
        b"incrby" | b"decrby" | b"append" | b"setnx" | b"getset" => command.len() == 3,
        _ => return None,
    };
    if !enough {
        return Some(arity(answers.out(), command));
    }
    if name == b"mget" {
        return Some(mget(store, command, answers));
    }
    if let b"del" | b"unlink" | b"exists" = name.as_slice() {
        return Some(each(store, command, answers, name != b"exists"));
    }
    if name == b"mset" {
        return Some(mset(store, command, answers));
    }
    let key = command.arg(1);
    if let b"strlen" | b"type" = name.as_slice() {
        return Some(look(store, key, answers, name == b"strlen"));
    }
    if let Found::Cold(address) = store.log.find(key) {
        let cold = Cold { key: key.to_vec(), address, only_looked_at: false };
        return Some(Then::Bring(vec![cold]));
    }
    let out = answers.out();
    Some(match name.as_slice() {
        b"incr" => add(store, key, Some(1), out),
        b"decr" => add(store, key, Some(-1), out),
        b"incrby" => add(store, key, resp::integer(command.arg(2)), out),
        b"decrby" => add(store, key, resp::integer(command.arg(2)).and_then(i64::checked_neg), out),
        b"append" => {
            let value = [here(store, key).unwrap_or_default(), command.arg(2)].concat();
            let len = value.len();
            store_one(store, key, &value, out, |out| put_length(out, len))
        }
        b"setnx" if is_there(store, key) => count(out, 0),
        b"setnx" => store_one(store, key, command.arg(2), out, |out| put_integer(out, 1)),
        _ => {
            let before = here(store, key).map(<[u8]>::to_vec);
            store_one(store, key, command.arg(2), out, |out| match before {
                Some(before) => put_bulk(out, &before),
                None => put_nil(out),
            })
        }
    })
}

fn put_length(out: &mut Vec<u8>, n: usize) {
    put_integer(out, i64::try_from(n).unwrap_or(i64::MAX));
}

fn count(out: &mut Vec<u8>, n: usize) -> Then {
    put_length(out, n);
    Then::Next
}

fn here<'a, D>(store: &'a Store<D>, key: &[u8]) -> Option<&'a [u8]> {
    match store.log.find(key) {
        Found::Here(record) => Some(record.value()),
        _ => None,
    }
}

fn is_there<D>(store: &Store<D>, key: &[u8]) -> bool {
    matches!(store.log.find(key), Found::Here(_))
}

/// Has the records of those of `keys` looked at that lie in the file, as many as may be at once.
/// What was known of others is of no use any more.
fn look_at<'a, D: Device>(
    store: &Store<D>,
    keys: impl Iterator<Item = &'a [u8]>,
    answers: &mut impl Answers,
) -> Then {
    answers.so_far().looked.clear();
    let mut cold: Vec<Cold> = Vec::new();
    for key in keys.take(SLICE) {
        if let Found::Cold(address) = store.log.find(key)
            && !cold.iter().any(|cold| cold.key == key)
        {
            cold.push(Cold { key: key.to_vec(), address, only_looked_at: true });
        }
        if cold.len() == SIDE_BY_SIDE {
            break;
        }
    }
    Then::Bring(cold)
}

/// The length of a value, or its type.
fn look<D: Device>(
    store: &Store<D>,
    key: &[u8],
    answers: &mut impl Answers,
    asks_length: bool,
) -> Then {
    let len = match store.log.find(key) {
        Found::Cold(address) => match answers.so_far().looked.remove(&(key.to_vec(), address)) {
            Some(looked) => looked,
            None => return look_at(store, std::iter::once(key), answers),
        },
        Found::Nothing => None,
        Found::Here(record) => Some(record.value().len()),
    };
    *answers.so_far() = SoFar::default();
    if asks_length {
        return count(answers.out(), len.unwrap_or(0));
    }
    put_simple(answers.out(), if len.is_some() { "string" } else { "none" });
    Then::Next
}

fn mget<D: Device>(store: &Store<D>, command: Command<'_>, answers: &mut impl Answers) -> Then {
    let done = answers.so_far().keys;
    if done == 0 {
        put_array(answers.out(), command.len() - 1);
    }
    for key in command.from(1 + done).take(SLICE) {
        if !answers.has_room() {
            return Then::Yield;
        }
        value_of(store, key, answers);
        answers.so_far().keys += 1;
    }
    over(command.len() - 1, answers)
}

/// A slice of a command of so many keys is over, and perhaps all of it.
fn over(keys: usize, answers: &mut impl Answers) -> Then {
    if answers.so_far().keys < keys {
        return Then::Yield;
    }
    *answers.so_far() = SoFar::default();
    Then::Next
}

fn mset<D: Device>(store: &mut Store<D>, command: Command<'_>, answers: &mut impl Answers) -> Then {
    let pairs = || (1..command.len()).step_by(2).map(|at| (command.arg(at), command.arg(at + 1)));
    let done = answers.so_far().keys;
    // All of them before the first is stored. Lengths are looked at, no bytes.
    if done == 0
        && let Some(text) = pairs().find_map(|(key, value)| fits(key, value).err())
    {
        put_error(answers.out(), text);
        return Then::Next;
    }
    for (key, value) in pairs().skip(done).take(SLICE) {
        match store.put(key, value) {
            Ok(()) => answers.so_far().keys += 1,
            // There are more values than the tail has room for at once.
            Err(StoreError::Full) if store.is_choked() => return Then::Wait,
            Err(error) => {
                *answers.so_far() = SoFar::default();
                return not_stored(answers.out(), error);
            }
        }
    }
    let then = over(command.len() / 2, answers);
    if then == Then::Next {
        put_simple(answers.out(), "OK");
    }
    then
}

/// Counts the keys that are there, and deletes them if it is told to.
fn each<D: Device>(
    store: &mut Store<D>,
    command: Command<'_>,
    answers: &mut impl Answers,
    deletes: bool,
) -> Then {
    for key in command.from(1 + answers.so_far().keys).take(SLICE) {
        let is_there = match store.log.find(key) {
            Found::Cold(address) => match answers.so_far().looked.get(&(key.to_vec(), address)) {
                Some(len) => len.is_some(),
                None => {
                    let left = command.from(1 + answers.so_far().keys);
                    return look_at(store, left, answers);
                }
            },
            Found::Nothing => false,
            Found::Here(_) => true,
        };
        if is_there {
            if deletes && let Err(error) = store.delete(key) {
                *answers.so_far() = SoFar::default();
                return not_stored(answers.out(), error);
            }
            answers.so_far().counted += 1;
        }
        answers.so_far().keys += 1;
    }
    let counted = answers.so_far().counted;
    match over(command.len() - 1, answers) {
        Then::Next => count(answers.out(), counted),
        then => then,
    }
}

fn add<D: Device>(store: &mut Store<D>, key: &[u8], by: Option<i64>, out: &mut Vec<u8>) -> Then {
    let current = here(store, key).map_or(Some(0), resp::integer);
    let (Some(current), Some(by)) = (current, by) else {
        put_error(out, OUT_OF_RANGE);
        return Then::Next;
    };
    match current.checked_add(by) {
        Some(sum) => {
            let text = sum.to_string();
            store_one(store, key, text.as_bytes(), out, |out| put_integer(out, sum))
        }
        None => {
            put_error(out, "ERR increment or decrement would overflow");
            Then::Next
        }
    }
}

fn other<D: Device>(
    store: &mut Store<D>,
    command: Command<'_>,
    out: &mut Vec<u8>,
    info: &Info,
) -> Then {
    let name = command.arg(0).to_ascii_lowercase();
    match (name.as_slice(), command.len()) {
        (b"ping", 1) => put_simple(out, "PONG"),
        (b"ping" | b"echo", 2) => put_bulk(out, command.arg(1)),
        (b"quit", _) => {
            put_simple(out, "OK");
            return Then::Close;
        }
        (b"select", 2) if command.arg(1) == b"0" => put_simple(out, "OK"),
        (b"select", 2) => put_error(out, "ERR DB index is out of range"),
        (b"command", _) => put_array(out, 0),
        (b"config", 3) if command.arg(1).eq_ignore_ascii_case(b"get") => {
            config(store, command, out);
        }
        (b"config", 2..) => put_error(out, "ERR only CONFIG GET is supported"),
        (b"client", 2..) => client(command, out),
        (b"hello", 1) => hello(out),
        (b"hello", _) if command.arg(1) == b"2" && command.len() == 2 => hello(out),
        // As a Redis that speaks RESP2 only: clients fall back to it when HELLO is unknown, some
        // only then.
        (b"hello", _) => unknown(command, out),
        (b"info", _) => put_bulk(out, about(store, info).as_bytes()),
        (b"dbsize", 1) => put_length(out, store.log.len()),
        (b"flushall" | b"flushdb", _) => match store.clear() {
            Ok(()) => put_simple(out, "OK"),
            Err(error) => return not_stored(out, error),
        },
        (b"ping" | b"echo" | b"select" | b"config" | b"client" | b"dbsize", _) => {
            return arity(out, command);
        }
        _ => unknown(command, out),
    }
    Then::Next
}

fn config<D: Device>(store: &Store<D>, command: Command<'_>, out: &mut Vec<u8>) {
    let value = match command.arg(2).to_ascii_lowercase().as_slice() {
        b"save" => "",
        b"appendonly" => "yes",
        b"appendfsync" => store.about().fsync,
        b"databases" => "1",
        b"maxmemory" => "0",
        _ => return put_array(out, 0),
    };
    put_array(out, 2);
    put_bulk(out, &command.arg(2).to_ascii_lowercase());
    put_bulk(out, value.as_bytes());
}

fn client(command: Command<'_>, out: &mut Vec<u8>) {
    match command.arg(1).to_ascii_lowercase().as_slice() {
        b"setname" | b"setinfo" => put_simple(out, "OK"),
        b"getname" => put_nil(out),
        _ => put_error(out, "ERR unknown subcommand of CLIENT"),
    }
}

fn hello(out: &mut Vec<u8>) {
    put_array(out, 6);
    for word in ["server", "redis", "version", "7.0.0", "proto"] {
        put_bulk(out, word.as_bytes());
    }
    put_integer(out, 2);
}

fn about<D: Device>(store: &Store<D>, info: &Info) -> String {
    let about = store.about();
    format!(
        "# Server\r\nredis_version:7.0.0\r\nserver:outboard\r\nredis_mode:standalone\r\n\
         form:{}\r\nprocess_id:{}\r\ntcp_port:{}\r\nuptime_in_seconds:{}\r\n\r\n\
         # Clients\r\nconnected_clients:{}\r\nmaxclients:{}\r\nrejected_connections:{}\r\n\
         client_memory:{}\r\nclient_memory_peak:{}\r\n\r\n\
         # Memory\r\nused_memory:{}\r\n\r\n\
         # Stats\r\ntotal_commands_processed:{}\r\n\r\n\
         # Persistence\r\nappendfsync:{}\r\nlog_pages:{}\r\nlog_pages_free:{}\r\n\
         log_records:{}\r\nlog_pages_compacted:{}\r\nlog_records_copied:{}\r\n\r\n\
         # Keyspace\r\ndb0:keys={},expires=0,avg_ttl=0\r\n",
        info.form,
        std::process::id(),
        info.port,
        info.uptime,
        info.crowd.clients,
        info.crowd.most,
        info.crowd.refused,
        info.crowd.held,
        info.crowd.peak,
        store.log.memory(),
        info.commands,
        about.fsync,
        about.pages,
        about.free,
        about.records,
        about.compacted,
        about.copied,
        store.log.len(),
    )
}

fn unknown(command: Command<'_>, out: &mut Vec<u8>) {
    let text = |arg: &[u8]| String::from_utf8_lossy(arg).chars().take(128).collect::<String>();
    let mut message =
        format!("ERR unknown command '{}', with args beginning with: ", text(command.arg(0)));
    for arg in command.from(1).take(16) {
        message.push_str(&format!("'{}' ", text(arg)));
    }
    put_error(out, &message);
}

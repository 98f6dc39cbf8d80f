//! The coordinator's process: its table in a directory, behind calls of the cluster's parts.
//!
//! ```text
//! DIR/lock    held by the process that has it
//! DIR/state   JSON: the last number given, and every entry
//! ```
//!
//! A change is in a new file, synced and renamed over the old one, before it is answered. There are
//! few: parts that come and go. Beats change nothing on disk; what is found at a start has a whole
//! term before it.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use outboard_base::task::Spawn;
use outboard_base::{Errno, Result, Time};
use outboard_cluster::coordinator::{Kept, Table};
use outboard_fabric::runtime::{Replying, Role};
use outboard_os::clock;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Entry, Reply};
use serde::{Deserialize, Serialize};

/// How long a session goes on after a beat.
const TERM: Duration = Duration::from_secs(6);
/// The format of the file.
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    format: u32,
    last: u64,
    entries: Vec<One>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    name: String,
    value: String,
    version: u64,
    session: u64,
}

/// A table in a directory.
pub struct Keeper {
    dir: PathBuf,
    table: RefCell<Table>,
    _lock: File,
}

impl Keeper {
    /// Opens what is in a directory, which is there; nothing: an empty table.
    ///
    /// # Errors
    /// Of the file system; `InvalidData` if the file is none of a coordinator.
    pub fn open(dir: &Path, now: Time) -> io::Result<Keeper> {
        let mut options = OpenOptions::new();
        let lock = options.read(true).write(true).create(true).truncate(false);
        let lock = lock.open(dir.join("lock"))?;
        outboard_os::lock::lock_within(&lock, outboard_os::lock::LOCK_PATIENCE)
            .map_err(|_| io::Error::other("another coordinator has it"))?;
        let table = match std::fs::read_to_string(dir.join("state")) {
            Ok(text) => read(&text, now)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Table::new(TERM),
            Err(error) => return Err(error),
        };
        Ok(Keeper { dir: dir.to_owned(), table: RefCell::new(table), _lock: lock })
    }

    fn save(&self, table: &Table) -> io::Result<()> {
        let (last, all) = table.to_keep();
        let one = |(name, kept): (&String, &Kept)| One {
            name: name.clone(),
            value: kept.value.clone(),
            version: kept.version,
            session: kept.session,
        };
        let state = State { format: FORMAT, last, entries: all.map(one).collect() };
        let draft = self.dir.join("state.new");
        let mut file = File::create(&draft)?;
        file.write_all(&serde_json::to_vec_pretty(&state)?)?;
        file.sync_all()?;
        std::fs::rename(&draft, self.dir.join("state"))?;
        File::open(&self.dir)?.sync_all()
    }

    /// Makes a change durable, then does it.
    fn change<T>(&self, change: impl FnOnce(&mut Table) -> Result<T>) -> Result<T> {
        let mut next = self.table.borrow().clone();
        let done = change(&mut next)?;
        if let Err(error) = self.save(&next) {
            let dir = self.dir.display();
            tracing::error!(%error, %dir, "a change is not kept: it is refused");
            return Err(Errno::EIO);
        }
        *self.table.borrow_mut() = next;
        Ok(done)
    }

    fn answer(&self, call: Call, now: Time) -> Result<Reply> {
        Ok(match call {
            Call::Beat { session: 0 } => Reply::Number(self.change(|table| table.beat(0, now))?),
            Call::Beat { session } => Reply::Number(self.table.borrow_mut().beat(session, now)?),
            Call::List { prefix } => {
                // Nobody sees what an ended session had put there.
                self.table.borrow_mut().expire(now);
                let all = self.table.borrow().list(&prefix).into_iter();
                let entry = |one: outboard_cluster::coordinator::Entry| Entry {
                    name: one.name,
                    value: one.value,
                    version: one.version,
                    session: u64::from(one.passes),
                };
                Reply::Entries(all.map(entry).collect())
            }
            Call::Put { name, value, version, session } => {
                let put = |table: &mut Table| table.put(&name, &value, version, session, now);
                Reply::Number(self.change(put)?)
            }
            Call::Remove { name, version } => {
                self.change(|table| table.remove(&name, version))?;
                Reply::Done
            }
            _ => return Err(Errno::ENOSYS),
        })
    }

    fn status(&self) -> String {
        let (entries, sessions) = self.table.borrow().counts();
        format!("{{\"entries\":{entries},\"sessions\":{sessions}}}")
    }
}

fn read(text: &str, now: Time) -> io::Result<Table> {
    let wrong = |what: &dyn std::fmt::Display| {
        io::Error::new(io::ErrorKind::InvalidData, format!("its state is none: {what}"))
    };
    let state: State = serde_json::from_str(text).map_err(|error| wrong(&error))?;
    if state.format != FORMAT {
        return Err(wrong(&format!("it has the format {}", state.format)));
    }
    let all = state.entries.into_iter().map(|one| {
        let One { name, value, version, session } = one;
        (name, Kept { value, version, session })
    });
    Ok(Table::kept(TERM, state.last, all.collect(), now))
}

/// The coordinator on its thread.
pub struct CoordinatorRole {
    keeper: Keeper,
    deadline: Cell<Option<Time>>,
}

impl CoordinatorRole {
    /// Of what is kept.
    #[must_use]
    pub fn new(keeper: Keeper) -> CoordinatorRole {
        let deadline = Cell::new(keeper.table.borrow().deadline());
        CoordinatorRole { keeper, deadline }
    }
}

impl Role for CoordinatorRole {
    fn call(&self, from: Peer, call: Call) -> Replying {
        let reply = match (from, call) {
            (_, Call::Status) => Reply::Text(self.keeper.status()),
            (Peer::Server(_) | Peer::Node(_), call) => {
                self.keeper.answer(call, clock::now()).unwrap_or_else(Reply::Failed)
            }
            _ => Reply::Failed(Errno::EPERM),
        };
        self.deadline.set(self.keeper.table.borrow().deadline());
        Box::pin(std::future::ready(reply))
    }

    fn tend(&self, now: Time, _: &dyn Spawn) -> usize {
        if self.deadline.get().is_none_or(|deadline| now < deadline) {
            return 0;
        }
        let went = self.keeper.table.borrow_mut().expire(now);
        // What is found at the next start has a term before it: nothing is lost by an old file.
        if went && let Err(error) = self.keeper.save(&self.keeper.table.borrow()) {
            tracing::warn!(%error, "it is not noted which sessions are over");
        }
        self.deadline.set(self.keeper.table.borrow().deadline());
        usize::from(went)
    }

    fn deadline(&self) -> Option<Time> {
        self.deadline.get()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;
    use std::sync::{Arc, Mutex};

    use outboard_base::task::run;
    use outboard_cluster::coordinator::{Coordinator, conformance};
    use outboard_flow::{Gone, Net};
    use outboard_wire::shared::{Answer, Heads};

    use super::*;
    use crate::Way;

    fn put(name: &str, version: Option<u64>, session: u64) -> Call {
        Call::Put { name: name.into(), value: "v".into(), version, session }
    }

    /// A part's end of a network in which time is what the test says.
    struct Line(Arc<Mutex<(Keeper, Time)>>);

    impl Net for Line {
        fn know(&self, _: Peer, _: SocketAddrV4) {}

        async fn call(&self, _: Peer, call: Vec<u8>) -> std::result::Result<Vec<u8>, Gone> {
            let world = self.0.lock().unwrap();
            let answer = world.0.answer(Call::decode(&call).unwrap(), world.1);
            let mut bytes = Vec::new();
            answer.unwrap_or_else(Reply::Failed).encode(&mut bytes);
            Ok(bytes)
        }

        async fn request(
            &self,
            _: Peer,
            _: &Heads,
            _: &[u8],
        ) -> std::result::Result<(Answer, Vec<u8>), Gone> {
            Err(Gone::Refused)
        }

        fn now(&self) -> Time {
            self.0.lock().unwrap().1
        }

        fn wall_ms(&self) -> u64 {
            0
        }

        async fn sleep(&self, _: Duration) {
            std::future::pending::<()>().await;
        }
    }

    /// The suite of the port, by the calls of two parts.
    #[test]
    fn the_process_passes() {
        let dir = tempfile::tempdir().unwrap();
        let world = (Keeper::open(dir.path(), Time(1)).unwrap(), Time(1));
        let world = Arc::new(Mutex::new(world));
        let way = || Way::own(Line(Arc::clone(&world)));
        let (one, other) = (way(), way());
        run(conformance::rules(&one, &other, async || {
            for _ in 0..7 {
                let later = world.lock().unwrap().1.after(Duration::from_secs(1));
                world.lock().unwrap().1 = later;
                assert_eq!(one.beat().await, Ok(()));
            }
        }));
        assert_eq!(run(other.beat()), Err(Errno::ENOTCONN));
    }

    fn numbered(reply: Result<Reply>) -> u64 {
        let Ok(Reply::Number(number)) = reply else { panic!("{reply:?}") };
        number
    }

    #[test]
    fn what_was_answered_is_there_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::open(dir.path(), Time(1)).unwrap();
        let session = numbered(keeper.answer(Call::Beat { session: 0 }, Time(1)));
        let stays = numbered(keeper.answer(put("a", None, 0), Time(1)));
        numbered(keeper.answer(put("b", None, session), Time(1)));
        numbered(keeper.answer(put("c", None, 0), Time(1)));
        let gone = Call::Remove { name: "c".into(), version: stays + 2 };
        assert_eq!(keeper.answer(gone, Time(1)), Ok(Reply::Done));
        let all = keeper.table.borrow().list("");
        // A draft that was cut is not looked at.
        std::fs::write(dir.path().join("state.new"), "{").unwrap();
        drop(keeper);
        let later = Time(1).after(TERM * 2);
        let keeper = Keeper::open(dir.path(), later).unwrap();
        assert_eq!(keeper.table.borrow().list(""), all);
        assert_eq!(keeper.answer(Call::Beat { session }, later), Ok(Reply::Number(session)));
        let next = numbered(keeper.answer(Call::Beat { session: 0 }, later));
        assert!(next > stays + 2, "no number is given twice");
        let over = later.after(TERM);
        assert_eq!(keeper.answer(put("d", None, session), over), Err(Errno::ENOTCONN));
        assert_eq!(keeper.answer(Call::Renew, over), Err(Errno::ENOSYS));
    }

    #[test]
    fn one_process_has_a_directory_and_what_is_no_state_is_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        for wrong in ["", "{}", "{\"format\":2,\"last\":0,\"entries\":[]}", "nonsense"] {
            std::fs::write(other.path().join("state"), wrong).unwrap();
            let words = Keeper::open(other.path(), Time(1)).err().unwrap().to_string();
            assert!(words.contains("its state is none"), "{words}");
        }
        let _keeper = Keeper::open(dir.path(), Time(1)).unwrap();
        let words = Keeper::open(dir.path(), Time(1)).err().unwrap().to_string();
        assert!(words.contains("another coordinator"), "{words}");
    }

    #[test]
    fn only_parts_of_the_cluster_are_answered() {
        let dir = tempfile::tempdir().unwrap();
        let role = CoordinatorRole::new(Keeper::open(dir.path(), clock::now()).unwrap());
        let ask = |from, call| outboard_base::task::run(role.call(from, call));
        let refused = Reply::Failed(Errno::EPERM);
        assert_eq!(ask(Peer::Client(0), Call::Beat { session: 0 }), refused);
        assert_eq!(ask(Peer::Client(9), put("a", None, 0)), refused);
        assert!(matches!(ask(Peer::Client(9), Call::Status), Reply::Text(_)));
        assert!(matches!(ask(Peer::Node(1), put("a", None, 0)), Reply::Number(_)));
        assert!(role.deadline().is_none());
        assert!(matches!(ask(Peer::Server(0), Call::Beat { session: 0 }), Reply::Number(_)));
        assert!(role.deadline().is_some());
    }
}

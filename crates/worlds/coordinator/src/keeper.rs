//! The coordinator's process: its table in a directory, behind calls of the cluster's parts.
//!
//! ```text
//! DIR/lock    held by the process that has it
//! DIR/state   JSON: the last number given, and every entry
//! ```
//!
//! A change is in a new file, synced and renamed over the old one, before it is answered.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use outboard_base::task::Spawn;
use outboard_base::{Errno, Result, Time};
use outboard_cluster::coordinator::{Keeper, Kept, Shelf, TERM, Table};
use outboard_fabric::runtime::{Replying, Role};
use outboard_os::clock;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::Call;
use serde::{Deserialize, Serialize};

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

/// A directory with a coordinator's table, which this process has.
pub struct Directory {
    dir: PathBuf,
    _lock: File,
}

impl Directory {
    /// Opens one, which is there, with the table in it; nothing: an empty table.
    ///
    /// # Errors
    /// Of the file system; `InvalidData` if the file is none of a coordinator.
    pub fn open(dir: &Path, now: Time) -> io::Result<Keeper<Directory>> {
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
        Ok(Keeper::new(table, Directory { dir: dir.to_owned(), _lock: lock }))
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
}

impl Shelf for Directory {
    fn keep(&self, table: &Table) -> Result<()> {
        self.save(table).map_err(|error| {
            let dir = self.dir.display();
            tracing::error!(%error, %dir, "which parts there are is not kept: a change is refused");
            Errno::EIO
        })
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
pub struct CoordinatorRole(pub Keeper<Directory>);

impl Role for CoordinatorRole {
    fn call(&self, from: Peer, call: Call) -> Replying {
        Box::pin(std::future::ready(self.0.call(from, call, clock::now())))
    }

    fn tend(&self, now: Time, _: &dyn Spawn) -> usize {
        usize::from(self.0.tend(now))
    }

    fn deadline(&self) -> Option<Time> {
        self.0.deadline()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use outboard_base::task::run;
    use outboard_cluster::coordinator::{Coordinator, conformance};
    use outboard_flow::{Gone, Net};
    use outboard_wire::shared::call::Reply;
    use outboard_wire::shared::{Answer, Heads};

    use super::*;
    use crate::Way;

    const PART: Peer = Peer::Node(1);

    fn put(name: &str, version: Option<u64>, session: u64) -> Call {
        Call::Put { name: name.into(), value: "v".into(), version, session }
    }

    fn list() -> Call {
        Call::List { prefix: String::new() }
    }

    /// A part's end of a network in which time is what the test says.
    struct Line(Arc<Mutex<(Keeper<Directory>, Time)>>);

    impl Net for Line {
        fn know(&self, _: Peer, _: SocketAddrV4) {}

        async fn call(&self, _: Peer, call: Vec<u8>) -> std::result::Result<Vec<u8>, Gone> {
            let world = self.0.lock().unwrap();
            let answer = world.0.call(PART, Call::decode(&call).unwrap(), world.1);
            let mut bytes = Vec::new();
            answer.encode(&mut bytes);
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
        let world = (Directory::open(dir.path(), Time(1)).unwrap(), Time(1));
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

    fn numbered(reply: Reply) -> u64 {
        let Reply::Number(number) = reply else { panic!("{reply:?}") };
        number
    }

    #[test]
    fn what_was_answered_is_there_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Directory::open(dir.path(), Time(1)).unwrap();
        let session = numbered(keeper.call(PART, Call::Beat { session: 0 }, Time(1)));
        let stays = numbered(keeper.call(PART, put("a", None, 0), Time(1)));
        numbered(keeper.call(PART, put("b", None, session), Time(1)));
        numbered(keeper.call(PART, put("c", None, 0), Time(1)));
        let gone = Call::Remove { name: "c".into(), version: stays + 2 };
        assert_eq!(keeper.call(PART, gone, Time(1)), Reply::Done);
        let all = keeper.call(PART, list(), Time(1));
        // A draft that was cut is not looked at.
        std::fs::write(dir.path().join("state.new"), "{").unwrap();
        drop(keeper);
        let later = Time(1).after(TERM * 2);
        let keeper = Directory::open(dir.path(), later).unwrap();
        assert_eq!(keeper.call(PART, list(), later), all);
        assert_eq!(keeper.call(PART, Call::Beat { session }, later), Reply::Number(session));
        let next = numbered(keeper.call(PART, Call::Beat { session: 0 }, later));
        assert!(next > stays + 2, "no number is given twice");
        let over = later.after(TERM);
        assert_eq!(
            keeper.call(PART, put("d", None, session), over),
            Reply::Failed(Errno::ENOTCONN)
        );
        assert_eq!(keeper.call(PART, Call::Renew, over), Reply::Failed(Errno::ENOSYS));
    }

    #[test]
    fn one_process_has_a_directory_and_what_is_no_state_is_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        for wrong in ["", "{}", "{\"format\":2,\"last\":0,\"entries\":[]}", "nonsense"] {
            std::fs::write(other.path().join("state"), wrong).unwrap();
            let words = Directory::open(other.path(), Time(1)).err().unwrap().to_string();
            assert!(words.contains("its state is none"), "{words}");
        }
        let _keeper = Directory::open(dir.path(), Time(1)).unwrap();
        let words = Directory::open(dir.path(), Time(1)).err().unwrap().to_string();
        assert!(words.contains("another coordinator"), "{words}");
    }

    #[test]
    fn only_parts_of_the_cluster_are_answered() {
        let dir = tempfile::tempdir().unwrap();
        let role = CoordinatorRole(Directory::open(dir.path(), clock::now()).unwrap());
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

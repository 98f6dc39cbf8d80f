//! A host: the session of programs on one client, which ask one thing after the other on each of
//! its lanes, and hand themselves in again when their DPU side was lost.

use std::sync::Arc;
use std::time::Duration;

use outboard_base::{Cred, Fh, Ino, Result, SessionId, Time};
use outboard_volume::{Answer, Caller, Housekeeping, Payload, Volume};
use outboard_wire::file::{Flags, Header, Reply, Request, Setattr, open_flags, write_flags};

use crate::front::Front;
use crate::part::{Client, timestamp};
use crate::world::{Slot, World};

/// What is asked, with all it needs.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Open {
        name: Vec<u8>,
    },
    /// The file is known: what the hybrid cache is granted for.
    Reopen {
        ino: Ino,
    },
    Close {
        ino: Ino,
        fh: Fh,
    },
    Read {
        ino: Ino,
        fh: Fh,
        offset: u64,
        len: u32,
    },
    Write {
        ino: Ino,
        fh: Fh,
        offset: u64,
        len: u64,
        pattern: u64,
        append: bool,
    },
    Truncate {
        ino: Ino,
        fh: Fh,
        size: u64,
    },
    Punch {
        ino: Ino,
        fh: Fh,
        offset: u64,
        len: u64,
    },
    Fsync {
        ino: Ino,
        fh: Fh,
        data_only: bool,
    },
    Getattr {
        ino: Ino,
    },
    Mknod {
        name: Vec<u8>,
    },
    Unlink {
        name: Vec<u8>,
    },
    Rename {
        from: Vec<u8>,
        to: Vec<u8>,
    },
    Lookup {
        name: Vec<u8>,
    },
    Syncfs,
}

const S_IFREG: u32 = 0o100_000;
const PUNCH_AND_KEEP: u32 = 3;

impl Ask {
    fn request(&self) -> Request<'_> {
        let parent = Ino::ROOT;
        match self {
            Ask::Open { name } => {
                Request::Create { parent, name, mode: 0o644, umask: 0, flags: open_flags::RDWR }
            }
            Ask::Reopen { ino } => Request::Open { ino: *ino, flags: open_flags::RDWR },
            Ask::Close { ino, fh } => Request::Release { ino: *ino, fh: *fh, owner: 0 },
            Ask::Read { ino, fh, offset, len } => {
                Request::Read { ino: *ino, fh: *fh, offset: *offset, len: *len, flags: 0 }
            }
            Ask::Write { ino, fh, offset, append, .. } => {
                let flags = if *append { write_flags::APPEND } else { 0 };
                Request::Write { ino: *ino, fh: *fh, offset: *offset, flags }
            }
            Ask::Truncate { ino, fh, size } => {
                let set = Setattr { size: Some(*size), ..Setattr::default() };
                Request::Setattr { ino: *ino, fh: *fh, set }
            }
            Ask::Punch { ino, fh, offset, len } => Request::Fallocate {
                ino: *ino,
                fh: *fh,
                offset: *offset,
                len: *len,
                mode: PUNCH_AND_KEEP,
            },
            Ask::Fsync { ino, fh, data_only } => {
                Request::Fsync { ino: *ino, fh: *fh, data_only: *data_only }
            }
            Ask::Getattr { ino } => Request::Getattr { ino: *ino, fh: Fh::NONE },
            Ask::Mknod { name } => {
                Request::Mknod { parent, name, mode: S_IFREG | 0o644, umask: 0, rdev: 0 }
            }
            Ask::Unlink { name } => Request::Unlink { parent, name },
            Ask::Rename { from, to } => {
                Request::Rename { parent, name: from, to_parent: parent, to_name: to, flags: 0 }
            }
            Ask::Lookup { name } => Request::Lookup { parent, name },
            Ask::Syncfs => Request::Syncfs,
        }
    }

    fn payload(&self) -> Payload {
        match self {
            Ask::Write { len, pattern, .. } => Payload::Bytes(crate::model::bytes(*pattern, *len)),
            _ => Payload::None,
        }
    }

    fn changes(&self) -> bool {
        !matches!(
            self,
            Ask::Read { .. }
                | Ask::Fsync { .. }
                | Ask::Getattr { .. }
                | Ask::Lookup { .. }
                | Ask::Syncfs
        )
    }
}

/// Something asked and not answered.
pub(crate) struct Asked {
    pub(crate) ask: Ask,
    sequence: u64,
    slot: Option<Slot<Result<Answer>>>,
    /// Its session has it, which asks again by itself.
    is_taken: bool,
    pub(crate) is_replay: bool,
}

/// How the DPU side of a host is.
enum Side {
    /// Until then.
    Down(Time),
    Comes(Slot<std::result::Result<(), String>>),
    /// The session of a cache hands itself in.
    Returns,
    Up,
    Ends(Slot<()>, Time),
}

pub(crate) struct Host {
    pub(crate) place: usize,
    session: SessionId,
    side: Side,
    sequence: u64,
    pub(crate) lanes: Vec<Option<Asked>>,
    /// Open files.
    pub(crate) handles: Vec<(Ino, Fh)>,
    /// Its cache, if it has one.
    pub(crate) front: Option<Front>,
    /// When it looks at what its DPU side has put into its memory.
    looks: Time,
    /// It stands still until then.
    paused: Time,
    /// It goes on by itself while its DPU side is away.
    is_apart: bool,
}

/// How long a DPU side takes to end in order, at most.
const END: Duration = Duration::from_secs(6);
/// How long a host that waits for its DPU side sleeps at a time.
const NAP: Duration = Duration::from_millis(20);
const NEVER: Time = Time(u64::MAX);

/// The session of the host at a place.
pub(crate) fn session(place: usize) -> SessionId {
    SessionId(100 + place as u64)
}

impl Host {
    pub(crate) fn new(place: usize, lanes: usize, front: Option<Front>, is_apart: bool) -> Host {
        Host {
            place,
            session: session(place),
            side: Side::Down(Time(0)),
            sequence: 0,
            lanes: (0..lanes).map(|_| None).collect(),
            handles: Vec::new(),
            front,
            looks: NEVER,
            paused: Time(0),
            is_apart,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.side, Side::Up | Side::Ends(..))
    }

    /// Whether programs run, and what they ask is begun.
    pub(crate) fn is_running(&self, now: Time) -> bool {
        self.front.is_none() || (now >= self.paused && (self.is_up() || self.is_apart))
    }

    /// It stands still, as its DPU side does, or nearly so; not if it goes on by itself.
    pub(crate) fn pause(&mut self, until: Time) {
        if !self.is_apart {
            self.paused = self.paused.max(until);
        }
    }

    pub(crate) fn wake(&mut self, now: Time) {
        self.paused = self.paused.min(now);
    }

    /// Its DPU side has died, and begins anew after a while. Which lanes waited for something.
    pub(crate) fn lost(&mut self, until: Time) {
        self.side = Side::Down(until);
        if let Some(front) = &mut self.front {
            front.lost();
        }
        for asked in self.lanes.iter_mut().flatten() {
            (asked.slot, asked.is_replay) = (None, true);
        }
    }

    /// Asks on a lane.
    pub(crate) fn ask(&mut self, world: &mut World, lane: usize, ask: Ask) {
        let mut sequence = 0;
        if ask.changes() {
            self.sequence += 1;
            sequence = self.sequence;
        }
        world.note(format_args!("host {} lane {lane}: {}", self.place, short(&ask)));
        self.lanes[lane] =
            Some(Asked { ask, sequence, slot: None, is_taken: false, is_replay: false });
        self.go_on(world, lane);
    }

    fn go_on(&mut self, world: &mut World, lane: usize) {
        if let Some(front) = &mut self.front {
            let Some(asked) = self.lanes[lane].as_mut().filter(|asked| !asked.is_taken) else {
                return;
            };
            front.set_clock(world.now, world.wall(self.place));
            asked.is_taken = front.ask(lane, &asked.ask.request(), asked.ask.payload().bytes());
            self.looks = world.now;
            world.poke(self.place);
            return;
        }
        let (place, session) = (self.place, self.session);
        let (true, Some(dfs)) = (self.is_up(), world.dfs(place)) else { return };
        let Some(asked) = &mut self.lanes[lane] else { return };
        let flags = if asked.is_replay { Flags::REPLAY } else { Flags::default() };
        let (sequence, ask, lane) = (asked.sequence, asked.ask.clone(), lane as u16);
        let header = Header { cred: Cred::root(), flags, session, sequence, lane };
        let now = timestamp(1_700_000_000_000 + world.now.0 / 1_000_000);
        asked.slot = Some(world.begin(place, async move {
            let caller = Caller::root(session);
            dfs.handle(&caller, &header, ask.request(), ask.payload(), now).await
        }));
    }

    /// What was answered on a lane.
    pub(crate) fn take(&mut self, lane: usize) -> Option<(Asked, Result<Answer>)> {
        let asked = self.lanes[lane].as_ref()?;
        let answer = match &self.front {
            Some(front) => front.take(lane)?,
            None => asked.slot.as_ref()?.borrow_mut().take()?,
        };
        Some((self.lanes[lane].take()?, answer))
    }

    /// When it wants to be looked at though nothing was answered.
    pub(crate) fn wakes(&self) -> Option<Time> {
        let side = match &self.side {
            Side::Down(until) => *until,
            Side::Ends(_, until) => *until,
            _ => NEVER,
        };
        Some(side.min(self.looks.max(self.paused))).filter(|time| *time != NEVER)
    }

    /// It looks at its memory, some time after its DPU side has run.
    fn look(&mut self, world: &mut World) {
        let Some(front) = &mut self.front else { return };
        if world.has_run(self.place) {
            let soon = Duration::from_nanos(world.chooser.below(200_000));
            self.looks = self.looks.min(world.now.after(soon));
        }
        if world.now < self.looks.max(self.paused) {
            return;
        }
        self.looks = NEVER;
        front.set_clock(world.now, world.wall(self.place));
        front.look();
        if matches!(self.side, Side::Returns) {
            if front.has_returned() {
                world.note(format_args!("host {} is back", self.place));
                self.side = Side::Up;
                if let Some(dfs) = world.dfs(self.place) {
                    world.begin(self.place, front.hand_in(dfs));
                }
                (0..self.lanes.len()).for_each(|lane| self.go_on(world, lane));
            } else {
                self.looks = world.now.after(NAP);
            }
            world.poke(self.place);
        }
    }

    /// Whether its DPU side was given up.
    pub(crate) fn tend(&mut self, world: &mut World) -> bool {
        self.look(world);
        match &self.side {
            Side::Down(until) if world.now >= *until => {
                world.start(self.place);
                let Some(dfs) = world.dfs(self.place) else { return false };
                let closes = |fh| {
                    let mut asked = self.lanes.iter().flatten();
                    asked.any(|one| matches!(one.ask, Ask::Close { fh: of, .. } if of == fh))
                };
                // One that is being closed may be gone.
                let open = self.handles.iter().copied().filter(|(_, fh)| !closes(*fh));
                let handles = self.front.is_none().then(|| open.collect());
                let work = come(dfs, self.session, handles);
                self.side = Side::Comes(world.begin(self.place, work));
            }
            Side::Comes(slot) => {
                let came = slot.borrow_mut().take();
                match came {
                    Some(Ok(())) if self.front.is_some() => {
                        self.side = Side::Returns;
                        self.looks = world.now;
                        world.attach(self.place, self.front.as_mut());
                    }
                    Some(Ok(())) => {
                        world.note(format_args!("host {} is back", self.place));
                        self.side = Side::Up;
                        (0..self.lanes.len()).for_each(|lane| self.go_on(world, lane));
                    }
                    Some(Err(why)) => {
                        world.note(format_args!("host {} does not come back: {why}", self.place));
                        return true;
                    }
                    // The server restarted meanwhile: calls wait for ever.
                    None => return world.dfs(self.place).is_some_and(|dfs| dfs.server_changed()),
                }
            }
            Side::Up | Side::Returns => {
                if let Some(dfs) = world.dfs(self.place).filter(|dfs| dfs.server_changed()) {
                    world.note(format_args!("host {} ends", self.place));
                    let end = world.now.after(END);
                    let work = async move { _ = dfs.sync().await };
                    self.side = Side::Ends(world.begin(self.place, work), end);
                }
            }
            Side::Ends(slot, until) => {
                return slot.borrow().is_some() || world.now >= *until;
            }
            Side::Down(_) => {}
        }
        false
    }
}

/// A session without a cache hands itself in to a new life of its client.
async fn come(
    dfs: Arc<Client>,
    session: SessionId,
    handles: Option<Vec<(Ino, Fh)>>,
) -> std::result::Result<(), String> {
    dfs.connect().await.map_err(|errno| format!("connect: {errno}"))?;
    let Some(handles) = handles else { return Ok(()) };
    let caller = Caller::root(session);
    for (ino, fh) in handles {
        let header = Header { cred: Cred::root(), session, lane: 99, ..Header::default() };
        let request = Request::Reclaim { ino, fh, flags: open_flags::RDWR, directory: false };
        let now = timestamp(1_700_000_000_000);
        match dfs.handle(&caller, &header, request, Payload::None, now).await {
            Ok(answer) if answer.reply == Reply::Empty => {}
            Ok(answer) => return Err(format!("reclaim: {:?}", answer.reply)),
            Err(errno) => return Err(format!("reclaim: {errno}")),
        }
    }
    dfs.is_back(session);
    dfs.end_grace().await.map_err(|errno| format!("end_grace: {errno}"))
}

pub(crate) fn short(ask: &Ask) -> String {
    match ask {
        Ask::Write { ino, offset, len, pattern, append, .. } => {
            let what = if *append { "append" } else { "write" };
            format!("{what} {pattern} to {}: {offset}+{len}", ino.0)
        }
        other => format!("{other:?}"),
    }
}

//! Requests on a volume where a kernel collects writes for somebody
//! (`docs/internals/coherence.md`, "Beside who collects writes").

use outboard_base::{Ino, Result, SessionId, Timestamp};
use outboard_cache::coherence::{Operation, Trimmed};
use outboard_volume::{Payload, Volume};
use outboard_wire::event::Wanted;
use outboard_wire::file::{Reply, Request, SetattrTime, open_flags, write_flags};

use super::attachment::Served;
use super::collector::Collector;

/// What a request needs of who collects writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// Nothing.
    Nothing,
    /// That what it has of a file is in the volume.
    Bytes(Ino),
    /// The same of whom a name leads to.
    Named,
    /// That a file stands still, perhaps with all of another in the volume.
    Still(Ino, Option<Ino>),
    /// That its kernel hears of the size, and perhaps mtime.
    Size(Ino, u64, Option<SetattrTime>),
    /// The same of times that change; mtime, if that does.
    Times(Ino, Option<SetattrTime>),
    /// That its kernel hears of a file that is found by its name and emptied.
    Emptied,
}

fn needs(request: &Request<'_>) -> Needs {
    match *request {
        Request::Read { ino, .. }
        | Request::Getattr { ino, .. }
        | Request::Lseek { ino, .. }
        | Request::Fsync { ino, .. } => Needs::Bytes(ino),
        Request::Lookup { .. } => Needs::Named,
        Request::Write { ino, .. } | Request::Fallocate { ino, .. } => Needs::Still(ino, None),
        Request::CopyFileRange { from, to, .. } => Needs::Still(to, Some(from)),
        Request::Setattr { ino, ref set, .. } => match set.size {
            Some(size) => Needs::Size(ino, size, set.mtime.or(Some(SetattrTime::Now))),
            None => Needs::Times(ino, set.mtime),
        },
        Request::Open { ino, flags } if flags & open_flags::TRUNC != 0 => {
            Needs::Size(ino, 0, Some(SetattrTime::Now))
        }
        Request::Create { flags, .. } if flags & open_flags::TRUNC != 0 => Needs::Emptied,
        _ => Needs::Nothing,
    }
}

/// Serves a file operation: who collects writes is asked first for what the request is about, and
/// its kernel shows what it changed before it is answered.
pub(super) async fn handle<W: Volume>(
    collector: &Collector,
    served: &Served<W>,
    mut operation: Operation<'_>,
) -> Result<Trimmed> {
    let run = |operation| served.coherence.handle(&*served.volume, operation);
    let Some(who) = collector.who() else { return run(operation).await };
    if operation.caller.attachment == who {
        collector.own(&mut operation.request, &mut operation.payload).await;
        return run(operation).await;
    }
    let needs = needs(&operation.request);
    if needs == Needs::Nothing {
        return run(operation).await;
    }
    collector.is_there().await;
    let beside = Beside { collector, served, now: operation.now };
    match needs {
        Needs::Nothing => run(operation).await,
        Needs::Bytes(ino) => {
            let _turn = beside.gathered(ino).await?;
            run(operation).await
        }
        Needs::Named => beside.named(operation).await,
        Needs::Still(ino, from) => {
            if let Some(from) = from.filter(|from| *from != ino) {
                drop(beside.gathered(from).await?);
            }
            beside.still(ino, operation).await
        }
        Needs::Size(ino, size, mtime) => {
            let _turn = collector.turns.exclusive(ino).await;
            let answer = run(operation).await?;
            beside.shows(ino, Wanted::Truncate { size }).await?;
            beside.shows(ino, Wanted::Hold { mtime: beside.at(mtime) }).await?;
            Ok(answer)
        }
        Needs::Times(ino, mtime) => {
            let _turn = collector.turns.exclusive(ino).await;
            let answer = run(operation).await?;
            beside.shows(ino, Wanted::Hold { mtime: beside.at(mtime) }).await?;
            Ok(answer)
        }
        Needs::Emptied => {
            let answer = run(operation).await?;
            if let Reply::Created(attr, _) = &answer.answer.reply {
                let _turn = collector.turns.exclusive(attr.ino).await;
                beside.shows(attr.ino, Wanted::Truncate { size: 0 }).await?;
            }
            Ok(answer)
        }
    }
}

/// One request of who is not the collector.
struct Beside<'a, W> {
    collector: &'a Collector,
    served: &'a Served<W>,
    now: Timestamp,
}

impl<W: Volume> Beside<'_, W> {
    fn at(&self, mtime: Option<SetattrTime>) -> Option<Timestamp> {
        mtime.map(|mtime| match mtime {
            SetattrTime::Now => self.now,
            SetattrTime::At(at) => at,
        })
    }

    fn who(&self) -> Option<SessionId> {
        self.collector.who()
    }

    /// Whether the collector's kernel may keep something of a file.
    fn is_known(&self, ino: Ino) -> bool {
        let says = |who| self.served.volume.is_known(who, ino);
        self.who().is_some_and(|who| self.collector.may_know(says(who)))
    }

    /// All that was written to a file is in the volume, and no other request changes it meanwhile.
    async fn gathered(&self, ino: Ino) -> Result<Option<outboard_base::task::RangeGuard<'_>>> {
        let writes = |who| self.served.volume.is_open_to_write(who, ino);
        if !self.who().is_some_and(writes) {
            return Ok(None);
        }
        let turn = self.collector.turns.exclusive(ino).await;
        drop(self.collector.ask(ino, Wanted::WriteBack, self.now).await?);
        Ok(Some(turn))
    }

    /// The collector's kernel hears of what a file is now.
    async fn shows(&self, ino: Ino, wanted: Wanted) -> Result<()> {
        if self.is_known(ino) {
            let asking = self.collector.ask(ino, wanted, self.now).await?;
            asking.asked.release().await;
        }
        Ok(())
    }

    /// A request that changes bytes while nobody else does.
    async fn still(&self, ino: Ino, operation: Operation<'_>) -> Result<Trimmed> {
        let (volume, coherence) = (&*self.served.volume, &*self.served.coherence);
        let _turn = self.collector.turns.exclusive(ino).await;
        let wanted = Wanted::Hold { mtime: Some(self.now) };
        let mut was_held = false;
        let answer = if self.is_known(ino) {
            let asking = self.collector.ask(ino, wanted, self.now).await?;
            was_held = asking.asked.is_held();
            match operation.request {
                Request::Write { offset, flags, .. } if flags & write_flags::APPEND == 0 => {
                    asking.asked.cover(offset, operation.payload.bytes());
                }
                _ => {}
            }
            let answer = coherence.handle(volume, operation).await;
            asking.asked.release().await;
            answer?
        } else {
            coherence.handle(volume, operation).await?
        };
        // It learnt of the file meanwhile.
        if !was_held {
            self.shows(ino, wanted).await?;
        }
        Ok(answer)
    }

    /// A look-up: once more, if what it leads to was not all in the volume.
    async fn named(&self, operation: Operation<'_>) -> Result<Trimmed> {
        let (volume, coherence) = (&*self.served.volume, &*self.served.coherence);
        let again = Operation {
            caller: operation.caller,
            header: operation.header,
            request: operation.request.clone(),
            payload: Payload::None,
            now: operation.now,
        };
        let found = coherence.handle(volume, operation).await?;
        let Reply::Entry(attr) = &found.answer.reply else { return Ok(found) };
        match self.gathered(attr.ino).await? {
            Some(_turn) => coherence.handle(volume, again).await,
            None => Ok(found),
        }
    }
}

//! Sizes: truncation, by `setattr` and by opening.
//!
//! The server first (permissions, size, times), then a hole at the nodes from the new end on, then
//! the answer. Whoever has the delegation to write is alone with the file, so whatever lies behind
//! the size that holds then is nobody's: the hole may be made again, by who does not know whether
//! it was, and always from the size as it is known then.

use outboard_base::{Errno, Ino, Result, Timestamp};
use outboard_flow::Net;
use outboard_volume::Answer;
use outboard_wire::file::{Attr, Reply, Setattr, open_flags};
use outboard_wire::shared::call::{Call, Grant, Mode, Reply as CallReply};

use crate::Inner;
use crate::delegate::LATE;
use crate::forward::Asked;
use crate::table::Use;

impl<N: Net> Inner<N> {
    pub(crate) async fn setattr(
        &self,
        asked: Asked<'_>,
        ino: Ino,
        set: &Setattr,
    ) -> Result<Answer> {
        if let Some(size) = set.size {
            return self.resize(asked, ino, size).await;
        }
        // Times that are set count from now on: what was written before is told before.
        let _telling = self.telling.exclusive(ino).await;
        match self.tell_alone(ino).await {
            Ok(()) | Err(Errno::ESTALE) => {}
            Err(errno) => return Err(errno),
        }
        let answer = self.forward(asked).await?;
        if let Reply::Attr(attr) = &answer.reply {
            if asked.is_replay() {
                self.table.is_stale(ino, None);
            } else {
                self.table.described(attr, set.mtime.is_some());
            }
        }
        Ok(answer)
    }

    /// A request that gives a file a size: carried out by the server, then at the nodes.
    pub(crate) async fn resize(&self, asked: Asked<'_>, ino: Ino, size: u64) -> Result<Answer> {
        let mut done: Option<Answer> = None;
        let mut tries = 0;
        loop {
            let entered = match (self.enter(ino, Mode::Write).await, &done) {
                (Ok(entered), _) => entered,
                // Not a regular file, or none: whatever the server says of that.
                (Err(Errno::EINVAL | Errno::EISDIR | Errno::ESTALE), None) => {
                    return self.forward(asked).await;
                }
                (Err(errno), _) => return Err(errno),
            };
            let _range = self.ranges.exclusive(ino).await;
            let _telling = self.telling.exclusive(ino).await;
            let before = match self.tell_alone(ino).await {
                Ok(()) => self.table.size(&entered),
                Err(Errno::ESTALE) => None,
                Err(errno) => return Err(errno),
            };
            let Some(before) = before else {
                self.pause(&mut tries).await?;
                continue;
            };
            let first = done.is_none();
            if first {
                let answer = self.forward(asked).await?;
                let known = if asked.is_replay() { None } else { Some(size) };
                let is_ours = self.has_size(&entered, known, attr_of(&answer)).await?;
                done = Some(answer);
                if !is_ours {
                    continue;
                }
            }
            let Some(end) = self.table.size(&entered) else { continue };
            if !first || asked.is_replay() || end < before {
                let work = async |grant: &Grant| self.data.hole(grant, end..u64::MAX).await;
                let hole = self.at_nodes(&entered, work).await;
                if let Err(error) = hole {
                    self.after(&entered, error, &mut tries).await?;
                    continue;
                }
                if !self.holed(&entered).await? {
                    continue;
                }
                self.takes(entered.ino);
            }
            return done.ok_or(Errno::EIO);
        }
    }

    /// Notes the size a file has been given; where that is not known, as it may have been done
    /// before and changed since, the server is asked. False if the delegation is lost.
    async fn has_size(
        &self,
        entered: &Use<'_>,
        known: Option<u64>,
        attr: Option<Attr>,
    ) -> Result<bool> {
        if let Some(size) = known {
            return Ok(self.table.resized(entered, size, attr.as_ref()));
        }
        let grant = self.delegate(entered.ino, Mode::Write, None).await?;
        let is_it = self.table.held(entered.ino) == Some((grant.mode, grant.capability.fence));
        if !is_it || !self.table.holds_still(entered) {
            self.lose(entered.ino, Some(entered.fence()));
            return Ok(false);
        }
        Ok(self.table.resized(entered, grant.attr.size, Some(&grant.attr)))
    }

    /// Makes a file, or finds one, and opens it. One that was found may have been truncated; the
    /// name says only now which it was.
    pub(crate) async fn create(&self, asked: Asked<'_>, flags: u32) -> Result<Answer> {
        if flags & open_flags::TRUNC != 0 && flags & open_flags::EXCL == 0 {
            // Whatever its name leads to: what was written before is told before it is cut, unless
            // that takes long. What becomes of other files is not its affair.
            let _told = self.within(LATE, self.tell_of_all()).await;
        }
        let answer = self.forward(asked).await?;
        let Reply::Created(attr, _) = &answer.reply else { return Ok(answer) };
        let held = self.table.held(attr.ino).is_some();
        let made = attr.crtime == attr.mtime && attr.size == 0 && !held && !asked.is_replay();
        if flags & open_flags::TRUNC == 0 || made {
            return Ok(answer);
        }
        // What was written here while the server truncated it counts as written before.
        let cuts = self.table.overlays(attr.ino);
        self.truncate(attr.ino, cuts, asked.mtime()).await?;
        Ok(answer)
    }

    /// To no bytes with `cuts`, else to the size that the server says: nothing lies behind it.
    pub(crate) async fn truncate(
        &self,
        ino: Ino,
        cuts: bool,
        mtime: Option<Timestamp>,
    ) -> Result<()> {
        let mut tries = 0;
        loop {
            let entered = self.enter(ino, Mode::Write).await?;
            let _range = self.ranges.exclusive(ino).await;
            let _telling = self.telling.exclusive(ino).await;
            let is_ours = match self.table.size(&entered) {
                Some(size) if cuts && size > 0 => self.table.cut(&entered, mtime, self.now()),
                Some(_) => true,
                None => false,
            };
            let told = match self.tell_alone(ino).await {
                Err(Errno::ESTALE) => false,
                told => told.map(|()| true)?,
            };
            let size = self.table.size(&entered).filter(|_| is_ours && told);
            let Some(size) = size else {
                self.pause(&mut tries).await?;
                continue;
            };
            let work = async |grant: &Grant| self.data.hole(grant, size..u64::MAX).await;
            match self.at_nodes(&entered, work).await {
                Ok(()) if self.holed(&entered).await? => {
                    self.takes(entered.ino);
                    return Ok(());
                }
                Ok(()) => {}
                Err(error) => self.after(&entered, error, &mut tries).await?,
            }
        }
    }

    /// The server hears that nothing lies behind a file's end any more, before anybody writes there
    /// again: until then it would take that for what was cut off. False if the delegation is lost.
    async fn holed(&self, entered: &Use<'_>) -> Result<bool> {
        let (ino, fence) = (entered.ino, entered.fence());
        match self.ask(Call::Holed { ino, fence }).await? {
            CallReply::Done => Ok(true),
            CallReply::Failed(Errno::ESTALE) => {
                self.lose(ino, Some(fence));
                Ok(false)
            }
            CallReply::Failed(errno) => Err(errno),
            _ => Err(Errno::EPROTO),
        }
    }
}

fn attr_of(answer: &Answer) -> Option<Attr> {
    if let Reply::Attr(attr) = &answer.reply { Some(attr.clone()) } else { None }
}

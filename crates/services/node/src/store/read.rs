//! What looks at objects: reads, and the checks of what nobody reads.

use std::collections::BTreeSet;
use std::ops::Range;

use outboard_base::{Ino, place};
use outboard_codec::crc32c;
use outboard_medium::{Buf, Medium};
use outboard_wire::shared::call::Object;
use outboard_wire::shared::{DATA_MAX, Reason};

use super::index::{Entry, GRAIN, GRAINS_MAX, Grain, STRIP_MAX, Strip};
use super::write::runs;
use super::{GRAIN_LEN, Store};

/// The grains of bytes, those that are not there too.
fn grains(entry: &Entry, range: &Range<u64>) -> Vec<Grain> {
    let size = u64::from(entry.strip.max(1));
    let grain = |number: u64| {
        let at = number * GRAIN;
        let within = usize::try_from(at % size / GRAIN).unwrap_or(GRAINS_MAX);
        entry.strips.get(&(at / size)).map_or(Grain::NONE, |strip| strip.grain(within))
    };
    (range.start / GRAIN..range.end.div_ceil(GRAIN)).map(grain).collect()
}

/// What a piece of a scrub met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes of the grains it looked at.
    pub bytes: u64,
    /// Grains that are not what their records say, or cannot be read.
    pub damaged: u64,
}

impl<M: Medium> Store<M> {
    /// Bytes of an object; zeros where nothing was written.
    ///
    /// # Errors
    /// [`Reason::Invalid`]: more than a message carries, or behind the last offset.
    /// [`Reason::Medium`]: they cannot be read, or are not what was written.
    pub async fn read(&self, object: u64, offset: u64, len: u32) -> Result<Vec<u8>, Reason> {
        let mut bytes = Vec::new();
        self.read_behind(object, offset, len, &mut bytes).await?;
        Ok(bytes)
    }

    /// The same, behind what `message` has already: bytes are copied there once. If it fails,
    /// something may be there.
    ///
    /// # Errors
    /// As of [`Store::read`].
    pub async fn read_behind(
        &self,
        object: u64,
        offset: u64,
        len: u32,
        message: &mut Vec<u8>,
    ) -> Result<(), Reason> {
        let end = offset.checked_add(u64::from(len)).ok_or(Reason::Invalid)?;
        if len > DATA_MAX {
            return Err(Reason::Invalid);
        }
        let (range, len) = (offset..end, len as usize);
        let _shared = self.locks.shared_on(Ino(object), range.clone()).await;
        self.settled().await;
        let grains = {
            let mut state = self.shared.state();
            state.counts.reads += 1;
            let entry = state.index.objects.get(&object).filter(|entry| offset < entry.end());
            entry.map(|entry| grains(entry, &range))
        };
        let front = message.len();
        message.reserve_exact(len);
        let skip = usize::try_from(offset % GRAIN).unwrap_or(0);
        let grains = grains.unwrap_or_default();
        let damaged = self.check(&grains, |at, grain| {
            let base = at * GRAIN_LEN;
            let from = skip.saturating_sub(base);
            let until = (skip + len).saturating_sub(base).min(GRAIN_LEN);
            let within = grain.get(from..until).unwrap_or_default();
            place(message, front + (base + from).saturating_sub(skip), within);
        });
        if damaged.await > 0 {
            return Err(Reason::Medium);
        }
        message.resize(front + len, 0);
        Ok(())
    }

    /// Runs of data that end behind `from`, so many at most. Space that is put aside is no data.
    pub async fn map(&self, object: u64, from: u64, most: usize) -> Vec<Range<u64>> {
        let _shared = self.locks.shared_on(Ino(object), from..u64::MAX).await;
        self.settled().await;
        let state = self.shared.state();
        state.index.objects.get(&object).map_or_else(Vec::new, |entry| entry.runs(from, most))
    }

    /// Bytes that an object takes.
    #[must_use]
    pub fn held(&self, object: u64) -> u64 {
        self.shared.state().index.object(object).map_or(0, |known| known.bytes)
    }

    /// How many of these grains are damaged; the bytes of the others, and which they are, are
    /// given.
    pub(super) async fn check(&self, grains: &[Grain], mut give: impl FnMut(usize, &[u8])) -> u64 {
        let mut damaged = 0;
        let some: Vec<(usize, Grain)> =
            grains.iter().copied().enumerate().filter(|(_, grain)| grain.is_some()).collect();
        let slots: Vec<u32> = some.iter().map(|(_, grain)| grain.slot).collect();
        for (slot, first, count) in runs(&slots) {
            let buf = Buf::zeroed(count * GRAIN_LEN);
            let (result, buf) = self.data.read(u64::from(slot) * GRAIN, buf).await;
            for ((at, grain), bytes) in some.iter().skip(first).zip(buf.chunks(GRAIN_LEN)) {
                if result.is_err() || crc32c(bytes) != grain.crc {
                    damaged += 1;
                    continue;
                }
                give(*at, bytes);
            }
        }
        self.shared.state().counts.damaged += damaged;
        damaged
    }

    /// Objects from number `from` on, at most so many.
    #[must_use]
    pub fn objects(&self, from: u64, most: usize) -> Vec<Object> {
        let state = self.shared.state();
        let all = state.index.objects.range(from..).filter(|(_, entry)| entry.buried().is_none());
        all.take(most).filter_map(|(object, _)| state.index.object(*object)).collect()
    }

    /// The highest number of an object, and the highest fence of any, also of those purged lately.
    #[must_use]
    pub fn newest(&self) -> (u64, u64) {
        let state = self.shared.state();
        let object = state.index.objects.last_key_value().map_or(0, |(object, _)| *object);
        let fences = state.index.objects.values().map(|entry| entry.fence);
        (object, fences.max().unwrap_or(0))
    }

    /// The fence of an object, also of one that was purged lately.
    #[must_use]
    pub fn fence(&self, object: u64) -> u64 {
        self.shared.state().index.objects.get(&object).map_or(0, |entry| entry.fence)
    }

    /// Reads all grains of an object against their checksums; how many are damaged.
    ///
    /// # Errors
    /// None today: a grain that cannot be read is a damaged one.
    pub async fn verify(&self, object: u64) -> Result<u64, Reason> {
        let (mut damaged, mut next) = (0, (object, 0));
        while let Some((found, grains, _)) = self.check_strip(next).await
            && found.0 == object
        {
            damaged += grains;
            next = (object, found.1 + 1);
        }
        Ok(damaged)
    }

    /// Checks grains of about so many bytes, from where the last call ended. Behind the last object
    /// it begins again, once.
    pub async fn scrub(&self, bytes: u64) -> Scrubbed {
        let first = self.shared.state().scrub_at;
        let (mut next, mut done, mut wrapped) = (first, Scrubbed::default(), false);
        while done.bytes < bytes {
            let strip = self.shared.state().index.next(next).map(|(strip, _)| strip);
            match strip {
                Some(strip) if wrapped && strip >= first => break,
                Some(strip) => {
                    next = (strip.0, strip.1 + 1);
                    let Some((found, damaged, all)) = self.check_strip(strip).await else {
                        continue;
                    };
                    next = next.max((found.0, found.1 + 1));
                    done.damaged += damaged;
                    // One without grains costs something, too.
                    done.bytes += all.max(1) * GRAIN;
                }
                None if wrapped => break,
                None => (next, wrapped) = ((0, 0), true),
            }
        }
        let mut state = self.shared.state();
        state.scrub_at = next;
        state.counts.scrubbed += done.bytes;
        state.counts.scrubs += u64::from(wrapped);
        done
    }

    /// Looks which strips that a range touches are damaged: something of it may be.
    pub async fn find_damage(&self, object: u64, range: Range<u64>) {
        let touched = {
            let state = self.shared.state();
            state.index.objects.get(&object).map(|entry| entry.touched(&range))
        };
        let Some(touched) = touched else { return };
        let mut next = (object, touched.start);
        while let Some((found, ..)) = self.check_strip(next).await
            && found.0 == object
            && touched.contains(&found.1)
        {
            next = (object, found.1 + 1);
        }
    }

    /// Objects of which a grain was found damaged, and that was not written over since; some of
    /// them.
    #[must_use]
    pub fn damaged(&self) -> BTreeSet<u64> {
        let state = self.shared.state();
        let strips = state.damaged.keys().filter(|strip| state.is_damaged(**strip));
        strips.map(|(object, _)| *object).collect()
    }

    /// What was found damaged of an object is as good as there is.
    pub fn forget_damage(&self, object: u64) {
        self.shared.state().damaged.retain(|(of, _), _| *of != object);
    }

    /// Checks the first strip at or behind one: which that is, its damaged grains and all of them.
    /// One that is damaged is remembered.
    async fn check_strip(&self, from: (u64, u64)) -> Option<((u64, u64), u64, u64)> {
        let (strip, size) = self.shared.state().index.next(from)?;
        let base = strip.1 * u64::from(size);
        let range = base..base + u64::from(size.min(STRIP_MAX));
        let _shared = self.locks.shared_on(Ino(strip.0), range).await;
        self.settled().await;
        let (grains, newest) = {
            let state = self.shared.state();
            let found = state.index.strip(strip);
            let grains: Vec<Grain> = found.into_iter().flat_map(|strip| strip.some()).collect();
            (grains, found.map(Strip::newest))
        };
        let damaged = self.check(&grains, |_, _| ()).await;
        if damaged > 0 {
            self.shared.state().note_damage(strip, newest.unwrap_or_default());
        }
        Some((strip, damaged, grains.len() as u64))
    }
}

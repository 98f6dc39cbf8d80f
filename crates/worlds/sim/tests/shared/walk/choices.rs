//! What hosts ask, by chance.

use std::time::Duration;

use outboard_base::{Fh, Ino};

use super::{FILES, NAMES, NEVER, Told, Walk};
use crate::host::Ask;
use crate::model::{ANY, CELL, CELLS, NONE};

impl Walk {
    pub(super) fn choose(&mut self, host: usize, lane: usize) {
        self.idle[host][lane] = self.world.now.after(Duration::from_millis(20));
        if !self.hosts[host].is_running(self.world.now) {
            return;
        }
        let mut file = self.below(FILES as u64) as usize;
        if self.is_cached && self.below(8) > 0 {
            // What all use all the time nobody caches.
            file = host;
        }
        let kind = self.below(100);
        if kind < 12 {
            return self.choose_name(host, lane, kind);
        }
        let ino = self.files[file].ino;
        let other = self.hosts[host].lanes[1 - lane].as_ref().map(|asked| asked.ask.clone());
        let syncs = matches!(other, Some(Ask::Fsync { .. } | Ask::Syncfs));
        if kind == 12 && !syncs {
            return self.ask((host, lane), Ask::Syncfs, Told::default());
        }
        let moves =
            matches!(other, Some(Ask::Open { .. } | Ask::Reopen { .. } | Ask::Close { .. }));
        let handle = self.hosts[host].handles.iter().find(|handle| handle.0 == ino).copied();
        let Some((_, fh)) = handle else {
            if !moves && self.is_cached {
                self.ask((host, lane), Ask::Reopen { ino }, Told { file, ..Told::default() });
            } else if !moves {
                let name = self.files[file].name.clone();
                self.ask((host, lane), Ask::Open { name }, Told { file, ..Told::default() });
            }
            return;
        };
        if moves {
            return;
        }
        let told = Told { file, ..Told::default() };
        match kind {
            40..48 if self.is_cached && other.is_none() => {
                self.ask((host, lane), Ask::Close { ino, fh }, told);
            }
            12..45 => {
                let offset = self.below(CELLS) * CELL;
                let len = (1 + self.below(CELLS)) * CELL;
                let len = len.min(CELLS * CELL - offset) as u32;
                self.ask((host, lane), Ask::Read { ino, fh, offset, len }, told);
            }
            45..50 => self.ask((host, lane), Ask::Getattr { ino }, told),
            // Two at a time do not say which of them heard of a loss.
            50..58 if syncs => {}
            50..58 => {
                let data_only = kind < 55;
                self.ask((host, lane), Ask::Fsync { ino, fh, data_only }, told);
            }
            58..60 if other.is_none() => self.ask((host, lane), Ask::Close { ino, fh }, told),
            60..68 => self.truncate((host, lane), file, (ino, fh)),
            68..74 => self.punch((host, lane), file, (ino, fh)),
            _ => self.write((host, lane), file, (ino, fh), kind > 92),
        }
    }

    pub(super) fn write(
        &mut self,
        at: (usize, usize),
        file: usize,
        (ino, fh): (Ino, Fh),
        append: bool,
    ) {
        let (least, most) = self.files[file].model.size();
        let cells = CELLS - 3;
        let from = self.below(cells);
        let short = if self.is_cached { 8 } else { 20 };
        let long = if self.below(3) == 0 { 140 } else { short };
        let count = (1 + self.below(long)).min(cells - from);
        let (mut offset, len) = (from * CELL, count * CELL);
        let known = &mut self.files[file];
        if append {
            offset = least;
            if least != most || least % CELL != 0 || least + 3 * len > CELLS * CELL {
                return;
            }
            if self.is_cached && !known.model.is_size_kept() {
                return;
            }
        }
        let extends = append || offset + len > least;
        if known.sizing || (extends && (known.writers > 0 || least != most)) {
            return;
        }
        self.patterns += 1;
        let pattern = self.patterns;
        let now = self.moment();
        let known = &mut self.files[file];
        let host = at.0;
        let op = Some(known.model.begin(host, (offset, offset + len), pattern, now));
        let mut told = Told { file, op, ..Told::default() };
        if extends {
            let end = most.max(offset + len);
            known.sizing = true;
            told.size = Some((end, end, known.model.begin_size(host, (end, end), now)));
            told.adds = if append { len } else { 0 };
        } else {
            known.writers += 1;
        }
        self.ask(at, Ask::Write { ino, fh, offset, len, pattern, append }, told);
    }

    pub(super) fn truncate(&mut self, at: (usize, usize), file: usize, (ino, fh): (Ino, Fh)) {
        let size = self.below(CELLS) * CELL;
        let now = self.moment();
        let known = &mut self.files[file];
        if known.sizing || known.writers > 0 {
            return;
        }
        known.sizing = true;
        // What grows is not cut: behind its end there may be what a node has not forgotten.
        let (least, most) = known.model.size();
        let op = (size < most).then(|| known.model.begin(at.0, (size, CELLS * CELL), 0, now));
        let op = op.filter(|_| size < least);
        op.into_iter().for_each(|op| known.model.cuts(op));
        let losses = known.model.begin_size(at.0, (size, size), now);
        let told = Told { file, op, size: Some((size, size, losses)), ..Told::default() };
        self.ask(at, Ask::Truncate { ino, fh, size }, told);
    }

    pub(super) fn punch(&mut self, at: (usize, usize), file: usize, (ino, fh): (Ino, Fh)) {
        let offset = self.below(CELLS) * CELL;
        let len = ((1 + self.below(60)) * CELL).min(CELLS * CELL - offset);
        let now = self.moment();
        let known = &mut self.files[file];
        if known.sizing {
            return;
        }
        known.writers += 1;
        let op = Some(known.model.begin(at.0, (offset, offset + len), 0, now));
        self.ask(at, Ask::Punch { ino, fh, offset, len }, Told { file, op, ..Told::default() });
    }

    pub(super) fn choose_name(&mut self, host: usize, lane: usize, kind: u64) {
        let at = self.below(NAMES as u64) as usize;
        let to = (at + 1 + self.below(NAMES as u64 - 1) as usize) % NAMES;
        let name = self.names[at].0.clone();
        let told = Told::default();
        if kind < 5 {
            return self.ask((host, lane), Ask::Lookup { name }, told);
        }
        if self.names[at].2 {
            return;
        }
        let now = self.moment();
        let exact = self.names[at].1.exact();
        if kind < 8 {
            self.names[at].2 = true;
            self.names[at].1.begin(ANY, now);
            self.ask((host, lane), Ask::Mknod { name }, told);
        } else if kind < 10 {
            self.names[at].2 = true;
            self.names[at].1.begin(NONE, now);
            self.ask((host, lane), Ask::Unlink { name }, told);
        } else if let (Some(ino @ 1..), false) = (exact, self.names[to].2) {
            (self.names[at].2, self.names[to].2) = (true, true);
            self.names[at].1.begin(NONE, now);
            self.names[to].1.begin(ino, now);
            let to = self.names[to].0.clone();
            self.ask((host, lane), Ask::Rename { from: name, to }, told);
        }
    }

    pub(super) fn ask(&mut self, (host, lane): (usize, usize), ask: Ask, told: Told) {
        let begun = self.moment();
        let losses = self.losses;
        self.told.insert((host, lane), Told { begun, losses, ..told });
        self.counts.asked += 1;
        self.idle[host][lane] = NEVER;
        self.hosts[host].ask(&mut self.world, lane, ask);
    }
}

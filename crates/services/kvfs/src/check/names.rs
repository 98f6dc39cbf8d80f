//! Names: a directory's two tables against each other, and names against what they lead to.

use outboard_base::Ino;
use outboard_kv::{Key, Kv, KvError, Value};
use outboard_medium::Medium;
use outboard_wire::file::FileKind;

use super::cursor::Cursor;
use super::inodes::{Held, Window, next_of};
use super::report::Finding;
use super::{Check, What};
use crate::layout::key::{self, Tag};
use crate::layout::{Entry, Listed};

fn named(name: &[u8]) -> String {
    format!("\"{}\"", name.escape_ascii())
}

impl<K: Kv> Window<'_, K> {
    /// The entries under `ino`, by name and by cookie: each must have its other half.
    pub(super) async fn held<M: Medium>(
        &mut self,
        ino: Ino,
        check: &mut Check<'_, K, M>,
    ) -> Result<Held, KvError> {
        let mut held = Held::default();
        // A directory may be large: pair by pair.
        while let Some(pair) = next_of(&mut self.entries, ino, check).await? {
            self.entry(ino, pair, &mut held, check).await?;
        }
        while let Some(pair) = next_of(&mut self.listed, ino, check).await? {
            self.listed(ino, pair, &mut held, check).await?;
        }
        Ok(held)
    }

    async fn entry<M: Medium>(
        &self,
        ino: Ino,
        (pair_key, value): (Key, Value),
        held: &mut Held,
        check: &mut Check<'_, K, M>,
    ) -> Result<(), KvError> {
        let name = key::rest(&pair_key);
        held.entries += 1;
        let Ok(entry) = Entry::decode(ino, name, &value) else {
            check.report.add(What::BadEntry, ino, named(name));
            return Ok(());
        };
        held.subdirectories += u64::from(entry.kind == FileKind::Directory);
        held.cookies_end = held.cookies_end.max(entry.cookie.saturating_add(1));
        let wanted = Listed { ino: entry.ino, kind: entry.kind, name };
        let listed = self.kv.get(&key::listed(ino, entry.cookie)).await?;
        let listed = listed.as_ref().map(|value| Listed::decode(ino, entry.cookie, value));
        if listed != Some(Ok(wanted)) {
            check.report.add(What::EntryUnlisted, ino, named(name));
        }
        Ok(())
    }

    async fn listed<M: Medium>(
        &self,
        ino: Ino,
        (pair_key, value): (Key, Value),
        held: &mut Held,
        check: &mut Check<'_, K, M>,
    ) -> Result<(), KvError> {
        held.listed += 1;
        let cookie = <[u8; 8]>::try_from(key::rest(&pair_key)).map(u64::from_be_bytes);
        let listed = cookie.ok().and_then(|c| Listed::decode(ino, c, &value).ok().map(|l| (c, l)));
        let Some((cookie, listed)) = listed else {
            check.report.add(What::BadEntry, ino, format!("{pair_key:?}"));
            return Ok(());
        };
        let wanted = Entry { ino: listed.ino, cookie, kind: listed.kind };
        let entry = self.kv.get(&key::entry(ino, listed.name)).await?;
        let entry = entry.map(|value| Entry::decode(ino, listed.name, &value));
        if entry != Some(Ok(wanted)) {
            let place = format!("cookie {cookie}, {}", named(listed.name));
            check.report.add(What::ListedUnnamed, ino, place);
        }
        Ok(())
    }

    /// Counts, over all names of the volume, those that lead into the window.
    pub(super) async fn count_names<M: Medium>(
        &mut self,
        check: &mut Check<'_, K, M>,
    ) -> Result<(), KvError> {
        let mut names = Cursor::new(self.kv, Tag::Entry);
        while let Some((pair_key, value)) = names.next().await? {
            let Some(parent) = key::number(&pair_key).map(Ino) else { continue };
            let name = key::rest(&pair_key);
            // What is damaged was reported with its directory.
            let Ok(entry) = Entry::decode(parent, name, &value) else { continue };
            let inside = entry.ino.0 >= self.first && self.end.is_none_or(|end| entry.ino.0 < end);
            if !inside {
                continue;
            }
            let slot = self.slots.binary_search_by_key(&entry.ino, |slot| slot.ino).ok();
            let Some(slot) = slot.and_then(|at| self.slots.get_mut(at)) else {
                check.name_fault(What::DanglingName, parent, name, entry.ino);
                continue;
            };
            slot.names = slot.names.saturating_add(1);
            match slot.kind {
                None => {}
                Some(kind) if kind != entry.kind => {
                    check.name_fault(What::WrongKind, parent, name, entry.ino);
                }
                Some(FileKind::Directory) if slot.parent != parent => {
                    check.name_fault(What::WrongParent, parent, name, entry.ino);
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Link counts, now that the names are counted.
    pub(super) fn judge<M: Medium>(&self, check: &mut Check<'_, K, M>) {
        for slot in &self.slots {
            let wanted = match slot.kind {
                None => continue,
                Some(FileKind::Directory) if slot.ino == Ino::ROOT => 0,
                Some(FileKind::Directory) => slot.nlink.min(1),
                Some(_) => slot.nlink,
            };
            if slot.names != wanted {
                let place = format!("{} names, link count {}", slot.names, slot.nlink);
                check.report.add(What::WrongLinkCount, slot.ino, place);
            }
        }
    }
}

impl<K: Kv, M: Medium> Check<'_, K, M> {
    fn name_fault(&mut self, what: What, parent: Ino, name: &[u8], target: Ino) {
        let place = format!("{} in directory {parent}", named(name));
        let other = Some(parent);
        self.report.push(Finding { what, ino: target, place, repaired: false, other, key: None });
    }
}

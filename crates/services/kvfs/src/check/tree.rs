//! Whether every directory hangs on the root.

use outboard_base::Ino;
use outboard_kv::Kv;
use outboard_medium::Medium;

use super::{Check, What};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Unknown,
    /// On the path being followed.
    Following,
    Root,
    Nowhere,
}

impl<K: Kv, M: Medium> Check<'_, K, M> {
    /// Follows parents upwards from each directory that has a name; each is followed once.
    pub(super) fn tree(&mut self) {
        let directories = std::mem::take(&mut self.directories);
        let place = |ino: Ino| directories.binary_search_by_key(&ino, |(ino, _)| *ino).ok();
        let mut reach = vec![Reach::Unknown; directories.len()];
        for start in 0..directories.len() {
            let mut path = Vec::new();
            let mut at = Some(start);
            let end = loop {
                let Some((index, known)) = at.and_then(|i| reach.get(i).map(|r| (i, *r))) else {
                    break Reach::Nowhere; // The parent is no directory with a name.
                };
                match known {
                    Reach::Root => break Reach::Root,
                    Reach::Following | Reach::Nowhere => break Reach::Nowhere,
                    Reach::Unknown => {}
                }
                path.push(index);
                if let Some(reach) = reach.get_mut(index) {
                    *reach = Reach::Following;
                }
                let Some((ino, parent)) = directories.get(index) else { break Reach::Nowhere };
                if *ino == Ino::ROOT {
                    break Reach::Root;
                }
                at = place(*parent);
            };
            for index in path {
                if let Some(reach) = reach.get_mut(index) {
                    *reach = end;
                }
            }
        }
        for ((ino, parent), reach) in directories.iter().zip(reach) {
            if reach != Reach::Root {
                self.report.add(What::Detached, *ino, format!("parent {parent}"));
            }
        }
    }
}

//! What to keep, what to fetch ahead, when to write back: the decisions of the control plane (DPC
//! 3.3; rows C13, C14).
//!
//! One file an algorithm, chosen per mount by name. None of them touches the cache: they are told
//! what the control plane saw and say what it should do, so each is tried on traces alone.

pub mod flush;
pub mod prefetch;
pub mod replace;

use outboard_wire::cache::Wishes;

pub use flush::Flush;
pub use prefetch::Prefetch;
pub use replace::Replace;

/// Most pages that may be dirty, of 100: the rest is for reading, and for what is replaced.
pub const DIRTY_MAX: u8 = 90;

/// The algorithms of one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policies {
    /// Which page makes room.
    pub replace: replace::Name,
    /// Which pages are fetched before they are asked for.
    pub prefetch: prefetch::Name,
    /// Which dirty pages are written back ahead of need.
    pub flush: flush::Name,
    /// Pages that may be dirty, of 100: 1 to [`DIRTY_MAX`].
    pub dirty: u8,
}

impl Default for Policies {
    fn default() -> Policies {
        Policies {
            replace: replace::Name::default(),
            prefetch: prefetch::Name::default(),
            flush: flush::Name::default(),
            dirty: flush::LIMIT,
        }
    }
}

impl Policies {
    /// These, where a host wishes nothing else.
    #[must_use]
    pub fn with(self, wishes: Wishes) -> Policies {
        fn known<T: Copy>(all: &[T], code: impl Fn(T) -> u8, wish: u8) -> Option<T> {
            all.iter().copied().find(|name| code(*name) == wish)
        }
        let Wishes { replace, prefetch, flush, dirty } = wishes;
        Policies {
            replace: known(&replace::Name::ALL, replace::Name::code, replace)
                .unwrap_or(self.replace),
            prefetch: known(&prefetch::Name::ALL, prefetch::Name::code, prefetch)
                .unwrap_or(self.prefetch),
            flush: known(&flush::Name::ALL, flush::Name::code, flush).unwrap_or(self.flush),
            dirty: if (1..=DIRTY_MAX).contains(&dirty) { dirty } else { self.dirty },
        }
    }
}

/// What a host chooses; the rest is the DPU side's to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Which page makes room.
    pub replace: Option<replace::Name>,
    /// Which pages are fetched before they are asked for.
    pub prefetch: Option<prefetch::Name>,
    /// Which dirty pages are written back ahead of need.
    pub flush: Option<flush::Name>,
    /// Pages that may be dirty, of 100: 1 to [`DIRTY_MAX`].
    pub dirty: Option<u8>,
}

impl Choice {
    /// Reads `replace=lru,prefetch=none` and the like, by the names of the settings; `None` if
    /// something in it is not known.
    #[must_use]
    pub fn parse(text: &str) -> Option<Choice> {
        let mut choice = Choice::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=')?;
            match key {
                "replace" => choice.replace = Some(replace::Name::parse(value)?),
                "prefetch" => choice.prefetch = Some(prefetch::Name::parse(value)?),
                "flush" => choice.flush = Some(flush::Name::parse(value)?),
                "dirty-limit" => {
                    let limit = value.parse().ok().filter(|it| (1..=DIRTY_MAX).contains(it))?;
                    choice.dirty = Some(limit);
                }
                _ => return None,
            }
        }
        Some(choice)
    }

    /// As the cache's header says it.
    #[must_use]
    pub fn wishes(self) -> Wishes {
        Wishes {
            replace: self.replace.map_or(0, replace::Name::code),
            prefetch: self.prefetch.map_or(0, prefetch::Name::code),
            flush: self.flush.map_or(0, flush::Name::code),
            dirty: self.dirty.unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_s_choice_goes_before_the_dpu_side_s() {
        let ours = Policies { replace: replace::Name::Lru, ..Policies::default() };
        assert_eq!(ours.with(Choice::default().wishes()), ours);
        for replace in replace::Name::ALL {
            for prefetch in prefetch::Name::ALL {
                for flush in flush::Name::ALL {
                    let choice = Choice {
                        replace: Some(replace),
                        prefetch: Some(prefetch),
                        flush: Some(flush),
                        dirty: Some(7),
                    };
                    let chosen = Policies { replace, prefetch, flush, dirty: 7 };
                    assert_eq!(ours.with(choice.wishes()), chosen);
                }
            }
        }
    }

    #[test]
    fn a_choice_is_read_from_its_words() {
        assert_eq!(Choice::parse(""), Some(Choice::default()));
        let text = "replace=lru,prefetch=none,flush=eager,dirty-limit=90";
        let chosen = Policies::default().with(Choice::parse(text).unwrap().wishes());
        let (prefetch, flush) = (prefetch::Name::None, flush::Name::Eager);
        assert_eq!(chosen, Policies { replace: replace::Name::Lru, prefetch, flush, dirty: 90 });
        for wrong in ["replace", "replace=", "color=red", "dirty-limit=0", "dirty-limit=91"] {
            assert_eq!(Choice::parse(wrong), None, "{wrong}");
        }
    }

    /// A number in the header of a cache outlives the program that wrote it.
    #[test]
    fn numbers_keep_their_names() {
        let replace = [(1, "clock"), (2, "lru"), (3, "s3fifo")];
        let prefetch = [(1, "none"), (2, "sequential"), (3, "strided")];
        let flush = [(1, "eager"), (2, "aged")];
        assert_eq!(replace::Name::ALL.map(|name| (name.code(), name.as_str())), replace);
        assert_eq!(prefetch::Name::ALL.map(|name| (name.code(), name.as_str())), prefetch);
        assert_eq!(flush::Name::ALL.map(|name| (name.code(), name.as_str())), flush);
    }

    #[test]
    fn numbers_nobody_knows_choose_nothing() {
        let ours = Policies::default();
        for code in [0, 9, 91, 255] {
            let wishes = Wishes { replace: code, prefetch: code, flush: code, dirty: 0 };
            assert_eq!(ours.with(wishes), ours);
        }
        assert_eq!(ours.with(Wishes { dirty: 91, ..Wishes::default() }).dirty, ours.dirty);
    }
}

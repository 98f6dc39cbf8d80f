//! Which store a volume is in, as it is named on the command line and remembered by its data
//! directory.
//!
//! ```text
//! DIR/store   name of the store | newline | number of the volume in the pool, if it is one
//! ```
//!
//! A directory without that file is fjall's, as every one was before there was a choice. While a
//! volume is copied into it, `DIR/store.copy` says the same of the store: it becomes `store` when
//! the copy was compared, before it is a volume, and goes when there is to be none.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;

use crate::error::StoreError;

/// The file of a data directory that names its store.
const REMEMBERED: &str = "store";
/// The same of one that a volume is being copied to.
const COPYING: &str = "store.copy";
/// How the name of a pool begins.
const POOL: &str = "rados://";

/// The store of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreName {
    /// The data directory: the first engine, a log-structured tree.
    Fjall,
    /// The data directory: the second one, a copy-on-write tree.
    Redb,
    /// A pool of a Ceph cluster, by its location.
    Pool(String),
}

impl FromStr for StoreName {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<StoreName, StoreError> {
        match text {
            "fjall" => Ok(Self::Fjall),
            "redb" => Ok(Self::Redb),
            _ if text.starts_with(POOL) => Ok(Self::Pool(text.to_owned())),
            _ => Err(StoreError::usage(format!(
                "there is no store {text}; write fjall, redb or rados://POOL?conf=PATH"
            ))),
        }
    }
}

impl fmt::Display for StoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fjall => f.write_str("fjall"),
            Self::Redb => f.write_str("redb"),
            Self::Pool(url) => f.write_str(url),
        }
    }
}

fn cannot(verb: &str, path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::data(format!("cannot {verb} {}: {error}", path.display()))
}

impl StoreName {
    /// The store of a data directory: the one it remembers, or holds; else the one `given` on the
    /// command line, else fjall. One that is not `given` is refused.
    pub fn of(data: &Path, given: Option<&str>) -> Result<StoreName, StoreError> {
        let given = given.map(str::parse).transpose()?;
        let kept = Self::noted(&data.join(REMEMBERED))?;
        let copied = Self::noted(&data.join(COPYING))?.filter(|_| kept.is_none());
        let here = data.join("kv").exists().then_some(Self::Fjall);
        match (kept.or_else(|| copied.clone()).or(here), given) {
            (Some(found), Some(given)) if found != given && copied.is_some() => {
                Err(StoreError::data(format!(
                    "{} holds an unfinished copy of a volume, in the store {found}, not {given}: \
                     finish it without --store, or remove the directory to give it up",
                    data.display()
                )))
            }
            (Some(found), Some(given)) if found != given => Err(StoreError::data(format!(
                "{} belongs to the store {found}, not {given}: leave out --store, choose \
                     another data directory, or copy the volume with `outboard migrate`",
                data.display()
            ))),
            (Some(store), _) | (None, Some(store)) => Ok(store),
            (None, None) => Ok(Self::Fjall),
        }
    }

    /// The store that a file names, if it is there.
    fn noted(path: &Path) -> Result<Option<StoreName>, StoreError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot("read", path, &error)),
        };
        let line = text.lines().next().unwrap_or_default();
        line.parse().map(Some).map_err(|_| {
            let message = format!(
                "{} names the store {line:?}, which this program does not know: use the version \
                 that wrote it, or choose another data directory",
                path.display()
            );
            StoreError::data(message)
        })
    }

    /// Notes down that a volume is about to be copied to this store, unless that is known; whether
    /// it was not.
    pub fn begin_copy(&self, data: &Path) -> Result<bool, StoreError> {
        let known = data.join(REMEMBERED).exists() || data.join(COPYING).exists();
        if *self == Self::Fjall || known {
            return Ok(false);
        }
        self.note(data, COPYING, None)?;
        Ok(true)
    }

    /// Forgets what [`StoreName::begin_copy`] noted down.
    pub fn give_up_copy(data: &Path) -> Result<(), StoreError> {
        let path = data.join(COPYING);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(cannot("remove", &path, &error))
            }
            _ => Ok(()),
        }
    }

    /// Notes down that a data directory belongs to this store, and to which volume in it. Fjall's
    /// need no note.
    pub fn remember(&self, data: &Path, volume: Option<u64>) -> Result<(), StoreError> {
        let known = volume.is_none() && data.join(REMEMBERED).exists();
        if *self != Self::Fjall && !known {
            self.note(data, REMEMBERED, volume)?;
        }
        Self::give_up_copy(data)
    }

    fn note(&self, data: &Path, name: &str, volume: Option<u64>) -> Result<(), StoreError> {
        let volume = volume.map_or_else(String::new, |volume| format!("{volume:016x}\n"));
        let (path, new) = (data.join(name), data.join("store.new"));
        // Whole or not at all: half a number, or none, would name another volume.
        let write = || {
            let mut file = std::fs::File::create(&new)?;
            file.write_all(format!("{self}\n{volume}").as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            std::fs::File::open(data)?.sync_all()
        };
        write().map_err(|error| cannot("write", &path, &error))
    }
}

/// The number of the volume a data directory belongs to, if it was noted down.
#[cfg(feature = "rados")]
pub(crate) fn remembered_volume(data: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(data.join(REMEMBERED)).ok()?;
    u64::from_str_radix(text.lines().nth(1)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data directory of the test's own.
    fn directory(name: &str) -> std::path::PathBuf {
        let name = format!("outboard-store-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_data_directory_belongs_to_one_store() {
        let url = "rados://a?conf=/c";
        for (name, others) in
            [("redb", ["fjall", url]), (url, ["redb", "rados://b"]), ("fjall", ["redb", url])]
        {
            let dir = directory("one");
            assert_eq!(StoreName::of(&dir, None).unwrap(), StoreName::Fjall, "nothing is there");
            let store = StoreName::of(&dir, Some(name)).unwrap();
            assert_eq!(store.to_string(), name);
            store.remember(&dir, None).unwrap();
            std::fs::create_dir(dir.join("kv")).unwrap();
            assert_eq!(StoreName::of(&dir, None).unwrap(), store);
            assert_eq!(StoreName::of(&dir, Some(name)).unwrap(), store);
            for other in others {
                let message = StoreName::of(&dir, Some(other)).unwrap_err().to_string();
                assert!(message.contains(name) && message.contains(other), "{message}");
                assert!(message.contains("outboard migrate"), "{message}");
            }
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }

    /// A copy that was refused left its store behind: the directory belonged to it from then on.
    #[test]
    fn a_copy_s_store_is_remembered_when_it_is_one() {
        let dir = directory("copy");
        let store = |given| StoreName::of(&dir, given);
        assert!(StoreName::Redb.begin_copy(&dir).unwrap());
        assert!(!StoreName::Redb.begin_copy(&dir).unwrap(), "an earlier try's");
        StoreName::give_up_copy(&dir).unwrap();
        assert_eq!(store(Some("fjall")).unwrap(), StoreName::Fjall, "nothing was noted down");
        StoreName::Redb.begin_copy(&dir).unwrap();
        std::fs::create_dir(dir.join("kv")).unwrap();
        assert_eq!(store(None).unwrap(), StoreName::Redb, "it goes on where it was");
        let message = store(Some("fjall")).unwrap_err().to_string();
        assert!(message.contains("unfinished copy") && message.contains("redb"), "{message}");
        StoreName::Redb.remember(&dir, None).unwrap();
        assert!(dir.join(REMEMBERED).exists() && !dir.join(COPYING).exists());
        assert_eq!(store(None).unwrap(), StoreName::Redb);
        StoreName::Redb.begin_copy(&dir).unwrap();
        assert!(!dir.join(COPYING).exists(), "it is known");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_store_that_is_not_known_is_refused() {
        let dir = directory("unknown");
        for unknown in ["", "redb:", "rocksdb", "/somewhere"] {
            let message = StoreName::of(&dir, Some(unknown)).unwrap_err().to_string();
            assert!(message.contains("fjall, redb or rados://"), "{message}");
        }
        std::fs::write(dir.join(REMEMBERED), "later\n").unwrap();
        let message = StoreName::of(&dir, None).unwrap_err().to_string();
        assert!(message.contains("later") && message.contains("version"), "{message}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[cfg(feature = "rados")]
    #[test]
    fn a_volume_in_a_pool_is_remembered_by_its_number() {
        let dir = directory("number");
        assert_eq!(remembered_volume(&dir), None);
        StoreName::Pool("rados://a".into()).remember(&dir, Some(77)).unwrap();
        assert_eq!(remembered_volume(&dir), Some(77));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

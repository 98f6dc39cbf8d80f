//! What a check found.

use std::collections::HashSet;
use std::fmt;

use outboard_base::Ino;
use outboard_kv::Key;

/// Findings listed; more are counted only.
const FINDINGS_MAX: usize = 1000;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A count is off or space is taken by nobody; everything can be read.
    Untidy,
    /// The structure contradicts itself.
    Wrong,
    /// Something cannot be read any more.
    Lost,
}

macro_rules! whats {
    ($($(#[$doc:meta])* $name:ident = $severity:ident, $text:literal;)*) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum What { $(#[doc = $text] $name,)* }

        impl What {
            /// Every kind.
            pub const ALL: &[What] = &[$(What::$name),*];

            /// How bad it is.
            #[must_use]
            pub fn severity(self) -> Severity {
                match self { $(What::$name => Severity::$severity,)* }
            }

            /// In words.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self { $(What::$name => $text,)* }
            }
        }
    };
}

whats! {
    BadSuperblock = Lost, "the superblock is missing or damaged";
    BadCounter = Lost, "a counter is missing or damaged";
    StrangeKey = Wrong, "a key that nobody writes";
    BadReplayRecord = Wrong, "a replay record cannot be decoded";
    BadInode = Lost, "an inode is damaged";
    NumberNotGivenOut = Wrong, "an inode number is not below the counter";
    MissingRoot = Lost, "there is no root directory";
    BadShape = Wrong, "size, form and marks of an inode contradict each other";
    BadSmallFile = Lost, "the bytes of a small file are missing or damaged";
    WrongBlockCount = Untidy, "the count of blocks is off";
    StaleTail = Wrong, "bytes beyond the end of a file are not zero";
    OwnerlessPair = Untidy, "a pair belongs to no inode";
    OwnerlessObject = Untidy, "a file object belongs to no file";
    BadXattr = Lost, "an extended attribute is damaged";
    UnmarkedXattr = Wrong, "an inode has extended attributes and no mark that says so";
    WrongOrphan = Wrong, "the list of orphans and the link count disagree";
    WrongTrim = Wrong, "the list of truncations and the inode's mark disagree";
    WrongWriting = Wrong, "the list of files being written to and the inode's mark disagree";
    WrongLacking = Wrong, "the list of files whose copies lack something and the mark disagree";
    PurgeOfFile = Wrong, "an object is to be purged whose file is there";
    BadEntry = Lost, "a directory entry is damaged";
    EntryUnlisted = Wrong, "an entry is not in its directory's order";
    ListedUnnamed = Wrong, "the directory's order has an entry that its names have not";
    WrongEntryCount = Untidy, "the count of a directory's entries is off";
    CookieNotGivenOut = Wrong, "an entry's cookie is not below the directory's next";
    EntriesOfNoDirectory = Wrong, "entries stand under an inode that is no directory";
    DanglingName = Wrong, "a name leads to no inode";
    WrongKind = Wrong, "a name's kind is not its inode's";
    WrongParent = Wrong, "a directory's parent is not where its name is";
    WrongLinkCount = Wrong, "the link count is off";
    Detached = Lost, "a directory cannot be reached from the root";
    BadIndex = Lost, "an index page is damaged";
    BlockUsedTwice = Wrong, "a block belongs to two places";
    BlockNotAllocated = Wrong, "a block in use is called free";
    BlockLeaked = Untidy, "a block in no use is called used";
    BadBlock = Lost, "a block fails its checksum or cannot be read";
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Of what kind.
    pub what: What,
    /// Which inode it is about (0 also where it is about none).
    pub ino: Ino,
    /// Where, in words.
    pub place: String,
    /// It was set right.
    pub repaired: bool,
    /// Another inode it speaks of.
    pub(super) other: Option<Ino>,
    /// The pair that would go in a repair.
    pub(super) key: Option<Key>,
}

impl Finding {
    /// How bad it is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.what.severity()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: inode {}: {}", self.severity(), self.ino, self.what.text())?;
        if !self.place.is_empty() {
            write!(f, " ({})", self.place)?;
        }
        if self.repaired { f.write_str("; repaired") } else { Ok(()) }
    }
}

/// What there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Inodes.
    pub inodes: u64,
    /// Of these, directories.
    pub directories: u64,
    /// Names.
    pub names: u64,
    /// Small files and symbolic links.
    pub small_files: u64,
    /// File objects.
    pub objects: u64,
    /// Blocks of file objects, 8 KiB each.
    pub blocks: u64,
    /// Extended attributes.
    pub xattrs: u64,
    /// Inodes without a name.
    pub orphans: u64,
    /// Replay records.
    pub replay_records: u64,
    /// Files whose bytes lie on nodes.
    pub spread_files: u64,
    /// Of these, being written to, or not known to have been told of since.
    pub writing: u64,
    /// Objects that the nodes are still to purge.
    pub purges: u64,
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// The first thousand faults.
    pub findings: Vec<Finding>,
    /// How many there are in all.
    pub total: u64,
    /// What there is.
    pub counts: Counts,
    /// Faults left out because others changed their inodes meanwhile, or a second run did not find
    /// them again.
    pub unsure: u64,
}

impl Report {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.total == 0
    }

    /// As any volume says it.
    #[must_use]
    pub fn to_volume(&self) -> outboard_volume::Report {
        let counts = &self.counts;
        outboard_volume::Report {
            findings: self.findings.iter().map(ToString::to_string).collect(),
            total: self.total,
            unsure: self.unsure,
            counts: vec![
                ("inodes", counts.inodes),
                ("directories", counts.directories),
                ("names", counts.names),
                ("small_files", counts.small_files),
                ("objects", counts.objects),
                ("blocks", counts.blocks),
                ("xattrs", counts.xattrs),
                ("orphans", counts.orphans),
                ("replay_records", counts.replay_records),
                ("spread_files", counts.spread_files),
                ("writing", counts.writing),
                ("purges", counts.purges),
            ],
        }
    }

    pub(super) fn add(&mut self, what: What, ino: Ino, place: String) {
        self.push(Finding { what, ino, place, repaired: false, other: None, key: None });
    }

    pub(super) fn push(&mut self, finding: Finding) {
        self.total += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    fn retain(&mut self, keep: impl Fn(&Finding) -> bool) {
        let before = self.findings.len();
        self.findings.retain(keep);
        let gone = (before - self.findings.len()) as u64;
        self.total -= gone.min(self.total);
        self.unsure += gone;
    }

    /// Leaves out what is about inodes that changed meanwhile: everything, if those are not known.
    pub(super) fn forgive(&mut self, touched: Option<&HashSet<u64>>) {
        self.retain(|finding| {
            let inos = [Some(finding.ino), finding.other];
            let touches = |ino: Ino| touched.is_none_or(|touched| touched.contains(&ino.0));
            !inos.into_iter().flatten().any(touches)
        });
    }

    /// Leaves out what `again` has not.
    pub(super) fn keep_common(&mut self, again: &Report) {
        self.retain(|finding| again.findings.contains(finding));
    }
}

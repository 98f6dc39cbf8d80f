//! Steps: numbers that mean something only where they are taken.

use proptest::collection::vec;
use proptest::prelude::*;

/// What kind of thing is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// Attributes.
    Stat,
    /// A name.
    Lookup,
    /// A whole directory.
    List,
    /// A new or old file, opened.
    Create,
    /// A directory.
    Mkdir,
    /// A link with a target.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A file without a name.
    Tmpfile,
    /// Another name.
    Link,
    /// A name less.
    Unlink,
    /// A directory less.
    Rmdir,
    /// A name moved, replaced or exchanged.
    Rename,
    /// A file opened.
    Open,
    /// A handle closed.
    Close,
    /// Bytes in.
    Write,
    /// Bytes out.
    Read,
    /// A length, by inode.
    Truncate,
    /// A length, by handle.
    Ftruncate,
    /// Space, holes and zeros.
    Fallocate,
    /// Bytes from file to file.
    Copy,
    /// Permissions.
    Chmod,
    /// Owners.
    Chown,
    /// An attribute set.
    Setxattr,
    /// An attribute removed.
    Removexattr,
    /// Everything made durable.
    Sync,
}

/// Verbs with how often each comes; the simplest first, for shrinking.
const VERBS: &[(u32, Verb)] = &[
    (2, Verb::Stat),
    (3, Verb::Lookup),
    (2, Verb::List),
    (10, Verb::Create),
    (6, Verb::Mkdir),
    (2, Verb::Symlink),
    (1, Verb::Fifo),
    (2, Verb::Tmpfile),
    (5, Verb::Link),
    (6, Verb::Unlink),
    (3, Verb::Rmdir),
    (12, Verb::Rename),
    (6, Verb::Open),
    (5, Verb::Close),
    (14, Verb::Write),
    (6, Verb::Read),
    (5, Verb::Truncate),
    (3, Verb::Ftruncate),
    (6, Verb::Fallocate),
    (4, Verb::Copy),
    (5, Verb::Chmod),
    (4, Verb::Chown),
    (4, Verb::Setxattr),
    (2, Verb::Removexattr),
    (1, Verb::Sync),
];

/// One thing to try. Every number is taken modulo what there is at the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// What.
    pub(super) verb: Verb,
    /// By whom.
    pub(super) who: u8,
    /// Which inodes, directories or handles.
    pub(super) places: [u8; 2],
    /// Which names.
    pub(super) names: [u8; 2],
    /// Which flags, modes or owners.
    pub(super) choice: u8,
    /// Which offsets and lengths.
    pub(super) sizes: [u16; 3],
}

fn step() -> impl Strategy<Value = Step> {
    let verb = VERBS.iter().map(|&(weight, verb)| (weight, Just(verb).boxed())).collect();
    let verb = proptest::strategy::Union::new_weighted(verb);
    let who = prop_oneof![3 => Just(0_u8), 2 => Just(1), 1 => Just(2)];
    let small = any::<[u8; 2]>;
    (verb, who, small(), small(), any::<u8>(), any::<[u16; 3]>()).prop_map(
        |(verb, who, places, names, choice, sizes)| Step {
            verb,
            who,
            places,
            names,
            choice,
            sizes,
        },
    )
}

/// Sequences of up to `most` steps.
pub(super) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..=most.max(1))
}

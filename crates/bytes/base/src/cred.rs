//! Who asks.

/// Credentials of the process a request speaks for.
///
/// On a link they are believed only as far as the socket peer allows: root's attachment may speak
/// for anyone, another user's attachment speaks for that user only.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Cred {
    /// Effective (file system) user.
    pub uid: u32,
    /// Effective (file system) group.
    pub gid: u32,
    /// Process, for lock ownership reports. Zero if unknown.
    pub pid: u32,
    /// Supplementary groups, at most [`crate::limits::GROUPS_MAX`].
    pub groups: Vec<u32>,
}

impl Cred {
    /// Root, with no supplementary groups.
    #[must_use]
    pub fn root() -> Cred {
        Cred::default()
    }

    /// A user with one group.
    #[must_use]
    pub fn user(uid: u32, gid: u32) -> Cred {
        Cred { uid, gid, ..Cred::default() }
    }

    /// Whether these credentials belong to `group`.
    #[must_use]
    pub fn in_group(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    /// Whether these are root's, who passes permission checks.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
}

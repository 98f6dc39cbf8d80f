//! POSIX access control lists (POSIX 1003.1e draft 17, `acl(5)`), in the binary form of Linux's
//! `system.posix_acl_*` attributes.
//!
//! ```text
//! 0 version u32 = 2   then for each entry:  0 tag u16   2 permissions u16   4 id u32   8
//! ```
//! An ACL and the mode say the same where they meet: owner, others, and mask (or, without a mask,
//! group) are the mode's three groups of bits. A list that says no more than a mode is not stored.

use outboard_base::{Cred, Errno, Result};

/// Attribute that holds an inode's access ACL.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// Attribute that holds a directory's default ACL.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER: usize = 4;
const ENTRY: usize = 8;

/// Whom an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
enum Tag {
    Owner = 1,
    User = 2,
    OwnerGroup = 4,
    Group = 8,
    Mask = 16,
    Others = 32,
}

impl Tag {
    fn from_raw(raw: u16) -> Result<Tag> {
        Ok(match raw {
            1 => Tag::Owner,
            2 => Tag::User,
            4 => Tag::OwnerGroup,
            8 => Tag::Group,
            16 => Tag::Mask,
            32 => Tag::Others,
            _ => return Err(Errno::EINVAL),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    permissions: u32,
    id: u32,
}

/// A valid access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// From an attribute's value; `None` for a list without entries, which means "no ACL".
    /// `EOPNOTSUPP` for another version, `EINVAL` for anything malformed.
    pub(crate) fn decode(value: &[u8]) -> Result<Option<Acl>> {
        let (version, entries) = value.split_first_chunk::<HEADER>().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        let (entries, rest) = entries.as_chunks::<ENTRY>();
        if !rest.is_empty() {
            return Err(Errno::EINVAL);
        }
        let entries = entries.iter().map(|&[t0, t1, p0, p1, i0, i1, i2, i3]| {
            let tag = Tag::from_raw(u16::from_le_bytes([t0, t1]))?;
            let named = matches!(tag, Tag::User | Tag::Group);
            let id = if named { u32::from_le_bytes([i0, i1, i2, i3]) } else { u32::MAX };
            Ok(Entry { tag, permissions: u16::from_le_bytes([p0, p1]).into(), id })
        });
        let acl = Acl(entries.collect::<Result<_>>()?);
        if acl.0.is_empty() {
            return Ok(None);
        }
        acl.check()?;
        Ok(Some(acl))
    }

    /// In the order owner, users, owner's group, groups, mask, others; what must be there once is
    /// there once; a mask if anybody is named.
    fn check(&self) -> Result<()> {
        let tags = || self.0.iter().map(|entry| entry.tag);
        let count = |wanted: Tag| tags().filter(|&tag| tag == wanted).count();
        let named = count(Tag::User) + count(Tag::Group) > 0;
        let once = [Tag::Owner, Tag::OwnerGroup, Tag::Others].iter().all(|&tag| count(tag) == 1);
        let masks = count(Tag::Mask);
        let bits = self.0.iter().all(|entry| entry.permissions <= 7);
        let ids = self
            .0
            .iter()
            .all(|entry| !matches!(entry.tag, Tag::User | Tag::Group) || entry.id != u32::MAX);
        let right = tags().is_sorted() && once && masks <= 1 && (masks == 1 || !named);
        if right && bits && ids { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// The attribute's value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend((entry.tag as u16).to_le_bytes());
            value.extend(u16::try_from(entry.permissions).unwrap_or(7).to_le_bytes());
            value.extend(entry.id.to_le_bytes());
        }
        value
    }

    /// Whether it says no more than a mode does.
    pub(crate) fn is_mode(&self) -> bool {
        self.0.iter().all(|e| matches!(e.tag, Tag::Owner | Tag::OwnerGroup | Tag::Others))
    }

    fn find(&self, tag: Tag) -> Option<u32> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.permissions)
    }

    /// The nine permission bits a mode shows for it.
    pub(crate) fn mode(&self) -> u32 {
        let bits = |tag| self.find(tag).unwrap_or(0);
        let group = self.find(Tag::Mask).unwrap_or_else(|| bits(Tag::OwnerGroup));
        bits(Tag::Owner) << 6 | group << 3 | bits(Tag::Others)
    }

    /// Combines the entries that meet the mode's bits with them.
    fn meet(&mut self, mode: u32, combine: impl Fn(u32, u32) -> u32) {
        let has_mask = self.find(Tag::Mask).is_some();
        for entry in &mut self.0 {
            let bits = match entry.tag {
                Tag::Owner => mode >> 6,
                Tag::OwnerGroup if !has_mask => mode >> 3,
                Tag::Mask => mode >> 3,
                Tag::Others => mode,
                Tag::OwnerGroup | Tag::User | Tag::Group => continue,
            };
            entry.permissions = combine(entry.permissions, bits & 7);
        }
    }

    /// After `chmod(2)`.
    pub(crate) fn set_mode(&mut self, mode: u32) {
        self.meet(mode, |_, bits| bits);
    }

    /// A default ACL becomes the access ACL of something made with `mode`.
    pub(crate) fn inherited(&self, mode: u32) -> Acl {
        let mut acl = self.clone();
        acl.meet(mode, |own, bits| own & bits);
        acl
    }

    /// Whether `cred`, who is neither root nor the owner, may do all of `mask`.
    pub(crate) fn permits(&self, cred: &Cred, owner_group: u32, mask: u32) -> bool {
        let allows = |permissions: u32| permissions & mask == mask;
        let masked = |permissions: u32| allows(permissions & self.find(Tag::Mask).unwrap_or(7));
        if let Some(user) = self.0.iter().find(|e| e.tag == Tag::User && e.id == cred.uid) {
            return masked(user.permissions);
        }
        let mut in_some_group = false;
        for entry in &self.0 {
            let member = match entry.tag {
                Tag::OwnerGroup => cred.in_group(owner_group),
                Tag::Group => cred.in_group(entry.id),
                _ => false,
            };
            in_some_group |= member;
            if member && masked(entry.permissions) {
                return true;
            }
        }
        !in_some_group && self.find(Tag::Others).is_some_and(allows)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn malformed_lists_are_refused() {
        assert_eq!(Acl::decode(&[2, 0, 0]), Err(Errno::EINVAL));
        assert_eq!(Acl::decode(&[3, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
        assert_eq!(Acl::decode(&[2, 0, 0, 0, 1]), Err(Errno::EINVAL));
        assert_eq!(Acl::decode(&acl(&[])), Ok(None));
        let cases: &[&[(u16, u16, u32)]] = &[
            &[(1, 7, NONE), (4, 5, NONE)],
            &[(1, 7, NONE), (4, 5, NONE), (32, 8, NONE)],
            &[(4, 7, NONE), (1, 5, NONE), (32, 5, NONE)],
            &[(1, 7, NONE), (2, 5, 10), (4, 5, NONE), (32, 5, NONE)],
            &[(1, 7, NONE), (2, 5, NONE), (4, 5, NONE), (16, 5, NONE), (32, 5, NONE)],
            &[(1, 7, NONE), (4, 5, NONE), (3, 5, NONE), (32, 5, NONE)],
        ];
        for case in cases {
            assert_eq!(Acl::decode(&acl(case)), Err(Errno::EINVAL), "{case:?}");
        }
    }

    #[test]
    fn the_mask_limits_everyone_but_owner_and_others() {
        let value = acl(&[
            (1, 7, NONE),
            (2, 6, 10),
            (4, 4, NONE),
            (8, 7, 20),
            (16, 4, NONE),
            (32, 1, NONE),
        ]);
        let mut list = Acl::decode(&value).unwrap().unwrap();
        assert_eq!(list.encode(), value);
        assert_eq!((list.mode(), list.is_mode()), (0o741, false));
        let may = |list: &Acl, uid, gid, mask| list.permits(&Cred::user(uid, gid), 5, mask);
        assert!(may(&list, 10, 9, 4) && !may(&list, 10, 9, 2));
        assert!(may(&list, 11, 20, 4) && !may(&list, 11, 20, 1));
        assert!(may(&list, 11, 5, 4) && may(&list, 11, 9, 1) && !may(&list, 11, 9, 4));
        list.set_mode(0o070);
        assert!(may(&list, 10, 9, 6) && !may(&list, 11, 9, 1));
        assert_eq!(list.mode(), 0o070);
        assert_eq!(list.inherited(0o7_650).mode(), 0o050);
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_come_back(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(Some(list)) = Acl::decode(&bytes) {
                prop_assert_eq!(Acl::decode(&list.encode()), Ok(Some(list)));
            }
        }
    }
}

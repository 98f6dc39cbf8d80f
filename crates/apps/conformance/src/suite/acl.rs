//! POSIX access control lists: `acl(5)`, in the binary form of `system.posix_acl_*`.

use outboard_base::{Cred, Errno, Ino, Result};
use outboard_wire::file::{Request, open_flags};

use super::{alice, bob, member, needs_users, tick};
use crate::actor::Actor;
use crate::case::{Case, Outcome, case, check, needs, refused, refused_by, same};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
/// Of entries that name nobody.
const NOBODY: u32 = u32::MAX;

/// An entry: whom it is about, what they may, who they are.
type Entry = (u16, u16, u32);

const fn owner(may: u16) -> Entry {
    (1, may, NOBODY)
}
const fn user(uid: u32, may: u16) -> Entry {
    (2, may, uid)
}
const fn owner_group(may: u16) -> Entry {
    (4, may, NOBODY)
}
const fn group(gid: u32, may: u16) -> Entry {
    (8, may, gid)
}
const fn mask(may: u16) -> Entry {
    (16, may, NOBODY)
}
const fn others(may: u16) -> Entry {
    (32, may, NOBODY)
}

fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, may, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(may.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn needs_acl(t: &Actor<'_>) -> Outcome {
    needs(t.features().acl, "the file system keeps no ACLs")?;
    needs_users(t)
}

/// A file with `acl`, of root, mode 0600 but for it.
fn listed(t: &mut Actor<'_>, acl: &[Entry]) -> Result<Ino> {
    let ino = t.touch(t.dir, "f")?;
    t.chmod(ino, 0o600)?;
    t.setxattr(ino, ACCESS, &encode(acl), 0)?;
    Ok(ino)
}

/// What `who` may do of 4 read, 2 write.
fn may(t: &mut Actor<'_>, who: &Cred, ino: Ino) -> u16 {
    t.by(who, |t| [4_u16, 2].into_iter().filter(|&bit| t.access(ino, bit.into()).is_ok()).sum())
}

pub(super) const CASES: &[Case] = &[
    case("acl/none at first", |t| {
        needs_acl(t)?;
        let ino = t.touch(t.dir, "f")?;
        refused("get", t.getxattr(ino, ACCESS), Errno::ENODATA)?;
        refused("default", t.getxattr(t.dir, DEFAULT), Errno::ENODATA)
    }),
    case("acl/what was set is told", |t| {
        needs_acl(t)?;
        let acl = [owner(6), user(1001, 4), owner_group(4), group(50, 6), mask(6), others(0)];
        let ino = listed(t, &acl)?;
        same("acl", t.getxattr(ino, ACCESS)?, encode(&acl))?;
        check(t.listxattr(ino)?.contains(&ACCESS.to_owned()), "and listed")
    }),
    case("acl/the mask is the mode's group bits", |t| {
        needs_acl(t)?;
        let ino = listed(t, &[owner(7), user(1001, 6), owner_group(4), mask(5), others(1)])?;
        same("mode", t.stat(ino)?.mode & 0o7777, 0o751)?;
        t.chmod(ino, 0o640)?;
        let wanted = [owner(6), user(1001, 6), owner_group(4), mask(4), others(0)];
        same("acl after chmod", t.getxattr(ino, ACCESS)?, encode(&wanted))
    }),
    case("acl/one that says no more than a mode becomes the mode", |t| {
        needs_acl(t)?;
        let ino = listed(t, &[owner(6), owner_group(4), others(4)])?;
        same("mode", t.stat(ino)?.mode & 0o7777, 0o644)?;
        refused("not kept", t.getxattr(ino, ACCESS), Errno::ENODATA)
    }),
    case("acl/a user entry grants, within the mask", |t| {
        needs_acl(t)?;
        let ino = listed(t, &[owner(6), user(1001, 6), owner_group(0), mask(4), others(0)])?;
        same("alice", may(t, &alice(), ino), 4)?;
        same("bob", may(t, &bob(), ino), 0)?;
        t.by(&alice(), |t| {
            let fh = t.open(ino, 0)?;
            t.close(ino, fh)?;
            refused("write", t.open(ino, open_flags::RDWR), Errno::EACCES)
        })
    }),
    case("acl/a user entry denies, though others may", |t| {
        needs_acl(t)?;
        let ino = listed(t, &[owner(6), user(1001, 0), owner_group(6), mask(6), others(6)])?;
        same("alice", may(t, &alice(), ino), 0)?;
        same("bob", may(t, &bob(), ino), 6)
    }),
    case("acl/the owner's entry is beyond the mask", |t| {
        needs_acl(t)?;
        let ino = listed(t, &[owner(6), user(1001, 6), owner_group(6), mask(0), others(0)])?;
        t.chown(ino, Some(1002), None)?;
        same("owner", may(t, &bob(), ino), 6)?;
        same("alice", may(t, &alice(), ino), 0)
    }),
    case("acl/group entries grant to members", |t| {
        needs_acl(t)?;
        let ino = listed(t, &[owner(6), owner_group(0), group(50, 6), mask(6), others(4)])?;
        same("member", may(t, &member(50), ino), 6)?;
        same("others", may(t, &bob(), ino), 4)
    }),
    case("acl/a group that denies keeps members from what others may", |t| {
        needs_acl(t)?;
        let ino = listed(t, &[owner(6), owner_group(6), group(50, 0), mask(6), others(6)])?;
        same("member", may(t, &member(50), ino), 0)?;
        same("others", may(t, &bob(), ino), 6)
    }),
    case("acl/one of several groups that grants is enough", |t| {
        needs_acl(t)?;
        let acl = [owner(6), owner_group(0), group(50, 4), group(51, 6), mask(6), others(0)];
        let ino = listed(t, &acl)?;
        let both = Cred { groups: vec![50, 51], ..Cred::user(1003, 1003) };
        same("both", may(t, &both, ino), 6)?;
        same("one", may(t, &member(50), ino), 4)
    }),
    case("acl/root passes", |t| {
        needs_acl(t)?;
        let ino = listed(t, &[owner(0), user(1001, 0), owner_group(0), mask(0), others(0)])?;
        same("root", may(t, &Cred::root(), ino), 6)
    }),
    case("acl/a list that makes no sense is EINVAL", |t| {
        needs_acl(t)?;
        let ino = t.touch(t.dir, "f")?;
        let wanted = [Errno::EINVAL, Errno::EOPNOTSUPP];
        for (what, bytes) in [
            ("no mask", encode(&[owner(6), user(1001, 6), owner_group(4), others(4)])),
            ("no owner", encode(&[owner_group(4), others(4)])),
            ("two owners", encode(&[owner(6), owner(6), owner_group(4), others(4)])),
            ("permissions", encode(&[owner(64), owner_group(4), others(4)])),
            ("tag", encode(&[owner(6), owner_group(4), others(4), (64, 4, NOBODY)])),
            ("cut short", encode(&[owner(6), owner_group(4), others(4)])[..25].to_vec()),
            ("version", [3_u32.to_le_bytes().as_slice(), &[0; 24]].concat()),
        ] {
            refused_by(what, t.setxattr(ino, ACCESS, &bytes, 0), &wanted)?;
        }
        same("mode", t.stat(ino)?.mode & 0o7777, 0o644)
    }),
    case("acl/only the owner sets one", |t| {
        needs_acl(t)?;
        let ino = t.touch(t.dir, "f")?;
        t.chmod(ino, 0o666)?;
        let acl = encode(&[owner(6), owner_group(4), others(4)]);
        t.by(&alice(), |t| refused("set", t.setxattr(ino, ACCESS, &acl, 0), Errno::EPERM))?;
        t.by(&alice(), |t| refused("remove", t.removexattr(ino, ACCESS), Errno::EPERM))
    }),
    case("acl/removing it leaves the mode", |t| {
        needs_acl(t)?;
        let ino = listed(t, &[owner(6), user(1001, 6), owner_group(4), mask(6), others(0)])?;
        t.removexattr(ino, ACCESS)?;
        refused("gone", t.getxattr(ino, ACCESS), Errno::ENODATA)?;
        same("alice", may(t, &alice(), ino), 0)
    }),
    case("acl/a default belongs to directories", |t| {
        needs_acl(t)?;
        let ino = t.touch(t.dir, "f")?;
        let acl = encode(&[owner(6), owner_group(4), others(4)]);
        let wanted = [Errno::EACCES, Errno::EOPNOTSUPP, Errno::EINVAL];
        refused_by("file", t.setxattr(ino, DEFAULT, &acl, 0), &wanted)
    }),
    case("acl/a default is inherited by files", |t| {
        needs_acl(t)?;
        let sub = t.mkdir(t.dir, "d", 0o777)?;
        let acl = [owner(7), user(1001, 6), owner_group(5), mask(7), others(1)];
        t.setxattr(sub, DEFAULT, &encode(&acl), 0)?;
        t.umask = 0o077;
        let (made, fh) = t.create_with(sub, "f", 0o664, open_flags::RDWR)?;
        t.close(made.ino, fh)?;
        // The umask is not used where a default list is; the mode asked for cuts the list.
        same("mode", made.mode & 0o7777, 0o660)?;
        let wanted = [owner(6), user(1001, 6), owner_group(5), mask(6), others(0)];
        same("acl", t.getxattr(made.ino, ACCESS)?, encode(&wanted))?;
        refused("no default", t.getxattr(made.ino, DEFAULT), Errno::ENODATA)
    }),
    case("acl/a default is inherited by directories, as both", |t| {
        needs_acl(t)?;
        let sub = t.mkdir(t.dir, "d", 0o777)?;
        let acl = encode(&[owner(7), user(1001, 6), owner_group(5), mask(7), others(1)]);
        t.setxattr(sub, DEFAULT, &acl, 0)?;
        let inner = t.mkdir(sub, "inner", 0o770)?;
        same("default", t.getxattr(inner, DEFAULT)?, acl)?;
        let wanted = [owner(7), user(1001, 6), owner_group(5), mask(7), others(0)];
        same("acl", t.getxattr(inner, ACCESS)?, encode(&wanted))?;
        let link = t.symlink(sub, "l", "x")?;
        same("links inherit nothing", link.mode & 0o777, 0o777)
    }),
    case("acl/a default without names only shapes the mode", |t| {
        needs_acl(t)?;
        let sub = t.mkdir(t.dir, "d", 0o777)?;
        t.setxattr(sub, DEFAULT, &encode(&[owner(6), owner_group(4), others(0)]), 0)?;
        t.umask = 0o777;
        let made = t.mknod(sub, "f", outboard_wire::file::FileKind::Regular, 0o666, 0)?;
        same("mode", made.mode & 0o7777, 0o640)?;
        refused("no list", t.getxattr(made.ino, ACCESS), Errno::ENODATA)
    }),
    case("acl/lets a user search and write a directory", |t| {
        needs_acl(t)?;
        let sub = t.mkdir(t.dir, "d", 0o700)?;
        let acl = [owner(7), user(1001, 7), owner_group(0), mask(7), others(0)];
        t.setxattr(sub, ACCESS, &encode(&acl), 0)?;
        t.by(&alice(), |t| t.touch(sub, "f"))?;
        t.by(&alice(), |t| t.lookup(sub, "f"))?;
        t.by(&bob(), |t| refused("bob", t.lookup(sub, "f"), Errno::EACCES))
    }),
    case("acl/setting one moves the change time", |t| {
        needs_acl(t)?;
        let ino = t.touch(t.dir, "f")?;
        let before = t.stat(ino)?.ctime;
        tick();
        let acl = [owner(6), user(1001, 6), owner_group(4), mask(6), others(0)];
        t.setxattr(ino, ACCESS, &encode(&acl), 0)?;
        check(t.stat(ino)?.ctime > before, "ctime")
    }),
    case("acl/one set by a stranger to the group clears set-group-id", |t| {
        needs_acl(t)?;
        let ino = t.touch(t.dir, "f")?;
        t.chown(ino, Some(1001), Some(50))?;
        t.chmod(ino, 0o2775)?;
        let acl = encode(&[owner(7), owner_group(5), others(5)]);
        let request = Request::Setxattr {
            ino,
            name: ACCESS.as_bytes(),
            flags: outboard_wire::file::xattr_flags::KILL_SGID,
        };
        t.by(&alice(), |t| t.ask(&request, &acl))?;
        same("mode", t.stat(ino)?.mode & 0o7777, 0o755)
    }),
];

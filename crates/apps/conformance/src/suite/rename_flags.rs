//! `renameat2(2)`: `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, and combinations that make no sense.

use outboard_base::Errno;
use outboard_wire::file::rename_flags::{EXCHANGE, NOREPLACE};

use super::tick;
use crate::case::{Case, case, check, refused, same};

pub(super) const CASES: &[Case] = &[
    case("noreplace/to a new name", |t| {
        let ino = t.touch(t.dir, "a")?;
        t.rename_with((t.dir, "a"), (t.dir, "b"), NOREPLACE)?;
        same("new", t.lookup(t.dir, "b")?.ino, ino)?;
        check(!t.has(t.dir, "a")?, "the old name is gone")
    }),
    case("noreplace/over anything is EEXIST", |t| {
        let a = t.touch(t.dir, "a")?;
        t.touch(t.dir, "file")?;
        t.mkdir(t.dir, "dir", 0o755)?;
        t.symlink(t.dir, "link", "x")?;
        t.link(a, t.dir, "same")?;
        for name in ["file", "dir", "link", "same", "a"] {
            let renamed = t.rename_with((t.dir, "a"), (t.dir, name), NOREPLACE);
            refused(name, renamed, Errno::EEXIST)?;
        }
        Ok(())
    }),
    case("noreplace/a missing name is ENOENT", |t| {
        let renamed = t.rename_with((t.dir, "a"), (t.dir, "b"), NOREPLACE);
        refused("rename", renamed, Errno::ENOENT)
    }),
    case("exchange/two files", |t| {
        let a = t.file(t.dir, "a", b"a")?;
        let b = t.file(t.dir, "b", b"b")?;
        same("orphan", t.rename_with((t.dir, "a"), (t.dir, "b"), EXCHANGE)?, None)?;
        same("a", t.lookup(t.dir, "a")?.ino, b)?;
        same("b", t.lookup(t.dir, "b")?.ino, a)?;
        same("links", (t.stat(a)?.nlink, t.stat(b)?.nlink), (1, 1))
    }),
    case("exchange/a file and a full directory in different places", |t| {
        let x = t.mkdir(t.dir, "x", 0o755)?;
        let y = t.mkdir(t.dir, "y", 0o755)?;
        let file = t.touch(x, "one")?;
        let sub = t.mkdir(y, "two", 0o755)?;
        t.touch(sub, "inside")?;
        t.rename_with((x, "one"), (y, "two"), EXCHANGE)?;
        same("in x", t.lookup(x, "one")?.ino, sub)?;
        same("in y", t.lookup(y, "two")?.ino, file)?;
        same("inside", t.names(sub)?, vec!["inside".to_owned()])?;
        same("links", (t.stat(x)?.nlink, t.stat(y)?.nlink), (3, 2))?;
        refused("a loop", t.rename((t.dir, "x"), (sub, "x")), Errno::EINVAL)
    }),
    case("exchange/two directories keep the links of their parents", |t| {
        let x = t.mkdir(t.dir, "x", 0o755)?;
        let y = t.mkdir(t.dir, "y", 0o755)?;
        let (a, b) = (t.mkdir(x, "a", 0o755)?, t.mkdir(y, "b", 0o755)?);
        t.rename_with((x, "a"), (y, "b"), EXCHANGE)?;
        same("swapped", (t.lookup(x, "a")?.ino, t.lookup(y, "b")?.ino), (b, a))?;
        same("links", (t.stat(x)?.nlink, t.stat(y)?.nlink), (3, 3))?;
        refused("a loop", t.rename((t.dir, "y"), (a, "y")), Errno::EINVAL)
    }),
    case("exchange/with a missing name is ENOENT", |t| {
        t.touch(t.dir, "a")?;
        let renamed = t.rename_with((t.dir, "a"), (t.dir, "b"), EXCHANGE);
        refused("missing target", renamed, Errno::ENOENT)?;
        let renamed = t.rename_with((t.dir, "b"), (t.dir, "a"), EXCHANGE);
        refused("missing source", renamed, Errno::ENOENT)?;
        check(t.has(t.dir, "a")?, "nothing moved")
    }),
    case("exchange/a directory with its own inside is EINVAL", |t| {
        let a = t.mkdir(t.dir, "a", 0o755)?;
        let b = t.mkdir(a, "b", 0o755)?;
        t.touch(b, "f")?;
        let renamed = t.rename_with((t.dir, "a"), (a, "b"), EXCHANGE);
        refused("child", renamed, Errno::EINVAL)?;
        let renamed = t.rename_with((a, "b"), (t.dir, "a"), EXCHANGE);
        refused("parent", renamed, Errno::EINVAL)?;
        let renamed = t.rename_with((b, "f"), (t.dir, "a"), EXCHANGE);
        refused("a file with its ancestor", renamed, Errno::EINVAL)
    }),
    case("exchange/two names of one file does nothing", |t| {
        let f = t.touch(t.dir, "a")?;
        t.link(f, t.dir, "b")?;
        t.rename_with((t.dir, "a"), (t.dir, "b"), EXCHANGE)?;
        same("both", (t.lookup(t.dir, "a")?.ino, t.lookup(t.dir, "b")?.ino), (f, f))?;
        same("links", t.stat(f)?.nlink, 2)
    }),
    case("exchange/moves the times of both directories", |t| {
        let (x, y) = (t.mkdir(t.dir, "x", 0o755)?, t.mkdir(t.dir, "y", 0o755)?);
        t.touch(x, "a")?;
        t.touch(y, "b")?;
        let old = (t.age(x)?.mtime, t.age(y)?.mtime);
        tick();
        t.rename_with((x, "a"), (y, "b"), EXCHANGE)?;
        check(t.stat(x)?.mtime > old.0 && t.stat(y)?.mtime > old.1, "mtime of both")
    }),
    case("rename flags/NOREPLACE with EXCHANGE is EINVAL", |t| {
        t.touch(t.dir, "a")?;
        t.touch(t.dir, "b")?;
        let renamed = t.rename_with((t.dir, "a"), (t.dir, "b"), NOREPLACE | EXCHANGE);
        refused("both", renamed, Errno::EINVAL)
    }),
    case("rename flags/unknown ones are EINVAL", |t| {
        t.touch(t.dir, "a")?;
        let renamed = t.rename_with((t.dir, "a"), (t.dir, "c"), 1 << 20);
        refused("unknown", renamed, Errno::EINVAL)?;
        check(t.has(t.dir, "a")?, "nothing moved")
    }),
];

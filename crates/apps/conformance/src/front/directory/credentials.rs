//! Being someone else for the length of a system call, in this thread only.

use outboard_base::{Cred, Result};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::errno;

/// The thread's credentials, changed until this is dropped.
///
/// The saved user id stays root's, which is the way back; the effective one takes root's
/// capabilities with it, as the file system checks them.
pub(super) struct Borrowed {
    changed: bool,
}

impl Borrowed {
    /// Becomes `cred`. Root's plain credentials change nothing.
    pub(super) fn take(cred: &Cred) -> Result<Borrowed> {
        if *cred == Cred::root() {
            return Ok(Borrowed { changed: false });
        }
        let borrowed = Borrowed { changed: true };
        let groups: Vec<_> = cred.groups.iter().map(|&gid| gid_of(gid)).collect();
        set_thread_groups(&groups).map_err(errno)?;
        let (gid, uid) = (gid_of(cred.gid), rustix::process::Uid::from_raw(cred.uid));
        set_thread_res_gid(gid, gid, gid_of(0)).map_err(errno)?;
        set_thread_res_uid(uid, uid, rustix::process::Uid::ROOT).map_err(errno)?;
        Ok(borrowed)
    }
}

fn gid_of(gid: u32) -> rustix::process::Gid {
    rustix::process::Gid::from_raw(gid)
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if !self.changed {
            return;
        }
        let root = rustix::process::Uid::ROOT;
        let back = set_thread_res_uid(root, root, root)
            .and_then(|()| set_thread_res_gid(gid_of(0), gid_of(0), gid_of(0)))
            .and_then(|()| set_thread_groups(&[]));
        if let Err(error) = back {
            // Going on as the wrong user would test the wrong thing.
            eprintln!("cannot return to root's credentials: {error}");
            std::process::abort();
        }
    }
}

//! Which sessions are served, written down for the next start.
//!
//! ```text
//! outboard sessions 5 <boot id>
//! <session, hex> <uid> <pid> <it brought a cache> <its company> <it outlives its process>
//! ```
//!
//! The company is as in Hello ([`Company`]), what is beside it 1 or 0. Written anew (to a file
//! beside it, then renamed) when a session comes or goes; not synced, because after a power loss
//! there is nobody to wait for, which the boot id tells.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use outboard_base::SessionId;
use outboard_wire::attach::Company;

/// Whose session it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) uid: u32,
    pub(super) pid: u32,
    /// Its cache may hold what the volume does not.
    pub(super) cached: bool,
    /// Beside whom it may be attached.
    pub(super) company: Company,
    /// Another process may take it up.
    pub(super) outlives: bool,
}

/// The sessions of a volume.
pub(super) struct Sessions {
    path: PathBuf,
    boot: String,
    all: BTreeMap<SessionId, Holder>,
}

/// Version of the file.
pub const FORMAT: u32 = 5;

/// Most sessions read back: more than can be attached.
const SESSIONS_MAX: usize = 4096;

impl Sessions {
    /// Reads what an earlier life left; sessions of another boot or of processes that are gone are
    /// not waited for.
    pub(super) fn open(path: &Path) -> io::Result<Sessions> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let mut sessions =
            Sessions { path: path.to_owned(), boot: boot.trim().to_owned(), all: BTreeMap::new() };
        match std::fs::read_to_string(path) {
            Ok(text) => sessions.all = sessions.parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
            Err(error) => return Err(error),
        }
        sessions.all.retain(|_, holder| holder.outlives || lives(holder.pid));
        sessions.write()?;
        Ok(sessions)
    }

    fn head(&self) -> String {
        format!("outboard sessions {FORMAT} {}", self.boot)
    }

    /// Lines that are not sessions are dropped: at worst somebody is not waited for.
    fn parse(&self, text: &str) -> BTreeMap<SessionId, Holder> {
        let mut lines = text.lines();
        if lines.next() != Some(self.head().as_str()) {
            return BTreeMap::new();
        }
        let session = |line: &str| {
            let mut words = line.split(' ');
            let id = u64::from_str_radix(words.next()?, 16).ok()?;
            let mut number = || words.next()?.parse().ok();
            let (uid, pid) = (number()?, number()?);
            let (cached, company, outlives) = (number()? != 0, number()?, number()? != 0);
            let company = Company::from_raw(company)?;
            Some((SessionId(id), Holder { uid, pid, cached, company, outlives }))
        };
        lines.take(SESSIONS_MAX).filter_map(session).collect()
    }

    /// Whom to wait for.
    pub(super) fn expected(&self) -> Vec<SessionId> {
        self.all.keys().copied().collect()
    }

    /// Those among them that brought a cache.
    pub(super) fn with_caches(&self) -> Vec<SessionId> {
        let cached = self.all.iter().filter(|(_, holder)| holder.cached);
        cached.map(|(session, _)| *session).collect()
    }

    /// Who stands in the way of `session`, which may be beside `company`.
    pub(super) fn in_the_way(&self, session: SessionId, company: Company) -> Option<Holder> {
        let others = self.all.iter().filter(|(other, _)| **other != session);
        others.map(|(_, holder)| *holder).find(|holder| !company.goes_with(holder.company))
    }

    /// Who collects writes and lets others be there.
    pub(super) fn collector(&self) -> Option<SessionId> {
        let all = self.all.iter();
        let mut those = all.filter(|(_, holder)| holder.company == Company::TheModest);
        those.next().map(|(session, _)| *session)
    }

    /// Who a session belongs to.
    pub(super) fn holder(&self, session: SessionId) -> Option<Holder> {
        self.all.get(&session).copied()
    }

    /// A session is served from now on.
    pub(super) fn insert(&mut self, session: SessionId, holder: Holder) {
        if self.all.insert(session, holder) != Some(holder) {
            self.write_or_warn();
        }
    }

    /// A session is over.
    pub(super) fn remove(&mut self, session: SessionId) {
        if self.all.remove(&session).is_some() {
            self.write_or_warn();
        }
    }

    fn write_or_warn(&self) {
        if let Err(error) = self.write() {
            tracing::warn!(
                %error, path = %self.path.display(),
                "sessions could not be written down: if the DPU side is killed now, open files \
                 without a name may be lost"
            );
        }
    }

    fn write(&self) -> io::Result<()> {
        let mut text = self.head();
        text.push('\n');
        for (session, Holder { uid, pid, cached, company, outlives }) in &self.all {
            let [cached, outlives] = [cached, outlives].map(|is| u32::from(*is));
            let company = company.raw();
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{:x} {uid} {pid} {cached} {company} {outlives}", session.0);
        }
        let beside = self.path.with_extension("new");
        std::fs::write(&beside, text)?;
        std::fs::rename(&beside, &self.path)
    }
}

/// Whether a process is there.
fn lives(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| {
        !matches!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn living_sessions_are_found_again_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sessions");
        let (pid, company) = (std::process::id(), Company::Nobody);
        let me = Holder { uid: 7, pid, cached: true, company, outlives: false };
        // Above the largest pid Linux gives out.
        let (pid, company) = (1 << 23, Company::Anybody);
        let dead = Holder { pid, cached: false, company, ..me };
        let outlived = Holder { outlives: true, ..dead };
        let mut sessions = Sessions::open(&path).unwrap();
        sessions.insert(SessionId(1), me);
        sessions.insert(SessionId(u64::MAX), me);
        sessions.insert(SessionId(3), dead);
        sessions.insert(SessionId(4), outlived);
        sessions.remove(SessionId(1));
        let again = Sessions::open(&path).unwrap();
        assert_eq!(again.expected(), [SessionId(4), SessionId(u64::MAX)]);
        assert_eq!(again.holder(SessionId(u64::MAX)), Some(me));
        assert_eq!(again.holder(SessionId(4)), Some(outlived));
        assert_eq!(again.holder(SessionId(3)), None);
        assert_eq!(again.with_caches(), [SessionId(u64::MAX)]);
    }

    #[test]
    fn nobody_stands_beside_who_is_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut sessions = Sessions::open(&dir.path().join("sessions")).unwrap();
        let (pid, outlives) = (std::process::id(), false);
        let holder = |company| Holder { uid: 7, pid, cached: false, company, outlives };
        let (any, modest) = (Company::Anybody, Company::Modest);
        assert_eq!(sessions.in_the_way(SessionId(1), Company::Nobody), None);
        sessions.insert(SessionId(1), holder(any));
        assert_eq!(sessions.in_the_way(SessionId(2), any), None);
        assert_eq!(sessions.in_the_way(SessionId(2), Company::Nobody), Some(holder(any)));
        assert_eq!(sessions.in_the_way(SessionId(2), Company::TheModest), Some(holder(any)));
        sessions.insert(SessionId(1), holder(Company::TheModest));
        assert_eq!(sessions.in_the_way(SessionId(2), modest), None);
        assert_eq!(sessions.in_the_way(SessionId(2), any), Some(holder(Company::TheModest)));
        assert_eq!(sessions.collector(), Some(SessionId(1)));
        sessions.insert(SessionId(1), holder(Company::Nobody));
        assert_eq!(sessions.in_the_way(SessionId(1), Company::Nobody), None, "oneself");
        // Another life of the DPU side knows it, too.
        let again = Sessions::open(&dir.path().join("sessions")).unwrap();
        assert_eq!(again.in_the_way(SessionId(2), modest), Some(holder(Company::Nobody)));
    }

    #[test]
    fn another_boot_or_a_damaged_file_means_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sessions");
        let line = format!("1 7 {} 0 0 0\n", std::process::id());
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        for text in [
            format!("outboard sessions 5 another-boot\n{line}"),
            format!("outboard sessions 4 {}\n{line}", boot.trim()),
            format!("nonsense\n{line}"),
            String::new(),
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(Sessions::open(&path).unwrap().expected().is_empty());
        }
        let mut sessions = Sessions::open(&path).unwrap();
        let (pid, company) = (std::process::id(), Company::Anybody);
        let me = Holder { uid: 7, pid, cached: true, company, outlives: false };
        sessions.insert(SessionId(1), me);
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("zz 1 1\n5\n\n");
        std::fs::write(&path, text).unwrap();
        assert_eq!(Sessions::open(&path).unwrap().expected(), [SessionId(1)]);
        std::fs::write(&path, [0xff; 100]).unwrap();
        assert!(Sessions::open(&path).unwrap().expected().is_empty());
    }
}

//! A new program under a mount: who holds the mount is asked to become it, rehearses it, and
//! executes it in its own place (`docs/internals/outlive.md`).

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use outboard_attach::link::{Listener, Peer, Received};
use outboard_os::clock;
use outboard_wire::attach::{self, Message};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::handover::End;
use crate::mount_process::Kept;
use crate::service;
use crate::settings::Settings;

/// Raised when what [`crate::handover`] hands over changes.
const HANDOVER: u32 = 2;
/// Who connects asks at once.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// Time for a program to say whether it could take over.
const REHEARSAL_LIMIT: Duration = Duration::from_secs(20);

/// Names of the sockets at which holders of mounts are asked: this, and their process.
pub(crate) const DOOR: &str = "mount-";

/// Where the process `pid` is asked, if it holds a mount of the volume in `data`.
pub(crate) fn door(data: &Path, pid: u32) -> PathBuf {
    data.join(format!("{DOOR}{pid}.sock"))
}

/// The forms of all that one program keeps of a mount for the next: only who knows them takes over.
pub(crate) fn form() -> String {
    let [notes, records] = [outboard_dpc::host::NOTES_FORMAT, outboard_link::records::MAGIC];
    let sessions = outboard_attach::dpu::SESSIONS_FORMAT;
    format!("{HANDOVER}.{}.{notes:x}.{records:x}.{sessions}", attach::VERSION)
}

/// What a rehearsal prints.
pub(crate) fn rehearsed() -> String {
    json!({ "form": form(), "version": crate::cli::version() }).to_string()
}

/// How a holder is started again: as `run` or as `mount`.
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) command: &'static str,
    pub(crate) settings: Settings,
    pub(crate) place: PathBuf,
}

impl Invocation {
    fn of(&self, program: &Path, step: &str) -> Result<Command, Failure> {
        let mut command = Command::new(program);
        service::not_for(&mut command)
            .arg(self.command)
            .args(self.settings.to_flags()?)
            .arg(format!("--take-over={step}"))
            .arg(&self.place);
        Ok(command)
    }
}

/// Where this process is asked. Without it the mount cannot be upgraded, and all else works.
pub(crate) fn listen(data: &Path) -> Option<Listener> {
    let at = door(data, std::process::id());
    // An earlier process of this number was killed, or was this one.
    let listener = Listener::bind(&at, 0o600, None);
    listener
        .inspect_err(|error| tracing::warn!(%error, "this mount cannot be upgraded as it runs"))
        .ok()
}

/// Somebody wants this process to become `program`.
#[derive(Debug)]
pub(crate) struct Asked {
    peer: Peer,
    id: u32,
    program: PathBuf,
}

impl Asked {
    /// Who is at the door, if this process can become what they say; others are told why not.
    pub(crate) fn hear(listener: &Listener, line: &Invocation) -> Option<Asked> {
        let peer = listener.accept().ok().flatten()?;
        let (id, text) = match peer.receive_by(clock::now().after(ASK_LIMIT)) {
            Ok(Received::Message(Message::Control { id, text }, _)) => (id, text),
            _ => return None,
        };
        match check(&peer, &text, line) {
            Ok(program) => Some(Asked { peer, id, program }),
            Err(failure) => {
                tracing::warn!(%failure, "not upgraded");
                answer(&peer, id, &json!({ "error": failure.to_string() }));
                None
            }
        }
    }

    /// Becomes that program, with the mount; returns if that fails, and says so.
    pub(crate) fn become_it(self, kept: &Kept, line: &Invocation) {
        tracing::info!(program = %self.program.display(), "becoming the new program");
        let failure = match self.execute(kept, line) {
            Ok(never) => match never {},
            Err(failure) => failure,
        };
        tracing::error!(%failure, "not upgraded: the mount goes on as it was");
        answer(&self.peer, self.id, &json!({ "error": failure.to_string() }));
    }

    /// This process is told to end.
    pub(crate) fn refuse(self) {
        answer(&self.peer, self.id, &json!({ "error": "the mount is being ended" }));
    }

    fn execute(&self, kept: &Kept, line: &Invocation) -> Result<std::convert::Infallible, Failure> {
        let cannot =
            |error| Failure::internal(format!("cannot become {}: {error}", self.program.display()));
        let (ours, theirs) = End::pair().map_err(cannot)?;
        kept.give(&ours).and_then(|()| ours.give_asker(self.id, self.peer.fd())).map_err(cannot)?;
        let error = line.of(&self.program, "now")?.stdin(Stdio::from(theirs)).exec();
        Err(cannot(error))
    }

    /// The one a predecessor heard.
    pub(crate) fn taken(id: u32, fd: OwnedFd) -> Asked {
        Asked { peer: Peer::from(fd), id, program: PathBuf::new() }
    }

    /// Tells them that it is done.
    pub(crate) fn done(self) {
        let version = crate::cli::version();
        tracing::info!(version, "took the mount over from the program before");
        answer(&self.peer, self.id, &json!({ "ok": true, "version": version }));
    }
}

/// Who asked may be gone.
fn answer(peer: &Peer, id: u32, answer: &Value) {
    if let Err(error) = peer.send(&Message::ControlReply { id, text: answer.to_string() }, &[]) {
        tracing::debug!(%error, "nobody waits for the outcome of an upgrade");
    }
}

/// The program they ask for, if they may and it can.
fn check(peer: &Peer, text: &str, line: &Invocation) -> Result<PathBuf, Failure> {
    let own = rustix::process::geteuid().as_raw();
    match peer.cred() {
        Ok(cred) if cred.uid == own || cred.uid == 0 => {}
        _ => return Err(Failure::usage("only the user whose mount it is, or root, upgrades it")),
    }
    let asked: Value = serde_json::from_str(text).unwrap_or_default();
    let program = asked.get("program").and_then(Value::as_str).map(PathBuf::from);
    let Some(program) = program.filter(|program| program.is_absolute()) else {
        return Err(Failure::usage("what is asked for names no program"));
    };
    rehearse(&program, line)?;
    Ok(program)
}

/// Whether `program` takes these settings, and reads what is kept.
fn rehearse(program: &Path, line: &Invocation) -> Result<(), Failure> {
    let name = program.display();
    let cannot = |what: String| Failure::usage(format!("{name} cannot take over: {what}"));
    let output =
        output_of(line.of(program, "rehearse")?).map_err(|error| cannot(error.to_string()))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let last = words.lines().rev().find(|line| !line.is_empty()).unwrap_or("it says nothing");
        return Err(cannot(last.to_owned()));
    }
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    match said.get("form").and_then(Value::as_str) {
        Some(theirs) if theirs == form() => Ok(()),
        Some(theirs) => Err(cannot(format!(
            "it keeps mounts in the form {theirs}, this one is kept as {}; end the mount, and run \
             it again",
            form()
        ))),
        None => Err(cannot("it does not know how".to_owned())),
    }
}

/// What it prints; an error if it does not end.
fn output_of(mut command: Command) -> std::io::Result<Output> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let end = Instant::now() + REHEARSAL_LIMIT;
    while child.try_wait()?.is_none() {
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Invocation {
        Invocation { command: "run", settings: Settings::default(), place: "/mnt".into() }
    }

    fn refusal(script: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&program, mode).unwrap();
        rehearse(&program, &line()).map_or_else(|failure| failure.to_string(), |()| String::new())
    }

    #[test]
    fn only_a_program_that_reads_what_is_kept_takes_over() {
        assert_eq!(refusal(&format!("echo '{}'", rehearsed())), "");
        assert!(refusal(r#"echo '{"form":"0.1"}'"#).contains("in the form 0.1"));
        assert!(refusal("echo hello").contains("does not know how"));
        assert!(refusal("echo no such flag >&2; exit 2").contains("no such flag"));
        assert!(refusal("exit 1").contains("says nothing"));
        assert!(refusal("kill -9 $$").contains("says nothing"));
    }

    #[test]
    fn what_is_no_program_is_refused() {
        for name in ["/", "/nowhere/at/all"] {
            assert!(rehearse(Path::new(name), &line()).is_err());
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = Peer::from(OwnedFd::from(ours));
        for text in ["", "{}", "[1]", r#"{"program":3}"#, r#"{"program":"here"}"#] {
            let refused = check(&peer, text, &line()).unwrap_err().to_string();
            assert!(refused.contains("names no program"), "{text}: {refused}");
        }
        drop(theirs);
    }
}

//! `outboard upgrade`: the mounts of a volume go on as this program.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use outboard_attach::link::control;
use serde_json::{Value, json};

use crate::exit::{Code, Failure};
use crate::say::say;
use crate::settings::Settings;
use crate::successor::DOOR;

/// The DPU side may have much to write before it ends, and much to read when it starts.
const LIMIT: Duration = Duration::from_secs(240);

/// Asks every process that holds a mount of the volume.
pub(crate) fn upgrade(settings: &Settings) -> Result<ExitCode, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::internal(format!("cannot find this program: {error}")))?;
    let question = json!({ "program": program }).to_string();
    let data = settings.data();
    let doors = doors(&data).map_err(|error| {
        Failure::new(Code::Data, format!("cannot look into {}: {error}", data.display()))
    })?;
    let (mut asked, mut refused) = (0, None);
    for (pid, door) in doors {
        match ask(&door, &question) {
            Ok(version) => {
                say!("process {pid} and what it started go on as {version}");
                asked += 1;
            }
            // Left by one that was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let _gone = std::fs::remove_file(&door);
            }
            Err(error) => {
                let why = match error.kind() {
                    io::ErrorKind::ConnectionReset => {
                        "it ended, or became another program for somebody else; try again".into()
                    }
                    _ => error.to_string(),
                };
                let failure = Failure::internal(format!("process {pid}: {why}"));
                if let Some(before) = refused.replace(failure) {
                    eprintln!("outboard: {before}");
                }
            }
        }
    }
    match refused {
        Some(failure) => Err(failure),
        None if asked == 0 => Err(Failure::new(
            Code::NotRunning,
            format!(
                "nobody holds a mount of {} that outlives its process: end it and run it again, as \
                 this program",
                data.display()
            ),
        )),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Those who hold mounts, and where they are asked.
fn doors(data: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let pid = |name: &str| name.strip_prefix(DOOR)?.strip_suffix(".sock")?.parse().ok();
    let found = std::fs::read_dir(data)?.map(|entry| {
        let entry = entry?;
        Ok(entry.file_name().to_str().and_then(pid).map(|pid| (pid, entry.path())))
    });
    found.filter_map(Result::transpose).collect()
}

/// The version that now holds the mount.
fn ask(door: &Path, question: &str) -> io::Result<String> {
    let answer = control(door, question, LIMIT)?;
    let answer: Value = serde_json::from_str(&answer)?;
    let text = |key: &str| answer.get(key).and_then(Value::as_str).map(str::to_owned);
    match (text("version"), text("error")) {
        (Some(version), None) => Ok(version),
        (_, Some(error)) => Err(io::Error::other(error)),
        (None, None) => Err(io::Error::other("it answers nothing of use")),
    }
}

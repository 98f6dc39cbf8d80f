//! `outboard fsck`: asks the DPU side when one runs, else opens the volume itself.

mod served;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use outboard_kvfs::check::Options;
use outboard_os::executor::block_on;
use outboard_store::{KvVolume, Purpose};
use serde_json::{Value, json};

use super::served::ServedDir;
use super::status::Dpu;
use crate::exit::{Code, Failure};
use crate::log;
use crate::say::say;
use crate::settings::Settings;

/// A check reads every pair, and offline every block.
const CHECK_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// What is to be done about faults of a volume.
const REMEDY: &str = "`outboard fsck --repair` mends the harmless kinds";

/// Checks the volume and says what was found.
pub(crate) fn fsck(settings: &Settings, repair: bool, as_json: bool) -> Result<ExitCode, Failure> {
    log::start_quietly(settings)?;
    if let Some(served) = ServedDir::at(&settings.data())? {
        if repair {
            let text = "--repair is for volumes; a server mends what can be mended at its start";
            return Err(Failure::usage(text));
        }
        return Ok(say(&served::check(&served)?, as_json));
    }
    let dpu = Dpu::of(settings);
    let report = if dpu.status().is_ok() {
        if repair {
            return Err(Failure::usage(
                "--repair needs the volume to itself; end `outboard run` first",
            ));
        }
        dpu.ask(&json!({"command": "check", "contents": false}), CHECK_LIMIT)?
    } else {
        offline(settings, repair)?
    };
    Ok(say(&report, as_json))
}

/// Prints a report; the exit code that goes with it.
fn say(report: &Value, as_json: bool) -> ExitCode {
    let clean = report.get("clean").and_then(Value::as_bool).unwrap_or(false);
    if as_json {
        say!("{report:#}");
    } else {
        print(report, clean);
    }
    if clean { ExitCode::SUCCESS } else { ExitCode::from(Code::Damaged as u8) }
}

/// The check of a data directory that was just made, of a volume or a server.
pub(super) fn fresh(data: &Path) -> Result<Value, Failure> {
    if let Some(served) = ServedDir::at(data)? {
        return served::check(&served);
    }
    offline(&Settings { data: Some(data.to_owned()), ..Settings::default() }, false)
}

fn offline(settings: &Settings, repair: bool) -> Result<Value, Failure> {
    let open = outboard_store::open(&settings.store_options()?, Purpose::Use)?;
    let checked = Arc::clone(&open.volume);
    let options = Options { contents: true, repair };
    let report = block_on(async move {
        // What a crash left to be finished is finished first, as the next start would.
        // A damaged inode may keep that from ending; the check then says which.
        if let Err(errno) = finish(&checked).await {
            tracing::warn!(%errno, "what a crash left half done could not be finished");
        }
        checked.check(options).await
    });
    let report = report
        .map_err(|errno| Failure::internal(format!("the check could not be finished: {errno}")))?;
    Ok(outboard_attach::dpu::report_json(&report.to_volume()))
}

async fn finish(volume: &KvVolume) -> outboard_base::Result<()> {
    volume.end_grace().await?;
    while volume.tidy().await? {}
    Ok(())
}

fn print(report: &Value, clean: bool) {
    for finding in report.get("findings").and_then(Value::as_array).into_iter().flatten() {
        say!("{}", finding.as_str().unwrap_or_default());
    }
    let counts = report.get("counts").and_then(Value::as_object);
    let counts: Vec<String> = counts
        .into_iter()
        .flatten()
        .map(|(name, count)| format!("{} {count}", name.replace('_', " ")))
        .collect();
    say!("checked: {}", counts.join(", "));
    if clean {
        say!("clean");
    } else {
        let total = report.get("total").and_then(Value::as_u64).unwrap_or(0);
        let remedy = report.get("remedy").and_then(Value::as_str).unwrap_or(REMEDY);
        say!("{total} faults found; {remedy}");
    }
}

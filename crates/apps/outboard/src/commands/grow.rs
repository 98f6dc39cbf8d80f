//! `outboard grow`: from now on a kv volume may take more space, whether it runs or not.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use super::served::ServedDir;
use super::status::{Dpu, human};
use crate::exit::{Code, Failure};
use crate::say::say;
use crate::settings::Settings;

/// Time for an answer.
const LIMIT: Duration = Duration::from_secs(60);

/// Lets the volume have the size that the settings name.
pub(crate) fn grow(settings: &Settings) -> Result<ExitCode, Failure> {
    let asked = settings.size()?.ok_or_else(|| Failure::usage("say how large: --size 40G"))?;
    let data = settings.data();
    if ServedDir::at(&data)?.is_some() {
        let text =
            format!("{} is served: give the larger --size to `outboard serve`", data.display());
        return Err(Failure::new(Code::Data, text));
    }
    let dpu = Dpu::of(settings);
    let (before, now) = if dpu.status().is_ok() {
        let answer = dpu.ask(&json!({ "command": "grow", "bytes": asked }), LIMIT)?;
        let of = |key: &str| answer.get(key).and_then(Value::as_u64).unwrap_or(asked);
        (of("before"), of("bytes"))
    } else {
        (outboard_store::grow(&data, asked)?, asked)
    };
    say!("the volume in {} has {}, {} before", data.display(), human(now), human(before));
    Ok(ExitCode::SUCCESS)
}

//! The check of what a server keeps: while it runs, the metadata of its files, by its DPU side; at
//! rest that, and what the application made of its files.

use std::path::Path;

use outboard_attach::dpu::report_json;
use outboard_os::executor::block_on;
use outboard_servers::device::{Device, Files, PlainDevice};
use outboard_servers::{kv, pages};
use outboard_volume::Report;
use serde_json::{Value, json};

use super::CHECK_LIMIT;
use crate::commands::served::ServedDir;
use crate::commands::status::Dpu;
use crate::exit::{Code, Failure};

const REMEDY: &str = "restore the data from a copy";

/// Checks a served directory.
pub(super) fn check(served: &ServedDir) -> Result<Value, Failure> {
    let dpu = Dpu::of_served(served);
    if dpu.status().is_ok() {
        let mut report = dpu.ask(&json!({"command": "check"}), CHECK_LIMIT)?;
        report["remedy"] = json!(REMEDY);
        return Ok(report);
    }
    let data = served.data().display();
    let Some(_held) = served.hold()? else {
        let text = format!("a host serves {data} and no DPU side answers; end it, or try again");
        return Err(Failure::new(Code::Data, text));
    };
    let mut report = report_json(&at_rest(served)?);
    report["remedy"] = json!(REMEDY);
    Ok(report)
}

/// Nobody serves it.
fn at_rest(served: &ServedDir) -> Result<Report, Failure> {
    let failed = |error: std::io::Error| {
        Failure::internal(format!("the check could not be finished: {error}"))
    };
    let (name, data) = (served.application.as_str(), served.data());
    let mut report = Report::default();
    if served.is_plain {
        let log = data.join("log");
        let device = log.exists().then(|| PlainDevice::open(&log)).transpose().map_err(failed)?;
        report.add(name, of_application(name, device.as_ref(), data).map_err(failed)?);
        return Ok(report);
    }
    if !served.device().exists() {
        return Ok(report);
    }
    match Files::open(&served.device()) {
        Ok(files) => {
            report.add("files", files.check().map_err(failed)?);
            let device = files.file(name, "log");
            report.add(name, of_application(name, device.as_ref(), data).map_err(failed)?);
        }
        Err(error) => report.find(format!("files: {error}")),
    }
    Ok(report)
}

/// What the application made of its file.
fn of_application<D: Device>(
    name: &str,
    device: Option<&D>,
    data: &Path,
) -> std::io::Result<Report> {
    match name {
        "kv" => block_on(kv::check(device, data)),
        "pages" => block_on(pages::check(device)),
        // A server of the user's own.
        _ => Ok(Report::default()),
    }
}

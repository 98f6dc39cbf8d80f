//! `outboard dpu`: the DPU side, in this process.

pub(crate) mod shared;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use outboard_attach::dpu::{Dpu, DpuOptions, Wish};
use outboard_kvfs::Kvfs;
use outboard_os::runtime::Poller;
use outboard_store::backup::Instant;
use outboard_store::{KvVolume, OpenVolume, Purpose, StoreKv, StoreMedium};
use serde_json::{Value, json};

use crate::cluster::part::Stop;
use crate::exit::Failure;
use crate::log;
use crate::program;
use crate::settings::Settings;

/// Opens the volume and serves it until told to end.
pub(crate) fn dpu(settings: &Settings) -> Result<ExitCode, Failure> {
    log::start(settings)?;
    program::is_behind_pages();
    if let Some(client) = settings.client_here() {
        return Err(Failure::usage(format!(
            "--client {client} is in the mount's process: `outboard run` mounts with it"
        )));
    }
    if let Some(location) = settings.shared()? {
        return shared::dpu(settings, &location);
    }
    let OpenVolume { volume, runtime, wakeup, directory, hold } =
        outboard_store::open(&settings.store_options()?, Purpose::UseOrMake)?;
    let options = dpu_options(settings, directory.path())?;
    let stop = Arc::new(Stop::default());
    stop.on_signal()?;
    stop.tells(&wakeup);
    let (opened, claim) = (Arc::clone(&volume), hold.figures());
    let mut dpu = Dpu::new(Arc::clone(&volume), runtime, wakeup, options)
        .map_err(|error| cannot(&format!("listen at {}", settings.socket().display()), &error))?;
    dpu.set_store_figures(move || {
        let objects = opened.objects();
        let mut all = outboard_store::figures(objects.kv().inner(), objects.medium());
        if let Some(all) = all.as_object_mut() {
            all.insert("claim".into(), claim());
        }
        all
    });
    let (grown, data) = (Arc::clone(&volume), directory.path().to_owned());
    dpu.set_command("grow", move |request| {
        let bytes = request.get("bytes").and_then(Value::as_u64).unwrap_or(0);
        let (before, now) =
            outboard_store::grow_open(&grown, &data, bytes).map_err(|error| error.to_string())?;
        Ok(json!({ "ok": true, "before": before, "bytes": now }))
    });
    set_backup(&mut dpu, &volume, directory.path());
    if let Some(check) = hold.check() {
        dpu.before_answers(check);
    }
    tracing::info!(socket = %settings.socket().display(), pid = std::process::id(), "serving");
    let wish = || if stop.is_asked() { Wish::End } else { Wish::GoOn };
    dpu.run(&wish).map_err(|error| cannot("go on", &error))?;
    drop((dpu, volume));
    hold.release();
    tracing::info!("ended in order");
    Ok(ExitCode::SUCCESS)
}

/// Has `outboard backup` sent what the volume is at that moment.
fn set_backup(dpu: &mut Dpu<Kvfs<StoreKv, StoreMedium>, Poller>, volume: &KvVolume, data: &Path) {
    let (copied, data) = (Arc::clone(volume), data.to_owned());
    dpu.set_stream("backup", move |_| {
        let instant = Instant::hold(&copied, &data).map_err(|error| error.to_string())?;
        let answer = json!({ "ok": true, "bytes": instant.bytes() });
        Ok((answer, Box::new(move |to| instant.write(to).map(drop))))
    });
}

/// How it runs.
fn dpu_options(settings: &Settings, directory: &Path) -> Result<DpuOptions, Failure> {
    let mut options = DpuOptions::new(settings.socket(), directory.join("sessions"));
    options.policies = settings.policies()?;
    options.caches = settings.client_here().is_none();
    (options.socket_mode, options.socket_group) =
        (settings.socket_mode()?, settings.socket_group()?);
    options.settings = settings.of_the_dpu_side()?;
    options.pace.spin = settings.spin()?.unwrap_or(Duration::MAX);
    Ok(options)
}

fn cannot(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::internal(format!("the DPU side cannot {what}: {error}"))
}

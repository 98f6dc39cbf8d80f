//! `outboard migrate`: copies a volume between stores.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use outboard_store::migrate::Phase;

use crate::bar::Bar;
use crate::exit::Failure;
use crate::log;
use crate::say::say;
use crate::settings::Settings;

/// Copies the volume of `from` to `to`, which may be the half of an earlier try.
pub(crate) fn migrate(
    from: PathBuf,
    to: PathBuf,
    store: Option<String>,
) -> Result<ExitCode, Failure> {
    let from = Settings { data: Some(from), ..Settings::default() };
    let to = Settings { data: Some(to), store, ..Settings::default() };
    log::start_quietly(&from)?;
    let (from, to) = (from.store_options()?, to.store_options()?);
    let start = Instant::now();
    let mut bar = Bar::new();
    let copied = outboard_store::migrate::migrate(&from, &to, |at| {
        bar.show(what(at.phase), at.done, at.all);
    });
    bar.end();
    let copied = copied?;
    say!(
        "copied and compared: {} pairs, {} MiB of file data, {:.1} s",
        copied.pairs,
        copied.medium >> 20,
        start.elapsed().as_secs_f64()
    );
    say!("the copy is in {}; the original is as it was", to.data.display());
    Ok(ExitCode::SUCCESS)
}

/// What a phase is called.
fn what(phase: Phase) -> &'static str {
    match phase {
        Phase::Pairs => "1/4 copying pairs",
        Phase::Medium => "2/4 copying file data",
        Phase::ComparePairs => "3/4 comparing pairs",
        Phase::CompareMedium => "4/4 comparing file data",
    }
}

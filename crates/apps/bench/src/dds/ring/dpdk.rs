//! DPDK's ring in turn with the others: a small C program, compiled when it is asked for against
//! Debian's headers, is the process of all its measurements and sleeps between them.
//!
//! It is a ring of pointers within one process: nothing goes through a DMA port, a message has no
//! length, and nobody checks what the other side wrote. So it is a bound rather than an equal.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Sample;
use crate::rival::{self, Rival};

const SOURCE: &str = include_str!("dpdk.c");

pub(super) struct Dpdk(Rival);

/// What the compiler is told; `None` without `pkg-config` or the package.
fn flags() -> Option<Vec<String>> {
    let asked = Command::new("pkg-config").args(["--cflags", "libdpdk"]).output().ok()?;
    let text = String::from_utf8_lossy(&asked.stdout).into_owned();
    let libraries = ["-lrte_ring", "-lrte_eal", "-lpthread"];
    let all = text.split_whitespace().chain(libraries).map(str::to_owned);
    asked.status.success().then(|| all.collect())
}

impl Dpdk {
    /// Compiles and starts it in `dir`; `None` if DPDK's headers or a compiler are not installed.
    ///
    /// # Errors
    /// The program does not start.
    pub(super) fn start(dir: &Path) -> io::Result<Option<Dpdk>> {
        let Some(flags) = flags() else { return Ok(None) };
        let Some(program) = rival::compile(dir, "dpdk", SOURCE, &flags)? else { return Ok(None) };
        Ok(Some(Dpdk(Rival::start(&program)?)))
    }

    /// One measurement, in one of its modes.
    pub(super) fn measure(
        &mut self,
        mode: &str,
        producers: usize,
        batch: usize,
        time: Duration,
    ) -> io::Result<Sample> {
        let line = self.0.ask(&format!("{mode} {producers} {batch} {}", time.as_secs_f64()))?;
        parse(&line).ok_or_else(|| io::Error::other(format!("DPDK's ring says: {line}")))
    }
}

fn parse(line: &str) -> Option<Sample> {
    let mut words = line.split_whitespace().map(|word| word.parse::<f64>().ok());
    let mut next = || words.next().flatten();
    let (messages, seconds, host, dpu) = (next()?, next()?, next()?, next()?);
    (messages > 0.0).then(|| Sample {
        per_second: messages / seconds,
        host_ns: host / messages,
        dpu_ns: dpu / messages,
        dmas: 0.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_line_is_read() {
        let sample = parse("1000 0.5 4000 2000\n").unwrap();
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(sample.per_second, 2000.0), "{sample:?}");
        assert!(close(sample.host_ns, 4.0) && close(sample.dpu_ns, 2.0), "{sample:?}");
        assert!(parse("").is_none() && parse("0 1 2 3").is_none() && parse("1 2 x").is_none());
    }

    /// Where its headers are installed it moves messages in every mode; elsewhere it says so.
    #[test]
    fn it_takes_part_where_it_is_installed() {
        let dir = tempfile::tempdir().unwrap();
        let Some(mut dpdk) = Dpdk::start(dir.path()).unwrap() else {
            assert!(flags().is_none(), "headers are there, but nothing compiles");
            return;
        };
        for mode in ["mp", "rts", "hts"] {
            let sample = dpdk.measure(mode, 2, 32, Duration::from_millis(10)).unwrap();
            assert!(sample.per_second > 0.0 && sample.dpu_ns > 0.0, "{mode}: {sample:?}");
        }
    }
}

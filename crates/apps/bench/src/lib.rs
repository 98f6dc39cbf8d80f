//! Benchmarks, and the rivals they run against.
//!
//! Figures are measured, with the rivals in turn in the same run, and reported as medians and
//! ratios with the CPU time of every process apart. Nothing here is a test: no figure fails a
//! build.

#![forbid(unsafe_code)]
#![expect(
    clippy::cast_precision_loss,
    reason = "counts become rates; a double holds 2^53 of them exactly"
)]

pub mod all;
pub mod cpu;
pub mod dds;
pub mod dfs;
pub mod erasure;
pub mod fs;
pub mod link;
pub mod netdfs;
pub mod passthrough;
pub mod plot;
pub mod programs;
mod rival;
pub mod scale;
pub mod stats;
pub mod verdict;
pub mod workload;

/// The computer this runs on, for the notes of figures: processor, cores, kernel.
#[must_use]
pub fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{}, {cores} cores, Linux {}", model.unwrap_or("unknown processor"), kernel.trim())
}

/// The date (UTC), for the notes of figures.
#[must_use]
pub fn today() -> String {
    now().split(' ').next().unwrap_or_default().to_owned()
}

/// Date and minute (UTC), for the notes of figures.
#[must_use]
pub fn now() -> String {
    let seconds = outboard_os::clock::wall().sec;
    let (year, month, day) = civil(seconds.div_euclid(86_400));
    let minutes = seconds.rem_euclid(86_400) / 60;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minutes / 60, minutes % 60)
}

/// Year, month and day of a number of days since 1970-01-01: eras of 400 years, whose years begin
/// in March so that a leap day is the last.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    #[test]
    fn days_have_dates() {
        let cases = [(0, (1970, 1, 1)), (11_016, (2000, 2, 29)), (20_778, (2026, 11, 21))];
        for (days, date) in cases {
            assert_eq!(super::civil(days), date);
        }
        assert_eq!(super::civil(-1), (1969, 12, 31));
    }
}

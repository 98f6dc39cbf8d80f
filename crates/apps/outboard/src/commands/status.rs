//! `outboard status`, and the questions other commands ask of a DPU side.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use outboard_attach::link::{self, control};
use serde_json::{Value, json};

mod served;
mod store;

use super::served::ServedDir;
use crate::exit::{Code, Failure};
use crate::say::say;
use crate::settings::Settings;
use crate::watch::{Happened, Watch};

/// A DPU side, asked over its socket.
#[derive(Debug)]
pub(crate) struct Dpu {
    socket: PathBuf,
    /// What starts one.
    starts: &'static str,
}

/// What a DPU side said of itself.
#[derive(Debug)]
pub(crate) struct Status {
    /// Its process.
    pub(crate) dpu_pid: u32,
    /// The processes attached to it.
    pub(crate) attachments: Vec<u32>,
    /// Everything it said.
    pub(crate) all: Value,
}

/// Time for an answer that needs no work.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

impl Dpu {
    pub(crate) fn of(settings: &Settings) -> Dpu {
        Dpu { socket: settings.socket(), starts: "outboard run" }
    }

    pub(crate) fn of_served(served: &ServedDir) -> Dpu {
        Dpu { socket: served.socket(), starts: "outboard serve" }
    }

    /// Who makes copies of what is served: its host, where there is no DPU side.
    pub(crate) fn copying(served: &ServedDir) -> Dpu {
        Dpu { socket: served.copies(), starts: "outboard serve" }
    }

    fn absent(&self, error: &std::io::Error) -> Failure {
        let at = self.socket.display();
        let text =
            format!("no DPU side answers at {at} ({error}); start one with `{}`", self.starts);
        Failure::new(Code::NotRunning, text)
    }

    /// Asks for what is answered with a stream.
    pub(crate) fn begin(&self, question: &Value) -> Result<link::Control, Failure> {
        link::Control::ask(&self.socket, &question.to_string()).map_err(|error| self.absent(&error))
    }

    /// Asks; the answer's `error`, if it has one, is the failure.
    pub(crate) fn ask(&self, question: &Value, limit: Duration) -> Result<Value, Failure> {
        let answer = control(&self.socket, &question.to_string(), limit);
        let answer = answer.map_err(|error| self.absent(&error))?;
        let answer: Value = serde_json::from_str(&answer)
            .map_err(|error| Failure::internal(format!("the DPU side's answer: {error}")))?;
        match answer.get("error").and_then(Value::as_str) {
            Some(error) => Err(Failure::internal(format!("the DPU side says: {error}"))),
            None => Ok(answer),
        }
    }

    pub(crate) fn status(&self) -> Result<Status, Failure> {
        self.status_within(ANSWER_LIMIT)
    }

    pub(crate) fn status_within(&self, limit: Duration) -> Result<Status, Failure> {
        let all = self.ask(&json!({"command": "status"}), limit)?;
        let pid = |value: &Value| {
            value.get("pid").and_then(Value::as_u64).and_then(|pid| u32::try_from(pid).ok())
        };
        let dpu_pid = pid(&all).ok_or_else(|| Failure::internal("the DPU side names no pid"))?;
        let attachments = all.get("attachments").and_then(Value::as_array);
        let attachments = attachments.into_iter().flatten().filter_map(pid).collect();
        Ok(Status { dpu_pid, attachments, all })
    }

    pub(crate) fn shut_down(&self) -> Result<(), Failure> {
        self.ask(&json!({"command": "shutdown"}), Duration::from_secs(60)).map(drop)
    }
}

/// Prints what both sides are doing; again and again if `watch` says how often, seconds.
pub(crate) fn status(
    settings: &Settings,
    as_json: bool,
    watch: Option<u64>,
) -> Result<ExitCode, Failure> {
    let Some(seconds) = watch else {
        say!("{}", look(settings, as_json, true)?.trim_end());
        return Ok(ExitCode::SUCCESS);
    };
    let mut signals = Watch::new()?;
    let is_terminal = std::io::stdout().is_terminal() && !as_json;
    loop {
        // Nobody there is no reason to end: somebody may come.
        let text = look(settings, as_json, false).unwrap_or_else(|error| match as_json {
            true => json!({ "error": error.to_string() }).to_string(),
            false => error.to_string(),
        });
        let home = if is_terminal { "\x1b[H\x1b[J" } else { "" };
        let end = if is_terminal || as_json { "\n" } else { "\n\n" };
        let mut out = std::io::stdout();
        let shown = format!("{home}{}{end}", text.trim_end());
        // Who read this is gone: nobody is left to show it to.
        if out.write_all(shown.as_bytes()).and_then(|()| out.flush()).is_err()
            || signals.next(Duration::from_secs(seconds))? == Happened::Told
        {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// What both sides of what lies in the data directory say of themselves.
fn look(settings: &Settings, as_json: bool, pretty: bool) -> Result<String, Failure> {
    if let Some(served) = ServedDir::at(&settings.data())? {
        let all = of_served(&served)?;
        return if as_json { as_text(&all, pretty) } else { Ok(served::describe(&all)) };
    }
    let status = Dpu::of(settings).status()?;
    if !as_json {
        return Ok(describe(&status));
    }
    let host = status.attachments.first().map(|pid| json!({ "pid": pid }));
    as_text(&json!({ "host": host, "dpu": status.all }), pretty)
}

fn as_text(all: &Value, pretty: bool) -> Result<String, Failure> {
    let text = if pretty { serde_json::to_string_pretty(all) } else { serde_json::to_string(all) };
    text.map_err(|error| Failure::internal(error.to_string()))
}

/// What the sides of a server say of themselves. One may live without the other.
fn of_served(served: &ServedDir) -> Result<Value, Failure> {
    let host = served.host();
    let dpu = match Dpu::of_served(served).status() {
        Ok(status) => Some(status.all),
        Err(error) if host.is_none() => return Err(error),
        Err(_) => None,
    };
    let about = json!({ "application": served.application, "plain": served.is_plain });
    Ok(json!({ "served": about, "host": host, "dpu": dpu }))
}

/// A number at a path of keys; zero where there is none.
fn number(value: &Value, keys: &[&str]) -> u64 {
    keys.iter().try_fold(value, |value, key| value.get(key)).and_then(Value::as_u64).unwrap_or(0)
}

fn describe(status: &Status) -> String {
    use std::fmt::Write;
    let all = &status.all;
    let hosts: Vec<String> = status.attachments.iter().map(u32::to_string).collect();
    // A client in the mount's process is no DPU side.
    let client = all.pointer("/settings/client").and_then(Value::as_str).unwrap_or("dpu");
    let side = match client {
        "dpu" => "DPU side     ".to_owned(),
        client => format!("client       {client}, in the mount's process, "),
    };
    let mut text = format!(
        "{side}pid {}\nhost sides   {}\n",
        status.dpu_pid,
        if hosts.is_empty() { "none".to_owned() } else { format!("pid {}", hosts.join(", ")) },
    );
    // Writing to a String cannot fail.
    let _ = writeln!(text, "volume       {} of {} used", human(used(all)), human(total(all)));
    let open = number(all, &["volume", "open"]);
    let of_one = number(all, &["volume", "open_by_one_user"]);
    let refused = number(all, &["volume", "open_refused"]);
    let _ = writeln!(text, "open         {open}, {of_one} of one user, {refused} refused");
    let [taken, most, refused] =
        ["open", "most", "refused"].map(|key| number(all, &["connections", key]));
    let _ = writeln!(text, "connections  {taken} of {most}, {refused} refused");
    describe_packing(all, &mut text);
    text.push_str(&store::describe(all.get("store").unwrap_or(&Value::Null), human));
    if let Some(operations) = all.get("ops").and_then(Value::as_object) {
        let _ = writeln!(
            text,
            "\n{:<16} {:>12} {:>10} {:>10}",
            "operation", "count", "errors", "p50 us"
        );
        for (name, figures) in operations {
            let count = number(figures, &["count"]);
            let errors = number(figures, &["errors"]);
            let p50 = figures.get("p50_us").and_then(Value::as_f64).unwrap_or(0.0);
            let _ = writeln!(text, "{name:<16} {count:>12} {errors:>10} {p50:>10.1}");
        }
    }
    describe_ledger(all, &mut text);
    describe_caches(all, &mut text);
    text
}

/// What a DPU side's DMA came to.
fn describe_ledger(all: &Value, text: &mut String) {
    use std::fmt::Write;
    if let Some(ledger) = all.pointer("/ledger/dma").and_then(Value::as_object) {
        let _ = writeln!(text, "\n{:<16} {:>12} {:>14}", "DMA", "operations", "bytes");
        for (kind, figures) in ledger {
            let operations = number(figures, &["operations"]);
            let bytes = number(figures, &["bytes"]);
            let _ = writeln!(text, "{kind:<16} {operations:>12} {bytes:>14}");
        }
    }
}

/// What blocks of file written so far take on the medium, if they are packed.
fn describe_packing(all: &Value, text: &mut String) {
    use std::fmt::Write;
    let method = all.pointer("/settings/compress").and_then(Value::as_str).unwrap_or("none");
    let [plain, taken, sent] =
        ["written", "written_taken", "written_sent"].map(|key| number(all, &["volume", key]));
    if method != "none" {
        let _ = writeln!(
            text,
            "compress     {method}: {} written since the start take {} of the space, {} of the \
             bytes to the medium",
            human(plain),
            percent(taken, plain),
            percent(sent, plain),
        );
    }
}

/// The hybrid caches, two lines each; nothing where there are none.
fn describe_caches(all: &Value, text: &mut String) {
    use std::fmt::Write;
    const COLUMNS: [(&str, &str); 6] = [
        ("pages", "pages"),
        ("free", "free"),
        ("dirty", "dirty"),
        ("filled", "filled"),
        ("written_back", "written back"),
        ("replaced", "replaced"),
    ];
    let caches = all.get("caches").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (at, cache) in caches.iter().enumerate() {
        if at == 0 {
            let titles = COLUMNS.map(|(_, title)| format!(" {title:>12}")).concat();
            let _ = writeln!(text, "\n{:<16}{titles}", "hybrid cache of");
        }
        let of = |part: &str, whole: &[&str]| {
            let whole = whole.iter().map(|key| number(cache, &[key])).sum::<u64>();
            percent(number(cache, &[part]), whole)
        };
        let name = |key: &str| cache.get(key).and_then(Value::as_str).unwrap_or("?");
        let session = cache.get("session").and_then(Value::as_str).unwrap_or("?");
        let figures = COLUMNS.map(|(key, _)| format!(" {:>12}", number(cache, &[key]))).concat();
        let _ = writeln!(text, "{session:<16.16}{figures}");
        let _ = writeln!(
            text,
            "  reads: {} hit; writes: {} taken; read ahead: {} pages, {} of them used; \
             replace {}, prefetch {}, flush {}, dirty at most {} %",
            of("hits", &["hits", "misses"]),
            of("written_in_cache", &["written_in_cache", "written_through"]),
            number(cache, &["read_ahead"]),
            of("read_ahead_used", &["read_ahead"]),
            name("replace"),
            name("prefetch"),
            name("flush"),
            number(cache, &["dirty_limit"]),
        );
    }
}

/// A share, in words.
fn percent(part: u64, whole: u64) -> String {
    match part.saturating_mul(1000).checked_div(whole) {
        Some(mille) => format!("{}.{} %", mille / 10, mille % 10),
        None => "none".to_owned(),
    }
}

/// Bytes the volume holds at most.
fn total(all: &Value) -> u64 {
    number(all, &["volume", "blocks"]).saturating_mul(number(all, &["volume", "block_size"]))
}

/// Bytes of it in use.
fn used(all: &Value) -> u64 {
    let free = number(all, &["volume", "blocks_free"]);
    total(all).saturating_sub(free.saturating_mul(number(all, &["volume", "block_size"])))
}

/// Bytes with a unit.
pub(crate) fn human(bytes: u64) -> String {
    let mut value = bytes;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 10_240 {
            return format!("{value} {unit}");
        }
        value /= 1024;
    }
    format!("{value} TiB")
}

/// The live line of `outboard run`.
#[derive(Debug, Default)]
pub(crate) struct Line {
    before: Option<(Instant, u64)>,
}

impl Line {
    /// Rewrites the line with what happened since it was last written.
    pub(crate) fn print(&mut self, status: &Status) {
        let now = Instant::now();
        let operations: u64 = status
            .all
            .get("ops")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(_, figures)| number(figures, &["count"]))
            .sum();
        if let Some((then, before)) = self.before {
            let seconds = now.duration_since(then).as_secs_f64().max(1e-3);
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let rate = operations.saturating_sub(before) as f64 / seconds;
            let used = human(used(&status.all));
            let line = format!(
                "\r\x1b[K{rate:>9.0} op/s   {used} used   host pid {}   DPU pid {}",
                std::process::id(),
                status.dpu_pid
            );
            let mut out = std::io::stdout();
            // A terminal that went away is told by SIGHUP.
            let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
        }
        self.before = Some((now, operations));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_packing_saves_is_shown_where_blocks_are_packed() {
        let text = |method: &str, taken: u64| {
            let volume = json!({"written": 1 << 20, "written_taken": taken, "written_sent": taken});
            let mut text = String::new();
            let all = json!({"volume": volume, "settings": {"compress": method}});
            describe_packing(&all, &mut text);
            text
        };
        assert_eq!(text("none", 1 << 20), "");
        let said = text("lz4", 1 << 19);
        assert!(said.contains("lz4: 1024 KiB written since the start take 50.0 % of"), "{said}");
        assert!(text("lz4", 1 << 20).contains("100.0 %"));
    }

    #[test]
    fn caches_are_shown_when_there_are_some() {
        let text = |caches: Value| {
            let mut text = String::new();
            describe_caches(&json!({ "caches": caches }), &mut text);
            text
        };
        assert_eq!(text(json!([])), "");
        let two = json!([
            {"session": "abc", "pages": 8192, "dirty": 17, "hits": 3, "misses": 1,
             "read_ahead": 8, "read_ahead_used": 1, "replace": "lru", "dirty_limit": 40},
            {"session": "0123456789abcdef0123", "written_back": 5},
        ]);
        let shown = text(two);
        let lines: Vec<Vec<&str>> =
            shown.trim().lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["abc", "8192", "0", "17", "0", "0", "0"]);
        let said = lines[2].join(" ");
        assert!(said.starts_with("reads: 75.0 % hit; writes: none taken;"), "{said}");
        assert!(said.contains("8 pages, 12.5 % of them used; replace lru,"), "{said}");
        assert_eq!(lines[3], ["0123456789abcdef", "0", "0", "0", "0", "5", "0"]);
    }
}

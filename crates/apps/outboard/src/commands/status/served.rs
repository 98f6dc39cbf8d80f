//! What the sides of a server are doing, for people.

use std::fmt::Write;

use serde_json::Value;

use super::{human, number, percent};

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or("?")
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A served directory: `served`, `host` and `dpu`, each as far as there is one.
pub(super) fn describe(all: &Value) -> String {
    let mut out = String::new();
    let null = &Value::Null;
    let part = |key: &str| all.get(key).unwrap_or(null);
    let (served, host, dpu) = (part("served"), part("host"), part("dpu"));
    // Writing to a String cannot fail.
    let _ = write!(out, "served       {}", text(served, "application"));
    if host.is_object() {
        let (form, at) = (text(host, "form"), text(host, "listen"));
        let _ = writeln!(out, " ({form}) at {at}\nhost side    pid {}", number(host, &["pid"]));
    } else {
        let _ = writeln!(out, "\nhost side    none: start it with `outboard serve`");
    }
    if dpu.is_object() {
        describe_dpu(dpu, &mut out);
    } else if served.get("plain") == Some(&Value::Bool(true)) {
        let _ = writeln!(out, "DPU side     none, as `--plain` asks: nothing is offloaded");
    } else {
        let _ = writeln!(out, "DPU side     none");
    }
    out
}

fn describe_dpu(dpu: &Value, out: &mut String) {
    let up = dpu.get("uptime_s").and_then(Value::as_f64).unwrap_or(0.0);
    let cpu = dpu.get("cpu_s").and_then(Value::as_f64).unwrap_or(0.0);
    let pid = number(dpu, &["pid"]);
    let _ = writeln!(out, "DPU side     pid {pid}, up {up:.0} s, {cpu:.1} s of CPU");
    describe_offloading(dpu, out);
    describe_table(dpu, out);
    describe_space(dpu, out);
    describe_rings(dpu, out);
    super::describe_ledger(dpu, out);
}

/// What is answered by which side and why, and a line that cannot be missed when nothing is.
fn describe_offloading(dpu: &Value, out: &mut String) {
    let director = dpu.get("director").filter(|director| director.is_object());
    if let Some(director) = director {
        let of = |key: &str| number(director, &[key]);
        let [here, host, short, back] = ["offloaded", "to_host", "refused", "fell_back"].map(of);
        let all = here + host + short + back;
        let _ = writeln!(
            out,
            "connections  {} at the DPU side; {} were refused for want of a place, {} closed as \
             idle, {} forwarded for want of memory",
            of("flows"),
            of("turned_away"),
            of("idle"),
            of("without_memory"),
        );
        let _ = writeln!(
            out,
            "requests     {all}; {} answered by the DPU side\n  by the host  {host} as the server \
             divides them, {short} for want of a buffer, {back} after a read that failed or held \
             something else",
            percent(here, all),
        );
    } else {
        let _ = writeln!(out, "requests     all to the host, as `--no-offload` asks");
    }
    describe_frames(dpu, out);
    describe_plugin(dpu, out);
    let (faults, lost) = (number(dpu, &["faults"]), list(dpu, "lost_threads"));
    if faults > 0 || !lost.is_empty() {
        let _ = writeln!(
            out,
            "overruns     {faults} calls panicked or took too long, {} never returned",
            lost.len()
        );
    }
    let stopped = dpu.get("offloading_stopped").unwrap_or(&Value::Null);
    let why = match text(stopped, "why") {
        "lost" => "never returned",
        _ => "failed too often",
    };
    let call = text(stopped, "call");
    let again = dpu.get("offloading_again_in_seconds").and_then(Value::as_f64).unwrap_or(0.0);
    let how_long = match text(dpu, "offloading") {
        "off" => "until the DPU side is started again".to_owned(),
        "paused" => format!("for {again:.0} s more"),
        _ => return,
    };
    let _ = writeln!(
        out,
        "WARNING      offloading is off {how_long}, since `{call}` {why}: the host answers \
         everything; that makes {} times",
        number(dpu, &["offloading_stopped_times"]),
    );
}

/// What passes between two devices.
fn describe_frames(dpu: &Value, out: &mut String) {
    let Some(frames) = dpu.get("director").and_then(|director| director.get("frames")) else {
        return;
    };
    let of = |key: &str| number(frames, &[key]);
    let _ = writeln!(
        out,
        "frames       {} of the server's connections; {} of others passed on; {} divided, {} lost, \
         {} damaged, {} of no connection",
        of("taken"),
        of("forwarded"),
        of("divided"),
        of("lost"),
        of("damaged"),
        of("refused"),
    );
}

/// What a plug-in was asked.
fn describe_plugin(dpu: &Value, out: &mut String) {
    let Some(plugin) = dpu.get("plugin") else { return };
    let of = |key: &str| number(plugin, &[key]);
    let _ = writeln!(
        out,
        "plug-in      {} questions in {} batches; {} processes started, {} failed",
        of("questions"),
        of("batches"),
        of("starts"),
        of("faults"),
    );
}

fn describe_table(dpu: &Value, out: &mut String) {
    let of = |key: &str| number(dpu, &["table", key]);
    let [items, capacity, bytes, refused] = ["items", "capacity", "bytes", "refused"].map(of);
    let _ = writeln!(
        out,
        "table        {items} of {capacity} items, {} of them; {} of memory",
        percent(items, capacity),
        human(bytes),
    );
    if refused > 0 {
        let _ = writeln!(
            out,
            "WARNING      the table was full {refused} times: the host answers for what found no \
             room; serve with more --items"
        );
    }
}

fn describe_space(dpu: &Value, out: &mut String) {
    let of = |key: &str| number(dpu, &[key]);
    let [segment, segments, free] = ["segment_bytes", "segments", "segments_free"].map(of);
    let bytes = |segments: u64| human(segments.saturating_mul(segment));
    let _ = writeln!(
        out,
        "space        {} of {} taken, in segments of {}; the device's file has {}",
        bytes(segments.saturating_sub(free)),
        bytes(segments),
        human(segment),
        human(of("device_bytes")),
    );
    let (files, named) = (of("files"), list(dpu, "named_files"));
    for file in named {
        let _ = writeln!(out, "  {:<10} {}", text(file, "name"), human(number(file, &["bytes"])));
    }
    let more = files.saturating_sub(named.len() as u64);
    if more > 0 {
        let _ = writeln!(out, "  and {more} files more");
    }
}

fn describe_rings(dpu: &Value, out: &mut String) {
    for host in list(dpu, "attachments") {
        for (group, rings) in list(host, "rings").iter().enumerate() {
            let of = |key: &str| number(rings, &[key]);
            let _ = writeln!(
                out,
                "rings        of pid {}, group {group}: {} of requests, {} of responses; {} under \
                 way, {} waiting",
                number(host, &["pid"]),
                human(of("request_bytes")),
                human(of("response_bytes")),
                of("under_way"),
                of("waiting"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(dpu: Value) -> String {
        let host = json!({"pid": 7, "form": "offload", "listen": "127.0.0.1:7379"});
        describe(&json!({"served": {"application": "kv"}, "host": host, "dpu": dpu}))
    }

    #[test]
    fn a_server_is_shown_with_its_reasons() {
        let text = shown(json!({
            "pid": 8, "uptime_s": 3.2, "cpu_s": 0.5, "offloading": "on",
            "director": {"flows": 2, "offloaded": 6, "to_host": 1, "refused": 2, "fell_back": 1,
                "without_memory": 3, "frames": {"taken": 21, "forwarded": 22, "damaged": 23}},
            "plugin": {"starts": 11, "faults": 12, "batches": 13, "questions": 14},
            "table": {"items": 10, "capacity": 40, "bytes": 4096, "refused": 0},
            "segment_bytes": 1 << 20, "segments": 256, "segments_free": 200, "device_bytes": 9,
            "files": 70, "named_files": [{"name": "kv/log", "bytes": 12345}],
            "attachments": [{"pid": 7, "rings": [{"request_bytes": 1, "response_bytes": 2,
                "under_way": 3, "waiting": 4}]}],
            "ledger": {"dma": {"ring_in": {"operations": 5, "bytes": 6}}},
        }));
        for part in [
            "served       kv (offload) at 127.0.0.1:7379\nhost side    pid 7\nDPU side     pid 8",
            "connections  2 at",
            "3 forwarded for want of memory",
            "frames       21 of the server's connections; 22 of others passed on; 0 divided",
            "plug-in      14 questions in 13 batches; 11 processes started, 12 failed",
            "requests     10; 60.0 % answered by the DPU side",
            "1 as the server divides them, 2 for want of a buffer, 1 after a read",
            "table        10 of 40 items, 25.0 %",
            "space        56 MiB of 256 MiB taken",
            "kv/log     12 KiB",
            "and 69 files more",
            "of pid 7, group 0: 1 B of requests, 2 B of responses; 3 under way, 4 waiting",
            "ring_in                     5              6",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("WARNING") && !text.contains("overruns"), "{text}");
    }

    #[test]
    fn what_is_off_or_full_is_said_in_a_line_of_its_own() {
        let text = shown(json!({
            "offloading": "paused", "offloading_again_in_seconds": 9.7, "faults": 16,
            "offloading_stopped": {"why": "lost", "call": "answer"},
            "offloading_stopped_times": 2, "lost_threads": [{"call": "answer"}],
            "table": {"items": 40, "capacity": 40, "refused": 3},
        }));
        let warnings: Vec<&str> = text.lines().filter(|line| line.starts_with("WARNING")).collect();
        assert_eq!(warnings.len(), 2, "{text}");
        let why = "offloading is off for 10 s more, since `answer` never returned";
        assert!(warnings[0].contains(why) && warnings[0].ends_with("makes 2 times"), "{text}");
        assert!(warnings[1].contains("full 3 times") && warnings[1].contains("--items"), "{text}");
        assert!(text.contains("16 calls panicked or took too long, 1 never returned"), "{text}");
        let plain = json!({"served": {"application": "kv", "plain": true}, "host": null});
        let text = describe(&plain);
        assert!(text.contains("host side    none") && text.contains("`--plain`"), "{text}");
    }
}

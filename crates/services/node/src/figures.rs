//! A node's figures as JSON.

use std::fmt::Write;

use outboard_wire::shared::Reason;

use crate::heard::Heard;
use crate::nic::Nic;
use crate::nic::sched::Handler;
use crate::node::NodeOptions;

/// Names and numbers as an object.
fn object<'a>(fields: impl IntoIterator<Item = (&'a str, u64)>) -> String {
    let mut out = String::from("{");
    for (name, value) in fields {
        let comma = if out.len() > 1 { "," } else { "" };
        // Writing to a string does not fail.
        let _ = write!(out, "{comma}\"{name}\":{value}");
    }
    out.push('}');
    out
}

/// What each handler cost.
fn handlers(nic: &Nic) -> String {
    let all: Vec<String> = Handler::ALL
        .into_iter()
        .map(|handler| {
            let cost = nic.ledger().of(handler);
            let fields = object([
                ("runs", cost.runs),
                ("instructions", cost.instructions),
                ("bytes", cost.bytes),
                ("sends", cost.sends),
                ("dma", cost.dma),
                ("dma_bytes", cost.dma_bytes),
                ("passed", cost.passed),
                ("passed_bytes", cost.passed_bytes),
                ("timed", cost.timed),
                ("ns", cost.ns),
            ]);
            format!("\"{}\":{fields}", handler.name())
        })
        .collect();
    all.join(",")
}

/// All of them. `trusted`: objects that it does not doubt, if it doubts any.
pub(crate) fn json(
    options: &NodeOptions,
    nic: &Nic,
    heard: &Heard,
    (keys, trusted): (usize, Option<usize>),
    terms: [(&'static str, u64); 2],
    store: &[(&'static str, u64)],
) -> String {
    let counts = nic.counts();
    let (landed_nic, landed_cpu) = nic.landed();
    let (sums, sum_bytes, sums_lost) = nic.sums();
    let fields = [
        ("descriptors", u64::from(nic.table().used())),
        ("descriptors_most", u64::from(nic.table().most())),
        ("descriptors_deepest", u64::from(nic.table().deepest())),
        ("landed_nic", landed_nic as u64),
        ("landed_cpu", landed_cpu as u64),
        ("waiting", nic.sched().waiting() as u64),
        ("waiting_deepest", nic.sched().deepest() as u64),
        ("messages", counts.messages),
        ("packets", counts.packets),
        ("dropped", counts.dropped),
        ("strange", counts.strange),
        ("refused", counts.refused),
        ("busy", counts.busy),
        ("cleaned", counts.cleaned),
        ("cut_bytes", heard.cut),
        ("accepted", heard.accepted),
        ("accepted_bytes", heard.bytes),
        ("steered", counts.steered),
        ("notices_lost", counts.notices_lost),
        ("notices_own", heard.own),
        ("requests_timed", counts.timed.0),
        ("requests_ns", counts.timed.1),
        ("passing", nic.passing() as u64),
        ("sums", sums as u64),
        ("sum_bytes", sum_bytes as u64),
        ("sums_lost", sums_lost),
        ("contexts", nic.contexts() as u64),
        ("keys", keys as u64),
        ("doubts", u64::from(trusted.is_some())),
        ("trusted", trusted.unwrap_or(0) as u64),
    ];
    let runtime = object(fields.into_iter().chain(terms));
    let names = Reason::ALL.map(|reason| format!("{reason:?}").to_lowercase());
    let refused = object(names.iter().map(String::as_str).zip(heard.refused));
    let store = object(store.iter().copied());
    let (node, handlers) = (options.node, handlers(nic));
    format!(
        "{{\"node\":{node},\"runtime\":{runtime},\"refusals\":{refused},\
         \"handlers\":{{{handlers}}},\"store\":{store}}}"
    )
}

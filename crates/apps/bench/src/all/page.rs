//! The page of a run: who was measured where and when, how every target stands, and each
//! measurement with its command, its pictures and its table.

use std::collections::BTreeSet;

use super::{LIST, Measurement, Outcome, Record, Records};
use crate::stats::median;
use crate::verdict::HEADING;

/// The page; `table` gives what a measurement printed, and `is_drawn` says whether a picture is
/// there.
pub(super) fn page(
    records: &Records,
    table: impl Fn(&str) -> String,
    is_drawn: impl Fn(&str) -> bool,
) -> String {
    let known = LIST.iter().filter_map(|one| records.get(one.name).map(|record| (one, record)));
    let known: Vec<(&Measurement, &Record)> = known.collect();
    let made: Vec<_> = known.iter().filter(|(_, record)| record.seconds > 0.0).copied().collect();
    let mut text = head(&made);
    text += &targets(&made, &table);
    text += &missing(records);
    for (one, record) in made {
        let Record { command, began, seconds, busy, .. } = record;
        text += &format!("\n## {}\n\n{}. `{command}`", one.name, one.title);
        text += &format!(", begun {began} UTC, {seconds:.0} s; ");
        text += &format!("machine {:.0} % busy right before.\n", busy * 100.0);
        if !is_of_one(records) {
            text += &format!("Program: {}; {}.\n", record.program, record.machine);
        }
        for picture in one.pictures.iter().filter(|picture| is_drawn(picture)) {
            text += &format!("\n![{picture}]({picture})\n");
        }
        let table = table(one.name);
        let (table, _) = parts(&table);
        if !table.trim().is_empty() {
            text += &format!("\n```text\n{}\n```\n", table.trim_end());
        }
    }
    text
}

/// Whether all is of one program and one machine.
fn is_of_one(records: &Records) -> bool {
    let made = records.values().filter(|record| record.seconds > 0.0);
    made.map(|record| (&record.program, &record.machine)).collect::<BTreeSet<_>>().len() < 2
}

fn head(made: &[(&Measurement, &Record)]) -> String {
    let mut text = String::from(
        "# Figures, as they were measured\n\n\
         `outboard bench all --out DIR` writes this page, the tables and the pictures beside it;\n\
         what is changed here by hand is gone with the next run. What is asked, and why a target\n\
         is missed: FIGURES.md of the project.\n\n",
    );
    let begun = || made.iter().map(|(_, record)| record.began.as_str());
    let (Some(first), Some(last)) = (begun().min(), begun().max()) else {
        return text + "Nothing was measured yet.\n";
    };
    let programs: BTreeSet<&str> = made.iter().map(|(_, one)| one.program.as_str()).collect();
    let machines: BTreeSet<&str> = made.iter().map(|(_, one)| one.machine.as_str()).collect();
    let minutes = made.iter().map(|(_, record)| record.seconds).sum::<f64>() / 60.0;
    let list = |all: BTreeSet<&str>| all.into_iter().collect::<Vec<_>>().join("; ");
    if programs.len() > 1 || machines.len() > 1 {
        text += "**Not of one program on one machine**: each measurement says its own.\n\n";
    }
    text += &format!("- Program: {}\n- Machine: {}\n", list(programs), list(machines));
    let busy: Vec<f64> = made.iter().map(|(_, record)| record.busy * 100.0).collect();
    let most = busy.iter().copied().fold(0.0, f64::max);
    text += &format!(
        "- At work right before each: {:.0} % of all cores in the middle, ",
        median(&busy)
    );
    text += &format!("{most:.0} % at most\n");
    text +=
        &format!("- Measured: {first} to {last} UTC (the last begun), {minutes:.0} min in all\n");
    text
}

/// How every target stands, as the tables end with it.
fn targets(made: &[(&Measurement, &Record)], table: impl Fn(&str) -> String) -> String {
    let mut text = String::new();
    for (one, _) in made {
        let table = table(one.name);
        for line in parts(&table).1.lines().filter(|line| !line.is_empty()) {
            // The measurement's own name for itself comes first in the line.
            let what = line.split_once(": ").map_or(line, |(_, what)| what);
            let what = what.replace("MISSED", "**MISSED**");
            text += &format!("- [{0}](#{0}): {what}\n", one.name);
        }
    }
    if text.is_empty() { text } else { format!("\n## Targets\n\n{text}") }
}

/// What was measured, and how its targets stand.
fn parts(table: &str) -> (&str, &str) {
    table.split_once(&format!("\n{HEADING}\n")).unwrap_or((table, ""))
}

/// What the list has and this page has not, and why.
fn missing(records: &Records) -> String {
    let mut text = String::new();
    for one in LIST {
        let why = match records.get(one.name).map(|record| &record.outcome) {
            Some(Outcome::Done) => continue,
            Some(Outcome::Failed(why)) => format!("**failed**: {why}"),
            Some(Outcome::LeftOut(why)) => format!("left out: {why}"),
            None => "not measured yet".to_owned(),
        };
        text += &format!("- {} ({}): {why}\n", one.name, one.title);
    }
    if text.is_empty() { text } else { format!("\n## Missing\n\n{text}") }
}

//! What the long command found of one commit, over as many runs as it took.
//!
//! `target/stages/long-COMMIT.tsv` has a line for each stage that ended (date, stage, verdict,
//! seconds, reason) and one for each thing that was skipped meanwhile; the last line of a stage
//! counts. A tree with changes is no commit: nothing of its record counts as passed.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use super::Stage;
use super::schedule::Outcome;
use crate::project::Project;

pub(super) struct Record {
    path: PathBuf,
    commit: String,
    lines: Vec<String>,
    /// Lines of the run's skips that stand here already.
    skips: usize,
}

/// How the skips of a run stand among the verdicts.
const SKIPPED: &str = "skipped";
/// Behind the commit of a tree with changes.
const CHANGED: &str = "-changed";

impl Record {
    /// The record of the commit that is checked out.
    pub(super) fn of(project: &Project) -> Result<Record, String> {
        let head = said(project, "git", &["rev-parse", "--short=7", "HEAD"])?;
        let changes = said(project, "git", &["status", "--porcelain"])?;
        let commit = if changes.is_empty() { head } else { head + CHANGED };
        let folder = project.target.join("stages");
        let path = folder.join(format!("long-{commit}.tsv"));
        fs::create_dir_all(&folder)
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let text = fs::read_to_string(&path).unwrap_or_default();
        let lines = text.lines().map(str::to_owned).collect();
        Ok(Record { path, commit, lines, skips: 0 })
    }

    /// The cells of the last line of this stage.
    fn last(&self, stage: &str) -> Option<Vec<&str>> {
        let mut cells = self.lines.iter().rev().map(|line| line.split('\t').collect::<Vec<_>>());
        cells.find(|cells| cells.len() == 5 && cells[1] == stage && cells[2] != SKIPPED)
    }

    pub(super) fn has_passed(&self, stage: &str) -> bool {
        !self.commit.ends_with(CHANGED) && self.last(stage).is_some_and(|cells| cells[2] == "ok")
    }

    /// Keeps how a stage ended, and what of `skipped`, all of this run, is new.
    pub(super) fn add(&mut self, outcome: &Outcome, skipped: &str) {
        let date = Command::new("date").args(["-u", "+%F %H:%M"]).output();
        let date = date.map(|date| String::from_utf8_lossy(&date.stdout).trim().to_owned());
        let date = date.unwrap_or_default();
        let (verdict, reason) = match &outcome.verdict {
            Ok(()) => ("ok", ""),
            Err(reason) => ("FAILED", reason.as_str()),
        };
        let (name, seconds) = (outcome.name, outcome.took.as_secs_f64());
        let mut lines = vec![format!("{date}\t{name}\t{verdict}\t{seconds:.0}\t{}", flat(reason))];
        let new = skipped.lines().skip(self.skips);
        lines.extend(new.map(|line| format!("{date}\t{name}\t{SKIPPED}\t0\t{}", flat(line))));
        self.skips = skipped.lines().count();
        let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        let file = fs::OpenOptions::new().append(true).create(true).open(&self.path);
        if let Err(error) = file.and_then(|mut file| file.write_all(text.as_bytes())) {
            eprintln!("{name} is not kept: {}: {error}", self.path.display());
        }
        self.lines.extend(lines);
    }

    /// A table of all stages, with the commit.
    pub(super) fn summary(&self, stages: &[Stage]) -> String {
        let mut text = String::from("| stage | result | seconds | when |\n|---|---|---|---|\n");
        let (mut passed, mut failed) = (0, 0);
        for stage in stages {
            let name = stage.name;
            text += &match self.last(name) {
                None => format!("| {name} | not run | | |\n"),
                Some(cells) if cells[2] == "ok" => {
                    passed += 1;
                    format!("| {name} | ok | {} | {} |\n", cells[3], cells[0])
                }
                Some(cells) => {
                    failed += 1;
                    format!("| {name} | FAILED: {} | {} | {} |\n", cells[4], cells[3], cells[0])
                }
            };
        }
        let missing = stages.len() - passed - failed;
        text += &format!(
            "\ncommit `{}`: {passed} passed, {failed} failed, {missing} not run\n",
            self.commit
        );
        let skips: BTreeSet<&str> = self
            .lines
            .iter()
            .filter(|line| line.split('\t').nth(2) == Some(SKIPPED))
            .filter_map(|line| line.split('\t').nth(4))
            .collect();
        skips.iter().for_each(|skip| text += &format!("skipped {skip}\n"));
        text
    }
}

/// As one cell.
fn flat(text: &str) -> String {
    text.replace(['\t', '\n'], " ")
}

fn said(project: &Project, program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).current_dir(&project.root).output();
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Action;
    use super::super::table::first;
    use super::*;

    fn outcome(name: &'static str, verdict: Result<(), String>) -> Outcome {
        Outcome { name, verdict, took: Duration::from_secs(90) }
    }

    /// The long command was one run of many hours, of which nothing was left when it was cut off.
    #[test]
    fn what_has_passed_is_known_to_the_next_run() {
        let path = std::env::temp_dir().join(format!("record-{}.tsv", std::process::id()));
        let begin = || {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let lines = text.lines().map(str::to_owned).collect();
            Record { path: path.clone(), commit: "abc".into(), lines, skips: 0 }
        };
        let mut record = begin();
        record.add(&outcome("kill-1", Ok(())), "");
        record.add(&outcome("seeds", Err("ended\nwith 1".into())), "disk: none\n");
        let mut record = begin();
        assert!(record.has_passed("kill-1") && !record.has_passed("seeds"));
        assert!(!record.has_passed("kill"));
        let stages = ["kill-1", "seeds", "loom"].map(|name| first(name, "", 1, Action::Rules));
        let summary = record.summary(&stages);
        assert!(summary.contains("| seeds | FAILED: ended with 1 | 90 |"), "{summary}");
        assert!(summary.contains("| loom | not run |"), "{summary}");
        assert!(summary.contains("1 passed, 1 failed, 1 not run\nskipped disk: none"), "{summary}");
        record.add(&outcome("seeds", Ok(())), "");
        assert!(begin().has_passed("seeds"), "the last time counts");
        record.add(&outcome("kill-1", Err("no".into())), "");
        assert!(!begin().has_passed("kill-1"));
        fs::remove_file(&path).unwrap();
    }
}

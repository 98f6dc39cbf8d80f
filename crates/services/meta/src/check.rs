//! The check of a shared volume: names and inodes against themselves, what nodes hold against the
//! inodes, and these against the nodes.

mod missing;

use std::collections::BTreeSet;
use std::fmt::Write;

use outboard_base::{Errno, Ino, Result};
use outboard_dfs::member_end;
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::check;
use outboard_medium::Medium;
use outboard_volume::Report;
use outboard_wire::shared::call::{Call, Object, Reply};
use outboard_wire::shared::{Coordinate, Strategy};

use crate::Meta;
use crate::newest::VOLUME;

/// Objects to be purged, read at a time.
const PAGE: usize = 1024;

/// What the nodes hold, counted.
#[derive(Default)]
struct Counts {
    objects: u64,
    bytes: u64,
    to_purge: u64,
    nodes_away: u64,
    damaged: u64,
}

/// What a node was told of the volume's opening, which holds nothing.
fn is_mark(object: &Object) -> bool {
    object.object == VOLUME && object.end == 0 && object.bytes == 0
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// Checks the volume and its nodes, beside other work; with `contents` every grain is read.
    /// The report, as JSON.
    pub(crate) async fn check(&self, contents: bool) -> Result<String> {
        let options = check::Options { contents, repair: false };
        let mut report = self.volume().check(options).await?.to_volume();
        let mut counts = Counts::default();
        let (placement, mut answer) = (self.placement(), BTreeSet::new());
        for node in placement.all() {
            let before = counts.objects;
            match self.check_node(node, contents, &mut report, &mut counts).await {
                Ok(()) => _ = answer.insert(node.node),
                Err(errno) => {
                    counts.nodes_away += 1;
                    let seen = counts.objects - before;
                    report.find(format!("node {}: {errno}, after {seen} objects", node.node));
                }
            }
        }
        if let Err(errno) = self.look_for_missing(answer, &mut report).await {
            report.find(format!("files that nodes may have lost were not all looked for: {errno}"));
        }
        report.counts.extend([
            ("node_objects", counts.objects),
            ("node_bytes", counts.bytes),
            ("to_purge", counts.to_purge),
            ("nodes_away", counts.nodes_away),
            ("damaged_grains", counts.damaged),
        ]);
        Ok(json(&report))
    }

    async fn check_node(
        &self,
        node: &Coordinate,
        contents: bool,
        report: &mut Report,
        counts: &mut Counts,
    ) -> Result<()> {
        let mut from = 0;
        loop {
            let objects = self.objects_at(node.node, from).await?;
            let Some(last) = objects.last() else { return Ok(()) };
            let next = last.object.checked_add(1);
            let to_purge = self.to_purge().await?;
            for object in objects.iter().filter(|object| !is_mark(object)) {
                counts.objects += 1;
                counts.bytes = counts.bytes.saturating_add(object.bytes);
                if to_purge.contains(&object.object) {
                    counts.to_purge += 1;
                    continue;
                }
                if let Some(fault) = self.fault_of(node, object).await? {
                    report.find(format!("node {}, object {}: {fault}", node.node, object.object));
                }
                if contents {
                    let damaged = self.damaged_at(node.node, object.object).await?;
                    counts.damaged = counts.damaged.saturating_add(damaged);
                    if damaged > 0 {
                        let (node, object) = (node.node, object.object);
                        let fault = format!("{damaged} grains fail their checksums");
                        report.find(format!("node {node}, object {object}: {fault}"));
                    }
                }
            }
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// What is wrong with what a node holds, if it is so still.
    async fn fault_of(&self, node: &Coordinate, object: &Object) -> Result<Option<String>> {
        let ino = Ino(object.object);
        let spread = match self.volume().spread(ino).await {
            Ok(spread) => spread,
            Err(Errno::ESTALE | Errno::EINVAL) => {
                // It may have been purged since it was listed.
                let gone = self.to_purge().await?.contains(&object.object)
                    || !self.is_at(node.node, object.object).await?;
                return Ok((!gone).then(|| "belongs to no file".to_owned()));
            }
            Err(errno) => return Err(errno),
        };
        let nodes = self.placement().of(&spread.laid_out());
        if !nodes.iter().any(|other| other.node == node.node) {
            // What a file leaves behind goes once all files are moved.
            let is_left = self.placement().is_moving();
            return Ok((!is_left).then(|| "does not lie here".to_owned()));
        }
        let members = self.nodes_of(&spread);
        let is_first = members.first().is_some_and(|first| first.node == node.node);
        if spread.lacking != 0 && is_first {
            let count = spread.lacking.count_ones();
            return Ok(Some(format!("{count} of its copies lack something and are to be filled")));
        }
        // What it lacks it will be given.
        if spread.writing || members.iter().all(|other| other.node != node.node) {
            return Ok(None);
        }
        if spread.layout.is_redundant()
            && let Some(strip) = self.differs(&spread, &members).await?
        {
            let again = self.volume().spread(ino).await;
            let is_still = again.is_ok_and(|again| !again.writing && again.attr == spread.attr);
            if is_still && self.differs(&spread, &members).await? == Some(strip) {
                return Ok(Some(format!("its copies differ in strip {strip}")));
            }
        }
        if is_first && spread.layout.strategy == Strategy::Parity {
            let end = object.end.min(member_end(&spread.layout, spread.attr.size));
            let wrong = match self.wrong_stripe(ino, end).await {
                Ok(stripe) => {
                    stripe.map(|stripe| format!("stripe {stripe}: parities of other data"))
                }
                Err(errno) => Some(format!("its stripes cannot be read: {errno}")),
            };
            let again = self.volume().spread(ino).await;
            if again.is_ok_and(|again| !again.writing && again.attr == spread.attr)
                && wrong.is_some()
            {
                return Ok(wrong);
            }
        }
        let size_here = |size| member_end(&spread.layout, size);
        if object.end <= size_here(spread.attr.size) {
            return Ok(None);
        }
        // The object is older than the attributes: look at it as it is now, and at them again.
        let now = self.objects_at(node.node, object.object).await?;
        let end = now.iter().find(|now| now.object == object.object).map_or(0, |now| now.end);
        let Ok(again) = self.volume().spread(ino).await else { return Ok(None) };
        let size = size_here(again.attr.size);
        Ok((!again.writing && end > size)
            .then(|| format!("ends at {end}, behind its file's end, {size}")))
    }

    /// What a node has from a number on, some of it; a node that goes back is not believed.
    pub(crate) async fn objects_at(&self, node: u16, from: u64) -> Result<Vec<Object>> {
        match self.ask_node(node, &Call::Objects { from }).await? {
            Reply::Objects(objects) if objects.iter().all(|object| object.object >= from) => {
                Ok(objects)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    async fn is_at(&self, node: u16, object: u64) -> Result<bool> {
        let found = self.objects_at(node, object).await?;
        Ok(found.iter().any(|found| found.object == object))
    }

    async fn damaged_at(&self, node: u16, object: u64) -> Result<u64> {
        match self.ask_node(node, &Call::Verify { object }).await {
            Ok(Reply::Number(damaged)) => Ok(damaged),
            // Purged meanwhile.
            Err(Errno::ENOENT) => Ok(0),
            Ok(_) => Err(Errno::EPROTO),
            Err(errno) => Err(errno),
        }
    }

    /// Objects that are gone here and not yet at the nodes.
    pub(crate) async fn to_purge(&self) -> Result<BTreeSet<u64>> {
        let (mut all, mut after) = (BTreeSet::new(), 0);
        loop {
            let some = self.volume().purges(after, PAGE).await?;
            let Some(last) = some.last() else { return Ok(all) };
            after = *last;
            all.extend(some);
        }
    }
}

fn json(report: &Report) -> String {
    let mut out = String::from("{\"findings\":[");
    for (i, finding) in report.findings.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        text(&mut out, finding);
    }
    out.push_str("],\"counts\":{");
    for (i, (name, number)) in report.counts.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        text(&mut out, name);
        let _ = write!(out, ":{number}");
    }
    let _ = write!(out, "}},\"total\":{},\"unsure\":{}}}", report.total, report.unsure);
    out
}

/// A string of JSON.
fn text(out: &mut String, of: &str) {
    out.push('"');
    for char in of.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_json() {
        let mut report = Report::default();
        report.find("a \"name\"\n\\".to_owned());
        report.counts.push(("inodes", 3));
        assert_eq!(
            json(&report),
            "{\"findings\":[\"a \\\"name\\\"\\u000a\\\\\"],\"counts\":{\"inodes\":3},\
             \"total\":1,\"unsure\":0}"
        );
    }
}

//! The table of the long command: what is beyond CI's time.
//!
//! A piece of it is so long that a machine can hold it, [`PIECE`] minutes at most: what was done of
//! it is kept when the next is not, so a piece is also what is lost at most.

use super::executables::Which;
use super::table::{built, first};
use super::{Action, Stage};

/// A piece of the long command.
const fn piece(name: &'static str, proves: &'static str, action: Action) -> Stage {
    built(name, proves, PIECE, action)
}

/// Minutes that a piece of the long command may take.
const PIECE: u64 = 40;
/// Minutes that the soak may take: an hour, and until all is healed and compared.
const SOAK: u64 = 80;

/// Stages of `TEST` that the long command has at another size, in [`LONG`].
pub(super) const REPLACED: &[&str] =
    &["loom", "programs", "kill", "kill-redb", "coherence", "rados"];

/// What the long command runs beside the rest of `TEST`.
pub(super) const LONG: &[Stage] = &[
    first(
        "loom",
        "every interleaving of a queue's ends, of a cache's users and of a table's",
        PIECE,
        Action::Loom(&["link", "cache", "dds"]),
    ),
    first(
        "deny",
        "dependencies pass `cargo deny`, where that is installed",
        10,
        Action::Command(&[
            "sh",
            "-c",
            "if command -v cargo-deny >/dev/null; \
                 then cargo deny check licenses bans sources; \
                 else echo 'cargo-deny: not installed; licences are checked by cargo x' \
                 >>\"$OUTBOARD_SKIPS\"; fi",
        ]),
    ),
    piece(
        "kills",
        "three hundred times kill -9 of sides and clients, of a volume, a store and the servers",
        Action::Tests(
            Which::Named(&[
                ("attach", "sides", "the_dpu_side_dies_and_nobody_notices"),
                ("outboard", "pages_killed", ""),
                ("outboard", "registers", ""),
                ("pageserver", "page_server", "a_killed_dpu_side_loses_nothing_it_answered"),
                ("store", "kill", ""),
            ]),
            &[("OUTBOARD_KILLS", "300")],
        ),
    ),
    piece(
        "seeds",
        "three hundred seeds of every simulation",
        Action::Tests(
            Which::Named(&[
                ("cache", "outboard_cache", ""),
                ("dpc", "it", ""),
                ("kv", "outboard_kv", ""),
                ("kvfs", "it", ""),
                ("link", "it", ""),
                ("pool", "outboard_pool", ""),
            ]),
            &[("OUTBOARD_SEEDS", "300")],
        ),
    ),
    piece(
        "protocol",
        "a million walks of the write protocol of shared volumes",
        Action::Tests(
            Which::Named(&[("cluster", "outboard_cluster", "no_walk_breaks_")]),
            &[("OUTBOARD_WALKS", "1000000")],
        ),
    ),
    piece(
        "shared-attacks",
        "a million attacks on a node, in each model of trust",
        Action::Tests(
            Which::Named(&[("node", "outboard_node", "random_attacks")]),
            &[("OUTBOARD_ATTACKS", "1000000")],
        ),
    ),
    piece(
        "shared-seeds",
        "a thousand walks of a server's clients, of a node's store, of whole clusters",
        Action::Tests(
            Which::Named(&[
                ("meta", "it", "there_is_one_writer_or_readers_whatever_is_lost"),
                ("node", "store", ""),
                ("sim", "shared", "whatever_breaks"),
            ]),
            &[("OUTBOARD_SEEDS", "1000")],
        ),
    ),
    piece(
        "shared-killed",
        "two hundred times kill -9 of a part of a cluster, of a DPU side or a mount of it",
        Action::Command(&["target/test-fast/shared", "--only=killed", "--rounds=100"]),
    ),
    piece(
        "shared-linear",
        "what two hosts are answered of one volume has an order, whoever dies or stands still",
        Action::Command(&["target/test-fast/shared", "--only=linear", "--seconds=840"]),
    ),
    piece(
        "shared-wire",
        "a million attacks on a node's process over its network, in each model of trust",
        Action::Command(&["target/test-fast/attacks", "--tries=1000000"]),
    ),
    piece(
        "shared-cut",
        "a host that is cut from the server beyond its lease, a node whose cable is cut (as root)",
        Action::Command(&["target/test-fast/shared", "--only=cut"]),
    ),
    piece(
        "shared-suites",
        "the public POSIX suites and our own on a shared volume",
        Action::Command(&[
            "env",
            "OUTBOARD_STORE=shared",
            "target/test-fast/programs",
            "--size=small",
            "--only=conformance",
            "--only=fsx",
            "--only=pjdfstest",
        ]),
    ),
    piece(
        "shared-hosts",
        "the suites where three nodes and two hosts have a network namespace each (as root)",
        Action::Command(&[
            "env",
            "OUTBOARD_STORE=shared",
            "OUTBOARD_CLUSTER=netns",
            "OUTBOARD_HOSTS=2",
            "OUTBOARD_NODES=3",
            "target/test-fast/programs",
            "--size=small",
            "--only=conformance",
            "--only=fsx",
            "--only=pjdfstest",
        ]),
    ),
    piece(
        "shared-hosts-programs",
        "programs there, and the other host reads what they leave (as root)",
        Action::Command(&[
            "env",
            "OUTBOARD_STORE=shared",
            "OUTBOARD_CLUSTER=netns",
            "OUTBOARD_HOSTS=2",
            "OUTBOARD_NODES=3",
            "target/test-fast/programs",
            "--size=small",
            "--only=c-build",
            "--only=fio",
            "--only=git-clone",
            "--only=sqlite",
        ]),
    ),
    piece(
        "shared-preload",
        "the C interface and losses of either side under preloaded programs, on a shared volume",
        Action::Command(&["env", "OUTBOARD_STORE=shared", "target/test-fast/preload"]),
    ),
    piece(
        "shared-preloaded",
        "real programs on a shared volume with liboutboard_preload.so in every process",
        Action::Command(&[
            "env",
            "OUTBOARD_STORE=shared",
            "target/test-fast/programs",
            "--size=small",
            "--preload",
            "--only=append",
            "--only=attributes",
            "--only=coreutils",
            "--only=fio",
            "--only=leveldb",
            "--only=links",
            "--only=locks",
            "--only=python",
            "--only=rsync",
            "--only=sparse",
            "--only=sqlite",
            "--only=tar",
        ]),
    ),
    piece(
        "shared-hybrid",
        "the same, and programs, on a shared volume through the hybrid cache",
        Action::Command(&[
            "env",
            "OUTBOARD_STORE=shared",
            "target/test-fast/programs",
            "--size=small",
            "--cache=hybrid",
            "--only=append",
            "--only=conformance",
            "--only=fio",
            "--only=fsx",
            "--only=mapped",
            "--only=pjdfstest",
            "--only=sparse",
            "--only=sqlite",
            "--only=tar",
        ]),
    ),
    piece(
        "shared-programs-all",
        "every suite and program on a shared volume",
        Action::Command(&[
            "env",
            "OUTBOARD_STORE=shared",
            "target/test-fast/programs",
            "--size=small",
        ]),
    ),
    piece(
        "shared-copies",
        "every suite and program on a shared volume with two copies of each file",
        Action::Command(&[
            "env",
            "OUTBOARD_STORE=shared",
            "OUTBOARD_LAYOUT=strategy=ring,k=2",
            "target/test-fast/programs",
            "--size=small",
        ]),
    ),
    piece(
        "shared-stripes",
        "programs on a shared volume whose files have parities",
        Action::Command(&[
            "env",
            "OUTBOARD_STORE=shared",
            "OUTBOARD_NODES=4",
            "OUTBOARD_LAYOUT=strategy=parity,k=3,m=1",
            "target/test-fast/programs",
            "--size=small",
            "--only=append",
            "--only=fio",
            "--only=fsx",
            "--only=git-clone",
            "--only=mapped",
            "--only=pjdfstest",
            "--only=rsync",
            "--only=sqlite",
            "--only=tar",
        ]),
    ),
    piece(
        "shared-stripes-killed",
        "kill -9 of a part of a cluster whose files have parities, of a mount of it",
        Action::Command(&[
            "env",
            "OUTBOARD_NODES=3",
            "OUTBOARD_LAYOUT=strategy=parity,k=2,m=1",
            "target/test-fast/shared",
            "--only=killed",
            "--rounds=30",
        ]),
    ),
    piece(
        "shared-copies-killed",
        "kill -9 of a part of a cluster whose files have two copies, of a mount of it",
        Action::Command(&[
            "env",
            "OUTBOARD_LAYOUT=strategy=tree,k=2",
            "target/test-fast/shared",
            "--only=killed",
            "--rounds=30",
        ]),
    ),
    piece(
        "shared-host",
        "the suites where the client of a shared volume is the mount's process",
        Action::Command(&[
            "env",
            "OUTBOARD_STORE=shared",
            "target/test-fast/programs",
            "--size=small",
            "--client=host",
            "--only=append",
            "--only=conformance",
            "--only=fsx",
            "--only=pjdfstest",
            "--only=sparse",
            "--only=sqlite",
        ]),
    ),
    piece(
        "zookeeper",
        "an ensemble as a cluster's coordinator, one of its three servers killed under load",
        Action::Command(&["scripts/test-zookeeper", "target/test-fast", "--rounds=40"]),
    ),
    // One piece longer than others: what it shows takes its time to come about.
    built(
        "shared-soak",
        "an hour of kill -9 of whatever a cluster of six nodes and two hosts has, under programs",
        SOAK,
        Action::Command(&[
            "target/test-fast/shared",
            "--only=soak",
            "--cache=none",
            "--minutes=60",
        ]),
    ),
    piece(
        "shared-soak-broken",
        "fifteen minutes of that with cut cables, bytes that rot and nodes that are full",
        Action::Command(&[
            "target/test-fast/shared",
            "--only=soak",
            "--with=cuts",
            "--with=disks",
            "--cache=none",
            "--minutes=15",
        ]),
    ),
    piece(
        "shared-soak-zookeeper",
        "twenty minutes of that through the hybrid cache, with an ensemble as the coordinator",
        Action::Command(&["scripts/test-zookeeper", "target/test-fast", "--minutes=20"]),
    ),
    piece(
        "shared-soak-standby",
        "fifteen minutes of that with two metadata servers on a pool, of which one takes over",
        Action::Command(&[
            "scripts/test-rados",
            "target/test-fast",
            "--parts=soak",
            "--minutes=15",
        ]),
    ),
    piece(
        "shared-stopped",
        "a DPU side that is stopped for longer than its lease has its host read nothing old",
        Action::Command(&["target/test-fast/shared", "--only=stopped"]),
    ),
    piece(
        "power",
        "three hundred cuts of power, replayed from what was written",
        Action::Tests(Which::Named(&[("fjall", "power_loss", "")]), &[("OUTBOARD_SEEDS", "300")]),
    ),
    piece(
        "power-disk",
        "a hundred cuts of power of a disk of its own",
        Action::Tests(
            Which::Named(&[("fjall", "power_loss_disk", "")]),
            &[("OUTBOARD_SEEDS", "100")],
        ),
    ),
    piece(
        "models",
        "two thousand random sequences of file operations against the reference",
        Action::Tests(Which::Named(&[("conformance", "it", "")]), &[("MODEL_SEQUENCES", "2000")]),
    ),
    piece(
        "properties",
        "five thousand cases of every property",
        Action::Tests(Which::Beside, &[("PROPTEST_CASES", "5000")]),
    ),
    piece(
        "programs-suites",
        "the public POSIX suites and our own",
        Action::Command(&[
            "target/test-fast/programs",
            "--size=full",
            "--only=conformance",
            "--only=fsx",
            "--only=pjdfstest",
        ]),
    ),
    piece(
        "programs-stress",
        "the stressors of file systems, twenty seconds each",
        Action::Command(&["target/test-fast/programs", "--size=full", "--only=stress-ng"]),
    ),
    piece(
        "programs-builds",
        "a C project with its own tests, git with 20,000 files",
        Action::Command(&[
            "target/test-fast/programs",
            "--size=full",
            "--only=c-build",
            "--only=git-clone",
        ]),
    ),
    piece(
        "programs-data",
        "fio, LevelDB and sqlite3 at full size",
        Action::Command(&[
            "target/test-fast/programs",
            "--size=full",
            "--only=fio",
            "--only=leveldb",
            "--only=sqlite",
        ]),
    ),
    piece(
        "programs-killed",
        "real programs do not notice that both processes below them are killed every 2 s",
        Action::Command(&[
            "env",
            "FIO_BYTES=64m",
            "target/test-fast/programs",
            "--size=full",
            "--kill=2",
            "--only=fio",
            "--only=git-clone",
            "--only=rsync",
            "--only=sqlite",
            "--only=tar",
        ]),
    ),
    piece(
        "killed-write-back",
        "the same, and what the kernel has not written is not lost",
        Action::Command(&[
            "env",
            "FIO_BYTES=64m",
            "target/test-fast/programs",
            "--size=full",
            "--cache=write-back",
            "--kill=2",
            "--only=fio",
            "--only=git-clone",
            "--only=rsync",
            "--only=sqlite",
            "--only=tar",
        ]),
    ),
    piece(
        "write-back-suites",
        "public suites work where the kernel collects writes",
        Action::Command(&[
            "target/test-fast/programs",
            "--size=full",
            "--cache=write-back",
            "--only=fsx",
            "--only=leveldb",
            "--only=pjdfstest",
            "--only=stress-ng",
        ]),
    ),
    piece(
        "programs-trees",
        "trees of files made, listed, copied, linked and changed while they are listed",
        Action::Command(&[
            "target/test-fast/programs",
            "--size=full",
            "--only=find-du",
            "--only=links",
            "--only=rsync",
            "--only=tar",
        ]),
    ),
    piece(
        "programs-calls",
        "locks, attributes, appends, holes, running programs, coreutils and Python",
        Action::Command(&[
            "target/test-fast/programs",
            "--size=full",
            "--only=append",
            "--only=attributes",
            "--only=coreutils",
            "--only=locks",
            "--only=mapped",
            "--only=python",
            "--only=running",
            "--only=sparse",
        ]),
    ),
    piece(
        "kill",
        "two hundred kills of either side or both",
        Action::Command(&["target/test-fast/kill", "--rounds=200"]),
    ),
    piece(
        "kill-redb",
        "forty of them on a volume in the second engine",
        Action::Command(&["env", "OUTBOARD_STORE=redb", "target/test-fast/kill", "--rounds=40"]),
    ),
    piece(
        "coherence-1",
        "a hundred rounds of kills of sides and processes that share files",
        Action::Command(&["target/test-fast/coherence", "--rounds=100"]),
    ),
    piece(
        "coherence-2",
        "another hundred, with another policy",
        Action::Command(&[
            "target/test-fast/coherence",
            "--rounds=100",
            "--flag=--replace=lru",
            "--flag=--flush=eager",
        ]),
    ),
    piece(
        "rados-suite",
        "every engine's suite in a pool, with the case of 65,000 links",
        Action::Command(&[
            "scripts/test-rados",
            "target/test-fast",
            "--parts=driver",
            "--suite=whole",
        ]),
    ),
    // A commit takes tens of milliseconds: the 24,000 of a disk do not end in the time of a piece.
    piece(
        "rados-programs",
        "git at full size, and sqlite3 with 200 commits a writer, on a volume in a pool",
        Action::Command(&[
            "env",
            "SQLITE_ROWS=200",
            "scripts/test-rados",
            "target/test-fast",
            "--parts=programs",
            "--programs=git-clone,sqlite",
            "--size=full",
        ]),
    ),
    // A write takes some milliseconds: 512 MiB a file, as on a disk, are hours.
    piece(
        "rados-fio",
        "fio on a volume in a pool, 64 MiB a file",
        Action::Command(&[
            "env",
            "FIO_BYTES=64m",
            "scripts/test-rados",
            "target/test-fast",
            "--parts=programs",
            "--programs=fio",
            "--size=full",
        ]),
    ),
    piece(
        "rados-kill",
        "forty kills of either side of a volume in a pool",
        Action::Command(&["scripts/test-rados", "target/test-fast", "--parts=kill", "--kills=40"]),
    ),
    piece(
        "rados-bluestore",
        "storage daemons on disk killed in turn and all at once, and what else befalls a cluster",
        Action::Command(&[
            "env",
            "CLUSTER_STORE=bluestore",
            "scripts/test-rados",
            "target/test-fast",
            "--parts=rados,kill",
            "--kills=10",
        ]),
    ),
    piece(
        "ycsb",
        "YCSB's client, unmodified, runs its workloads against the key-value server",
        Action::Command(&[
            "sh",
            "-c",
            "scripts/setup bench && scripts/ycsb target/test-fast/outboard 300000 300000",
        ]),
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::table::TEST;
    use super::*;

    #[test]
    fn every_stage_has_a_name_of_its_own_and_replaces_one_that_is() {
        let short = TEST.iter().filter(|stage| !REPLACED.contains(&stage.name));
        let all: Vec<&str> = short.chain(LONG).map(|stage| stage.name).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
        for name in REPLACED {
            assert!(TEST.iter().any(|stage| stage.name == *name), "{name}");
            let is_piece = |stage: &Stage| stage.name.starts_with(name);
            assert!(LONG.iter().any(is_piece), "{name} is left out of the long command");
        }
    }

    /// A script that no piece named would not be run at full size.
    #[test]
    fn every_real_program_is_run_at_full_size() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/programs");
        let words: Vec<&str> = LONG
            .iter()
            .filter(|stage| stage.name.starts_with("programs-") && stage.name != "programs-killed")
            .flat_map(|stage| match stage.action {
                Action::Command(words) => words.to_vec(),
                _ => Vec::new(),
            })
            .collect();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "sh") {
                let only = format!("--only={}", path.file_stem().unwrap().to_string_lossy());
                assert_eq!(words.iter().filter(|word| **word == only).count(), 1, "{only}");
            }
        }
    }
}

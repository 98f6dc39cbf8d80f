//! The tables of stages at CI's size. Those at full size: `long`.

use std::time::Duration;

use super::executables::Which;
use super::{Action, Stage};

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// A stage that needs nothing.
pub(super) const fn first(
    name: &'static str,
    proves: &'static str,
    limit: u64,
    action: Action,
) -> Stage {
    Stage { name, proves, action, limit: minutes(limit), needs: None, alone: false }
}

/// A stage that needs what is built.
pub(super) const fn built(
    name: &'static str,
    proves: &'static str,
    limit: u64,
    action: Action,
) -> Stage {
    Stage { needs: Some("build"), ..first(name, proves, limit, action) }
}

/// The same, and it measures.
const fn measured(name: &'static str, proves: &'static str, limit: u64, action: Action) -> Stage {
    Stage { alone: true, ..built(name, proves, limit, action) }
}

const FORMAT: Stage = first(
    "format",
    "every file is formatted",
    2,
    Action::Command(&["cargo", "fmt", "--all", "--check"]),
);
const RULES: Stage =
    first("rules", "floors, unsafe folders, purity, tidiness, specification", 2, Action::Rules);
const CLIPPY: Stage = first(
    "clippy",
    "no warning of the compiler or of clippy",
    15,
    Action::WithFeatures(
        &["cargo", "clippy", "--workspace", "--all-targets", "--quiet"],
        &["--", "-Dwarnings"],
    ),
);

pub(super) const GATE: &[Stage] = &[FORMAT, RULES, CLIPPY];

pub(super) const TEST: &[Stage] = &[
    FORMAT,
    RULES,
    first("build", "every program and every test builds", 30, Action::Build),
    CLIPPY,
    first(
        "loom",
        "no wake-up is lost in any interleaving of both ends of a queue",
        10,
        Action::Loom(&["link"]),
    ),
    built(
        "tests",
        "unit, property, model and conformance tests of every crate",
        35,
        Action::Tests(Which::Beside, &[]),
    ),
    built(
        "programs",
        "real programs and public suites work on a mounted volume, fsck after each",
        25,
        Action::Command(&[
            "target/test-fast/programs",
            "--size=small",
            "--only=append",
            "--only=attributes",
            "--only=conformance",
            "--only=coreutils",
            "--only=find-du",
            "--only=fio",
            "--only=fsx",
            "--only=git-clone",
            "--only=links",
            "--only=locks",
            "--only=mapped",
            "--only=pjdfstest",
            "--only=python",
            "--only=rsync",
            "--only=running",
            "--only=sparse",
            "--only=sqlite",
            "--only=stress-ng",
            "--only=tar",
        ]),
    ),
    built(
        "rados",
        "volumes in a pool of a Ceph cluster of our own, its daemons killed and paused",
        45,
        Action::Command(&[
            "scripts/test-rados",
            "target/test-fast",
            "--kills=2",
            "--programs=sqlite",
        ]),
    ),
    built(
        "preloaded",
        "real programs work on a volume with liboutboard_preload.so in every process",
        25,
        Action::Command(&[
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
    built(
        "hybrid",
        "real programs and the conformance suite work through the hybrid cache",
        25,
        Action::Command(&[
            "target/test-fast/programs",
            "--size=small",
            "--cache=hybrid",
            "--only=append",
            "--only=conformance",
            "--only=fio",
            "--only=fsx",
            "--only=mapped",
            "--only=python",
            "--only=sparse",
            "--only=sqlite",
        ]),
    ),
    built(
        "write-back",
        "real programs and the conformance suite work where the kernel collects writes",
        25,
        Action::Command(&[
            "target/test-fast/programs",
            "--size=small",
            "--cache=write-back",
            "--only=append",
            "--only=conformance",
            "--only=fio",
            "--only=fsx",
            "--only=mapped",
            "--only=python",
            "--only=sparse",
            "--only=sqlite",
            "--only=tar",
        ]),
    ),
    built(
        "uncached",
        "the conformance suite passes on a mount that caches no data",
        10,
        Action::Command(&[
            "target/test-fast/programs",
            "--size=small",
            "--cache=none",
            "--only=conformance",
            "--only=mapped",
            "--only=sparse",
        ]),
    ),
    built(
        "user",
        "a plain user mounts through fusermount3 and works there",
        10,
        Action::Command(&[
            "scripts/as-user",
            "target/test-fast",
            "--only=git-clone",
            "--only=locks",
            "--only=sqlite",
            "--only=links",
            "--only=attributes",
            "--only=sparse",
        ]),
    ),
    built(
        "edges",
        "full, corrupted, misused, read-only and idle volumes",
        10,
        Action::Command(&["target/test-fast/edges"]),
    ),
    built(
        "preload",
        "unmodified programs work past the kernel, and losses of either side are survived",
        10,
        Action::Command(&["target/test-fast/preload"]),
    ),
    built(
        "kill",
        "kill -9 of either side or both loses nothing answered and repeats nothing",
        10,
        Action::Command(&["target/test-fast/kill", "--rounds=10"]),
    ),
    built(
        "kill-redb",
        "the same of a volume in the second engine",
        10,
        Action::Command(&["env", "OUTBOARD_STORE=redb", "target/test-fast/kill", "--rounds=4"]),
    ),
    built(
        "coherence",
        "processes killed at random, by every way to a volume, see one file",
        10,
        Action::Command(&["target/test-fast/coherence", "--rounds=8", "--flag=--replace=clock"]),
    ),
    built(
        "shared",
        "two hosts have one shared volume, and kill -9 of its parts loses nothing answered",
        15,
        Action::Command(&["target/test-fast/shared", "--rounds=6"]),
    ),
    built(
        "shared-lossy",
        "the same on a network that loses, doubles and delays datagrams",
        10,
        Action::Command(&[
            "env",
            "OUTBOARD_FAULTS=loss=2,double=1,delay=5:3",
            "target/test-fast/shared",
            "--only=hosts",
            "--only=killed",
            "--cache=none",
        ]),
    ),
    built(
        "shared-frames",
        "the same in frames of 1,500 and of 9,000 bytes",
        10,
        Action::Command(&[
            "sh",
            "-c",
            "for mtu in 1500 9000; do OUTBOARD_MTU=$mtu target/test-fast/shared --only=hosts \
                 --only=killed --cache=none --rounds=2 || exit 1; done",
        ]),
    ),
    built(
        "attacks",
        "attacks on a cluster's processes over its network, and what is no packet at all",
        10,
        Action::Command(&["target/test-fast/attacks", "--only=capability", "--tries=1000"]),
    ),
    built(
        "shared-programs",
        "real programs work on a shared volume, whose nodes are checked after each",
        30,
        Action::Command(&[
            "env",
            "OUTBOARD_STORE=shared",
            "target/test-fast/programs",
            "--size=small",
            "--only=append",
            "--only=links",
            "--only=sparse",
            "--only=tar",
        ]),
    ),
    built(
        "twins",
        "two mounts of one volume show what was answered on either, in each cache mode",
        10,
        Action::Command(&["target/test-fast/twins"]),
    ),
    built(
        "doctests",
        "the examples in the API documentation build and run",
        10,
        Action::WithFeatures(
            &["cargo", "test", "--workspace", "--doc", "--profile=test-fast", "--quiet"],
            &[],
        ),
    ),
    first(
        "docs",
        "the API documentation builds and its links resolve",
        10,
        Action::Command(&[
            "cargo",
            "doc",
            "--workspace",
            "--no-deps",
            "--quiet",
            "--document-private-items",
        ]),
    ),
    measured(
        "tests-measured",
        "idle sides use no processor, and what else measures",
        10,
        Action::Tests(Which::Measuring, &[]),
    ),
    measured(
        "bench-link",
        "the measurement of the link runs to its end",
        3,
        Action::Command(&[
            "target/test-fast/outboard",
            "bench",
            "link",
            "--seconds=0.2",
            "--rounds=1",
        ]),
    ),
    measured(
        "bench-figure-6",
        "nvme-fs and virtio-fs are measured side by side, at the price of a bus",
        3,
        Action::Command(&[
            "target/test-fast/outboard",
            "bench",
            "link",
            "--figure=6",
            "--price=pcie3x16",
            "--threads=1,4",
            "--seconds=0.1",
            "--rounds=1",
        ]),
    ),
    measured(
        "bench-dds",
        "the key-value server is measured in every form, its host asleep under cold reads",
        3,
        Action::Command(&[
            "target/test-fast/outboard",
            "bench",
            "dds",
            "--figure=14",
            "--seconds=0.05",
            "--rounds=1",
            "--check",
        ]),
    ),
    measured(
        "bench-netdfs",
        "nodes are measured under every policy, and a direct write is one request and no call",
        15,
        Action::Command(&["target/test-fast/outboard", "bench", "netdfs", "--quick", "--check"]),
    ),
    measured(
        "bench-netdfs-spread",
        "writes are spread over nodes by every protocol, with copies and with parities",
        15,
        Action::Command(&[
            "target/test-fast/outboard",
            "bench",
            "netdfs",
            "--replicas=3",
            "--stripes=2+1",
            "--quick",
        ]),
    ),
    measured(
        "bench-fs",
        "the file system is measured with every rival, and all CPU time is accounted for",
        5,
        Action::Command(&[
            "target/test-fast/outboard",
            "bench",
            "fs",
            "--seconds=0.2",
            "--rounds=1",
            "--check",
        ]),
    ),
    measured(
        "bench-apps",
        "every application runs to its end on the mount and on every rival",
        5,
        Action::Command(&["target/test-fast/outboard", "bench", "apps", "--quick"]),
    ),
];

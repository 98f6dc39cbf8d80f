//! The command line. Every setting of [`Settings`] is a flag of the commands that use it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::run::TakeOver;
use crate::settings::Settings;

/// Outboard moves a machine's storage stack off the host CPU, to the far side of the bus.
#[derive(Parser, Debug)]
#[command(
    name = "outboard",
    version = version(),
    arg_required_else_help = true,
    after_help = EXAMPLES
)]
pub(crate) struct Cli {
    /// Configuration file; its keys are the long flags without dashes [default: outboard.toml in
    /// the data directory, when it is there]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Version, and the commit it was built from if the build said so.
pub(crate) fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let commit = option_env!("OUTBOARD_COMMIT").unwrap_or("unknown");
        format!("{} (commit {commit})", env!("CARGO_PKG_VERSION"))
    });
    VERSION.as_str()
}

const EXAMPLES: &str = "\
Examples:
  outboard run ./mnt                      mount the volume in ./data, until Ctrl-C
  outboard run --data /srv/vol -o noatime /mnt/vol
  outboard status --data /srv/vol         what both sides are doing; of a served directory too
  outboard fsck --data /srv/vol           check a volume, running or not
  outboard serve kv                       serve clients of Redis at 127.0.0.1:7379
  outboard cluster up ./cluster           a cluster of a shared volume, on this machine
  outboard umount /mnt/vol                unmount, also a mount point left by a crash
  outboard bench fs                       measure against a plain directory and plain FUSE

Exit codes:
  0 done   1 failed   2 wrong usage or configuration   3 mount point missing or busy
  4 data directory in use or of another version   5 fsck found damage   6 no DPU side answers";

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Start the DPU side as its own process, mount the volume, and stay until Ctrl-C
    #[command(
        allow_missing_positional = true,
        after_help = "\
Examples:
  outboard run ./mnt
  outboard run --data /srv/vol --size 20G --cache none /mnt/vol
  outboard run 'shared://10.0.0.1:4791/main?key=FILE' --data host1 /mnt/vol

The DPU side is a process of its own, and so is what serves the mount. If one dies it is started
again; requests wait for it, and the programs on the mount go on (what serves the mount needs Linux
6.9 for that, and another cache than hybrid). If this process is killed, the mount is gone; the next
`outboard run` clears the dead mount point and adopts the DPU side."
    )]
    Run {
        #[command(flatten)]
        settings: Settings,
        /// Whether it takes a mount over; `upgrade` leads to this
        #[arg(long, value_name = "STEP", hide = true)]
        take_over: Option<TakeOver>,
        /// An existing directory; before it a shared volume, if it is one, as --store names it:
        /// shared://HOST:PORT/VOLUME?key=FILE
        #[arg(value_name = "[SHARED] MOUNTPOINT", required = true)]
        places: Vec<PathBuf>,
    },
    /// The DPU side: owns the volume and serves the processes that attach to its socket
    Dpu {
        #[command(flatten)]
        settings: Settings,
    },
    /// Mount the volume of a DPU side that already runs, and stay until unmounted
    Mount {
        #[command(flatten)]
        settings: Settings,
        /// Whether it takes a mount over; `upgrade` leads to this
        #[arg(long, value_name = "STEP", hide = true)]
        take_over: Option<TakeOver>,
        /// An existing directory; before it a shared volume, if it is one, as --store names it:
        /// shared://HOST:PORT/VOLUME?key=FILE
        #[arg(value_name = "[SHARED] MOUNTPOINT", required = true)]
        places: Vec<PathBuf>,
    },
    /// The process of a mount that outlives it; `run` starts it
    #[command(hide = true)]
    Mounted {
        #[command(flatten)]
        settings: Settings,
    },
    /// Unmount; also clears a mount point left behind by a crash
    Umount {
        /// Detach now, finish when the last user is gone
        #[arg(long)]
        lazy: bool,
        /// Where the volume is mounted
        mountpoint: PathBuf,
    },
    /// Check a volume or what a server keeps: contents and metadata when it is not running,
    /// metadata and space when it is
    Fsck {
        #[command(flatten)]
        settings: Settings,
        /// Mend what can be mended without losing anything (volume not running)
        #[arg(long)]
        repair: bool,
        /// Print the report as JSON
        #[arg(long)]
        json: bool,
    },
    /// What both sides of a volume or a server are doing: processes, operations, DMA ledger, space
    #[command(after_help = "\
Examples:
  outboard status --data /srv/vol --watch 1
  outboard status --data served           what `outboard serve` serves: offloading, table, rings")]
    Status {
        #[command(flatten)]
        settings: Settings,
        /// Print everything as JSON
        #[arg(long)]
        json: bool,
        /// Again every so many seconds, until Ctrl-C
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
              value_parser = clap::value_parser!(u64).range(1..=86_400))]
        watch: Option<u64>,
    },
    /// Have the mounts of a volume, and its DPU side, go on as this program, while they are used
    #[command(after_help = "\
Examples:
  new/outboard upgrade --data /srv/vol    run as the new program, which the mounts become

Programs on a mount notice a pause. What cannot be taken over is refused before anything changes.")]
    Upgrade {
        #[command(flatten)]
        settings: Settings,
    },
    /// Let a volume take more space from now on, while it runs or before its next start
    #[command(after_help = "\
Examples:
  outboard grow --data /srv/vol --size 40G

What `outboard serve` serves grows when it is started with a larger --size.")]
    Grow {
        #[command(flatten)]
        settings: Settings,
    },
    /// Copy a volume that is not running from one store to another, and compare
    #[command(after_help = "\
Examples:
  outboard migrate ./data /srv/vol
  outboard migrate ./data ./other --store redb
  outboard migrate ./data ./far --store 'rados://vols?conf=/etc/ceph/ceph.conf'

If it is interrupted, run it again: it goes on. Until it is done the copy cannot be opened.")]
    Migrate {
        /// Data directory of the volume
        from: PathBuf,
        /// Data directory of the copy; of one in a pool it holds only what is this host's own
        to: PathBuf,
        /// What keeps the copy: fjall, redb or rados://POOL?conf=PATH [default: fjall]
        #[arg(long, value_name = "STORE")]
        store: Option<String>,
    },
    /// Copy a volume or what a server keeps, running or not, into one file
    #[command(after_help = "\
Examples:
  outboard backup /srv/vol vol.backup
  outboard backup served - | zstd > served.backup.zst

FILE is there when all of it is durable, and not before. Of a volume that runs it holds one instant:
what was synced before the copy began, and of later changes all up to that instant.")]
    Backup {
        /// Data directory of a volume or of `outboard serve`
        dir: PathBuf,
        /// What is made; `-` is standard output
        file: PathBuf,
        /// Take the place of FILE if it is there
        #[arg(long)]
        force: bool,
    },
    /// Make the data directory that `outboard backup` copied, and check it
    #[command(after_help = "\
Examples:
  outboard restore vol.backup /srv/vol
  zstd -d < served.backup.zst | outboard restore - served

DIR is there when all of it was read, checked by its sums and as `outboard fsck` does.")]
    Restore {
        /// What `outboard backup` made; `-` is standard input
        file: PathBuf,
        /// A directory that does not exist, or is empty
        dir: PathBuf,
    },
    /// Serve remote clients over TCP; the DPU side answers reads of what lies in files
    #[command(after_help = "\
Examples:
  outboard serve kv                               redis-cli -p 7379
  outboard serve kv --plain --data served-plain   the same without a DPU side, to compare
  outboard serve pages --data pages --listen 127.0.0.1:7380

The DPU side is a process of its own. If it dies it is started again; if this process is killed,
the next `outboard serve` adopts it, or starts it anew if it is asked for other settings.")]
    Serve {
        #[command(subcommand)]
        what: crate::commands::serve::Serve,
    },
    /// Ask a page server (`outboard serve pages`) for a page, or send it a log record
    #[command(after_help = "\
Examples:
  outboard pages put 5 --lsn 1 'hello'    page 5 is at LSN 1
  outboard pages get 5 --lsn 1            hello
  outboard pages get 5 --lsn 2            refused: records up to 2 have not come
  outboard pages sync                     what was put survives power loss from now on")]
    Pages {
        #[command(subcommand)]
        what: crate::commands::pages::Pages,
    },
    /// A cluster of a shared volume on this machine, which several hosts mount
    #[command(after_help = "\
Examples:
  outboard cluster up ./cluster --nodes 3
  outboard run 'shared://127.0.0.1:4791/main?key=cluster/key' --data host1 ./mnt1
  outboard cluster kill ./cluster node.2
  outboard cluster check ./cluster --contents")]
    Cluster {
        #[command(subcommand)]
        what: crate::commands::cluster::What,
    },
    /// A storage node of a cluster, described by --config FILE (a sample is etc/cluster.toml)
    Node {
        /// Which of the description's nodes
        #[arg(long, value_name = "N")]
        number: Option<u16>,
        #[command(flatten)]
        of: crate::commands::cluster::OfPart,
    },
    /// The metadata server of a cluster, described by --config FILE
    Meta {
        /// Which of the description's servers: 1, or one that stands by
        #[arg(long, value_name = "N", default_value_t = 1)]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=8))]
        number: u16,
        #[command(flatten)]
        of: crate::commands::cluster::OfPart,
    },
    /// The coordinator of a cluster, described by --config FILE: it keeps which parts there are
    Coordinator {
        #[command(flatten)]
        of: crate::commands::cluster::OfPart,
    },
    /// All parts of a cluster; `cluster up --packed` starts it
    #[command(hide = true)]
    Packed {
        #[command(flatten)]
        of: crate::commands::cluster::OfPart,
    },
    /// How the bytes of a file of a shared volume lie on nodes, or of those made in a directory
    #[command(after_help = "\
Examples:
  outboard layout mnt/file
  outboard layout mnt/dir --set strategy=single,width=2,strip=64K
  outboard layout mnt/dir --set strategy=ring,k=3    three copies, passed on from node to node
  outboard layout mnt/dir --set strategy=parity,k=3,m=2    any two of five nodes may be lost")]
    Layout {
        /// A file or directory of a mounted shared volume
        path: PathBuf,
        /// Have them lie so from now on: of a directory, or of a file that is empty
        #[arg(long, value_name = "LAYOUT")]
        set: Option<String>,
    },
    /// Measure the link or the file system, with its rivals, in one run
    #[command(disable_help_flag = true)]
    Bench {
        /// What to measure, and how; see `outboard bench --help`
        #[arg(value_name = "ARGUMENTS", trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// Settings a command has no use for. It takes them, so that one set of flags does for all commands
/// on a volume; its help does not name them.
const WITHOUT_USE: [(&str, &[&str]); 5] = [
    (
        "dpu",
        &[
            "queues",
            "depth",
            "on_dpu_loss",
            "dpu_loss_limit",
            "on_mount_loss",
            "cache",
            "cache_size",
            "options",
        ],
    ),
    ("fsck", &OF_A_RUN),
    ("status", &OF_A_RUN),
    ("upgrade", &OF_A_RUN),
    ("grow", &OF_A_RUN),
];

/// What concerns processes that serve.
const OF_A_RUN: [&str; 15] = [
    "queues",
    "depth",
    "spin",
    "on_dpu_loss",
    "dpu_loss_limit",
    "on_mount_loss",
    "socket_mode",
    "socket_group",
    "cache",
    "cache_size",
    "replace",
    "prefetch",
    "flush",
    "dirty_limit",
    "options",
];

impl Cli {
    /// The command line of this process; wrong usage ends it.
    pub(crate) fn of_process() -> Cli {
        let matches = Cli::told_apart().get_matches();
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// With the help of each command naming what it has a use for.
    pub(crate) fn told_apart() -> clap::Command {
        WITHOUT_USE.into_iter().fold(Cli::command(), |cli, (name, hidden)| {
            cli.mut_subcommand(name, |command| {
                command.mut_args(|arg| {
                    let hide = hidden.contains(&arg.get_id().as_str());
                    if hide { arg.hide(true) } else { arg }
                })
            })
        })
    }
}

impl Command {
    /// Whether a configuration file says anything to it.
    pub(crate) fn has_settings(&self) -> bool {
        matches!(
            self,
            Command::Run { .. }
                | Command::Dpu { .. }
                | Command::Mount { .. }
                | Command::Fsck { .. }
                | Command::Status { .. }
                | Command::Upgrade { .. }
                | Command::Grow { .. }
                | Command::Node { .. }
                | Command::Meta { .. }
                | Command::Coordinator { .. }
                | Command::Packed { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A setting that is renamed is renamed in the lists above, too; each help names what is of
    /// use and nothing else, and what it does not name is taken all the same.
    #[test]
    fn help_names_what_a_command_has_a_use_for() {
        let mut cli = Cli::told_apart();
        cli.build();
        for (name, hidden) in WITHOUT_USE {
            let command = cli.find_subcommand_mut(name).unwrap();
            for setting in hidden {
                assert!(command.get_arguments().any(|arg| arg.get_id() == setting), "{setting}");
            }
            let help = command.render_long_help().to_string();
            assert!(help.contains("--data") && help.contains("--log"), "{help}");
            assert!(!help.contains("--queues") && !help.contains("--cache-size"), "{help}");
        }
        let help = cli.find_subcommand_mut("run").unwrap().render_long_help().to_string();
        assert!(help.contains("--queues") && help.contains("--cache-size"), "{help}");
        let taken = Cli::told_apart().try_get_matches_from(["outboard", "fsck", "--queues", "3"]);
        assert!(Cli::from_arg_matches(&taken.unwrap()).is_ok());
    }
}

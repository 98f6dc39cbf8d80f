//! Settings: every one is a flag and a TOML key of the same name, with a default that works.
//!
//! One struct serves both, so the names cannot drift apart. A flag wins over the file; the file is
//! `--config FILE`, else `outboard.toml` in the data directory when it is there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use outboard_attach::host::Shape;
use outboard_cache::policy::{self, Choice, Policies, flush, prefetch, replace};
use outboard_dfs::Without;
use outboard_fuse::KillPoint;
use outboard_kv::object::Compression;
use outboard_store::StoreOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cluster::location::Location;
use crate::exit::Failure;

/// What the host side does while the DPU side is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnDpuLoss {
    /// Keep requests pending until it is back or the time limit passes.
    Wait,
    /// They fail at once, with ENOTCONN.
    Fail,
}

/// What becomes of a mount whose process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnMountLoss {
    /// It is gone, for all who use it.
    End,
    /// Another process takes it over; those who use it wait, and go on.
    Restart,
}

/// Which caches stand between an application and the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CacheMode {
    /// The kernel's page cache, write-through, invalidated when another attachment changes a file.
    Kernel,
    /// The kernel's page cache, which collects writes and has them written later: when a file is
    /// closed at the latest. The mount has the volume for itself, or --shares it.
    WriteBack,
    /// The hybrid cache: pages in this process's memory that the DPU side manages; the kernel keeps
    /// no file data.
    Hybrid,
    /// None: every read and write crosses the link.
    None,
}

/// Who is the client of a shared volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Client {
    /// The DPU side.
    Dpu,
    /// The mount's process, by the same code.
    Host,
    /// The mount's process, which asks the server for everything, file data too.
    Standard,
}

/// How blocks of big files are kept that are written from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Compress {
    /// As they are.
    None,
    /// Packed into fewer, where a write of several of them takes fewer by it.
    Lz4,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The settings as given; what is not given has a default (the methods below).
#[derive(Args, Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Settings {
    /// Directory that holds the volume [default: ./data]
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<PathBuf>,

    /// What keeps the volume: fjall or redb, engines that lie in the data directory, or
    /// rados://POOL?conf=PATH, a pool of a Ceph cluster; the data directory then holds only what is
    /// this host's own. Or shared://HOST:PORT/VOLUME?key=FILE, a volume that other hosts mount, too
    /// (`outboard cluster`). It remembers its store [default: fjall]
    #[arg(long, value_name = "STORE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<String>,

    /// Who is the client of a shared volume: dpu, its DPU side; host, the mount's own process, by
    /// the same code; standard, that process, too, but the metadata server reads and writes the
    /// nodes for it [default: dpu]
    #[arg(long, value_name = "WHO")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client: Option<Client>,

    /// Size of the volume in bytes, with K, M, G or T; the data directory remembers it [default:
    /// what that directory's file system, or the pool, has free]
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<String>,

    /// Queue pairs between the mount and the DPU side [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=63))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queues: Option<u16>,

    /// Commands one queue holds; a power of two [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) depth: Option<u16>,

    /// Longest time a side polls for work before it sleeps, in microseconds; `forever` on a card
    /// that owns its cores [default: 50]
    #[arg(long, value_name = "US")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spin: Option<String>,

    /// What requests do while the DPU side is gone [default: wait]
    #[arg(long, value_name = "POLICY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) on_dpu_loss: Option<OnDpuLoss>,

    /// Seconds requests wait for a lost DPU side before they fail; 0: for ever [default: 60]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dpu_loss_limit: Option<u32>,

    /// What becomes of the mount when the process that serves it dies; `restart` needs Linux 6.9
    /// and a cache other than hybrid [default: restart, where it can be]
    #[arg(long, value_name = "POLICY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) on_mount_loss: Option<OnMountLoss>,

    /// Where the mount's process dies, for tests: read:100, submitted:100 or answered:100
    #[arg(long, value_name = "POINT", hide = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) die_at: Option<String>,

    /// Who may attach processes of their own, as permissions of the DPU side's socket: 660 with
    /// --socket-group for a group, 666 for everybody; root and the volume's owner always may
    /// [default: 600]
    #[arg(long, value_name = "MODE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) socket_mode: Option<String>,

    /// The group of the DPU side's socket, by name or number [default: that of this process]
    #[arg(long, value_name = "GROUP")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) socket_group: Option<String>,

    /// Caches between applications and the volume [default: kernel; of a shared volume: none]
    #[arg(long, value_name = "MODE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<CacheMode>,

    /// With --cache write-back, as root: programs past the kernel and mounts with --cache none may
    /// use the volume, too
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shares: Option<bool>,

    /// Size of the hybrid cache's pages, with K, M or G; memory is taken as it is used
    /// [default: 64M]
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache_size: Option<String>,

    /// Which page of the hybrid cache makes room for another: clock, lru, or s3fifo, which a scan
    /// does not empty [default: s3fifo]
    #[arg(long, value_name = "ALGORITHM")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replace: Option<String>,

    /// What the DPU side reads ahead into the hybrid cache: none, sequential, or strided, which
    /// also knows reads at a constant distance [default: sequential]
    #[arg(long, value_name = "ALGORITHM")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefetch: Option<String>,

    /// When written pages of the hybrid cache are written back: eager, every second, or aged, when
    /// they are 5 s old or many [default: aged]
    #[arg(long, value_name = "ALGORITHM")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) flush: Option<String>,

    /// Pages of the hybrid cache that may wait to be written back, of 100 [default: 40]
    #[arg(long, value_name = "PERCENT",
          value_parser = clap::value_parser!(u8).range(1..=i64::from(policy::DIRTY_MAX)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dirty_limit: Option<u8>,

    /// Compression of files beyond 8 KiB as the DPU side writes them, where that saves space; what
    /// is there is read in either case. A volume that was once opened with lz4 cannot be opened by
    /// programs that do not know of it [default: none]
    #[arg(long, value_name = "METHOD")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compress: Option<Compress>,

    /// Microseconds each read of the data file takes longer, for measuring [default: 0]
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(..=1_000_000),
          hide = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) read_delay: Option<u32>,

    /// What the client of a shared volume does without, for measuring: view, delegations,
    /// streams
    #[arg(long, value_name = "LIST", hide = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) without: Option<String>,

    /// Mount options, separated by commas: ro, noatime, nodev, nosuid, noexec, allow_other
    #[arg(short = 'o', long, value_name = "OPTIONS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) options: Option<String>,

    /// Memory the DPU side may use for its metadata cache, with K, M or G; a million files take
    /// some 700M [default: a 16th of the machine's memory, between 128M and 1G]
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<String>,

    /// What to log: error, warn, info, debug, trace, or a filter such as `info,outboard_kvfs=debug`
    /// [default: info]
    #[arg(long, value_name = "FILTER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log: Option<String>,

    /// How log lines look [default: text]
    #[arg(long, value_name = "FORMAT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_format: Option<LogFormat>,
}

/// Largest hybrid cache, bytes: with its metadata it stays well below the largest region a DPU side
/// takes.
const CACHE_SIZE_MAX: u64 = 8 << 30;

macro_rules! prefer {
    ($flags:ident, $file:ident; $($field:ident),*) => {
        Settings { $($field: $flags.$field.or($file.$field)),* }
    };
}

impl Settings {
    /// The flags, completed from the file `config` or the data directory's `outboard.toml`.
    pub(crate) fn load(self, config: Option<&Path>) -> Result<Settings, Failure> {
        let implied = self.data().join("outboard.toml");
        let path = match config {
            Some(path) => path,
            None if implied.is_file() => &implied,
            None => return self.fitting(),
        };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!("cannot read the configuration {}: {error}", path.display()))
        })?;
        let file: Settings = toml::from_str(&text).map_err(|error| {
            Failure::usage(format!(
                "{} is not a valid configuration: {error}\
                 Keys are the long flags without dashes; see `outboard run --help`.",
                path.display()
            ))
        })?;
        let flags = self;
        let both = prefer!(
            flags, file; data, store, client, size, queues, depth, spin, on_dpu_loss,
            dpu_loss_limit, on_mount_loss, die_at, cache, shares,
            cache_size, replace, prefetch, flush, dirty_limit, compress, read_delay, without,
            options, memory, log, log_format, socket_mode, socket_group
        );
        both.fitting()
    }

    /// With the shared volume that was named before the mount point, if one was; and that.
    pub(crate) fn at(self, places: Vec<PathBuf>) -> Result<(Settings, PathBuf), Failure> {
        let (source, mountpoint) = match <[PathBuf; 2]>::try_from(places) {
            Ok([source, mountpoint]) => (source.display().to_string(), mountpoint),
            Err(mut places) => match (places.pop(), places.is_empty()) {
                (Some(mountpoint), true) => return Ok((self, mountpoint)),
                _ => return Err(Failure::usage("say one mount point, and no more")),
            },
        };
        if self.store.is_some() {
            return Err(Failure::usage(format!("{source} is there beside --store: leave one out")));
        }
        if Location::parse(&source)?.is_none() {
            return Err(Failure::usage(format!(
                "{source} names no shared volume; write shared://HOST:PORT/VOLUME?key=FILE, or \
                 name the data directory of a volume with --data"
            )));
        }
        Ok((Settings { store: Some(source), ..self }, mountpoint))
    }

    /// For a shared volume: with what goes with one; what does not is refused.
    fn fitting(self) -> Result<Settings, Failure> {
        let Some(location) = self.shared()? else {
            let Some(client) = self.client_here() else { return Ok(self) };
            return Err(Failure::usage(format!(
                "--client {client} is for a shared volume: the DPU side has this one itself"
            )));
        };
        if self.size.is_some() {
            return Err(Failure::usage(
                "--size is not for a shared volume, which is as large as its nodes",
            ));
        }
        let cache = self.cache.unwrap_or(CacheMode::None);
        if matches!(cache, CacheMode::Kernel | CacheMode::WriteBack) {
            return Err(Failure::usage(
                "a shared volume is not kept in the kernel's page cache, which nobody can take \
                 back from a host that stands still: take --cache hybrid or --cache none",
            ));
        }
        let shared = Settings { store: Some(location.whole()), cache: Some(cache), ..self };
        shared.fitting_its_client()
    }

    /// With what goes with the client; what does not is refused.
    fn fitting_its_client(self) -> Result<Settings, Failure> {
        let Some(client) = self.client_here() else { return Ok(self) };
        if self.cache() == CacheMode::Hybrid {
            return Err(Failure::usage(format!(
                "--cache hybrid does not go with --client {client}: its pages are managed by a \
                 DPU side; take --cache none, or --client dpu"
            )));
        }
        if self.on_mount_loss == Some(OnMountLoss::Restart) {
            return Err(Failure::usage(format!(
                "--on-mount-loss restart does not go with --client {client}: the client is in the \
                 mount's process, and ends with it; take --on-mount-loss end, or --client dpu"
            )));
        }
        Ok(Settings { on_mount_loss: Some(OnMountLoss::End), ..self })
    }

    /// Who the client of a shared volume is.
    pub(crate) fn client(&self) -> Client {
        self.client.unwrap_or(Client::Dpu)
    }

    /// The client's name, if it is in the mount's process.
    pub(crate) fn client_here(&self) -> Option<&'static str> {
        match self.client() {
            Client::Dpu => None,
            Client::Host => Some("host"),
            Client::Standard => Some("standard"),
        }
    }

    /// The shared volume they speak of, if it is one.
    pub(crate) fn shared(&self) -> Result<Option<Location>, Failure> {
        Location::of(&self.data(), self.store.as_deref())
    }

    /// The volume's directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.data.clone().unwrap_or_else(|| PathBuf::from("data"))
    }

    /// Where the DPU side listens: a path the kernel can take as a socket name.
    pub(crate) fn socket(&self) -> PathBuf {
        self.data().join("dpu.sock")
    }

    /// What they ask of the volume's store.
    pub(crate) fn store_options(&self) -> Result<StoreOptions, Failure> {
        if self.shared()?.is_some() {
            return Err(Failure::usage(format!(
                "{} belongs to a shared volume, which its cluster keeps: see `outboard cluster`",
                self.data().display()
            )));
        }
        Ok(StoreOptions {
            data: self.data(),
            store: self.store.clone(),
            size: self.size()?,
            memory: self.memory()?,
            compression: match self.compress() {
                Compress::None => Compression::None,
                Compress::Lz4 => Compression::Lz4,
            },
            read_delay: self.read_delay(),
            spread: None,
        })
    }

    /// Size of a new volume, bytes; `None`: as the data directory allows.
    pub(crate) fn size(&self) -> Result<Option<u64>, Failure> {
        self.size.as_deref().map(|text| bytes("size", text)).transpose()
    }

    /// Bytes for the metadata cache.
    pub(crate) fn memory(&self) -> Result<u64, Failure> {
        self.memory.as_deref().map_or_else(|| Ok(default_memory()), |text| bytes("memory", text))
    }

    /// Queue pairs.
    pub(crate) fn queues(&self) -> u16 {
        self.queues.unwrap_or(2)
    }

    /// Commands a queue holds.
    pub(crate) fn depth(&self) -> Result<u16, Failure> {
        let depth = self.depth.unwrap_or(32);
        if depth.is_power_of_two() {
            return Ok(depth);
        }
        Err(Failure::usage(format!("--depth {depth} is not a power of two; take 32 or 64")))
    }

    /// Longest spin; `None`: for ever.
    pub(crate) fn spin(&self) -> Result<Option<Duration>, Failure> {
        match self.spin.as_deref() {
            None => Ok(Some(Duration::from_micros(50))),
            Some("forever") => Ok(None),
            Some(text) => match text.parse::<u64>() {
                Ok(micros) if micros <= 1_000_000 => Ok(Some(Duration::from_micros(micros))),
                _ => Err(Failure::usage(format!(
                    "--spin {text} is neither `forever` nor microseconds up to 1000000"
                ))),
            },
        }
    }

    /// What requests do while the DPU side is gone, and for how long.
    pub(crate) fn on_dpu_loss(&self) -> (OnDpuLoss, Option<Duration>) {
        let limit = self.dpu_loss_limit.map(|seconds| Duration::from_secs(seconds.into()));
        (self.on_dpu_loss.unwrap_or(OnDpuLoss::Wait), limit)
    }

    /// Whether others may be beside a kernel that collects writes.
    pub(crate) fn shares(&self) -> bool {
        self.shares.unwrap_or(false)
    }

    /// Whether a mount outlives its process. With write-back it does, or what the kernel answered
    /// would be lost.
    pub(crate) fn mount_outlives(&self) -> Result<bool, Failure> {
        match (self.cache(), self.on_mount_loss) {
            (CacheMode::Hybrid, Some(OnMountLoss::Restart)) => Err(Failure::usage(
                "--on-mount-loss restart does not go with --cache hybrid, whose pages a process \
                 that dies may have half written; take another cache",
            )),
            (mode, _) if self.shares() && mode != CacheMode::WriteBack => Err(Failure::usage(
                "--shares is for --cache write-back: with other caches a volume is shared anyhow",
            )),
            (CacheMode::WriteBack, Some(OnMountLoss::End)) => Err(Failure::usage(
                "--on-mount-loss end does not go with --cache write-back: what the kernel has \
                 answered and not written would be lost with the mount's process",
            )),
            (CacheMode::Hybrid, _) | (_, Some(OnMountLoss::End)) => Ok(false),
            (_, Some(OnMountLoss::Restart) | None) => Ok(true),
        }
    }

    /// Where the mount's process dies.
    pub(crate) fn die_at(&self) -> Result<Option<(KillPoint, u64)>, Failure> {
        let Some(text) = self.die_at.as_deref() else { return Ok(None) };
        let parsed = KillPoint::parse(text);
        parsed.map(Some).ok_or_else(|| Failure::usage(format!("--die-at {text} is no kill point")))
    }

    /// Permissions of the socket.
    pub(crate) fn socket_mode(&self) -> Result<u32, Failure> {
        let Some(text) = self.socket_mode.as_deref() else { return Ok(0o600) };
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode & !0o666 == 0 && mode & 0o600 == 0o600 => Ok(mode),
            _ => Err(Failure::usage(format!(
                "--socket-mode {text} is no mode of a socket; take 600, 660 or 666"
            ))),
        }
    }

    /// The socket's group, if one was chosen.
    pub(crate) fn socket_group(&self) -> Result<Option<u32>, Failure> {
        let Some(name) = self.socket_group.as_deref() else { return Ok(None) };
        let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
        group_of(name, &groups).map(Some).ok_or_else(|| {
            Failure::usage(format!("--socket-group {name}: there is no such group; see /etc/group"))
        })
    }

    /// What concerns the DPU side alone, as it is in force there: `status` tells it.
    pub(crate) fn of_the_dpu_side(&self) -> Result<serde_json::Map<String, Value>, Failure> {
        let spin = self.spin()?.map_or_else(|| json!("forever"), |spin| json!(spin.as_micros()));
        let all = [
            ("memory", json!(self.memory()?)),
            ("size", json!(self.size()?)),
            ("spin", spin),
            ("socket-mode", json!(format!("{:o}", self.socket_mode()?))),
            ("socket-group", json!(self.socket_group()?)),
            ("log", json!(self.log())),
            ("compress", json!(self.compress())),
            ("read-delay", json!(self.read_delay().as_micros())),
            ("client", json!(self.client())),
        ];
        Ok(all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// Of what was asked for here, that which a DPU side that runs already does not do: the flag,
    /// and what is in force. What was not asked for is not missed.
    pub(crate) fn not_done_by(&self, running: &Value) -> Result<Vec<(String, String)>, Failure> {
        let asked = toml::Table::try_from(self)
            .map_err(|error| Failure::internal(format!("settings do not serialise: {error}")))?;
        let mut differ = Vec::new();
        for (key, here) in self.of_the_dpu_side()? {
            let there = running.get(&key).unwrap_or(&Value::Null);
            // One that says nothing of it is older than this program.
            let known = running.get(&key).is_some();
            if asked.contains_key(&key) && known && here != *there {
                let there =
                    if there.is_null() { "as it was".to_owned() } else { there.to_string() };
                differ.push((key, there));
            }
        }
        Ok(differ)
    }

    /// Caches in use.
    pub(crate) fn cache(&self) -> CacheMode {
        self.cache.unwrap_or(CacheMode::Kernel)
    }

    /// The hybrid cache a mount asks for; `None` where another mode is set.
    pub(crate) fn hybrid(&self) -> Result<Option<Shape>, Failure> {
        if self.cache() != CacheMode::Hybrid {
            return Ok(None);
        }
        let default = Shape::default();
        let given = self.cache_size.as_deref().map(|text| bytes("cache-size", text)).transpose()?;
        let wishes = self.choice()?.wishes();
        let shape = Shape { len: given.unwrap_or(default.len), wishes, ..default };
        let least = u64::from(shape.page_size) * u64::from(shape.ways);
        if (least..=CACHE_SIZE_MAX).contains(&shape.len) {
            return Ok(Some(shape));
        }
        Err(Failure::usage(format!(
            "--cache-size {} is out of range; take 64K to 8G",
            self.cache_size.as_deref().unwrap_or_default()
        )))
    }

    /// How a hybrid cache is to be managed, as far as it was said.
    fn choice(&self) -> Result<Choice, Failure> {
        fn named<T>(
            flag: &str,
            given: Option<&String>,
            parse: fn(&str) -> Option<T>,
            all: &[&str],
        ) -> Result<Option<T>, Failure> {
            let Some(name) = given else { return Ok(None) };
            parse(name).map(Some).ok_or_else(|| {
                let all = all.join(", ");
                Failure::usage(format!("--{flag} {name} is not known; take one of {all}"))
            })
        }
        let replaces = replace::Name::ALL.map(replace::Name::as_str);
        let prefetches = prefetch::Name::ALL.map(prefetch::Name::as_str);
        let flushes = flush::Name::ALL.map(flush::Name::as_str);
        if self.dirty_limit.is_some_and(|limit| !(1..=policy::DIRTY_MAX).contains(&limit)) {
            let most = policy::DIRTY_MAX;
            return Err(Failure::usage(format!("--dirty-limit is a percentage from 1 to {most}")));
        }
        Ok(Choice {
            replace: named("replace", self.replace.as_ref(), replace::Name::parse, &replaces)?,
            prefetch: named(
                "prefetch",
                self.prefetch.as_ref(),
                prefetch::Name::parse,
                &prefetches,
            )?,
            flush: named("flush", self.flush.as_ref(), flush::Name::parse, &flushes)?,
            dirty: self.dirty_limit,
        })
    }

    /// How the DPU side manages hybrid caches whose hosts choose nothing.
    pub(crate) fn policies(&self) -> Result<Policies, Failure> {
        Ok(Policies::default().with(self.choice()?.wishes()))
    }

    /// How blocks are written.
    pub(crate) fn compress(&self) -> Compress {
        self.compress.unwrap_or(Compress::None)
    }

    /// What each read of the data file takes longer.
    pub(crate) fn read_delay(&self) -> Duration {
        Duration::from_micros(self.read_delay.unwrap_or(0).into())
    }

    /// What the client of a shared volume does without.
    pub(crate) fn without(&self) -> Result<Without, Failure> {
        let mut without = Without::default();
        for word in self.without.iter().flat_map(|list| list.split(',')) {
            match word {
                "view" => without.view = true,
                "delegations" => without.delegations = true,
                "streams" => without.streams = true,
                _ => {
                    let all = "take view, delegations, streams, or several with commas";
                    return Err(Failure::usage(format!("--without {word} is not known; {all}")));
                }
            }
        }
        Ok(without)
    }

    /// The log filter.
    pub(crate) fn log(&self) -> &str {
        self.log.as_deref().unwrap_or("info")
    }

    /// How log lines look.
    pub(crate) fn log_format(&self) -> LogFormat {
        self.log_format.unwrap_or(LogFormat::Text)
    }

    /// These settings as flags for a child process.
    pub(crate) fn to_flags(&self) -> Result<Vec<String>, Failure> {
        let table = toml::Table::try_from(self)
            .map_err(|error| Failure::internal(format!("settings do not serialise: {error}")))?;
        Ok(table
            .into_iter()
            .map(|(key, value)| match value {
                toml::Value::String(text) => format!("--{key}={text}"),
                other => format!("--{key}={other}"),
            })
            .collect())
    }
}

/// The number of a group: itself, or as a line `name:x:number:members` says.
fn group_of(name: &str, groups: &str) -> Option<u32> {
    name.parse().ok().or_else(|| {
        let mut fields = groups.lines().map(|line| line.split(':'));
        let mut line =
            fields.find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
        line.nth(1)?.parse().ok()
    })
}

/// Metadata of a million files fits on any machine of 16G; a small one keeps what it has.
fn default_memory() -> u64 {
    sixteenth_of_memory(128 << 20)
}

/// A 16th of the memory there is for this process: at least so much, at most 1G.
pub(crate) fn sixteenth_of_memory(least: u64) -> u64 {
    (outboard_os::memory::bytes() / 16).clamp(least, 1 << 30)
}

/// Parses `12`, `512M`, `1.5G` and the like; units are powers of 1024.
pub(crate) fn bytes(name: &str, text: &str) -> Result<u64, Failure> {
    let wrong =
        || Failure::usage(format!("--{name} {text} is not a size; write bytes, or 512M, 20G, 1T"));
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let digits = u32::try_from(fraction.len()).ok().filter(|&n| n <= 9).ok_or_else(wrong)?;
    let fraction: u64 = fraction.parse().map_err(|_| wrong())?;
    let part = (u128::from(fraction) << shift) / 10u128.pow(digits);
    let whole = u128::from(whole) << shift;
    u64::try_from(whole + part).map_err(|_| wrong())
}

#[cfg(test)]
mod tests;

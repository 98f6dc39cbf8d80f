//! What settings are read as, and what is refused.

use super::*;

#[test]
fn sizes_are_read_with_their_units() {
    for (text, value) in [
        ("0", 0),
        ("4096", 4096),
        ("512M", 512 << 20),
        ("1.5G", 3 << 29),
        ("20GiB", 20 << 30),
        ("2T", 2 << 40),
    ] {
        assert_eq!(bytes("size", text).unwrap(), value, "{text}");
    }
    for text in ["", "M", "12Q", "-1", "1.", "99999999999T", "1.2.3"] {
        assert!(bytes("size", text).is_err(), "{text}");
    }
}

#[test]
fn a_hybrid_cache_has_a_size_that_makes_sense() {
    let with = |cache, size: Option<&str>| Settings {
        cache,
        cache_size: size.map(str::to_owned),
        ..Settings::default()
    };
    assert_eq!(with(None, Some("1G")).hybrid().unwrap(), None);
    let hybrid = Some(CacheMode::Hybrid);
    assert_eq!(with(hybrid, None).hybrid().unwrap(), Some(Shape::default()));
    assert_eq!(with(hybrid, Some("1G")).hybrid().unwrap().unwrap().len, 1 << 30);
    for size in ["0", "63K", "9G", "much"] {
        let message = with(hybrid, Some(size)).hybrid().unwrap_err().to_string();
        assert!(message.contains(size), "{message}");
    }
}

#[test]
fn how_a_cache_is_managed_has_names() {
    let given = |text: &str| toml::from_str::<Settings>(text).unwrap().policies();
    assert_eq!(given("").unwrap(), Policies::default());
    for name in replace::Name::ALL {
        let text = format!("replace = \"{}\"", name.as_str());
        assert_eq!(given(&text).unwrap(), Policies { replace: name, ..Policies::default() });
    }
    for name in prefetch::Name::ALL {
        let text = format!("prefetch = \"{}\"", name.as_str());
        assert_eq!(given(&text).unwrap(), Policies { prefetch: name, ..Policies::default() });
    }
    for name in flush::Name::ALL {
        let text = format!("flush = \"{}\"", name.as_str());
        assert_eq!(given(&text).unwrap(), Policies { flush: name, ..Policies::default() });
    }
    assert_eq!(given("dirty-limit = 90").unwrap().dirty, 90);
    for (flag, value, known) in [
        ("prefetch", "\"psychic\"", "strided"),
        ("replace", "\"best\"", "s3fifo"),
        ("flush", "\"never\"", "aged"),
        ("dirty-limit", "91", "1 to 90"),
    ] {
        let message = given(&format!("{flag} = {value}")).unwrap_err().to_string();
        assert!(message.contains(flag) && message.contains(known), "{message}");
    }
}

#[test]
fn a_mount_says_in_its_cache_how_it_is_managed() {
    let settings: Settings =
        toml::from_str("cache = \"hybrid\"\nreplace = \"lru\"\ndirty-limit = 7").unwrap();
    let wishes = settings.hybrid().unwrap().unwrap().wishes;
    let lru = replace::Name::Lru;
    let expected = Policies { replace: lru, dirty: 7, ..Policies::default() };
    assert_eq!(Policies::default().with(wishes), expected);
}

#[test]
fn a_flag_wins_over_the_file_and_unknown_keys_are_refused() {
    let dir = std::env::temp_dir().join(format!("outboard-settings-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("a.toml");
    std::fs::write(&file, "queues = 7\ndepth = 64\non-dpu-loss = \"fail\"\n").unwrap();
    let flags = Settings { queues: Some(3), ..Settings::default() };
    let merged = flags.load(Some(&file)).unwrap();
    assert_eq!((merged.queues(), merged.depth().unwrap()), (3, 64));
    assert_eq!(merged.on_dpu_loss().0, OnDpuLoss::Fail);
    std::fs::write(&file, "quees = 7\n").unwrap();
    let message = Settings::default().load(Some(&file)).unwrap_err().to_string();
    assert!(message.contains("quees") && message.contains("--help"), "{message}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn who_may_attach_is_a_mode_and_a_group() {
    let given = |text: &str| toml::from_str::<Settings>(text).unwrap();
    assert_eq!(given("").socket_mode().unwrap(), 0o600);
    assert_eq!(given("socket-mode = \"660\"").socket_mode().unwrap(), 0o660);
    for wrong in ["060", "700", "x", "1666", "-1"] {
        let message = given(&format!("socket-mode = \"{wrong}\"")).socket_mode().unwrap_err();
        assert!(message.to_string().contains(wrong), "{message}");
    }
    let groups = "root:x:0:\nusers:x:100:anna,bert\nbroken\nempty:x::\n";
    assert_eq!(group_of("users", groups), Some(100));
    assert_eq!(group_of("7", groups), Some(7));
    for absent in ["user", "anna", "broken", "empty", ""] {
        assert_eq!(group_of(absent, groups), None, "{absent}");
    }
    assert!(given("socket-group = \"no such group\"").socket_group().is_err());
}

/// A DPU side that had outlived an earlier `run` was adopted with `--memory 2G`, and nobody was
/// told that it goes on with what it has.
#[test]
fn what_an_adopted_dpu_side_does_not_do_is_known() {
    let given = |text: &str| toml::from_str::<Settings>(text).unwrap();
    let running = given("memory = \"512M\"\nspin = \"20\"").of_the_dpu_side().unwrap();
    let running = Value::Object(running);
    let differ = |text: &str| given(text).not_done_by(&running).unwrap();
    assert_eq!(differ(""), [], "nothing was asked for");
    assert_eq!(differ("memory = \"0.5G\"\nspin = \"20\"\ncache = \"none\""), []);
    let keys = |text: &str| differ(text).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(keys("memory = \"2G\""), ["memory"]);
    assert_eq!(keys("size = \"20G\"\nsocket-mode = \"666\""), ["size", "socket-mode"]);
    assert_eq!(keys("compress = \"lz4\""), ["compress"]);
    assert_eq!(differ("compress = \"none\""), []);
    assert_eq!(given("memory = \"2G\"").not_done_by(&Value::Null).unwrap(), [], "an older one");
}

/// The sample had stayed behind the flags: it knew no store, no hybrid cache and no `hybrid`.
#[test]
fn the_sample_configuration_names_every_setting() {
    let keys = include_str!("../../../../../etc/outboard.toml")
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| !line.starts_with(' '))
        .collect::<Vec<_>>()
        .join("\n");
    let sample: Settings = toml::from_str(&keys).unwrap();
    let named: toml::Table = keys.parse().unwrap();
    let flags = Settings::augment_args(clap::Command::new("x"));
    for flag in flags.get_arguments().filter(|flag| !flag.is_hide_set()) {
        let name = flag.get_long().unwrap();
        assert!(named.contains_key(name), "--{name} is not in etc/outboard.toml");
    }
    assert!(sample.policies().is_ok() && sample.depth().is_ok() && sample.spin().is_ok());
    assert!(sample.socket_mode().is_ok() && sample.size().is_ok() && sample.memory().is_ok());
}

/// What a client in the mount's process cannot have is refused, and not left out in silence.
#[test]
fn a_client_here_ends_with_its_mount() {
    let given = |text: &str| {
        let key = "store = \"shared://127.0.0.1/v?key=k\"\ndata = \"/none\"";
        toml::from_str::<Settings>(&format!("{key}\n{text}")).unwrap().fitting()
    };
    assert!(given("").unwrap().mount_outlives().unwrap());
    for client in ["host", "standard"] {
        let client = format!("client = \"{client}\"");
        let fitting = given(&client).unwrap();
        assert!(!fitting.mount_outlives().unwrap() && fitting.client_here().is_some());
        for wrong in ["cache = \"hybrid\"", "on-mount-loss = \"restart\""] {
            let message = given(&format!("{client}\n{wrong}")).unwrap_err().to_string();
            assert!(message.contains("--client dpu"), "{message}");
        }
    }
    let kv: Settings = toml::from_str("data = \"/none\"\nclient = \"host\"").unwrap();
    assert!(kv.fitting().unwrap_err().to_string().contains("shared volume"));
    let kv: Settings = toml::from_str("data = \"/none\"\nclient = \"dpu\"").unwrap();
    assert!(kv.fitting().is_ok());
}

#[test]
fn settings_survive_the_way_to_a_child_process() {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        settings: Settings,
    }
    let settings = Settings {
        data: Some("some dir".into()),
        depth: Some(64),
        cache: Some(CacheMode::None),
        on_dpu_loss: Some(OnDpuLoss::Fail),
        ..Settings::default()
    };
    let mut words = vec!["x".to_owned()];
    words.extend(settings.to_flags().unwrap());
    let again = <Line as clap::Parser>::try_parse_from(words).unwrap().settings;
    assert_eq!(format!("{again:?}"), format!("{settings:?}"));
}

//! A layout in words: `strategy=single,width=4,strip=64K`.

use std::fmt::Write as _;

use outboard_base::{Errno, Result};
use outboard_wire::shared::Strategy;
use outboard_wire::shared::call::Layout;

const STRATEGIES: [(Strategy, &str); 4] = [
    (Strategy::Single, "single"),
    (Strategy::Ring, "ring"),
    (Strategy::BinaryTree, "tree"),
    (Strategy::Parity, "parity"),
];

/// In words: `strategy=single,width=4,strip=64K`, and for other strategies `k` and `m` where they
/// say something. The group is left out: each file has its own.
#[must_use]
pub fn layout_text(layout: &Layout) -> String {
    let name = STRATEGIES.iter().find(|(strategy, _)| *strategy == layout.strategy);
    let mut text = format!("strategy={}", name.map_or("", |(_, name)| *name));
    // Writing to a string does not fail.
    if layout.strategy != Strategy::Single {
        let _ = write!(text, ",k={}", layout.k);
    }
    if layout.strategy == Strategy::Parity {
        let _ = write!(text, ",m={}", layout.m);
    }
    let _ = write!(text, ",width={},strip={}K", layout.width, layout.strip >> 10);
    text
}

/// The reverse. Parts may stand in any order, each once; what is left out is as in
/// [`Layout::default`], but that other strategies must say `k`. `EINVAL` for anything else.
pub fn parse_layout(text: &str) -> Result<Layout> {
    let (mut strategy, mut k, mut m, mut width, mut strip) = (None, None, None, None, None);
    for part in text.trim().split(',') {
        let (name, value) = part.split_once('=').ok_or(Errno::EINVAL)?;
        match name {
            "strategy" => once(&mut strategy, self::strategy(value)?)?,
            "k" => once(&mut k, number(value)?)?,
            "m" => once(&mut m, number(value)?)?,
            "width" => once(&mut width, number(value)?)?,
            "strip" => once(&mut strip, bytes(value)?)?,
            _ => return Err(Errno::EINVAL),
        }
    }
    let default = Layout::default();
    let strategy = strategy.unwrap_or(default.strategy);
    let k = match strategy {
        Strategy::Single => k.unwrap_or(default.k),
        _ => k.ok_or(Errno::EINVAL)?,
    };
    let layout = Layout {
        strategy,
        k,
        m: m.unwrap_or(0),
        width: width.unwrap_or(default.width),
        strip: strip.unwrap_or(default.strip),
        group: 0,
    };
    check(&layout)?;
    Ok(layout)
}

/// `EINVAL` for what no file can have.
pub(super) fn check(layout: &Layout) -> Result<()> {
    Layout::decode(&layout.encode()).map(drop).map_err(|_| Errno::EINVAL)
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<()> {
    if place.replace(value).is_none() { Ok(()) } else { Err(Errno::EINVAL) }
}

fn strategy(name: &str) -> Result<Strategy> {
    let found = STRATEGIES.iter().find(|(_, known)| *known == name);
    found.map(|(strategy, _)| *strategy).ok_or(Errno::EINVAL)
}

/// Digits only: no sign.
fn number<T: std::str::FromStr>(text: &str) -> Result<T> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Errno::EINVAL);
    }
    text.parse().map_err(|_| Errno::EINVAL)
}

/// Bytes, KiB with `K`, MiB with `M`.
fn bytes(text: &str) -> Result<u32> {
    let (digits, unit) = match text.strip_suffix('K') {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    number::<u32>(digits)?.checked_mul(unit).ok_or(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use outboard_wire::shared::Strategy;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let single = Layout { width: 7, strip: 256 << 10, ..Layout::default() };
        assert_eq!(layout_text(&single), "strategy=single,width=7,strip=256K");
        let ring = Layout { strategy: Strategy::Ring, k: 3, ..Layout::default() };
        assert_eq!(layout_text(&ring), "strategy=ring,k=3,width=4,strip=64K");
        let parity = Layout { strategy: Strategy::Parity, k: 6, m: 3, ..Layout::default() };
        assert_eq!(layout_text(&parity), "strategy=parity,k=6,m=3,width=4,strip=64K");
        assert_eq!(parse_layout("strip=1M,width=1\n"), parse_layout("width=1,strip=1024K"));
        assert_eq!(parse_layout("strip=65536"), Ok(Layout::default()));
        assert_eq!(parse_layout("width=2").map(|layout| layout.width), Ok(2));
    }

    #[test]
    fn what_says_no_layout_is_refused() {
        for text in [
            "",
            "width",
            "width=",
            "width=0",
            "width=17",
            "width=+4",
            "width=256",
            "width=4,width=4",
            "strip=63K",
            "strip=2M",
            "strip=32K",
            "strip=96K",
            "strip=K",
            "strip=4194304M",
            "strategy=raid",
            "strategy=ring",
            "strategy=parity,k=4",
            "strategy=single,k=2",
            "k=1,m=1",
            "strategy=single,",
            "color=blue",
            "group=4",
        ] {
            assert_eq!(parse_layout(text), Err(Errno::EINVAL), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_layout_goes_there_and_back(
            strategy in prop::sample::select(STRATEGIES.map(|(strategy, _)| strategy).to_vec()),
            (k, m, width, strip) in (0..20_u8, 0..20_u8, 0..20_u8, 14..23_u32),
        ) {
            let layout = Layout { strategy, k, m, width, strip: 1 << strip, group: 0 };
            let back = parse_layout(&layout_text(&layout));
            // What the text leaves out is refused by `check`, if it is not what the text means.
            let means = check(&layout).is_ok();
            prop_assert!(!means || back == Ok(layout));
            prop_assert!(back.is_err() || check(&back?).is_ok());
        }

        #[test]
        fn no_text_is_too_strange(text in ".{0,40}") {
            let _ = parse_layout(&text);
        }
    }
}

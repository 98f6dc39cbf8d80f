//! A layout in words: `strategy=single,width=4,strip=64K`.

use std::fmt::Write as _;

use outboard_base::{Errno, Result};
use outboard_wire::shared::Strategy;
use outboard_wire::shared::call::Layout;

/// Bytes of a strip.
const STRIPS: std::ops::RangeInclusive<u32> = 64 << 10..=1 << 20;
/// Nodes that the strips of a file may go over in turn.
const WIDTHS: std::ops::RangeInclusive<u8> = 1..=16;
/// Most nodes that hold one strip.
const UNITS_MAX: u8 = 16;

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

/// The reverse. Parts may stand in any order, each once; left out are one copy (`k` and `m` of the
/// others must be said), a width of 1 and strips of 64 KiB. `EINVAL` for anything else.
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
    let strategy = strategy.unwrap_or(Strategy::Single);
    let k = match strategy {
        Strategy::Single => k.unwrap_or(1),
        _ => k.ok_or(Errno::EINVAL)?,
    };
    let layout = Layout {
        strategy,
        k,
        m: m.unwrap_or(0),
        width: width.unwrap_or(1),
        strip: strip.unwrap_or(*STRIPS.start()),
        group: 0,
    };
    check(&layout)?;
    Ok(layout)
}

/// `EINVAL` for what no file can have.
pub(super) fn check(layout: &Layout) -> Result<()> {
    let Layout { strategy, k, m, width, strip, group: _ } = *layout;
    let units = match strategy {
        Strategy::Single => k == 1 && m == 0,
        Strategy::Ring | Strategy::BinaryTree => k > 1 && m == 0,
        Strategy::Parity => k > 1 && m > 0,
    };
    let fits = k.saturating_add(m) <= UNITS_MAX && WIDTHS.contains(&width);
    let strips = STRIPS.contains(&strip) && strip.is_power_of_two();
    if units && fits && strips { Ok(()) } else { Err(Errno::EINVAL) }
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

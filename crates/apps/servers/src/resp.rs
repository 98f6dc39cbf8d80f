//! RESP2, the protocol of Redis: commands, inline or as arrays, and answers.

use std::ops::Range;

/// Most arguments of a command.
pub const ARGS_MAX: usize = 64 << 10;
/// Longest argument, bytes.
pub const ARG_MAX: usize = 1 << 20;
/// Longest inline command, bytes.
pub const INLINE_MAX: usize = 64 << 10;
/// Deepest nesting of an answer.
const DEPTH_MAX: usize = 8;

/// What stands at the start of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A command of so many bytes; its arguments are in the vector.
    Command(usize),
    /// Not before there are so many bytes.
    More(usize),
    /// None: the text says why, as Redis says it.
    Invalid(&'static str),
}

/// A line up to `\r\n`: what stands before it and where the next begins.
fn line(bytes: &[u8], from: usize, most: usize) -> Result<Option<(&[u8], usize)>, ()> {
    let rest = bytes.get(from..).unwrap_or_default();
    let window = rest.get(..most.min(rest.len())).unwrap_or_default();
    match window.iter().position(|byte| *byte == b'\n') {
        Some(at) => {
            let line = window.get(..at).unwrap_or_default();
            Ok(Some((line.strip_suffix(b"\r").unwrap_or(line), from + at + 1)))
        }
        None if window.len() < most => Ok(None),
        None => Err(()),
    }
}

fn number(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut value: i64 = 0;
    for digit in digits {
        let digit = i64::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
        // Towards the negative, which reaches one further.
        value = value.checked_mul(10)?.checked_sub(digit)?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

/// An integer as Redis accepts it: no sign but `-`, no leading zeros.
#[must_use]
pub fn integer(text: &[u8]) -> Option<i64> {
    let plain = matches!(text, [b'0'] | [b'-', b'1'..=b'9', ..] | [b'1'..=b'9', ..]);
    if plain { number(text) } else { None }
}

/// Longest line that holds one number.
const NUMBER_LINE: usize = 32;

/// Finds the first command of `bytes` and puts the places of its arguments into `args`.
pub fn parse(bytes: &[u8], args: &mut Vec<Range<usize>>) -> Parsed {
    args.clear();
    match bytes.first() {
        None => Parsed::More(1),
        Some(b'*') => parse_array(bytes, args),
        Some(_) => parse_inline(bytes, args),
    }
}

fn parse_array(bytes: &[u8], args: &mut Vec<Range<usize>>) -> Parsed {
    let invalid = Parsed::Invalid("Protocol error: invalid multibulk length");
    let (count, mut at) = match line(bytes, 1, NUMBER_LINE) {
        Ok(Some((text, next))) => match number(text).map(|n| (n, usize::try_from(n))) {
            Some((n, _)) if n <= 0 => return Parsed::Command(next),
            Some((_, Ok(count))) if count <= ARGS_MAX => (count, next),
            _ => return invalid,
        },
        Ok(None) => return Parsed::More(bytes.len() + 1),
        Err(()) => return invalid,
    };
    for _ in 0..count {
        match bytes.get(at) {
            None => return Parsed::More(at + 1),
            Some(b'$') => {}
            Some(_) => return Parsed::Invalid("Protocol error: expected '$'"),
        }
        let invalid = Parsed::Invalid("Protocol error: invalid bulk length");
        let (len, start) = match line(bytes, at + 1, NUMBER_LINE) {
            Ok(Some((text, next))) => match number(text).and_then(|n| usize::try_from(n).ok()) {
                Some(len) if len <= ARG_MAX => (len, next),
                _ => return invalid,
            },
            Ok(None) => return Parsed::More(bytes.len() + 1),
            Err(()) => return invalid,
        };
        if bytes.len() < start + len + 2 {
            return Parsed::More(start + len + 2);
        }
        args.push(start..start + len);
        at = start + len + 2;
    }
    Parsed::Command(at)
}

fn parse_inline(bytes: &[u8], args: &mut Vec<Range<usize>>) -> Parsed {
    match line(bytes, 0, INLINE_MAX) {
        Ok(Some((text, next))) => {
            let mut start = None;
            for at in 0..=text.len() {
                let blank = text.get(at).is_none_or(u8::is_ascii_whitespace);
                match (blank, start) {
                    (false, None) => start = Some(at),
                    (true, Some(from)) => {
                        args.push(from..at);
                        start = None;
                    }
                    _ => {}
                }
            }
            Parsed::Command(next)
        }
        Ok(None) => Parsed::More(bytes.len() + 1),
        Err(()) => Parsed::Invalid("Protocol error: too big inline request"),
    }
}

/// What stands at the start of a stream of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// One answer of so many bytes.
    Whole(usize),
    /// Not before there are so many bytes.
    More(usize),
    /// None.
    Invalid,
}

/// Finds the first answer of `bytes`.
#[must_use]
pub fn answer(bytes: &[u8]) -> Answered {
    let mut at = 0;
    // How many values are still to come on each level.
    let mut levels = [0u64; DEPTH_MAX];
    let mut depth = 0;
    loop {
        let Some(kind) = bytes.get(at) else { return Answered::More(at + 1) };
        let most = if matches!(kind, b'+' | b'-') { INLINE_MAX } else { NUMBER_LINE };
        let (text, next) = match line(bytes, at + 1, most) {
            Ok(Some(found)) => found,
            Ok(None) => return Answered::More(bytes.len() + 1),
            Err(()) => return Answered::Invalid,
        };
        at = next;
        match (kind, number(text)) {
            (b'+' | b'-', _) | (b':', Some(_)) | (b'$' | b'*', Some(-1..=0))
                if !(*kind == b'$' && number(text) == Some(0)) => {}
            (b'$', Some(len)) => match usize::try_from(len) {
                Ok(len) if len <= ARG_MAX => {
                    at += len + 2;
                    if bytes.len() < at {
                        return Answered::More(at);
                    }
                }
                _ => return Answered::Invalid,
            },
            (b'*', Some(count)) => match (u64::try_from(count), levels.get_mut(depth)) {
                (Ok(count), Some(level)) => {
                    *level = count;
                    depth += 1;
                    continue;
                }
                _ => return Answered::Invalid,
            },
            _ => return Answered::Invalid,
        }
        // One value is over: so may be the arrays it ends.
        loop {
            let Some(level) = depth.checked_sub(1).and_then(|at| levels.get_mut(at)) else {
                return Answered::Whole(at);
            };
            *level -= 1;
            if *level > 0 {
                break;
            }
            depth -= 1;
        }
    }
}

/// Appends `text` as a simple string.
pub fn put_simple(out: &mut Vec<u8>, text: &str) {
    put_line(out, b'+', text.as_bytes());
}

/// Appends an error; its first word is its kind.
pub fn put_error(out: &mut Vec<u8>, text: &str) {
    put_line(out, b'-', text.as_bytes());
}

/// Appends an integer.
pub fn put_integer(out: &mut Vec<u8>, value: i64) {
    put_line(out, b':', value.to_string().as_bytes());
}

/// Appends the beginning of an array.
pub fn put_array(out: &mut Vec<u8>, len: usize) {
    put_line(out, b'*', len.to_string().as_bytes());
}

/// Appends a value.
pub fn put_bulk(out: &mut Vec<u8>, value: &[u8]) {
    put_line(out, b'$', value.len().to_string().as_bytes());
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends that there is no value.
pub fn put_nil(out: &mut Vec<u8>) {
    out.extend_from_slice(b"$-1\r\n");
}

fn put_line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    // A line break inside would end the answer.
    out.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(bytes: &[u8]) -> (Parsed, Vec<&[u8]>) {
        let mut args = Vec::new();
        let parsed = parse(bytes, &mut args);
        (parsed, args.into_iter().map(|arg| &bytes[arg]).collect())
    }

    #[test]
    fn commands_are_found_inline_and_as_arrays() {
        let both: [&[u8]; 2] = [b"GET  key\r\n", b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n"];
        for bytes in both {
            assert_eq!(words(bytes), (Parsed::Command(bytes.len()), vec![&b"GET"[..], b"key"]));
            for n in 0..bytes.len() {
                let (parsed, _) = words(&bytes[..n]);
                assert!(matches!(parsed, Parsed::More(more) if more > n && more <= bytes.len()));
            }
        }
        assert_eq!(words(b"\r\n"), (Parsed::Command(2), vec![]));
        assert_eq!(words(b"*0\r\n"), (Parsed::Command(4), vec![]));
        for bad in [&b"*x\r\n"[..], b"*1\r\n:1\r\n", b"*1\r\n$-1\r\n", b"*9999999\r\n"] {
            assert!(matches!(words(bad).0, Parsed::Invalid(_)));
        }
    }

    #[test]
    fn answers_are_found_whole() {
        let whole: [&[u8]; 8] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":-12\r\n",
            b"$-1\r\n",
            b"$0\r\n\r\n",
            b"*0\r\n",
            b"*3\r\n$1\r\na\r\n*2\r\n:1\r\n*-1\r\n$-1\r\n",
            b"*1\r\n*1\r\n*1\r\n+x\r\n",
        ];
        for bytes in whole {
            let more = [bytes, b"+"].concat();
            assert_eq!(answer(&more), Answered::Whole(bytes.len()), "{bytes:?}");
            for n in 0..bytes.len() {
                let part = answer(&bytes[..n]);
                assert!(matches!(part, Answered::More(m) if m > n && m <= bytes.len()));
            }
        }
        for bad in [&b"x\r\n"[..], b"$x\r\n", b":\r\n", b"$99999999\r\n"] {
            assert_eq!(answer(bad), Answered::Invalid, "{bad:?}");
        }
    }

    #[test]
    fn integers_are_those_of_redis() {
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
        for bad in [&b""[..], b"9223372036854775808", b"+1", b"01", b"-0", b"1 ", b"x"] {
            assert_eq!(integer(bad), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_harm(bytes in prop::collection::vec(
            prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1'), any::<u8>()],
            0..60,
        )) {
            let mut args = Vec::new();
            if let Parsed::Command(len) = parse(&bytes, &mut args) {
                prop_assert!(len <= bytes.len());
                prop_assert!(args.iter().all(|arg| arg.end <= len));
            }
            if let Answered::Whole(len) = answer(&bytes) {
                prop_assert!((1..=bytes.len()).contains(&len));
            }
        }
    }
}

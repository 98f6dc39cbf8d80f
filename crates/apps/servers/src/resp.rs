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

/// Where a scan is in its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    /// What stands before it was looked at, or need not be.
    at: usize,
    /// Bytes behind `at` and the kind that hold no line's end.
    seen: usize,
}

/// What a scan finds in place of a line.
enum NoLine {
    /// Its end has not come.
    More(usize),
    /// It is too long.
    Long,
}

impl Place {
    /// The line behind the `kind` bytes at the place; the place moves behind it. `shown` are the
    /// bytes of the stream from `from` on.
    fn line(
        &mut self,
        (shown, from): (&[u8], usize),
        kind: usize,
        most: usize,
    ) -> Result<Range<usize>, NoLine> {
        let start = self.at + kind;
        let rest = shown.get(start.saturating_sub(from)..).unwrap_or_default();
        let window = rest.get(..most.min(rest.len())).unwrap_or_default();
        let fresh = window.get(self.seen..).unwrap_or_default();
        match fresh.iter().position(|byte| *byte == b'\n') {
            Some(at) => {
                let end = self.seen + at;
                let is_pair = end.checked_sub(1).and_then(|at| window.get(at)) == Some(&b'\r');
                *self = Place { at: start + end + 1, seen: 0 };
                Ok(start..start + end - usize::from(is_pair))
            }
            None if window.len() < most => {
                self.seen = window.len();
                Err(NoLine::More(from + shown.len() + 1))
            }
            None => Err(NoLine::Long),
        }
    }

    /// The byte at the place.
    fn kind(self, (shown, from): (&[u8], usize)) -> Option<u8> {
        shown.get(self.at.checked_sub(from)?).copied()
    }
}

fn shown<'a>((shown, from): (&'a [u8], usize), range: &Range<usize>) -> &'a [u8] {
    let (start, end) = (range.start.checked_sub(from), range.end.checked_sub(from));
    start.zip(end).and_then(|(start, end)| shown.get(start..end)).unwrap_or_default()
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

/// How far the command at the start of a stream was looked at. Each of its bytes is, once, in
/// whatever pieces it comes; what lies in arguments is not looked at at all.
///
/// Whoever scans shows the bytes there are from any place on that is not behind [`Scan::passed`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    place: Place,
    /// Arguments to come; `None` before their number is known.
    left: Option<usize>,
}

/// What a step of a scan finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Where the next argument lies; it may not have come whole.
    Arg(Range<usize>),
    /// The line of an inline command.
    Line(Range<usize>),
    /// The command is over.
    End(Parsed),
}

const BAD_COUNT: Step = Step::End(Parsed::Invalid("Protocol error: invalid multibulk length"));
const BAD_LENGTH: Step = Step::End(Parsed::Invalid("Protocol error: invalid bulk length"));

impl Scan {
    /// Words that hold one.
    pub const WORDS: usize = 3;

    /// As words; those of a scan that has not begun are zeros.
    #[must_use]
    pub fn words(&self) -> [u64; Scan::WORDS] {
        let left = self.left.map_or(0, |left| left + 1);
        [self.place.at, self.place.seen, left].map(|word| word as u64)
    }

    /// What [`Scan::words`] said.
    #[must_use]
    pub fn of_words(words: [u64; Scan::WORDS]) -> Scan {
        let [at, seen, left] = words.map(|word| usize::try_from(word).unwrap_or(usize::MAX));
        Scan { place: Place { at, seen }, left: left.checked_sub(1) }
    }

    /// Bytes from the start of the command that need not be shown again.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.place.at
    }

    /// How many arguments are to come, if that is known.
    #[must_use]
    pub fn left(&self) -> Option<usize> {
        self.left
    }

    /// Goes on in a command of which `bytes` are there from byte `from` on.
    pub fn step(&mut self, bytes: &[u8], from: usize) -> Step {
        let view = (bytes, from);
        let there = from + bytes.len();
        match self.left {
            _ if self.place.at > there => Step::End(Parsed::More(self.place.at)),
            None => self.begin(view),
            Some(0) => Step::End(Parsed::Command(self.place.at)),
            Some(left) => match self.place.kind(view) {
                None => Step::End(Parsed::More(there + 1)),
                Some(b'$') => self.argument(view, left),
                Some(_) => Step::End(Parsed::Invalid("Protocol error: expected '$'")),
            },
        }
    }

    fn begin(&mut self, view: (&[u8], usize)) -> Step {
        let is_array = match self.place.kind(view) {
            None => return Step::End(Parsed::More(1)),
            Some(kind) => kind == b'*',
        };
        let most = if is_array { NUMBER_LINE } else { INLINE_MAX };
        let line = match self.place.line(view, usize::from(is_array), most) {
            Ok(line) => line,
            Err(NoLine::More(needs)) => return Step::End(Parsed::More(needs)),
            Err(NoLine::Long) if is_array => return BAD_COUNT,
            Err(NoLine::Long) => {
                return Step::End(Parsed::Invalid("Protocol error: too big inline request"));
            }
        };
        if !is_array {
            self.left = Some(0);
            return Step::Line(line);
        }
        match number(shown(view, &line)).map(|n| (n, usize::try_from(n))) {
            Some((n, _)) if n <= 0 => self.left = Some(0),
            Some((_, Ok(count))) if count <= ARGS_MAX => self.left = Some(count),
            _ => return BAD_COUNT,
        }
        self.step(view.0, view.1)
    }

    fn argument(&mut self, view: (&[u8], usize), left: usize) -> Step {
        let line = match self.place.line(view, 1, NUMBER_LINE) {
            Ok(line) => line,
            Err(NoLine::More(needs)) => return Step::End(Parsed::More(needs)),
            Err(NoLine::Long) => return BAD_LENGTH,
        };
        match number(shown(view, &line)).and_then(|n| usize::try_from(n).ok()) {
            Some(len) if len <= ARG_MAX => {
                let start = self.place.at;
                self.place.at += len + 2;
                self.left = Some(left - 1);
                Step::Arg(start..start + len)
            }
            _ => BAD_LENGTH,
        }
    }

    /// Goes on to the end of what is there and puts the places of arguments into `args`.
    fn run(&mut self, bytes: &[u8], args: &mut Vec<Range<usize>>) -> Parsed {
        loop {
            match self.step(bytes, 0) {
                Step::Arg(arg) => args.push(arg),
                Step::Line(line) => split(bytes, line, args),
                Step::End(parsed) => return parsed,
            }
        }
    }
}

/// The words of an inline command.
fn split(bytes: &[u8], line: Range<usize>, args: &mut Vec<Range<usize>>) {
    let mut start = None;
    for at in line.start..=line.end {
        let blank = at == line.end || bytes.get(at).is_none_or(u8::is_ascii_whitespace);
        match (blank, start) {
            (false, None) => start = Some(at),
            (true, Some(from)) => {
                args.push(from..at);
                start = None;
            }
            _ => {}
        }
    }
}

/// Arguments of a command for which memory is kept.
const ARGS_KEPT: usize = 16;

/// The command at the start of a stream, as far as it came.
#[derive(Debug, Default)]
pub struct Parser {
    scan: Scan,
    args: Vec<Range<usize>>,
}

impl Parser {
    /// Goes on with what came, which is shown from the start of the command. Asked again about a
    /// whole command, it says the same at once.
    pub fn parse(&mut self, bytes: &[u8]) -> Parsed {
        self.scan.run(bytes, &mut self.args)
    }

    /// Where the arguments lie.
    #[must_use]
    pub fn args(&self) -> &[Range<usize>] {
        &self.args
    }

    /// The next command.
    pub fn reset(&mut self) {
        self.scan = Scan::default();
        self.args.clear();
        if self.args.capacity() > ARGS_KEPT {
            self.args = Vec::new();
        }
    }

    /// Bytes of memory it has taken.
    #[must_use]
    pub fn held(&self) -> usize {
        if self.args.is_empty() { 0 } else { self.args.capacity() * size_of::<Range<usize>>() }
    }
}

/// Finds the first command of `bytes` and puts the places of its arguments into `args`.
pub fn parse(bytes: &[u8], args: &mut Vec<Range<usize>>) -> Parsed {
    args.clear();
    let parsed = Scan::default().run(bytes, args);
    if !matches!(parsed, Parsed::Command(_)) {
        args.clear();
    }
    parsed
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

/// How far the first answer of a stream was looked at, as [`Scan`] of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerScan {
    place: Place,
    /// How many values are still to come on each level.
    levels: [u64; DEPTH_MAX],
    depth: usize,
    /// It ends at the place.
    is_whole: bool,
}

impl AnswerScan {
    /// Words that hold one.
    pub const WORDS: usize = 4 + DEPTH_MAX;

    /// As words; those of a scan that has not begun are zeros.
    #[must_use]
    pub fn words(&self) -> [u64; AnswerScan::WORDS] {
        let mut words = [0; AnswerScan::WORDS];
        let Place { at, seen } = self.place;
        let own = [at, seen, self.depth, usize::from(self.is_whole)].map(|word| word as u64);
        for (to, word) in words.iter_mut().zip(own.into_iter().chain(self.levels)) {
            *to = word;
        }
        words
    }

    /// What [`AnswerScan::words`] said.
    #[must_use]
    pub fn of_words(words: [u64; AnswerScan::WORDS]) -> AnswerScan {
        let [at, seen, depth, whole, levels @ ..] = words;
        let [at, seen, depth] =
            [at, seen, depth].map(|word| usize::try_from(word).unwrap_or(usize::MAX));
        AnswerScan { place: Place { at, seen }, levels, depth, is_whole: whole != 0 }
    }

    /// Bytes from the start of the answer that need not be shown again.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.place.at
    }

    /// Goes on in an answer of which `bytes` are there from byte `from` on.
    pub fn run(&mut self, bytes: &[u8], from: usize) -> Answered {
        let there = from + bytes.len();
        loop {
            if self.place.at > there {
                return Answered::More(self.place.at);
            }
            if self.is_whole {
                return Answered::Whole(self.place.at);
            }
            match self.value((bytes, from)) {
                Ok(()) => {}
                Err(other) => return other,
            }
        }
    }

    /// One value, or the head of an array.
    fn value(&mut self, view: (&[u8], usize)) -> Result<(), Answered> {
        let there = view.1 + view.0.len();
        let kind = self.place.kind(view).ok_or(Answered::More(there + 1))?;
        let most = if matches!(kind, b'+' | b'-') { INLINE_MAX } else { NUMBER_LINE };
        let line = self.place.line(view, 1, most).map_err(|no| match no {
            NoLine::More(needs) => Answered::More(needs),
            NoLine::Long => Answered::Invalid,
        })?;
        let size = number(shown(view, &line));
        match (kind, size, size.and_then(|size| usize::try_from(size).ok())) {
            (b'+' | b'-', ..) | (b':', Some(_), _) | (b'$' | b'*', Some(-1), _) => {}
            (b'*', _, Some(0)) => {}
            (b'$', _, Some(len)) if len <= ARG_MAX => self.place.at += len + 2,
            (b'*', _, Some(count)) => {
                let level = self.levels.get_mut(self.depth).ok_or(Answered::Invalid)?;
                *level = count as u64;
                self.depth += 1;
                return Ok(());
            }
            _ => return Err(Answered::Invalid),
        }
        self.end_value();
        Ok(())
    }

    /// One value is over: so may be the arrays it ends.
    fn end_value(&mut self) {
        while let Some(level) = self.depth.checked_sub(1).and_then(|at| self.levels.get_mut(at)) {
            *level = level.saturating_sub(1);
            if *level > 0 {
                return;
            }
            self.depth -= 1;
        }
        self.is_whole = true;
    }
}

/// Finds the first answer of `bytes`.
#[must_use]
pub fn answer(bytes: &[u8]) -> Answered {
    AnswerScan::default().run(bytes, 0)
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

    /// A command of 60,000 arguments that came byte by byte was parsed from its start at each:
    /// 486 us a packet. Its bytes are looked at once now, those of arguments never.
    #[test]
    fn what_was_looked_at_is_not_looked_at_again() {
        let keys = 60_000;
        let command = [format!("*{keys}\r\n"), "$1\r\nk\r\n".repeat(keys)].concat();
        let bytes = command.as_bytes();
        let (mut scan, mut steps) = (Scan::default(), 0);
        for end in 1..=bytes.len() {
            // Nothing that it has passed is there any more.
            let from = scan.passed().min(end);
            let parsed = loop {
                steps += 1;
                match scan.step(&bytes[from..end], from) {
                    Step::End(parsed) => break parsed,
                    step => assert!(matches!(step, Step::Arg(arg) if arg.len() == 1)),
                }
            };
            match parsed {
                Parsed::More(more) => assert!(more > end && more <= bytes.len()),
                parsed => assert_eq!((parsed, end), (Parsed::Command(end), bytes.len())),
            }
        }
        assert!(steps < 2 * bytes.len(), "{steps} steps for {} bytes", bytes.len());
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

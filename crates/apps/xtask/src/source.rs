//! A Rust file, split into what the compiler reads and what people read.
//!
//! The checks look for words such as `unsafe`; they must find them in code and not in comments,
//! strings or test modules. [`Source`] keeps the text three times at equal length, so that an
//! offset means the same place in each: as written, with comments and literals blanked, and with
//! test modules blanked as well.

/// One lexed file.
pub(crate) struct Source {
    /// As written.
    pub(crate) text: String,
    /// Comments and the insides of literals are spaces.
    pub(crate) code: String,
    /// As `code`, and items under `#[cfg(test)]` are spaces too.
    pub(crate) production: String,
    /// Names of modules declared `#[cfg(test)] mod name;`, whose files are test code.
    pub(crate) test_modules: Vec<String>,
}

impl Source {
    pub(crate) fn new(text: String) -> Self {
        let code = blank_comments_and_literals(&text);
        let (production, test_modules) = blank_tests(&text, &code);
        Self { text, code, production, test_modules }
    }

    /// The line of a byte offset, counted from 1.
    pub(crate) fn line_of(&self, offset: usize) -> usize {
        1 + self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
    }
}

/// Offsets at which `word` stands in `code` as a whole word.
pub(crate) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part_of_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let bytes = code.as_bytes();
        let before = at.checked_sub(1).and_then(|i| bytes.get(i));
        let after = bytes.get(at + word.len());
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

/// Replaces a byte range by spaces, keeping line ends.
fn blank(bytes: &mut [u8], from: usize, to: usize) {
    let to = to.min(bytes.len());
    for byte in bytes.iter_mut().take(to).skip(from).filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
}

fn blank_comments_and_literals(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let len = match rest[0] {
            b'/' if rest.starts_with(b"//") => line_len(rest),
            b'/' if rest.starts_with(b"/*") => block_comment_len(rest),
            b'"' => string_len(rest),
            b'r' if !follows_word(bytes, at) => raw_string_len(rest).unwrap_or(0),
            b'b' if rest.starts_with(b"br") && !follows_word(bytes, at) => {
                raw_string_len(&rest[1..]).map_or(0, |len| len + 1)
            }
            b'\'' => char_len(rest).unwrap_or(0),
            _ => 0,
        };
        blank(&mut out, at, at + len);
        at += len.max(1);
    }
    // Only ASCII was written over whole characters or whole comments: still UTF-8.
    String::from_utf8_lossy(&out).into_owned()
}

fn follows_word(bytes: &[u8], at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|i| bytes.get(i));
    before.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

fn line_len(rest: &[u8]) -> usize {
    rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len())
}

fn block_comment_len(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn string_len(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Length of `r"..."` or `r#"..."#`; `None` when `rest` starts no raw string.
fn raw_string_len(rest: &[u8]) -> Option<usize> {
    let hashes = rest.iter().skip(1).take_while(|byte| **byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return None;
    }
    let mut end = vec![b'"'];
    end.resize(1 + hashes, b'#');
    let body = rest.get(2 + hashes..)?;
    let close = body.windows(end.len()).position(|window| window == end.as_slice());
    Some(close.map_or(rest.len(), |at| 2 + hashes + at + end.len()))
}

/// Length of a character literal; `None` for a lifetime.
fn char_len(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        // The escaped character may itself be a quote, so the search starts behind it.
        return rest.iter().skip(3).position(|byte| *byte == b'\'').map(|at| at + 4);
    }
    let close = rest.iter().skip(2).take(4).position(|byte| *byte == b'\'')? + 2;
    let inside = std::str::from_utf8(rest.get(1..close)?).ok()?;
    (inside.chars().count() == 1).then_some(close + 1)
}

/// Blanks every item under a `cfg` that names `test`, and names the modules that live elsewhere.
fn blank_tests(text: &str, code: &str) -> (String, Vec<String>) {
    let mut out = code.as_bytes().to_vec();
    let mut modules = Vec::new();
    for (at, _) in code.match_indices("#[cfg(") {
        let Some(close) = code[at..].find(']') else { continue };
        if words(&code[at..at + close], "test").next().is_none()
            || code[at..at + close].contains("not(test")
        {
            continue;
        }
        let body = at + close + 1;
        let Some(end) = code[body..].find(['{', ';']).map(|end| body + end) else { continue };
        if code.as_bytes()[end] == b';' {
            let name = text[body..end].trim().rsplit(' ').next().unwrap_or_default();
            if words(&code[body..end], "mod").next().is_some() {
                modules.push(name.to_owned());
            }
            blank(&mut out, at, end + 1);
        } else {
            blank(&mut out, at, matching_brace(code, end));
        }
    }
    (String::from_utf8_lossy(&out).into_owned(), modules)
}

/// Behind the brace that closes the one at `open`.
pub(crate) fn matching_brace(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds(text: &str, word: &str) -> (usize, usize) {
        let source = Source::new(text.to_owned());
        assert_eq!(source.text.len(), source.code.len());
        (words(&source.code, word).count(), words(&source.production, word).count())
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        assert_eq!(finds("// unsafe\n/* unsafe /* unsafe */ */ unsafe {}", "unsafe"), (1, 1));
        assert_eq!(
            finds(r##"let a = "unsafe \" unsafe"; let b = r#"unsafe"#;"##, "unsafe"),
            (0, 0)
        );
        assert_eq!(finds("let c = '\"'; let d = '\\''; unsafe {}", "unsafe"), (1, 1));
        assert_eq!(finds("fn f<'a>(x: &'a str) { unsafe {} }", "unsafe"), (1, 1));
        assert_eq!(finds("#![forbid(unsafe_code)]", "unsafe"), (0, 0));
    }

    #[test]
    fn tests_are_not_production() {
        let text = "fn f() { word }\n#[cfg(test)]\nmod tests { fn g() { word } }\nfn h() { word }";
        assert_eq!(finds(text, "word"), (3, 2));
        let text = "#[cfg(test)]\nmod model;\n#[cfg(not(test))]\nfn f() { word }";
        assert_eq!(finds(text, "word"), (1, 1));
        assert_eq!(Source::new(text.to_owned()).test_modules, ["model"]);
    }

    #[test]
    fn lines_count_from_one() {
        let source = Source::new("a\nb\nword".to_owned());
        assert_eq!(source.line_of(4), 3);
    }
}

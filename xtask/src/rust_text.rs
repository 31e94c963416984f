//! The part of Rust's lexical grammar that tells code from comments and literals.

/// The parts of a source that are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Code only.
    Code,
    /// Code and the contents of string literals.
    CodeAndStrings,
}

/// The source with all other parts replaced by blanks. Lines keep their numbers and columns.
pub fn blank(source: &str, keep: Keep) -> String {
    let mut rest = source;
    let mut out = String::with_capacity(source.len());
    while let Some(first) = rest.chars().next() {
        let (length, kind) = token(rest, first, out.chars().next_back());
        let (text, tail) = rest.split_at(length);
        let kept = kind == Kind::Code || (kind == Kind::String && keep == Keep::CodeAndStrings);
        if kept {
            out.push_str(text);
        } else {
            out.extend(text.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        }
        rest = tail;
    }
    out
}

/// Words of the text, each with its line number: runs of letters, digits and underscores.
pub fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(index, line)| {
        line.split(|c| !is_word(c)).filter(|word| !word.is_empty()).map(move |word| (index + 1, word))
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    String,
    Char,
}

/// Length in bytes and kind of the token that starts here. Code advances by one character at a time.
fn token(rest: &str, first: char, before: Option<char>) -> (usize, Kind) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), Kind::Comment);
    }
    if rest.starts_with("/*") {
        return (block_comment(rest), Kind::Comment);
    }
    match first {
        '"' => (1 + string_body(&rest[1..]), Kind::String),
        // `r"`, `r#"`, and the tail of `br"` and `cr"` begin a raw string; an identifier that only ends in r
        // does not.
        'r' if before.is_none_or(|c| !is_word(c) || c == 'b' || c == 'c') => match raw_string(rest) {
            Some(length) => (length, Kind::String),
            None => (1, Kind::Code),
        },
        '\'' => match char_literal(rest) {
            Some(length) => (length, Kind::Char),
            None => (1, Kind::Code), // a lifetime
        },
        _ => (first.len_utf8(), Kind::Code),
    }
}

/// Length of a block comment. Block comments nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// Length in bytes, including the closing quote.
fn string_body(rest: &str) -> usize {
    let mut chars = rest.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn raw_string(rest: &str) -> Option<usize> {
    let after_r = &rest[1..];
    let hashes = after_r.bytes().take_while(|&b| b == b'#').count();
    let body = after_r[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let open_length = rest.len() - body.len();
    Some(body.find(&close).map_or(rest.len(), |at| open_length + at + close.len()))
}

/// Length of a literal such as `'x'` and `'\n'`; `None` for the lifetime `'x`.
fn char_literal(rest: &str) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        chars.next()?;
        return chars.find(|(_, c)| *c == '\'').map(|(at, _)| at + 1);
    }
    let (at, second) = chars.next()?;
    (second == '\'').then_some(at + 1)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of the source that count as code.
    fn code(source: &str) -> Vec<String> {
        words(&blank(source, Keep::Code)).map(|(_, word)| word.to_owned()).collect()
    }

    #[test]
    fn comments_are_no_code() {
        assert_eq!(code("a // b\nc /* d /* e */ f */ g\n/// h\ni"), ["a", "c", "g", "i"]);
    }

    #[test]
    fn literals_are_no_code() {
        assert_eq!(code(r##"a "b \" c" d r#"e " f"# g br"h" i"##), ["a", "d", "g", "b", "i"]);
        assert_eq!(code(r"let x = '\''; y '\u{41}' z 'w' v"), ["let", "x", "y", "z", "v"]);
    }

    #[test]
    fn a_comment_in_a_string_and_a_string_in_a_comment_do_not_confuse() {
        assert_eq!(code("a \"// b\" c // \" d\ne"), ["a", "c", "e"]);
        assert_eq!(code("f(br\"\\\") ; g"), ["f", "b", "g"], "a raw string has no escapes");
    }

    #[test]
    fn lifetimes_and_identifiers_in_r_are_code() {
        assert_eq!(code("fn f<'a>(s: &'a str) { ptr\"x\" }"), ["fn", "f", "a", "s", "a", "str", "ptr"]);
        assert_eq!(code("r#type var r"), ["r", "type", "var", "r"]);
    }

    #[test]
    fn strings_can_be_kept_and_lines_keep_their_numbers() {
        let text = blank("/* a\nb */ \"c\"\nd", Keep::CodeAndStrings);
        assert_eq!(words(&text).collect::<Vec<_>>(), [(2, "c"), (3, "d")]);
    }
}

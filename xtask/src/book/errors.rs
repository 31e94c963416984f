//! Checks that one page has every error that a user can meet, with its text.
//!
//! The texts are read from the sources: the literal of `#[error("…")]`, in which `…` stands for each inserted
//! value.

use crate::files::read;
use std::path::Path;

const PAGE: &str = "docs/error-texts.md";
/// Files with public errors, and of each file the errors of one enum or structure.
const SOURCES: [&str; 10] = [
    "crates/deck/error.rs",
    "crates/deck/pack.rs",
    "crates/via/error.rs",
    "crates/via/names/error.rs",
    "crates/boot/error.rs",
    "crates/boot/start/error.rs",
    "crates/auth/keys.rs",
    "crates/launch/error.rs",
    "crates/launch/hosts.rs",
    "crates/launch/allocation.rs",
];
const ATTRIBUTE: &str = "#[error(";
/// Headers with C's codes, and the text with which a code's line begins.
const C: [(&str, &str); 2] =
    [("bindings/c/include/deck.h", "#define DECK_E"), ("bindings/c/include/vipl.h", "    VIP_")];
const RETURNS: &str = "} VIP_RETURN;";

/// Name of a variant or structure, and its text, if it has one of its own.
#[derive(Debug, PartialEq, Eq)]
struct DocumentedError {
    name: String,
    words: Option<String>,
}

/// Problems of the page: errors that it lacks.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let page = read(&root.join(PAGE))?;
    let (mut problems, mut count) = (Vec::new(), 0);
    for source in SOURCES {
        let found = errors(&read(&root.join(source))?);
        if found.is_empty() {
            return Err(format!("{source}: no {ATTRIBUTE}…)], where {PAGE} expects errors"));
        }
        count += found.len();
        let missing = found.into_iter().filter(|one| !has(&page, one));
        problems.extend(missing.map(|one| {
            let words = one.words.map_or(String::new(), |words| format!(" with the words: {words}"));
            format!("{PAGE}: no row `{}`{words} ({source})", one.name)
        }));
    }
    for (header, begin) in C {
        let text = read(&root.join(header))?;
        let codes = codes(&text, begin);
        if codes.is_empty() {
            return Err(format!("{header}: no codes that begin with {begin:?}"));
        }
        count += codes.len();
        let missing = codes.into_iter().filter(|code| !page.contains(&format!("| `{code}` |")));
        problems.extend(missing.map(|code| format!("{PAGE}: no row `{code}` ({header})")));
    }
    println!("{count} errors and codes");
    Ok(problems)
}

fn has(page: &str, one: &DocumentedError) -> bool {
    let begin = format!("| `{}` |", one.name);
    let mut rows = page.lines().filter(|line| line.starts_with(&begin));
    match &one.words {
        None => rows.next().is_some(),
        Some(words) => rows.any(|row| row.contains(&format!("| {words} |"))),
    }
}

fn errors(source: &str) -> Vec<DocumentedError> {
    let mut found = Vec::new();
    for (at, _) in source.match_indices(ATTRIBUTE) {
        let attribute = &source[at + ATTRIBUTE.len()..];
        let words = (!attribute.starts_with("transparent")).then(|| literal(attribute)).flatten();
        // The name stands on the first later line that is neither an attribute nor a comment.
        let behind = attribute.split_once(")]\n").map_or("", |(_, behind)| behind);
        let name = behind.lines().find_map(name);
        found.extend(name.map(|name| DocumentedError { name, words }));
    }
    found
}

/// Name in a line such as `Name {`, `Name(`, `Name,` or `pub struct Name`.
fn name(line: &str) -> Option<String> {
    let line = line.trim();
    let line = line.strip_prefix("pub struct ").unwrap_or(line);
    let end = line.find(|c: char| !c.is_ascii_alphanumeric())?;
    let is_name = line.starts_with(|c: char| c.is_ascii_uppercase())
        && line[end..].trim_start().starts_with(['{', '(', ',', ';']);
    is_name.then(|| line[..end].to_owned())
}

/// First string literal, unescaped, with `…` for each inserted value. Adjacent literals are joined.
fn literal(code: &str) -> Option<String> {
    let mut chars = code.split_once('"')?.1.chars().peekable();
    let (mut words, mut depth) = (String::new(), 0);
    loop {
        match chars.next()? {
            '"' => return Some(words.replace('|', "\\|")),
            '\\' => match chars.next()? {
                '\n' => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                char if depth == 0 => words.push(char),
                _ => {}
            },
            '{' => {
                depth += 1;
                if !words.ends_with('…') {
                    words.push('…');
                }
            }
            '}' => depth -= 1,
            char if depth == 0 => words.push(char),
            _ => {}
        }
    }
}

/// Error codes in a header, found by the begin of their lines; of an enum, those above its end.
fn codes<'a>(header: &'a str, begin: &str) -> Vec<&'a str> {
    let list = match header.find(RETURNS) {
        Some(end) => &header[header[..end].rfind("enum {").unwrap_or(0)..end],
        None => header,
    };
    let lines = list.lines().filter(|line| line.starts_with(begin));
    lines.filter_map(|line| line.trim_start_matches("#define").trim().split([' ', ',']).next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
    /// One.
    #[error(
        "no {what:?} {} of \"{name}\"{}",
        Title(.name), b
    )]
    One {
        what: u8,
    },
    #[error(
        "a long \
         one | two"
    )]
    Two(String),
    #[error(transparent)]
    Three(#[from] Other),
    #[error("plain")]
    Four,
}
#[error("{}. {remedy}", self.fault())]
pub struct Five {"#;

    fn documented(name: &str, words: Option<&str>) -> DocumentedError {
        DocumentedError { name: name.into(), words: words.map(str::to_owned) }
    }

    #[test]
    fn words_are_read_from_attributes() {
        let expected = [
            documented("One", Some("no … … of \"…\"…")),
            documented("Two", Some("a long one \\| two")),
            documented("Three", None),
            documented("Four", Some("plain")),
            documented("Five", Some("…. …")),
        ];
        assert_eq!(errors(SOURCE), expected);
    }

    #[test]
    fn a_row_has_to_have_the_words() {
        let page = "| `One` | no … of it | do |\n| `Two` | other | do |\n";
        assert!(has(page, &documented("One", Some("no … of it"))));
        assert!(has(page, &documented("Two", None)));
        assert!(!has(page, &documented("Two", Some("no … of it"))));
        assert!(!has(page, &documented("Three", None)));
    }

    #[test]
    fn codes_are_read_from_headers() {
        assert_eq!(
            codes("#define DECK_OK 0\n#define DECK_EINVAL (-1) /* x */\n", "#define DECK_E"),
            ["DECK_EINVAL"]
        );
        let enums = "typedef enum {\n    VIP_A\n} X;\ntypedef enum {\n    VIP_B,\n    VIP_C\n} VIP_RETURN;\n";
        assert_eq!(codes(enums, "    VIP_"), ["VIP_B", "VIP_C"]);
    }
}

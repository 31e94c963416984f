//! Checks that the index of the documents names tests and parts of `deckfabric papers` that exist.
//!
//! The step `jobs` plays the index's short commands (`tests/jobs/tests/jobs/documents.rs`).

use super::markdown;
use crate::files::{below, read};
use std::path::Path;

const PAGE: &str = "docs/documents.md";
/// Sources of the parts of `deckfabric papers`.
const PARTS: &str = "bench-apps/deckfabric";
/// Folders with tests.
const SOURCES: [&str; 7] = ["bench-apps", "bindings", "crates", "src", "tests", "transports", "xtask"];

/// Problems of the page: names to which nothing belongs.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let page = read(&root.join(PAGE))?;
    let spans = markdown::code_spans(&page);
    let tests = sources(root, &SOURCES)?;
    let parts = sources(root, &[PARTS])?;
    let (mut problems, mut count) = (Vec::new(), 0);
    for (span, line) in spans {
        let missing = match span.strip_prefix("papers \"").and_then(|title| title.strip_suffix('"')) {
            Some(title) => (!parts.contains(title)).then_some("no part of papers has such a title"),
            None if is_test(span) => {
                (!tests.contains(&format!("fn {span}("))).then_some("there is no such test")
            }
            None => continue,
        };
        count += 1;
        problems.extend(missing.map(|why| format!("{PAGE}:{line}: {span}: {why}")));
    }
    println!("{count} tests and parts of papers in the index");
    match count {
        0 => Err(format!("{PAGE}: it names no test and no part of papers")),
        _ => Ok(problems),
    }
}

fn sources(root: &Path, folders: &[&str]) -> Result<String, String> {
    let mut text = String::new();
    for folder in folders {
        for file in below(&root.join(folder), ".rs")? {
            text.push_str(&read(&file)?);
        }
    }
    Ok(text)
}

/// Whether the span looks like the name of a test: words with underscores between them, three at least.
fn is_test(span: &str) -> bool {
    let plain = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_';
    span.chars().all(plain) && span.matches('_').count() >= 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::write;
    use std::fs;

    #[test]
    fn a_name_to_which_nothing_belongs_is_found() {
        let root = std::env::temp_dir().join(format!("udeck-index-{}", std::process::id()));
        for folder in SOURCES {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        write(&root.join(PARTS).join("papers.rs"), "const A: &str = \"a hot spot of hosts\";").unwrap();
        write(&root.join("crates/a.rs"), "fn one_two_three() {}").unwrap();
        let page = "`one_two_three`, `one_two_four`, `a_type`\n`papers \"hot spot\"`, `papers \"cold\"`\n";
        write(&root.join(PAGE), page).unwrap();
        let problems = check(&root).unwrap();
        assert_eq!(
            problems,
            [
                "docs/documents.md:1: one_two_four: there is no such test",
                "docs/documents.md:2: papers \"cold\": no part of papers has such a title",
            ]
        );
        fs::remove_dir_all(root).unwrap();
    }
}

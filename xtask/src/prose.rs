//! Comments whose first sentence hides its subject, and has to be read twice: "That posted it.", "Of the next call."
//!
//! The first sentence of a comment names its subject or begins with a verb (CONTRIBUTING.md, "Language"). A list of
//! beginnings finds most of those that do not. It is a heuristic: a beginning that is right in its place can be said another way,
//! or the line before it says `prose: allow`.

use crate::unsafe_policy::Source;

/// Relative and bare pronouns at the start of a block.
const BEGINNINGS: &[&str] = &[
    "That",
    "Who",
    "Whose",
    "Whom",
    "What",
    "Which",
    "Of",
    "Those",
    "It",
    "They",
    "So soon",
    "So long",
    "So often",
    "So many",
    "So much",
    "So far",
    "As soon",
    "As it",
    "As that",
    "As those",
    "With it",
    "With them",
];
/// Excuses the block on the next line.
const ALLOW: &str = "// prose: allow";

/// Comment blocks that begin with one of [`BEGINNINGS`], as `path:line: what`.
pub fn violations(sources: &[Source]) -> Vec<String> {
    sources.iter().flat_map(in_source).collect()
}

fn in_source(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let mut before = None;
    let mut allowed = false;
    for (index, line) in source.text.lines().enumerate() {
        let comment = comment(line);
        if let Some((kind, text)) = comment {
            let continues =
                before.is_some_and(|(kind_before, text): (_, &str)| kind_before == kind && !text.is_empty());
            if !continues && !allowed && hides_its_subject(text) {
                found.push(format!(
                    "{}:{}: {text:?} hides its subject: name it, or begin with a verb (xtask/src/prose.rs)",
                    source.path,
                    index + 1
                ));
            }
        }
        allowed = line.trim() == ALLOW;
        before = comment.filter(|_| !allowed);
    }
    found
}

/// The marker of a line comment, and its text.
fn comment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let kind = ["///", "//!", "//"].into_iter().find(|kind| line.starts_with(kind))?;
    Some((kind, line[kind.len()..].trim()))
}

fn hides_its_subject(text: &str) -> bool {
    let ends =
        |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_' || next == '\'');
    BEGINNINGS.iter().any(|beginning| text.strip_prefix(beginning).is_some_and(ends))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<usize> {
        let problems = violations(&[Source { path: "a.rs".into(), text: text.into() }]);
        problems.iter().map(|problem| problem.split(':').nth(1).unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn a_first_sentence_without_a_subject_is_found_wherever_a_block_begins() {
        let text = "//! What it is.\n//!\n//! Of the next call.\n\n/// Returns it.\n/// That is it.\nfn a() {\n    // So many bytes.\n}\n";
        assert_eq!(found(text), [1, 3, 8]);
    }

    #[test]
    fn a_later_line_another_word_and_code_are_none() {
        let text = "/// Bytes\n/// of a message.\n// Items of it. Of all.\nlet whatever = \"// What\"; // That\n// Whatever comes.\n// It's\n// Office\n";
        assert_eq!(found(text), [0; 0]);
    }

    #[test]
    fn a_block_can_be_excused() {
        assert_eq!(found("// prose: allow\n// What is this?\n\n// What is this?\n"), [4]);
    }
}

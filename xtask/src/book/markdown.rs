//! The part of Markdown that the book's check needs: links, and the headings to which they can lead.

use std::{collections::HashMap, ops::Range};

/// Target of a link, and its place in the text.
#[derive(Debug, PartialEq, Eq)]
pub struct Link<'a> {
    pub target: &'a str,
    /// Line number, from 1.
    pub line: usize,
    /// Place of the target in the text, in bytes.
    pub at: Range<usize>,
}

/// All links, inline (`[text](target)`) and by reference (`[name]: target`), that are not in code.
pub fn links(text: &str) -> Vec<Link<'_>> {
    let prose = without_code(text);
    let mut links = Vec::new();
    let mut add = |at: Range<usize>| {
        let line = 1 + prose[..at.start].matches('\n').count();
        links.push(Link { target: &text[at.clone()], line, at });
    };
    for (found, _) in prose.match_indices("](") {
        let start = found + 2;
        let length = prose[start..].find([')', ' ', '\n']).unwrap_or(0);
        add(start..start + length);
    }
    let mut start = 0;
    for line in prose.split_inclusive('\n') {
        if let Some((name, target)) = line.split_once("]: ")
            && name.starts_with('[')
        {
            let from = start + line.len() - target.len();
            add(from..from + target.trim_end().len());
        }
        start += line.len();
    }
    links.sort_by_key(|link| link.at.start);
    links
}

/// Words in code spans, each with its line number.
pub fn code_spans(text: &str) -> Vec<(&str, usize)> {
    let prose = without_fences(text);
    let mut spans = Vec::new();
    each_span(&prose, |at| {
        let words = text[at.clone()].trim_matches('`').trim();
        spans.push((words, 1 + prose[..at.start].matches('\n').count()));
    });
    spans
}

/// Anchors of all headings, as GitHub and mdBook make them.
pub fn anchors(text: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut in_fence = false;
    let mut anchors = Vec::new();
    for line in text.lines() {
        in_fence ^= is_fence(line);
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        if in_fence || !(1..=6).contains(&level) || !title.starts_with(' ') {
            continue;
        }
        let anchor = anchor(title.trim());
        let times = seen.entry(anchor.clone()).or_default();
        anchors.push(if *times == 0 { anchor } else { format!("{anchor}-{times}") });
        *times += 1;
    }
    anchors
}

fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
    kept.map(|char| if char == ' ' { '-' } else { char }).flat_map(char::to_lowercase).collect()
}

fn is_fence(line: &str) -> bool {
    line.trim_start().starts_with("```")
}

/// The text with fences and code spans replaced by blanks: each byte keeps its place.
fn without_code(text: &str) -> String {
    let fenceless = without_fences(text);
    let mut prose = String::with_capacity(text.len());
    let mut from = 0;
    each_span(&fenceless, |at| {
        prose.push_str(&fenceless[from..at.start]);
        push_blanks(&mut prose, &fenceless[at.clone()]);
        from = at.end;
    });
    prose + &fenceless[from..]
}

fn without_fences(text: &str) -> String {
    let mut prose = String::with_capacity(text.len());
    let mut in_fence = false;
    for line in text.split_inclusive('\n') {
        let fence = is_fence(line);
        match in_fence || fence {
            true => push_blanks(&mut prose, line),
            false => prose.push_str(line),
        }
        in_fence ^= fence;
    }
    prose
}

/// Calls `each` for every code span. A span ends with as many backticks as it began with, within its paragraph;
/// without such an end it is no span.
fn each_span(text: &str, mut each: impl FnMut(Range<usize>)) {
    let mut at = 0;
    while let Some(start) = text[at..].find('`').map(|found| at + found) {
        let from = &text[start..];
        let ticks = from.len() - from.trim_start_matches('`').len();
        let paragraph = from.find("\n\n").unwrap_or(from.len());
        let end = span_end(&from[..paragraph], ticks);
        if let Some(end) = end {
            each(start..start + end);
        }
        at = start + end.unwrap_or(ticks);
    }
}

/// End of the code span that begins `text` with `ticks` backticks: the offset behind its last backtick.
fn span_end(text: &str, ticks: usize) -> Option<usize> {
    let mut at = ticks;
    while let Some(next) = text[at..].find('`') {
        let run = text[at + next..].chars().take_while(|char| *char == '`').count();
        at += next + run;
        if run == ticks {
            return Some(at);
        }
    }
    None
}

fn push_blanks(prose: &mut String, text: &str) {
    prose.extend(text.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str) -> Vec<&str> {
        links(text).into_iter().map(|link| link.target).collect()
    }

    #[test]
    fn links_are_found_outside_of_code_only() {
        let text =
            "See [a](a.md), [`b`](b.md#x \"title\") and `[c](c.md)`.\n\n```rust\n[d](d.md)\n```\n[e]: e.md\n";
        assert_eq!(targets(text), ["a.md", "b.md#x", "e.md"]);
        assert_eq!(links(text)[2].line, 6);
        assert_eq!(targets("a lone ` and [a](a.md)\n\nthen `code`"), ["a.md"]);
        assert_eq!(targets("über `ü` [ä](ä.md)"), ["ä.md"]);
    }

    #[test]
    fn code_spans_are_found_outside_of_fences() {
        assert_eq!(code_spans("a `b`\n```\n`c`\n```\n``d`e``"), [("b", 1), ("d`e", 5)]);
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text = "# To add …\n## `copy` is A_b-c\n```\n# no heading\n```\n## Same\n## Same\n#none\n";
        assert_eq!(anchors(text), ["to-add-", "copy-is-a_b-c", "same", "same-1"]);
    }
}

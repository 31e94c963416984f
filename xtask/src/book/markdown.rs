//! The part of Markdown that the book's check needs: links, code spans, and the headings to which links can lead.

use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};
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
    let parser = parser(text);
    let definitions = parser.reference_definitions().iter();
    let mut found: Vec<_> =
        definitions.map(|(_, link)| ("]:", link.dest.to_string(), link.span.clone())).collect();
    found.extend(parser.into_offset_iter().filter_map(|(event, at)| match event {
        Event::Start(
            Tag::Link { link_type: LinkType::Inline, dest_url, .. }
            | Tag::Image { link_type: LinkType::Inline, dest_url, .. },
        ) => Some(("](", dest_url.to_string(), at)),
        _ => None,
    }));
    let links = found.into_iter().filter_map(|(before, target, at)| {
        let from = at.start + text[at.clone()].rfind(before)?;
        let start = from + text[from..at.end].find(&target)?;
        let at = start..start + target.len();
        Some(Link { target: &text[at.clone()], line: line_of(text, start), at })
    });
    let mut links: Vec<_> = links.collect();
    links.sort_by_key(|link| link.at.start);
    links
}

/// Words in code spans, each with its line number.
pub fn code_spans(text: &str) -> Vec<(&str, usize)> {
    let spans = parser(text).into_offset_iter().filter(|(event, _)| matches!(event, Event::Code(_)));
    spans.map(|(_, at)| (text[at.clone()].trim_matches('`').trim(), line_of(text, at.start))).collect()
}

/// Anchors of all headings, as GitHub and mdBook make them.
pub fn anchors(text: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let (mut title, mut anchors) = (None, Vec::new());
    for event in parser(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => title = Some(String::new()),
            Event::Text(part) | Event::Code(part) => title = title.map(|title| title + &part),
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&title.take().unwrap_or_default());
                let times = seen.entry(anchor.clone()).or_default();
                anchors.push(if *times == 0 { anchor } else { format!("{anchor}-{times}") });
                *times += 1;
            }
            _ => {}
        }
    }
    anchors
}

fn parser(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES)
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
    kept.map(|char| if char == ' ' { '-' } else { char }).flat_map(char::to_lowercase).collect()
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

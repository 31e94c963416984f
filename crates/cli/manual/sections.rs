//! The text below the options in `--help`, split into sections.
//!
//! ```text
//! Examples:                       a section begins at the margin, and ends with a colon
//!   deckrun -n 4 ./hello  words   an entry is indented by two; two spaces end what is typed
//!                         words   deeper lines belong to the entry above
//! ```

/// A section's title, and its entries.
#[derive(Debug, PartialEq, Eq)]
pub struct Section {
    pub title: String,
    pub entries: Vec<Entry>,
}

/// An entry: a command or a code, and its meaning.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub term: String,
    pub words: String,
}

const INDENT: usize = 2;

pub fn parse(text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim();
        if indent == 0 {
            sections.push(Section { title: line.trim_end_matches(':').to_owned(), entries: Vec::new() });
            continue;
        }
        let Some(section) = sections.last_mut() else { continue };
        match section.entries.last_mut() {
            Some(entry) if indent > INDENT => {
                if !entry.words.is_empty() {
                    entry.words.push(' ');
                }
                entry.words.push_str(line);
            }
            _ => section.entries.push(entry(line)),
        }
    }
    sections
}

fn entry(line: &str) -> Entry {
    let (term, words) = line.split_once("  ").unwrap_or((line, ""));
    Entry { term: term.to_owned(), words: words.trim().to_owned() }
}

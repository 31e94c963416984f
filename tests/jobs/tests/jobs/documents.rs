//! The index of the documents (`docs/documents.md`): each command in bold runs, and prints the values in bold of its row.
//!
//! `papers "X"` is played with `--quick`. It checks its claims itself, so its row needs no values.

use std::{collections::BTreeSet, path::Path};

use udeck_jobs::Bin;

const INDEX: &str = include_str!("../../../../docs/documents.md");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A row of the index whose command is in bold.
struct Row {
    place: &'static str,
    /// Values in bold, in the column "here".
    values: BTreeSet<String>,
    command: &'static str,
}

fn rows() -> Vec<Row> {
    let cells = |line: &'static str| line.split(" | ").map(|cell| cell.trim_matches(['|', ' '])).collect();
    let row = |cells: Vec<&'static str>| {
        let [place, _, _, here, command, ..] = cells[..] else { return None };
        let command = command.split_once("**`")?.1.split_once("`**").expect("the end of a command").0;
        Some(Row { place, values: numbers(here.split("**").nth(1).unwrap_or_default()), command })
    };
    INDEX.lines().filter_map(|line| row(cells(line))).collect()
}

/// The numbers of a text, without commas between thousands.
fn numbers(text: &str) -> BTreeSet<String> {
    let words = text.split_whitespace().map(|word| word.trim_matches([',', ';', '%']).replace(',', ""));
    words.filter(|word| word.parse::<f64>().is_ok()).collect()
}

/// The title of a part of `deckfabric papers`.
fn part(command: &str) -> Option<&str> {
    command.strip_prefix("papers \"")?.strip_suffix('"')
}

/// The output of a command of the index. Its paths are those of files below the root of the repository.
fn played(command: &str) -> String {
    if let Some(title) = part(command) {
        return Bin::deckfabric().alone().args(["papers", "--quick", "--only", title]).run().ok().stdout;
    }
    let mut words = command.split(' ');
    let program = match words.next() {
        Some("deckqos") => Bin::deckqos(),
        Some("deckfabric") => Bin::deckfabric(),
        _ => panic!("{command}: the test has no such program"),
    };
    let in_root = |word: &str| match word.starts_with("bench-apps/") {
        true => Path::new(ROOT).join(word).display().to_string(),
        false => word.to_owned(),
    };
    program.alone().args(words.map(in_root)).run().ok().stdout
}

#[test]
fn short_commands_print_the_values_of_their_rows() {
    let rows = rows();
    assert!(rows.len() >= 4, "{} rows of docs/documents.md have a command in bold", rows.len());
    for Row { place, values, command } in rows {
        assert!(part(command).is_some() || !values.is_empty(), "{place}: no value in bold beside {command}");
        let output = played(command);
        let printed = numbers(&output);
        let missing: Vec<_> = values.difference(&printed).collect();
        assert!(missing.is_empty(), "{place}: {command} does not print {missing:?}:\n{output}");
    }
}

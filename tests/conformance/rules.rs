//! VIA's rules, and the cases that test each. `--rules` prints them; tests check that every named case exists, and
//! that every call, return code and status bit of VIPL is in its table.
//!
//! To add a rule, add a row; to add a case to a rule, add a name to its row. Cases are named `topic::case`.

mod ours;
mod via;
mod vipl;

use ours::{OURS, RESOURCES, UDAPL};
use via::{CONNECTIONS, MEMORY, QUEUES, RELIABILITY};
use vipl::{BITS, CALLS, CODES};

/// A rule, and the tests that fail when it is broken.
pub struct Rule {
    /// In the specification's words, or nearly.
    pub rule: &'static str,
    /// Names of cases, each as `topic::case`.
    pub cases: &'static [&'static str],
    /// Names of other tests, each as `file::function` from the root of the workspace, for what no case can
    /// produce on every transport.
    pub tests: &'static [&'static str],
    /// How the library fulfils the rule, or why it does not apply; empty if the rule says enough.
    pub note: &'static str,
}

const fn rule(rule: &'static str, cases: &'static [&'static str]) -> Rule {
    Rule { rule, cases, tests: &[], note: "" }
}

/// A rule of the specification that does not apply here.
const fn absent(rule: &'static str, why: &'static str) -> Rule {
    Rule { rule, cases: &[], tests: &[], note: why }
}

impl Rule {
    const fn tests(self, tests: &'static [&'static str]) -> Self {
        Rule { tests, ..self }
    }

    const fn note(self, note: &'static str) -> Self {
        Rule { note, ..self }
    }
}

/// All rules, by chapter.
pub const RULES: &[(&str, &[Rule])] = &[
    ("Reliability levels: the properties of the specification's table", RELIABILITY),
    ("Work queues, descriptors, completion", QUEUES),
    ("Connections and states", CONNECTIONS),
    ("Memory", MEMORY),
    ("VIPL's calls", CALLS),
    ("VIPL's return codes", CODES),
    ("VIA's status bits", BITS),
    ("Resources", RESOURCES),
    ("uDAPL's", UDAPL),
    ("Neither's", OURS),
];

/// Prints the table.
pub fn print() {
    print!("{}", text());
}

fn text() -> String {
    let mut text = String::new();
    for (chapter, rules) in RULES {
        text += &format!("{chapter}\n{}\n", "-".repeat(chapter.chars().count()));
        for Rule { rule, cases, tests, note } in *rules {
            match (cases.is_empty() && tests.is_empty(), note.is_empty()) {
                (true, _) => text += &format!("* {rule}: not applicable: {note}\n"),
                (false, true) => text += &format!("* {rule}\n"),
                (false, false) => text += &format!("* {rule}\n    ({note})\n"),
            }
            for held_by in cases.iter().chain(*tests) {
                text += &format!("    {held_by}\n");
            }
        }
        text.push('\n');
    }
    let all: Vec<&Rule> = RULES.iter().flat_map(|(_, rules)| *rules).collect();
    let held = all.iter().filter(|rule| !rule.cases.is_empty() || !rule.tests.is_empty()).count();
    text + &format!("{} rules, {held} of them held by cases or tests\n", all.len())
}

#[cfg(test)]
mod tests;

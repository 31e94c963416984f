//! The suite's rules, each with its cases for uDAPL, or with the reason why it does not apply.

mod ours;
mod via;
mod vipl;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use udeck_conformance::rules::RULES;

use crate::cases;

/// A rule of the suite, and its tests for uDAPL.
pub struct Asked {
    /// The rule in the suite's words.
    pub rule: &'static str,
    /// Names of this program's cases, each as `topic::case`.
    pub cases: &'static [&'static str],
    /// Names of other tests of uDAPL, each as `file::function` from the root of the workspace.
    pub tests: &'static [&'static str],
    /// How uDAPL expresses the rule, or why it does not apply; empty if the rule says enough.
    pub note: &'static str,
}

/// A rule that cases here test.
const fn asked(rule: &'static str, cases: &'static [&'static str]) -> Asked {
    Asked { rule, cases, tests: &[], note: "" }
}

/// A rule that has no counterpart in uDAPL.
const fn does_not_meet(rule: &'static str, why: &'static str) -> Asked {
    Asked { rule, cases: &[], tests: &[], note: why }
}

impl Asked {
    const fn note(self, note: &'static str) -> Self {
        Asked { note, ..self }
    }

    const fn tests(self, tests: &'static [&'static str]) -> Self {
        Asked { tests, ..self }
    }
}

fn all() -> impl Iterator<Item = &'static Asked> {
    via::ASKED.iter().chain(vipl::ASKED).chain(ours::ASKED)
}

/// Text of the table, in the suite's order.
pub fn text() -> String {
    let asked: BTreeMap<&str, &Asked> = all().map(|asked| (asked.rule, asked)).collect();
    let (mut text, mut number, mut held) = (String::new(), 0, 0);
    for (chapter, rules) in RULES {
        text += &format!("{chapter}\n{}\n", "-".repeat(chapter.chars().count()));
        for rule in *rules {
            number += 1;
            let Some(Asked { cases, tests, note, .. }) = asked.get(rule.rule) else { continue };
            held += usize::from(!cases.is_empty() || !tests.is_empty());
            match (cases.is_empty() && tests.is_empty(), note.is_empty()) {
                (true, _) => text += &format!("{number}. {}: does not meet uDAPL: {note}\n", rule.rule),
                (false, true) => text += &format!("{number}. {}\n", rule.rule),
                (false, false) => text += &format!("{number}. {}\n    ({note})\n", rule.rule),
            }
            for held_by in cases.iter().chain(*tests) {
                text += &format!("    {held_by}\n");
            }
        }
        text.push('\n');
    }
    text + &format!("{number} rules, {held} of them asked of uDAPL by cases or tests\n")
}

/// Checks that no rule is missing or listed twice, each has a test or a reason, every named test exists, and no case is
/// without a rule.
pub fn check() {
    let rules: Vec<&str> = RULES.iter().flat_map(|(_, rules)| rules.iter().map(|rule| rule.rule)).collect();
    let table: Vec<&str> = all().map(|asked| asked.rule).collect();
    let (known, there): (BTreeSet<_>, BTreeSet<_>) =
        (rules.iter().collect::<BTreeSet<_>>(), table.iter().collect());
    let missing: Vec<_> = known.difference(&there).collect();
    assert!(missing.is_empty(), "rules of the suite that the table of uDAPL does not have: {missing:#?}");
    let unknown: Vec<_> = there.difference(&known).collect();
    assert!(unknown.is_empty(), "the suite has no such rules: {unknown:#?}");
    assert_eq!(table.len(), there.len(), "a rule is in the table twice");
    let names: BTreeSet<String> =
        cases::all().iter().map(|case| format!("{}::{}", case.topic, case.name)).collect();
    let mut named = BTreeSet::new();
    for Asked { rule, cases, tests, note } in all() {
        assert!(
            !cases.is_empty() || !tests.is_empty() || !note.is_empty(),
            "neither asked of uDAPL, nor said why not: {rule}"
        );
        for case in *cases {
            assert!(names.contains(*case), "no case is named {case}, which asks uDAPL for: {rule}");
            named.insert((*case).to_owned());
        }
        tests.iter().for_each(|test| assert_exists(test));
    }
    let idle: Vec<_> = names.difference(&named).collect();
    assert!(idle.is_empty(), "cases without a rule in the table: {idle:#?}");
}

fn assert_exists(test: &str) {
    let (file, name) = test.split_once("::").expect("file::function");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let source = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"));
    assert!(source.contains(&format!(" {name}(")), "{file} has no {name}");
}

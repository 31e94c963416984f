//! Output of a run of the steps: the end of each step, the table, and the last line.

use crate::{
    console::say,
    steps::{Extent, Step},
    test_counts::{Counts, Suite},
};
use std::{fmt::Write, time::Duration};

/// Result of one step.
pub struct Outcome {
    pub name: &'static str,
    pub verdict: Verdict,
    pub counts: Counts,
    pub suites: Vec<Suite>,
    /// Failures: tests by name, or commands with the way they ended.
    pub problems: Vec<String>,
    /// First lines that each failed test printed.
    pub failure_lines: Vec<String>,
    /// Tests that failed, and passed when they ran again.
    pub flaky: Vec<String>,
    /// Reasons for parts that were left out.
    pub skips: Vec<String>,
    pub took: Duration,
    /// Processor time of its commands.
    pub processor_time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Ok,
    Failed,
    NotRun,
}

impl Outcome {
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            verdict: Verdict::NotRun,
            counts: Counts::default(),
            suites: Vec::new(),
            problems: Vec::new(),
            failure_lines: Vec::new(),
            flaky: Vec::new(),
            skips: Vec::new(),
            took: Duration::ZERO,
            processor_time: Duration::ZERO,
        }
    }

    /// Result of a step that was left out after an earlier one failed. It counts as one skipped, because its
    /// number of tests is unknown.
    pub fn not_run(name: &'static str) -> Self {
        Self { counts: Counts { skipped: 1, ..Counts::default() }, ..Self::new(name) }
    }

    pub fn is_bad(&self) -> bool {
        self.verdict == Verdict::Failed
    }
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Failed => "FAILED",
            Verdict::NotRun => "not run",
        }
    }
}

/// Checks that the quick run leaves out, and the command that runs them.
pub const CHECKS: &str = "lints, misuse that must not compile, loom, random jobs, kills at every point, hosts, launchers, verbs, uDAPL, \
    Python, pages, counts: `cargo xtask test --all` runs them, in half an hour (`--list` says what that is)";
/// Checks that `--all` leaves out, and the command that runs them.
pub const TAIL: &str =
    "what only a night has time for: `cargo xtask test --nightly` (`--list` says what that is)";

/// Prints the steps, for `--list`.
pub fn list(steps: &dyn Fn(Extent) -> Vec<Step>) {
    let all = steps(Extent::All);
    let night = steps(Extent::Night);
    let show = |title: &str, steps: &[Step]| {
        println!("{title}");
        steps.iter().for_each(|step| println!("  {:12} {}", step.name, step.about));
        println!();
    };
    show("cargo xtask test: what users rely on", &steps(Extent::Quick));
    show("cargo xtask test --all: what a change needs before it is taken", &all);
    show("cargo xtask test --nightly: all of these, and", &night[all.len()..]);
    println!("cargo xtask test STEP..: some of the last two lists");
}

/// Formats a duration, for example `2 min 5 s`.
pub fn minutes(took: Duration) -> String {
    format!("{} min {} s", took.as_secs() / 60, took.as_secs() % 60)
}

/// Prints the end of one step.
pub fn step(outcome: &Outcome, by_program: bool) {
    if by_program {
        for suite in outcome.suites.iter().filter(|suite| suite.counts != Counts::default()) {
            match &suite.summary {
                Some(summary) if summary.starts_with(&suite.name) => say!("    {summary}"),
                Some(summary) => say!("    {}: {summary}", suite.name),
                None => say!("    {}: {}", suite.name, line(suite.counts)),
            }
        }
    }
    say!("=== {}: {} in {:.1} s", outcome.name, outcome.verdict.word(), outcome.took.as_secs_f64());
}

/// Prints the table, the failures, and the last line, which names what was left out. `false`: something failed.
pub fn summary(outcomes: &[Outcome], took: Duration, left_out: &str) -> bool {
    print!("\n{}", summary_text(outcomes, took, left_out));
    !outcomes.iter().any(Outcome::is_bad)
}

fn summary_text(outcomes: &[Outcome], took: Duration, left_out: &str) -> String {
    let mut text = format!(
        "{:12} {:8} {:>7} {:>7} {:>7} {:>8} {:>8}\n",
        "step", "result", "passed", "failed", "skipped", "seconds", "cpu s"
    );
    let mut total = Counts::default();
    for Outcome { name, verdict, counts, took, processor_time, .. } in outcomes {
        total += *counts;
        let Counts { passed, failed, skipped } = counts;
        let (seconds, cpu) = (took.as_secs_f64(), processor_time.as_secs_f64());
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "{name:12} {:8} {passed:7} {failed:7} {skipped:7} {seconds:8.1} {cpu:8.1}",
            verdict.word()
        );
    }
    let cpu: Duration = outcomes.iter().map(|outcome| outcome.processor_time).sum();
    let _ = writeln!(
        text,
        "{} steps in {}, {:.0} s of a processor",
        outcomes.len(),
        minutes(took),
        cpu.as_secs_f64()
    );
    for outcome in outcomes {
        for reason in &outcome.skips {
            let _ = writeln!(text, "skipped: {}: {reason}", outcome.name);
        }
        for test in &outcome.flaky {
            let _ = writeln!(
                text,
                "flaky: {}: {test} (failed above, and passed when it ran again)",
                outcome.name
            );
        }
        for problem in &outcome.problems {
            let _ = writeln!(text, "failed: {}: {problem}", outcome.name);
        }
        for line in &outcome.failure_lines {
            let _ = writeln!(text, "    {line}");
        }
    }
    let left_out = if left_out.is_empty() { String::new() } else { format!(". Not run: {left_out}") };
    let _ = writeln!(text, "{}{left_out}", line(total));
    text
}

fn line(counts: Counts) -> String {
    format!("{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_sum_and_failures_are_named() {
        let good = Outcome {
            verdict: Verdict::Ok,
            counts: Counts { passed: 7, failed: 0, skipped: 1 },
            ..Outcome::new("unit")
        };
        let bad = Outcome {
            verdict: Verdict::Failed,
            counts: Counts { passed: 2, failed: 1, skipped: 0 },
            problems: vec!["udeck_sys: ring::wraps".into()],
            failure_lines: vec!["thread 'fills' panicked: 3 is not 4".into()],
            flaky: vec!["udeck_sys: ring::fills".into()],
            ..Outcome::new("loom")
        };
        let skipped = Outcome { skips: vec!["no valgrind".into()], ..Outcome::not_run("counts") };
        let text = summary_text(&[good, bad, skipped], Duration::from_secs(61), "the rest: `--all`");
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.contains(&"3 steps in 1 min 1 s, 0 s of a processor"), "{text}");
        assert_eq!(lines.last(), Some(&"9 passed, 1 failed, 2 skipped. Not run: the rest: `--all`"));
        assert!(lines.contains(&"    thread 'fills' panicked: 3 is not 4"), "{text}");
        assert!(lines.contains(&"failed: loom: udeck_sys: ring::wraps"), "{text}");
        assert!(lines.iter().any(|line| line.starts_with("flaky: loom: udeck_sys: ring::fills ")), "{text}");
        assert!(lines.contains(&"skipped: counts: no valgrind"), "{text}");
        assert!(lines.iter().any(|line| line.starts_with("counts") && line.contains("not run")), "{text}");
    }

    #[test]
    fn only_a_failed_step_fails_the_run() {
        let ok = Outcome { verdict: Verdict::Ok, ..Outcome::new("unit") };
        assert!(!ok.is_bad() && !Outcome::not_run("jobs").is_bad());
        assert!(Outcome { verdict: Verdict::Failed, ..ok }.is_bad());
    }
}

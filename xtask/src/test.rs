//! `cargo xtask test`: runs the steps, shows each as it goes, and sums up.

use crate::{
    TestOptions, arrows,
    child::Cargo,
    counts, places, rdma, report,
    report::{Outcome, Verdict},
    steps,
    steps::{Role, Step, Work},
    tally::{Counts, Tally},
    workspace::{METADATA_ARGS, Workspace},
};
use std::time::{Duration, Instant};

/// Runs what the options ask for; `Ok(false)` if anything failed.
pub fn run(options: &TestOptions) -> Result<bool, String> {
    let workspace = Workspace::load()?;
    let only = [&options.steps[..], &options.only].concat();
    let steps = chosen(steps::all(&workspace, options.fail_fast), &only)?;
    if options.list {
        report::list(&steps);
        return Ok(true);
    }
    let limit = Duration::from_secs(60 * options.limit);
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        if options.fail_fast && outcomes.iter().any(Outcome::is_bad) {
            outcomes.push(Outcome::not_run(step.name));
            continue;
        }
        println!("\n=== {}/{} {}: {}", index + 1, steps.len(), step.name, step.about);
        let outcome = run_step(step, &workspace, limit);
        report::step(&outcome, step.by_program);
        outcomes.push(outcome);
    }
    Ok(report::summary(&outcomes))
}

fn chosen(mut steps: Vec<Step>, only: &[String]) -> Result<Vec<Step>, String> {
    if let Some(unknown) = only.iter().find(|name| steps.iter().all(|step| step.name != **name)) {
        let names: Vec<_> = steps.iter().map(|step| step.name).collect();
        return Err(format!("there is no step `{unknown}`; the steps are {}", names.join(", ")));
    }
    steps.retain(|step| only.is_empty() || only.iter().any(|name| name == step.name));
    Ok(steps)
}

fn run_step(step: &Step, workspace: &Workspace, limit: Duration) -> Outcome {
    let start = Instant::now();
    let mut outcome = Outcome::new(step.name);
    match &step.work {
        Work::Arrows => check_arrows(workspace, &mut outcome),
        Work::Counts => outcome.compared(counts::check(workspace, limit)),
        Work::Rdma => outcome.guests(rdma::check(workspace, limit)),
        Work::Commands(commands) => {
            for (role, cargo) in commands {
                let went_well = run_command(*role, cargo, workspace, limit, &mut outcome);
                if !went_well && *role == Role::Prepare {
                    break;
                }
            }
        }
    }
    outcome.verdict = if outcome.counts.failed == 0 { Verdict::Ok } else { Verdict::Failed };
    outcome.took = start.elapsed();
    outcome
}

/// Runs one command and books what came of it; false if it failed.
fn run_command(
    role: Role,
    cargo: &Cargo,
    workspace: &Workspace,
    limit: Duration,
    outcome: &mut Outcome,
) -> bool {
    println!("    $ {cargo}");
    let mut tally = Tally::default();
    let ended = cargo.run(&workspace.root, limit, |line| tally.line(line));
    let problem = ended.unwrap_or_else(|e| Some(format!("cannot run it: {e}")));
    outcome.book(role, problem.map(|problem| format!("`{cargo}`: {problem}")), tally)
}

fn check_arrows(workspace: &Workspace, outcome: &mut Outcome) {
    println!("    $ cargo {}", METADATA_ARGS.join(" "));
    let sources = match places::sources(&workspace.root) {
        Ok(sources) => sources,
        Err(e) => return outcome.fail(format!("cannot read the sources: {e}")),
    };
    let arrows = arrows::violations(workspace);
    println!("{} arrows between {} packages", arrows::count(workspace), workspace.packages.len());
    let places = places::violations(&sources);
    println!("{} source files", sources.len());
    for problems in [arrows, places] {
        outcome.counts.passed += u64::from(problems.is_empty());
        outcome.counts.failed += u64::from(!problems.is_empty());
        for problem in problems {
            println!("{problem}");
            outcome.problems.push(problem);
        }
    }
}

impl Outcome {
    /// Adds one command's result; false if it failed.
    fn book(&mut self, role: Role, problem: Option<String>, tally: Tally) -> bool {
        let counts = if role == Role::Check { Counts::default() } else { tally.total() };
        self.counts += counts;
        self.problems.extend(tally.failed);
        self.suites.extend(tally.suites);
        let silent = counts.passed + counts.failed == 0;
        match problem {
            // The failed tests say it better.
            Some(_) if counts.failed > 0 => {}
            Some(problem) => self.fail(problem),
            None if role == Role::SomeTests && silent => {
                self.fail("no test ran: the filter matched none".into())
            }
            None => {
                self.counts.passed += u64::from(role == Role::Check);
                return true;
            }
        }
        false
    }

    /// Each path is a check.
    fn compared(&mut self, report: counts::Report) {
        self.counts.passed += report.passed;
        self.counts.skipped += u64::from(report.skipped.is_some());
        self.skips.extend(report.skipped);
        report.problems.into_iter().for_each(|problem| self.fail(problem));
    }

    /// Each case of a guest is a check.
    fn guests(&mut self, report: rdma::Report) {
        for guest in report.guests {
            let problem = guest.problem.map(|problem| format!("{}: {problem}", guest.name));
            self.book(Role::SomeTests, problem, guest.tally);
        }
        self.counts.passed += report.passed;
        self.counts.skipped += u64::from(report.skipped.is_some());
        self.skips.extend(report.skipped);
        report.problems.into_iter().for_each(|problem| self.fail(problem));
    }

    fn fail(&mut self, problem: String) {
        self.counts.failed += 1;
        self.problems.push(problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Suite;

    fn tally(passed: u64, failed: u64) -> Tally {
        let mut tally = Tally::default();
        let counts = Counts { passed, failed, skipped: 0 };
        tally.suites.push(Suite { name: "t".into(), counts, summary: None });
        tally
    }

    fn booked(role: Role, problem: Option<&str>, tally: Tally) -> (bool, u64, u64) {
        let mut outcome = Outcome::new("step");
        let went_well = outcome.book(role, problem.map(str::to_owned), tally);
        (went_well, outcome.counts.passed, outcome.counts.failed)
    }

    #[test]
    fn tests_are_counted_one_by_one() {
        assert_eq!(booked(Role::SomeTests, None, tally(3, 0)), (true, 3, 0));
        assert_eq!(booked(Role::SomeTests, Some("exit status: 101"), tally(3, 2)), (false, 3, 2));
    }

    #[test]
    fn a_command_that_breaks_before_its_tests_is_one_failure() {
        assert_eq!(booked(Role::Tests, Some("exit status: 101"), tally(0, 0)), (false, 0, 1));
        assert_eq!(booked(Role::Tests, Some("signal: 6"), tally(4, 0)), (false, 4, 1));
    }

    #[test]
    fn finding_no_test_is_a_failure_where_tests_are_expected() {
        assert_eq!(booked(Role::SomeTests, None, tally(0, 0)), (false, 0, 1));
        assert_eq!(booked(Role::Tests, None, tally(0, 0)), (true, 0, 0));
    }

    #[test]
    fn a_check_counts_as_one_and_a_preparation_only_when_it_fails() {
        assert_eq!(booked(Role::Check, None, Tally::default()), (true, 1, 0));
        assert_eq!(booked(Role::Check, Some("exit status: 1"), Tally::default()), (false, 0, 1));
        assert_eq!(booked(Role::Prepare, None, Tally::default()), (true, 0, 0));
        assert_eq!(booked(Role::Prepare, Some("exit status: 1"), Tally::default()), (false, 0, 1));
    }

    #[test]
    fn a_path_out_of_tolerance_is_a_failure_and_a_comparison_that_cannot_be_made_a_skip() {
        let mut outcome = Outcome::new("counts");
        let problems = vec!["post".into()];
        outcome.compared(counts::Report { passed: 2, problems, skipped: None });
        assert_eq!(outcome.counts, Counts { passed: 2, failed: 1, skipped: 0 });
        assert_eq!(outcome.problems, ["post"]);

        let mut outcome = Outcome::new("counts");
        let skipped = Some("no valgrind".into());
        outcome.compared(counts::Report { skipped, ..counts::Report::default() });
        assert_eq!(outcome.counts, Counts { passed: 0, failed: 0, skipped: 1 });
        assert_eq!(outcome.skips, ["no valgrind"]);
    }

    #[test]
    fn an_unknown_step_is_refused_with_the_names_that_exist() {
        let steps = || vec![Step { name: "arrows", about: "", work: Work::Arrows, by_program: false }];
        let problem = chosen(steps(), &["arows".into()]).err().expect("refused");
        assert!(problem.contains("`arows`") && problem.ends_with("arrows"), "{problem}");
        assert_eq!(chosen(steps(), &["arrows".into()]).unwrap().len(), 1);
        assert_eq!(chosen(steps(), &[]).unwrap().len(), 1);
    }
}

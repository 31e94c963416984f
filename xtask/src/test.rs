//! `cargo xtask test`: runs the steps, shows each as it goes, and sums up.

use crate::{
    arrows, book,
    child::{self, Cargo},
    circles,
    console::{self, say},
    counts, packaging, prose, rdma, report,
    report::{Outcome, Verdict},
    steps,
    steps::{BUILD, Beside, Extent, RELEASE_BUILD, Role, Step, Work},
    test_counts::{Counts, TestCounts},
    unsafe_policy,
    workspace::{METADATA_ARGS, Workspace},
};
use clap::Args;
use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

#[derive(Args)]
pub struct TestOptions {
    /// Run these steps only, of all that there are
    #[arg(value_name = "STEP")]
    steps: Vec<String>,

    /// Run this step only; may be given several times
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,

    /// Everything that a change needs before it is merged: what continuous integration runs
    #[arg(long, conflicts_with_all = ["steps", "only"])]
    all: bool,

    /// Everything, and the checks that only a night has time for
    #[arg(long, conflicts_with_all = ["all", "steps", "only"])]
    nightly: bool,

    /// Stop at the first step that fails
    #[arg(long)]
    fail_fast: bool,

    /// Show the steps and what each is for, and run nothing
    #[arg(long)]
    list: bool,

    /// Kill a command that runs longer than this
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1440))]
    limit: u64,
}

/// Number of steps that run at the same time. Tests wait often: three keep two processors busy.
const SIDE_BY_SIDE: usize = 3;

/// Runs the steps that the options select. `Ok(false)`: something failed.
pub fn run(options: &TestOptions) -> Result<bool, String> {
    let workspace = Workspace::load()?;
    let steps = |extent| steps::of(extent, &workspace, options.fail_fast);
    if options.list {
        report::list(&steps);
        return Ok(true);
    }
    let only = [&options.steps[..], &options.only].concat();
    let (steps, left_out) = match (options.all, options.nightly) {
        _ if !only.is_empty() => (chosen(steps(Extent::Night), &only)?, ""),
        (_, true) => (steps(Extent::Night), ""),
        (true, _) => (steps(Extent::All), report::TAIL),
        _ => (steps(Extent::Quick), report::CHECKS),
    };
    let limit = Duration::from_secs(60 * options.limit);
    let start = Instant::now();
    let progress = Progress::new(start, &steps);
    let run = Run { steps: &steps, workspace: &workspace, limit, fail_fast: options.fail_fast, progress };
    let outcomes = run.all();
    Ok(report::summary(&outcomes, start.elapsed(), left_out))
}

/// A run of some steps.
struct Run<'a> {
    steps: &'a [Step],
    workspace: &'a Workspace,
    limit: Duration,
    fail_fast: bool,
    progress: Progress,
}

impl Run<'_> {
    /// Runs the steps that run alone, and then the others, [`SIDE_BY_SIDE`] at a time. If the first failure ends the run, all steps
    /// run one after another.
    fn all(&self) -> Vec<Outcome> {
        let alone = |step: &Step| self.fail_fast || step.beside == Beside::Nothing;
        let mut outcomes = Vec::new();
        for (index, step) in self.steps.iter().enumerate().filter(|(_, step)| alone(step)) {
            if self.fail_fast && outcomes.iter().any(Outcome::is_bad) {
                outcomes.push(Outcome::not_run(step.name));
            } else {
                outcomes.push(self.one(index, step, false));
            }
        }
        let others: Vec<_> = (0..self.steps.len()).filter(|&index| !alone(&self.steps[index])).collect();
        // All other steps would only repeat the compiler's errors.
        if outcomes.iter().any(|one| one.name == BUILD && one.is_bad()) {
            outcomes.extend(others.into_iter().map(|index| Outcome::not_run(self.steps[index].name)));
            return outcomes;
        }
        let several = others.len() > 1;
        let queue = Queue::new(self.steps, others);
        let worker = || {
            let mut outcomes = Vec::new();
            while let Some(index) = queue.next() {
                // A step that panics must not let others wait for it.
                let _ended = Ended { queue: &queue, index };
                outcomes.push(self.one(index, &self.steps[index], several));
            }
            outcomes
        };
        thread::scope(|scope| {
            for thread in (0..SIDE_BY_SIDE).map(|_| scope.spawn(worker)).collect::<Vec<_>>() {
                // A step that panics has printed the reason, and must not yield a result.
                outcomes.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
        });
        let place = |outcome: &Outcome| self.steps.iter().position(|step| step.name == outcome.name);
        outcomes.sort_by_key(place);
        outcomes
    }

    /// Runs one step. Beside others, its lines begin with its name.
    fn one(&self, index: usize, step: &Step, beside_others: bool) -> Outcome {
        self.progress.begins(step.name);
        console::beside(beside_others.then_some(step.name), || {
            say!("");
            say!("=== {}/{} {}: {}", index + 1, self.steps.len(), step.name, step.about);
            let outcome = run_step(step, self.workspace, self.limit);
            report::step(&outcome, step.by_program);
            say!("=== {}", self.progress.ended(step.name));
            outcome
        })
    }
}

/// Steps that wait for a worker.
struct Queue<'a> {
    steps: &'a [Step],
    state: Mutex<QueueState>,
    changed: Condvar,
}

struct QueueState {
    /// Indices, in the order of the list.
    waiting: Vec<usize>,
    /// Whether no step waits for the release build any more.
    released: bool,
}

impl<'a> Queue<'a> {
    fn new(steps: &'a [Step], waiting: Vec<usize>) -> Self {
        let released = !waiting.iter().any(|&index| steps[index].name == RELEASE_BUILD);
        Self { steps, state: Mutex::new(QueueState { waiting, released }), changed: Condvar::new() }
    }

    /// The first step that may begin. Waits for the release build if it has to. `None`: no step is left.
    fn next(&self) -> Option<usize> {
        let mut state = self.state();
        loop {
            let may_begin =
                |&index: &usize| state.released || self.steps[index].beside != Beside::AfterRelease;
            if let Some(place) = state.waiting.iter().position(may_begin) {
                return Some(state.waiting.remove(place));
            }
            if state.waiting.is_empty() {
                return None;
            }
            // The release build has a time limit, as all steps have.
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn ended(&self, index: usize) {
        if self.steps[index].name == RELEASE_BUILD {
            self.state().released = true;
            self.changed.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the queue, when dropped, that the step has ended.
struct Ended<'a> {
    queue: &'a Queue<'a>,
    index: usize,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.queue.ended(self.index);
    }
}

/// Progress of a run.
struct Progress {
    start: Instant,
    steps: usize,
    /// Steps under way, and number of steps that have ended.
    state: Mutex<(Vec<&'static str>, usize)>,
}

impl Progress {
    fn new(start: Instant, steps: &[Step]) -> Self {
        Self { start, steps: steps.len(), state: Mutex::default() }
    }

    fn begins(&self, step: &'static str) {
        self.state().0.push(step);
    }

    /// Progress line, for example `3 of 6 steps have ended after 2 min 5 s; under way: conformance`.
    fn ended(&self, step: &str) -> String {
        let mut state = self.state();
        let (under_way, ended) = &mut *state;
        under_way.retain(|other| *other != step);
        *ended += 1;
        let after = report::minutes(self.start.elapsed());
        let others = if under_way.is_empty() { "" } else { "; under way: " };
        format!("{ended} of {} steps have ended after {after}{others}{}", self.steps, under_way.join(", "))
    }

    fn state(&self) -> MutexGuard<'_, (Vec<&'static str>, usize)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    let (start, time_before) = (Instant::now(), child::processor_time());
    let mut outcome = Outcome::new(step.name);
    match &step.work {
        Work::Arrows => check_arrows(workspace, &mut outcome),
        Work::Book => outcome.compared(book::check(workspace, limit)),
        Work::Packaging => outcome.compared(packaging::check(workspace, limit)),
        Work::Counts(extent) => outcome.compared(counts::check(workspace, *extent, limit)),
        Work::Rdma(chosen) => outcome.guests(rdma::check(workspace, chosen, limit)),
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
    outcome.processor_time += child::processor_time() - time_before;
    outcome
}

/// Runs one command and records its result. `false`: it failed.
fn run_command(
    role: Role,
    cargo: &Cargo,
    workspace: &Workspace,
    limit: Duration,
    outcome: &mut Outcome,
) -> bool {
    say!("    $ {cargo}");
    let (mut problem, mut tally) = run_and_count(cargo, workspace, limit);
    if problem.is_some() && passes_again(cargo, &tally, workspace, limit) {
        tally.passed_again();
        problem = None;
    }
    outcome.book(role, problem.map(|problem| format!("`{cargo}`: {problem}")), tally)
}

/// Runs one command. Returns how it failed, and the counts of its tests.
fn run_and_count(cargo: &Cargo, workspace: &Workspace, limit: Duration) -> (Option<String>, TestCounts) {
    let mut tally = TestCounts::default();
    let ended = cargo.run(&workspace.root, limit, |line| tally.line(line));
    (ended.unwrap_or_else(|e| Some(format!("cannot run it: {e}"))), tally)
}

/// Largest number of failed tests of a command that may run again. More failures are no accident.
const MAY_RUN_AGAIN: usize = 2;

/// Number of passes in a row that a repeated test needs.
const PASSES_AGAIN: usize = 3;

/// Whether the failures are failed tests only, and these pass when they run again by themselves, several times in a row. A
/// test that depends on the machine's scheduling of thousands of others is named in the summary, and stops nobody's work.
fn passes_again(cargo: &Cargo, tally: &TestCounts, workspace: &Workspace, limit: Duration) -> bool {
    let failed = tally.failed_tests();
    if !tally.only_tests_failed() || failed.len() > MAY_RUN_AGAIN {
        return false;
    }
    failed.iter().all(|name| {
        let Some(again) = cargo.only_test(name) else { return false };
        (0..PASSES_AGAIN).all(|_| {
            say!("    $ {again}");
            let (problem, counts) = run_and_count(&again, workspace, limit);
            problem.is_none() && counts.total().passed > 0
        })
    })
}

fn check_arrows(workspace: &Workspace, outcome: &mut Outcome) {
    say!("    $ cargo {}", METADATA_ARGS.join(" "));
    let sources = match unsafe_policy::sources(&workspace.root) {
        Ok(sources) => sources,
        Err(problem) => return outcome.fail(problem),
    };
    let arrows = arrows::violations(workspace);
    say!("{} arrows between {} packages", arrows::count(workspace), workspace.packages.len());
    let places = unsafe_policy::violations(&sources);
    say!("{} source files", sources.len());
    for problems in [arrows, places, circles::violations(workspace), prose::violations(&sources)] {
        outcome.counts.passed += u64::from(problems.is_empty());
        outcome.counts.failed += u64::from(!problems.is_empty());
        for problem in problems {
            say!("{problem}");
            outcome.problems.push(problem);
        }
    }
}

impl Outcome {
    /// Adds the result of one command. `false`: it failed.
    fn book(&mut self, role: Role, problem: Option<String>, tally: TestCounts) -> bool {
        let counts = if role == Role::Check { Counts::default() } else { tally.total() };
        self.counts += counts;
        self.problems.extend(tally.failed.iter().map(ToString::to_string));
        self.flaky.extend(tally.flaky.iter().map(ToString::to_string));
        self.suites.extend(tally.suites);
        self.skips.extend(tally.skips);
        self.failure_lines.extend(tally.failure_lines);
        let silent = counts.passed + counts.failed == 0;
        match problem {
            // The names of failed tests say more than the command's failure.
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

    /// Adds the counts. Each path, or kind of check, is one.
    fn compared(&mut self, report: counts::StepReport) {
        self.counts.passed += report.passed;
        self.counts.skipped += u64::from(report.skipped.is_some());
        self.skips.extend(report.skipped);
        report.problems.into_iter().for_each(|problem| self.fail(problem));
    }

    /// Adds the guests. Each case of a guest is a check.
    fn guests(&mut self, report: rdma::RdmaReport) {
        for guest in report.guests {
            self.processor_time += guest.processor_time;
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
    use crate::test_counts::Suite;

    fn tally(passed: u64, failed: u64) -> TestCounts {
        let mut tally = TestCounts::default();
        let counts = Counts { passed, failed, skipped: 0 };
        tally.suites.push(Suite { name: "t".into(), counts, summary: None });
        tally
    }

    fn booked(role: Role, problem: Option<&str>, tally: TestCounts) -> (bool, u64, u64) {
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
        assert_eq!(booked(Role::Check, None, TestCounts::default()), (true, 1, 0));
        assert_eq!(booked(Role::Check, Some("exit status: 1"), TestCounts::default()), (false, 0, 1));
        assert_eq!(booked(Role::Prepare, None, TestCounts::default()), (true, 0, 0));
        assert_eq!(booked(Role::Prepare, Some("exit status: 1"), TestCounts::default()), (false, 0, 1));
    }

    #[test]
    fn a_path_out_of_tolerance_is_a_failure_and_a_comparison_that_cannot_be_made_a_skip() {
        let mut outcome = Outcome::new("counts");
        let problems = vec!["post".into()];
        outcome.compared(counts::StepReport { passed: 2, problems, skipped: None });
        assert_eq!(outcome.counts, Counts { passed: 2, failed: 1, skipped: 0 });
        assert_eq!(outcome.problems, ["post"]);

        let mut outcome = Outcome::new("counts");
        let skipped = Some("no valgrind".into());
        outcome.compared(counts::StepReport { skipped, ..counts::StepReport::default() });
        assert_eq!(outcome.counts, Counts { passed: 0, failed: 0, skipped: 1 });
        assert_eq!(outcome.skips, ["no valgrind"]);
    }

    #[test]
    fn the_progress_line_counts_and_names_what_is_under_way() {
        let steps = ["a", "b", "c"].map(|name| Step {
            name,
            about: "",
            work: Work::Arrows,
            by_program: false,
            beside: Beside::Nothing,
        });
        let progress = Progress::new(Instant::now(), &steps);
        ["a", "b", "c"].into_iter().for_each(|name| progress.begins(name));
        assert_eq!(progress.ended("b"), "1 of 3 steps have ended after 0 min 0 s; under way: a, c");
        progress.ended("a");
        assert_eq!(progress.ended("c"), "3 of 3 steps have ended after 0 min 0 s");
    }

    #[test]
    fn a_step_over_the_release_build_begins_when_that_has_ended() {
        let step = |name, beside| Step { name, about: "", work: Work::Arrows, by_program: false, beside };
        let steps = [
            step("jobs", Beside::AfterRelease),
            step(RELEASE_BUILD, Beside::Others),
            step("unit", Beside::Others),
        ];
        let queue = Queue::new(&steps, vec![0, 1, 2]);
        assert_eq!((queue.next(), queue.next()), (Some(1), Some(2)));
        let worker = thread::scope(|scope| {
            let worker = scope.spawn(|| queue.next());
            drop(Ended { queue: &queue, index: 1 });
            worker.join()
        });
        assert_eq!(worker.unwrap(), Some(0));
        assert_eq!(queue.next(), None);
        // Without that build in the run, the step builds what it needs.
        assert_eq!(Queue::new(&steps, vec![0]).next(), Some(0));
    }

    #[test]
    fn an_unknown_step_is_refused_with_the_names_that_exist() {
        let steps = || {
            vec![Step {
                name: "arrows",
                about: "",
                work: Work::Arrows,
                by_program: false,
                beside: Beside::Nothing,
            }]
        };
        let problem = chosen(steps(), &["arows".into()]).err().expect("refused");
        assert!(problem.contains("`arows`") && problem.ends_with("arrows"), "{problem}");
        assert_eq!(chosen(steps(), &["arrows".into()]).unwrap().len(), 1);
        assert_eq!(chosen(steps(), &[]).unwrap().len(), 1);
    }
}

//! The runner: runs the cases over the given transports, and reports as libtest does.
//!
//! libtest's own harness needs one function per test at compile time and runs the tests in parallel. Here the
//! tests are a table times the transports, and each runs alone. `--report-time` prints the time of each.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use udeck_via::Caps;

use crate::cases::all;
use crate::{Case, Fabric, Options, kit};

/// Runs the cases that the command line selects, over each of `fabrics`. Fails if any case does.
pub fn main(fabrics: &[&dyn Fabric]) -> ExitCode {
    if std::env::args().any(|argument| argument == "--rules") {
        crate::rules::print();
        return ExitCode::SUCCESS;
    }
    main_of(fabrics, &all().copied().collect::<Vec<_>>())
}

/// Runs as [`main`] does, with these cases instead of the suite's.
pub fn main_of(fabrics: &[&dyn Fabric], cases: &[Case]) -> ExitCode {
    let selection = Selection::from_arguments(std::env::args().skip(1));
    let mut passed = true;
    if stops_at_a_failure() {
        kit::set_patience(Duration::from_secs(10));
    }
    for fabric in fabrics {
        let (chosen, others): (Vec<&Case>, Vec<&Case>) =
            cases.iter().partition(|case| selection.takes(&full_name(*fabric, case)));
        if selection.list {
            chosen.iter().for_each(|case| println!("{}: test", full_name(*fabric, case)));
        } else {
            passed &= run(*fabric, &chosen, others.len(), selection.times);
            if !passed && stops_at_a_failure() {
                break;
            }
        }
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one test that is no case of a fabric, if the command line selects it, and reports as [`main`] does. The test
/// fails by panicking.
pub fn main_of_one(name: &str, test: impl FnOnce()) -> ExitCode {
    let selection = Selection::from_arguments(std::env::args().skip(1));
    if !selection.takes(name) {
        return ExitCode::SUCCESS;
    }
    if selection.list {
        println!("{name}: test");
        return ExitCode::SUCCESS;
    }
    let start = Instant::now();
    println!("\nrunning 1 test");
    let passed = catch_unwind(AssertUnwindSafe(test)).is_ok();
    let word = if passed { "ok" } else { "FAILED" };
    println!("test {name} ... {word}");
    println!(
        "\ntest result: {word}. {} passed; {} failed; 0 ignored; 0 measured; 0 filtered out; finished in {:.2}s\n",
        u8::from(passed),
        u8::from(!passed),
        start.elapsed().as_secs_f64(),
    );
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether a judge of mutants runs the suite: the first failure is the verdict, and failures by waiting need
/// not take long.
fn stops_at_a_failure() -> bool {
    std::env::var_os("UDECK_FAIL_FAST").is_some()
}

fn full_name(fabric: &dyn Fabric, case: &Case) -> String {
    format!("{}::{}::{}", fabric.name(), case.topic, case.name)
}

fn run(fabric: &dyn Fabric, cases: &[&Case], filtered: usize, times: bool) -> bool {
    let start = Instant::now();
    let caps = fabric.open(&Options::default()).caps();
    println!("\nrunning {} tests", cases.len());
    let mut passed = 0;
    let mut failed = Vec::new();
    let mut skipped = BTreeMap::<String, usize>::new();
    for case in cases {
        let (name, begun) = (full_name(fabric, case), Instant::now());
        let took = || if times { format!(" <{:.3}s>", begun.elapsed().as_secs_f64()) } else { String::new() };
        if let Some(missing) = case.needs.iter().find(|cap| !caps.has(**cap)) {
            println!("test {name} ... ignored, needs {missing}");
            *skipped.entry(missing.to_string()).or_default() += 1;
        } else if catch_unwind(AssertUnwindSafe(|| (case.run)(fabric))).is_ok() {
            println!("test {name} ... ok{}", took());
            passed += 1;
        } else {
            println!("test {name} ... FAILED");
            failed.push(name);
            if stops_at_a_failure() {
                break;
            }
        }
    }
    if !failed.is_empty() {
        println!("\nfailures:\n    {}", failed.join("\n    "));
    }
    let ignored: usize = skipped.values().sum();
    println!(
        "\ntest result: {}. {passed} passed; {} failed; {ignored} ignored; 0 measured; {filtered} filtered out; \
         finished in {:.2}s\n",
        if failed.is_empty() { "ok" } else { "FAILED" },
        failed.len(),
        start.elapsed().as_secs_f64(),
    );
    println!("{}", summary(fabric.name(), caps, passed, failed.len(), &skipped));
    failed.is_empty()
}

/// Summary of a fabric, for example `shm: 70 passed, 2 skipped (2 need rdma-read; this NIC has rdma-write |
/// hand-off)`.
fn summary(
    name: &str,
    caps: Caps,
    passed: usize,
    failed: usize,
    skipped: &BTreeMap<String, usize>,
) -> String {
    let failures = if failed > 0 { format!(", {failed} FAILED") } else { String::new() };
    let count: usize = skipped.values().sum();
    if count == 0 {
        return format!("{name}: {passed} passed{failures}, 0 skipped");
    }
    let reasons: Vec<_> = skipped.iter().map(|(cap, count)| format!("{count} need {cap}")).collect();
    format!(
        "{name}: {passed} passed{failures}, {count} skipped ({}; this NIC has {caps})",
        reasons.join(", ")
    )
}

/// The options of libtest's command line that have a meaning here.
#[derive(Debug, Default)]
struct Selection {
    filters: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
    ignored_only: bool,
    /// Whether the time of each test is printed with it.
    times: bool,
}

impl Selection {
    fn from_arguments(mut arguments: impl Iterator<Item = String>) -> Self {
        let mut selection = Selection::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => selection.exact = true,
                "--list" => selection.list = true,
                "--report-time" => selection.times = true,
                "--ignored" => selection.ignored_only = true,
                "--skip" => selection.skip.extend(arguments.next()),
                "--format" | "--color" | "--test-threads" | "--logfile" | "-Z" => drop(arguments.next()),
                option if option.starts_with('-') => {}
                filter => selection.filters.push(filter.to_owned()),
            }
        }
        selection
    }

    fn takes(&self, name: &str) -> bool {
        let matches = |pattern: &String| if self.exact { name == pattern } else { name.contains(pattern) };
        // No case is switched off by hand: an ignored case lacks an ability, and cannot be run.
        !self.ignored_only
            && (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skip.iter().any(matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(line: &str) -> Selection {
        Selection::from_arguments(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn filters_choose_by_part_or_whole_name() {
        assert!(selection("").takes("shm::memory::a"));
        assert!(selection("memory --nocapture").takes("shm::memory::a"));
        assert!(!selection("--exact memory").takes("shm::memory::a"));
        assert!(selection("--exact shm::memory::a --test-threads 4").takes("shm::memory::a"));
        assert!(!selection("--skip memory").takes("shm::memory::a"));
        assert!(!selection("--ignored").takes("shm::memory::a"));
        assert!(selection("--report-time").times && selection("--report-time").takes("shm::memory::a"));
    }

    #[test]
    fn the_summary_names_what_is_missing() {
        let none = BTreeMap::new();
        assert_eq!(summary("x", Caps::default(), 3, 0, &none), "x: 3 passed, 0 skipped");
        let two = BTreeMap::from([("rdma-write".to_owned(), 2)]);
        assert_eq!(
            summary("x", Caps::HAND_OFF, 3, 1, &two),
            "x: 3 passed, 1 FAILED, 2 skipped (2 need rdma-write; this NIC has hand-off)"
        );
    }

    #[test]
    fn case_names_are_unique() {
        let mut names: Vec<_> = all().map(|case| (case.topic, case.name)).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

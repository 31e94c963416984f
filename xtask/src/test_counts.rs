//! Counts of tests, read from the output of cargo and libtest.
//!
//! libtest's machine-readable output is unstable, so the lines for people are read. Both programs write to one
//! pipe (see `child`): a `Running` line of cargo therefore precedes the results of the program that it names.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::ops::AddAssign;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// A test program: its name, and the results of its tests.
#[derive(Debug, PartialEq, Eq)]
pub struct Suite {
    pub name: String,
    pub counts: Counts,
    /// Summary that the program prints: the transport, and why cases were skipped.
    pub summary: Option<String>,
}

/// Largest number of output lines quoted from a failed test.
const QUOTED: usize = 8;

/// A test that failed: `program: name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub program: String,
    pub test: String,
}

impl Display for Failed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.program, self.test)
    }
}

#[derive(Debug, Default)]
pub struct TestCounts {
    pub suites: Vec<Suite>,
    pub failed: Vec<Failed>,
    /// Tests that failed and then passed when they ran again, see [`TestCounts::passed_again`].
    pub flaky: Vec<Failed>,
    /// First lines that failed tests printed, after their names.
    pub failure_lines: Vec<String>,
    /// Reasons for skipped tests, as printed by programs in which one reason holds for many tests.
    pub skips: Vec<String>,
    /// The test whose result is awaited: its output stands between its name and its result.
    begun: Option<String>,
    /// Output of this test until now.
    printed: Vec<String>,
    /// Number of lines of a failed test's output that are still to be quoted: libtest prints the output after
    /// all results.
    quoting: usize,
    running: String,
    /// Whether `running` has printed a result.
    has_result: bool,
    /// Programs that ended without a result: they crashed, or could not start.
    broken: u64,
}

impl TestCounts {
    /// Takes the next line of output.
    pub fn line(&mut self, line: &str) {
        if let Some(name) = program(line) {
            self.broken += u64::from(!self.running.is_empty() && !self.has_result);
            (self.running, self.has_result, self.quoting) = (name, false, 0);
        } else if let Some(counts) = result(line) {
            self.has_result = true;
            self.suites.push(Suite { name: self.running.clone(), counts, summary: None });
        } else if is_summary(line) {
            // The conformance suite prints a summary after the result of each transport.
            if let Some(suite) = self.suites.last_mut() {
                suite.summary = Some(line.to_owned());
            }
        } else if let Some(reason) = line.strip_prefix("skipped: ") {
            // A reason is recorded once, however many tests give it.
            if !self.skips.iter().any(|known| known == reason) {
                self.skips.push(reason.to_owned());
            }
        } else if let Some((name, result)) = test(line) {
            self.begun = Some(name.to_owned());
            self.printed.clear();
            self.test_ended(result);
        } else if let Some(name) = output_of(line) {
            self.failure_lines.push(format!("{}: {name}", self.running));
            self.quoting = QUOTED;
        } else if self.quoting > 0 {
            self.quote(line);
        } else {
            self.test_ended(line);
            if self.begun.is_some() && self.printed.len() < QUOTED && !line.is_empty() {
                self.printed.push(format!("    {line}"));
            }
        }
    }

    fn quote(&mut self, line: &str) {
        let is_over = ["stack backtrace:", "note: ", "failures:"].iter().any(|word| line.starts_with(word));
        if is_over {
            self.quoting = 0;
        } else if !line.is_empty() {
            self.failure_lines.push(format!("    {line}"));
            self.quoting -= 1;
        }
    }

    /// Records the result of the test that has begun, if `result` is a result.
    fn test_ended(&mut self, result: &str) {
        match result {
            "FAILED" => {
                let Some(test) = self.begun.take() else { return };
                if !self.printed.is_empty() {
                    self.failure_lines.push(format!("{}: {test}", self.running));
                    self.failure_lines.append(&mut self.printed);
                }
                self.failed.push(Failed { program: self.running.clone(), test });
            }
            "ok" => self.begun = None,
            _ => {}
        }
    }

    /// Whether failed tests with names are the only failures: every program has printed its result.
    pub fn only_tests_failed(&self) -> bool {
        let crashed = self.broken + u64::from(!self.running.is_empty() && !self.has_result);
        crashed == 0 && !self.failed.is_empty() && self.total().failed == self.failed.len() as u64
    }

    /// Names of the failed tests, each once: a test that runs again in a process of its own may be reported twice.
    pub fn failed_tests(&self) -> BTreeSet<&str> {
        self.failed.iter().map(|failed| failed.test.as_str()).collect()
    }

    /// Counts every failed test as passed, and as flaky.
    pub fn passed_again(&mut self) {
        for suite in &mut self.suites {
            suite.counts.passed += suite.counts.failed;
            suite.counts.failed = 0;
        }
        self.failed.dedup();
        self.flaky.append(&mut self.failed);
    }

    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.suites.iter().for_each(|suite| total += suite.counts);
        total
    }
}

/// Program name in `     Running tests/ring.rs (target/debug/deps/ring-0123456789abcdef)` or `   Doc-tests
/// udeck`.
fn program(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(package) = line.strip_prefix("Doc-tests ") {
        return Some(format!("documentation of {package}"));
    }
    let (_, path) = line.strip_prefix("Running ")?.strip_suffix(')')?.rsplit_once('(')?;
    let file = path.rsplit('/').next()?;
    Some(file.rsplit_once('-').map_or(file, |(name, _hash)| name).to_owned())
}

/// Counts in `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s`.
fn result(line: &str) -> Option<Counts> {
    let (_, parts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = Counts::default();
    for part in parts.split("; ") {
        let Some((number, what)) = part.split_once(' ') else { continue };
        let field = match what {
            "passed" => &mut counts.passed,
            "failed" => &mut counts.failed,
            "ignored" => &mut counts.skipped,
            _ => continue,
        };
        *field = number.parse().ok()?;
    }
    Some(counts)
}

/// Whether the line is like `shm: 70 passed, 2 skipped (2 need rdma-read; this NIC has rdma-write | hand-off)`.
fn is_summary(line: &str) -> bool {
    let Some((name, rest)) = line.split_once(": ") else { return false };
    let is_count = |part: &str, what: &str| {
        let number = part.split_once(what).map(|(number, _)| number);
        number.is_some_and(|number| number.parse::<u64>().is_ok())
    };
    let mut parts = rest.split(", ");
    !name.contains(char::is_whitespace)
        && parts.next().is_some_and(|part| is_count(part, " passed"))
        && parts.any(|part| is_count(part, " skipped"))
}

/// Test name in `---- ring::fills stdout ----`; the test's output follows.
fn output_of(line: &str) -> Option<&str> {
    let name = line.strip_prefix("---- ")?.strip_suffix(" ----")?;
    Some(name.strip_suffix(" stdout").unwrap_or(name))
}

/// Name and result in `test ring::fills ... FAILED`; some harnesses align the words after the names.
fn test(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    Some((name.trim_end(), result))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
   Compiling udeck-sys v0.1.0
     Running unittests lib.rs (target/debug/deps/udeck_sys-0c94b1d0a5d3e1f2)

running 3 tests
test ring::wraps ... ok
test ring::fills   ... FAILED
test ring::slow ... ignored, takes an hour

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s

   Doc-tests udeck
test src/lib.rs - (line 3) ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.20s
";

    fn read(output: &str) -> TestCounts {
        let mut tally = TestCounts::default();
        output.lines().for_each(|line| tally.line(line));
        tally
    }

    #[test]
    fn every_program_is_counted_under_its_own_name() {
        let tally = read(OUTPUT);
        let names: Vec<_> = tally.suites.iter().map(|suite| suite.name.as_str()).collect();
        assert_eq!(names, ["udeck_sys", "documentation of udeck"]);
        assert_eq!(tally.suites[0].counts, Counts { passed: 1, failed: 1, skipped: 1 });
        assert_eq!(tally.total(), Counts { passed: 2, failed: 1, skipped: 1 });
        let failed: Vec<_> = tally.failed.iter().map(Failed::to_string).collect();
        assert_eq!(failed, ["udeck_sys: ring::fills"]);
    }

    #[test]
    fn a_failure_keeps_its_name_when_the_test_printed_before_its_result() {
        let tally = read(
            "\
     Running capi.rs (target/debug/deps/capi-0123456789abcdef)
test queues::gcc      ... ok
test queues::valgrind ... 
thread 'main' panicked at tests/jobs/job.rs:273:9:
FAILED
test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
",
        );
        assert!(tally.only_tests_failed());
        assert_eq!(tally.failed_tests().into_iter().collect::<Vec<_>>(), ["queues::valgrind"]);
        assert_eq!(
            tally.failure_lines,
            ["capi: queues::valgrind", "    thread 'main' panicked at tests/jobs/job.rs:273:9:"]
        );
    }

    #[test]
    fn what_a_failed_test_printed_is_quoted_up_to_its_backtrace() {
        let tally = read(
            "\
     Running unittests lib.rs (target/debug/deps/udeck_sys-0c94b1d0a5d3e1f2)
test ring::fills ... FAILED

failures:

---- ring::fills stdout ----

thread 'ring::fills' panicked at crates/sys/sync/ring.rs:7:9:
3 is not 4
stack backtrace:
   0: __rustc::rust_begin_unwind

failures:
    ring::fills
",
        );
        let panic = "    thread 'ring::fills' panicked at crates/sys/sync/ring.rs:7:9:";
        assert_eq!(tally.failure_lines, ["udeck_sys: ring::fills", panic, "    3 is not 4"]);
    }

    #[test]
    fn a_program_that_crashes_is_more_than_a_failed_test() {
        assert!(read(OUTPUT).only_tests_failed());
        let crash = "     Running tests/b.rs (target/debug/deps/b-0123456789abcdef)\nrunning 2 tests\n";
        assert!(!read(&format!("{OUTPUT}{crash}")).only_tests_failed());
        assert!(!read(&format!("{crash}{OUTPUT}")).only_tests_failed());
        assert!(!read("error: could not compile `udeck`").only_tests_failed());
    }

    #[test]
    fn what_passed_again_is_counted_as_passed_and_named() {
        let mut tally = read(OUTPUT);
        tally.passed_again();
        assert_eq!(tally.total(), Counts { passed: 3, failed: 0, skipped: 1 });
        assert!(tally.failed.is_empty());
        assert_eq!(tally.flaky[0].test, "ring::fills");
    }

    #[test]
    fn a_test_that_failed_in_a_process_of_its_own_is_one_test() {
        let result = "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 1 filtered out";
        let failure = "test alone ... FAILED\n";
        let mut tally = read(&format!(
            "     Running tests/a.rs (target/debug/deps/a-0123456789abcdef)\n{failure}{result}\n{failure}{result}\n"
        ));
        assert!(tally.only_tests_failed());
        assert_eq!(tally.failed_tests().into_iter().collect::<Vec<_>>(), ["alone"]);
        tally.passed_again();
        assert_eq!(tally.flaky.len(), 1);
    }

    #[test]
    fn a_program_that_sums_itself_up_is_quoted() {
        let summary = "shm: 3 passed, 1 FAILED, 2 skipped (2 need rdma-read; this NIC has nothing)";
        let result = "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out";
        let tally = read(&format!("{result}\n\n{summary}\n{result}\nthe end: 3 passed, 2 skipped\n"));
        let summaries: Vec<_> = tally.suites.iter().map(|suite| suite.summary.as_deref()).collect();
        assert_eq!(summaries, [Some(summary), None]);
    }

    #[test]
    fn a_reason_to_skip_is_quoted_once() {
        let tally =
            read("skipped: hydra: no mpiexec.hydra\ntest a ... ok\nskipped: hydra: no mpiexec.hydra\n");
        assert_eq!(tally.skips, ["hydra: no mpiexec.hydra"]);
    }

    #[test]
    fn filtered_tests_are_not_skipped_tests() {
        let tally = read(
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0s",
        );
        assert_eq!(tally.total(), Counts::default());
    }

    #[test]
    fn text_that_merely_resembles_a_result_is_not_counted() {
        let tally =
            read("the test result: ok. 5 passed; 0 failed\ntest result: unknown\nRunning late (again");
        assert!(tally.suites.is_empty() && tally.failed.is_empty());
    }
}

//! The conformance suite in the guests: the cases that each guest runs, and whether it has run them all.

use super::guest::GuestResult;
use crate::test_counts::Counts;
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The test program of the transport, and the one that counts cases here: it runs where there is no RDMA device.
pub const PROGRAM: &str = "verbs";
pub const COUNTED: &str = "tcp";

/// Cases that take 9 to 23 s of a processor in a guest, for thousands of messages. The stand-in for verbs carries them, too.
const LONG: [&str; 3] =
    ["many::a_flood_is_served_fairly", "read::revoke_waits_for_readers", "transfer::messages_stay_in_order"];

/// Command line of the suite in a guest. `long` runs the cases that `suite` leaves out.
pub fn words(guest: &str) -> Vec<String> {
    match guest {
        "suite" => {
            let left_out = LONG.into_iter().flat_map(|name| ["--skip", name]);
            ["verbs::"].into_iter().chain(left_out).map(str::to_owned).collect()
        }
        "long" => LONG.map(|name| format!("verbs::{name}")).into(),
        "shared" => vec!["verbs-shared-memory::".into()],
        _ => Vec::new(),
    }
}

#[derive(Debug)]
pub struct Suite {
    pub path: PathBuf,
    /// The program that has the same cases.
    pub counted: PathBuf,
}

impl Suite {
    /// Checks that the guest has gone through as many cases as it was told to; skipped ones count.
    pub fn is_whole(&self, guest: &GuestResult) -> Result<(), String> {
        let Counts { passed, failed, skipped } = guest.tally.total();
        let (seen, wanted) = (passed + failed + skipped, count(&self.counted, &words(guest.name))?);
        if seen == wanted {
            return Ok(());
        }
        Err(format!("{}: {seen} cases over {PROGRAM}, but {wanted} over {COUNTED}", guest.name))
    }
}

/// Counts the cases that these words choose.
fn count(program: &Path, words: &[String]) -> Result<u64, String> {
    let output =
        Command::new(program).arg("--list").args(words.iter().map(|word| over_counted(word))).output();
    let output = output.map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let prefix = format!("{COUNTED}::");
    let cases = text.lines().filter(|line| line.starts_with(&prefix) && line.ends_with(": test")).count();
    if cases == 0 {
        Err(format!("{} --list {words:?} names no case", program.display()))
    } else {
        Ok(cases as u64)
    }
}

/// Translates a case's name for the counted transport: `verbs-shared-memory::read::` is `tcp::read::`.
fn over_counted(word: &str) -> String {
    match word.split_once("::") {
        Some((fabric, case)) if fabric.starts_with(PROGRAM) => format!("{COUNTED}::{case}"),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_the_suite_leaves_out_is_in_the_long_one() {
        let (suite, long) = (words("suite"), words("long"));
        let left_out: Vec<_> = suite[1..].iter().filter(|word| *word != "--skip").collect();
        assert!(left_out.iter().zip(&long).all(|(name, word)| *word == format!("verbs::{name}")));
        assert_eq!((left_out.len(), suite.len()), (long.len(), 1 + 2 * long.len()));
    }

    #[test]
    fn cases_are_counted_over_another_transport() {
        let over: Vec<_> =
            ["verbs::read::x", "verbs-shared-memory::", "--skip", "read::x"].map(over_counted).into();
        assert_eq!(over, ["tcp::read::x", "tcp::", "--skip", "read::x"]);
    }
}

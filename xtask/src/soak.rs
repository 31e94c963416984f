//! `cargo xtask soak`: builds the programs of `tests/soak` and starts their driver, or two of them.
//!
//! They are built in the profile of tests: what debug builds check is checked.

use crate::{
    SoakOptions,
    child::{self, Cargo},
    tally::Tally,
    workspace::Workspace,
};
use std::{path::Path, process::Command, thread, time::Duration};

/// The launcher, the ranks and the driver, and what verbs runs over.
pub const BUILD: &str = "build -p deckrun -p udeck-soak -p udeck-verbs-standin";

/// A run that hangs is looked at and ended by its driver, which takes this long at most.
const LAST_RUN: Duration = Duration::from_secs(600);

/// For a build from nothing on a busy machine.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// Plays what the options ask for; `Ok(false)` if a run failed.
pub fn run(options: &SoakOptions) -> Result<bool, String> {
    let workspace = Workspace::load()?;
    let build = Cargo::new(BUILD);
    println!("$ {build}");
    let built =
        build.run(&workspace.root, BUILD_LIMIT, |_| {}).map_err(|e| format!("cannot run cargo: {e}"))?;
    if let Some(problem) = built {
        return Err(format!("`{build}`: {problem}"));
    }
    let drivers: Vec<Vec<String>> = match options.seed {
        Some(seed) => vec![words(["--seed", &seed.to_string(), "--times", &options.times.to_string()])],
        None => (1..=options.jobs)
            .map(|number| {
                words(["--minutes", &options.minutes.to_string(), "--name", &format!("soak {number}")])
            })
            .collect(),
    };
    let limit = Duration::from_secs(60 * options.minutes) + LAST_RUN * options.times;
    let programs = workspace.target.join("debug");
    let passed: Vec<bool> = thread::scope(|scope| {
        let drive = |arguments: Vec<String>| {
            let programs = &programs;
            scope.spawn(move || drive(programs, &arguments, limit))
        };
        let threads: Vec<_> = drivers.into_iter().map(drive).collect();
        threads.into_iter().map(|driver| driver.join().unwrap_or(false)).collect()
    });
    Ok(passed.into_iter().all(|passed| passed))
}

/// One driver; false if it failed.
fn drive(programs: &Path, arguments: &[String], limit: Duration) -> bool {
    let mut driver = Command::new(programs.join("udeck-soak"));
    driver.args(arguments).env("DECK_BIN_DIR", programs);
    let mut tally = Tally::default();
    let ended = child::run(driver, limit, |line| {
        println!("{line}");
        tally.line(line);
    });
    match ended {
        Ok(None) => tally.total().passed > 0 || tally.total().skipped > 0,
        Ok(Some(_)) if tally.total().failed > 0 => false,
        Ok(Some(problem)) => {
            eprintln!("udeck-soak: {problem}");
            false
        }
        Err(error) => {
            eprintln!("udeck-soak: cannot run it: {error}");
            false
        }
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

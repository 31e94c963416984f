//! `cargo xtask soak`: builds the programs of `tests/jobs/soak` and starts their driver, once or twice.
//!
//! The programs are built in the profile of tests, so that the checks of debug builds run. With a sanitizer they lie in its
//! target folder.

use crate::{
    builds::{FEATURES, TEST_PACKAGES},
    child::{self, Cargo, DRIVER},
    sanitize,
    test_counts::TestCounts,
    workspace::Workspace,
};
use clap::Args;
use std::{path::Path, process::Command, thread, time::Duration};

#[derive(Args)]
pub struct SoakOptions {
    /// Play runs for this long; the last one is played to its end
    #[arg(long, value_name = "MINUTES", default_value_t = 1)]
    minutes: u64,

    /// Play the run of this seed only
    #[arg(long, value_name = "SEED", conflicts_with = "jobs")]
    seed: Option<u64>,

    /// Play the run this many times
    #[arg(long, value_name = "N", default_value_t = 1, requires = "seed")]
    times: u32,

    /// Play this many runs side by side
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    jobs: u8,

    /// Build launcher, ranks and driver with this sanitizer; anything that it finds fails the run
    ///
    /// ThreadSanitizer is not offered: it sees one process only, and does not recognise an order that comes through another
    /// process. For worlds in one process there is `cargo xtask sanitize --thread`.
    #[arg(long, value_name = "SANITIZER")]
    sanitize: Option<sanitize::Sanitizer>,
}

/// Command that builds the launcher, the ranks, the driver, and the stand-in library for verbs: chosen by their names, as all
/// tests are.
pub fn build() -> Cargo {
    let programs = "--lib --bin deckrun --bin udeck-soak --bin soak-rank";
    Cargo::new("build").args(TEST_PACKAGES).args(FEATURES).args(programs)
}

/// Arguments that build the same programs, and no others, for a sanitizer.
const SANITIZED: &str =
    "build -p deckrun -p udeck-jobs -p udeck-mock-verbs --features udeck-jobs/fault,udeck-jobs/access-trace";

/// Upper bound for the last run: the driver examines and ends a run that hangs.
const LAST_RUN: Duration = Duration::from_secs(600);

/// Limit for a build from nothing on a busy machine.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// Plays the runs that the options ask for. `Ok(false)`: a run failed.
pub fn run(options: &SoakOptions) -> Result<bool, String> {
    let workspace = Workspace::load()?;
    let (build, programs) = match options.sanitize {
        None => (build(), workspace.target.join("debug")),
        Some(sanitizer) => {
            (sanitizer.instrument(Cargo::new(SANITIZED), &workspace)?, sanitizer.programs(&workspace)?)
        }
    };
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
    let settings = options.sanitize.map(|sanitizer| sanitizer.settings(&workspace));
    let passed: Vec<bool> = thread::scope(|scope| {
        let drive = |arguments: Vec<String>| {
            let (programs, settings) = (&programs, settings.clone());
            scope.spawn(move || drive(programs, settings, &arguments, limit))
        };
        let threads: Vec<_> = drivers.into_iter().map(drive).collect();
        threads.into_iter().map(|driver| driver.join().unwrap_or(false)).collect()
    });
    Ok(passed.into_iter().all(|passed| passed))
}

/// Runs one driver, with this variable in its environment. `false`: it failed.
fn drive(programs: &Path, variable: Option<(&str, String)>, arguments: &[String], limit: Duration) -> bool {
    let mut driver = Command::new(programs.join(DRIVER));
    driver.args(arguments).env("DECK_BIN_DIR", programs).envs(variable);
    let mut tally = TestCounts::default();
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

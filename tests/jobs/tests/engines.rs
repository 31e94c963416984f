//! Jobs under the launchers of clusters, with the launchers' own processes: Slurm, MPICH's Hydra, Open MPI and PRRTE; and the
//! same jobs under deckrun, which shows the tests' own faults.
//!
//! A launcher that this machine lacks is skipped, with the reason. `UDECK_ENGINES=slurm,hydra,openmpi` names those whose skip is a
//! failure; `UDECK_PEERS=DIR` is the folder that `cargo xtask peers DIR` has filled, in which PRRTE is looked for.
//!
//! `cargo xtask test --only engines` builds the programs; further words are parts of the names of the cases to run.

#[path = "engines/cases.rs"]
mod cases;
#[path = "engines/launchers.rs"]
mod launchers;
#[path = "engines/slurm.rs"]
mod slurm;
#[path = "engines/wrong.rs"]
mod wrong;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, panic,
    process::ExitCode,
};

use launchers::{ENGINES, LAUNCHERS, Launcher};

/// Variable with the launchers whose skip is a failure.
const REQUIRED: &str = "UDECK_ENGINES";

/// A case, which panics if something is wrong.
type Case = Box<dyn Fn() + panic::RefUnwindSafe>;

fn main() -> ExitCode {
    let wanted: Vec<_> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()));
    let mut run = Run { required: required(), ..Run::default() };
    println!();
    for launcher in LAUNCHERS {
        let cases: Vec<_> = cases::of(launcher)
            .into_iter()
            .map(|(name, case)| (format!("{}::{name}", launcher.name), case))
            .filter(|(name, _)| is_wanted(name))
            .collect();
        if !cases.is_empty() {
            run.under(launcher, cases);
        }
    }
    for (name, case) in wrong::CASES {
        let name = format!("alone::{name}");
        if is_wanted(&name) {
            run.case(&name, Box::new(case));
        }
    }
    slurm::stop();
    run.summary()
}

/// Launchers that the variable names.
fn required() -> BTreeSet<String> {
    let names = env::var(REQUIRED).unwrap_or_default();
    let names: BTreeSet<_> = names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let known = |name: &String| ENGINES.iter().any(|engine| engine.name() == name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        let known: Vec<_> = ENGINES.iter().map(|engine| engine.name()).collect();
        panic!("{REQUIRED}: there is no {unknown:?}, but {}", known.join(", "));
    }
    names
}

/// Results of the run up to now.
#[derive(Default)]
struct Run {
    required: BTreeSet<String>,
    passed: usize,
    failed: usize,
    skipped: usize,
    /// Reasons for skips, by the package that has to be installed.
    reasons: BTreeMap<&'static str, String>,
}

impl Run {
    /// Runs all cases under one launcher; none if it is missing.
    fn under(&mut self, launcher: &Launcher, cases: Vec<(String, Case)>) {
        let engine = launcher.engine.name();
        let Some(why) = launcher.engine.missing() else {
            return cases.into_iter().for_each(|(name, case)| self.case(&name, case));
        };
        if self.required.contains(engine) {
            let name = format!("{}::installed", launcher.name);
            return self.case(&name, Box::new(move || panic!("{why}, and {REQUIRED} asks for it")));
        }
        self.skipped += cases.len();
        self.reasons.insert(engine, why);
    }

    fn case(&mut self, name: &str, case: Case) {
        let verdict = match panic::catch_unwind(&case) {
            Ok(()) => {
                self.passed += 1;
                "ok"
            }
            Err(_) => {
                self.failed += 1;
                "FAILED"
            }
        };
        println!("test {name} ... {verdict}");
    }

    fn summary(self) -> ExitCode {
        let Run { passed, failed, skipped, .. } = self;
        println!();
        for (engine, why) in self.reasons {
            println!("skipped: {engine}: {why}");
        }
        let word = if failed == 0 { "ok" } else { "FAILED" };
        println!(
            "test result: {word}. {passed} passed; {failed} failed; {skipped} ignored; 0 measured; 0 filtered out\n"
        );
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

//! Programs in C, C++ and Fortran, tested with an installation: each available compiler compiles them, and they run under deckrun
//! over each transport. `programs.rs` has the list.
//!
//! `pages.rs` checks the manual pages and completions of the installation.
//!
//! `cargo xtask test --only c` builds and installs the necessary files, and sets the folder in `UDECK_INSTALLED`. A compiler or a
//! tool that this machine lacks is skipped, with the reason; those in `UDECK_C` (`cc,clang,gfortran,valgrind`) must exist.

mod interface;
mod pages;
mod programs;
mod tools;
mod vipl;
mod wrapper;

use std::{
    collections::BTreeMap,
    env,
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
};

use libtest_mimic::{Arguments, Failed, Trial};
use tools::Tool;

/// Variable with the tools whose skip is a failure.
const REQUIRED: &str = "UDECK_C";

/// A test with its name, and the tools that it needs.
pub(crate) struct Case {
    name: String,
    needs: Vec<Tool>,
    run: Box<dyn FnOnce() + Send>,
}

/// Makes a case that needs these tools.
pub(crate) fn case(name: impl Into<String>, needs: &[Tool], run: impl FnOnce() + Send + 'static) -> Case {
    Case { name: name.into(), needs: needs.to_vec(), run: Box::new(run) }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Only one job runs at a time, because jobs check for leftovers.
    arguments.test_threads = Some(1);
    let required = env::var(REQUIRED).unwrap_or_default();
    let mut reasons = BTreeMap::new();
    let cases = [interface::cases(), pages::cases(), wrapper::cases(), vipl::cases()].into_iter().flatten();
    let trials =
        programs::cases().into_iter().chain(cases).map(|case| trial(case, &required, &mut reasons)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    for (tool, why) in reasons {
        println!("skipped: {tool}: {why}");
    }
    conclusion.exit_code()
}

fn trial(case: Case, required: &str, reasons: &mut BTreeMap<&'static str, String>) -> Trial {
    let missing = case.needs.iter().find_map(|tool| Some((*tool, tool.missing()?)));
    let must = |tool: Tool| required.split(',').any(|name| name == tool.name());
    match missing {
        Some((tool, why)) if must(tool) => {
            Trial::test(case.name, move || Err(Failed::from(format!("{why}, and {REQUIRED} asks for it"))))
        }
        Some((tool, why)) => {
            reasons.insert(tool.name(), why);
            Trial::test(case.name, || Ok(())).with_ignored_flag(true)
        }
        None => Trial::test(case.name, || {
            panic::catch_unwind(AssertUnwindSafe(case.run)).map_err(|_| Failed::without_message())
        }),
    }
}

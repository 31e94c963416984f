//! Programs of uDAPL through Debian's registry (`libdat2`), which loads the provider by a dat.conf: those of `dapl2-utils`,
//! unchanged (`programs.rs`), and the project's own for what they leave out (`own.rs`).
//!
//! `cargo xtask test --only dat` builds the provider, and sets its path in `UDECK_DAT_LIBRARY`. A package that this machine lacks
//! causes a skip, with the reason; `UDECK_DAT=require` makes that a failure.
//!
//! The following settings are for hosts with an RDMA device (nothing runs the tests there automatically yet):
//! `UDECK_DAT_TRANSPORTS=verbs` sets the transports, `UDECK_DAT_PROGRAMS` the folder of the compiled programs, and
//! `UDECK_DAT_AGENT` a program that runs commands on the host `UDECK_DAT_PEER`. If it is set, servers run on that host, and
//! only cases with a server run.

mod own;
mod programs;
mod running;

use std::{
    env,
    panic::{self, AssertUnwindSafe},
    path::Path,
    process::ExitCode,
};

use libtest_mimic::{Arguments, Failed, Trial};

/// A test, and the files that it needs, with the Debian packages that have them.
pub(crate) struct Case {
    name: String,
    needs: Vec<(&'static str, &'static str)>,
    run: Box<dyn FnOnce() + Send>,
}

impl Case {
    /// All missing files together, so that nobody has to install one package after the other.
    fn missing(&self) -> Vec<String> {
        let missing = self.needs.iter().filter(|(file, _)| !Path::new(file).exists());
        let say = |(file, package): &_| format!("{file} is not there (Debian: apt-get install {package})");
        missing.map(say).collect()
    }
}

/// Transports of the environment, or the usual ones.
fn transports(usual: &[&str]) -> Vec<String> {
    match env::var("UDECK_DAT_TRANSPORTS") {
        Ok(asked) => asked.split(',').map(str::to_owned).collect(),
        Err(_) => usual.iter().map(|&name| name.to_owned()).collect(),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let required = env::var("UDECK_DAT").is_ok_and(|word| word == "require");
    let mut reasons = Vec::new();
    let trials =
        programs::cases().into_iter().chain(own::cases()).map(|case| trial(case, required, &mut reasons));
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    for why in reasons {
        println!("skipped: {why}");
    }
    conclusion.exit_code()
}

fn trial(case: Case, required: bool, reasons: &mut Vec<String>) -> Trial {
    let missing = case.missing();
    let ignored = !missing.is_empty() && !required;
    if ignored {
        let news: Vec<String> = missing.iter().filter(|why| !reasons.contains(why)).cloned().collect();
        reasons.extend(news);
    }
    let run = move || {
        if !missing.is_empty() {
            return Err(Failed::from(missing.join("; ")));
        }
        panic::catch_unwind(AssertUnwindSafe(case.run)).map_err(|panic| {
            let words = panic.downcast_ref::<String>().cloned();
            Failed::from(words.unwrap_or_else(|| "it panicked; its words are above".into()))
        })
    };
    Trial::test(case.name, run).with_ignored_flag(ignored)
}

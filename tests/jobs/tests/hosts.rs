//! Jobs over several hosts, which are network namespaces of this machine, each with its own address: see
//! `udeck_jobs::netns`. Needs root; otherwise every case is skipped, with the reason.
//!
//! `Ended::clean` finds processes that a job left behind on any of the hosts, because they share the process
//! numbers.

#[path = "hosts/failures.rs"]
mod failures;
#[path = "hosts/messages.rs"]
mod messages;
#[path = "hosts/starting.rs"]
mod starting;

use std::{env, panic, process::ExitCode};

use udeck_jobs::netns::Network;

/// Program of ranks that talk to their launcher only.
const RANK: &str = env!("CARGO_BIN_EXE_hosts-rank");
/// Program of ranks that send each other messages.
const TALKER: &str = env!("CARGO_BIN_EXE_hosts-talker");

/// A case: it makes the network that it needs, and panics if something is wrong.
type Case = (&'static str, fn());

/// Why a case cannot run on this machine.
struct Skipped(String);

/// Ends a case that needs something that this machine lacks.
fn skip(why: String) -> ! {
    panic::resume_unwind(Box::new(Skipped(why)))
}

fn run(case: fn()) -> Result<(), Option<Skipped>> {
    panic::catch_unwind(case).map_err(|panic| panic.downcast().ok().map(|skipped| *skipped))
}

fn main() -> ExitCode {
    // cargo and libtest pass options; the other arguments are parts of names.
    let wanted: Vec<_> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let cases: Vec<Case> = [starting::CASES, messages::CASES, failures::CASES]
        .concat()
        .into_iter()
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())))
        .collect();
    println!("\nrunning {} tests", cases.len());
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let possible = Network::is_possible();
    for (name, case) in cases {
        let outcome = match &possible {
            Err(why) => Err(Some(Skipped(why.clone()))),
            Ok(()) => run(case),
        };
        let verdict = match outcome {
            Err(Some(Skipped(why))) => {
                skipped += 1;
                format!("ignored, {why}")
            }
            Ok(()) => {
                passed += 1;
                "ok".into()
            }
            Err(None) => {
                failed += 1;
                "FAILED".into()
            }
        };
        println!("test {name} ... {verdict}");
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; {skipped} ignored; 0 measured; 0 filtered out\n"
    );
    if let Err(why) = possible {
        println!("hosts: {passed} passed, {skipped} skipped ({why})");
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! The suite over uDAPL, where its concepts match VIA's: `udeck_dat`'s objects over NICs of each transport.
//!
//! Promises that both interfaces make in the same words are one text (`both/`), run over [`end::Dat`]. The rest has cases here, a
//! file per topic. `--rules` prints the table of all rules: the cases that test each for uDAPL, or why it does not apply.

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod end;
mod fabrics;
mod lies;
#[path = "../broken/noticed.rs"]
mod noticed;
mod rules;
#[path = "../broken/wrapped.rs"]
mod wrapped;

use std::process::ExitCode;

use udeck_conformance::{main_of, main_of_one};

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--rules") {
        print!("{}", rules::text());
        return ExitCode::SUCCESS;
    }
    let parts = [
        main_of_one("rules::every_rule_is_asked_or_says_why_not", rules::check),
        fabrics::with_all(|fabrics| main_of(fabrics, &cases::all())),
        main_of(&[&wrapped::PlainShm, &wrapped::PlainSim::new()], lies::CASES),
    ];
    if parts.iter().all(|part| *part == ExitCode::SUCCESS) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

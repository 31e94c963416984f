//! The suite over uDAPL, where its notions and VIA's meet: `udeck_dat`'s objects over NICs of each transport.
//!
//! What both interfaces promise in the same words is one text (`both/`), asked of [`end::Dat`]. The rest has cases here, a file per topic.
//! `--rules` prints the table of all rules: which are asked of uDAPL by which cases, and why the others do not meet it.

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

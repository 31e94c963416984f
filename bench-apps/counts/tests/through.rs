//! Runs of all paths, so that they are tested even without callgrind.

use std::process::Command;

fn goes_through(program: &str) {
    let output = Command::new(program).arg("100").output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_fast_path_can_be_gone_through() {
    goes_through(env!("CARGO_BIN_EXE_fast-paths"));
}

#[test]
fn every_path_over_verbs_can_be_gone_through() {
    goes_through(env!("CARGO_BIN_EXE_verbs-paths"));
}

#[test]
fn every_path_of_udapl_can_be_gone_through() {
    goes_through(env!("CARGO_BIN_EXE_dat-paths"));
}

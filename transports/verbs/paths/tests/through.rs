//! Run of all paths without callgrind.

use std::process::Command;

#[test]
fn every_path_can_be_gone_through() {
    let output = Command::new(env!("CARGO_BIN_EXE_verbs-paths")).arg("100").output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

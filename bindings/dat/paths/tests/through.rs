//! Where there is no callgrind, the paths are at least gone through.

use std::process::Command;

#[test]
fn every_path_can_be_gone_through() {
    let output = Command::new(env!("CARGO_BIN_EXE_dat-paths")).arg("100").output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

//! A C program, built against the real header, runs with the stand-in: the header's inline functions find the fields
//! that they use.

use std::path::PathBuf;
use udeck_verbs_oracle::compile;

/// Path of the stand-in, which cargo builds as a dependency of this package.
fn stand_in() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let name = "libudeck_mock_verbs.so";
    let mut beside = program.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    beside.find(|path| path.exists()).expect("the stand-in lies beside this program")
}

#[test]
fn a_c_program_sends_and_writes() {
    let library = stand_in();
    let program = compile("program", include_str!("program.c"), Some(&library));
    let folder = library.parent().expect("a folder");
    let output = program.command().env("LD_LIBRARY_PATH", folder).output().expect("it was just built");
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(words, "device standin0, port active, sent hello, wrote hello, error remote access error\n");
}

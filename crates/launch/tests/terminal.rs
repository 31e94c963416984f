//! Ranks of a deckrun that runs in a terminal.

mod common;

use std::{
    ffi::OsStr,
    fs::File,
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    process::Command,
};

use common::{Ran, sh};
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};

#[test]
fn a_rank_that_opens_the_terminal_fails_at_once() {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let mut open = File::options();
    open.read(true).write(true).custom_flags(OpenptFlags::NOCTTY.bits().cast_signed());
    let inside = open.open(OsStr::from_bytes(name.to_bytes())).unwrap();
    // The limit ends a hang.
    let job = sh(&["-n", "2", "--timeout", "60s"], "read line </dev/tty");
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait"]).arg(job.get_program()).args(job.get_args()).stdin(inside);
    let ran = Ran::of(command);
    assert!(ran.stderr.contains("/dev/tty") && ran.code != Some(124), "{:?}: {}", ran.code, ran.stderr);
}

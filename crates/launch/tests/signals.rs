//! Ends of a job in all ways: no process is left behind.

mod common;

use std::{fs::File, io::Write, process::Stdio};

use common::{Ran, Running, deckrun, left, sh, wait_until_none_is_left};
use rustix::{
    process::Signal,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};

/// Writes ready and waits for a signal; dash runs a trap only between commands, and so these are short.
const LOITER: &str = "echo ready; while :; do sleep 0.02; done";

#[test]
fn sigterm_is_passed_on() {
    let script = format!("trap 'echo bye $DECK_RANK; exit 0' TERM; {LOITER}");
    let job = Running::start(&["-n", "3"], &script, 3);
    let mark = job.mark();
    job.signal(Signal::TERM);
    let ran = job.end();
    assert_eq!(ran.code, Some(143), "{}", ran.stderr);
    assert_eq!(ran.lines(), ["bye 0", "bye 1", "bye 2"]);
    assert!(ran.stderr.contains("SIGTERM: passed on to ranks 0-2"), "{}", ran.stderr);
    assert_eq!(left(&mark), [""; 0]);
}

#[test]
fn sigint_ends_the_ranks_that_do_not_catch_it() {
    let job = Running::start(&["-n", "2"], LOITER, 2);
    job.signal(Signal::INT);
    let ran = job.end();
    assert_eq!(ran.code, Some(130));
    assert!(!ran.stderr.contains("killed by"), "their end was asked for: {}", ran.stderr);
}

#[test]
fn ranks_that_do_not_end_when_asked_are_killed() {
    let job = Running::start(&["-n", "2"], &format!("trap '' TERM; {LOITER}"), 2);
    job.signal(Signal::TERM);
    let ran = job.end();
    assert_eq!(ran.code, Some(143));
    assert!(ran.stderr.contains("ranks 0-1 did not end when asked: killing"), "{}", ran.stderr);
}

#[test]
fn a_second_sigint_kills() {
    let mut job = Running::start(&["-n", "2"], &format!("trap '' INT; {LOITER}"), 2);
    let mark = job.mark();
    job.signal(Signal::INT);
    job.says("passed on");
    job.signal(Signal::INT);
    let ran = job.end();
    assert_eq!(ran.code, Some(130));
    assert!(ran.stderr.contains("SIGINT again: killing ranks 0-1"), "{}", ran.stderr);
    assert_eq!(left(&mark), [""; 0]);
}

#[test]
fn killing_the_launcher_leaves_no_rank() {
    let job = Running::start(&["-n", "4"], LOITER, 4);
    let mark = job.mark();
    assert!(left(&mark).len() >= 4, "the mark finds the ranks");
    job.signal(Signal::KILL);
    assert_eq!(job.exit_code(), None);
    wait_until_none_is_left(&mark);
}

/// A rank's family: one child in its group, and two that left group and session, one of which lost its parent.
const FAMILY: &str = "sleep 600 & setsid sh -c 'sh -c \"sleep 600 &\"; echo ready; sleep 600' & wait";

#[test]
fn killing_the_launcher_leaves_nothing_that_the_ranks_started() {
    let job = Running::start(&["-n", "2"], FAMILY, 2);
    let mark = job.mark();
    job.signal(Signal::KILL);
    assert_eq!(job.exit_code(), None);
    wait_until_none_is_left(&mark);
}

#[test]
fn a_quit_says_what_the_ranks_are_doing_and_ends_nothing() {
    let mut job = Running::start(&["-n", "2"], FAMILY, 2);
    let mark = job.mark();
    job.signal(Signal::QUIT);
    job.says("what the ranks are doing:");
    job.says("rank 1");
    job.says("has not joined the job");
    job.signal(Signal::TERM);
    assert_eq!(job.exit_code(), Some(143));
    assert_eq!(left(&mark), [""; 0]);
}

#[test]
fn what_the_ranks_started_ends_with_them() {
    for tag in [&[][..], &["--tag-output"]] {
        let job = Running::start(&[&["-n", "2"], tag].concat(), FAMILY, 2);
        let mark = job.mark();
        job.signal(Signal::TERM);
        assert_eq!(job.exit_code(), Some(143));
        assert_eq!(left(&mark), [""; 0]);
    }
}

#[test]
fn a_signal_that_the_launcher_ignores_stays_ignored() {
    let mut command = std::process::Command::new("/bin/sh");
    let script = "trap '' INT; exec \"$0\" -n 1 -- sh -c 'kill -INT $PPID; sleep 0.1; exit 6'";
    command.args(["-c", script, env!("CARGO_BIN_EXE_deckrun")]).stdin(Stdio::null());
    let ran = Ran::of(command);
    assert_eq!(ran.code, Some(6), "{}", ran.stderr);
}

#[test]
fn an_ignored_sigchld_does_not_lose_exit_codes() {
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", "trap '' CHLD; exec \"$0\" -n 2 -- sh -c 'exit 8'", env!("CARGO_BIN_EXE_deckrun")]);
    assert_eq!(Ran::of(command).code, Some(8));
}

#[test]
fn what_is_typed_reaches_rank_0() {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let keyboard = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut terminal = File::from(terminal);
    let mut command = sh(&["-n", "2"], "if read line; then echo $DECK_RANK $line; cat; fi");
    let child = command.stdin(keyboard).stdout(Stdio::piped()).spawn().unwrap();
    terminal.write_all(b"hello\nmore\n\x04").unwrap();
    assert_eq!(Ran::from(child.wait_with_output().unwrap()).lines(), ["0 hello", "more"]);
}

#[test]
fn ranks_have_the_signal_mask_that_the_launcher_was_started_with() {
    // Not run through a shell: some clear the mask themselves.
    let look = ["sed", "-n", "s/^SigBlk:[[:space:]]*//p", "/proc/self/status"];
    let mut direct = std::process::Command::new(look[0]);
    direct.args(&look[1..]);
    let mut launched = deckrun(&["-n", "1", "--"]);
    launched.args(look);
    assert_eq!(Ran::of(launched).lines(), Ran::of(direct).lines());
}

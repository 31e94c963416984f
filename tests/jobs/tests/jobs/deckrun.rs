//! The launcher's treatment of ranks and signals.

use super::*;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use udeck_jobs::{Job, Running};

fn shells(ranks: usize, script: &str) -> Job {
    Bin::at("/bin/sh").ranks(ranks).args(["-c", script])
}

#[test]
fn every_rank_runs_and_its_output_arrives() {
    let ended = shells(3, "echo here").run().ok();
    assert_eq!(ended.stdout.lines().filter(|line| line.ends_with("here")).count(), 3, "{ended}");
}

#[test]
fn the_exit_status_of_a_failed_rank_is_the_jobs() {
    assert_eq!(shells(3, "exit 7").run().fails().code(), 7);
}

/// The other ranks would sleep for longer than the test's limit.
#[test]
fn a_rank_that_dies_takes_the_job_down() {
    let folder = std::env::temp_dir().join(format!("jobs-first-{}", std::process::id()));
    let script = format!("if mkdir {} 2>/dev/null; then kill -9 $$; fi; sleep 1000", folder.display());
    let ended = shells(3, &script).run();
    // The rank that made the folder was the one to die.
    std::fs::remove_dir(&folder).expect("some rank made the folder");
    ended.fails();
}

/// Script with a child in the rank's group, one that left group and session, and one that has no parent any
/// more.
const FAMILY: &str =
    "sleep 1000 & setsid sleep 1000 & setsid sh -c 'sleep 1000 &'; echo ready of $PPID; wait";

fn families(act: impl FnOnce(&Running)) -> Ended {
    shells(3, FAMILY).run_while(|job| {
        let _ = job.line_with("ready", 3);
        act(job);
    })
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number as i32).expect("a process's number")
}

/// The killed process number is the one that a user has: `$!` in a shell.
#[test]
fn killed_leaves_nothing_of_what_the_ranks_had_started() {
    let ended = families(|job| kill_process(pid(job.pid()), Signal::KILL).expect("it runs"));
    assert_eq!(ended.code(), 137, "{ended}");
    ended.clean();
}

/// The killed process is the parent of the ranks.
#[test]
fn its_watcher_killed_leaves_nothing_either() {
    let ended = families(|job| {
        let line = job.line_with("ready of ", 1);
        let watcher: u32 = line.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number");
        assert_ne!(watcher, job.pid(), "the ranks are children of another process");
        kill_process(pid(watcher), Signal::KILL).expect("it runs");
    });
    assert_eq!(ended.code(), 137, "{ended}");
    assert!(ended.stderr.contains("was lost (killed by SIGKILL)"), "{ended}");
    ended.clean();
}

/// The signal comes as from a shell's `kill %1` or a terminal: both of its processes get it, and it must not
/// count twice.
#[test]
fn a_signal_to_its_process_group_counts_once() {
    let ended =
        shells(2, "trap 'sleep 0.3; echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done")
            .run_while(|job| {
                let _ = job.line_with("ready", 2);
                kill_process_group(pid(job.pid()), Signal::TERM).expect("it runs");
            });
    assert_eq!(ended.code(), 143, "{ended}");
    assert_eq!(ended.stdout.matches("bye").count(), 2, "{ended}");
    assert!(!ended.stderr.contains("again"), "{ended}");
    ended.clean();
}

//! `deckrun --watchdog`, SIGQUIT and `--status`: they report which rank waits for which in a job that does not
//! move.

use std::path::Path;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};
use udeck_jobs::{Bin, Ended, Job, Running};

/// For deckrun each loopback agent is a host of its own.
const HOSTS: [&str; 6] = ["--hosts", "b:1,localhost:2", "--agent", "env NODE={}", "--iface", "lo"];

/// Longest wait of the ranks, in seconds: longer than any test here.
const LIMIT: &str = "600";

/// Starts the job with SIGQUIT as from a terminal: a shell that runs the tests in the background makes them ignore it,
/// which `deckrun` would respect.
fn job(options: &[&str], mode: &str) -> Job {
    let job = Job::new(Path::new("env"))
        .arg("--default-signal=QUIT")
        .arg(Bin::deckrun().path())
        .args(options)
        .arg("--");
    let job = job.arg(env!("CARGO_BIN_EXE_stuck-rank")).arg(mode);
    job.env("DECK_DEADLINE", LIMIT).env("DECK_SETUP_TIMEOUT", LIMIT)
}

fn signal(job: &Running, signal: Signal) {
    let root = Pid::from_raw(job.pid().cast_signed()).expect("a process");
    kill_process(root, signal).expect("it runs");
}

/// Runs until standard error has this text, and returns its complete output.
fn until_said(job: Job, what: &str) -> Ended {
    let ended = job.run_while(|job| {
        let _ = job.complaint_with(what, 1);
        signal(job, Signal::TERM);
    });
    assert_eq!(ended.code(), 143, "{ended}");
    ended.clean()
}

fn has(ended: &Ended, line: &str) {
    assert!(ended.stderr.lines().any(|said| said.trim_end() == line), "no line {line:?}: {ended}");
}

/// Whether a line has these parts; the time in it is left out.
fn is_said(text: &str, words: &[&str]) -> bool {
    text.lines().any(|line| words.iter().all(|word| line.contains(word)))
}

fn has_words(ended: &Ended, words: &[&str]) {
    assert!(is_said(&ended.stderr, words), "no line with {words:?}: {ended}");
}

/// Asserts that the output has this circle, from whichever rank the walk around it begins.
fn has_circle(ended: &Ended, steps: &[&str]) {
    let around = |first: usize| {
        let steps: Vec<_> = (0..steps.len()).map(|at| steps[(first + at) % steps.len()]).collect();
        format!("deadlock: {}", steps.join(", "))
    };
    let found = |line: &str| (0..steps.len()).any(|first| line == around(first));
    assert!(ended.stderr.lines().any(found), "no circle of {steps:?}: {ended}");
}

#[test]
fn a_deadlock_of_two_that_post_is_told_with_its_circle() {
    let ended = until_said(job(&["-n", "2", "--watchdog", "1s"], "post"), "deadlock:");
    has(&ended, "deadlock: 0 posts to \"b\" of 1, 1 posts to \"a\" of 0");
    has_words(&ended, &["deckrun: no rank has made progress for"]);
    has_words(&ended, &["rank 0 ", " s  posts to \"b\" of 1"]);
}

#[test]
fn deadlocks_of_three_and_five_are_told_with_their_circles() {
    let steps = ["0 posts to \"b\" of 1", "1 posts to \"c\" of 2", "2 posts to \"a\" of 0"];
    let ended = until_said(job(&["-n", "3", "--watchdog", "1s"], "post"), "deadlock:");
    has_circle(&ended, &steps);
    let steps: Vec<_> = (0..5u8)
        .map(|rank| {
            let next = (rank + 1) % 5;
            format!("{rank} posts to {:?} of {next}", char::from(b'a' + next).to_string())
        })
        .collect();
    let ended = until_said(job(&["-n", "5", "--watchdog", "1s"], "post"), "deadlock:");
    has_circle(&ended, &steps.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn a_deadlock_of_two_that_retrieve_is_told_with_its_circle() {
    let ended = until_said(job(&["-n", "2", "--watchdog", "1s"], "retrieve"), "deadlock:");
    has_circle(&ended, &["0 retrieves from \"a\" what 1 posts", "1 retrieves from \"b\" what 0 posts"]);
}

#[test]
fn two_locks_taken_in_two_orders_are_told_with_their_circle() {
    let ended = until_said(job(&["-n", "2", "--watchdog", "1s"], "lock"), "deadlock:");
    has_circle(&ended, &["0 locks \"b\", which 1 holds", "1 locks \"a\", which 0 holds"]);
    has_words(&ended, &["rank 0 ", " s  locks \"b\", which 1 holds"]);
}

#[test]
fn a_deadlock_over_hosts_and_a_network_is_told_with_its_circle() {
    let options = [&HOSTS[..], &["--watchdog", "1s", "--transport", "tcp"]].concat();
    let ended = until_said(job(&options, "post"), "deadlock:");
    has_circle(&ended, &["0 posts to \"b\" of 1", "1 posts to \"c\" of 2", "2 posts to \"a\" of 0"]);
    has_words(&ended, &["rank 1 ", " localhost ", "posts to \"c\" of 2"]);
}

/// Ranks that wait at the barrier sleep: a rank that uses a processor there would count as working.
#[test]
fn a_rank_that_sleeps_elsewhere_is_named_as_the_one_that_is_waited_for() {
    let ended = until_said(job(&["-n", "3", "--watchdog", "1s"], "barrier"), "waited for:");
    has(&ended, "waited for: rank 0");
    has_words(&ended, &["rank 0 ", "sleeps, in no call"]);
    has_words(&ended, &["rank 1 ", "is at the barrier, waits for"]);
}

/// Between two reports of the watchdog a NIC's helper runs several times.
#[test]
fn a_rank_that_sleeps_is_named_over_networks() {
    for transport in ["tcp", "udp"] {
        let job = job(&["-n", "2", "--watchdog", "5s", "--transport", transport], "barrier");
        has(&until_said(job, "waited for:"), "waited for: rank 0");
    }
}

/// The rank runs alone, and behind a script that waits for it.
#[test]
fn a_rank_that_computes_makes_progress() {
    let ended = job(&["-n", "3", "--watchdog", "3s"], "compute").run().ok();
    assert!(!ended.stderr.contains("progress"), "{ended}");
    let job = Job::new(Bin::deckrun().path()).args(["-n", "3", "--watchdog", "3s", "--", "sh", "-c"]);
    let ended = job.arg(format!("{} compute; true", env!("CARGO_BIN_EXE_stuck-rank"))).run().ok();
    assert!(!ended.stderr.contains("progress"), "{ended}");
}

fn ask(pid: u32) -> Output {
    let mut deckrun = Command::new(Bin::deckrun().path());
    deckrun.args(["--status", &pid.to_string()]).output().expect("deckrun runs")
}

/// Asks until each of these lines is there: a wait is reported after it has lasted a while, each rank's at its
/// own time.
fn ask_until(job: &Running, lines: &[&[&str]]) {
    loop {
        let asked = ask(job.pid());
        assert!(asked.status.success(), "{asked:?}");
        let text = String::from_utf8_lossy(&asked.stdout).into_owned();
        if lines.iter().all(|words| is_said(&text, words)) {
            return;
        }
        assert!(job.is_in_time(), "{lines:?} were never answered, but: {text}");
    }
}

#[test]
fn a_signal_and_another_deckrun_get_the_report_at_once() {
    for options in [&["-n", "3"][..], &HOSTS] {
        let ended = job(options, "barrier").run_while(|job| {
            let _ = job.line_with("is ready", 3);
            let barrier = "is at the barrier, waits for";
            ask_until(job, &[&["waited for: rank 0"], &["rank 1 ", barrier], &["rank 2 ", barrier]]);
            signal(job, Signal::QUIT);
            let _ = job.complaint_with("deckrun: what the ranks are doing:", 1);
            let _ = job.complaint_with("waited for: rank 0", 1);
            signal(job, Signal::TERM);
        });
        assert_eq!(ended.code(), 143, "{ended}");
        let ended = ended.clean();
        assert_eq!(ended.stderr.matches("what the ranks are doing:").count(), 1, "{ended}");
    }
}

/// One of the threads waits at the mailbox, and the other one rests.
#[test]
fn threads_that_share_a_mailbox_are_seen_with_what_each_waits_for() {
    let ended = job(&["-n", "3"], "threads").run_while(|job| {
        let _ = job.line_with("is ready", 3);
        let of = |rank| format!("retrieves from \"a\", to which {rank} can post");
        ask_until(job, &[&["rank 0 ", &of(1)], &["rank 0 ", &of(2)]]);
        signal(job, Signal::TERM);
    });
    assert_eq!(ended.code(), 143, "{ended}");
}

#[test]
fn who_runs_no_job_is_not_asked() {
    let asked = ask(std::process::id());
    assert!(!asked.status.success() && asked.stdout.is_empty());
    assert!(String::from_utf8_lossy(&asked.stderr).contains("is no deckrun"), "{asked:?}");
}

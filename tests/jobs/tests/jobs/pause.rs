//! Ctrl-Z and `fg`: no time limit of a rank counts the time in between.

use std::{fs, path::Path, thread, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use udeck_jobs::{Bin, Job, Running};

const RANKS: usize = 5;

/// Time limit of the ranks for every wait. While they run, less than a second of it is needed on an idle machine.
const LIMIT: Duration = Duration::from_secs(20);

/// The ranks stay stopped for longer than the limit, which would pass if it counted this time.
fn all_go_on(transport: &str, options: &[&str]) {
    let file =
        std::env::temp_dir().join(format!("jobs-pause-{}-{transport}-{}", std::process::id(), options.len()));
    let limit = LIMIT.as_secs().to_string();
    let job = Job::new(Bin::deckrun().path()).args(options).arg("--");
    let job = job.arg(env!("CARGO_BIN_EXE_pause-rank")).arg(&file);
    let job =
        job.env("DECK_TRANSPORT", transport).env("DECK_SETUP_TIMEOUT", &limit).env("DECK_DEADLINE", &limit);
    let ended = job.run_while(|job| {
        let _ = job.line_with("waits", RANKS);
        signal(job, Signal::TSTP);
        while !is_stopped(job) {
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(LIMIT);
        signal(job, Signal::CONT);
        fs::write(&file, "").expect("a temporary file");
    });
    let ended = ended.ok();
    assert_eq!(ended.stdout.matches("is done").count(), RANKS, "{ended}");
}

/// Sends a signal to the process group, as a terminal does.
fn signal(job: &Running, signal: Signal) {
    let group = Pid::from_raw(job.pid().cast_signed()).expect("a process");
    kill_process_group(group, signal).expect("it runs");
}

/// Whether deckrun is stopped, which happens after its ranks are.
fn is_stopped(job: &Running) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(job.pid().to_string()).join("stat"));
    let stat = stat.expect("the job is there");
    stat.rsplit(')').next().is_some_and(|rest| rest.trim().starts_with('T'))
}

#[test]
fn on_one_host() {
    all_go_on("shm", &["-n", "5"]);
}

/// For deckrun each loopback agent is a host of its own.
const HOSTS: [&str; 6] = ["--hosts", "b:2,localhost:3", "--agent", "env NODE={}", "--iface", "lo"];

#[test]
fn on_two_hosts_over_tcp() {
    all_go_on("tcp", &HOSTS);
}

#[test]
fn on_two_hosts_over_udp() {
    all_go_on("udp", &HOSTS);
}

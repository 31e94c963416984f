//! Failures of a rank, a host or deckrun itself, and their effect on the job.

use std::{fs, thread, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use udeck_jobs::{Job, Running, netns::Network};

use super::{Case, RANK};

pub const CASES: &[Case] = &[
    ("a_rank_that_is_killed_takes_the_job_down", killed_rank_aborts),
    ("a_rank_that_is_killed_is_news_to_the_others", killed_rank_is_news),
    ("a_rank_that_is_stopped_goes_on", stopped_rank),
    ("deckrun_killed_leaves_nothing_on_any_host", killed_deckrun),
    ("deckrun_killed_leaves_no_families_on_any_host", killed_deckrun_with_families),
    ("a_node_killed_takes_the_job_down", killed_node),
    ("an_interface_taken_down_takes_the_job_down", link_down),
    ("a_host_cut_off_is_news_to_the_others", cut_off),
    ("the_root_cut_off_leaves_nothing_on_any_host", root_cut_off),
    ("a_signal_reaches_all_hosts", interrupted),
    ("a_timeout_ends_all_hosts", timeout),
];

/// Two ranks on each of three hosts, which wait for losses.
fn waiting(network: &Network, options: &[&str], losses: &str) -> Job {
    network.deckrun(2).args(["--detect", "2s"]).args(options).args(["--", RANK, "wait", losses])
}

fn all_ready(job: &Running) {
    let _ = job.line_with("ready", 6);
}

/// Process number of a rank that has printed that it is ready.
fn pid_of(job: &Running, rank: u32) -> Pid {
    let line = job.line_with(&format!("rank {rank} pid "), 1);
    let number = line.split_whitespace().nth(3).and_then(|word| word.parse().ok());
    number.and_then(Pid::from_raw).unwrap_or_else(|| panic!("no number in {line:?}"))
}

fn signal(pid: Pid, signal: Signal) {
    kill_process(pid, signal).expect("it runs");
}

fn root_of(job: &Running) -> Pid {
    Pid::from_raw(job.pid() as i32).expect("a process number")
}

fn killed_rank_aborts() {
    let network = Network::new(3);
    let ended = waiting(&network, &[], "9").run_while(|job| {
        all_ready(job);
        signal(pid_of(job, 3), Signal::KILL);
    });
    assert_eq!(ended.code(), 137, "{ended}");
    assert!(ended.stderr.contains("rank 3 killed by SIGKILL; ending ranks 0-2, 4-5"), "{ended}");
    let _ = ended.clean();
}

fn killed_rank_is_news() {
    let network = Network::new(3);
    let ended = waiting(&network, &["--on-failure", "continue"], "1").run_while(|job| {
        all_ready(job);
        signal(pid_of(job, 5), Signal::KILL);
    });
    assert_eq!(ended.code(), 137, "{ended}");
    for rank in 0..5 {
        ended.line_with(&format!("rank {rank} lost 5: killed by SIGKILL"));
    }
    let _ = ended.clean();
}

/// The rank is stopped for longer than a host may be silent: the kernel of a stopped process still answers.
fn stopped_rank() {
    let network = Network::new(3);
    let job = network.deckrun(2).args(["--detect", "2s", "--", RANK, "rounds"]);
    let ended = job.run_while(|job| {
        all_ready(job);
        signal(pid_of(job, 2), Signal::STOP);
        thread::sleep(Duration::from_secs(5));
        signal(pid_of(job, 2), Signal::CONT);
    });
    let ended = ended.ok();
    assert_eq!(ended.stdout.matches("is through").count(), 6, "{ended}");
}

fn killed_deckrun() {
    let network = Network::new(3);
    let ended = waiting(&network, &[], "9").run_while(|job| {
        all_ready(job);
        signal(root_of(job), Signal::KILL);
    });
    assert_eq!(ended.code(), 128 + 9, "{ended}");
    let _ = ended.clean();
}

/// The ranks have children on every host: in the rank's group, outside of it, and without a parent.
fn killed_deckrun_with_families() {
    let network = Network::new(3);
    let family = "sleep 1000 & setsid sleep 1000 & setsid sh -c 'sleep 1000 &'; echo ready; wait";
    let ended = network.deckrun(2).args(["--", "sh", "-c", family]).run_while(|job| {
        all_ready(job);
        signal(root_of(job), Signal::KILL);
    });
    assert_eq!(ended.code(), 128 + 9, "{ended}");
    let _ = ended.clean();
}

/// The deckrun on another host, which is the parent of a rank there, is killed.
fn killed_node() {
    let network = Network::new(3);
    let ended = waiting(&network, &[], "9").run_while(|job| {
        all_ready(job);
        let rank = pid_of(job, 2).as_raw_nonzero();
        let stat = fs::read_to_string(format!("/proc/{rank}/stat")).expect("it runs");
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        let parent = parent.and_then(|number| number.parse().ok()).and_then(Pid::from_raw);
        signal(parent.expect("a parent"), Signal::KILL);
    });
    assert_eq!(ended.code(), 137, "{ended}");
    let said = format!("ranks 2-3 lost with host {} (its deckrun has ended)", network.host(1));
    assert!(ended.stderr.contains(&said), "{ended}");
    let _ = ended.clean();
}

fn link_down() {
    let network = Network::new(3);
    let ended = waiting(&network, &[], "9").run_while(|job| {
        all_ready(job);
        network.set_link(1, false);
    });
    assert_eq!(ended.code(), 137, "{ended}");
    let said =
        format!("ranks 2-3 lost with host {} (no answer for 2 s); ending ranks 0-1, 4-5", network.host(1));
    assert!(ended.stderr.contains(&said), "{ended}");
    let _ = ended.clean();
}

fn cut_off() {
    let network = Network::new(3);
    let ended = waiting(&network, &["--on-failure", "continue"], "2").run_while(|job| {
        all_ready(job);
        network.set_port(2, false);
    });
    assert_eq!(ended.code(), 137, "{ended}");
    for rank in 0..4 {
        for lost in 4..6 {
            let how = format!("lost with host {} (no answer for 2 s)", network.host(2));
            ended.line_with(&format!("rank {rank} lost {lost}: {how}"));
        }
    }
    let _ = ended.clean();
}

/// The ranks on the root's own host are ended as the job's ranks are after a failure.
fn root_cut_off() {
    let network = Network::new(3);
    let ended = waiting(&network, &[], "9").run_while(|job| {
        all_ready(job);
        network.set_port(0, false);
    });
    assert_eq!(ended.code(), 137, "{ended}");
    let _ = ended.clean();
}

fn interrupted() {
    let network = Network::new(3);
    let ended = waiting(&network, &[], "9").run_while(|job| {
        all_ready(job);
        signal(root_of(job), Signal::TERM);
    });
    assert_eq!(ended.code(), 143, "{ended}");
    assert!(ended.stderr.contains("SIGTERM: passed on to ranks 0-5"), "{ended}");
    let _ = ended.clean();
}

fn timeout() {
    let network = Network::new(3);
    let job =
        network.deckrun(2).args(["--timeout", "500ms", "--", "sh", "-c", "setsid sleep 600 & sleep 600"]);
    let ended = job.run();
    assert_eq!(ended.code(), 124, "{ended}");
    assert!(ended.stderr.contains("timeout after 500ms: ranks 0-5 still running"), "{ended}");
    let _ = ended.clean();
}

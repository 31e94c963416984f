//! Collective calls of processes: right results, and the right error when a member is killed in one. `Ended` checks for
//! leftovers.

use udeck_jobs::{Bin, Job};

const RANK: &str = env!("CARGO_BIN_EXE_group-rank");
const CALLS: [&str; 11] = [
    "barrier",
    "all_reduce",
    "long_all_reduce",
    "reduce",
    "broadcast",
    "gather_scatter",
    "all_gather",
    "all_to_all",
    "whole_messages",
    "scan",
    "request",
];

/// Longer than any test lasts: a wait for a rank that has ended would be noticed.
const FOR_EVER: &str = "86400";

fn job(ranks: &str, transport: &str) -> Job {
    Job::new(Bin::deckrun().path())
        .args(["-n", ranks, "--transport", transport, "--on-failure", "continue", "--", RANK])
        .env("DECK_SETUP_TIMEOUT", FOR_EVER)
        .env("DECK_DEADLINE", FOR_EVER)
}

#[test]
fn collective_calls_are_right() {
    for call in CALLS {
        let ended = job("4", "shm").args([call]).run().ok();
        for rank in 0..4 {
            ended.line_with(&format!("rank {rank}: right"));
        }
    }
}

fn told_and_gone_on(transport: &str) {
    for (nth, call) in CALLS.into_iter().enumerate() {
        for ranks in [3, 5] {
            let ms = (5 + nth * 7 + ranks).to_string();
            let ended = job(&ranks.to_string(), transport).args([call, &ms]).run().fails();
            for rank in (0..ranks).filter(|rank| *rank != 1) {
                let line = ended.line_with(&format!("rank {rank}: "));
                let told = format!("rank {rank}: rank 1 is lost: killed by SIGKILL");
                let went_on = format!("; {} went on", ranks - 1);
                assert!(line.starts_with(&told) && line.ends_with(&went_on), "{call} of {ranks}: {ended}");
            }
        }
    }
}

#[test]
fn a_member_killed_in_a_call_is_named_at_all_others_which_go_on() {
    told_and_gone_on("shm");
}

#[test]
fn a_member_killed_in_a_call_over_tcp_is_named_at_all_others_which_go_on() {
    told_and_gone_on("tcp");
}

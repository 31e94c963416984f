//! Ranks in namespaces of their own, as containers have them.

use std::process::Command;

use udeck_jobs::{Bin, Job};

const RANK: &str = env!("CARGO_BIN_EXE_group-rank");

/// Words that put a command into a namespace of its own of this kind, if this user may make one.
fn own(kind: &'static str) -> Option<Vec<&'static str>> {
    let ways = [vec!["unshare", kind], vec!["unshare", kind, "--user", "--map-current-user"]];
    let may = |way: &Vec<&str>| {
        Command::new(way[0]).args(&way[1..]).arg("true").output().is_ok_and(|ran| ran.status.success())
    };
    let way = ways.into_iter().find(may);
    if way.is_none() {
        println!("skipped: no namespace can be made here ({kind})");
    }
    way
}

/// The kernel tells none of these ranks the process number of another: each is process 1 of its own namespace.
#[test]
fn ranks_that_do_not_see_each_others_processes_are_a_job() {
    let Some(own_pids) = own("-pf") else { return };
    for transport in ["shm", "tcp", "udp"] {
        for call in ["all_reduce", "long_all_reduce", "whole_messages"] {
            let job = Job::new(Bin::deckrun().path()).args(["-n", "3", "--transport", transport, "--"]);
            let ended = job.args(&own_pids).args([RANK, call]).run().ok();
            (0..3).for_each(|rank| _ = ended.line_with(&format!("rank {rank}: right")));
        }
    }
}

#[test]
fn ranks_of_several_users_take_the_next_transport_that_is_listed() {
    // The ranks run as different users, if this one may switch to them and they may run the program.
    let become_one = format!("exec setpriv --reuid $((1000 + DECK_RANK)) --clear-groups {RANK} $0");
    let try_one = format!("setpriv --reuid 1000 --clear-groups test -x {RANK}");
    if !Command::new("sh").args(["-c", &try_one]).output().is_ok_and(|ran| ran.status.success()) {
        return println!("skipped: this user may not start programs as others");
    }
    let job = |transport| {
        let deckrun = Job::new(Bin::deckrun().path()).args(["-n", "3", "--transport", transport]);
        deckrun.args(["--", "sh", "-c", &become_one, "all_reduce"]).run()
    };
    let ended = job("shm,tcp").ok();
    (0..3).for_each(|rank| _ = ended.line_with(&format!("rank {rank}: right")));
    assert!(job("shm").fails().stderr.contains("it runs as another user"));
}

/// A new network namespace has a loopback interface that is down.
#[test]
fn without_a_loopback_interface_an_error_says_what_to_do() {
    let Some(own_network) = own("-n") else { return };
    // Either the transport's own time limit ends the attempt, or the call's deadline, which comes before.
    for (transport, deadline) in [("tcp", "60"), ("udp", "60"), ("tcp", "1"), ("udp", "1")] {
        let job = Job::new(Bin::deckrun().path()).inside(&own_network).env("DECK_DEADLINE", deadline);
        let ended = job.args(["-n", "2", "--transport", transport, "--", RANK, "all_reduce"]).run().fails();
        assert!(ended.stderr.contains("`ip link set lo up`"), "{ended}");
    }
}

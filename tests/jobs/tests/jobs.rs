//! The programs that users get, run as users run them: alone, and as jobs of several processes under `deckrun`.
//!
//! `Ended::ok` and `Ended::fails` also check that no process and no file outlives the job.

use udeck_jobs::{Bin, Ended};

#[path = "jobs/deckperf.rs"]
mod deckperf;
#[path = "jobs/deckrun.rs"]
mod deckrun;
#[path = "jobs/documents.rs"]
mod documents;
#[path = "jobs/examples.rs"]
mod examples;
#[path = "jobs/group.rs"]
mod group;
#[path = "jobs/hadb.rs"]
mod hadb;
#[path = "jobs/limits.rs"]
mod limits;
#[path = "jobs/lost.rs"]
mod lost;
#[path = "jobs/namespaces.rs"]
mod namespaces;
#[path = "jobs/nas_ft.rs"]
mod nas_ft;
#[path = "jobs/pause.rs"]
mod pause;
#[path = "jobs/recorded.rs"]
mod recorded;
#[path = "jobs/share.rs"]
mod share;
#[path = "jobs/stuck.rs"]
mod stuck;
#[path = "jobs/survive.rs"]
mod survive;
#[path = "jobs/trace.rs"]
mod trace;

/// The variable is named once, not by each rank: otherwise a misspelt setting would silently be ignored.
#[test]
fn a_variable_that_is_no_setting_is_named() {
    let ended = Bin::example("hello").ranks(2).env("DECK_DEADLIN", "5").run().ok();
    let words = "udeck: DECK_DEADLIN is no setting and does nothing; the nearest one is DECK_DEADLINE";
    assert_eq!(ended.stderr.matches(words).count(), 1, "{ended}");
}

mod idle {
    use super::*;

    const SECONDS: u64 = 4;

    /// Asserts that ranks sleep. A spinning thread takes as much as the machine has left for it, which is more than a
    /// tenth of a processor; if all ranks spin, they take the whole machine.
    fn sleeps(ranks: usize, transport: &str, what: &[&str]) {
        let job = Bin::at(env!("CARGO_BIN_EXE_idle-rank")).ranks(ranks).arg(SECONDS.to_string());
        let ended = job.args(what).env("DECK_TRANSPORT", transport).run().ok();
        let peers = format!("with {} peers", ranks - 1);
        let lines = ended.stdout.lines().filter(|line| line.contains(&peers));
        let taken = |line: &str| line.split(' ').nth(3)?.parse::<u64>().ok();
        let taken: Vec<u64> = lines.map(|line| taken(line).expect("microseconds")).collect();
        assert_eq!(taken.len(), ranks, "{ended}");
        let (all, busiest) = (taken.iter().sum::<u64>(), taken.iter().max().copied().unwrap_or(0));
        println!("{transport} {what:?}: {ranks} ranks took {all} us of {SECONDS} s, the busiest {busiest}");
        assert!(busiest < SECONDS * 100_000, "{transport}: a rank took {busiest} us of {SECONDS} s: {ended}");
        assert!(all < SECONDS * 750_000, "{transport}: {all} us of {SECONDS} s: {ended}");
    }

    /// Neither the ranks nor the transports' threads have anything to do.
    #[test]
    fn connected_processes_have_no_busy_thread() {
        for transport in ["tcp", "udp", "shm"] {
            sleeps(64, transport, &[]);
        }
    }

    /// Waits poll other messages in between, and must sleep between these polls, too.
    #[test]
    fn a_rank_whose_message_nobody_reads_has_no_busy_thread() {
        for transport in ["shm", "shm,tcp", "tcp", "udp"] {
            sleeps(3, transport, &["unread"]);
        }
    }
}

mod leave {
    use super::*;

    const RANKS: usize = 3;

    /// Messages that ranks posted before they finished arrive, by any protocol, however late they are
    /// retrieved.
    fn all_comes(transport: &str, protocols: &[&str]) {
        for (protocol, late) in protocols.iter().flat_map(|protocol| [(protocol, ""), (protocol, "late")]) {
            let job = Bin::at(env!("CARGO_BIN_EXE_leave-rank")).ranks(RANKS).arg(late);
            let ended = job.env("DECK_TRANSPORT", transport).env("DECK_PROTOCOL", protocol).run().ok();
            ended.line_with("24 messages came of each of 2 ranks");
        }
    }

    #[test]
    fn over_shared_memory() {
        all_comes("shm", &["auto", "eager", "copy", "rdma-write", "rdma-read", "handshake", "hand-off"]);
    }

    #[test]
    fn over_tcp() {
        all_comes("tcp", &["auto", "eager", "copy", "rdma-write", "rdma-read", "handshake"]);
    }

    #[test]
    fn over_udp() {
        all_comes("udp", &["auto", "eager", "copy", "rdma-write", "rdma-read", "handshake"]);
    }
}

mod stopped {
    use std::{thread, time::Duration};

    use rustix::process::{Pid, Signal, kill_process};
    use udeck_jobs::Job;

    use super::*;

    const TALKER: &str = env!("CARGO_BIN_EXE_hosts-talker");

    /// The ranks are stopped for longer than another host may be silent, as by a debugger: for a process of this host the
    /// system is asked, not the clock.
    fn goes_on_over(transport: &str) {
        let job = Job::new(Bin::deckrun().path());
        let options = ["-n", "3", "--transport", transport, "--detect", "2s", "--", TALKER, "ring"];
        let ended = job.args(options).run_while(|job| {
            let _ = job.line_with("ready", 3);
            let line = job.line_with("rank 1 pid ", 1);
            let number = line.split_whitespace().nth(3).and_then(|word| word.parse().ok());
            let pid = number.and_then(Pid::from_raw).unwrap_or_else(|| panic!("no number in {line:?}"));
            kill_process(pid, Signal::STOP).expect("it runs");
            thread::sleep(Duration::from_secs(9));
            kill_process(pid, Signal::CONT).expect("it is stopped");
        });
        let ended = ended.ok();
        assert_eq!(ended.stdout.matches("is through").count(), 3, "{ended}");
    }

    #[test]
    fn a_rank_that_is_stopped_goes_on_over_udp() {
        goes_on_over("udp");
    }
}

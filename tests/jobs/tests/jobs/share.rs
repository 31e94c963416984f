//! Ranks that share memory: killed with a lock, inside a barrier, with permits, or before any rank has the memory. `Ended` checks
//! for leftovers; the segments have no name, so no file can remain.

use udeck_jobs::{Bin, Ended, Job};

/// Longer than any test lasts: a wait for a rank that has ended would be noticed.
const FOR_EVER: &str = "86400";

/// Three ranks, of which one is killed.
fn three(mode: &str) -> Ended {
    Job::new(Bin::deckrun().path())
        .args(["-n", "3", "--on-failure", "continue", "--", env!("CARGO_BIN_EXE_share-rank"), mode])
        .env("DECK_SETUP_TIMEOUT", FOR_EVER)
        .env("DECK_DEADLINE", FOR_EVER)
        .run()
}

fn say(ended: &Ended, ranks: [usize; 2], what: &str) {
    for rank in ranks {
        let line = ended.line_with(&format!("rank {rank}: "));
        assert_eq!(line, format!("rank {rank}: {what}"), "{ended}");
    }
}

const HALF: &str = "shared segment \"pair\" may be half written: rank 1 held its lock when it was lost: ";
const HOW_TO: &str = "take it by `recover`, which marks the data as whole again";

#[test]
fn a_rank_killed_with_the_lock_leaves_it_and_every_other_is_told() {
    let ended = three("holder").fails();
    say(&ended, [0, 2], &format!("true [7, 7] {HALF}killed by SIGKILL; {HOW_TO}"));
}

#[test]
fn a_rank_that_exits_with_the_lock_leaves_it() {
    let ended = three("exit").ok();
    say(&ended, [0, 2], &format!("true [7, 7] {HALF}exited with code 0 without saying goodbye; {HOW_TO}"));
}

#[test]
fn a_rank_killed_inside_a_barrier_has_come_to_it_and_comes_to_no_other() {
    let ended = three("barrier").fails();
    say(&ended, [0, 2], "passed, saw 11; rank 1 is lost: killed by SIGKILL");
}

#[test]
fn a_rank_killed_before_a_barrier_is_an_error_there() {
    let ended = three("absent").fails();
    let lost = "rank 1 is lost: killed by SIGKILL";
    say(&ended, [0, 2], &format!("{lost}; {lost}"));
}

#[test]
fn a_killed_ranks_permits_come_back_and_say_from_whom() {
    let ended = three("permit").fails();
    // One of the two finds the dead rank, and takes back both permits.
    let said = [0, 2].map(|rank| ended.line_with(&format!("rank {rank}: ")));
    assert!(said.iter().all(|line| line.ends_with(", 2 free")), "{ended}");
    assert!(said.iter().any(|line| line.contains("from Some(1)")), "{ended}");
}

#[test]
fn what_a_killed_rank_has_made_stays_with_the_others() {
    let ended = three("maker").fails();
    say(&ended, [1, 2], "22 rank 0 is lost: killed by SIGKILL");
}

#[test]
fn a_maker_killed_before_it_has_made_it_is_an_error_at_the_others() {
    let ended = three("unmade").fails();
    say(&ended, [1, 2], "rank 0 is lost: killed by SIGKILL");
}

/// For deckrun each loopback agent is a host of its own.
#[test]
fn ranks_of_two_hosts_are_told_to_share_within_one() {
    let job = Job::new(Bin::deckrun().path())
        .args(["--hosts", "b:1,localhost:2", "--agent", "env NODE={}", "--iface", "lo"])
        .args(["--", env!("CARGO_BIN_EXE_share-rank"), "hosts"]);
    let ended = job.env("DECK_DEADLINE", "60").run().ok();
    let other = |rank: usize, host: &str, ours: &str| {
        format!(
            "semaphore \"slots\" is shared within one host, and rank {rank} runs on {host}, this rank on {ours}: share it among the \
             ranks of one host (World::host_ranks), and use mailboxes between hosts"
        )
    };
    assert_eq!(
        ended.line_with("rank 0: "),
        format!("rank 0: [0] 1 {}", other(1, "localhost", "b")),
        "{ended}"
    );
    say(&ended, [1, 2], &format!("[1, 2] 2 {}", other(0, "b", "localhost")));
}

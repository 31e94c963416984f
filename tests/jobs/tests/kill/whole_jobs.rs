//! Jobs under `deckrun` of which one rank is killed: the launcher's text and exit code, the other ranks' errors, and
//! no leftovers.

use udeck_jobs::{Bin, Ended, Job};

/// Runs `deckrun -n 3` with `trio`, whose rank 1 is killed at the point.
fn three(on_failure: &str, pattern: &str, fault: &str) -> Ended {
    // The script sets the variable for rank 1 only.
    let script = format!("if [ $DECK_RANK = 1 ]; then export DECK_FAULT={fault}; fi; exec \"$0\" \"$@\"");
    let ended = Job::new(Bin::deckrun().path())
        .args(["-n", "3", "--on-failure", on_failure, "--", "/bin/sh", "-c", &script])
        .args([env!("CARGO_BIN_EXE_kill-trio"), pattern])
        .run()
        .clean();
    assert_eq!(ended.code(), 128 + super::SIGKILL, "{ended}");
    assert!(ended.stderr.contains("rank 1 killed by SIGKILL"), "{ended}");
    ended
}

#[test]
fn aborts() {
    three("abort", "round", "rdma.copied:40");
}

#[test]
fn goes_on_and_tells_the_others() {
    let ended = three("continue", "round", "rdma.copied:40");
    ended.line_with("rank 0: PeerLost of 1");
    ended.line_with("rank 2: PeerLost of 1");
}

#[test]
fn goes_on_and_tells_those_who_wait_without_a_connection() {
    let ended = three("continue", "blocked", "post.published:40");
    ended.line_with("rank 0: PeerLost of 1");
    ended.line_with("rank 2: PeerLost of 1");
}

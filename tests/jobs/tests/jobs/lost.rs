//! Ranks that leave without a goodbye, and further programs that are started in the place of a rank's own.

use udeck_jobs::{Bin, Ended, Job};

/// Longer than any test lasts: a wait for a rank that has ended would be noticed.
const FOR_EVER: &str = "86400";

fn program() -> &'static str {
    env!("CARGO_BIN_EXE_lost-rank")
}

/// Three ranks, of which rank 1 ends in this way.
fn three(how: &str) -> Ended {
    Job::new(Bin::deckrun().path())
        .args(["-n", "3", "--on-failure", "continue", "--", program(), how])
        .env("DECK_SETUP_TIMEOUT", FOR_EVER)
        .env("DECK_DEADLINE", FOR_EVER)
        .run()
}

fn others_say(ended: &Ended, what: &str) {
    for rank in [0, 2] {
        let line = ended.line_with(&format!("rank {rank}: "));
        assert_eq!(line, format!("rank {rank}: {what}"), "{ended}");
    }
}

#[test]
fn a_rank_that_is_killed_before_the_first_barrier_is_an_error_there() {
    let ended = three("killed").fails();
    others_say(&ended, "rank 1 is lost: killed by SIGKILL");
}

#[test]
fn a_rank_that_exits_without_goodbye_is_told_of_by_deckrun_and_an_error_at_the_others() {
    let ended = three("exit").ok();
    others_say(&ended, "rank 1 is lost: exited with code 0 without saying goodbye");
    let words = "deckrun: rank 1 exited with code 0 without saying goodbye: the others take it for lost";
    assert!(ended.stderr.contains(words), "{ended}");
}

/// Two ranks, of which the first has posted 1000 messages that wait for the second.
fn two(how: &str, transport: &str) -> Ended {
    Job::new(Bin::deckrun().path())
        .args(["-n", "2", "--on-failure", "continue", "--transport", transport, "--", program(), how])
        .env("DECK_SETUP_TIMEOUT", FOR_EVER)
        .env("DECK_DEADLINE", FOR_EVER)
        .run()
}

/// The fate of messages in the connection is unknown; those that wait for room in it are counted.
#[test]
fn messages_that_wait_for_a_rank_that_is_killed_are_counted() {
    for (transport, waiting) in [("shm", 1000 - 64), ("tcp", 1000 - 256), ("udp", 1000 - 256)] {
        let ended = two("full", transport).fails();
        // The reason has the connection's text, or already the launcher's.
        let words =
            format!("rank 0: {waiting} earlier message(s) to mailbox \"in\" on rank 1 were not delivered: ");
        assert!(ended.line_with("rank 0: ").starts_with(&words), "{transport}: {ended}");
    }
}

#[test]
fn messages_that_wait_at_a_rank_that_does_not_finish_are_counted_on_its_stderr() {
    let ended = two("dropped", "shm").ok();
    let words =
        "rank 0: 936 message(s) to mailbox \"in\" of rank 1 are lost: the world ended before they were sent";
    assert!(ended.stderr.contains(words), "{ended}");
}

/// Nothing is expected of a program that never joins a job.
#[test]
fn a_program_without_the_library_owes_no_goodbye() {
    let ended = Bin::at("/bin/true").ranks(2).run().ok();
    assert_eq!(ended.stderr, "");
}

/// Two ranks, each a shell that runs this script.
fn shells(script: &str) -> Ended {
    let script = script.replace("PROGRAM", program());
    Bin::at("/bin/sh").ranks(2).args(["-c", &script]).env("DECK_SETUP_TIMEOUT", FOR_EVER).run().clean()
}

fn is_refused(ended: &Ended, times: usize) {
    let words = "another program of this rank, process ";
    assert_eq!(ended.stderr.matches(words).count(), times, "{ended}");
    assert!(ended.stderr.contains("does not lead to a launcher"), "{ended}");
    assert!(!ended.stderr.contains("Broken pipe"), "{ended}");
}

#[test]
fn a_second_program_of_a_rank_is_refused_in_words() {
    let ended = shells("PROGRAM hello && PROGRAM hello; [ $? != 0 ]");
    assert_eq!(ended.code(), 0, "{ended}");
    assert_eq!(ended.stdout.matches("hello from").count(), 2, "{ended}");
    is_refused(&ended, 2);
}

/// Either of the two may be first.
#[test]
fn of_two_programs_at_once_one_is_the_rank_and_the_other_is_refused() {
    let ended = shells("PROGRAM hello & PROGRAM hello; wait; true");
    assert_eq!(ended.code(), 0, "{ended}");
    assert_eq!(ended.stdout.matches("hello from").count(), 2, "{ended}");
    is_refused(&ended, 2);
}

//! Made-up environments that are unusable: each causes an error that says so, and never a world of one rank.

use std::time::Duration;

use udeck_jobs::{Ended, Job};

use super::cases::{RANK, said};

/// Time limit of a job: it only ends a hang.
const LIMIT: Duration = Duration::from_secs(100);

pub const CASES: [(&str, fn()); 7] = [
    ("a_descriptor_that_is_closed", closed),
    ("a_service_that_is_silent", || service("silent")),
    ("a_service_that_speaks_nonsense", || service("nonsense")),
    ("a_service_that_dies", || service("dies")),
    ("an_environment_that_is_asked_for_and_is_not_there", not_there),
    ("an_environment_that_nobody_knows", unknown),
    ("a_world_of_one_if_asked_for", one),
];

fn rank(words: &[&str]) -> Job {
    Job::new(RANK.as_ref()).args(words).limit(LIMIT).env("DECK_SETUP_TIMEOUT", "2")
}

fn pmi1(job: Job, descriptor: &str) -> Job {
    job.env("PMI_FD", descriptor).env("PMI_RANK", "0").env("PMI_SIZE", "4")
}

fn is_refused(ended: &Ended, word: &str) {
    assert_eq!(said(ended), [""; 0], "{ended}");
    assert!(ended.stderr.contains(word), "{word:?} is not said: {ended}");
}

fn closed() {
    is_refused(&pmi1(rank(&["hello"]), "97").run().fails(), "PMI_FD");
}

fn service(what: &str) {
    is_refused(&rank(&["server", what]).run().fails(), "PMI");
}

fn not_there() {
    for (name, variable) in [("pmi1", "PMI"), ("pmi2", "PMI"), ("pmix", "PMIX"), ("deckrun", "deckrun")] {
        is_refused(&rank(&["hello"]).env("DECK_LAUNCH", name).run().fails(), variable);
    }
}

fn unknown() {
    is_refused(&rank(&["hello"]).env("DECK_LAUNCH", "pmi3").run().fails(), "pmi2");
}

fn one() {
    let ended = pmi1(rank(&["hello"]), "97").env("DECK_LAUNCH", "none").run().ok();
    assert_eq!(said(&ended), ["rank 0 of 1"], "{ended}");
}

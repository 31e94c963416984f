//! The long tail, which takes a night: the same checks at a larger scale.
//!
//! Each step here repeats one of [`super::checks`] at another scale. The smaller check nearly always finds the same defects.

use super::{
    Beside, Role, Step, Work, beside_jobs, over_dat, over_release, papers, programs_of, soak_of, step, tests,
};
use crate::{counts, rdma, workspace::Workspace};

/// Variants of a transport's set-up that differ from another one in one setting, by the fabric's name in the conformance
/// suite.
pub const VARIANTS: [&str; 9] = [
    "shm-untrusting",
    "sim-wild",
    "sim-copying",
    "sim-no-read",
    "tcp-v6-levels",
    "udp-v6-levels",
    "verbs-own-receives",
    "verbs-cm",
    "verbs-iwarp",
];

/// Variable for the number of random sequences on the simulated fabric, and its value for a night.
pub const SEQUENCES: (&str, &str) = ("DECK_RANDOM_SEQUENCES", "10000");

/// Variable and value for kills at up to seven passages of a point, instead of the first and the last.
pub const PASSAGES: (&str, &str) = ("UDECK_KILLS", "all");

/// Variable and value for all jobs of Python under valgrind, instead of one.
pub const VALGRIND: (&str, &str) = ("UDECK_VALGRIND", "all");

/// Part of the names of uDAPL's programs under valgrind over TCP. Over shared memory, the step `dat` runs them as well.
pub const DAT_VALGRIND: &str = "valgrind::tcp";

/// Arguments that leave the variants out of the suite.
pub fn without_variants() -> String {
    VARIANTS.map(|variant| format!("--skip {variant}::")).join(" ")
}

pub fn steps(workspace: &Workspace, fail_fast: bool) -> Vec<Step> {
    let tests = || tests(fail_fast);
    let one = |role, command| Work::Commands(vec![(role, command)]);
    let suite = programs_of(workspace, |package| package == "udeck-conformance");
    let variants =
        tests().args(&suite).args("-- --nocapture").args(&VARIANTS.map(|name| format!("{name}::")).join(" "));
    let random = tests().args("--test random -- --nocapture").env(SEQUENCES.0, SEQUENCES.1);
    let histories = tests().args("--lib -- --nocapture sequences::").env("PROPTEST_CASES", "100000");
    let kill =
        over_release(tests().args("--test kill -- --test-threads 6").env(PASSAGES.0, PASSAGES.1), workspace);
    let mut valgrind = over_dat(tests(), &format!("-- {DAT_VALGRIND}"), workspace);
    let python = beside_jobs(tests().args("--test python -- test_memory"), workspace);
    valgrind.push((Role::Tests, python.env(VALGRIND.0, VALGRIND.1)));
    vec![
        step("variants", "the suite over each transport's other settings", one(Role::SomeTests, variants))
            .beside(Beside::Others)
            .by_program(),
        step(
            "random",
            "10,000 random sequences on the simulated fabric, and what they met",
            one(Role::SomeTests, random),
        )
        .beside(Beside::Others),
        step("histories", "100,000 histories of the arbitration tables", one(Role::SomeTests, histories))
            .beside(Beside::Others),
        step("passages", "processes killed at seven passages of every point", Work::Commands(kill))
            .beside(Beside::AfterRelease),
        step("papers", "the published figures on the simulated fabric, whole", papers("papers", workspace))
            .beside(Beside::AfterRelease),
        step(
            "guests",
            "over an RDMA device: what the step `rdma` leaves out, and the suite with the memory of another NIC",
            Work::Rdma(rdma::Chosen::tail()),
        )
        .beside(Beside::AfterRelease)
        .by_program(),
        step("valgrind", "programs of uDAPL and of Python under valgrind, in more jobs", Work::Commands(valgrind))
            .beside(Beside::AfterRelease),
        step("waited", "instructions of a retrieve that waits, in a build of its own", Work::Counts(counts::Extent::All))
            .beside(Beside::AfterRelease),
        step("soak-hour", "an hour of random jobs under random faults", soak_of(60, workspace))
            .beside(Beside::Others),
    ]
}

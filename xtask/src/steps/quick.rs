//! The short list: checks of promises that users rely on, in ten minutes from a fresh clone, with Rust and a C compiler.
//!
//! All of it uses the profile of tests, programs included, so that there is one build. The other steps have the checks that are
//! left out here: see [`super::checks`].

use super::{BUILD, Beside, Role, Step, Work, beside_jobs, installed, step};
use crate::{builds::FEATURES, child::Cargo, workspace::Workspace};

/// The packages whose tests run: the library, the transports that any machine has, the launcher, and programs of the other steps.
const PACKAGES: [&str; 17] = [
    "udeck",
    "udeck-sys",
    "udeck-auth",
    "udeck-boot",
    "udeck-via",
    "udeck-session",
    "udeck-deck",
    "udeck-shm",
    "udeck-tcp",
    "udeck-udp",
    "udeck-sim",
    "udeck-capi",
    "udeck-bindings-tests",
    "udeck-conformance",
    "udeck-jobs",
    "deckrun",
    "nas-ft",
];
/// The programs of the jobs, and the library that C programs are linked with.
const PROGRAMS: &str = "--lib --bin deckrun --bin nas-ft --bin group-rank --bin lost-rank --example hello --example pack --example ring";
/// Programs that play the short commands of the index of the documents, and their packages. Their own tests are in the other list.
const INDEX: &str = "-p deckfabric -p deckqos --bin deckfabric --bin deckqos";
/// Test programs of the conformance suite for transports that any machine has.
const SUITE: &str = "--test shm --test sim --test tcp --test udp";
/// Fabrics of the suite, without variants that differ in one setting.
const FABRICS: &str = "-- --nocapture shm:: sim:: tcp:: udp::";
/// Jobs that end well, over shared memory and TCP, jobs in which a rank is killed, and the index of the documents.
const JOBS: &str = "-- deckrun:: group:: lost:: documents:: examples::hello examples::pack examples::ring nas_ft::class_s_verifies_on_2";

pub fn steps(workspace: &Workspace, fail_fast: bool) -> Vec<Step> {
    let debug = workspace.target.join("debug").display().to_string();
    let of = |command: &str, words: &str| {
        let packages = PACKAGES.map(|name| format!("-p {name}")).join(" ");
        Cargo::new(command).args(&packages).args(FEATURES).args(words)
    };
    let test = |words: &str| of(if fail_fast { "test" } else { "test --no-fail-fast" }, words);
    let one = |role, command| Work::Commands(vec![(role, command)]);
    let unit = "--lib --test it";
    let build = vec![
        (Role::Check, of("test --no-run", &format!("{unit} {SUITE} --test jobs --test capi"))),
        (Role::Check, of("build", PROGRAMS).args(INDEX)),
    ];
    let units = beside_jobs(test(&format!("{unit} -- --skip proptest --skip prop_")), workspace);
    let c = installed(test("--test capi -- ::cc"), "debug", workspace);
    vec![
        step(BUILD, "test programs, and what they start", Work::Commands(build)),
        step("unit", "the library's parts, and all of it in one process", one(Role::SomeTests, units))
            .beside(Beside::Others),
        step("doc", "the examples of the documents", one(Role::SomeTests, of("test", "--doc")))
            .beside(Beside::Others),
        step(
            "conformance",
            "the one suite that every transport passes, over shm, sim, tcp and udp",
            one(Role::SomeTests, test(SUITE).args(FABRICS)),
        )
        .beside(Beside::Others)
        .by_program(),
        step(
            "jobs",
            "whole jobs under deckrun, over shm and tcp, and with a killed rank",
            one(Role::SomeTests, test("--test jobs").args(JOBS).env("DECK_BIN_DIR", debug)),
        )
        .beside(Beside::Others),
        step("c", "programs in C by `cc`", Work::Commands(c.into())).beside(Beside::Others),
    ]
}

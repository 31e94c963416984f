//! Jobs that survive deaths: the ranks that are left agree on who they are, and the job ends well. `UDECK_SURVIVE_RUNS=200`
//! repeats each test that many times for each transport.

use std::collections::BTreeSet;

use rand::{RngExt, SeedableRng};
use rand_xorshift::XorShiftRng;
use udeck_jobs::{Bin, Ended, Job};

/// Longer than any test lasts: a wait for a rank that has ended would be noticed.
const FOR_EVER: &str = "86400";

/// Runs by default, for each transport.
const RUNS: u64 = 2;

/// Calls `body` with a transport and the number of the run, which counts across transports.
fn each_run(body: impl Fn(&str, u64)) {
    let runs = std::env::var("UDECK_SURVIVE_RUNS").map_or(RUNS, |runs| runs.parse().expect("a number"));
    for (nth, transport) in (0..).zip(["shm", "tcp", "udp"]) {
        (0..runs).for_each(|run| body(transport, nth * runs + run));
    }
}

fn job(ranks: usize, transport: &str) -> Job {
    Job::new(Bin::deckrun().path())
        .args(["-n", &ranks.to_string(), "--transport", transport, "--on-failure", "survive", "--"])
        .env("DECK_SETUP_TIMEOUT", FOR_EVER)
        .env("DECK_DEADLINE", FOR_EVER)
}

#[test]
fn all_that_are_left_have_the_same_list_whoever_dies_meanwhile() {
    each_run(|transport, seed| {
        let (ranks, victims) = [(3, 1), (5, 2), (5, 4), (6, 3)][seed as usize % 4];
        let program = env!("CARGO_BIN_EXE_survive-rank");
        let ended =
            job(ranks, transport).args([program, &victims.to_string(), &(seed * 100).to_string()]).run().ok();
        let left: Vec<usize> = (0..ranks - victims).collect();
        for rank in &left {
            ended.line_with(&format!("rank {rank}: {left:?} went on"));
        }
        let last = format!("deckrun: {} of {ranks} ranks survived: ", left.len());
        assert!(ended.stderr.lines().last().is_some_and(|line| line.starts_with(&last)), "{ended}");
    });
}

/// Runs an example with a random victim and moment. It may have ended before that moment.
fn example(name: &str, victims: std::ops::Range<usize>, latest_ms: u64) {
    let seen = std::cell::RefCell::new(BTreeSet::new());
    each_run(|transport, seed| {
        let mut dice = XorShiftRng::seed_from_u64(seed);
        let (victim, after) = (dice.random_range(victims.clone()), dice.random_range(0..latest_ms));
        let program = Bin::example(name);
        let ended: Ended = job(4, transport)
            .arg(program.path())
            .args(["--kill", &victim.to_string(), "--after", &after.to_string()])
            .run()
            .ok();
        seen.borrow_mut().insert(ended.stderr.contains("3 of 4 ranks survived: rank"));
    });
    // The first moments are early ones.
    assert!(seen.take().contains(&true), "{name} never lost a rank");
}

#[test]
fn a_farm_gives_a_dead_workers_tasks_to_others() {
    example("farm", 1..4, 60);
}

#[test]
fn a_solver_restores_a_dead_ranks_rows() {
    example("conjugate_gradient", 0..4, 60);
}

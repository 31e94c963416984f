//! Random sequences of operations on the simulated fabric, over links that lose, corrupt, duplicate, delay, reorder
//! and stall, and with NICs that die: the properties of VIA's reliability levels hold in each.
//!
//! One thread drives; time is virtual; everything follows from a seed. A failing seed is printed with its last operations;
//! `DECK_SIM_SEED` replays it, alone. `DECK_RANDOM_SEQUENCES` sets the number of sequences. The events that they met are
//! printed, and a full run in which an event was met too rarely fails: the invariants say nothing about what never
//! happened.
//!
//! | file | what it is |
//! |---|---|
//! | `play` | choice and order of the operations, and the faults |
//! | `transfers`, `meetings`, `mistakes` | the operations |
//! | `finish` | requirements at the end |
//! | `book`, `history` | the oracle: descriptors and messages; windows |
//! | `fleet`, `image`, `dice` | NICs and VIs; bytes; chance |
//! | `coverage` | counts of what was met |

#![allow(clippy::result_large_err, reason = "a refused descriptor comes back by value")]

mod book;
mod coverage;
mod dice;
mod finish;
mod fleet;
mod history;
mod image;
mod meetings;
mod mistakes;
mod play;
mod transfers;

use std::cell::RefCell;
use std::process::ExitCode;

use udeck_sim::{Fabric, Options, replay};

use coverage::Coverage;

const NAME: &str = "sim::random::sequences_keep_the_promises_of_their_level";
/// Variable for the number of sequences.
const VARIABLE: &str = "DECK_RANDOM_SEQUENCES";
/// Number of sequences of a full run, whose coverage is judged.
const SEQUENCES: u64 = 10_000;
/// Interval of sequences that are played twice, with the same result both times.
const AGAIN: u64 = 100;

fn main() -> ExitCode {
    udeck_conformance::main_of_one(NAME, || {
        let gaps = play_all();
        assert!(gaps.is_empty(), "met too seldom:\n{}", gaps.join("\n"));
    })
}

/// Plays all sequences. Returns the events that a full run has met too rarely.
fn play_all() -> Vec<String> {
    let count = std::env::var(VARIABLE).map_or(SEQUENCES, |count| {
        count.parse().unwrap_or_else(|_| panic!("{VARIABLE} is {count:?}, not a number of sequences"))
    });
    println!("seeds 0 to {}, or the one that {} names", count.saturating_sub(1), replay::VARIABLE);
    let coverage = RefCell::new(Coverage::default());
    replay::seeds(count, |fabric| {
        let journal = play::sequence(fabric, &mut coverage.borrow_mut());
        if fabric.seed().is_multiple_of(AGAIN) {
            repeats_itself(fabric.seed(), &journal);
        }
    });
    let coverage = coverage.into_inner();
    print!("{coverage}");
    if count < SEQUENCES || std::env::var_os(replay::VARIABLE).is_some() {
        println!("(fewer than {SEQUENCES} sequences: what they met is not judged)");
        return Vec::new();
    }
    coverage.gaps(Options::all_caps())
}

fn repeats_itself(seed: u64, journal: &[String]) {
    let again = play::sequence(&Fabric::new(seed), &mut Coverage::default());
    if let Some(at) = (0..journal.len().max(again.len())).find(|&at| journal.get(at) != again.get(at)) {
        let before = journal[at.saturating_sub(12)..at].join("\n");
        panic!(
            "played again, operation {at} is {:?} instead of {:?}, behind\n{before}",
            again.get(at),
            journal.get(at)
        );
    }
}

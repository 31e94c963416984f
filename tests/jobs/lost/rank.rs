//! Ranks that end without a word, and what the others hear of it. `lost-rank WORD`:
//!
//! * `exit`: rank 1 joins the job and calls `exit(0)`.
//! * `killed`: rank 1 joins the job and is killed.
//! * `hello`: nothing of that; each rank joins and finishes.
//!
//! The others come to their first barrier, print `rank N: ERROR`, and end well.

use std::process;

use rustix::process::{Signal, getpid, kill_process};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let word = std::env::args().nth(1).unwrap_or_default();
    let world = udeck::init()?;
    let rank = world.rank();
    match (word.as_str(), rank) {
        ("hello", _) => println!("hello from {rank}"),
        ("exit", 1) => process::exit(0),
        ("killed", 1) => kill_process(getpid(), Signal::KILL)?,
        _ => {
            let error = world.barrier().expect_err("rank 1 does not come");
            println!("rank {rank}: {error}");
        }
    }
    Ok(world.finish()?)
}

//! Ranks that end without a goodbye, and the errors of the others. `lost-rank WORD`:
//!
//! * `exit`: rank 1 joins the job and calls `exit(0)`.
//! * `killed`: rank 1 joins the job and is killed.
//! * `hello`: no such end; each rank joins and finishes.
//! * `full`: rank 0 posts 1000 messages, of which rank 1 retrieves none before it is killed.
//! * `dropped`: as `full`, but rank 1 lives on, and rank 0 returns without finishing.
//!
//! The others enter their first barrier (`full`: flush), print `rank N: ERROR`, and end well.

use std::process;

use rustix::process::{Signal, getpid, kill_process};
use udeck::{Postbox, Result, World};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let word = std::env::args().nth(1).unwrap_or_default();
    let world = udeck::init()?;
    let rank = world.rank();
    match (word.as_str(), rank) {
        ("hello", _) => println!("hello from {rank}"),
        ("exit", 1) => process::exit(0),
        ("killed", 1) => kill_process(getpid(), Signal::KILL)?,
        ("full" | "dropped", 1) => {
            let inbox = world.mailbox::<u64>("in")?;
            world.barrier()?; // all is posted
            if word == "full" {
                kill_process(getpid(), Signal::KILL)?;
            }
            let lost = world.barrier().expect_err("rank 0 does not come");
            drop(inbox);
            println!("rank {rank}: {lost}");
        }
        ("full", 0) => {
            let flushed = post_unread(&world)?.flush();
            println!("rank {rank}: {}", flushed.expect_err("rank 1 is killed"));
        }
        ("dropped", 0) => {
            drop(post_unread(&world)?);
            return Ok(());
        }
        _ => {
            let error = world.barrier().expect_err("rank 1 does not come");
            println!("rank {rank}: {error}");
        }
    }
    Ok(world.finish()?)
}

fn post_unread(world: &World) -> Result<Postbox<u64>> {
    let out = world.postbox("in")?;
    (0..1000_u64).try_for_each(|number| -> Result { Ok(out.post(&[number][..])?) })?;
    world.barrier()?;
    Ok(out)
}

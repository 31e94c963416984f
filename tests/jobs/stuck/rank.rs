//! Ranks that stop moving, any number of them: `stuck-rank post|retrieve|barrier|compute|lock|threads`.
//!
//! Each rank has a mailbox, named by its letter, and a postbox to the next rank's. `post`: all post and nobody retrieves.
//! `retrieve`: all retrieve and nobody posts. `barrier`: rank 0 sleeps instead. `compute`: rank 0 computes for some seconds
//! before its barrier. `lock`: each holds a lock named by its letter and wants the next rank's. `threads`: two threads of rank 0
//! share its mailbox, and wait for one of the next ranks each.

use std::{
    env,
    hint::black_box,
    sync::Mutex,
    thread::{self, sleep},
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use udeck::{Mailbox, Match, Postbox, World, in_turn};

/// Processor time that rank 0 computes, in seconds.
const COMPUTES: i64 = 5;

fn main() -> udeck::Result {
    let mode = env::args().nth(1).expect("a mode");
    let world = udeck::init()?;
    let (rank, size) = (world.rank(), world.size());
    let letter = |rank: usize| char::from(b'a' + (rank % size) as u8).to_string();
    let inbox: Mailbox<u8> = world.mailbox(&letter(rank))?;
    let next: Postbox<u8> = world.postbox(&letter(rank + 1))?;
    // The ranks meet at the first barrier; the tested one is the next.
    world.barrier()?;
    println!("rank {rank} is ready");
    match (mode.as_str(), rank) {
        ("post", _) => loop {
            next.post(world.buf(8)?)?;
        },
        ("retrieve", _) => drop(inbox.retrieve()?),
        ("threads", 0) => share(inbox)?,
        ("lock", _) => cross(&world)?,
        ("barrier", 0) => sleep(Duration::from_secs(600)),
        ("compute", 0) => while black_box(clock_gettime(ClockId::ThreadCPUTime).tv_sec) < COMPUTES {},
        _ => {}
    }
    world.barrier()?;
    println!("rank {rank} is done");
    world.finish()
}

fn share(inbox: Mailbox<u8>) -> udeck::Result {
    let turns = inbox.turns();
    let inbox = Mutex::new(inbox);
    let lock = |limit: Duration| -> udeck::Result<_> {
        let until = Instant::now() + limit;
        loop {
            match inbox.try_lock() {
                Ok(inbox) => return Ok(Some(inbox)),
                Err(_) if Instant::now() >= until => return Ok(None),
                Err(_) => sleep(Duration::from_micros(50)),
            }
        }
    };
    let wait = |rank| {
        let (matching, limit) = (Match::source(rank), Duration::from_secs(600));
        in_turn(&[&turns], matching, limit, lock, |inbox, limit| {
            inbox.matching(matching).within(limit).retrieve().map(drop)
        })
    };
    thread::scope(|scope| {
        let waits = [1, 2].map(|rank| scope.spawn(move || wait(rank)));
        waits.into_iter().try_for_each(|wait| wait.join().expect("it does not panic"))
    })
}

fn cross(world: &World) -> udeck::Result {
    let lock = |letter: char| world.shared_mutex::<u8>(&letter.to_string(), 1);
    let (a, b) = (lock('a')?, lock('b')?);
    let (own, other) = if world.rank() == 0 { (a, b) } else { (b, a) };
    let _own = own.lock()?;
    world.barrier()?;
    other.lock().map(drop)
}

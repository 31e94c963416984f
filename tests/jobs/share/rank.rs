//! Ranks that share memory, of which one is killed: `share-rank MODE`. Rank 1 (in `maker`: rank 0) is killed; the others print
//! their errors, each in one line `rank N: …`, and end well.
//!
//! * `holder`: it holds the lock, and has written half of its data under it.
//! * `barrier`: it has entered a barrier, which rank 0 enters late.
//! * `absent`: it has not entered a barrier.
//! * `permit`: it holds both permits of a semaphore.
//! * `maker`: the rank that has made the memory dies after all have it.
//! * `unmade`: rank 0 dies before it makes the memory.
//! * `exit`: rank 1 exits with the lock, without a goodbye.
//! * `hosts`: no rank dies; all share with all, and then with those of their host.

use std::process;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use udeck::{Error, Result, World};

fn main() -> Result {
    let mode = std::env::args().nth(1).unwrap_or_default();
    let world = udeck::init()?;
    let said = match mode.as_str() {
        "holder" | "exit" => holder(&world, &mode)?,
        "barrier" | "absent" => barrier(&world, &mode)?,
        "permit" => permit(&world)?,
        "maker" => maker(&world)?,
        "unmade" => unmade(&world),
        "hosts" => hosts(&world)?,
        _ => panic!("no mode {mode:?}"),
    };
    println!("rank {}: {said}", world.rank());
    world.finish()
}

fn die() -> ! {
    kill_process(getpid(), Signal::KILL).expect("it is this process");
    unreachable!("killed")
}

fn holder(world: &World, mode: &str) -> Result<String> {
    let shared = world.shared_mutex::<u64>("pair", 2)?;
    if world.rank() == 1 {
        let mut pair = shared.lock()?;
        pair[0] = 7;
        world.barrier()?; // the others wait for the lock from here on
        sleep(Duration::from_millis(100));
        if mode == "exit" {
            process::exit(0);
        }
        die();
    }
    world.barrier()?;
    // Every rank gets the error, until one has repaired the data.
    let error = shared.lock().map(drop).expect_err("its holder died");
    let is_told = matches!(error, Error::Abandoned { rank: 1, .. });
    survivors_meet(world)?;
    if world.rank() == 0 {
        let mut pair = shared.recover()?;
        assert_eq!((pair.abandoned_by(), &pair[..]), (Some(1), &[7, 0][..]), "half written");
        pair[1] = 7;
    }
    survivors_meet(world)?;
    let pair = shared.lock()?;
    Ok(format!("{is_told} {:?} {error}", &pair[..]))
}

/// Shares a segment among all ranks but rank 1, made after its death.
fn survivors_meet(world: &World) -> Result {
    let others: Vec<usize> = world.host_ranks().into_iter().filter(|rank| *rank != 1).collect();
    world.shared_segment_of::<u8>(&others, "meet", 1).map(drop)
}

fn barrier(world: &World, mode: &str) -> Result<String> {
    let shared = world.shared_segment::<u64>("grid", world.size())?;
    match world.rank() {
        1 if mode == "absent" => die(),
        1 => {
            shared.set(1, 11);
            let _ = shared.barrier_timeout(Duration::from_millis(1)); // it has come
            die();
        }
        0 => {
            // Rank 1 is dead when this rank enters the barrier.
            while !world.exited_ranks().any(|exit| exit.rank == 1) {
                sleep(Duration::from_millis(1));
            }
        }
        _ => {}
    }
    let start = Instant::now();
    let first = shared.barrier().map(|()| shared.get(1));
    let second = shared.barrier().expect_err("rank 1 does not come");
    assert!(start.elapsed() < Duration::from_secs(100));
    Ok(match first {
        Ok(seen) => format!("passed, saw {seen}; {second}"),
        Err(error) => format!("{error}; {second}"),
    })
}

fn permit(world: &World) -> Result<String> {
    let permits = world.semaphore("slots", 2)?;
    if world.rank() == 1 {
        let _both = [permits.acquire()?, permits.acquire()?];
        world.barrier()?;
        sleep(Duration::from_millis(100));
        die();
    }
    world.barrier()?;
    let permit = permits.acquire()?;
    let from = permit.reclaimed_from();
    survivors_meet(world)?; // two ranks have one each
    drop(permit);
    survivors_meet(world)?;
    Ok(format!("from {from:?}, {} free", permits.available()))
}

fn maker(world: &World) -> Result<String> {
    let shared = world.shared_segment::<u64>("grid", world.size())?;
    if world.rank() == 0 {
        shared.set(0, 5);
        world.barrier()?;
        // A rank that is still in the barrier would learn of the death there.
        while (1..world.size()).any(|rank| shared.get(rank) != 6) {
            sleep(Duration::from_millis(1));
        }
        die();
    }
    world.barrier()?;
    shared.set(world.rank(), 6);
    let error = shared.barrier().expect_err("rank 0 does not come");
    // The memory stays with the ranks that have it, and they can share more without the dead one.
    let others: Vec<usize> = (1..world.size()).collect();
    let more = world.shared_segment_of::<u64>(&others, "grid", 1)?;
    more.fetch_add(0, shared.get(0) + shared.get(world.rank()));
    more.barrier()?;
    Ok(format!("{} {error}", more.load(0)))
}

fn unmade(world: &World) -> String {
    if world.rank() == 0 {
        sleep(Duration::from_millis(100));
        die();
    }
    world.semaphore("slots", 1).map(drop).expect_err("nobody makes it").to_string()
}

fn hosts(world: &World) -> Result<String> {
    let error = world.semaphore("slots", 1).map(drop).expect_err("they are on two hosts");
    let here = world.host_ranks();
    let shared = world.shared_segment_of::<u64>(&here, "grid", 1)?;
    shared.fetch_add(0, 1);
    shared.barrier()?;
    Ok(format!("{here:?} {} {error}", shared.load(0)))
}

//! Ranks that go on after deaths: `survive-rank VICTIMS SEED`. The last VICTIMS ranks are killed at random moments, also while
//! the others agree on who is left. Each rank that is left prints `rank N: [RANKS] went on`.

use std::thread;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_xorshift::XorShiftRng;
use rustix::process::{Signal, getpid, kill_process};
use udeck::op::Sum;
use udeck::{Error, Group, Result};

/// Calls in a step.
const CALLS: usize = 20;
/// Latest time of a death, in microseconds.
const LATEST: u64 = 30_000;

fn main() -> Result {
    let mut args = std::env::args().skip(1).map(|word| word.parse::<u64>().expect("a number"));
    let (victims, seed) = (args.next().unwrap_or(1) as usize, args.next().unwrap_or(0));
    let world = udeck::init()?;
    let survivors = world.size() - victims;
    let mut group = world.survivors()?;
    if world.rank() >= survivors {
        die_later(seed + world.rank() as u64);
    }
    loop {
        let done = step(&group);
        if !matches!(done, Ok(()) | Err(Error::PeerLost { .. } | Error::GroupFailed { .. })) {
            return done;
        }
        let agreement = world.agree(u64::from(done.is_ok()))?;
        let all_came = agreement.flags == 1 && agreement.ranks == group.ranks();
        if all_came && group.size() == survivors {
            break;
        }
        if !all_came {
            group = world.survivors()?;
        }
    }
    println!("rank {}: {:?} went on", world.rank(), group.ranks());
    world.finish()
}

fn step(group: &Group) -> Result {
    let whole: usize = group.ranks().iter().sum();
    for _ in 0..CALLS {
        let mut sum = [group.ranks()[group.rank()]];
        group.all_reduce(&mut sum, Sum)?;
        assert_eq!(sum, [whole]);
    }
    Ok(())
}

fn die_later(seed: u64) {
    let pause = Duration::from_micros(XorShiftRng::seed_from_u64(seed).random_range(0..LATEST));
    thread::spawn(move || {
        thread::sleep(pause);
        kill_process(getpid(), Signal::KILL).expect("it is this process");
    });
}

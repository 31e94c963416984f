//! Several threads in each rank, each with mailboxes of its own: DECK's threads, by `std::thread`. A token goes
//! round all threads of all ranks; then each thread sends the given number of messages to the next one, and the
//! rate of all is printed.
//!
//! ```sh
//! cargo run --example threads
//! deckrun -n 2 target/release/examples/threads 4 1000000     # threads in each rank, messages of each thread
//! ```

use std::time::{Duration, Instant};

use udeck::{Config, Mailbox, Postbox, Result, World};

/// Number of a thread's messages in flight.
const WINDOW: u64 = 32;

fn main() -> Result {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<u64>().expect("a number"));
    let (threads, messages) = (numbers.next().unwrap_or(2), numbers.next().unwrap_or(10_000));
    // If there are more threads than processors, waiting threads should yield: the library has to be told the
    // number.
    let mut config = Config::from_env()?;
    config.threads = threads as usize;
    let world = udeck::init_with(config)?;
    let all = world.size() as u64 * threads;

    // A world is shared by its rank's threads; a mailbox or a postbox belongs to one of them.
    let first = world.rank() as u64 * threads;
    let times: Vec<Result<Duration>> = std::thread::scope(|scope| {
        let spawn = |me| {
            scope.spawn({
                let world = &world;
                move || work(world, me, all, messages)
            })
        };
        let running: Vec<_> = (first..first + threads).map(spawn).collect();
        running.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    let slowest = times.into_iter().collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or_default();
    if world.rank() == 0 {
        let rate = (all * messages) as f64 / slowest.as_secs_f64() / 1e6;
        println!(
            "{threads} threads in each of {} ranks: {rate:.2} million messages per second",
            world.size()
        );
    }
    world.barrier()?; // one thread of a rank at a time
    world.finish()
}

fn work(world: &World, me: u64, all: u64, messages: u64) -> Result<Duration> {
    let inbox = world.mailbox::<u64>(&format!("ring.{me}"))?;
    let next = world.postbox::<u64>(&format!("ring.{}", (me + 1) % all))?;
    token(world, me, all, &inbox, &next)?;
    let start = Instant::now();
    stream(me, all, messages, &inbox, &next)?;
    let time = start.elapsed();
    next.flush()?;
    Ok(time)
}

/// Passes a token round all threads; each adds its number.
fn token(world: &World, me: u64, all: u64, inbox: &Mailbox<u64>, next: &Postbox<u64>) -> Result {
    if me == 0 {
        next.post(world.buf(1)?)?;
    }
    let sum = inbox.retrieve()?[0] + me;
    if me == 0 {
        assert_eq!(sum, all * (all - 1) / 2);
        println!("{all} threads add up to {sum}");
        return Ok(());
    }
    let mut token = world.buf(1)?;
    token[0] = sum;
    Ok(next.post(token)?)
}

/// Sends numbers from each thread to the next one, in order.
fn stream(me: u64, all: u64, messages: u64, inbox: &Mailbox<u64>, next: &Postbox<u64>) -> Result {
    let before = (me + all - 1) % all;
    let mut sent = 0;
    for received in 0..messages {
        while sent < messages.min(received + WINDOW) {
            next.post(&[me << 32 | sent][..])?;
            sent += 1;
        }
        assert_eq!(inbox.retrieve()?[0], before << 32 | received);
    }
    Ok(())
}

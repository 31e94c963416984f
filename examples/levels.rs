//! Service levels: three kinds of bulk data and a short question now and then, all from rank 0 to rank 1. Shows
//! how much of each kind arrives, and how long the question waits for its answer.
//!
//! ```sh
//! cargo build --release --example levels
//! deckrun -n 2 --transport tcp -- target/release/examples/levels 5                                       # seconds
//! DECK_LEVELS=7:10@2,5:45,3:27,0:18 deckrun -n 2 --transport tcp -- target/release/examples/levels 5
//! ```
//!
//! Levels matter only if the connection between the ranks is slower than the ranks: over a network, not over
//! one host's loopback.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use udeck::{Config, MailboxOptions, Result, ServiceLevel, WithTag, World};

const BULK: [u8; 3] = [5, 3, 0];
const URGENT: u8 = 7;
const LONG: usize = 64 << 10;
/// The tag of the last message.
const LAST: u32 = 1;
/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(2);

fn main() -> Result {
    let seconds = std::env::args().nth(1).map_or(2.0, |text| text.parse().expect("seconds"));
    let mut config = Config::from_env()?;
    config.threads = BULK.len() + 1;
    let world = udeck::init_with(config)?;
    if world.size() < 2 {
        println!("two ranks, please: deckrun -n 2 --transport tcp -- levels");
        return world.finish();
    }
    match world.rank() {
        0 => send(&world)?,
        1 => receive(&world, Duration::from_secs_f64(seconds))?,
        _ => {}
    }
    world.barrier()?;
    world.finish()
}

fn level(level: u8) -> ServiceLevel {
    ServiceLevel::new(level).expect("levels are 0 to 15")
}

fn bulk(level: u8) -> String {
    format!("bulk.{level}")
}

/// Runs rank 0: a thread for each kind of bulk data, and this thread, which asks.
fn send(world: &World) -> Result {
    let over = world.mailbox::<u8>("over")?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let running: Vec<_> = BULK
            .map(|level| {
                scope.spawn({
                    let stop = &stop;
                    move || flood(world, level, stop)
                })
            })
            .into();
        let mut waited = ask(world, || Ok(over.try_retrieve()?.is_some()))?;
        stop.store(true, Ordering::Relaxed);
        running.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))?;
        waited.sort_unstable();
        let at = |part: f64| waited[((waited.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
        let (median, late) = (at(0.5), at(0.99));
        println!(
            "level {URGENT}: {} questions, answered after {median:.2} ms (median), {late:.2} ms (99th percentile)",
            waited.len()
        );
        Ok(())
    })
}

fn flood(world: &World, level: u8, stop: &AtomicBool) -> Result {
    let outlet = world.postbox::<u8>(&bulk(level))?;
    while !stop.load(Ordering::Relaxed) {
        outlet.post(world.buf_reused::<u8>(LONG)?)?;
    }
    outlet.post([].with_tag(LAST))?;
    outlet.flush()
}

/// Asks until `is_over` returns true, and returns the time of each answer.
fn ask(world: &World, is_over: impl Fn() -> Result<bool>) -> Result<Vec<Duration>> {
    let answers = world.mailbox_with::<u8>("answers", &MailboxOptions::new().level(level(URGENT)))?;
    let questions = world.postbox::<u8>("questions")?;
    let mut waited = Vec::new();
    loop {
        let asked = Instant::now();
        let is_last = is_over()?;
        questions.post(&[u8::from(is_last)])?;
        answers.retrieve()?;
        waited.push(asked.elapsed());
        if is_last {
            return Ok(waited);
        }
        thread::sleep(PAUSE);
    }
}

/// Runs rank 1: a thread for each kind of data, one that answers, and this thread, which measures time.
fn receive(world: &World, time: Duration) -> Result {
    let counts = BULK.map(|_| AtomicU64::new(0));
    let over = world.postbox::<u8>("over")?;
    thread::scope(|scope| {
        let answering = scope.spawn(|| answer(world));
        let counting = BULK
            .iter()
            .zip(&counts)
            .map(|(&level, count)| scope.spawn(move || count_bytes(world, level, count)));
        let counting: Vec<_> = counting.collect();
        let now = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        while now().contains(&0) && !counting.iter().any(|thread| thread.is_finished()) {
            thread::sleep(PAUSE);
        }
        // Data that travels before the queues are full is not measured.
        thread::sleep(time / 5);
        let (before, start) = (now(), Instant::now());
        thread::sleep(time);
        let (after, elapsed) = (now(), start.elapsed());
        over.post(&[0])?;
        let came: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        let all = came.iter().sum::<u64>() as f64;
        for (level, came) in BULK.iter().zip(&came) {
            println!(
                "level {level}: {:.1} % of {:.1} MB/s",
                *came as f64 / all * 100.0,
                all / elapsed.as_secs_f64() / 1e6
            );
        }
        counting.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))?;
        answering.join().expect("no thread panics")
    })
}

fn count_bytes(world: &World, of: u8, count: &AtomicU64) -> Result {
    let inbox =
        world.mailbox_with::<u8>(&bulk(of), &MailboxOptions::new().level(level(of)).queue(1 << 20))?;
    loop {
        let message = inbox.retrieve()?;
        count.fetch_add(message.len() as u64, Ordering::Relaxed);
        if message.tag() == LAST {
            return Ok(());
        }
    }
}

fn answer(world: &World) -> Result {
    let questions = world.mailbox_with::<u8>("questions", &MailboxOptions::new().level(level(URGENT)))?;
    let answers = world.postbox::<u8>("answers")?;
    loop {
        let is_last = questions.retrieve()?[0] == 1;
        answers.post(&[0])?;
        if is_last {
            return Ok(());
        }
    }
}

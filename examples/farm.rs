//! A task farm that survives the deaths of workers: rank 0 hands out tasks, and gives the tasks of a dead worker
//! to others. Shows how the loss of a rank comes as an error of a wait, behind the rank's last result.
//!
//! ```sh
//! cargo run --release --example farm
//! deckrun -n 4 --on-failure survive target/release/examples/farm --kill 2 --after 50
//! ```
//!
//! Each task counts the primes among some numbers. The number of all primes below two million is known.

use std::{collections::VecDeque, thread, time::Duration};

use clap::Parser;
use rustix::process::{Signal, getpid, kill_process};
use udeck::{Error, Mailbox, Postbox, World};

/// Counts primes. Rank 0 hands out the work; another rank may die.
#[derive(Parser)]
struct Options {
    /// A rank other than 0, which is killed
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u64).range(1..))]
    kill: Option<u64>,
    /// Milliseconds from the start of that rank to its death
    #[arg(long, default_value_t = 50)]
    after: u64,
}

/// Numbers of a task.
const NUMBERS: u64 = 5000;
const TASKS: u64 = 400;
/// Primes below `NUMBERS * TASKS`, as published.
const PRIMES: u64 = 148_933;
/// Number of tasks that a worker has in hand: with two, the next one is there when one is done.
const IN_HAND: usize = 2;

fn main() -> udeck::Result {
    let options = Options::parse();
    let world = udeck::init()?;
    if options.kill == Some(world.rank() as u64) {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(options.after));
            kill_process(getpid(), Signal::KILL)
        });
    }
    match world.rank() {
        0 => Farm::new(&world)?.run()?,
        _ => work(&world)?,
    }
    world.finish()
}

/// Counts primes until an empty order comes.
fn work(world: &World) -> udeck::Result {
    let orders = world.mailboxes::<u64>("orders")?;
    let results = world.postbox::<[u64; 2]>("results")?;
    for order in orders.iter() {
        let order = order?;
        let Some(&task) = order.first() else { break };
        results.post(&[[task, primes(task)]])?;
    }
    Ok(())
}

fn primes(task: u64) -> u64 {
    let is_prime = |n: &u64| *n > 1 && (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    (task * NUMBERS..(task + 1) * NUMBERS).filter(is_prime).count() as u64
}

struct Farm {
    results: Mailbox<[u64; 2]>,
    /// The workers that live, by rank.
    workers: Vec<Option<Worker>>,
    waiting: VecDeque<u64>,
    /// The result of each task.
    counts: Vec<Option<u64>>,
}

struct Worker {
    orders: Postbox<u64>,
    in_hand: Vec<u64>,
}

impl Farm {
    fn new(world: &World) -> udeck::Result<Farm> {
        let results = world.mailbox("results")?;
        results.expect(1..world.size()); // so that a wait is told of each loss
        let connect = |rank| match world.postbox_of("orders", rank) {
            Ok(orders) => Ok(Some(Worker { orders, in_hand: Vec::new() })),
            Err(Error::PeerLost { .. }) => Ok(None), // it died before it had a mailbox
            Err(other) => Err(other),
        };
        let others = (1..world.size()).map(connect);
        let workers = [Ok(None)].into_iter().chain(others).collect::<udeck::Result<_>>()?;
        Ok(Farm { results, workers, waiting: (0..TASKS).collect(), counts: vec![None; TASKS as usize] })
    }

    fn run(mut self) -> udeck::Result {
        while self.counts.contains(&None) {
            self.hand_out()?;
            if self.workers.iter().all(Option::is_none) {
                // Nobody else is left.
                let task = self.waiting.pop_front().expect("a task without a result waits");
                self.counts[task as usize] = Some(primes(task));
                continue;
            }
            match self.results.retrieve() {
                Ok(result) => self.take(result.source(), result[0]),
                Err(Error::PeerLost { rank, .. }) => self.lose(rank),
                Err(other) => return Err(other),
            }
        }
        for worker in self.workers.iter().flatten() {
            let _ = worker.orders.post(&[][..]); // a worker that has died meanwhile is no loss
        }
        let found: u64 = self.counts.iter().flatten().sum();
        println!("{found} primes; {} workers are left", self.workers.iter().flatten().count());
        assert_eq!(found, PRIMES);
        Ok(())
    }

    /// Gives each worker as many tasks as it may have in hand.
    fn hand_out(&mut self) -> udeck::Result {
        for rank in 0..self.workers.len() {
            while let Some(worker) = &mut self.workers[rank]
                && worker.in_hand.len() < IN_HAND
                && let Some(task) = self.waiting.pop_front()
            {
                worker.in_hand.push(task);
                match worker.orders.post(&[task]).map_err(Error::from) {
                    Ok(()) => {}
                    Err(Error::PeerLost { .. } | Error::MailboxGone { .. } | Error::Undelivered { .. }) => {
                        self.lose(rank);
                    }
                    Err(other) => return Err(other),
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, rank: usize, [task, count]: [u64; 2]) {
        if let Some(worker) = &mut self.workers[rank] {
            worker.in_hand.retain(|in_hand| *in_hand != task);
        }
        self.counts[task as usize] = Some(count);
    }

    /// Takes back the tasks of a worker that has died.
    fn lose(&mut self, rank: usize) {
        let tasks = self.workers[rank].take().map_or(Vec::new(), |worker| worker.in_hand);
        self.waiting.extend(tasks.into_iter().filter(|task| self.counts[*task as usize].is_none()));
    }
}

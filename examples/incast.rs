//! Incast: all other ranks post to one mailbox as fast as they are allowed to. Shows how much arrives, how
//! evenly, how long a message takes, and the memory that the receiver needs.
//!
//! ```sh
//! cargo build --release --example incast
//! for control in off srp smsrp; do
//!   DECK_INCAST=$control deckrun -n 65 --transport tcp -- target/release/examples/incast --bytes 16384
//! done
//! ```
//!
//! `--work` makes the receiver slower: it computes for this time at each message.

use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use udeck::{Mailbox, Result, WithTag, World};

/// The tag of the last message.
const LAST: u32 = 1;
/// Bytes at a message's beginning for the time at which it was posted.
const TIME: usize = 8;

/// Many ranks post to one.
#[derive(Parser)]
struct Options {
    /// Duration, in seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Length of each message, in bytes
    #[arg(long, default_value_t = 4096)]
    bytes: usize,
    /// Time that the receiver computes at each message, in microseconds
    #[arg(long, default_value_t = 0)]
    work: u64,
    /// Upper bound of waiting messages at each poster, in bytes; 0: one message
    #[arg(long, default_value_t = 0)]
    queue: usize,
}

fn main() -> Result {
    let options = Options::parse();
    let world = udeck::init()?;
    if world.size() < 2 {
        println!("two ranks or more, please: deckrun -n 65 --transport tcp -- incast");
        return world.finish();
    }
    let time = Duration::from_secs_f64(options.seconds);
    if world.rank() == 0 {
        receive(&world, &options, time)?
    } else {
        post(&world, &options, time)?
    }
    world.finish()
}

fn post(world: &World, options: &Options, time: Duration) -> Result {
    let out = world.postbox::<u8>("in")?;
    world.barrier()?;
    let start = Instant::now();
    while start.elapsed() < time {
        let mut message = world.buf_reused::<u8>(options.bytes.max(TIME))?;
        message[..TIME].copy_from_slice(&now().to_le_bytes());
        out.post(message)?;
    }
    out.post([].with_tag(LAST))?;
    out.flush()
}

/// Returns the time in nanoseconds, by a clock that all processes of a host share.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

fn receive(world: &World, options: &Options, time: Duration) -> Result {
    let inbox = world.mailbox_with_queue::<u8>("in", options.queue)?;
    let memory = resident("VmRSS");
    world.barrier()?;
    let seen = Seen::collect(world, &inbox, time, Duration::from_micros(options.work))?;
    let peak = resident("VmHWM").saturating_sub(memory);
    let rate = seen.bytes as f64 / time.as_secs_f64() / 1e6;
    let (least, most) =
        (seen.counts.iter().min().copied().unwrap_or(0), seen.counts.iter().max().copied().unwrap_or(0));
    let mut took = seen.took;
    took.sort_unstable();
    let at = |part: f64| {
        took.get(((took.len().max(1) - 1) as f64 * part) as usize).map_or(0.0, |ns| *ns as f64 / 1e6)
    };
    println!(
        "{} posters, {} bytes: {rate:.1} MB/s, most over least {:.2}, {:.2} ms median, {:.2} ms 99.9th percentile, {:.1} MB more memory",
        world.size() - 1,
        options.bytes.max(TIME),
        most as f64 / least as f64,
        at(0.5),
        at(0.999),
        peak as f64 / 1e3
    );
    Ok(())
}

struct Seen {
    bytes: usize,
    /// Messages by poster.
    counts: Vec<u64>,
    /// Nanoseconds from post to retrieve, for each message.
    took: Vec<u64>,
}

impl Seen {
    /// Counts messages for `time`, then takes the rest.
    fn collect(world: &World, inbox: &Mailbox<u8>, time: Duration, work: Duration) -> Result<Self> {
        let posters = world.size() - 1;
        let mut seen = Seen { bytes: 0, counts: vec![0; posters], took: Vec::new() };
        let (start, mut left) = (Instant::now(), posters);
        while left > 0 {
            let message = inbox.retrieve()?;
            let so_far = start.elapsed();
            if message.tag() == LAST {
                left -= 1;
            } else if so_far < time
                && let Some(posted) = message.first_chunk::<TIME>()
            {
                seen.bytes += message.len();
                seen.counts[message.source() - 1] += 1;
                seen.took.push(now().saturating_sub(u64::from_le_bytes(*posted)));
            }
            let until = Instant::now() + work;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
        Ok(seen)
    }
}

/// Returns this process's memory now, or at its maximum, in kB.
fn resident(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

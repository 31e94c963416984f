//! Sorts keys that are spread over the ranks, by *sample sort*: all ranks agree on keys that split the whole
//! into equal parts, and each rank gets one part from all ranks. Shows calls of a group: `all_gather`, parts of
//! different lengths by `all_to_all_v`, and reductions by operators and closures.
//!
//! ```sh
//! cargo run --release --example sample_sort
//! deckrun -n 4 target/release/examples/sample_sort --keys 40000000
//! ```
//!
//! Afterwards the ranks check that the keys are in order, and that no key was lost or changed: by their number,
//! sum and exclusive or.

use std::time::Instant;

use clap::Parser;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use udeck::{Group, op};

/// Sorts random keys that are spread over the ranks.
#[derive(Parser)]
struct Options {
    /// Keys on all ranks together
    #[arg(long, default_value_t = 20_000_000)]
    keys: usize,
}

/// Number of keys that each rank shows to the others: more samples make more equal parts.
const SAMPLES: usize = 128;

fn main() -> udeck::Result {
    let options = Options::parse();
    let world = udeck::init()?;
    let all = world.all()?; // the group of all ranks
    let (rank, ranks) = (all.rank(), all.size());
    let share = rank * options.keys / ranks..(rank + 1) * options.keys / ranks;
    let keys = random_keys(share.len(), rank as u64);
    let before = digest(all, &keys)?;

    all.barrier()?;
    let started = Instant::now();
    let sorted = sample_sort(all, keys)?;
    all.barrier()?;
    let seconds = started.elapsed().as_secs_f64();

    assert!(is_in_order(all, &sorted)?, "rank {rank}: the keys are not in order");
    assert_eq!(digest(all, &sorted)?, before, "the keys are not those of before");
    let mut largest = [sorted.len()];
    all.reduce(0, &mut largest, op::Max)?; // comes after what all have checked
    if rank == 0 {
        println!(
            "{} keys on {ranks} ranks in {seconds:.2} s, at most {} on a rank",
            options.keys, largest[0]
        );
        println!("they are in order, and those of before");
    }
    world.finish()
}

/// Sorts the keys of all ranks. Collective: every rank gives some keys, and gets those between two splitters.
fn sample_sort(all: &Group, mut keys: Vec<u64>) -> udeck::Result<Vec<u64>> {
    keys.sort_unstable();
    let splitters = splitters(all, &keys)?;

    // The keys for each rank are a slice of ours.
    let mut rest = &keys[..];
    let mut parts = Vec::with_capacity(all.size());
    for splitter in splitters {
        let (part, others) = rest.split_at(rest.partition_point(|&key| key < splitter));
        parts.push(part);
        rest = others;
    }
    parts.push(rest);

    // The keys travel to their ranks. How many come from each is known when they have come.
    let mut sorted = all.all_to_all_v(&parts)?.concat();

    // The keys of each rank came in order. This sort, unlike the unstable one, notices that, and merges.
    sorted.sort();
    Ok(sorted)
}

/// Returns the keys that split all keys into parts of about the same length: the first key of each part except
/// the first.
fn splitters(all: &Group, sorted: &[u64]) -> udeck::Result<Vec<u64>> {
    // A rank without keys sends samples, too: all ranks have to send equally many.
    let sample = |nth: usize| sorted.get(nth * sorted.len() / SAMPLES).copied().unwrap_or(0);
    let mine: Vec<u64> = (0..SAMPLES).map(sample).collect();
    let mut samples = vec![0; SAMPLES * all.size()];
    all.all_gather(&mine, &mut samples)?;
    samples.sort_unstable();
    Ok(samples.into_iter().step_by(SAMPLES).skip(1).collect())
}

/// Tells whether the keys of each rank are in order, and those of the ranks before are not greater.
fn is_in_order(all: &Group, keys: &[u64]) -> udeck::Result<bool> {
    // The greatest key of all ranks before this one; at the first rank the value is unchanged.
    let mut before = [keys.last().copied().unwrap_or(0)];
    all.exscan(&mut before, op::Max)?;
    let follows = all.rank() == 0 || keys.first().is_none_or(|&first| before[0] <= first);
    Ok(follows && keys.is_sorted())
}

/// Returns values that do not change when keys change places: their number, sum and exclusive or, over all
/// ranks.
fn digest(all: &Group, keys: &[u64]) -> udeck::Result<(usize, u64, u64)> {
    let mut number = [keys.len()];
    let mut sum = [keys.iter().fold(0, |sum: u64, &key| sum.wrapping_add(key))];
    let mut xor = [keys.iter().fold(0, |xor, key| xor ^ key)];
    all.all_reduce(&mut number, op::Sum)?;
    all.all_reduce(&mut sum, |a: u64, b: u64| a.wrapping_add(b))?; // op::Sum would be an overflow
    all.all_reduce(&mut xor, op::BitXor)?;
    Ok((number[0], sum[0], xor[0]))
}

/// Draws random keys. Small keys are more frequent than large ones: equal parts do not come by themselves.
fn random_keys(number: usize, seed: u64) -> Vec<u64> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    (0..number).map(|_| u64::from(random.random::<u32>()) * u64::from(random.random::<u32>())).collect()
}

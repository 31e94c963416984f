//! Data-parallel training: every rank has the same model and a part of the samples. At each step the ranks add
//! up their gradients by `all_reduce`, and all take the same step downhill. Shows that call, a broadcast, and
//! their cost beside the arithmetic.
//!
//! ```sh
//! cargo run --release --example allreduce_sgd
//! deckrun -n 4 target/release/examples/allreduce_sgd --weights 2000 --steps 500
//! ```
//!
//! The samples come from known weights (and some noise), which the model has to find. The model has to be the
//! same on all ranks, to the last bit.

use std::time::{Duration, Instant};

use clap::Parser;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use udeck::{Group, op};

/// Finds the weights of a linear model by stochastic gradient descent, with the samples spread over the ranks.
#[derive(Parser)]
struct Options {
    /// Weights of the model
    #[arg(long, default_value_t = 1000)]
    weights: usize,
    /// Steps downhill
    #[arg(long, default_value_t = 200)]
    steps: usize,
}

/// Samples of a step, for each weight.
const BATCH: usize = 4;
/// Number of different batches.
const BATCHES: usize = 4;
/// Length of a step, as a multiple of the gradient.
const RATE: f64 = 1.0;
/// Upper bound of each output's error. The weights that are found must not be farther off.
const NOISE: f64 = 0.01;

fn main() -> udeck::Result {
    let options = Options::parse();
    let world = udeck::init()?;
    let all = world.all()?; // the group of all ranks
    let known = known_weights(all, options.weights)?;
    let batches: Vec<Batch> = (0..BATCHES).map(|number| Batch::new(all, number, &known)).collect();

    let mut model = vec![0.0; options.weights];
    let mut adding_up = Duration::ZERO;
    all.barrier()?;
    let started = Instant::now();
    for step in 0..options.steps {
        // The gradient, and behind it the loss: one call adds up both.
        let mut sums = batches[step % BATCHES].gradient_and_loss(&model);
        let before = Instant::now();
        all.all_reduce(&mut sums, op::Sum)?;
        adding_up += before.elapsed(); // with the wait for the slowest rank

        let samples = (BATCH * options.weights) as f64;
        let (loss, gradient) = sums.split_last().expect("the loss is there");
        for (weight, slope) in model.iter_mut().zip(gradient) {
            *weight -= RATE * slope / samples;
        }
        if all.rank() == 0 && (step < 4 || step + 1 == options.steps) {
            println!("step {}: the mean square error was {:.2e}", step + 1, loss / samples);
        }
    }
    let took = started.elapsed();

    check_equal(all, &model)?;
    let far = model.iter().zip(&known).map(|(weight, known)| (weight - known).abs()).fold(0.0, f64::max);
    if all.rank() == 0 {
        let per_step = |time: Duration| time.as_secs_f64() * 1e3 / options.steps as f64;
        let (step, reduce) = (per_step(took), per_step(adding_up));
        println!("{step:.2} ms a step on {} ranks, {reduce:.2} ms of it in all_reduce", all.size());
        println!("the weights are off by at most {far:.1e}, and are the same on all ranks");
    }
    assert!(far < NOISE, "the weights are not those that are known; are {} steps too few?", options.steps);
    world.finish()
}

/// Rank 0 draws the weights, and broadcasts them.
fn known_weights(all: &Group, number: usize) -> udeck::Result<Vec<f64>> {
    let mut weights = vec![0.0; number];
    if all.rank() == 0 {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(0);
        weights.fill_with(|| random.random_range(-1.0..1.0));
    }
    all.broadcast(0, &mut weights)?;
    Ok(weights)
}

/// This rank's share of a batch.
struct Batch {
    /// The inputs of all samples: for each sample one per weight.
    inputs: Vec<f64>,
    /// The outputs: one per sample.
    outputs: Vec<f64>,
}

impl Batch {
    /// Makes this rank's samples. A sample depends on its number only, and so the samples are the same on any
    /// number of ranks.
    fn new(all: &Group, number: usize, known: &[f64]) -> Self {
        let (rank, ranks, samples) = (all.rank(), all.size(), BATCH * known.len());
        let share = rank * samples / ranks..(rank + 1) * samples / ranks;
        let mut batch = Batch { inputs: Vec::new(), outputs: Vec::new() };
        for sample in share {
            let mut random = Xoshiro256PlusPlus::seed_from_u64((1 + number * samples + sample) as u64);
            let inputs: Vec<f64> = known.iter().map(|_| random.random_range(-1.0..1.0)).collect();
            batch.outputs.push(dot(&inputs, known) + random.random_range(-NOISE..NOISE));
            batch.inputs.extend(inputs);
        }
        batch
    }

    /// Returns this rank's part of the gradient of the error, and last its part of the error itself.
    fn gradient_and_loss(&self, model: &[f64]) -> Vec<f64> {
        let (mut gradient, mut loss) = (vec![0.0; model.len()], 0.0);
        for (inputs, output) in self.inputs.chunks_exact(model.len()).zip(&self.outputs) {
            let error = dot(inputs, model) - output;
            loss += error * error;
            for (slope, input) in gradient.iter_mut().zip(inputs) {
                *slope += error * input;
            }
        }
        gradient.push(loss);
        gradient
    }
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

/// Checks that all models are equal: if the least and the greatest of all ranks have the same bits, so have
/// all.
fn check_equal(all: &Group, model: &[f64]) -> udeck::Result {
    let bits: Vec<u64> = model.iter().map(|weight| weight.to_bits()).collect();
    let (mut least, mut greatest) = (bits.clone(), bits);
    all.all_reduce(&mut least, op::Min)?;
    all.all_reduce(&mut greatest, op::Max)?;
    assert!(least == greatest, "rank {}: the ranks have different weights", all.rank());
    Ok(())
}

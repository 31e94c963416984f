//! Pi, as the integral of 4 / (1 + x²) from 0 to 1 by the midpoint rule: each rank sums its share of the
//! strips, rank 0 adds the partial sums.
//!
//! ```sh
//! cargo run --release --example pi
//! deckrun -n 4 target/release/examples/pi
//! ```

use std::f64::consts::PI;

const STRIPS: usize = 1_000_000;

fn main() -> udeck::Result {
    let world = udeck::init()?;
    let part = strips(world.rank(), world.size());

    if world.rank() == 0 {
        let parts = world.mailbox::<f64>("parts")?;
        let mut pi = part;
        for part in parts.iter().take(world.size() - 1) {
            pi += part?[0];
        }
        println!("pi is about {pi:.12}, off by {:.1e}", (pi - PI).abs());
        // The rule's error is 1 / (12 n²), far below the rounding errors of a million additions.
        assert!((pi - PI).abs() < 1e-10);
    } else {
        let mut message = world.buf::<f64>(1)?;
        message[0] = part;
        world.postbox::<f64>("parts")?.post(message)?;
    }
    world.finish()
}

/// Sums every `step`-th strip, from `first` on.
fn strips(first: usize, step: usize) -> f64 {
    let width = 1.0 / STRIPS as f64;
    let height = |strip: usize| {
        let x = (strip as f64 + 0.5) * width;
        4.0 / (1.0 + x * x)
    };
    (first..STRIPS).step_by(step).map(height).sum::<f64>() * width
}

//! Replay: runs a test over many seeds, and repeats a failing one.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use udeck_via::stderr_line;

use crate::Fabric;

/// Environment variable that names the only seed to run.
pub const VARIABLE: &str = "DECK_SIM_SEED";

/// Runs `test` on a fabric of each seed below `count`, or only on the seed that `DECK_SIM_SEED` names. When the test
/// panics, prints the seed and how to run it again, and resumes the panic.
///
/// # Panics
/// When `test` does, and when the variable is no number.
pub fn seeds(count: u64, test: impl Fn(&Fabric)) {
    let chosen = std::env::var(VARIABLE).ok();
    let chosen =
        chosen.map(|seed| seed.parse().unwrap_or_else(|_| panic!("{VARIABLE} is {seed:?}, not a seed")));
    each(chosen.map_or(0..count, |seed| seed..seed + 1), test);
}

fn each(seeds: std::ops::Range<u64>, test: impl Fn(&Fabric)) {
    for seed in seeds {
        let fabric = Fabric::new(seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(&fabric))) {
            stderr_line(format_args!("failed with seed {seed}; to see it again: {VARIABLE}={seed}"));
            resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn all_seeds_run_until_one_fails() {
        let ran = RefCell::new(Vec::new());
        let failed = catch_unwind(AssertUnwindSafe(|| {
            each(0..10, |fabric| {
                let seed = fabric.seed();
                ran.borrow_mut().push(seed);
                assert_ne!(seed, 3, "as planned");
            });
        }));
        assert!(failed.is_err(), "the panic goes on");
        assert_eq!(*ran.borrow(), [0, 1, 2, 3]);
    }
}

//! Barriers wait for ranks that compute, and know for whom they wait.

mod common;

use std::time::Duration;

use common::{Event, config, ranks_with};
use udeck::Error;

/// What set-up may take bounds the connecting, not what a rank does before its first barrier.
#[test]
fn a_rank_may_come_to_its_first_barrier_later_than_set_up_may_take() {
    const SETUP: Duration = Duration::from_secs(2);
    let mut config = config();
    config.setup = SETUP;
    ranks_with(3, &config, |world| {
        if world.rank() == 1 {
            // It computes. Should the others come later still, the test is only easier.
            std::thread::sleep(SETUP + SETUP / 4);
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn a_barrier_says_who_has_come_to_none() {
    let gave_up = Event::new();
    let mut config = config();
    config.deadline = Duration::from_millis(50);
    ranks_with(2, &config, move |world| {
        if world.rank() == 0 {
            let error = world.barrier().unwrap_err();
            assert!(matches!(error, Error::Deadline { .. }), "{error}");
            assert!(error.to_string().contains("waited for rank 1"), "{error}");
            gave_up.happen();
        } else {
            gave_up.wait();
        }
        world.finish()
    });
}

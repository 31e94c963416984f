//! Barriers wait for all ranks, also for ranks that compute, with every plan, and know which ranks are missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Event, LONG, SHORT, config, ranks_believing, ranks_with};
use udeck::Error;

/// The ranks' beliefs about oversubscription: all plans, and ranks that would choose differently.
const BELIEFS: [fn(u32) -> bool; 4] = [|_| true, |_| false, |rank| rank == 0, |rank| rank != 0];

#[test]
fn nobody_passes_before_all_have_come() {
    const BARRIERS: usize = 20;
    for oversubscribed in BELIEFS {
        for size in [1, 2, 3, 4, 7, 18] {
            let came = Arc::new(AtomicUsize::new(0));
            let came_by_all = move |world: udeck::World| {
                for barrier in 1..=BARRIERS {
                    came.fetch_add(1, Ordering::Relaxed);
                    world.barrier()?;
                    let came = came.load(Ordering::Relaxed);
                    assert!(came >= barrier * world.size(), "{came} had come to barrier {barrier}");
                }
                world.finish()
            };
            ranks_believing(size, |_| config(), oversubscribed, came_by_all);
        }
    }
}

/// Ranks above 16 are two levels from rank 0 in a tree.
#[test]
fn a_wait_that_gave_up_goes_on_where_it_was() {
    for oversubscribed in BELIEFS {
        let gave_up = Arc::new(AtomicUsize::new(0));
        let body = move |world: udeck::World| {
            world.barrier()?; // connected
            for late in [1, 17] {
                if world.rank() == late {
                    all_gave_up_of(&gave_up, world.size());
                } else {
                    let error = world.barrier_timeout(SHORT).unwrap_err();
                    assert!(matches!(error, Error::Deadline { .. }), "{error}");
                    gave_up.fetch_add(1, Ordering::Relaxed);
                }
                world.barrier()?;
                gave_up.store(0, Ordering::Relaxed);
                world.barrier()?;
            }
            world.finish()
        };
        ranks_believing(18, |_| config(), oversubscribed, body);
    }
}

/// Waits, outside the library, until all other ranks of `size` have given up.
fn all_gave_up_of(gave_up: &AtomicUsize, size: usize) {
    while gave_up.load(Ordering::Relaxed) < size - 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_barrier_names_all_that_it_waits_for() {
    let gave_up = Event::new();
    ranks_with(5, &config(), move |world| {
        world.barrier()?;
        match world.rank() {
            0 => {
                let mut tries = (0..LONG.as_millis() / SHORT.as_millis())
                    .map(|_| world.barrier_timeout(SHORT).expect_err("two are missing").to_string());
                // Ranks 2 and 4 may come later.
                let named = tries.any(|error| error.contains("waited for ranks 1, 3 (or ranks"));
                assert!(named, "{:?}", world.barrier_timeout(SHORT));
                gave_up.happen();
            }
            1 | 3 => gave_up.wait(),
            _ => {}
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn a_rank_that_finished_comes_to_no_barrier() {
    for oversubscribed in BELIEFS {
        ranks_believing(
            3,
            |_| config(),
            oversubscribed,
            |world| {
                world.barrier()?;
                if world.rank() == 2 {
                    return world.finish();
                }
                let error = world.barrier().unwrap_err();
                assert!(matches!(error, Error::PeerLost { .. }), "{error}");
                world.finish()
            },
        );
    }
}

/// The setup timeout bounds the connecting, not the time that a rank takes before its first barrier.
#[test]
fn a_rank_may_come_to_its_first_barrier_later_than_set_up_may_take() {
    const SETUP: Duration = Duration::from_secs(2);
    let mut config = config();
    config.setup = SETUP;
    ranks_with(3, &config, |world| {
        if world.rank() == 1 {
            // Rank 1 computes. If the others are even later, the test is only easier.
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

/// The first barrier of a rank makes the group, and waits for rank 0.
#[test]
fn a_thread_waits_no_longer_than_it_wants_for_another_one_s_first_barrier() {
    let gave_up = [Event::new(), Event::new()];
    ranks_with(3, &config(), move |world| {
        if world.rank() == 0 {
            gave_up.iter().for_each(|event| event.wait());
        }
        std::thread::scope(|scope| {
            let first = scope.spawn(|| world.barrier());
            if world.rank() > 0 {
                std::thread::sleep(SHORT); // whichever of the two is the first
                let second = world.barrier_timeout(SHORT);
                assert!(matches!(second, Err(Error::Deadline { .. })), "{second:?}");
                gave_up[world.rank() - 1].happen();
            }
            first.join().expect("it panicked")
        })?;
        world.finish()
    });
}

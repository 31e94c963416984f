//! Calls with deadlines of their own.

use std::time::{Duration, Instant};

use crate::common::{LONG, SHORT, alone, assert_pattern, len_and_source, patterned, ranks};
use udeck::{Error, Result};

#[test]
fn waits_end_when_the_call_says_so() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            world.barrier()?; // the postbox is made
            world.barrier()?; // its flush was in vain
            assert_pattern(&inbox.retrieve()?, 1, 100);
            let mut to = [0; 100];
            let start = Instant::now();
            let errors = [
                inbox.within(SHORT).retrieve_into(&mut to).unwrap_err(),
                inbox.iter_timeout(SHORT).next().unwrap().unwrap_err(),
            ];
            assert!(start.elapsed() >= 2 * SHORT);
            for error in errors {
                let Error::Deadline { waited, whom, .. } = &error else { panic!("{error}") };
                assert!(!waited.is_zero() && *waited < LONG && whom.contains("rank 1"), "{error}");
            }
            assert_eq!(inbox.try_retrieve_into(&mut to)?, None);
        } else {
            let out = world.postbox::<u8>("in")?;
            world.barrier()?;
            out.post(patterned(&world, 1, 100)?)?;
            let start = Instant::now();
            let error = out.flush_timeout(SHORT).unwrap_err();
            assert!(start.elapsed() >= SHORT);
            assert!(matches!(&error, Error::Deadline { waited, .. } if !waited.is_zero()), "{error}");
            world.barrier()?;
            out.flush_timeout(LONG)?;
            world.barrier()?;
            return world.finish();
        }
        world.barrier()?;
        world.finish_timeout(LONG)
    });
}

#[test]
fn a_barrier_that_ran_out_of_time_is_waited_for_again() {
    ranks(3, |world| {
        world.barrier()?;
        if world.rank() == 2 {
            let inbox = world.mailbox::<u8>("late")?;
            inbox.retrieve()?;
            inbox.retrieve()?;
        } else {
            let error = world.barrier_timeout(SHORT).unwrap_err();
            assert!(matches!(&error, Error::Deadline { whom, .. } if whom.contains("rank")), "{error}");
            // Many more attempts tell the others nothing new: otherwise the rings would fill.
            for _ in 0..400 {
                let error = world.barrier_timeout(Duration::ZERO).unwrap_err();
                assert!(matches!(&error, Error::Deadline { what, .. } if what == "the barrier"), "{error}");
            }
            world.postbox::<u8>("late")?.post(world.buf(1)?)?;
        }
        for _ in 0..5 {
            world.barrier_timeout(LONG)?;
        }
        world.finish()
    });
}

#[test]
fn a_try_into_a_buffer_takes_what_fits_and_leaves_what_does_not() {
    let world = alone(8 << 20);
    let inbox = world.mailbox::<u16>("in").unwrap();
    let out = world.postbox::<u16>("in").unwrap();
    let mut to = [0; 50];
    assert_eq!(inbox.try_retrieve_into(&mut to).unwrap(), None);
    for (seed, len) in [50, 51, 3].into_iter().enumerate() {
        out.post(patterned(&world, seed, len).unwrap()).unwrap();
    }
    assert_eq!(inbox.try_retrieve_into(&mut to).unwrap().map(len_and_source), Some((50, 0)));
    assert_pattern(&to, 0, 50);
    for _ in 0..2 {
        let error = inbox.try_retrieve_into(&mut to).unwrap_err();
        assert!(matches!(error, Error::TooSmall { needed: 51, have: 50, rank: 0 }), "{error}");
    }
    let rest: Result<Vec<_>> = inbox.iter_timeout(LONG).take(2).collect();
    let rest = rest.unwrap();
    assert_pattern(&rest[0], 1, 51);
    assert_pattern(&rest[1], 2, 3);
}

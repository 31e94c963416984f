//! Requests: collective calls that return at once.

use std::time::Duration;

use udeck::op::{Max, Sum};
use udeck::{Error, World};

use crate::common::{Event, SHORT, config, ranks_believing, ranks_over};
use crate::tasks::block_on;

fn several_at_once(world: World) -> udeck::Result {
    let (all, size) = (world.all()?, world.size());
    let me = all.rank();
    for round in 0..30 {
        let sum = all.all_reduce_nonblocking(vec![me as u64; 500], Sum)?;
        let shared = all.broadcast_nonblocking(round % size, vec![me; 3])?;
        let largest = all.reduce_nonblocking(0, world.buf::<u64>(20_000)?, Max)?;
        let whole = all.all_gather_nonblocking([me as u16; 2], vec![0; 2 * size])?;
        let exchanged = all.all_to_all_nonblocking(vec![me; size], vec![0; size])?;
        let barrier = all.barrier_nonblocking()?;
        // Blocking calls may come in between, and the requests end in any order.
        let mut count = [1];
        all.all_reduce(&mut count, Sum)?;
        assert_eq!(count, [size]);
        barrier.wait()?;
        assert_eq!(exchanged.wait()?, (0..size).collect::<Vec<_>>());
        let total = (size * (size - 1) / 2) as u64;
        assert_eq!(sum.wait()?, vec![total; 500]);
        assert_eq!(shared.wait()?, [round % size; 3]);
        assert_eq!(largest.wait()?.len(), 20_000);
        let expected: Vec<u16> = (0..size as u16).flat_map(|of| [of; 2]).collect();
        assert_eq!(whole.wait()?, expected);
    }
    world.finish()
}

#[test]
fn several_are_under_way_at_once() {
    for size in [1, 2, 5] {
        ranks_believing(size, |_| config(), |_| size > 2, several_at_once);
    }
    ranks_over("tcp", 3, |_| config(), |_| 3 > 2, several_at_once);
}

#[test]
fn a_request_borrows_what_it_works_on_and_tells_when_it_is_done() {
    ranks_believing(
        2,
        |_| config(),
        |_| false,
        |world| {
            let all = world.all()?;
            let mut mine = [1.5; 40];
            let mut request = all.all_reduce_nonblocking(&mut mine[..], Sum)?;
            while !request.is_done() {
                std::thread::yield_now();
            }
            assert!(request.wait_timeout(Duration::ZERO)?.iter().all(|sum| *sum == 3.0));
            let error = request.wait_timeout(Duration::ZERO).unwrap_err();
            assert!(error.to_string().contains("given already"), "{error}");
            drop(request);
            assert_eq!(mine, [3.0; 40]);
            world.finish()
        },
    );
}

#[test]
fn a_request_that_is_late_can_be_waited_for_again() {
    let gave_up = Event::new();
    ranks_believing(
        2,
        |_| config(),
        |_| false,
        move |world| {
            let all = world.all()?;
            all.barrier()?;
            if all.rank() == 0 {
                let mut request = all.all_reduce_nonblocking(vec![1], Sum)?;
                let error = request.wait_timeout(SHORT).unwrap_err();
                assert!(matches!(error, Error::Deadline { .. }), "{error}");
                assert!(error.to_string().contains("waited for rank 1"), "{error}");
                gave_up.happen();
                assert_eq!(request.wait()?, [3]);
            } else {
                gave_up.wait();
                assert_eq!(all.all_reduce_nonblocking(vec![2], Sum)?.wait()?, [3]);
            }
            all.barrier()?;
            world.finish()
        },
    );
}

#[test]
fn requests_are_futures() {
    let far = Event::new();
    ranks_believing(
        3,
        |_| config(),
        |_| true,
        move |world| {
            let all = world.all()?;
            // Long enough for the others to sleep.
            if all.rank() == 2 {
                far.wait();
            }
            let (sum, barrier) =
                (all.all_reduce_nonblocking(vec![1; 9000], Sum)?, all.barrier_nonblocking()?);
            if all.rank() == 0 {
                std::thread::sleep(SHORT);
                far.happen();
            }
            block_on(async {
                barrier.await?;
                assert_eq!(sum.await?, [3; 9000]);
                Ok::<(), Error>(())
            })?;
            all.barrier()?;
            world.finish()
        },
    );
}

#[test]
fn a_request_that_is_dropped_ends_the_group() {
    ranks_believing(
        2,
        |_| config(),
        |_| false,
        |world| {
            let rank = world.rank();
            let some = world.group("some", &[0, 1])?;
            let mut request = some.all_reduce_nonblocking(vec![1], Sum)?;
            if rank == 1 {
                assert_eq!(request.wait()?, [2]);
                world.barrier()?;
                return world.finish();
            }
            // Its part may be over; a second one's is not.
            while !request.is_done() {
                std::thread::yield_now();
            }
            let never = some.all_reduce_nonblocking(vec![1], Sum)?;
            drop(never);
            let error = some.barrier().unwrap_err();
            assert!(matches!(error, Error::GroupFailed { .. }), "{error}");
            assert!(error.to_string().contains("was dropped before its end"), "{error}");
            world.barrier()?;
            world.finish()
        },
    );
}

//! Surprises about other members, requests, or lengths: no wait lasts for ever, and no data are wrong.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use udeck::op::Sum;
use udeck::{Error, Request, Result, World};

use crate::common::clock::within_deadline;
use crate::common::{Event, LONG, SHORT, config, ranks_believing};
use crate::waiting::tasks::block_on;

/// Length in bytes of the pieces of long data.
const PIECE: usize = 128 << 10;

fn two(body: impl Fn(World) -> Result + Send + Sync + 'static) {
    ranks_believing(2, |_| config(), |_| false, body);
}

/// Waits until this rank has been told that another one has ended.
fn await_an_end(world: &World) {
    let begun = Instant::now();
    while world.exited_ranks().next().is_none() {
        assert!(begun.elapsed() < LONG, "nobody has ended");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The root sends whole pieces more than the others expect: they get all that they expect, and the rest is not taken for data of
/// a later call.
#[test]
fn parts_that_are_left_over_are_found() {
    two(|world| {
        let (all, rank) = (world.all()?, world.rank());
        all.barrier()?;
        for round in 0..600_usize {
            let pieces = if round == 0 && rank == 0 { 2 } else { 1 };
            let mut data = vec![round as u8; pieces * PIECE];
            match all.broadcast(0, &mut data) {
                Ok(()) => assert!(data.iter().all(|byte| *byte == round as u8), "round {round}"),
                Err(error @ Error::CallMismatch { .. }) if rank == 1 => {
                    assert!(error.to_string().contains("broadcast of u8 with root 0"), "{error}");
                    return world.finish();
                }
                Err(Error::GroupFailed { .. } | Error::PeerLost { .. }) if rank == 0 => {
                    return world.finish();
                }
                Err(error) => return Err(error),
            }
        }
        panic!("rank {rank} was not told");
    });
}

/// A member that has sent everything and finished is not missed while another one is waited for.
#[test]
fn a_future_does_not_miss_who_has_finished_after_its_part() {
    let (begun, polled) = (Event::new(), Event::new());
    ranks_believing(
        3,
        |_| config(),
        |_| true,
        move |world| {
            let (all, rank) = (world.all()?, world.rank());
            all.barrier()?;
            if rank > 0 {
                if rank == 1 { &begun } else { &polled }.wait();
                all.reduce(0, &mut [1], Sum)?;
                return world.finish();
            }
            let mut request = all.reduce_nonblocking(0, vec![1], Sum)?;
            begun.happen();
            await_an_end(&world);
            // The data of rank 1 have been taken, and the request waits for rank 2.
            let first = Pin::new(&mut request).poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(first, Poll::Pending), "{first:?}");
            polled.happen();
            assert_eq!(block_on(request)?, [3]);
            world.finish()
        },
    );
}

/// Polls until the request is over.
fn ask<R>(request: &mut Request<'_, R>) {
    let begun = Instant::now();
    while !request.is_done() {
        assert!(begun.elapsed() < LONG / 3, "it is not told that it is over");
        std::thread::yield_now();
    }
}

#[test]
fn who_asks_a_request_is_told_that_a_member_has_finished() {
    two(|world| {
        let all = world.all()?;
        all.barrier()?;
        if world.rank() == 1 {
            return world.finish();
        }
        let mut request = all.broadcast_nonblocking(1, vec![1])?;
        ask(&mut request);
        let error = request.wait().unwrap_err();
        assert!(matches!(error, Error::PeerLost { rank: 1, .. }), "{error}");
        world.finish()
    });
}

/// The request waits for a part that its member will not send.
#[test]
fn requests_of_a_group_that_has_failed_are_over() {
    let begun = [Event::new(), Event::new()];
    let gave_up = [Event::new(), Event::new()];
    let over = [Event::new(), Event::new()];
    two(move |world| {
        for (nth, (begun, gave_up)) in begun.iter().zip(&gave_up).enumerate() {
            let some = world.group("some", &[0, 1])?;
            // Eight pieces are sent ahead; rank 1 sends its ninth after it has the other rank's first, and is
            // polled.
            if world.rank() == 0 {
                begun.wait();
            }
            let mut request = some.all_reduce_nonblocking(vec![1_u8; 10 * PIECE], Sum)?;
            if world.rank() == 1 {
                begun.happen();
                let error = some.within(SHORT).all_reduce(&mut [1], Sum).unwrap_err();
                assert!(matches!(error, Error::Deadline { .. }), "{error}");
                gave_up.happen();
                over[nth].wait(); // a member that drops the group is missed
            } else {
                gave_up.wait();
                // The data of rank 1 may be enough for the first request.
                let error = some.all_reduce(&mut [1], Sum).and_then(|()| some.barrier()).unwrap_err();
                assert!(matches!(error, Error::GroupFailed { .. }), "{error}");
                let error = match nth {
                    0 => request.wait_timeout(LONG / 3).map(drop).unwrap_err(),
                    _ => {
                        ask(&mut request);
                        block_on(request).map(drop).unwrap_err()
                    }
                };
                assert!(matches!(error, Error::GroupFailed { .. }), "{error}");
                over[nth].happen();
            }
        }
        world.finish()
    });
}

/// A barrier that timed out goes on, unless its group has failed since.
#[test]
fn a_late_barrier_of_a_group_that_has_failed_is_over() {
    let over = Event::new();
    two(move |world| {
        let all = world.all()?;
        all.barrier()?;
        if world.rank() == 1 {
            over.wait();
            return world.finish();
        }
        let request = all.broadcast_nonblocking(1, vec![1])?;
        assert!(matches!(all.barrier_timeout(SHORT).unwrap_err(), Error::Deadline { .. }));
        drop(request);
        let error = all.barrier_timeout(LONG / 3).unwrap_err();
        assert!(matches!(error, Error::GroupFailed { .. }), "{error}");
        over.happen();
        world.finish()
    });
}

/// A call waits for a member that has not made the group of all ranks yet at most its own deadline, not the
/// world's.
#[test]
fn the_first_call_has_its_own_deadline() {
    let over = Event::new();
    two(move |world| {
        if world.rank() == 1 {
            over.wait();
            return world.finish();
        }
        let all = world.all()?;
        let late = |result: Result| {
            let error = result.unwrap_err();
            assert!(
                matches!(error, Error::Deadline { .. }) && error.to_string().contains("rank 1"),
                "{error}"
            );
        };
        late(within_deadline(SHORT, "a barrier", || all.barrier_timeout(SHORT)));
        late(within_deadline(SHORT, "the same", || all.within(SHORT).barrier()));
        over.happen();
        world.finish()
    });
}

#[test]
fn a_request_begins_at_once_although_nobody_has_come() {
    let begun = Event::new();
    two(move |world| {
        if world.rank() == 1 {
            begun.wait();
        }
        let all = world.all()?;
        let mut request = within_deadline(Duration::ZERO, "to begin", || {
            all.all_reduce_nonblocking(vec![world.rank()], Sum)
        })?;
        if world.rank() == 0 {
            assert!(!within_deadline(Duration::ZERO, "to ask", || request.is_done()));
            let error = within_deadline(SHORT, "to wait", || request.wait_timeout(SHORT).unwrap_err());
            assert!(matches!(error, Error::Deadline { .. }), "{error}");
            begun.happen();
        }
        assert_eq!(request.wait()?, [1]);
        all.barrier()?;
        world.finish()
    });
}

/// Number of calls after which all members wait for each other, also as a part of a request.
const SYNCHRONIZE: usize = 64;

/// A member that does not wait for its requests is ahead of the others by no more calls than can be
/// distinguished.
#[test]
fn requests_do_not_run_ahead_of_what_calls_are_numbered_by() {
    let far = Event::new();
    two(move |world| {
        let (all, rank) = (world.all()?, world.rank());
        // The number of calls is so large that each sequence number was used before.
        for _ in 0..5 * (SYNCHRONIZE - 1) {
            all.barrier()?;
        }
        if rank == 1 {
            far.wait();
        }
        let mut begun: Vec<(u32, Request<'_, Vec<u32>>)> = Vec::new();
        let end_all = |begun: &mut Vec<(u32, Request<'_, Vec<u32>>)>| -> Result {
            far.happen();
            begun.drain(..).try_for_each(|(round, request)| {
                assert_eq!(request.wait()?, [round]);
                Ok(())
            })
        };
        for round in 0..5 {
            let begin = || all.broadcast_nonblocking(0, vec![if rank == 0 { round } else { 99 }]);
            let request = match begin() {
                Err(Error::WouldBlock { .. }) => {
                    end_all(&mut begun)?;
                    begin()?
                }
                other => other?,
            };
            begun.push((round, request));
            for nth in 0..SYNCHRONIZE as u64 - 2 {
                let mut value = [if rank == 0 { nth } else { 99 }];
                all.broadcast(0, &mut value)?;
                assert_eq!(value, [nth]);
            }
        }
        end_all(&mut begun)?;
        all.barrier()?;
        world.finish()
    });
}

#[test]
fn colours_are_any_numbers() {
    two(|world| {
        let all = world.all()?;
        let colour = if world.rank() == 0 { Some(usize::MAX) } else { None };
        let part = all.split(colour, i64::MIN)?;
        assert_eq!(part.map(|part| part.ranks().to_vec()), colour.map(|_| vec![0]));
        let both = all.split(Some(usize::MAX), -(world.rank() as i64))?.expect("a colour");
        assert_eq!(both.ranks(), [1, 0]);
        both.barrier()?;
        world.finish()
    });
}

/// This includes parts that the member lists for itself.
#[test]
fn a_member_takes_all_that_it_sends_to_itself() {
    two(|world| {
        let (all, me) = (world.all()?, world.rank());
        let [mut first, mut second] = [[0; 2], [0; 2]];
        all.neighbours(&[(me, &[1, 2][..]), (me, &[3, 4])], &mut [(me, &mut first[..]), (me, &mut second)])?;
        assert_eq!((first, second), ([1, 2], [3, 4]));
        let error = all.neighbours(&[(me, &[1][..]), (me, &[2])], &mut [(me, &mut first[..1])]).unwrap_err();
        assert!(matches!(error, Error::CallMismatch { .. }), "{error}");
        world.finish()
    });
}

/// The number of parts is larger than the number of early messages that a member keeps.
#[test]
fn neighbours_have_as_many_parts_as_wanted() {
    const PARTS: usize = 200_000;
    two(|world| {
        let (all, me) = (world.all()?, world.rank());
        let other = 1 - me;
        let part = |from: usize, nth: usize| [(nth * 3 + from) as u8, (nth >> 8) as u8];
        let mine: Vec<[u8; 2]> = (0..PARTS).map(|nth| part(me, nth)).collect();
        let mut theirs = vec![[0_u8; 2]; PARTS];
        // The exchange runs twice, with other calls in between, whose messages may be kept, too.
        for len in [PARTS, PARTS / 2] {
            let to: Vec<(usize, &[u8])> = mine[..len].iter().map(|part| (other, &part[..])).collect();
            let mut from: Vec<(usize, &mut [u8])> =
                theirs[..len].iter_mut().map(|part| (other, &mut part[..])).collect();
            all.neighbours(&to, &mut from)?;
            assert!((0..len).all(|nth| theirs[nth] == part(other, nth)));
            theirs.fill([0; 2]);
        }
        all.barrier()?;
        world.finish()
    });
}

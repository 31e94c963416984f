//! Operators that panic, or make a forbidden call; and threads that meet in one group.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use udeck::op::{Sum, in_order};
use udeck::{Error, Group, Result, World};

use crate::common::{Event, LONG, SHORT, config, ranks_believing};

fn ranks(size: u32, body: impl Fn(World) -> Result + Send + Sync + 'static) {
    ranks_believing(size, |_| config(), |_| size > 2, body);
}

fn assert_failed(error: &Error, words: &[&str]) {
    assert!(matches!(error, Error::GroupFailed { .. }), "{error}");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

/// No member waits for its deadline, and no other member is blamed.
#[test]
fn an_operator_that_panics_fails_the_call_at_all_members() {
    type Reduce = fn(&Group, &dyn Fn(u32, u32) -> u32) -> Result;
    let calls: [Reduce; 4] = [
        |all, op| all.all_reduce(&mut [1], op),
        |all, op| all.all_reduce(&mut vec![1; 100_000], op),
        |all, op| all.scan(&mut [1], op).and_then(|()| all.barrier()),
        |all, op| all.all_reduce(&mut [1], in_order(op)),
    ];
    for (nth, call) in calls.into_iter().enumerate() {
        let over = [Event::new(), Event::new(), Event::new()];
        ranks(3, move |world| {
            let all = world.all()?.within(LONG / 3);
            all.barrier()?;
            let rank = world.rank();
            if rank == 1 {
                let panicked = catch_unwind(AssertUnwindSafe(|| call(&all, &|_, _| panic!("on purpose"))));
                assert!(panicked.is_err(), "{nth}: it goes on");
                assert_failed(&all.barrier().unwrap_err(), &["earlier", "panicked: on purpose"]);
            } else {
                let error = call(&all, &|a, b| a + b).and_then(|()| all.barrier()).unwrap_err();
                assert_failed(&error, &["at rank 1 an earlier", "panicked: on purpose"]);
            }
            over[rank].happen();
            over.iter().for_each(|one| one.wait());
            world.finish()
        });
    }
}

#[test]
fn a_request_whose_operator_panics_is_over() {
    let over = [Event::new(), Event::new()];
    ranks(2, move |world| {
        let (all, rank) = (world.all()?.within(LONG / 3), world.rank());
        all.barrier()?;
        let op = move |a: u32, b: u32| if rank == 1 { panic!("on purpose") } else { a + b };
        if rank == 1 {
            // The panic may happen while the request is started.
            let mut request = None;
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let request = request.insert(all.all_reduce_nonblocking(vec![1], op)?);
                request.wait_timeout(LONG / 3)
            }));
            assert!(panicked.is_err(), "the panic goes on");
            if let Some(mut request) = request {
                let error = request.wait_timeout(LONG / 3).unwrap_err();
                assert!(error.to_string().contains("panicked: on purpose"), "{error}");
            }
            assert_failed(&all.barrier().unwrap_err(), &["earlier", "panicked: on purpose"]);
        } else {
            let error =
                all.all_reduce_nonblocking(vec![1], op)?.wait().and_then(|_| all.barrier()).unwrap_err();
            assert_failed(&error, &["at rank 1 an earlier", "panicked: on purpose"]);
        }
        over[rank].happen();
        over.iter().for_each(|one| one.wait());
        world.finish()
    });
}

/// The operator's call gets an error, and the call that runs the operator goes on.
#[test]
fn an_operator_that_calls_its_own_group_gets_an_error() {
    for size in [2, 3] {
        ranks(size, move |world| {
            let all = world.all()?;
            let mut asked = all.barrier_nonblocking()?;
            let is_under_way = !asked.is_done();
            let asked = Mutex::new(asked);
            let refused = || {
                let mut refused = vec![
                    all.barrier(),
                    all.all_reduce(&mut [1], Sum),
                    all.split(Some(0), 0).map(drop),
                    all.all_reduce_nonblocking(vec![1], Sum).map(drop),
                ];
                if is_under_way {
                    refused.push(asked.lock().unwrap().wait_timeout(LONG));
                    assert!(!asked.lock().unwrap().is_done());
                }
                for error in refused.into_iter().map(Result::unwrap_err) {
                    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
                    assert!(error.to_string().contains("from within another call of the group"), "{error}");
                }
            };
            let op = |a: u32, b: u32| {
                refused();
                a + b
            };
            let mut sum = [1];
            all.all_reduce(&mut sum, op)?;
            assert_eq!(sum, [size]);
            sum = [1];
            all.scan(&mut sum, in_order(op))?;
            assert_eq!(sum, [world.rank() as u32 + 1]);
            assert_eq!(all.all_reduce_nonblocking(vec![1], op)?.wait()?, [size]);
            asked.into_inner().unwrap().wait()?;
            all.barrier()?;
            world.finish()
        });
    }
}

/// A second thread waits for the first one at most its own time limit, and a call that does not wait returns at
/// once.
#[test]
fn a_thread_that_finds_its_group_taken_waits_as_long_as_it_may() {
    let (begun, inside, go_on) = (Event::new(), Event::new(), Event::new());
    ranks(2, move |world| {
        let all = world.all()?;
        if world.rank() == 1 {
            begun.wait();
            let barrier = all.barrier_nonblocking()?;
            all.all_reduce(&mut [1], |a: u32, b: u32| a + b)?;
            barrier.wait()?;
            return world.finish();
        }
        let mut barrier = all.barrier_nonblocking()?;
        begun.happen();
        std::thread::scope(|threads| {
            let first = threads.spawn(|| {
                let op = |a: u32, b: u32| {
                    inside.happen();
                    go_on.wait();
                    a + b
                };
                all.all_reduce(&mut [1], op)
            });
            inside.wait();
            let late = [
                all.within(SHORT).all_reduce(&mut [1], Sum),
                all.barrier_timeout(SHORT),
                world.barrier_timeout(SHORT),
                all.within(SHORT).split(Some(0), 0).map(drop),
                barrier.wait_timeout(SHORT),
            ];
            for error in late.map(Result::unwrap_err) {
                assert!(matches!(error, Error::Deadline { .. }), "{error}");
                assert!(error.to_string().contains("another thread of this rank"), "{error}");
            }
            assert!(!barrier.is_done());
            let error = all.barrier_nonblocking().map(drop).unwrap_err();
            assert!(matches!(error, Error::WouldBlock { .. }), "{error}");
            go_on.happen();
            first.join().expect("no panic")
        })?;
        barrier.wait()?;
        world.finish()
    });
}

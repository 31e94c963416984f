//! Requests: nonblocking collective calls.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use udeck::op::{Max, Sum};
use udeck::{Error, World};

use crate::common::{Event, LONG, SHORT, config, ranks_believing, ranks_over};
use crate::waiting::tasks::block_on;

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
        // Blocking calls may come in between, and the requests complete in any order.
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
            // After this wait the other members sleep.
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
            // The first request's part may be over; the second one's is not.
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

/// Counts wake-ups of its task, and signals them.
struct Bell(AtomicUsize, Arc<Event>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.1.happen();
    }
}

/// The other thread waits in its operator until the task has been polled.
#[test]
fn a_task_is_woken_when_another_threads_call_has_ended() {
    let [begun, inside, asked] = [(); 3].map(|()| Event::new());
    ranks_believing(
        2,
        |_| config(),
        |_| true,
        move |world| {
            let some = world.group("some", &[0, 1])?;
            if world.rank() == 1 {
                begun.wait();
                some.broadcast(1, &mut [7])?;
                some.reduce(0, &mut [1], |a: i32, b: i32| a + b)?;
                world.barrier()?;
                return world.finish();
            }
            let mut request = pin!(some.broadcast_nonblocking(1, vec![0])?);
            begun.happen();
            let bell = Arc::new(Bell(AtomicUsize::new(0), Event::new()));
            let waker = bell.clone().into();
            let mut context = Context::from_waker(&waker);
            std::thread::scope(|scope| {
                let call = scope.spawn(|| {
                    let stop = |a: i32, b: i32| {
                        inside.happen();
                        asked.wait();
                        a + b
                    };
                    some.reduce(0, &mut [1], stop)
                });
                inside.wait();
                assert!(request.as_mut().poll(&mut context).is_pending());
                assert_eq!(bell.0.load(Ordering::Relaxed), 0, "it asks again and again");
                asked.happen();
                bell.1.wait();
                call.join().expect("it panicked")
            })?;
            let Poll::Ready(shared) = request.as_mut().poll(&mut context) else {
                panic!("the group is free, and its message has come");
            };
            assert_eq!(shared?, [7]);
            world.barrier()?;
            world.finish()
        },
    );
}

#[test]
fn a_request_is_dropped_beside_another_threads_call() {
    let [begun, inside, dropped] = [(); 3].map(|()| Event::new());
    ranks_believing(
        2,
        |_| config(),
        |_| true,
        move |world| {
            let some = world.group("some", &[0, 1])?;
            if world.rank() == 1 {
                begun.wait();
                some.broadcast(1, &mut [7])?;
                some.reduce(0, &mut [1], |a: i32, b: i32| a + b)?;
            } else {
                let request = some.broadcast_nonblocking(1, vec![0])?;
                begun.happen();
                std::thread::scope(|scope| {
                    let call = scope.spawn(|| {
                        let stop = |a: i32, b: i32| {
                            inside.happen();
                            dropped.wait();
                            a + b
                        };
                        some.reduce(0, &mut [1], stop)
                    });
                    inside.wait();
                    drop(request);
                    dropped.happen();
                    call.join().expect("it panicked")
                })?;
            }
            let error = some.barrier().unwrap_err();
            assert!(error.to_string().contains("was dropped before its end"), "{error}");
            world.barrier()?;
            world.finish()
        },
    );
}

/// Without the request's part, the other thread's call does not end.
#[test]
fn a_dropped_request_ends_the_call_in_which_another_thread_waits() {
    let over = Event::new();
    ranks_believing(
        2,
        |_| config(),
        |_| true,
        move |world| {
            let some = world.group("some", &[0, 1])?;
            if world.rank() == 1 {
                over.wait();
                let calls = some.all_reduce(&mut [0], Sum).and_then(|()| some.barrier());
                let error = calls.and_then(|()| some.barrier()).unwrap_err();
                assert!(error.to_string().contains("was dropped before its end"), "{error}");
                world.barrier()?;
                return world.finish();
            }
            let mut request = some.all_reduce_nonblocking(vec![0], Sum)?;
            let error = std::thread::scope(|scope| {
                let call = scope.spawn(|| some.within(LONG / 3).barrier());
                // The loop waits until the other thread holds the group.
                while !request
                    .wait_timeout(Duration::ZERO)
                    .is_err_and(|error| error.to_string().contains("another thread"))
                {
                    std::thread::yield_now();
                }
                drop(request);
                call.join().expect("it panicked").unwrap_err()
            });
            assert!(matches!(error, Error::GroupFailed { .. }), "{error}");
            over.happen();
            world.barrier()?;
            world.finish()
        },
    );
}

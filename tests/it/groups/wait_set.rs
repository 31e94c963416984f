//! Waiting for several requests: in any order, of several groups, until a deadline, and with a lost member.

use udeck::op::{Max, Sum};
use udeck::{AnyRequest, Error, Result, World, wait_all, wait_all_timeout, wait_any, wait_any_timeout};

use crate::common::{Event, SHORT, config, ranks_believing, ranks_over};

/// Members wait in different orders: with [`udeck::Request::wait`] they would wait for each other.
fn in_any_order(world: World) -> Result {
    let (all, me) = (world.all()?, world.rank());
    let is_even = me.is_multiple_of(2);
    let pair = all.split(Some(me / 2), 0)?.expect("a colour");
    for round in 0..20_u64 {
        let mut requests = Vec::new();
        for (nth, len) in [1, 40_000, 3, 500].into_iter().enumerate() {
            let group = if nth.is_multiple_of(2) { all } else { &pair };
            requests.push((nth, group.all_reduce_nonblocking(vec![round + nth as u64; len], Sum)?));
        }
        if is_even {
            requests.reverse();
        }
        let (names, mut requests): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        let sizes = |nth: usize| if nth.is_multiple_of(2) { all.size() } else { pair.size() } as u64;
        let sums = wait_all(&mut requests)?;
        for (nth, sum) in names.into_iter().zip(sums) {
            assert!(sum.iter().all(|sum| *sum == (round + nth as u64) * sizes(nth)), "{nth} in {round}");
        }
        assert!(
            matches!(wait_any(&mut requests), Err(Error::InvalidArgument { .. })),
            "all results are taken"
        );

        let mut sum = all.all_reduce_nonblocking(vec![1; 9000], Sum)?;
        let mut barrier = pair.barrier_nonblocking()?;
        let mut most = all.all_reduce_nonblocking(vec![me], Max)?;
        let mut ended = [false; 3];
        while !ended.iter().all(|ended| *ended) {
            let list: &mut [&mut dyn AnyRequest] = match is_even {
                true => &mut [&mut sum, &mut barrier, &mut most],
                false => &mut [&mut most, &mut barrier, &mut sum],
            };
            let at = wait_any(list)?;
            let place = if is_even { at } else { 2 - at };
            assert!(!ended[place], "a request whose result was taken was returned again");
            ended[place] = true;
            match place {
                0 => assert_eq!(sum.wait_timeout(SHORT)?, vec![all.size(); 9000]),
                1 => barrier.wait_timeout(SHORT)?,
                _ => assert_eq!(most.wait_timeout(SHORT)?, [all.size() - 1]),
            }
        }
    }
    world.finish()
}

#[test]
fn members_wait_in_any_order() {
    for size in [1, 2, 4] {
        ranks_believing(size, |_| config(), |_| size > 2, in_any_order);
    }
    ranks_over("tcp", 4, |_| config(), |_| true, in_any_order);
}

#[test]
fn a_deadline_names_the_requests_and_they_go_on() {
    let gave_up = Event::new();
    let body = move |world: World| {
        let all = world.all()?;
        all.barrier()?;
        if all.rank() == 1 {
            gave_up.wait();
        }
        let mut requests =
            vec![all.all_reduce_nonblocking(vec![1], Sum)?, all.all_reduce_nonblocking(vec![2], Max)?];
        if all.rank() == 0 {
            let words = |error: Error| {
                assert!(matches!(error, Error::Deadline { .. }), "{error}");
                let words = error.to_string();
                for part in ["rank 1 (request 0: all_reduce (sum) of i32)", "request 1: all_reduce (max)"] {
                    assert!(words.contains(part), "{words}");
                }
            };
            words(wait_all_timeout(&mut requests, SHORT).unwrap_err());
            words(wait_any_timeout(&mut requests, SHORT).unwrap_err());
            gave_up.happen();
        }
        assert_eq!(wait_all(&mut requests)?, [[2], [2]]);
        all.barrier()?;
        world.finish()
    };
    ranks_believing(2, |_| config(), |_| false, body);
}

#[test]
fn a_taken_result_does_not_lose_the_others() {
    let body = |world: World| {
        let all = world.all()?;
        let mut requests =
            vec![all.all_reduce_nonblocking(vec![1], Sum)?, all.all_reduce_nonblocking(vec![2], Sum)?];
        assert_eq!(requests[1].wait_timeout(config().deadline)?, [4]);
        let error = wait_all(&mut requests).unwrap_err();
        assert!(matches!(error, Error::RequestFailed { index: 1, .. }), "{error}");
        assert_eq!(requests.swap_remove(0).wait()?, [2]);
        world.finish()
    };
    ranks_believing(2, |_| config(), |_| false, body);
}

/// A request of the group that lost a member is named; the other group's can be waited for.
#[test]
fn the_request_that_failed_is_named() {
    let started = [Event::new(), Event::new()];
    let body = move |world: World| {
        let rank = world.rank();
        world.barrier()?;
        if rank == 2 {
            started.iter().for_each(|of_one| of_one.wait());
            return Ok(()); // leaves the group of all
        }
        let two = world.group("two", &[0, 1])?;
        let mut requests = vec![
            two.all_reduce_nonblocking(vec![1], Sum)?,
            world.all()?.all_reduce_nonblocking(vec![1], Sum)?,
        ];
        started[rank].happen();
        let error = wait_all(&mut requests).unwrap_err();
        let words = error.to_string();
        assert!(words.starts_with("request 1 of 2 (all_reduce (sum) of i32): "), "{words}");
        let Error::RequestFailed { index: 1, source, .. } = error else { panic!("{error}") };
        assert!(matches!(*source, Error::PeerLost { rank: 2, .. } | Error::GroupFailed { .. }), "{source}");
        assert_eq!(requests.swap_remove(0).wait()?, [2]);
        two.barrier()
    };
    ranks_believing(3, |_| config(), |_| true, body);
}

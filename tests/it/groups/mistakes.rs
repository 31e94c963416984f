//! Mistakes of members are found, and named; and so is a lost member.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use udeck::op::{Max, Sum, in_order};
use udeck::{Error, FailureCause, Group, Request, Result, World};

use super::forced;
use crate::common::{Event, SHORT, config, ranks_believing};

type Calls = fn(&Group) -> Result;

/// Pairs of different calls, and the words of the error about each.
const DIFFERENT: [(Calls, &str, Calls, &str); 14] = [
    (Group::barrier, "barrier", |all| all.all_reduce(&mut [1.0], Sum), "all_reduce (sum) of f64"),
    (
        |all| all.all_reduce(&mut [1_u8], Sum),
        "all_reduce (sum) of u8",
        |all| all.all_reduce(&mut [1_u8], Max),
        "all_reduce (max) of u8",
    ),
    (
        |all| all.all_reduce(&mut [1_u8], in_order(Sum)),
        "all_reduce (sum, in order) of u8",
        |all| all.all_reduce(&mut [1_u8], |a, b| a + b),
        "all_reduce (an operator of the program's own) of u8",
    ),
    (
        |all| all.all_gather(&[1_i32], &mut [0; 2]),
        "all_gather of i32",
        |all| all.all_gather(&[1_u32], &mut [0; 2]),
        "all_gather of u32",
    ),
    (
        |all| all.all_to_all(&[1_i32; 2], &mut [0; 2]),
        "all_to_all of i32 with a part of 4 bytes",
        |all| all.all_to_all(&[1_i32; 4], &mut [0; 4]),
        "all_to_all of i32 with one of 8",
    ),
    (
        |all| all.all_reduce(&mut [1_i32; 2], Sum),
        "all_reduce (sum) of i32 with a part of 8 bytes",
        |all| all.all_reduce(&mut [1_i32; 3], Sum),
        "all_reduce (sum) of i32 with one of 12",
    ),
    (
        |all| all.all_gather(&[[1_u8; 3]], &mut [[0; 3]; 2]),
        "all_gather of elements of 3 bytes",
        |all| all.all_gather(&[1_u8], &mut [0; 2]),
        "all_gather of u8",
    ),
    (
        |all| all.all_gather(&[1_u8], &mut [0; 2]),
        "all_gather of u8",
        |all| all.all_gather_v(&[1_u8]).map(drop),
        "all_gather_v of u8",
    ),
    (
        |all| all.gather(0, &[1_u8], &mut [0; 2]).and_then(|()| all.barrier()),
        "gather of u8 with root 0",
        |all| all.gather_v(0, &[1_u8]).and_then(|_| all.barrier()),
        "gather_v of u8 with root 0",
    ),
    (
        |all| all.reduce_scatter(&[1_u8; 2], &mut [0], Sum),
        "reduce_scatter (sum) of u8",
        |all| all.reduce_scatter_v(&[[1_u8], [1]], &mut [0], Sum),
        "reduce_scatter_v (sum) of u8",
    ),
    (
        |all| all.all_gather(&[[1_u8; 16]; 4], &mut [[0; 16]; 8]),
        "all_gather of elements of 16 bytes",
        |all| all.all_gather(&[[1_u8; 64]], &mut [[0; 64]; 2]),
        "all_gather of elements of 64 bytes",
    ),
    (
        |all| all.all_to_all_v_into(&[[1_u8], [1]], &mut [[0], [0]]),
        "all_to_all_v of u8 with a part of 1 bytes",
        |all| all.all_to_all_v_into(&[[1_u8, 2], [1, 2]], &mut [[0, 0], [0, 0]]),
        "all_to_all_v of u8 with one of 2",
    ),
    // One piece more or less: the lengths themselves travel.
    (
        |all| all.all_gather_v_into(&vec![1_u8; 128 << 10], &mut vec![vec![0; 128 << 10]; 2]),
        "all_gather_v of u8 with a part of 131072 bytes",
        |all| all.all_gather_v_into(&vec![1_u8; 256 << 10], &mut vec![vec![0; 256 << 10]; 2]),
        "all_gather_v of u8 with one of 262144",
    ),
    (
        |all| all.broadcast(0, &mut [1_u8]).and_then(|()| all.barrier()),
        "broadcast of u8 with root 0",
        |all| all.broadcast(1, &mut [1_u8]).and_then(|()| all.all_gather(&[1_u8], &mut [0; 2])),
        "broadcast of u8 with root 1",
    ),
];

/// Both members may detect the mismatch, or one while the other waits for it in vain.
#[test]
fn different_calls_are_named_both() {
    for (nth, (ours, our_words, theirs, their_words)) in DIFFERENT.into_iter().enumerate() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let all_told = told.clone();
        ranks_believing(
            2,
            |_| config(),
            |_| false,
            move |world| {
                let result = if world.rank() == 0 { ours(world.all()?) } else { theirs(world.all()?) };
                if let Err(error @ Error::CallMismatch { .. }) = &result {
                    told.lock().unwrap().push(error.to_string());
                }
                Ok(()) // and leaves: the other one waits no longer
            },
        );
        let told = all_told.lock().unwrap();
        // (Lengths stand the other way round at the other member.)
        let both = |words: &String| [our_words, their_words].iter().all(|one| words.contains(one));
        assert!(told.iter().any(both), "{nth}: {told:?}");
        assert!(told.iter().all(|words| words.contains("the group of all ranks, rank")), "{told:?}");
    }
}

/// A root does not wait for the others: it learns of the mismatch in its next call.
#[test]
fn different_roots_are_named_both() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let all_told = told.clone();
    ranks_believing(
        3,
        |_| config(),
        |_| true,
        move |world| {
            let all = world.all()?;
            let root = if world.rank() == 1 { 1 } else { 2 };
            let result = all.broadcast(root, &mut [1_u8]).and_then(|()| all.barrier());
            told.lock().unwrap().push(result.unwrap_err());
            Ok(())
        },
    );
    let told = all_told.lock().unwrap();
    let both = |error: &&Error| {
        let words = error.to_string();
        ["broadcast of u8 with root 1", "broadcast of u8 with root 2"].iter().all(|one| words.contains(one))
    };
    assert!(told.iter().any(|error| both(&error)), "{told:?}");
    assert!(told.iter().all(|error| both(&error) || matches!(error, Error::PeerLost { .. })), "{told:?}");
}

/// An error text that travels to another member names the member to which it belongs.
#[test]
fn a_mismatch_is_told_in_words_that_are_true_elsewhere() {
    let failed = [Event::new(), Event::new(), Event::new()];
    ranks_believing(
        3,
        |_| config(),
        |_| true,
        move |world| {
            let (all, rank) = (world.all()?, world.rank());
            all.barrier()?;
            let error = match rank {
                0 => all.all_reduce(&mut [1], Sum).unwrap_err(),
                1 => all.all_reduce(&mut [1], Max).unwrap_err(),
                _ => {
                    failed[..2].iter().for_each(|one| one.wait());
                    let error = all.barrier().unwrap_err();
                    assert!(
                        matches!(error, Error::GroupFailed { .. } | Error::CallMismatch { .. }),
                        "{error}"
                    );
                    let again = all.barrier().unwrap_err().to_string();
                    assert!(!again.contains("this rank") && again.contains("where rank"), "{again}");
                    failed[rank].happen();
                    return Ok(());
                }
            };
            failed[rank].happen();
            let again = all.barrier().unwrap_err().to_string();
            assert!(!again.contains("this rank"), "{error}: {again}");
            failed.iter().for_each(|one| one.wait());
            Ok(())
        },
    );
}

#[test]
fn a_name_that_is_too_long_is_not_shown_whole() {
    ranks_believing(
        1,
        |_| config(),
        |_| false,
        |world| {
            for name in ["x".repeat(1000), "\u{1}ü".repeat(1000)] {
                let error = world.group(&name, &[0]).map(drop).unwrap_err();
                assert!(matches!(error, Error::BadName { .. }), "{error}");
                let text = error.to_string();
                assert!(text.len() < 400 && text.contains("bytes"), "{text}");
            }
            world.finish()
        },
    );
}

#[test]
fn arguments_that_cannot_be_are_refused_and_change_nothing() {
    ranks_believing(
        3,
        |_| config(),
        |_| true,
        |world| {
            let all = world.all()?;
            let refused = |result: Result, words: &str| {
                let error = result.unwrap_err();
                assert!(
                    matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains(words),
                    "{error}"
                );
            };
            refused(all.broadcast(3, &mut [0]), "broadcast: no member 3: there are 3");
            refused(
                all.gather(all.rank(), &[0, 0], &mut [0; 5]),
                "the whole has 5 elements: 3 members of 2 each need 6",
            );
            refused(all.all_gather(&[0], &mut []), "3 members of 1 each need 3");
            refused(all.all_to_all(&[0; 4], &mut [0; 4]), "the same multiple of 3");
            refused(all.all_to_all(&[0; 6], &mut [0; 3]), "6 elements to send and room for 3");
            refused(all.all_gather_v_into(&[0], &mut [[0], [0]]), "2 parts for 3 members");
            refused(all.all_to_all_v(&[[0], [0]]).map(drop), "2 parts for 3 members");
            let mut rooms: [Vec<i32>; 3] = Default::default();
            refused(all.all_gather_v_into(&[0], &mut rooms), "1 elements for itself, and room for 0");
            refused(all.neighbours(&[(7, &[0][..])], &mut []), "no member 7");
            refused(all.broadcast_buf::<u8>(all.rank(), None).map(drop), "the root has to give a message");
            let buf = || world.buf::<u8>(1);
            let other = (all.rank() + 1) % 3;
            refused(all.broadcast_buf::<u8>(other, Some(buf()?)).map(drop), "only the root gives a message");
            refused(all.all_to_all_buf::<u8>(vec![buf()?]).map(drop), "1 parts for 3 members");
            refused(all.scatter_buf::<u8>(all.rank(), Some(vec![])).map(drop), "0 parts for 3 members");
            let error = all.all_reduce(&mut [(); 3], |_, _| ()).unwrap_err();
            assert!(matches!(error, Error::BadPayload { .. }), "{error}");

            let refused = |ranks: &[usize], words: &str| {
                let error = world.group("some", ranks).map(drop).unwrap_err();
                assert!(
                    matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains(words),
                    "{error}"
                );
            };
            refused(&[0, 1, 2, 3], "making group \"some\": there is no rank 3: the job has 3");
            refused(&[0, 1, 2, 0], "rank 0 is in the list twice");
            refused(&[], "is not in the list");
            refused(&[(world.rank() + 1) % 3], "is not in the list");
            assert!(matches!(world.group("", &[0, 1, 2]), Err(Error::BadName { .. })));
            all.barrier()?;
            world.finish()
        },
    );
}

#[test]
fn who_has_not_come_is_named() {
    let (gave_up, told) = (Event::new(), [Event::new(), Event::new()]);
    ranks_believing(
        3,
        |_| config(),
        |_| true,
        move |world| {
            world.barrier()?;
            if let Some(other) = world.rank().checked_sub(1) {
                gave_up.wait();
                // The message of rank 0 may be enough for this rank.
                let all = world.all()?;
                let error = all.all_reduce(&mut [1], Sum).and_then(|()| all.barrier()).unwrap_err();
                assert!(matches!(error, Error::GroupFailed { .. }), "{error}");
                assert!(
                    error.to_string().contains("at rank 0 an earlier all_reduce (sum) of i32 failed"),
                    "{error}"
                );
                told[other].happen();
                // A member that finishes is missed by members that have not been told.
                told.iter().for_each(|of_one| of_one.wait());
            } else {
                let error = world.all()?.within(SHORT).all_reduce(&mut [1], Sum).unwrap_err();
                assert!(matches!(error, Error::Deadline { .. }), "{error}");
                let words = error.to_string();
                assert!(
                    words.contains("all_reduce: nothing within") && words.contains("waited for rank 1"),
                    "{words}"
                );
                // Whether the others have come further or not, no call can be made any more.
                let error = world.all()?.barrier().unwrap_err();
                assert!(matches!(error, Error::GroupFailed { .. }), "{error}");
                assert!(error.to_string().contains("an earlier all_reduce (sum) of i32 failed"), "{error}");
                gave_up.happen();
                told.iter().for_each(|of_one| of_one.wait());
            }
            world.finish()
        },
    );
}

#[test]
fn a_member_that_does_not_come_to_make_a_group_is_named() {
    let gave_up = [Event::new(), Event::new()];
    let hasty = |_| {
        let mut config = config();
        config.deadline = 3 * SHORT;
        config
    };
    ranks_believing(
        3,
        hasty,
        |_| true,
        move |world| {
            if world.rank() == 2 {
                gave_up.iter().for_each(|of_one| of_one.wait());
                return world.finish();
            }
            let error = world.group("some", &[0, 1, 2]).map(drop).unwrap_err();
            assert!(matches!(error, Error::Deadline { .. }), "{error}");
            let words = error.to_string();
            assert!(words.contains("making group \"some\"") && words.contains("rank 2"), "{words}");
            gave_up[world.rank()].happen();
            world.finish()
        },
    );
}

#[test]
fn members_that_make_different_groups_by_one_name_hear_of_it() {
    ranks_believing(
        3,
        |_| config(),
        |_| true,
        |world| {
            let ranks: &[usize] = if world.rank() == 1 { &[0, 1] } else { &[0, 1, 2] };
            let error = world.group("some", ranks).map(drop);
            if world.rank() == 1 {
                let error = error.unwrap_err();
                assert!(
                    error.to_string().contains("rank 0 has made a group of other ranks by that name"),
                    "{error}"
                );
            }
            Ok(())
        },
    );
}

/// All collective calls during which a loss is tested.
const ALL: [Calls; 9] = [
    Group::barrier,
    |all| all.all_reduce(&mut [1], Sum),
    |all| all.all_reduce(&mut vec![1; 100_000], Sum),
    |all| all.reduce(0, &mut [1], Sum).and_then(|()| all.barrier()),
    |all| all.broadcast(0, &mut [1]).and_then(|()| all.barrier()),
    |all| all.all_gather(&[1], &mut vec![0; all.size()]),
    |all| all.all_to_all(&vec![1; 50_000 * all.size()], &mut vec![0; 50_000 * all.size()]),
    |all| all.gather(0, &[1], &mut vec![0; all.size()]).and_then(|()| all.barrier()),
    |all| all.all_reduce_nonblocking(vec![1], Sum)?.wait().map(drop),
];

/// The remaining members make a group, and use it.
fn go_on_without(world: &World, leaver: usize, call: Calls) -> Result {
    let left: Vec<usize> = (0..world.size()).filter(|rank| *rank != leaver).collect();
    let left = world.group("left", &left)?;
    call(&left)?;
    left.barrier()
}

/// Checks the errors at all others. `end`: how the member leaves.
fn is_named_at_all_others(end: fn(World) -> Result, words: &'static str) {
    for (nth, call) in ALL.into_iter().enumerate() {
        for (size, leaver) in [(2, 1), (5, 0), (5, 3)] {
            let passed = AtomicU32::new(0);
            ranks_believing(
                size,
                |_| config(),
                |_| true,
                move |world| {
                    let all = world.all()?;
                    all.barrier()?;
                    passed.fetch_add(1, Ordering::Relaxed);
                    if world.rank() == leaver {
                        // A rank that is lost at once may already be missed at that barrier.
                        while passed.load(Ordering::Relaxed) < size {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        return end(world);
                    }
                    for _ in 0..2 {
                        let error = call(all).unwrap_err();
                        let Error::PeerLost { rank, how } = &error else { panic!("call {nth}: {error}") };
                        assert!(*rank == leaver && how.contains(words), "call {nth}: {error}");
                    }
                    go_on_without(&world, leaver, call)
                        .unwrap_or_else(|error| panic!("call {nth}, later: {error}"));
                    world.finish()
                },
            );
        }
    }
}

#[test]
fn a_lost_member_is_named_at_all_others() {
    is_named_at_all_others(|_| Ok(()), "closed its connection");
}

#[test]
fn a_member_that_has_finished_is_named_at_all_others() {
    is_named_at_all_others(World::finish, "it finished without coming to this");
}

#[test]
fn of_a_rank_that_is_no_member_the_loss_changes_nothing() {
    let passed = AtomicU32::new(0);
    ranks_believing(
        4,
        |_| config(),
        |_| true,
        move |world| {
            world.barrier()?;
            passed.fetch_add(1, Ordering::Relaxed);
            if world.rank() == 2 {
                while passed.load(Ordering::Relaxed) < 4 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return Ok(()); // without `finish`
            }
            while world.exited_ranks().next().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let left = world.group("left", &[3, 1, 0])?;
            for _ in 0..300 {
                let mut sum = [1];
                left.all_reduce(&mut sum, Sum)?;
                assert_eq!(sum, [3]);
            }
            world.finish()
        },
    );
}

/// A member that is behind completes the calls that all members have made.
#[test]
fn a_failure_ends_no_earlier_call() {
    let [told, heard] = [(); 2].map(|()| Event::new());
    ranks_believing(
        3,
        |_| config(),
        |_| true,
        move |world| {
            let some = world.group("some", &[0, 1, 2])?;
            match world.rank() {
                0 => {
                    heard.wait();
                    some.reduce(2, &mut [1], Sum)?;
                    let error = some.all_reduce(&mut [1], Sum).and_then(|()| some.barrier()).unwrap_err();
                    assert!(matches!(error, Error::GroupFailed { .. }), "{error}");
                }
                1 => {
                    some.reduce(2, &mut [2], Sum)?;
                    let error = some.within(SHORT).all_reduce(&mut [1], Sum).unwrap_err();
                    assert!(matches!(error, Error::Deadline { .. }), "{error}");
                    told.happen();
                }
                _ => {
                    let mut earlier = some.reduce_nonblocking(2, vec![4], Sum)?;
                    told.wait();
                    let later = some.all_reduce_nonblocking(vec![1], Sum).and_then(Request::wait);
                    let error = later.unwrap_err();
                    assert!(
                        matches!(error, Error::GroupFailed { cause: FailureCause::Deadline, .. }),
                        "{error}"
                    );
                    assert!(!earlier.is_done());
                    heard.happen();
                    assert_eq!(earlier.wait()?, [7]);
                }
            }
            world.barrier()?;
            world.finish()
        },
    );
}

/// A failed member takes no further part in its requests either.
#[test]
fn a_failure_ends_the_requests_that_its_member_had_begun_before() {
    let over = Event::new();
    ranks_believing(
        3,
        |_| config(),
        |_| true,
        move |world| {
            let some = world.group("some", &[0, 1, 2])?;
            match world.rank() {
                0 => {
                    let error = some.all_reduce(&mut [1], Sum).unwrap_err();
                    assert!(matches!(error, Error::GroupFailed { .. }), "{error}");
                    over.happen();
                }
                1 => {
                    let earlier = some.all_reduce_nonblocking(vec![1], Sum)?;
                    let error = some.within(SHORT).all_reduce(&mut [1], Sum).unwrap_err();
                    assert!(matches!(error, Error::Deadline { .. }), "{error}");
                    let error = earlier.wait().unwrap_err();
                    assert!(matches!(error, Error::GroupFailed { .. }), "{error}");
                }
                _ => over.wait(),
            }
            world.barrier()?;
            world.finish()
        },
    );
}

/// A failed member may have begun a request long before, while another is as far ahead as possible.
#[test]
fn a_failure_of_a_call_long_ago_is_no_later_one() {
    let [begun, ahead, heard] = [(); 3].map(|()| Event::new());
    ranks_believing(
        2,
        |_| config(),
        |_| true,
        move |world| {
            let some = world.group("some", &[0, 1])?;
            let call = || some.broadcast(0, &mut [1]);
            (0..3).try_for_each(|_| call())?;
            if world.rank() == 0 {
                begun.wait();
                // The members wait for each other every 64 calls, and the other one passes this point at most
                // twice.
                (0..170).try_for_each(|_| call())?;
                ahead.happen();
                let error = (0..64).try_for_each(|_| call()).unwrap_err();
                assert!(matches!(error, Error::GroupFailed { .. }), "{error}");
                heard.happen();
            } else {
                let never_asked = some.broadcast_nonblocking(0, vec![0])?;
                begun.happen();
                let error = (0..200).try_for_each(|_| call()).unwrap_err();
                assert!(matches!(error, Error::WouldBlock { .. }), "{error}");
                ahead.wait();
                drop(never_asked);
                heard.wait();
            }
            world.barrier()?;
            world.finish()
        },
    );
}

/// All members wait for each other before the 64th call. A failure that a member hears of meanwhile ends that call, even if
/// the member only sends.
#[test]
fn a_failure_that_was_heard_before_all_have_met_ends_the_call_after() {
    let [waits, begun, failed, heard] = [(); 4].map(|()| Event::new());
    ranks_believing(
        4,
        |_| forced("binomial"),
        |_| true,
        move |world| {
            let some = world.group("some", &[0, 1, 2, 3])?;
            (0..61).try_for_each(|_| some.barrier())?;
            // Member 3 gets this from member 2, which does not pass it on before everything is over.
            if world.rank() != 2 {
                waits.wait();
            }
            let mut data = some.broadcast_nonblocking(0, vec![u32::from(some.rank() == 0)])?;
            waits.happen();
            let last = |error: Error| {
                assert!(error.to_string().contains("on purpose"), "{error}");
            };
            match world.rank() {
                0 => {
                    assert!(data.is_done());
                    begun.wait();
                    let fails = || some.reduce(0, &mut [1], |_: i32, _: i32| panic!("on purpose"));
                    assert!(catch_unwind(AssertUnwindSafe(fails)).is_err());
                    failed.happen();
                    heard.wait();
                }
                1 => {
                    assert_eq!(data.wait()?, [1]);
                    begun.wait();
                    some.reduce(0, &mut [1], |a, b| a + b)?;
                }
                2 => {
                    begun.wait();
                    last(some.reduce(0, &mut [1], |a, b| a + b).unwrap_err());
                    heard.wait();
                    assert_eq!(data.wait()?, [1]);
                }
                _ => {
                    let sends = some.reduce_nonblocking(0, vec![1], |a, b| a + b)?;
                    begun.happen();
                    failed.wait();
                    assert!(!data.is_done());
                    last(sends.wait().unwrap_err());
                    heard.happen();
                    assert_eq!(data.wait()?, [1]);
                }
            }
            world.barrier()?;
            world.finish()
        },
    );
}

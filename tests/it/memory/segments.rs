//! Objects that the ranks of a host share beside messages: segments, locked segments, semaphores.

use std::time::Duration;

use crate::common::{Event, SHORT, config, ranks, ranks_with};
use udeck::{Error, Result, World};

#[test]
fn elements_of_all_are_seen_by_all_behind_a_barrier() {
    for size in [1, 2, 4] {
        ranks(size, |world| {
            let (rank, size) = (world.rank(), world.size());
            let all = world.shared_segment::<f64>("grid", 1000 * size)?;
            assert_eq!(
                (all.name(), all.len(), all.ranks()),
                ("grid", 1000 * size, &(0..size).collect::<Vec<_>>()[..])
            );
            for round in 0..3 {
                let value = |rank: usize| (round * 100 + rank) as f64;
                all.copy_from(1000 * rank, &vec![value(rank); 999]);
                all.set(1000 * rank + 999, -value(rank));
                all.barrier()?;
                let mut found = vec![0.0; all.len()];
                all.copy_to(0, &mut found);
                for (other, part) in found.chunks(1000).enumerate() {
                    assert!(part[..999].iter().all(|found| *found == value(other)), "{round} {other}");
                    assert_eq!(all.get(1000 * other + 999), -value(other));
                }
                all.barrier()?; // nobody writes again before all have read
            }
            world.finish()
        });
    }
}

#[test]
fn atomics_count_what_all_threads_of_all_ranks_add() {
    ranks(2, |world| {
        let counts = world.shared_segment::<i64>("counts", 3)?;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counts.fetch_add(0, -1);
                        let mut seen = counts.load(1);
                        while let Err(found) = counts.compare_exchange(1, seen, seen + 2) {
                            seen = found;
                        }
                    }
                });
            }
        });
        counts.barrier()?;
        assert_eq!((counts.get(0), counts.load(1)), (-4000, 8000));
        if world.rank() == 0 {
            assert_eq!(counts.swap(2, 7), 0);
            counts.store(2, 8);
        }
        counts.barrier()?;
        assert_eq!(counts.compare_exchange(2, 7, 9), Err(8));
        world.finish()
    });
}

/// The test runs with trust and without.
#[test]
fn one_thread_of_one_rank_has_the_lock_at_a_time() {
    for trusting in [true, false] {
        let mut config = config();
        config.trusting = trusting;
        ranks_with(3, &config, |world| {
            let shared = world.shared_mutex::<[u32; 3]>("list", 2)?;
            let add = || -> Result {
                for _ in 0..300 {
                    let mut list = shared.lock()?;
                    list[1][2] += 1;
                    list[0][0] = list[1][2];
                }
                Ok(())
            };
            std::thread::scope(|scope| {
                let other = scope.spawn(add);
                add()?;
                other.join().expect("it does not panic")
            })?;
            shared.barrier()?;
            assert_eq!(*shared.lock()?, [[3 * 2 * 300, 0, 0], [0, 0, 3 * 2 * 300]]);
            world.finish()
        });
    }
}

#[test]
fn a_lock_that_is_held_is_named_with_its_holder() {
    ranks(2, |world| {
        let shared = world.shared_mutex::<u8>("one", 1)?;
        if world.rank() == 0 {
            let guard = shared.lock()?;
            let error = shared.lock_timeout(SHORT).map(drop).unwrap_err().to_string();
            assert!(error.contains("this rank itself"), "{error}");
            shared.barrier()?;
            shared.barrier()?;
            drop(guard);
        } else {
            shared.barrier()?;
            let error = shared.lock_timeout(SHORT).map(drop).unwrap_err();
            let Error::Deadline { what, whom, .. } = &error else { panic!("{error}") };
            assert_eq!(what, "locking shared segment \"one\"");
            assert_eq!(whom, "rank 0, which holds its lock");
            let error = shared.try_lock().map(drop).unwrap_err();
            assert!(
                matches!(&error, Error::WouldBlock { whom, .. } if whom.starts_with("rank 0")),
                "{error}"
            );
            shared.barrier()?;
            drop(shared.lock()?);
        }
        world.finish()
    });
}

/// Takes a lock on another thread, which panics under it.
fn panic_under<L>(lock: impl FnOnce() -> L + Send) {
    let panicked = std::thread::scope(|scope| {
        let holder = scope.spawn(|| {
            let _guard = lock();
            panic!("as intended");
        });
        holder.join().is_err()
    });
    assert!(panicked);
}

#[test]
fn a_panic_under_the_lock_is_told_until_somebody_recovers() {
    ranks(2, |world| {
        let shared = world.shared_mutex::<u8>("one", 1)?;
        if world.rank() == 1 {
            panic_under(|| shared.lock().unwrap());
        }
        shared.barrier()?;
        if world.rank() == 0 {
            for _ in 0..2 {
                let error = shared.lock().map(drop).unwrap_err();
                assert!(matches!(error, Error::Abandoned { rank: 1, .. }), "{error}");
                assert!(error.to_string().contains("a thread of it panicked"), "{error}");
            }
            let guard = shared.recover()?;
            assert_eq!(guard.abandoned_by(), Some(1));
            drop(guard);
            assert_eq!(shared.lock()?.abandoned_by(), None);
        }
        shared.barrier()?;
        world.finish()
    });
}

#[test]
fn a_lock_that_is_released_unrepaired_stays_abandoned() {
    ranks(2, |world| {
        let shared = world.shared_segment::<u8>("one", 1)?;
        if world.rank() == 1 {
            // Without a mark there is none to keep.
            shared.lock()?.release_unrepaired();
            panic_under(|| shared.lock().unwrap());
        }
        shared.barrier()?;
        if world.rank() == 0 {
            shared.recover()?.release_unrepaired();
            let error = shared.lock().map(drop).unwrap_err();
            assert!(matches!(error, Error::Abandoned { rank: 1, .. }), "{error}");
            drop(shared.recover()?);
            assert_eq!(shared.lock()?.abandoned_by(), None);
        }
        shared.barrier()?;
        world.finish()
    });
}

#[test]
fn a_barrier_names_who_is_missing_and_goes_on() {
    ranks(3, |world| {
        let shared = world.shared_segment::<u8>("one", 1)?;
        if world.rank() == 2 {
            world.barrier()?;
        } else {
            let error = shared.barrier_timeout(SHORT).unwrap_err();
            let missing = matches!(&error, Error::Deadline { what, whom, .. }
                if what == "the barrier of shared segment \"one\"" && whom == "rank 2");
            // Either of the two ranks may have come later than the other's deadline.
            let both = error.to_string().ends_with("waited for ranks 0, 2")
                || error.to_string().ends_with("waited for ranks 1-2");
            assert!(missing || both, "{error}");
            world.barrier()?;
        }
        shared.barrier()?;
        shared.barrier()?;
        world.finish()
    });
}

#[test]
fn who_has_dropped_it_is_missing_at_once() {
    ranks(2, |world| {
        let shared = world.shared_segment::<u8>("one", 1)?;
        if world.rank() == 1 {
            drop(shared);
        } else {
            let error = shared.barrier().unwrap_err();
            assert!(matches!(error, Error::PeerLost { rank: 1, .. }), "{error}");
            assert!(error.to_string().contains("it has dropped shared segment \"one\""), "{error}");
        }
        world.finish()
    });
}

#[test]
fn a_semaphore_lets_as_many_in_as_it_has_permits() {
    ranks(4, |world| {
        let (permits, inside) = (world.semaphore("two", 2)?, world.shared_segment::<i32>("inside", 2)?);
        for _ in 0..50 {
            let permit = permits.acquire()?;
            let now = inside.fetch_add(0, 1) + 1;
            assert!((1..=2).contains(&now), "{now} are inside");
            std::thread::yield_now();
            inside.fetch_add(0, -1);
            assert_eq!(permit.reclaimed_from(), None);
        }
        world.barrier()?;
        assert_eq!((permits.available(), permits.ranks().len()), (2, 4));
        world.finish()
    });
}

/// One rank adds permits when something is ready, another one waits for them: DECK's P and V.
#[test]
fn permits_can_be_added_and_kept() {
    ranks(2, |world| {
        let ready = world.semaphore("ready", 0)?;
        if world.rank() == 0 {
            let error = ready.acquire_timeout(SHORT).map(drop).unwrap_err();
            assert!(
                error.to_string().ends_with("waited for a rank to release a permit: no rank holds one"),
                "{error}"
            );
            world.barrier()?;
            for _ in 0..100 {
                ready.acquire()?.forget()?;
            }
            let error = ready.try_acquire().map(drop).unwrap_err();
            assert!(matches!(error, Error::WouldBlock { .. }), "{error}");
            world.barrier()?;
            let held = ready.acquire()?;
            world.barrier()?;
            world.barrier()?;
            drop(held);
        } else {
            world.barrier()?;
            (0..100).try_for_each(|_| ready.release(1))?;
            world.barrier()?; // all are taken
            ready.release(1)?;
            world.barrier()?;
            let error = ready.try_acquire().map(drop).unwrap_err();
            assert!(
                matches!(&error, Error::WouldBlock { whom, .. } if whom == "rank 0, which holds permits"),
                "{error}"
            );
            let error = ready.release(u32::MAX).unwrap_err();
            assert!(matches!(error, Error::TooManyPermits { .. }), "{error}");
            world.barrier()?;
        }
        world.finish()
    });
}

#[test]
fn another_type_length_kind_or_members_are_named_with_both_ranks() {
    fn both<T>(
        world: &World,
        first: impl Fn(&World) -> Result<T>,
        second: impl Fn(&World) -> Result<T>,
        theirs: &str,
        ours: &str,
    ) {
        if world.rank() == 0 {
            // No other rank joins the segment.
            let error = first(world).map(drop).unwrap_err();
            assert!(matches!(error, Error::Deadline { .. } | Error::PeerLost { .. }), "{error}");
        } else {
            let error = second(world).map(drop).unwrap_err();
            let words = format!(
                "rank 0 and this rank use one name for different shared objects: the maker offers {theirs}; this rank asks for {ours}"
            );
            assert_eq!(error.to_string(), words);
        }
    }
    let mut config = config();
    config.deadline = Duration::from_millis(500);
    // Rank 1 must not be late itself.
    let with = |world: &World| {
        if world.rank() == 1 {
            std::thread::sleep(SHORT)
        }
    };
    ranks_with(2, &config, move |world| {
        with(&world);
        let among = "among ranks 0, 1";
        both(
            &world,
            |world| world.shared_segment::<f64>("a", 5).map(drop),
            |world| world.shared_segment::<f64>("a", 6).map(drop),
            &format!("a segment of 5 elements of f64 {among}"),
            &format!("a segment of 6 elements of f64 {among}"),
        );
        world.finish()
    });
    ranks_with(2, &config, move |world| {
        with(&world);
        let among = "among ranks 0, 1";
        both(
            &world,
            |world| world.shared_segment::<f64>("a", 5).map(drop),
            |world| world.shared_mutex::<u64>("a", 5).map(drop),
            &format!("a segment of 5 elements of f64 {among}"),
            &format!("a locked segment of 5 elements of u64 {among}"),
        );
        world.finish()
    });
    ranks_with(3, &config, move |world| {
        with(&world);
        if world.rank() < 2 {
            both(
                &world,
                |world| world.semaphore_of(&[0, 1], "a", 5).map(drop),
                |world| world.semaphore("a", 5).map(drop),
                "a semaphore of 5 permits among ranks 0, 1",
                "a semaphore of 5 permits among ranks 0, 1, 2",
            );
        }
        world.finish()
    });
}

/// If there are more calls than places at the maker, the others wait: none is told that its arguments differ.
#[test]
fn calls_that_find_no_place_at_the_maker_ask_again() {
    let mut config = config();
    ranks_with(2, &config, |world| {
        world.shared_segment::<u8>("first", 1)?;
        let here = &world;
        let names: Vec<String> = (0..200).map(|n| format!("of thread {n}")).collect();
        // The calls come in any order at both ranks.
        std::thread::scope(|scope| {
            let share = |name: &str| here.shared_segment::<u8>(name, 1).map(drop);
            let threads: Vec<_> = names.iter().map(|name| scope.spawn(move || share(name))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        world.barrier()?;
        world.finish()
    });
    config.deadline = Duration::from_secs(2);
    let ended = Event::new();
    ranks_with(2, &config, move |world| {
        world.shared_segment::<u8>("first", 1)?;
        if world.rank() == 1 {
            let never =
                |n: usize| world.shared_segment::<u8>(&format!("never {n}"), 1).map(drop).unwrap_err();
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..70).map(|n| scope.spawn(move || never(n))).collect();
                for thread in threads {
                    let error = thread.join().expect("no panic");
                    assert!(matches!(error, Error::Deadline { .. }), "{error}");
                }
            });
            ended.happen();
        } else {
            ended.wait();
        }
        world.finish()
    });
}

#[test]
fn members_have_to_be_ranks_of_this_job_and_this_one_among_them() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let error = |ranks: &[usize]| {
                world.shared_segment_of::<u8>(ranks, "a", 1).map(drop).unwrap_err().to_string()
            };
            assert!(error(&[0, 0]).ends_with("rank 0 is named twice"), "{}", error(&[0, 0]));
            assert!(
                error(&[0, 2]).ends_with("this job has ranks 0 to 1, and no rank 2"),
                "{}",
                error(&[0, 2])
            );
            assert!(error(&[1]).ends_with("this rank, 0, is not among them"), "{}", error(&[1]));
            let error = world.shared_segment::<u8>("", 1).map(drop).unwrap_err();
            assert!(matches!(error, Error::BadName { .. }), "{error}");
            let alone = world.shared_segment_of::<u8>(&[0], "a", 0)?;
            alone.barrier()?;
            assert!(alone.is_empty());
        }
        assert_eq!(world.host_ranks(), [0, 1]);
        world.finish()
    });
}

/// The n-th call with a name meets the n-th, whichever rank is faster.
#[test]
fn a_name_can_be_used_again() {
    ranks(3, |world| {
        for round in 0..20u64 {
            let members: &[usize] = if round % 2 == 0 { &[0, 1, 2] } else { &[1, 2] };
            if !members.contains(&world.rank()) {
                continue;
            }
            let name = if round % 2 == 0 { "all" } else { "two" };
            let shared = world.shared_segment_of::<u64>(members, name, 1)?;
            assert_eq!(shared.fetch_add(0, round) % round.max(1), 0, "it is a fresh one");
            shared.barrier()?;
            assert_eq!(shared.load(0), round * members.len() as u64);
        }
        world.finish()
    });
}

#[test]
fn a_maker_that_finishes_without_making_it_is_told() {
    ranks(2, |world| {
        if world.rank() == 1 {
            let error = world.shared_segment::<u8>("a", 1).map(drop).unwrap_err();
            let words = "rank 0 is lost: it finished without making shared segment \"a\"";
            assert_eq!(error.to_string(), words);
        }
        world.finish()
    });
    ranks(2, |world| {
        if world.rank() == 0 {
            let error = world.semaphore("a", 1).map(drop).unwrap_err();
            let words = "rank 1 is lost: it finished without coming to semaphore \"a\"";
            assert_eq!(error.to_string(), words);
        }
        world.finish()
    });
}

#[test]
fn what_is_outside_panics() {
    ranks(1, |world| {
        let shared = world.shared_segment::<[u16; 3]>("a", 2)?;
        let panics = |act: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err();
        assert!(panics(&|| _ = shared.get(2)) && panics(&|| shared.copy_from(1, &[[0; 3]; 2])));
        assert!(panics(&|| shared.copy_to(usize::MAX, &mut [[0; 3]])));
        shared.set(1, [1, 2, 3]);
        assert_eq!((shared.get(0), shared.get(1)), ([0; 3], [1, 2, 3]));
        world.finish()
    });
}

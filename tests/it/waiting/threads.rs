//! Threads, barriers and flushes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{
    Event, LONG, PROTOCOLS, SHORT, alone, assert_pattern, asynchronous, config, patterned, ranks, ranks_with,
};
use udeck::{Error, Result};

#[test]
fn threads_of_one_rank_post_through_postboxes_of_their_own() {
    const THREADS: usize = 4;
    const EACH: usize = 200;
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            let reader = std::thread::spawn(move || -> Result {
                let mut next = [0; THREADS];
                for _ in 0..THREADS * EACH {
                    let received = inbox.retrieve()?;
                    let (thread, seed) = (received.tag() as usize / EACH, received.tag() as usize % EACH);
                    assert_eq!(seed, next[thread], "thread {thread}");
                    assert_pattern(&received, received.tag() as usize, 10 * seed);
                    next[thread] += 1;
                }
                Ok(())
            });
            reader.join().expect("the reader panicked")?;
        } else {
            let postboxes = (0..THREADS).map(|_| world.postbox::<u8>("in")).collect::<Result<Vec<_>>>()?;
            std::thread::scope(|scope| {
                for (thread, out) in postboxes.into_iter().enumerate() {
                    let world = &world;
                    scope.spawn(move || {
                        for seed in 0..EACH {
                            out.set_protocol(PROTOCOLS[(seed + thread) % PROTOCOLS.len()]).unwrap();
                            out.post(patterned(world, thread * EACH + seed, 10 * seed).unwrap()).unwrap();
                        }
                    });
                }
            });
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn nobody_passes_a_barrier_early() {
    for (size, rounds) in [(1, 5000), (2, 3000), (3, 2000), (5, 1000), (8, 500)] {
        let came: Arc<Vec<AtomicUsize>> = Arc::new((0..size).map(|_| AtomicUsize::new(0)).collect());
        ranks(size, move |world| {
            for round in 1..=rounds {
                came[world.rank()].store(round, Ordering::Relaxed);
                world.barrier()?;
                for (rank, came) in came.iter().enumerate() {
                    let came = came.load(Ordering::Relaxed);
                    assert!(came >= round, "rank {rank} of {size} was not there in round {round}");
                    assert!(came <= round + 1, "rank {rank} of {size} was not waited for in round {round}");
                }
            }
            world.finish()
        });
    }
}

#[test]
fn a_barrier_works_whatever_protocol_the_world_prefers() {
    for protocol in PROTOCOLS {
        let mut config = config();
        config.protocol = protocol;
        ranks_with(3, &config, |world| {
            for _ in 0..20 {
                world.barrier()?;
            }
            world.finish()
        });
    }
}

#[test]
fn a_flush_waits_until_the_owner_has_read_everything() {
    for protocol in asynchronous() {
        let (flushed, read) = (Event::new(), Event::new());
        let mut config = config();
        config.deadline = SHORT;
        ranks_with(2, &config, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                flushed.wait();
                for seed in 0..3 {
                    assert_pattern(&inbox.retrieve_timeout(LONG)?, seed, 5000);
                }
                read.happen();
            } else {
                let out = world.postbox::<u8>("in")?;
                out.set_protocol(protocol)?;
                for seed in 0..3 {
                    out.post(patterned(&world, seed, 5000)?)?;
                }
                let error = out.flush().unwrap_err();
                assert!(matches!(error, Error::Deadline { .. }), "{error}");
                assert!(error.to_string().contains("rank 0"), "{error}");
                flushed.happen();
                read.wait();
                out.flush()?;
            }
            world.finish()
        });
    }
}

/// The owner need not poll the mailbox again for that.
#[test]
fn a_flush_ends_when_the_owner_has_read_and_waits_elsewhere() {
    for protocol in asynchronous() {
        ranks(2, move |world| {
            let inbox = world.mailbox::<u8>(&format!("of {}", world.rank()))?;
            let elsewhere = world.mailbox::<u8>(&format!("elsewhere {}", world.rank()))?;
            let [out, other] =
                ["of", "elsewhere"].map(|name| world.postbox::<u8>(&format!("{name} {}", 1 - world.rank())));
            let (out, other) = (out?, other?);
            out.set_protocol(protocol)?;
            for seed in 0..3 {
                out.post(patterned(&world, seed, 5000)?)?;
                assert_pattern(&inbox.retrieve()?, seed, 5000);
                if world.rank() == 0 {
                    out.flush()?;
                    other.post(patterned(&world, seed, 1)?)?;
                } else {
                    assert_pattern(&elsewhere.retrieve()?, seed, 1);
                }
            }
            world.finish()
        });
    }
}

#[test]
fn flushes_and_readers_meet() {
    for protocol in PROTOCOLS {
        let posted = Arc::new(AtomicUsize::new(0));
        let read = Arc::new(AtomicUsize::new(0));
        ranks(2, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                for seed in 0..300 {
                    // The counter is stored before the message is taken: a thread that sees a flush return sees
                    // this value.
                    read.store(seed + 1, Ordering::Relaxed);
                    assert_pattern(&inbox.retrieve()?, seed, 3000);
                }
            } else {
                let out = world.postbox::<u8>("in")?;
                out.set_protocol(protocol)?;
                for seed in 0..300 {
                    out.post(patterned(&world, seed, 3000)?)?;
                    posted.store(seed + 1, Ordering::Relaxed);
                    if seed % 3 == 0 {
                        out.flush()?;
                        assert!(read.load(Ordering::Relaxed) > seed, "flushed before it was read");
                    }
                }
            }
            world.barrier()?;
            world.finish()
        });
    }
}

#[test]
fn a_flush_of_what_was_read_succeeds_although_the_mailbox_is_gone() {
    for protocol in asynchronous() {
        let world = alone(8 << 20);
        for read in [true, false] {
            let inbox = world.mailbox::<u8>("in").unwrap();
            let out = world.postbox::<u8>("in").unwrap();
            out.set_protocol(protocol).unwrap();
            for seed in 0..5 {
                out.post(patterned(&world, seed, 1000).unwrap()).unwrap();
            }
            if read {
                (0..5).for_each(|seed| assert_pattern(&inbox.retrieve().unwrap(), seed, 1000));
            }
            drop(inbox);
            match (read, out.flush()) {
                (true, Ok(())) => {}
                (false, Err(Error::MailboxGone { .. } | Error::Undelivered { .. })) => {}
                (_, other) => panic!("{protocol}, read: {read}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_postbox_in_a_world_of_one_waits_for_a_mailbox_of_another_thread() {
    let world = alone(8 << 20);
    assert!(matches!(world.postbox_timeout::<u8>("late", SHORT), Err(Error::NoSuchMailbox { .. })));
    let about_to_wait = Event::new();
    std::thread::scope(|scope| {
        let (about, world) = (about_to_wait.clone(), &world);
        let posting = scope.spawn(move || {
            about.happen();
            let out = world.postbox::<u8>("late")?;
            out.post(patterned(world, 1, 100)?).map_err(Error::from)
        });
        about_to_wait.wait();
        let inbox = world.mailbox::<u8>("late").unwrap();
        assert_pattern(&inbox.retrieve().unwrap(), 1, 100);
        posting.join().unwrap().unwrap();
    });
}

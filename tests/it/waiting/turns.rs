//! Turns: threads that share a mailbox, where each waits for its own messages, and at most its own deadline.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::common::{LONG, SHORT, ranks};
use udeck::{Error, Mailbox, Match, Received, Result, Turns, WithTag, in_turn, lock_within};

type Shared = Mutex<Mailbox<u64>>;

fn lock(inbox: &Shared, limit: Duration) -> Result<Option<MutexGuard<'_, Mailbox<u64>>>> {
    let until = Instant::now() + limit;
    loop {
        match inbox.try_lock() {
            Ok(inbox) => return Ok(Some(inbox)),
            Err(TryLockError::Poisoned(_)) => panic!("another thread has failed"),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return Ok(None),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

fn retrieve(inbox: &Shared, turns: &Turns, matching: Match, limit: Duration) -> Result<Received<u64>> {
    let attempt =
        |inbox: &mut MutexGuard<'_, Mailbox<u64>>, limit| inbox.matching(matching).within(limit).retrieve();
    in_turn(&[turns], matching, limit, |limit| lock(inbox, limit), attempt)
}

#[test]
fn no_message_is_lost_by_threads_that_hand_a_mailbox_on() {
    const EACH: usize = 300;
    ranks(3, |world| {
        if world.rank() > 0 {
            let out = world.postbox::<u64>("in")?;
            (0..EACH).try_for_each(|nth| out.post([nth as u64].with_tag(nth as u32 % 4)))?;
        } else {
            let inbox = world.mailbox::<u64>("in")?;
            let turns = inbox.turns();
            let (inbox, left) = (Mutex::new(inbox), AtomicUsize::new(2 * EACH));
            let came = Mutex::new(vec![[0; EACH]; 2]);
            let take = |matching: Match| {
                while left.load(Ordering::Acquire) > 0 {
                    match retrieve(&inbox, &turns, matching, SHORT) {
                        Ok(message) => {
                            came.lock().unwrap()[message.source() - 1][message[0] as usize] += 1;
                            left.fetch_sub(1, Ordering::Release);
                        }
                        Err(Error::Deadline { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            std::thread::scope(|scope| {
                let of_tags = (0..3).map(Match::tag);
                for matching in of_tags.chain([Match::source(1), Match::source(2).and_tag(1), Match::ANY]) {
                    scope.spawn(move || take(matching));
                }
            });
            assert!(came.into_inner().unwrap().iter().flatten().all(|times| *times == 1));
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn a_short_wait_ends_beside_a_long_one() {
    ranks(1, |world| {
        let (inbox, out) = (world.mailbox::<u64>("in")?, world.postbox::<u64>("in")?);
        let turns = inbox.turns();
        let inbox = Mutex::new(inbox);
        std::thread::scope(|scope| {
            let long = scope.spawn(|| retrieve(&inbox, &turns, Match::tag(2), LONG));
            // The loop waits until the other thread holds the mailbox.
            while inbox.try_lock().is_ok() {
                std::thread::yield_now();
            }
            for _ in 0..5 {
                let error = retrieve(&inbox, &turns, Match::tag(1), SHORT).map(drop).unwrap_err();
                assert!(error.to_string().contains("to post"), "{error}");
                let look =
                    lock_within::<_, Error>(&[&turns], &"the mailbox", LONG, |limit| lock(&inbox, limit));
                assert!(look?.try_retrieve()?.is_none());
            }
            assert!(!long.is_finished());
            out.post([7].with_tag(2))?;
            assert_eq!(long.join().expect("it panicked")?[..], [7]);
            Ok::<(), Error>(())
        })?;
        world.finish()
    });
}

/// The thread that waits at the mailbox waits for another rank.
#[test]
fn each_thread_hears_that_its_own_rank_has_finished() {
    ranks(4, |world| {
        if world.rank() > 0 {
            let out = world.postbox::<u64>("in")?;
            out.post(&[1][..])?;
            return world.finish();
        }
        let inbox = world.mailbox::<u64>("in")?;
        let turns = inbox.turns();
        let inbox = Mutex::new(inbox);
        std::thread::scope(|scope| {
            let waits = [1, 2, 3].map(|rank| {
                let (inbox, turns) = (&inbox, &turns);
                scope.spawn(move || {
                    let next = || retrieve(inbox, turns, Match::source(rank), LONG);
                    (next().map(|message| message.source()), next().map(drop))
                })
            });
            for (rank, wait) in (1..).zip(waits) {
                let (first, second) = wait.join().expect("it panicked");
                assert_eq!(first.expect("it was posted"), rank);
                let error = second.unwrap_err();
                assert!(
                    matches!(error, Error::RankFinished { rank: of, .. } if of == rank)
                        || matches!(error, Error::NobodyLeft { .. }),
                    "{error}"
                );
            }
        });
        world.finish()
    });
}

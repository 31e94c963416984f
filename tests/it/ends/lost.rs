//! Losses: a rank that waits for another learns of its end, in every call, and never waits out its deadline.

use std::sync::mpsc;
use std::time::Duration;

use crate::common::{Event, LONG, SHORT, config, ranks_believing};
use udeck::{Config, Error, ExitKind, Result, World, select};

/// Longer than any test lasts: a wait for it would be noticed.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

fn endless() -> Config {
    let mut config = config();
    (config.deadline, config.setup) = (FOR_EVER, FOR_EVER);
    config
}

/// Runs ranks as `common::ranks` does, with deadlines that are never reached.
#[track_caller]
fn ranks<F>(size: u32, oversubscribed: bool, body: F)
where
    F: Fn(World) -> Result + Send + Sync + 'static,
{
    let (ended, wait) = mpsc::channel();
    let job = std::thread::spawn(move || {
        ranks_believing(size, |_| endless(), move |_| oversubscribed, body);
        let _ = ended.send(());
    });
    let waited = wait.recv_timeout(4 * LONG);
    assert_ne!(waited, Err(mpsc::RecvTimeoutError::Timeout), "somebody waits for ever");
    if let Err(panicked) = job.join() {
        std::panic::resume_unwind(panicked);
    }
}

fn is_loss_of(rank: usize, error: &Error) {
    let Error::PeerLost { rank: node, how } = error else { panic!("{error}") };
    assert_eq!((*node, how.as_str()), (rank, "closed its connection without saying goodbye"));
}

#[test]
fn a_rank_that_leaves_before_the_first_barrier_is_an_error_there() {
    for (size, leaver) in [(2, 1), (3, 0), (3, 2), (6, 0), (6, 4)] {
        for oversubscribed in [true, false] {
            ranks(size, oversubscribed, move |world| {
                if world.rank() == leaver {
                    return Ok(()); // without `finish`
                }
                is_loss_of(leaver, &world.barrier().unwrap_err());
                // The second attempt gives the same error, now that the loss is known.
                is_loss_of(leaver, &world.barrier().unwrap_err());
                world.finish()
            });
        }
    }
}

#[test]
fn a_rank_that_leaves_while_the_others_make_their_first_barrier_is_an_error_there() {
    for leaver in [0, 2] {
        ranks(3, true, move |world| {
            if world.rank() == leaver {
                // By then the others are waiting; otherwise this test equals the previous one.
                std::thread::sleep(Duration::from_millis(200));
                return Ok(());
            }
            is_loss_of(leaver, &world.barrier().unwrap_err());
            world.finish()
        });
    }
}

#[test]
fn a_rank_that_has_finished_comes_to_no_first_barrier() {
    for (size, leaver) in [(3, 0), (3, 2), (5, 1)] {
        ranks(size, true, move |world| {
            if world.rank() != leaver {
                let error = world.barrier().unwrap_err();
                assert!(matches!(error, Error::PeerLost { .. }), "{error}");
            }
            world.finish()
        });
    }
}

#[test]
fn the_mailbox_of_a_rank_that_left_is_not_waited_for() {
    let made = Event::new();
    ranks(3, true, move |world| {
        if world.rank() == 2 {
            let _inbox = world.mailbox::<u8>("in")?;
            made.happen();
            return Ok(()); // without `finish`
        }
        made.wait();
        // The mailbox may still exist; afterwards each attempt is an error.
        while world.postbox::<u8>("in").is_ok() {}
        is_loss_of(2, &world.postbox::<u8>("in").unwrap_err());
        is_loss_of(2, &world.try_postbox::<u8>("in").unwrap_err());
        world.finish()
    });
}

#[test]
fn the_mailbox_of_a_rank_that_finished_is_not_waited_for_until_another_makes_it() {
    let [made, gone] = [Event::new(), Event::new()];
    ranks(3, true, move |world| {
        match world.rank() {
            2 => {
                let _inbox = world.mailbox::<u8>("in")?;
                made.happen();
                return world.finish();
            }
            1 => {
                gone.wait();
                let inbox = world.mailbox::<u8>("in")?;
                inbox.retrieve()?;
            }
            _ => {
                made.wait();
                while world.postbox::<u8>("in").is_ok() {}
                let error = world.postbox::<u8>("in").unwrap_err();
                assert!(matches!(&error, Error::MailboxGone { name, rank: 2 } if name == "in"), "{error}");
                gone.happen();
                loop {
                    match world.postbox::<u8>("in") {
                        Ok(out) => break out.post(world.buf(1)?)?,
                        Err(Error::MailboxGone { .. }) => {}
                        Err(other) => return Err(other),
                    }
                }
            }
        }
        world.finish()
    });
}

#[test]
fn who_is_to_make_a_mailbox_can_be_said() {
    ranks(3, true, |world| {
        match world.rank() {
            0 => {
                is_loss_of(2, &world.postbox_of::<u8>("two", 2).unwrap_err());
                world.postbox_of::<u8>("one", 1)?.post(world.buf(1)?)?;
            }
            1 => {
                let inbox = world.mailboxes::<u8>("one")?;
                while inbox.retrieve().is_err() {}
            }
            _ => return Ok(()), // without `finish`
        }
        world.finish()
    });
}

#[test]
fn of_a_name_that_nobody_has_made_it_is_said_who_is_lost() {
    ranks(3, true, |world| {
        if world.rank() == 2 {
            return Ok(()); // without `finish`
        }
        is_loss_of(2, &world.barrier().unwrap_err());
        let error = world.postbox_timeout::<u8>("in", crate::common::SHORT).unwrap_err();
        assert!(matches!(&error, Error::NoSuchMailbox { lost, .. } if lost == &[2]), "{error}");
        assert!(
            error.to_string().contains("rank 2 is lost, and may be the rank that was to make it"),
            "{error}"
        );
        // Each of the two ranks must be told before the other one leaves.
        let told = world.mailbox::<u8>(&format!("told {}", world.rank()))?;
        world.postbox::<u8>(&format!("told {}", 1 - world.rank()))?.post(world.buf(1)?)?;
        while told.retrieve().is_err() {}
        world.finish()
    });
}

/// Nothing else wakes a rank that waits for ends alone: before it sleeps, between its poll and its sleep, or in
/// the sleep.
#[test]
fn who_waits_for_ends_alone_hears_of_each() {
    for pause in [Duration::ZERO, SHORT] {
        for _ in 0..10 {
            ranks(4, true, move |world| {
                if world.rank() == 0 {
                    let exits = world.rank_exits()?;
                    world.barrier()?;
                    for _ in 1..world.size() {
                        assert_eq!(select(&[&exits])?, 0);
                        assert_eq!(exits.try_next().expect("it was named").how, ExitKind::Finished);
                    }
                } else {
                    world.barrier()?;
                    std::thread::sleep(pause * world.rank() as u32);
                }
                world.finish()
            });
        }
    }
}

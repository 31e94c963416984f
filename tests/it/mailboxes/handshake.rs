//! `handshake` is synchronous: both sides know how it ended, and a message that was not received comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{LONG, SHORT, assert_pattern, config, len_and_source, patterned, ranks, ranks_with};
use udeck::{Error, Postbox, Protocol, Result, World};

fn by_handshake(world: &World, name: &str) -> Result<Postbox<u8>> {
    let out = world.postbox::<u8>(name)?;
    out.set_protocol(Protocol::Handshake)?;
    Ok(out)
}

#[test]
fn a_post_returns_when_its_message_was_received() {
    for len in [0, 1, 40, 41, 4096, (64 << 10) + 3, (1 << 20) + 1] {
        let retrieving = Arc::new(AtomicBool::new(false));
        ranks(2, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                world.barrier()?;
                // The message cannot be received before this point.
                retrieving.store(true, Ordering::SeqCst);
                assert_pattern(&inbox.retrieve()?, 7, len);
            } else {
                let out = by_handshake(&world, "in")?;
                let message = patterned(&world, 7, len)?;
                world.barrier()?;
                out.post(message)?;
                assert!(retrieving.load(Ordering::SeqCst));
                assert_eq!(world.stats().messages_posted, 1);
            }
            world.barrier()?;
            world.finish()
        });
    }
}

#[test]
fn a_receiver_too_small_says_so_and_the_message_can_be_posted_again() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u16>("in")?;
            let mut small = [0_u16; 10];
            let error = inbox.retrieve_into(&mut small).unwrap_err();
            assert!(matches!(error, Error::TooSmall { needed: 1000, have: 10, rank: 1 }), "{error}");
            let mut large = [0_u16; 1000];
            assert_eq!(len_and_source(inbox.retrieve_into(&mut large)?), (1000, 1));
            assert_pattern(&large, 3, 1000);
            assert_pattern(&inbox.retrieve()?, 4, 11);
        } else {
            let out = world.postbox::<u16>("in")?;
            let failed = out.post_with(Protocol::Handshake, patterned(&world, 3, 1000)?).unwrap_err();
            let Error::ReceiverBufferTooSmall { rank: 0, needed: 2000, have: 20 } = failed.error else {
                panic!("{}", failed.error)
            };
            let message = failed.message.expect("it was not received");
            assert_pattern(&message, 3, 1000);
            out.post_with(Protocol::Handshake, message)?;
            out.post_with(Protocol::Handshake, patterned(&world, 4, 11)?)?;
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn nobody_waits_in_a_try_post() {
    ranks(2, |world| {
        let inbox = (world.rank() == 0).then(|| world.mailbox::<u8>("in")).transpose()?;
        if inbox.is_none() {
            let out = by_handshake(&world, "in")?;
            let failed = out.try_post(patterned(&world, 1, 100)?).unwrap_err();
            assert!(matches!(failed.error, Error::WouldBlock { .. }), "{}", failed.error);
            assert_pattern(&failed.message.expect("it comes back"), 1, 100);
        }
        world.barrier()?;
        if let Some(inbox) = inbox {
            assert!(inbox.try_retrieve()?.is_none(), "nothing was posted");
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn a_post_that_gave_up_is_forgotten_on_both_sides() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            world.barrier()?;
            // Two of the requests here were given up by their posters, and one is alive.
            for seed in [3, 4, 5] {
                assert_pattern(&inbox.retrieve()?, seed, 1000 + seed);
            }
            world.barrier()?;
            assert!(inbox.try_retrieve()?.is_none());
        } else {
            let out = by_handshake(&world, "in")?;
            for seed in [1, 2] {
                let failed = out.post_timeout(patterned(&world, seed, 500)?, SHORT).unwrap_err();
                assert!(matches!(failed.error, Error::Deadline { .. }), "{}", failed.error);
                assert!(failed.error.to_string().contains("waited for rank 0"), "{}", failed.error);
                assert_pattern(&failed.message.expect("it was not sent"), seed, 500);
            }
            world.barrier()?;
            for seed in [3, 4] {
                out.post(patterned(&world, seed, 1000 + seed)?)?;
            }
            out.post_with(Protocol::Eager, patterned(&world, 5, 1005)?)?;
            world.barrier()?;
        }
        world.barrier()?;
        world.finish()
    });
}

/// The mailbox acknowledges the first request after its sender has given up: the descriptor that it posted ends with the
/// pair.
#[test]
fn a_descriptor_of_a_post_that_gave_up_takes_no_other_message() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            world.barrier()?;
            assert!(inbox.try_retrieve()?.is_none(), "acknowledged, and never sent");
            world.barrier()?;
            assert_pattern(&inbox.retrieve()?, 2, 700);
        } else {
            let out = by_handshake(&world, "in")?;
            out.post_timeout(patterned(&world, 1, 500)?, SHORT).unwrap_err();
            world.barrier()?;
            world.barrier()?;
            out.post(patterned(&world, 2, 700)?)?;
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn a_mailbox_that_goes_gives_the_message_back() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            world.barrier()?;
            drop(inbox);
        } else {
            let out = by_handshake(&world, "in")?;
            let message = patterned(&world, 1, 500)?;
            world.barrier()?;
            let failed = out.post(message).unwrap_err();
            assert!(matches!(failed.error, Error::MailboxGone { rank: 0, .. }), "{}", failed.error);
            assert_pattern(&failed.message.expect("nobody received it"), 1, 500);
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn a_receiver_without_memory_makes_the_sender_wait() {
    let mut config = config();
    config.arena = Some(4 << 20);
    ranks_with(2, &config, |world| {
        const LEN: usize = 3 << 20;
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            let hoarded = world.buf::<u8>(LEN)?;
            world.barrier()?;
            let error = inbox.retrieve_timeout(SHORT).unwrap_err();
            assert!(matches!(error, Error::Deadline { .. }), "{error}");
            drop(hoarded);
            assert_pattern(&inbox.retrieve_timeout(LONG)?, 1, LEN);
        } else {
            let out = by_handshake(&world, "in")?;
            let message = patterned(&world, 1, LEN)?;
            world.barrier()?;
            out.post(message)?;
        }
        world.barrier()?;
        world.finish()
    });
}

/// A post that gives up while its message is under way does not know whether it will arrive. If it does, it arrives before
/// messages that were posted later.
#[test]
fn a_message_that_was_given_up_comes_in_order_or_not_at_all() {
    const ROUNDS: usize = 300;
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            for round in 0..ROUNDS {
                world.barrier()?;
                // The mailbox may grant the request during these polls, or not.
                let mut came: Vec<u32> = Vec::new();
                for _ in 0..round % 30 {
                    came.extend(inbox.try_retrieve()?.map(|message| message.tag()));
                    std::thread::yield_now();
                }
                world.barrier()?;
                while came.last() != Some(&2) {
                    came.push(inbox.retrieve()?.tag());
                }
                assert!(came == [1, 2] || came == [2], "round {round}: {came:?}");
            }
        } else {
            let out = world.postbox::<u8>("in")?;
            let mut under_way = 0;
            for _ in 0..ROUNDS {
                let (first, second) = (world.buf::<u8>(100)?.with_tag(1), world.buf::<u8>(10)?.with_tag(2));
                world.barrier()?;
                out.set_protocol(Protocol::Handshake)?;
                let posted = out.post_timeout(first, std::time::Duration::from_millis(2));
                under_way += usize::from(posted.is_err_and(|failed| failed.message.is_none()));
                out.set_protocol(Protocol::Eager)?;
                out.post(second)?;
                world.barrier()?;
            }
            eprintln!("{under_way} of {ROUNDS} messages were given up when they were under way");
        }
        world.barrier()?;
        world.finish()
    });
}

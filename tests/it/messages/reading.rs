//! `rdma-read`: the receiver fetches the message; its sender has nothing more to do.

use crate::common::{Event, LONG, SHORT, assert_pattern, config, patterned, ranks, ranks_with};
use udeck::{Error, Postbox, Protocol, Result, World};

const LEN: usize = 3 << 20;

fn to_be_read(world: &World, name: &str) -> Result<Postbox<u8>> {
    let out = world.postbox::<u8>(name)?;
    out.set_protocol(Protocol::RdmaRead)?;
    Ok(out)
}

#[test]
fn messages_arrive_though_their_sender_calls_nothing_any_more() {
    let read = Event::new();
    ranks(2, move |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            world.barrier()?;
            for seed in 0..10 {
                assert_pattern(&inbox.retrieve()?, seed, 50_000);
            }
            read.happen();
        } else {
            let out = to_be_read(&world, "in")?;
            for seed in 0..10 {
                out.post(patterned(&world, seed, 50_000)?)?;
            }
            world.barrier()?;
            read.wait();
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn what_was_posted_is_read_after_its_postbox_is_gone() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            world.barrier()?;
            for seed in 0..20 {
                assert_pattern(&inbox.retrieve()?, seed, 5000);
            }
        } else {
            let out = to_be_read(&world, "in")?;
            for seed in 0..20 {
                out.post(patterned(&world, seed, 5000)?)?;
            }
            drop(out);
            world.barrier()?;
        }
        world.finish()
    });
}

/// The announcement stays, and so does the order behind it; the error says that memory is missing.
#[test]
fn a_receiver_without_memory_loses_nothing() {
    let mut config = config();
    config.arena = Some(4 << 20);
    ranks_with(3, &config, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            let hoarded = world.buf::<u8>(LEN)?;
            world.barrier()?;
            // Another rank's messages pass.
            assert_pattern(&inbox.retrieve()?, 5, 10);
            for _ in 0..2 {
                assert!(inbox.try_retrieve()?.is_none());
                let error = inbox.retrieve_timeout(SHORT).unwrap_err();
                let Error::Deadline { whom, .. } = &error else { panic!("{error}") };
                assert!(whom.contains("memory for the 3145728 bytes that rank 1 announced"), "{error}");
                assert!(whom.contains("DECK_ARENA"), "{error}");
            }
            drop(hoarded);
            assert_pattern(&inbox.retrieve_timeout(LONG)?, 1, LEN);
            for seed in [2, 3] {
                assert_pattern(&inbox.retrieve()?, seed, 10);
            }
        } else if world.rank() == 1 {
            let out = to_be_read(&world, "in")?;
            out.post(patterned(&world, 1, LEN)?)?;
            out.post_with(Protocol::Eager, patterned(&world, 2, 10)?)?;
            out.post(patterned(&world, 3, 10)?)?;
            world.barrier()?;
        } else {
            world.postbox::<u8>("in")?.post(patterned(&world, 5, 10)?)?;
            world.barrier()?;
        }
        world.barrier()?;
        world.finish()
    });
}

/// More messages are posted than may wait to be read, from several postboxes.
#[test]
fn what_waits_to_be_read_is_bounded_and_wakes_its_poster() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox_with_queue::<u8>("in", 0)?;
            world.barrier()?;
            let mut next = [0; 2];
            for _ in 0..400 {
                let received = inbox.retrieve()?;
                let (which, seed) = (received.tag() as usize / 1000, received.tag() as usize % 1000);
                assert_eq!(seed, next[which]);
                next[which] += 1;
            }
        } else {
            let postboxes = [to_be_read(&world, "in")?, to_be_read(&world, "in")?];
            let mut taken = 0;
            while postboxes[0].try_post(patterned(&world, taken, 100)?).is_ok() {
                taken += 1;
            }
            assert!((16..100).contains(&taken), "{taken}");
            world.barrier()?;
            for seed in taken..200 {
                postboxes[0].post(patterned(&world, seed, 100)?)?;
            }
            for seed in 0..200 {
                postboxes[1].post(patterned(&world, 1000 + seed, 100)?)?;
            }
        }
        world.barrier()?;
        world.finish()
    });
}

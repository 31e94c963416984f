//! Posts that fail give the message back; no accepted message is lost.

use std::time::Instant;

use crate::common::{
    Event, LONG, SHORT, alone, assert_pattern, asynchronous, hoard, len_and_source, patterned, ranks,
};
use udeck::{Error, Packed, Postbox, Protocol, World};

#[test]
fn a_post_to_a_destroyed_mailbox_gives_the_message_back() {
    for protocol in asynchronous() {
        let world = alone(8 << 20);
        for len in [3, 5000] {
            let inbox = world.mailbox::<u8>("in").unwrap();
            let out = world.postbox::<u8>("in").unwrap();
            out.set_protocol(protocol).unwrap();
            drop(inbox);
            for seed in 0..3 {
                let failed = out.post(patterned(&world, seed, len).unwrap()).unwrap_err();
                let Error::MailboxGone { name, rank: 0 } = &failed.error else {
                    panic!("{protocol}: {}", failed.error)
                };
                assert_eq!(name, "in");
                let message = failed.message.expect("nobody saw it");
                assert_eq!(message.tag() as usize, seed);
                assert_pattern(&message, seed, len);
            }
        }
        world.finish().unwrap();
    }
}

#[test]
fn a_packed_message_that_comes_back_can_be_packed_further_and_posted_elsewhere() {
    let world = alone(8 << 20);
    let gone = world.mailbox::<Packed>("gone").unwrap();
    let (dead, inbox) = (world.postbox::<Packed>("gone").unwrap(), world.mailbox::<Packed>("in").unwrap());
    drop(gone);
    let mut message = world.message(200).unwrap();
    message.pack(&[1_i32, 2]).unwrap();
    let mut message = dead.post(message.with_tag(9)).unwrap_err().message.unwrap();
    assert_eq!((message.tag(), message.capacity(), message.len()), (9, 200, 16));
    message.pack_str("more").unwrap();
    world.postbox::<Packed>("in").unwrap().post(message).unwrap();
    let received = inbox.retrieve().unwrap();
    assert_eq!(received.tag(), 9);
    assert_eq!(received.unpack::<i32>().unwrap(), [1, 2]);
    assert_eq!(received.unpack_str().unwrap(), "more");
}

/// Posts until the mailbox takes no more; returns the number of accepted messages.
fn fill(world: &World, out: &Postbox<u8>, len: usize) -> usize {
    for seed in 0.. {
        if let Err(failed) = out.try_post(patterned(world, seed, len).unwrap()) {
            assert!(matches!(failed.error, Error::WouldBlock { .. }), "{}", failed.error);
            assert!(failed.error.to_string().contains("\"in\""), "{}", failed.error);
            assert_pattern(&failed.message.expect("it comes back"), seed, len);
            return seed;
        }
    }
    unreachable!("a mailbox that nobody reads has a bound");
}

#[test]
fn a_full_mailbox_makes_posts_wait_and_gives_messages_back_at_the_deadline() {
    for protocol in asynchronous() {
        for len in [3, 5000] {
            let world = alone(64 << 20);
            let inbox = world.mailbox_with_queue::<u8>("in", 0).unwrap();
            let out = world.postbox::<u8>("in").unwrap();
            out.set_protocol(protocol).unwrap();
            let taken = fill(&world, &out, len);
            assert!(taken >= 16, "{protocol}: {taken}");

            let message = patterned(&world, taken, len).unwrap();
            let start = Instant::now();
            let failed = out.post_timeout(message, SHORT).unwrap_err();
            assert!(start.elapsed() >= SHORT);
            assert!(matches!(&failed.error, Error::Deadline { waited, .. } if !waited.is_zero()));
            assert!(failed.error.to_string().contains("rank 0 to retrieve"), "{}", failed.error);
            let message = failed.message.expect("it comes back");

            std::thread::scope(|scope| {
                let posting = scope.spawn(move || out.post(message).map_err(|failed| failed.error));
                for seed in 0..=taken {
                    assert_pattern(&inbox.retrieve().unwrap(), seed, len);
                }
                posting.join().unwrap().unwrap();
            });
            assert!(inbox.try_retrieve().unwrap().is_none());
        }
    }
}

#[test]
fn memory_that_comes_free_wakes_a_post_that_waits_for_it() {
    let world = alone(4 << 20);
    let _inbox = world.mailbox::<u8>("in").unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    out.set_protocol(Protocol::Eager).unwrap();
    let (message, hoarded) = hoard(&world, 64 << 10);
    let mut message = Some(message);
    // There is no room for the copy that `eager` makes.
    let failed = out.try_post(message.take().unwrap()).unwrap_err();
    assert!(matches!(failed.error, Error::WouldBlock { .. }), "{}", failed.error);
    let message = failed.message.unwrap();
    let (about_to_wait, posted) = (Event::new(), Event::new());
    std::thread::scope(|scope| {
        let (about, done) = (about_to_wait.clone(), posted.clone());
        scope.spawn(move || {
            about.happen();
            out.post_timeout(message, 4 * LONG).unwrap();
            done.happen();
        });
        about_to_wait.wait();
        // The post is most likely asleep by now; otherwise it finds the memory at once.
        std::thread::sleep(SHORT);
        drop(hoarded);
        posted.wait();
    });
}

#[test]
fn a_buffer_that_is_too_small_loses_nothing_and_blocks_only_its_postbox() {
    ranks(3, |world| {
        if world.rank() != 0 {
            // Rank 1 posts long, then short messages, rank 2 only short ones.
            let out = world.postbox::<u16>("in")?;
            let lengths: &[usize] = if world.rank() == 1 { &[1000, 1, 2] } else { &[3, 4] };
            for (at, len) in lengths.iter().enumerate() {
                out.post(patterned(&world, 10 * world.rank() + at, *len)?)?;
            }
            world.barrier()?;
            world.barrier()?;
            return world.finish();
        }
        let inbox = world.mailbox::<u16>("in")?;
        world.barrier()?;
        let mut small = [0_u16; 10];
        for (at, len) in [3, 4].into_iter().enumerate() {
            assert_eq!(len_and_source(inbox.retrieve_into(&mut small)?), (len, 2));
            assert_pattern(&small[..len], 20 + at, len);
        }
        for _ in 0..2 {
            let error = inbox.retrieve_into(&mut small).unwrap_err();
            assert!(matches!(error, Error::TooSmall { needed: 1000, have: 10, rank: 1 }), "{error}");
        }
        let mut large = [0_u16; 1000];
        assert_eq!(len_and_source(inbox.retrieve_into(&mut large)?), (1000, 1));
        assert_pattern(&large, 10, 1000);
        assert_eq!(len_and_source(inbox.retrieve_into(&mut small)?), (1, 1));
        assert_pattern(&small[..1], 11, 1);
        assert_eq!(*inbox.retrieve()?, crate::common::pattern_of::<u16>(12, 2)[..]);
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn what_did_not_fit_can_also_be_retrieved_where_it_lies() {
    let world = alone(8 << 20);
    let inbox = world.mailbox::<u128>("in").unwrap();
    let out = world.postbox::<u128>("in").unwrap();
    for (at, len) in [2, 1000, 1].into_iter().enumerate() {
        out.post(patterned(&world, at, len).unwrap()).unwrap();
    }
    let mut one = [0_u128];
    assert!(matches!(inbox.retrieve_into(&mut one), Err(Error::TooSmall { needed: 2, have: 1, rank: 0 })));
    assert_pattern(&inbox.retrieve().unwrap(), 0, 2);
    assert!(matches!(inbox.retrieve_into(&mut one), Err(Error::TooSmall { needed: 1000, .. })));
    assert_pattern(&inbox.retrieve().unwrap(), 1, 1000);
    assert_eq!(len_and_source(inbox.retrieve_into(&mut one).unwrap()), (1, 0));
    assert_pattern(&one, 2, 1);
}

#[test]
fn finishing_tells_what_was_announced_and_never_fetched() {
    for protocol in [Protocol::RdmaWrite, Protocol::Copy, Protocol::RdmaRead] {
        ranks(2, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                world.barrier()?;
                drop(inbox);
                return world.finish();
            }
            let out = world.postbox::<u8>("in")?;
            out.set_protocol(protocol)?;
            for seed in 0..3 {
                out.post(patterned(&world, seed, 5000)?)?;
            }
            world.barrier()?;
            let error = world.finish().unwrap_err();
            let Error::Undelivered { count: 3, name, rank: 0, .. } = &error else { panic!("{error}") };
            assert_eq!(name, "in");
            Ok(())
        });
    }
}

#[test]
fn the_next_post_tells_of_losses_and_gives_its_message_back() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            world.barrier()?;
            drop(inbox);
            world.barrier()?;
            return world.finish();
        }
        let (out, mut lost) = (world.postbox::<u8>("in")?, 0);
        out.set_protocol(Protocol::RdmaWrite)?;
        out.post(patterned(&world, 0, 5000)?)?;
        world.barrier()?;
        world.barrier()?;
        loop {
            let failed = out.post(patterned(&world, 1, 5000)?).unwrap_err();
            assert_pattern(&failed.message.expect("nobody saw it"), 1, 5000);
            match failed.error {
                Error::Undelivered { count, .. } => lost += count,
                Error::MailboxGone { .. } if lost == 1 => break,
                // The next post sees the loss.
                Error::MailboxGone { .. } => {}
                other => panic!("{other}"),
            }
        }
        world.finish()
    });
}

#[test]
fn a_message_that_finds_no_memory_to_be_aligned_in_stays() {
    let world = alone(4 << 20);
    let inbox = world.mailbox::<u128>("in").unwrap();
    let out = world.postbox::<u128>("in").unwrap();
    for seed in 0..2 {
        out.post(patterned(&world, seed, 1).unwrap()).unwrap();
    }
    let hoarded = hoard(&world, 64 << 10);
    let error = inbox.retrieve().unwrap_err();
    assert!(matches!(error, Error::NoMemory { .. }), "{error}");
    // A message can be retrieved into the caller's own memory at any time.
    let mut one = [0];
    assert_eq!(len_and_source(inbox.retrieve_into(&mut one).unwrap()), (1, 0));
    assert_pattern(&one, 0, 1);
    assert!(inbox.retrieve().is_err());
    drop(hoarded);
    assert_pattern(&inbox.retrieve().unwrap(), 1, 1);
}

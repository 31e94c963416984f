//! Message memory: its bounds are reported, held memory is not reused, and released memory comes back.

use crate::common::{PROTOCOLS, alone, assert_pattern, asynchronous, patterned, ranks};
use udeck::{Error, Protocol, Result, World};

const ARENA: usize = 8 << 20;
const LARGE: usize = 1 << 20;
/// Number of messages, larger than the arena has room for.
const MANY: usize = 40;

#[test]
fn a_message_larger_than_the_arena() {
    let world = alone(4 << 20);
    let error = world.buf::<u8>(64 << 20).unwrap_err();
    assert!(matches!(error, Error::TooLarge { asked, limit } if asked == 64 << 20 && limit <= 4 << 20));
    assert!(error.to_string().contains("DECK_ARENA"), "{error}");
    assert!(matches!(world.buf::<u128>(usize::MAX), Err(Error::TooLarge { .. })));
    assert!(matches!(world.message(64 << 20), Err(Error::TooLarge { .. })));
}

#[test]
fn an_arena_that_is_used_up_says_so_and_recovers() {
    let world = alone(ARENA);
    for _ in 0..3 {
        let mut held = Vec::new();
        let error = loop {
            match world.buf::<u8>(LARGE) {
                Ok(buf) => held.push(buf),
                Err(error) => break error,
            }
        };
        assert!(held.len() >= 6, "{} of 8", held.len());
        let text = error.to_string();
        assert!(text.contains("arena") && text.contains("DECK_ARENA"), "{text}");
    }
}

#[test]
fn fresh_messages_are_zeroed_and_aligned_also_in_used_memory() {
    let world = alone(ARENA);
    for len in [1, 100, 5000, LARGE] {
        let mut used = world.buf::<u8>(len).unwrap();
        used.fill(0xAA);
        drop(used);
        let fresh = world.buf::<u8>(len).unwrap();
        assert!(fresh.iter().all(|byte| *byte == 0));
        assert_eq!((fresh.as_ptr().addr() % 64, fresh.tag()), (0, 0));
        assert_eq!(world.buf_reused::<u8>(len).unwrap().len(), len);
    }
}

/// Repeats an operation with a large message so often that the arena would be exhausted if the memory did not
/// come back.
fn comes_home(mut once: impl FnMut(&World, Protocol, usize) -> Result) {
    for protocol in asynchronous() {
        let world = alone(ARENA);
        for seed in 0..MANY {
            once(&world, protocol, seed).unwrap_or_else(|error| panic!("{protocol}, round {seed}: {error}"));
        }
    }
}

#[test]
fn buffers_come_home_after_their_postbox_is_gone() {
    comes_home(|world, protocol, seed| {
        let inbox = world.mailbox::<u8>("in")?;
        let out = world.postbox::<u8>("in")?;
        out.set_protocol(protocol)?;
        out.post(patterned(world, seed, LARGE)?)?;
        drop(out);
        let received = inbox.retrieve()?;
        assert_pattern(&received, seed, LARGE);
        Ok(())
    });
}

#[test]
fn buffers_come_home_after_their_mailbox_is_gone() {
    comes_home(|world, protocol, seed| {
        let inbox = world.mailbox::<u8>("in")?;
        let out = world.postbox::<u8>("in")?;
        out.set_protocol(protocol)?;
        out.post(patterned(world, seed, LARGE)?)?;
        let received = inbox.retrieve()?;
        drop((inbox, out));
        assert_pattern(&received, seed, LARGE);
        Ok(())
    });
}

#[test]
fn buffers_of_messages_that_nobody_read_come_home() {
    comes_home(|world, protocol, seed| {
        let inbox = world.mailbox::<u8>("in")?;
        let out = world.postbox::<u8>("in")?;
        out.set_protocol(protocol)?;
        out.post(patterned(world, seed, LARGE)?)?;
        drop(inbox);
        drop(out);
        Ok(())
    });
}

#[test]
fn buffers_that_were_set_aside_come_home() {
    comes_home(|world, protocol, seed| {
        let inbox = world.mailbox::<u8>("in")?;
        let out = world.postbox::<u8>("in")?;
        out.set_protocol(protocol)?;
        out.post(patterned(world, seed, LARGE)?)?;
        let mut too_small = [0; 10];
        loop {
            match inbox.retrieve_into(&mut too_small) {
                Err(Error::TooSmall { needed: LARGE, .. }) => return Ok(()),
                other => assert!(other.is_err(), "too large for the buffer"),
            }
        }
    });
}

#[test]
fn a_receiver_that_keeps_everything_does_not_stop_its_sender() {
    const KEPT: usize = 100;
    const LEN: usize = 64 << 10;
    for protocol in PROTOCOLS {
        ranks(2, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                let kept = inbox.iter().take(KEPT).collect::<Result<Vec<_>>>()?;
                world.barrier()?; // the sender has reused its memory
                for (seed, received) in kept.iter().enumerate() {
                    assert_pattern(received, seed, LEN);
                }
                // The messages may be dropped on any thread.
                std::thread::spawn(move || drop(kept)).join().expect("dropping panicked");
                world.barrier()?;
                for seed in 0..KEPT {
                    assert_pattern(&inbox.retrieve()?, seed, LEN);
                }
            } else {
                let out = world.postbox::<u8>("in")?;
                out.set_protocol(protocol)?;
                for _ in 0..2 {
                    for seed in 0..KEPT {
                        out.post(patterned(&world, seed, LEN)?)?;
                    }
                    (0..KEPT).try_for_each(|_| world.buf::<u8>(LEN).map(|mut buf| buf.fill(0xAA)))?;
                    if world.stats().messages_posted < 2 * KEPT as u64 {
                        world.barrier()?;
                        world.barrier()?;
                    }
                }
            }
            world.barrier()?;
            world.finish()
        });
    }
}

#[test]
fn messages_outlive_the_world_and_their_mailbox() {
    for protocol in asynchronous() {
        let world = alone(ARENA);
        let inbox = world.mailbox::<u8>("in").unwrap();
        let out = world.postbox::<u8>("in").unwrap();
        out.set_protocol(protocol).unwrap();
        let mine = patterned::<u8>(&world, 1, LARGE).unwrap();
        out.post(patterned(&world, 2, LARGE).unwrap()).unwrap();
        let received = inbox.retrieve().unwrap();
        drop((inbox, out));
        world.finish().unwrap();
        assert_pattern(&mine, 1, LARGE);
        assert_pattern(&received, 2, LARGE);
    }
}

#[test]
fn mailboxes_and_postboxes_outlive_the_world() {
    let world = alone(ARENA);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    let message = patterned(&world, 3, 5000).unwrap();
    drop(world);
    out.post(message).unwrap();
    assert_pattern(&inbox.retrieve().unwrap(), 3, 5000);
}

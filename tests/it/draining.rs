//! `Mailbox::drain`: all the messages that are there, by one call.

use std::time::{Duration, Instant};

use crate::common::{assert_pattern, patterned, ranks};
use udeck::{Result, World};

/// Lengths in bytes: inside the descriptor, at its edge, handed off, and longer than that.
const LENGTHS: [usize; 6] = [8, 0, 40, 41, 5_000, 300_000];

/// Drains until `count` messages have come, or too much time has passed.
fn drained(world: &World, count: usize, most: usize) -> Result {
    let inbox = world.mailbox::<u8>("in")?;
    world.barrier()?;
    let (mut seen, start) = (0, Instant::now());
    while seen < count {
        let before = seen;
        let taken = inbox.drain(most, |received| {
            assert_eq!((received.source(), received.tag() as usize), (1, seen));
            assert_pattern(received, seen, LENGTHS[seen % LENGTHS.len()]);
            seen += 1;
        })?;
        assert_eq!(taken, seen - before);
        assert!(taken <= most);
        assert!(start.elapsed() < Duration::from_secs(60), "{seen} of {count} came");
    }
    assert_eq!(inbox.drain(most, |_| unreachable!("no more came"))?, 0);
    world.barrier()
}

#[test]
fn messages_of_all_lengths_come_in_order() {
    const COUNT: usize = 300;
    ranks(2, |world| {
        for most in [1, 7, usize::MAX] {
            if world.rank() == 0 {
                drained(&world, COUNT, most)?;
            } else {
                world.barrier()?;
                let out = world.postbox::<u8>("in")?;
                for at in 0..COUNT {
                    out.post(patterned(&world, at, LENGTHS[at % LENGTHS.len()])?)?;
                }
                out.flush()?;
                drop(out);
                world.barrier()?;
            }
            world.barrier()?;
        }
        world.finish()
    });
}

#[test]
fn whoever_sees_a_message_may_take_the_next_one() {
    ranks(1, |world| {
        let (inbox, out) = (world.mailbox::<u32>("own")?, world.postbox::<u32>("own")?);
        (0..6).for_each(|number| out.post(&[number][..]).unwrap());
        let mut pairs = Vec::new();
        let taken = inbox.drain(2, |received| {
            let next = inbox.try_retrieve().expect("it is there").expect("it is there");
            pairs.push((received[0], next[0]));
        })?;
        assert_eq!((taken, pairs), (2, vec![(0, 1), (2, 3)]));
        assert_eq!(inbox.retrieve()?[0], 4);
        world.finish()
    });
}

#[test]
fn nothing_is_lost_when_who_sees_it_panics() {
    ranks(1, |world| {
        let (inbox, out) = (world.mailbox::<u32>("own")?, world.postbox::<u32>("own")?);
        (0..3).for_each(|number| out.post(&[number][..]).unwrap());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            inbox.drain(3, |received| assert!(received[0] != 1, "as the test wants"))
        }));
        assert!(panicked.is_err());
        assert_eq!(inbox.retrieve()?[0], 2);
        world.finish()
    });
}

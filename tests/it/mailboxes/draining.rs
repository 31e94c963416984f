//! `Mailbox::drain`: takes all available messages in one call.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use crate::common::{LONG, assert_pattern, patterned, ranks};
use udeck::{Result, World, select_timeout};

/// Lengths in bytes: inside the descriptor, at its edge, handed off, and longer than that.
const LENGTHS: [usize; 6] = [8, 0, 40, 41, 5_000, 300_000];

/// Drains until `count` messages have arrived, or too much time has passed.
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

/// Payload of an intended panic.
struct Wanted;

/// Any call between two messages of a run, and a panic that leaves the run at any point, keep the order.
#[test]
fn every_call_sees_the_messages_in_order() {
    ranks(1, |world| {
        let (inbox, out) = (world.mailbox::<u64>("own")?, world.postbox::<u64>("own")?);
        let next = Cell::new(0);
        let see = |value: &[u64]| {
            assert_eq!(value[0], next.get());
            next.set(next.get() + 1);
        };
        let (mut posted, mut seed) = (0, 12345_u64);
        for _ in 0..2_000 {
            let count = 1 + random(&mut seed, 40);
            for value in posted..posted + count {
                // Occasionally a message is handed off.
                let long = random(&mut seed, 12) == 0;
                out.post(&[value; 6][..if long { 6 } else { 1 }])?;
            }
            posted += count;
            while next.get() < posted {
                let most = 1 + random(&mut seed, 50) as usize;
                let drain = || {
                    inbox.drain(most, |received| {
                        see(received);
                        match random(&mut seed, 12) {
                            0 => drop(inbox.try_retrieve().unwrap().map(|received| see(&received))),
                            1 => {
                                let mut value = [0; 6];
                                if inbox.try_retrieve_into(&mut value).unwrap().is_some() {
                                    see(&value);
                                }
                            }
                            2 => drop(inbox.drain(2, |received| see(received)).unwrap()),
                            3 if next.get() < posted => {
                                let selected = select_timeout(&[&inbox], LONG).unwrap();
                                assert_eq!(selected, 0);
                            }
                            4 if next.get() < posted => see(&inbox.retrieve().unwrap()),
                            5 => resume_unwind(Box::new(Wanted)),
                            _ => {}
                        }
                    })
                };
                match catch_unwind(AssertUnwindSafe(drain)) {
                    Err(panicked) if !panicked.is::<Wanted>() => resume_unwind(panicked),
                    drained => drop(drained),
                }
            }
            assert!(inbox.try_retrieve()?.is_none());
        }
        world.finish()
    });
}

fn random(seed: &mut u64, below: u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed % below
}

#[test]
fn nothing_is_lost_when_who_sees_it_panics() {
    ranks(1, |world| {
        let (inbox, out) = (world.mailbox::<u32>("own")?, world.postbox::<u32>("own")?);
        (0..3).for_each(|number| out.post(&[number][..]).unwrap());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            inbox.drain(3, |received| assert!(received[0] != 1, "as the test wants"))
        }));
        assert!(panicked.is_err());
        assert_eq!(inbox.retrieve()?[0], 2);
        world.finish()
    });
}

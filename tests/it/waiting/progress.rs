//! A posted message arrives although its poster never calls the library again.

use std::time::{Duration, Instant};

use crate::common::{Event, LONG, PROTOCOLS, SHORT, assert_pattern, asynchronous, patterned, ranks};
use udeck::{Protocol, Result};

const SIZES: [usize; 3] = [8, 5000, (1 << 20) + 3];

#[test]
fn the_poster_may_block_elsewhere_until_the_message_is_there() {
    for protocol in PROTOCOLS {
        let arrived = Event::new();
        ranks(2, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                for (at, len) in SIZES.into_iter().enumerate() {
                    assert_pattern(&inbox.retrieve()?, at, len);
                }
                arrived.happen();
            } else {
                let out = world.postbox::<u8>("in")?;
                out.set_protocol(protocol)?;
                for (at, len) in SIZES.into_iter().enumerate() {
                    out.post(patterned(&world, at, len)?)?;
                }
                arrived.wait();
            }
            world.finish()
        });
    }
}

/// The helper goes to sleep when nothing waits. A later post wakes it, also on the postbox that it already knows.
#[test]
fn a_helper_that_sleeps_is_woken_by_the_next_message() {
    for protocol in [Protocol::RdmaWrite, Protocol::Copy] {
        let arrived: [_; 2] = std::array::from_fn(|_| Event::new());
        ranks(2, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                for (at, arrived) in arrived.iter().enumerate() {
                    assert_pattern(&inbox.retrieve()?, at, 5000);
                    arrived.happen();
                }
            } else {
                let out = world.postbox::<u8>("in")?;
                out.set_protocol(protocol)?;
                for (at, arrived) in arrived.iter().enumerate() {
                    out.post(patterned(&world, at, 5000)?)?;
                    arrived.wait();
                    // No event shows that the helper has gone to sleep, 50 of its ticks later. If it has not,
                    // the test is only easier.
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
            world.finish()
        });
    }
}

#[test]
fn two_ranks_announce_to_each_other_before_either_retrieves() {
    for protocol in [Protocol::RdmaWrite, Protocol::Copy] {
        ranks(2, move |world| {
            let (rank, peer) = (world.rank(), 1 - world.rank());
            let inbox = world.mailbox::<u8>(&format!("in{rank}"))?;
            let out = world.postbox::<u8>(&format!("in{peer}"))?;
            out.set_protocol(protocol)?;
            for at in 0..8 {
                out.post(patterned(&world, 10 * rank + at, 1 << 20)?)?;
            }
            world.barrier()?;
            for at in 0..8 {
                assert_pattern(&inbox.retrieve()?, 10 * peer + at, 1 << 20);
            }
            world.barrier()?;
            world.finish()
        });
    }
}

#[test]
fn a_dropped_postbox_loses_nothing() {
    for protocol in asynchronous() {
        let (posted, arrived) = (Event::new(), Event::new());
        ranks(2, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                posted.wait();
                for (at, len) in SIZES.into_iter().enumerate() {
                    assert_pattern(&inbox.retrieve()?, at, len);
                }
                arrived.happen();
            } else {
                let out = world.postbox::<u8>("in")?;
                out.set_protocol(protocol)?;
                for (at, len) in SIZES.into_iter().enumerate() {
                    out.post(patterned(&world, at, len)?)?;
                }
                drop(out);
                posted.happen();
                arrived.wait();
            }
            world.finish()
        });
    }
}

#[test]
fn a_rank_that_finishes_leaves_its_messages_behind() {
    for protocol in PROTOCOLS {
        ranks(2, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                for (at, len) in SIZES.into_iter().enumerate() {
                    assert_pattern(&inbox.retrieve()?, at, len);
                }
            } else {
                let out = world.postbox::<u8>("in")?;
                out.set_protocol(protocol)?;
                for (at, len) in SIZES.into_iter().enumerate() {
                    out.post(patterned(&world, at, len)?)?;
                }
            }
            world.finish()
        });
    }
}

#[test]
fn finishing_first_and_reading_afterwards_works_for_messages_that_need_no_answer() {
    for protocol in [Protocol::Auto, Protocol::Eager, Protocol::HandOff] {
        let gone = Event::new();
        ranks(2, move |world| {
            if world.rank() == 1 {
                let out = world.postbox::<u8>("in")?;
                out.set_protocol(protocol)?;
                for (at, len) in SIZES.into_iter().enumerate() {
                    out.post(patterned(&world, at, len)?)?;
                }
                drop(out);
                world.finish()?;
                gone.happen();
                return Ok(());
            }
            let inbox = world.mailbox::<u8>("in")?;
            gone.wait();
            let received = SIZES.iter().map(|_| inbox.retrieve()).collect::<Result<Vec<_>>>()?;
            for (at, (received, len)) in received.iter().zip(SIZES).enumerate() {
                assert_pattern(received, at, len);
            }
            world.finish()
        });
    }
}

/// The connection ends, whether the helper or the dropping thread is the last to poll the postbox.
#[test]
fn a_dropped_postbox_ends_its_connection_whoever_delivers_last() {
    const ROUNDS: usize = 200;
    let (sent, over) = (Event::new(), Event::new());
    ranks(2, move |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            for _ in 0..ROUNDS {
                let received = inbox.retrieve()?; // of different postboxes: in any order
                assert_pattern(&received, received.tag() as usize, 300);
            }
            sent.wait();
            // The mailbox's error names the ranks to which it is connected.
            let deadline = Instant::now() + LONG;
            loop {
                let error = inbox.retrieve_timeout(SHORT).unwrap_err().to_string();
                if error.contains("any rank") {
                    break;
                }
                assert!(Instant::now() < deadline, "{error}");
            }
            over.happen();
        } else {
            for round in 0..ROUNDS {
                let out = world.postbox::<u8>("in")?;
                out.set_protocol(Protocol::RdmaWrite)?;
                out.post(patterned(&world, round, 300)?)?;
            }
            sent.happen();
            over.wait();
        }
        world.finish()
    });
}

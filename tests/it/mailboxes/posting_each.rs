//! `Postbox::post_each`: many short messages in one call.

use std::time::Duration;

use crate::common::{SHORT, ranks};
use udeck::{Error, PostEachError, Protocol};

/// An element that does not fit into a descriptor.
type Long = [u64; 6];

#[test]
fn each_element_is_a_message_behind_those_before() {
    ranks(2, |world| {
        const COUNT: u64 = 1_000;
        if world.rank() == 0 {
            let inbox = world.mailbox::<u64>("in")?;
            world.barrier()?;
            for wanted in 0..3 * COUNT {
                let received = inbox.retrieve()?;
                assert_eq!((received.to_vec(), received.source(), received.tag()), (vec![wanted], 1, 0));
            }
        } else {
            world.barrier()?;
            let out = world.postbox::<u64>("in")?;
            for start in [0, COUNT, 2 * COUNT] {
                let mut buf = world.buf(1)?;
                buf[0] = start;
                out.post(buf)?;
                out.post_each(&(start + 1..start + COUNT).collect::<Vec<_>>())?;
            }
            out.post_each(&[])?;
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn long_elements_and_other_protocols_go_their_own_ways() {
    ranks(2, |world| {
        let protocols = [Protocol::Auto, Protocol::Copy, Protocol::RdmaWrite, Protocol::Eager];
        if world.rank() == 0 {
            let inbox = world.mailbox::<Long>("in")?;
            world.barrier()?;
            for wanted in 0..(100 * protocols.len() as u64) {
                assert_eq!(*inbox.retrieve()?, [[wanted; 6]]);
            }
        } else {
            world.barrier()?;
            let out = world.postbox::<Long>("in")?;
            for (turn, protocol) in protocols.into_iter().enumerate() {
                out.set_protocol(protocol)?;
                let first = turn as u64 * 100;
                out.post_each(&(first..first + 100).map(|value| [value; 6]).collect::<Vec<_>>())?;
            }
            out.flush()?;
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn who_finds_no_room_hears_how_many_were_posted() {
    ranks(2, |world| {
        let values: Vec<u32> = (0..100_000).collect();
        if world.rank() == 0 {
            let (inbox, told) = (world.mailbox::<u32>("in")?, world.mailbox::<u64>("told")?);
            world.barrier()?;
            let posted = told.retrieve()?[0];
            for wanted in 0..posted {
                assert_eq!(u64::from(inbox.retrieve()?[0]), wanted);
            }
            assert!(inbox.try_retrieve()?.is_none(), "not a message more than was said");
        } else {
            world.barrier()?;
            let (out, tell) = (world.postbox::<u32>("in")?, world.postbox::<u64>("told")?);
            let PostEachError { posted, error } = out.post_each_timeout(&values, SHORT).unwrap_err();
            assert!(matches!(error, Error::Deadline { .. }), "{error}");
            assert!(0 < posted && posted < values.len(), "{posted}");
            tell.post(&[posted as u64][..])?;
        }
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn a_mailbox_that_is_gone_is_named() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u64>("in")?;
            world.barrier()?;
            assert_eq!(inbox.retrieve()?[0], 0);
        } else {
            world.barrier()?;
            let out = world.postbox::<u64>("in")?;
            let mut first = 0;
            let failed = loop {
                match out.post_each(&[first, 1, 2]) {
                    Ok(()) => first += 1,
                    // The losses of waiting messages are reported first.
                    Err(PostEachError { error: Error::Undelivered { .. }, .. }) => {}
                    Err(failed) => break failed,
                }
            };
            assert!(failed.posted < 3 && failed.to_string().contains("is gone"), "{failed}");
            assert!(matches!(Error::from(failed), Error::MailboxGone { rank: 0, .. }));
        }
        world.barrier()?;
        match world.finish() {
            // The connection ended during the last call: messages waited, and no later post reported their loss.
            Err(Error::Undelivered { .. }) => Ok(()),
            ended => ended,
        }
    });
}

#[test]
fn a_receiver_that_sleeps_is_woken() {
    ranks(2, |world| {
        for _ in 0..5 {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u64>("in")?;
                world.barrier()?;
                for wanted in 0..40 {
                    assert_eq!(inbox.retrieve()?[0], wanted);
                }
            } else {
                world.barrier()?;
                let out = world.postbox::<u64>("in")?;
                std::thread::sleep(Duration::from_millis(30)); // it has gone to sleep
                out.post_each(&(0..40).collect::<Vec<u64>>())?;
                out.flush()?;
            }
            world.barrier()?;
        }
        world.finish()
    });
}

//! A mailbox is destroyed at a moment that its sender has not chosen: no hang, the right error, the message back, and all
//! memory back. (Ranks that die are tested in `tests/jobs/tests/kill/pairs.rs`.)

use std::thread;
use std::time::Instant;

use crate::common::{LONG, PROTOCOLS, assert_pattern, asynchronous, patterned, ranks};
use udeck::{Error, Mailbox, Protocol, Result, World};

/// Length of three fragments of `copy`, in bytes.
const LEN: usize = (64 << 10) * 2 + 5;

fn blocks(world: &World) -> usize {
    world.nic().reclaim();
    world.nic().outbox().usage().blocks + world.nic().landing().usage().blocks
}

/// Waits until nothing of this rank's message memory is in use.
fn assert_all_memory_back(world: &World) {
    let start = Instant::now();
    while blocks(world) > 0 {
        assert!(start.elapsed() < LONG, "{} blocks are not back", blocks(world));
        thread::yield_now();
    }
}

/// Destroys a mailbox to which a peer posts, after `moment`; then another mailbox still takes messages.
fn mailbox_goes(protocol: Protocol, moment: fn(&World, &Mailbox<u8>) -> Result) {
    ranks(2, move |world| {
        if world.rank() == 0 {
            let (going, staying) = (world.mailbox::<u8>("going")?, world.mailbox::<u8>("staying")?);
            world.barrier()?;
            moment(&world, &going)?;
            drop(going);
            assert_pattern(&staying.retrieve()?, 9, LEN);
            world.barrier()?;
        } else {
            post_until_gone(&world, protocol)?;
            world.barrier()?;
        }
        assert_all_memory_back(&world);
        world.barrier()?;
        world.finish()
    });
}

fn post_until_gone(world: &World, protocol: Protocol) -> Result {
    let (out, other) = (world.postbox::<u8>("going")?, world.postbox::<u8>("staying")?);
    world.barrier()?;
    let mut accepted = 0;
    let error = loop {
        let Err(failed) = out.post_with(protocol, patterned(world, 4, LEN)?) else {
            accepted += 1;
            continue;
        };
        assert_pattern(&failed.message.expect("nobody has taken it"), 4, LEN);
        match failed.error {
            // The error is about announced messages; it comes once.
            Error::Undelivered { rank: 0, count, .. } if count <= accepted => accepted = 0,
            error => break error,
        }
    };
    assert!(matches!(error, Error::MailboxGone { rank: 0, .. }), "{protocol}: {error}");
    match out.flush() {
        Ok(()) | Err(Error::MailboxGone { rank: 0, .. }) => {}
        // The end was noticed when the last message was to be announced.
        Err(Error::Undelivered { rank: 0, count, .. }) if count <= accepted => {}
        Err(error) => return Err(error),
    }
    Ok(other.post_with(protocol, patterned(world, 9, LEN)?)?)
}

#[test]
fn before_it_looks() {
    for protocol in PROTOCOLS {
        mailbox_goes(protocol, |_, _| Ok(()));
    }
}

/// Memory is ready for an announced message, or the first message has arrived.
#[test]
fn between_the_answer_and_the_data() {
    for protocol in asynchronous() {
        mailbox_goes(protocol, |world, going| {
            let start = Instant::now();
            while going.try_retrieve()?.is_none() && blocks(world) == 0 {
                assert!(start.elapsed() < LONG, "nothing comes");
                thread::yield_now();
            }
            Ok(())
        });
    }
}

#[test]
fn with_messages_unread() {
    for protocol in PROTOCOLS {
        mailbox_goes(protocol, |_, going| {
            assert_pattern(&going.retrieve()?, 4, LEN);
            Ok(())
        });
    }
}

//! Mailboxes with a depth: over every transport, no postbox is further ahead of the receiver than the mailbox allows.

use std::sync::OnceLock;

use udeck::{Error, MailboxOptions, Postbox, Protocol, Result, World};
use udeck_sim::Fabric;

use super::room::{opened, over, simulated};
use crate::common::{
    SHORT, alone, assert_pattern, asynchronous, config, over_verbs_apart, patterned, ranks_with,
};
use crate::waiting::tasks::block_on;

/// Depth of the mailboxes.
const DEPTH: usize = 3;
/// Lengths of messages, in bytes, that travel in different ways.
const LENGTHS: [usize; 3] = [8, 5000, 300_000];

fn options() -> MailboxOptions {
    MailboxOptions::new().depth(DEPTH as u32)
}

/// Posts without waiting, until the mailbox is full. Returns the number of accepted messages.
fn fill(world: &World, out: &Postbox<u8>, first: usize, len: usize) -> Result<usize> {
    for accepted in 0..=DEPTH {
        if let Err(failed) = out.try_post(patterned(world, first + accepted, len)?) {
            assert!(matches!(failed.error, Error::WouldBlock { .. }), "{}", failed.error);
            assert!(failed.error.to_string().contains("rank 0 to retrieve"), "{}", failed.error);
            assert_pattern(&failed.message.expect("it comes back"), first + accepted, len);
            return Ok(accepted);
        }
    }
    panic!("more than {DEPTH} messages wait")
}

fn both_sides(world: World) -> Result {
    if world.rank() == 0 {
        let inbox = world.mailbox_with::<u8>("in", &options())?;
        for len in LENGTHS {
            world.barrier()?; // it is full
            assert_pattern(&inbox.retrieve()?, 0, len);
            (1..=DEPTH).try_for_each(|seed| -> Result {
                assert_pattern(&inbox.retrieve()?, seed, len);
                Ok(())
            })?;
            world.barrier()?; // and empty again
        }
    } else {
        let out = world.postbox::<u8>("in")?;
        for len in LENGTHS {
            assert_eq!(fill(&world, &out, 0, len)?, DEPTH, "{len} bytes, all read before");
            let failed = out.post_timeout(patterned(&world, DEPTH, len)?, SHORT).unwrap_err();
            assert!(matches!(failed.error, Error::Deadline { .. }), "{}", failed.error);
            world.barrier()?;
            out.post(failed.message.expect("it comes back"))?;
            out.flush()?;
            world.barrier()?;
        }
    }
    world.finish()
}

#[test]
fn over_shared_memory_a_depth_holds_its_poster_up() {
    over(|client| opened("shm0", client), both_sides);
}

#[test]
fn over_tcp_a_depth_holds_its_poster_up() {
    over(|client| opened("tcp0", client), both_sides);
}

#[test]
fn over_udp_a_depth_holds_its_poster_up() {
    over(|client| opened("udp0", client), both_sides);
}

#[test]
fn over_verbs_a_depth_holds_its_poster_up() {
    if over_verbs_apart("memory::depth::over_verbs_a_depth_holds_its_poster_up") {
        udeck::run_local(2, both_sides).unwrap();
    }
}

#[test]
fn over_a_simulated_network_a_depth_holds_its_poster_up() {
    static FABRIC: OnceLock<Fabric> = OnceLock::new();
    over(|client| simulated(&FABRIC, client), both_sides);
}

/// Announced messages count, too, whatever of them is under way.
#[test]
fn no_protocol_exceeds_the_depth() {
    for protocol in asynchronous() {
        let world = alone(64 << 20);
        let inbox = world.mailbox_with::<u8>("in", &options()).unwrap();
        let out = world.postbox::<u8>("in").unwrap();
        out.set_protocol(protocol).unwrap();
        let mut next = 0;
        for _ in 0..3 {
            let accepted = fill(&world, &out, next, 5000).unwrap();
            assert!((1..=DEPTH).contains(&accepted), "{protocol}: {accepted}");
            (next..next + accepted).for_each(|seed| assert_pattern(&inbox.retrieve().unwrap(), seed, 5000));
            out.flush().unwrap();
            next += accepted;
        }
    }
}

/// Every way to post takes its place; a depth of 0 is one of 1.
#[test]
fn one_message_always_has_a_place() {
    let world = alone(8 << 20);
    let inbox = world.mailbox_with::<u8>("in", &MailboxOptions::new().depth(0)).unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    type Post = fn(&World, &Postbox<u8>) -> Result;
    let posts: [Post; 5] = [
        |_, out| Ok(out.try_post(&[7; 3])?),
        |_, out| Ok(out.try_post(&[7; 3000])?),
        |world, out| Ok(out.try_post(world.buf(3000)?.share())?),
        |_, out| Ok(out.post_nonblocking(&[7; 3]).map(drop)?),
        |_, out| Ok(out.post_each_timeout(&[7], SHORT)?),
    ];
    for post in posts {
        for other in posts {
            post(&world, &out).unwrap();
            let error = other(&world, &out).unwrap_err();
            let is_held_up = matches!(error, Error::WouldBlock { .. } | Error::Deadline { .. });
            assert!(is_held_up, "{error}");
            drop(inbox.retrieve().unwrap());
        }
    }
    out.post_with(Protocol::Eager, &[7]).unwrap();
    drop(inbox.retrieve().unwrap());
}

/// A slice is copied once it has its place.
#[test]
fn a_slice_without_a_place_is_not_copied() {
    let world = alone(8 << 20);
    let inbox = world.mailbox_with::<u8>("in", &MailboxOptions::new().depth(1)).unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    out.try_post(&[7; 5000]).unwrap();
    let copied = world.stats().bytes_copied;
    for _ in 0..3 {
        let failed = out.try_post(&[7; 5000]).unwrap_err();
        assert!(matches!(failed.error, Error::WouldBlock { .. }), "{}", failed.error);
    }
    let failed = out.post_timeout(&[7; 5000], SHORT).unwrap_err();
    assert!(matches!(failed.error, Error::Deadline { .. }), "{}", failed.error);
    assert_eq!(world.stats().bytes_copied, copied);
    drop(inbox.retrieve().unwrap());
    out.post(&[7; 5000]).unwrap();
    assert!(world.stats().bytes_copied > copied);
}

/// Three stages, of which the first is the quickest, share a rank's memory. Without the depths, the first stage's messages would
/// take all of it, and the second would wait for ever for memory to answer with.
#[test]
fn a_pipeline_goes_on_within_a_small_memory() {
    const MESSAGES: usize = 50;
    const LEN: usize = 200 << 10;
    let mut config = config();
    config.arena = Some(4 << 20);
    ranks_with(1, &config, |world| {
        let frames = world.mailbox_with::<u8>("frames", &options())?;
        let results = world.mailbox_with::<u8>("results", &options())?;
        let (to_frames, to_results) = (world.postbox::<u8>("frames")?, world.postbox::<u8>("results")?);
        std::thread::scope(|stages| {
            let world = &world;
            let first = stages.spawn(move || {
                (0..MESSAGES).try_for_each(|n| -> Result { Ok(to_frames.post(patterned(world, n, LEN)?)?) })
            });
            let second = stages.spawn(move || {
                for _ in 0..MESSAGES {
                    let frame = frames.retrieve()?;
                    let mut result = world.buf::<u8>(LEN)?;
                    result.copy_from_slice(&frame);
                    drop(frame);
                    to_results.post(result)?;
                }
                Ok::<_, Error>(())
            });
            (0..MESSAGES).for_each(|n| assert_pattern(&results.retrieve().unwrap(), n, LEN));
            first.join().unwrap()?;
            second.join().unwrap()
        })?;
        world.finish()
    });
}

#[test]
fn a_task_waits_for_its_place() {
    let world = alone(8 << 20);
    let inbox = world.mailbox_with::<u8>("in", &options()).unwrap();
    let mut out = world.postbox::<u8>("in").unwrap();
    let reader = std::thread::spawn(move || {
        (0..20).for_each(|seed| assert_pattern(&inbox.retrieve().unwrap(), seed, 100));
    });
    block_on(async {
        for seed in 0..20 {
            out.post_async(patterned(&world, seed, 100)?).await?;
        }
        Ok::<_, Error>(())
    })
    .unwrap();
    reader.join().unwrap();
}

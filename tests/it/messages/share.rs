//! Shared messages: one message, posted to many mailboxes.

use std::time::Instant;

use crate::common::{
    LONG, PROTOCOLS, SHORT, alone, are_crowded, assert_pattern, asynchronous, config, pattern_of, patterned,
    ranks, ranks_over,
};
use udeck::{Error, Mailbox, Postbox, Protocol, Result, World, post_all, post_all_timeout};

const LEN: usize = 100_000;

#[test]
fn all_receivers_read_the_one_block_and_the_last_gives_it_back() {
    ranks(3, |world| {
        if world.rank() != 0 {
            let inbox = world.mailbox::<u8>(&format!("in{}", world.rank()))?;
            let received = [inbox.retrieve()?, inbox.retrieve()?];
            received.iter().for_each(|message| {
                assert_eq!(message.tag(), 7);
                assert_pattern(message, 7, LEN);
            });
            world.barrier()?;
            world.barrier()?;
            drop(received);
            world.barrier()?;
            return world.finish();
        }
        let outs = [world.postbox::<u8>("in1")?, world.postbox::<u8>("in2")?];
        let message = patterned::<u8>(&world, 7, LEN)?.share();
        let before = (world.stats().bytes_copied, used(&world));
        for _ in 0..2 {
            post_all(&outs, &message)?;
        }
        assert_eq!((world.stats().bytes_copied, used(&world)), before, "nothing is copied");
        assert_eq!(world.stats().messages_posted, 4);
        world.barrier()?;
        let message = world.unshare(message).expect_err("receivers read it");
        assert_pattern(&message, 7, LEN);
        world.barrier()?;
        world.barrier()?;
        let clone = message.clone();
        let message = world.unshare(message).expect_err("there is a clone");
        drop(clone);
        let mut message = world.unshare(message).expect("everybody is done");
        assert_pattern(&message, 7, LEN);
        message.fill(1);
        world.finish()
    });
}

/// Bytes of the outbox that are in use.
fn used(world: &World) -> usize {
    world.nic().outbox().usage().used
}

#[test]
fn what_nobody_has_any_more_is_freed() {
    let world = alone(8 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    let before = used(&world);
    let message = patterned::<u8>(&world, 1, LEN).unwrap().share();
    for _ in 0..3 {
        out.post(message.clone()).unwrap();
    }
    drop(message);
    for _ in 0..3 {
        assert!(used(&world) > before, "it is still to be read");
        assert_pattern(&inbox.retrieve().unwrap(), 1, LEN);
        world.nic().reclaim();
    }
    assert_eq!(used(&world), before);
}

#[test]
fn a_shared_message_is_copied_no_more_than_another() {
    let world = alone(16 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    // A handshake's post waits for the retrieve, which this thread could not call.
    for protocol in asynchronous() {
        out.set_protocol(protocol).unwrap();
        for len in [0, 10, LEN] {
            let carried = |post: &dyn Fn()| {
                let before = world.stats().bytes_copied;
                post();
                assert_pattern(&inbox.retrieve().unwrap(), 3, len);
                (world.stats().bytes_copied - before) as usize
            };
            let message = patterned::<u8>(&world, 3, len).unwrap().share();
            let own = carried(&|| out.post(patterned(&world, 3, len).unwrap()).unwrap());
            let shared = carried(&|| out.post(message.clone()).unwrap());
            assert_eq!(shared, own, "{protocol}, {len} bytes");
            // The helper may hold the message at this moment.
            let (started, mut message) = (Instant::now(), Err(message));
            while let Err(shared) = message {
                assert!(started.elapsed() < LONG, "all have read it");
                message = world.unshare(shared);
            }
        }
    }
}

#[test]
fn shared_messages_keep_their_place_behind_waiting_ones() {
    let world = alone(8 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    for seed in 0..9 {
        out.set_protocol([Protocol::RdmaWrite, Protocol::HandOff, Protocol::Eager][seed % 3]).unwrap();
        let message = patterned::<u8>(&world, seed, 5000).unwrap();
        if seed == 0 { out.post(message).unwrap() } else { out.post(message.share()).unwrap() }
    }
    (0..9).for_each(|seed| assert_pattern(&inbox.retrieve().unwrap(), seed, 5000));
}

#[test]
fn a_group_post_serves_those_it_can_and_names_the_others() {
    let world = alone(64 << 20);
    let names = ["well", "gone", "full", "last"];
    let mut inboxes: Vec<Mailbox<u8>> =
        names.iter().map(|name| world.mailbox_with_queue(name, 0).unwrap()).collect();
    let outs: Vec<Postbox<u8>> = names.iter().map(|name| world.postbox(name).unwrap()).collect();
    drop(inboxes.remove(1));
    while outs[2].try_post(world.buf::<u8>(100).unwrap()).is_ok() {}
    let message = patterned::<u8>(&world, 5, LEN).unwrap().share();
    let failed = post_all_timeout(&outs, &message, SHORT).unwrap_err();
    assert_eq!(failed.of, 4);
    assert!(matches!(&failed.failed[..], [(1, Error::MailboxGone { .. }), (2, Error::Deadline { .. })]));
    let text = failed.to_string();
    assert!(text.starts_with("2 of 4 posts failed; no. 1: mailbox \"gone\""), "{text}");
    for at in [0, 2] {
        assert_pattern(&inboxes[at].try_retrieve().unwrap().expect("posted"), 5, LEN);
    }
    // A full mailbox delays no other: here it is emptied by the reader that first gets another mailbox's
    // message.
    let (last, full) = (inboxes.remove(2), inboxes.remove(1));
    let reader = std::thread::spawn(move || -> Result {
        assert_pattern(&last.retrieve()?, 5, LEN);
        while full.retrieve()?.len() != LEN {}
        Ok(())
    });
    post_all(&outs[2..], &message).unwrap();
    reader.join().unwrap().unwrap();
}

#[test]
fn a_shared_message_that_is_not_posted_comes_back() {
    let (world, other) = (alone(8 << 20), alone(8 << 20));
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    let foreign = patterned::<u8>(&other, 2, LEN).unwrap().share();
    let failed = out.post(foreign).unwrap_err();
    assert!(failed.error.to_string().contains("another NIC"), "{}", failed.error);
    other.unshare(failed.message.expect("it comes back")).expect("nobody has it");
    assert!(inbox.try_retrieve().unwrap().is_none());
    drop(inbox);
    for len in [10, LEN] {
        let failed = out.post(patterned::<u8>(&world, 2, len).unwrap().share()).unwrap_err();
        assert!(matches!(failed.error, Error::MailboxGone { .. }), "{}", failed.error);
        assert_pattern(&failed.message.expect("it comes back"), 2, len);
    }
}

/// Posts parts of a message, of any length and position, to several mailboxes: a scatter.
fn scatter(transport: &'static str, protocol: Protocol) {
    const PARTS: [std::ops::Range<usize>; 4] = [0..25_001, 25_001..25_004, 25_004..60_000, 60_000..60_000];
    ranks_over(
        transport,
        3,
        |_| config(),
        are_crowded,
        move |world| {
            let inbox = world.mailboxes::<u16>("part")?;
            if world.rank() == 0 {
                let outs: Vec<Postbox<u16>> = world.postboxes("part")?;
                if outs.iter().any(|out| out.set_protocol(protocol).is_err()) {
                    // The transport lacks the protocol.
                    post_all(&outs[1..], &world.buf(1)?.share().with_tag(99))?;
                    world.barrier()?;
                    return world.finish();
                }
                let whole = patterned::<u16>(&world, 5, 60_000)?.share();
                let before = world.stats().bytes_copied;
                for (tag, part) in PARTS.into_iter().enumerate() {
                    post_all(&outs[1..], &whole.part(part).with_tag(tag as u32))?;
                }
                world.barrier()?;
                if protocol == Protocol::HandOff && transport == "shm" {
                    assert_eq!(world.stats().bytes_copied, before, "nothing is copied");
                }
                assert_eq!(whole.tag(), 5);
                let (started, mut whole) = (Instant::now(), Err(whole));
                while let Err(shared) = whole {
                    assert!(started.elapsed() < LONG, "all have dropped it");
                    whole = world.unshare(shared);
                }
            } else {
                let all = pattern_of::<u16>(5, 60_000);
                for (tag, part) in PARTS.into_iter().enumerate() {
                    let received = inbox.retrieve()?;
                    if received.tag() == 99 {
                        break;
                    }
                    assert_eq!(
                        (received.tag() as usize, &*received),
                        (tag, &all[part]),
                        "{transport}, {protocol}"
                    );
                }
                world.barrier()?;
            }
            world.finish()
        },
    );
}

#[test]
fn parts_arrive_by_every_protocol_over_shared_memory() {
    PROTOCOLS.into_iter().for_each(|protocol| scatter("shm", protocol));
}

#[test]
fn parts_arrive_by_every_protocol_over_networks() {
    for transport in ["tcp", "udp"] {
        PROTOCOLS.into_iter().for_each(|protocol| scatter(transport, protocol));
    }
}

#[test]
fn parts_arrive_by_every_protocol_over_verbs() {
    if crate::common::over_verbs_apart("messages::share::parts_arrive_by_every_protocol_over_verbs") {
        PROTOCOLS.into_iter().for_each(|protocol| scatter("verbs", protocol));
    }
}

#[test]
fn a_part_is_a_message_of_its_own() {
    let world = alone(8 << 20);
    let whole = patterned::<u32>(&world, 1, 100).unwrap().share();
    let all = pattern_of::<u32>(1, 100);
    let part = whole.part(10..=20);
    assert_eq!((&*part, part.tag()), (&all[10..=20], 1));
    assert_eq!((&*part.part(1..), &*whole.part(..), whole.part(100..).len()), (&all[11..=20], &all[..], 0));
    let beyond = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| whole.part(90..101)));
    assert!(beyond.is_err());
    // While a part exists, the whole cannot be taken back; and a part never can.
    let whole = world.unshare(whole).expect_err("there is a part");
    let part = world.unshare(part).expect_err("it is a part");
    drop(part);
    world.unshare(whole).expect("the only one");
}

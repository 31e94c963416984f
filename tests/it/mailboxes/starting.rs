//! Nonblocking posts, and the handles that report what became of their messages.

use crate::common::{
    Event, LONG, SHORT, alone, assert_pattern, asynchronous, config, pattern_of, patterned, ranks,
};
use udeck::{Buf, Error, ExternalBuf, Mailbox, PostRequest, Postbox, Protocol, Result, World};

const LEN: usize = 5000;
/// Largest number of messages that may be announced, or wait to be read, at a time.
const ANNOUNCED: usize = 16;
/// Number of messages of any length that a queue takes.
const QUEUE: usize = 16;

fn postbox(world: &World, protocol: Protocol) -> Result<Postbox<u8>> {
    let out = world.postbox::<u8>("in")?;
    out.set_protocol(protocol)?;
    Ok(out)
}

/// Posts messages until there is no place for one more. Returns the handles, and the message that came back. Seeds count
/// on from `first`.
fn fill<'a>(
    world: &World,
    out: &'a Postbox<u8>,
    first: usize,
    len: usize,
) -> (Vec<PostRequest<'a, u8>>, Buf<u8>) {
    let mut started = Vec::new();
    loop {
        let seed = first + started.len();
        match out.post_nonblocking(patterned(world, seed, len).unwrap()) {
            Ok(handle) => started.push(handle),
            Err(failed) => {
                assert!(matches!(failed.error, Error::WouldBlock { .. }), "{}", failed.error);
                return (started, failed.message.expect("it comes back"));
            }
        }
    }
}

fn retrieve_all(inbox: &Mailbox<u8>, seeds: std::ops::Range<usize>, len: usize) -> Result {
    seeds.into_iter().try_for_each(|seed| {
        assert_pattern(&inbox.retrieve()?, seed, len);
        Ok(())
    })
}

#[test]
fn a_handle_is_done_when_the_posters_part_is() {
    for protocol in asynchronous() {
        ranks(2, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                world.barrier()?; // nothing was retrieved up to here
                world.barrier()?;
                retrieve_all(&inbox, 0..2, LEN)?;
                world.barrier()?;
                return world.finish();
            }
            let out = postbox(&world, protocol)?;
            let first = out.post_nonblocking(patterned(&world, 0, LEN)?)?;
            let second = out.post_nonblocking(patterned(&world, 1, LEN)?)?;
            let needs_the_mailbox = matches!(protocol, Protocol::RdmaWrite | Protocol::Copy);
            assert_eq!((first.is_done(), second.is_done()), (!needs_the_mailbox, !needs_the_mailbox));
            world.barrier()?;
            assert_eq!(first.is_done(), !needs_the_mailbox, "{protocol}");
            world.barrier()?;
            second.wait()?;
            assert!(first.is_done(), "{protocol}: messages of one postbox are done in order");
            first.wait()?;
            world.barrier()?;
            assert_eq!(world.stats().messages_posted, 2);
            world.finish()
        });
    }
}

#[test]
fn a_start_never_waits_and_the_queue_is_bounded() {
    for protocol in asynchronous() {
        for len in [3, LEN] {
            let world = alone(64 << 20);
            let inbox = world.mailbox_with_queue::<u8>("in", 0).unwrap();
            let out = postbox(&world, protocol).unwrap();
            let (started, message) = fill(&world, &out, 0, len);
            assert_pattern(&message, started.len(), len);
            let waiting = started.iter().filter(|handle| !handle.is_done()).count();
            // The announced messages have their place at the mailbox; behind them one waits.
            let announced = matches!(protocol, Protocol::RdmaWrite | Protocol::Copy);
            assert_eq!(
                waiting,
                1 + if announced { ANNOUNCED } else { 0 },
                "{protocol}, {len} bytes, {} started",
                started.len()
            );
            assert!(matches!(out.try_post(message).unwrap_err().error, Error::WouldBlock { .. }));

            let all = started.len();
            let reader = std::thread::spawn(move || retrieve_all(&inbox, 0..all, len));
            started.into_iter().rev().for_each(|handle| handle.wait().unwrap());
            reader.join().unwrap().unwrap();
        }
    }
}

#[test]
fn every_kind_of_message_waits_for_room() {
    for protocol in [Protocol::Eager, Protocol::HandOff] {
        let world = alone(64 << 20);
        let inbox = world.mailbox::<u8>("in").unwrap();
        let out = postbox(&world, protocol).unwrap();
        let mut taken = 0;
        while out.post_nonblocking(patterned(&world, taken, 40).unwrap()).unwrap().is_done() {
            taken += 1;
        }
        taken += 1;
        let bytes: Vec<u8> = pattern_of(taken, 40);
        let started: [PostRequest<u8>; 3] = [
            out.post_nonblocking(patterned(&world, taken, 40).unwrap().share()).unwrap(),
            out.post_nonblocking(&bytes[..]).unwrap(),
            out.post_nonblocking(ExternalBuf::new(bytes.clone())).unwrap(),
        ];
        assert!(started.iter().all(|handle| !handle.is_done()), "{protocol}");
        assert_eq!(out.take_returned().expect("it was copied").into_inner(), bytes);
        let reader = std::thread::spawn(move || {
            retrieve_all(&inbox, 0..taken, 40)?;
            (0..3).try_for_each(|_| retrieve_all(&inbox, taken..taken + 1, 40))
        });
        started.into_iter().for_each(|handle| handle.wait().unwrap());
        reader.join().unwrap().unwrap();
    }
}

#[test]
fn order_is_kept_whatever_was_started_or_posted_by_which_protocol() {
    const ALL: usize = 300;
    let full = Event::new();
    ranks(2, move |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            full.wait();
            let mut seed = 0;
            // The ring holds messages whose number the other side learns.
            while seed < ALL {
                let received = inbox.retrieve()?;
                assert_pattern(&received, seed, received.len());
                seed = received.tag() as usize + 1;
            }
            return world.finish();
        }
        let out = postbox(&world, Protocol::Eager)?;
        let mut seed = 0;
        while out.post_nonblocking(patterned(&world, seed, 40)?)?.is_done() {
            seed += 1;
        }
        assert!(seed < ALL / 2, "{seed} fit into a ring");
        // The messages behind the one that found no room are of every kind, and none of them leaves before it.
        let kinds: Vec<_> = asynchronous().collect();
        for at in 0..QUEUE - 1 {
            seed += 1;
            let message = patterned(&world, seed, LEN)?;
            match at % 3 {
                0 => drop(out.post_nonblocking_with(kinds[at % kinds.len()], message)?),
                1 => out.post_with(kinds[at % kinds.len()], message)?,
                _ => drop(out.post_nonblocking(message.share())?),
            }
        }
        full.happen();
        while seed + 1 < ALL {
            seed += 1;
            // The choice makes `hand-off` follow `rdma-write`.
            let (kind, message) =
                (crate::common::PROTOCOLS[3 * seed % 7], patterned(&world, seed, 200 + seed)?);
            if seed % 2 == 0 || kind == Protocol::Handshake {
                out.post_with(kind, message)?;
            } else if seed % 4 == 1 {
                out.post_with(kind, message.share())?;
            } else if let Err(failed) = out.post_nonblocking_with(kind, message) {
                out.post_with(kind, failed.message.expect("the queue is full"))?;
            }
        }
        world.finish()
    });
}

#[test]
fn messages_that_wait_for_room_arrive_though_their_poster_computes() {
    for (protocol, len) in
        [(Protocol::Eager, 3), (Protocol::Eager, LEN), (Protocol::HandOff, LEN), (Protocol::RdmaRead, LEN)]
    {
        let (full, arrived) = (Event::new(), Event::new());
        ranks(2, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                world.barrier()?;
                full.wait();
                let last = inbox.retrieve()?.tag();
                assert_eq!(last, 0);
                for seed in 1.. {
                    let received = inbox.retrieve()?;
                    if received.is_empty() {
                        break;
                    }
                    assert_pattern(&received, seed, len);
                }
                arrived.happen();
            } else {
                let out = postbox(&world, protocol)?;
                world.barrier()?;
                let mut all = Vec::new();
                let waiting = |all: &[PostRequest<u8>]| all.iter().filter(|handle| !handle.is_done()).count();
                while waiting(&all) < QUEUE - 1 {
                    all.push(out.post_nonblocking(patterned(&world, all.len(), len)?)?);
                }
                all.push(out.post_nonblocking(world.buf(0)?)?);
                full.happen();
                arrived.wait();
                all.into_iter().try_for_each(PostRequest::wait)?;
            }
            world.finish()
        });
    }
}

#[test]
fn a_refusal_is_told_by_the_handle_and_only_there() {
    for protocol in [Protocol::Copy, Protocol::RdmaWrite] {
        refuse(protocol, |world, out| {
            let refused = out.post_nonblocking(world.buf(TOO_LONG)?)?;
            let taken = out.post_nonblocking(patterned(world, 1, LEN)?)?;
            let error = refused.wait().unwrap_err();
            assert!(matches!(&error, Error::Refused { rank: 0, why } if !why.is_empty()), "{error}");
            taken.wait() // and `finish` has nothing to tell
        });
    }
}

#[test]
fn a_refusal_that_no_handle_tells_is_told_by_the_postbox() {
    refuse(Protocol::Copy, |world, out| {
        drop(out.post_nonblocking(world.buf(TOO_LONG)?)?);
        // A call that comes after the mailbox's answer reports the refusal.
        let error = match out.post_nonblocking(patterned(world, 1, LEN)?) {
            Ok(taken) => {
                taken.wait()?;
                out.flush().unwrap_err()
            }
            Err(failed) => {
                out.post_nonblocking(failed.message.expect("it comes back"))?.wait()?;
                failed.error
            }
        };
        assert!(matches!(error, Error::Undelivered { count: 1, rank: 0, .. }), "{error}");
        Ok(())
    });
}

/// Length in bytes of a message that never fits into the receiver's memory.
const TOO_LONG: usize = 6 << 20;

/// Runs `post` on a rank that has more memory than the mailbox's. The mailbox takes message 1.
fn refuse(protocol: Protocol, post: fn(&World, &Postbox<u8>) -> Result) {
    let (_job, streams) = udeck_boot::local::Job::new(2).expect("a name service");
    let ranks: Vec<_> = streams
        .into_iter()
        .zip([4 << 20, 64 << 20])
        .map(|(stream, arena)| {
            std::thread::spawn(move || {
                let client = udeck_boot::Client::new(stream)?;
                let mut options = udeck::NicOptions::new(client.keys());
                options.arena = Some(arena);
                let nic = udeck::open_nic("shm0", &options).expect("shm0");
                let world = World::new(client, vec![nic], config(), true)?;
                if world.rank() == 0 {
                    let inbox = world.mailbox::<u8>("in")?;
                    assert_pattern(&inbox.retrieve()?, 1, LEN);
                    world.barrier()?;
                } else {
                    post(&world, &postbox(&world, protocol)?)?;
                    world.barrier()?;
                }
                world.finish()
            })
        })
        .collect();
    // The poster's result is checked first: the mailbox's rank only reports that the poster is lost.
    for rank in ranks.into_iter().rev() {
        rank.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked)).unwrap();
    }
}

/// A handle reports its own message, the postbox all others, and no message is reported twice.
#[test]
fn a_mailbox_that_goes_is_told_once_for_each_message() {
    for protocol in asynchronous() {
        let gone = Event::new();
        ranks(2, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                world.barrier()?;
                drop(inbox);
                gone.happen();
                world.barrier()?;
                return world.finish();
            }
            let out = postbox(&world, protocol)?;
            let mut held = Vec::new();
            while held.iter().filter(|handle: &&PostRequest<u8>| !handle.is_done()).count() < 4 {
                held.push(out.post_nonblocking(patterned(&world, held.len(), LEN)?)?);
            }
            let held = held.split_off(held.len() - 4);
            drop(out.post_nonblocking(patterned(&world, 0, LEN)?)?);
            out.post(patterned(&world, 0, LEN)?)?;
            let dropped_late = out.post_nonblocking(patterned(&world, 0, LEN)?)?;
            world.barrier()?;
            gone.wait();
            for handle in held {
                let error = handle.wait().unwrap_err();
                assert!(matches!(&error, Error::MailboxGone { name, rank: 0 } if name == "in"), "{error}");
            }
            assert!(dropped_late.is_done());
            drop(dropped_late);
            let lost = match out.flush().unwrap_err() {
                Error::Undelivered { count, .. } => count,
                other => panic!("{protocol}: {other}"),
            };
            // Messages that wait to be read are lost with the mailbox; their handles were already done.
            let unread = if protocol == Protocol::RdmaRead { ANNOUNCED } else { 0 };
            assert_eq!(lost, 3 + unread, "{protocol}");
            let failed = out.post_nonblocking(patterned(&world, 9, LEN)?).unwrap_err();
            assert!(matches!(failed.error, Error::MailboxGone { .. }), "{}", failed.error);
            assert_pattern(&failed.message.expect("nobody saw it"), 9, LEN);
            world.barrier()?;
            world.finish()
        });
    }
}

#[test]
fn dropping_a_handle_does_not_drop_the_message() {
    for protocol in asynchronous() {
        ranks(2, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                world.barrier()?;
                retrieve_all(&inbox, 0..5, LEN)?;
            } else {
                let out = postbox(&world, protocol)?;
                for seed in 0..5 {
                    drop(out.post_nonblocking(patterned(&world, seed, LEN)?)?);
                }
                drop(out);
                world.barrier()?;
            }
            world.finish()
        });
    }
}

#[test]
fn a_deadline_says_for_whom_and_leaves_the_handle_as_it_is() {
    let world = alone(8 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = postbox(&world, Protocol::RdmaWrite).unwrap();
    let mut handle = out.post_nonblocking(patterned(&world, 1, LEN).unwrap()).unwrap();
    for _ in 0..2 {
        let error = handle.wait_timeout(SHORT).unwrap_err();
        let Error::Deadline { waited, whom, what } = &error else { panic!("{error}") };
        assert!((SHORT..LONG).contains(waited), "{error}");
        assert!(whom.contains("rank 0 to retrieve") && what.contains("\"in\""), "{error}");
        assert!(!handle.is_done());
    }
    let reader = std::thread::spawn(move || retrieve_all(&inbox, 1..2, LEN));
    handle.wait_timeout(LONG).unwrap();
    assert!(handle.is_done());
    handle.wait_timeout(SHORT).unwrap();
    reader.join().unwrap().unwrap();
}

#[test]
fn a_copy_that_finds_no_memory_waits_in_the_queue() {
    const LARGE: usize = 3 << 20;
    let world = alone(4 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = postbox(&world, Protocol::Eager).unwrap();
    let hoarded = world.buf::<u8>(LARGE).unwrap();
    let message = patterned::<u8>(&world, 1, 600 << 10).unwrap();
    let mut handle = out.post_nonblocking(message).unwrap();
    let error = handle.wait_timeout(SHORT).unwrap_err();
    assert!(matches!(&error, Error::Deadline { whom, .. } if whom.contains("memory")), "{error}");
    // A slice belongs to the caller again when the call returns, so it needs its memory at once.
    let failed = out.post_nonblocking(&[0; 600 << 10][..]).unwrap_err();
    assert!(matches!(failed.error, Error::WouldBlock { .. }), "{}", failed.error);
    drop(hoarded);
    handle.wait_timeout(LONG).unwrap();
    out.post_nonblocking(&[7; 100][..]).unwrap().wait().unwrap();
    retrieve_all(&inbox, 1..2, 600 << 10).unwrap();
    assert_eq!(inbox.retrieve().unwrap()[..], [7; 100]);
}

#[test]
fn a_handshake_cannot_only_be_started() {
    let world = alone(8 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = postbox(&world, Protocol::Eager).unwrap();
    let failed =
        out.post_nonblocking_with(Protocol::Handshake, patterned(&world, 1, LEN).unwrap()).unwrap_err();
    assert!(matches!(&failed.error, Error::WouldBlockThread { name, rank: 0 } if name == "in"));
    assert!(failed.error.to_string().contains("use post"), "{}", failed.error);
    out.post_nonblocking(failed.message.expect("it comes back")).unwrap().wait().unwrap();
    retrieve_all(&inbox, 1..2, LEN).unwrap();
    assert!(inbox.try_retrieve().unwrap().is_none());
}

#[test]
fn another_nics_memory_comes_back_and_does_not_harm_those_that_wait() {
    let (world, other) = (alone(8 << 20), alone(8 << 20));
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = postbox(&world, Protocol::RdmaWrite).unwrap();
    let waits = out.post_nonblocking(patterned(&world, 1, LEN).unwrap()).unwrap();
    for protocol in asynchronous() {
        let failed = out.post_nonblocking_with(protocol, patterned(&other, 2, LEN).unwrap()).unwrap_err();
        assert!(failed.error.to_string().contains("another world"), "{}", failed.error);
        assert_pattern(&failed.message.expect("it comes back"), 2, LEN);
    }
    let reader = std::thread::spawn(move || retrieve_all(&inbox, 1..2, LEN));
    waits.wait().unwrap();
    reader.join().unwrap().unwrap();
}

/// Otherwise a message that waits for room would be copied at each attempt to move it along.
#[test]
fn a_message_that_waits_for_room_is_copied_once() {
    let world = alone(64 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = postbox(&world, Protocol::Eager).unwrap();
    let (started, _back) = fill(&world, &out, 0, LEN);
    let mut copied = Vec::new();
    for _ in 0..100 {
        assert!(!started.last().expect("many").is_done());
        copied.push(world.stats().bytes_copied);
    }
    copied.dedup();
    assert_eq!(copied.len(), 1, "{copied:?}");
    let all = started.len();
    let reader = std::thread::spawn(move || retrieve_all(&inbox, 0..all, LEN));
    started.into_iter().for_each(|handle| handle.wait().unwrap());
    reader.join().unwrap().unwrap();
    // The poster and the mailbox copy it once each.
    assert_eq!(world.stats().bytes_copied as usize, 2 * all * LEN);
}

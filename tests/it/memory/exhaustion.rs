//! Exhausted message memory: which calls wait for it, what their errors say, and which bounds keep some for
//! others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Event, LONG, SHORT, alone, assert_pattern, config, patterned, ranks_each, ranks_with};
use udeck::{Buf, Config, Error, NicOptions, Postbox, Protocol, Result, World};
use udeck_boot::{Client, local::Job};
use udeck_faults::{Disguise, wrapped};

const ARENA: usize = 8 << 20;
const MIB: usize = 1 << 20;

fn small() -> Config {
    with_arena(ARENA)
}

fn with_arena(bytes: usize) -> Config {
    let mut config = config();
    config.arena = Some(bytes);
    config
}

fn out_to(world: &World, name: &str, protocol: Protocol) -> Result<Postbox<u8>> {
    let out = world.postbox(name)?;
    out.set_protocol(protocol)?;
    Ok(out)
}

/// Makes messages until there is no memory for another.
fn hoard(world: &World, len: usize) -> (Vec<Buf<u8>>, Error) {
    let mut held = Vec::new();
    loop {
        match world.try_buf(len) {
            Ok(buf) => held.push(buf),
            Err(error) => return (held, error),
        }
    }
}

/// A post by `handshake` handles news of the messages before it, too: those are no longer queued.
#[test]
fn messages_that_were_read_while_a_handshake_waited_are_not_queued() {
    ranks_with(2, &small(), |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            world.barrier()?; // the first is announced
            std::thread::sleep(SHORT * 4); // and the second asked for, which holds its thread
            drop((inbox.retrieve()?, inbox.retrieve()?));
            world.barrier()?;
        } else {
            let out = out_to(&world, "in", Protocol::RdmaRead)?;
            out.post(patterned(&world, 0, MIB)?)?;
            world.barrier()?;
            out.post_with(Protocol::Handshake, patterned(&world, 1, 64)?)?;
            out.flush()?;
            world.barrier()?;
            let (held, error) = hoard(&world, MIB);
            assert!(matches!(error, Error::NoMemory { .. }), "{} held: {error}", held.len());
        }
        world.barrier()?;
        world.finish()
    });
}

// ---- at the mailbox ----

/// Length of which two messages fit into the arena, but not three.
const LARGE: usize = 5 * MIB / 2;

/// An announced message is not refused: it waits for memory, with all posts behind it, and the error says which mailbox
/// holds the memory.
#[test]
fn an_announced_message_waits_for_memory() {
    for protocol in [Protocol::RdmaWrite, Protocol::Copy] {
        ranks_with(2, &small(), move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                let mut kept: Vec<_> = (0..2).map(|_| inbox.retrieve()).collect::<Result<_>>()?;
                world.barrier()?; // the third is announced
                for _ in 0..2 {
                    assert!(inbox.try_retrieve()?.is_none());
                    let error = inbox.retrieve_timeout(SHORT).unwrap_err();
                    let Error::Deadline { whom, .. } = &error else { panic!("{error}") };
                    assert!(whom.contains("memory for the 2621440 bytes that rank 1 announced"), "{error}");
                    assert!(whom.contains("6291456 bytes by this program"), "{error}");
                    assert!(whom.contains("DECK_ARENA"), "{error}");
                }
                kept.remove(0);
                kept.push(inbox.retrieve_timeout(LONG)?);
                kept.remove(0);
                for seed in 2..5 {
                    assert_pattern(&kept[0], seed, LARGE);
                    kept = vec![inbox.retrieve()?];
                }
                assert_pattern(&kept[0], 5, 10);
            } else {
                let out = out_to(&world, "in", protocol)?;
                for seed in 0..5 {
                    out.post(patterned(&world, seed, LARGE)?)?;
                    if seed == 2 {
                        world.barrier()?;
                    }
                }
                // This message stays behind the others, whatever its protocol.
                out.post_with(Protocol::Eager, patterned(&world, 5, 10)?)?;
                out.flush()?;
            }
            world.barrier()?;
            world.finish()
        });
    }
}

/// While one message waits for memory, other postboxes' short messages arrive.
#[test]
fn others_pass_a_message_that_waits_for_memory() {
    ranks_with(3, &small(), |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            let kept = inbox.retrieve()?;
            world.barrier()?; // the second is announced
            assert!(inbox.retrieve_timeout(SHORT).is_err(), "there is no memory for two");
            world.barrier()?;
            for seed in 0..100 {
                assert_pattern(&inbox.retrieve()?, seed, 10);
            }
            drop(kept);
            assert_pattern(&inbox.retrieve()?, 1, 5 * MIB);
        } else if world.rank() == 1 {
            let out = out_to(&world, "in", Protocol::RdmaWrite)?;
            for seed in 0..2 {
                out.post(patterned(&world, seed, 5 * MIB)?)?;
            }
            world.barrier()?;
            world.barrier()?;
            out.flush()?;
        } else {
            world.barrier()?;
            world.barrier()?;
            let out = world.postbox::<u8>("in")?;
            (0..100).try_for_each(|seed| out.post(patterned(&world, seed, 10)?).map_err(Error::from))?;
        }
        world.barrier()?;
        world.finish()
    });
}

/// The message would never fit, however long it waits.
#[test]
fn what_never_fits_is_refused() {
    for protocol in [Protocol::RdmaWrite, Protocol::Copy] {
        let settings = |rank| with_arena(if rank == 0 { 2 * MIB } else { ARENA });
        ranks_each(2, settings, move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                assert_pattern(&inbox.retrieve()?, 2, 10);
            } else {
                let out = out_to(&world, "in", protocol)?;
                out.post(patterned(&world, 1, 3 * MIB)?)?;
                let error = out.flush().unwrap_err();
                assert!(matches!(error, Error::Undelivered { count: 1, .. }), "{error}");
                assert!(error.to_string().contains("larger than its arena"), "{error}");
                out.post(patterned(&world, 2, 10)?)?;
            }
            world.barrier()?;
            world.finish()
        });
    }
}

/// Only the poster could free memory: the error comes at once, whoever else may have memory, and the message comes
/// back.
#[test]
fn a_message_that_leaves_no_room_for_its_own_copy() {
    let posted = [(Protocol::Eager, 5 * MIB), (Protocol::Copy, ARENA)];
    let is_told = |error: &Error| {
        assert!(matches!(error, Error::NoMemory { .. }), "{error}");
        assert!(error.to_string().contains("by this program"), "{error}");
    };
    for (protocol, len) in posted {
        let world = alone(ARENA);
        let inbox = world.mailbox::<u8>("in").unwrap();
        let out = out_to(&world, "in", protocol).unwrap();
        let failed = out.post(patterned(&world, 1, len).unwrap()).unwrap_err();
        is_told(&failed.error);
        let failed = out.post_nonblocking(failed.message.expect("nobody has seen it")).unwrap_err();
        is_told(&failed.error);
        let shared = failed.message.expect("nobody has seen it").share();
        is_told(&out.post(shared.clone()).unwrap_err().error);
        let message = world.unshare(shared).expect("nobody else has it");
        out.post_with(Protocol::HandOff, message).unwrap();
        assert_pattern(&inbox.retrieve().unwrap(), 1, len);
    }
}

/// The longest message has the same length over every transport.
#[test]
fn every_transport_has_the_same_memory() {
    let longest = |nic: &str| {
        let nic = udeck::open_nic(nic, &udeck::NicOptions::new([1; 32])).unwrap();
        nic.attributes().max_transfer
    };
    assert_eq!(longest("tcp0"), longest("shm0"));
    // UDP's lengths are 32 bits, with a header.
    assert!(longest("udp0") >= longest("shm0") - 64);
}

const POSTBOXES: usize = 40;
const EACH: usize = 6;

/// Many postboxes together announce many times the mailbox's memory. All messages arrive, no postbox is overtaken
/// again and again, and the memory granted at a time stays below the bound.
#[test]
fn a_mailbox_grants_no_more_than_half_its_memory() {
    for (protocol, len) in [(Protocol::RdmaWrite, 256 << 10), (Protocol::Copy, 128 << 10)] {
        ranks_with(2, &small(), move |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                world.barrier()?;
                let arena =
                    if protocol == Protocol::Copy { world.nic().outbox() } else { world.nic().landing() };
                let mut next = [0; POSTBOXES];
                let mut most = 0;
                for _ in 0..POSTBOXES * EACH {
                    let received = inbox.retrieve()?;
                    most = most.max(arena.usage().used - received.len());
                    let (which, seed) = (received.tag() as usize / EACH, received.tag() as usize % EACH);
                    assert_eq!(seed, next[which], "of postbox {which}");
                    next[which] += 1;
                    assert_pattern(&received, received.tag() as usize, len);
                }
                assert!(most <= ARENA / 2, "{most} bytes were granted at a time");
            } else {
                let outs: Vec<_> =
                    (0..POSTBOXES).map(|_| out_to(&world, "in", protocol)).collect::<Result<_>>()?;
                world.barrier()?;
                for seed in 0..EACH {
                    for (which, out) in outs.iter().enumerate() {
                        out.post(patterned(&world, which * EACH + seed, len)?)?;
                    }
                }
            }
            world.barrier()?;
            world.finish()
        });
    }
}

// ---- at the poster ----

#[test]
fn a_program_that_has_all_the_memory_is_told_so_at_once() {
    let world = alone(ARENA);
    let (held, error) = hoard(&world, MIB);
    assert!(matches!(error, Error::NoMemory { .. }), "{error}");
    // The error comes without a wait for the world's deadline.
    for error in [world.buf::<u8>(MIB).unwrap_err(), world.message(MIB).unwrap_err(), error] {
        let text = error.to_string();
        assert!(matches!(error, Error::NoMemory { .. }), "{text}");
        let own = format!("{} bytes by this program", held.len() * MIB);
        assert!(
            text.contains("1048576 bytes") && text.contains(&own) && text.contains("DECK_ARENA"),
            "{text}"
        );
    }
}

/// The poster has memory again as soon as the receiver drops the retrieved messages.
#[test]
fn memory_that_is_lent_is_waited_for() {
    let received = Event::new();
    ranks_with(2, &small(), move |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            let kept = inbox.retrieve()?;
            world.barrier()?;
            received.wait();
            drop(kept);
            drop(inbox.retrieve()?);
        } else {
            let out = out_to(&world, "in", Protocol::HandOff)?;
            out.post(patterned(&world, 1, 5 * MIB)?)?;
            world.barrier()?;
            let error = world.try_buf::<u8>(4 * MIB).unwrap_err();
            assert!(matches!(error, Error::WouldBlock { .. }), "{error}");
            let start = Instant::now();
            let error = world.message_timeout(4 * MIB, SHORT).unwrap_err();
            assert!(start.elapsed() >= SHORT, "{error}");
            let Error::Deadline { whom, .. } = &error else { panic!("{error}") };
            assert!(whom.contains("5242880 bytes by mailbox \"in\" of rank 0"), "{error}");
            received.happen();
            out.post(world.buf::<u8>(4 * MIB)?)?;
        }
        world.barrier()?;
        world.finish()
    });
}

/// The error lists three mailboxes: the largest holder first, in the units that were posted.
#[test]
fn the_error_names_the_holders() {
    let world = alone(ARENA);
    let names = ["little", "much", "queue"];
    let inboxes = names.map(|name| world.mailbox::<u8>(name).unwrap());
    let outs = names.map(|name| out_to(&world, name, Protocol::HandOff).unwrap());
    outs[0].post(world.buf(MIB / 2).unwrap()).unwrap();
    outs[1].post(world.buf(MIB).unwrap()).unwrap();
    outs[1].post(world.buf(2 * MIB).unwrap()).unwrap();
    outs[2].post_with(Protocol::RdmaWrite, world.buf(3 * MIB / 2).unwrap()).unwrap();
    let (own, error) = hoard(&world, MIB / 2);
    let text = error.to_string();
    let places: Vec<_> = [
        "3145728 bytes by mailbox \"much\" of rank 0",
        "1572864 bytes queued for mailbox \"queue\" of rank 0",
        "524288 bytes by mailbox \"little\" of rank 0",
    ]
    .iter()
    .map(|part| text.find(part).unwrap_or_else(|| panic!("{part}: {text}")))
    .collect();
    assert!(places.is_sorted(), "{text}");
    assert!(text.contains(&format!("{} bytes by this program", own.len() * MIB / 2)), "{text}");
    // A post that had to wait for the memory of a copy says the same.
    let error = outs[0].post_timeout([0; MIB / 2].as_slice(), SHORT).unwrap_err().error.to_string();
    assert!(error.contains("3145728 bytes by mailbox \"much\" of rank 0"), "{error}");
    drop((own, inboxes, outs));
}

/// More small messages are posted than the arena has room for: this, too, is back-pressure.
#[test]
fn memory_full_of_small_messages_is_waited_for() {
    const CLONES: usize = 640;
    let world = alone(4 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let outs: Vec<_> = (0..CLONES).map(|_| out_to(&world, "in", Protocol::HandOff).unwrap()).collect();
    let queue = world.nic().attributes().max_descriptors_per_queue;
    let error = outs
        .iter()
        .cycle()
        .take(CLONES * queue)
        .find_map(|out| match world.try_buf(100) {
            Ok(message) => out.try_post(message).err().map(Error::from),
            Err(error) => Some(error),
        })
        .expect("the memory is less than all queues hold");
    let text = error.to_string();
    assert!(matches!(error, Error::WouldBlock { .. }) && text.contains("bytes are in use"), "{text}");
    assert!(text.contains("by mailbox \"in\" of rank 0"), "{text}");
    (0..CLONES).for_each(|_| drop(inbox.retrieve().unwrap()));
    outs[0].post(world.buf(100).unwrap()).unwrap();
}

// ---- connections ----

/// Makes postboxes of "in" until there is no place for another, and returns the error.
fn more_of(world: &World, all: &mut Vec<Postbox<u8>>) -> Error {
    loop {
        match world.try_postbox("in") {
            Ok(postbox) => all.push(postbox),
            Err(error) => break error,
        }
    }
}

/// Signals, from a thread of its own and after a moment, that the next call has begun to wait.
fn soon(happens: &Arc<Event>) {
    let happens = happens.clone();
    std::thread::spawn(move || {
        std::thread::sleep(4 * SHORT);
        happens.happen();
    });
}

/// Each message has a postbox of its own, and the mailbox's owner computes: a new postbox waits for the places of
/// those that were dropped.
#[test]
fn a_place_at_a_mailbox_is_waited_for() {
    let met = Event::new();
    ranks_with(3, &config(), move |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            met.wait();
            for _ in 0..=512 {
                drop(inbox.retrieve()?);
            }
        } else if world.rank() == 1 {
            for _ in 0..512 {
                world.postbox::<u8>("in")?.post(&b"one"[..])?;
            }
            let error = world.try_postbox::<u8>("in").unwrap_err();
            assert!(error.to_string().contains("its owner has not looked at since"), "{error}");
            soon(&met);
            world.postbox::<u8>("in")?.post(&b"one more"[..])?;
        }
        world.finish()
    });
}

/// A new postbox also waits if the receiver keeps messages of connections that have ended.
#[test]
fn a_receiver_that_keeps_the_messages_of_too_many_postboxes_is_waited_for() {
    const MOST: usize = 1024;
    let met = Event::new();
    ranks_with(2, &config(), move |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            let kept = (0..MOST).map(|_| inbox.retrieve()).collect::<Result<Vec<_>>>()?;
            met.wait();
            drop(kept);
            drop(inbox.retrieve()?);
        } else {
            for _ in 0..MOST {
                out_to(&world, "in", Protocol::HandOff)?.post(&[7; 100][..])?;
            }
            let error = world.try_postbox::<u8>("in").unwrap_err().to_string();
            assert!(error.contains("has messages over 1024 of them"), "{error}");
            soon(&met);
            out_to(&world, "in", Protocol::HandOff)?.post(&[7; 100][..])?;
        }
        world.finish()
    });
}

/// A new postbox also waits for a place at a NIC that takes few connections.
#[test]
fn a_place_at_a_nic_is_waited_for() {
    let (_job, streams) = Job::new(2).unwrap();
    let worlds = streams.into_iter().map(|stream| {
        let client = Client::new(stream).unwrap();
        let nic = udeck::open_nic("shm0", &NicOptions::new(client.keys())).unwrap();
        let few = wrapped(&nic, Disguise::named("shm0").taking(16));
        std::thread::spawn(|| World::new(client, vec![few], config(), true).unwrap())
    });
    let threads: Vec<_> = worlds.collect();
    let mut worlds = threads.into_iter().map(|world| world.join().unwrap());
    let (owner, poster) = (worlds.next().unwrap(), worlds.next().unwrap());
    let inbox = owner.mailbox::<u8>("in").unwrap();
    let mut all = Vec::new();
    let error = more_of(&poster, &mut all);
    let text = error.to_string();
    assert!(matches!(error, Error::WouldBlock { .. }), "{text}");
    assert!(text.contains("rank 1 has 8 connections with this NIC"), "{text}");
    assert!((1..=8).contains(&all.len()), "{}", all.len());
    drop(all);
    let (met, done) = (Event::new(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (met, done) = (&met, &done);
        scope.spawn(move || {
            met.wait();
            while !done.load(Ordering::Relaxed) {
                assert!(inbox.try_retrieve().unwrap().is_none());
                std::thread::sleep(SHORT / 10);
            }
        });
        soon(met);
        let made = poster.postbox::<u8>("in");
        done.store(true, Ordering::Relaxed);
        drop(made.unwrap());
    });
}

/// A rank that makes more postboxes than allowed gets an error with the bound, and keeps no other rank out.
#[test]
fn a_rank_has_so_many_postboxes_of_a_mailbox_and_no_more() {
    ranks_with(3, &config(), |world| {
        match world.rank() {
            0 => {
                let inbox = world.mailbox::<u8>("in")?;
                world.barrier()?;
                let from = (0..3).map(|_| Ok(inbox.retrieve()?.source())).collect::<Result<Vec<_>>>()?;
                assert_eq!(from.iter().sum::<usize>(), 1 + 1 + 2, "{from:?}");
            }
            1 => {
                let mut all = vec![world.postbox::<u8>("in")?];
                let error = more_of(&world, &mut all);
                assert!(matches!(error, Error::WouldBlock { .. }), "{error}");
                let late = world.postbox_timeout::<u8>("in", Duration::from_secs(2)).unwrap_err();
                assert!(matches!(late, Error::Deadline { .. }), "{late}");
                world.barrier()?;
                all[0].post(&b"the first"[..])?;
                all[all.len() - 1].post(&b"the last"[..])?;
                for error in [error.to_string(), late.to_string()] {
                    assert!(error.contains("rank 1 has 512 connections with this mailbox"), "{error}");
                    assert!(error.contains("share postboxes"), "{error}");
                }
                assert_eq!(all.len(), 512);
            }
            _ => {
                world.barrier()?; // rank 1 has all that it can get
                world.postbox::<u8>("in")?.post(&b"from another"[..])?;
            }
        }
        world.finish()
    });
}

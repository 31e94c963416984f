//! Incast control: many ranks post to one mailbox, which schedules the messages that it takes.

use std::time::{Duration, Instant};

use crate::common::liar::{ASK_COPY, ASK_WRITE, Liar};
use crate::common::{LONG, SHORT, assert_pattern, config, patterned, ranks_over};
use crate::networks::late;
use udeck::via::Caps;
use udeck::via::transport::{Arrival, Body};
use udeck::{Config, Error, IncastControl, Mailbox, Postbox, Protocol, Result, WithTag, World};

/// Message kinds of `crates/deck/wire.rs`.
const READY: u8 = 6;
const RESERVE: u8 = 14;
const GRANT: u8 = 15;

fn under(incast: IncastControl) -> Config {
    let mut config = config();
    (config.incast, config.arena) = (incast, Some(64 << 20));
    config
}

/// Runs over every transport for which incast control matters.
fn over_networks(size: u32, config: &Config, body: impl Fn(World) -> Result + Clone + Send + Sync + 'static) {
    let levels = Caps::RELIABLE_DELIVERY | Caps::RELIABLE_RECEPTION;
    let (fabric, caps) = (late::fabric(), levels | Caps::RDMA_WRITE | Caps::RDMA_READ);
    late::ranks_able(size, &fabric, config, caps, body.clone());
    for transport in ["tcp", "udp"] {
        ranks_over(transport, size, |_| config.clone(), |_| true, body.clone());
    }
}

/// Messages of all kinds, together much longer than a window.
fn messages() -> impl Iterator<Item = (usize, usize, Protocol)> {
    use Protocol::{Auto, Copy, Eager, RdmaRead, RdmaWrite};
    let lengths = [1, 40, 5000, 0, 70_000, 200_000, 30_000];
    let protocols = [Auto, Auto, Eager, Auto, RdmaWrite, Auto, Copy, RdmaRead, Auto];
    (0..50).map(move |seed| (seed, lengths[seed % lengths.len()], protocols[seed % protocols.len()]))
}

#[test]
fn messages_of_all_protocols_arrive_once_and_in_order() {
    const POSTERS: u32 = 4;
    for incast in [IncastControl::Srp, IncastControl::Smsrp] {
        over_networks(POSTERS + 1, &under(incast), |world| {
            if world.rank() == 0 {
                let inbox = world.mailbox::<u8>("in")?;
                // All messages that may be under way are under way.
                world.barrier()?;
                let mut expected: Vec<_> = (0..=POSTERS).map(|_| messages()).collect();
                for _ in 0..messages().count() * POSTERS as usize {
                    let message = inbox.retrieve()?;
                    let (seed, len, _) = expected[message.source()].next().expect("it posted so many");
                    assert_eq!(message.tag() as usize, seed, "of rank {}", message.source());
                    assert_pattern(&message, seed, len);
                }
            } else {
                let out = world.postbox::<u8>("in")?;
                for (seed, len, protocol) in messages() {
                    out.post_with(protocol, patterned(&world, seed, len)?)?;
                }
                world.barrier()?;
                out.flush()?;
            }
            world.barrier()?;
            world.finish()
        });
    }
}

/// Within its window a message bypasses the queue; but not while something waits there: an announced message without an answer,
/// or one for which the connection has no room.
#[test]
fn within_its_window_a_message_does_not_overtake_what_waits() {
    const ANNOUNCED: usize = 200_000;
    const SHORTS: usize = 600;
    // Each announced message is followed by a copied one and a moved one.
    let lengths = || [ANNOUNCED, 8, 5000].into_iter().cycle().take(9).chain([8; SHORTS]);
    over_networks(2, &under(IncastControl::Smsrp), move |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            world.barrier()?;
            for (seed, len) in lengths().enumerate() {
                let message = inbox.retrieve()?;
                assert_eq!(message.tag() as usize, seed);
                assert_pattern(&message, seed, len);
            }
        } else {
            let out = world.postbox::<u8>("in")?;
            for (seed, len) in lengths().enumerate() {
                let message = patterned(&world, seed, len)?;
                if len == 8 { out.post(message[..].with_tag(seed as u32))? } else { out.post(message)? }
            }
            world.barrier()?;
            out.flush()?;
        }
        world.barrier()?;
        world.finish()
    });
}

/// A handshake's post waits for the posts before it, and these for their grants.
#[test]
fn handshakes_wait_for_what_waits() {
    over_networks(2, &under(IncastControl::Smsrp), |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            for seed in 0..40 {
                assert_pattern(&inbox.retrieve()?, seed, 10_000);
            }
        } else {
            let out = world.postbox::<u8>("in")?;
            for seed in 0..40 {
                let protocol = if seed % 20 == 19 { Protocol::Handshake } else { Protocol::Auto };
                out.post_with(protocol, patterned(&world, seed, 10_000)?)?;
            }
        }
        world.barrier()?;
        world.finish()
    });
}

/// The test measures the bytes that lie at the mailbox while its owner computes: without control all that
/// arrive, with control the windows.
#[test]
fn what_lies_at_a_mailbox_is_bounded() {
    const POSTERS: usize = 4;
    const EACH: usize = 40;
    const LEN: usize = 16 << 10;
    // A window of 64 KiB has four of the messages, and blocks are rounded up.
    const BOUND: usize = POSTERS * 4 * 2 * LEN;
    for incast in [IncastControl::Off, IncastControl::Smsrp] {
        ranks_over(
            "tcp",
            POSTERS as u32 + 1,
            |_| under(incast),
            |_| true,
            move |world| {
                if world.rank() == 0 {
                    let inbox = world.mailbox::<u8>("in")?;
                    world.barrier()?;
                    let most = most_used(&world, |used| incast == IncastControl::Smsrp || used > BOUND);
                    assert_eq!(most > BOUND, incast == IncastControl::Off, "{incast}: {most} of {BOUND}");
                    let mut next = [0; POSTERS + 1];
                    for _ in 0..POSTERS * EACH {
                        let message = inbox.retrieve()?;
                        assert_pattern(&message, next[message.source()], LEN);
                        next[message.source()] += 1;
                    }
                } else {
                    let out = world.postbox::<u8>("in")?;
                    (0..EACH)
                        .try_for_each(|seed| Ok::<_, Error>(out.post(patterned(&world, seed, LEN)?)?))?;
                    world.barrier()?;
                    out.flush()?;
                }
                world.barrier()?;
                world.finish()
            },
        );
    }
}

/// Largest number of bytes of a rank's message memory in use, measured until `is_it` accepts it, and for a
/// while.
fn most_used(world: &World, is_it: impl Fn(usize) -> bool) -> usize {
    let (start, mut most) = (Instant::now(), 0);
    while start.elapsed() < SHORT * 10 || !is_it(most) && start.elapsed() < LONG {
        most = most.max(world.nic().outbox().usage().used);
        std::thread::sleep(Duration::from_millis(1));
    }
    most
}

/// A post that gives up at its deadline gets its message back, and accepted messages arrive.
#[test]
fn posts_end_at_their_deadlines_while_messages_wait_for_grants() {
    over_networks(2, &under(IncastControl::Smsrp), |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox_with_queue::<u8>("in", 0)?;
            world.barrier()?;
            let mut seed = 0;
            loop {
                let message = inbox.retrieve()?;
                if message.len() == 1 {
                    break assert_eq!(message.tag(), seed, "it tells how many were accepted");
                }
                assert_pattern(&message, seed as usize, 20_000);
                seed += 1;
            }
        } else {
            let out = world.postbox::<u8>("in")?;
            let mut posted = 0;
            loop {
                match out.post_timeout(patterned(&world, posted, 20_000)?, SHORT) {
                    Ok(()) => posted += 1,
                    Err(failed) => {
                        assert!(matches!(failed.error, Error::Deadline { .. }), "{}", failed.error);
                        assert_pattern(&failed.message.expect("it was not accepted"), posted, 20_000);
                        break;
                    }
                }
            }
            assert!((4..40).contains(&posted), "a window, and one that waits: {posted}");
            world.barrier()?;
            out.post(patterned(&world, posted, 1)?)?;
        }
        world.barrier()?;
        world.finish()
    });
}

/// Posts 40 messages, of which one window leaves at once.
fn post_beyond_the_window(world: &World) -> Result<Postbox<u8>> {
    let out = world.postbox::<u8>("in")?;
    (0..40).try_for_each(|seed| Ok::<_, Error>(out.post(patterned(world, seed, 16 << 10)?)?))?;
    world.barrier()?;
    Ok(out)
}

/// The first messages of a lost poster have arrived, without a gap.
#[test]
fn what_waits_for_a_grant_is_lost_with_its_poster_and_nothing_else() {
    over_networks(2, &under(IncastControl::Smsrp), |world| {
        if world.rank() == 1 {
            drop(post_beyond_the_window(&world)?);
            return Ok(()); // without a word
        }
        let inbox = world.mailbox::<u8>("in")?;
        let mut seed = 0;
        let mut until_it_is_lost = || -> udeck::Result {
            world.barrier()?;
            loop {
                assert_pattern(&inbox.retrieve()?, seed, 16 << 10);
                seed += 1;
            }
        };
        // Rank 1 may leave the barrier and be gone while this rank is still in it.
        match until_it_is_lost() {
            Err(Error::PeerLost { rank: 1, .. }) => Ok(()),
            other => other,
        }
    });
}

#[test]
fn what_waits_for_a_grant_is_undelivered_when_its_mailbox_is_gone() {
    over_networks(2, &under(IncastControl::Smsrp), |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            world.barrier()?;
            drop(inbox);
        } else {
            let error = post_beyond_the_window(&world)?.flush().unwrap_err();
            let is_told = matches!(error, Error::MailboxGone { .. } | Error::Undelivered { .. });
            assert!(is_told, "{error}");
        }
        world.barrier()?;
        // The loss may be reported here once more.
        let _ = world.finish();
        Ok(())
    });
}

#[test]
fn a_route_says_what_is_in_force() {
    for (transport, words) in [("tcp", "tcp, incast control smsrp"), ("shm", "shm")] {
        let world = udeck::init_with(under(IncastControl::Smsrp).over(transport)).unwrap();
        let _inbox = world.mailbox::<u8>("in").unwrap();
        assert_eq!(world.postbox::<u8>("in").unwrap().route().to_string(), words);
    }
    let world = udeck::init_with(under(IncastControl::Auto).over("tcp")).unwrap();
    let _inbox = world.mailbox::<u8>("in").unwrap();
    assert_eq!(world.postbox::<u8>("in").unwrap().route().incast, IncastControl::Off);
}

// ---- messages on the wire ----

/// Makes a mailbox over TCP that takes 16 MiB a second, and a liar that can send it any message.
fn with_liar(incast: IncastControl, act: impl FnOnce(&Mailbox<u8>, &mut Liar)) {
    beside_liar(incast, |_, inbox, liar| act(inbox, liar));
}

/// Makes the same, with the world, so that others can post, too.
fn beside_liar(incast: IncastControl, act: impl FnOnce(&World, &Mailbox<u8>, &mut Liar)) {
    let mut config = under(incast);
    config.incast_rate = Some(16 << 20);
    let world = udeck::init_with(config.over("tcp")).unwrap();
    let inbox = world.mailbox::<u8>("in").unwrap();
    let mut liar = Liar::of(&world);
    act(&world, &inbox, &mut liar);
}

/// Waits for the mailbox's answer: its kind, its part, and the delay in microseconds.
fn answer(inbox: &Mailbox<u8>, liar: &mut Liar) -> (u8, u32, Option<u32>) {
    let start = Instant::now();
    while start.elapsed() < LONG {
        assert!(inbox.try_retrieve().unwrap().is_none());
        if let Some(Arrival { immediate, body: Body::Inline(inline) }) = liar.vi.arrival().unwrap() {
            let bytes = inline.bytes();
            return (bytes[0], u32::from_le_bytes(bytes[4..8].try_into().unwrap()), immediate);
        }
    }
    panic!("the mailbox answers nothing");
}

/// After 2 MiB were granted and have not arrived, each grant begins where the previous one ends.
#[test]
fn grants_follow_one_another_in_the_order_of_asking() {
    with_liar(IncastControl::Smsrp, |inbox, liar| {
        let mut delays = Vec::new();
        for kind in [ASK_WRITE, ASK_COPY] {
            liar.say(kind, 0, 0, &(4_u64 << 20).to_le_bytes());
            let (kind, _, delay) = answer(inbox, liar);
            assert_eq!(kind, READY);
            delays.push(delay.expect("incast control"));
        }
        // The first delays are 0 and 2 MiB at 16 MiB a second; then comes 6.
        assert_eq!(delays, [0, 125_000]);
        liar.say(RESERVE, 0, 0, &100_000_u64.to_le_bytes());
        assert_eq!(answer(inbox, liar), (GRANT, 100_000, Some(375_000)));
        liar.say(RESERVE, 0, 0, &u64::MAX.to_le_bytes());
        // The additional 100,000 bytes take 5,960 us and a fraction.
        assert_eq!(answer(inbox, liar), (GRANT, 128 << 10, Some(380_960)), "one reservation gets no more");
    });
    with_liar(IncastControl::Off, |inbox, liar| {
        liar.say(ASK_WRITE, 0, 0, &(4_u64 << 20).to_le_bytes());
        assert_eq!(answer(inbox, liar).2, None, "nothing is said of it");
    });
}

/// The time is measured by the poster's clock. The message may arrive later.
#[test]
fn a_message_does_not_come_before_the_time_of_its_grant() {
    const WINDOW: usize = 4;
    for (incast, len, before) in [
        (IncastControl::Smsrp, 16 << 10, WINDOW),
        (IncastControl::Smsrp, 200_000, 0),
        (IncastControl::Srp, 200_000, 0),
    ] {
        beside_liar(incast, |world, inbox, liar| {
            // The liar asks for another kind of memory than the messages below.
            liar.say(ASK_COPY, 0, 0, &(8_u64 << 20).to_le_bytes());
            assert_eq!(answer(inbox, liar).0, READY);
            let out = world.postbox::<u8>("in").unwrap();
            (0..before).for_each(|seed| out.post(patterned(world, seed, len).unwrap()).unwrap());
            let start = Instant::now();
            out.post(patterned(world, before, len).unwrap()).unwrap();
            for seed in 0..=before {
                assert_pattern(&inbox.retrieve_timeout(LONG).unwrap(), seed, len);
            }
            // The 8 MiB were granted and do not arrive: 6 more than are free, at 16 MiB a second.
            assert!(start.elapsed() >= Duration::from_millis(375), "{incast}: {len} bytes");
        });
    }
}

/// Messages that wait for their time hold memory at the mailbox. So few may wait, and the others wait for an answer.
#[test]
fn announced_messages_hold_little_memory_while_they_wait() {
    for (incast, most) in [(IncastControl::Off, 5), (IncastControl::Srp, 4), (IncastControl::Smsrp, 4)] {
        with_liar(incast, |inbox, liar| {
            for granted in 1..=5 {
                liar.say(ASK_WRITE, 0, 0, &(512_u64 << 10).to_le_bytes());
                if granted <= most {
                    assert_eq!(answer(inbox, liar).0, READY);
                }
            }
            let error = inbox.retrieve_timeout(SHORT).unwrap_err().to_string();
            let held = format!("{} bytes are granted to postboxes", most << 19);
            assert_eq!(error.contains(&held), most < 5, "{error}");
            assert!(liar.vi.arrival().unwrap().is_none(), "nothing more is granted");
        });
    }
}

/// A peer that reserves without being told to, or repeatedly, is no postbox.
#[test]
fn who_reserves_and_sends_nothing_is_caught() {
    let (none, most, least) = ((0, 0), (2, u64::MAX), (2, 1));
    for (incast, (before, bytes)) in [
        (IncastControl::Off, none),
        (IncastControl::Srp, none),
        (IncastControl::Smsrp, most),
        (IncastControl::Smsrp, least),
    ] {
        with_liar(incast, |inbox, liar| {
            for _ in 0..before {
                liar.say(RESERVE, 0, 0, &bytes.to_le_bytes());
                assert_eq!(answer(inbox, liar).0, GRANT);
            }
            liar.say(RESERVE, 0, 0, &1_u64.to_le_bytes());
            let error = inbox.retrieve().unwrap_err();
            let Error::PeerLost { rank: 0, how } = &error else { panic!("{error}") };
            assert!(how.contains("broke the message protocol"), "{how}");
        });
    }
}

/// Long messages of many senders overflow the one socket of a UDP NIC. Each TCP connection has its own buffer.
#[test]
fn by_itself_it_is_in_force_over_udp_where_there_are_many() {
    for (transport, ranks, expected) in
        [("udp", 18, IncastControl::Srp), ("udp", 17, IncastControl::Off), ("tcp", 18, IncastControl::Off)]
    {
        ranks_over(
            transport,
            ranks,
            |_| under(IncastControl::Auto),
            |_| true,
            move |world| {
                if world.rank() == 0 {
                    let inbox = world.mailbox::<u8>("in")?;
                    assert_pattern(&inbox.retrieve()?, 3, 300_000);
                } else if world.rank() == 1 {
                    let out = world.postbox::<u8>("in")?;
                    assert_eq!(out.route().incast, expected, "{transport}, {ranks} ranks");
                    out.post(patterned(&world, 3, 300_000)?)?;
                }
                world.barrier()?;
                world.finish()
            },
        );
    }
}

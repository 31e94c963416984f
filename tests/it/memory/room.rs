//! Messages that nobody retrieves yet: a postbox takes many more than its connection holds, over every transport, and reports
//! what became of them.

use crate::common::{
    Event, LONG, SHORT, alone, assert_pattern, asynchronous, config, over_verbs_apart, pattern_of, patterned,
    ranks, ranks_with,
};
use std::sync::OnceLock;
use udeck::{Buf, Error, ExternalBuf, Mailbox, Postbox, Protocol, Result, World, select_timeout};
use udeck_boot::{Client, local::Job};
use udeck_sim::Fabric;

/// Number of messages larger than the capacity of any connection.
const MANY: usize = 10_000;
/// The same, for tests that do not count them all.
const SOME: usize = 1000;
/// Number of messages below the capacity of any connection.
const FEW: u64 = 5;
/// Capacity of a connection over shared memory, in messages.
const RING: usize = 64;

/// Each of several postboxes holds as many messages for an unread mailbox as a single one does, however short they are.
#[test]
fn each_postbox_of_a_rank_has_a_queue_of_its_own() {
    ranks_with(1, &config(), |world| {
        let names: Vec<String> = (0..6).map(|n| format!("mailbox {n}")).collect();
        let inboxes: Vec<Mailbox<[u64; 8]>> =
            names.iter().map(|name| world.mailbox(name)).collect::<Result<_>>()?;
        let mut held = Vec::new();
        for name in &names {
            let out = world.postbox::<[u64; 8]>(name)?;
            let (count, error) =
                (0..).find_map(|n| Some((n, out.try_post(&[[n; 8]][..]).err()?))).expect("a bound");
            assert!(matches!(error.error, Error::WouldBlock { .. }), "{}", error.error);
            held.push((count, out));
        }
        let counts: Vec<_> = held.iter().map(|(count, _)| *count).collect();
        assert!(counts.iter().all(|count| count.abs_diff(counts[0]) < 100), "{counts:?}");
        drop((inboxes, held));
        drop(world);
        Ok(())
    });
}

/// A post that finds no memory because other postboxes hold it says so, and blames no reader.
#[test]
fn memory_that_other_postboxes_have_is_told_as_such() {
    let mut config = config();
    config.arena = Some(4 << 20);
    ranks_with(1, &config, |world| {
        let names: Vec<String> = (0..8).map(|n| format!("mailbox {n}")).collect();
        let inboxes: Vec<Mailbox<[u64; 128]>> =
            names.iter().map(|name| world.mailbox(name)).collect::<Result<_>>()?;
        let outs: Vec<Postbox<[u64; 128]>> =
            names.iter().map(|name| world.postbox(name)).collect::<Result<_>>()?;
        let error = (0..100_000).find_map(|n| outs[n % 8].try_post(&[[n as u64; 128]][..]).err());
        let error = error.expect("no memory is so large").error;
        assert!(matches!(error, Error::WouldBlock { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("memory: no room") && text.contains("bytes are in use"), "{text}");
        drop((inboxes, outs));
        drop(world);
        Ok(())
    });
}

/// Runs two ranks over NICs that `nic` opens.
pub(super) fn over(nic: fn(&Client) -> udeck::via::Nic, body: fn(World) -> Result) {
    let (_job, streams) = Job::new(2).expect("a name service");
    let ranks: Vec<_> = streams
        .into_iter()
        .map(|stream| {
            std::thread::spawn(move || {
                let client = Client::new(stream)?;
                let nic = nic(&client);
                body(World::new(client, vec![nic], config(), false)?)
            })
        })
        .collect();
    for (rank, result) in ranks.into_iter().enumerate() {
        result.join().expect("no panic").unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
}

pub(super) fn opened(name: &str, client: &Client) -> udeck::via::Nic {
    let mut options = udeck::NicOptions::new(client.keys());
    options.arena = Some(64 << 20);
    udeck::open_nic(name, &options).expect(name)
}

// ---- posted first, retrieved later ----

/// Both ranks post before either retrieves; now and then a longer message, which takes another protocol.
fn both_post_first(world: World) -> Result {
    let other = 1 - world.rank();
    let inbox = world.mailbox::<u64>(&format!("in {}", world.rank()))?;
    let out = world.postbox::<u64>(&format!("in {other}"))?;
    let long = |number: usize| number % 100 == 99;
    for number in 0..MANY {
        if long(number) {
            out.post(patterned(&world, number, 100)?)?
        } else {
            out.post(&[number as u64][..])?
        }
    }
    assert_eq!(world.stats().messages_posted, MANY as u64);
    world.barrier()?; // nothing was retrieved up to here
    for number in 0..MANY {
        let received = inbox.retrieve()?;
        match long(number) {
            true => assert_pattern(&received, number, 100),
            false => assert_eq!(received[..], [number as u64]),
        }
    }
    out.flush()?;
    drop(out);
    world.barrier()?;
    assert!(inbox.try_retrieve()?.is_none());
    world.finish()
}

#[test]
fn over_shared_memory_both_may_post_first() {
    over(|client| opened("shm0", client), both_post_first);
}

#[test]
fn over_tcp_both_may_post_first() {
    over(|client| opened("tcp0", client), both_post_first);
}

#[test]
fn over_udp_both_may_post_first() {
    over(|client| opened("udp0", client), both_post_first);
}

#[test]
fn over_verbs_both_may_post_first() {
    if over_verbs_apart("memory::room::over_verbs_both_may_post_first") {
        udeck::run_local(2, both_post_first).unwrap();
    }
}

#[test]
fn over_a_simulated_network_both_may_post_first() {
    over(
        |client| {
            static FABRIC: OnceLock<Fabric> = OnceLock::new();
            simulated(&FABRIC, client)
        },
        both_post_first,
    );
}

/// A NIC at a simulated network that the ranks of one job share.
pub(super) fn simulated(network: &OnceLock<Fabric>, client: &Client) -> udeck::via::Nic {
    let network = network.get_or_init(|| Fabric::new(1));
    let options = udeck_sim::Options { keys: client.keys(), arena_limit: 64 << 20, ..Default::default() };
    network.nic(&format!("rank{}", client.welcome().rank), options).expect("the name is free")
}

/// A rank with one thread may post to itself.
#[test]
fn one_thread_may_post_first() {
    let world = alone(8 << 20);
    let inbox = world.mailbox::<u64>("in").unwrap();
    let out = world.postbox::<u64>("in").unwrap();
    let numbers: Vec<u64> = (0..MANY as u64).collect();
    let blocks = world.nic().outbox().usage().blocks;
    out.post_each(&numbers).unwrap();
    assert!(world.nic().outbox().usage().blocks <= blocks + 1, "short ones take no message memory");
    for number in numbers {
        assert_eq!(inbox.retrieve().unwrap()[..], [number]);
    }
    assert!(inbox.try_retrieve().unwrap().is_none());
    // Messages that the queue has sent have left it: this one goes straight into the ring.
    out.try_post(&[7][..]).unwrap();
    assert_eq!(inbox.try_retrieve().unwrap().expect("it is there")[..], [7]);
}

/// Every kind of message, by every protocol, keeps its place in the queue.
#[test]
fn every_kind_of_message_waits_in_order() {
    type Post = fn(&World, &Postbox<u8>, usize) -> Result;
    fn bytes(seed: usize, len: usize) -> Vec<u8> {
        pattern_of(seed, len)
    }
    let posts: [(Post, usize); 7] = [
        (|_, out, seed| Ok(out.post(&bytes(seed, 8)[..])?), 8),
        (|world, out, seed| Ok(out.post(patterned(world, seed, 8)?)?), 8),
        (|_, out, seed| Ok(out.post(&bytes(seed, 500)[..])?), 500),
        (|world, out, seed| Ok(out.try_post(patterned(world, seed, 5000)?.share())?), 5000),
        (|_, out, seed| Ok(out.post(ExternalBuf::new(bytes(seed, 40)))?), 40),
        (|world, out, seed| Ok(out.post_nonblocking(patterned(world, seed, 600)?).map(drop)?), 600),
        (|_, out, seed| Ok(out.post_each(&bytes(seed, 1))?), 1),
    ];
    for protocol in asynchronous() {
        let world = alone(64 << 20);
        let inbox = world.mailbox::<u8>("in").unwrap();
        let out = world.postbox::<u8>("in").unwrap();
        out.set_protocol(protocol).unwrap();
        for seed in 0..SOME {
            let (post, _) = posts[seed % posts.len()];
            post(&world, &out, seed).unwrap_or_else(|error| panic!("{protocol}: message {seed}: {error}"));
            drop(out.take_returned());
        }
        for seed in 0..SOME {
            let received =
                inbox.retrieve_timeout(LONG).unwrap_or_else(|error| panic!("{protocol}: {seed}: {error}"));
            assert_pattern(&received, seed, posts[seed % posts.len()].1);
        }
    }
}

/// The poster computes, and makes no call.
#[test]
fn what_waits_travels_without_the_poster() {
    let (posted, retrieved) = (Event::new(), Event::new());
    ranks(2, move |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u64>("in")?;
            posted.wait();
            for number in 0..SOME as u64 {
                assert_eq!(inbox.retrieve()?[..], [number]);
            }
            retrieved.happen();
        } else {
            let out = world.postbox::<u64>("in")?;
            (0..SOME as u64).try_for_each(|number| -> Result { Ok(out.post(&[number][..])?) })?;
            posted.happen();
            retrieved.wait();
        }
        world.finish()
    });
}

/// Waiting messages of a dropped postbox travel, too.
#[test]
fn what_waits_outlives_its_postbox() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u64>("in")?;
            world.barrier()?;
            for number in 0..SOME as u64 {
                assert_eq!(inbox.retrieve()?[..], [number]);
            }
        } else {
            let out = world.postbox::<u64>("in")?;
            (0..SOME as u64).try_for_each(|number| -> Result { Ok(out.post(&[number][..])?) })?;
            drop(out);
            world.barrier()?;
        }
        world.finish()
    });
}

/// Handles of all waiting messages are distinct, and complete in any order.
#[test]
fn a_thousand_handles() {
    let world = alone(8 << 20);
    let inbox = world.mailbox::<u64>("in").unwrap();
    let out = world.postbox::<u64>("in").unwrap();
    let mut handles: Vec<_> =
        (0..SOME as u64).map(|number| out.post_nonblocking(&[number][..]).unwrap()).collect();
    assert_eq!(handles.iter().filter(|handle| handle.is_done()).count(), RING);
    let kept = handles.split_off(SOME / 2);
    drop(handles);
    let reader = std::thread::spawn(move || {
        (0..SOME as u64).for_each(|number| assert_eq!(inbox.retrieve().unwrap()[..], [number]));
    });
    kept.into_iter().rev().for_each(|handle| handle.wait().unwrap());
    reader.join().unwrap();
}

// ---- the bound ----

/// Posts short messages until one would have to wait, and returns the number of accepted ones.
fn accepted(out: &Postbox<u8>) -> usize {
    for number in 0..1 << 20 {
        if let Err(failed) = out.try_post(&[number as u8][..]) {
            assert!(matches!(failed.error, Error::WouldBlock { .. }), "{}", failed.error);
            return number;
        }
    }
    panic!("a queue has a bound");
}

/// The mailbox sets the bound, and the poster is another rank.
#[test]
fn a_queue_of_one_message_holds_its_poster_up() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox_with_queue::<u8>("in", 0)?;
            world.barrier()?; // it is full
            world.barrier()?; // and somebody has waited in vain
            for number in 0..=RING + 1 {
                assert_eq!(inbox.retrieve()?[..], [number as u8]);
            }
            world.barrier()?;
        } else {
            let out = world.postbox::<u8>("in")?;
            assert_eq!(accepted(&out), RING + 1);
            world.barrier()?;
            let message = &[RING as u8 + 1][..];
            let failed = out.post_timeout(message, SHORT).unwrap_err();
            assert!(matches!(failed.error, Error::Deadline { .. }), "{}", failed.error);
            assert!(failed.error.to_string().contains("rank 0 to retrieve"), "{}", failed.error);
            world.barrier()?;
            out.post(message)?;
            out.flush()?;
            world.barrier()?;
        }
        world.finish()
    });
}

/// A world of one rank with these settings.
fn with(queue: usize, arena: usize) -> World {
    let mut config = config();
    (config.queue, config.arena) = (queue, Some(arena));
    udeck::init_with(config).unwrap()
}

/// The bound is the rank's setting, unless the mailbox sets another one; and the memory.
#[test]
fn a_queue_is_bounded_in_bytes() {
    // Each message counts as 128 bytes.
    for (queue, arena, most) in
        [(1 << 20, 64 << 20, 8192), (64 << 10, 64 << 20, 512), (1 << 30, 2 << 20, 4096)]
    {
        let world = with(queue, arena);
        let _inbox = world.mailbox::<u8>("in").unwrap();
        let told = world.mailbox_with_queue::<u8>("told", 100 * 128).unwrap();
        assert_eq!(accepted(&world.postbox("in").unwrap()), RING + most, "{queue} bytes of {arena}");
        assert_eq!(accepted(&world.postbox("told").unwrap()), RING + 100);
        let _unbounded = world.mailbox_with_queue::<u8>("unbounded", usize::MAX).unwrap();
        if arena == 2 << 20 {
            assert_eq!(accepted(&world.postbox("unbounded").unwrap()), RING + 4096);
        }
        drop(told);
    }
}

/// Long messages have places, too, but fewer.
#[test]
fn sixteen_messages_wait_whatever_their_length() {
    let world = with(1 << 20, 64 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    let mut accepted = 0;
    while out.try_post(world.buf::<u8>(256 << 10).unwrap()).is_ok() {
        accepted += 1;
    }
    assert_eq!(accepted, RING + 16);
    (0..accepted).for_each(|_| drop(inbox.retrieve().unwrap()));
}

/// Memory taken by later messages never blocks an earlier one.
#[test]
fn messages_by_eager_do_not_wait_for_each_others_memory() {
    const LEN: usize = 600 << 10;
    let mut config = config();
    config.arena = Some(4 << 20);
    ranks_with(2, &config, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u8>("in")?;
            world.barrier()?;
            std::thread::sleep(SHORT);
            for seed in 0..20 {
                assert_pattern(&inbox.retrieve()?, seed, LEN);
            }
        } else {
            let out = world.postbox::<u8>("in")?;
            out.set_protocol(Protocol::Eager)?;
            world.barrier()?;
            for seed in 0..20 {
                out.post(patterned(&world, seed, LEN)?)?;
            }
        }
        world.barrier()?;
        world.finish()
    });
}

// ---- the end ----

fn post_some(world: &World) -> Result<Postbox<u64>> {
    let out = world.postbox::<u64>("in")?;
    (0..SOME as u64).try_for_each(|number| -> Result { Ok(out.post(&[number][..])?) })?;
    Ok(out)
}

#[test]
fn finish_waits_for_what_waits() {
    let posted = Event::new();
    ranks(2, move |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u64>("in")?;
            posted.wait();
            std::thread::sleep(SHORT); // the other is finishing
            for number in 0..SOME as u64 {
                assert_eq!(inbox.retrieve()?[..], [number]);
            }
        } else {
            let out = post_some(&world)?;
            posted.happen();
            drop(out);
        }
        world.finish()
    });
}

#[test]
fn finish_says_how_many_messages_nobody_has_taken() {
    let over = Event::new();
    ranks(2, move |world| {
        if world.rank() == 0 {
            let inbox: Mailbox<u64> = world.mailbox("in")?;
            over.wait();
            drop(inbox);
            return world.finish();
        }
        let out = post_some(&world)?;
        let error = out.flush_timeout(SHORT).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        let error = world.finish_timeout(SHORT).unwrap_err();
        let Error::Deadline { whom, .. } = &error else { panic!("{error}") };
        let left = SOME - RING;
        assert!(whom.contains(&format!("{left} message(s) for mailbox \"in\" of rank 0")), "{error}");
        over.happen();
        Ok(())
    });
}

#[test]
fn what_waits_for_a_mailbox_that_goes_is_counted() {
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox: Mailbox<u64> = world.mailbox("in")?;
            world.barrier()?;
            drop(inbox);
            return world.finish();
        }
        let out = post_some(&world)?;
        world.barrier()?;
        let error = out.flush().unwrap_err();
        let Error::Undelivered { count, name, rank: 0, .. } = &error else { panic!("{error}") };
        assert_eq!((*count, &name[..]), (SOME - RING, "in"));
        let message: Buf<u64> = patterned(&world, 1, 1)?;
        let failed = out.post(message).unwrap_err();
        assert!(matches!(failed.error, Error::MailboxGone { .. }), "{}", failed.error);
        assert_pattern(&failed.message.expect("it comes back"), 1, 1);
        world.finish()
    });
}

/// Messages in the connection are left to their receiver: `finish` does not wait for them, and a flush reports what became of
/// them.
fn left_unread(world: World) -> Result {
    if world.rank() == 0 {
        let inbox: Mailbox<u64> = world.mailbox("in")?;
        world.barrier()?;
        drop(inbox);
        return world.finish();
    }
    let exits = world.rank_exits()?;
    let outs = [world.postbox::<u64>("in")?, world.postbox("in")?, world.postbox("in")?];
    for out in &outs {
        (0..FEW).try_for_each(|number| -> Result { Ok(out.post(&[number][..])?) })?;
    }
    world.barrier()?;
    select_timeout(&[&exits], LONG)?;
    let [flushed, dropped, _kept] = outs;
    drop(dropped);
    for _ in 0..2 {
        let error = flushed.flush().unwrap_err();
        assert!(matches!(&error, Error::MailboxGone { name, rank: 0 } if name == "in"), "{error}");
    }
    world.finish()
}

#[test]
fn over_shared_memory_a_flush_tells_of_what_was_left_unread() {
    over(|client| opened("shm0", client), left_unread);
}

#[test]
fn over_tcp_a_flush_tells_of_what_was_left_unread() {
    over(|client| opened("tcp0", client), left_unread);
}

#[test]
fn over_udp_a_flush_tells_of_what_was_left_unread() {
    over(|client| opened("udp0", client), left_unread);
}

#[test]
fn over_verbs_a_flush_tells_of_what_was_left_unread() {
    if over_verbs_apart("memory::room::over_verbs_a_flush_tells_of_what_was_left_unread") {
        udeck::run_local(2, left_unread).unwrap();
    }
}

/// Each of two handles reports its own message, and the others are counted.
#[test]
fn handles_tell_of_their_own_losses() {
    let world = alone(8 << 20);
    let inbox = world.mailbox::<u64>("in").unwrap();
    let out = post_some(&world).unwrap();
    let handles = [7, 8].map(|number| out.post_nonblocking(&[number][..]).unwrap());
    drop(inbox);
    for handle in handles {
        let error = handle.wait().unwrap_err();
        assert!(matches!(error, Error::MailboxGone { .. }), "{error}");
    }
    let error = world.finish().unwrap_err();
    let Error::Undelivered { count, .. } = error else { panic!("{error}") };
    assert_eq!(count, SOME - RING);
}

/// A shared message in a queue belongs to the program again when all postboxes have sent it.
#[test]
fn a_shared_message_may_wait_for_many() {
    let world = alone(8 << 20);
    let inbox = world.mailbox::<u64>("in").unwrap();
    let out = world.postbox::<u64>("in").unwrap();
    let message = patterned::<u64>(&world, 3, 100).unwrap().share();
    for _ in 0..SOME {
        out.post(message.clone()).unwrap();
    }
    let message = world.unshare(message).unwrap_err();
    for _ in 0..SOME {
        assert_pattern(&inbox.retrieve().unwrap(), 3, 100);
    }
    out.flush().unwrap();
    assert_pattern(&world.unshare(message).expect("nobody has it"), 3, 100);
}

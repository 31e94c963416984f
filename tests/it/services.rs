//! Services: calls in all directions, of ranks that die, and until a deadline.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use udeck::{Error, Result, World};

use crate::common::{Event, LONG, SHORT, config, ranks_believing, ranks_over};

/// Calls of a rank to each rank that have no reply at a time.
const OUTSTANDING: usize = 100;

/// All ranks call all ranks, and only those that wait serve: with calls that did not serve they would wait for
/// each other.
fn all_call_all(world: World, len: usize) -> Result {
    let me = world.rank() as u64;
    let served = AtomicUsize::new(0);
    let service = world.service("sums", |caller, request: &[u64]| {
        served.fetch_add(1, Ordering::Relaxed);
        assert_eq!((request[0] as usize, request.len()), (caller, len));
        vec![me, request[1], request.iter().sum()]
    })?;
    let mut replies = Vec::new();
    for nth in 0..OUTSTANDING as u64 {
        for server in 0..world.size() {
            let mut request = vec![nth; len];
            request[0] = me;
            replies.push((nth, server, service.call(server, &request)?));
        }
    }
    // In the opposite order, so that replies wait for their turn.
    for (nth, server, reply) in replies.into_iter().rev() {
        assert_eq!(reply.server(), server);
        let reply = reply.wait_timeout(LONG)?;
        assert_eq!(reply[..], [server as u64, nth, me + nth * (len as u64 - 1)]);
    }
    service.finish()?;
    assert_eq!(served.into_inner(), OUTSTANDING * world.size());
    world.finish()
}

#[test]
fn ranks_that_wait_for_replies_serve() {
    for (size, oversubscribed) in [(1, false), (2, false), (4, true)] {
        ranks_believing(size, |_| config(), move |_| oversubscribed, |world| all_call_all(world, 3));
    }
    ranks_over("tcp", 3, |_| config(), |_| true, |world| all_call_all(world, 3));
}

/// A rank that has called `finish` serves rank 0, which has not, and which makes the group of all ranks.
#[test]
fn a_rank_that_finishes_first_serves() {
    let ends = Event::new();
    let body = move |world: World| {
        let service = world.service("early", |_, request: &[u8]| request.to_vec())?;
        // No barrier: it would make the group of all ranks before.
        match world.rank() {
            0 => {
                ends.wait();
                assert_eq!(service.call(1, &[1])?.wait_timeout(LONG)?[..], [1]);
                assert_eq!(service.call(2, &[2])?.wait_timeout(LONG)?[..], [2]);
            }
            1 => ends.happen(),
            _ => {}
        }
        service.finish()?;
        world.finish()
    };
    ranks_believing(3, |_| config(), |_| true, body);
}

#[test]
fn long_requests_find_room() {
    for transport in ["shm", "tcp"] {
        ranks_over(transport, 2, |_| config(), |_| false, |world| all_call_all(world, 9000));
    }
}

/// A rank that ends without a reply fails the calls to it; others can still be called.
fn server_dies(world: World, called: &Event) -> Result {
    let rank = world.rank();
    let service = world.service("echo", |_, request: &[u32]| request.to_vec())?;
    world.barrier()?;
    match rank {
        0 => {
            let lost = service.call(2, &[1])?;
            let kept = service.call(1, &[2, 3])?;
            called.happen();
            let error = lost.wait_timeout(LONG).unwrap_err();
            assert!(matches!(error, Error::PeerLost { rank: 2, .. }), "{error}");
            assert!(lost.is_done()?);
            assert_eq!(kept.wait()?[..], [2, 3]);
            assert_eq!(service.call(1, &[4])?.wait()?[..], [4]);
            assert_eq!(service.call(0, &[5])?.wait()?[..], [5]);
        }
        1 => {
            let mut left = 2;
            while left > 0 {
                left -= service.serve(LONG)?.min(left);
            }
        }
        _ => {
            called.wait();
            return Ok(()); // dies without serving
        }
    }
    world.group("left", &[0, 1])?.barrier()
}

#[test]
fn calls_of_a_server_that_dies_fail() {
    for transport in ["shm", "tcp"] {
        let called = Event::new();
        ranks_over(transport, 3, |_| config(), |_| true, move |world| server_dies(world, &called));
    }
}

#[test]
fn a_late_server_is_named_and_its_reply_can_be_awaited_again() {
    let gave_up = Event::new();
    let body = move |world: World| {
        let service = world.service("late", |_, request: &[u8]| request.to_vec())?;
        world.barrier()?;
        if world.rank() == 0 {
            drop(service.call(1, &[1])?); // its reply is not kept for the next call
            let reply = service.call(1, &[2])?;
            let error = reply.wait_timeout(SHORT).unwrap_err();
            assert!(matches!(error, Error::Deadline { .. }), "{error}");
            let words = error.to_string();
            assert!(words.contains("a call of service \"late\"") && words.contains("rank 1"), "{words}");
            assert_eq!(service.serve(Duration::ZERO)?, 0);
            gave_up.happen();
            assert_eq!(reply.wait()?[..], [2]);
        } else {
            gave_up.wait();
        }
        service.finish()?;
        world.finish()
    };
    ranks_believing(2, |_| config(), |_| false, body);
}

/// Replies that wait for their turn, longer than what a descriptor holds, do not keep the server's memory.
fn replies_in_reverse(world: World, len: usize) -> Result {
    let service = world.service("reverse", |_, request: &[u8]| vec![request[0]; len])?;
    if world.rank() == 0 {
        let replies =
            (0..OUTSTANDING as u8).map(|nth| service.call(1, &[nth])).collect::<Result<Vec<_>>>()?;
        for (nth, reply) in replies.into_iter().enumerate().rev() {
            assert_eq!(reply.wait()?[..], vec![nth as u8; len]);
        }
    }
    service.finish()?;
    world.finish()
}

#[test]
fn many_long_replies_wait_for_their_turn() {
    for transport in ["shm", "tcp"] {
        for len in [41, 9000] {
            let mut short = config();
            short.deadline = Duration::from_secs(5);
            let short = move |_| short.clone();
            ranks_over(transport, 2, short, |_| true, move |world| replies_in_reverse(world, len));
        }
    }
}

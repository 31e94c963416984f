//! Messages in the program's own memory: their contents arrive, and the memory comes back.

use crate::common::{Event, LONG, SHORT, alone, assert_pattern, asynchronous, pattern_of, patterned, ranks};
use udeck::{Error, ExternalBuf, Pod, Postbox, Protocol, World};

/// The elements of [`pattern_of`] in the program's own memory, tagged with their seed.
fn adopted<T: Pod + Send>(seed: usize, len: usize) -> ExternalBuf<T> {
    ExternalBuf::new(pattern_of(seed, len)).with_tag(seed as u32)
}

/// Posts the program's own buffer again and again; every time it arrives and comes back unchanged.
fn goes_round<T: Pod + Send>(protocol: Protocol, len: usize) {
    let world = alone(16 << 20);
    let inbox = world.mailbox::<T>("in").unwrap();
    let out = world.postbox::<T>("in").unwrap();
    out.set_protocol(protocol).unwrap();
    let mut going = adopted::<T>(7, len);
    let place = going.as_ptr();
    for round in 0..3 {
        out.post(going).unwrap();
        going = out.take_returned().expect("a software NIC is done with it");
        assert_eq!((going.as_ptr(), going.tag()), (place, 7), "the very buffer");
        assert_pattern(&going, 7, len);
        // Later changes of the buffer do not affect the message.
        bytemuck::fill_zeroes(&mut going);
        let received = inbox.retrieve().unwrap();
        assert_eq!((received.source(), received.tag()), (0, 7));
        assert_pattern(&received, 7, len);
        going.copy_from_slice(&pattern_of(7, len));
        let cache = world.stats().registrations;
        assert_eq!((cache.misses, cache.hits, cache.in_use), (1, round, 0), "{protocol}, {len} elements");
    }
    assert!(out.take_returned().is_none());
    let buffer = going.into_inner();
    assert_eq!((buffer.as_ptr(), buffer.len()), (place, len));
    assert_eq!(world.stats().registrations.entries, 0, "the buffer is out of the library's hands");
}

#[test]
fn a_buffer_arrives_comes_back_and_is_registered_once() {
    for protocol in asynchronous() {
        for len in [0, 1, 40, 41, 5000, 1 << 20] {
            goes_round::<u8>(protocol, len);
        }
        goes_round::<f64>(protocol, 3000);
        goes_round::<u128>(protocol, 1);
    }
}

#[test]
fn a_buffer_is_copied_once() {
    let world = alone(16 << 20);
    let inbox = world.mailbox::<u64>("in").unwrap();
    let out = world.postbox::<u64>("in").unwrap();
    out.post(adopted(1, 5000)).unwrap();
    assert_pattern(&inbox.retrieve().unwrap(), 1, 5000);
    let stats = world.stats();
    assert_eq!((stats.bytes_posted, stats.bytes_copied, stats.bytes_retrieved), (40_000, 40_000, 40_000));
    assert_eq!((stats.messages_posted, stats.messages_retrieved), (1, 1));
}

#[test]
fn boxed_slices_are_buffers_too() {
    let world = alone(16 << 20);
    let inbox = world.mailbox::<u32>("in").unwrap();
    let out = world.postbox::<u32>("in").unwrap();
    let boxed: Box<[u32]> = pattern_of(3, 100).into();
    let place = boxed.as_ptr();
    out.post(ExternalBuf::from(boxed)).unwrap();
    assert_pattern(&inbox.retrieve().unwrap(), 3, 100);
    let boxed = out.take_returned().unwrap().into_inner().into_boxed_slice();
    assert_eq!((boxed.as_ptr(), boxed.len()), (place, 100));
}

#[test]
fn buffers_of_both_kinds_keep_their_order_and_come_back_in_it() {
    const MANY: usize = 16;
    for protocol in asynchronous() {
        let world = alone(16 << 20);
        let inbox = world.mailbox::<u8>("in").unwrap();
        let out = world.postbox::<u8>("in").unwrap();
        out.set_protocol(protocol).unwrap();
        let len = |seed| 10 + 300 * seed;
        for seed in 0..MANY {
            if seed % 3 == 0 {
                out.post(patterned(&world, seed, len(seed)).unwrap()).unwrap();
            } else {
                out.post(adopted(seed, len(seed))).unwrap();
            }
        }
        for seed in 0..MANY {
            assert_pattern(&inbox.retrieve().unwrap(), seed, len(seed));
        }
        for seed in (0..MANY).filter(|seed| seed % 3 != 0) {
            let back = out.take_returned().unwrap();
            assert_eq!(back.tag() as usize, seed);
            assert_pattern(&back, seed, len(seed));
        }
        assert!(out.take_returned().is_none());
    }
}

#[test]
fn a_buffer_goes_from_thread_to_thread() {
    const ROUNDS: usize = 50;
    ranks(2, |world| {
        if world.rank() == 0 {
            let inbox = world.mailbox::<u64>("in")?;
            for _ in 0..2 * ROUNDS {
                let received = inbox.retrieve()?;
                assert_pattern(&received, received.tag() as usize, 2000);
            }
            world.barrier()?;
            return world.finish();
        }
        // Each thread posts the buffer that the other one got back.
        let (to_second, from_first) = std::sync::mpsc::channel();
        let (to_first, from_second) = std::sync::mpsc::channel();
        to_first.send(adopted::<u64>(5, 2000)).unwrap();
        std::thread::scope(|scope| {
            for (from, to) in [(from_second, to_second), (from_first, to_first)] {
                let out = world.postbox::<u64>("in").unwrap();
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let Ok(buffer) = from.recv_timeout(LONG) else { panic!("the other thread has it") };
                        out.post(buffer).unwrap();
                        // The last buffer finds no receiver.
                        let _ = to.send(out.take_returned().expect("a software NIC is done with it"));
                    }
                });
            }
        });
        let cache = world.stats().registrations;
        assert_eq!((cache.misses, cache.hits), (1, 2 * ROUNDS as u64 - 1));
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn a_destroyed_mailbox_gives_the_buffer_back_and_it_goes_elsewhere() {
    for protocol in asynchronous() {
        for len in [3, 5000] {
            let world = alone(8 << 20);
            let gone = world.mailbox::<u8>("gone").unwrap();
            let dead = world.postbox::<u8>("gone").unwrap();
            dead.set_protocol(protocol).unwrap();
            drop(gone);
            let failed = dead.post(adopted(1, len)).unwrap_err();
            assert!(matches!(failed.error, Error::MailboxGone { .. }), "{protocol}: {}", failed.error);
            let back = failed.message.expect("nobody saw it");
            assert!(dead.take_returned().is_none(), "it was returned by the error");
            let inbox = world.mailbox::<u8>("in").unwrap();
            let out = world.postbox::<u8>("in").unwrap();
            out.post(back).unwrap();
            let received = inbox.retrieve().unwrap();
            assert_eq!(received.tag(), 1);
            assert_pattern(&received, 1, len);
            assert_eq!(world.stats().registrations.hits, 1);
        }
    }
}

#[test]
fn a_full_mailbox_gives_the_buffer_back() {
    for protocol in asynchronous() {
        let world = alone(64 << 20);
        let inbox = world.mailbox_with_queue::<u8>("in", 0).unwrap();
        let out = world.postbox::<u8>("in").unwrap();
        out.set_protocol(protocol).unwrap();
        let mut taken = 0;
        let failed = loop {
            match out.try_post(adopted(taken, 5000)) {
                Ok(()) => drop(out.take_returned().unwrap()),
                Err(failed) => break failed,
            }
            taken += 1;
        };
        assert!(matches!(failed.error, Error::WouldBlock { .. }), "{protocol}: {}", failed.error);
        let failed = out.post_timeout(failed.message.expect("it comes back"), SHORT).unwrap_err();
        assert!(matches!(failed.error, Error::Deadline { .. }), "{protocol}: {}", failed.error);
        let message = failed.message.expect("it comes back");
        assert_pattern(&message, taken, 5000);
        std::thread::scope(|scope| {
            let posting = scope.spawn(move || out.post(message).map_err(|failed| failed.error));
            for seed in 0..=taken {
                assert_pattern(&inbox.retrieve().unwrap(), seed, 5000);
            }
            posting.join().unwrap().unwrap();
        });
        assert_eq!(world.stats().messages_posted, taken as u64 + 1);
    }
}

/// Takes all message memory.
fn hoard(world: &World) -> Vec<udeck::Buf<u8>> {
    let (mut all, mut piece) = (Vec::new(), 1 << 20);
    while piece >= 64 {
        match world.buf::<u8>(piece) {
            Ok(buf) => all.push(buf),
            Err(_) => piece /= 2,
        }
    }
    all
}

#[test]
fn a_full_arena_makes_the_post_wait_for_memory() {
    let world = alone(4 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    let hoarded = hoard(&world);
    let failed = out.try_post(adopted(1, 64 << 10)).unwrap_err();
    assert!(matches!(failed.error, Error::WouldBlock { .. }), "{}", failed.error);
    let failed = out.post_timeout(failed.message.expect("it comes back"), SHORT).unwrap_err();
    assert!(matches!(failed.error, Error::Deadline { .. }), "{}", failed.error);
    assert!(failed.error.to_string().contains("DECK_ARENA"), "{}", failed.error);
    let message = failed.message.expect("it comes back");
    let about_to_wait = Event::new();
    std::thread::scope(|scope| {
        let about = about_to_wait.clone();
        let posting = scope.spawn(move || {
            about.happen();
            out.post(message).map_err(|failed| failed.error)
        });
        about_to_wait.wait();
        drop(hoarded);
        posting.join().unwrap().unwrap();
    });
    assert_pattern(&inbox.retrieve().unwrap(), 1, 64 << 10);
}

#[test]
fn a_mailbox_that_is_destroyed_ends_the_wait_for_memory() {
    let world = alone(4 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    let _hoarded = hoard(&world);
    let about_to_wait = Event::new();
    std::thread::scope(|scope| {
        let about = about_to_wait.clone();
        let posting = scope.spawn(move || {
            about.happen();
            out.post(adopted(1, 64 << 10)).unwrap_err()
        });
        about_to_wait.wait();
        drop(inbox);
        let failed = posting.join().unwrap();
        assert!(matches!(failed.error, Error::MailboxGone { .. }), "{}", failed.error);
        assert_pattern(&failed.message.expect("it comes back"), 1, 64 << 10);
    });
}

#[test]
fn a_buffer_larger_than_the_arena_comes_back_at_once() {
    let world = alone(4 << 20);
    let _inbox = world.mailbox::<u8>("in").unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    let failed = out.post(ExternalBuf::new(vec![1; 64 << 20])).unwrap_err();
    assert!(matches!(failed.error, Error::TooLarge { asked, .. } if asked == 64 << 20), "{}", failed.error);
    assert_eq!(failed.message.unwrap().len(), 64 << 20);
}

/// Posts until buffers that nobody takes back prevent it; returns the number of posts.
fn never_takes_back(out: &Postbox<u8>, each: impl Fn()) -> usize {
    for posted in 0..10_000 {
        if let Err(failed) = out.post(adopted(posted, 100)) {
            let Error::ReturnQueueFull { name, count } = &failed.error else { panic!("{}", failed.error) };
            assert_eq!((name.as_str(), *count), ("in", posted));
            assert!(failed.error.to_string().contains("Postbox::take_returned"), "{}", failed.error);
            assert_pattern(&failed.message.expect("it comes back"), posted, 100);
            return posted;
        }
        each();
    }
    panic!("what nobody takes back has no bound");
}

#[test]
fn buffers_that_nobody_takes_back_are_bounded_and_none_is_lost() {
    let world = alone(16 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    let kept = never_takes_back(&out, || drop(inbox.retrieve().unwrap()));
    // Other messages still travel.
    out.post(patterned(&world, 1, 100).unwrap()).unwrap();
    assert_pattern(&out.take_returned().unwrap(), 0, 100);
    out.post(adopted(kept, 100)).unwrap();
    for seed in 1..=kept {
        assert_pattern(&out.take_returned().unwrap(), seed, 100);
    }
    assert!(out.take_returned().is_none());
}

#[test]
fn registrations_end_with_their_buffers() {
    let world = alone(16 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let entries = || (world.stats().registrations.entries, world.stats().registrations.invalidations);
    let out = world.postbox::<u8>("in").unwrap();
    for seed in 0..3 {
        out.post(adopted(seed, 100)).unwrap();
    }
    assert_eq!(entries(), (3, 0));
    drop(out.take_returned().unwrap());
    assert_eq!(entries(), (2, 1));
    out.take_returned().unwrap().into_inner();
    assert_eq!(entries(), (1, 2));
    drop(out);
    assert_eq!(entries(), (0, 3), "what nobody took back goes with its postbox");
    for seed in 0..3 {
        assert_pattern(&inbox.retrieve().unwrap(), seed, 100);
    }
}

//! The body of a message like the last two is received in place. Two connections are given the same bytes, one of them by a
//! scratch alone: they behave alike, however the reads cut the stream.

use udeck_faults::SplitMix64;
use udeck_via::Reliability;
use udeck_via::transport::Inline;

use super::pair::{connection, fill, pattern};
use crate::framed::connection::{Connection, Phase, Side};
use crate::framed::wire::{Frame, Header};
use crate::{Memory, TakenBody, Windows};

const LONG: usize = 20_000;

fn message(head: usize, body: usize, lent: bool, seed: u64) -> Vec<u8> {
    let len = if lent { body as u64 } else { 0 };
    let frame = Frame::Message { immediate: Some(seed as u32), receipt: false, lent, head: head as u8, len };
    let mut bytes = Header { taken: 0, frame }.encode().to_vec();
    bytes.extend(pattern(head, !seed));
    bytes.extend(pattern(len as usize, seed));
    bytes
}

/// Reads all of `bytes` once, as a driver does. Returns whether some of it had a place that was only expected.
fn read(connection: &mut Connection, bytes: &[u8]) -> bool {
    let place = connection.direct();
    let (before, behind) = bytes.split_at(place.before().min(bytes.len()));
    let filled = place.len().min(behind.len());
    fill(&place, &behind[..filled]);
    let is_expected = place.before() > 0 && filled > 0;
    connection.on_receive(place, filled, &[before, &behind[filled..]].concat());
    is_expected
}

/// Takes a message: immediate data, header, body.
fn take(connection: &mut Connection) -> Option<(Option<u32>, Vec<u8>, Vec<u8>)> {
    let taken = connection.take().unwrap()?;
    Some(match taken.body {
        TakenBody::Inline(bytes) => (taken.immediate, bytes.bytes().to_vec(), Vec::new()),
        TakenBody::Body(head, store, _) => (taken.immediate, head.bytes().to_vec(), store.bytes().to_vec()),
        TakenBody::Written(_) => panic!("nobody writes"),
    })
}

#[test]
fn a_message_like_the_last_two_is_not_copied() {
    let (memory, windows) = (Memory::fresh(4 << 20).unwrap(), Windows::new());
    let mut connection = connection(Reliability::Delivery, Side::Asked, &memory, &windows);
    assert!(!read(&mut connection, &message(8, LONG, true, 1)));
    assert!(!read(&mut connection, &message(8, LONG, true, 2)));
    let copied = memory.copied();
    assert_eq!(copied, 2 * LONG as u64, "nothing was known of the first two");
    assert!(read(&mut connection, &message(8, LONG, true, 3)));
    assert_eq!(memory.copied(), copied);
    // The bytes that came at once are not copied; the rest has a place of its own.
    let bytes = message(8, LONG, true, 4);
    assert!(read(&mut connection, &bytes[..5000]));
    assert!(!read(&mut connection, &bytes[5000..]));
    assert_eq!(memory.copied(), copied);
    for seed in 1..=4 {
        let expected = (Some(seed as u32), pattern(8, !seed), pattern(LONG, seed));
        assert_eq!(take(&mut connection), Some(expected));
    }
    drop(connection);
    assert_eq!(memory.outbox.usage().used, 0);
}

/// The part of a message behind its header is copied as far as a read has room beside it, and no more where messages differ.
#[test]
fn of_messages_of_different_lengths_only_what_was_read_beside_is_copied() {
    const SCRATCH: usize = 64 << 10;
    let (memory, windows) = (Memory::fresh(16 << 20).unwrap(), Windows::new());
    let mut connection = connection(Reliability::Delivery, Side::Asked, &memory, &windows);
    for seed in 0..20 {
        let before = memory.copied();
        let bytes = message(8, 800_000 + 64 * seed as usize, true, seed);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let room = connection.direct().len() + SCRATCH;
            let (now, later) = rest.split_at(room.min(rest.len()));
            read(&mut connection, now);
            rest = later;
        }
        assert!(take(&mut connection).is_some());
        let copied = memory.copied() - before;
        assert!(copied <= SCRATCH as u64, "{copied} bytes of message {seed}");
    }
}

#[test]
fn a_silent_connection_holds_no_memory_for_what_it_expects() {
    let (memory, windows) = (Memory::fresh(4 << 20).unwrap(), Windows::new());
    let mut connection = connection(Reliability::Delivery, Side::Asked, &memory, &windows);
    for seed in 1..=2 {
        read(&mut connection, &message(8, LONG, true, seed));
        assert!(take(&mut connection).is_some());
    }
    let place = connection.direct();
    assert_eq!((place.before(), place.len()), (40, LONG));
    // Nothing came.
    drop(place);
    assert_eq!(memory.outbox.usage().used, 0);
    connection.close(None);
    assert_eq!(connection.direct().len(), 0, "nobody takes it any more");
}

/// An earlier frame comes in the same read, so the head lies where the body was expected.
#[test]
fn a_message_like_the_last_two_behind_another_frame_keeps_its_head() {
    let (memory, windows) = (Memory::fresh(4 << 20).unwrap(), Windows::new());
    for head in [31, 32, 33, Inline::CAPACITY] {
        let mut connection = connection(Reliability::Delivery, Side::Asked, &memory, &windows);
        read(&mut connection, &message(head, LONG, true, 1));
        read(&mut connection, &message(head, LONG, true, 2));
        let credit = Header { taken: 0, frame: Frame::Credit }.encode();
        assert!(read(&mut connection, &[&credit[..], &message(head, LONG, true, 3)].concat()));
        read(&mut connection, &message(head, LONG, true, 4));
        for seed in 1..=4 {
            let expected = (Some(seed as u32), pattern(head, !seed), pattern(LONG, seed));
            assert!(take(&mut connection) == Some(expected), "message {seed} with a head of {head} bytes");
        }
        assert_eq!(connection.phase(), Phase::Open);
    }
}

#[test]
fn whatever_comes_instead_is_parsed_from_where_it_lies() {
    let seed = getrandom::u64().unwrap();
    println!("seed {seed}");
    let mut random = SplitMix64::new(seed);
    let mut below = move |bound: usize| (random.next_u64() % bound as u64) as usize;
    let (memory, windows) = (Memory::fresh(16 << 20).unwrap(), Windows::new());
    let new = || connection(Reliability::Delivery, Side::Asked, &memory, &windows);
    let (mut direct, mut beside) = (new(), new());
    let (mut expected, mut head) = (0, 8);
    for round in 0..300 {
        if round % 20 == 0 {
            head = [8, 8, 0, 31, 32, 33, 40][below(7)];
        }
        let mut stream = Vec::new();
        for _ in 0..1 + below(4) {
            let seed = below(1 << 20) as u64;
            stream.extend(match below(12) {
                0 => message(below(48), 0, false, seed),
                1 => message(8, below(200), true, seed),
                2 => message(head, LONG + below(3), true, seed),
                3 => message(below(41), LONG, true, seed),
                4 => Header { taken: 0, frame: Frame::Credit }.encode().to_vec(),
                5 => message(8, 70_000, true, seed),
                _ => message(head, LONG, true, seed),
            });
        }
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let most = if below(3) == 0 { 80 } else { rest.len() };
            let (now, later) = rest.split_at(1 + below(most.min(rest.len())));
            expected += usize::from(read(&mut direct, now));
            rest = later;
        }
        beside.on_receive_beside(&stream);
        loop {
            let (one, other) = (take(&mut direct), take(&mut beside));
            assert_eq!(one, other);
            if one.is_none() {
                break;
            }
        }
        assert_eq!((direct.phase(), beside.phase()), (Phase::Open, Phase::Open));
    }
    assert!(expected > 30, "{expected} reads had such a place");
    drop((direct, beside));
    assert_eq!(memory.outbox.usage().used, 0);
}

/// A peer that breaks the rules, or ends, is handled the same way, too: everything before is there, and nothing behind.
#[test]
fn what_breaks_the_rules_is_noticed_in_the_same_place() {
    let seed = getrandom::u64().unwrap();
    println!("seed {seed}");
    let mut random = SplitMix64::new(seed);
    let mut below = move |bound: usize| (random.next_u64() % bound as u64) as usize;
    let (memory, windows) = (Memory::fresh(16 << 20).unwrap(), Windows::new());
    let mut expected = 0;
    for _ in 0..200 {
        let new = || connection(Reliability::Delivery, Side::Asked, &memory, &windows);
        let (mut direct, mut beside) = (new(), new());
        let head = [0, 8, 32, 40][below(4)];
        for _ in 0..16 {
            let mut bytes = message(head, LONG, true, below(1 << 20) as u64);
            let frame = match below(64) {
                0 => Some(Frame::Write { immediate: None, receipt: false, handle: 77, offset: 0, len: 9 }),
                1 => Some(Frame::End { broken: below(2) == 0, len: 20 }),
                2 => Some(Frame::Ask { when_taken: true }),
                3..10 => Some(Frame::Credit),
                10 => Some(Frame::RecvClosed),
                _ => None,
            };
            if let Some(frame) = frame {
                let header = Header { taken: 0, frame }.encode();
                bytes.splice(..0, header);
            }
            if below(32) == 0 {
                let at = below(72);
                bytes[at] ^= 1 << below(8);
            }
            beside.on_receive_beside(&bytes);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let len = if below(4) == 0 { 1 + below(rest.len()) } else { rest.len() };
                let (now, later) = rest.split_at(len);
                expected += usize::from(read(&mut direct, now));
                rest = later;
            }
        }
        assert_eq!(format!("{direct:?}"), format!("{beside:?}"));
        loop {
            let lie_there = [&mut direct, &mut beside]
                .map(|connection| connection.has_arrivals().then(|| take(connection).unwrap()));
            assert!(lie_there[0] == lie_there[1]);
            if lie_there[0].is_none() {
                break;
            }
        }
        let last = [&mut direct, &mut beside].map(|connection| {
            connection.hung_up();
            format!("{connection:?} {:?}", connection.end())
        });
        assert_eq!(last[0], last[1]);
        drop((direct, beside));
        assert_eq!(memory.outbox.usage().used, 0);
    }
    assert!(expected > 30, "{expected} reads had such a place");
}

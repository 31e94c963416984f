use super::*;
use crate::wire::{NUMBERS, open, seal};
use proptest::prelude::*;
use std::collections::BTreeMap;

type Heap = Assembly<Vec<u8>>;

/// A message whose bytes tell which it is.
fn message(number: u64, len: u32) -> Vec<u8> {
    (0..len).map(|at| (number as u8).wrapping_mul(31) ^ at as u8 ^ (at >> 8) as u8).collect()
}

fn datagrams(cutter: &mut Cutter, bytes: &[u8], datagram: usize) -> Vec<Vec<u8>> {
    let cuts = cutter.message(bytes.len() as u32, datagram);
    cuts.map(|cut| {
        let payload = &bytes[cut.range.start as usize..cut.range.end as usize];
        [&cut.header(payload.chunks(100))[..], payload].concat()
    })
    .collect()
}

fn receive(assembly: &mut Heap, now: Instant, datagram: &[u8]) -> Result<Option<Vec<u8>>, Dropped> {
    let piece = Piece::decode(&open(datagram).unwrap()).unwrap();
    Ok(assembly.receive(now, &piece, |len| Some(vec![0; len]))?.map(|message| match message {
        Message::Whole(bytes) => bytes.to_vec(),
        Message::Assembled(bytes) => bytes,
    }))
}

#[test]
fn short_and_empty_messages_take_one_datagram_and_no_memory() {
    let mut cutter = Cutter::new(1);
    let mut assembly = Heap::new(Limits::default());
    for len in [0, 1, 1168] {
        let bytes = message(5, len);
        let [datagram] = &datagrams(&mut cutter, &bytes, 1200)[..] else { panic!("one datagram") };
        let piece = Piece::decode(&open(datagram).unwrap()).unwrap();
        let got = assembly.receive(Instant::now(), &piece, |_| panic!("memory"));
        assert_eq!(got, Ok(Some(Message::Whole(&bytes[..]))));
        let again = assembly.receive(Instant::now(), &piece, |_| panic!("memory"));
        assert_eq!(again, Err(Dropped::Done));
    }
    assert_eq!(datagrams(&mut cutter, &message(5, 1169), 1200).len(), 2);
}

#[test]
fn a_message_that_misses_a_piece_is_given_up_in_time() {
    let (now, mut cutter) = (Instant::now(), Cutter::new(1));
    let mut assembly = Heap::new(Limits::default());
    let datagrams = datagrams(&mut cutter, &message(0, 3000), 1200);
    assert_eq!(receive(&mut assembly, now, &datagrams[2]), Ok(None));
    assert_eq!(receive(&mut assembly, now, &datagrams[0]), Ok(None));
    let due = assembly.timer().unwrap();
    assembly.time(due - Duration::from_nanos(1));
    assert_eq!((assembly.len(), assembly.bytes()), (1, 3000));
    assembly.time(due);
    assert_eq!((assembly.len(), assembly.bytes(), assembly.given_up()), (0, 0, 1));
    assert_eq!(receive(&mut assembly, due, &datagrams[1]), Err(Dropped::Done), "it does not start anew");
}

#[test]
fn newer_messages_displace_the_oldest() {
    let (now, mut cutter) = (Instant::now(), Cutter::new(1));
    let mut assembly = Heap::new(Limits { messages: 2, bytes: 10_000, ..Limits::default() });
    let first = |cutter: &mut Cutter, len| datagrams(cutter, &message(0, len), 1200).remove(0);
    for len in [2000, 2000, 3000] {
        receive(&mut assembly, now, &first(&mut cutter, len)).unwrap();
    }
    assert_eq!((assembly.len(), assembly.bytes(), assembly.given_up()), (2, 5000, 1), "by their number");
    receive(&mut assembly, now, &first(&mut cutter, 8000)).unwrap();
    assert_eq!((assembly.len(), assembly.bytes(), assembly.given_up()), (1, 8000, 3), "by their size");
    assert_eq!(receive(&mut assembly, now, &first(&mut cutter, 10_001)), Err(Dropped::NoRoom));
    assert_eq!(receive(&mut assembly, now, &first(&mut cutter, 2 << 20)), Err(Dropped::TooLong));
}

#[test]
fn without_memory_the_message_is_dropped() {
    let mut assembly = Heap::new(Limits::default());
    let payload = [1; 10];
    let piece = Piece { connection: 1, message: 3, offset: 0, total: 20, payload: &payload };
    assert_eq!(assembly.receive(Instant::now(), &piece, |_| None), Err(Dropped::NoRoom));
    let short = Piece { message: 4, ..piece };
    assert_eq!(assembly.receive(Instant::now(), &short, |_| Some(vec![0; 19])), Err(Dropped::NoRoom));
    assert!(assembly.is_empty());
}

#[test]
fn pieces_that_contradict_or_scatter_are_dropped() {
    let (now, mut assembly) = (Instant::now(), Heap::new(Limits::default()));
    let piece = |offset, total| Piece { connection: 1, message: 0, offset, total, payload: &[1; 10] };
    let mut take = |piece: &Piece<'static>| assembly.receive(now, piece, |len| Some(vec![0; len]));
    assert_eq!(take(&piece(0, 9000)), Ok(None));
    assert_eq!(take(&piece(10, 9001)), Err(Dropped::Contradiction));
    for part in 1..MAX_PARTS as u32 {
        assert_eq!(take(&piece(part * 20, 9000)), Ok(None));
    }
    assert_eq!(take(&piece(8000, 9000)), Err(Dropped::Scattered));
    assert_eq!(take(&piece(10, 9000)), Ok(None), "that one closes a gap");
}

/// One step of a wild network: how long until the datagram comes, relative to its place in the sequence; how often; and
/// whether one of its bits is turned over.
fn ways() -> impl Strategy<Value = Vec<(u32, u8, bool)>> {
    let late = prop_oneof![4 => Just(0u32), 1 => 0u32..200];
    let copies = prop_oneof![6 => Just(1u8), 2 => Just(0u8), 2 => Just(2u8)];
    prop::collection::vec((late, copies, prop::bool::weighted(0.05)), 1..400)
}

proptest! {
    /// Loss, doubling and disorder of a fifth of the datagrams each, and spoilt ones.
    #[test]
    fn prop_messages_arrive_whole_and_at_most_once_or_not_at_all(
        lengths in prop::collection::vec(0u32..20_000, 1..60),
        ways in ways(),
        datagram in 100usize..2000,
    ) {
        let start = Instant::now();
        let limits = Limits { message: 20_000, messages: 8, bytes: 60_000, patience: Duration::from_millis(100) };
        let (mut cutter, mut assembly) = (Cutter::new(9), Heap::new(limits.clone()));
        let mut under_way = BTreeMap::new();
        let mut whole = Vec::new();
        let mut ways = ways.iter().cycle();
        let mut place = 0u32;
        for (number, len) in lengths.iter().enumerate() {
            let bytes = message(number as u64, *len);
            let mut untouched = true;
            for bytes in datagrams(&mut cutter, &bytes, datagram) {
                let (late, copies, spoilt) = *ways.next().unwrap();
                untouched &= late == 0 && copies > 0 && !spoilt;
                for copy in 0..u32::from(copies) {
                    let mut bytes = bytes.clone();
                    if spoilt {
                        let at = place as usize % bytes.len();
                        bytes[at] ^= 1u8 << (place % 8);
                    }
                    under_way.insert((place + late + copy, place, copy), bytes);
                }
                place += 1;
            }
            whole.push(untouched);
        }
        let mut got = vec![0; lengths.len()];
        for ((when, ..), bytes) in under_way {
            let now = start + Duration::from_micros(100) * when;
            assembly.time(now);
            let Ok(opened) = open(&bytes) else { continue };
            let piece = Piece::decode(&opened).unwrap();
            if let Ok(Some(bytes)) = receive(&mut assembly, now, &bytes) {
                let number = piece.message as usize;
                prop_assert_eq!(&bytes, &message(piece.message, lengths[number]));
                got[number] += 1;
            }
            prop_assert!(assembly.len() <= limits.messages && assembly.bytes() <= limits.bytes);
        }
        prop_assert!(got.iter().all(|times| *times <= 1), "at most once: {:?}", got);
        // Short enough that nothing displaces it, and no piece was touched: it is there.
        for (number, len) in lengths.iter().enumerate() {
            prop_assert!(got[number] == 1 || !whole[number] || *len as usize > datagram - PIECE_HEADER, "{number}");
        }
    }

    #[test]
    fn prop_a_perfect_network_loses_nothing(lengths in prop::collection::vec(0u32..20_000, 1..20), datagram in 100usize..2000) {
        let (now, mut cutter, mut assembly) = (Instant::now(), Cutter::new(9), Heap::new(Limits::default()));
        for (number, len) in lengths.iter().enumerate() {
            let bytes = message(number as u64, *len);
            let mut got = Vec::new();
            for datagram in datagrams(&mut cutter, &bytes, datagram) {
                got.extend(receive(&mut assembly, now, &datagram).unwrap());
            }
            prop_assert_eq!(got, [bytes]);
        }
        prop_assert!(assembly.is_empty());
    }

    /// A peer that keeps to the wire format and to nothing else.
    #[test]
    fn prop_a_hostile_peer_takes_bounded_memory(
        pieces in prop::collection::vec((prop_oneof![0u64..4, 0u64..NUMBERS], 0u32..3000, 0u32..5000, 0u16..1400), 1..300),
    ) {
        let limits = Limits { message: 4000, messages: 4, bytes: 9000, patience: Duration::from_secs(1) };
        let (now, mut assembly) = (Instant::now(), Heap::new(limits.clone()));
        for (number, offset, total, len) in pieces {
            let mut datagram = vec![0xa5; PIECE_HEADER + usize::from(len)];
            let front = Piece { connection: 1, message: number, offset, total, payload: &[] }.header([]);
            datagram[..PIECE_HEADER].copy_from_slice(&front);
            seal(&mut datagram, []);
            let opened = open(&datagram).unwrap();
            let Ok(piece) = Piece::decode(&opened) else { continue };
            let got = assembly.receive(now, &piece, |len| Some(vec![0; len]));
            if let Ok(Some(Message::Assembled(bytes))) = got {
                prop_assert!(bytes.iter().all(|byte| *byte == 0xa5), "no byte that was not sent");
            }
            prop_assert!(assembly.len() <= limits.messages && assembly.bytes() <= limits.bytes);
            let parts = assembly.partial.iter().map(|partial| partial.came.len()).max();
            prop_assert!(parts.is_none_or(|parts| parts <= MAX_PARTS));
        }
    }
}

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Heap = Reassembly<Vec<u8>>;

const MESSAGE: Content = Content::Message { immediate: None, lent: true, head: 0 };
const END: u64 = 256;

/// Returns a message whose bytes depend on its number.
fn message(number: u64, len: u32) -> Vec<u8> {
    (0..len).map(|at| (number as u8).wrapping_mul(31) ^ at as u8 ^ (at >> 8) as u8).collect()
}

fn fragment(message: u64, offset: u32, total: u32, payload: &[u8]) -> Fragment<'_> {
    Fragment { stream: 4, message, offset, total, content: MESSAGE, payload }
}

fn datagram(fragment: &Fragment<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    fragment.put_header(&mut bytes);
    bytes.extend(fragment.payload);
    bytes
}

/// Returns message `number` in datagrams of at most `size` bytes.
fn datagrams(number: u64, bytes: &[u8], size: usize) -> Vec<Vec<u8>> {
    let total = bytes.len() as u32;
    if bytes.is_empty() {
        return vec![datagram(&fragment(number, 0, 0, &[]))];
    }
    let room = size - Fragment::header_len(&MESSAGE);
    let cut = |(nth, part)| datagram(&fragment(number, (nth * room) as u32, total, part));
    bytes.chunks(room).enumerate().map(cut).collect()
}

fn receive(reassembly: &mut Heap, now: Instant, datagram: &[u8]) -> Result<Option<Vec<u8>>, FragmentError> {
    let fragment = Fragment::decode(datagram).unwrap();
    let message = reassembly.receive(now, &fragment, fragment.message + END, |_, len| Some(vec![0; len]))?;
    Ok(message.map(|message| match message {
        Message::Whole(bytes) => bytes.to_vec(),
        Message::Assembled(bytes) => bytes,
    }))
}

fn missed(reassembly: &mut Heap) -> Vec<u64> {
    std::iter::from_fn(|| reassembly.next_missed()).map(|(number, _)| number).collect()
}

#[test]
fn short_and_empty_messages_take_one_datagram_and_no_memory() {
    let mut reassembly = Heap::new(Limits::default());
    for (number, len) in [0, 1, 1152].into_iter().enumerate() {
        let bytes = message(5, len);
        let [datagram] = &datagrams(number as u64, &bytes, 1200)[..] else { panic!("one datagram") };
        let fragment = Fragment::decode(datagram).unwrap();
        let got = reassembly.receive(Instant::now(), &fragment, END, |_, _| panic!("memory"));
        assert_eq!(got, Ok(Some(Message::Whole(&bytes[..]))));
        let again = reassembly.receive(Instant::now(), &fragment, END, |_, _| panic!("memory"));
        assert_eq!(again, Err(FragmentError::Stale));
    }
    assert_eq!((reassembly.span(), reassembly.next_timeout()), (0, None));
}

#[test]
fn a_message_of_which_nothing_comes_is_missed_in_time() {
    let (now, mut reassembly) = (Instant::now(), Heap::new(Limits::default()));
    let datagrams = datagrams(0, &message(0, 3000), 1200);
    let later = now + Duration::from_millis(700);
    assert_eq!(receive(&mut reassembly, now, &datagrams[2]), Ok(None));
    assert_eq!(receive(&mut reassembly, later, &datagrams[0]), Ok(None));
    let due = reassembly.next_timeout().unwrap();
    assert_eq!(due, later + Limits::default().timeout, "since something of it came");
    reassembly.on_timeout(due - Duration::from_nanos(1));
    assert_eq!((reassembly.len(), reassembly.bytes()), (1, 3000));
    reassembly.on_timeout(due);
    assert_eq!((reassembly.len(), reassembly.bytes(), missed(&mut reassembly)), (0, 0, vec![0]));
    assert_eq!(
        receive(&mut reassembly, due, &datagrams[1]),
        Err(FragmentError::Stale),
        "it does not start anew"
    );
}

#[test]
fn what_newer_ones_tell_of_is_waited_for_too() {
    let (now, mut reassembly) = (Instant::now(), Heap::new(Limits::default()));
    let short = |number| datagram(&fragment(number, 0, 1, b"x"));
    assert!(receive(&mut reassembly, now, &short(3)).unwrap().is_some());
    assert_eq!((reassembly.span(), reassembly.len()), (4, 0));
    assert!(receive(&mut reassembly, now, &short(1)).unwrap().is_some(), "in any order");
    reassembly.on_timeout(now + Limits::default().timeout);
    assert_eq!((missed(&mut reassembly), reassembly.span()), (vec![0, 2], 0));
}

#[test]
fn what_the_sender_gives_up_is_missed_unless_it_arrived() {
    let (now, mut reassembly) = (Instant::now(), Heap::new(Limits::default()));
    let long = datagrams(1, &message(0, 3000), 1200);
    receive(&mut reassembly, now, &long[0]).unwrap();
    receive(&mut reassembly, now, &datagram(&fragment(2, 0, 1, b"x"))).unwrap();
    reassembly.give_up(now, 5);
    assert_eq!((missed(&mut reassembly), reassembly.bytes()), (vec![0, 1, 3, 4], 0), "2 has arrived");
    assert_eq!(receive(&mut reassembly, now, &long[1]), Err(FragmentError::Stale));
    reassembly.give_up(now, 4);
    assert!(receive(&mut reassembly, now, &datagram(&fragment(5, 0, 1, b"x"))).unwrap().is_some());
    assert_eq!(missed(&mut reassembly), [0u64; 0]);
}

#[test]
fn newer_messages_displace_the_oldest() {
    let now = Instant::now();
    let mut reassembly = Heap::new(Limits { messages: 2, bytes: 10_000, ..Limits::default() });
    let first = |number, len| datagrams(number, &message(0, len), 1200).remove(0);
    for (number, len) in [(0, 2000), (1, 2000), (2, 3000)] {
        receive(&mut reassembly, now, &first(number, len)).unwrap();
    }
    assert_eq!(
        (reassembly.len(), reassembly.bytes(), missed(&mut reassembly)),
        (2, 5000, vec![0]),
        "by number"
    );
    receive(&mut reassembly, now, &first(3, 8000)).unwrap();
    assert_eq!(
        (reassembly.len(), reassembly.bytes(), missed(&mut reassembly)),
        (1, 8000, vec![1, 2]),
        "by size"
    );
    assert_eq!(receive(&mut reassembly, now, &first(4, 10_001)), Err(FragmentError::NoBuffer));
    assert_eq!(receive(&mut reassembly, now, &first(5, 2 << 20)), Err(FragmentError::TooLong));
    assert_eq!(missed(&mut reassembly), [3, 4, 5]);
}

#[test]
fn without_a_place_the_message_is_missed() {
    let (now, mut reassembly) = (Instant::now(), Heap::new(Limits::default()));
    let payload = [1; 10];
    let first = fragment(0, 0, 20, &payload);
    assert_eq!(reassembly.receive(now, &first, END, |_, _| None), Err(FragmentError::NoBuffer));
    let short = Fragment { message: 1, offset: 10, ..first };
    assert_eq!(reassembly.receive(now, &short, END, |_, _| Some(vec![0; 19])), Err(FragmentError::NoBuffer));
    assert!(reassembly.is_empty());
    assert_eq!(missed(&mut reassembly), [0, 1]);
}

#[test]
fn pieces_that_contradict_or_scatter_end_their_message() {
    let (now, mut reassembly) = (Instant::now(), Heap::new(Limits::default()));
    let mut take = |number, offset, total| {
        let fragment = fragment(number, offset, total, &[1; 10]);
        reassembly.receive(now, &fragment, END, |_, len| Some(vec![0; len]))
    };
    assert_eq!(take(0, 0, 9000), Ok(None));
    assert_eq!(take(0, 10, 9001), Err(FragmentError::Contradiction));
    assert_eq!(take(0, 10, 9000), Err(FragmentError::Stale));
    for part in 0..MAX_GAPS as u32 {
        assert_eq!(take(1, part * 20, 9000), Ok(None));
    }
    assert_eq!(take(1, 8000, 9000), Err(FragmentError::TooManyGaps));
    assert_eq!(take(END, 0, 20), Err(FragmentError::OutOfWindow), "it may not have been sent");
    assert_eq!(missed(&mut reassembly), [0, 1]);
}

#[test]
fn a_short_write_lands_too() {
    let (now, mut reassembly) = (Instant::now(), Heap::new(Limits::default()));
    let content = Content::Write { immediate: None, handle: 1, offset: 0 };
    for (number, payload) in [(0, &b"abc"[..]), (1, b"")] {
        let fragment = Fragment { content, ..fragment(number, 0, payload.len() as u32, payload) };
        let got = reassembly.receive(now, &fragment, END, |_, len| Some(vec![0; len]));
        assert_eq!(got, Ok(Some(Message::Assembled(payload.to_vec()))));
    }
    let content = Content::Write { immediate: None, handle: 2, offset: 0 };
    let first = fragment(2, 0, 3, b"a");
    assert_eq!(reassembly.receive(now, &first, END, |_, len| Some(vec![0; len])), Ok(None));
    let other = Fragment { content, ..fragment(2, 1, 3, b"bc") };
    let got = reassembly.receive(now, &other, END, |_, len| Some(vec![0; len]));
    assert_eq!(got, Err(FragmentError::Contradiction), "another place");
}

/// Draws for each datagram: how late it comes, relative to its place in the sequence, how many copies come, and
/// whether one of its bits is flipped.
fn ways() -> impl Strategy<Value = Vec<(u32, u8, bool)>> {
    let late = prop_oneof![4 => Just(0u32), 1 => 0u32..200];
    let copies = prop_oneof![6 => Just(1u8), 2 => Just(0u8), 2 => Just(2u8)];
    prop::collection::vec((late, copies, prop::bool::weighted(0.05)), 1..400)
}

proptest! {
    /// A fifth of the datagrams each is lost, duplicated and reordered, and some are corrupted.
    #[test]
    fn prop_messages_arrive_whole_and_at_most_once_or_not_at_all(
        lengths in prop::collection::vec(0u32..20_000, 1..60),
        ways in ways(),
        datagram in 100usize..2000,
    ) {
        let start = Instant::now();
        let limits = Limits { message: 20_000, messages: 8, bytes: 60_000, timeout: Duration::from_millis(100) };
        let mut reassembly = Heap::new(limits.clone());
        let mut under_way = BTreeMap::new();
        let mut whole = Vec::new();
        let mut ways = ways.iter().cycle();
        let mut place = 0u32;
        for (number, len) in lengths.iter().enumerate() {
            let bytes = message(number as u64, *len);
            let mut untouched = true;
            for bytes in datagrams(number as u64, &bytes, datagram) {
                let (late, copies, spoilt) = *ways.next().unwrap();
                untouched &= late == 0 && copies > 0 && !spoilt;
                for copy in 0..u32::from(copies) {
                    // QUIC takes no corrupted datagram.
                    if !spoilt {
                        under_way.insert((place + late + copy, place, copy), bytes.clone());
                    }
                }
                place += 1;
            }
            whole.push(untouched);
        }
        let mut got = vec![0; lengths.len()];
        for ((when, ..), bytes) in under_way {
            let now = start + Duration::from_micros(100) * when;
            reassembly.on_timeout(now);
            let fragment = Fragment::decode(&bytes).unwrap();
            if let Ok(Some(bytes)) = receive(&mut reassembly, now, &bytes) {
                let number = fragment.message as usize;
                prop_assert_eq!(&bytes, &message(fragment.message, lengths[number]));
                got[number] += 1;
            }
            prop_assert!(reassembly.len() <= limits.messages && reassembly.bytes() <= limits.bytes);
        }
        reassembly.give_up(start, lengths.len() as u64);
        missed(&mut reassembly).into_iter().for_each(|number| got[number as usize] += 10);
        prop_assert!(got.iter().all(|times| [1, 10].contains(times)), "arrived or missed, once: {:?}", got);
        prop_assert_eq!((reassembly.len(), reassembly.bytes(), reassembly.span()), (0, 0, 0));
        // A message that is short enough not to be displaced, and whose fragments all came, has arrived.
        for (number, len) in lengths.iter().enumerate() {
            prop_assert!(got[number] == 1 || !whole[number] || *len as usize > datagram - Fragment::header_len(&MESSAGE), "{number}");
        }
    }

    #[test]
    fn prop_a_perfect_network_loses_nothing(lengths in prop::collection::vec(0u32..20_000, 1..20), datagram in 100usize..2000) {
        let (now, mut reassembly) = (Instant::now(), Heap::new(Limits::default()));
        for (number, len) in lengths.iter().enumerate() {
            let bytes = message(number as u64, *len);
            let mut got = Vec::new();
            for datagram in datagrams(number as u64, &bytes, datagram) {
                got.extend(receive(&mut reassembly, now, &datagram).unwrap());
            }
            prop_assert_eq!(got, [bytes]);
        }
        prop_assert!(reassembly.is_empty());
    }

    /// The peer keeps to the wire format and to no other rule.
    #[test]
    fn prop_a_hostile_peer_takes_bounded_memory(
        pieces in prop::collection::vec((prop_oneof![0u64..4, 0u64..300, 0u64..u64::MAX], 0u32..3000, 0u32..5000, 0u16..1400), 1..300),
    ) {
        let limits = Limits { message: 4000, messages: 4, bytes: 9000, timeout: Duration::from_secs(1) };
        let (now, mut reassembly) = (Instant::now(), Heap::new(limits.clone()));
        for (number, offset, total, len) in pieces {
            let payload = vec![0xa5; usize::from(len)];
            let datagram = datagram(&fragment(number, offset, total, &payload));
            let Some(fragment) = Fragment::decode(&datagram) else { continue };
            let got = reassembly.receive(now, &fragment, END, |_, len| Some(vec![0; len]));
            if let Ok(Some(Message::Assembled(bytes))) = got {
                prop_assert!(bytes.iter().all(|byte| *byte == 0xa5), "no byte that was not sent");
            }
            prop_assert!(reassembly.len() <= limits.messages && reassembly.bytes() <= limits.bytes);
            prop_assert!(reassembly.span() <= END as usize && missed(&mut reassembly).len() <= END as usize);
            let parts = reassembly.slots.iter().map(|slot| match slot {
                MessageSlot::Partial(partial) => partial.received.len(),
                MessageSlot::Expected(_) | MessageSlot::Done => 0,
            });
            prop_assert!(parts.max().is_none_or(|parts| parts <= MAX_GAPS));
        }
    }
}

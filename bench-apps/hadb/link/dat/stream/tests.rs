//! Two sides against each other, each with packets under way and a landing memory.

use super::super::wire::PACKET;
use super::*;
use proptest::prelude::*;

type Message = (Vec<u8>, Option<Vec<u8>>);

/// One side, and the packets and pieces on their way to it.
#[derive(Default)]
struct Side {
    stream: Stream,
    packets: VecDeque<Vec<u8>>,
    landing: Vec<Option<Vec<u8>>>,
    arrived: Vec<Message>,
    /// Number of packets that this side has sent.
    sent: usize,
}

impl Side {
    fn new() -> Side {
        Side { landing: vec![None; SLOTS.into()], ..Side::default() }
    }

    /// Sends a packet, if there is one, and returns whether it did.
    fn send(&mut self, to: &mut Side, may_write: bool) -> bool {
        let mut packet = vec![0; PACKET];
        let filled = self.stream.fill(&mut packet, |slot, piece| {
            if may_write {
                let before = to.landing[slot].replace(piece.to_vec());
                assert_eq!(before, None, "slot {slot} was not empty");
            }
            Ok::<_, ()>(may_write)
        });
        let Some(len) = filled.expect("no errors") else { return false };
        packet.truncate(len);
        to.packets.push_back(packet);
        assert!(to.packets.len() <= RECEIVES.into(), "a packet without a receive");
        self.sent += 1;
        true
    }

    fn receive(&mut self) -> bool {
        let Some(packet) = self.packets.pop_front() else { return false };
        let Side { stream, landing, arrived, .. } = self;
        let read = |slot: usize, to: &mut [u8]| {
            to.copy_from_slice(&landing[slot].take()?);
            Some(())
        };
        let deliver = |body: &[u8], blob: Option<Blob>| {
            arrived.push((body.to_vec(), blob.map(|blob| blob.to_vec())));
            Some(())
        };
        assert_eq!(stream.receive(&packet, read, deliver), Some(()));
        true
    }

    fn push(&mut self, (body, blob): Message) {
        assert!(self.stream.push(body, blob.map(|blob| Blob::Bytes(Arc::new(blob)))));
    }
}

fn message(body: usize, blob: usize, byte: u8) -> Message {
    let bytes = |len: usize| (0..len).map(|at| (at as u8).wrapping_mul(7) ^ byte).collect::<Vec<u8>>();
    (bytes(body), (blob > 0).then(|| bytes(blob)))
}

/// Runs both sides until nothing is left to do.
fn settle(one: &mut Side, other: &mut Side) {
    for _ in 0..100_000 {
        let moved = [one.send(other, true), other.send(one, true), one.receive(), other.receive()];
        if moved == [false; 4] {
            return;
        }
    }
    panic!("they talk for ever");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn prop_messages_arrive_once_in_order_and_find_a_place(
        messages in prop::collection::vec((
            any::<bool>(),
            prop_oneof![9 => 0..300_usize, 1 => PACKET - 30..PACKET + 30, 1 => 100_000..300_000_usize],
            prop_oneof![8 => Just(0_usize), 1 => 1..20_000_usize, 1 => 120_000..1_300_000_usize],
        ), 1..120),
        turns in prop::collection::vec((0..4_u8, any::<bool>()), 0..600),
    ) {
        let (mut one, mut other) = (Side::new(), Side::new());
        let mut due = [Vec::new(), Vec::new()];
        let mut turns = turns.into_iter();
        for ((to_one, body, blob), byte) in messages.into_iter().zip(0_u8..) {
            let message = message(body, blob, byte);
            due[usize::from(to_one)].push(message.clone());
            if to_one { other.push(message) } else { one.push(message) }
            for (turn, may_write) in turns.by_ref().take(5) {
                match turn {
                    0 => one.send(&mut other, may_write),
                    1 => other.send(&mut one, may_write),
                    2 => one.receive(),
                    _ => other.receive(),
                };
            }
        }
        settle(&mut one, &mut other);
        prop_assert!(one.stream.is_empty() && other.stream.is_empty(), "something waits for ever");
        let [to_other, to_one] = due;
        prop_assert!(one.arrived == to_one && other.arrived == to_other);
    }

    /// Arbitrary packets of a peer cause no panic.
    #[test]
    fn prop_any_packet_is_taken_or_refused(packets in prop::collection::vec(
        prop::collection::vec(prop_oneof![4 => 0..4_u8, 1 => any::<u8>()], 0..40), 1..40,
    )) {
        let mut stream = Stream::default();
        for packet in packets {
            let taken = stream.receive(&packet, |_, to| { to.fill(1); Some(()) }, |_, _| Some(()));
            if taken.is_none() {
                break;
            }
        }
    }
}

#[test]
fn what_waits_goes_into_one_packet() {
    let (mut one, mut other) = (Side::new(), Side::new());
    for byte in 0..20 {
        one.push(message(100, 0, byte));
    }
    settle(&mut one, &mut other);
    assert_eq!((one.sent, other.arrived.len()), (1, 20));
    assert_eq!(other.sent, 0, "one credit is not worth a packet");
}

#[test]
fn both_may_send_all_that_they_can_at_the_same_time() {
    let (mut one, mut other) = (Side::new(), Side::new());
    for _ in 0..10 * usize::from(RECEIVES) {
        one.push(message(PACKET - 20, 0, 1));
        other.push(message(PACKET - 20, 0, 2));
    }
    while one.send(&mut other, true) {}
    while other.send(&mut one, true) {}
    assert_eq!([one.sent, other.sent], [usize::from(RECEIVES - KEPT); 2]);
    settle(&mut one, &mut other);
    assert_eq!([one.arrived.len(), other.arrived.len()], [10 * usize::from(RECEIVES); 2]);
}

/// Checks that packets which break the bounds are refused: `None` for the last one, and `Some` for those
/// before.
fn is_refused_at_last(packets: &[&[u8]]) {
    let mut stream = Stream::default();
    for (nth, packet) in packets.iter().enumerate() {
        let taken = stream.receive(packet, |_, _| Some(()), |_, _| Some(()));
        assert_eq!(taken.is_none(), nth + 1 == packets.len(), "packet {nth}: {packet:?}");
    }
}

#[test]
fn a_peer_that_goes_beyond_what_it_was_given_is_refused() {
    const BULK_OF_A_GIB: [u8; 13] = [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64];
    let with = |at: usize, byte: u8| {
        let mut packet = BULK_OF_A_GIB;
        (packet[12], packet[at]) = (0, byte);
        packet
    };
    let byte_by_byte: &[u8] = &[0, 0, 2, 1, 0, 0, 0];
    is_refused_at_last(&vec![&[0, 0][..]; usize::from(RECEIVES) + 1]);
    is_refused_at_last(&[&[1, 0]]);
    is_refused_at_last(&[&[0, 1]]);
    is_refused_at_last(&[&BULK_OF_A_GIB]);
    is_refused_at_last(&[&with(0, 0)]);
    is_refused_at_last(&[byte_by_byte]);
    is_refused_at_last(&[&with(9, 1), byte_by_byte, byte_by_byte]);
    let nine_more = vec![byte_by_byte; usize::from(SLOTS) + 1];
    is_refused_at_last(&[vec![&with(10, 1)[..]], nine_more].concat());
    is_refused_at_last(&[&with(10, 1), &[0, 0, 0, 1, 0, 7]]);
}

#[test]
fn more_than_may_wait_is_refused() {
    let mut stream = Stream::default();
    assert!((0..MAX_QUEUED).all(|_| stream.push(vec![1], None)));
    assert!(!stream.push(vec![1], None));
    assert!(!Stream::default().push(vec![0; MAX_BULK + 1], None));
}

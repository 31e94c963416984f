use super::*;
use proptest::prelude::*;
use std::ops::RangeInclusive;
use std::time::Duration;
use udeck_session::Content;

/// Ranges of packet numbers, largest first, that do not touch.
fn ranges() -> impl Strategy<Value = Vec<RangeInclusive<u64>>> {
    let step = (2u64..1 << 20, 0u64..1 << 20);
    (1u64 << 40..1 << 50, prop::collection::vec(step, 0..MAX_RANGES)).prop_map(|(top, steps)| {
        let mut top = top;
        let mut range = |(gap, length): (u64, u64)| {
            let end = top - gap;
            top = end - length;
            top..=end
        };
        steps.into_iter().map(&mut range).collect()
    })
}

fn flags() -> impl Strategy<Value = Flags> {
    any::<[bool; 3]>().prop_map(|[ping, probe, last]| Flags { ping, probe, close: false, last })
}

type Whole = (Vec<u8>, Packet<'static>, Vec<RangeInclusive<u64>>, Vec<u8>);

/// A packet as sent, and what it was made of.
fn packet() -> impl Strategy<Value = Whole> {
    let numbers = (any::<u64>(), 0..NUMBERS, 0..NUMBERS / 2, 0..NUMBERS);
    (numbers, flags(), ranges(), prop::collection::vec(any::<u8>(), 0..2000)).prop_map(
        |((connection, number, offset, window), flags, ranges, payload)| {
            let packet = Packet { connection, number, offset, window, flags, acks: None, payload: &[] };
            let acks = (!ranges.is_empty())
                .then(|| AckRanges { delay: Duration::from_micros(17), ranges: ranges.iter().cloned() });
            let mut header = PacketHeader::new(&packet, acks);
            header.seal(payload.chunks(100));
            ([header.bytes(), &payload].concat(), packet, ranges, payload)
        },
    )
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        (any::<Option<u32>>(), 0..=48u8).prop_map(|(immediate, head)| Content::Message {
            immediate,
            lent: true,
            head
        }),
        (any::<Option<u32>>(), any::<u32>(), 0..1u64 << 40)
            .prop_map(|(immediate, handle, offset)| Content::Write { immediate, handle, offset }),
        any::<Option<u32>>().prop_map(|immediate| Content::Message { immediate, lent: false, head: 0 }),
    ]
}

type WholePiece = (Vec<u8>, Piece<'static>, Vec<RangeInclusive<u64>>, Vec<u8>);

/// A piece as sent, and what it was made of.
fn piece() -> impl Strategy<Value = WholePiece> {
    let numbers = (any::<u64>(), 0..NUMBERS, 0..NUMBERS, 0..1u32 << 31, any::<bool>());
    (numbers, content(), ranges(), prop::collection::vec(any::<u8>(), 1..2000)).prop_map(
        |((connection, number, message, offset, last), content, ranges, payload)| {
            let (mut offset, mut payload, mut content) = (offset, payload, content);
            let mut total = offset + payload.len() as u32 + (message % 5) as u32;
            match &mut content {
                Content::Message { lent: false, head, .. } => {
                    payload.truncate(48);
                    (*head, offset, total) = (payload.len() as u8, 0, payload.len() as u32);
                }
                Content::Message { head, .. } => *head = (*head).min(total.min(48) as u8),
                Content::Write { .. } => {}
            }
            let piece =
                Piece { connection, number, message, offset, total, content, last, acks: None, payload: &[] };
            let acks = (!ranges.is_empty())
                .then(|| AckRanges { delay: Duration::from_micros(17), ranges: ranges.iter().cloned() });
            let mut header = PieceHeader::new(&piece, acks);
            header.seal(payload.chunks(100));
            ([header.bytes(), &payload].concat(), piece, ranges, payload)
        },
    )
}

proptest! {
    #[test]
    fn prop_packets_round_trip((bytes, sent, ranges, payload) in packet()) {
        let opened = open(&bytes).unwrap();
        prop_assert_eq!(connection(&bytes), Some(sent.connection));
        let got = Packet::decode(&opened).unwrap();
        prop_assert_eq!((got.number, got.offset, got.window), (sent.number, sent.offset, sent.window));
        prop_assert_eq!(got.flags, sent.flags);
        prop_assert_eq!(got.payload, if sent.flags.probe { &[][..] } else { &payload[..] });
        let acked: Vec<_> = got.acks.iter().flat_map(|acks| acks.ranges()).collect();
        prop_assert_eq!(acked, ranges);
        prop_assert!(got.acks.is_none_or(|acks| acks.delay == Duration::from_micros(17)));
    }

    #[test]
    fn prop_pieces_round_trip((bytes, sent, ranges, payload) in piece()) {
        let got = Piece::decode(&open(&bytes).unwrap()).unwrap();
        prop_assert_eq!(Piece { acks: None, payload: &[], ..got }, sent);
        prop_assert_eq!(got.payload, &payload[..]);
        let acked: Vec<_> = got.acks.iter().flat_map(|acks| acks.ranges()).collect();
        prop_assert_eq!(acked, ranges);
        prop_assert!(bytes.len() - payload.len() <= MAX_PIECE_HEADER);
    }

    #[test]
    fn prop_a_spoilt_datagram_is_noticed((bytes, ..) in packet(), at: prop::sample::Index, bit in 0u8..8) {
        let mut bytes = bytes;
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        prop_assert!(open(&bytes).is_err());
    }

    #[test]
    fn prop_a_cut_datagram_is_noticed((bytes, ..) in packet(), at: prop::sample::Index) {
        prop_assert!(open(&bytes[..at.index(bytes.len())]).is_err());
    }

    /// With the right checksum: what a peer could send that breaks the protocol.
    #[test]
    fn prop_any_bytes_decode_or_fail(bytes in prop::collection::vec(any::<u8>(), FRONT..400), kind in 1u8..3, flags in 0u8..17, ranges in 0u8..40) {
        let mut bytes = bytes;
        bytes[..4].copy_from_slice(&[VERSION, kind, flags, ranges]);
        let sealed = bytes.len();
        seal(&mut bytes[..sealed], []);
        let opened = open(&bytes).unwrap();
        if let Ok(packet) = Packet::decode(&opened) {
            let ranges: Vec<_> = packet.acks.iter().flat_map(|acks| acks.ranges()).collect();
            prop_assert!(ranges.iter().all(|range| range.start() <= range.end()));
            prop_assert!(ranges.windows(2).all(|pair| pair[1].end() + 1 < *pair[0].start()));
        }
        if let Ok(piece) = Piece::decode(&opened) {
            prop_assert!(u64::from(piece.offset) + piece.payload.len() as u64 <= u64::from(piece.total));
        }
    }
}

#[test]
fn the_checksum_is_crc_32c() {
    assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283, "the check value of its definition (RFC 3720)");
}

#[test]
fn a_code_closes() {
    let flags = Flags { close: true, ..Flags::default() };
    let packet = Packet { connection: 7, number: 1, offset: 42, window: 0, flags, acks: None, payload: &[] };
    let none: Option<AckRanges<std::iter::Empty<_>>> = None;
    let mut header = PacketHeader::new(&packet, none);
    header.seal([]);
    assert_eq!(Packet::decode(&open(header.bytes()).unwrap()).unwrap().close(), Some(Close(42)));
    // With anything behind it, it is none.
    header.seal([&b"x"[..]]);
    let longer = [header.bytes(), b"x"].concat();
    assert!(Packet::decode(&open(&longer).unwrap()).is_err());
}

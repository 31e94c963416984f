//! Encoded messages decode, and no other bytes do.

use super::*;
use proptest::prelude::*;

fn hello() -> impl Strategy<Value = Hello> {
    let levels = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];
    let ptag = || any::<u32>().prop_map(|ptag| (ptag != 0).then_some(Ptag(ptag)));
    let private = prop::collection::vec(any::<u8>(), 0..=MAX_PRIVATE);
    (prop::sample::select(levels.to_vec()), ptag(), ptag(), private).prop_map(
        |(reliability, writable_ptag, readable_ptag, private_data)| Hello {
            reliability,
            writable_ptag,
            readable_ptag,
            private_data,
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    (prop::collection::vec(any::<u8>(), 0..=MAX_DISCRIMINATOR), hello(), parameters())
        .prop_map(|(discriminator, hello, parameters)| Request { discriminator, hello, parameters })
}

fn parameters() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..=MAX_PARAMETERS)
}

fn protocol() -> impl Strategy<Value = Protocol> {
    ("[a-z0-9]{1,8}", any::<u16>()).prop_map(|(name, version)| Protocol::new(&name, version))
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        (hello(), parameters()).prop_map(|(hello, parameters)| Answer::Accepted(hello, parameters)),
        Just(Answer::Refused(RejectKind::NoListener.into())),
        Just(Answer::Refused(RejectKind::Reliability.into())),
        "\\PC{0,100}".prop_map(|words| Answer::Refused(Rejection::new(RejectKind::Refused, words))),
        prop::collection::vec(any::<u8>(), 0..=Rejection::MAX_DATA)
            .prop_map(|data| Answer::Refused(Rejection { kind: RejectKind::Program, data })),
    ]
}

fn first<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    bytes.first_chunk().unwrap()
}

proptest! {
    #[test]
    fn prop_greetings_round_trip(protocol in protocol(), nonce: [u8; 32], proof: [u8; 32]) {
        let meet = Meet { protocol, claim: Claim::NOBODY, nonce };
        let bytes = meet.encode();
        let versions = Versions { admission: VERSION, protocol: protocol.version() };
        prop_assert_eq!(Meet::versions(first(&bytes)), Ok(versions));
        prop_assert_eq!(Meet::decode(&bytes), Ok(meet));
        prop_assert_eq!(decode_prove(&encode_prove(&meet, &proof)), Ok((meet, proof)));
    }

    /// Each name has one encoding, too: bytes behind it, or in it, are no padding.
    #[test]
    fn prop_any_name_decodes_or_fails(protocol in protocol(), at in 0..NAME, value: u8) {
        let mut bytes = Meet { protocol, claim: Claim::NOBODY, nonce: [7; 32] }.encode();
        bytes[FRONT + at] = value;
        if let Ok(meet) = Meet::decode(&bytes) {
            prop_assert_eq!(meet.encode(), bytes);
            prop_assert_eq!(Protocol::new(meet.protocol.name(), protocol.version()), meet.protocol);
        }
    }

    #[test]
    fn prop_requests_and_answers_round_trip(request in request(), answer in answer()) {
        let bytes = request.encode();
        prop_assert_eq!(Request::len_of(first(&bytes)), Ok(bytes.len()));
        prop_assert_eq!(Request::decode(&bytes), Ok(request));
        let bytes = answer.encode();
        prop_assert_eq!(Answer::len_of(first(&bytes)), Ok(bytes.len()));
        prop_assert_eq!(Answer::decode(&bytes), Ok(answer));
    }

    #[test]
    fn prop_any_bytes_decode_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(request) = Request::decode(&bytes) {
            prop_assert_eq!(request.encode(), &bytes[..], "one encoding for each request");
        }
        if let Ok(answer) = Answer::decode(&bytes) {
            prop_assert_eq!(answer.encode(), &bytes[..], "one encoding for each answer");
        }
    }

    /// These heads are nearly right: few bytes differ from a right one.
    #[test]
    fn prop_mutated_messages_decode_or_fail(request in request(), answer in answer(), at in 0..HEAD, value: u8) {
        let mut bytes = request.encode();
        bytes[at] = value;
        if let Ok(request) = Request::decode(&bytes) {
            prop_assert_eq!(request.encode(), &bytes[..]);
        }
        let mut bytes = answer.encode();
        bytes[at] = value;
        if let Ok(answer) = Answer::decode(&bytes) {
            prop_assert_eq!(answer.encode(), &bytes[..]);
        }
    }

    #[test]
    fn prop_what_is_cut_is_malformed(request in request(), cut: prop::sample::Index) {
        let bytes = request.encode();
        prop_assert!(Request::decode(&bytes[..cut.index(bytes.len())]).is_err());
    }
}

#[test]
fn nobody_announces_more_than_may_come() {
    let mut bytes = [0; HEAD];
    bytes[0] = REQUEST;
    for (at, most) in [(2, MAX_DISCRIMINATOR), (4, MAX_PRIVATE), (6, MAX_PARAMETERS)] {
        let mut bytes = bytes;
        bytes[at..at + 2].copy_from_slice(&(most as u16).to_le_bytes());
        assert_eq!(Request::len_of(&bytes), Ok(HEAD + most));
        bytes[at..at + 2].copy_from_slice(&(most as u16 + 1).to_le_bytes());
        assert!(Request::len_of(&bytes).is_err());
    }
    for (kind, at) in (0..=u8::MAX).flat_map(|kind| [(kind, 2), (kind, 4), (kind, 6)]) {
        let mut bytes = [0; HEAD];
        (bytes[0], bytes[at], bytes[at + 1]) = (kind, 255, 255);
        assert!(Answer::len_of(&bytes).is_err());
    }
}

#[test]
fn only_who_accepts_has_parameters() {
    for kind in 2..=u8::MAX {
        let mut bytes = [0; HEAD];
        (bytes[0], bytes[6]) = (kind, 1);
        assert!(Answer::len_of(&bytes).is_err(), "kind {kind}");
    }
}

#[test]
fn what_does_not_fit_says_what_and_how_much() {
    let hello = |len| Hello { private_data: vec![0; len], ..nobody() };
    assert!(fits(&[0; MAX_DISCRIMINATOR], &hello(MAX_PRIVATE), &[0; MAX_PARAMETERS]).is_ok());
    let said = |result: Result<(), Error>| result.unwrap_err().to_string();
    assert!(said(fits(&[0; 513], &hello(0), b"")).contains("a discriminator of 513 bytes, at most 512"));
    assert!(said(fits(b"", &hello(1025), b"")).contains("private data of 1025 bytes, at most 1024"));
    assert!(said(fits(b"", &hello(0), &[0; 257])).contains("parameters of 257 bytes, at most 256"));
}

#[test]
fn long_words_are_cut_between_letters() {
    let refused = |words| Answer::Refused(Rejection::new(RejectKind::Refused, words));
    let bytes = refused("µ".repeat(1000)).encode();
    assert_eq!(Answer::decode(&bytes), Ok(refused("µ".repeat(Rejection::MAX_DATA / 2))));
    let bytes = refused(format!("x{}", "µ".repeat(1000))).encode();
    assert_eq!(Answer::decode(&bytes).map(|_| bytes.len()), Ok(HEAD + Rejection::MAX_DATA - 1));
}

#[test]
fn a_refusal_of_an_unknown_kind_or_with_too_much_data_is_malformed() {
    for kind in (0..=u8::MAX).filter(|kind| *kind != ACCEPTED) {
        let most = RejectKind::decode(kind).map(RejectKind::max_data);
        for len in [0, 1, Rejection::MAX_DATA, Rejection::MAX_DATA + 1, u16::MAX.into()] {
            let mut bytes = head(kind, &nobody(), [0, len, 0]);
            bytes.extend(vec![b'x'; len]);
            let is_valid = most.is_some_and(|most| len <= most);
            assert_eq!(Answer::len_of(first(&bytes)).is_ok(), is_valid, "kind {kind}, {len} bytes");
            assert_eq!(Answer::decode(&bytes).is_ok(), is_valid, "kind {kind}, {len} bytes");
        }
    }
    let mut words = Answer::Refused(Rejection::new(RejectKind::Refused, "x")).encode();
    words[HEAD] = 0xff;
    assert!(Answer::decode(&words).is_err(), "these are no words");
}

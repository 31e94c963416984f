//! Hostile peers, with and without the secret, that send arbitrary bytes: nothing panics, only a right proof is admitted, and
//! no side wants more bytes than its messages may have.

use udeck_test_kit::Hostile;
use udeck_via::transport::Hello;
use udeck_via::{Ptag, Rejection, Reliability};

use super::*;
use crate::admission::wire::{MAX_DISCRIMINATOR, MAX_PARAMETERS, MAX_PRIVATE};

const TCP: Protocol = Protocol::new("tcp", 7);
const MOST: usize = HEAD + MAX_DISCRIMINATOR + MAX_PRIVATE + MAX_PARAMETERS;

fn hello() -> Hello {
    Hello {
        reliability: Reliability::Delivery,
        writable_ptag: Some(Ptag(7)),
        readable_ptag: None,
        private_data: b"private".to_vec(),
    }
}

fn request() -> Request {
    Request { discriminator: b"door".to_vec(), hello: hello(), parameters: b"parameters".to_vec() }
}

fn answers() -> Vec<Vec<u8>> {
    let accepted = Answer::Accepted(hello(), b"parameters".to_vec());
    let rejections = [
        RejectKind::NoListener.into(),
        Rejection::new(RejectKind::Refused, "no"),
        RejectKind::Reliability.into(),
        Rejection::with_data([0xff; 3]),
    ];
    [accepted].into_iter().chain(rejections.map(Answer::Refused)).map(|answer| answer.encode()).collect()
}

/// Spoils the message in every other case.
fn spoilt(hostile: &mut Hostile, message: &[u8]) -> Vec<u8> {
    if hostile.one_in(2) { message.to_vec() } else { hostile.frame(&[message.to_vec()]) }
}

/// Feeds as many bytes as are wanted, in pieces.
fn feed<T>(
    hostile: &mut Hostile,
    mut bytes: &[u8],
    mut side: impl FnMut(Option<&[u8]>) -> (usize, Option<Result<T, Refusal>>),
    mut heard: impl FnMut(T),
) -> Result<(), Refusal> {
    loop {
        let (wants, _) = side(None);
        assert!(wants <= MOST, "it wants {wants} bytes");
        let now = hostile.below(wants.min(bytes.len()) + 1).max(1).min(wants).min(bytes.len());
        if now == 0 {
            return Ok(());
        }
        let (piece, later) = bytes.split_at(now);
        bytes = later;
        if let (_, Some(result)) = side(Some(piece)) {
            heard(result?);
        }
    }
}

fn hear(
    hostile: &mut Hostile,
    acceptor: &mut Acceptor,
    bytes: &[u8],
    all: &mut Vec<AcceptStep>,
) -> Result<(), Refusal> {
    let side = |piece: Option<&[u8]>| (acceptor.wants(), piece.map(|piece| acceptor.input(piece)));
    feed(hostile, bytes, side, |heard| all.push(heard))
}

fn tell(
    hostile: &mut Hostile,
    connector: &mut Connector,
    bytes: &[u8],
    all: &mut Vec<ConnectStep>,
) -> Result<(), Refusal> {
    let side = |piece: Option<&[u8]>| (connector.wants(), piece.map(|piece| connector.input(piece)));
    feed(hostile, bytes, side, |told| all.push(told))
}

/// Runs one hand-shake in which any message may be spoilt. Returns whether it was completed.
fn shake(hostile: &mut Hostile, answers: &[Vec<u8>]) -> Result<bool, Refusal> {
    let (mut connector, meet) =
        Connector::new(Keys::from([7; 32]).call(None).unwrap(), TCP, [1; 32], &request());
    let mut acceptor = Acceptor::new([7; 32], TCP, [2; 32]);
    let sent = spoilt(hostile, &meet);
    let (mut heard, mut told) = (Vec::new(), Vec::new());
    hear(hostile, &mut acceptor, &sent, &mut heard)?;
    let prove = heard.iter().find_map(|heard| match heard {
        AcceptStep::Send(prove) => Some(*prove),
        _ => None,
    });
    let Some(prove) = prove else { return Ok(false) };
    let answered = spoilt(hostile, &prove);
    tell(hostile, &mut connector, &answered, &mut told)?;
    assert!(!connector.has_asked() || answered.starts_with(&prove), "the acceptor proved nothing");
    let join = told.iter().find_map(|told| match told {
        ConnectStep::Send(join) => Some(join.clone()),
        _ => None,
    });
    let Some(join) = join else { return Ok(false) };
    let asked = spoilt(hostile, &join);
    hear(hostile, &mut acceptor, &asked, &mut heard)?;
    assert!(
        !acceptor.is_proven() || sent.len() > MEET || asked[..JOIN] == join[..JOIN],
        "the connector proved nothing"
    );
    let answer = &hostile.frame(answers);
    tell(hostile, &mut connector, answer, &mut told)?;
    Ok(told.iter().any(|told| matches!(told, ConnectStep::Answer(_))))
}

#[test]
fn no_hand_shake_of_liars_goes_wrong() {
    let mut hostile = Hostile::new("admission, hand-shakes", 20_000);
    let answers = answers();
    while hostile.goes_on() {
        match shake(&mut hostile, &answers) {
            Ok(true) => hostile.understood(),
            Ok(false) => {}
            Err(refusal) => drop(Acceptor::last_words(&refusal)),
        }
    }
    hostile.end();
}

/// Requests and answers without the proofs before them: bytes that an admitted process may send.
#[test]
fn nothing_that_is_asked_or_answered_upsets_the_parser() {
    let mut hostile = Hostile::new("admission, requests and answers", 20_000);
    let right: Vec<_> = answers().into_iter().chain([request().encode()]).collect();
    while hostile.goes_on() {
        let bytes = hostile.frame(&right);
        if let Ok(request) = Request::decode(&bytes) {
            assert_eq!(request.encode(), bytes);
            hostile.understood();
        }
        if let Ok(answer) = Answer::decode(&bytes) {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
            hostile.understood();
        }
        if let Some(head) = bytes.first_chunk::<HEAD>() {
            let longest = [Request::len_of(head), Answer::len_of(head)].into_iter().flatten().max();
            assert!(longest.unwrap_or(0) <= MOST);
        }
    }
    hostile.end();
}

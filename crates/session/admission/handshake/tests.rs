//! Tests of the hand-shake with honest and with lying sides.

use proptest::prelude::*;
use udeck_via::transport::Hello;
use udeck_via::{Ptag, Rejection, Reliability};

use super::*;
use crate::admission::wire::MAX_PARAMETERS;

const TCP: Protocol = Protocol::new("tcp", 7);

fn acceptor(secret: u8, nonce: u8) -> Acceptor {
    Acceptor::new([secret; 32], TCP, [nonce; 32])
}

fn connector(nonce: u8) -> (Connector, [u8; MEET]) {
    Connector::new(Keys::from([7; 32]).call(None).unwrap(), TCP, [nonce; 32], &request())
}

fn request() -> Request {
    let hello = Hello {
        reliability: Reliability::Reception,
        writable_ptag: Some(Ptag(7)),
        readable_ptag: None,
        private_data: b"private".to_vec(),
    };
    Request { discriminator: b"door".to_vec(), hello, parameters: b"parameters".to_vec() }
}

/// Feeds `bytes` as a socket would give them, `step` at a time. Each side gets no more than it wants.
fn feed<T: PartialEq>(
    mut bytes: &[u8],
    step: usize,
    wants: impl Fn() -> usize,
    mut input: impl FnMut(&[u8]) -> Result<T, Refusal>,
    nothing: &T,
) -> Result<Vec<T>, Refusal> {
    let mut out = Vec::new();
    while !bytes.is_empty() && wants() > 0 {
        let (now, later) = bytes.split_at(step.min(wants()).min(bytes.len()));
        bytes = later;
        let heard = input(now)?;
        if heard != *nothing {
            out.push(heard);
        }
    }
    assert!(bytes.is_empty(), "{} bytes that nobody wants", bytes.len());
    Ok(out)
}

fn hear(acceptor: &mut Acceptor, bytes: &[u8], step: usize) -> Result<Vec<AcceptStep>, Refusal> {
    let acceptor = std::cell::RefCell::new(acceptor);
    feed(
        bytes,
        step,
        || acceptor.borrow().wants(),
        |now| acceptor.borrow_mut().input(now),
        &AcceptStep::Nothing,
    )
}

fn tell(connector: &mut Connector, bytes: &[u8], step: usize) -> Result<Vec<ConnectStep>, Refusal> {
    let connector = std::cell::RefCell::new(connector);
    feed(
        bytes,
        step,
        || connector.borrow().wants(),
        |now| connector.borrow_mut().input(now),
        &ConnectStep::Nothing,
    )
}

/// Runs one exchange. Returns the request as the acceptor got it, and the answer.
fn run(theirs: u8, step: usize, answer: &Answer) -> Result<(Request, Answer), Refusal> {
    let (mut connector, meet) = connector(1);
    let mut acceptor = acceptor(theirs, 2);
    let heard = hear(&mut acceptor, &meet, step)?;
    let [AcceptStep::Send(prove)] = &heard[..] else { panic!("the acceptor proves first: {heard:?}") };
    assert!(!acceptor.is_proven() && !connector.has_asked());
    let told = tell(&mut connector, prove, step)?;
    let [ConnectStep::Send(join)] = &told[..] else { panic!("the connector joins: {told:?}") };
    let mut heard = hear(&mut acceptor, join, step)?;
    assert!(acceptor.is_proven() && connector.has_asked());
    let Some(AcceptStep::Request(request)) = heard.pop() else { panic!("the request: {heard:?}") };
    let mut told = tell(&mut connector, &answer.encode(), step)?;
    let Some(ConnectStep::Answer(answer)) = told.pop() else { panic!("the answer: {told:?}") };
    assert_eq!((acceptor.wants(), connector.wants()), (0, 0));
    Ok((request, answer))
}

fn nobody_listens() -> Answer {
    Answer::Refused(RejectKind::NoListener.into())
}

#[test]
fn the_secret_opens_and_nothing_else() {
    let accepted = |len| Answer::Accepted(request().hello, vec![3; len]);
    let no = Rejection::new(RejectKind::Refused, "no");
    let answers = [accepted(0), accepted(MAX_PARAMETERS), nobody_listens(), Answer::Refused(no)];
    for answer in answers {
        for step in [1, 7, 4096] {
            assert_eq!(run(7, step, &answer), Ok((request(), answer.clone())));
        }
    }
    assert_eq!(run(8, 4096, &nobody_listens()), Err(Refusal::Secret));
}

#[test]
fn an_empty_request_is_whole_with_its_head() {
    let hello = Hello { private_data: vec![], ..request().hello };
    let empty = Request { discriminator: vec![], hello, parameters: vec![] };
    let (mut connector, meet) = Connector::new(Keys::from([7; 32]).call(None).unwrap(), TCP, [1; 32], &empty);
    let (mut acceptor, prove) = met(&meet);
    let join = joined(&mut connector, &prove);
    assert_eq!(hear(&mut acceptor, &join, 4096), Ok(vec![AcceptStep::Request(empty)]));
}

/// Makes an acceptor that has received this greeting. Returns its answer, too.
fn met(meet: &[u8; MEET]) -> (Acceptor, [u8; PROVE]) {
    let mut acceptor = acceptor(7, 2);
    let heard = hear(&mut acceptor, meet, 4096);
    let Ok([AcceptStep::Send(prove)]) = heard.as_deref() else { panic!("{heard:?}") };
    (acceptor, *prove)
}

/// Returns the connector's next message after that answer.
fn joined(connector: &mut Connector, prove: &[u8]) -> Vec<u8> {
    let told = tell(connector, prove, 4096);
    let Ok([ConnectStep::Send(join)]) = told.as_deref() else { panic!("{told:?}") };
    join.clone()
}

#[test]
fn an_echoed_proof_is_refused() {
    // The acceptor's own proof is sent back to it: the role is part of the proof.
    let (mut acceptor, prove) = met(&connector(1).1);
    assert_eq!(acceptor.input(&prove[MEET..]), Err(Refusal::Secret));
}

#[test]
fn a_replayed_exchange_is_refused() {
    let (mut asking, meet) = connector(1);
    let (_, prove) = met(&meet);
    let join = joined(&mut asking, &prove);
    // The next acceptor has another nonce, and so has the next connector.
    let mut next = acceptor(7, 3);
    hear(&mut next, &meet, 4096).unwrap();
    assert_eq!(next.input(&join[..JOIN]), Err(Refusal::Secret));
    let (mut next, _) = connector(4);
    assert_eq!(tell(&mut next, &prove, 4096), Err(Refusal::Secret));
}

#[test]
fn another_version_is_told_and_tells() {
    let (_, mut meet) = connector(1);
    meet[4] ^= 1;
    // The version is known by the first bytes, before the length of the rest is relied on.
    let refusal = hear(&mut acceptor(7, 2), &meet[..FRONT], 4096).unwrap_err();
    assert!(matches!(refusal, Refusal::Version { .. }) && refusal.to_string().contains("version"));
    let words = Acceptor::last_words(&refusal).expect("it is told");
    let mut older = words;
    older[4] ^= 1;
    let told = tell(&mut connector(1).0, &older[..FRONT], 4096);
    assert!(matches!(told, Err(Refusal::Version { .. })), "{told:?}");
    assert_eq!(tell(&mut connector(1).0, &words, 4096), Err(Refusal::Secret), "no proof is in them");
    assert_eq!(Acceptor::last_words(&Refusal::Secret), None, "strangers are told nothing");
}

/// The other side speaks another version of the protocol, or another protocol: each side learns that from the other.
#[test]
fn another_protocol_is_told_and_tells() {
    let others = [
        (
            Protocol::new("tcp", 6),
            [
                "speaks version 4.6 of the tcp protocol, this process 4.7",
                "4.7 of the tcp protocol, this process 4.6",
            ],
        ),
        (
            Protocol::new("verbs", 7),
            [
                "a NIC of the verbs transport, and this one of tcp",
                "of the tcp transport, and this one of verbs",
            ],
        ),
    ];
    for (other, [here, there]) in others {
        let (mut connector, meet) =
            Connector::new(Keys::from([7; 32]).call(None).unwrap(), other, [1; 32], &request());
        let refusal = hear(&mut acceptor(7, 2), &meet, 4096).unwrap_err();
        assert!(refusal.to_string().contains(here), "{refusal}");
        let words = Acceptor::last_words(&refusal).expect("it is told");
        let refusal = tell(&mut connector, &words, 4096).unwrap_err();
        assert!(refusal.to_string().contains(there), "{refusal}");
    }
}

/// Both sides learn which rank the other is; no caller is admitted as a rank whose key it does not have.
#[test]
fn ranks_prove_who_they_are() {
    use udeck_via::auth::{HostKey, SealedTicket};
    let key = |rank| HostKey::from_bytes([9; 32]).rank(rank);
    let keys = |knows, says| {
        let keys = Keys::of_rank([7; 32], says, key(knows));
        keys.learn(5, &SealedTicket::new((knows, &key(knows)), (5, &key(5))));
        keys
    };
    let meeting = |caller: &Keys, callee: Keys| {
        let (mut connector, meet) = Connector::new(caller.call(Some(5)).unwrap(), TCP, [1; 32], &request());
        let mut acceptor = Acceptor::new(callee, TCP, [2; 32]);
        let heard = hear(&mut acceptor, &meet, 4096)?;
        let [AcceptStep::Send(prove)] = &heard[..] else { panic!("the acceptor proves first: {heard:?}") };
        assert_eq!(acceptor.peer(), None, "nothing is proven yet");
        let told = tell(&mut connector, prove, 4096)?;
        let [ConnectStep::Send(join)] = &told[..] else { panic!("the connector joins: {told:?}") };
        hear(&mut acceptor, join, 4096)?;
        Ok(acceptor.peer())
    };
    assert_eq!(meeting(&keys(2, 2), keys(5, 5)), Ok(Some(2)));
    assert!(matches!(meeting(&keys(1, 2), keys(5, 5)), Err(Refusal::Identity(_))), "1 as 2");
    assert!(matches!(meeting(&keys(2, 2), keys(1, 5)), Err(Refusal::Identity(_))), "1 as 5");
    let refusal = meeting(&keys(2, 2), keys(4, 4)).unwrap_err();
    assert_eq!(refusal, Refusal::OtherProcess { ours: TCP });
    assert!(Acceptor::last_words(&refusal).is_some(), "it is told so");
}

/// An attacker that changes the protocol's name in transit gets no further: the name is part of the proof.
#[test]
fn a_proof_is_of_its_protocol() {
    let (mut connector, meet) = connector(1);
    let verbs = Meet { protocol: Protocol::new("verbs", 7), ..Meet::decode(&meet).unwrap() };
    let mut acceptor = Acceptor::new([7; 32], verbs.protocol, [2; 32]);
    let heard = hear(&mut acceptor, &verbs.encode(), 4096);
    let Ok([AcceptStep::Send(prove)]) = heard.as_deref() else { panic!("{heard:?}") };
    let (theirs, proof) = decode_prove(prove).unwrap();
    let renamed = encode_prove(&Meet { protocol: TCP, ..theirs }, &proof);
    assert_eq!(tell(&mut connector, &renamed, 4096), Err(Refusal::Secret));
}

#[test]
fn strangers_are_known_by_their_first_words() {
    let words = b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n.....";
    assert!(matches!(acceptor(7, 2).input(&words[..FRONT]), Err(Refusal::Malformed(_))));
}

proptest! {
    /// Any bytes at any stage are refused, or more bytes are awaited: nothing panics, and nothing is kept beyond a message.
    #[test]
    fn prop_any_bytes_are_refused_or_wait(
        bytes in prop::collection::vec(any::<u8>(), 0..3000), met: bool, step in 1usize..2000
    ) {
        let mut acceptor =
            if met { self::met(&connector(1).1).0 } else { acceptor(7, 2) };
        let mut rest = &bytes[..];
        while !rest.is_empty() && acceptor.wants() > 0 {
            let (now, later) = rest.split_at(step.min(acceptor.wants()).min(rest.len()));
            rest = later;
            match acceptor.input(now) {
                Ok(heard) => prop_assert!(!matches!(heard, AcceptStep::Request(_))),
                Err(_) => break,
            }
            prop_assert!(acceptor.inbox.0.len() < MEET && !acceptor.is_proven());
        }
    }

    /// A right exchange with one byte changed never ends in a request.
    #[test]
    fn prop_a_changed_proof_opens_nothing(at in 0..JOIN, change in 1u8..) {
        let (mut connector, meet) = connector(1);
        let (mut acceptor, prove) = met(&meet);
        let mut join = joined(&mut connector, &prove);
        join[at] ^= change;
        prop_assert_eq!(acceptor.input(&join[..JOIN]), Err(Refusal::Secret));
    }

    #[test]
    fn prop_a_connector_takes_any_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..3000), asked: bool
    ) {
        let (mut connector, meet) = connector(1);
        if asked {
            joined(&mut connector, &met(&meet).1);
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() && connector.wants() > 0 {
            let (now, later) = rest.split_at(connector.wants().min(rest.len()));
            rest = later;
            let Ok(told) = connector.input(now) else { break };
            prop_assert!(asked || !matches!(told, ConnectStep::Answer(_)));
        }
    }
}

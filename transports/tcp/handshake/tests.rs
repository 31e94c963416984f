//! The hand-shake, honest and not.

use proptest::prelude::*;
use udeck_via::transport::Hello;
use udeck_via::{Ptag, Reliability};

use super::*;

fn request() -> Request {
    let hello = Hello {
        reliability: Reliability::Reception,
        writable_ptag: Some(Ptag(7)),
        readable_ptag: None,
        private_data: b"private".to_vec(),
    };
    Request { discriminator: b"door".to_vec(), hello }
}

/// Feeds `bytes` as a socket would give them, `step` at a time, each side no more than it wants.
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

fn hear(acceptor: &mut Acceptor, bytes: &[u8], step: usize) -> Result<Vec<Heard>, Refusal> {
    let acceptor = std::cell::RefCell::new(acceptor);
    feed(bytes, step, || acceptor.borrow().wants(), |now| acceptor.borrow_mut().input(now), &Heard::Nothing)
}

fn tell(connector: &mut Connector, bytes: &[u8], step: usize) -> Result<Vec<Told>, Refusal> {
    let connector = std::cell::RefCell::new(connector);
    feed(bytes, step, || connector.borrow().wants(), |now| connector.borrow_mut().input(now), &Told::Nothing)
}

/// One exchange: the request as the acceptor got it.
fn run(secrets: [[u8; 32]; 2], step: usize, answer: &Answer) -> Result<(Request, Answer), Refusal> {
    let (mut connector, meet) = Connector::new(secrets[0], [1; 32], &request());
    let mut acceptor = Acceptor::new(secrets[1], [2; 32]);
    let heard = hear(&mut acceptor, &meet, step)?;
    let [Heard::Send(prove)] = &heard[..] else { panic!("the acceptor proves first: {heard:?}") };
    assert!(!acceptor.is_proven() && !connector.has_asked());
    let told = tell(&mut connector, prove, step)?;
    let [Told::Send(join)] = &told[..] else { panic!("the connector joins: {told:?}") };
    let mut heard = hear(&mut acceptor, join, step)?;
    assert!(acceptor.is_proven() && connector.has_asked());
    let Some(Heard::Request(request)) = heard.pop() else { panic!("the request: {heard:?}") };
    let mut told = tell(&mut connector, &answer.encode(), step)?;
    let Some(Told::Answer(answer)) = told.pop() else { panic!("the answer: {told:?}") };
    assert_eq!((acceptor.wants(), connector.wants()), (0, 0));
    Ok((request, answer))
}

#[test]
fn the_secret_opens_and_nothing_else() {
    let answers = [Answer::Accepted(request().hello), Answer::NoMatch, Answer::Rejected("no".into())];
    for answer in answers {
        for step in [1, 7, 4096] {
            assert_eq!(run([[7; 32]; 2], step, &answer), Ok((request(), answer.clone())));
        }
    }
    assert_eq!(run([[7; 32], [8; 32]], 4096, &Answer::NoMatch), Err(Refusal::Secret));
}

#[test]
fn an_empty_request_is_whole_with_its_head() {
    let empty = Request { discriminator: vec![], hello: Hello { private_data: vec![], ..request().hello } };
    let (mut connector, meet) = Connector::new([7; 32], [1; 32], &empty);
    let mut acceptor = Acceptor::new([7; 32], [2; 32]);
    let Ok(Heard::Send(prove)) = acceptor.input(&meet) else { panic!() };
    let Ok(Told::Send(join)) = connector.input(&prove) else { panic!() };
    assert_eq!(hear(&mut acceptor, &join, 4096), Ok(vec![Heard::Request(empty)]));
}

fn acceptor_that_was_met() -> (Acceptor, [u8; PROVE]) {
    let (_, meet) = Connector::new([7; 32], [1; 32], &request());
    let mut acceptor = Acceptor::new([7; 32], [2; 32]);
    let Ok(Heard::Send(prove)) = acceptor.input(&meet) else { panic!() };
    (acceptor, prove)
}

#[test]
fn an_echoed_proof_is_refused() {
    // The acceptor's own words sent back: the role is part of the proof.
    let (mut acceptor, prove) = acceptor_that_was_met();
    assert_eq!(acceptor.input(&prove[MEET..]), Err(Refusal::Secret));
}

#[test]
fn a_replayed_exchange_is_refused() {
    let (mut connector, meet) = Connector::new([7; 32], [1; 32], &request());
    let mut acceptor = Acceptor::new([7; 32], [2; 32]);
    let Ok(Heard::Send(prove)) = acceptor.input(&meet) else { panic!() };
    let Ok(Told::Send(join)) = connector.input(&prove) else { panic!() };
    // The next acceptor has another nonce, and so has the next connector.
    let mut next = Acceptor::new([7; 32], [3; 32]);
    next.input(&meet).unwrap();
    assert_eq!(next.input(&join[..JOIN]), Err(Refusal::Secret));
    let (mut next, _) = Connector::new([7; 32], [4; 32], &request());
    assert_eq!(next.input(&prove), Err(Refusal::Secret));
}

#[test]
fn another_version_is_told_and_tells() {
    let (_, mut meet) = Connector::new([7; 32], [1; 32], &request());
    meet[4] ^= 1;
    let refusal = Acceptor::new([7; 32], [2; 32]).input(&meet).unwrap_err();
    assert!(matches!(refusal, Refusal::Version { .. }) && refusal.to_string().contains("version"));
    let words = Acceptor::last_words(&refusal).expect("it is told");
    let mut older = words;
    older[6] ^= 1;
    let (mut connector, _) = Connector::new([7; 32], [1; 32], &request());
    assert!(matches!(connector.input(&older), Err(Refusal::Version { .. })));
    let (mut connector, _) = Connector::new([7; 32], [1; 32], &request());
    assert_eq!(connector.input(&words), Err(Refusal::Secret), "no proof is in them");
    assert_eq!(Acceptor::last_words(&Refusal::Secret), None, "strangers are told nothing");
}

#[test]
fn strangers_are_known_by_their_first_words() {
    let mut acceptor = Acceptor::new([7; 32], [2; 32]);
    let words = b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n.....";
    assert!(matches!(acceptor.input(&words[..MEET]), Err(Refusal::Malformed(_))));
}

proptest! {
    /// Any bytes at any stage are refused, or waited for more of: nothing panics, and nothing is kept beyond a message.
    #[test]
    fn prop_any_bytes_are_refused_or_wait(
        bytes in prop::collection::vec(any::<u8>(), 0..3000), met: bool, step in 1usize..2000
    ) {
        let mut acceptor =
            if met { acceptor_that_was_met().0 } else { Acceptor::new([7; 32], [2; 32]) };
        let mut rest = &bytes[..];
        while !rest.is_empty() && acceptor.wants() > 0 {
            let (now, later) = rest.split_at(step.min(acceptor.wants()).min(rest.len()));
            rest = later;
            match acceptor.input(now) {
                Ok(heard) => prop_assert!(!matches!(heard, Heard::Request(_))),
                Err(_) => break,
            }
            prop_assert!(acceptor.inbox.0.len() < MEET && !acceptor.is_proven());
        }
    }

    /// A right exchange with one byte changed never ends in a request.
    #[test]
    fn prop_a_changed_proof_opens_nothing(at in 0..JOIN, change in 1u8..) {
        let (mut connector, _) = Connector::new([7; 32], [1; 32], &request());
        let (mut acceptor, prove) = acceptor_that_was_met();
        let Ok(Told::Send(mut join)) = connector.input(&prove) else { panic!() };
        join[at] ^= change;
        prop_assert_eq!(acceptor.input(&join[..JOIN]), Err(Refusal::Secret));
    }

    #[test]
    fn prop_a_connector_takes_any_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..3000), asked: bool
    ) {
        let (mut connector, _) = Connector::new([7; 32], [1; 32], &request());
        if asked {
            connector.input(&acceptor_that_was_met().1).unwrap();
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() && connector.wants() > 0 {
            let (now, later) = rest.split_at(connector.wants().min(rest.len()));
            rest = later;
            let Ok(told) = connector.input(now) else { break };
            prop_assert!(asked || !matches!(told, Told::Answer(_)));
        }
    }
}

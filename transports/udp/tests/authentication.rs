//! Proofs of identity: each side accepts the right one, and none of those that are nearly right.

use bytes::Bytes;
use quinn_proto::ConnectionError;
use udeck_via::auth::{Claim, HostKey, Keys, Pair, RankKey, SealedTicket};
use udeck_via::{Error, NetAddress, Nic, Reliability, Vi, ViAttributes};

use super::raw_peer::Raw;
use super::{host_of, open_with, soon};
use crate::fixture::End;
use crate::peer::{CLIENT, SERVER, proof_context};
use crate::tls::exporter;
use crate::wire::{AuthMessage, CloseReason, OURS, Process};

fn rank_key(rank: u32) -> RankKey {
    HostKey::from_bytes([5; 32]).rank(rank)
}

/// Returns the keys of a process that claims to be `rank`, and has the key of `of`, with that one's ticket for rank 0.
fn keys(rank: u32, of: u32) -> Keys {
    let keys = Keys::of_rank([7; 32], rank, rank_key(of));
    keys.learn(0, &SealedTicket::new((of, &rank_key(of)), (0, &rank_key(0))));
    keys
}

fn prove(raw: &mut Raw, pair: &Pair, role: &[u8], hello: &AuthMessage) -> [u8; 32] {
    pair.prove(b"udp", role, &[&proof_context(hello), &exporter(raw.quic())])
}

/// Returns a caller's message without the proof.
fn without_proof(claim: Option<Claim>) -> AuthMessage {
    AuthMessage { versions: OURS, process: Process { namespace: 1, pid: 2 }, claim, proof: [0; 32] }
}

/// Returns the right message of rank 1 to rank 0 in that session.
fn right(raw: &mut Raw) -> AuthMessage {
    let pair = keys(1, 1).call(Some(0)).unwrap();
    let mut hello = without_proof(Some(pair.claim()));
    hello.proof = prove(raw, &pair, CLIENT, &hello);
    hello
}

/// Calls a NIC of rank 0 and sends the message that `words` makes. `Err` has the reason for which the NIC ends the
/// connection.
fn call(nic: &Nic, words: impl FnOnce(&mut Raw) -> AuthMessage) -> Result<Raw, CloseReason> {
    let mut raw = Raw::new();
    raw.call(host_of(nic));
    raw.until("a TLS session", |raw| raw.is_connected);
    let words = words(&mut raw).encode();
    raw.send_control(&words);
    raw.until("an answer", |raw| raw.lost.is_some() || raw.heard() >= AuthMessage::len(false));
    match &raw.lost {
        None => Ok(raw),
        Some(ConnectionError::ApplicationClosed(close)) => {
            Err(CloseReason::of(close.error_code.into_inner()))
        }
        Some(other) => panic!("{other}"),
    }
}

#[test]
fn a_caller_is_taken_for_who_it_proves_to_be_in_this_session() {
    let (core, nic) = open_with(|options| options.keys = keys(0, 0));
    let _known = call(&nic, right).expect("its proof is right");
    assert_eq!(super::established(&core), 1);
    let recorded = {
        let mut earlier = Raw::new();
        earlier.call(host_of(&nic));
        earlier.until("a TLS session", |raw| raw.is_connected);
        right(&mut earlier)
    };
    let with_pair = |raw: &mut Raw, pair: Pair, claim: Claim| {
        let mut hello = without_proof(Some(claim));
        hello.proof = prove(raw, &pair, CLIENT, &hello);
        hello
    };
    type Words<'a> = Box<dyn FnOnce(&mut Raw) -> AuthMessage + 'a>;
    let wrong: Vec<(&str, Words<'_>)> = vec![
        ("nothing", Box::new(|raw| AuthMessage { proof: [0; 32], ..right(raw) })),
        (
            "a changed proof",
            Box::new(|raw| {
                let mut hello = right(raw);
                hello.proof[31] ^= 1;
                hello
            }),
        ),
        (
            "as rank 2, by the key of rank 1",
            Box::new(|raw| {
                let pair = keys(2, 1).call(Some(0)).unwrap();
                let claim = pair.claim();
                with_pair(raw, pair, claim)
            }),
        ),
        (
            "as rank 1, by the job's secret",
            Box::new(|raw| {
                let claim = keys(1, 1).call(Some(0)).unwrap().claim();
                with_pair(raw, Keys::from([7; 32]).call(None).unwrap(), claim)
            }),
        ),
        (
            "as somebody of the job, by another secret",
            Box::new(|raw| with_pair(raw, Keys::from([8; 32]).call(None).unwrap(), Claim::NOBODY)),
        ),
        (
            "a proof of the role of who is called",
            Box::new(|raw| {
                let pair = keys(1, 1).call(Some(0)).unwrap();
                let hello = without_proof(Some(pair.claim()));
                AuthMessage { proof: prove(raw, &pair, SERVER, &hello), ..hello }
            }),
        ),
        ("the proof of another session", Box::new(|_| recorded)),
        (
            "a proof of another protocol",
            Box::new(|raw| {
                let pair = keys(1, 1).call(Some(0)).unwrap();
                let hello = without_proof(Some(pair.claim()));
                let proof = pair.prove(b"tcp", CLIENT, &[&proof_context(&hello), &exporter(raw.quic())]);
                AuthMessage { proof, ..hello }
            }),
        ),
        (
            "another process than was proved",
            Box::new(|raw| AuthMessage { process: Process { namespace: 1, pid: 3 }, ..right(raw) }),
        ),
    ];
    for (what, words) in wrong {
        assert_eq!(call(&nic, words).err(), Some(CloseReason::NotAuthenticated), "{what}");
    }
    let elsewhere =
        |raw: &mut Raw| AuthMessage { claim: Some(Claim::decode([9, 0, 0, 0, 9, 0, 0, 0])), ..right(raw) };
    assert_eq!(call(&nic, elsewhere).err(), Some(CloseReason::WrongProcess));
    assert_eq!(super::established(&core), 1);
}

/// Rank 1 calls rank 0, and `words` makes the answer. Returns the error that the caller gets; `None` if it accepted
/// the answer.
fn answer(words: impl FnOnce(&mut Raw, AuthMessage) -> AuthMessage) -> Option<Error> {
    let (core, nic) = open_with(|options| options.keys = keys(1, 1));
    let mut raw = Raw::new();
    let to = NetAddress { host: raw.address().to_string().into_bytes(), discriminator: b"here".to_vec() };
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| {
            let end = End::new(&nic, Reliability::Delivery);
            let mut attributes = ViAttributes::new(end.ptag);
            (attributes.reliability, attributes.peer) = (Reliability::Delivery, Some(0));
            let (mut vi, cq) = (Vi::new(&nic, attributes).unwrap(), end.cq.handle());
            vi.connect(&to, &cq, &cq, b"", soon()).unwrap_err()
        });
        let theirs = raw.hear(AuthMessage::len(true));
        let theirs = AuthMessage::decode(&theirs, true).expect("it is whole");
        let words = words(&mut raw, theirs);
        raw.send_control(&words.encode());
        raw.until("what it says to that", |raw| raw.lost.is_some() || super::established(&core) == 1);
        let is_taken = super::established(&core) == 1;
        raw.quic().close(
            std::time::Instant::now(),
            CloseReason::ProtocolViolation.code().into(),
            Bytes::new(),
        );
        raw.look();
        let error = calling.join().unwrap();
        (!is_taken).then_some(error)
    })
}

#[test]
fn one_that_is_called_is_taken_for_who_it_proves_to_be_in_this_session() {
    let pair = |claim| Keys::of_rank([7; 32], 0, rank_key(0)).answer(claim).unwrap();
    let proven = |raw: &mut Raw, pair: &Pair, role: &[u8]| {
        let hello = without_proof(None);
        AuthMessage { proof: prove(raw, pair, role, &hello), ..hello }
    };
    let right = |raw: &mut Raw, theirs: AuthMessage| proven(raw, &pair(theirs.claim.unwrap()), SERVER);
    assert!(answer(right).is_none(), "its proof is right");
    type Words<'a> = Box<dyn FnOnce(&mut Raw, AuthMessage) -> AuthMessage + 'a>;
    let wrong: Vec<(&str, Words<'_>)> = vec![
        ("nothing", Box::new(|_, _| without_proof(None))),
        (
            "a changed proof",
            Box::new(|raw, theirs| {
                let mut hello = right(raw, theirs);
                hello.proof[0] ^= 0x80;
                hello
            }),
        ),
        (
            "the key of rank 2",
            Box::new(|raw, theirs| {
                let poser = Keys::of_rank([7; 32], 0, rank_key(2));
                proven(raw, &poser.answer(theirs.claim.unwrap()).unwrap(), SERVER)
            }),
        ),
        (
            "the job's secret",
            Box::new(|raw, _| proven(raw, &Keys::from([7; 32]).call(None).unwrap(), SERVER)),
        ),
        ("its own words, reflected", Box::new(|_, theirs| AuthMessage { claim: None, ..theirs })),
        (
            "a proof of the caller's role",
            Box::new(|raw, theirs| proven(raw, &pair(theirs.claim.unwrap()), CLIENT)),
        ),
        (
            "the proof of another session",
            Box::new(|_, theirs| {
                let hello = without_proof(None);
                let proof =
                    pair(theirs.claim.unwrap()).prove(b"udp", SERVER, &[&proof_context(&hello), &[0; 32]]);
                AuthMessage { proof, ..hello }
            }),
        ),
        (
            "another process than was proved",
            Box::new(|raw, theirs| AuthMessage { process: Process::default(), ..right(raw, theirs) }),
        ),
    ];
    for (what, words) in wrong {
        let error = answer(words).unwrap_or_else(|| panic!("it took {what}"));
        let says = error.to_string();
        assert!(matches!(error, Error::Rejected(_)), "{what}: {says}");
        assert!(says.contains("does not prove to be rank 0 of this job"), "{what}: {says}");
    }
}

/// The caller's proof is wrong, and the error tells the caller so.
#[test]
fn a_caller_whose_proof_is_not_accepted_is_told_that_it_is_its_own() {
    let ((_, a), (_, b)) =
        (open_with(|options| options.keys = keys(2, 1)), open_with(|options| options.keys = keys(0, 0)));
    let end = End::new(&a, Reliability::Delivery);
    let mut attributes = ViAttributes::new(end.ptag);
    (attributes.reliability, attributes.peer) = (Reliability::Delivery, Some(0));
    let (mut vi, cq) = (Vi::new(&a, attributes).unwrap(), end.cq.handle());
    let to = NetAddress { host: b.attributes().address.clone(), discriminator: b"here".to_vec() };
    let error = vi.connect(&to, &cq, &cq, b"", soon()).unwrap_err().to_string();
    assert!(error.contains("it says that this process does not prove to be rank 2 of its job"), "{error}");
}

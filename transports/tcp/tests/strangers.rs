//! Strangers that send anything to the port: they get nothing, and disturb nobody.

use std::io::{Read, Write};
use std::net::Shutdown;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use udeck_session::admission::wire::{FRONT, MEET, Meet, PROVE, VERSION, Versions};
use udeck_session::admission::{Admission, Protocol};
use udeck_via::NetAddress;
use udeck_via::auth::Claim;

use super::{LentEnd, SECRET, check, nic, pair, rogue, soon};
use crate::core::PROTOCOL;

/// Sends `bytes` and waits until the NIC hangs up. Returns its answer.
fn say(nic: &udeck_via::Nic, bytes: &[u8]) -> Vec<u8> {
    let mut socket = rogue::call(nic);
    // The NIC may have hung up before it has read everything.
    let _ = socket.write_all(bytes).and_then(|()| socket.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    answer
}

#[test]
fn any_bytes_are_hung_up_on() {
    let (a, b) = (nic(), nic());
    let (mut left, mut right) = pair(&a, &b);
    let meet = Meet { protocol: PROTOCOL, claim: Claim::NOBODY, nonce: [7; 32] }.encode();
    let bytes = prop::collection::vec(any::<u8>(), 0..3000);
    TestRunner::default()
        .run(&(bytes, any::<bool>()), |(bytes, met)| {
            let words = if met { [&meet[..], &bytes].concat() } else { bytes };
            let answer = say(&b, &words);
            // Only a greeting is answered: nobody gets further without the secret.
            prop_assert!(answer.len() <= if met { PROVE } else { 0 }, "{} bytes", answer.len());
            Ok(())
        })
        .unwrap();
    check(&mut left, &mut right);
    let (mut left, mut right) = pair(&a, &b);
    check(&mut left, &mut right);
}

#[test]
fn another_version_is_told_ours() {
    let nic = nic();
    let ours = Versions { admission: VERSION, protocol: PROTOCOL.version() };
    let mut meet = Meet { protocol: PROTOCOL, claim: Claim::NOBODY, nonce: [7; 32] }.encode();
    meet[4] += 1;
    // A greeting of another version may have another length, too: the first bytes are enough.
    for words in [&meet[..], &meet[..FRONT]] {
        let answer = say(&nic, words);
        let front = answer.first_chunk().expect("an answer");
        assert_eq!((answer.len(), Meet::versions(front)), (PROVE, Ok(ours)));
    }
    let newer = Protocol::new("tcp", PROTOCOL.version() + 1);
    let answer = say(&nic, &Meet { protocol: newer, claim: Claim::NOBODY, nonce: [7; 32] }.encode());
    let theirs = Meet::decode(answer[..MEET].try_into().unwrap()).unwrap();
    assert_eq!((answer.len(), theirs.protocol), (PROVE, PROTOCOL));
}

/// The two transports of a job share the secret, and an address is only text, so each may call the other.
#[test]
fn a_nic_of_another_transport_is_told_so() {
    let nic = nic();
    let host = nic.attributes().address.clone();
    let admission = Admission {
        keys: SECRET.into(),
        protocol: Protocol::new("verbs", 1),
        detect: crate::Options::new(SECRET).detect,
        withdrawal: Vec::new(),
    };
    let hello = rogue::hello();
    let to = NetAddress { host, discriminator: b"door".to_vec() };
    let error = admission.call(&to, None, &hello, b"", &soon().into()).unwrap_err().to_string();
    assert!(error.contains("it is a NIC of the tcp transport, and this one of verbs"), "{error}");

    let mut door = admission.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let to = NetAddress { host: door.address().to_string().into_bytes(), discriminator: Vec::new() };
    let error = std::thread::scope(|scope| {
        let calling = scope.spawn(|| LentEnd::new(&nic).connect(&to).unwrap_err().to_string());
        while !calling.is_finished() {
            door.serve(&mut |pending| panic!("{pending:?} got in"));
        }
        calling.join().unwrap()
    });
    assert!(error.contains("it is a NIC of the verbs transport, and this one of tcp"), "{error}");
}

/// The silent callers are more than are admitted at a time. Peers that prove themselves get in all the same.
#[test]
fn silent_callers_keep_nobody_out() {
    let (a, b) = (nic(), nic());
    let silent: Vec<_> = (0..600).map(|_| rogue::call(&b)).collect();
    let (mut left, mut right) = pair(&a, &b);
    check(&mut left, &mut right);
    drop(silent);
    check(&mut left, &mut right);
}

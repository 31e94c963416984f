//! Whoever can reach the port may say anything there: it opens nothing, and disturbs nobody.

use std::io::{Read, Write};
use std::net::Shutdown;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::{check, nic, pair, rogue};
use crate::handshake::OURS;
use crate::wire::{MEET, Meet, PROVE};

/// Says `bytes` and waits until it is hung up on: what was answered.
fn say(nic: &udeck_via::Nic, bytes: &[u8]) -> Vec<u8> {
    let mut socket = rogue::call(nic);
    // It may have hung up before it has heard all.
    let _ = socket.write_all(bytes).and_then(|()| socket.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    answer
}

#[test]
fn any_bytes_are_hung_up_on() {
    let (a, b) = (nic(), nic());
    let (mut left, mut right) = pair(&a, &b);
    let meet = Meet { versions: OURS, nonce: [7; 32] }.encode();
    let bytes = prop::collection::vec(any::<u8>(), 0..3000);
    TestRunner::default()
        .run(&(bytes, any::<bool>()), |(bytes, met)| {
            let words = if met { [&meet[..], &bytes].concat() } else { bytes };
            let answer = say(&b, &words);
            // A greeting is answered, and nothing else: nobody gets further without the secret.
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
    let mut meet = Meet { versions: OURS, nonce: [7; 32] };
    meet.versions.handshake += 1;
    let answer = say(&nic, &meet.encode());
    let theirs = Meet::decode(answer[..MEET].try_into().unwrap()).unwrap();
    assert_eq!((answer.len(), theirs.versions), (PROVE, OURS));
}

/// More than are let in at a time, and all of them silent: those who prove themselves get in all the same.
#[test]
fn silent_callers_keep_nobody_out() {
    let (a, b) = (nic(), nic());
    let silent: Vec<_> = (0..600).map(|_| rogue::call(&b)).collect();
    let (mut left, mut right) = pair(&a, &b);
    check(&mut left, &mut right);
    drop(silent);
    check(&mut left, &mut right);
}

//! Hostile hellos and proofs: nothing panics, and only a right proof is accepted.

use udeck_test_kit::Hostile;

use super::*;

/// Only valid proofs are accepted, and only for the very hellos that they cover.
#[test]
fn nothing_that_strangers_send_is_taken_for_a_proof() {
    let mut hostile = Hostile::new("stream, proofs", 20_000);
    while hostile.goes_on() {
        let (mut caller, mut callee) = (caller(3, KEYS[3], 1), callee(2));
        let hello = written(&mut caller);
        let sent = spoilt(&mut hostile, &hello);
        if callee.receive(&sent).is_err() {
            continue;
        }
        let answer = written(&mut callee);
        let heard = spoilt(&mut hostile, &answer);
        let is_proven = caller.receive(&heard).is_ok() && caller.proven().is_some();
        // The four reserved bytes may have any value.
        let is_same = sent.starts_with(&hello)
            && heard.len() >= answer.len()
            && heard[..12] == answer[..12]
            && heard[16..answer.len()] == answer[16..];
        assert!(!is_proven || is_same, "the callee has proved nothing");
        if !is_proven {
            continue;
        }
        let proof = written(&mut caller);
        let said = spoilt(&mut hostile, &proof);
        let is_accepted = callee.receive(&said).is_ok() && callee.proven().is_some();
        // Bytes behind a hello are the beginning of a proof, and bytes behind a proof that of a frame.
        assert_eq!(is_accepted, [&sent[hello.len()..], &said].concat().starts_with(&proof));
        if is_accepted {
            hostile.understood();
        }
    }
    hostile.end();
}

/// Returns the bytes unchanged with probability 1/2, and otherwise with some of them changed.
fn spoilt(hostile: &mut Hostile, right: &[u8]) -> Vec<u8> {
    if hostile.one_in(2) { right.to_vec() } else { hostile.frame(&[right.to_vec()]) }
}

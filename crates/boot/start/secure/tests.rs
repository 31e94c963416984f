use proptest::prelude::*;

use super::*;

const SECRET: [u8; 32] = [7; 32];

/// Passes the bytes of one side on to the other, in pieces of `cut` bytes.
fn pass(from: &mut Secure, to: &mut Secure, cut: usize) -> Result<Vec<u8>, Broken> {
    let mut plain = Vec::new();
    let bytes = std::mem::take(&mut from.outgoing);
    bytes.chunks(cut).try_for_each(|piece| to.receive(piece, &mut plain)).map(|()| plain)
}

/// Makes a rank and the root, and lets them prove themselves as far as they can.
fn meet(rank: u32, secret: [u8; 32], cut: usize) -> Result<(Secure, Secure), Broken> {
    let (mut rank, mut root) = (Secure::rank(rank, secret, [1; 32]), Secure::root(4, SECRET, [2; 32]));
    pass(&mut rank, &mut root, cut)?;
    assert_eq!(root.peer(), None, "before it has proved anything");
    pass(&mut root, &mut rank, cut)?;
    pass(&mut rank, &mut root, cut)?;
    Ok((rank, root))
}

#[test]
fn those_who_know_the_secret_meet_however_their_bytes_are_cut() {
    for cut in [1, 7, 48, 1000] {
        let (mut rank, mut root) = meet(3, SECRET, cut).unwrap();
        assert_eq!((rank.peer(), root.peer()), (Some(0), Some(3)));
        let long: Vec<u8> = (0..40_000u32).map(|n| n as u8).collect();
        for words in [&b"hello"[..], &long] {
            rank.send(words);
            assert_eq!(pass(&mut rank, &mut root, cut).unwrap(), words);
            root.send(words);
            assert_eq!(pass(&mut root, &mut rank, cut).unwrap(), words);
        }
    }
}

#[test]
fn who_does_not_know_the_secret_is_noticed_by_either_side() {
    assert_eq!(meet(3, [8; 32], 100).err(), Some(Broken::Secret));
    let (mut rank, mut root) = (Secure::rank(1, [8; 32], [1; 32]), Secure::root(4, SECRET, [2; 32]));
    pass(&mut rank, &mut root, 100).unwrap();
    // The rank goes on all the same.
    rank.greeted(&root.outgoing[..HELLO].try_into().unwrap()).unwrap();
    rank.seal_frame(&[]);
    assert_eq!(pass(&mut rank, &mut root, 100).err(), Some(Broken::Secret));
    assert_eq!(root.peer(), None);
}

#[test]
fn strangers_other_versions_and_ranks_that_are_none_are_named() {
    let answer = |bytes: &[u8]| Secure::root(4, SECRET, [2; 32]).receive(bytes, &mut Vec::new()).err();
    assert_eq!(answer(b"GET / HTTP/1.1"), Some(Broken::Stranger));
    assert_eq!(answer(b"udeck"), None, "it may go on well");
    assert_eq!(answer(&hello(4, &[1; 32])), Some(Broken::NoSuchRank(4)));
    let mut newer = hello(1, &[1; 32]);
    newer[8] = 2;
    assert_eq!(answer(&newer), Some(Broken::Version { theirs: 2 }));
}

#[test]
fn what_was_said_before_or_the_other_way_is_not_taken() {
    let (mut rank, mut root) = meet(3, SECRET, 100).unwrap();
    rank.send(b"once");
    let said = rank.outgoing.clone();
    assert_eq!(pass(&mut rank, &mut root, 100).unwrap(), b"once");
    assert_eq!(rank.receive(&said, &mut Vec::new()), Err(Broken::Secret), "sent back");
    assert_eq!(root.receive(&said, &mut Vec::new()), Err(Broken::Secret), "sent again");
}

#[test]
fn no_word_is_sent_in_clear() {
    let (mut rank, _) = meet(3, SECRET, 100).unwrap();
    rank.send(b"attack at dawn");
    assert!(!rank.outgoing.windows(6).any(|bytes| bytes == b"attack"));
}

proptest! {
    #[test]
    fn every_changed_byte_is_noticed(at in 0..200_usize, bit in 0..8_u8) {
        let (mut rank, mut root) = meet(2, SECRET, 100).unwrap();
        let words = [5; 150];
        rank.send(&words);
        let at = at.min(rank.outgoing.len() - 1);
        rank.outgoing[at] ^= 1 << bit;
        // If a length has grown, the frame waits for more bytes.
        let heard = pass(&mut rank, &mut root, 100);
        prop_assert!(heard == Err(Broken::Secret) || heard == Ok(Vec::new()), "{heard:?}");
    }

    #[test]
    fn whatever_comes_nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), greets: bool) {
        for mut side in [Secure::root(4, SECRET, [2; 32]), Secure::rank(1, SECRET, [2; 32])] {
            let mut plain = Vec::new();
            if greets {
                let _ = side.receive(&hello(1, &[3; 32]), &mut plain);
            }
            let _ = side.receive(&bytes, &mut plain);
            prop_assert!(plain.is_empty() && side.peer().is_none());
        }
    }
}

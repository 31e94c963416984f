//! Tests of the one stream: strangers, replays, tampering, truncation. Each use has a test of its own where it is used.

use proptest::prelude::*;

use super::*;

mod hostile;

const PROTOCOL: Protocol = Protocol { magic: *b"test 001", version: 3, max_frame: 50_000 };
const OTHER_USE: Protocol = Protocol { magic: *b"test 002", ..PROTOCOL };
/// Key of the callers with these ids.
const KEYS: [[u8; 32]; 4] = [[4; 32], [5; 32], [6; 32], [7; 32]];

fn caller(id: u32, key: [u8; 32], nonce: u8) -> SecureStream {
    SecureStream::new(PROTOCOL, Role::Caller { id, key }, [nonce; 32])
}

fn callee(nonce: u8) -> SecureStream {
    let key_of = |id: u32| KEYS.get(id as usize).copied();
    SecureStream::new(PROTOCOL, Role::Callee(Box::new(key_of)), [nonce; 32])
}

/// Takes what is to be written.
fn written(side: &mut SecureStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    side.write_to(&mut bytes).unwrap();
    bytes
}

/// Feeds bytes to a side in pieces of `cut`, and returns the payloads that it accepts until an error.
fn fed(side: &mut SecureStream, bytes: &[u8], cut: usize) -> (Vec<Vec<u8>>, Option<StreamError>) {
    let mut payloads = Vec::new();
    for piece in bytes.chunks(cut) {
        if let Err(why) = side.receive(piece) {
            return (payloads, Some(why));
        }
        loop {
            match side.next_frame() {
                Ok(Some(payload)) => payloads.push(payload.to_vec()),
                Ok(None) => break,
                Err(why) => return (payloads, Some(why)),
            }
        }
    }
    (payloads, None)
}

/// Passes the bytes of one side on to the other.
fn pass(from: &mut SecureStream, to: &mut SecureStream, cut: usize) -> Result<Vec<Vec<u8>>, StreamError> {
    let (payloads, error) = fed(to, &written(from), cut);
    error.map_or(Ok(payloads), Err)
}

/// Lets both sides prove themselves as far as they can.
fn meet(caller: &mut SecureStream, callee: &mut SecureStream, cut: usize) -> Result<(), StreamError> {
    pass(caller, callee, cut)?;
    assert_eq!(callee.proven(), None, "before the caller has proved anything");
    pass(callee, caller, cut)?;
    pass(caller, callee, cut).map(drop)
}

fn met() -> (SecureStream, SecureStream) {
    let (mut caller, mut callee) = (caller(3, KEYS[3], 1), callee(2));
    meet(&mut caller, &mut callee, 1000).unwrap();
    (caller, callee)
}

fn sealed(side: &mut SecureStream, payload: &[u8]) -> Vec<u8> {
    side.send(payload);
    written(side)
}

/// Expected values come from an implementation in another language (Python's `hmac`, and RFC 8439 written out).
#[test]
fn the_bytes_are_as_they_are_written() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let key_of = |_| Some([7; 32]);
    let mut callee = SecureStream::new(PROTOCOL, Role::Callee(Box::new(key_of)), [2; 32]);
    let mut caller = caller(2, [7; 32], 1);
    let hello = written(&mut caller);
    assert_eq!(hello, [&b"test 001\x03\0\0\0\x02\0\0\0"[..], &[1; 32]].concat());
    callee.receive(&hello).unwrap();
    let answer = written(&mut callee);
    assert_eq!(answer[..HELLO], [&b"test 001\x03\0\0\0\0\0\0\0"[..], &[2; 32]].concat());
    assert_eq!(hex(&answer[HELLO..]), "00000000345a1d1ea507ab5288f1d04bbfbd9975");
    caller.receive(&answer).unwrap();
    assert_eq!(hex(&written(&mut caller)), "00000000a2318485702accd7dfadcf7f5438c794");
    let frame = sealed(&mut caller, b"attack at dawn");
    assert_eq!(hex(&frame), "0e0000005331b7db03f515f3e87c370a400a84bd96a792864e557c3624c4f8e83da2");
}

#[test]
fn those_who_know_the_key_meet_however_their_bytes_are_cut() {
    for cut in [1, 7, 48, 1000] {
        let (mut caller, mut callee) = (caller(3, KEYS[3], 1), callee(2));
        meet(&mut caller, &mut callee, cut).unwrap();
        assert_eq!((caller.proven(), callee.proven()), (Some(3), Some(3)));
        let long: Vec<u8> = (0..40_000u32).map(|n| n as u8).collect();
        for words in [&b"hello"[..], b"", &long] {
            caller.send(words);
            caller.send(b"and");
            assert_eq!(pass(&mut caller, &mut callee, cut).unwrap(), [words, b"and"]);
            callee.send(words);
            assert_eq!(pass(&mut callee, &mut caller, cut).unwrap(), [words]);
        }
    }
}

#[test]
fn a_hand_shake_over_a_socket_leaves_what_came_behind_it() {
    let (mut one, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
    let called = std::thread::spawn(move || {
        let mut side = callee(2);
        side.handshake(&mut other).unwrap().unwrap();
        while side.next_frame().unwrap().is_none() {
            let mut scratch = [0; 64];
            let length = other.read(&mut scratch).unwrap();
            side.receive(&scratch[..length]).unwrap();
        }
        side.proven()
    });
    let mut side = caller(1, KEYS[1], 1);
    side.handshake(&mut one).unwrap().unwrap();
    one.write_all(&sealed(&mut side, b"at once")).unwrap();
    assert_eq!(called.join().unwrap(), Some(1));
    drop(one.shutdown(std::net::Shutdown::Both));
    let closed = caller(1, KEYS[1], 1).handshake(&mut one).unwrap_err().kind();
    assert!(matches!(closed, io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe), "{closed}");
}

#[test]
fn a_hand_shake_goes_on_where_its_stream_would_block() {
    let (mut one, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
    other.set_nonblocking(true).unwrap();
    let (mut caller, mut callee) = (caller(3, KEYS[3], 1), callee(2));
    let mut step = |one: &mut std::os::unix::net::UnixStream, byte: u8| {
        one.write_all(&[byte]).unwrap();
        callee.handshake(&mut other).map_err(|error| error.kind())
    };
    for byte in written(&mut caller) {
        assert_eq!(step(&mut one, byte), Err(io::ErrorKind::WouldBlock));
    }
    let mut answer = [0; HELLO + HEADER + TAG];
    one.read_exact(&mut answer).unwrap();
    caller.receive(&answer).unwrap();
    let proof = written(&mut caller);
    let steps: Vec<_> = proof.iter().map(|byte| step(&mut one, *byte)).collect();
    let [waits @ .., Ok(Ok(()))] = &steps[..] else { panic!("{steps:?}") };
    assert!(waits.iter().all(|step| *step == Err(io::ErrorKind::WouldBlock)), "{waits:?}");
}

#[test]
fn who_does_not_know_the_key_is_noticed_by_either_side() {
    let meet = |mut stranger: SecureStream| meet(&mut stranger, &mut callee(2), 1000);
    assert_eq!(meet(caller(3, [8; 32], 1)), Err(StreamError::Key));
    assert_eq!(meet(caller(3, KEYS[2], 1)), Err(StreamError::Key), "the key of another id");
    // The caller goes on all the same, with a key of its own.
    let (mut posing, mut callee) = (caller(3, [8; 32], 1), callee(2));
    pass(&mut posing, &mut callee, 1000).unwrap();
    let answer = written(&mut callee);
    posing.greet(answer.first_chunk().unwrap()).unwrap();
    posing.seal_frame(&[]);
    assert_eq!(pass(&mut posing, &mut callee, 1000), Err(StreamError::Key));
    assert_eq!(callee.proven(), None);
}

#[test]
fn strangers_other_versions_and_ids_that_are_none_are_named() {
    let answer = |bytes: &[u8]| fed(&mut callee(2), bytes, 1000).1;
    assert_eq!(answer(b"GET / HTTP/1.1"), Some(StreamError::Stranger));
    assert_eq!(answer(&[0; HELLO]), Some(StreamError::Stranger));
    assert_eq!(answer(b"test"), None, "it may go on well");
    assert_eq!(answer(&hello(&PROTOCOL, 4, &[1; 32])), Some(StreamError::UnknownId(4)));
    assert_eq!(answer(&hello(&OTHER_USE, 3, &[1; 32])), Some(StreamError::Stranger));
    // Both sides learn that the versions differ.
    let newer = Protocol { version: 99, ..PROTOCOL };
    let mut new = SecureStream::new(newer, Role::Caller { id: 3, key: KEYS[3] }, [1; 32]);
    let mut old = callee(2);
    assert_eq!(pass(&mut new, &mut old, 1000), Err(StreamError::Version { theirs: 99 }));
    assert_eq!(pass(&mut old, &mut new, 1000), Err(StreamError::Version { theirs: 3 }));
}

/// Both uses have the same key and the same nonces, and the bytes of one are given the other's magic.
#[test]
fn a_proof_of_one_use_or_version_is_none_of_another() {
    for other in [OTHER_USE, Protocol { version: 2, ..PROTOCOL }] {
        let mut posing = SecureStream::new(other, Role::Caller { id: 3, key: KEYS[3] }, [1; 32]);
        let (_own_hello, mut callee) = (written(&mut posing), callee(2));
        let (ours, theirs) = (hello(&PROTOCOL, 3, &[1; 32]), hello(&other, 0, &[2; 32]));
        assert_eq!(fed(&mut callee, &ours, 1000).1, None);
        let answer = written(&mut callee);
        let renamed = [&theirs[..], &answer[HELLO..]].concat();
        assert_eq!(fed(&mut posing, &renamed, 1000).1, Some(StreamError::Key));
        posing.seal_frame(&[]);
        assert_eq!(pass(&mut posing, &mut callee, 1000), Err(StreamError::Key));
    }
}

#[test]
fn both_sides_have_the_same_keys_for_this_connection_and_no_other() {
    let frames = |nonce: u8| {
        let (mut caller, mut callee) = (caller(3, KEYS[3], 1), callee(nonce));
        meet(&mut caller, &mut callee, 1000).unwrap();
        [sealed(&mut callee, b"same"), sealed(&mut caller, b"same")]
    };
    let ([down, up], [down_again, up_again]) = (frames(2), frames(3));
    assert!(down != up && down != down_again && up != up_again && down_again != up_again);
}

#[test]
fn no_proof_is_good_a_second_time() {
    let (mut caller, mut first) = (caller(3, KEYS[3], 1), callee(2));
    let hello = written(&mut caller);
    first.receive(&hello).unwrap();
    let answer = written(&mut first);
    caller.receive(&answer).unwrap();
    let proof = written(&mut caller);
    // The callee's own proof, sent back.
    assert_eq!(first.receive(&answer[HELLO..]), Err(StreamError::Key));
    // The whole conversation, to a callee that draws another nonce, and to a caller that does.
    let mut again = callee(3);
    again.receive(&hello).unwrap();
    assert_eq!(again.receive(&proof), Err(StreamError::Key));
    assert_eq!(self::caller(3, KEYS[3], 4).receive(&answer), Err(StreamError::Key));
}

#[test]
fn every_changed_byte_of_a_hand_shake_is_noticed() {
    let proof = HEADER + TAG;
    for at in 0..HELLO + HELLO + proof + proof {
        let (mut caller, mut callee) = (caller(3, KEYS[3], 1), callee(2));
        let mut passed = 0;
        let mut pass_changed = |from: &mut SecureStream, to: &mut SecureStream| {
            let mut bytes = written(from);
            if let Some(byte) = at.checked_sub(passed).and_then(|at| bytes.get_mut(at)) {
                *byte ^= 1;
            }
            passed += bytes.len();
            fed(to, &bytes, 1000)
        };
        let _ = pass_changed(&mut caller, &mut callee);
        let _ = pass_changed(&mut callee, &mut caller);
        let _ = pass_changed(&mut caller, &mut callee);
        // Bytes 12 to 15 of the callee's hello are reserved.
        let is_reserved = (HELLO + 12..HELLO + 16).contains(&at);
        assert_eq!(callee.proven().is_some(), is_reserved, "byte {at}");
    }
}

#[test]
fn no_frame_is_taken_that_was_changed_left_out_repeated_moved_or_made_for_somebody_else() {
    let four = || {
        let (mut caller, callee) = met();
        (["a", "b", "c", "d"].map(|word| sealed(&mut caller, word.as_bytes())), callee)
    };
    let taken = |frames: &[&[u8]]| {
        let (_, mut callee) = four();
        fed(&mut callee, &frames.concat(), 1000)
    };
    let ([a, b, c, d], _) = &four();
    let mut stranger = caller(3, KEYS[3], 1);
    meet(&mut stranger, &mut callee(3), 1000).unwrap();
    let [_, _, elsewhere] = ["a", "b", "c"].map(|word| sealed(&mut stranger, word.as_bytes()));
    let right = [b"a".to_vec(), b"b".to_vec()];
    assert_eq!(taken(&[a, b]), (right.to_vec(), None));
    for wrong in [[a, b, b, c], [a, b, d, c], [a, b, d, d], [a, b, &elsewhere, d]] {
        let frames = wrong.map(|frame| &frame[..]);
        assert_eq!(taken(&frames), (right.to_vec(), Some(StreamError::Forged)));
    }
    for at in 0..c.len() {
        let mut changed = c.clone();
        changed[at] ^= 1;
        assert_eq!(taken(&[a, b, &changed, d]).0, right, "byte {at}");
    }
    // Sent back to the side that made it.
    let (mut caller, _) = met();
    let frame = sealed(&mut caller, b"a");
    assert_eq!(fed(&mut caller, &frame, 1000), (vec![], Some(StreamError::Forged)));
}

#[test]
fn a_frame_that_is_cut_off_is_not_taken() {
    let (mut caller, _) = met();
    let frame = sealed(&mut caller, b"attack at dawn");
    for length in 0..frame.len() {
        let (_, mut callee) = met();
        assert_eq!(fed(&mut callee, &frame[..length], 1000), (vec![], None), "{length} bytes");
    }
}

#[test]
fn a_length_beyond_the_bound_is_refused_before_its_bytes_come() {
    for length in [PROTOCOL.max_frame as u32 + 1, u32::MAX] {
        let (_, mut callee) = met();
        let refused = StreamError::TooLong { length: length as usize };
        assert_eq!(fed(&mut callee, &length.to_le_bytes(), 4), (vec![], Some(refused)));
    }
    // A proof has no payload.
    let mut unproven = callee(2);
    unproven.receive(&hello(&PROTOCOL, 3, &[1; 32])).unwrap();
    assert_eq!(unproven.receive(&1u32.to_le_bytes()), Err(StreamError::Key));
}

#[test]
fn no_word_is_sent_in_clear() {
    let (mut caller, _) = met();
    let frame = sealed(&mut caller, b"attack at dawn");
    assert!(!frame.windows(6).any(|bytes| bytes == b"attack"));
}

#[test]
fn what_the_socket_does_not_take_stays_in_its_order() {
    struct Narrow(Vec<u8>, usize);
    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = self.1.min(bytes.len()).min(700);
            self.1 -= taken;
            self.0.extend_from_slice(&bytes[..taken]);
            if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (mut caller, mut callee) = met();
    let (mut socket, mut sent) = (Narrow(Vec::new(), 0), Vec::new());
    for number in 0..50u8 {
        sent.push(vec![number; 1000]);
        caller.send(&sent[usize::from(number)]);
        socket.1 = 990;
        assert_eq!(caller.write_to(&mut socket).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
    assert_eq!(caller.unsent().len(), 50 * (1000 + HEADER + TAG) - 50 * 990);
    socket.1 = usize::MAX;
    caller.write_to(&mut socket).unwrap();
    assert_eq!(fed(&mut callee, &socket.0, 333), (sent, None));
}

proptest! {
    #[test]
    fn prop_every_changed_byte_is_noticed(at in 0..200_usize, bit in 0..8_u8) {
        let (mut caller, mut callee) = met();
        let mut frame = sealed(&mut caller, &[5; 150]);
        let at = at.min(frame.len() - 1);
        frame[at] ^= 1 << bit;
        // If a length has grown, the frame waits for more bytes.
        let (payloads, why) = fed(&mut callee, &frame, 1000);
        prop_assert!(payloads.is_empty());
        prop_assert!(why.is_some() || at < HEADER, "{why:?}");
    }

    #[test]
    fn prop_whatever_comes_nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), greets: bool) {
        for mut side in [callee(2), caller(1, KEYS[1], 2)] {
            if greets {
                let _ = side.receive(&hello(&PROTOCOL, 1, &[3; 32]));
            }
            let (payloads, _) = fed(&mut side, &bytes, 100);
            prop_assert!(payloads.is_empty() && side.proven().is_none());
        }
    }

    #[test]
    fn prop_arbitrary_hellos_are_of_strangers_or_of_another_version(mut bytes: [[u8; 16]; 3]) {
        let refused = |bytes: [[u8; 16]; 3]| fed(&mut callee(2), &bytes.concat(), 1000).1;
        if bytes[0][..8] != PROTOCOL.magic {
            prop_assert_eq!(refused(bytes), Some(StreamError::Stranger));
        }
        bytes[0][..8].copy_from_slice(&PROTOCOL.magic);
        let theirs = u32::from_le_bytes(*bytes[0][8..].first_chunk().unwrap());
        if theirs != PROTOCOL.version {
            prop_assert_eq!(refused(bytes), Some(StreamError::Version { theirs }));
        }
    }
}

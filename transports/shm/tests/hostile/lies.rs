//! Lies, one at a time, each well formed otherwise.

use std::sync::atomic::Ordering;

use udeck_sys::ring::PAYLOAD_BYTES;
use udeck_sys::segment::CHUNK;
use udeck_sys::window::Exposed;
use udeck_via::mem::Fill;
use udeck_via::{
    Block, Descriptor, Error, MemHandle, Reading, RemoteBuffer, State, Status, Vi, ViAttributes,
};

use super::attacker::{Attacker, Grip, LANDING, OUTBOX, PTAG};
use super::victim::{Victim, soon};
use crate::board::{READABLE, WRITABLE};
use crate::cell;

struct Scene {
    victim: Victim,
    attacker: Attacker,
    grip: Grip,
    vi: Vi,
}

impl Scene {
    fn new() -> Self {
        let victim = Victim::new();
        let mut attacker = Attacker::admitted(victim.address());
        let (grip, vi) = attacker.connect(&victim);
        Scene { victim, attacker, grip, vi }
    }

    fn block(&self) -> Block {
        self.victim.nic.outbox().block(500, Fill::Zero).unwrap()
    }

    fn blocks_out(&self) -> usize {
        self.victim.nic.outbox().usage().blocks
    }

    /// Asserts that the attacker's connection is over for this reason and no other.
    fn assert_lost_because(mut self, error: &Error, reason: &str) {
        assert!(matches!(error, Error::Lost(why) if why.contains(reason)), "{error}");
        assert!(matches!(self.vi.send_inline(None, &[], b"more"), Err(Error::Lost(_))));
        let (grip, mut other) = self.attacker.connect(&self.victim);
        other.send_inline(None, &[], b"the link is none the worse").unwrap();
        self.victim.serves_the_honest(1);
        drop((grip, other));
    }
}

#[test]
fn credit_for_more_than_was_sent() {
    for credit in [2, 1000, 1 << 31] {
        let mut scene = Scene::new();
        (0..crate::layout::CELLS).for_each(|_| scene.vi.send_inline(None, &[], b"one").unwrap());
        scene.grip.claim_credit(crate::layout::CELLS + credit);
        let error = scene.vi.send_inline(None, &[], b"another").unwrap_err();
        scene.assert_lost_because(&error, "more messages than were sent");
    }
}

#[test]
fn more_read_than_was_sent() {
    for read in [2, 1000, 1 << 31] {
        let mut scene = Scene::new();
        scene.vi.send_inline(None, &[], b"one").unwrap();
        assert_eq!(scene.vi.unread().unwrap(), 1);
        scene.grip.claim_read(read);
        let error = scene.vi.unread().unwrap_err();
        scene.assert_lost_because(&error, "more messages than were sent");
    }
}

/// The victim publishes its read position in memory that the attacker can write, so it must not read the position back
/// from there.
#[test]
fn a_word_put_into_the_readers_mouth() {
    let mut scene = Scene::new();
    let (meta, aux) = cell::inline(4, None);
    for _ in 0..3 {
        scene.grip.push(meta, aux, &[0]);
        scene.grip.forge_read(77);
        assert!(scene.vi.arrival().unwrap().is_some());
    }
}

/// The victim tells the attacker how far it has read when it hangs up: the attacker takes back the other messages, and the
/// victim may be holding those that it has read.
#[test]
fn a_liar_is_told_what_was_read_of_it() {
    let mut scene = Scene::new();
    let (meta, aux, words, used) = cell::lent(&[(64, 500)], &[], 3, None);
    scene.grip.push(meta, aux, &words[..used]);
    let held = scene.vi.arrival().unwrap().expect("a message");
    scene.grip.push(u32::MAX, 0, &[]);
    let (meta, aux) = cell::inline(4, None);
    scene.grip.push(meta, aux, &[0]);
    let error = scene.vi.arrival().unwrap_err();
    let ours = crate::layout::Direction::new(&scene.grip.control, 1);
    assert_eq!(ours.sender().state.load(Ordering::Relaxed), crate::layout::BROKEN);
    assert!(udeck_sys::ring::credit_of(&scene.grip.direction()) >= 1, "the first is held here");
    let error_again = scene.vi.arrival().expect_err("what lies behind is no message any more");
    assert_eq!(error_again.to_string(), error.to_string());
    drop(held);
    scene.assert_lost_because(&error, "malformed cell");
}

/// The peer may only be stopped, and go on later in the middle of a message.
#[test]
fn a_peer_that_is_stuck_keeps_what_it_reads() {
    let Scene { victim, attacker, grip, mut vi } = Scene::new();
    let region = victim.nic.region(500, vi.attributes().ptag).unwrap();
    vi.post_send(Descriptor::new([region])).unwrap();
    let deadline = soon();
    while vi.send_inline(None, &[], b"?").is_ok() || vi.state() == State::Connected {
        assert!(!deadline.passed(), "the link is up still");
        attacker.ask_in_vain();
    }
    assert!(vi.send_done().is_none(), "the attacker may be reading it");
    drop((attacker, grip));
    assert_eq!(vi.send_wait(soon()).unwrap().status, Status::TransportError);
}

/// The message goes into a descriptor, where short messages are copied straight from the cell.
#[test]
fn a_short_message_longer_than_its_cell() {
    for len in [PAYLOAD_BYTES + 1, 200, 255] {
        let mut scene = Scene::new();
        let victim = &scene.victim;
        let posting = Vi::new(&victim.nic, ViAttributes::new(victim.nic.ptag())).unwrap();
        let (mut grip, mut vi) = scene.attacker.connect_by(|| victim.accept_by(posting));
        for _ in 0..2 {
            let region = victim.nic.region(500, vi.attributes().ptag).unwrap();
            vi.post_receive(Descriptor::new([region])).unwrap();
        }
        let (meta, aux) = cell::inline(PAYLOAD_BYTES, Some(7));
        grip.push(meta, aux, &[!0; PAYLOAD_BYTES / 8]);
        let whole = vi.receive_done().expect("as long as may be");
        assert_eq!((whole.status, whole.length, whole.immediate), (Status::Done, PAYLOAD_BYTES, Some(7)));
        let (meta, aux) = cell::inline(len, Some(8));
        grip.push(meta, aux, &[!0; PAYLOAD_BYTES / 8]);
        let flushed = vi.receive_done().expect("the end of the connection");
        assert_ne!(flushed.status, Status::Done, "{len} bytes of a cell of {PAYLOAD_BYTES}");
        let error = vi.send_inline(None, &[], b"more").unwrap_err();
        assert!(matches!(&error, Error::Lost(why) if why.contains("malformed cell")), "{len}: {error}");
        (scene.grip, scene.vi) = (grip, vi);
        scene.assert_lost_because(&error, "malformed cell");
    }
}

/// The message must be copied here, and would take more memory than any message may.
#[test]
fn a_message_longer_than_any_is_not_copied() {
    let mut scene = Scene::new();
    let mut held = Vec::new();
    for token in 0..=32 {
        let (meta, aux, words, used) = cell::lent(&[(0, 64)], &[], token, None);
        scene.grip.push(meta, aux, &words[..used]);
        held.push(scene.vi.arrival().unwrap().expect("a message"));
    }
    let (meta, aux, words, used) = cell::lent(&[(0, OUTBOX); 2], &[], 39, None);
    scene.grip.push(meta, aux, &words[..used]);
    held.push(scene.vi.arrival().unwrap().expect("as long as a message may be"));
    let (meta, aux, words, used) = cell::lent(&[(0, OUTBOX); 3], &[], 40, None);
    scene.grip.push(meta, aux, &words[..used]);
    let error = scene.vi.arrival().expect_err("three times all of its memory");
    scene.assert_lost_because(&error, "it lent 12582912 bytes, at most 8388608 are copied");
}

/// A completion queue names a connection whose last message and end come together until the end was seen, though
/// its user takes one thing at a time.
#[test]
fn the_end_is_named_after_the_last_message() {
    for sent in 1..=3 {
        let mut scene = Scene::new();
        // The announcement from when the connection was made is not under test.
        while scene.victim.cq.poll().is_some() {}
        let (meta, aux) = cell::inline(4, None);
        (0..sent).for_each(|_| scene.grip.push(meta, aux, &[0]));
        let theirs = crate::layout::Direction::new(&scene.grip.control, 0);
        theirs.sender().state.store(crate::layout::CLOSED, Ordering::Release);
        let doorbell = scene.grip.doorbells.receive;
        scene.attacker.victim_board().doorbell(doorbell.doorbell).ring(doorbell.bit);
        let mut messages = 0;
        loop {
            assert!(scene.victim.cq.poll().is_some(), "the end after {sent} messages was not named");
            match scene.vi.arrival() {
                Ok(arrival) => messages += usize::from(arrival.is_some()),
                Err(error) => break assert!(matches!(error, Error::Closed), "{error}"),
            }
        }
        assert_eq!(messages, sent);
    }
}

/// A program that sleeps on a completion queue learns of a peer's end only there.
#[test]
fn the_end_of_a_process_is_named() {
    let Scene { mut victim, attacker, grip, mut vi } = Scene::new();
    while victim.cq.poll().is_some() {}
    drop((attacker, grip));
    assert!(victim.cq.wait(soon(), || false).is_some(), "both of its queues have news");
    assert!(matches!(vi.arrival(), Err(Error::Lost(_))));
}

#[test]
fn a_token_that_was_never_lent() {
    for token in [1, 63, 64, u16::MAX] {
        let mut scene = Scene::new();
        scene.vi.hand_off(None, &[], scene.block()).unwrap();
        let before = scene.blocks_out();
        scene.grip.returner.give_back(token);
        let (error, block) = scene.vi.hand_off(None, &[], scene.block()).unwrap_err();
        drop(block);
        assert_eq!(scene.blocks_out(), before, "what was lent is not recycled");
        scene.assert_lost_because(&error, &format!("(token {token})"));
    }
}

/// The first send over the lost connection fails with the error; the sends behind it are flushed, and all buffers
/// come back.
#[test]
fn a_lost_link_is_a_transport_error() {
    let Scene { victim, attacker, grip, mut vi } = Scene::new();
    for len in [500, 600, 700] {
        let region = victim.nic.region(len, vi.attributes().ptag).unwrap();
        vi.post_send(Descriptor::new([region])).unwrap();
    }
    grip.returner.give_back(0);
    drop((attacker, grip));
    for (status, len) in [(Status::Done, 500), (Status::TransportError, 600), (Status::Flushed, 700)] {
        let completion = vi.send_wait(soon()).unwrap();
        assert_eq!((completion.status, completion.descriptor.unwrap().len()), (status, len));
    }
    assert_eq!(vi.state(), State::Error);
}

#[test]
fn a_token_returned_twice() {
    let mut scene = Scene::new();
    scene.vi.hand_off(None, &[], scene.block()).unwrap();
    scene.vi.hand_off(None, &[], scene.block()).unwrap();
    let before = scene.blocks_out();
    scene.grip.returner.give_back(0);
    scene.grip.returner.give_back(0);
    let (error, block) = scene.vi.hand_off(None, &[], scene.block()).unwrap_err();
    drop(block);
    assert_eq!(scene.blocks_out(), before - 1, "the second stays lent");
    scene.assert_lost_because(&error, "(token 0)");
}

#[test]
fn a_message_outside_the_outbox() {
    let end = OUTBOX as u64;
    for segment in [(end - 10, 11), (end, 1), (u64::MAX, 1), (u64::MAX - 1, 3), (0, usize::MAX), (1, OUTBOX)]
    {
        let mut scene = Scene::new();
        let (meta, aux, words, used) = cell::lent(&[segment], b"head", 0, None);
        scene.grip.push(meta, aux, &words[..used]);
        let error = scene.vi.arrival().unwrap_err();
        scene.assert_lost_because(&error, "outside its outbox");
    }
}

/// A read of the message would take that memory from the system, on our account, and checking it all takes time.
#[test]
fn a_message_without_memory_behind_it() {
    const SPARSE: usize = 64 << 20;
    let there = CHUNK as u64;
    for segment in [(0, SPARSE), (there, 1), (there - 1, 2), (SPARSE as u64 - 1, 1), (there - 500, CHUNK)] {
        let victim = Victim::new();
        let mut attacker = Attacker::sparse(victim.address(), SPARSE);
        let (mut grip, mut vi) = attacker.connect(&victim);
        let (meta, aux, words, used) = cell::lent(&[(there - 500, 500)], &[], 0, None);
        grip.push(meta, aux, &words[..used]);
        drop(vi.arrival().unwrap().expect("what is there may be lent"));
        let (meta, aux, words, used) = cell::lent(&[segment], b"head", 1, None);
        grip.push(meta, aux, &words[..used]);
        let error = vi.arrival().expect_err("what is not there may not");
        assert_eq!(attacker.outbox_memory(), there, "{segment:?} took memory");
        Scene { victim, attacker, grip, vi }.assert_lost_because(&error, "where it has no memory");
    }
}

/// Most of a window that the victim writes to has no memory. The victim's writes take memory for what they write, and no
/// more.
#[test]
fn a_window_without_memory_behind_it() {
    let mut scene = Scene::new();
    let handle = MemHandle(3 << 16 | 4);
    let exposed = Exposed { tag: PTAG.0, offset: 0, len: LANDING as u64, rights: WRITABLE };
    scene.attacker.board.view().window(handle).expose(handle.0, exposed);
    let to = RemoteBuffer { handle, offset: 0, len: LANDING };
    let mut block = scene.block();
    block.bytes_mut().fill(0xee);
    scene.vi.rdma_write(block, to, None).unwrap();
    // If the system gives huge pages to all shared memory, one page is a whole chunk.
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    if setting.is_ok_and(|setting| setting.contains("[never]") || setting.contains("[advise]")) {
        assert!(
            scene.attacker.landing_memory() < CHUNK as u64 / 8,
            "{} bytes",
            scene.attacker.landing_memory()
        );
    }
    assert_eq!(scene.attacker.bytes_in_landing(), 500);
}

/// The attacker's landing arena has no memory where the victim reads it, or has given it up: the read takes none.
#[test]
fn a_window_to_read_without_memory_behind_it() {
    for punched in [false, true] {
        let mut scene = Scene::new();
        if punched {
            scene.attacker.fill_landing();
        }
        let handle = MemHandle(3 << 16 | 4);
        let exposed = Exposed { tag: PTAG.0, offset: 0, len: LANDING as u64, rights: READABLE };
        scene.attacker.board.view().window(handle).expose(handle.0, exposed);
        let read = |scene: &mut Scene, byte: u8| {
            let from = RemoteBuffer { handle, offset: LANDING - 250_000, len: 250_000 };
            let into = scene.victim.nic.outbox().block(250_000, Fill::Zero).unwrap();
            let Ok(Reading::Done(block)) = scene.vi.rdma_read(into, from) else { panic!("it may be read") };
            assert!(block.bytes().iter().all(|read| *read == byte), "{punched}");
        };
        if punched {
            read(&mut scene, 0xee);
            scene.attacker.punch_landing();
        }
        read(&mut scene, 0);
        assert_eq!(scene.attacker.landing_memory(), 0, "the read took memory, {punched}");
    }
}

#[test]
fn a_cell_that_is_none() {
    let meta = |kind, count, head| u32::from_le_bytes([kind, count, head, 0]);
    for meta in
        [meta(0, 0, 0), meta(9, 1, 0), meta(1, 49, 0), meta(2, 4, 0), meta(2, 1, 33), meta(2, 255, 255)]
    {
        let mut scene = Scene::new();
        scene.grip.push(meta, 0, &[]);
        let error = scene.vi.arrival().unwrap_err();
        scene.assert_lost_because(&error, &format!("malformed cell (meta {meta:#010x})"));
    }
}

#[test]
fn a_window_outside_the_landing() {
    const LEN: usize = 500;
    let mut scene = Scene::new();
    let mut block = scene.block();
    block.bytes_mut().fill(0xee);
    let end = LANDING as u64;
    let handle = MemHandle(3 << 16 | 4);
    for (offset, len, tag) in [
        (end, 500, PTAG.0),
        (end - 499, 500, PTAG.0),
        (u64::MAX - 10, 500, PTAG.0),
        (0, 499, PTAG.0),
        (0, 500, PTAG.0 + 1),
    ] {
        scene
            .attacker
            .board
            .view()
            .window(handle)
            .expose(handle.0, Exposed { tag, offset, len, rights: WRITABLE });
        let to = RemoteBuffer { handle, offset: 0, len: LEN };
        let (error, back) = scene.vi.rdma_write(block, to, None).unwrap_err();
        block = back;
        assert!(matches!(error, Error::RdmaProtection { len: LEN, .. }), "{error}");
    }
    // The connection goes on, and no byte was written.
    let exposed = Exposed { tag: PTAG.0, offset: end - 500, len: 500, rights: WRITABLE };
    assert_eq!(scene.attacker.bytes_in_landing(), 0);
    scene.attacker.board.view().window(handle).expose(handle.0, exposed);
    scene.vi.rdma_write(block, RemoteBuffer { handle, offset: 0, len: LEN }, None).unwrap();
    assert_eq!(scene.attacker.bytes_in_landing(), LEN);
    scene.victim.serves_the_honest(2);
}

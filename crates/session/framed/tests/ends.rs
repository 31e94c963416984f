//! Single cases of how posts and connections end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use udeck_via::mem::{Block, MemHandle};
use udeck_via::transport::{
    Arrival, Body, Found, Inline, Landed, PostedBuffer, Refused, TransferStatus, ViEndpoint,
};
use udeck_via::{Deadline, Error, Reliability, RemoteBuffer};

use super::pair::{ARENA, Pair, WINDOW, pattern};
use crate::framed::connection::Phase;
use crate::{BYTES, MESSAGES};

/// Lends `len` bytes from `side`; the block stays with the caller.
fn lend(pair: &mut Pair, side: usize, len: usize, number: u64) -> Result<Block, Refused> {
    let block = pair.ends[side].block(len, number);
    let segments = [(block.offset(), len)];
    match pair.ends[side].endpoint().lend(None, b"head", &segments, PostedBuffer::Caller(number)) {
        Ok(()) => Ok(block),
        Err((refused, _)) => Err(refused),
    }
}

fn write(pair: &mut Pair, to: RemoteBuffer, immediate: Option<u32>, number: u64) -> Result<Block, Refused> {
    let block = pair.ends[0].block(to.len, number);
    let segments = [(block.offset(), to.len)];
    match pair.ends[0].endpoint().rdma_write(&segments, to, immediate, PostedBuffer::Caller(number)) {
        Ok(None) => Ok(block),
        Ok(Some(status)) => panic!("over already: {status:?}"),
        Err((refused, _)) => Err(refused),
    }
}

fn take(pair: &mut Pair, side: usize) -> Body {
    pair.ends[side].endpoint().receive().unwrap().expect("something arrived").body
}

fn lost(result: Result<Option<Arrival>, Refused>) -> String {
    match result {
        Err(Refused::Lost(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn at_reliable_reception_a_send_ends_when_its_receipt_comes() {
    let mut pair = Pair::new(Reliability::Reception, false);
    let _blocks = [1, 2, 3].map(|number| lend(&mut pair, 0, 100, number).unwrap());
    pair.settle();
    assert_eq!(pair.ends[0].endpoint().poll_completion(), None, "nobody has taken it");
    let Body::Lent(_, first) = take(&mut pair, 1) else { panic!("a lent message") };
    let Body::Lent(_, second) = take(&mut pair, 1) else { panic!("a lent message") };
    pair.settle();
    assert_eq!(pair.ends[0].endpoint().poll_completion(), None, "it is being read");
    second.refuse();
    pair.settle();
    assert_eq!(pair.ends[0].endpoint().poll_completion(), Some((2, TransferStatus::Refused)));
    drop(first);
    pair.settle();
    assert_eq!(pair.ends[0].endpoint().poll_completion(), Some((1, TransferStatus::Arrived)));
    // The message is received in the place that was posted for it, so the receipt is given at once.
    let block = lend_bare(&mut pair, 4);
    let mut place = [0; 100];
    let Body::Lent(_, third) = take(&mut pair, 1) else { panic!("a lent message") };
    drop(third);
    pair.settle();
    let landed = pair.ends[1].endpoint().receive_into(&mut place).unwrap();
    assert!(matches!(landed, Some(Landed::Copied { len: 100, .. })), "{landed:?}");
    assert_eq!(place, block.bytes());
    pair.settle();
    assert_eq!(pair.ends[0].endpoint().poll_completion(), Some((3, TransferStatus::Arrived)));
    assert_eq!(pair.ends[0].endpoint().poll_completion(), Some((4, TransferStatus::Arrived)));
}

/// Lends a message without a header, as a VI posts it.
fn lend_bare(pair: &mut Pair, number: u64) -> Block {
    let block = pair.ends[0].block(100, number);
    let segments = [(block.offset(), 100)];
    pair.ends[0].endpoint().lend(None, &[], &segments, PostedBuffer::Caller(number)).unwrap();
    block
}

#[test]
fn what_a_closed_peer_had_not_taken_is_unread() {
    for level in [Reliability::Delivery, Reliability::Reception] {
        let mut pair = Pair::new(level, false);
        let _blocks = [1, 2].map(|number| lend(&mut pair, 0, 100, number).unwrap());
        pair.settle();
        let Body::Lent(_, first) = take(&mut pair, 1) else { panic!("a lent message") };
        pair.ends[1].endpoint().close(None);
        pair.settle();
        let ended: Vec<_> = std::iter::from_fn(|| pair.ends[0].endpoint().poll_completion()).collect();
        match level {
            // The first message is being read: its receipt is still to come.
            Reliability::Reception => assert_eq!(ended, [(2, TransferStatus::Unread)]),
            _ => assert_eq!(ended, [(1, TransferStatus::Arrived), (2, TransferStatus::Arrived)]),
        }
        pair.ends[0].endpoint().close(None);
        pair.settle();
        let over = |pair: &Pair| [0, 1].map(|side| pair.ends[side].phase() != Phase::Open);
        assert_eq!(over(&pair), [level == Reliability::Delivery; 2]);
        drop(first);
        pair.settle();
        assert_eq!(over(&pair), [true; 2]);
        if level == Reliability::Reception {
            assert_eq!(pair.ends[0].endpoint().poll_completion(), Some((1, TransferStatus::Arrived)));
        }
    }
}

/// 2^31 messages take minutes: with counts of 32 bits, such a message counted as not read yet.
#[test]
fn a_message_that_is_kept_for_long_was_read() {
    for messages in [1 << 31, 1 << 32, (1 << 32) + 7] {
        let mut pair = Pair::new(Reliability::Reception, false);
        let _block = lend(&mut pair, 0, 100, 1).unwrap();
        pair.settle();
        let kept = take(&mut pair, 1);
        pair.settle();
        pair.ends.iter().for_each(|end| end.link.with(|connection, _| connection.advance_for_test(messages)));
        pair.ends[1].endpoint().close(None);
        pair.settle();
        assert_eq!(
            pair.ends[0].endpoint().poll_completion(),
            None,
            "it is being read, after {messages} more"
        );
        drop(kept);
        pair.settle();
        assert_eq!(
            pair.ends[0].endpoint().poll_completion(),
            Some((1, TransferStatus::Arrived)),
            "after {messages} more"
        );
    }
}

#[test]
fn a_write_that_is_not_allowed_breaks_a_reliable_connection() {
    let elsewhere = RemoteBuffer { handle: MemHandle(12345), offset: 0, len: 10 };
    for level in [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception] {
        let mut pair = Pair::new(level, false);
        let _block = write(&mut pair, elsewhere, Some(1), 1).unwrap();
        pair.ends[0].endpoint().send(None, b"behind", b"").unwrap();
        pair.settle();
        let status = if level == Reliability::Reception {
            TransferStatus::Protection
        } else {
            TransferStatus::Arrived
        };
        assert_eq!(pair.ends[0].endpoint().poll_completion(), Some((1, status)));
        if level == Reliability::Unreliable {
            assert!(matches!(take(&mut pair, 1), Body::Inline(_)));
            assert_eq!(pair.ends[0].endpoint().unread().unwrap(), 2, "it asks");
            pair.settle();
            assert_eq!(pair.ends[0].endpoint().unread().unwrap(), 0);
            continue;
        }
        for (side, begin) in [(0, "the peer ended it: an RDMA write"), (1, "an RDMA write")] {
            let why = lost(pair.ends[side].endpoint().receive());
            assert!(why.starts_with(begin), "{why}");
        }
        [0, 1].into_iter().for_each(|side| pair.ends[side].endpoint().close(None));
        pair.settle();
        assert_eq!(pair.ends[0].phase(), Phase::Over { abruptly: true });
    }
}

#[test]
fn what_can_be_told_at_once_is_refused() {
    let mut pair = Pair::new(Reliability::Delivery, false);
    for (offset, len, there) in [(0, 11, 10), (usize::MAX, 10, 10)] {
        let handle = pair.ends[1].window;
        let to = RemoteBuffer { handle, offset, len: there };
        let block = pair.ends[0].block(len, 0);
        let segments = [(block.offset(), len)];
        let refused = pair.ends[0].endpoint().rdma_write(&segments, to, None, PostedBuffer::Caller(1));
        assert!(matches!(refused, Err((Refused::Protection, PostedBuffer::Caller(1)))), "{refused:?}");
    }
    pair.settle();
    assert!(pair.ends[1].endpoint().receive().unwrap().is_none());
}

#[test]
fn a_window_that_is_taken_back_gets_no_more_of_a_write() {
    let mut pair = Pair::new(Reliability::Reception, false);
    let to = pair.ends[1].window(0, 10_000);
    let _block = write(&mut pair, to, None, 1).unwrap();
    pair.send(0, 1 << 20);
    pair.receive(1, 32 + 4000, 4000);
    pair.ends[1].windows.revoke(pair.ends[1].window, Deadline::now()).unwrap();
    pair.ends[1].fill_window(&[0; 10_000]);
    pair.settle();
    assert_eq!(pair.ends[1].look(0, 10_000), [0; 10_000]);
    assert_eq!(pair.ends[0].endpoint().poll_completion(), Some((1, TransferStatus::Protection)));
}

/// Notes when it is dropped.
struct Kept(Arc<AtomicBool>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_window_stays_while_an_answer_out_of_it_may_be_sent_again() {
    let mut pair = Pair::new(Reliability::Delivery, true);
    let from = pair.ends[1].window(0, 1000);
    let block = pair.ends[0].block(1000, 0);
    let segments = [(block.offset(), 1000)];
    pair.ends[0].endpoint().rdma_read(&segments, from, PostedBuffer::Caller(1)).unwrap();
    pair.send(0, 1000);
    pair.receive(1, 1000, 0);
    pair.send(1, 10_000);
    let (windows, window) = (pair.ends[1].windows.clone(), pair.ends[1].window);
    assert!(matches!(windows.revoke(window, Deadline::now()), Err(Error::Timeout { .. })));
    let gone = Arc::new(AtomicBool::new(false));
    windows.revoke_later(window, Box::new(Kept(gone.clone())));
    assert!(!gone.load(Ordering::Relaxed));
    pair.receive(0, 10_000, 10_000);
    assert_eq!(pair.ends[0].endpoint().poll_completion(), Some((1, TransferStatus::Arrived)));
    pair.acknowledge(1, 0);
    assert!(gone.load(Ordering::Relaxed));
    windows.revoke(window, Deadline::now()).unwrap();
    // The window is gone, so the read fails, which ends no connection.
    pair.ends[0].endpoint().rdma_read(&segments, from, PostedBuffer::Caller(2)).unwrap();
    pair.settle();
    assert_eq!(pair.ends[0].endpoint().poll_completion(), Some((2, TransferStatus::Protection)));
    pair.ends[0].endpoint().send(None, b"on", b"").unwrap();
    pair.settle();
    take(&mut pair, 1);
}

#[test]
fn the_queue_is_bounded_and_its_end_is_told() {
    let mut pair = Pair::new(Reliability::Delivery, false);
    let endpoint = pair.ends[0].endpoint();
    (0..MESSAGES).for_each(|_| endpoint.send(None, b"", b"").unwrap());
    assert!(matches!(endpoint.send(None, b"", b""), Err(Refused::Busy)));
    endpoint.request_send_notify();
    assert!(matches!(endpoint.send(None, b"", b""), Err(Refused::Busy)));
    pair.settle();
    pair.ends[0].told.iter().for_each(|told| _ = told.take());
    pair.settle();
    assert_eq!(pair.ends[0].told[0].take(), 0, "nobody took anything");
    take(&mut pair, 1);
    pair.settle();
    assert_eq!(pair.ends[0].told[0].take(), 1, "there is room");
    pair.ends[0].endpoint().send(None, b"", b"").unwrap();
    assert_eq!(pair.ends[0].endpoint().unread().unwrap(), MESSAGES);
}

#[test]
fn bytes_are_bounded_and_one_long_message_passes() {
    let mut pair = Pair::new(Reliability::Delivery, false);
    let long = lend(&mut pair, 0, 3 * BYTES, 1).unwrap();
    pair.settle();
    let queued = |pair: &Pair| pair.ends[0].link.with(|connection, _| connection.queued());
    let sent = queued(&pair);
    let later = [2, 3].map(|number| lend(&mut pair, 0, 100, number).unwrap());
    let mut more = 3;
    let refused = loop {
        match lend(&mut pair, 0, 1, more) {
            Ok(_) => more += 1,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, Refused::Busy));
    assert_eq!(more, u64::from(MESSAGES), "of posts there is a bound of its own");
    pair.settle();
    assert!(queued(&pair) < sent + 100, "a question, and nothing else, while it was not taken");
    for expected in [long.bytes(), later[0].bytes(), later[1].bytes()] {
        let Body::Lent(_, came) = take(&mut pair, 1) else { panic!("a lent message") };
        assert_eq!(came.as_slice().unwrap(), expected);
        pair.settle();
    }
    assert_eq!(pair.ends[0].memory.copied(), 0);
}

/// The peer is told of taken messages when the program polls for more in vain; before that, only if the peer could run out.
#[test]
fn credits_are_told_while_the_program_waits() {
    let mut pair = Pair::new(Reliability::Delivery, false);
    let queued = |pair: &Pair| pair.ends[1].link.with(|connection, _| connection.queued());
    let before = queued(&pair);
    let long = BYTES / 3;
    for number in 0..2 {
        lend(&mut pair, 0, long, number).unwrap();
        pair.settle();
        take(&mut pair, 1);
        assert_eq!(queued(&pair), before, "it may have an answer to post");
    }
    assert!(pair.ends[1].endpoint().receive().unwrap().is_none());
    let told = queued(&pair);
    assert!(told > before, "it has none");
    pair.settle();
    for number in 0..3 {
        lend(&mut pair, 0, long, number).unwrap();
        pair.settle();
        take(&mut pair, 1);
    }
    assert!(queued(&pair) > told, "the peer could run out");
}

/// A sender that waits for each message to be taken before it posts the next never finds its queue full.
#[test]
fn a_sender_that_is_never_ahead_is_never_refused() {
    let mut pair = Pair::new(Reliability::Delivery, false);
    for number in 0..1100 {
        let len = [10, 5000, BYTES / 3, BYTES - 1, 1 << 20, 0, BYTES + 1][(number * number) as usize % 7];
        let len = if number < 100 { len } else { 1 };
        lend(&mut pair, 0, len, number).unwrap();
        pair.settle();
        take(&mut pair, 1);
        pair.settle();
    }
}

#[test]
fn a_long_message_goes_straight_to_where_it_was_posted_for() {
    let mut pair = Pair::new(Reliability::Reception, false);
    let len = 100_000;
    let block = pair.ends[0].block(len, 5);
    let segments = [(block.offset(), len)];
    pair.ends[0].endpoint().lend(Some(9), &[], &segments, PostedBuffer::Caller(1)).unwrap();
    pair.ends[0].endpoint().send(None, b"behind", b"").unwrap();
    pair.send(0, 1 << 20);
    pair.receive(1, 32 + 1000, 0);
    let mut place = vec![0; len + 10];
    let mut look = |pair: &mut Pair, most: usize| {
        pair.ends[1].link.with(|_, driver| driver.appetite = (most, usize::MAX));
        pair.ends[1].endpoint().receive_into(&mut place).unwrap()
    };
    assert!(look(&mut pair, 50_000).is_none());
    // Another thread takes some bytes in, between two polls.
    pair.receive(1, 10_000, usize::MAX);
    let landed = look(&mut pair, usize::MAX);
    assert!(matches!(landed, Some(Landed::Copied { immediate: Some(9), len: 100_000 })), "{landed:?}");
    assert_eq!(place[..len], block.bytes()[..]);
    // Twice the bytes that came in a scratch, and once those that came in between.
    assert_eq!(pair.ends[1].memory.copied(), 2 * 1000 + 10_000);
    assert!(matches!(take(&mut pair, 1), Body::Inline(_)));
    pair.settle();
    assert_eq!(pair.ends[0].endpoint().poll_completion(), Some((1, TransferStatus::Arrived)));
}

#[test]
fn a_look_for_a_short_message_takes_nothing_else() {
    let mut pair = Pair::new(Reliability::Delivery, false);
    let mut place = Inline::EMPTY;
    assert_eq!(pair.ends[1].endpoint().receive_short(&mut place), Found::Nothing);
    pair.ends[0].endpoint().send(Some(7), b"sh", b"ort").unwrap();
    let _long = lend(&mut pair, 0, 4096, 1).unwrap();
    pair.settle();
    let endpoint = pair.ends[1].endpoint();
    assert_eq!(endpoint.receive_short(&mut place), Found::Short(Some(7)));
    assert_eq!(place.bytes(), b"short");
    assert_eq!(endpoint.receive_short(&mut place), Found::Other, "a long one is there");
    assert!(matches!(take(&mut pair, 1), Body::Lent(..)));
    assert_eq!(pair.ends[1].endpoint().receive_short(&mut place), Found::Nothing);
    pair.ends[0].endpoint().close(None);
    pair.settle();
    assert_eq!(
        pair.ends[1].endpoint().receive_short(&mut place),
        Found::Other,
        "the end is another's to tell"
    );
}

#[test]
fn a_short_look_gives_credit_as_any_other() {
    let mut pair = Pair::new(Reliability::Delivery, false);
    for number in 0..2 * MESSAGES {
        pair.ends[0].endpoint().send(None, b"", &number.to_le_bytes()).unwrap();
        pair.settle();
        let mut place = Inline::EMPTY;
        assert_eq!(pair.ends[1].endpoint().receive_short(&mut place), Found::Short(None));
        assert_eq!(place.bytes(), number.to_le_bytes());
        pair.settle();
    }
}

#[test]
fn who_looks_for_a_message_elsewhere_than_before_does_not_get_half_of_it() {
    let mut pair = Pair::new(Reliability::Delivery, false);
    let _block = lend_bare(&mut pair, 1);
    pair.send(0, 1 << 20);
    pair.receive(1, 32 + 50, 0);
    let mut place = [0; 100];
    assert!(pair.ends[1].endpoint().receive_into(&mut place).unwrap().is_none());
    pair.settle();
    let why = lost(pair.ends[1].endpoint().receive());
    assert!(why.contains("place"), "{why}");
}

#[test]
fn what_lies_beyond_the_arena_lies_on_the_heap() {
    let mut pair = Pair::new(Reliability::Delivery, false);
    let len = ARENA / 4;
    let block = pair.ends[0].block(len, 1);
    let mut all = Vec::new();
    for _ in 0..6 {
        let segments = [(block.offset(), len)];
        pair.ends[0].endpoint().lend(None, &[], &segments, PostedBuffer::Caller(1)).unwrap();
        pair.settle();
        let Body::Lent(_, lent) = take(&mut pair, 1) else { panic!("a lent message") };
        assert!(lent.as_slice().unwrap().as_ptr().addr().is_multiple_of(64));
        pair.settle();
        all.push(lent);
    }
    assert!(all.iter().all(|lent| lent.as_slice().unwrap() == block.bytes()));
    assert!(pair.ends[1].memory.outbox.usage().used <= ARENA / 2);
}

#[test]
fn a_loss_ends_everything_and_what_arrived_can_be_read() {
    for level in [Reliability::Delivery, Reliability::Reception] {
        let mut pair = Pair::new(level, true);
        let _block = lend(&mut pair, 0, 100, 1).unwrap();
        pair.send(0, 10_000);
        pair.receive(1, 10_000, 0);
        let from = pair.ends[1].window(0, 100);
        let read = pair.ends[0].block(100, 0);
        let segments = [(read.offset(), 100)];
        pair.ends[0].endpoint().rdma_read(&segments, from, PostedBuffer::Caller(2)).unwrap();
        pair.ends[0].endpoint().fence();
        let _held_back = lend(&mut pair, 0, 100, 3).unwrap();
        for side in [0, 1] {
            pair.ends[side].link.with(|connection, _| connection.lost("the cable was cut"));
        }
        let mut ended: Vec<_> = std::iter::from_fn(|| pair.ends[0].endpoint().poll_completion()).collect();
        ended.sort_by_key(|end| end.0);
        assert_eq!(ended, [1, 2, 3].map(|number| (number, TransferStatus::Lost)));
        drop(take(&mut pair, 1));
        for side in [0, 1] {
            assert_eq!(lost(pair.ends[side].endpoint().receive()), "the cable was cut");
            assert!(pair.ends[side].told.iter().all(|told| told.take() > 0));
            assert_eq!(pair.ends[side].phase(), Phase::Over { abruptly: true });
        }
    }
}

#[test]
fn a_stream_that_ends_without_a_goodbye_is_a_loss() {
    let mut pair = Pair::new(Reliability::Delivery, false);
    pair.ends[0].link.with(|connection, _| connection.hung_up());
    let why = lost(pair.ends[0].endpoint().receive());
    assert!(why.contains("without a goodbye"), "{why}");
    pair.ends[1].endpoint().close(None);
    pair.settle();
    let mut pair = Pair::new(Reliability::Delivery, false);
    pair.ends[1].endpoint().close(None);
    pair.settle();
    pair.ends[0].link.with(|connection, _| connection.hung_up());
    assert!(matches!(pair.ends[0].endpoint().receive(), Err(Refused::Closed)));
}

#[test]
fn an_error_of_the_peer_comes_with_its_words() {
    let mut pair = Pair::new(Reliability::Delivery, false);
    pair.ends[1].endpoint().send(None, b"before", b"").unwrap();
    pair.ends[1].endpoint().close(Some(&"ä".repeat(1000)));
    pair.settle();
    take(&mut pair, 0);
    let why = lost(pair.ends[0].endpoint().receive());
    assert_eq!(why, format!("the peer ended it: {}", "ä".repeat(256)));
}

#[test]
fn a_fence_holds_back_what_is_behind_it_until_the_reads_are_over() {
    let mut pair = Pair::new(Reliability::Delivery, false);
    pair.ends[1].fill_window(&pattern(WINDOW, 1));
    let from = pair.ends[1].window(0, 100);
    let block = pair.ends[0].block(100, 0);
    let segments = [(block.offset(), 100)];
    let endpoint = pair.ends[0].endpoint();
    endpoint.rdma_read(&segments, from, PostedBuffer::Caller(1)).unwrap();
    endpoint.send(None, b"beside", b"").unwrap();
    endpoint.fence();
    endpoint.send(None, b"behind", b"").unwrap();
    endpoint.send(None, b"and behind that", b"").unwrap();
    pair.send(0, 1 << 20);
    pair.receive(1, usize::MAX, 0);
    let Body::Inline(beside) = take(&mut pair, 1) else { panic!("a short message") };
    assert_eq!(beside.bytes(), b"beside");
    assert!(pair.ends[1].endpoint().receive().unwrap().is_none(), "it is held back");
    assert_eq!(pair.send(0, 1000), 0, "it is held back");
    pair.settle();
    assert_eq!(pair.ends[0].endpoint().poll_completion(), Some((1, TransferStatus::Arrived)));
    for words in [&b"behind"[..], b"and behind that"] {
        let Body::Inline(came) = take(&mut pair, 1) else { panic!("a short message") };
        assert_eq!(came.bytes(), words);
    }
}

#[test]
fn a_link_tells_what_of_the_outbox_is_out() {
    let mut pair = Pair::new(Reliability::Delivery, true);
    let block = pair.ends[0].block(1000, 0);
    let (segments, bytes) = ([(block.offset(), 1000)], block.capacity());
    pair.ends[0].endpoint().lend(None, &[], &segments, PostedBuffer::Block(block)).unwrap();
    let lent = pair.ends[0].endpoint().link_report().unwrap();
    assert_eq!(lent.upgrade().unwrap().lent(), bytes);
    pair.settle();
    assert_eq!(lent.upgrade().unwrap().lent(), 0);
}

/// Both sides have closed, and each still has posts that wait for room at the other: neither waits for the other's program.
#[test]
fn two_that_close_with_posts_held_back_end() {
    for level in [Reliability::Delivery, Reliability::Reception] {
        let mut pair = Pair::new(level, false);
        let _blocks = [0, 1].map(|side| [1, 2].map(|number| lend(&mut pair, side, BYTES, number).unwrap()));
        pair.settle();
        for side in [0, 1] {
            pair.ends[side].endpoint().close(None);
            pair.settle();
        }
        for side in [0, 1] {
            assert_eq!(pair.ends[side].phase(), Phase::Over { abruptly: side == 0 }, "side {side}");
        }
    }
}

//! Messages that travel outside the stream. The test is the network, and loses some.

use proptest::prelude::*;
use udeck_via::mem::Block;
use udeck_via::transport::{Body, PostedBuffer, Refused, TransferStatus, ViEndpoint};
use udeck_via::{Deadline, Reliability};

use super::pair::{Pair, WINDOW, pattern};
use crate::framed::connection::{Content, Phase, Pieces};
use crate::{DATAGRAM_BYTES, MESSAGES};

/// A message in flight.
#[derive(Clone)]
struct Sent {
    number: u64,
    content: Content,
    bytes: Vec<u8>,
}

fn pair() -> Pair {
    let pair = Pair::new(Reliability::Unreliable, false);
    for end in &pair.ends {
        end.link.with(|connection, _| connection.go_unreliable());
    }
    pair
}

/// Lets all messages leave that may.
fn leave(pair: &Pair) -> Vec<Sent> {
    pair.ends[0].link.with(|connection, _| {
        let mut all = Vec::new();
        while let Some(leaving) = connection.next_datagram(0) {
            let mut bytes = Vec::new();
            while bytes.len() < leaving.len {
                let mut pieces = Pieces::new();
                let part = connection.gather_unreliable(0, bytes.len(), 1000, &mut pieces);
                let mut there = vec![0; part];
                assert_eq!(pieces.copy_to(&mut there), part);
                assert!(part > 0 && part <= 1000);
                bytes.extend(there);
            }
            all.push(Sent { number: leaving.number, content: leaving.content, bytes });
            connection.on_datagrams_sent(1);
        }
        all
    })
}

/// Delivers a message: at once, or in parts of `part` bytes, the last one first. If a part may not land, the message is missed.
fn arrive(pair: &Pair, sent: &Sent, part: Option<usize>) {
    let Sent { number, content, bytes } = sent;
    pair.ends[1].link.with(|connection, _| {
        assert!(*number < connection.unreliable_end());
        let Some(part) = part else { return connection.on_datagram(*number, *content, bytes) };
        let Some(mut landing) = connection.land(*content, bytes.len()) else {
            return connection.on_missed(*number, None);
        };
        let mut parts: Vec<_> = bytes.chunks(part).enumerate().collect();
        parts.reverse();
        let all = parts.into_iter().all(|(nth, bytes)| landing.fill(nth * part, bytes));
        if all {
            connection.on_receive_unreliable(*number, landing)
        } else {
            connection.on_missed(*number, Some(landing))
        }
    });
}

fn miss(pair: &Pair, number: u64) {
    pair.ends[1].link.with(|connection, _| connection.on_missed(number, None));
}

fn lend(pair: &mut Pair, len: usize, seed: u64) -> Result<(), Refused> {
    let block = pair.ends[0].block(len, seed);
    let segments = [(block.offset(), len)];
    pair.ends[0]
        .endpoint()
        .lend(Some(seed as u32), b"head", &segments, PostedBuffer::Block(block))
        .map_err(|refused| refused.0)
}

fn take(pair: &mut Pair) -> Option<(Option<u32>, Vec<u8>, Vec<u8>)> {
    let arrival = pair.ends[1].endpoint().receive().unwrap()?;
    Some(match arrival.body {
        Body::Inline(bytes) => (arrival.immediate, bytes.bytes().to_vec(), Vec::new()),
        Body::Lent(head, lent) => {
            (arrival.immediate, head.bytes().to_vec(), lent.as_slice().unwrap().to_vec())
        }
        Body::Written(_) => (arrival.immediate, Vec::new(), Vec::new()),
    })
}

fn unread(pair: &mut Pair) -> u32 {
    let _ = pair.ends[0].endpoint().unread();
    pair.settle();
    pair.ends[0].endpoint().unread().unwrap()
}

#[test]
fn what_is_missed_counts_as_taken() {
    let mut pair = pair();
    (0..3).for_each(|_| pair.ends[0].endpoint().send(None, b"x", b"").unwrap());
    let sent = leave(&pair);
    assert_eq!(unread(&mut pair), 3);
    arrive(&pair, &sent[1], None);
    arrive(&pair, &sent[2], None);
    assert!(take(&mut pair).is_some());
    assert_eq!(unread(&mut pair), 3, "in a row: of the first it is not known");
    miss(&pair, 0);
    assert_eq!(unread(&mut pair), 1);
    assert!(take(&mut pair).is_some());
    assert_eq!(unread(&mut pair), 0);
    miss(&pair, 1);
    assert_eq!(unread(&mut pair), 0, "said of one that was taken: nothing");
}

#[test]
fn a_sender_has_so_many_under_way_and_no_more() {
    let mut pair = pair();
    (0..MESSAGES).for_each(|_| pair.ends[0].endpoint().send(None, b"x", b"").unwrap());
    assert!(matches!(pair.ends[0].endpoint().send(None, b"x", b""), Err(Refused::Busy)));
    let sent = leave(&pair);
    sent.iter().for_each(|sent| arrive(&pair, sent, None));
    pair.settle();
    assert!(matches!(pair.ends[0].endpoint().send(None, b"x", b""), Err(Refused::Busy)), "none was taken");
    assert!(take(&mut pair).is_some());
    pair.settle();
    pair.ends[0].endpoint().send(None, b"x", b"").unwrap();
    assert_eq!(leave(&pair)[0].number, u64::from(MESSAGES));
}

#[test]
fn bytes_beyond_what_the_peer_has_room_for_do_not_leave() {
    let mut pair = pair();
    (0..3).for_each(|seed| lend(&mut pair, DATAGRAM_BYTES, seed).unwrap());
    let first = leave(&pair);
    assert_eq!(first.len(), 1);
    pair.settle();
    miss(&pair, 0);
    pair.settle();
    let second = leave(&pair);
    assert_eq!(second.len(), 1, "what was missed makes room");
    // A sender that exceeds its credits finds no room.
    arrive(&pair, &second[0], Some(1000));
    let third = Sent { number: 2, ..second[0].clone() };
    arrive(&pair, &third, Some(1000));
    assert_eq!(take(&mut pair).unwrap().2.len(), DATAGRAM_BYTES);
    assert!(take(&mut pair).is_none());
}

#[test]
fn a_write_lands_where_it_may_and_its_immediate_data_come_when_all_has() {
    let mut pair = pair();
    let post = |pair: &mut Pair, seed| {
        let (block, to) = (pair.ends[0].block(5000, seed), pair.ends[1].window(100, 5000));
        let segments = [(block.offset(), 5000)];
        let held = PostedBuffer::Block(block);
        assert!(pair.ends[0].endpoint().rdma_write(&segments, to, Some(9), held).unwrap().is_none());
        leave(pair).remove(0)
    };
    let first = post(&mut pair, 1);
    arrive(&pair, &first, Some(700));
    assert_eq!(take(&mut pair), Some((Some(9), vec![], vec![])));
    assert_eq!(pair.ends[1].look(100, 5000), pattern(5000, 1));
    let second = post(&mut pair, 2);
    let handle = pair.ends[1].window;
    let end = &pair.ends[1];
    end.link.with(|connection, _| {
        let mut landing = connection.land(second.content, 5000).expect("it is exposed");
        assert!(landing.fill(4000, &second.bytes[4000..]));
        end.windows.revoke(handle, Deadline::now()).unwrap();
        assert!(!landing.fill(0, &second.bytes[..4000]), "it was taken back meanwhile");
        assert!(!landing.fill(4999, b"ab"), "beyond its end");
        connection.on_missed(second.number, Some(landing));
        assert!(connection.land(second.content, 5000).is_none());
    });
    let expected = [&pattern(5000, 1)[..4000], &pattern(5000, 2)[4000..]].concat();
    assert_eq!(pair.ends[1].look(100, 5000), expected);
    assert_eq!((take(&mut pair), unread(&mut pair)), (None, 0));
}

#[test]
fn the_end_comes_behind_what_has_left() {
    let mut pair = pair();
    pair.ends[0].endpoint().send(None, b"x", b"").unwrap();
    lend(&mut pair, 1000, 1).unwrap();
    pair.ends[0].endpoint().close(None);
    pair.settle();
    assert!(pair.ends[1].endpoint().receive().unwrap().is_none(), "it has not ended");
    for sent in leave(&pair) {
        arrive(&pair, &sent, Some(300));
    }
    pair.settle();
    assert!(take(&mut pair).is_some() && take(&mut pair).is_some());
    assert!(matches!(pair.ends[1].endpoint().receive(), Err(Refused::Closed)));
    pair.ends[1].endpoint().close(None);
    pair.settle();
    for side in [0, 1] {
        assert_eq!(pair.ends[side].phase(), Phase::Over { abruptly: side == 0 });
        assert_eq!(pair.ends[side].memory.outbox.usage().used, 0);
    }
}

#[test]
fn what_cannot_leave_any_more_is_given_back() {
    for by_loss in [false, true] {
        let mut pair = pair();
        let block = pair.ends[0].block(1000, 1);
        let segments = [(block.offset(), 1000)];
        pair.ends[0].endpoint().lend(None, b"", &segments, PostedBuffer::Caller(7)).unwrap();
        assert_eq!(pair.ends[0].endpoint().poll_completion(), None);
        if by_loss {
            pair.ends[0].link.with(|connection, _| connection.lost("the test"));
        } else {
            pair.ends[1].endpoint().close(None);
            pair.settle();
        }
        let status = if by_loss { TransferStatus::Lost } else { TransferStatus::Unread };
        assert_eq!(pair.ends[0].endpoint().poll_completion(), Some((7, status)));
        assert!(pair.ends[0].link.with(|connection, _| connection.next_datagram(0)).is_none());
    }
}

#[test]
fn what_the_sender_gives_up_the_receiver_learns() {
    let mut pair = pair();
    (0..3).for_each(|_| pair.ends[0].endpoint().send(None, b"x", b"").unwrap());
    let _lost = leave(&pair);
    pair.ends[0].link.with(|connection, _| connection.give_up(2));
    pair.settle();
    let heard = |pair: &Pair| pair.ends[1].link.with(|connection, _| connection.take_given_up());
    assert_eq!((heard(&pair), heard(&pair)), (Some(2), None), "once");
    pair.ends[0].link.with(|connection, _| connection.give_up(u64::MAX));
    pair.settle();
    assert_eq!(heard(&pair), Some(u64::from(MESSAGES)), "as far as it may have sent any");
}

/// For a peer that does not acknowledge the stream we keep one frame about losses.
#[test]
fn losses_are_told_one_at_a_time() {
    let pair = pair();
    let frames = |pair: &Pair| pair.ends[0].link.with(|connection, _| connection.frames());
    (1..100).for_each(|upto| pair.ends[0].link.with(|connection, _| connection.give_up(upto)));
    assert_eq!(frames(&pair), 1);
    let mut pair = pair;
    pair.settle();
    let heard = pair.ends[1].link.with(|connection, _| connection.take_given_up());
    assert_eq!(heard, Some(99), "the last one is told when the first has arrived");
}

#[derive(Clone, Debug)]
enum Op {
    Send(usize),
    Lend(usize),
    Write(usize, usize, bool),
    Leave,
    Arrive(usize, Option<usize>),
    Miss(usize),
    Take,
    Settle,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let len = prop_oneof![4 => 0..200usize, 2 => 0..20_000usize, 1 => 100_000..300_000usize];
    let part = prop_oneof![Just(None), (1..9000usize).prop_map(Some)];
    let op = prop_oneof![
        4 => (0..=48usize).prop_map(Op::Send),
        4 => len.prop_map(Op::Lend),
        2 => (0..WINDOW, 0..9000usize, any::<bool>())
            .prop_map(|(at, len, immediate)| Op::Write(at, len.min(WINDOW - at), immediate)),
        4 => Just(Op::Leave),
        8 => (any::<usize>(), part).prop_map(|(which, part)| Op::Arrive(which, part)),
        2 => any::<usize>().prop_map(Op::Miss),
        6 => Just(Op::Take),
        2 => Just(Op::Settle),
    ];
    prop::collection::vec(op, 1..300)
}

proptest! {
    /// For any losses and any order of arrival: each message that is taken was sent, and is taken once; in the end all are
    /// over and all memory is home.
    #[test]
    fn prop_what_arrives_is_right_and_all_ends(ops in ops()) {
        let mut pair = pair();
        let (mut seed, mut under_way) = (0, Vec::<Sent>::new());
        let mut arrived = Vec::<Sent>::new();
        let mut taken = 0;
        let take_one = |pair: &mut Pair, arrived: &mut Vec<Sent>| {
            let Some((immediate, head, body)) = take(pair) else { return false };
            let bytes = [head, body].concat();
            let at = arrived.iter().position(|sent| match sent.content {
                Content::Message { immediate: theirs, .. } => theirs == immediate && sent.bytes == bytes,
                Content::Write { immediate: theirs, .. } => theirs == immediate && bytes.is_empty(),
            });
            arrived.remove(at.expect("nobody sent that, or it came twice"));
            true
        };
        for op in ops {
            seed += 1;
            match op {
                Op::Send(len) => {
                    let _ = pair.ends[0].endpoint().send(Some(seed as u32), &pattern(len, seed), b"");
                }
                Op::Lend(len) => drop(lend(&mut pair, len, seed)),
                Op::Write(at, len, immediate) => {
                    let (block, to): (Block, _) = (pair.ends[0].block(len, seed), pair.ends[1].window(at, len));
                    let segments = [(block.offset(), len)];
                    let immediate = immediate.then_some(seed as u32);
                    drop(pair.ends[0].endpoint().rdma_write(&segments, to, immediate, PostedBuffer::Block(block)));
                }
                Op::Leave => under_way.extend(leave(&pair)),
                Op::Arrive(which, part) if !under_way.is_empty() => {
                    let sent = under_way.remove(which % under_way.len());
                    arrive(&pair, &sent, part);
                    let silent = matches!(sent.content, Content::Write { immediate: None, .. });
                    if !silent {
                        arrived.push(sent);
                    }
                }
                Op::Miss(which) if !under_way.is_empty() => {
                    let sent = under_way.remove(which % under_way.len());
                    miss(&pair, sent.number);
                }
                Op::Arrive(..) | Op::Miss(_) => {}
                Op::Take => taken += usize::from(take_one(&mut pair, &mut arrived)),
                Op::Settle => _ = pair.settle(),
            }
        }
        // Half of the rest is lost.
        for _ in 0..1000 {
            under_way.extend(leave(&pair));
            for sent in under_way.drain(..) {
                if sent.number % 2 == 0 {
                    miss(&pair, sent.number);
                } else {
                    arrive(&pair, &sent, None);
                    if !matches!(sent.content, Content::Write { immediate: None, .. }) {
                        arrived.push(sent);
                    }
                }
            }
            while take_one(&mut pair, &mut arrived) {}
            pair.settle();
            if unread(&mut pair) == 0 {
                break;
            }
        }
        prop_assert_eq!(unread(&mut pair), 0);
        prop_assert!(arrived.is_empty(), "{} came and were not given out; {} were", arrived.len(), taken);
        for side in [0, 1] {
            pair.ends[side].endpoint().close(None);
            pair.settle();
        }
        for side in [0, 1] {
            prop_assert_eq!(pair.ends[side].memory.outbox.usage().used, 0);
        }
    }
}

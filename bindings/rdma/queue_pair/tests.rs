//! An end point's queues under a face that only notes what it is told.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use udeck_via::transport::Inline;
use udeck_via::{Cq, Deadline, Error, Listener, NetAddress, Nic, Receive, Vi, ViAttributes};

use super::held::Message;
use super::{Posted, Stage};
use crate::frame::{self, Head, Reason};
use crate::link;
use crate::memory::Segment;
use crate::{End, Face, HeldBytes, MAX_HELD_BYTES, Outcome, QueuePair, Request};

/// An operation that needs no frame, unless it is a read or wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Op {
    number: usize,
    is_fenced: bool,
    is_wrong: bool,
    may_not_be_written: bool,
}

/// Bytes of each read.
const LEN: usize = 4;

struct Fake<const BLAMES_ANY: bool = true> {
    nic: Nic,
    is_reliable: bool,
    is_acknowledged: bool,
    over: Vec<(usize, Outcome)>,
    /// Number of each receive, and first byte of its message.
    received: Vec<(usize, u8)>,
    /// Whether messages may wait.
    is_patient: bool,
    held: HeldBytes,
}

impl<const BLAMES_ANY: bool> Face for Fake<BLAMES_ANY> {
    type Operation = Op;
    type Receive = usize;
    const FLAG: u8 = frame::IMMEDIATE;
    const MAX_POSTED: usize = 16;
    const BLAMES_ANY: bool = BLAMES_ANY;

    fn nic(&self) -> &Nic {
        &self.nic
    }

    fn is_reliable(&self) -> bool {
        self.is_reliable
    }

    fn is_acknowledged(&self) -> bool {
        self.is_acknowledged
    }

    fn len(_: &Op) -> usize {
        LEN
    }

    fn is_fenced(op: &Op) -> bool {
        op.is_fenced
    }

    fn begin(&mut self, op: &Op) -> Option<Request> {
        (!op.is_wrong).then_some(Request::Nothing)
    }

    fn gather(&self, _: &Op, _: &mut [u8]) -> bool {
        true
    }

    fn scatter(&self, op: &Op, _: &[u8]) -> bool {
        !op.may_not_be_written
    }

    fn complete(&mut self, op: Op, outcome: Outcome) {
        self.over.push((op.number, outcome));
    }

    fn receive(&mut self, receive: usize, _: Head, body: &[u8], _: &[&[u8]]) -> Result<(), Reason> {
        self.received.push((receive, body[0]));
        Ok(())
    }

    fn receive_immediate(&mut self, receive: usize, immediate: u32, _: usize) {
        self.received.push((receive, immediate as u8));
    }

    fn flush_receive(&mut self, receive: usize) {
        self.over.push((receive, Outcome::Flushed));
    }

    fn may_wait(&mut self, _: Option<Instant>) -> bool {
        self.is_patient
    }

    fn held(&self) -> &HeldBytes {
        &self.held
    }

    fn may_hold_more(messages: usize, is_under_way: bool) -> bool {
        is_under_way && messages < 3
    }

    fn read(&self, _: Segment, _: &mut [u8]) -> bool {
        true
    }

    fn may_read(&mut self, _: Segment) -> bool {
        true
    }

    fn write(&mut self, _: Segment, _: &[u8]) -> bool {
        true
    }
}

fn fake<const ANY: bool>() -> (QueuePair<Fake<ANY>>, Fake<ANY>) {
    let nic = udeck_sim::Fabric::new(1).nic("a", udeck_sim::Options::default()).unwrap();
    let face = Fake {
        nic,
        is_reliable: true,
        is_acknowledged: true,
        over: Vec::new(),
        received: Vec::new(),
        is_patient: true,
        held: HeldBytes::default(),
    };
    (QueuePair::new(None), face)
}

impl<const ANY: bool> QueuePair<Fake<ANY>> {
    /// Posts an operation that has been sent.
    fn sent(&mut self, operation: Op, stage: Stage) {
        self.posted.push_back(Posted { operation, stage });
        self.reads += usize::from(stage == Stage::Reading);
    }
}

fn data(len: usize) -> Vec<u8> {
    [&frame::data_head(false)[..], &vec![0; len]].concat()
}

const REFUSED: (usize, Outcome) = (0, Outcome::Remote(Reason::BadKey));

#[test]
fn a_fence_waits_for_the_reads_before_it_and_all_complete_in_order() {
    let (mut queues, mut face) = fake::<true>();
    queues.sent(Op::default(), Stage::Reading);
    queues.post(&mut face, Op { number: 1, ..Op::default() }).unwrap();
    queues.post(&mut face, Op { number: 2, is_fenced: true, ..Op::default() }).unwrap();
    queues.post(&mut face, Op { number: 3, ..Op::default() }).unwrap();
    assert_eq!((&face.over[..], queues.posted(), queues.unsent), (&[][..], 4, 2));
    queues.take_data(&mut face, &data(LEN)).unwrap();
    assert_eq!(face.over, [0, 1].map(|number| (number, Outcome::Success)));
    queues.send_waiting(&mut face).unwrap();
    assert_eq!(face.over, [0, 1, 2, 3].map(|number| (number, Outcome::Success)));
    assert!(queues.posted() == 0 && !queues.has_unsent() && queues.reads() == 0);
}

#[test]
fn an_answer_completes_the_oldest_read() {
    for (body, may_not_be_written, over, end) in [
        (data(LEN), false, Some((0, Outcome::Success)), Ok(())),
        (data(LEN), true, Some((0, Outcome::Local)), Err(End::Local)),
        (frame::data_head(true).to_vec(), false, Some(REFUSED), Err(End::Refused)),
        (data(LEN + 1), false, None, Err(End::Nonsense)),
        (vec![2; 8], false, None, Err(End::Nonsense)),
    ] {
        let (mut queues, mut face) = fake::<true>();
        assert_eq!(queues.take_data(&mut face, &data(LEN)), Err(End::Nonsense), "none was asked for");
        queues.sent(Op { may_not_be_written, ..Op::default() }, Stage::Reading);
        assert_eq!(queues.take_data(&mut face, &body), end);
        assert_eq!(face.over, Vec::from_iter(over));
    }
}

#[test]
fn a_wrong_operation_ends_a_reliable_connection_only() {
    for (is_reliable, posted) in [(true, Err(End::Local)), (false, Ok(()))] {
        let (mut queues, mut face) = fake::<true>();
        face.is_reliable = is_reliable;
        assert_eq!(queues.post(&mut face, Op { is_wrong: true, ..Op::default() }), posted);
        assert_eq!(face.over, [(0, Outcome::Local)]);
    }
}

#[test]
fn an_error_of_the_peer_ends_one_operation_and_the_others_are_flushed() {
    fn blamed<const ANY: bool>(first: Outcome, stages: &[Stage]) -> Option<usize> {
        let (mut queues, mut face) = fake::<ANY>();
        for (number, stage) in stages.iter().enumerate() {
            queues.sent(Op { number, ..Op::default() }, *stage);
        }
        queues.flush(&mut face, first);
        assert!(face.over.iter().map(|(number, _)| *number).eq(0..stages.len()));
        assert!(face.over.iter().filter(|(_, outcome)| *outcome != Outcome::Flushed).count() <= 1);
        face.over.iter().position(|(_, outcome)| *outcome == first)
    }
    use Stage::{Reading, Unsent, Untaken};
    let remote = Outcome::Remote(Reason::BadKey);
    for (first, stages, any, sent_only) in [
        (remote, &[Reading, Untaken, Unsent][..], Some(0), Some(1)),
        (remote, &[Reading, Unsent], Some(0), None),
        (remote, &[Unsent], Some(0), None),
        (Outcome::Lost, &[Reading, Untaken, Unsent], Some(0), Some(0)),
        (Outcome::Lost, &[Unsent], Some(0), None),
    ] {
        let both = (blamed::<true>(first, stages), blamed::<false>(first, stages));
        assert_eq!(both, (any, sent_only), "{first:?} with {stages:?}");
    }
}

impl<const ANY: bool> QueuePair<Fake<ANY>> {
    fn arrives(&mut self, face: &mut Fake<ANY>, head: Head, body: &[u8]) -> Result<(), End> {
        self.take_short(face, &Inline::gather(&head.bytes(), body))
    }
}

fn write_head() -> [u8; frame::WRITE_HEAD] {
    frame::write_head(0, 1)
}

#[test]
fn messages_wait_for_receives_in_order_and_answers_pass_them() {
    let (mut queues, mut face) = fake::<true>();
    let send = Head::plain(frame::SEND);
    queues.sent(Op::default(), Stage::Untaken);
    queues.sent(Op { number: 1, ..Op::default() }, Stage::Reading);
    queues.arrives(&mut face, send, b"a").unwrap();
    queues.arrives(&mut face, Head::with_immediate(frame::WRITE, Some(b'b'.into())), &write_head()).unwrap();
    queues.arrives(&mut face, Head::plain(frame::TAKEN), &1_u32.to_le_bytes()).unwrap();
    assert_eq!((&face.over[..], queues.held.len()), (&[(0, Outcome::Success)][..], 2));
    queues.arrives(&mut face, Head::plain(frame::DATA), &data(LEN)).unwrap();
    assert_eq!((&face.over[1..], queues.held.len()), (&[(1, Outcome::Success)][..], 2));
    queues.receives.push_back(1);
    queues.take_held(&mut face, |_| false).unwrap();
    assert_eq!((&face.received[..], queues.held.len()), (&[(1, b'a')][..], 1));
    queues.receives.push_back(2);
    queues.receives.push_back(3);
    queues.take_held(&mut face, |_| false).unwrap();
    queues.arrives(&mut face, send, b"c").unwrap();
    assert_eq!(face.received, [(1, b'a'), (2, b'b'), (3, b'c')]);
}

#[test]
fn the_face_bounds_the_messages_that_wait() {
    for (messages, is_under_way, may_take_more) in
        [(0, false, true), (1, false, false), (2, true, true), (3, true, false)]
    {
        let (mut queues, mut face) = fake::<true>();
        if is_under_way {
            queues.sent(Op::default(), Stage::Reading);
        }
        for _ in 0..messages {
            queues.arrives(&mut face, Head::plain(frame::SEND), b"a").unwrap();
        }
        assert_eq!(queues.may_take_more(&face), may_take_more, "{messages}, {is_under_way}");
    }
}

/// Messages that wait at other end points of the NIC count, too.
#[test]
fn a_nic_bounds_the_bytes_that_wait() {
    for is_reliable in [true, false] {
        let (mut queues, mut face) = fake::<true>();
        face.is_reliable = is_reliable;
        queues.sent(Op::default(), Stage::Reading);
        let send = Head::plain(frame::SEND);
        let others = face.held.add(MAX_HELD_BYTES - 1, false).expect("room");
        queues.arrives(&mut face, send, b"a").unwrap();
        assert!(face.held.is_full() && !queues.may_take_more(&face), "what comes stays in the connection");
        let (mut second, _) = fake::<true>();
        let refused = if is_reliable { Err(End::Arrival(Reason::NoReceive)) } else { Ok(()) };
        assert_eq!((second.arrives(&mut face, send, b"b"), second.is_holding()), (refused, false));
        assert_eq!(second.hold(&mut face, Message::End(End::Closed)), Ok(()));
        drop(others);
        assert!(queues.may_take_more(&face) && !face.held.is_full());
    }
}

#[test]
fn messages_that_waited_are_taken_until_it_is_enough() {
    let (mut queues, mut face) = fake::<true>();
    for message in [b"a", b"b"] {
        queues.arrives(&mut face, Head::plain(frame::SEND), message).unwrap();
    }
    queues.receives.push_back(1);
    queues.receives.push_back(2);
    queues.take_arrivals(&mut face, |face| face.received.len() == 1).unwrap();
    assert_eq!((&face.received[..], queues.held.len()), (&[(1, b'a')][..], 1));
}

#[test]
fn a_message_that_may_not_wait_ends_a_reliable_connection_only() {
    for (is_reliable, first, later) in [
        (true, Err(End::Arrival(Reason::NoReceive)), Err(End::Arrival(Reason::NoReceive))),
        (false, Ok(()), Ok(())),
    ] {
        let (mut queues, mut face) = fake::<true>();
        face.is_reliable = is_reliable;
        queues.arrives(&mut face, Head::plain(frame::SEND), b"a").unwrap();
        face.is_patient = false;
        assert_eq!(queues.take_held(&mut face, |_| false), later, "it has waited for too long");
        queues.held.clear();
        assert_eq!(queues.arrives(&mut face, Head::plain(frame::SEND), b"a"), first);
        assert!(!queues.is_holding() && face.received.is_empty());
    }
}

#[test]
fn a_receipt_is_for_a_face_that_asks_for_it() {
    for (is_acknowledged, is_holding) in [(true, false), (true, true), (false, false), (false, true)] {
        let (mut queues, mut face) = fake::<true>();
        face.is_acknowledged = is_acknowledged;
        if is_holding {
            queues.arrives(&mut face, Head::plain(frame::SEND), b"a").unwrap();
        }
        let taken = queues.arrives(&mut face, Head::plain(frame::TAKEN), &0_u32.to_le_bytes());
        assert_eq!(taken, if is_acknowledged { Ok(()) } else { Err(End::Nonsense) });
    }
}

/// Returns the two ends of a connection, and the queues that they are connected with.
fn connected() -> (Vi, Vi, [Cq; 2]) {
    let fabric = udeck_sim::Fabric::new(1);
    let nics = ["a", "b"].map(|name| fabric.nic(name, udeck_sim::Options::default()).unwrap());
    let [mut asks, answers] = nics.each_ref().map(|nic| {
        Vi::new(nic, ViAttributes { receive: Receive::Lent, ..ViAttributes::new(nic.ptag()) }).unwrap()
    });
    let cqs = nics.each_ref().map(|nic| Cq::new(nic).unwrap());
    let [cq, answering_cq] = cqs.each_ref().map(Cq::handle);
    let (give, take) = mpsc::channel();
    let mut answers = Some(answers);
    let listener = Listener::with_handler(&nics[1], b"test", move |request| {
        let mut vi = answers.take().expect("asked once");
        request.accept(&mut vi, &answering_cq, &answering_cq, b"").unwrap();
        give.send(vi).unwrap();
    })
    .unwrap();
    let to = NetAddress { host: b"b".to_vec(), discriminator: b"test".to_vec() };
    asks.connect(&to, &cq, &cq, b"", Deadline::after(Duration::from_secs(60))).unwrap();
    drop(listener);
    (asks, take.recv().unwrap(), cqs)
}

#[test]
fn the_end_of_a_connection_waits_behind_messages_once() {
    let (vi, mut peer, _cqs) = connected();
    let (mut queues, mut face) = fake::<true>();
    queues.vi = Some(vi);
    queues.sent(Op::default(), Stage::Reading);
    peer.send_inline(Some(0), &Head::plain(frame::SEND).bytes(), b"a").unwrap();
    peer.disconnect();
    for _ in 0..3 {
        assert_eq!(queues.move_on(&mut face, |_| false), Ok(()));
    }
    assert_eq!(queues.held.len(), 2);
    queues.receives.push_back(1);
    assert_eq!(queues.move_on(&mut face, |_| false), Err(End::Closed));
    assert_eq!(face.received, [(1, b'a')]);
}

/// The peer first hears what was taken, so that it blames no such operation. Without room it hears of the end only.
#[test]
fn an_error_is_said_as_far_as_there_is_room() {
    const TAKEN: (u8, u32) = (frame::TAKEN, 3);
    const BROKEN: (u8, u32) = (frame::BROKEN, Reason::BadKey as u32);
    for said in [&[][..], &[TAKEN], &[TAKEN, BROKEN]] {
        let (vi, mut peer, _cqs) = connected();
        let (mut queues, _) = fake::<true>();
        let vi = queues.vi.insert(vi);
        while vi.send_inline(Some(0), &Head::plain(frame::SEND).bytes(), b"").is_ok() {}
        said.iter().for_each(|_| drop(peer.arrival().unwrap().unwrap()));
        queues.taken = 3;
        queues.say_broken(Reason::BadKey);
        queues.vi = None;
        let mut heard = Vec::new();
        let end = loop {
            match peer.arrival() {
                Ok(arrival) => link::with_frame(&arrival.expect("the end comes"), |first, _| {
                    heard.extend(frame::word(&first[frame::HEAD..]).map(|word| (first[0], word)));
                }),
                Err(end) => break end,
            };
        };
        assert!(matches!(end, Error::Closed), "{end}");
        assert_eq!(heard, said);
    }
}

proptest! {
    /// Each operation completes once, and in the order of the posts, whatever the peer says.
    #[test]
    fn each_operation_completes_once(
        steps in prop::collection::vec((0..6_u8, any::<bool>(), 0..3_u32), 0..40),
    ) {
        let (mut queues, mut face) = fake::<false>();
        let mut number = 0;
        for (step, flag, count) in steps {
            let op = Op { number, is_fenced: flag, ..Op::default() };
            number += usize::from(step < 3);
            let end = match step {
                0 => queues.post(&mut face, op),
                1 if !queues.has_unsent() => { queues.sent(op, Stage::Reading); Ok(()) }
                2 if !queues.has_unsent() => { queues.sent(op, Stage::Untaken); Ok(()) }
                1 | 2 => queues.post(&mut face, op),
                3 => queues.take_data(&mut face, &data(LEN + usize::from(flag))),
                4 => queues.take_taken(&mut face, &count.to_le_bytes()),
                _ => queues.send_waiting(&mut face),
            };
            if let Err(end) = end {
                queues.flush(&mut face, end.outcome());
                prop_assert_eq!(queues.posted(), 0);
            }
        }
        queues.flush(&mut face, Outcome::Flushed);
        prop_assert!(face.over.iter().map(|(number, _)| *number).eq(0..number));
    }
}

//! Random posts on both sides, at all levels, over streams that are cut at random places: everything arrives once and in
//! order, every held post ends once, and all memory comes home.

use std::collections::{HashMap, HashSet, VecDeque};

use proptest::prelude::*;
use udeck_via::Reliability;
use udeck_via::mem::{Block, Lent};
use udeck_via::transport::{
    Arrival, Body, Inline, Landed, PostedBuffer, Refused, TransferStatus, ViEndpoint,
};

use super::pair::{Pair, WINDOW, pattern};
use crate::MESSAGES;
use crate::framed::connection::Phase;

/// The lower half of a window is written, the upper one read.
const HALF: usize = WINDOW / 2;

#[derive(Clone, Debug)]
enum Op {
    Send { len: usize, immediate: Option<u32> },
    Lend { len: usize, pieces: usize, head: usize, immediate: Option<u32>, how: usize },
    Write { offset: usize, len: usize, immediate: Option<u32>, how: usize },
    Read { offset: usize, len: usize, how: usize },
    Fence,
    Take { keep: bool },
    TakeInto { room: usize, appetite: (usize, usize) },
    GiveBack { which: usize },
    Ended,
    Unread,
    Out { most: usize },
    In { most: usize, direct: usize },
    Acknowledge { from: u64 },
    Close,
    Drop,
    Lose,
}

/// End that may happen to a connection.
#[derive(Clone, Copy, PartialEq)]
enum Ends {
    Never,
    InOrder,
    ByLoss,
}

fn ops(ends: Ends) -> impl Strategy<Value = Vec<(usize, Op)>> {
    let len = prop_oneof![4 => 0..200usize, 2 => 0..20_000usize, 1 => 100_000..300_000usize];
    let immediate = any::<Option<u32>>();
    let how = 0..3usize;
    let most = prop_oneof![1..40usize, 1..500usize, 1..100_000usize];
    let op = prop_oneof![
        6 => (0..=Inline::CAPACITY, immediate.clone()).prop_map(|(len, immediate)| Op::Send { len, immediate }),
        6 => (len, 1..4usize, 0..=Inline::CAPACITY, immediate.clone(), how.clone()).prop_map(
            |(len, pieces, head, immediate, how)| Op::Lend { len, pieces, head, immediate, how }
        ),
        4 => (0..HALF, 0..HALF, immediate, how.clone()).prop_map(|(offset, len, immediate, how)| {
            Op::Write { offset, len: len.min(HALF - offset), immediate, how }
        }),
        4 => (0..HALF, 0..HALF, how)
            .prop_map(|(offset, len, how)| Op::Read { offset, len: len.min(HALF - offset), how }),
        1 => Just(Op::Fence),
        6 => any::<bool>().prop_map(|keep| Op::Take { keep }),
        5 => (prop_oneof![0..30_000usize, Just(300_000)], (0..100_000usize, 0..100_000usize))
            .prop_map(|(room, appetite)| Op::TakeInto { room, appetite }),
        3 => any::<usize>().prop_map(|which| Op::GiveBack { which }),
        3 => Just(Op::Ended),
        2 => Just(Op::Unread),
        10 => most.clone().prop_map(|most| Op::Out { most }),
        10 => (most, prop_oneof![Just(usize::MAX), 0..100_000usize])
            .prop_map(|(most, direct)| Op::In { most, direct }),
        3 => any::<u64>().prop_map(|from| Op::Acknowledge { from }),
        1 => prop_oneof![3 => Just(Op::Close), 1 => Just(Op::Drop)]
            .prop_map(move |op| match ends {
                Ends::Never => Op::Ended,
                Ends::InOrder => op,
                Ends::ByLoss => Op::Lose,
            }),
    ];
    prop::collection::vec((0..2usize, op), 1..250)
}

/// A message that the other side is to receive.
#[derive(Debug)]
struct Expected {
    immediate: Option<u32>,
    head: Vec<u8>,
    body: Vec<u8>,
    kind: Kind,
    caller: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Short,
    Lent,
    Written,
}

#[derive(Default)]
struct Model {
    /// Messages sent from here and not taken there.
    expected: VecDeque<Expected>,
    /// Posts that are not completed; for a read, with the bytes that it is to bring.
    held: HashMap<u64, (Block, Option<Vec<u8>>)>,
    /// Numbers of posts whose message was taken there, and is not read any more.
    done: HashSet<u64>,
    posted: u64,
    /// Content of the peer's window when all is written.
    shadow: Vec<u8>,
    /// The place for the next message.
    place: Option<Vec<u8>>,
    lents: Vec<(Lent, Vec<u8>, Option<u64>)>,
    closed: bool,
}

struct Run {
    pair: Pair,
    models: [Model; 2],
    level: Reliability,
    lost: bool,
}

impl Run {
    fn new(level: Reliability, acknowledged: bool) -> Self {
        let pair = Pair::new(level, acknowledged);
        let models = [0, 1].map(|side| {
            pair.ends[side].fill_window(&[vec![0; HALF], pattern(HALF, 77)].concat());
            Model { shadow: vec![0; HALF], ..Model::default() }
        });
        Run { pair, models, level, lost: false }
    }

    fn ended_by_anybody(&self) -> bool {
        self.models.iter().any(|model| model.closed)
    }

    fn held(
        &mut self,
        side: usize,
        how: usize,
        block: Block,
        read: Option<Vec<u8>>,
    ) -> (PostedBuffer, Option<u64>) {
        let model = &mut self.models[side];
        match how {
            0 => {
                let number = model.posted;
                model.posted += 1;
                model.held.insert(number, (block, read));
                (PostedBuffer::Caller(number), Some(number))
            }
            1 => (PostedBuffer::Block(block), None),
            _ => (PostedBuffer::Owner(Box::new(block)), None),
        }
    }

    fn was_refused(&mut self, side: usize, refused: &Refused, held: Option<&PostedBuffer>) {
        if let Some(PostedBuffer::Caller(number)) = held {
            self.models[side].held.remove(number).unwrap();
        }
        match refused {
            Refused::Busy => {}
            Refused::Closed => assert!(self.ended_by_anybody()),
            Refused::Lost(why) if self.lost => assert_eq!(why, "the cable was cut"),
            other => panic!("{other:?}"),
        }
    }

    fn apply(&mut self, side: usize, op: Op) {
        match op {
            Op::Out { most } => drop(self.pair.send(side, most)),
            Op::In { most, direct } => drop(self.pair.receive(side, most, direct)),
            Op::Acknowledge { from } => self.pair.acknowledge(side, from),
            Op::Lose => {
                self.lost = true;
                self.pair.ends[side].link.with(|connection, _| connection.lost("the cable was cut"));
            }
            Op::GiveBack { which } => self.give_back(side, which),
            _ if self.pair.ends[side].endpoint.is_none() => {}
            Op::Send { len, immediate } => self.send(side, len, immediate),
            Op::Lend { len, pieces, head, immediate, how } => {
                self.lend(side, len, pieces, head, immediate, how);
            }
            Op::Write { offset, len, immediate, how } => self.write(side, offset, len, immediate, how),
            Op::Read { offset, len, how } => self.read(side, offset, len, how),
            Op::Fence => self.pair.ends[side].endpoint().fence(),
            Op::Take { .. } if self.models[side].place.is_some() => self.take_into(side, 0, (0, 0)),
            Op::Take { keep } => drop(self.take(side, keep)),
            Op::TakeInto { room, appetite } => self.take_into(side, room, appetite),
            Op::Ended => self.ended(side),
            Op::Unread => match self.pair.ends[side].endpoint().unread() {
                Ok(unread) => assert!(unread <= MESSAGES),
                Err(refused) => self.was_refused(side, &refused, None),
            },
            Op::Close => {
                self.pair.ends[side].endpoint().close(None);
                self.close(side);
            }
            Op::Drop => self.drop_port(side),
        }
    }

    fn close(&mut self, side: usize) {
        self.models[side].closed = true;
        self.models[1 - side].expected.clear();
    }

    fn send(&mut self, side: usize, len: usize, immediate: Option<u32>) {
        let model = &mut self.models[side];
        let seed = model.posted;
        let bytes = pattern(len, seed);
        let (head, body) = bytes.split_at(len / 3);
        match self.pair.ends[side].endpoint().send(immediate, head, body) {
            Ok(()) => {
                model.posted += 1;
                let kind = Kind::Short;
                self.expect(side, Expected { immediate, head: Vec::new(), body: bytes, kind, caller: None });
            }
            Err(refused) => self.was_refused(side, &refused, None),
        }
    }

    fn expect(&mut self, side: usize, expected: Expected) {
        if !self.models[1 - side].closed {
            self.models[side].expected.push_back(expected);
        }
    }

    fn lend(
        &mut self,
        side: usize,
        len: usize,
        pieces: usize,
        head: usize,
        immediate: Option<u32>,
        how: usize,
    ) {
        let seed = self.models[side].posted + 1000;
        let block = self.pair.ends[side].block(len, seed);
        let cut = |at: usize| len * at / pieces;
        let segments: Vec<_> =
            (0..pieces).map(|at| (block.offset() + cut(at) as u64, cut(at + 1) - cut(at))).collect();
        let head = pattern(head, seed + 1);
        let (held, caller) = self.held(side, how, block, None);
        match self.pair.ends[side].endpoint().lend(immediate, &head, &segments, held) {
            Ok(()) => {
                let body = pattern(len, seed);
                self.expect(side, Expected { immediate, head, body, kind: Kind::Lent, caller });
            }
            Err((refused, held)) => self.was_refused(side, &refused, Some(&held)),
        }
    }

    fn write(&mut self, side: usize, offset: usize, len: usize, immediate: Option<u32>, how: usize) {
        let seed = self.models[side].posted + 2000;
        let block = self.pair.ends[side].block(len, seed);
        let segments = [(block.offset(), len / 2), (block.offset() + (len / 2) as u64, len - len / 2)];
        let to = self.pair.ends[1 - side].window(offset, len);
        let (held, caller) = self.held(side, how, block, None);
        match self.pair.ends[side].endpoint().rdma_write(&segments, to, immediate, held) {
            Ok(status) => {
                assert_eq!(status, None);
                let body = pattern(len, seed);
                self.models[side].shadow[offset..offset + len].copy_from_slice(&body);
                if immediate.is_some() {
                    let (head, kind) = (Vec::new(), Kind::Written);
                    self.expect(side, Expected { immediate, head, body, kind, caller });
                } else if let Some(number) = caller {
                    self.models[side].done.insert(number);
                }
            }
            Err((refused, held)) => self.was_refused(side, &refused, Some(&held)),
        }
    }

    fn read(&mut self, side: usize, offset: usize, len: usize, how: usize) {
        let block = self.pair.ends[side].block(len, 0);
        let segments: Vec<_> = (0..3usize)
            .map(|at| (block.offset() + (len * at / 3) as u64, len * (at + 1) / 3 - len * at / 3))
            .collect();
        let from = self.pair.ends[1 - side].window(HALF + offset, len);
        let expected = pattern(HALF, 77)[offset..offset + len].to_vec();
        let (held, caller) = self.held(side, how, block, Some(expected));
        match self.pair.ends[side].endpoint().rdma_read(&segments, from, held) {
            Ok(status) => {
                assert_eq!(status, None);
                self.models[side].done.extend(caller);
            }
            Err((Refused::Unsupported, held)) if self.level == Reliability::Unreliable => {
                self.was_refused(side, &Refused::Busy, Some(&held));
            }
            Err((refused, held)) => self.was_refused(side, &refused, Some(&held)),
        }
    }

    /// Takes one arrival. `Ok(false)`: there is none.
    fn take(&mut self, side: usize, keep: bool) -> Result<bool, Refused> {
        let Arrival { immediate, body } = match self.pair.ends[side].endpoint().receive() {
            Ok(Some(arrival)) => arrival,
            Ok(None) => return Ok(false),
            Err(refused) => {
                self.was_refused(side, &refused, None);
                let missing = &self.models[1 - side].expected;
                assert!(missing.is_empty() || self.lost, "the end came before {missing:?}");
                return Err(refused);
            }
        };
        let receipt = self.pair.ends[side].endpoint().receipt();
        let expected = self.models[1 - side].expected.pop_front().expect("something was sent");
        assert_eq!(immediate, expected.immediate);
        let caller = expected.caller;
        match (body, expected.kind) {
            (Body::Inline(bytes), Kind::Short) => assert_eq!(bytes.bytes(), expected.body),
            (Body::Written(len), Kind::Written) => {
                assert_eq!(len, expected.body.len());
                let awaited = caller.is_some() && self.level == Reliability::Reception;
                assert!(receipt.is_some() == awaited || self.lost);
                self.models[1 - side].done.extend(caller);
            }
            (Body::Lent(head, lent), Kind::Lent) => {
                assert_eq!(
                    (head.bytes(), lent.as_slice().unwrap()),
                    (&expected.head[..], &expected.body[..])
                );
                self.models[side].lents.push((lent, expected.body, caller));
                if !keep {
                    self.give_back(side, usize::MAX);
                }
            }
            (body, kind) => panic!("{body:?} came, not {kind:?}"),
        }
        Ok(true)
    }

    /// Receives as a VI does: with the same place, until something has landed.
    fn take_into(&mut self, side: usize, room: usize, appetite: (usize, usize)) {
        let mut place = self.models[side].place.take().unwrap_or_else(|| vec![0xEE; room]);
        let room = place.len();
        self.pair.ends[side].link.with(|_, driver| driver.appetite = appetite);
        let landed = self.pair.ends[side].endpoint().receive_into(&mut place);
        self.pair.ends[side].link.with(|_, driver| driver.appetite = (0, 0));
        let landed = match landed {
            Ok(Some(landed)) => landed,
            Ok(None) => return self.models[side].place = Some(place),
            Err(refused) => return self.was_refused(side, &refused, None),
        };
        let expected = self.models[1 - side].expected.pop_front().expect("something was sent");
        let caller = expected.caller;
        match landed {
            Landed::Copied { immediate, len } => {
                assert_eq!((immediate, len), (expected.immediate, expected.body.len()));
                let there = len.min(room);
                assert_eq!(place[..there], expected.body[..there]);
                assert!(expected.head.is_empty());
                self.models[1 - side].done.extend(caller);
            }
            Landed::Arrival(Arrival { body: Body::Lent(_, lent), .. }) => {
                assert!(!expected.head.is_empty() || lent.len() > room || lent.len() <= Inline::CAPACITY);
                self.models[side].lents.push((lent, expected.body, caller));
            }
            Landed::Arrival(Arrival { body: Body::Written(_), .. }) => {
                self.models[1 - side].done.extend(caller)
            }
            Landed::Arrival(other) => panic!("{other:?}"),
        }
    }

    fn give_back(&mut self, side: usize, which: usize) {
        let count = self.models[side].lents.len();
        if count == 0 {
            return;
        }
        let which = if which == usize::MAX { count - 1 } else { which % count };
        let (lent, body, caller) = self.models[side].lents.swap_remove(which);
        assert_eq!(lent.as_slice().unwrap(), body, "it changed while it was read");
        drop(lent);
        self.models[1 - side].done.extend(caller);
    }

    fn ended(&mut self, side: usize) {
        while let Some((number, status)) = self.pair.ends[side].endpoint().poll_completion() {
            let ended_by_anybody = self.ended_by_anybody();
            let model = &mut self.models[side];
            let (block, read) = model.held.remove(&number).expect("it ends once");
            match status {
                TransferStatus::Arrived => {
                    if let Some(expected) = read {
                        assert_eq!(block.bytes(), expected);
                    } else if self.level == Reliability::Reception {
                        assert!(model.done.contains(&number), "{number} is done before it was taken");
                    }
                }
                TransferStatus::Unread => assert!(ended_by_anybody),
                TransferStatus::Lost => assert!(self.lost),
                other => panic!("{other:?}"),
            }
        }
    }

    fn drop_port(&mut self, side: usize) {
        self.pair.ends[side].endpoint().leave();
        self.ended(side);
        self.close(side);
        for (number, (block, _)) in std::mem::take(&mut self.models[side].held) {
            self.pair.ends[side].endpoint().keep(number, Box::new(block)).expect("it is out");
        }
        self.pair.ends[side].endpoint = None;
    }

    /// Lets everything arrive and be taken.
    fn drain(&mut self) {
        loop {
            let mut any = self.pair.settle();
            for side in [0, 1] {
                while !self.models[side].lents.is_empty() {
                    self.give_back(side, 0);
                    any = true;
                }
                if self.pair.ends[side].endpoint.is_some() {
                    if self.models[side].place.is_some() && !self.models[side].closed {
                        self.take_into(side, 0, (0, 0));
                        any |= self.models[side].place.is_none();
                    }
                    let may_take = !self.models[side].closed && self.models[side].place.is_none();
                    while may_take && matches!(self.take(side, false), Ok(true)) {
                        any = true;
                    }
                    self.ended(side);
                }
            }
            if !any {
                return;
            }
        }
    }

    fn finish(mut self) {
        self.drain();
        if self.lost {
            (0..2).for_each(|side| self.apply(side, Op::Lose));
            self.drain();
        } else if !self.ended_by_anybody() {
            for side in [0, 1] {
                let _ = self.pair.ends[side].endpoint().unread();
            }
            self.drain();
            for side in [0, 1] {
                let model = &self.models[side];
                assert!(model.expected.is_empty(), "{:?} never came", model.expected);
                assert!(model.held.is_empty(), "no end of {:?}", model.held.keys());
                assert_eq!(self.pair.ends[1 - side].look(0, HALF), model.shadow);
                assert_eq!(self.pair.ends[side].endpoint().unread().unwrap(), 0);
            }
        }
        for side in [0, 1] {
            if let Some(endpoint) = &mut self.pair.ends[side].endpoint {
                endpoint.close(None);
            }
            self.close(side);
        }
        self.drain();
        for (side, abruptly) in [(0, true), (1, false)] {
            assert!(self.models[side].held.is_empty(), "no end of {:?}", self.models[side].held.keys());
            let end = &mut self.pair.ends[side];
            let abruptly = abruptly || self.lost;
            assert_eq!(end.phase(), Phase::Over { abruptly }, "{:?}", end.link);
            end.endpoint = None;
            let left = end.memory.outbox.usage();
            assert_eq!((left.used, left.blocks), (0, 0), "memory is not home");
            end.windows.revoke(end.window, udeck_via::Deadline::now()).unwrap();
        }
    }
}

fn level() -> impl Strategy<Value = Reliability> {
    prop_oneof![Just(Reliability::Unreliable), Just(Reliability::Delivery), Just(Reliability::Reception)]
}

proptest! {
    #[test]
    fn everything_arrives_once_and_in_order(
        level in level(), acknowledged in any::<bool>(), ops in ops(Ends::Never)
    ) {
        let mut run = Run::new(level, acknowledged);
        ops.into_iter().for_each(|(side, op)| run.apply(side, op));
        run.finish();
    }

    #[test]
    fn what_was_sent_before_an_end_arrives_and_everything_ends(
        level in level(), acknowledged in any::<bool>(), ops in ops(Ends::InOrder)
    ) {
        let mut run = Run::new(level, acknowledged);
        ops.into_iter().for_each(|(side, op)| run.apply(side, op));
        run.finish();
    }

    #[test]
    fn everything_ends_when_the_stream_breaks(
        level in level(), acknowledged in any::<bool>(), ops in ops(Ends::ByLoss)
    ) {
        let mut run = Run::new(level, acknowledged);
        ops.into_iter().for_each(|(side, op)| run.apply(side, op));
        run.finish();
    }
}

//! Unreliable messages between two ends that share a wild network, in virtual time: each arrives whole and right, or its
//! sender gives it up; once; and nothing has to time out for that.

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::{Path, Random, byte, seeds};
use udeck_session::Content;
use udeck_udp::flow::{Flow, Names, Options};
use udeck_udp::pieces::{Assembly, Departed, Limits, Message};
use udeck_udp::wire::{Kind, Packet, Piece, open};

const LENT: Content = Content::Message { immediate: Some(7), lent: true, head: 0 };
/// What may be under way and not over.
const MESSAGES: u64 = 256;

struct Sender {
    flow: Flow,
    departed: Departed,
    /// The message that goes next, and how much of it has gone.
    next: u64,
    at: u32,
}

struct Receiver {
    flow: Flow,
    assembly: Assembly<Vec<u8>>,
    got: Vec<u32>,
    missed: Vec<u32>,
}

struct Net {
    start: Instant,
    now: Instant,
    paths: [Path; 2],
    random: Random,
    under_way: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    count: u64,
    lengths: Vec<u32>,
    sender: Sender,
    receiver: Receiver,
    /// What the stream would have told the receiver, and when that arrives.
    told: BTreeMap<Instant, u64>,
}

impl Net {
    fn new(mut random: Random, lengths: Vec<u32>, wild: bool, limits: Limits) -> Self {
        let now = Instant::now();
        let options = Options { max_datagram: 8952, ..Options::default() };
        let path = |random: &mut Random| match wild {
            true => Path::wild(random),
            false => Path::new(Duration::from_micros(50)),
        };
        let paths = [path(&mut random), path(&mut random)];
        let flow = |names| Flow::new(now, names, &options);
        let sender = Sender {
            flow: flow(Names { ours: 0xa, theirs: 0xb }),
            departed: Departed::default(),
            next: 0,
            at: 0,
        };
        let count = lengths.len();
        let receiver = Receiver {
            flow: flow(Names { ours: 0xb, theirs: 0xa }),
            assembly: Assembly::new(limits),
            got: vec![0; count],
            missed: vec![0; count],
        };
        let (under_way, told) = (BTreeMap::new(), BTreeMap::new());
        Net { start: now, now, paths, random, under_way, count: 0, lengths, sender, receiver, told }
    }

    fn over(&self, number: u64) -> bool {
        let at = number as usize;
        self.receiver.got[at] + self.receiver.missed[at] > 0
    }

    fn all_over(&self) -> bool {
        (0..self.lengths.len() as u64).all(|number| self.over(number))
    }

    /// The first message that is not over: what the sender's credits hang on.
    fn base(&self) -> u64 {
        (0..self.lengths.len() as u64).find(|&number| !self.over(number)).unwrap_or(self.lengths.len() as u64)
    }

    fn carry(&mut self, from: usize, mut datagram: Vec<u8>) {
        for due in self.paths[from].carry(&mut self.random, self.now, &mut datagram) {
            self.count += 1;
            self.under_way.insert((due, self.count), (1 - from, datagram.clone()));
        }
    }

    fn send(&mut self) {
        let end = self.base() + MESSAGES;
        while self.sender.next < (self.lengths.len() as u64).min(end) {
            let Sender { flow, departed, next, at } = &mut self.sender;
            let total = self.lengths[*next as usize];
            let Some(cut) = flow.cut(*at, total, &LENT) else { break };
            let mut header = flow.piece(self.now, *next, &cut, &LENT, false);
            let payload: Vec<u8> = cut.range.clone().map(|at| byte(*next, at.into())).collect();
            header.seal([&payload[..]]);
            let datagram = [header.bytes(), &payload].concat();
            assert_eq!(datagram.len(), cut.size);
            assert!(cut.size <= flow.datagram(), "longer than the path carries");
            let whole = cut.range.end == total;
            departed.left(*next, whole);
            (*next, *at) = if whole { (*next + 1, 0) } else { (*next, cut.range.end) };
            self.carry(0, datagram);
        }
        for end in 0..2 {
            let now = self.now;
            while let Some(mut transmit) = self.flow(end).transmit(now) {
                let padding = vec![0; transmit.padding];
                transmit.header.seal([&padding[..]]);
                self.carry(end, [transmit.header.bytes(), &padding].concat());
            }
        }
    }

    fn flow(&mut self, end: usize) -> &mut Flow {
        if end == 0 { &mut self.sender.flow } else { &mut self.receiver.flow }
    }

    fn arrive(&mut self, end: usize, datagram: &[u8]) {
        let now = self.now;
        let Ok(opened) = open(datagram) else { return };
        if opened.kind == Kind::Packet {
            let packet = Packet::decode(&opened).expect("as it was sent");
            let _ = self.flow(end).receive(now, &packet, &mut |_| panic!("nothing is in the stream"));
            return;
        }
        let end_of_numbers = self.base() + MESSAGES;
        let piece = Piece::decode(&opened).expect("as it was sent");
        let receiver = &mut self.receiver;
        if receiver.flow.receive_piece(now, &piece).is_err() {
            return;
        }
        assert_eq!(piece.content, LENT);
        let got = receiver.assembly.receive(now, &piece, end_of_numbers, |_, len| Some(vec![0; len]));
        let number = piece.message;
        let bytes = match got {
            Ok(Some(Message::Whole(bytes))) => bytes.to_vec(),
            Ok(Some(Message::Assembled(bytes))) => bytes,
            Ok(None) | Err(_) => return self.miss(),
        };
        assert_eq!(bytes.len(), self.lengths[number as usize] as usize);
        assert!(
            bytes.iter().enumerate().all(|(at, have)| *have == byte(number, at as u64)),
            "message {number}"
        );
        self.receiver.got[number as usize] += 1;
        self.miss();
    }

    fn miss(&mut self) {
        while let Some((number, _)) = self.receiver.assembly.next_missed() {
            self.receiver.missed[number as usize] += 1;
        }
    }

    fn settle(&mut self) {
        let Sender { flow, departed, .. } = &mut self.sender;
        while let Some((message, lost)) = flow.next_settled() {
            departed.settled(message, lost);
        }
        if let Some(upto) = departed.given_up() {
            // By the stream, which is late but loses nothing.
            self.told.insert(self.now + 3 * self.paths[0].latency, upto);
        }
        assert!(departed.len() <= MESSAGES as usize + 1);
    }

    fn run(&mut self, limit: Duration) {
        self.send();
        while !self.all_over() {
            let arrival = self.under_way.first_key_value().map(|(key, _)| key.0);
            let told = self.told.first_key_value().map(|(at, _)| *at);
            let timers = [self.sender.flow.timer(), self.receiver.flow.timer()];
            let next = [arrival, told].into_iter().chain(timers).flatten().min().expect("somebody waits");
            self.now = self.now.max(next);
            assert!(self.now - self.start < limit, "not all over: {:?}", self.sender.flow.stats());
            while let Some(entry) = self.under_way.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (end, datagram) = entry.remove();
                self.arrive(end, &datagram);
            }
            while let Some(entry) = self.told.first_entry().filter(|entry| *entry.key() <= self.now) {
                let upto = entry.remove();
                self.receiver.assembly.give_up(self.now, upto);
                self.miss();
            }
            for end in 0..2 {
                let now = self.now;
                if self.flow(end).timer().is_some_and(|timer| timer <= now) {
                    self.flow(end).time(now);
                }
            }
            self.settle();
            self.send();
        }
        assert_eq!((self.receiver.assembly.len(), self.receiver.assembly.bytes()), (0, 0));
        let once = |(got, missed): (&u32, &u32)| got + missed == 1;
        assert!(self.receiver.got.iter().zip(&self.receiver.missed).all(once), "arrived or missed, once");
    }

    fn arrived(&self) -> usize {
        self.receiver.got.iter().filter(|got| **got == 1).count()
    }
}

fn limits() -> Limits {
    // Far beyond any run: what is missed is missed because its sender gave it up.
    Limits { patience: Duration::from_secs(1 << 20), ..Limits::default() }
}

fn lengths(random: &mut Random, count: usize) -> Vec<u32> {
    let longest = random.pick(&[1, 500, 5000, 50_000]);
    (0..count).map(|_| random.below(longest) as u32).collect()
}

#[test]
fn a_quiet_network_loses_nothing() {
    seeds(40, |mut random| {
        let lengths = lengths(&mut random, 1000);
        let mut net = Net::new(random, lengths, false, limits());
        net.run(Duration::from_secs(60));
        assert_eq!(net.arrived(), 1000);
    });
}

/// Loss, doubling and disorder of up to a fifth of the datagrams each, and spoilt ones; paths that carry less.
#[test]
fn on_a_wild_network_each_message_arrives_or_is_given_up() {
    let (mut arrived, mut all) = (0, 0);
    let counts = std::sync::Mutex::new((&mut arrived, &mut all));
    seeds(400, |mut random| {
        let lengths = lengths(&mut random, 300);
        let mut net = Net::new(random, lengths, true, limits());
        net.run(Duration::from_secs(3600));
        let mut counts = counts.lock().unwrap();
        *counts.0 += net.arrived();
        *counts.1 += net.lengths.len();
    });
    println!("{arrived} of {all} messages arrived");
    assert!(arrived * 2 > all || std::env::var("DECK_UDP_SEED").is_ok(), "{arrived} of {all} only");
}

/// The window that was lost last is told of, too, although nothing comes behind it.
#[test]
fn the_last_message_is_not_waited_for_in_vain() {
    seeds(100, |random| {
        let mut net = Net::new(random, vec![100; 10], false, limits());
        net.paths[0].lose = 0.5;
        net.run(Duration::from_secs(600));
    });
}

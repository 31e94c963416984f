//! A peer that knows the connection's number and sends what it likes: nothing panics, memory stays bounded, and what is
//! asked of the user stays within what it has.

mod common;

use std::time::{Duration, Instant};

use common::{Random, byte, seeds};
use udeck_udp::flow::{Flow, LEAST_WINDOW, Names, Options};
use udeck_udp::wire::{AckRanges, Flags, NUMBERS, Packet, PacketHeader, open, seal};

const NAMES: Names = Names { ours: 0xa, theirs: 0xb };
const OFFERED: u64 = 3 << 20;

/// The end under attack.
struct Victim {
    flow: Flow,
    now: Instant,
    delivered: u64,
    /// The last packets that it sent.
    sent: Vec<Vec<u8>>,
}

impl Victim {
    fn new(random: &mut Random) -> Self {
        let now = Instant::now();
        let options = Options { window: LEAST_WINDOW << random.below(3), ..Options::default() };
        let mut flow = Flow::new(now, NAMES, &options);
        flow.offer(OFFERED);
        Victim { flow, now, delivered: 0, sent: Vec::new() }
    }

    /// A datagram comes, and time passes.
    fn suffer(&mut self, datagram: &[u8], pause: Duration) {
        if let Ok(packet) = open(datagram).and_then(|opened| Packet::decode(&opened)) {
            let delivered = &mut self.delivered;
            let _ = self.flow.receive(self.now, &packet, &mut |bytes| *delivered += bytes.len() as u64);
        }
        assert_eq!(self.flow.delivered(), self.delivered);
        self.now += pause;
        if self.flow.timer().is_some_and(|timer| timer <= self.now) {
            self.flow.time(self.now);
        }
        let mut burst = 0;
        while let Some(transmit) = self.flow.transmit(self.now) {
            burst += 1;
            assert!(burst < 10_000, "it never stops sending");
            assert!(transmit.range.is_empty() || transmit.range.start >= self.flow.released());
            assert!(transmit.range.end <= OFFERED);
            if self.sent.len() < 64 {
                self.sent.push(self.whole(transmit));
            }
        }
        let holds = self.flow.holdings();
        assert!(holds.packets <= 4096 && holds.ranges <= 32, "{holds:?}");
        assert!(
            holds.outgoing <= 8192 && holds.incoming <= 1024 && holds.bytes <= LEAST_WINDOW << 2,
            "{holds:?}"
        );
        assert!(self.flow.timer().is_none_or(|timer| timer > self.now), "its timer would never rest");
    }

    fn whole(&self, mut transmit: udeck_udp::flow::Transmit) -> Vec<u8> {
        let payload: Vec<_> = transmit.range.clone().map(|at| byte(0, at)).collect();
        let padding = vec![0; transmit.padding];
        transmit.header.seal([&payload[..], &padding[..]]);
        [transmit.header.bytes(), &payload, &padding].concat()
    }
}

fn pause(random: &mut Random) -> Duration {
    Duration::from_micros(random.pick(&[0, 1, 100, 5000, 100_000]))
}

/// A number near `at`, or anywhere.
fn near(random: &mut Random, at: u64, spread: u64) -> u64 {
    match random.below(20) {
        0 => random.below(NUMBERS),
        1 => random.pick(&[0, 1, NUMBERS - 1, NUMBERS - 2, u64::from(u32::MAX)]),
        _ => (at + random.below(2 * spread)).saturating_sub(spread),
    }
}

/// A packet that only its checksum makes good.
fn forged(random: &mut Random, number: u64, victim: &Flow) -> Vec<u8> {
    let payload = vec![7; random.pick(&[0, 0, 1, 1, 1, 100, 1400])];
    let flags = random.below(16) as u8;
    let packet = Packet {
        connection: NAMES.ours,
        number: near(random, number, 40),
        offset: near(random, victim.delivered(), 70_000).min(NUMBERS - 2000),
        window: near(random, 1 << 20, 1 << 20),
        flags: Flags { ping: flags & 1 != 0, probe: flags & 2 != 0, close: false, last: flags & 8 != 0 },
        acks: None,
        payload: &[],
    };
    let mut top = near(random, victim.stats().sent.saturating_sub(1), 4);
    let mut ranges = Vec::new();
    for _ in 0..random.below(33) {
        let length = random.below(4);
        let Some(low) = top.checked_sub(length) else { break };
        ranges.push(low..=top);
        let Some(next) = low.checked_sub(2 + random.below(4)) else { break };
        top = next;
    }
    let delay = Duration::from_micros(random.next() >> 30);
    let acks = (!ranges.is_empty()).then(|| AckRanges { delay, ranges: ranges.into_iter() });
    let mut header = PacketHeader::new(&packet, acks);
    header.seal([&payload[..]]);
    [header.bytes(), &payload].concat()
}

#[test]
fn prop_forged_packets_do_no_harm() {
    seeds(100, |mut random| {
        let mut victim = Victim::new(&mut random);
        for number in 0..3000 {
            let datagram = forged(&mut random, number, &victim.flow);
            victim.suffer(&datagram, pause(&mut random));
        }
    });
}

/// One byte at a time, every other one, without end: the most gaps for the least effort, in both directions.
#[test]
fn the_worst_gaps_take_bounded_memory() {
    let mut victim = Victim::new(&mut Random::new(1));
    for number in 0..5000 {
        let window = OFFERED;
        let packet = Packet {
            connection: NAMES.ours,
            number: 2 * number,
            offset: 1 + 2 * number,
            window,
            flags: Flags::default(),
            acks: None,
            payload: &[],
        };
        let sent = victim.flow.stats().sent;
        let every_other = (0..sent).rev().skip(1).step_by(2).take(32).map(|number| number..=number);
        let acks = (sent > 2).then_some(AckRanges { delay: Duration::ZERO, ranges: every_other });
        let mut header = PacketHeader::new(&packet, acks);
        header.seal([&[1][..]]);
        victim.suffer(&[header.bytes(), &[1]].concat(), Duration::from_micros(10));
    }
    assert_eq!(victim.flow.holdings().incoming, 1024, "the bound was reached");
    assert!(victim.flow.stats().ignored > 3000);
}

#[test]
fn prop_mutated_datagrams_do_no_harm() {
    seeds(200, |mut random| {
        let mut victim = Victim::new(&mut random);
        // What it sends itself, turned round, is a good start.
        victim.suffer(&[], Duration::ZERO);
        for _ in 0..300 {
            let at = random.below(victim.sent.len() as u64) as usize;
            let mut datagram = victim.sent[at].clone();
            datagram[8..16].copy_from_slice(&NAMES.ours.to_le_bytes());
            for _ in 0..random.below(6) {
                let at = random.below(datagram.len().min(100) as u64) as usize;
                let any = random.next() as u8;
                datagram[at] = random.pick(&[0, 1, 0xff, 0x80, any]);
            }
            if random.chance(0.2) {
                datagram.truncate(random.below(datagram.len() as u64) as usize);
            }
            if datagram.len() >= 16 && random.chance(0.9) {
                seal(&mut datagram, []);
            }
            victim.suffer(&datagram, pause(&mut random));
        }
    });
}

#[test]
fn prop_random_bytes_do_no_harm() {
    seeds(200, |mut random| {
        let mut victim = Victim::new(&mut random);
        for _ in 0..200 {
            let mut datagram: Vec<_> = (0..random.below(400)).map(|_| random.next() as u8).collect();
            if datagram.len() >= 16 {
                let ranges = random.below(40) as u8;
                datagram[..4].copy_from_slice(&[1, 1, random.below(17) as u8, ranges]);
                datagram[8..16].copy_from_slice(&NAMES.ours.to_le_bytes());
                for number in datagram[16..].chunks_exact_mut(8).take(4) {
                    if random.chance(0.8) {
                        number[2..].fill(0);
                    }
                }
                seal(&mut datagram, []);
            }
            victim.suffer(&datagram, pause(&mut random));
        }
    });
}

#[test]
fn who_acknowledges_what_was_not_sent_is_ignored() {
    let mut victim = Victim::new(&mut Random::new(1));
    victim.suffer(&[], Duration::ZERO);
    let sent = victim.flow.stats().sent;
    let mut ack = |number, largest: u64| {
        let (flags, acks) =
            (Flags::default(), Some(AckRanges { delay: Duration::ZERO, ranges: [0..=largest].into_iter() }));
        let packet =
            Packet { connection: NAMES.ours, number, offset: 0, window: 0, flags, acks: None, payload: &[] };
        let mut header = PacketHeader::new(&packet, acks);
        header.seal([]);
        victim.suffer(header.bytes(), Duration::ZERO);
        victim.flow.released()
    };
    assert_eq!(ack(0, sent), 0, "all that was sent, and one more");
    assert!(ack(1, sent - 1) > 0);
}

//! Two ends, and what they promise, checked at every step.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use udeck_udp::flow::{Flow, Names, Options, State, Transmit};
use udeck_udp::wire::{Packet, open};

use super::{Path, Random};

/// Byte `at` of a stream.
pub fn byte(stream: u64, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ stream as u8
}

#[derive(Debug)]
pub struct End {
    pub flow: Flow,
    /// Up to where it has bytes.
    pub offered: u64,
    /// Bytes handed on at this end.
    pub got: u64,
    /// It does not run before.
    pub stopped: Option<Instant>,
    /// Datagrams that it has sent, and their bytes.
    pub sent: (u64, u64),
    /// Its peer is known to be there, however silent.
    pub excuses: bool,
    window: usize,
}

#[derive(Debug)]
pub struct Pair {
    pub start: Instant,
    pub now: Instant,
    pub ends: [End; 2],
    /// `paths[n]` leads away from `ends[n]`.
    pub paths: [Path; 2],
    pub random: Random,
    under_way: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    datagrams: u64,
}

impl Pair {
    pub fn new(random: Random, paths: [Path; 2], options: [Options; 2]) -> Self {
        let now = Instant::now();
        let end = |names, options: &Options| End {
            flow: Flow::new(now, names, options),
            offered: 0,
            got: 0,
            stopped: None,
            sent: (0, 0),
            excuses: false,
            window: options.window.next_power_of_two(),
        };
        let ends = [
            end(Names { ours: 0xa, theirs: 0xb }, &options[0]),
            end(Names { ours: 0xb, theirs: 0xa }, &options[1]),
        ];
        Pair { start: now, now, ends, paths, random, under_way: BTreeMap::new(), datagrams: 0 }
    }

    /// Two equal ends, and the same way there as back.
    pub fn even(random: Random, path: &Path, options: &Options) -> Self {
        Pair::new(random, [path.clone(), path.clone()], [options.clone(), options.clone()])
    }

    pub fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// `bytes` more to send at an end.
    pub fn offer(&mut self, end: usize, bytes: u64) {
        self.ends[end].offered += bytes;
        let offered = self.ends[end].offered;
        self.ends[end].flow.offer(offered);
        self.send(end);
    }

    /// All that was offered has arrived, and is known to have.
    pub fn is_quiet(&self) -> bool {
        let [a, b] = &self.ends;
        a.got == b.offered
            && b.got == a.offered
            && [a, b].iter().all(|end| end.flow.released() == end.offered)
    }

    /// Goes on until `done`; false when that is not so after `limit`.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&Pair) -> bool) -> bool {
        let end = self.now + limit;
        while !done(self) {
            if !self.step(end) {
                return done(self);
            }
        }
        true
    }

    /// Until everything has arrived.
    pub fn settle(&mut self, limit: Duration) {
        let quiet = self.run(limit, Pair::is_quiet);
        assert!(quiet, "not all arrived within {limit:?}: {self:#?}");
    }

    /// To the next moment at which something happens, if one comes before `end`; else to `end`.
    pub fn step(&mut self, end: Instant) -> bool {
        let arrival = self.under_way.first_key_value().map(|(key, _)| key.0);
        let timers = self.ends.each_ref().map(|end| {
            let timer = end.flow.timer()?;
            Some(end.stopped.map_or(timer, |until| timer.max(until)))
        });
        let next = [arrival, timers[0], timers[1]].into_iter().flatten().min();
        let Some(next) = next.filter(|next| *next <= end) else {
            self.now = end;
            return false;
        };
        self.now = self.now.max(next);
        self.arrive();
        for end in 0..2 {
            if self.ends[end].flow.timer().is_some_and(|timer| timer <= self.now) && self.runs(end) {
                let End { flow, excuses, .. } = &mut self.ends[end];
                if *excuses && flow.is_silent(self.now) {
                    flow.excuse(self.now);
                }
                flow.time(self.now);
                self.send(end);
                let timer = self.ends[end].flow.timer();
                assert!(timer.is_none_or(|timer| timer > self.now), "its timer would never rest: {self:#?}");
            }
        }
        self.check();
        true
    }

    fn runs(&self, end: usize) -> bool {
        self.ends[end].stopped.is_none_or(|until| until <= self.now)
    }

    fn arrive(&mut self) {
        while let Some(entry) = self.under_way.first_entry() {
            if entry.key().0 > self.now {
                return;
            }
            let (seq, (to, datagram)) = (entry.key().1, entry.remove());
            if !self.runs(to) {
                // It waits in the socket.
                let until = self.ends[to].stopped.unwrap_or(self.now);
                self.under_way.insert((until, seq), (to, datagram));
                continue;
            }
            let End { flow, got, .. } = &mut self.ends[to];
            let Ok(opened) = open(&datagram) else { continue };
            let packet = Packet::decode(&opened).expect("only bits turn over, and the checksum finds them");
            let stream = 1 - to as u64;
            let _ = flow.receive(self.now, &packet, &mut |bytes| {
                assert!(!bytes.is_empty());
                for have in bytes {
                    assert_eq!(*have, byte(stream, *got), "byte {got} of stream {stream}");
                    *got += 1;
                }
            });
            assert_eq!(flow.delivered(), *got);
            self.send(to);
        }
    }

    fn send(&mut self, from: usize) {
        while let Some(transmit) = self.ends[from].flow.transmit(self.now) {
            let mut datagram = self.datagram(from, transmit);
            let (count, bytes) = self.ends[from].sent;
            self.ends[from].sent = (count + 1, bytes + datagram.len() as u64);
            for due in self.paths[from].carry(&mut self.random, self.now, &mut datagram) {
                self.datagrams += 1;
                self.under_way.insert((due, self.datagrams), (1 - from, datagram.clone()));
            }
        }
    }

    fn datagram(&self, from: usize, mut transmit: Transmit) -> Vec<u8> {
        let end = &self.ends[from];
        assert!(
            transmit.range.start >= end.flow.released() || transmit.range.is_empty(),
            "what was released"
        );
        assert!(transmit.range.end <= end.offered, "what there is not");
        let payload: Vec<u8> = transmit.range.clone().map(|at| byte(from as u64, at)).collect();
        let padding = vec![0; transmit.padding];
        transmit.header.seal([&payload[..], &padding[..]]);
        let datagram = [transmit.header.bytes(), &payload, &padding].concat();
        assert_eq!(datagram.len(), transmit.size());
        assert!(
            transmit.padding > 0 || datagram.len() <= end.flow.datagram(),
            "longer than the path carries"
        );
        datagram
    }

    fn check(&self) {
        for end in &self.ends {
            let holds = end.flow.holdings();
            assert!(holds.packets <= 4096 && holds.ranges <= 32, "{holds:?}");
            assert!(
                holds.outgoing <= 8192 && holds.incoming <= 1024 && holds.bytes <= end.window,
                "{holds:?}"
            );
        }
    }

    pub fn states(&self) -> [State; 2] {
        self.ends.each_ref().map(|end| end.flow.state())
    }
}

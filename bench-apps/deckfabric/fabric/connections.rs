//! Connections that send packets at constant rates, and the quality that they get: delay by deadline, jitter, and the
//! best and the worst connection.
//!
//! A delay begins in the output buffer of the host: there a lane has places for a number of packets, and a packet that
//! finds them taken waits outside, in the program's memory, which is not counted.
//!
//! Packets of a connection have one route and one lane, so they leave and arrive in their order. Therefore the time of a
//! packet's post follows from its number.

use crate::workload::{Actions, Post, Workload};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::collections::VecDeque;

/// Divisors of the deadline: for each, the packets are counted that arrive within that part of it.
pub const PARTS: [f64; 6] = [10_000.0, 3000.0, 1000.0, 100.0, 10.0, 1.0];
/// Bounds of the jitter's intervals, in parts of the time between two packets of a connection.
pub const JITTER: [f64; 8] = [-1.0, -0.5, -0.25, -0.125, 0.125, 0.25, 0.5, 1.0];
/// Number of packets from which on a connection may be the best or the worst one.
const ENOUGH: u32 = 20;

/// A connection that sends packets at equal distances in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Connection {
    /// Number of the sending host.
    pub from: u32,
    /// Number of the receiving host.
    pub to: u32,
    /// Service level.
    pub level: u8,
    /// Cycles from one packet to the next one.
    pub gap: f64,
    /// Cycles from a packet's place in the host's output buffer to its last flit's arrival that are not too many.
    pub deadline: f64,
}

/// State of a connection.
#[derive(Clone, Debug)]
struct State {
    /// Time of the next post.
    next: f64,
    /// Time of the post of the packet that leaves next.
    leaves: f64,
    /// Cycles at which the packets under way came into the host's output buffer.
    under_way: VecDeque<u64>,
    /// Delay of the packet that has arrived last.
    last: Option<f64>,
    packets: u32,
    /// Number of packets that arrived within the smallest part of the deadline.
    early: u32,
}

/// Delays and jitter of a level's packets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quality {
    /// Number of connections.
    pub connections: u32,
    /// Number of packets that arrived.
    pub packets: u64,
    /// Number of packets that arrived within each part of the deadline.
    pub within: [u64; PARTS.len()],
    /// Largest delay, in parts of the deadline.
    pub longest: f64,
    /// Sum of the delays in cycles.
    pub cycles: f64,
    /// Number of differences of the delays of two consecutive packets, by interval.
    pub jitter: [u64; JITTER.len() + 1],
    /// Part of the packets that arrived within the smallest part of the deadline: of the connection with the fewest,
    /// and of the one with the most.
    pub worst_and_best: Option<(f64, f64)>,
}

impl Quality {
    /// Number of packets that came after their deadline.
    pub fn late(&self) -> u64 {
        self.packets - self.within[PARTS.len() - 1]
    }
}

/// Connections as a workload. A class of the measures is a level.
pub struct Connections {
    /// Flits of each packet.
    flits: u32,
    /// Packets for which a lane of a host's output buffer has room.
    buffer: usize,
    all: Vec<Connection>,
    states: Vec<State>,
    /// Cycles at which the last packets have left a host's lane, as many as its buffer has places, by host and level.
    left: Vec<VecDeque<u64>>,
    quality: Vec<Quality>,
}

impl Connections {
    /// Makes a workload of connections whose packets have `flits` flits, from hosts whose output buffers have room for `buffer`
    /// packets of a lane. Each connection begins at a random time within its gap.
    pub fn new(all: Vec<Connection>, flits: u32, buffer: usize, seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let state = |connection: &Connection| {
            let first = connection.gap * random.random::<f64>();
            State { next: first, leaves: first, under_way: VecDeque::new(), last: None, packets: 0, early: 0 }
        };
        let states = all.iter().map(state).collect();
        let levels = all.iter().map(|connection| connection.level + 1).max().unwrap_or(1);
        let hosts = all.iter().map(|connection| connection.from as usize + 1).max().unwrap_or(0);
        let left = vec![VecDeque::new(); hosts * usize::from(levels)];
        Self { flits, buffer, states, quality: vec![Quality::default(); usize::from(levels)], all, left }
    }

    /// Restarts the counts: the packets before were warming up.
    pub fn restart(&mut self) {
        self.quality.fill(Quality::default());
        self.states.iter_mut().for_each(|state| (state.packets, state.early) = (0, 0));
    }

    /// Number of service levels, from 0.
    pub fn levels(&self) -> u8 {
        self.quality.len() as u8
    }

    /// Returns the quality of each level, from 0.
    pub fn quality(&self) -> Vec<Quality> {
        let mut all = self.quality.clone();
        for (connection, state) in self.all.iter().zip(&self.states) {
            let level = &mut all[usize::from(connection.level)];
            level.connections += 1;
            if state.packets >= ENOUGH {
                let part = f64::from(state.early) / f64::from(state.packets);
                let (worst, best) = level.worst_and_best.unwrap_or((part, part));
                level.worst_and_best = Some((worst.min(part), best.max(part)));
            }
        }
        all
    }
}

/// Cycle in which a packet is posted that is due at a time.
fn cycle(due: f64) -> u64 {
    due as u64 + 1
}

impl Workload for Connections {
    fn classes(&self) -> Vec<String> {
        (0..self.quality.len()).map(|level| format!("level {level}")).collect()
    }

    fn begin(&mut self, actions: &mut Actions) {
        (0..).zip(&self.states).for_each(|(token, state)| actions.at(cycle(state.next), token));
    }

    fn timer(&mut self, _: u64, token: u32, actions: &mut Actions) {
        let Connection { from, to, level, gap, .. } = self.all[token as usize];
        actions.post(Post { from, to, flits: self.flits, level, class: level, token });
        let state = &mut self.states[token as usize];
        state.next += gap;
        actions.at(cycle(state.next), token);
    }

    fn sent(&mut self, left: u64, token: u32, _: &mut Actions) {
        let Connection { from, level, gap, .. } = self.all[token as usize];
        let levels = self.quality.len();
        let all_left = &mut self.left[from as usize * levels + usize::from(level)];
        let has_room = if all_left.len() < self.buffer { 0 } else { all_left.pop_front().unwrap_or(0) };
        all_left.push_back(left);
        let state = &mut self.states[token as usize];
        state.under_way.push_back(has_room.max(cycle(state.leaves)));
        state.leaves += gap;
    }

    fn delivered(&mut self, now: u64, token: u32, _: &mut Actions) {
        let Connection { level, gap, deadline, .. } = self.all[token as usize];
        let state = &mut self.states[token as usize];
        let buffered = state.under_way.pop_front().expect("a packet has left before it arrives");
        let delay = (now - buffered) as f64;
        let quality = &mut self.quality[usize::from(level)];
        quality.packets += 1;
        quality.cycles += delay;
        quality.longest = quality.longest.max(delay / deadline);
        let within = PARTS.map(|part| delay <= deadline / part);
        quality.within.iter_mut().zip(within).for_each(|(count, is_within)| *count += u64::from(is_within));
        if let Some(last) = state.last.replace(delay) {
            let jitter = (delay - last) / gap;
            quality.jitter[JITTER.partition_point(|bound| *bound < jitter)] += 1;
        }
        state.packets += 1;
        state.early += u32::from(within[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Config, engine::Engine, topology::tree};

    /// Without load the delay is exact: two links, a switch, and the packet.
    #[test]
    fn delays_count_up_to_the_last_flit() {
        let network = tree(4, 1).unwrap();
        let config = Config::default();
        let idle = f64::from(2 * config.link + config.switch) + 4.0;
        let connection = Connection { from: 0, to: 1, level: 0, gap: 33.5, deadline: idle };
        let mut engine = Engine::new(&network, &config, Connections::new(vec![connection], 4, 1, 1)).unwrap();
        engine.run_until(1000).unwrap();
        engine.workload_mut().restart();
        engine.run_until(3000).unwrap();
        let quality = &engine.workload().quality()[0];
        assert_eq!((quality.connections, quality.late(), quality.longest), (1, 0, 1.0));
        assert!((59..=60).contains(&quality.packets), "{quality:?}");
        assert_eq!(quality.within, [0, 0, 0, 0, 0, quality.packets]);
        assert_eq!(quality.jitter[JITTER.len() / 2], quality.packets, "all in the middle: {quality:?}");
        assert_eq!(quality.worst_and_best, Some((0.0, 0.0)));
    }

    /// Two hosts that want 1.14 of a third one's link. Their queues grow without end, and each gets a flit every second cycle.
    #[test]
    fn a_late_packet_is_counted_from_its_place_in_the_output_buffer() {
        let network = tree(4, 1).unwrap();
        let config = Config::default();
        let of = |from| Connection { from, to: 2, level: 0, gap: 7.0, deadline: 100.0 };
        let quality = |buffer| {
            let workload = Connections::new(vec![of(0), of(1)], 4, buffer, 1);
            let mut engine = Engine::new(&network, &config, workload).unwrap();
            engine.run_until(10_000).unwrap();
            engine.workload().quality().remove(0)
        };
        let all = quality(10_000);
        assert!(all.late() > all.packets / 2 && all.longest > 5.0, "{all:?}");
        // The buffers of the switch and the host, 64 flits and 4, empty in 136 cycles.
        let one = quality(1);
        assert!(one.packets == all.packets && (1.25..1.5).contains(&one.longest), "{one:?}");
        // The places of nine more packets empty in 72 cycles.
        let more = quality(10).longest - one.longest;
        assert!((0.6..0.8).contains(&more), "{more}");
    }
}

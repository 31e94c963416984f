//! Ports: the queues of each output, by lane and input, the credits of the next buffer, and the turns.
//!
//! A lane is a level in a virtual channel. A switch keeps packets of an input apart by output (virtual output
//! queues), so that none waits for a packet that goes elsewhere. An adapter is a node with one port, whose packets
//! come from itself.

use crate::{
    arbitration::{Arbiter, Waiting},
    config::Config,
    packet::{Arena, NONE, Packet},
    topology::{MOST_PORTS, Network},
};
use std::collections::VecDeque;
use udeck_qos::table::LANES;

/// Credits for a host, which takes everything that arrives.
const UNLIMITED: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Queue {
    head: u32,
    tail: u32,
}

/// First packet of a level.
#[derive(Clone, Copy, Default)]
struct Head {
    /// Size in flits; 0 if there is no packet.
    flits: u16,
    has_room: bool,
    lane: u8,
    input: u8,
    /// Whether the packet comes from another switch, and not from a host of this one.
    passes: bool,
}

pub struct Ports {
    lanes: usize,
    channels: u8,
    levels: u8,
    has_own_levels: bool,
    /// Number of a node's inputs, with the node itself as the last one.
    stride: usize,
    queues: Vec<Queue>,
    /// Bitmap of the inputs that have packets, by port and lane.
    inputs: Vec<u64>,
    /// Input that sent last, by port and lane.
    turns: Vec<u8>,
    credits: Vec<u32>,
    /// Bitmap of the lanes that have packets, by port.
    busy: Vec<u32>,
    /// Bitmap of the lane of each level that sent last, by port.
    last_lanes: Vec<u32>,
    /// Number of waiting flits, by port.
    waiting: Vec<u32>,
    arbiters: Vec<Arbiter>,
    first: Vec<u32>,
    peers: Vec<u32>,
    nodes: Vec<u32>,
    /// Bitmap of the inputs from the node's hosts and from itself, by node.
    injecting: Vec<u64>,
    /// Bitmap of the inputs that an output reads, by node, where only one output may at a time.
    read: Vec<u64>,
    /// Packets of a lane that is one queue, by input and lane.
    input_queues: Vec<VecDeque<u32>>,
    passing_first: bool,
    buffer: u32,
}

impl Ports {
    pub fn new(network: &Network, config: &Config) -> Self {
        let nodes = network.switches() + network.hosts();
        let mut first = vec![0u32];
        for node in 0..nodes {
            first.push(first[node] + network.peers(node).len() as u32);
        }
        let count = first[nodes] as usize;
        let (channels, levels) = (network.channels(), config.all_levels());
        let lanes = channels * usize::from(levels);
        debug_assert!(lanes <= 32);
        let most_ports = (0..nodes).map(|node| network.peers(node).len()).max().unwrap_or(0).min(MOST_PORTS);
        let stride = most_ports + 1;
        let (mut peers, mut owner) = (vec![NONE; count], vec![0; count]);
        let mut credits = vec![config.buffer; count * lanes];
        let mut injecting = vec![1u64 << most_ports; nodes];
        for node in 0..nodes {
            for (port, peer) in network.peers(node).iter().enumerate() {
                let own = first[node] as usize + port;
                owner[own] = node as u32;
                let Some(peer) = peer else { continue };
                peers[own] = first[peer.node] + peer.port as u32;
                if peer.node >= network.switches() {
                    credits[own * lanes..][..lanes].fill(UNLIMITED);
                    injecting[node] |= 1 << port;
                }
            }
        }
        let mut arbiters = vec![Arbiter::new(&config.arbitration); count];
        for (&(node, port), scheme) in &config.own_arbitration {
            arbiters[first[node] as usize + port] = Arbiter::new(scheme);
        }
        Self {
            lanes,
            channels: channels as u8,
            levels: config.levels,
            has_own_levels: levels > config.levels,
            stride,
            queues: vec![Queue { head: NONE, tail: NONE }; count * lanes * stride],
            inputs: vec![0; count * lanes],
            turns: vec![0; count * lanes],
            credits,
            busy: vec![0; count],
            last_lanes: vec![0; count],
            waiting: vec![0; count],
            arbiters,
            first,
            peers,
            nodes: owner,
            injecting,
            read: vec![0; nodes],
            input_queues: if config.queues.is_fifo() {
                vec![VecDeque::new(); count * lanes]
            } else {
                Vec::new()
            },
            passing_first: config.passing_first,
            buffer: config.buffer,
        }
    }

    pub fn count(&self) -> usize {
        self.peers.len()
    }

    /// Number of a node's port.
    pub fn port(&self, node: u32, port: usize) -> u32 {
        self.first[node as usize] + port as u32
    }

    /// Port at the other end of a cable.
    pub fn peer(&self, port: u32) -> u32 {
        self.peers[port as usize]
    }

    pub fn node(&self, port: u32) -> u32 {
        self.nodes[port as usize]
    }

    /// Index of a port among its node's inputs.
    pub fn input(&self, port: u32) -> u8 {
        (port - self.first[self.node(port) as usize]) as u8
    }

    /// Input that stands for the node itself.
    pub fn own_input(&self) -> u8 {
        (self.stride - 1) as u8
    }

    pub fn lane(&self, level: u8, channel: u8) -> u8 {
        level * self.channels + channel
    }

    /// Number of flits that wait at an output.
    pub fn waiting(&self, port: u32) -> u32 {
        self.waiting[port as usize]
    }

    pub fn has_packets(&self, port: u32) -> bool {
        self.busy[port as usize] != 0
    }

    /// All ports of the node to which a port belongs.
    pub fn of_node(&self, port: u32) -> std::ops::Range<u32> {
        let node = self.nodes[port as usize] as usize;
        self.first[node]..self.first[node + 1]
    }

    /// Sets whether an output reads this input.
    pub fn set_read(&mut self, input: u32, is_read: bool) {
        let bit = 1 << self.input(input);
        let read = &mut self.read[self.nodes[input as usize] as usize];
        *read = if is_read { *read | bit } else { *read & !bit };
    }

    /// Adds a packet to its input's lane, where that is one queue. Returns whether it is the first one.
    pub fn push_to_input(&mut self, input: u32, lane: u8, at: u32) -> bool {
        let Some(line) = self.input_queues.get_mut(input as usize * self.lanes + usize::from(lane)) else {
            return true;
        };
        line.push_back(at);
        line.len() == 1
    }

    /// Removes the first packet of an input's lane, and returns the next one, where that is one queue.
    pub fn pop_from_input(&mut self, input: u32, lane: u8) -> Option<u32> {
        let line = self.input_queues.get_mut(input as usize * self.lanes + usize::from(lane))?;
        line.pop_front();
        line.front().copied()
    }

    fn queue(&self, port: u32, lane: u8, input: u8) -> usize {
        (port as usize * self.lanes + usize::from(lane)) * self.stride + usize::from(input)
    }

    /// Puts a packet at the end of the queue that its `out`, `out_lane` and `input` name.
    pub fn enqueue(&mut self, packets: &mut Arena<Packet>, at: u32) {
        let Packet { out, out_lane, input, flits, .. } = packets[at];
        let queue = self.queue(out, out_lane, input);
        let tail = std::mem::replace(&mut self.queues[queue].tail, at);
        let packet = &mut packets[at];
        (packet.next, packet.before, packet.queued) = (NONE, tail, true);
        if tail == NONE {
            self.queues[queue].head = at;
            self.inputs[out as usize * self.lanes + usize::from(out_lane)] |= 1 << input;
            self.busy[out as usize] |= 1 << out_lane;
        } else {
            packets[tail].next = at;
        }
        self.waiting[out as usize] += u32::from(flits);
    }

    /// Takes a packet out of its queue, wherever it is there.
    pub fn remove(&mut self, packets: &mut Arena<Packet>, at: u32) {
        let Packet { out, out_lane, input, flits, next, before, .. } = packets[at];
        packets[at].queued = false;
        let queue = self.queue(out, out_lane, input);
        match before {
            NONE => self.queues[queue].head = next,
            before => packets[before].next = next,
        }
        match next {
            NONE => self.queues[queue].tail = before,
            next => packets[next].before = before,
        }
        if self.queues[queue].head == NONE {
            let inputs = &mut self.inputs[out as usize * self.lanes + usize::from(out_lane)];
            *inputs &= !(1 << input);
            if *inputs == 0 {
                self.busy[out as usize] &= !(1 << out_lane);
            }
        }
        self.waiting[out as usize] -= u32::from(flits);
    }

    /// Chooses the packet that goes now, if one may: control packets first, speculative ones last, and between them
    /// by the arbitration.
    pub fn choose(&mut self, packets: &Arena<Packet>, port: u32) -> Option<u32> {
        let mut heads = [Head::default(); LANES + 1];
        let mut lanes = self.busy[port as usize];
        while lanes != 0 {
            let lane = lanes.trailing_zeros() as u8;
            lanes &= lanes - 1;
            let head = self.head(packets, port, lane);
            let level = &mut heads[usize::from(lane / self.channels)];
            // A channel of the level with room is better; among these, one that did not send last.
            let last = self.last_lanes[port as usize] & 1 << level.lane != 0;
            let is_better = match (head.passes, level.passes) {
                (true, false) if self.passing_first => true,
                (false, true) if self.passing_first => false,
                _ => last,
            };
            if level.flits == 0 || (head.has_room && (!level.has_room || is_better)) {
                *level = head;
            }
        }
        let may_go = |level: u8| {
            let head = heads[usize::from(level)];
            head.flits > 0 && head.has_room
        };
        let (speculative, control) = (self.levels, self.levels + 1);
        let level = if self.has_own_levels && may_go(control) {
            Some(control)
        } else {
            let waiting = |level: u8| match heads[usize::from(level)] {
                Head { flits: 0, .. } => Waiting::Nothing,
                Head { has_room: false, .. } => Waiting::Stalled,
                Head { flits, .. } => Waiting::Ready(flits),
            };
            let of_traffic = self.arbiters[port as usize].next(self.levels, waiting);
            of_traffic.or_else(|| (self.has_own_levels && may_go(speculative)).then_some(speculative))
        };
        let Head { lane, input, .. } = heads[usize::from(level?)];
        self.turns[port as usize * self.lanes + usize::from(lane)] = input;
        let of_level = ((1u32 << self.channels) - 1) << (lane / self.channels * self.channels);
        let last = &mut self.last_lanes[port as usize];
        *last = *last & !of_level | 1 << lane;
        Some(self.queues[self.queue(port, lane, input)].head)
    }

    fn head(&self, packets: &Arena<Packet>, port: u32, lane: u8) -> Head {
        let at = port as usize * self.lanes + usize::from(lane);
        let (mut inputs, last) = (self.inputs[at], u32::from(self.turns[at]));
        let node = self.nodes[port as usize] as usize;
        // Inputs that are being read cannot send. If there are no others, the lane waits as if it had no credits.
        let unread = inputs & !self.read[node];
        if unread != 0 {
            inputs = unread;
        }
        let passing = inputs & !self.injecting[node];
        if self.passing_first && passing != 0 {
            inputs = passing;
        }
        // The next input with packets after the one that sent last is chosen.
        let behind = inputs & (u64::MAX << last << 1);
        let input = if behind != 0 { behind.trailing_zeros() } else { inputs.trailing_zeros() } as u8;
        let flits = packets[self.queues[self.queue(port, lane, input)].head].flits;
        let passes = passing & 1 << input != 0;
        let has_room = unread != 0 && u32::from(flits) <= self.credits[at];
        Head { flits, has_room, lane, input, passes }
    }

    /// Takes credits for a packet that leaves.
    pub fn spend(&mut self, port: u32, lane: u8, flits: u16) {
        let credits = &mut self.credits[port as usize * self.lanes + usize::from(lane)];
        if *credits != UNLIMITED {
            *credits = credits
                .checked_sub(u32::from(flits))
                .expect("a packet leaves only if there are credits for it");
        }
    }

    /// Gives credits back.
    pub fn refund(&mut self, port: u32, lane: u8, flits: u16) {
        let credits = &mut self.credits[port as usize * self.lanes + usize::from(lane)];
        if *credits != UNLIMITED {
            *credits += u32::from(flits);
            assert!(*credits <= self.buffer, "port {port} lane {lane} got back more credits than it had");
        }
    }

    /// Checks that all credits are back and no packet waits, in a network with nothing in flight.
    pub fn idle(&self) -> Result<(), String> {
        for port in 0..self.count() {
            if self.busy[port] != 0 || self.waiting[port] != 0 {
                return Err(format!("port {port} has {} flits waiting", self.waiting[port]));
            }
            for (lane, &credits) in self.credits[port * self.lanes..][..self.lanes].iter().enumerate() {
                if credits != UNLIMITED && credits != self.buffer {
                    return Err(format!("port {port} lane {lane} has {credits} of {} credits", self.buffer));
                }
            }
        }
        Ok(())
    }
}

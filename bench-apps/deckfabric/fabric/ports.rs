//! Ports: the queues of each output, by lane and input, the credits of the next buffer, and the turns.
//!
//! A lane is a level in a virtual channel. A switch keeps packets of an input apart by output (virtual output
//! queues), so that none waits for a packet that goes elsewhere. An adapter is a node with one port, whose packets
//! come from itself.
//!
//! Switches of [`crate::stages`] have more ports, which are no links: a port for each of their buffers. The way into the
//! buffer is the port as an output, and the buffer is the port as an input of the next stage.

mod credits;
mod crossbar;

use crate::{
    arbitration::{Arbiter, Choice, Waiting},
    config::Config,
    congestion::OutOfRange,
    packet::{Arena, NONE, Packet},
    stages::{Allocator, Layout, MOST_BUFFER},
    topology::{MOST_PORTS, Network},
};
use credits::Credits;
use std::collections::VecDeque;
use udeck_qos::table::LANES;

/// Upper bound of a port's lanes: the bits of a bitmap.
const MOST_LANES: usize = u32::BITS as usize;

#[derive(Clone, Copy)]
struct Queue {
    head: u32,
    tail: u32,
}

/// First packet of a level or a lane.
#[derive(Clone, Copy, Default)]
struct Head {
    /// Size in flits; 0 if there is no packet.
    flits: u16,
    has_room: bool,
    lane: u8,
    level: u8,
    input: u8,
    /// Whether the packet comes from another switch, and not from a host of this one, where those go first.
    passes: bool,
    /// Whether its lane comes after the one of its level that sent last.
    is_next: bool,
}

impl Head {
    fn waiting(self) -> Waiting {
        match self {
            Self { flits: 0, .. } => Waiting::Nothing,
            Self { has_room: false, .. } => Waiting::Stalled,
            Self { flits, .. } => Waiting::Ready(flits),
        }
    }
}

pub struct Ports {
    lanes: usize,
    levels: u8,
    has_own_levels: bool,
    /// Lanes, by level and service channel.
    of_level: Vec<Vec<u8>>,
    /// Bitmap of a level's lanes, by level.
    level_lanes: Vec<u32>,
    /// Number of a node's inputs, with the node itself as the last one.
    stride: usize,
    queues: Vec<Queue>,
    /// Bitmap of the inputs that have packets, by port and lane.
    inputs: Vec<u64>,
    /// Input that sent last, by port and lane.
    turns: Vec<u8>,
    credits: Credits,
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
    /// Bitmap of the inputs that an output reads, by group of ports, where only one output may at a time.
    read: Vec<u64>,
    /// Group of ports with the same inputs, by port: those of a node, or of an MPort.
    groups: Vec<u32>,
    /// Index of the buffer behind a port among the inputs of the ports that read it.
    input_of: Vec<u8>,
    /// Number of links, which are the ports from 0.
    links: u32,
    layout: Option<Layout>,
    /// Lane from which the last packet went over the crossbar, by buffer. Where inputs offer one lane: the one that offered last.
    last_offers: Vec<u8>,
    /// Bitmap of the inputs that offer a packet in this allocation, by port. Empty where inputs offer all lanes.
    offered: Vec<u64>,
    /// Packets of a lane that is one queue, by input and lane.
    input_queues: Vec<VecDeque<u32>>,
    passing_first: bool,
}

impl Ports {
    /// Makes idle ports.
    ///
    /// # Errors
    /// Buffers that lanes share are too small for the lanes, or switches are too large for the stages.
    pub fn new(network: &Network, config: &Config) -> Result<Self, OutOfRange> {
        let nodes = network.switches() + network.hosts();
        let mut first = vec![0u32];
        for node in 0..nodes {
            first.push(first[node] + network.peers(node).len() as u32);
        }
        let links = first[nodes];
        let layout = config.stages.map(|stages| Layout::new(network, links, stages)).transpose()?;
        let count = links as usize + layout.map_or(0, |layout| layout.inner(network.switches()));
        let lanes = config.lane_count(network.channels());
        debug_assert!(lanes <= 32);
        let most_ports = (0..nodes).map(|node| network.peers(node).len()).max().unwrap_or(0).min(MOST_PORTS);
        let most_inputs = layout.map_or(most_ports, |layout| layout.most_inputs());
        let mut credits = credits(config, layout, links, count, lanes)?;
        let (mut peers, mut owner) = (vec![NONE; count], vec![0; count]);
        let (mut input_of, mut groups) = (vec![0; count], vec![0; count]);
        let mut injecting = vec![1u64 << most_inputs; nodes];
        for node in 0..nodes {
            for (port, peer) in network.peers(node).iter().enumerate() {
                let own = first[node] as usize + port;
                (owner[own], groups[own], input_of[own]) = (node as u32, node as u32, port as u8);
                let Some(peer) = peer else { continue };
                peers[own] = first[peer.node] + peer.port as u32;
                if peer.node >= network.switches() {
                    credits.set_unlimited(own);
                    injecting[node] |= 1 << port;
                }
            }
        }
        let mut read = vec![0; nodes];
        if let Some(layout) = layout {
            // The links of a switch have their own output buffer as the only input, which no other port reads.
            for own in 0..links {
                let node = owner[own as usize];
                input_of[own as usize] = layout.input(own, own - first[node as usize]);
            }
            for inner in links..count as u32 {
                let at = inner as usize;
                (peers[at], owner[at]) = (inner, layout.switch(inner));
                input_of[at] = layout.input(inner, 0);
                groups[at] = nodes as u32 + owner[at] * layout.groups() + layout.group(inner);
            }
            read.resize(nodes + network.switches() * layout.groups() as usize, 0);
        }
        let of_level = config.lanes_of_levels(network.channels());
        let lanes_in = |level: &Vec<u8>| level.iter().fold(0u32, |all, lane| all | 1 << lane);
        let mut arbiters = vec![Arbiter::new(&config.arbitration, config.flit_bytes); links as usize];
        for (&(node, port), scheme) in &config.own_arbitration {
            arbiters[first[node] as usize + port] = Arbiter::new(scheme, config.flit_bytes);
        }
        Ok(Self {
            lanes,
            levels: config.levels,
            has_own_levels: config.all_levels() > config.levels,
            level_lanes: of_level.iter().map(lanes_in).collect(),
            of_level,
            stride: most_inputs + 1,
            queues: vec![Queue { head: NONE, tail: NONE }; count * lanes * (most_inputs + 1)],
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
            read,
            groups,
            input_of,
            links,
            layout,
            offered: match config.stages.map(|stages| stages.allocator) {
                Some(Allocator::OneLane { .. }) => vec![0; count],
                _ => Vec::new(),
            },
            last_offers: vec![0; if layout.is_some() { count } else { 0 }],
            input_queues: if config.queues.is_fifo() || layout.is_some() {
                vec![VecDeque::new(); count * lanes]
            } else {
                Vec::new()
            },
            passing_first: config.passing_first,
        })
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
        self.input_of[port as usize]
    }

    /// Index of a link's port in its node.
    pub fn nth(&self, port: u32) -> u8 {
        (port - self.first[self.node(port) as usize]) as u8
    }

    /// Whether switches have stages.
    pub fn has_stages(&self) -> bool {
        self.layout.is_some()
    }

    /// Whether a port is a link, and not the way into a buffer of its own switch.
    pub fn is_link(&self, port: u32) -> bool {
        port < self.links
    }

    /// Input that stands for the node itself.
    pub fn own_input(&self) -> u8 {
        (self.stride - 1) as u8
    }

    /// Lane of a level in one of its service channels.
    pub fn lane(&self, level: u8, channel: u8) -> u8 {
        self.of_level[usize::from(level)][usize::from(channel)]
    }

    /// Number of service channels of a level.
    pub fn channels(&self, level: u8) -> u8 {
        self.of_level[usize::from(level)].len() as u8
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

    /// Adds a packet to its input's lane, where that is one queue. Returns whether it is the first one.
    #[inline]
    pub fn push_to_input(&mut self, input: u32, lane: u8, at: u32) -> bool {
        let Some(line) = self.input_queues.get_mut(input as usize * self.lanes + usize::from(lane)) else {
            return true;
        };
        line.push_back(at);
        line.len() == 1
    }

    /// Removes the first packet of an input's lane, and returns the next one, where that is one queue.
    #[inline]
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
        let busy = self.busy[port as usize];
        // Mostly one lane waits, and needs no list of levels.
        let Head { lane, input, level, .. } = match busy.is_power_of_two() {
            true => {
                let only = self.head(packets, port, busy.trailing_zeros() as u8);
                let of_level = |level| if only.level == level { only } else { Head::default() };
                self.choose_among(
                    port,
                    of_level,
                    |lane| if only.lane == lane { only } else { Head::default() },
                )
            }
            false => self.choose_among_lanes(packets, port, busy),
        }?;
        self.turns[port as usize * self.lanes + usize::from(lane)] = input;
        let of_level = self.level_lanes[usize::from(level)];
        let last = &mut self.last_lanes[port as usize];
        *last = *last & !of_level | 1 << lane;
        Some(self.queues[self.queue(port, lane, input)].head)
    }

    /// Chooses among the first packets of the lanes of the bitmap `busy`.
    #[inline(never)]
    fn choose_among_lanes(&mut self, packets: &Arena<Packet>, port: u32, busy: u32) -> Option<Head> {
        let mut of_levels = [Head::default(); LANES + 1];
        // SBT searches lanes, each with the level of its first packet.
        let searches_lanes = matches!(self.arbiters[port as usize], Arbiter::Sbt(_));
        let mut of_lanes = searches_lanes.then_some([Head::default(); MOST_LANES]);
        let mut lanes = busy;
        while lanes != 0 {
            let lane = lanes.trailing_zeros() as u8;
            lanes &= lanes - 1;
            let head = self.head(packets, port, lane);
            if let Some(of_lanes) = &mut of_lanes {
                of_lanes[usize::from(lane)] = head;
            }
            let level = &mut of_levels[usize::from(head.level)];
            // A channel of the level with room is better; among these, the first one after the one that sent last.
            let is_better = match (head.passes, level.passes) {
                (true, false) => true,
                (false, true) => false,
                _ => head.is_next && !level.is_next,
            };
            if level.flits == 0 || (head.has_room && (!level.has_room || is_better)) {
                *level = head;
            }
        }
        let of_lane =
            |lane: u8| of_lanes.as_ref().map_or_else(Head::default, |heads| heads[usize::from(lane)]);
        self.choose_among(port, |level| of_levels[usize::from(level)], of_lane)
    }

    /// Chooses among the first packets of levels, or of lanes: a control packet, one of traffic by the port's scheduler, or a
    /// speculative one. Both functions return a default for a level or lane without packets.
    #[inline]
    fn choose_among(
        &mut self,
        port: u32,
        of_level: impl Fn(u8) -> Head,
        of_lane: impl Fn(u8) -> Head,
    ) -> Option<Head> {
        let (levels, has_own_levels) = (self.levels, self.has_own_levels);
        let own = |level: u8| has_own_levels.then(|| of_level(level)).filter(|head| head.has_room);
        if let Some(control) = own(levels + 1) {
            return Some(control);
        }
        let waiting = |level: u8| of_level(level).waiting();
        let level_of = |lane: u8| {
            let head = of_lane(lane);
            (head.has_room && head.level < levels).then_some(head.level)
        };
        match self.arbiters[port as usize].next(levels, waiting, self.lanes as u8, level_of) {
            Some(Choice::Level(level)) => Some(of_level(level)),
            Some(Choice::Lane(lane)) => Some(of_lane(lane)),
            None => own(levels),
        }
    }

    #[inline(always)]
    fn head(&self, packets: &Arena<Packet>, port: u32, lane: u8) -> Head {
        let at = port as usize * self.lanes + usize::from(lane);
        let (mut inputs, last) = (self.inputs[at], u32::from(self.turns[at]));
        let node = self.groups[port as usize] as usize;
        // Inputs that are being read cannot send. If there are no others, the lane waits as if it had no credits.
        let unread = inputs & !self.read[node];
        if unread != 0 {
            inputs = unread;
        }
        let mut passes = false;
        if self.passing_first {
            let passing = inputs & !self.injecting[node];
            passes = passing != 0;
            inputs = if passes { passing } else { inputs };
        }
        // The next input with packets after the one that sent last is chosen.
        let behind = inputs & (u64::MAX << last << 1);
        let input = if behind != 0 { behind.trailing_zeros() } else { inputs.trailing_zeros() } as u8;
        let Packet { flits, level, .. } = packets[self.queues[at * self.stride + usize::from(input)].head];
        let has_room = unread != 0 && self.credits.has_room(port, lane, u32::from(flits));
        let is_next = 1u32 << lane > self.last_lanes[port as usize] & self.level_lanes[usize::from(level)];
        Head { flits, has_room, lane, level, input, passes, is_next }
    }

    /// Takes credits for a packet that leaves.
    #[inline]
    pub fn spend(&mut self, port: u32, lane: u8, flits: u16) {
        self.credits.spend(port, lane, flits);
    }

    /// Gives credits back.
    #[inline]
    pub fn refund(&mut self, port: u32, lane: u8, flits: u16) {
        self.credits.refund(port, lane, flits);
    }

    /// Checks that all credits are back and no packet waits, in a network with nothing in flight.
    pub fn idle(&self) -> Result<(), String> {
        for port in 0..self.count() {
            if self.busy[port] != 0 || self.waiting[port] != 0 {
                return Err(format!("port {port} has {} flits waiting", self.waiting[port]));
            }
            self.credits.idle(port)?;
        }
        Ok(())
    }
}

/// Credits of all ports.
fn credits(
    config: &Config,
    layout: Option<Layout>,
    links: u32,
    count: usize,
    lanes: usize,
) -> Result<Credits, OutOfRange> {
    let (Some(layout), Some(stages)) = (layout, config.stages) else {
        return Ok(Credits::private(count, lanes, config.buffer));
    };
    let size = |port: u32| if port < links { config.buffer } else { layout.size(port) };
    let sizes: Vec<_> = (0..count as u32).map(size).collect();
    let least = u64::from(lanes as u32 * stages.least);
    match sizes.iter().map(|size| u64::from(*size)).find(|size| *size < least) {
        Some(value) => Err(OutOfRange { what: "a buffer for all lanes", value, least, most: MOST_BUFFER }),
        None => Ok(Credits::shared(sizes, lanes, stages.least)),
    }
}

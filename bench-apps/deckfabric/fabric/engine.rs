//! Engine that moves packets: it handles events in the order of their times, and then, in each cycle, the choices of
//! all ports where something has changed.

mod allocation;
mod deliver;
mod drop;
mod source;
#[cfg(test)]
mod tests;
mod transmit;
mod way;

use crate::{
    config::{BadConfig, Config},
    congestion::{Calendar, OutOfRange, ecn::Flow, srp::Pair},
    measure::Measures,
    packet::{Arena, Message, NONE, Packet},
    ports::Ports,
    topology::Network,
    wheel::Wheel,
    workload::{Actions, Post, Workload},
};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use std::collections::BTreeMap;
use thiserror::Error;

/// An event of the simulation.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A packet's head is ready for the choice at a switch, or its tail has arrived at a host.
    Arrive { port: u32, packet: u32 },
    /// A port's link is free again.
    Free { port: u32 },
    /// The output that read an input has read a whole packet.
    Read { input: u32 },
    /// There is room in the buffer behind a port.
    Credit { port: u32, lane: u8, flits: u16 },
    /// A packet has waited too long, if it is still there.
    Expire { packet: u32, serial: u32 },
    /// The reserved time of a message has begun.
    Begin { message: u32, generation: u32 },
    /// A packet is due to be submitted.
    Submit { packet: u32 },
    /// A host's gap to a destination is over.
    Gap { host: u32, to: u32 },
    /// Inputs of all switches offer a packet of one lane each.
    Allocate,
    /// A timer of the workload is due.
    Timer { token: u32 },
}

/// Why a run cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CannotRun {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] BadConfig),
    /// Switches of this size cannot have these stages.
    #[error("switches of stages: {0}")]
    Stages(#[from] OutOfRange),
    /// Switches of stages have no queues by which adaptive routes could be chosen.
    #[error(
        "adaptive routes are chosen by queues at outputs, which switches of stages do not have: take `routes = \"fixed\"` (or \"valiant\", in a tree), or leave [switch] out"
    )]
    Adaptive,
    /// The routes need more virtual channels than a level has service channels.
    #[error(
        "routes use {channels} virtual channels, and level {level} has {scs} of the service channels: list {channels} or more for each level"
    )]
    Channels {
        /// Number of virtual channels that the network's routes use.
        channels: usize,
        /// First level that has fewer service channels.
        level: usize,
        /// Number of its service channels.
        scs: usize,
    },
    /// Levels and channels together are too many.
    #[error("{levels} levels in {channels} virtual channels are more than 32 lanes: take fewer levels")]
    Lanes {
        /// Number of levels, including those of congestion control.
        levels: u8,
        /// Number of virtual channels that the network's routes use.
        channels: usize,
    },
}

/// Packets are in flight, and no event will ever move them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{packets} packets and {messages} messages are under way and nothing moves at cycle {now}: {problem}"
)]
pub struct Stuck {
    /// Cycle at which the network stopped.
    pub now: u64,
    /// Number of packets in flight.
    pub packets: usize,
    /// Number of messages in flight.
    pub messages: usize,
    /// Text about the first place where it was seen.
    pub problem: String,
}

/// Why a run has ended early.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Stopped {
    /// The network is stuck.
    #[error(transparent)]
    Stuck(#[from] Stuck),
    /// The workload has posted an invalid message.
    #[error(transparent)]
    BadPost(#[from] BadPost),
}

/// A workload has posted an invalid message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "a message of {flits} flits of level {level} from host {from} to host {to} cannot be posted: there are {hosts} hosts, {levels} levels and {classes} classes"
)]
pub struct BadPost {
    from: u32,
    to: u32,
    flits: u32,
    level: u8,
    hosts: usize,
    levels: u8,
    classes: usize,
}

/// A running network.
pub struct Engine<'network, W> {
    network: &'network Network,
    config: Config,
    ports: Ports,
    packets: Arena<Packet>,
    messages: Arena<Message>,
    wheel: Wheel<Event>,
    free_at: Vec<u64>,
    /// Ports that choose in this cycle.
    due: Vec<u32>,
    is_due: Vec<bool>,
    /// Cycles between allocations, where inputs offer one lane in each.
    allocates_every: Option<u32>,
    /// Whether the next allocation is scheduled.
    will_allocate: bool,
    /// Whether this cycle has an allocation, after its events.
    allocates_now: bool,
    /// Outputs that a buffer wants, of one event.
    wanted: Vec<u32>,
    /// Calendars by host, kept by the host itself or with LHRP by its switch.
    calendars: Vec<Calendar>,
    /// Packets with gaps (ECN), by host and destination.
    flows: Vec<BTreeMap<u32, Flow>>,
    /// Windows of messages (SRP and SMSRP), by host and destination.
    pairs: Vec<BTreeMap<u32, Pair>>,
    measures: Measures,
    workload: W,
    actions: Actions,
    error: Option<BadPost>,
    /// Choices among equal ports, from a fixed seed, so that runs repeat.
    random: Xoshiro256PlusPlus,
}

impl<'network, W: Workload> Engine<'network, W> {
    /// Makes an idle network, and begins the workload.
    pub fn new(network: &'network Network, config: &Config, workload: W) -> Result<Self, CannotRun> {
        config.check()?;
        if network.is_adaptive() && config.stages.is_some() {
            return Err(CannotRun::Adaptive);
        }
        let (levels, channels) = (config.all_levels(), network.channels());
        if config.lane_count(channels) > 32 {
            return Err(CannotRun::Lanes { levels, channels });
        }
        let counts = config.lanes_of_levels(channels).into_iter().map(|lanes| lanes.len());
        if let Some((level, scs)) = counts.enumerate().find(|(_, scs)| *scs < channels) {
            return Err(CannotRun::Channels { channels, level, scs });
        }
        let ports = Ports::new(network, config)?;
        let hosts = network.hosts();
        let mut engine = Self {
            network,
            config: config.clone(),
            measures: Measures::new(workload.classes(), hosts, ports.count()),
            free_at: vec![0; ports.count()],
            is_due: vec![false; ports.count()],
            ports,
            packets: Arena::new(),
            messages: Arena::new(),
            wheel: Wheel::new(),
            due: Vec::new(),
            allocates_every: allocation::every(config),
            will_allocate: false,
            allocates_now: false,
            wanted: Vec::new(),
            calendars: (0..hosts).map(|_| Calendar::new()).collect(),
            flows: (0..hosts).map(|_| BTreeMap::new()).collect(),
            pairs: (0..hosts).map(|_| BTreeMap::new()).collect(),
            workload,
            actions: Actions::default(),
            error: None,
            random: Xoshiro256PlusPlus::seed_from_u64(0),
        };
        engine.workload.begin(&mut engine.actions);
        engine.apply_actions();
        engine.arbitrate();
        Ok(engine)
    }

    /// Last cycle that was simulated.
    pub fn now(&self) -> u64 {
        self.wheel.now()
    }

    /// The workload of the network.
    pub fn workload(&self) -> &W {
        &self.workload
    }

    /// Restarts the measures: the cycles before were warming up.
    pub fn restart_measures(&mut self) {
        let now = self.now();
        self.measures.restart(now);
    }

    /// Returns the measures so far.
    pub fn measures(&self) -> Measures {
        Measures { cycles: self.now() - self.measures.from, ..self.measures.clone() }
    }

    /// Number of packets that are in flight or wait at a host.
    pub fn under_way(&self) -> usize {
        self.packets.len()
    }

    /// Simulates all cycles up to `until`.
    pub fn run_until(&mut self, until: u64) -> Result<(), BadPost> {
        let mut events = Vec::new();
        while self.step(until, &mut events)? {}
        Ok(())
    }

    /// The workload, for events from outside of the network.
    pub fn workload_mut(&mut self) -> &mut W {
        &mut self.workload
    }

    /// Posts a message in the last simulated cycle, from outside of the network.
    ///
    /// # Errors
    /// There is no such host, level or class, or the message has no flits.
    pub fn post_now(&mut self, post: Post) -> Result<(), BadPost> {
        self.post(post)?;
        self.arbitrate();
        Ok(())
    }

    /// Simulates cycles up to `until`, or to the end of the first one after which `is_enough` holds. With `None` it
    /// goes on as long as there are events.
    ///
    /// # Errors
    /// The workload has posted an invalid message.
    pub fn run_until_enough(
        &mut self,
        until: Option<u64>,
        is_enough: impl Fn(&W) -> bool,
    ) -> Result<(), BadPost> {
        let mut events = Vec::new();
        while !is_enough(&self.workload) {
            let goes_on = match until {
                Some(until) => self.step(until, &mut events)?,
                None => !self.wheel.is_empty() && self.step(u64::MAX, &mut events)?,
            };
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Simulates until there are no more events, or up to a cycle. Returns whether nothing is in flight then.
    ///
    /// # Errors
    /// No event is left, and packets or messages are still in flight: buffers wait for one another, or packets were lost.
    pub fn run_dry(&mut self, until: u64) -> Result<bool, Stopped> {
        let mut events = Vec::new();
        while self.step(until, &mut events)? {
            if self.wheel.is_empty() && self.error.is_none() {
                return self.rest().map(|()| true);
            }
        }
        Ok(self.packets.len() + self.messages.len() == 0)
    }

    /// Whether the run can never go on: no event is left, and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.wheel.is_empty() && self.packets.len() + self.messages.len() == 0
    }

    /// Checks that nothing is in flight: there are no more events.
    fn rest(&self) -> Result<(), Stopped> {
        let problem = match self.ports.idle() {
            Err(problem) => problem,
            Ok(()) if self.packets.len() + self.messages.len() == 0 => return Ok(()),
            Ok(()) => "all queues are empty: something was lost".into(),
        };
        let (packets, messages) = (self.packets.len(), self.messages.len());
        Err(Stuck { now: self.now(), packets, messages, problem }.into())
    }

    /// Simulates the next cycle that has events, if it is not after `until`. Returns whether there was one.
    fn step(&mut self, until: u64, events: &mut Vec<Event>) -> Result<bool, BadPost> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let Some(now) = self.wheel.next(until, events) else { return Ok(false) };
        self.measures.events += events.len() as u64;
        for &event in &*events {
            self.happen(now, event);
        }
        self.arbitrate();
        Ok(true)
    }

    fn happen(&mut self, now: u64, event: Event) {
        match event {
            Event::Arrive { port, packet } => self.arrive(now, port, packet),
            Event::Free { port } => self.is_now_due(port),
            Event::Read { input } => {
                self.ports.set_read(input, false);
                if self.ports.has_stages() {
                    self.offer(input);
                    return;
                }
                let ports = self.ports.of_node(input);
                // The port that comes first has the choice, so ports take turns.
                let first = ports.start + (now % u64::from(ports.end - ports.start)) as u32;
                (first..ports.end).chain(ports.start..first).for_each(|port| self.is_now_due(port));
            }
            Event::Credit { port, lane, flits } => {
                self.ports.refund(port, lane, flits);
                self.is_now_due(port);
            }
            Event::Expire { packet, serial } => self.expire(now, packet, serial),
            Event::Begin { message, generation } => self.begin_reserved(now, message, generation),
            Event::Submit { packet } => self.submit(now, packet),
            Event::Gap { host, to } => self.gap_is_over(now, host, to),
            Event::Allocate => self.allocates_now = true,
            Event::Timer { token } => {
                self.workload.timer(now, token, &mut self.actions);
                self.apply_actions();
            }
        }
    }

    /// Posts the messages and sets the timers that the workload wants.
    fn apply_actions(&mut self) {
        while !(self.actions.posts.is_empty() && self.actions.timers.is_empty()) {
            let mut actions = std::mem::take(&mut self.actions);
            for (time, token) in actions.timers.drain(..) {
                self.wheel.schedule(time.max(self.wheel.now() + 1), Event::Timer { token });
            }
            for post in actions.posts.drain(..) {
                if let Err(error) = self.post(post) {
                    self.error.get_or_insert(error);
                }
            }
            // The memory of the lists is used again.
            if self.actions.posts.is_empty() && self.actions.timers.is_empty() {
                self.actions = actions;
                return;
            }
        }
    }

    /// Asks the outputs for which a buffer has packets, in the order of its lanes' turns.
    fn offer(&mut self, buffer: u32) {
        let mut outputs = std::mem::take(&mut self.wanted);
        outputs.extend(self.ports.wanted(&self.packets, buffer));
        outputs.drain(..).for_each(|port| self.is_now_due(port));
        self.wanted = outputs;
    }

    fn is_now_due(&mut self, port: u32) {
        if self.allocates_every.is_some() && !self.ports.is_link(port) {
            self.schedule_allocation();
        } else if !self.is_due[port as usize] && self.ports.has_packets(port) {
            self.is_due[port as usize] = true;
            self.due.push(port);
        }
    }

    fn arbitrate(&mut self) {
        let now = self.wheel.now();
        // An input whose packet ends in this cycle takes part, wherever that event stands among those of the cycle.
        if std::mem::take(&mut self.allocates_now) {
            self.allocate();
        }
        // The loop runs more than once only if the workload posts because a message has left.
        while !self.due.is_empty() {
            let mut due = std::mem::take(&mut self.due);
            for port in due.drain(..) {
                self.is_due[port as usize] = false;
                if self.free_at[port as usize] <= now {
                    self.transmit(now, port);
                }
            }
            if self.due.is_empty() {
                self.due = due;
            }
        }
    }

    /// Makes a packet. Returns its place.
    fn make(&mut self, packet: Packet) -> u32 {
        let renew = |old: Option<&mut Packet>| {
            let serial = old.map_or(0, |old| old.serial.wrapping_add(1));
            Packet { serial, next: NONE, before: NONE, input_port: NONE, ..packet }
        };
        self.packets.add(renew)
    }
}

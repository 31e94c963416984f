//! Switches of stages: a packet lies in an input buffer, crosses one or two crossbars, and lies in an output buffer, from
//! where the scheduler of the link takes it.
//!
//! With a [`Centre`] the switch is hierarchical, as Omni-Path's: groups of ports (*MPorts*) have a crossbar each, and a
//! packet to another MPort crosses the central crossbar, too. Without one, a single crossbar connects all ports, as in
//! InfiniBand's switches. In each buffer packets of a lane wait in one line, and all lanes share the buffer.
//!
//! A crossbar moves one packet out of a buffer at a time, and one into a buffer at a time. An [`Allocator`] says which. A packet
//! cannot leave a buffer faster than it comes in.

use crate::{
    congestion::OutOfRange,
    topology::{MOST_PORTS, Network},
};
use std::ops::Range;

/// Upper bound of the flits of a buffer.
pub(crate) const MOST_BUFFER: u64 = 1 << 24;

/// A switch with buffers at its inputs and outputs. The input buffers are those of the configuration of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    /// Flits a cycle out of an input buffer.
    pub speed: u16,
    /// Cycles that a head needs over a crossbar and into an output buffer, up to the choice of the link.
    pub store: u32,
    /// Size of an output buffer in flits.
    pub output: u32,
    /// Flits that each lane has for itself in each buffer. The lanes share the rest.
    pub least: u32,
    /// Cycles after a packet in which its buffer takes part in no allocation; 0 if allocations overlap with the packets before.
    pub pause: u32,
    /// Allocator of the crossbars.
    pub allocator: Allocator,
    /// Central crossbar of a hierarchical switch.
    pub centre: Option<Centre>,
}

/// Packets that a crossbar's inputs offer to its outputs. Outputs choose among the inputs that offer them a packet, in turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocator {
    /// An input offers the first packet of each lane, and outputs choose among its lanes in turn, at any time.
    #[default]
    AllLanes,
    /// An input offers the first packet of one lane in each allocation, its lanes in turn, if no output reads it then. A lane whose
    /// packet is not granted has lost its turn.
    OneLane {
        /// Cycles from an allocation to the next one, which all switches have at the same times.
        every: u32,
    },
}

/// The crossbar that connects the MPorts of a hierarchical switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Centre {
    /// Number of ports of an MPort.
    pub ports: u8,
    /// Number of links from an MPort to the central crossbar, each with a buffer.
    pub links: u8,
    /// Flits a cycle out of a central buffer.
    pub speed: u16,
    /// Cycles that a head needs over the crossbar of an MPort, up to the allocation at the central crossbar.
    pub cross: u32,
    /// Size of a central buffer in flits.
    pub buffer: u32,
}

impl Stages {
    /// A switch with a single crossbar whose lanes share no buffer: each of `lanes` has `buffer` flits at an output, as it has
    /// at an input of `lanes` × `buffer` flits.
    #[must_use]
    pub fn lanes_apart(speed: u16, store: u32, lanes: u32, buffer: u32) -> Self {
        Self {
            speed,
            store,
            output: lanes * buffer,
            least: buffer,
            pause: 0,
            allocator: Allocator::AllLanes,
            centre: None,
        }
    }

    /// Checks the numbers; `packet` is the longest packet.
    pub(crate) fn check(&self, packet: u16) -> Result<(), OutOfRange> {
        let packet = u64::from(packet);
        let mut ranges = vec![
            ("speed", u64::from(self.speed), 1, 1 << 10),
            ("store", u64::from(self.store), 1, 1 << 10),
            ("output", u64::from(self.output), packet, MOST_BUFFER),
            ("least", u64::from(self.least), packet, MOST_BUFFER),
        ];
        if let Allocator::OneLane { every } = self.allocator {
            ranges.push(("cycles between allocations", u64::from(every), 1, 1 << 10));
        }
        if let Some(centre) = self.centre {
            ranges.extend([
                ("ports of an MPort", u64::from(centre.ports), 1, 31),
                ("links of an MPort", u64::from(centre.links), 1, 8),
                ("speed of the central crossbar", u64::from(centre.speed), 1, 1 << 10),
                ("cross", u64::from(centre.cross), 1, 1 << 10),
                ("buffer of a central link", u64::from(centre.buffer), packet, MOST_BUFFER),
            ]);
        }
        match ranges.into_iter().find(|(_, value, least, most)| !(least..=most).contains(&value)) {
            Some((what, value, least, most)) => Err(OutOfRange { what, value, least, most }),
            None => Ok(()),
        }
    }
}

/// Meaning of a port's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The link of a port, or the input buffer behind the port.
    Link,
    /// The output buffer of a switch's port, and the way into it.
    Output(u8),
    /// A central buffer, and the way into it.
    Central,
}

/// Numbers of ports: first the links of all nodes, then for each switch its output buffers and its central buffers.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    stages: Stages,
    /// Number of links of all nodes.
    links: u32,
    /// Number of a switch's ports.
    ports: u32,
    /// Number of a switch's central buffers.
    central: u32,
}

impl Layout {
    /// Makes the numbers for a network with `links` ports, or says why its switches cannot have these stages.
    pub fn new(network: &Network, links: u32, stages: Stages) -> Result<Self, OutOfRange> {
        let ports = network.peers(0).len() as u32;
        let central =
            stages.centre.map_or(0, |centre| ports.div_ceil(centre.ports.into()) * u32::from(centre.links));
        let inputs = stages.centre.map_or(ports, |centre| u32::from(centre.ports) + central);
        if inputs > MOST_PORTS as u32 {
            let (value, most) = (u64::from(inputs), MOST_PORTS as u64);
            return Err(OutOfRange { what: "number of inputs of an output buffer", value, least: 1, most });
        }
        Ok(Self { stages, links, ports, central })
    }

    /// Number of ports of all switches that are no links.
    pub fn inner(&self, switches: usize) -> usize {
        switches * (self.ports + self.central) as usize
    }

    /// Number of inputs among which a port can choose.
    pub fn most_inputs(&self) -> usize {
        self.stages.centre.map_or(self.ports, |centre| u32::from(centre.ports) + self.central) as usize
    }

    /// Number of groups of ports that have inputs in common, in a switch.
    pub fn groups(&self) -> u32 {
        self.stages.centre.map_or(1, |centre| self.ports.div_ceil(centre.ports.into()))
    }

    /// Returns the meaning of a port's number.
    pub fn place(&self, port: u32) -> Place {
        match port.checked_sub(self.links).map(|inner| inner % (self.ports + self.central)) {
            None => Place::Link,
            Some(nth) if nth < self.ports => Place::Output(nth as u8),
            Some(_) => Place::Central,
        }
    }

    /// Switch of a port that is no link.
    pub fn switch(&self, port: u32) -> u32 {
        (port - self.links) / (self.ports + self.central)
    }

    /// Number of the buffer of a switch's output `port`.
    pub fn output(&self, switch: u32, port: u8) -> u32 {
        self.links + switch * (self.ports + self.central) + u32::from(port)
    }

    /// Numbers of the central buffers behind the MPort of a switch's `port`.
    pub fn central(&self, switch: u32, port: u8) -> Range<u32> {
        let Some(centre) = self.stages.centre else { return 0..0 };
        let first =
            self.output(switch, 0) + self.ports + u32::from(port / centre.ports) * u32::from(centre.links);
        first..first + u32::from(centre.links)
    }

    /// Whether a packet from one port of a switch to another one needs the central crossbar.
    pub fn is_apart(&self, from: u8, to: u8) -> bool {
        self.stages.centre.is_some_and(|centre| from / centre.ports != to / centre.ports)
    }

    /// Group of the inputs among which the way into a buffer chooses, within its switch. `port` is the switch's port, or that
    /// of the central buffer's MPort.
    pub fn group_of_port(&self, port: u8) -> u32 {
        self.stages.centre.map_or(0, |centre| u32::from(port / centre.ports))
    }

    /// Group of the inputs among which a port that is no link chooses, within its switch.
    pub fn group(&self, port: u32) -> u32 {
        match (self.place(port), self.stages.centre) {
            (Place::Output(nth), _) => self.group_of_port(nth),
            (Place::Central, Some(centre)) => self.nth_central(port) / u32::from(centre.links),
            _ => 0,
        }
    }

    fn nth_central(&self, port: u32) -> u32 {
        (port - self.links) % (self.ports + self.central) - self.ports
    }

    /// Index of a buffer among the inputs of the ports that take packets out of it. `port` is the index of a link's port in its
    /// switch.
    pub fn input(&self, buffer: u32, port: u32) -> u8 {
        match (self.place(buffer), self.stages.centre) {
            (Place::Link, Some(centre)) => (port % u32::from(centre.ports)) as u8,
            (Place::Link, None) => port as u8,
            (Place::Output(_), _) => 0,
            (Place::Central, centre) => {
                centre.map_or(0, |centre| centre.ports) + self.nth_central(buffer) as u8
            }
        }
    }

    /// Size of the buffer behind a port that is no link.
    pub fn size(&self, port: u32) -> u32 {
        match (self.place(port), self.stages.centre) {
            (Place::Central, Some(centre)) => centre.buffer,
            _ => self.stages.output,
        }
    }

    /// Cycles that a head needs from the start of its way into a buffer to the choice behind the buffer.
    pub fn delay(&self, port: u32) -> u32 {
        match (self.place(port), self.stages.centre) {
            (Place::Central, Some(centre)) => centre.cross,
            _ => self.stages.store,
        }
    }

    /// Flits a cycle out of a buffer, over a crossbar.
    pub fn speed(&self, buffer: u32) -> u32 {
        match (self.place(buffer), self.stages.centre) {
            (Place::Central, Some(centre)) => centre.speed.into(),
            _ => self.stages.speed.into(),
        }
    }
}

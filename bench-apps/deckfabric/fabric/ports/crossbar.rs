//! Crossbars: which inputs are being read, and how a way over a crossbar chooses its next packet.

use super::Ports;
use crate::{
    packet::{Arena, Packet},
    stages::Place,
};

impl Ports {
    /// Way over the first crossbar of a packet that has come by a link and leaves by `exit`: into the output buffer, or into the
    /// emptier one of its MPort's central buffers.
    pub fn first_stage(&self, node: u32, input: u32, exit: u8) -> u32 {
        let layout = self.layout.expect("a switch has stages");
        let from = self.nth(input);
        if layout.is_apart(from, exit) {
            let links = layout.central(node, from);
            links.min_by_key(|link| self.waiting(*link)).expect("an MPort has a link")
        } else {
            layout.output(node, exit)
        }
    }

    /// Way of a packet out of a central buffer, or out of an output buffer.
    pub fn next_stage(&self, node: u32, buffer: u32, exit: u8) -> u32 {
        let layout = self.layout.expect("a switch has stages");
        match layout.place(buffer) {
            Place::Output(port) => self.port(node, port.into()),
            _ => layout.output(node, exit),
        }
    }

    /// Sets whether an output reads this input.
    pub fn set_read(&mut self, input: u32, is_read: bool) {
        let (bit, node) = (1 << self.input(input), self.node(input));
        let groups = match self.layout {
            None => node..node + 1,
            Some(layout) => {
                let first = self.first.len() as u32 - 1 + node * layout.groups();
                match layout.place(input) {
                    Place::Central => first..first + layout.groups(),
                    _ => {
                        let own = first + layout.group_of_port(self.nth(input));
                        own..own + 1
                    }
                }
            }
        };
        for read in &mut self.read[groups.start as usize..groups.end as usize] {
            *read = if is_read { *read | bit } else { *read & !bit };
        }
    }

    /// Outputs for which a buffer of a switch of stages has packets, beginning with the lane after the one that sent last.
    pub fn wanted<'ports>(
        &'ports self,
        packets: &'ports Arena<Packet>,
        buffer: u32,
    ) -> impl Iterator<Item = u32> + 'ports {
        self.firsts(buffer).map(|at| packets[at].out)
    }

    /// First packets of a buffer's lanes, beginning with the lane after the one that sent or offered last.
    fn firsts(&self, buffer: u32) -> impl Iterator<Item = u32> {
        let lines = &self.input_queues[buffer as usize * self.lanes..][..self.lanes];
        let first = usize::from(self.last_offers[buffer as usize]) + 1;
        let lanes = (first..first + self.lanes).map(|lane| lane % self.lanes);
        lanes.filter_map(|lane| lines[lane].front().copied())
    }

    /// Begins an allocation where inputs offer one lane: each input that no output reads offers the first packet of its next lane.
    /// Adds the outputs that get an offer to `outputs`. Returns whether any first packet has room behind its output, so that
    /// another allocation could grant it.
    pub fn offer_lanes(&mut self, packets: &Arena<Packet>, outputs: &mut Vec<u32>) -> bool {
        self.offered.fill(0);
        let mut has_room = false;
        for buffer in 0..self.count() as u32 {
            let mut offer = None;
            for at in self.firsts(buffer) {
                let Packet { out, out_lane, input, flits, .. } = packets[at];
                if self.is_link(out) || self.read[self.groups[out as usize] as usize] & 1 << input != 0 {
                    break;
                }
                offer.get_or_insert(at);
                has_room |= self.credits.has_room(out, out_lane, u32::from(flits));
            }
            let Some(at) = offer else { continue };
            let Packet { out, input, lane, .. } = packets[at];
            self.last_offers[buffer as usize] = lane;
            if self.offered[out as usize] == 0 {
                outputs.push(out);
            }
            self.offered[out as usize] |= 1 << input;
        }
        has_room
    }

    /// Cycles that a head needs from the start of its way into a buffer of its own switch to the choice behind the buffer.
    pub fn delay(&self, port: u32) -> u32 {
        self.layout.map_or(0, |layout| layout.delay(port))
    }

    /// Flits a cycle that a crossbar takes out of a buffer.
    pub fn speed(&self, buffer: u32) -> u32 {
        self.layout.map_or(1, |layout| layout.speed(buffer))
    }

    /// Chooses the packet that goes over a crossbar into a buffer, if one may: inputs take turns, and then the input's lanes.
    pub fn allocate(&mut self, packets: &Arena<Packet>, port: u32) -> Option<u32> {
        let base = port as usize * self.lanes;
        let mut inputs = match self.offered.get(port as usize) {
            Some(offered) => *offered,
            None => self.inputs[base..][..self.lanes].iter().fold(0, |all, inputs| all | inputs),
        };
        inputs &= !self.read[self.groups[port as usize] as usize];
        let last = u32::from(self.turns[base]);
        while inputs != 0 {
            let behind = inputs & (u64::MAX << last << 1);
            let input = if behind != 0 { behind.trailing_zeros() } else { inputs.trailing_zeros() } as u8;
            if let Some(at) = self.offer(packets, port, input) {
                self.turns[base] = input;
                let Packet { input_port, lane, .. } = packets[at];
                self.last_offers[input_port as usize] = lane;
                return Some(at);
            }
            inputs &= !(1 << input);
        }
        None
    }

    /// First packet of an input for a port that has room for it: the lanes of the input take turns. Where an input offers one lane,
    /// it is the packet of that one.
    fn offer(&self, packets: &Arena<Packet>, port: u32, input: u8) -> Option<u32> {
        let base = port as usize * self.lanes;
        let mut chosen = None;
        let mut last = None;
        for lane in
            (0..self.lanes as u8).filter(|lane| self.inputs[base + usize::from(*lane)] & 1 << input != 0)
        {
            let at = self.queues[self.queue(port, lane, input)].head;
            let Packet { flits, input_port, lane: from, .. } = packets[at];
            let last = *last.get_or_insert_with(|| self.last_offers[input_port as usize]);
            // Number of lanes between the one that sent last and this one.
            let wait = (usize::from(from) + self.lanes - usize::from(last) - 1) % self.lanes;
            let is_offered = self.offered.is_empty() || from == last;
            if is_offered
                && chosen.is_none_or(|(least, _)| wait < least)
                && self.credits.has_room(port, lane, u32::from(flits))
            {
                chosen = Some((wait, at));
            }
        }
        chosen.map(|(_, at)| at)
    }
}

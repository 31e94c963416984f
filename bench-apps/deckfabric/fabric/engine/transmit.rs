//! Transmission: a packet leaves a port, and comes to the next one.

use super::{Engine, Event};
use crate::{
    packet::{Kind, NONE, Packet},
    workload::Workload,
};

impl<W: Workload> Engine<'_, W> {
    /// Sends the chosen packet of a port whose link is free.
    pub(super) fn transmit(&mut self, now: u64, port: u32) {
        let Some(at) = self.choose(now, port) else { return };
        let packet = &mut self.packets[at];
        let (flits, lane, out_lane, input_port) =
            (packet.flits, packet.lane, packet.out_lane, packet.input_port);
        let mut lasts = u32::from(flits);
        if !self.ports.is_link(port) {
            // A packet cannot leave a buffer before it has come in.
            let comes_in = (packet.queued_at + u64::from(packet.lasts)).saturating_sub(now) as u32;
            lasts = lasts.div_ceil(self.ports.speed(input_port)).max(comes_in);
        }
        packet.lasts = lasts;
        let tail_leaves = now + u64::from(lasts);
        if input_port == NONE {
            packet.injected = now;
        } else {
            packet.waited =
                packet.waited.saturating_add((now - packet.queued_at).min(u64::from(u32::MAX)) as u32);
            let upstream = self.ports.peer(input_port);
            let event = Event::Credit { port: upstream, lane, flits };
            let link = if self.ports.is_link(input_port) { self.config.link } else { 0 };
            self.wheel.schedule(tail_leaves + u64::from(link), event);
            if self.config.queues.has_crossbar() || !self.ports.is_link(port) {
                self.ports.set_read(input_port, true);
                let pause = self.config.stages.map_or(0, |stages| stages.pause);
                self.wheel.schedule(tail_leaves + u64::from(pause), Event::Read { input: input_port });
            }
            if let Some(next) = self.ports.pop_from_input(input_port, lane) {
                self.queue_at(now, self.ports.node(input_port) as usize, next);
            }
        }
        self.packets[at].lane = out_lane;
        self.ports.spend(port, out_lane, flits);
        self.free_at[port as usize] = tail_leaves;
        self.wheel.schedule(tail_leaves, Event::Free { port });
        self.measures.carried[port as usize] += u64::from(flits);
        if !self.ports.is_link(port) {
            self.wheel.schedule(now + u64::from(self.ports.delay(port)), Event::Arrive { port, packet: at });
            return;
        }
        let peer = self.ports.peer(port);
        let link = now + u64::from(self.config.link);
        let is_host = self.ports.node(peer) as usize >= self.network.switches();
        let arrives = link + if is_host { u64::from(flits) } else { u64::from(self.config.switch) };
        self.wheel.schedule(arrives, Event::Arrive { port: peer, packet: at });
        if input_port == NONE && self.ports.node(port) as usize >= self.network.switches() {
            self.has_left(now, at);
        }
    }

    /// Takes the next packet out of its queue. At a host, speculative packets whose message has a grant by now are
    /// withdrawn.
    fn choose(&mut self, now: u64, port: u32) -> Option<u32> {
        loop {
            let at = match self.ports.is_link(port) {
                true => self.ports.choose(&self.packets, port)?,
                false => self.ports.allocate(&self.packets, port)?,
            };
            self.ports.remove(&mut self.packets, at);
            let Packet { kind, input_port, .. } = self.packets[at];
            if kind == Kind::Speculative && input_port == NONE && self.withdraw(now, at) {
                continue;
            }
            return Some(at);
        }
    }

    pub(super) fn arrive(&mut self, now: u64, port: u32, at: u32) {
        let node = self.ports.node(port) as usize;
        if node >= self.network.switches() {
            self.deliver(now, at);
            return;
        }
        let packet = &mut self.packets[at];
        (packet.input_port, packet.input, packet.queued_at) = (port, self.ports.input(port), now);
        let lane = packet.lane;
        if self.ports.push_to_input(port, lane, at) {
            self.queue_at(now, node, at);
        }
    }

    /// Puts a packet into the queue of its next hop.
    pub(super) fn queue_at(&mut self, now: u64, node: usize, at: u32) {
        let out = self.next_port(node, at);
        let ends_here = match self.packets[at].kind {
            Kind::Speculative => self.drops(now, at, self.leads_to_host(out)),
            Kind::Reserve => self.leads_to_host(out) && self.grants_here(now, at),
            _ => false,
        };
        if ends_here {
            return;
        }
        self.mark(at, out);
        self.ports.enqueue(&mut self.packets, at);
        self.is_now_due(out);
    }

    /// Whether a port leads to a host.
    pub(super) fn leads_to_host(&self, port: u32) -> bool {
        self.ports.node(self.ports.peer(port)) as usize >= self.network.switches()
    }

    /// Sets a packet's next port and lane. Returns the port.
    fn next_port(&mut self, node: usize, at: u32) -> u32 {
        let has_stages = self.ports.has_stages();
        if has_stages && !self.ports.is_link(self.packets[at].input_port) {
            return self.next_stage(node, at);
        }
        let mut route = self.network.route(node, self.packets[at].to as usize);
        if self.network.has_choices() {
            route = self.choose_way(node, at, route);
        }
        let packet = &mut self.packets[at];
        // Where routes need no channels, a packet stays in the service channel that its host has chosen.
        let stays = self.network.channels() == 1 && self.ports.channels(packet.level) > 1;
        packet.out_lane = if stays { packet.lane } else { self.ports.lane(packet.level, route.vc) };
        packet.out = if has_stages {
            packet.exit = route.port;
            self.ports.first_stage(node as u32, packet.input_port, route.port)
        } else {
            self.ports.port(node as u32, usize::from(route.port))
        };
        packet.out
    }

    /// Sets the next port of a packet that has crossed a crossbar. Returns the port.
    fn next_stage(&mut self, node: usize, at: u32) -> u32 {
        let packet = &mut self.packets[at];
        packet.out_lane = packet.lane;
        packet.out = self.ports.next_stage(node as u32, packet.input_port, packet.exit);
        packet.out
    }

    /// Marks a packet that joins a long queue (ECN).
    fn mark(&mut self, at: u32, out: u32) {
        let Some(ecn) = self.config.congestion.ecn() else { return };
        let packet = &mut self.packets[at];
        if packet.kind == Kind::Data && !packet.marked && self.ports.waiting(out) > ecn.threshold {
            packet.marked = true;
            self.measures.marked += 1;
        }
    }
}

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
        let tail_leaves = now + u64::from(flits);
        if input_port == NONE {
            packet.injected = now;
        } else {
            packet.waited =
                packet.waited.saturating_add((now - packet.queued_at).min(u64::from(u32::MAX)) as u32);
            let upstream = self.ports.peer(input_port);
            let event = Event::Credit { port: upstream, lane, flits };
            self.wheel.schedule(tail_leaves + u64::from(self.config.link), event);
            if self.config.queues.has_crossbar() {
                self.ports.set_read(input_port, true);
                self.wheel.schedule(tail_leaves, Event::Read { input: input_port });
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
            let at = self.ports.choose(&self.packets, port)?;
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
        let packet = &mut self.packets[at];
        let to = packet.to as usize;
        let route = self.network.route(node, to);
        let out = self.ports.port(node as u32, usize::from(route.port));
        (packet.out, packet.out_lane) = (out, self.ports.lane(packet.level, route.vc));
        let is_last_hop = self.ports.node(self.ports.peer(out)) as usize >= self.network.switches();
        if packet.kind == Kind::Speculative && self.drops(now, at, is_last_hop) {
            return;
        }
        self.mark(at, out);
        self.ports.enqueue(&mut self.packets, at);
        self.is_now_due(out);
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

//! Delivery of packets at their hosts.

use super::Engine;
use crate::{
    packet::{Kind, Packet},
    workload::Workload,
};

impl<W: Workload> Engine<'_, W> {
    pub(super) fn deliver(&mut self, now: u64, at: u32) {
        let packet = self.packets[at];
        self.packets.remove(at);
        self.measures.taken[packet.to as usize][packet.kind as usize] += u64::from(packet.flits);
        if packet.kind.is_payload() {
            self.take(now, &packet);
            return;
        }
        if packet.kind != Kind::Reserve {
            self.calendars[packet.to as usize].reserve(now, u32::from(packet.flits));
        }
        // The answer may be late, about a message that is done already: its time was reserved for nothing.
        let is_current = self.messages[packet.message].generation == packet.generation
            && self.messages[packet.message].delivered + self.messages[packet.message].settled
                < 2 * self.messages[packet.message].parts;
        match packet.kind {
            Kind::Reserve => self.grant(now, &packet),
            Kind::Notify => self.notified(now, &packet),
            Kind::Grant if is_current => self.granted(now, &packet),
            Kind::Ack if is_current && packet.about == 0 => self.settle(packet.message),
            Kind::Nack => self.refused(now, &packet),
            _ => {}
        }
    }

    fn take(&mut self, now: u64, packet: &Packet) {
        let Packet { message, flits, injected, kind, .. } = *packet;
        let whole = &mut self.messages[message];
        whole.delivered += 1;
        let class = &mut self.measures.classes[usize::from(whole.class)];
        class.delivered.1 += u64::from(flits);
        class.by_sender[packet.from as usize] += u64::from(flits);
        class.network.record(now - injected).expect("a histogram of any size");
        let is_whole = whole.delivered == whole.parts;
        if is_whole {
            class.delivered.0 += 1;
            class.latency.record(now - whole.created).expect("a histogram of any size");
        }
        let token = whole.token;
        // A packet that was not speculative is settled without an answer.
        if kind == Kind::Speculative || self.config.acks {
            self.control(message, Kind::Ack, false, |ack| ack.about = u32::from(kind == Kind::Data));
        }
        if packet.marked {
            self.control(message, Kind::Notify, false, |_| ());
        }
        if is_whole {
            self.workload.delivered(now, token, &mut self.actions);
            self.apply_actions();
        }
        self.end_if_done(message);
    }

    /// Grants a reservation that has arrived. The time of the reservation packet itself on the link is reserved, too.
    fn grant(&mut self, now: u64, request: &Packet) {
        let Packet { message, generation, from, to, part, about, flits, .. } = *request;
        let after = self.calendars[to as usize].reserve(now, about + u32::from(flits));
        let level = self.config.control_level();
        let answer =
            Packet { message, generation, from: to, to: from, part, about, after, ..Packet::default() };
        let answer = self.make(Packet { flits: 1, level, kind: Kind::Grant, ..answer });
        self.submit(now, answer);
    }

    fn notified(&mut self, now: u64, packet: &Packet) {
        let Some(ecn) = self.config.congestion.ecn() else { return };
        if let Some(flow) = self.flows[packet.to as usize].get_mut(&packet.from) {
            flow.notified(now, ecn);
        }
    }
}

//! Drops of speculative packets: by any switch after a wait (SRP, SMSRP), or by the last one (LHRP). The sender is told.

use super::{Engine, Event};
use crate::{
    congestion::Protocol,
    packet::{Kind, NONE, Packet},
    workload::Workload,
};

impl<W: Workload> Engine<'_, W> {
    /// Drops a speculative packet that has just come to a switch, or starts its patience. Returns whether it was dropped.
    pub(super) fn drops(&mut self, now: u64, at: u32, is_last_hop: bool) -> bool {
        let Packet { message, out, flits, waited, serial, to, .. } = self.packets[at];
        match self.config.congestion.protocol(self.messages[message].flits) {
            Protocol::LastHop if is_last_hop => {
                let threshold = self.config.congestion.lhrp().map_or(u32::MAX, |lhrp| lhrp.threshold);
                let after = self.calendars[to as usize].reserve(now, u32::from(flits));
                // A packet that is let through needs the host's time as well.
                if self.ports.waiting(out) + u32::from(flits) <= threshold {
                    return false;
                }
                self.drop_packet(now, at, after);
                true
            }
            Protocol::Reserve | Protocol::ReserveIfDropped => {
                let patience = self.config.congestion.speculation().map_or(u32::MAX, |srp| srp.patience);
                if waited >= patience {
                    self.drop_packet(now, at, 0);
                    return true;
                }
                let due = now + u64::from(patience - waited);
                self.wheel.schedule(due, Event::Expire { packet: at, serial });
                false
            }
            _ => false,
        }
    }

    pub(super) fn expire(&mut self, now: u64, at: u32, serial: u32) {
        let Packet { queued, input_port, waited, queued_at, .. } = self.packets[at];
        if self.packets[at].serial != serial || !queued || input_port == NONE {
            return;
        }
        let patience = self.config.congestion.speculation().map_or(u32::MAX, |srp| srp.patience);
        // The packet may have gone on to another switch, which has an event of its own.
        if u64::from(waited) + (now - queued_at) >= u64::from(patience) {
            self.ports.remove(&mut self.packets, at);
            self.drop_packet(now, at, 0);
        }
    }

    /// Frees the buffer, and sends a refusal back from this switch.
    fn drop_packet(&mut self, now: u64, at: u32, after: u64) {
        let packet = self.packets[at];
        self.measures.dropped += 1;
        let upstream = self.ports.peer(packet.input_port);
        let event = Event::Credit { port: upstream, lane: packet.lane, flits: packet.flits };
        self.wheel.schedule(now + u64::from(packet.flits) + u64::from(self.config.link), event);
        let node = self.ports.node(packet.input_port) as usize;
        self.packets.remove(at);
        let refusal = self.make(Packet {
            message: packet.message,
            generation: packet.generation,
            from: packet.to,
            to: packet.from,
            flits: 1,
            level: self.config.control_level(),
            kind: Kind::Nack,
            part: packet.part,
            about: u32::from(packet.flits),
            after,
            input: self.ports.own_input(),
            queued_at: now,
            ..Packet::default()
        });
        self.queue_at(now, node, refusal);
    }
}

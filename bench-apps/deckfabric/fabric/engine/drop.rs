//! Drops of speculative packets: by any switch after a wait (SRP, SMSRP, and LHRP with a patience), or by the last one
//! (LHRP). The sender is told.

use super::{Engine, Event};
use crate::{
    congestion::{Protocol, srp::Speculation},
    packet::{Kind, NONE, Packet, UNGRANTED},
    workload::Workload,
};

impl<W: Workload> Engine<'_, W> {
    /// Protocol of a packet's message.
    fn protocol_of(&self, message: u32) -> Protocol {
        self.config.congestion.protocol(self.messages[message].flits)
    }

    /// Drops a speculative packet that has just come to a switch, or starts its patience. Returns whether it was dropped.
    pub(super) fn drops(&mut self, now: u64, at: u32, is_last_hop: bool) -> bool {
        let Packet { message, out, flits, waited, serial, to, .. } = self.packets[at];
        let protocol = self.protocol_of(message);
        if protocol == Protocol::LastHop && is_last_hop {
            let threshold = self.config.congestion.lhrp().map_or(u32::MAX, |lhrp| lhrp.threshold);
            let after = self.calendars[to as usize].reserve(now, u32::from(flits));
            // A packet that is let through needs the host's time as well.
            if self.ports.waiting(out) + u32::from(flits) <= threshold {
                return false;
            }
            self.drop_packet(now, at, after);
            return true;
        }
        let Some(&Speculation { patience, .. }) = self.config.congestion.bounds(protocol) else {
            return false;
        };
        if waited >= patience {
            self.drop_packet(now, at, UNGRANTED);
            return true;
        }
        let due = now + u64::from(patience - waited);
        self.wheel.schedule(due, Event::Expire { packet: at, serial });
        false
    }

    pub(super) fn expire(&mut self, now: u64, at: u32, serial: u32) {
        let Packet { queued, input_port, waited, queued_at, message, out, .. } = self.packets[at];
        if self.packets[at].serial != serial || !queued || input_port == NONE {
            return;
        }
        let protocol = self.protocol_of(message);
        // LHRP's last switch has let the packet through, and has its time in the calendar.
        if protocol == Protocol::LastHop && self.leads_to_host(out) {
            return;
        }
        let Some(&Speculation { patience, .. }) = self.config.congestion.bounds(protocol) else { return };
        // The packet may have gone on to another switch, which has an event of its own.
        if u64::from(waited) + (now - queued_at) >= u64::from(patience) {
            self.ports.remove(&mut self.packets, at);
            self.drop_packet(now, at, UNGRANTED);
        }
    }

    /// Drops a packet, and sends a refusal back from this switch.
    fn drop_packet(&mut self, now: u64, at: u32, after: u64) {
        let Packet { message, flits, .. } = self.packets[at];
        self.measures.classes[usize::from(self.messages[message].class)].dropped += 1;
        let about = u32::from(flits);
        self.answer_here(now, at, Kind::Nack, about, after);
    }

    /// Answers a request for a time in the last switch, which has the host's calendar (LHRP). Returns whether it did.
    pub(super) fn grants_here(&mut self, now: u64, at: u32) -> bool {
        let Packet { message, to, about, .. } = self.packets[at];
        if self.protocol_of(message) != Protocol::LastHop {
            return false;
        }
        let after = self.calendars[to as usize].reserve(now, about);
        self.answer_here(now, at, Kind::Grant, about, after);
        true
    }

    /// Frees a packet's buffer, and sends an answer back from this switch.
    fn answer_here(&mut self, now: u64, at: u32, kind: Kind, about: u32, after: u64) {
        let packet = self.packets[at];
        let upstream = self.ports.peer(packet.input_port);
        let event = Event::Credit { port: upstream, lane: packet.lane, flits: packet.flits };
        self.wheel.schedule(now + u64::from(packet.flits) + u64::from(self.config.link), event);
        let node = self.ports.node(packet.input_port) as usize;
        self.packets.remove(at);
        let answer = self.make(Packet {
            message: packet.message,
            generation: packet.generation,
            from: packet.to,
            to: packet.from,
            flits: 1,
            level: self.config.control_level(),
            lane: self.ports.lane(self.config.control_level(), 0),
            kind,
            part: packet.part,
            about,
            after,
            input: self.ports.own_input(),
            queued_at: now,
            ..Packet::default()
        });
        self.queue_at(now, node, answer);
    }
}

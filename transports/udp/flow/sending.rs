//! Which datagram goes next.

use std::time::Instant;

use super::sent::Load;
use super::{Flow, State, Transmit};
use crate::wire::{AckRanges, Flags, Packet, PacketHeader};

impl Flow {
    /// The next datagram to send, if there is one.
    pub fn transmit(&mut self, now: Instant) -> Option<Transmit> {
        self.transmit_loaded(now).or_else(|| self.transmit_alone(now))
    }

    /// One that does more than to acknowledge.
    pub(crate) fn transmit_loaded(&mut self, now: Instant) -> Option<Transmit> {
        if let Some(code) = self.close.take() {
            let flags = Flags { close: true, ..Flags::default() };
            return Some(self.packet(now, flags, u64::from(code.0)));
        }
        if self.state != State::Open {
            return None;
        }
        if let Some(load) = self.load() {
            return Some(self.loaded(now, load));
        }
        if let Some(size) = self.mtu.probe(now).filter(|_| self.rtt.is_measured() && self.sent.has_room()) {
            return Some(self.loaded(now, Load::Probe(size)));
        }
        None
    }

    /// One that does not: when nothing else carries it.
    fn transmit_alone(&mut self, now: Instant) -> Option<Transmit> {
        if self.state != State::Open {
            return None;
        }
        self.arrivals.due().filter(|due| *due <= now)?;
        // Who only acknowledges is never acknowledged, unless it asks for that now and then.
        let asks = self.arrivals.wants_confirmation() && self.sent.waiting_since().is_none();
        if asks && self.sent.has_room() {
            return Some(self.loaded(now, Load::Ping));
        }
        self.stats.acks_alone += 1;
        let transmit = self.packet(now, Flags::default(), self.outgoing.next());
        self.arrivals.sent(now, false);
        Some(transmit)
    }

    /// What the next packet carries that wants an acknowledgement, if one may go.
    fn load(&mut self) -> Option<Load> {
        let probing = self.probes > 0;
        if !self.sent.has_room() {
            if !probing {
                return None;
            }
            match self.sent.evict() {
                Some(Load::Stream(range)) => _ = self.outgoing.lost(range),
                Some(Load::Piece(message)) => self.settled.push_back((message, true)),
                Some(Load::Ping | Load::Probe(_)) | None => {}
            }
        }
        if probing && self.backoff > 1 && self.probes == 1 {
            // The second of two: short, should it be the length that keeps the others from arriving.
            return Some(Load::Ping);
        }
        let header = self.arrivals.header();
        let room = self.mtu.current() - header;
        if let Some(range) = self.outgoing.peek(room) {
            let size = header + (range.end - range.start) as usize;
            let fits = self.sent.in_flight() + size <= self.congestion.window();
            return (fits || probing).then_some(Load::Stream(range));
        }
        if !probing {
            return self.ping.then_some(Load::Ping);
        }
        let oldest = self.sent.oldest().and_then(|range| self.outgoing.missing(range));
        Some(
            oldest.map_or(Load::Ping, |range| {
                Load::Stream(range.start..range.end.min(range.start + room as u64))
            }),
        )
    }

    fn loaded(&mut self, now: Instant, load: Load) -> Transmit {
        let mut flags = Flags::default();
        let (mut range, mut target) = (self.outgoing.next()..self.outgoing.next(), 0);
        match &load {
            Load::Stream(bytes) => range = bytes.clone(),
            Load::Ping | Load::Piece(_) => flags.ping = true,
            Load::Probe(size) => (flags.probe, target) = (true, *size),
        }
        let number = self.number;
        self.stats.bytes_again += range.end.min(self.outgoing.next()).saturating_sub(range.start);
        self.outgoing.sent(&range);
        flags.last = self.outgoing.peek(1).is_none();
        let told = self.arrivals.tells();
        let mut transmit = self.packet(now, flags, range.start);
        self.arrivals.sent(now, !range.is_empty());
        transmit.padding = target.saturating_sub(transmit.header.bytes().len());
        transmit.range = range;
        let size = transmit.size();
        if flags.probe {
            self.mtu.sent(size, now + 2 * self.patience());
            self.sent.push(number, now, 0, load);
            self.sent.tells(told);
            return transmit;
        }
        if size == self.mtu.current() {
            self.mtu.want();
        }
        self.probes = self.probes.saturating_sub(1);
        self.ping = false;
        self.sent.push(number, now, size, load);
        self.sent.tells(told);
        transmit
    }

    /// A header, with what there is to acknowledge.
    fn packet(&mut self, now: Instant, flags: Flags, offset: u64) -> Transmit {
        let (connection, number, window) = (self.names.theirs, self.number, self.incoming.limit());
        let packet = Packet { connection, number, offset, window, flags, acks: None, payload: &[] };
        let acks: Option<AckRanges<_>> = self.arrivals.acknowledgement(now);
        let header = PacketHeader::new(&packet, acks);
        self.number += 1;
        self.stats.sent += 1;
        Transmit { header, range: 0..0, padding: 0 }
    }
}

//! What a packet does: hands bytes on, releases some, tells of losses.

use std::time::Instant;

use super::arrivals::{MAX_DELAY, Wish};
use super::incoming::NotTaken;
use super::sent::Load;
use super::{Flow, Ignored, State};
use crate::wire::{Acks, Flags, Packet};

impl Flow {
    /// A packet came. `deliver` gets the bytes that are in order now, piece after piece, and has to take them all.
    ///
    /// # Errors
    /// Why it had no effect. Nothing that has to be acted upon.
    pub fn receive(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Ignored> {
        let done = self.take(now, packet, deliver);
        match done {
            Ok(()) => self.stats.received += 1,
            Err(_) => self.stats.ignored += 1,
        }
        done
    }

    fn take(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Ignored> {
        let admitted = self.admits(packet.connection, packet.number, packet.acks.as_ref());
        if let Err(Ignored::Over) = admitted {
            self.say_it_again(packet);
        }
        admitted?;
        if !packet.payload.is_empty() {
            self.incoming.take(packet.offset, packet.payload, deliver).map_err(|why| match why {
                NotTaken::Beyond => Ignored::Protocol("it lies beyond the window"),
                NotTaken::Scattered => Ignored::Scattered,
            })?;
        }
        self.outgoing.allow(packet.window);
        self.note(now, packet.number, wish(packet), packet.acks.as_ref());
        if let Some(code) = packet.close() {
            self.state = State::Closed(code);
        }
        Ok(())
    }

    /// Whether a datagram of the connection may have an effect.
    pub(super) fn admits(
        &self,
        connection: u64,
        number: u64,
        acks: Option<&Acks<'_>>,
    ) -> Result<(), Ignored> {
        if connection != self.names.ours {
            return Err(Ignored::Foreign);
        }
        if self.state != State::Open {
            return Err(Ignored::Over);
        }
        if acks.is_some_and(|acks| acks.largest >= self.number) {
            return Err(Ignored::Protocol("it acknowledges what was not sent"));
        }
        if self.arrivals.knows(number) {
            return Err(Ignored::Duplicate);
        }
        Ok(())
    }

    /// One that has.
    pub(super) fn note(&mut self, now: Instant, number: u64, wish: Wish, acks: Option<&Acks<'_>>) {
        (self.heard, self.asked) = (now, 0);
        self.arrivals.note(now, number, wish);
        if let Some(acks) = acks {
            self.acknowledged(now, acks);
        }
    }

    /// Who goes on sending has not heard that it is over.
    fn say_it_again(&mut self, packet: &Packet<'_>) {
        if let (State::Over(code), None) = (self.state, packet.close()) {
            self.close = Some(code);
        }
    }

    fn acknowledged(&mut self, now: Instant, acks: &Acks<'_>) {
        let used = 2 * self.sent.in_flight() >= self.congestion.window();
        let Flow { sent, outgoing, congestion, mtu, rtt, settled, arrivals, .. } = self;
        let news = sent.acknowledge(acks.ranges(), |packet| {
            match &packet.load {
                Load::Piece(_) if packet.was_given_up() => {}
                Load::Piece(message) => settled.push_back((*message, false)),
                Load::Stream(range) => outgoing.arrived(range.clone()),
                Load::Probe(size) => mtu.arrived(*size),
                Load::Ping => {}
            }
            if let Some(told) = packet.told {
                arrivals.confirmed(told);
            }
            mtu.passed(packet.number, packet.size);
            if packet.was_given_up() {
                rtt.late(now.saturating_duration_since(packet.at));
            }
            congestion.arrived(packet.at, packet.size, used);
        });
        if !news.any {
            return;
        }
        self.stats.spurious += u64::from(news.spurious);
        if let Some(at) = news.largest {
            self.rtt.measure(now.saturating_duration_since(at), acks.delay, MAX_DELAY);
        }
        self.backoff = 0;
        self.find_losses(now);
        if let Some(then) = now.checked_sub(2 * self.patience()) {
            self.sent.forget(then);
        }
    }

    pub(super) fn find_losses(&mut self, now: Instant) {
        let Flow { sent, outgoing, mtu, stats, settled, .. } = self;
        let losses = sent.lose(now, self.rtt.loss_delay(), |packet| {
            match &packet.load {
                Load::Piece(message) => settled.push_back((*message, true)),
                Load::Stream(range) => _ = outgoing.lost(range.clone()),
                Load::Probe(_) => return mtu.failed(),
                Load::Ping => {}
            }
            mtu.missed(now, packet.number, packet.size);
            stats.lost += 1;
        });
        self.congestion.set_datagram(self.mtu.current());
        let Some(at) = losses.last else { return };
        self.congestion.lost(now, at);
        if self.rtt.is_measured() && losses.span > 3 * self.patience() {
            self.congestion.collapsed();
        }
    }
}

fn wish(packet: &Packet<'_>) -> Wish {
    match packet.flags {
        Flags { ping: true, .. } | Flags { probe: true, .. } => Wish::Now,
        _ if packet.payload.is_empty() => Wish::Nothing,
        Flags { last: true, .. } => Wish::Last,
        _ => Wish::Soon,
    }
}

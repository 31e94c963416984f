//! Messages at their senders: packets of posted messages, and what follows when a part was refused.

use super::{BadPost, Engine, Event};
use crate::{
    congestion::Protocol,
    packet::{Kind, Message, Packet, Reservation, UNGRANTED},
    workload::{Post, Workload},
};
use rand::RngExt;

impl<W: Workload> Engine<'_, W> {
    /// Posts a message now.
    pub(super) fn post(&mut self, post: Post) -> Result<(), BadPost> {
        let Post { from, to, flits, level, class, token } = post;
        let (hosts, levels, classes) =
            (self.network.hosts(), self.config.levels, self.measures.classes.len());
        let is_host = |host: u32| (host as usize) < hosts;
        if flits == 0
            || level >= levels
            || usize::from(class) >= classes
            || !is_host(from)
            || !is_host(to)
            || from == to
        {
            return Err(BadPost { from, to, flits, level, hosts, levels, classes });
        }
        let parts = flits.div_ceil(u32::from(self.config.packet));
        let created = self.wheel.now();
        let message = self.messages.add(|old| {
            let generation = old.as_ref().map_or(0, |old| old.generation.wrapping_add(1));
            // The memory of the former message is used again.
            let held = old.map(|old| std::mem::take(&mut old.held)).unwrap_or_default();
            Message {
                generation,
                from,
                to,
                level,
                class,
                flits,
                created,
                token,
                parts,
                held,
                ..Message::default()
            }
        });
        let posted = &mut self.measures.classes[usize::from(class)].posted;
        *posted = (posted.0 + 1, posted.1 + u64::from(flits));
        match self.config.congestion.window(flits) {
            Some(window) => self.start_in_window(message, window),
            None => self.start(message),
        }
        Ok(())
    }

    /// Starts a message within its window (SRP and SMSRP): only so many messages of a pair of hosts are in flight;
    /// the others wait for one of them to be done.
    fn start_in_window(&mut self, message: u32, window: u32) {
        let Message { from, to, .. } = self.messages[message];
        let pair = self.pairs[from as usize].entry(to).or_default();
        if pair.open < window {
            pair.open += 1;
            self.start(message);
        } else {
            pair.waiting.push_back(message);
        }
    }

    /// Starts the next message of a pair: one is done.
    fn start_next(&mut self, from: u32, to: u32) {
        let Some(pair) = self.pairs[from as usize].get_mut(&to) else { return };
        match pair.waiting.pop_front() {
            Some(next) => self.start(next),
            None => pair.open -= 1,
        }
    }

    /// Makes a message's packets, and its reservation.
    fn start(&mut self, message: u32) {
        let Message { flits, parts, .. } = self.messages[message];
        let now = self.wheel.now();
        let protocol = self.config.congestion.protocol(flits);
        if protocol == Protocol::Reserve {
            self.messages[message].reservation = Reservation::Asked;
            self.control(message, Kind::Reserve, true, |packet| packet.about = flits);
        }
        let is_speculative = !matches!(protocol, Protocol::Plain | Protocol::Paced);
        for part in 0..parts {
            let rest = flits - part * u32::from(self.config.packet);
            let flits = rest.min(u32::from(self.config.packet)) as u16;
            let kind = if is_speculative { Kind::Speculative } else { Kind::Data };
            let packet = self.payload(message, part, flits, kind);
            match protocol {
                Protocol::Paced => self.pace(now, packet),
                _ => self.submit(now, packet),
            }
        }
        if !is_speculative {
            self.messages[message].settled = parts;
        }
    }

    fn payload(&mut self, message: u32, part: u32, flits: u16, kind: Kind) -> u32 {
        let Message { generation, from, to, level, .. } = self.messages[message];
        let level = if kind == Kind::Speculative { self.config.speculative_level() } else { level };
        self.make(Packet { message, generation, from, to, flits, level, kind, part, ..Packet::default() })
    }

    /// Sends a control packet about a message, from its sender or from its receiver.
    pub(super) fn control(
        &mut self,
        message: u32,
        kind: Kind,
        from_sender: bool,
        fill: impl FnOnce(&mut Packet),
    ) {
        let Message { generation, from, to, .. } = self.messages[message];
        let (from, to) = if from_sender { (from, to) } else { (to, from) };
        let level = self.config.control_level();
        let mut packet = Packet { message, generation, from, to, flits: 1, level, kind, ..Packet::default() };
        fill(&mut packet);
        let packet = self.make(packet);
        self.submit(self.wheel.now(), packet);
    }

    /// Puts a packet into its host's queue.
    pub(super) fn submit(&mut self, now: u64, at: u32) {
        let packet = &mut self.packets[at];
        let node = self.network.host_node(packet.from as usize) as u32;
        let channels = self.ports.channels(packet.level);
        // Where routes need no channels, packets are spread over the service channels of their level.
        let channel = if self.network.channels() == 1 && channels > 1 {
            self.random.random_range(0..channels)
        } else {
            0
        };
        (packet.out, packet.out_lane) = (self.ports.port(node, 0), self.ports.lane(packet.level, channel));
        (packet.input, packet.queued_at) = (self.ports.own_input(), now);
        let out = packet.out;
        self.ports.enqueue(&mut self.packets, at);
        self.is_now_due(out);
    }

    /// Handles a packet that begins to leave its host.
    pub(super) fn has_left(&mut self, now: u64, at: u32) {
        let Packet { kind, message, from, to, flits, .. } = self.packets[at];
        if !kind.is_payload() {
            return;
        }
        let whole = &mut self.messages[message];
        whole.sent += 1;
        if whole.sent == whole.parts {
            self.workload.sent(now + u64::from(flits), whole.token, &mut self.actions);
            self.apply_actions();
        }
        self.pace_next(now, from, to, flits);
    }

    /// Sends a packet when the gap behind the one before it is over (ECN).
    fn pace(&mut self, now: u64, at: u32) {
        let Packet { from, to, .. } = self.packets[at];
        let flow = self.flows[from as usize].entry(to).or_default();
        if flow.busy {
            flow.waiting.push_back(at);
        } else {
            flow.busy = true;
            self.submit(now, at);
        }
    }

    fn pace_next(&mut self, now: u64, from: u32, to: u32, flits: u16) {
        let Some(ecn) = self.config.congestion.ecn() else { return };
        let Some(flow) = self.flows[from as usize].get_mut(&to) else { return };
        let over = now + u64::from(flits) + flow.gap(now, ecn);
        self.wheel.schedule(over, Event::Gap { host: from, to });
    }

    pub(super) fn gap_is_over(&mut self, now: u64, host: u32, to: u32) {
        let Some(flow) = self.flows[host as usize].get_mut(&to) else { return };
        match flow.waiting.pop_front() {
            Some(at) => self.submit(now, at),
            None => flow.busy = false,
        }
    }

    /// Withdraws a speculative packet that is about to leave, if its message has a grant (SRP). Returns whether it did.
    pub(super) fn withdraw(&mut self, now: u64, at: u32) -> bool {
        let Packet { message, part, flits, .. } = self.packets[at];
        let reservation = self.messages[message].reservation;
        if !matches!(reservation, Reservation::Granted | Reservation::Begun) {
            return false;
        }
        self.packets.remove(at);
        self.send_reserved(now, message, part, flits);
        true
    }

    /// Sends a part without speculation: now, or when the granted time begins.
    fn send_reserved(&mut self, now: u64, message: u32, part: u32, flits: u16) {
        if self.messages[message].reservation == Reservation::Begun {
            self.settle(message);
            let packet = self.payload(message, part, flits, Kind::Data);
            self.submit(now, packet);
        } else {
            self.messages[message].held.push((part, flits));
        }
    }

    /// Counts a part that is known to arrive.
    pub(super) fn settle(&mut self, message: u32) {
        self.messages[message].settled += 1;
        self.end_if_done(message);
    }

    pub(super) fn end_if_done(&mut self, message: u32) {
        let Message { from, to, flits, delivered, settled, parts, .. } = self.messages[message];
        if delivered == parts && settled == parts {
            self.messages.remove(message);
            if self.config.congestion.window(flits).is_some() {
                self.start_next(from, to);
            }
        }
    }

    /// Begins the granted time of a message (SRP).
    pub(super) fn begin_reserved(&mut self, now: u64, message: u32, generation: u32) {
        if self.messages[message].generation != generation {
            return;
        }
        self.messages[message].reservation = Reservation::Begun;
        let mut held = std::mem::take(&mut self.messages[message].held);
        for (part, flits) in held.drain(..) {
            self.send_reserved(now, message, part, flits);
        }
        self.messages[message].held = held;
    }

    /// Handles a grant.
    pub(super) fn granted(&mut self, now: u64, answer: &Packet) {
        let Packet { message, generation, part, about, after, .. } = *answer;
        match self.config.congestion.protocol(self.messages[message].flits) {
            Protocol::Reserve => {
                self.messages[message].reservation = Reservation::Granted;
                self.wheel.schedule(now + after.max(1), Event::Begin { message, generation });
            }
            _ => self.submit_later(now, message, part, about as u16, after),
        }
    }

    /// Handles a refusal: a speculative packet was dropped.
    pub(super) fn refused(&mut self, now: u64, answer: &Packet) {
        let Packet { message, part, about, after, .. } = *answer;
        match self.config.congestion.protocol(self.messages[message].flits) {
            Protocol::Reserve => self.send_reserved(now, message, part, about as u16),
            Protocol::LastHop if after != UNGRANTED => {
                self.submit_later(now, message, part, about as u16, after)
            }
            _ => self
                .control(message, Kind::Reserve, true, |packet| (packet.part, packet.about) = (part, about)),
        }
    }

    fn submit_later(&mut self, now: u64, message: u32, part: u32, flits: u16, after: u64) {
        self.settle(message);
        let packet = self.payload(message, part, flits, Kind::Data);
        self.wheel.schedule(now + after.max(1), Event::Submit { packet });
    }
}

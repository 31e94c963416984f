//! What was sent and not yet heard of: loss detection as RFC 9002, section 6.1 and appendix A, has it. Only packets that
//! ask for an acknowledgement are in it.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant};

use super::arrivals::Told;

/// Most packets that are remembered.
pub const MAX_PACKETS: usize = 4096;
/// A packet is lost when one sent so many later arrived (RFC 9002, `kPacketThreshold`), to begin with ...
const THRESHOLD: u64 = 3;
/// ... and at most this many later on a path that turns out to reorder (section 6.1.1 allows it).
const MOST_THRESHOLD: u64 = 128;

/// What a packet carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Load {
    /// Stream bytes.
    Stream(Range<u64>),
    /// A piece of the message of that number, beside the stream.
    Piece(u64),
    /// Nothing: it asks whether anybody is there.
    Ping,
    /// Nothing, in a datagram of so many bytes.
    Probe(usize),
}

/// A packet.
#[derive(Clone, Debug)]
pub struct Packet {
    pub number: u64,
    pub at: Instant,
    /// Bytes that count as under way. None for a probe: whether it arrives says nothing about congestion.
    pub size: usize,
    pub load: Load,
    /// What it acknowledges.
    pub told: Option<Told>,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Flying,
    Arrived,
    /// Given up at that moment. It is remembered for a while: it may turn out to have been late.
    Lost(Instant),
}

impl Packet {
    /// It was thought to be lost.
    pub fn was_given_up(&self) -> bool {
        matches!(self.fate, Fate::Lost(_))
    }
}

/// What an acknowledgement told.
#[derive(Debug, Default)]
pub struct News {
    /// Something arrived of which that was not known.
    pub any: bool,
    /// When the largest acknowledged packet was sent, if this told of it first.
    pub largest: Option<Instant>,
    /// Packets that had been given up, and arrived.
    pub spurious: u32,
}

/// What is found to be lost at one moment.
#[derive(Debug, Default)]
pub struct Losses {
    /// When the last of them was sent, probes not counted.
    pub last: Option<Instant>,
    /// The longest time between two of them with nothing arrived that was sent in between.
    pub span: Duration,
}

/// The packets, by number.
#[derive(Debug)]
pub struct Sent {
    packets: VecDeque<Packet>,
    flying: usize,
    in_flight: usize,
    largest: Option<u64>,
    threshold: u64,
    last: Option<Instant>,
    loss_time: Option<Instant>,
}

impl Sent {
    pub fn new() -> Self {
        Sent {
            packets: VecDeque::new(),
            flying: 0,
            in_flight: 0,
            largest: None,
            threshold: THRESHOLD,
            last: None,
            loss_time: None,
        }
    }

    /// Bytes under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// When the last packet was sent of which nothing is known, if there is one. Probes do not count.
    pub fn waiting_since(&self) -> Option<Instant> {
        self.last.filter(|_| self.flying > 0)
    }

    /// When [`Sent::lose`] finds more although nothing is heard.
    pub fn loss_time(&self) -> Option<Instant> {
        self.loss_time
    }

    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether another packet can be remembered.
    pub fn has_room(&mut self) -> bool {
        while self.packets.len() >= MAX_PACKETS && self.packets[0].fate != Fate::Flying {
            self.packets.pop_front();
        }
        self.packets.len() < MAX_PACKETS
    }

    /// Forgets the oldest packet: gives it up, unless something is known of it.
    pub fn evict(&mut self) -> Option<Load> {
        let packet = self.packets.pop_front()?;
        if packet.fate != Fate::Flying {
            return None;
        }
        self.landed(&packet);
        Some(packet.load)
    }

    /// `number` is larger than all before it.
    pub fn push(&mut self, number: u64, at: Instant, size: usize, load: Load) {
        if !matches!(load, Load::Probe(_)) {
            self.flying += 1;
            self.last = Some(at);
        }
        self.in_flight += size;
        self.packets.push_back(Packet { number, at, size, load, told: None, fate: Fate::Flying });
    }

    /// What the packet that was pushed last acknowledges.
    pub fn tells(&mut self, told: Option<Told>) {
        if let Some(packet) = self.packets.back_mut() {
            packet.told = told;
        }
    }

    /// The oldest packet with stream bytes of which nothing is known.
    pub fn oldest(&self) -> Option<Range<u64>> {
        self.packets.iter().find_map(|packet| match (&packet.load, packet.fate) {
            (Load::Stream(range), Fate::Flying) => Some(range.clone()),
            _ => None,
        })
    }

    /// The peer has the packets of `ranges`, largest first, and `arrived` is called for those of which that is new.
    pub fn acknowledge(
        &mut self,
        ranges: impl Iterator<Item = RangeInclusive<u64>>,
        mut arrived: impl FnMut(&Packet),
    ) -> News {
        let mut news = News::default();
        let (mut largest, before) = (None, self.largest);
        for range in ranges {
            let end = *range.end();
            if largest.is_none() {
                largest = Some(end);
                self.largest = self.largest.max(largest);
            }
            let from = self.packets.partition_point(|packet| packet.number < *range.start());
            for at in from..self.packets.len() {
                let packet = &mut self.packets[at];
                if packet.number > end {
                    break;
                }
                match packet.fate {
                    Fate::Arrived => continue,
                    Fate::Flying => {
                        if packet.number == end && largest == Some(end) {
                            news.largest = Some(packet.at);
                        }
                        self.in_flight -= packet.size;
                        self.flying -= usize::from(!matches!(packet.load, Load::Probe(_)));
                    }
                    Fate::Lost(_) => {
                        news.spurious += 1;
                        let behind = before.unwrap_or(0).saturating_sub(packet.number) + 1;
                        self.threshold = self.threshold.max(behind.min(MOST_THRESHOLD));
                    }
                }
                news.any = true;
                arrived(packet);
                packet.fate = Fate::Arrived;
            }
        }
        while self.packets.front().is_some_and(|packet| packet.fate == Fate::Arrived) {
            self.packets.pop_front();
        }
        news
    }

    /// Finds what is lost: sent `delay` ago or many packets before one that arrived. `lost` is called for each.
    pub fn lose(&mut self, now: Instant, delay: Duration, mut lost: impl FnMut(&Packet)) -> Losses {
        let mut losses = Losses::default();
        let mut first = None;
        self.loss_time = None;
        let Some(largest) = self.largest else { return losses };
        for packet in self.packets.iter_mut().take_while(|packet| packet.number < largest) {
            match packet.fate {
                Fate::Flying => {}
                Fate::Arrived => {
                    first = None;
                    continue;
                }
                Fate::Lost(_) => continue,
            }
            if packet.at + delay > now && largest < packet.number + self.threshold {
                let due = packet.at + delay;
                self.loss_time = Some(self.loss_time.map_or(due, |time| time.min(due)));
                continue;
            }
            packet.fate = Fate::Lost(now);
            self.in_flight -= packet.size;
            if !matches!(packet.load, Load::Probe(_)) {
                self.flying -= 1;
                losses.last = Some(packet.at);
                losses.span = losses.span.max(packet.at - *first.get_or_insert(packet.at));
            }
            lost(packet);
        }
        losses
    }

    /// Forgets what was given up before `then`, as far as nothing older is under way.
    pub fn forget(&mut self, then: Instant) {
        let old = |packet: &Packet| match packet.fate {
            Fate::Flying => false,
            Fate::Arrived => true,
            Fate::Lost(at) => at < then,
        };
        while self.packets.front().is_some_and(old) {
            self.packets.pop_front();
        }
    }

    fn landed(&mut self, packet: &Packet) {
        self.in_flight -= packet.size;
        self.flying -= usize::from(!matches!(packet.load, Load::Probe(_)));
    }
}

#[cfg(test)]
mod tests;

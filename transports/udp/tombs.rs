//! Connections that are over, for a while: a peer that has not heard so is told when it goes on.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::wire::{AckRanges, Close, Flags, Kind, NUMBERS, Opened, Packet, PacketHeader};

/// How long.
const REST: Duration = Duration::from_secs(5);
/// At most so many; the oldest go first.
const MOST: usize = 16_384;

/// What is left of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Tomb {
    /// The number that the peer gave it.
    pub theirs: u64,
    pub peer: SocketAddr,
}

/// By the number that we gave them.
#[derive(Default)]
pub struct Tombs {
    tombs: HashMap<u64, Tomb>,
    order: VecDeque<(Instant, u64)>,
    said: u64,
}

impl Tombs {
    pub fn add(&mut self, now: Instant, ours: u64, tomb: Tomb) {
        while self.order.len() >= MOST || self.order.front().is_some_and(|(since, _)| *since + REST <= now) {
            if let Some((_, oldest)) = self.order.pop_front() {
                self.tombs.remove(&oldest);
            }
        }
        self.tombs.insert(ours, tomb);
        self.order.push_back((now, ours));
    }

    /// What to say to who sent this, if it was to one of them.
    pub fn answer(&mut self, opened: &Opened<'_>) -> Option<(SocketAddr, Vec<u8>)> {
        let Tomb { theirs, peer } = *self.tombs.get(&opened.connection)?;
        let closes = Packet::decode(opened).is_ok_and(|packet| packet.flags.close);
        self.said += 1;
        (opened.kind == Kind::Packet && !closes).then(|| (peer, farewell(theirs, self.said)))
    }
}

/// Says that a connection is over, to who calls it `theirs`. `nth`: another one each time.
pub fn farewell(theirs: u64, nth: u64) -> Vec<u8> {
    // Far above the packet numbers that the connection used.
    let number = NUMBERS / 2 + nth % (NUMBERS / 4);
    let flags = Flags { close: true, ..Flags::default() };
    let offset = u64::from(Close(0).0);
    let packet = Packet { connection: theirs, number, offset, window: 0, flags, acks: None, payload: &[] };
    let mut header = PacketHeader::new(&packet, None::<AckRanges<std::iter::Empty<_>>>);
    header.seal([]);
    header.bytes().to_vec()
}

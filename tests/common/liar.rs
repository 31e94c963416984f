//! A connection to a mailbox that is no postbox, and sends arbitrary messages.

use std::time::Duration;

use udeck::World;
use udeck::via::{Cq, Deadline, NetAddress, Nic, Receive, Reliability, Vi, ViAttributes};

/// Message kinds of a postbox, from `crates/deck/wire.rs`.
pub const EAGER: u8 = 1;
pub const HAND_OFF: u8 = 2;
pub const ASK_WRITE: u8 = 3;
pub const ASK_COPY: u8 = 4;
pub const FRAGMENT: u8 = 5;
pub const ASK_READ: u8 = 9;
pub const FIN: u8 = 10;
pub const REQUEST: u8 = 11;
pub const ACK: u8 = 12;

/// Number of messages that one postbox may announce at a time, from the same file.
pub const MAX_ANNOUNCED: usize = 16;

/// Number of the pair of the only data VI.
pub const PAIR: u32 = 1;

/// Deadline of an answer: a mailbox answers a lie at once, so it passes only if nothing happens at all.
const DEADLINE: Duration = super::LONG;

pub struct Liar {
    pub vi: Vi,
    cq: Cq,
    to: NetAddress,
}

impl Liar {
    /// Connects to the mailbox "in" of this world.
    pub fn of(world: &World) -> Self {
        Self::at(world.nic(), "in")
    }

    /// Connects to a mailbox of the NIC's own process.
    pub fn at(nic: &Nic, mailbox: &str) -> Self {
        let host = nic.attributes().address.clone();
        let to = NetAddress { host, discriminator: mailbox.as_bytes().to_vec() };
        let cq = Cq::new(nic).unwrap();
        let mut attributes = ViAttributes::new(nic.ptag());
        attributes.receive = Receive::Lent;
        attributes.enable_rdma_read = true;
        attributes.peer = nic.attributes().identity;
        let mut liar = Liar { vi: Vi::new(nic, attributes).unwrap(), cq, to };
        let cq = liar.cq.handle();
        liar.vi.connect(&liar.to, &cq, &cq, &introduction(0), Deadline::after(DEADLINE)).unwrap();
        liar
    }

    pub fn data_vi(&self) -> Vi {
        let mut attributes = ViAttributes::new(self.vi.nic().ptag());
        attributes.reliability = Reliability::Reception;
        attributes.peer = self.vi.attributes().peer;
        let mut vi = Vi::new(self.vi.nic(), attributes).unwrap();
        let cq = self.cq.handle();
        vi.connect(&self.to, &cq, &cq, &introduction(PAIR), Deadline::after(DEADLINE)).unwrap();
        vi
    }

    pub fn say(&mut self, kind: u8, part: u32, immediate: u32, rest: &[u8]) {
        self.vi.send_inline(Some(immediate), &head(kind, part), rest).unwrap();
    }

    /// Lends `len` bytes in place.
    pub fn lend(&mut self, kind: u8, len: usize) {
        let block = self.vi.nic().region(len, self.vi.attributes().ptag).unwrap().into_block().unwrap();
        self.vi.hand_off(Some(0), &head(kind, 0), block).unwrap();
    }
}

/// Introduction of postbox 99 of a rank.
pub fn introduction(pair: u32) -> Vec<u8> {
    [99_u32, pair].iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn head(kind: u8, part: u32) -> [u8; 8] {
    let mut head = [kind, 0, 0, 0, 0, 0, 0, 0];
    head[4..].copy_from_slice(&part.to_le_bytes());
    head
}

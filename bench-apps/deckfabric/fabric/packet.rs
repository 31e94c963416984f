//! Packets and messages in flight, in arenas whose places are used again.

/// Number that stands for no packet or no port.
pub const NONE: u32 = u32::MAX;

/// Wait in a refusal that grants no time.
pub const UNGRANTED: u64 = u64::MAX;

/// Detour of a packet that has none, and of one that has passed its intermediate group.
pub const NO_DETOUR: u16 = 0;
pub const PASSED: u16 = u16::MAX;

/// Kind of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Part of a message, which no switch drops.
    #[default]
    Data,
    /// Part of a message without a grant, which switches may drop.
    Speculative,
    /// Request for a reservation.
    Reserve,
    /// Answer to a reservation.
    Grant,
    /// Report that a speculative packet has arrived.
    Ack,
    /// Report that a speculative packet was dropped.
    Nack,
    /// Report that a packet has arrived with a mark of congestion.
    Notify,
}

/// Number of kinds.
pub const KINDS: usize = 7;

impl Kind {
    /// Whether the packet is part of a message, and not about one.
    pub fn is_payload(self) -> bool {
        matches!(self, Self::Data | Self::Speculative)
    }
}

/// A packet, which is in one place at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Packet {
    /// Place of its message, and below, the message's generation.
    pub message: u32,
    pub generation: u32,
    pub from: u32,
    pub to: u32,
    pub flits: u16,
    pub level: u8,
    pub kind: Kind,
    pub marked: bool,
    /// Whether it is in a queue (of the output `out` and its lane, from the input `input`), and not on a link.
    pub queued: bool,
    /// Lane of the buffer that it is in.
    pub lane: u8,
    pub input: u8,
    pub out_lane: u8,
    /// Port of this switch by which it will leave, where that is not `out`.
    pub exit: u8,
    /// Intermediate group from 1, `NO_DETOUR` or `PASSED`.
    pub detour: u16,
    pub out: u32,
    /// Port by which it came; `NONE` if it was made here.
    pub input_port: u32,
    pub next: u32,
    pub before: u32,
    /// Number of this use of the place.
    pub serial: u32,
    /// Index of the part in its message, from 0.
    pub part: u32,
    /// Number of flits of the reservation or dropped packet that this packet is about.
    pub about: u32,
    /// Cycles to wait, in grants and refusals; `UNGRANTED` in a refusal by a switch without the host's calendar.
    pub after: u64,
    /// Cycle at which it left its host.
    pub injected: u64,
    /// Cycle at which it came into this queue, and below, the cycles that it has waited in others.
    pub queued_at: u64,
    pub waited: u32,
    /// Cycles from its head to its tail in this buffer.
    pub lasts: u32,
}

/// A message, until all of it has arrived and nothing more is expected about it.
#[derive(Clone, Debug, Default)]
pub struct Message {
    pub generation: u32,
    pub from: u32,
    pub to: u32,
    pub level: u8,
    pub class: u8,
    pub flits: u32,
    pub created: u64,
    pub token: u32,
    pub parts: u32,
    /// Number of parts that have left the host at least once.
    pub sent: u32,
    pub delivered: u32,
    /// Number of parts that the sender knows to arrive.
    pub settled: u32,
    /// Reservation for the whole message.
    pub reservation: Reservation,
    /// Refused or withdrawn parts that wait for the grant: index and flits.
    pub held: Vec<(u32, u16)>,
}

/// State of a message's reservation as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reservation {
    #[default]
    None,
    Asked,
    /// Granted for a later time.
    Granted,
    /// Granted, and the time has begun.
    Begun,
}

/// Values at numbered places, which are used again.
pub struct Arena<Value> {
    values: Vec<Value>,
    free: Vec<u32>,
}

impl<Value> Arena<Value> {
    pub fn new() -> Self {
        Self { values: Vec::new(), free: Vec::new() }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// Puts a value at a place, which it returns. `renew` makes the value from the former one.
    pub fn add(&mut self, renew: impl FnOnce(Option<&mut Value>) -> Value) -> u32 {
        match self.free.pop() {
            Some(at) => {
                let value = renew(Some(&mut self.values[at as usize]));
                self.values[at as usize] = value;
                at
            }
            None => {
                self.values.push(renew(None));
                (self.values.len() - 1) as u32
            }
        }
    }

    pub fn remove(&mut self, at: u32) {
        self.free.push(at);
    }
}

impl<Value> std::ops::Index<u32> for Arena<Value> {
    type Output = Value;

    fn index(&self, at: u32) -> &Value {
        &self.values[at as usize]
    }
}

impl<Value> std::ops::IndexMut<u32> for Arena<Value> {
    fn index_mut(&mut self, at: u32) -> &mut Value {
        &mut self.values[at as usize]
    }
}

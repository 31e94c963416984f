//! Packets and messages that are under way, in arenas whose places are used again.

/// No packet, no port.
pub const NONE: u32 = u32::MAX;

/// What a packet is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Part of a message; no switch drops it.
    #[default]
    Data,
    /// Part of a message that was not granted; switches may drop it.
    Speculative,
    /// Asks for a reservation.
    Reserve,
    /// Answers that.
    Grant,
    /// A speculative packet has arrived.
    Ack,
    /// A speculative packet was dropped.
    Nack,
    /// A packet has arrived with a mark of congestion.
    Notify,
}

/// How many kinds there are.
pub const KINDS: usize = 7;

impl Kind {
    /// Whether it is part of a message, and not about one.
    pub fn is_payload(self) -> bool {
        matches!(self, Self::Data | Self::Speculative)
    }
}

/// A packet, which is in one place at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Packet {
    /// Its message, and the message's generation.
    pub message: u32,
    pub generation: u32,
    pub from: u32,
    pub to: u32,
    pub flits: u16,
    pub level: u8,
    pub kind: Kind,
    pub marked: bool,
    /// It is in a queue (of the output `out` and its lane, from the input `input`), and not on a link.
    pub queued: bool,
    /// The lane of the buffer that it is in.
    pub lane: u8,
    pub input: u8,
    pub out_lane: u8,
    pub out: u32,
    /// The port by which it came; `NONE` if it was made here.
    pub came_by: u32,
    pub next: u32,
    pub before: u32,
    /// Which life of this place.
    pub serial: u32,
    /// Of a message, from 0.
    pub part: u32,
    /// What it is about: flits of a reservation, or of a packet that was dropped.
    pub about: u32,
    /// How long to wait: of grants and refusals.
    pub after: u64,
    /// When it left its host.
    pub injected: u64,
    /// When it came into this queue, and how long it has waited in others.
    pub queued_at: u64,
    pub waited: u32,
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
    /// Parts that have left the host at least once.
    pub sent: u32,
    pub delivered: u32,
    /// Parts of which the sender knows that they arrive.
    pub settled: u32,
    /// The next part that is expected, where order is promised.
    pub reservation: Reservation,
    /// Refused or withdrawn parts, until the grant: part and flits.
    pub held: Vec<(u32, u16)>,
}

/// What a message has reserved as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reservation {
    #[default]
    None,
    Asked,
    /// Granted, for a time to come.
    Granted,
    /// That time is there.
    Begun,
}

/// Values at places that are used again.
pub struct Arena<Value> {
    values: Vec<Value>,
    free: Vec<u32>,
}

impl<Value> Arena<Value> {
    pub fn new() -> Self {
        Self { values: Vec::new(), free: Vec::new() }
    }

    /// How many are there.
    pub fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// Puts a value at a place; `renew` makes it from what was there.
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

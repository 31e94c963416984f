//! A packet of a reliable stream.
//!
//! ```text
//!       0         1         2         3         4         5         6         7
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!    0 | 1       | 1       | flags   | ranges  | checksum                              |
//!    8 | connection                                                                    |
//!   16 | packet number: never used twice on a connection                               |
//!   24 | stream offset of the payload's first byte (CLOSE: the code)                   |
//!   32 | window: the receiver of this may send stream bytes up to here                 |
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!   40 | largest packet number received                    (where `ranges` is not zero)|
//!   48 | µs since it was received              | how many before it were, too          |
//!   56 | how many are missing then, less one   | how many before those, less one, were |
//!      |                                       |                  (each further range) |
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!      | payload: stream bytes (PROBE: nothing of meaning)                             |
//! ```

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{FRONT, Kind, Malformed, NUMBERS, Opened, Reader, front};

/// Bytes of a header without acknowledgements. With them, 8 more, and 8 for each range.
pub const HEADER: usize = FRONT + 24;
/// Most ranges of packet numbers that one packet acknowledges.
pub const MAX_RANGES: usize = 32;
/// Longest header.
pub const MAX_HEADER: usize = HEADER + 16 + 8 * (MAX_RANGES - 1);
const _: () = assert!(MAX_HEADER == 304 && HEADER == 40);

/// What a packet is besides its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// It wants to be acknowledged although it has no stream bytes.
    pub ping: bool,
    /// As `ping`, and what follows the header only makes it as long as it is: does the path carry that?
    pub probe: bool,
    /// The connection is over.
    pub close: bool,
    /// Nothing follows it for now: an acknowledgement need not wait for the next.
    pub last: bool,
}

impl Flags {
    fn bits(self) -> u8 {
        let Flags { ping, probe, close, last } = self;
        [ping, probe, close, last].into_iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(flag))
    }

    fn from_bits(bits: u8) -> Result<Self, Malformed> {
        match bits {
            0..16 => {
                let flag = |nth: u8| bits >> nth & 1 != 0;
                Ok(Flags { ping: flag(0), probe: flag(1), close: flag(2), last: flag(3) })
            }
            _ => Err(Malformed::Protocol("a flag that is not known")),
        }
    }
}

/// Why a connection was closed: a number of the user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close(pub u32);

/// A packet that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The number that the receiver gave the connection.
    pub connection: u64,
    /// Its number.
    pub number: u64,
    /// Where its payload belongs.
    pub offset: u64,
    /// Up to where the receiver may send.
    pub window: u64,
    /// What else it is.
    pub flags: Flags,
    /// What it acknowledges.
    pub acks: Option<Acks<'a>>,
    /// Stream bytes; none in a probe.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Decodes what [`super::open`] has checked.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(opened: &Opened<'a>) -> Result<Self, Malformed> {
        if opened.kind != Kind::Packet {
            return Err(Malformed::Protocol("not a packet"));
        }
        let flags = Flags::from_bits(opened.flags)?;
        let mut reader = Reader(opened.rest);
        let (number, offset, window) = (reader.number()?, reader.number()?, reader.u64()?.min(NUMBERS));
        let acks = match opened.ranges {
            0 => None,
            ranges => Some(Acks::decode(&mut reader, ranges)?),
        };
        let payload = if flags.probe { &[][..] } else { reader.0 };
        if offset + payload.len() as u64 > NUMBERS {
            return Err(Malformed::Protocol("a stream beyond all bounds"));
        }
        if flags.close && (u32::try_from(offset).is_err() || !reader.0.is_empty()) {
            return Err(Malformed::Protocol("a close that is more than that"));
        }
        Ok(Packet { connection: opened.connection, number, offset, window, flags, acks, payload })
    }

    /// Whether its sender waits for an acknowledgement.
    pub fn eliciting(&self) -> bool {
        !self.payload.is_empty() || self.flags.ping || self.flags.probe
    }

    /// Why the connection is over, if it is.
    pub fn close(&self) -> Option<Close> {
        self.flags.close.then_some(Close(self.offset as u32))
    }
}

/// The packet numbers that a packet acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acks<'a> {
    /// The largest of them.
    pub largest: u64,
    /// How long its receiver has had that one.
    pub delay: Duration,
    first: u32,
    more: &'a [u8],
}

impl<'a> Acks<'a> {
    pub(super) fn decode(reader: &mut Reader<'a>, ranges: u8) -> Result<Self, Malformed> {
        if usize::from(ranges) > MAX_RANGES {
            return Err(Malformed::Protocol("too many ranges"));
        }
        let largest = reader.number()?;
        let delay = Duration::from_micros(u64::from(reader.u32()?));
        let first = reader.u32()?;
        let more = 8 * (usize::from(ranges) - 1);
        let (more, rest) = reader.0.split_at_checked(more).ok_or(Malformed::Short)?;
        reader.0 = rest;
        let acks = Acks { largest, delay, first, more };
        // Each step down must be one: after this, going through them cannot fail.
        let mut lowest = largest.checked_sub(u64::from(first));
        for (gap, length) in acks.steps() {
            lowest = lowest.and_then(|at| at.checked_sub(u64::from(gap) + 2)?.checked_sub(u64::from(length)));
        }
        lowest.ok_or(Malformed::Protocol("ranges below zero"))?;
        Ok(acks)
    }

    fn steps(&self) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        self.more.chunks_exact(8).map(|step| {
            let number = |at: usize| u32::from_le_bytes([step[at], step[at + 1], step[at + 2], step[at + 3]]);
            (number(0), number(4))
        })
    }

    /// The ranges, largest first; none touches the next.
    pub fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u64>> + use<'a> {
        let mut lowest = self.largest - u64::from(self.first);
        let first = lowest..=self.largest;
        let more = self.steps().map(move |(gap, length)| {
            let largest = lowest - u64::from(gap) - 2;
            lowest = largest - u64::from(length);
            lowest..=largest
        });
        std::iter::once(first).chain(more)
    }
}

/// What a packet to be sent acknowledges.
#[derive(Clone, Copy, Debug)]
pub struct AckRanges<I> {
    /// How long the largest has been here.
    pub delay: Duration,
    /// What was received, largest first, none touching the next.
    pub ranges: I,
}

/// The header of a packet to be sent, by value.
#[derive(Clone, Copy)]
pub struct PacketHeader {
    bytes: [u8; MAX_HEADER],
    len: u16,
}

impl PacketHeader {
    /// A header as `packet` says, whose payload is not looked at. `acks` in the place of `packet.acks`; at most
    /// [`MAX_RANGES`] of its ranges are taken. The checksum is not in it yet: [`super::seal`].
    pub fn new(
        packet: &Packet<'_>,
        acks: Option<AckRanges<impl Iterator<Item = RangeInclusive<u64>>>>,
    ) -> Self {
        let mut header = AckSpace { bytes: [0; MAX_HEADER], len: HEADER as u16 };
        header.bytes[16..24].copy_from_slice(&packet.number.to_le_bytes());
        header.bytes[24..32].copy_from_slice(&packet.offset.to_le_bytes());
        header.bytes[32..40].copy_from_slice(&packet.window.to_le_bytes());
        let ranges = acks.map_or(0, |acks| header.put_acks(acks));
        let front = front(Kind::Packet, packet.flags.bits(), ranges, packet.connection);
        header.bytes[..FRONT].copy_from_slice(&front);
        let AckSpace { bytes, len } = header;
        PacketHeader { bytes, len }
    }

    /// The bytes of it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Closes it over the payload that will follow it: see [`super::seal`].
    pub fn seal<'a>(&mut self, payload: impl IntoIterator<Item = &'a [u8]>) {
        super::seal(&mut self.bytes[..usize::from(self.len)], payload);
    }
}

/// A header that is being made, of a packet or a piece.
pub(super) struct AckSpace<const N: usize> {
    pub bytes: [u8; N],
    pub len: u16,
}

impl<const N: usize> AckSpace<N> {
    pub fn put_acks(&mut self, acks: AckRanges<impl Iterator<Item = RangeInclusive<u64>>>) -> u8 {
        let (mut count, mut lowest) = (0, 0);
        for range in acks.ranges.take(MAX_RANGES) {
            let length = u32::try_from(range.end() - range.start()).unwrap_or(u32::MAX);
            if count == 0 {
                self.put(&range.end().to_le_bytes());
                let delay = u32::try_from(acks.delay.as_micros()).unwrap_or(u32::MAX);
                self.put(&delay.to_le_bytes());
            } else {
                // What lies so far back was acknowledged long ago.
                let Ok(gap) = u32::try_from(lowest - range.end() - 2) else { break };
                self.put(&gap.to_le_bytes());
            }
            self.put(&length.to_le_bytes());
            lowest = range.end() - u64::from(length);
            count += 1;
        }
        count
    }

    pub fn put(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u16;
    }
}

impl std::fmt::Debug for PacketHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x?}", self.bytes())
    }
}

//! Congestion control for many senders to one receiver.
//!
//! | scheme | who notices | what happens |
//! |---|---|---|
//! | [`ecn`] | a switch whose output queue is long marks packets | the receiver notifies the sender, which leaves gaps |
//! | [`srp`] | nobody has to: each message reserves | packets go speculatively until the grant, then at the granted time |
//! | SMSRP | a switch that drops a speculative packet that has waited long | only then the sender reserves |
//! | [`lhrp`] | the last switch, whose queue to the host is long | it drops the packet, and says when to send it again |
//! | [`lhrp`] with a patience | also any other switch, where the packet has waited long | it drops the packet, and the sender asks the last switch for a time |
//!
//! A reservation is that of [`udeck_qos::incast::Receiver`]: `t = max(now, next_free); next_free = t + size`, with a
//! flit for a byte and a cycle for a nanosecond. Packets that arrive beside messages (reservations, grants,
//! acknowledgements) use the host's link, too, so they take time of its calendar: otherwise more would be granted
//! than the link can carry. The sender keeps a part that can be dropped until it is acknowledged.

pub mod ecn;
pub mod lhrp;
pub mod srp;

use std::time::Duration;
use thiserror::Error;
use udeck_qos::incast::{Limits, Receiver};

/// Scheme of congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// No control: credits alone hold senders back.
    None,
    /// ECN: switches mark packets, and senders leave gaps.
    Ecn(ecn::Ecn),
    /// SRP: each message reserves, and is speculative until it is granted.
    Srp(srp::Speculation),
    /// SMSRP: each message is speculative, and reserves when it was dropped.
    Smsrp(srp::Speculation),
    /// LHRP: each message is speculative, and the last switch drops and grants.
    Lhrp(lhrp::Lhrp),
    /// LHRP for messages of up to `most` flits, SRP for longer ones.
    BySize {
        /// Upper bound of a short message in flits.
        most: u32,
        /// Parameters for short messages.
        lhrp: lhrp::Lhrp,
        /// Parameters for long messages.
        srp: srp::Speculation,
    },
}

/// Protocol by which a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The message is sent at once.
    Plain,
    /// The message is sent with gaps between its packets.
    Paced,
    /// SRP: it reserves, and is speculative until it is granted.
    Reserve,
    /// SMSRP: it is speculative, and reserves when it was dropped.
    ReserveIfDropped,
    /// LHRP: it is speculative, and the last switch drops and grants.
    LastHop,
}

impl Congestion {
    /// Returns the protocol for a message of `flits` flits.
    pub fn protocol(&self, flits: u32) -> Protocol {
        match self {
            Self::None => Protocol::Plain,
            Self::Ecn(_) => Protocol::Paced,
            Self::Srp(_) => Protocol::Reserve,
            Self::Smsrp(_) => Protocol::ReserveIfDropped,
            Self::Lhrp(_) => Protocol::LastHop,
            Self::BySize { most, .. } if flits <= *most => Protocol::LastHop,
            Self::BySize { .. } => Protocol::Reserve,
        }
    }

    /// Upper bound of the messages in flight between a pair of hosts; `None` if messages of `flits` flits are not
    /// counted.
    pub(crate) fn window(&self, flits: u32) -> Option<u32> {
        self.bounds(self.protocol(flits)).map(|bounds| bounds.window)
    }

    /// Bounds of speculation of a protocol, if it has any.
    pub(crate) fn bounds(&self, protocol: Protocol) -> Option<&srp::Speculation> {
        match protocol {
            Protocol::Plain | Protocol::Paced => None,
            Protocol::Reserve | Protocol::ReserveIfDropped => self.speculation(),
            Protocol::LastHop => self.lhrp()?.elsewhere.as_ref(),
        }
    }

    pub(crate) fn ecn(&self) -> Option<&ecn::Ecn> {
        match self {
            Self::Ecn(ecn) => Some(ecn),
            _ => None,
        }
    }

    fn speculation(&self) -> Option<&srp::Speculation> {
        match self {
            Self::Srp(srp) | Self::Smsrp(srp) | Self::BySize { srp, .. } => Some(srp),
            _ => None,
        }
    }

    pub(crate) fn lhrp(&self) -> Option<&lhrp::Lhrp> {
        match self {
            Self::Lhrp(lhrp) | Self::BySize { lhrp, .. } => Some(lhrp),
            _ => None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), OutOfRange> {
        self.ecn().map_or(Ok(()), ecn::Ecn::check)?;
        self.speculation().map_or(Ok(()), srp::Speculation::check)?;
        self.lhrp().map_or(Ok(()), lhrp::Lhrp::check)
    }
}

/// A number is out of its range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} is {value}: take {least} to {most}")]
pub struct OutOfRange {
    /// Name of the number.
    pub what: &'static str,
    /// Requested value.
    pub value: u64,
    /// Lower bound.
    pub least: u64,
    /// Upper bound.
    pub most: u64,
}

pub(crate) fn within(what: &'static str, value: u32, least: u32, most: u32) -> Result<(), OutOfRange> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let (value, least, most) = (value.into(), least.into(), most.into());
    Err(OutOfRange { what, value, least, most })
}

/// Reserved time of a host, kept by the host itself or by the switch before it.
pub(crate) struct Calendar(Receiver);

impl Calendar {
    /// Makes the calendar of a host that takes a flit a cycle.
    pub fn new() -> Self {
        Self(Receiver::new(Limits { rate: 1_000_000_000, threshold: 0, largest: u64::MAX }))
    }

    /// Reserves time for `flits` flits. Returns the cycles to wait.
    pub fn reserve(&mut self, now: u64, flits: u32) -> u64 {
        let grant = self.0.reserve(Duration::from_nanos(now), u64::from(flits));
        u64::try_from(grant.after.as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calendar_sells_each_cycle_once() {
        // The expected times follow t = max(now, next_free); next_free = t + size.
        let mut calendar = Calendar::new();
        assert_eq!(calendar.reserve(100, 4), 0);
        assert_eq!(calendar.reserve(100, 4), 4);
        assert_eq!(calendar.reserve(102, 4), 6);
        assert_eq!(calendar.reserve(1000, 4), 0);
    }

    #[test]
    fn the_length_decides() {
        let both =
            Congestion::BySize { most: 16, lhrp: lhrp::Lhrp::default(), srp: srp::Speculation::default() };
        assert_eq!(both.protocol(16), Protocol::LastHop);
        assert_eq!(both.protocol(17), Protocol::Reserve);
    }
}

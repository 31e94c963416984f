//! What is done when many send to one.
//!
//! | scheme | who notices | what happens |
//! |---|---|---|
//! | [`ecn`] | a switch whose output queue is long marks packets | the receiver notifies the sender, which leaves gaps |
//! | [`srp`] | nobody has to: each message reserves | packets go speculatively until the grant, then at the granted time |
//! | SMSRP | a switch that drops a speculative packet that has waited long | only then the sender reserves |
//! | [`lhrp`] | the last switch, whose queue to the host is long | it drops the packet, and says when to send it again |
//!
//! A reservation is [`udeck_qos::incast::Receiver`]'s: `t = max(now, next_free); next_free = t + size`, with a flit for a byte and a
//! cycle for a nanosecond. What arrives beside messages (reservations, grants, acknowledgements) takes the host's link, too, so it takes
//! time of its calendar: otherwise more is granted than the link can carry. What can be dropped is kept by its sender until it is acknowledged.

pub mod ecn;
pub mod lhrp;
pub mod srp;

use std::time::Duration;
use thiserror::Error;
use udeck_qos::incast::{Limits, Receiver};

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// Nothing: credits alone hold senders back.
    None,
    /// Marks, and senders that leave gaps.
    Ecn(ecn::Ecn),
    /// Each message reserves, and is speculative until it is granted.
    Srp(srp::Speculation),
    /// Each message is speculative, and reserves when it was dropped.
    Smsrp(srp::Speculation),
    /// Each message is speculative, and the last switch drops and grants.
    Lhrp(lhrp::Lhrp),
    /// LHRP for messages of up to `most` flits, SRP for longer ones.
    BySize {
        /// Flits.
        most: u32,
        /// For short messages.
        lhrp: lhrp::Lhrp,
        /// For long ones.
        srp: srp::Speculation,
    },
}

/// What a message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// It goes.
    Plain,
    /// It goes, with gaps.
    Paced,
    /// SRP.
    Reserve,
    /// SMSRP.
    ReserveIfDropped,
    /// LHRP.
    LastHop,
}

impl Congestion {
    /// What a message of so many flits does.
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

    /// How many messages of a pair of hosts are under way at most, where it counts messages of so many flits.
    pub(crate) fn window(&self, flits: u32) -> Option<u32> {
        match self.protocol(flits) {
            Protocol::Reserve | Protocol::ReserveIfDropped => self.speculation().map(|srp| srp.window),
            _ => None,
        }
    }

    pub(crate) fn ecn(&self) -> Option<&ecn::Ecn> {
        match self {
            Self::Ecn(ecn) => Some(ecn),
            _ => None,
        }
    }

    pub(crate) fn speculation(&self) -> Option<&srp::Speculation> {
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

/// A number that is not possible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} is {value}: take {least} to {most}")]
pub struct OutOfRange {
    /// What it is.
    pub what: &'static str,
    /// As asked for.
    pub value: u64,
    /// At least.
    pub least: u64,
    /// At most.
    pub most: u64,
}

pub(crate) fn within(what: &'static str, value: u32, least: u32, most: u32) -> Result<(), OutOfRange> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let (value, least, most) = (value.into(), least.into(), most.into());
    Err(OutOfRange { what, value, least, most })
}

/// The time of a host, and until when it is reserved: of the host itself, or of the switch before it.
pub(crate) struct Calendar(Receiver);

impl Calendar {
    /// A host that takes a flit a cycle.
    pub fn new() -> Self {
        Self(Receiver::new(Limits { rate: 1_000_000_000, threshold: 0, largest: u64::MAX }))
    }

    /// How long to wait with so many flits.
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
        // t = max(now, next_free); next_free = t + size.
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

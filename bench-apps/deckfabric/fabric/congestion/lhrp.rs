//! Last-hop reservation protocol: the switch before the host drops packets, and has the host's calendar.
//!
//! With a patience, other switches drop, too: packets that have waited long. These switches have no calendar, so the sender
//! asks for a time, and the last switch answers. Requests cross the links before the last switch, so messages have a window.
//! Without one, ten senders that together want three times what a host takes fill three quarters of its switch's only link
//! with requests.

use super::{OutOfRange, srp::Speculation, within};

/// Parameters of LHRP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lhrp {
    /// Flits in the queue to a host above which speculative packets for it are dropped.
    pub threshold: u32,
    /// Bounds of packets before the last switch, whose patience is that of the other switches. `None`: only the last switch
    /// drops.
    pub elsewhere: Option<Speculation>,
}

impl Default for Lhrp {
    fn default() -> Self {
        Self { threshold: 100, elsewhere: None }
    }
}

impl Lhrp {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        within("lhrp's threshold", self.threshold, 1, 1 << 20)?;
        self.elsewhere.map_or(Ok(()), |bounds| bounds.check())
    }
}

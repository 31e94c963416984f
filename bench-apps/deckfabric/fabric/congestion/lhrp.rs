//! Last-hop reservation protocol: the switch before the host drops packets, and has the host's calendar.

use super::{OutOfRange, within};

/// Parameters of LHRP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lhrp {
    /// Flits in the queue to a host above which speculative packets for it are dropped.
    pub threshold: u32,
}

impl Default for Lhrp {
    fn default() -> Self {
        Self { threshold: 100 }
    }
}

impl Lhrp {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        within("lhrp's threshold", self.threshold, 1, 1 << 20)
    }
}

//! Abilities that not every transport has.

use std::fmt;

/// Abilities that not every transport has. Upper layers decide by these, never by a transport's name.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Caps(u32);

impl Caps {
    /// RDMA write.
    pub const RDMA_WRITE: Caps = Caps(1);
    /// RDMA read.
    pub const RDMA_READ: Caps = Caps(1 << 1);
    /// The receiver can be given the sender's own buffer, without a copy.
    pub const HAND_OFF: Caps = Caps(1 << 2);
    /// Unreliable delivery.
    pub const UNRELIABLE: Caps = Caps(1 << 3);
    /// Reliable delivery.
    pub const RELIABLE_DELIVERY: Caps = Caps(1 << 4);
    /// Reliable reception.
    pub const RELIABLE_RECEPTION: Caps = Caps(1 << 5);

    /// The transport sends by [service levels](crate::ViAttributes::level), or marks its data so that the network does.
    pub const SERVICE_LEVELS: Caps = Caps(1 << 6);

    const NAMES: [(Caps, &'static str); 7] = [
        (Caps::RDMA_WRITE, "rdma-write"),
        (Caps::RDMA_READ, "rdma-read"),
        (Caps::HAND_OFF, "hand-off"),
        (Caps::UNRELIABLE, "unreliable-delivery"),
        (Caps::RELIABLE_DELIVERY, "reliable-delivery"),
        (Caps::RELIABLE_RECEPTION, "reliable-reception"),
        (Caps::SERVICE_LEVELS, "service-levels"),
    ];

    /// Whether `self` has all abilities of `other`.
    pub fn has(self, other: Caps) -> bool {
        self.0 & other.0 == other.0
    }

    /// The abilities of `self` that are not in `other`.
    #[must_use]
    pub fn without(self, other: Caps) -> Caps {
        Caps(self.0 & !other.0)
    }
}

impl std::ops::BitOr for Caps {
    type Output = Caps;
    fn bitor(self, other: Caps) -> Caps {
        Caps(self.0 | other.0)
    }
}

impl fmt::Display for Caps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> =
            Caps::NAMES.iter().filter(|(cap, _)| self.has(*cap)).map(|(_, name)| *name).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(" | "))
    }
}

impl fmt::Debug for Caps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Caps({self})")
    }
}

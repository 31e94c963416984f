//! What a NIC and a VI are like: abilities, limits, settings.

use std::fmt;

use crate::caps::Caps;
use crate::mem::Ptag;

/// VIA's three reliability levels (the guarantees are the specification's table).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reliability {
    /// At most once, in any order, losses unnoticed.
    Unreliable,
    /// Exactly once, in order; a send is done when its data left the sender.
    #[default]
    Delivery,
    /// Exactly once, in order; a send is done when its data arrived at the receiver.
    Reception,
}

impl Reliability {
    /// The ability a NIC needs for this level.
    pub fn cap(self) -> Caps {
        match self {
            Reliability::Unreliable => Caps::UNRELIABLE,
            Reliability::Delivery => Caps::RELIABLE_DELIVERY,
            Reliability::Reception => Caps::RELIABLE_RECEPTION,
        }
    }
}

/// A service level, 0 to 15 (InfiniBand's SL): whose data go first where a transport or a network has to choose. What a level
/// means, the tables of the transport or the network say. 0 unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ServiceLevel(u8);

impl ServiceLevel {
    /// The highest number.
    pub const MAX: u8 = 15;

    /// The level of that number; `None` above 15.
    pub const fn new(level: u8) -> Option<Self> {
        if level <= Self::MAX { Some(ServiceLevel(level)) } else { None }
    }

    /// Its number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for ServiceLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// How a VI's receive queue gets its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Receive {
    /// Into descriptors that the program posted, in order (VIA's way). A message that finds none is an error.
    #[default]
    Posted,
    /// Lent by the transport where they lie, until dropped.
    Lent,
}

/// What a NIC can do and where its limits are (VIA: `VIP_NIC_ATTRIBUTES`). Sizes in bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NicAttributes {
    /// The device, e.g. `shm0`.
    pub name: String,
    /// Where peers reach it; opaque outside the transport.
    pub address: Vec<u8>,
    /// The rank of the job that it proves to be to its peers; `None`: it proves only to know the job's secret.
    pub identity: Option<u32>,
    /// Abilities.
    pub caps: Caps,
    /// Whether it reaches processes of this host only.
    pub host_only: bool,
    /// Whether all that it sends to other hosts is encrypted and authenticated on the whole path.
    pub encrypted: bool,
    /// Longest discriminator a connection may be made by.
    pub max_discriminator: usize,
    /// Longest private data that travels with a connection request or its answer.
    pub max_private_data: usize,
    /// Descriptors that may be outstanding on one queue.
    pub max_descriptors_per_queue: usize,
    /// Segments in one descriptor.
    pub max_segments: usize,
    /// Largest message.
    pub max_transfer: usize,
    /// Largest message that travels inside the descriptor: copied when posted, done at once.
    pub max_inline: usize,
    /// Largest header that travels with a lent buffer.
    pub max_head: usize,
    /// Work queues that one completion queue can watch.
    pub max_queues_per_cq: usize,
    /// Completion queues.
    pub max_cq: usize,
    /// Entries of one completion queue: work queues attached and software events pending, together.
    pub max_cq_entries: usize,
    /// Windows that may be exposed at a time.
    pub max_windows: usize,
    /// Connections that peers have made, and requests of theirs that wait, at a time. A connection counts until nothing of
    /// it is left on this side: the VI is gone, and the peer uses nothing of it any more. One rank may have
    /// [a part](NicAttributes::max_connections_of_a_rank) of them.
    pub max_connections: usize,
    /// Whether what comes over all its connections shares one buffer (a socket's `SO_RCVBUF`) until it is taken in. What overflows that is lost,
    /// and comes again after a while.
    pub shares_receive_buffer: bool,
    /// Whether registering the program's memory pins it: `RLIMIT_MEMLOCK` is a bound then.
    pub pins_memory: bool,
    /// Pieces of the program's memory that may be registered at a time, those that the cache keeps included (VIA:
    /// `MaxRegisterRegions`).
    pub max_registrations: usize,
    /// Their bytes (VIA: `MaxRegisterBytes`).
    pub max_registered_bytes: usize,
}

/// Where a connection takes nothing that is scarcer than memory.
const MAX_CONNECTIONS: usize = 1 << 16;
/// One rank may have so many connections, unless that leaves less than half for others.
const CONNECTIONS_OF_A_RANK: usize = 8192;
/// Where registering takes nothing but an entry in a table.
const MAX_REGISTRATIONS: usize = 1 << 16;

impl NicAttributes {
    /// Attributes of a device that can do nothing yet; transports fill in what they have. Registering memory takes
    /// nothing but an entry in a table, and a connection nothing but memory, unless they say otherwise.
    pub fn new(name: impl Into<String>) -> Self {
        NicAttributes {
            name: name.into(),
            address: Vec::new(),
            identity: None,
            caps: Caps::default(),
            host_only: false,
            encrypted: false,
            max_discriminator: 0,
            max_private_data: 0,
            max_descriptors_per_queue: 0,
            max_segments: 0,
            max_transfer: 0,
            max_inline: 0,
            max_head: 0,
            max_queues_per_cq: 0,
            max_cq: 0,
            max_cq_entries: 0,
            max_windows: 0,
            max_connections: MAX_CONNECTIONS,
            shares_receive_buffer: false,
            pins_memory: false,
            max_registrations: MAX_REGISTRATIONS,
            max_registered_bytes: isize::MAX as usize,
        }
    }

    /// Of [`max_connections`](NicAttributes::max_connections), what one other rank may have: a quarter, or 8192 where that
    /// is more, and never more than half. The NIC's own rank may have all.
    pub fn max_connections_of_a_rank(&self) -> usize {
        (self.max_connections / 4).max(CONNECTIONS_OF_A_RANK).min(self.max_connections / 2)
    }

    /// Of [`max_connections`](NicAttributes::max_connections), what all those may have together that do not prove to be a
    /// rank, and so cannot be told apart: half; all where this NIC is no rank's.
    pub fn max_connections_of_others(&self) -> usize {
        if self.identity.is_some() { self.max_connections / 2 } else { self.max_connections }
    }
}

/// Settings of a VI (VIA: `VIP_VI_ATTRIBUTES`).
#[derive(Clone, Copy, Debug)]
pub struct ViAttributes {
    /// Reliability level; both ends of a connection have the same.
    pub reliability: Reliability,
    /// How the receive queue gets its buffers.
    pub receive: Receive,
    /// Memory used with this VI carries the same tag.
    pub ptag: Ptag,
    /// Whether the peer may RDMA-write into windows of this VI's tag.
    pub enable_rdma_write: bool,
    /// Whether the peer may RDMA-read windows of this VI's tag.
    pub enable_rdma_read: bool,
    /// The rank of the job that must be at the other end. When this VI asks for a connection, both sides prove who they
    /// are, by the keys that their NICs were opened with; when it accepts one, the requester must have proved that. `None`:
    /// anybody who knows the job's secret, and this side says no more of itself either.
    pub peer: Option<u32>,
    /// The level of what this VI sends, which is not the other end's (VIA: `QoS`). It counts where the NIC has
    /// [`Caps::SERVICE_LEVELS`], and for nothing elsewhere.
    pub level: ServiceLevel,
    /// Named by completion-queue entries; the program's own.
    pub context: u64,
}

impl ViAttributes {
    /// Reliable delivery, posted receives, no remote access.
    pub fn new(ptag: Ptag) -> Self {
        ViAttributes {
            reliability: Reliability::Delivery,
            receive: Receive::Posted,
            ptag,
            enable_rdma_write: false,
            enable_rdma_read: false,
            peer: None,
            level: ServiceLevel::default(),
            context: 0,
        }
    }
}

/// Where a connection is made: a host (a NIC's address) and a discriminator on it (VIA: `VIP_NET_ADDRESS`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NetAddress {
    /// A NIC's [`NicAttributes::address`].
    pub host: Vec<u8>,
    /// Which listener there; compared by length and bytes.
    pub discriminator: Vec<u8>,
}

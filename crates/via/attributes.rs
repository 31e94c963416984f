//! Attributes of a NIC and of a VI: abilities, limits, settings.

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
    /// The ability that a NIC needs for this level.
    pub fn cap(self) -> Caps {
        match self {
            Reliability::Unreliable => Caps::UNRELIABLE,
            Reliability::Delivery => Caps::RELIABLE_DELIVERY,
            Reliability::Reception => Caps::RELIABLE_RECEPTION,
        }
    }
}

/// A service level, 0 to 15 (InfiniBand's SL): priority class of data where a transport or a network has to choose. The
/// tables of the transport or the network define the meaning of each level. 0 unless set otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ServiceLevel(u8);

impl ServiceLevel {
    /// The highest level.
    pub const MAX: u8 = 15;

    /// The level of this number; `None` above 15.
    pub const fn new(level: u8) -> Option<Self> {
        if level <= Self::MAX { Some(ServiceLevel(level)) } else { None }
    }

    /// The level's number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for ServiceLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Source of a VI's receive buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Receive {
    /// Descriptors that the program posted, in order (VIA's way). A message that finds none is an error.
    #[default]
    Posted,
    /// Memory in which the message lies, lent by the transport until it is dropped.
    Lent,
}

/// Abilities and limits of a NIC (VIA: `VIP_NIC_ATTRIBUTES`). Sizes in bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NicAttributes {
    /// Name of the device, e.g. `shm0`.
    pub name: String,
    /// Address at which peers reach it; opaque outside the transport.
    pub address: Vec<u8>,
    /// The rank of the job that the NIC proves to be to its peers; `None`: it proves only that it knows the job's secret.
    pub identity: Option<u32>,
    /// Abilities.
    pub caps: Caps,
    /// Whether the NIC reaches processes of this host only.
    pub host_only: bool,
    /// Whether everything that the NIC sends to other hosts is encrypted and authenticated on the whole path.
    pub encrypted: bool,
    /// Longest discriminator of a connection.
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
    /// Upper bound of connections that peers have made and requests of theirs that wait, at a time. A connection counts until
    /// nothing of it is left on this side: the VI is gone, and the peer uses nothing of it any more. One rank may have [a
    /// part](NicAttributes::max_connections_of_a_rank) of them.
    pub max_connections: usize,
    /// Whether the arrivals of all its connections share one buffer (a socket's `SO_RCVBUF`) until they are taken in. Data
    /// that overflow the buffer are lost, and are sent again after a while.
    pub shares_receive_buffer: bool,
    /// Whether registering the program's memory pins it: `RLIMIT_MEMLOCK` is a bound then.
    pub pins_memory: bool,
    /// Pieces of the program's memory that may be registered at a time, those that the cache keeps included (VIA:
    /// `MaxRegisterRegions`).
    pub max_registrations: usize,
    /// Bytes of all registered pieces together (VIA: `MaxRegisterBytes`).
    pub max_registered_bytes: usize,
}

/// Bound of connections, for a NIC whose connections take nothing that is scarcer than memory.
const MAX_CONNECTIONS: usize = 1 << 16;
/// Connections that one rank may have, unless that leaves less than half for others.
const CONNECTIONS_OF_A_RANK: usize = 8192;
/// Bound of registrations, for a NIC whose registrations take nothing but an entry in a table.
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

    /// The part of [`max_connections`](NicAttributes::max_connections) that one other rank may have: a quarter, or 8192 where
    /// that is more, and never more than half. The NIC's own rank may have all.
    pub fn max_connections_of_a_rank(&self) -> usize {
        (self.max_connections / 4).max(CONNECTIONS_OF_A_RANK).min(self.max_connections / 2)
    }

    /// The part of [`max_connections`](NicAttributes::max_connections) that is shared by all processes that do not prove to
    /// be a rank, and so cannot be told apart: half; all where this NIC is no rank's.
    pub fn max_connections_of_others(&self) -> usize {
        if self.identity.is_some() { self.max_connections / 2 } else { self.max_connections }
    }
}

/// Settings of a VI (VIA: `VIP_VI_ATTRIBUTES`).
#[derive(Clone, Copy, Debug)]
pub struct ViAttributes {
    /// Reliability level; both ends of a connection have the same.
    pub reliability: Reliability,
    /// Source of the receive queue's buffers.
    pub receive: Receive,
    /// Memory used with this VI carries the same tag.
    pub ptag: Ptag,
    /// Whether the peer may RDMA-write into windows of this VI's tag.
    pub enable_rdma_write: bool,
    /// Whether the peer may RDMA-read windows of this VI's tag.
    pub enable_rdma_read: bool,
    /// The rank of the job that must be at the other end. When this VI asks for a connection, both sides prove which rank
    /// they are, by the keys that their NICs were opened with; when it accepts one, the requester must have proved to be that
    /// rank. `None`: any process that knows the job's secret, and this side proves no more of itself either.
    pub peer: Option<u32>,
    /// Service level of the data that this VI sends; the other end has its own (VIA: `QoS`). It has an effect where the NIC
    /// has [`Caps::SERVICE_LEVELS`], and none elsewhere.
    pub level: ServiceLevel,
    /// The program's number of this VI, which completion-queue entries carry.
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

/// Address of a connection: a host (a NIC's address) and a discriminator on it (VIA: `VIP_NET_ADDRESS`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NetAddress {
    /// A NIC's [`NicAttributes::address`].
    pub host: Vec<u8>,
    /// Discriminator of a listener there; compared by length and bytes.
    pub discriminator: Vec<u8>,
}

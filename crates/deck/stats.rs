//! Reports on the library's work: counters of messages, copies and registrations, and traces.
//!
//! | file | contents |
//! |---|---|
//! | here | the counters |
//! | `metrics` | counters as text: a table, and Prometheus's format |
//! | `trace` | events of messages in the trace |
//! | `span` | spans of the program's own in the trace |
//! | `tracing_job` | how a job's trace is begun, and gathered from all ranks |

pub(crate) mod metrics;
pub(crate) mod span;
pub(crate) mod trace;
pub(crate) mod tracing_job;

use std::sync::atomic::{AtomicU64, Ordering};

use udeck_qos::pacing::weight;
use udeck_via::mem::CacheUse;

use crate::protocol::Protocol;

/// Counters of the library on this rank. Bytes are payload; headers are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Messages accepted by `post`.
    pub messages_posted: u64,
    /// Payload bytes of these messages.
    pub bytes_posted: u64,
    /// Messages given out by `retrieve`.
    pub messages_retrieved: u64,
    /// Payload bytes of these messages.
    pub bytes_retrieved: u64,
    /// Bytes that the library copied on this rank for posting and retrieving, including groups' calls.
    pub bytes_copied: u64,
    /// Registrations of memory that the library did not allocate ([`crate::ExternalBuf`], and the program's own at the NIC).
    pub registrations: CacheUse,
}

/// Counters of one mailbox or postbox. One thread writes at a time, so adding is a load and a store, not a
/// read-modify-write; any thread may read.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    messages_posted: AtomicU64,
    bytes_posted: AtomicU64,
    messages_retrieved: AtomicU64,
    bytes_retrieved: AtomicU64,
    bytes_copied: AtomicU64,
    /// Messages posted by each protocol except `eager`, in the order of [`PROTOCOLS`].
    by_protocol: [AtomicU64; 5],
    waits: AtomicU64,
}

/// Protocols with a counter, in the order of [`Counters::by`]. Messages posted by none of them were posted by
/// `eager`.
const PROTOCOLS: [Protocol; 5] =
    [Protocol::HandOff, Protocol::Copy, Protocol::RdmaWrite, Protocol::RdmaRead, Protocol::Handshake];

/// Counters of messages between this rank and another one, including those of groups' calls. Bytes are
/// payload; headers are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStats {
    /// The other rank.
    pub peer: usize,
    /// Messages posted to the other rank.
    pub messages_posted: u64,
    /// Payload bytes of these messages.
    pub bytes_posted: u64,
    /// Messages that have arrived from the other rank: taken from their connections, but perhaps not
    /// retrieved yet.
    pub messages_received: u64,
    /// Payload bytes of these messages.
    pub bytes_received: u64,
    /// Bytes copied on this rank for posting to the other rank.
    pub bytes_copied: u64,
    /// Number of posted messages by protocol.
    pub by_protocol: Vec<(Protocol, u64)>,
    /// Number of posts and flushes that have waited for the other rank longer than a moment.
    pub waits: u64,
    /// Packets retransmitted to the other rank, by TCP (`tcpi_total_retrans`) or QUIC (RFC 9002's lost
    /// packets), on the connections to its mailboxes that exist now. 0 over shared memory and verbs.
    pub retransmissions: u64,
}

impl PeerStats {
    pub(crate) fn new(peer: u32) -> Self {
        PeerStats { peer: peer as usize, ..PeerStats::default() }
    }

    fn add_protocol(&mut self, protocol: Protocol, count: u64) {
        match self.by_protocol.iter_mut().find(|(known, _)| *known == protocol) {
            Some((_, sum)) => *sum += count,
            None if count > 0 => self.by_protocol.push((protocol, count)),
            None => {}
        }
    }
}

/// Counters of arrivals on one connection. As in [`Counters`], one thread writes at a time.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// Number of messages, including refused ones.
    messages: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicU64,
}

impl Arrivals {
    /// Counts another message, and returns its sequence number, modulo 2³².
    #[inline]
    pub fn take(&self, bytes: usize) -> u32 {
        let number = self.messages.load(Ordering::Relaxed);
        self.messages.store(number + 1, Ordering::Relaxed);
        add(&self.bytes, bytes);
        number as u32
    }

    /// Arrivals so far, as incast control weighs them.
    pub fn weight(&self) -> u64 {
        weight(self.messages.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Counts a message that its postbox counted and that does not arrive.
    pub fn refuse(&self) {
        add(&self.messages, 1);
        add(&self.refused, 1);
    }

    pub fn add_to_peer(&self, stats: &mut PeerStats) {
        let refused = self.refused.load(Ordering::Relaxed);
        stats.messages_received += self.messages.load(Ordering::Relaxed).saturating_sub(refused);
        stats.bytes_received += self.bytes.load(Ordering::Relaxed);
    }

    /// Counts `messages` messages of `bytes` bytes together, and returns the sequence number of the first.
    #[inline]
    pub fn take_run(&self, messages: usize, bytes: usize) -> u32 {
        let number = self.messages.load(Ordering::Relaxed);
        self.messages.store(number + messages as u64, Ordering::Relaxed);
        add(&self.bytes, bytes);
        number as u32
    }
}

#[inline]
fn add(counter: &AtomicU64, more: usize) {
    counter.store(counter.load(Ordering::Relaxed) + more as u64, Ordering::Relaxed);
}

impl Counters {
    #[inline]
    pub fn posted(&self, bytes: usize) {
        add(&self.messages_posted, 1);
        add(&self.bytes_posted, bytes);
    }

    /// Counts `messages` posted messages of `each` bytes each.
    pub fn posted_run(&self, messages: usize, each: usize) {
        add(&self.messages_posted, messages);
        add(&self.bytes_posted, messages * each);
    }

    #[inline]
    pub fn retrieved(&self, bytes: usize) {
        add(&self.messages_retrieved, 1);
        add(&self.bytes_retrieved, bytes);
    }

    /// Retrieved messages, as incast control weighs them.
    pub fn weight_retrieved(&self) -> u64 {
        weight(self.messages_retrieved.load(Ordering::Relaxed), self.bytes_retrieved.load(Ordering::Relaxed))
    }

    #[inline]
    pub fn copied(&self, bytes: usize) {
        add(&self.bytes_copied, bytes);
    }

    /// Number of messages posted so far.
    pub fn messages_posted(&self) -> u64 {
        self.messages_posted.load(Ordering::Relaxed)
    }

    /// Counts a message posted by this protocol.
    #[inline]
    pub fn by(&self, protocol: Protocol) {
        let nth = match protocol {
            Protocol::HandOff => 0,
            Protocol::Copy => 1,
            Protocol::RdmaWrite => 2,
            Protocol::RdmaRead => 3,
            Protocol::Handshake => 4,
            Protocol::Auto | Protocol::Eager => return,
        };
        add(&self.by_protocol[nth], 1);
    }

    /// Counts a call that waits.
    pub fn waited(&self) {
        add(&self.waits, 1);
    }

    pub fn add_to_peer(&self, stats: &mut PeerStats) {
        let posted = self.messages_posted.load(Ordering::Relaxed);
        stats.messages_posted += posted;
        stats.bytes_posted += self.bytes_posted.load(Ordering::Relaxed);
        stats.bytes_copied += self.bytes_copied.load(Ordering::Relaxed);
        stats.waits += self.waits.load(Ordering::Relaxed);
        let counts = [0, 1, 2, 3, 4].map(|nth| self.by_protocol[nth].load(Ordering::Relaxed));
        stats.add_protocol(Protocol::Eager, posted.saturating_sub(counts.iter().sum()));
        PROTOCOLS.iter().zip(counts).for_each(|(protocol, count)| stats.add_protocol(*protocol, count));
    }

    /// Adds these counters to a rank's. `is_internal`: they count the library's own messages, of which only
    /// the copies count.
    pub fn add_to(&self, stats: &mut Stats, is_internal: bool) {
        stats.bytes_copied += self.bytes_copied.load(Ordering::Relaxed);
        if is_internal {
            return;
        }
        stats.messages_posted += self.messages_posted.load(Ordering::Relaxed);
        stats.bytes_posted += self.bytes_posted.load(Ordering::Relaxed);
        stats.messages_retrieved += self.messages_retrieved.load(Ordering::Relaxed);
        stats.bytes_retrieved += self.bytes_retrieved.load(Ordering::Relaxed);
    }
}

//! Admission: connections with a bandwidth and a latency become entries of InfiniBand's high table.
//!
//! A latency becomes a distance between entries, rounded down to a power of two. A bandwidth becomes a weight: units
//! of 64 bytes in a *frame*, which is the time that a table of 64 full entries takes. Connections of a lane share
//! sequences of entries while these have weight left. The weight of a sequence is that of the sum of its connections'
//! bandwidths, rounded up once, so a sequence of many slow connections wastes less than one unit.

use crate::{
    analysis::{time_of, wait_bytes_at},
    sequences::{Move, SequenceId, Sequences},
    table::{ENTRIES, Entry, LANES, MANAGEMENT_VL},
};
use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    time::Duration,
};
use thiserror::Error;

/// Upper bound of an entry's weight in units.
const MOST_WEIGHT: u64 = u8::MAX as u64;
/// Number of units of a frame.
const FRAME: u64 = ENTRIES as u64 * MOST_WEIGHT;
/// Number of entries and their weight, for the three kinds of lanes in the low table.
const PREFERRED: (usize, u8) = (4, 255);
const BEST_EFFORT: (usize, u8) = (1, 10);
const CHALLENGED: (usize, u8) = (1, 1);

/// Properties of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Rate in bits a second.
    pub rate: u64,
    /// Size of the largest packet in bytes.
    pub mtu: u32,
    /// The port's LimitOfHighPriority.
    pub high_limit: u8,
    /// Part of the rate that may be promised, in percent.
    pub cap: u8,
}

/// Demands of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Mean bandwidth in bits a second.
    pub bandwidth: u64,
    /// Upper bound of a packet's wait at this hop until it begins; `None` if that does not matter.
    pub latency: Option<Duration>,
}

/// Identifier of an admitted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

/// Why a connection is not admitted: what is missing, and what would fit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AdmissionError {
    /// The lane is no data lane.
    #[error("VL {vl} is not one of 0 to 14")]
    Lane {
        /// Requested lane.
        vl: u8,
    },
    /// The requested bandwidth is 0.
    #[error("a bandwidth of 0 needs no admission: ask for at least 1 b/s")]
    NoBandwidth,
    /// The latency is shorter than any entry's wait.
    #[error(
        "a latency of {asked:?} cannot be promised: even a lane that has every entry waits up to {least:?}"
    )]
    Latency {
        /// Requested latency.
        asked: Duration,
        /// Shortest latency that can be promised.
        least: Duration,
    },
    /// The other connections of the lane have a larger distance.
    #[error("{}: take another VL, or ask for {fits:?} or more", self.reason())]
    Distance {
        /// Distance that the latency needs.
        asked: usize,
        /// The lane.
        vl: u8,
        /// Distance of the lane.
        has: usize,
        /// Latency of the lane's distance.
        fits: Duration,
    },
    /// The bandwidth exceeds the rest that may be promised.
    #[error("it needs {}, and {} of the {} that may be promised are left", Bits(*asked), Bits(*fits), Bits(*cap))]
    Bandwidth {
        /// Requested bandwidth in bits a second.
        asked: u64,
        /// Bandwidth that is left.
        fits: u64,
        /// Bandwidth that may be promised to all.
        cap: u64,
    },
    /// Too few entries are free at that distance.
    #[error("{}{}", self.reason(), what_fits(*fits))]
    Entries {
        /// Number of entries that the connection needs.
        needs: usize,
        /// Number of free entries.
        free: usize,
        /// The most demanding request that would fit, if any would.
        fits: Option<Fits>,
    },
}

impl AdmissionError {
    /// Returns what is missing, without what would fit: at one port of a route, that is only a part of the answer.
    pub fn reason(&self) -> String {
        match self {
            Self::Distance { asked, vl, has, .. } => {
                format!("it needs the distance {asked}, and the connections of VL {vl} have {has}")
            }
            Self::Entries { needs, free, .. } => format!("it needs {needs} entries, and {free} are free"),
            other => other.to_string(),
        }
    }
}

/// The most demanding request that free entries would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fits {
    /// Upper bound of the bandwidth in bits a second.
    pub bandwidth: u64,
    /// Lower bound of the latency.
    pub latency: Duration,
}

fn what_fits(fits: Option<Fits>) -> String {
    fits.map_or(
        ": nothing would fit before another connection is released".into(),
        |Fits { bandwidth, latency }| {
            format!(": up to {} with a latency of {latency:?} or more would fit", Bits(bandwidth))
        },
    )
}

/// Number of bits a second; displayed in the largest unit that leaves at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits(pub u64);

impl Display for Bits {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "Gb/s"), (1_000_000, "Mb/s"), (1000, "kb/s")];
        match units.into_iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) if self.0.is_multiple_of(unit) => write!(out, "{} {name}", self.0 / unit),
            Some((unit, name)) => write!(out, "{:.3} {name}", self.0 as f64 / unit as f64),
            None => write!(out, "{} b/s", self.0),
        }
    }
}

impl Link {
    /// Returns the weight of a bandwidth: W = ⌈B · frame / rate⌉ units.
    pub fn weight(&self, bandwidth: u64) -> u64 {
        let weight = (u128::from(bandwidth) * u128::from(FRAME)).div_ceil(u128::from(self.rate.max(1)));
        u64::try_from(weight).unwrap_or(u64::MAX)
    }

    /// Duration of a frame: 64 entries of 255 units of 64 bytes.
    pub fn frame(&self) -> Duration {
        time_of(FRAME * 64, self.rate)
    }

    /// Upper bound of a packet's wait if its lane's entries are `distance` apart, whatever the other entries are.
    pub fn wait_at(&self, distance: usize) -> Duration {
        time_of(wait_bytes_at(distance, self.high_limit, self.mtu), self.rate)
    }

    /// Returns the largest distance, a power of two, that keeps a latency.
    pub fn distance(&self, latency: Duration) -> Result<usize, AdmissionError> {
        let distances = (0..=ENTRIES.trailing_zeros()).rev().map(|bits| 1 << bits);
        let refused = AdmissionError::Latency { asked: latency, least: self.wait_at(1) };
        distances.into_iter().find(|&distance| self.wait_at(distance) <= latency).ok_or(refused)
    }

    /// Bandwidth in bits a second that may be promised.
    pub fn promised(&self) -> u64 {
        (u128::from(self.rate) * u128::from(self.cap.min(100)) / 100) as u64
    }
}

/// Returns the number of entries for a distance: as many as the power of two below it needs.
pub fn entries_at_distance(distance: usize) -> usize {
    ENTRIES >> distance.clamp(1, ENTRIES).ilog2()
}

/// Returns the smallest number of entries with no larger distance, wherever they are.
pub fn min_entries(distance: usize) -> usize {
    ENTRIES.div_ceil(distance.max(1))
}

/// High table of a port, and the owners of its entries.
#[derive(Clone, Debug)]
pub struct Planner {
    link: Link,
    sequences: Sequences,
    lanes: BTreeMap<u8, Lane>,
    connections: BTreeMap<ConnectionId, Connection>,
    promised: u64,
    next: u64,
}

#[derive(Clone, Debug)]
struct Lane {
    distance: usize,
    /// Sequences of the lane, each with the bandwidth of its connections in bits a second.
    sequences: BTreeMap<SequenceId, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    vl: u8,
    sequence: SequenceId,
    bandwidth: u64,
}

impl Planner {
    /// Makes an empty table.
    pub fn new(link: Link) -> Self {
        Self {
            link,
            sequences: Sequences::new(ENTRIES),
            lanes: BTreeMap::new(),
            connections: BTreeMap::new(),
            promised: 0,
            next: 0,
        }
    }

    /// Admits a connection of the lane `vl`. If it is refused, nothing has changed.
    pub fn admit(&mut self, vl: u8, request: Request) -> Result<ConnectionId, AdmissionError> {
        let distance = request.latency.map_or(Ok(ENTRIES), |latency| self.link.distance(latency))?;
        self.admit_at(vl, request.bandwidth, distance)
    }

    /// Admits a connection whose lane's entries are at most `asked` apart, a power of two. If it is refused, nothing
    /// has changed.
    pub fn admit_at(&mut self, vl: u8, bandwidth: u64, asked: usize) -> Result<ConnectionId, AdmissionError> {
        let distance = self.distance(vl, bandwidth, asked)?;
        let left = self.link.promised().saturating_sub(self.promised);
        if bandwidth > left {
            let (asked, cap) = (bandwidth, self.link.promised());
            return Err(AdmissionError::Bandwidth { asked, fits: left, cap });
        }
        let sequence = match self.with_room(vl, bandwidth) {
            Some(sequence) => sequence,
            None => self.allocate(vl, distance, bandwidth)?,
        };
        let lane = self.lanes.entry(vl).or_insert_with(|| Lane { distance, sequences: BTreeMap::new() });
        *lane.sequences.entry(sequence).or_default() += bandwidth;
        let id = ConnectionId(self.next);
        self.next += 1;
        self.promised += bandwidth;
        self.connections.insert(id, Connection { vl, sequence, bandwidth });
        Ok(id)
    }

    /// Releases a connection, and returns the moved sequences, which keep their distances. An unknown connection
    /// changes nothing.
    pub fn release(&mut self, id: ConnectionId) -> Vec<Move> {
        let Some(connection) = self.connections.remove(&id) else { return Vec::new() };
        self.promised -= connection.bandwidth;
        let Some(lane) = self.lanes.get_mut(&connection.vl) else { return Vec::new() };
        let Some(used) = lane.sequences.get_mut(&connection.sequence) else { return Vec::new() };
        *used -= connection.bandwidth;
        if *used > 0 {
            return Vec::new();
        }
        lane.sequences.remove(&connection.sequence);
        if lane.sequences.is_empty() {
            self.lanes.remove(&connection.vl);
        }
        self.sequences.release(connection.sequence)
    }

    /// Returns the entries of the sequence that a connection shares, in ascending order. A later release may move them.
    pub fn entries(&self, id: ConnectionId) -> Vec<usize> {
        self.connections.get(&id).map(|own| self.sequences.entries(own.sequence)).unwrap_or_default()
    }

    /// Returns the high table. Free entries have weight 0; each owned entry has at least weight 1, for the latency.
    pub fn table(&self) -> Vec<Entry> {
        let mut table = vec![Entry::default(); ENTRIES];
        for (&vl, lane) in &self.lanes {
            for (&sequence, &bandwidth) in &lane.sequences {
                let weight = self.link.weight(bandwidth);
                let entries = self.sequences.entries(sequence);
                let count = entries.len() as u64;
                for (nth, entry) in (0..).zip(entries) {
                    let own = weight / count + u64::from(nth < weight % count);
                    table[entry] = Entry { vl, weight: own.clamp(1, MOST_WEIGHT) as u8 };
                }
            }
        }
        table
    }

    /// Number of free entries.
    pub fn free(&self) -> usize {
        self.sequences.free()
    }

    /// Promised bandwidth in bits a second.
    pub fn promised(&self) -> u64 {
        self.promised
    }

    /// Returns the distance that the connections of a lane were promised.
    pub fn lane_distance(&self, vl: u8) -> Option<usize> {
        self.lanes.get(&vl).map(|lane| lane.distance)
    }

    /// Returns the distance for a request: the lane's, if the lane has connections, because all of them share one.
    fn distance(&self, vl: u8, bandwidth: u64, asked: usize) -> Result<usize, AdmissionError> {
        if vl >= MANAGEMENT_VL {
            return Err(AdmissionError::Lane { vl });
        }
        if bandwidth == 0 {
            return Err(AdmissionError::NoBandwidth);
        }
        match self.lane_distance(vl) {
            Some(has) if has > asked => {
                Err(AdmissionError::Distance { asked, vl, has, fits: self.link.wait_at(has) })
            }
            has => Ok(has.unwrap_or(asked)),
        }
    }

    /// Returns a sequence of the lane with room for the bandwidth.
    fn with_room(&self, vl: u8, bandwidth: u64) -> Option<SequenceId> {
        let lane = self.lanes.get(&vl)?;
        let fits = |sequence, used| self.link.weight(used + bandwidth) <= self.capacity(sequence);
        lane.sequences.iter().find(|&(&sequence, &used)| fits(sequence, used)).map(|(id, _)| *id)
    }

    /// Largest weight of a sequence.
    fn capacity(&self, sequence: SequenceId) -> u64 {
        self.sequences.block(sequence).map_or(0, |block| block.entries as u64 * MOST_WEIGHT)
    }

    fn allocate(&mut self, vl: u8, distance: usize, bandwidth: u64) -> Result<SequenceId, AdmissionError> {
        let for_weight =
            usize::try_from(self.link.weight(bandwidth).div_ceil(MOST_WEIGHT)).unwrap_or(usize::MAX);
        let needs = for_weight.max(entries_at_distance(distance));
        let needs = needs.checked_next_power_of_two().unwrap_or(usize::MAX);
        let found = self.sequences.allocate(needs);
        found.ok_or_else(|| AdmissionError::Entries { needs, free: self.free(), fits: self.fits(vl) })
    }

    /// Returns what a new connection could have: free entries, or the rest of the lane's own.
    fn fits(&self, vl: u8) -> Option<Fits> {
        let bits = |weight: u64| (u128::from(weight) * u128::from(self.link.rate) / u128::from(FRAME)) as u64;
        let left = self.link.promised().saturating_sub(self.promised);
        let lane = self.lanes.get(&vl);
        let fewest = lane.map_or(1, |lane| entries_at_distance(lane.distance));
        let entries = self.free().checked_ilog2().map(|bits| 1usize << bits).filter(|free| *free >= fewest);
        let new = entries.map(|entries| {
            let distance = lane.map_or(ENTRIES / entries, |lane| lane.distance);
            (bits(entries as u64 * MOST_WEIGHT), distance)
        });
        let old = lane.and_then(|lane| {
            let rooms = lane.sequences.iter().map(|(id, used)| bits(self.capacity(*id)) - used);
            rooms.max().filter(|room| *room > 0).map(|room| (room, lane.distance))
        });
        let (bandwidth, distance) = new.into_iter().chain(old).max()?;
        let bandwidth = bandwidth.min(left);
        (bandwidth > 0).then(|| Fits { bandwidth, latency: self.link.wait_at(distance) })
    }
}

/// Kind of a lane without promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpromised {
    /// Preferred best effort (PBE).
    Preferred,
    /// Best effort (BE).
    BestEffort,
    /// Challenged (CH): gets the rest.
    Challenged,
}

/// Makes the low table: each lane's entries by its kind.
pub fn low_table(lanes: &[(u8, Unpromised)]) -> Vec<Entry> {
    let entries = lanes.iter().take(LANES).flat_map(|&(vl, kind)| {
        let (count, weight) = match kind {
            Unpromised::Preferred => PREFERRED,
            Unpromised::BestEffort => BEST_EFFORT,
            Unpromised::Challenged => CHALLENGED,
        };
        std::iter::repeat_n(Entry { vl, weight }, count)
    });
    entries.collect()
}

#[cfg(test)]
mod tests;

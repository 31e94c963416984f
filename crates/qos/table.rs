//! Arbitration tables of InfiniBand, as data.

use thiserror::Error;

/// Upper bound of each table's entries.
pub const ENTRIES: usize = 64;
/// Bytes of a weight of one.
pub const UNIT: u64 = 64;
/// Bytes of a high limit of one.
pub const LIMIT_UNIT: u64 = 4096;
/// Value of the high limit for no limit.
pub const UNLIMITED: u8 = 255;
/// Virtual lane of subnet management. It is in no table, and goes before all others.
pub const MANAGEMENT_VL: u8 = 15;
/// Number of virtual lanes, including that of management; also the number of service levels.
pub const LANES: usize = 16;

/// Entry of a table: the lane `vl` may send `weight` times 64 bytes. An entry with weight 0 is skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Virtual lane, 0 to 14.
    pub vl: u8,
    /// Weight in units of 64 bytes.
    pub weight: u8,
}

/// Both tables of a port, and how they share it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct VlTables {
    /// High table, which goes first.
    pub high: Vec<Entry>,
    /// Low table, which goes while the high table has no packets, or has sent `high_limit`.
    pub low: Vec<Entry>,
    /// LimitOfHighPriority: units of 4096 bytes that the high table may send before a packet of the low one. 0
    /// stands for one packet, 255 for no limit.
    pub high_limit: u8,
}

/// Why tables are invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadTable {
    /// A table has more than 64 entries.
    #[error("the {table} table has {entries} entries, and a port takes {ENTRIES}")]
    Entries {
        /// Name of the table: `high` or `low`.
        table: &'static str,
        /// Number of its entries.
        entries: usize,
    },
    /// An entry has a lane that cannot be in a table.
    #[error("entry {at} of the {table} table is for VL {vl}: tables have the VLs 0 to 14")]
    Lane {
        /// Name of the table: `high` or `low`.
        table: &'static str,
        /// Index of the entry, from 0.
        at: usize,
        /// The lane.
        vl: u8,
    },
}

impl VlTables {
    /// Checks that a port would take these tables.
    pub fn check(&self) -> Result<(), BadTable> {
        for (name, table) in [("high", &self.high), ("low", &self.low)] {
            if table.len() > ENTRIES {
                return Err(BadTable::Entries { table: name, entries: table.len() });
            }
            if let Some((at, entry)) = table.iter().enumerate().find(|(_, entry)| entry.vl >= MANAGEMENT_VL) {
                return Err(BadTable::Lane { table: name, at, vl: entry.vl });
            }
        }
        Ok(())
    }

    /// Bytes of the high table after which a packet of the low one goes; `None` if it never has to.
    pub fn limit_bytes(&self) -> Option<u64> {
        (self.high_limit != UNLIMITED).then(|| (u64::from(self.high_limit) * LIMIT_UNIT).max(1))
    }
}

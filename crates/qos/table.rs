//! InfiniBand's arbitration tables as data.

use thiserror::Error;

/// Entries of each of the two tables, at most.
pub const ENTRIES: usize = 64;
/// Bytes that a weight of one stands for.
pub const UNIT: u64 = 64;
/// Bytes that a high limit of one stands for.
pub const LIMIT_UNIT: u64 = 4096;
/// The high limit that is none.
pub const UNLIMITED: u8 = 255;
/// The virtual lane of subnet management. It is in no table, and goes before all others.
pub const MANAGEMENT_VL: u8 = 15;
/// Virtual lanes, that of management among them; also the number of service levels.
pub const LANES: usize = 16;

/// An entry of a table: the lane `vl` may send `weight` times 64 bytes. With a weight of 0 it is skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The virtual lane, 0 to 14.
    pub vl: u8,
    /// Units of 64 bytes.
    pub weight: u8,
}

/// Both tables of a port, and how they share it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct VlTables {
    /// What goes first.
    pub high: Vec<Entry>,
    /// What goes while the high table has nothing, or has sent `high_limit`.
    pub low: Vec<Entry>,
    /// LimitOfHighPriority: units of 4096 bytes that the high table may send before a packet of the low one. 0 is one packet, 255
    /// is no limit.
    pub high_limit: u8,
}

/// Why tables are none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadTable {
    /// More than 64 entries.
    #[error("the {table} table has {entries} entries, and a port takes {ENTRIES}")]
    Entries {
        /// Which one: `high` or `low`.
        table: &'static str,
        /// How many it has.
        entries: usize,
    },
    /// A lane that cannot be in a table.
    #[error("entry {at} of the {table} table is for VL {vl}: tables have the VLs 0 to 14")]
    Lane {
        /// Which table.
        table: &'static str,
        /// Which entry, from 0.
        at: usize,
        /// What it says.
        vl: u8,
    },
}

impl VlTables {
    /// Whether a port would take these.
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

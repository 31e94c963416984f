//! Store of the ranks' names and values, within bounds.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use crate::wire::{MAX_LISTED, Record, RequestError};

/// Approximate size of an entry, beside its name and its value, in bytes.
const OVERHEAD: usize = 64;

/// Number of a rank's given-up names whose owner is remembered.
const RECENT: usize = 32;

/// Bounds of what the ranks may store.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of names, and separately of keys, of a job.
    pub entries: usize,
    /// Upper bound of a name or key, in bytes.
    pub name_len: usize,
    /// Upper bound of a value, in bytes.
    pub value_len: usize,
    /// Upper bound of one rank's bytes: its names, its keys and their values, and 64 for each of them.
    pub rank_bytes: usize,
    /// Upper bound of all ranks' bytes together.
    pub job_bytes: usize,
    /// Maximum number of waiting requests of one rank.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            entries: 1 << 16,
            name_len: 255,
            value_len: 64 << 10,
            rank_bytes: 16 << 20,
            job_bytes: 128 << 20,
            waiting: 256,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    Names,
    Values,
}

type Records = BTreeMap<String, Arc<Record>>;

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Store {
    limits: Limits,
    names: Records,
    values: Records,
    /// Names of ranks that have ended, with their owners, until other ranks register them.
    orphaned: BTreeMap<String, u32>,
    /// Names that ranks have given up, likewise; the last few of each rank, oldest first.
    given_up: BTreeMap<String, u32>,
    recent: Vec<VecDeque<String>>,
    /// Bytes that are kept for each rank, by rank.
    bytes: Vec<usize>,
    all_bytes: usize,
}

impl Store {
    pub(super) fn new(limits: Limits, ranks: u32) -> Store {
        let bytes = vec![0; ranks as usize];
        Store {
            limits,
            names: BTreeMap::new(),
            values: BTreeMap::new(),
            orphaned: BTreeMap::new(),
            given_up: BTreeMap::new(),
            recent: vec![VecDeque::new(); ranks as usize],
            bytes,
            all_bytes: 0,
        }
    }

    pub(super) fn get(&self, table: Table, name: &str) -> Option<&Arc<Record>> {
        self.table(table).get(name)
    }

    /// Returns the rank that had this name last, if no rank has it now. (The owners of names given up long ago
    /// are forgotten.)
    pub(super) fn last_owner(&self, table: Table, name: &str) -> Option<u32> {
        let known = || self.orphaned.get(name).or_else(|| self.given_up.get(name)).copied();
        (table == Table::Names).then(known).flatten()
    }

    /// Stores a record, and replaces an earlier one.
    pub(super) fn insert(
        &mut self,
        table: Table,
        name: String,
        record: Record,
    ) -> Result<Arc<Record>, RequestError> {
        self.check(table, &name, &record)?;
        if let (Some(owner), freed) = self.takes_the_place_of(table, &name) {
            self.discharge(owner, freed);
        }
        if table == Table::Names {
            self.orphaned.remove(&name);
            self.given_up.remove(&name);
        }
        let record = Arc::new(record);
        self.bytes[record.owner as usize] += weight(&name, &record);
        self.all_bytes += weight(&name, &record);
        self.table_mut(table).insert(name, Arc::clone(&record));
        Ok(record)
    }

    /// Removes a name that its owner gives up.
    pub(super) fn remove(&mut self, name: &str) {
        let Some(record) = self.names.remove(name) else { return };
        self.discharge(record.owner, weight(name, &record));
        self.given_up.insert(name.into(), record.owner);
        let recent = &mut self.recent[record.owner as usize];
        recent.retain(|other| other != name);
        recent.push_back(name.into());
        if recent.len() > RECENT {
            let forgotten = recent.pop_front().filter(|name| self.given_up.get(name) == Some(&record.owner));
            forgotten.map(|name| self.given_up.remove(&name));
        }
    }

    /// Frees the names of a rank that has ended; their owner is remembered. Its values stay, for all to read.
    pub(super) fn end(&mut self, rank: u32) {
        let mut freed = 0;
        let orphaned = &mut self.orphaned;
        self.names.retain(|name, record| {
            if record.owner == rank {
                freed += record.value.len();
                orphaned.insert(name.clone(), rank);
            }
            record.owner != rank
        });
        self.discharge(rank, freed);
    }

    pub(super) fn no_such(&self, table: Table) -> RequestError {
        let table = self.table(table);
        RequestError::NoSuch {
            existing: table.keys().take(MAX_LISTED).cloned().collect(),
            total: table.len() as u64,
        }
    }

    pub(super) fn check_name(&self, name: &str) -> Result<(), RequestError> {
        bounded("a name (bytes)", self.limits.name_len, name.len())
    }

    fn check(&self, table: Table, name: &str, record: &Record) -> Result<(), RequestError> {
        let limits = &self.limits;
        if name.is_empty() {
            return Err(RequestError::Refused { why: "a name must not be empty".into() });
        }
        self.check_name(name)?;
        bounded("a value (bytes)", limits.value_len, record.value.len())?;
        let is_new = self.get(table, name).is_none();
        let entries = self.table(table).len() + usize::from(is_new);
        bounded("the number of names in a job", limits.entries, entries)?;
        let weight = weight(name, record);
        let (owner, freed) = self.takes_the_place_of(table, name);
        let own = if owner == Some(record.owner) { freed } else { 0 };
        let kept = self.bytes[record.owner as usize];
        bounded("what a rank keeps with the launcher (bytes)", limits.rank_bytes, kept - own + weight)?;
        bounded(
            "what the ranks of a job keep with the launcher (bytes)",
            limits.job_bytes,
            self.all_bytes - freed + weight,
        )
    }

    /// Returns the owner and the number of bytes that a new entry of this name would free.
    fn takes_the_place_of(&self, table: Table, name: &str) -> (Option<u32>, usize) {
        match (self.get(table, name), self.orphaned.get(name)) {
            (Some(before), _) => (Some(before.owner), weight(name, before)),
            (None, Some(owner)) if table == Table::Names => (Some(*owner), OVERHEAD + name.len()),
            _ => (None, 0),
        }
    }

    fn discharge(&mut self, rank: u32, bytes: usize) {
        self.bytes[rank as usize] -= bytes;
        self.all_bytes -= bytes;
    }

    fn table(&self, table: Table) -> &Records {
        match table {
            Table::Names => &self.names,
            Table::Values => &self.values,
        }
    }

    fn table_mut(&mut self, table: Table) -> &mut Records {
        match table {
            Table::Names => &mut self.names,
            Table::Values => &mut self.values,
        }
    }
}

fn weight(name: &str, record: &Record) -> usize {
    OVERHEAD + name.len() + record.value.len()
}

fn bounded(what: &str, limit: usize, got: usize) -> Result<(), RequestError> {
    if got <= limit {
        return Ok(());
    }
    Err(RequestError::TooBig { what: what.into(), limit: limit as u64, got: got as u64 })
}

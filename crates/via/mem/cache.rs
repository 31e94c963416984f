//! Registration cache: which allocations a device knows, and for how long.
//!
//! Registering memory with a network card pins its pages and fills its tables, which costs more than sending a message from
//! it. So a registration stays when its region ends, and is there again when the same allocation is registered next. The key
//! is the *allocation*: an identity that an owned buffer has from the moment it is given to the library until it is taken
//! back or freed. An address is no key, because memory that is unmapped and mapped anew lies at the same address and is other
//! memory.
//!
//! The cache is bounded in bytes and entries; of registrations that are not in use, the one used longest ago goes first. A
//! registration in use is never taken away. This is a data structure only: it makes and ends no registration itself, so that
//! the slow calls happen outside its owner's lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Unique name of one owned allocation: never used again in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub(super) u64);

impl Identity {
    pub fn fresh() -> Self {
        // A counter of 64 bits does not come round.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Identity(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Counts of the registration cache at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheUse {
    /// Requests whose registration was there already.
    pub hits: u64,
    /// Registrations that had to be made.
    pub misses: u64,
    /// Registrations that were ended because others needed the room.
    pub evictions: u64,
    /// Registrations that were ended because their memory was taken back or freed, or the program asked for it.
    pub invalidations: u64,
    /// Number of registrations that exist.
    pub entries: usize,
    /// Bytes of the registrations that exist.
    pub bytes: usize,
    /// Number of registrations that a region holds.
    pub in_use: usize,
    /// Bytes of the registrations that a region holds.
    pub bytes_in_use: usize,
}

impl std::ops::AddAssign for CacheUse {
    /// Adds the counts of two NICs.
    fn add_assign(&mut self, other: Self) {
        let CacheUse { hits, misses, evictions, invalidations, entries, bytes, in_use, bytes_in_use } = other;
        self.hits += hits;
        self.misses += misses;
        self.evictions += evictions;
        self.invalidations += invalidations;
        self.entries += entries;
        self.bytes += bytes;
        self.in_use += in_use;
        self.bytes_in_use += bytes_in_use;
    }
}

/// Bounds of the cache, registrations in use included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub entries: usize,
    /// Bound of bytes, and the name of the setting that sets it.
    pub bytes: (usize, &'static str),
}

/// Registrations `R` by identity.
#[derive(Debug)]
pub(crate) struct Cache<R> {
    entries: HashMap<Identity, Entry<R>>,
    /// Registrations that are not in use, by the time of their release.
    idle: BTreeMap<u64, Identity>,
    clock: u64,
    counts: CacheUse,
}

#[derive(Debug)]
struct Entry<R> {
    bytes: usize,
    state: EntryState<R>,
}

#[derive(Debug)]
enum EntryState<R> {
    /// The region has the registration.
    InUse,
    Idle {
        registration: R,
        since: u64,
    },
}

/// The answer to [`Cache::acquire`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Acquired<R> {
    /// The cached registration.
    Hit(R),
    /// Room for a new registration, once the evicted ones have been ended.
    Miss { evicted: Vec<R> },
}

impl<R> Default for Cache<R> {
    fn default() -> Self {
        Cache { entries: HashMap::new(), idle: BTreeMap::new(), clock: 0, counts: CacheUse::default() }
    }
}

impl<R> Cache<R> {
    /// Takes the registration of `identity` for use, or room for it. It is in use until [`Cache::release`] or
    /// [`Cache::cancel`].
    ///
    /// # Errors
    /// [`Error::Full`] when registrations in use leave no room; nothing is evicted then.
    pub fn acquire(&mut self, identity: Identity, bytes: usize, bounds: Bounds) -> Result<Acquired<R>> {
        if let Some(entry) = self.entries.get_mut(&identity) {
            let EntryState::Idle { registration, since } =
                std::mem::replace(&mut entry.state, EntryState::InUse)
            else {
                let what = format!("the registration of {} bytes", entry.bytes);
                return Err(Error::InUse { what, by: "a region".into() });
            };
            self.idle.remove(&since);
            self.counts.hits += 1;
            self.counts.in_use += 1;
            self.counts.bytes_in_use += entry.bytes;
            return Ok(Acquired::Hit(registration));
        }
        self.check_room(bytes, bounds)?;
        let mut evicted = Vec::new();
        while self.counts.entries >= bounds.entries || self.counts.bytes > bounds.bytes.0 - bytes {
            let (_, oldest) = self.idle.pop_first().expect("those in use leave room, just checked");
            evicted.extend(self.remove(oldest));
        }
        self.counts.evictions += evicted.len() as u64;
        self.counts.misses += 1;
        self.entries.insert(identity, Entry { bytes, state: EntryState::InUse });
        self.counts.entries += 1;
        self.counts.bytes += bytes;
        self.counts.in_use += 1;
        self.counts.bytes_in_use += bytes;
        Ok(Acquired::Miss { evicted })
    }

    /// Checks that `bytes` more fit beside the registrations in use.
    fn check_room(&self, bytes: usize, bounds: Bounds) -> Result {
        let CacheUse { in_use, bytes_in_use, .. } = self.counts;
        let (most, whose) = bounds.bytes;
        let bound = if in_use >= bounds.entries {
            format!("{in_use} registrations are in use, the most there may be")
        } else if bytes_in_use.checked_add(bytes).is_none_or(|sum| sum > most) {
            format!("{bytes} bytes beside {bytes_in_use} in use are more than {most}, {whose}")
        } else {
            return Ok(());
        };
        Err(Error::Full { what: "registered memory", bound: bound.into() })
    }

    /// Keeps the registration, as the most recently used: its user is done.
    pub fn release(&mut self, identity: Identity, registration: R) {
        let entry = self.entries.get_mut(&identity).expect("it was acquired");
        self.clock += 1;
        entry.state = EntryState::Idle { registration, since: self.clock };
        self.counts.in_use -= 1;
        self.counts.bytes_in_use -= entry.bytes;
        self.idle.insert(self.clock, identity);
    }

    /// Gives back the room of a registration that could not be made.
    pub fn cancel(&mut self, identity: Identity) {
        let bytes = self.entries[&identity].bytes;
        self.remove(identity);
        self.counts.misses -= 1;
        self.counts.in_use -= 1;
        self.counts.bytes_in_use -= bytes;
    }

    /// Takes out a registration that is not in use.
    pub fn invalidate(&mut self, identity: Identity) -> Option<R> {
        let EntryState::Idle { since, .. } = self.entries.get(&identity)?.state else { return None };
        self.idle.remove(&since);
        self.counts.invalidations += 1;
        self.remove(identity)
    }

    fn remove(&mut self, identity: Identity) -> Option<R> {
        let entry = self.entries.remove(&identity)?;
        self.counts.entries -= 1;
        self.counts.bytes -= entry.bytes;
        match entry.state {
            EntryState::InUse => None,
            EntryState::Idle { registration, .. } => Some(registration),
        }
    }

    pub fn usage(&self) -> CacheUse {
        self.counts
    }
}

#[cfg(test)]
mod tests;

//! The stations of a NIC.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use udeck_via::{Error, Result};

use super::{Quarters, Station};

/// Completion queues of one NIC.
pub const STATIONS: usize = 2048;

/// See the module. A station is in it as long as somebody has it.
pub struct Stations<Q: Quarters>(Mutex<Table<Q>>);

struct Table<Q: Quarters> {
    /// The last station's number.
    last: u64,
    stations: HashMap<u64, Weak<Station<Q>>>,
}

impl<Q: Quarters> Default for Stations<Q> {
    fn default() -> Self {
        Stations(Mutex::new(Table { last: 0, stations: HashMap::new() }))
    }
}

impl<Q: Quarters> Stations<Q> {
    /// A new station, with a number that no other of this NIC has had.
    ///
    /// # Errors
    /// [`Error::Full`] when the NIC has no more.
    pub fn open(&self, quarters: impl FnOnce(u64) -> Q) -> Result<Arc<Station<Q>>> {
        let mut table = self.0.lock();
        table.stations.retain(|_, station| station.strong_count() > 0);
        if table.stations.len() == STATIONS {
            let bound = format!("{STATIONS} per NIC");
            return Err(Error::Full { what: "the table of completion queues", bound: bound.into() });
        }
        table.last += 1;
        let number = table.last;
        let station = Station::new(number, quarters(number));
        table.stations.insert(number, Arc::downgrade(&station));
        Ok(station)
    }

    /// The station of this number, if it is still there.
    pub fn get(&self, number: u64) -> Option<Arc<Station<Q>>> {
        self.0.lock().stations.get(&number).and_then(Weak::upgrade)
    }

    /// Goes through all of them.
    pub fn fold<R>(&self, first: R, step: impl FnMut(R, Arc<Station<Q>>) -> R) -> R {
        self.0.lock().stations.values().filter_map(Weak::upgrade).fold(first, step)
    }
}

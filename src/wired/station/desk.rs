//! The places at a station, and which of them were announced.

use std::collections::VecDeque;
use std::sync::Arc;

use udeck_via::transport::{Notifier, Queue, Queues, Ready};
use udeck_via::{Error, Result};

use super::{Line, Quarters, Station};
use crate::link::Announce;

/// Work queues that one completion queue can watch.
pub const QUEUES: usize = 8192;

pub(super) struct Desk<Q: Quarters> {
    places: Vec<Option<Place<Q>>>,
    free: Vec<u32>,
    /// Places that may have something, next first; each at most once.
    announced: VecDeque<u32>,
}

struct Place<Q: Quarters> {
    ready: Ready,
    line: Arc<Q::Line>,
    tenant: Q::Tenant,
    /// Stands in `announced`.
    listed: bool,
    /// Was announced and not named since.
    fresh: bool,
}

impl<Q: Quarters> Default for Desk<Q> {
    fn default() -> Self {
        Desk { places: Vec::new(), free: Vec::new(), announced: VecDeque::new() }
    }
}

impl<Q: Quarters> Desk<Q> {
    fn reserve(&mut self) -> Result<u32> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        if self.places.len() == QUEUES {
            let bound = format!("{QUEUES} work queues");
            return Err(Error::Full { what: "the completion queue", bound: bound.into() });
        }
        self.places.push(None);
        Ok(self.places.len() as u32 - 1)
    }

    fn leave(&mut self, slot: u32) -> Option<Place<Q>> {
        let place = self.places[slot as usize].take();
        self.free.push(slot);
        if place.as_ref().is_some_and(|place| place.listed) {
            self.announced.retain(|listed| *listed != slot);
        }
        place
    }

    /// The next in turn that has something.
    pub fn next(&mut self) -> Option<(Ready, Arc<Q::Line>)> {
        while let Some(slot) = self.announced.pop_front() {
            let Some(place) = &mut self.places[slot as usize] else { continue };
            let lies_there = place.ready.queue == Queue::Receive && place.line.has_arrivals();
            if !lies_there && !place.fresh {
                place.listed = false;
                continue;
            }
            place.fresh = false;
            let named = (place.ready, place.line.clone());
            // Named again until it is found empty.
            self.announced.push_back(slot);
            return Some(named);
        }
        None
    }

    /// Whether there is somebody.
    pub fn announce(&mut self, slot: u32) -> bool {
        let Some(Some(place)) = self.places.get_mut(slot as usize) else { return false };
        place.fresh = true;
        if !std::mem::replace(&mut place.listed, true) {
            self.announced.push_back(slot);
        }
        true
    }
}

/// A work queue's place; given back when dropped.
pub struct Seat<Q: Quarters> {
    station: Arc<Station<Q>>,
    slot: u32,
}

/// Those of a VI's two queues.
pub struct Seats<Q: Quarters> {
    /// The send queue's.
    pub send: Seat<Q>,
    /// The receive queue's.
    pub receive: Seat<Q>,
}

impl<Q: Quarters> Seats<Q> {
    /// Takes places for a connection that is to be made. `is_ours`: whether a station is of the NIC that makes it.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] when a completion queue is of another NIC; [`Error::Full`].
    pub fn take(queues: &Queues<'_>, is_ours: impl Fn(&Q) -> bool) -> Result<Self> {
        Ok(Seats { send: seat_at(queues.send, &is_ours)?, receive: seat_at(queues.receive, &is_ours)? })
    }
}

pub(super) fn seat_at<Q: Quarters>(
    notifier: &Arc<dyn Notifier>,
    is_ours: impl Fn(&Q) -> bool,
) -> Result<Seat<Q>> {
    match notifier.clone().into_any().downcast::<Station<Q>>() {
        Ok(station) if is_ours(&station.quarters) => station.seat(),
        _ => Err(Error::InvalidParameter("the completion queue belongs to another NIC".into())),
    }
}

impl<Q: Quarters> Station<Q> {
    fn seat(&self) -> Result<Seat<Q>> {
        let station =
            self.this.upgrade().ok_or_else(|| Error::Lost("the completion queue is gone".into()))?;
        let slot = self.desk.lock().reserve()?;
        Ok(Seat { station, slot })
    }
}

impl<Q: Quarters> Seat<Q> {
    /// Where it is.
    pub fn station(&self) -> &Arc<Station<Q>> {
        &self.station
    }

    /// From now on, what is announced is of this connection.
    pub fn occupy(&self, ready: Ready, line: Arc<Q::Line>, tenant: Q::Tenant) {
        let place = Place { ready, line, tenant, listed: false, fresh: false };
        self.station.desk.lock().places[self.slot as usize] = Some(place);
    }
}

impl<Q: Quarters> Announce for Seat<Q> {
    fn announce(&self) {
        self.station.announce(self.slot);
    }
}

impl<Q: Quarters> Drop for Seat<Q> {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        let place = self.station.desk.lock().leave(self.slot);
        // The connection may go with it: no lock is held.
        if let Some(Place { ready, line, tenant, .. }) = place {
            self.station.quarters.vacated(ready.queue, line, tenant);
        }
    }
}

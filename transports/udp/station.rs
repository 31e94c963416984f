//! Completion queues' stations: their owners sleep beside the one socket, and while one is armed the helper watches it.

use std::sync::Arc;
use std::time::Duration;

use udeck_via::Result;
use udeck_via::transport::{Queue, Queues};
use udeck_wired::poll::Bell;
use udeck_wired::station::{self, Quarters};

use crate::core::{Core, UdpLink};

pub type Station = station::Station<BesideSocket>;
pub type Seats = station::Seats<BesideSocket>;

/// See the module.
pub struct BesideSocket(pub Arc<Core>);

/// Takes places for a connection that is to be made by the NIC of `core`.
///
/// # Errors
/// As [`station::Seats::take`].
pub fn take_seats(core: &Arc<Core>, queues: &Queues<'_>) -> Result<Seats> {
    Seats::take(queues, |beside: &BesideSocket| Arc::ptr_eq(&beside.0, core))
}

impl Quarters for BesideSocket {
    type Line = UdpLink;
    type Tenant = ();

    fn sleep(&self, bell: &Bell, limit: Duration) {
        self.0.rest.sleep(&self.0, bell, limit);
    }

    /// What its link still has to send, timers see to.
    fn vacated(&self, _queue: Queue, _link: Arc<UdpLink>, (): ()) {}
}

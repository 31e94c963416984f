//! Completion queues as their owner sees them: look at what was announced, read the socket, sleep.

use std::sync::Arc;
use std::time::Duration;

use udeck_sys::bell::MAX_SLEEP;
use udeck_via::Result;
use udeck_via::transport::{Armed, Notifier, Ready, Waiter};
use udeck_wired::station::Sleep;

use crate::core::Core;
use crate::station::{BesideSocket, Station};

/// While there are announced queues, the socket is read once in so many looks: what lies there has a right to be found.
const BURST: u32 = 16;

/// See the module.
pub struct UdpWaiter {
    core: Arc<Core>,
    station: Arc<Station>,
    looks: u32,
}

impl UdpWaiter {
    /// # Errors
    /// [`udeck_via::Error::Full`] when the NIC has no more.
    pub fn open(core: &Arc<Core>) -> Result<Self> {
        let station = core.stations.open(|_| BesideSocket(core.clone()))?;
        Ok(UdpWaiter { core: core.clone(), station, looks: 0 })
    }
}

impl Waiter for UdpWaiter {
    fn poll(&mut self) -> Option<Ready> {
        self.station.note_look();
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(BURST)
            && let Some((ready, _)) = self.station.next()
        {
            return Some(ready);
        }
        self.core.serve();
        self.station.next().map(|(ready, _)| ready)
    }

    fn park(&mut self, limit: Duration) {
        if self.station.lie_down(Sleep::Parked) {
            self.station.park(limit.min(MAX_SLEEP));
            self.core.serve();
        }
    }

    fn arm(&mut self) -> Armed {
        if !self.station.lie_down(Sleep::Armed) {
            return Armed::News;
        }
        self.core.serve();
        if self.station.has_news() {
            self.station.get_up();
            return Armed::News;
        }
        // The helper may be napping: it has to watch from here on.
        self.core.rest.rouse();
        Armed::Yes
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        self.station.clone()
    }
}

impl std::fmt::Debug for UdpWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UdpWaiter({:?})", self.station)
    }
}

//! Completion queues as their owner sees them: look at what was announced, read the sockets, sleep.

use std::sync::Arc;
use std::time::Duration;

use udeck_sys::bell::MAX_SLEEP;
use udeck_via::Result;
use udeck_via::transport::{Armed, Notifier, Ready, Waiter};
use udeck_wired::poll::Found;
use udeck_wired::station::Sleep;

use crate::core::{Core, TcpLink};
use crate::station::{Sockets, Station, serve_link};

/// While there are announced queues, sockets are looked at once in so many looks: what lies in them has a right to be
/// found, but what is announced was there before.
const BURST: u32 = 16;

/// See the module.
pub struct TcpWaiter {
    station: Arc<Station>,
    /// The link that something came on last: whoever waits for an answer waits for it there.
    hot: Option<Arc<TcpLink>>,
    looks: u32,
    /// [`Sockets::vacated`] when `hot` was looked at.
    vacated: u32,
    found: Found,
}

impl TcpWaiter {
    /// # Errors
    /// [`udeck_via::Error::Full`] when the NIC has no more.
    pub fn open(core: &Arc<Core>) -> Result<Self> {
        let station = core.stations.open(|number| Sockets::new(core, number))?;
        Ok(TcpWaiter { station, hot: None, looks: 0, vacated: 0, found: Found::default() })
    }

    fn take(&mut self) -> Option<Ready> {
        let (ready, link) = self.station.next()?;
        let is_hot = self.hot.as_ref().is_some_and(|hot| Arc::ptr_eq(hot, &link));
        if !is_hot && link.has_arrivals() {
            self.hot = Some(link);
        }
        Some(ready)
    }

    /// Reads the hot link's socket.
    fn look_at_hot(&mut self) {
        let vacated = self.station.quarters.vacated();
        if vacated != self.vacated {
            // It may be the one that left.
            (self.vacated, self.hot) = (vacated, None);
        }
        if let Some(link) = &self.hot
            && !serve_link(link)
        {
            self.hot = None;
        }
    }

    /// Reads all sockets that have something.
    fn look_at_all(&mut self) {
        self.station.quarters.serve(&mut self.found, Duration::ZERO);
    }
}

impl Waiter for TcpWaiter {
    /// Of two fruitless looks, one at least asks epoll for all sockets.
    fn poll(&mut self) -> Option<Ready> {
        self.station.note_look();
        self.looks = self.looks.wrapping_add(1);
        let in_burst = !self.looks.is_multiple_of(BURST);
        if in_burst && let Some(ready) = self.take() {
            return Some(ready);
        }
        self.look_at_hot();
        let in_turn = self.hot.is_none() || self.looks.is_multiple_of(2) && self.station.quarters.count() > 1;
        if in_turn && !(in_burst && self.station.has_news()) {
            self.look_at_all();
        }
        self.take()
    }

    fn park(&mut self, limit: Duration) {
        if self.station.lie_down(Sleep::Parked) {
            self.station.park(limit.min(MAX_SLEEP));
            self.look_at_all();
        }
    }

    fn arm(&mut self) -> Armed {
        if !self.station.lie_down(Sleep::Armed) {
            return Armed::News;
        }
        // The helper watches from here on; what came before lies there for it, too, but we are awake.
        self.look_at_all();
        self.station.quarters.ask_helper(self.station.looks());
        if self.station.has_news() {
            self.station.get_up();
            return Armed::News;
        }
        Armed::Yes
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        self.station.clone()
    }
}

impl std::fmt::Debug for TcpWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpWaiter({:?})", self.station)
    }
}

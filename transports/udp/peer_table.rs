//! The table of a NIC's QUIC connections: by handle, and the usable ones by the peer's address and rank.
//!
//! **Simultaneous open.** Two NICs that call each other at the same time get two connections. Both sides then prefer the same one,
//! the one that the smaller address opened, so that data one way carry the acknowledgements of the other way. The other
//! connection stays idle, and is closed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use udeck_via::Result;

use crate::unauthenticated::Unauthenticated;

/// What the table has to know of a connection.
pub trait Entry {
    /// The endpoint's number of it.
    fn handle(&self) -> usize;
    /// The peer's address.
    fn remote(&self) -> SocketAddr;
    /// Whether this side opened it.
    fn is_client(&self) -> bool;
    fn created(&self) -> Instant;
    /// Whether the peer opened it and has not proved yet who it is.
    fn is_unauthenticated(&self) -> bool;
    /// Whether it is closed or lost.
    fn is_over(&self) -> bool;
}

/// Connections by the peer's address and rank.
type ByAddress<P> = HashMap<(SocketAddr, Option<u32>), Arc<P>>;

/// See the module. Locks: `usable` before `by_handle`.
pub struct PeerTable<P> {
    by_handle: RwLock<HashMap<usize, Arc<P>>>,
    usable: Mutex<ByAddress<P>>,
}

impl<P> Default for PeerTable<P> {
    fn default() -> Self {
        PeerTable { by_handle: RwLock::default(), usable: Mutex::default() }
    }
}

impl<P: Entry> PeerTable<P> {
    pub fn get(&self, handle: usize) -> Option<Arc<P>> {
        self.by_handle.read().get(&handle).cloned()
    }

    pub fn all(&self) -> Vec<Arc<P>> {
        self.by_handle.read().values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.by_handle.read().len()
    }

    pub fn at(&self, address: SocketAddr) -> Vec<Arc<P>> {
        let is_there =
            |peer: &&Arc<P>| (peer.remote().ip(), peer.remote().port()) == (address.ip(), address.port());
        self.by_handle.read().values().filter(is_there).cloned().collect()
    }

    pub fn unauthenticated(&self) -> Vec<Unauthenticated> {
        let peers = self.by_handle.read();
        let callers = peers.values().filter(|peer| peer.is_unauthenticated());
        let entry = |peer: &Arc<P>| Unauthenticated {
            number: peer.handle(),
            at: peer.remote().ip(),
            since: peer.created(),
        };
        callers.map(entry).collect()
    }

    /// A connection that the NIC at `address` has opened, and whose handshake is not finished.
    pub fn handshake_from(&self, address: SocketAddr) -> Option<Arc<P>> {
        self.at(address).into_iter().find(|peer| peer.is_unauthenticated() && !peer.is_over())
    }

    /// A connection of the endpoint. Called with the endpoint's lock held.
    pub fn insert(&self, peer: &Arc<P>) {
        self.by_handle.write().insert(peer.handle(), peer.clone());
    }

    /// The endpoint has forgotten the connection. Returns whether it was in the table.
    pub fn remove(&self, peer: &Arc<P>) -> bool {
        let mut peers = self.by_handle.write();
        let is_known = peers.get(&peer.handle()).is_some_and(|known| Arc::ptr_eq(known, peer));
        if is_known {
            peers.remove(&peer.handle());
        }
        is_known
    }

    /// The connection to use for requests to `rank` at that address, if there is one.
    pub fn usable(&self, at: SocketAddr, rank: Option<u32>) -> Option<Arc<P>> {
        self.usable.lock().get(&(at, rank)).filter(|peer| !peer.is_over()).cloned()
    }

    /// As [`PeerTable::usable`], or one that `open` makes. Returns whether it was made.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn usable_or_open(
        &self,
        at: SocketAddr,
        rank: Option<u32>,
        open: impl FnOnce() -> Result<Arc<P>>,
    ) -> Result<(Arc<P>, bool)> {
        let mut usable = self.usable.lock();
        if let Some(peer) = usable.get(&(at, rank)).filter(|peer| !peer.is_over()) {
            return Ok((peer.clone(), false));
        }
        let peer = open()?;
        usable.insert((at, rank), peer.clone());
        Ok((peer, true))
    }

    /// The peer has opened this connection and authenticated itself: requests of this side may use it, too. `local`: the
    /// address of this NIC.
    pub fn add_incoming(&self, peer: &Arc<P>, rank: Option<u32>, local: SocketAddr) {
        let mut usable = self.usable.lock();
        let entry = usable.entry((peer.remote(), rank)).or_insert_with(|| peer.clone());
        if entry.is_over() || entry.is_client() && prefers_incoming(local, peer.remote()) {
            *entry = peer.clone();
        }
    }

    /// The connection is closed: later requests need another one.
    pub fn remove_usable(&self, peer: &Arc<P>, rank: Option<u32>) {
        let mut usable = self.usable.lock();
        if usable.get(&(peer.remote(), rank)).is_some_and(|known| Arc::ptr_eq(known, peer)) {
            usable.remove(&(peer.remote(), rank));
        }
    }

    /// Forgets all connections, at the end of the NIC.
    pub fn clear(&self) {
        let peers = (std::mem::take(&mut *self.usable.lock()), std::mem::take(&mut *self.by_handle.write()));
        drop(peers);
    }
}

/// Of two connections that were opened at the same time, both sides prefer the one that the smaller address opened.
pub fn prefers_incoming(local: SocketAddr, remote: SocketAddr) -> bool {
    (remote.ip(), remote.port()) < (local.ip(), local.port())
}

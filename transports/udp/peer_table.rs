//! Table of a NIC's QUIC connections: by handle, and the usable ones by the peer's address and rank.
//!
//! **Simultaneous open.** Two NICs that call each other at the same time get two connections. Both sides then prefer
//! the same one, which the smaller address opened, so that data one way carry the acknowledgements of the other way.
//! The other connection stays idle, and is closed.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use udeck_via::Result;

use crate::unauthenticated::source;

/// Properties of a connection that the table needs.
pub trait Entry {
    /// The endpoint's number of the connection.
    fn handle(&self) -> usize;
    /// Address of the peer.
    fn remote(&self) -> SocketAddr;
    /// Whether this side opened the connection.
    fn is_client(&self) -> bool;
    fn created(&self) -> Instant;
    /// Whether the peer opened the connection and has not authenticated itself yet.
    fn is_unauthenticated(&self) -> bool;
    /// Whether the connection is closed or lost.
    fn is_over(&self) -> bool;
}

/// Connections by the peer's address and rank.
type ByAddress<P> = HashMap<(SocketAddr, Option<u32>), Arc<P>>;

/// Table of a NIC's QUIC connections. Lock order: `usable` before `by_handle`.
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

    /// Handle, source and creation of each unauthenticated peer.
    pub fn unauthenticated(&self) -> Vec<(usize, IpAddr, Instant)> {
        let peers = self.by_handle.read();
        let callers = peers.values().filter(|peer| peer.is_unauthenticated());
        callers.map(|peer| (peer.handle(), source(peer.remote().ip()), peer.created())).collect()
    }

    /// Returns a connection that the NIC at `address` has opened, and whose handshake is not complete.
    pub fn handshake_from(&self, address: SocketAddr) -> Option<Arc<P>> {
        self.at(address).into_iter().find(|peer| peer.is_unauthenticated() && !peer.is_over())
    }

    /// Adds a connection of the endpoint. The caller holds the endpoint's lock.
    pub fn insert(&self, peer: &Arc<P>) {
        self.by_handle.write().insert(peer.handle(), peer.clone());
    }

    /// Removes a connection that the endpoint has forgotten. Returns whether it was in the table.
    pub fn remove(&self, peer: &Arc<P>) -> bool {
        let mut peers = self.by_handle.write();
        let is_known = peers.get(&peer.handle()).is_some_and(|known| Arc::ptr_eq(known, peer));
        if is_known {
            peers.remove(&peer.handle());
        }
        is_known
    }

    /// Returns the connection to use for requests to `rank` at this address, if there is one.
    pub fn usable(&self, at: SocketAddr, rank: Option<u32>) -> Option<Arc<P>> {
        self.usable.lock().get(&(at, rank)).filter(|peer| !peer.is_over()).cloned()
    }

    /// Returns the connection of [`PeerTable::usable`], or else one that `open` makes. Returns also whether it was made.
    ///
    /// # Errors
    /// The errors of `open`.
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

    /// Makes a connection usable for requests of this side: the peer has opened it and authenticated itself. `local`
    /// is the address of this NIC.
    pub fn add_incoming(&self, peer: &Arc<P>, rank: Option<u32>, local: SocketAddr) {
        let mut usable = self.usable.lock();
        let entry = usable.entry((peer.remote(), rank)).or_insert_with(|| peer.clone());
        if entry.is_over() || entry.is_client() && prefers_incoming(local, peer.remote()) {
            *entry = peer.clone();
        }
    }

    /// Makes a closed connection unusable: later requests need another one.
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

/// Whether to prefer the connection that the peer opened, of two that were opened at the same time: it is the one
/// that the smaller address opened.
pub fn prefers_incoming(local: SocketAddr, remote: SocketAddr) -> bool {
    (remote.ip(), remote.port()) < (local.ip(), local.port())
}

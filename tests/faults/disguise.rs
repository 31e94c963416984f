//! Makes a NIC look like one of another transport, so that the choice between transports can be tested on a host that
//! has only one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Connection, Interpose};
use udeck_via::Result;
use udeck_via::transport::{Armed, Notifier, Ready, ViEndpoint, Waiter};
use udeck_via::{Caps, NetAddress, NicAttributes};

/// An [`Interpose`] that changes a NIC's attributes and reachable peers; its traffic passes unchanged.
pub struct Disguise {
    name: String,
    lacks: Caps,
    host_only: Option<bool>,
    connections: Option<usize>,
    sleeps_alone: bool,
    reach: Box<Reach>,
}

/// Decides whether a peer is reached, or why not.
type Reach = dyn Fn(&NetAddress) -> Result + Send + Sync;

impl Disguise {
    /// A NIC with this name ([`NicAttributes::name`]).
    pub fn named(name: impl Into<String>) -> Self {
        let reach = Box::new(|_: &NetAddress| Ok(()));
        let (name, lacks) = (name.into(), Caps::default());
        Disguise { name, lacks, host_only: None, connections: None, sleeps_alone: false, reach }
    }

    /// Removes these abilities.
    #[must_use]
    pub fn without(self, lacks: Caps) -> Self {
        Disguise { lacks, ..self }
    }

    /// Sets whether the NIC reaches processes of this host only ([`NicAttributes::host_only`]).
    #[must_use]
    pub fn host_only(self, host_only: bool) -> Self {
        Disguise { host_only: Some(host_only), ..self }
    }

    /// Sets a smaller number of connections of peers ([`NicAttributes::max_connections`]).
    #[must_use]
    pub fn taking(self, connections: usize) -> Self {
        Disguise { connections: Some(connections), ..self }
    }

    /// Makes its completion queues sleep on no word of memory ([`Armed::Never`]).
    #[must_use]
    pub fn sleeping_alone(self) -> Self {
        Disguise { sleeps_alone: true, ..self }
    }

    /// Sets `reach`, which decides about requests for connections by their addresses.
    #[must_use]
    pub fn reaching(self, reach: impl Fn(&NetAddress) -> Result + Send + Sync + 'static) -> Self {
        Disguise { reach: Box::new(reach), ..self }
    }
}

// SAFETY: endpoints are the inner ones; it claims no ability that the inner device lacks.
unsafe impl Interpose for Disguise {
    fn endpoint(&self, endpoint: Box<dyn ViEndpoint>, _: &Connection<'_>) -> Box<dyn ViEndpoint> {
        endpoint
    }

    fn waiter(&self, waiter: Box<dyn Waiter>, _: u64) -> Box<dyn Waiter> {
        if self.sleeps_alone { Box::new(Loner(waiter)) } else { waiter }
    }

    fn attributes(&self, mut inner: NicAttributes) -> NicAttributes {
        inner.name.clone_from(&self.name);
        inner.caps = inner.caps.without(self.lacks);
        inner.host_only = self.host_only.unwrap_or(inner.host_only);
        inner.max_connections = self.connections.unwrap_or(inner.max_connections).min(inner.max_connections);
        inner
    }

    fn reaches(&self, to: &NetAddress) -> Result {
        (self.reach)(to)
    }
}

/// A waiter that sleeps by itself.
#[derive(Debug)]
struct Loner(Box<dyn Waiter>);

#[deny(clippy::missing_trait_methods)]
impl Waiter for Loner {
    fn poll(&mut self) -> Option<Ready> {
        self.0.poll()
    }

    fn poll_all(&mut self) -> Option<Ready> {
        self.0.poll_all()
    }

    fn sole_active(&mut self) -> Option<Ready> {
        self.0.sole_active()
    }

    fn park(&mut self, limit: Duration) {
        self.0.park(limit);
    }

    fn arm(&mut self) -> Armed {
        Armed::Never
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        self.0.notifier()
    }
}

impl fmt::Debug for Disguise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disguise({:?}, without {})", self.name, self.lacks)
    }
}

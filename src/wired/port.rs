//! The VI layer's side of a link.

use std::fmt;
use std::sync::Arc;

use udeck_via::mem::Lent;

use crate::link::{Driver, Link, Watch};

/// The two work queues of a VI over a [`Link`].
pub struct WiredPort<D: Driver> {
    link: Arc<Link<D>>,
    /// What the sender of the last arrival waits for, if that was no lent message.
    receipt: Option<Lent>,
}

impl<D: Driver> WiredPort<D> {
    /// The port of a connection that stands; news go to `watch` from now on, and what came before is announced once.
    pub fn new(link: Arc<Link<D>>, watch: Watch) -> Self {
        link.attach(watch);
        WiredPort { link, receipt: None }
    }

    /// The link.
    pub fn link(&self) -> &Arc<Link<D>> {
        &self.link
    }
}

impl<D: Driver> fmt::Debug for WiredPort<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WiredPort({:?})", self.link)
    }
}

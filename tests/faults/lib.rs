//! Wrappers between the VI layer and a transport, for the search for mistakes: [`Trace`] records the operations,
//! [`Fault`] makes them go wrong, [`Disguise`] makes a NIC look like one of another transport. They wrap any
//! transport, and the program above does not change:
//!
//! ```
//! use udeck_via::Nic;
//! use udeck_faults::{Trace, wrapped};
//!
//! fn traced(nic: &Nic) -> Nic {
//!     wrapped(nic, Trace::printing(std::io::stderr()))
//! }
//! ```
//!
//! From then on the program uses the new NIC only: the old one's completion queues are not wrapped, and both draw
//! protection tags of their own. Unwrapped NICs have no extra cost; wrappers nest.
//!
//! All wrappers share one mechanism: `Wrapped` is a device that calls another one, and passes each connected
//! endpoint and each waiter through its [`Interpose`]. Memory, windows and connection requests go straight through.
//! The inner device sees its own notifiers ([`Queues`]), because transports look for their own type behind them.
//!
//! Every method of the contract is passed on by name, including those with a default body: if one were forgotten,
//! the wrapped NIC would silently lack what its attributes promise. Clippy's `missing_trait_methods` checks this
//! for each `impl`.
//!
//! The idea is smoltcp's (`phy::Tracer`, `phy::FaultInjector`).

#![allow(unsafe_code, reason = "it implements the transport contract around another device")]

mod disguise;
mod fault;
mod random;
#[cfg(test)]
mod tests;
mod trace;

use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use udeck_sys::Deadline;
use udeck_via::Nic;
use udeck_via::mem::{Arena, MemHandle, Ptag, Rights};
use udeck_via::transport::{
    Connected, Device, Hello, Incoming, OnRequest, Owner, Queues, Registration, ViEndpoint, Waiter,
};
use udeck_via::{Error, Rejection, Result};
use udeck_via::{NetAddress, NicAttributes, Reliability};

pub use disguise::Disguise;
pub use fault::{BrokenPromises, Fault, PermittedFaults};
pub use random::{SplitMix64, When};
pub use trace::{Call, Event, Log, Outcome, Trace, Who};

/// Puts wrappers around the endpoints and waiters of a [`wrapped`] device.
///
/// # Safety
/// It hands the inner endpoint to nobody, and its own endpoint keeps the contract of [`ViEndpoint`]: a call on the inner one is a
/// call that was made on itself, or one that keeps the caller's part of that contract as well.
pub unsafe trait Interpose: Send + Sync + Debug {
    /// Wraps an endpoint as soon as it is connected; perhaps on the transport's own thread, so it must not
    /// block.
    fn endpoint(&self, endpoint: Box<dyn ViEndpoint>, connection: &Connection<'_>) -> Box<dyn ViEndpoint>;
    /// Wraps a waiter, whose [`Waiter::notifier`] must stay the inner one. Waiters are counted from 0.
    fn waiter(&self, waiter: Box<dyn Waiter>, number: u64) -> Box<dyn Waiter>;
    /// Decides about an attempt to revoke a window.
    ///
    /// # Errors
    /// The reason why the window stays, for example a peer that is still inside.
    fn revokes(&self) -> Result {
        Ok(())
    }
    /// Wraps the registration of `bytes` bytes.
    ///
    /// # Errors
    /// The error of `register`, which registers the memory with the device, or the reason why it was not
    /// called.
    fn registration(
        &self,
        bytes: usize,
        register: &dyn Fn() -> Result<Box<dyn Registration>>,
    ) -> Result<Box<dyn Registration>> {
        let _ = bytes;
        register()
    }
    /// Changes the NIC's attributes; called once, when it is wrapped. No ability may be added.
    fn attributes(&self, inner: NicAttributes) -> NicAttributes {
        inner
    }
    /// Whether a connection to this address may be requested.
    ///
    /// # Errors
    /// The reason why not, which becomes the result of the request.
    fn reaches(&self, to: &NetAddress) -> Result {
        let _ = to;
        Ok(())
    }
}

/// Facts about an endpoint's connection, for an [`Interpose`].
#[derive(Clone, Copy)]
pub struct Connection<'a> {
    /// Number of the connection: connections of the device are counted from 0, in the order in which they were
    /// made.
    pub number: u64,
    /// Reliability level of the connection.
    pub reliability: Reliability,
    /// Waiters to which its queues report.
    pub queues: Queues<'a>,
    /// Outbox arena of the device.
    pub outbox: &'a Arc<Arena>,
}

/// Wraps `nic` with `interpose` around its endpoints and waiters: a NIC of its own, over the same device.
pub fn wrapped(nic: &Nic, interpose: impl Interpose + 'static) -> Nic {
    // SAFETY: `Wrapped` passes on to the device what the VI layer calls, and an `Interpose` keeps the caller's part.
    let device = unsafe { nic.raw_device() };
    Nic::new(Wrapped::new(device.clone(), interpose))
}

/// A device with an [`Interpose`] around its endpoints and waiters.
#[derive(Debug)]
struct Wrapped {
    inner: Arc<dyn Device>,
    attributes: NicAttributes,
    layer: Arc<Layer>,
}

/// The part that listeners keep: not the device itself, which keeps them.
#[derive(Debug)]
struct Layer {
    interpose: Box<dyn Interpose>,
    connections: AtomicU64,
    waiters: AtomicU64,
}

impl Wrapped {
    fn new(device: Arc<dyn Device>, interpose: impl Interpose + 'static) -> Arc<Self> {
        let interpose = Box::new(interpose);
        let attributes = interpose.attributes(device.attributes().clone());
        let layer = Layer { interpose, connections: AtomicU64::new(0), waiters: AtomicU64::new(0) };
        Arc::new(Wrapped { inner: device, attributes, layer: Arc::new(layer) })
    }
}

impl Layer {
    fn endpoint(
        &self,
        endpoint: Box<dyn ViEndpoint>,
        reliability: Reliability,
        queues: Queues<'_>,
        outbox: &Arc<Arena>,
    ) -> Box<dyn ViEndpoint> {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        self.interpose.endpoint(endpoint, &Connection { number, reliability, queues, outbox })
    }
}

#[deny(clippy::missing_trait_methods)]
// SAFETY: every call is passed on as it came, to a device that keeps the contract, and its endpoints are an `Interpose`'s.
unsafe impl Device for Wrapped {
    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn outbox(&self) -> &Arc<Arena> {
        self.inner.outbox()
    }

    fn landing(&self) -> &Arc<Arena> {
        self.inner.landing()
    }

    fn expose(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.inner.expose(offset, len, ptag)
    }

    fn expose_for(&self, offset: u64, len: usize, ptag: Ptag, rights: Rights) -> Result<MemHandle> {
        self.inner.expose_for(offset, len, ptag, rights)
    }

    fn expose_outbox(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.inner.expose_outbox(offset, len, ptag)
    }

    fn revoke(&self, handle: MemHandle, deadline: Deadline) -> Result {
        self.layer.interpose.revokes()?;
        self.inner.revoke(handle, deadline)
    }

    fn revoke_later(&self, handle: MemHandle, memory: Owner) {
        self.inner.revoke_later(handle, memory);
    }

    fn register(&self, memory: NonNull<[u8]>) -> Result<Box<dyn Registration>> {
        self.layer.interpose.registration(memory.len(), &|| self.inner.register(memory))
    }

    fn count_copied(&self, bytes: usize) {
        self.inner.count_copied(bytes);
    }

    fn waiter(&self) -> Result<Box<dyn Waiter>> {
        let waiter = self.inner.waiter()?;
        let number = self.layer.waiters.fetch_add(1, Ordering::Relaxed);
        Ok(self.layer.interpose.waiter(waiter, number))
    }

    fn listen(&self, discriminator: &[u8], mut on_request: OnRequest) -> Result {
        let (layer, outbox) = (self.layer.clone(), Arc::downgrade(self.inner.outbox()));
        let wrapping = move |inner| {
            on_request(Box::new(WrappedIncoming { inner, layer: layer.clone(), outbox: outbox.clone() }));
        };
        self.inner.listen(discriminator, Box::new(wrapping))
    }

    fn unlisten(&self, discriminator: &[u8]) {
        self.inner.unlisten(discriminator);
    }

    fn connect(
        &self,
        to: &NetAddress,
        peer: Option<u32>,
        hello: &Hello,
        queues: Queues<'_>,
        deadline: Deadline,
    ) -> Result<Connected> {
        self.layer.interpose.reaches(to)?;
        let (endpoint, theirs) = self.inner.connect(to, peer, hello, queues, deadline)?;
        Ok((self.layer.endpoint(endpoint, hello.reliability, queues, self.inner.outbox()), theirs))
    }

    fn reclaim(&self) {
        self.inner.reclaim();
    }

    fn reclaim_recent(&self) {
        self.inner.reclaim_recent();
    }

    fn undelivered(&self) -> usize {
        self.inner.undelivered()
    }

    fn bytes_copied(&self) -> u64 {
        self.inner.bytes_copied()
    }

    fn messages_dropped(&self) -> u64 {
        self.inner.messages_dropped()
    }

    fn failure(&self) -> Option<String> {
        self.inner.failure()
    }
}

/// A request whose endpoint will be wrapped.
struct WrappedIncoming {
    inner: Box<dyn Incoming>,
    layer: Arc<Layer>,
    outbox: Weak<Arena>,
}

#[deny(clippy::missing_trait_methods)]
impl Incoming for WrappedIncoming {
    fn hello(&self) -> &Hello {
        self.inner.hello()
    }

    fn peer(&self) -> Option<u32> {
        self.inner.peer()
    }

    fn accept(self: Box<Self>, hello: &Hello, queues: Queues<'_>) -> Result<Box<dyn ViEndpoint>> {
        let outbox = self.outbox.upgrade().ok_or_else(|| Error::Lost("this NIC is closed".into()))?;
        let endpoint = self.inner.accept(hello, queues)?;
        Ok(self.layer.endpoint(endpoint, hello.reliability, queues, &outbox))
    }

    fn reject(self: Box<Self>, rejection: Rejection) {
        self.inner.reject(rejection);
    }
}

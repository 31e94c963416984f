//! A NIC that counts its registrations, and has limits of its own, in front of one that does the work.

#![allow(unsafe_code, reason = "it stands between the VI layer and a device")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use udeck_faults::{Connection, Interpose, wrapped};
use udeck_via::transport::{Registration, ViEndpoint, Waiter};
use udeck_via::{Error, Nic, NicAttributes, Result};

/// The layer in front of the NIC.
#[derive(Debug)]
struct Counting {
    limits: fn(&mut NicAttributes),
    books: Arc<Books>,
}

/// Counts of registrations, and number of calls that shall fail.
#[derive(Debug, Default)]
pub struct Books {
    registered: AtomicUsize,
    bytes: AtomicUsize,
    failures: AtomicUsize,
}

#[derive(Debug)]
struct Counted {
    /// The inner registration, which ends with this one.
    _inner: Box<dyn Registration>,
    bytes: usize,
    books: Arc<Books>,
}

/// A counting NIC in front of `nic`, with its attributes as changed by `limits`.
pub fn counting(nic: &Nic, limits: fn(&mut NicAttributes)) -> (Nic, Arc<Books>) {
    let books = Arc::<Books>::default();
    (wrapped(nic, Counting { limits, books: books.clone() }), books)
}

impl Books {
    /// Number of living registrations, and their bytes.
    pub fn live(&self) -> (usize, usize) {
        (self.registered.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Makes the next `calls` calls fail, among those that can fail.
    pub fn fail(&self, calls: usize) {
        self.failures.store(calls, Ordering::Relaxed);
    }

    fn fails(&self) -> bool {
        self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

impl Registration for Counted {}

impl Drop for Counted {
    fn drop(&mut self) {
        self.books.registered.fetch_sub(1, Ordering::Relaxed);
        self.books.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

// SAFETY: endpoints and waiters stay what they are; a call on the device is made, or fails before it has done anything.
unsafe impl Interpose for Counting {
    fn endpoint(&self, endpoint: Box<dyn ViEndpoint>, _: &Connection<'_>) -> Box<dyn ViEndpoint> {
        endpoint
    }

    fn waiter(&self, waiter: Box<dyn Waiter>, _: u64) -> Box<dyn Waiter> {
        waiter
    }

    fn attributes(&self, mut inner: NicAttributes) -> NicAttributes {
        (self.limits)(&mut inner);
        inner
    }

    fn revokes(&self) -> Result {
        if self.books.fails() {
            return Err(Error::Timeout { what: "a peer to leave".into(), waited: Duration::ZERO });
        }
        Ok(())
    }

    fn registration(
        &self,
        bytes: usize,
        register: &dyn Fn() -> Result<Box<dyn Registration>>,
    ) -> Result<Box<dyn Registration>> {
        if self.books.fails() {
            return Err(Error::InvalidParameter("the hardware does not want this memory".into()));
        }
        let inner = register()?;
        self.books.registered.fetch_add(1, Ordering::Relaxed);
        self.books.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Box::new(Counted { _inner: inner, bytes, books: self.books.clone() }))
    }
}

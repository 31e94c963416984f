//! A NIC that counts what is registered with it, and has limits of its own, in front of one that does the work.

#![allow(unsafe_code, reason = "it implements the transport contract, around another device")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use udeck_via::mem::Rights;
use udeck_via::transport::{Connected, Device, Hello, OnRequest, Owner, Queues, Registration, Waiter};
use udeck_via::{Arena, Deadline, Error, MemHandle, NetAddress, Nic, NicAttributes, Ptag, Result};

/// The counting NIC's device.
#[derive(Debug)]
pub struct Counting {
    inner: Arc<dyn Device>,
    attributes: NicAttributes,
    books: Arc<Books>,
}

/// What is registered, and what shall fail.
#[derive(Debug, Default)]
pub struct Books {
    registered: AtomicUsize,
    bytes: AtomicUsize,
    failures: AtomicUsize,
}

#[derive(Debug)]
struct Counted {
    /// Ends with this.
    _inner: Box<dyn Registration>,
    bytes: usize,
    books: Arc<Books>,
}

impl Counting {
    /// A counting NIC in front of `nic`, with its attributes as `limits` leaves them.
    pub fn in_front_of(nic: &Nic, limits: impl FnOnce(&mut NicAttributes)) -> (Nic, Arc<Books>) {
        let mut attributes = nic.attributes().clone();
        limits(&mut attributes);
        let books = Arc::<Books>::default();
        // SAFETY: what is called on it is what the VI layer called on this one.
        let inner = unsafe { nic.raw_device() };
        let device = Counting { inner, attributes, books: books.clone() };
        (Nic::new(Arc::new(device)), books)
    }
}

impl Books {
    /// Registrations that live, and their bytes.
    pub fn live(&self) -> (usize, usize) {
        (self.registered.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// The next so many calls that can fail, do.
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

#[deny(clippy::missing_trait_methods)]
// SAFETY: every call is passed on as it came, or fails before it has done anything, to a device that keeps the contract.
unsafe impl Device for Counting {
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
    fn share(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.inner.share(offset, len, ptag)
    }
    fn conceal(&self, handle: MemHandle, deadline: Deadline) -> Result {
        if self.books.fails() {
            return Err(Error::Timeout { what: "a peer to leave".into(), waited: Duration::ZERO });
        }
        self.inner.conceal(handle, deadline)
    }
    fn conceal_later(&self, handle: MemHandle, memory: Owner) {
        self.inner.conceal_later(handle, memory);
    }
    fn register(&self, memory: NonNull<[u8]>) -> Result<Box<dyn Registration>> {
        if self.books.fails() {
            return Err(Error::InvalidParameter("the hardware does not want this memory".into()));
        }
        let inner = self.inner.register(memory)?;
        let bytes = memory.len();
        self.books.registered.fetch_add(1, Ordering::Relaxed);
        self.books.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Box::new(Counted { _inner: inner, bytes, books: self.books.clone() }))
    }
    fn waiter(&self) -> Result<Box<dyn Waiter>> {
        self.inner.waiter()
    }
    fn listen(&self, discriminator: &[u8], on_request: OnRequest) -> Result {
        self.inner.listen(discriminator, on_request)
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
        self.inner.connect(to, peer, hello, queues, deadline)
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
    fn count_copied(&self, bytes: usize) {
        self.inner.count_copied(bytes);
    }
}

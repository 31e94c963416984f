//! Registrar: the registrations of the program's own memory at a NIC, in a cache, and the places that may be named by
//! address.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

use super::Ptag;
use super::cache::{Acquired, Bounds, Cache, CacheUse, Identity};
use crate::error::{Error, Result};
use crate::transport::{Device, Registration};

/// The registrations of one NIC.
pub(crate) struct Registrar {
    device: Arc<dyn Device>,
    registrations: Mutex<Registrations>,
}

#[derive(Default)]
struct Registrations {
    cache: Cache<Box<dyn Registration>>,
    /// Registrations in use, by address. The same bytes may be registered several times.
    live: BTreeMap<(usize, Identity), Live>,
}

struct Live {
    len: usize,
    ptag: Ptag,
}

/// Fate of a registration when its region ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnRegionDrop {
    /// The cache keeps it for the next time.
    Keep,
    /// The registration ends, too: the library cannot know when its memory is freed.
    End,
}

/// A registration in use.
pub(super) struct Lease {
    registrar: Arc<Registrar>,
    key: (usize, Identity),
    on_drop: OnRegionDrop,
    /// The registration; `None` only while the lease is dropped.
    registration: Option<Box<dyn Registration>>,
}

impl Registrar {
    pub fn new(device: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Registrar { device, registrations: Mutex::default() })
    }

    /// Registers `place`, or finds that it is still registered. May block in the kernel.
    pub(super) fn register(
        self: &Arc<Self>,
        identity: Identity,
        place: NonNull<[u8]>,
        ptag: Ptag,
        on_drop: OnRegionDrop,
    ) -> Result<Lease> {
        let acquired = self.registrations.lock().cache.acquire(identity, place.len(), self.bounds())?;
        let registration = match acquired {
            Acquired::Hit(registration) => registration,
            Acquired::Miss { evicted } => {
                drop(evicted); // first, because their room is needed
                let made = self.device.register(place);
                made.inspect_err(|_| self.registrations.lock().cache.cancel(identity))?
            }
        };
        let key = (place.addr().get(), identity);
        self.registrations.lock().live.insert(key, Live { len: place.len(), ptag });
        Ok(Lease { registrar: self.clone(), key, on_drop, registration: Some(registration) })
    }

    /// The device's bounds, and the kernel's on pinned memory, which may change while the program runs.
    fn bounds(&self) -> Bounds {
        let attributes = self.device.attributes();
        let pinnable = attributes.pins_memory.then(|| getrlimit(Resource::Memlock).current).flatten();
        let bytes = match pinnable.and_then(|limit| usize::try_from(limit).ok()) {
            Some(limit) if limit < attributes.max_registered_bytes => {
                (limit, "which this process may lock (RLIMIT_MEMLOCK; `ulimit -l`)")
            }
            _ => (attributes.max_registered_bytes, "which the NIC can register"),
        };
        Bounds { entries: attributes.max_registrations, bytes }
    }

    /// Ends the cached registration of an allocation. Returns whether there was one.
    pub fn invalidate(&self, identity: Identity) -> bool {
        // The registration is dropped outside the lock: that may block in the kernel.
        let registration = self.registrations.lock().cache.invalidate(identity);
        registration.is_some()
    }

    pub fn usage(&self) -> CacheUse {
        self.registrations.lock().cache.usage()
    }

    /// Checks that `[address, address + len)` lies in memory that is registered with this tag.
    ///
    /// # Errors
    /// [`Error::InvalidPtag`] when the memory is registered with other tags only; [`Error::InvalidParameter`] when it is not
    /// registered.
    pub fn check(&self, address: NonNull<u8>, len: usize, ptag: Ptag) -> Result {
        let (address, registrations) = (address.addr().get(), self.registrations.lock());
        let from_below = registrations.live.range(..=(address, Identity(u64::MAX))).rev();
        let around = from_below
            .filter(|((start, _), live)| address - start <= live.len && len <= live.len - (address - start));
        let mut tags = around.map(|(_, live)| live.ptag).peekable();
        if tags.peek().is_none() {
            return Err(Error::InvalidParameter("a raw segment is not registered memory of this NIC".into()));
        }
        if tags.any(|tag| tag == ptag) { Ok(()) } else { Err(Error::InvalidPtag) }
    }
}

impl fmt::Debug for Registrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registrar({:?})", self.usage())
    }
}

impl Lease {
    /// Changes the tag of the registration.
    pub fn set_ptag(&mut self, ptag: Ptag) {
        if let Some(live) = self.registrar.registrations.lock().live.get_mut(&self.key) {
            live.ptag = ptag;
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        let (_, identity) = self.key;
        let mut registrations = self.registrar.registrations.lock();
        registrations.live.remove(&self.key);
        if let Some(registration) = self.registration.take() {
            registrations.cache.release(identity, registration);
        }
        drop(registrations);
        if self.on_drop == OnRegionDrop::End {
            self.registrar.invalidate(identity);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.registration)
    }
}

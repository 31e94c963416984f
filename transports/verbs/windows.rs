//! Windows of a NIC, which peers reach by RDMA. A window is a memory region with exactly the requested rights, in
//! the protection domain of its tag, so the device itself refuses all other peers. Revoking a window deregisters the
//! region: the device is in no access then, and begins none.
//!
//! The region is made when a peer first asks for the window's place. A window that no peer asks for costs nothing,
//! and many of them do not exhaust the memory that may be pinned. Its handle is a random number of ours: a peer that
//! guesses one is told nothing, and the device's own name for the window has another form ([`crate::wire::RemoteKey`]).

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Once};

use parking_lot::Mutex;
use udeck_session::Memory;
use udeck_sys::say;
use udeck_via::mem::Rights;
use udeck_via::transport::Owner;
use udeck_via::{Arena, Error, MemHandle, Ptag, Result};

use crate::domain::{Domain, cannot_register};
use crate::ffi::codes::access;
use crate::hca::objects::Mr;
use crate::wire::RemoteKey;

/// The windows of one NIC.
pub struct Windows {
    table: Mutex<HashMap<u32, Window>>,
    bound: usize,
    memory: Memory,
    /// Whether stderr was told why a window cannot be shown. It is told once, because peers may ask as often as they
    /// like.
    told: Once,
}

struct Window {
    offset: u64,
    len: usize,
    ptag: Ptag,
    rights: Rights,
    in_outbox: bool,
    /// The region with its domain, which is dropped last.
    region: Option<(Mr, Arc<Domain>)>,
}

impl Windows {
    /// Makes an empty table for `bound` windows.
    pub fn new(memory: &Memory, bound: usize) -> Self {
        Windows { table: Mutex::default(), bound, memory: memory.clone(), told: Once::new() }
    }

    /// Implements [`udeck_via::transport::Device::expose_for`], and with `in_outbox`
    /// [`udeck_via::transport::Device::expose_outbox`].
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::Os`] when the system has no random numbers.
    pub fn expose(
        &self,
        offset: u64,
        len: usize,
        ptag: Ptag,
        rights: Rights,
        in_outbox: bool,
    ) -> Result<MemHandle> {
        let window = Window { offset, len, ptag, rights, in_outbox, region: None };
        let mut table = self.table.lock();
        if table.len() == self.bound {
            let bound = format!("{} windows per NIC", self.bound);
            return Err(Error::Full { what: "the table of windows", bound: bound.into() });
        }
        loop {
            let handle = getrandom::u32().map_err(|error| {
                Error::os("drawing the handle of a window", io::Error::other(error.to_string()))
            })?;
            if handle != 0 && !table.contains_key(&handle) {
                table.insert(handle, window);
                return Ok(MemHandle(handle));
            }
        }
    }

    /// Implements [`udeck_via::transport::Device::revoke`]. Waits until the device has ended its access there.
    pub fn revoke(&self, handle: MemHandle) {
        let window = self.table.lock().remove(&handle.0);
        // The lock is released first: deregistration may take a while.
        drop(window);
    }

    /// Implements [`udeck_via::transport::Device::revoke_later`].
    pub fn revoke_later(&self, handle: MemHandle, memory: Owner) {
        self.revoke(handle);
        drop(memory);
    }

    /// Returns where a peer finds the window. `tag` is the peer's tag for this right, and `domain` its domain.
    /// `None` if the peer may not access it.
    pub fn find(
        &self,
        handle: u32,
        tag: Option<Ptag>,
        write: bool,
        domain: &Arc<Domain>,
    ) -> Option<RemoteKey> {
        let mut table = self.table.lock();
        let window = table.get_mut(&handle)?;
        let allowed = if write { window.rights.write } else { window.rights.read };
        if !allowed || tag != Some(window.ptag) {
            return None;
        }
        if window.len == 0 {
            return Some(RemoteKey { address: 0, rkey: 0, len: 0 });
        }
        if window.region.is_none() {
            let arena = if window.in_outbox { &self.memory.outbox } else { &self.memory.landing };
            match window.register(arena, domain) {
                Ok(mr) => window.region = Some((mr, domain.clone())),
                Err(why) => {
                    // The peer learns only that it may not access the window; the reason is printed here.
                    self.told.call_once(|| say!("a window cannot be shown to a peer: {why}"));
                    return None;
                }
            }
        }
        let (mr, _) = window.region.as_ref()?;
        Some(RemoteKey { address: mr.iova, rkey: mr.rkey(), len: window.len as u64 })
    }
}

impl Window {
    fn register(&self, arena: &Arena, domain: &Domain) -> std::result::Result<Mr, String> {
        let base = arena.place(self.offset, self.len).ok_or("it lies outside of its arena")?;
        let memory = NonNull::slice_from_raw_parts(base, self.len);
        let write = if self.rights.write { access::REMOTE_WRITE | access::LOCAL_WRITE } else { 0 };
        let read = if self.rights.read { access::REMOTE_READ } else { 0 };
        // SAFETY: the arena is mapped as long as the table's memory is, which is dropped after its windows; the VI
        // layer exposes memory of which no slice exists, or that nobody writes and peers only read, until it is
        // revoked.
        let mr = unsafe { Mr::new(&domain.pd, memory, write | read, true) };
        mr.map_err(|error| cannot_register(self.len, &error))
    }
}

impl fmt::Debug for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Windows({} exposed)", self.table.lock().len())
    }
}

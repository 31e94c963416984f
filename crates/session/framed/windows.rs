//! Windows: memory that peers reach by RDMA, and how its owner takes it back.
//!
//! One table per NIC. An access to a window on a peer's behalf begins with [`Windows::enter`], which checks handle, right,
//! tag and bounds, and ends with the drop of its guard: for a write after one system call, for a read when its data have
//! left. To withdraw a window is to close its entry to new accesses and to wait for those under way.
//!
//! Handles are random: a guessed handle finds nothing, and none is used twice but by chance.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use udeck_via::mem::Rights;
use udeck_via::transport::Owner;
use udeck_via::{Deadline, Error, MemHandle, Ptag, RemoteBuffer, Result};

use crate::WINDOWS;

/// Kind of a peer's access to a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// The peer writes.
    Write,
    /// The peer reads.
    Read,
}

/// The windows of one NIC.
#[derive(Default)]
pub struct Windows {
    table: Mutex<HashMap<u32, WindowEntry>>,
    left: Condvar,
}

struct WindowEntry {
    offset: u64,
    len: usize,
    ptag: Ptag,
    rights: Rights,
    in_outbox: bool,
    /// Number of accesses under way.
    accesses: usize,
    /// Whether new accesses are refused.
    closed: bool,
    /// Memory that is kept until no access is under way.
    memory: Option<Owner>,
}

/// Place of an access in its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowRange {
    /// Whether it lies in the outbox arena rather than in the landing one.
    pub in_outbox: bool,
    /// Start of the access, in that arena.
    pub offset: u64,
    /// Length in bytes.
    pub len: usize,
}

/// An access under way: its window is not given back until this is dropped.
pub struct WindowAccess {
    windows: Arc<Windows>,
    handle: u32,
}

impl Windows {
    /// An empty table.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// [`udeck_via::transport::Device::expose_for`].
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::Os`] when the system has no random numbers.
    pub fn expose(&self, offset: u64, len: usize, ptag: Ptag, rights: Rights) -> Result<MemHandle> {
        self.publish(WindowEntry {
            offset,
            len,
            ptag,
            rights,
            in_outbox: false,
            accesses: 0,
            closed: false,
            memory: None,
        })
    }

    /// [`udeck_via::transport::Device::expose_outbox`].
    ///
    /// # Errors
    /// As [`Windows::expose`].
    pub fn expose_outbox(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        let rights = Rights::READ;
        self.publish(WindowEntry {
            offset,
            len,
            ptag,
            rights,
            in_outbox: true,
            accesses: 0,
            closed: false,
            memory: None,
        })
    }

    fn publish(&self, entry: WindowEntry) -> Result<MemHandle> {
        let mut table = self.table.lock();
        if table.len() == WINDOWS {
            let bound = format!("{WINDOWS} windows per NIC");
            return Err(Error::Full { what: "the table of windows", bound: bound.into() });
        }
        loop {
            let handle = getrandom::u32().map_err(|error| {
                Error::os("drawing the handle of a window", std::io::Error::other(error.to_string()))
            })?;
            if handle != 0 && !table.contains_key(&handle) {
                table.insert(handle, entry);
                return Ok(MemHandle(handle));
            }
        }
    }

    /// [`udeck_via::transport::Device::revoke`]. Blocks while a peer's access is under way, until `deadline` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`] when an access is still under way at the deadline.
    pub fn revoke(&self, handle: MemHandle, deadline: Deadline) -> Result {
        let start = std::time::Instant::now();
        let mut table = self.table.lock();
        loop {
            let Some(entry) = table.get_mut(&handle.0) else { return Ok(()) };
            entry.closed = true;
            if entry.accesses == 0 {
                table.remove(&handle.0);
                return Ok(());
            }
            if self.left.wait_until(&mut table, deadline.instant()).timed_out()
                && deadline.passed()
                && table.get(&handle.0).is_some_and(|entry| entry.accesses > 0)
            {
                let what = "a peer's access to a window to end".into();
                return Err(Error::Timeout { what, waited: start.elapsed() });
            }
        }
    }

    /// [`udeck_via::transport::Device::revoke_later`].
    pub fn revoke_later(&self, handle: MemHandle, memory: Owner) {
        let mut table = self.table.lock();
        let over = match table.get_mut(&handle.0) {
            Some(entry) if entry.accesses > 0 => {
                entry.closed = true;
                entry.memory.replace(memory)
            }
            Some(_) => {
                table.remove(&handle.0);
                Some(memory)
            }
            None => Some(memory),
        };
        drop(table);
        // The lock is not held here, because the drop may run any code.
        drop(over);
    }

    /// Begins an access to `at`, over a VI whose tag for this right is `tag`. `None`: it is not allowed.
    pub fn enter(
        self: &Arc<Self>,
        at: RemoteBuffer,
        tag: Option<Ptag>,
        right: Right,
    ) -> Option<(WindowAccess, WindowRange)> {
        let mut table = self.table.lock();
        let entry = table.get_mut(&at.handle.0)?;
        let allowed = match right {
            Right::Write => entry.rights.write,
            Right::Read => entry.rights.read,
        };
        let end = at.offset.checked_add(at.len)?;
        if entry.closed || !allowed || tag != Some(entry.ptag) || end > entry.len {
            return None;
        }
        entry.accesses += 1;
        let range =
            WindowRange { in_outbox: entry.in_outbox, offset: entry.offset + at.offset as u64, len: at.len };
        Some((WindowAccess { windows: self.clone(), handle: at.handle.0 }, range))
    }
}

impl Drop for WindowAccess {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        let mut table = self.windows.table.lock();
        let Some(entry) = table.get_mut(&self.handle) else { return };
        entry.accesses -= 1;
        if entry.accesses > 0 || !entry.closed {
            return;
        }
        // A thread that waits in `revoke` finds the entry gone, or removes it. Memory that was left here goes now.
        let memory = entry.memory.take();
        if memory.is_some() {
            table.remove(&self.handle);
        }
        drop(table);
        self.windows.left.notify_all();
        drop(memory);
    }
}

impl fmt::Debug for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Windows({} exposed)", self.table.lock().len())
    }
}

impl fmt::Debug for WindowAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowAccess({:#x})", self.handle)
    }
}

//! Memory that the device accesses.

use std::ptr::NonNull;

use udeck_session::{ForDevice, Store};

use crate::hca::objects::Mr;

/// A range of memory that the device accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Range of the outbox: offset and length in bytes.
    Outbox(u64, usize),
    /// Range elsewhere: address, the local key of its region, length in bytes.
    Elsewhere(u64, u32, usize),
}

impl Segment {
    pub fn len(self) -> usize {
        match self {
            Segment::Outbox(_, len) | Segment::Elsewhere(_, _, len) => len,
        }
    }

    /// Returns `len` bytes of it, starting at `from`.
    pub fn part(self, from: usize, len: usize) -> Self {
        debug_assert!(from + len <= self.len());
        match self {
            Segment::Outbox(offset, _) => Segment::Outbox(offset + from as u64, len),
            Segment::Elsewhere(address, key, _) => Segment::Elsewhere(address + from as u64, key, len),
        }
    }
}

/// Returns the segment of a store that was allocated whole, for the device to fill. Memory that the device does not
/// know is registered by `register`.
///
/// # Errors
/// Reason why the memory cannot be registered.
pub fn segment_of<E>(
    store: &mut Store,
    register: impl FnOnce(NonNull<[u8]>) -> Result<Mr, E>,
) -> Result<Segment, E> {
    match store.for_device() {
        ForDevice::Nothing => Ok(Segment::Outbox(0, 0)),
        ForDevice::Outbox(offset) => Ok(Segment::Outbox(offset, store.len())),
        ForDevice::Private(memory) => {
            let region = register(memory)?;
            let (address, key) = (memory.cast::<u8>().addr().get() as u64, region.lkey());
            store.keep_registration(Box::new(region));
            Ok(Segment::Elsewhere(address, key, memory.len()))
        }
    }
}

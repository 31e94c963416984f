//! Memory that processes share: sealed segments, copies that race with writers, and prefetching.

pub(crate) mod copy;
pub(crate) mod copy_bytes;
#[cfg(not(loom))]
pub(crate) mod elements;
pub(crate) mod prefetch;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
pub mod shared_memory;
pub(crate) mod streamed;

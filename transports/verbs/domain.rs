//! Protection domains: one for each tag, so that it is the device that keeps windows of one tag from VIs of another; and in each
//! of them the outbox, made known to the device piece by piece when it is first used.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use udeck_sys::segment::CHUNK;
use udeck_wired::Memory;

use crate::ffi::Sge;
use crate::ffi::codes::access;
use crate::hca::objects::{Context, Mr, Pd};
use crate::memory::Segment;
use crate::wire::Part;

/// Bytes of one request: what every device takes.
const REQUEST: usize = 1 << 30;

/// See the module.
pub struct Domain {
    /// The outbox by chunks: an arena has memory for whole chunks, from the first block in one on. Peers read what is offered
    /// to them there, as they do where a host's processes share it. Gone before the memory and the domain are.
    chunks: Mutex<HashMap<u64, Chunk>>,
    pub pd: Arc<Pd>,
    memory: Memory,
}

#[derive(Clone, Copy)]
struct Chunk {
    /// Of its first byte.
    address: u64,
    lkey: u32,
    rkey: u32,
}

/// What requests are made of.
pub type Sges = SmallVec<[Sge; 12]>;

impl Domain {
    /// # Errors
    /// The device's: it has no more.
    pub fn new(context: &Arc<Context>, memory: &Memory) -> io::Result<Self> {
        Ok(Domain { chunks: Mutex::default(), pd: Pd::new(context)?, memory: memory.clone() })
    }
}

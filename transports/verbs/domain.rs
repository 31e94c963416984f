//! Protection domains: one for each protection tag, so that the device itself keeps windows of one tag from VIs of
//! another. In each domain the outbox is registered chunk by chunk, when a chunk is first used.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use smallvec::SmallVec;
use udeck_session::Memory;
use udeck_sys::segment::CHUNK;

use crate::ffi::Sge;
use crate::ffi::codes::access;
use crate::hca::objects::{Context, Mr, Pd};
use crate::memory::Segment;
use crate::recv_buffers::Pool;
use crate::wire::RemotePiece;

/// A protection domain of the device, with the chunks of the outbox that are registered in it.
pub struct Domain {
    /// Registered chunks of the outbox. An arena has memory for whole chunks, from the first block in one on. Peers
    /// read offered messages there, as the processes of a host do over shared memory. The regions are dropped before
    /// the memory and the domain. A chunk may have a second region, as the target of reads where peers need the
    /// right to write it: on iWARP, a read is the peer's write. We tell nobody its key.
    chunks: Mutex<HashMap<(u64, Use), (Chunk, Mr)>>,
    pub pd: Arc<Pd>,
    memory: Memory,
    /// Pool from which the domain's queue pairs receive.
    pool: Mutex<Weak<Pool>>,
    /// Bytes that the NIC has pinned for frames.
    pub pinned: Arc<AtomicUsize>,
}

/// Use of memory by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// The device sends it, or its own requests read or write it.
    Usual,
    /// A read of iWARP fills it.
    Sink,
}

#[derive(Clone, Copy)]
struct Chunk {
    /// Address of the chunk's first byte.
    address: u64,
    lkey: u32,
    rkey: u32,
}

/// Elements of a request.
pub type Sges = SmallVec<[Sge; 12]>;

impl Domain {
    /// # Errors
    /// The device's error: it has no more.
    pub fn new(context: &Arc<Context>, memory: &Memory, pinned: &Arc<AtomicUsize>) -> io::Result<Self> {
        let (pd, pool) = (Pd::new(context)?, Mutex::default());
        Ok(Domain { chunks: Mutex::default(), pd, memory: memory.clone(), pool, pinned: pinned.clone() })
    }

    /// Returns the domain's pool, grown for one more connection. If there is none, `make` makes it.
    ///
    /// # Errors
    /// No pool could be made.
    pub fn pool(&self, make: impl FnOnce() -> io::Result<Arc<Pool>>) -> io::Result<Arc<Pool>> {
        let mut known = self.pool.lock();
        let pool = match known.upgrade() {
            Some(pool) => pool,
            None => make()?,
        };
        pool.grow(&self.pd, &self.pinned)?;
        *known = Arc::downgrade(&pool);
        Ok(pool)
    }

    /// Returns the request elements that cover the segments' bytes from `from` on, at most `most` elements, and the
    /// number of bytes that they cover.
    ///
    /// # Errors
    /// Reason as text why memory cannot be registered.
    pub fn sges(
        &self,
        segments: &[Segment],
        mut from: usize,
        mut len: usize,
        most: usize,
        what_for: Use,
    ) -> Result<(Sges, usize), String> {
        let (mut sges, mut covered) = (Sges::new(), 0);
        for &segment in segments {
            let skipped = from.min(segment.len());
            from -= skipped;
            let mut rest = segment.part(skipped, (segment.len() - skipped).min(len));
            while rest.len() > 0 && sges.len() < most {
                let sge = self.first_of(rest, what_for)?;
                let here = sge.length as usize;
                rest = rest.part(here, rest.len() - here);
                (covered, len) = (covered + here, len - here);
                sges.push(sge);
            }
        }
        Ok((sges, covered))
    }

    /// Returns the element for as much of a segment as one element takes.
    fn first_of(&self, segment: Segment, what_for: Use) -> Result<Sge, String> {
        match segment {
            Segment::Elsewhere(addr, lkey, len) => {
                Ok(Sge { addr, length: len.min(u32::MAX as usize) as u32, lkey })
            }
            Segment::Outbox(offset, len) => {
                let (chunk, within) = self.chunk(offset, what_for)?;
                let length = len.min(CHUNK - within) as u32;
                Ok(Sge { addr: chunk.address + within as u64, length, lkey: chunk.lkey })
            }
        }
    }

    /// Appends the places at which peers can read `segments`.
    ///
    /// # Errors
    /// The errors of [`Domain::sges`].
    pub fn parts(&self, segments: &[Segment], parts: &mut Vec<RemotePiece>) -> Result<(), String> {
        for &segment in segments {
            let mut rest = segment;
            while rest.len() > 0 {
                let Segment::Outbox(offset, len) = rest else {
                    return Err("only the outbox is offered".into());
                };
                let (chunk, within) = self.chunk(offset, Use::Usual)?;
                let here = len.min(CHUNK - within);
                parts.push(RemotePiece {
                    address: chunk.address + within as u64,
                    rkey: chunk.rkey,
                    len: here as u32,
                });
                rest = rest.part(here, len - here);
            }
        }
        Ok(())
    }

    /// Returns the chunk of a place in the outbox that is in use, and the place's offset in the chunk.
    fn chunk(&self, offset: u64, what_for: Use) -> Result<(Chunk, usize), String> {
        let (number, within) = (offset / CHUNK as u64, (offset % CHUNK as u64) as usize);
        let mut chunks = self.chunks.lock();
        if let Some((chunk, _)) = chunks.get(&(number, what_for)) {
            return Ok((*chunk, within));
        }
        let outbox = &self.memory.outbox;
        let start = number * CHUNK as u64;
        let len = CHUNK.min(outbox.usage().limit.saturating_sub(start as usize));
        let base = outbox.place(start, len).ok_or("a message outside of the outbox")?;
        let memory = NonNull::slice_from_raw_parts(base, len);
        let peers = match what_for {
            Use::Usual => access::REMOTE_READ,
            Use::Sink => access::REMOTE_WRITE,
        };
        // SAFETY: the arena is mapped as long as `self.memory` is, which is dropped after the regions. The device
        // writes only the targets of our reads; peers read offered messages (SAFETY.md: an admitted peer reads the
        // outbox). No peer is told the key of a sink, but its device is, for the reads that it answers.
        let mr = unsafe { Mr::new(&self.pd, memory, access::LOCAL_WRITE | peers, false) };
        let mr = mr.map_err(|error| cannot_register(len, &error))?;
        let chunk = Chunk { address: base.addr().get() as u64, lkey: mr.lkey(), rkey: mr.rkey() };
        chunks.insert((number, what_for), (chunk, mr));
        Ok((chunk, within))
    }
}

/// Describes a failed registration, and what to do.
#[cold]
pub fn cannot_register(len: usize, error: &io::Error) -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit = limit.map_or("none".to_owned(), |bytes| format!("{bytes} bytes"));
    match error.raw_os_error() {
        Some(libc::ENOMEM) => format!(
            "{len} bytes of memory cannot be pinned for the device ({error}): the limit on locked memory, RLIMIT_MEMLOCK, is \
             {limit}; raise it (ulimit -l unlimited, or memlock in /etc/security/limits.conf), or open the NIC with less memory"
        ),
        _ => format!("{len} bytes of memory cannot be registered with the device: {error}"),
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({} chunks)", self.chunks.lock().len())
    }
}

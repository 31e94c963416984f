//! Protection domains: one for each tag, so that it is the device that keeps windows of one tag from VIs of another; and in each
//! of them the outbox, made known to the device piece by piece when it is first used.

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
use crate::wire::Part;

/// See the module.
pub struct Domain {
    /// The outbox by chunks: an arena has memory for whole chunks, from the first block in one on. Peers read what is offered
    /// to them there, as they do where a host's processes share it. Gone before the memory and the domain are.
    /// The second is there for what reads bring, where peers have to have the right to write that: on iWARP, a read is the
    /// peer's write. Its key is told to nobody by us.
    chunks: Mutex<HashMap<(u64, Use), (Chunk, Mr)>>,
    pub pd: Arc<Pd>,
    memory: Memory,
    /// Where its queue pairs receive.
    pool: Mutex<Weak<Pool>>,
    /// Bytes that the NIC has pinned for frames.
    pub pinned: Arc<AtomicUsize>,
}

/// What the device does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// It sends, or is read or written by its own requests.
    Usual,
    /// It is filled by a read of iWARP's.
    Sink,
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
    pub fn new(context: &Arc<Context>, memory: &Memory, pinned: &Arc<AtomicUsize>) -> io::Result<Self> {
        let (pd, pool) = (Pd::new(context)?, Mutex::default());
        Ok(Domain { chunks: Mutex::default(), pd, memory: memory.clone(), pool, pinned: pinned.clone() })
    }

    /// Its pool, grown for one connection more; made by `make` if there is none.
    ///
    /// # Errors
    /// There is none to be had.
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

    /// The requests' elements that cover `[from, from + len)` of `segments`. With `most`, no more of them than that: the
    /// bytes that they cover.
    ///
    /// # Errors
    /// In words: memory cannot be made known to the device.
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

    /// As much of a segment as one element takes.
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

    /// Where peers read `segments`.
    ///
    /// # Errors
    /// As [`Domain::sges`].
    pub fn parts(&self, segments: &[Segment], parts: &mut Vec<Part>) -> Result<(), String> {
        for &segment in segments {
            let mut rest = segment;
            while rest.len() > 0 {
                let Segment::Outbox(offset, len) = rest else {
                    return Err("only the outbox is offered".into());
                };
                let (chunk, within) = self.chunk(offset, Use::Usual)?;
                let here = len.min(CHUNK - within);
                parts.push(Part {
                    address: chunk.address + within as u64,
                    rkey: chunk.rkey,
                    len: here as u32,
                });
                rest = rest.part(here, len - here);
            }
        }
        Ok(())
    }

    /// The chunk of a place in the outbox, which somebody has, and how far in it that is.
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
        // SAFETY: the arena is mapped as long as `self.memory` is, which goes after the regions. The device writes only what
        // it is asked to read into; peers read what they are offered (SAFETY.md: an admitted peer reads the outbox). The key of
        // a sink no peer is told, but its device is, for the reads that it answers.
        let mr = unsafe { Mr::new(&self.pd, memory, access::LOCAL_WRITE | peers, false) };
        let mr = mr.map_err(|error| cannot_register(len, &error))?;
        let chunk = Chunk { address: base.addr().get() as u64, lkey: mr.lkey(), rkey: mr.rkey() };
        chunks.insert((number, what_for), (chunk, mr));
        Ok((chunk, within))
    }
}

/// What a failed registration means, and what to do.
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

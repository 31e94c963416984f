//! Receive buffers: registered buffers of 4 KiB that the device fills with frames, and gets back when the engine has
//! taken the frame out. There are two sources, of which a queue pair uses one:
//!
//! * **its own**, as many as the credits of the connection promise ([`RECEIVES`]), so that each frame finds one;
//! * **the pool** of its protection domain, a shared receive queue (SRQ; InfiniBand Architecture 1, 10.2.9). It
//!   grows by as many buffers with each connection, up to a bound of the NIC ([`RecvBufferQuota`]), and is
//!   overcommitted from then on.
//!
//! # No starvation
//! A frame that finds the pool empty is sent again by its sender's device (RNR, by default for ever). It finds a
//! buffer as soon as a thread takes completions: that copies the frames out of their buffers (into memory that the
//! connection's credits bound) and gives the buffers back, whether or not a program takes its messages. While no
//! program polls, the NIC's helper does. So a buffer waits for this process's engine only, and for no program.
//!
//! # Peers that lie
//! A peer that sends more than its credits is dropped as soon as that is seen, and its queue pair then consumes no
//! more buffers. Until then it can have filled the whole pool, once: completion queues have room for that.
//!
//! # Destroyed queue pairs
//! Untaken completions of a queue pair may vanish with it from the completion queue, and with them the buffers that
//! it has filled. Therefore a queue pair of a pool is put into its error state first, and the contents of its
//! completion queue are [set aside](crate::completions::Completions::set_aside).

use std::fmt;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;
use udeck_sys::ranked::RankedMutex;

use crate::completions::{name_of, name_of_shared};
use crate::connection::{CHAIN, RECEIVES};
use crate::domain::cannot_register;
use crate::ffi::codes::access;
use crate::ffi::{RecvWr, Sge};
use crate::hca::objects::{Mr, Pd, Qp, Srq};
use crate::locks::RECYCLED;
use crate::wire::BLOCK;

/// Registered pages of our own, which the kernel gives as zeros. No peer is told their key.
pub struct Buffers {
    /// Region of the memory, dropped before it: a device that still had the region would write to memory that the
    /// kernel keeps for it.
    mr: Mr,
    _memory: MmapRaw,
    at: NonNull<u8>,
    len: usize,
    pinned: Arc<AtomicUsize>,
}

// SAFETY: a mapping of our own, of plain bytes.
unsafe impl Send for Buffers {}
// SAFETY: callers get only addresses in it, and say so (`at`).
unsafe impl Sync for Buffers {}

impl Buffers {
    /// Allocates and registers `len` bytes. `pinned` counts them as long as they exist.
    ///
    /// # Errors
    /// The kernel's error, as text when the pages cannot be pinned.
    pub fn new(pd: &Arc<Pd>, len: usize, pinned: &Arc<AtomicUsize>) -> io::Result<Self> {
        let memory = MmapRaw::from(MmapOptions::new().len(len).map_anon()?);
        let at = NonNull::new(memory.as_mut_ptr()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the memory is ours, and is dropped after the region. No peer is told its key, and none would need it.
        let mr = unsafe { Mr::new(pd, NonNull::slice_from_raw_parts(at, len), access::LOCAL_WRITE, false) };
        let mr = mr.map_err(|error| io::Error::new(error.kind(), cannot_register(len, &error)))?;
        pinned.fetch_add(len, Ordering::Relaxed);
        Ok(Buffers { mr, _memory: memory, at, len, pinned: pinned.clone() })
    }

    /// Address of a byte.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len, "{offset} is outside of {} bytes", self.len);
        // SAFETY: inside of the mapping.
        unsafe { self.at.as_ptr().add(offset) }
    }

    pub fn lkey(&self) -> u32 {
        self.mr.lkey()
    }

    /// Element of a request for buffer `slot`.
    fn block(&self, slot: usize) -> Sge {
        Sge { addr: self.at(slot * BLOCK).addr() as u64, length: BLOCK as u32, lkey: self.lkey() }
    }

    /// Returns the bytes that the device has written to a buffer.
    ///
    /// # Safety
    /// Neither the device nor anybody else may write the buffer as long as the slice is used.
    unsafe fn written(&self, slot: usize, len: u32) -> &[u8] {
        // SAFETY: inside of the mapping: `at` asserts that for the first byte, and the mapping's length is a
        // multiple of `BLOCK`.
        unsafe { std::slice::from_raw_parts(self.at(slot * BLOCK), (len as usize).min(BLOCK)) }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.pinned.fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// Posts buffers in chains of [`CHAIN`]. `describe` gives a buffer's name and element.
fn post_in_chains(
    slots: &[u32],
    describe: impl Fn(u32) -> (u64, Sge),
    post: impl Fn(NonNull<RecvWr>) -> io::Result<()>,
) -> io::Result<()> {
    for slots in slots.chunks(CHAIN as usize) {
        let mut sges = [Sge::default(); CHAIN as usize];
        let none = RecvWr { wr_id: 0, next: null_mut(), sg_list: null_mut(), num_sge: 1 };
        let mut chain = [none; CHAIN as usize];
        let mut next = null_mut();
        // The chain is built from the last to the first, because each request names the one behind it.
        for ((&slot, sge), wr) in slots.iter().zip(&mut sges).zip(&mut chain).rev() {
            (wr.wr_id, *sge) = describe(slot);
            (wr.sg_list, wr.next) = (sge, next);
            next = wr;
        }
        NonNull::new(next).map_or(Ok(()), &post)?;
    }
    Ok(())
}

/// Source of a queue pair's receive buffers.
pub enum RecvBuffers {
    Own(Own),
    Pool(Arc<Pool>),
}

impl RecvBuffers {
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        match self {
            RecvBuffers::Own(_) => None,
            RecvBuffers::Pool(pool) => Some(&pool.srq),
        }
    }

    /// Returns the bytes that came to a buffer. They are valid until it is [recycled](RecvBuffers::recycle).
    pub fn received(&self, slot: u32, len: u32) -> &[u8] {
        match self {
            // SAFETY: a completion names the buffer: the device has filled it, and does not have it before it is
            // posted again, which takes this mutably.
            RecvBuffers::Own(own) => unsafe { own.buffers.written(slot.min(own.count - 1) as usize, len) },
            RecvBuffers::Pool(pool) => pool.received(slot, len),
        }
    }

    /// Gives a buffer back to the device: no slice of it exists any more.
    #[inline]
    pub fn recycle(&mut self, slot: u32) {
        match self {
            RecvBuffers::Own(own) => own.recycled.push(slot),
            RecvBuffers::Pool(pool) => pool.recycle(slot),
        }
    }

    /// Notes that the device has failed to fill a buffer. It takes no more for this queue pair, but gets the buffer
    /// again for others.
    pub fn mark_failed(&mut self, slot: u32) {
        if let RecvBuffers::Pool(pool) = self {
            pool.recycle(slot);
        }
    }

    /// Posts the recycled buffers, if they are enough for a chain.
    ///
    /// # Errors
    /// The device's error.
    #[inline]
    pub fn post(&mut self, qp: &Qp) -> io::Result<()> {
        match self {
            RecvBuffers::Own(own) if own.recycled.len() < CHAIN as usize => Ok(()),
            RecvBuffers::Own(own) => own.post(qp),
            // A pool posts its recycled buffers itself.
            RecvBuffers::Pool(_) => Ok(()),
        }
    }
}

/// Buffers of one queue pair.
pub struct Own {
    buffers: Buffers,
    link: u32,
    count: u32,
    recycled: Vec<u32>,
}

impl Own {
    /// Allocates `count` buffers of a link. None is posted yet.
    ///
    /// # Errors
    /// The errors of [`Buffers::new`].
    pub fn new(pd: &Arc<Pd>, link: u32, count: u32, pinned: &Arc<AtomicUsize>) -> io::Result<Self> {
        let buffers = Buffers::new(pd, count as usize * BLOCK, pinned)?;
        Ok(Own { buffers, link, count, recycled: (0..count).collect() })
    }

    fn post(&mut self, qp: &Qp) -> io::Result<()> {
        let describe = |slot: u32| {
            let slot = slot.min(self.count - 1);
            (name_of(self.link, slot, true), self.buffers.block(slot as usize))
        };
        // SAFETY: the chain is ours and lives until the call is over. The buffers are dropped after the queue pair,
        // and no slice of them exists: those of `received` end before.
        let posted = post_in_chains(&self.recycled, describe, |chain| unsafe { qp.post_recv(chain) });
        self.recycled.clear();
        posted
    }
}

/// Upper bound of the buffers of all pools of a NIC together.
pub struct RecvBufferQuota {
    bound: u32,
    used: Mutex<u32>,
}

impl RecvBufferQuota {
    pub fn new(bound: u32) -> Arc<Self> {
        Arc::new(RecvBufferQuota { bound, used: Mutex::new(0) })
    }

    pub fn bound(&self) -> u32 {
        self.bound
    }

    /// Takes [`RECEIVES`] buffers, if there are so many. Returns whether there were.
    fn take(&self) -> bool {
        let mut used = self.used.lock();
        let fits = *used + RECEIVES <= self.bound;
        *used += if fits { RECEIVES } else { 0 };
        fits
    }

    fn give_back(&self, buffers: u32) {
        *self.used.lock() -= buffers;
    }
}

/// Buffers of all queue pairs of a protection domain.
pub struct Pool {
    srq: Arc<Srq>,
    /// Number of the pool in the names of completions.
    pub number: u32,
    /// Buffers in chunks of [`RECEIVES`], as many chunks as the bound allows.
    chunks: Box<[OnceLock<Buffers>]>,
    /// Number of chunks that exist.
    grown: Mutex<usize>,
    /// Buffers that are to be posted again.
    recycled: RankedMutex<Vec<u32>>,
    quota: Arc<RecvBufferQuota>,
}

impl Pool {
    /// Makes an empty pool, with as many places as the quota allows and the device takes.
    ///
    /// # Errors
    /// The device's error: it has no more shared queues, or does not support them.
    pub fn new(pd: &Arc<Pd>, number: u32, quota: &Arc<RecvBufferQuota>, most: u32) -> io::Result<Arc<Self>> {
        let chunks = quota.bound.min(most) / RECEIVES;
        if chunks == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Arc::new(Pool {
            srq: Srq::new(pd, chunks * RECEIVES)?,
            number,
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            grown: Mutex::new(0),
            recycled: RankedMutex::new(RECYCLED, Vec::with_capacity(2 * CHAIN as usize)),
            quota: quota.clone(),
        }))
    }

    /// Grows the pool for one more connection. Without room for more buffers, the connection shares the existing ones.
    ///
    /// # Errors
    /// The pool is empty, and there is no room or memory for buffers.
    pub fn grow(&self, pd: &Arc<Pd>, pinned: &Arc<AtomicUsize>) -> io::Result<()> {
        let mut grown = self.grown.lock();
        let Some(chunk) = self.chunks.get(*grown) else { return Ok(()) };
        let grows = || {
            if !self.quota.take() {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            let made = Buffers::new(pd, RECEIVES as usize * BLOCK, pinned);
            made.inspect_err(|_| self.quota.give_back(RECEIVES))
        };
        match grows() {
            Ok(buffers) => _ = chunk.set(buffers),
            Err(_) if *grown > 0 => return Ok(()),
            Err(error) => return Err(error),
        }
        let first = *grown as u32 * RECEIVES;
        *grown += 1;
        let slots: Vec<u32> = (first..first + RECEIVES).collect();
        self.post(&slots)
    }

    fn place(&self, slot: u32) -> Option<(&Buffers, usize)> {
        let chunk = self.chunks.get((slot / RECEIVES) as usize)?.get()?;
        Some((chunk, (slot % RECEIVES) as usize))
    }

    fn received(&self, slot: u32, len: u32) -> &[u8] {
        let Some((chunk, at)) = self.place(slot) else { return &[] };
        // SAFETY: a completion names the buffer: the device has filled it, and does not have it before it is posted
        // again, which the taker of the completion does when the slice is gone.
        unsafe { chunk.written(at, len) }
    }

    /// Gives a buffer back to the device. The taker of its completion has no slice of it any more.
    pub fn recycle(&self, slot: u32) {
        let mut recycled = self.recycled.lock();
        recycled.push(slot);
        if recycled.len() >= CHAIN as usize {
            // The call fails only for devices that are gone, which are reported otherwise.
            let _ = self.post(&recycled);
            recycled.clear();
        }
    }

    fn post(&self, slots: &[u32]) -> io::Result<()> {
        let describe = |slot: u32| {
            let block = self.place(slot).map_or(Sge::default(), |(chunk, at)| chunk.block(at));
            (name_of_shared(self.number, slot), block)
        };
        // SAFETY: the chain is ours and lives until the call is over. The buffers are dropped after the queue (`srq`
        // is the first field, and each of its queue pairs keeps the pool), and no slice of them exists.
        post_in_chains(slots, describe, |chain| unsafe { self.srq.post(chain) })
    }

    /// Number of buffers that the pool has.
    pub fn buffers(&self) -> u32 {
        *self.grown.lock() as u32 * RECEIVES
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.quota.give_back(self.buffers());
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} buffers of {})", self.buffers(), self.chunks.len() as u32 * RECEIVES)
    }
}

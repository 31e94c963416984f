//! Registered memory: a program's own, which posting moves, and memory that peers reach.
//!
//! The library touches registered memory for the thread that posted it, and for peers, on any thread. So safe code has slices of memory only
//! while nothing is posted with it and no peer reaches it: an [`Lmr`] is one or the other as a whole, and a [`SharedLmr`] gives
//! copies only.

#![allow(
    unsafe_code,
    reason = "memory that is posted is owned as a pointer, until its completion gives it back"
)]

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use smallvec::SmallVec;

use super::error::{Error, Result};
use super::ia::Pz;
use crate::core::memory::{self as table, Piece, Right, Triplet};

/// Segments of a post.
pub(super) type Triplets = SmallVec<[Triplet; 2]>;

/// Bytes on the heap, owned as a pointer, because others may have the pointer, too.
struct Bytes {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: owned memory; its owners say which thread touches it, and when.
unsafe impl Send for Bytes {}
// SAFETY: as above: nothing is touched by a `&Bytes` alone.
unsafe impl Sync for Bytes {}

impl Bytes {
    fn new(bytes: Box<[u8]>) -> Bytes {
        let len = bytes.len();
        // A box is not NULL.
        let at = NonNull::new(Box::into_raw(bytes).cast::<u8>()).unwrap_or(NonNull::dangling());
        Bytes { at, len }
    }

    fn into_box(self) -> Box<[u8]> {
        let bytes = std::mem::ManuallyDrop::new(self);
        // SAFETY: made of a box, once, and nobody else has a part of it any more: the callers are its only owners.
        unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(bytes.at.as_ptr(), bytes.len)) }
    }

    /// Registers the bytes, and returns the memory context.
    fn register(&self, pz: &Pz, rights: u32) -> Result<u32> {
        let start = self.at.as_ptr().expose_provenance();
        let piece = Piece { named: start as u64, start, len: self.len, zone: pz.id(), rights, of: 0 };
        table::add(piece).map_err(|_| Error::Full { call: CREATE, what: "the table of memory regions" })
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: as in `into_box`, which does not come here.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.at.as_ptr(), self.len)) });
    }
}

const CREATE: &str = "dat_lmr_create";

/// Registered memory that only the program uses: source of sends and writes, destination of receives and reads (`DAT_LMR`). No peer
/// reaches it.
///
/// Posting moves the memory, and its [`Completion`](super::Completion) gives it back. So nobody reads or writes it meanwhile.
pub struct Lmr(Box<Held>);

/// Memory and cookie of a post, boxed so that a post moves one word.
pub(super) struct Held {
    /// The part that the next post names.
    triplet: Triplet,
    pub cookie: u64,
    /// The next piece of memory in the same post.
    next: Option<Box<Held>>,
    /// The registration; declared before `bytes`, so that it ends before the memory is dropped.
    _registered: Registration,
    bytes: Bytes,
    pz: Pz,
}

struct Registration(u32);

impl Drop for Registration {
    fn drop(&mut self) {
        // Removes bound windows of the region, too. The table's lock waits for an access that is under way.
        table::remove_with_parts(self.0);
    }
}

impl Lmr {
    /// Allocates and registers `len` zeroed bytes (`dat_lmr_create`, `DAT_MEM_TYPE_VIRTUAL`, with the local rights).
    ///
    /// # Errors
    /// [`Error::Full`]: no more memory regions can be registered. [`Error::Length`]: above 4 GiB.
    pub fn new(pz: &Pz, len: usize) -> Result<Lmr> {
        Lmr::of(pz, vec![0; len].into_boxed_slice())
    }

    /// Registers the program's memory. Its bytes keep their values and their address.
    ///
    /// # Errors
    /// As [`Lmr::new`]; the memory is dropped.
    pub fn of(pz: &Pz, bytes: Box<[u8]>) -> Result<Lmr> {
        let len = length(bytes.len())?;
        let bytes = Bytes::new(bytes);
        let context = bytes.register(pz, Right::LocalRead as u32 | Right::LocalWrite as u32)?;
        let triplet = Triplet { address: bytes.at.as_ptr().addr() as u64, len, key: context };
        Ok(Lmr(Box::new(Held {
            triplet,
            cookie: 0,
            next: None,
            _registered: Registration(context),
            bytes,
            pz: pz.clone(),
        })))
    }

    /// Chooses the part that posts name, until the next call; at first that is the whole memory. A receive or a read fills this part, a send
    /// or a write takes its bytes from it.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`]: the part is not within the memory; the choice stays.
    pub fn select(&mut self, part: Range<usize>) -> Result {
        if part.start > part.end || part.end > self.0.bytes.len {
            let what = format!("part {part:?} of {} bytes", self.0.bytes.len);
            return Err(Error::parameter("dat_lmr_create", what));
        }
        let held = &mut *self.0;
        held.triplet.address = (held.bytes.at.as_ptr().addr() + part.start) as u64;
        held.triplet.len = part.len() as u32;
        Ok(())
    }

    /// The part that posts name.
    pub fn selected(&self) -> Range<usize> {
        let start = self.0.triplet.address as usize - self.0.bytes.at.as_ptr().addr();
        start..start + self.0.triplet.len as usize
    }

    /// Its protection zone.
    pub fn pz(&self) -> &Pz {
        &self.0.pz
    }

    /// Ends the registration, and returns the bytes (`dat_lmr_free`).
    pub fn into_bytes(self) -> Box<[u8]> {
        let Held { _registered, bytes, .. } = *self.0;
        drop(_registered);
        bytes.into_box()
    }
}

impl Deref for Lmr {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let bytes = &self.0.bytes;
        // SAFETY: initialised, and owned by this: what is posted is no `Lmr`, and the registration gives peers no right.
        unsafe { std::slice::from_raw_parts(bytes.at.as_ptr(), bytes.len) }
    }
}

impl DerefMut for Lmr {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = &self.0.bytes;
        // SAFETY: as above, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(bytes.at.as_ptr(), bytes.len) }
    }
}

impl fmt::Debug for Lmr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lmr({} bytes, {:?} selected)", self.len(), self.selected())
    }
}

/// The memory of one post: one [`Lmr`], or several in this order (`local_iov`).
pub struct Iov(Box<Held>);

impl From<Lmr> for Iov {
    #[inline]
    fn from(lmr: Lmr) -> Iov {
        Iov(lmr.0)
    }
}

impl<const N: usize> From<[Lmr; N]> for Iov {
    /// An empty array does not compile: there is always a first [`Lmr`].
    fn from(several: [Lmr; N]) -> Iov {
        const { assert!(N > 0, "an empty message has memory, too: select none of it") };
        let mut head: Option<Box<Held>> = None;
        for lmr in several.into_iter().rev() {
            let mut held = lmr.0;
            held.next = head.take();
            head = Some(held);
        }
        Iov(head.unwrap_or_else(|| unreachable!("there is a first")))
    }
}

impl Iov {
    /// Returns the first [`Lmr`], which is the only one of most posts. The others are dropped.
    #[inline]
    pub fn into_lmr(self) -> Lmr {
        let mut held = self.0;
        if held.next.is_some() {
            held.next = None;
        }
        Lmr(held)
    }

    /// Returns all, in order.
    pub fn into_vec(self) -> Vec<Lmr> {
        let mut all = Vec::new();
        let mut next = Some(self.0);
        while let Some(mut held) = next {
            next = held.next.take();
            all.push(Lmr(held));
        }
        all
    }

    /// Bytes of all selected parts.
    pub fn len(&self) -> usize {
        self.triplets().iter().map(|triplet| triplet.len as usize).sum()
    }

    /// Whether no byte is selected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(super) fn triplets(&self) -> Triplets {
        let mut all = Triplets::new();
        let mut next = Some(&self.0);
        while let Some(held) = next {
            all.push(held.triplet);
            next = held.next.as_ref();
        }
        all
    }

    /// Whether all memory is of this zone.
    pub(super) fn is_of(&self, pz: &Pz) -> bool {
        let mut next = Some(&self.0);
        while let Some(held) = next {
            if held.pz.id() != pz.id() {
                return false;
            }
            next = held.next.as_ref();
        }
        true
    }

    /// The segment of a post that has only one.
    #[inline]
    pub(super) fn single(&self) -> Option<Triplet> {
        self.0.next.is_none().then_some(self.0.triplet)
    }

    /// Converts the memory to the cookie of a post. [`take_posted`] converts the cookie of the event back.
    #[inline]
    pub(super) fn into_cookie(mut self, cookie: u64) -> u64 {
        self.0.cookie = cookie;
        Box::into_raw(self.0).expose_provenance() as u64
    }
}

impl fmt::Debug for Iov {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Iov({} bytes in {} parts)", self.len(), self.triplets().len())
    }
}

/// Error of a refused post, and the memory, which is the program's again.
pub type Refused = (Error, Iov);

/// Returns the memory that [`Iov::into_cookie`] made this cookie of, and the program's cookie. Call it once, when the library is done with
/// the memory: for the cookie of a completion that has been dequeued, or of a post that was refused. (This folder alone makes such cookies
/// and gets such events.)
#[inline]
pub(super) fn take_posted(cookie: u64) -> (Iov, u64) {
    // SAFETY: a box that nobody else has, as said above: an end point of this interface has one event, or one refusal, for each post,
    // and a receive of a shared queue is taken from the queue once.
    let held = unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut::<Held>(cookie as usize)) };
    let cookie = held.cookie;
    (Iov(held), cookie)
}

fn length(len: usize) -> Result<u32> {
    u32::try_from(len).map_err(|_| Error::Length { call: CREATE, len, room: u32::MAX as usize })
}

/// Remote rights of memory (`DAT_MEM_PRIV_REMOTE_READ_FLAG`, `DAT_MEM_PRIV_REMOTE_WRITE_FLAG`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Peers may read by RDMA.
    pub read: bool,
    /// Peers may write by RDMA.
    pub write: bool,
}

impl Rights {
    /// No right: peers cannot reach the memory.
    pub const NONE: Rights = Rights { read: false, write: false };
    /// Reading.
    pub const READ: Rights = Rights { read: true, write: false };
    /// Writing.
    pub const WRITE: Rights = Rights { read: false, write: true };
    /// Both.
    pub const READ_WRITE: Rights = Rights { read: true, write: true };

    pub(super) fn bits(self) -> u32 {
        let bit = |set: bool, right: Right| if set { right as u32 } else { 0 };
        bit(self.read, Right::RemoteRead) | bit(self.write, Right::RemoteWrite)
    }
}

/// Address of a peer's memory, as RDMA names it (`DAT_RMR_TRIPLET`). It is a plain value of [16 bytes](RemoteMemory::to_bytes) that the
/// program may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// The target address, which only its owner can interpret.
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
    /// The RMR context.
    pub context: u32,
}

impl RemoteMemory {
    /// Returns the address of a part.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`]: the part is not within the memory.
    pub fn part(self, part: Range<usize>) -> Result<RemoteMemory> {
        if part.start > part.end || part.end > self.len as usize {
            let what = format!("part {part:?} of {} bytes of remote memory", self.len);
            return Err(Error::parameter("dat_ep_post_rdma_write", what));
        }
        Ok(RemoteMemory {
            address: self.address.wrapping_add(part.start as u64),
            len: part.len() as u32,
            context: self.context,
        })
    }

    /// Encodes the three fields in their order, little-endian.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..].copy_from_slice(&self.context.to_le_bytes());
        bytes
    }

    /// Decodes bytes of [`to_bytes`](RemoteMemory::to_bytes). Any bytes decode to some address; the peer's adapter checks at each access whether
    /// it is memory of the peer's.
    pub fn from_bytes(bytes: [u8; 16]) -> RemoteMemory {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let address = u64::from(word(0)) | u64::from(word(4)) << 32;
        RemoteMemory { address, len: word(8), context: word(12) }
    }
}

/// Memory that peers may read and write by RDMA at any moment (an LMR with remote rights). So the program gets copies of it, and no slice.
/// A clone is the same memory, and keeps it.
#[derive(Clone)]
pub struct SharedLmr(Arc<Shared>);

struct Shared {
    context: u32,
    rights: Rights,
    /// The registration; it ends before the memory is dropped.
    registered: Registration,
    bytes: Bytes,
    pz: Pz,
}

impl SharedLmr {
    /// Allocates and registers `len` zeroed bytes (`dat_lmr_create` with remote rights). Peers of end points of this zone reach them by
    /// [`SharedLmr::remote`].
    ///
    /// # Errors
    /// As [`Lmr::new`].
    pub fn new(pz: &Pz, len: usize, rights: Rights) -> Result<SharedLmr> {
        SharedLmr::of(pz, vec![0; len].into_boxed_slice(), rights)
    }

    /// Registers the program's memory. Its bytes keep their values.
    ///
    /// # Errors
    /// As [`Lmr::new`].
    pub fn of(pz: &Pz, bytes: Box<[u8]>, rights: Rights) -> Result<SharedLmr> {
        length(bytes.len())?;
        let bytes = Bytes::new(bytes);
        let local = Right::LocalRead as u32 | Right::LocalWrite as u32;
        let context = bytes.register(pz, local | rights.bits())?;
        let registered = Registration(context);
        Ok(SharedLmr(Arc::new(Shared { context, rights, registered, bytes, pz: pz.clone() })))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.bytes.len
    }

    /// Whether the memory has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rights that peers have by [`SharedLmr::remote`].
    pub fn rights(&self) -> Rights {
        self.0.rights
    }

    /// Its protection zone.
    pub fn pz(&self) -> &Pz {
        &self.0.pz
    }

    /// The address that a peer needs for RDMA to this memory.
    pub fn remote(&self) -> RemoteMemory {
        let Triplet { address, len, key: context } = self.triplet();
        RemoteMemory { address, len, context }
    }

    /// Describes a part of the memory, for a window with these rights.
    pub(super) fn piece(&self, call: &'static str, part: Range<usize>, rights: Rights) -> Result<Piece> {
        if part.is_empty() || part.end > self.len() {
            let what = format!("part {part:?} of {} bytes of memory", self.len());
            return Err(Error::parameter(call, what));
        }
        let start = self.0.bytes.at.as_ptr().expose_provenance() + part.start;
        let (zone, rights, of) = (self.0.pz.id(), rights.bits(), self.0.context);
        Ok(Piece { named: start as u64, start, len: part.len(), zone, rights, of })
    }

    pub(super) fn triplet(&self) -> Triplet {
        let bytes = &self.0.bytes;
        Triplet { address: bytes.at.as_ptr().addr() as u64, len: bytes.len as u32, key: self.0.context }
    }

    fn check(&self, call: &'static str, offset: usize, len: usize) -> Result {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let what = format!("{len} bytes at {offset} of {} bytes of memory", self.len());
            return Err(Error::parameter(call, what));
        }
        Ok(())
    }

    /// Copies `to.len()` bytes out, as they are at this moment.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`]: the bytes reach beyond the end of the memory.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result {
        self.check("reading shared memory", offset, to.len())?;
        // SAFETY: within memory that stays as long as this; peers and other threads write there at the same time by such copies only,
        // which `copy_in` allows for.
        unsafe { udeck_sys::copy_in(to, self.0.bytes.at.add(offset)) };
        Ok(())
    }

    /// Copies `from` in. A peer or a thread that reads at this moment may see a part of it.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`]: the bytes reach beyond the end of the memory.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result {
        self.check("writing shared memory", offset, from.len())?;
        // SAFETY: as above.
        unsafe { udeck_sys::copy_out(self.0.bytes.at.add(offset), from) };
        Ok(())
    }

    /// Ends the peers' rights, waits for an access that is under way, and returns the bytes (`dat_lmr_free`).
    ///
    /// # Errors
    /// The memory comes back if there are other clones of it, or an [`Rmr`](super::Rmr) is bound to it.
    pub fn into_bytes(self) -> Result<Box<[u8]>, SharedLmr> {
        let Shared { registered, bytes, .. } = Arc::try_unwrap(self.0).map_err(SharedLmr)?;
        drop(registered); // waits for accesses under way: they have the table locked
        Ok(bytes.into_box())
    }
}

impl fmt::Debug for SharedLmr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedLmr({} bytes, {:?})", self.len(), self.0.rights)
    }
}

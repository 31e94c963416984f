//! Raw memory and posts, by address and without giving the buffer away: for the C interfaces and for programs that keep their
//! own books. Also the raw device, for programs that put a device of their own in front of it.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::cache::Identity;
use super::registrar::{Lease, OnRegionDrop};
use super::tags::{Carrier, TagUse};
use super::{MemAttributes, Ptag, RemoteBuffer, Rights};
use crate::descriptor::{Operation, Piece, RawId, ReceiveInto};
use crate::error::Result;
use crate::nic::Nic;
use crate::transport::Device;
use crate::vi::{Pieces, Vi};

/// A piece of registered memory by address.
#[derive(Clone, Copy, Debug)]
pub struct RawSegment {
    /// First byte, inside a [`crate::Region`] or a [`RawRegion`] of the same NIC.
    pub address: NonNull<u8>,
    /// Length in bytes.
    pub len: usize,
}

// SAFETY: an address and a length; the poster has promised which accesses to the memory are allowed, on any thread.
unsafe impl Send for RawSegment {}

/// Memory that was registered by address. Dropping this deregisters it (VIA: `VipDeregisterMem`).
pub struct RawRegion {
    place: NonNull<[u8]>,
    lease: Lease,
    tag: TagUse,
}

// SAFETY: the region names the memory, and never touches it.
unsafe impl Send for RawRegion {}
// SAFETY: as above.
unsafe impl Sync for RawRegion {}

impl RawRegion {
    /// The registered memory.
    pub fn memory(&self) -> NonNull<[u8]> {
        self.place
    }

    /// Attributes of the registration (VIA: `VipQueryMem`).
    pub fn attributes(&self) -> MemAttributes {
        MemAttributes { ptag: self.tag.ptag(), rights: Rights::NONE, len: self.place.len() }
    }

    /// Changes the protection tag (VIA: `VipSetMemAttributes`), for later posts.
    ///
    /// # Errors
    /// [`crate::Error::InvalidPtag`] when the NIC has no such tag; the memory then keeps the old one.
    pub fn set_ptag(&mut self, ptag: Ptag) -> Result {
        self.tag = self.tag.other(ptag)?;
        self.lease.set_ptag(ptag);
        Ok(())
    }
}

impl fmt::Debug for RawRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawRegion({:?}, {} bytes, {:?})", self.place.cast::<u8>(), self.place.len(), self.tag)
    }
}

impl Nic {
    /// Registers memory by address (VIA: `VipRegisterMem`), for raw posts. It is never kept in the registration cache,
    /// because the library cannot know when this address becomes other memory. May block in the kernel.
    ///
    /// # Safety
    /// The memory stays allocated until the [`RawRegion`] has been dropped.
    ///
    /// # Errors
    /// Those of [`Nic::register`].
    pub unsafe fn register_raw(&self, memory: NonNull<[u8]>, ptag: Ptag) -> Result<RawRegion> {
        let tag = self.tags().take(ptag, Carrier::Region)?;
        let lease = self.registrar().register(Identity::fresh(), memory, ptag, OnRegionDrop::End)?;
        Ok(RawRegion { place: memory, lease, tag })
    }

    /// The device behind this NIC, for a device that goes in front of it. (`udeck-faults` does that in safe code.)
    ///
    /// # Safety
    /// Each call on the device, and on the endpoints and requests that it makes, is one that the VI layer made on the device
    /// in front, or keeps the caller's part of [`crate::transport`]'s contract as well.
    pub unsafe fn raw_device(&self) -> Arc<dyn Device> {
        self.device().clone()
    }
}

impl Vi {
    /// Posts a send of memory that stays the caller's. [`Vi::send_done`] reports it under `id`.
    ///
    /// # Safety
    /// From now until the send is reported done (or this VI has been dropped and its connection is over) the
    /// segments stay allocated, initialised and registered, and nobody writes them.
    ///
    /// # Errors
    /// Those of [`Vi::post_send`]; [`crate::Error::InvalidParameter`] when a segment is not memory of this NIC,
    /// [`crate::Error::InvalidPtag`] when it is registered with another tag.
    pub unsafe fn post_send_raw(
        &mut self,
        segments: &[RawSegment],
        immediate: Option<u32>,
        id: u64,
    ) -> Result {
        // SAFETY: as the caller promises.
        unsafe { self.post_raw(segments, Operation::Send, immediate, id) }
    }

    /// Posts an RDMA write of memory that stays the caller's. [`Vi::send_done`] reports it under `id`.
    ///
    /// # Safety
    /// The conditions of [`Vi::post_send_raw`].
    ///
    /// # Errors
    /// Those of [`Vi::post_send_raw`]; [`crate::Error::RdmaProtection`], [`crate::Error::Unsupported`].
    pub unsafe fn post_rdma_write_raw(
        &mut self,
        segments: &[RawSegment],
        to: RemoteBuffer,
        immediate: Option<u32>,
        id: u64,
    ) -> Result {
        // SAFETY: as the caller promises.
        unsafe { self.post_raw(segments, Operation::Write(to), immediate, id) }
    }

    /// Posts an RDMA read into memory that stays the caller's. [`Vi::send_done`] reports it under `id`.
    ///
    /// # Safety
    /// From now until the read is reported done (or this VI has been dropped and its connection is over) the segments stay
    /// allocated and registered, and nobody else reads or writes them.
    ///
    /// # Errors
    /// Those of [`Vi::post_rdma_write_raw`].
    pub unsafe fn post_rdma_read_raw(
        &mut self,
        segments: &[RawSegment],
        from: RemoteBuffer,
        id: u64,
    ) -> Result {
        // SAFETY: as the caller promises.
        unsafe { self.post_raw(segments, Operation::Read(from), None, id) }
    }

    /// Posts any raw operation of the send queue.
    ///
    /// # Safety
    /// The conditions of [`Vi::post_send_raw`] or [`Vi::post_rdma_read_raw`], by the operation.
    unsafe fn post_raw(
        &mut self,
        segments: &[RawSegment],
        operation: Operation,
        immediate: Option<u32>,
        id: u64,
    ) -> Result {
        let places = self.raw_places(segments)?;
        let lie_outside =
            |(segment, place): (&RawSegment, &Piece)| place.offset.is_none().then_some(*segment);
        let outside = segments.iter().zip(&places).filter_map(lie_outside).collect();
        self.post_pieces(RawPieces { places, outside }, operation, immediate, RawId(id))
    }

    /// Posts a receive into memory that stays the caller's. [`Vi::receive_done`] reports it under `id`.
    ///
    /// # Safety
    /// From now until the receive is reported done (or this VI has been dropped) the segments stay allocated and
    /// registered, and nobody else reads or writes them.
    ///
    /// # Errors
    /// Those of [`Vi::post_receive`]; for the segments, those of [`Vi::post_send_raw`].
    pub unsafe fn post_receive_raw(&mut self, segments: &[RawSegment], id: u64) -> Result {
        self.raw_places(segments)?;
        self.post_receive_into(ReceiveInto::Raw { segments: segments.to_vec(), id: RawId(id) })
    }

    /// Places of the segments, each checked to be registered memory of our NIC.
    fn raw_places(&self, segments: &[RawSegment]) -> Result<Vec<Piece>> {
        let nic = self.nic();
        let ptag = self.attributes().ptag;
        let place = |&RawSegment { address, len }: &RawSegment| {
            let offset = nic.device().outbox().offset_of(address, len);
            if offset.is_none() {
                nic.registrar().check(address, len, ptag)?;
            }
            Ok(Piece { offset, len })
        };
        segments.iter().map(place).collect()
    }
}

/// Segments of a raw post, which are copied to the outbox and back where they lie outside. Only [`Vi::post_raw`] makes this.
/// It is gone when that call returns, except for the segments of a read ([`Pieces::keep`]), which are dropped when the read
/// is reported: so the caller's promise holds while it lives.
struct RawPieces {
    places: Vec<Piece>,
    /// Segments outside the outbox.
    outside: Vec<RawSegment>,
}

impl Pieces for RawPieces {
    fn pieces(&self) -> Vec<Piece> {
        self.places.clone()
    }

    fn gather(&self, mut to: &mut [u8]) {
        for segment in &self.outside {
            let (now, later) = to.split_at_mut(segment.len);
            // SAFETY: allocated, initialised and written by nobody, as `post_send_raw` was promised; `now` is memory
            // of a block of ours, which is no part of it.
            unsafe { std::ptr::copy_nonoverlapping(segment.address.as_ptr(), now.as_mut_ptr(), now.len()) };
            to = later;
        }
    }

    fn scatter(&mut self, from: &[u8]) {
        let left_over = scatter_raw(&self.outside, std::iter::once(from));
        debug_assert_eq!(left_over, 0, "the block was made as long as they are");
    }

    fn keep(&mut self) -> Vec<RawSegment> {
        std::mem::take(&mut self.outside)
    }
}

/// Copies `from`'s pieces into raw segments, as far as they reach. Returns the bytes that did not fit.
///
/// The segments are valid for writes because [`Vi::post_receive_raw`] or [`Vi::post_rdma_read_raw`] was promised so.
pub(crate) fn scatter_raw<'a>(segments: &[RawSegment], from: impl Iterator<Item = &'a [u8]>) -> usize {
    let mut room = segments.iter().copied();
    let mut current = room.next();
    let mut left_over = 0;
    for mut piece in from {
        while !piece.is_empty() {
            let Some(segment) = &mut current else {
                left_over += piece.len();
                break;
            };
            let n = piece.len().min(segment.len);
            // SAFETY: `segment` is writable for `len >= n` bytes and untouched by others until reported done, as
            // `post_receive_raw` and `post_rdma_read_raw` were promised; `piece` is a live slice; a receive buffer is no message in flight.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.as_ptr(), segment.address.as_ptr(), n);
                segment.address = segment.address.add(n);
            }
            segment.len -= n;
            piece = &piece[n..];
            if segment.len == 0 {
                current = room.next();
            }
        }
    }
    left_over
}

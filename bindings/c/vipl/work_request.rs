//! A descriptor as it was posted: read once from the program's memory, checked, and kept. Later changes by the program have no
//! effect; the status is written into its memory when the descriptor is over.

use smallvec::SmallVec;
use udeck::via::Ptag;
use udeck_rdma::memory::{Refusal, Right, Segment, gather_located, locate, scatter_located};

use super::types::{ALIGNMENT, ControlSegment, Descriptor, DescriptorSegment, control, status};

/// Most data segments of a descriptor.
pub(super) const MAX_SEGMENTS: usize = 252;
/// Bytes that every descriptor has: its control segment and two more.
const LEAST: usize = 64;

/// Address of a descriptor, and the memory that it lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub descriptor: *mut Descriptor,
    pub handle: u32,
}

// SAFETY: an address, which is followed through `locate` only.
unsafe impl Send for Place {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Send,
    /// A write or a read: address at the peer, and the peer's memory handle.
    Write(u64, u32),
    Read(u64, u32),
}

#[derive(Debug)]
pub(super) struct WorkRequest {
    pub place: Place,
    pub operation: Operation,
    pub immediate: Option<u32>,
    pub fenced: bool,
    pub segments: SmallVec<[Segment; 1]>,
    /// Bytes of all segments.
    pub total: usize,
    /// Errors of the descriptor, as bits of its status.
    pub error: u32,
}

/// A work queue of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Send,
    Receive,
}

/// A descriptor of the usual form: a message of one segment, not fenced.
pub(super) struct Short {
    /// Address of the descriptor.
    at: *mut u8,
    pub immediate: Option<u32>,
    pub segment: DescriptorSegment,
}

impl Short {
    /// Reads the descriptor. `None`: it has another form, or lies where no descriptor can.
    #[inline(always)]
    pub fn read(place: Place, ptag: Ptag) -> Option<Short> {
        let address = place.descriptor as usize;
        if !address.is_multiple_of(ALIGNMENT) {
            return None;
        }
        let at = locate(address as u64, LEAST as u64, place.handle, ptag.0, Right::LocalWrite)?.as_ptr();
        // SAFETY: registered for `LEAST` bytes, which has the control segment and two more, and aligned. The caller keeps his lock.
        let (head, segment) = unsafe {
            (&raw const *at.cast::<ControlSegment>(), at.add(32).cast::<DescriptorSegment>().read())
        };
        // SAFETY: as above.
        let (count, bits, immediate) = unsafe { ((*head).seg_count, (*head).control, (*head).immediate) };
        let is_plain = count == 1 && bits & !control::IMMEDIATE == 0;
        let immediate = (bits & control::IMMEDIATE != 0).then_some(immediate);
        is_plain.then_some(Short { at, immediate, segment })
    }

    /// Writes the status. The caller has had its VI's lock since the descriptor was read.
    #[inline(always)]
    pub fn finish(&self, bits: u32) {
        // SAFETY: as in `read`.
        unsafe { finish(self.at, bits, self.segment.last as usize, None) }
    }

    /// Clears the status, whatever it was the last time.
    #[inline(always)]
    pub fn renew(&self) {
        // SAFETY: as in `read`.
        unsafe { (&raw mut (*self.at.cast::<ControlSegment>()).status).write(0) }
    }
}

/// # Safety
/// A descriptor lies there, in memory that may be touched.
#[inline(always)]
unsafe fn finish(at: *mut u8, bits: u32, length: usize, immediate: Option<u32>) {
    let control = at.cast::<ControlSegment>();
    // SAFETY: as promised.
    unsafe {
        (&raw mut (*control).length).write(length as u32);
        if let Some(immediate) = immediate {
            (&raw mut (*control).immediate).write(immediate);
        }
        // Written last: a program may look at the status of a descriptor before it is given back.
        let word = &*(&raw const (*control).status).cast::<std::sync::atomic::AtomicU32>();
        word.store(bits | status::DONE, std::sync::atomic::Ordering::Release);
    }
}

/// A posted receive: most have one segment.
pub(super) struct Receive {
    pub place: Place,
    /// The only segment, unless there is `other`.
    pub segment: DescriptorSegment,
    pub other: Option<Box<WorkRequest>>,
}

/// No receive: what an empty place of a queue holds.
impl Default for Receive {
    fn default() -> Receive {
        let place = Place { descriptor: std::ptr::null_mut(), handle: 0 };
        Receive { place, segment: DescriptorSegment { data: 0, handle: 0, last: 0 }, other: None }
    }
}

impl Receive {
    /// The receive as a full [`WorkRequest`].
    pub fn into_request(self) -> WorkRequest {
        match self.other {
            Some(request) => *request,
            None => WorkRequest {
                place: self.place,
                operation: Operation::Send,
                immediate: None,
                fenced: false,
                segments: SmallVec::from_buf([self.segment.into()]),
                total: self.segment.last as usize,
                error: 0,
            },
        }
    }
}

impl WorkRequest {
    /// Reads the descriptor. `None`: it does not lie where a descriptor can.
    pub fn read(place: Place, ptag: Ptag, queue: Queue, max_transfer: usize) -> Option<WorkRequest> {
        let address = place.descriptor as usize;
        if !address.is_multiple_of(ALIGNMENT) {
            return None;
        }
        let at = locate(address as u64, LEAST as u64, place.handle, ptag.0, Right::LocalWrite)?.as_ptr();
        // SAFETY: registered for `LEAST` bytes, and aligned. The caller keeps its VI's lock.
        let (head, first) = unsafe {
            let head = at.cast::<ControlSegment>().read();
            // Neither done nor failed, whatever it was the last time.
            (&raw mut (*at.cast::<ControlSegment>()).status).write(0);
            (head, at.add(32).cast::<[DescriptorSegment; 2]>().read())
        };
        let mut request = WorkRequest {
            place,
            operation: Operation::Send,
            immediate: (head.control & control::IMMEDIATE != 0).then_some(head.immediate),
            fenced: head.control & control::QFENCE != 0,
            segments: SmallVec::new(),
            total: 0,
            error: 0,
        };
        let count = usize::from(head.seg_count);
        if count > MAX_SEGMENTS + 1 || head.control & !control::ALL != 0 {
            request.error = status::FORMAT_ERROR;
            return Some(request);
        }
        match count {
            0 => {}
            1 => request.segments.push(first[0].into()),
            2 => request.segments.extend(first.map(Segment::from)),
            _ => request.segments = read_all(place, ptag, count)?,
        }
        request.take_operation(head.control & control::OP_MASK, queue);
        request.total = request.segments.iter().map(|segment| segment.len as usize).sum();
        if request.error == 0 && request.segments.len() > MAX_SEGMENTS {
            request.error = status::FORMAT_ERROR;
        }
        if request.error == 0 && request.total > max_transfer {
            request.error = status::LENGTH_ERROR;
        }
        Some(request)
    }

    fn take_operation(&mut self, operation: u16, queue: Queue) {
        if operation == control::OP_SENDRECV {
            return;
        }
        // The first segment is the peer's address.
        let may = queue == Queue::Send && !self.segments.is_empty();
        let remote = if may { Some(self.segments.remove(0)) } else { None };
        self.operation = match (operation, remote) {
            (control::OP_RDMAWRITE, Some(to)) => Operation::Write(to.address, to.key),
            // A read carries no immediate data: the peer learns nothing of it.
            (control::OP_RDMAREAD, Some(from)) if self.immediate.is_none() => {
                Operation::Read(from.address, from.key)
            }
            _ => {
                self.error = status::FORMAT_ERROR;
                Operation::Send
            }
        };
    }

    /// The operation, as bits of the status.
    pub fn kind(&self) -> u32 {
        match self.operation {
            Operation::Send => status::OP_SEND,
            Operation::Write(..) => status::OP_RDMA_WRITE,
            Operation::Read(..) => status::OP_RDMA_READ,
        }
    }

    /// Whether all segments are registered with this tag.
    pub fn is_registered(&self, ptag: Ptag) -> bool {
        self.segments.iter().all(|segment| {
            segment.len == 0
                || locate(segment.address, segment.len.into(), segment.key, ptag.0, Right::LocalRead)
                    .is_some()
        })
    }

    /// Copies the segments' bytes to `to`, which has room for all. `false`: not all are registered with this tag any more.
    pub fn gather(&self, ptag: Ptag, to: &mut [u8]) -> bool {
        // SAFETY: the caller keeps its VI's lock.
        unsafe { gather_located(&self.segments, ptag.0, Right::LocalRead, to) }.is_ok()
    }

    /// Copies pieces to the segments, as far as they reach. Returns how many bytes did not fit.
    ///
    /// # Errors
    /// A segment is not registered any more.
    pub fn scatter<'a>(&self, ptag: Ptag, from: impl Iterator<Item = &'a [u8]>) -> Result<usize, Refusal> {
        // SAFETY: the caller keeps its VI's lock.
        unsafe { scatter_located(&self.segments, ptag.0, Right::LocalWrite, from) }
    }
}

#[cold]
fn read_all(place: Place, ptag: Ptag, count: usize) -> Option<SmallVec<[Segment; 1]>> {
    let len = 32 + 16 * count;
    let at = locate(place.descriptor as u64, len as u64, place.handle, ptag.0, Right::LocalRead)?.as_ptr();
    // SAFETY: registered for so many bytes, and aligned. The caller keeps its VI's lock.
    let segment = |nth| unsafe { at.add(32 + 16 * nth).cast::<DescriptorSegment>().read() };
    Some((0..count).map(|nth| segment(nth).into()).collect())
}

impl Place {
    /// Writes the status into the descriptor. Does nothing if its memory is not registered any more.
    #[inline(always)]
    pub fn write(self, ptag: Ptag, bits: u32, length: usize, immediate: Option<u32>) {
        if let Some(at) = locate(self.descriptor as u64, 32, self.handle, ptag.0, Right::LocalWrite) {
            // SAFETY: registered for so many bytes, and aligned, as was checked when it was posted.
            unsafe { finish(at.as_ptr(), bits, length, immediate) }
        }
    }
}

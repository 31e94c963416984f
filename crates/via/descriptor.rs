//! Descriptors: requests that a program posts to a work queue, and their completions.

use std::ops::Range;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::mem::{Ptag, RawSegment, Region, RemoteBuffer};

/// Direction of a posted descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message, or an RDMA write: its data leave.
    Send,
    /// An RDMA read: its data come.
    Read,
}

/// One segment of a post.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Byte offset in the outbox; `None`: the segment lies outside.
    pub offset: Option<u64>,
    /// Length in bytes.
    pub len: usize,
}

/// A piece of registered memory to send from or receive into.
#[derive(Debug)]
pub struct Segment {
    region: Region,
    range: Range<usize>,
}

impl Segment {
    /// The bytes `range` of `region`.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] when `range` ends past the region.
    pub fn new(region: Region, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > region.len() {
            return Err(Error::InvalidParameter(format!(
                "segment {range:?} of a region of {} bytes",
                region.len()
            )));
        }
        Ok(Segment { region, range })
    }

    /// Returns the memory.
    pub fn into_region(self) -> Region {
        self.region
    }

    /// The segment's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.region[self.range.clone()]
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.region[self.range.clone()]
    }

    /// Byte offset in the outbox arena, and length in bytes. `None` for the program's own memory, which lies elsewhere.
    #[inline]
    pub(crate) fn located(&self) -> Option<(u64, usize)> {
        Some((self.region.block()?.offset() + self.range.start as u64, self.range.len()))
    }

    pub(crate) fn piece(&self) -> Piece {
        Piece { offset: self.located().map(|(offset, _)| offset), len: self.range.len() }
    }
}

impl From<Region> for Segment {
    fn from(region: Region) -> Self {
        let range = 0..region.len();
        Segment { region, range }
    }
}

/// A gather/scatter list with immediate data, and an address if it is RDMA (VIA: `VIP_DESCRIPTOR`).
///
/// Work queues hold the address of a descriptor, not its contents, as in VIA: posting moves a pointer. A program that sends
/// often keeps the descriptors that come back, and posts them again.
#[derive(Debug)]
pub struct Descriptor(Box<Fields>);

#[derive(Debug)]
struct Fields {
    segments: SmallVec<[Segment; 1]>,
    immediate: Option<u32>,
    operation: Operation,
    fenced: bool,
}

/// Places of a message's pieces: offset in the outbox arena, and length in bytes.
pub(crate) type Located = SmallVec<[(u64, usize); 3]>;

/// Operation of a descriptor on the send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Send,
    Write(RemoteBuffer),
    Read(RemoteBuffer),
}

impl Operation {
    #[inline]
    pub fn kind(self) -> Kind {
        if let Operation::Read(_) = self { Kind::Read } else { Kind::Send }
    }
}

impl Descriptor {
    /// A send or a receive, depending on the queue that it is posted to.
    pub fn new(segments: impl IntoIterator<Item = impl Into<Segment>>) -> Self {
        Descriptor::with(segments, Operation::Send)
    }

    fn with(segments: impl IntoIterator<Item = impl Into<Segment>>, operation: Operation) -> Self {
        let segments = segments.into_iter().map(Into::into).collect();
        Descriptor(Box::new(Fields { segments, immediate: None, operation, fenced: false }))
    }

    /// An RDMA write to `remote`.
    pub fn rdma_write(segments: impl IntoIterator<Item = impl Into<Segment>>, remote: RemoteBuffer) -> Self {
        Descriptor::with(segments, Operation::Write(remote))
    }

    /// An RDMA read of `remote`, of as many bytes as the segments have. It carries no immediate data.
    pub fn rdma_read(segments: impl IntoIterator<Item = impl Into<Segment>>, remote: RemoteBuffer) -> Self {
        Descriptor::with(segments, Operation::Read(remote))
    }

    /// Adds immediate data for the receiver's descriptor.
    #[must_use]
    pub fn immediate(mut self, data: u32) -> Self {
        self.0.immediate = Some(data);
        self
    }

    /// Delays the start until all RDMA reads that were posted before on the same VI are over (VIA: the `QFENCE` bit of the
    /// control segment). Without this, sends and writes overtake a read, whose data have to come first. So fence a message
    /// that tells the peer that its memory has been read, and a write to memory that is being read. Has no meaning in a
    /// receive. Where a read is over when its post returns, as on shared memory, there is nothing to wait for.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.0.fenced = true;
        self
    }

    /// Returns the segments.
    pub fn into_segments(self) -> Vec<Segment> {
        self.0.segments.into_vec()
    }

    /// The segments.
    #[inline]
    pub fn segments(&self) -> &[Segment] {
        &self.0.segments
    }

    pub(crate) fn segments_mut(&mut self) -> &mut [Segment] {
        &mut self.0.segments
    }

    /// Bytes of all segments together.
    #[inline]
    pub fn len(&self) -> usize {
        self.segments().iter().map(|s| s.range.len()).sum()
    }

    /// Whether the segments have no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn immediate_data(&self) -> Option<u32> {
        self.0.immediate
    }

    #[inline]
    pub(crate) fn is_fenced(&self) -> bool {
        self.0.fenced
    }

    #[inline]
    pub(crate) fn operation(&self) -> Operation {
        self.0.operation
    }

    #[inline]
    pub(crate) fn check_tags(&self, ptag: Ptag) -> Result {
        if self.segments().iter().all(|s| s.region.ptag() == ptag) { Ok(()) } else { Err(Error::InvalidPtag) }
    }

    /// Places of the segments; `None` if some of them are the program's own memory.
    pub(crate) fn located(&self) -> Option<Located> {
        self.segments().iter().map(Segment::located).collect()
    }

    /// Copies `from`'s pieces into the segments, as far as they reach. Returns the bytes that did not fit.
    fn scatter<'a>(&mut self, from: impl Iterator<Item = &'a [u8]>) -> usize {
        let mut room = self.0.segments.iter_mut().map(Segment::bytes_mut);
        let mut current: &mut [u8] = &mut [];
        let mut left_over = 0;
        for mut piece in from {
            while !piece.is_empty() {
                if current.is_empty() {
                    match room.next() {
                        Some(next) => current = next,
                        None => {
                            left_over += piece.len();
                            break;
                        }
                    }
                    continue;
                }
                let n = piece.len().min(current.len());
                let (now, later) = current.split_at_mut(n);
                now.copy_from_slice(&piece[..n]);
                (current, piece) = (later, &piece[n..]);
            }
        }
        left_over
    }
}

/// How a descriptor ended (VIA: the status bits of the control segment).
///
/// Errors that can be known when a descriptor is posted are returned by `post_send` and `post_receive` at once, and the
/// descriptor comes back untouched; the queues and the connection go on. Everything else is a status, and every status but
/// [`Status::Done`] breaks a reliable connection: the VI goes to the Error state, and descriptors that are posted behind are
/// flushed in order.
///
/// | VIA's bit | when posted | as a completion |
/// |---|---|---|
/// | `DONE` | | [`Status::Done`] |
/// | `FORMAT_ERROR` | [`Error::InvalidParameter`]: too many segments, immediate data on a read | never: it was checked |
/// | `PROTECTION_ERROR` | [`Error::InvalidPtag`]; [`Error::InvalidParameter`] for raw memory of others | never: regions cannot be taken back while posted |
/// | `LENGTH_ERROR` | [`Error::InvalidParameter`]: longer than `max_transfer` | [`Status::LengthError`] of a receive |
/// | `PARTIAL_ERROR` | | never: a transfer that broke off is a [`Status::TransportError`], its length 0 |
/// | `DESC_FLUSHED_ERROR` | | [`Status::Flushed`] |
/// | `TRANSPORT_ERROR` | [`Error::Lost`] once it is known | [`Status::TransportError`] of the oldest send under way |
/// | `RDMA_PROT_ERROR` | [`Error::RdmaProtection`], where the sender can look (shared memory) | [`Status::RdmaProtectionError`], where only the target can |
/// | `REMOTE_DESC_ERROR` | | [`Status::RemoteDescriptorError`] of a send, on reliable reception |
///
/// On reliable delivery a send is done when its data have left, so its sender learns of a missing descriptor from the
/// connection ([`Error::Lost`]). On unreliable delivery it never learns of it, and a [`Status::LengthError`] breaks nothing.
///
/// The sends of a connection end in the order of their posts. If the connection was lost, the oldest in flight ends as
/// `TransportError` and all behind it as `Flushed`; if either side disconnected, all end as `Flushed`. A VI that is not
/// connected any more reports a send as `Flushed`. On reliable reception the `Done` sends are a prefix of the posts: a write
/// or read behind a flushed send is flushed as well, although its data may be in place. A work queue is FIFO, and VIA
/// promises the target to see written data only with a message behind them, of which there is none. Below reliable reception,
/// sends that had left are `Done` also behind a flushed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The operation was carried out.
    Done,
    /// The message was longer than the descriptor's segments; the part that fitted is there.
    LengthError,
    /// The peer had no descriptor posted for the message, or one too short.
    RemoteDescriptorError,
    /// The peer does not allow RDMA to that place.
    RdmaProtectionError,
    /// The connection was lost before the operation was done.
    TransportError,
    /// Flushed by a disconnect or an earlier error.
    Flushed,
}

/// The end of a descriptor.
#[derive(Debug)]
pub struct Completion {
    /// How the descriptor ended.
    pub status: Status,
    /// Bytes sent, received or written.
    pub length: usize,
    /// Immediate data of the message (receives only).
    pub immediate: Option<u32>,
    /// The descriptor; `Err(id)` when it was posted raw.
    pub descriptor: std::result::Result<Descriptor, u64>,
}

/// The id under which a raw descriptor is reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawId(pub u64);

/// Destination of an arrival.
#[derive(Debug)]
pub(crate) enum ReceiveInto {
    Descriptor(Descriptor),
    Raw { segments: Vec<RawSegment>, id: RawId },
}

impl ReceiveInto {
    /// Number of segments.
    pub fn segments(&self) -> usize {
        match self {
            ReceiveInto::Descriptor(descriptor) => descriptor.segments().len(),
            ReceiveInto::Raw { segments, .. } => segments.len(),
        }
    }

    /// Copies the pieces into the segments. Returns the number of bytes that did not fit.
    pub fn fill<'a>(&mut self, from: impl Iterator<Item = &'a [u8]>) -> usize {
        match self {
            ReceiveInto::Descriptor(descriptor) => descriptor.scatter(from),
            ReceiveInto::Raw { segments, .. } => crate::mem::scatter_raw(segments, from),
        }
    }

    /// The destination, if it is in one piece that can be lent out as a slice.
    #[inline]
    pub fn one_piece(&mut self) -> Option<&mut [u8]> {
        match self {
            ReceiveInto::Descriptor(descriptor) => match &mut descriptor.0.segments[..] {
                [segment] => Some(segment.bytes_mut()),
                _ => None,
            },
            ReceiveInto::Raw { .. } => None,
        }
    }

    #[inline]
    pub fn complete(self, status: Status, length: usize, immediate: Option<u32>) -> Completion {
        let descriptor = match self {
            ReceiveInto::Descriptor(descriptor) => Ok(descriptor),
            ReceiveInto::Raw { id, .. } => Err(id.0),
        };
        Completion { status, length, immediate, descriptor }
    }
}

//! Staging of posts from and into memory outside the outbox.
//!
//! A software NIC shows its peers the outbox arena and nothing else. So sends from the program's own memory are *staged*:
//! gathered into an outbox block when they are posted. An RDMA read lands in a block and is copied out when it is over, or
//! when it is reported if that is later; only the pieces outside the outbox are copied. On one host that is the one copy that
//! `process_vm_readv` by the receiver would cost, without the receiver's permission to trace us, and without waiting for it:
//! the program's memory is not read any more when the post returns. (The descriptor is reported as any other, by its VI's
//! reliability level.) Receives are not staged: they are placed where they belong.

use std::collections::VecDeque;

use crate::descriptor::{Descriptor, Kind, Located, Operation, Piece, RawId, Segment, Status};
use crate::error::Result;
use crate::mem::{Block, Fill, RawSegment, scatter_raw};
use crate::vi::Vi;
use crate::vi::sends::PostedSend;

/// Segments of a post.
pub(crate) trait Pieces {
    /// The segments, in order.
    fn pieces(&self) -> Vec<Piece>;
    /// Copies the segments outside the outbox, one after another, to `to`, which has their total length.
    fn gather(&self, to: &mut [u8]);
    /// Copies `from` to the segments outside the outbox, whose total length it has.
    fn scatter(&mut self, from: &[u8]);
    /// Takes the segments outside the outbox, for a read that is not over when its post returns, if they are not a descriptor's.
    fn keep(&mut self) -> Vec<RawSegment> {
        Vec::new()
    }
}

impl Pieces for Descriptor {
    fn pieces(&self) -> Vec<Piece> {
        self.segments().iter().map(Segment::piece).collect()
    }

    fn gather(&self, mut to: &mut [u8]) {
        for segment in self.segments().iter().filter(|segment| segment.piece().offset.is_none()) {
            let (now, later) = to.split_at_mut(segment.bytes().len());
            now.copy_from_slice(segment.bytes());
            to = later;
        }
    }

    fn scatter(&mut self, mut from: &[u8]) {
        for segment in self.segments_mut().iter_mut().filter(|segment| segment.piece().offset.is_none()) {
            let (now, later) = from.split_at(segment.bytes().len());
            segment.bytes_mut().copy_from_slice(now);
            from = later;
        }
    }
}

/// Blocks that stand in for sends' own memory, by the sends' numbers, until the sends are reported.
#[derive(Debug, Default)]
pub(in crate::vi) struct Staged(VecDeque<(u64, StandIn)>);

/// A block that stands in for a send's own memory.
#[derive(Debug)]
pub(in crate::vi) struct StandIn {
    block: Block,
    /// Destination of the data that a raw read brings.
    read_into: Vec<RawSegment>,
}

impl Staged {
    /// Takes the block of a send that is over, or gets another keeper.
    #[inline]
    pub fn take(&mut self, number: u64) -> Option<StandIn> {
        let at = self.0.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        self.0.remove(at).map(|(_, stand_in)| stand_in)
    }
}

impl StandIn {
    /// The block, for a keeper that holds it while it may be accessed; data that are read into it are not used.
    pub fn into_block(self) -> Block {
        self.block
    }

    /// Copies the data of a read to their destination, before the send is reported.
    #[cold]
    pub fn finish(self, status: Status, send: &mut PostedSend) {
        if send.kind != Kind::Read || status != Status::Done {
            return;
        }
        match &mut send.owner {
            Ok(descriptor) => Pieces::scatter(descriptor, self.block.bytes()),
            Err(RawId(_)) => {
                scatter_raw(&self.read_into, std::iter::once(self.block.bytes()));
            }
        }
    }
}

impl Vi {
    /// Starts and records a raw post.
    pub(crate) fn post_pieces(
        &mut self,
        mut pieces: impl Pieces,
        operation: Operation,
        immediate: Option<u32>,
        id: RawId,
    ) -> Result {
        self.require_connected("post_send")?;
        let length = pieces.pieces().iter().map(|place| place.len).sum();
        let status = self.start_staged(&mut pieces, operation, immediate)?;
        self.push_send(status, operation.kind(), length, Err(id));
        Ok(())
    }

    /// Starts the next send, and returns its status. Keeps the block that it needs while it is not over.
    #[cold]
    pub(super) fn start_staged(
        &mut self,
        pieces: &mut impl Pieces,
        operation: Operation,
        immediate: Option<u32>,
    ) -> Result<Option<Status>> {
        let StagedPieces { located, mut block } = self.stage(&pieces.pieces())?;
        if let Some(block) = &mut block
            && !matches!(operation, Operation::Read(_))
        {
            pieces.gather(block.bytes_mut());
        }
        let status = self.start_located(&located, operation, immediate)?;
        let Some(block) = block else { return Ok(status) };
        self.nic.device().count_copied(block.len());
        match (operation, status) {
            (Operation::Read(_), Some(Status::Done)) => pieces.scatter(block.bytes()),
            (_, Some(_)) => {}
            (Operation::Read(_), None) => self.keep_stand_in(block, pieces.keep()),
            (_, None) => self.keep_stand_in(block, Vec::new()),
        }
        Ok(status)
    }

    fn keep_stand_in(&mut self, block: Block, read_into: Vec<RawSegment>) {
        self.staged.0.push_back((self.next_send, StandIn { block, read_into }));
    }

    /// Takes room in the outbox for the pieces that lie outside.
    fn stage(&self, places: &[Piece]) -> Result<StagedPieces> {
        // Checked first, so that a post that will be refused takes no memory.
        self.check_send(places.len(), places.iter().map(|place| place.len).sum())?;
        let outside = places.iter().filter(|place| place.offset.is_none());
        let (count, len) = outside.fold((0, 0), |(count, sum), place| (count + 1, sum + place.len));
        if count == 0 {
            return Ok(StagedPieces { located: located(places, 0), block: None });
        }
        let block = self.nic.device().outbox().block(len, Fill::Keep)?;
        Ok(StagedPieces { located: located(places, block.offset()), block: Some(block) })
    }
}

/// Pieces of a post in the form that endpoints take: offset in the outbox, and length in bytes.
struct StagedPieces {
    located: Located,
    /// Block for the pieces outside the outbox.
    block: Option<Block>,
}

/// Places of the pieces, if those outside are copied to offset `at` and behind it, one after another.
fn located(places: &[Piece], mut at: u64) -> Located {
    let mut next = |len: usize| {
        at += len as u64;
        at - len as u64
    };
    places.iter().map(|place| (place.offset.unwrap_or_else(|| next(place.len)), place.len)).collect()
}

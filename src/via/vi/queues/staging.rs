//! Posts from and into memory outside the outbox.
//!
//! A software NIC shows its peers the outbox arena and nothing else. So what is sent from the program's own memory is
//! *staged*: gathered into an outbox block when it is posted, and an RDMA read lands in a block and is copied out; only
//! the pieces that lie outside are copied. On one host that is the one copy that `process_vm_readv` by the receiver
//! would cost, without its permission to trace us, and without waiting for the receiver: nobody reads the program's
//! memory when the post returns. (The descriptor is reported as any other, by its VI's reliability level.) Receives are
//! not staged: they are placed where they belong.

use std::collections::VecDeque;

use crate::descriptor::{Descriptor, Operation, RawId, Segment, Status};
use crate::error::{Error, Result};
use crate::mem::{Block, Fill};
use crate::vi::Vi;

/// One segment of a post.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Where in the outbox; `None` outside.
    pub offset: Option<u64>,
    /// Bytes.
    pub len: usize,
}

/// What a post consists of.
pub(crate) trait Pieces {
    /// The segments, in order.
    fn places(&self) -> Vec<Place>;
    /// Copies those outside the outbox, one after another, to `to`, which is as long as they are.
    fn gather(&self, to: &mut [u8]);
    /// Copies `from` to those outside the outbox, which are as long as it is.
    fn scatter(&mut self, from: &[u8]);
    /// All bytes, where a small message may be read directly.
    fn bytes(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::empty()
    }
}

impl Pieces for Descriptor {
    fn places(&self) -> Vec<Place> {
        self.segments().iter().map(Segment::place).collect()
    }

    fn gather(&self, mut to: &mut [u8]) {
        for segment in self.segments().iter().filter(|segment| segment.place().offset.is_none()) {
            let (now, later) = to.split_at_mut(segment.bytes().len());
            now.copy_from_slice(segment.bytes());
            to = later;
        }
    }

    fn scatter(&mut self, mut from: &[u8]) {
        for segment in self.segments_mut().iter_mut().filter(|segment| segment.place().offset.is_none()) {
            let (now, later) = from.split_at(segment.bytes().len());
            segment.bytes_mut().copy_from_slice(now);
            from = later;
        }
    }

    fn bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.segments().iter().map(Segment::bytes)
    }
}

/// The blocks that stand in for sends' own memory, by the sends' numbers, until these are reported.
#[derive(Debug, Default)]
pub(in crate::vi) struct Staged(VecDeque<(u64, Block)>);

impl Staged {
    /// The block of a send that is over, or gets another keeper.
    pub fn take(&mut self, number: u64) -> Option<Block> {
        let at = self.0.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        self.0.remove(at).map(|(_, block)| block)
    }
}

impl Vi {
    /// [`Vi::post_send`] of a descriptor with the program's own memory in it.
    #[cold]
    #[allow(clippy::result_large_err, reason = "a refused descriptor comes back by value; refusals are rare")]
    pub(super) fn post_staged(&mut self, mut descriptor: Descriptor) -> Result<(), (Error, Descriptor)> {
        let (operation, immediate) = (descriptor.operation(), descriptor.immediate_data());
        let checked = self.require_connected("post_send");
        let checked = checked.and_then(|()| descriptor.check_tags(self.attributes.ptag));
        match checked.and_then(|()| self.carry_out(&mut descriptor, operation, immediate)) {
            Ok(status) => {
                let length = descriptor.len();
                self.push_send(status, length, Ok(descriptor));
                Ok(())
            }
            Err(error) => Err((error, descriptor)),
        }
    }

    /// A raw post.
    pub(crate) fn post_pieces(
        &mut self,
        mut pieces: impl Pieces,
        operation: Operation,
        immediate: Option<u32>,
        id: RawId,
    ) -> Result {
        self.require_connected("post_send")?;
        let length = pieces.places().iter().map(|place| place.len).sum();
        let status = self.carry_out(&mut pieces, operation, immediate)?;
        self.push_send(status, length, Err(id));
        Ok(())
    }

    /// Begins the next send, whose status this is. Keeps the block that was needed for it while it is not over.
    fn carry_out(
        &mut self,
        pieces: &mut impl Pieces,
        operation: Operation,
        immediate: Option<u32>,
    ) -> Result<Option<Status>> {
        let Stage { located, mut block } = self.stage(&pieces.places())?;
        if let Some(block) = &mut block
            && !matches!(operation, Operation::Read(_))
        {
            pieces.gather(block.bytes_mut());
        }
        let status = match operation {
            Operation::Send => self.send_located(&located, immediate, pieces.bytes()),
            Operation::Write(to) => self.post_write(&located, to, immediate),
            Operation::Read(from) => self.read_located(&located, from, immediate),
        }?;
        let Some(block) = block else { return Ok(status) };
        if let Operation::Read(_) = operation {
            pieces.scatter(block.bytes());
        }
        self.nic.device().count_copied(block.len());
        if status.is_none() {
            self.staged.0.push_back((self.next_send, block));
        }
        Ok(status)
    }

    /// Room in the outbox for the pieces that lie outside.
    fn stage(&self, places: &[Place]) -> Result<Stage> {
        // What will be refused anyway is refused before it takes memory.
        self.check_send(&located(places, 0))?;
        let outside = places.iter().filter(|place| place.offset.is_none());
        let (count, len) = outside.fold((0, 0), |(count, sum), place| (count + 1, sum + place.len));
        if count == 0 {
            return Ok(Stage { located: located(places, 0), block: None });
        }
        let block = self.nic.device().outbox().block(len, Fill::Keep)?;
        Ok(Stage { located: located(places, block.offset()), block: Some(block) })
    }
}

/// The pieces of a post as ports take them: offset in the outbox, and length.
struct Stage {
    located: Vec<(u64, usize)>,
    /// Where those outside are brought.
    block: Option<Block>,
}

/// Where each piece lies, if those outside are brought to `at` and behind it, one after another.
fn located(places: &[Place], mut at: u64) -> Vec<(u64, usize)> {
    let mut next = |len: usize| {
        at += len as u64;
        at - len as u64
    };
    places.iter().map(|place| (place.offset.unwrap_or_else(|| next(place.len)), place.len)).collect()
}

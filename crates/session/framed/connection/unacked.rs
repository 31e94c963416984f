//! Posted memory: its holders, and the follow-up when a frame, a send or a read is over.

use smallvec::SmallVec;
use udeck_sys::position::Position;
use udeck_via::transport::{Owner, PostedBuffer, TransferStatus};

use super::Connection;
use super::outgoing::OnRelease;
use crate::memory::Place;
use crate::unacked::keep;

/// A read that is not over.
pub(super) struct PendingRead {
    pub number: Position,
    pub places: SmallVec<[Place; 2]>,
    pub len: usize,
    pub held: PostedBuffer,
}

impl Connection {
    /// The next completion of a caller's send or read.
    pub(crate) fn next_completion(&mut self) -> Option<(u64, TransferStatus)> {
        self.unacked.next_completion()
    }

    /// Makes `owner` the holder of the memory, in the place of the caller that was to be told of `number`.
    pub(crate) fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner> {
        let frames =
            self.outgoing.iter_mut().chain(self.held_back.iter_mut().map(|held_back| &mut held_back.out));
        let frames = frames.chain(self.unreliable.iter_mut().flat_map(|unreliable| unreliable.posts_mut()));
        let in_frames = frames.filter_map(|out| match out.on_release_mut() {
            OnRelease::Held(held) => Some(held),
            _ => None,
        });
        let in_reads = self.reads.iter_mut().map(|read| &mut read.held);
        keep(in_frames.chain(self.unacked.held_mut()).chain(in_reads), number, owner)
    }

    /// Bytes of the outbox that were posted and are not over.
    pub(crate) fn lent_bytes(&self) -> usize {
        let frames = self.outgoing.iter().chain(self.held_back.iter().map(|held_back| &held_back.out));
        let frames = frames.chain(self.unreliable.iter().flat_map(|unreliable| unreliable.posts()));
        let in_frames = frames.map(|out| match out.on_release() {
            OnRelease::Held(held) => held.bytes(),
            _ => 0,
        });
        let in_reads = self.reads.iter().map(|read| read.held.bytes());
        in_frames.chain(in_reads).sum::<usize>() + self.unacked.lent_bytes()
    }

    /// Follows up on a frame that is not needed any more. `status`: the status of its content, unless a receipt decides it.
    pub(super) fn after(&mut self, on_release: OnRelease, status: TransferStatus) {
        match on_release {
            OnRelease::Held(held) => self.end_held(held, status),
            OnRelease::Left(number) => self.unacked.release(number, &mut self.events),
            OnRelease::Nothing | OnRelease::Served(_) | OnRelease::Receipt | OnRelease::Words(_) => {}
        }
    }

    /// Settles the message whose number is `narrow` on the wire. Returns `false` if no message waits for that.
    pub(super) fn settle(&mut self, narrow: u32, status: TransferStatus) -> bool {
        self.unacked.settle_named(narrow, self.window.sent(), status, &mut self.events)
    }

    /// Settles all sends whose status is unknown and for which `meant` is true.
    pub(super) fn settle_all(&mut self, status: TransferStatus, meant: impl Fn(Position) -> bool) {
        self.unacked.settle_all(status, &mut self.events, meant);
    }

    /// Completes the oldest read.
    pub(super) fn end_read(&mut self, status: TransferStatus) {
        let Some(read) = self.reads.pop_front() else { return };
        self.reads_over = self.reads_over.plus(1);
        self.end_held(read.held, status);
        self.release_held_back();
    }

    #[inline]
    pub(super) fn end_held(&mut self, held: PostedBuffer, status: TransferStatus) {
        self.unacked.end(held, status, &mut self.events);
    }

    pub(super) fn notify_room(&mut self) {
        self.unacked.notify_room(&mut self.events);
    }

    /// Notes that the program is gone: completions have no receiver any more.
    pub(crate) fn endpoint_gone(&mut self) {
        self.unacked.endpoint_gone(&mut self.events);
        self.try_over();
    }
}

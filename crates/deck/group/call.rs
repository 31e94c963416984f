//! One member's part of one collective call: the interface that algorithms are written against.
//!
//! An algorithm is an `async` function that sends to members and receives from them. A blocking call drives
//! it and waits in between ([`super::waiting`]); a request keeps it, and drives it whenever it is polled
//! ([`super::request`]). Each algorithm is therefore written once.
//!
//! The messages of one member in one call arrive in the order in which it sent them. They need no sequence
//! numbers: both sides know which one is next.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use bytemuck::Pod;
use udeck_via::mem::{Fill, SharedBytes};
use udeck_via::{Block, copy_bytes};

use super::engine::Engine;
use super::kind::{Kind, Signature};
use super::layout::Layout;
use super::membership::Membership;
use super::op::{Operator, Side, combine};
use super::state::GroupState;
use crate::error::Result;
use crate::parcel::Parcel;
use crate::received::Received;
use crate::send::poster::Poster;
use crate::wait_policy::WaitPolicy;

/// Length in bytes of the pieces in which long data travel: a receiver copies one while its sender copies the
/// next.
pub(super) const PIECE: usize = 128 << 10;
/// Length in bytes from which it matters in whose cache a message's memory is.
const LONG: usize = 32 << 10;

/// A call's access to its group's engine.
pub(crate) trait Link {
    /// Whether a step may spin for a moment.
    const MAY_SPIN: bool;
    fn state(&self) -> &GroupState;
    fn with<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> R;
}

/// Access of a blocking call, which holds the lock as long as it lasts.
pub(crate) struct Held<'a> {
    pub state: &'a GroupState,
    pub engine: &'a RefCell<Engine>,
}

impl Link for Held<'_> {
    const MAY_SPIN: bool = true;

    #[inline]
    fn state(&self) -> &GroupState {
        self.state
    }

    #[inline]
    fn with<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> R {
        act(&mut self.engine.borrow_mut())
    }
}

/// Access of a request, whose thread holds the lock for each step, and takes it again here.
pub(crate) struct Shared(pub Arc<Membership>);

impl Link for Shared {
    const MAY_SPIN: bool = false;

    fn state(&self) -> &GroupState {
        &self.0.state
    }

    fn with<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> R {
        act(&mut self.0.lock().borrow_mut())
    }
}

/// One member's part of a call.
pub(crate) struct Call<L> {
    link: L,
    signature: Signature,
}

impl<L: Link> Call<L> {
    pub fn new(link: L, signature: Signature) -> Self {
        Call { link, signature }
    }

    pub fn signature(&self) -> Signature {
        self.signature
    }

    pub fn state(&self) -> &GroupState {
        self.link.state()
    }

    pub fn layout(&self) -> &Layout {
        self.link.state().layout()
    }

    pub fn kind(&self) -> Kind {
        self.signature.kind().unwrap_or(Kind::Barrier)
    }

    /// Calls `act` on the group's engine.
    pub fn with<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> R {
        self.link.with(act)
    }

    // ---- messages ----

    fn post<'a>(
        &'a self,
        to: usize,
        mut post: impl FnMut(&Poster, u32) -> Result + 'a,
    ) -> impl Future<Output = Result> + 'a {
        let (call, tag) = (self.signature, self.signature.tag());
        poll_fn(move |_| {
            self.link.with(|engine| engine.try_send(self.link.state(), to, call, |poster| post(poster, tag)))
        })
    }

    /// Sends a copy.
    pub fn send<'a>(&'a self, to: usize, bytes: &'a [u8]) -> impl Future<Output = Result> + 'a {
        let (call, tag, mut left) = (self.signature, self.signature.tag(), None);
        poll_fn(move |_| {
            if bytes.len() >= LONG {
                return self.try_send_long(to, bytes, &mut left);
            }
            let post = |poster: &Poster| poster.post_copy(bytes, tag, WaitPolicy::None).map(drop);
            self.link.with(|engine| engine.try_send(self.link.state(), to, call, post))
        })
    }

    /// Sends a copy if there is memory for it now. `false`: nothing was sent.
    pub fn send_if_room<'a>(&'a self, to: usize, bytes: &'a [u8]) -> impl Future<Output = Result<bool>> + 'a {
        let mut left = None;
        poll_fn(move |_| match self.try_send_long(to, bytes, &mut left) {
            // An error is reported by the next send that is not optional.
            Poll::Pending | Poll::Ready(Err(_)) if left.is_none() => Poll::Ready(Ok(false)),
            other => other.map_ok(|()| true),
        })
    }

    /// Sends a copy in a block, the block whose turn it is. `left` holds the copy once it is made.
    fn try_send_long(&self, to: usize, bytes: &[u8], left: &mut Option<Block>) -> Poll<Result> {
        self.link.with(|engine| {
            if left.is_none() {
                let Poll::Ready(block) = self.try_block(engine, to, bytes.len())? else {
                    return Poll::Pending;
                };
                let mut block = block;
                copy_bytes(block.bytes_mut(), bytes);
                block.set_notes([self.signature.tag(), 0]);
                *left = Some(block);
            }
            engine.try_send(self.link.state(), to, self.signature, |poster| {
                post_block(poster, left).map(|()| poster.count_copy(bytes.len()))
            })
        })
    }

    /// Sends a message by moving its block.
    pub async fn send_block(&self, to: usize, mut block: Block) -> Result {
        block.set_notes([self.signature.tag(), 0]);
        let mut left = Some(block);
        self.post(to, move |poster, _| post_block(poster, &mut left)).await
    }

    /// Makes a message for several members.
    pub fn share(&self, mut block: Block) -> SharedBytes {
        block.set_notes([self.signature.tag(), 0]);
        SharedBytes::from(block)
    }

    /// Sends a message without a copy, and keeps a share of it.
    pub fn send_shared<'a>(&'a self, to: usize, block: &'a SharedBytes) -> impl Future<Output = Result> + 'a {
        self.post(to, move |poster, _| poster.post_shared(block, WaitPolicy::None).map(drop))
    }

    /// Receives the next message of a member.
    pub fn receive(&self, from: usize) -> impl Future<Output = Result<Received<u8>>> + '_ {
        self.receive_with(from, |message| std::mem::replace(message, Received::new(Parcel::NONE)))
    }

    /// Passes the next message of a member to `take`, and drops it afterwards.
    pub fn receive_with<'a, R: 'a>(
        &'a self,
        from: usize,
        mut take: impl FnMut(&mut Received<u8>) -> R + 'a,
    ) -> impl Future<Output = Result<R>> + 'a {
        let call = self.signature;
        poll_fn(move |_| {
            self.link.with(|engine| {
                engine.try_receive(self.link.state(), from, call, L::MAY_SPIN, |one| take(one))
            })
        })
    }

    /// Allocates memory for a message to a member; it contains whatever this rank last left there.
    pub async fn block(&self, to: usize, len: usize) -> Result<Block> {
        poll_fn(|_| self.link.with(|engine| self.try_block(engine, to, len))).await
    }

    fn try_block(&self, engine: &mut Engine, to: usize, len: usize) -> Poll<Result<Block>> {
        let fill = if len >= LONG { Fill::KeepInTurn } else { Fill::Keep };
        engine.try_block(self.link.state(), to, self.signature, (len, fill), len <= PIECE)
    }

    // ---- elements ----

    /// Sends a copy of elements, in pieces.
    pub async fn send_slice<T: Pod>(&self, to: usize, data: &[T]) -> Result {
        for piece in pieces::<T>(data.len()) {
            self.send(to, bytemuck::cast_slice(&data[piece])).await?;
        }
        Ok(())
    }

    /// Receives elements that a member sends by [`Call::send_slice`].
    pub async fn receive_into<T: Pod>(&self, from: usize, data: &mut [T]) -> Result {
        for piece in pieces::<T>(data.len()) {
            self.receive_piece(from, &mut data[piece]).await?;
        }
        Ok(())
    }

    /// Sends to one member, and receives from another, piece by piece, so that both are in flight at once.
    pub async fn exchange<T: Pod>(&self, to: usize, data: &[T], from: usize, into: &mut [T]) -> Result {
        let mut sent = pieces::<T>(data.len());
        let mut received = pieces::<T>(into.len());
        loop {
            let (send, receive) = (sent.next(), received.next());
            if let Some(piece) = &send {
                self.send(to, bytemuck::cast_slice(&data[piece.clone()])).await?;
            }
            if let Some(piece) = &receive {
                self.receive_piece(from, &mut into[piece.clone()]).await?;
            }
            if send.is_none() && receive.is_none() {
                return Ok(());
            }
        }
    }

    /// Receives one piece of elements.
    pub async fn receive_piece<T: Pod>(&self, from: usize, piece: &mut [T]) -> Result {
        let to = bytemuck::cast_slice_mut::<T, u8>(piece);
        self.receive_exactly(from, to.len(), |received| copy_bytes(to, received)).await
    }

    /// Combines elements with those that a member sends by [`Call::send_slice`], read where they lie in its
    /// memory. `side`: the side of the operator on which the other member's elements stand.
    pub async fn combine<T: Pod, O: Operator<T>>(
        &self,
        from: usize,
        data: &mut [T],
        op: &O,
        side: Side,
    ) -> Result {
        for piece in pieces::<T>(data.len()) {
            self.combine_piece(from, &mut data[piece], op, side).await?;
        }
        Ok(())
    }

    pub async fn combine_piece<T: Pod, O: Operator<T>>(
        &self,
        from: usize,
        data: &mut [T],
        op: &O,
        side: Side,
    ) -> Result {
        let bytes = size_of_val(data);
        let combine = |received: &[u8]| with_elements(received, |theirs| combine(op, data, theirs, side));
        self.receive_exactly(from, bytes, combine).await
    }

    /// Combines local elements. The engine is held meanwhile, as for all operators: an operator that calls
    /// its group gets an error.
    pub fn combine_here<T: Pod, O: Operator<T>>(&self, op: &O, mine: &mut [T], theirs: &[T], side: Side) {
        self.with(|_| combine(op, mine, theirs, side));
    }

    /// Passes the next message of a member to `take`, if it is `bytes` bytes long.
    async fn receive_exactly(&self, from: usize, bytes: usize, mut take: impl FnMut(&[u8])) -> Result {
        let length = self.receive_with(from, |received| {
            if received.len() == bytes {
                take(received);
            }
            received.len()
        });
        match length.await? {
            length if length == bytes => Ok(()),
            length => Err(self.state().wrong_length(from, length, bytes, self.signature)),
        }
    }
}

/// Posts a block. If it cannot be posted now, it stays in `left`.
fn post_block(poster: &Poster, left: &mut Option<Block>) -> Result {
    let Some(block) = left.take() else { return Ok(()) };
    let posted = poster.post_block(block, WaitPolicy::None).map_err(|(error, block)| {
        *left = block;
        error
    });
    posted.map(drop)
}

/// Passes a message's bytes to `show` as elements.
pub(crate) fn with_elements<T: Pod, R>(bytes: &[u8], show: impl FnOnce(&[T]) -> R) -> R {
    match bytemuck::try_cast_slice(bytes) {
        Ok(elements) => show(elements),
        // A short message is aligned for elements of up to 8 bytes only.
        Err(_) => {
            let elements = bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned);
            show(&elements.collect::<Vec<T>>())
        }
    }
}

/// The pieces in which `len` elements travel: an empty one if there are none.
pub(crate) fn pieces<T>(len: usize) -> impl Iterator<Item = Range<usize>> {
    pieces_of::<T>(len, PIECE)
}

pub(crate) fn pieces_of<T>(len: usize, bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let each = (bytes / size_of::<T>().max(1)).max(1);
    let count = len.div_ceil(each).max(1);
    (0..count).map(move |nth| nth * each..len.min((nth + 1) * each))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_all_of_it_and_at_least_one() {
        for (len, count) in [(0, 1), (1, 1), (PIECE / 8, 1), (PIECE / 8 + 1, 2), (PIECE, 8)] {
            let all: Vec<_> = pieces::<f64>(len).collect();
            assert_eq!(all.len(), count);
            assert_eq!(all.iter().map(Range::len).sum::<usize>(), len);
            assert!(all.windows(2).all(|two| two[0].end == two[1].start));
        }
        assert_eq!(pieces::<[u8; PIECE * 2]>(3).count(), 3);
    }
}

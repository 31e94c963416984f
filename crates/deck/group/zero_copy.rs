//! Collective calls for whole messages, which are moved and not copied: on one host the receivers read the
//! sender's memory.

use udeck_via::Block;
use udeck_via::mem::Fill;

use super::Group;
use super::call::{Call, Link};
use super::kind::{Elements, Kind, Signature};
use super::op::OperatorCode;
use crate::error::Result;
use crate::parcel::{Parcel, Stored};
use crate::payload::Payload;
use crate::received::Received;
use crate::wait_policy::WaitPolicy;

/// Collective calls for whole messages. They may differ in length, and be typed or packed ([`crate::Buf`],
/// [`crate::Message`]). A tag that the program has set is not kept.
impl Group {
    /// Sends the root's message to all members, which read it where it lies. `message` is the root's;
    /// elsewhere it is `None`.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    pub fn broadcast_buf<T: Payload>(
        &self,
        root: usize,
        message: Option<T::Outgoing>,
    ) -> Result<Received<T>> {
        let call = self.whole::<T>(Kind::BroadcastBuf, root);
        self.member.state.check_root(root, call)?;
        self.check_given(call, root, "a message", message.is_some())?;
        let block = message.map(T::into_block);
        self.run_any(call, async |call| {
            let Some(block) = block else { return typed(call, call.receive(root).await?) };
            let shared = call.share(block);
            for member in call.layout().everybody().others() {
                call.send_shared(member, &shared).await?;
            }
            Ok(own(call, Stored::Shared(shared)))
        })
    }

    /// Sends the messages of all members to the root, in their order; elsewhere the result is empty.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    pub fn gather_buf<T: Payload>(&self, root: usize, message: T::Outgoing) -> Result<Vec<Received<T>>> {
        let call = self.whole::<T>(Kind::GatherBuf, root);
        self.member.state.check_root(root, call)?;
        let block = T::into_block(message);
        self.run_any(call, async |call| {
            if call.layout().me != root {
                call.send_block(root, block).await?;
                return Ok(Vec::new());
            }
            collect(call, own(call, Stored::Owned(block))).await
        })
    }

    /// Sends to each member its message of the root's `messages`, one for each member in their order;
    /// elsewhere `messages` is `None`.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    pub fn scatter_buf<T: Payload>(
        &self,
        root: usize,
        messages: Option<Vec<T::Outgoing>>,
    ) -> Result<Received<T>> {
        let call = self.whole::<T>(Kind::ScatterBuf, root);
        self.member.state.check_root(root, call)?;
        self.check_given(call, root, "messages", messages.is_some())?;
        if let Some(messages) = &messages {
            self.check_parts(call, messages.len())?;
        }
        self.run_any(call, async |call| match messages {
            Some(messages) => {
                let mine = give_out::<_, T>(call, messages).await?;
                mine.map(|block| own(call, Stored::Owned(block))).ok_or_else(|| no_part(call))
            }
            None => typed(call, call.receive(root).await?),
        })
    }

    /// Sends the messages of all members to all members, in their order; each message is read where it lies.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    pub fn all_gather_buf<T: Payload>(&self, message: T::Outgoing) -> Result<Vec<Received<T>>> {
        let call = self.whole::<T>(Kind::AllGatherBuf, 0);
        let block = T::into_block(message);
        self.run_any(call, async |call| {
            let shared = call.share(block);
            for member in call.layout().everybody().others() {
                call.send_shared(member, &shared).await?;
            }
            collect(call, own(call, Stored::Shared(shared))).await
        })
    }

    /// Sends the k-th message of every member to member k. `messages` has one for each member; the result is
    /// in the members' order.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    pub fn all_to_all_buf<T: Payload>(&self, messages: Vec<T::Outgoing>) -> Result<Vec<Received<T>>> {
        let call = self.whole::<T>(Kind::AllToAllBuf, 0);
        self.check_parts(call, messages.len())?;
        self.run_any(call, async |call| {
            let mine = give_out::<_, T>(call, messages).await?.ok_or_else(|| no_part(call))?;
            collect(call, own(call, Stored::Owned(mine))).await
        })
    }

    /// Checks that the root, and no other member, gives `what`.
    pub(super) fn check_given(&self, call: Signature, root: usize, what: &str, given: bool) -> Result {
        let why = match (self.rank() == root, given) {
            (true, false) => format!("the root has to give {what}"),
            (false, true) => format!("only the root gives {what}"),
            _ => return Ok(()),
        };
        Err(self.member.state.invalid(call, why))
    }

    /// The signature of a call for whole messages.
    fn whole<T: Payload>(&self, kind: Kind, root: usize) -> Signature {
        let elements = self.elements.unwrap_or_else(Elements::of::<T>);
        Signature::new(kind, root, OperatorCode::NONE, elements)
    }
}

/// Sends each other member its message, and returns this member's own.
async fn give_out<L: Link, T: Payload>(call: &Call<L>, messages: Vec<T::Outgoing>) -> Result<Option<Block>> {
    let mut mine = None;
    for (member, message) in messages.into_iter().enumerate() {
        let block = T::into_block(message);
        if member == call.layout().me {
            mine = Some(block);
        } else {
            call.send_block(member, block).await?;
        }
    }
    Ok(mine)
}

/// Collects the messages of all members, including this member's own.
async fn collect<L: Link, T: Payload>(call: &Call<L>, own: Received<T>) -> Result<Vec<Received<T>>> {
    let (me, mut own) = (call.layout().me, Some(own));
    let mut all = Vec::with_capacity(call.layout().size());
    for member in 0..call.layout().size() {
        match own.take_if(|_| member == me) {
            Some(own) => all.push(own),
            None => all.push(typed(call, call.receive(member).await?)?),
        }
    }
    Ok(all)
}

/// Makes a received message of this member's own, like the others get theirs.
fn own<L: Link, T: Payload>(call: &Call<L>, stored: Stored) -> Received<T> {
    let rank = call.state().world().rank() as u32;
    Received::new(Parcel { rank, postbox: 0, tag: 0, number: 0, stored })
}

#[cold]
fn no_part<L: Link>(call: &Call<L>) -> crate::Error {
    call.state().broken_call(call.signature(), "there is no message for this member".into())
}

/// Converts a message to the type that was posted.
fn typed<L: Link, T: Payload>(call: &Call<L>, received: Received<u8>) -> Result<Received<T>> {
    let mut received = Received::<T>::new(received.into_parcel());
    received.parcel_mut().tag = 0;
    let bytes = received.len_bytes();
    if !bytes.is_multiple_of(T::SIZE) {
        let (rank, kind) = (received.source(), T::kind());
        return Err(crate::Error::WrongLength { rank, bytes, kind });
    }
    if !received.parcel_mut().is_aligned(T::ALIGN) {
        let world = call.state().world();
        let mut block = world.block_for_message(bytes, Fill::Keep, WaitPolicy::Usual)?;
        block.bytes_mut().copy_from_slice(received.parcel_mut().bytes());
        received.parcel_mut().stored = Stored::Owned(block);
    }
    Ok(received)
}

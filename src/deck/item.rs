//! What mailboxes carry.

use bytemuck::Pod;
use udeck_via::Block;

use crate::buffer::Buf;
use crate::message::Message;

/// What a mailbox carries: elements of plain data, or [`Packed`] messages.
///
/// Sealed: implemented for every [`Pod`] type, and for [`Packed`].
pub trait Item: sealed::Sealed + 'static {
    /// What is posted.
    type Outgoing;
    /// Bytes of one element; lengths of messages are whole numbers of it.
    #[doc(hidden)]
    const SIZE: usize;
    /// Alignment of one element.
    #[doc(hidden)]
    const ALIGN: usize;
    /// The type's name, for comparing the two ends.
    #[doc(hidden)]
    fn kind() -> &'static str;
    /// The block and the capacity to make the message from again.
    #[doc(hidden)]
    fn into_block(outgoing: Self::Outgoing) -> (Block, usize);
    /// The message again.
    #[doc(hidden)]
    fn from_block(block: Block, capacity: usize) -> Self::Outgoing;
}

mod sealed {
    pub trait Sealed {}
    impl<T: bytemuck::Pod> Sealed for T {}
    impl Sealed for super::Packed {}
}

impl<T: Pod> Item for T {
    type Outgoing = Buf<T>;
    const SIZE: usize = size_of::<T>();
    const ALIGN: usize = align_of::<T>();
    fn kind() -> &'static str {
        std::any::type_name::<T>()
    }
    #[inline]
    fn into_block(outgoing: Buf<T>) -> (Block, usize) {
        (outgoing.into_block(), 0)
    }
    #[inline]
    fn from_block(block: Block, _: usize) -> Buf<T> {
        Buf::new(block)
    }
}

/// Marks mailboxes of packed messages: `world.mailbox::<Packed>("reports")` takes [`Message`]s.
#[derive(Debug)]
pub struct Packed;

impl Item for Packed {
    type Outgoing = Message;
    const SIZE: usize = 1;
    const ALIGN: usize = 8;
    fn kind() -> &'static str {
        "packed messages"
    }
    fn into_block(outgoing: Message) -> (Block, usize) {
        let capacity = outgoing.capacity();
        (outgoing.into_block(), capacity)
    }
    fn from_block(block: Block, capacity: usize) -> Message {
        Message::from_block(block, capacity)
    }
}

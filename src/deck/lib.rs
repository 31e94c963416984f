//! STUB of the public surface, so that programs on top can be written at once. Bodies come.
#![allow(missing_docs, unused_variables, dead_code)]
use std::{marker::PhantomData, time::Duration};
pub use bytemuck::Pod;

pub type Result<T = (), E = Error> = std::result::Result<T, E>;
#[derive(Debug)]
#[non_exhaustive]
pub enum Error { PeerLost { node: usize }, Deadline, Other(String) }
impl std::fmt::Display for Error { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "{self:?}") } }
impl std::error::Error for Error {}
/// A failed post: the message comes back.
pub struct PostError<M> { pub error: Error, pub message: Option<M> }
impl<M> std::fmt::Debug for PostError<M> { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { self.error.fmt(f) } }
impl<M> std::fmt::Display for PostError<M> { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { self.error.fmt(f) } }
impl<M> std::error::Error for PostError<M> {}
impl<M> From<PostError<M>> for Error { fn from(e: PostError<M>) -> Error { e.error } }

/// How a message travels. `FromStr`/`Display` use auto|eager|copy|rdma-write|hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Protocol { #[default] Auto, Eager, Copy, RdmaWrite, HandOff }
impl std::str::FromStr for Protocol { type Err = Error; fn from_str(s: &str) -> Result<Self> { todo!() } }
impl std::fmt::Display for Protocol { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { todo!() } }

/// What this rank's library did so far. Payload bytes, headers not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats { pub messages_posted: u64, pub bytes_posted: u64, pub messages_retrieved: u64, pub bytes_retrieved: u64, pub bytes_copied: u64 }

/// What a mailbox carries: `[T]` of plain data, or `Packed` messages.
pub trait Item: 'static { type Outgoing; }
impl<T: Pod> Item for T { type Outgoing = Buf<T>; }
/// Marker: mailboxes of packed messages (`world.mailbox::<Packed>("m")`); post takes a [`Message`], `Received<Packed>` unpacks.
pub struct Packed;
impl Item for Packed { type Outgoing = Message; }

/// Send + Sync.
pub struct World;
impl World {
    pub fn rank(&self) -> usize { todo!() }
    pub fn size(&self) -> usize { todo!() }
    pub fn barrier(&self) -> Result { todo!() }
    /// Drains, says goodbye. Collective.
    pub fn finish(self) -> Result { todo!() }
    pub fn mailbox<T: Item>(&self, name: &str) -> Result<Mailbox<T>> { todo!() }
    /// Waits until the mailbox exists (deadline: DECK_SETUP_TIMEOUT, 30 s).
    pub fn postbox<T: Item>(&self, name: &str) -> Result<Postbox<T>> { todo!() }
    pub fn try_postbox<T: Item>(&self, name: &str) -> Result<Postbox<T>> { todo!() }
    pub fn postbox_within<T: Item>(&self, name: &str, limit: Duration) -> Result<Postbox<T>> { todo!() }
    /// `len` elements, zeroed.
    pub fn buf<T: Pod>(&self, len: usize) -> Result<Buf<T>> { todo!() }
    /// `len` elements whose contents are whatever this rank last left in that memory (safe: plain data, own bytes).
    pub fn buf_reused<T: Pod>(&self, len: usize) -> Result<Buf<T>> { todo!() }
    /// A packed message with room for `capacity` bytes.
    pub fn message(&self, capacity: usize) -> Result<Message> { todo!() }
    pub fn stats(&self) -> Stats { todo!() }
}
/// Send, not Sync. Owner's end.
pub struct Mailbox<T: Item>(PhantomData<T>);
impl<T: Item> Mailbox<T> {
    pub fn retrieve(&self) -> Result<Received<T>> { todo!() }
    pub fn try_retrieve(&self) -> Result<Option<Received<T>>> { todo!() }
    pub fn retrieve_within(&self, limit: Duration) -> Result<Received<T>> { todo!() }
    pub fn iter(&self) -> Iter<'_, T> { todo!() }
}
pub struct Iter<'a, T: Item>(&'a Mailbox<T>);
impl<T: Item> Iterator for Iter<'_, T> { type Item = Result<Received<T>>; fn next(&mut self) -> Option<Self::Item> { todo!() } }
/// Send, not Sync. A poster's end.
pub struct Postbox<T: Item>(PhantomData<T>);
impl<T: Item> Postbox<T> {
    /// Every later post of this postbox takes this protocol.
    pub fn set_protocol(&mut self, protocol: Protocol) -> Result { todo!() }
    pub fn post(&self, message: T::Outgoing) -> Result<(), PostError<T::Outgoing>> { todo!() }
    pub fn try_post(&self, message: T::Outgoing) -> Result<(), PostError<T::Outgoing>> { todo!() }
    pub fn post_within(&self, message: T::Outgoing, limit: Duration) -> Result<(), PostError<T::Outgoing>> { todo!() }
    /// Waits until everything posted here has been delivered.
    pub fn flush(&self) -> Result { todo!() }
}
/// Typed message, in place, 64-byte aligned. Derefs to `[T]`.
pub struct Buf<T: Pod>(PhantomData<T>);
impl<T: Pod> Buf<T> { pub fn set_tag(&mut self, tag: u32) { todo!() } pub fn tag(&self) -> u32 { todo!() } }
impl<T: Pod> std::ops::Deref for Buf<T> { type Target = [T]; fn deref(&self) -> &[T] { todo!() } }
impl<T: Pod> std::ops::DerefMut for Buf<T> { fn deref_mut(&mut self) -> &mut [T] { todo!() } }
/// Read-only where it lies; dropping it sends the buffer home. Send.
pub struct Received<T: Item>(PhantomData<T>);
impl<T: Item> Received<T> { pub fn from(&self) -> usize { todo!() } pub fn tag(&self) -> u32 { todo!() } pub fn len_bytes(&self) -> usize { todo!() } }
impl<T: Pod> std::ops::Deref for Received<T> { type Target = [T]; fn deref(&self) -> &[T] { todo!() } }
/// Packed message. `pack(&[T])` appends; nesting by `pack_message`. Self-describing: unpacking with the wrong type is an error.
pub struct Message;
/// The DECK types: i8 (DECK_CHAR) u8 i16 u16 i32 u32 i64 u64 f32 f64.
pub trait PackType: Pod {}
macro_rules! t { ($($t:ty),*) => { $(impl PackType for $t {})* } }
t!(i8, u8, i16, u16, i32, u32, i64, u64, f32, f64);
impl Message {
    pub fn pack<T: PackType>(&mut self, items: &[T]) -> Result<&mut Self> { todo!() }
    pub fn pack_str(&mut self, s: &str) -> Result<&mut Self> { todo!() }
    pub fn pack_message(&mut self, m: &Message) -> Result<&mut Self> { todo!() }
    /// Forget the contents (DECK clear); `reset` puts the unpacking cursor back to the start.
    pub fn clear(&mut self) { todo!() }
    pub fn reset(&mut self) { todo!() }
    pub fn set_tag(&mut self, tag: u32) { todo!() }
}
/// Unpacking, on `Message` and on `Received<Packed>` alike.
impl Received<Packed> {
    /// The next item: a slice in place.
    pub fn unpack<T: PackType>(&mut self) -> Result<&[T]> { todo!() }
    pub fn unpack_one<T: PackType>(&mut self) -> Result<T> { todo!() }
    pub fn unpack_str(&mut self) -> Result<&str> { todo!() }
    pub fn reset(&mut self) { todo!() }
}

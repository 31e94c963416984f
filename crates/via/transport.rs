//! Contract between the VI layer and a transport.
//!
//! A transport provides a [`Device`] (an opened NIC), and from it [`Waiter`]s (the base of a completion queue) and connected
//! [`ViEndpoint`]s (the two work queues of one VI). The VI layer adds the parts that are the same everywhere: states,
//! descriptors, protection tags, completions.
//!
//! Threads: a `Device` is used from any thread. A `ViEndpoint` and a `Waiter` belong to one thread at a time
//! (`&mut`), different endpoints to different threads. [`Notifier`]s may be attached from any thread.
//!
//! Safety: this contract is about offsets, and both sides take the other's on trust. The VI layer makes slices of memory
//! because the device says that no peer accesses it; a device lets peers access memory because the VI layer says that it has
//! no writer. So neither side is open to safe code:
//!
//! * Implementing [`Device`] and [`ViEndpoint`] is `unsafe`: each states the implementer's promise.
//! * Calling them takes a device or an endpoint, and no safe function gives one out: a transport gives its device to
//!   [`crate::Nic::new`] and to nobody else (that is part of the promise), the NIC keeps it to this crate, and endpoints and
//!   requests go from the device to the VI layer. [`crate::Nic::raw_device`] is `unsafe`.
//!
//! *The caller's part*, kept by the VI layer. Exposed memory is a live block of [`Device::landing`], of which no slice exists
//! until [`Device::revoke`] was `Ok`. Segments lie in live blocks of [`Device::outbox`], which nobody writes (for
//! [`ViEndpoint::rdma_read`], nobody reads or writes) until the call says, or [`ViEndpoint::poll_completion`], that they are
//! the caller's again; segments of a [`PostedBuffer::Block`] or [`PostedBuffer::Owner`] lie in the memory of that. Memory in
//! [`Device::register`] stays allocated until the registration is dropped. An endpoint belongs to a VI of the device that
//! made it. The [`Deadline`]s, numbers and names of the other calls are free.

#![allow(
    unsafe_code,
    reason = "the transport contract: who implements a device or an endpoint answers for memory"
)]

mod short;

use std::any::Any;
use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::Duration;
use udeck_sys::atomic::AtomicU32;

use crate::attributes::{NetAddress, NicAttributes, Reliability, ServiceLevel};
use crate::caps::Caps;
use crate::error::{Error, Result};
use crate::mem::{Arena, Block, Lent, LentSlice, MemHandle, Ptag, RemoteBuffer, Rights, SharedBytes};
use crate::rejection::Rejection;
pub use crate::report::Reporter;
use crate::withdrawal::Until;
use udeck_sys::Deadline;

pub use short::{Inline, ShortArrival};

/// An opened NIC.
///
/// # Safety
/// The implementer promises that, if the caller's part of the contract is kept ([`crate::transport`]):
///
/// * [`Device::outbox`] and [`Device::landing`] are the same arenas at every call. No peer writes the first. No peer accesses
///   the second except inside exposed memory, by the rights that it was exposed with.
/// * When [`Device::revoke`] was `Ok`, no peer accesses that memory any more; [`Device::revoke_later`] keeps its memory until
///   that is so.
/// * Memory is not accessed any more when its [`Registration`] has been dropped.
/// * Its endpoints, also those of its [`Incoming`] requests, keep [`ViEndpoint`]'s contract.
/// * Safe code reaches it, its endpoints and its requests through the [`crate::Nic`] only.
pub unsafe trait Device: Send + Sync + Debug {
    /// Abilities and limits of the device.
    fn attributes(&self) -> &NicAttributes;
    /// Arena that messages are sent from: only this process writes it.
    fn outbox(&self) -> &Arc<Arena>;
    /// Arena that peers' RDMA writes go to.
    fn landing(&self) -> &Arc<Arena>;
    /// Lets peers write `[offset, offset + len)` of the landing arena over VIs of tag `ptag`.
    ///
    /// # Errors
    /// [`crate::Error::Full`] when the table of windows is full.
    fn expose(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle>;
    /// The same as [`Device::expose`], with rights other than writing only.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] where there is no RDMA read; [`crate::Error::Full`].
    fn expose_for(&self, offset: u64, len: usize, ptag: Ptag, rights: Rights) -> Result<MemHandle> {
        if rights == Rights::WRITE {
            return self.expose(offset, len, ptag);
        }
        let have = self.attributes().caps;
        Err(Error::Unsupported { what: "a readable window", needed: Caps::RDMA_READ, have })
    }
    /// Lets peers read `[offset, offset + len)` of the *outbox* arena over VIs of tag `ptag`: memory that has no writer until
    /// [`Device::revoke`] has taken this back.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] where there is no RDMA read; [`crate::Error::Full`] when the table of windows is full.
    fn expose_outbox(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        let _ = (offset, len, ptag);
        let have = self.attributes().caps;
        Err(Error::Unsupported { what: "a message that peers read", needed: Caps::RDMA_READ, have })
    }
    /// Takes [`Device::expose`] or [`Device::expose_outbox`] back, and waits until no peer's access is in progress. New
    /// accesses fail from the moment of the call.
    ///
    /// # Errors
    /// [`crate::Error::Timeout`] when an access is still in progress at the deadline. The call may then be repeated, and
    /// returns when those accesses have ended, whatever others began meanwhile.
    fn revoke(&self, handle: MemHandle, deadline: Deadline) -> Result;
    /// Takes memory back as [`Device::revoke`] does, for an owner that does not wait: keeps `memory`, in which the window
    /// lies, and drops it once no peer's access is in progress any more. Also after a [`Device::revoke`] that timed out.
    ///
    /// This default is for transports on which no access is ever in progress.
    fn revoke_later(&self, handle: MemHandle, memory: Owner) {
        if self.revoke(handle, Deadline::now()).is_err() {
            // Memory that is never handed out again cannot be spoilt.
            std::mem::forget(memory);
        }
    }
    /// Makes memory of the program's own known to the hardware, and pins it, until the registration is dropped; the memory
    /// stays allocated until then. `memory` may be empty, and registered several times. May block in the kernel. A software
    /// NIC has nothing to do: the VI layer copies sends to the outbox.
    ///
    /// # Errors
    /// The error of the kernel or of the hardware.
    fn register(&self, memory: NonNull<[u8]>) -> Result<Box<dyn Registration>> {
        let _ = memory;
        Ok(Box::new(NoRegistration))
    }
    /// Makes a waiter, the base of a completion queue.
    ///
    /// # Errors
    /// [`crate::Error::Full`] when there are no more waiters.
    fn waiter(&self) -> Result<Box<dyn Waiter>>;
    /// Calls `on_request` for each connection request at `discriminator`, on the transport's own thread; it
    /// must not block.
    ///
    /// # Errors
    /// [`crate::Error::InvalidParameter`] when the discriminator is taken or too long.
    fn listen(&self, discriminator: &[u8], on_request: OnRequest) -> Result;
    /// Ends [`Device::listen`]; later requests are refused as `NoMatch`.
    fn unlisten(&self, discriminator: &[u8]);
    /// Asks for a connection and waits for the answer, until the deadline at most. With `peer`, the connection is to that
    /// rank of the job: both sides prove who they are. Without, each side proves that it knows the job's secret.
    ///
    /// # Errors
    /// NoMatch (also when another process is there than `peer`), Rejected, Timeout, InvalidReliability, InvalidParameter when
    /// there are no keys to prove anything to `peer`, or the operating system's.
    fn connect(
        &self,
        to: &NetAddress,
        peer: Option<u32>,
        hello: &Hello,
        queues: Queues<'_>,
        deadline: Deadline,
    ) -> Result<Connected>;
    /// Collects memory that peers have given back or left ([`Device::revoke_later`]), after an arena ran dry.
    fn reclaim(&self);
    /// Collects memory that the few peers have given back to whom memory was lent most recently: cheap enough before every
    /// large allocation, so that the same few blocks go to and fro and stay in the caches.
    fn reclaim_recent(&self);
    /// Number of connections on which posted data would be lost if this process ended now: the data are still here, or the
    /// peer has still to fetch them from here. Moves them along as far as that needs no waiting. Connections of VIs that are
    /// gone count, too; those that are over or lost do not. (Messages of unreliable VIs count no more once they are sent.)
    ///
    /// This default is for transports on which posted data lie where the peer finds them without this process.
    fn undelivered(&self) -> usize {
        0
    }
    /// Payload bytes that this device copied in software so far (inline messages not counted: the message layer
    /// knows those).
    fn bytes_copied(&self) -> u64;
    /// Messages and RDMA writes that peers sent to unreliable VIs of this device and that did not arrive, as far as it knows.
    /// (A message that arrived and found no descriptor did arrive.)
    ///
    /// This default is for transports that lose nothing.
    fn messages_dropped(&self) -> u64 {
        0
    }
    /// Why this device has failed, if a thread of its own has panicked. Its connections are lost then, its listeners dropped,
    /// and calls that need the thread fail with the same words.
    ///
    /// This default is for devices without threads.
    fn failure(&self) -> Option<String> {
        None
    }
    /// Adds bytes that the VI layer copied for this device to [`Device::bytes_copied`]. (A device that needs no such copies
    /// ignores them.)
    fn count_copied(&self, bytes: usize) {
        let _ = bytes;
    }
}

/// Polls until [`Device::undelivered`] is 0, or the deadline passes. Returns its last value. For devices that are dropped,
/// which have [`DROP_DELIVERY_TIMEOUT`] for it.
pub fn wait_for_delivery(undelivered: impl Fn() -> usize, deadline: Deadline) -> usize {
    let [mut pause, longest] = DELIVERY_PAUSES;
    loop {
        let left = undelivered();
        if left == 0 || deadline.passed() {
            return left;
        }
        std::thread::sleep(pause.min(deadline.remaining()));
        pause = longest.min(pause * 2);
    }
}

/// Time that a dropped NIC waits for the delivery of its posts.
pub const DROP_DELIVERY_TIMEOUT: Duration = Duration::from_secs(1);
/// Poll intervals for undelivered data: the first one, and the longest.
const DELIVERY_PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// Memory of the program's own that a device knows, until this is dropped.
pub trait Registration: Send + Sync + Debug {}

/// Registration with a device that needs none.
#[derive(Debug)]
struct NoRegistration;

impl Registration for NoRegistration {}

/// Handler of a listener's requests.
pub type OnRequest = Box<dyn FnMut(Box<dyn Incoming>) + Send>;

/// A connected endpoint, and the hello of the other side.
pub type Connected = (Box<dyn ViEndpoint>, Hello);

/// Parameters that each side sends the other when they connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Reliability level; must be equal on both sides.
    pub reliability: Reliability,
    /// The VI's protection tag, if the peer may write into windows of that tag.
    pub writable_ptag: Option<Ptag>,
    /// The VI's protection tag, if the peer may read windows of that tag.
    pub readable_ptag: Option<Ptag>,
    /// Private data of the programs.
    pub private_data: Vec<u8>,
}

/// Receivers of an endpoint's news.
#[derive(Clone, Copy)]
pub struct Queues<'a> {
    /// Notifier that there is room to send again, or that lent buffers came back.
    pub send: &'a Arc<dyn Notifier>,
    /// Notifier that something arrived.
    pub receive: &'a Arc<dyn Notifier>,
    /// The VI's context, which [`Waiter::poll`] returns.
    pub context: u64,
    /// Service level of sent data.
    pub level: ServiceLevel,
    /// Reporter of the connection's loss, at the moment when the transport learns of it.
    pub reporter: &'a Arc<Reporter>,
}

impl Queues<'_> {
    /// End of the wait in [`Device::connect`].
    pub fn until(&self, deadline: Deadline) -> Until {
        Until::new(deadline, self.reporter.withdrawal())
    }
}

/// A connection request that waits for an answer. When dropped unanswered, it is refused.
pub trait Incoming: Send {
    /// The requester's hello.
    fn hello(&self) -> &Hello;
    /// The rank of the job that the requester has proved to be; `None`: it has only proved that it knows the job's secret.
    fn peer(&self) -> Option<u32>;
    /// Accepts the request, and connects.
    ///
    /// # Errors
    /// When the requester is gone, or resources are short.
    fn accept(self: Box<Self>, hello: &Hello, queues: Queues<'_>) -> Result<Box<dyn ViEndpoint>>;
    /// Refuses the request.
    fn reject(self: Box<Self>, rejection: Rejection);
}

/// One of the two work queues of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The queue of posted sends.
    Send,
    /// The queue of arrivals.
    Receive,
}

/// A work queue that may have news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Value of [`Queues::context`].
    pub context: u64,
    /// The queue that may have news.
    pub queue: Queue,
}

/// Watches many work queues for one thread.
pub trait Waiter: Send + Debug {
    /// Polls for a queue with news. A receive queue is named again until it has been emptied. The end of a connection is
    /// named once when it comes, and once more when everything that came before it was taken since. A named queue may turn
    /// out to have nothing. One poll may pass over a queue with news because others are busier; two in a row do not.
    fn poll(&mut self) -> Option<Ready>;
    /// The same as [`Waiter::poll`], passing over nothing. A waiter that knows when one poll has seen everything overrides this.
    fn poll_all(&mut self) -> Option<Ready> {
        self.poll().or_else(|| self.poll())
    }
    /// The receive queue that had news last, while no other queue has any. A thread that waits for a message may poll its VI
    /// a few times instead of this waiter, and then asks again. `None`: poll.
    fn sole_active(&mut self) -> Option<Ready> {
        None
    }
    /// Sleeps until there may be news, at most `limit` (and never long: sleeps are bounded). May return early.
    fn park(&mut self, limit: Duration);
    /// Prepares for another thread to sleep in its place, or for this thread to sleep on several waiters at once.
    ///
    /// This default is for transports that sleep on something other than a word of memory.
    fn arm(&mut self) -> Armed {
        Armed::Never
    }
    /// The side to which endpoints are attached.
    fn notifier(&self) -> Arc<dyn Notifier>;
}

/// Result of [`Waiter::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// [`Notifier::sleep_word`] is [`ARMED`]. The first news or wake-up since then changes it and wakes the thread that
    /// sleeps on it.
    Yes,
    /// There may be news: poll, then try again.
    News,
    /// The waiter can only sleep by itself, in [`Waiter::park`].
    Never,
}

/// Value of [`Notifier::sleep_word`] while its waiter is armed.
pub const ARMED: u32 = udeck_sys::doorbell::PARKED;

/// The side of a [`Waiter`] to which endpoints are attached. Transports find their own type behind it by `into_any`.
pub trait Notifier: Send + Sync + Debug {
    /// Converts the notifier for downcasting.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
    /// Wakes the waiter's thread, with or without news. A wake-up that finds it awake is not lost: unless a [`Waiter::poll`]
    /// takes it, the next [`Waiter::park`] returns at once. Writes before the wake-up are visible to the thread that took it.
    fn wake(&self);
    /// The word that [`Waiter::arm`] sets, for sleeping on it. It may change although nothing came.
    fn sleep_word(&self) -> Option<&AtomicU32> {
        None
    }
}

/// An arrival on a receive queue.
#[derive(Debug)]
pub struct Arrival {
    /// Immediate data of the arrival.
    pub immediate: Option<u32>,
    /// Content of the arrival.
    pub body: Body,
}

/// Result of [`ViEndpoint::receive_into`].
#[derive(Debug)]
pub enum Landed {
    /// The message was copied into the place.
    Copied {
        /// Immediate data of the message.
        immediate: Option<u32>,
        /// Length of the message in bytes. Bytes beyond the length of the place are lost.
        len: usize,
    },
    /// The arrival, as [`ViEndpoint::receive`] returns it.
    Arrival(Arrival),
}

/// Result of [`ViEndpoint::receive_short`]. It is small, because it is returned for every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A short message was taken; its immediate data.
    Short(Option<u32>),
    /// Nothing has come, and the connection stands.
    Nothing,
    /// There may be something else.
    Other,
}

/// Content of an arrival.
#[derive(Debug)]
pub enum Body {
    /// A message that travelled inside its descriptor.
    Inline(Inline),
    /// A message in the sender's memory, and its header.
    Lent(Inline, Lent),
    /// The length in bytes of an RDMA write with immediate data: its data are in place.
    Written(usize),
}

/// Why an endpoint refused a post. The post's memory is still the caller's.
#[derive(Debug)]
pub enum Refused {
    /// There is no room at the moment: the peer has to read, or to give buffers back.
    Busy,
    /// The peer closed the connection.
    Closed,
    /// The connection is lost.
    Lost(String),
    /// The remote memory may not be written or read so, as far as the sender can see. Where only the receiver can tell, this
    /// comes later, as [`TransferStatus::Protection`].
    Protection,
    /// The NIC lacks the ability (a caller that asks the `Caps` first never sees this).
    Unsupported,
}

/// Endpoint of one VI's connection: its two work queues.
///
/// # Safety
/// The implementer promises that, if the caller's part of the contract is kept ([`crate::transport`]):
///
/// * Posted memory, and nothing else of the outbox, is accessed; only memory posted by [`ViEndpoint::rdma_read`] is written.
///   A post takes a [`PostedBuffer`]. Its memory is not accessed any more when the call says that the post is over already,
///   or later when [`ViEndpoint::poll_completion`] returns its number, or the block or the owner in it is dropped. Until then
///   the memory of a read may be written at any time. The memory of a refused post is not accessed.
/// * The same holds after [`ViEndpoint::leave`], and when the endpoint is dropped: each post that is not over by then keeps
///   its [`PostedBuffer`].
pub unsafe trait ViEndpoint: Send + Debug {
    /// Sends `head` + `body` (at most `max_inline` bytes together), copied before the call returns.
    ///
    /// # Errors
    /// Why the message was not sent.
    fn send(&mut self, immediate: Option<u32>, head: &[u8], body: &[u8]) -> Result<(), Refused>;

    /// Sends as [`ViEndpoint::send`] does, with immediate data and a header of 8 bytes: the shortest path for most messages.
    /// Returns `false` if the message was not sent; [`ViEndpoint::send`] says why.
    fn send_short(&mut self, immediate: u32, head: [u8; 8], body: &[u8]) -> bool {
        self.send(Some(immediate), &head, body).is_ok()
    }

    /// Sends all bodies that lie one after another in `bodies`, `each` bytes long (not 0), as [`ViEndpoint::send_short`]
    /// does, with the same immediate data and header. Returns how many were sent, from the first on. An endpoint may wake a
    /// sleeping receiver once for several.
    fn send_short_run(&mut self, immediate: u32, head: [u8; 8], bodies: &[u8], each: usize) -> usize {
        bodies.chunks_exact(each).take_while(|body| self.send_short(immediate, head, body)).count()
    }

    /// Sends memory of the outbox arena in place. A receiver with posted descriptors copies it there, one that receives lent
    /// reads it in place; either way it comes back when the receiver is done ([`PostedBuffer`] says to whom). At most
    /// `max_segments` segments (offset and length in the outbox arena) and `max_head` bytes of header.
    ///
    /// # Errors
    /// Why the message was not sent.
    fn lend(
        &mut self,
        immediate: Option<u32>,
        head: &[u8],
        segments: &[(u64, usize)],
        held: PostedBuffer,
    ) -> Result<(), (Refused, PostedBuffer)>;

    /// Copies `segments` (offset and length in the outbox arena), one after another, into the peer's window, then
    /// tells the peer if there is immediate data.
    ///
    /// `Some`: the write was over when the call returned, and `held` is no more. `None`: `held` ends later. Below reliable
    /// reception a write is over when its data have left and its segments are not read any more
    /// ([`TransferStatus::Arrived`]); if the peer does not allow it, a reliable connection breaks, and a write that is not
    /// over by then may end as [`TransferStatus::Protection`]. At reliable reception a write is over when its data are in
    /// place at the receiver, and so is the receive descriptor that its immediate data took (this holds for a
    /// [`PostedBuffer::Caller`]; without a waiting caller, the rule below reliable reception applies); if the peer does not
    /// allow it, its status is [`TransferStatus::Protection`]. Later posts arrive after the write.
    ///
    /// # Errors
    /// Why the write was not posted: errors that are known at once are refused.
    fn rdma_write(
        &mut self,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)>;

    /// Copies `len` bytes of the peer's window, or of memory that it [shares](Device::expose_outbox), to `segments`, one
    /// after another, where `len` is the length of all segments. (`segments`: offset and length in the outbox arena; the
    /// caller owns them, and nobody else reads them.)
    ///
    /// `Some`: the read was over when the call returned, and `held` is no more. `None`: `held` ends later, and until then the
    /// segments may be written. A read that is over has its data in place ([`TransferStatus::Arrived`]) or failed:
    /// [`TransferStatus::Protection`], [`TransferStatus::Unread`] if the connection was closed in order first,
    /// [`TransferStatus::Lost`]. Later posts do not wait for a read, unless [fenced](ViEndpoint::fence). Reads of one
    /// endpoint need not end in the order of their posts.
    ///
    /// # Errors
    /// Why the read was not posted: errors that are known at once are refused.
    fn rdma_read(
        &mut self,
        segments: &[(u64, usize)],
        from: RemoteBuffer,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        let _ = (segments, from);
        Err((Refused::Unsupported, held))
    }

    /// VIA's `QFENCE`: delays the start of the next post until all reads that were posted so far are over. Does not block.
    ///
    /// This default is for endpoints whose reads are over when the call returns.
    fn fence(&mut self) {}

    /// Takes the next arrival. The end of a connection is reported after everything that came before it.
    ///
    /// # Errors
    /// [`Refused::Closed`] and [`Refused::Lost`].
    fn receive(&mut self) -> Result<Option<Arrival>, Refused>;

    /// Receives as [`ViEndpoint::receive`] does, for a receiver that wants a short message in `to`. A message that travelled
    /// inside its descriptor may be copied there at once, as far as it fits, which saves moving it twice. So may a longer one
    /// that was sent without a header and fits; its beginning may lie there before a call returns it. So `to` is the same
    /// memory at each call, and [`ViEndpoint::receive`] is not called, until a call returns something.
    ///
    /// # Errors
    /// Those of [`ViEndpoint::receive`].
    fn receive_into(&mut self, to: &mut [u8]) -> Result<Option<Landed>, Refused> {
        let _ = to;
        Ok(self.receive()?.map(Landed::Arrival))
    }

    /// Receives a short message, one that travelled inside its descriptor, into `to`: the shortest path, for most messages.
    /// [`Found::Other`] decides nothing: ask [`ViEndpoint::receive`].
    fn receive_short(&mut self, to: &mut Inline) -> Found {
        let _ = to;
        Found::Other
    }

    /// Receives several short messages in a row, as [`ViEndpoint::receive_short`] does, whose header has 8 bytes and begins
    /// with the byte `first`. Returns how many lie in `to` now. 0 decides nothing: ask [`ViEndpoint::receive_short`].
    fn receive_short_run(&mut self, first: u8, to: &mut [ShortArrival]) -> usize {
        let _ = (first, to);
        0
    }

    /// Receives a message that lies in the sender's memory in one piece. Returns it with its immediate data, and puts its
    /// header into `head`. `None` decides nothing: ask [`ViEndpoint::receive`].
    fn receive_lent(&mut self, head: &mut Inline) -> Option<(Option<u32>, LentSlice)> {
        let _ = head;
        None
    }

    /// The next completion of a [`PostedBuffer::Caller`]: its number, and the status of the transfer. Its buffer is not
    /// accessed any more. Also after [`ViEndpoint::leave`]. On the way, buffers that the endpoint holds itself are given back
    /// to their arena. An endpoint that offers reliable reception returns all [`TransferStatus`]s; others only
    /// [`TransferStatus::Arrived`] and [`TransferStatus::Lost`], and for reads those of [`ViEndpoint::rdma_read`]. Every post
    /// completes when the connection ends, or later when the peer is done with it. The send queue's notifier is told as it is
    /// of room ([`ViEndpoint::request_send_notify`]).
    fn poll_completion(&mut self) -> Option<(u64, TransferStatus)>;

    /// The receipt for the arrival that [`ViEndpoint::receive`] returned last, if its sender waits for one and the arrival is
    /// not [`Body::Lent`] (which is its own receipt). Dropping it reports that the message is in place; [`Lent::refuse`]
    /// reports that it found no place.
    fn receipt(&mut self) -> Option<Lent> {
        None
    }

    /// Makes `owner` the holder of the buffer of post `number` until the receiver is done with it; the caller no longer wants
    /// to be told.
    ///
    /// # Errors
    /// The owner comes back when no such buffer is out.
    fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner>;

    /// Requests that the send queue's notifier be told when there is room again, or a buffer came back. Call it before the
    /// last poll.
    fn request_send_notify(&mut self);

    /// A report of the connection, at any time and from any thread; also after [`ViEndpoint::leave`], until everything that
    /// the peer holds has come back. `None` if this transport has no report.
    fn link_report(&self) -> Option<Weak<dyn LinkReport>> {
        None
    }

    /// Number of messages that the peer has not taken yet, at this moment. The notifier is not told of each; a thread that
    /// waits for 0 asks again now and then.
    ///
    /// # Errors
    /// Those of sending, when some messages are unread and never will be read.
    fn unread(&mut self) -> Result<u32, Refused>;

    /// Ends the connection; the peer reads everything that was sent, then learns of the end. With `broken`, the peer learns
    /// that it ended by that error.
    fn close(&mut self, broken: Option<&str>);

    /// Closes, and lets go of everything but the buffers that the peer still reads. The receive queue's notifier no longer
    /// names this endpoint. The send queue's does, as if by [`ViEndpoint::request_send_notify`], when one of the buffers
    /// comes back, until the endpoint is dropped. Only [`ViEndpoint::poll_completion`] and [`ViEndpoint::keep`] are called
    /// from now on.
    fn leave(&mut self);
}

/// Holder of a posted buffer until the post is over.
#[derive(Debug)]
pub enum PostedBuffer {
    /// The endpoint holds the block, and recycles it without telling anyone.
    Block(Block),
    /// The caller holds the buffer, and is told this number.
    Caller(u64),
    /// The endpoint holds it, in the place of a caller that is gone ([`ViEndpoint::keep`]).
    Owner(Owner),
}

impl PostedBuffer {
    /// Bytes of the arena's block that it holds, also if others hold it, too; 0 where a caller does.
    pub fn bytes(&self) -> usize {
        match self {
            PostedBuffer::Block(block) => block.capacity(),
            PostedBuffer::Owner(owner) => owner.downcast_ref::<SharedBytes>().map_or(0, SharedBytes::kept),
            PostedBuffer::Caller(_) => 0,
        }
    }
}

/// State of a connection, for threads that do not work with it. A call may be slow.
pub trait LinkReport: Send + Sync {
    /// Bytes of the outbox that the peer holds: they were sent in place and have not come back ([`PostedBuffer::bytes`]).
    /// Error messages use the number to say where the memory is.
    fn lent(&self) -> usize;

    /// Retransmissions of lost packets; `None` if no layer below can tell, or nothing can be lost.
    fn retransmissions(&self) -> Option<Retransmissions> {
        None
    }
}

/// Number of retransmitted packets of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retransmissions {
    /// Number of the network's connection. VIs that share one, as over UDP, have the same number.
    pub connection: u64,
    /// Packets since the connection was made.
    pub packets: u64,
}

/// Any value that keeps a lent buffer alive.
pub type Owner = Box<dyn Any + Send>;

/// Status of a transfer whose buffer is the caller's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferStatus {
    /// The receiver has the message, or the data of a read are in place. (Below reliable reception, for a send or a write:
    /// the buffer is not read any more, and no more is known.)
    Arrived,
    /// The receiver had no descriptor posted for the message, or one too short.
    Refused,
    /// The receiver does not allow RDMA to that place (where only the receiver can tell).
    Protection,
    /// The receiver closed the connection before it took the message, or answered the read.
    Unread,
    /// The connection was lost.
    Lost,
}

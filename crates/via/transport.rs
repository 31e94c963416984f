//! The contract between the VI layer and a transport.
//!
//! A transport provides a [`Device`] (an opened NIC), from it [`Waiter`]s (what a completion queue is made of)
//! and connected [`ViEndpoint`]s (the two work queues of one VI). The VI layer adds what is the same everywhere:
//! states, descriptors, protection tags, completions.
//!
//! Threads: a `Device` is used from any thread. A `ViEndpoint` and a `Waiter` belong to one thread at a time
//! (`&mut`), different endpoints to different threads. [`Notifier`]s may be attached from any thread.
//!
//! Safety: this contract is about offsets, and both sides take the other's on trust. The VI layer makes slices of memory
//! because the device says that no peer is in it; a device lets peers at memory because the VI layer says that nobody
//! writes it. So neither side is open to safe code:
//!
//! * To implement [`Device`] and [`ViEndpoint`] is `unsafe`: each states what its implementer promises.
//! * To call them takes one, and no safe function gives one out: a transport gives its device to [`crate::Nic::new`] and
//!   to nobody else (that is part of the promise), the NIC keeps it to this crate, and endpoints and requests go from the
//!   device to the VI layer. [`crate::Nic::raw_device`] is `unsafe`.
//!
//! *The caller's part*, kept by the VI layer: what it exposes is a live block of [`Device::landing`], of which no slice
//! exists until [`Device::revoke`] was `Ok`; segments lie in live blocks of [`Device::outbox`], which nobody writes (for
//! [`ViEndpoint::rdma_read`], nobody reads or writes) until the call says, or [`ViEndpoint::poll_completion`], that they are the caller's
//! again, and those of a [`PostedBuffer::Block`] or [`PostedBuffer::Owner`] in what is in it; memory in [`Device::register`] stays allocated until the registration is dropped; and an endpoint belongs to a VI
//! of the device that made it. The [`Deadline`]s, numbers and names of the other calls are free.

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
pub use crate::report::Reporter;
use crate::withdrawal::Until;
use udeck_sys::Deadline;

pub use short::{Inline, ShortArrival};

/// An opened NIC.
///
/// # Safety
/// Whoever implements it promises that, if the caller's part of the contract is kept ([`crate::transport`]):
///
/// * [`Device::outbox`] and [`Device::landing`] are the same arenas at every call. No peer writes the first. None
///   accesses the second but inside what is exposed, by the rights that it was exposed with.
/// * When [`Device::revoke`] was `Ok`, nobody is in that memory nor comes to it; [`Device::revoke_later`] keeps its
///   memory until that is so.
/// * Memory is not accessed any more when its [`Registration`] has been dropped.
/// * Its endpoints, those of its [`Incoming`] requests too, keep [`ViEndpoint`]'s contract.
/// * Safe code gets at it, its endpoints and its requests through the [`crate::Nic`] only.
pub unsafe trait Device: Send + Sync + Debug {
    /// What it can do.
    fn attributes(&self) -> &NicAttributes;
    /// Memory that messages are sent from: only we write it.
    fn outbox(&self) -> &Arc<Arena>;
    /// Memory that peers' RDMA writes go to.
    fn landing(&self) -> &Arc<Arena>;
    /// Lets peers write `[offset, offset + len)` of the landing arena over VIs of tag `ptag`.
    ///
    /// # Errors
    /// [`crate::Error::Full`] when the table of windows is full.
    fn expose(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle>;
    /// As [`Device::expose`], with other rights than to write.
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
    /// Lets peers read `[offset, offset + len)` of the *outbox* arena over VIs of tag `ptag`: memory that nobody writes
    /// until [`Device::revoke`] has taken this back.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] where there is no RDMA read; [`crate::Error::Full`] when the table of windows is.
    fn expose_outbox(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        let _ = (offset, len, ptag);
        let have = self.attributes().caps;
        Err(Error::Unsupported { what: "a message that peers read", needed: Caps::RDMA_READ, have })
    }
    /// Takes [`Device::expose`] or [`Device::expose_outbox`] back, and waits until no peer is in the middle of a write. New writes fail from
    /// the moment of the call.
    ///
    /// # Errors
    /// [`crate::Error::Timeout`] when a write is still under way at the deadline. Then it may be called again, and ends
    /// when those writes have, whatever others began meanwhile.
    fn revoke(&self, handle: MemHandle, deadline: Deadline) -> Result;
    /// As [`Device::revoke`] for an owner that does not wait: keeps `memory`, which the window lies in, and drops it
    /// once no peer is in the middle of an access any more. Also after a [`Device::revoke`] that timed out.
    ///
    /// As it is here, for transports on which no access is ever under way.
    fn revoke_later(&self, handle: MemHandle, memory: Owner) {
        if self.revoke(handle, Deadline::now()).is_err() {
            // Memory that is never handed out again cannot be spoilt.
            std::mem::forget(memory);
        }
    }
    /// Makes memory of the program's own known to the hardware, and pins it, until the registration is dropped; the
    /// memory stays allocated until then. `memory` may be empty, and registered several times. May wait for the
    /// kernel. A software NIC has nothing to do: the VI layer brings to the outbox what is sent from there.
    ///
    /// # Errors
    /// What the kernel or the hardware has against it.
    fn register(&self, memory: NonNull<[u8]>) -> Result<Box<dyn Registration>> {
        let _ = memory;
        Ok(Box::new(NothingToDo))
    }
    /// What a completion queue is made of.
    ///
    /// # Errors
    /// [`crate::Error::Full`] when there are no more.
    fn waiter(&self) -> Result<Box<dyn Waiter>>;
    /// Calls `on_request` for each connection request at `discriminator`, on the transport's own thread; it
    /// must not block.
    ///
    /// # Errors
    /// [`crate::Error::InvalidParameter`] when the discriminator is taken or too long.
    fn listen(&self, discriminator: &[u8], on_request: OnRequest) -> Result;
    /// Ends [`Device::listen`]; requests that come later are refused as `NoMatch`.
    fn unlisten(&self, discriminator: &[u8]);
    /// Asks for a connection and waits for the answer. With `peer`, to the rank of the job that this is: both sides prove
    /// who they are. Without, each proves to know the job's secret.
    ///
    /// # Errors
    /// NoMatch (also when somebody else is there than `peer`), Rejected, Timeout, InvalidReliability, InvalidParameter when
    /// there are no keys to prove anything to `peer` by, or the operating system's.
    fn connect(
        &self,
        to: &NetAddress,
        peer: Option<u32>,
        hello: &Hello,
        queues: Queues<'_>,
        deadline: Deadline,
    ) -> Result<Connected>;
    /// Collects what peers have given back or left ([`Device::revoke_later`]), after an arena ran dry.
    fn reclaim(&self);
    /// Collects what those few peers have given back to whom most recently something was lent: cheap enough before
    /// every large allocation, so that the same few blocks go to and fro and stay in the caches.
    fn reclaim_recent(&self);
    /// Connections on which something that was posted would be lost if this process ended now: it lies here yet, or the peer
    /// has still to fetch it from here. Moves them along as far as that needs no waiting. Those of VIs that are gone count,
    /// too; those that are over or lost do not. (Of unreliable VIs, what has been sent is nobody's business any more.)
    ///
    /// As it is here, for transports on which what was posted lies where its peer finds it without this process.
    fn undelivered(&self) -> usize {
        0
    }
    /// Payload bytes that this device copied in software so far (inline messages not counted: the message layer
    /// knows those).
    fn bytes_copied(&self) -> u64;
    /// Messages and RDMA writes that peers sent to unreliable VIs of this device and that did not arrive, as far as it
    /// knows. (What arrived and found no descriptor did arrive.)
    ///
    /// As it is here, for transports that lose nothing.
    fn messages_dropped(&self) -> u64 {
        0
    }
    /// Why this device serves nothing any more, if a thread of its own has panicked. Its connections are lost then, its
    /// listeners dropped, and calls that need the thread fail with the same words.
    ///
    /// As it is here, for devices without threads.
    fn failure(&self) -> Option<String> {
        None
    }
    /// Adds what the VI layer copied for this device to [`Device::bytes_copied`]. (Nothing, on a device that needs no
    /// such copies.)
    fn count_copied(&self, bytes: usize) {
        let _ = bytes;
    }
}

/// Looks until [`Device::undelivered`] is 0, or the deadline passes: its last word. For devices that are dropped, which have
/// [`LAST_WORDS`] for it.
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

/// How long a NIC that nobody has any more waits for what was posted on it.
pub const LAST_WORDS: Duration = Duration::from_secs(1);
/// Between two looks at what has not been delivered: at first, and in the long run.
const DELIVERY_PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// Memory of the program's own that a device knows, until this is dropped.
pub trait Registration: Send + Sync + Debug {}

/// The registration with a device that needs none.
#[derive(Debug)]
struct NothingToDo;

impl Registration for NothingToDo {}

/// What a listener does with a request.
pub type OnRequest = Box<dyn FnMut(Box<dyn Incoming>) + Send>;

/// A connected endpoint, and what the other side said of itself.
pub type Connected = (Box<dyn ViEndpoint>, Hello);

/// What each side tells the other when they connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Reliability level; must be equal.
    pub reliability: Reliability,
    /// The VI's protection tag, if the peer may write into windows of that tag.
    pub writable_ptag: Option<Ptag>,
    /// The VI's protection tag, if the peer may read windows of that tag.
    pub readable_ptag: Option<Ptag>,
    /// The programs' own.
    pub private_data: Vec<u8>,
}

/// Whom an endpoint reports to.
#[derive(Clone, Copy)]
pub struct Queues<'a> {
    /// Who learns that there is room to send again, or that lent buffers came back.
    pub send: &'a Arc<dyn Notifier>,
    /// Who learns that something arrived.
    pub receive: &'a Arc<dyn Notifier>,
    /// Named in what [`Waiter::poll`] returns.
    pub context: u64,
    /// The level of what is sent.
    pub level: ServiceLevel,
    /// Who learns that the connection was lost, at the moment when the transport does.
    pub reporter: &'a Arc<Reporter>,
}

impl Queues<'_> {
    /// How long [`Device::connect`] waits.
    pub fn until(&self, deadline: Deadline) -> Until {
        Until::new(deadline, self.reporter.withdrawal())
    }
}

/// A request that waits for an answer. Dropped unanswered, it is refused.
pub trait Incoming: Send {
    /// What the requester said of itself.
    fn hello(&self) -> &Hello;
    /// The rank of the job that the requester has proved to be; `None`: it has only proved to know the job's secret.
    fn peer(&self) -> Option<u32>;
    /// Connects.
    ///
    /// # Errors
    /// When the requester is gone, or resources are short.
    fn accept(self: Box<Self>, hello: &Hello, queues: Queues<'_>) -> Result<Box<dyn ViEndpoint>>;
    /// Refuses, with words for the requester.
    fn reject(self: Box<Self>, reason: &str);
    /// Refuses because the VIs have different reliability levels.
    fn reject_reliability(self: Box<Self>);
}

/// One of the two work queues of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Posted sends.
    Send,
    /// Arrivals.
    Receive,
}

/// A work queue that may have news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// [`Queues::context`].
    pub context: u64,
    /// Which queue.
    pub queue: Queue,
}

/// Watches many work queues for one thread.
pub trait Waiter: Send + Debug {
    /// A queue with news, if there is one. A receive queue is named again until it has been emptied; the end of
    /// a connection is named once when it comes, and once more when all that came before it was taken since. May name a
    /// queue that turns out to have nothing. One look may pass over a queue with news because others are busier; not two in
    /// a row.
    fn poll(&mut self) -> Option<Ready>;
    /// As [`Waiter::poll`], passing over nothing. A waiter that knows when one look has seen everything says so here.
    fn poll_all(&mut self) -> Option<Ready> {
        self.poll().or_else(|| self.poll())
    }
    /// The receive queue that had news last, while no other queue has any: whoever waits for a message may look there (at the
    /// VI) a few times instead of polling, and then asks again. `None`: poll.
    fn sole_active(&mut self) -> Option<Ready> {
        None
    }
    /// Sleeps until there may be news, at most `limit` (and never long: sleeps are bounded). May return early.
    fn park(&mut self, limit: Duration);
    /// Gets ready for a sleep that another thread sleeps in its place, or this one on several waiters at once.
    ///
    /// As it is here, for transports that sleep on something else than a word of memory.
    fn arm(&mut self) -> Armed {
        Armed::Never
    }
    /// For attaching endpoints.
    fn notifier(&self) -> Arc<dyn Notifier>;
}

/// What [`Waiter::arm`] has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// [`Notifier::sleep_word`] is [`ARMED`]. The first news or wake-up since then changes it and wakes who sleeps on it.
    Yes,
    /// There may be news: poll, then try again.
    News,
    /// The waiter can only sleep by itself, in [`Waiter::park`].
    Never,
}

/// What [`Notifier::sleep_word`] holds while its waiter is armed.
pub const ARMED: u32 = udeck_sys::doorbell::PARKED;

/// The side of a [`Waiter`] that endpoints attach to. Transports find their own type behind it by `into_any`.
pub trait Notifier: Send + Sync + Debug {
    /// For downcasting.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
    /// Wakes the waiter's thread, news or not. A wake-up that finds it awake is not lost: unless a [`Waiter::poll`]
    /// takes it, the next [`Waiter::park`] returns at once. What was written before it is seen by whoever took it.
    fn wake(&self);
    /// The word that [`Waiter::arm`] sets, to sleep on. A thread may find it changed although nothing came.
    fn sleep_word(&self) -> Option<&AtomicU32> {
        None
    }
}

/// Something that arrived.
#[derive(Debug)]
pub struct Arrival {
    /// The immediate data that came with it.
    pub immediate: Option<u32>,
    /// What it is.
    pub body: Body,
}

/// What became of an arrival in [`ViEndpoint::receive_into`].
#[derive(Debug)]
pub enum Landed {
    /// It is in place.
    Copied {
        /// The immediate data that came with it.
        immediate: Option<u32>,
        /// The message's bytes, if more than the place has: those beyond it are lost.
        len: usize,
    },
    /// It is as [`ViEndpoint::receive`] gives it.
    Arrival(Arrival),
}

/// What [`ViEndpoint::receive_short`] found. Small: it is returned for every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A short message, which was taken, and the immediate data that came with it.
    Short(Option<u32>),
    /// Nothing has come, and the connection stands.
    Nothing,
    /// Something else, perhaps.
    Other,
}

/// What arrived.
#[derive(Debug)]
pub enum Body {
    /// A message that travelled inside its descriptor.
    Inline(Inline),
    /// A message in the sender's memory, and the header that came with it.
    Lent(Inline, Lent),
    /// The immediate data of an RDMA write of so many bytes: its data are in place.
    Written(usize),
}

/// Why an endpoint did not take something. The thing is still the caller's.
#[derive(Debug)]
pub enum Refused {
    /// No room at the moment: the peer has to read, or to give buffers back.
    Busy,
    /// The peer closed the connection.
    Closed,
    /// The connection is lost.
    Lost(String),
    /// The remote memory may not be written or read so: where the sender can look. Where only the receiver can tell, it
    /// is [`TransferStatus::Protection`], later.
    Protection,
    /// The NIC cannot do it (a caller that asks the `Caps` first never sees this).
    Unsupported,
}

/// The connected ends of one VI's two work queues.
///
/// # Safety
/// Whoever implements it promises that, if the caller's part of the contract is kept ([`crate::transport`]):
///
/// * What was posted, and nothing else of the outbox, is accessed; only what was posted by [`ViEndpoint::rdma_read`] is written.
///   A post takes a [`PostedBuffer`]: nobody is in its memory any more when the call says that it is over already, or later when
///   [`ViEndpoint::poll_completion`] tells its number, or the block or the owner in it is dropped; until then what a read was posted with
///   may be written at any time. A refused post is accessed by nobody.
/// * That holds after [`ViEndpoint::leave`], and when the endpoint is dropped: whatever is not over by then keeps its [`PostedBuffer`].
pub unsafe trait ViEndpoint: Send + Debug {
    /// Sends `head` + `body` (at most `max_inline` bytes together), copied before the call returns.
    ///
    /// # Errors
    /// Why not.
    fn send(&mut self, immediate: Option<u32>, head: &[u8], body: &[u8]) -> Result<(), Refused>;

    /// As [`ViEndpoint::send`], with immediate data and a header of 8 bytes: the shortest way for most messages. `false`: it
    /// was not sent, and [`ViEndpoint::send`] says why.
    fn send_short(&mut self, immediate: u32, head: [u8; 8], body: &[u8]) -> bool {
        self.send(Some(immediate), &head, body).is_ok()
    }

    /// As [`ViEndpoint::send_short`], of all bodies that lie one after another in `bodies`, `each` bytes long (not 0), with the same
    /// immediate data and header: how many were sent, from the first on. An endpoint may wake a receiver that sleeps once for several.
    fn send_short_run(&mut self, immediate: u32, head: [u8; 8], bodies: &[u8], each: usize) -> usize {
        bodies.chunks_exact(each).take_while(|body| self.send_short(immediate, head, body)).count()
    }

    /// Sends memory of the outbox arena where it lies. A receiver with posted descriptors copies it there, one that
    /// receives lent reads it in place; either way it comes back when the receiver is done ([`PostedBuffer`] says to whom). At most `max_segments` segments (offset and length in the outbox arena) and `max_head`
    /// bytes of header.
    ///
    /// # Errors
    /// Why not.
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
    /// `Some`: over when the call returned, and `held` is no more. `None`: `held` ends later. Below reliable reception a
    /// write is over when its data have left and nobody reads the segments any more ([`TransferStatus::Arrived`]); if the peer does
    /// not allow it, a reliable connection breaks, and a write that is not over by then may end as
    /// [`TransferStatus::Protection`]. At reliable reception it is over when the data are in place at the
    /// receiver, and the receive descriptor too that the immediate data took (those of a [`PostedBuffer::Caller`]; where nobody
    /// waits, as below); if the peer does not allow it, its status is [`TransferStatus::Protection`]. What is posted behind a write
    /// arrives behind it.
    ///
    /// # Errors
    /// Why not: what can be told at once is refused.
    fn rdma_write(
        &mut self,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)>;

    /// Copies `len` bytes of the peer's window, or of what it [shares](Device::expose_outbox), to `segments` (offset and length in
    /// the outbox arena; the caller owns them, and nobody else reads them), one after another, where `len` is what the
    /// segments hold.
    ///
    /// `Some`: over when the call returned, and `held` is no more. `None`: `held` ends later, and until then the segments
    /// may be written. A read that is over has its data in place ([`TransferStatus::Arrived`]) or failed: [`TransferStatus::Protection`],
    /// [`TransferStatus::Unread`] if the connection was closed in order first, [`TransferStatus::Lost`]. What is posted behind a read does not
    /// wait for it, unless [fenced](ViEndpoint::fence). Reads of one endpoint need not end in the order of their posts.
    ///
    /// # Errors
    /// Why not: what can be told at once is refused.
    fn rdma_read(
        &mut self,
        segments: &[(u64, usize)],
        from: RemoteBuffer,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        let _ = (segments, from);
        Err((Refused::Unsupported, held))
    }

    /// VIA's `QFENCE`: what is posted next is not started before all reads that were posted so far are over. Does not wait.
    ///
    /// As it is here, for endpoints whose reads are over when the call returns.
    fn fence(&mut self) {}

    /// Takes the next arrival. The end of a connection is reported after everything that came before it.
    ///
    /// # Errors
    /// [`Refused::Closed`] and [`Refused::Lost`].
    fn receive(&mut self) -> Result<Option<Arrival>, Refused>;

    /// As [`ViEndpoint::receive`], for a receiver that wants a short message in `to`: one that travelled inside its
    /// descriptor may be copied there at once, as far as it fits, which saves moving it twice. So may a longer one that
    /// was sent without a header and fits; its beginning may lie there before the call gives it out. So `to` is the same
    /// memory at each call, and [`ViEndpoint::receive`] is not called, until one gives out something.
    ///
    /// # Errors
    /// As [`ViEndpoint::receive`].
    fn receive_into(&mut self, to: &mut [u8]) -> Result<Option<Landed>, Refused> {
        let _ = to;
        Ok(self.receive()?.map(Landed::Arrival))
    }

    /// A short message, one that travelled inside its descriptor, into `to`: what most messages are, by the shortest way.
    /// [`Found::Other`] says nothing: [`ViEndpoint::receive`] knows.
    fn receive_short(&mut self, to: &mut Inline) -> Found {
        let _ = to;
        Found::Other
    }

    /// As [`ViEndpoint::receive_short`], of several in a row that have a header of 8 bytes, of which `first` is the first: how many lie
    /// in `to` now. 0 says nothing: [`ViEndpoint::receive_short`] knows.
    fn receive_short_run(&mut self, first: u8, to: &mut [ShortArrival]) -> usize {
        let _ = (first, to);
        0
    }

    /// A message in the sender's memory, in one piece, and the immediate data that came with it; its header into `head`.
    /// `None` says nothing: [`ViEndpoint::receive`] knows.
    fn receive_lent(&mut self, head: &mut Inline) -> Option<(Option<u32>, LentSlice)> {
        let _ = head;
        None
    }

    /// The next end of a [`PostedBuffer::Caller`]: its number (nobody reads its buffer any more, nor writes one that was read
    /// into), and what became of the message. Also after [`ViEndpoint::leave`]. Buffers that the endpoint holds itself are given
    /// back to their arena by the way. An endpoint that offers reliable reception tells all [`TransferStatus`]s; others only
    /// [`TransferStatus::Arrived`] and [`TransferStatus::Lost`], and of reads what [`ViEndpoint::rdma_read`] says. Everything ends when the
    /// connection does, or when the peer is done with it thereafter. The send queue's notifier is told as of room
    /// ([`ViEndpoint::request_send_notify`]).
    fn poll_completion(&mut self) -> Option<(u64, TransferStatus)>;

    /// The receipt for the arrival that [`ViEndpoint::receive`] gave last, if its sender waits for one and the arrival is
    /// not [`Body::Lent`] (which is its own receipt). Dropped, it says that the message is in place;
    /// [`Lent::refuse`] says that it found none.
    fn receipt(&mut self) -> Option<Lent> {
        None
    }

    /// Keeps `owner` in the place of the caller, who no longer wants to be told of `number`, until the receiver is
    /// done with the buffer.
    ///
    /// # Errors
    /// The owner comes back when no such buffer is out.
    fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner>;

    /// Asks that the send queue's notifier be told when there is room again, or a buffer came back. Call it
    /// before the last look.
    fn request_send_notify(&mut self);

    /// Tells of the connection at any time and from any thread; after [`ViEndpoint::leave`], too, until all that the peer holds has
    /// come back. `None` if this transport does not know.
    fn link_report(&self) -> Option<Weak<dyn LinkReport>> {
        None
    }

    /// How many messages the peer has not taken yet, at this moment: it need not do anything for that. The notifier is not
    /// told of each; who waits asks again now and then.
    ///
    /// # Errors
    /// As for sending, when some are unread and never will be read.
    fn unread(&mut self) -> Result<u32, Refused>;

    /// Ends the connection; the peer reads what was sent, then learns it. With `broken`, the peer learns that it
    /// ended by that error.
    fn close(&mut self, broken: Option<&str>);

    /// Closes, and lets go of everything but the buffers that the peer still reads: the receive queue's notifier no
    /// longer names this endpoint; the send queue's does, as if by [`ViEndpoint::request_send_notify`], when one of them comes back, until
    /// the endpoint is dropped. Only [`ViEndpoint::poll_completion`] and [`ViEndpoint::keep`] are called from now on.
    fn leave(&mut self);
}

/// Who keeps a buffer that was posted until that is over.
#[derive(Debug)]
pub enum PostedBuffer {
    /// The endpoint: it recycles the block. Nobody is told.
    Block(Block),
    /// The caller, who is told this number.
    Caller(u64),
    /// The endpoint, in the place of a caller that is gone ([`ViEndpoint::keep`]).
    Owner(Owner),
}

impl PostedBuffer {
    /// Bytes of the block that it keeps from its arena, also if others keep it too; none where a caller does.
    pub fn bytes(&self) -> usize {
        match self {
            PostedBuffer::Block(block) => block.capacity(),
            PostedBuffer::Owner(owner) => owner.downcast_ref::<SharedBytes>().map_or(0, SharedBytes::kept),
            PostedBuffer::Caller(_) => 0,
        }
    }
}

/// What a connection tells of itself to those who do not work with it. A call may be slow.
pub trait LinkReport: Send + Sync {
    /// Bytes of the outbox that the peer holds: that were sent in place and have not come back ([`PostedBuffer::bytes`]). Error
    /// messages use it to say where the memory is.
    fn lent(&self) -> usize;

    /// What was sent again because the network has lost it; `None` if nothing below can tell, or nothing can be lost.
    fn retransmissions(&self) -> Option<Retransmissions> {
        None
    }
}

/// Packets of a connection that were sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retransmissions {
    /// VIs that share a connection of the network, as over UDP, have the same number here.
    pub connection: u64,
    /// How many they are since it was made.
    pub packets: u64,
}

/// Whatever keeps a lent buffer alive.
pub type Owner = Box<dyn Any + Send>;

/// What became of a message whose buffer is the caller's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferStatus {
    /// The receiver has it, or what was read is in place. (Below reliable reception, of what was sent or written: nobody
    /// reads the buffer any more, that is all.)
    Arrived,
    /// The receiver had no descriptor posted for it, or one too short.
    Refused,
    /// The receiver does not allow RDMA to that place (where only the receiver can tell).
    Protection,
    /// The receiver closed the connection before it took the message, or answered the read.
    Unread,
    /// The connection was lost.
    Lost,
}

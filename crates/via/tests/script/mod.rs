//! A device that records its calls, and answers as it was told. The unit tests of `udeck-via` and of `udeck-faults` share it.

#![allow(unsafe_code, reason = "a device for tests implements the transport contract")]

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use udeck_sys::Deadline;
use udeck_via::mem::{Arena, Backing, Lender, Lent, MemHandle, Ptag, RemoteBuffer, Rights};
use udeck_via::transport::{
    Arrival, Body, Connected, Device, Hello, Incoming, Inline, Notifier, OnRequest, Owner, PostedBuffer,
    Queue, Queues, Ready, Refused, Registration, TransferStatus, ViEndpoint, Waiter,
};
use udeck_via::{Caps, NetAddress, NicAttributes, Reliability};
use udeck_via::{Error, Rejection, Result};

/// Recorded calls, in order.
pub type Calls = Arc<Mutex<Vec<String>>>;

/// Answers of the device's parts, and their recorded calls.
#[derive(Clone, Default)]
pub struct Script {
    pub calls: Calls,
    pub arrivals: Arc<Mutex<VecDeque<Arrival>>>,
    pub ended: Arc<Mutex<VecDeque<(u64, TransferStatus)>>>,
    pub news: Arc<Mutex<VecDeque<Ready>>>,
    /// Why the next requests, made or come, lead to no connection.
    pub refusals: Arc<Mutex<VecDeque<Error>>>,
    /// Number of lent messages that were given back.
    pub home: Arc<AtomicU64>,
}

impl Script {
    pub fn device(&self) -> Arc<ScriptedDevice> {
        let mut attributes = NicAttributes::new("scripted");
        attributes.address = vec![9];
        attributes.caps = Caps::RELIABLE_DELIVERY;
        attributes.max_inline = Inline::CAPACITY;
        attributes.max_discriminator = 64;
        attributes.max_cq_entries = 8;
        Arc::new(ScriptedDevice {
            script: self.clone(),
            attributes,
            outbox: arena(),
            landing: arena(),
            listener: Mutex::default(),
        })
    }

    pub fn arrives_inline(&self, bytes: &[u8]) {
        let body = Body::Inline(Inline::gather(bytes, &[]));
        self.arrivals.lock().push_back(Arrival { immediate: None, body });
    }

    pub fn arrives_lent(&self, bytes: &'static [u8]) {
        let body = Body::Lent(Inline::gather(b"head", &[]), self.lent(bytes));
        self.arrivals.lock().push_back(Arrival { immediate: Some(7), body });
    }

    fn lent(&self, bytes: &'static [u8]) -> Lent {
        // SAFETY: the bytes live for ever, and nobody can write them.
        unsafe {
            Lent::new(&[(NonNull::from(bytes).cast(), bytes.len())], Arc::new(Home(self.home.clone())), 3)
        }
    }

    fn asked(&self, what: impl Into<String>) {
        self.calls.lock().push(what.into());
    }

    pub fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock())
    }
}

/// An arena's memory: lines of 64 bytes.
struct Heap(Vec<[u64; 8]>);

// SAFETY: heap memory of its own, zeroed; 8-byte alignment is enough for what these tests do.
unsafe impl Backing for Heap {
    fn base(&self) -> NonNull<u8> {
        NonNull::from(&self.0[..]).cast()
    }
    fn len(&self) -> usize {
        size_of_val(&self.0[..])
    }
    fn commit(&self, _: usize, _: usize) -> io::Result<()> {
        Ok(())
    }
}

fn arena() -> Arc<Arena> {
    Arc::new(Arena::new("test", "free something", false, Box::new(Heap(vec![[0; 8]; 64]))))
}

struct Home(Arc<AtomicU64>);

impl Lender for Home {
    fn give_back(&self, _: u16) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

pub fn hello(reliability: Reliability) -> Hello {
    Hello { reliability, writable_ptag: Some(Ptag(4)), readable_ptag: None, private_data: vec![1, 2] }
}

pub struct ScriptedDevice {
    script: Script,
    attributes: NicAttributes,
    outbox: Arc<Arena>,
    landing: Arc<Arena>,
    listener: Mutex<Option<OnRequest>>,
}

impl ScriptedDevice {
    /// Delivers a connection request.
    pub fn request(&self) {
        let incoming = ScriptedIncoming { script: self.script.clone(), hello: hello(Reliability::Delivery) };
        (self.listener.lock().as_mut().expect("somebody listens"))(Box::new(incoming));
    }
}

impl std::fmt::Debug for ScriptedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ScriptedDevice")
    }
}

// SAFETY: no peer reaches its arenas, and these stay the same.
unsafe impl Device for ScriptedDevice {
    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }
    fn outbox(&self) -> &Arc<Arena> {
        &self.outbox
    }
    fn landing(&self) -> &Arc<Arena> {
        &self.landing
    }
    fn expose(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.script.asked(format!("expose {offset} {len} {ptag:?}"));
        Ok(MemHandle(1))
    }
    fn expose_for(&self, offset: u64, len: usize, ptag: Ptag, rights: Rights) -> Result<MemHandle> {
        self.script.asked(format!("expose_for {offset} {len} {ptag:?} {rights:?}"));
        Ok(MemHandle(2))
    }
    fn expose_outbox(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.script.asked(format!("expose_outbox {offset} {len} {ptag:?}"));
        Ok(MemHandle(3))
    }
    fn revoke(&self, handle: MemHandle, _: Deadline) -> Result {
        self.script.asked(format!("revoke {handle:?}"));
        Err(Error::Closed)
    }
    fn revoke_later(&self, handle: MemHandle, _: Owner) {
        self.script.asked(format!("revoke_later {handle:?}"));
    }
    fn register(&self, memory: NonNull<[u8]>) -> Result<Box<dyn Registration>> {
        self.script.asked(format!("register {} bytes", memory.len()));
        Err(Error::Closed)
    }
    fn count_copied(&self, bytes: usize) {
        self.script.asked(format!("count_copied {bytes}"));
    }
    fn waiter(&self) -> Result<Box<dyn Waiter>> {
        self.script.asked("waiter");
        Ok(Box::new(ScriptedWaiter { script: self.script.clone(), notifier: Arc::default() }))
    }
    fn listen(&self, discriminator: &[u8], on_request: OnRequest) -> Result {
        self.script.asked(format!("listen {discriminator:?}"));
        *self.listener.lock() = Some(on_request);
        Ok(())
    }
    fn unlisten(&self, discriminator: &[u8]) {
        self.script.asked(format!("unlisten {discriminator:?}"));
        *self.listener.lock() = None;
    }
    fn connect(
        &self,
        to: &NetAddress,
        peer: Option<u32>,
        own: &Hello,
        queues: Queues<'_>,
        _: Deadline,
    ) -> Result<Connected> {
        self.script.asked(format!("connect {to:?} {peer:?} {own:?} {}", described(queues)));
        match self.script.refusals.lock().pop_front() {
            Some(error) => Err(error),
            None => Ok((Box::new(ScriptedEndpoint(self.script.clone())), hello(own.reliability))),
        }
    }
    fn reclaim(&self) {
        self.script.asked("reclaim");
    }
    fn reclaim_recent(&self) {
        self.script.asked("reclaim_recent");
    }
    fn bytes_copied(&self) -> u64 {
        self.script.asked("bytes_copied");
        77
    }
    fn messages_dropped(&self) -> u64 {
        self.script.asked("messages_dropped");
        78
    }
}

/// Describes the queues. Transports downcast to their own notifiers, so the notifiers have to be these.
fn described(queues: Queues<'_>) -> String {
    let own = |notifier: &Arc<dyn Notifier>| notifier.clone().into_any().is::<ScriptedNotifier>();
    format!("{} {} {}", own(queues.send), own(queues.receive), queues.context)
}

struct ScriptedIncoming {
    script: Script,
    hello: Hello,
}

impl Incoming for ScriptedIncoming {
    fn hello(&self) -> &Hello {
        &self.hello
    }
    fn peer(&self) -> Option<u32> {
        self.script.asked("peer");
        Some(5)
    }
    fn accept(self: Box<Self>, hello: &Hello, queues: Queues<'_>) -> Result<Box<dyn ViEndpoint>> {
        self.script.asked(format!("accept {hello:?} {}", described(queues)));
        match self.script.refusals.lock().pop_front() {
            Some(error) => Err(error),
            None => Ok(Box::new(ScriptedEndpoint(self.script.clone()))),
        }
    }
    fn reject(self: Box<Self>, rejection: Rejection) {
        self.script.asked(format!("reject {rejection:?}"));
    }
}

#[derive(Debug, Default)]
pub struct ScriptedNotifier(AtomicU64);

impl Notifier for ScriptedNotifier {
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Number of wake-ups of the waiter behind this notifier.
pub fn woken(notifier: &Arc<dyn Notifier>) -> u64 {
    let own = notifier.clone().into_any().downcast::<ScriptedNotifier>().expect("the inner one");
    own.0.load(Ordering::Relaxed)
}

struct ScriptedWaiter {
    script: Script,
    notifier: Arc<ScriptedNotifier>,
}

impl std::fmt::Debug for ScriptedWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ScriptedWaiter")
    }
}

impl Waiter for ScriptedWaiter {
    fn poll(&mut self) -> Option<Ready> {
        self.script.asked("poll");
        self.script.news.lock().pop_front()
    }
    fn park(&mut self, limit: Duration) {
        self.script.asked(format!("park {limit:?}"));
    }
    fn notifier(&self) -> Arc<dyn Notifier> {
        self.notifier.clone()
    }
}

pub fn ready(queue: Queue) -> Ready {
    Ready { context: 9, queue }
}

struct ScriptedEndpoint(Script);

impl std::fmt::Debug for ScriptedEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ScriptedEndpoint")
    }
}

// SAFETY: it touches no memory, and has no peer that would.
unsafe impl ViEndpoint for ScriptedEndpoint {
    fn send(&mut self, immediate: Option<u32>, head: &[u8], body: &[u8]) -> Result<(), Refused> {
        self.0.asked(format!("send {immediate:?} {head:?} {body:?}"));
        Ok(())
    }
    fn lend(
        &mut self,
        immediate: Option<u32>,
        head: &[u8],
        segments: &[(u64, usize)],
        held: PostedBuffer,
    ) -> Result<(), (Refused, PostedBuffer)> {
        self.0.asked(format!("lend {immediate:?} {head:?} {segments:?} {held:?}"));
        Ok(())
    }
    fn rdma_write(
        &mut self,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        self.0.asked(format!("rdma_write {segments:?} {to:?} {immediate:?} {held:?}"));
        match immediate {
            None => Err((Refused::Protection, held)),
            Some(_) => Ok(Some(TransferStatus::Unread)),
        }
    }
    fn rdma_read(
        &mut self,
        segments: &[(u64, usize)],
        from: RemoteBuffer,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        self.0.asked(format!("rdma_read {segments:?} {from:?} {held:?}"));
        Ok(None)
    }
    fn fence(&mut self) {
        self.0.asked("fence");
    }
    fn receive(&mut self) -> Result<Option<Arrival>, Refused> {
        self.0.asked("receive");
        Ok(self.0.arrivals.lock().pop_front())
    }
    fn poll_completion(&mut self) -> Option<(u64, TransferStatus)> {
        self.0.asked("ended");
        self.0.ended.lock().pop_front()
    }
    fn receipt(&mut self) -> Option<Lent> {
        self.0.asked("receipt");
        Some(self.0.lent(b""))
    }
    fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner> {
        self.0.asked(format!("keep {number}"));
        Err(owner)
    }
    fn request_send_notify(&mut self) {
        self.0.asked("request_send_notify");
    }
    fn unread(&mut self) -> Result<u32, Refused> {
        self.0.asked("unread");
        Ok(12)
    }
    fn close(&mut self, broken: Option<&str>) {
        self.0.asked(format!("close {broken:?}"));
    }
    fn leave(&mut self) {
        self.0.asked("leave");
    }
}

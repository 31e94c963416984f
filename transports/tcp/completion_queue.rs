//! Completion queues: each has a poller that watches the sockets of its links. Its owner sleeps in the poller. While
//! the owner neither polls nor sleeps there, the helper watches it.

use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use udeck_session::completion_queue::{self, Backend, Slot, Slots};
use udeck_session::poll::{Bell, EventFlags, Found, Poller};
use udeck_sys::atomic::{AtomicU32, AtomicU64, Ordering};
use udeck_via::transport::{Queue, Queues, Ready};
use udeck_via::{Error, Result};

use crate::core::{Core, TcpLink, Token};
use crate::socket::Socket;

pub type CompletionQueue = completion_queue::CompletionQueue<Sockets>;

/// Result of one pass over a completion queue's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// All readable sockets were read.
    All,
    /// More sockets may be readable.
    Some,
    /// Another thread was at work on a link, and its socket was left to that thread.
    Busy,
}

/// The sockets of one completion queue.
pub struct Sockets {
    core: Arc<Core>,
    /// Number of the completion queue.
    number: u64,
    /// Poller of the sockets, made with the first place: many completion queues never have one.
    poller: OnceLock<Arc<Poller>>,
    /// The owner's poll count when the helper was last asked to watch.
    polls_when_armed: AtomicU64,
    /// Number of receive queues that have a place here, which is the number of sockets.
    count: AtomicU32,
    /// Count of the receive queues' places that were given back.
    vacated: AtomicU32,
}

/// Takes places for a connection that the NIC of `core` is about to make. Afterwards all its descriptors exist,
/// except the socket's, so a shortage is found before the peer is told of the connection.
///
/// # Errors
/// The errors of [`Slots::take`], or an error of the kernel.
pub fn take_slots(core: &Arc<Core>, queues: &Queues<'_>) -> Result<Slots<Sockets>> {
    let slots = Slots::take(queues, |sockets: &Sockets| Arc::ptr_eq(&sockets.core, core))?;
    for slot in [&slots.send, &slots.receive] {
        slot.cq()
            .backend
            .poller()
            .map_err(|error| Error::os("making the poller of a completion queue", error))?;
    }
    Ok(slots)
}

/// Assigns the place to `link`: news at the place are its news from now on.
///
/// # Errors
/// The kernel's error: the socket cannot be watched.
pub fn occupy(
    slot: &Slot<Sockets>,
    ready: Ready,
    link: &Arc<TcpLink>,
    socket: &Arc<Socket>,
) -> io::Result<()> {
    let sockets = &slot.cq().backend;
    let poller = sockets.poller()?;
    sockets.count.fetch_add(u32::from(ready.queue == Queue::Receive), Ordering::Relaxed);
    slot.occupy(ready, link.clone(), Arc::downgrade(socket));
    socket.watch_by(poller)
}

/// Reads what a link's socket has, unless another thread is at it. Returns whether the link still exists.
pub fn serve_link(link: &TcpLink) -> bool {
    link.try_with(|connection, driver| driver.serve(connection)).unwrap_or(true)
}

impl Sockets {
    /// Makes an empty set of sockets for completion queue `number`.
    pub fn new(core: &Arc<Core>, number: u64) -> Self {
        Sockets {
            core: core.clone(),
            number,
            poller: OnceLock::new(),
            polls_when_armed: AtomicU64::new(0),
            count: AtomicU32::new(0),
            vacated: AtomicU32::new(0),
        }
    }

    /// Returns the poller. Makes it first if need be, and registers it with the helper.
    fn poller(&self) -> io::Result<&Arc<Poller>> {
        if let Some(poller) = self.poller.get() {
            return Ok(poller);
        }
        let poller = Arc::new(Poller::new()?);
        // If two threads get here at once, one of the pollers is dropped.
        if self.poller.set(poller.clone()).is_ok() {
            let events = EventFlags::IN | EventFlags::ONESHOT;
            self.core.control.add(&*poller, Token::CompletionQueue(self.number).encode(), events)?;
        }
        Ok(self.poller.get().expect("just set"))
    }

    /// Asks the helper to watch the sockets: it is woken once, by the next arrival or by one that is there already.
    /// `looks` is the owner's poll count.
    pub fn arm_helper(&self, looks: u64) {
        self.polls_when_armed.store(looks, Ordering::Relaxed);
        if let Some(poller) = self.poller.get() {
            let events = EventFlags::IN | EventFlags::ONESHOT;
            self.core.control.set(&**poller, Token::CompletionQueue(self.number).encode(), events);
        }
    }

    /// The owner's poll count when the helper was last asked to watch.
    pub fn polls_when_armed(&self) -> u64 {
        self.polls_when_armed.load(Ordering::Relaxed)
    }

    /// Reads the readable sockets, as many as one call of epoll names. Waits for up to `limit` until there is one.
    pub fn serve(&self, found: &mut Found, limit: Duration) -> Served {
        let Some(poller) = self.poller.get() else { return Served::All };
        poller.poll(found, limit);
        let mut served = if found.is_full() { Served::Some } else { Served::All };
        for token in found.tokens() {
            match Token::decode(token) {
                Token::Link(number) => {
                    if let Some(link) = self.core.link(number)
                        && link.try_with(|connection, driver| driver.serve(connection)).is_none()
                    {
                        served = Served::Busy;
                    }
                }
                Token::Bell | Token::Listener | Token::CompletionQueue(_) => {}
            }
        }
        served
    }

    /// Number of sockets.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Count of the sockets that have left so far.
    pub fn vacated(&self) -> u32 {
        self.vacated.load(Ordering::Relaxed)
    }
}

impl Backend for Sockets {
    type Link = TcpLink;
    type SlotData = Weak<Socket>;

    fn sleep(&self, bell: &Bell, limit: Duration) {
        match self.poller() {
            Ok(poller) => _ = bell.sleep(Some(&**poller), limit),
            // Without descriptors no event can wake the sleeper, so it sleeps for a short time only.
            Err(_) => std::thread::sleep(limit.min(Duration::from_millis(1))),
        }
    }

    fn vacated(&self, queue: Queue, _link: Arc<TcpLink>, socket: Weak<Socket>) {
        if queue == Queue::Send {
            return;
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.vacated.fetch_add(1, Ordering::Relaxed);
        // The program has left. The helper sends the remaining data and reads the peer's last frames.
        if let Some(socket) = socket.upgrade() {
            // If this fails, the socket stays with this poller, which the helper serves as well.
            let _ = socket.hand_to(&self.core.control);
        }
    }
}

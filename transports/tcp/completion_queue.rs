//! Completion queues: each has a poller that watches the sockets of its links. Its owner sleeps in it; while that
//! neither polls nor sleeps there, the helper watches it.

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

/// What became of a look at a completion queue's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// All that had something were read.
    All,
    /// There may be more that have something.
    Some,
    /// Somebody else was at work on one, and it was left to them.
    NotAlone,
}

/// The sockets of one completion queue.
pub struct Sockets {
    core: Arc<Core>,
    /// The completion queue's.
    number: u64,
    /// Made with the first place: many completion queues never have one.
    poller: OnceLock<Arc<Poller>>,
    /// The owner's looks when the helper was asked last.
    looks_when_asked: AtomicU64,
    /// Receive queues that have a place: so many sockets.
    count: AtomicU32,
    /// Grows when a receive queue's place is given back.
    vacated: AtomicU32,
}

/// Takes places for a connection that is to be made by the NIC of `core`. All descriptors that it needs beside its socket are there
/// afterwards: a want of them is found before the peer is told of the connection.
///
/// # Errors
/// As [`Slots::take`]; the kernel's.
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

/// From now on, what is announced at this place is of this link.
///
/// # Errors
/// The kernel's: its socket cannot be watched.
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

/// Reads what a link's socket has, unless somebody is at it.
pub fn serve_link(link: &TcpLink) -> bool {
    link.try_with(|connection, driver| driver.serve(connection)).unwrap_or(true)
}

impl Sockets {
    /// None yet, of the completion queue of this number.
    pub fn new(core: &Arc<Core>, number: u64) -> Self {
        Sockets {
            core: core.clone(),
            number,
            poller: OnceLock::new(),
            looks_when_asked: AtomicU64::new(0),
            count: AtomicU32::new(0),
            vacated: AtomicU32::new(0),
        }
    }

    /// The poller, made if need be and shown to the helper.
    fn poller(&self) -> io::Result<&Arc<Poller>> {
        if let Some(poller) = self.poller.get() {
            return Ok(poller);
        }
        let poller = Arc::new(Poller::new()?);
        // Of two threads that get here at once, one's is dropped.
        if self.poller.set(poller.clone()).is_ok() {
            let events = EventFlags::IN | EventFlags::ONESHOT;
            self.core.control.add(&*poller, Token::CompletionQueue(self.number).encode(), events)?;
        }
        Ok(self.poller.get().expect("just set"))
    }

    /// The helper is told, once, when something lies in one of them, or lies there already. `looks`: the owner's so far.
    pub fn ask_helper(&self, looks: u64) {
        self.looks_when_asked.store(looks, Ordering::Relaxed);
        if let Some(poller) = self.poller.get() {
            let events = EventFlags::IN | EventFlags::ONESHOT;
            self.core.control.set(&**poller, Token::CompletionQueue(self.number).encode(), events);
        }
    }

    /// The owner's looks when the helper was asked last.
    pub fn looks_when_asked(&self) -> u64 {
        self.looks_when_asked.load(Ordering::Relaxed)
    }

    /// Reads what has come on sockets that have something, as many as one look names; waits for up to `limit` until there
    /// is one.
    pub fn serve(&self, found: &mut Found, limit: Duration) -> Served {
        let Some(poller) = self.poller.get() else { return Served::All };
        poller.look(found, limit);
        let mut served = if found.is_full() { Served::Some } else { Served::All };
        for token in found.tokens() {
            match Token::decode(token) {
                Token::Link(number) => {
                    if let Some(link) = self.core.link(number)
                        && link.try_with(|connection, driver| driver.serve(connection)).is_none()
                    {
                        served = Served::NotAlone;
                    }
                }
                Token::Bell | Token::Listener | Token::CompletionQueue(_) => {}
            }
        }
        served
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// How many have left so far.
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
            // Without descriptors there is nothing to be woken by: not for long.
            Err(_) => std::thread::sleep(limit.min(Duration::from_millis(1))),
        }
    }

    fn vacated(&self, queue: Queue, _link: Arc<TcpLink>, socket: Weak<Socket>) {
        if queue == Queue::Send {
            return;
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.vacated.fetch_add(1, Ordering::Relaxed);
        // The program has left. What is still to be sent, and the peer's last words, are the helper's.
        if let Some(socket) = socket.upgrade() {
            // Otherwise it stays with this poller, which the helper serves as well.
            let _ = socket.hand_to(&self.core.control);
        }
    }
}

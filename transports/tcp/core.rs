//! Shared state of a NIC's objects: its links, its completion queues, its listeners. It lives as long as any of them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use udeck_session::admission::{Admission, Admitted, MAX_DISCRIMINATOR, Protocol};
use udeck_session::completion_queue::{CompletionQueues, Slots};
use udeck_session::framed::wire;
use udeck_session::poll::{Bell, EventFlags, Poller};
use udeck_session::{
    Connection, Link, Listeners, Memory, Ordered, SendOrder, SessionEndpoint, Settings, Side, Watch, Windows,
};
use udeck_sys::thread;
use udeck_via::transport::{Connected, Hello, Queue, Queues, Ready};
use udeck_via::{Error, Result};

use crate::completion_queue::{Sockets, occupy};
use crate::driver::TcpDriver;
use crate::send_blocked::SendBlocked;
use crate::socket::Socket;

/// A VI's connection.
pub type TcpLink = Link<TcpDriver>;

/// Protocol that admission checks at both ends of a connection.
pub const PROTOCOL: Protocol = Protocol::new("tcp", wire::VERSION);
/// Kind and number of a descriptor in a poller, encoded as its token: the upper byte is the kind, the rest is the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    Bell,
    Listener,
    CompletionQueue(u64),
    Link(u64),
}

const KIND: u32 = 56;

impl Token {
    pub fn encode(self) -> u64 {
        let (kind, number) = match self {
            Token::Bell => (0, 0),
            Token::Listener => (1, 0),
            Token::CompletionQueue(number) => (2, number),
            Token::Link(number) => (3, number),
        };
        kind << KIND | number
    }

    /// Decodes a token that [`Token::encode`] made. Tokens come from the kernel only.
    pub fn decode(token: u64) -> Token {
        let number = token & ((1 << KIND) - 1);
        match token >> KIND {
            0 => Token::Bell,
            1 => Token::Listener,
            2 => Token::CompletionQueue(number),
            _ => Token::Link(number),
        }
    }
}

/// Shared state of a NIC's objects.
pub struct Core {
    pub admission: Admission,
    pub memory: Memory,
    pub windows: Arc<Windows>,
    pub max_transfer: usize,
    /// Poller in which the helper sleeps.
    pub control: Arc<Poller>,
    bell: Bell,
    next: AtomicU64,
    links: Mutex<HashMap<u64, Arc<TcpLink>>>,
    pub send_blocked: SendBlocked,
    /// Send order of the service levels; `None` where levels have no shares.
    pub send_order: Option<SendOrder<Socket>>,
    pub completion_queues: CompletionQueues<Sockets>,
    pub listeners: Listeners,
    /// The NIC is closed: remaining data are sent, then the links are forgotten.
    closing: AtomicBool,
    /// Send counter over all links; it may miss concurrent sends.
    sends: AtomicU32,
}

impl Core {
    /// # Errors
    /// The kernel's error: no descriptors left.
    pub fn new(
        admission: Admission,
        memory: Memory,
        max_transfer: usize,
        send_order: Option<SendOrder<Socket>>,
    ) -> io::Result<Arc<Self>> {
        let control = Arc::new(Poller::new()?);
        let bell = Bell::new()?;
        control.add(&bell, Token::Bell.encode(), EventFlags::IN)?;
        Ok(Arc::new(Core {
            admission,
            memory,
            windows: Windows::new(),
            max_transfer,
            control,
            bell,
            next: AtomicU64::new(0),
            links: Mutex::default(),
            send_blocked: SendBlocked::default(),
            send_order,
            completion_queues: CompletionQueues::default(),
            listeners: Listeners::new(MAX_DISCRIMINATOR),
            closing: AtomicBool::new(false),
            sends: AtomicU32::new(0),
        }))
    }

    /// Returns a number that is unique within this NIC.
    pub fn fresh(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub fn link(&self, number: u64) -> Option<Arc<TcpLink>> {
        self.links.lock().get(&number).cloned()
    }

    pub fn links(&self) -> Vec<Arc<TcpLink>> {
        self.links.lock().values().cloned().collect()
    }

    pub fn has_links(&self) -> bool {
        !self.links.lock().is_empty()
    }

    /// Forgets a link that is over. The caller holds the link's lock, and a reference to the link.
    pub fn forget_link(&self, number: u64) {
        if let Some(order) = &self.send_order {
            order.remove(number);
        }
        let link = self.links.lock().remove(&number);
        drop(link); // never the last reference; outside the lock all the same
        self.end_order();
    }

    /// Stops the thread of the send order once no link will send any more.
    fn end_order(&self) {
        if let Some(order) = self.send_order.as_ref().filter(|_| self.is_closing() && !self.has_links()) {
            order.stop();
        }
    }

    /// Counts a send. (One of two concurrent sends may not be counted, but the counter changes all the same.)
    #[inline]
    pub fn note_send(&self) {
        self.sends.store(self.sends.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The send counter: a changed value means that a link has sent since.
    #[inline]
    pub fn sends(&self) -> u32 {
        self.sends.load(Ordering::Relaxed)
    }

    /// Closes the NIC: its last object is gone.
    pub fn shut(&self) {
        self.closing.store(true, Ordering::Release);
        self.listeners.clear();
        self.end_order();
        self.rouse();
    }

    /// Fails all links and listeners: the helper has panicked.
    pub fn fail(&self, thread: &str, why: &str) {
        let why = self.listeners.fail(thread, why);
        for link in self.links() {
            thread::attempt(|| link.with(|connection, driver| driver.fail(connection, &why)));
        }
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Wakes the helper.
    pub fn rouse(&self) {
        self.bell.ring();
    }

    pub fn reset_bell(&self) {
        self.bell.reset();
    }

    /// Makes an endpoint from a finished admission and the places of its two queues. Returns the peer's `Hello`, too.
    ///
    /// # Errors
    /// The kernel's error: no descriptors left.
    pub fn establish(
        self: &Arc<Self>,
        admitted: Admitted,
        ours: &Hello,
        side: Side,
        slots: Slots<Sockets>,
        queues: &Queues<'_>,
    ) -> Result<Connected> {
        let Admitted { socket, peer, theirs, .. } = admitted;
        let number = self.fresh();
        let socket = Arc::new(Socket::new(socket, Token::Link(number).encode()));
        let connection = Connection::new(Settings {
            memory: &self.memory,
            windows: &self.windows,
            ours,
            theirs: &theirs,
            side,
            max_transfer: self.max_transfer,
        });
        let driver = TcpDriver::new(self.clone(), number, socket.clone(), peer);
        let link = Link::new(connection, driver);
        if let Some(order) = &self.send_order {
            order.add(number, queues.level, &socket);
        }
        self.links.lock().insert(number, link.clone());
        // Links that are made later are told by `fail`.
        if let Some(why) = self.listeners.failure() {
            link.with(|connection, driver| driver.fail(connection, why));
        }
        let Slots { send, receive } = slots;
        let context = queues.context;
        let taken = occupy(&send, Ready { context, queue: Queue::Send }, &link, &socket)
            .and_then(|()| occupy(&receive, Ready { context, queue: Queue::Receive }, &link, &socket));
        if let Err(error) = taken {
            self.forget_link(number);
            return Err(Error::os("watching a new connection", error));
        }
        let (send, receive, reporter) = (Arc::new(send), Arc::new(receive), queues.reporter.clone());
        Ok((Box::new(SessionEndpoint::new(link, Watch { send, receive, reporter })), theirs))
    }
}

impl Ordered for Core {
    type Buffer = Socket;

    fn send_order(&self) -> Option<&SendOrder<Socket>> {
        self.send_order.as_ref()
    }

    fn take_turn(&self, link: u64, bytes: usize) {
        if let Some(link) = self.link(link) {
            link.with(|connection, driver| driver.take_turn(connection, bytes));
        }
    }

    fn fail(self: &Arc<Self>, thread: &str, why: &str) {
        Core::fail(self, thread, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip() {
        let most = (1 << KIND) - 1;
        for token in [Token::Bell, Token::Listener, Token::CompletionQueue(7), Token::Link(most)] {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}

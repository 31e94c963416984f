//! A connection and its driver behind one lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use udeck_via::transport::{LinkReport, Queue, Retransmissions, TransferStatus};

use crate::framed::connection::Connection;
use crate::memory::Acknowledge;
use crate::watching::Watching;

/// Mover of a connection's streams. It lies under the connection's lock.
pub trait Driver: Send + 'static {
    /// Sends what can be sent without waiting: frames were queued. The driver sends the rest later by itself.
    fn pump(&mut self, connection: &mut Connection);

    /// Takes in what has come, without waiting: the program polls for something that is not there. (A program may poll a VI
    /// by itself, in a loop, and never a completion queue. A driver whose waiter polled a moment ago may do nothing.)
    fn poll(&mut self, connection: &mut Connection);

    /// Takes in what has come, also bytes that another thread has in hand: the program closes the connection. May wait for
    /// that thread, for a moment.
    fn drain_before_close(&mut self, connection: &mut Connection) {
        self.poll(connection);
    }

    /// Retransmissions so far, if the network below counts them.
    fn retransmissions(&mut self) -> Option<Retransmissions> {
        None
    }

    /// Whether everything that was posted reaches the peer without this process, as far as is known after a poll; or never will.
    fn is_done(&mut self, connection: &mut Connection) -> bool;
}

/// A connection and its driver. Its lock is taken by each thread that works on them: the program's posts, the thread that
/// polls, the driver's helper.
pub struct Link<D> {
    shared: Mutex<Shared<D>>,
    arrivals: AtomicBool,
}

struct Shared<D> {
    connection: Connection,
    driver: D,
    watching: Watching,
}

impl<D: Driver> Link<D> {
    /// Puts both behind a lock.
    pub fn new(connection: Connection, driver: D) -> Arc<Self> {
        let shared = Shared { connection, driver, watching: Watching::default() };
        Arc::new(Link { shared: Mutex::new(shared), arrivals: AtomicBool::new(false) })
    }

    /// Works on both under the lock, then lets the driver pump if frames were queued, unlocks, and announces the news. Do not
    /// call it from inside itself; nothing that `work` drops may, either (dropping a [`udeck_via::mem::Lent`] does).
    pub fn with<R>(&self, work: impl FnOnce(&mut Connection, &mut D) -> R) -> R {
        let mut shared = self.shared.lock();
        let Shared { connection, driver, .. } = &mut *shared;
        let result = work(connection, driver);
        self.finish(shared);
        result
    }

    /// The same as [`Link::with`], unless another thread holds the lock: then `None`.
    pub fn try_with<R>(&self, work: impl FnOnce(&mut Connection, &mut D) -> R) -> Option<R> {
        let mut shared = self.shared.try_lock()?;
        let Shared { connection, driver, .. } = &mut *shared;
        let result = work(connection, driver);
        self.finish(shared);
        Some(result)
    }

    /// The same as [`Link::try_with`], for the owner of the receive queue's completion queue, while it polls. The result says
    /// whether something arrived, so that the owner need not find its own announcement. Other news is announced.
    #[inline]
    pub fn try_with_owner<R>(&self, work: impl FnOnce(&mut Connection, &mut D) -> R) -> Option<(R, bool)> {
        let mut shared = self.shared.try_lock()?;
        let Shared { connection, driver, .. } = &mut *shared;
        let result = work(connection, driver);
        if connection.has_nothing_yet() {
            connection.on_idle();
        }
        self.flush(&mut shared);
        let arrived = shared.connection.takes_arrivals();
        self.announce(shared);
        Some((result, arrived))
    }

    /// Whether something is there for the program to receive. Read without the lock, so it may be outdated already.
    pub fn has_arrivals(&self) -> bool {
        self.arrivals.load(Ordering::Acquire)
    }
}

impl<D: Driver> Link<D> {
    /// Announces to `watching` from now on; earlier news is announced once.
    pub(crate) fn attach(&self, watching: Watching) {
        let mut shared = self.shared.lock();
        shared.connection.renotify();
        shared.watching = watching;
        self.finish(shared);
    }

    /// Stops announcements for this queue.
    pub(crate) fn detach(&self, queue: Queue) {
        let mut shared = self.shared.lock();
        let former = shared.watching.detach(queue);
        drop(shared);
        drop(former);
    }

    #[inline]
    fn finish(&self, mut shared: MutexGuard<'_, Shared<D>>) {
        self.flush(&mut shared);
        self.announce(shared);
    }

    /// Sends queued frames, and notes whether something is there to receive.
    #[inline]
    fn flush(&self, shared: &mut Shared<D>) {
        let Shared { connection, driver, .. } = shared;
        // Sending may make room for another frame.
        while connection.take_fresh() {
            driver.pump(connection);
        }
        let has_arrivals = connection.has_arrivals();
        // Written under the lock only, and read on other cores.
        if self.arrivals.load(Ordering::Relaxed) != has_arrivals {
            self.arrivals.store(has_arrivals, Ordering::Release);
        }
    }

    /// Unlocks, and announces the news.
    #[inline]
    fn announce(&self, shared: MutexGuard<'_, Shared<D>>) {
        if shared.connection.has_events() {
            self.announce_events(shared);
        }
    }

    fn announce_events(&self, mut shared: MutexGuard<'_, Shared<D>>) {
        let Shared { connection, watching, .. } = &mut *shared;
        let events = connection.take_events();
        if !events.is_any() {
            return;
        }
        let [send, receive] = watching.report(&events);
        drop(shared);
        if let Some(send) = send {
            send.announce();
        }
        if let Some(receive) = receive {
            receive.announce();
        }
        drop(events);
    }
}

impl<D: Driver> LinkReport for Link<D> {
    fn lent(&self) -> usize {
        self.shared.lock().connection.lent_bytes()
    }

    fn retransmissions(&self) -> Option<Retransmissions> {
        self.shared.lock().driver.retransmissions()
    }
}

impl<D: Driver> Acknowledge for Link<D> {
    fn acknowledge(&self, number: u32, status: TransferStatus) {
        self.with(|connection, _| connection.acknowledge(number, status));
    }
}

impl<D> fmt::Debug for Link<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shared.try_lock() {
            Some(shared) => write!(f, "Link({:?})", shared.connection),
            None => f.write_str("Link(locked)"),
        }
    }
}

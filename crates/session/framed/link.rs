//! A connection and its driver behind one lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use udeck_via::transport::{LinkReport, Queue, Retransmissions, TransferStatus};

use crate::framed::connection::Connection;
use crate::memory::Acknowledge;
use crate::watching::Watching;

/// What moves a connection's streams. It lies under the connection's lock.
pub trait Driver: Send + 'static {
    /// Frames were queued: send what can be sent without waiting. What cannot be, the driver sends later by itself.
    fn pump(&mut self, connection: &mut Connection);

    /// The program looks for something that is not there: take in what has come, without waiting. (A program may look at
    /// a VI by itself, in a loop, and never at a completion queue. A driver that knows that its waiter looked a moment
    /// ago may do nothing.)
    fn look(&mut self, connection: &mut Connection);

    /// The program closes the connection: take in what has come, also what another thread has in hand. May wait for that
    /// thread, for a moment.
    fn look_last(&mut self, connection: &mut Connection) {
        self.look(connection);
    }

    /// What was sent again, if the network below tells.
    fn retransmissions(&mut self) -> Option<Retransmissions> {
        None
    }

    /// Whether all that was posted comes to the peer without this process, as far as is known after a look; or never will.
    fn is_done(&mut self, connection: &mut Connection) -> bool;
}

/// A connection and its driver. Locked by whoever works on them: the program's posts, the thread that polls, the
/// driver's helper.
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
    /// Both behind a lock.
    pub fn new(connection: Connection, driver: D) -> Arc<Self> {
        let shared = Shared { connection, driver, watching: Watching::default() };
        Arc::new(Link { shared: Mutex::new(shared), arrivals: AtomicBool::new(false) })
    }

    /// Works on both under the lock, then lets the driver pump if frames were queued, unlocks, and announces what there
    /// is. Do not call it from inside itself; nothing that `work` drops may (a [`udeck_via::mem::Lent`] does).
    pub fn with<R>(&self, work: impl FnOnce(&mut Connection, &mut D) -> R) -> R {
        let mut shared = self.shared.lock();
        let Shared { connection, driver, .. } = &mut *shared;
        let result = work(connection, driver);
        self.finish(shared);
        result
    }

    /// As [`Link::with`], unless somebody else is at it.
    pub fn try_with<R>(&self, work: impl FnOnce(&mut Connection, &mut D) -> R) -> Option<R> {
        let mut shared = self.shared.try_lock()?;
        let Shared { connection, driver, .. } = &mut *shared;
        let result = work(connection, driver);
        self.finish(shared);
        Some(result)
    }

    /// As [`Link::try_with`], by the owner of the completion queue that the receive queue is on, while it looks: of arrivals
    /// it is told by the result alone, so that it need not find its own announcement. Everything else is announced.
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

    /// Whether something lies there for the program to receive. Without the lock: what it says may be over already.
    pub fn has_arrivals(&self) -> bool {
        self.arrivals.load(Ordering::Acquire)
    }
}

impl<D: Driver> Link<D> {
    /// The program's queues report to `watch` from now on; what came before is announced once.
    pub(crate) fn attach(&self, watching: Watching) {
        let mut shared = self.shared.lock();
        shared.connection.tell_again();
        shared.watching = watching;
        self.finish(shared);
    }

    /// This queue reports to nobody any more.
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

    /// Sends what was queued, and notes whether something lies there.
    #[inline]
    fn flush(&self, shared: &mut Shared<D>) {
        let Shared { connection, driver, .. } = shared;
        // Sending may make room for another frame.
        while connection.take_fresh() {
            driver.pump(connection);
        }
        let has_arrivals = connection.has_arrivals();
        // Written under the lock only, and read at other cores.
        if self.arrivals.load(Ordering::Relaxed) != has_arrivals {
            self.arrivals.store(has_arrivals, Ordering::Release);
        }
    }

    /// Unlocks, and announces what there is.
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

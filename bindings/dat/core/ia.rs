//! An opened interface adapter.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use udeck::names::Listeners;
use udeck::names::address::Host;
use udeck::via::{AtomicSpinHistory, Caps, Deadline, Nic, Ptag};
use udeck_rdma::{MoveOn, Progress};

use super::code::{Code, Result, Sub};
use super::evd::Evd;
use super::event::Event;
use super::qos::Qos;

pub use super::wire::MAX_PRIVATE;

pub struct Ia {
    /// The adapter's handle, set once it is in its slot.
    pub handle: OnceLock<usize>,
    /// Address of the provider's table of calls: the first word that handles point to.
    pub provider: usize,
    /// The adapter's name in dat.conf.
    pub name: String,
    /// Name of the transport's NIC.
    pub device: &'static str,
    pub nic: Nic,
    pub ptag: Ptag,
    pub names: Arc<dyn Listeners>,
    pub address: Host,
    pub progress: Arc<Progress>,
    /// The dispatcher of asynchronous events, and whether the adapter has made it itself.
    pub asynchronous: OnceLock<(Arc<Evd>, bool)>,
    /// Locked while the end of an end point with a shared receive queue is reported.
    pub ends: Mutex<()>,
    /// Handles of the program's objects.
    pub objects: Mutex<HashSet<usize>>,
    /// Number of the next port.
    ports: AtomicU64,
}

impl Ia {
    pub fn new(
        provider: usize,
        name: String,
        device: &'static str,
        nic: Nic,
        names: Arc<dyn Listeners>,
        move_on: MoveOn,
    ) -> udeck::via::Result<Arc<Ia>> {
        let progress = Arc::new(Progress::new(&nic, "dat-engine", move_on)?);
        Ok(Arc::new(Ia {
            handle: OnceLock::new(),
            provider,
            name,
            device,
            ptag: nic.ptag(),
            address: names.address(),
            nic,
            names,
            progress,
            asynchronous: OnceLock::new(),
            ends: Mutex::default(),
            objects: Mutex::default(),
            ports: AtomicU64::new(1),
        }))
    }

    pub fn handle(&self) -> usize {
        self.handle.get().copied().unwrap_or_default()
    }

    pub fn max_transfer(&self) -> usize {
        udeck_rdma::max_transfer(&self.nic)
    }

    /// Returns the quality of a connection that asks for this one.
    pub fn quality(&self, asked: Qos) -> Qos {
        if self.nic.caps().has(Caps::SERVICE_LEVELS) { asked } else { Qos::BestEffort }
    }

    /// The dispatcher of asynchronous events.
    pub fn asynchronous(&self) -> Weak<Evd> {
        self.asynchronous.get().map(|(evd, _)| Arc::downgrade(evd)).unwrap_or_default()
    }

    /// Forgets an object of the program's. Call it before the object's slot is free, which may soon be another object's.
    pub fn forget(&self, handle: usize) {
        self.objects.lock().remove(&handle);
    }

    /// Makes a number for one end of a connection.
    pub fn port(&self) -> u64 {
        super::wire::port(self.ports.fetch_add(1, Ordering::Relaxed))
    }

    // ---- progress ----

    /// Polls until `poll` returns something, at most until the deadline. `poll` gets whether it is the last call before a sleep: then it has to look
    /// under a lock.
    pub fn wait<T>(
        &self,
        history: &AtomicSpinHistory,
        deadline: Deadline,
        mut poll: impl FnMut(bool) -> Option<T>,
    ) -> Option<T> {
        self.progress.wait(history, deadline, |is_last| {
            let found = poll(is_last);
            if found.is_some() || is_last {
                return found;
            }
            self.progress.poll();
            poll(false)
        })
    }

    /// Waits until a dispatcher has so many events, and takes the oldest. `None`: the deadline has passed, or the
    /// adapter has closed.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE`: the dispatcher's notification object is told of each event, or another thread waits.
    /// `DAT_ABORT`: there are fewer events, and the dispatcher is not to be waited for.
    pub fn wait_for(&self, evd: &Evd, threshold: usize, deadline: Deadline) -> Result<Option<Event>> {
        if threshold > 1 && evd.cno().is_some() && evd.is_enabled() {
            return Err(Code::INVALID_STATE.of(Sub::EvdConfigNotify));
        }
        if evd.waiting.swap(true, Ordering::Acquire) {
            return Err(Code::INVALID_STATE.of(Sub::EvdWaiter));
        }
        let ended = || evd.dead.load(Ordering::Relaxed) || evd.unwaitable.load(Ordering::Relaxed);
        let found = self.wait(&evd.spin_history, deadline, |is_last| {
            let len = if is_last { evd.len_for_sure() } else { evd.len() };
            match (len >= threshold).then(|| evd.take()).flatten() {
                Some(event) => Some(Ok(event)),
                None => ended().then_some(Err(Code::ABORT)),
            }
        });
        evd.waiting.store(false, Ordering::Release);
        found.transpose()
    }

    /// Counts one more connected end point, or one fewer.
    #[cold]
    pub fn count_connected(&self, more: bool) {
        if !more {
            return self.progress.end_serving();
        }
        if let Err(error) = self.progress.begin_serving(|_| {}) {
            udeck::via::say!("uDAPL: starting a thread: {error}; peers are served while the program waits");
        }
    }
}

//! An opened interface adapter, and who moves its end points on.
//!
//! Usually the program's own threads do, by looking for events. Those that wait sleep together on the adapter's one completion queue
//! below: one of them, the leader, sleeps there and moves on whatever has news; the others sleep on a bell that it rings. Where nobody
//! looks, the thread `dat-engine` does the same, because peers read and write the program's memory at any time. While the program
//! looks by itself, that thread keeps out of its way, but for a glance each millisecond.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use udeck::via::{Caps, Cq, CqHandle, Deadline, Nic, Pause, Ptag, Spinner, thread};
use udeck_directory::Names;
use udeck_directory::address::Host;

use super::bell::Bell;
use super::evd::Evd;
use super::qos::Qos;

/// How long a look of who leads, or of who follows, lasts at most.
const LOOK: Duration = Duration::from_millis(100);
/// How long the engine keeps out of the way of a program that looks by itself, and of a peer that has no room.
const ASIDE: Duration = Duration::from_millis(1);
/// What the memory for messages holds beside the bytes of the longest one.
const BESIDE: usize = 4096;
/// Longest message.
const MAX_TRANSFER: usize = 64 << 20;
/// Bytes of messages that have found no receive, of all connections together: two of the longest.
const MAX_HELD: usize = 2 * MAX_TRANSFER;
pub use super::wire::MAX_PRIVATE;

/// Moves the end point of that number on. (End points use this file, and not the other way round.)
pub type MoveOn = fn(u64);

pub struct Ia {
    /// Its own, from when it is in its place.
    pub handle: OnceLock<usize>,
    /// What handles point to first.
    pub provider: usize,
    /// As dat.conf names it.
    pub name: String,
    /// The transport's NIC.
    pub device: &'static str,
    move_on: MoveOn,
    pub nic: Nic,
    pub ptag: Ptag,
    pub names: Arc<dyn Names>,
    pub address: Host,
    pub bell: Arc<Bell>,
    /// Where asynchronous events go, and whether the adapter has made it itself.
    pub asynchronous: OnceLock<(Arc<Evd>, bool)>,
    /// Whether who spins keeps the peer from its processor.
    is_oversubscribed: AtomicBool,
    cq: Mutex<Cq>,
    cq_handle: CqHandle,
    /// End points that are connected.
    connected: AtomicUsize,
    /// Looks of the program's.
    looks: AtomicU64,
    engine: Mutex<Option<JoinHandle<Result<(), String>>>>,
    /// End points that have found no room, or no receive: they are asked now and then.
    stuck: Mutex<HashSet<u64>>,
    is_any_stuck: AtomicBool,
    /// Bytes of messages that have found no receive.
    held: AtomicUsize,
    /// Held while the end of an end point with a shared receive queue is told.
    pub ends: Mutex<()>,
    /// Objects of the program's.
    pub objects: Mutex<HashSet<usize>>,
    /// Gives each connection a port.
    ports: AtomicU64,
    closed: AtomicBool,
}

/// Both ends may be on this host, and there is one processor for them.
fn is_crowded() -> bool {
    std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1)
}

impl Ia {
    pub fn new(
        provider: usize,
        name: String,
        device: &'static str,
        nic: Nic,
        names: Arc<dyn Names>,
        move_on: MoveOn,
    ) -> udeck::via::Result<Arc<Ia>> {
        let mut cq = Cq::new(&nic)?;
        let is_crowded = is_crowded();
        cq.set_oversubscribed(is_crowded);
        let bell = Arc::new(Bell::new(cq.handle()));
        Ok(Arc::new(Ia {
            handle: OnceLock::new(),
            provider,
            name,
            device,
            move_on,
            ptag: nic.ptag(),
            address: names.address(),
            nic,
            names,
            bell,
            asynchronous: OnceLock::new(),
            is_oversubscribed: AtomicBool::new(is_crowded),
            cq_handle: cq.handle(),
            cq: Mutex::new(cq),
            connected: AtomicUsize::new(0),
            looks: AtomicU64::new(0),
            engine: Mutex::default(),
            stuck: Mutex::default(),
            is_any_stuck: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            ends: Mutex::default(),
            objects: Mutex::default(),
            ports: AtomicU64::new(1),
            closed: AtomicBool::new(false),
        }))
    }

    pub fn handle(&self) -> usize {
        self.handle.get().copied().unwrap_or_default()
    }

    pub fn cq_handle(&self) -> &CqHandle {
        &self.cq_handle
    }

    pub fn max_transfer(&self) -> usize {
        self.nic.attributes().max_transfer.saturating_sub(BESIDE).min(MAX_TRANSFER)
    }

    /// What a connection has that asks for this.
    pub fn quality(&self, asked: Qos) -> Qos {
        if self.nic.caps().has(Caps::SERVICE_LEVELS) { asked } else { Qos::BestEffort }
    }

    /// Where asynchronous events go.
    pub fn asynchronous(&self) -> Weak<Evd> {
        self.asynchronous.get().map(|(evd, _)| Arc::downgrade(evd)).unwrap_or_default()
    }

    /// An object of the program's goes: to be called before its place is free, which may soon be another object's.
    pub fn forget(&self, handle: usize) {
        self.objects.lock().remove(&handle);
    }

    /// A number for one end of a connection.
    pub fn port(&self) -> u64 {
        super::wire::port(self.ports.fetch_add(1, Ordering::Relaxed))
    }

    /// Counts a message of so many bytes that has found no receive. `None`: there are too many of them.
    pub fn hold(self: &Arc<Self>, len: usize) -> Option<HeldBytes> {
        let before = self.held.fetch_add(len, Ordering::Relaxed);
        let counted = HeldBytes { ia: self.clone(), len };
        (before.saturating_add(len) <= MAX_HELD).then_some(counted)
    }

    /// Who waits gives up.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether who spins keeps others that are waited for from their processors.
    pub fn set_oversubscribed(&self, oversubscribed: bool) {
        self.is_oversubscribed.store(oversubscribed, Ordering::Relaxed);
        self.bell.ring_loudly(); // who sleeps there has it locked
        self.cq.lock().set_oversubscribed(oversubscribed);
    }

    // ---- waiting ----

    /// Looks until there is something, at most until then. `look` is told whether it is the last before a sleep: then it has to look
    /// under a lock.
    pub fn wait<T>(&self, deadline: Deadline, mut look: impl FnMut(bool) -> Option<T>) -> Option<T> {
        let mut spinner = Spinner::new(self.is_oversubscribed.load(Ordering::Relaxed));
        loop {
            if let Some(found) = look(false) {
                return Some(found);
            }
            self.look();
            if let Some(found) = look(false) {
                return Some(found);
            }
            if self.is_closed() {
                return None;
            }
            if spinner.pause() == Pause::Sleep {
                if deadline.passed() {
                    return None;
                }
                if let Some(found) = self.sleep_unless(deadline.remaining().min(LOOK), &mut || look(true)) {
                    return Some(found);
                }
            } else if deadline.passed() {
                return None;
            }
        }
    }

    /// Sleeps until something may have changed, unless a look finds something.
    fn sleep_unless<T>(&self, limit: Duration, look: &mut dyn FnMut() -> Option<T>) -> Option<T> {
        let _sleeper = self.bell.sleeper(true);
        let rings = self.bell.rings();
        let found = look();
        if found.is_none() {
            self.sleep_or_ask(limit, rings);
        }
        found
    }

    fn sleep_or_ask(&self, limit: Duration, rings: u64) {
        let is_any_stuck = self.is_any_stuck.load(Ordering::Relaxed);
        self.sleep(if is_any_stuck { limit.min(ASIDE) } else { limit }, rings);
        if is_any_stuck {
            self.ask_stuck();
        }
    }

    fn sleep(&self, limit: Duration, rings: u64) {
        let rung = || self.bell.rings() != rings || self.is_closed();
        match self.cq.try_lock() {
            Some(mut cq) => {
                let leads = self.bell.lead();
                let news = cq.wait(Deadline::after(limit), rung);
                drop((leads, cq));
                if let Some(entry) = news {
                    (self.move_on)(entry.context);
                }
                // Who follows may lead now.
                if self.bell.sleepers() > 1 {
                    self.bell.ring_loudly();
                }
            }
            None => {
                // Somebody looks, and nobody would tell when that is over: before long.
                if !self.bell.is_led() {
                    std::thread::yield_now();
                }
                let limit = if self.bell.is_led() { limit } else { limit.min(ASIDE) };
                self.bell.sleep(limit, || rung() || !self.cq.is_locked());
            }
        }
    }

    /// An end point has found no room, or is over that.
    #[cold]
    pub fn set_stuck(&self, ep: u64, is_stuck: bool) {
        let mut stuck = self.stuck.lock();
        if is_stuck {
            stuck.insert(ep);
        } else {
            stuck.remove(&ep);
        }
        let is_any = !stuck.is_empty();
        let was_any = self.is_any_stuck.swap(is_any, Ordering::Relaxed);
        drop(stuck);
        if is_any && !was_any {
            // Who sleeps has found none: he would ask this one when his sleep is over, and nothing else may end that.
            self.bell.ring_loudly();
        }
    }

    fn ask_stuck(&self) {
        let stuck: Vec<u64> = self.stuck.lock().iter().copied().collect();
        stuck.into_iter().for_each(self.move_on);
    }

    /// Moves on whatever has news, without waiting: for who asks an event dispatcher.
    #[inline]
    pub fn look(&self) {
        self.look_for(|| false);
    }

    /// As [`Ia::look`], until something is found: the completion queue below is fair, so the next look begins with others.
    #[inline]
    pub fn look_for(&self, is_found: impl Fn() -> bool) {
        // Not counted exactly: it is only asked whether it changes.
        self.looks.store(self.looks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.glance(is_found);
    }

    #[inline]
    fn glance(&self, is_found: impl Fn() -> bool) {
        let Some(mut cq) = self.cq.try_lock() else { return };
        for _ in 0..8 {
            let Some(entry) = cq.poll() else { return };
            (self.move_on)(entry.context);
            if is_found() {
                return;
            }
        }
    }

    // ---- the engine ----

    /// One more end point is connected, or one fewer.
    #[cold]
    pub fn count_connected(self: &Arc<Self>, more: bool) {
        if !more {
            self.connected.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        self.connected.fetch_add(1, Ordering::Relaxed);
        let mut engine = self.engine.lock();
        if engine.is_none() && !self.is_closed() {
            let serving = self.clone();
            match thread::spawn("dat-engine", move || serving.run(), |_| {}) {
                Ok(running) => *engine = Some(running),
                Err(error) => udeck::via::say!(
                    "uDAPL: starting a thread: {error}; peers are served while the program waits"
                ),
            }
        }
        drop(engine);
        self.bell.ring_loudly();
    }

    fn run(&self) {
        let mut looks = 0;
        while !self.is_closed() {
            let now = self.looks.load(Ordering::Relaxed);
            let is_idle = self.connected.load(Ordering::Relaxed) == 0;
            if is_idle || now != looks {
                looks = now;
                // Who connects is counted before he rings.
                let is_needed = || is_idle && self.connected.load(Ordering::Relaxed) > 0;
                self.bell.sleep(if is_idle { LOOK } else { ASIDE }, || self.is_closed() || is_needed());
                if !is_idle {
                    // The program may look, and peers reach its memory by an end point that it does not look at.
                    self.glance(|| false);
                    if self.is_any_stuck.load(Ordering::Relaxed) {
                        self.ask_stuck();
                    }
                }
                continue;
            }
            // Events of the program's are nothing to it.
            let _sleeper = self.bell.sleeper(false);
            self.sleep_or_ask(LOOK, self.bell.rings());
        }
    }

    /// Ends its thread; who waits gives up.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if udeck::via::is_forked() {
            return; // its thread is the parent's
        }
        self.bell.ring_loudly();
        let engine = self.engine.lock().take();
        if let Some(running) = engine
            && running.thread().id() != std::thread::current().id()
        {
            let _ = running.join();
        }
    }
}

/// Counts until it is dropped.
pub struct HeldBytes {
    ia: Arc<Ia>,
    len: usize,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.ia.held.fetch_sub(self.len, Ordering::Relaxed);
    }
}

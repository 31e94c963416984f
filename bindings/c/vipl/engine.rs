//! An opened NIC, and who moves its VIs on.
//!
//! Usually the program's own threads do, by looking. Those that wait (`VipSendWait`, `VipRecvWait`, `VipCQWait`) sleep together on
//! the NIC's one completion queue below: one of them, the leader, sleeps there and moves on whatever has news; the others sleep on
//! a bell that it rings. Where nobody looks and somebody has to (a handler is to be called, a peer reads memory, something waits
//! for room), the thread `vipl-engine` does the same. While the program looks by itself, that thread keeps out of its way, but for a
//! glance each millisecond at what else has news.
//!
//! The thread `vipl-callback` calls the program's handlers. Both exist from the first call that needs them, and end with
//! `VipCloseNic`.

use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use udeck::via::{Cq, CqEntry, CqHandle, Deadline, Listener, Nic, Pause, Ptag, Spinner, thread};

use super::address::{self, HOST};
use super::error::{Callback, Event};
use super::handle::{Handle, Table};
use super::order::Place;
use super::types::{Boolean, CqHandler, ErrorCode, NotifyHandler, ResourceCode};
use udeck_directory::Names;

/// `None` only while it is being opened.
pub(super) static NICS: Table<Option<Arc<NicState>>> = Table::new(1);
pub(super) static PTAGS: Table<OwnPtag> = Table::new(3);

/// How long a look of who leads, of who follows, or of who listens, lasts at most.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// How long the engine keeps out of the way of a program that looks by itself, and of a peer that has no room.
const ASIDE: Duration = Duration::from_millis(1);
/// What the memory for messages holds beside the bytes of the longest one: what stands before a write's.
const BESIDE: usize = 4096;
/// Longest message.
const MAX_TRANSFER: usize = 64 << 20;

/// `VipCreatePtag`'s.
#[derive(Clone)]
pub(super) struct OwnPtag {
    pub nic: Handle,
    pub ptag: Ptag,
}

/// A handler that is to be called for one completion.
#[derive(Clone, Copy)]
pub(super) struct Notify {
    pub handler: NotifyHandler,
    pub context: *mut c_void,
}

// SAFETY: the program's function is to be called on a thread of the library, and its context handed to it: VIPL says so.
unsafe impl Send for Notify {}

/// As [`Notify`], of a completion queue.
#[derive(Clone, Copy)]
pub(super) struct CqNotify {
    pub handler: CqHandler,
    pub context: *mut c_void,
}

// SAFETY: as above.
unsafe impl Send for CqNotify {}

/// What the callback thread does.
pub(super) enum Job {
    Queue { notify: Notify, vi: Handle, place: Place },
    Cq { notify: CqNotify, vi: Handle, receives: bool },
    Error(Event),
}

/// What a NIC does with its VIs, by their handles. (`vi.rs` uses this file, and not the other way round.)
pub(super) struct Visits {
    /// Takes what has arrived, and sends what waits.
    pub move_on: fn(Handle),
    /// Finds out whether the engine has to look after it.
    pub look_after: fn(Handle),
    /// Takes its lock and releases it.
    pub pass: fn(Handle),
}

pub(super) struct NicState {
    handle: Handle,
    visits: &'static Visits,
    pub nic: Nic,
    pub names: Arc<dyn Names>,
    /// `LocalNicAddress` points to it.
    pub address: [u8; HOST],
    cq: Mutex<Cq>,
    cq_handle: CqHandle,
    /// Somebody sleeps at `cq`, and rings when that is over. Who has it locked otherwise only looks, and rings for nobody.
    is_led: AtomicBool,
    bell: Bell,
    /// VIs that the engine has to look after.
    needs: AtomicUsize,
    /// Looks of the program's.
    looks: AtomicU64,
    engine: Mutex<Option<Running>>,
    callbacks: Mutex<Option<(Sender<Job>, Running)>>,
    on_error: Mutex<Option<Callback>>,
    /// Where `VipConnectWait` has listened, by discriminator.
    pub listeners: Mutex<HashMap<Vec<u8>, Arc<Listener>>>,
    pub vis: Mutex<HashSet<Handle>>,
    /// VIs that have found no room, of which nobody may tell when there is some: they are asked now and then.
    stuck: Mutex<HashSet<Handle>>,
    is_any_stuck: AtomicBool,
    pub cqs: AtomicUsize,
    closed: AtomicBool,
}

type Running = JoinHandle<Result<(), String>>;

#[derive(Default)]
struct Bell {
    /// Changes with each ring while somebody sleeps.
    rings: AtomicU64,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    rung: Condvar,
}

impl NicState {
    pub fn new(
        handle: Handle,
        nic: Nic,
        names: Arc<dyn Names>,
        visits: &'static Visits,
    ) -> udeck::via::Result<Arc<Self>> {
        let cq = Cq::new(&nic)?;
        let address = names.address();
        let state = Arc::new(NicState {
            handle,
            visits,
            cq_handle: cq.handle(),
            cq: Mutex::new(cq),
            is_led: AtomicBool::new(false),
            nic,
            names,
            address,
            bell: Bell::default(),
            needs: AtomicUsize::new(0),
            looks: AtomicU64::new(0),
            engine: Mutex::default(),
            callbacks: Mutex::default(),
            on_error: Mutex::default(),
            listeners: Mutex::default(),
            vis: Mutex::default(),
            stuck: Mutex::default(),
            is_any_stuck: AtomicBool::new(false),
            cqs: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        let weak: Weak<NicState> = Arc::downgrade(&state);
        state.nic.on_error(move |event| {
            let Some(state) = weak.upgrade() else { return };
            let (vi, why) = (Handle::of_number(event.context), event.why.clone());
            let (nic, resource, error) = (state.handle, ResourceCode::VI, ErrorCode::CONN_LOST);
            state.raise(Event { nic, vi, op_code: 0, resource, error, why });
        })?;
        Ok(state)
    }

    pub fn handle(&self) -> Handle {
        self.handle
    }

    pub fn cq_handle(&self) -> &CqHandle {
        &self.cq_handle
    }

    pub fn max_transfer(&self) -> usize {
        self.nic.attributes().max_transfer.saturating_sub(BESIDE).min(MAX_TRANSFER)
    }

    /// The tag of this NIC's that the handle names.
    pub fn ptag(&self, handle: Handle) -> Option<Ptag> {
        PTAGS.get(handle).filter(|own| own.nic == self.handle).map(|own| own.ptag)
    }

    /// The transport, as the name tables call it.
    pub fn transport(&self) -> &str {
        &self.nic.attributes().name
    }

    /// A completion queue of that VI is to be notified of.
    pub fn look_after(&self, vi: Handle) {
        (self.visits.look_after)(vi);
    }

    /// Returns when all that was under way in its VIs is over: who has a VI's lock now releases it first.
    pub fn quiesce(&self) {
        let vis: Vec<Handle> = self.vis.lock().iter().copied().collect();
        for vi in vis {
            (self.visits.pass)(vi);
        }
    }

    /// Who waits gives up.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    // ---- waiting ----

    /// Says that something may have changed for who waits.
    #[inline]
    pub fn ring(&self) {
        // What has changed lies under a lock that each look takes, a VI's or a completion queue's. Who sleeps counted himself before his
        // last look: if that came before the change, the lock has brought the count here; otherwise the look found the change.
        if self.bell.sleepers.load(Ordering::Relaxed) > 0 {
            self.ring_loudly();
        }
    }

    #[cold]
    fn ring_loudly(&self) {
        {
            let _lock = self.bell.lock.lock();
            self.bell.rings.fetch_add(1, Ordering::Relaxed);
        }
        self.bell.rung.notify_all();
        self.cq_handle.wake();
    }

    /// Looks until there is something, at most until then.
    pub fn wait<T>(&self, deadline: Deadline, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let mut spinner = Spinner::new(false);
        loop {
            if let Some(found) = look() {
                return Some(found);
            }
            if self.closed.load(Ordering::Relaxed) {
                return None;
            }
            if spinner.pause() == Pause::Sleep {
                if deadline.passed() {
                    return None;
                }
                if let Some(found) = self.sleep_unless(deadline.remaining().min(LOOK), &mut look) {
                    return Some(found);
                }
            }
        }
    }

    /// Sleeps until something may have changed, unless a look finds something.
    fn sleep_unless<T>(&self, limit: Duration, look: &mut dyn FnMut() -> Option<T>) -> Option<T> {
        self.bell.sleepers.fetch_add(1, Ordering::Relaxed);
        let rings = self.bell.rings.load(Ordering::Relaxed);
        let found = look();
        if found.is_none() {
            let is_any_stuck = self.is_any_stuck.load(Ordering::Relaxed);
            self.sleep(if is_any_stuck { limit.min(ASIDE) } else { limit }, rings);
            if is_any_stuck {
                self.ask_stuck();
            }
        }
        self.bell.sleepers.fetch_sub(1, Ordering::Relaxed);
        found
    }

    fn sleep(&self, limit: Duration, rings: u64) {
        let rung = || self.bell.rings.load(Ordering::Relaxed) != rings || self.closed.load(Ordering::Relaxed);
        match self.cq.try_lock() {
            Some(mut cq) => {
                let leads = Leads::new(&self.is_led);
                let news = cq.wait(Deadline::after(limit), rung);
                drop((leads, cq));
                if let Some(entry) = news {
                    self.serve(entry);
                }
                // Who follows may lead now.
                if self.bell.sleepers.load(Ordering::Relaxed) > 1 {
                    self.ring_loudly();
                }
            }
            None => {
                // Somebody looks, and nobody would tell when that is over: before long.
                let is_led = || self.is_led.load(Ordering::Relaxed);
                if !is_led() {
                    std::thread::yield_now();
                }
                let limit = if is_led() { limit } else { limit.min(ASIDE) };
                let mut lock = self.bell.lock.lock();
                if !rung() && self.cq.is_locked() {
                    self.bell.rung.wait_for(&mut lock, limit);
                }
            }
        }
    }

    /// A VI has found no room, or is over that.
    #[cold]
    pub fn set_stuck(&self, vi: Handle, is_stuck: bool) {
        let mut stuck = self.stuck.lock();
        if is_stuck {
            stuck.insert(vi);
        } else {
            stuck.remove(&vi);
        }
        let is_any = !stuck.is_empty();
        let was_any = self.is_any_stuck.swap(is_any, Ordering::Relaxed);
        drop(stuck);
        if is_any && !was_any {
            // Who sleeps has found none: he would ask this one when his sleep is over, and nothing else may end that.
            self.ring_loudly();
        }
    }

    fn ask_stuck(&self) {
        let stuck: Vec<Handle> = self.stuck.lock().iter().copied().collect();
        for vi in stuck {
            (self.visits.move_on)(vi);
        }
    }

    fn serve(&self, entry: CqEntry) {
        (self.visits.move_on)(Handle::of_number(entry.context));
    }

    /// Moves on whatever has news, without waiting: for who asks a completion queue.
    pub fn look(&self) {
        self.looked();
        self.glance();
    }

    fn glance(&self) {
        let Some(mut cq) = self.cq.try_lock() else { return };
        for _ in 0..8 {
            let Some(entry) = cq.poll() else { return };
            self.serve(entry);
        }
    }

    /// The program has looked by itself.
    #[inline]
    pub fn looked(&self) {
        // Not counted exactly: it is only asked whether it changes.
        self.looks.store(self.looks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    // ---- the engine ----

    /// One more VI has to be looked after, or one fewer.
    #[cold]
    pub fn need(self: &Arc<Self>, more: bool) {
        if !more {
            self.needs.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        self.needs.fetch_add(1, Ordering::Relaxed);
        let mut engine = self.engine.lock();
        if engine.is_none() && !self.closed.load(Ordering::Relaxed) {
            let (serving, failing) = (self.clone(), self.clone());
            let started = thread::spawn("vipl-engine", move || serving.run(), move |why| failing.failed(why));
            match started {
                Ok(running) => *engine = Some(running),
                Err(error) => {
                    drop(engine);
                    return self.raise(self.catastrophe(&format!("starting a thread: {error}")));
                }
            }
        }
        drop(engine);
        self.ring_loudly();
    }

    fn run(&self) {
        let mut looks = 0;
        while !self.closed.load(Ordering::Relaxed) {
            let mut lock = self.bell.lock.lock();
            let now = self.looks.load(Ordering::Relaxed);
            // Under the lock of the bell: who needs it says so, and rings then.
            let is_idle = self.needs.load(Ordering::Relaxed) == 0;
            if !is_idle && now == looks {
                drop(lock);
                self.sleep_unless::<()>(LOOK, &mut || None);
                continue;
            }
            looks = now;
            if !self.closed.load(Ordering::Relaxed) {
                self.bell.rung.wait_for(&mut lock, if is_idle { LOOK } else { ASIDE });
            }
            drop(lock);
            if !is_idle {
                // The program may look at one VI, and peers reach its memory by another.
                self.glance();
                if self.is_any_stuck.load(Ordering::Relaxed) {
                    self.ask_stuck();
                }
            }
        }
    }

    fn catastrophe(&self, why: &str) -> Event {
        let (nic, resource, error) = (self.handle, ResourceCode::NIC, ErrorCode::CATASTROPHIC);
        Event { nic, vi: Handle::NULL, op_code: 0, resource, error, why: why.into() }
    }

    /// A call, or a thread of the library, has panicked. Calls the program's handler here, so nothing of ours is locked.
    #[cold]
    pub fn failed(&self, why: &str) {
        let callback = *self.on_error.lock();
        self.catastrophe(why).deliver(callback);
    }

    // ---- the program's handlers ----

    pub fn on_error(&self, callback: Option<Callback>) {
        *self.on_error.lock() = callback;
    }

    #[cold]
    pub fn raise(self: &Arc<Self>, event: Event) {
        self.call(Job::Error(event));
    }

    /// Has a handler called.
    #[cold]
    pub fn call(self: &Arc<Self>, job: Job) {
        let mut callbacks = self.callbacks.lock();
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        if callbacks.is_none() {
            let (sender, jobs) = mpsc::channel::<Job>();
            let (weak, failing) = (Arc::downgrade(self), Arc::downgrade(self));
            let nic = self.handle;
            let serve = move || {
                for job in jobs {
                    deliver(job, nic, &weak);
                }
            };
            let on_panic = move |why: &str| failing.upgrade().into_iter().for_each(|nic| nic.failed(why));
            match thread::spawn("vipl-callback", serve, on_panic) {
                Ok(running) => *callbacks = Some((sender, running)),
                // Whoever calls may have a VI locked: the program's handler cannot be called here.
                Err(error) => {
                    let why = format!("starting a thread for handlers: {error}");
                    return self.catastrophe(&why).deliver(None);
                }
            }
        }
        if let Some((sender, _)) = &*callbacks {
            let _ = sender.send(job); // its thread has panicked, which was told
        }
    }

    /// Ends its threads. What handlers are still to be called for is called before, unless a handler closes the NIC.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.nic.clear_on_error();
        self.ring_loudly();
        let engine = self.engine.lock().take();
        let callbacks = self.callbacks.lock().take();
        for running in engine.into_iter().chain(callbacks.map(|(_, running)| running)) {
            if running.thread().id() != std::thread::current().id() {
                let _ = running.join();
            }
        }
    }
}

fn deliver(job: Job, nic: Handle, state: &Weak<NicState>) {
    match job {
        Job::Queue { notify: Notify { handler, context }, vi, place } => {
            handler(context, nic, vi, place.descriptor);
        }
        Job::Cq { notify: CqNotify { handler, context }, vi, receives } => {
            handler(context, nic, vi, Boolean::from(receives));
        }
        Job::Error(event) => {
            let callback = state.upgrade().and_then(|state| *state.on_error.lock());
            event.deliver(callback);
        }
    }
}

/// What `VipQueryNic` says of discriminators.
pub(super) const MAX_DISCRIMINATOR: usize = address::MAX_DISCRIMINATOR;

/// Somebody sleeps where news come, until this is dropped.
struct Leads<'a>(&'a AtomicBool);

impl<'a> Leads<'a> {
    fn new(is_led: &'a AtomicBool) -> Self {
        is_led.store(true, Ordering::Relaxed);
        Leads(is_led)
    }
}

impl Drop for Leads<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// How often it has rung for who sleeps.
    pub fn rings(state: &NicState) -> u64 {
        state.bell.rings.load(Ordering::Relaxed)
    }

    /// Goes to sleep for so long, while another thread looks at what has news.
    pub fn sleep_beside_a_look(state: &NicState, limit: Duration) {
        let _looks = state.cq.lock();
        std::thread::scope(|scope| scope.spawn(|| state.sleep(limit, rings(state))).join()).unwrap();
    }
}

//! An opened NIC, and the program's handlers.
//!
//! `udeck-rdma` moves its VIs on. The thread `on-vipl-event` calls the program's handlers: it exists from the first call that needs it,
//! and ends with `VipCloseNic`.

use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use udeck::via::{Listener, Nic, Ptag, thread};

use super::address::{self, HOST};
use super::error::{Callback, Event};
use super::handle::{Handle, Table};
use super::types::{Boolean, CqHandler, ErrorCode, NotifyHandler, ResourceCode};
use super::work_request::Place;
use udeck::names::Directory;
use udeck_rdma::{MoveOn, Progress};

/// `None` only while it is being opened.
pub(super) static NICS: Table<Option<Arc<NicState>>> = Table::new(1);
pub(super) static PTAGS: Table<OwnPtag> = Table::new(3);

/// A protection tag of `VipCreatePtag`.
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

/// A handler of a completion queue, to be called as [`Notify`].
#[derive(Clone, Copy)]
pub(super) struct CqNotify {
    pub handler: CqHandler,
    pub context: *mut c_void,
}

// SAFETY: as above.
unsafe impl Send for CqNotify {}

/// A call of the callback thread.
pub(super) enum Job {
    Queue { notify: Notify, vi: Handle, place: Place },
    Cq { notify: CqNotify, vi: Handle, receives: bool },
    Error(Event),
}

/// Calls of a NIC on its VIs, by their handles. (`vi.rs` uses this file, and not the other way round.)
pub(super) struct Visits {
    /// Takes what has arrived, and sends what waits.
    pub move_on: MoveOn,
    /// Finds out whether the engine has to serve the VI.
    pub look_after: fn(Handle),
    /// Takes the VI's lock and releases it.
    pub pass: fn(Handle),
}

pub(super) struct NicState {
    handle: Handle,
    visits: &'static Visits,
    pub nic: Nic,
    pub names: Arc<dyn Directory>,
    /// Address of the host; `LocalNicAddress` points to it.
    pub address: [u8; HOST],
    pub progress: Arc<Progress>,
    callbacks: Mutex<Option<(Sender<Job>, Running)>>,
    on_error: Mutex<Option<Callback>>,
    /// Listeners of `VipConnectWait`, by discriminator.
    pub listeners: Mutex<HashMap<Vec<u8>, Arc<Listener>>>,
    pub vis: Mutex<HashSet<Handle>>,
    pub cqs: AtomicUsize,
}

type Running = JoinHandle<Result<(), String>>;

impl NicState {
    pub fn new(
        handle: Handle,
        nic: Nic,
        names: Arc<dyn Directory>,
        visits: &'static Visits,
    ) -> udeck::via::Result<Arc<Self>> {
        let progress = Arc::new(Progress::new(&nic, "vipl", visits.move_on)?);
        let address = names.address();
        let state = Arc::new(NicState {
            handle,
            visits,
            nic,
            names,
            address,
            progress,
            callbacks: Mutex::default(),
            on_error: Mutex::default(),
            listeners: Mutex::default(),
            vis: Mutex::default(),
            cqs: AtomicUsize::new(0),
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

    pub fn max_transfer(&self) -> usize {
        udeck_rdma::max_transfer(&self.nic)
    }

    /// The protection tag of a handle, if it is of this NIC.
    pub fn ptag(&self, handle: Handle) -> Option<Ptag> {
        PTAGS.get(handle).filter(|own| own.nic == self.handle).map(|own| own.ptag)
    }

    /// The transport, as the tables of names call it.
    pub fn transport(&self) -> &str {
        &self.nic.attributes().name
    }

    /// Finds out again whether the engine has to serve this VI, because a handler waits at its completion queue.
    pub fn look_after(&self, vi: Handle) {
        (self.visits.look_after)(vi);
    }

    /// Waits until each thread that has a VI's lock has released it.
    pub fn quiesce(&self) {
        let vis: Vec<Handle> = self.vis.lock().iter().copied().collect();
        for vi in vis {
            (self.visits.pass)(vi);
        }
    }

    /// Counts one more VI that the engine has to serve, or one fewer.
    #[cold]
    pub fn need(self: &Arc<Self>, more: bool) {
        if !more {
            return self.progress.end_serving();
        }
        let failing = self.clone();
        if let Err(error) = self.progress.begin_serving(move |why| failing.failed(why)) {
            self.raise(self.catastrophe(&format!("starting a thread: {error}")));
        }
    }

    fn catastrophe(&self, why: &str) -> Event {
        let (nic, resource, error) = (self.handle, ResourceCode::NIC, ErrorCode::CATASTROPHIC);
        Event { nic, vi: Handle::NULL, op_code: 0, resource, error, why: why.into() }
    }

    /// Reports a panic of a call or of a thread of the library. Calls the program's handler here, so the library must hold no lock.
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

    /// Queues a call of a handler.
    #[cold]
    pub fn call(self: &Arc<Self>, job: Job) {
        let mut callbacks = self.callbacks.lock();
        if self.progress.is_closed() {
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
            match thread::spawn_handlers("vipl-event", serve, on_panic) {
                Ok(running) => *callbacks = Some((sender, running)),
                // The caller may have a VI locked: the program's handler cannot be called here.
                Err(error) => {
                    let why = format!("starting a thread for handlers: {error}");
                    return self.catastrophe(&why).deliver(None);
                }
            }
        }
        if let Some((sender, _)) = &*callbacks {
            let _ = sender.send(job); // fails if the thread has panicked, which was reported
        }
    }

    /// Keeps calls of handlers from being queued until the result is dropped.
    #[cfg(test)]
    pub fn block_calls(&self) -> impl Sized {
        self.callbacks.lock()
    }

    /// Ends the NIC's threads. Queued handlers are called before, unless a handler closes the NIC.
    pub fn close(&self) {
        self.nic.clear_on_error();
        self.progress.close();
        let callbacks = self.callbacks.lock().take();
        if let Some((jobs, running)) = callbacks
            && running.thread().id() != std::thread::current().id()
        {
            drop(jobs);
            let _ = running.join();
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

/// Longest discriminator, for `VipQueryNic`.
pub(super) const MAX_DISCRIMINATOR: usize = address::MAX_DISCRIMINATOR;

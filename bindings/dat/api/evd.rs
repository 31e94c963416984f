//! Event dispatchers: queues of typed events.

use std::fmt;
use std::sync::Arc;

use udeck::via::{Deadline, is_forked};

use super::cno::Cno;
use super::error::{Error, Result};
use super::event::{Asynchronous, Completion, Connection, Event, Operation, Status};
use super::ia::Ia;
use super::id::{self, EpId, EvdId, ServiceId, SrqId};
use super::memory::take_posted;
use super::request::ConnectionRequest;
use super::rmr::take_bound;
use crate::core::code::{Code, Sub};
use crate::core::evd::{self, stream};
use crate::core::event::{self, number};
use crate::core::service::CRS;

/// A queue of events: of any end points, service points and streams of one adapter (`DAT_EVD`). A clone is the same dispatcher.
///
/// A dispatcher lives as long as an object that feeds it. When it goes, connection requests in it are rejected, and memory in it is freed.
/// It keeps at least 8192 events. A dispatcher that overflows loses events, and memory that was posted with lost work is not given
/// back while the process lives.
#[derive(Clone)]
pub struct Evd(Arc<Queue>);

struct Queue {
    id: EvdId,
    core: Arc<evd::Evd>,
    ia: Ia,
}

impl Evd {
    /// Creates a dispatcher with room for `room` events, or for 8192 if that is more (`dat_evd_create`).
    pub fn new(ia: &Ia, room: usize) -> Evd {
        let id = id::next();
        let overflow = ia.core().asynchronous();
        let room = room.min(evd::MOST);
        let bell = ia.core().progress.bell().clone();
        let core = evd::Evd::new(id as usize, stream::ALL, room, None, bell, overflow);
        Evd(Arc::new(Queue { id: EvdId(id), core: Arc::new(core), ia: ia.clone() }))
    }

    /// The number of this dispatcher, unique in this process.
    pub fn id(&self) -> EvdId {
        self.0.id
    }

    /// Its adapter.
    pub fn ia(&self) -> &Ia {
        &self.0.ia
    }

    /// Directs the adapter's asynchronous events to this dispatcher. Call it once for each adapter, before its other dispatchers are made.
    ///
    /// # Errors
    /// [`Error::InUse`]: another dispatcher gets them already.
    pub fn take_asynchronous(&self) -> Result {
        let set = self.0.ia.core().asynchronous.set((self.0.core.clone(), false));
        set.map_err(|_| Error::InUse {
            call: "dat_ia_open",
            what: "the adapter has a dispatcher for asynchronous events",
        })
    }

    /// Takes the oldest event; polls the adapter first if there is none (`dat_evd_dequeue`). Does not block.
    #[inline]
    pub fn dequeue(&self) -> Option<Event> {
        loop {
            let event = match self.0.core.take() {
                Some(event) => event,
                None => {
                    self.0.ia.core().progress.poll_until(|| self.0.core.len() > 0);
                    self.0.core.take()?
                }
            };
            if let Some(event) = self.0.typed(event) {
                return Some(event);
            }
        }
    }

    /// Number of events in the queue.
    pub fn len(&self) -> usize {
        self.0.core.len()
    }

    /// Whether the queue has no event.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for an event (`dat_evd_wait`): spins for a moment, then sleeps.
    ///
    /// # Errors
    /// As [`Evd::wait_for`].
    pub fn wait(&self, deadline: Deadline) -> Result<Event> {
        self.wait_for(1, deadline)
    }

    /// Waits until there are `threshold` events, and takes the oldest (`dat_evd_wait`).
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::InUse`]: another thread waits here, or `threshold` is above 1 and a [`Cno`] is notified of each event;
    /// [`Error::Aborted`]; [`Error::InvalidParameter`]: `threshold` is 0, or more than there is room for.
    pub fn wait_for(&self, threshold: usize, deadline: Deadline) -> Result<Event> {
        const CALL: &str = "dat_evd_wait";
        let (core, ia) = (&self.0.core, self.0.ia.core());
        if threshold == 0 || threshold > core.room() {
            let what = format!("a threshold of {threshold}, where there is room for {}", core.room());
            return Err(Error::parameter(CALL, what));
        }
        let limit = deadline.remaining();
        loop {
            match ia.wait_for(core, threshold, deadline) {
                Ok(Some(event)) => {
                    if let Some(event) = self.0.typed(event) {
                        return Ok(event);
                    }
                }
                Ok(None) => return Err(Error::Timeout { call: CALL, waited: limit }),
                Err(code) => return Err(not_waited(CALL, code)),
            }
        }
    }

    /// Posts an event of the program's own (`dat_evd_post_se`).
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn post_software(&self, value: u64) -> Result {
        let put = self.0.core.put(event::Event::software(value as usize));
        put.map_err(|_| Error::Full { call: "dat_evd_post_se", what: "the event dispatcher" })
    }

    /// Most events that the queue may hold.
    pub fn room(&self) -> usize {
        self.0.core.room()
    }

    /// Changes the room of the queue; it is at least 8192 (`dat_evd_resize`).
    ///
    /// # Errors
    /// [`Error::InUse`]: the queue holds more events. [`Error::InvalidParameter`]: more than 1,048,576.
    pub fn resize(&self, room: usize) -> Result {
        const CALL: &str = "dat_evd_resize";
        if room > evd::MOST {
            return Err(Error::parameter(CALL, format!("room for {room} events: {} at most", evd::MOST)));
        }
        let in_use = |_| Error::InUse { call: CALL, what: "it holds more events than that" };
        self.0.core.resize(room).map_err(in_use)
    }

    /// Sets the [`Cno`] that this dispatcher notifies, or none (`dat_evd_modify_cno`). A dispatcher that has events notifies it at once.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`]: the [`Cno`] is of another adapter.
    pub fn set_cno(&self, cno: Option<&Cno>) -> Result {
        if cno.is_some_and(|cno| !cno.ia().is(self.ia())) {
            return Err(Error::parameter("dat_evd_modify_cno", "dispatcher and CNO are of two adapters"));
        }
        self.0.core.set_cno(cno.map(|cno| cno.core().clone()));
        Ok(())
    }

    /// Sets whether the dispatcher notifies its [`Cno`] (`dat_evd_enable`, `dat_evd_disable`); at first it does.
    pub fn set_enabled(&self, enabled: bool) {
        self.0.core.set_enabled(enabled);
    }

    /// Sets whether waiting is refused; a thread that waits gives up (`dat_evd_set_unwaitable`, `dat_evd_clear_unwaitable`).
    pub fn set_unwaitable(&self, unwaitable: bool) {
        self.0.core.set_unwaitable(unwaitable);
    }

    pub(super) fn core(&self) -> Arc<evd::Evd> {
        self.0.core.clone()
    }
}

impl Queue {
    /// Converts an event to its public type. `None`: a request whose asker's adapter has closed.
    #[inline]
    fn typed(&self, event: event::Event) -> Option<Event> {
        if event.number == number::DTO_COMPLETION {
            return Some(Event::Dto(completion(&event.data)));
        }
        self.other(event)
    }

    #[inline(never)]
    fn other(&self, event: event::Event) -> Option<Event> {
        let [first, second, third, fourth, _] = event.data;
        let connection = |what| Some(Event::Connection { ep: EpId(first), what });
        match event.number {
            number::RMR_BIND_COMPLETION => {
                let status = Status::of(third as u32);
                let (rmr, cookie) = take_bound(second, status == Status::Success)?;
                Some(Event::Bind { rmr, cookie, status })
            }
            number::CONNECTION_REQUEST => {
                let slot = CRS.by_handle(fourth as usize)?;
                ConnectionRequest::new(slot, ServiceId(first), third).map(Event::Request)
            }
            number::ESTABLISHED => connection(Connection::Established),
            number::PEER_REJECTED => connection(Connection::PeerRejected),
            number::NON_PEER_REJECTED => connection(Connection::NonPeerRejected),
            number::ACCEPT_COMPLETION_ERROR => connection(Connection::AcceptFailed),
            number::DISCONNECTED => connection(Connection::Disconnected),
            number::TIMED_OUT => connection(Connection::TimedOut),
            number::UNREACHABLE => connection(Connection::Unreachable),
            number::ASYNC_EVD_OVERFLOW => Some(Event::Asynchronous(Asynchronous::Overflow(EvdId(first)))),
            number::ASYNC_EP_BROKEN if second == 0 => {
                Some(Event::Asynchronous(Asynchronous::EpBroken(EpId(first))))
            }
            number::ASYNC_EP_BROKEN => Some(Event::Asynchronous(Asynchronous::LowWatermark(SrqId(first)))),
            number::SOFTWARE => Some(Event::Software(first)),
            _ => connection(Connection::Broken),
        }
    }
}

#[cold]
fn not_waited(call: &'static str, code: Code) -> Error {
    let what = if code == Code::INVALID_STATE.of(Sub::EvdWaiter) {
        "another thread waits for this dispatcher"
    } else if code == Code::INVALID_STATE.of(Sub::EvdConfigNotify) {
        "a CNO is told of each event, so there is no threshold: disable that first"
    } else {
        return Error::Aborted { call };
    };
    Error::InUse { call, what }
}

#[inline]
fn completion(data: &[u64; 5]) -> Completion {
    let (ep, (iov, cookie)) = (EpId(data[0]), take_posted(data[1]));
    let operation = match data[3] as u32 {
        0 => Operation::Send,
        1 => Operation::RdmaWrite,
        2 => Operation::RdmaRead,
        4 => Operation::ReceiveWithInvalidate((data[3] >> 32) as u32),
        _ => Operation::Receive,
    };
    let length = (data[2] >> 32) as usize;
    Completion { ep, cookie, operation, status: Status::of(data[2] as u32), length, iov }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if is_forked() {
            return;
        }
        self.core.end();
        // Nobody feeds the queue any more. Its events are dropped as the program would have dropped them.
        while let Some(event) = self.core.take() {
            drop(self.typed(event));
        }
    }
}

impl fmt::Debug for Evd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Evd({} events)", self.len())
    }
}

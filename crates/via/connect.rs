//! Client/server connection (VIA: `VipConnectWait`, `VipConnectRequest`, `VipConnectAccept`, `VipConnectReject`).

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::attributes::ViAttributes;
use crate::connection_quota::ConnectionShare;
use crate::cq::{CqHandle, CqReservations};
use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::rejection::{RejectKind, Rejection};
use crate::transport::{Device, Hello, Incoming, Queues};
use crate::vi::Vi;
use udeck_sys::Deadline;
use udeck_sys::process::is_forked;
use udeck_sys::thread::Callback;

/// A connection request that waits for an answer. When dropped unanswered, it is refused.
pub struct Request {
    incoming: Box<dyn Incoming>,
    /// The request's share of its peer's connections.
    share: ConnectionShare,
    /// The device that the request came to. Weak, because devices keep requests that no program has taken yet.
    device: Weak<dyn Device>,
}

impl Request {
    /// The requester's private data.
    pub fn private_data(&self) -> &[u8] {
        &self.incoming.hello().private_data
    }

    /// The rank of the job that the requester has proved to be, to this NIC; nothing that it says can change that. `None`: it
    /// has only proved that it knows the job's secret.
    pub fn peer(&self) -> Option<u32> {
        self.incoming.peer()
    }

    /// Connects the requester to `vi`, which is idle. Arrivals are announced on `receive`, room to send on `send`.
    ///
    /// # Errors
    /// [`Error::InvalidReliability`] (the requester learns it too), [`Error::InvalidState`],
    /// [`Error::InvalidParameter`] when the VI is of another NIC than the one that was asked or for another
    /// [peer](crate::ViAttributes::peer), [`Error::Full`] when a
    /// completion queue has no entry free (the requester is refused each time), or the transport's.
    pub fn accept(self, vi: &mut Vi, send: &CqHandle, receive: &CqHandle, private_data: &[u8]) -> Result {
        vi.require_idle("accept")?;
        if !self.device.ptr_eq(&Arc::downgrade(vi.nic().device())) {
            // The endpoint would apply the VI's offsets to its own device's memory.
            self.refuse(RejectKind::Failed, "the acceptor used a VI of another NIC");
            return Err(Error::InvalidParameter("the request came to another NIC than the VI's".into()));
        }
        if let Some(wanted) = vi.attributes().peer.filter(|wanted| self.peer() != Some(*wanted)) {
            self.refuse(RejectKind::Identity, "the acceptor used a VI for another process");
            return Err(Error::InvalidParameter(format!("the request is not from rank {wanted}")));
        }
        if self.incoming.hello().reliability != vi.attributes().reliability {
            self.incoming.reject(RejectKind::Reliability.into());
            return Err(Error::InvalidReliability);
        }
        let hello = vi.hello(private_data)?;
        let places = match CqReservations::take(send, receive) {
            Ok(places) => places,
            Err(full) => {
                self.reject_for_now(
                    "a completion queue of the acceptor is full, with connections that may have ended and that its owner has not \
                     looked at since",
                );
                return Err(full);
            }
        };
        let ViAttributes { context, level, .. } = *vi.attributes();
        let reporter = vi.nic().error_sink().reporter_of(context, Some(self.share));
        let queues = Queues {
            send: send.notifier(),
            receive: receive.notifier(),
            context,
            level,
            reporter: &reporter,
        };
        let endpoint = self.incoming.accept(&hello, queues)?;
        vi.connected(endpoint, reporter, places);
        Ok(())
    }

    /// Refuses the request. The requester is told `reason`, of which [`Rejection::MAX_DATA`] bytes travel.
    pub fn reject(self, reason: &str) {
        self.refuse(RejectKind::Refused, reason);
    }

    /// Refuses the request, with private data for the requester ([`RejectKind::Program`]).
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] for more than [`Rejection::MAX_DATA`] bytes: the request is then refused without them.
    pub fn reject_with(self, private_data: &[u8]) -> Result {
        let (len, most) = (private_data.len(), Rejection::MAX_DATA);
        if len > most {
            let what = format!("{len} bytes of private data, at most {most} travel with a refusal");
            return Err(Error::InvalidParameter(what));
        }
        self.incoming.reject(Rejection::with_data(private_data));
        Ok(())
    }

    /// Refuses because there is no place for the connection now: the requester sees that by [`Error::is_no_place`], and may
    /// ask again.
    pub fn reject_for_now(self, reason: &str) {
        self.refuse(RejectKind::NoPlace, reason);
    }

    fn refuse(self, kind: RejectKind, words: &str) {
        self.incoming.reject(Rejection::new(kind, words));
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({} bytes of private data)", self.private_data().len())
    }
}

/// Listener for connection requests at a discriminator. Dropping it ends that; later requests meet [`Error::NoMatch`].
#[derive(Debug)]
pub struct Listener {
    nic: Nic,
    discriminator: Vec<u8>,
    waiting: Arc<PendingRequests>,
}

#[derive(Default)]
struct PendingRequests {
    requests: Mutex<VecDeque<Request>>,
    came: Condvar,
    /// Whether the NIC has dropped the handler: no request comes any more.
    over: AtomicBool,
}

/// Guard inside the handler that reports when the handler is dropped.
struct UntilDropped(Arc<PendingRequests>);

impl Drop for UntilDropped {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        // Set under the lock: a waiter has not read it yet, or sleeps already.
        let requests = self.0.requests.lock();
        self.0.over.store(true, Ordering::Relaxed);
        drop(requests);
        self.0.came.notify_all();
    }
}

impl fmt::Debug for PendingRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests", self.requests.lock().len())
    }
}

/// Upper bound of requests that wait for [`Listener::wait`]; further ones are refused.
const MAX_WAITING: usize = 4096;

impl Listener {
    /// Listens; requests wait until [`Listener::wait`] takes them.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] when the discriminator is taken or too long.
    pub fn new(nic: &Nic, discriminator: &[u8]) -> Result<Self> {
        let waiting = Arc::new(PendingRequests::default());
        let queue = waiting.clone();
        Self::listen(nic, discriminator, waiting, move |request| {
            let mut requests = queue.requests.lock();
            if requests.len() < MAX_WAITING {
                requests.push_back(request);
                queue.came.notify_one();
            } else {
                request.reject_for_now("too many connection requests are waiting");
            }
        })
    }

    /// Listens, and answers each request at once by `on_request`, on the transport's thread: it must not block.
    /// [`Listener::wait`] then finds none. A panic in it costs the request only.
    ///
    /// # Errors
    /// Those of [`Listener::new`].
    pub fn with_handler(
        nic: &Nic,
        discriminator: &[u8],
        on_request: impl FnMut(Request) + Send + 'static,
    ) -> Result<Self> {
        Self::listen(nic, discriminator, Arc::default(), on_request)
    }

    fn listen(
        nic: &Nic,
        discriminator: &[u8],
        waiting: Arc<PendingRequests>,
        mut on_request: impl FnMut(Request) + Send + 'static,
    ) -> Result<Self> {
        let device = Arc::downgrade(nic.device());
        let (until_dropped, callback) =
            (UntilDropped(waiting.clone()), Callback::new("a listener's handler"));
        let connection_quota = nic.connection_quota().clone();
        let on_incoming = Box::new(move |incoming: Box<dyn Incoming>| {
            let _ = &until_dropped;
            match connection_quota.admit(incoming.peer()) {
                Ok(share) => {
                    let request = Request { incoming, share, device: device.clone() };
                    callback.call(|| on_request(request));
                }
                Err(why) => incoming.reject(Rejection::new(RejectKind::NoPlace, why)),
            }
        });
        nic.check()?;
        nic.device().listen(discriminator, on_incoming)?;
        Ok(Listener { nic: nic.clone(), discriminator: discriminator.to_vec(), waiting })
    }

    /// Waits for the next request, until the deadline at most.
    ///
    /// # Errors
    /// [`Error::Timeout`] when none came in time; [`Error::Lost`] when none can come any more ([`Nic::check`]).
    pub fn wait(&self, deadline: Deadline) -> Result<Request> {
        let start = Instant::now();
        let mut requests = self.waiting.requests.lock();
        if is_forked() {
            return Err(Error::forked());
        }
        loop {
            if let Some(request) = requests.pop_front() {
                return Ok(request);
            }
            if self.waiting.over.load(Ordering::Relaxed) {
                self.nic.check()?;
                return Err(Error::Lost("the NIC listens no more".into()));
            }
            if self.waiting.came.wait_until(&mut requests, deadline.instant()).timed_out()
                && deadline.passed()
                && requests.is_empty()
            {
                let what =
                    format!("a connection request at {:?}", String::from_utf8_lossy(&self.discriminator));
                return Err(Error::Timeout { what, waited: start.elapsed() });
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.nic.device().unlisten(&self.discriminator);
    }
}

impl Vi {
    pub(crate) fn hello(&self, private_data: &[u8]) -> Result<Hello> {
        let limit = self.nic().attributes().max_private_data;
        if private_data.len() > limit {
            let what = format!("{} bytes of private data, at most {limit} travel", private_data.len());
            return Err(Error::InvalidParameter(what));
        }
        let attributes = self.attributes();
        Ok(Hello {
            reliability: attributes.reliability,
            writable_ptag: attributes.enable_rdma_write.then_some(attributes.ptag),
            readable_ptag: attributes.enable_rdma_read.then_some(attributes.ptag),
            private_data: private_data.to_vec(),
        })
    }
}

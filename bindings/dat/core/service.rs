//! Service points, connection requests, and attempts to connect.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use udeck::names::address::{Host, ip_of, job_host};
use udeck::via::{Deadline, Error, Listener, NetAddress, Request, Vi, Withdrawal, thread};

use super::address::SockAddr;
use super::code::{Code, Result, Sub};
use super::ep::{Attempt, EPS, Ep};
use super::evd::Evd;
use super::event::{Event, number};
use super::ia::{Ia, MAX_PRIVATE};
use super::qos::Qos;
use super::slot::{Pool, Slot};
use super::state::{EpCall, EpEvent};
use super::wire::{self, Greeting};

/// Pools of these objects. Their kinds are `DAT_HANDLE_TYPE`s + 1.
pub static CRS: Pool<Cr> = Pool::new(1);
pub static PSPS: Pool<ServicePoint> = Pool::new(6);
pub static RSPS: Pool<ServicePoint> = Pool::new(9);

/// Time that an attempt to connect waits for a listener.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most unanswered requests of a service point, as many as a listening socket queues. A request beyond them is repeated by its asker.
const MAX_PENDING: usize = 128;
/// Initial interval between repeated requests; it doubles each time.
const AGAIN: Duration = Duration::from_millis(5);
/// Longest interval between repeated requests: many askers that repeat keep the peer from answering.
const AGAIN_AT_MOST: Duration = Duration::from_millis(100);

/// A connection request.
pub struct Cr {
    pub ia: Arc<Ia>,
    request: Request,
    pub theirs: Greeting,
    /// The asker's address, which the program has a pointer to.
    pub address: Box<SockAddr>,
    /// Handle of the reserved service point's end point; 0 for a request of a public one.
    pub local_ep: usize,
    reserved: Option<Reserved>,
    pending: Pending,
}

/// Returns the qualifiers that a provider gives out: those of ports without assigned services. Each process begins
/// with another one.
pub fn free_qualifiers() -> impl Iterator<Item = u64> {
    const FIRST: u64 = 49152;
    const COUNT: u64 = 65536 - FIRST;
    let start = u64::from(std::process::id());
    (0..COUNT).map(move |nth| FIRST + (start + nth) % COUNT)
}

/// A public or reserved service point.
pub struct ServicePoint {
    pub ia: Arc<Ia>,
    pub qualifier: u64,
    pub evd: Arc<Evd>,
    /// The end point of a reserved service point.
    pub ep: Option<&'static Slot<Ep>>,
    /// The reservation of `ep`, made when the service point begins to listen.
    reserved: Option<Reserved>,
    listener: Option<Listener>,
    door: Arc<Door>,
}

/// The end point of a reserved service point. The end point may go first, and its slot be another's; or another service point may have
/// it later, when its connection is over.
#[derive(Clone, Copy)]
struct Reserved {
    slot: &'static Slot<Ep>,
    /// Tells this reservation from all others.
    number: u64,
}

impl Reserved {
    fn of(slot: &'static Slot<Ep>) -> Reserved {
        Reserved { slot, number: slot.lock().as_ref().map_or(0, Ep::reservation) }
    }

    /// `None`: the end point has gone, or has another reservation.
    fn with<R>(self, with: impl FnOnce(&mut Ep) -> R) -> Option<R> {
        self.slot.lock().as_mut().filter(|ep| ep.reservation() == self.number).map(with)
    }
}

/// State that a service point and its requests share.
#[derive(Default)]
struct Door {
    /// Requests that nobody has answered.
    pending: AtomicUsize,
    /// Whether the service point is closed. Locked while a request's event is put, so that no event follows the close.
    is_closed: Mutex<bool>,
}

/// A request that nobody has answered, counted at its service point and at the event dispatcher.
struct Pending {
    door: Arc<Door>,
    requests: Arc<AtomicUsize>,
}

impl Pending {
    /// `None`: too many requests are unanswered. An event dispatcher keeps at least half of its room for other events.
    fn count(door: &Arc<Door>, evd: &Evd) -> Option<Pending> {
        let here = door.pending.fetch_add(1, Ordering::Relaxed);
        let all = evd.requests.fetch_add(1, Ordering::Relaxed);
        let counted = Pending { door: door.clone(), requests: evd.requests.clone() };
        (here < MAX_PENDING && all < evd.room() / 2).then_some(counted)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.door.pending.fetch_sub(1, Ordering::Relaxed);
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns a reserved end point, whose request was refused, to its service point; frees it if the service point is closed.
fn refused_at(reserved: Reserved, is_closed: bool) {
    reserved.with(|ep| {
        let _ = ep.reserve(EpEvent::Refused); // fails if the end point has moved on
        if is_closed {
            let _ = ep.reserve(EpEvent::Unreserved);
        }
    });
}

fn key(ia: &Ia, qualifier: u64) -> String {
    format!("dat/{}/{qualifier:016x}", ia.nic.attributes().name)
}

/// The discriminator of a qualifier for the interface below. No other part of the library listens at one with this prefix.
pub fn discriminator(qualifier: u64) -> Vec<u8> {
    [&b"dat/"[..], &qualifier.to_be_bytes()].concat()
}

impl ServicePoint {
    /// Makes a service point that listens nowhere yet.
    pub fn new(ia: Arc<Ia>, qualifier: u64, evd: Arc<Evd>, ep: Option<&'static Slot<Ep>>) -> ServicePoint {
        ServicePoint { ia, qualifier, evd, ep, reserved: None, listener: None, door: Arc::default() }
    }

    /// Begins to listen. `handle` is the service point's, `address` the one that requests come to; their events carry both.
    ///
    /// # Errors
    /// `DAT_CONN_QUAL_IN_USE`; or the NIC or the directory refuses it.
    pub fn listen(&mut self, handle: usize, address: usize) -> Result {
        let (ia, evd, qualifier) = (self.ia.clone(), self.evd.clone(), self.qualifier);
        let door = self.door.clone();
        // A reservation is used once: the first request takes it from the handler.
        self.reserved = self.ep.map(Reserved::of);
        let mut reserved = self.reserved;
        let is_reserved = reserved.is_some();
        let on_request = move |request: Request| {
            let Some(theirs) = Greeting::decode(request.private_data()) else {
                return request.reject("a uDAPL program waits there, and the other side is none");
            };
            let is_closed = door.is_closed.lock();
            if *is_closed {
                return request.reject("nobody listens there any more");
            }
            if is_reserved && reserved.is_none() {
                return request.reject("the reserved service point there has had its request");
            }
            let Some(pending) = Pending::count(&door, &evd) else {
                return request.reject_for_now(
                    "the program has as many connection requests as it may leave unanswered",
                );
            };
            let ep = reserved.take();
            let came = ep.is_none_or(|reserved| {
                reserved.with(|ep| ep.reserve(EpEvent::RequestCame)).is_some_and(|came| came.is_ok())
            });
            if !came {
                return request.reject("the end point of the reserved service point is gone");
            }
            let (host, process) = (theirs.host, theirs.process());
            let cr = CRS.insert(ia.provider, |_| Cr {
                ia: ia.clone(),
                request,
                theirs,
                address: Box::new(SockAddr::of(&host)),
                local_ep: ep.map_or(0, |reserved| reserved.slot.handle()),
                reserved: ep,
                pending,
            });
            ia.objects.lock().insert(cr.handle());
            let event = Event::request(handle, address, qualifier, cr.handle());
            if evd.put_from(event, || Some(process)).is_err()
                && let Ok(cr) = take(cr)
            {
                cr.request.reject_for_now("the program's event dispatcher for connection requests is full");
                if let Some(ep) = ep {
                    refused_at(ep, *is_closed);
                    reserved = Some(ep); // the service point still waits for its request
                }
            }
        };
        let listener =
            Listener::with_handler(&self.ia.nic, &discriminator(qualifier), on_request).map_err(|why| {
                match why {
                    Error::InvalidParameter(_) => Code::CONN_QUAL_IN_USE,
                    _ => Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceDevice),
                }
            })?;
        match self.ia.names.publish(&key(&self.ia, qualifier), &self.ia.nic.attributes().address) {
            Ok(true) => {}
            Ok(false) => return Err(Code::CONN_QUAL_IN_USE),
            Err(why) => {
                udeck::via::say!("uDAPL: a service point: {why}");
                return Err(Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceDevice));
            }
        }
        self.listener = Some(listener);
        Ok(())
    }

    /// Stops listening. A request that has come stays, and so does the end point that is reserved for it.
    pub fn close(&mut self) {
        // Set before the listener goes: its handler may be at a request, and goes on after that.
        *self.door.is_closed.lock() = true;
        if self.listener.take().is_some() {
            self.ia.names.withdraw(&key(&self.ia, self.qualifier));
        }
        if let Some(reserved) = self.reserved {
            let _ = reserved.with(|ep| ep.reserve(EpEvent::Unreserved)); // fails if the end point has moved on
        }
    }
}

/// Takes the request out of its slot, so that it is answered once.
///
/// # Errors
/// It was answered.
pub fn take(cr: &'static Slot<Cr>) -> Result<Cr> {
    let gone = Code::INVALID_HANDLE.of(Sub::HandleCr);
    CRS.remove(cr, gone, |taken| {
        taken.ia.forget(cr.handle());
        Ok(())
    })
}

/// `dat_cr_accept`, with an end point of the program's, or with that of the reserved service point.
///
/// # Errors
/// The end point's state forbids it, or the NIC has no interface left. The request stays.
pub fn accept(cr: &'static Slot<Cr>, ep: Option<&'static Slot<Ep>>, private_data: &[u8]) -> Result {
    let wrong = Code::INVALID_HANDLE.of(Sub::HandleEp);
    let mut begun = None;
    let Cr { request, ia, .. } = CRS.remove(cr, Code::INVALID_HANDLE.of(Sub::HandleCr), |cr_held| {
        let slot = match (cr_held.reserved, ep) {
            (Some(reserved), None) => reserved.slot,
            (Some(reserved), Some(ep)) if std::ptr::eq(reserved.slot, ep) => ep,
            (None, Some(ep)) => ep,
            _ => return Err(wrong),
        };
        let mut held = slot.lock();
        let is_it =
            |ep: &&mut Ep| cr_held.reserved.is_none_or(|reserved| reserved.number == ep.reservation());
        let ep = held.as_mut().filter(is_it).ok_or(wrong)?;
        ep.state().check(if cr_held.reserved.is_some() { EpCall::AcceptReserved } else { EpCall::Accept })?;
        if !Arc::ptr_eq(&cr_held.ia, &ep.face.ia) {
            return Err(wrong);
        }
        // The last step that may fail.
        let vi = ep.begin_accepting()?;
        let (attempt, greeting) = ep.accept(&cr_held.theirs, private_data);
        begun = Some((slot, vi, attempt, greeting));
        cr_held.ia.forget(cr.handle());
        Ok(())
    })?;
    let Some((slot, mut vi, attempt, greeting)) = begun else { return Err(Code::INTERNAL_ERROR) };
    // The accept waits for nobody, but a transport may take its time, and the peer may send something before it returns. So the end point's
    // lock is not held: threads that move end points on do not wait for this accept.
    let cq = ia.progress.cq_handle();
    let answered = request.accept(&mut vi, cq, cq, &greeting);
    // The end point may have gone meanwhile, and its slot be another's: `end_accepting` checks the attempt.
    if let Some(ep) = &mut *slot.lock() {
        ep.end_accepting(attempt, vi, &answered);
    }
    Ok(())
}

/// `dat_cr_reject`.
///
/// # Errors
/// It was answered.
pub fn reject(cr: &'static Slot<Cr>, private_data: &[u8]) -> Result {
    let Cr { request, reserved, pending, .. } = take(cr)?;
    let _ = request.reject_with(private_data); // fails only beyond MAX_PRIVATE bytes, of which the callers let none pass
    if let Some(reserved) = reserved {
        let is_closed = pending.door.is_closed.lock();
        refused_at(reserved, *is_closed);
    }
    Ok(())
}

/// Code of [`connect`] when no thread could be started. The end point is as before.
pub const NO_THREAD: Code = Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceMemory);

/// `dat_ep_connect`: asks on a thread of its own. The quality is that of the end point's settings, unless another one is named.
///
/// # Errors
/// The end point's state forbids it, or there is too much private data; [`NO_THREAD`].
pub fn connect(
    slot: &'static Slot<Ep>,
    host: Host,
    qualifier: u64,
    limit: Duration,
    qos: Option<Qos>,
    private_data: &[u8],
) -> Result {
    if private_data.len() > MAX_PRIVATE {
        return Err(Code::argument(5));
    }
    let mut held = slot.lock();
    let ep = held.as_mut().ok_or(Code::INVALID_HANDLE.of(Sub::HandleEp))?;
    // Hosts of a launcher's job have numbers; the own host is also known by its loopback address.
    let own = ep.face.ia.address;
    let host = if job_host(&own).is_some() && ip_of(&host).is_loopback() { own } else { host };
    let Attempt { vi, greeting, number: attempt, withdrawal } =
        ep.begin_connecting(host, qualifier, qos, private_data)?;
    let until = Deadline::after(limit);
    let asking =
        Asking { slot, ia: ep.face.ia.clone(), host, qualifier, greeting, attempt, withdrawal, until };
    drop(held);
    let failed = move |_: &str| {
        if let Some(ep) = slot.lock().as_mut().filter(|ep| ep.is_connecting(attempt)) {
            let _ = ep.disconnect(false); // fails if it is over already
        }
    };
    thread::spawn("dat-call", move || asking.run(vi), failed).map(drop).map_err(|why| {
        udeck::via::say!("uDAPL: dat_ep_connect: starting a thread: {why}");
        if let Some(ep) = &mut *slot.lock() {
            ep.not_asked(attempt);
        }
        NO_THREAD
    })
}

struct Asking {
    slot: &'static Slot<Ep>,
    ia: Arc<Ia>,
    host: Host,
    qualifier: u64,
    greeting: Vec<u8>,
    attempt: u64,
    /// Withdraws the attempt when the end point goes another way.
    withdrawal: Withdrawal,
    until: Deadline,
}

/// Number of the event that says why there is no connection, and private data of the peer's.
type Failed = (u32, Vec<u8>);

impl Asking {
    fn run(self, mut vi: Vi) {
        let outcome = self.ask(&mut vi);
        if let Some(ep) = &mut *self.slot.lock() {
            ep.end_connecting(self.attempt, vi, outcome);
        }
    }

    fn is_wanted(&self) -> bool {
        !self.ia.progress.is_closed() && !self.withdrawal.is_withdrawn()
    }

    /// Finds the address where the qualifier is served, or will be before `patience` ends. A directory that is slow to answer may take longer.
    fn find(&self, patience: Deadline) -> std::result::Result<Vec<u8>, Failed> {
        let key = key(&self.ia, self.qualifier);
        match self.ia.names.find(&self.host, &key, self.until, &|| !patience.passed() && self.is_wanted()) {
            Ok(Some(place)) => Ok(place),
            Ok(None) if self.until.passed() => Err((number::TIMED_OUT, Vec::new())),
            Ok(None) => Err((number::NON_PEER_REJECTED, Vec::new())),
            Err(why) => Err(unreachable(&why)),
        }
    }

    fn ask(&self, vi: &mut Vi) -> std::result::Result<Greeting, Failed> {
        let mut again = AGAIN;
        let patience = Deadline::after(PATIENCE);
        let mut place = self.find(patience)?;
        loop {
            let to = NetAddress { host: place.clone(), discriminator: discriminator(self.qualifier) };
            let cq = self.ia.progress.cq_handle();
            match vi.connect_unless(&self.withdrawal, &to, (cq, cq), &self.greeting, self.until) {
                Ok(theirs) => {
                    return Greeting::decode(&theirs).ok_or_else(|| {
                        vi.disconnect();
                        (number::NON_PEER_REJECTED, Vec::new())
                    });
                }
                // The peer listens no more, and the directory does not know yet.
                Err(Error::NoMatch(_)) if !patience.passed() && self.is_wanted() => {
                    std::thread::sleep(AGAIN);
                    place = self.find(patience)?;
                }
                // The peer has no room at the moment.
                Err(why) if why.is_no_place() && !self.until.passed() && self.is_wanted() => {
                    std::thread::sleep(again.min(self.until.remaining()));
                    again = (2 * again).min(AGAIN_AT_MOST);
                }
                Err(why) if why.is_no_place() => return Err((number::TIMED_OUT, Vec::new())),
                Err(Error::Rejected(rejection)) => {
                    return Err(match wire::refused(rejection) {
                        Some(private_data) => (number::PEER_REJECTED, private_data),
                        None => (number::NON_PEER_REJECTED, Vec::new()),
                    });
                }
                Err(Error::Timeout { .. }) => return Err((number::TIMED_OUT, Vec::new())),
                Err(Error::NoMatch(_) | Error::InvalidReliability) => {
                    return Err((number::NON_PEER_REJECTED, Vec::new()));
                }
                Err(why) => return Err(unreachable(&why)),
            }
        }
    }
}

#[cold]
fn unreachable(why: &dyn std::fmt::Display) -> Failed {
    udeck::via::say!("uDAPL: dat_ep_connect: {why}");
    (number::UNREACHABLE, Vec::new())
}

/// Ends an end point; with `at_any_rate` in any state.
///
/// # Errors
/// The end point is gone; or its state forbids the call, unless `at_any_rate`.
pub fn free_ep(slot: &'static Slot<Ep>, at_any_rate: bool) -> Result {
    let ended = EPS.remove(slot, Code::INVALID_HANDLE.of(Sub::HandleEp), |ep| {
        if !at_any_rate {
            ep.state().check(EpCall::Free)?;
        }
        ep.retire(); // uses its number, which is soon another's
        ep.face.ia.forget(slot.handle());
        Ok(())
    });
    ended.map(drop)
}

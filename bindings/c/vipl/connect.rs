//! Connections: listeners, requests, and peers that ask each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use udeck::via::auth::mac;
use udeck::via::{Deadline, Error, Listener, NetAddress as Below, Request, thread};

use super::address::{Host, NetAddress, hex};
use super::engine::NicState;
use super::error::{code, tell};
use super::handle::{Handle, Table};
use super::types::{INFINITE, Ulong, ViAttributes, VipReturn};
use super::vi::VIS;
use super::wire::Greeting;

pub(super) static CONNS: Table<Conn> = Table::new(5);

/// A request that waits for an answer.
pub(super) struct Conn {
    pub nic: Arc<NicState>,
    pub request: Request,
    pub theirs: Greeting,
    /// The address that the request came to.
    pub local: NetAddress,
}

/// Time before a request is repeated.
const AGAIN: Duration = Duration::from_millis(5);
/// Most peers of a host that ask at one discriminator at a time.
const PEERS: usize = 256;

pub(super) fn deadline(timeout: Ulong) -> Deadline {
    Deadline::after(if timeout == INFINITE { Duration::MAX } else { Duration::from_millis(timeout) })
}

fn door_key(nic: &NicState, discriminator: &[u8]) -> String {
    format!("{}/{}", nic.transport(), hex(discriminator))
}

fn peer_key(nic: &NicState, discriminator: &[u8], nth: usize) -> String {
    format!("{}/peer/{}/{nth:03}", nic.transport(), hex(discriminator))
}

/// Reports a failure of the name service.
#[cold]
fn names_failed(call: &str, why: &str) -> VipReturn {
    tell(call, &why);
    VipReturn::ERROR_RESOURCE
}

/// `VipConnectWait`: the next request at this discriminator.
pub(super) fn wait(nic: &Arc<NicState>, local: &NetAddress, until: Deadline) -> Result<Conn, VipReturn> {
    let listener = listen(nic, &local.discriminator)?;
    let mut last_look = false;
    loop {
        match listener.wait(Deadline::after(until.remaining().min(udeck_rdma::MAX_WAIT))) {
            Ok(request) => match Greeting::decode(request.private_data()) {
                Some(theirs) => {
                    return Ok(Conn { nic: nic.clone(), request, theirs, local: local.clone() });
                }
                None => request.reject("a VIPL program waits there, and the other side is none"),
            },
            Err(Error::Timeout { .. }) if nic.progress.is_closed() => {
                return Err(VipReturn::INVALID_PARAMETER);
            }
            Err(Error::Timeout { .. }) if !until.passed() => {}
            Err(Error::Timeout { .. }) if !last_look => {
                // Takes a request that came in between, so that none is refused because this call gives up.
                last_look = true;
                if !listen_no_more(nic, &local.discriminator, &listener) {
                    return Err(VipReturn::TIMEOUT);
                }
            }
            Err(Error::Timeout { .. }) => return Err(VipReturn::TIMEOUT),
            Err(why) => return Err(code(&why)),
        }
    }
}

fn listen(nic: &Arc<NicState>, discriminator: &[u8]) -> Result<Arc<Listener>, VipReturn> {
    let mut listeners = nic.listeners.lock();
    if let Some(listener) = listeners.get(discriminator) {
        return Ok(listener.clone());
    }
    let listener = Listener::new(&nic.nic, &door(discriminator)).map_err(|why| code(&why))?;
    let address = &nic.nic.attributes().address;
    match nic.names.publish(&door_key(nic, discriminator), address) {
        Ok(true) => {}
        Ok(false) => {
            tell("VipConnectWait", &"another process of this host waits at that discriminator");
            return Err(VipReturn::ERROR_RESOURCE);
        }
        Err(why) => return Err(names_failed("VipConnectWait", &why)),
    }
    let listener = Arc::new(listener);
    listeners.insert(discriminator.to_vec(), listener.clone());
    Ok(listener)
}

/// Stops listening, unless another thread waits at the discriminator, too.
fn listen_no_more(nic: &NicState, discriminator: &[u8], listener: &Arc<Listener>) -> bool {
    let mut listeners = nic.listeners.lock();
    // References of this thread and of the table.
    let is_last = Arc::strong_count(listener) == 2;
    if is_last && listeners.remove(discriminator).is_some() {
        nic.names.withdraw(&door_key(nic, discriminator));
    }
    is_last
}

/// Stops listening everywhere, because the NIC closes.
pub(super) fn listen_nowhere(nic: &NicState) {
    let gone = std::mem::take(&mut *nic.listeners.lock());
    for discriminator in gone.keys() {
        nic.names.withdraw(&door_key(nic, discriminator));
    }
}

/// The discriminator for the interface below. No other part of the library listens at one with this prefix.
fn door(discriminator: &[u8]) -> Vec<u8> {
    [b"vipl/", discriminator].concat()
}

/// `VipConnectAccept`, with a VI that could take the connection a moment ago. If it cannot any more, the request is refused.
pub(super) fn accept(conn: Conn, vi: Handle) -> Result<(), VipReturn> {
    let Some(mut vi) = VIS.lock(vi) else { return refuse(conn, VipReturn::INVALID_PARAMETER) };
    if !Arc::ptr_eq(vi.nic(), &conn.nic) {
        return refuse(conn, VipReturn::INVALID_PARAMETER);
    }
    let mut below = match vi.begin_connecting() {
        Ok(below) => below,
        Err(code) => return refuse(conn, code),
    };
    let greeting = vi.greeting(&conn.local).encode();
    let cq = conn.nic.progress.cq_handle();
    // Does not wait: the accept only answers, and the other side has its ring ready.
    let accepted = conn.request.accept(&mut below, cq, cq, &greeting);
    vi.end_connecting(below, accepted.is_ok());
    accepted.map_err(|why| code(&why))
}

#[cold]
fn refuse(conn: Conn, code: VipReturn) -> Result<(), VipReturn> {
    conn.request.reject("the program there could not accept with its VI");
    Err(code)
}

/// `VipConnectRequest`: asks until a listener is there, at most until the deadline.
pub(super) fn request(
    vi: Handle,
    local: &NetAddress,
    host: &Host,
    discriminator: &[u8],
    until: Deadline,
) -> Result<ViAttributes, VipReturn> {
    let (mut below, greeting, nic) = {
        let mut vi = VIS.lock(vi).ok_or(VipReturn::INVALID_PARAMETER)?;
        let below = vi.begin_connecting()?;
        (below, vi.greeting(local), vi.nic().clone())
    };
    let outcome = ask(&nic, &mut below, &greeting.encode(), host, discriminator, until);
    let Some(mut vi) = VIS.lock(vi) else { return Err(VipReturn::INVALID_PARAMETER) }; // the VI was destroyed meanwhile
    vi.end_connecting(below, outcome.is_ok());
    Ok(outcome?.attributes())
}

fn ask(
    nic: &NicState,
    below: &mut udeck::via::Vi,
    greeting: &[u8],
    host: &Host,
    discriminator: &[u8],
    until: Deadline,
) -> Result<Greeting, VipReturn> {
    let key = door_key(nic, discriminator);
    loop {
        let found = nic.names.find(host, &key, until, &|| !nic.progress.is_closed());
        let Some(address) = found.map_err(|why| names_failed("VipConnectRequest", &why))? else {
            return Err(VipReturn::NO_MATCH);
        };
        let to = Below { host: address, discriminator: door(discriminator) };
        let cq = nic.progress.cq_handle();
        match below.connect(&to, cq, cq, greeting, until) {
            Ok(theirs) => match Greeting::decode(&theirs) {
                Some(theirs) => return Ok(theirs),
                None => {
                    below.disconnect();
                    tell("VipConnectRequest", &"what answered is no VIPL program");
                    return Err(VipReturn::REJECT);
                }
            },
            // The peer listens no more, and the table does not know yet; or it listens again soon.
            Err(why) if is_passing(&why) && !until.passed() => {
                std::thread::sleep(AGAIN.min(until.remaining()));
            }
            Err(why) => {
                let code = code(&why);
                if code == VipReturn::ERROR_RESOURCE {
                    tell("VipConnectRequest", &why);
                }
                return Err(code);
            }
        }
    }
}

fn is_passing(why: &Error) -> bool {
    matches!(why, Error::NoMatch(_)) || why.is_no_place()
}

/// `VipConnectPeerRequest`: a thread of its own looks for the peer, and the VI below then asks the peer.
pub(super) fn peer_request(
    vi: Handle,
    local: NetAddress,
    host: Host,
    discriminator: Vec<u8>,
    until: Deadline,
) -> Result<(), VipReturn> {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let nic = {
        let mut vi = VIS.lock(vi).ok_or(VipReturn::INVALID_PARAMETER)?;
        vi.begin_peering(number, until)?;
        vi.nic().clone()
    };
    let entry = Entered::new(&nic, &local, vi, number, until);
    let peering = Peering { nic, vi, number, local, host, discriminator, until, _entry: entry };
    let failed = move |code| {
        if let Some(mut vi) = VIS.lock(vi) {
            vi.peer_found(number, Err(code), &NetAddress { host: None, discriminator: Vec::new() });
        }
    };
    let on_panic = move |why: &str| {
        tell("VipConnectPeerRequest", &why);
        failed(VipReturn::ERROR_RESOURCE);
    };
    if let Err(why) = thread::spawn("vipl-peer", move || peering.run(), on_panic) {
        tell("VipConnectPeerRequest", &format!("starting a thread: {why}"));
        failed(VipReturn::ERROR_RESOURCE);
    }
    Ok(())
}

/// A peer request of this process that is under way, or is over and still known by its name.
struct Entry {
    nic: Handle,
    discriminator: Vec<u8>,
    vi: Handle,
    number: u64,
    until: Deadline,
}

static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// Removes the entry when dropped.
struct Entered(u64);

impl Entered {
    fn new(nic: &NicState, local: &NetAddress, vi: Handle, number: u64, until: Deadline) -> Entered {
        let (nic, discriminator) = (nic.handle(), local.discriminator.clone());
        ENTRIES.lock().push(Entry { nic, discriminator, vi, number, until });
        Entered(number)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        ENTRIES.lock().retain(|entry| entry.number != self.0);
    }
}

/// Whether no call waits for this peer request any more.
fn is_over(vi: Handle, number: u64, until: Deadline) -> bool {
    until.passed() || VIS.lock(vi).is_none_or(|vi| !vi.is_peering(number))
}

struct Peering {
    nic: Arc<NicState>,
    vi: Handle,
    number: u64,
    local: NetAddress,
    host: Host,
    discriminator: Vec<u8>,
    until: Deadline,
    _entry: Entered,
}

impl Peering {
    fn run(self) {
        self.wait_for_earlier();
        let own = match self.take_number() {
            Ok(own) => own,
            Err(code) => return self.found(Err(code)),
        };
        let key = peer_key(&self.nic, &self.local.discriminator, own);
        self.found(self.find(own));
        // The entry stays to be found until the request is over.
        while !self.is_over() {
            std::thread::sleep(AGAIN);
        }
        self.nic.names.withdraw(&key);
    }

    fn is_over(&self) -> bool {
        is_over(self.vi, self.number, self.until)
    }

    /// Waits until earlier requests of this process that are over have given their numbers back: such a number would keep this request from
    /// its peer's.
    fn wait_for_earlier(&self) {
        let is_any_left = || {
            ENTRIES.lock().iter().any(|entry| {
                entry.number < self.number
                    && entry.nic == self.nic.handle()
                    && entry.discriminator == self.local.discriminator
                    && is_over(entry.vi, entry.number, entry.until)
            })
        };
        while is_any_left() && !self.is_over() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn found(&self, found: Result<Below, VipReturn>) {
        if let Some(mut vi) = VIS.lock(self.vi) {
            vi.peer_found(self.number, found, &self.local);
        }
    }

    /// Takes a number: several requests of a host may ask at one discriminator.
    fn take_number(&self) -> Result<usize, VipReturn> {
        let address = &self.nic.nic.attributes().address;
        for nth in 0..PEERS {
            let key = peer_key(&self.nic, &self.local.discriminator, nth);
            match self.nic.names.publish(&key, address) {
                Ok(true) => return Ok(nth),
                Ok(false) => {}
                Err(why) => return Err(names_failed("VipConnectPeerRequest", &why)),
            }
        }
        Err(VipReturn::ERROR_RESOURCE)
    }

    /// Finds the peer: on one host and at one discriminator, neighbours by number are each other's peers; otherwise equal numbers are.
    fn find(&self, own: usize) -> Result<Below, VipReturn> {
        let (mine, theirs) = (&self.local.discriminator, &self.discriminator);
        let is_same = self.nic.names.is_own(&self.host) && mine == theirs;
        let other = if is_same { own ^ 1 } else { own };
        let key = peer_key(&self.nic, theirs, other);
        let found = self.nic.names.find(&self.host, &key, self.until, &|| !self.is_over());
        match found.map_err(|why| names_failed("VipConnectPeerRequest", &why))? {
            Some(host) => {
                let mut ends = [(mine, own), (theirs, other)]
                    .map(|(name, nth)| [&(nth as u64).to_le_bytes()[..], name].concat());
                ends.sort();
                let meeting = mac(&[0; 32], "udeck vipl peers", &[&ends[0], &ends[1]]);
                Ok(Below { host, discriminator: meeting.to_vec() })
            }
            None => Err(VipReturn::TIMEOUT),
        }
    }
}

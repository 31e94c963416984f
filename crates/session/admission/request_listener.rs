//! Listener of the admission, and its callers that have proved nothing yet: few, not for long, and with little memory.
//!
//! There are at most [`CALLERS`] at a time; the others wait in the kernel's backlog, and the slowest caller loses its place
//! to them. Nothing here waits.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use udeck_sys::unauthenticated::{Bounds, Place};
use udeck_sys::{descriptor_advice, is_shortage, job_time, say};
use udeck_via::{Error, Result};

use super::handshake::{AcceptStep, Acceptor};
use super::socket::{accept_from, listen_at, prepare};
use super::wire::Request;
use super::{Admission, PendingRequest, nonce};
use crate::poll::{EventFlags, Found, Poller};

/// Bounds of the callers that are let in. One that has proved itself is safe, and makes its request within the same limit.
const CALLERS: Bounds = Bounds { most: 256, grace: Duration::from_secs(1), limit: Duration::from_secs(5) };
/// Upper bound of callers that are let in before other work is done: a burst of strangers does not starve links.
const ACCEPTS: usize = 32;
/// Pause of a process without descriptors before it tries again; callers stay in the backlog meanwhile.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);
/// Upper bound of addresses whose refusals are reported, once each.
const MAX_REPORTED: usize = 64;
/// Bytes of one read: the longest message of an unproven caller, and most requests, fit.
const READ_BYTES: usize = 256;

const HUNG_UP: &str = "it hung up in the middle of the hand-shake; of another job, perhaps";

/// The poller's token of the listener. Callers have their numbers as tokens.
const LISTENER: u64 = 0;

/// Listener for connection requests. It is readable ([`AsFd`]) when [`RequestListener::serve`] has something to do.
pub struct RequestListener {
    admission: Admission,
    address: SocketAddr,
    listener: OwnedFd,
    /// Watches the listener and the callers.
    poller: Poller,
    found: Found,
    /// Number of the last caller.
    last: u64,
    callers: HashMap<u64, Caller>,
    /// No caller is let in before this time.
    paused_until: Option<Instant>,
    /// Whether the listener is watched.
    open: bool,
    reported: HashSet<IpAddr>,
    reported_shortage: bool,
}

struct Caller {
    socket: OwnedFd,
    from: SocketAddr,
    since: Instant,
    handshake: Acceptor,
}

impl Admission {
    /// Listens at an address of one interface; at port 0, at a free port.
    ///
    /// # Errors
    /// Errors of the kernel: no such interface, the port is taken, no descriptors left.
    pub fn listen(&self, bind: SocketAddr) -> Result<RequestListener> {
        let (listener, address) =
            listen_at(bind).map_err(|error| Error::os(format!("listening at {bind}"), error))?;
        let watched = |poller: Poller| {
            poller.add(&listener, LISTENER, EventFlags::IN)?;
            Ok(poller)
        };
        let poller = Poller::new()
            .and_then(watched)
            .map_err(|error| Error::os(format!("watching the port {address}"), error))?;
        Ok(RequestListener {
            admission: self.clone(),
            address,
            listener,
            poller,
            found: Found::default(),
            last: LISTENER,
            callers: HashMap::new(),
            paused_until: None,
            open: true,
            reported: HashSet::new(),
            reported_shortage: false,
        })
    }
}

impl RequestListener {
    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether no caller is there that was let in and not passed on.
    pub fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }

    /// Lets callers in and handles their messages, up to one poll's worth. Requests go to `on_request`.
    pub fn serve(&mut self, on_request: &mut dyn FnMut(PendingRequest)) {
        let mut found = std::mem::take(&mut self.found);
        self.poller.poll(&mut found, Duration::ZERO);
        for token in found.tokens() {
            match token {
                LISTENER => self.answer(),
                number => self.listen_to(number, on_request),
            }
        }
        self.found = found;
    }

    fn answer(&mut self) {
        for _ in 0..ACCEPTS {
            if !self.make_place() {
                // Callers are served in their order: the others wait until a place is free.
                return self.watch(false);
            }
            match accept_from(self.listener.as_fd()) {
                Ok(Some((socket, from))) => self.admit(socket, from),
                Ok(None) => return,
                Err(error) if is_shortage(&error) => return self.pause_accepting(&error),
                // The caller is gone already.
                Err(_) => {}
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, from: SocketAddr) {
        let Ok(nonce) = nonce() else { return };
        self.last += 1;
        let (number, since) = (self.last, job_time());
        let Admission { keys, protocol, detect, .. } = self.admission.clone();
        let watched = prepare(socket.as_fd(), detect)
            .and_then(|()| self.poller.add(&socket, number, EventFlags::IN | EventFlags::RDHUP));
        if watched.is_ok() {
            let handshake = Acceptor::new(keys, protocol, nonce);
            self.callers.insert(number, Caller { socket, from, since, handshake });
        }
    }

    /// Returns the place of the next caller: a free one, or that of the slowest caller to prove itself.
    fn place(&self, now: Instant) -> Place<u64> {
        let (proven, strangers): (Vec<_>, Vec<_>) =
            self.callers.iter().partition(|(_, caller)| caller.handshake.is_proven());
        let strangers = strangers.into_iter().map(|(&number, caller)| (number, (), caller.since));
        Bounds { most: CALLERS.most.saturating_sub(proven.len()), ..CALLERS }.admit(strangers, (), now)
    }

    /// Returns whether there is a place now. The slowest caller is sent away for that, if it has had its time.
    fn make_place(&mut self) -> bool {
        match self.place(job_time()) {
            Place::Free => {}
            Place::Evict(number) => self.hang_up(number, "others waited while it said nothing"),
            Place::Full(_) => return false,
        }
        true
    }

    /// Handles a caller's message.
    fn listen_to(&mut self, number: u64, on_request: &mut dyn FnMut(PendingRequest)) {
        let Some(caller) = self.callers.get_mut(&number) else { return };
        match caller.receive() {
            Ok(None) => {}
            Ok(Some(request)) => {
                let Some(Caller { socket, from, handshake, .. }) = self.remove_caller(number) else { return };
                on_request(PendingRequest::new(socket, from, handshake.peer(), request));
            }
            Err(why) => self.hang_up(number, &why),
        }
    }

    fn hang_up(&mut self, number: u64, why: &str) {
        let Some(caller) = self.remove_caller(number) else { return };
        let address = caller.from.ip();
        if self.reported.len() < MAX_REPORTED && self.reported.insert(address) {
            say!("refused a connection from {address}: {why} (said once per address)");
        }
    }

    fn remove_caller(&mut self, number: u64) -> Option<Caller> {
        let caller = self.callers.remove(&number)?;
        self.poller.remove(&caller.socket);
        if self.paused_until.is_none() {
            self.watch(true);
        }
        Some(caller)
    }

    /// Stops accepting for a while: the process is short of descriptors.
    fn pause_accepting(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.reported_shortage, true) {
            let advice = descriptor_advice();
            say!("cannot accept connections and keeps trying: {error} ({advice})");
        }
        self.paused_until = Some(job_time() + SHORTAGE_PAUSE);
        self.watch(false);
    }

    fn watch(&mut self, open: bool) {
        if self.open != open {
            self.open = open;
            let events = if open { EventFlags::IN } else { EventFlags::empty() };
            self.poller.set(&self.listener, LISTENER, events);
        }
    }

    /// Does what is due. Returns the time of the next call, which [`RequestListener::serve`] may change.
    pub fn tick(&mut self, now: Instant) -> Option<Instant> {
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.watch(true);
        }
        let late = |caller: &Caller| now.duration_since(caller.since) >= CALLERS.limit;
        let gone: Vec<_> =
            self.callers.iter().filter(|(_, caller)| late(caller)).map(|(number, _)| *number).collect();
        for number in gone {
            self.hang_up(number, "it did not prove itself in time");
        }
        let late = self.callers.values().map(|caller| caller.since + CALLERS.limit).min();
        if self.open || self.paused_until.is_some() {
            return late.into_iter().chain(self.paused_until).min();
        }
        // No place is free, and callers may be waiting for one.
        let Place::Full(fair) = self.place(now) else {
            self.watch(true);
            return Some(now);
        };
        late.into_iter().chain([fair]).min()
    }
}

impl AsFd for RequestListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl fmt::Debug for RequestListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestListener({}, {} callers)", self.address, self.callers.len())
    }
}

impl Caller {
    /// Reads the bytes of the current message, and no more.
    fn receive(&mut self) -> std::result::Result<Option<Request>, String> {
        let mut buffer = [0; READ_BYTES];
        loop {
            let wants = self.handshake.wants().min(READ_BYTES);
            let len = match recv(&self.socket, &mut buffer[..wants], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(HUNG_UP.into()),
                Ok((_, len)) => len,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(Errno::CONNRESET) => return Err(HUNG_UP.into()),
                Err(error) => return Err(error.to_string()),
            };
            match self.handshake.input(&buffer[..len]) {
                Ok(AcceptStep::Nothing) => {}
                Ok(AcceptStep::Send(words)) => self.send(&words)?,
                Ok(AcceptStep::Request(request)) => return Ok(Some(request)),
                Err(refusal) => {
                    if let Some(words) = Acceptor::last_words(&refusal) {
                        let _ = self.send(&words);
                    }
                    return Err(refusal.to_string());
                }
            }
        }
    }

    /// Sends words, for which a fresh socket has room.
    fn send(&self, words: &[u8]) -> std::result::Result<(), String> {
        match send(&self.socket, words, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) if sent == words.len() => Ok(()),
            Ok(_) => Err("its socket takes nothing".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

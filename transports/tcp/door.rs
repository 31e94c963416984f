//! Callers that have proved nothing yet: few, not for long, and with little memory.
//!
//! At most [`CALLERS`] at a time; the others wait in the kernel's backlog, and whoever takes longest makes place when they
//! do. Runs on the helper.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use udeck_sys::{descriptor_advice, is_shortage};
use udeck_via::Result;

use crate::core::{Core, Token};
use crate::handshake::{Acceptor, Heard};
use crate::incoming::IncomingRequest;
use crate::poller::EventFlags;
use crate::socket::{accept_from, prepare};
use crate::wire::{Answer, Nonce, Request};

/// Callers that are let in at a time.
const CALLERS: usize = 256;
/// How long one may take to prove the secret and to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);
/// From when on one makes place for another, if there is none.
const SLOW: Duration = Duration::from_secs(1);
/// Callers let in before others are looked at: a burst of strangers does not starve links.
const ACCEPTS: usize = 32;
/// A process without descriptors leaves callers in the backlog for so long, and tries again.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);
/// Addresses of which refusals are told, once each.
const TOLD: usize = 64;
/// Bytes read at a time: as much as the longest message of a caller that is not proven has, and most requests.
const PIECE: usize = 256;

const HUNG_UP: &str = "it hung up in the middle of the hand-shake; of another job, perhaps";

/// See the module.
pub struct Door {
    core: Arc<Core>,
    listener: OwnedFd,
    callers: HashMap<u64, Caller>,
    /// Nobody is let in until then.
    shut_until: Option<Instant>,
    /// The listener is watched.
    open: bool,
    told: HashSet<IpAddr>,
    told_shortage: bool,
}

struct Caller {
    socket: OwnedFd,
    from: SocketAddr,
    since: Instant,
    handshake: Acceptor,
}

impl Door {
    /// # Errors
    /// The kernel's: the listener cannot be watched.
    pub fn new(core: Arc<Core>, listener: OwnedFd) -> io::Result<Self> {
        core.control.add(&listener, Token::Listener.encode(), EventFlags::IN)?;
        let (callers, told) = (HashMap::new(), HashSet::new());
        Ok(Door { core, listener, callers, shut_until: None, open: true, told, told_shortage: false })
    }

    /// Lets callers in.
    pub fn answer(&mut self) {
        for _ in 0..ACCEPTS {
            if self.callers.len() >= CALLERS && !self.make_place() {
                // Who comes first is done soonest: the others wait until one is.
                return self.watch(false);
            }
            match accept_from(self.listener.as_fd()) {
                Ok(Some((socket, from))) => self.admit(socket, from),
                Ok(None) => return,
                Err(error) if is_shortage(&error) => return self.shut(&error),
                // One that is gone already.
                Err(_) => {}
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, from: SocketAddr) {
        let Ok(nonce) = nonce() else { return };
        let (number, since) = (self.core.fresh(), Instant::now());
        let watched = prepare(socket.as_fd(), self.core.detect).and_then(|()| {
            self.core.control.add(&socket, Token::Caller(number).encode(), EventFlags::IN | EventFlags::RDHUP)
        });
        if watched.is_ok() {
            let handshake = Acceptor::new(self.core.secret, nonce);
            self.callers.insert(number, Caller { socket, from, since, handshake });
        }
    }

    /// The caller that takes longest to prove itself, and when it has had a fair time for that.
    fn slowest(&self) -> Option<(u64, Instant)> {
        let strangers = self.callers.iter().filter(|(_, caller)| !caller.handshake.is_proven());
        let slowest = strangers.min_by_key(|(_, caller)| caller.since)?;
        Some((*slowest.0, slowest.1.since + SLOW))
    }

    /// Sends the slowest caller away, if it has had its time.
    fn make_place(&mut self) -> bool {
        let Some((number, _)) = self.slowest().filter(|(_, fair)| *fair <= Instant::now()) else {
            return false;
        };
        self.send_away(number, "others waited while it said nothing");
        true
    }

    /// A caller has said something.
    pub fn listen_to(&mut self, number: u64) {
        let Some(caller) = self.callers.get_mut(&number) else { return };
        match caller.hear() {
            Ok(None) => {}
            Ok(Some(request)) => {
                let Some(Caller { socket, from, .. }) = self.let_go(number) else { return };
                self.pass_on(socket, from, request);
            }
            Err(why) => self.send_away(number, &why),
        }
    }

    fn pass_on(&self, socket: OwnedFd, from: SocketAddr, request: Request) {
        let Request { discriminator, hello } = request;
        let incoming = IncomingRequest::new(self.core.clone(), socket, from, hello);
        match self.core.listener(&discriminator) {
            Some(listener) => (listener.lock())(Box::new(incoming)),
            None => incoming.refuse(&Answer::NoMatch),
        }
    }

    fn send_away(&mut self, number: u64, why: &str) {
        let Some(caller) = self.let_go(number) else { return };
        let address = caller.from.ip();
        if self.told.len() < TOLD && self.told.insert(address) {
            let pid = std::process::id();
            eprintln!(
                "udeck: process {pid} refused a connection from {address}: {why} (said once per address)"
            );
        }
    }

    fn let_go(&mut self, number: u64) -> Option<Caller> {
        let caller = self.callers.remove(&number)?;
        self.core.control.remove(&caller.socket);
        if self.shut_until.is_none() {
            self.watch(true);
        }
        Some(caller)
    }

    /// The process is short of descriptors.
    fn shut(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.told_shortage, true) {
            let (pid, advice) = (std::process::id(), descriptor_advice());
            eprintln!("udeck: process {pid} cannot accept connections and keeps trying: {error} ({advice})");
        }
        self.shut_until = Some(Instant::now() + SHORTAGE_PAUSE);
        self.watch(false);
    }

    fn watch(&mut self, open: bool) {
        if self.open != open {
            self.open = open;
            let events = if open { EventFlags::IN } else { EventFlags::empty() };
            self.core.control.set(&self.listener, Token::Listener.encode(), events);
        }
    }

    /// Does what is due. Returns when that is to be done next.
    pub fn tick(&mut self, now: Instant) -> Option<Instant> {
        if self.shut_until.is_some_and(|until| until <= now) {
            self.shut_until = None;
            self.watch(true);
        }
        let late = |caller: &Caller| now.duration_since(caller.since) >= PATIENCE;
        let gone: Vec<_> =
            self.callers.iter().filter(|(_, caller)| late(caller)).map(|(number, _)| *number).collect();
        for number in gone {
            self.send_away(number, "it did not prove itself in time");
        }
        let late = self.callers.values().map(|caller| caller.since + PATIENCE).min();
        if self.open || self.shut_until.is_some() {
            return late.into_iter().chain(self.shut_until).min();
        }
        // There is no place, and others may be waiting for one.
        let fair = self.slowest().map(|(_, fair)| fair);
        if fair.is_some_and(|fair| fair <= now) {
            self.watch(true);
        }
        late.into_iter().chain(fair).min()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.core.control.remove(&self.listener);
        for caller in self.callers.values() {
            self.core.control.remove(&caller.socket);
        }
    }
}

impl Caller {
    /// Reads no more than the message under way.
    fn hear(&mut self) -> std::result::Result<Option<Request>, String> {
        let mut buffer = [0; PIECE];
        loop {
            let wants = self.handshake.wants().min(PIECE);
            let len = match recv(&self.socket, &mut buffer[..wants], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(HUNG_UP.into()),
                Ok((_, len)) => len,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(Errno::CONNRESET) => return Err(HUNG_UP.into()),
                Err(error) => return Err(error.to_string()),
            };
            match self.handshake.input(&buffer[..len]) {
                Ok(Heard::Nothing) => {}
                Ok(Heard::Send(words)) => self.say(&words)?,
                Ok(Heard::Request(request)) => return Ok(Some(request)),
                Err(refusal) => {
                    if let Some(words) = Acceptor::last_words(&refusal) {
                        let _ = self.say(&words);
                    }
                    return Err(refusal.to_string());
                }
            }
        }
    }

    /// A fresh socket has room for a few words.
    fn say(&self, words: &[u8]) -> std::result::Result<(), String> {
        match send(&self.socket, words, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) if sent == words.len() => Ok(()),
            Ok(_) => Err("its socket takes nothing".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// A number that nobody could foresee.
///
/// # Errors
/// The system has none.
pub fn nonce() -> Result<Nonce> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce)
        .map_err(|error| udeck_via::Error::os("drawing a nonce", io::Error::other(error)))?;
    Ok(nonce)
}

//! The maker's side: offers segments, and gives each to the members that ask for it.
//!
//! A member that asks before there is an offer waits until there is one, or until it gives up.
//!
//! Bounds: [`STRANGERS`] are the callers that have not proved who they are. One that loses its place is told to ask again. A
//! rank that has proved itself has at most [`MAX_REQUESTS`] connections; an answered one counts until the rank closes it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::auth::Keys;
use parking_lot::Mutex;
use udeck_sys::closer::{self, Endpoint};
use udeck_sys::job_time;
use udeck_sys::reactor::{Interest, Reactor, Token};
use udeck_sys::socket::{self, Received};
use udeck_sys::unauthenticated::{Bounds, Place};

use crate::segments::handshake::{Maker, Step};
use crate::segments::wire::{Datagram, MAX_DATAGRAM, Shape};

/// Bounds of the callers that have not proved who they are.
const STRANGERS: Bounds = Bounds { most: 64, grace: Duration::from_secs(1), limit: Duration::from_secs(5) };
/// Connections that one rank has with a maker, at most.
pub const MAX_REQUESTS: usize = 64;
/// Pause of accepting while there is no place for another stranger.
const REST: Duration = Duration::from_millis(50);

/// The maker's service for members that ask. It stops listening when dropped.
#[derive(Debug)]
pub struct Service {
    inner: Arc<Inner>,
    address: Vec<u8>,
}

struct Inner {
    reactor: Reactor,
    keys: Keys,
    state: Mutex<State>,
    this: Weak<Inner>,
}

#[derive(Default)]
struct State {
    offers: HashMap<String, Offer>,
    /// In the order in which they came.
    strangers: Vec<Stranger>,
    requests: Vec<Request>,
    next: u64,
}

struct Offer {
    shape: Shape,
    fd: OwnedFd,
}

struct Stranger {
    id: u64,
    since: Instant,
    socket: Arc<Endpoint>,
    token: Token,
}

/// A connection whose caller has proved its rank.
struct Request {
    id: u64,
    rank: u32,
    /// The segment that the caller wants; `None` once it was answered.
    wanted: Option<Shape>,
    socket: Arc<Endpoint>,
}

impl Service {
    /// Starts a service for the rank that has these keys. It listens at an address that nobody could foresee.
    ///
    /// # Errors
    /// Errors of the kernel: no descriptors or threads left.
    pub fn start(keys: Keys) -> io::Result<Service> {
        let mut number = [0; 16];
        getrandom::fill(&mut number).map_err(io::Error::other)?;
        let address = format!("udeck-segments-{:032x}", u128::from_le_bytes(number)).into_bytes();
        let listener = socket::listen_at(&address)?;
        let reactor = Reactor::start("segments")?;
        let inner =
            Arc::new_cyclic(|this| Inner { reactor, keys, state: Mutex::default(), this: this.clone() });
        let served = Arc::downgrade(&inner);
        let listener = Arc::new(listener);
        let accepted = listener.clone();
        let accept = move || served.upgrade().map_or(Interest::Done, |inner| inner.accept(&accepted));
        inner.reactor.add(listener.as_fd(), Box::new(accept))?;
        Ok(Service { inner, address })
    }

    /// The address at which members ask.
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// Gives this segment to the members that ask for it, until it is withdrawn. It replaces an earlier offer of the same name.
    pub fn offer(&self, shape: Shape, fd: OwnedFd) {
        let mut state = self.inner.state.lock();
        state.offers.insert(shape.name.clone(), Offer { shape, fd });
        let State { offers, requests, .. } = &mut *state;
        requests.iter_mut().for_each(|request| request.answer(offers));
    }

    /// Withdraws the offer of this name and round, if it stands.
    pub fn withdraw(&self, name: &str, round: u64) {
        let mut state = self.inner.state.lock();
        if state.offers.get(name).is_some_and(|offer| offer.shape.round == round) {
            state.offers.remove(name);
        }
    }
}

impl Inner {
    fn accept(&self, listener: &Endpoint) -> Interest {
        if closer::is_behind() || !self.has_place() {
            return Interest::Rest(REST);
        }
        match socket::accept_from(listener.as_fd()) {
            Ok(Some(socket)) => self.meet(Arc::new(socket)),
            Ok(None) => {}
            Err(_) => return Interest::Rest(REST),
        }
        let late = self.state.lock().strangers.first().map(|oldest| oldest.since + STRANGERS.limit);
        late.map_or(Interest::Keep, |late| Interest::Within(late.saturating_duration_since(job_time())))
    }

    fn meet(&self, socket: Arc<Endpoint>) {
        // A process of another user shares no memory with us; the kernel says who it is.
        if !socket::peer_identity(socket.as_fd()).is_ok_and(|(uid, _)| uid == socket::own_uid()) {
            return;
        }
        let mut nonce = [0; 32];
        if getrandom::fill(&mut nonce).is_err() {
            return;
        }
        let mut state = self.state.lock();
        state.next += 1;
        let id = state.next;
        let (weak, mut maker, served) =
            (self.this.clone(), Maker::Meets(self.keys.clone(), nonce), socket.clone());
        let serve =
            move || weak.upgrade().map_or(Interest::Done, |inner| inner.serve(id, &served, &mut maker));
        // This is the reactor's thread: the handler does not run before this one ends.
        if let Ok(token) = self.reactor.add(socket.as_fd(), Box::new(serve)) {
            state.strangers.push(Stranger { id, since: job_time(), socket, token });
        }
    }

    /// Ends the strangers that are late. Returns whether there is a place for another; the oldest one may lose it for that.
    fn has_place(&self) -> bool {
        let now = job_time();
        let mut state = self.state.lock();
        let is_late = |one: &mut Stranger| one.since + STRANGERS.limit <= now;
        let mut ended: Vec<_> = state.strangers.extract_if(.., is_late).collect();
        let strangers = state.strangers.iter().enumerate().map(|(index, one)| (index, (), one.since));
        let place = STRANGERS.admit(strangers, (), now);
        if let Place::Evict(oldest) = place {
            ended.push(state.strangers.remove(oldest));
        }
        drop(state);
        for stranger in ended {
            send_datagram(&stranger.socket, &Datagram::Busy, None);
            self.reactor.remove(stranger.token);
        }
        !matches!(place, Place::Full(_))
    }

    /// Handles a caller's datagram, or its end.
    fn serve(&self, id: u64, socket: &Arc<Endpoint>, maker: &mut Maker) -> Interest {
        let mut buffer = vec![0; MAX_DATAGRAM];
        let stays = match socket::receive(socket.as_fd(), &mut buffer) {
            Ok(Received::Nothing) => true,
            // A peer has no reason to pass a descriptor to this side.
            Ok(Received::Datagram { len, truncated: false, fds }) if fds.is_empty() => {
                self.handle_datagram(id, socket, maker, &buffer[..len])
            }
            _ => false,
        };
        if stays {
            return Interest::Keep;
        }
        let mut state = self.state.lock();
        state.strangers.retain(|stranger| stranger.id != id);
        state.requests.retain(|request| request.id != id);
        Interest::Done
    }

    /// Handles one datagram. Returns whether the caller stays.
    fn handle_datagram(&self, id: u64, socket: &Arc<Endpoint>, maker: &mut Maker, bytes: &[u8]) -> bool {
        let step = Datagram::decode(bytes).ok_or_else(|| "it broke the hand-shake".to_owned());
        match step.and_then(|datagram| maker.input(datagram)) {
            Ok(Step::Say(answer)) => send_datagram(socket, &answer, None),
            Ok(Step::Wanted(rank, shape)) => {
                self.take(Request { id, rank, wanted: Some(shape), socket: socket.clone() })
            }
            Err(why) => {
                send_datagram(socket, &Datagram::refused(&why), None);
                false
            }
        }
    }

    /// Takes the request of a caller that has proved its rank. The caller stays, because the answer lies in its socket until
    /// it has read it.
    fn take(&self, mut request: Request) -> bool {
        let mut state = self.state.lock();
        state.strangers.retain(|stranger| stranger.id != request.id);
        let rank = request.rank;
        if state.requests.iter().filter(|other| other.rank == rank).count() >= MAX_REQUESTS {
            send_datagram(&request.socket, &Datagram::Busy, None);
            return false;
        }
        request.answer(&state.offers);
        state.requests.push(request);
        true
    }
}

impl Request {
    /// Answers the request if it is unanswered and the offer decides it.
    fn answer(&mut self, offers: &HashMap<String, Offer>) {
        let Some(wanted) = &self.wanted else { return };
        let Some(Offer { shape, fd }) = offers.get(&wanted.name) else { return };
        match verdict(shape, wanted, self.rank) {
            None => return,
            Some(Ok(())) => send_datagram(&self.socket, &Datagram::Given, Some(fd)),
            Some(Err(why)) => send_datagram(&self.socket, &Datagram::refused(&why), None),
        };
        self.wanted = None;
    }
}

/// Whether a rank gets the offered segment, or why not; `None`: it wants one of a later round.
fn verdict(offered: &Shape, wanted: &Shape, rank: u32) -> Option<Result<(), String>> {
    if wanted.round > offered.round {
        return None;
    }
    if wanted.round < offered.round {
        let (theirs, ours) = (wanted.round + 1, offered.round + 1);
        return Some(Err(format!("the maker is at call {ours} for this name, not at call {theirs}")));
    }
    let is_member = offered.members.contains(&rank);
    Some(if wanted == offered && is_member { Ok(()) } else { Err(format!("the maker offers {offered}")) })
}

/// Sends a datagram, and perhaps the descriptor of a segment. Returns whether it was sent.
fn send_datagram(socket: &Endpoint, datagram: &Datagram, fd: Option<&OwnedFd>) -> bool {
    let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
    // A caller is sent two datagrams at most: whatever does not fit is for a caller that does not read.
    socket::send(socket.as_fd(), &datagram.encode(), &fds).unwrap_or(false)
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Inner")
            .field("offers", &state.offers.len())
            .field("requests", &state.requests.len())
            .finish()
    }
}

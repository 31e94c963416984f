//! Peer sockets of a NIC: one to each process that we connected to, and one from each that connected to us.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use udeck_sys::closer::{Endpoint, PassedFd};
use udeck_sys::reactor::{Interest, Token};
use udeck_sys::{is_shortage, socket};
use udeck_via::{Error, PollBudget, RejectKind, Rejection, Result, Until};

use super::ShmDevice;
use super::accept::{SHORTAGE_PAUSE, nonce};
use super::request::IncomingRequest;
use crate::connection::Loss;
use crate::handshake::Handshake;
use crate::peer_socket::{Ended, Event, PeerSocket, process};
use crate::peer_socket_wire::{Datagram, MAX_DATAGRAM};

/// Reason of a peer socket's end when its socket was closed.
const CLOSED_OR_DIED: &str = "closed its connection or died";

/// A peer's address, and the rank that it must prove to be; `None`: any process of the job.
pub(super) type Whom = (Vec<u8>, Option<u32>);

#[derive(Default)]
pub(super) struct PeerSockets {
    /// Peer sockets made by us, by the peer's address and the rank that it has proved to be.
    pub made: HashMap<Whom, Arc<PeerSocket>>,
    /// All peer sockets, with their registrations at the reactor.
    pub all: Vec<(Arc<PeerSocket>, Vec<Token>)>,
    pub listening: Option<Token>,
    /// Whether stderr was told that a process wants more peer sockets than it may have.
    pub reported_quota: bool,
    /// Whether stderr was told that this process lacks descriptors.
    pub reported_shortage: bool,
}

impl ShmDevice {
    /// Returns the peer socket for our requests to `peer` at `address`, and makes it if need be.
    pub(super) fn peer_socket_to(
        &self,
        address: &[u8],
        peer: Option<u32>,
        until: &Until,
    ) -> Result<Arc<PeerSocket>> {
        let pair =
            self.options.keys.call(peer).map_err(|error| Error::InvalidParameter(error.to_string()))?;
        let whom = (address.to_vec(), peer);
        if let Some(peer_socket) = self.made_to(&whom) {
            peer_socket.wait_up(until)?;
            return Ok(peer_socket);
        }
        // The connect may wait, so it runs without the lock, which the reactor and revocation take.
        let socket = connect_socket(address, until)?;
        let (uid, pid) =
            socket::peer_identity(socket.as_fd()).map_err(|e| Error::os("asking who the peer is", e))?;
        if uid != socket::own_uid() {
            return Err(another_user(uid, pid));
        }
        let nonce = nonce().map_err(|e| Error::os("drawing a nonce", e))?;
        let (handshake, meet) = Handshake::connect(pair, self.boot_id, nonce);
        let mut peer_sockets = self.peer_sockets.lock();
        if let Some(others) =
            peer_sockets.made.get(&whom).filter(|peer_socket| peer_socket.is_usable()).cloned()
        {
            drop(peer_sockets);
            others.wait_up(until)?;
            return Ok(others);
        }
        let peer_socket = PeerSocket::new(socket, pid, handshake, &self.space);
        // The peer socket is watched under the same lock: nobody finds one that the reactor does not run.
        self.watch(&mut peer_sockets, &peer_socket).map_err(|e| Error::os("watching a new link", e))?;
        peer_sockets.made.insert(whom, peer_socket.clone());
        drop(peer_sockets);
        if let Err(why) = peer_socket.send(&meet, &[]) {
            peer_socket.down(why, Loss::Unresponsive);
            self.forget_peer_socket(&peer_socket);
        }
        peer_socket.wait_up(until)?;
        Ok(peer_socket)
    }

    fn made_to(&self, whom: &Whom) -> Option<Arc<PeerSocket>> {
        self.peer_sockets.lock().made.get(whom).filter(|peer_socket| peer_socket.is_usable()).cloned()
    }

    /// Registers a peer socket with the reactor: its datagrams, and the death of its process. Either both are
    /// registered or neither.
    pub(super) fn watch(
        &self,
        peer_sockets: &mut PeerSockets,
        peer_socket: &Arc<PeerSocket>,
    ) -> io::Result<()> {
        let death = self.watch_death(peer_socket)?;
        let (weak, served) = (self.this.clone(), peer_socket.clone());
        // The callback may run at once. To forget the peer socket, it waits for the lock.
        let datagrams = self.reactor.add(
            peer_socket.socket(),
            Box::new(move || match weak.upgrade() {
                Some(device) => device.on_peer_socket(&served),
                None => Interest::Done,
            }),
        );
        match datagrams {
            Ok(datagrams) => {
                peer_socket.watched_by(&self.reactor, datagrams);
                peer_sockets.all.push((peer_socket.clone(), death.into_iter().chain([datagrams]).collect()));
                Ok(())
            }
            Err(error) => {
                death.into_iter().for_each(|token| self.reactor.remove(token));
                Err(error)
            }
        }
    }

    /// Watches for the death of the peer's process. Where there is no such watch (a process in another pid
    /// namespace, a system without it), the socket's end reports the death.
    fn watch_death(&self, peer_socket: &Arc<PeerSocket>) -> io::Result<Option<Token>> {
        let Some(pid) = peer_socket.pid else { return Ok(None) };
        let death = match socket::death_of(pid) {
            Ok(death) => death,
            Err(error) if is_shortage(&error) => return Err(error),
            Err(_) => return Ok(None),
        };
        let (weak, peer_socket) = (self.this.clone(), peer_socket.clone());
        let died = move || {
            peer_socket.down(format!("process {pid} died"), Loss::Dead);
            // A child that the peer forked may still hold its end of the socket.
            if let Some(device) = weak.upgrade() {
                device.forget_peer_socket(&peer_socket);
                device.revoking.sweep(&device.board);
            }
            Interest::Done
        };
        self.reactor.add(&death, Box::new(died)).map(Some)
    }

    /// Handles the datagrams of a readable peer socket. One that went down while its process lives is read no more,
    /// because nobody would believe it: its datagrams stay in it and go with it, and it is watched for the end of
    /// that process only. One round takes a bounded number of datagrams before other sockets are served; the rest
    /// keep the socket readable.
    fn on_peer_socket(&self, peer_socket: &Arc<PeerSocket>) -> Interest {
        peer_socket.send_unsent();
        let mut buffer = [0; MAX_DATAGRAM];
        let mut budget = PollBudget::once();
        while budget.take() {
            if peer_socket.is_down() {
                return self.on_peer_socket_down(peer_socket);
            }
            let (why, how) = match socket::receive(peer_socket.socket(), &mut buffer) {
                Ok(socket::Received::Nothing) => return Interest::Keep,
                Ok(socket::Received::Closed) => (CLOSED_OR_DIED.into(), Loss::Dead),
                Ok(socket::Received::Datagram { len, truncated: false, fds }) => {
                    match self.on_datagram(peer_socket, &buffer[..len], fds) {
                        Ok(()) => continue,
                        Err(short @ Ended::Short(_)) => (short, Loss::Unresponsive),
                        Err(lost) => (lost, Loss::ProtocolError),
                    }
                }
                Ok(socket::Received::Datagram { .. }) => (
                    "sent a datagram that is too long, or has too many descriptors".into(),
                    Loss::ProtocolError,
                ),
                // The datagram waits, as do those behind it.
                Err(error) if is_shortage(&error) && peer_socket.meeting_for().is_none() => {
                    self.report_shortage(&error);
                    return Interest::Rest(SHORTAGE_PAUSE);
                }
                Err(error) => (Ended::by_call("reading from its socket", &error), Loss::Unresponsive),
            };
            self.end_peer_socket(peer_socket, why, how);
            if how == Loss::Dead || peer_socket.connections().is_empty() {
                return Interest::Done;
            }
        }
        Interest::Keep
    }

    fn on_peer_socket_down(&self, peer_socket: &Arc<PeerSocket>) -> Interest {
        match socket::is_hung_up(peer_socket.socket()) {
            Ok(false) => Interest::HangUp,
            Ok(true) => {
                self.end_peer_socket(peer_socket, CLOSED_OR_DIED.into(), Loss::Dead);
                Interest::Done
            }
            // The watch for the process's death remains.
            Err(_) => Interest::Done,
        }
    }

    fn end_peer_socket(&self, peer_socket: &Arc<PeerSocket>, why: Ended, how: Loss) {
        let why = match why {
            Ended::Lost(why) => Ended::Lost(format!("process {}: {why}", process(peer_socket.pid))),
            Ended::Short(text) => {
                // The request that we refuse waits for the end of the hand-shake, and may be gone.
                let rejection = Rejection::new(RejectKind::Failed, text.clone());
                let refusal = Datagram::Refuse { id: 0, rejection };
                let _ = peer_socket.send(&refusal, &[]);
                Ended::Short(text)
            }
        };
        peer_socket.down(why, how);
        if how == Loss::Dead || peer_socket.connections().is_empty() {
            self.forget_peer_socket(peer_socket);
            self.revoking.sweep(&self.board);
        }
    }

    /// Forgets peer sockets that are down and were kept for connections that are gone now.
    pub(super) fn forget_spent(&self, peer_sockets: &[Arc<PeerSocket>]) {
        for peer_socket in peer_sockets
            .iter()
            .filter(|peer_socket| peer_socket.is_down() && peer_socket.connections().is_empty())
        {
            self.forget_peer_socket(peer_socket);
        }
    }

    pub(super) fn forget_peer_socket(&self, peer_socket: &Arc<PeerSocket>) {
        let mut peer_sockets = self.peer_sockets.lock();
        peer_sockets.made.retain(|_, made| !Arc::ptr_eq(made, peer_socket));
        let at = peer_sockets.all.iter().position(|(one, _)| Arc::ptr_eq(one, peer_socket));
        let tokens = at.map(|at| peer_sockets.all.swap_remove(at).1);
        drop(peer_sockets);
        tokens.into_iter().flatten().for_each(|token| self.reactor.remove(token));
    }

    fn on_datagram(
        &self,
        peer_socket: &Arc<PeerSocket>,
        bytes: &[u8],
        fds: Vec<PassedFd>,
    ) -> std::result::Result<(), Ended> {
        let datagram = Datagram::decode(bytes).map_err(|malformed| malformed.to_string())?;
        let ours = [self.board.fd(), self.arenas.outbox.fd(), self.arenas.landing.fd()];
        match peer_socket.input(datagram, fds, ours)? {
            Event::Nothing => {}
            Event::Broken => {
                peer_socket.connections().iter().for_each(|connection| connection.report_broken())
            }
            Event::Request { id, doorbells, hello, discriminator, control } => {
                let device = self.this.upgrade().ok_or("the NIC is closing")?;
                let mut request = IncomingRequest {
                    device,
                    peer_socket: peer_socket.clone(),
                    id,
                    doorbells,
                    hello,
                    control: Arc::new(control),
                    answered: false,
                };
                let listener = self.listeners.lock().get(&discriminator).cloned();
                match listener {
                    Some(listener) => (listener.lock())(Box::new(request)),
                    None => request.refuse(RejectKind::NoListener.into()),
                }
            }
        }
        Ok(())
    }
}

/// Connects to `address`. Waits while the peer's backlog is full.
fn connect_socket(address: &[u8], until: &Until) -> Result<Endpoint> {
    loop {
        match socket::connect_to(address) {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !until.passed() => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => {
                let what = format!("connecting to the process at {:?}", String::from_utf8_lossy(address));
                return Err(Error::os(what, error));
            }
        }
    }
}

/// Error for a listener of another user: the address cannot be reached over shared memory, but perhaps by another
/// transport. (Two containers may share a network namespace, and with it the names of sockets, but not a user
/// namespace.)
fn another_user(uid: u32, pid: Option<i32>) -> Error {
    let what = format!("shared memory with process {}", process(pid));
    let own = socket::own_uid();
    let why =
        format!("it runs as another user or in another user namespace (id {uid}, this process's is {own})");
    Error::Unavailable { what, why }
}

//! Links: one with each process that we connected to, or that connected to us, and what comes over them.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use udeck_sys::closer::{Endpoint, Passed};
use udeck_sys::reactor::{Interest, Token};
use udeck_sys::{Deadline, is_shortage, socket};
use udeck_via::{Error, PollBudget, Result};

use super::ShmDevice;
use super::accept::nonce;
use super::request::IncomingRequest;
use crate::connection::Loss;
use crate::handshake::Handshake;
use crate::link::{Event, Link, process};
use crate::link_wire::{Datagram, MAX_DATAGRAM, Why};

/// How a link ends whose socket does.
const CLOSED_OR_DIED: &str = "closed its link or died";

/// A peer's address, and the rank that it is to be; `None`: anybody of the job.
pub(super) type Whom = (Vec<u8>, Option<u32>);

#[derive(Default)]
pub(super) struct Links {
    /// Made by us: by the peer's address, and by the rank that it has proved to be.
    pub made: HashMap<Whom, Arc<Link>>,
    /// All, with what runs on the reactor for them.
    pub all: Vec<(Arc<Link>, Vec<Token>)>,
    pub listening: Option<Token>,
    /// The user knows that a process wants more links than it may have.
    pub told_of_enough: bool,
}

impl ShmDevice {
    /// The link that our requests to `peer` at `address` take, made if need be.
    pub(super) fn link_to(&self, address: &[u8], peer: Option<u32>, deadline: Deadline) -> Result<Arc<Link>> {
        let pair =
            self.options.keys.call(peer).map_err(|error| Error::InvalidParameter(error.to_string()))?;
        let whom = (address.to_vec(), peer);
        if let Some(link) = self.made_to(&whom) {
            link.wait_up(deadline)?;
            return Ok(link);
        }
        // May wait: without the lock, which the reactor takes, and whoever takes a window back.
        let socket = connect_socket(address, deadline)?;
        let (uid, pid) =
            socket::peer_identity(socket.as_fd()).map_err(|e| Error::os("asking who the peer is", e))?;
        if uid != socket::own_uid() {
            return Err(another_user(uid, pid));
        }
        let nonce = nonce().map_err(|e| Error::os("drawing a nonce", e))?;
        let (handshake, meet) = Handshake::connect(pair, self.boot_id, nonce);
        let mut links = self.links.lock();
        if let Some(others) = links.made.get(&whom).filter(|link| link.is_usable()).cloned() {
            drop(links);
            others.wait_up(deadline)?;
            return Ok(others);
        }
        let link = Link::new(socket, pid, handshake, &self.space);
        // Under the same lock: nobody finds a link that the reactor does not run.
        self.watch(&mut links, &link).map_err(|e| Error::os("watching a new link", e))?;
        links.made.insert(whom, link.clone());
        drop(links);
        if let Err(why) = link.send(&meet, &[]) {
            link.down(&why, Loss::Stuck);
            self.forget_link(&link);
            return Err(Error::Lost(why));
        }
        link.wait_up(deadline)?;
        Ok(link)
    }

    fn made_to(&self, whom: &Whom) -> Option<Arc<Link>> {
        self.links.lock().made.get(whom).filter(|link| link.is_usable()).cloned()
    }

    /// Lets the reactor run a link: its datagrams, and the death of the process behind it. Both, or nothing is left of it.
    pub(super) fn watch(&self, links: &mut Links, link: &Arc<Link>) -> io::Result<()> {
        let death = self.watch_death(link)?;
        let (weak, served) = (self.this.clone(), link.clone());
        // It may be called at once; to forget the link, it waits for the lock.
        let datagrams = self.reactor.add(
            link.socket(),
            Box::new(move || match weak.upgrade() {
                Some(device) => device.on_link(&served),
                None => Interest::Done,
            }),
        );
        match datagrams {
            Ok(datagrams) => {
                links.all.push((link.clone(), death.into_iter().chain([datagrams]).collect()));
                Ok(())
            }
            Err(error) => {
                death.into_iter().for_each(|token| self.reactor.remove(token));
                Err(error)
            }
        }
    }

    /// Where there is no such watch (a process in another pid namespace, a system without it), the socket's end tells.
    fn watch_death(&self, link: &Arc<Link>) -> io::Result<Option<Token>> {
        let Some(pid) = link.pid else { return Ok(None) };
        let death = match socket::death_of(pid) {
            Ok(death) => death,
            Err(error) if is_shortage(&error) => return Err(error),
            Err(_) => return Ok(None),
        };
        let (weak, link) = (self.this.clone(), link.clone());
        let died = move || {
            link.down(&format!("process {pid} died"), Loss::Dead);
            // A child that it forked may have its end of the socket still.
            if let Some(device) = weak.upgrade() {
                device.forget_link(&link);
                device.revoking.sweep(&device.board);
            }
            Interest::Done
        };
        self.reactor.add(&death, Box::new(died)).map(Some)
    }

    /// A link has something to read. One that went down while its process lives is read no more, because nobody would believe
    /// it: what it carries stays in it, and goes with it. It is watched for that process's end. A round of datagrams is taken
    /// before the others are looked at; what is left keeps the link readable.
    fn on_link(&self, link: &Arc<Link>) -> Interest {
        let mut buffer = [0; MAX_DATAGRAM];
        let mut budget = PollBudget::once();
        while budget.take() {
            if link.is_down() {
                return self.on_link_down(link);
            }
            let (why, how) = match socket::receive(link.socket(), &mut buffer) {
                Ok(socket::Received::Nothing) => return Interest::Keep,
                Ok(socket::Received::Closed) => (CLOSED_OR_DIED.to_owned(), Loss::Dead),
                Ok(socket::Received::Datagram { len, truncated: false, fds }) => {
                    match self.on_datagram(link, &buffer[..len], fds) {
                        Ok(()) => continue,
                        Err(why) => (why, Loss::Lied),
                    }
                }
                Ok(socket::Received::Datagram { .. }) => (
                    "sent a datagram that is too long, or more descriptors than there is room for here"
                        .to_owned(),
                    Loss::Lied,
                ),
                Err(error) => (format!("its link cannot be read: {error}"), Loss::Stuck),
            };
            self.end_link(link, &why, how);
            if how == Loss::Dead || link.connections().is_empty() {
                return Interest::Done;
            }
        }
        Interest::Keep
    }

    fn on_link_down(&self, link: &Arc<Link>) -> Interest {
        match socket::is_hung_up(link.socket()) {
            Ok(false) => Interest::HangUp,
            Ok(true) => {
                self.end_link(link, CLOSED_OR_DIED, Loss::Dead);
                Interest::Done
            }
            // There is the watch for its death.
            Err(_) => Interest::Done,
        }
    }

    fn end_link(&self, link: &Arc<Link>, why: &str, how: Loss) {
        link.down(&format!("process {}: {why}", process(link.pid)), how);
        if how == Loss::Dead || link.connections().is_empty() {
            self.forget_link(link);
            self.revoking.sweep(&self.board);
        }
    }

    /// Forgets links that are down and were kept for connections, which are gone now.
    pub(super) fn forget_spent(&self, links: &[Arc<Link>]) {
        for link in links.iter().filter(|link| link.is_down() && link.connections().is_empty()) {
            self.forget_link(link);
        }
    }

    pub(super) fn forget_link(&self, link: &Arc<Link>) {
        let mut links = self.links.lock();
        links.made.retain(|_, made| !Arc::ptr_eq(made, link));
        let at = links.all.iter().position(|(one, _)| Arc::ptr_eq(one, link));
        let tokens = at.map(|at| links.all.swap_remove(at).1);
        drop(links);
        tokens.into_iter().flatten().for_each(|token| self.reactor.remove(token));
    }

    fn on_datagram(
        &self,
        link: &Arc<Link>,
        bytes: &[u8],
        fds: Vec<Passed>,
    ) -> std::result::Result<(), String> {
        let datagram = Datagram::decode(bytes).map_err(|malformed| malformed.to_string())?;
        let ours = [self.board.fd(), self.arenas.outbox.fd(), self.arenas.landing.fd()];
        match link.input(datagram, fds, ours)? {
            Event::Nothing => {}
            Event::Broken => link.connections().iter().for_each(|connection| connection.report_broken()),
            Event::Request { id, doorbells, hello, discriminator, control } => {
                let device = self.this.upgrade().ok_or("the NIC is closing")?;
                let request = IncomingRequest {
                    device,
                    link: link.clone(),
                    id,
                    doorbells,
                    hello,
                    control: Arc::new(control),
                    answered: false,
                };
                let listener = self.listeners.lock().get(&discriminator).cloned();
                match listener {
                    Some(listener) => (listener.lock())(Box::new(request)),
                    None => request.refuse(Why::NoMatch, ""),
                }
            }
        }
        Ok(())
    }
}

/// Connects, waiting while the peer's backlog is full.
fn connect_socket(address: &[u8], deadline: Deadline) -> Result<Endpoint> {
    loop {
        match socket::connect_to(address) {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !deadline.passed() => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => {
                let what = format!("connecting to the process at {:?}", String::from_utf8_lossy(address));
                return Err(Error::os(what, error));
            }
        }
    }
}

/// Nobody is met who could decide anything: by another transport they may well meet. (Two containers may share a network
/// namespace, and with it the names of sockets, but not a user namespace.)
fn another_user(uid: u32, pid: Option<i32>) -> Error {
    let what = format!("shared memory with process {}", process(pid));
    let own = socket::own_uid();
    let why =
        format!("it runs as another user or in another user namespace (id {uid}, this process's is {own})");
    Error::Unavailable { what, why }
}

//! A server's link of two: UDP sockets with the clients, and the library between the servers. HADB over uDAPL kept UDP for its
//! clients in this way, as they may be far from the database's network.
//!
//! The server's thread waits in the library, at the uDAPL event dispatcher or at the mailbox. A second thread sleeps until a socket
//! has news, and then ends that wait: by a software event, or by a message of the server to itself. So a client's message takes
//! one thread more than over sockets alone. A client has only sockets.

use super::{Blob, Carrier, Event, Pairs, bare::BareLink};
use crate::failure::{HadbError, Result};
use crate::message::{Outgoing, Usage};
use crate::options::{LinkKind, Links};
use crate::ranks::Servers;
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use udeck::World;

/// Number under which the watcher's own descriptor is in its epoll. Sockets have smaller ones.
const QUIT: u64 = u64::MAX;

pub struct SplitLink {
    servers: Servers,
    clients: BareLink,
    pub(super) nodes: Carrier,
    watcher: Watcher,
    /// Whether the last event was a client's.
    is_turn_of_nodes: bool,
    /// Ranks whose death was reported. Both links may learn of one.
    lost: Vec<usize>,
}

/// Connects this rank. All ranks must call it; it waits for them. Returns the description, too: a client has no link between
/// servers that could say it later.
pub(super) fn connect(world: &Rc<World>, links: Links, servers: Servers) -> Result<(Carrier, String)> {
    let LinkKind::Bare = links.clients else {
        let what = "only bare sockets can be the clients' own link";
        return Err(HadbError::Options(what.to_owned()));
    };
    let nodes = Carrier::connect(world, links.nodes, Pairs::OfNodes(servers))?;
    let clients = BareLink::connect(world, Pairs::OfClients(servers))?;
    let description = format!("{} between servers; clients have UDP sockets", nodes.describe());
    if !servers.has(world.rank()) {
        return Ok((Carrier::Bare(Box::new(clients)), description));
    }
    let watcher = match &nodes {
        Carrier::Deck(link) => Watcher::start(&clients, link.waker()?),
        Carrier::Dat(link) => Watcher::start(&clients, link.waker()),
        Carrier::Bare(_) | Carrier::Split(_) => Watcher::start(&clients, || ()),
    };
    let watcher = watcher.map_err(HadbError::system("watching the clients' sockets"))?;
    let split = SplitLink { servers, clients, nodes, watcher, is_turn_of_nodes: true, lost: Vec::new() };
    Ok((Carrier::Split(Box::new(split)), description))
}

impl SplitLink {
    pub fn send(&mut self, message: Outgoing<Blob>) -> Result {
        if self.servers.has(message.to) { self.nodes.send(message) } else { self.clients.send(message) }
    }

    pub fn receive(&mut self, limit: Duration) -> Result<Event> {
        let deadline = Instant::now() + limit;
        loop {
            let event = self.next(deadline)?;
            match event {
                Event::Lost(rank) if self.lost.contains(&rank) => {}
                Event::Idle if Instant::now() < deadline => {}
                Event::Lost(rank) => {
                    self.lost.push(rank);
                    return Ok(event);
                }
                event => return Ok(event),
            }
        }
    }

    /// Returns the next event of either link, in turn while both have some. [`Event::Idle`]: there may be one at the next call.
    fn next(&mut self, deadline: Instant) -> Result<Event> {
        let next = self.clients.poll(self.watcher.has_news())?;
        let wait =
            next.map_or(Duration::ZERO, |next| next.min(deadline).saturating_duration_since(Instant::now()));
        if next.is_some() || self.is_turn_of_nodes {
            self.is_turn_of_nodes = false;
            match self.nodes.receive(wait)? {
                Event::Idle => {}
                event => return Ok(event),
            }
        }
        self.is_turn_of_nodes = true;
        Ok(self.clients.take_event().unwrap_or(Event::Idle))
    }

    pub fn usage(&self) -> Usage {
        self.clients.usage.and(&self.nodes.usage())
    }

    /// Leaves the other server, and then the clients, the rank `last` after all others.
    pub fn finish(self, last: Option<usize>) -> Result {
        let SplitLink { clients, nodes, watcher, .. } = self;
        drop(watcher);
        // The servers leave each other without an order.
        nodes.finish(Some(0))?;
        clients.finish(last)
    }
}

/// A thread that sleeps until a socket has news.
struct Watcher {
    has_news: Arc<AtomicBool>,
    quit: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts the thread, which calls `wake` at each news.
    fn start(link: &BareLink, wake: impl Fn() + Send + 'static) -> io::Result<Watcher> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let quit = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &quit, epoll::EventData::new_u64(QUIT), epoll::EventFlags::IN)?;
        for (at, socket) in (0..).zip(link.sockets()) {
            // Each datagram is news once, whether or not it has been read when the next one comes.
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, socket, epoll::EventData::new_u64(at), flags)?;
        }
        let has_news = Arc::new(AtomicBool::new(true));
        let news = has_news.clone();
        let thread = thread::Builder::new().name("hadb-sockets".to_owned()).spawn(move || {
            let mut events = Vec::with_capacity(8);
            loop {
                events.clear();
                match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(_) => return,
                }
                if events.iter().any(|event| event.data.u64() == QUIT) {
                    return;
                }
                // A server that has not yet looked for the last news will find these, too.
                if !news.swap(true, Ordering::AcqRel) {
                    wake();
                }
            }
        })?;
        Ok(Watcher { has_news, quit, thread: Some(thread) })
    }

    /// Whether a socket may have a datagram. A datagram that comes after this call is the next call's.
    fn has_news(&self) -> bool {
        self.has_news.swap(false, Ordering::AcqRel)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.quit, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The thread has no result. A panic of it has been printed.
            let _ = thread.join();
        }
    }
}

//! Moves the bytes of a [`Server`]: one thread, one `poll`, over all the ranks' sockets and what is relayed for ranks on
//! other hosts.
//!
//! The thread never blocks on a rank. What cannot be written at once is kept in a bounded buffer; a rank that lets its
//! buffer fill is declared lost, so that it holds up nobody else. [`Service::run`] returns when every connection has
//! ended.

mod peer;
mod reports;

use std::{collections::VecDeque, io, os::unix::net::UnixStream, sync::Arc, time::Instant};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use self::{
    peer::{NoOutlet, Peer, Read},
    reports::{News, Reports},
};
use udeck_auth::RankKey;

use crate::{
    server::{Action, Config, Server},
    wire::{Call, FromServer, MAX_FRAME, Reply, Request, encode},
};

pub use self::{
    peer::{Connection, Outlet},
    reports::Reporter,
};

/// What may lie unsent for one rank, in bytes, before it counts as one that has stopped reading.
pub const OUT_BOUND: usize = 4 * MAX_FRAME;

/// How much is read from one rank before the others have their turn.
const READ_SIZE: usize = 64 << 10;

/// How often a rank that has ended is still read from: more than a socket's buffer holds.
const LAST_READS: usize = 64;

/// The name service at work. Owns the launcher's ends of the connections.
#[derive(Debug)]
pub struct Service {
    server: Server,
    /// By rank; `None` once the connection has ended.
    peers: Vec<Option<Peer>>,
    outlet: Box<dyn Outlet>,
    reports: Arc<Reports>,
    on_desertion: Desertion,
    /// Who asks, of whom, and how: answered when everything else has been heard.
    fates: Vec<(u32, u32, Request)>,
}

/// Who hears of ranks that leave without goodbye.
struct Desertion(Box<Tell>);

type Tell = dyn Fn(u32, &str) + Send;

impl std::fmt::Debug for Desertion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Desertion")
    }
}

impl Service {
    /// A service in which `streams[r]` leads to rank `r`.
    ///
    /// # Errors
    /// When the job's size is not the number of streams, or no event descriptor is to be had.
    pub fn new(config: Config, streams: Vec<UnixStream>) -> io::Result<Service> {
        Service::over(config, streams.into_iter().map(Connection::Socket).collect(), Box::new(NoOutlet))
    }

    /// A service in which `connections[r]` leads to rank `r`; what is said to relayed ones goes to `outlet`. Their
    /// welcome carries neither the secret nor a key nor an address: whoever relays it puts them in.
    ///
    /// # Errors
    /// As [`new`](Service::new).
    pub fn over(
        config: Config,
        connections: Vec<Connection>,
        outlet: Box<dyn Outlet>,
    ) -> io::Result<Service> {
        if config.size() as usize != connections.len() {
            let why = format!("a job of {} ranks with {} connections", config.size(), connections.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Service {
            server: Server::new(config),
            peers: connections.into_iter().map(|connection| Some(Peer::new(connection))).collect(),
            outlet,
            reports: Arc::new(Reports::new()?),
            on_desertion: Desertion(Box::new(|_, _| {})),
            fates: Vec::new(),
        })
    }

    /// Calls `tell` with a rank and how it ended when one that had joined the job leaves without goodbye, and without a sign
    /// of failure that somebody else would tell of. On the service's thread: it must not block.
    pub fn on_desertion(&mut self, tell: impl Fn(u32, &str) + Send + 'static) {
        self.on_desertion = Desertion(Box::new(tell));
    }

    /// The way to tell this service how ranks ended, and what relayed ones said.
    pub fn reporter(&self) -> Reporter {
        Reporter(Arc::clone(&self.reports))
    }

    /// Serves until every connection has ended; asleep while there is nothing to do.
    ///
    /// # Errors
    /// When the system cannot poll. What a rank does never ends the service.
    pub fn run(mut self) -> io::Result<()> {
        let mut scratch = vec![0; READ_SIZE];
        while self.peers.iter().any(Option::is_some) {
            let ready = self.wait()?;
            let now = Instant::now();
            for (rank, news) in self.reports.take() {
                self.hear(now, rank, news, &mut scratch);
            }
            for rank in ready {
                self.receive(now, rank, &mut scratch);
            }
            self.tell_fates(now, &mut scratch);
            let actions = self.server.tick(now);
            self.perform(actions);
            self.flush(now);
        }
        Ok(())
    }

    /// A rank that another one asks about may have said goodbye, or closed its connection, before it was asked about.
    fn tell_fates(&mut self, now: Instant, scratch: &mut [u8]) {
        for (rank, of, request) in std::mem::take(&mut self.fates) {
            self.drain(now, of, scratch);
            let actions = self.server.handle(now, rank, request);
            self.perform(actions);
        }
    }

    /// Serves what a rank has said so far. Bounded, because it may go on.
    fn drain(&mut self, now: Instant, rank: u32, scratch: &mut [u8]) {
        for _ in 0..LAST_READS {
            if !self.receive(now, rank, scratch) {
                break;
            }
        }
    }

    /// Sleeps until something happens or is due. Returns the ranks whose connections have something to say.
    fn wait(&self) -> io::Result<Vec<u32>> {
        // What was asked while others were drained is next.
        let due = if self.fates.is_empty() { self.server.next_deadline() } else { Some(Instant::now()) };
        let until_due = due.map(|due| {
            let left = due.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let connected = || {
            let peers = (0u32..).zip(&self.peers);
            peers.filter_map(|(rank, peer)| {
                let peer = peer.as_ref()?;
                Some((rank, peer, peer.socket()?))
            })
        };
        let mut fds: Vec<PollFd<'_>> = connected()
            .map(|(_, peer, socket)| {
                let out = if peer.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
                PollFd::new(socket, PollFlags::IN | out)
            })
            .collect();
        fds.push(PollFd::new(self.reports.bell(), PollFlags::IN));
        match poll(&mut fds, until_due.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let to_read = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        Ok(connected()
            .zip(&fds)
            .filter(|(_, fd)| fd.revents().intersects(to_read))
            .map(|((rank, ..), _)| rank)
            .collect())
    }

    fn hear(&mut self, now: Instant, rank: u32, news: News, scratch: &mut [u8]) {
        let actions = match news {
            News::Said(bytes) => return self.serve(now, rank, &bytes),
            News::HungUp => self.server.disconnected(now, rank),
            News::Ended(how, well) => {
                // What it said before it ended comes first: it may have been goodbye. A process that it left behind may hold
                // the socket and go on writing.
                self.drain(now, rank, scratch);
                if well && self.server.owes_goodbye(rank) {
                    (self.on_desertion.0)(rank, &how);
                }
                self.server.ended(rank, &how)
            }
        };
        self.perform(actions);
    }

    /// Reads once from a rank and serves what came. False when there was nothing, or nothing more will come.
    fn receive(&mut self, now: Instant, rank: u32, scratch: &mut [u8]) -> bool {
        let Some(peer) = self.peers.get(rank as usize).and_then(Option::as_ref) else { return false };
        match peer.read(scratch) {
            Read::Nothing => return false,
            Read::Bytes(length) => self.serve(now, rank, &scratch[..length]),
            Read::End => {
                let actions = self.server.disconnected(now, rank);
                self.perform(actions);
                return false;
            }
        }
        self.peers[rank as usize].is_some()
    }

    /// Serves what a rank said.
    fn serve(&mut self, now: Instant, rank: u32, bytes: &[u8]) {
        let Some(peer) = self.peers.get_mut(rank as usize).and_then(Option::as_mut) else { return };
        peer.frames.push(bytes);
        while let Some(peer) = &mut self.peers[rank as usize] {
            let actions = match peer.frames.decode::<Request>() {
                Ok(None) => return,
                Ok(Some(request @ Request { call: Call::Fate { rank: of, .. }, .. })) => {
                    self.fates.push((rank, of, request));
                    continue;
                }
                Ok(Some(request)) => self.server.handle(now, rank, request),
                Err(error) => self.server.ended(rank, &format!("sent its launcher {error}")),
            };
            self.perform(actions);
        }
    }

    fn perform(&mut self, actions: Vec<Action>) {
        let mut queue = VecDeque::from(actions);
        while let Some(action) = queue.pop_front() {
            match action {
                Action::Close { rank } => self.close(rank),
                Action::Send { to, mut message } => {
                    let Some(peer) = &mut self.peers[to as usize] else { continue };
                    if peer.is_relayed() {
                        blank(&mut message);
                    }
                    let mut frame = Vec::new();
                    let sendable = encode(&message, &mut frame).is_ok();
                    peer.out.extend(frame);
                    if !sendable || peer.out.len() > OUT_BOUND {
                        queue.extend(self.server.ended(to, &deaf()));
                    }
                }
            }
        }
    }

    fn close(&mut self, rank: u32) {
        if self.peers[rank as usize].take().is_some_and(|peer| peer.is_relayed()) {
            self.outlet.close(rank);
        }
    }

    /// Passes on what can be passed on.
    fn flush(&mut self, now: Instant) {
        for rank in 0..self.peers.len() as u32 {
            let Some(peer) = &mut self.peers[rank as usize] else { continue };
            if peer.flush(rank, &mut *self.outlet).is_err() {
                let actions = self.server.disconnected(now, rank);
                self.perform(actions);
            }
        }
    }
}

/// How a rank ended that does not read what it is sent.
pub fn deaf() -> String {
    format!("stopped reading: over {OUT_BOUND} bytes from its launcher lie unread")
}

/// What must not cross a network in the clear, and what only the rank's own host knows.
fn blank(message: &mut FromServer) {
    if let FromServer::Reply { reply: Reply::Welcome(welcome), .. } = message {
        welcome.secret = [0; 32];
        welcome.key = RankKey::BLANK;
        welcome.address = None;
    }
}

#[cfg(test)]
mod tests;

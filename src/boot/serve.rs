//! Moves the bytes of a [`Server`]: one thread, one `poll`, over all the ranks' sockets.
//!
//! The thread never blocks on a rank. What cannot be written at once is kept in a bounded buffer; a rank that lets its
//! buffer fill is declared lost, so that it holds up nobody else. [`Service::run`] returns when every connection has
//! ended.

use std::{
    collections::VecDeque,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::Instant,
};

use parking_lot::Mutex;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

use crate::{
    server::{Action, Config, Server},
    wire::{Frames, MAX_FRAME, Request, encode},
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
    reports: Arc<Reports>,
}

/// Tells a running [`Service`] how ranks ended. Cheap to clone, usable from any thread; never blocks for long.
#[derive(Debug, Clone)]
pub struct Reporter(Arc<Reports>);

#[derive(Debug)]
struct Reports {
    ended: Mutex<Vec<(u32, String)>>,
    /// Wakes the service's poll.
    bell: OwnedFd,
}

#[derive(Debug)]
struct Peer {
    stream: UnixStream,
    frames: Frames,
    /// What the socket would not take yet.
    out: VecDeque<u8>,
}

impl Service {
    /// A service in which `streams[r]` leads to rank `r`.
    ///
    /// # Errors
    /// When the job's size is not the number of streams, or no event descriptor is to be had.
    pub fn new(config: Config, streams: Vec<UnixStream>) -> io::Result<Service> {
        if config.size() as usize != streams.len() {
            let why = format!("a job of {} ranks with {} connections", config.size(), streams.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let peer = |stream| Some(Peer { stream, frames: Frames::default(), out: VecDeque::new() });
        Ok(Service {
            server: Server::new(config),
            peers: streams.into_iter().map(peer).collect(),
            reports: Arc::new(Reports { ended: Mutex::new(Vec::new()), bell }),
        })
    }

    /// The way to tell this service how ranks ended.
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
            for (rank, how) in self.reports.take() {
                // What it said before it ended comes first: it may have been goodbye. Bounded, because a process that it
                // left behind may hold the socket and go on writing.
                for _ in 0..LAST_READS {
                    if !self.receive(now, rank, &mut scratch) {
                        break;
                    }
                }
                let actions = self.server.ended(rank, &how);
                self.perform(actions);
            }
            for rank in ready {
                self.receive(now, rank, &mut scratch);
            }
            let actions = self.server.tick(now);
            self.perform(actions);
            self.flush(now);
        }
        Ok(())
    }

    /// Sleeps until something happens or is due. Returns the ranks whose connections have something to say.
    fn wait(&self) -> io::Result<Vec<u32>> {
        let until_due = self.server.next_deadline().map(|due| {
            let left = due.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let connected = || (0u32..).zip(&self.peers).filter_map(|(rank, peer)| Some((rank, peer.as_ref()?)));
        let mut fds: Vec<PollFd<'_>> = connected()
            .map(|(_, peer)| {
                let out = if peer.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
                PollFd::new(&peer.stream, PollFlags::IN | out)
            })
            .collect();
        fds.push(PollFd::new(&self.reports.bell, PollFlags::IN));
        match poll(&mut fds, until_due.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let to_read = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        Ok(connected()
            .zip(&fds)
            .filter(|(_, fd)| fd.revents().intersects(to_read))
            .map(|((rank, _), _)| rank)
            .collect())
    }

    /// Reads once from a rank and serves what came. False when there was nothing, or nothing more will come.
    fn receive(&mut self, now: Instant, rank: u32, scratch: &mut [u8]) -> bool {
        let Some(peer) = self.peers.get_mut(rank as usize).and_then(Option::as_mut) else { return false };
        let read = match recv(&peer.stream, &mut *scratch, RecvFlags::DONTWAIT) {
            Ok((0, _)) => None,
            Ok((read, _)) => Some(read),
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(_) => None,
        };
        let Some(read) = read else {
            let actions = self.server.disconnected(now, rank);
            self.perform(actions);
            return false;
        };
        peer.frames.push(&scratch[..read]);
        while let Some(peer) = &mut self.peers[rank as usize] {
            let actions = match peer.frames.decode::<Request>() {
                Ok(None) => return true,
                Ok(Some(request)) => self.server.handle(now, rank, request),
                Err(error) => self.server.ended(rank, &format!("sent its launcher {error}")),
            };
            self.perform(actions);
        }
        false
    }

    fn perform(&mut self, actions: Vec<Action>) {
        let mut queue = VecDeque::from(actions);
        while let Some(action) = queue.pop_front() {
            match action {
                Action::Close { rank } => self.peers[rank as usize] = None,
                Action::Send { to, message } => {
                    let Some(peer) = &mut self.peers[to as usize] else { continue };
                    let mut frame = Vec::new();
                    let sendable = encode(&message, &mut frame).is_ok();
                    peer.out.extend(frame);
                    if !sendable || peer.out.len() > OUT_BOUND {
                        let how =
                            format!("stopped reading: over {OUT_BOUND} bytes from its launcher lie unread");
                        queue.extend(self.server.ended(to, &how));
                    }
                }
            }
        }
    }

    /// Writes what the sockets take.
    fn flush(&mut self, now: Instant) {
        for rank in 0..self.peers.len() as u32 {
            let Some(peer) = &mut self.peers[rank as usize] else { continue };
            if peer.flush().is_err() {
                let actions = self.server.disconnected(now, rank);
                self.perform(actions);
            }
        }
    }
}

impl Reporter {
    /// `rank` has ended, as `how` says: "killed by SIGSEGV". Nothing happens if it had said goodbye.
    pub fn report_ended(&self, rank: u32, how: &str) {
        self.0.ended.lock().push((rank, how.into()));
        // The only failure is a counter at its maximum, and then the service is being woken anyway.
        let _ = rustix::io::write(&self.0.bell, &1u64.to_ne_bytes());
    }
}

impl Reports {
    fn take(&self) -> Vec<(u32, String)> {
        // Reset first: a report that comes in between rings again and is taken twice over, not missed.
        let _ = rustix::io::read(self.bell.as_fd(), &mut [0; 8]);
        std::mem::take(&mut self.ended.lock())
    }
}

impl Peer {
    fn flush(&mut self) -> Result<(), Errno> {
        while !self.out.is_empty() {
            match send(&self.stream, self.out.as_slices().0, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.out.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

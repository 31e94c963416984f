//! A rank's connection: a socket of ours, or a relayed channel.

use std::{collections::VecDeque, fmt, os::unix::net::UnixStream};

use rustix::{
    event::epoll::EventFlags,
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

use super::{ACK_THRESHOLD, HELD, RELAYED_BOUND, WINDOW};
use crate::wire::{Frames, Request, WireError};

/// The path of a rank's bytes.
#[derive(Debug)]
pub enum Connection {
    /// Our end of a socket; the rank holds the other one.
    Socket(UnixStream),
    /// The rank runs on another host. Its bytes come by [`Reporter::relayed`](super::Reporter::relayed); bytes
    /// for it go to the service's [`Outlet`].
    Relayed,
}

/// Takes the service's bytes for relayed ranks. Called on the service's thread: it must not block.
pub trait Outlet: Send + fmt::Debug {
    /// Sends more bytes to a rank, in order; frames may be cut anywhere between two calls.
    fn send(&mut self, rank: u32, bytes: Vec<u8>);
    /// Acknowledges `bytes` of the rank: the same number more may come.
    fn consumed(&mut self, rank: u32, bytes: usize);
    /// Closes a rank's connection: nothing more is sent to this rank, or read from it.
    fn close(&mut self, rank: u32);
}

/// The outlet of a job without relayed ranks.
#[derive(Debug)]
pub(super) struct NoOutlet;

impl Outlet for NoOutlet {
    fn send(&mut self, _: u32, _: Vec<u8>) {}

    fn consumed(&mut self, _: u32, _: usize) {}

    fn close(&mut self, _: u32) {}
}

#[derive(Debug)]
pub(super) struct Peer {
    connection: Connection,
    frames: Frames,
    /// Unsent bytes.
    pub(super) out: VecDeque<u8>,
    /// This peer is in the service's list of touched ranks.
    pub(super) is_touched: bool,
    /// Events for which the socket is watched.
    pub(super) watched: EventFlags,
    /// The rank has ended, or takes nothing any more: nothing is sent to it.
    sends_nothing: bool,
    /// Serving stopped because the rank was held; it may have more requests.
    is_stalled: bool,
    /// Received bytes of a relayed rank that were not acknowledged.
    unreported: usize,
    /// Bytes sent to a relayed rank that it has not acknowledged.
    under_way: usize,
}

pub(super) enum Read {
    Bytes(usize),
    Nothing,
    End,
}

impl Peer {
    pub(super) fn new(connection: Connection) -> Peer {
        let (frames, out) = (Frames::default(), VecDeque::new());
        Peer {
            connection,
            frames,
            out,
            is_touched: false,
            watched: EventFlags::IN,
            sends_nothing: false,
            is_stalled: false,
            unreported: 0,
            under_way: 0,
        }
    }

    /// Returns the events for which the socket is to be watched.
    pub(super) fn wanted(&self) -> EventFlags {
        let out = if self.out.is_empty() { EventFlags::empty() } else { EventFlags::OUT };
        let from = if self.is_held() { EventFlags::empty() } else { EventFlags::IN };
        out | from
    }

    /// Tells whether the rank's requests wait until it has read.
    pub(super) fn is_held(&self) -> bool {
        self.out.len() > HELD
    }

    /// Tells whether the rank was held and is not any more.
    pub(super) fn is_to_be_resumed(&self) -> bool {
        count_look();
        self.is_stalled && !self.is_held()
    }

    /// Stops sending to the rank, and drops unsent bytes.
    pub(super) fn stop_sending(&mut self) {
        self.sends_nothing = true;
        self.out.clear();
    }

    /// Queues a frame to be sent.
    pub(super) fn queue(&mut self, frame: &[u8]) {
        if !self.sends_nothing {
            self.out.extend(frame);
        }
    }

    /// Adds received bytes. Returns `false` if that is more than may come.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        self.frames.push(bytes);
        if self.is_relayed() {
            self.unreported += bytes.len();
        }
        self.unreported <= RELAYED_BOUND
    }

    /// Returns the rank's next request, unless it is held.
    pub(super) fn next(&mut self) -> Result<Option<Request>, WireError> {
        self.is_stalled = self.is_held();
        if self.is_stalled { Ok(None) } else { self.frames.decode() }
    }

    /// Notes that the rank has taken `bytes`.
    pub(super) fn taken(&mut self, bytes: usize) {
        self.under_way = self.under_way.saturating_sub(bytes);
    }

    /// Returns the socket to poll, if there is one.
    pub(super) fn socket(&self) -> Option<&UnixStream> {
        count_look();
        match &self.connection {
            Connection::Socket(stream) => Some(stream),
            Connection::Relayed => None,
        }
    }

    pub(super) fn is_relayed(&self) -> bool {
        matches!(self.connection, Connection::Relayed)
    }

    /// Reads once, without waiting. A relayed rank's bytes do not come this way.
    pub(super) fn read(&self, scratch: &mut [u8]) -> Read {
        let Some(stream) = self.socket() else { return Read::Nothing };
        match recv(stream, scratch, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Read::End,
            Ok((read, _)) => Read::Bytes(read),
            Err(Errno::AGAIN | Errno::INTR) => Read::Nothing,
            Err(_) => Read::End,
        }
    }

    /// Sends as much as the connection takes.
    pub(super) fn flush(&mut self, rank: u32, outlet: &mut dyn Outlet) -> Result<(), Errno> {
        count_look();
        let Connection::Socket(stream) = &self.connection else {
            self.relay(rank, outlet);
            return Ok(());
        };
        while !self.out.is_empty() {
            match send(stream, self.out.as_slices().0, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.out.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn relay(&mut self, rank: u32, outlet: &mut dyn Outlet) {
        let fits = self.out.len().min(WINDOW.saturating_sub(self.under_way));
        if fits > 0 {
            self.under_way += fits;
            outlet.send(rank, self.out.drain(..fits).collect());
        }
        // The requests of a held rank lie in `frames`, and are not acknowledged.
        if self.unreported >= ACK_THRESHOLD && !self.is_stalled {
            outlet.consumed(rank, std::mem::take(&mut self.unreported));
        }
    }
}

#[cfg(test)]
std::thread_local!(
    /// Counts this thread's checks of peers, for a test that an event of one causes none for the others.
    pub(super) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) }
);

#[inline]
fn count_look() {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
}

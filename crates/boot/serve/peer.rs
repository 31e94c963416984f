//! One rank's connection: a socket of ours, or a channel that somebody relays.

use std::{collections::VecDeque, fmt, os::unix::net::UnixStream};

use rustix::{
    event::epoll::EventFlags,
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

use super::{HELD, RELAYED_BOUND, TELL, WINDOW};
use crate::wire::{Frames, Request, WireError};

/// How a rank's bytes travel.
#[derive(Debug)]
pub enum Connection {
    /// Our end of a socket; the rank holds the other one.
    Socket(UnixStream),
    /// The rank runs on another host. What it says comes by [`Reporter::relayed`](super::Reporter::relayed); what is
    /// said to it goes to the service's [`Outlet`].
    Relayed,
}

/// Takes what the service says to relayed ranks. Called on the service's thread: it must not block.
pub trait Outlet: Send + fmt::Debug {
    /// More bytes for a rank, in order; frames may be cut anywhere between two calls.
    fn send(&mut self, rank: u32, bytes: Vec<u8>);
    /// So many bytes of what the rank said have been dealt with: so many more may come.
    fn consumed(&mut self, rank: u32, bytes: usize);
    /// Nothing more will be said to this rank, or heard from it.
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
    /// What has not been sent yet.
    pub(super) out: VecDeque<u8>,
    /// It is listed among those of which something may be to be passed on.
    pub(super) is_touched: bool,
    /// What its socket is watched for.
    pub(super) watched: EventFlags,
    /// It has ended, or hears nothing any more.
    sends_nothing: bool,
    /// It was held when there was perhaps more to serve.
    is_stalled: bool,
    /// If it is relayed: what has come and was not said to have been dealt with, in bytes.
    unreported: usize,
    /// If it is relayed: what was sent and is not known to have been taken, in bytes.
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

    /// What its socket is to be watched for.
    pub(super) fn wanted(&self) -> EventFlags {
        let out = if self.out.is_empty() { EventFlags::empty() } else { EventFlags::OUT };
        let from = if self.is_held() { EventFlags::empty() } else { EventFlags::IN };
        out | from
    }

    /// Whether its requests wait until it has read.
    pub(super) fn is_held(&self) -> bool {
        self.out.len() > HELD
    }

    /// Whether it was held and is not any more.
    pub(super) fn is_to_be_resumed(&self) -> bool {
        count_look();
        self.is_stalled && !self.is_held()
    }

    /// Nothing is said to it any more.
    pub(super) fn stop_sending(&mut self) {
        self.sends_nothing = true;
        self.out.clear();
    }

    /// Puts a frame behind what is to be sent.
    pub(super) fn queue(&mut self, frame: &[u8]) {
        if !self.sends_nothing {
            self.out.extend(frame);
        }
    }

    /// Adds what it said. False: that is more than may come.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        self.frames.push(bytes);
        if self.is_relayed() {
            self.unreported += bytes.len();
        }
        self.unreported <= RELAYED_BOUND
    }

    /// Its next request, unless it is held.
    pub(super) fn next(&mut self) -> Result<Option<Request>, WireError> {
        self.is_stalled = self.is_held();
        if self.is_stalled { Ok(None) } else { self.frames.decode() }
    }

    /// So much of what was sent to it was taken.
    pub(super) fn taken(&mut self, bytes: usize) {
        self.under_way = self.under_way.saturating_sub(bytes);
    }

    /// What can be polled of it.
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

    /// Reads once, without waiting. What is relayed does not come this way.
    pub(super) fn read(&self, scratch: &mut [u8]) -> Read {
        let Some(stream) = self.socket() else { return Read::Nothing };
        match recv(stream, scratch, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Read::End,
            Ok((read, _)) => Read::Bytes(read),
            Err(Errno::AGAIN | Errno::INTR) => Read::Nothing,
            Err(_) => Read::End,
        }
    }

    /// Passes on what can be passed on.
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
        // What is held lies in `frames`.
        if self.unreported >= TELL && !self.is_stalled {
            outlet.consumed(rank, std::mem::take(&mut self.unreported));
        }
    }
}

#[cfg(test)]
std::thread_local!(
    /// Looks at peers by this thread, for a test that what happens to one costs none at the others.
    pub(super) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) }
);

#[inline]
fn count_look() {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
}

//! One rank's connection: a socket of ours, or a channel that somebody relays.

use std::{collections::VecDeque, fmt, os::unix::net::UnixStream};

use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

use crate::wire::Frames;

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
    /// Nothing more will be said to this rank, or heard from it.
    fn close(&mut self, rank: u32);
}

/// The outlet of a job without relayed ranks.
#[derive(Debug)]
pub(super) struct NoOutlet;

impl Outlet for NoOutlet {
    fn send(&mut self, _: u32, _: Vec<u8>) {}

    fn close(&mut self, _: u32) {}
}

#[derive(Debug)]
pub(super) struct Peer {
    connection: Connection,
    pub(super) frames: Frames,
    /// What has not been sent yet.
    pub(super) out: VecDeque<u8>,
}

pub(super) enum Read {
    Bytes(usize),
    Nothing,
    End,
}

impl Peer {
    pub(super) fn new(connection: Connection) -> Peer {
        Peer { connection, frames: Frames::default(), out: VecDeque::new() }
    }

    /// What can be polled of it.
    pub(super) fn socket(&self) -> Option<&UnixStream> {
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
        let Connection::Socket(stream) = &self.connection else {
            if !self.out.is_empty() {
                outlet.send(rank, std::mem::take(&mut self.out).into());
            }
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
}

//! A request that waits for its answer.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{SendFlags, send};
use udeck_via::transport::Hello;
use udeck_via::{Error, RejectKind, Rejection, Result};

use super::Admitted;
use super::wire::{Answer, Request, fits};

/// A connection request that waits for its answer. When dropped, it is rejected.
pub struct PendingRequest {
    /// The requester's socket, until the answer was sent.
    socket: Option<OwnedFd>,
    from: SocketAddr,
    peer: Option<u32>,
    request: Request,
}

impl PendingRequest {
    pub(super) fn new(socket: OwnedFd, from: SocketAddr, peer: Option<u32>, request: Request) -> Self {
        PendingRequest { socket: Some(socket), from, peer, request }
    }

    /// The discriminator that the request is for.
    pub fn discriminator(&self) -> &[u8] {
        &self.request.discriminator
    }

    /// The hello of the requester's VI layer.
    pub fn hello(&self) -> &Hello {
        &self.request.hello
    }

    /// The parameters of the requester's transport. The sender knows the secret; nothing else was checked.
    pub fn parameters(&self) -> &[u8] {
        &self.request.parameters
    }

    /// The rank that the requester has proved to be; `None`: some process of the job.
    pub fn peer(&self) -> Option<u32> {
        self.peer
    }

    /// The requester's address.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// Accepts the request, with this side's hello and parameters. A requester that is gone is noticed by the next read of
    /// the socket.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] when something is too long: the request is then rejected.
    pub fn accept(mut self, hello: &Hello, parameters: &[u8]) -> Result<Admitted> {
        fits(&[], hello, parameters)?;
        let socket = self
            .answer(&Answer::Accepted(hello.clone(), parameters.to_vec()))
            .ok_or_else(|| Error::Lost("the request was answered already".into()))?;
        let (theirs, parameters) = (self.request.hello.clone(), self.request.parameters.clone());
        Ok(Admitted { socket, peer: self.from, theirs, parameters })
    }

    /// Rejects the request.
    pub fn reject(mut self, rejection: impl Into<Rejection>) {
        self.answer(&Answer::Refused(rejection.into()));
    }

    /// Sends the answer. Returns the socket, for a connection.
    fn answer(&mut self, answer: &Answer) -> Option<OwnedFd> {
        let socket = self.socket.take()?;
        // Only the hand-shake was written here before, so there is room. A requester that is gone is noticed by the next
        // read; one that was refused does not matter.
        let _ = send(&socket, &answer.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        Some(socket)
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.answer(&Answer::Refused(RejectKind::Unanswered.into()));
    }
}

impl fmt::Debug for PendingRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PendingRequest({} asks for {:?})",
            self.from,
            String::from_utf8_lossy(self.discriminator())
        )
    }
}

//! A request that waits for its answer.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{SendFlags, send};
use udeck_via::transport::Hello;
use udeck_via::{Error, Result};

use super::Admitted;
use super::wire::{Answer, Request, fits};

/// See the module. Dropped, it is rejected.
pub struct PendingRequest {
    /// Until it was answered.
    socket: Option<OwnedFd>,
    from: SocketAddr,
    peer: Option<u32>,
    request: Request,
}

impl PendingRequest {
    pub(super) fn new(socket: OwnedFd, from: SocketAddr, peer: Option<u32>, request: Request) -> Self {
        PendingRequest { socket: Some(socket), from, peer, request }
    }

    /// Whom it is for.
    pub fn discriminator(&self) -> &[u8] {
        &self.request.discriminator
    }

    /// What the requester's VI layer says.
    pub fn hello(&self) -> &Hello {
        &self.request.hello
    }

    /// What the requester's transport says; from somebody who knows the secret, and not checked beyond that.
    pub fn parameters(&self) -> &[u8] {
        &self.request.parameters
    }

    /// The rank that the requester has proved to be; `None`: somebody of the job.
    pub fn peer(&self) -> Option<u32> {
        self.peer
    }

    /// Where it comes from.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// Accepts it, with what this side says. A requester that is gone is found to be by whoever reads the socket.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] when that is too long: then it is rejected.
    pub fn accept(mut self, hello: &Hello, parameters: &[u8]) -> Result<Admitted> {
        fits(&[], hello, parameters)?;
        let socket = self
            .answer(&Answer::Accepted(hello.clone(), parameters.to_vec()))
            .ok_or_else(|| Error::Lost("the request was answered already".into()))?;
        let (theirs, parameters) = (self.request.hello.clone(), self.request.parameters.clone());
        Ok(Admitted { socket, peer: self.from, theirs, parameters })
    }

    /// The listener does not want it. `reason`: what the requester is told; cut to 512 bytes.
    pub fn reject(mut self, reason: &str) {
        self.answer(&Answer::Rejected(reason.to_owned()));
    }

    /// The two VIs differ in reliability.
    pub fn reject_reliability(mut self) {
        self.answer(&Answer::Reliability);
    }

    /// Nobody listens there.
    pub fn no_match(mut self) {
        self.answer(&Answer::NoMatch);
    }

    /// Gives the answer; the socket, for a connection.
    fn answer(&mut self, answer: &Answer) -> Option<OwnedFd> {
        let socket = self.socket.take()?;
        // It is the first that is written here, save the hand-shake: there is room. A requester that is gone is found to
        // be, by whoever reads; one that was refused does not matter.
        let _ = send(&socket, &answer.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        Some(socket)
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.answer(&Answer::Rejected("the request was dropped unanswered".into()));
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
